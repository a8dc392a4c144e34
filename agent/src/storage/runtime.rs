//! What a container runtime has on disks and nobody needs: containers that have ended, images that no container uses.
//!
//! **Problem.** Only the runtime can remove these; it is a large program, and may hang, lie or be away while a disk
//! fills. **Approach.** `plimsoll-runtime` speaks to it, a process that this thread starts and may kill
//! ([`connection`]). This thread asks one question at a time, with a bound on the time and the length of each answer.
//! What goes next is the core's choice ([`unused::next`]); one removal at a time, and the file systems are read after
//! each, until they are as free as their thresholds ask ([`Targets`]). A removal may show late, and be answered late:
//! while space comes, nothing else goes. Every minute it lists once, to know when images were used last. If nothing can
//! be asked, the engine hears that nothing was freed and goes on.

mod connection;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use plimsoll_core::model::decision::FreeSource;
use plimsoll_core::policy::disk::freeing::{self, FileSystemsNow, Targets};
use plimsoll_core::policy::disk::unused::{self, ImageBook};
use plimsoll_core::protocol::runtime_link::{Inventory, Removal, RuntimeDirectories};
use tokio::sync::mpsc::Sender;

use super::StorageEvent;
use super::filesystem::FileSystems;
use super::freeing::Freed;
use super::pod_paths::RuntimeLayers;
use crate::host::HostRoot;
use crate::host::clock::now_ns;
use crate::host::panics;
use crate::host::shown::line;
use connection::Runtime;

/// Time limit for the container runtime's first answer. The agent starts without it.
pub const RUNTIME_ASKED_WITHIN: Duration = Duration::from_secs(5);
/// In [`StorageEvent::Freed`].
pub const PROVIDER: &str = "runtime";
/// How often it is looked which images are in use. The kubelet: 5 min (`StartGarbageCollection`).
const LOOK: Duration = Duration::from_secs(60);
/// For one order, from the engine's decision on.
pub const ORDER_WITHIN: Duration = Duration::from_secs(25);
/// So much longer while space comes of what is being removed; together less than the engine waits.
const COMES_FOR: Duration = Duration::from_secs(35);
const _: () = assert!(
    (ORDER_WITHIN.as_nanos() + COMES_FOR.as_nanos()) < freeing::PATIENCE_NS as u128,
    "the engine waits for an order as long as that may take"
);
/// Removals for one order.
const REMOVALS_MAX: u32 = 512;
/// Freed blocks may show later: so long nothing more has to come, unless the target is reached before.
const SETTLE: Duration = Duration::from_millis(500);
/// The same while less has come than the runtime says that it takes. What images share never comes.
const SHOWS_WITHIN: Duration = Duration::from_secs(3);
const SETTLE_POLL: Duration = Duration::from_millis(50);

/// The container runtime, and the program that asks it.
#[derive(Debug, Clone)]
pub struct RuntimeSettings {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// `plimsoll-runtime`.
    pub program: PathBuf,
}

/// Where the runtime keeps images and writable layers. Asks a program of its own, once.
///
/// # Errors
/// Why there is no answer.
pub fn directories(
    settings: RuntimeSettings,
    within: Duration,
) -> Result<RuntimeDirectories, String> {
    Runtime::new(settings).directories(Instant::now() + within)
}

/// What is to be freed, and until when.
#[derive(Debug)]
pub(super) struct FreeOrder {
    pub(super) sources: Vec<FreeSource>,
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
    /// What was last said of where images are.
    said_of_images: Option<String>,
    /// Where the runtime's directories are looked for; whether `--image-dir` was given.
    images: Option<(HostRoot, bool)>,
    /// [`SHOWS_WITHIN`].
    shows_within: Duration,
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
            said_of_images: None,
            images: None,
            shows_within: SHOWS_WITHIN,
        }
    }

    /// Says where images are read on another file system than the runtime has them on. `is_given`: that was told by
    /// option.
    pub(super) fn comparing(mut self, host: HostRoot, is_given: bool) -> Self {
        self.images = Some((host, is_given));
        self
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
                    let looked = panics::guard(|| self.look());
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
        let mut freed = Freed::default();
        let outcome = panics::guard(|| self.free(order, &mut freed));
        self.say_failure(
            outcome
                .unwrap_or_else(|panicked| Err(panicked.to_string()))
                .err(),
        );
        let event = StorageEvent::Freed {
            provider: PROVIDER,
            dry: false,
            freed,
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
        self.compare(&inventory.directories);
        Ok(inventory)
    }

    fn compare(&mut self, of_runtime: &RuntimeDirectories) {
        let Some((host, is_given)) = &self.images else {
            return;
        };
        let wrong = self.file_systems.misses(host, of_runtime, *is_given);
        if let Some(text) = wrong.as_ref().filter(|_| wrong != self.said_of_images)
            && self
                .events
                .try_send(StorageEvent::Warning(text.clone()))
                .is_err()
        {
            return; // said next time
        }
        self.said_of_images = wrong;
    }

    fn now(&self) -> FileSystemsNow {
        let readings = self.file_systems.read();
        FileSystemsNow {
            nodefs: readings.nodefs.ok(),
            imagefs: readings.imagefs.ok(),
            containerfs: readings.containerfs.ok(),
        }
    }

    fn free(&mut self, order: &FreeOrder, freed: &mut Freed) -> Result<(), String> {
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
            if inventory.left_out > 0 && short_of.contains(&FreeSource::UnusedImages) {
                failure = Some(format!(
                    "{} containers of the runtime could not be read, so an image that they use would seem unused: no image is removed; see `plimsoll-runtime list containers`",
                    inventory.left_out
                ));
            }
            if inventory.mounts_unread > 0 && short_of.contains(&FreeSource::UnusedImages) {
                failure = Some(format!(
                    "of {} containers the runtime does not say which images they have as volumes, so one of these would seem unused: no image is removed; see `plimsoll-runtime list images`",
                    inventory.mounts_unread
                ));
            }
            let Some(removal) = next else { break };
            let expected = size(&removal, &inventory);
            match self.runtime.remove(&removal, until) {
                Ok(()) => {
                    self.settle(order, &before, expected, false);
                    count(&removal, &before, &self.now(), freed);
                }
                // In use after all, or broken: another one.
                Err(connection::Failure::Refused(why)) => failure = Some(why),
                // It may still be at it: another one might go for nothing.
                Err(connection::Failure::Late(why)) => {
                    self.settle_late(order, &removal, &before, expected, freed);
                    return Err(why);
                }
                Err(connection::Failure::Lost(why)) if Instant::now() >= until => {
                    self.settle_late(order, &removal, &before, expected, freed);
                    return Err(why);
                }
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

    /// Waits for what comes of a removal that was not answered in time, and counts it.
    fn settle_late(
        &self,
        order: &FreeOrder,
        removal: &Removal,
        before: &FileSystemsNow,
        expected: u64,
        freed: &mut Freed,
    ) {
        self.settle(order, before, expected, true);
        let now = self.now();
        if gained(before, &now) > (0, 0) {
            count(removal, before, &now, freed);
        }
    }

    /// Waits until enough is free, or nothing more comes of a removal that takes about so many bytes. One that
    /// `is_late` is given the whole order.
    fn settle(&self, order: &FreeOrder, before: &FileSystemsNow, expected: u64, is_late: bool) {
        let latest = order.until + COMES_FOR;
        let (mut most, mut came) = ((0, 0), Instant::now());
        loop {
            let now = self.now();
            if order.targets.short_of(&order.sources, &now).is_empty() {
                return;
            }
            let gained = gained(before, &now);
            if gained > most {
                (most, came) = (gained, Instant::now());
            }
            let quiet = if most.0 < expected {
                self.shows_within
            } else {
                SETTLE
            };
            let is_waited_for = is_late && Instant::now() < order.until;
            if Instant::now() >= latest || (came.elapsed() >= quiet && !is_waited_for) {
                return;
            }
            std::thread::sleep(SETTLE_POLL);
        }
    }
}

/// About how many bytes come of a removal; 0: it is not known.
fn size(removal: &Removal, inventory: &Inventory) -> u64 {
    match removal {
        Removal::Container(id) => {
            let mut containers = inventory.containers.iter();
            let container = containers.find(|container| container.id == *id);
            let layer = container.and_then(|container| container.writable_layer?.bytes);
            layer.unwrap_or(0)
        }
        Removal::Image(id) => {
            let mut images = inventory.images.iter();
            let image = images.find(|image| image.id == *id);
            image.map_or(0, |image| image.bytes)
        }
    }
}

/// Bytes and inodes that are free by now, of the file system that gained most.
fn gained(before: &FileSystemsNow, after: &FileSystemsNow) -> (u64, u64) {
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
    gains.max().unwrap_or_default()
}

/// What a removal has freed.
fn count(removal: &Removal, before: &FileSystemsNow, after: &FileSystemsNow, freed: &mut Freed) {
    let (bytes, inodes) = gained(before, after);
    freed.bytes = freed.bytes.saturating_add(bytes);
    freed.inodes = freed.inodes.saturating_add(inodes);
    match removal {
        Removal::Container(_) => freed.containers += 1,
        Removal::Image(_) => freed.images += 1,
    }
}

#[cfg(test)]
mod tests;
