//! Every directory below one, a step at a time: for trees of cgroups whose size and depth a pod decides.
//!
//! Allocates, and holds a descriptor for each level. A directory is opened by its name in the one above, so that no
//! path is too long, and read to its end by one descriptor, so that names that come and go, or hash alike, neither end
//! the walk early nor repeat it for ever.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

/// Levels at most: descriptors that are open at one time. What is deeper is a failure of the walk.
const LEVELS_MAX: usize = 256;

/// One step.
#[derive(Debug)]
pub(crate) enum Step<'walk> {
    /// A directory that was not entered before.
    Entered {
        /// The directory.
        dir: BorrowedFd<'walk>,
        /// The name in the first one of the directory that this is, or is below; `None` for the first one itself.
        top: Option<&'walk CStr>,
    },
    /// All below a directory has been walked. Not for the first one.
    Left {
        /// The one above it.
        parent: BorrowedFd<'walk>,
        /// Its name there.
        name: &'walk CString,
    },
}

#[derive(Debug)]
struct Level {
    dir: Dir,
    name: CString,
}

/// A walk. Whatever is done to the directories meanwhile, it ends.
#[derive(Debug)]
pub(crate) struct Walk {
    levels: Vec<Level>,
    has_begun: bool,
    left: CString,
    failure: Option<Errno>,
}

impl Walk {
    /// From `root` downwards; `None` if it is gone.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn below(root: &Path) -> Result<Option<Self>, Errno> {
        let dir = match rustix::fs::open(root, flags(), Mode::empty()).and_then(Dir::new) {
            Err(Errno::NOENT) => return Ok(None),
            dir => dir?,
        };
        let name = CString::default();
        Ok(Some(Self {
            levels: vec![Level { dir, name }],
            has_begun: false,
            left: CString::default(),
            failure: None,
        }))
    }

    /// The next step; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Step<'_>> {
        if std::mem::replace(&mut self.has_begun, true) {
            loop {
                let below = next_directory(&mut self.levels.last_mut()?.dir);
                match below {
                    Ok(Some(level)) if self.levels.len() < LEVELS_MAX => {
                        self.levels.push(level);
                        break;
                    }
                    Ok(Some(_)) => self.failure = Some(Errno::NAMETOOLONG),
                    Ok(None) => {
                        self.left = self.levels.pop()?.name;
                        let parent = self.levels.last()?.dir.fd().ok()?;
                        return Some(Step::Left {
                            parent,
                            name: &self.left,
                        });
                    }
                    Err(errno) => self.failure = Some(errno),
                }
            }
        }
        let dir = self.levels.last()?.dir.fd().ok()?;
        let top = self.levels.get(1).map(|level| level.name.as_c_str());
        Some(Step::Entered { dir, top })
    }

    /// Why some of it was not walked, if so.
    pub(crate) fn failure(&self) -> Option<Errno> {
        self.failure
    }
}

fn flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// After an error the next call goes on with the next name, or ends.
fn next_directory(dir: &mut Dir) -> Result<Option<Level>, Errno> {
    while let Some(entry) = dir.read() {
        let entry = match entry {
            // It is gone itself.
            Err(Errno::NOENT | Errno::NODEV) => return Ok(None),
            entry => entry?,
        };
        let name = entry.file_name();
        let is_directory = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if !is_directory || name == c"." || name == c".." {
            continue;
        }
        match openat(dir.fd()?, name, flags(), Mode::empty()).and_then(Dir::new) {
            Ok(below) => {
                return Ok(Some(Level {
                    dir: below,
                    name: name.to_owned(),
                }));
            }
            // Gone, or no directory after all.
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR | Errno::LOOP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}
