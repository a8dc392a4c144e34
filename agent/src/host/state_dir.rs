//! The state directory: private to root, with everything in it.
//!
//! **Problem.** Who can open a file can lock it (`flock` asks for no right to write), and who can write a directory can
//! put links and other files in the place of ours. Either stops the agent, or has it write where somebody else wants.
//! **Approach.** The directory has mode 0700 and belongs to the user that the agent runs as; no directory above it can
//! be written by anybody else (but for a sticky one such as `/tmp`). Files in it have mode 0600, are never opened
//! through a link, and a new one is made under a name that did not exist. A directory that others may write is refused:
//! nobody can know what is in it. **An earlier version's directory** has mode 0755 and files that others can open. It
//! is repaired: first the mode, so that nobody comes in any more; then each file that is locked is replaced by a copy,
//! because a process may have it open and locked since before.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, RawMode};
use rustix::io::Errno;

use super::HostRoot;
use super::flock::{FlockError, flock_within, with_open};
use super::fnv::Fnv;
use super::process_users::ProcessUsers;
use crate::host::shown::Show as _;

/// Of the directory.
const DIRECTORY_MODE: RawMode = 0o700;
/// Of each file in it.
const FILE_MODE: RawMode = 0o600;
/// The bits of a mode that let others read, write or search.
const OTHERS: RawMode = 0o077;
/// The bits of a mode that let others write.
const OTHERS_WRITE: RawMode = 0o022;
/// Entries of a state directory that are looked at.
const ENTRIES_MAX: usize = 4096;
/// Bytes of a file that is replaced by a copy: more than any ledger has.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// How long a file of an earlier version is waited for, before it is replaced, or left to the process of ours that
/// holds it.
const REPAIR_PATIENCE: Duration = Duration::from_secs(1);
/// The lock file's name in the state directory. It is empty.
pub const LOCK_FILE: &str = "agent.lock";
/// The file by which space is tried, and its size: about what the ledgers take.
pub const ROOM_FILE: &str = "room";
const TRIED_BYTES: usize = 64 << 10;
/// The file of evictions that are to be reported to the API server.
pub const INTENTS_FILE: &str = "intents.jsonl";
/// The file of pods that the API server said are critical.
pub const CRITICAL_FILE: &str = "critical-pods.json";
/// Damaged files that are kept of each file, at most.
pub const DAMAGED_MAX: u32 = 1000;
/// What follows the name of a file that was set aside, before its number.
pub const DAMAGED: &str = ".damaged-";
/// Ends of the names of files that are locked: ledgers, and the locks themselves.
const LOCKED: [&str; 3] = [".jsonl", ".lock", ".turn"];

/// Why a directory is not used for state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It is a link, or no directory.
    #[error("{path}: the state directory must be a directory and not a link or a file; choose another --state-dir", path = path.shown())]
    NotADirectory {
        /// What is there.
        path: PathBuf,
    },
    /// It is another user's.
    #[error("{path}: the state directory belongs to user {uid}, and plimsoll runs as user {euid}: remove it, or choose another --state-dir",
        path = path.shown(), euid = rustix::process::geteuid())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Others can write it.
    #[error("{path}: others than its owner can write the state directory (mode {mode:04o}), so what is in it cannot be trusted: remove it, or choose another --state-dir", path = path.shown())]
    Writable {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: RawMode,
    },
    /// Others can read it, and it does not look like a state directory of an earlier version.
    #[error("{path}: others can read it (mode {mode:04o}), and there are other things than plimsoll's in it: give plimsoll a directory of its own (--state-dir)", path = path.shown())]
    Shared {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: RawMode,
    },
    /// A directory above it can be changed by somebody else.
    #[error("{path}: {above} above it can be changed by others (user {uid}, mode {mode:04o}), who could replace the state directory: choose another --state-dir",
        path = path.shown(), above = above.shown())]
    Above {
        /// The state directory.
        path: PathBuf,
        /// The directory above it.
        above: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its mode.
        mode: RawMode,
    },
    /// It cannot be made, read or repaired.
    #[error("{path}: the state directory cannot be used: {source}; free space there, or choose another --state-dir", path = path.shown())]
    Io {
        /// The directory, or a file in it.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl StateError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// Makes a state directory private, with all that is in it; makes it where it does not exist.
///
/// # Errors
/// [`StateError`] when it is not to be trusted, or cannot be made so.
pub fn prepare(dir: &Path) -> Result<(), StateError> {
    make(dir).map_err(StateError::io(dir))?;
    check_above(dir)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::openat(CWD, dir, flags, Mode::empty());
    let fd = open.map_err(|errno| match errno {
        Errno::LOOP | Errno::NOTDIR => StateError::NotADirectory {
            path: dir.to_owned(),
        },
        errno => StateError::io(dir)(errno.into()),
    })?;
    let status = rustix::fs::fstat(&fd).map_err(|errno| StateError::io(dir)(errno.into()))?;
    let mode = status.st_mode & 0o7777;
    if status.st_uid != rustix::process::geteuid().as_raw() {
        return Err(StateError::Foreign {
            path: dir.to_owned(),
            uid: status.st_uid,
        });
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(StateError::Writable {
            path: dir.to_owned(),
            mode,
        });
    }
    if mode & OTHERS != 0 {
        if !is_earlier(dir).map_err(StateError::io(dir))? {
            return Err(StateError::Shared {
                path: dir.to_owned(),
                mode,
            });
        }
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(DIRECTORY_MODE))
            .map_err(|errno| StateError::io(dir)(errno.into()))?;
    }
    repair_files(dir)
}

/// Makes a directory with mode 0700 where there is none, and those above it that are missing.
///
/// # Errors
/// The system's.
pub fn make(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        std::fs::create_dir_all(above)?;
    }
    match rustix::fs::mkdir(dir, Mode::from_raw_mode(DIRECTORY_MODE)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn check_above(dir: &Path) -> Result<(), StateError> {
    match changeable_above(dir).map_err(StateError::io(dir))? {
        Some(Changeable { above, uid, mode }) => Err(StateError::Above {
            path: dir.to_owned(),
            above,
            uid,
            mode,
        }),
        None => Ok(()),
    }
}

/// A directory that others than root and this process's user can change.
pub(crate) struct Changeable {
    pub(crate) above: PathBuf,
    /// Its owner.
    pub(crate) uid: u32,
    pub(crate) mode: RawMode,
}

/// The nearest directory above `path` that somebody else can change, and so put another file in the place of `path`.
///
/// # Errors
/// The system's, when one of them cannot be looked at.
pub(crate) fn changeable_above(path: &Path) -> io::Result<Option<Changeable>> {
    let dir_above = match path.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        None => return Ok(None),
    };
    let real = std::fs::canonicalize(dir_above)?;
    for above in real.ancestors() {
        let metadata = std::fs::metadata(above)?;
        let (uid, mode) = (metadata.uid(), metadata.mode() & 0o7777);
        let is_trusted = uid == 0 || uid == rustix::process::geteuid().as_raw();
        let is_sticky = mode & 0o1000 != 0;
        if !is_trusted || (mode & OTHERS_WRITE != 0 && !is_sticky) {
            let above = above.to_owned();
            return Ok(Some(Changeable { above, uid, mode }));
        }
    }
    Ok(None)
}

/// Whether a directory that others can read is an earlier version's state directory, or empty: a system's directory has
/// others inside.
fn is_earlier(dir: &Path) -> io::Result<bool> {
    let (mut is_empty, mut has_state) = (true, false);
    for entry in std::fs::read_dir(dir)?.take(ENTRIES_MAX) {
        let entry = entry?;
        is_empty = false;
        if entry.file_type()?.is_dir() {
            return Ok(false);
        }
        let name = entry.file_name();
        has_state |= name == LOCK_FILE || name.as_encoded_bytes().ends_with(b".jsonl");
    }
    Ok(is_empty || has_state)
}

fn repair_files(dir: &Path) -> Result<(), StateError> {
    let entries = std::fs::read_dir(dir).map_err(StateError::io(dir))?;
    for entry in entries.take(ENTRIES_MAX) {
        let entry = entry.map_err(StateError::io(dir))?;
        let path = entry.path();
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(StateError::io(&path)(error)),
        };
        if metadata.is_file() && metadata.mode() & OTHERS != 0 {
            repair(&path, &metadata).map_err(StateError::io(&path))?;
        }
    }
    Ok(())
}

/// Takes a file from others. One that is locked is replaced, unless a process of ours holds it.
fn repair(path: &Path, metadata: &std::fs::Metadata) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let is_locked = LOCKED.iter().any(|end| name.ends_with(end.as_bytes()));
    let old = open_private(path)?; // with the right mode from here on
    if !is_locked || metadata.len() > COPY_BYTES_MAX {
        return Ok(());
    }
    let operation = FlockOperation::NonBlockingLockExclusive;
    match flock_within(&old, operation, REPAIR_PATIENCE) {
        Ok(()) => {}
        // The kernel names who has asked for the lock, which may have ended and left it to a process that it started:
        // so everybody counts who has the file open. An agent of ours keeps its lock.
        Err(FlockError::Held(_)) => {
            let host = HostRoot::live();
            let is_ours = |pid: &u32| {
                let users = ProcessUsers::of(&host, *pid);
                users.is_some_and(|users| users.effective == metadata.uid())
            };
            if with_open(&old).iter().any(is_ours) {
                return Ok(());
            }
        }
        Err(FlockError::Io(error)) => return Err(error),
    }
    let new = new_beside(path);
    let mut copy = create_new(&new)?;
    io::copy(&mut io::Read::take(&old, COPY_BYTES_MAX), &mut copy)?;
    std::fs::rename(&new, path)
}

/// Whether a file system took nothing because it is full or read-only: it may take something later.
pub fn has_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem
    )
}

/// Whether a state directory takes what an agent writes to its ledgers. Leaves nothing behind.
///
/// # Errors
/// The system's: see [`has_no_space`].
pub fn try_space(dir: &Path) -> io::Result<()> {
    make(dir)?;
    let path = dir.join(ROOM_FILE);
    let written = create_new(&path).and_then(|mut file| {
        let zeros = [0; 4096];
        (0..TRIED_BYTES / zeros.len()).try_for_each(|_| file.write_all(&zeros))
    });
    std::fs::remove_file(&path).or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => written.is_err().then_some(()).ok_or(error),
    })?;
    written
}

/// Opens a file only to lock it, on a file system that takes nothing.
pub(super) fn open_to_lock(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Opens a file for reading and appending, and makes it where it does not exist: mode 0600, no link, a regular file of
/// this user, without another name.
///
/// # Errors
/// The system's, or what the file is instead.
pub fn open_private(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR
        | OFlags::CREATE
        | OFlags::APPEND
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(FILE_MODE))?;
    let status = rustix::fs::fstat(&file)?;
    if !FileType::from_raw_mode(status.st_mode).is_file() {
        return Err(io::Error::other("it is not a regular file; remove it"));
    }
    if status.st_uid != rustix::process::geteuid().as_raw() {
        let text = format!("it belongs to user {}; remove it", status.st_uid);
        return Err(io::Error::other(text));
    }
    if status.st_nlink > 1 {
        // Its mode would be another file's as well.
        return Err(io::Error::other(
            "it has another name (a hard link); remove it",
        ));
    }
    if status.st_mode & OTHERS != 0 {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(FILE_MODE))?;
    }
    Ok(File::from(file))
}

/// Makes a file that does not exist, with mode 0600. What was left under this name is removed first.
///
/// # Errors
/// The system's.
pub fn create_new(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(FILE_MODE))?;
    Ok(File::from(file))
}

/// The name under which a file's successor is written.
pub(crate) fn new_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Replaces a file as a whole: with mode 0600, and never half written.
///
/// # Errors
/// The system's; the old file is still there.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = new_beside(path);
    let mut file = create_new(&new)?;
    file.write_all(text)?;
    // Where the state directory is on a disk, the name must not be there before the text.
    file.sync_all()?;
    std::fs::rename(&new, path)
}

/// Renames a file that cannot be used to `NAME.damaged-N`, and returns its new path.
///
/// # Errors
/// The system's, or that there are [`DAMAGED_MAX`] already; `why` says what is wrong with this one.
pub fn set_aside(path: &Path, why: &str) -> io::Result<PathBuf> {
    for number in 1..=DAMAGED_MAX {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("{DAMAGED}{number}"));
        let to = PathBuf::from(name);
        // A link, because a rename would replace what is there.
        match std::fs::hard_link(path, &to) {
            Ok(()) => {
                std::fs::remove_file(path)?;
                return Ok(to);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!(
        "{why}, and there are {DAMAGED_MAX} damaged ones already: delete some"
    )))
}

/// What a state file of at most `bytes_max` has, or why it is none of ours; `None`: there is no file.
///
/// # Errors
/// The system's.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let read = std::fs::metadata(path).and_then(|metadata| {
        if metadata.len() > bytes_max {
            return Ok(Err(format!("larger than {bytes_max} bytes")));
        }
        std::fs::read(path).map(Ok)
    });
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether what a state file has is of the version that is read, and has the checksum that the file states.
///
/// # Errors
/// What is wrong with it.
pub fn verify((stated, read): (u32, u32), text: &str, stated_checksum: &str) -> Result<(), String> {
    if stated != read {
        return Err(format!(
            "version {stated}, but this plimsoll reads version {read}"
        ));
    }
    let actual = checksum(text);
    if actual != stated_checksum {
        return Err(format!(
            "its checksum is {stated_checksum:?} and should be {actual:?}: it is damaged, or was edited"
        ));
    }
    Ok(())
}

/// FNV-1a, 64 bits: against accidents, not against an attacker, who could write cgroups as well.
pub fn checksum(text: &str) -> String {
    let mut hash = Fnv::default();
    hash.write(text.as_bytes());
    format!("{:016x}", hash.0)
}

/// Whether the open file is the one at this path now.
///
/// # Errors
/// The system's, but for a path where nothing is.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
