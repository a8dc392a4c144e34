//! Containers end up on the CPUs that are planned for them, and nobody else is there on the way.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll::host::HostRoot;
use plimsoll::placement::witness::Witness;
use plimsoll_core::cpu_set::CpuSet;

use super::super::agent::{Agent, Event, Options};
use super::super::clock::wait_until;
use super::super::harness::{Done, Lacks, Outcome, Test};
use super::super::node::{Node, Running};
use super::super::pod::Pod;
use super::explain::{explain, json};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "placement::a_container_is_alone_on_its_cpus_also_after_a_restart",
        run: alone,
    },
    Test {
        name: "placement::what_does_not_fit_is_not_started",
        run: refused,
    },
    Test {
        name: "placement::without_the_policy_all_share_again",
        run: policy_changed,
    },
    Test {
        name: "placement::who_loses_a_cpu_gets_another",
        run: cpu_goes,
    },
];

const TIMEOUT: Duration = Duration::from_secs(30);

const SETTINGS: &str = "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\ncpuManagerReconcilePeriod: 1s\nevictionHard: {memory.available: 1Mi}\n";

/// Four CPUs, and a cpuset hierarchy.
fn lacking() -> anyhow::Result<Option<Done>> {
    let cpus = std::thread::available_parallelism()?.get();
    Ok((cpus < 4).then_some(Done::Skipped(Lacks::FourCpus)))
}

/// The scene, its configuration, and pods that read the same placement as the agent.
fn scene(settings: &str) -> anyhow::Result<(Node, Options)> {
    let node = Node::new()?.with_pods_on_its_state();
    let config = node.configure(settings)?;
    Ok((
        node,
        Options::default().flag("--config", &config.to_string_lossy()),
    ))
}

/// Where a container's main process may run.
fn allowed(running: &Running) -> anyhow::Result<String> {
    status(running, "Cpus_allowed_list:")
}

/// A line of its `/proc/PID/status`.
fn status(running: &Running, name: &'static str) -> anyhow::Result<String> {
    let path = format!("/proc/{}/status", running.process.pid());
    let status = fs::read_to_string(&path).context(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.context(name)?.trim().to_owned())
}

fn comes_to(running: &Running, name: &str, cpus: &str, agent: &Agent) -> anyhow::Result<()> {
    let is_there = || allowed(running).is_ok_and(|now| now == cpus);
    ensure!(
        wait_until(TIMEOUT, Duration::from_millis(20), is_there),
        "{name} may run on {:?}, not {cpus}; the agent: {}; {:#?}",
        allowed(running),
        agent.errors(),
        agent.events
    );
    Ok(())
}

/// A thread that looks all the time whether somebody shares what is `own`.
struct Watch {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Vec<String>)>,
}

impl Watch {
    /// Of the containers of two pods. The first has its own CPUs.
    fn start(own: PathBuf, other: PathBuf, cpus: &str) -> anyhow::Result<Self> {
        let cpus = CpuSet::parse(cpus)?;
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut witness = Witness::new(&HostRoot::live(), vec![own, other]);
            let (mut looks, mut shared) = (0, Vec::new());
            while !end.load(Ordering::Acquire) {
                shared.extend(
                    witness
                        .look(&[(0, cpus)])
                        .iter()
                        .map(|sharing| format!("{sharing:?}")),
                );
                looks += 1;
            }
            (looks, shared)
        });
        Ok(Self { ends, thread })
    }

    fn ended(self) -> anyhow::Result<()> {
        self.ends.store(true, Ordering::Release);
        let (looks, shared) = self
            .thread
            .join()
            .map_err(|_| anyhow::anyhow!("the witness panicked"))?;
        eprintln!("{looks} looks");
        ensure!(looks > 100, "the witness looked {looks} times");
        ensure!(shared.is_empty(), "CPUs were shared: {}", shared.join("; "));
        Ok(())
    }
}

/// The directory of a container in the hierarchy of memory: its processes are the same in all.
fn processes(node: &Node, pod: &Pod) -> PathBuf {
    node.cgroup_file(pod, "main")
}

fn alone() -> Outcome {
    if let Some(lacking) = lacking()? {
        return Ok(lacking);
    }
    let (node, options) = scene(SETTINGS)?;
    let shared = Pod::best_effort("shared");
    let shared_runs = node.hog(&shared, "hold --mb 4")?;
    let agent = node.agent(&options)?;
    comes_to(&shared_runs, "shared", "0-3", &agent)?;
    let own = Pod::guaranteed("own", "2", "64Mi");
    let watch = Watch::start(processes(&node, &own), processes(&node, &shared), "1-2")?;
    let own_runs = node.hog(&own, "hold --mb 4")?;
    comes_to(&own_runs, "own", "1-2", &agent)?;
    comes_to(&shared_runs, "shared", "0,3", &agent)?;
    let quota = node.cgroup_file(&own, "main/cpu.max");
    if quota.exists() {
        let is_off = || fs::read_to_string(&quota).is_ok_and(|text| text.starts_with("max"));
        ensure!(
            wait_until(TIMEOUT, Duration::from_millis(20), is_off),
            "its CFS quota stays {:?}",
            fs::read_to_string(&quota)
        );
    }
    // One that comes while it is so starts beside it.
    let late = Pod::burstable("late", "16Mi");
    let late_runs = node.hog(&late, "hold --mb 4")?;
    ensure!(
        allowed(&late_runs)? == "0,3",
        "late may run on {}",
        allowed(&late_runs)?
    );

    let told = json(&node, &["cpu"])?;
    ensure!(
        told["sharedPool"] == "0,3" && told["reserved"] == "0",
        "{told}"
    );
    let one = json(&node, &["topology", "own"])?;
    ensure!(one["pods"][0]["containers"][0]["cpus"] == "1-2", "{one}");
    ensure!(
        explain(&node, &["cpu", "nobody"])?.status == Some(3),
        "a pod that there is not"
    );

    agent.kill()?;
    let agent = node.agent(&options)?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(
        allowed(&own_runs)? == "1-2",
        "after a restart it may run on {}",
        allowed(&own_runs)?
    );
    fs::remove_file(node.manifest(&own))?;
    comes_to(&shared_runs, "shared", "0-3", &agent)?;
    watch.ended()?;
    agent.stop()?;
    Ok(Done::Passed)
}

fn refused() -> Outcome {
    if let Some(lacking) = lacking()? {
        return Ok(lacking);
    }
    let (node, options) = scene(SETTINGS)?;
    let mut agent = node.agent(&options)?;
    let big = Pod::guaranteed("big", "64", "64Mi");
    node.write(&big)?;
    let why = agent.wait(TIMEOUT, |event| match event {
        Event::Decision(decision) if decision.decision["decision"] == "placement_refused" => {
            Some(decision.text.clone())
        }
        _ => None,
    })?;
    ensure!(
        why.contains("64 CPUs are wanted") && why.contains("must not be started"),
        "{why}"
    );
    let ended = || node.output(&big).contains("is not started");
    let mut running = node.exec(&big, &["true"])?;
    ensure!(
        running.process.wait_gone(TIMEOUT),
        "it was started: {}",
        node.output(&big)
    );
    ensure!(ended(), "{}", node.output(&big));
    agent.stop()?;
    Ok(Done::Passed)
}

fn policy_changed() -> Outcome {
    if let Some(lacking) = lacking()? {
        return Ok(lacking);
    }
    let (node, options) = scene(SETTINGS)?;
    let agent = node.agent(&options)?;
    let own = Pod::guaranteed("own", "2", "64Mi");
    let own_runs = node.hog(&own, "hold --mb 4")?;
    comes_to(&own_runs, "own", "1-2", &agent)?;
    agent.stop()?;
    ensure!(
        allowed(&own_runs)? == "1-2",
        "without an agent it keeps what it has"
    );
    // Another reservation: CPU 1 is not to be given away any more.
    let other = SETTINGS.replace("\"0\"", "\"0-1\"");
    node.configure(&other)?;
    let agent = node.agent(&options)?;
    comes_to(&own_runs, "own", "2-3", &agent)?;
    agent.stop()?;
    node.configure("evictionHard: {memory.available: 1Mi}\n")?;
    let agent = node.agent(&options)?;
    comes_to(&own_runs, "own", "0-3", &agent)?;
    agent.stop()?;
    Ok(Done::Passed)
}

/// On a machine with two NUMA nodes: memory comes from one of them, and the shared pool keeps both.
pub(super) fn memory_of_one_node() -> Outcome {
    if !Path::new("/sys/devices/system/node/node1").exists() {
        return Ok(Done::Skipped(Lacks::TwoNumaNodes));
    }
    let (node, options) = scene(
        "memoryManagerPolicy: Static\ntopologyManagerPolicy: single-numa-node\nevictionHard: {memory.available: 1Mi}\n\
         reservedMemory: [{numaNode: 0, limits: {memory: 1Mi}}]\n",
    )?;
    let agent = node.agent(&options)?;
    let shared = Pod::best_effort("shared");
    let shared_runs = node.hog(&shared, "hold --mb 4")?;
    let own = Pod::guaranteed("own", "1", "64Mi");
    let own_runs = node.hog(&own, "hold --mb 32")?;
    let nodes = |running: &Running| status(running, "Mems_allowed_list:");
    let is_there = || nodes(&own_runs).is_ok_and(|nodes| nodes == "0");
    ensure!(
        wait_until(TIMEOUT, Duration::from_millis(20), is_there),
        "its memory may come from {:?}; the agent: {}",
        nodes(&own_runs),
        agent.errors()
    );
    ensure!(
        nodes(&shared_runs)? == "0-1",
        "shared: {}",
        nodes(&shared_runs)?
    );
    let told = json(&node, &["topology", "own"])?;
    let one = &told["pods"][0];
    ensure!(
        one["containers"][0]["memoryNodes"] == "0" && one["alignments"][0]["preferred"] == true,
        "{told}"
    );
    agent.stop()?;
    Ok(Done::Passed)
}

/// CPU 2, switched off; on again when it is dropped.
struct Offline;

impl Offline {
    const FILE: &str = "/sys/devices/system/cpu/cpu2/online";
}

impl Drop for Offline {
    fn drop(&mut self) {
        if let Err(error) = fs::write(Self::FILE, "1") {
            eprintln!("{}: {error}", Self::FILE);
        }
    }
}

fn cpu_goes() -> Outcome {
    if let Some(lacking) = lacking()? {
        return Ok(lacking);
    }
    if !Path::new(Offline::FILE).exists() {
        return Ok(Done::Skipped(Lacks::CpuHotplug));
    }
    let (node, options) = scene(SETTINGS)?;
    let agent = node.agent(&options)?;
    let own = Pod::guaranteed("own", "2", "64Mi");
    let own_runs = node.hog(&own, "hold --mb 4")?;
    comes_to(&own_runs, "own", "1-2", &agent)?;
    fs::write(Offline::FILE, "0").context("switching CPU 2 off")?;
    let offline = Offline;
    comes_to(&own_runs, "own", "1,3", &agent)?;
    drop(offline);
    // Who has CPUs keeps them.
    std::thread::sleep(Duration::from_secs(3));
    ensure!(
        allowed(&own_runs)? == "1,3",
        "it moved again, to {}",
        allowed(&own_runs)?
    );
    agent.stop()?;
    Ok(Done::Passed)
}
