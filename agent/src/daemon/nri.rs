//! What the container runtime is answered when it makes a container (NRI), beside a kubelet.
//!
//! **Problem.** What the agent decides of a container is written after its start; a container of a pod that is held is refused by the kernel in words that name no reason, and on cgroup v1 not at all. **Approach.** The same decisions
//! are sent ahead to [`crate::source::nri`]: that no container of an evicted pod is made, with the reason, and the scores of containers in the order of eviction. They are
//! compared with what was sent whenever something about the pod may have changed, and only what differs is sent. All else stays as without NRI: the runtime may be away, old or
//! late, so holds and scores are also applied after the start, and all pods are looked at when a runtime begins to ask.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::kube::runtime_link::{FromNri, PodAnswers};
use plimsoll_core::model::units::PodUid;
use plimsoll_core::placement::cpu_set::CpuSet;

use super::placement::MadeContainer;
use super::{Agent, Placing};
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
    tally: NriTally,
    /// Why it is away: said once.
    away: Option<String>,
}

impl NriWork {
    /// Sends through this link.
    pub fn new(link: NriLink) -> Self {
        Self {
            link,
            sent: BTreeMap::new(),
            changed: BTreeSet::new(),
            pool: None,
            tally: NriTally::default(),
            away: None,
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

    /// Sends what differs from what was sent.
    pub(super) fn send_answers(&mut self) {
        let Some(work) = &mut self.nri else {
            return;
        };
        let closed = self
            .kubelet
            .as_ref()
            .map(|kubelet| kubelet.closed().cloned().collect::<BTreeSet<PodUid>>())
            .unwrap_or_default();
        let was_closed =
            |(uid, answers): (&PodUid, &PodAnswers)| answers.refusal.is_some().then(|| uid.clone());
        work.changed.extend(work.sent.iter().filter_map(was_closed));
        work.changed.extend(closed.iter().cloned());
        let placing = self.placing.as_ref();
        let pool = placing.and_then(Placing::pool_of_new);
        let text = || pool.map(|cpus| cpus.to_string());
        if pool != work.pool && work.link.set(NriChange::SharedPool(text())) {
            work.pool = pool;
        }
        if let Some(placing) = placing {
            let was_placed = |(uid, answers): (&PodUid, &PodAnswers)| {
                let is_placed = !(answers.places.is_empty() && answers.foreign.is_empty());
                is_placed.then(|| uid.clone())
            };
            work.changed.extend(work.sent.iter().filter_map(was_placed));
            work.changed.extend(placing.holders().cloned());
            work.changed.extend(placing.with_foreign().cloned());
        }
        let scores = self
            .oom_scores
            .as_ref()
            .filter(|_| self.oom_order.is_some());
        let mut unsent = BTreeSet::new();
        for uid in std::mem::take(&mut work.changed) {
            let ordered = scores.and_then(|scores| scores.ordered(&uid));
            let answers = PodAnswers {
                refusal: closed.contains(&uid).then(|| EVICTED.to_owned()),
                oom_score_adj: ordered.cloned().unwrap_or_default(),
                specified: scores.map_or_else(BTreeMap::new, |scores| scores.specified(&uid)),
                places: placing.map_or_else(BTreeMap::new, |placing| placing.places(&uid)),
                foreign: placing.map_or_else(BTreeSet::new, |placing| placing.foreign(&uid)),
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
                tracing::info!(runtime, "the runtime asks when it makes a container (NRI)");
                // What it made while it did not ask is as its specification had it.
                self.rescans.note_all();
                self.rescans.ask();
            }
            FromNri::Away { why } => {
                work.tally.is_connected = false;
                if work.away.as_ref() == Some(&why) {
                    return;
                }
                work.away = Some(why.clone());
                self.warn(format!(
                    "NRI is not used: {why}; scores, holds and CPUs are applied when a container has started, and it is tried again"
                ));
            }
            FromNri::Container {
                pod_uid,
                name,
                id,
                answer,
                is_foreign,
            } => {
                let uid = PodUid::new(pod_uid);
                work.tally.count(&answer);
                if let Some(placing) = &mut self.placing {
                    let made = MadeContainer {
                        id: id.clone(),
                        name: name.clone(),
                        is_foreign,
                    };
                    if let Some(text) = placing.is_made(&self.pods, &uid, made) {
                        self.warn(text);
                    }
                }
                if let Some(scores) = &mut self.oom_scores {
                    scores.is_made(&uid, id, name);
                }
                if self.pods.contains(&uid) {
                    self.rescans.note(&uid);
                    self.rescans.ask();
                }
            }
            FromNri::Update { pod_uid, answer } => {
                work.tally.count(&answer);
                // A runtime that has not heard the answer has put the container back where it was made.
                if let Some(placing) = &mut self.placing {
                    placing.is_updated();
                }
                self.rescans.note(&PodUid::new(pod_uid));
                self.rescans.ask();
            }
            FromNri::Dropped { frames } => {
                work.tally.dropped = work.tally.dropped.saturating_add(frames);
                self.rescans.note_all();
                self.rescans.ask();
            }
        }
    }
}

#[cfg(test)]
mod tests;
