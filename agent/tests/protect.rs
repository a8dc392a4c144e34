//! The agent protects itself, on the real kernel, and leaves nothing behind. One test in a process of its own, because
//! it moves the process.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod notes;

use plimsoll::host::cgroup::{CgroupPath, Controller, Version};
use plimsoll::host::ledger::UndoOutcome;
use plimsoll::host::protect::{AGENT_CGROUP, protect};
use plimsoll::host::syscall::sched_other;
use plimsoll::host::{HostRoot, Ledger};

const SCHED_FIFO: i32 = 1;

fn own(file: &str) -> String {
    std::fs::read_to_string(format!("/proc/self/{file}")).unwrap()
}

/// The scheduling policy of the calling thread (proc_pid_stat(5), field 41).
fn sched_policy() -> i32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, from_third) = stat.rsplit_once(") ").unwrap();
    from_third.split(' ').nth(41 - 3).unwrap().parse().unwrap()
}

#[test]
fn each_measure_is_taken_or_named() {
    let host = HostRoot::live();
    let Ok(mounts) = host
        .cgroup_mounts()
        .inspect_err(|error| notes::left_out(error))
    else {
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(&host, state.path().join("knobs.jsonl")).unwrap();
    let root = CgroupPath::new(&format!("plimsoll-test-protect-{}", std::process::id())).unwrap();
    let (cgroup, adj) = (own("cgroup"), own("oom_score_adj"));

    let degraded = protect(&host, &mounts, Some(&root), &mut ledger);
    for line in &degraded {
        eprintln!("{line}");
        assert!(!line.to_string().contains('\n') && !line.why.is_empty());
    }
    let is_degraded = |what: &str| degraded.iter().any(|line| line.what.contains(what));
    let agent_cgroup = root.join(AGENT_CGROUP).unwrap();
    assert_eq!(
        own("cgroup").contains(&agent_cgroup.to_string()),
        !is_degraded("cgroup"),
        "{}",
        own("cgroup")
    );
    assert_eq!(
        own("oom_score_adj").trim() == "-999",
        !is_degraded("oom_score_adj")
    );
    assert_eq!(sched_policy() == SCHED_FIFO, !is_degraded("SCHED_FIFO"));
    let of_child = std::thread::spawn(sched_policy).join().unwrap();
    assert_eq!(of_child, 0, "a child is not SCHED_FIFO");
    let locked_kib = |status: &str| -> u64 {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmLck:"))
            .unwrap()
            .trim();
        line.trim_end_matches(" kB").parse().unwrap()
    };
    assert_eq!(locked_kib(&own("status")) > 0, !is_degraded("locked"));
    match mounts.hierarchy_of(Controller::Memory) {
        Ok(hierarchy) if hierarchy.version == Version::V2 => {
            for path in [&root, &agent_cgroup]
                .into_iter()
                .filter(|_| !is_degraded("cgroup"))
            {
                assert_ne!(
                    std::fs::read_to_string(hierarchy.dir(path).join("memory.min"))
                        .unwrap()
                        .trim(),
                    "0"
                );
            }
        }
        _ => assert!(is_degraded("memory.min"), "v1 has none"),
    }

    let restoration = ledger.restore().unwrap();
    sched_other().unwrap();
    assert!(
        restoration
            .changes
            .iter()
            .all(|undone| !matches!(undone.outcome, UndoOutcome::Left(_))),
        "{restoration:?}"
    );
    assert_eq!((own("cgroup"), own("oom_score_adj")), (cgroup, adj));
    for hierarchy in mounts.hierarchies() {
        assert!(!hierarchy.has(&root), "{hierarchy:?}");
    }
}
