//! Under which cgroup an event is counted.
//!
//! Problem: whoever may make cgroups below his own has as many as he likes, and a map has room for a fixed number. A
//! pod with a key for each of its cgroups would take the room of all others. Approach: the agent names the cgroups that
//! have counts of their own ([`COUNTED`]): pods, and some containers of each. What happens in any other cgroup below a
//! pod is counted for the container that it is in, else for the pod.
//!
//! A look that has no pods (`plimsoll events`, a trace) counts each cgroup by itself ([`Config::counts_pods_only`]).
//!
//! [`Config::counts_pods_only`]: plimsoll_abi::Config

use plimsoll_abi::last_line::POD_LEVELS;

use crate::{
    layout::{ancestor, cgroup_id, config, current_memory_cgroup, load_u32, offset, probe_id},
    maps::COUNTED,
};

/// The cgroup under whose id an event in `cgroup` is counted; `None`: it is in no pod.
///
/// Mostly one lookup: processes are in their container's cgroup. Otherwise from the root downwards, because a pod may
/// nest cgroups as deep as it likes.
///
/// # Safety
/// `cgroup` is a typed `struct cgroup` of the hierarchy.
#[inline(always)]
pub(crate) unsafe fn counted_id(cgroup: *const u8, hierarchy: u32) -> Option<u64> {
    // SAFETY: the caller's promise.
    let id = unsafe { cgroup_id(cgroup) };
    if config!(counts_pods_only) == 0 || is_counted(hierarchy, id) {
        return Some(id);
    }
    // SAFETY: the caller's promise.
    let lowest = unsafe { load_u32(cgroup, offset!(cgroup_level)) };
    let mut found = None;
    for level in 1..=POD_LEVELS {
        if level >= lowest {
            break;
        }
        let id = probe_id(ancestor(cgroup, level));
        if is_counted(hierarchy, id) {
            found = Some(id);
        } else if found.is_some() {
            // Containers are right below their pod.
            break;
        }
    }
    found
}

/// The same for the cgroup that the current task's memory is charged to.
#[inline(always)]
pub(crate) fn current_counted_id() -> Option<u64> {
    // SAFETY: typed by the load.
    unsafe { counted_id(current_memory_cgroup(), config!(memory_hierarchy)) }
}

#[inline(always)]
fn is_counted(hierarchy: u32, id: u64) -> bool {
    COUNTED.get_ptr([u64::from(hierarchy), id]).is_some()
}
