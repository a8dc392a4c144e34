//! Carries out what is tried before an eviction: `memory.reclaim` and `memory.high` of a pod's cgroup.
//!
//! **Problem.** Both writes block: `memory.reclaim` until the kernel has taken what was asked for, and `memory.high`
//! below the present usage until it has tried to bring the usage down (mm/memcontrol.c, `memory_high_write`). The loop
//! that evicts must not wait for either. And a cgroup that is left at a low `memory.high` stands still, for as long as
//! it is there.
//!
//! **Approach.** One thread of ordinary priority does the writes, one job at a time: reclaim in chunks
//! ([`RECLAIM_CHUNK_BYTES`]), so that it can be stopped between two of them. `memory.high` is changed through a ledger
//! of its own, which holds at most one line. It is put back
//! - by the loop, at once and without waiting for the thread ([`Remedies::clear_high`]);
//! - by the thread itself, if the loop asked for that while the write still blocked, or if it has not come back half a
//!   second after the time is over;
//! - when the agent ends, and, after `kill -9`, when the next one starts: by the ledger.
//!
//! The loop is on its way to a kill and has a real-time priority: it never waits for a lock that the thread could hold.
//! Jobs are handed over in a [`Handover`], and what the thread is about to write in [`Announced`]. Nobody stays at our
//! `memory.high`: the thread announces, looks at the ticket, writes, and looks at the ticket again; the loop changes
//! the ticket, then reads what is announced, then the file. If the loop finds nothing announced, the thread's first
//! look comes after the change, and it does not write. Else either the thread's second look comes after the change, and
//! it puts the value back; or its write was over before, and the loop finds it in the file.
//!
//! **Terms.** A *ticket* numbers the jobs: the newest one is the only one that counts.

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::RemedyReport;
use plimsoll_core::model::remedy::Remedy;
use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::host::clock::now_ns;
use crate::host::file::{FileError, parse_u64};
use crate::host::handover::Handover;
use crate::host::ledger::{KnobError, Ledger};
use crate::host::shown::Show as _;
use crate::host::worker::{End, WorkerThread};
use crate::pods::remedy_files::RemedyFiles;

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
/// How long the end of the agent waits for a write that is under way.
const END_PATIENCE: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 128 << 10;
/// `max` as a number.
const NO_LIMIT: u64 = u64::MAX;
/// Bytes of `memory.high`: a number of 20 digits, or `max`.
const HIGH_TEXT_BYTES: usize = 32;

/// What the thread has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which pod.
    pub uid: PodUid,
    /// Which remedy.
    pub remedy: Remedy,
    /// What.
    pub report: RemedyReport,
}

/// Reports of the thread.
pub type Reports = mpsc::Receiver<Report>;

/// The thread is still at something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{JOBS} earlier jobs are still waiting for the kernel")]
pub struct Busy;

#[derive(Debug)]
struct Job {
    ticket: u64,
    uid: PodUid,
    files: Arc<RemedyFiles>,
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
    ticket: u64,
    uid: PodUid,
    files: Arc<RemedyFiles>,
}

/// What the thread is about to write to a `memory.high`, and what is there; [`NO_LIMIT`] for `max`.
#[derive(Debug, Default)]
struct Announced {
    /// The job's; the others belong to it. Written last.
    ticket: AtomicU64,
    old: AtomicU64,
    new: AtomicU64,
}

impl Announced {
    fn announce(&self, ticket: u64, old: u64, new: u64) {
        self.old.store(old, Ordering::SeqCst);
        self.new.store(new, Ordering::SeqCst);
        self.ticket.store(ticket, Ordering::SeqCst);
    }

    /// The old and the new value of a job, once they are known. Only for the newest job: the thread has then none to
    /// announce in between.
    fn of(&self, ticket: u64) -> Option<(u64, u64)> {
        let load = |value: &AtomicU64| value.load(Ordering::SeqCst);
        (load(&self.ticket) == ticket).then(|| (load(&self.old), load(&self.new)))
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// The newest ticket.
    ticket: AtomicU64,
    jobs: Handover<Job, JOBS>,
    announced: Announced,
}

impl Shared {
    fn counts(&self, ticket: u64) -> bool {
        self.ticket.load(Ordering::SeqCst) == ticket
    }
}

/// The loop's side.
#[derive(Debug)]
pub struct Remedies {
    shared: Arc<Shared>,
    held: Option<Held>,
    thread: WorkerThread<Infallible>,
}

impl Remedies {
    /// Starts the thread. `ledger` has been restored and is used by nobody else.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(ledger: Ledger) -> std::io::Result<(Self, Reports)> {
        let shared = Arc::new(Shared::default());
        let (reports, received) = mpsc::channel(REPORTS);
        let worker = Worker {
            shared: Arc::clone(&shared),
            ledger,
            reports,
            overdue_ns: None,
            said: Vec::new(),
        };
        let work = move |_jobs, end| worker.run(&end);
        let thread = WorkerThread::start("remedies", STACK_BYTES, 0, work)?;
        let remedies = Self {
            shared,
            held: None,
            thread,
        };
        Ok((remedies, received))
    }

    /// Has the kernel take `bytes` back from a pod. Allocates nothing, does not wait.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn reclaim(
        &self,
        uid: &PodUid,
        files: &Arc<RemedyFiles>,
        bytes: u64,
        until_ns: u64,
    ) -> Result<(), Busy> {
        self.send(uid, files, bytes, until_ns, Work::Reclaim)
            .map(|_| ())
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
        &mut self,
        uid: &PodUid,
        files: &Arc<RemedyFiles>,
        bytes: u64,
        until_ns: u64,
    ) -> Result<(), Busy> {
        self.held = None;
        let ticket = self.send(uid, files, bytes, until_ns, Work::SetHigh)?;
        self.held = Some(Held {
            ticket,
            uid: uid.clone(),
            files: Arc::clone(files),
        });
        Ok(())
    }

    fn send(
        &self,
        uid: &PodUid,
        files: &Arc<RemedyFiles>,
        bytes: u64,
        until_ns: u64,
        what: Work,
    ) -> Result<u64, Busy> {
        let ticket = self.shared.ticket.fetch_add(1, Ordering::SeqCst) + 1;
        let job = Job {
            ticket,
            uid: uid.clone(),
            files: Arc::clone(files),
            bytes,
            until_ns,
            what,
        };
        if !self.shared.jobs.put(job) {
            return Err(Busy);
        }
        if let Some(thread) = self.thread.thread() {
            thread.unpark();
        }
        Ok(ticket)
    }

    /// Puts a pod's `memory.high` back, if it still has the value that we wrote: two system calls, no allocation, no
    /// lock. If the thread's write is still to come, or under way, the thread puts it back itself as soon as that
    /// returns.
    ///
    /// # Errors
    /// [`FileError`]; the caller tries again, and so does the thread. A cgroup that is gone is none.
    pub fn clear_high(&mut self, uid: &PodUid) -> Result<(), FileError> {
        // Before the file is read: see the head of this file.
        self.shared.ticket.fetch_add(1, Ordering::SeqCst);
        let Some(held) = self.held.as_ref().filter(|held| held.uid == *uid) else {
            return Ok(());
        };
        let put_back = match self.shared.announced.of(held.ticket) {
            Some((old, new)) => put_back(&held.files, old, new),
            // The thread will see that the ticket is another one, and not write.
            None => Ok(()),
        };
        match put_back {
            Err(error) if !error.is_vanished() => Err(error),
            _ => {
                let files = Arc::clone(&held.files);
                self.held = None;
                // What was written is still in the ledger, which the thread tidies. If there is no room, it does so by
                // itself when the pod's time is over.
                self.send(uid, &files, 0, 0, Work::Tidy).ok();
                Ok(())
            }
        }
    }
}

impl Drop for Remedies {
    /// Stops what is under way; no pod is held any more when this returns, unless the kernel keeps the thread in a
    /// write for longer than [`END_PATIENCE`]: then the ledger has it.
    fn drop(&mut self) {
        self.shared.ticket.fetch_add(1, Ordering::SeqCst);
        if !self.thread.end_by(Instant::now() + END_PATIENCE) {
            tracing::warn!(
                "the kernel has not come back from a write to a pod's memory.high or memory.reclaim; the next start, or `plimsoll uninstall`, puts memory.high back"
            );
        }
    }
}

fn put_back(files: &RemedyFiles, old: u64, new: u64) -> Result<(), FileError> {
    let Some(file) = &files.high else {
        return Ok(());
    };
    let mut buffer = [0; HIGH_TEXT_BYTES];
    if high_of(file.read_into(&mut buffer)?) != Some(new) {
        return Ok(());
    }
    let mut text = &mut buffer[..];
    // There is room for every number.
    let written = match old {
        NO_LIMIT => text.write(b"max"),
        bytes => write!(text, "{bytes}").map(|()| 0),
    };
    written.ok();
    let left = text.len();
    file.write(&buffer[..HIGH_TEXT_BYTES - left])
}

/// A text of `memory.high`.
fn high_of(text: &[u8]) -> Option<u64> {
    match text.trim_ascii() {
        b"max" => Some(NO_LIMIT),
        bytes => parse_u64(bytes),
    }
}

struct Worker {
    shared: Arc<Shared>,
    ledger: Ledger,
    reports: mpsc::Sender<Report>,
    /// When what is in the ledger is put back without being asked for.
    overdue_ns: Option<u64>,
    /// What was said of the last restore.
    said: Vec<String>,
}

impl Worker {
    fn run(mut self, end: &End) {
        loop {
            // Before the jobs: one that came before the end is not overlooked.
            let is_over = end.is_asked();
            if let Some(job) = self.shared.jobs.take() {
                self.work(job);
            } else if is_over {
                return self.restore();
            } else if self.overdue_ns.is_some_and(|at_ns| at_ns <= now_ns()) {
                self.restore();
            } else {
                // A job or the end that comes in between has left its token: then this returns at once.
                match self.overdue_ns {
                    Some(at_ns) => std::thread::park_timeout(Duration::from_nanos(
                        at_ns.saturating_sub(now_ns()),
                    )),
                    None => std::thread::park(),
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
                self.report(&job, Remedy::Reclaim, report);
            }
            Work::SetHigh => {
                let failed = self.set_high(&job);
                if !self.shared.counts(job.ticket) || now_ns() >= job.until_ns {
                    self.restore();
                }
                if let Some(report) = failed {
                    self.report(&job, Remedy::Throttle, report);
                }
            }
        }
    }

    fn reclaim(&self, job: &Job) -> RemedyReport {
        let Some(file) = &job.files.reclaim else {
            return RemedyReport::Unsupported;
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
                    return RemedyReport::Failed { error };
                }
            }
        }
        RemedyReport::Reclaimed { bytes }
    }

    /// Returns what went wrong.
    fn set_high(&mut self, job: &Job) -> Option<RemedyReport> {
        let Some(file) = &job.files.high else {
            return Some(RemedyReport::Unsupported);
        };
        let failed = |error: String| Some(RemedyReport::Failed { error });
        let mut buffer = [0; HIGH_TEXT_BYTES];
        let old = match file.read_into(&mut buffer) {
            Ok(text) => high_of(text),
            Err(error) => return failed(error.to_string()),
        };
        let Some(old) = old else {
            return failed(file.malformed(0, "max or a number of bytes").to_string());
        };
        // A lower one than ours is somebody else's, and stricter.
        if old <= job.bytes {
            return failed(format!("{}: is at {old} already", file.path().shown()));
        }
        self.shared.announced.announce(job.ticket, old, job.bytes);
        if !self.shared.counts(job.ticket) {
            return None;
        }
        let overdue_ns = u64::try_from(OVERDUE.as_nanos()).unwrap_or(u64::MAX);
        self.overdue_ns = Some(job.until_ns.saturating_add(overdue_ns));
        match self.ledger.write(file.path(), &job.bytes.to_string()) {
            Ok(()) => None,
            Err(error) if error.is_vanished() => None,
            Err(error) => failed(error.to_string()),
        }
    }

    /// Puts back what the ledger has, if anything, and empties it.
    fn restore(&mut self) {
        let overdue_ns = u64::try_from(OVERDUE.as_nanos()).unwrap_or(u64::MAX);
        let again_ns = now_ns().saturating_add(overdue_ns);
        let restored: Result<_, KnobError> = self.ledger.restore();
        match restored {
            Ok(restoration) => {
                let remarks = restoration.remarks();
                for remark in remarks.iter().filter(|one| !self.said.contains(one)) {
                    tracing::warn!("{remark}");
                }
                self.said = remarks;
                // What could not be done for now, as without a file descriptor, is done later.
                self.overdue_ns = restoration.busy().map(|_| again_ns);
            }
            Err(error) => {
                tracing::error!(%error, "memory.high of a pod may still be plimsoll's; it is restored when the queue has room");
                self.overdue_ns = Some(again_ns);
            }
        }
    }

    fn report(&self, job: &Job, remedy: Remedy, report: RemedyReport) {
        let report = Report {
            uid: job.uid.clone(),
            remedy,
            report,
        };
        // The loop has ended, or does not listen: the engine sees from its samples how the remedy goes.
        if let Err(error) = self.reports.try_send(report) {
            tracing::debug!(%error, "a report of a remedy is lost");
        }
    }
}

#[cfg(test)]
mod tests;
