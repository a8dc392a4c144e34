//! What `plimsoll exec` makes of a pod's spec.

use std::fs;

use anyhow::ensure;

use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::Node;
use super::super::pod::Pod;

pub(super) const TESTS: &[Test] = &[Test {
    name: "pods::exec_sets_what_the_spec_says",
    on: On::These(&[Machine::V6_12, Machine::Hybrid]),
    run: exec_sets_the_spec,
}];

fn exec_sets_the_spec() -> Outcome {
    let node = Node::new()?;
    let pod = Pod::burstable("limited", "64Mi")
        .limit("memory", "128Mi")
        .limit("cpu", "500m");
    let running = node.hog(&pod, "hold --mb 8")?;
    if super::needs_memory_v2().is_none() {
        let read = |file: &str| {
            fs::read_to_string(node.cgroup_file(&pod, "main").join(file))
                .map(|text| text.trim().to_owned())
        };
        ensure!(
            read("memory.max")? == (128 << 20).to_string(),
            "memory.max is {}",
            read("memory.max")?
        );
        ensure!(
            read("cpu.max")? == "50000 100000",
            "cpu.max is {}",
            read("cpu.max")?
        );
        ensure!(
            read("cgroup.procs")? == running.process.pid().to_string(),
            "cgroup.procs has {}",
            read("cgroup.procs")?
        );
    }
    let adj: i32 = fs::read_to_string(format!("/proc/{}/oom_score_adj", running.process.pid()))?
        .trim()
        .parse()?;
    // 1000 - 1000 * request / capacity, within 3 and 999 (pkg/kubelet/qos/policy.go of 1.36).
    let total_bytes = i64::try_from(super::memory::read()?.total_bytes)?;
    let expected = (1000 - 1000 * (64 << 20) / total_bytes).clamp(3, 999);
    ensure!(
        i64::from(adj) == expected,
        "oom_score_adj is {adj}, the kubelet's rule gives {expected}"
    );
    Ok(Done::Passed)
}
