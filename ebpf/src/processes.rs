//! Processes born in cgroups that the agent follows, and programs started there.
//!
//! Problem: `cgroup_attach_task` does not report a process that is born into another cgroup than its parent's
//! (`clone3(CLONE_INTO_CGROUP)`), and a node full of shell scripts forks thousands of times a second. Approach: the
//! agent puts the cgroups of pods into a map, and only those count; a record is sent only of a birth from outside. What
//! is born inside has its parent's `oom_score_adj` and needs no look.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use plimsoll_abi::{Kind, ProcessBirth, process_totals};

use crate::{
    atomic,
    layout::{load_u32, offset, task_memory_cgroup_id},
    maps::PROCESSES,
    record::{header, send_lifecycle},
};

/// `sched_process_fork(struct task_struct *parent, struct task_struct *child)`.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn process_fork(ctx: BtfTracePointContext) -> i32 {
    let parent: *const u8 = ctx.arg(0);
    let child: *const u8 = ctx.arg(1);
    // SAFETY: typed members of typed arguments, throughout; a map value.
    unsafe {
        let tgid = load_u32(child, offset!(task_tgid));
        if load_u32(child, offset!(task_pid)) != tgid {
            // A thread.
            return 0;
        }
        let cgroup_id = task_memory_cgroup_id(child);
        let Some(totals) = PROCESSES.get_ptr_mut(cgroup_id) else {
            return 0;
        };
        atomic::add(&raw mut (*totals)[process_totals::FORKS], 1);
        let parent_cgroup_id = task_memory_cgroup_id(parent);
        if parent_cgroup_id == cgroup_id {
            return 0;
        }
        send_lifecycle(Kind::ProcessBirth, |record: *mut ProcessBirth| {
            record.write(ProcessBirth {
                header: header(Kind::ProcessBirth, cgroup_id),
                parent_cgroup_id,
                tgid,
                parent_tgid: load_u32(parent, offset!(task_tgid)),
            });
        });
    }
    0
}

/// `sched_process_exec(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm)`.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn process_exec(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: a typed argument.
    let cgroup_id = unsafe { task_memory_cgroup_id(ctx.arg(0)) };
    if let Some(totals) = PROCESSES.get_ptr_mut(cgroup_id) {
        // SAFETY: a map value.
        unsafe { atomic::add(&raw mut (*totals)[process_totals::EXECS], 1) };
    }
    0
}
