//! The control files with which a pod is held back or reclaimed from before an eviction.

use std::path::Path;

use crate::host::file::{ControlFile, FileError};

/// The control files of a pod's cgroup that remedies need; `None` where the kernel or the hierarchy does not have one.
#[derive(Debug, Default)]
pub struct RemedyFiles {
    /// `memory.reclaim`, write-only.
    pub reclaim: Option<ControlFile>,
    /// `memory.high`.
    pub high: Option<ControlFile>,
}

impl RemedyFiles {
    /// Opens them in the directory of a v2 cgroup.
    ///
    /// # Errors
    /// [`FileError`] when one is there and cannot be opened.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        let there = |result: Result<ControlFile, FileError>| match result {
            Err(error) if error.is_vanished() => Ok(None),
            other => other.map(Some),
        };
        Ok(Self {
            reclaim: there(ControlFile::open_to_write(dir.join("memory.reclaim")))?,
            high: there(ControlFile::open_to_change(dir.join("memory.high")))?,
        })
    }
}
