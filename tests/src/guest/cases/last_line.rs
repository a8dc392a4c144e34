//! The last line in the kernel: it kills the condemned when the agent cannot, nobody else, and nobody while memory is
//! available.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll_core::model::event::{LastLineKill, LastLineReason};
use rustix::process::Signal;

use super::super::agent::{Agent, Event, Options};
use super::super::ballast::Ballast;
use super::super::clock::now_ns;
use super::super::harness::{Done, Outcome, Test, spare_this_process};
use super::super::machines::{Machine, On};
use super::super::memory::{self, mib};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::disk::Disk;
use super::scenarios::QUIET_SAMPLES;
use super::{go, oom_kills};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "last_line::a_frozen_agent_is_not_needed_to_end_the_condemned",
        on: On::First(&[Machine::V7_2, Machine::Hybrid]),
        run: || frozen(None, LastLineReason::Unacknowledged),
    },
    Test {
        name: "last_line::without_fentry_direct_reclaim_is_where_it_acts",
        on: On::Weekly(Machine::V6_1),
        run: || frozen(Some("fentry"), LastLineReason::Critical),
    },
    Test {
        name: "last_line::a_killed_agent_is_not_needed_and_the_next_one_tells",
        on: On::Once(Machine::V6_1),
        run: killed,
    },
    Test {
        name: "last_line::a_slow_leak_is_ended_minutes_after_the_agent_froze",
        on: On::Weekly(Machine::V7_2),
        run: || slow_leak(Signal::STOP),
    },
    Test {
        name: "last_line::a_slow_leak_is_ended_minutes_after_the_agent_was_killed",
        on: On::Weekly(Machine::V6_1),
        run: || slow_leak(Signal::KILL),
    },
    Test {
        name: "last_line::a_pod_does_not_escape_by_nested_cgroups",
        on: On::First(&[Machine::Hybrid, Machine::V7_2]),
        run: nested,
    },
    Test {
        name: "last_line::without_addresses_the_last_retry_is_what_is_left",
        on: On::Once(Machine::V6_1),
        run: || with_hidden_addresses(only_the_last_retry),
    },
    Test {
        name: "last_line::it_expires_and_the_kernels_oom_killer_is_back",
        on: On::Weekly(Machine::V6_1),
        run: expired,
    },
    Test {
        name: "last_line::nobody_is_killed_while_memory_is_available",
        on: On::Weekly(Machine::V6_1),
        run: churn,
    },
];

/// Of `kernelMemory.available`; a quarter of it is critical.
const LINE_MB: u64 = 256;
/// Time for a hog to fill the guest.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A scene: a hog that will grow until it is killed, an innocent pod, and one that is exempt, larger than both, and
/// allocates all the time.
struct Scene {
    /// Goes first: what follows needs the memory.
    _ballast: Ballast,
    node: Node,
    hog: Running,
    innocent: Running,
    exempt: Running,
}

impl Scene {
    fn new() -> anyhow::Result<Self> {
        Self::with_hog(100, "100")
    }

    /// The hog grows by so many MB/s, and the exempt pod allocates 20 MB in each of these periods.
    fn with_hog(mb_s: u64, exempt_ms: &str) -> anyhow::Result<Self> {
        let node = Node::new()?;
        let exempt = Pod::best_effort("exempt").critical();
        let flap = format!("flap --low-mb 400 --high-mb 420 --period-ms {exempt_ms}");
        let exempt = node.hog(&exempt, &flap)?;
        let innocent = node.hog(&Pod::burstable("innocent", "100Mi"), "hold --mb 64")?;
        let ramp = format!("ramp --wait-usr1 --pre-mb 32 --rate-mb-s {mb_s}");
        let hog = node.hog(&Pod::best_effort("hog"), &ramp)?;
        // So little that the hog does not need long.
        let ballast = Ballast::leaving(LINE_MB + 250)?;
        // Nobody stops the kernel's killer at the hog: of huge pages, none is free until the last is unmapped, and
        // meanwhile it looks for others.
        spare_this_process()?;
        Ok(Self {
            _ballast: ballast,
            node,
            hog,
            innocent,
            exempt,
        })
    }

    /// Where the last line acts `late`, the kernel's OOM killer may be on its way for another task: then it is no
    /// promise for the innocent.
    fn others_live(&mut self, late: bool) -> anyhow::Result<()> {
        ensure!(
            late || self.innocent.process.is_running()?,
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

/// The agent is put to sleep, without this mechanism; `why` the hog has to go.
fn frozen(without: Option<&str>, why: LastLineReason) -> Outcome {
    let mut scene = Scene::new()?;
    let late = without.is_some();
    let mut options = last_line(&scene.node, "{enabled: true, acknowledgeWithin: 100ms}")?;
    if let Some(mechanism) = without {
        options = options.flag("--without", mechanism);
    }
    let mut agent = started(&scene.node, &options)?;
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
    scene.others_live(late)?;
    ensure!(
        late || oom_kills()? == before,
        "the kernel's OOM killer came first, at {} MiB",
        least_bytes >> 20
    );
    agent.signal(Signal::CONT)?;
    let (pod, kill) = last_line_kill(&mut agent)?;
    ensure!(
        pod == "default/hog" && kill.why == why && kill.kills == 1,
        "{pod}: {kill:?}, at {} MiB",
        least_bytes >> 20
    );
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
    ensure!(
        (kill.why == LastLineReason::Unacknowledged) == kill.crossed_ns.is_some(),
        "{kill:?}"
    );
    // The agent takes it as an eviction: completed, waited for, and nobody else is chosen.
    // The line of a last-line kill comes after the decisions of its turn: the pod may be gone by then.
    if !decided(&agent, "finished") {
        agent
            .wait(TIMEOUT, |event| {
                matches!(event, Event::Decision(line) if line.decision["decision"] == "finished")
                    .then_some(())
            })
            .context("waiting for the end of the pod")?;
    }
    agent.after_samples(QUIET_SAMPLES)?;
    ensure!(
        !decided(&agent, "evict"),
        "somebody was evicted, too: {:?}",
        agent.events
    );
    scene.others_live(late)?;
    let stopped = agent.stop()?;
    ensure!(
        stopped.records.produced == stopped.records.consumed + stopped.records.dropped,
        "{stopped:?}"
    );
    Ok(Done::Passed)
}

/// The agent is killed; its programs and its order are pinned.
fn killed() -> Outcome {
    let mut scene = Scene::new()?;
    let options = last_line(
        &scene.node,
        "{enabled: true, acknowledgeWithin: 100ms, expiresAfter: 2m}",
    )?;
    let agent = started(&scene.node, &options)?;
    let before = oom_kills()?;
    agent.kill()?;
    go(&scene.hog)?;
    ensure!(scene.hog.process.wait_gone(TIMEOUT), "the hog lives");
    // Whoever else is to go by mistake has time to.
    sleep(Duration::from_millis(500));
    scene.others_live(false)?;
    ensure!(oom_kills()? == before, "the kernel's OOM killer came first");
    let mut next = scene.node.agent(&options)?;
    let programs = next.started.programs.clone().unwrap_or_default();
    ensure!(programs.starts_with("taken over at"), "{programs}");
    let (pod, kill) = last_line_kill(&mut next)?;
    ensure!(
        pod == "default/hog" && kill.why == LastLineReason::Unacknowledged && kill.kills == 1,
        "{pod}: {kill:?}"
    );
    scene.others_live(false)?;
    let stopped = next.stop()?;
    ensure!(
        stopped.records.produced == stopped.records.consumed + stopped.records.dropped,
        "{stopped:?}"
    );
    Ok(Done::Passed)
}

/// Levels of cgroups that a pod makes below its own.
const NESTED: usize = 12;

/// The hog moves its process deep down, when the order is in force.
fn nested() -> Outcome {
    let mut scene = Scene::new()?;
    let options = last_line(&scene.node, "{enabled: true, acknowledgeWithin: 100ms}")?;
    let mut agent = started(&scene.node, &options)?;
    let before = oom_kills()?;
    agent.signal(Signal::STOP)?;
    let mut deep = scene.node.cgroup_file(&Pod::best_effort("hog"), "");
    for _ in 0..NESTED {
        deep.push("n");
        fs::create_dir(&deep).with_context(|| deep.display().to_string())?;
    }
    fs::write(
        deep.join("cgroup.procs"),
        scene.hog.process.pid().to_string(),
    )?;
    go(&scene.hog)?;
    ensure!(scene.hog.process.wait_gone(TIMEOUT), "the hog lives");
    // Whoever else is to go by mistake has time to.
    sleep(Duration::from_millis(500));
    scene.others_live(false)?;
    ensure!(oom_kills()? == before, "the kernel's OOM killer came first");
    agent.signal(Signal::CONT)?;
    let (pod, _) = last_line_kill(&mut agent)?;
    ensure!(pod == "default/hog", "{pod} was killed");
    agent.stop()?;
    Ok(Done::Passed)
}

/// So long after the agent's last sign of life the leak begins. An order that held for half a minute would be over.
const UNATTENDED: Duration = Duration::from_secs(90);
/// The leak takes half a minute more to the line.
const LEAK_TIMEOUT: Duration = Duration::from_secs(600);

/// Nobody renews the order, by the default of how long it holds. Meanwhile one pod comes that no order knows, and one
/// ends.
fn slow_leak(signal: Signal) -> Outcome {
    // Minutes of a guest cost what its pods do in them: the exempt one allocates four times as fast as the hog, and no
    // faster.
    let mut scene = Scene::with_hog(5, "1000")?;
    // First in the ranking, and gone before memory is short: nobody waits for it.
    let mut gone = scene.node.hog(&Pod::best_effort("gone"), "hold --mb 48")?;
    let options = last_line(&scene.node, "{enabled: true, acknowledgeWithin: 100ms}")?;
    let agent = started(&scene.node, &options)?;
    let before = oom_kills()?;
    let frozen = if signal == Signal::KILL {
        agent.kill()?;
        None
    } else {
        agent.signal(signal)?;
        Some(agent)
    };
    gone.process.signal(Signal::KILL)?;
    ensure!(gone.process.wait_gone(TIMEOUT), "a pod does not end");
    let mut newcomer = scene.node.hog(
        &Pod::best_effort("newcomer"),
        "flap --low-mb 40 --high-mb 60 --period-ms 1000",
    )?;
    sleep(UNATTENDED);
    go(&scene.hog)?;
    ensure!(scene.hog.process.wait_gone(LEAK_TIMEOUT), "the leak lives");
    // Whoever else is to go by mistake has time to.
    sleep(Duration::from_millis(500));
    scene.others_live(false)?;
    ensure!(
        newcomer.process.is_running()?,
        "a pod was killed that no order knows"
    );
    ensure!(oom_kills()? == before, "the kernel's OOM killer came first");
    let mut agent = match frozen {
        Some(agent) => {
            agent.signal(Signal::CONT)?;
            agent
        }
        None => scene.node.agent(&options)?,
    };
    let (pod, kill) = last_line_kill(&mut agent)?;
    ensure!(
        pod == "default/hog" && kill.why == LastLineReason::Unacknowledged && kill.kills == 1,
        "{pod}: {kill:?}"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

const KPTR_RESTRICT: &str = "/proc/sys/kernel/kptr_restrict";

/// The page allocator tells its own figures; what the others go by is said to be missing.
fn only_the_last_retry() -> Outcome {
    let node = Node::new()?;
    let options = last_line(&node, "{enabled: true}")?;
    let agent = node.agent(&options)?;
    let lost = agent.started.lost.iter().find(|line| {
        [
            "last line",
            "only by the page allocator's last retry",
            "kptr_restrict",
        ]
        .iter()
        .all(|words| line.contains(words))
    });
    ensure!(lost.is_some(), "{:?}", agent.started.lost);
    agent.stop()?;
    Ok(Done::Passed)
}

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
    let options = last_line(&scene.node, "{enabled: true, expiresAfter: 1s}")?;
    let mut agent = started(&scene.node, &options)?;
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
    agent.after_samples(QUIET_SAMPLES)?;
    ensure!(!told(&agent), "{:?}", agent.events);
    agent.stop()?;
    Ok(Done::Passed)
}

/// Memory is taken and given back, and page cache read anew, near the line and many times what was left: a crossing
/// that nobody acknowledges, and still memory is available.
fn churn() -> Outcome {
    let disk = Disk::mount(96, 4096)?;
    let mut scene = Scene::new()?;
    let node = &scene.node;
    let file = disk.0.join("read");
    // Both loads begin when the agent is there: beside them its start takes a minute of the emulator.
    let reader = format!(
        "reread --wait-usr1 --mb 64 --pause-ms 0 --path {}",
        file.display()
    );
    let mut reading = node.hog(&Pod::best_effort("reading"), &reader)?;
    let flap = "flap --wait-usr1 --low-mb 4 --high-mb 84 --period-ms 400";
    let mut churning = node.hog(&Pod::best_effort("churning"), flap)?;
    let journal = node.directory.join("journal");
    let options = last_line(node, "{enabled: true, acknowledgeWithin: 10ms}")?.journal(&journal);
    let mut agent = started(node, &options)?;
    agent.signal(Signal::STOP)?;
    let stopped_ns = now_ns();
    for load in [&reading, &churning] {
        go(load)?;
    }
    let mut least_bytes = u64::MAX;
    for round in 0..200 {
        if round % 20 == 0 {
            // The reader's pages are charged again.
            fs::write("/proc/sys/vm/drop_caches", "1")?;
        }
        least_bytes = least_bytes.min(memory::read()?.available_bytes);
        sleep(Duration::from_millis(20));
    }
    let least_mb = least_bytes >> 20;
    for pod in [&mut churning, &mut reading, &mut scene.hog] {
        ensure!(
            pod.process.is_running()?,
            "a pod was killed with {least_mb} MiB available"
        );
    }
    ensure!(
        least_mb > LINE_MB,
        "{least_mb} MiB were available at least: the test tests nothing"
    );
    agent.signal(Signal::CONT)?;
    agent.after_samples(QUIET_SAMPLES)?;
    ensure!(!told(&agent), "{:?}", agent.events);
    // Each program that is taken away waits until every task has passed through the scheduler: long, beside such loads.
    for pod in [&mut churning, &mut reading] {
        pod.process.signal(Signal::KILL)?;
        ensure!(pod.process.wait_gone(TIMEOUT), "the load did not go away");
    }
    agent.stop()?;
    let crossed = fs::read_to_string(&journal)?.lines().any(|line| {
        let step: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        let crossed_ns = &step["event"]["cause"]["charge_threshold"]["crossed_ns"];
        crossed_ns.as_u64().is_some_and(|at_ns| at_ns > stopped_ns)
    });
    ensure!(crossed, "nothing was crossed: the test tests nothing");
    Ok(Done::Passed)
}

/// Whether the last line has killed somebody.
fn told(agent: &Agent) -> bool {
    let is_kill = |event: &Event| matches!(event, Event::LastLineKill { .. });
    agent.events.iter().any(|(_, event)| is_kill(event))
}

/// The options of an agent that keeps a last line.
fn last_line(node: &Node, last_line: &str) -> anyhow::Result<Options> {
    let config = node.directory.join("config.yaml");
    fs::write(&config, format!("plimsoll: {{lastLine: {last_line}}}\n"))?;
    let threshold = format!("kernelMemory.available<{LINE_MB}Mi");
    Ok(Options::hard(&threshold).flag("--config", &config.to_string_lossy()))
}

/// An agent that has left its order in the kernel.
fn started(node: &Node, options: &Options) -> anyhow::Result<Agent> {
    let agent = node.agent(options)?;
    // Pods are taken in, and the first samples with them have been answered.
    sleep(Duration::from_millis(1500));
    Ok(agent)
}
