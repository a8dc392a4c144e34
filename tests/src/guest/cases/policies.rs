//! The options beyond the kubelet, on a machine.

use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::{Agent, Event, Options};
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::Node;
use super::super::pod::Pod;
use super::stalls::AFTERMATH_SAMPLES;
use super::{EVICTION_TIMEOUT, go, leak, oom_kills};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "policies::out_of_memory_is_foreseen_where_no_threshold_is_met",
        on: On::Once(Machine::V7_2),
        run: foreseen,
    },
    Test {
        name: "policies::a_stall_for_the_cpu_takes_who_is_above_its_request",
        on: On::Weekly(Machine::V6_1),
        run: cpu_stall,
    },
];

/// An agent with this configuration file.
pub(super) fn agent_with(node: &Node, config: &str) -> anyhow::Result<Agent> {
    let path = node.directory.join("config.yaml");
    std::fs::write(&path, config)?;
    node.agent(
        &Options::default()
            .on_tracepoints()
            .flag("--config", &path.to_string_lossy()),
    )
}

/// The text of the decision to evict.
pub(super) fn told(agent: &Agent) -> Option<&str> {
    let mut decisions = agent.events.iter().filter_map(|(_, event)| match event {
        Event::Decision(decision) if decision.decision["decision"] == "evict" => {
            Some(decision.text.as_str())
        }
        _ => None,
    });
    decisions.next()
}

/// The kubelet's default threshold never fires before the kernel kills, and here the kernel's own measure has none.
fn foreseen() -> Outcome {
    let kills = oom_kills()?;
    let node = Node::new()?;
    let web = Pod::guaranteed("web", "100m", "64Mi");
    let mut web_runs = node.hog(&web, "hold --mb 32")?;
    let leaky = Pod::burstable("leaky", "32Mi");
    let hog = leak(&node, &leaky, 1 << 20, "")?;
    let mut agent = agent_with(
        &node,
        "evictionHard: {memory.available: 100Mi, kernelMemory.available: \"0%\"}\n\
         plimsoll: {outOfMemoryForesight: {horizon: 500ms}}\n",
    )?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(finished.pod == leaky.full_name(), "{finished:?}");
    ensure!(
        finished.signal.as_deref() == Some("kernelMemory.available"),
        "by {:?}",
        finished.signal
    );
    let text = told(&agent).context("no decision")?;
    ensure!(text.contains("out of memory foreseen"), "{text}");
    eprintln!("{text}");
    ensure!(web_runs.process.is_running()?, "the bystander died");
    agent.stop()?;
    ensure!(oom_kills()? == kills, "the kernel's OOM killer fired");
    Ok(Done::Passed)
}

/// Two pods share a CPU: the one that requested it stays.
fn cpu_stall() -> Outcome {
    let node = Node::new()?;
    // As many threads as there are CPUs, twice.
    let cpus = std::thread::available_parallelism()?;
    let spin = format!("spin --threads {cpus}");
    let entitled = Pod::guaranteed("entitled", &cpus.to_string(), "64Mi");
    let mut entitled_runs = node.hog(&entitled, &spin)?;
    let thief = Pod::best_effort("thief");
    let _thief = node.hog(&thief, &spin)?;
    let mut agent = agent_with(
        &node,
        "evictionHard: {memory.available: 1Mi, cpuPressure.some.avg10: \"10%\"}\n",
    )?;
    let finished = agent.eviction(Duration::from_secs(120))?;
    ensure!(finished.pod == thief.full_name(), "{finished:?}");
    ensure!(
        finished.signal.as_deref() == Some("cpuPressure.some.avg10"),
        "by {:?}",
        finished.signal
    );
    eprintln!("{}", told(&agent).context("no decision")?);
    ensure!(entitled_runs.process.is_running()?, "the entitled pod died");
    agent.after_samples(AFTERMATH_SAMPLES)?;
    ensure!(
        agent.evictions().count() == 1,
        "a second one went for the stall of the first"
    );
    agent.stop()?;
    Ok(Done::Passed)
}
