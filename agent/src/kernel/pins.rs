//! Programs that outlive the agent: pinned in the BPF file system, and taken over by the next one.
//!
//! Problem: an agent that is killed, or restarted by an upgrade, leaves the node unwatched until the next one has
//! loaded everything, and takes counts and armed thresholds with it. Approach: maps, programs and links are pinned in a
//! directory of their own. The next agent with the same state directory opens them instead of loading anything: the
//! programs never stop, and what they sent meanwhile is in the rings. A set is used only if it is exactly what this
//! agent would load ([`identity`](super::identity::identity)) and complete; any other is removed. A set that cannot be
//! made costs nothing but the set: the programs are then held by this process alone.
//!
//! **Whose files.** What is pinned decides what root removes and which maps the agent believes, so that a BPF file
//! system that others can write is not used, nor a directory of another user. Directories are opened one by one, each
//! beneath the one before and never through a link (`openat2(2)`), and files are unlinked relative to the directory
//! that is open. What is in directories that only root can write is then found by its path.
//!
//! Layout: `/sys/fs/bpf/plimsoll/OWNER/IDENTITY/{maps,programs,links}/NAME`, and a directory `complete`, which is made
//! last. One owner per state directory. `MANIFEST`, one of the maps, says what became of each hook.
//!
//! **One agent at a time.** Two readers of the same rings would each miss what the other has read. The owner's
//! directory is locked (`flock(2)`) by whoever uses or removes its sets ([`PinLock`]). The lock of the state directory
//! is no substitute: an agent without room for one starts all the same.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::{Map, MapData};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{Program, ProgramInfo};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags, mkdirat, openat2, unlinkat};
use rustix::io::Errno;

use super::error::reason;
use super::hooks::HOOKS;
use super::manifest::Manifest;
use super::{HookKind, HookReport, HookState, Unavailable};

use crate::host::flock::{FlockError, Holders, flock_within};
use crate::host::fnv::Fnv;
use crate::host::shown::Show as _;
use crate::host::state_dir::is_at;

/// Where the BPF file system is by convention; systemd mounts it there.
const BPFFS: &str = "/sys/fs/bpf";
/// Our directory in it.
const DIRECTORY: &str = "plimsoll";
/// include/uapi/linux/magic.h
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// Of a state directory's path, as much as is kept readable.
const READABLE_MAX: usize = 64;
/// Entries of one directory: many times what a set has.
const ENTRIES_MAX: usize = 4096;
/// Of the directories that are made.
const MODE: Mode = Mode::RWXU;
/// How often a directory that another process removes is made anew.
const MADE_ANEW_MAX: u32 = 8;
/// Bits of a mode that let others write.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

const MAPS: &str = "maps";
const PROGRAMS: &str = "programs";
const LINKS: &str = "links";
const COMPLETE: &str = "complete";

/// Why a set of pins cannot be made, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// There is no BPF file system.
    #[error("{path} is not a BPF file system: mount one there (mount -t bpf -o mode=0700 bpf {path})", path = path.shown())]
    NoBpffs {
        /// Where it should be.
        path: PathBuf,
    },
    /// Others can put files there.
    #[error("{path} can be changed by other users (owner {uid}, mode {mode:04o}), who could have plimsoll remove or use files of theirs: chmod 0700 {path} if it is root's, else remove it; a BPF file system is mounted private by mount -t bpf -o mode=0700", path = path.shown())]
    NotPrivate {
        /// Which directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its mode.
        mode: u32,
    },
    /// Something is there that no agent makes.
    #[error("{path} was not pinned by plimsoll: inspect it, then remove it", path = path.shown())]
    Stranger {
        /// What is there: a link, a file in the place of a directory, a name of another form.
        path: PathBuf,
    },
    /// More is there than any agent makes.
    #[error("{path} has more than {ENTRIES_MAX} entries, more than plimsoll makes: inspect it, then remove it", path = path.shown())]
    TooMany {
        /// The directory.
        path: PathBuf,
    },
    /// A file or directory.
    #[error("{path}: cannot be used: {source}; check that bpffs is mounted there and that root may write it", path = path.shown())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The kernel, or aya, refuses an object.
    #[error("{path}: {reason}", path = path.shown())]
    Refused {
        /// Its pin.
        path: PathBuf,
        /// errno and its name.
        reason: String,
    },
    /// Another agent uses what is pinned.
    #[error("{path} is in use by {holders}: stop that agent, or give this one another --state-dir", path = path.shown())]
    InUse {
        /// The owner's directory.
        path: PathBuf,
        /// Who has it locked.
        holders: Holders,
    },
    /// It was not finished, or something is missing.
    #[error("{path} is incomplete: {what}; `plimsoll uninstall` removes it", path = path.shown())]
    Torn {
        /// The set.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
}

impl PinError {
    fn io(path: &Path, errno: Errno) -> Self {
        Self::Io {
            path: path.to_owned(),
            source: errno.into(),
        }
    }

    fn refused(path: &Path, error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Refused {
            path: path.to_owned(),
            reason: reason(error),
        }
    }

    fn torn(path: &Path, what: impl Into<String>) -> Self {
        Self::Torn {
            path: path.to_owned(),
            what: what.into(),
        }
    }
}

/// What became of the wish to have the programs outlive the agent.
#[derive(Debug)]
pub enum Pinning {
    /// Loaded by this agent and pinned.
    Made {
        /// The set.
        path: PathBuf,
    },
    /// Found, and taken over.
    TakenOver {
        /// The set.
        path: PathBuf,
    },
    /// Held by this process alone.
    Not(PinError),
}

impl std::fmt::Display for Pinning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Made { path } => write!(f, "pinned at {}", path.shown()),
            Self::TakenOver { path } => write!(
                f,
                "taken over at {}; they kept running while no agent ran",
                path.shown()
            ),
            Self::Not(error) => write!(f, "not pinned, so they end with this agent: {error}"),
        }
    }
}

/// A directory that is open. None of those above it, up to the root of the file system, was reached through a link or
/// is another user's.
struct Dir {
    path: PathBuf,
    fd: OwnedFd,
}

/// The right to use and remove an owner's sets, as long as this lives. The kernel takes it back when the process ends,
/// however it ends.
#[derive(Debug)]
pub(super) struct PinLock(File);

impl Drop for PinLock {
    fn drop(&mut self) {
        // To close it is not enough: a process forked at this moment has it open until it executes its program.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Which root of a file system will do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Root {
    /// Only this user can write it.
    Private,
    /// Others can too, but not remove or rename what is not theirs (sticky): enough to take something of ours away.
    Sticky,
}

impl Dir {
    const FLAGS: OFlags = OFlags::RDONLY
        .union(OFlags::DIRECTORY)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::CLOEXEC);
    const BENEATH: ResolveFlags = ResolveFlags::BENEATH
        .union(ResolveFlags::NO_SYMLINKS)
        .union(ResolveFlags::NO_XDEV);

    /// The root of the file system. `None`: there is no such directory.
    fn root(path: &Path, kind: Root) -> Result<Option<Self>, PinError> {
        let fd = match rustix::fs::open(path, Self::FLAGS, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(PinError::io(path, errno)),
        };
        Self {
            path: path.to_owned(),
            fd,
        }
        .checked(kind)
        .map(Some)
    }

    /// Refuses what others can change.
    fn checked(self, kind: Root) -> Result<Self, PinError> {
        let status =
            rustix::fs::fstat(&self.fd).map_err(|errno| PinError::io(&self.path, errno))?;
        let (uid, mode) = (status.st_uid, status.st_mode & 0o7777);
        let is_trusted = uid == 0 || uid == rustix::process::geteuid().as_raw();
        let is_kept = kind == Root::Sticky && mode & STICKY != 0;
        if is_trusted && (mode & OTHERS_WRITE == 0 || is_kept) {
            return Ok(self);
        }
        Err(PinError::NotPrivate {
            path: self.path,
            uid,
            mode,
        })
    }

    /// A directory in this one. `None`: there is none.
    fn sub(&self, name: &str) -> Result<Option<Self>, PinError> {
        let path = self.path.join(name);
        match openat2(&self.fd, name, Self::FLAGS, Mode::empty(), Self::BENEATH) {
            Ok(fd) => Self { path, fd }.checked(Root::Private).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => Err(PinError::Stranger { path }),
            Err(errno) => Err(PinError::io(&path, errno)),
        }
    }

    /// The same, made if there is none.
    fn make(&self, name: &str) -> Result<Self, PinError> {
        let path = self.path.join(name);
        match mkdirat(&self.fd, name, MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(PinError::io(&path, errno)),
        }
        self.sub(name)?
            .ok_or_else(|| PinError::io(&path, Errno::NOENT))
    }

    /// What is in it, sorted.
    fn names(&self) -> Result<Vec<String>, PinError> {
        let io = |errno| PinError::io(&self.path, errno);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let path = || self.path.join(OsString::from_vec(name.to_vec()));
            // Only what can be a name of ours is ever removed.
            let is_ours = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-".contains(byte);
            match std::str::from_utf8(name) {
                Ok(text) if name.iter().all(is_ours) => names.push(text.to_owned()),
                _ => return Err(PinError::Stranger { path: path() }),
            }
            if names.len() > ENTRIES_MAX {
                let path = self.path.clone();
                return Err(PinError::TooMany { path });
            }
        }
        names.sort();
        Ok(names)
    }

    fn remove(&self, name: &str, flags: AtFlags) -> Result<(), PinError> {
        match unlinkat(&self.fd, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(PinError::io(&self.path.join(name), errno)),
        }
    }

    fn remove_file(&self, name: &str) -> Result<(), PinError> {
        self.remove(name, AtFlags::empty())
    }

    /// Locks it, without waiting.
    fn lock(self) -> Result<PinLock, PinError> {
        let file = File::from(self.fd);
        match flock_within(
            &file,
            FlockOperation::NonBlockingLockExclusive,
            Duration::ZERO,
        ) {
            Ok(()) => Ok(PinLock(file)),
            Err(FlockError::Held(holders)) => Err(PinError::InUse {
                path: self.path,
                holders,
            }),
            Err(FlockError::Io(source)) => Err(PinError::Io {
                path: self.path,
                source,
            }),
        }
    }

    /// Removes an empty directory in this one.
    fn remove_dir(&self, name: &str) -> Result<(), PinError> {
        self.remove(name, AtFlags::REMOVEDIR)
    }
}

/// Whose pins: one owner for each state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinOwner {
    bpffs: PathBuf,
    name: String,
    dir: PathBuf,
}

impl PinOwner {
    /// The owner for a state directory, in the BPF file system at its usual place.
    #[must_use]
    pub fn of(state_dir: &Path) -> Self {
        Self::of_in(Path::new(BPFFS), state_dir)
    }

    pub(crate) fn of_in(bpffs: &Path, state_dir: &Path) -> Self {
        // The same directory by another name is the same owner.
        let path = fs::canonicalize(state_dir).unwrap_or_else(|_| state_dir.to_owned());
        let text = path.to_string_lossy();
        // The BPF file system allows no dots in names.
        let readable: String = text
            .trim_start_matches('/')
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .take(READABLE_MAX)
            .collect();
        let mut hash = Fnv::default();
        hash.write(text.as_bytes());
        let name = format!("{readable}-{:08x}", hash.0 as u32);
        Self {
            bpffs: bpffs.to_owned(),
            dir: bpffs.join(DIRECTORY).join(&name),
            name,
        }
    }

    /// Its directory, open, and the one above. `None`: there is none.
    fn open(&self) -> Result<Option<(Dir, Dir)>, PinError> {
        let Some(all) = Dir::root(&self.bpffs, Root::Sticky)?
            .map(|root| root.sub(DIRECTORY))
            .transpose()?
            .flatten()
        else {
            return Ok(None);
        };
        Ok(all.sub(&self.name)?.map(|owner| (all, owner)))
    }

    /// Its directory, whether or not it is there.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The set with this identity.
    pub(super) fn set(&self, identity: &str) -> PinSet {
        PinSet {
            path: self.dir.join(identity),
            owner: self.clone(),
            name: identity.to_owned(),
        }
    }

    /// Makes the owner's directory, and locks it.
    pub(super) fn prepare(&self) -> Result<PinLock, PinError> {
        let no_bpffs = || PinError::NoBpffs {
            path: self.bpffs.clone(),
        };
        let magic = rustix::fs::statfs(&self.bpffs)
            .map_err(|errno| PinError::io(&self.bpffs, errno))?
            .f_type;
        if magic as u64 != BPF_FS_MAGIC {
            return Err(no_bpffs());
        }
        let root = Dir::root(&self.bpffs, Root::Private)?.ok_or_else(no_bpffs)?;
        let mut rounds_left = MADE_ANEW_MAX;
        loop {
            let made = root
                .make(DIRECTORY)
                .and_then(|all| all.make(&self.name))
                .and_then(Dir::lock);
            // Another owner, or an agent before, may be removing either directory at this moment.
            let is_gone = match &made {
                Ok(PinLock(locked)) => !self.is_mine(locked)?,
                Err(PinError::Io { source, .. }) => source.kind() == io::ErrorKind::NotFound,
                Err(_) => false,
            };
            if !is_gone {
                return made;
            }
            if rounds_left == 0 {
                return Err(PinError::Io {
                    path: self.dir.clone(),
                    source: io::Error::other("others remove it as often as it is made"),
                });
            }
            rounds_left -= 1;
        }
    }

    /// Whether this is the directory at the owner's place, and not one that was removed.
    fn is_mine(&self, locked: &File) -> Result<bool, PinError> {
        is_at(locked, &self.dir).map_err(|source| PinError::Io {
            path: self.dir.clone(),
            source,
        })
    }

    /// All sets that are there. None where there is no such directory.
    ///
    /// # Errors
    /// When the directory cannot be read, or is not this user's alone.
    pub fn sets(&self) -> Result<Vec<PinSet>, PinError> {
        let Some((_, owner)) = self.open()? else {
            return Ok(Vec::new());
        };
        Ok(owner.names()?.iter().map(|name| self.set(name)).collect())
    }

    /// Removes every set, which detaches its programs, and the owner's directory. Returns what was removed.
    ///
    /// # Errors
    /// The first that cannot be removed, or is not to be. [`PinError::InUse`]: an agent uses them, and nothing was
    /// removed.
    pub fn remove(&self) -> Result<Vec<PathBuf>, PinError> {
        let mut removed = Vec::new();
        let owner = self.open()?.map(|(_, owner)| owner);
        let lock = owner.map(Dir::lock).transpose()?;
        if let Some(PinLock(locked)) = &lock
            && !self.is_mine(locked)?
        {
            // Another one has removed it meanwhile; what is at its place by now is an agent's that has just started.
            return Ok(removed);
        }
        for set in self.sets()? {
            set.remove()?;
            removed.push(set.path);
        }
        let Some(root) = Dir::root(&self.bpffs, Root::Sticky)? else {
            return Ok(removed);
        };
        if let Some(all) = root.sub(DIRECTORY)? {
            all.remove_dir(&self.name)?;
            let left = match all.names() {
                // It is gone.
                Err(PinError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    return Ok(removed);
                }
                left => left?,
            };
            if left.is_empty() {
                // Another owner may have come meanwhile.
                match unlinkat(&root.fd, DIRECTORY, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                    Err(errno) => return Err(PinError::io(&all.path, errno)),
                }
            }
        }
        Ok(removed)
    }
}

/// One set of pins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinSet {
    path: PathBuf,
    owner: PinOwner,
    name: String,
}

impl PinSet {
    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn pin(&self, kind: &str, name: &str) -> PathBuf {
        self.path.join(kind).join(name)
    }

    /// Its directory, open, and the owner's. `None`: there is none.
    fn open(&self) -> Result<Option<(Dir, Dir)>, PinError> {
        let Some((_, owner)) = self.owner.open()? else {
            return Ok(None);
        };
        Ok(owner.sub(&self.name)?.map(|set| (owner, set)))
    }

    /// Whether there is anything at all.
    pub(super) fn exists(&self) -> bool {
        !matches!(self.open(), Ok(None))
    }

    /// Makes the directories of a new set.
    pub(super) fn begin(&self) -> Result<(), PinError> {
        let owner = self.owner.open()?;
        let (_, owner) = owner.ok_or_else(|| PinError::io(self.owner.dir(), Errno::NOENT))?;
        let set = owner.make(&self.name)?;
        for dir in [MAPS, PROGRAMS, LINKS] {
            set.make(dir)?;
        }
        Ok(())
    }

    pub(super) fn pin_map(&self, name: &str, map: &Map) -> Result<(), PinError> {
        let path = self.pin(MAPS, name);
        map.pin(&path)
            .map_err(|error| PinError::refused(&path, &error))
    }

    /// What the kernel says of a pinned program, or why it says nothing.
    pub(super) fn program_info(&self, name: &str) -> Result<ProgramInfo, String> {
        ProgramInfo::from_pin(self.pin(PROGRAMS, name)).map_err(|error| reason(&error))
    }

    pub(super) fn pin_program(
        &self,
        name: &str,
        program: &mut Program,
        link: FdLink,
    ) -> Result<PinnedLink, PinError> {
        let path = self.pin(PROGRAMS, name);
        program
            .pin(&path)
            .map_err(|error| PinError::refused(&path, &error))?;
        let path = self.pin(LINKS, name);
        link.pin(&path)
            .map_err(|error| PinError::refused(&path, &error))
    }

    /// The last step: from here on the set can be taken over.
    pub(super) fn complete(&self) -> Result<(), PinError> {
        let torn = || PinError::torn(&self.path, "its directory is gone");
        let (_, set) = self.open()?.ok_or_else(torn)?;
        set.make(COMPLETE).map(drop)
    }

    /// Refuses a set that was not finished, or that others can change.
    pub(super) fn check_complete(&self) -> Result<(), PinError> {
        let torn = || PinError::torn(&self.path, "the agent that made it did not finish");
        let (_, set) = self.open()?.ok_or_else(torn)?;
        for dir in [COMPLETE, MAPS, PROGRAMS, LINKS] {
            set.sub(dir)?.ok_or_else(torn)?;
        }
        Ok(())
    }

    pub(super) fn map(&self, name: &str) -> Result<Map, PinError> {
        let path = self.pin(MAPS, name);
        MapData::from_pin(&path)
            .and_then(Map::from_map_data)
            .map_err(|error| PinError::torn(&self.path, format!("map {name}: {}", reason(&error))))
    }

    /// What became of each hook, with the figures of the programs that are attached. Refuses when one of them, or its
    /// link, is not there.
    pub(super) fn hooks(
        &self,
        manifest: &Manifest,
        without: &[HookKind],
    ) -> Result<Vec<HookReport>, PinError> {
        let torn = |program: &str, what: String| {
            PinError::torn(&self.path, format!("program {program}: {what}"))
        };
        let mut reports = Vec::with_capacity(manifest.hooks.len());
        for entry in &manifest.hooks {
            let name = &entry.program;
            let Some(hook) = HOOKS.iter().find(|hook| hook.program == name) else {
                return Err(torn(name, "this plimsoll does not know it".to_owned()));
            };
            let state = match &entry.unavailable {
                Some(_) if without.contains(&hook.kind) => {
                    HookState::Unavailable(Unavailable::LeftOut { kind: hook.kind })
                }
                Some(earlier) => HookState::Unavailable(earlier.clone().into()),
                None => {
                    let info = self.program_info(name).map_err(|why| torn(name, why))?;
                    let verified_insns = info.verified_instruction_count();
                    let translated_insns = info.size_translated().map(|bytes| bytes / 8);
                    // Only looked for: its pin holds it.
                    PinnedLink::from_pin(self.pin(LINKS, name))
                        .map_err(|error| torn(name, format!("its link: {}", reason(&error))))?;
                    HookState::Attached {
                        verified_insns,
                        translated_insns,
                    }
                }
            };
            reports.push(HookReport {
                family: hook.family,
                program: hook.program,
                kind: hook.kind,
                target: hook.target,
                state,
            });
        }
        Ok(reports)
    }

    /// Removes the set: links first, so that nothing runs half of it.
    ///
    /// # Errors
    /// The first that cannot be removed, or is not to be.
    pub fn remove(&self) -> Result<(), PinError> {
        let Some((owner, set)) = self.open()? else {
            return Ok(());
        };
        // Without the mark first: who dies on the way leaves a set that is known to be torn.
        set.remove_dir(COMPLETE)?;
        for kind in [LINKS, PROGRAMS, MAPS] {
            if let Some(dir) = set.sub(kind)? {
                for name in dir.names()? {
                    dir.remove_file(&name)?;
                }
                set.remove_dir(kind)?;
            }
        }
        owner.remove_dir(&self.name)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::notes;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn an_owner_is_a_name_without_dots() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a.b-c");
        fs::create_dir(&state).unwrap();
        let owner = PinOwner::of_in(dir.path(), &state);
        let name = owner
            .dir()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        assert!(name.contains("a_b_c-") && !name.contains('.'), "{name}");
        let same = PinOwner::of_in(dir.path(), &dir.path().join("./a.b-c/../a.b-c"));
        assert_eq!(same.dir(), owner.dir());
        assert_ne!(PinOwner::of_in(dir.path(), dir.path()).dir(), owner.dir());
        assert!(matches!(owner.prepare(), Err(PinError::NoBpffs { .. })));
    }

    #[test]
    fn a_set_is_removed_with_all_that_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let owner = PinOwner::of_in(dir.path(), Path::new("/run/nowhere"));
        assert_eq!(owner.sets().unwrap(), []);
        let set = owner.set("abi1-0");
        assert!(!set.exists());
        fs::create_dir_all(owner.dir()).unwrap();
        set.begin().unwrap();
        assert!(matches!(set.check_complete(), Err(PinError::Torn { .. })));
        set.complete().unwrap();
        set.check_complete().unwrap();
        fs::write(set.pin(LINKS, "x"), "").unwrap();
        fs::write(set.pin(MAPS, "X"), "").unwrap();
        assert_eq!(owner.remove().unwrap(), [set.path().to_owned()]);
        assert!(!dir.path().join(DIRECTORY).exists());
        assert_eq!(owner.remove().unwrap(), Vec::<PathBuf>::new());
    }

    const NOBODY: u32 = 65534;

    /// A BPF file system of our own, as `mount` makes it.
    pub(in crate::kernel) struct Mounted {
        dir: tempfile::TempDir,
    }

    impl Mounted {
        /// `None`: nothing can be mounted here.
        pub(in crate::kernel) fn new() -> Option<Self> {
            let dir = tempfile::tempdir().unwrap();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            fs::create_dir(dir.path().join("bpf")).unwrap();
            let mounted = Self { dir };
            let status = Command::new("mount")
                .args(["-t", "bpf", "bpf"])
                .arg(mounted.path())
                .status();
            match status {
                Ok(status) if status.success() => Some(mounted),
                failed => {
                    notes::left_out(format_args!(
                        "no BPF file system can be mounted: {failed:?}"
                    ));
                    None
                }
            }
        }

        pub(in crate::kernel) fn path(&self) -> PathBuf {
            self.dir.path().join("bpf")
        }

        pub(in crate::kernel) fn set_mode(&self, mode: u32) {
            fs::set_permissions(self.path(), fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            Command::new("umount").arg(self.path()).status().ok();
        }
    }

    /// Anybody may make the agent's directory first, with links to where root is to remove files.
    #[test]
    fn nothing_of_another_user_is_used_or_removed() {
        let Some(bpffs) = Mounted::new() else { return };
        let mode = fs::metadata(bpffs.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777, "what `mount -t bpf` makes");
        let precious = bpffs.dir.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("file"), "text").unwrap();
        let owner = PinOwner::of_in(&bpffs.path(), Path::new("/run/nowhere"));
        let script = format!(
            "mkdir -p {dir}/abi1-0/maps && ln -s {} {dir}/abi1-0/links",
            precious.shown(),
            dir = owner.dir().shown()
        );
        let run = |uid| {
            let mut shell = Command::new("sh");
            let shell = shell.args(["-ec", &script]).uid(uid).gid(uid);
            assert!(shell.status().unwrap().success());
        };
        run(NOBODY);
        let is_refused = |owner: &PinOwner| {
            assert!(owner.prepare().is_err());
            let error = owner.remove().unwrap_err();
            assert!(
                matches!(error, PinError::NotPrivate { uid: NOBODY, .. }),
                "{error}"
            );
            assert!(owner.set("abi1-0").check_complete().is_err());
            assert!(owner.set("abi1-0").remove().is_err());
            assert!(precious.join("file").exists());
        };
        is_refused(&owner);
        // The root alone does not make it better.
        bpffs.set_mode(0o700);
        is_refused(&owner);
        let theirs = bpffs.path().join(DIRECTORY);
        fs::remove_file(owner.dir().join("abi1-0/links")).unwrap();
        fs::remove_dir_all(&theirs).unwrap();

        // The same of root's is no other user's doing, and yet no link is followed.
        run(0);
        drop(owner.prepare().unwrap());
        let error = owner.remove().unwrap_err();
        assert!(matches!(error, PinError::Stranger { .. }), "{error}");
        assert!(precious.join("file").exists());
        fs::remove_file(owner.dir().join("abi1-0/links")).unwrap();
        owner.remove().unwrap();
        assert!(!theirs.exists());
    }

    /// The start then goes on without pins, and takes away what an earlier version has left there.
    #[test]
    fn a_file_system_that_others_can_write_is_not_used() {
        let Some(bpffs) = Mounted::new() else { return };
        let owner = PinOwner::of_in(&bpffs.path(), Path::new("/run/nowhere"));
        let error = owner.prepare().unwrap_err();
        assert!(matches!(error, PinError::NotPrivate { .. }), "{error}");
        assert!(error.to_string().contains("mode=0700"), "{error}");
        assert!(!bpffs.path().join(DIRECTORY).exists());
        fs::create_dir_all(owner.dir().join("abi1-0/maps")).unwrap();
        assert_eq!(owner.remove().unwrap(), [owner.dir().join("abi1-0")]);
        bpffs.set_mode(0o700);
        let lock = owner.prepare().unwrap();
        owner.set("abi2-0").begin().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(owner.dir()), 0o700);
        assert_eq!(mode(&owner.dir().join("abi2-0/maps")), 0o700);
        drop(lock);
        owner.remove().unwrap();
    }

    /// As two agents without a state directory to lock start them at the same moment.
    #[test]
    fn what_one_agent_uses_no_other_takes_over_or_removes() {
        let Some(bpffs) = Mounted::new() else { return };
        bpffs.set_mode(0o700);
        let owner = PinOwner::of_in(&bpffs.path(), Path::new("/run/nowhere"));
        let lock = owner.prepare().unwrap();
        owner.set("abi1-0").begin().unwrap();
        let us = std::process::id().to_string();
        for refused in [owner.prepare().map(drop), owner.remove().map(drop)] {
            let error = refused.unwrap_err();
            assert!(matches!(error, PinError::InUse { .. }), "{error}");
            assert!(error.to_string().contains(&us), "{error}");
        }
        assert!(owner.set("abi1-0").exists());
        // Another owner is not concerned.
        let other = PinOwner::of_in(&bpffs.path(), Path::new("/run/elsewhere"));
        drop(other.prepare().unwrap());
        other.remove().unwrap();
        drop(lock);
        drop(owner.prepare().unwrap());
        owner.remove().unwrap();
    }

    /// The directory of all owners goes with the last of them, which may be while another one comes.
    #[test]
    fn what_a_forked_process_has_open_keeps_no_lock() {
        let Some(bpffs) = Mounted::new() else { return };
        bpffs.set_mode(0o700);
        let owner = PinOwner::of_in(&bpffs.path(), Path::new("/run/a"));
        let lock = owner.prepare().unwrap();
        let in_the_child = lock.0.try_clone().unwrap();
        drop(lock);
        owner.remove().unwrap();
        drop(in_the_child);
    }

    #[test]
    fn one_owner_comes_while_another_one_goes() {
        let Some(bpffs) = Mounted::new() else { return };
        bpffs.set_mode(0o700);
        let comes_and_goes = |name: &str| {
            let owner = PinOwner::of_in(&bpffs.path(), Path::new(name));
            for _ in 0..500 {
                drop(owner.prepare().unwrap());
                owner.remove().unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| comes_and_goes("/run/a"));
            scope.spawn(|| comes_and_goes("/run/b"));
        });
        assert!(!bpffs.path().join(DIRECTORY).exists());
    }
}
