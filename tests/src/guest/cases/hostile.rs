//! Pods that resist, hide, or leave their memory behind: the right one still goes, soon, and no innocent one with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::Options;
use super::super::harness::{Done, Lacks, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::mib;
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::table::since;
use super::{EVICTION_TIMEOUT, available_bytes, go, leak, needs_memory_v2, threshold_below_now};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "hostile::a_pod_that_resists_holds_nobody_up",
        on: On::EachKernel,
        run: resisting,
    },
    Test {
        name: "hostile::a_pod_of_nested_cgroups_does_not_hide",
        on: On::These(&[Machine::V7_2, Machine::Hybrid]),
        run: nested,
    },
    Test {
        name: "hostile::a_pod_of_many_cgroups_does_not_hide",
        on: On::These(&[Machine::V7_2, Machine::Hybrid]),
        run: many,
    },
    Test {
        name: "hostile::a_pod_with_a_threaded_cgroup_goes_and_may_come_again",
        on: On::Once(Machine::V6_1),
        run: threaded,
    },
    Test {
        name: "hostile::memory_that_outlives_its_pod_costs_two_pods_at_most",
        on: On::Once(Machine::V6_12),
        run: outliving,
    },
];

/// More than the BPF programs, the kubelet and this agent look into.
const NESTED: usize = 12;
const MANY: usize = 400;
/// A second of the guest's time.
const SECOND_NS: i64 = 1_000_000_000;

fn container(node: &Node, pod: &Pod) -> PathBuf {
    node.cgroup_file(pod, "main")
}

/// Puts a pod's process into a cgroup below that of its container.
fn move_into(running: &Running, cgroup: &Path) -> anyhow::Result<()> {
    fs::write(
        cgroup.join("cgroup.procs"),
        running.process.pid().to_string(),
    )
    .with_context(|| format!("moving a process into {}", cgroup.display()))
}

/// Its dying threads are SCHED_IDLE beside a neighbour that wants every CPU, and hold the lock of their memory.
fn resisting() -> Outcome {
    let node = Node::new()?;
    let stubborn = Pod::burstable("stubborn", "16Mi").grace_s(1);
    let second = Pod::burstable("second", "16Mi");
    let neighbour = Pod::guaranteed("neighbour", "1", "64Mi");
    // Before the victim: to attach a program the kernel waits until every task has left the CPU by itself (RCU tasks), which a task that
    // stays in the kernel and hardly runs does not.
    let mut agent = node.agent(&Options::hard(&threshold_below_now(256 + 64)?))?;
    let _neighbour = node.hog(&neighbour, "spin --threads 8")?;
    let mut victim = node.hog(&stubborn, "--on-term ignore resist --mb 256")?;
    let mut next = leak(&node, &second, 192, "")?;
    go(&next)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == stubborn.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    let killed_ns = since(finished.gone_ns, finished.killed_ns).context("it was not killed")?;
    ensure!(
        killed_ns < SECOND_NS,
        "it was gone {killed_ns} ns after it was killed"
    );
    ensure!(
        victim.process.wait_gone(Duration::from_secs(5)) && next.process.is_running()?,
        "the wrong pod is gone"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

/// Evicts a pod whose process is in one of the cgroups that `make` makes below its container.
fn hidden(make: impl Fn(&Path) -> anyhow::Result<PathBuf>) -> Outcome {
    let node = Node::new()?;
    let hog = Pod::burstable("hog", "16Mi");
    let innocent = Pod::burstable("innocent", "16Mi");
    let mut spared = node.hog(&innocent, "hold --mb 64")?;
    let mut leaking = leak(&node, &hog, 192, "")?;
    let mut agent = node.agent(&Options::hard(&threshold_below_now(128)?))?;
    move_into(&leaking, &make(&container(&node, &hog))?)?;
    // Until the agent has seen where the pod's process is now.
    agent.after_samples(3)?;
    go(&leaking)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == hog.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    ensure!(
        leaking.process.wait_gone(Duration::from_secs(5)) && spared.process.is_running()?,
        "the wrong pod is gone"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

fn nested() -> Outcome {
    hidden(|container| {
        let cgroup = (0..NESTED).fold(container.to_owned(), |path, _| path.join("d"));
        fs::create_dir_all(&cgroup)?;
        Ok(cgroup)
    })
}

fn many() -> Outcome {
    hidden(|container| {
        for index in 0..MANY {
            fs::create_dir(container.join(format!("c{index:03}")))?;
        }
        Ok(container.join(format!("c{:03}", MANY - 1)))
    })
}

/// `cgroup.procs` of a threaded cgroup cannot be read.
fn threaded() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let node = Node::new()?;
    let hog = Pod::burstable("hog", "16Mi");
    for round in 0..2 {
        // What the first one wrote.
        fs::remove_file(node.log(&hog)).ok();
        let mut leaking = leak(&node, &hog, 192, "")?;
        let threads = container(&node, &hog).join("threads");
        if !threads.is_dir() {
            fs::create_dir(&threads)?;
            if let Err(error) = fs::write(threads.join("cgroup.type"), "threaded") {
                eprintln!("{error}");
                return Ok(Done::Skipped(Lacks::MemoryOnV2));
            }
        }
        let mut agent = node.agent(&Options::hard(&threshold_below_now(128)?))?;
        go(&leaking)?;
        let finished = agent.eviction(EVICTION_TIMEOUT)?;
        ensure!(
            finished.pod == hog.full_name() && finished.outcome == "freed",
            "round {round}: {finished:?}"
        );
        ensure!(
            leaking.process.wait_gone(Duration::from_secs(5)),
            "round {round}: it still runs"
        );
        agent.stop()?;
    }
    Ok(Done::Passed)
}

/// A file on a tmpfs stays charged to the pod that wrote it, after the pod.
fn outliving() -> Outcome {
    const OTHERS: usize = 4;
    let node = Node::new()?;
    let file = node.directory.join("outlives");
    let hog = Pod::burstable("hog", "16Mi");
    let mut others = Vec::new();
    for index in 0..OTHERS {
        let pod = Pod::burstable(&format!("other-{index}"), "16Mi");
        others.push(node.hog(&pod, "hold --mb 40")?);
    }
    let _hog = node.hog(&hog, &format!("file --mb 256 --path {}", file.display()))?;
    // Met as it stands, and not met without what the file holds.
    let wanted = (available_bytes()? + mib(64)) >> 10;
    let mut agent = node.agent(&Options::hard(&format!("memory.available<{wanted}Ki")))?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(finished.pod == hog.full_name(), "{finished:?}");
    agent.after_samples(20)?;
    let left = others
        .iter_mut()
        .map(|other| other.process.is_running())
        .collect::<Result<Vec<_>, _>>()?;
    let left = left.into_iter().filter(|runs| *runs).count();
    fs::remove_file(&file)?;
    ensure!(
        left + 1 >= OTHERS,
        "{left} of {OTHERS} other pods are left: {:?}",
        agent.events
    );
    agent.stop()?;
    Ok(Done::Passed)
}
