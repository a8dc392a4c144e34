//! `plimsoll uninstall`: leaves the machine as it was before the first `plimsoll run`.
//!
//! Problem: an agent that was killed leaves settings, cgroups, pinned BPF programs and files behind, and there may be
//! no next one to put them right. Approach: take the agent's own lock, so that none runs and none starts; then do what
//! an ending agent does, and remove what it keeps for the next one. Whatever cannot be undone yet is named with its
//! reason and stays in its ledger, so that the same command finishes the work later. No process is ended and no file
//! removed that is not known to be the agent's own: pods that run go on running, and a journal stays.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;

use crate::act::placement::checkpoint::{
    CHECKPOINT, LOCK as PLACEMENT_LOCK, TURN as PLACEMENT_TURN,
};
use crate::act::placement::kubelet_state::{FOR_KUBELET, FROM_KUBELET};
use crate::act::placement::plugin_cpusets::FOREIGN;
use crate::commands::exit_status;
use crate::daemon::start::LEDGERS;
use crate::host::HostRoot;
use crate::host::ledger::{Change, Ledger, UndoOutcome};
use crate::host::output::{Output, OutputArgs, print};
use crate::host::shown::{Show as _, line};
use crate::host::state_dir::LOCK_FILE;
use crate::host::state_dir::{CRITICAL_FILE, DAMAGED, INTENTS_FILE, ROOM_FILE};
use crate::host::state_lock::{LockError, StateLock};
use crate::input::manifests::admission::ADMITTED;
use crate::kernel::PinOwner;
use crate::serve::control::{SOCKET_FILE, STATE_DIR, group_dir, remove_group_dir};

/// A cgroup can be removed only when those in it are gone, which are in another ledger.
const ROUNDS: usize = 4;
/// How long an agent may take to end: it puts everything back first.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
const STOP_POLL: Duration = Duration::from_millis(50);

/// Restore everything agents have changed, and remove what they have left behind
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Restores kernel settings; removes empty cgroups that plimsoll created, pinned BPF programs, and the files of the state directory. \
Running pods keep running: their cgroups are listed and stay. Run this again when the pods have ended. Journals stay.")]
pub struct UninstallArgs {
    /// State directory of the agent
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// First stop the running agent (SIGTERM)
    #[arg(long)]
    pub stop: bool,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What was done with one thing, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// What.
    pub action: Action,
    /// A file, a cgroup, a process.
    pub subject: String,
    /// Why it is left, or what was put back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// An agent was ended.
    Stopped,
    /// A setting has its former value.
    Restored,
    /// It is gone.
    Removed,
    /// It is still there.
    Left,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Stopped => "stopped",
            Action::Restored => "restored",
            Action::Removed => "removed",
            Action::Left => "left",
        };
        write!(f, "{action:<9} {}", self.subject)?;
        self.detail
            .as_ref()
            .map_or(Ok(()), |detail| write!(f, ": {detail}"))
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UninstallReport<'a> {
    dry_run: bool,
    steps: &'a [Step],
    exit_status: u8,
}

/// Does the work.
struct Uninstall<'a> {
    host: HostRoot,
    state_dir: &'a Path,
    dry_run: bool,
    steps: Vec<Step>,
}

/// `plimsoll uninstall`.
///
/// # Errors
/// When the output cannot be written, or the lock not be used.
pub fn run(args: &UninstallArgs) -> Result<ExitCode> {
    let mut work = Uninstall {
        host: HostRoot::live(),
        state_dir: &args.state_dir,
        dry_run: args.dry_run,
        steps: Vec::new(),
    };
    // The owner's name is made from the directory's path, so before that is removed.
    let owner = PinOwner::of(&args.state_dir);
    let lock = match work.lock(args.stop) {
        Ok(lock) => lock,
        Err(error @ LockError::Held { .. }) => {
            eprintln!("plimsoll: {error}; or use --stop");
            return Ok(ExitCode::from(exit_status::REFUSED));
        }
        Err(error) => return Err(error.into()),
    };
    work.ledgers();
    work.pins(&owner);
    work.group_dir();
    work.files();
    drop(lock);
    let exit_status = if work.steps.iter().any(|step| step.action == Action::Left) {
        exit_status::FAILED
    } else {
        exit_status::DONE
    };
    let text = match args.output.format {
        Output::Text => {
            let steps = work.steps.iter();
            let steps = steps.map(|step| line(&step.to_string()).to_string() + "\n");
            let end = match (exit_status, args.dry_run) {
                (0, true) if work.steps.is_empty() => "nothing to restore or remove",
                (0, true) => "dry run: nothing was changed; the above would be done",
                (_, true) => {
                    "dry run: nothing was changed; the above would be done, and some things would be left"
                }
                (0, false) => "everything is restored",
                (_, false) => "some things are left: run this again when they are no longer in use",
            };
            steps.collect::<String>() + end
        }
        Output::Json => {
            let report = UninstallReport {
                dry_run: args.dry_run,
                steps: &work.steps,
                exit_status,
            };
            serde_json::to_string(&report)?
        }
    };
    print(text + "\n")?;
    Ok(ExitCode::from(exit_status))
}

impl Uninstall<'_> {
    fn step(&mut self, action: Action, subject: impl fmt::Display, detail: Option<String>) {
        let step = Step {
            action,
            subject: subject.to_string(),
            detail,
        };
        if !self.steps.contains(&step) {
            self.steps.push(step);
        }
    }

    /// The agent's lock; `None` where there is no state directory and so nothing to lock.
    fn lock(&mut self, stop: bool) -> Result<Option<StateLock>, LockError> {
        if !self.state_dir.is_dir() {
            return Ok(None);
        }
        let held = match StateLock::acquire(self.state_dir) {
            Ok(lock) => return Ok(Some(lock)),
            Err(error) => error,
        };
        let LockError::Held { pid: Some(pid), .. } = held else {
            return Err(held);
        };
        if !stop || self.dry_run {
            return Err(held);
        }
        self.stop(pid)
    }

    /// Ends the holder of the lock and takes it.
    fn stop(&mut self, pid: u32) -> Result<Option<StateLock>, LockError> {
        let process = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // It holds the lock now, with its descriptor open: so the descriptor is of the holder and not of a later
        // process.
        match (StateLock::acquire(self.state_dir), &process) {
            (Ok(lock), _) => return Ok(Some(lock)),
            (Err(LockError::Held { pid: Some(now), .. }), Some(process)) if now == pid => {
                // It may have ended this moment.
                let _ = pidfd_send_signal(process, Signal::TERM);
            }
            (Err(error), _) => return Err(error),
        }
        let end = Instant::now() + STOP_PATIENCE;
        loop {
            match StateLock::acquire(self.state_dir) {
                Ok(lock) => {
                    self.step(Action::Stopped, format_args!("process {pid}"), None);
                    return Ok(Some(lock));
                }
                Err(error) if Instant::now() >= end => return Err(error),
                Err(LockError::Held { .. }) => std::thread::sleep(STOP_POLL),
                Err(error) => return Err(error),
            }
        }
    }

    fn ledgers(&mut self) {
        if self.dry_run {
            for name in LEDGERS {
                self.foresee(&self.state_dir.join(name));
            }
            return;
        }
        let mut left = Vec::new();
        for _ in 0..ROUNDS {
            left.clear();
            for name in LEDGERS {
                self.restore(&self.state_dir.join(name), &mut left);
            }
            if left.is_empty() {
                return;
            }
        }
        for (subject, why) in left {
            self.step(Action::Left, subject, Some(why));
        }
    }

    /// What a ledger would have undone.
    fn foresee(&mut self, path: &Path) {
        if !path.exists() {
            return;
        }
        let changes = Ledger::open(&self.host, path).and_then(|mut ledger| ledger.changes());
        match changes {
            Ok(changes) => {
                for change in changes.iter().rev() {
                    self.done(change);
                }
            }
            Err(error) => self.step(Action::Left, path.shown(), Some(error.to_string())),
        }
    }

    /// Undoes what a ledger says. What is left goes to `left`.
    fn restore(&mut self, path: &Path, left: &mut Vec<(String, String)>) {
        if !path.exists() {
            return;
        }
        let restored = Ledger::open(&self.host, path).and_then(|mut ledger| ledger.restore());
        let restoration = match restored {
            Ok(restoration) => restoration,
            Err(error) => {
                left.push((path.shown().to_string(), error.to_string()));
                return;
            }
        };
        for undone in &restoration.changes {
            match &undone.outcome {
                UndoOutcome::Restored => self.done(&undone.change),
                UndoOutcome::NothingToDo => {}
                UndoOutcome::Busy(why) => {
                    left.push((undone.change.subject().shown().to_string(), why.clone()));
                }
                // Its line is gone with this: another program has changed it since and owns it now.
                UndoOutcome::Left(why) => self.step(
                    Action::Left,
                    undone.change.subject().shown(),
                    Some(why.clone()),
                ),
            }
        }
    }

    fn done(&mut self, change: &Change) {
        let subject = change.subject().shown();
        match change {
            Change::Write { old, .. } => {
                self.step(Action::Restored, subject, Some(format!("{old:?}")));
            }
            Change::Enable { controller, .. } => {
                self.step(
                    Action::Restored,
                    subject,
                    Some(format!("without controller {controller}")),
                );
            }
            Change::Create { .. } => self.step(Action::Removed, subject, None),
            Change::Move { process, from, .. } => self.step(
                Action::Restored,
                format_args!("process {}", process.pid),
                Some(format!("to {}", from.shown())),
            ),
        }
    }

    fn pins(&mut self, owner: &PinOwner) {
        let removed = if self.dry_run {
            let sets = owner.sets();
            sets.map(|sets| sets.iter().map(|set| set.path().to_owned()).collect())
        } else {
            owner.remove()
        };
        match removed {
            Ok(removed) => {
                let removed: Vec<PathBuf> = removed;
                for path in removed {
                    self.step(Action::Removed, path.shown(), None);
                }
            }
            Err(error) => self.step(Action::Left, owner.dir().shown(), Some(error.to_string())),
        }
    }

    /// Files that are known to be the agent's; ledgers only when nothing is left in them.
    fn files(&mut self) {
        let Ok(entries) = std::fs::read_dir(self.state_dir) else {
            return;
        };
        let mut names: Vec<_> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        // The lock last: until then no agent can start.
        names.sort_by_key(|name| (name == LOCK_FILE, name.clone()));
        let has_changes = |path: &Path| path.metadata().map_or(true, |metadata| metadata.len() > 0);
        for name in &names {
            let path = self.state_dir.join(name);
            let is_ledger = LEDGERS.contains(&name.as_str());
            if is_ledger && !self.dry_run && has_changes(&path) {
                let why = "it lists changes that are not undone yet".to_owned();
                self.step(Action::Left, path.shown(), Some(why));
            } else if is_ledger || is_agent_file(name) {
                self.remove(&path, |path| std::fs::remove_file(path));
            } else {
                // Not ours, or something that was asked for: no reason to come again.
                tracing::info!(path = %path.shown(), "not a file of the agent; it stays");
            }
        }
        if names
            .iter()
            .all(|name| is_agent_file(name) || LEDGERS.contains(&name.as_str()))
            && !self.steps.iter().any(|step| step.action == Action::Left)
        {
            let dir = self.state_dir;
            self.remove(dir, |path| std::fs::remove_dir(path));
        }
    }

    /// The directory of a socket that a group may use.
    fn group_dir(&mut self) {
        let dir = group_dir(self.state_dir);
        if dir.is_dir() && (self.dry_run || remove_group_dir(&dir)) {
            self.step(Action::Removed, dir.shown(), None);
        }
    }

    fn remove(&mut self, path: &Path, remove: impl FnOnce(&Path) -> io::Result<()>) {
        match if self.dry_run { Ok(()) } else { remove(path) } {
            Ok(()) => self.step(Action::Removed, path.shown(), None),
            Err(error) => self.step(Action::Left, path.shown(), Some(error.to_string())),
        }
    }
}

/// Files of the state directory beside the ledgers.
fn is_agent_file(name: &str) -> bool {
    [
        LOCK_FILE,
        ROOM_FILE,
        SOCKET_FILE,
        CHECKPOINT,
        PLACEMENT_LOCK,
        PLACEMENT_TURN,
        ADMITTED,
        INTENTS_FILE,
        CRITICAL_FILE,
        FOREIGN,
    ]
    .contains(&name)
        || [FOR_KUBELET, FROM_KUBELET]
            .iter()
            .any(|whose| name.starts_with(whose))
        || [CHECKPOINT, ADMITTED, FOREIGN].iter().any(|file| {
            let rest = name.strip_prefix(file);
            rest.is_some_and(|rest| rest.starts_with(DAMAGED))
        })
        // The successor of a file, of an agent that was killed before it took its place.
        || name
            .strip_suffix(".new")
            .is_some_and(|of| LEDGERS.contains(&of) || is_agent_file(of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::ledger::AGENT_LEDGER;

    fn work(state_dir: &Path, dry_run: bool) -> Uninstall<'_> {
        Uninstall {
            host: HostRoot::new("/nonexistent"),
            state_dir,
            dry_run,
            steps: Vec::new(),
        }
    }

    fn actions(work: &Uninstall<'_>) -> Vec<(Action, String)> {
        let name = |step: &Step| {
            let path = Path::new(&step.subject);
            path.file_name().unwrap().to_string_lossy().into_owned()
        };
        work.steps
            .iter()
            .map(|step| (step.action, name(step)))
            .collect()
    }

    #[test]
    fn settings_come_back_and_files_go_but_a_journal_stays() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let knob = dir.path().join("knob");
        std::fs::write(&knob, "old\n").unwrap();
        let host = HostRoot::new("/nonexistent");
        let mut ledger = Ledger::open(&host, state.join(AGENT_LEDGER)).unwrap();
        ledger.write(&knob, "new").unwrap();
        drop(ledger);
        for name in [
            "run.journal",
            CHECKPOINT,
            "placement.json.damaged-3",
            "foreign-cpusets.json",
            "for-kubelet.cpu_manager_state",
            "admitted.json.damaged-1",
        ] {
            std::fs::write(state.join(name), "x").unwrap();
        }

        let mut dry = work(&state, true);
        let lock = dry.lock(false).unwrap();
        dry.ledgers();
        dry.files();
        drop(lock);
        assert_eq!(std::fs::read_to_string(&knob).unwrap().trim(), "new");
        assert!(state.join(CHECKPOINT).exists());

        let mut wet = work(&state, false);
        let lock = wet.lock(false).unwrap();
        wet.ledgers();
        wet.files();
        drop(lock);
        assert_eq!(actions(&wet), actions(&dry));
        assert_eq!(std::fs::read_to_string(&knob).unwrap().trim(), "old");
        let there: Vec<_> = std::fs::read_dir(&state)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(there, ["run.journal"]);

        std::fs::remove_file(state.join("run.journal")).unwrap();
        let mut again = work(&state, false);
        let lock = again.lock(false).unwrap();
        again.ledgers();
        again.files();
        drop(lock);
        assert!(!state.exists(), "{:?}", again.steps);
    }

    #[test]
    fn nothing_is_done_while_an_agent_runs() {
        let dir = tempfile::tempdir().unwrap();
        let _agent = StateLock::acquire(dir.path()).unwrap();
        let error = work(dir.path(), false).lock(false).unwrap_err();
        let pid = std::process::id();
        assert!(matches!(error, LockError::Held { pid: Some(held), .. } if held == pid));
        // A dry run does not end it.
        assert!(work(dir.path(), true).lock(true).is_err());
    }

    #[test]
    fn a_machine_without_plimsoll_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("absent");
        let mut work = work(&state, false);
        assert!(work.lock(false).unwrap().is_none());
        work.ledgers();
        work.files();
        assert_eq!(work.steps, []);
        assert!(!state.exists());
    }
}
