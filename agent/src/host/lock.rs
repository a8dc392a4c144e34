//! One agent per state directory: a lock file that the kernel releases when its holder ends, however it ends.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::host::shown::Show as _;

/// The lock file's name in the state directory. Its text is the holder's pid.
pub const LOCK_FILE: &str = "agent.lock";

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has it.
    #[error("another plimsoll agent{holder} already runs with the state directory of {path}; stop it first{stop}, or give this one another --state-dir and --cgroup-root",
        path = path.shown(),
        holder = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(),
        stop = pid.map(|pid| format!(" (kill {pid})")).unwrap_or_default())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// Who has it; `None` when it has not written its pid yet.
        pid: Option<u32>,
    },
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

/// The lock, held until this is dropped or the process ends. Children do not inherit it (the file is close-on-exec).
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Takes the lock of a state directory, creating the directory where it does not exist.
    ///
    /// # Errors
    /// [`LockError::Held`] names the pid of the agent that has it.
    pub fn acquire(state_dir: &Path) -> Result<Self, LockError> {
        let path = state_dir.join(LOCK_FILE);
        let unusable = |source| LockError::Unusable {
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(state_dir).map_err(unusable)?;
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&path);
        let mut file = open.map_err(unusable)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                file.take(32).read_to_string(&mut text).map_err(unusable)?;
                return Err(LockError::Held {
                    path: path.clone(),
                    pid: text.trim().parse().ok(),
                });
            }
            Err(errno) => return Err(unusable(errno.into())),
        }
        let mut write_pid = || {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            writeln!(file, "{}", std::process::id())
        };
        write_pid().map_err(unusable)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_with_the_pid_to_stop() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("run/plimsoll");
        std::fs::create_dir_all(&state_dir).unwrap();
        std::fs::write(
            state_dir.join(LOCK_FILE),
            "999999999 of an agent that was killed\n",
        )
        .unwrap();
        let lock = StateLock::acquire(&state_dir).unwrap();
        let error = StateLock::acquire(&state_dir).unwrap_err();
        let pid = std::process::id();
        assert!(matches!(error, LockError::Held { pid: Some(holder), .. } if holder == pid));
        assert!(
            error.to_string().contains(&format!("kill {pid}")),
            "{error}"
        );
        drop(lock);
        StateLock::acquire(&state_dir).unwrap();
    }

    #[test]
    fn a_state_directory_that_cannot_be_made() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = StateLock::acquire(&dir.path().join("file")).unwrap_err();
        assert!(
            matches!(error, LockError::Unusable { .. })
                && error.to_string().contains("--state-dir"),
            "{error}"
        );
    }
}
