//! One xtask at a time in a shared folder: an advisory lock on a file, released when the process ends in any way.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::progress::say;

/// Held until dropped.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock file `folder/.lock`, waiting for another xtask when it has it. Creates `folder`.
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(".lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open the lock file {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                say(
                    "waiting",
                    format_args!("another xtask is at work in {}", folder.display()),
                );
                file.lock()
                    .with_context(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        Ok(Self { _file: file })
    }
}
