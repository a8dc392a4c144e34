//! The CPUs of a machine as placement sees them: socket → NUMA node → uncore cache → core → CPU.
//!
//! Terms are the kubelet's (pkg/kubelet/cm/cpumanager/topology, 1.36): a *CPU* is a hardware thread, a *core* its
//! physical core, an *uncore cache* the last-level cache that a group of cores shares, a *socket* the package. A socket
//! may hold several NUMA nodes, and a NUMA node several sockets.

use std::collections::BTreeMap;

use crate::placement::cpu_set::{CPUS_MAX, CpuSet};
use crate::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};

/// One online CPU and where it is. All numbers are unique on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// The kernel's number.
    pub id: u32,
    /// The lowest online CPU of its core, as the kubelet numbers cores.
    pub core: u32,
    /// Its package.
    pub socket: u32,
    /// Its NUMA node.
    pub numa: u32,
    /// Its uncore cache; on machines where a socket shares one cache, the socket's number.
    pub uncore: u32,
}

/// How many there are of each.
///
/// The kubelet divides these where a rule speaks of a whole core, cache or socket (average sizes, not real ones), and
/// takes them from cAdvisor rather than by counting; here they are counted unless a description says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopologyCounts {
    /// Online CPUs.
    pub cpus: u32,
    /// Physical cores.
    pub cores: u32,
    /// Packages.
    pub sockets: u32,
    /// NUMA nodes with CPUs.
    pub numa_nodes: u32,
    /// Uncore caches.
    pub uncore_caches: u32,
}

/// The online CPUs of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuTopology {
    cpus: Vec<Cpu>,
    counts: TopologyCounts,
    all: CpuSet,
    numa_nodes: NumaMask,
    by_core: BTreeMap<u32, CpuSet>,
    by_socket: BTreeMap<u32, CpuSet>,
    by_numa: BTreeMap<u32, CpuSet>,
    by_uncore: BTreeMap<u32, CpuSet>,
}

/// Why a list of CPUs is no topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Nothing to place on.
    #[error("the machine has no CPU")]
    NoCpu,
    /// The same CPU twice.
    #[error("CPU {cpu} is listed twice")]
    Twice {
        /// Its number.
        cpu: u32,
    },
    /// Beyond [`CPUS_MAX`].
    #[error("CPU {cpu} is beyond {max}, the highest that is supported", max = CPUS_MAX - 1)]
    CpuTooHigh {
        /// Its number.
        cpu: u32,
    },
    /// Beyond [`NUMA_NODES_MAX`].
    #[error("NUMA node {node} of CPU {cpu} is beyond {max}, the highest that is supported", max = NUMA_NODES_MAX - 1)]
    NodeTooHigh {
        /// The CPU.
        cpu: u32,
        /// Its node.
        node: u32,
    },
    /// A count of zero, by which a rule would have to divide.
    #[error("the machine has CPUs, but the count of {what} is 0")]
    NoneOf {
        /// Cores, sockets, …
        what: &'static str,
    },
}

impl CpuTopology {
    /// From the online CPUs, in any order.
    ///
    /// # Errors
    ///
    /// Names the CPU that cannot be.
    pub fn new(cpus: Vec<Cpu>) -> Result<Self, TopologyError> {
        let counted = |of: fn(&Cpu) -> u32| {
            let distinct: std::collections::BTreeSet<u32> = cpus.iter().map(of).collect();
            u32::try_from(distinct.len()).unwrap_or(u32::MAX)
        };
        let counts = TopologyCounts {
            cpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
            cores: counted(|cpu| cpu.core),
            sockets: counted(|cpu| cpu.socket),
            numa_nodes: counted(|cpu| cpu.numa),
            uncore_caches: counted(|cpu| cpu.uncore),
        };
        Self::with_counts(cpus, counts)
    }

    /// From the online CPUs and counts that are given.
    ///
    /// # Errors
    ///
    /// Names the CPU that cannot be, or the count that is zero.
    pub fn with_counts(mut cpus: Vec<Cpu>, counts: TopologyCounts) -> Result<Self, TopologyError> {
        cpus.sort_unstable_by_key(|cpu| cpu.id);
        if let Some(pair) = cpus.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(TopologyError::Twice { cpu: pair[0].id });
        }
        for cpu in &cpus {
            if cpu.id >= CPUS_MAX {
                return Err(TopologyError::CpuTooHigh { cpu: cpu.id });
            }
            if cpu.numa >= NUMA_NODES_MAX {
                return Err(TopologyError::NodeTooHigh {
                    cpu: cpu.id,
                    node: cpu.numa,
                });
            }
        }
        if cpus.is_empty() {
            return Err(TopologyError::NoCpu);
        }
        for (what, count) in [
            ("CPUs", counts.cpus),
            ("cores", counts.cores),
            ("sockets", counts.sockets),
            ("NUMA nodes", counts.numa_nodes),
            ("uncore caches", counts.uncore_caches),
        ] {
            if count == 0 {
                return Err(TopologyError::NoneOf { what });
            }
        }
        let grouped = |of: fn(&Cpu) -> u32| {
            let mut groups = BTreeMap::<u32, CpuSet>::new();
            for cpu in &cpus {
                groups.entry(of(cpu)).or_default().insert(cpu.id);
            }
            groups
        };
        Ok(Self {
            all: cpus.iter().map(|cpu| cpu.id).collect(),
            numa_nodes: cpus.iter().map(|cpu| cpu.numa).collect(),
            by_core: grouped(|cpu| cpu.core),
            by_socket: grouped(|cpu| cpu.socket),
            by_numa: grouped(|cpu| cpu.numa),
            by_uncore: grouped(|cpu| cpu.uncore),
            cpus,
            counts,
        })
    }

    /// The CPUs, lowest number first.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Where a CPU is; `None` if it is not online.
    #[must_use]
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        let at = self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        self.cpus.get(at)
    }

    /// How many there are of each.
    #[must_use]
    pub fn counts(&self) -> TopologyCounts {
        self.counts
    }

    /// All online CPUs.
    #[must_use]
    pub fn all(&self) -> CpuSet {
        self.all
    }

    /// The NUMA nodes that have CPUs.
    #[must_use]
    pub fn numa_nodes(&self) -> NumaMask {
        self.numa_nodes
    }

    /// CPUs by core.
    #[must_use]
    pub fn by_core(&self) -> &BTreeMap<u32, CpuSet> {
        &self.by_core
    }

    /// CPUs by socket.
    #[must_use]
    pub fn by_socket(&self) -> &BTreeMap<u32, CpuSet> {
        &self.by_socket
    }

    /// CPUs by NUMA node.
    #[must_use]
    pub fn by_numa(&self) -> &BTreeMap<u32, CpuSet> {
        &self.by_numa
    }

    /// CPUs by uncore cache.
    #[must_use]
    pub fn by_uncore(&self) -> &BTreeMap<u32, CpuSet> {
        &self.by_uncore
    }

    /// The CPUs of the NUMA nodes in `mask`.
    #[must_use]
    pub fn cpus_of_nodes(&self, mask: NumaMask) -> CpuSet {
        let nodes = mask.iter().filter_map(|node| self.by_numa.get(&node));
        nodes.fold(CpuSet::EMPTY, |cpus, node| cpus | *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of one NUMA node, two cores of two threads each; siblings four apart.
    fn two_sockets() -> Vec<Cpu> {
        let cpu = |id: u32| Cpu {
            id,
            core: id % 4,
            socket: id % 4 / 2,
            numa: id % 4 / 2,
            uncore: id % 4 / 2,
        };
        (0..8).rev().map(cpu).collect()
    }

    #[test]
    fn cpus_are_grouped_and_counted() {
        let topology = CpuTopology::new(two_sockets()).unwrap();
        let counts = topology.counts();
        assert_eq!(
            (counts.cpus, counts.cores, counts.sockets, counts.numa_nodes),
            (8, 4, 2, 2)
        );
        assert_eq!(topology.by_socket()[&1].to_string(), "2-3,6-7");
        assert_eq!(topology.by_core()[&3].to_string(), "3,7");
        assert_eq!(
            topology.cpus_of_nodes(NumaMask(0b01)).to_string(),
            "0-1,4-5"
        );
        assert_eq!(topology.cpu(6).unwrap().socket, 1);
        assert_eq!(topology.cpu(8), None);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |cpus: Vec<Cpu>| CpuTopology::new(cpus).unwrap_err().to_string();
        assert_eq!(refused(vec![]), "the machine has no CPU");
        let mut twice = two_sockets();
        twice[0].id = 0;
        assert_eq!(refused(twice), "CPU 0 is listed twice");
        let mut high = two_sockets();
        high[0].numa = 64;
        assert_eq!(
            refused(high),
            "NUMA node 64 of CPU 7 is beyond 63, the highest that is supported"
        );
    }
}
