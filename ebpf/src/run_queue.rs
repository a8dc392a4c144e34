//! How long tasks wait for a CPU, by cgroup.
//!
//! Problem: every switch of a CPU passes here, a million times a second on a large node, and most of them concern nobody.
//! Approach: the scheduler itself notes when a task begins to wait (`sched_info.last_queued`), by the clock of the CPU that it
//! waits for (`rq.clock`). At the switch to that task both are still there, so that one subtraction gives what the scheduler will
//! add to the task's `run_delay` a moment later: no clock is read, no time stamp is kept, and a wakeup costs nothing. Of the
//! switches one in `run_queue_one_in` is looked at, chosen by chance, because tasks that take turns would fool a counter.
//! Totals are kept per CPU for the cgroups that the agent has put into the map, and for no others.
//!
//! A task that waited for one CPU and is moved to another counts with the second wait alone.
//!
//! The task's group in the hierarchy of the cpu controller is `sched_task_group`, on cgroup v1 and v2 alike. On v2 this is the
//! nearest cgroup with that controller.
//!
//! Interrupts are off here and this is the only writer on its CPU, so that plain additions do.

use aya_ebpf::{
    helpers::bpf_get_prandom_u32, macros::btf_tracepoint, programs::BtfTracePointContext,
};
use plimsoll_abi::run_queue_totals::{COUNT, FIRST_BUCKET, MAX_NS, SUM_NS, bucket};

use crate::{
    layout::{config, css_cgroup_id, load_ptr, load_u64, offset},
    maps::RUN_QUEUE,
};

/// `sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next, …)`.
#[btf_tracepoint(function = "sched_switch")]
pub fn run_queue(ctx: BtfTracePointContext) -> i32 {
    let one_in = config!(run_queue_one_in);
    // SAFETY: a helper without arguments.
    if one_in > 1 && unsafe { bpf_get_prandom_u32() } & (one_in - 1) != 0 {
        return 0;
    }
    let next: *const u8 = ctx.arg(2);
    // SAFETY: typed members of a typed argument, throughout.
    unsafe {
        let queued_ns = load_u64(next, offset!(task_last_queued));
        if queued_ns == 0 {
            // The idle task.
            return 0;
        }
        let group = load_ptr(next, offset!(task_group));
        let Some(totals) = RUN_QUEUE.get_ptr_mut(css_cgroup_id(group, offset!(tg_css))) else {
            return 0;
        };
        let cfs_rq = load_ptr(next, offset!(task_cfs_rq));
        let rq = load_ptr(cfs_rq, offset!(cfs_rq_rq));
        let wait_ns = load_u64(rq, offset!(rq_clock)).saturating_sub(queued_ns);
        (*totals)[COUNT] += 1;
        (*totals)[SUM_NS] += wait_ns;
        if wait_ns > (*totals)[MAX_NS] {
            (*totals)[MAX_NS] = wait_ns;
        }
        if let Some(count) = (*totals).get_mut(FIRST_BUCKET + bucket(wait_ns)) {
            *count += 1;
        }
    }
    0
}
