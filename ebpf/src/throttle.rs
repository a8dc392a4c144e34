//! CPU bandwidth throttling: which cgroup, how often, how long.
//!
//! A run queue (`cfs_rq`, one per CPU and cgroup) is throttled when its cgroup's quota is used up, and resumed at a
//! later period. On 7.2 `throttle_cfs_rq` is an attempt that may fail, so only a true return value counts; and there it
//! only arms: each task is taken off its CPU when it returns to user space, and the kernel's own clock
//! (`cfs_rq.throttled_clock`) starts with the last of them, which on a busy machine is a good deal later. So the
//! duration is the kernel's: that clock is read when `unthrottle_cfs_rq` begins, and the CPU's (`rq.clock`) when it
//! ends, which has been brought up to date in between. It is what goes into `throttled_usec`, on every kernel, also for
//! a throttle that began before the programs were attached.
//!
//! All of it runs under the run-queue lock with interrupts off: nothing here sleeps or allocates, and nothing wakes the
//! agent.

use aya_ebpf::{
    helpers::bpf_ktime_get_ns,
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};
use plimsoll_abi::{Kind, Throttle, throttle_phase, throttle_totals};

use crate::{
    atomic,
    counted::counted_id,
    layout::{config, css_cgroup, load_ptr, load_u64, offset},
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
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: a typed argument.
    let Some((cgroup_id, totals)) = (unsafe { owner(ctx.arg(0)) }).and_then(totals) else {
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
pub fn throttle_stop_begin(ctx: FEntryContext) -> u32 {
    if let Some(since_ns) = THROTTLED.get_ptr_mut(0) {
        // SAFETY: this CPU's value, which nothing else touches until the function ends; a typed member of a typed
        // argument.
        unsafe { *since_ns = load_u64(ctx.arg(0), offset!(cfs_rq_throttled_clock)) };
    }
    0
}

/// On exit of `unthrottle_cfs_rq`.
#[fexit(function = "unthrottle_cfs_rq")]
pub fn throttle_stop(ctx: FExitContext) -> u32 {
    let cfs_rq: *const u8 = ctx.arg(0);
    let Some(since_ns) = THROTTLED.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this CPU's value; typed members of a typed argument.
    let (since_ns, still_since_ns, rq) = unsafe {
        (
            *since_ns,
            load_u64(cfs_rq, offset!(cfs_rq_throttled_clock)),
            load_ptr(cfs_rq, offset!(cfs_rq_rq)),
        )
    };
    // Before 6.6 the clock keeps its value, and the function always resumes.
    let is_set_back = offset!(cfs_rq_throttled_clock_self) != u32::MAX as usize;
    // Nothing was stopped, or nothing was resumed because the quota is still used up.
    if since_ns == 0 || is_set_back && still_since_ns != 0 {
        return 0;
    }
    // SAFETY: a typed member of a typed pointer.
    let duration_ns = unsafe { load_u64(rq, offset!(rq_clock)) }.saturating_sub(since_ns);
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: a typed argument.
    let Some((cgroup_id, totals)) = (unsafe { owner(cfs_rq) }).and_then(totals) else {
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

/// The cgroup for which a run queue's throttling is counted.
///
/// # Safety
/// `cfs_rq` is typed.
#[inline(always)]
unsafe fn owner(cfs_rq: *const u8) -> Option<u64> {
    // SAFETY: typed members of a typed pointer.
    let group = unsafe { load_ptr(cfs_rq, offset!(cfs_rq_tg)) };
    // SAFETY: as above, and typed by the load.
    unsafe { counted_id(css_cgroup(group, offset!(tg_css)), config!(cpu_hierarchy)) }
}

/// Its totals.
#[inline(always)]
fn totals(cgroup_id: u64) -> Option<(u64, *mut [u64; throttle_totals::WORDS])> {
    if let Some(totals) = THROTTLE.get_ptr_mut(cgroup_id) {
        return Some((cgroup_id, totals));
    }
    // Another CPU may be first: either way the entry is there afterwards, unless the map is full.
    let _ = THROTTLE.insert(cgroup_id, [0; throttle_totals::WORDS], 1);
    match THROTTLE.get_ptr_mut(cgroup_id) {
        Some(totals) => Some((cgroup_id, totals)),
        None => {
            count_untracked();
            None
        }
    }
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
