//! An eventfd by which one thread wakes another that waits in `poll`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Both ends of it. The thread that waits polls it for input.
#[derive(Debug, Clone)]
pub struct WakeFd(Arc<OwnedFd>);

impl WakeFd {
    /// Nobody is woken yet.
    ///
    /// # Errors
    /// The kernel's: no descriptor is left.
    pub fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// Wakes the other thread, now or when it waits next.
    pub fn wake(&self) {
        // A counter that is full has woken it already.
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).ok();
    }

    /// It is awake. To be called before it looks for what there is to do: what comes later wakes it again.
    pub fn clear(&self) {
        // Empty already, if something else woke it.
        rustix::io::read(&self.0, &mut [0; 8]).ok();
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
