//! What each NUMA node of a machine has left, by what the kubelet says that it has given away ([`NodeResources`]), or
//! the agent has ([`AgentPlacement`]).
//!
//! **Problem.** A scheduler that knows only the node's totals binds pods that the kubelet then refuses
//! (`TopologyAffinityError`). The kubelet says who has which CPUs, memory and devices, but not what a NUMA node has,
//! and not how memory of several nodes is divided. **Approach.** Capacity comes from the machine, what may be given and
//! what is given from the kubelet. A thing is taken once, whoever lists it twice, and never more than there is: what
//! had to be cut is a [`Doubt`].
//!
//! Rules of the kubelet (1.36) that this follows:
//! * Without a CPU manager `GetAllocatableResources` has no CPUs, without a memory manager no memory. Where the agent
//!   gives none either nothing is aligned to them, so the zones have all that the machine has: the scheduler plugin
//!   refuses each Guaranteed pod where a zone says nothing of CPUs or memory (`isHostLevelResource`).
//! * Memory of several nodes is taken from the lowest first, as far as it goes (`updateMachineState` in
//!   memorymanager/policy_static.go).
//! * A device is listed once for each of its nodes, and is good for a pod on any of them
//!   (`generateDeviceTopologyHints`): it counts in each, and leaves each. Devices without a node align nothing, and are
//!   in no zone.
//! * CPUs that several pods list are those of the shared pool, which kubelets before 1.23 list (k/k#97415): no pod has
//!   them alone.

mod placed;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use placed::AgentPlacement;

use crate::kube::node_resource_topology::{
    Alignment, Amounts, Held, ListedPod, NodeTopology, Zone,
};
use crate::placement::cpu_set::{CPUS_MAX, CpuSet};
use crate::placement::machine::{Machine, page_size};
use crate::placement::numa_mask::NumaMask;
use crate::protocol::pod_resources::{Given, Memory, NodeResources};

const CPU: &str = "cpu";
const MEMORY: &str = "memory";

/// The zones, and what is not sure about them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// The zones and pods.
    pub topology: NodeTopology,
    /// What had to be cut or left out, and what the kubelet does not manage.
    pub doubts: BTreeSet<Doubt>,
}

/// Why there are no zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SurveyError {
    /// What may be given is not known.
    #[error(
        "the kubelet does not say what it may give (GetAllocatableResources, from Kubernetes 1.23 on): nothing is published; upgrade it"
    )]
    NoAllocatable,
    /// It lists more pods than a node can have.
    #[error("the kubelet lists {pods} pods, more than are taken: nothing is published")]
    TooManyPods {
        /// How many.
        pods: usize,
    },
    /// The machine's description has none.
    #[error("the machine has no NUMA node: nothing is published; see `plimsoll topology`")]
    NoNode,
}

/// What is not sure.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Nobody gives exclusive CPUs.
    NoCpuManager,
    /// Nobody gives memory of NUMA nodes.
    NoMemoryManager,
    /// CPUs that more than one pod lists, in the kernel's list form.
    SharedCpus(String),
    /// CPUs that pods have, or that may be given, and that are not online, have no NUMA node, or may not be given; in
    /// the kernel's list form.
    UnknownCpus(String),
    /// More may be given than there is.
    BeyondCapacity {
        /// The zone.
        zone: u32,
        /// Of what.
        resource: String,
    },
    /// Pods have more of it than may be given.
    BeyondAllocatable {
        /// Of what.
        resource: String,
    },
    /// Memory that may be given, of several nodes or of one that is not there.
    UnknownMemory {
        /// Its kind.
        kind: String,
    },
    /// Devices that are near to several nodes.
    DevicesOfSeveralNodes {
        /// Which.
        resource: String,
    },
    /// A device that several containers list.
    DeviceTwice {
        /// Which.
        resource: String,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCpuManager => f.write_str(
                "neither the kubelet nor this agent has cpuManagerPolicy static: all online CPUs count as available",
            ),
            Self::NoMemoryManager => f.write_str(
                "neither the kubelet nor this agent has memoryManagerPolicy Static: all memory counts as available",
            ),
            Self::SharedCpus(cpus) => {
                write!(
                    f,
                    "CPUs {cpus} are listed for several pods: they are shared, and count as available"
                )
            }
            Self::UnknownCpus(cpus) => write!(
                f,
                "CPUs {cpus} are listed, but are offline, have no NUMA node or may not be given: they are left out"
            ),
            Self::BeyondCapacity { zone, resource } => write!(
                f,
                "node-{zone} has less {resource} than the kubelet may give: what is there counts; restart the kubelet if it was changed"
            ),
            Self::BeyondAllocatable { resource } => write!(
                f,
                "pods have more {resource} than the kubelet may give: nothing of it counts as available"
            ),
            Self::UnknownMemory { kind } => write!(
                f,
                "{kind} is listed for several NUMA nodes at once, or for one that is not there: it is left out"
            ),
            Self::DevicesOfSeveralNodes { resource } => write!(
                f,
                "some {resource} are near to several NUMA nodes: they count in each, so the sum of the zones is more than there is"
            ),
            Self::DeviceTwice { resource } => {
                write!(
                    f,
                    "a device of {resource} is listed for several containers: it counts once"
                )
            }
        }
    }
}

/// What is given at all; of what is not, zones have all that the machine has.
#[derive(Debug, Clone, Copy)]
struct Managed {
    /// Exclusive CPUs, and how many more of them at most.
    cpus: Option<u64>,
    /// Memory of NUMA nodes.
    memory: bool,
}

/// What each NUMA node has left. The order of what the kubelet lists does not matter.
///
/// # Errors
/// [`SurveyError`].
pub fn survey(
    machine: &Machine,
    resources: &NodeResources,
    alignment: Option<Alignment>,
) -> Result<Survey, SurveyError> {
    let gives = |what: fn(&Given) -> bool| resources.allocatable.as_ref().is_some_and(what);
    let managed = Managed {
        cpus: gives(|allocatable| !allocatable.cpus.is_empty()).then_some(u64::MAX),
        memory: gives(|allocatable| !allocatable.memory.is_empty()),
    };
    survey_of(machine, resources, alignment, managed)
}

fn survey_of(
    machine: &Machine,
    resources: &NodeResources,
    alignment: Option<Alignment>,
    managed: Managed,
) -> Result<Survey, SurveyError> {
    let allocatable = resources.allocatable.as_ref();
    let allocatable = allocatable.ok_or(SurveyError::NoAllocatable)?;
    let highest = machine.nodes().last().ok_or(SurveyError::NoNode)?.id;
    if resources.has_too_many_pods() {
        let pods = resources.pods.len();
        return Err(SurveyError::TooManyPods { pods });
    }
    let zones = (0..=highest).map(|from| Zone {
        distances: distances(machine, from, highest),
        resources: BTreeMap::new(),
    });
    let mut book = Book {
        machine,
        managed,
        zones: zones.collect(),
        held: BTreeMap::new(),
        doubts: BTreeSet::new(),
    };
    let mut given: Vec<(&str, &Given)> = resources
        .given
        .iter()
        .filter_map(|given| Some((given.container.rsplit_once('/')?.0, given)))
        .collect();
    given.sort_unstable();
    book.cpus(allocatable, &given);
    book.memory(allocatable, &given);
    book.devices(allocatable, &given);
    let names = resources.pods.iter().map(String::as_str);
    let names: BTreeSet<&str> = names.chain(given.iter().map(|(pod, _)| *pod)).collect();
    let Book {
        zones,
        mut held,
        doubts,
        ..
    } = book;
    let pods = names.into_iter().filter_map(|name| {
        let (namespace, pod) = name.split_once('/')?;
        let held = held.remove(name).unwrap_or_default();
        let held = held.into_iter().map(|((zone, resource), amount)| Held {
            zone,
            resource,
            amount,
        });
        Some(ListedPod {
            namespace: namespace.to_owned(),
            name: pod.to_owned(),
            held: held.collect(),
        })
    });
    let topology = NodeTopology {
        pods: pods.collect(),
        zones,
        alignment,
    };
    Ok(Survey { topology, doubts })
}

/// From a node to each number up to the highest; 0 where there is no node.
fn distances(machine: &Machine, from: u32, highest: u32) -> Vec<u32> {
    let row = (0..=highest).map(|to| machine.distance(from, to));
    let row: Vec<u32> = row.map(Option::unwrap_or_default).collect();
    if row.iter().all(|distance| *distance == 0) {
        return Vec::new();
    }
    row
}

struct Book<'a> {
    machine: &'a Machine,
    managed: Managed,
    zones: Vec<Zone>,
    /// By pod, zone and resource.
    held: BTreeMap<&'a str, BTreeMap<(u32, String), u64>>,
    doubts: BTreeSet<Doubt>,
}

impl<'a> Book<'a> {
    /// Says what a zone has of a resource before anything is taken from it.
    fn open(&mut self, zone: u32, resource: &str, capacity: u64, allocatable: u64) {
        if allocatable > capacity {
            self.doubts.insert(Doubt::BeyondCapacity {
                zone,
                resource: resource.to_owned(),
            });
        }
        let allocatable = allocatable.min(capacity);
        let amounts = Amounts {
            capacity,
            allocatable,
            available: allocatable,
        };
        if let Some(zone) = self.zones.get_mut(zone as usize) {
            zone.resources.insert(resource.to_owned(), amounts);
        }
    }

    /// Takes for a pod as much as there is. Returns what there is not.
    fn take(&mut self, pod: &'a str, zone: u32, resource: &str, amount: u64) -> u64 {
        let amounts = self.zones.get_mut(zone as usize);
        let amounts = amounts.and_then(|zone| zone.resources.get_mut(resource));
        let taken = amounts.map_or(0, |amounts| {
            let taken = amount.min(amounts.available);
            amounts.available -= taken;
            taken
        });
        if taken > 0 {
            let held = self.held.entry(pod).or_default();
            *held.entry((zone, resource.to_owned())).or_default() += taken;
        }
        amount - taken
    }

    /// Those nodes of a list that are there; -1 is the kubelet's word for "any".
    fn nodes(&self, listed: &[i64]) -> NumaMask {
        let numbers = listed.iter().filter_map(|node| u32::try_from(*node).ok());
        let there = numbers.filter(|node| self.machine.node(*node).is_some());
        there.collect()
    }

    fn cpus(&mut self, allocatable: &Given, given: &[(&'a str, &Given)]) {
        let mut zone_of = BTreeMap::new();
        for core in self.machine.cores() {
            for cpu in (core.cpus & self.machine.online()).iter() {
                zone_of.extend(core.node.map(|node| (cpu, node)));
            }
        }
        let online: CpuSet = zone_of.keys().copied().collect();
        let mut unknown = CpuSet::EMPTY;
        let may_be_given = if self.managed.cpus.is_none() {
            self.doubts.insert(Doubt::NoCpuManager);
            online
        } else {
            let listed = cpu_set(&allocatable.cpus);
            unknown |= listed - online;
            listed & online
        };
        for node in self.machine.nodes() {
            let here: CpuSet = zone_of
                .iter()
                .filter_map(|(cpu, zone)| (*zone == node.id).then_some(*cpu))
                .collect();
            let there_may_be = u64::from((here & may_be_given).len());
            self.open(node.id, CPU, here.len().into(), there_may_be);
        }
        let mut by_pod = BTreeMap::<&'a str, CpuSet>::new();
        let (mut seen, mut shared) = (CpuSet::EMPTY, CpuSet::EMPTY);
        for &(pod, given) in given {
            *by_pod.entry(pod).or_default() |= cpu_set(&given.cpus);
        }
        for cpus in by_pod.values() {
            shared |= seen & *cpus;
            seen |= *cpus;
        }
        for (pod, cpus) in by_pod {
            unknown |= cpus - may_be_given;
            for cpu in ((cpus & may_be_given) - shared).iter() {
                if let Some(zone) = zone_of.get(&cpu) {
                    self.take(pod, *zone, CPU, 1);
                }
            }
        }
        for zone in &mut self.zones {
            if let Some(amounts) = zone.resources.get_mut(CPU) {
                let at_most = self.managed.cpus.unwrap_or(u64::MAX);
                amounts.available = amounts.available.min(at_most);
            }
        }
        if !shared.is_empty() {
            self.doubts.insert(Doubt::SharedCpus(shared.to_string()));
        }
        if !unknown.is_empty() {
            self.doubts.insert(Doubt::UnknownCpus(unknown.to_string()));
        }
    }

    fn memory(&mut self, allocatable: &Given, given: &[(&'a str, &Given)]) {
        self.open_memory(allocatable);
        let mut blocks = Vec::new();
        for &(pod, given) in given {
            for Memory {
                kind,
                bytes,
                numa_nodes,
            } in &given.memory
            {
                let nodes = self.nodes(numa_nodes);
                // What may come from any node is not aligned.
                if !nodes.is_empty() {
                    blocks.push((nodes.len(), nodes, kind, pod, *bytes));
                }
            }
        }
        // What has one node has no other choice; those on the same nodes share them.
        blocks.sort_unstable();
        for (_, nodes, kind, pod, bytes) in blocks {
            let left = nodes
                .iter()
                .fold(bytes, |left, node| self.take(pod, node, kind, left));
            if left > 0 {
                self.doubts.insert(Doubt::BeyondAllocatable {
                    resource: kind.clone(),
                });
            }
        }
    }

    /// What nodes have of each kind of memory, and what of it may be given.
    fn open_memory(&mut self, allocatable: &Given) {
        let mut may_be_given = BTreeMap::<(u32, &str), u64>::new();
        for block in &allocatable.memory {
            let nodes = self.nodes(&block.numa_nodes);
            let mut only = nodes.iter().filter(|_| nodes.len() == 1);
            match only.next().filter(|_| block.numa_nodes.len() == 1) {
                Some(node) => {
                    let bytes = may_be_given.entry((node, &*block.kind)).or_default();
                    *bytes = bytes.saturating_add(block.bytes);
                }
                None => {
                    let kind = block.kind.clone();
                    self.doubts.insert(Doubt::UnknownMemory { kind });
                }
            }
        }
        let is_managed = self.managed.memory;
        if !is_managed {
            self.doubts.insert(Doubt::NoMemoryManager);
        }
        for node in self.machine.nodes() {
            let mut capacity = BTreeMap::<String, u64>::new();
            let mut huge_bytes = 0_u64;
            for pages in node.hugepages.iter().filter(|pages| pages.pages > 0) {
                let bytes = pages.page_bytes.saturating_mul(pages.pages);
                huge_bytes = huge_bytes.saturating_add(bytes);
                let name = format!("hugepages-{}", page_size(pages.page_bytes));
                capacity.insert(name, bytes);
            }
            let of_node = |(key, _): &(&(u32, &str), &u64)| key.0 == node.id;
            let listed: BTreeMap<&str, u64> = may_be_given
                .iter()
                .filter(of_node)
                .map(|((_, kind), bytes)| (*kind, *bytes))
                .collect();
            for kind in listed.keys() {
                capacity.entry((*kind).to_owned()).or_default();
            }
            let all = node.memory_bytes.or_else(|| listed.get(MEMORY).copied());
            capacity.extend(all.map(|bytes| (MEMORY.to_owned(), bytes)));
            for (kind, bytes) in capacity {
                let unmanaged = match &*kind {
                    MEMORY => bytes.saturating_sub(huge_bytes),
                    _ => bytes,
                };
                let managed = listed.get(&*kind).copied().unwrap_or(0);
                let may_be = if is_managed { managed } else { unmanaged };
                self.open(node.id, &kind, bytes, may_be);
            }
        }
    }

    fn devices(&mut self, allocatable: &Given, given: &[(&'a str, &Given)]) {
        let mut known = BTreeMap::<(&str, &str), NumaMask>::new();
        for devices in &allocatable.devices {
            let nodes = self.nodes(&devices.numa_nodes);
            for id in &devices.ids {
                let known = known.entry((&*devices.resource, &**id)).or_default();
                *known = *known | nodes;
            }
        }
        // Healthy ones may be given; one that is in use and no longer healthy is there all the same.
        let mut there = known.clone();
        let mut holders = BTreeMap::<(&str, &str), &'a str>::new();
        let mut twice = BTreeSet::new();
        for &(pod, given) in given {
            // Once for each of its nodes.
            let mut of_container = BTreeSet::new();
            for devices in &given.devices {
                let nodes = self.nodes(&devices.numa_nodes);
                for id in &devices.ids {
                    let key = (&*devices.resource, &**id);
                    if !known.contains_key(&key) {
                        let there = there.entry(key).or_default();
                        *there = *there | nodes;
                    }
                    if of_container.insert(key) && holders.contains_key(&key) {
                        twice.insert(devices.resource.clone());
                    }
                    holders.entry(key).or_insert(pod);
                }
            }
        }
        let mut counts = BTreeMap::<(u32, &str), (u64, u64)>::new();
        for (key, nodes) in &there {
            if nodes.len() > 1 {
                let resource = key.0.to_owned();
                self.doubts
                    .insert(Doubt::DevicesOfSeveralNodes { resource });
            }
            for node in nodes.iter() {
                let (capacity, may_be) = counts.entry((node, key.0)).or_default();
                *capacity += 1;
                *may_be += u64::from(known.contains_key(key));
            }
        }
        for ((zone, resource), (capacity, may_be)) in counts {
            self.open(zone, resource, capacity, may_be);
        }
        for (key, pod) in holders {
            for node in known.get(&key).copied().unwrap_or_default().iter() {
                self.take(pod, node, key.0, 1);
            }
        }
        let twice = twice.into_iter();
        self.doubts
            .extend(twice.map(|resource| Doubt::DeviceTwice { resource }));
    }
}

/// Numbers beyond [`CPUS_MAX`] are no CPUs of a machine that can be read.
fn cpu_set(cpus: &[i64]) -> CpuSet {
    let numbers = cpus.iter().filter_map(|cpu| u32::try_from(*cpu).ok());
    numbers.filter(|cpu| *cpu < CPUS_MAX).collect()
}

#[cfg(test)]
mod tests;
