//! The main job end to end: who is evicted, when, how, and who is not.

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::{EvictionFinished, Options};
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::{self, mib};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::process::read_log;
use super::super::table::since;
use super::scenarios::QUIET_SAMPLES;
use super::{EVICTION_TIMEOUT, available_bytes, go, leak, oom_kills, threshold_below_now};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "eviction::the_right_pod_dies_and_its_memory_returns",
        on: On::EachKernelAndHybrid,
        run: the_right_pod_dies,
    },
    Test {
        name: "eviction::a_soft_threshold_waits_for_its_grace_period",
        on: On::WithAll(
            Machine::V6_12,
            "agent/core/tests/decisions/engine.rs::soft_threshold_waits_for_its_grace_period_and_gives_the_smaller_grace",
        ),
        run: soft_waits,
    },
    Test {
        name: "eviction::a_pod_that_ignores_sigterm_is_killed_after_its_grace",
        on: On::WithAll(
            Machine::V6_12,
            "agent/core/tests/decisions/engine.rs::grace_then_kill_then_help_then_stuck",
        ),
        run: ignoring_sigterm,
    },
    Test {
        name: "eviction::what_a_container_leaves_behind_has_no_grace_period",
        on: On::EachKernelAndHybrid,
        run: left_behind,
    },
    Test {
        name: "eviction::minimum_reclaim_takes_the_next_in_rank",
        on: On::WithAll(
            Machine::V6_12,
            "agent/core/tests/decisions/engine.rs::minimum_reclaim_counts_only_after_the_threshold_was_met",
        ),
        run: minimum_reclaim,
    },
    Test {
        name: "eviction::no_second_victim_while_the_first_is_being_freed",
        on: On::WithAll(
            Machine::V6_12,
            "agent/core/tests/decisions/engine.rs::no_second_victim_while_the_first_is_being_freed",
        ),
        run: no_second_victim,
    },
    Test {
        name: "eviction::a_critical_pod_is_passed_over",
        on: On::WithAll(
            Machine::V6_12,
            "agent/core/tests/decisions/engine.rs::exempt_pods_are_skipped_and_that_is_said",
        ),
        run: critical_is_passed_over,
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
pub(super) fn soft(threshold: &str, grace: &str, pod_grace_s: &str) -> Options {
    Options::hard("memory.available<1Mi")
        .on_tracepoints()
        .flag("--eviction-soft", threshold)
        .flag(
            "--eviction-soft-grace-period",
            &format!("memory.available={grace}"),
        )
        .flag("--eviction-max-pod-grace-period", pod_grace_s)
}

fn soft_waits() -> Outcome {
    let node = Node::new()?;
    let leaky = Pod::burstable("leaky", "32Mi");
    let hog = leak(&node, &leaky, 192, "")?;
    let mut agent = node.agent(&soft(&threshold_below_now(96)?, "3s", "1"))?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == leaky.full_name(),
        "{} was evicted",
        finished.pod
    );
    freed(&finished)?;
    // The ramp is over long before the grace period: the decision waits for the clock, not for the memory.
    let started_ns = read_log(&hog.log, "start");
    let waited_ns = since(finished.decided_ns, started_ns).context("no decision time")?;
    ensure!(
        waited_ns >= 3_000_000_000,
        "decided {waited_ns} ns after the ramp began, before the grace period was over"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

fn ignoring_sigterm() -> Outcome {
    let node = Node::new()?;
    let leaky = Pod::burstable("leaky", "32Mi").grace_s(30);
    let mut hog = leak(&node, &leaky, 192, "--on-term log")?;
    let mut agent = node.agent(&soft(&threshold_below_now(96)?, "1s", "2"))?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    freed(&finished)?;
    ensure!(
        read_log(&hog.log, "sigterm").is_some(),
        "SIGTERM did not come first"
    );
    // Grace counts from the sample that led to the decision.
    let grace_ns = since(finished.killed_ns, finished.received_ns).context("it was not killed")?;
    // The soft threshold's upper bound of 2 s counts, not the pod's own 30 s.
    ensure!(
        grace_ns >= 2_000_000_000,
        "killed {grace_ns} ns after the decision, its grace is 2 s"
    );
    ensure!(
        hog.process.wait_gone(Duration::from_secs(5)),
        "the victim still runs"
    );
    agent.stop()?;
    Ok(Done::Passed)
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

fn minimum_reclaim() -> Outcome {
    let node = Node::new()?;
    let (large, middle, small) = (
        Pod::burstable("large", "16Mi"),
        Pod::burstable("middle", "16Mi"),
        Pod::burstable("small", "16Mi"),
    );
    let _large = node.hog(&large, "hold --mb 200")?;
    let _middle = node.hog(&middle, "hold --mb 150")?;
    let mut hog = leak(&node, &small, 64, "")?;
    let threshold = threshold_below_now(32)?;
    // 200 MB are back after the first, 32 MB of them below the threshold: not enough; 350 MB after the second: enough.
    let mut agent = node.agent(
        &Options::hard(&threshold)
            .on_tracepoints()
            .flag("--eviction-minimum-reclaim", "memory.available=260Mi"),
    )?;
    go(&hog)?;
    for pod in [&large, &middle] {
        let finished = agent.eviction(EVICTION_TIMEOUT)?;
        ensure!(
            finished.pod == pod.full_name(),
            "{} was evicted, {} is next in rank",
            finished.pod,
            pod.full_name()
        );
        freed(&finished)?;
    }
    agent.after_samples(QUIET_SAMPLES)?;
    ensure!(
        agent.evictions().count() == 2 && hog.process.is_running()?,
        "evicted more than it had to: {:?}",
        agent.events
    );
    agent.stop()?;
    Ok(Done::Passed)
}

fn no_second_victim() -> Outcome {
    let node = Node::new()?;
    let (first, second) = (
        Pod::burstable("first", "16Mi"),
        Pod::burstable("second", "16Mi"),
    );
    // It takes three seconds to die, all the while memory stays below the threshold.
    let _first = node.hog(&first, "--on-term log hold --mb 200")?;
    let mut spared = node.hog(&second, "hold --mb 100")?;
    let hog_pod = Pod::burstable("small", "64Mi");
    let mut hog = leak(&node, &hog_pod, 64, "")?;
    let mut agent = node.agent(&soft(&threshold_below_now(32)?, "500ms", "3"))?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == first.full_name(),
        "{} was evicted",
        finished.pod
    );
    let lasted_ns = since(finished.gone_ns, finished.received_ns).context("it is not gone")?;
    ensure!(
        lasted_ns >= 3_000_000_000,
        "the victim was gone after {lasted_ns} ns: the test tests nothing"
    );
    agent.after_samples(QUIET_SAMPLES)?;
    ensure!(
        agent.evictions().count() == 1,
        "a second victim: {:?}",
        agent.events
    );
    ensure!(
        spared.process.is_running()? && hog.process.is_running()?,
        "a second pod died"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

fn critical_is_passed_over() -> Outcome {
    let node = Node::new()?;
    let critical = Pod::burstable("critical", "16Mi").critical();
    let ordinary = Pod::burstable("ordinary", "16Mi");
    let mut leaking = leak(&node, &critical, 192, "")?;
    let mut held = node.hog(&ordinary, "hold --mb 128")?;
    let mut agent = node.agent(&Options::hard(&threshold_below_now(128)?).on_tracepoints())?;
    go(&leaking)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == ordinary.full_name(),
        "{} was evicted",
        finished.pod
    );
    freed(&finished)?;
    ensure!(
        held.process.wait_gone(Duration::from_secs(5)),
        "the victim still runs"
    );
    ensure!(leaking.process.is_running()?, "the critical pod died");
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
