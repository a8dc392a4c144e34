//! Work on a pod's cgroups that the loop must not wait for: the removal of those of a pod that has left, and the end of
//! processes in those that are not kept.
//!
//! **Problem.** A pod decides how many cgroups it has: to remove twenty thousand took 1.75 s, at the very moment when
//! memory was short. **Approach.** A thread of its own. It removes a slice of [`SLICE`] directories of one pod and then
//! of the next, and rests after each: a removal takes `cgroup_mutex`, which others wait for. A kill goes first, and the
//! loop hands it over without a lock that this thread could hold. What could not be done is reported; what could is
//! counted.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;

use crate::host::file::FileError;
use crate::host::handover::Handover;
use crate::host::worker::{NotTaken, WorkerThread};
use crate::pods::kill::{Sweep, SweepEnded};
use crate::pods::remove_tree::{Removal, SLICE};

/// After each slice.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two walks that kill.
const WALK_PAUSE: Duration = Duration::from_millis(10);
/// Pods whose removal is queued, and again as many whose removal has begun.
const REMOVALS_MAX: usize = 256;
/// Pods whose processes wait for their end. The engine asks again while one lives.
const ENDS_MAX: usize = 8;
/// Reports that were not taken.
const REPORTS_MAX: usize = 64;
/// The end of the processes of one pod may take this long. The engine asks again while the pod lives.
const SWEEP_WITHIN: Duration = Duration::from_secs(5);
/// At the end of the agent, what is queued may take this long.
const END_WITHIN: Duration = Duration::from_millis(500);
const STACK_BYTES: usize = 256 << 10;

/// Go on in slices.
const RUN: u8 = 0;
/// Go on without a pause: the agent is about to end.
const HURRY: u8 = 1;
/// End after this slice.
const ABANDON: u8 = 2;

/// Cgroups of a pod that has left.
#[derive(Debug)]
struct Left {
    uid: PodUid,
    dirs: Vec<PathBuf>,
}

/// Processes of a pod that a kill has not reached.
#[derive(Debug)]
struct Unreached {
    uid: PodUid,
    sweep: Sweep,
}

type Ends = Handover<Unreached, ENDS_MAX>;

/// Work that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Of which pod.
    pub uid: PodUid,
    /// What was done.
    pub done: Done,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The cgroups of a pod that has left.
    Removed {
        /// How many directories were removed, in all hierarchies.
        directories: u64,
        /// Why some are left, if not because they are in use.
        failure: Option<FileError>,
    },
    /// The processes in the cgroups of a pod that are not kept.
    Ended(Result<SweepEnded, FileError>),
}

/// The thread, its queue and its reports.
#[derive(Debug)]
pub struct CgroupWorker {
    thread: WorkerThread<Left>,
    ends: Arc<Ends>,
    reports: Receiver<Report>,
    pace: Arc<AtomicU8>,
    dropped: AtomicU64,
}

impl CgroupWorker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn start() -> io::Result<Self> {
        let (sender, reports) = sync_channel(REPORTS_MAX);
        let pace = Arc::new(AtomicU8::new(RUN));
        let ends = Arc::new(Ends::default());
        let (pace_of_thread, ends_of_thread) = (Arc::clone(&pace), Arc::clone(&ends));
        let thread =
            WorkerThread::start("pod-cgroups", STACK_BYTES, REMOVALS_MAX, move |queue, _| {
                Worker {
                    queue,
                    ends: ends_of_thread,
                    reports: sender,
                    pace: pace_of_thread,
                    removals: VecDeque::with_capacity(REMOVALS_MAX),
                }
                .work();
            })?;
        Ok(Self {
            thread,
            ends,
            reports,
            pace,
            dropped: AtomicU64::new(0),
        })
    }

    /// Has the cgroups of a pod removed, as far as they are empty: these directories with all below them. Does not
    /// wait.
    ///
    /// # Errors
    /// [`NotTaken`]: they stay.
    pub(super) fn remove(&self, uid: &PodUid, dirs: Vec<PathBuf>) -> Result<(), NotTaken> {
        let uid = uid.clone();
        let sent = self.thread.send(Left { uid, dirs });
        self.handed_over(sent.is_ok());
        sent
    }

    /// Has the processes ended that a kill has not reached. Without a place for them they live on, and are counted.
    /// Does not wait or allocate.
    pub(super) fn end_unreached(&self, uid: &PodUid, sweep: &Sweep) {
        let (uid, sweep) = (uid.clone(), sweep.clone());
        let job = Unreached { uid, sweep };
        self.handed_over(self.ends.put_once(job, |one, other| one.uid == other.uid));
    }

    fn handed_over(&self, is_taken: bool) {
        if !is_taken {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(thread) = self.thread.thread() {
            thread.unpark();
        }
    }

    /// The next report, if there is one.
    pub fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// Work that found no room, so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Finishes what is queued, within half a second. Returns whether it has: else some cgroups stay.
    pub fn finish(&mut self) -> bool {
        self.pace.store(HURRY, Ordering::Relaxed);
        let has_ended = self.thread.end_by(Instant::now() + END_WITHIN);
        self.pace.store(ABANDON, Ordering::Relaxed);
        has_ended
    }
}

impl Drop for CgroupWorker {
    fn drop(&mut self) {
        self.finish();
    }
}

struct Worker {
    queue: Receiver<Left>,
    ends: Arc<Ends>,
    reports: SyncSender<Report>,
    pace: Arc<AtomicU8>,
    removals: VecDeque<PodRemoval>,
}

/// The trees of one pod, the next one last.
struct PodRemoval {
    uid: PodUid,
    trees: Vec<Removal>,
    directories: u64,
    failure: Option<FileError>,
}

impl Worker {
    fn work(mut self) {
        loop {
            if let Some(Unreached { uid, sweep }) = self.ends.take() {
                let ended = self.end(&sweep);
                self.report(uid, Done::Ended(ended));
                continue;
            }
            let is_closed = self.begin_removals();
            if !self.removals.is_empty() {
                self.remove_slice();
            } else if is_closed {
                return;
            }
            match self.pace.load(Ordering::Relaxed) {
                ABANDON => return,
                HURRY => {}
                // What came in between has left its token: then these return at once.
                _ if self.removals.is_empty() => std::thread::park(),
                _ => std::thread::park_timeout(PAUSE),
            }
        }
    }

    /// Takes what is queued, as far as there is room. Returns whether nothing more will come.
    fn begin_removals(&mut self) -> bool {
        while self.removals.len() < REMOVALS_MAX {
            match self.queue.try_recv() {
                Ok(Left { uid, dirs }) => self.removals.push_back(PodRemoval {
                    uid,
                    trees: dirs.into_iter().map(Removal::of).collect(),
                    directories: 0,
                    failure: None,
                }),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
        false
    }

    /// A slice of the pod whose turn it is.
    fn remove_slice(&mut self) {
        let Some(mut pod) = self.removals.pop_front() else {
            return;
        };
        if let Some(tree) = pod.trees.last_mut()
            && tree.slice(SLICE)
        {
            pod.directories += tree.removed;
            if let Err(error) = tree.outcome() {
                pod.failure = Some(error);
            }
            pod.trees.pop();
        }
        if pod.trees.is_empty() {
            let PodRemoval {
                uid,
                directories,
                failure,
                ..
            } = pod;
            self.report(
                uid,
                Done::Removed {
                    directories,
                    failure,
                },
            );
        } else {
            self.removals.push_back(pod);
        }
    }

    fn end(&self, sweep: &Sweep) -> Result<SweepEnded, FileError> {
        // Other pods wait meanwhile, and the size of the tree is the pod's choice.
        let until = Instant::now() + SWEEP_WITHIN;
        sweep.end(&mut |is_walk_over| {
            if is_walk_over {
                std::thread::sleep(WALK_PAUSE);
            }
            self.pace.load(Ordering::Relaxed) == RUN && Instant::now() < until
        })
    }

    fn report(&self, uid: PodUid, done: Done) {
        match self.reports.try_send(Report { uid, done }) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(report)) => tracing::warn!(?report, "a report finds no room"),
        }
    }
}

#[cfg(test)]
mod tests;
