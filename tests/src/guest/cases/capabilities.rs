//! What the agent does with fewer capabilities than root has: as a DaemonSet that is not privileged, and with none at
//! all.
//!
//! A capability that is taken from a thread's bounding set is not there in what that thread starts; the scene's own
//! processes are started by others.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::super::agent::{Agent, Options};
use super::super::clock::wait_until;
use super::super::harness::{Done, Lacks, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::super::process::{Guard, program, read_log, wait_log};
use super::ladder::{WHOLE, said};
use super::{EVICTION_TIMEOUT, go, needs_memory_v2, oom_kills, threshold_below_now};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "capabilities::the_smallest_set_loses_nothing",
        on: On::Once(Machine::V6_1),
        run: smallest,
    },
    Test {
        name: "capabilities::unprivileged_bpf_disabled_is_no_matter",
        on: On::Weekly(Machine::V6_1),
        run: unprivileged_bpf_disabled,
    },
    Test {
        name: "capabilities::each_one_that_is_missing_is_named",
        on: On::Weekly(Machine::V6_1),
        run: each_is_named,
    },
    Test {
        name: "capabilities::without_any_it_evicts",
        on: On::Once(Machine::V7_2),
        run: without_any,
    },
    Test {
        name: "capabilities::without_kill_on_v1_it_says_that_it_cannot",
        on: On::Once(Machine::Hybrid),
        run: without_kill_on_v1,
    },
];

/// With these nothing is lost.
const SMALLEST: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::IPC_LOCK);

/// Long enough for a turn of the agent without BPF.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `start`; what it starts has at most these capabilities.
fn holding<T: Send>(
    held: CapabilitySet,
    start: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            for bit in 0..u64::BITS {
                let capability = CapabilitySet::from_bits_retain(1 << bit);
                if held.contains(capability) {
                    continue;
                }
                match remove_capability_from_bounding_set(capability) {
                    // The kernel has no such capability.
                    Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            start()
        });
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("the thread has panicked"))?
    })
}

/// The name in capabilities(7).
fn name(capability: CapabilitySet) -> String {
    let names: Vec<String> = capability
        .iter_names()
        .map(|(name, _)| format!("CAP_{name}"))
        .collect();
    names.concat()
}

/// A pod that runs as another user than the agent and grows when told to, and such a process in a container whose score
/// protects.
struct Foreign {
    node: Node,
    pod: Pod,
    hog: Running,
    newcomer: Guard,
    _leader: Running,
}

impl Foreign {
    /// Of a container of a Guaranteed pod.
    const SCORE: &str = "-997";

    fn start() -> anyhow::Result<Self> {
        let node = Node::new()?;
        let pod = Pod::burstable("foreign", "32Mi");
        node.write(&pod)?;
        let log = node.log(&pod);
        fs::write(&log, "")?;
        make_writable(&log)?;
        let command = format!(
            "exec {} --log {} ramp --wait-usr1 --rate-mb-s 64",
            program("hog").display(),
            log.display()
        );
        let hog = node.exec(&pod, &["su", "-s", "/bin/sh", "nobody", "-c", &command])?;
        ensure!(
            wait_log(&log, "ready", Duration::from_secs(60)).is_some(),
            "the pod did not come up: {}",
            node.output(&pod)
        );
        let other = Pod::guaranteed("protected", "10m", "64Mi");
        let leader = node.hog(&other, "hold --mb 2")?;
        let newcomer = Guard(
            Command::new("su")
                .args(["-s", "/bin/sh", "nobody", "-c", "exec sleep 600"])
                .stdin(Stdio::null())
                .spawn()
                .context("starting su")?,
        );
        let is_nobody = wait_until(TIMEOUT, Duration::from_millis(10), || {
            fs::read_to_string(format!("/proc/{}/comm", newcomer.pid()))
                .is_ok_and(|comm| comm.trim() == "sleep")
        });
        ensure!(is_nobody, "su did not become sleep");
        fs::write(
            node.cgroup_file(&other, "main/cgroup.procs"),
            newcomer.pid().to_string(),
        )?;
        Ok(Self {
            node,
            pod,
            hog,
            newcomer,
            _leader: leader,
        })
    }

    fn agent(&self, held: CapabilitySet) -> anyhow::Result<Agent> {
        let options = Options::hard(&threshold_below_now(96)?);
        holding(held, || self.node.agent(&options))
    }

    /// Whether the agent gives a process of another user, put into a container, the container's score.
    fn is_scored(&self) -> bool {
        wait_until(TIMEOUT, Duration::from_millis(20), || {
            fs::read_to_string(format!("/proc/{}/oom_score_adj", self.newcomer.pid()))
                .is_ok_and(|score| score.trim() == Self::SCORE)
        })
    }

    /// Lets the pod grow; returns when it is gone, and whether it was told to leave first.
    fn is_evicted(&self, agent: &mut Agent) -> anyhow::Result<bool> {
        go(&self.hog)?;
        let finished = agent.eviction(EVICTION_TIMEOUT)?;
        ensure!(
            finished.pod == self.pod.full_name() && finished.outcome == "freed",
            "{finished:?}"
        );
        Ok(read_log(&self.node.log(&self.pod), "sigterm").is_some())
    }
}

fn make_writable(path: &std::path::Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o666),
    )?)
}

/// Everything works as for root.
fn smallest() -> Outcome {
    let kills = oom_kills()?;
    let scene = Foreign::start()?;
    let mut agent = scene.agent(SMALLEST)?;
    said(&agent, &WHOLE)?;
    let lost = agent.started.lost.clone();
    ensure!(scene.is_scored(), "no score: {}", agent.errors());
    let told = scene.is_evicted(&mut agent)?;
    ensure!(told, "the pod was not told to leave: {:?}", agent.events);
    agent.stop()?;
    ensure!(oom_kills()? == kills, "the kernel's OOM killer fired first");
    // Nor does it speak of anything that it would not speak of with all of them.
    let all = scene.agent(CapabilitySet::from_bits_retain(u64::MAX))?;
    ensure!(
        all.started.lost == lost,
        "with all capabilities {:#?}, with the smallest set {lost:#?}",
        all.started.lost
    );
    all.stop()?;
    Ok(Done::Passed)
}

/// `check` with these capabilities.
fn check(held: CapabilitySet, form: &str) -> anyhow::Result<String> {
    let output = holding(held, || {
        Ok(Command::new(program("plimsoll"))
            .args(["check", "--output", form])
            .output()?)
    })?;
    Ok(String::from_utf8(output.stdout)?)
}

/// The same as JSON.
fn report(held: CapabilitySet) -> anyhow::Result<serde_json::Value> {
    Ok(serde_json::from_str(&check(held, "json")?)?)
}

/// The sysctl is for processes that may not use BPF: 1 and 2 refuse them, and whoever has the capabilities does not
/// notice.
fn unprivileged_bpf_disabled() -> Outcome {
    const SYSCTL: &str = "/proc/sys/kernel/unprivileged_bpf_disabled";
    // 1 last: it cannot be taken back.
    for value in ["0", "2", "1"] {
        if fs::read_to_string(SYSCTL)?.trim() == "1" {
            break;
        }
        fs::write(SYSCTL, value).with_context(|| format!("writing {value} to {SYSCTL}"))?;
        let report = report(SMALLEST)?;
        ensure!(
            report["choices"][0]["mechanism"] == "fentry",
            "{value}: {report:#}"
        );
    }
    Ok(Done::Passed)
}

/// `check` names each capability that is missing, and nothing that is there.
fn each_is_named() -> Outcome {
    for missing in SMALLEST.iter() {
        let name = name(missing);
        let report = report(SMALLEST.difference(missing))?;
        ensure!(
            report["facts"]["capabilities"]["missing"] == serde_json::json!([name])
                && report["exit_status"] == 1,
            "{name}: {report:#}"
        );
        let uses_bpf = report["choices"][0]["mechanism"] == "fentry";
        let is_for_bpf = missing.intersects(CapabilitySet::BPF | CapabilitySet::PERFMON);
        ensure!(uses_bpf != is_for_bpf, "without {name}: {report:#}");
    }
    let text = check(SMALLEST.difference(CapabilitySet::KILL), "text")?;
    ensure!(text.contains("grant CAP_KILL"), "{text}");
    Ok(Done::Passed)
}

/// What is left is files of root, and that is enough to see memory run out and to write `cgroup.kill`.
fn without_any() -> Outcome {
    if let Some(skipped) = needs_memory_v2() {
        return Ok(skipped);
    }
    let kills = oom_kills()?;
    let scene = Foreign::start()?;
    let mut agent = scene.agent(CapabilitySet::empty())?;
    let lost = agent.started.lost.concat();
    for missing in SMALLEST.iter().map(name) {
        ensure!(lost.contains(&missing), "{missing} is not named: {lost}");
    }
    let told = scene.is_evicted(&mut agent)?;
    ensure!(!told, "a signal reached another user's process");
    let warned = agent.events.iter().any(|(_, event)| {
        matches!(event, super::super::agent::Event::Warning { text } if text.contains("CAP_KILL"))
    });
    ensure!(
        warned || agent.errors().contains("CAP_KILL"),
        "that it got no signal is not said: {:?} {}",
        agent.events,
        agent.errors()
    );
    agent.stop()?;
    ensure!(oom_kills()? == kills, "the kernel's OOM killer fired first");
    Ok(Done::Passed)
}

/// On v1 a pod is killed process by process. One that cannot be is not forgotten in silence.
fn without_kill_on_v1() -> Outcome {
    if needs_memory_v2().is_none() {
        return Ok(Done::Skipped(Lacks::MemoryOnV1));
    }
    let scene = Foreign::start()?;
    let mut agent = scene.agent(SMALLEST.difference(CapabilitySet::KILL))?;
    go(&scene.hog)?;
    let said = wait_until(EVICTION_TIMEOUT, Duration::from_millis(50), || {
        let _bad_line = agent.drain();
        let warned = agent.events.iter().any(|(_, event)| {
            matches!(event, super::super::agent::Event::Warning { text } if text.contains("CAP_KILL"))
        });
        warned || agent.errors().contains("CAP_KILL")
    });
    drop(scene.hog);
    ensure!(
        said,
        "nothing is said: {:?} {}",
        agent.events,
        agent.errors()
    );
    agent.stop()?;
    Ok(Done::Passed)
}
