//! The agent protects itself, on the real kernel, and leaves nothing behind. One test in a process of its own, because it moves the process.

use plimsoll::host::cgroup::{CgroupPath, Layout};
use plimsoll::host::protect::{OWN_CGROUP, protect};
use plimsoll::host::syscall::{sched_other, sched_policy};
use plimsoll::host::{HostRoot, Ledger};

const SCHED_RESET_ON_FORK: i32 = 0x4000_0000;
const SCHED_FIFO: i32 = 1;

fn own(file: &str) -> String {
    std::fs::read_to_string(format!("/proc/self/{file}")).unwrap()
}

#[test]
fn each_measure_is_taken_or_named() {
    let host = HostRoot::live();
    let Ok(mounts) = host
        .cgroup_mounts()
        .inspect_err(|error| eprintln!("left out: {error}"))
    else {
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(&host, state.path().join("knobs.jsonl")).unwrap();
    let root = CgroupPath::new(&format!("plimsoll-test-protect-{}", std::process::id())).unwrap();
    let (cgroup, adj) = (own("cgroup"), own("oom_score_adj"));

    let degraded = protect(&host, &mounts, &root, &mut ledger);
    for line in &degraded {
        eprintln!("{line}");
        assert!(!line.to_string().contains('\n') && !line.why.is_empty());
    }
    let is_degraded = |what: &str| degraded.iter().any(|line| line.what.contains(what));
    let own_cgroup = root.join(OWN_CGROUP).unwrap();
    assert_eq!(
        own("cgroup").contains(&own_cgroup.to_string()),
        !is_degraded("cgroup"),
        "{}",
        own("cgroup")
    );
    assert_eq!(
        own("oom_score_adj").trim() == "-999",
        !is_degraded("oom_score_adj")
    );
    assert_eq!(
        sched_policy().unwrap() == SCHED_FIFO | SCHED_RESET_ON_FORK,
        !is_degraded("SCHED_FIFO")
    );
    let locked_kib = |status: &str| -> u64 {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmLck:"))
            .unwrap()
            .trim();
        line.trim_end_matches(" kB").parse().unwrap()
    };
    assert_eq!(locked_kib(&own("status")) > 0, !is_degraded("locked"));
    if mounts.layout() != Layout::V2 {
        assert!(is_degraded("memory.min"), "v1 has none");
    } else if !is_degraded("cgroup") {
        let dir = mounts.unified().unwrap().dir(&own_cgroup);
        assert_ne!(
            std::fs::read_to_string(dir.join("memory.min"))
                .unwrap()
                .trim(),
            "0"
        );
        assert_ne!(
            std::fs::read_to_string(mounts.unified().unwrap().dir(&root).join("memory.min"))
                .unwrap()
                .trim(),
            "0"
        );
    }

    let restoration = ledger.restore().unwrap();
    sched_other().unwrap();
    assert_eq!(restoration.remarks(), Vec::<String>::new());
    assert_eq!((own("cgroup"), own("oom_score_adj")), (cgroup, adj));
    for hierarchy in mounts.hierarchies() {
        assert!(!hierarchy.has(&root), "{hierarchy:?}");
    }
}
