//! cgroup v1 memory notifications: an eventfd that the kernel signals, registered through `cgroup.event_control`.
//!
//! **Problem.** On cgroup v1 there is neither `memory.events` nor `memory.pressure`, and a host that still uses v1 is
//! often one that refuses BPF.
//! **Approach.** `"<eventfd> <fd of a control file> <arguments>"` written to `cgroup.event_control` ties the eventfd to
//! that file (Documentation/admin-guide/cgroup-v1/memory.rst §9-11): `memory.usage_in_bytes` with an absolute usage,
//! `memory.oom_control` for "out of memory", `memory.pressure_level` for reclaim that gets harder. Closing the eventfd
//! unregisters it, so each [`Notification`] is armed by being made and disarmed by being dropped; another threshold is
//! another notification.
//! **Terms.** *threshold*: usage in bytes; crossing it in either direction signals, as often as it happens.
//!
//! Limits: thresholds are looked at once per 128 page events of one CPU (mm/memcontrol-v1.c THRESHOLDS_EVENTS_TARGET),
//! so usage is then up to half a MiB per CPU past the line. Removing the cgroup signals as well: read a file of it to
//! find out. Debian builds its kernels without cgroup v1 memory from 6.12 on; `CONFIG_PREEMPT_RT` kernels have no
//! `cgroup.event_control` for memory.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::host::file::{ControlFile, FileError};
use crate::host::shown::Show as _;

/// How hard reclaim has become (Documentation/admin-guide/cgroup-v1/memory.rst §11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PressureLevel {
    /// The kernel reclaims for new allocations.
    Low,
    /// It swaps, or drops file pages in use.
    Medium,
    /// It is about to run out of memory.
    Critical,
}

impl fmt::Display for PressureLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::Critical => "critical",
        })
    }
}

/// Why a notification could not be registered or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemcgV1Error {
    /// A control file of the cgroup.
    #[error(transparent)]
    File(#[from] FileError),
    /// The kernel did not take the registration.
    #[error("{cgroup}: cgroup.event_control refused a notification on {file} ({arguments:?}): {source}", cgroup = cgroup.shown())]
    Refused {
        /// Directory of the cgroup.
        cgroup: PathBuf,
        /// The control file that was to be watched.
        file: &'static str,
        /// What followed the two descriptors.
        arguments: String,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// There is no descriptor for a notification.
    #[error("cannot create an eventfd for {cgroup}: {source}; raise the limit on open files (RLIMIT_NOFILE)", cgroup = cgroup.shown())]
    Eventfd {
        /// Directory of the cgroup.
        cgroup: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// A notification cannot be read any more.
    #[error("cannot read the notification of {cgroup}: {source}", cgroup = cgroup.shown())]
    Unreadable {
        /// Directory of the cgroup.
        cgroup: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

impl MemcgV1Error {
    /// Whether the cgroup is gone, which most callers take as "the pod has ended".
    pub fn is_vanished(&self) -> bool {
        match self {
            Self::File(error) => error.is_vanished(),
            Self::Refused { source, .. } => matches!(*source, Errno::NODEV | Errno::NOENT),
            Self::Eventfd { .. } | Self::Unreadable { .. } => false,
        }
    }
}

/// `memory.oom_control` as read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OomControl {
    /// The OOM killer is switched off for this cgroup: its tasks sleep instead of dying.
    pub oom_kill_disable: bool,
    /// Tasks may be stopped right now, because memory is out.
    pub under_oom: bool,
    /// Processes of this cgroup killed by any OOM killer; `None` before 4.13.
    pub oom_kill: Option<u64>,
}

/// The memory control files of one cgroup v1 that notifications are tied to, opened once.
#[derive(Debug)]
pub struct MemcgV1 {
    dir: Arc<Path>,
    event_control: ControlFile,
    usage: ControlFile,
    oom_control: ControlFile,
}

impl MemcgV1 {
    /// Opens the files of the cgroup v1 directory `dir` (below the memory hierarchy).
    ///
    /// # Errors
    /// [`FileError::Vanished`] when the directory is gone or the kernel has no `cgroup.event_control`.
    pub fn open(dir: &Path) -> Result<Self, MemcgV1Error> {
        Ok(Self {
            dir: Arc::from(dir),
            event_control: ControlFile::open_to_write(dir.join("cgroup.event_control"))?,
            usage: ControlFile::open(dir.join("memory.usage_in_bytes"))?,
            oom_control: ControlFile::open(dir.join("memory.oom_control"))?,
        })
    }

    /// `memory.usage_in_bytes`.
    ///
    /// # Errors
    /// [`FileError::Vanished`] once the cgroup is removed.
    pub fn usage_bytes(&self) -> Result<u64, MemcgV1Error> {
        Ok(self.usage.read_u64()?)
    }

    /// `memory.oom_control`.
    ///
    /// # Errors
    /// [`FileError::Vanished`] once the cgroup is removed; [`FileError::Malformed`] without its first two lines.
    pub fn oom_control(&self) -> Result<OomControl, MemcgV1Error> {
        let [disable, under, kill] =
            self.oom_control
                .read_keyed(&["oom_kill_disable", "under_oom", "oom_kill"])?;
        let (Some(disable), Some(under)) = (disable, under) else {
            return Err(self
                .oom_control
                .malformed(1, "lines for oom_kill_disable and under_oom")
                .into());
        };
        Ok(OomControl {
            oom_kill_disable: disable != 0,
            under_oom: under != 0,
            oom_kill: kill,
        })
    }

    /// Signals when usage crosses `usage_bytes`, up or down. Opens an eventfd and no file.
    ///
    /// A threshold that usage has passed already does not signal: compare [`MemcgV1::usage_bytes`] after arming.
    ///
    /// # Errors
    /// [`MemcgV1Error::Refused`] with the kernel's answer.
    pub fn notify_at(&self, usage_bytes: u64) -> Result<Notification, MemcgV1Error> {
        self.register(
            &self.usage,
            "memory.usage_in_bytes",
            usage_bytes.to_string(),
        )
    }

    /// Signals when the cgroup runs out of memory (before the kernel picks a victim). The root cgroup has no such
    /// event.
    ///
    /// # Errors
    /// [`MemcgV1Error::Refused`] with the kernel's answer.
    pub fn notify_oom(&self) -> Result<Notification, MemcgV1Error> {
        self.register(&self.oom_control, "memory.oom_control", String::new())
    }

    /// Signals when reclaim in this cgroup or below reaches `level` or a harder one.
    ///
    /// # Errors
    /// [`MemcgV1Error::File`] when the kernel has no `memory.pressure_level`, else [`MemcgV1Error::Refused`].
    pub fn notify_pressure(&self, level: PressureLevel) -> Result<Notification, MemcgV1Error> {
        // Opened for the registration only: the kernel keeps what it needs.
        let file = ControlFile::open(self.dir.join("memory.pressure_level"))?;
        // "hierarchy": events of children come here too, even where a child has listeners of its own.
        self.register(&file, "memory.pressure_level", format!("{level},hierarchy"))
    }

    /// The directory of the cgroup.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn register(
        &self,
        file: &ControlFile,
        name: &'static str,
        arguments: String,
    ) -> Result<Notification, MemcgV1Error> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|source| {
            MemcgV1Error::Eventfd {
                cgroup: self.dir.to_path_buf(),
                source,
            }
        })?;
        let line = format!(
            "{} {} {arguments}",
            fd.as_raw_fd(),
            file.as_fd().as_raw_fd()
        );
        match self.event_control.write(line.as_bytes()) {
            Ok(()) => Ok(Notification {
                fd,
                dir: Arc::clone(&self.dir),
            }),
            Err(FileError::Unwritable { source, .. }) => Err(MemcgV1Error::Refused {
                cgroup: self.dir.to_path_buf(),
                file: name,
                arguments,
                source,
            }),
            Err(other) => Err(other.into()),
        }
    }
}

/// An armed notification; disarmed when dropped. Readable (POLLIN) once signalled, so ordinary read interest in an
/// event loop.
#[derive(Debug)]
pub struct Notification {
    fd: OwnedFd,
    dir: Arc<Path>,
}

impl Notification {
    /// How often it was signalled since the last call; 0 for not at all. Does not wait or allocate.
    ///
    /// # Errors
    /// [`MemcgV1Error::Unreadable`].
    pub fn take(&self) -> Result<u64, MemcgV1Error> {
        let mut count = [0; 8];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut count)) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(Errno::AGAIN) => Ok(0),
            Err(source) => Err(MemcgV1Error::Unreadable {
                cgroup: self.dir.to_path_buf(),
                source,
            }),
        }
    }

    /// Waits for a signal, at most `timeout`, and takes it. For callers without an event loop.
    ///
    /// # Errors
    /// As [`Notification::take`].
    pub fn wait(&self, timeout: Duration) -> Result<u64, MemcgV1Error> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref())).map_err(|source| {
            MemcgV1Error::Unreadable {
                cgroup: self.dir.to_path_buf(),
                source,
            }
        })?;
        self.take()
    }
}

impl AsFd for Notification {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Notification {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroup() -> (tempfile::TempDir, MemcgV1) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("cgroup.event_control", ""),
            ("memory.usage_in_bytes", "4096\n"),
            (
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 1\noom_kill 3\n",
            ),
            ("memory.pressure_level", ""),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let memcg = MemcgV1::open(dir.path()).unwrap();
        (dir, memcg)
    }

    /// What was written, without the two descriptors, whose numbers are whatever was free.
    fn written(dir: &tempfile::TempDir) -> String {
        let text = std::fs::read_to_string(dir.path().join("cgroup.event_control")).unwrap();
        let mut parts = text.splitn(3, ' ');
        for _ in 0..2 {
            let fd: u32 = parts.next().unwrap().parse().unwrap();
            assert!(fd > 2);
        }
        parts.next().unwrap().to_owned()
    }

    #[test]
    fn registrations_as_the_kernel_wants_them() {
        let (dir, memcg) = cgroup();
        let _armed = memcg.notify_at(104_857_600).unwrap();
        assert_eq!(written(&dir), "104857600");
        let (dir, memcg) = cgroup();
        let _armed = memcg.notify_pressure(PressureLevel::Critical).unwrap();
        assert_eq!(written(&dir), "critical,hierarchy");
        let (dir, memcg) = cgroup();
        let _armed = memcg.notify_oom().unwrap();
        assert_eq!(written(&dir), "");
    }

    #[test]
    fn an_armed_notification_is_quiet_and_counts_signals() {
        let (_dir, memcg) = cgroup();
        let armed = memcg.notify_at(4096).unwrap();
        assert_eq!(armed.take().unwrap(), 0);
        for _ in 0..2 {
            rustix::io::write(&armed, &1_u64.to_ne_bytes()).unwrap();
        }
        assert_eq!(armed.wait(Duration::from_secs(5)).unwrap(), 2);
        assert_eq!(armed.take().unwrap(), 0);
    }

    #[test]
    fn reads() {
        let (dir, memcg) = cgroup();
        assert_eq!(memcg.usage_bytes().unwrap(), 4096);
        let wanted = OomControl {
            oom_kill_disable: false,
            under_oom: true,
            oom_kill: Some(3),
        };
        assert_eq!(memcg.oom_control().unwrap(), wanted);
        std::fs::write(
            dir.path().join("memory.oom_control"),
            "oom_kill_disable 0\n",
        )
        .unwrap();
        assert!(matches!(
            memcg.oom_control().unwrap_err(),
            MemcgV1Error::File(FileError::Malformed { .. })
        ));
        std::fs::write(dir.path().join("memory.usage_in_bytes"), "lots\n").unwrap();
        assert!(matches!(
            memcg.usage_bytes().unwrap_err(),
            MemcgV1Error::File(FileError::Malformed { line: 1, .. })
        ));
    }

    #[test]
    fn without_event_control_or_cgroup_it_says_vanished() {
        let (dir, _) = cgroup();
        std::fs::remove_file(dir.path().join("cgroup.event_control")).unwrap();
        assert!(MemcgV1::open(dir.path()).unwrap_err().is_vanished());
        let (dir, memcg) = cgroup();
        std::fs::remove_file(dir.path().join("memory.pressure_level")).unwrap();
        assert!(
            memcg
                .notify_pressure(PressureLevel::Low)
                .unwrap_err()
                .is_vanished()
        );
    }
}
