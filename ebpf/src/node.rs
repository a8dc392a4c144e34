//! The node's memory by the kernel's own counters: what `/proc/meminfo` shows, without its text.
//!
//! The counters of a NUMA node are found through the memory cgroup of the current task, which has a part on each: no address of a
//! global variable is needed, which a kernel may hide.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use plimsoll_abi::{MEMORY_NODES_MAX, NodePages, mem_available_pages};

use crate::layout::{config, offset, probe_u64};

/// Kernels have four to six.
const ZONES_MAX: u64 = 6;

/// What is summed up over NUMA nodes.
#[derive(Default)]
struct Sums {
    free: u64,
    low_watermarks: u64,
    reserve: u64,
    reclaimable: u64,
    anon: u64,
    file: u64,
    inactive_file: u64,
    active_file: u64,
}

/// The node's pages.
#[inline(always)]
pub(crate) fn node_pages() -> NodePages {
    let nodes = config!(memory_nodes);
    if nodes == 0 {
        return NodePages::UNKNOWN;
    }
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task_btf() } as u64;
    let cgroups = at(task, offset!(task_cgroups));
    let memcg = at(cgroups, offset!(cset_memory_css)).wrapping_sub(offset!(memcg_css) as u64);
    let mut sums = Sums::default();
    for node in 0..MEMORY_NODES_MAX {
        if node < nodes {
            let part = at(memcg, offset!(memcg_nodes) + node as usize * 8);
            add_node(&mut sums, at(part, offset!(memcg_node_pgdat)));
        }
    }
    NodePages {
        free: sums.free,
        available: mem_available_pages(
            sums.free,
            sums.reserve,
            sums.inactive_file.wrapping_add(sums.active_file),
            sums.reclaimable,
            sums.low_watermarks,
        ),
        anon: sums.anon,
        file: sums.file,
        inactive_file: sums.inactive_file,
        active_file: sums.active_file,
    }
}

/// Adds the counters of one NUMA node. One without memory has zeros.
#[inline(always)]
fn add_node(sums: &mut Sums, pgdat: u64) {
    for (sum, offset) in [
        (&mut sums.reserve, offset!(pgdat_reserve)),
        (&mut sums.anon, offset!(pgdat_anon)),
        (&mut sums.file, offset!(pgdat_file)),
        (&mut sums.inactive_file, offset!(pgdat_inactive_file)),
        (&mut sums.active_file, offset!(pgdat_active_file)),
    ] {
        *sum = sum.wrapping_add(at(pgdat, offset));
    }
    sums.reclaimable = sums
        .reclaimable
        .wrapping_add(at(pgdat, offset!(pgdat_slab)))
        .wrapping_add(at(pgdat, offset!(pgdat_misc)));
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
