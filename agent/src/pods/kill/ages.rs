//! How old processes are, read on a thread of its own.
//!
//! **Problem.** The oldest process of a container is its first one. When a process was started is in `/proc/PID/stat`
//! only, and to read that the kernel takes a reference of the process's memory (fs/proc/array.c, `do_task_stat`). If
//! the process ends meanwhile, the reader has the last reference and frees its memory: 50 ms for each GiB were
//! measured, in 2 of 20 ends. No other file or call says when a process was started on all kernels. **Approach.** A
//! thread reads, and the loop asks for the answer when it looks at the pod again. A process that is alone in its
//! container is the oldest, and nothing is read. As long as the first process is not known, SIGTERM goes to all.

use std::num::NonZeroI32;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::process::Pid;
use tokio::sync::Notify;

use crate::host::HostRoot;
use crate::host::processes::start_ticks;
use crate::host::worker::WorkerThread;

/// Questions that wait for the thread. Beyond, they are asked again at the next look at their pods.
const ASKED_MAX: usize = 64;
const STACK_BYTES: usize = 128 << 10;

/// Clock ticks from the boot to its start, and its pid.
pub(super) type Age = (u64, NonZeroI32);
/// Where the answer comes.
pub(super) type Answer = Receiver<Option<Age>>;

#[derive(Debug)]
struct Asked {
    pids: Vec<Pid>,
    answer: SyncSender<Option<Age>>,
}

/// The thread.
#[derive(Debug)]
pub struct Ages {
    asked: WorkerThread<Asked>,
}

impl Ages {
    /// Starts the thread. `news` is notified of each answer.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn start(host: HostRoot, news: Arc<Notify>) -> std::io::Result<Self> {
        let asked =
            WorkerThread::start("process-ages", STACK_BYTES, ASKED_MAX, move |queue, end| {
                for Asked { pids, answer } in queue {
                    let pids = pids.iter().take_while(|_| !end.is_asked());
                    // Nobody waits for it any more if the pod is gone.
                    answer.send(oldest(&host, pids)).ok();
                    news.notify_one();
                }
            })?;
        Ok(Self { asked })
    }

    /// Asks for the oldest of these. Does not wait. `None`: there is no place, ask again.
    pub(super) fn ask(&self, pids: Vec<Pid>) -> Option<Answer> {
        let (answer, receiver) = sync_channel(1);
        let sent = self.asked.send(Asked { pids, answer });
        sent.is_ok().then_some(receiver)
    }
}

impl Drop for Ages {
    fn drop(&mut self) {
        self.asked.end_soon();
    }
}

/// The oldest of these processes; those that are gone count as none.
pub(super) fn oldest<'a>(host: &HostRoot, pids: impl Iterator<Item = &'a Pid>) -> Option<Age> {
    pids.filter_map(|pid| Some((start_ticks(host, *pid)?, pid.as_raw_nonzero())))
        .min()
}
