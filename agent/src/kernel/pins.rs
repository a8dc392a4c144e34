//! Programs that outlive the agent: pinned in the BPF file system, and taken over by the next one.
//!
//! Problem: an agent that is killed, or restarted by an upgrade, leaves the node unwatched until the next one has loaded everything, and
//! takes counts and armed thresholds with it. Approach: maps, programs and links are pinned in a directory of their own. The next agent with
//! the same state directory opens them instead of loading anything: the programs never stop, and what they sent meanwhile is in
//! the rings. A set is used only if it is exactly what this agent would load ([`identity`](super::identity::identity)) and complete; any other is removed.
//! A set that cannot be made costs nothing but the set: the programs are then held by this process alone.
//!
//! Layout: `/sys/fs/bpf/plimsoll/OWNER/IDENTITY/{maps,programs,links}/NAME`, and a directory `complete`, which is made last. One owner
//! per state directory, whose lock keeps two agents from reading the same rings. `MANIFEST`, one of the maps, says what became
//! of each hook.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use aya::maps::{Map, MapData};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::{Program, ProgramInfo};

use super::error::reason;
use super::hooks::HOOKS;
use super::identity::Fnv;
use super::manifest::Manifest;
use super::{HookKind, HookReport, HookState, Unavailable};

use crate::host::shown::Show as _;

/// Where the BPF file system is by convention; systemd mounts it there.
const BPFFS: &str = "/sys/fs/bpf";
/// Our directory in it.
const DIRECTORY: &str = "plimsoll";
/// include/uapi/linux/magic.h
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// Of a state directory's path, as much as is kept readable.
const READABLE_MAX: usize = 64;

const MAPS: &str = "maps";
const PROGRAMS: &str = "programs";
const LINKS: &str = "links";
const COMPLETE: &str = "complete";

/// Why a set of pins cannot be made, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// There is no BPF file system.
    #[error("{path} is not a BPF file system: mount one there (mount -t bpf bpf {path})", path = path.shown())]
    NoBpffs {
        /// Where it should be.
        path: PathBuf,
    },
    /// A file or directory.
    #[error("{path}: {source}", path = path.shown())]
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
    /// It was not finished, or something is missing.
    #[error("{path} is incomplete: {what}", path = path.shown())]
    Torn {
        /// The set.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
}

impl PinError {
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
            Self::Not(error) => write!(
                f,
                "end with this agent, and the next one loads them anew: {error}"
            ),
        }
    }
}

/// Whose pins: one owner for each state directory.
#[derive(Debug, Clone)]
pub struct PinOwner {
    bpffs: PathBuf,
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
        Self {
            bpffs: bpffs.to_owned(),
            dir: bpffs
                .join(DIRECTORY)
                .join(format!("{readable}-{:08x}", hash.0 as u32)),
        }
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
        }
    }

    /// Makes the owner's directory.
    pub(super) fn prepare(&self) -> Result<(), PinError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| PinError::Io { path, source }
        };
        let magic = rustix::fs::statfs(&self.bpffs)
            .map_err(|errno| io(&self.bpffs)(errno.into()))?
            .f_type;
        if magic as u64 != BPF_FS_MAGIC {
            return Err(PinError::NoBpffs {
                path: self.bpffs.clone(),
            });
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(io(&self.dir))
    }

    /// All sets that are there. None where there is no such directory.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn sets(&self) -> Result<Vec<PinSet>, PinError> {
        let paths = entries(&self.dir)?;
        Ok(paths.into_iter().map(|path| PinSet { path }).collect())
    }

    /// Removes every set, which detaches its programs, and the owner's directory. Returns what was removed.
    ///
    /// # Errors
    /// [`PinError::Io`] for the first that cannot be removed.
    pub fn remove(&self) -> Result<Vec<PathBuf>, PinError> {
        let mut removed = Vec::new();
        for set in self.sets()? {
            set.remove()?;
            removed.push(set.path);
        }
        remove_empty(&self.dir)?;
        if let Some(all) = self.dir.parent()
            && entries(all)?.is_empty()
        {
            remove_empty(all)?;
        }
        Ok(removed)
    }
}

/// What is in a directory; nothing if it is not there.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, PinError> {
    let io = |source| PinError::Io {
        path: dir.to_owned(),
        source,
    };
    let list = match fs::read_dir(dir) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut paths = list
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(io)?;
    paths.sort();
    Ok(paths)
}

fn remove_empty(dir: &Path) -> Result<(), PinError> {
    match fs::remove_dir(dir) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(PinError::Io {
            path: dir.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

/// One set of pins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinSet {
    path: PathBuf,
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

    /// Whether there is anything at all.
    pub(super) fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Makes the directories of a new set.
    pub(super) fn begin(&self) -> Result<(), PinError> {
        for dir in [MAPS, PROGRAMS, LINKS] {
            let path = self.path.join(dir);
            fs::create_dir_all(&path).map_err(|source| PinError::Io { path, source })?;
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
        let path = self.path.join(COMPLETE);
        fs::create_dir(&path).map_err(|source| PinError::Io { path, source })
    }

    /// Refuses a set that was not finished.
    pub(super) fn check_complete(&self) -> Result<(), PinError> {
        if self.path.join(COMPLETE).is_dir() {
            Ok(())
        } else {
            Err(PinError::torn(
                &self.path,
                "the agent that made it did not finish",
            ))
        }
    }

    pub(super) fn map(&self, name: &str) -> Result<Map, PinError> {
        let path = self.pin(MAPS, name);
        MapData::from_pin(&path)
            .and_then(Map::from_map_data)
            .map_err(|error| PinError::torn(&self.path, format!("map {name}: {}", reason(&error))))
    }

    /// What became of each hook, with the figures of the programs that are attached. Refuses when one of them, or its link, is
    /// not there.
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
    /// [`PinError::Io`] for the first that cannot be removed.
    pub fn remove(&self) -> Result<(), PinError> {
        // Without the mark first: who dies on the way leaves a set that is known to be torn.
        remove_empty(&self.path.join(COMPLETE))?;
        for kind in [LINKS, PROGRAMS, MAPS] {
            let dir = self.path.join(kind);
            for path in entries(&dir)? {
                fs::remove_file(&path).map_err(|source| PinError::Io { path, source })?;
            }
            remove_empty(&dir)?;
        }
        remove_empty(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
