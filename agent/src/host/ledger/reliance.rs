//! Who would lose something if a controller were taken away from the cgroups below one.
//!
//! **Problem.** A controller that the agent has enabled is there for everybody: a runtime may have put limits on a
//! cgroup of its own since, which are gone with the controller, without an error. **Approach.** Cgroups beside our own
//! are asked whether any of the controller's files has another value than the kernel gives a new cgroup. A cgroup that
//! passes the controller on needs no question: the kernel refuses then (EBUSY).

use std::path::Path;

use crate::host::file::read_text;
use crate::host::shown::Show as _;

/// Cgroups that are looked at; with more, the controller stays.
const CGROUPS_MAX: usize = 4096;

/// Files of each controller, and what they have in a new cgroup (Documentation/admin-guide/cgroup-v2.rst).
const FILES: [(&str, &[(&str, &str)]); 5] = [
    (
        "cpu",
        &[
            ("cpu.weight", "100"),
            ("cpu.max", "max 100000"),
            ("cpu.max.burst", "0"),
            ("cpu.idle", "0"),
            ("cpu.uclamp.min", "0.00"),
            ("cpu.uclamp.max", "max"),
        ],
    ),
    (
        "memory",
        &[
            ("memory.min", "0"),
            ("memory.low", "0"),
            ("memory.high", "max"),
            ("memory.max", "max"),
            ("memory.swap.high", "max"),
            ("memory.swap.max", "max"),
            ("memory.zswap.max", "max"),
            ("memory.oom.group", "0"),
        ],
    ),
    (
        "cpuset",
        &[
            ("cpuset.cpus", ""),
            ("cpuset.mems", ""),
            ("cpuset.cpus.partition", "member"),
        ],
    ),
    (
        "io",
        &[
            ("io.max", ""),
            ("io.latency", ""),
            ("io.weight", "default 100"),
            ("io.prio.class", "no-change"),
        ],
    ),
    ("pids", &[("pids.max", "max")]),
];

/// The first cgroup directly below, other than ours, that relies on the controller, and by what.
pub(super) fn relied_on(
    cgroup: &Path,
    controller: &str,
    is_ours: impl Fn(&Path) -> bool,
) -> Option<String> {
    // A cgroup that is gone, or a fake one without directories.
    let entries = std::fs::read_dir(cgroup).ok()?;
    let mut cgroups = 0;
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) || is_ours(&path) {
            continue;
        }
        cgroups += 1;
        if cgroups > CGROUPS_MAX {
            return Some(format!("there are more than {CGROUPS_MAX} cgroups in it"));
        }
        let found = if controller == "hugetlb" {
            huge_page_limit(&path)
        } else {
            let files = FILES.iter().find(|(name, _)| *name == controller);
            let files = files.map_or(&[][..], |(_, files)| files);
            let changed = |(file, default): &(&str, &str)| other_than(&path.join(file), default);
            files.iter().find_map(changed)
        };
        if let Some((file, value)) = found {
            let path = path.shown();
            return Some(format!(
                "{path} relies on the controller: its {file} is {value:?}"
            ));
        }
    }
    None
}

/// A file's name and value, if the value is not the one of a new cgroup. A file that the kernel does not have says
/// nothing.
fn other_than(file: &Path, default: &str) -> Option<(String, String)> {
    let text = read_text(file).ok()?;
    let value = text.trim();
    let name = file.file_name()?.to_string_lossy().into_owned();
    (value != default).then(|| (name, value.to_owned()))
}

/// There is a file for each size of huge pages.
fn huge_page_limit(cgroup: &Path) -> Option<(String, String)> {
    std::fs::read_dir(cgroup).ok()?.flatten().find_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        (name.starts_with("hugetlb.") && name.ends_with(".max"))
            .then(|| other_than(&entry.path(), "max"))?
    })
}
