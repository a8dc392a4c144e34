//! What the programs cost, as the kernel itself counts it: for benchmarks, not for the agent.

use std::os::fd::OwnedFd;
use std::time::Duration;

use aya::sys::{Stats, enable_stats};

use super::error::reason;
use super::{Bpf, BpfError};

/// What one program has run since the kernel counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunStats {
    /// Name of the program in the object.
    pub program: &'static str,
    /// How often.
    pub count: u64,
    /// For how long in all; measuring costs some of it.
    pub time: Duration,
}

/// Lets the kernel count runs and run time of every BPF program on this host, for as long as the descriptor is open.
///
/// # Errors
/// When the kernel refuses: before 5.8, or without CAP_SYS_ADMIN.
pub fn count_runs() -> Result<OwnedFd, BpfError> {
    enable_stats(Stats::RunTime).map_err(|error| BpfError::Stats {
        reason: reason(&error),
    })
}

impl Bpf {
    /// What each program that can run here has run while [`count_runs`] was in force.
    ///
    /// # Errors
    /// When the kernel does not show a program.
    pub fn run_stats(&self) -> Result<Vec<RunStats>, BpfError> {
        let usable = self.hooks.iter().filter(|hook| hook.is_usable());
        usable
            .map(|hook| {
                let info = self
                    .program_info(hook.program)
                    .map_err(|why| BpfError::Stats {
                        reason: format!("{}: {why}", hook.program),
                    })?;
                Ok(RunStats {
                    program: hook.program,
                    count: info.run_count(),
                    time: info.run_time(),
                })
            })
            .collect()
    }
}
