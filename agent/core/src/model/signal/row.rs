//! What a signal is: its row, and the words that the row is made of.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::model::amount::Unit;
use crate::model::event::Sample;
use crate::model::file_system::FileSystem;
use crate::model::options::Availability;

/// On which side of a threshold's value a signal is dangerous.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operator {
    /// Below it: something runs out.
    LessThan,
    /// Above it: something piles up.
    GreaterThan,
    /// On neither: the kubelet's copy of a threshold that does not exist (`""`).
    Never,
}

/// A measure of the node that a threshold can be set on. The order is the order of [`SIGNALS`](super::SIGNALS).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum Signal {
    /// `memory.available`: capacity minus the node's working set, as the kubelet computes it.
    MemoryAvailable,
    /// `allocatableMemory.available`: what pods may still use of the node's allocatable memory.
    AllocatableMemoryAvailable,
    /// `nodefs.available`: bytes free on the file system of the kubelet's directory.
    NodefsAvailable,
    /// `nodefs.inodesFree`.
    NodefsInodesFree,
    /// `imagefs.available`: bytes free on the file system of images.
    ImagefsAvailable,
    /// `imagefs.inodesFree`.
    ImagefsInodesFree,
    /// `containerfs.available`: bytes free on the file system of writable layers.
    ContainerfsAvailable,
    /// `containerfs.inodesFree`.
    ContainerfsInodesFree,
    /// `pid.available`: processes and threads that can still be made.
    PidAvailable,
    /// `kernelMemory.available`: what the kernel can still hand out before its OOM killer runs.
    KernelMemoryAvailable,
    /// `numaMemory.available`: `memory.available` of the NUMA node that has the least.
    NumaMemoryAvailable,
    /// `memoryPressure.some.avg10` and so on: shares of time in which tasks waited.
    MemorySome10,
    /// Over 60 s.
    MemorySome60,
    /// Over 300 s.
    MemorySome300,
    /// `memoryPressure.full.avg10`: all tasks waited.
    MemoryFull10,
    /// Over 60 s.
    MemoryFull60,
    /// Over 300 s.
    MemoryFull300,
    /// `ioPressure.some.avg10`.
    IoSome10,
    /// Over 60 s.
    IoSome60,
    /// Over 300 s.
    IoSome300,
    /// `ioPressure.full.avg10`.
    IoFull10,
    /// Over 60 s.
    IoFull60,
    /// Over 300 s.
    IoFull300,
    /// `cpuPressure.some.avg10`. The kernel has no `full` for the CPU of a whole machine.
    CpuSome10,
    /// Over 60 s.
    CpuSome60,
    /// Over 300 s.
    CpuSome300,
}

/// How many signals there are.
pub const COUNT: usize = Signal::CpuSome300 as usize + 1;

/// A condition on the node's status. Names as in the Kubernetes API, but for [`Self::Stalled`], which the kubelet does
/// not have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum NodeCondition {
    /// The node is short of memory.
    MemoryPressure,
    /// The node is short of disk space or inodes.
    DiskPressure,
    /// The node is short of processes.
    #[serde(rename = "PIDPressure")]
    PidPressure,
    /// Processes wait for a disk or a CPU.
    Stalled,
}

impl NodeCondition {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::MemoryPressure,
        Self::DiskPressure,
        Self::PidPressure,
        Self::Stalled,
    ];

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MemoryPressure => "MemoryPressure",
            Self::DiskPressure => "DiskPressure",
            Self::PidPressure => "PIDPressure",
            Self::Stalled => "Stalled",
        }
    }
}

impl fmt::Display for NodeCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What runs out, and so what pods are ranked by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Memory.
    Memory,
    /// Bytes of a file system.
    DiskBytes(FileSystem),
    /// Inodes of a file system.
    DiskInodes(FileSystem),
    /// Processes.
    Processes,
    /// Disk bandwidth.
    Io,
    /// CPU time.
    Cpu,
}

/// What a signal shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Observation {
    /// What is still available (stalls: the share of time), in the signal's unit.
    pub value: u64,
    /// How much there is in all; what a percentage threshold is a percentage of.
    pub capacity: u64,
    /// When it was read, nanoseconds. `None`: not known, and taken as new each time, as the kubelet takes a zero time.
    pub at_ns: Option<u64>,
}

/// What a sample says of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// This sample did not look: the last observation stands.
    NotRead,
    /// It looked and there is nothing to see.
    Missing,
    /// This.
    Value(Observation),
}

impl From<Option<Observation>> for Seen {
    fn from(observation: Option<Observation>) -> Self {
        observation.map_or(Self::Missing, Self::Value)
    }
}

/// What an observing function gets.
#[derive(Clone, Copy, Debug)]
pub struct Readings<'a> {
    /// The sample.
    pub sample: &'a Sample,
    /// When its memory was read, nanoseconds.
    pub at_ns: u64,
    /// What counts as available memory.
    pub availability: Availability,
    /// What free swap is worth, bytes ([`crate::policy::eviction::swap`]).
    pub swap_bytes: u64,
}

/// Everything that is known of one signal.
pub struct SignalRow {
    /// The signal.
    pub signal: Signal,
    /// Its name in configuration, output and metrics.
    pub name: &'static str,
    /// What it counts in.
    pub unit: Unit,
    /// On which side of a threshold it is dangerous.
    pub operator: Operator,
    /// The condition that it raises.
    pub condition: Option<NodeCondition>,
    /// What runs out.
    pub resource: Resource,
    /// Whether the kubelet knows it.
    pub kubelet: bool,
    /// What it measures, for people.
    pub meaning: &'static str,
    /// Reads it from a sample.
    pub observe: fn(&Readings<'_>) -> Seen,
}

impl SignalRow {
    /// What pods' usage is counted in when they are ranked for this signal.
    pub const fn usage_unit(&self) -> Unit {
        match self.resource {
            Resource::Memory | Resource::DiskBytes(_) => Unit::Bytes,
            Resource::DiskInodes(_) => Unit::Inodes,
            Resource::Processes => Unit::Processes,
            Resource::Io => Unit::BytesPerSecond,
            Resource::Cpu => Unit::MilliCpus,
        }
    }
}
