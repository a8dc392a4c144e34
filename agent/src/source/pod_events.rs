//! One descriptor for what the kernel says of many pods: `memory.events` of cgroup v2, eventfds of cgroup v1.
//!
//! **Problem.** There are as many files to wait for as there are cgroups, they come and go with the pods, and the
//! agent's loop waits for a fixed set of descriptors. **Approach.** All of them are in one
//! [epoll instance](super::epoll_set), which is itself a descriptor that can be waited for. It does not say which file
//! it was: every pod's counters are read then. **Terms.** *Polled*: a file that the kernel refused to watch
//! (`fs.epoll.max_user_watches`). It is read at every housekeeping.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll::EventFlags;

use super::epoll_set::{EpollError, EpollSet};
use crate::source::memcg_v1::Notification;
use crate::source::memory_events::MemoryEvents;

/// The watched files of all pods. Readable when something has happened to one of them.
#[derive(Debug)]
pub struct PodEvents {
    watched: EpollSet,
    polled: u64,
}

impl PodEvents {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// [`EpollError::Create`].
    pub fn new() -> Result<Self, EpollError> {
        Ok(Self {
            watched: EpollSet::new("the memory events of pods")?,
            polled: 0,
        })
    }

    /// The same set, by another descriptor.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self {
            watched: self.watched.try_clone()?,
            polled: 0,
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
        // POLLERR, which kernfs adds to POLLPRI, always comes.
        if let Err(error) = self.watched.add(fd, flags) {
            tracing::debug!(%error, "a file of a pod is polled");
            self.polled += 1;
        }
    }

    /// Takes the events that there are, and returns how many. Does not wait or allocate.
    ///
    /// # Errors
    /// [`EpollError::Take`].
    pub fn take(&self) -> Result<usize, EpollError> {
        self.watched.take()
    }

    /// How many files could not be added to epoll, so that they are polled.
    pub fn polled(&self) -> u64 {
        self.polled
    }
}

impl AsFd for PodEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
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
    fn each_signal_is_one_event_although_the_eventfd_is_not_read() {
        let mut events = PodEvents::new().unwrap();
        let (first, second) = (notification(), notification());
        events.watch_notification(&first);
        events.watch_notification(&second);
        assert_eq!(events.take().unwrap(), 0);
        signal(&first);
        signal(&second);
        assert_eq!(events.take().unwrap(), 2);
        assert_eq!(events.take().unwrap(), 0, "reported once");
        signal(&first);
        assert_eq!(events.take().unwrap(), 1, "reported again");
        signal(&second);
        drop(second);
        assert_eq!(events.take().unwrap(), 0, "a closed one is not watched");
        assert_eq!(events.polled(), 0);
    }

    #[test]
    fn what_cannot_be_watched_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let text = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n";
        std::fs::write(dir.path().join("memory.events"), text).unwrap();
        let mut events = PodEvents::new().unwrap();
        // The kernel refuses ordinary files (EPERM).
        events.watch_counters(&MemoryEvents::open(dir.path()).unwrap());
        assert_eq!(events.polled(), 1);
    }
}
