//! Undoes one change, as far as it is still ours.

use std::path::Path;

use rustix::io::Errno;

use super::{Change, Line, UndoOutcome, is_enabled, reliance};
use crate::host::HostRoot;
use crate::host::file::{FileError, errno_of, read_text, write_text};
use crate::host::shown::Show as _;

/// A controller is not taken from cgroups of ours that have processes: their limits and CPUs would be gone. It may have
/// been enabled after they were made, so that all lines count, and not only those that have been undone. Nor is it
/// taken from other programs' cgroups that rely on it.
pub(super) fn below_in_use(change: &Change, lines: &[Line]) -> Option<String> {
    let Change::Enable { cgroup, controller } = change else {
        return None;
    };
    let used = lines.iter().find_map(|line| match &line.change {
        Change::Create { cgroup: below } if below.starts_with(cgroup) && below != cgroup => {
            is_populated(below).then_some(below)
        }
        _ => None,
    });
    if let Some(used) = used {
        return Some(format!("{} is in use", used.shown()));
    }
    let is_ours = |path: &Path| {
        lines
            .iter()
            .any(|line| matches!(&line.change, Change::Create { cgroup } if cgroup == path))
    };
    reliance::relied_on(cgroup, controller, is_ours)
}

/// Whether a v2 cgroup or one below it has processes; only there are controllers enabled.
fn is_populated(cgroup: &Path) -> bool {
    match read_text(cgroup.join("cgroup.events")) {
        Ok(events) => events.lines().any(|line| line == "populated 1"),
        // One that cannot be read now may be.
        Err(error) => !error.is_vanished(),
    }
}

/// Whether a file has a value that an earlier change of ours found or wrote there: a restore was killed after it had
/// undone this one.
fn is_of_earlier(lines: &[Line], file: &Path, now: &str) -> bool {
    lines.iter().any(|line| match &line.change {
        Change::Write { path, old, new, .. } => path == file && (old == now || new == now),
        _ => false,
    })
}

/// Undoes one change; `earlier` are those before it, which come next.
pub(super) fn undo(host: &HostRoot, change: &Change, earlier: &[Line]) -> UndoOutcome {
    match change {
        Change::Write {
            path,
            old,
            new,
            process,
        } => {
            if process.is_some_and(|process| !process.is_running(host)) {
                return UndoOutcome::NothingToDo;
            }
            match read_text(path) {
                Err(error) => refused(&error),
                Ok(now) if now.trim_end() == old => UndoOutcome::NothingToDo,
                // A write of no bytes does not reach the kernel's parser.
                Ok(now) if now.trim_end() == new && old.is_empty() => written(path, "\n"),
                Ok(now) if now.trim_end() == new => written(path, old),
                Ok(now) if is_of_earlier(earlier, path, now.trim_end()) => UndoOutcome::NothingToDo,
                Ok(now) => UndoOutcome::Left(format!(
                    "plimsoll wrote {new:?}, another program has since set {:?}",
                    now.trim_end()
                )),
            }
        }
        Change::Enable { cgroup, controller } => {
            let control = cgroup.join("cgroup.subtree_control");
            match is_enabled(&control, controller) {
                Err(error) => refused(&error),
                Ok(false) => UndoOutcome::NothingToDo,
                Ok(true) => written(&control, &format!("-{controller}")),
            }
        }
        Change::Create { cgroup } => match std::fs::remove_dir(cgroup) {
            Ok(()) => UndoOutcome::Restored,
            Err(error) => match errno_of(&error) {
                Errno::NOENT => UndoOutcome::NothingToDo,
                Errno::BUSY | Errno::NOTEMPTY => {
                    UndoOutcome::Busy("it has processes or cgroups inside".to_owned())
                }
                errno if may_pass(errno) => UndoOutcome::Busy(errno.to_string()),
                errno => UndoOutcome::Left(errno.to_string()),
            },
        },
        Change::Move { process, from, to } => {
            let pid = process.pid.to_string();
            let is_there = match read_text(to.join("cgroup.procs")) {
                Ok(procs) => procs.lines().any(|line| line == pid),
                Err(error) => return refused(&error),
            };
            if !is_there || !process.is_running(host) {
                return UndoOutcome::NothingToDo;
            }
            written(&from.join("cgroup.procs"), &pid)
        }
    }
}

fn written(path: &Path, value: &str) -> UndoOutcome {
    match write_text(path, value) {
        Ok(()) => UndoOutcome::Restored,
        Err(FileError::Unwritable {
            source: Errno::BUSY,
            ..
        }) => UndoOutcome::Busy("it is in use".to_owned()),
        Err(error) => refused(&error),
    }
}

/// What becomes of a change whose file cannot be read or written: it stays in the ledger if that can be otherwise the
/// next time.
fn refused(error: &FileError) -> UndoOutcome {
    match error {
        error if error.is_vanished() => UndoOutcome::NothingToDo,
        FileError::Unreadable { source, .. } | FileError::Unwritable { source, .. }
            if may_pass(*source) =>
        {
            UndoOutcome::Busy(error.to_string())
        }
        error => UndoOutcome::Left(error.to_string()),
    }
}

/// Whether the kernel refuses for what this process or the machine lacks at the moment, and not for what it was asked.
fn may_pass(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::IO
            | Errno::NOMEM
            | Errno::AGAIN
            | Errno::INTR
            | Errno::MFILE
            | Errno::NFILE
            | Errno::NOSPC
            | Errno::ROFS
            | Errno::ACCESS
            | Errno::PERM
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A change that is forgotten is never undone: only what can never work is.
    #[test]
    fn what_the_kernel_lacks_at_the_moment_is_tried_again() {
        let path: Arc<Path> = Arc::from(Path::new("/sys/fs/cgroup/kubepods/memory.max"));
        for (source, stays) in [
            (Errno::IO, true),
            (Errno::NOMEM, true),
            (Errno::AGAIN, true),
            (Errno::MFILE, true),
            (Errno::ROFS, true),
            (Errno::PERM, true),
            (Errno::INVAL, false),
            (Errno::OPNOTSUPP, false),
        ] {
            let path = Arc::clone(&path);
            let unwritable = FileError::Unwritable {
                path: Arc::clone(&path),
                source,
            };
            for error in [unwritable, FileError::Unreadable { path, source }] {
                let outcome = refused(&error);
                assert_eq!(
                    matches!(outcome, UndoOutcome::Busy(_)),
                    stays,
                    "{outcome:?}"
                );
            }
        }
        assert_eq!(
            refused(&FileError::Vanished { path }),
            UndoOutcome::NothingToDo
        );
    }
}
