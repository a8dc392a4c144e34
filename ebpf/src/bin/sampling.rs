//! Samples of perf events with their stacks: the programs of a tracing session.
//!
//! Problem: a session wants to see where tasks spend their time, fault and stop running, by cgroup, and the agent must
//! not carry anything for it. Approach: an object of its own, so that the agent's has no program, map or byte more; it
//! is loaded by `plimsoll trace` alone and goes with it. Tasks that are not selected are left out here: the ids of the
//! cgroups from the task's own up to the root are looked up in a map. What is left is put together in memory of this
//! CPU and event, and sent as one record of the length that its stacks have.
//!
//! The kernel runs at most one program of this type on a CPU at a time, so nothing here is shared; each event has its
//! own memory all the same.
//!
//! The idle task is left out: it belongs to no cgroup.
#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(
    internal_features,
    reason = "core's atomics have no read-modify-write on this target; the intrinsics do"
)]

#[path = "../atomic.rs"]
#[expect(dead_code, reason = "the other object's")]
mod atomic;
#[path = "../layout.rs"]
#[expect(dead_code, unused_imports, reason = "the other object's")]
mod layout;

use aya_ebpf::{
    EbpfContext as _,
    bindings::{BPF_F_USER_STACK, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_get_stack,
        bpf_ktime_get_ns, bpf_ringbuf_output, generated::bpf_get_current_task_btf,
    },
    macros::{map, perf_event},
    maps::{HashMap, PerCpuArray, RingBuf},
    programs::PerfEventContext,
};
use plimsoll_abi::sampling::{
    FRAME_BYTES, FRAMES_MAX, LEVELS_MAX, PERIOD_AT, SAMPLES_BYTES_MIN, SAMPLING_VERSION, Sample,
    SampleEvent, SamplingConfig, WANTED_MAX, counts,
};

use crate::layout::{cgroup_id, frozen, load_ptr, offset, task_memory_cgroup};

/// Bytes of a stack, and one less than the power of two above: a length that is masked with it is one that the verifier
/// can follow.
const STACK_BYTES: usize = FRAMES_MAX * FRAME_BYTES;
const STACK_MASK: u64 = 1023;
const _: () = assert!(STACK_BYTES <= STACK_MASK as usize);

/// A record while it is put together.
#[repr(C)]
struct Scratch {
    head: Sample,
    /// Kernel addresses, then those of user space.
    stacks: [u64; 2 * (STACK_MASK as usize + 1) / FRAME_BYTES],
}

/// Samples. The session reads them every few milliseconds; it gives the ring room for the CPUs there are.
#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(SAMPLES_BYTES_MIN, 0);

/// `plimsoll_abi::sampling::counts`.
#[map]
static SAMPLE_COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(counts::WORDS, 0);

/// Memory for one record, by event.
#[map]
static SCRATCH: PerCpuArray<Scratch> =
    PerCpuArray::with_max_entries(SampleEvent::ALL.len() as u32, 0);

/// Id of a selected memory cgroup → 1.
#[map]
static WANTED: HashMap<u64, u64> = HashMap::with_max_entries(WANTED_MAX, 0);

#[unsafe(no_mangle)]
static SAMPLING: SamplingConfig = SamplingConfig {
    selected_only: 0,
    period_at: 0,
};

/// By frequency or period of the CPU's clock.
#[perf_event]
pub fn sample_cpu_clock(ctx: PerfEventContext) -> u32 {
    sample(&ctx, SampleEvent::CpuClock)
}

/// At a page fault.
#[perf_event]
pub fn sample_page_faults(ctx: PerfEventContext) -> u32 {
    sample(&ctx, SampleEvent::PageFaults)
}

/// At a switch, while the task that stops running is still the current one: its stack says what it waits for.
#[perf_event]
pub fn sample_context_switches(ctx: PerfEventContext) -> u32 {
    sample(&ctx, SampleEvent::ContextSwitches)
}

#[inline(always)]
fn sample(ctx: &PerfEventContext, event: SampleEvent) -> u32 {
    let thread = bpf_get_current_pid_tgid();
    if thread == 0 {
        return 0;
    }
    // SAFETY: a helper without arguments; its result is typed.
    let task = unsafe { bpf_get_current_task_btf() } as *const u8;
    // SAFETY: typed.
    let cgroup = unsafe { task_memory_cgroup(task) };
    let wanted_id = if frozen(&SAMPLING.selected_only) == 1 {
        match wanted(cgroup) {
            Some(id) => id,
            None => return 0,
        }
    } else {
        0
    };
    let Some(scratch) = SCRATCH.get_ptr_mut(u32::from(event.number())) else {
        return 0;
    };
    // SAFETY: a map value of this CPU and event, that nothing else writes; a typed pointer; a field of the context that
    // the verifier knows; helpers that write no more bytes than they are given room for.
    let sent = unsafe {
        let stacks = (&raw mut (*scratch).stacks).cast::<u8>();
        let kernel_bytes = length(bpf_get_stack(
            ctx.as_ptr(),
            stacks.cast(),
            STACK_BYTES as u32,
            0,
        ));
        let user_bytes = length(bpf_get_stack(
            ctx.as_ptr(),
            stacks.add(kernel_bytes as usize).cast(),
            STACK_BYTES as u32,
            u64::from(BPF_F_USER_STACK),
        ));
        (&raw mut (*scratch).head).write(Sample {
            ts_ns: bpf_ktime_get_ns(),
            cgroup_id: cgroup_id(cgroup),
            wanted_id,
            weight: period(ctx),
            tgid: (thread >> 32) as u32,
            tid: thread as u32,
            cpu: bpf_get_smp_processor_id(),
            kernel_bytes: kernel_bytes as u16,
            user_bytes: user_bytes as u16,
            version: SAMPLING_VERSION,
            event: event.number(),
            pad: 0,
            comm: bpf_get_current_comm().unwrap_or_default(),
        });
        bpf_ringbuf_output(
            (&raw const SAMPLES).cast_mut().cast(),
            scratch.cast(),
            size_of::<Sample>() as u64 + kernel_bytes + user_bytes,
            u64::from(BPF_RB_NO_WAKEUP),
        )
    };
    count(counts::produced(event));
    if sent != 0 {
        count(counts::dropped(event));
    }
    0
}

/// How many of what is sampled this sample stands for. Where the context has it depends on the architecture, and the
/// object is one for all: each place is loaded at a fixed offset, in a branch of its own that the verifier leaves out
/// on the other one. Hidden from LLVM, which would otherwise compute the offset.
#[inline(always)]
fn period(ctx: &PerfEventContext) -> u64 {
    let [x86_64, arm64] = PERIOD_AT;
    let context = ctx.ctx.cast::<u8>().cast_const();
    // SAFETY: a member of the context, at the place that the agent has found by its name; the verifier checks the load.
    unsafe {
        if frozen(&SAMPLING.period_at) == arm64 {
            core::hint::black_box(context.add(arm64 as usize).cast::<u64>().read_volatile())
        } else {
            core::hint::black_box(context.add(x86_64 as usize).cast::<u64>().read_volatile())
        }
    }
}

/// The bytes that a stack has; none if it could not be had.
#[inline(always)]
fn length(result: i64) -> u64 {
    let bytes = if result < 0 { 0 } else { result as u64 };
    // Hidden from LLVM, which knows that the mask does nothing; the verifier does not.
    core::hint::black_box(bytes) & STACK_MASK
}

/// The selected cgroup that is this one or an ancestor of it.
#[inline(always)]
fn wanted(mut cgroup: *const u8) -> Option<u64> {
    for _ in 0..LEVELS_MAX {
        if cgroup.is_null() {
            break;
        }
        // SAFETY: typed by the load that it comes from.
        let id = unsafe { cgroup_id(cgroup) };
        if WANTED.get_ptr(id).is_some() {
            return Some(id);
        }
        // SAFETY: typed members of typed pointers; NULL above the root reads as NULL.
        cgroup = unsafe {
            let css = load_ptr(cgroup, offset!(cgroup_self) + offset!(css_parent));
            load_ptr(css, offset!(css_cgroup))
        };
    }
    None
}

#[inline(always)]
fn count(index: u32) {
    if let Some(word) = SAMPLE_COUNTS.get_ptr_mut(index) {
        // SAFETY: a map value.
        unsafe { atomic::add(word, 1) };
    }
}

/// The helpers used here are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
