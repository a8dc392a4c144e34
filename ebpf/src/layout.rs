//! Frozen facts of the running kernel, and the typed loads that use them.
//!
//! [`LAYOUT`] and [`CONFIG`] are zero in the object; the agent overwrites them before loading and the map is frozen, so
//! the verifier folds each number into the load that uses it and checks that load against the kernel's own BTF: a wrong
//! offset is refused at load time. They are read with `read_volatile`, otherwise LLVM would fold the zeros.
//!
//! [`load_ptr`] and its siblings are plain loads: they work on *typed* pointers, those that come from a BTF argument
//! (fentry, fexit, tp_btf) or from such a load. The kernel catches faults in them (a NULL on the way reads as 0).

use aya_ebpf::{
    cty::c_void,
    helpers::generated::{bpf_get_current_task_btf, bpf_probe_read_kernel},
};
use plimsoll_abi::{Config, Layout};

#[unsafe(no_mangle)]
pub(crate) static LAYOUT: Layout = ZERO;
#[unsafe(no_mangle)]
pub(crate) static CONFIG: Config = Config {
    window_ns: 0,
    charge_pages_max: 0,
    memory_is_v1: 0,
    memory_hierarchy: 0,
    cpu_hierarchy: 0,
    psi_is_on: 0,
    counts_pods_only: 0,
    memory_nodes: 0,
};

const ZERO: Layout = {
    // SAFETY: all fields are integers.
    unsafe { core::mem::zeroed() }
};

/// A frozen value. Volatile, because the agent overwrites it before loading.
#[inline(always)]
pub(crate) fn frozen<T: Copy>(value: &'static T) -> T {
    // SAFETY: a reference to a static is valid for reads.
    unsafe { core::ptr::read_volatile(value) }
}

/// An offset of [`LAYOUT`].
macro_rules! offset {
    ($field:ident) => {
        crate::layout::frozen(&crate::layout::LAYOUT.$field) as usize
    };
}
pub(crate) use offset;

/// A field of [`CONFIG`].
macro_rules! config {
    ($field:ident) => {
        crate::layout::frozen(&crate::layout::CONFIG.$field)
    };
}
pub(crate) use config;

macro_rules! typed_load {
    ($(#[$doc:meta])* $name:ident -> $type:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// `object` is a typed kernel pointer in the verifier's eyes and `offset` a member of its type. The verifier
        /// refuses the program otherwise, so a mistake cannot reach the kernel.
        #[inline(always)]
        pub(crate) unsafe fn $name(object: *const u8, offset: usize) -> $type {
            // SAFETY: checked by the verifier, as the caller promises.
            unsafe { core::ptr::read_volatile(object.add(offset).cast::<$type>()) }
        }
    };
}

typed_load!(/** A pointer member: the result is typed again. */ load_ptr -> *const u8);
typed_load!(/** A 64-bit member. */ load_u64 -> u64);
typed_load!(/** A 32-bit member. */ load_u32 -> u32);
typed_load!(/** A signed 16-bit member. */ load_i16 -> i16);
typed_load!(/** The byte that a bit is in. */ load_u8 -> u8);

/// A 64-bit word of kernel memory by probe read, 0 when it cannot be read: for addresses that the verifier does not
/// type.
///
/// Without a branch on what the helper returns, because the verifier walks all that follows once for each way: forty
/// reads in a row were nearly the million instructions that it takes at most (6.1). The kernel itself fills with zeros
/// what it cannot read (`bpf_probe_read_kernel_common`).
#[inline(always)]
pub(crate) fn probe_u64(address: u64) -> u64 {
    let mut word = 0_u64;
    let into = (&raw mut word).cast::<c_void>();
    // SAFETY: `word` is a word long, and the helper checks the address.
    let _filled_either_way =
        unsafe { bpf_probe_read_kernel(into, size_of::<u64>() as u32, address as *const c_void) };
    word
}

/// The address of a cgroup's ancestor at this level: itself at its own level. Not typed: no kernel walks an array of
/// pointers that has no length.
#[inline(always)]
pub(crate) fn ancestor(cgroup: *const u8, level: u32) -> u64 {
    let ancestors = (cgroup as u64).wrapping_add(offset!(cgroup_ancestors) as u64);
    probe_u64(ancestors.wrapping_add(u64::from(level) * 8))
}

/// The id of a cgroup whose address is not typed.
#[inline(always)]
pub(crate) fn probe_id(cgroup: u64) -> u64 {
    let kn = probe_u64(cgroup.wrapping_add(offset!(cgroup_kn) as u64));
    probe_u64(kn.wrapping_add(offset!(kn_id) as u64))
}

/// The id of a `struct cgroup`.
///
/// # Safety
/// `cgroup` is typed.
#[inline(always)]
pub(crate) unsafe fn cgroup_id(cgroup: *const u8) -> u64 {
    // SAFETY: `kn` is a typed member of a typed pointer.
    let kn = unsafe { load_ptr(cgroup, offset!(cgroup_kn)) };
    // SAFETY: as above.
    unsafe { load_u64(kn, offset!(kn_id)) }
}

/// The hierarchy number of a `struct cgroup`, 0 for v2.
///
/// # Safety
/// `cgroup` is typed.
#[inline(always)]
pub(crate) unsafe fn hierarchy_id(cgroup: *const u8) -> u32 {
    // SAFETY: `root` is a typed member of a typed pointer.
    let root = unsafe { load_ptr(cgroup, offset!(cgroup_root)) };
    // SAFETY: as above.
    unsafe { load_u32(root, offset!(root_hierarchy_id)) }
}

/// The cgroup of a css that is embedded at `css_offset` in a typed object.
///
/// # Safety
/// `object` is typed and has a `struct cgroup_subsys_state` at that offset.
#[inline(always)]
pub(crate) unsafe fn css_cgroup(object: *const u8, css_offset: usize) -> *const u8 {
    // SAFETY: the caller's promise.
    unsafe { load_ptr(object, css_offset + offset!(css_cgroup)) }
}

/// The cgroup of a `struct mem_cgroup`.
///
/// # Safety
/// `memcg` is typed.
#[inline(always)]
pub(crate) unsafe fn memcg_cgroup(memcg: *const u8) -> *const u8 {
    // SAFETY: the caller's promise.
    unsafe { css_cgroup(memcg, offset!(memcg_css)) }
}

/// The cgroup id of a `struct mem_cgroup`.
///
/// # Safety
/// `memcg` is typed.
#[inline(always)]
pub(crate) unsafe fn memcg_id(memcg: *const u8) -> u64 {
    // SAFETY: the caller's promise, and typed by the load.
    unsafe { cgroup_id(memcg_cgroup(memcg)) }
}

/// The cgroup that the current task's memory is charged to.
#[inline(always)]
pub(crate) fn current_memory_cgroup() -> *const u8 {
    // SAFETY: the helper's pointer is typed.
    unsafe { task_memory_cgroup(bpf_get_current_task_btf().cast()) }
}

/// The id of that cgroup.
#[inline(always)]
pub(crate) fn current_memory_cgroup_id() -> u64 {
    // SAFETY: typed.
    unsafe { cgroup_id(current_memory_cgroup()) }
}

/// The id of the cgroup that a task's memory is charged to.
///
/// # Safety
/// As for [`task_memory_cgroup`].
#[inline(always)]
pub(crate) unsafe fn task_memory_cgroup_id(task: *const u8) -> u64 {
    // SAFETY: the caller's promise, and typed by the load.
    unsafe { cgroup_id(task_memory_cgroup(task)) }
}

/// The cgroup that a task's memory is charged to.
///
/// On v2 this is the task's own cgroup even where the memory controller ends above it.
///
/// # Safety
/// `task` is a typed `struct task_struct`.
#[inline(always)]
pub(crate) unsafe fn task_memory_cgroup(task: *const u8) -> *const u8 {
    // SAFETY: a typed member of a typed pointer.
    let cset = unsafe { load_ptr(task, offset!(task_cgroups)) };
    if config!(memory_is_v1) == 1 {
        // SAFETY: an element of an array of typed pointers.
        let css = unsafe { load_ptr(cset, offset!(cset_memory_css)) };
        // SAFETY: typed by the load above.
        unsafe { load_ptr(css, offset!(css_cgroup)) }
    } else {
        // SAFETY: a typed member of a typed pointer.
        unsafe { load_ptr(cset, offset!(cset_dfl_cgrp)) }
    }
}
