//! How long tasks are held up for lack of memory, by cgroup and cause.
//!
//! The kernel marks every such wait with `psi_memstall_enter` and `psi_memstall_leave`: reclaim, throttling by
//! `memory.high`, compaction, refaults. One can be inside another; only the outermost counts, as in PSI. Parts of it
//! are counted separately: reclaim because of a limit (with the owner of the limit), reclaim because the node is short,
//! and the sleep that `memory.high` imposes, which is the only `schedule_timeout_killable` inside a stall.
//!
//! Where fentry is refused, tracepoints give the two kinds of reclaim, both with the cgroup of the task.
//!
//! All of these waits take microseconds at least, so a hash map entry per wait is little; one record per cgroup, cause
//! and window carries the totals.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, generated::bpf_get_current_task_btf},
    macros::{btf_tracepoint, fentry, fexit},
    programs::{BtfTracePointContext, FEntryContext, FExitContext},
};
use plimsoll_abi::{Kind, MemoryStall, UNKNOWN_U64, stall_cause, stall_totals, stalled};

use crate::{
    atomic,
    counted::{counted_id, current_counted_id},
    layout::{config, current_memory_cgroup_id, load_u8, memcg_cgroup, offset},
    maps::{RECLAIMING, STALLED, STALLS},
    record::{count_folded, count_untracked, header, send_pressure},
};

/// On entry of `psi_memstall_enter(unsigned long *flags)`.
#[fentry(function = "psi_memstall_enter")]
pub fn stall_enter(_ctx: FEntryContext) -> u32 {
    let thread = bpf_get_current_pid_tgid();
    if let Some(entry) = STALLED.get_ptr_mut(thread)
        && is_inside_another()
    {
        // SAFETY: a map value of `stalled::WORDS` words that only this thread's programs touch.
        unsafe { (*entry)[stalled::DEPTH] += 1 };
        return 0;
    }
    // Also when an entry has been left behind because the end was missed.
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if STALLED.insert(thread, [1, now_ns, 0], 0).is_err() {
        count_untracked();
    }
    0
}

/// Whether the current task, which has an entry, is in a stall. Without PSI only the entry knows.
#[inline(always)]
fn is_inside_another() -> bool {
    if config!(psi_is_on) == 0 {
        return true;
    }
    let bit = offset!(task_in_memstall_bit);
    // SAFETY: the helper's pointer is typed; the byte of a bitfield.
    let byte = unsafe { load_u8(bpf_get_current_task_btf().cast(), bit >> 3) };
    byte >> (bit & 7) & 1 == 1
}

/// On entry of `psi_memstall_leave(unsigned long *flags)`.
#[fentry(function = "psi_memstall_leave")]
pub fn stall_leave(_ctx: FEntryContext) -> u32 {
    let thread = bpf_get_current_pid_tgid();
    let Some(entry) = STALLED.get_ptr_mut(thread) else {
        // Began before the programs were attached.
        return 0;
    };
    // SAFETY: as in `stall_enter`.
    let since_ns = unsafe {
        if (*entry)[stalled::DEPTH] > 1 {
            (*entry)[stalled::DEPTH] -= 1;
            return 0;
        }
        (*entry)[stalled::SINCE_NS]
    };
    let _ = STALLED.remove(thread);
    note(current_counted_id(), stall_cause::MEMORY, since_ns, None);
    0
}

/// On entry of `long schedule_timeout_killable(long timeout)`.
#[fentry(function = "schedule_timeout_killable")]
pub fn high_sleep(_ctx: FEntryContext) -> u32 {
    if let Some(entry) = STALLED.get_ptr_mut(bpf_get_current_pid_tgid()) {
        // SAFETY: as in `stall_enter`; a helper without arguments.
        unsafe { (*entry)[stalled::ASLEEP_NS] = bpf_ktime_get_ns() };
    }
    0
}

/// On exit of `schedule_timeout_killable`.
#[fexit(function = "schedule_timeout_killable")]
pub fn high_sleep_end(_ctx: FExitContext) -> u32 {
    let Some(entry) = STALLED.get_ptr_mut(bpf_get_current_pid_tgid()) else {
        return 0;
    };
    // SAFETY: as in `stall_enter`.
    let since_ns = unsafe {
        let since_ns = (*entry)[stalled::ASLEEP_NS];
        (*entry)[stalled::ASLEEP_NS] = 0;
        since_ns
    };
    if since_ns != 0 {
        note(current_counted_id(), stall_cause::HIGH, since_ns, None);
    }
    0
}

/// On entry of `unsigned long try_to_free_mem_cgroup_pages(struct mem_cgroup *memcg, …)`.
#[fentry(function = "try_to_free_mem_cgroup_pages")]
pub fn limit_reclaim(_ctx: FEntryContext) -> u32 {
    begin_reclaim();
    0
}

/// On exit of `try_to_free_mem_cgroup_pages`, which returns how many pages were freed.
#[fexit(function = "try_to_free_mem_cgroup_pages")]
pub fn limit_reclaim_end(ctx: FExitContext) -> u32 {
    let pages = ctx.ret::<u64>().unwrap_or(0);
    if let Some(since_ns) = end_reclaim() {
        // SAFETY: a typed argument.
        let owner = unsafe { counted_id(memcg_cgroup(ctx.arg(0)), config!(memory_hierarchy)) };
        note(owner, stall_cause::LIMIT, since_ns, Some(pages));
    }
    0
}

/// `mm_vmscan_memcg_reclaim_begin(…)`.
#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_begin")]
pub fn limit_reclaim_tp(_ctx: BtfTracePointContext) -> i32 {
    begin_reclaim();
    0
}

/// `mm_vmscan_memcg_reclaim_end(unsigned long nr_reclaimed, …)`.
#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_end")]
pub fn limit_reclaim_end_tp(ctx: BtfTracePointContext) -> i32 {
    end_of(stall_cause::LIMIT, ctx.arg(0));
    0
}

/// `mm_vmscan_direct_reclaim_begin(…)`.
#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_begin")]
pub fn node_reclaim(_ctx: BtfTracePointContext) -> i32 {
    begin_reclaim();
    0
}

/// `mm_vmscan_direct_reclaim_end(unsigned long nr_reclaimed, …)`.
#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_end")]
pub fn node_reclaim_end(ctx: BtfTracePointContext) -> i32 {
    end_of(stall_cause::NODE, ctx.arg(0));
    0
}

#[inline(always)]
fn end_of(cause: u32, pages: u64) {
    if let Some(since_ns) = end_reclaim() {
        note(current_counted_id(), cause, since_ns, Some(pages));
    }
}

/// A task that reclaims does not begin to reclaim again: the kernel forbids it (PF_MEMALLOC).
#[inline(always)]
fn begin_reclaim() {
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if RECLAIMING
        .insert(bpf_get_current_pid_tgid(), now_ns, 0)
        .is_err()
    {
        count_untracked();
    }
}

#[inline(always)]
fn end_reclaim() -> Option<u64> {
    let thread = bpf_get_current_pid_tgid();
    // SAFETY: copied at once; only this thread's programs write it.
    let since_ns = unsafe { RECLAIMING.get(thread) }.copied()?;
    let _ = RECLAIMING.remove(thread);
    Some(since_ns)
}

/// Adds a wait that ends now to the totals of this cgroup and cause, and sends them if the window allows.
#[inline(always)]
fn note(cgroup_id: Option<u64>, cause: u32, since_ns: u64, pages: Option<u64>) {
    let Some(cgroup_id) = cgroup_id else {
        return;
    };
    let key = [cgroup_id, u64::from(cause)];
    let totals = match STALLS.get_ptr_mut(key) {
        Some(totals) => totals,
        None => {
            // Another CPU may be first: either way the entry is there afterwards, unless the map is full.
            let _ = STALLS.insert(key, [0; stall_totals::WORDS], 1);
            match STALLS.get_ptr_mut(key) {
                Some(totals) => totals,
                None => return count_untracked(),
            }
        }
    };
    // SAFETY: a map value of `stall_totals::WORDS` words, throughout; a helper without arguments.
    unsafe {
        let now_ns = bpf_ktime_get_ns();
        let stall_ns = now_ns.saturating_sub(since_ns);
        atomic::add(&raw mut (*totals)[stall_totals::COUNT], 1);
        atomic::add(&raw mut (*totals)[stall_totals::SUM_NS], stall_ns);
        atomic::raise(&raw mut (*totals)[stall_totals::MAX_NS], stall_ns);
        if let Some(pages) = pages {
            atomic::add(&raw mut (*totals)[stall_totals::PAGES], pages);
        }
        let is_due = atomic::claim_window(
            &raw mut (*totals)[stall_totals::SENT_NS],
            now_ns,
            config!(window_ns),
        );
        if !is_due {
            return count_folded(Kind::MemoryStall);
        }
        send_pressure(Kind::MemoryStall, |record: *mut MemoryStall| {
            record.write(MemoryStall {
                header: header(Kind::MemoryStall, cgroup_id),
                actor_cgroup_id: current_memory_cgroup_id(),
                count: (*totals)[stall_totals::COUNT],
                sum_ns: (*totals)[stall_totals::SUM_NS],
                max_ns: (*totals)[stall_totals::MAX_NS],
                pages: if pages.is_some() {
                    (*totals)[stall_totals::PAGES]
                } else {
                    UNKNOWN_U64
                },
                cause,
                pad: 0,
            });
        });
    }
}
