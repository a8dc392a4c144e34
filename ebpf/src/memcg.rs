//! `memory.high`, `memory.max` and memcg OOM, by the cgroup that owns the limit.
//!
//! Kernels that have it (7.2) report all of them through `__memcg_memory_event`. Before, that function is inlined, and
//! the events are inferred where they are raised: `reclaim_high` is "high", `mem_cgroup_out_of_memory` is "oom", and
//! `try_to_free_mem_cgroup_pages` is "max" unless the thread is there for another reason: it came through
//! `reclaim_high`, or someone wrote `memory.reclaim`, `memory.high` or `memory.max`. Those four mark the thread while
//! they run. "oom_kill" is `__oom_kill_process`, "oom_group_kill" is a cgroup found by `mem_cgroup_get_oom_group`;
//! "low" leaves no trace that could be followed, and is read from `memory.events` there.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};
use plimsoll_abi::{Kind, MemoryEvent, UNKNOWN_U64, memory_event, memory_totals};

use crate::{
    atomic,
    counted::counted_id,
    layout::{config, memcg_cgroup, task_memory_cgroup},
    maps::{MEMORY, NOT_A_CHARGE},
    record::{count_untracked, header, send_pressure},
};

/// On entry of `__memcg_memory_event(struct mem_cgroup *memcg, enum memcg_memory_event event, …)` (7.2).
#[fentry(function = "__memcg_memory_event")]
pub fn memcg_memory_event(ctx: FEntryContext) -> u32 {
    let event: u32 = ctx.arg(1);
    if event <= memory_event::OOM_GROUP_KILL {
        // SAFETY: a typed argument.
        note(unsafe { owner(ctx.arg(0)) }, event, None);
    }
    0
}

/// On entry of `reclaim_high(struct mem_cgroup *memcg, unsigned int nr_pages, gfp_t gfp_mask)`.
#[fentry(function = "reclaim_high")]
pub fn memcg_high(ctx: FEntryContext) -> u32 {
    mark();
    let pages: u32 = ctx.arg(1);
    // SAFETY: a typed argument.
    note(
        unsafe { owner(ctx.arg(0)) },
        memory_event::HIGH,
        Some(u64::from(pages)),
    );
    0
}

/// On exit of `reclaim_high`.
#[fexit(function = "reclaim_high")]
pub fn memcg_high_end(_ctx: FExitContext) -> u32 {
    unmark();
    0
}

/// On entry of `try_to_free_mem_cgroup_pages(struct mem_cgroup *memcg, unsigned long nr_pages, …)`.
#[fentry(function = "try_to_free_mem_cgroup_pages")]
pub fn memcg_max(ctx: FEntryContext) -> u32 {
    // SAFETY: the map's own contract: the value is only compared with nothing.
    if unsafe { NOT_A_CHARGE.get(bpf_get_current_pid_tgid()) }.is_none() {
        // SAFETY: a typed argument.
        note(
            unsafe { owner(ctx.arg(0)) },
            memory_event::MAX,
            Some(ctx.arg(1)),
        );
    }
    0
}

/// On entry of `mem_cgroup_out_of_memory(struct mem_cgroup *memcg, …)`.
#[fentry(function = "mem_cgroup_out_of_memory")]
pub fn memcg_oom(ctx: FEntryContext) -> u32 {
    // SAFETY: a typed argument.
    note(unsafe { owner(ctx.arg(0)) }, memory_event::OOM, Some(0));
    0
}

/// On entry of `__oom_kill_process(struct task_struct *victim, const char *message)`.
#[fentry(function = "__oom_kill_process")]
pub fn memcg_oom_kill(ctx: FEntryContext) -> u32 {
    // SAFETY: a typed argument.
    let id = unsafe { counted_id(task_memory_cgroup(ctx.arg(0)), config!(memory_hierarchy)) };
    note(id, memory_event::OOM_KILL, Some(0));
    0
}

/// On exit of `struct mem_cgroup *mem_cgroup_get_oom_group(struct task_struct *victim, struct mem_cgroup *oom_domain)`.
#[fexit(function = "mem_cgroup_get_oom_group")]
pub fn memcg_oom_group_kill(ctx: FExitContext) -> u32 {
    // The third word of the context is what the function returns, typed by the verifier.
    let memcg: *const u8 = ctx.arg(2);
    if !memcg.is_null() {
        // SAFETY: typed.
        note(
            unsafe { owner(memcg) },
            memory_event::OOM_GROUP_KILL,
            Some(0),
        );
    }
    0
}

macro_rules! marks {
    ($($function:literal: $begin:ident, $end:ident;)+) => {$(
        /// Marks the thread while it is in this function.
        #[fentry(function = $function)]
        pub fn $begin(_ctx: FEntryContext) -> u32 {
            mark();
            0
        }

        /// Ends the mark.
        #[fexit(function = $function)]
        pub fn $end(_ctx: FExitContext) -> u32 {
            unmark();
            0
        }
    )+};
}

marks! {
    "memory_reclaim": memcg_reclaim_begin, memcg_reclaim_end;
    "memory_high_write": memcg_high_write_begin, memcg_high_write_end;
    "memory_max_write": memcg_max_write_begin, memcg_max_write_end;
}

#[inline(always)]
fn mark() {
    if NOT_A_CHARGE
        .insert(bpf_get_current_pid_tgid(), 1, 0)
        .is_err()
    {
        count_untracked();
    }
}

#[inline(always)]
fn unmark() {
    let _ = NOT_A_CHARGE.remove(bpf_get_current_pid_tgid());
}

/// The cgroup for which the events of a `struct mem_cgroup` are counted.
///
/// # Safety
/// `memcg` is typed.
#[inline(always)]
unsafe fn owner(memcg: *const u8) -> Option<u64> {
    // SAFETY: the caller's promise, and typed by the load.
    unsafe { counted_id(memcg_cgroup(memcg), config!(memory_hierarchy)) }
}

/// Adds to the totals of this cgroup and event, and sends them if the window allows.
#[inline(always)]
fn note(cgroup_id: Option<u64>, event: u32, pages: Option<u64>) {
    let Some(cgroup_id) = cgroup_id else {
        return;
    };
    let key = [cgroup_id, u64::from(event)];
    let totals = match MEMORY.get_ptr_mut(key) {
        Some(totals) => totals,
        None => {
            // Another CPU may be first: either way the entry is there afterwards, unless the map is full.
            let _ = MEMORY.insert(key, [0; memory_totals::WORDS], 1);
            match MEMORY.get_ptr_mut(key) {
                Some(totals) => totals,
                None => return count_untracked(),
            }
        }
    };
    // SAFETY: a map value of `memory_totals::WORDS` words, throughout.
    unsafe {
        atomic::add(&raw mut (*totals)[memory_totals::COUNT], 1);
        if let Some(pages) = pages {
            atomic::add(&raw mut (*totals)[memory_totals::PAGES], pages);
        }
        if !atomic::claim_window(
            &raw mut (*totals)[memory_totals::SENT_NS],
            bpf_ktime_get_ns(),
            config!(window_ns),
        ) {
            return;
        }
        send_pressure(Kind::MemoryEvent, |record: *mut MemoryEvent| {
            record.write(MemoryEvent {
                header: header(Kind::MemoryEvent, cgroup_id),
                count: (*totals)[memory_totals::COUNT],
                pages: if pages.is_some() {
                    (*totals)[memory_totals::PAGES]
                } else {
                    UNKNOWN_U64
                },
                event,
                pad: 0,
            });
        });
    }
}
