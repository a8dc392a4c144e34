//! One xtask at a time in a shared folder: an advisory lock on a file, released when the process ends in any way.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::progress::Step;

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock file `folder/.lock`, waiting for another xtask when it has it. Creates `folder`.
    pub(crate) fn take(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(".lock");
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open the lock file {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let _step = Step::begin("waiting", format_args!("for {}", holder(&path)));
                file.lock()
                    .with_context(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        // For those who wait. On a full disk they wait without the name.
        let _unsaid = file
            .set_len(0)
            .and_then(|()| file.write_all(name().as_bytes()));
        Ok(Self { _file: file })
    }
}

/// This process, as others see it in the lock file.
fn name() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!(
        "cargo xtask {}, pid {}",
        arguments.join(" "),
        std::process::id()
    )
}

/// Who holds the lock, as one reads it.
fn holder(path: &Path) -> String {
    let mut name = String::new();
    // What cannot be read is not said.
    let _unread = File::open(path).and_then(|mut file| file.read_to_string(&mut name));
    let name = match name.trim() {
        "" => "another cargo xtask",
        name => name,
    };
    format!("{name} (it holds {})", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_learns_for_whom_and_gets_it_then() {
        let folder = tempfile::tempdir().unwrap();
        let held = Lock::take(folder.path()).unwrap();
        let path = folder.path().join(".lock");
        let holder = holder(&path);
        let pid = format!("pid {}", std::process::id());
        assert!(holder.contains(&pid), "{holder}");
        assert!(holder.contains(&path.display().to_string()), "{holder}");
        let other = std::thread::spawn({
            let folder = folder.path().to_owned();
            move || Lock::take(&folder).map(|_| ())
        });
        // It cannot have it yet: the test fails below if it has, for then this drop comes second.
        assert!(!other.is_finished());
        drop(held);
        other.join().unwrap().unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(
            super::holder(&path).starts_with("another cargo xtask"),
            "{path:?}"
        );
    }
}
