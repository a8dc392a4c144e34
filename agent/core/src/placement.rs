//! Where containers run: exclusive CPUs, NUMA memory and devices, and the NUMA nodes on which they are aligned.
//!
//! Terms (pkg/kubelet/cm/topologymanager, 1.36): a *hint provider* (CPUs, memory, devices) says for each resource on
//! which sets of NUMA nodes a container could be served, and which of them it *prefers*; the topology manager *merges*
//! the hints of all providers into one, and its policy says whether the container is admitted with it.

pub mod cpu_set;
pub mod machine;
pub mod numa_distances;
pub mod numa_mask;
pub mod topology;

pub mod assignments;
pub mod cpu_assignment;
pub mod cpu_static;
pub mod cpuset_order;
pub mod device;
pub mod hints;
pub mod memory;
pub mod merge;
pub mod node;
pub mod numa_zones;
pub mod topology_manager;

use crate::placement::numa_mask::NumaMask;

/// One way to serve a container: on these NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopologyHint {
    /// The nodes; `None` when any will do.
    pub mask: Option<NumaMask>,
    /// As few nodes as the provider could do with.
    pub preferred: bool,
}
