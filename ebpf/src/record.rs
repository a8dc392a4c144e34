//! Sending records, and counting those that could not be sent.

use aya_ebpf::{
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    maps::RingBuf,
};
use plimsoll_abi::{ABI_VERSION, Header, Kind, UNTRACKED, dropped, produced};

use crate::{
    atomic,
    maps::{COUNTS, CRITICAL, PRESSURE},
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
/// `fill` writes every field of the reserved record.
#[inline(always)]
pub(crate) fn send_critical<T: 'static>(kind: Kind, fill: impl FnOnce(*mut T)) -> bool {
    send(&CRITICAL, u64::from(BPF_RB_FORCE_WAKEUP), kind, fill)
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
