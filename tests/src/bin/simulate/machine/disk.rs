//! Disks without room: full of bytes, out of inodes, or read-only.

use super::*;

/// What a disk no longer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lacks {
    /// Bytes: one more write is cut off in the middle, those after it fail.
    Bytes,
    /// Inodes: no file is made.
    Inodes,
    /// It is mounted read-only.
    Writes,
}

/// Bytes that a full disk still takes: part of a line.
const REST_BYTES: usize = 20;

/// What is full: places below the run's directory.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    full: BTreeMap<PathBuf, (Lacks, usize)>,
    /// When the last one got room.
    pub(crate) had_room_ns: Option<u64>,
}

impl Disks {
    pub(super) fn fill(&mut self, place: PathBuf, lacks: Lacks) {
        self.full.insert(place, (lacks, REST_BYTES));
    }

    pub(super) fn empty(&mut self, place: &std::path::Path, now_ns: u64) {
        self.full.remove(place);
        self.had_room_ns = Some(now_ns);
    }

    fn lacks(&mut self, path: &str) -> Option<&mut (Lacks, usize)> {
        let path = std::path::Path::new(path);
        // A journal's files lie beside each other.
        let is_in = |place: &PathBuf| path.starts_with(place) || path.with_extension("") == *place;
        self.full
            .iter_mut()
            .find(|(place, _)| is_in(place))
            .map(|(_, lacks)| lacks)
    }

    /// How much of so many bytes is written.
    pub(crate) fn write(&mut self, path: &str, length: usize) -> Result<usize, i32> {
        match self.lacks(path) {
            Some((Lacks::Bytes, 0)) => Err(libc::ENOSPC),
            Some((Lacks::Bytes, left)) => {
                let written = length.min(*left);
                *left -= written;
                Ok(written)
            }
            Some((Lacks::Writes, _)) => Err(libc::EROFS),
            Some((Lacks::Inodes, _)) | None => Ok(length),
        }
    }

    /// Opens a file, with these flags of `open(2)`.
    pub(crate) fn open(&mut self, path: &str, flags: i32) -> Result<(), i32> {
        let writes = flags & (libc::O_WRONLY | libc::O_RDWR) != 0;
        let makes = flags & libc::O_CREAT != 0 && !std::path::Path::new(path).exists();
        match self.lacks(path) {
            Some((Lacks::Inodes, _)) if makes => Err(libc::ENOSPC),
            Some((Lacks::Writes, _)) if writes || makes => Err(libc::EROFS),
            _ => Ok(()),
        }
    }

    /// Makes, renames or removes a name.
    pub(crate) fn name(&mut self, path: &str, makes: bool) -> Result<(), i32> {
        match self.lacks(path) {
            Some((Lacks::Writes, _)) => Err(libc::EROFS),
            Some((Lacks::Inodes, _)) if makes => Err(libc::ENOSPC),
            _ => Ok(()),
        }
    }
}
