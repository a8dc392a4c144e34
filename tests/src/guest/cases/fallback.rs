//! Hosts that allow only part of what the agent would like: it still evicts in time, and says what it lost.

use anyhow::ensure;

use super::super::agent::Options;
use super::super::harness::{Done, Outcome, Test};
use super::super::node::Node;
use super::super::pod::Pod;
use super::{EVICTION_TIMEOUT, go, oom_kills, threshold_below_now};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "fallback::without_fentry",
        run: || evicts_without("fentry"),
    },
    Test {
        name: "fallback::without_bpf",
        run: || evicts_without("bpf"),
    },
    Test {
        name: "fallback::without_bpf_and_psi",
        run: || evicts_without("bpf,psi"),
    },
];

fn evicts_without(mechanisms: &str) -> Outcome {
    let kills = oom_kills()?;
    let node = Node::new()?;
    let leaky = Pod::burstable("leaky", "32Mi");
    // Grows without end: too late is never.
    let hog = node.hog(&leaky, "ramp --wait-usr1 --rate-mb-s 64")?;
    let mut agent =
        node.agent(&Options::hard(&threshold_below_now(96)?).flag("--without", mechanisms))?;
    ensure!(!agent.started.lost.is_empty(), "nothing is said to be lost");
    ensure!(
        agent.started.lost.iter().all(|line| !line.contains('\n')),
        "not a line each: {:?}",
        agent.started.lost
    );
    go(&hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == leaky.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    agent.stop()?;
    ensure!(oom_kills()? == kills, "the kernel's OOM killer fired first");
    Ok(Done::Passed)
}
