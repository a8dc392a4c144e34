//! Armed usage thresholds: what cgroup v1 offered through `cgroup.event_control` and v2 does not.
//!
//! Problem: tell the agent that a cgroup's memory is about to reach a number, without polling, at a cost that a
//! page-fault-heavy workload does not feel. Approach: every charge of memory passes `page_counter_try_charge`, once per
//! batch (64 pages, 512 for a huge page), and charges the counters of all ancestors. The program there walks the same
//! chain; a filter word tells in a handful of instructions that a level is not watched, and only a hit is looked up.
//!
//! A threshold is one-shot: the program disarms it and sends one record. Two CPUs that together cross a threshold which
//! neither would cross alone are noticed at the next charge. A counter is known by its address, which the agent learns by
//! reading the `memory.current` file that it wants to read anyway ([`threshold_seen`]).

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::fentry,
    programs::FEntryContext,
};
use plimsoll_abi::{Kind, ThresholdCrossed, agent, filter_bit, seen, watch};

use crate::{
    atomic,
    layout::{css_cgroup_id, load_ptr, load_u64, offset, probe_u64},
    maps::{AGENT, FILTER, SEEN, WATCH},
    record::{header, send_critical},
};

/// Levels of the hierarchy that a charge is followed through, from the charged cgroup upwards. kubepods trees are at
/// most 6 deep under either cgroup driver; deeper, the levels closest to the root would go unwatched.
const LEVELS: usize = 8;

/// Levels followed upwards to find the root when a counter is registered.
const LEVELS_TO_ROOT: usize = 16;

/// On entry of `page_counter_try_charge(struct page_counter *counter, unsigned long nr_pages, …)`.
#[fentry(function = "page_counter_try_charge")]
pub fn threshold_charge(ctx: FEntryContext) -> u32 {
    let mut counter: *const u8 = ctx.arg(0);
    let charge_pages: u64 = ctx.arg(1);
    let Some(filter) = FILTER.get(0) else {
        return 0;
    };
    for _ in 0..LEVELS {
        if counter.is_null() {
            break;
        }
        // The truncation is what makes the address a number in the verifier's eyes.
        let (word, mask) = filter_bit(counter as usize as u32);
        if filter[word] & mask != 0 {
            // SAFETY: typed: the argument, or a `parent` of it.
            unsafe { check(counter, charge_pages) };
        }
        // SAFETY: as above.
        counter = unsafe { load_ptr(counter, offset!(counter_parent)) };
    }
    0
}

/// Sends the record if this counter is watched, armed, and reaches its threshold with this charge.
///
/// # Safety
/// `counter` is a typed `struct page_counter`.
#[inline(always)]
unsafe fn check(counter: *const u8, charge_pages: u64) {
    let Some(slot) = WATCH.get_ptr_mut(counter as u64) else {
        return;
    };
    // SAFETY: `usage` starts with its 64-bit value.
    let usage_pages = unsafe { load_u64(counter, offset!(counter_usage)) };
    // SAFETY: a map value of `watch::WORDS` words, here and below.
    let threshold_pages = unsafe { (*slot)[watch::THRESHOLD_PAGES] };
    // The counter can be below zero for a moment; as an unsigned number that would be above every threshold.
    if usage_pages.wrapping_add(charge_pages) < threshold_pages || usage_pages > u64::MAX / 2 {
        return;
    }
    // SAFETY: as above.
    let armed = unsafe { &raw mut (*slot)[watch::ARMED] };
    // SAFETY: as above. The plain look spares the bus a lock on every charge above a threshold that has fired.
    if unsafe { armed.read_volatile() } == 0 || unsafe { atomic::swap(armed, 0) } == 0 {
        return;
    }
    // SAFETY: as above.
    let (cgroup_id, generation) =
        unsafe { ((*slot)[watch::CGROUP_ID], (*slot)[watch::GENERATION]) };
    let sent = send_critical(Kind::ThresholdCrossed, |record: *mut ThresholdCrossed| {
        // SAFETY: reserved for this type.
        unsafe {
            record.write(ThresholdCrossed {
                header: header(Kind::ThresholdCrossed, cgroup_id),
                usage_pages,
                charge_pages,
                threshold_pages,
                generation,
            });
        }
    });
    if !sent {
        // The agent never heard of it: the next charge tries again.
        // SAFETY: as above.
        unsafe { atomic::swap(armed, 1) };
    }
}

/// On entry of `memory_current_read(struct cgroup_subsys_state *css, struct cftype *cft)` (cgroup v2).
#[fentry(function = "memory_current_read")]
pub fn threshold_seen(ctx: FEntryContext) -> u32 {
    remember(&ctx);
    0
}

/// On entry of `mem_cgroup_read_u64(struct cgroup_subsys_state *css, struct cftype *cft)` (cgroup v1's
/// `memory.usage_in_bytes` and its siblings).
#[fentry(function = "mem_cgroup_read_u64")]
pub fn threshold_seen_v1(ctx: FEntryContext) -> u32 {
    remember(&ctx);
    0
}

/// If it is the agent that reads, notes which counter is behind the file, and the one at the top.
#[inline(always)]
fn remember(ctx: &FEntryContext) {
    let agent = AGENT.get(agent::TGID).copied();
    if agent != Some(bpf_get_current_pid_tgid() >> 32) {
        return;
    }
    let Some(slot) = SEEN.get_ptr_mut(0) else {
        return;
    };
    let css: *const u8 = ctx.arg(0);
    // SAFETY: a typed argument.
    let cgroup_id = unsafe { css_cgroup_id(css, 0) };
    // From the embedded css to the memcg around it: the verifier would refuse a typed load out there, so what follows
    // uses probe reads. This runs when the agent asks, not when a workload charges.
    let counter = (css as u64)
        .wrapping_sub(offset!(memcg_css) as u64)
        .wrapping_add(offset!(memcg_memory) as u64);
    let mut root = counter;
    for _ in 0..LEVELS_TO_ROOT {
        let parent = probe_u64(root.wrapping_add(offset!(counter_parent) as u64));
        if parent == 0 {
            break;
        }
        root = parent;
    }
    let usage_pages = probe_u64(counter.wrapping_add(offset!(counter_usage) as u64));
    let root_usage_pages = probe_u64(root.wrapping_add(offset!(counter_usage) as u64));
    // SAFETY: a map value of `seen::WORDS` words.
    unsafe {
        (*slot)[seen::COUNTER] = counter;
        (*slot)[seen::USAGE_PAGES] = usage_pages;
        (*slot)[seen::ROOT_COUNTER] = root;
        (*slot)[seen::ROOT_USAGE_PAGES] = root_usage_pages;
        (*slot)[seen::TS_NS] = bpf_ktime_get_ns();
        (*slot)[seen::CGROUP_ID] = cgroup_id;
    }
}
