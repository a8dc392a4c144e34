//! Memory of the node and of its pods.
//!
//! One difference from the kubelet, and from `MemAvailable`: both count memory that is *lazily freed*
//! ([`page_cache`](crate::model::page_cache)) as page cache, so as available, though it may be in use. Here it counts
//! as used, of the node and of each pod. Without such memory the figures are the same.

use crate::model::event::NodeMemory;
use crate::model::options::Availability;
use crate::model::signal::row::{
    NodeCondition, Observation, Operator, Readings, Resource, Seen, Signal, SignalRow, Unit,
};

const ROW: SignalRow = SignalRow {
    signal: Signal::MemoryAvailable,
    name: "memory.available",
    unit: Unit::Bytes,
    operator: Operator::LessThan,
    condition: Some(NodeCondition::MemoryPressure),
    resource: Resource::Memory,
    kubelet: true,
    meaning: "node capacity minus the node's working set (anon + file - inactive_file)",
    observe: available,
};

/// `memory.available`.
pub(super) const AVAILABLE: SignalRow = ROW;

/// `allocatableMemory.available`.
pub(super) const ALLOCATABLE: SignalRow = SignalRow {
    signal: Signal::AllocatableMemoryAvailable,
    name: "allocatableMemory.available",
    meaning: "memory limit of the kubepods cgroup minus its working set",
    observe: allocatable,
    ..ROW
};

/// `kernelMemory.available`. Not the kubelet's: its own measure counts neither kernel memory nor the zone watermarks,
/// and still shows 140 MB when the kernel starts killing.
pub(super) const KERNEL: SignalRow = SignalRow {
    signal: Signal::KernelMemoryAvailable,
    name: "kernelMemory.available",
    kubelet: false,
    meaning: "MemAvailable + what free swap is worth: what the kernel can hand out before its OOM killer runs",
    observe: kernel,
    ..ROW
};

/// kubelet 1.36 on cgroup v2: opencontainers/cgroups fs2 rootStatsFromMeminfo says usage = anon + file; cAdvisor
/// subtracts inactive_file (floor 0); pkg/kubelet/eviction/helpers.go takes capacity as available + working set. Here
/// memory that is lazily freed is not subtracted with it: see the head.
fn available(readings: &Readings<'_>) -> Seen {
    let node = &readings.sample.node;
    // A sample without the node's memory says nothing about it.
    if node.capacity_bytes == 0 {
        return Seen::Missing;
    }
    Seen::Value(Observation {
        value: available_bytes(node, readings.swap_bytes, readings.availability),
        capacity: node.capacity_bytes,
        at_ns: Some(readings.at_ns),
    })
}

/// `memory.available` of the node, bytes; `swap_bytes` is what free swap is worth.
pub(crate) fn available_bytes(
    node: &NodeMemory,
    swap_bytes: u64,
    availability: Availability,
) -> u64 {
    match availability {
        Availability::Kubelet => {
            let working_set = node
                .anon_bytes
                .saturating_add(node.file_bytes)
                .saturating_sub(node.page_cache().inactive_bytes);
            node.capacity_bytes.saturating_sub(working_set)
        }
        // MemAvailable counts the page cache that can go, active or not, and the watermarks; anonymous memory can still
        // move to free swap, but no more of it than there is. tmpfs and shared memory, though in `Cached`, are on the
        // lists of anonymous pages and so in neither; that they could be swapped too is left out, as AnonPages leaves
        // them out.
        Availability::Reclaimable => node
            .left_bytes()
            .saturating_add(swap_bytes.min(node.anon_bytes)),
    }
}

/// pkg/kubelet/eviction/helpers.go makeSignalObservations: the "pods" system container, whose limit is the node's
/// allocatable memory without the eviction part.
fn allocatable(readings: &Readings<'_>) -> Seen {
    // A sample of the node, or of leaders, leaves out what no threshold is on.
    let is_part = !readings.sample.pods_read.is_all();
    if is_part && readings.sample.kubepods.is_none() {
        return Seen::NotRead;
    }
    let seen = readings.sample.kubepods.as_ref().and_then(|pods| {
        let limit = pods.limit_bytes?;
        let used = match readings.availability {
            Availability::Kubelet => pods.working_set_bytes(),
            // `active_file` and `inactive_file` are lists of pages too: tmpfs, which is in `file`, is not in them.
            Availability::Reclaimable => pods.unreclaimable_bytes(),
        };
        Some(Observation {
            value: limit.saturating_sub(used),
            capacity: limit,
            at_ns: Some(readings.at_ns),
        })
    });
    seen.into()
}

/// MemAvailable (mm/show_mem.c si_mem_available) subtracts the watermarks and the page cache that cannot go; anonymous
/// memory can still move to free swap, as far as it may and swap in memory wins something
/// ([`crate::policy::eviction::swap`]).
fn kernel(readings: &Readings<'_>) -> Seen {
    let node = &readings.sample.node;
    if node.capacity_bytes == 0 {
        return Seen::Missing;
    }
    Seen::Value(Observation {
        value: node.left_bytes().saturating_add(readings.swap_bytes),
        capacity: node.capacity_bytes.saturating_add(node.swap_total_bytes),
        at_ns: Some(readings.at_ns),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::{CgroupMemory, Sample};
    use crate::policy::eviction::swap::winnable_bytes;

    fn seen(
        observe: fn(&Readings<'_>) -> Seen,
        sample: &Sample,
        availability: Availability,
    ) -> Option<(u64, u64)> {
        match observe(&Readings {
            sample,
            at_ns: 7,
            availability,
            swap_bytes: winnable_bytes(&sample.node, u64::MAX),
        }) {
            Seen::Value(observation) => {
                assert_eq!(observation.at_ns, Some(7));
                Some((observation.value, observation.capacity))
            }
            Seen::Missing | Seen::NotRead => None,
        }
    }

    fn sample() -> Sample {
        Sample {
            node: NodeMemory {
                capacity_bytes: 1000,
                anon_bytes: 300,
                file_bytes: 200,
                inactive_file_bytes: 150,
                active_file_bytes: 40,
                free_bytes: 400,
                kernel_available_bytes: 450,
                swap_total_bytes: 100,
                swap_free_bytes: 60,
                ..NodeMemory::default()
            },
            kubepods: Some(CgroupMemory {
                usage_bytes: 400,
                inactive_file_bytes: 100,
                usage_at_stat_bytes: 400,
                active_file_bytes: 40,
                limit_bytes: Some(800),
                ..CgroupMemory::default()
            }),
            ..Sample::default()
        }
    }

    #[test]
    fn observations_follow_the_kubelets_formulas() {
        let sample = sample();
        let kubelet = Availability::Kubelet;
        assert_eq!(seen(available, &sample, kubelet), Some((650, 1000)));
        assert_eq!(seen(allocatable, &sample, kubelet), Some((500, 800)));
        assert_eq!(seen(kernel, &sample, kubelet), Some((510, 1100)));
    }

    #[test]
    fn reclaimable_counts_all_page_cache_and_usable_swap() {
        let mut sample = sample();
        let reclaimable = Availability::Reclaimable;
        assert_eq!(seen(available, &sample, reclaimable), Some((510, 1000)));
        assert_eq!(seen(allocatable, &sample, reclaimable), Some((540, 800)));
        sample.node.anon_bytes = 10;
        assert_eq!(seen(available, &sample, reclaimable), Some((460, 1000)));
    }

    #[test]
    fn what_is_lazily_freed_is_not_available() {
        let mut sample = sample();
        sample.node.lazily_freed_bytes = 120;
        if let Some(kubepods) = &mut sample.kubepods {
            kubepods.lazily_freed_bytes = 110;
        }
        let kubelet = Availability::Kubelet;
        assert_eq!(seen(available, &sample, kubelet), Some((530, 1000)));
        assert_eq!(seen(allocatable, &sample, kubelet), Some((400, 800)));
        assert_eq!(seen(kernel, &sample, kubelet), Some((390, 1100)));
        let reclaimable = Availability::Reclaimable;
        assert_eq!(seen(available, &sample, reclaimable), Some((390, 1000)));
        assert_eq!(seen(allocatable, &sample, reclaimable), Some((430, 800)));
    }

    #[test]
    fn what_was_not_read_is_not_observed() {
        let mut sample = Sample::default();
        let kubelet = Availability::Kubelet;
        assert_eq!(seen(available, &sample, kubelet), None);
        assert_eq!(seen(allocatable, &sample, kubelet), None);
        sample.kubepods = Some(CgroupMemory::default());
        assert_eq!(seen(allocatable, &sample, kubelet), None);
    }
}
