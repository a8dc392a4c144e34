//! Two agents, a killed agent: what stays behind, and who notices.

use std::time::Duration;

use anyhow::ensure;

use super::super::agent::{Agent, Options};
use super::super::harness::{Done, Outcome, Test};
use super::super::node::Node;
use super::super::pod::Pod;
use super::super::process::Guard;
use super::{EVICTION_TIMEOUT, go, leak, threshold_below_now, whole_tree};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "faults::a_second_agent_refuses_and_names_the_first",
        run: second_agent,
    },
    Test {
        name: "faults::a_killed_agent_leaves_nothing_behind",
        run: killed_agent,
    },
    Test {
        name: "faults::a_killed_agent_s_successor_evicts",
        run: successor_evicts,
    },
];

fn second_agent() -> Outcome {
    let node = Node::new()?;
    let first = node.agent(&Options::hard("memory.available<1Mi"))?;
    let (mut command, errors) = Agent::command(&node, &Options::hard("memory.available<1Mi"))?;
    let mut second = Guard(command.spawn()?);
    ensure!(second.wait_gone(Duration::from_secs(20)), "two agents run");
    ensure!(
        !second.0.wait()?.success(),
        "the second agent says that all is well"
    );
    let said = std::fs::read_to_string(errors)?;
    ensure!(
        said.contains(&first.pid().to_string()),
        "the refusal does not name pid {}: {said}",
        first.pid()
    );
    first.stop()?;
    Ok(Done::Passed)
}

fn killed_agent() -> Outcome {
    let node = Node::new()?;
    let _pod = node.hog(&Pod::burstable("bystander", "16Mi"), "hold --mb 8")?;
    let before = whole_tree();
    for _ in 0..2 {
        node.agent(&Options::hard("memory.available<1Mi"))?.kill()?;
    }
    node.agent(&Options::hard("memory.available<1Mi"))?.stop()?;
    let after = whole_tree();
    let changed: Vec<_> = after.iter().filter(|knob| !before.contains(knob)).collect();
    let missing: Vec<_> = before.iter().filter(|knob| !after.contains(knob)).collect();
    ensure!(
        changed.is_empty() && missing.is_empty(),
        "changed or new: {changed:?}; was: {missing:?}"
    );
    Ok(Done::Passed)
}

fn successor_evicts() -> Outcome {
    let node = Node::new()?;
    let leaky = Pod::burstable("leaky", "32Mi");
    let hog = leak(&node, &leaky, 192, "")?;
    let options = Options::hard(&threshold_below_now(96)?);
    node.agent(&options)?.kill()?;
    let mut agent = node.agent(&options)?;
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == leaky.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    agent.stop()?;
    Ok(Done::Passed)
}
