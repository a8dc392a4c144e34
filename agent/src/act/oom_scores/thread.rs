//! The thread that looks at processes and writes their scores, and its queue.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::Notify;

use super::JOBS_MAX;
use super::look::{Job, Looker, Report};
use crate::host::clock::now_ns;
use crate::host::worker::{NotTaken, WorkerThread};

const STACK_BYTES: usize = 128 << 10;

/// The loop's side.
#[derive(Debug)]
pub(super) struct ScoreThread {
    jobs: WorkerThread<Job>,
    reports: Receiver<Report>,
}

impl ScoreThread {
    /// Starts the thread. `news` is notified of each report.
    pub(super) fn start(mut looker: Looker, news: Arc<Notify>) -> std::io::Result<Self> {
        // Room for the reports of all jobs that are on their way: the thread never waits for the loop.
        let (sender, reports): (SyncSender<Report>, _) = sync_channel(JOBS_MAX);
        let jobs = WorkerThread::start("oom-scores", STACK_BYTES, JOBS_MAX, move |queue, end| {
            for job in queue {
                if end.is_asked() {
                    return;
                }
                let report = looker.done(job, now_ns());
                if sender.try_send(report).is_err() {
                    return;
                }
                news.notify_one();
            }
        })?;
        Ok(Self { jobs, reports })
    }

    /// Does not wait. The caller sends no more than [`JOBS_MAX`] before their reports come back: there is room.
    pub(super) fn send(&self, job: Job) -> Result<(), NotTaken> {
        self.jobs.send(job)
    }

    /// The next report, if there is one.
    pub(super) fn report(&self) -> Option<Report> {
        self.reports.try_recv().ok()
    }

    /// The next report, which is waited for. `None`: it did not come.
    pub(super) fn report_within(&self, patience: Duration) -> Option<Report> {
        self.reports.recv_timeout(patience).ok()
    }
}

impl Drop for ScoreThread {
    fn drop(&mut self) {
        if !self.jobs.end_soon() {
            tracing::warn!(
                "an oom_score_adj is still being written: other processes hold up the kernel's lock of them; the write ends with the agent"
            );
        }
    }
}
