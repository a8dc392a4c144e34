//! What a container runtime has on disks and nobody needs: containers that have ended, images that no container uses.
//!
//! **Problem.** Only the runtime can remove these; it is a large program, and may hang, lie or be away while a disk fills. **Approach.** `plimsoll-runtime` speaks
//! to it, a process that this thread starts and may kill ([`connection`]). This thread asks one question at a time, with a bound on the time and the length of each answer. What goes next
//! is the core's choice ([`unused::next`]); one removal at a time, and the file systems are read after each, until they are as free as their thresholds ask
//! ([`Targets`]). Every minute it lists once, to know when images were used last. If nothing can be asked, the engine hears that nothing was freed and goes on.

mod connection;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use plimsoll_core::kube::runtime_link::{Inventory, Removal};
use plimsoll_core::model::decision::ReclaimSource;
use plimsoll_core::policy::disk::node_reclaim::{FileSystemsNow, Targets};
use plimsoll_core::policy::disk::unused::{self, ImageBook};
use tokio::sync::mpsc::Sender;

use super::StorageEvent;
use super::filesystem::FileSystems;
use super::places::RuntimeLayers;
use super::reclaim::Reclaimed;
use crate::host::boundary;
use crate::host::clock::now_ns;
use crate::host::shown::line;
use connection::Runtime;

/// In [`StorageEvent::Reclaimed`].
pub const PROVIDER: &str = "runtime";
/// How often it is looked which images are in use. The kubelet: 5 min (`StartGarbageCollection`).
const LOOK: Duration = Duration::from_secs(60);
/// For one order, from the engine's decision on: less than the engine waits (`node_reclaim::PATIENCE_NS`).
pub const ORDER_WITHIN: Duration = Duration::from_secs(25);
/// Removals for one order.
const REMOVALS_MAX: u32 = 512;
/// Freed blocks may show a little later: so long a removal is given, unless the target is reached before.
const SETTLE: Duration = Duration::from_millis(500);
const SETTLE_POLL: Duration = Duration::from_millis(50);

/// The container runtime, and the program that asks it.
#[derive(Debug, Clone)]
pub struct RuntimeSettings {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// `plimsoll-runtime`.
    pub program: PathBuf,
}

/// What is to be freed, and until when.
#[derive(Debug)]
pub(super) struct FreeOrder {
    pub(super) sources: Vec<ReclaimSource>,
    pub(super) targets: Targets,
    /// By then it is answered.
    pub(super) until: Instant,
}

/// The thread.
pub(super) struct RuntimeSpace {
    runtime: Runtime,
    file_systems: FileSystems,
    events: Sender<StorageEvent>,
    book: ImageBook,
    layers: RuntimeLayers,
    /// What was wrong last time, and has been said.
    said: Option<String>,
}

impl RuntimeSpace {
    pub(super) fn new(
        settings: RuntimeSettings,
        file_systems: FileSystems,
        events: Sender<StorageEvent>,
    ) -> Self {
        Self::with(Runtime::new(settings), file_systems, events)
    }

    fn with(runtime: Runtime, file_systems: FileSystems, events: Sender<StorageEvent>) -> Self {
        Self {
            runtime,
            file_systems,
            events,
            book: ImageBook::default(),
            layers: RuntimeLayers::default(),
            said: None,
        }
    }

    /// Hands figures of writable layers on to the survey of pods.
    pub(super) fn with_layers(mut self, layers: RuntimeLayers) -> Self {
        self.layers = layers;
        self
    }

    /// Runs until the queue is closed.
    pub(super) fn run(mut self, orders: &Receiver<FreeOrder>) {
        let mut wait = Duration::ZERO;
        loop {
            match orders.recv_timeout(wait) {
                Ok(order) => self.take(&order),
                Err(RecvTimeoutError::Timeout) => {
                    let looked = boundary::guard(|| self.look());
                    let looked = looked.unwrap_or_else(|panicked| Err(panicked.to_string()));
                    if looked.is_err() {
                        // What was true a minute ago is unknown now.
                        self.layers.set(&[]);
                    }
                    self.say_failure(looked.err());
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            wait = LOOK;
        }
    }

    fn take(&mut self, order: &FreeOrder) {
        let mut reclaimed = Reclaimed::default();
        let freed = boundary::guard(|| self.free(order, &mut reclaimed));
        self.say_failure(
            freed
                .unwrap_or_else(|panicked| Err(panicked.to_string()))
                .err(),
        );
        let event = StorageEvent::Reclaimed {
            provider: PROVIDER,
            dry: false,
            reclaimed,
        };
        // The engine waits for this one; the loop takes it or has ended.
        self.events.blocking_send(event).ok();
    }

    /// Says what is wrong, once for each change.
    fn say_failure(&mut self, failure: Option<String>) {
        if let Some(why) = failure.as_ref().filter(|_| failure != self.said) {
            let text = format!(
                "unused images and ended containers may stay although a disk is short: {}",
                line(why)
            );
            if self.events.try_send(StorageEvent::Warning(text)).is_err() {
                return; // said next time
            }
        }
        self.said = failure;
    }

    /// Lists, and takes note of the images in use and of what containers have written.
    fn look(&mut self) -> Result<Inventory, String> {
        let inventory = self.runtime.list(Instant::now() + ORDER_WITHIN)?;
        self.book.observe(&inventory, now_ns());
        self.layers.set(&inventory.containers);
        Ok(inventory)
    }

    fn now(&self) -> FileSystemsNow {
        let readings = self.file_systems.read();
        FileSystemsNow {
            nodefs: readings.nodefs.ok(),
            imagefs: readings.imagefs.ok(),
            containerfs: readings.containerfs.ok(),
        }
    }

    fn free(&mut self, order: &FreeOrder, reclaimed: &mut Reclaimed) -> Result<(), String> {
        let until = order.until;
        let mut passed_over = BTreeSet::new();
        let mut failure = None;
        for _ in 0..REMOVALS_MAX {
            let before = self.now();
            let short_of = order.targets.short_of(&order.sources, &before);
            if short_of.is_empty() || Instant::now() >= until {
                break;
            }
            // Anew each time: a kubelet removes images too.
            let inventory = match self.runtime.list(until) {
                Err(why) if self.runtime.restarts_by(until) => {
                    failure = Some(why);
                    continue;
                }
                listed => listed?,
            };
            self.book.observe(&inventory, now_ns());
            let next = unused::next(&inventory, &self.book, &short_of, &passed_over, now_ns());
            if inventory.left_out > 0 {
                failure = Some(format!(
                    "{} containers of the runtime could not be read, so an image that they use would seem unused: nothing is removed; see `plimsoll-runtime containers`",
                    inventory.left_out
                ));
            }
            let Some(removal) = next else { break };
            match self.runtime.remove(&removal, until) {
                Ok(()) => {
                    self.settle(order);
                    count(&removal, &before, &self.now(), reclaimed);
                }
                // In use after all, or broken: another one.
                Err(connection::Failure::Refused(why)) => failure = Some(why),
                Err(connection::Failure::Lost(why)) if self.runtime.restarts_by(until) => {
                    failure = Some(why);
                }
                Err(connection::Failure::Lost(why)) => return Err(why),
            }
            // One that is still listed after its removal is not removed again.
            passed_over.insert(removal);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Waits until the removal shows, or [`SETTLE`].
    fn settle(&self, order: &FreeOrder) {
        let until = order.until.min(Instant::now() + SETTLE);
        while Instant::now() < until
            && !order
                .targets
                .short_of(&order.sources, &self.now())
                .is_empty()
        {
            std::thread::sleep(SETTLE_POLL);
        }
    }
}

/// What a removal has freed, by the file system that gained most.
fn count(
    removal: &Removal,
    before: &FileSystemsNow,
    after: &FileSystemsNow,
    reclaimed: &mut Reclaimed,
) {
    let pairs = [
        (before.nodefs, after.nodefs),
        (before.imagefs, after.imagefs),
        (before.containerfs, after.containerfs),
    ];
    let gains = pairs.into_iter().filter_map(|(before, after)| {
        let (before, after) = (before?, after?);
        let inodes = after.inodes_free.unwrap_or(0);
        Some((
            after.available_bytes.saturating_sub(before.available_bytes),
            inodes.saturating_sub(before.inodes_free.unwrap_or(inodes)),
        ))
    });
    let (bytes, inodes) = gains.max().unwrap_or_default();
    reclaimed.bytes = reclaimed.bytes.saturating_add(bytes);
    reclaimed.inodes = reclaimed.inodes.saturating_add(inodes);
    match removal {
        Removal::Container(_) => reclaimed.containers += 1,
        Removal::Image(_) => reclaimed.images += 1,
    }
}

#[cfg(test)]
mod tests;
