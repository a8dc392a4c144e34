//! Logs and emptyDir volumes of pods that have ended.
//!
//! **Problem.** They take space until somebody deletes them, and deleting the wrong ones is the worst that a node agent
//! can do. **Approach.** A directory goes only if all of these hold at the moment its turn comes:
//! 1. its pod is not live, by the caller's list;
//! 2. no cgroup with the pod's UID in its name, of either cgroup driver, has a process; one that cannot be read counts
//!    as having some;
//! 3. nothing is mounted on the pod's directory or below it, in our mount namespace and in that of process 1. Where the
//!    two differ, the directory's mount must be one that mounts of the host appear in: deleting a directory takes away,
//!    unseen, what other namespaces have mounted there, and nobody sees the mounts of all namespaces;
//! 4. the caller says that the pod has ended, or, for a pod that nobody has heard of, nothing about its directory has
//!    changed for [`FreeRequest::age_min`]: the kubelet may just be making it.
//!
//! What goes are the emptyDir volumes, then the directories above them as far as they are empty, and the pod's
//! directory of logs. Other volumes stay: they may be somebody's data. Deletion is [`super::super::remove`]: no link is
//! followed, no mount crossed.
//!
//! Somebody else may have a directory open, and fill it as fast as it is emptied. So only so many names of a pod are
//! read in one request; what is left then is kept, and said.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_core::kube::pod_uid::PodUid;
use rustix::fs::{AtFlags, CWD, Mode, openat, unlinkat};
use rustix::io::Errno;

use super::{FreeError, FreeRequest, Freed, FreesDisk, Kept, KeptBecause};
use crate::host::cgroup::{CgroupMounts, CgroupPath};
use crate::pods;
use crate::pods::directories::VolumePlugin;
use crate::storage::descent::{NAMES_MAX, OPEN_DIRECTORY};
use crate::storage::mountinfo::{has_mount_at_or_below, has_mount_inside, inside};
use crate::storage::pod_paths::{PodPaths, mountinfo};
use crate::storage::remove::{Removal, open_beneath};
use crate::storage::walk::Walk;

/// Directories of pods that one request looks at.
const CANDIDATES_MAX: usize = 10_000;
/// Volumes of one pod that one request looks at.
const VOLUMES_MAX: usize = 1_000;
/// Cgroups beside `kubepods` that are looked at for one pod: on a node there are some dozen.
const CGROUPS_MAX: usize = 10_000;
/// The tiers of QoS classes; Guaranteed pods are right in `kubepods`.
const TIERS: [&str; 2] = ["burstable", "besteffort"];
/// What `/proc/self/ns/pid` is in the machine's PID namespace: `PROC_PID_INIT_INO` in the kernel's
/// `include/linux/proc_ns.h`.
const MACHINE_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The provider.
#[derive(Debug)]
pub struct EndedPods {
    paths: PodPaths,
    mounts: CgroupMounts,
    cgroup_root: CgroupPath,
    waiting: VecDeque<Candidate>,
    current: Option<Current>,
    /// Names that are read in the directories of one candidate, in one request.
    names_max: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    uid: PodUid,
    kind: Kind,
    /// The directory of all pods' directories, without links.
    parent: PathBuf,
    name: OsString,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Volumes,
    Logs,
}

/// A pod's directory whose turn it is.
#[derive(Debug)]
struct Current {
    /// Where its trees are: the logs of all pods, or the pod's emptyDir volumes.
    dir: OwnedFd,
    path: PathBuf,
    trees: Vec<CString>,
    job: Option<(CString, Job)>,
    /// Names that may be read, and how many were in trees that are finished.
    names_max: u32,
    names: u32,
    /// Directories above, deepest first, which go if they are empty then.
    above: Vec<(OwnedFd, CString)>,
}

#[derive(Debug)]
enum Job {
    Count(Walk),
    Remove(Removal),
}

/// How a tree's turn ended.
enum Ended {
    /// It is gone, or would be.
    Gone,
    /// No more names may be read.
    Cut,
    /// Something else keeps it.
    Left(KeptBecause),
}

impl Job {
    /// Bytes and inodes.
    fn so_far(&self) -> (u64, u64) {
        match self {
            Self::Count(walk) => (walk.so_far().bytes, walk.so_far().inodes),
            Self::Remove(removal) => (removal.so_far().bytes, removal.so_far().inodes),
        }
    }

    fn names(&self) -> u32 {
        match self {
            Self::Count(walk) => walk.names(),
            Self::Remove(removal) => removal.names(),
        }
    }

    /// Looks at `entries` entries more. How it ended, once it has.
    fn advance(&mut self, entries: u32) -> Option<Ended> {
        Some(match self {
            Self::Count(walk) => match walk.advance(entries)?.cut_at {
                Some(_) => Ended::Cut,
                None => Ended::Gone,
            },
            Self::Remove(removal) => match removal.advance(entries)? {
                removed if removed.is_gone => Ended::Gone,
                removed if removed.cut_at.is_some() => Ended::Cut,
                removed if removed.moved => Ended::Left(KeptBecause::Moved),
                removed => Ended::Left(KeptBecause::Undeletable(removed.failed)),
            },
        })
    }
}

impl Candidate {
    fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    fn kept(&self, why: KeptBecause) -> Kept {
        Kept {
            path: self.path(),
            why,
        }
    }
}

impl EndedPods {
    /// For pods below `cgroup_root`.
    pub fn new(paths: PodPaths, mounts: CgroupMounts, cgroup_root: CgroupPath) -> Self {
        Self {
            paths,
            mounts,
            cgroup_root,
            waiting: VecDeque::new(),
            current: None,
            names_max: NAMES_MAX,
        }
    }

    /// Lists the directories of pods that are not live. How many there are beyond [`CANDIDATES_MAX`].
    fn look(&mut self, request: &FreeRequest) -> Result<u64, FreeError> {
        let mut beyond = 0;
        self.current = None;
        self.waiting.clear();
        mountinfo(&self.paths.host, "self").ok_or(FreeError::Mounts)?;
        let logs_dir = self.paths.host.path(&self.paths.logs_dir);
        for (kind, dir) in [
            (Kind::Volumes, self.paths.pods_dir()),
            (Kind::Logs, logs_dir),
        ] {
            let error = |error: &std::io::Error| FreeError::Directory {
                path: dir.clone(),
                source: Errno::from_io_error(error).unwrap_or(Errno::IO),
            };
            let parent = match std::fs::canonicalize(&dir) {
                Ok(parent) => parent,
                Err(gone) if gone.kind() == std::io::ErrorKind::NotFound => continue,
                Err(source) => return Err(error(&source)),
            };
            let entries = std::fs::read_dir(&parent).map_err(|source| error(&source))?;
            for entry in entries.flatten() {
                let name = entry.file_name();
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let Some(uid) = name.to_str().and_then(|name| uid_of(kind, name)) else {
                    continue;
                };
                if !is_dir || request.live.contains(&uid) {
                    continue;
                }
                if self.waiting.len() >= CANDIDATES_MAX {
                    beyond += 1;
                } else {
                    self.waiting.push_back(Candidate {
                        uid,
                        kind,
                        parent: parent.clone(),
                        name,
                    });
                }
            }
        }
        Ok(beyond)
    }

    /// Whether its turn may come.
    fn check(&self, candidate: &Candidate, request: &FreeRequest) -> Result<(), KeptBecause> {
        match self.has_processes(&candidate.uid) {
            Some(false) => {}
            Some(true) => return Err(KeptBecause::Processes),
            None => return Err(KeptBecause::CgroupUnknown),
        }
        self.check_mounts(&candidate.path())?;
        if !request.ended.contains(&candidate.uid)
            && age(candidate).is_none_or(|age| age < request.age_min)
        {
            return Err(KeptBecause::Young);
        }
        Ok(())
    }

    /// Whether nothing is mounted on a directory, as far as that can be known at all.
    fn check_mounts(&self, directory: &Path) -> Result<(), KeptBecause> {
        let Some(ours) = mountinfo(&self.paths.host, "self") else {
            return Err(KeptBecause::Mounted);
        };
        if has_mount_at_or_below(&ours, directory) {
            return Err(KeptBecause::Mounted);
        }
        let namespace = |of: &str| std::fs::read_link(self.paths.host.procfs(of)).ok();
        // In a PID namespace of our own, process 1 is no process of the host.
        if namespace("self/ns/pid").is_none_or(|ours| ours != Path::new(MACHINE_PID_NAMESPACE)) {
            return Err(KeptBecause::MountsHidden);
        }
        match (namespace("self/ns/mnt"), namespace("1/ns/mnt")) {
            (Some(ours), Some(hosts)) if ours == hosts => return Ok(()),
            (Some(_), Some(_)) => {}
            _ => return Err(KeptBecause::MountsHidden),
        }
        let (Some(hosts), Some(inside)) =
            (mountinfo(&self.paths.host, "1"), inside(&ours, directory))
        else {
            return Err(KeptBecause::MountsHidden);
        };
        if has_mount_inside(&hosts, &inside) {
            return Err(KeptBecause::Mounted);
        }
        match inside.is_shared {
            true => Ok(()),
            false => Err(KeptBecause::MountsHidden),
        }
    }

    /// Whether any cgroup of this pod has a process; `None` if that cannot be known.
    ///
    /// The names that the kubelet gives it are looked for where the kubelet makes them, in the tiers. What a pod makes
    /// below its own cgroup is not looked through: there may be any number of cgroups.
    fn has_processes(&self, uid: &PodUid) -> Option<bool> {
        let slice_uid = uid.as_str().replace('-', "_");
        let kubepods = self.kubepods()?;
        for tree in &kubepods {
            let name = tree.as_path().file_name()?.to_str()?;
            // With systemd a cgroup's name repeats those above it: `kubepods-burstable.slice`.
            let slice = name.strip_suffix(".slice");
            let mut tiers = vec![(tree.clone(), slice.map(str::to_owned))];
            for tier in TIERS {
                let stem = slice.map(|stem| format!("{stem}-{tier}"));
                let name = stem.as_ref().map(|stem| format!("{stem}.slice"));
                tiers.push((tree.join(name.as_deref().unwrap_or(tier)).ok()?, stem));
            }
            for (tier, stem) in tiers {
                let name = match stem {
                    Some(stem) => format!("{stem}-pod{slice_uid}.slice"),
                    None => format!("pod{uid}"),
                };
                let pod = tier.join(&name).ok()?;
                if pods::cgroup::is_populated(&self.mounts, &pod).ok()? {
                    return Some(true);
                }
            }
        }
        Some(false)
    }

    /// Where a kubelet keeps its pods: `kubepods` or `…kubepods.slice`, right below the cgroup root or below a
    /// kubelet's cgroup there, as in a node that is a container. `None` if there is none: then pods are elsewhere.
    fn kubepods(&self) -> Option<Vec<CgroupPath>> {
        let mut found = Vec::new();
        let mut kubelets = Vec::new();
        let mut left = CGROUPS_MAX;
        let root = self.cgroup_root.clone();
        self.children(&root, &mut left, |name, child| {
            if name == "kubepods" || name.ends_with("kubepods.slice") {
                found.push(child);
            } else if name.starts_with("kubelet") {
                kubelets.push(child);
            }
        })?;
        for kubelet in kubelets {
            self.children(&kubelet, &mut left, |name, child| {
                if name == "kubepods" || name.ends_with("kubepods.slice") {
                    found.push(child);
                }
            })?;
        }
        found.sort();
        found.dedup();
        (!found.is_empty()).then_some(found)
    }

    /// The cgroups right below one, in each hierarchy. `None`: they cannot be read, or are too many.
    fn children(
        &self,
        cgroup: &CgroupPath,
        left: &mut usize,
        mut see: impl FnMut(&str, CgroupPath),
    ) -> Option<()> {
        for (hierarchy, _) in pods::cgroup::pod_hierarchies(&self.mounts) {
            let entries = match std::fs::read_dir(hierarchy.dir(cgroup)) {
                Ok(entries) => entries,
                Err(gone) if gone.kind() == std::io::ErrorKind::NotFound => continue,
                Err(_) => return None,
            };
            for entry in entries {
                let entry = entry.ok()?;
                if !entry.file_type().ok()?.is_dir() {
                    continue;
                }
                *left = left.checked_sub(1)?;
                let name = entry.file_name();
                // A name that is not text is no kubelet's.
                let Some(name) = name.to_str() else { continue };
                see(name, cgroup.join(name).ok()?);
            }
        }
        Some(())
    }
}

impl FreesDisk for EndedPods {
    fn name(&self) -> &'static str {
        "ended-pods"
    }

    fn free(
        &mut self,
        request: &FreeRequest,
        is_first: bool,
        entries: u32,
    ) -> Result<Freed, FreeError> {
        let mut freed = Freed::default();
        if is_first {
            freed.kept_more = self.look(request)?;
        }
        let mut left = entries;
        while left > 0 {
            if let Some(current) = &mut self.current {
                if current.advance(request.dry, &mut left, &mut freed) {
                    self.current = None;
                }
                continue;
            }
            let Some(candidate) = self.waiting.pop_front() else {
                return Ok(freed);
            };
            left -= 1;
            if request.live.contains(&candidate.uid) {
                continue; // since it was listed
            }
            match self.check(&candidate, request).and_then(|()| {
                Current::open(&candidate, self.names_max).map_err(KeptBecause::Unreadable)
            }) {
                Ok(current) => self.current = current,
                Err(KeptBecause::Unreadable(Errno::NOENT)) => {}
                Err(why) => freed.keep(candidate.kept(why)),
            }
        }
        freed.more = true;
        Ok(freed)
    }
}

impl Current {
    /// Opens what is to go; `None`: the pod has no such directory.
    fn open(candidate: &Candidate, names_max: u32) -> Result<Option<Self>, Errno> {
        let parent = openat(CWD, &candidate.parent, OPEN_DIRECTORY, Mode::empty())?;
        let name = c_string(candidate.name.as_os_str())?;
        if candidate.kind == Kind::Logs {
            return Ok(Some(Self {
                dir: parent,
                path: candidate.parent.clone(),
                trees: vec![name],
                job: None,
                names_max,
                names: 0,
                above: Vec::new(),
            }));
        }
        let plugin = CString::new(VolumePlugin::EmptyDir.directory()).map_err(|_| Errno::INVAL)?;
        let pod = open_beneath(parent.as_fd(), &name)?;
        let volumes = open_beneath(pod.as_fd(), c"volumes")?;
        let dir = open_beneath(volumes.as_fd(), &plugin)?;
        let mut trees = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)?.take(VOLUMES_MAX) {
            let entry = entry?;
            if entry.file_name() != c"." && entry.file_name() != c".." {
                trees.push(entry.file_name().to_owned());
            }
        }
        Ok(Some(Self {
            dir,
            path: candidate
                .path()
                .join("volumes")
                .join(VolumePlugin::EmptyDir.directory()),
            trees,
            job: None,
            names_max,
            names: 0,
            above: vec![
                (volumes, plugin),
                (pod, c"volumes".to_owned()),
                (parent, name),
            ],
        }))
    }

    /// Goes on; `true`: nothing is left to do.
    fn advance(&mut self, dry: bool, left: &mut u32, freed: &mut Freed) -> bool {
        if self.job.is_some() {
            self.go_on(*left, freed);
            *left = 0; // what is left of a slice is not worth counting exactly
            return false;
        }
        let Some(name) = self.trees.pop() else {
            if !dry {
                self.remove_above();
            }
            return true;
        };
        *left = left.saturating_sub(1);
        self.start(name, dry, freed);
        false
    }

    /// Starts with the tree of this name.
    fn start(&mut self, name: CString, dry: bool, freed: &mut Freed) {
        let names = self.names_max.saturating_sub(self.names);
        let started = if dry {
            open_beneath(self.dir.as_fd(), &name)
                .and_then(|fd| Walk::start_at(fd.as_fd()))
                .map(|walk| Job::Count(walk.at_most(names)))
        } else {
            Removal::start(self.dir.as_fd(), &name)
                .map(|removal| Job::Remove(removal.at_most(names)))
        };
        match started {
            Ok(job) => {
                if let Job::Count(walk) = &job {
                    // The root is counted when a walk starts.
                    freed.bytes += walk.so_far().bytes;
                    freed.inodes += walk.so_far().inodes;
                }
                self.job = Some((name, job));
            }
            Err(Errno::NOENT) => {}
            Err(error) => freed.keep(self.kept(&name, KeptBecause::Unreadable(error))),
        }
    }

    /// Goes on with the tree whose turn it is, for `entries` entries.
    fn go_on(&mut self, entries: u32, freed: &mut Freed) {
        let Some((name, mut job)) = self.job.take() else {
            return;
        };
        let before = job.so_far();
        let ended = job.advance(entries);
        let now = job.so_far();
        freed.bytes += now.0 - before.0;
        freed.inodes += now.1 - before.1;
        let Some(ended) = ended else {
            self.job = Some((name, job));
            return;
        };
        self.names = self.names.saturating_add(job.names());
        match ended {
            Ended::Gone => freed.items += 1,
            Ended::Cut => freed.keep(self.kept(&name, KeptBecause::TooManyNames(self.names))),
            Ended::Left(why) => freed.keep(self.kept(&name, why)),
        }
    }

    fn kept(&self, name: &CStr, why: KeptBecause) -> Kept {
        Kept {
            path: self.path.join(OsStr::from_bytes(name.to_bytes())),
            why,
        }
    }

    fn remove_above(&self) {
        for (dir, name) in &self.above {
            // Best effort: a directory that has something else in it stays, and so do those above.
            if unlinkat(dir, name.as_c_str(), AtFlags::REMOVEDIR).is_err() {
                return;
            }
        }
    }
}

/// The pod that a directory belongs to. Logs are in `<namespace>_<name>_<UID>`; neither of the first two may contain
/// `_`.
fn uid_of(kind: Kind, name: &str) -> Option<PodUid> {
    let uid = match kind {
        Kind::Volumes => name,
        Kind::Logs => name.splitn(3, '_').nth(2)?,
    };
    (!uid.is_empty()).then(|| PodUid::from(uid))
}

/// How long nothing has changed about a pod's directory, the ones that volumes or containers have in it, and files
/// right in those.
fn age(candidate: &Candidate) -> Option<Duration> {
    let root = candidate.path();
    let inner = match candidate.kind {
        Kind::Volumes => root
            .join("volumes")
            .join(VolumePlugin::EmptyDir.directory()),
        Kind::Logs => root.clone(),
    };
    let mut newest = newest_change(&root)?;
    if candidate.kind == Kind::Volumes {
        newest = newest.max(newest_change(&root.join("volumes")).unwrap_or_default());
        newest = newest.max(newest_change(&inner).unwrap_or_default());
    }
    for entry in std::fs::read_dir(&inner).into_iter().flatten() {
        let path = entry.ok()?.path();
        newest = newest.max(newest_change(&path)?);
        for file in std::fs::read_dir(&path)
            .into_iter()
            .flatten()
            .take(VOLUMES_MAX)
        {
            newest = newest.max(newest_change(&file.ok()?.path())?);
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    // A change that lies ahead (the clock was set back) is no age.
    now.checked_sub(newest)
}

/// When contents or attributes last changed, since the epoch. ctime cannot be set by a program.
fn newest_change(path: &Path) -> Option<Duration> {
    let status = std::fs::symlink_metadata(path).ok()?;
    let at = |seconds: i64, nanoseconds: i64| {
        Some(Duration::new(
            u64::try_from(seconds).ok()?,
            u32::try_from(nanoseconds).ok()?,
        ))
    };
    Some(at(status.ctime(), status.ctime_nsec())?.max(at(status.mtime(), status.mtime_nsec())?))
}

fn c_string(name: &OsStr) -> Result<CString, Errno> {
    CString::new(name.to_owned().into_vec()).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests;
