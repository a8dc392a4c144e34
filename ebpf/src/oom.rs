//! The kernel's OOM killer: whose limit, which victim.
//!
//! `oom_kill_process` knows both the cgroup whose limit was hit and the chosen victim. The tracepoint `mark_victim` names each
//! victim: the chosen one, and those that go with it where a cgroup is killed as a whole. Where fentry is refused it is all there is.

use aya_ebpf::{
    macros::{btf_tracepoint, fentry},
    programs::{BtfTracePointContext, FEntryContext},
};
use plimsoll_abi::{Kind, NODE_OOM, OomKill, UNKNOWN_U64};

use crate::{
    layout::{
        load_i16, load_ptr, load_u32, load_u64, memcg_id, offset, probe_u64, task_memory_cgroup_id,
    },
    record::{header, send_critical},
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
        send_victim(load_ptr(oc, offset!(oc_chosen)), limit_cgroup_id, points);
    }
    0
}

/// `mark_victim(struct task_struct *task, uid_t uid)`.
#[btf_tracepoint(function = "mark_victim")]
pub fn mark_victim(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: a typed argument.
    unsafe { send_victim(ctx.arg(0), UNKNOWN_U64, i64::MAX) };
    0
}

/// # Safety
/// `task` is a typed `struct task_struct`.
#[inline(always)]
unsafe fn send_victim(task: *const u8, limit_cgroup_id: u64, points: i64) {
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
                header: header(Kind::OomKill, task_memory_cgroup_id(task)),
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
