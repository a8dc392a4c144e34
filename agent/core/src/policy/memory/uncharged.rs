//! Memory that no pod is charged for, and whether it takes what evictions give back. What follows from it: [`breaker`](crate::policy::memory::breaker).
//!
//! Problem: rings of packet sockets, a driver, a daemon of the node or the kernel itself can take memory that is in no pod's cgroup. What an evicted
//! pod gives back is gone at once, the threshold is met again, and pod after pod goes for memory that none of them has.
//!
//! Approach: what no pod is charged for is what the node has in use minus what the kubepods cgroup has, which is charged for all below it, be their
//! cgroups removed or not. It is compared with the first reading after an eviction for memory. Of that no figure depends on which pods were
//! read, and on the way to the first victim nothing is read for it.

use crate::model::event::{CgroupMemory, NodeMemory, Sample};
use crate::model::options::Availability;
use crate::model::signal::{Resource, Signal};
use crate::model::state::{Leaving, NodeState, Outside, Uncharged};
use crate::policy::memory::retained::FREED_PART;
use crate::policy::memory::usage_bounds::is_stale;

/// What a sample says of it; `None`: it lacks the kubepods cgroup, or its page cache is that of an earlier reading.
fn outside(sample: &Sample) -> Option<Outside> {
    let kubepods = sample.kubepods?;
    let is_known = sample.node.capacity_bytes > 0 && !is_kubepods_stale(&kubepods);
    is_known.then(|| Outside {
        working_set_bytes: working_set_bytes(&sample.node)
            .saturating_sub(kubepods.working_set_bytes()),
        kernel_bytes: in_use_bytes(&sample.node).saturating_sub(kubepods.unreclaimable_bytes()),
    })
}

/// Whether the figures of the kubepods cgroup are of different times.
pub(crate) fn is_kubepods_stale(kubepods: &CgroupMemory) -> bool {
    is_stale(kubepods.usage_bytes, kubepods.usage_at_stat_bytes)
}

/// As `memory.available` of the kubelet counts it.
fn working_set_bytes(node: &NodeMemory) -> u64 {
    let all = node.anon_bytes.saturating_add(node.file_bytes);
    all.saturating_sub(node.inactive_file_bytes)
}

/// As the kernel counts it. What pods have in swap in memory is theirs.
fn in_use_bytes(node: &NodeMemory) -> u64 {
    node.capacity_bytes
        .saturating_sub(node.kernel_available_bytes)
        .saturating_sub(node.compressed_swap.used_bytes)
}

/// Takes in what a sample says.
pub(crate) fn observe(state: &mut NodeState, sample: &Sample) {
    if let Some(known) = &mut state.uncharged {
        read(known, sample);
    }
}

/// The same, for a sample ahead.
pub(crate) fn read(known: &mut Uncharged, sample: &Sample) {
    if let Some(outside) = outside(sample) {
        known.before.get_or_insert(outside);
        known.now = Some(outside);
    }
}

/// Takes in that a pod has left which uses `used_bytes` now.
pub(crate) fn left(known: &mut Uncharged, leaving: &Leaving, used_bytes: u64) {
    if leaving.evicted_for == Some(Resource::Memory) {
        let freed_bytes = leaving.used_before_bytes.saturating_sub(used_bytes);
        known.freed_bytes = known.freed_bytes.saturating_add(freed_bytes);
    }
}

/// By how much it has grown in the sense of a signal, if that is a fifth of what evictions have given back, or more; or else 0. Less comes and goes on
/// any node.
pub(crate) fn taken_bytes(known: &Uncharged, signal: Signal, availability: Availability) -> u64 {
    let Some((before, now)) = known.before.zip(known.now) else {
        return 0;
    };
    let grown_bytes = match (signal, availability) {
        (Signal::MemoryAvailable, Availability::Kubelet) => now
            .working_set_bytes
            .saturating_sub(before.working_set_bytes),
        (Signal::MemoryAvailable, Availability::Reclaimable)
        | (Signal::KernelMemoryAvailable, _) => {
            now.kernel_bytes.saturating_sub(before.kernel_bytes)
        }
        // What pods may have together, or what one NUMA node has.
        _ => 0,
    };
    let has_taken = known.freed_bytes > 0 && grown_bytes >= known.freed_bytes / FREED_PART;
    if has_taken { grown_bytes } else { 0 }
}
