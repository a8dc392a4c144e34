//! Many descriptors behind one: an epoll instance, which can itself be waited for.
//!
//! Descriptors are added edge-triggered: each notification of the kernel is one event, whether or not the file has been
//! read since, and a descriptor that is closed leaves by itself. Which descriptor it was is not kept: the owner reads
//! all of them.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Events taken from the kernel in one call.
const BATCH: usize = 64;
/// Calls in one [`EpollSet::take`]: enough for one event of each of 4096 descriptors. What is left comes with the next
/// call; nothing is lost by that, because the owner reads every file anyway.
const BATCHES_MAX: usize = 64;

/// Why files are not watched through epoll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EpollError {
    /// There is no descriptor for an epoll instance.
    #[error(
        "cannot create an epoll instance for {what}: {source}; raise the limit on open files (RLIMIT_NOFILE)"
    )]
    Create {
        /// What was to be watched.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The kernel refuses one more descriptor.
    #[error("cannot add {what} to epoll: {source}; raise fs.epoll.max_user_watches")]
    Add {
        /// What was to be watched.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The events cannot be read.
    #[error("cannot read the events of {what} from epoll: {source}")]
    Take {
        /// What is watched.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// Descriptors that are waited for together. Readable when one of them has an event.
#[derive(Debug)]
pub(super) struct EpollSet {
    epoll: OwnedFd,
    /// For errors: what the descriptors are.
    what: &'static str,
}

impl EpollSet {
    pub(super) fn new(what: &'static str) -> Result<Self, EpollError> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)
                .map_err(|source| EpollError::Create { what, source })?,
            what,
        })
    }

    /// The same set, by another descriptor.
    pub(super) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self {
            epoll: self.epoll.try_clone()?,
            what: self.what,
        })
    }

    /// Waits for `flags` of a descriptor, until it is closed.
    pub(super) fn add(&self, fd: BorrowedFd<'_>, flags: EventFlags) -> Result<(), EpollError> {
        // The number is not read.
        let data = EventData::new_u64(0);
        epoll::add(&self.epoll, fd, data, flags | EventFlags::ET).map_err(|source| {
            EpollError::Add {
                what: self.what,
                source,
            }
        })
    }

    /// Takes the events that there are, and returns how many. Does not wait or allocate.
    pub(super) fn take(&self) -> Result<usize, EpollError> {
        let now = Timespec::default();
        let mut taken = 0;
        for _ in 0..BATCHES_MAX {
            let mut events = [MaybeUninit::uninit(); BATCH];
            let batch = rustix::io::retry_on_intr(|| {
                epoll::wait(&self.epoll, &mut events, Some(&now)).map(|(batch, _)| batch.len())
            })
            .map_err(|source| EpollError::Take {
                what: self.what,
                source,
            })?;
            taken += batch;
            if batch < BATCH {
                break;
            }
        }
        Ok(taken)
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn more_events_than_a_batch_are_taken_at_once() {
        let set = EpollSet::new("test events").unwrap();
        let many: Vec<_> = (0..BATCH + 6)
            .map(|_| eventfd(1, EventfdFlags::CLOEXEC).unwrap())
            .collect();
        for fd in &many {
            set.add(fd.as_fd(), EventFlags::IN).unwrap();
        }
        assert_eq!(set.take(), Ok(BATCH + 6));
        assert_eq!(set.take(), Ok(0));
    }

    #[test]
    fn what_cannot_be_added_is_named_with_the_limit_to_raise() {
        let set = EpollSet::new("files of pods").unwrap();
        // The kernel refuses ordinary files.
        let file = tempfile::tempfile().unwrap();
        let error = set.add(file.as_fd(), EventFlags::IN).unwrap_err();
        assert!(
            matches!(
                error,
                EpollError::Add {
                    source: Errno::PERM,
                    ..
                }
            ),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .starts_with("cannot add files of pods to epoll: ")
                && error
                    .to_string()
                    .ends_with("; raise fs.epoll.max_user_watches"),
            "{error}"
        );
    }
}
