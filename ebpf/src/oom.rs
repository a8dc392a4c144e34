//! The kernel's OOM killer: whose limit, which victim.
//!
//! `oom_kill_process` knows both the cgroup whose limit was hit and the chosen victim. The tracepoint `mark_victim`
//! names each victim: the chosen one, and those that go with it where a cgroup is killed as a whole. Where fentry is
//! refused it is all there is.
//!
//! A cgroup that forks at its limit is killed without end, so what it gets is bounded: so many records per cgroup and
//! window, and none when such records have taken their part of the ring. The others are counted per cgroup
//! (`OOM_KILLS`), none is lost: those of a cgroup that is removed are added to those in no pod.

use aya_ebpf::{
    helpers::bpf_ktime_get_ns,
    macros::{btf_tracepoint, fentry},
    programs::{BtfTracePointContext, FEntryContext},
};
use plimsoll_abi::{
    Kind, NO_POD, NODE_OOM, OOM_RECORDS_PER_WINDOW, OomKill, UNKNOWN_U64, oom_totals,
};

use crate::{
    atomic,
    counted::counted_id,
    layout::{
        cgroup_id, config, load_i16, load_ptr, load_u32, load_u64, memcg_id, offset, probe_u64,
        task_memory_cgroup,
    },
    log::debug,
    maps::OOM_KILLS,
    record::{count_folded, count_untracked, critical_has_room, header, send_critical},
};

/// On entry of `oom_kill_process(struct oom_control *oc, const char *message)`.
#[fentry(function = "oom_kill_process")]
pub fn oom_kill_process(ctx: FEntryContext) -> u32 {
    let oc: *const u8 = ctx.arg(0);
    // SAFETY: typed members of a typed argument.
    unsafe {
        let memcg = load_ptr(oc, offset!(oc_memcg));
        let limit_cgroup_id = if memcg.is_null() {
            NODE_OOM
        } else {
            memcg_id(memcg)
        };
        let points = load_u64(oc, offset!(oc_chosen_points)) as i64;
        let victim = load_ptr(oc, offset!(oc_chosen));
        let cgroup = task_memory_cgroup(victim);
        let cgroup_id = cgroup_id(cgroup);
        debug!(
            &ctx,
            "OOM: chose a process of cgroup {} for the limit of {}", cgroup_id, limit_cgroup_id
        );
        if may_send(counted(cgroup), oom_totals::CHOICES) {
            send_victim(victim, cgroup_id, limit_cgroup_id, points);
        }
    }
    0
}

/// `mark_victim(struct task_struct *task, uid_t uid)`.
#[btf_tracepoint(function = "mark_victim")]
pub fn mark_victim(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: a typed argument.
    unsafe {
        let victim = ctx.arg(0);
        let cgroup = task_memory_cgroup(victim);
        let cgroup_id = cgroup_id(cgroup);
        debug!(&ctx, "OOM: marked a process of cgroup {}", cgroup_id);
        if may_send(counted(cgroup), oom_totals::VICTIMS) {
            send_victim(victim, cgroup_id, UNKNOWN_U64, i64::MAX);
        }
    }
    0
}

/// The cgroup for which a kill is counted. The others share one place: a kill outside of pods is reported too.
///
/// # Safety
/// `cgroup` is typed.
#[inline(always)]
unsafe fn counted(cgroup: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { counted_id(cgroup, config!(memory_hierarchy)) }.unwrap_or(NO_POD)
}

/// A cgroup's totals; made if they are not there. `None`: the map is full.
#[inline(always)]
fn totals_of(cgroup_id: u64) -> Option<*mut [u64; oom_totals::WORDS]> {
    if OOM_KILLS.get_ptr_mut(cgroup_id).is_none() {
        // Only if it is not there: another CPU may have been faster.
        let _ = OOM_KILLS.insert(cgroup_id, [0; oom_totals::WORDS], 1);
    }
    OOM_KILLS.get_ptr_mut(cgroup_id)
}

/// A cgroup is removed: its place is free, and what was only counted goes to the kills in no pod. The agent may not
/// have read it, and has it from nowhere else.
#[inline(always)]
pub(crate) fn keep_removed(cgroup_id: u64) {
    let Some(totals) = OOM_KILLS.get_ptr_mut(cgroup_id) else {
        return;
    };
    // SAFETY: a map value of so many words.
    let (choices, victims) = unsafe {
        (
            (&raw const (*totals)[oom_totals::CHOICES]).read_volatile(),
            (&raw const (*totals)[oom_totals::VICTIMS]).read_volatile(),
        )
    };
    let _ = OOM_KILLS.remove(cgroup_id);
    if choices == 0 && victims == 0 {
        return;
    }
    let Some(totals) = totals_of(NO_POD) else {
        return count_untracked();
    };
    // SAFETY: as above.
    unsafe {
        atomic::add(&raw mut (*totals)[oom_totals::CHOICES], choices);
        atomic::add(&raw mut (*totals)[oom_totals::VICTIMS], victims);
    }
}

/// Whether a kill in this cgroup gets a record. If not, it is counted in the word `folded` of the cgroup's totals.
#[inline(always)]
fn may_send(cgroup_id: u64, folded: usize) -> bool {
    let Some(totals) = totals_of(cgroup_id) else {
        // Too many cgroups at once: no share for each, but still their part of the ring for all.
        count_untracked();
        if critical_has_room() {
            return true;
        }
        count_folded(Kind::OomKill);
        return false;
    };
    // SAFETY: a map value of so many words, throughout; a helper without arguments.
    unsafe {
        // Two CPUs may begin a window at once: then a few records more are sent. (The kernel kills one at a time.)
        if atomic::claim_window(
            &raw mut (*totals)[oom_totals::WINDOW_NS],
            bpf_ktime_get_ns(),
            config!(window_ns),
        ) {
            atomic::swap(&raw mut (*totals)[oom_totals::SENT], 0);
        }
        let sent = atomic::add_and_get(&raw mut (*totals)[oom_totals::SENT], 1);
        // A choice that is sent leaves room for its victim, so that no kill is both sent and counted here.
        let last = OOM_RECORDS_PER_WINDOW - u64::from(folded == oom_totals::CHOICES);
        if sent <= last && critical_has_room() {
            return true;
        }
        atomic::add(&raw mut (*totals)[folded], 1);
    }
    count_folded(Kind::OomKill);
    false
}

/// # Safety
/// `task` is a typed `struct task_struct`.
#[inline(always)]
unsafe fn send_victim(task: *const u8, cgroup_id: u64, limit_cgroup_id: u64, points: i64) {
    send_critical(Kind::OomKill, |record: *mut OomKill| {
        // SAFETY: typed members of a typed pointer; `record` is reserved for this type. A victim without an address
        // space (its leader has exited) reads as zeros.
        unsafe {
            let mm = load_ptr(task, offset!(task_mm));
            let signal = load_ptr(task, offset!(task_signal));
            let comm = [
                load_u64(task, offset!(task_comm)),
                load_u64(task, offset!(task_comm) + 8),
            ];
            record.write(OomKill {
                header: header(Kind::OomKill, cgroup_id),
                limit_cgroup_id,
                points,
                total_pages: load_u64(mm, offset!(mm_total_vm)),
                // Not typed: 6.1 does not walk an array of atomics.
                anon_pages: probe_u64((mm as u64).wrapping_add(offset!(mm_anon) as u64)),
                tgid: load_u32(task, offset!(task_tgid)),
                oom_score_adj: i32::from(load_i16(signal, offset!(signal_oom_score_adj))),
                comm: core::mem::transmute::<[u64; 2], [u8; 16]>(comm),
            });
        }
    });
}
