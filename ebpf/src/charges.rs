//! The armed charge threshold: one record when so much memory has been charged that a node threshold may be crossed.
//!
//! Problem: node availability falls while usage stays level (page cache makes room for anonymous memory), so an armed
//! usage threshold can miss it. Approach: count what is charged, gross. Pods cannot take more than they are charged
//! for, so a record at "charged so far + headroom" is not late for anything that pods take (but for the 64 pages that
//! each CPU charges ahead). It may be early; then the agent arms anew.
//!
//! Every charge of memory passes `page_counter_try_charge` once per batch (64 pages, 512 for a huge page), so this runs
//! a few thousand times a second on a busy node: one atomic add, one load. The function also serves swap and huge page
//! counters; counting them makes records earlier, never later. It comes before the limit is looked at, too, and anyone
//! may ask for huge pages that nobody has: such a request is charged whole (64 TiB in 15 µs, again and again) and
//! refused. So no more counts of one charge than memory can be charged for at once
//! ([`plimsoll_abi::Config::charge_pages_max`]).
//!
//! The record carries the total, so that the agent need not ask for it, and the number of the newest arming, by which
//! the agent knows whether the record answers what it asked for last ([`charges::GENERATION`]). It carries the node's
//! memory as well: `/proc/meminfo` takes as long as all else that there is to do before a decision.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::fentry, programs::FEntryContext};
use plimsoll_abi::{ChargesReached, Kind, NodePages, charges, last_line::seen};

use crate::{
    atomic,
    layout::config,
    maps::{CHARGES, LAST_LINE_SEEN},
    node::node_pages,
    record::{critical_has_room_for, header, send_critical},
};

/// On entry of `page_counter_try_charge(struct page_counter *counter, unsigned long nr_pages, …)`.
#[fentry(function = "page_counter_try_charge")]
pub fn charges_count(ctx: FEntryContext) -> u32 {
    let pages = ctx.arg::<u64>(1).min(config!(charge_pages_max));
    let Some(total) = CHARGES.get_ptr_mut(charges::TOTAL_PAGES) else {
        return 0;
    };
    // SAFETY: a map value.
    let charged_pages = unsafe { atomic::add_and_get(total, pages) };
    let Some(threshold) = CHARGES.get_ptr_mut(charges::THRESHOLD_PAGES) else {
        return 0;
    };
    // SAFETY: a map value.
    let threshold_pages = unsafe { threshold.read_volatile() };
    if threshold_pages == 0 || charged_pages < threshold_pages {
        return 0;
    }
    // The task can lose its CPU at any instruction. While it has the threshold and has sent no record, nobody hears of
    // the crossing; while its record is begun and not sent, the agent sees nothing that comes after it. So what takes
    // time comes first, and whoever is faster meanwhile sends the record.
    let header = header(Kind::ChargesReached, 0);
    // With a full ring each charge comes here.
    let node = if critical_has_room_for::<ChargesReached>() {
        node_pages()
    } else {
        NodePages::UNKNOWN
    };
    // SAFETY: a map value. One CPU takes it; a threshold that the agent has just replaced stays.
    if !unsafe { atomic::replace(threshold, threshold_pages, 0) } {
        return 0;
    }
    note_crossing();
    let generation = CHARGES
        .get_ptr(charges::GENERATION)
        // SAFETY: a map value.
        .map_or(0, |word| unsafe { word.read_volatile() });
    let sent = send_critical(Kind::ChargesReached, |record: *mut ChargesReached| {
        // SAFETY: reserved for this type.
        unsafe {
            record.write(ChargesReached {
                header,
                charged_pages,
                generation,
                node,
            });
        }
    });
    if !sent {
        // The agent never heard of it: the next charge tries again, unless it has armed another one meanwhile.
        // SAFETY: as above.
        unsafe { atomic::replace(threshold, 0, threshold_pages) };
    }
    0
}

/// From now on the agent's answer is awaited ([`crate::last_line`]).
#[inline(always)]
fn note_crossing() {
    if let Some(word) = LAST_LINE_SEEN.get_ptr_mut(seen::CROSSED_NS) {
        // SAFETY: a map value; a helper without arguments. The newest crossing is what counts: there is one for each
        // arming.
        unsafe { word.write_volatile(bpf_ktime_get_ns()) };
    }
}
