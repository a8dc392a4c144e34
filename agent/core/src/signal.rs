//! Eviction signals: what is watched, and how it is read from a sample.
//!
//! Problem: the kubelet spreads what it knows of one signal over five maps. Here a signal is one row of [`SIGNALS`]:
//! its name, the node condition that it raises and the function that observes it; parsing, decisions and output all read the
//! same row.
//!
//! Terms: an *observation* is what a signal shows at one instant (available and capacity, in bytes). A *signal* falls
//! below a *threshold*; see [`crate::threshold`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::event::Sample;

/// A measure of the node that a threshold can be set on. The order is the order of [`SIGNALS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Signal {
    /// `memory.available`: capacity minus the node's working set, as the kubelet computes it.
    #[serde(rename = "memory.available")]
    MemoryAvailable,
    /// `allocatableMemory.available`: what pods may still use of the node's allocatable memory.
    #[serde(rename = "allocatableMemory.available")]
    AllocatableMemoryAvailable,
    /// `kernelMemory.available`: what the kernel can still hand out before its OOM killer runs.
    #[serde(rename = "kernelMemory.available")]
    KernelMemoryAvailable,
}

/// A condition on the node's status. Names as in the Kubernetes API.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum NodeCondition {
    /// The node is short of memory.
    MemoryPressure,
}

/// What a signal shows in one sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Observation {
    /// Bytes still available.
    pub available_bytes: u64,
    /// Bytes in all; what a percentage threshold is a percentage of.
    pub capacity_bytes: u64,
}

/// Everything that is known of one signal.
pub struct SignalRow {
    /// The signal.
    pub signal: Signal,
    /// Its name in configuration, output and metrics.
    pub name: &'static str,
    /// The condition that it raises.
    pub condition: NodeCondition,
    /// What it measures, for people.
    pub meaning: &'static str,
    /// Reads it from a sample; `None` when the sample lacks what it needs.
    pub observe: fn(&Sample) -> Option<Observation>,
}

/// One row per signal, in the order of [`Signal`].
pub static SIGNALS: [SignalRow; 3] = [
    SignalRow {
        signal: Signal::MemoryAvailable,
        name: "memory.available",
        condition: NodeCondition::MemoryPressure,
        meaning: "node capacity minus the node's working set (anon + file - inactive_file)",
        // kubelet 1.36 on cgroup v2: opencontainers/cgroups fs2 rootStatsFromMeminfo says usage = anon + file; cAdvisor
        // subtracts inactive_file (floor 0); pkg/kubelet/eviction/helpers.go takes capacity as available + working set.
        observe: |sample| {
            let node = &sample.node;
            let working_set =
                (node.anon_bytes + node.file_bytes).saturating_sub(node.inactive_file_bytes);
            Some(Observation {
                available_bytes: node.capacity_bytes.saturating_sub(working_set),
                capacity_bytes: node.capacity_bytes,
            })
        },
    },
    SignalRow {
        signal: Signal::AllocatableMemoryAvailable,
        name: "allocatableMemory.available",
        condition: NodeCondition::MemoryPressure,
        meaning: "memory limit of the kubepods cgroup minus its working set",
        // pkg/kubelet/eviction/helpers.go makeSignalObservations: the "pods" system container, whose limit is the node's
        // allocatable memory without the eviction part.
        observe: |sample| {
            let pods = sample.kubepods.as_ref()?;
            let limit = pods.limit_bytes?;
            Some(Observation {
                available_bytes: limit.saturating_sub(pods.working_set_bytes()),
                capacity_bytes: limit,
            })
        },
    },
    SignalRow {
        signal: Signal::KernelMemoryAvailable,
        name: "kernelMemory.available",
        condition: NodeCondition::MemoryPressure,
        meaning: "MemAvailable + SwapFree: what the kernel can hand out before its OOM killer runs",
        // Not the kubelet's. Its own measure counts neither kernel memory nor the zone watermarks, and still shows 140 MB
        // when the kernel starts killing. MemAvailable (mm/show_mem.c si_mem_available) subtracts the watermarks and the
        // page cache that cannot go; anonymous memory can still move to free swap.
        observe: |sample| {
            let node = &sample.node;
            Some(Observation {
                available_bytes: node.kernel_available_bytes + node.swap_free_bytes,
                capacity_bytes: node.capacity_bytes + node.swap_total_bytes,
            })
        },
    },
];

impl Signal {
    /// The signal's row.
    pub fn row(self) -> &'static SignalRow {
        // The discriminants are 0..SIGNALS.len() in the order of the table; a test holds both together.
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

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Cause, CgroupMemory, NodeMemory};

    #[test]
    fn rows_stand_in_the_order_of_the_enum() {
        for (index, row) in SIGNALS.iter().enumerate() {
            assert_eq!(row.signal as usize, index);
            assert_eq!(Signal::from_name(row.name), Some(row.signal));
            assert_eq!(
                serde_json::to_string(&row.signal).unwrap(),
                format!("\"{}\"", row.name)
            );
        }
        assert_eq!(Signal::from_name("memory.free"), None);
    }

    #[test]
    fn observations_follow_the_kubelets_formulas() {
        let sample = Sample {
            cause: Cause::Timer,
            node: NodeMemory {
                capacity_bytes: 1000,
                anon_bytes: 300,
                file_bytes: 200,
                inactive_file_bytes: 150,
                free_bytes: 400,
                kernel_available_bytes: 450,
                swap_total_bytes: 100,
                swap_free_bytes: 60,
            },
            kubepods: Some(CgroupMemory {
                usage_bytes: 400,
                inactive_file_bytes: 100,
                usage_at_stat_bytes: 400,
                limit_bytes: Some(800),
            }),
            charged_bytes: None,
            pods: Vec::new(),
        };
        let seen = |signal: Signal| (signal.row().observe)(&sample).unwrap();
        assert_eq!(
            seen(Signal::MemoryAvailable),
            Observation {
                available_bytes: 650,
                capacity_bytes: 1000
            }
        );
        assert_eq!(
            seen(Signal::AllocatableMemoryAvailable),
            Observation {
                available_bytes: 500,
                capacity_bytes: 800
            }
        );
        assert_eq!(
            seen(Signal::KernelMemoryAvailable),
            Observation {
                available_bytes: 510,
                capacity_bytes: 1100
            }
        );
    }

    #[test]
    fn allocatable_is_unknown_without_a_limit() {
        let mut sample = Sample::default();
        assert_eq!(
            (Signal::AllocatableMemoryAvailable.row().observe)(&sample),
            None
        );
        sample.kubepods = Some(CgroupMemory {
            usage_bytes: 1,
            inactive_file_bytes: 0,
            usage_at_stat_bytes: 1,
            limit_bytes: None,
        });
        assert_eq!(
            (Signal::AllocatableMemoryAvailable.row().observe)(&sample),
            None
        );
    }
}
