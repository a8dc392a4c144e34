//! What the programs cost, as the kernel itself counts it where somebody has it count.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use super::error::reason;
use super::{Bpf, BpfError};

/// What the kernel counts of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunCounts {
    /// Name of the program in the object.
    pub program: &'static str,
    /// How often it has run; 0 unless statistics are on (`kernel.bpf_stats_enabled`, or BPF_ENABLE_STATS by anybody).
    pub count: u64,
    /// For how long in all, while statistics were on; measuring costs some of it.
    pub time: Duration,
    /// How often it did not run, because a task had lost this CPU while it was in the program: always counted. `None`
    /// before Linux 5.12.
    pub missed: Option<u64>,
}

/// A program whose runs can be read on any thread, without a word to the loop.
#[derive(Debug)]
pub struct RunMeter {
    program: &'static str,
    fd: OwnedFd,
}

impl RunMeter {
    /// What the program has run so far, from `/proc/self/fdinfo`.
    ///
    /// # Errors
    /// When procfs does not show it.
    pub fn read(&self) -> Result<RunCounts, BpfError> {
        let path = format!("/proc/self/fdinfo/{}", self.fd.as_raw_fd());
        let failed = |why: String| BpfError::Stats {
            reason: format!("{}: {path}: {why}", self.program),
        };
        let text = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
        let (count, time) =
            runs(&text).ok_or_else(|| failed("no run_cnt and run_time_ns".to_owned()))?;
        Ok(RunCounts {
            program: self.program,
            count,
            time,
            missed: number(&text, "recursion_misses"),
        })
    }
}

/// `run_cnt` and `run_time_ns` of a program's fdinfo (kernel/bpf/syscall.c `bpf_prog_show_fdinfo`).
fn runs(fdinfo: &str) -> Option<(u64, Duration)> {
    let time = Duration::from_nanos(number(fdinfo, "run_time_ns")?);
    Some((number(fdinfo, "run_cnt")?, time))
}

/// A line of fdinfo.
fn number(fdinfo: &str, name: &str) -> Option<u64> {
    let line = fdinfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.strip_prefix(':')?.trim().parse().ok()
}

impl Bpf {
    /// A meter for each program that is loaded. A program that this process may not have a descriptor of (pinned by
    /// another agent, and no CAP_SYS_ADMIN) is missing.
    pub fn run_meters(&self) -> Vec<RunMeter> {
        let attached = self.hooks.iter().filter(|hook| hook.is_attached());
        attached
            .filter_map(|hook| {
                let program = hook.program;
                let fd = self
                    .program_info(program)
                    .and_then(|info| info.fd().map_err(|error| reason(&error)))
                    .and_then(|fd| {
                        let owned = fd.as_fd().try_clone_to_owned();
                        owned.map_err(|error| error.to_string())
                    });
                match fd {
                    Ok(fd) => Some(RunMeter { program, fd }),
                    Err(why) => {
                        tracing::debug!(program, why, "its run time is not shown");
                        None
                    }
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_read_from_fdinfo() {
        let text = "pos:\t0\nflags:\t02000002\nprog_type:\t26\nprog_id:\t41\nrun_time_ns:\t1500\nrun_cnt:\t3\nverified_insns:\t9\n";
        assert_eq!(runs(text), Some((3, Duration::from_nanos(1500))));
        assert_eq!(number(text, "recursion_misses"), None);
        assert_eq!(
            number("recursion_misses:\t12\n", "recursion_misses"),
            Some(12)
        );
        // Before Linux 5.1, or no program's descriptor.
        assert_eq!(runs("pos:\t0\n"), None);
        assert_eq!(runs("run_time_ns:\tx\nrun_cnt:\t3\n"), None);
    }
}
