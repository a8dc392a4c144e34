//! The journal: written, replayed byte for byte, and no danger when its disk is full.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::super::agent::{Event, Options};
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::process::program;
use super::{EVICTION_TIMEOUT, go, leak, threshold_below_now};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "journal::replay_reproduces_every_decision",
        on: On::Once(Machine::V7_2),
        run: replay,
    },
    Test {
        name: "journal::a_full_disk_is_told_and_does_not_stop_evictions",
        on: On::Once(Machine::V7_2),
        run: full_disk,
    },
];

fn replay() -> Outcome {
    let node = Node::new()?;
    let leaky = Pod::burstable("leaky", "32Mi");
    let hog = leak(&node, &leaky, 192, "")?;
    let journal = node.directory.join("journal.jsonl");
    let mut agent = node.agent(
        &Options::hard(&threshold_below_now(96)?)
            .on_tracepoints()
            .journal(&journal),
    )?;
    go(&hog)?;
    agent.eviction(EVICTION_TIMEOUT)?;
    agent.stop()?;
    let text = fs::read_to_string(&journal)?;
    ensure!(
        text.contains("leaky"),
        "the journal does not name the victim"
    );
    let output = Command::new(program("plimsoll"))
        .arg("replay")
        .arg(&journal)
        .output()
        .context("starting plimsoll replay")?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(
        output.status.success(),
        "replay ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&said)
    );
    // A journal in which one decision names another pod must not replay.
    let line = text
        .lines()
        .rev()
        .find(|line| {
            let step: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            step["decisions"].to_string().contains("leaky")
        })
        .context("no decision in the journal")?;
    fs::write(
        &journal,
        text.replace(line, &line.replace("leaky", "other")),
    )?;
    let output = Command::new(program("plimsoll"))
        .arg("replay")
        .arg(&journal)
        .output()?;
    ensure!(!output.status.success(), "a forged journal was accepted");
    Ok(Done::Passed)
}

fn full_disk() -> Outcome {
    let node = Node::new()?;
    let disk = node.directory.join("disk");
    fs::create_dir(&disk)?;
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8k", "tmpfs"])
        .arg(&disk)
        .status()?;
    ensure!(mounted.success(), "a small tmpfs cannot be mounted");
    let result = evict_with_full_disk(&node);
    let unmounted = Command::new("umount").args(["-l"]).arg(&disk).status()?;
    ensure!(unmounted.success(), "the small tmpfs cannot be unmounted");
    result
}

fn evict_with_full_disk(node: &Node) -> Outcome {
    let leaky = Pod::burstable("leaky", "32Mi");
    let hog = leak(node, &leaky, 192, "")?;
    let options = Options::hard(&threshold_below_now(96)?)
        .on_tracepoints()
        .journal(node.directory.join("disk/journal.jsonl"));
    let mut agent = node.agent(&options)?;
    // The first page is taken by what the agent wrote at its start.
    let filler = fs::write(node.directory.join("disk/filler"), vec![1; 64 << 10]);
    ensure!(filler.is_err(), "the disk is not full");
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == leaky.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    let said = |event: &Event| matches!(event, Event::Warning { text } if text.contains("journal"));
    if !agent.events.iter().any(|(_, event)| said(event)) {
        agent.warning(Duration::from_secs(20), &["journal"])?;
    }
    agent.stop()?;
    Ok(Done::Passed)
}
