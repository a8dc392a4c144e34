//! Locks on files (`flock(2)`): asked for without blocking, for a bounded time, and with the name of the process that
//! is in the way.
//!
//! **Problem.** A blocking `flock` waits for any process that can open the file, for as long as that process likes.
//! **Approach.** A lock that is held is asked for again until a deadline; a caller that must not wait has none. Who
//! holds it comes from the kernel (`/proc/locks`, and the descriptors of that process), never from the file's text,
//! which anything may have written.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// How often a lock that is held is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(5);
/// Bytes of `/proc/locks` that are read: some thousands of locks.
const LOCKS_BYTES_MAX: u64 = 1 << 20;
/// How often that list is read: the kernel finds its place in it by counting, so that a lock that goes in the middle of
/// a reading hides another one.
const LOCKS_READ_MAX: u32 = 3;
/// Descriptors of one process that are looked at.
const DESCRIPTORS_MAX: usize = 4096;
/// Processes that are looked at: more than `kernel.pid_max` allows by default.
const PROCESSES_MAX: usize = 1 << 16;
/// Holders that are named.
const HOLDERS_MAX: usize = 8;

/// The processes that hold a lock, as far as this process can see them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holders(Box<[u32]>);

impl Holders {
    /// Who holds a `flock` of this file. Empty where `/proc` does not say.
    pub fn of(file: &File) -> Self {
        let Ok(metadata) = file.metadata() else {
            return Self::default();
        };
        let identity = (metadata.dev(), metadata.ino());
        for _ in 0..LOCKS_READ_MAX {
            let Ok(text) = read_locks() else {
                break;
            };
            let holders = Self::among(&text, identity);
            if !holders.0.is_empty() {
                return holders;
            }
        }
        Self::default()
    }

    /// The file system's number in that list is not always the one of stat(2): the process's descriptors decide.
    fn among(text: &str, identity: (u64, u64)) -> Self {
        let mut holders: Vec<u32> = Vec::new();
        for pid in pids_of(text, identity.1) {
            if !holders.contains(&pid) && has_open(pid, identity) {
                holders.push(pid);
            }
            if holders.len() == HOLDERS_MAX {
                break;
            }
        }
        Self(holders.into())
    }

    /// Their pids; at most eight.
    pub fn pids(&self) -> &[u32] {
        &self.0
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            [] => f.write_str("a process that cannot be seen from here"),
            [pid] => write!(f, "process {pid}"),
            pids => {
                let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
                write!(f, "processes {}", pids.join(", "))
            }
        }
    }
}

/// `/proc/locks`, in reads as large as the kernel answers: each one after the first may miss a lock.
fn read_locks() -> std::io::Result<String> {
    let mut text = String::with_capacity(1 << 16);
    let locks = File::open("/proc/locks")?;
    locks.take(LOCKS_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The pids in `/proc/locks` that hold, and do not only wait for, a `flock` of a file with this inode number:
/// `1: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF`.
fn pids_of(text: &str, inode: u64) -> impl Iterator<Item = u32> {
    text.lines().filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        (fields.next()? == "FLOCK").then_some(())?;
        let pid = fields.nth(2)?.parse().ok()?;
        let of: u64 = fields.next()?.rsplit(':').next()?.parse().ok()?;
        (of == inode).then_some(pid)
    })
}

/// The processes, but for this one, that have this file open. Looks at all processes, so it is slow.
pub(super) fn with_open(file: &File) -> Vec<u32> {
    let (Ok(metadata), Ok(processes)) = (file.metadata(), std::fs::read_dir("/proc")) else {
        return Vec::new();
    };
    let identity = (metadata.dev(), metadata.ino());
    processes
        .take(PROCESSES_MAX)
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id() && has_open(*pid, identity))
        .collect()
}

fn has_open(pid: u32, identity: (u64, u64)) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    descriptors
        .take(DESCRIPTORS_MAX)
        .flatten()
        .filter_map(|entry| std::fs::metadata(entry.path()).ok())
        .any(|metadata| (metadata.dev(), metadata.ino()) == identity)
}

/// Why a file was not locked.
#[derive(Debug, thiserror::Error)]
pub enum FlockError {
    /// It is held for longer than the caller waits.
    #[error("its lock is held by {0}")]
    Held(Holders),
    /// The kernel refuses.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Locks an open file; `operation` is a non-blocking one. One that is held is asked for again for `patience`; with none
/// this never waits.
///
/// # Errors
/// [`FlockError`].
pub(crate) fn flock_within(
    file: &File,
    operation: FlockOperation,
    patience: Duration,
) -> Result<(), FlockError> {
    let start = Instant::now();
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if start.elapsed() < patience => std::thread::sleep(ASK_AGAIN),
            Err(Errno::WOULDBLOCK) => return Err(FlockError::Held(Holders::of(file))),
            Err(errno) => return Err(FlockError::Io(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn only_who_holds_a_lock_is_named() {
        let text = "1: POSIX  ADVISORY  WRITE 11 00:1a:7 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 12 00:1a:7 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 13 00:1a:7 0 EOF\n\
            3: FLOCK  ADVISORY  READ  14 fe:00:77 0 EOF\n\
            torn";
        assert_eq!(pids_of(text, 7).collect::<Vec<_>>(), [12]);
        assert_eq!(Holders([3, 4].into()).to_string(), "processes 3, 4");
        assert!(Holders::default().to_string().contains("cannot be seen"));
    }

    #[test]
    fn a_lock_that_is_held_is_not_waited_for_and_its_holder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = File::create(&path).unwrap();
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        flock_within(&held, exclusive, Duration::ZERO).unwrap();
        let other = File::open(&path).unwrap();
        let error = flock_within(&other, exclusive, Duration::ZERO).unwrap_err();
        let text = format!("process {}", std::process::id());
        assert!(error.to_string().contains(&text), "{error}");
    }

    /// Read in small pieces, the list lacked the holder in one of six readings beside these threads.
    #[test]
    fn locks_that_come_and_go_hide_no_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = File::create(dir.path().join("lock")).unwrap();
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for name in ["a", "b"] {
                let file = File::create(dir.path().join(name)).unwrap();
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
                        rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
                    }
                });
            }
            let missed = (0..500).filter(|_| Holders::of(&held).pids().is_empty());
            let missed = missed.count();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(missed, 0);
        });
    }
}
