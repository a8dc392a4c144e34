//! Containers end up on the CPUs that are planned for them, and nobody else is there on the way. On a machine of any
//! shape: where they are to be is asked of `plimsoll place`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plimsoll::host::HostRoot;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::numa_mask::NumaMask;

use super::super::agent::{Agent, Event, Options};
use super::super::clock::wait_until;
use super::super::harness::{Done, Lacks, Outcome, Test};
use super::super::machines::{Machine, On};
use super::super::node::{Node, Running};
use super::super::plan::{Place, Plan};
use super::super::pod::Pod;
use super::explain::{explain, json};

#[path = "../../../../agent/tests/histories/mod.rs"]
mod histories;
#[path = "../../../../agent/tests/witness/mod.rs"]
mod witness;

use witness::Witness;

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "placement::a_container_is_alone_on_its_cpus_also_after_a_restart",
        on: On::First(&[Machine::V6_12, Machine::Numa2Hybrid]),
        run: alone,
    },
    Test {
        name: "placement::without_the_policy_all_share_again",
        on: On::Weekly(Machine::V6_12),
        run: policy_changed,
    },
    Test {
        name: "placement::a_running_pod_that_requests_more_keeps_what_it_has",
        on: On::Weekly(Machine::V6_12),
        run: resized,
    },
    Test {
        name: "placement::who_loses_a_cpu_gets_another",
        on: On::Once(Machine::V6_12),
        run: cpu_goes,
    },
    Test {
        name: "placement::no_random_history_shares_or_loses_an_exclusive_cpu",
        on: On::Weekly(Machine::V6_12),
        run: random_histories,
    },
];

/// Of the seeds from 1 on.
const HISTORIES: u64 = 30;

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
        Options::default()
            .on_tracepoints()
            .flag("--config", &config.to_string_lossy()),
    ))
}

/// Where a container's main process may run.
fn allowed(running: &Running) -> anyhow::Result<CpuSet> {
    Ok(Place::of(running)?.cpus)
}

fn comes_to(running: &Running, name: &str, cpus: CpuSet, agent: &Agent) -> anyhow::Result<()> {
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
    fn start(own: PathBuf, other: PathBuf, cpus: CpuSet) -> Self {
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
        Self { ends, thread }
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
    let own = Pod::guaranteed("own", "2", "64Mi");
    let plan = Plan::of(&node, &[&shared, &own])?;
    let (own_cpus, pool) = (plan.cpus(&own)?, plan.shared_pool());
    ensure!(
        own_cpus.len() == 2 && own_cpus.is_disjoint(&pool),
        "{plan:?}"
    );
    let shared_runs = node.hog(&shared, "hold --mb 4")?;
    let agent = node.agent(&options)?;
    comes_to(&shared_runs, "shared", pool | own_cpus, &agent)?;
    let watch = Watch::start(processes(&node, &own), processes(&node, &shared), own_cpus);
    let own_runs = node.hog(&own, "hold --mb 4")?;
    comes_to(&own_runs, "own", own_cpus, &agent)?;
    comes_to(&shared_runs, "shared", pool, &agent)?;
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
        allowed(&late_runs)? == pool,
        "late may run on {}",
        allowed(&late_runs)?
    );

    let told = json(&node, &["cpu"])?;
    ensure!(
        told["sharedPool"] == pool.to_string() && told["reserved"] == "0",
        "{told}"
    );
    let one = json(&node, &["topology", "own"])?;
    let told = &one["pods"][0]["containers"][0]["cpus"];
    ensure!(*told == own_cpus.to_string(), "{one}");
    ensure!(
        explain(&node, &["cpu", "nobody"])?.status == Some(3),
        "a pod that there is not"
    );

    agent.kill()?;
    let agent = node.agent(&options)?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(
        allowed(&own_runs)? == own_cpus,
        "after a restart it may run on {}",
        allowed(&own_runs)?
    );
    fs::remove_file(node.manifest(&own))?;
    comes_to(&shared_runs, "shared", pool | own_cpus, &agent)?;
    watch.ended()?;
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
    let plan = Plan::of(&node, &[&own])?;
    let own_cpus = plan.cpus(&own)?;
    let own_runs = node.hog(&own, "hold --mb 4")?;
    comes_to(&own_runs, "own", own_cpus, &agent)?;
    agent.stop()?;
    ensure!(
        allowed(&own_runs)? == own_cpus,
        "without an agent it keeps what it has"
    );
    // Another reservation: one of its CPUs is not to be given away any more.
    let lost = own_cpus.first().context("it has CPUs")?;
    node.configure(&SETTINGS.replace("\"0\"", &format!("\"0,{lost}\"")))?;
    let moved = Plan::of(&node, &[&own])?.cpus(&own)?;
    ensure!(!moved.contains(lost), "{moved} is planned, {lost} reserved");
    let agent = node.agent(&options)?;
    comes_to(&own_runs, "own", moved, &agent)?;
    agent.stop()?;
    node.configure("evictionHard: {memory.available: 1Mi}\n")?;
    let agent = node.agent(&options)?;
    comes_to(&own_runs, "own", plan.shared_pool() | own_cpus, &agent)?;
    agent.stop()?;
    Ok(Done::Passed)
}

/// A running container that requests more keeps its CPU and gets others beside it; what does not fit changes nothing of
/// the pod and names the NUMA node that is short; and what shrinks gives back.
fn resized() -> Outcome {
    if let Some(lacking) = lacking()? {
        return Ok(lacking);
    }
    let (node, options) = scene(SETTINGS)?;
    let mut agent = node.agent(&options)?;
    let own = Pod::guaranteed("own", "1", "64Mi");
    let first = Plan::of(&node, &[&own])?.cpus(&own)?;
    let runs = node.hog(&own, "hold --mb 4")?;
    comes_to(&runs, "own", first, &agent)?;
    let grows_to = |count: u32| {
        let grown = || allowed(&runs).is_ok_and(|cpus| cpus.len() == count);
        ensure!(
            wait_until(TIMEOUT, Duration::from_millis(20), grown),
            "own may run on {:?}, and requests {count} CPUs; the agent: {}",
            allowed(&runs),
            agent.errors()
        );
        allowed(&runs)
    };
    node.write(&Pod::guaranteed("own", "2", "96Mi"))?;
    let two = grows_to(2)?;
    ensure!(first.is_subset(&two), "{first} was moved to {two}");
    let limit = || {
        let files = ["memory.max", "memory.limit_in_bytes"];
        files.iter().find_map(|file| {
            let path = node.cgroup_file(&own, &format!("main/{file}"));
            fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
        })
    };
    let has_limit = || limit() == Some(96 << 20);
    ensure!(
        wait_until(TIMEOUT, Duration::from_millis(20), has_limit),
        "its limit is {:?}",
        limit()
    );
    // Three can be had at all.
    node.write(&Pod::guaranteed("own", "4", "128Mi"))?;
    let why = agent.wait(TIMEOUT, |event| match event {
        Event::Warning { text } if text.contains("stays as it was") => Some(text.clone()),
        _ => None,
    })?;
    ensure!(
        why.contains("default/own") && why.contains("NUMA node 0 is short of 1"),
        "{why}"
    );
    agent.after_samples(2)?;
    comes_to(&runs, "own", two, &agent)?;
    ensure!(has_limit(), "its limit is {:?}", limit());
    node.write(&own)?;
    let gives_back = || allowed(&runs).is_ok_and(|cpus| cpus.len() == 1 && cpus.is_subset(&two));
    ensure!(
        wait_until(TIMEOUT, Duration::from_millis(20), gives_back),
        "own may run on {:?}, and requests 1 CPU again; the agent: {}",
        allowed(&runs),
        agent.errors()
    );
    agent.stop()?;
    Ok(Done::Passed)
}

/// On a machine with several NUMA nodes: memory comes from one of them, and the shared pool keeps all.
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
    let nodes = |running: &Running| anyhow::Ok(Place::of(running)?.nodes);
    let is_there = || nodes(&own_runs).is_ok_and(|nodes| nodes == NumaMask::of(0));
    ensure!(
        wait_until(TIMEOUT, Duration::from_millis(20), is_there),
        "its memory may come from {:?}; the agent: {}",
        nodes(&own_runs),
        agent.errors()
    );
    let all = fs::read_to_string("/sys/devices/system/node/has_memory")?;
    ensure!(
        nodes(&shared_runs)?.to_string() == all.trim(),
        "shared: {}, not {all}",
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

/// A CPU, switched off; on again when it is dropped.
struct Offline(PathBuf);

impl Offline {
    fn file(cpu: u32) -> PathBuf {
        PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"))
    }

    fn switch(cpu: u32) -> anyhow::Result<Self> {
        let file = Self::file(cpu);
        fs::write(&file, "0").with_context(|| format!("switching CPU {cpu} off"))?;
        Ok(Self(file))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.0, "1") {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

fn cpu_goes() -> Outcome {
    if let Some(lacking) = lacking()? {
        return Ok(lacking);
    }
    let (node, options) = scene(SETTINGS)?;
    let own = Pod::guaranteed("own", "2", "64Mi");
    let own_cpus = Plan::of(&node, &[&own])?.cpus(&own)?;
    let goes = own_cpus.iter().last().context("it has CPUs")?;
    if !Offline::file(goes).exists() {
        return Ok(Done::Skipped(Lacks::CpuHotplug));
    }
    let agent = node.agent(&options)?;
    let own_runs = node.hog(&own, "hold --mb 4")?;
    comes_to(&own_runs, "own", own_cpus, &agent)?;
    let offline = Offline::switch(goes)?;
    let instead = Plan::of(&node, &[&own])?.cpus(&own)?;
    ensure!(
        instead.len() == 2 && !instead.contains(goes),
        "{instead} is planned without CPU {goes}"
    );
    comes_to(&own_runs, "own", instead, &agent)?;
    drop(offline);
    // Who has CPUs keeps them.
    std::thread::sleep(Duration::from_secs(3));
    ensure!(
        allowed(&own_runs)? == instead,
        "it moved again, to {}",
        allowed(&own_runs)?
    );
    agent.stop()?;
    Ok(Done::Passed)
}

/// The agent's two halves without its loop; on a host's cgroups it is `agent/tests/placement_histories.rs`.
fn random_histories() -> Outcome {
    if let Some(done) = lacking()? {
        return Ok(done);
    }
    let dir = PathBuf::from("/tmp/plimsoll-histories");
    fs::create_dir_all(&dir)?;
    let lacks = histories::lacking(&dir);
    ensure!(lacks.is_none(), "{lacks:?}");
    let tally = histories::make(&dir, 1, HISTORIES);
    println!("{tally:?}");
    ensure!(
        tally.exclusive > HISTORIES / 2
            && tally.resized > HISTORIES / 2
            && tally.restarted_agents > HISTORIES / 2,
        "{tally:?}"
    );
    Ok(Done::Passed)
}
