//! The thread that looks at processes and writes their scores, and its queue.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::Notify;

use super::JOBS_MAX;
use super::look::{Job, Looker, Report};
use crate::host::clock::now_ns;
use crate::host::worker::{NotTaken, WorkerThread};

const STACK_BYTES: usize = 128 << 10;
/// So long a report waits for others before the loop is woken, nanoseconds. What is written is written by then.
const REPORT_WAITS_NS: u64 = 5_000_000;

/// The loop's side.
#[derive(Debug)]
pub(super) struct ScoreThread {
    jobs: WorkerThread<Job>,
    reports: Receiver<Report>,
}

impl ScoreThread {
    /// Starts the thread. `news` is notified of reports.
    pub(super) fn start(mut looker: Looker, news: Arc<Notify>) -> std::io::Result<Self> {
        // Room for the reports of all jobs that are on their way: the thread never waits for the loop.
        let (sender, reports): (SyncSender<Report>, _) = sync_channel(JOBS_MAX);
        let jobs = WorkerThread::start("oom-scores", STACK_BYTES, JOBS_MAX, move |queue, end| {
            let work = |job| (!end.is_asked()).then(|| looker.done(job, now_ns()));
            answer(
                &queue,
                work,
                &sender,
                JOBS_MAX,
                || news.notify_one(),
                now_ns,
            );
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

/// Does one job after the other until `work` or the loop has ended. Each report alone would wake the loop, hundreds of
/// times a second where pods have many cgroups: it is woken when `together` reports wait, which are all that it has asked
/// for, or when one has waited for [`REPORT_WAITS_NS`].
fn answer<Job, Report>(
    queue: &Receiver<Job>,
    mut work: impl FnMut(Job) -> Option<Report>,
    reports: &SyncSender<Report>,
    together: usize,
    wake: impl Fn(),
    now_ns: impl Fn() -> u64,
) {
    let (mut waiting, mut since_ns) = (0, 0);
    loop {
        let job = if waiting == 0 {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            let waited_ns = now_ns().saturating_sub(since_ns);
            queue.recv_timeout(Duration::from_nanos(
                REPORT_WAITS_NS.saturating_sub(waited_ns),
            ))
        };
        match job {
            Ok(job) => {
                let Some(report) = work(job) else { return };
                if reports.try_send(report).is_err() {
                    return;
                }
                if waiting == 0 {
                    since_ns = now_ns();
                }
                waiting += 1;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if waiting >= together || now_ns().saturating_sub(since_ns) >= REPORT_WAITS_NS {
            waiting = 0;
            wake();
        }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How often the loop is woken for twelve jobs, each of which takes so long, with at most four of them away.
    fn wakes(took_ns: u64) -> u32 {
        let (sender, queue) = sync_channel(12);
        let (reporter, reports) = sync_channel(12);
        (0..12).for_each(|job: u32| sender.send(job).unwrap());
        drop(sender);
        let (clock_ns, wakes) = (Cell::new(0), Cell::new(0));
        let work = |job| {
            clock_ns.set(clock_ns.get() + took_ns);
            Some(job)
        };
        let wake = || wakes.set(wakes.get() + 1);
        answer(&queue, work, &reporter, 4, wake, || clock_ns.get());
        assert!(reports.try_iter().eq(0..12));
        wakes.get()
    }

    #[test]
    fn reports_of_short_jobs_wake_the_loop_together() {
        assert_eq!(wakes(1_000), 3);
        assert_eq!(wakes(REPORT_WAITS_NS), 6);
    }

    #[test]
    fn the_loop_is_woken_though_no_other_job_comes() {
        let (sender, queue) = sync_channel(4);
        let (reporter, reports) = sync_channel(4);
        let (woken, wakes) = sync_channel(4);
        let thread = std::thread::spawn(move || {
            answer(
                &queue,
                Some,
                &reporter,
                4,
                || woken.send(()).unwrap(),
                now_ns,
            );
        });
        for job in 0..3 {
            sender.send(job).unwrap();
            wakes.recv().unwrap();
            assert_eq!(reports.recv().unwrap(), job);
        }
        drop(sender);
        thread.join().unwrap();
        assert_eq!(wakes.try_iter().count(), 0);
    }
}
