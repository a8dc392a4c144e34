//! What is tried before an eviction: that it spares pods where it can, that it ends, and that no pod stays held.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::{Agent, Decision, Event, Options};
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::mib;
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::process::wait_log;
use super::scenarios::QUIET_SAMPLES;
use super::{EVICTION_TIMEOUT, available_bytes, needs_memory_v2, with_active_page_cache};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "remedies::page_cache_is_reclaimed_and_nobody_goes",
        on: On::Once(Machine::V6_1),
        run: page_cache,
    },
    Test {
        name: "remedies::a_pod_that_gives_memory_back_when_told_is_spared",
        on: On::Once(Machine::V7_2),
        run: gives_back,
    },
    Test {
        name: "remedies::no_pod_stays_held_by_an_agent_that_ends_or_is_killed",
        on: On::Once(Machine::V6_1),
        run: not_stuck,
    },
];

/// The disk for swap: its page cache is charged to whoever reads it.
const DISK: &str = "/dev/nvme0n2";

/// Options with these remedies, and a soft threshold that is met by `short_mb` as things are now.
fn short(node: &Node, short_mb: u64, remedies: &str) -> anyhow::Result<Options> {
    let config = node.directory.join("config.yaml");
    fs::write(
        &config,
        format!(
            "evictionHard: {{memory.available: 1Mi}}\n\
             evictionSoft: {{memory.available: {}Ki}}\nevictionSoftGracePeriod: {{memory.available: 300ms}}\n\
             evictionPressureTransitionPeriod: 1s\nplimsoll: {{remedies: {remedies}}}\n",
            (available_bytes()? + mib(short_mb)) >> 10
        ),
    )?;
    Ok(Options::default()
        .flag("--config", &config.to_string_lossy())
        .on_tracepoints())
}

/// Waits for a decision of this kind about `pod`.
fn decided(agent: &mut Agent, kind: &str, pod: &Pod) -> anyhow::Result<Decision> {
    let name = pod.full_name();
    agent
        .wait(EVICTION_TIMEOUT, |event| match event {
            Event::Decision(decision)
                if decision.decision["decision"] == kind
                    && decision.pod.as_deref() == Some(&*name) =>
            {
                Some(decision.clone())
            }
            _ => None,
        })
        .with_context(|| format!("waiting for {kind} of {name}"))
}

/// The decisions so far that are about remedies and evictions, in their order.
fn story(agent: &Agent) -> Vec<String> {
    let words = agent.events.iter().filter_map(|(_, event)| {
        let Event::Decision(decision) = event else {
            return None;
        };
        let value = &decision.decision;
        let kind = value["decision"].as_str()?;
        match kind {
            "reclaim" | "set_high" | "clear_high" | "notify" | "evict" => Some(kind.to_owned()),
            "remedy_ended" => {
                let word = |field: &str| value[field].as_str().unwrap_or_default();
                let took_ms = value["took_ns"].as_u64().unwrap_or_default() / 1_000_000;
                eprintln!("{} {} after {took_ms} ms", word("remedy"), word("end"));
                Some(format!("{} {}", word("remedy"), word("end")))
            }
            _ => None,
        }
    });
    words.collect()
}

fn high(node: &Node, pod: &Pod) -> anyhow::Result<String> {
    let path = node.cgroup_file(pod, "memory.high");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.trim().to_owned())
}

/// Nobody has gone, and nobody goes in the next samples.
fn all_stay(agent: &mut Agent, pod: &mut Running) -> anyhow::Result<()> {
    agent.after_samples(QUIET_SAMPLES)?;
    ensure!(pod.process.is_running()?, "it was evicted");
    let told = story(agent);
    ensure!(!told.iter().any(|word| word == "evict"), "{told:?}");
    Ok(())
}

fn page_cache() -> Outcome {
    if let Some(lacking) = needs_memory_v2() {
        return Ok(lacking);
    }
    with_active_page_cache(page_cache_on_lists)
}

fn page_cache_on_lists() -> Outcome {
    ensure!(Path::new(DISK).exists(), "this guest has no {DISK}");
    // The page cache of a disk goes when nobody has it open any more.
    let _open = fs::File::open(DISK)?;
    let node = Node::new()?;
    let reader = Pod::burstable("reader", "16Mi");
    // It does not read a third time: what was reclaimed would be charged again.
    let arguments = format!("reread --path {DISK} --mb 1 --rounds 2");
    let mut running = node.hog(&reader, &arguments)?;
    wait_log(&running.log, "full", EVICTION_TIMEOUT).context("it has not read twice")?;
    let mut agent = node.agent(&short(&node, 96, "{reclaim: 5s}")?)?;
    let ended = decided(&mut agent, "remedy_ended", &reader)?;
    ensure!(
        ended.decision["remedy"] == "reclaim" && ended.decision["end"] == "resolved",
        "{}",
        ended.text
    );
    all_stay(&mut agent, &mut running)?;
    let told = story(&agent);
    ensure!(told == ["reclaim", "reclaim resolved"], "{told:?}");
    agent.stop()?;
    Ok(Done::Passed)
}

fn gives_back() -> Outcome {
    let node = Node::new()?;
    let cache = Pod::burstable("cache", "16Mi")
        .annotation("plimsoll.dev/memory-pressure-signal", "SIGUSR1");
    let mut running = node.hog(&cache, "give-back --mb 200 --keep-mb 16")?;
    let mut agent = node.agent(&short(&node, 96, "{notify: 10s}")?)?;
    let ended = decided(&mut agent, "remedy_ended", &cache)?;
    ensure!(
        ended.decision["remedy"] == "notify" && ended.decision["end"] == "resolved",
        "{}",
        ended.text
    );
    all_stay(&mut agent, &mut running)?;
    let told = story(&agent);
    ensure!(told == ["notify", "notify resolved"], "{told:?}");
    agent.stop()?;
    Ok(Done::Passed)
}

fn not_stuck() -> Outcome {
    if let Some(lacking) = needs_memory_v2() {
        return Ok(lacking);
    }
    let node = Node::new()?;
    let hog = Pod::burstable("hog", "16Mi");
    let mut running = node.hog(&hog, "hold --mb 200")?;
    let before = high(&node, &hog)?;
    let held = |node: &Node| {
        wait_until(Duration::from_secs(5), Duration::from_millis(5), || {
            high(node, &hog).is_ok_and(|now| now != before)
        })
    };
    let options = short(&node, 96, "{throttle: 10s}")?;

    let mut agent = node.agent(&options)?;
    decided(&mut agent, "set_high", &hog)?;
    ensure!(held(&node), "memory.high is never set");
    agent.stop()?;
    ensure!(
        high(&node, &hog)? == before,
        "it is held after the agent's end: {}",
        high(&node, &hog)?
    );

    let mut agent = node.agent(&options)?;
    decided(&mut agent, "set_high", &hog)?;
    ensure!(held(&node), "memory.high is not set again");
    agent.kill()?;
    ensure!(
        high(&node, &hog)? != before,
        "the agent was killed too late: the test tests nothing"
    );
    let next = node.agent(&Options::hard("memory.available<1Mi").on_tracepoints())?;
    ensure!(
        high(&node, &hog)? == before,
        "the next agent leaves it held: {}",
        high(&node, &hog)?
    );
    next.stop()?;
    ensure!(running.process.is_running()?, "it died");
    Ok(Done::Passed)
}
