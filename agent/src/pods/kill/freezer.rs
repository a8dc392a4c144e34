//! The freezer of cgroup v1: a process that it holds takes SIGKILL only when it is thawed (it waits in the
//! refrigerator, in state D). The freezer of v2 needs nothing: there a frozen process dies at once.
//!
//! **Approach.** `freezer.state` of each of the pod's cgroups in that hierarchy is open, as far as they are kept; to
//! thaw is a write to each, from above, because a cgroup below a frozen one stays frozen whatever its own state is
//! (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst). That a cgroup above the pod's is frozen is not the
//! pod's doing, and is left.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::tree::{Node, Place, Tree};
use crate::host::file::{ControlFile, FileError};

const STATE_FILE: &str = "freezer.state";
const THAWED: &[u8] = b"THAWED";

/// A cgroup in the freezer's hierarchy.
#[derive(Debug)]
pub(super) struct Thaw {
    place: Place,
    state: ControlFile,
}

impl Node for Thaw {
    fn open(place: Place) -> Result<Self, FileError> {
        let state = ControlFile::open_to_write(place.path.join(STATE_FILE))?;
        Ok(Self { place, state })
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }
}

/// Thaws the known cgroups, from above: those come first in a tree. Allocates and opens nothing.
///
/// # Errors
/// The first refusal, after all were tried. A cgroup that is gone is no error.
pub(super) fn thaw(freezer: &Tree<Thaw>) -> Result<(), FileError> {
    let mut first_error = None;
    for cgroup in freezer {
        match cgroup.state.write(THAWED) {
            Err(error) if !error.is_vanished() => first_error = first_error.or(Some(error)),
            _ => {}
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// Thaws one cgroup, by its directory.
pub(super) fn thaw_at(dir: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let state = rustix::fs::openat(dir, STATE_FILE, flags, Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::io::write(&state, THAWED)).map(drop)
}
