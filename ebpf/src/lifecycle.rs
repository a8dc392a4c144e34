//! Cgroups coming, going, filling and emptying.
//!
//! Four tracepoints of the kernel's `cgroup` system as `tp_btf` programs: arguments are typed, and no tracefs is
//! needed. Every hierarchy reports here, v1 ones too; `hierarchy_id` says which it is.

use aya_ebpf::{
    helpers::generated::bpf_probe_read_kernel_str, macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use plimsoll_abi::{
    CgroupAttach, CgroupMkdir, CgroupPopulated, CgroupRmdir, Kind, PATH_BYTES, last_line::pods,
    memory_event, refault, stall_cause,
};

use crate::{
    layout::{cgroup_id, config, hierarchy_id, load_u32, offset},
    log::debug,
    maps::{COUNTED, LAST_LINE_PODS, MEMORY, PROCESSES, REFAULTS, STALLS, THROTTLE},
    oom,
    record::{header, send_lifecycle},
};

/// `cgroup_mkdir(struct cgroup *cgrp, const char *path)`.
#[btf_tracepoint(function = "cgroup_mkdir")]
pub fn cgroup_mkdir(ctx: BtfTracePointContext) -> i32 {
    let cgroup: *const u8 = ctx.arg(0);
    let path: *const u8 = ctx.arg(1);
    // SAFETY: a typed argument.
    debug!(&ctx, "cgroup {} made", unsafe { cgroup_id(cgroup) });
    send_lifecycle(Kind::CgroupMkdir, |record: *mut CgroupMkdir| {
        // SAFETY: `cgroup` is a typed argument, `record` is reserved for this type; the helper bounds its own write.
        unsafe {
            (*record).header = header(Kind::CgroupMkdir, cgroup_id(cgroup));
            (*record).level = load_u32(cgroup, offset!(cgroup_level));
            (*record).hierarchy_id = hierarchy_id(cgroup);
            (*record).pad = 0;
            let length = bpf_probe_read_kernel_str(
                (&raw mut (*record).path).cast(),
                PATH_BYTES as u32,
                path.cast(),
            );
            // The helper counts the NUL, and answers a negative number when it cannot read.
            (*record).path_len = if length > 0 { length as u32 - 1 } else { 0 };
        }
    });
    0
}

/// `cgroup_rmdir(struct cgroup *cgrp, const char *path)`.
#[btf_tracepoint(function = "cgroup_rmdir")]
pub fn cgroup_rmdir(ctx: BtfTracePointContext) -> i32 {
    let cgroup: *const u8 = ctx.arg(0);
    // SAFETY: a typed argument.
    let (id, hierarchy) = unsafe { (cgroup_id(cgroup), hierarchy_id(cgroup)) };
    debug!(&ctx, "cgroup {} removed", id);
    send_lifecycle(Kind::CgroupRmdir, |record: *mut CgroupRmdir| {
        // SAFETY: as above; `record` is reserved for this type.
        unsafe {
            record.write(CgroupRmdir {
                header: header(Kind::CgroupRmdir, id),
                level: load_u32(cgroup, offset!(cgroup_level)),
                hierarchy_id: hierarchy,
            });
        }
    });
    let _ = COUNTED.remove([u64::from(hierarchy), id]);
    // Its totals are of no more use, and their places are needed by the cgroups to come. Another hierarchy's cgroup may
    // have the same id.
    if hierarchy == config!(cpu_hierarchy) {
        let _ = THROTTLE.remove(id);
    }
    if hierarchy == config!(memory_hierarchy) {
        oom::keep_removed(id);
        let _ = PROCESSES.remove(id);
        for event in memory_event::ALL {
            let _ = MEMORY.remove([id, u64::from(event)]);
        }
        for cause in stall_cause::ALL {
            let _ = STALLS.remove([id, u64::from(cause)]);
        }
        for what in refault::ALL {
            let _ = REFAULTS.remove([id, u64::from(what)]);
        }
    }
    0
}

/// `cgroup_attach_task(struct cgroup *dst_cgrp, const char *path, struct task_struct *task, bool threadgroup)`.
#[btf_tracepoint(function = "cgroup_attach_task")]
pub fn cgroup_attach_task(ctx: BtfTracePointContext) -> i32 {
    let cgroup: *const u8 = ctx.arg(0);
    let task: *const u8 = ctx.arg(2);
    send_lifecycle(Kind::CgroupAttach, |record: *mut CgroupAttach| {
        // SAFETY: typed arguments; `record` is reserved for this type.
        unsafe {
            record.write(CgroupAttach {
                header: header(Kind::CgroupAttach, cgroup_id(cgroup)),
                tgid: load_u32(task, offset!(task_tgid)),
                hierarchy_id: hierarchy_id(cgroup),
            });
        }
    });
    0
}

/// `cgroup_notify_populated(struct cgroup *cgrp, const char *path, int val)`.
#[btf_tracepoint(function = "cgroup_notify_populated")]
pub fn cgroup_notify_populated(ctx: BtfTracePointContext) -> i32 {
    let cgroup: *const u8 = ctx.arg(0);
    let populated: u32 = ctx.arg(2);
    // SAFETY: a typed argument.
    let (id, hierarchy) = unsafe { (cgroup_id(cgroup), hierarchy_id(cgroup)) };
    // The last line does not wait for a pod that has no process.
    if hierarchy == config!(memory_hierarchy)
        && let Some(pod) = LAST_LINE_PODS.get_ptr_mut(id)
    {
        // SAFETY: a map value of `pods::WORDS` words.
        unsafe { (&raw mut (*pod)[pods::EMPTY]).write_volatile(u64::from(populated == 0)) };
    }
    send_lifecycle(Kind::CgroupPopulated, |record: *mut CgroupPopulated| {
        // SAFETY: `record` is reserved for this type.
        unsafe {
            record.write(CgroupPopulated {
                header: header(Kind::CgroupPopulated, id),
                populated,
                hierarchy_id: hierarchy,
            });
        }
    });
    0
}
