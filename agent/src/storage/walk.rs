//! One directory tree, counted a slice at a time.
//!
//! **Problem.** What a directory takes is the sum over every file in it, and the pod that owns it may have made a
//! million, or be changing them right now. **Approach.** A depth-first walk ([`super::descent`]) that can stop after
//! any number of entries and go on later. **What counts**, as `du -x` and the kubelet count (`DiskUsage` in
//! `pkg/volume/util/fs/fs.go`): blocks times 512 and one inode for each file, directory and link, the root included; a
//! file with several names once; nothing beyond a mount point, here also not beyond a bind mount of the same file
//! system, but subvolumes of btrfs on the same mount, which a pod may make; no symbolic link is followed. A file that
//! vanishes is not counted and no error.
//!
//! Memory is bounded: hard-linked files are remembered up to [`LINKS_MAX`]; beyond, each name counts, and [`Walked`]
//! says how many. So is the time, whatever the pod does meanwhile: after so many names the walk ends, and
//! [`Walked::cut_at`] says so.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, Statx, openat};
use rustix::io::Errno;

use super::descent::{
    BUFFER_BYTES, Descent, Entry, GivenUp, Identity, OPEN_DIRECTORY, open_on_this_mount, status_at,
    status_of,
};

/// Files with several names that one walk remembers.
pub const LINKS_MAX: usize = 1 << 16;

/// What a walk found so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walked {
    /// Blocks times 512.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
    /// Names of hard-linked files that were counted although they may have been before.
    pub links_untracked: u64,
    /// Directories and files that may not be read.
    pub unreadable: u64,
    /// Times that directories were moved while we were in them, so that the rest of them was not counted.
    pub moved: u64,
    /// Directories deeper than we go.
    pub too_deep: u64,
    /// How many names were read when the walk ended before the tree did, because it may read no more.
    pub cut_at: Option<u32>,
}

impl Walked {
    /// Whether everything was counted, once. Otherwise the figures are what could be seen.
    pub fn is_complete(&self) -> bool {
        self.cut_at.is_none()
            && (self.unreadable, self.moved) == (0, 0)
            && (self.too_deep, self.links_untracked) == (0, 0)
    }

    /// A single file.
    pub(super) fn of_file(status: &Statx) -> Self {
        let mut walked = Self::default();
        walked.count(status);
        walked
    }

    fn count(&mut self, status: &Statx) {
        self.bytes = self
            .bytes
            .saturating_add(status.stx_blocks.saturating_mul(512));
        self.inodes += 1;
    }
}

/// A file with several names.
type Link = ((u32, u32), u64);

/// A walk under way.
#[derive(Debug)]
pub struct Walk {
    descent: Descent,
    root: Identity,
    /// By device and inode: subvolumes of btrfs number theirs anew.
    links: HashSet<Link>,
    walked: Walked,
    buffer: Box<[MaybeUninit<u8>]>,
}

impl Walk {
    /// Starts at the directory `path`.
    ///
    /// # Errors
    /// ENOENT: it does not exist. ENOTDIR, ELOOP: it is something else. EACCES: it may not be read.
    pub fn start(path: &Path) -> Result<Self, Errno> {
        let fd = openat(CWD, path, OPEN_DIRECTORY, Mode::empty())?;
        Self::start_at(fd.as_fd())
    }

    /// Starts at an open directory.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn start_at(dir: BorrowedFd<'_>) -> Result<Self, Errno> {
        // Opened again: our position in it must be our own.
        let fd = openat(dir, c".", OPEN_DIRECTORY, Mode::empty())?;
        let status = status_of(fd.as_fd())?;
        let root = Identity::of(&status);
        let mut walked = Walked::default();
        walked.count(&status);
        Ok(Self {
            descent: Descent::new(fd, root),
            root,
            links: HashSet::new(),
            walked,
            buffer: vec![MaybeUninit::uninit(); BUFFER_BYTES].into_boxed_slice(),
        })
    }

    /// The same walk, which ends after this many names in all.
    #[must_use]
    pub fn at_most(mut self, names: u32) -> Self {
        self.descent.bound(names);
        self
    }

    #[cfg(test)]
    pub(super) fn bound_depth(&mut self, levels: usize) {
        self.descent.bound_depth(levels);
    }

    /// How many names were read so far.
    pub fn names(&self) -> u32 {
        self.descent.names()
    }

    /// Looks at `entries` entries more. The result, once there are no more, or no more may be read.
    pub fn advance(&mut self, entries: u32) -> Option<Walked> {
        let mut budget = entries;
        while !self.descent.is_done() {
            if self.descent.is_cut() {
                self.walked.cut_at = Some(self.descent.names());
                break;
            }
            if budget == 0 {
                return None;
            }
            if let Some(name) = self.descent.next_pending() {
                budget -= 1;
                self.enter(name);
            } else {
                self.read(&mut budget);
            }
        }
        Some(self.walked)
    }

    /// What was found so far.
    pub fn so_far(&self) -> Walked {
        self.walked
    }

    fn enter(&mut self, name: std::ffi::CString) {
        let Some((dir, _)) = self.descent.top() else {
            return;
        };
        let opened = open_on_this_mount(dir, &name).and_then(|fd| Ok((status_of(fd.as_fd())?, fd)));
        match opened {
            Ok((status, fd)) => {
                let identity = Identity::of(&status);
                if !identity.is_beside(&self.root) {
                    return;
                }
                self.walked.count(&status);
                if self.descent.is_deepest() {
                    self.walked.too_deep += 1;
                } else {
                    self.descent.push(fd, identity, name, Entry::default());
                }
            }
            // Gone, something else by now, or something is mounted there.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
            Err(_) => {
                self.walked.unreadable += 1;
                if let Ok(status) = status_at(dir, &name)
                    && Identity::of(&status).is_beside(&self.root)
                {
                    self.walked.count(&status);
                }
            }
        }
    }

    fn read(&mut self, budget: &mut u32) {
        let Self {
            descent,
            root,
            links,
            walked,
            buffer,
        } = self;
        let more = descent.read(buffer, budget, |dir, name, file_type| {
            if file_type == FileType::Directory {
                return true; // counted when it is entered
            }
            match status_at(dir, name) {
                Ok(status)
                    if FileType::from_raw_mode(status.stx_mode.into()) == FileType::Directory =>
                {
                    return true;
                }
                Ok(status) if !Identity::of(&status).is_beside(root) => {}
                Ok(status) => {
                    let device = (status.stx_dev_major, status.stx_dev_minor);
                    let link = (device, status.stx_ino);
                    if status.stx_nlink < 2 || is_new(links, link, walked) {
                        walked.count(&status);
                    }
                }
                Err(Errno::NOENT) => {}
                Err(_) => walked.unreadable += 1,
            }
            false
        });
        match more {
            Ok(true) => return,
            Ok(false) | Err(Errno::NOENT) => {}
            Err(_) => walked.unreadable += 1,
        }
        // With names pending the directory is left later.
        if descent.has_pending() {
            return;
        }
        *budget = budget.saturating_sub(1);
        if let Err(GivenUp) = descent.pop() {
            walked.moved += 1;
        }
    }
}

fn is_new(links: &mut HashSet<Link>, link: Link, walked: &mut Walked) -> bool {
    if links.contains(&link) {
        return false;
    }
    if links.len() < LINKS_MAX {
        links.insert(link);
    } else {
        walked.links_untracked += 1;
    }
    true
}

#[cfg(test)]
pub(super) mod tests;
