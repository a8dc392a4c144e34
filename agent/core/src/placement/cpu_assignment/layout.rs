//! A machine's sockets, NUMA nodes, uncore caches and cores under dense numbers.
//!
//! All groups of CPUs, of whatever level, share one numbering ([`Group`]), so that a count of free CPUs per group is
//! one array. Within a level numbers ascend with the machine's own ids: "lower id first" is "lower group first".

use std::collections::BTreeMap;

use crate::placement::cpu_set::CpuSet;
use crate::placement::topology::CpuTopology;

/// A socket, NUMA node, uncore cache or core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group(u16);

impl Group {
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Where a CPU is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) socket: Group,
    pub(super) node: Group,
    pub(super) uncore: Group,
    pub(super) core: Group,
}

/// The sizes that the kubelet calls whole: totals divided, not what a socket or core really has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AverageSizes {
    pub(super) socket: u32,
    pub(super) uncore: u32,
    pub(super) core: u32,
}

/// A machine prepared for assignments: made once, used for every call.
#[derive(Debug, Clone)]
pub struct CpuLayout {
    online: CpuSet,
    /// By group: its CPUs.
    cpus: Vec<CpuSet>,
    /// By group: how many those are.
    sizes: Vec<u16>,
    /// By CPU; what is not online has no meaning.
    places: Vec<Place>,
    sockets: Vec<Group>,
    nodes: Vec<Group>,
    /// By group: the nodes (of a socket) or sockets (of a node) that share CPUs with it.
    across: Vec<Vec<Group>>,
    /// By group: the cores of a socket, node or cache.
    cores: Vec<Vec<Group>>,
    /// By group: the uncore caches of a node.
    uncores: Vec<Vec<Group>>,
    average: AverageSizes,
    nodes_above_sockets: bool,
}

impl CpuLayout {
    /// From a machine's topology.
    #[must_use]
    pub fn new(topology: &CpuTopology) -> Self {
        let counts = topology.counts();
        let mut cpus = Vec::new();
        let mut level = |groups: &BTreeMap<u32, CpuSet>| -> BTreeMap<u32, Group> {
            let numbered = groups.iter().map(|(id, set)| {
                cpus.push(*set);
                // At most 1,024 groups on each of four levels.
                (
                    *id,
                    Group(u16::try_from(cpus.len() - 1).unwrap_or(u16::MAX)),
                )
            });
            numbered.collect()
        };
        let sockets = level(topology.by_socket());
        let nodes = level(topology.by_numa());
        let uncores = level(topology.by_uncore());
        let cores = level(topology.by_core());

        let groups = cpus.len();
        let mut layout = Self {
            online: topology.all(),
            sizes: cpus
                .iter()
                .map(|set| u16::try_from(set.len()).unwrap_or(u16::MAX))
                .collect(),
            cpus,
            places: Vec::new(),
            sockets: sockets.values().copied().collect(),
            nodes: nodes.values().copied().collect(),
            across: vec![Vec::new(); groups],
            cores: vec![Vec::new(); groups],
            uncores: vec![Vec::new(); groups],
            average: AverageSizes {
                socket: counts.cpus / counts.sockets,
                uncore: counts.cpus / counts.uncore_caches,
                // A description may claim more cores than CPUs; nothing is smaller than a CPU.
                core: (counts.cpus / counts.cores).max(1),
            },
            nodes_above_sockets: counts.sockets >= counts.numa_nodes,
        };
        for cpu in topology.cpus() {
            let place = Place {
                socket: sockets[&cpu.socket],
                node: nodes[&cpu.numa],
                uncore: uncores[&cpu.uncore],
                core: cores[&cpu.core],
            };
            let at = usize::try_from(cpu.id).unwrap_or(usize::MAX);
            layout.places.resize(at + 1, place);
            layout.across[place.socket.index()].push(place.node);
            layout.across[place.node.index()].push(place.socket);
            for holder in [place.socket, place.node, place.uncore] {
                layout.cores[holder.index()].push(place.core);
            }
            layout.uncores[place.node.index()].push(place.uncore);
        }
        let lists = [&mut layout.across, &mut layout.cores, &mut layout.uncores];
        for list in lists.into_iter().flatten() {
            list.sort_unstable();
            list.dedup();
        }
        layout
    }

    pub(super) fn online(&self) -> CpuSet {
        self.online
    }

    pub(super) fn groups(&self) -> usize {
        self.cpus.len()
    }

    pub(super) fn cpus_of(&self, group: Group) -> &CpuSet {
        &self.cpus[group.index()]
    }

    pub(super) fn size_of(&self, group: Group) -> u16 {
        self.sizes[group.index()]
    }

    /// Where an online CPU is.
    pub(super) fn place(&self, cpu: u32) -> Place {
        self.places[cpu as usize]
    }

    pub(super) fn sockets(&self) -> &[Group] {
        &self.sockets
    }

    pub(super) fn nodes(&self) -> &[Group] {
        &self.nodes
    }

    /// The nodes of a socket, or the sockets of a node.
    pub(super) fn across(&self, group: Group) -> &[Group] {
        &self.across[group.index()]
    }

    /// The cores of a socket, node or cache.
    pub(super) fn cores_of(&self, group: Group) -> &[Group] {
        &self.cores[group.index()]
    }

    /// The uncore caches of a node.
    pub(super) fn uncores_of(&self, node: Group) -> &[Group] {
        &self.uncores[node.index()]
    }

    pub(super) fn average(&self) -> AverageSizes {
        self.average
    }

    /// Whether a node holds sockets, rather than a socket nodes (decided by their numbers, as in the kubelet).
    pub(super) fn nodes_above_sockets(&self) -> bool {
        self.nodes_above_sockets
    }
}
