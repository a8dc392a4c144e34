//! The bare ring buffer, for `cargo xtask bench signals`: what a record costs when nothing is looked up, aggregated or
//! filtered.
//!
//! Not part of the agent. Writing to one's own `oom_score_adj` sends a record that holds nothing but its time and wakes
//! the reader: no signal can arrive sooner in the same guest.
#![no_std]
#![no_main]

use aya_ebpf::{
    bindings::BPF_RB_FORCE_WAKEUP,
    helpers::bpf_ktime_get_ns,
    macros::{btf_tracepoint, map},
    maps::RingBuf,
    programs::BtfTracePointContext,
};

#[map]
static PINGS: RingBuf = RingBuf::with_byte_size(256 << 10, 0);

/// `oom_score_adj_update(struct task_struct *task)`.
#[btf_tracepoint(function = "oom_score_adj_update")]
pub fn ping(_ctx: BtfTracePointContext) -> i32 {
    if let Some(mut entry) = PINGS.reserve::<u64>(0) {
        // SAFETY: a helper without arguments.
        entry.write(unsafe { bpf_ktime_get_ns() });
        entry.submit(u64::from(BPF_RB_FORCE_WAKEUP));
    }
    0
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
