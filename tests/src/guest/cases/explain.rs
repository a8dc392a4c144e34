//! `plimsoll explain` asks a running agent over its socket, and `plimsoll rank` ranks from files: what they say is what
//! happens.

use std::fmt::Write as _;
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
use super::{EVICTION_TIMEOUT, go, leak, threshold_below_now};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "explain::eviction_and_rank_name_who_is_then_evicted",
        on: On::WithAll(
            Machine::V7_2,
            "agent/core/tests/decisions/explain.rs::the_victims_explained_are_the_victims_chosen",
        ),
        run: eviction_comes_true,
    },
    Test {
        name: "explain::oom_has_the_scores_and_what_there_is_not_is_refused",
        on: On::Once(Machine::V7_2),
        run: oom_and_refusals,
    },
];

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

/// The pods of a list of places, in their order.
fn pods(places: &Value) -> Vec<&str> {
    let places = places.as_array().into_iter().flatten();
    places.filter_map(|place| place["pod"].as_str()).collect()
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
            let places = seen["ranking"]["places"].as_array();
            places.is_some_and(|places| {
                places.len() == ORDER.len() && places.iter().all(|own| own["usage"].is_u64())
            })
        });
        ensure!(
            pods(&seen["ranking"]["places"]) == ORDER,
            "the ranking is {}",
            seen["ranking"]
        );
        Ok(seen)
    }
}

fn eviction_comes_true() -> Outcome {
    let scene = Scene::new()?;
    let node = &scene.node;
    let mut agent = node.agent(&Options::hard(&threshold_below_now(48)?).on_tracepoints())?;
    let own = scene.eviction()?;
    ensure!(own["signal"] == "memory.available", "{own}");
    ensure!(
        own["victims"] == serde_json::json!(["default/over"]),
        "{own}"
    );
    let signals = own["signals"].as_array().context("signals is a list")?;
    let shown = signals
        .iter()
        .find(|signal| signal["signal"] == "memory.available")
        .context("memory.available is not among the signals")?;
    let now = super::available_bytes()?;
    let observed = shown["observed"].as_u64().context("nothing observed")?;
    ensure!(
        observed.abs_diff(now) < super::mib(64),
        "it shows {observed}, and there is {now}"
    );
    let places = own["ranking"]["places"].as_array().context("places")?;
    let standing: Vec<_> = places
        .iter()
        .filter_map(|own| own["standing"].as_str())
        .collect();
    ensure!(
        standing == ["next", "waits", "waits", "skipped"],
        "{standing:?}"
    );

    has_all(
        &text(explain(node, &["eviction"]))?,
        &[
            "SIGNAL",
            "Ranking for memory.available",
            "Next to be evicted: default/over, ahead of default/valued by lower priority",
            "containerfs.available",
            "The kubelet would choose the same",
        ],
    )?;
    has_all(
        &text(explain(node, &["eviction", "over"]))?,
        &["place", "1 of 4", "It is the next to be evicted"],
    )?;
    has_all(
        &text(explain(node, &["eviction", "default/within"]))?,
        &[
            "place",
            "3 of 4",
            "before it",
            "before it",
            "default/valued",
        ],
    )?;
    has_all(
        &text(explain(node, &["eviction", "vital"]))?,
        &["Never evicted"],
    )?;
    let of_pod = json(node, &["eviction", "default/within"])?;
    ensure!(
        of_pod["pod"]["pod"] == "default/within" && of_pod["pod"]["shieldedBy"] == 2,
        "{of_pod}"
    );

    rank_says_the_same(node, &own)?;

    // It comes to it.
    let (_, vital) = scene.pods.last().context("there are four")?;
    go(vital)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(finished.pod == ORDER[0], "{finished:?}");
    agent.stop()?;
    Ok(Done::Passed)
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

/// `plimsoll rank` on the scene's manifests and the usage that was explained.
fn rank_says_the_same(node: &Node, own: &Value) -> anyhow::Result<()> {
    let mut usage = String::new();
    for place in own["ranking"]["places"].as_array().context("places")? {
        writeln!(
            usage,
            "{}: {{memoryWorkingSet: {}}}",
            place["pod"].as_str().context("a pod has a name")?,
            place["usage"]
        )?;
    }
    let path = node.directory.join("usage.yaml");
    fs::write(&path, &usage)?;
    let (path, manifests) = (path.to_string_lossy(), node.manifests());
    let manifests = manifests.to_string_lossy();
    let arguments = ["rank", "-f", &manifests, "--usage", &path];
    let answer = text(plimsoll(&[&arguments[..], &["--output", "json"]].concat()))?;
    let answer: Value = serde_json::from_str(&answer)?;
    // All of it: figures, standing, and what sets each apart from the next.
    ensure!(
        answer["places"] == own["ranking"]["places"],
        "{} and {}",
        answer["places"],
        own["ranking"]["places"]
    );
    ensure!(answer["next"] == ORDER[0], "{answer}");
    let table = text(plimsoll(&arguments))?;
    let found: Vec<_> = ORDER.iter().map(|name| table.find(name)).collect();
    ensure!(
        found.iter().all(Option::is_some) && found.is_sorted(),
        "{found:?}:\n{table}"
    );

    fs::write(&*path, "default/over: {memoryWorkingSet: much}\n")?;
    let said = plimsoll(&arguments)?;
    ensure!(
        said.status == Some(1)
            && said.out.is_empty()
            && ["usage.yaml", "memoryWorkingSet"]
                .iter()
                .all(|word| said.errors.contains(word)),
        "status {:?}, {:?} and {:?}",
        said.status,
        said.out,
        said.errors
    );
    Ok(())
}
