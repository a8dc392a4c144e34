//! Bursts above a CPU limit and holding back BestEffort, on real kernels: written, explained by the decision, and put
//! back.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::{Agent, Event, Options};
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::process::program;
use super::{EVICTION_TIMEOUT, needs_memory_v2};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "cpu::a_throttled_pod_gets_burst_and_an_agent_that_ends_or_is_killed_leaves_none",
        on: On::Once(Machine::V6_1),
        run: burst,
    },
    Test {
        name: "cpu::best_effort_is_held_back_while_another_waits",
        on: On::Weekly(Machine::V7_2),
        run: suppress,
    },
];

const BURST: &str = "cpuBurst: {enabled: true, nodeUsePercent: 100, waitPercent: 100}";
const SUPPRESS: &str = "cpuSuppress: {enabled: true, waitPercent: 1}";

fn options(node: &Node, own: &str) -> anyhow::Result<Options> {
    let config = node.directory.join("config.yaml");
    fs::write(
        &config,
        format!("evictionHard: {{memory.available: 1Mi}}\nplimsoll: {{{own}}}\n"),
    )?;
    Ok(Options::default().flag("--config", &config.to_string_lossy()))
}

/// Waits for a decision about a pod's CPU bandwidth, or about that of a container of it.
fn given(
    agent: &mut Agent,
    pod: &Pod,
    container: Option<&str>,
) -> anyhow::Result<serde_json::Value> {
    let name = pod.full_name();
    agent
        .wait(EVICTION_TIMEOUT, |event| match event {
            Event::Decision(decision)
                if decision.decision["decision"] == "set_cpu"
                    && decision.decision["container"].as_str() == container
                    && decision.pod.as_deref() == Some(&*name) =>
            {
                Some(decision.decision.clone())
            }
            _ => None,
        })
        .with_context(|| format!("nothing is given to {name} or taken from it"))
}

fn comes_to(path: &PathBuf, value: &str) -> anyhow::Result<()> {
    let read = || fs::read_to_string(path).unwrap_or_default();
    let has = || read().trim() == value;
    ensure!(
        wait_until(Duration::from_secs(20), Duration::from_millis(20), has),
        "{} is {:?}, not {value}",
        path.display(),
        read()
    );
    Ok(())
}

fn burst() -> Outcome {
    // The files of v1 are those of the host on which `agent/tests/cpu_time.rs` runs.
    if let Some(lacking) = needs_memory_v2() {
        return Ok(lacking);
    }
    let node = Node::new()?;
    let tight = Pod::burstable("tight", "16Mi").limit("cpu", "200m");
    let journal = node.directory.join("cpu.journal");
    let with = options(&node, BURST)?.journal(&journal);
    let mut agent = node.agent(&with)?;
    let _running = node.hog(&tight, "spin")?;
    // Its container: the pod has the same quota, and whether the kernel throttles it as well or it only follows its
    // container is chance.
    let decision = given(&mut agent, &tight, Some("main"))?;
    ensure!(
        decision["knob"] == "burst"
            && decision["us"] == 20_000
            && decision["why"]["because"] == "throttled",
        "{decision}"
    );
    let files = ["cpu.max.burst", "main/cpu.max.burst"].map(|name| node.cgroup_file(&tight, name));
    for file in &files {
        comes_to(file, "20000")?;
    }
    agent.stop()?;
    for file in &files {
        comes_to(file, "0")?;
    }
    let replay = Command::new(program("plimsoll"))
        .arg("replay")
        .arg(&journal)
        .stdout(Stdio::null())
        .status()?;
    ensure!(replay.success(), "the journal does not replay: {replay}");

    let agent = node.agent(&options(&node, BURST)?)?;
    comes_to(&files[1], "20000")?;
    agent.kill()?;
    ensure!(
        fs::read_to_string(&files[1])?.trim() == "20000",
        "the agent was killed too late: the test tests nothing"
    );
    let next = node.agent(&Options::hard("memory.available<1Mi"))?;
    for file in &files {
        comes_to(file, "0")?;
    }
    next.stop()?;
    Ok(Done::Passed)
}

fn suppress() -> Outcome {
    if let Some(lacking) = needs_memory_v2() {
        return Ok(lacking);
    }
    let node = Node::new()?;
    let cpus = std::thread::available_parallelism()?.get();
    let (batch, critical) = (
        Pod::best_effort("batch"),
        Pod::best_effort("proxy").critical(),
    );
    let first =
        Pod::burstable("first", "16Mi").annotation("plimsoll.dev/latency-critical", "\"true\"");
    // Before them: beside threads that spin it takes long to start.
    let mut agent = node.agent(&options(&node, SUPPRESS)?)?;
    let _batch = node.hog(&batch, &format!("spin --threads {cpus}"))?;
    let _critical = node.hog(&critical, "spin")?;
    let _first = node.hog(&first, &format!("spin --threads {cpus}"))?;
    let decision = given(&mut agent, &batch, None)?;
    ensure!(
        decision["why"]["because"] == "others_wait"
            && decision["why"]["waiter"]["pod"] == first.full_name(),
        "{decision}"
    );
    let max = node.cgroup_file(&batch, "cpu.max");
    let is_held = || fs::read_to_string(&max).is_ok_and(|text| !text.starts_with("max"));
    ensure!(
        wait_until(Duration::from_secs(20), Duration::from_millis(20), is_held),
        "no quota is written"
    );
    comes_to(&node.cgroup_file(&critical, "cpu.max"), "max 100000")?;
    agent.stop()?;
    comes_to(&max, "max 100000")?;
    Ok(Done::Passed)
}
