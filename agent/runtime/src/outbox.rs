//! The way from what a container runtime says to the agent: bounded, and never waited for where the runtime waits.

use std::cell::Cell;

use plimsoll_core::kube::runtime_link::FromNri;
use tokio::sync::{mpsc, watch};

/// Frames that wait for the agent.
pub(crate) const FRAMES_MAX: usize = 256;

/// The way to the agent. Does not wait.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Whether the runtime asks: only the newest word on it counts.
    pub(crate) state: watch::Sender<Option<FromNri>>,
    /// Containers that were answered, or told of.
    pub(crate) containers: mpsc::Sender<FromNri>,
    /// Frames of containers that found no room since the agent was last told so.
    pub(crate) dropped: Cell<u64>,
}

impl Outbox {
    /// What becomes of the connection. Said when it is another than before.
    pub(crate) fn state(&self, frame: FromNri) {
        let frame = Some(frame);
        self.state.send_if_modified(|state| {
            let is_changed = *state != frame;
            *state = frame;
            is_changed
        });
    }

    /// Waits until there is room: of many at once.
    pub(crate) async fn container_in_turn(&self, frame: FromNri) {
        // Closed: the agent has ended, which ends this.
        self.containers.send(frame).await.ok();
    }

    /// Dropped, and counted, where there is no room.
    pub(crate) fn container(&self, frame: FromNri) {
        if self.containers.try_send(frame).is_err() {
            self.dropped.set(self.dropped.get().saturating_add(1));
        }
    }
}
