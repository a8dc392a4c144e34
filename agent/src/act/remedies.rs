//! Carries out what is tried before an eviction: `memory.reclaim` and `memory.high` of a pod's cgroup.
//!
//! **Problem.** Both writes block: `memory.reclaim` until the kernel has taken what was asked for, and `memory.high` below the present
//! usage until it has tried to bring the usage down (mm/memcontrol.c, `memory_high_write`). The loop that evicts must not wait for either. And a cgroup that is
//! left at a low `memory.high` stands still, for as long as it is there.
//!
//! **Approach.** One thread of ordinary priority does the writes, one job at a time: reclaim in chunks ([`RECLAIM_CHUNK_BYTES`]), so that it can be
//! stopped between two of them. `memory.high` is changed through a ledger of its own, which holds at most one line. It is put back
//! - by the loop, at once and without waiting for the thread ([`Remedies::clear_high`]);
//! - by the thread itself, if the loop asked for that while the write still blocked, or if it has not come back half a second after the time is over;
//! - when the agent ends, and, after `kill -9`, when the next one starts: by the ledger.
//!
//! **Terms.** A *ticket* numbers the jobs: the newest one is the only one that counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_core::model::event::StageReport;
use plimsoll_core::model::units::PodUid;
use plimsoll_core::policy::memory::remedies::Stage;
use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::host::clock::now_ns;
use crate::host::file::FileError;
use crate::host::knobs::{KnobError, Ledger};
use crate::pods::stage_files::StageFiles;

/// Its ledger, in the state directory.
pub const REMEDIES_LEDGER: &str = "remedies.jsonl";
/// Bytes asked of `memory.reclaim` at one time: some milliseconds of the kernel's work.
pub const RECLAIM_CHUNK_BYTES: u64 = 16 << 20;
/// Jobs that may wait. The engine has one thing tried at a time, so more are never needed.
const JOBS: usize = 8;
/// Reports that may wait for the loop.
const REPORTS: usize = 8;
/// How long after its time a `memory.high` is put back without being asked to.
const OVERDUE: Duration = Duration::from_millis(500);
/// Bytes of `memory.high`: a number of 20 digits, or `max`.
const HIGH_TEXT_BYTES: usize = 32;

/// What a stage has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Which pod.
    pub uid: PodUid,
    /// Which stage.
    pub stage: Stage,
    /// What.
    pub report: StageReport,
}

/// Reports of the thread.
pub type Reports = mpsc::Receiver<Told>;

/// The thread is still at something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{JOBS} earlier jobs are still waiting for the kernel")]
pub struct Busy;

#[derive(Debug)]
struct Job {
    ticket: u64,
    uid: PodUid,
    files: Arc<StageFiles>,
    bytes: u64,
    until_ns: u64,
    what: Work,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Reclaim,
    SetHigh,
    /// `memory.high` is as before: the ledger has nothing to remember.
    Tidy,
}

/// A pod that is, or is about to be, at our `memory.high`.
#[derive(Debug)]
struct Held {
    uid: PodUid,
    files: Arc<StageFiles>,
    old: String,
    new: String,
}

#[derive(Debug, Default)]
struct Shared {
    /// The newest ticket.
    ticket: AtomicU64,
    /// Never locked while a write may block.
    held: Mutex<Option<Held>>,
}

impl Shared {
    fn counts(&self, ticket: u64) -> bool {
        self.ticket.load(Ordering::SeqCst) == ticket
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        // No code panics while it has the lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop's side.
#[derive(Debug)]
pub struct Remedies {
    shared: Arc<Shared>,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Remedies {
    /// Starts the thread. `ledger` has been restored and is used by nobody else.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(ledger: Ledger) -> std::io::Result<(Self, Reports)> {
        let shared = Arc::new(Shared::default());
        let (jobs, queue) = sync_channel(JOBS);
        let (reports, told) = mpsc::channel(REPORTS);
        let worker = Worker {
            shared: Arc::clone(&shared),
            ledger,
            reports,
            overdue_ns: None,
        };
        let thread = std::thread::Builder::new()
            .name("remedies".into())
            .stack_size(128 << 10)
            .spawn(move || worker.run(&queue))?;
        let remedies = Self {
            shared,
            jobs: Some(jobs),
            thread: Some(thread),
        };
        Ok((remedies, told))
    }

    /// Has the kernel take `bytes` back from a pod. Allocates nothing, does not wait.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn reclaim(
        &self,
        uid: &PodUid,
        files: &Arc<StageFiles>,
        bytes: u64,
        until_ns: u64,
    ) -> Result<(), Busy> {
        self.send(uid, files, bytes, until_ns, Work::Reclaim)
    }

    /// Stops a reclaim before its next chunk.
    pub fn stop_reclaim(&self) {
        self.shared.ticket.fetch_add(1, Ordering::SeqCst);
    }

    /// Holds a pod at a size. Allocates nothing, does not wait.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn set_high(
        &self,
        uid: &PodUid,
        files: &Arc<StageFiles>,
        bytes: u64,
        until_ns: u64,
    ) -> Result<(), Busy> {
        self.send(uid, files, bytes, until_ns, Work::SetHigh)
    }

    fn send(
        &self,
        uid: &PodUid,
        files: &Arc<StageFiles>,
        bytes: u64,
        until_ns: u64,
        what: Work,
    ) -> Result<(), Busy> {
        let job = Job {
            ticket: self.shared.ticket.fetch_add(1, Ordering::SeqCst) + 1,
            uid: uid.clone(),
            files: Arc::clone(files),
            bytes,
            until_ns,
            what,
        };
        match self.jobs.as_ref().map(|jobs| jobs.try_send(job)) {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => Err(Busy),
        }
    }

    /// Puts a pod's `memory.high` back, if it still has the value that we wrote: two system calls, no allocation. If the thread's write
    /// is under way it puts it back itself as soon as that returns.
    ///
    /// # Errors
    /// [`FileError`]; the caller tries again, and so does the thread. A cgroup that is gone is none.
    pub fn clear_high(&self, uid: &PodUid) -> Result<(), FileError> {
        self.shared.ticket.fetch_add(1, Ordering::SeqCst);
        let mut held = self.shared.held();
        let Some(mine) = held.as_ref().filter(|held| held.uid == *uid) else {
            return Ok(());
        };
        match put_back(mine) {
            Err(error) if !error.is_vanished() => Err(error),
            _ => {
                let files = Arc::clone(&mine.files);
                // What was written, and by whom, is still in the ledger: the thread looks there too before it forgets.
                *held = None;
                drop(held);
                // If there is no room, the thread finds out by itself when the pod's time is over.
                self.send(uid, &files, 0, 0, Work::Tidy).ok();
                Ok(())
            }
        }
    }
}

impl Drop for Remedies {
    /// Stops what is under way; nothing is held any more when this returns.
    fn drop(&mut self) {
        self.shared.ticket.fetch_add(1, Ordering::SeqCst);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It cannot panic: it only reads and writes files.
            thread.join().ok();
        }
    }
}

fn put_back(held: &Held) -> Result<(), FileError> {
    let Some(file) = &held.files.high else {
        return Ok(());
    };
    let mut buffer = [0; HIGH_TEXT_BYTES];
    let now = file.read_into(&mut buffer)?.trim_ascii();
    if now == held.new.as_bytes() {
        file.write(held.old.as_bytes())?;
    }
    Ok(())
}

struct Worker {
    shared: Arc<Shared>,
    ledger: Ledger,
    reports: mpsc::Sender<Told>,
    /// When what is in the ledger is put back without being asked for.
    overdue_ns: Option<u64>,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Job>) {
        loop {
            let job = match self.overdue_ns {
                Some(overdue_ns) => {
                    let wait_ns = overdue_ns.saturating_sub(now_ns());
                    queue.recv_timeout(Duration::from_nanos(wait_ns))
                }
                None => queue.recv().map_err(RecvTimeoutError::from),
            };
            match job {
                Ok(job) => self.work(job),
                Err(RecvTimeoutError::Timeout) => self.restore(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.restore();
                    return;
                }
            }
        }
    }

    fn work(&mut self, job: Job) {
        match job.what {
            Work::Tidy => self.restore(),
            // Stopped before it began.
            Work::Reclaim | Work::SetHigh if !self.shared.counts(job.ticket) => {}
            Work::Reclaim => {
                let report = self.reclaim(&job);
                self.tell(&job, Stage::Reclaim, report);
            }
            Work::SetHigh => {
                let failed = self.set_high(&job);
                if !self.shared.counts(job.ticket) || now_ns() >= job.until_ns {
                    self.restore();
                }
                if let Some(report) = failed {
                    self.tell(&job, Stage::Throttle, report);
                }
            }
        }
    }

    fn reclaim(&self, job: &Job) -> StageReport {
        let Some(file) = &job.files.reclaim else {
            return StageReport::Unsupported;
        };
        let mut bytes = 0;
        while bytes < job.bytes && self.shared.counts(job.ticket) && now_ns() < job.until_ns {
            let chunk_bytes = RECLAIM_CHUNK_BYTES.min(job.bytes - bytes);
            match file.write(chunk_bytes.to_string().as_bytes()) {
                Ok(()) => bytes += chunk_bytes,
                Err(FileError::Vanished { .. }) => break,
                // Less than that was to be had.
                Err(FileError::Unwritable {
                    source: Errno::AGAIN,
                    ..
                }) => break,
                Err(error) => {
                    let error = error.to_string();
                    return StageReport::Failed { error };
                }
            }
        }
        StageReport::Reclaimed { bytes }
    }

    /// Returns what went wrong.
    fn set_high(&mut self, job: &Job) -> Option<StageReport> {
        let Some(file) = &job.files.high else {
            return Some(StageReport::Unsupported);
        };
        let failed = |error: String| Some(StageReport::Failed { error });
        let mut buffer = [0; HIGH_TEXT_BYTES];
        let old = match file.read_into(&mut buffer) {
            Ok(text) => String::from_utf8_lossy(text.trim_ascii()).into_owned(),
            Err(error) => return failed(error.to_string()),
        };
        // A lower one than ours is somebody else's, and stricter.
        if old
            .parse()
            .is_ok_and(|old_bytes: u64| old_bytes <= job.bytes)
        {
            return failed(format!("{}: is at {old} already", file.path().display()));
        }
        let new = job.bytes.to_string();
        let mine = Held {
            uid: job.uid.clone(),
            files: Arc::clone(&job.files),
            old,
            new: new.clone(),
        };
        {
            let mut held = self.shared.held();
            if !self.shared.counts(job.ticket) {
                return None;
            }
            *held = Some(mine);
        }
        let overdue_ns = u64::try_from(OVERDUE.as_nanos()).unwrap_or(u64::MAX);
        self.overdue_ns = Some(job.until_ns.saturating_add(overdue_ns));
        match self.ledger.write(file.path(), &new) {
            Ok(()) => None,
            Err(error) if error.is_vanished() => None,
            Err(error) => failed(error.to_string()),
        }
    }

    /// Puts back what the ledger has, if anything, and empties it.
    fn restore(&mut self) {
        let restored: Result<_, KnobError> = self.ledger.restore();
        match restored {
            Ok(restoration) => {
                for remark in restoration.remarks() {
                    tracing::warn!("{remark}");
                }
                self.shared.held().take();
                self.overdue_ns = None;
            }
            Err(error) => {
                tracing::error!(%error, "memory.high of a pod may still be ours; it is put back when there is room");
                let again_ns = u64::try_from(OVERDUE.as_nanos()).unwrap_or(u64::MAX);
                self.overdue_ns = Some(now_ns().saturating_add(again_ns));
            }
        }
    }

    fn tell(&self, job: &Job, stage: Stage, report: StageReport) {
        let told = Told {
            uid: job.uid.clone(),
            stage,
            report,
        };
        // The loop has ended, or does not listen: the engine sees from its samples how the stage goes.
        if let Err(error) = self.reports.try_send(told) {
            tracing::debug!(%error, "a report of a stage is lost");
        }
    }
}

#[cfg(test)]
mod tests;
