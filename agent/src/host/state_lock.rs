//! The lock of a state directory: one agent in each. The kernel releases it when its holder ends, however it ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;

use super::flock::{FlockError, flock_within};
use super::state_dir::{self, LOCK_FILE, StateError};
use crate::host::shown::Show as _;

/// How often a lock file may be replaced by another process while it is being locked.
const REPLACED_MAX: u32 = 100;

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has it.
    #[error("another plimsoll agent{holder} already runs with the state directory of {path}; stop it first{stop}, or give this one another --state-dir and --cgroup-root; of two DaemonSets each needs nodes of its own (nodeSelector)",
        path = path.shown(),
        holder = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
        stop = pid.map(|pid| format!(" (kill {pid})")).unwrap_or_default())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// Who has it; `None` when that process cannot be seen from here.
        pid: Option<u32>,
    },
    /// The state directory is not one to be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The lock file cannot be used.
    #[error("{path}: the agent's lock file cannot be used: {source}; run as root or choose another --state-dir", path = path.shown())]
    Unusable {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl LockError {
    /// Whether the state directory is full or read-only, so that there is no lock to be had.
    pub fn is_out_of_space(&self) -> bool {
        match self {
            Self::State(StateError::Io { source, .. }) | Self::Unusable { source, .. } => {
                state_dir::has_no_space(source)
            }
            _ => false,
        }
    }
}

/// The lock, held until this is dropped or the process ends. Children do not inherit it (the file is close-on-exec).
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Takes the lock of a state directory, which is made where it does not exist. Does not wait.
    ///
    /// # Errors
    /// [`LockError::Held`] names the pid of the agent that has it; [`LockError::State`] says why the directory is not
    /// used.
    pub fn acquire(state_dir: &Path) -> Result<Self, LockError> {
        state_dir::prepare(state_dir)?;
        let path = state_dir.join(LOCK_FILE);
        let unusable = |source| LockError::Unusable {
            path: path.clone(),
            source,
        };
        for _ in 0..REPLACED_MAX {
            let file = state_dir::open_private(&path).or_else(|error| match &error {
                // There may be a file from before, and it can be locked.
                full if state_dir::has_no_space(full) => {
                    state_dir::open_to_lock(&path).map_err(|_| error)
                }
                _ => Err(error),
            });
            let file = file.map_err(unusable)?;
            let operation = FlockOperation::NonBlockingLockExclusive;
            match flock_within(&file, operation, Duration::ZERO) {
                Ok(()) if state_dir::is_at(&file, &path).map_err(unusable)? => {
                    return Ok(Self { _file: file });
                }
                // Replaced, or removed by `uninstall`, between the opening and the lock.
                Ok(()) => {}
                Err(FlockError::Held(holders)) => {
                    return Err(LockError::Held {
                        path: path.clone(),
                        pid: holders.pids().first().copied(),
                    });
                }
                Err(FlockError::Io(error)) => return Err(unusable(error)),
            }
        }
        Err(unusable(std::io::Error::other(
            "it is replaced again and again by another process",
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_with_the_pid_to_stop() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("run/plimsoll");
        let lock = StateLock::acquire(&state_dir).unwrap();
        let error = StateLock::acquire(&state_dir).unwrap_err();
        let pid = std::process::id();
        assert!(matches!(error, LockError::Held { pid: Some(holder), .. } if holder == pid));
        assert!(
            error.to_string().contains(&format!("kill {pid}"))
                && error.to_string().contains("nodeSelector"),
            "{error}"
        );
        drop(lock);
        // What another test starts has a copy of the descriptor until it executes its program.
        while let Err(error) = StateLock::acquire(&state_dir) {
            assert!(matches!(error, LockError::Held { .. }), "{error}");
            std::thread::yield_now();
        }
    }

    /// Whoever may write the file could name a stranger's process, which `uninstall --stop` would end.
    #[test]
    fn the_text_of_the_lock_file_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("plimsoll");
        let _lock = StateLock::acquire(&state_dir).unwrap();
        std::fs::write(state_dir.join(LOCK_FILE), "1\n").unwrap();
        let error = StateLock::acquire(&state_dir).unwrap_err();
        let pid = std::process::id();
        assert!(matches!(error, LockError::Held { pid: Some(holder), .. } if holder == pid));
    }

    #[test]
    fn a_state_directory_that_cannot_be_made() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = StateLock::acquire(&dir.path().join("file")).unwrap_err();
        assert!(
            matches!(error, LockError::State(_)) && error.to_string().contains("--state-dir"),
            "{error}"
        );
    }
}
