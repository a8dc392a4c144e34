//! `memory.events` of a cgroup v2: what happened to it, reported by the kernel without polling.
//!
//! **Problem.** Without BPF the agent still wants to know at once that a pod hit its limit or was OOM-killed.
//! **Approach.** kernfs marks this file with POLLPRI when a counter moves
//! (Documentation/admin-guide/cgroup-v2.rst). It is opened once; a `pread` from offset 0 gives all counters and
//! re-arms the notification. Nothing here allocates after opening.
//! **Terms.** *delta*: what was counted since the previous read of the same file. Several events within 10 ms come as
//! one notification (kernel/cgroup/cgroup.c CGROUP_FILE_NOTIFY_MIN_INTV); none is lost, because the file counts.
//!
//! In an event loop: register for priority readiness (`Interest::PRIORITY`), read once after registering, and on each
//! wake clear readiness
//! **before** reading. The first wake comes at once: kernfs reports a file that was never read. A wake is also how a
//! removed cgroup shows; the read then says [`FileError::Vanished`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::host::file::{ControlFile, FileError};

/// Counters of `memory.events`, each hierarchical: an event in a child counts in every parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryEventCounts {
    /// Reclaimed although below `memory.low`.
    pub low: u64,
    /// Throttled into direct reclaim because of `memory.high`.
    pub high: u64,
    /// About to go over `memory.max`.
    pub max: u64,
    /// The limit was reached and an allocation was about to fail.
    pub oom: u64,
    /// Processes killed by any OOM killer.
    pub oom_kill: u64,
    /// Group OOM kills; 0 on kernels before 5.17, which do not count them.
    pub oom_group_kill: u64,
}

impl MemoryEventCounts {
    /// What was counted since `earlier`. Counters never fall, so 0 stands for "did not move".
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            low: self.low.saturating_sub(earlier.low),
            high: self.high.saturating_sub(earlier.high),
            max: self.max.saturating_sub(earlier.max),
            oom: self.oom.saturating_sub(earlier.oom),
            oom_kill: self.oom_kill.saturating_sub(earlier.oom_kill),
            oom_group_kill: self.oom_group_kill.saturating_sub(earlier.oom_group_kill),
        }
    }

    /// Whether nothing at all was counted.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// An open `memory.events` (or `memory.events.local`) with the counts of the last read.
#[derive(Debug)]
pub struct MemoryEvents {
    file: ControlFile,
    last: MemoryEventCounts,
}

impl MemoryEvents {
    /// Opens `memory.events` in the directory of a cgroup and takes its counters as the starting point.
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the cgroup is gone or the memory controller is not enabled for it.
    pub fn open(cgroup: &Path) -> Result<Self, FileError> {
        let mut events = Self {
            file: ControlFile::open(cgroup.join("memory.events"))?,
            last: MemoryEventCounts::default(),
        };
        events.read_delta()?;
        Ok(events)
    }

    /// Reads the counters, re-arms the notification, and returns what was counted since the last read.
    ///
    /// # Errors
    /// [`FileError::Vanished`] once the cgroup is removed; [`FileError::Malformed`] for a file without a counter that
    /// every kernel has. The last counts stay as they were, so the next good read reports everything.
    pub fn read_delta(&mut self) -> Result<MemoryEventCounts, FileError> {
        let now = self.read_counts()?;
        let delta = now.since(&self.last);
        self.last = now;
        Ok(delta)
    }

    /// The counts of the last read.
    pub fn counts(&self) -> MemoryEventCounts {
        self.last
    }

    fn read_counts(&self) -> Result<MemoryEventCounts, FileError> {
        let [low, high, max, oom, oom_kill, oom_group_kill] =
            self.file
                .read_keyed(&["low", "high", "max", "oom", "oom_kill", "oom_group_kill"])?;
        let (Some(low), Some(high), Some(max), Some(oom), Some(oom_kill)) =
            (low, high, max, oom, oom_kill)
        else {
            return Err(self
                .file
                .malformed(1, "lines for low, high, max, oom and oom_kill"));
        };
        Ok(MemoryEventCounts {
            low,
            high,
            max,
            oom,
            oom_kill,
            oom_group_kill: oom_group_kill.unwrap_or(0),
        })
    }

    /// Waits until a counter moved or the cgroup is gone, at most `timeout`; `false` when nothing happened. For callers
    /// without an event loop.
    ///
    /// # Errors
    /// The kernel's answer to `poll`.
    pub fn wait(&self, timeout: Duration) -> std::io::Result<bool> {
        wait_for_change(&self.file, timeout)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }
}

impl AsFd for MemoryEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for MemoryEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_fd().as_raw_fd()
    }
}

/// kernfs_generic_poll says POLLERR together with POLLPRI for an ordinary change, so POLLERR means nothing by itself
/// here.
fn wait_for_change(file: &ControlFile, timeout: Duration) -> std::io::Result<bool> {
    let timeout = Timespec::try_from(timeout).ok();
    let mut fds = [PollFd::new(file, PollFlags::PRI)];
    Ok(rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a cgroup.
    fn cgroup(events: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.events"), events).unwrap();
        dir
    }

    const QUIET: &str =
        "low 0\nhigh 5\nmax 2\noom 1\noom_kill 1\noom_group_kill 0\nsock_throttled 0\n";

    #[test]
    fn what_came_before_opening_is_not_reported() {
        let dir = cgroup(QUIET);
        let mut events = MemoryEvents::open(dir.path()).unwrap();
        assert!(events.read_delta().unwrap().is_zero());
        assert_eq!(events.counts().high, 5);
    }

    #[test]
    fn deltas() {
        let dir = cgroup(QUIET);
        let mut events = MemoryEvents::open(dir.path()).unwrap();
        std::fs::write(
            dir.path().join("memory.events"),
            "low 0\nhigh 9\nmax 2\noom 2\noom_kill 4\noom_group_kill 1\n",
        )
        .unwrap();
        let delta = events.read_delta().unwrap();
        assert_eq!(
            delta,
            MemoryEventCounts {
                high: 4,
                oom: 1,
                oom_kill: 3,
                oom_group_kill: 1,
                ..Default::default()
            }
        );
        assert!(events.read_delta().unwrap().is_zero(), "reported once");
    }

    #[test]
    fn an_old_kernel_has_no_group_kills() {
        let dir = cgroup("low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n");
        let events = MemoryEvents::open(dir.path()).unwrap();
        assert_eq!(
            events.counts(),
            MemoryEventCounts {
                low: 1,
                high: 2,
                max: 3,
                oom: 4,
                oom_kill: 5,
                oom_group_kill: 0
            }
        );
    }

    #[test]
    fn a_bad_read_loses_nothing() {
        let dir = cgroup(QUIET);
        let path = dir.path().join("memory.events");
        let mut events = MemoryEvents::open(dir.path()).unwrap();
        for (bad, wanted_line) in [
            ("", 1),
            ("low 0\nhigh 9\n", 1),
            ("low 0\nhigh many\nmax 2\noom 1\noom_kill 1\n", 2),
            ("low 0\nhigh 9\nmax 2\noom 1\noom_kill -1\n", 5),
        ] {
            std::fs::write(&path, bad).unwrap();
            let error = events.read_delta().unwrap_err();
            assert!(
                matches!(error, FileError::Malformed { line, .. } if line == wanted_line),
                "{bad:?}: {error}"
            );
        }
        std::fs::write(&path, "low 0\nhigh 7\nmax 2\noom 1\noom_kill 1\n").unwrap();
        assert_eq!(events.read_delta().unwrap().high, 2);
    }

    #[test]
    fn a_missing_cgroup_has_vanished() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            MemoryEvents::open(&dir.path().join("pod1"))
                .unwrap_err()
                .is_vanished()
        );
    }
}
