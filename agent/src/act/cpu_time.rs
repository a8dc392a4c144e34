//! CPU time of pods, read once a second, and their bandwidth, changed as the engine decides.
//!
//! **Problem.** What [`policy::cpu`](plimsoll_core::policy::cpu) looks at is in several files per container, and on v2
//! the kernel adds a cgroup's statistics up over all CPUs for each reading of `cpu.stat`: the loop that evicts must not
//! do that. And what is changed must be put back, whatever becomes of the agent.
//!
//! **Approach.** A thread of ordinary priority, started only where an option asks for it, reads ([`reader`]) and hands
//! readings to the loop; what the loop has decided comes back as changes, one at a time and in their order. Each is in
//! a ledger of its own before it is made ([`bandwidth`]), is undone when the engine wants that or when the agent ends,
//! and, after `kill -9`, when the next one starts. A reading that finds no room, because the loop has other things to
//! do, is dropped: all figures are totals.

mod bandwidth;
mod reader;
mod tasks;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::bandwidth::{CpuKnob, CpuReading, WaitSource};
use plimsoll_core::placement::cpu_set::CpuSet;
use tokio::sync::mpsc;

use self::reader::{Reader, Remark};
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath};
use crate::host::clock::now_ns;
use crate::host::ledger::{KnobError, Ledger};
use crate::host::shown::Show as _;
use crate::host::worker::WorkerThread;

/// Its ledger, in the state directory.
pub const CPU_LEDGER: &str = "cpu.jsonl";
/// Between two readings.
pub const READ_EVERY: Duration = Duration::from_secs(1);
/// Between two looks for cgroups that are gone and still in the ledger.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// Changes that may wait. What finds no room is decided again at the next reading.
const CHANGES: usize = 1024;
/// Reports that may wait for the loop.
const REPORTS: usize = 64;
/// Its thread does not go deep, and all of it is locked in memory.
const STACK_BYTES: usize = 256 << 10;

/// Why CPU time is not looked after.
#[derive(Debug, thiserror::Error)]
pub enum CpuTimeError {
    /// There is no cpu controller, or `/proc/stat` cannot be read.
    #[error("CPU time of pods cannot be read: {0}")]
    Files(#[from] CgroupError),
    /// No thread is to be had.
    #[error(
        "cannot start the thread for CPU time: {0}; raise the limit of threads of the agent's cgroup (pids.max)"
    )]
    Thread(#[source] std::io::Error),
}

/// What is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Watch {
    /// Pods, by ascending UID.
    pub pods: Vec<WatchedPod>,
    /// CPUs that are somebody's own.
    pub exclusive: CpuSet,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedPod {
    /// Which one.
    pub uid: PodUid,
    /// Its cgroup.
    pub path: CgroupPath,
    /// Whether it could be a pod that comes first: only then it is worth knowing how long it waits, where that is dear
    /// to find out.
    pub may_come_first: bool,
}

/// A setting of a cgroup, and what it is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Which pod.
    pub uid: PodUid,
    /// Which container; empty for the pod's own cgroup.
    pub container: Arc<str>,
    /// What.
    pub knob: CpuKnob,
    /// Microseconds per period; `None`: what it had before us.
    pub us: Option<u64>,
}

/// What the thread has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The pods, and the CPUs.
    Reading(Arc<CpuReading>),
    /// A change could not be made, or somebody else has undone it.
    NotWritten {
        /// Which pod.
        uid: PodUid,
        /// Which container.
        container: Arc<str>,
        /// What.
        knob: CpuKnob,
        /// Why.
        error: String,
    },
    /// Something that people should know.
    Remark(String),
}

/// Reports of the thread.
pub type Reports = mpsc::Receiver<Report>;

#[derive(Debug, Default)]
struct Shared {
    watch: Mutex<Arc<Watch>>,
    /// Reports that found no room.
    dropped: AtomicU64,
}

impl Shared {
    fn watch(&self) -> Arc<Watch> {
        // No code panics while it has the lock.
        Arc::clone(&self.watch.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The loop's side. Dropping it ends the thread: every setting is as before then.
#[derive(Debug)]
pub struct CpuTime {
    shared: Arc<Shared>,
    changes: WorkerThread<Setting>,
    source: WaitSource,
}

impl CpuTime {
    /// Starts the thread. `ledger` has been restored and is used by nobody else.
    ///
    /// # Errors
    /// [`CpuTimeError`].
    pub fn start(
        host: &HostRoot,
        mounts: &CgroupMounts,
        ledger: Ledger,
        every: Duration,
    ) -> Result<(Self, Reports), CpuTimeError> {
        let reader = Reader::open(host, mounts)?;
        let source = reader.source();
        let shared = Arc::new(Shared::default());
        let (reports, receiver) = mpsc::channel(REPORTS);
        let worker = Worker {
            shared: Arc::clone(&shared),
            reader,
            ledger,
            reports,
            said: Vec::new(),
        };
        let changes = WorkerThread::start("cpu-time", STACK_BYTES, CHANGES, move |queue, _| {
            worker.run(&queue, every);
        })
        .map_err(CpuTimeError::Thread)?;
        let cpu_time = Self {
            shared,
            changes,
            source,
        };
        Ok((cpu_time, receiver))
    }

    /// How waiting is measured here.
    pub fn source(&self) -> WaitSource {
        self.source
    }

    /// Looks at these pods from the next reading on.
    pub fn watch(&self, watch: Watch) {
        *self
            .shared
            .watch
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(watch);
    }

    /// Has a setting changed. Does not wait; without room it is dropped and counted, and the engine sees from the next
    /// reading that it was not done.
    pub fn change(&self, setting: Setting) {
        self.changes.send(setting).ok();
    }

    /// Changes and readings that found no room.
    pub fn dropped(&self) -> u64 {
        self.changes.dropped() + self.shared.dropped.load(Ordering::Relaxed)
    }
}

struct Worker {
    shared: Arc<Shared>,
    reader: Reader,
    ledger: Ledger,
    reports: mpsc::Sender<Report>,
    /// What was said at the last reading, so that it is not said at each.
    said: Vec<String>,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Setting>, every: Duration) {
        let mut next = Instant::now();
        let mut tidied = Instant::now();
        loop {
            match queue.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(change) => self.change(&change),
                Err(RecvTimeoutError::Timeout) => {
                    self.read();
                    // Never several to make up for lost ones.
                    next = (next + every).max(Instant::now());
                    if tidied.elapsed() >= TIDY_EVERY {
                        tidied = Instant::now();
                        self.tidy();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return self.end(),
            }
        }
    }

    fn read(&mut self) {
        let watch = self.shared.watch();
        let mut overwritten: Vec<(PodUid, Arc<str>, CpuKnob, PathBuf)> = Vec::new();
        let mut said = Vec::new();
        let reading = self
            .reader
            .read(&watch, now_ns(), &mut |remark| match remark {
                Remark::Overwritten {
                    uid,
                    container,
                    knob,
                    path,
                } => overwritten.push((uid, container, knob, path)),
                Remark::Unreadable(text) => said.push(text),
            });
        for (uid, container, knob, path) in overwritten {
            // Its line is of no use any more; the restoration says what is there now.
            let error = match self.ledger.restore_file(&path) {
                Ok(left) => left.remarks().join("; "),
                Err(error) => error.to_string(),
            };
            let error = match error.is_empty() {
                true => format!("{}: another program has put it back", path.shown()),
                false => error,
            };
            self.tell(Report::NotWritten {
                uid,
                container,
                knob,
                error,
            });
        }
        match reading {
            Ok(reading) => self.tell(Report::Reading(Arc::new(reading))),
            Err(error) => said.push(error.to_string()),
        }
        for text in &said {
            if !self.said.contains(text) {
                self.tell(Report::Remark(text.clone()));
            }
        }
        self.said = said;
    }

    fn change(&mut self, setting: &Setting) {
        match self.reader.change(setting, &mut self.ledger) {
            Ok(remarks) => {
                for text in remarks {
                    self.tell(Report::Remark(text));
                }
            }
            Err(error) => {
                let Setting {
                    uid,
                    container,
                    knob,
                    ..
                } = setting.clone();
                self.tell(Report::NotWritten {
                    uid,
                    container,
                    knob,
                    error: error.to_string(),
                });
            }
        }
    }

    fn tidy(&mut self) {
        if let Err(error) = self.ledger.forget_vanished() {
            self.tell(Report::Remark(error.to_string()));
        }
    }

    fn end(mut self) {
        let was_changed = self.reader.is_changed();
        let restored: Result<_, KnobError> = self.ledger.restore();
        match restored {
            Ok(restoration) => {
                for remark in restoration.remarks() {
                    tracing::warn!("{remark}");
                }
                tracing::debug!(
                    was_changed,
                    restored = restoration.restored(),
                    "CPU bandwidth"
                );
            }
            Err(error) => {
                tracing::error!(%error, "CPU bandwidth of pods is not restored; the next start tries again");
            }
        }
    }

    fn tell(&self, report: Report) {
        if self.reports.try_send(report).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
