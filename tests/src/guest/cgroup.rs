//! Reading and clearing cgroup trees from a test's side.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::clock::wait_until;
use super::process::send;

/// Where the memory controller is: the v2 mount, or v1's memory hierarchy of a hybrid boot.
#[must_use]
pub fn memory_root() -> PathBuf {
    let v1 = PathBuf::from("/sys/fs/cgroup/memory");
    if v1.is_dir() {
        v1
    } else {
        PathBuf::from("/sys/fs/cgroup")
    }
}

/// All hierarchies that are mounted below `/sys/fs/cgroup`.
#[must_use]
pub fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return vec![root];
    }
    let mut found: Vec<PathBuf> = fs::read_dir(&root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("cgroup.procs").exists())
        .collect();
    found.sort();
    found
}

/// The value of `key` in a flat keyed file such as `memory.events`.
///
/// # Errors
/// The file cannot be read, or has no such key.
pub fn keyed(path: &Path, key: &str) -> io::Result<u64> {
    fs::read_to_string(path)?
        .lines()
        .find_map(|line| {
            line.strip_prefix(key)?
                .strip_prefix(' ')?
                .trim()
                .parse()
                .ok()
        })
        .ok_or_else(|| io::Error::other(format!("{} has no {key}", path.display())))
}

/// All directories below and with `root`, children before parents.
#[must_use]
pub fn tree(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(root) else {
        return found;
    };
    let mut children: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    children.sort();
    for child in children {
        found.extend(tree(&child));
    }
    found.push(root.to_owned());
    found
}

/// Process ids in a tree.
#[must_use]
pub fn processes(root: &Path) -> Vec<u32> {
    let mut pids: Vec<u32> = tree(root)
        .iter()
        .filter_map(|directory| fs::read_to_string(directory.join("cgroup.procs")).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect();
    pids.sort_unstable();
    pids
}

/// Kills everything in a tree and removes it; false when something stayed for 10 s.
#[must_use]
pub fn remove(root: &Path) -> bool {
    wait_until(Duration::from_secs(10), Duration::from_millis(10), || {
        for pid in processes(root) {
            // Gone in the meantime is as good.
            let _gone = send(pid, rustix::process::Signal::KILL);
        }
        for directory in tree(root) {
            // Still busy: the next round tries again.
            let _busy = fs::remove_dir(directory);
        }
        !root.exists()
    })
}

/// Every writable control file of a tree with its contents, to compare before and after. Counters and lists that change
/// by themselves are left out.
#[must_use]
pub fn knobs(root: &Path) -> BTreeMap<PathBuf, String> {
    const MOVING: &[&str] = &[
        "cgroup.procs",
        "cgroup.threads",
        "tasks",
        "peak",
        "max_usage_in_bytes",
        "failcnt",
        "pressure",
        "oom_control",
        "usage",
        "usage_in_bytes",
    ];
    let mut found = BTreeMap::new();
    for directory in tree(root) {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let writable = entry
                .metadata()
                .is_ok_and(|metadata| metadata.is_file() && !metadata.permissions().readonly());
            if !writable
                || MOVING
                    .iter()
                    .any(|moving| name.to_string_lossy().ends_with(moving))
            {
                continue;
            }
            // Some are write-only (cgroup.kill): those hold no state.
            if let Ok(text) = fs::read_to_string(entry.path()) {
                found.insert(entry.path(), text);
            }
        }
    }
    found
}
