//! A local user without privileges who locks every file of the agent's that he can open; and a process of root's that
//! is stopped with a lock.

use std::os::unix::ffi::OsStrExt as _;

use super::*;
use crate::kernel::raw;

/// What others may do with a directory, and with a file.
const OTHERS_SEARCH: u32 = 0o001;
const OTHERS_READ: u32 = 0o004;

/// A file that somebody else has open and locked.
#[derive(Debug)]
pub(crate) struct Locked {
    fd: usize,
    path: PathBuf,
    ino: u64,
    /// The user's, and not root's.
    is_users: bool,
}

/// Opens a file and locks it; `None` when another has the lock.
fn lock(path: PathBuf, is_users: bool) -> Option<Locked> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: the name lives for the call.
    let fd = unsafe {
        raw(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                name.as_ptr() as usize,
                flags,
                0,
                0,
                0,
            ],
        )
    };
    let fd = usize::try_from(fd).ok()?;
    let ino = path.metadata().ok()?.ino();
    let how = (libc::LOCK_EX | libc::LOCK_NB) as usize;
    // SAFETY: no pointers.
    if unsafe { raw(libc::SYS_flock, [fd, how, 0, 0, 0, 0]) } == 0 {
        return Some(Locked {
            fd,
            path,
            ino,
            is_users,
        });
    }
    // SAFETY: it is ours.
    unsafe { raw(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    None
}

impl World {
    /// The user tries what he can, and keeps what he gets.
    pub(crate) fn user_locks(&mut self) {
        let dir = self.root.join("state");
        let mode = |path: &std::path::Path| path.metadata().map_or(0, |it| it.mode());
        if mode(&dir) & OTHERS_SEARCH != 0 {
            // Their names are known, whether the directory can be read or not.
            let files = std::fs::read_dir(&dir).into_iter().flatten().flatten();
            for path in files.map(|entry| entry.path()) {
                let is_known = self.machine.locked.iter().any(|it| it.path == path);
                if !is_known && path.is_file() && mode(&path) & OTHERS_READ != 0 {
                    self.machine.locked.extend(lock(path, true));
                }
            }
        }
        // A file that was replaced is nobody's any more.
        let held = self.machine.locked.iter().filter(|it| it.is_users);
        let held = held.filter(|it| it.path.metadata().is_ok_and(|now| now.ino() == it.ino));
        let text: Vec<String> = held
            .map(|it| it.path.to_string_lossy().into_owned())
            .collect();
        if self.checks.is_serving() && !text.is_empty() {
            let text = format!("a user without privileges holds {}", text.join(", "));
            self.checks.broken("lock", text, self.now_ns);
        }
    }

    /// A process of root's takes the lock of a file in the state directory, and keeps it.
    pub(crate) fn root_locks(&mut self, name: &str) {
        let locked = lock(self.root.join("state").join(name), false);
        self.machine.has_locked |= locked.is_some();
        self.machine.locked.extend(locked);
    }

    /// Root's processes go on.
    pub(crate) fn root_unlocks(&mut self) {
        for it in self.machine.locked.extract_if(.., |it| !it.is_users) {
            // SAFETY: it is ours.
            unsafe { raw(libc::SYS_close, [it.fd, 0, 0, 0, 0, 0]) };
        }
    }
}
