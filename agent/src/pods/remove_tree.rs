//! The removal of a tree of cgroups.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use crate::host::file::FileError;
use crate::pods::walk::{Step, Walk};

/// Steps of a removal in one go.
pub(super) const SLICE: u32 = 64;

/// The removal of a tree of cgroups, as far as they are empty, from the deepest upwards. It can be interrupted after
/// each step.
#[derive(Debug)]
pub(super) struct Removal {
    dir: PathBuf,
    walk: Option<Walk>,
    has_begun: bool,
    pub(super) removed: u64,
    failure: Option<Errno>,
    is_gone: bool,
}

impl Removal {
    pub(super) fn of(dir: PathBuf) -> Self {
        Self {
            dir,
            walk: None,
            has_begun: false,
            removed: 0,
            failure: None,
            is_gone: false,
        }
    }

    /// Takes `steps` steps. Returns whether it is over.
    pub(super) fn slice(&mut self, steps: u32) -> bool {
        if !std::mem::replace(&mut self.has_begun, true) {
            match Walk::below(&self.dir) {
                Ok(walk) => self.walk = walk,
                Err(errno) => self.failure = Some(errno),
            }
        }
        for _ in 0..steps {
            match self.walk.as_mut().and_then(Walk::next) {
                Some(Step::Entered { .. }) => {}
                Some(Step::Left { parent, name }) => {
                    let result = unlinkat(parent, name, AtFlags::REMOVEDIR);
                    self.note(result);
                }
                None => {
                    self.failure = self.walk.as_ref().and_then(Walk::failure).or(self.failure);
                    self.walk = None;
                    self.is_gone = self.note(rustix::fs::rmdir(&self.dir));
                    return true;
                }
            }
        }
        false
    }

    /// Whether the directory is gone.
    fn note(&mut self, result: Result<(), Errno>) -> bool {
        match result {
            Ok(()) => self.removed += 1,
            Err(Errno::NOENT) => {}
            // In use.
            Err(Errno::BUSY | Errno::NOTEMPTY) => return false,
            Err(errno) => {
                self.failure = Some(errno);
                return false;
            }
        }
        true
    }

    /// Whether nothing of the tree is left.
    ///
    /// # Errors
    /// When a directory could not be read, or not be removed for another reason than being in use.
    pub(super) fn outcome(&self) -> Result<bool, FileError> {
        match self.failure {
            None => Ok(self.is_gone),
            Some(source) => Err(FileError::Unwritable {
                path: Arc::from(&*self.dir),
                source,
            }),
        }
    }
}

/// Removes a tree of cgroups in one go, as far as they are empty. Returns whether nothing of it is left.
///
/// # Errors
/// As for [`Removal::outcome`].
pub(super) fn remove_tree(dir: &Path) -> Result<bool, FileError> {
    let mut removal = Removal::of(dir.to_owned());
    while !removal.slice(SLICE) {}
    removal.outcome()
}
