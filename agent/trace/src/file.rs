//! Files of a session: bounded, and there as a whole or not at all.
//!
//! A file is written under another name in the same directory and gets its own when all of it is on the disk. The other name is made before
//! the session starts, so that a directory that cannot be written to is told of then and not after.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tempfile::NamedTempFile;

use plimsoll::commands::trace::TraceFile;

use super::TraceError;

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
        let temporary = tempfile::Builder::new()
            .prefix(".plimsoll-trace-")
            .tempfile_in(directory)
            .map_err(failed)?;
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
    fn an_unwritable_place_is_an_error_before_the_recording() {
        let target = TraceFile::parse("/nonexistent/x.svg").unwrap();
        let error = Pending::create(&target).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/x.svg"), "{error}");
    }
}
