//! The thread that walks: it surveys the pods, cycle after cycle, frees space when asked to, and stays out of
//! everybody's way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::reading::PodStorage;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError as EventError;

use super::freeing::{FreeRequest, Freed, FreesDisk};
use super::pod_paths::PodPaths;
use super::reader::Figures;
use super::usage::{PodSurvey, Survey};
use super::{Order, REST, SLICE_ENTRIES, Shared, StorageEvent};
use crate::host::agent_caches::AgentCaches;
use crate::host::cgroup::CgroupMounts;
use crate::host::panics;
use crate::host::syscall::{IoPriority, ioprio_set, sched_idle, sched_other};
use crate::pods::directories::PodDirs;

/// Figures that wait for the other thread.
pub(super) const FIGURES_MAX: usize = 4;
/// How often figures are handed on while a cycle is under way.
const HAND_ON: Duration = Duration::from_secs(1);
/// Events that wait until the loop's queue has room.
const UNSENT_MAX: usize = 64;
/// How many times a ranking goes on with pods that have come while it was made.
const LATE_ROUNDS: u8 = 2;
/// Directories whose shortfall was said and is not said again.
const SAID_MAX: usize = 4096;

/// What it works with.
pub(super) struct Means {
    pub(super) paths: PodPaths,
    pub(super) mounts: CgroupMounts,
    pub(super) providers: Vec<Box<dyn FreesDisk>>,
    pub(super) cycle: Duration,
    /// The thread that reads the file systems, to be woken when a ranking is complete.
    pub(super) reader: Option<Thread>,
}

struct Freeing {
    request: FreeRequest,
    provider: usize,
    is_first: bool,
    so_far: Freed,
}

pub(super) struct Surveyor {
    means: Means,
    shared: Arc<Shared>,
    orders: Receiver<Order>,
    figures: SyncSender<Figures>,
    events: Sender<StorageEvent>,

    pods: Arc<[PodDirs]>,
    surveyed: BTreeMap<PodUid, PodSurvey>,
    survey: Option<Survey>,
    /// The survey under way answers a ranking.
    is_ranking: bool,
    /// How many times it has gone on with pods that came meanwhile.
    late_rounds: u8,
    /// A ranking was asked for since.
    rank_next: bool,
    /// When the last full cycle started.
    cycle_start: Option<Instant>,
    freeing: Option<Freeing>,
    /// Figures that were not handed on yet, and whether they answer a ranking.
    is_changed: bool,
    is_ranked: bool,
    handed_on: Option<Instant>,
    unsent: VecDeque<StorageEvent>,
    /// Directories whose figures are known to be short.
    said: BTreeSet<std::path::PathBuf>,
    is_idle_class: bool,
    /// The last slice freed.
    has_freed: bool,
    /// A pod was seen in the machine's user namespace. What it has put into projects of other pods stays there when it
    /// ends.
    doubts_quotas: bool,
    agent_caches: AgentCaches,
}

impl Surveyor {
    pub(super) fn new(
        means: Means,
        shared: Arc<Shared>,
        orders: Receiver<Order>,
        figures: SyncSender<Figures>,
        events: Sender<StorageEvent>,
    ) -> Self {
        let agent_caches = AgentCaches::new(means.paths.host.clone(), means.mounts.clone());
        Self {
            means,
            shared,
            orders,
            figures,
            events,
            pods: Arc::from([]),
            surveyed: BTreeMap::new(),
            survey: None,
            is_ranking: false,
            late_rounds: 0,
            rank_next: false,
            cycle_start: None,
            freeing: None,
            is_changed: false,
            is_ranked: false,
            handed_on: None,
            unsent: VecDeque::new(),
            said: BTreeSet::new(),
            is_idle_class: false,
            has_freed: false,
            doubts_quotas: false,
            agent_caches,
        }
    }

    pub(super) fn run(mut self) {
        while self.take_orders() {
            let is_urgent = self.freeing.is_some() || self.is_ranking || self.rank_next;
            self.set_class(!is_urgent);
            let start = Instant::now();
            let has_worked = self.slice(start);
            if has_worked && self.agent_caches.is_full(start) {
                // Not at the lowest priority: the kernel's locks are held meanwhile.
                self.set_class(false);
                self.agent_caches.trim(start);
            }
            let worked = start.elapsed();
            self.hand_on();
            self.flush();
            let pause = if is_urgent && has_worked {
                Duration::ZERO
            } else if has_worked {
                worked.saturating_mul(REST)
            } else {
                self.until_work()
            };
            if pause.is_zero() {
                std::thread::yield_now();
            } else {
                match self.orders.recv_timeout(pause) {
                    Ok(order) => self.take(order),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        }
    }

    /// Takes what is queued. Whether to go on: the queue is not closed.
    fn take_orders(&mut self) -> bool {
        // The queue is bounded, so this is.
        loop {
            match self.orders.try_recv() {
                Ok(order) => self.take(order),
                Err(error) => return error == TryRecvError::Empty,
            }
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Pods(pods) => self.set_pods(pods),
            Order::Rank => self.rank_next = true,
            Order::Free(request) => {
                self.freeing = Some(Freeing {
                    request,
                    provider: 0,
                    is_first: true,
                    so_far: Freed::default(),
                });
            }
            Order::Report => {
                let all = self.surveyed.values();
                let all = all.flat_map(|pod| pod.directories.iter().cloned());
                let report = StorageEvent::Report(all.collect());
                self.tell(report);
            }
        }
    }

    fn set_pods(&mut self, pods: Arc<[PodDirs]>) {
        let uids: BTreeSet<&PodUid> = pods.iter().map(|pod| &pod.uid).collect();
        let before = self.surveyed.len();
        self.surveyed.retain(|uid, _| uids.contains(uid));
        self.is_changed |= self.surveyed.len() != before;
        if let Some(freeing) = &mut self.freeing {
            let known: BTreeSet<&PodUid> = self.pods.iter().map(|pod| &pod.uid).collect();
            let new = uids.difference(&known).copied().cloned();
            freeing.request.live.extend(new);
        }
        self.doubts_quotas |= !pods.iter().all(|pod| pod.has_user_namespace);
        if self.doubts_quotas
            && let Some(survey) = &mut self.survey
        {
            survey.doubt_quotas();
        }
        self.pods = pods;
    }

    /// Behind everybody else, or as everybody else when somebody waits for the result.
    fn set_class(&mut self, is_idle: bool) {
        if self.is_idle_class == is_idle {
            return;
        }
        self.is_idle_class = is_idle;
        let (class, io) = if is_idle {
            (sched_idle(), IoPriority::Idle)
        } else {
            (sched_other(), IoPriority::Ordinary)
        };
        for result in [class, ioprio_set(io)] {
            if let Err(error) = result {
                self.tell(StorageEvent::Warning(format!(
                    "storage: the walking thread keeps its priority: {error}"
                )));
            }
        }
    }

    /// A slice of what there is to do. Whether there was one. A panic ends what it was a slice of, not the agent: pods
    /// chose what was read.
    fn slice(&mut self, start: Instant) -> bool {
        let freed = self
            .freeing
            .as_ref()
            .map(|it| (it.provider, it.request.dry));
        // Space first: a ranking is of use only if freeing was not enough. But freeing may take long, so they take
        // turns.
        let is_turn_of_survey = std::mem::take(&mut self.has_freed);
        let worked = panics::guard(|| {
            if is_turn_of_survey && self.survey_slice(start) {
                return true;
            }
            self.has_freed = self.free_slice();
            self.has_freed || self.survey_slice(start)
        });
        worked.unwrap_or_else(|error| {
            // The loop may wait for either, and gets what there is.
            if self.freeing.is_none()
                && let Some((provider, dry)) = freed
                && let Some(provider) = self.means.providers.get(provider)
            {
                self.tell(StorageEvent::Freed {
                    provider: provider.name(),
                    dry,
                    freed: Freed::default(),
                });
            }
            if self.survey.take().is_some() {
                self.keep_unknown();
            }
            self.is_ranked |= self.is_ranking;
            self.is_ranking = false;
            self.is_changed = true;
            self.tell(StorageEvent::Warning(format!("storage: {error}")));
            true
        })
    }

    /// A slice of freeing. Whether there was one to do.
    fn free_slice(&mut self) -> bool {
        let Some(mut freeing) = self.freeing.take() else {
            return false;
        };
        let Some(provider) = self.means.providers.get_mut(freeing.provider) else {
            return false;
        };
        let name = provider.name();
        match provider.free(&freeing.request, freeing.is_first, SLICE_ENTRIES) {
            Ok(freed) => {
                let more = freed.more;
                freeing.so_far.add(freed);
                freeing.is_first = false;
                let is_due = freeing.so_far.more.then(|| self.claim_progress());
                if is_due != Some(false) {
                    self.tell(StorageEvent::Freed {
                        provider: name,
                        dry: freeing.request.dry,
                        freed: freeing.so_far.clone(),
                    });
                }
                if !more {
                    freeing = Self::next_provider(freeing);
                }
            }
            Err(error) => {
                self.tell(StorageEvent::Warning(format!(
                    "freeing disk space: {name}: {error}"
                )));
                freeing = Self::next_provider(freeing);
            }
        }
        self.freeing = Some(freeing);
        true
    }

    fn next_provider(freeing: Freeing) -> Freeing {
        Freeing {
            provider: freeing.provider + 1,
            is_first: true,
            so_far: Freed::default(),
            ..freeing
        }
    }

    /// Progress is told at the pace of figures.
    fn claim_progress(&mut self) -> bool {
        let is_due = self
            .handed_on
            .is_none_or(|handed_on| handed_on.elapsed() >= HAND_ON);
        if is_due {
            self.handed_on = Some(Instant::now());
        }
        is_due
    }

    /// A slice of the survey, of a new one if it is time. Whether there was anything to do.
    fn survey_slice(&mut self, now: Instant) -> bool {
        if self.rank_next && !self.is_ranking {
            // Pods that were measured before the ranking was asked for are measured again.
            self.survey = Some(self.survey_of(Arc::clone(&self.pods)));
            self.cycle_start = Some(now);
            self.is_ranking = true;
            self.late_rounds = 0;
            self.rank_next = false;
        }
        if self.survey.is_none() {
            self.survey = self.next_survey(now);
        }
        let Some(survey) = &mut self.survey else {
            return false;
        };
        let mut finished = Vec::new();
        let is_done = survey.advance(
            &self.means.paths,
            &self.means.mounts,
            SLICE_ENTRIES,
            |pod| finished.push(pod),
        );
        for pod in finished {
            self.keep(pod);
        }
        if is_done {
            self.is_changed = true;
            self.survey = self.late_survey();
            if self.survey.is_none() {
                self.is_ranked |= self.is_ranking;
                self.is_ranking = false;
            }
        }
        true
    }

    /// A ranking goes on with the pods that came while it was made: one of the others may have made it long. Not for
    /// ever, as pods may come all the time.
    fn late_survey(&mut self) -> Option<Survey> {
        let may_go_on = self.is_ranking && self.late_rounds < LATE_ROUNDS;
        let late = may_go_on
            .then(|| self.unsurveyed())
            .filter(|late| !late.is_empty())?;
        self.late_rounds += 1;
        Some(self.survey_of(late.into()))
    }

    fn unsurveyed(&self) -> Vec<PodDirs> {
        let pods = self.pods.iter();
        pods.filter(|pod| !self.surveyed.contains_key(&pod.uid))
            .cloned()
            .collect()
    }

    fn next_survey(&mut self, now: Instant) -> Option<Survey> {
        if self.pods.is_empty() {
            return None;
        }
        let is_due = self
            .cycle_start
            .is_none_or(|start| now.saturating_duration_since(start) >= self.means.cycle);
        if is_due {
            self.cycle_start = Some(now);
            return Some(self.survey_of(Arc::clone(&self.pods)));
        }
        let new = self.unsurveyed();
        (!new.is_empty()).then(|| self.survey_of(new.into()))
    }

    fn survey_of(&self, pods: Arc<[PodDirs]>) -> Survey {
        let mut survey = Survey::of(pods);
        if self.doubts_quotas {
            survey.doubt_quotas();
        }
        survey
    }

    fn keep(&mut self, pod: PodSurvey) {
        for directory in &pod.directories {
            match directory.shortfall() {
                None => {
                    self.said.remove(&directory.path);
                }
                Some(shortfall) if !self.said.contains(&directory.path) => {
                    if self.said.len() >= SAID_MAX {
                        self.said.clear(); // and so it is said again
                    }
                    self.said.insert(directory.path.clone());
                    self.tell(StorageEvent::Warning(shortfall));
                }
                Some(_) => {}
            }
        }
        // It may have gone while it was measured.
        let uid = pod.storage.uid.clone();
        if self.pods.iter().any(|known| known.uid == uid) {
            self.surveyed.insert(uid, pod);
            self.is_changed = true;
        }
    }

    /// A survey has ended early: what those have that it had not come to is unknown, and not nothing.
    fn keep_unknown(&mut self) {
        for pod in self.unsurveyed() {
            let storage = PodStorage {
                is_cut: true,
                ..PodStorage::nothing(pod.uid.clone())
            };
            let directories = Vec::new();
            let unknown = PodSurvey {
                storage,
                directories,
            };
            self.surveyed.insert(pod.uid, unknown);
        }
    }

    /// Hands figures on: at the end of a survey at once, else now and then.
    fn hand_on(&mut self) {
        let is_due = self.survey.is_none() || self.is_ranked || {
            let last = self.handed_on;
            last.is_none_or(|last| last.elapsed() >= HAND_ON)
        };
        if !self.is_changed || !is_due {
            return;
        }
        let pods = self.surveyed.values().map(|pod| pod.storage.clone());
        let figures = Figures {
            pods: pods.collect(),
            is_ranking: self.is_ranked,
        };
        match self.figures.try_send(figures) {
            Err(TrySendError::Full(_)) => {} // tried again after the next slice
            Ok(()) | Err(TrySendError::Disconnected(_)) => {
                self.is_changed = false;
                self.handed_on = Some(Instant::now());
                if std::mem::take(&mut self.is_ranked)
                    && let Some(reader) = &self.means.reader
                {
                    reader.unpark();
                }
            }
        }
    }

    fn tell(&mut self, event: StorageEvent) {
        if self.unsent.len() >= UNSENT_MAX {
            self.unsent.pop_front();
            self.shared.events_dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.unsent.push_back(event);
    }

    fn flush(&mut self) {
        while let Some(event) = self.unsent.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => {}
                Err(EventError::Full(event)) => return self.unsent.push_front(event),
                Err(EventError::Closed(_)) => return self.unsent.clear(),
            }
        }
    }

    /// How long there is nothing to do.
    fn until_work(&self) -> Duration {
        if self.is_changed || !self.unsent.is_empty() {
            return super::INTERVAL_MIN;
        }
        match self.cycle_start {
            Some(start) if !self.pods.is_empty() => {
                self.means.cycle.saturating_sub(start.elapsed())
            }
            _ => self.means.cycle,
        }
        .max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests;
