//! Why a description is no machine.

use super::VERSION;
use crate::placement::cpu_set::CpuSetError;
use crate::placement::numa_mask::NUMA_NODES_MAX;
use crate::placement::topology::TopologyError;

/// Why a description is no machine. Each names the field, the CPU or the node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// A field that must be there.
    #[error("{field}: is missing")]
    Missing {
        /// Its path, as `cores[2].socket`.
        field: String,
    },
    /// A field that does not exist.
    #[error("{field}: unknown field; known are {known}")]
    Unknown {
        /// Its path.
        field: String,
        /// Those that exist there.
        known: String,
    },
    /// The same field twice.
    #[error("{field}: is there twice")]
    Repeated {
        /// Its path.
        field: String,
    },
    /// A value of another kind, or out of range.
    #[error("{field}: expected {expected}, found {found}")]
    Expected {
        /// Its path.
        field: String,
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// No list of CPUs.
    #[error("{field}: {error}")]
    Cpus {
        /// Its path.
        field: String,
        /// What is wrong with the list.
        error: CpuSetError,
    },
    /// Threads that do not pair up to cores.
    #[error(
        "{field}: {found} CPUs, but {wanted} in threads[0]; the n-th CPUs of all lists are the n-th core"
    )]
    UnevenThreads {
        /// Path of the list.
        field: String,
        /// How many it has.
        found: u32,
        /// How many the first one has.
        wanted: u32,
    },
    /// A format of another release.
    #[error("version: {found} is not known; this release reads version {VERSION}")]
    Version {
        /// What is there.
        found: u64,
    },
    /// A CPU of two cores.
    #[error("CPU {cpu} is in two cores")]
    CpuTwice {
        /// Its number.
        cpu: u32,
    },
    /// A core without CPU numbers.
    #[error("a core of socket {socket:?} has no CPU")]
    NoThread {
        /// Where it is.
        socket: Option<u32>,
    },
    /// Rows of CPUs that say different things of one core.
    #[error("CPU {cpu} is said to be in another {what} than CPU {core}, which is in the same core")]
    SplitCore {
        /// Its number.
        cpu: u32,
        /// The lowest CPU of its core.
        core: u32,
        /// Socket, NUMA node or uncore cache.
        what: &'static str,
    },
    /// A core that is not numbered as the kubelet does it.
    #[error(
        "core {core}: the kubelet numbers a core by its lowest online CPU, which is {lowest} here"
    )]
    CoreNumber {
        /// The number that was given.
        core: u32,
        /// What it should be.
        lowest: u32,
    },
    /// An online CPU of no socket.
    #[error("CPU {cpu} is online, but its socket is missing")]
    NoSocket {
        /// Its number.
        cpu: u32,
    },
    /// A core on a node that is not there.
    #[error("CPU {cpu} is on NUMA node {node}, which is not among the nodes")]
    NoNode {
        /// Its number.
        cpu: u32,
        /// Its node.
        node: u32,
    },
    /// A node twice.
    #[error("NUMA node {node} is there twice")]
    NodeTwice {
        /// Its number.
        node: u32,
    },
    /// Beyond [`NUMA_NODES_MAX`].
    #[error("NUMA node {node} is beyond {max}, the highest that is supported", max = NUMA_NODES_MAX - 1)]
    NodeTooHigh {
        /// Its number.
        node: u32,
    },
    /// Huge pages of one size twice, or of no size.
    #[error("NUMA node {node}: huge pages of {page_bytes} bytes {wrong}")]
    HugePages {
        /// The node.
        node: u32,
        /// The size.
        page_bytes: u64,
        /// What is wrong.
        wrong: &'static str,
    },
    /// A row of distances that is too short or too long.
    #[error("NUMA node {node}: {found} distances, but there are {nodes} nodes")]
    Distances {
        /// The node.
        node: u32,
        /// How many it has.
        found: usize,
        /// How many there must be.
        nodes: usize,
    },
    /// Uncore caches are given of some cores only.
    #[error("CPU {cpu} has no uncore cache, but others have; give it of all or of none")]
    NoUncore {
        /// A CPU without.
        cpu: u32,
    },
    /// No CPU that is online, or nothing that the kubelet could place on.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}
