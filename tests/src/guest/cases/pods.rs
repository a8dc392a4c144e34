//! Pods from a directory of manifests: removed, broken, changed while the agent runs.

use std::fs;
use std::time::Duration;

use anyhow::ensure;

use super::super::agent::Options;
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::Node;
use super::super::pod::Pod;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "pods::a_removed_manifest_ends_its_pod",
        on: On::WithAll(
            Machine::V6_12,
            "agent/core/tests/decisions/engine.rs::a_removed_manifest_ends_the_pod_and_an_eviction_shortens_that",
        ),
        run: removed_manifest,
    },
    Test {
        name: "pods::a_broken_manifest_leaves_the_others_running",
        on: On::WithAll(
            Machine::V6_12,
            "agent/src/input/manifests/tests.rs::a_broken_file_keeps_its_pods_and_is_reported_until_it_is_right",
        ),
        run: broken_manifest,
    },
    Test {
        name: "pods::exec_sets_what_the_spec_says",
        on: On::These(&[Machine::V6_12, Machine::Hybrid]),
        run: exec_sets_the_spec,
    },
];

/// A resource quantity that is none, on line 12.
const BROKEN: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: broken\nspec:\n  containers:\n  - name: main\n    image: none\n    \
                      resources:\n      requests:\n        cpu: 1\n        memory: 12Qx\n";

fn removed_manifest() -> Outcome {
    let node = Node::new()?;
    let (goes, stays) = (Pod::burstable("goes", "16Mi"), Pod::best_effort("stays"));
    let mut going = node.hog(&goes, "hold --mb 8")?;
    let mut staying = node.hog(&stays, "hold --mb 8")?;
    // It says that it has started when its manifests are read.
    let agent = node.agent(&Options::hard("memory.available<1Mi").on_tracepoints())?;
    ensure!(agent.started.pods == 2, "{:?}", agent.started);
    fs::remove_file(node.manifest(&goes))?;
    ensure!(
        going.process.wait_gone(Duration::from_secs(60)),
        "the pod runs without its manifest: {}",
        agent.errors()
    );
    let directory = node.cgroup_file(&goes, "");
    let removed = wait_until(Duration::from_secs(20), Duration::from_millis(50), || {
        !directory.exists()
    });
    ensure!(removed, "{} stays behind", directory.display());
    ensure!(staying.process.is_running()?, "the other pod died, too");
    agent.stop()?;
    Ok(Done::Passed)
}

fn broken_manifest() -> Outcome {
    let node = Node::new()?;
    let pod = Pod::burstable("good", "16Mi");
    let mut running = node.hog(&pod, "hold --mb 8")?;
    let mut agent = node.agent(&Options::hard("memory.available<1Mi").on_tracepoints())?;
    node.write_manifest("broken.yaml", BROKEN)?;
    agent.warning(
        Duration::from_secs(20),
        &["broken.yaml", "12", "memory", "12Qx"],
    )?;
    ensure!(running.process.is_running()?, "the good pod died");
    // And one that breaks while it is known: its pod lives on, too.
    node.write_manifest("good.yaml", "kind: Pod\nspec: [\n")?;
    agent.warning(Duration::from_secs(20), &["good.yaml"])?;
    agent.after_samples(1)?;
    ensure!(
        running.process.is_running()?,
        "the pod died with its manifest: {}",
        agent.errors()
    );
    agent.stop()?;
    Ok(Done::Passed)
}

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
