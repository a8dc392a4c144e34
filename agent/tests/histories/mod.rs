//! Random histories on the real kernel's cpusets, v1 or v2: pods come, are resized, their containers are started again,
//! pods go, and the agent is started anew, also between a decision and its being carried out; without a kubelet and
//! beside one. After each step the cgroups' files say who runs where: an exclusive CPU is nobody else's, and what is
//! given back is everybody's.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeMap;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use plimsoll::act::placement::checkpoint::{Checkpoint, Found, PlacementLock};
use plimsoll::act::placement::kubelet_state::CPU_MANAGER_STATE;
use plimsoll::act::placement::{Applier, NodePaths, Options, Quotas, Wanted, online_cpus};
use plimsoll::host::cgroup::CgroupPath;
use plimsoll::host::cpuset::Cpuset;
use plimsoll::host::topology::read_machine;
use plimsoll::host::{HostRoot, Ledger};
use plimsoll::pods;
use plimsoll::pods::names::KubeletTree;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::node::{CpuManagerPolicy, NodePlacement, PlacementSettings};
use serde_json::json;

/// Steps of each history.
pub(crate) const STEPS: u64 = 12;
const PODS_MAX: usize = 5;
/// For a lock that nobody else takes.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// What was done, so that a run that did nothing is seen.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) histories: u64,
    pub(crate) steps: u64,
    pub(crate) created: u64,
    /// Containers that had CPUs of their own, after each step.
    pub(crate) exclusive: u64,
    pub(crate) resized: u64,
    pub(crate) restarted_containers: u64,
    pub(crate) deleted: u64,
    pub(crate) restarted_agents: u64,
}

/// A container's cgroup, and its name.
struct Container {
    name: String,
    path: CgroupPath,
}

/// A node with the agent's two halves: what decides, and what makes it so.
struct Node {
    dir: PathBuf,
    place: NodePaths,
    ledger: Ledger,
    online: CpuSet,
    placement: NodePlacement,
    applier: Applier,
    pods: BTreeMap<PodUid, (Pod, Vec<Container>)>,
    next: u64,
}

fn settings(online: CpuSet) -> PlacementSettings {
    PlacementSettings {
        cpu_manager_policy: CpuManagerPolicy::Static,
        reserved_system_cpus: CpuSet::of(online.first().unwrap()),
        reserved_cpu_count: 1,
        ..PlacementSettings::default()
    }
}

fn open(place: &NodePaths) -> Applier {
    let options = Options {
        moves_interrupts: false,
        keeps_quota: true,
    };
    let (applier, remarks) = Applier::open(place.clone(), options).unwrap();
    assert_eq!(remarks, Vec::<String>::new());
    applier
}

/// Where the pods' cgroups are.
fn root() -> CgroupPath {
    CgroupPath::new(&format!("plimsoll-histories-{}", std::process::id())).unwrap()
}

/// Why no cgroup with a cpuset can be had on this machine, or no CPU be exclusive. One is made, and removed; what is
/// kept of it is in this directory.
pub(crate) fn lacking(dir: &Path) -> Option<String> {
    if online_cpus(&HostRoot::live()).unwrap().len() < 2 {
        return Some("one CPU".to_owned());
    }
    let host = HostRoot::live();
    let mounts = match host.cgroup_mounts() {
        Ok(mounts) => mounts,
        Err(error) => return Some(error.to_string()),
    };
    let mut ledger = Ledger::open(&host, dir.join("cgroups.jsonl")).unwrap();
    let made = pods::cgroup::create_placed(&mounts, &root(), &mut ledger);
    ledger.restore().unwrap();
    made.err().map(|error| error.to_string())
}

impl Node {
    fn new(dir: PathBuf, beside_kubelet: bool) -> Self {
        fs::create_dir(&dir).unwrap();
        let host = HostRoot::live();
        let mounts = host.cgroup_mounts().unwrap();
        let mut ledger = Ledger::open(&host, dir.join("cgroups.jsonl")).unwrap();
        let kubepods = CgroupPath::new(&format!("{}/kubepods", root())).unwrap();
        pods::cgroup::create_placed(&mounts, &kubepods, &mut ledger).unwrap();
        let state = r#"{"policyName":"none","defaultCpuSet":"","checksum":0}"#;
        fs::write(dir.join(CPU_MANAGER_STATE), state).unwrap();
        let tree = beside_kubelet.then(|| KubeletTree::find(&mounts, &root()).unwrap());
        let state_dir = dir.join("state");
        fs::create_dir(&state_dir).unwrap();
        let place = NodePaths {
            kubelet: tree,
            cgroup_root: root(),
            state_dir,
            kubelet_dir: dir.clone(),
            host,
            mounts,
        };
        let online = online_cpus(&place.host).unwrap();
        let machine = read_machine(&place.host).unwrap();
        let nothing = Assignments::default();
        let (placement, _) = NodePlacement::start(settings(online), machine, &nothing).unwrap();
        Self {
            applier: open(&place),
            dir,
            place,
            ledger,
            online,
            placement,
            pods: BTreeMap::new(),
            next: 0,
        }
    }

    fn is_beside_kubelet(&self) -> bool {
        self.place.kubelet.is_some()
    }

    /// Of one or two containers that want CPUs of their own, or none.
    fn pod(&self, random: &mut Random, uid: &str) -> Pod {
        let most = u64::from(self.online.len());
        let is_guaranteed = !random.one_in(4);
        let mut container = |name: &str| {
            let cpu = match random.below(4) {
                0 => "1500m".to_owned(),
                _ => (1 + random.below(most)).to_string(),
            };
            let limits = json!({"cpu": cpu, "memory": "16Mi"});
            let requests = match is_guaranteed {
                true => limits.clone(),
                false => json!({"cpu": "100m"}),
            };
            json!({"name": name, "resources": {"requests": requests, "limits": limits}})
        };
        let mut containers = vec![container("main")];
        if self.pods.len() % 2 == 1 {
            containers.push(container("side"));
        }
        let pod =
            json!({"metadata": {"name": uid, "uid": uid}, "spec": {"containers": containers}});
        serde_json::from_value(pod).unwrap()
    }

    /// As a runtime makes it: on all CPUs that the cgroup above has.
    fn start(&mut self, pod: &Pod, name: &str) -> Container {
        let directory = match self.is_beside_kubelet() {
            true => format!("{:064x}", self.next),
            false => name.to_owned(),
        };
        self.next += 1;
        let class = match pod.qos_class().to_string().as_str() {
            "Guaranteed" => String::new(),
            other => format!("/{}", other.to_lowercase()),
        };
        let path = format!("{}/kubepods{class}/pod{}/{directory}", root(), pod.uid());
        let path = CgroupPath::new(&path).unwrap();
        pods::cgroup::create_placed(&self.place.mounts, &path, &mut self.ledger).unwrap();
        Container {
            name: name.to_owned(),
            path,
        }
    }

    fn end(&mut self, path: &CgroupPath) {
        assert!(pods::cgroup::remove_empty(&self.place.mounts, path).unwrap());
    }

    fn create(&mut self, random: &mut Random, tally: &mut Tally) {
        let uid = format!("p{}", self.next);
        let pod = self.pod(random, &uid);
        let is_placed = self.placement.admit(&pod).is_ok();
        if !is_placed && !self.is_beside_kubelet() {
            self.placement.remove(&pod.uid());
            return;
        }
        let names: Vec<String> = pod.all_containers().map(|own| own.name.clone()).collect();
        let containers = names.iter().map(|name| self.start(&pod, name)).collect();
        self.pods.insert(pod.uid(), (pod, containers));
        tally.created += 1;
    }

    fn resize(&mut self, random: &mut Random, uid: &PodUid, tally: &mut Tally) {
        let mut pod = self.pods[uid].0.clone();
        let most = u64::from(self.online.len());
        let quantity = (1 + random.below(most)).to_string();
        for own in &mut pod.spec.containers {
            let resources = &mut own.resources;
            for list in [&mut resources.requests, &mut resources.limits] {
                if list.get("cpu").is_some_and(|now| now.to_string() != "100m") {
                    list.insert("cpu".to_owned(), quantity.parse().unwrap());
                }
            }
        }
        let before = self.placement.clone();
        let is_taken = self.placement.admit(&pod).is_ok();
        if !is_taken && !self.is_beside_kubelet() {
            self.placement = before;
            return;
        }
        self.pods.get_mut(uid).unwrap().0 = pod;
        tally.resized += u64::from(is_taken);
    }

    fn restart_containers(&mut self, uid: &PodUid) {
        let (pod, old) = self.pods.remove(uid).unwrap();
        let mut new = Vec::new();
        for Container { name, path } in old {
            self.end(&path);
            new.push(self.start(&pod, &name));
        }
        self.pods.insert(uid.clone(), (pod, new));
    }

    fn delete(&mut self, uid: &PodUid) {
        let (_, containers) = self.pods.remove(uid).unwrap();
        let pod = containers[0].path.as_path().parent().unwrap().to_owned();
        for container in containers {
            self.end(&container.path);
        }
        self.end(&CgroupPath::new(pod.to_str().unwrap()).unwrap());
        self.placement.remove(uid);
    }

    /// From the checkpoint; what had been decided since is decided again.
    fn restart_agent(&mut self) {
        let lock = PlacementLock::exclusive(&self.place.state_dir, PATIENCE).unwrap();
        let saved = match Checkpoint::read(&lock, &self.place.state_dir).unwrap() {
            Found::Checkpoint(found) => found.assignments,
            Found::Nothing => Assignments::default(),
            Found::Damaged(aside) => panic!("{aside}"),
        };
        drop(lock);
        let machine = read_machine(&self.place.host).unwrap();
        let (placement, notes) =
            NodePlacement::start(settings(self.online), machine, &saved).unwrap();
        assert_eq!(notes, []);
        self.placement = placement;
        for uid in self.placement.pods() {
            if !self.pods.contains_key(&uid) {
                self.placement.remove(&uid);
            }
        }
        for (pod, _) in self.pods.values() {
            self.placement.admit(pod).ok();
        }
        self.applier = open(&self.place);
    }

    /// Who lacks something may have it by now.
    fn serve_waiting(&mut self) {
        for (pod, _) in self.pods.values() {
            self.placement.admit(pod).ok();
        }
    }

    fn apply(&mut self) {
        let named = |containers: &[Container]| {
            let id = |container: &Container| {
                let directory = container.path.as_path().file_name().unwrap();
                let id = directory.to_str().unwrap().to_owned();
                (id, container.name.clone())
            };
            containers.iter().map(id).collect()
        };
        let pods = self.pods.iter();
        let names = pods.map(|(uid, (_, containers))| (uid.clone(), named(containers)));
        let wanted = Wanted {
            assignments: self.placement.assignments(),
            quotas: Quotas::new(),
            names: match self.is_beside_kubelet() {
                true => names.collect(),
                false => BTreeMap::new(),
            },
            foreign: BTreeMap::new(),
            answered: BTreeMap::new(),
            memory: BTreeMap::new(),
        };
        let outcome = self.applier.apply(&wanted).unwrap();
        assert_eq!(outcome.remarks(), Vec::<String>::new());
    }

    fn cpus(&self, path: &CgroupPath) -> CpuSet {
        let cpuset = Cpuset::at(&self.place.mounts, path).unwrap();
        cpuset.effective_cpus().unwrap()
    }

    /// By the files.
    fn check(&self, tally: &mut Tally) {
        let assignments = self.placement.assignments();
        let (mut exclusive, mut shared) = (CpuSet::EMPTY, CpuSet::EMPTY);
        for (uid, (_, containers)) in &self.pods {
            for container in containers {
                let wanted = assignments.cpus(uid, &container.name);
                let cpus = self.cpus(&container.path);
                assert_eq!(cpus, wanted.cpus, "{uid} {}", container.name);
                if wanted.exclusive {
                    assert!(cpus.is_disjoint(&exclusive), "{uid}: {cpus} has two owners");
                    exclusive |= cpus;
                    tally.exclusive += 1;
                } else {
                    shared |= cpus;
                }
            }
        }
        assert!(
            exclusive.is_disjoint(&shared),
            "{exclusive} is exclusive, {shared} is shared"
        );
        assert_eq!(
            exclusive | assignments.shared_pool,
            self.online,
            "CPUs are lost"
        );
        for holder in assignments.containers.keys() {
            assert!(self.pods.contains_key(holder), "{holder} is gone");
        }
    }

    fn step(&mut self, random: &mut Random, tally: &mut Tally) {
        let uids: Vec<PodUid> = self.pods.keys().cloned().collect();
        let chosen = (!uids.is_empty()).then(|| {
            let at = random.below(uids.len() as u64);
            uids[usize::try_from(at).unwrap()].clone()
        });
        match (random.below(10), chosen) {
            (0..=3, _) | (_, None) if uids.len() < PODS_MAX => self.create(random, tally),
            (4 | 5, Some(uid)) => self.resize(random, &uid, tally),
            (6, Some(uid)) => {
                self.restart_containers(&uid);
                tally.restarted_containers += 1;
            }
            (7, _) => {
                self.restart_agent();
                tally.restarted_agents += 1;
            }
            (_, Some(uid)) => {
                self.delete(&uid);
                tally.deleted += 1;
            }
            (_, None) => {}
        }
        if self.is_beside_kubelet() {
            self.serve_waiting();
        }
        // The agent may be gone before it is carried out.
        if random.one_in(8) {
            self.restart_agent();
            tally.restarted_agents += 1;
        }
        self.apply();
        self.check(tally);
        tally.steps += 1;
    }

    /// Nothing is placed any more, and then nothing is there.
    fn finish(&mut self) {
        self.applier.withdraw(Quotas::new()).unwrap();
        for (_, containers) in self.pods.values() {
            for container in containers {
                assert_eq!(self.cpus(&container.path), self.online);
            }
        }
        for uid in self.pods.keys().cloned().collect::<Vec<_>>() {
            self.delete(&uid);
        }
        assert_eq!(self.placement.shared_pool(), self.online, "a leak");
    }
}

impl Drop for Node {
    /// Also after a test that failed.
    fn drop(&mut self) {
        for (_, containers) in self.pods.values() {
            for container in containers {
                pods::cgroup::remove_empty(&self.place.mounts, &container.path).ok();
                let pod = container.path.as_path().parent().unwrap();
                let pod = CgroupPath::new(pod.to_str().unwrap()).unwrap();
                pods::cgroup::remove_empty(&self.place.mounts, &pod).ok();
            }
        }
        self.ledger.restore().ok();
        fs::remove_dir_all(&self.dir).ok();
    }
}

fn history(dir: &Path, seed: u64, tally: &mut Tally) {
    let mut random = Random(seed);
    let mut node = Node::new(dir.join(seed.to_string()), seed % 2 == 1);
    for _ in 0..STEPS {
        node.step(&mut random, tally);
    }
    node.finish();
    tally.histories += 1;
}

/// Makes so many from this seed on, with their files in this directory. Panics where one fails, and names its seed.
pub(crate) fn make(dir: &Path, first: u64, count: u64) -> Tally {
    let mut tally = Tally::default();
    for seed in first..first + count {
        let made = std::panic::catch_unwind(AssertUnwindSafe(|| history(dir, seed, &mut tally)));
        assert!(made.is_ok(), "the failure above is that of seed {seed}");
    }
    assert_eq!((tally.histories, tally.steps), (count, count * STEPS));
    tally
}
