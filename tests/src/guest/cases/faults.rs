//! Two agents, a killed agent: what stays behind, and who notices.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use super::super::agent::{Agent, Options};
use super::super::cgroup;
use super::super::harness::{Done, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::process::Guard;
use super::{EVICTION_TIMEOUT, go, leak, threshold_below_now, whole_tree};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "faults::a_second_agent_refuses_and_names_the_first",
        on: On::Once(Machine::V6_12),
        run: second_agent,
    },
    Test {
        name: "faults::a_killed_agent_leaves_nothing_behind",
        on: On::First(&[Machine::Hybrid, Machine::V7_2]),
        run: killed_agent,
    },
    Test {
        name: "faults::a_killed_agent_s_successor_evicts",
        on: On::Once(Machine::V6_12),
        run: successor_evicts,
    },
    Test {
        name: "faults::pods_that_come_and_go_at_once",
        on: On::Weekly(Machine::V6_12),
        run: pods_come_and_go,
    },
    Test {
        name: "faults::a_loop_that_stands_still_is_named_and_ended",
        on: On::Once(Machine::V7_2),
        run: frozen_loop,
    },
    Test {
        name: "faults::a_flood_of_records_is_accounted_for",
        on: On::Weekly(Machine::V7_2),
        run: flood,
    },
];

fn second_agent() -> Outcome {
    let node = Node::new()?;
    let first = node.agent(&Options::hard("memory.available<1Mi").on_tracepoints())?;
    let (mut command, errors) =
        node.agent_command(&Options::hard("memory.available<1Mi").on_tracepoints())?;
    let mut second = Guard(command.spawn()?);
    ensure!(second.wait_gone(Duration::from_secs(20)), "two agents run");
    ensure!(
        !second.0.wait()?.success(),
        "the second agent says that all is well"
    );
    let said = fs::read_to_string(errors)?;
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

/// Evicts the leaking pod and stops; the account of records must be even.
fn evicts_and_adds_up(mut agent: Agent, hog: &Running, leaky: &Pod) -> anyhow::Result<()> {
    go(hog)?;
    let finished = agent.eviction(EVICTION_TIMEOUT)?;
    ensure!(
        finished.pod == leaky.full_name() && finished.outcome == "freed",
        "{finished:?}"
    );
    let records = agent.stop()?.records;
    ensure!(
        records.produced == records.consumed + records.dropped,
        "{records:?} does not add up"
    );
    Ok(())
}

/// Cgroups vanish between the agent's look at the tree and its look at their files.
fn pods_come_and_go() -> Outcome {
    const PODS: u32 = 16;
    let node = Node::new()?;
    let leaky = Pod::burstable("leaky", "32Mi");
    let hog = leak(&node, &leaky, 192, "")?;
    let agent = node.agent(&Options::hard(&threshold_below_now(96)?).on_tracepoints())?;
    for index in 0..PODS {
        let pod = Pod::best_effort(&format!("moth-{index}"));
        drop(node.hog(&pod, "hold --mb 1")?);
        for hierarchy in cgroup::hierarchies() {
            ensure!(
                cgroup::remove(&hierarchy.join(pod.cgroup())),
                "{} stays",
                pod.cgroup()
            );
        }
        fs::remove_file(node.manifest(&pod))?;
    }
    evicts_and_adds_up(agent, &hog, &leaky)?;
    Ok(Done::Passed)
}

/// The kernel freezes the loop's thread alone, in a threaded cgroup: it stands still wherever it is, and the rest of
/// the agent goes on.
fn frozen_loop() -> Outcome {
    const EXIT_HUNG: i32 = 70;
    /// Several times what the watchdog waits.
    const HUNG_TIMEOUT: Duration = Duration::from_secs(300);
    let node = Node::new()?;
    let name = node.directory.join("supervisor.sock");
    let supervisor = UnixDatagram::bind(&name)?;
    supervisor.set_read_timeout(Some(Duration::from_secs(90)))?;
    let (mut command, errors) =
        node.agent_command(&Options::hard("memory.available<1Mi").on_tracepoints())?;
    command.env("NOTIFY_SOCKET", &name);
    command.stdout(Stdio::null());
    let mut agent = Guard(command.spawn()?);
    let hear = || -> anyhow::Result<String> {
        let mut message = [0; 64];
        let length = supervisor.recv(&mut message)?;
        Ok(String::from_utf8_lossy(&message[..length]).into_owned())
    };
    ensure!(hear()? == "READY=1", "the first message is another one");
    ensure!(hear()? == "WATCHDOG=1", "no sign of life");
    // The loop is the main thread.
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", agent.pid()))?;
    let cgroup = cgroups
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .context("the agent has no cgroup")?;
    let threads = cgroup::memory_root().join(cgroup).join("frozen");
    fs::create_dir(&threads)?;
    fs::write(threads.join("cgroup.type"), "threaded")?;
    fs::write(threads.join("cgroup.threads"), agent.pid().to_string())?;
    fs::write(threads.join("cgroup.freeze"), "1")?;
    let has_ended = agent.wait_gone(HUNG_TIMEOUT);
    if !has_ended {
        fs::write(threads.join("cgroup.freeze"), "0")?;
    }
    ensure!(has_ended, "the agent lives, and its loop does not turn");
    let status = agent.0.wait()?;
    let said = fs::read_to_string(errors)?;
    fs::remove_dir(&threads)?;
    ensure!(status.code() == Some(EXIT_HUNG), "{status}: {said}");
    ensure!(
        said.contains("the loop has been kept from its turns for")
            || said.contains("protects no pod meanwhile"),
        "what hangs is not named: {said}"
    );
    ensure!(
        said.contains("so that its supervisor starts another"),
        "{said}"
    );
    // Nothing of it is in the way of the next one.
    node.agent(&Options::hard("memory.available<1Mi").on_tracepoints())?
        .stop()?;
    Ok(Done::Passed)
}

fn flood() -> Outcome {
    const CGROUPS: u32 = 2_000;
    let node = Node::new()?;
    let (leaky, busy) = (
        Pod::burstable("leaky", "32Mi"),
        Pod::burstable("busy", "32Mi"),
    );
    let hog = leak(&node, &leaky, 192, "")?;
    let _busy = node.hog(&busy, "hold --mb 8")?;
    let agent = node.agent(&Options::hard(&threshold_below_now(96)?))?;
    // A pod that makes cgroups as fast as it can, to drown the records that matter: before the leak, and until it is
    // judged.
    let path = cgroup::memory_root().join(busy.cgroup()).join("flood");
    let (made, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let flood = scope.spawn(|| -> std::io::Result<()> {
            while !is_over.load(Ordering::SeqCst) {
                fs::create_dir(&path)?;
                fs::remove_dir(&path)?;
                made.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        });
        while made.load(Ordering::SeqCst) < CGROUPS && !flood.is_finished() {
            thread::sleep(Duration::from_millis(10));
        }
        let before = made.load(Ordering::SeqCst);
        let held = evicts_and_adds_up(agent, &hog, &leaky);
        let during = made.load(Ordering::SeqCst) - before;
        is_over.store(true, Ordering::SeqCst);
        match flood.join() {
            Ok(flooded) => flooded?,
            Err(_) => bail!("the flood panicked"),
        }
        held?;
        ensure!(
            before >= CGROUPS && during > 0,
            "{before} cgroups before the leak, {during} while it was judged"
        );
        Ok(Done::Passed)
    })
}
