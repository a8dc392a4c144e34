//! Sending records, and counting those that could not be sent.
//!
//! Three rings, so that a flood in one does not fill another: what leads to a decision, what comes and
//! goes, what is aggregated.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    maps::RingBuf,
};
use plimsoll_abi::{
    ABI_VERSION, CRITICAL_BYTES, CRITICAL_SHARED_BYTES, Header, Kind, RING_HEADER_BYTES, UNTRACKED,
    dropped, folded, produced,
};

use crate::{
    atomic,
    maps::{COUNTS, CRITICAL, LIFECYCLE, PRESSURE},
};

/// Adds one to a per-CPU counter. Atomic, because a program can be preempted by another one on the same CPU.
#[inline(always)]
fn count(index: u32) {
    if let Some(word) = COUNTS.get_ptr_mut(index) {
        // SAFETY: a map value.
        unsafe { atomic::add(word, 1) };
    }
}

/// Counts something that found its map full.
#[inline(always)]
pub(crate) fn count_untracked() {
    count(UNTRACKED);
}

/// Counts an event that got no record because its cgroup's totals have it.
#[inline(always)]
pub(crate) fn count_folded(kind: Kind) {
    count(folded(kind));
}

#[inline(always)]
fn send<T: 'static>(ring: &RingBuf, flags: u64, kind: Kind, fill: impl FnOnce(*mut T)) -> bool {
    count(produced(kind));
    match ring.reserve::<T>(0) {
        Some(mut entry) => {
            fill(entry.as_mut_ptr());
            entry.submit(flags);
            true
        }
        None => {
            count(dropped(kind));
            false
        }
    }
}

/// Sends a record that the agent should see now. `false` when the ring was full (counted).
///
/// Only for what the agent has asked for, once each, or after [`critical_has_room`].
/// `fill` writes every field of the reserved record.
#[inline(always)]
pub(crate) fn send_critical<T: 'static>(kind: Kind, fill: impl FnOnce(*mut T)) -> bool {
    send(&CRITICAL, u64::from(BPF_RB_FORCE_WAKEUP), kind, fill)
}

/// Whether there is room for a record that the agent has not asked for. The rest of the ring is kept for those that it
/// has.
#[inline(always)]
pub(crate) fn critical_has_room() -> bool {
    CRITICAL.query(u64::from(BPF_RB_AVAIL_DATA)) < u64::from(CRITICAL_SHARED_BYTES)
}

/// Whether there is room for a record that the agent has asked for. Another CPU may be faster.
#[inline(always)]
pub(crate) fn critical_has_room_for<T: 'static>() -> bool {
    let record_bytes = (size_of::<T>() + RING_HEADER_BYTES).next_multiple_of(8);
    let waiting_bytes = CRITICAL.query(u64::from(BPF_RB_AVAIL_DATA));
    waiting_bytes + (record_bytes as u64) < u64::from(CRITICAL_BYTES)
}

/// Sends an urgent record that the agent has not asked for. `false` when such records have filled their part of the
/// ring (counted).
#[inline(always)]
pub(crate) fn send_critical_unasked<T: 'static>(kind: Kind, fill: impl FnOnce(*mut T)) -> bool {
    if critical_has_room() {
        return send_critical(kind, fill);
    }
    count(produced(kind));
    count(dropped(kind));
    false
}

/// Sends a record about cgroups or processes that come or go. `false` when the ring was full (counted).
#[inline(always)]
pub(crate) fn send_lifecycle<T: 'static>(kind: Kind, fill: impl FnOnce(*mut T)) -> bool {
    // The kernel's own rule: a wakeup when the agent has read everything before. In a flood that is seldom.
    send(&LIFECYCLE, 0, kind, fill)
}

/// Sends a record that can wait for the agent's next look. `false` when the ring was full (counted).
#[inline(always)]
pub(crate) fn send_pressure<T: 'static>(kind: Kind, fill: impl FnOnce(*mut T)) -> bool {
    send(&PRESSURE, u64::from(BPF_RB_NO_WAKEUP), kind, fill)
}

/// The common part of a record about `cgroup_id`, stamped now.
#[inline(always)]
pub(crate) fn header(kind: Kind, cgroup_id: u64) -> Header {
    Header {
        // SAFETY: helpers without arguments.
        ts_ns: unsafe { bpf_ktime_get_ns() },
        cgroup_id,
        kind: kind.number(),
        abi_version: ABI_VERSION,
        // SAFETY: as above.
        cpu: unsafe { bpf_get_smp_processor_id() },
    }
}
