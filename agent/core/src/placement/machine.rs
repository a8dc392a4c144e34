//! A machine as it can be described: its cores and where they are, its NUMA nodes and what they have.
//!
//! Problem: placement is decided on the machine at hand, on machines described in a file (`plimsoll place --machine`),
//! and in tests on invented machines. Approach: one description, filled from sysfs or from a file (`machine.json`,
//! docs/reference/machine.md), checked once, and turned into the kubelet's view of it ([`Machine::cpu_topology`]).
//!
//! Terms: a *CPU* is a hardware thread with the kernel's number; a *core* its physical core; a *die*, a *cluster* and a
//! *socket* (package) are what the kernel calls so (Documentation/admin-guide/cputopology.rst); *L3* is the cache
//! behind the second level that a group of cores shares. An *uncore cache* is the kubelet's number of that cache, by
//! its own rules.

mod error;
mod read;
mod tree;
mod write;

use std::collections::BTreeMap;

use crate::placement::cpu_set::CpuSet;
use crate::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};
use crate::placement::topology::{Cpu, CpuTopology, TopologyCounts, TopologyError};

pub use error::MachineError;
pub use read::MachineFile;
pub use write::page_size;

/// The version of the file format that is written and read here.
pub const VERSION: u32 = 1;

/// One physical core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Core {
    /// Its threads, online or not.
    pub cpus: CpuSet,
    /// Its package. Known of every core that has an online CPU.
    pub socket: Option<u32>,
    /// Its die, unique within the socket; `None` where the kernel does not say.
    pub die: Option<u32>,
    /// Its cluster, unique within the socket: cores that share the second-level cache or a bus; `None` where there are
    /// none.
    pub cluster: Option<u32>,
    /// Its NUMA node. The kubelet does not see CPUs without one.
    pub node: Option<u32>,
    /// Its L3, unique on the machine; `None` where there is none, or it is unknown.
    pub l3: Option<u32>,
    /// Its uncore cache as the kubelet numbers them, if that is given. Otherwise it follows from `l3`.
    pub uncore: Option<u32>,
}

/// Preallocated huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    /// Bytes of one page.
    pub page_bytes: u64,
    /// How many pages.
    pub pages: u64,
}

/// One NUMA node; it may have CPUs, memory or both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NumaNode {
    /// The kernel's number.
    pub id: u32,
    /// All its memory, huge pages included; 0 if it has CPUs only, `None` if unknown.
    pub memory_bytes: Option<u64>,
    /// Huge pages, by ascending size.
    pub hugepages: Vec<HugePages>,
    /// How far each node is, in the order of their numbers (a row of the SLIT; 10 is the node itself). `None` if
    /// unknown.
    pub distances: Option<Vec<u32>>,
}

/// What a [`Machine`] is made of, in any order and unchecked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Parts {
    /// What people call it.
    pub name: Option<String>,
    /// All cores of which something is known.
    pub cores: Vec<Core>,
    /// CPUs that are present but offline. They may be threads of `cores`, or their core may be unknown.
    pub offline: CpuSet,
    /// CPUs that the kernel's scheduler leaves alone (`isolcpus=`).
    pub isolated: CpuSet,
    /// All NUMA nodes.
    pub nodes: Vec<NumaNode>,
    /// By how many the kubelet divides, where that is given; otherwise they are counted.
    pub counts: Option<TopologyCounts>,
}

/// A machine, checked: every CPU is in one core, every core's node is there, and at least one CPU is online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Cores by their lowest CPU, nodes by number, huge pages by size.
    parts: Parts,
    online: CpuSet,
}

impl Machine {
    /// Checks the parts and puts them in order.
    ///
    /// # Errors
    ///
    /// Names the CPU or node that cannot be.
    pub fn new(mut parts: Parts) -> Result<Self, MachineError> {
        check_nodes(&mut parts.nodes)?;
        parts.cores.sort_by_key(|core| core.cpus.first());
        let online = check_cores(&parts)?;
        if online.is_empty() {
            return Err(TopologyError::NoCpu.into());
        }
        Ok(Self { parts, online })
    }

    /// The machine without some of its CPUs: they count as switched off.
    ///
    /// # Errors
    ///
    /// If no other is online.
    pub fn without(mut self, cpus: CpuSet) -> Result<Self, MachineError> {
        self.parts.offline |= cpus & self.online;
        Self::new(self.parts)
    }

    /// What people call it.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.parts.name.as_deref()
    }

    /// All cores of which something is known, by their lowest CPU.
    #[must_use]
    pub fn cores(&self) -> &[Core] {
        &self.parts.cores
    }

    /// CPUs that run.
    #[must_use]
    pub fn online(&self) -> CpuSet {
        self.online
    }

    /// CPUs that are switched off.
    #[must_use]
    pub fn offline(&self) -> CpuSet {
        self.parts.offline
    }

    /// CPUs that the kernel's scheduler leaves alone.
    #[must_use]
    pub fn isolated(&self) -> CpuSet {
        self.parts.isolated
    }

    /// All NUMA nodes, by number; also those without CPUs, and those without memory.
    #[must_use]
    pub fn nodes(&self) -> &[NumaNode] {
        &self.parts.nodes
    }

    /// The node with this number.
    #[must_use]
    pub fn node(&self, id: u32) -> Option<&NumaNode> {
        self.parts.nodes.get(self.index_of_node(id)?)
    }

    /// The numbers of all nodes.
    #[must_use]
    pub fn node_ids(&self) -> NumaMask {
        self.parts.nodes.iter().map(|node| node.id).collect()
    }

    /// The nodes' places in [`Self::nodes`] are also their places in a row of distances.
    fn index_of_node(&self, id: u32) -> Option<usize> {
        let nodes = &self.parts.nodes;
        nodes.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// How far node `to` is from node `from`, as the firmware says (10 is the node itself, 20 twice as far).
    #[must_use]
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let row = self.node(from)?.distances.as_ref()?;
        row.get(self.index_of_node(to)?).copied()
    }

    /// The online CPUs as the kubelet sees them.
    ///
    /// Rules (`sysinfo.GetNodesInfo` and `addCacheInfo` of cAdvisor, `topology.Discover` in
    /// pkg/kubelet/cm/cpumanager/topology, 1.36): CPUs without a NUMA node are not there. A core's number is its lowest
    /// online CPU. An L3 counts as an uncore cache if it does not have as many online CPUs as the core's node would
    /// have if all cores there had as many threads as this one; a core without such an L3 has its socket's number. The
    /// counts are what is there, unless they are given.
    ///
    /// # Errors
    ///
    /// If no online CPU has a node, or a given count is zero.
    pub fn cpu_topology(&self) -> Result<CpuTopology, MachineError> {
        let threads = |core: &Core| core.cpus & self.online;
        let mut cpus_of_l3 = BTreeMap::<u32, u32>::new();
        let mut cores_of_node = BTreeMap::<u32, u32>::new();
        for core in &self.parts.cores {
            let online = threads(core).len();
            if let Some(l3) = core.l3 {
                *cpus_of_l3.entry(l3).or_default() += online;
            }
            if let (Some(node), 1..) = (core.node, online) {
                *cores_of_node.entry(node).or_default() += 1;
            }
        }
        let mut cpus = Vec::with_capacity(self.online.len() as usize);
        for core in &self.parts.cores {
            let online = threads(core);
            let (Some(lowest), Some(numa), Some(socket)) = (online.first(), core.node, core.socket)
            else {
                continue;
            };
            let whole_node = cores_of_node.get(&numa).copied().unwrap_or(0) * online.len();
            let split_l3 = core
                .l3
                .filter(|l3| cpus_of_l3.get(l3).copied() != Some(whole_node));
            let uncore = core.uncore.or(split_l3).unwrap_or(socket);
            cpus.extend(online.iter().map(|id| Cpu {
                id,
                core: lowest,
                socket,
                numa,
                uncore,
            }));
        }
        Ok(match self.parts.counts {
            Some(counts) => CpuTopology::with_counts(cpus, counts)?,
            None => CpuTopology::new(cpus)?,
        })
    }
}

/// Orders nodes and their huge pages.
fn check_nodes(nodes: &mut [NumaNode]) -> Result<(), MachineError> {
    nodes.sort_by_key(|node| node.id);
    if let Some(pair) = nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(MachineError::NodeTwice { node: pair[0].id });
    }
    let count = nodes.len();
    for NumaNode {
        id,
        hugepages,
        distances,
        ..
    } in nodes
    {
        let node = *id;
        if node >= NUMA_NODES_MAX {
            return Err(MachineError::NodeTooHigh { node });
        }
        hugepages.sort_by_key(|pages| pages.page_bytes);
        let wrong = |page_bytes, wrong| MachineError::HugePages {
            node,
            page_bytes,
            wrong,
        };
        if let Some(none) = hugepages.first().filter(|pages| pages.page_bytes == 0) {
            return Err(wrong(none.page_bytes, "cannot be"));
        }
        let mut pairs = hugepages.windows(2);
        if let Some(pair) = pairs.find(|pair| pair[0].page_bytes == pair[1].page_bytes) {
            return Err(wrong(pair[0].page_bytes, "are there twice"));
        }
        if let Some(row) = distances
            && row.len() != count
        {
            return Err(MachineError::Distances {
                node,
                found: row.len(),
                nodes: count,
            });
        }
    }
    Ok(())
}

/// The CPUs that are online: those of the cores that are not listed as offline.
fn check_cores(parts: &Parts) -> Result<CpuSet, MachineError> {
    let nodes: NumaMask = parts.nodes.iter().map(|node| node.id).collect();
    let with_uncore = parts.cores.iter().any(|core| core.uncore.is_some());
    let mut all = CpuSet::EMPTY;
    for core in &parts.cores {
        let Some(cpu) = core.cpus.first() else {
            return Err(MachineError::NoThread {
                socket: core.socket,
            });
        };
        if let Some(cpu) = (core.cpus & all).first() {
            return Err(MachineError::CpuTwice { cpu });
        }
        all |= core.cpus;
        if let Some(node) = core.node.filter(|node| !nodes.contains(*node)) {
            return Err(MachineError::NoNode { cpu, node });
        }
        if let Some(cpu) = (core.cpus - parts.offline).first() {
            if core.socket.is_none() {
                return Err(MachineError::NoSocket { cpu });
            }
            if with_uncore && core.uncore.is_none() {
                return Err(MachineError::NoUncore { cpu });
            }
        }
    }
    Ok(all - parts.offline)
}

#[cfg(test)]
mod tests;
