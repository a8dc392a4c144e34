//! One descriptor for what the kernel says of many pods: `memory.events` of cgroup v2, eventfds of cgroup v1.
//!
//! **Problem.** There are as many files to wait for as there are cgroups, they come and go with the pods, and the agent's loop
//! waits for a fixed set of descriptors.
//! **Approach.** An epoll instance is itself a descriptor that can be waited for. Files are added edge-triggered: each
//! notification of the kernel is one event, whether or not the file has been read since, and a file that is closed takes
//! itself out. Nothing is remembered of which file it was: every pod's counters are read then.
//! **Terms.** *left out*: a file that the kernel would not watch (`fs.epoll.max_user_watches`). It is still read at every
//! housekeeping.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::source::memcg_v1::Notification;
use crate::source::memory_events::MemoryEvents;

/// Events taken from the kernel in one call.
const BATCH: usize = 64;
/// Calls in one [`PodEvents::take`]: enough for one event of each of 4096 cgroups. More are taken with the next ones; nothing is
/// lost by that, because every pod is looked at anyway.
const BATCHES_MAX: usize = 64;

/// The watched files of all pods. Readable when something has happened to one of them.
#[derive(Debug)]
pub struct PodEvents {
    epoll: OwnedFd,
    left_out: u64,
}

impl PodEvents {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// When no descriptor is to be had.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            left_out: 0,
        })
    }

    /// The same set, by another descriptor.
    ///
    /// # Errors
    /// When no descriptor is to be had.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            epoll: self.epoll.try_clone()?,
            left_out: 0,
        })
    }

    /// Watches the counters of a cgroup v2 until they are closed.
    pub fn watch_counters(&mut self, counters: &MemoryEvents) {
        self.add(counters.as_fd(), EventFlags::PRI);
    }

    /// Watches a notification of a cgroup v1 until it is disarmed. It need not be taken.
    pub fn watch_notification(&mut self, notification: &Notification) {
        self.add(notification.as_fd(), EventFlags::IN);
    }

    fn add(&mut self, fd: BorrowedFd<'_>, flags: EventFlags) {
        // POLLERR, which kernfs adds to POLLPRI, always comes; the number is not looked at.
        if let Err(error) = epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(0),
            flags | EventFlags::ET,
        ) {
            tracing::debug!(%error, "a file of a pod is not watched");
            self.left_out += 1;
        }
    }

    /// Takes all events that there are, and returns how many. Does not wait or allocate.
    ///
    /// # Errors
    /// The kernel's answer to `epoll_wait`.
    pub fn take(&self) -> io::Result<usize> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut taken = 0;
        for _ in 0..BATCHES_MAX {
            let mut events = [MaybeUninit::uninit(); BATCH];
            let batch = rustix::io::retry_on_intr(|| {
                epoll::wait(&self.epoll, &mut events, Some(&now)).map(|(batch, _)| batch.len())
            })?;
            taken += batch;
            if batch < BATCH {
                break;
            }
        }
        Ok(taken)
    }

    /// How many files the kernel has not taken.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl AsFd for PodEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::memcg_v1::MemcgV1;

    fn notification() -> Notification {
        let dir = tempfile::tempdir().unwrap();
        for file in [
            "cgroup.event_control",
            "memory.usage_in_bytes",
            "memory.oom_control",
        ] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        MemcgV1::open(dir.path()).unwrap().notify_oom().unwrap()
    }

    fn signal(notification: &Notification) {
        rustix::io::write(notification, &1_u64.to_ne_bytes()).unwrap();
    }

    #[test]
    fn each_signal_is_one_event_though_nobody_reads_the_eventfd() {
        let mut events = PodEvents::new().unwrap();
        let (first, second) = (notification(), notification());
        events.watch_notification(&first);
        events.watch_notification(&second);
        assert_eq!(events.take().unwrap(), 0);
        signal(&first);
        signal(&second);
        assert_eq!(events.take().unwrap(), 2);
        assert_eq!(events.take().unwrap(), 0, "told once");
        signal(&first);
        assert_eq!(events.take().unwrap(), 1, "told again");
        signal(&second);
        drop(second);
        assert_eq!(events.take().unwrap(), 0, "a closed one is not watched");
        assert_eq!(events.left_out(), 0);
    }

    #[test]
    fn more_events_than_a_batch() {
        let mut events = PodEvents::new().unwrap();
        let many: Vec<_> = (0..BATCH + 6).map(|_| notification()).collect();
        for notification in &many {
            events.watch_notification(notification);
            signal(notification);
        }
        assert_eq!(events.take().unwrap(), BATCH + 6);
    }

    #[test]
    fn what_cannot_be_watched_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let text = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n";
        std::fs::write(dir.path().join("memory.events"), text).unwrap();
        let mut events = PodEvents::new().unwrap();
        // The kernel refuses ordinary files (EPERM).
        events.watch_counters(&MemoryEvents::open(dir.path()).unwrap());
        assert_eq!(events.left_out(), 1);
    }
}
