//! The two signals that ask a process to stop.

use std::sync::Arc;

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
