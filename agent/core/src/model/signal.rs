//! Eviction signals: what is watched, and how it is read from a sample.
//!
//! Problem: the kubelet spreads what it knows of one signal over five maps. Here a signal is one row of [`SIGNALS`]:
//! its name, unit and resource, the node condition that it raises and the function that observes it; parsing, ranking,
//! decisions and output all read the same row. A new signal is a row and an observing function in a file beside this
//! one.
//!
//! Terms: an *observation* is what a signal shows at one instant, of what capacity, and when that was read. A
//! *threshold* ([`crate::model::threshold`]) is a value of a signal; most signals are dangerous below it, stalls above
//! it.

pub mod memory;
pub mod numa;
pub mod pressure;
pub mod process;
mod row;
pub mod storage;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use row::{
    COUNT, NodeCondition, Observation, Operator, Readings, Resource, Seen, Signal, SignalRow, Unit,
};

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

    /// These, with what was seen after disk space had been freed, which has the times of these: `synchronize` keeps its
    /// first readings as the last ones (`lastObservations`), so that the next readings are new if they are newer than
    /// the first.
    pub fn after_freeing(&self, seen: &Self) -> Self {
        let mut after = *self;
        for (first, seen) in after.0.iter_mut().zip(&seen.0) {
            if let Some(seen) = seen {
                let at_ns = first.and_then(|first| first.at_ns);
                *first = Some(Observation { at_ns, ..*seen });
            }
        }
        after
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

    #[test]
    fn readings_after_disk_space_was_freed_are_as_old_as_the_first() {
        let seen = |value, at_ns| {
            Some(Observation {
                value,
                capacity: 9,
                at_ns,
            })
        };
        let of = |disk, inodes, image| {
            let mut observations = Observations::default();
            observations.set(Signal::NodefsAvailable, disk);
            observations.set(Signal::NodefsInodesFree, inodes);
            observations.set(Signal::ImagefsAvailable, image);
            observations
        };
        let first = of(seen(1, Some(10)), None, seen(3, Some(10)));
        let after = first.after_freeing(&of(seen(5, Some(20)), seen(6, Some(20)), None));
        assert_eq!(
            after,
            of(seen(5, Some(10)), seen(6, None), seen(3, Some(10)))
        );
    }
}
