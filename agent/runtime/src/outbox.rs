//! The way from what a container runtime says to the agent: bounded, and never waited for where the runtime waits.

use std::cell::Cell;
use std::time::Duration;

use plimsoll_core::protocol::runtime_link::FromNri;
use tokio::sync::{mpsc, watch};

/// Frames that wait for the agent.
pub(crate) const FRAMES_MAX: usize = 256;
/// Between two looks at whether there is room again.
const WHILE_FULL: Duration = Duration::from_millis(10);

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

    /// Waits until half of the room is free: of many at once. What the runtime says meanwhile has the other half.
    pub(crate) async fn container_in_turn(&self, frame: FromNri) {
        // Whoever waits for room in the channel itself gets each place that falls free, and what does not wait gets
        // none.
        while self.containers.capacity() <= self.containers.max_capacity() / 2
            && !self.containers.is_closed()
        {
            tokio::time::sleep(WHILE_FULL).await;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_at_once_leave_room_for_what_is_said_meanwhile() {
        let (containers, frames) = mpsc::channel(FRAMES_MAX);
        let outbox = Outbox {
            state: watch::channel(None).0,
            containers,
            dropped: Cell::new(0),
        };
        let frame = || FromNri::Ended {
            pod_uid: "u".to_owned(),
        };
        let many = async {
            for _ in 0..FRAMES_MAX {
                outbox.container_in_turn(frame()).await;
            }
        };
        // The agent takes none of them.
        let ended = tokio::time::timeout(Duration::from_secs(1), many).await;
        assert!(ended.is_err());
        assert_eq!(frames.len(), FRAMES_MAX / 2);
        for _ in 0..FRAMES_MAX / 2 {
            outbox.container(frame());
        }
        assert_eq!(outbox.dropped.get(), 0);
        outbox.container(frame());
        assert_eq!(outbox.dropped.get(), 1);
    }
}
