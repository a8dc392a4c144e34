//! cgroups that come and go, without BPF: inotify on the cgroup directories, and a walk that catches what it missed.
//!
//! **Problem.** A container's cgroup must be known before its first megabyte. Tracepoints report it; where they are refused,
//! the file system does.
//! **Approach.** mkdir and rmdir on cgroupfs are ordinary directory operations, so inotify sees them, on v1 and v2.
//! Each known directory has a watch. A child made between "its parent is watched" and "it is watched itself" is found
//! by listing each new directory after watching it. After a queue overflow [`CgroupWatch::rescan`] compares the tree with what is known.
//! **Terms.** A *path* here is relative to the watched root; the root itself is never reported.
//!
//! Bounded: [`WATCHES_MAX`] directories are watched; what is beyond is counted in [`CgroupWatch::unwatched`], and a rescan still finds it.
//! [`KNOWN_MAX`] are known; what is beyond is counted in [`CgroupWatch::beyond`]. One call takes up [`TAKEN_UP_MAX`] new ones; the others wait for
//! the next.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{
    CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch,
};
use rustix::io::Errno;

use crate::host::shown::Show as _;

/// Most directories watched at once. A node has at most a few hundred pods of a few containers; Linux's default limit
/// is 8192 and up.
pub const WATCHES_MAX: usize = 4096;

/// Most directories known at once.
pub const KNOWN_MAX: usize = 16_384;
/// New directories that one call watches and lists.
pub const TAKEN_UP_MAX: usize = 64;

/// Reads of the queue in one call: its default length (`fs.inotify.max_queued_events`), and as many more that come meanwhile.
const READS_MAX: usize = 64;
/// Room for several hundred events in one read.
const BUFFER_BYTES: usize = 16 * 1024;

/// A change in the tree. A directory's creation comes before its children's, its removal after theirs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CgroupChange {
    /// A cgroup was made.
    Created(PathBuf),
    /// A cgroup was removed.
    Removed(PathBuf),
}

/// Why the tree cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum CgroupWatchError {
    /// The directory that everything hangs on.
    #[error("{path}: cannot be listed: {source}; check --cgroup-root and that the cgroup file system is mounted", path = path.shown())]
    Root {
        /// Which directory.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// No inotify instance (EMFILE: fs.inotify.max_user_instances).
    #[error("cannot create an inotify instance for {root}: {source}; raise fs.inotify.max_user_instances", root = root.shown())]
    Inotify {
        /// The root of the tree.
        root: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The changes cannot be read any more.
    #[error("cannot read the changes below {root} from inotify: {source}; restart plimsoll to watch them again", root = root.shown())]
    Unreadable {
        /// The root of the tree.
        root: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// A watched cgroup tree.
#[derive(Debug)]
pub struct CgroupWatch {
    root: PathBuf,
    fd: OwnedFd,
    /// Known directories → their watch, if there was room for one.
    known: BTreeMap<PathBuf, Option<i32>>,
    by_watch: BTreeMap<i32, PathBuf>,
    /// Found, and not taken up yet.
    pending: Vec<PathBuf>,
    /// How many may still be taken up in this call.
    budget: usize,
    beyond: u64,
    overflows: u64,
    #[cfg(test)]
    compared: usize,
}

impl CgroupWatch {
    /// Watches `root` and everything below. What exists now is known, not reported: see [`CgroupWatch::paths`].
    ///
    /// # Errors
    /// [`CgroupWatchError`] when `root` cannot be listed or there is no inotify.
    pub fn open(root: &Path) -> Result<Self, CgroupWatchError> {
        std::fs::read_dir(root).map_err(|source| CgroupWatchError::Root {
            path: root.to_owned(),
            source,
        })?;
        let fd = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|source| {
            CgroupWatchError::Inotify {
                root: root.to_owned(),
                source,
            }
        })?;
        let mut watch = Self {
            root: root.to_owned(),
            fd,
            known: BTreeMap::new(),
            by_watch: BTreeMap::new(),
            pending: Vec::new(),
            budget: KNOWN_MAX,
            beyond: 0,
            overflows: 0,
            #[cfg(test)]
            compared: 0,
        };
        watch.adopt(PathBuf::new(), &mut Vec::new());
        Ok(watch)
    }

    /// Takes the changes that inotify has queued, within the bounds of one call. Does not wait; empty when there is none.
    ///
    /// # Errors
    /// [`CgroupWatchError`] when inotify cannot be read, or the root is gone after an overflow.
    pub fn changes(&mut self) -> Result<Vec<CgroupChange>, CgroupWatchError> {
        let mut changes = Vec::new();
        let mut overflow = false;
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        self.budget = TAKEN_UP_MAX;
        self.take_up(&mut changes);
        // One buffer's worth at a time: applying a change needs the watch, which the reader's events borrow from.
        for _ in 0..READS_MAX {
            let batch = read_batch(&self.fd, &mut buffer).map_err(|source| {
                CgroupWatchError::Unreadable {
                    root: self.root.clone(),
                    source,
                }
            })?;
            if batch.is_empty() {
                break;
            }
            for event in batch {
                match event {
                    RawEvent::Overflow => overflow = true,
                    RawEvent::Ignored { watch } => {
                        self.by_watch.remove(&watch);
                    }
                    RawEvent::Created { watch, name } => {
                        if let Some(path) =
                            self.by_watch.get(&watch).map(|parent| parent.join(&name))
                        {
                            self.adopt(path, &mut changes);
                        }
                    }
                    RawEvent::Removed { watch, name } => {
                        if let Some(path) =
                            self.by_watch.get(&watch).map(|parent| parent.join(&name))
                        {
                            // Gone and made again before we looked: the new one has an event of its own.
                            self.forget(&path, &mut changes);
                        }
                    }
                }
            }
        }
        if overflow {
            self.overflows += 1;
            changes.extend(self.rescan()?);
        }
        Ok(changes)
    }

    /// Compares the tree with what is known and returns the difference. The walk behind the watch, and all there is
    /// without inotify.
    ///
    /// # Errors
    /// [`CgroupWatchError::Root`] when the root cannot be listed any more.
    pub fn rescan(&mut self) -> Result<Vec<CgroupChange>, CgroupWatchError> {
        std::fs::read_dir(&self.root).map_err(|source| CgroupWatchError::Root {
            path: self.root.clone(),
            source,
        })?;
        let mut changes = Vec::new();
        self.budget = TAKEN_UP_MAX;
        self.take_up(&mut changes);
        let gone: Vec<PathBuf> = self
            .known
            .keys()
            .filter(|path| !self.root.join(path).is_dir())
            .cloned()
            .collect();
        for path in gone {
            self.forget(&path, &mut changes);
        }
        for path in self.known.keys().cloned().collect::<Vec<_>>() {
            for child in subdirectories(&self.root.join(&path), KNOWN_MAX) {
                self.adopt(path.join(child), &mut changes);
            }
        }
        Ok(changes)
    }

    /// Every known cgroup, parents before children, without the root.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.known
            .keys()
            .map(PathBuf::as_path)
            .filter(|path| !path.as_os_str().is_empty())
    }

    /// Directories that have no watch: over [`WATCHES_MAX`] or over `fs.inotify.max_user_watches`. Only a rescan sees
    /// changes in them.
    pub fn unwatched(&self) -> usize {
        self.known.values().filter(|watch| watch.is_none()).count()
    }

    /// Directories that were found when [`KNOWN_MAX`] were known, each time that they were.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// How often the kernel's queue overflowed (`fs.inotify.max_queued_events`); each was followed by a rescan.
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Takes up `path` and everything below that is not known yet.
    fn adopt(&mut self, path: PathBuf, changes: &mut Vec<CgroupChange>) {
        self.find(path);
        self.take_up(changes);
    }

    fn find(&mut self, path: PathBuf) {
        if self.known.contains_key(&path) {
            return;
        }
        if self.known.len() + self.pending.len() < KNOWN_MAX {
            self.pending.push(path);
        } else {
            self.beyond += 1;
        }
    }

    /// Takes up what was found, as far as this call may.
    fn take_up(&mut self, changes: &mut Vec<CgroupChange>) {
        while self.budget > 0
            && let Some(path) = self.pending.pop()
        {
            if self.known.contains_key(&path) {
                continue;
            }
            self.budget -= 1;
            let full = self.root.join(&path);
            // Watch first, list second: a child made in between is then seen twice rather than never.
            let watch = if self.by_watch.len() < WATCHES_MAX {
                let flags = WatchFlags::CREATE
                    | WatchFlags::DELETE
                    | WatchFlags::ONLYDIR
                    | WatchFlags::DONT_FOLLOW;
                match add_watch(&self.fd, &full, flags) {
                    Ok(watch) => Some(watch),
                    // Gone again already: never report it.
                    Err(Errno::NOENT | Errno::NOTDIR) => continue,
                    Err(_) => None,
                }
            } else {
                None
            };
            if let Some(watch) = watch {
                self.by_watch.insert(watch, path.clone());
            }
            if !path.as_os_str().is_empty() {
                changes.push(CgroupChange::Created(path.clone()));
            }
            self.known.insert(path.clone(), watch);
            let room = KNOWN_MAX.saturating_sub(self.known.len() + self.pending.len());
            for child in subdirectories(&full, room + 1) {
                self.find(path.join(child));
            }
        }
    }

    /// Drops `path` and everything below, children first.
    fn forget(&mut self, path: &Path, changes: &mut Vec<CgroupChange>) {
        // Paths are ordered by their names from above, so what is below follows at once.
        let from = (Bound::Included(path), Bound::Unbounded);
        let below: Vec<PathBuf> = self
            .known
            .range::<Path, _>(from)
            .map(|(known, _)| known)
            .take_while(|known| known.starts_with(path))
            .cloned()
            .collect();
        #[cfg(test)]
        {
            self.compared += below.len() + 1;
        }
        for path in below.into_iter().rev() {
            if let Some(watch) = self.known.remove(&path).flatten() {
                self.by_watch.remove(&watch);
                // The kernel has dropped the watch with the directory; this is for one that was renamed away. EINVAL is
                // the rule.
                remove_watch(&self.fd, watch).ok();
            }
            changes.push(CgroupChange::Removed(path));
        }
    }
}

impl AsFd for CgroupWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for CgroupWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

enum RawEvent {
    Created { watch: i32, name: PathBuf },
    Removed { watch: i32, name: PathBuf },
    Ignored { watch: i32 },
    Overflow,
}

/// One read's worth of events that concern directories; empty only when nothing is queued.
fn read_batch(fd: &OwnedFd, buffer: &mut [MaybeUninit<u8>]) -> Result<Vec<RawEvent>, Errno> {
    let mut reader = Reader::new(fd, buffer);
    let mut batch = Vec::new();
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(Errno::AGAIN) => return Ok(batch),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        let (flags, watch) = (event.events(), event.wd());
        let name = event
            .file_name()
            .map(|name| PathBuf::from(OsStr::from_bytes(name.to_bytes())));
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            batch.push(RawEvent::Overflow);
        } else if flags.contains(ReadFlags::IGNORED) {
            batch.push(RawEvent::Ignored { watch });
        } else if flags.contains(ReadFlags::ISDIR)
            && let Some(name) = name
        {
            if flags.contains(ReadFlags::CREATE) {
                batch.push(RawEvent::Created { watch, name });
            } else if flags.contains(ReadFlags::DELETE) {
                batch.push(RawEvent::Removed { watch, name });
            }
        }
        if reader.is_buffer_empty() && !batch.is_empty() {
            return Ok(batch);
        }
    }
}

/// Names of the directories in `dir`, the last first, at most `max`; none when it is gone: its parent's event reports that.
fn subdirectories(dir: &Path, max: usize) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| PathBuf::from(entry.file_name()))
        .take(max)
        .collect();
    // What is found last is taken up first.
    names.sort_by(|left, right| right.cmp(left));
    names
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, create_dir_all, remove_dir, remove_dir_all};

    use super::*;

    fn created(path: &str) -> CgroupChange {
        CgroupChange::Created(path.into())
    }

    fn removed(path: &str) -> CgroupChange {
        CgroupChange::Removed(path.into())
    }

    fn known(watch: &CgroupWatch) -> Vec<String> {
        watch.paths().map(|path| path.shown().to_string()).collect()
    }

    #[test]
    fn what_is_there_is_known_and_not_reported() {
        let dir = tempfile::tempdir().unwrap();
        create_dir_all(dir.path().join("kubepods/burstable/pod1")).unwrap();
        std::fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        assert_eq!(
            known(&watch),
            ["kubepods", "kubepods/burstable", "kubepods/burstable/pod1"]
        );
        assert_eq!(watch.changes().unwrap(), []);
        assert_eq!(watch.unwatched(), 0);
    }

    #[test]
    fn a_pod_comes_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        create_dir(dir.path().join("kubepods")).unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        create_dir_all(dir.path().join("kubepods/pod1/c1")).unwrap();
        assert_eq!(
            watch.changes().unwrap(),
            [created("kubepods/pod1"), created("kubepods/pod1/c1")]
        );
        assert_eq!(watch.changes().unwrap(), [], "reported once");
        remove_dir_all(dir.path().join("kubepods/pod1")).unwrap();
        assert_eq!(
            watch.changes().unwrap(),
            [removed("kubepods/pod1/c1"), removed("kubepods/pod1")]
        );
        assert_eq!(known(&watch), ["kubepods"]);
        create_dir(dir.path().join("kubepods/pod1")).unwrap();
        assert_eq!(
            watch.changes().unwrap(),
            [created("kubepods/pod1")],
            "the same name again"
        );
    }

    #[test]
    fn one_that_is_gone_before_it_is_looked_at_is_not_reported_as_known() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        create_dir(dir.path().join("pod1")).unwrap();
        remove_dir(dir.path().join("pod1")).unwrap();
        assert_eq!(watch.changes().unwrap(), []);
        assert_eq!(known(&watch), Vec::<String>::new());
    }

    #[test]
    fn files_are_nobody_s_business() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        std::fs::write(dir.path().join("memory.max"), "1").unwrap();
        std::fs::remove_file(dir.path().join("memory.max")).unwrap();
        create_dir(dir.path().join("pod1")).unwrap();
        assert_eq!(watch.changes().unwrap(), [created("pod1")]);
    }

    #[test]
    fn a_rescan_finds_what_events_did_not_tell() {
        let dir = tempfile::tempdir().unwrap();
        create_dir_all(dir.path().join("old/c1")).unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        remove_dir_all(dir.path().join("old")).unwrap();
        create_dir_all(dir.path().join("new/c1")).unwrap();
        let wanted = [
            removed("old/c1"),
            removed("old"),
            created("new"),
            created("new/c1"),
        ];
        assert_eq!(watch.rescan().unwrap(), wanted);
        assert_eq!(
            watch.changes().unwrap(),
            [],
            "the queued events are old news"
        );
        assert_eq!(known(&watch), ["new", "new/c1"]);
    }

    #[test]
    fn many_changes_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        for pod in 0..1000 {
            create_dir_all(
                dir.path()
                    .join(format!("pod{pod}/container-with-a-name-of-some-length")),
            )
            .unwrap();
        }
        let mut calls = vec![watch.changes().unwrap().len()];
        while calls.last() != Some(&0) {
            calls.push(watch.changes().unwrap().len());
        }
        assert!(
            calls.iter().all(|taken| *taken <= TAKEN_UP_MAX),
            "{calls:?}"
        );
        assert_eq!(calls.iter().sum::<usize>(), 2000);
        assert_eq!(watch.paths().count(), 2000);
        assert_eq!(watch.overflows(), 0);

        // What is gone is found without going through all that is known.
        remove_dir_all(dir.path()).unwrap();
        let mut gone = 0;
        while let taken @ 1.. = watch.changes().unwrap().len() {
            gone += taken;
        }
        assert_eq!(gone, 2000);
        assert!(watch.compared <= 3 * 2000, "{} compared", watch.compared);
    }

    #[test]
    fn no_more_are_known_than_the_bound() {
        // Where they are made in no time, if there is such a place.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
        for pod in 0..KNOWN_MAX + 10 {
            create_dir(dir.path().join(pod.to_string())).unwrap();
        }
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        // The root is one of them.
        assert_eq!(watch.paths().count(), KNOWN_MAX - 1);
        assert!(watch.beyond() > 0);
        assert_eq!(watch.changes().unwrap(), []);
    }

    #[test]
    fn a_missing_root_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = CgroupWatch::open(&dir.path().join("kubepods")).unwrap_err();
        assert!(
            error.to_string().contains("kubepods: cannot be listed"),
            "{error}"
        );
    }
}
