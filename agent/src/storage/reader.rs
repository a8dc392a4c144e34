//! The thread that reads the file systems, at the pace it is told, and puts each reading together with the figures of
//! pods.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use plimsoll_core::model::reading::{FileSystemReading, PodStorage, StorageReading};
use tokio::sync::mpsc::Sender;

use super::filesystem::{FileSystemError, FileSystems, Unreadable};
use super::{Shared, StorageEvent};
use crate::host::panics;

/// What the walking thread has found.
#[derive(Debug)]
pub(super) struct Figures {
    /// All pods that have figures, by ascending UID.
    pub(super) pods: Arc<[PodStorage]>,
    /// They answer a ranking.
    pub(super) is_ranking: bool,
}

/// The next reading is one interval later.
const PANICKED: &str = "storage: a mistake in plimsoll ended a reading of the file systems; please report the panic in its log";

pub(super) struct Reader {
    file_systems: FileSystems,
    shared: Arc<Shared>,
    figures: Receiver<Figures>,
    events: Sender<StorageEvent>,
    pods: Arc<[PodStorage]>,
    /// A ranking that was not told yet.
    is_ranked: bool,
    /// Per role: what was wrong with it last time.
    faults: [Option<Unreadable>; 3],
}

impl Reader {
    pub(super) fn new(
        file_systems: FileSystems,
        shared: Arc<Shared>,
        figures: Receiver<Figures>,
        events: Sender<StorageEvent>,
    ) -> Self {
        Self {
            file_systems,
            shared,
            figures,
            events,
            pods: Arc::from([]),
            is_ranked: false,
            faults: [None, None, None],
        }
    }

    /// Runs until `queue` is closed; unparked when there is something to do before its time.
    pub(super) fn run(mut self, queue: &Receiver<Infallible>) {
        let mut last: Option<Instant> = None;
        while queue.try_recv() != Err(TryRecvError::Disconnected) {
            let mut has_ranking = false;
            while let Ok(figures) = self.figures.try_recv() {
                self.pods = figures.pods;
                has_ranking |= figures.is_ranking;
            }
            self.is_ranked |= has_ranking;
            let due = last.map_or(Some(Instant::now()), |last| {
                last.checked_add(self.shared.interval())
            });
            let wait = due.map_or(super::INTERVAL_MAX, |due| {
                due.saturating_duration_since(Instant::now())
            });
            if wait.is_zero() || has_ranking {
                last = Some(Instant::now());
                if panics::guard(|| self.read()).is_err() {
                    self.send(StorageEvent::Warning(PANICKED.to_owned()));
                }
            } else {
                std::thread::park_timeout(wait);
            }
        }
    }

    fn read(&mut self) {
        let readings = self.file_systems.read();
        let reading = Arc::new(StorageReading {
            nodefs: self.take(0, readings.nodefs),
            imagefs: self.take(1, readings.imagefs),
            containerfs: self.take(2, readings.containerfs),
            pods: self.pods.to_vec(),
        });
        let event = if self.is_ranked {
            StorageEvent::Ranked(reading)
        } else {
            StorageEvent::Reading(reading)
        };
        // A ranking that does not fit stays due: the next reading is one.
        if self.send(event) {
            self.is_ranked = false;
        }
    }

    /// Says what is wrong with a file system when that changes.
    fn take(
        &mut self,
        role: usize,
        reading: Result<FileSystemReading, FileSystemError>,
    ) -> Option<FileSystemReading> {
        let fault = reading.as_ref().err().map(|error| error.source.clone());
        if let Err(error) = &reading
            && self.faults[role] != fault
            && !self.send(StorageEvent::Warning(error.to_string()))
        {
            return None; // to be said again
        }
        self.faults[role] = fault;
        reading.ok()
    }

    fn send(&self, event: StorageEvent) -> bool {
        let is_sent = self.events.try_send(event).is_ok();
        if !is_sent {
            self.shared.events_dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_sent
    }
}
