//! One do-nothing program per program type, on targets that nothing else calls (the kernel's own BPF self-test).
//!
//! Loading and attaching one tells whether this host allows the type at all, and with which errno it refuses, before
//! the hooks are tried one by one.

use aya_ebpf::{
    helpers::bpf_probe_read_kernel,
    macros::{btf_tracepoint, fentry},
    programs::{BtfTracePointContext, FEntryContext},
};

/// On entry of `bpf_fentry_test1(int a)`.
#[fentry(function = "bpf_fentry_test1")]
pub fn canary_fentry(_ctx: FEntryContext) -> u32 {
    0
}

/// `bpf_test_finish(int *err)`, with a probe read: under lockdown=confidentiality programs without one still load.
#[btf_tracepoint(function = "bpf_test_finish")]
pub fn canary_tp_btf(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the helper checks the address.
    let read = unsafe { bpf_probe_read_kernel(ctx.arg::<*const i32>(0)) };
    // Kept, so that the read is not optimised away.
    core::hint::black_box(read.is_ok());
    0
}
