//! The placement of a node: its machine, its policies, and who holds what.
//!
//! Problem: CPUs, memory and devices each have books of their own, the topology manager brings them together for one pod at a time, and
//! pods, settings and even CPUs come and go while processes run. Approach: [`NodePlacement`] owns the books. A pod is admitted as a whole
//! or not at all; what it held is given back as a whole; and a start from saved [`Assignments`] keeps whatever may be kept.
//!
//! The order in which providers are asked and allocate is the kubelet's: devices, CPUs, memory (`NewContainerManager` in
//! pkg/kubelet/cm/container_manager_linux.go, 1.36).
//!
//! Differences from the kubelet:
//! - After a change of policy, options, reservation or CPUs, it refuses to start until a person has drained the node and deleted the state
//!   file (kubernetes#84333, #131966). Here each container keeps its CPUs if it may still have them; the others are placed anew when
//!   their pod is applied, or, if there is no room, go on in the shared pool ([`Note`]).
//! - A pod that is there already is not refused because its init containers, which have ended, would not fit beside it.
//! - CPUs of init containers come back when they have ended (kubernetes#112228).

mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpu_set::CpuSet;
use crate::machine::{Machine, MachineError};
use crate::placement::TopologyHint;
use crate::placement::assignments::{Assignment, Assignments};
use crate::placement::cpu_static::{
    CpuAllocateError, CpuAssignments, CpuPolicy, CpuPolicyError, CpuState, CpuStateError,
    StaticCpuPolicy,
};
use crate::placement::device::{DeviceError, Devices, InventoryError};
use crate::placement::memory::{self, AllocateError, MemoryPolicy, RestoreError, StaticMemory};
use crate::placement::topology_manager::{
    Alignment, AlignmentExplanation, Asking, HintProviders, ProvidedHints, Refusal,
    TopologyManager, TopologyManagerError, explain,
};
use crate::pod::{Container, Pod};
use crate::units::PodUid;

pub use settings::{
    CpuManagerPolicy, DeviceSettings, MemoryManagerPolicy, PlacementSettings, ResourceDevices,
};

/// The placement of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "Saved", try_from = "Saved")]
pub struct NodePlacement {
    settings: PlacementSettings,
    machine: Machine,
    devices: Devices,
    cpus: CpuPolicy,
    memory: MemoryPolicy,
    manager: TopologyManager,
    refused: BTreeMap<PodUid, String>,
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

/// What it takes to make the same placement again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Saved {
    settings: PlacementSettings,
    machine: Machine,
    assignments: Assignments,
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

/// Something that could not be kept as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Note {
    /// The pod.
    pub pod: PodUid,
    /// Its container.
    pub container: String,
    /// What it had, and why it no longer has it.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pod {}, container {}: {}",
            self.pod, self.container, self.why
        )
    }
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
    /// The placement with these settings on this machine, going on from what was saved as far as it still holds; what does not is noted.
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
            for (container, own) in containers.iter().filter(|(_, own)| !own.devices.is_empty()) {
                devices.restore(pod, container, own.devices.clone());
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
            cpus,
            memory,
            manager,
            refused: BTreeMap::new(),
            reasons: BTreeMap::new(),
        };
        Ok((placement, notes))
    }

    /// Places a pod, or the containers of it that are not placed yet. On refusal it holds nothing, unless it was there before: then it keeps what
    /// it had.
    ///
    /// # Errors
    ///
    /// If the topology policy does not admit it, or a provider cannot serve it.
    pub fn admit(&mut self, pod: &Pod) -> Result<(), NotPlaced> {
        let uid = pod.uid();
        let was_there = self.assignment_of(&uid);
        // What is placed without its init containers has them behind it.
        let is_behind = |container: &Container| {
            !was_there.is_empty()
                && !was_there.contains_key(&container.name)
                && ends(pod, container)
        };
        let containers: Vec<&Container> = in_order(pod)
            .filter(|container| !is_behind(container))
            .collect();
        let mut turn = Turn {
            pod,
            containers: &containers,
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
                self.refused.remove(&uid);
                self.reasons.insert(uid, reasons);
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        for container in in_order(pod) {
            if !was_there.contains_key(&container.name) {
                self.give_back(&uid, &container.name);
            }
        }
        let why = why(&refusal, &containers);
        if let Refusal::NotAligned { alignment, .. } = &refusal {
            let reasons = vec![self.reason(alignment, &containers)];
            self.reasons.insert(uid.clone(), reasons);
        }
        if was_there.is_empty() {
            self.refused.insert(uid, why.clone());
        }
        Err(NotPlaced {
            why,
            refusal: Box::new(refusal),
        })
    }

    /// Takes back what a container holds that has ended and is not started again: an init container. CPUs that it shares with another
    /// container of its pod stay that one's. Whether anything changed.
    pub fn container_ended(&mut self, pod: &Pod, container: &str) -> bool {
        let uid = pod.uid();
        let of_pod = pod.all_containers().find(|own| own.name == container);
        let held = self.assignment_of(&uid).contains_key(container);
        let gone = held && of_pod.is_none_or(|own| ends(pod, own));
        if gone {
            self.give_back(&uid, container);
        }
        gone
    }

    /// Takes back all that a pod holds. Whether it held anything.
    pub fn remove(&mut self, pod: &PodUid) -> bool {
        let held = self.assignment_of(pod);
        for container in held.keys() {
            self.give_back(pod, container);
        }
        if let CpuPolicy::Static(cpus) = &mut self.cpus {
            cpus.remove_pod(pod);
        }
        self.devices.remove(pod);
        self.reasons.remove(pod);
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

    /// Who holds what.
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
        match &self.cpus {
            CpuPolicy::None => None,
            CpuPolicy::Static(cpus) => Some(cpus.state()),
        }
    }

    /// The CPUs of whoever has none of its own.
    #[must_use]
    pub fn shared_pool(&self) -> CpuSet {
        match &self.cpus {
            CpuPolicy::None => self.machine.online(),
            CpuPolicy::Static(cpus) => cpus.shared(),
        }
    }

    /// CPUs that are kept for the system.
    #[must_use]
    pub fn reserved_cpus(&self) -> CpuSet {
        match &self.cpus {
            CpuPolicy::None => CpuSet::EMPTY,
            CpuPolicy::Static(cpus) => cpus.policy().reserved(),
        }
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

    /// How a pod came to what it has, or why it has nothing; empty if no policy aligns anything, or it was placed before a restart.
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

    fn give_back(&mut self, pod: &PodUid, container: &str) {
        self.cpus.remove(pod, container);
        self.memory.remove(pod, container);
        self.devices.remove_container(pod, container);
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

/// A refusal with the container's name in place of its number.
fn why(refusal: &Refusal<NotAllocated>, containers: &[&Container]) -> String {
    match refusal {
        Refusal::NotAligned { alignment, .. } => match alignment.asking {
            Asking::Pod => refusal.to_string(),
            Asking::Container(place) => {
                let named = format!("container {}", containers[place].name);
                refusal
                    .to_string()
                    .replacen(&alignment.asking.to_string(), &named, 1)
            }
        },
        // It names pod and container itself.
        Refusal::NotAllocated { source, .. } => source.to_string(),
    }
}

/// As they are started.
fn in_order(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.init_containers.iter().chain(&pod.spec.containers)
}

/// Whether a container runs to its end before others start.
fn ends(pod: &Pod, container: &Container) -> bool {
    let mut inits = pod.spec.init_containers.iter();
    inits.any(|init| init.name == container.name && !init.is_sidecar())
}

/// The providers, while one pod is placed.
struct Turn<'a> {
    pod: &'a Pod,
    containers: &'a [&'a Container],
    devices: &'a mut Devices,
    cpus: &'a mut CpuPolicy,
    memory: &'a mut MemoryPolicy,
}

impl Turn<'_> {
    fn has_cpus(&self, container: &Container) -> bool {
        match &*self.cpus {
            CpuPolicy::None => false,
            CpuPolicy::Static(cpus) => cpus.cpus_of(&self.pod.uid(), &container.name).is_some(),
        }
    }
}

impl HintProviders for Turn<'_> {
    type Error = NotAllocated;

    fn containers(&self) -> usize {
        self.containers.len()
    }

    fn hints(&self, asking: Asking) -> Vec<ProvidedHints> {
        let (devices, cpus, memory) = match asking {
            Asking::Pod => (
                self.devices.pod_hints(self.pod),
                self.cpus.pod_hints(self.pod),
                self.memory.pod_hints(self.pod),
            ),
            Asking::Container(place) => {
                let container = self.containers[place];
                (
                    self.devices.hints(self.pod, container),
                    self.cpus.hints(self.pod, container),
                    self.memory.hints(self.pod, container),
                )
            }
        };
        vec![
            ProvidedHints {
                provider: "devices",
                hints: devices,
            },
            ProvidedHints {
                provider: "cpu",
                hints: cpus,
            },
            ProvidedHints {
                provider: "memory",
                hints: memory.unwrap_or_default(),
            },
        ]
    }

    fn allocate(&mut self, place: usize, hint: TopologyHint) -> Result<(), NotAllocated> {
        let container = self.containers[place];
        self.devices.allocate(self.pod, container, hint)?;
        // `full-pcpus-only` is checked again for what a container has, and must not take it away after a restart.
        if !self.has_cpus(container) {
            self.cpus.allocate(self.pod, container, hint)?;
        }
        self.memory.allocate(self.pod, container, hint)?;
        Ok(())
    }
}

fn drop_cpus(saved: &Assignments, notes: &mut Vec<Note>) {
    for (pod, container, cpus) in exclusive_cpus(saved) {
        notes.push(Note {
            pod: pod.clone(),
            container: container.clone(),
            why: format!("it had CPUs {cpus}, and cpuManagerPolicy is none now: it shares all"),
        });
    }
}

/// The books with everything that may be kept.
fn keep_cpus(policy: &StaticCpuPolicy, saved: &Assignments, notes: &mut Vec<Note>) -> CpuState {
    let mut assignments = CpuAssignments::new();
    let mut taken = CpuSet::EMPTY;
    let can_be_given = policy.managed() - policy.reserved();
    for (pod, container, cpus) in exclusive_cpus(saved) {
        let of_pod = assignments.get(pod);
        let own = of_pod.into_iter().flat_map(BTreeMap::values);
        let own = own.fold(CpuSet::EMPTY, |all, cpus| all | *cpus);
        let refused = cpus - can_be_given;
        let others = cpus & (taken - own);
        let why = if cpus.is_empty() {
            "it is said to have CPUs of its own and has none".to_owned()
        } else if !refused.is_empty() {
            format!(
                "it had CPUs {cpus}, of which {refused} are offline or reserved now: it is placed anew"
            )
        } else if !others.is_empty() {
            format!("it had CPUs {cpus}, of which another pod has {others}: it is placed anew")
        } else {
            taken |= cpus;
            let of_pod = assignments.entry(pod.clone()).or_default();
            of_pod.insert(container.clone(), cpus);
            continue;
        };
        notes.push(Note {
            pod: pod.clone(),
            container: container.clone(),
            why,
        });
    }
    CpuState {
        shared: policy.managed() - taken,
        assignments,
    }
}

fn exclusive_cpus(saved: &Assignments) -> impl Iterator<Item = (&PodUid, &String, CpuSet)> {
    saved.containers.iter().flat_map(|(pod, containers)| {
        let with_cpus = containers.iter();
        with_cpus.filter_map(move |(container, own)| Some((pod, container, own.cpus?)))
    })
}

fn keep_memory(empty: StaticMemory, saved: &Assignments, notes: &mut Vec<Note>) -> StaticMemory {
    let mut kept = memory::Assignments::new();
    for (pod, containers) in &saved.containers {
        for (container, own) in containers {
            if !own.memory.is_empty() {
                let of_pod = kept.entry(pod.clone()).or_default();
                of_pod.insert(container.clone(), own.memory.clone());
            }
        }
    }
    // Each round leaves out the one that does not fit.
    loop {
        let error = match empty.restored(&kept) {
            Ok(memory) => return memory,
            Err(error) => error,
        };
        let (RestoreError::UnknownNodes { pod, container, .. }
        | RestoreError::TooLittle { pod, container, .. }) = &error;
        notes.push(Note {
            pod: pod.clone(),
            container: container.clone(),
            why: error.to_string(),
        });
        let Some(of_pod) = kept.get_mut(pod) else {
            return empty;
        };
        of_pod.remove(container);
        if of_pod.is_empty() {
            kept.remove(pod);
        }
    }
}

impl From<NodePlacement> for Saved {
    fn from(placement: NodePlacement) -> Self {
        Self {
            assignments: placement.assignments(),
            settings: placement.settings,
            machine: placement.machine,
        }
    }
}

impl TryFrom<Saved> for NodePlacement {
    type Error = PlacementError;

    fn try_from(saved: Saved) -> Result<Self, PlacementError> {
        let (mut placement, _) = Self::start(saved.settings, saved.machine, &saved.assignments)?;
        placement.refused = saved.assignments.refused;
        Ok(placement)
    }
}

/// What a restart would make of them.
impl PartialEq for NodePlacement {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
            && self.machine == other.machine
            && self.assignments() == other.assignments()
    }
}
