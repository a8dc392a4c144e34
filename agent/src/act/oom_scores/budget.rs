//! How much of the loop's time looking at processes takes in one go.
//!
//! A pod decides how many processes it has: to open the scores of 16,000 takes half a second, and to write one of them
//! 2.4 ms where they share their memory, since the kernel then goes over all processes of the machine (fs/proc/base.c,
//! `__set_oom_adj`).

use crate::host::clock::now_ns;

/// Processes that are looked at before the time counts: what is cut goes on where it was.
const PROCESSES_MIN: u32 = 32;

/// What may still be done.
#[derive(Debug)]
pub(super) struct Budget {
    processes: u32,
    writes: u32,
    until_ns: u64,
    looked: u32,
    written: u32,
}

impl Budget {
    /// So many processes looked at, so many scores written, for so long from now: what is met first.
    pub(super) fn of(processes: u32, writes: u32, for_ns: u64) -> Self {
        Self {
            processes,
            writes,
            until_ns: now_ns().saturating_add(for_ns),
            looked: 0,
            written: 0,
        }
    }

    pub(super) fn unlimited() -> Self {
        Self::of(u32::MAX, u32::MAX, u64::MAX)
    }

    pub(super) fn looked(&mut self) {
        self.looked = self.looked.saturating_add(1);
    }

    pub(super) fn written(&mut self) {
        self.written = self.written.saturating_add(1);
    }

    /// Whether the rest has to wait.
    pub(super) fn is_over(&self) -> bool {
        self.looked >= self.processes
            || self.written >= self.writes
            || (self.looked >= PROCESSES_MIN || self.written > 0) && now_ns() >= self.until_ns
    }
}
