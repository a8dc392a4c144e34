//! `plimsoll run` where the machine refuses what it asks for: no locked memory, and cgroups that cannot be written.
//!
//! Needs root; left out, with a line, where it is missing.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod notes;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

use plimsoll::host::cgroup::{CgroupPath, Controller};
use plimsoll::host::{HostRoot, Ledger};
use serde_json::Value;

/// What an agent said, as far as its first line of the kind that is waited for.
struct Ran {
    started: Option<Value>,
    stderr: String,
    is_success: bool,
}

/// Runs the agent by another program, until it has started or ended; then it is asked to end.
fn run_by(program: &str, arguments: &[&str], dir: &Path, cgroup_root: &str) -> Ran {
    std::fs::create_dir_all(dir.join("pods")).unwrap();
    let mut process = Command::new(program)
        .args(arguments)
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["run", "--output", "json", "--cgroup-root", cgroup_root])
        .args([
            "--eviction-hard",
            "memory.available<1Ki",
            "--without",
            "bpf",
        ])
        .arg("--manifests")
        .arg(dir.join("pods"))
        .arg("--state-dir")
        .arg(dir.join("state"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let started = lines.by_ref().find_map(|line| {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        (line["event"] == "started").then_some(line)
    });
    if started.is_some() {
        // `exec` all the way: the process is the agent.
        let pid = rustix::process::Pid::from_child(&process);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }
    lines.for_each(drop);
    let mut stderr = String::new();
    process
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    let is_success = process.wait().unwrap().success();
    Ran {
        started,
        stderr,
        is_success,
    }
}

fn has(program: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let found = Command::new(program).arg("--version").output().is_ok();
    if !is_root || !found {
        notes::left_out(format!("{program} as root is needed"));
    }
    is_root && found
}

#[test]
fn without_locked_memory_the_agent_runs_and_says_so() {
    if !has("setpriv") || !has("prlimit") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = format!("plimsoll-test-memlock-{}", std::process::id());
    let arguments = [
        "--bounding-set=-ipc_lock",
        "--inh-caps=-ipc_lock",
        "prlimit",
        "--memlock=0:0",
    ];
    let ran = run_by("setpriv", &arguments, dir.path(), &root);
    let started = ran
        .started
        .unwrap_or_else(|| panic!("{}", ran.stderr))
        .to_string();
    assert!(
        started.contains("memory locked: ") && started.contains("RLIMIT_MEMLOCK"),
        "{started}"
    );
    assert!(ran.is_success, "{}", ran.stderr);
}

/// Remounts each cgroup file system read-only in a mount namespace, and then is the agent.
const READ_ONLY: &str = "for it in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/self/mounts); do mount -o remount,bind,ro $it || exit 99; done; exec \"$@\"";

#[test]
fn cgroups_that_are_read_only_are_named_with_what_to_do() {
    let host = HostRoot::live();
    let Ok(mounts) = host.cgroup_mounts() else {
        return notes::left_out("no cgroups are mounted");
    };
    if !has("unshare") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = format!("plimsoll-test-readonly-{}", std::process::id());
    let read_only = [
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        READ_ONLY,
        "sh",
    ];
    let ran = run_by("unshare", &read_only, dir.path(), &root);
    assert!(
        ran.started.is_none() && !ran.is_success,
        "{:?}",
        ran.started
    );
    assert!(
        ran.stderr
            .contains("the cgroup file system is mounted read-only here"),
        "{}",
        ran.stderr
    );
    let cgroup = CgroupPath::new(&root).unwrap();
    let memory = mounts.hierarchy_of(Controller::Memory).unwrap();
    assert!(!memory.has(&cgroup));
    // Nothing is left to be undone.
    let mut ledger = Ledger::open(&host, dir.path().join("state/knobs.jsonl")).unwrap();
    assert_eq!(ledger.restore().unwrap().restored(), 0);
}
