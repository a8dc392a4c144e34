//! CPU bandwidth throttling: which cgroup, how often, how long.
//!
//! A run queue (`cfs_rq`, one per CPU and cgroup) is throttled when its cgroup's quota is used up, and resumed at a later
//! period. The pair is matched by the run queue's address. On 7.2 `throttle_cfs_rq` is an attempt that may fail, so only
//! a true return value counts. Both run under the run-queue lock: nothing here sleeps or allocates, and nothing wakes
//! the agent.

use aya_ebpf::{
    helpers::bpf_ktime_get_ns,
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};
use plimsoll_abi::{Kind, Throttle, throttle_phase, throttle_totals};

use crate::{
    atomic,
    layout::{config, css_cgroup_id, load_ptr, offset},
    maps::{THROTTLE, THROTTLED},
    record::{count_untracked, header, send_pressure},
};

/// On exit of `bool throttle_cfs_rq(struct cfs_rq *cfs_rq)`.
#[fexit(function = "throttle_cfs_rq")]
pub fn throttle_start(ctx: FExitContext) -> u32 {
    // A bool is defined in its low byte only.
    if ctx.ret::<u64>().unwrap_or(0) & 0xff == 0 {
        return 0;
    }
    let cfs_rq: *const u8 = ctx.arg(0);
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if THROTTLED.insert(cfs_rq as u64, now_ns, 0).is_err() {
        count_untracked();
    }
    // SAFETY: a typed argument.
    let cgroup_id = unsafe { owner(cfs_rq) };
    let Some(totals) = totals(cgroup_id) else {
        return 0;
    };
    // SAFETY: a map value of `throttle_totals::WORDS` words.
    if unsafe {
        atomic::claim_window(
            &raw mut (*totals)[throttle_totals::START_SENT_NS],
            now_ns,
            config!(window_ns),
        )
    } {
        // SAFETY: as above.
        unsafe { send(cgroup_id, throttle_phase::START, totals) };
    }
    0
}

/// On entry of `void unthrottle_cfs_rq(struct cfs_rq *cfs_rq)`. Runs in a timer: the current task is not the victim.
#[fentry(function = "unthrottle_cfs_rq")]
pub fn throttle_stop(ctx: FEntryContext) -> u32 {
    let cfs_rq: *const u8 = ctx.arg(0);
    let key = cfs_rq as u64;
    // SAFETY: the value is copied at once; only the program for the same run queue, under the same lock, writes it.
    let Some(since_ns) = (unsafe { THROTTLED.get(key) }).copied() else {
        // Throttled before the programs were attached.
        return 0;
    };
    let _ = THROTTLED.remove(key);
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let duration_ns = now_ns.saturating_sub(since_ns);
    // SAFETY: a typed argument.
    let cgroup_id = unsafe { owner(cfs_rq) };
    let Some(totals) = totals(cgroup_id) else {
        return 0;
    };
    // SAFETY: a map value of `throttle_totals::WORDS` words, throughout.
    unsafe {
        atomic::add(&raw mut (*totals)[throttle_totals::COUNT], 1);
        atomic::add(&raw mut (*totals)[throttle_totals::SUM_NS], duration_ns);
        atomic::raise(&raw mut (*totals)[throttle_totals::MAX_NS], duration_ns);
        if atomic::claim_window(
            &raw mut (*totals)[throttle_totals::STOP_SENT_NS],
            now_ns,
            config!(window_ns),
        ) {
            send(cgroup_id, throttle_phase::STOP, totals);
        }
    }
    0
}

/// The cgroup that a run queue belongs to.
///
/// # Safety
/// `cfs_rq` is typed.
#[inline(always)]
unsafe fn owner(cfs_rq: *const u8) -> u64 {
    // SAFETY: typed members of a typed pointer.
    let group = unsafe { load_ptr(cfs_rq, offset!(cfs_rq_tg)) };
    // SAFETY: as above.
    unsafe { css_cgroup_id(group, offset!(tg_css)) }
}

#[inline(always)]
fn totals(cgroup_id: u64) -> Option<*mut [u64; throttle_totals::WORDS]> {
    if let Some(totals) = THROTTLE.get_ptr_mut(cgroup_id) {
        return Some(totals);
    }
    // Another CPU may be first: either way the entry is there afterwards, unless the map is full.
    let _ = THROTTLE.insert(cgroup_id, [0; throttle_totals::WORDS], 1);
    let totals = THROTTLE.get_ptr_mut(cgroup_id);
    if totals.is_none() {
        count_untracked();
    }
    totals
}

/// # Safety
/// `totals` is a map value.
#[inline(always)]
unsafe fn send(cgroup_id: u64, phase: u32, totals: *mut [u64; throttle_totals::WORDS]) {
    send_pressure(Kind::Throttle, |record: *mut Throttle| {
        // SAFETY: `record` is reserved for this type, `totals` is the caller's promise.
        unsafe {
            record.write(Throttle {
                header: header(Kind::Throttle, cgroup_id),
                count: (*totals)[throttle_totals::COUNT],
                sum_ns: (*totals)[throttle_totals::SUM_NS],
                max_ns: (*totals)[throttle_totals::MAX_NS],
                phase,
                pad: 0,
            });
        }
    });
}
