//! The last line in the kernel: it kills the condemned when the agent cannot, nobody else, and nobody while memory is available.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll_core::event::{LastLineKill, LastLineReason};
use rustix::process::Signal;

use super::super::agent::{Agent, Event, Options};
use super::super::harness::{Done, Outcome, Test};
use super::super::memory::{self, mib};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::{go, oom_kills};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "last_line::a_frozen_agent_is_not_needed_to_end_the_condemned",
        run: || frozen(&Case::default()),
    },
    Test {
        name: "last_line::when_memory_is_critical_nothing_is_waited_for",
        run: || {
            frozen(&Case {
                acknowledge_within: "60s",
                why: LastLineReason::Critical,
                ..Case::default()
            })
        },
    },
    Test {
        name: "last_line::without_fentry_direct_reclaim_is_where_it_acts",
        run: || {
            frozen(&Case {
                without: Some("fentry"),
                why: LastLineReason::Critical,
                ..Case::default()
            })
        },
    },
    Test {
        name: "last_line::without_addresses_the_last_retry_is_where_it_acts",
        run: || {
            with_hidden_addresses(|| {
                frozen(&Case {
                    without: Some("fentry"),
                    why: LastLineReason::Exhausted,
                    ..Case::default()
                })
            })
        },
    },
    Test {
        name: "last_line::it_expires_and_the_kernels_oom_killer_is_back",
        run: expired,
    },
    Test {
        name: "last_line::nobody_is_killed_while_memory_is_available",
        run: churn,
    },
];

/// Of `kernelMemory.available`; a quarter of it is critical.
const LINE_MB: u64 = 256;
/// Time for a hog to fill the guest.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How an agent is put to sleep, and what is expected.
struct Case {
    acknowledge_within: &'static str,
    without: Option<&'static str>,
    why: LastLineReason,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            acknowledge_within: "100ms",
            without: None,
            why: LastLineReason::Unacknowledged,
        }
    }
}

/// A scene: a hog that will grow until it is killed, an innocent pod, and one that is exempt, larger than both, and allocates all the time.
struct Scene {
    node: Node,
    hog: Running,
    innocent: Running,
    exempt: Running,
}

impl Scene {
    fn new() -> anyhow::Result<Self> {
        let node = Node::new()?;
        let exempt = Pod::best_effort("exempt").critical();
        let exempt = node.hog(&exempt, "flap --low-mb 400 --high-mb 420 --period-ms 100")?;
        let innocent = node.hog(&Pod::burstable("innocent", "100Mi"), "hold --mb 64")?;
        // So large that the rest does not take long.
        let large_mb = (memory::read()?.available_bytes >> 20).saturating_sub(LINE_MB + 250);
        let hog = node.hog(
            &Pod::best_effort("hog"),
            &format!("ramp --wait-usr1 --pre-mb {large_mb} --rate-mb-s 100"),
        )?;
        Ok(Self {
            node,
            hog,
            innocent,
            exempt,
        })
    }

    fn others_live(&mut self) -> anyhow::Result<()> {
        ensure!(
            self.innocent.process.is_running()?,
            "the innocent pod has died"
        );
        ensure!(self.exempt.process.is_running()?, "the exempt pod has died");
        Ok(())
    }
}

fn last_line_kill(agent: &mut Agent) -> anyhow::Result<(String, LastLineKill)> {
    agent
        .wait(TIMEOUT, |event| match event {
            Event::LastLineKill { pod, kill, .. } => Some((pod.clone(), *kill)),
            _ => None,
        })
        .context("waiting for what the last line did")
}

fn decided(agent: &Agent, decision: &str) -> bool {
    agent.events.iter().any(
        |(_, event)| matches!(event, Event::Decision(own) if own.decision["decision"] == decision),
    )
}

fn frozen(case: &Case) -> Outcome {
    let mut scene = Scene::new()?;
    let last_line = format!(
        "{{enabled: true, acknowledgeWithin: {}}}",
        case.acknowledge_within
    );
    let mut agent = guarded(&scene.node, &last_line, case.without)?;
    let before = oom_kills()?;
    agent.signal(Signal::STOP)?;
    go(&scene.hog)?;
    // What the kernel itself shows until the hog is gone.
    let mut least_bytes = u64::MAX;
    let deadline = std::time::Instant::now() + TIMEOUT;
    while scene.hog.process.is_running()? {
        ensure!(
            std::time::Instant::now() < deadline,
            "the hog lives, with {} MiB available: {}",
            least_bytes >> 20,
            agent.errors()
        );
        let now = memory::read()?;
        least_bytes = least_bytes.min(now.available_bytes + now.swap_free_bytes);
        sleep(Duration::from_millis(2));
    }
    // Whoever else is to go by mistake has time to.
    sleep(Duration::from_millis(500));
    scene.others_live()?;
    ensure!(
        oom_kills()? == before,
        "the kernel's OOM killer came first, at {} MiB",
        least_bytes >> 20
    );
    agent.signal(Signal::CONT)?;
    let (pod, kill) = last_line_kill(&mut agent)?;
    ensure!(
        pod == "default/hog" && kill.why == case.why && kill.kills == 1,
        "{pod}: {kill:?}, at {} MiB",
        least_bytes >> 20
    );
    if kill.why == LastLineReason::Exhausted {
        ensure!(kill.available_bytes.is_none(), "{kill:?}");
    } else {
        let available_bytes = kill.available_bytes.context("what was available")?;
        let wanted_mb = match kill.why {
            LastLineReason::Critical => LINE_MB / 4,
            _ => LINE_MB,
        };
        ensure!(
            available_bytes < mib(wanted_mb) && kill.wanted_bytes == Some(mib(wanted_mb)),
            "{kill:?}"
        );
        // The program's figure is the kernel's own, but for what the hog took between two looks at it.
        ensure!(
            available_bytes.abs_diff(least_bytes) < mib(48),
            "the program saw {} MiB, the kernel shows {} MiB",
            available_bytes >> 20,
            least_bytes >> 20
        );
    }
    ensure!(
        (kill.why == LastLineReason::Unacknowledged) == kill.crossed_ns.is_some(),
        "{kill:?}"
    );
    // The agent takes it as an eviction: completed, waited for, and nobody else is chosen.
    agent
        .wait(TIMEOUT, |event| {
            matches!(event, Event::Decision(own) if own.decision["decision"] == "finished")
                .then_some(())
        })
        .context("waiting for the end of the pod")?;
    sleep(Duration::from_millis(300));
    agent.drain()?;
    ensure!(
        !decided(&agent, "evict"),
        "somebody was evicted, too: {:?}",
        agent.events
    );
    scene.others_live()?;
    let stopped = agent.stop()?;
    ensure!(
        stopped.records.produced == stopped.records.consumed + stopped.records.dropped,
        "{stopped:?}"
    );
    Ok(Done::Passed)
}

const KPTR_RESTRICT: &str = "/proc/sys/kernel/kptr_restrict";

/// Runs `test` while the kernel shows nobody its addresses.
fn with_hidden_addresses(test: impl FnOnce() -> Outcome) -> Outcome {
    let was = fs::read_to_string(KPTR_RESTRICT).context(KPTR_RESTRICT)?;
    fs::write(KPTR_RESTRICT, "2")?;
    let outcome = test();
    fs::write(KPTR_RESTRICT, was.trim())?;
    outcome
}

fn expired() -> Outcome {
    let mut scene = Scene::new()?;
    let mut agent = guarded(&scene.node, "{enabled: true, expiresAfter: 1s}", None)?;
    let before = oom_kills()?;
    agent.signal(Signal::STOP)?;
    sleep(Duration::from_millis(1500));
    go(&scene.hog)?;
    ensure!(scene.hog.process.wait_gone(TIMEOUT), "the hog lives");
    ensure!(
        oom_kills()? > before,
        "the hog was killed, and not by the kernel's OOM killer"
    );
    agent.signal(Signal::CONT)?;
    agent
        .wait(TIMEOUT, |event| {
            matches!(event, Event::KernelOomKill { .. }).then_some(())
        })
        .context("waiting for the kernel's OOM kill")?;
    sleep(Duration::from_millis(300));
    agent.drain()?;
    let told = agent
        .events
        .iter()
        .any(|(_, event)| matches!(event, Event::LastLineKill { .. }));
    ensure!(!told, "{:?}", agent.events);
    agent.stop()?;
    Ok(Done::Passed)
}

/// Many times the node's memory is taken and given back, and page cache replaced, while nobody acknowledges anything.
fn churn() -> Outcome {
    let scene = Scene::new()?;
    drop(scene.hog);
    let free_mb = memory::read()?.available_bytes >> 20;
    let swing_mb = free_mb.saturating_sub(LINE_MB + 200);
    let flap = format!("flap --wait-usr1 --low-mb 8 --high-mb {swing_mb} --period-ms 200");
    let mut churning = scene.node.hog(&Pod::best_effort("churning"), &flap)?;
    let last_line = "{enabled: true, acknowledgeWithin: 10ms}";
    let mut agent = guarded(&scene.node, last_line, None)?;
    agent.signal(Signal::STOP)?;
    go(&churning)?;
    let mut least_bytes = u64::MAX;
    for _ in 0..250 {
        let now = memory::read()?;
        least_bytes = least_bytes.min(now.available_bytes);
        sleep(Duration::from_millis(20));
    }
    ensure!(
        churning.process.is_running()?,
        "it was killed with {} MiB available",
        least_bytes >> 20
    );
    // It has come near: else this would show nothing.
    ensure!(
        least_bytes < mib(free_mb / 2) && least_bytes > mib(LINE_MB),
        "{} MiB were available at least",
        least_bytes >> 20
    );
    agent.signal(Signal::CONT)?;
    sleep(Duration::from_millis(500));
    agent.drain()?;
    let told = agent
        .events
        .iter()
        .any(|(_, event)| matches!(event, Event::LastLineKill { .. }));
    ensure!(!told, "{:?}", agent.events);
    agent.stop()?;
    Ok(Done::Passed)
}

/// An agent that keeps a last line, and has left its order in the kernel.
fn guarded(node: &Node, last_line: &str, without: Option<&str>) -> anyhow::Result<Agent> {
    let config = node.directory.join("config.yaml");
    fs::write(&config, format!("plimsoll: {{lastLine: {last_line}}}\n"))?;
    let threshold = format!("kernelMemory.available<{LINE_MB}Mi");
    let mut options = Options::hard(&threshold).flag("--config", &config.to_string_lossy());
    if let Some(mechanism) = without {
        options = options.flag("--without", mechanism);
    }
    let agent = node.agent(&options)?;
    // Pods are taken in, and the first samples with them have been answered.
    sleep(Duration::from_millis(1500));
    Ok(agent)
}
