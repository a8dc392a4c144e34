//! Placements on the real kernel, v1 or v2, whatever has the cpuset controller here: processes are sampled while they
//! are moved.
//!
//! What needs root, a cpuset hierarchy and two CPUs says so and is left out without. Everything is made below a cgroup
//! of its own.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod notes;
mod witness;

use std::collections::BTreeMap;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll::act::placement::checkpoint::{CHECKPOINT, Checkpoint, PlacementLock};
use plimsoll::act::placement::{
    Applier, NodePaths, Options, Outcome, PodQuotas, Wanted, online_cpus,
};
use plimsoll::host::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use plimsoll::host::cpuset::Cpuset;
use plimsoll::host::ledger::PODS_LEDGER;
use plimsoll::host::{HostRoot, Ledger};
use plimsoll::pods;
use plimsoll::pods::kill::PodKill;
use plimsoll_core::kube::cgroup_config::{NodeCapacity, QosSettings};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::{Assignment, Assignments};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::memory::Block;
use plimsoll_core::placement::numa_mask::NumaMask;
use witness::Witness;

const PODS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: alone}
spec:
  containers:
  - name: main
    resources: {limits: {cpu: '1', memory: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec:
  containers: [{name: main}]
---
apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  containers: [{name: main}]
";
const ALONE: &str = "default_alone";
const OTHER: &str = "default_other";
const LATE: &str = "default_late";
/// It starts processes all the time, so that some are born while it is moved.
const BUSY: &str = "while :; do sleep 0.005; done";
/// For a lock that nobody else takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the pods are moved, if there is time.
const ROUNDS: usize = 20;
const ROUNDS_TIME: Duration = Duration::from_secs(20);

/// The tests share what is enabled in the root's `cgroup.subtree_control`.
static ROOT: Mutex<()> = Mutex::new(());

struct Node {
    _root: MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    place: NodePaths,
    online: CpuSet,
}

impl Node {
    /// `None`, and a line, where this cannot be tested.
    fn new(name: &str) -> Option<Self> {
        let root = ROOT.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("pods.yaml"), PODS).unwrap();
        let host = HostRoot::live();
        let online = online_cpus(&host).unwrap();
        if online.len() < 2 {
            notes::left_out("one CPU");
            return None;
        }
        let made = host.cgroup_mounts().map_err(|error| error.to_string());
        let made = made.and_then(|mounts| {
            let root = format!("plimsoll-test-{name}-{}", std::process::id());
            let place = NodePaths {
                kubelet: None,
                cgroup_root: CgroupPath::new(&root).unwrap(),
                state_dir: dir.path().to_owned(),
                kubelet_dir: dir.path().to_owned(),
                host,
                mounts,
            };
            let mut ledger = Ledger::open(&place.host, dir.path().join(PODS_LEDGER)).unwrap();
            pods::cgroup::create_placed(&place.mounts, &place.cgroup_root, &mut ledger)
                .map_err(|error| error.to_string())?;
            Ok(place)
        });
        match made {
            Ok(place) => Some(Self {
                _root: root,
                dir,
                place,
                online,
            }),
            Err(error) => {
                notes::left_out(error);
                None
            }
        }
    }

    fn exec(&self, pod: &str, script: &str) -> Command {
        let mut exec = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        exec.arg("exec")
            .arg("-f")
            .arg(self.dir.path().join("pods.yaml"));
        let root = self.place.cgroup_root.to_string();
        exec.args(["--pod", pod, "--cgroup-root", &root, "--state-dir"]);
        exec.arg(self.dir.path()).args(["--", "sh", "-c", script]);
        exec
    }

    fn start(&self, pod: &str, script: &str) -> Running {
        use std::io::BufRead;
        let script = format!("echo started; {script}");
        let mut exec = self.exec(pod, &script);
        let mut child = exec.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "started\n");
        Running(child)
    }

    /// Where a container of this pod runs from its first instruction on.
    fn starts_on(&self, pod: &str) -> Output {
        let script = "grep Cpus_allowed_list /proc/self/status";
        self.exec(pod, script).output().unwrap()
    }

    fn path(&self, uid: &str) -> CgroupPath {
        let pod = PodUid::from(uid);
        let found = pods::cgroup::find(&self.place.mounts, &self.place.cgroup_root, &pod);
        pods::cgroup::container_path(&found.unwrap(), "main").unwrap()
    }

    fn cpus(&self, uid: &str) -> CpuSet {
        let cpuset = Cpuset::at(&self.place.mounts, &self.path(uid)).unwrap();
        cpuset.effective_cpus().unwrap()
    }

    fn quotas(&self, cgroup: &CgroupPath) -> [String; 2] {
        let cpu = self.place.mounts.hierarchy_of(Controller::Cpu).unwrap();
        let file = match cpu.version {
            Version::V1 => "cpu.cfs_quota_us",
            Version::V2 => "cpu.max",
        };
        let dir = cpu.dir(cgroup);
        [dir.as_path(), dir.parent().unwrap()].map(|dir| {
            let text = std::fs::read_to_string(dir.join(file)).unwrap();
            let quota = text.split_ascii_whitespace().next().unwrap();
            quota.replace("-1", "max")
        })
    }

    fn applier(&self) -> Applier {
        let options = Options {
            moves_interrupts: false,
            keeps_quota: false,
        };
        Applier::open(self.place.clone(), options).unwrap().0
    }

    /// The pod `alone` has these CPUs for itself, all others the rest.
    fn wanted(&self, own: Option<CpuSet>) -> Wanted {
        let own_nodes = Assignment {
            cpus: own,
            memory: own.iter().map(|_| memory_of_node_0()).collect(),
            ..Assignment::default()
        };
        let own_nodes = own.map(|_| {
            (
                PodUid::from(ALONE),
                BTreeMap::from([("main".into(), own_nodes)]),
            )
        });
        let (pods, _) = plimsoll::input::manifests::read_file(&self.dir.path().join("pods.yaml"));
        let (settings, node) = (QosSettings::default(), NodeCapacity::default());
        let quotas = |pod: &Pod| (pod.uid(), PodQuotas::of(pod, &settings, &node));
        Wanted {
            names: BTreeMap::new(),
            foreign: BTreeMap::new(),
            answered: BTreeMap::new(),
            memory: BTreeMap::new(),
            assignments: Assignments {
                shared_pool: self.online - own.unwrap_or_default(),
                containers: own_nodes.into_iter().collect(),
                refused: BTreeMap::new(),
            },
            quotas: pods.iter().map(|pod| quotas(&pod.pod)).collect(),
        }
    }

    fn end(&self, mut child: Running, uid: &str) {
        let path = self.path(uid);
        let pod = CgroupPath::new(path.as_path().parent().unwrap().to_str().unwrap()).unwrap();
        end_pod(&self.place, &pod);
        child.0.wait().unwrap();
    }
}

/// Kills what runs in the pod, and removes it.
fn end_pod(place: &NodePaths, pod: &CgroupPath) {
    if let Ok(kill) = PodKill::open(&place.host, &place.mounts, pod) {
        kill.kill().ok();
    }
    while !pods::cgroup::remove_empty(&place.mounts, pod).is_ok_and(|is_gone| is_gone) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A container's first process, which does not outlive a test that failed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Node {
    /// Also after a test that failed: what runs would keep its cgroup.
    fn drop(&mut self) {
        for uid in [ALONE, OTHER, LATE] {
            let pod = PodUid::from(uid);
            let found = pods::cgroup::find(&self.place.mounts, &self.place.cgroup_root, &pod);
            if let Some(pod) = found {
                end_pod(&self.place, &pod);
            }
        }
        let path = self.dir.path().join(PODS_LEDGER);
        if let Ok(mut ledger) = Ledger::open(&self.place.host, path) {
            ledger.restore().ok();
        }
    }
}

/// Says so, also when it is dropped because a test failed: threads that go by it would never end.
struct SaysOver<'a>(&'a AtomicBool);

impl Drop for SaysOver<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn quiet(outcome: &Outcome) {
    assert_eq!(outcome.remarks(), Vec::<String>::new());
}

fn groups(mounts: &CgroupMounts, paths: &[CgroupPath]) -> Vec<std::path::PathBuf> {
    // Where the processes are listed on both versions.
    let memory = mounts.hierarchy_of(Controller::Memory).unwrap();
    paths.iter().map(|path| memory.dir(path)).collect()
}

#[test]
fn nobody_is_on_an_exclusive_cpu_at_any_instant() {
    let Some(node) = Node::new("sharing") else {
        return;
    };
    // Started before anything was placed: without cpusets.
    let alone = node.start("alone", BUSY);
    let other = node.start("other", BUSY);
    let late = node.start("late", "exec sleep 0");
    let paths = [ALONE, OTHER, LATE].map(|uid| node.path(uid));
    let mut applier = node.applier();
    let own = CpuSet::of(node.online.iter().last().unwrap());
    let is_over = AtomicBool::new(false);
    // Odd while it is to be alone: from before it comes there until it is told to share.
    let epoch = AtomicU64::new(0);
    let (samples, was_alone, started) = std::thread::scope(|scope| {
        let says_over = SaysOver(&is_over);
        let witness = scope.spawn(|| {
            let mut witness = Witness::new(&node.place.host, groups(&node.place.mounts, &paths));
            let (mut samples, mut alone_in, mut last) = (0, Vec::new(), 0);
            let mut shared = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                let before = epoch.load(Ordering::SeqCst);
                let sharing = witness.look(&[(0, own)]);
                let after = epoch.load(Ordering::SeqCst);
                let is_to_be_alone = before % 2 == 1 && [last, after] == [before; 2];
                last = before;
                if is_to_be_alone {
                    if !sharing.is_empty() {
                        shared.push((before, format!("{sharing:?}")));
                    }
                    let seen = witness.sample();
                    let mut seen = seen.iter();
                    if seen.any(|seen| seen.group == 0 && seen.allowed == own) {
                        alone_in.push(before);
                    }
                    samples += 1;
                }
            }
            (samples, alone_in, shared)
        });
        // Others start at the same time.
        let starter = scope.spawn(|| {
            let mut started = 0;
            while !is_over.load(Ordering::SeqCst) {
                let output = node.starts_on("late");
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let list = text.split('\t').nth(1).unwrap_or_default();
                let cpus = CpuSet::parse(list).unwrap();
                assert!(!cpus.is_empty() && cpus != own, "{output:?}");
                started += 1;
            }
            started
        });
        let start = Instant::now();
        let mut overtaken = Vec::new();
        for round in 0..ROUNDS {
            // On a busy machine each takes seconds.
            if round > 1 + overtaken.len() && start.elapsed() > ROUNDS_TIME {
                break;
            }
            let this = epoch.fetch_add(1, Ordering::SeqCst) + 1;
            let outcome = applier.apply(&node.wanted(Some(own))).unwrap();
            if outcome
                .remarks()
                .iter()
                .any(|it| it.contains("faster than they can be moved"))
            {
                // It says that it has not succeeded: the machine gave the container's shell more time than the agent.
                overtaken.push(this);
            } else {
                quiet(&outcome);
                assert_eq!(node.cpus(ALONE), own);
                assert_eq!(node.cpus(OTHER), node.online - own);
                std::thread::sleep(Duration::from_millis(20));
            }
            epoch.fetch_add(1, Ordering::SeqCst);
            quiet(&applier.apply(&node.wanted(None)).unwrap());
            assert_eq!(node.cpus(ALONE), node.online);
        }
        drop(says_over);
        let (samples, alone_in, mut shared) = witness.join().unwrap();
        shared.retain(|(epoch, _)| !overtaken.contains(epoch));
        assert!(shared.is_empty(), "{shared:?}");
        let was_alone = alone_in.iter().any(|epoch| !overtaken.contains(epoch));
        (samples, was_alone, starter.join().unwrap())
    });
    assert!(
        was_alone && started > 0,
        "{samples} samples, {started} started"
    );
    eprintln!("{samples} samples, {started} containers started meanwhile");
    drop(late);
    node.end(alone, ALONE);
    node.end(other, OTHER);
}

#[test]
fn a_container_starts_where_it_belongs() {
    let Some(node) = Node::new("starts") else {
        return;
    };
    let own = CpuSet::of(node.online.first().unwrap());
    let mut applier = node.applier();
    quiet(&applier.apply(&node.wanted(Some(own))).unwrap());
    let line = |cpus: CpuSet| format!("Cpus_allowed_list:\t{cpus}\n");
    for (pod, cpus) in [("alone", own), ("other", node.online - own)] {
        let output = node.starts_on(pod);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            line(cpus),
            "{output:?}"
        );
    }
    let alone = node.start("alone", "sleep 1000");
    let path = node.path(ALONE);
    let cpuset = Cpuset::at(&node.place.mounts, &path).unwrap();
    assert_eq!(cpuset.mems().unwrap(), NumaMask::of(0));
    assert_eq!(node.quotas(&path), ["max", "max"]);
    assert!(
        applier
            .apply(&node.wanted(Some(own)))
            .unwrap()
            .written
            .is_empty()
    );
    // It loses them, and has its quota again; and the other way round.
    quiet(&applier.apply(&node.wanted(None)).unwrap());
    assert_eq!(node.quotas(&path), ["100000", "100000"]);
    quiet(&applier.apply(&node.wanted(Some(own))).unwrap());
    assert_eq!(node.quotas(&path), ["max", "max"]);
    quiet(&applier.withdraw(BTreeMap::new()).unwrap().unwrap());
    assert_eq!(node.cpus(ALONE), node.online);
    node.end(alone, ALONE);
}

#[test]
fn a_refused_pod_is_not_started_and_a_damaged_file_stops_nobody() {
    let Some(node) = Node::new("refused") else {
        return;
    };
    let mut checkpoint = Checkpoint {
        assignments: node.wanted(None).assignments,
        before: None,
        keeps_quota: false,
    };
    let why = "2 exclusive CPUs asked for, 1 free".to_owned();
    checkpoint.assignments.refused.insert(OTHER.into(), why);
    let lock = PlacementLock::exclusive(node.dir.path(), PATIENCE).unwrap();
    checkpoint.write(&lock, node.dir.path()).unwrap();
    drop(lock);
    let output = node.starts_on("other");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let wanted = "pod default_other is not started: it could not be placed: 2 exclusive CPUs asked for, 1 free";
    assert!(text.contains(wanted), "{text}");
    assert!(node.starts_on("late").status.success());
    std::fs::write(node.dir.path().join(CHECKPOINT), "{").unwrap();
    let output = node.starts_on("other");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("placement.json.damaged-1"), "{text}");
    let other = [OTHER, LATE].map(|uid| node.path(uid));
    for path in other {
        let pod = CgroupPath::new(path.as_path().parent().unwrap().to_str().unwrap()).unwrap();
        assert!(pods::cgroup::remove_empty(&node.place.mounts, &pod).unwrap());
    }
}

fn memory_of_node_0() -> Block {
    Block {
        nodes: NumaMask::of(0),
        resource: "memory".to_owned(),
        bytes: 1 << 20,
    }
}

#[test]
fn a_conflict_counts_when_it_is_seen_twice() {
    let dir = tempfile::tempdir().unwrap();
    let host = HostRoot::new(dir.path());
    let allow = |pid: u32, list: &str| {
        let task = host.procfs(format!("{pid}/task/{pid}"));
        std::fs::create_dir_all(&task).unwrap();
        let text = format!("Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t{list}\n");
        std::fs::write(task.join("status"), text).unwrap();
    };
    for (group, pid) in [("a", "1"), ("b", "2")] {
        std::fs::create_dir(dir.path().join(group)).unwrap();
        std::fs::write(dir.path().join(group).join("cgroup.procs"), pid).unwrap();
    }
    let groups = vec![dir.path().join("a"), dir.path().join("b"), "/gone".into()];
    let mut witness = Witness::new(&host, groups);
    let exclusive = [(0, CpuSet::parse("2-3").unwrap())];
    allow(1, "2");
    allow(2, "0-2");
    assert!(witness.look(&exclusive).is_empty(), "once may be by chance");
    assert_eq!(witness.look(&exclusive).len(), 1);
    allow(2, "0-1,3");
    assert!(witness.look(&exclusive).is_empty());
    allow(1, "0-3");
    assert!(witness.look(&exclusive).is_empty(), "it is not on its own");
    assert_eq!(witness.sample().len(), 2);
}
