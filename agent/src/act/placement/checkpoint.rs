//! Who holds what, in a file: for the next agent, and for `plimsoll exec`, which starts containers beside the running
//! one.
//!
//! **Problem.** A container must be in the right cpuset before its first instruction, although the agent moves the
//! others at that moment; and no file, however damaged, may keep a node from working (kubernetes#84333, #110478).
//! **Approach.** `placement.json` is replaced as a whole. Beside it `placement.lock` (flock): the agent holds it alone
//! from writing the file until the last cgroup is written; `exec` holds it together with other `exec`s from reading the
//! file until the container's process is in its cgroup. So `exec` sees a placement either before or after it came into
//! force, and the agent sees every cgroup that was made by the last one.
//!
//! An `exec` that is stopped (SIGSTOP, a frozen cgroup) while it holds the lock must not keep the node from being
//! placed. The agent waits for [`BREAK_AFTER`] and then breaks the lock: it puts a new file in the place of the old one
//! and locks that. So `exec` looks, when its process is in its cgroup, whether its lock still counts
//! ([`PlacementLock::is_current`]), and begins anew if not. A process that is in its cgroup before the lock is broken
//! is seen by the agent; one that comes later sees the new placement before its first instruction.
//!
//! An agent that dies in between leaves the placement *before* in the file: then a container starts where neither needs
//! to be alone, and the next agent finishes the work.
//!
//! A file that is cut off, edited or of another version is renamed to `placement.json.damaged-N`, and said; there is
//! none then.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::host::flock::{FlockError, Holders, flock_within};
use crate::host::shown::Show as _;
use crate::host::state_dir;

/// The file, in the state directory.
pub const CHECKPOINT: &str = "placement.json";
/// Its lock, beside it.
pub const LOCK: &str = "placement.lock";
/// Whose turn it is to ask for the lock.
pub const TURN: &str = "placement.turn";
/// What is written now.
const VERSION: u32 = 1;
/// A file above this is none of ours: a thousand containers take 100 KB.
const BYTES_MAX: u64 = 16 << 20;
/// How long who moves containers and who starts them wait for each other. On cgroup v1 a process enters each hierarchy
/// only after all CPUs have passed through the scheduler (an RCU grace period): seconds, on a busy node.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How long the agent waits for an `exec` before it breaks the lock.
pub const BREAK_AFTER: Duration = Duration::from_secs(10);
/// How often a lock may be broken, or replaced by another process, while it is asked for.
const REPLACED_MAX: u32 = 100;

/// Why the checkpoint cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file cannot be read or written.
    #[error("{path}: {source}; free space there, or choose another --state-dir", path = path.shown())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another process holds the lock.
    #[error(
        "{path}: held by {holders} for {waited:?}: the node is very busy, the agent moves much memory between NUMA nodes, or that process is stopped; try again, or continue it (kill -CONT)", path = path.shown()
    )]
    Locked {
        /// The lock.
        path: PathBuf,
        /// Who holds it.
        holders: Holders,
        /// How long it was asked for.
        waited: Duration,
    },
}

/// A placement, and what it takes to get there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// Who is to hold what.
    pub assignments: Assignments,
    /// Who held what before, while not all cgroups are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Assignments>,
    /// Whether containers with exclusive CPUs keep their CFS quota (`DisableCPUQuotaWithExclusiveCPUs` off).
    #[serde(default)]
    pub keeps_quota: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'text> {
    version: u32,
    /// Of the text of `placement`.
    checksum: String,
    #[serde(borrow)]
    placement: &'text RawValue,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No placement is in force.
    Nothing,
    /// This one is.
    Checkpoint(Box<Checkpoint>),
    /// The file was set aside.
    Damaged(SetAside),
}

/// A file that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}; it was set aside as {to}, and placement starts anew from what the cgroups have",
    path = path.shown(), to = to.shown())]
pub struct SetAside {
    /// The checkpoint.
    pub path: PathBuf,
    /// Where it is now.
    pub to: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// The lock, until it is dropped. `execve` closes it as well.
///
/// Who wants it alone gets it although others share it one after the other: whoever asks has the turn until it has the
/// lock, so that no other comes in between.
#[derive(Debug)]
pub struct PlacementLock {
    file: File,
    path: PathBuf,
}

impl PlacementLock {
    /// Together with others that start containers.
    ///
    /// # Errors
    /// [`CheckpointError::Locked`] after `patience`.
    pub fn shared(state_dir: &Path, patience: Duration) -> Result<Self, CheckpointError> {
        let operation = FlockOperation::NonBlockingLockShared;
        Self::take(state_dir, operation, patience, false)
    }

    /// Alone.
    ///
    /// # Errors
    /// [`CheckpointError::Locked`] after `patience`.
    pub fn exclusive(state_dir: &Path, patience: Duration) -> Result<Self, CheckpointError> {
        let operation = FlockOperation::NonBlockingLockExclusive;
        Self::take(state_dir, operation, patience, false)
    }

    /// Alone; a lock that is still held after `patience` is broken. For the agent, of which there is one.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn exclusive_by_force(
        state_dir: &Path,
        patience: Duration,
    ) -> Result<Self, CheckpointError> {
        let operation = FlockOperation::NonBlockingLockExclusive;
        Self::take(state_dir, operation, patience, true)
    }

    /// Whether this is still the lock that counts: nobody has broken it.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn is_current(&self) -> Result<bool, CheckpointError> {
        state_dir::is_at(&self.file, &self.path).map_err(|source| CheckpointError::Io {
            path: self.path.clone(),
            source,
        })
    }

    fn take(
        state_dir: &Path,
        operation: FlockOperation,
        patience: Duration,
        by_force: bool,
    ) -> Result<Self, CheckpointError> {
        state_dir::make(state_dir).map_err(|source| CheckpointError::Io {
            path: state_dir.to_owned(),
            source,
        })?;
        let start = Instant::now();
        let left = || patience.saturating_sub(start.elapsed());
        let turn = FlockOperation::NonBlockingLockExclusive;
        let _turn = lock(state_dir.join(TURN), turn, left, by_force)?;
        let path = state_dir.join(LOCK);
        let file = lock(path.clone(), operation, left, by_force)?;
        Ok(Self { file, path })
    }
}

/// Locks this file, which is made if it is not there. When no time is left, gives up, or replaces the file.
fn lock(
    path: PathBuf,
    operation: FlockOperation,
    left: impl Fn() -> Duration,
    by_force: bool,
) -> Result<File, CheckpointError> {
    let io = |source| CheckpointError::Io {
        path: path.clone(),
        source,
    };
    let start = Instant::now();
    for _ in 0..REPLACED_MAX {
        let file = state_dir::open_private(&path).map_err(io)?;
        match flock_within(&file, operation, left()) {
            Ok(()) if state_dir::is_at(&file, &path).map_err(io)? => return Ok(file),
            // Broken while it was waited for.
            Ok(()) => {}
            Err(FlockError::Held(holders)) if by_force => {
                tracing::warn!(path = %path.shown(), "the placement does not wait any longer for {holders}");
                let new = state_dir::new_beside(&path);
                state_dir::create_new(&new).map_err(io)?;
                std::fs::rename(&new, &path).map_err(io)?;
            }
            Err(FlockError::Held(holders)) => {
                return Err(CheckpointError::Locked {
                    path,
                    holders,
                    waited: start.elapsed(),
                });
            }
            Err(FlockError::Io(error)) => return Err(io(error)),
        }
    }
    Err(io(std::io::Error::other(
        "it is replaced again and again by another process",
    )))
}

impl Checkpoint {
    /// Reads it; the caller holds the lock. A file that is none is set aside.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] when it cannot be read, or neither read nor set aside.
    pub fn read(_lock: &PlacementLock, state_dir: &Path) -> Result<Found, CheckpointError> {
        let path = state_dir.join(CHECKPOINT);
        match state_dir::read(&path, BYTES_MAX) {
            Ok(None) => Ok(Found::Nothing),
            Ok(Some(text)) => match text.and_then(|text| parse(&text)) {
                Ok(checkpoint) => Ok(Found::Checkpoint(Box::new(checkpoint))),
                Err(why) => set_aside(path, why).map(Found::Damaged),
            },
            Err(source) => Err(CheckpointError::Io { path, source }),
        }
    }

    /// Replaces it; the caller holds the lock alone.
    ///
    /// # Errors
    /// [`CheckpointError::Io`]; the old one is still there.
    pub fn write(&self, _lock: &PlacementLock, state_dir: &Path) -> Result<(), CheckpointError> {
        let path = state_dir.join(CHECKPOINT);
        let write = || {
            let placement = serde_json::value::to_raw_value(self)?;
            let written = Written {
                version: VERSION,
                checksum: state_dir::checksum(placement.get()),
                placement: &placement,
            };
            let mut text = serde_json::to_vec(&written)?;
            text.push(b'\n');
            state_dir::replace(&path, &text)
        };
        write().map_err(|source| CheckpointError::Io {
            path: path.clone(),
            source,
        })
    }

    /// Takes it away: no placement is in force any more. The caller holds the lock alone.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn remove(_lock: &PlacementLock, state_dir: &Path) -> Result<(), CheckpointError> {
        let path = state_dir.join(CHECKPOINT);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(CheckpointError::Io {
                path,
                source: error,
            }),
            _ => Ok(()),
        }
    }

    /// Where a container is to start: where it is to be, or, while the others may not have made room yet, where nobody
    /// needs to be alone.
    #[must_use]
    pub fn starts_on(&self, pod: &PodUid, container: &str, online: CpuSet) -> CpuSet {
        let pool = self.assignments.shared_pool & online;
        let assigned = self.assignments.cpus(pod, container).cpus & online;
        let wanted = if assigned.is_empty() { pool } else { assigned };
        let Some(before) = &self.before else {
            return wanted;
        };
        if before.cpus(pod, container) == self.assignments.cpus(pod, container) {
            return wanted;
        }
        let free = pool - before.exclusive();
        if free.is_empty() { wanted } else { free }
    }

    /// Whether the container runs without CFS quota.
    #[must_use]
    pub fn frees_container(&self, pod: &PodUid, container: &str) -> bool {
        !self.keeps_quota && self.assignments.cpus(pod, container).exclusive
    }

    /// Whether the pod as a whole does: as soon as one of its containers has exclusive CPUs (`podHasExclusiveCPUs`).
    #[must_use]
    pub fn frees_pod(&self, pod: &PodUid) -> bool {
        let containers = self.assignments.containers.get(pod);
        let mut assigned = containers
            .into_iter()
            .flat_map(|containers| containers.values());
        !self.keeps_quota && assigned.any(|container| container.cpus.is_some())
    }
}

fn parse(text: &[u8]) -> Result<Checkpoint, String> {
    let written: Written<'_> =
        serde_json::from_slice(text).map_err(|error| format!("not a checkpoint: {error}"))?;
    state_dir::verify(
        (written.version, VERSION),
        written.placement.get(),
        &written.checksum,
    )?;
    let checkpoint: Checkpoint = serde_json::from_str(written.placement.get())
        .map_err(|error| format!("not a placement: {error}"))?;
    // Before is several placements in one, where an agent has died twice.
    match contradiction(&checkpoint.assignments) {
        Some(why) => Err(why),
        None => Ok(checkpoint),
    }
}

/// What cannot be: nobody's pool, or a CPU with two owners. Containers of one pod may have the same CPUs, for those of
/// an init container are used again.
fn contradiction(assignments: &Assignments) -> Option<String> {
    if assignments.shared_pool.is_empty() {
        return Some("its shared pool is empty".into());
    }
    let mut taken = assignments.shared_pool;
    for (pod, containers) in &assignments.containers {
        let of_containers = containers.values().filter_map(|assigned| assigned.cpus);
        let of_pod = of_containers.fold(CpuSet::EMPTY, |all, cpus| all | cpus);
        if !of_pod.is_disjoint(&taken) {
            return Some(format!("CPUs {} of pod {pod} are taken", of_pod & taken));
        }
        taken |= of_pod;
    }
    None
}

fn set_aside(path: PathBuf, why: String) -> Result<SetAside, CheckpointError> {
    match state_dir::set_aside(&path, &why) {
        Ok(to) => Ok(SetAside { path, to, why }),
        Err(source) => Err(CheckpointError::Io { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::placement::assignments::Assignment;
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    const ASK_AGAIN: Duration = Duration::from_millis(5);

    fn cpus(list: &str) -> CpuSet {
        CpuSet::parse(list).unwrap()
    }

    fn assignments(pool: &str, exclusive: &[(&str, &str)]) -> Assignments {
        let one = |cpus: CpuSet| Assignment {
            cpus: Some(cpus),
            ..Assignment::default()
        };
        let containers = exclusive.iter().map(|(pod, list)| {
            let containers = BTreeMap::from([("main".to_owned(), one(cpus(list)))]);
            (PodUid::from(*pod), containers)
        });
        Assignments {
            shared_pool: cpus(pool),
            containers: containers.collect(),
            refused: BTreeMap::new(),
        }
    }

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            assignments: assignments("0-1", &[("a", "2"), ("b", "3")]),
            before: None,
            keeps_quota: false,
        }
    }

    #[test]
    fn it_reads_as_it_was_written_and_is_gone_when_removed() {
        let dir = tempfile::tempdir().unwrap();
        let lock = PlacementLock::exclusive(dir.path(), LOCK_PATIENCE).unwrap();
        assert_eq!(Checkpoint::read(&lock, dir.path()).unwrap(), Found::Nothing);
        for before in [None, Some(assignments("0-3", &[]))] {
            let written = Checkpoint {
                before,
                ..checkpoint()
            };
            written.write(&lock, dir.path()).unwrap();
            let found = Checkpoint::read(&lock, dir.path()).unwrap();
            assert_eq!(found, Found::Checkpoint(Box::new(written)));
        }
        Checkpoint::remove(&lock, dir.path()).unwrap();
        Checkpoint::remove(&lock, dir.path()).unwrap();
        assert_eq!(Checkpoint::read(&lock, dir.path()).unwrap(), Found::Nothing);
    }

    #[test]
    fn what_is_none_is_set_aside_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let lock = PlacementLock::exclusive(dir.path(), LOCK_PATIENCE).unwrap();
        let path = dir.path().join(CHECKPOINT);
        let sum = |placement: &str| {
            let sum = state_dir::checksum(placement);
            format!(r#"{{"version":1,"checksum":"{sum}","placement":{placement}}}"#)
        };
        checkpoint().write(&lock, dir.path()).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        let cases = [
            ("", "not a checkpoint"),
            ("\0\0\0", "not a checkpoint"),
            (&good[..good.len() / 2], "not a checkpoint"),
            (&good.replace("0-1", "0-7"), "checksum"),
            (&good.replace(":1,", ":2,"), "version 2"),
            (&good.replace("version", "edition"), "unknown field"),
            (&sum("{}"), "not a placement"),
            (
                &sum(r#"{"assignments":{"sharedPool":"","containers":{}}}"#),
                "shared pool is empty",
            ),
            (
                &sum(
                    r#"{"assignments":{"sharedPool":"0-2","containers":{"a":{"main":{"cpus":"2"}}}}}"#,
                ),
                "CPUs 2 of pod a are taken",
            ),
        ];
        for ((text, why), number) in cases.iter().zip(1..) {
            std::fs::write(&path, text).unwrap();
            let found = Checkpoint::read(&lock, dir.path()).unwrap();
            let Found::Damaged(aside) = found else {
                panic!("{text}: {found:?}");
            };
            assert!(aside.to_string().contains(why), "{aside}");
            let to = dir.path().join(format!("placement.json.damaged-{number}"));
            assert_eq!(aside.to, to);
            assert_eq!(std::fs::read_to_string(to).unwrap(), *text);
            assert_eq!(Checkpoint::read(&lock, dir.path()).unwrap(), Found::Nothing);
        }
    }

    #[test]
    fn who_starts_containers_and_who_moves_them_wait_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let now = Duration::ZERO;
        let one = PlacementLock::shared(dir.path(), now).unwrap();
        let other = PlacementLock::shared(dir.path(), now).unwrap();
        let error = PlacementLock::exclusive(dir.path(), now).unwrap_err();
        assert!(matches!(error, CheckpointError::Locked { .. }), "{error}");
        drop(one);
        assert!(PlacementLock::exclusive(dir.path(), now).is_err());
        drop(other);
        let alone = PlacementLock::exclusive(dir.path(), now).unwrap();
        assert!(PlacementLock::shared(dir.path(), now).is_err());
        let state_dir = dir.path().to_owned();
        let waits = std::thread::spawn(move || PlacementLock::shared(&state_dir, LOCK_PATIENCE));
        drop(alone);
        waits.join().unwrap().unwrap();
    }

    /// As with an `exec` that is stopped, or in a cgroup that is frozen.
    #[test]
    fn an_exec_that_does_not_go_on_is_not_waited_for_and_finds_out() {
        let dir = tempfile::tempdir().unwrap();
        let now = Duration::ZERO;
        let stopped = PlacementLock::shared(dir.path(), now).unwrap();
        let error = PlacementLock::exclusive(dir.path(), now).unwrap_err();
        let holder = format!("process {}", std::process::id());
        assert!(error.to_string().contains(&holder), "{error}");
        assert!(stopped.is_current().unwrap());
        let agent = PlacementLock::exclusive_by_force(dir.path(), now).unwrap();
        assert!(agent.is_current().unwrap());
        assert!(!stopped.is_current().unwrap());
        // The next container waits for the agent, and not for the stopped one.
        assert!(PlacementLock::shared(dir.path(), now).is_err());
        drop(agent);
        let again = PlacementLock::shared(dir.path(), now).unwrap();
        drop(stopped);
        assert!(again.is_current().unwrap());
    }

    #[test]
    fn all_its_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let lock = PlacementLock::exclusive(dir.path(), LOCK_PATIENCE).unwrap();
        checkpoint().write(&lock, dir.path()).unwrap();
        for name in [CHECKPOINT, LOCK, TURN] {
            let mode = dir
                .path()
                .join(name)
                .metadata()
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o7777, 0o600, "{name}");
        }
    }

    #[test]
    fn who_moves_containers_gets_its_turn_while_others_start_all_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // One of them nearly always has it.
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::SeqCst) {
                        let lock = PlacementLock::shared(dir.path(), LOCK_PATIENCE);
                        std::thread::sleep(4 * ASK_AGAIN);
                        drop(lock);
                    }
                });
            }
            let mut alone = Ok(());
            for _ in 0..5 {
                // They have it again.
                std::thread::sleep(8 * ASK_AGAIN);
                let lock = PlacementLock::exclusive(dir.path(), Duration::from_secs(10));
                alone = alone.and(lock.map(drop));
            }
            is_over.store(true, Ordering::SeqCst);
            alone.unwrap();
        });
    }

    #[test]
    fn while_others_move_a_container_starts_where_nobody_is_alone() {
        let (a, b, c) = (PodUid::from("a"), PodUid::from("b"), PodUid::from("c"));
        let mut checkpoint = checkpoint();
        let on = |checkpoint: &Checkpoint, pod: &PodUid, online: &str| {
            let on = checkpoint.starts_on(pod, "main", cpus(online));
            on.to_string()
        };
        assert_eq!(on(&checkpoint, &a, "0-3"), "2");
        assert_eq!(on(&checkpoint, &c, "0-3"), "0-1");
        assert_eq!(on(&checkpoint, &a, "0-1,3"), "0-1", "its CPU is offline");
        checkpoint.before = Some(assignments("0,2", &[("b", "3"), ("c", "1")]));
        assert_eq!(on(&checkpoint, &a, "0-3"), "0", "others may be on 2 still");
        assert_eq!(on(&checkpoint, &b, "0-3"), "3", "as before");
        assert_eq!(on(&checkpoint, &c, "0-3"), "0");
        assert!(checkpoint.frees_pod(&a) && checkpoint.frees_container(&a, "main"));
        assert!(!checkpoint.frees_pod(&c) && !checkpoint.frees_container(&a, "side"));
    }
}
