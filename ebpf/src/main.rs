//! Plimsoll's programs in the kernel.
//!
//! Problem: one object file must load on every kernel of the test matrix, report exactly what happens there, and cost
//! next to nothing while nothing happens. Approach: typed loads at offsets that the agent found by name in the running
//! kernel's BTF ([`layout`]), three rings whose every drop is counted ([`record`]), running totals instead of one
//! record per event where events come in floods ([`maps`]), and one file per hook family for the programs.
//!
//! Each program stands alone: the agent loads and attaches them one by one, and a kernel that refuses one of them costs
//! that one signal only.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(
    internal_features,
    reason = "core's atomics have no read-modify-write on this target; the intrinsics do"
)]

mod atomic;
mod canary;
mod charges;
mod counted;
mod last_line;
mod layout;
mod lifecycle;
mod log;
mod maps;
mod memcg;
mod node;
mod oom;
mod processes;
mod reclaim;
mod record;
mod refault;
mod stall;
mod throttle;

/// The helpers used here are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
