//! The main job end to end: who is evicted, when, how, and who is not.

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::{EvictionFinished, Options};
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::{self, mib};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::table::since;
use super::{EVICTION_TIMEOUT, available_bytes, go, leak, oom_kills, threshold_below_now};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "eviction::the_right_pod_dies_and_its_memory_returns",
        on: On::EachKernelAndHybrid,
        run: the_right_pod_dies,
    },
    Test {
        name: "eviction::what_a_container_leaves_behind_has_no_grace_period",
        on: On::EachKernelAndHybrid,
        run: left_behind,
    },
    Test {
        name: "eviction::it_works_when_memory_is_gone",
        on: On::First(&[Machine::V7_2, Machine::Hybrid]),
        run: memory_is_gone,
    },
];

fn freed(finished: &EvictionFinished) -> anyhow::Result<()> {
    ensure!(
        finished.outcome == "freed",
        "{} ended as {}",
        finished.pod,
        finished.outcome
    );
    ensure!(
        finished.freed_bytes >= finished.usage_before_bytes / 20 * 19,
        "{} of {} bytes came back",
        finished.freed_bytes,
        finished.usage_before_bytes
    );
    Ok(())
}

fn all_run(pods: &mut [(Pod, Running)]) -> anyhow::Result<()> {
    for (pod, running) in pods {
        ensure!(running.process.is_running()?, "{} died", pod.full_name());
    }
    Ok(())
}

fn the_right_pod_dies() -> Outcome {
    let kills = oom_kills()?;
    let node = Node::new()?;
    let mut others = Vec::new();
    for (pod, mb) in [
        (Pod::guaranteed("web", "100m", "64Mi"), 32),
        (Pod::burstable("database", "96Mi").priority(1000), 64),
        (Pod::burstable("cache", "64Mi"), 48),
        (Pod::best_effort("batch"), 16),
    ] {
        let running = node.hog(&pod, &format!("hold --mb {mb}"))?;
        others.push((pod, running));
    }
    let leaky = Pod::burstable("leaky", "32Mi");
    let mut hog = leak(&node, &leaky, 256, "")?;
    let threshold = threshold_below_now(128)?;
    let mut agent = node.agent(&Options::hard(&threshold))?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == leaky.full_name(),
        "{} was evicted instead of {}",
        finished.pod,
        leaky.full_name()
    );
    ensure!(
        finished.signal.as_deref() == Some("memory.available"),
        "by {:?}",
        finished.signal
    );
    freed(&finished)?;
    let order = [
        finished.crossed_ns,
        finished.received_ns,
        finished.decided_ns,
        finished.signalled_ns,
        finished.gone_ns,
        finished.freed_ns,
    ];
    ensure!(
        order.iter().flatten().is_sorted(),
        "times out of order: {finished:?}"
    );
    ensure!(
        hog.process.wait_gone(Duration::from_secs(5)),
        "the victim still runs"
    );
    all_run(&mut others)?;
    let stopped = agent.stop()?;
    ensure!(
        stopped.records.dropped == 0,
        "records were lost: {:?}",
        stopped.records
    );
    ensure!(oom_kills()? == kills, "the kernel's OOM killer fired");
    Ok(Done::Passed)
}

/// Options with one soft threshold and no hard one in reach.
fn soft(threshold: &str, grace: &str, pod_grace_s: &str) -> Options {
    Options::hard("memory.available<1Mi")
        .on_tracepoints()
        .flag("--eviction-soft", threshold)
        .flag(
            "--eviction-soft-grace-period",
            &format!("memory.available={grace}"),
        )
        .flag("--eviction-max-pod-grace-period", pod_grace_s)
}

/// The first process ends at SIGTERM; others of its container get none, and would keep their memory for the pod's own
/// 30 s.
fn left_behind() -> Outcome {
    let node = Node::new()?;
    let leaky = Pod::burstable("leaky", "32Mi").grace_s(30);
    let hog = leak(&node, &leaky, 192, "--children 3 --children-mb 32")?;
    let mut agent = node.agent(&soft(&threshold_below_now(96)?, "1s", "30"))?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    freed(&finished)?;
    let left_ns =
        since(finished.killed_ns, finished.signalled_ns).context("what was left was not killed")?;
    ensure!(
        left_ns < 1_000_000_000,
        "what was left was killed {left_ns} ns after SIGTERM, and is looked at every 5 ms"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

fn memory_is_gone() -> Outcome {
    const HOGS: usize = 4;
    let kills = oom_kills()?;
    ensure!(memory::read()?.swap_free_bytes == 0, "this guest has swap");
    let node = Node::new()?;
    // Fast growth from several sides, each without end, against the default thresholds.
    let pre_mb = (available_bytes()?.saturating_sub(mib(300)) >> 20) / HOGS as u64;
    let mut hogs = Vec::new();
    for index in 0..HOGS {
        let pod = Pod::burstable(&format!("hog-{index}"), "16Mi");
        let running = node.hog(
            &pod,
            &format!("ramp --wait-usr1 --rate-mb-s 64 --pre-mb {pre_mb}"),
        )?;
        hogs.push((pod, running));
    }
    let mut agent = node.agent(&Options::default())?;
    for (_, hog) in &hogs {
        go(hog)?;
    }
    // Each victim gives the others room for some seconds; the last one has the whole node and falls, too.
    for _ in 0..2 {
        freed(&agent.eviction(EVICTION_TIMEOUT)?)?;
    }
    ensure!(oom_kills()? == kills, "the kernel's OOM killer fired");
    for (_, hog) in &mut hogs {
        // Gone already if it was evicted.
        let _gone = hog.process.signal(rustix::process::Signal::KILL);
    }
    agent.stop()?;
    Ok(Done::Passed)
}
