//! A node: its placement, the pods on it, and what must hold.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::kube::pod::{Container, Pod};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::{Assignment, Assignments};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::cpu_static::exclusive_cpus;
use plimsoll_core::placement::machine::{Machine, Parts};
use plimsoll_core::placement::node::{CpuManagerPolicy, NodePlacement, PlacementSettings};
use plimsoll_core::placement::numa_mask::NumaMask;
use tests::fuzz::Random;

use super::{Tally, generate};

/// Pods that may be on it at a time.
const PODS_MAX: usize = 24;
/// Refused ones that wait.
const WAITING_MAX: usize = 3;

/// A node.
pub(crate) struct Node {
    pub(crate) tally: Tally,
    parts: Parts,
    placement: NodePlacement,
    pods: BTreeMap<PodUid, Pod>,
    /// Pods that were refused, and are tried again after each operation, as beside a kubelet.
    waiting: BTreeMap<PodUid, Pod>,
    next: u64,
}

/// Whether a container runs to its end before others start.
fn ends(container: &str) -> bool {
    container.starts_with('i')
}

fn holds_anything(own: &Assignment) -> bool {
    own.cpus.is_some() || !own.memory.is_empty() || !own.devices.is_empty()
}

/// What all containers hold; pods that hold nothing are not in it.
fn held(placement: &NodePlacement) -> BTreeMap<PodUid, BTreeMap<String, Assignment>> {
    let mut all = placement.assignments().containers;
    for containers in all.values_mut() {
        containers.retain(|_, own| holds_anything(own));
    }
    all.retain(|_, containers| !containers.is_empty());
    all
}

impl Node {
    /// `None` if settings and machine do not go together.
    pub(crate) fn new(random: &mut Random) -> Option<Self> {
        let parts = generate::parts(random);
        let machine = Machine::new(parts.clone()).ok()?;
        let settings = generate::settings(random, &machine, None);
        let started = NodePlacement::start(settings, machine, &Assignments::default()).ok();
        let (placement, notes) = started?;
        assert_eq!(notes, [], "nothing was saved");
        Some(Self {
            tally: Tally::default(),
            parts,
            placement,
            pods: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
        })
    }

    /// One operation.
    pub(crate) fn step(&mut self, random: &mut Random) {
        let uids: Vec<PodUid> = self.pods.keys().cloned().collect();
        let chosen = (!uids.is_empty()).then(|| random.pick(&uids).clone());
        match (random.below(13), chosen) {
            (0..=4, _) | (_, None) if uids.len() < PODS_MAX => self.admit_new(random),
            (5 | 6, Some(uid)) => self.inits_end(&uid),
            (7, _) => self.restart(),
            (8, _) => self.plan_anew(random),
            (9..=11, Some(uid)) => self.resize(random, &uid),
            (_, Some(uid)) => self.remove(&uid),
            (_, None) => {}
        }
        self.serve_waiting(random);
    }

    fn serve_waiting(&mut self, random: &mut Random) {
        for (uid, pod) in std::mem::take(&mut self.waiting) {
            if random.one_in(8) {
                self.placement.remove(&uid);
            } else if self.placement.admit(&pod).is_ok() {
                self.tally.served += 1;
                self.pods.insert(uid, pod);
            } else {
                self.waiting.insert(uid, pod);
            }
            self.done();
        }
    }

    fn done(&mut self) {
        self.tally.operations += 1;
        self.check();
    }

    fn admit_new(&mut self, random: &mut Random) {
        let cpus = self.placement.machine().online().len();
        let pod = generate::pod(random, self.next, cpus);
        self.next += 1;
        let uid = pod.uid();
        let (before, memory) = (held(&self.placement), self.memory());
        if let Err(refusal) = self.placement.admit(&pod) {
            self.tally.refused += 1;
            assert!(!refusal.why.is_empty());
            assert_eq!(
                held(&self.placement),
                before,
                "a refused pod holds something"
            );
            assert_eq!(self.memory(), memory, "a refused pod has memory");
            if self.waiting.len() < WAITING_MAX && random.one_in(2) {
                self.waiting.insert(uid, pod);
            } else {
                self.placement.remove(&uid);
            }
            self.done();
            return;
        }
        self.tally.admitted += 1;
        self.pods.insert(uid.clone(), pod.clone());
        self.is_aligned(&pod);
        self.done();
        // Applied once more, nothing changes.
        let now = held(&self.placement);
        self.placement.admit(&pod).expect("it is there");
        assert_eq!(held(&self.placement), now, "the same pod again");
        if random.one_in(4) {
            self.remove(&uid);
            assert_eq!(
                held(&self.placement),
                before,
                "what is freed is not as before"
            );
            assert_eq!(self.memory(), memory, "memory is not as before");
        }
    }

    fn inits_end(&mut self, uid: &PodUid) {
        let pod = self.pods[uid].clone();
        for init in pod
            .spec
            .init_containers
            .iter()
            .filter(|init| ends(&init.name))
        {
            self.placement.container_ended(&pod, &init.name);
            assert!(
                !self.placement.holds(uid, &init.name),
                "{} has ended",
                init.name
            );
            self.done();
        }
    }

    /// In place. What does not fit is not applied, as without a kubelet; beside one only what shrinks changes.
    fn resize(&mut self, random: &mut Random, uid: &PodUid) {
        let before = held(&self.placement);
        if self.is_lacking(uid) {
            return; // it lost something, and would get that
        }
        let cpus = self.placement.machine().online().len();
        let pod = generate::resized(random, &self.pods[uid], cpus);
        let mut tried = self.placement.clone();
        let result = tried.admit(&pod);
        let mut others = held(&tried);
        let (now, mut others_before) = (others.remove(uid), before.clone());
        let own = others_before.remove(uid);
        assert_eq!(others, others_before, "{uid} moved somebody");
        let is_taken = result.is_ok();
        keeps_resized(&own.unwrap_or_default(), &now.unwrap_or_default(), is_taken);
        match result {
            Ok(()) => {
                self.tally.resized += 1;
                self.placement = tried;
                self.pods.insert(uid.clone(), pod.clone());
                self.done();
                self.placement.admit(&pod).expect("it is there");
                assert!(!self.placement.unserved().contains_key(uid));
            }
            Err(refusal) => {
                self.tally.not_resized += 1;
                assert!(!refusal.why.is_empty());
                tried.remove(uid);
                let mut without = self.placement.clone();
                without.remove(uid);
                assert_eq!(
                    tried.assignments(),
                    without.assignments(),
                    "it leaves something"
                );
                assert_eq!(tried.memory(), without.memory(), "it leaves memory");
            }
        }
        self.done();
    }

    /// Whether a pod has not all that it requests, since a change of settings or CPUs.
    fn is_lacking(&self, uid: &PodUid) -> bool {
        let mut placement = self.placement.clone();
        let before = held(&placement);
        placement.admit(&self.pods[uid]).is_err() || held(&placement) != before
    }

    fn remove(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.placement.remove(uid);
        assert!(!held(&self.placement).contains_key(uid));
        self.done();
    }

    /// From the file.
    fn restart(&mut self) {
        let saved = serde_json::to_string(&self.placement.assignments()).unwrap();
        let saved: Assignments = serde_json::from_str(&saved).unwrap();
        let settings = self.placement.settings().clone();
        let machine = self.placement.machine().clone();
        let (placement, notes) = NodePlacement::start(settings, machine, &saved).unwrap();
        assert_eq!(notes, [], "nothing has changed");
        assert_eq!(held(&placement), held(&self.placement), "a restart");
        self.placement = placement;
        self.readmit();
        self.done();
    }

    /// Other settings, other CPUs, or both; what was saved is kept as far as it may be.
    fn plan_anew(&mut self, random: &mut Random) {
        let (mut parts, mut machine) = (self.parts.clone(), self.placement.machine().clone());
        let mut settings = self.placement.settings().clone();
        if random.one_in(2)
            && let Some(other) = generate::plugged(random, &parts)
        {
            (parts, machine) = other;
        }
        if random.one_in(2) {
            settings = generate::settings(random, &machine, Some(&settings));
        }
        let saved = self.placement.assignments();
        let Ok((placement, notes)) = NodePlacement::start(settings, machine, &saved) else {
            // It cannot be, and everything stays as it is.
            return;
        };
        self.tally.replans += 1;
        self.tally.lost += notes.len() as u64;
        self.parts = parts;
        self.placement = placement;
        let lost: BTreeSet<(PodUid, String)> = notes
            .iter()
            .map(|note| (note.pod.clone(), note.container.clone()))
            .collect();
        let kept = held(&self.placement);
        self.nothing_is_lost_silently(&saved, &kept, &lost);
        self.done();
        // Who kept something has it still when the others have got theirs.
        self.readmit();
        for (pod, containers) in &kept {
            let now = self.placement.assignments().containers;
            for (name, own) in containers {
                let now = now.get(pod).and_then(|now| now.get(name));
                assert!(
                    now.is_some_and(|now| keeps(own, now)),
                    "{pod} {name} had {own:?}, has {now:?}"
                );
            }
        }
        self.done();
    }

    fn nothing_is_lost_silently(
        &self,
        saved: &Assignments,
        kept: &BTreeMap<PodUid, BTreeMap<String, Assignment>>,
        lost: &BTreeSet<(PodUid, String)>,
    ) {
        let has_memory = self.placement.memory().is_some();
        for (pod, containers) in &saved.containers {
            for (name, own) in containers {
                let mut own = own.clone();
                if !has_memory {
                    own.memory.clear();
                }
                let now = kept.get(pod).and_then(|now| now.get(name));
                let is_same = now == Some(&own) || (now.is_none() && !holds_anything(&own));
                assert!(
                    is_same || lost.contains(&(pod.clone(), name.clone())),
                    "{pod} {name} had {own:?}, has {now:?}, and nothing was said"
                );
            }
        }
    }

    /// As the engine does it after a start: all pods are applied again.
    fn readmit(&mut self) {
        for (uid, pod) in &self.pods {
            let before = held(&self.placement).remove(uid);
            if self.placement.admit(pod).is_err() {
                assert_eq!(
                    held(&self.placement).remove(uid),
                    before,
                    "{uid} was refused"
                );
            }
        }
    }

    /// The last pod goes, and everything is as on the first day.
    pub(crate) fn clear(&mut self) {
        let waiting = std::mem::take(&mut self.waiting).into_keys();
        for uid in std::mem::take(&mut self.pods).into_keys().chain(waiting) {
            self.placement.remove(&uid);
        }
        self.done();
        let settings = self.placement.settings().clone();
        let machine = self.placement.machine().clone();
        let (empty, _) = NodePlacement::start(settings, machine, &Assignments::default()).unwrap();
        assert_eq!(self.placement.assignments(), empty.assignments());
        assert_eq!(self.placement.memory(), empty.memory());
    }

    /// Bytes that are promised, by resource.
    fn memory(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        let nodes = self
            .placement
            .memory()
            .into_iter()
            .flat_map(|memory| memory.nodes().values());
        for (resource, table) in nodes.flat_map(|node| &node.memory) {
            *all.entry(resource.clone()).or_default() += table.reserved;
        }
        all
    }

    /// Under policies that refuse what is not aligned, a pod of one container is on one set of nodes.
    fn is_aligned(&self, pod: &Pod) {
        let PlacementSettings {
            topology_manager_policy: policy,
            ..
        } = self.placement.settings();
        let strict = policy == "restricted" || policy == "single-numa-node";
        let uid = pod.uid();
        if strict {
            let reasons = self.placement.reasons(&uid);
            assert!(
                reasons
                    .iter()
                    .all(|reason| reason.admitted && reason.hint.preferred),
                "{reasons:?}"
            );
        }
        let alone = pod.spec.init_containers.is_empty() && pod.spec.containers.len() == 1;
        if !alone || policy != "single-numa-node" {
            return;
        }
        let assignments = self.placement.assignments();
        let Some(own) = assignments.get(&uid, &pod.spec.containers[0].name) else {
            return;
        };
        let of_cpus = own.cpus.map_or(NumaMask::EMPTY, |cpus| self.nodes_of(cpus));
        let of_memory = assignments.nodes(&uid, &pod.spec.containers[0].name);
        let all = of_cpus | of_memory.unwrap_or(NumaMask::EMPTY);
        assert!(
            all.len() <= 1,
            "CPUs are on {of_cpus}, memory on {of_memory:?}"
        );
    }

    fn nodes_of(&self, cpus: CpuSet) -> NumaMask {
        let cores = self.parts.cores.iter();
        let on = cores.filter(|core| !core.cpus.is_disjoint(&cpus));
        on.filter_map(|core| core.node).collect()
    }

    /// What holds after every operation.
    fn check(&self) {
        let shared = self.placement.shared_pool();
        assert!(!shared.is_empty(), "the shared pool is empty");
        let all = held(&self.placement);
        for (uid, containers) in &all {
            let pod = self.pods.get(uid);
            let pod = pod.unwrap_or_else(|| panic!("{uid} is gone, and holds {containers:?}"));
            for name in containers.keys() {
                assert!(pod.all_containers().any(|own| own.name == *name));
            }
        }
        let mut owners: Vec<(&PodUid, &Container, &Assignment)> = Vec::new();
        for (uid, pod) in &self.pods {
            for container in pod.all_containers() {
                let Some(own) = all.get(uid).and_then(|own| own.get(&container.name)) else {
                    continue;
                };
                for (other_pod, other, others) in &owners {
                    let in_turn = uid == *other_pod && (ends(&container.name) || ends(&other.name));
                    assert!(
                        in_turn || are_apart(own, others),
                        "{uid}: {own:?}, {other_pod}: {others:?}"
                    );
                }
                owners.push((uid, container, own));
                self.cpus_are_its_own(pod, container, own, shared);
            }
        }
        self.no_cpu_is_lost(shared, &owners);
        self.memory_is_there(&all);
    }

    fn cpus_are_its_own(&self, pod: &Pod, container: &Container, own: &Assignment, shared: CpuSet) {
        let Some(cpus) = own.cpus else { return };
        assert_eq!(cpus.len(), exclusive_cpus(pod, container));
        assert!(cpus.is_disjoint(&shared), "{cpus} is shared and exclusive");
        assert!(
            cpus.is_disjoint(&self.placement.reserved_cpus()),
            "{cpus} is reserved"
        );
        assert!(
            cpus.is_subset(&self.placement.machine().online()),
            "{cpus} is offline"
        );
    }

    fn no_cpu_is_lost(&self, shared: CpuSet, owners: &[(&PodUid, &Container, &Assignment)]) {
        let settings = self.placement.settings();
        let mut managed = self.placement.machine().online();
        if settings.cpu_manager_policy == CpuManagerPolicy::Static
            && settings
                .cpu_manager_policy_options
                .contains_key("strict-cpu-reservation")
        {
            managed -= self.placement.reserved_cpus();
        }
        let own = owners.iter().filter_map(|(_, _, own)| own.cpus);
        let all = own.fold(shared, |all, cpus| all | cpus);
        assert_eq!(all, managed, "CPUs are lost, or come from nowhere");
    }

    fn memory_is_there(&self, all: &BTreeMap<PodUid, BTreeMap<String, Assignment>>) {
        let Some(memory) = self.placement.memory() else {
            assert!(
                all.values()
                    .flat_map(BTreeMap::values)
                    .all(|own| own.memory.is_empty())
            );
            return;
        };
        let blocks = || {
            let containers = all.values().flat_map(BTreeMap::values);
            containers.flat_map(|own| &own.memory)
        };
        for (id, node) in memory.nodes() {
            for (resource, table) in &node.memory {
                assert_eq!(
                    table.reserved + table.free,
                    table.allocatable,
                    "node {id}, {resource}"
                );
                let here = blocks()
                    .filter(|block| block.nodes.contains(*id) && block.resource == *resource);
                let (mut least, mut most) = (0, 0);
                for block in here {
                    most += block.bytes;
                    if block.nodes.len() == 1 {
                        least += block.bytes;
                    }
                }
                assert!(
                    (least..=most).contains(&table.reserved),
                    "node {id}: {} of {resource}, and its own have {least} to {most}",
                    table.reserved
                );
            }
            let here = blocks().filter(|block| block.nodes.contains(*id)).count();
            assert_eq!(node.assignments, here as u64, "node {id}");
        }
        let mut promised: BTreeMap<&str, u64> = BTreeMap::new();
        for block in blocks() {
            *promised.entry(&block.resource).or_default() += block.bytes;
        }
        for (resource, taken) in self.memory() {
            let promised = promised.get(resource.as_str()).copied().unwrap_or(0);
            assert_eq!(taken, promised, "{resource}");
        }
    }
}

/// Each container that has CPUs or memory before and after has more of the same or less of the same; after a refusal
/// never more.
fn keeps_resized(
    before: &BTreeMap<String, Assignment>,
    now: &BTreeMap<String, Assignment>,
    is_taken: bool,
) {
    for (name, own) in before {
        let nothing = Assignment::default();
        let after = now.get(name).unwrap_or(&nothing);
        if let (Some(cpus), Some(after)) = (own.cpus, after.cpus) {
            let less = after.is_subset(&cpus);
            assert!(
                less || (is_taken && cpus.is_subset(&after)),
                "{name} had {cpus}, has {after}"
            );
        }
        assert_eq!(nodes(own), nodes(after), "{name} has its memory elsewhere");
        assert_eq!(own.devices, after.devices, "{name} has other devices");
    }
    assert!(is_taken || now.keys().all(|name| before.contains_key(name)));
}

/// Whether it still has what it had.
fn keeps(before: &Assignment, now: &Assignment) -> bool {
    (before.cpus.is_none() || now.cpus == before.cpus)
        && (before.memory.is_empty() || nodes(now) == nodes(before))
        && before
            .devices
            .iter()
            .all(|(resource, ids)| now.devices.get(resource) == Some(ids))
}

fn nodes(own: &Assignment) -> Vec<NumaMask> {
    own.memory.iter().map(|block| block.nodes).collect()
}

fn are_apart(one: &Assignment, other: &Assignment) -> bool {
    let cpus = |own: &Assignment| own.cpus.unwrap_or(CpuSet::EMPTY);
    let of_both = one
        .devices
        .iter()
        .filter_map(|(resource, ids)| Some((ids, other.devices.get(resource)?)));
    cpus(one).is_disjoint(&cpus(other))
        && of_both
            .into_iter()
            .all(|(ids, others)| ids.is_disjoint(others))
}
