//! One directory tree, deleted a slice at a time, and nothing beside it.
//!
//! **Problem.** What is deleted was made by a pod, possibly a hostile one, and its like may still reach the tree from
//! elsewhere. A name that was a directory when we looked may be a link to `/etc` when we act. **Approach.** No path is
//! ever resolved: each name is opened or unlinked relative to a directory that is open, by `openat2(2)` with
//! `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_XDEV`, so neither a link nor a mount (a bind mount neither)
//! leads out; and `unlinkat(2)` takes a link away, not what it points to. What cannot be deleted (a mount point, an
//! immutable file) is counted and left with the directories above it. If directories are moved while they are deleted,
//! the removal ends ([`Removed::moved`]); the next one starts at the top again. It ends, too, where somebody who still
//! has the tree open fills it again and again: after so many names ([`Removed::cut_at`]). A directory that is deeper
//! than we go is moved up to the root of the removal, and deleted from there.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, RenameFlags, ResolveFlags, Statx, openat2, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::descent::{
    BUFFER_BYTES, Descent, Entry, GivenUp, Identity, OPEN_DIRECTORY, status_at, status_of,
};

/// Times that a directory is read for what was made in it meanwhile.
const PASSES_MAX: u8 = 3;
/// Names that are tried for a directory that is moved up. The pod may have taken some.
const LIFT_NAMES: u32 = 16;

/// What was deleted so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    /// Blocks times 512 of files whose last name went. Space of a file that is still open comes back when it is closed.
    pub bytes: u64,
    /// Files, directories and links that are no more.
    pub inodes: u64,
    /// Names that could not be deleted: mount points, immutable files, directories with such below.
    pub failed: u64,
    /// Whether it ended early because a directory was moved.
    pub moved: bool,
    /// How many names were read when it ended early, because it may read no more.
    pub cut_at: Option<u32>,
    /// Whether the tree is gone with its root.
    pub is_gone: bool,
}

impl Removed {
    fn count(&mut self, status: Option<&Statx>) {
        if let Some(status) = status
            && (status.stx_nlink < 2
                || FileType::from_raw_mode(status.stx_mode.into()) == FileType::Directory)
        {
            self.bytes = self
                .bytes
                .saturating_add(status.stx_blocks.saturating_mul(512));
            self.inodes += 1;
        }
    }
}

/// Opens the directory `name` in `dir`: itself, not what a link points to, and not beyond a mount.
///
/// # Errors
/// ENOENT: gone. ENOTDIR, ELOOP: no directory. EXDEV: a mount point.
pub(super) fn open_beneath(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
        .union(ResolveFlags::NO_SYMLINKS)
        .union(ResolveFlags::NO_XDEV);
    openat2(dir, name, OPEN_DIRECTORY, Mode::empty(), RESOLVE)
}

/// A removal under way.
#[derive(Debug)]
pub struct Removal {
    parent: OwnedFd,
    name: CString,
    descent: Descent,
    root: Identity,
    removed: Removed,
    /// Names that were tried for directories that were moved up.
    lift_names: u32,
    buffer: Box<[MaybeUninit<u8>]>,
}

impl Removal {
    /// Starts at the directory `name` in `parent`.
    ///
    /// # Errors
    /// As `open_beneath`: what is no plain directory is not touched.
    pub fn start(parent: BorrowedFd<'_>, name: &CStr) -> Result<Self, Errno> {
        let fd = open_beneath(parent, name)?;
        let root = Identity::of(&status_of(fd.as_fd())?);
        Ok(Self {
            parent: parent
                .try_clone_to_owned()
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?,
            name: name.to_owned(),
            descent: Descent::new(fd, root),
            root,
            removed: Removed::default(),
            lift_names: 0,
            buffer: vec![MaybeUninit::uninit(); BUFFER_BYTES].into_boxed_slice(),
        })
    }

    /// The same removal, which ends after this many names in all.
    #[must_use]
    pub fn at_most(mut self, names: u32) -> Self {
        self.descent.bound(names);
        self
    }

    /// How many names were read so far.
    pub fn names(&self) -> u32 {
        self.descent.names()
    }

    /// Deletes `entries` entries more. The result, once nothing is left that can be deleted, or no more may be read.
    pub fn advance(&mut self, entries: u32) -> Option<Removed> {
        let mut budget = entries;
        while !self.descent.is_done() {
            if self.descent.is_cut() {
                self.removed.cut_at = Some(self.descent.names());
                break;
            }
            if budget == 0 {
                return None;
            }
            if let Some(name) = self.descent.next_pending() {
                budget -= 1;
                self.enter(name, 0);
            } else {
                self.read(&mut budget);
            }
        }
        Some(self.removed)
    }

    /// What was deleted so far.
    pub fn so_far(&self) -> Removed {
        self.removed
    }

    fn enter(&mut self, name: CString, passes: u8) {
        let Some((dir, _)) = self.descent.top() else {
            return;
        };
        let opened =
            open_beneath(dir, &name).and_then(|fd| Ok((Identity::of(&status_of(fd.as_fd())?), fd)));
        match opened {
            Ok((identity, _)) if identity.is_beside(&self.root) && self.descent.is_deepest() => {
                self.lift(&name);
            }
            Ok((identity, fd)) if identity.is_beside(&self.root) => {
                let entry = Entry {
                    passes,
                    failed: self.removed.failed,
                };
                self.descent.push(fd, identity, name, entry);
            }
            Err(Errno::NOENT) => {}
            // No directory any more: a link or a file, which goes as such.
            Err(Errno::NOTDIR | Errno::LOOP) => unlink(dir, &name, &mut self.removed),
            Ok(_) | Err(_) => self.removed.failed += 1,
        }
    }

    /// Moves a directory up to the root of the removal, where it is entered later. Most that are met here are empty,
    /// and are deleted at once.
    fn lift(&mut self, name: &CStr) {
        let (Some((dir, _)), Some(root)) = (self.descent.top(), self.descent.root()) else {
            return;
        };
        let status = status_at(dir, name).ok();
        if unlinkat(dir, name, AtFlags::REMOVEDIR).is_ok() {
            return self.removed.count(status.as_ref());
        }
        for _ in 0..LIFT_NAMES {
            self.lift_names = self.lift_names.saturating_add(1);
            let Ok(lifted) = CString::new(format!(".plimsoll-removal-{}", self.lift_names)) else {
                break; // it has no NUL
            };
            match renameat_with(dir, name, root, &lifted, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    // Without room it stays in the root, which is then not gone: the next removal begins with it.
                    self.descent.add_to_root(lifted);
                    return;
                }
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => return,
                Err(_) => break,
            }
        }
        self.removed.failed += 1;
    }

    fn read(&mut self, budget: &mut u32) {
        let Self {
            descent,
            removed,
            buffer,
            ..
        } = self;
        let more = descent.read(buffer, budget, |dir, name, file_type| {
            if file_type == FileType::Directory {
                return true;
            }
            match status_at(dir, name) {
                Ok(status)
                    if FileType::from_raw_mode(status.stx_mode.into()) == FileType::Directory =>
                {
                    return true;
                }
                Err(Errno::NOENT) => {}
                Ok(_) | Err(_) => unlink(dir, name, removed),
            }
            false
        });
        match more {
            Ok(true) => return,
            Ok(false) | Err(Errno::NOENT) => {}
            Err(_) => removed.failed += 1,
        }
        if !descent.has_pending() {
            *budget = budget.saturating_sub(1);
            self.leave();
        }
    }

    /// Deletes the directory itself, from the one above.
    fn leave(&mut self) {
        let left = match self.descent.pop() {
            Ok(Some(left)) => left,
            Ok(None) => return,
            Err(GivenUp) => {
                self.removed.moved = true;
                while let Ok(Some(_)) | Err(GivenUp) = self.descent.pop() {}
                return;
            }
        };
        let (dir, name) = match self.descent.top() {
            Some((dir, _)) => (dir, left.name.as_c_str()),
            None => (self.parent.as_fd(), self.name.as_c_str()),
        };
        let status = status_at(dir, name).ok();
        match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) => {
                self.removed.count(status.as_ref());
                self.removed.is_gone = self.descent.is_done();
            }
            Err(Errno::NOENT) => self.removed.is_gone |= self.descent.is_done(),
            Err(Errno::NOTDIR) if !self.descent.is_done() => unlink(dir, name, &mut self.removed),
            // Filled again since it was read.
            Err(Errno::NOTEMPTY | Errno::EXIST)
                if left.entry.passes + 1 < PASSES_MAX
                    && left.entry.failed == self.removed.failed
                    && !self.descent.is_done() =>
            {
                let passes = left.entry.passes + 1;
                self.enter(left.name, passes);
            }
            Err(_) => self.removed.failed += 1,
        }
    }
}

fn unlink(dir: BorrowedFd<'_>, name: &CStr, removed: &mut Removed) {
    let status = status_at(dir, name).ok();
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) => removed.count(status.as_ref()),
        Err(Errno::NOENT) => {}
        Err(_) => removed.failed += 1,
    }
}

#[cfg(test)]
mod tests;
