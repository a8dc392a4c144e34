//! The node's memory by the kernel's own counters: what `/proc/meminfo` shows, without its text.
//!
//! The counters of a NUMA node are found through the root memory cgroup, which has a part on each: no address of a
//! global variable is needed, which a kernel may hide. A cgroup's part knows its node only once memory of that node was
//! charged to it, on kernels without multi-generational LRU. So it is the root's part that is asked, and without an
//! answer for each node there is none for all.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use plimsoll_abi::{MEMORY_NODES_MAX, NodePages, NodeSums};

use crate::layout::{config, offset, probe_u64};

/// Kernels have four to six.
const ZONES_MAX: u64 = 6;

/// The node's pages.
#[inline(always)]
pub(crate) fn node_pages() -> NodePages {
    let nodes = config!(memory_nodes);
    if nodes == 0 {
        return NodePages::UNKNOWN;
    }
    let memcg = root_memcg();
    let mut sums = NodeSums::default();
    for node in 0..MEMORY_NODES_MAX {
        if node < nodes {
            let part = at(memcg, offset!(memcg_nodes) + node as usize * 8);
            let pgdat = at(part, offset!(memcg_node_pgdat));
            if pgdat == 0 {
                return NodePages::UNKNOWN;
            }
            add_node(&mut sums, pgdat);
        }
    }
    NodePages::of(&sums)
}

/// The root of the current task's memory hierarchy.
#[inline(always)]
fn root_memcg() -> u64 {
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task_btf() } as u64;
    let css = at(at(task, offset!(task_cgroups)), offset!(cset_memory_css));
    // The first of the cgroups above it.
    let root = at(at(css, offset!(css_cgroup)), offset!(cgroup_ancestors));
    at(root, offset!(cgroup_memory_css)).wrapping_sub(offset!(memcg_css) as u64)
}

/// Adds the counters of one NUMA node.
#[inline(always)]
fn add_node(sums: &mut NodeSums, pgdat: u64) {
    for (sum, offset) in [
        (&mut sums.reserve, offset!(pgdat_reserve)),
        (&mut sums.anon, offset!(pgdat_anon)),
        (&mut sums.file, offset!(pgdat_file)),
        (&mut sums.inactive_file, offset!(pgdat_inactive_file)),
        (&mut sums.active_file, offset!(pgdat_active_file)),
        (&mut sums.shmem, offset!(pgdat_shmem)),
        (&mut sums.slab, offset!(pgdat_slab)),
        (&mut sums.misc, offset!(pgdat_misc)),
    ] {
        *sum = sum.wrapping_add(at(pgdat, offset));
    }
    let first = pgdat.wrapping_add(offset!(pgdat_zones) as u64);
    let zone_bytes = (offset!(pgdat_second_zone) as u64).wrapping_sub(offset!(pgdat_zones) as u64);
    // An int.
    let zones = at(pgdat, offset!(pgdat_zone_count)) & 0xffff_ffff;
    for index in 0..ZONES_MAX {
        if index < zones {
            let zone = first.wrapping_add(index.wrapping_mul(zone_bytes));
            sums.free = sums.free.wrapping_add(at(zone, offset!(zone_free)));
            sums.low_watermarks = sums
                .low_watermarks
                .wrapping_add(at(zone, offset!(zone_low)))
                .wrapping_add(at(zone, offset!(zone_boost)));
        }
    }
}

/// The word at `offset` of a kernel object; 0 where it cannot be read.
#[inline(always)]
fn at(object: u64, offset: usize) -> u64 {
    probe_u64(object.wrapping_add(offset as u64))
}
