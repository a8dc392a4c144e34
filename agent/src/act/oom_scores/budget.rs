//! How much of the thread's time looking at the processes of one cgroup takes in one go, while others wait.
//!
//! A pod decides how many processes it has: to open the scores of 16,000 takes half a second, and to write one of them
//! 2.4 ms where they share their memory, since the kernel then goes over all processes of the machine (fs/proc/base.c,
//! `__set_oom_adj`). How long that waits for its lock is known afterwards only: nothing is written after it then.

use crate::host::clock::now_ns;

/// Processes that are looked at before the time counts: what is cut goes on where it was.
const PROCESSES_MIN: u32 = 32;

/// So many processes looked at, so many scores written, for so long: what is met first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    pub(super) processes: u32,
    pub(super) writes: u32,
    pub(super) for_ns: u64,
}

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
    /// From now on.
    pub(super) fn from_now(allowance: Allowance) -> Self {
        let Allowance {
            processes,
            writes,
            for_ns,
        } = allowance;
        Self {
            processes,
            writes,
            until_ns: now_ns().saturating_add(for_ns),
            looked: 0,
            written: 0,
        }
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
