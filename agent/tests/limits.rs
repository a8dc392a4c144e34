//! What a pod's limits cost it is said by `plimsoll run`, whatever this host allows: the real binary, the real kernel,
//! by each of the mechanisms that can be left out in turn.
//!
//! Needs root and writable cgroups; left out, with a line, where they are missing.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "fixtures/agent.rs"]
mod agent;
mod cgroups;
mod notes;

use std::process::{Command, Stdio};

use agent::Agent;
use plimsoll::host::cgroup::{CgroupPath, Controller};
use plimsoll::pods;
use serde_json::Value;

const PODS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: tight}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 50m, memory: 24Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: calm}
spec:
  containers: [{name: app}]
";

/// Keeps 100 MB in memory, is killed for it, and then works for more than its share of a CPU.
const HOG: &str = "head -c 100000000 /dev/zero | tail -c 100000000 >/dev/null; \
    i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done";

fn sum(lines: &[Value], field: &str) -> u64 {
    lines.iter().filter_map(|line| line[field].as_u64()).sum()
}

#[test]
fn limits_are_told_by_every_mechanism() {
    let probed = format!("plimsoll-test-limits-{}", std::process::id());
    let Some(mounts) = cgroups::writable(&probed) else {
        return;
    };
    for (case, without) in ["", "bpf", "bpf,memory-events,event-control"]
        .iter()
        .enumerate()
    {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pods")).unwrap();
        let manifest = dir.path().join("pods/pods.yaml");
        std::fs::write(&manifest, PODS).unwrap();
        let cgroup_root = format!("plimsoll-test-limits-{case}-{}", std::process::id());
        let without = (!without.is_empty()).then_some(["--without", without]);
        let mut agent = Agent::start(dir.path(), &cgroup_root, without.as_slice().as_flattened());
        agent.wait_for("started");
        let exec = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["exec", "--pod", "tight", "--cgroup-root", &cgroup_root])
            .arg("--state-dir")
            .arg(dir.path().join("state"))
            .arg("-f")
            .arg(&manifest)
            .args(["--", "sh", "-c", HOG])
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(exec.success(), "{exec}");
        for event in ["memory_limit", "kernel_oom_kill", "throttled"] {
            agent.wait_for(event);
        }
        agent.stop();

        let memory = agent.said("memory_limit");
        assert!(sum(&memory, "max") > 0, "{memory:?}");
        let kills = agent.said("kernel_oom_kill");
        assert_eq!(sum(&kills, "kills"), 1, "{kills:?}");
        let started = &agent.said("started")[0];
        let is_told_by_kernel = started["mechanisms"]
            .as_array()
            .unwrap()
            .iter()
            .any(|choice| {
                choice["signal"] == "oom-kill"
                    && choice["role"] == "primary"
                    && (choice["mechanism"] == "tracepoint" || choice["mechanism"] == "fentry")
            });
        assert_eq!(kills[0]["tgid"].is_u64(), is_told_by_kernel, "{kills:?}");
        let throttled = agent.said("throttled");
        assert!(sum(&throttled, "count") > 0, "{throttled:?}");
        for line in memory.iter().chain(&kills).chain(&throttled) {
            assert_eq!(line["pod"], "default/tight", "{line}");
        }
        let kubepods =
            pods::cgroup::kubepods_path(&CgroupPath::new(&cgroup_root).unwrap()).unwrap();
        let memory = mounts.hierarchy_of(Controller::Memory).unwrap();
        assert!(
            !memory.has(&kubepods),
            "{} is left",
            memory.dir(&kubepods).to_str().unwrap()
        );
    }
}
