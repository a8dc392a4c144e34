//! `plimsoll explain` asks a running agent over its socket: what it says is what happens.

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::super::agent::Options;
use super::super::clock::wait_until;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::process::program;
use super::leak;

pub(super) const TESTS: &[Test] = &[Test {
    name: "explain::oom_has_the_scores_and_what_there_is_not_is_refused",
    on: On::Once(Machine::V7_2),
    run: oom_and_refusals,
}];

/// What a command printed, and its status.
pub(super) struct Said {
    pub(super) status: Option<i32>,
    out: String,
    errors: String,
}

fn plimsoll(arguments: &[&str]) -> anyhow::Result<Said> {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(program("plimsoll"))
        .args(arguments)
        .output()
        .with_context(|| format!("starting plimsoll {arguments:?}"))?;
    Ok(Said {
        status: status.code(),
        out: String::from_utf8(stdout)?,
        errors: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

/// `plimsoll explain` of the scene's agent.
pub(super) fn explain(node: &Node, arguments: &[&str]) -> anyhow::Result<Said> {
    let state = node.directory.join("state");
    let state = state.to_string_lossy();
    plimsoll(&[&["explain"], arguments, &["--state-dir", &state]].concat())
}

fn text(said: anyhow::Result<Said>) -> anyhow::Result<String> {
    let said = said?;
    ensure!(
        said.status == Some(0) && said.errors.is_empty(),
        "it ended with {:?} and said {}",
        said.status,
        said.errors
    );
    Ok(said.out)
}

pub(super) fn json(node: &Node, arguments: &[&str]) -> anyhow::Result<Value> {
    let out = text(explain(node, &[arguments, &["--output", "json"]].concat()))?;
    serde_json::from_str(&out).with_context(|| format!("not JSON: {out}"))
}

fn has_all(text: &str, words: &[&str]) -> anyhow::Result<()> {
    for word in words {
        ensure!(text.contains(word), "no {word:?} in:\n{text}");
    }
    Ok(())
}

/// The pods of a list of pods, in their order.
fn pods(pods: &Value) -> Vec<&str> {
    let pods = pods.as_array().into_iter().flatten();
    pods.filter_map(|pod| pod["pod"].as_str()).collect()
}

/// Three pods, by the kubelet's order: above its request, without a request but small and of higher priority, within
/// its request; and one that is never evicted. All of them run.
struct Scene {
    node: Node,
    pods: Vec<(Pod, Running)>,
}

const ORDER: [&str; 4] = [
    "default/over",
    "default/valued",
    "default/within",
    "default/vital",
];

impl Scene {
    fn new() -> anyhow::Result<Self> {
        let node = Node::new()?;
        let mut pods = Vec::new();
        for (pod, mb) in [
            (Pod::guaranteed("within", "100m", "160Mi"), 96),
            (Pod::best_effort("valued").priority(10), 16),
            (Pod::burstable("over", "16Mi"), 64),
        ] {
            let running = node.hog(&pod, &format!("hold --mb {mb}"))?;
            pods.push((pod, running));
        }
        let vital = Pod::burstable("vital", "256Mi").critical();
        let running = leak(&node, &vital, 96, "")?;
        pods.push((vital, running));
        Ok(Self { node, pods })
    }

    /// The explanation, once the agent has seen what all pods have.
    fn eviction(&self) -> anyhow::Result<Value> {
        let mut seen = Value::Null;
        wait_until(Duration::from_secs(30), Duration::from_millis(200), || {
            let Ok(own) = json(&self.node, &["eviction"]) else {
                return false;
            };
            seen = own;
            let pods = seen["ranking"]["pods"].as_array();
            pods.is_some_and(|pods| {
                pods.len() == ORDER.len() && pods.iter().all(|own| own["usage"].is_u64())
            })
        });
        ensure!(
            pods(&seen["ranking"]["pods"]) == ORDER,
            "the ranking is {}",
            seen["ranking"]
        );
        Ok(seen)
    }
}

fn oom_and_refusals() -> Outcome {
    let scene = Scene::new()?;
    let agent = scene
        .node
        .agent(&Options::hard("memory.available<1Mi").on_tracepoints())?;
    scene.eviction()?;
    oom(&scene)?;
    refusals(&scene.node)?;
    agent.stop()?;
    refuses(
        &scene.node,
        &["eviction"],
        NO_AGENT,
        "no plimsoll agent answers",
    )?;
    refuses(&scene.node, &["oom"], NO_AGENT, "plimsoll run")?;
    Ok(Done::Passed)
}

fn oom(scene: &Scene) -> anyhow::Result<()> {
    let own = json(&scene.node, &["oom"])?;
    let containers = own["containers"].as_array().context("containers")?;
    ensure!(containers.len() == scene.pods.len(), "{own}");
    for (pod, running) in &scene.pods {
        let path = format!("/proc/{}/oom_score_adj", running.process.pid());
        let has: i64 = fs::read_to_string(path)?.trim().parse()?;
        let said = containers
            .iter()
            .find(|container| container["pod"] == *pod.full_name())
            .with_context(|| format!("{} is missing in {own}", pod.name))?;
        ensure!(
            said["container"] == "main" && said["kubeletAdj"] == has,
            "{has} and {said}"
        );
    }
    // 992 and what it has of the node; that without a request has 1000 and next to nothing.
    ensure!(containers[0]["pod"] == "default/over", "{own}");
    let points: Vec<_> = containers
        .iter()
        .filter_map(|container| container["badness"].as_i64())
        .collect();
    ensure!(
        points.len() == 4 && points.is_sorted_by(|a, b| a >= b),
        "{points:?}"
    );
    has_all(
        &text(explain(&scene.node, &["oom"]))?,
        &[
            "RANK",
            "BADNESS",
            "default/valued",
            "default/vital",
            "BestEffort",
        ],
    )?;
    let of_pod = json(&scene.node, &["oom", "over"])?;
    ensure!(
        pods(&of_pod["containers"]) == ["default/over"] && of_pod["pod"] == "default/over",
        "{of_pod}"
    );
    Ok(())
}

// Exit statuses of `plimsoll explain`.
const NO_AGENT: i32 = 1;
const WRONG_USAGE: i32 = 2;
const UNKNOWN: i32 = 3;

/// `plimsoll explain` prints nothing but an error with `words` in it, and ends with that status.
fn refuses(node: &Node, arguments: &[&str], status: i32, words: &str) -> anyhow::Result<()> {
    for format in ["text", "json"] {
        let said = explain(node, &[arguments, &["--output", format]].concat())?;
        ensure!(
            said.status == Some(status) && said.out.is_empty() && said.errors.contains(words),
            "{arguments:?} as {format}: status {:?}, {:?} and {:?}",
            said.status,
            said.out,
            said.errors
        );
    }
    Ok(())
}

fn refusals(node: &Node) -> anyhow::Result<()> {
    refuses(
        node,
        &["eviction", "nobody"],
        UNKNOWN,
        "no pod is called \"nobody\"",
    )?;
    // It says which there are.
    refuses(node, &["oom", "default/nobody"], UNKNOWN, "default/over")?;
    refuses(
        node,
        &["eviction", "--signal", "memory.free"],
        UNKNOWN,
        "\"memory.free\" is no eviction signal",
    )?;
    refuses(
        node,
        &["oom", "--signal", "memory.available"],
        WRONG_USAGE,
        "--signal applies only to `explain eviction`",
    )
}
