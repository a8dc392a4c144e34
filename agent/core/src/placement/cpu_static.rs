//! Exclusive CPUs: which container has which, as a state machine.
//!
//! Problem: containers of Guaranteed pods with whole CPUs get CPUs that no other container runs on, and all others
//! share the rest; the answer has to be the kubelet's, for every order of starts, restarts and ends. Approach: the
//! rules of the static policy (pkg/kubelet/cm/cpumanager/policy_static.go, 1.36) over sets. What is fixed for the life
//! of the agent is a [`StaticCpuPolicy`]; [`StaticCpus`] is that and the books: `allocate`, `remove`, `hints`.
//!
//! Terms: the *shared pool* is every CPU that no container has exclusively. *Reserved* CPUs are never given away; they
//! are part of the shared pool, unless the reservation is strict. *Reusable* CPUs are those of a pod's init containers,
//! which its later containers take first and may not do without: an init container has ended before they start.
//!
//! Differences from the kubelet:
//! - CPUs come from [`cpu_assignment`](super::cpu_assignment), which gives none that are not free;
//! - [`StaticCpuSettings::shared_min`] keeps CPUs in the shared pool. The kubelet can give away the last of it under
//!   `strict-cpu-reservation`;
//! - state in which two pods have the same CPU is refused at the start;
//! - a container whose request changes keeps its CPUs ([`StaticCpus::growth`], [`StaticCpus::shrink`]);
//! - what is reusable is nobody else's: the kubelet does not ask whether another container has got it meanwhile;
//! - [`StaticCpus::remove_pod`] leaves nothing behind. In the kubelet a static pod that comes back under its UID can
//!   find reusable CPUs.

mod hints;
mod policy;
mod resize;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use crate::kube::pod::{Container, Pod};
use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::kube::resources::CPU;
use crate::placement::TopologyHint;
use crate::placement::cpu_set::CpuSet;

pub use policy::{
    CpuPolicyError, CpuReservation, StaticCpuOption, StaticCpuPolicy, StaticCpuSettings,
};
pub use resize::Growth;
pub use state::{CpuAssignments, CpuState, CpuStateError};

/// `cpuManagerPolicy`.
#[derive(Debug, Clone)]
pub enum CpuPolicy {
    /// No container gets exclusive CPUs.
    None,
    /// Containers of Guaranteed pods that request whole CPUs do.
    Static(Box<StaticCpus>),
}

/// The static policy and its books.
#[derive(Debug, Clone)]
pub struct StaticCpus {
    policy: StaticCpuPolicy,
    state: CpuState,
    /// What the pod that was served last may use again. Another pod's turn ends that (`updateCPUsToReuse`).
    reusable: Option<(PodUid, CpuSet)>,
}

/// Why a container gets no exclusive CPUs and must not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pod {pod}, container {container}: {refusal}")]
pub struct CpuAllocateError {
    /// Namespace and name, or the UID.
    pub pod: String,
    /// The container.
    pub container: String,
    /// The reason.
    pub refusal: CpuRefusal,
}

/// The reason, and what would have to be otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuRefusal {
    /// `full-pcpus-only`, and the request would share a core.
    #[error(
        "full-pcpus-only: {wanted} CPUs are no whole number of cores of {per_core} CPUs; request a multiple of {per_core}"
    )]
    PartialCore {
        /// CPUs requested.
        wanted: u32,
        /// CPUs of a core, on average.
        per_core: u32,
    },
    /// `full-pcpus-only`, and fewer CPUs are left in the shared pool on cores without a reserved CPU.
    #[error(
        "full-pcpus-only: {wanted} CPUs are wanted on cores without a reserved CPU, and {count} are free there ({free}): {missing} \
         more would have to be free",
        count = .free.len(), missing = .wanted.saturating_sub(.free.len())
    )]
    NotEnoughCores {
        /// CPUs requested.
        wanted: u32,
        /// Those that are free.
        free: Box<CpuSet>,
    },
    /// Fewer CPUs may be taken.
    #[error(
        "{wanted} CPUs are wanted, and {count} may be taken ({list}): {missing} more would have to be free",
        count = free_on(.free), list = list(.free), missing = .wanted.saturating_sub(free_on(.free))
    )]
    NotEnoughCpus {
        /// CPUs requested.
        wanted: u32,
        /// Those that are free, and those of the pod's init containers, by NUMA node.
        free: Vec<(u32, CpuSet)>,
    },
    /// The shared pool would be too small for all other containers ([`StaticCpuSettings::shared_min`]).
    #[error(
        "{wanted} CPUs are wanted of the shared pool ({shared}), in which {kept} have to stay for containers without CPUs of their \
         own: {missing} more would have to be in it",
        missing = (.wanted + .kept).saturating_sub(.shared.len())
    )]
    SharedPool {
        /// CPUs that the shared pool would lose.
        wanted: u32,
        /// The shared pool.
        shared: Box<CpuSet>,
        /// How many have to stay.
        kept: u32,
    },
}

fn free_on(nodes: &[(u32, CpuSet)]) -> u32 {
    nodes.iter().map(|(_, free)| free.len()).sum()
}

fn list(nodes: &[(u32, CpuSet)]) -> String {
    let on_node = |(node, free): &(u32, CpuSet)| format!("NUMA node {node}: {free}");
    let with_free = nodes.iter().filter(|(_, free)| !free.is_empty());
    let parts: Vec<String> = with_free.map(on_node).collect();
    if parts.is_empty() {
        "on no NUMA node".to_owned()
    } else {
        parts.join("; ")
    }
}

impl CpuPolicy {
    /// The static policy with its books; nothing under `None`.
    #[must_use]
    pub fn exclusive(&self) -> Option<&StaticCpus> {
        match self {
            Self::None => None,
            Self::Static(cpus) => Some(cpus),
        }
    }

    /// As [`CpuPolicy::exclusive`], to be changed.
    pub fn exclusive_mut(&mut self) -> Option<&mut StaticCpus> {
        match self {
            Self::None => None,
            Self::Static(cpus) => Some(cpus),
        }
    }

    /// As [`StaticCpus::allocate`], or the CPUs that a container lacks beside those that it has; nothing under `None`.
    ///
    /// # Errors
    ///
    /// Those of [`StaticCpus::allocate`].
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
    ) -> Result<Option<CpuSet>, CpuAllocateError> {
        let Some(cpus) = self.exclusive_mut() else {
            return Ok(None);
        };
        match cpus.growth(pod, container) {
            Some(growth) => cpus.grow(pod, container, hint, &growth).map(Some),
            None => cpus.allocate(pod, container, hint),
        }
    }

    /// As [`StaticCpus::remove`]; nothing under `None`.
    pub fn remove(&mut self, pod: &PodUid, container: &str) -> CpuSet {
        self.exclusive_mut()
            .map_or(CpuSet::EMPTY, |cpus| cpus.remove(pod, container))
    }
}

/// How many exclusive CPUs a container gets; 0 if it runs in the shared pool (`guaranteedCPUs`, 1.36): its pod is
/// Guaranteed, without pod-level resources, and it requests whole CPUs. The pod status after an in-place resize is
/// ignored.
#[must_use]
pub fn exclusive_cpus(pod: &Pod, container: &Container) -> u32 {
    if pod.qos_class() != QosClass::Guaranteed || pod.pod_level_resources().is_some() {
        return 0;
    }
    let request = container.resources.request(CPU);
    let whole = request.value();
    if whole <= 0 || whole.checked_mul(1000) != Some(request.milli_value()) {
        return 0;
    }
    u32::try_from(whole).unwrap_or(u32::MAX)
}

/// The most exclusive CPUs that a pod has at one time: its sidecars and containers together, or an init container
/// beside the sidecars that are started before it (`podGuaranteedCPUs`, 1.36).
#[must_use]
pub fn exclusive_cpus_of_pod(pod: &Pod) -> u32 {
    let (mut sidecars, mut starting) = (0_u32, 0_u32);
    for container in &pod.spec.init_containers {
        let exclusive = exclusive_cpus(pod, container);
        if container.is_sidecar() {
            sidecars = sidecars.saturating_add(exclusive);
        } else {
            starting = starting.max(sidecars.saturating_add(exclusive));
        }
    }
    let containers = pod.spec.containers.iter();
    let running = containers
        .map(|container| exclusive_cpus(pod, container))
        .fold(sidecars, u32::saturating_add);
    running.max(starting)
}

impl StaticCpus {
    /// Gives a container its CPUs, near what the topology manager's `hint` says; `None` if it shares. What it already
    /// has it keeps, whatever the hint.
    ///
    /// # Errors
    ///
    /// If it cannot have them; then nothing has changed. The rules of `full-pcpus-only` also hold for a container that
    /// has its CPUs, as in the kubelet.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
    ) -> Result<Option<CpuSet>, CpuAllocateError> {
        let wanted = exclusive_cpus(pod, container);
        if wanted == 0 {
            return Ok(None);
        }
        let uid = pod.uid();
        let cpus = self
            .choose(pod, &container.name, wanted, hint)
            .map_err(|refusal| CpuAllocateError {
                pod: pod.label(),
                container: container.name.clone(),
                refusal,
            })?;
        self.state.shared -= cpus;
        let of_pod = self.state.assignments.entry(uid.clone()).or_default();
        of_pod.insert(container.name.clone(), cpus);
        self.note_reusable(pod, uid, container, cpus);
        Ok(Some(cpus))
    }

    /// What the container has or is to have.
    fn choose(
        &self,
        pod: &Pod,
        container: &str,
        wanted: u32,
        hint: TopologyHint,
    ) -> Result<CpuSet, CpuRefusal> {
        if self.policy.options().full_pcpus_only {
            let per_core = self.policy.cpus_per_core();
            if !wanted.is_multiple_of(per_core) {
                return Err(CpuRefusal::PartialCore { wanted, per_core });
            }
            let free = self.state.shared - self.policy.reserved_cores();
            if wanted > free.len() {
                return Err(CpuRefusal::NotEnoughCores {
                    wanted,
                    free: Box::new(free),
                });
            }
        }
        if let Some(cpus) = self.cpus_of(&pod.uid(), container) {
            return Ok(cpus);
        }
        let allocatable = self.available() | self.reusable(pod);
        let not_enough = |_| CpuRefusal::NotEnoughCpus {
            wanted,
            free: self.by_node(&allocatable),
        };
        // As in the kubelet: near the hint as many as are there, and the rest anywhere.
        let aligned = match hint.mask {
            Some(mask) => allocatable & self.policy.cpus_near(mask),
            None => CpuSet::EMPTY,
        };
        let near = self
            .policy
            .take(&aligned, wanted.min(aligned.len()))
            .map_err(not_enough)?;
        let rest = self
            .policy
            .take(&(allocatable - near), wanted - near.len())
            .map_err(not_enough)?;
        let cpus = near | rest;
        let kept = self.policy.shared_min();
        if (self.state.shared - cpus).len() < kept {
            return Err(CpuRefusal::SharedPool {
                wanted: self.state.shared.overlap(&cpus),
                shared: Box::new(self.state.shared),
                kept,
            });
        }
        Ok(cpus)
    }

    fn by_node(&self, cpus: &CpuSet) -> Vec<(u32, CpuSet)> {
        let nodes = self.policy.topology().by_numa().iter();
        nodes.map(|(node, all)| (*node, *all & *cpus)).collect()
    }

    /// `updateCPUsToReuse`, 1.36.
    fn note_reusable(&mut self, pod: &Pod, uid: PodUid, container: &Container, cpus: CpuSet) {
        let so_far = self.reusable(pod);
        let reusable = match pod.is_plain_init(&container.name) {
            true => so_far | cpus,
            false => so_far - cpus,
        };
        self.reusable = Some((uid, reusable));
        self.check_books();
    }

    /// What a pod's init containers have left for its later ones: of that nothing which somebody else has by now.
    fn reusable(&self, pod: &Pod) -> CpuSet {
        let uid = pod.uid();
        let Some((_, left)) = self.reusable.as_ref().filter(|(of, _)| *of == uid) else {
            return CpuSet::EMPTY;
        };
        let inits = pod.spec.init_containers.iter();
        let plain_inits: BTreeSet<&str> = inits
            .filter(|init| !init.is_sidecar())
            .map(|init| init.name.as_str())
            .collect();
        let (mut of_inits, mut of_others) = (CpuSet::EMPTY, CpuSet::EMPTY);
        for (name, cpus) in self.state.assignments.get(&uid).into_iter().flatten() {
            match plain_inits.contains(name.as_str()) {
                true => of_inits |= *cpus,
                false => of_others |= *cpus,
            }
        }
        (*left & (self.state.shared | of_inits)) - of_others
    }

    /// What a pod's init containers have left is for its later ones no more.
    pub fn forget_reusable(&mut self, pod: &PodUid) {
        self.reusable.take_if(|(of, _)| of == pod);
    }

    /// No CPU is exclusive to a container and in the shared pool.
    fn check_books(&self) {
        debug_assert!(
            self.state
                .assignments
                .values()
                .flat_map(BTreeMap::values)
                .all(|cpus| cpus.is_disjoint(&self.state.shared)),
            "a CPU is shared and exclusive: {:?}",
            self.state
        );
    }

    /// Takes a container's CPUs back; those that other containers of its pod have too stay theirs. What has returned to
    /// the shared pool.
    ///
    /// As in the kubelet the CPUs of an init container stay reusable for its pod until another pod is served, or has
    /// them, or until [`StaticCpus::forget_reusable`].
    pub fn remove(&mut self, pod: &PodUid, container: &str) -> CpuSet {
        let Some(of_pod) = self.state.assignments.get_mut(pod) else {
            return CpuSet::EMPTY;
        };
        let Some(cpus) = of_pod.remove(container) else {
            return CpuSet::EMPTY;
        };
        let released = of_pod.values().fold(cpus, |cpus, other| cpus - *other);
        if of_pod.is_empty() {
            self.state.assignments.remove(pod);
        }
        self.state.shared |= released;
        self.check_books();
        released
    }

    /// Takes back all CPUs of a removed pod. Returns what went back to the shared pool.
    pub fn remove_pod(&mut self, pod: &PodUid) -> CpuSet {
        let of_pod = self.state.assignments.remove(pod).unwrap_or_default();
        let released = of_pod
            .values()
            .fold(CpuSet::EMPTY, |cpus, other| cpus | *other);
        self.state.shared |= released;
        self.forget_reusable(pod);
        self.check_books();
        released
    }

    /// The CPUs of a container, if it has its own.
    #[must_use]
    pub fn cpus_of(&self, pod: &PodUid, container: &str) -> Option<CpuSet> {
        self.state.assignments.get(pod)?.get(container).copied()
    }

    /// What containers without CPUs of their own run on.
    #[must_use]
    pub fn shared(&self) -> CpuSet {
        self.state.shared
    }

    /// What may still be given away: the shared pool without reserved CPUs.
    #[must_use]
    pub fn available(&self) -> CpuSet {
        self.state.shared - self.policy.reserved()
    }

    /// How many CPUs may still be given away at most: the shared pool keeps some.
    #[must_use]
    pub fn spare(&self) -> u32 {
        let beyond = self.state.shared.len();
        let beyond = beyond.saturating_sub(self.policy.shared_min());
        self.available().len().min(beyond)
    }

    /// The books, to be written down.
    #[must_use]
    pub fn state(&self) -> &CpuState {
        &self.state
    }

    /// The rules.
    #[must_use]
    pub fn policy(&self) -> &StaticCpuPolicy {
        &self.policy
    }
}

#[cfg(test)]
mod tests;
