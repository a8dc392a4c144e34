//! The way down a directory tree whose depth and width somebody else chooses: a stack of directories, few of them open.
//!
//! **Problem.** A pod may make a tree deeper than any path is long and deeper than a process may have open files, and
//! may rename directories while we are in it. **Approach.** Everything is opened relative to its parent. Only the root
//! and the [`OPEN_MAX`] deepest directories stay open; one further up is opened again by `..` from below, and believed
//! only if device and inode are what they were. Where they are not, somebody has moved a directory: what lies between
//! is given up and counted, so that a walk never leaves its tree. A directory that is opened again goes on reading at
//! the cookie that `getdents64(2)` gave. Whoever makes or moves names faster than they are read would keep us for ever:
//! only so many names are read ([`NAMES_MAX`]). **Terms.** *level*: one directory on the way. *pending*: names of
//! directories that were read and not entered yet.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Statx, StatxFlags, openat, openat2,
    seek, statx,
};
use rustix::io::Errno;
use rustix::path::Arg;

/// Deepest directories that stay open.
pub(super) const OPEN_MAX: usize = 32;
/// Levels at most. Trees beyond are counted as too deep.
pub(super) const DEPTH_MAX: usize = 1 << 16;
/// Names of directories kept at most, over all levels; each level may have one beyond that.
const PENDING_MAX: usize = 4096;
/// Names that one descent reads, unless another bound is given. Of hard-linked files each name counts.
pub(super) const NAMES_MAX: u32 = 4_000_000;
/// Bytes of one `getdents64(2)`: some hundred entries.
pub(super) const BUFFER_BYTES: usize = 16 << 10;

/// How directories are opened on the way.
pub(super) const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Which file it is, and on which mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: (u32, u32),
    /// `None` on kernels before 5.8.
    mount: Option<u64>,
    inode: u64,
}

impl Identity {
    pub(super) fn of(status: &Statx) -> Self {
        let has_mount = status.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        Self {
            device: (status.stx_dev_major, status.stx_dev_minor),
            mount: has_mount.then_some(status.stx_mnt_id),
            inode: status.stx_ino,
        }
    }

    /// Neither another file system nor another mount of the same one. Where the mount is known it alone decides: on one
    /// mount of btrfs each subvolume has a device number of its own, and whoever may write to a directory may make one.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        match (self.mount, other.mount) {
            (Some(mount), Some(other)) => mount == other,
            _ => self.device == other.device,
        }
    }
}

const STATUS: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID);

/// Status of an open file.
pub(super) fn status_of(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH, STATUS)
}

/// Status of what `name` is in a directory, itself and not what it points to. Where a file system of a server is
/// mounted on it, that server is not asked: it may never answer.
pub(super) fn status_at(dir: BorrowedFd<'_>, name: impl Arg) -> Result<Statx, Errno> {
    const FLAGS: AtFlags = AtFlags::SYMLINK_NOFOLLOW
        .union(AtFlags::NO_AUTOMOUNT)
        .union(AtFlags::STATX_DONT_SYNC);
    statx(dir, name, FLAGS, STATUS)
}

/// Opens a directory in a directory, unless something is mounted on it (EXDEV).
pub(super) fn open_on_this_mount(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    openat2(
        dir,
        name,
        OPEN_DIRECTORY,
        Mode::empty(),
        ResolveFlags::NO_XDEV,
    )
}

/// A directory on the way.
#[derive(Debug)]
pub(super) struct Level {
    /// `None` while it is too far up to stay open. The top always has it.
    fd: Option<OwnedFd>,
    identity: Identity,
    /// Its name in the directory above; empty for the root.
    pub(super) name: CString,
    /// Where reading goes on.
    cookie: u64,
    is_read: bool,
    pending: Vec<CString>,
    pub(super) entry: Entry,
}

/// What whoever enters a directory wants to know when it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Entry {
    /// How many times it was entered before.
    pub(super) passes: u8,
    /// What had failed by then.
    pub(super) failed: u64,
}

/// The stack.
#[derive(Debug)]
pub(super) struct Descent {
    levels: Vec<Level>,
    pending: usize,
    /// Names that were read.
    names: u32,
    names_max: u32,
    depth_max: usize,
}

/// Directories between here and the next one that is open were given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GivenUp;

impl Descent {
    pub(super) fn new(root: OwnedFd, identity: Identity) -> Self {
        let mut descent = Self {
            levels: Vec::new(),
            pending: 0,
            names: 0,
            names_max: NAMES_MAX,
            depth_max: DEPTH_MAX,
        };
        descent.push(root, identity, CString::default(), Entry::default());
        descent
    }

    pub(super) fn is_done(&self) -> bool {
        self.levels.is_empty()
    }

    /// Reads this many names at most, in all.
    pub(super) fn bound(&mut self, names: u32) {
        self.names_max = names;
    }

    /// How many names were read.
    pub(super) fn names(&self) -> u32 {
        self.names
    }

    /// Whether it ends here, because it has read as many names as it may. What is left is not read.
    pub(super) fn is_cut(&self) -> bool {
        !self.is_done() && self.names >= self.names_max
    }

    #[cfg(test)]
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Whether no level may be added.
    pub(super) fn is_deepest(&self) -> bool {
        self.levels.len() >= self.depth_max
    }

    #[cfg(test)]
    pub(super) fn bound_depth(&mut self, levels: usize) {
        self.depth_max = levels;
    }

    /// The directory where it began.
    pub(super) fn root(&self) -> Option<BorrowedFd<'_>> {
        Some(self.levels.first()?.fd.as_ref()?.as_fd())
    }

    /// Has what was put into the root under this name entered later, if there is room for the name.
    pub(super) fn add_to_root(&mut self, name: CString) {
        if self.pending < PENDING_MAX
            && let Some(root) = self.levels.first_mut()
        {
            root.pending.push(name);
            self.pending += 1;
        }
    }

    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// The directory that we are in.
    pub(super) fn top(&self) -> Option<(BorrowedFd<'_>, &Level)> {
        let level = self.levels.last()?;
        Some((level.fd.as_ref()?.as_fd(), level))
    }

    pub(super) fn has_pending(&self) -> bool {
        self.levels
            .last()
            .is_some_and(|level| !level.pending.is_empty())
    }

    /// A name that is to be entered next.
    pub(super) fn next_pending(&mut self) -> Option<CString> {
        let name = self.levels.last_mut()?.pending.pop()?;
        self.pending -= 1;
        Some(name)
    }

    /// Enters a directory that was opened from the top.
    pub(super) fn push(&mut self, fd: OwnedFd, identity: Identity, name: CString, entry: Entry) {
        self.levels.push(Level {
            fd: Some(fd),
            identity,
            name,
            cookie: 0,
            is_read: false,
            pending: Vec::new(),
            entry,
        });
        // The root stays open: a walk that is disturbed goes on there.
        if let Some(index) = self.levels.len().checked_sub(OPEN_MAX + 1)
            && index > 0
        {
            self.levels[index].fd = None;
        }
    }

    /// Leaves the top for the directory above.
    ///
    /// # Errors
    /// [`GivenUp`] when the one above is not there any more; the top is then the deepest that is open.
    pub(super) fn pop(&mut self) -> Result<Option<Level>, GivenUp> {
        let Some(left) = self.levels.pop() else {
            return Ok(None);
        };
        self.pending -= left.pending.len();
        let Some(above) = self.levels.last_mut() else {
            return Ok(Some(left));
        };
        if above.fd.is_some() {
            return Ok(Some(left));
        }
        match left.fd.as_ref().map(|fd| reopen(fd.as_fd(), above)) {
            Some(Ok(fd)) => {
                above.fd = Some(fd);
                Ok(Some(left))
            }
            _ => {
                while self.levels.last().is_some_and(|level| level.fd.is_none()) {
                    // Cannot be `None`: it was looked at just now.
                    let lost = self.levels.pop().map_or(0, |level| level.pending.len());
                    self.pending -= lost;
                }
                Err(GivenUp)
            }
        }
    }

    /// Reads the next entries of the top, `buffer` full at most, and hands each to `visit` with its type. What `visit`
    /// calls a directory is entered later. `false`: there were no more.
    ///
    /// # Errors
    /// The kernel's answer; the directory then counts as read.
    pub(super) fn read(
        &mut self,
        buffer: &mut [MaybeUninit<u8>],
        budget: &mut u32,
        mut visit: impl FnMut(BorrowedFd<'_>, &CStr, rustix::fs::FileType) -> bool,
    ) -> Result<bool, Errno> {
        let Some(level) = self.levels.last_mut() else {
            return Ok(false);
        };
        let Some(fd) = level
            .fd
            .as_ref()
            .map(AsFd::as_fd)
            .filter(|_| !level.is_read)
        else {
            return Ok(false);
        };
        let mut entries = RawDir::new(fd, buffer);
        loop {
            let entry = match entries.next() {
                None => {
                    level.is_read = true;
                    break;
                }
                Some(Err(Errno::INTR)) => continue,
                Some(Err(error)) => {
                    level.is_read = true;
                    return Err(error);
                }
                Some(Ok(entry)) => entry,
            };
            level.cookie = entry.next_entry_cookie();
            let name = entry.file_name();
            if name != c"." && name != c".." {
                *budget = budget.saturating_sub(1);
                self.names = self.names.saturating_add(1);
                if visit(fd, name, entry.file_type()) {
                    level.pending.push(name.to_owned());
                    self.pending += 1;
                }
            }
            if entries.is_buffer_empty() {
                break;
            }
            let is_full = self.pending >= PENDING_MAX && !level.pending.is_empty();
            if is_full || *budget == 0 || self.names >= self.names_max {
                // The rest of the buffer is read again.
                seek(fd, SeekFrom::Start(level.cookie))?;
                break;
            }
        }
        Ok(!level.is_read)
    }
}

fn reopen(below: BorrowedFd<'_>, wanted: &Level) -> Result<OwnedFd, Errno> {
    let fd = openat(below, c"..", OPEN_DIRECTORY, Mode::empty())?;
    if Identity::of(&status_of(fd.as_fd())?) != wanted.identity {
        return Err(Errno::STALE);
    }
    seek(&fd, SeekFrom::Start(wanted.cookie))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A subvolume of btrfs is on its parent's mount and has another device number.
    #[test]
    fn the_mount_says_what_lies_beside_and_without_it_the_device() {
        let identity = |mount, minor| Identity {
            device: (0, minor),
            mount,
            inode: 256,
        };
        for (mount, minor, is_beside) in [
            ((Some(1), Some(1)), (40, 40), true),
            ((Some(1), Some(1)), (40, 41), true),
            ((Some(1), Some(2)), (40, 40), false),
            ((Some(1), Some(2)), (40, 41), false),
            ((None, None), (40, 40), true),
            ((None, None), (40, 41), false),
        ] {
            let (this, other) = (identity(mount.0, minor.0), identity(mount.1, minor.1));
            assert_eq!(this.is_beside(&other), is_beside, "{this:?} {other:?}");
        }
    }
}
