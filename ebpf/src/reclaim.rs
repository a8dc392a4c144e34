//! The node's free memory falling below its zone watermarks.
//!
//! Below "low" a zone wakes kswapd; below "min" the allocating task must reclaim by itself, and if that finds nothing
//! the OOM killer comes. These two tracepoints are the event path on hosts without fentry, and everywhere the early
//! warning of a kill for the whole node. Both come in floods when they come, hence the window.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::btf_tracepoint, programs::BtfTracePointContext};
use plimsoll_abi::{Kind, NodeReclaim, UNKNOWN_U32, reclaim_phase};

use crate::{
    atomic,
    layout::{config, offset},
    log::debug,
    maps::{DIRECT, NODE_RECLAIM, NODES},
    record::{header, send_critical_unasked},
};

/// `mm_vmscan_kswapd_wake(int nid, int zid, int order)`.
#[btf_tracepoint(function = "mm_vmscan_kswapd_wake")]
pub fn kswapd_wake(ctx: BtfTracePointContext) -> i32 {
    let node: u32 = ctx.arg(0);
    let order: u32 = ctx.arg(2);
    debug!(&ctx, "kswapd of node {} woken for order {}", node, order);
    note(node.min(NODES - 1), reclaim_phase::KSWAPD_WAKE, node, order);
    0
}

/// `mm_vmscan_direct_reclaim_begin(…, int order, …)`; the position of `order` changed over time and is found by name.
#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_begin")]
pub fn direct_reclaim(ctx: BtfTracePointContext) -> i32 {
    // Both are loaded at a fixed offset and hidden from LLVM, which would otherwise compute the offset, and 6.1 and
    // 6.12 refuse a context pointer that was computed.
    let first: u32 = core::hint::black_box(ctx.arg(0));
    let second: u32 = core::hint::black_box(ctx.arg(1));
    let order = if offset!(direct_reclaim_order_arg) == 0 {
        first
    } else {
        second
    };
    note(DIRECT, reclaim_phase::DIRECT_RECLAIM, UNKNOWN_U32, order);
    0
}

#[inline(always)]
fn note(index: u32, phase: u32, node: u32, order: u32) {
    let Some(totals) = NODE_RECLAIM.get_ptr_mut(index) else {
        return;
    };
    // SAFETY: a map value of two words, throughout; a helper without arguments.
    unsafe {
        atomic::add(&raw mut (*totals)[1], 1);
        if !atomic::claim_window(
            &raw mut (*totals)[0],
            bpf_ktime_get_ns(),
            config!(window_ns),
        ) {
            return;
        }
        send_critical_unasked(Kind::NodeReclaim, |record: *mut NodeReclaim| {
            record.write(NodeReclaim {
                header: header(Kind::NodeReclaim, 0),
                count: (*totals)[1],
                phase,
                node,
                order,
                pad: 0,
            });
        });
    }
}
