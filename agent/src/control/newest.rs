//! The newest snapshot of the loop, shared by all threads that answer from one.
//!
//! A snapshot is used for [`SNAPSHOT_LIFE`], so the loop makes at most ten a second, however many ask how often, at the control socket or
//! at the HTTP listener.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use super::{Snapshot, SnapshotSource};

/// How long a snapshot is as good as a new one.
pub const SNAPSHOT_LIFE: Duration = Duration::from_millis(100);

/// Why there is no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSnapshot {
    /// Nobody takes the question.
    #[error("the agent is starting or stopping; ask again in a second")]
    NoLoop,
    /// The loop has not answered in time.
    #[error(
        "the agent's loop had no time for {} s: it deals with something more urgent; ask again",
        .patience.as_secs()
    )]
    Busy {
        /// How long it was waited for.
        patience: Duration,
    },
}

/// Where snapshots come from, and the newest.
#[derive(Debug)]
pub struct Snapshots {
    source: SnapshotSource,
    newest: Mutex<Option<(Instant, Arc<Snapshot>)>>,
}

impl Snapshots {
    /// Asks the loop through `source`.
    pub fn new(source: SnapshotSource) -> Self {
        Self {
            source,
            newest: Mutex::new(None),
        }
    }

    /// The newest snapshot if it is new enough, else one from the loop.
    ///
    /// # Errors
    /// [`NoSnapshot`].
    pub async fn get(&self, patience: Duration) -> Result<Arc<Snapshot>, NoSnapshot> {
        let ask = async {
            // Whoever comes meanwhile waits here and then finds a new one.
            let mut newest = self.newest.lock().await;
            if let Some((taken, snapshot)) = &*newest
                && taken.elapsed() < SNAPSHOT_LIFE
            {
                return Some(Arc::clone(snapshot));
            }
            *newest = None;
            let (reply, given) = oneshot::channel();
            self.source.send(reply).await.ok()?;
            let snapshot = Arc::new(given.await.ok()?);
            *newest = Some((Instant::now(), Arc::clone(&snapshot)));
            Some(snapshot)
        };
        match timeout(patience, ask).await {
            Ok(snapshot) => snapshot.ok_or(NoSnapshot::NoLoop),
            Err(_) => Err(NoSnapshot::Busy { patience }),
        }
    }
}
