//! A thread for what the loop must not wait for: files that may be slow to read or write, clients that may be slow to
//! answer.
//!
//! Each such thread has a name (`ps -T`), a stack of known size, because all of it is locked in memory, and a bounded
//! queue of jobs. Handing it a job never blocks: a job that finds no room is dropped and counted. Closing the queue
//! asks the thread to end, and dropping the [`WorkerThread`] closes the queue and joins the thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long [`WorkerThread::end_soon`] waits.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks whether a thread has ended, where that is waited for with a limit.
const END_POLL: Duration = Duration::from_millis(1);

/// Why a job was not taken. It has been counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The queue is full.
    #[error("its queue is full")]
    Full,
    /// The thread has ended, or was asked to.
    #[error("its thread has ended")]
    Ended,
}

/// Whether a thread has been asked to end: for work that does not finish what is queued.
#[derive(Debug, Clone, Default)]
pub struct End(Arc<AtomicBool>);

impl End {
    /// Whether it has.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A named thread and its bounded queue of jobs.
#[derive(Debug)]
pub struct WorkerThread<J> {
    end: End,
    jobs: Option<SyncSender<J>>,
    dropped: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

impl<J: Send + 'static> WorkerThread<J> {
    /// Starts a thread that runs `work`, which returns when its queue, of at most `jobs_max` jobs, is closed.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn start(
        name: &str,
        stack_bytes: usize,
        jobs_max: usize,
        work: impl FnOnce(Receiver<J>, End) + Send + 'static,
    ) -> io::Result<Self> {
        let end = End::default();
        let of_thread = end.clone();
        let (jobs, queue) = sync_channel(jobs_max);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(stack_bytes)
            .spawn(move || work(queue, of_thread))?;
        Ok(Self {
            end,
            jobs: Some(jobs),
            dropped: AtomicU64::new(0),
            thread: Some(thread),
        })
    }

    /// Without a thread: what it would be given is in the queue.
    #[cfg(test)]
    pub(crate) fn without_thread(jobs_max: usize) -> (Self, Receiver<J>) {
        let (jobs, queue) = sync_channel(jobs_max);
        let worker = Self {
            end: End::default(),
            jobs: Some(jobs),
            dropped: AtomicU64::new(0),
            thread: None,
        };
        (worker, queue)
    }
}

impl<J> WorkerThread<J> {
    /// Queues a job. Does not wait.
    ///
    /// # Errors
    /// [`NotTaken`]: the job is dropped and counted.
    pub fn send(&self, job: J) -> Result<(), NotTaken> {
        let sent = match &self.jobs {
            Some(jobs) => jobs.try_send(job).map_err(|error| match error {
                TrySendError::Full(_) => NotTaken::Full,
                TrySendError::Disconnected(_) => NotTaken::Ended,
            }),
            None => Err(NotTaken::Ended),
        };
        if sent.is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// The thread, for `unpark`: for work that waits with `park_timeout` and not for jobs. `None` once it has ended.
    pub fn thread(&self) -> Option<&Thread> {
        self.thread.as_ref().map(JoinHandle::thread)
    }

    /// Jobs that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Closes the queue: the thread does what is queued, unless it looks at [`End`], and ends. Does not wait for that.
    pub fn close(&mut self) {
        self.end.0.store(true, Ordering::SeqCst);
        self.jobs = None;
        if let Some(thread) = self.thread() {
            thread.unpark();
        }
    }

    /// Closes the queue and waits until the thread has ended.
    pub fn end(&mut self) {
        self.close();
        self.join();
    }

    /// [`WorkerThread::end_by`] with a second from now.
    pub fn end_soon(&mut self) -> bool {
        self.end_by(Instant::now() + END_PATIENCE)
    }

    /// Closes the queue and waits until `deadline` at most. Whether the thread has ended: one that a disk holds up goes
    /// on until the process ends.
    pub fn end_by(&mut self, deadline: Instant) -> bool {
        self.close();
        while let Some(thread) = &self.thread {
            if thread.is_finished() {
                self.join();
            } else if Instant::now() >= deadline {
                // Not joined when this is dropped either.
                self.thread = None;
                return false;
            } else {
                std::thread::sleep(END_POLL);
            }
        }
        true
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            // The panic hook has printed why.
            tracing::error!("a worker thread panicked");
        }
    }
}

impl<J> Drop for WorkerThread<J> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const STACK_BYTES: usize = 64 << 10;

    #[test]
    fn dropping_it_finishes_what_is_queued() {
        let (done, results) = channel();
        let worker = WorkerThread::start("sums", STACK_BYTES, 4, move |queue, _| {
            for job in queue {
                done.send(job).unwrap();
            }
        })
        .unwrap();
        for job in 1..=4 {
            worker.send(job).unwrap();
        }
        drop(worker);
        assert_eq!(results.try_iter().collect::<Vec<u32>>(), [1, 2, 3, 4]);
    }

    #[test]
    fn what_finds_no_room_is_refused_and_counted() {
        let (let_go, wait) = channel::<()>();
        let worker =
            WorkerThread::start("stuck", STACK_BYTES, 1, move |queue: Receiver<u32>, _| {
                wait.recv().ok();
                drop(queue);
            })
            .unwrap();
        assert_eq!(worker.send(1), Ok(()));
        assert_eq!(worker.send(2), Err(NotTaken::Full));
        assert_eq!(worker.send(3), Err(NotTaken::Full));
        assert_eq!(worker.dropped(), 2);
        drop(let_go);
    }

    #[test]
    fn a_thread_that_has_ended_takes_nothing() {
        let mut worker =
            WorkerThread::start("short", STACK_BYTES, 4, |queue, _| drop(queue)).unwrap();
        worker.end();
        assert_eq!(worker.send(1), Err(NotTaken::Ended));
        assert_eq!(worker.dropped(), 1);
    }

    #[test]
    fn a_thread_that_does_not_end_is_not_waited_for() {
        let (let_go, wait) = channel::<()>();
        let held = Arc::new(());
        let held_by_thread = Arc::clone(&held);
        let work = move |_: Receiver<()>, _| {
            wait.recv().ok();
            drop(held_by_thread);
        };
        let mut worker = WorkerThread::start("held", STACK_BYTES, 1, work).unwrap();
        assert!(!worker.end_by(Instant::now()));
        drop(worker);
        assert_eq!(Arc::strong_count(&held), 2, "its thread still runs");
        drop(let_go);
    }
}
