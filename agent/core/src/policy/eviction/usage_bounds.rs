//! What a pod uses at least and at most, as far as its figures are old.
//!
//! A reading of `memory.stat` is *recent* for [`STAT_AGE_MAX_MS`]. Then
//!
//! - recent, and usage has hardly moved since ([`STALE_BYTES`]): a fact;
//! - recent, and usage has moved: all by which it moved may be inactive file pages, or none of it. So what the pod uses
//!   is between the smaller and the larger usage of the two, minus the inactive file pages of then; and not above its
//!   usage;
//! - older: anything up to its usage, though usage stood still. A cgroup at its limit replaces page cache by anonymous
//!   memory, or the reverse, and its usage stays what it was;
//! - in any case not less than its usage minus the page cache of the node, which is read with each sample; but of a pod
//!   that requests huge pages any of its usage may be such pages by now.
//!
//! What its cgroup is not charged for is in all of these.

use crate::kube::pod::Pod;
use crate::model::event::{NodeMemory, PodMemory};
use crate::model::options::Availability;

/// Usage may move this far before the inactive file pages of the last full reading count as old.
pub const STALE_BYTES: u64 = 4 << 20;

/// They count as old after this time in any case, milliseconds.
pub const STAT_AGE_MAX_MS: u32 = 1000;

pub(super) fn is_stale(usage_bytes: u64, usage_at_stat_bytes: u64) -> bool {
    usage_bytes.abs_diff(usage_at_stat_bytes) >= STALE_BYTES
}

fn is_recent(memory: &PodMemory) -> bool {
    memory.stat_age_ms <= STAT_AGE_MAX_MS
}

pub(super) fn is_stale_pod(memory: &PodMemory) -> bool {
    !is_recent(memory) || is_stale(memory.usage_bytes, memory.usage_at_stat_bytes)
}

/// What a pod uses at least, as far as its figures are old.
pub(super) fn least_used_bytes(
    pod: &Pod,
    memory: &PodMemory,
    node: &NodeMemory,
    availability: Availability,
) -> u64 {
    // Not more of its usage is page cache than the node has.
    let all_cache = PodMemory {
        inactive_file_bytes: u64::MAX,
        active_file_bytes: u64::MAX,
        lazily_freed_bytes: 0,
        ..memory.clone()
    };
    let by_node = match pod.requests_huge_pages() {
        true => memory.uncharged_bytes,
        false => all_cache.limited(node).used_bytes(availability),
    };
    if !is_recent(memory) {
        return by_node;
    }
    let by_stat = memory
        .usage_bytes
        .min(memory.usage_at_stat_bytes)
        .saturating_sub(memory.unused_bytes(availability))
        .saturating_add(memory.uncharged_bytes);
    by_stat.max(by_node)
}

/// What a pod uses at most, as far as its figures are old.
pub(crate) fn most_used_bytes(memory: &PodMemory, availability: Availability) -> u64 {
    if !is_stale_pod(memory) {
        return memory.used_bytes(availability);
    }
    let charged_bytes = match is_recent(memory) {
        true => memory
            .usage_bytes
            .max(memory.usage_at_stat_bytes)
            .saturating_sub(memory.unused_bytes(availability))
            .min(memory.usage_bytes),
        false => memory.usage_bytes,
    };
    charged_bytes.saturating_add(memory.uncharged_bytes)
}
