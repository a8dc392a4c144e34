//! A state directory without space: the agent runs all the same, changes no kernel setting, and starts anew when there
//! is space.
//!
//! **Problem.** Every change of a setting is in a ledger before it is made. A full or read-only `/run` takes no ledger,
//! and any user may be able to fill it; a node whose agent then does not start is unwatched. **Approach.** Ledgers are
//! closed ([`Ledger::closed`](crate::host::ledger::Ledger::closed)), so that every change is refused and said, and
//! evictions go on. A thread tries the directory again, less and less often. When it takes something, the loop ends in
//! order and the program is executed anew, as the same process, with everything that a start does.

use std::convert::Infallible;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use tokio::sync::Notify;

use crate::host::state_dir::{has_no_space, try_space};
use crate::host::stop::StopSignals;
use crate::host::syscall::sched_other;
use crate::host::worker::WorkerThread;

/// Of the thread that tries.
const STACK_BYTES: usize = 64 << 10;
/// Between two attempts, at first and at most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Waits until a directory has space. Dropping it ends its thread.
#[derive(Debug)]
pub(super) struct SpaceWatch {
    found: Arc<AtomicBool>,
    notify: Arc<Notify>,
    _thread: WorkerThread<Infallible>,
}

impl SpaceWatch {
    /// Tries `dir` again and again.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub(super) fn start(dir: &Path) -> io::Result<Self> {
        let (found, notify) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let (dir, has_found, wake) = (dir.to_owned(), Arc::clone(&found), Arc::clone(&notify));
        let thread = WorkerThread::start("space", STACK_BYTES, 0, move |queue, _| {
            let mut pause = PAUSE_MIN;
            while queue.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                // Any other error is for the start to say.
                if !try_space(&dir).is_err_and(|error| has_no_space(&error)) {
                    has_found.store(true, Ordering::Release);
                    wake.notify_one();
                    return;
                }
                pause = (2 * pause).min(PAUSE_MAX);
            }
        })?;
        Ok(Self {
            found,
            notify,
            _thread: thread,
        })
    }

    /// Told once, when there is space.
    pub(super) fn notify(&self) -> Arc<Notify> {
        Arc::clone(&self.notify)
    }

    /// Whether there is space by now.
    pub(super) fn has_found(&self) -> bool {
        self.found.load(Ordering::Acquire)
    }

    /// After a run without space: executes this program anew if there is space, or after a failure as soon as there is.
    /// Returns if it is to end: when one of `signals`, which were caught before the run, has come, even while the run
    /// was ending for the space.
    ///
    /// # Errors
    /// `ended`, or why the program cannot be executed.
    pub(super) async fn start_anew(
        &self,
        ended: anyhow::Result<()>,
        mut signals: StopSignals,
    ) -> anyhow::Result<()> {
        if let Err(error) = &ended
            && !self.has_found()
        {
            tracing::error!("{error:#}; the agent restarts when the state directory has space");
            tokio::select! {
                () = self.notify.notified() => {}
                () = signals.received() => return ended,
            }
        }
        if !self.has_found() || signals.have_come().await {
            return ended;
        }
        Err(execute_anew().into())
    }
}

/// Returns only if it fails.
fn execute_anew() -> io::Error {
    // The scheduling of this process outlives `exec`; a start is not urgent.
    if let Err(error) = sched_other() {
        tracing::warn!(%error, "the restarted agent keeps real-time priority while it starts");
    }
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).args(arguments).exec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostRoot;
    use crate::host::ledger::Ledger;
    use crate::host::mounted::Mounted;
    use crate::host::state_lock::StateLock;

    /// As a `/run` that any user has filled.
    #[test]
    fn a_full_state_directory_is_locked_and_changes_nothing_until_it_has_space() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, knob) = (dir.path().join("disk"), dir.path().join("knob"));
        std::fs::create_dir(&disk).unwrap();
        std::fs::write(&knob, "1").unwrap();
        let Some(_mounted) = Mounted::tmpfs(&disk, "size=256k") else {
            return;
        };
        let state = disk.join("plimsoll");
        let filler = disk.join("filler");
        std::fs::write(&filler, vec![1; 1 << 20]).unwrap_err();
        let _lock = StateLock::acquire(&state).unwrap();
        let error = try_space(&state).unwrap_err();
        assert!(has_no_space(&error), "{error}");
        let host = HostRoot::new(dir.path());
        let mut ledger = Ledger::open(&host, state.join("knobs.jsonl")).unwrap();
        ledger.write(&knob, "2").unwrap_err();
        assert_eq!(std::fs::read_to_string(&knob).unwrap(), "1");

        // Seen through a read-only mount: the lock of before still keeps two agents apart.
        let view = dir.path().join("view");
        std::fs::create_dir(&view).unwrap();
        let _view = Mounted::at(&view);
        for how in ["bind", "remount,bind,ro"] {
            let mut mount = Command::new("mount");
            let mount = mount.args(["-o", how]).arg(&disk).arg(&view);
            assert!(mount.status().unwrap().success());
        }
        let seen = view.join("plimsoll");
        assert!(StateLock::acquire(&seen).is_err_and(|error| !error.is_out_of_space()));
        let absent = view.join("other");
        assert!(StateLock::acquire(&absent).is_err_and(|error| error.is_out_of_space()));

        let watch = SpaceWatch::start(&state).unwrap();
        assert!(!watch.has_found());
        std::fs::remove_file(&filler).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        runtime.unwrap().block_on(async {
            let signals = StopSignals::catch().unwrap();
            watch.notify().notified().await;
            assert!(watch.has_found());
            // As a signal that comes while the run ends for the space.
            let notified = Arc::new(Notify::new());
            notified.notify_one();
            let ended = watch.start_anew(Ok(()), signals.or_when(notified)).await;
            assert!(ended.is_ok(), "{ended:?}");
        });
        ledger.write(&knob, "2").unwrap();
        assert_eq!(ledger.restore().unwrap().restored(), 1);
    }
}
