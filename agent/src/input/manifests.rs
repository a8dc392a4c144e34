//! Pods from a directory of ordinary Kubernetes Pod manifests: where pods come from when there is no cluster.
//!
//! **Problem.** Manifests are edited by hand while their pods run. A file that is half written, or wrong for a moment, must not end a
//! pod; a file that is removed must.
//! **Approach.** inotify says *that* something changed; then the whole directory is looked at, which is a few `stat` calls. A file
//! is read once its size and time have stayed the same for [`SETTLE_MS`], and a missing file counts as removed after the same time
//! (editors replace files by renaming). While a file has any error, the pods that it had before stay, and its errors are reported
//! until it is put right or removed. All of it happens on an ordinary thread; the agent's loop gets finished [`ManifestChange`]s.
//! **Which files.** `*.yaml`, `*.yml` and `*.json` directly in the directory, not starting with a dot (kubelet, `pkg/kubelet/config/file.go`,
//! takes all that do not start with a dot, editors' backups included).
#![forbid(unsafe_code)]

mod budgets;
mod gather;
pub(crate) mod objects;
mod pods;
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_core::kube::budget::DisruptionBudget;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::units::PodUid;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;
use rustix::io::Errno;

use crate::host::boundary;
use crate::host::shown::Show as _;
use crate::input::yaml::Limits;
use pods::{Parsed, parse};

pub use budgets::ManifestBudget;
pub(crate) use gather::read_or_stdin;
pub use gather::{STDIN, gather};

/// Size of one manifest file, at most.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Documents and list items in one file, at most.
pub const DOCUMENTS_PER_FILE_MAX: usize = 256;
/// Manifest files in the directory, at most.
pub const FILES_MAX: usize = 1024;
/// Pods of all files, at most.
pub const PODS_MAX: usize = 1024;
/// Disruption budgets of all files, at most.
pub const BUDGETS_MAX: usize = 1024;

/// How much one text may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Its size.
    pub(crate) bytes: u64,
    /// Documents and list items.
    pub(crate) documents: usize,
    /// YAML values.
    pub(crate) nodes: usize,
}

impl Bounds {
    /// Of a file that `run` and `exec` read. As many values as the largest size holds, one each dozen bytes.
    const MANIFEST: Self = Self {
        bytes: FILE_BYTES_MAX,
        documents: DOCUMENTS_PER_FILE_MAX,
        nodes: 100_000,
    };
    /// A key that is there twice is an error, as in the API server.
    pub(crate) fn limits(self) -> Limits {
        Limits {
            nodes: self.nodes,
            documents: self.documents,
            repeated_keys: false,
        }
    }

    /// Of a text that an offline command reads, such as all pods of a node from kubectl.
    pub(crate) const OFFLINE: Self = Self {
        bytes: 64 << 20,
        documents: 16_384,
        nodes: 8_000_000,
    };
}

/// How long a file must stay the same before it is believed.
pub const SETTLE_MS: u64 = 100;
/// How often a directory that has gone away is looked for.
const RETRY_MS: u64 = 1000;

/// A pod and where its manifest stands.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestPod {
    /// The pod, with the API server's defaults.
    pub pod: Arc<Pod>,
    /// Its file.
    pub file: Arc<Path>,
    /// The line in the file at which its document starts.
    pub line: u64,
}

/// What is wrong with a manifest. Every message starts `FILE:LINE:`, as compilers do, so editors can jump there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The directory or a file cannot be read.
    #[error("{file}: cannot be read: {source}", file = file.shown())]
    Unreadable {
        /// Which file or directory.
        file: Arc<Path>,
        /// Why.
        #[source]
        source: Errno,
    },
    /// No YAML or JSON.
    #[error("{file}:{line}: {what}; nothing of this file is used until it is fixed", file = file.shown())]
    Syntax {
        /// Which file.
        file: Arc<Path>,
        /// Line, from 1.
        line: u64,
        /// What the parser says.
        what: String,
    },
    /// A field is unknown or has a wrong value.
    #[error("{file}:{line}: {field}: {what}", file = file.shown())]
    Field {
        /// Which file.
        file: Arc<Path>,
        /// Line, from 1.
        line: u64,
        /// `spec.containers[0].resources.limits.memory`
        field: String,
        /// What is wrong with it.
        what: String,
    },
    /// Two documents are the same pod.
    #[error("{file}:{line}: pod {uid} is already defined at {first_file}:{first_line}, which is used; give this one another name, namespace or uid",
        file = file.shown(), first_file = first_file.shown())]
    Duplicate {
        /// The file of the second.
        file: Arc<Path>,
        /// The line of the second.
        line: u64,
        /// The pod.
        uid: PodUid,
        /// The file of the one that is used.
        first_file: Arc<Path>,
        /// The line of the one that is used.
        first_line: u64,
    },
    /// A file that had pods now has none.
    #[error("{file}: has no documents any more; its pods stay until the file is removed", file = file.shown())]
    Emptied {
        /// Which file.
        file: Arc<Path>,
    },
    /// One of the limits is reached.
    #[error("{file}: {what}", file = file.shown())]
    TooMuch {
        /// Which file or directory.
        file: Arc<Path>,
        /// Which limit, and what to do.
        what: String,
    },
}

/// What has changed since the last time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ManifestChange {
    /// Pods that are new.
    pub added: Vec<ManifestPod>,
    /// Pods of which the manifest has changed.
    pub changed: Vec<ManifestPod>,
    /// Pods that no manifest has any more: they are to be ended.
    pub removed: Vec<PodUid>,
    /// Disruption budgets that are new or have changed.
    pub budgets: Vec<Arc<DisruptionBudget>>,
    /// Disruption budgets that no manifest has any more, by `namespace/name`.
    pub budgets_removed: Vec<Arc<str>>,
    /// All errors that there are now, old and new, in the order of files and lines.
    pub errors: Vec<ManifestError>,
}

/// Reads one manifest file, as `plimsoll exec -f` does.
///
/// # Errors
/// All errors of the file. Pods of its correct documents are returned beside them.
pub fn read_file(path: &Path) -> (Vec<ManifestPod>, Vec<ManifestError>) {
    let Parsed { pods, errors, .. } = read_all(path);
    (pods, errors)
}

fn read_all(path: &Path) -> Parsed {
    let file: Arc<Path> = Arc::from(path);
    let bounds = Bounds::MANIFEST;
    match read_text(&file, bounds.bytes) {
        Ok(text) => {
            boundary::guard(|| parse(&file, &text, bounds)).unwrap_or_else(|error| Parsed {
                errors: vec![ManifestError::Syntax {
                    file: Arc::clone(&file),
                    line: 1,
                    what: error.to_string(),
                }],
                ..Parsed::default()
            })
        }
        Err(error) => Parsed {
            errors: vec![error],
            ..Parsed::default()
        },
    }
}

fn unreadable(file: &Arc<Path>, error: &std::io::Error) -> ManifestError {
    ManifestError::Unreadable {
        file: Arc::clone(file),
        source: Errno::from_io_error(error).unwrap_or(Errno::IO),
    }
}

/// The text of a file of `bytes_max` at most.
pub(crate) fn read_text(file: &Arc<Path>, bytes_max: u64) -> Result<String, ManifestError> {
    let open = std::fs::File::open(file).map_err(|error| unreadable(file, &error))?;
    text_of(file, open, bytes_max)
}

/// The text that `input` gives; `file` is its name in errors.
pub(crate) fn text_of(
    file: &Arc<Path>,
    input: impl std::io::Read,
    bytes_max: u64,
) -> Result<String, ManifestError> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    input
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(file, &error))?;
    if bytes.len() as u64 > bytes_max {
        let what = format!("larger than {bytes_max} bytes; split it");
        return Err(ManifestError::TooMuch {
            file: Arc::clone(file),
            what,
        });
    }
    String::from_utf8(bytes).map_err(|error| ManifestError::Syntax {
        file: Arc::clone(file),
        line: error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count() as u64
            + 1,
        what: "not UTF-8 text".to_owned(),
    })
}

/// Whether a file of a manifests directory is one of those that are read.
fn is_manifest(path: &Path) -> bool {
    path.extension()
        .is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known))
        && path
            .file_name()
            .is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."))
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

#[derive(Debug, Clone, Default)]
struct FileState {
    /// The state that was read.
    stamp: Option<Stamp>,
    /// The newest state, `None` for a missing file, and since when it is so.
    unsettled: Option<(Option<Stamp>, Duration)>,
    /// The pods of the last read that gave them, in the file's order.
    pods: Vec<ManifestPod>,
    budgets: Vec<ManifestBudget>,
    errors: Vec<ManifestError>,
}

/// A manifests directory and what was found in it. Knows no clock: the caller gives the time.
#[derive(Debug)]
pub struct ManifestDir {
    dir: Arc<Path>,
    files: BTreeMap<Arc<Path>, FileState>,
    current: BTreeMap<PodUid, ManifestPod>,
    budgets: BTreeMap<Arc<str>, ManifestBudget>,
    errors: Vec<ManifestError>,
    is_first: bool,
}

impl ManifestDir {
    /// A directory that has not been looked at yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = Arc::from(dir.into());
        Self {
            dir,
            files: BTreeMap::new(),
            current: BTreeMap::new(),
            budgets: BTreeMap::new(),
            errors: Vec::new(),
            is_first: true,
        }
    }

    /// Looks at the directory at the time `now` (of any clock that does not go back). The first look believes all files at once.
    ///
    /// Returns the change, if there is one, and whether some file has not settled yet: then look again after [`SETTLE_MS`].
    pub fn look(&mut self, now: Duration) -> (Option<ManifestChange>, bool) {
        let mut dir_errors = Vec::new();
        match self.stamps(&mut dir_errors) {
            Ok(stamps) => {
                let known: BTreeSet<_> = self.files.keys().chain(stamps.keys()).cloned().collect();
                for file in known {
                    self.look_at_file(&file, stamps.get(&file).copied(), now);
                }
            }
            // The directory itself is away: that is no order to end all pods.
            Err(error) => dir_errors.push(error),
        }
        let is_first = std::mem::replace(&mut self.is_first, false);
        let is_settling = self.files.values().any(|state| state.unsettled.is_some());
        let change = self.change(dir_errors);
        let is_news = |change: &ManifestChange| {
            is_first
                || !change.added.is_empty()
                || !change.changed.is_empty()
                || !change.removed.is_empty()
                || !change.budgets.is_empty()
                || !change.budgets_removed.is_empty()
        };
        let errors_before = std::mem::replace(&mut self.errors, change.errors.clone());
        let news = (is_news(&change) || errors_before != change.errors).then_some(change);
        (news, is_settling)
    }

    fn look_at_file(&mut self, file: &Arc<Path>, stamp: Option<Stamp>, now: Duration) {
        let state = self.files.entry(Arc::clone(file)).or_default();
        if state.stamp == stamp && stamp.is_some() {
            state.unsettled = None;
            return;
        }
        let since = match state.unsettled {
            Some((seen, since)) if seen == stamp => since,
            _ => now,
        };
        if !self.is_first && now.saturating_sub(since) < Duration::from_millis(SETTLE_MS) {
            state.unsettled = Some((stamp, since));
            return;
        }
        let Some(stamp) = stamp else {
            self.files.remove(file);
            return;
        };
        state.unsettled = None;
        state.stamp = Some(stamp);
        let Parsed {
            pods,
            mut budgets,
            errors,
        } = read_all(file);
        state.errors = errors;
        if !state.errors.is_empty() {
            let known = std::mem::take(&mut state.budgets);
            let is_known = |old: &ManifestBudget| {
                budgets
                    .iter()
                    .any(|new| new.budget.key() == old.budget.key())
            };
            let kept: Vec<_> = known.into_iter().filter(|old| !is_known(old)).collect();
            budgets.extend(kept);
        }
        state.budgets = budgets;
        if state.errors.is_empty() && pods.is_empty() && !state.pods.is_empty() {
            state.errors.push(ManifestError::Emptied {
                file: Arc::clone(file),
            });
        }
        let kept = if state.errors.is_empty() {
            Vec::new()
        } else {
            std::mem::take(&mut state.pods)
        };
        let is_known = |old: &ManifestPod| pods.iter().any(|new| new.pod.uid() == old.pod.uid());
        let kept: Vec<_> = kept.into_iter().filter(|old| !is_known(old)).collect();
        state.pods = pods;
        state.pods.extend(kept);
    }

    fn stamps(
        &self,
        errors: &mut Vec<ManifestError>,
    ) -> Result<BTreeMap<Arc<Path>, Stamp>, ManifestError> {
        let unreadable = |error: std::io::Error| unreadable(&self.dir, &error);
        let mut stamps = BTreeMap::new();
        for entry in std::fs::read_dir(&self.dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if !is_manifest(&path) {
                continue;
            }
            // Follows symbolic links, as in a mounted ConfigMap. A file that is gone again is a missing file.
            let Ok(metadata) = std::fs::metadata(&path) else {
                continue;
            };
            if metadata.is_file() {
                let modified = (metadata.mtime(), metadata.mtime_nsec());
                stamps.insert(
                    Arc::from(path),
                    Stamp {
                        inode: metadata.ino(),
                        size: metadata.size(),
                        modified,
                    },
                );
            }
        }
        if stamps.len() > FILES_MAX {
            // Those that are in use stay; of the others the first by name.
            let over = stamps
                .keys()
                .filter(|file| !self.files.contains_key(*file))
                .rev()
                .take(stamps.len() - FILES_MAX);
            let over: Vec<_> = over.cloned().collect();
            let what = format!(
                "more than {FILES_MAX} manifest files; {} are not read; put several pods into one file",
                over.len()
            );
            errors.push(ManifestError::TooMuch {
                file: Arc::clone(&self.dir),
                what,
            });
            for file in over {
                stamps.remove(&file);
            }
        }
        Ok(stamps)
    }

    /// Merges the files' pods, and compares with what was there.
    fn change(&mut self, dir_errors: Vec<ManifestError>) -> ManifestChange {
        let mut change = ManifestChange {
            errors: dir_errors,
            ..ManifestChange::default()
        };
        let mut merged: BTreeMap<PodUid, ManifestPod> = BTreeMap::new();
        let mut not_used = 0_usize;
        // Whoever had the pod keeps it: these come first. Then by file name.
        let is_owner = |pod: &ManifestPod| {
            self.current
                .get(&pod.pod.uid())
                .is_some_and(|current| current.file == pod.file)
        };
        for want_owner in [true, false] {
            for pod in self
                .files
                .values()
                .flat_map(|state| &state.pods)
                .filter(|pod| is_owner(pod) == want_owner)
            {
                let uid = pod.pod.uid();
                if let Some(first) = merged.get(&uid) {
                    change.errors.push(ManifestError::Duplicate {
                        file: Arc::clone(&pod.file),
                        line: pod.line,
                        uid,
                        first_file: Arc::clone(&first.file),
                        first_line: first.line,
                    });
                } else if merged.len() == PODS_MAX {
                    not_used += 1;
                } else {
                    merged.insert(uid, pod.clone());
                }
            }
        }
        if not_used > 0 {
            let what = format!("more than {PODS_MAX} pods; {not_used} are not used; remove some");
            change.errors.push(ManifestError::TooMuch {
                file: Arc::clone(&self.dir),
                what,
            });
        }
        change.errors.extend(
            self.files
                .values()
                .flat_map(|state| state.errors.iter().cloned()),
        );
        for (uid, pod) in &merged {
            match self.current.get(uid) {
                None => change.added.push(pod.clone()),
                Some(before) if before.pod != pod.pod => change.changed.push(pod.clone()),
                Some(_) => {}
            }
        }
        change.removed = self
            .current
            .keys()
            .filter(|uid| !merged.contains_key(*uid))
            .cloned()
            .collect();
        self.current = merged;
        self.change_budgets(&mut change);
        change
    }

    /// The same for disruption budgets: the first by file name counts.
    fn change_budgets(&mut self, change: &mut ManifestChange) {
        let mut merged: BTreeMap<Arc<str>, ManifestBudget> = BTreeMap::new();
        let mut not_used = 0_usize;
        for candidate in self.files.values().flat_map(|state| &state.budgets) {
            let key = candidate.budget.key();
            if let Some(first) = merged.get(&key) {
                change.errors.push(ManifestError::Field {
                    file: Arc::clone(&candidate.file),
                    line: candidate.line,
                    field: "metadata.name".to_owned(),
                    what: format!(
                        "budget {key} is already defined at {}:{}, which is used",
                        first.file.shown(),
                        first.line
                    ),
                });
            } else if merged.len() == BUDGETS_MAX {
                not_used += 1;
            } else {
                merged.insert(key, candidate.clone());
            }
        }
        if not_used > 0 {
            let what = format!(
                "more than {BUDGETS_MAX} disruption budgets; {not_used} are not used; remove some"
            );
            change.errors.push(ManifestError::TooMuch {
                file: Arc::clone(&self.dir),
                what,
            });
        }
        for (key, budget) in &merged {
            let before = self.budgets.get(key);
            if before.is_none_or(|before| before.budget != budget.budget) {
                change.budgets.push(Arc::clone(&budget.budget));
            }
        }
        let gone = self.budgets.keys().filter(|key| !merged.contains_key(*key));
        change.budgets_removed = gone.cloned().collect();
        self.budgets = merged;
    }
}

/// Why the directory cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It cannot be read.
    #[error("{dir}: the manifests directory cannot be read: {source}; create it or name another one with --manifests", dir = dir.shown())]
    Directory {
        /// Which directory.
        dir: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The kernel gives no inotify instance, descriptor or thread.
    #[error(
        "the manifests directory cannot be watched: {what}: {source}; see fs.inotify.max_user_instances and max_user_watches"
    )]
    Kernel {
        /// Which call.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// A running watch. Dropping it ends its thread.
#[derive(Debug)]
pub struct ManifestWatch {
    stop: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ManifestWatch {
    /// Starts watching on an ordinary thread. `send` gets the first state, which may have no pods, and then each change; it may block (a
    /// bounded channel), and ends the watch by returning `false`.
    ///
    /// # Errors
    /// [`WatchError`] when the directory is not there or the kernel refuses the watch.
    pub fn spawn(
        dir: impl Into<PathBuf>,
        send: impl FnMut(ManifestChange) -> bool + Send + 'static,
    ) -> Result<Self, WatchError> {
        let dir = dir.into();
        let kernel = |what| move |source| WatchError::Kernel { what, source };
        let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .map_err(kernel("inotify_init1"))?;
        add_watch(&events, &dir).map_err(|source| WatchError::Directory {
            dir: dir.clone(),
            source,
        })?;
        let stop = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(kernel("eventfd"))?,
        );
        let stop_of_thread = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("manifests".to_owned())
            .spawn(move || watch(&dir, &events, &stop_of_thread, send))
            .map_err(|error| WatchError::Kernel {
                what: "clone",
                source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
            })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for ManifestWatch {
    fn drop(&mut self) {
        rustix::io::write(&*self.stop, &1_u64.to_ne_bytes()).ok();
        // Not joined: the thread may be waiting in `send` for a loop that has ended.
        drop(self.thread.take());
    }
}

fn add_watch(events: &OwnedFd, dir: &Path) -> Result<i32, Errno> {
    use inotify::WatchFlags;
    let wanted = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ATTRIB
        | WatchFlags::ONLYDIR;
    inotify::add_watch(events, dir, wanted)
}

fn watch(
    dir: &Path,
    events: &OwnedFd,
    stop: &OwnedFd,
    mut send: impl FnMut(ManifestChange) -> bool,
) {
    let start = Instant::now();
    let mut manifests = ManifestDir::new(dir);
    let mut is_watched = true;
    loop {
        let (change, is_settling) = manifests.look(start.elapsed());
        if change.is_some_and(|change| !send(change)) {
            return;
        }
        let timeout_ms = match (is_settling, is_watched) {
            (true, _) => Some(SETTLE_MS),
            (false, false) => Some(RETRY_MS),
            (false, true) => None,
        };
        let timeout = timeout_ms.map(|ms| Timespec {
            tv_sec: (ms / 1000).cast_signed(),
            tv_nsec: (ms % 1000 * 1_000_000).cast_signed(),
        });
        let mut fds = [
            PollFd::new(events, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(RETRY_MS)), // ENOMEM: try again, slowly
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        // A directory that was moved away or deleted, and one that came back under its name, look the same: watch the name anew.
        let is_gone = drain(events);
        if is_gone || !is_watched {
            is_watched = add_watch(events, dir).is_ok();
        }
    }
}

/// Takes all events; true when the directory itself went away.
fn drain(events: &OwnedFd) -> bool {
    use inotify::ReadFlags;
    let mut is_gone = false;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(events.as_fd(), &mut buffer);
    while let Ok(event) = reader.next() {
        is_gone |= event.events().intersects(
            ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::IGNORED | ReadFlags::UNMOUNT,
        );
    }
    is_gone
}

#[cfg(test)]
mod tests;
