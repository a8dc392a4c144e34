//! Hosts that allow only part of what the agent would like: it still evicts in time, and says what it lost.

use std::process::Command;

use anyhow::ensure;

use super::super::agent::{Event, Options};
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
    Test {
        name: "fallback::a_kernel_without_btf",
        run: without_btf,
    },
];

const BTF: &str = "/sys/kernel/btf/vmlinux";

fn evicts_without(mechanisms: &str) -> Outcome {
    evicts_with_losses(|options| options.flag("--without", mechanisms), "")
}

/// Hides the kernel's type information, as a kernel built without it would.
fn without_btf() -> Outcome {
    let hidden = Command::new("mount")
        .args(["--bind", "/dev/null", BTF])
        .status()?;
    ensure!(hidden.success(), "{BTF} cannot be hidden");
    let result = evicts_with_losses(|options| options, "BTF");
    let shown = Command::new("umount").args(["-l", BTF]).status()?;
    ensure!(shown.success(), "{BTF} stays hidden");
    result
}

/// Evicts in time, and says what was lost, a line each, and why, in a line with `word` in it.
fn evicts_with_losses(change: impl FnOnce(Options) -> Options, word: &str) -> Outcome {
    let kills = oom_kills()?;
    let node = Node::new()?;
    let leaky = Pod::burstable("leaky", "32Mi");
    // Grows without end: too late is never.
    let hog = node.hog(&leaky, "ramp --wait-usr1 --rate-mb-s 64")?;
    let mut agent = node.agent(&change(Options::hard(&threshold_below_now(96)?)))?;
    let lost = &agent.started.lost;
    ensure!(
        !lost.is_empty() && lost.iter().all(|line| !line.contains('\n')),
        "not a line each: {lost:?}"
    );
    let warnings = agent.events.iter().filter_map(|(_, event)| match event {
        Event::Warning { text } => Some(text),
        _ => None,
    });
    ensure!(
        lost.iter().chain(warnings).any(|line| line.contains(word)),
        "nothing speaks of {word}: {:?}",
        agent.events
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
