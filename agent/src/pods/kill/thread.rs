//! Writes `cgroup.kill`, and what holds a pod, on a thread of its own.
//!
//! **Problem.** Either write waits for `cgroup_mutex`, which every mkdir and rmdir of a cgroup takes: beside one
//! process that does nothing else it took 88 ms (p99), and 197 ms at most. The loop must not wait for what a tenant can
//! hold. **Approach.** The loop kills the containers' first processes by itself, through pidfds, and hands the open
//! files to a thread that is there before it is needed, at a real-time priority below the loop's. A pod's files are
//! handed over together, however many containers it has. Where there is no place for them, the pod is signalled instead
//! ([`super::PodKill::kill`]); the loop writes none. Where the kernel refuses the kill (a threaded cgroup), the thread
//! signals each process below the cgroup instead.
//!
//! **The hold.** `cgroup.max.descendants` waits for the same lock, and is written before the kill and after the signals
//! to first processes. What it is to refuse, the `mkdir` of a new container, waits for that lock too, and a kubelet
//! asks for it a second after the end of the old one at the earliest: the write is ahead of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::sweep::Sweep;
use crate::host::file::{ControlFile, FileError};
use crate::host::handover::Handover;
use crate::host::protect::RELEASE_PRIORITY;
use crate::host::syscall::sched_rr_reset_on_fork;
use crate::host::worker::{End, WorkerThread};

/// Jobs that may wait: one that kills a pod, and beside a kubelet one that holds it.
const JOBS_MAX: usize = 64;
/// Between two walks that signal.
const WALK_PAUSE: Duration = Duration::from_millis(10);
/// The signals to the processes of one cgroup may take so long; other pods wait meanwhile.
const SIGNALS_WITHIN: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 128 << 10;

/// What [`super::HOLD_FILE`] of a pod that is held has.
pub const HELD: &str = "0";

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// To `cgroup.kill`: every process below ends.
    Kill,
    /// To `cgroup.max.descendants`: nothing new starts below.
    Hold,
}

impl What {
    pub(crate) const fn text(self) -> &'static [u8] {
        match self {
            Self::Kill => b"1",
            Self::Hold => HELD.as_bytes(),
        }
    }
}

/// Open files of one pod that the same is written to.
pub(super) type Files = Arc<[Arc<ControlFile>]>;

/// Files, and what is written to them.
type Job = (Files, What);

/// How long the kernel held up the writes so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteTimes {
    /// Writes that are over.
    pub count: u64,
    /// Their time, nanoseconds.
    pub sum_ns: u64,
    /// The longest, nanoseconds.
    pub max_ns: u64,
}

#[derive(Debug, Default)]
struct Shared {
    jobs: Handover<Job, JOBS_MAX>,
    /// The thread takes a job, or works on it.
    is_busy: AtomicBool,
    refused: AtomicU64,
    count: AtomicU64,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// The loop's side.
#[derive(Debug)]
pub struct KillThread {
    shared: Arc<Shared>,
    thread: WorkerThread<Infallible>,
}

impl KillThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn start() -> std::io::Result<Self> {
        Self::start_with(|file, what| file.write(what.text()))
    }

    /// With another way to write, for tests.
    pub(crate) fn start_with(
        write: impl Fn(&ControlFile, What) -> Result<(), FileError> + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = WorkerThread::start("pod-kill", STACK_BYTES, 0, move |_jobs, end| {
            // Refused where the loop's SCHED_FIFO is, which the agent has warned of.
            if let Err(error) = sched_rr_reset_on_fork(None, RELEASE_PRIORITY) {
                tracing::debug!(%error, "the thread that kills pods has an ordinary priority");
            }
            work(&of_thread, write, &end);
        })?;
        Ok(Self { shared, thread })
    }

    /// Has files written. Does not wait, allocates nothing.
    ///
    /// # Errors
    /// The thread has no place for them: nothing is written.
    pub(super) fn write(&self, files: &Files, what: What) -> Result<(), FileError> {
        let Some(first) = files.first() else {
            return Ok(());
        };
        let job = (Arc::clone(files), what);
        let same = |one: &Job, other: &Job| Arc::ptr_eq(&one.0, &other.0);
        let is_taken = self.shared.jobs.put_once(job, same);
        if let Some(thread) = self.thread.thread() {
            thread.unpark();
        }
        if is_taken {
            return Ok(());
        }
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        Err(FileError::Unwritable {
            path: Arc::clone(first.path()),
            source: Errno::AGAIN,
        })
    }

    /// Whether all that was handed over is written.
    pub fn is_idle(&self) -> bool {
        // In this order: the thread is busy before it takes.
        self.shared.jobs.is_empty() && !self.shared.is_busy.load(Ordering::SeqCst)
    }

    /// Pods whose files found no place.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// How long the thread's writes took.
    pub fn times(&self) -> WriteTimes {
        let Shared {
            count,
            sum_ns,
            max_ns,
            ..
        } = &*self.shared;
        WriteTimes {
            count: count.load(Ordering::Relaxed),
            sum_ns: sum_ns.load(Ordering::Relaxed),
            max_ns: max_ns.load(Ordering::Relaxed),
        }
    }
}

impl Drop for KillThread {
    fn drop(&mut self) {
        if !self.thread.end_soon() {
            tracing::warn!(
                "a write to cgroup.kill is still held up; the first process of each container was killed before it"
            );
        }
    }
}

fn work(shared: &Shared, write: impl Fn(&ControlFile, What) -> Result<(), FileError>, end: &End) {
    loop {
        // Read first: what was handed over before the end is still written.
        let is_over = end.is_asked();
        shared.is_busy.store(true, Ordering::SeqCst);
        while let Some((files, what)) = shared.jobs.take() {
            for file in &*files {
                write_one(shared, file, what, &write, end);
            }
        }
        shared.is_busy.store(false, Ordering::SeqCst);
        if is_over {
            return;
        }
        // A file, or the end, that comes in between has left its token: then this returns at once.
        std::thread::park();
    }
}

fn write_one(
    shared: &Shared,
    file: &ControlFile,
    what: What,
    write: impl Fn(&ControlFile, What) -> Result<(), FileError>,
    end: &End,
) {
    let began = Instant::now();
    let written = write(file, what);
    let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    shared.count.fetch_add(1, Ordering::Relaxed);
    shared.sum_ns.fetch_add(took_ns, Ordering::Relaxed);
    shared.max_ns.fetch_max(took_ns, Ordering::Relaxed);
    match written {
        Err(error) if error.is_vanished() => {}
        Err(error) if what == What::Kill => signal_instead(file, &error, end),
        Err(error) => tracing::warn!(
            "{error}; the pod is not held: what its kubelet starts in it again is killed again"
        ),
        Ok(()) => {}
    }
}

/// Writes them here.
///
/// # Errors
/// The first, after all were tried. A cgroup that is gone is none.
pub(super) fn write_here(files: &Files, what: What) -> Result<(), FileError> {
    let mut failed = Ok(());
    for file in &**files {
        match file.write(what.text()) {
            Err(error) if !error.is_vanished() && failed.is_ok() => failed = Err(error),
            _ => {}
        }
    }
    failed
}

/// The kernel does not kill this cgroup as a whole.
fn signal_instead(file: &ControlFile, error: &FileError, end: &End) {
    tracing::debug!(%error, "the processes of a pod are killed one by one");
    let Some(dir) = file.path().parent() else {
        return;
    };
    let until = Instant::now() + SIGNALS_WITHIN;
    let ended = Sweep::of(dir, None).end(&mut |is_walk_over| {
        if is_walk_over {
            std::thread::sleep(WALK_PAUSE);
        }
        !end.is_asked() && Instant::now() < until
    });
    match ended {
        Ok(ended) if ended.is_empty => {}
        Ok(ended) => tracing::warn!(
            "{error}; after {} SIGKILLs in {} walks processes are left there",
            ended.signals,
            ended.walks
        ),
        Err(second) => tracing::warn!("{error}; {second}"),
    }
}
