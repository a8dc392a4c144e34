//! Files of a session: bounded, and there as a whole or not at all.
//!
//! A file is written under another name in the same directory and gets its own when all of it is on the disk. The other
//! name is made before the session starts, so that a directory that cannot be written to is an error then and not
//! after.
//!
//! A session that is killed leaves the other name behind. Each session holds a lock on its own (flock(2)), which the
//! kernel lets go of with the process, and the next one removes those in the same directory that no session holds. An
//! unnamed file (`O_TMPFILE`) would be gone by itself, but not every file system has them, and none can be given a name
//! that is taken.

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use plimsoll::commands::trace::TraceFile;
use plimsoll::host::shown::Show as _;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;
use tempfile::NamedTempFile;
use tracing::{debug, warn};

use super::TraceError;

/// How the other names begin.
const PREFIX: &str = ".plimsoll-trace-";
/// Entries of a directory that are looked at for what a killed session left.
const ENTRIES_MAX: usize = 65_536;
/// Sessions that start at the same moment may each remove what the other has made and not locked yet.
const TRIES: u32 = 8;

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) target: TraceFile,
    temporary: NamedTempFile,
}

impl Pending {
    /// Makes the file under another name.
    pub(super) fn create(target: &TraceFile) -> Result<Self, TraceError> {
        let failed = |source| TraceError::File {
            path: target.path.clone(),
            source,
        };
        if target.path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let directory = target
            .path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        remove_abandoned(directory);
        let temporary = locked_in(directory).map_err(failed)?;
        Ok(Self {
            target: target.clone(),
            temporary,
        })
    }

    /// Has `write` fill the file, and gives it its name. Returns its size.
    pub(super) fn fill<T>(
        self,
        bytes_max: u64,
        write: impl FnOnce(&mut Bounded<BufWriter<&File>>) -> io::Result<T>,
    ) -> Result<(T, u64), TraceError> {
        let failed = |source| TraceError::File {
            path: self.target.path.clone(),
            source,
        };
        let mut out = Bounded::new(BufWriter::new(self.temporary.as_file()), bytes_max);
        let result = write(&mut out).map_err(failed)?;
        out.inner.flush().map_err(failed)?;
        let bytes = out.written;
        drop(out);
        // A full disk may show only now.
        self.temporary.as_file().sync_all().map_err(failed)?;
        let path = self.target.path.clone();
        self.temporary
            .persist(&self.target.path)
            .map_err(|error| TraceError::File {
                path,
                source: error.error,
            })?;
        Ok((result, bytes))
    }
}

/// A file under another name, which nobody removes while this process lives.
fn locked_in(directory: &Path) -> io::Result<NamedTempFile> {
    for _ in 0..TRIES {
        let temporary = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempfile_in(directory)?;
        match flock(
            temporary.as_file(),
            FlockOperation::NonBlockingLockExclusive,
        ) {
            Ok(()) if temporary.as_file().metadata()?.nlink() > 0 => return Ok(temporary),
            // A session that starts beside this one has it, and removes it.
            Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => {}
            // No locks here: then nobody removes it either.
            Err(_) => return Ok(temporary),
        }
    }
    Err(io::Error::other(
        "too many sessions start in this directory",
    ))
}

/// Removes what sessions of this user that were killed have left.
fn remove_abandoned(directory: &Path) {
    // Where it cannot be read, nothing is removed.
    let entries = fs::read_dir(directory).into_iter().flatten();
    for entry in entries.take(ENTRIES_MAX).flatten() {
        let path = entry.path();
        match lock_abandoned(&entry) {
            Ok(None) => {}
            // With the lock until it is gone: a session that makes its file meanwhile sees that somebody has it.
            Ok(Some(_lock)) => match fs::remove_file(&path) {
                Ok(()) => debug!(file = %path.shown(), "removed: its session was killed"),
                Err(error) => {
                    warn!(file = %path.shown(), %error, "left by a session that was killed")
                }
            },
            Err(error) => debug!(file = %path.shown(), %error, "not looked at"),
        }
    }
}

/// The file, locked, if a session that was killed has left it.
fn lock_abandoned(entry: &DirEntry) -> io::Result<Option<File>> {
    if !entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) || !entry.file_type()?.is_file()
    {
        return Ok(None);
    }
    // Others may write to the directory: no link is followed, nothing is waited for, and what is another's is left.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(entry.path())?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
        return Ok(None);
    }
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// A writer that knows how much it may write.
#[derive(Debug)]
pub(super) struct Bounded<W> {
    inner: W,
    written: u64,
    max: u64,
}

impl<W: Write> Bounded<W> {
    pub(super) fn new(inner: W, max: u64) -> Self {
        Self {
            inner,
            written: 0,
            max,
        }
    }

    /// Whether `bytes` more fit, and `kept` after them.
    pub(super) fn has_room(&self, bytes: usize, kept: u64) -> bool {
        self.written
            .saturating_add(bytes as u64)
            .saturating_add(kept)
            <= self.max
    }
}

impl<W: Write> Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_room(bytes.len(), 0) {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!(
                    "it would be larger than the {} bytes of --max-file-size",
                    self.max
                ),
            ));
        }
        let written = self.inner.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let target = TraceFile::parse(dir.path().join("a.pftrace").to_str().unwrap()).unwrap();
        let pending = Pending::create(&target).unwrap();
        assert!(!target.path.exists());
        let failed = pending.fill(4, |out| out.write_all(b"12345"));
        assert!(failed.unwrap_err().to_string().contains("--max-file-size"));
        let left: Vec<_> = dir.path().read_dir().unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        let pending = Pending::create(&target).unwrap();
        let ((), bytes) = pending.fill(5, |out| out.write_all(b"12345")).unwrap();
        assert_eq!(
            (bytes, std::fs::read(&target.path).unwrap()),
            (5, b"12345".to_vec())
        );
    }

    #[test]
    fn what_a_killed_session_left_is_removed_and_what_another_writes_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let target =
            |name: &str| TraceFile::parse(dir.path().join(name).to_str().unwrap()).unwrap();
        let other = Pending::create(&target("a.svg")).unwrap();
        let (left, theirs) = (dir.path().join(".plimsoll-trace-x"), dir.path().join("x"));
        let link = dir.path().join(".plimsoll-trace-link");
        for path in [&left, &theirs] {
            fs::write(path, "x").unwrap();
        }
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        let ours = Pending::create(&target("b.svg")).unwrap();
        assert!(!left.exists());
        assert!(theirs.exists() && link.exists());
        for (pending, name) in [(other, "a.svg"), (ours, "b.svg")] {
            pending.fill(9, |out| out.write_all(b"whole")).unwrap();
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"whole");
        }
    }

    #[test]
    fn an_unwritable_place_is_an_error_before_the_recording() {
        let target = TraceFile::parse("/nonexistent/x.svg").unwrap();
        let error = Pending::create(&target).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/x.svg"), "{error}");
    }
}
