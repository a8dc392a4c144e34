//! Whole situations of a node: what runs out, who goes for it, and when nobody may.

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::{Agent, Event, Options};
use super::super::cgroup;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::{self, mib};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::process::wait_log;
use super::disk::Disk;
use super::{EVICTION_TIMEOUT, available_bytes, go, leak, oom_kills, threshold_below_now};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "scenarios::who_takes_the_pids_is_evicted_alone",
        on: On::Once(Machine::V6_12),
        run: pids_run_out,
    },
    Test {
        name: "scenarios::allocatable_memory_runs_out_while_the_node_has_plenty",
        on: On::Once(Machine::V6_12),
        run: allocatable_runs_out,
    },
    Test {
        name: "scenarios::page_cache_that_is_read_once_evicts_nobody",
        on: On::Weekly(Machine::V6_12),
        run: cache_read_once,
    },
    Test {
        name: "scenarios::of_two_hogs_both_are_evicted_where_one_is_not_enough",
        on: On::Once(Machine::V6_12),
        run: both_of_two,
    },
];

/// So many samples with nothing to do about them: nothing will be done.
pub(super) const QUIET_SAMPLES: u32 = 3;

/// The changes of a node condition so far.
fn changes_of(agent: &Agent, condition: &str) -> Vec<bool> {
    let events = agent.events.iter();
    events
        .filter_map(|(_, event)| change_of(event, condition))
        .collect()
}

fn change_of(event: &Event, condition: &str) -> Option<bool> {
    let Event::Decision(decision) = event else {
        return None;
    };
    let decision = &decision.decision;
    (decision["decision"] == "condition" && decision["condition"] == condition)
        .then(|| decision["status"].as_bool())?
}

/// Waits until a condition has gone through `wanted`, from the agent's start.
pub(super) fn wait_for_changes(
    agent: &mut Agent,
    condition: &str,
    wanted: &[bool],
) -> anyhow::Result<()> {
    while changes_of(agent, condition).len() < wanted.len() {
        agent
            .wait(EVICTION_TIMEOUT, |event| change_of(event, condition))
            .with_context(|| format!("waiting for {condition} to go through {wanted:?}"))?;
    }
    let seen = changes_of(agent, condition);
    ensure!(seen == wanted, "{condition} went through {seen:?}");
    Ok(())
}

/// Nothing more happens in [`QUIET_SAMPLES`]: as many evictions as before.
pub(super) fn quiet(agent: &mut Agent, evictions: usize) -> anyhow::Result<()> {
    agent.after_samples(QUIET_SAMPLES)?;
    ensure!(
        agent.evictions().count() == evictions,
        "evicted more than it had to: {:?}",
        agent.events
    );
    Ok(())
}

/// Time for a hog to get its memory, be it by way of swap that an emulated CPU compresses, with stalls of ten seconds.
const FULL_TIMEOUT: Duration = Duration::from_secs(150);

pub(super) fn reached(hog: &Running) -> anyhow::Result<()> {
    wait_log(&hog.log, "full", FULL_TIMEOUT).context("the hog did not get what it wanted")?;
    Ok(())
}

/// Threads that exist, and how many there can be.
fn pids() -> anyhow::Result<(u64, u64)> {
    let number = |path: &str| -> anyhow::Result<u64> {
        std::fs::read_to_string(path)?
            .trim()
            .parse()
            .with_context(|| format!("{path} is a number"))
    };
    let max = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    let loadavg = std::fs::read_to_string("/proc/loadavg")?;
    let running = loadavg
        .split(['/', ' '])
        .nth(4)
        .and_then(|field| field.parse().ok())
        .with_context(|| format!("/proc/loadavg has tasks: {loadavg}"))?;
    Ok((running, max))
}

fn pids_run_out() -> Outcome {
    let node = Node::new()?;
    // Much more memory, and far more over its request: only the count of processes makes the other one the victim.
    let large = Pod::burstable("large", "16Mi");
    let mut spared = node.hog(&large, "hold --mb 128")?;
    let forking = Pod::burstable("forking", "256Mi");
    let mut hog = node.hog(&forking, "pids --wait-usr1 --count 120 --rate-s 200")?;
    let (running, max) = pids()?;
    // The agent's own threads come to these.
    let threshold = max - running - 60;
    let mut agent =
        node.agent(&Options::hard(&format!("pid.available<{threshold}")).on_tracepoints())?;
    ensure!(
        changes_of(&agent, "PIDPressure").is_empty(),
        "short of PIDs before it began"
    );
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        (finished.pod.as_str(), finished.signal.as_deref())
            == (&*forking.full_name(), Some("pid.available")),
        "{} was evicted for {:?}",
        finished.pod,
        finished.signal
    );
    ensure!(
        hog.process.wait_gone(Duration::from_secs(5)),
        "the victim still runs"
    );
    wait_for_changes(&mut agent, "PIDPressure", &[true, false])?;
    let left = cgroup::processes(&cgroup::memory_root().join(forking.cgroup()));
    ensure!(
        left.is_empty(),
        "processes of the victim are left: {left:?}"
    );
    quiet(&mut agent, 1)?;
    ensure!(spared.process.is_running()?, "a second pod died");
    agent.stop()?;
    Ok(Done::Passed)
}

fn allocatable_runs_out() -> Outcome {
    let node = Node::new()?;
    let capacity_mb = memory::read()?.total_bytes >> 20;
    let config = node.directory.join("config.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard:\n  memory.available: 100Mi\n\
         evictionPressureTransitionPeriod: 1s\nkubeReserved:\n  memory: {}Mi\n",
        capacity_mb - 400
    );
    std::fs::write(&config, text)?;
    let calm = Pod::burstable("calm", "64Mi");
    let mut spared = node.hog(&calm, "hold --mb 64")?;
    let leaky = Pod::burstable("leaky", "32Mi");
    let hog = leak(&node, &leaky, 256, "")?;
    let mut agent = node.agent(
        &Options::default()
            .on_tracepoints()
            .flag("--config", &config.to_string_lossy()),
    )?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        (finished.pod.as_str(), finished.signal.as_deref())
            == (&*leaky.full_name(), Some("allocatableMemory.available")),
        "{} was evicted for {:?}",
        finished.pod,
        finished.signal
    );
    ensure!(
        available_bytes()? > mib(400),
        "the node itself was short of memory: the test tests nothing"
    );
    quiet(&mut agent, 1)?;
    ensure!(spared.process.is_running()?, "a second pod died");
    agent.stop()?;
    Ok(Done::Passed)
}

/// Free memory falls by far more than the threshold leaves, and all of it is page cache.
fn cache_read_once() -> Outcome {
    let disk = Disk::mount(224, 65536)?;
    let node = Node::new()?;
    let mut agent = node.agent(&Options::hard(&threshold_below_now(128)?).on_tracepoints())?;
    let before_bytes = memory::read()?.free_bytes;
    let path = disk.0.join("big");
    let mut running = node.hog(
        &Pod::best_effort("reader"),
        &format!("file --mb 160 --path {}", path.display()),
    )?;
    let taken_bytes = before_bytes.saturating_sub(memory::read()?.free_bytes);
    ensure!(
        taken_bytes > mib(130),
        "only {taken_bytes} bytes of page cache: the test tests nothing"
    );
    quiet(&mut agent, 0)?;
    let changes = changes_of(&agent, "MemoryPressure");
    ensure!(
        changes.is_empty(),
        "MemoryPressure went through {changes:?}"
    );
    ensure!(running.process.is_running()?, "the pod died");
    agent.stop()?;
    Ok(Done::Passed)
}

/// Two pods grow at the same time, each beyond a threshold at 200 MB.
fn both_of_two() -> Outcome {
    let kills = oom_kills()?;
    let node = Node::new()?;
    let mut hogs = Vec::new();
    for (name, mb) in [("one", 300), ("other", 280)] {
        hogs.push(leak(&node, &Pod::burstable(name, "16Mi"), mb, "")?);
    }
    let mut agent = node.agent(&Options::hard(&threshold_below_now(200)?).on_tracepoints())?;
    for hog in &hogs {
        go(hog)?;
    }
    for _ in &hogs {
        agent.eviction(EVICTION_TIMEOUT)?;
    }
    quiet(&mut agent, hogs.len())?;
    for hog in &mut hogs {
        ensure!(!hog.process.is_running()?, "a pod runs on");
    }
    ensure!(oom_kills()? == kills, "the kernel's OOM killer fired");
    agent.stop()?;
    Ok(Done::Passed)
}
