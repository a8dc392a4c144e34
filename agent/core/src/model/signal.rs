//! Eviction signals: what is watched, and how it is read from a sample.
//!
//! Problem: the kubelet spreads what it knows of one signal over five maps. Here a signal is one row of [`SIGNALS`]:
//! its name, unit and resource, the node condition that it raises and the function that observes it; parsing, ranking,
//! decisions and output all read the same row. A new signal is a row and an observing function in a file beside this one.
//!
//! Terms: an *observation* is what a signal shows at one instant, of what capacity, and when that was read. A *threshold*
//! ([`crate::model::threshold`]) is a value of a signal; most signals are dangerous below it, stalls above it.

pub mod memory;
pub mod numa;
pub mod pressure;
pub mod process;
pub mod storage;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::event::Sample;
use crate::model::options::Availability;
use crate::model::threshold::Operator;
use crate::policy::memory::rank::FileSystem;

/// A measure of the node that a threshold can be set on. The order is the order of [`SIGNALS`].
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

/// A condition on the node's status. Names as in the Kubernetes API.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum NodeCondition {
    /// The node is short of memory.
    MemoryPressure,
    /// The node is short of disk space or inodes.
    DiskPressure,
    /// The node is short of processes.
    #[serde(rename = "PIDPressure")]
    PidPressure,
}

impl NodeCondition {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::MemoryPressure, Self::DiskPressure, Self::PidPressure];

    /// The name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MemoryPressure => "MemoryPressure",
            Self::DiskPressure => "DiskPressure",
            Self::PidPressure => "PIDPressure",
        }
    }
}

impl fmt::Display for NodeCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a signal counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Inodes.
    Inodes,
    /// Processes and threads.
    Processes,
    /// A share of time, in hundredths of a percent.
    Share,
    /// Bytes per second.
    BytesPerSecond,
    /// Thousandths of a CPU.
    MilliCpus,
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

impl Resource {
    /// Whether it is about a file system.
    pub const fn is_disk(self) -> bool {
        matches!(self, Self::DiskBytes(_) | Self::DiskInodes(_))
    }
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
    /// What free swap is worth, bytes ([`crate::policy::memory::swap`]).
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

/// One row per signal, in the order of [`Signal`].
pub static SIGNALS: [SignalRow; COUNT] = [
    memory::AVAILABLE,
    memory::ALLOCATABLE,
    storage::NODEFS_AVAILABLE,
    storage::NODEFS_INODES,
    storage::IMAGEFS_AVAILABLE,
    storage::IMAGEFS_INODES,
    storage::CONTAINERFS_AVAILABLE,
    storage::CONTAINERFS_INODES,
    process::AVAILABLE,
    memory::KERNEL,
    numa::AVAILABLE,
    pressure::MEMORY_SOME_10,
    pressure::MEMORY_SOME_60,
    pressure::MEMORY_SOME_300,
    pressure::MEMORY_FULL_10,
    pressure::MEMORY_FULL_60,
    pressure::MEMORY_FULL_300,
    pressure::IO_SOME_10,
    pressure::IO_SOME_60,
    pressure::IO_SOME_300,
    pressure::IO_FULL_10,
    pressure::IO_FULL_60,
    pressure::IO_FULL_300,
    pressure::CPU_SOME_10,
    pressure::CPU_SOME_60,
    pressure::CPU_SOME_300,
];

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

impl Signal {
    /// The signal's row.
    pub fn row(self) -> &'static SignalRow {
        // The discriminants are 0..COUNT in the order of the table; a test holds both together.
        &SIGNALS[self as usize]
    }

    /// The signal with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        SIGNALS
            .iter()
            .find(|row| row.name == name)
            .map(|row| row.signal)
    }
}

impl From<Signal> for &'static str {
    fn from(signal: Signal) -> Self {
        signal.row().name
    }
}

impl TryFrom<String> for Signal {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::from_name(&name).ok_or_else(|| format!("{name:?} is no signal"))
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().name)
    }
}

/// The newest observation of each signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observations([Option<Observation>; COUNT]);

impl Default for Observations {
    fn default() -> Self {
        Self([None; COUNT])
    }
}

impl Observations {
    /// What a signal shows; `None` if that is not known.
    pub fn get(&self, signal: Signal) -> Option<Observation> {
        self.0[signal as usize]
    }

    /// Sets or removes an observation.
    pub fn set(&mut self, signal: Signal, observation: Option<Observation>) {
        self.0[signal as usize] = observation;
    }

    /// These, with what a sample says instead where it says something.
    pub fn updated(&self, readings: &Readings<'_>) -> Self {
        let mut updated = *self;
        for (row, observation) in SIGNALS.iter().zip(&mut updated.0) {
            match (row.observe)(readings) {
                Seen::NotRead => {}
                Seen::Missing => *observation = None,
                Seen::Value(seen) => *observation = Some(seen),
            }
        }
        updated
    }

    /// All that there are, in the order of [`SIGNALS`].
    pub fn iter(&self) -> impl Iterator<Item = (Signal, Observation)> {
        SIGNALS
            .iter()
            .zip(&self.0)
            .filter_map(|(row, observation)| Some((row.signal, (*observation)?)))
    }
}

impl Serialize for Observations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Observations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = BTreeMap::<Signal, Observation>::deserialize(deserializer)?;
        let mut observations = Self::default();
        for (signal, observation) in map {
            observations.set(signal, Some(observation));
        }
        Ok(observations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_enum() {
        for (index, row) in SIGNALS.iter().enumerate() {
            assert_eq!(row.signal as usize, index, "{}", row.name);
            assert_eq!(Signal::from_name(row.name), Some(row.signal));
            let text = serde_json::to_string(&row.signal).unwrap();
            assert_eq!(text, format!("\"{}\"", row.name));
            assert_eq!(serde_json::from_str::<Signal>(&text).unwrap(), row.signal);
        }
        assert_eq!(Signal::from_name("memory.free"), None);
        assert!(serde_json::from_str::<Signal>("\"memory.free\"").is_err());
    }

    #[test]
    fn observations_are_a_map_by_name() {
        let mut observations = Observations::default();
        observations.set(
            Signal::PidAvailable,
            Some(Observation {
                value: 1,
                capacity: 2,
                at_ns: Some(3),
            }),
        );
        let text = serde_json::to_string(&observations).unwrap();
        assert_eq!(
            text,
            r#"{"pid.available":{"value":1,"capacity":2,"at_ns":3}}"#
        );
        assert_eq!(
            serde_json::from_str::<Observations>(&text).unwrap(),
            observations
        );
    }
}
