//! What the container runtime is answered when it makes a container (NRI), beside a kubelet.
//!
//! **Problem.** What the agent decides of a container is written after its start; a container of a pod that is held is
//! refused by the kernel in words that name no reason, and on cgroup v1 not at all. **Approach.** The same decisions
//! are sent ahead to [`crate::source::nri`]: that no container of an evicted pod is made, with the reason, and the
//! scores of containers in the order of eviction. They are compared with what was sent whenever something about the pod
//! may have changed, and only what differs is sent. All else stays as without NRI: the runtime may be away, old or
//! late, so holds and scores are also applied after the start, and all pods are looked at when a runtime begins to ask.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::protocol::runtime_link::{Answer, FromNri, PodAnswers};

use super::placement::MadeContainer;
use super::{Agent, PlacementWork};
use crate::act::placement::answered::AnsweredSet;
use crate::record::tally::NriTally;
use crate::source::nri::{NriChange, NriLink};

/// In the Events of the pod: the kubelet shows what its runtime says.
const EVICTED: &str =
    "this pod was evicted from the node; its containers do not start here any more";

/// The loop's side of NRI.
#[derive(Debug)]
pub struct NriWork {
    link: NriLink,
    /// What was sent, without empty answers.
    sent: BTreeMap<PodUid, PodAnswers>,
    /// Pods of which the answers may be others than what was sent.
    changed: BTreeSet<PodUid>,
    /// The shared pool that was sent.
    pool: Option<CpuSet>,
    /// Evicted pods, of which no container is made, when they were last looked at.
    closed: BTreeSet<PodUid>,
    /// What was placed when that was last looked at ([`PlacementWork::revision`]).
    placed: Option<(u64, u64, CpuSet)>,
    tally: NriTally,
    /// Why it is away: said once.
    away: Option<String>,
    /// Why the runtime does not tell of containers: said once.
    no_events: Option<String>,
}

impl NriWork {
    /// Sends through this link.
    pub fn new(link: NriLink) -> Self {
        Self {
            link,
            sent: BTreeMap::new(),
            changed: BTreeSet::new(),
            pool: None,
            closed: BTreeSet::new(),
            placed: None,
            tally: NriTally::default(),
            away: None,
            no_events: None,
        }
    }

    /// What came of it so far.
    pub(super) fn tally(&self) -> NriTally {
        self.tally
    }

    /// Something about the pod may have changed.
    pub(super) fn note(&mut self, uid: &PodUid) {
        if !self.changed.contains(uid) {
            self.changed.insert(uid.clone());
        }
    }

    /// Whether the runtime tells of containers that start and end, or why not: a reason is said once.
    fn note_events(&mut self, away: Option<String>) {
        match &away {
            None => tracing::info!("the runtime tells of containers that start and end"),
            Some(why) if self.no_events.as_ref() != Some(why) => tracing::info!(
                why,
                "the runtime sends no events of containers; they are known when cgroups appear and the API names them"
            ),
            Some(_) => {}
        }
        self.no_events = away;
    }
}

impl Agent {
    /// Also answers the container runtime.
    #[must_use]
    pub fn with_nri(mut self, nri: Option<NriWork>) -> Self {
        self.nri = nri;
        self
    }

    /// A pod has been looked at, or its scores have another order.
    pub(super) fn note_nri(&mut self, uid: &PodUid) {
        if let Some(work) = &mut self.nri {
            work.note(uid);
        }
    }

    /// Pods that have gone need no answers.
    pub(super) fn rescan_nri(&mut self) {
        if let Some(work) = &mut self.nri {
            let gone = work.sent.keys().filter(|uid| !self.pods.contains(uid));
            work.changed.extend(gone.cloned());
        }
    }

    /// Notes the pods of which the answers may be others by now: of all other pods none are made.
    fn note_what_may_differ(&mut self) {
        let Some(work) = &mut self.nri else {
            return;
        };
        let closed = || self.kubelet.iter().flat_map(|kubelet| kubelet.closed());
        if !closed().eq(&work.closed) {
            let closed: BTreeSet<PodUid> = closed().cloned().collect();
            let either = work.closed.symmetric_difference(&closed);
            work.changed.extend(either.cloned());
            work.closed = closed;
        }
        let placed = self.placement.as_ref().map(PlacementWork::revision);
        if placed != work.placed {
            work.placed = placed;
            let was_placed = |(uid, answers): (&PodUid, &PodAnswers)| {
                let is_placed = !(answers.places.is_empty() && answers.foreign.is_empty());
                is_placed.then(|| uid.clone())
            };
            work.changed.extend(work.sent.iter().filter_map(was_placed));
            let placement = self.placement.iter();
            let now =
                placement.flat_map(|placement| placement.holders().chain(placement.with_foreign()));
            work.changed.extend(now.cloned());
        }
    }

    /// Sends what differs from what was sent.
    pub(super) fn send_answers(&mut self) {
        self.note_what_may_differ();
        let Some(work) = &mut self.nri else {
            return;
        };
        let placement = self.placement.as_ref();
        let pool = placement.and_then(PlacementWork::pool_of_new);
        let text = || pool.map(|cpus| cpus.to_string());
        if pool != work.pool && work.link.set(NriChange::SharedPool(text())) {
            work.pool = pool;
        }
        let scores = self.oom.scores_in_order();
        let mut unsent = BTreeSet::new();
        for uid in std::mem::take(&mut work.changed) {
            let ordered = scores.and_then(|scores| scores.ordered(&uid));
            let answers = PodAnswers {
                refusal: work.closed.contains(&uid).then(|| EVICTED.to_owned()),
                oom_score_adj: ordered.cloned().unwrap_or_default(),
                specified: scores.map_or_else(BTreeMap::new, |scores| scores.specified(&uid)),
                places: placement.map_or_else(BTreeMap::new, |placement| placement.places(&uid)),
                foreign: placement.map_or_else(BTreeSet::new, |placement| placement.foreign(&uid)),
            };
            let sent = work.sent.get(&uid);
            if sent == Some(&answers) || (sent.is_none() && answers.is_empty()) {
                continue;
            }
            let change = NriChange::Pod {
                uid: uid.clone(),
                answers: answers.clone(),
            };
            if !work.link.set(change) {
                // Its thread has not taken the others yet.
                unsent.insert(uid);
            } else if answers.is_empty() {
                work.sent.remove(&uid);
            } else {
                work.sent.insert(uid, answers);
            }
        }
        work.changed = unsent;
    }

    fn look_at(&mut self, uid: &PodUid) {
        if self.pods.contains(uid) {
            self.rescans.note(uid);
            self.rescans.ask();
        }
    }

    /// The runtime does not ask any more, or not yet: a reason is said once.
    fn nri_away(&mut self, why: String) {
        let Some(work) = &mut self.nri else {
            return;
        };
        work.tally.is_connected = false;
        if work.away.as_ref() == Some(&why) {
            return;
        }
        work.away = Some(why.clone());
        self.warn(format!(
            "NRI is not available: {why}; scores, holds and CPUs are applied after a container has started, and the connection is tried again"
        ));
    }

    /// The runtime makes a container.
    fn nri_makes(&mut self, uid: &PodUid, made: MadeContainer) {
        let (id, name) = (made.id.clone(), made.name.clone());
        if let Some(placement) = &mut self.placement
            && let Some(text) = placement.note_made(&self.pods, uid, made)
        {
            self.warn(text);
        }
        if let Some(scores) = &mut self.oom.scores {
            scores.note_made(uid, id, name);
        }
        self.look_at(uid);
    }

    /// `plimsoll-runtime nri` has said something. Not urgent.
    pub(super) fn nri_event(&mut self, event: FromNri) {
        let Some(work) = &mut self.nri else {
            return;
        };
        match event {
            // Its thread takes it.
            FromNri::Hello { .. } => {}
            FromNri::Connected { runtime } => {
                work.tally.is_connected = true;
                work.away = None;
                tracing::info!(runtime, "connected to the runtime's NRI socket");
                // What it made or changed while it did not ask is as its specification had it.
                self.look_at_all();
            }
            FromNri::Away { why } => self.nri_away(why),
            FromNri::Container {
                pod_uid,
                name,
                id,
                answer,
                is_foreign,
            } => {
                work.tally.count(&answer);
                let answered = match &answer {
                    Answer::Adjusted(adjustment) => AnsweredSet::of(adjustment),
                    Answer::Unchanged | Answer::Refused(_) => None,
                };
                let made = MadeContainer {
                    id,
                    name,
                    is_foreign,
                    answered,
                };
                self.nri_makes(&PodUid::new(pod_uid), made);
            }
            // What it writes is not there yet.
            FromNri::Update { answer, .. } => work.tally.count(&answer),
            FromNri::Updated { pod_uid } => {
                // A runtime that has not heard the answer, or another plugin, may have put the container elsewhere.
                if let Some(placement) = &mut self.placement {
                    placement.note_updated();
                }
                self.rescans.note(&PodUid::new(pod_uid));
                self.rescans.ask();
            }
            FromNri::Events { away } => work.note_events(away),
            FromNri::Started { pod_uid, name, id } => {
                let uid = PodUid::new(pod_uid);
                if let Some(placement) = &mut self.placement {
                    placement.note_named(&self.pods, &uid, &id, &name);
                }
                if let Some(scores) = &mut self.oom.scores {
                    scores.note_made(&uid, id, name);
                }
                self.look_at(&uid);
            }
            FromNri::Ended { pod_uid } => self.look_at(&PodUid::new(pod_uid)),
            FromNri::Dropped { frames } => {
                work.tally.dropped = work.tally.dropped.saturating_add(frames);
                self.look_at_all();
            }
        }
    }
}

#[cfg(test)]
mod tests;
