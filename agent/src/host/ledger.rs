//! The ledger of changed kernel settings: written before each change, undone in reverse on exit, and after `kill -9` at
//! the next start.
//!
//! **Problem.** An agent that dies must not leave a node with its limits, cgroups and scores in place; one that
//! restores blindly would overwrite what an administrator or the kubelet has set meanwhile. **Approach.** Each change
//! is one JSON line, appended *before* the change is made. So a change without a line does not exist, and a line
//! without its change (the agent died in between, or the kernel refused) is seen from the file still having the old
//! value. A value is restored only while the file still has the one that we wrote; else it is left alone, and said. A
//! torn last line is a change that never happened. **Terms.** *restored*: put back. *left*: somebody else changed it,
//! or it is gone. *busy*: cannot be undone yet (a cgroup with processes); it stays in the ledger for the next time.
//!
//! The ledger lives in `/run`, which a reboot clears together with the settings; where it is on a disk instead, lines
//! of another boot are dropped.

mod ahead;
mod fold;
mod format;
mod reliance;
mod reserve;
mod step;
mod undo;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use self::format::{read_lines, whole_lines};
use super::HostRoot;
use super::cgroup::{CgroupPath, Controller, Hierarchy, Version};
use super::file::{FileError, errno_of, read_text, write_text};
use super::flock::{FlockError, Holders, flock_within};
use super::processes::start_ticks;
use super::state_dir;

use crate::host::shown::Show as _;

/// The ledger of the agent itself, in the state directory.
pub const AGENT_LEDGER: &str = "knobs.jsonl";
/// The ledger of `plimsoll exec`: cgroups of pods and the controllers enabled for them. Undone as far as the pods have
/// ended.
pub const PODS_LEDGER: &str = "pods.jsonl";
/// Bytes of a ledger that are read; beyond, the file is not one of ours. An agent writes about ten lines, each `exec`
/// as many.
pub const LEDGER_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// A longer ledger is read for what is gone before it grows, bytes: some thousand lines.
const LONG_BYTES: u64 = 1024 * 1024;
/// After this many lines of one process the ledger is folded.
const FOLD_AFTER: u32 = 256;
/// How often a ledger may be replaced by another process while we wait for its lock.
const REPLACED_MAX: u32 = 100;
/// How long a ledger that another process holds is waited for, where waiting is allowed: `plimsoll exec` holds it from
/// a line to its change.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Why a setting was not changed. Nothing is half applied: either the line and the change are both there, or neither
/// counts.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    /// The ledger cannot be opened, read or appended to, so nothing was changed.
    #[error("{path}: the ledger of changed settings cannot be written, so nothing was changed: {source}; free space there or choose another --state-dir", path = path.shown())]
    Ledger {
        /// The ledger.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another process holds the ledger's lock, so nothing was changed.
    #[error("{path}: the ledger of changed settings is locked by {holders}, so nothing was changed: if it is a stopped plimsoll exec, continue it (kill -CONT) or end it", path = path.shown())]
    Locked {
        /// The ledger.
        path: PathBuf,
        /// Who holds it.
        holders: Holders,
    },
    /// The setting itself cannot be read or written.
    #[error(transparent)]
    Knob(#[from] FileError),
    /// A v2 controller cannot be enabled for the cgroups below.
    #[error("{cgroup}: controller {controller} cannot be enabled for the cgroups below it: {source}{hint}", cgroup = cgroup.shown(), hint = enable_hint(*source))]
    Enable {
        /// The cgroup's directory.
        cgroup: PathBuf,
        /// Which controller.
        controller: Controller,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// A cgroup directory cannot be made.
    #[error("{path}: the cgroup cannot be created: {source}{hint}", path = path.shown(), hint = create_hint(*source))]
    Create {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

fn create_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ROFS => "; the cgroup file system is mounted read-only here",
        Errno::AGAIN => "; cgroup.max.descendants or cgroup.max.depth above it is reached",
        Errno::ACCESS | Errno::PERM => "; run as root",
        _ => "",
    }
}

impl KnobError {
    /// Whether the cgroup or file is gone.
    pub fn is_vanished(&self) -> bool {
        match self {
            Self::Knob(error) => error.is_vanished(),
            Self::Create { source, .. } => *source == Errno::NOENT,
            Self::Ledger { .. } | Self::Locked { .. } | Self::Enable { .. } => false,
        }
    }
}

fn enable_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::BUSY => {
            "; it contains processes (cgroup v2 allows them only in leaves): move them, or choose another --cgroup-root"
        }
        Errno::NOENT => {
            "; the cgroup above does not pass it on: choose another --cgroup-root, or have it delegated"
        }
        Errno::OPNOTSUPP => "; it is a threaded cgroup: choose another --cgroup-root",
        _ => "",
    }
}

/// One change, with what it takes to undo it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// A file got a new value.
    Write {
        /// The file.
        path: PathBuf,
        /// Its text before, without the line end.
        old: String,
        /// What was written.
        new: String,
        /// For a file of a process: which one, so that a reused pid is not taken for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<ProcessId>,
    },
    /// A controller was enabled in a v2 cgroup's `cgroup.subtree_control`.
    Enable {
        /// The cgroup's directory.
        cgroup: PathBuf,
        /// The controller's name.
        controller: String,
    },
    /// A cgroup was created.
    Create {
        /// Its directory.
        cgroup: PathBuf,
    },
    /// A process was moved.
    Move {
        /// Which process.
        process: ProcessId,
        /// The directory of the cgroup in which it was.
        from: PathBuf,
        /// The directory of the cgroup in which it is.
        to: PathBuf,
    },
}

/// A process, told apart from a later one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// Its pid.
    pub pid: i32,
    /// When it was started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessId {
    /// This process.
    ///
    /// # Errors
    /// [`FileError::Vanished`] without a readable procfs.
    pub fn current(host: &HostRoot) -> Result<Self, FileError> {
        let pid = rustix::process::getpid();
        let ticks = start_ticks(host, pid);
        let path = || Arc::from(host.procfs("self/stat").as_path());
        let start_ticks = ticks.ok_or_else(|| FileError::Vanished { path: path() })?;
        Ok(Self {
            pid: pid.as_raw_nonzero().get(),
            start_ticks,
        })
    }

    fn is_running(self, host: &HostRoot) -> bool {
        Pid::from_raw(self.pid).and_then(|pid| start_ticks(host, pid)) == Some(self.start_ticks)
    }
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    boot_id: String,
    change: Change,
}

/// What [`Ledger::restore`] did with one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// The change.
    pub change: Change,
    /// What became of it.
    pub outcome: UndoOutcome,
}

/// What became of one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoOutcome {
    /// It is as it was before.
    Restored,
    /// It had never been made, or is undone or gone already.
    NothingToDo,
    /// It was left alone, for this reason.
    Left(String),
    /// It cannot be undone yet, for this reason, and stays in the ledger.
    Busy(String),
}

/// All that [`Ledger::restore`] did, newest change first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restoration {
    /// Each change of this boot.
    pub changes: Vec<Undone>,
    /// Lines that are no changes: numbers from 1. A torn last line is not among them.
    pub unreadable_lines: Vec<usize>,
}

impl Restoration {
    /// How many were put back.
    pub fn restored(&self) -> usize {
        self.changes
            .iter()
            .filter(|undone| undone.outcome == UndoOutcome::Restored)
            .count()
    }

    /// Why the first change that is busy is.
    pub fn busy(&self) -> Option<&str> {
        self.changes
            .iter()
            .find_map(|undone| match &undone.outcome {
                UndoOutcome::Busy(why) => Some(why.as_str()),
                _ => None,
            })
    }

    /// One line for each change that was left alone or is busy, and for each line that could not be read.
    pub fn remarks(&self) -> Vec<String> {
        let of_change = |undone: &Undone| match &undone.outcome {
            UndoOutcome::Left(why) => Some(format!(
                "{}: left as it is: {why}",
                undone.change.subject().shown()
            )),
            UndoOutcome::Busy(why) => Some(format!(
                "{}: not undone yet: {why}",
                undone.change.subject().shown()
            )),
            UndoOutcome::Restored | UndoOutcome::NothingToDo => None,
        };
        let of_line =
            |line: &usize| format!("line {line} of the ledger is not a change and was skipped");
        self.changes
            .iter()
            .filter_map(of_change)
            .chain(self.unreadable_lines.iter().map(of_line))
            .collect()
    }
}

/// An open ledger. Changes to settings are its methods, so that none can be made without a line.
///
/// Several processes may append to one file (`plimsoll exec`): each holds its lock from the line until the change is
/// made.
#[derive(Debug)]
pub struct Ledger {
    host: HostRoot,
    path: PathBuf,
    file: File,
    boot_id: String,
    /// Lines appended since they were last folded.
    appended: u32,
    /// Its length after what was gone had last been taken out, bytes.
    shortened_to: u64,
    /// How long the lock is waited for.
    patience: Duration,
    /// Why nothing can be written to it.
    closed: Option<String>,
    reserve: reserve::Reserve,
}

impl Ledger {
    /// Opens `path`, creating it and its directory where they do not exist. Changes nothing else: see
    /// [`Ledger::restore`]. A ledger that another process holds is waited for, for ten seconds: see
    /// [`Ledger::without_waiting`].
    ///
    /// # Errors
    /// [`KnobError::Ledger`].
    pub fn open(host: &HostRoot, path: impl Into<PathBuf>) -> Result<Self, KnobError> {
        let path = path.into();
        let open = || {
            if let Some(dir) = path.parent() {
                state_dir::make(dir)?;
            }
            state_dir::open_private(&path)
        };
        let file = open().map_err(|source| KnobError::Ledger {
            path: path.clone(),
            source,
        })?;
        // A fake host has none, and all lines count as this boot's. One that is there and cannot be read would make all
        // lines those of another boot.
        let boot_id = match read_text(host.procfs("sys/kernel/random/boot_id")) {
            Ok(text) => text.trim().to_owned(),
            Err(error) if error.is_vanished() => String::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            host: host.clone(),
            path,
            file,
            boot_id,
            appended: 0,
            shortened_to: 0,
            patience: LOCK_PATIENCE,
            closed: None,
            reserve: reserve::Reserve::default(),
        })
    }

    /// A ledger in a place that takes nothing, for this reason: each change, and each restore, is refused with it.
    ///
    /// # Errors
    /// [`KnobError::Ledger`] without `/dev/null`.
    pub fn closed(
        host: &HostRoot,
        path: impl Into<PathBuf>,
        why: String,
    ) -> Result<Self, KnobError> {
        let path = path.into();
        let file = File::open("/dev/null").map_err(|source| KnobError::Ledger {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            host: host.clone(),
            path,
            file,
            boot_id: String::new(),
            appended: 0,
            shortened_to: 0,
            patience: Duration::ZERO,
            closed: Some(why),
            reserve: reserve::Reserve::default(),
        })
    }

    /// Whether every change is refused: see [`Ledger::closed`].
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// For the agent's loop: a change that finds the ledger locked by another process fails at once
    /// ([`KnobError::Locked`]).
    #[must_use]
    pub fn without_waiting(mut self) -> Self {
        self.patience = Duration::ZERO;
        self
    }

    /// The ledger's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `new` to a control file; no line and no write when it has that value already.
    ///
    /// # Errors
    /// [`KnobError`]. When the kernel refuses the value, the old one is still there and the line does no harm.
    pub fn write(&mut self, path: &Path, new: &str) -> Result<(), KnobError> {
        self.write_knob(path, new, None)
    }

    /// As [`Ledger::write`], for a file of this process under `/proc`: after its end there is nothing to restore.
    ///
    /// # Errors
    /// As for [`Ledger::write`].
    pub fn write_of_self(&mut self, path: &Path, new: &str) -> Result<(), KnobError> {
        let process = ProcessId::current(&self.host)?;
        self.write_knob(path, new, Some(process))
    }

    fn write_knob(
        &mut self,
        path: &Path,
        new: &str,
        process: Option<ProcessId>,
    ) -> Result<(), KnobError> {
        let old = read_text(path)?.trim_end().to_owned();
        if old == new {
            return Ok(());
        }
        let change = Change::Write {
            path: path.to_owned(),
            old,
            new: new.to_owned(),
            process,
        };
        self.change(change, || write_text(path, new).map_err(KnobError::from))
    }

    /// Creates a cgroup and those above it that are missing. On v2, `controllers` are enabled for it in each cgroup
    /// above, the hierarchy's root included; those that are enabled already are not touched.
    ///
    /// # Errors
    /// [`KnobError`]; a controller that cannot be passed on is [`KnobError::Enable`].
    pub fn create_cgroup(
        &mut self,
        hierarchy: &Hierarchy,
        cgroup: &CgroupPath,
        controllers: &[Controller],
    ) -> Result<(), KnobError> {
        let mut above = hierarchy.mount.clone();
        for path in cgroup.lineage() {
            for controller in controllers
                .iter()
                .filter(|_| hierarchy.version == Version::V2)
            {
                self.enable(&above, *controller)?;
            }
            let dir = hierarchy.dir(&path);
            if !dir.is_dir() {
                let make = || match std::fs::create_dir(&dir) {
                    // Somebody was faster; then it is not ours to remove, and rmdir of a cgroup in use fails anyway.
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                    Err(error) => Err(KnobError::Create {
                        path: dir.clone(),
                        source: errno_of(&error),
                    }),
                    Ok(()) => Ok(()),
                };
                self.change(
                    Change::Create {
                        cgroup: dir.clone(),
                    },
                    make,
                )?;
            }
            above = dir;
        }
        Ok(())
    }

    /// Enables a controller for the children of a v2 cgroup.
    ///
    /// # Errors
    /// [`KnobError::Enable`] with ENOENT when the cgroup itself does not have it, EBUSY when it has processes of its
    /// own.
    pub fn enable(&mut self, cgroup: &Path, controller: Controller) -> Result<(), KnobError> {
        let control = cgroup.join("cgroup.subtree_control");
        if is_enabled(&control, controller.name())? {
            return Ok(());
        }
        let change = Change::Enable {
            cgroup: cgroup.to_owned(),
            controller: controller.name().to_owned(),
        };
        self.change(change, || {
            write_text(&control, &format!("+{controller}")).map_err(|error| match error {
                FileError::Unwritable { source, .. } => KnobError::Enable {
                    cgroup: cgroup.to_owned(),
                    controller,
                    source,
                },
                // Writing a controller that is not in cgroup.controllers gives ENOENT, though the file is there.
                FileError::Vanished { .. } if control.exists() => KnobError::Enable {
                    cgroup: cgroup.to_owned(),
                    controller,
                    source: Errno::NOENT,
                },
                other => KnobError::Knob(other),
            })
        })
    }

    /// Moves this process from the cgroup directory `from` to `to`.
    ///
    /// # Errors
    /// [`KnobError`].
    pub fn move_self(&mut self, from: &Path, to: &Path) -> Result<(), KnobError> {
        let process = ProcessId::current(&self.host)?;
        let change = Change::Move {
            process,
            from: from.to_owned(),
            to: to.to_owned(),
        };
        // 0 means the writer.
        self.change(change, || {
            write_text(to.join("cgroup.procs"), "0").map_err(KnobError::from)
        })
    }

    /// Records the change, then makes it, under the file's lock: a restore by another process sees both or neither.
    fn change(
        &mut self,
        change: Change,
        make: impl FnOnce() -> Result<(), KnobError>,
    ) -> Result<(), KnobError> {
        let mut lock = self.lock()?;
        let is_replaced = self.shorten_if_long();
        if is_replaced.map_err(|source| self.failed(source))? {
            // The lock was that of the file before. First: it may be the same open file.
            drop(lock);
            lock = self.lock()?;
        }
        self.append(&change)
            .and_then(|()| self.fold_if_long())
            .map_err(|source| self.failed(source))?;
        step::reached();
        make()?;
        step::reached();
        drop(lock);
        Ok(())
    }

    /// Cgroups of pods that end are removed by others, and leave their lines: with a year of pods the ledger could not
    /// be read any more. Before a line is appended, whose cgroup is not there yet. Returns whether there is a new file,
    /// which is not locked.
    fn shorten_if_long(&mut self) -> std::io::Result<bool> {
        let bytes = self.file.metadata()?.len();
        if bytes <= LONG_BYTES.max(self.shortened_to.saturating_mul(2)) {
            return Ok(false);
        }
        let (mut lines, _) = read_lines(&mut self.file)?;
        lines.retain(|line| !line.change.is_gone());
        match self.replace(&fold::fold(lines)) {
            // The line may fit all the same: only the new file did not, and the old one is in its place.
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                self.shortened_to = bytes;
                return Ok(false);
            }
            replaced => replaced?,
        }
        self.shortened_to = self.file.metadata()?.len();
        Ok(true)
    }

    /// A file that is written again and again, such as the weight of a tier, needs one line: its first value and its
    /// last.
    fn fold_if_long(&mut self) -> std::io::Result<()> {
        self.appended += 1;
        if self.appended < FOLD_AFTER {
            return Ok(());
        }
        self.appended = 0;
        let (lines, _) = read_lines(&mut self.file)?;
        let folded = fold::fold(lines);
        self.replace(&folded)
    }

    /// Locks the file that is at the path now: a restore by another process replaces it.
    fn lock(&mut self) -> Result<FileLock, KnobError> {
        if let Some(why) = &self.closed {
            return Err(self.failed(std::io::Error::other(why.clone())));
        }
        let operation = FlockOperation::NonBlockingLockExclusive;
        for _ in 0..REPLACED_MAX {
            let file = self.file.try_clone().map_err(|error| self.failed(error))?;
            match flock_within(&file, operation, self.patience) {
                Ok(()) => {}
                Err(FlockError::Io(error)) => return Err(self.failed(error)),
                Err(FlockError::Held(holders)) => {
                    return Err(KnobError::Locked {
                        path: self.path.clone(),
                        holders,
                    });
                }
            }
            let lock = FileLock(file);
            let is_there = state_dir::is_at(&self.file, &self.path);
            if is_there.map_err(|error| self.failed(error))? {
                return Ok(lock);
            }
            drop(lock);
            let file = state_dir::open_private(&self.path);
            self.file = file.map_err(|error| self.failed(error))?;
            self.reserve.until = 0;
        }
        Err(self.failed(std::io::Error::other(
            "it is replaced again and again by another process",
        )))
    }

    fn failed(&self, source: std::io::Error) -> KnobError {
        KnobError::Ledger {
            path: self.path.clone(),
            source,
        }
    }

    fn append(&mut self, change: &Change) -> std::io::Result<()> {
        let line = Line {
            boot_id: self.boot_id.clone(),
            change: change.clone(),
        };
        let mut text = serde_json::to_string(&line)?;
        text.push('\n');
        let end = self.file.metadata()?.len();
        let start = whole_lines(&self.file, end)?;
        if start < end {
            step::reached();
            self.file.set_len(start)?; // a torn line of a process that was killed
            self.reserve.until = 0;
        }
        let written = step::write_all(&mut self.file, text.as_bytes()).inspect_err(|_| {
            // Full disk: take the torn part back. If that fails too, the next reader skips it as torn.
            self.file.set_len(start).ok();
            self.reserve.until = 0;
        });
        self.keep_reserve();
        written
    }

    /// Undoes all changes, newest first, and leaves in the ledger only those that are busy.
    ///
    /// # Errors
    /// [`KnobError::Ledger`] when the ledger cannot be read or rewritten. What could not be undone is no error: see
    /// [`UndoOutcome`].
    pub fn restore(&mut self) -> Result<Restoration, KnobError> {
        self.restore_those(|_| true)
    }

    /// As [`Ledger::restore`], for the changes of one file; the others stay.
    ///
    /// # Errors
    /// As for [`Ledger::restore`].
    pub fn restore_file(&mut self, path: &Path) -> Result<Restoration, KnobError> {
        self.restore_those(|change| change.subject() == path)
    }

    pub(crate) fn restore_those(
        &mut self,
        is_wanted: impl Fn(&Change) -> bool,
    ) -> Result<Restoration, KnobError> {
        let _lock = self.lock()?;
        let path = self.path.clone();
        let wrap = |source| KnobError::Ledger {
            path: path.clone(),
            source,
        };
        let (lines, unreadable_lines) = read_lines(&mut self.file).map_err(wrap)?;
        let mut restoration = Restoration {
            changes: Vec::new(),
            unreadable_lines,
        };
        let lines: Vec<Line> = lines
            .into_iter()
            .filter(|line| line.boot_id == self.boot_id)
            .collect();
        let mut busy = Vec::new();
        // Files whose newest change stays: those before it come after it.
        let mut waiting: BTreeMap<&Path, String> = BTreeMap::new();
        for (index, line) in lines.iter().enumerate().rev() {
            if !is_wanted(&line.change) {
                busy.push(line.clone());
                continue;
            }
            let subject = match &line.change {
                Change::Write { path, .. } => Some(path.as_path()),
                _ => None,
            };
            let waits = subject.and_then(|path| waiting.get(path).cloned());
            let outcome = match waits.or_else(|| undo::below_in_use(&line.change, &lines)) {
                Some(why) => UndoOutcome::Busy(why),
                None => {
                    step::reached();
                    undo::undo(&self.host, &line.change, &lines[..index])
                }
            };
            if let UndoOutcome::Busy(why) = &outcome {
                busy.push(line.clone());
                if let Some(path) = subject {
                    waiting.insert(path, why.clone());
                }
            }
            restoration.changes.push(Undone {
                change: line.change.clone(),
                outcome,
            });
        }
        busy.reverse();
        self.replace(&busy).map_err(wrap)?;
        Ok(restoration)
    }

    /// All changes of this boot that are not undone, oldest first. Changes nothing.
    ///
    /// # Errors
    /// [`KnobError::Ledger`] when the ledger cannot be read.
    pub fn changes(&mut self) -> Result<Vec<Change>, KnobError> {
        let _lock = self.lock()?;
        let (lines, _) = read_lines(&mut self.file).map_err(|source| KnobError::Ledger {
            path: self.path.clone(),
            source,
        })?;
        Ok(lines
            .into_iter()
            .filter(|line| line.boot_id == self.boot_id)
            .map(|line| line.change)
            .collect())
    }

    /// Takes out the lines of files and cgroups that are gone, so that a ledger does not grow with the pods of a node's
    /// life. Returns how many.
    ///
    /// # Errors
    /// [`KnobError::Ledger`] when the ledger cannot be read or rewritten; then it is as it was.
    pub fn forget_vanished(&mut self) -> Result<usize, KnobError> {
        self.forget_those(Change::is_gone)
    }

    /// Takes out lines without undoing anything: what they are about is another program's from now on.
    pub(crate) fn forget_those(
        &mut self,
        is_forgotten: impl Fn(&Change) -> bool,
    ) -> Result<usize, KnobError> {
        let _lock = self.lock()?;
        let path = self.path.clone();
        let wrap = |source| KnobError::Ledger {
            path: path.clone(),
            source,
        };
        let (mut lines, _) = read_lines(&mut self.file).map_err(wrap)?;
        let before = lines.len();
        lines.retain(|line| !is_forgotten(&line.change));
        let forgotten = before - lines.len();
        if forgotten > 0 {
            self.replace(&lines).map_err(wrap)?;
        }
        Ok(forgotten)
    }

    /// Makes a new file with these lines and renames it, so that dying in between leaves the old ledger: undoing twice
    /// does no harm.
    fn replace(&mut self, lines: &[Line]) -> std::io::Result<()> {
        step::reached();
        self.reserve.until = 0;
        if lines.is_empty() {
            self.file.set_len(0)?;
            self.keep_reserve();
            return Ok(());
        }
        let mut text = String::new();
        for line in lines {
            text += &serde_json::to_string(line)?;
            text.push('\n');
        }
        let new = state_dir::new_beside(&self.path);
        let mut file = state_dir::create_new(&new)?;
        step::reached();
        step::write_all(&mut file, text.as_bytes())?;
        step::reached();
        std::fs::rename(&new, &self.path)?;
        step::reached();
        self.file = state_dir::open_private(&self.path)?;
        self.keep_reserve();
        Ok(())
    }
}

/// Holds the lock of the open file; `flock` belongs to the open file description, so it is released explicitly.
struct FileLock(File);

impl Drop for FileLock {
    fn drop(&mut self) {
        rustix::fs::flock(self.0.as_fd(), FlockOperation::Unlock).ok();
    }
}

impl Change {
    /// Whether there is nothing to undo any more. Only where the kernel itself says that the file or the cgroup is not
    /// there: an unreadable one may be back.
    fn is_gone(&self) -> bool {
        !matches!(self, Self::Move { .. }) && !self.subject().try_exists().unwrap_or(true)
    }

    /// The file or cgroup that it is about.
    pub fn subject(&self) -> &Path {
        match self {
            Self::Write { path, .. } => path,
            Self::Enable { cgroup, .. } | Self::Create { cgroup } => cgroup,
            Self::Move { to, .. } => to,
        }
    }
}

fn is_enabled(subtree_control: &Path, controller: &str) -> Result<bool, FileError> {
    Ok(read_text(subtree_control)?
        .split_ascii_whitespace()
        .any(|name| name == controller))
}

#[cfg(test)]
mod tests;
