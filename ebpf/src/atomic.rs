//! Read-modify-write on map values, as the BPF instructions of the same names do it.
//!
//! Programs of different CPUs meet in the same map value, and on a preemptible kernel even two programs on one CPU do.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd, atomic_xchg};

/// Adds to a 64-bit word.
///
/// # Safety
/// `word` points into a map value and is 8-byte aligned.
#[inline(always)]
pub(crate) unsafe fn add(word: *mut u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, value) };
}

/// Adds to a 64-bit word and returns the sum.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn add_and_get(word: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller's promise.
    let was = unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(word, value) };
    was.wrapping_add(value)
}

/// Replaces a 64-bit word and returns what it was.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn swap(word: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(word, value) }
}

/// Replaces a 64-bit word if it still is `old`, and says whether it was.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn replace(word: *mut u64, old: u64, new: u64) -> bool {
    // SAFETY: the caller's promise.
    let (was, _) = unsafe {
        atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(word, old, new)
    };
    was == old
}

/// Raises a 64-bit word to `value`. Gives up after a few lost races, which only other raisers can win.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn raise(word: *mut u64, value: u64) {
    for _ in 0..4 {
        // SAFETY: the caller's promise.
        let old = unsafe { word.read_volatile() };
        // SAFETY: the caller's promise.
        if value <= old || unsafe { replace(word, old, value) } {
            return;
        }
    }
}

/// Takes the right to send a record: at most one caller per window gets `true`.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn claim_window(sent_ns: *mut u64, now_ns: u64, window_ns: u64) -> bool {
    // SAFETY: the caller's promise.
    let last_ns = unsafe { sent_ns.read_volatile() };
    // Zero: never sent. (`now` may be a little behind what another CPU wrote.)
    if last_ns != 0 && now_ns.saturating_sub(last_ns) < window_ns {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { replace(sent_ns, last_ns, now_ns) }
}
