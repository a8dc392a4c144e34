//! Pods from a directory of ordinary Kubernetes Pod manifests: where pods come from when there is no cluster.
//!
//! **Problem.** Manifests are edited by hand while their pods run. A file that is half written, or wrong for a moment,
//! must not end a pod; a file that is removed must. **Approach.** inotify says *that* something changed; then the whole
//! directory is looked at, which is a few `stat` calls. A file is read once its size and time have stayed the same for
//! [`SETTLE_MS`], and a missing file counts as removed after the same time (editors replace files by renaming). While a
//! file has any error, the pods that it had before stay, and its errors are reported until it is put right or removed.
//! All of it happens on an ordinary thread; the agent's loop gets finished [`ManifestChange`]s. **Which files.**
//! `*.yaml`, `*.yml` and `*.json` directly in the directory, not starting with a dot (kubelet,
//! `pkg/kubelet/config/file.go`, takes all that do not start with a dot, editors' backups included).
#![forbid(unsafe_code)]

pub mod admission;
mod budgets;
pub(crate) mod dry_run;
mod files;
mod gather;
mod limits;
mod metadata;
pub(crate) mod objects;
mod pods;
mod schema;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::kube::admission::standing::{QuotaUse, RefusedPod};
use plimsoll_core::kube::budget::DisruptionBudget;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use rustix::io::Errno;

use crate::host::panics;
use crate::host::shown::Show as _;
use crate::input::yaml::{Limits, SyntaxError};
use admission::{Admission, AdmissionContext, Decided, Wanted};
use limits::ManifestLimit;
use pods::{Parsed, parse};

pub use budgets::ManifestBudget;
pub use files::STDIN;
pub(crate) use files::{read_or_stdin, stdin_once};
pub use gather::gather;
pub use watch::{LeftPods, ManifestWatch, WatchError};

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

/// LimitRanges, quotas and priority classes of all files, at most.
pub const LIMITS_MAX: usize = 2048;

/// How long a file must stay the same before it is believed.
pub const SETTLE_MS: u64 = 100;

/// A pod and where its manifest stands.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestPod {
    /// The pod, with the API server's defaults.
    pub pod: Arc<Pod>,
    /// The document, without its status.
    pub document: Arc<serde_json::Value>,
    /// Its file.
    pub file: Arc<Path>,
    /// The line in the file at which its document starts.
    pub line: u64,
}

/// The field before what is wrong with it; nothing where that is the whole document.
fn at(field: &str) -> String {
    if field.is_empty() {
        String::new()
    } else {
        format!("{field}: ")
    }
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
    #[error("{file}:{line}: {at}{what}", file = file.shown(), at = at(field))]
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
    /// The API server would not take a change of a pod that is admitted.
    #[error("{file}:{line}: {message}; the pod stays as it was admitted: remove its manifest and add it again when it has left", file = file.shown())]
    NotChanged {
        /// Which file.
        file: Arc<Path>,
        /// The line at which the pod's document starts.
        line: u64,
        /// What the API server would say.
        message: String,
    },
    /// A file that had documents has none any more.
    #[error("{file}: has no documents any more; what it had stays until the file is removed", file = file.shown())]
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

impl ManifestError {
    /// What the parser says of a file.
    pub(crate) fn syntax(file: &Arc<Path>, error: SyntaxError) -> Self {
        let SyntaxError { line, what } = error;
        let file = Arc::clone(file);
        Self::Syntax { file, line, what }
    }
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
    /// All pods that are refused now, in the order in which they are asked about.
    pub refused: Vec<RefusedPod>,
    /// All quotas that are in force now.
    pub quotas: Vec<QuotaUse>,
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
        Ok(text) => panics::guard(|| parse(&file, &text, bounds)).unwrap_or_else(|error| Parsed {
            errors: vec![ManifestError::Syntax {
                file: Arc::clone(&file),
                line: 1,
                what: error.to_string(),
            }],
            ..Parsed::default()
        }),
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
    limits: Vec<ManifestLimit>,
    errors: Vec<ManifestError>,
}

impl FileState {
    /// Whether it has no documents that count.
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.limits.is_empty() && self.budgets.is_empty()
    }
}

/// A manifests directory and what was found in it. Knows no clock: the caller gives the time.
#[derive(Debug)]
pub struct ManifestDir {
    dir: Arc<Path>,
    files: BTreeMap<Arc<Path>, FileState>,
    current: BTreeMap<PodUid, ManifestPod>,
    budgets: BTreeMap<Arc<str>, ManifestBudget>,
    admission: Admission,
    /// As of the newest change.
    refused: Vec<RefusedPod>,
    quotas: Vec<QuotaUse>,
    admission_errors: Vec<ManifestError>,
    errors: Vec<ManifestError>,
    is_first: bool,
    /// Something has changed since the newest decision, or it could not be written down.
    is_undecided: bool,
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
            admission: Admission::default(),
            refused: Vec::new(),
            quotas: Vec::new(),
            admission_errors: Vec::new(),
            errors: Vec::new(),
            is_first: true,
            is_undecided: true,
        }
    }

    /// Takes up what an earlier agent has admitted, and keeps what this one admits.
    #[must_use]
    pub fn with_admission(mut self, ground: AdmissionContext) -> Self {
        self.admission = Admission::on(ground);
        self
    }

    /// A pod that was removed has left. The next look admits those that have waited for its room.
    pub fn note_left(&mut self, uid: &PodUid) {
        self.is_undecided |= self.admission.note_left(uid);
    }

    /// Whether the newest decision could not be written down: then look again soon.
    pub fn is_undecided(&self) -> bool {
        self.is_undecided
    }

    /// Looks at the directory at the time `now` (of any clock that does not go back). The first look believes all files
    /// at once.
    ///
    /// Returns the change, if there is one, and whether some file has not settled yet: then look again after
    /// [`SETTLE_MS`].
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
        let refused_before = std::mem::replace(&mut self.refused, change.refused.clone());
        let quotas_before = std::mem::replace(&mut self.quotas, change.quotas.clone());
        let errors_before = std::mem::replace(&mut self.errors, change.errors.clone());
        let is_other = refused_before != change.refused
            || quotas_before != change.quotas
            || errors_before != change.errors;
        let news = (is_news(&change) || is_other).then_some(change);
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
        self.is_undecided = true;
        let Some(stamp) = stamp else {
            self.files.remove(file);
            return;
        };
        state.unsettled = None;
        state.stamp = Some(stamp);
        let Parsed {
            pods,
            mut budgets,
            mut limits,
            errors,
        } = read_all(file);
        state.errors = errors;
        // An editor may have cut it off. One that still has a document was not.
        let is_empty = pods.is_empty() && limits.is_empty() && budgets.is_empty();
        let had_something = !state.is_empty();
        if state.errors.is_empty() && is_empty && had_something {
            state.errors.push(ManifestError::Emptied {
                file: Arc::clone(file),
            });
        }
        if !state.errors.is_empty() {
            let known = std::mem::take(&mut state.budgets);
            let is_known = |old: &ManifestBudget| {
                budgets
                    .iter()
                    .any(|new| new.budget.key() == old.budget.key())
            };
            let kept: Vec<_> = known.into_iter().filter(|old| !is_known(old)).collect();
            budgets.extend(kept);
            let known = std::mem::take(&mut state.limits);
            limits::keep_known(&mut limits, known);
        }
        state.budgets = budgets;
        state.limits = limits;
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

    /// What admission makes of the wanted pods; what it made of them before, if nothing has changed.
    fn decide(&mut self, wanted: &BTreeMap<PodUid, ManifestPod>, is_complete: bool) -> Decided {
        if !self.is_undecided {
            return Decided {
                pods: self.current.clone(),
                refused: self.refused.clone(),
                quotas: self.quotas.clone(),
                errors: self.admission_errors.clone(),
                ..Decided::default()
            };
        }
        let files = self.files.iter();
        let limits = self.files.values().flat_map(|state| &state.limits);
        let decided = self.admission.decide(&Wanted {
            pods: wanted,
            limits: limits.take(LIMITS_MAX).collect(),
            files: files
                .map(|(file, state)| (&**file, !state.errors.is_empty() || state.is_empty()))
                .collect(),
            is_complete,
            has_errors: self.files.values().any(|state| !state.errors.is_empty()),
        });
        self.is_undecided = decided.is_passing;
        self.admission_errors.clone_from(&decided.errors);
        decided
    }

    /// Merges the files' pods, has them admitted, and compares with what was there.
    fn change(&mut self, dir_errors: Vec<ManifestError>) -> ManifestChange {
        let is_dir_read = dir_errors.is_empty();
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
        let limits: usize = self.files.values().map(|state| state.limits.len()).sum();
        if limits > LIMITS_MAX {
            let what = format!(
                "more than {LIMITS_MAX} LimitRanges, quotas and priority classes; {} are not used; remove some",
                limits - LIMITS_MAX
            );
            change.errors.push(ManifestError::TooMuch {
                file: Arc::clone(&self.dir),
                what,
            });
        }
        let is_complete = not_used == 0 && is_dir_read;
        let decided = self.decide(&merged, is_complete);
        let merged = decided.pods;
        change.errors.extend(decided.errors);
        change.refused = decided.refused;
        change.quotas = decided.quotas;
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

#[cfg(test)]
mod tests;
