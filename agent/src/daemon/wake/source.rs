//! A descriptor that wakes the loop.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::Result;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::Wake;
use super::source_name::{Lost, SourceName};
use crate::host::clock::now_ns;
use crate::host::syscall::watch;

/// A descriptor that wakes the loop, or the place of one that this machine does not have.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: SourceName,
    pub(super) watched: Option<Watched>,
    /// The kernel can signal much more often than there is a point in looking.
    pub(super) pace: Duration,
    pub(super) not_before: Option<Instant>,
}

pub(super) struct Watched {
    // Dropped first: a descriptor must be deregistered before its source ends.
    fd: AsyncFd<OwnedFd>,
    interest: Interest,
    /// Takes what has arrived, so that the descriptor can become ready again.
    take: Box<dyn FnMut() -> Result<Taken> + Send>,
    /// It has left something to do, and the descriptor need not be ready for that.
    pub(super) has_more: bool,
}

/// What came of taking what has arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    /// The loop is to know of it.
    pub(super) is_news: bool,
    /// Something is left to do.
    pub(super) has_more: bool,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched")
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

impl Watched {
    pub(super) fn new(
        fd: BorrowedFd<'_>,
        interest: Interest,
        mut take: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let all = Taken {
            is_news: true,
            has_more: false,
        };
        Self::in_parts(fd, interest, move || take().map(|()| all))
    }

    /// What has arrived is taken a part at a time.
    pub(super) fn in_parts(
        fd: BorrowedFd<'_>,
        interest: Interest,
        take: impl FnMut() -> Result<Taken> + Send + 'static,
    ) -> Result<Self> {
        // A failure is waited for as well: else its descriptor would be silent for ever.
        let interest = interest.add(Interest::ERROR);
        Ok(Self {
            fd: watch(fd, interest)?,
            interest,
            take: Box::new(take),
            has_more: false,
        })
    }

    /// Waits until there is something, and takes it. Returns whether it is news.
    async fn ready(&mut self) -> Result<bool> {
        if !self.has_more {
            let mut guard = self.fd.ready(self.interest).await?;
            let ready = guard.ready();
            guard.clear_ready();
            // Of all that is waited for, nothing has another end that could be closed.
            anyhow::ensure!(!ready.is_read_closed(), "its descriptor was closed");
            anyhow::ensure!(!ready.is_error(), "its descriptor reports an error");
        }
        let taken = (self.take)()?;
        self.has_more = taken.has_more;
        Ok(taken.is_news)
    }
}

impl Source {
    pub(super) fn absent(name: SourceName) -> Self {
        Self {
            name,
            watched: None,
            pace: Duration::ZERO,
            not_before: None,
        }
    }

    pub(super) fn paced(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Not waited for before this.
    pub(super) fn rest_until(&mut self, at_ns: u64) {
        let wait_ns = at_ns.saturating_sub(now_ns());
        self.not_before = (wait_ns > 0).then(|| Instant::now() + Duration::from_nanos(wait_ns));
    }

    /// Waits until there is something, for ever without a descriptor.
    pub(super) async fn next(&mut self, wake: Wake) -> Wake {
        let Some(watched) = &mut self.watched else {
            return std::future::pending().await;
        };
        loop {
            if let Some(at) = self.not_before {
                tokio::time::sleep_until(at).await;
            }
            match watched.ready().await {
                Ok(is_news) => {
                    self.not_before = (!self.pace.is_zero()).then(|| Instant::now() + self.pace);
                    if is_news {
                        return wake;
                    }
                }
                Err(error) => return self.lose(&error),
            }
        }
    }

    pub(super) fn lose(&mut self, error: &anyhow::Error) -> Wake {
        self.watched = None;
        Wake::Lost(Lost {
            name: self.name,
            error: format!("{error:#}"),
        })
    }
}
