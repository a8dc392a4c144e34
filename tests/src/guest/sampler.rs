//! Watches one memory crossing from outside of every system under test.
//!
//! Sends SIGUSR1 to the hog, then samples `/proc/meminfo` at a fixed pace and notes when each measure falls below the
//! threshold, when the hog is gone (pidfd), when the kernel killed somebody, and when memory is back. Works while
//! memory is exhausted: everything is opened and allocated before, and locked. The resolution of the crossing is one
//! interval.

use std::io;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};

use plimsoll::host::syscall::sched_fifo_reset_on_fork;

use super::clock::{now_ns, timespec};
use super::kernel_oom::{KernelLog, KernelVictim, vmstat_oom_kill};
use super::memory::MeminfoFile;

/// Above every agent under test, so that a busy one cannot delay the measurement of its own lateness.
const FIFO_PRIORITY: i32 = 60;

/// What to watch, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// The hog: gets SIGUSR1 at the start, and its exit is noted.
    pub pid: u32,
    /// Available bytes below which the threshold counts as crossed.
    pub threshold_bytes: u64,
    /// Time between two samples.
    pub interval_ms: u64,
    /// Gives up after this time.
    pub max_ms: u64,
    /// Goes on for this long after memory is back, so that a late kernel kill is seen.
    pub settle_ms: u64,
}

/// What was seen; a time is `None` when it did not happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// SIGUSR1 sent.
    pub started_ns: u64,
    /// Capacity minus working set (kubelet 1.36) fell below the threshold.
    pub working_set_crossed_ns: Option<u64>,
    /// Capacity minus used fell below it (kernel memory counted).
    pub used_crossed_ns: Option<u64>,
    /// `MemAvailable` fell below it.
    pub mem_available_crossed_ns: Option<u64>,
    /// The hog's pidfd became readable: the process is gone and its memory freed.
    pub gone_ns: Option<u64>,
    /// First kill by the kernel.
    pub kernel_oom_ns: Option<u64>,
    /// Growth of `oom_kill` in `/proc/vmstat`.
    pub kernel_oom_kills: u64,
    /// Whom the kernel killed.
    pub kernel_victims: Vec<KernelVictim>,
    /// The hog gone and capacity minus working set above the threshold again.
    pub recovered_ns: Option<u64>,
    /// Least capacity minus working set.
    pub available_bytes_min: u64,
    /// Least `MemAvailable`.
    pub mem_available_bytes_min: u64,
    /// `MemTotal`.
    pub capacity_bytes: u64,
    /// Samples taken.
    pub samples: u64,
    /// Longest time between two samples: the error bound of the crossing times.
    pub gap_ns_max: u64,
}

/// Protects this process from what it measures: locked in memory, never the OOM killer's choice, SCHED_FIFO.
///
/// # Errors
/// Needs root.
pub fn protect() -> io::Result<()> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?;
    std::fs::write("/proc/self/oom_score_adj", "-1000")?;
    sched_fifo_reset_on_fork(FIFO_PRIORITY).map_err(io::Error::other)
}

/// Starts the hog and watches it.
///
/// # Errors
/// The hog does not exist, or `/proc` or `/dev/kmsg` cannot be read.
pub fn watch(plan: Watch) -> io::Result<Seen> {
    let pid = i32::try_from(plan.pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("no such pid"))?;
    let hog = pidfd_open(pid, PidfdFlags::empty())?;
    let mut log = KernelLog::from_now()?;
    let mut meminfo = MeminfoFile::open()?;
    let kills_before = vmstat_oom_kill()?;
    let interval_ns = plan.interval_ms.max(1) * 1_000_000;
    let mut seen = Seen {
        available_bytes_min: u64::MAX,
        mem_available_bytes_min: u64::MAX,
        kernel_victims: Vec::with_capacity(64),
        ..Seen::default()
    };
    kill_process(pid, Signal::USR1)?;
    seen.started_ns = now_ns();
    let end_ns = seen.started_ns + plan.max_ms * 1_000_000;
    let (mut last_ns, mut next_ns) = (seen.started_ns, seen.started_ns);
    loop {
        let info = meminfo.read()?;
        let at_ns = now_ns();
        let available_bytes = info.working_set_available_bytes();
        seen.samples += 1;
        seen.gap_ns_max = seen.gap_ns_max.max(at_ns - last_ns);
        last_ns = at_ns;
        seen.capacity_bytes = info.total_bytes;
        seen.available_bytes_min = seen.available_bytes_min.min(available_bytes);
        seen.mem_available_bytes_min = seen.mem_available_bytes_min.min(info.available_bytes);
        let below = |bytes: u64, crossed: &mut Option<u64>| {
            if crossed.is_none() && bytes < plan.threshold_bytes {
                *crossed = Some(at_ns);
            }
        };
        below(available_bytes, &mut seen.working_set_crossed_ns);
        below(info.used_available_bytes(), &mut seen.used_crossed_ns);
        below(info.available_bytes, &mut seen.mem_available_crossed_ns);
        if seen.gone_ns.is_some()
            && seen.recovered_ns.is_none()
            && available_bytes >= plan.threshold_bytes
        {
            seen.recovered_ns = Some(at_ns);
        }
        let settled = seen
            .recovered_ns
            .is_some_and(|at| at_ns > at + plan.settle_ms * 1_000_000);
        if settled || at_ns > end_ns {
            break;
        }
        next_ns = (next_ns + interval_ns).max(at_ns);
        loop {
            let now = now_ns();
            if now >= next_ns {
                break;
            }
            let mut fds = [
                PollFd::new(&log, PollFlags::IN),
                PollFd::new(&hog, PollFlags::IN),
            ];
            let watched = if seen.gone_ns.is_some() { 1 } else { 2 };
            poll(&mut fds[..watched], Some(&timespec(next_ns - now)))?;
            let [log_ready, hog_ready] = fds.map(|fd| !fd.revents().is_empty());
            let now = now_ns();
            if hog_ready && seen.gone_ns.is_none() {
                seen.gone_ns = Some(now);
            }
            if log_ready {
                log.drain(now, &mut seen.kernel_victims)?;
            }
        }
    }
    log.drain(now_ns(), &mut seen.kernel_victims)?;
    seen.kernel_oom_ns = seen.kernel_victims.first().map(|victim| victim.seen_ns);
    seen.kernel_oom_kills = vmstat_oom_kill()?.saturating_sub(kills_before);
    Ok(seen)
}
