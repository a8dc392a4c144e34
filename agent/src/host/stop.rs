//! The two signals that ask a process to stop, and sessions that they end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// SIGINT and SIGTERM.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// What else ends the agent.
    other: Option<Arc<Notify>>,
}

impl StopSignals {
    /// Catches them from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn catch() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            other: None,
        })
    }

    /// Counts a notification as a signal.
    #[must_use]
    pub fn or_when(mut self, other: Arc<Notify>) -> Self {
        self.other = Some(other);
        self
    }

    /// Whether either has come. Lets the runtime poll for them once; does not wait.
    pub async fn have_come(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.received() => true,
            () = tokio::task::yield_now() => false,
        }
    }

    /// Waits for either; returns at once when one has come since [`StopSignals::catch`].
    pub async fn received(&mut self) {
        let other = async {
            match &self.other {
                Some(other) => other.notified().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = other => {}
        }
    }
}

/// A time that a stop signal ends early, for a loop of no other runtime.
#[derive(Debug)]
pub struct Session {
    runtime: Runtime,
    stop: StopSignals,
    end: Option<Instant>,
}

impl Session {
    /// A loop sleeps no longer at once: nothing wakes it when a ring fills or a signal comes.
    const LOOK_EVERY: Duration = Duration::from_millis(20);

    /// Catches the signals. The session lasts until one comes, or [`Session::ends_after`] a time.
    ///
    /// # Errors
    /// When a handler of the signals cannot be installed.
    pub fn until_signal() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let stop = {
            let _in_runtime = runtime.enter();
            StopSignals::catch()?
        };
        Ok(Self {
            runtime,
            stop,
            end: None,
        })
    }

    /// Ends it after this time from now, if there is any.
    pub fn ends_after(&mut self, length: Option<Duration>) {
        self.end = length.map(|length| Instant::now() + length);
    }

    /// How long the loop may sleep now; none: the session is over.
    pub fn next_sleep(&mut self) -> Option<Duration> {
        let left = match self.end {
            Some(end) => end.checked_duration_since(Instant::now())?,
            None => Duration::MAX,
        };
        let goes_on = !left.is_zero() && !self.runtime.block_on(self.stop.have_come());
        goes_on.then(|| left.min(Self::LOOK_EVERY))
    }
}
