//! Where the processes of a cgroup may run and take memory from: `cpuset.cpus` and `cpuset.mems`, on cgroup v2 and v1.
//!
//! **Problem.** The two versions share names and differ in rules. On v2 an empty file means "as the cgroup above", and
//! any set may be written: what counts is its intersection with the effective set above, or that set itself when
//! nothing is left. On v1 an empty set takes no process (ENOSPC), a set must lie within the one above (EACCES) and
//! contain those below (EBUSY), and a CPU that goes offline is taken out of every set for good. **Approach.** One type
//! that reads and writes a cgroup's sets. On v1 it fills new cgroups from the one above, and moves the cgroups below
//! along ([`Cpuset::set_cpus`]), so that callers see v2's rules. Sources: Documentation/admin-guide/{cgroup-v2.rst,
//! cgroup-v1/cpusets.rst}, kernel/cgroup/{cpuset.c, cpuset-v1.c}.
//!
//! **When a write has returned** no process of the cgroup runs on a CPU that was taken away: the kernel sets the mask
//! of each thread, waits until those that are running have been moved, and only then answers
//! (`cpuset_update_tasks_cpumask`, `set_cpus_allowed_ptr`). A thread that has narrowed its own mask by
//! `sched_setaffinity(2)` keeps that as far as it lies within. Threads of the kernel are not touched.
//!
//! **Memory that is there already** (memory.migrate):
//! - v2: writing a set of nodes moves the pages of every process in the cgroup that lie outside of it, and the write
//!   returns when that is done: seconds for many gigabytes. Pages that are pinned or shared stay. A process that
//!   *joins* brings its pages along in the same way.
//! - v1: only if `cpuset.memory_migrate` of the cgroup is 1, and its default is 0; else only new pages come from the
//!   new nodes. [`Cpuset::set_mems`] sets it first, so that both versions do the same.
//!
//! So nodes are cheapest before the first process is in, which is what `plimsoll exec` does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::placement::cpu_set::{CpuSet, CpuSetError};
use plimsoll_core::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};
use rustix::io::Errno;

use super::cgroup::CGROUP_DEPTH_MAX;
use super::cgroup::{CgroupError, CgroupMounts, CgroupPath, Controller, Hierarchy, Version};
use super::file::{FileError, errno_of, read_text, write_text};

use crate::host::shown::Show as _;

/// The CPUs of a cgroup.
pub const CPUS: &str = "cpuset.cpus";
/// The NUMA nodes of a cgroup.
pub const MEMS: &str = "cpuset.mems";
/// Cgroups below one that are moved along, on v1: all of them together.
const BELOW_MAX: usize = 4096;

/// Why a cgroup's set cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpusetError {
    /// No hierarchy has the controller.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A file of it.
    #[error(transparent)]
    File(#[from] FileError),
    /// The cgroup is there, and its cpuset files are not.
    #[error(
        "{path}: does not exist: the cpuset controller is not enabled for this cgroup; add +cpuset to cgroup.subtree_control of each \
         cgroup above it, or choose another --cgroup-root", path = path.shown()
    )]
    NotEnabled {
        /// The file.
        path: PathBuf,
    },
    /// A text that is no set.
    #[error("{path}: {source}", path = path.shown())]
    List {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: CpuSetError,
    },
    /// A NUMA node that [`NumaMask`] has no room for.
    #[error("{path}: NUMA node {node} is beyond {max}, the highest that is supported", path = path.shown(), max = NUMA_NODES_MAX - 1)]
    NodeTooHigh {
        /// The file.
        path: PathBuf,
        /// Its number.
        node: u32,
    },
    /// Too many cgroups below one whose set is to be changed (v1).
    #[error(
        "{path}: has more than {BELOW_MAX} cgroups below it, which must be changed before it is; remove those that nothing uses", path = path.shown()
    )]
    TooManyBelow {
        /// Its directory.
        path: PathBuf,
    },
    /// The kernel refused a set.
    #[error("{path}: {value:?} is refused: {source}{hint}", path = path.shown(), hint = hint(*source))]
    Refused {
        /// The file.
        path: PathBuf,
        /// What was written.
        value: String,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => {
            "; run as root; on v1 it must lie within the set of the cgroup above: widen that first"
        }
        Errno::BUSY => "; a cgroup below it has more: narrow that first",
        Errno::INVAL => "; some of it is not online, or is held exclusively by a cgroup beside it",
        Errno::NOSPC => "; it has processes, and none of this is online",
        _ => "",
    }
}

impl CpusetError {
    /// Whether the cgroup is gone, which most callers take as "the container has ended" and not as a fault.
    pub fn is_vanished(&self) -> bool {
        match self {
            Self::Cgroup(error) => error.is_vanished(),
            Self::File(error) => error.is_vanished(),
            _ => false,
        }
    }
}

/// A cgroup in the hierarchy that has the cpuset controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpuset {
    dir: PathBuf,
    version: Version,
}

impl Cpuset {
    /// The cgroup at `path`. Whether it is there is seen when it is read or written.
    ///
    /// # Errors
    /// [`CgroupError::NoController`].
    pub fn at(mounts: &CgroupMounts, path: &CgroupPath) -> Result<Self, CpusetError> {
        let hierarchy = mounts.hierarchy_of(Controller::Cpuset)?;
        Ok(Self::in_hierarchy(hierarchy, path))
    }

    fn in_hierarchy(hierarchy: &Hierarchy, path: &CgroupPath) -> Self {
        Self {
            dir: hierarchy.dir(path),
            version: hierarchy.version,
        }
    }

    /// v2: the cgroup of this name in it, if it has a cpuset of its own, which may be empty. On v1 those below come
    /// along ([`Cpuset::set_cpus`]).
    pub fn below(&self, name: &str) -> Option<Self> {
        let dir = self.dir.join(name);
        let is_one = self.version == Version::V2 && dir.join(CPUS).exists();
        let version = self.version;
        is_one.then_some(Self { dir, version })
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The CPUs that are written. On v2 none means "as the cgroup above".
    ///
    /// # Errors
    /// [`CpusetError`].
    pub fn cpus(&self) -> Result<CpuSet, CpusetError> {
        read(&self.dir, CPUS)
    }

    /// The CPUs that its processes run on.
    ///
    /// # Errors
    /// [`CpusetError`].
    pub fn effective_cpus(&self) -> Result<CpuSet, CpusetError> {
        match self.version {
            Version::V1 => read(&self.dir, "cpuset.effective_cpus"),
            Version::V2 => read(&self.dir, "cpuset.cpus.effective"),
        }
    }

    /// The NUMA nodes that are written. On v2 none means "as the cgroup above".
    ///
    /// # Errors
    /// [`CpusetError`].
    pub fn mems(&self) -> Result<NumaMask, CpusetError> {
        nodes(&self.dir, MEMS)
    }

    /// Has its processes run on `cpus`, which must not be empty. Returns whether that was anything new.
    ///
    /// On v1 the cgroups below come along: one that had all CPUs has all of the new ones, another keeps what it may.
    /// For as long as that takes the cgroup itself has both the old and the new CPUs.
    ///
    /// # Errors
    /// [`CpusetError`]; the old set is still there.
    pub fn set_cpus(&self, cpus: CpuSet) -> Result<bool, CpusetError> {
        self.set(CPUS, cpus)
    }

    /// Has its processes take memory from `nodes`, which must not be empty, and moves what they have elsewhere. Returns
    /// whether that was anything new. It may take long: see the head of this module.
    ///
    /// # Errors
    /// [`CpusetError`]; the old set is still there.
    pub fn set_mems(&self, nodes: NumaMask) -> Result<bool, CpusetError> {
        if self.version == Version::V1 && self.mems()? != nodes {
            write_text(self.dir.join("cpuset.memory_migrate"), "1")?;
        }
        self.set(MEMS, nodes.iter().collect())
    }

    /// Has its processes take memory from wherever those of the cgroup above may. Returns whether that was anything
    /// new.
    ///
    /// # Errors
    /// [`CpusetError`].
    pub fn inherit_mems(&self) -> Result<bool, CpusetError> {
        match self.version {
            Version::V1 => match self.dir.parent() {
                Some(parent) => self.set_mems(nodes(parent, MEMS)?),
                None => Ok(false),
            },
            Version::V2 => self.inherit(MEMS),
        }
    }

    /// v2: has its processes run on, or take memory from, whatever those of the cgroup above may, by [`CPUS`] or
    /// [`MEMS`]. Returns whether that was anything new.
    ///
    /// # Errors
    /// [`CpusetError`].
    pub fn inherit(&self, file: &str) -> Result<bool, CpusetError> {
        if read(&self.dir, file)?.is_empty() {
            return Ok(false);
        }
        // An empty line: a write of no bytes does not reach the kernel's parser.
        write(&self.dir, file, "\n").map(|()| true)
    }

    /// What [`CPUS`] or [`MEMS`] has where nobody has written it: on v2 nothing, on v1 what the cgroup above has.
    ///
    /// # Errors
    /// [`CpusetError`].
    pub fn inherited(&self, file: &str) -> Result<String, CpusetError> {
        match (self.version, self.dir.parent()) {
            (Version::V1, Some(above)) => Ok(read(above, file)?.to_string()),
            _ => Ok(String::new()),
        }
    }

    /// What a set of CPUs must lie within: on v1 the set of the cgroup above, on v2 anything may be written.
    ///
    /// # Errors
    /// [`CpusetError`].
    pub fn bound(&self) -> Result<Option<CpuSet>, CpusetError> {
        match (self.version, self.dir.parent()) {
            (Version::V1, Some(above)) => read(above, CPUS).map(Some),
            _ => Ok(None),
        }
    }

    fn set(&self, file: &str, to: CpuSet) -> Result<bool, CpusetError> {
        match self.version {
            Version::V1 => {
                let mut room = BELOW_MAX;
                shift(&self.dir, file, to, (CGROUP_DEPTH_MAX, &mut room)).map_err(|error| {
                    let is_full = matches!(error, CpusetError::TooManyBelow { .. });
                    let path = self.dir.clone();
                    if is_full {
                        CpusetError::TooManyBelow { path }
                    } else {
                        error
                    }
                })
            }
            Version::V2 if read(&self.dir, file)? == to => Ok(false),
            Version::V2 => write(&self.dir, file, &to.to_string()).map(|()| true),
        }
    }
}

/// v1: gives the cgroup and those above it the sets of the one above, where theirs are empty, so that a process can
/// join. On v2 there is nothing to do.
///
/// # Errors
/// [`CpusetError`].
pub fn fill_from_above(hierarchy: &Hierarchy, cgroup: &CgroupPath) -> Result<(), CpusetError> {
    if hierarchy.version == Version::V2 {
        return Ok(());
    }
    let mut above = hierarchy.mount.clone();
    for path in cgroup.lineage() {
        let dir = hierarchy.dir(&path);
        for file in [CPUS, MEMS] {
            if read(&dir, file)?.is_empty() {
                write(&dir, file, &read(&above, file)?.to_string())?;
            }
        }
        above = dir;
    }
    Ok(())
}

/// v1: gives the cgroup all CPUs and nodes of the one above, also if it had fewer: the kernel takes away what goes
/// offline, and does not give it back. On v2 there is nothing to do.
///
/// # Errors
/// [`CpusetError`].
pub fn widen(hierarchy: &Hierarchy, cgroup: &CgroupPath) -> Result<(), CpusetError> {
    let dir = hierarchy.dir(cgroup);
    let Some(above) = dir.parent().filter(|_| hierarchy.version == Version::V1) else {
        return Ok(());
    };
    for file in [CPUS, MEMS] {
        let all = read(above, file)?;
        if read(&dir, file)? != all {
            write(&dir, file, &all.to_string())?;
        }
    }
    Ok(())
}

/// v1: writes a set whatever the cgroups below have: first wide enough for both, then them, then what it is to be. So
/// many levels and cgroups below it may there be.
fn shift(
    dir: &Path,
    file: &str,
    to: CpuSet,
    (depth_left, room): (usize, &mut usize),
) -> Result<bool, CpusetError> {
    let now = read(dir, file)?;
    if now == to {
        return Ok(false);
    }
    let children = if depth_left > 0 {
        children(dir, *room)?
    } else {
        Vec::new()
    };
    *room -= children.len();
    if !children.is_empty() && !to.is_subset(&now) {
        write(dir, file, &(now | to).to_string())?;
    }
    for child in children {
        let shifted = read(&child, file).and_then(|of_child| {
            let kept = of_child & to;
            let next = if of_child == now || kept.is_empty() {
                to
            } else {
                kept
            };
            shift(&child, file, next, (depth_left - 1, &mut *room))
        });
        match shifted {
            Err(error) if !error.is_vanished() => return Err(error),
            _ => {}
        }
    }
    write(dir, file, &to.to_string()).map(|()| true)
}

/// The cgroups in one; an error if there are more than `max`.
fn children(dir: &Path, max: usize) -> Result<Vec<PathBuf>, CpusetError> {
    let entries = std::fs::read_dir(dir).map_err(|error| match errno_of(&error) {
        Errno::NOENT => FileError::Vanished {
            path: Arc::from(dir),
        },
        source => FileError::Unreadable {
            path: Arc::from(dir),
            source,
        },
    })?;
    let dirs = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path());
    let children: Vec<PathBuf> = dirs.take(max + 1).collect();
    if children.len() > max {
        let path = dir.to_owned();
        return Err(CpusetError::TooManyBelow { path });
    }
    Ok(children)
}

fn read(dir: &Path, file: &str) -> Result<CpuSet, CpusetError> {
    let path = dir.join(file);
    let text = read_text(&path).map_err(|error| or_not_enabled(error, dir))?;
    CpuSet::parse(&text).map_err(|source| CpusetError::List { path, source })
}

fn nodes(dir: &Path, file: &str) -> Result<NumaMask, CpusetError> {
    let nodes = read(dir, file)?;
    match nodes.iter().find(|node| *node >= NUMA_NODES_MAX) {
        Some(node) => Err(CpusetError::NodeTooHigh {
            path: dir.join(file),
            node,
        }),
        None => Ok(nodes.iter().collect()),
    }
}

fn write(dir: &Path, file: &str, value: &str) -> Result<(), CpusetError> {
    write_text(dir.join(file), value).map_err(|error| match error {
        FileError::Unwritable { path, source } => CpusetError::Refused {
            path: path.to_path_buf(),
            value: value.trim_end().to_owned(),
            source,
        },
        other => or_not_enabled(other, dir),
    })
}

/// A file that is gone while its cgroup is there has never been there.
fn or_not_enabled(error: FileError, dir: &Path) -> CpusetError {
    match error {
        FileError::Vanished { path } if dir.is_dir() => CpusetError::NotEnabled {
            path: path.to_path_buf(),
        },
        other => other.into(),
    }
}

#[cfg(test)]
mod tests;
