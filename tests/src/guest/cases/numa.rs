//! One NUMA node runs short while the machine has plenty: who has its memory there goes, not who has more elsewhere.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use plimsoll_core::model::reading::NumaMemory;

use super::super::agent::Options;
use super::super::harness::{Done, Lacks, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::memory::mib;
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::process::{Guard, program, wait_log};
use super::policies::told;
use super::scenarios::quiet;
use super::{EVICTION_TIMEOUT, available_bytes, go, leak};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "numa::who_fills_one_node_goes_though_another_pod_has_more",
        on: On::First(&[Machine::Numa2, Machine::Numa2Hybrid]),
        run: one_node_fills,
    },
    Test {
        name: "numa::memory_comes_from_the_node_that_was_chosen",
        on: On::First(&[Machine::Numa2, Machine::Numa2Hybrid]),
        run: super::placement::memory_of_one_node,
    },
];

/// The other node, on which more is used by pods.
const ROOMY: u32 = 0;
/// The node that runs short.
const SHORT: u32 = 1;

/// What a NUMA node has left, by the formula of `memory.available`.
fn node_available_bytes(node: u32) -> anyhow::Result<u64> {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let field = |name: &str| {
        let mut lines = text.lines().map(str::split_whitespace);
        // `Node 0 MemTotal:  1024 kB`
        let value = lines.find_map(|words| {
            let mut words = words.skip(2);
            (words.next() == Some(name)).then(|| words.next()?.parse::<u64>().ok())?
        });
        let kib = value.with_context(|| format!("{path} has no {name}"))?;
        anyhow::Ok(kib << 10)
    };
    let memory = NumaMemory {
        node,
        capacity_bytes: field("MemTotal:")?,
        free_bytes: field("MemFree:")?,
        anon_bytes: field("AnonPages:")?,
        file_bytes: field("FilePages:")?,
        inactive_file_bytes: field("Inactive(file):")?,
        lazily_freed_bytes: 0,
    };
    Ok(memory.available_bytes())
}

/// What no pod has: so much of a node.
fn system_holds(node: &Node, on: u32, mb: u64) -> anyhow::Result<Guard> {
    let log = node.directory.join("log/system.log");
    let child = Command::new(program("hog"))
        .arg("--log")
        .arg(&log)
        .args(["--numa-node", &on.to_string()])
        .args(["hold", "--mb", &mb.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("starting a hog outside of pods")?;
    let guard = Guard(child);
    wait_log(&log, "ready", EVICTION_TIMEOUT).context("it did not come up")?;
    Ok(guard)
}

fn one_node_fills() -> Outcome {
    /// What the pod elsewhere has, and what the pod that is to go comes to have.
    const ELSEWHERE_MB: u64 = 256;
    const HERE_MB: u64 = 96;
    /// How much less the short node has left than the other, so that it is the one with the smallest share.
    const APART_MB: u64 = 128;
    if fs::read_to_string("/sys/devices/system/node/has_memory")?.trim() == "0" {
        return Ok(Done::Skipped(Lacks::TwoNumaNodes));
    }
    let node = Node::new()?;
    let elsewhere = Pod::burstable("elsewhere", "16Mi");
    let mut elsewhere_runs = node.hog(
        &elsewhere,
        &format!("hold --mb {ELSEWHERE_MB} --numa-node {ROOMY}"),
    )?;
    let here = Pod::burstable("here", "16Mi");
    let mut hog = leak(&node, &here, HERE_MB, &format!("--numa-node {SHORT}"))?;
    let too_much = node_available_bytes(SHORT)?
        .saturating_sub(node_available_bytes(ROOMY)?.saturating_sub(mib(APART_MB)));
    let _system = system_holds(&node, SHORT, too_much >> 20)?;

    let left_bytes = node_available_bytes(SHORT)?;
    let threshold_bytes = left_bytes.saturating_sub(mib(HERE_MB / 2));
    ensure!(
        threshold_bytes > mib(64),
        "the short node has {left_bytes} bytes left: the test tests nothing"
    );
    let mut agent = node.agent(
        &Options::hard(&format!(
            "memory.available<1Mi,numaMemory.available<{}Ki",
            threshold_bytes >> 10
        ))
        .on_tracepoints(),
    )?;
    quiet(&mut agent, 0)?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == here.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    ensure!(
        finished.signal.as_deref() == Some("numaMemory.available"),
        "by {:?}",
        finished.signal
    );
    let text = told(&agent).context("no decision")?;
    ensure!(text.contains(&format!("NUMA node {SHORT}")), "{text}");
    eprintln!("{text}");
    ensure!(
        hog.process.wait_gone(EVICTION_TIMEOUT),
        "the victim still runs"
    );
    quiet(&mut agent, 1)?;
    ensure!(
        elsewhere_runs.process.is_running()?,
        "the pod elsewhere died"
    );
    let (machine, short) = (available_bytes()?, node_available_bytes(SHORT)?);
    ensure!(
        machine > threshold_bytes * 2 && short > threshold_bytes,
        "the machine has {machine} bytes left, the node {short}"
    );
    agent.stop()?;
    Ok(Done::Passed)
}
