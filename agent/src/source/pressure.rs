//! PSI triggers: the kernel says when tasks have stalled on memory for too long.
//!
//! **Problem.** Without BPF something must still wake the agent when memory runs short, and with BPF something must
//! wake it when every program is silent. Averages in `/proc/pressure/memory` lag by ten seconds and would have to be
//! polled.
//! **Approach.** A trigger "`some` 50 ms in any 500 ms" is written to a pressure file and its descriptor polled for
//! POLLPRI (Documentation/accounting/psi.rst). One trigger per descriptor: it lives as long as the descriptor.
//! **Terms.** *some*: at least one task stalled. *full*: every task that was not idle stalled. *stall*: time lost
//! inside the window.
//!
//! The kernel checks ten times per window and reports at most once per window, so this is for sustained pressure:
//! 60-120 ms after the first reclaim with a 20 ms stall in 500 ms, where `memory.events` takes less than 1 ms.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::host::shown::Show as _;

/// Shortest window that every kernel takes (6.1 refuses less; kernel/sched/psi.c WINDOW_MIN_US).
pub const WINDOW_MS_MIN: u32 = 500;
/// Longest window (kernel/sched/psi.c WINDOW_MAX_US).
pub const WINDOW_MS_MAX: u32 = 10_000;

/// Without CAP_SYS_RESOURCE kernels since 6.4 take only windows that are a multiple of this, and look at them no more
/// often.
pub const WINDOW_MS_UNPRIVILEGED: u32 = 2_000;

/// Whose stall counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    /// At least one task is stalled.
    Some,
    /// All non-idle tasks are stalled at once.
    Full,
}

/// What a trigger waits for: `stall_us` of stall in any `window_us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trigger {
    stall: Stall,
    stall_us: u32,
    window_us: u32,
}

impl Trigger {
    /// A trigger for `stall_ms` of stall within any `window_ms`.
    ///
    /// # Errors
    /// [`PressureError::Window`] outside [`WINDOW_MS_MIN`]`..=`[`WINDOW_MS_MAX`], [`PressureError::Stall`] for a stall
    /// of 0 or longer than its window: what the kernel would refuse with a bare EINVAL.
    pub fn new(stall: Stall, stall_ms: u32, window_ms: u32) -> Result<Self, PressureError> {
        if !(WINDOW_MS_MIN..=WINDOW_MS_MAX).contains(&window_ms) {
            return Err(PressureError::Window { window_ms });
        }
        if stall_ms == 0 || stall_ms > window_ms {
            return Err(PressureError::Stall {
                stall_ms,
                window_ms,
            });
        }
        Ok(Self {
            stall,
            stall_us: stall_ms * 1000,
            window_us: window_ms * 1000,
        })
    }
}

impl Trigger {
    /// The same stall in a window that needs no capability: the next multiple of [`WINDOW_MS_UNPRIVILEGED`]. At least
    /// as sensitive, but the kernel then checks every 2 s only.
    pub fn unprivileged(self) -> Self {
        Self {
            window_us: self
                .window_us
                .next_multiple_of(WINDOW_MS_UNPRIVILEGED * 1000),
            ..self
        }
    }

    /// Whether the kernel takes it without CAP_SYS_RESOURCE (6.4 or newer).
    pub fn is_unprivileged(self) -> bool {
        self.window_us.is_multiple_of(WINDOW_MS_UNPRIVILEGED * 1000)
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stall = match self.stall {
            Stall::Some => "some",
            Stall::Full => "full",
        };
        write!(f, "{stall} {} {}", self.stall_us, self.window_us)
    }
}

/// Why there is no trigger, or no longer one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PressureError {
    /// A window that the kernel does not take.
    #[error("PSI window of {window_ms} ms: the kernel takes {WINDOW_MS_MIN} to {WINDOW_MS_MAX} ms")]
    Window {
        /// What was asked for.
        window_ms: u32,
    },
    /// A stall that can never happen, or always has.
    #[error(
        "PSI stall of {stall_ms} ms in a window of {window_ms} ms: must be at least 1 ms and fit its window"
    )]
    Stall {
        /// What was asked for.
        stall_ms: u32,
        /// And within which window.
        window_ms: u32,
    },
    /// No pressure file, or one that answers EOPNOTSUPP: PSI is not built in or switched off.
    #[error("{path}: no pressure stall information; boot with psi=1 (kernel needs CONFIG_PSI)", path = path.shown())]
    Disabled {
        /// Which file.
        path: Arc<Path>,
    },
    /// The cgroup is gone.
    #[error("{path}: gone (its cgroup was removed)", path = path.shown())]
    Vanished {
        /// Which file.
        path: Arc<Path>,
    },
    /// The kernel wants CAP_SYS_RESOURCE for this window.
    #[error(
        "{path}: trigger \"{trigger}\" refused: without CAP_SYS_RESOURCE windows must be a multiple of 2 s; grant it, or ask for such a window",
        path = path.shown()
    )]
    Unprivileged {
        /// Which file.
        path: Arc<Path>,
        /// What was written.
        trigger: Trigger,
    },
    /// Kernels before 6.4 want CAP_SYS_RESOURCE for any trigger.
    #[error("{path}: trigger not permitted; run as root, or grant CAP_SYS_RESOURCE and write access to the file", path = path.shown())]
    NotPermitted {
        /// Which file.
        path: Arc<Path>,
    },
    /// Anything else that the kernel says.
    #[error("{path}: trigger \"{trigger}\": {source}", path = path.shown())]
    Kernel {
        /// Which file.
        path: Arc<Path>,
        /// What was written.
        trigger: Trigger,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// What [`PsiTrigger::wait`] saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The stall was reached.
    Stalled,
    /// Nothing, until the timeout.
    Quiet,
}

/// An armed trigger. Dropping it disarms it.
///
/// In an event loop: register its descriptor for priority readiness (`AsyncFd::with_interest(trigger,
/// Interest::PRIORITY)`) and take the wake itself as the event, then clear readiness. Do **not** ask again with
/// [`PsiTrigger::wait`]: the kernel reports one event to one poll (psi_trigger_poll resets it), and the loop's poll has
/// had it. A wake may also mean that the cgroup is gone: [`PsiTrigger::check`].
#[derive(Debug)]
pub struct PsiTrigger {
    path: Arc<Path>,
    trigger: Trigger,
    fd: OwnedFd,
}

impl PsiTrigger {
    /// Arms `trigger` on the pressure file `path`: `/proc/pressure/memory` or a cgroup's `memory.pressure`.
    ///
    /// # Errors
    /// [`PressureError`], typed by what a person can do about it.
    pub fn arm(path: impl AsRef<Path>, trigger: Trigger) -> Result<Self, PressureError> {
        let path: Arc<Path> = Arc::from(path.as_ref());
        let fd = rustix::fs::open(
            &*path,
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|errno| classify(&path, trigger, errno))?;
        // The kernel cuts the last byte written, whatever it is (psi_write): it must be the NUL, not a digit.
        let text = format!("{trigger}\0");
        rustix::io::retry_on_intr(|| rustix::io::write(&fd, text.as_bytes()))
            .map_err(|errno| classify(&path, trigger, errno))?;
        Ok(Self { path, trigger, fd })
    }

    /// Arms `trigger`, or where CAP_SYS_RESOURCE is missing its [`Trigger::unprivileged`] form; [`PsiTrigger::trigger`]
    /// says which it became.
    ///
    /// # Errors
    /// As [`PsiTrigger::arm`].
    pub fn arm_as_allowed(path: impl AsRef<Path>, trigger: Trigger) -> Result<Self, PressureError> {
        match Self::arm(&path, trigger) {
            Err(PressureError::Unprivileged { .. }) => Self::arm(path, trigger.unprivileged()),
            other => other,
        }
    }

    /// Waits for the stall, at most `timeout`. Zero asks without waiting.
    ///
    /// # Errors
    /// [`PressureError::Vanished`] when the cgroup is removed meanwhile.
    pub fn wait(&self, timeout: Duration) -> Result<Wake, PressureError> {
        // A timeout too long for the kernel's type is "wait for ever".
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.fd, PollFlags::PRI)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))
            .map_err(|errno| classify(&self.path, self.trigger, errno))?;
        if ready == 0 {
            return Ok(Wake::Quiet);
        }
        let flags = fds[0].revents();
        if flags.contains(PollFlags::ERR) {
            self.check()?;
        }
        Ok(if flags.contains(PollFlags::PRI) {
            Wake::Stalled
        } else {
            Wake::Quiet
        })
    }

    /// Whether the file behind the trigger still exists. One `pread`, no allocation.
    ///
    /// # Errors
    /// [`PressureError::Vanished`] when its cgroup is gone.
    pub fn check(&self) -> Result<(), PressureError> {
        let mut buffer = [0; 256];
        rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut buffer, 0))
            .map(drop)
            .map_err(|errno| classify(&self.path, self.trigger, errno))
    }

    /// What it waits for.
    pub fn trigger(&self) -> Trigger {
        self.trigger
    }

    /// The file it is armed on.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for PsiTrigger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl std::os::fd::AsRawFd for PsiTrigger {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}

fn classify(path: &Arc<Path>, trigger: Trigger, errno: Errno) -> PressureError {
    let path = Arc::clone(path);
    match errno {
        // psi=0 removes /proc/pressure altogether; a cgroup file that is there answers EOPNOTSUPP.
        Errno::OPNOTSUPP | Errno::NOENT => PressureError::Disabled { path },
        Errno::NODEV => PressureError::Vanished { path },
        Errno::PERM | Errno::ACCESS => PressureError::NotPermitted { path },
        // Everything else that psi_trigger_create refuses with EINVAL was refused by Trigger::new.
        Errno::INVAL if !trigger.is_unprivileged() => PressureError::Unprivileged { path, trigger },
        source => PressureError::Kernel {
            path,
            trigger,
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_would_refuse_is_refused_with_words() {
        for window_ms in [0, 499, 10_001, u32::MAX] {
            assert_eq!(
                Trigger::new(Stall::Some, 1, window_ms),
                Err(PressureError::Window { window_ms })
            );
        }
        for stall_ms in [0, 501, u32::MAX] {
            let error = Trigger::new(Stall::Full, stall_ms, 500).unwrap_err();
            assert_eq!(
                error,
                PressureError::Stall {
                    stall_ms,
                    window_ms: 500
                }
            );
        }
    }

    #[test]
    fn written_in_microseconds() {
        assert_eq!(
            Trigger::new(Stall::Some, 50, 500).unwrap().to_string(),
            "some 50000 500000"
        );
        assert_eq!(
            Trigger::new(Stall::Full, 10_000, 10_000)
                .unwrap()
                .to_string(),
            "full 10000000 10000000"
        );
    }

    #[test]
    fn windows_for_the_unprivileged_are_multiples_of_two_seconds() {
        for (window_ms, wanted) in [
            (500, "some 50000 2000000"),
            (2000, "some 50000 2000000"),
            (9000, "some 50000 10000000"),
        ] {
            let trigger = Trigger::new(Stall::Some, 50, window_ms).unwrap();
            assert_eq!(trigger.unprivileged().to_string(), wanted);
            assert_eq!(trigger.is_unprivileged(), window_ms == 2000);
        }
    }

    #[test]
    fn the_trigger_ends_with_nul() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.pressure");
        std::fs::write(&path, "").unwrap();
        PsiTrigger::arm(&path, Trigger::new(Stall::Some, 50, 500).unwrap()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"some 50000 500000\0");
    }

    #[test]
    fn a_missing_file_says_how_to_get_psi() {
        let dir = tempfile::tempdir().unwrap();
        let error = PsiTrigger::arm(
            dir.path().join("memory"),
            Trigger::new(Stall::Some, 50, 500).unwrap(),
        )
        .unwrap_err();
        assert!(matches!(error, PressureError::Disabled { .. }), "{error}");
        assert!(error.to_string().contains("boot with psi=1"), "{error}");
    }

    #[test]
    fn each_errno_has_its_kind() {
        let path: Arc<Path> = Arc::from(Path::new("/proc/pressure/memory"));
        let trigger = Trigger::new(Stall::Some, 50, 500).unwrap();
        let kind = |errno| classify(&path, trigger, errno);
        assert!(matches!(
            kind(Errno::OPNOTSUPP),
            PressureError::Disabled { .. }
        ));
        assert!(matches!(kind(Errno::NODEV), PressureError::Vanished { .. }));
        assert!(matches!(
            kind(Errno::PERM),
            PressureError::NotPermitted { .. }
        ));
        assert!(matches!(
            kind(Errno::ACCESS),
            PressureError::NotPermitted { .. }
        ));
        assert!(matches!(
            kind(Errno::BUSY),
            PressureError::Kernel {
                source: Errno::BUSY,
                ..
            }
        ));
    }
}
