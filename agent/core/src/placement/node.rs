//! The placement of a node: its machine, its policies, and what each container holds.
//!
//! Problem: CPUs, memory and devices each have books of their own, the topology manager brings them together for one
//! pod at a time, and pods, settings and even CPUs come and go while processes run. Approach: [`NodePlacement`] owns
//! the books. A pod is admitted as a whole or not at all; what it held is given back as a whole; and a start from saved
//! [`Assignments`] keeps whatever may be kept.
//!
//! The order in which providers are asked and allocate is the kubelet's: devices, CPUs, memory (`NewContainerManager`
//! in pkg/kubelet/cm/container_manager_linux.go, 1.36).
//!
//! Differences from the kubelet:
//! - After a change of policy, options, reservation or CPUs, it refuses to start until a person has drained the node
//!   and deleted the state file (kubernetes#84333, #131966). Here each container keeps its CPUs if it may still have
//!   them; the others are placed anew when their pod is applied, or, if there is no room, go on in the shared pool
//!   ([`Note`]).
//! - A pod that is there already is not refused because its init containers, which have ended, would not fit beside it.
//! - CPUs of init containers come back when they have ended (kubernetes#112228).
//! - A container whose request changes keeps what it has (`resize`); the kubelet of 1.36 refuses that.

mod resize;
mod round;
mod saved;
mod settings;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kube::pod::{Container, Pod};
use crate::kube::pod_uid::PodUid;
use crate::placement::TopologyHint;
use crate::placement::assignments::{Assignment, Assignments};
use crate::placement::cpu_set::CpuSet;
use crate::placement::cpu_static::{
    CpuAllocateError, CpuPolicy, CpuPolicyError, CpuState, CpuStateError, StaticCpuPolicy,
    StaticCpus, exclusive_cpus,
};
use crate::placement::device::{DeviceError, Devices, GivenDevices, InventoryError};
use crate::placement::machine::{Machine, MachineError};
use crate::placement::memory::{self, AllocateError, MemoryPolicy, StaticMemory};
use crate::placement::topology_manager::{
    Alignment, AlignmentExplanation, Asking, Refusal, TopologyManager, TopologyManagerError,
    explain,
};

pub(crate) use round::Round;
pub use saved::Note;
use saved::{Saved, drop_cpus, keep_cpus, keep_memory};
use turn::{Turn, in_order, why};

pub use settings::{
    CpuManagerPolicy, DeviceSettings, MemoryManagerPolicy, PlacementSettings, ReservedMemoryError,
    ResourceDevices,
};

/// The placement of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "Saved", try_from = "Saved")]
pub struct NodePlacement {
    settings: PlacementSettings,
    machine: Machine,
    devices: Devices,
    /// What a kubelet beside this has given to containers; `None`: nobody says.
    given: Option<Arc<GivenDevices>>,
    cpus: CpuPolicy,
    memory: MemoryPolicy,
    manager: TopologyManager,
    refused: BTreeMap<PodUid, String>,
    /// Pods that have something and lack more of it, and why.
    unserved: BTreeMap<PodUid, String>,
    /// Who is tried next of those who wait for room.
    pub(crate) round: Round,
    /// How each pod came to what it has. Not kept across a restart.
    reasons: BTreeMap<PodUid, Vec<Reason>>,
}

/// How a container, or a pod as a whole, was aligned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The container; `None` for the pod as a whole.
    pub container: Option<String>,
    /// The merged hint.
    pub hint: TopologyHint,
    /// Whether the policy admits it.
    pub admitted: bool,
    /// What each provider offered, and what the alternatives lack.
    pub explanation: AlignmentExplanation,
}

/// Why there can be no placement with these settings on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The machine's description.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The static CPU policy without a reservation (`NewManager` in cpumanager/cpu_manager.go, 1.36).
    #[error(
        "cpuManagerPolicy static needs CPUs that are kept for the system: set kubeReserved or systemReserved with cpu, or reservedSystemCPUs"
    )]
    NothingReserved,
    /// All CPUs that are online are reserved, and the shared pool has none of them.
    #[error(
        "cpuManagerPolicyOptions: strict-cpu-reservation keeps the reserved CPUs {reserved} from all pods, and no other CPU is online: reserve fewer"
    )]
    NothingLeft {
        /// The reserved CPUs.
        reserved: Box<CpuSet>,
    },
    /// An option with a name that there is not.
    #[error("cpuManagerPolicyOptions: there is no option {0}")]
    UnknownCpuOption(String),
    /// Options and machine.
    #[error(transparent)]
    Cpus(#[from] CpuPolicyError),
    /// What was left of the saved state after all that cannot be kept was dropped.
    #[error(transparent)]
    CpuState(#[from] CpuStateError),
    /// The devices.
    #[error(transparent)]
    Devices(#[from] InventoryError),
    /// Reserved memory and machine.
    #[error(transparent)]
    Memory(#[from] memory::MachineError),
    /// The topology manager's settings and machine.
    #[error(transparent)]
    Topology(#[from] TopologyManagerError),
}

/// What a pod has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// Nothing is held for it.
    Not,
    /// It was refused, for this reason.
    Refused(String),
    /// What its containers hold.
    Holds(BTreeMap<String, Assignment>),
}

/// Why a provider does not serve a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAllocated {
    /// No devices.
    #[error(transparent)]
    Devices(#[from] DeviceError),
    /// No CPUs.
    #[error(transparent)]
    Cpus(#[from] CpuAllocateError),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] AllocateError),
}

/// Why a pod is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NotPlaced {
    /// For people, with the container's name.
    pub why: String,
    /// What the topology manager says.
    pub refusal: Box<Refusal<NotAllocated>>,
}

impl NodePlacement {
    /// The placement with these settings on this machine, going on from what was saved as far as it still holds; what
    /// does not is noted.
    ///
    /// # Errors
    ///
    /// If the settings cannot be, by themselves or on this machine.
    pub fn start(
        settings: PlacementSettings,
        machine: Machine,
        saved: &Assignments,
    ) -> Result<(Self, Vec<Note>), PlacementError> {
        let mut notes = Vec::new();
        let cpus = match settings.cpu_manager_policy {
            CpuManagerPolicy::None => {
                drop_cpus(saved, &mut notes);
                CpuPolicy::None
            }
            CpuManagerPolicy::Static => {
                let policy =
                    StaticCpuPolicy::new(machine.cpu_topology()?, settings.static_cpus()?)?;
                if policy.managed().is_empty() {
                    let reserved = Box::new(policy.reserved());
                    return Err(PlacementError::NothingLeft { reserved });
                }
                let state = keep_cpus(&policy, saved, &mut notes);
                CpuPolicy::Static(Box::new(policy.start(state)?))
            }
        };
        let memory = match settings.memory_manager_policy {
            MemoryManagerPolicy::None => MemoryPolicy::None,
            MemoryManagerPolicy::Static => {
                let empty =
                    StaticMemory::new(&settings::numa_memory(&machine), &settings.reserved_memory)?;
                MemoryPolicy::Static(keep_memory(empty, saved, &mut notes))
            }
        };
        let mut devices = Devices::new(machine.node_ids(), settings.devices.inventory()?);
        for (pod, containers) in &saved.containers {
            for (container, assignment) in containers
                .iter()
                .filter(|(_, assignment)| !assignment.devices.is_empty())
            {
                devices.restore(pod, container, assignment.devices.clone());
            }
        }
        let manager =
            TopologyManager::new(&settings.topology(), machine.node_ids(), |from, to| {
                machine.distance(from, to)
            })?;
        let placement = Self {
            settings,
            machine,
            devices,
            given: None,
            cpus,
            memory,
            manager,
            refused: BTreeMap::new(),
            unserved: BTreeMap::new(),
            round: Round::default(),
            reasons: BTreeMap::new(),
        };
        Ok((placement, notes))
    }

    /// Places a pod, or the containers of it that are not placed yet. On refusal it holds nothing, unless it was there
    /// before: then it keeps what it had. A pod that has all that it is to have is not asked about again: with
    /// `align-by-socket`, or devices near to no node, it may be where no hint is. Of a pod that requests other amounts
    /// than it has, the containers keep what they have, or of it as much as they request. One that the kubelet has not
    /// allocated keeps what it has, whatever it requests.
    ///
    /// # Errors
    ///
    /// If the topology policy does not admit it, or a provider cannot serve it.
    pub fn admit(&mut self, pod: &Pod) -> Result<(), NotPlaced> {
        let uid = pod.uid();
        let allocated = self.as_allocated(pod);
        let pod = allocated.as_ref();
        if self.is_resized(pod) {
            return self.resize(pod);
        }
        let was_there = self.assignment_of(&uid);
        // What is placed without its init containers has them behind it.
        let is_behind = |container: &Container| {
            !was_there.is_empty()
                && !was_there.contains_key(&container.name)
                && pod.is_plain_init(&container.name)
        };
        let containers: Vec<&Container> = in_order(pod)
            .filter(|container| !is_behind(container))
            .collect();
        if !was_there.is_empty()
            && containers
                .iter()
                .all(|container| self.is_served(pod, container))
        {
            self.unserved.remove(&uid);
            return Ok(());
        }
        // A container that is there may get in this turn what it lost in a restart, and has to give it up again on
        // refusal.
        let before = (!was_there.is_empty())
            .then(|| (self.cpus.clone(), self.memory.clone(), self.devices.clone()));
        let mut turn = Turn {
            pod,
            containers: &containers,
            nodes: self.machine.node_ids(),
            given: self.given.as_deref(),
            devices: &mut self.devices,
            cpus: &mut self.cpus,
            memory: &mut self.memory,
        };
        let refusal = match self.manager.admit(&mut turn) {
            Ok(alignments) => {
                let reasons = alignments
                    .iter()
                    .map(|alignment| self.reason(alignment, &containers));
                let reasons = reasons.collect();
                self.memory.settle();
                self.refused.remove(&uid);
                self.unserved.remove(&uid);
                self.reasons.insert(uid, reasons);
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        match before {
            Some((cpus, memory, devices)) => {
                (self.cpus, self.memory, self.devices) = (cpus, memory, devices);
            }
            None => {
                in_order(pod).for_each(|container| self.give_back(&uid, &container.name));
                self.forget_reusable(&uid);
                self.memory.settle();
            }
        }
        let why = why(&refusal, &containers);
        if let Refusal::NotAligned { alignment, .. } = &refusal {
            let reasons = vec![self.reason(alignment, &containers)];
            self.reasons.insert(uid.clone(), reasons);
        }
        let lacking = match was_there.is_empty() {
            true => &mut self.refused,
            false => &mut self.unserved,
        };
        lacking.insert(uid, why.clone());
        Err(NotPlaced {
            why,
            refusal: Box::new(refusal),
        })
    }

    /// What the kubelet beside this has given to containers, from now on; `None`: nobody says.
    pub fn set_given(&mut self, given: Option<Arc<GivenDevices>>) {
        self.given = given;
    }

    /// As [`Self::set_given`] was told.
    #[must_use]
    pub fn given(&self) -> Option<&Arc<GivenDevices>> {
        self.given.as_ref()
    }

    /// Takes back what a container holds that has ended and is not started again: an init container. CPUs that it
    /// shares with another container of its pod stay with that container. Returns whether anything changed.
    pub fn container_ended(&mut self, pod: &Pod, container: &str) -> bool {
        let uid = pod.uid();
        let of_pod = pod.all_containers().find(|spec| spec.name == container);
        let held = self.assignment_of(&uid).contains_key(container);
        let gone = held && of_pod.is_none_or(|spec| pod.is_plain_init(&spec.name));
        if gone {
            self.give_back(&uid, container);
            // What it left is given back with it, and no container may reuse it.
            self.forget_reusable(&uid);
            self.memory.settle();
        }
        gone
    }

    /// Takes back all that a pod holds. Whether it held anything.
    pub fn remove(&mut self, pod: &PodUid) -> bool {
        let held = self.assignment_of(pod);
        for container in held.keys() {
            self.give_back(pod, container);
        }
        self.forget_reusable(pod);
        self.memory.settle();
        if let Some(cpus) = self.cpus.exclusive_mut() {
            cpus.remove_pod(pod);
        }
        self.devices.remove(pod);
        self.reasons.remove(pod);
        self.unserved.remove(pod);
        self.refused.remove(pod).is_some() || !held.is_empty()
    }

    /// The pods that hold something or were refused.
    #[must_use]
    pub fn pods(&self) -> Vec<PodUid> {
        let pods: BTreeSet<&PodUid> = self
            .holders()
            .into_iter()
            .chain(self.refused.keys())
            .collect();
        pods.into_iter().cloned().collect()
    }

    /// Pods that have something and lack more of it, and why.
    #[must_use]
    pub fn unserved(&self) -> &BTreeMap<PodUid, String> {
        &self.unserved
    }

    /// Whether pods that wait for room are still to be tried since there may be some.
    #[must_use]
    pub fn has_untried(&self) -> bool {
        self.round.is_under_way()
    }

    /// Pods that were refused, and why.
    #[must_use]
    pub fn refused(&self) -> &BTreeMap<PodUid, String> {
        &self.refused
    }

    /// What each container holds.
    #[must_use]
    pub fn assignments(&self) -> Assignments {
        let holders = self.holders().into_iter();
        let containers = holders.map(|pod| (pod.clone(), self.assignment_of(pod)));
        Assignments {
            shared_pool: self.shared_pool(),
            containers: containers.collect(),
            refused: self.refused.clone(),
        }
    }

    fn holders(&self) -> BTreeSet<&PodUid> {
        let cpus = self.cpu_books().map(|books| books.assignments.keys());
        let memory = self.memory().map(|memory| memory.assignments().keys());
        cpus.into_iter()
            .flatten()
            .chain(memory.into_iter().flatten())
            .chain(self.devices.assignments().keys())
            .collect()
    }

    fn assignment_of(&self, pod: &PodUid) -> BTreeMap<String, Assignment> {
        let mut containers = BTreeMap::<String, Assignment>::new();
        let cpus = self
            .cpu_books()
            .and_then(|books| books.assignments.get(pod));
        for (container, cpus) in cpus.into_iter().flatten() {
            containers.entry(container.clone()).or_default().cpus = Some(*cpus);
        }
        let memory = self
            .memory()
            .and_then(|memory| memory.assignments().get(pod));
        for (container, blocks) in memory.into_iter().flatten() {
            containers
                .entry(container.clone())
                .or_default()
                .memory
                .clone_from(blocks);
        }
        let devices = self.devices.assignments().get(pod);
        for (container, held) in devices.into_iter().flatten() {
            containers
                .entry(container.clone())
                .or_default()
                .devices
                .clone_from(held);
        }
        containers
    }

    fn cpu_books(&self) -> Option<&CpuState> {
        self.cpus.exclusive().map(StaticCpus::state)
    }

    /// The CPUs of containers without exclusive CPUs.
    #[must_use]
    pub fn shared_pool(&self) -> CpuSet {
        let exclusive = self.cpus.exclusive();
        exclusive.map_or_else(|| self.machine.online(), StaticCpus::shared)
    }

    /// CPUs that are kept for the system.
    #[must_use]
    pub fn reserved_cpus(&self) -> CpuSet {
        let exclusive = self.cpus.exclusive();
        exclusive.map_or(CpuSet::EMPTY, |cpus| cpus.policy().reserved())
    }

    /// How many CPUs may still become exclusive at most.
    #[must_use]
    pub fn spare_cpus(&self) -> u32 {
        self.cpus.exclusive().map_or(0, StaticCpus::spare)
    }

    /// The machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &PlacementSettings {
        &self.settings
    }

    /// The books of memory, under the policy Static.
    #[must_use]
    pub fn memory(&self) -> Option<&StaticMemory> {
        match &self.memory {
            MemoryPolicy::None => None,
            MemoryPolicy::Static(memory) => Some(memory),
        }
    }

    /// How a pod came to what it has, or why it has nothing; empty if no policy aligns anything, or it was placed
    /// before a restart.
    #[must_use]
    pub fn reasons(&self, pod: &PodUid) -> &[Reason] {
        self.reasons.get(pod).map_or(&[], Vec::as_slice)
    }

    /// Whether a container holds anything.
    #[must_use]
    pub fn holds(&self, pod: &PodUid, container: &str) -> bool {
        let cpus = self
            .cpu_books()
            .and_then(|books| books.assignments.get(pod)?.get(container));
        let memory = self
            .memory()
            .and_then(|memory| memory.assignments().get(pod)?.get(container));
        cpus.is_some() || memory.is_some() || self.devices.held(pod, container).is_some()
    }

    /// Whether a container of this pod has exclusive CPUs.
    #[must_use]
    pub fn has_exclusive_cpus(&self, pod: &PodUid) -> bool {
        self.cpu_books()
            .and_then(|books| books.assignments.get(pod))
            .is_some_and(|containers| !containers.is_empty())
    }

    /// Whether [`NodePlacement::remove`] would change anything. Allocates nothing.
    pub(crate) fn has_any(&self, pod: &PodUid) -> bool {
        let memory = self.memory().map(StaticMemory::assignments);
        self.has_exclusive_cpus(pod)
            || memory.is_some_and(|assignments| assignments.contains_key(pod))
            || self.devices.assignments().contains_key(pod)
            || self.refused.contains_key(pod)
    }

    /// What a pod has come to.
    #[must_use]
    pub fn placed(&self, pod: &PodUid) -> Placed {
        if let Some(why) = self.refused.get(pod) {
            return Placed::Refused(why.clone());
        }
        let held = self.assignment_of(pod);
        if held.is_empty() {
            Placed::Not
        } else {
            Placed::Holds(held)
        }
    }

    /// Whether a container has all that it would be given.
    fn is_served(&self, pod: &Pod, container: &Container) -> bool {
        let cpus = self.cpus.exclusive().is_none_or(|cpus| {
            let held = cpus.cpus_of(&pod.uid(), &container.name);
            held.map_or(0, |held| held.len()) == exclusive_cpus(pod, container)
        });
        let memory = match &self.memory {
            MemoryPolicy::None => true,
            MemoryPolicy::Static(memory) => memory.is_served(pod, container),
        };
        cpus && memory && self.devices.is_served(pod, container)
    }

    fn give_back(&mut self, pod: &PodUid, container: &str) {
        self.cpus.remove(pod, container);
        self.memory.remove(pod, container);
        self.devices.remove_container(pod, container);
    }

    /// What init containers have left is in the pool, and others may get it.
    fn forget_reusable(&mut self, pod: &PodUid) {
        if let Some(cpus) = self.cpus.exclusive_mut() {
            cpus.forget_reusable(pod);
        }
        if let MemoryPolicy::Static(memory) = &mut self.memory {
            memory.forget_reusable(pod);
        }
    }

    fn reason(&self, alignment: &Alignment, containers: &[&Container]) -> Reason {
        let container = match alignment.asking {
            Asking::Pod => None,
            Asking::Container(place) => Some(containers[place].name.clone()),
        };
        Reason {
            container,
            hint: alignment.merged.hint,
            admitted: alignment.merged.admitted,
            explanation: explain(alignment, self.manager.numa()),
        }
    }
}
