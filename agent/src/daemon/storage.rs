//! The loop's side of [`storage`](crate::storage): readings in, orders out, and what the engine's decisions about disks
//! mean for both.
//!
//! Freeing space for a threshold goes in three steps, none of which the loop waits for: the order; its end, which the
//! engine is told; and a survey of all pods after it, which the engine judges to say whether a pod still has to go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::FreeSource;
use plimsoll_core::model::event::{Cause, EventKind};
use plimsoll_core::model::reading::{PodStorage, StorageReading};
use plimsoll_core::policy::disk::freeing::Targets;

use super::Agent;
use super::findings::Findings;
use crate::host::shown::Show as _;
use crate::pods::registry::Pods;
use crate::record::lines::Line;
use crate::storage::freeing::{FreeRequest, Freed};
use crate::storage::{Busy, StorageEvent, StorageHandle, runtime};

/// So many pods that have ended are remembered; of the others the directories stay until somebody else removes them.
const ENDED_MAX: usize = 10_000;
/// Directories of pods that we never heard of are not ours to delete.
const NEVER: Duration = Duration::MAX;

/// Deleted files may give their blocks back a little later: seen on 6.12, 20 to 100 ms after a volume of 44 MiB was
/// gone, probably while the kernel still held inodes written in a cgroup that had ended (`cleanup_offline_cgwb` in
/// mm/backing-dev.c). A survey at once would show a full disk and cost another pod.
const SETTLE: Duration = Duration::from_millis(500);

/// A file system below its threshold with nothing left to free and no pod left to evict is tried again at this
/// interval: the kubelet's (`evictionMonitoringPeriod`). Readings come up to a hundred times as often.
const FREE_AGAIN: Duration = Duration::from_secs(10);
/// Readings come early by this part of their interval.
const EARLY_SHARE: u64 = 64;

/// What freeing space has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freeing {
    Idle,
    /// Ordered; its end is awaited.
    Ordered,
    /// Over; a survey after it is awaited.
    Surveyed,
}

/// The loop's side of the node's disks.
#[derive(Debug)]
pub struct StorageWork {
    handle: StorageHandle,
    /// For the next sample.
    reading: Option<Arc<StorageReading>>,
    /// All pods have been measured for a ranking.
    has_ranked: bool,
    /// [`Pods::generation`](crate::pods::registry::Pods::generation) of the pods that the threads know.
    known_generation: Option<u64>,
    /// Evicted or not wanted any more. What is theirs may go, unless they run again.
    ended: BTreeSet<PodUid>,
    /// Decided and not ordered yet.
    order: Option<Vec<FreeSource>>,
    freeing: Freeing,
    /// What the runtime is to free after the directories of ended pods.
    of_runtime: Vec<FreeSource>,
    /// By then the order under way is answered.
    answer_by: Option<Instant>,
    /// What the order under way has freed so far.
    so_far: Freed,
    /// A survey is to be ordered.
    survey_due: bool,
    /// Not before this: what was deleted is to show in it.
    survey_from: Option<Instant>,
    busy_reported: bool,
    /// Nothing was left to free, and nothing has been added since: not again before this.
    free_not_before: Option<Instant>,
}

impl StorageWork {
    /// Talks to these threads.
    pub fn new(handle: StorageHandle) -> Self {
        Self {
            handle,
            reading: None,
            has_ranked: false,
            known_generation: None,
            ended: BTreeSet::new(),
            order: None,
            freeing: Freeing::Idle,
            of_runtime: Vec::new(),
            answer_by: None,
            so_far: Freed::default(),
            survey_due: false,
            survey_from: None,
            busy_reported: false,
            free_not_before: None,
        }
    }

    /// When something is to be ordered of which nothing else reminds the loop.
    pub(super) fn order_at_ns(&self) -> Option<u64> {
        let survey_at = self.survey_from.filter(|_| self.survey_due);
        let free_at = self.free_not_before.filter(|_| self.order.is_some());
        let at = survey_at.into_iter().chain(free_at).min()?;
        let wait = at.saturating_duration_since(Instant::now());
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Some(super::now_ns().saturating_add(wait_ns))
    }

    /// Keeps a reading for the next sample.
    ///
    /// A pod without figures is the first to go. That is right for one whose figures cannot be known, and until all
    /// pods that were there have been measured. From then on one that has none has come since, while another pod,
    /// however long that made it take, was counted: it has nothing until it is measured.
    fn keep(&mut self, mut reading: Arc<StorageReading>, pods: &Pods) {
        if self.has_ranked {
            let known = &reading.pods;
            let is_new = |uid: &&PodUid| known.binary_search_by(|it| it.uid.cmp(uid)).is_err();
            let new = pods.with_directories().filter(is_new);
            let new: Vec<_> = new.cloned().map(PodStorage::nothing).collect();
            if !new.is_empty() {
                let all = &mut Arc::make_mut(&mut reading).pods;
                all.extend(new);
                all.sort_by(|a, b| a.uid.cmp(&b.uid));
            }
        }
        self.reading = Some(reading);
    }

    /// The newest reading that no sample has carried yet.
    pub(super) fn take_reading(&mut self) -> Option<Arc<StorageReading>> {
        self.reading.take()
    }

    /// What is a pod's on disk may go from now on, unless it runs again.
    pub(super) fn note_ended(&mut self, uid: &PodUid) {
        if self.ended.len() < ENDED_MAX {
            self.ended.insert(uid.clone());
            self.free_not_before = None;
        }
    }

    /// Readings are wanted this often.
    pub(super) fn read_every(&self, interval_ns: u64) {
        // A little before the engine's timer of the same period, which the sample with the reading then puts off: one
        // sample, not two.
        let interval_ns = interval_ns - interval_ns / EARLY_SHARE;
        self.handle.set_interval(Duration::from_nanos(interval_ns));
    }

    /// Space is to be freed; that is ordered when there is time.
    pub(super) fn free(&mut self, sources: &[FreeSource]) {
        self.order = Some(sources.to_vec());
    }
}

impl Agent {
    /// Takes what the threads tell.
    pub(super) fn storage_event(&mut self, event: StorageEvent, found: &mut Findings) {
        let Some(storage) = &mut self.storage else {
            return;
        };
        match event {
            StorageEvent::Reading(reading) => {
                storage.keep(reading, &self.pods);
                found.add_cause(Cause::Storage);
            }
            StorageEvent::Ranked(reading) => {
                storage.has_ranked = true;
                storage.keep(reading, &self.pods);
                if storage.freeing == Freeing::Surveyed {
                    storage.freeing = Freeing::Idle;
                    found.add_cause(Cause::DiskFreed);
                } else {
                    found.add_cause(Cause::Storage);
                }
            }
            StorageEvent::Freed {
                provider, freed, ..
            } => {
                if !freed.more && storage.freeing == Freeing::Ordered {
                    storage.so_far.add(freed);
                    if provider == runtime::PROVIDER || !self.order_of_runtime() {
                        self.freed();
                    }
                }
            }
            StorageEvent::Report(_) => {}
            StorageEvent::Warning(text) => self.warn(text),
        }
    }

    /// Space has been freed, as far as it could be: the engine is told, and a survey shows what came of it.
    fn freed(&mut self) {
        let Some(storage) = &mut self.storage else {
            return;
        };
        let Freed {
            bytes,
            inodes,
            items,
            containers,
            images,
            kept,
            ..
        } = std::mem::take(&mut storage.so_far);
        let has_freed = items + containers + images > 0;
        if has_freed {
            self.reporter.say(&Line::DiskFreed {
                bytes,
                inodes,
                items,
                containers,
                images,
            });
        }
        for kept in kept {
            tracing::debug!(path = %kept.path.shown(), why = %kept.why, "not freed");
        }
        if let Some(storage) = &mut self.storage {
            storage.freeing = Freeing::Surveyed;
            storage.survey_due = true;
            storage.survey_from = has_freed.then(|| Instant::now() + SETTLE);
            storage.free_not_before = (!has_freed).then(|| Instant::now() + FREE_AGAIN);
        }
        self.handle_event(EventKind::DiskFreed {
            bytes,
            inodes,
            error: None,
        });
    }

    /// Orders what has been decided, and tells the threads of new pods. Not urgent: allocates.
    pub(super) fn order_storage_work(&mut self) {
        let Some(storage) = &mut self.storage else {
            return;
        };
        let mut busy = false;
        let generation = self.pods.generation();
        if storage.known_generation != Some(generation) {
            match storage.handle.set_pods(self.pods.directories()) {
                Ok(()) => storage.known_generation = Some(generation),
                Err(Busy) => busy = true,
            }
        }
        let may_free = storage
            .free_not_before
            .is_none_or(|from| Instant::now() >= from);
        if let Some(sources) = storage.order.take_if(|_| may_free) {
            storage.so_far = Freed::default();
            storage.answer_by = Some(Instant::now() + runtime::ORDER_WITHIN);
            storage.of_runtime.clone_from(&sources);
            if !sources.contains(&FreeSource::EndedPods) {
                if self.order_of_runtime() {
                    return;
                }
                self.freed();
            } else if self.order_reclaim() {
                return;
            } else {
                busy = true;
                if let Some(storage) = &mut self.storage {
                    storage.free_not_before = Some(Instant::now() + SETTLE);
                    storage.order = Some(sources);
                }
            }
        }
        let Some(storage) = &mut self.storage else {
            return;
        };
        let has_settled = storage
            .survey_from
            .is_none_or(|from| Instant::now() >= from);
        if storage.survey_due && has_settled {
            match storage.handle.rank_now() {
                Ok(()) => storage.survey_due = false,
                Err(Busy) => {
                    busy = true;
                    storage.survey_from = Some(Instant::now() + SETTLE);
                }
            }
        }
        if busy && !std::mem::replace(&mut storage.busy_reported, true) {
            self.warn(Busy.to_string());
        }
    }

    /// Has the runtime free what is its. Returns whether it does.
    fn order_of_runtime(&mut self) -> bool {
        let targets = Targets::of(self.engine.config());
        let Some(storage) = &mut self.storage else {
            return false;
        };
        let sources = std::mem::take(&mut storage.of_runtime);
        // It still works on an order that the engine has given up: nothing more is freed for this one.
        let until = storage.answer_by.unwrap_or_else(Instant::now);
        let ordered = storage.handle.free_runtime(&sources, targets, until);
        let is_ordered = matches!(ordered, Some(Ok(())));
        if is_ordered {
            storage.freeing = Freeing::Ordered;
        }
        is_ordered
    }

    /// Returns whether it could be ordered.
    fn order_reclaim(&mut self) -> bool {
        let Some(storage) = &mut self.storage else {
            return false;
        };
        let pods = &self.engine.state().pods;
        storage
            .ended
            .retain(|uid| pods.get(uid).is_none_or(|pod| !pod.running));
        let live = self
            .pods
            .uids()
            .into_iter()
            .filter(|uid| !storage.ended.contains(uid))
            .collect();
        let request = FreeRequest {
            dry: false,
            live,
            ended: storage.ended.clone(),
            age_min: NEVER,
        };
        let ordered = storage.handle.free(request).is_ok();
        if ordered {
            storage.freeing = Freeing::Ordered;
        }
        ordered
    }
}
