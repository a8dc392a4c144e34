//! The newest snapshot of the loop, shared by all threads that answer from one.
//!
//! A snapshot is used for [`SNAPSHOT_LIFE`], so the loop makes at most ten a second, however many ask how often, at the
//! control socket or at the HTTP listener.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

use super::SnapshotSource;
use crate::record::snapshot::Snapshot;

/// How long a snapshot is as good as a new one.
pub const SNAPSHOT_LIFE: Duration = Duration::from_millis(100);

/// Why there is no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSnapshot {
    /// No loop takes the question.
    #[error("the agent is starting or stopping; try again in a second")]
    NoLoop,
    /// The loop has not answered in time.
    #[error(
        "the agent had no time to answer for {} s because of more urgent work; try again",
        .patience.as_secs()
    )]
    Busy {
        /// How long it was waited for.
        patience: Duration,
    },
}

/// The newest of what is expensive to make, shared by all who ask.
#[derive(Debug)]
pub(super) struct Newest<T> {
    life: Duration,
    made: Mutex<Option<(Instant, Arc<T>)>>,
}

impl<T> Newest<T> {
    /// Each is as good as a new one for `life`.
    pub(super) fn new(life: Duration) -> Self {
        Self {
            life,
            made: Mutex::new(None),
        }
    }

    /// The newest if it is new enough, else what `make` makes.
    pub(super) async fn get<E>(
        &self,
        make: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        // Others who ask meanwhile wait here and then find a new one.
        let mut made = self.made.lock().await;
        if let Some((at, newest)) = &*made
            && at.elapsed() < self.life
        {
            return Ok(Arc::clone(newest));
        }
        *made = None;
        let newest = Arc::new(make().await?);
        *made = Some((Instant::now(), Arc::clone(&newest)));
        Ok(newest)
    }
}

/// Where snapshots come from, and the newest.
#[derive(Debug)]
pub struct Snapshots {
    source: SnapshotSource,
    newest: Newest<Snapshot>,
}

impl Snapshots {
    /// Asks the loop through `source`.
    pub fn new(source: SnapshotSource) -> Self {
        Self {
            source,
            newest: Newest::new(SNAPSHOT_LIFE),
        }
    }

    /// The newest snapshot if it is new enough, else one from the loop.
    ///
    /// # Errors
    /// [`NoSnapshot`].
    pub async fn get(&self, patience: Duration) -> Result<Arc<Snapshot>, NoSnapshot> {
        let ask = self.newest.get(async || {
            let (reply, given) = oneshot::channel();
            self.source
                .send(reply)
                .await
                .map_err(|_| NoSnapshot::NoLoop)?;
            given.await.map_err(|_| NoSnapshot::NoLoop)
        });
        match timeout(patience, ask).await {
            Ok(snapshot) => snapshot,
            Err(_) => Err(NoSnapshot::Busy { patience }),
        }
    }
}
