//! cgroups that come and go, without BPF: inotify on the cgroup directories, and a walk that catches what it missed.
//!
//! **Problem.** A container's cgroup must be known before its first megabyte. Tracepoints report it; where they are
//! refused, the file system does. Any pod that may make cgroups decides how many there are, and how often the queue
//! overflows. **Approach.** mkdir and rmdir on cgroupfs are ordinary directory operations, so inotify sees them, on v1
//! and v2. Each known directory is looked at once: it gets a watch, and is listed after that, which finds a child made
//! between "its parent is watched" and "it is watched itself". After a queue overflow a walk looks at all that is known
//! once more. No call does more than a part of this; [`CgroupWatch::has_more`] says that another call is due.
//! **Terms.** A *path* here is relative to the watched root; the root itself is never reported.
//!
//! A walk passes each directory that was known when it began, in the order of paths, and none that was found later: it
//! ends, whoever makes directories meanwhile. An overflow during a walk does not begin it anew, or else it would never
//! come to the last ones: another follows it. What is new and what a walk passes are looked at by turns.
//!
//! Bounded: [`WATCHES_MAX`] directories are watched; what is beyond is counted in [`CgroupWatch::unwatched`], and a
//! walk still finds it. [`KNOWN_MAX`] are known; what is beyond is counted in [`CgroupWatch::beyond`], and a walk
//! follows when there is room. One call looks at [`DIRECTORIES_PER_CALL_MAX`] directories.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::ReadDir;
use std::io::ErrorKind;
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
/// Directories that one call watches and lists.
pub const DIRECTORIES_PER_CALL_MAX: usize = 64;

/// Subdirectories that one call takes from these lists. A longer list is left open for the next call.
const NAMES_MAX: usize = 1024;
/// Directories that one call forgets: one for each event, and as many below those that a walk finds gone.
const FORGETS_MAX: usize = 2048;
/// Reads of the queue in one call: a thousand events, or three hundred with the long names of containers.
const READS_MAX: usize = 2;
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
    #[error("cannot read the changes below {root} from inotify: {source}; pods are found by rescans, each 500 ms", root = root.shown())]
    Unreadable {
        /// The root of the tree.
        root: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// A known directory.
#[derive(Debug)]
struct Known {
    /// `None` if there was no room for one, or it was not looked at yet.
    watch: Option<i32>,
    /// How many were found before it.
    number: u64,
}

/// A walk under way.
#[derive(Debug)]
struct Walk {
    /// The last directory that was passed.
    passed: Option<PathBuf>,
    /// Directories from this number on were found since it began.
    end: u64,
}

/// A directory whose list is not read to its end.
#[derive(Debug)]
struct Listing {
    path: PathBuf,
    names: ReadDir,
}

/// A watched cgroup tree.
#[derive(Debug)]
pub struct CgroupWatch {
    root: PathBuf,
    fd: OwnedFd,
    known: BTreeMap<PathBuf, Known>,
    by_watch: BTreeMap<i32, PathBuf>,
    /// Known directories that were not looked at yet, nor reported, by their numbers: the oldest comes first.
    new: BTreeMap<u64, PathBuf>,
    /// The next directory's number.
    next_number: u64,
    listing: Option<Listing>,
    walk: Option<Walk>,
    /// Something was missed: a walk is to begin, after the one under way.
    wants_walk: bool,
    is_walks_turn: bool,
    /// How many may still be forgotten in this call.
    may_forget: usize,
    /// There may be more in the queue.
    has_unread: bool,
    /// A directory was found when there was no room for it.
    has_left_out: bool,
    beyond: u64,
    overflows: u64,
    #[cfg(test)]
    compared: usize,
    #[cfg(test)]
    looked_at: usize,
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
            new: BTreeMap::new(),
            next_number: 0,
            listing: None,
            walk: None,
            wants_walk: false,
            is_walks_turn: false,
            may_forget: KNOWN_MAX,
            has_unread: false,
            has_left_out: false,
            beyond: 0,
            overflows: 0,
            #[cfg(test)]
            compared: 0,
            #[cfg(test)]
            looked_at: 0,
        };
        watch.find(PathBuf::new());
        watch.go_on(KNOWN_MAX, usize::MAX, &mut Vec::new())?;
        Ok(watch)
    }

    /// Takes the changes that inotify has queued, and goes on with what is to be looked at, within the bounds of one
    /// call. Does not wait; empty when there is none.
    ///
    /// # Errors
    /// [`CgroupWatchError`] when inotify cannot be read, or the root is gone after an overflow.
    pub fn changes(&mut self) -> Result<Vec<CgroupChange>, CgroupWatchError> {
        let mut changes = Vec::new();
        self.may_forget = FORGETS_MAX;
        self.take_events(&mut changes)?;
        self.go_on(DIRECTORIES_PER_CALL_MAX, NAMES_MAX, &mut changes)?;
        if self.has_left_out && self.known.len() < KNOWN_MAX {
            self.has_left_out = false;
            self.wants_walk = true;
        }
        Ok(changes)
    }

    /// The last call has left something to be done, for which inotify will not signal.
    pub fn has_more(&self) -> bool {
        self.has_unread
            || self.listing.is_some()
            || !self.new.is_empty()
            || self.walk.is_some()
            || self.wants_walk
    }

    /// Every known cgroup, parents before children, without the root.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.known
            .keys()
            .map(PathBuf::as_path)
            .filter(|path| !path.as_os_str().is_empty())
    }

    /// Directories that have no watch: over [`WATCHES_MAX`] or over `fs.inotify.max_user_watches`, or not looked at
    /// yet. Only a walk sees changes in them.
    pub fn unwatched(&self) -> usize {
        let known = self.known.values();
        known.filter(|known| known.watch.is_none()).count()
    }

    /// Directories that were found when [`KNOWN_MAX`] were known, each time that they were.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// How often the kernel's queue overflowed (`fs.inotify.max_queued_events`); each is followed by a walk.
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    fn take_events(&mut self, changes: &mut Vec<CgroupChange>) -> Result<(), CgroupWatchError> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        // One buffer's worth at a time: applying a change needs the watch, which the reader's events borrow from.
        for _ in 0..READS_MAX {
            let batch = read_batch(&self.fd, &mut buffer).map_err(|source| {
                CgroupWatchError::Unreadable {
                    root: self.root.clone(),
                    source,
                }
            })?;
            self.has_unread = !batch.is_empty();
            if batch.is_empty() {
                break;
            }
            for event in batch {
                match event {
                    RawEvent::Overflow => self.overflowed(),
                    RawEvent::Ignored { watch } => {
                        self.by_watch.remove(&watch);
                    }
                    RawEvent::Created { watch, name } => {
                        if let Some(path) =
                            self.by_watch.get(&watch).map(|parent| parent.join(&name))
                        {
                            self.find(path);
                        }
                    }
                    RawEvent::Removed { watch, name } => {
                        if let Some(path) =
                            self.by_watch.get(&watch).map(|parent| parent.join(&name))
                        {
                            // Gone and made again before we looked: the new one has an event of its own.
                            self.forget(&path, changes);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn overflowed(&mut self) {
        self.overflows += 1;
        self.wants_walk = true;
    }

    /// Knows `path` from now on. It is reported when it is looked at: it may be gone by then.
    fn find(&mut self, path: PathBuf) {
        if self.known.contains_key(&path) {
            return;
        }
        if self.known.len() >= KNOWN_MAX {
            self.beyond += 1;
            self.has_left_out = true;
            return;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.new.insert(number, path.clone());
        let watch = None;
        self.known.insert(path, Known { watch, number });
    }

    /// Looks at so many directories, and takes so many subdirectories from their lists.
    fn go_on(
        &mut self,
        directories: usize,
        names: usize,
        changes: &mut Vec<CgroupChange>,
    ) -> Result<(), CgroupWatchError> {
        let (mut directories, mut names) = (directories, names);
        while names > 0 {
            if let Some(listing) = &mut self.listing {
                let Some(entry) = listing.names.next() else {
                    self.listing = None;
                    continue;
                };
                if let Ok(entry) = entry
                    && entry.file_type().is_ok_and(|kind| kind.is_dir())
                {
                    names -= 1;
                    let child = listing.path.join(entry.file_name());
                    self.find(child);
                }
                continue;
            }
            if directories == 0 {
                break;
            }
            let Some(path) = self.next_look() else {
                break;
            };
            directories -= 1;
            self.look(path, changes)?;
        }
        Ok(())
    }

    fn next_look(&mut self) -> Option<PathBuf> {
        self.is_walks_turn = !self.is_walks_turn;
        if self.is_walks_turn {
            self.walk_on().or_else(|| self.next_new())
        } else {
            self.next_new().or_else(|| self.walk_on())
        }
    }

    fn next_new(&self) -> Option<PathBuf> {
        self.new.first_key_value().map(|(_, path)| path.clone())
    }

    /// The next directory that the walk passes.
    fn walk_on(&mut self) -> Option<PathBuf> {
        if self.walk.is_none() && self.wants_walk {
            self.wants_walk = false;
            self.walk = Some(Walk {
                passed: None,
                end: self.next_number,
            });
        }
        let walk = self.walk.as_mut()?;
        let passed = walk.passed.as_deref();
        let from = passed.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self
            .known
            .range::<Path, _>((from, Bound::Unbounded))
            .find(|(_, known)| known.number < walk.end)
            .map(|(path, _)| path.clone());
        match &next {
            Some(path) => walk.passed = Some(path.clone()),
            None => self.walk = None,
        }
        next
    }

    /// Watches a known directory, and begins its list.
    fn look(
        &mut self,
        path: PathBuf,
        changes: &mut Vec<CgroupChange>,
    ) -> Result<(), CgroupWatchError> {
        #[cfg(test)]
        {
            self.looked_at += 1;
        }
        let full = self.root.join(&path);
        // Watch first, list second: a child made in between is then seen twice rather than never.
        let listed = self
            .watch(&path, &full)
            .map_err(std::io::Error::from)
            .and_then(|()| std::fs::read_dir(&full));
        let is_root = path.as_os_str().is_empty();
        match listed {
            Err(error) if is_scarcity(&error) => self.wants_walk = true,
            Err(source) if is_root => {
                return Err(CgroupWatchError::Root {
                    path: self.root.clone(),
                    source,
                });
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                self.forget(&path, changes);
                return Ok(());
            }
            Err(_) => {}
            Ok(names) => {
                let path = path.clone();
                self.listing = Some(Listing { path, names });
            }
        }
        let known = self.known.get(&path);
        let is_new = known.is_some_and(|known| self.new.remove(&known.number).is_some());
        if is_new && !is_root {
            changes.push(CgroupChange::Created(path));
        }
        Ok(())
    }

    /// Sees to it that a known directory has a watch, if there is room. One that was made anew while events were lost
    /// has another than before.
    ///
    /// # Errors
    /// When it is gone.
    fn watch(&mut self, path: &Path, full: &Path) -> Result<(), Errno> {
        let Some(known) = self.known.get_mut(path) else {
            return Ok(());
        };
        if known.watch.is_none() && self.by_watch.len() >= WATCHES_MAX {
            return Ok(());
        }
        let flags =
            WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        let watch = match add_watch(&self.fd, full, flags) {
            Ok(watch) => Some(watch),
            Err(errno @ (Errno::NOENT | Errno::NOTDIR)) => return Err(errno),
            Err(_) => None,
        };
        let old = std::mem::replace(&mut known.watch, watch);
        if old != watch {
            old.map(|old| self.drop_watch(old, path));
            if let Some(watch) = watch {
                self.by_watch.insert(watch, path.to_owned());
            }
        }
        Ok(())
    }

    /// Whether this was still the watch of `path`, and not of the name that the directory has got since.
    fn drop_watch(&mut self, watch: i32, path: &Path) -> bool {
        let is_of_path = self.by_watch.get(&watch).is_some_and(|of| of == path);
        if is_of_path {
            self.by_watch.remove(&watch);
        }
        is_of_path
    }

    /// Drops `path` and everything below, children first. What this call may not drop any more is found by a walk.
    fn forget(&mut self, path: &Path, changes: &mut Vec<CgroupChange>) {
        if self.may_forget == 0 {
            self.wants_walk = true;
            return;
        }
        // Paths are ordered by their names from above, so what is below follows at once.
        let from = (Bound::Included(path), Bound::Unbounded);
        let below: Vec<&PathBuf> = self
            .known
            .range::<Path, _>(from)
            .map(|(known, _)| known)
            .take_while(|known| known.starts_with(path))
            .collect();
        let left = below.len().saturating_sub(self.may_forget);
        self.wants_walk |= left > 0;
        self.may_forget -= below.len() - left;
        #[cfg(test)]
        {
            self.compared += below.len() + 1;
        }
        let listing = self.listing.as_ref();
        if listing.is_some_and(|listing| listing.path.starts_with(path)) {
            self.listing = None;
        }
        let last: Vec<PathBuf> = below.into_iter().skip(left).cloned().collect();
        for path in last.into_iter().rev() {
            let Some(known) = self.known.remove(&path) else {
                continue;
            };
            if let Some(watch) = known.watch
                && self.drop_watch(watch, &path)
            {
                // The kernel has dropped the watch with the directory; this is for one that was renamed away. EINVAL is
                // the rule.
                remove_watch(&self.fd, watch).ok();
            }
            if self.new.remove(&known.number).is_none() {
                changes.push(CgroupChange::Removed(path));
            }
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

/// The machine had no memory or no descriptor for a moment: that says nothing of the directory.
fn is_scarcity(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOMEM | Errno::MFILE | Errno::NFILE))
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

    /// As if the queue had overflowed: what is in it is gone.
    fn lose_events(watch: &mut CgroupWatch) {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        while !read_batch(&watch.fd, &mut buffer).unwrap().is_empty() {}
        watch.overflowed();
    }

    /// All calls until nothing is left to be done; each is within its bounds.
    fn all_changes(watch: &mut CgroupWatch) -> Vec<CgroupChange> {
        let mut all = Vec::new();
        loop {
            let before = watch.looked_at;
            all.append(&mut watch.changes().unwrap());
            let looks = watch.looked_at - before;
            assert!(looks <= DIRECTORIES_PER_CALL_MAX, "{looks} looks");
            if !watch.has_more() {
                return all;
            }
        }
    }

    #[test]
    fn a_walk_finds_what_events_did_not_tell() {
        let dir = tempfile::tempdir().unwrap();
        create_dir_all(dir.path().join("old/c1")).unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        remove_dir_all(dir.path().join("old")).unwrap();
        create_dir_all(dir.path().join("new/c1")).unwrap();
        lose_events(&mut watch);
        let mut changes = all_changes(&mut watch);
        changes.sort();
        let wanted = [
            created("new"),
            created("new/c1"),
            removed("old"),
            removed("old/c1"),
        ];
        assert_eq!(changes, wanted);
        assert_eq!(known(&watch), ["new", "new/c1"]);
        // What the queue has kept is old news.
        create_dir(dir.path().join("newer")).unwrap();
        watch.overflowed();
        assert_eq!(all_changes(&mut watch), [created("newer")]);
    }

    #[test]
    fn a_directory_that_was_made_anew_unseen_is_watched_anew() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pod1");
        create_dir(&pod).unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        remove_dir(&pod).unwrap();
        create_dir(&pod).unwrap();
        lose_events(&mut watch);
        assert_eq!(all_changes(&mut watch), []);
        create_dir(pod.join("c1")).unwrap();
        assert_eq!(all_changes(&mut watch), [created("pod1/c1")]);
        assert_eq!((watch.by_watch.len(), watch.unwatched()), (3, 0));
    }

    #[test]
    fn a_directory_that_was_renamed_unseen_keeps_its_watch() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        create_dir(&old).unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        std::fs::rename(old, &new).unwrap();
        lose_events(&mut watch);
        // The new name comes first.
        watch.is_walks_turn = false;
        assert_eq!(all_changes(&mut watch), [created("new"), removed("old")]);
        create_dir(new.join("c1")).unwrap();
        assert_eq!(all_changes(&mut watch), [created("new/c1")]);
    }

    #[test]
    fn a_walk_looks_at_a_part_in_each_call() {
        let dir = tempfile::tempdir().unwrap();
        let known = 4 * DIRECTORIES_PER_CALL_MAX;
        for pod in 1..known {
            create_dir(dir.path().join(pod.to_string())).unwrap();
        }
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        assert_eq!((watch.looked_at, watch.has_more()), (known, false));
        watch.overflowed();
        for call in 1..=4 {
            assert!(watch.has_more());
            assert_eq!(watch.changes().unwrap(), []);
            assert_eq!(watch.looked_at, known + call * DIRECTORIES_PER_CALL_MAX);
        }
        assert_eq!(all_changes(&mut watch), []);
        assert_eq!(watch.looked_at, 2 * known);
    }

    #[test]
    fn a_long_list_is_read_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pod1");
        create_dir(&pod).unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        for container in 0..=NAMES_MAX {
            create_dir(pod.join(container.to_string())).unwrap();
        }
        lose_events(&mut watch);
        assert_eq!(watch.changes().unwrap(), []);
        // The pod itself is in the first list.
        assert_eq!(watch.new.len(), NAMES_MAX - 1);
        assert_eq!(all_changes(&mut watch).len(), NAMES_MAX + 1);
        assert_eq!(watch.paths().count(), NAMES_MAX + 2);
        assert_eq!(watch.unwatched(), 0);
        // Gone while it is listed.
        watch.overflowed();
        assert_eq!(watch.changes().unwrap(), []);
        assert!(watch.listing.is_some());
        remove_dir_all(pod).unwrap();
        let gone = all_changes(&mut watch);
        assert_eq!(gone.len(), NAMES_MAX + 2);
        assert!(gone.iter().all(|it| matches!(it, CgroupChange::Removed(_))));
    }

    #[test]
    fn a_tree_that_is_gone_is_forgotten_in_parts() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pod1");
        for container in 0..=FORGETS_MAX {
            create_dir_all(pod.join(container.to_string())).unwrap();
        }
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        remove_dir_all(pod).unwrap();
        lose_events(&mut watch);
        assert_eq!(watch.changes().unwrap().len(), FORGETS_MAX);
        let left = all_changes(&mut watch);
        assert_eq!(left, [removed("pod1/0"), removed("pod1")]);
        assert_eq!((known(&watch).len(), watch.by_watch.len()), (0, 1));
    }

    /// Whoever makes the queue overflow all the time does not keep a walk from the last directories, nor the next from
    /// the first.
    #[test]
    fn overflows_during_a_walk_starve_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let pods = 4 * DIRECTORIES_PER_CALL_MAX;
        for pod in 1..pods {
            create_dir(dir.path().join(format!("pod{pod:04}"))).unwrap();
        }
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        watch.overflowed();
        assert_eq!(watch.changes().unwrap(), []);
        let (first, last) = ("pod0001/c1".to_owned(), format!("pod{:04}/c1", pods - 1));
        for path in [&first, &last] {
            create_dir(dir.path().join(path)).unwrap();
        }
        let mut found = Vec::new();
        for call in 1..30 {
            lose_events(&mut watch);
            // New ones, between where the walk has come to and where it goes.
            let passed = watch.walk.as_ref().and_then(|walk| walk.passed.clone());
            let passed = passed.unwrap_or_default();
            for name in 0..DIRECTORIES_PER_CALL_MAX {
                let name = format!("{}-{call}-{name}", passed.shown());
                watch.find(name.into());
            }
            for change in watch.changes().unwrap() {
                if [&first, &last].map(|path| created(path)).contains(&change) {
                    found.push(change);
                }
            }
        }
        assert_eq!(found, [created(&last), created(&first)]);
    }

    #[test]
    fn one_name_made_again_and_again_waits_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = CgroupWatch::open(dir.path()).unwrap();
        for _ in 0..100 {
            create_dir(dir.path().join("pod1")).unwrap();
            remove_dir(dir.path().join("pod1")).unwrap();
        }
        create_dir(dir.path().join("pod1")).unwrap();
        create_dir(dir.path().join("pod2")).unwrap();
        watch.take_events(&mut Vec::new()).unwrap();
        let new: Vec<_> = watch
            .new
            .values()
            .map(|path| path.shown().to_string())
            .collect();
        assert_eq!(new, ["pod1", "pod2"]);
        let changes = all_changes(&mut watch);
        assert_eq!(changes, [created("pod1"), created("pod2")]);
        assert_eq!(watch.unwatched(), 0);
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
        assert_eq!(all_changes(&mut watch).len(), 2000);
        assert_eq!(watch.paths().count(), 2000);
        assert_eq!(watch.overflows(), 0);

        // What is gone is found without going through all that is known.
        remove_dir_all(dir.path()).unwrap();
        assert_eq!(all_changes(&mut watch).len(), 2000);
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
        assert!(!watch.has_more());
        // When there is room for the others they are found.
        let some: Vec<_> = watch.paths().take(20).map(Path::to_owned).collect();
        for path in some {
            remove_dir(dir.path().join(path)).unwrap();
        }
        all_changes(&mut watch);
        assert_eq!(watch.paths().count(), KNOWN_MAX + 10 - 20);
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
