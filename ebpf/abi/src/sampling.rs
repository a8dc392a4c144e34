//! Samples of perf events: what the programs of a tracing session send.
//!
//! A sample has no fixed length: its [`Sample`] is followed by the return addresses of the kernel, innermost first, and
//! then by those of user space. The programs are an object of their own (`plimsoll trace` loads it, the agent does
//! not), with a ring of their own.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::COMM_BYTES;

/// Version of the layouts in this file.
pub const SAMPLING_VERSION: u16 = 1;

/// Frames of one stack that are kept, the innermost ones: the default of `kernel.perf_event_max_stack`.
pub const FRAMES_MAX: usize = 127;

/// Bytes of a frame: an address.
pub const FRAME_BYTES: usize = 8;

/// Cgroups that can be selected.
pub const WANTED_MAX: u32 = 1024;

/// How far up from the cgroup of a task a selected cgroup is looked for.
pub const LEVELS_MAX: usize = 16;

/// The least that the ring of samples has.
pub const SAMPLES_BYTES_MIN: u32 = 1 << 20;

/// What was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum SampleEvent {
    /// Time on a CPU; a sample stands for nanoseconds.
    CpuClock = 0,
    /// Page faults; a sample stands for a number of them.
    PageFaults = 1,
    /// Switches away from a task; a sample stands for a number of them.
    ContextSwitches = 2,
}

impl SampleEvent {
    /// All of them, in the order of their numbers.
    pub const ALL: [SampleEvent; 3] = [
        SampleEvent::CpuClock,
        SampleEvent::PageFaults,
        SampleEvent::ContextSwitches,
    ];

    /// The number on the wire, and the index among [`counts`].
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// perf's own name of the event.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SampleEvent::CpuClock => "cpu-clock",
            SampleEvent::PageFaults => "page-faults",
            SampleEvent::ContextSwitches => "context-switches",
        }
    }
}

impl TryFrom<u16> for SampleEvent {
    type Error = u16;

    fn try_from(number: u16) -> Result<Self, u16> {
        SampleEvent::ALL
            .into_iter()
            .find(|event| event.number() == number)
            .ok_or(number)
    }
}

/// The fixed part of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sample {
    /// When, `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// The task's memory cgroup.
    pub cgroup_id: u64,
    /// The selected cgroup that it is in or below; 0 where none is selected.
    pub wanted_id: u64,
    /// How much the sample stands for, in the unit of its event.
    pub weight: u64,
    /// Process id in the initial namespace.
    pub tgid: u32,
    /// Thread id in the initial namespace.
    pub tid: u32,
    /// On which CPU.
    pub cpu: u32,
    /// Bytes of kernel addresses that follow.
    pub kernel_bytes: u16,
    /// Bytes of user addresses after those.
    pub user_bytes: u16,
    /// [`SAMPLING_VERSION`].
    pub version: u16,
    /// A [`SampleEvent`].
    pub event: u16,
    /// Zero.
    pub pad: u32,
    /// The thread's command name, padded with NULs.
    pub comm: [u8; COMM_BYTES],
}

const _: () = assert!(size_of::<Sample>() == 72);

/// Words of the `SAMPLE_COUNTS` map, one per CPU: two for each [`SampleEvent`].
pub mod counts {
    use super::SampleEvent;

    /// Length.
    pub const WORDS: u32 = 2 * SampleEvent::ALL.len() as u32;

    /// Samples that the programs tried to send.
    #[must_use]
    pub const fn produced(event: SampleEvent) -> u32 {
        2 * event as u32
    }

    /// Those that found the ring full.
    #[must_use]
    pub const fn dropped(event: SampleEvent) -> u32 {
        2 * event as u32 + 1
    }
}

/// What is decided before the programs are loaded.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SamplingConfig {
    /// 1 when only tasks of the cgroups in the map `WANTED` are sampled.
    pub selected_only: u32,
    /// Where `bpf_perf_event_data.sample_period` is, in bytes: behind the registers of user space, of which each
    /// architecture has its own. One of [`PERIOD_AT`].
    pub period_at: u32,
}

/// The places that the programs know: x86-64 has 21 registers before it, 64-bit Arm 34.
pub const PERIOD_AT: [u32; 2] = [21 * 8, 34 * 8];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_counters_are_told_apart() {
        for event in SampleEvent::ALL {
            assert_eq!(SampleEvent::try_from(event.number()), Ok(event));
            assert!(counts::dropped(event) < counts::WORDS);
            assert_ne!(counts::produced(event), counts::dropped(event));
        }
        assert_eq!(SampleEvent::try_from(3), Err(3));
    }
}
