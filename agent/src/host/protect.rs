//! The agent protects itself, so that it still works when memory and CPU time are gone.
//!
//! Five measures, each of which may be impossible on a host without the others suffering: its own cgroup with
//! `memory.min` (v2), an `oom_score_adj` of -999, all pages locked in memory, the stack touched in advance, and
//! SCHED_FIFO at a low priority. What cannot be had is returned as one line each. All that outlives the process goes
//! through the ledger and is undone on exit.

use std::ops::Range;
use std::path::Path;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::HostRoot;
use super::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use super::file::{parse_u64, read_text};
use super::ledger::{KnobError, Ledger};
use super::meminfo::MeminfoFile;
use super::syscall::{give_memory_back, mlock, sched_fifo_reset_on_fork};
use super::unwind_tables::{unwind_tables, without};

use crate::host::shown::Show as _;

/// Name of the agent's cgroup below the cgroup root.
pub const AGENT_CGROUP: &str = "plimsoll";
/// Wanted `memory.min` of the agent's cgroup.
pub const MEMORY_MIN_BYTES: u64 = 64 << 20;
/// At most this part of the machine is kept for the agent.
pub const MEMORY_MIN_SHARE: u64 = 16;
/// As the kubelet has it for itself and for node-critical containers is -999 and -997; -1000 would hide a runaway agent
/// from the OOM killer.
pub const OOM_SCORE_ADJ: i32 = -999;
/// Of the loop: ahead of all pods and of [`RELEASE_PRIORITY`], behind everything else that is real-time on the host.
pub const FIFO_PRIORITY: i32 = 2;
/// Lowest real-time priority: of what gets the memory of killed pods back.
pub const RELEASE_PRIORITY: i32 = 1;

const STACK_TOUCHED_BYTES: usize = 256 * 1024;

/// A measure that could not be taken, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Degraded {
    /// The measure.
    pub what: &'static str,
    /// Why it is missing, and what to do where something can be done.
    pub why: String,
}

/// Takes all measures for the calling thread and process; what failed is returned. Call on the thread that runs the
/// loop, after its buffers are made. Without a cgroup root the process stays in the cgroup that it is in.
pub fn protect(
    host: &HostRoot,
    mounts: &CgroupMounts,
    cgroup_root: Option<&CgroupPath>,
    ledger: &mut Ledger,
) -> Vec<Degraded> {
    let measures: [(&'static str, Result<(), String>); 4] = [
        (
            "own cgroup with memory.min",
            cgroup_root.map_or(Ok(()), |root| agent_cgroup(host, mounts, root, ledger)),
        ),
        ("oom_score_adj -999", oom_score_adj(host, ledger)),
        ("memory locked", lock_memory(host)),
        (
            "SCHED_FIFO",
            sched_fifo_reset_on_fork(FIFO_PRIORITY).map_err(|error| {
                format!(
                    "{error}; needs CAP_SYS_NICE and, on cgroup v1, real-time budget in this cgroup"
                )
            }),
        ),
    ];
    touch_stack();
    measures
        .into_iter()
        .filter_map(|(what, result)| result.err().map(|why| Degraded { what, why }))
        .collect()
}

/// Creates `<cgroup root>/plimsoll`, gives it `memory.min`, and moves this process into it.
fn agent_cgroup(
    host: &HostRoot,
    mounts: &CgroupMounts,
    cgroup_root: &CgroupPath,
    ledger: &mut Ledger,
) -> Result<(), String> {
    let hierarchy = mounts
        .hierarchy_of(Controller::Memory)
        .map_err(|error| error.to_string())?;
    if hierarchy.version == Version::V1 {
        return Err(
            "memory is accounted by cgroup v1, which has no memory.min; the locked memory remains"
                .to_owned(),
        );
    }
    let text = |error: KnobError| error.to_string();
    let cgroup = cgroup_root
        .join(AGENT_CGROUP)
        .map_err(|error| error.to_string())?;
    let from = current_v2_cgroup(host)?;
    if from == cgroup {
        return Ok(());
    }
    ledger
        .create_cgroup(hierarchy, &cgroup, &[Controller::Memory])
        .map_err(text)?;
    let total = MeminfoFile::open(host)
        .and_then(|meminfo| meminfo.read())
        .map_err(|error| error.to_string())?
        .total;
    let wanted = MEMORY_MIN_BYTES.min(total / MEMORY_MIN_SHARE) & !0xffff; // whole pages of any page size
    // Protection counts only as far as every cgroup above grants it too; the hierarchy's root always does.
    for path in cgroup.lineage() {
        let file = hierarchy.dir(&path).join("memory.min");
        let now = read_text(&file).map_err(|error| error.to_string())?;
        if parse_u64(now.trim().as_bytes()).is_some_and(|now| now < wanted) {
            ledger.write(&file, &wanted.to_string()).map_err(text)?;
        }
    }
    ledger
        .move_self(&hierarchy.dir(&from), &hierarchy.dir(&cgroup))
        .map_err(text)
}

/// The cgroup of this process in the unified tree.
pub(super) fn current_v2_cgroup(host: &HostRoot) -> Result<CgroupPath, String> {
    let path = host.procfs(format!("{}/cgroup", std::process::id()));
    let text = read_text(&path).map_err(|error| error.to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix("0::"));
    CgroupPath::new(line.ok_or_else(|| format!("{}: no line 0::", path.shown()))?)
        .map_err(|error| error.to_string())
}

fn oom_score_adj(host: &HostRoot, ledger: &mut Ledger) -> Result<(), String> {
    let path = host.procfs(format!("{}/oom_score_adj", std::process::id()));
    ledger
        .write_of_self(&path, &OOM_SCORE_ADJ.to_string())
        .map_err(|error| format!("{error}; needs CAP_SYS_RESOURCE"))
}

/// The limit on open files becomes the most that there may be, or the hard limit for whoever may not raise that. A pod
/// takes a dozen, and the kernel's own hard limit of 4096 is below what a node of 500 pods takes.
///
/// # Errors
/// The kernel's answer.
pub fn raise_open_files(host: &HostRoot) -> rustix::io::Result<()> {
    let hard = getrlimit(Resource::Nofile).maximum;
    // fs.nr_open: above it even root is refused.
    let most = read_text(host.procfs("sys/fs/nr_open"))
        .ok()
        .and_then(|text| parse_u64(text.trim().as_bytes()));
    let set = |limit| {
        let both = Rlimit {
            current: limit,
            maximum: limit,
        };
        setrlimit(Resource::Nofile, both)
    };
    match most {
        Some(most) if set(Some(most)).is_ok() => Ok(()),
        _ => set(hard),
    }
}

/// Locks what is in memory now, and every page of code, data and stacks that is mapped. What comes later is locked as
/// it is touched, so that a large reservation (a thread's stack, an allocator's arena) does not become resident as a
/// whole. Nor does the heap: what start-up freed in it stays away, and what it holds has been written to
/// ([`fill_allocations`]). Nor do the tables that only a panic reads ([`unwind_tables`](super::unwind_tables)).
fn lock_memory(host: &HostRoot) -> Result<(), String> {
    let advice = "needs CAP_IPC_LOCK or a larger RLIMIT_MEMLOCK (ulimit -l)";
    // What the start has freed: its configuration, and the BPF programs once they are in the kernel.
    give_memory_back();
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        .map_err(|errno| format!("mlockall: {errno}; {advice}"))?;
    let maps = read_text(host.procfs(format!("{}/maps", std::process::id())))
        .map_err(|error| error.to_string())?;
    let program = Path::new("/proc/self/exe");
    let name = std::fs::read_link(program).unwrap_or_default();
    let tables = unwind_tables(program);
    for mapping in maps.lines().filter_map(whole_mapping) {
        let is_program = Path::new(mapping.name) == name;
        let tables = if is_program { &tables[..] } else { &[] };
        for part in without(mapping.range, mapping.offset, tables, page_size()) {
            mlock(part.start, part.end).map_err(|error| format!("{error}; {advice}"))?;
        }
    }
    Ok(())
}

/// A line of `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'line> {
    range: Range<usize>,
    /// Where that is in its file.
    offset: u64,
    name: &'line str,
}

/// What a line maps, if it is to be in memory.
fn whole_mapping(line: &str) -> Option<Mapping<'_>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_readable = fields.next()?.starts_with('r');
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    // Device and inode.
    let name = fields.nth(2).unwrap_or_default();
    if !is_readable || name == "[heap]" || name.starts_with("[v") {
        return None;
    }
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(Mapping {
        range: address(start)?..address(end)?,
        offset,
        name,
    })
}

/// Makes the stack of this thread resident as deep as the kill path can go.
#[inline(never)]
fn touch_stack() {
    let mut stack = [0_u8; STACK_TOUCHED_BYTES];
    std::hint::black_box(&mut stack);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::tests::{fake_host, fake_v2};

    fn fake_self(host: &HostRoot, cgroup: &str) {
        let process = host.procfs(std::process::id().to_string());
        std::fs::create_dir_all(&process).unwrap();
        std::fs::write(process.join("cgroup"), cgroup).unwrap();
        std::fs::write(process.join("oom_score_adj"), "0\n").unwrap();
        std::fs::copy("/proc/self/stat", process.join("stat")).unwrap();
        std::fs::write(
            host.procfs("meminfo"),
            std::fs::read("/proc/meminfo").unwrap(),
        )
        .unwrap();
    }

    #[test]
    fn code_data_and_stacks_are_locked_whole_and_the_heap_is_not() {
        for (rest, locked) in [
            ("r-xp 00002000 fe:00 1234 /usr/bin/plimsoll-agent", true),
            ("rw-p 00000000 00:00 0", true),
            ("rw-p 00000000 00:00 0 [stack]", true),
            ("rw-p 00000000 00:00 0 [heap]", false),
            ("---p 00000000 00:00 0", false),
            ("r--p 00000000 00:00 0 [vvar]", false),
            ("r-xp 00000000 00:00 0 [vdso]", false),
        ] {
            let line = format!("55000000-55001000 {rest}");
            let range = whole_mapping(&line).map(|mapping| mapping.range);
            assert_eq!(range, locked.then_some(0x5500_0000..0x5500_1000), "{line}");
        }
        let line = "55000000-55001000 r--p 00002000 fe:00 1234 /usr/bin/plimsoll-agent";
        let mapping = whole_mapping(line).unwrap();
        assert_eq!(
            (mapping.offset, mapping.name),
            (0x2000, "/usr/bin/plimsoll-agent")
        );
        assert_eq!(whole_mapping("nonsense"), None);
    }

    #[test]
    fn v1_has_no_memory_min_but_the_rest() {
        let (_dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/memory", "memory")]);
        fake_self(&host, "1:memory:/\n");
        let mounts = host.cgroup_mounts().unwrap();
        let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
        let why = agent_cgroup(&host, &mounts, &CgroupPath::default(), &mut ledger).unwrap_err();
        assert!(why.contains("cgroup v1"), "{why}");
        oom_score_adj(&host, &mut ledger).unwrap();
        let adj = host.procfs(format!("{}/oom_score_adj", std::process::id()));
        assert_eq!(std::fs::read_to_string(&adj).unwrap(), "-999");
        assert_eq!(ledger.restore().unwrap().restored(), 1);
        assert_eq!(std::fs::read_to_string(&adj).unwrap(), "0");
    }

    #[test]
    fn v2_protects_the_cgroup_and_those_above_it() {
        let (_dir, host) = fake_v2();
        fake_self(&host, "0::/old\n");
        let mounts = host.cgroup_mounts().unwrap();
        let base = host.path("/sys/fs/cgroup");
        for (dir, min) in [("node", "0"), ("node/plimsoll", "0"), ("old", "0")] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
            std::fs::write(base.join(dir).join("memory.min"), format!("{min}\n")).unwrap();
            std::fs::write(base.join(dir).join("cgroup.subtree_control"), "memory\n").unwrap();
            std::fs::write(base.join(dir).join("cgroup.procs"), "").unwrap();
        }
        std::fs::write(base.join("cgroup.subtree_control"), "memory\n").unwrap();
        let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
        agent_cgroup(
            &host,
            &mounts,
            &CgroupPath::new("node").unwrap(),
            &mut ledger,
        )
        .unwrap();
        for dir in ["node", "node/plimsoll"] {
            let min: u64 = std::fs::read_to_string(base.join(dir).join("memory.min"))
                .unwrap()
                .parse()
                .unwrap();
            assert!(min > 0 && min <= MEMORY_MIN_BYTES, "{dir}: {min}");
        }
        assert_eq!(
            std::fs::read_to_string(base.join("node/plimsoll/cgroup.procs")).unwrap(),
            "0"
        );
        ledger.restore().unwrap();
        assert_eq!(
            std::fs::read_to_string(base.join("node/memory.min")).unwrap(),
            "0"
        );
    }

    #[test]
    fn a_missing_controller_is_one_line_and_no_more() {
        let (_dir, host) = fake_host(&[("cgroup", "/sys/fs/cgroup/cpu", "cpu")]);
        let mounts = host.cgroup_mounts().unwrap();
        let mut ledger = Ledger::open(&host, host.path("knobs")).unwrap();
        let why = agent_cgroup(&host, &mounts, &CgroupPath::default(), &mut ledger).unwrap_err();
        assert!(why.contains("memory") && !why.contains('\n'), "{why}");
        assert!(
            oom_score_adj(&host, &mut ledger)
                .unwrap_err()
                .contains("gone")
        );
    }
}
