//! The arbitrator in a cluster: what is decided, and which calls follow. Pure: objects, answers and the time go in,
//! calls come out; the loop with its connection is `run::arbitrate`.
//!
//! Problem: the core says what should be ([`plimsoll_core::arbitration`]); a cluster changes meanwhile, answers late or
//! not at all, and its owners want a word before a pod goes.
//!
//! Approach: watches fill a [`store`]; a cycle [`judge`]s all of it; the plan becomes notices and then evictions
//! ([`reclaim`]); [`status`] is written where it differs. Whatever is in doubt holds evictions back, and nothing else:
//! shares are shown as they are known.
//!
//! What it does, and when: `docs/reference/arbitrator.md`, from "In a cluster" on.

pub mod judge;
pub mod lease;
pub mod pod_warning;
pub mod reclaim;
pub mod review;
pub mod scheduler;
pub mod seen;
pub mod status;
pub mod store;
pub mod webhook;
mod writes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::backoff::{Backoff, Pace};
use crate::call::{Answer, Call};
use crate::clock::Now;
use crate::report::event::{EventKey, Events, Regarding, Said};
use crate::watch_event::WatchEvent;
use judge::{Judgement, Memory, Row, Times};
use reclaim::{Alike, Fate, Outcome, Reclaims};
use scheduler::Scheduler;
use seen::pod::{PodRead, SeenPod};
use store::{Kind, Store};

/// Writes in any second, Events counted.
const WRITES_PER_SECOND: usize = 50;
/// Of these so many are for holes and evictions alone: no other write makes them wait.
const URGENT_PER_SECOND: usize = 20;
/// Writes of holes in any second: no pod that loses its own again and again takes those of the others.
const HOLES_PER_SECOND: usize = 30;
/// Calls on their way at once.
const CALLS_MAX: usize = 8;
/// Without a change a cycle is made this often: pods grow older.
const IDLE_CYCLE_MS: u64 = 10_000;
/// No pod is evicted for so long after something was not known as it is: what a watch has yet to say comes first. What
/// is not known for longer ends all notices.
const SETTLED_MS: u64 = 5_000;
/// Where Events and other writes wait, every so-many-th write is an Event.
const EVENT_EVERY: u32 = 10;
/// So often an eviction asks for a version that was seen, each time a newer one; then for the same pod in any version.
const HITS_BY_VERSION: u32 = 2;
/// What was written is seen by then, or it is written again.
const SEEN_AFTER_MS: u64 = 5_000;

/// The options.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where a Consumer names none.
    pub times: Times,
    /// Between two cycles at least, milliseconds.
    pub cycle_ms: u64,
    /// Evictions in any second at most.
    pub evictions_per_second: usize,
    /// No pod is evicted and none is annotated: evictions are sent as dry runs.
    pub is_dry: bool,
    /// The name in Events.
    pub identity: String,
    /// The scheduler whose pods have room made for them.
    pub scheduler: String,
}

/// What a call is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The eviction of a pod, by UID.
    Evict(String),
    /// The same, which changes nothing.
    Try(String),
    /// The notice on a pod, by UID.
    Notice(String),
    /// The hole that is kept for a pod, by UID.
    Hole(String),
    /// The status of a Consumer.
    Consumer(String),
    /// An Allocation that is not there, by namespace and name.
    Allocation(String, String),
    /// The status of an Allocation.
    AllocationStatus(String, String),
    /// The list of overused namespaces on a node.
    Overused(String),
    /// An Event.
    Event(EventKey),
}

/// What is counted.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Cycles that were computed.
    pub cycles: u64,
    /// How long the last one took, microseconds.
    pub cycle_us: u64,
    /// Evictions by what came of them.
    pub evictions: BTreeMap<Outcome, u64>,
    /// Notices that began.
    pub notices: u64,
    /// Writes that were refused for good, and evictions that this account may not make.
    pub refused: u64,
}

/// The arbitrator.
#[derive(Debug)]
pub struct Arbiter {
    settings: Settings,
    /// What is known.
    pub store: Store,
    memory: Memory,
    reclaims: Reclaims,
    events: Events,
    /// What the last cycle came to.
    pub judgement: Judgement,
    rows: BTreeMap<String, Row>,
    /// Why no pod is evicted now.
    pub held_back: Option<String>,
    /// Why the last cycle came to nothing.
    broken: Option<String>,
    /// What is counted.
    pub figures: Figures,
    is_changed: bool,
    held: bool,
    /// No cycle since the Lease was gained.
    takes_over: bool,
    /// Something was missed or listed anew since the last turn.
    was_stale: bool,
    stale_since_ms: Option<u64>,
    /// No pod is evicted before.
    settled_ms: u64,
    next_cycle_ms: u64,
    idle_cycle_ms: u64,
    /// What the clock on the wall said at the beginning: ages are counted from it, and later jumps of it mean nothing
    /// to them.
    unix_at_zero_ms: u64,
    evictions: Pace,
    writes: Pace,
    /// Of those, what is neither a hole nor an eviction.
    other_writes: Pace,
    /// Of those, holes.
    hole_writes: Pace,
    /// Whether pods are placed.
    scheduler: Scheduler,
    /// Since when a status differs by little.
    little_since: BTreeMap<Target, u64>,
    /// Not written again before this, with how long to wait after the next failure.
    not_before: BTreeMap<Target, (u64, Backoff)>,
    on_their_way: BTreeSet<Target>,
    /// Consumers with what was already said about them.
    said: BTreeSet<(String, &'static str)>,
    overused_at: BTreeMap<String, u64>,
    /// Pods for which a hole was written: the version on which it was, and when.
    holes_at: BTreeMap<String, (String, u64)>,
    /// Nodes that this process has nominated for pods that wait.
    nominated: BTreeMap<String, String>,
    /// The last urgent write was a hole: an eviction has its turn.
    was_hole: bool,
    /// Writes that are due, but for evictions and Events.
    queue: VecDeque<(Target, Call)>,
    /// It is made anew then.
    next_queue_ms: u64,
    /// Writes since the last one that was an Event.
    since_event: u32,
    /// Group and version that `pods/eviction` takes; nothing: not known yet.
    pub eviction_version: Option<String>,
    seed: u64,
}

impl Arbiter {
    /// Knows nothing.
    #[must_use]
    pub fn new(settings: Settings, now: Now, seed: u64) -> Self {
        Self {
            events: Events::of_arbitrator(&settings.identity, seed),
            reclaims: Reclaims::new(seed),
            evictions: Pace::new(settings.evictions_per_second),
            store: Store::of_scheduler(&settings.scheduler),
            settings,
            memory: Memory::default(),
            judgement: Judgement::default(),
            rows: BTreeMap::new(),
            held_back: None,
            broken: None,
            figures: Figures::default(),
            is_changed: false,
            held: false,
            takes_over: false,
            was_stale: false,
            stale_since_ms: None,
            settled_ms: 0,
            next_cycle_ms: 0,
            idle_cycle_ms: 0,
            unix_at_zero_ms: now.unix_ms.saturating_sub(now.mono_ms),
            writes: Pace::new(WRITES_PER_SECOND),
            other_writes: Pace::new(WRITES_PER_SECOND - URGENT_PER_SECOND),
            hole_writes: Pace::new(HOLES_PER_SECOND),
            scheduler: Scheduler::default(),
            little_since: BTreeMap::new(),
            not_before: BTreeMap::new(),
            on_their_way: BTreeSet::new(),
            said: BTreeSet::new(),
            overused_at: BTreeMap::new(),
            holes_at: BTreeMap::new(),
            nominated: BTreeMap::new(),
            was_hole: false,
            queue: VecDeque::new(),
            next_queue_ms: 0,
            since_event: 0,
            eviction_version: None,
            seed,
        }
    }

    /// By the clock that never jumps: for ages, and for nothing that others compare.
    fn steady_unix_ms(&self, now: Now) -> u64 {
        self.unix_at_zero_ms.saturating_add(now.mono_ms)
    }

    /// Takes what a watch said.
    pub fn hear(&mut self, kind: Kind, heard: WatchEvent) {
        self.was_stale |= matches!(
            heard,
            WatchEvent::Missed(_) | WatchEvent::Refused(_) | WatchEvent::List(_)
        );
        self.is_changed |= self.store.hear(kind, heard);
    }

    /// Whether an eviction is on its way.
    #[must_use]
    pub fn is_evicting(&self) -> bool {
        let mut targets = self.on_their_way.iter();
        targets.any(|target| matches!(target, Target::Evict(_)))
    }

    /// Whether everything was listed.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        Kind::ALL
            .into_iter()
            .all(|kind| self.store.watch(kind).was_listed)
    }

    /// Pods that have notice now.
    #[must_use]
    pub fn notices(&self) -> usize {
        self.reclaims.notices.len()
    }

    /// What waits for time to pass.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.is_changed || !self.reclaims.notices.is_empty() || !self.events.is_idle()
    }

    /// A cycle, if one is due. `holds`: this has the Lease, also where it is late with a write. Returns whether there
    /// was one.
    pub fn turn(&mut self, now: Now, holds: bool) -> bool {
        let ms = now.mono_ms;
        let is_stale = self.store.stale().is_some();
        let (signs, free_ms) = (self.store.signs, self.reclaims.free_ms());
        self.scheduler.look(signs, free_ms, ms);
        if self.scheduler.is_silent() {
            self.reclaims.nobody_places();
        }
        self.look_at_notices();
        if std::mem::take(&mut self.was_stale) || is_stale {
            let since_ms = *self.stale_since_ms.get_or_insert(ms);
            // A list takes long in a large cluster. The API server answers meanwhile, so that owners see their notices,
            // and all is judged anew after it.
            if ms >= since_ms + SETTLED_MS && self.store.is_behind() {
                self.reclaims.pause();
            }
            self.is_changed = true;
            self.settled_ms = ms + SETTLED_MS;
        }
        if !is_stale {
            self.stale_since_ms = None;
        }
        if !holds {
            self.reclaims.stop();
            self.queue.clear();
            // Another process, or the scheduler, may have named the same node since.
            self.nominated.clear();
            self.holes_at.clear();
        }
        self.is_changed |= holds && !self.held;
        self.takes_over = holds && (self.takes_over || !self.held);
        self.held = holds;
        self.held_back = self.doubt(ms, holds);
        let waits = !self.reclaims.notices.is_empty() || ms >= self.idle_cycle_ms;
        if ms < self.next_cycle_ms || !(self.is_changed || waits) || is_stale {
            return false;
        }
        self.is_changed = false;
        self.next_cycle_ms = ms + self.settings.cycle_ms;
        self.next_queue_ms = ms;
        self.idle_cycle_ms = ms + IDLE_CYCLE_MS;
        self.cycle(now, holds);
        true
    }

    /// How long the cycle took that has just ended. The next one waits at least twice as long: between them the Lease
    /// is renewed and the plan carried out.
    pub fn took(&mut self, us: u64, now: Now) {
        self.figures.cycle_us = us;
        let rest_ms = self.settings.cycle_ms.max(us / 500);
        self.next_cycle_ms = now.mono_ms + rest_ms;
    }

    /// Why nothing may be evicted.
    fn doubt(&self, ms: u64, holds: bool) -> Option<String> {
        if let Some((kind, why)) = self.store.stale() {
            return Some(format!(
                "{} are not known as they are: {why}",
                kind.resource()
            ));
        }
        let mut consumers = self.store.consumers.iter();
        if let Some((name, _)) = consumers.find(|(_, consumer)| consumer.spec.is_err()) {
            return Some(format!("Consumer {name} cannot be read"));
        }
        if self.broken.is_some() {
            return self.broken.clone();
        }
        if let Some(overdue) = self.reclaims.overdue(ms) {
            return Some(format!(
                "pod {overdue} was evicted and is not seen to leave: the watch is behind"
            ));
        }
        if self.scheduler.is_silent() {
            return Some(format!(
                "room is free for a pod, and nothing shows that kube-scheduler (schedulerName {}) places or tries any; see whether it runs",
                self.store.scheduler()
            ));
        }
        (holds && ms < self.settled_ms)
            .then(|| "what is known has only just been listed or watched again".to_owned())
    }

    fn cycle(&mut self, now: Now, holds: bool) {
        let ms = now.mono_ms;
        let pods = &self.store.pods;
        // One that leaves in a year and was evicted, and whose time was not made shorter by that.
        let is_stuck = |uid: &str| {
            pods.get(uid)
                .is_some_and(|pod| pod.is_leaving && !pod.leaves())
        };
        self.reclaims.give_up(ms, is_stuck);
        let leaves = |uid: &str| pods.get(uid).is_none_or(SeenPod::leaves);
        let pending = |uid: &str| {
            let pod = pods.get(uid);
            pod.is_some_and(|pod| pod.node.is_none() && !pod.is_leaving)
        };
        let started = std::mem::take(&mut self.store.started);
        let fate = |uid: &str| match pods.get(uid) {
            // It may have ended since.
            _ if started.contains(uid) => Fate::Started,
            Some(pod) if pod.node.is_some() => Fate::Started,
            Some(pod) if !pod.is_leaving => Fate::Waits(alike(pod)),
            _ => Fate::Gone,
        };
        let is_gone = |uid: &str| pods.get(uid).is_none();
        self.nominated.retain(|uid, _| pending(uid));
        self.reclaims.look(ms, leaves, is_gone, fate);
        if std::mem::take(&mut self.takes_over) {
            self.adopt_holes(ms);
        }
        self.memory.evicted = self.reclaims.evicted();
        self.memory.left_alone = self.reclaims.left_alone(ms);
        self.memory.unserved = self.unserved(ms);
        self.memory.noticed = self.reclaims.noticed();
        self.memory.begun = self.reclaims.begun();
        let unix_ms = self.steady_unix_ms(now);
        let times = self.settings.times;
        let judged = judge::judge(&self.store, &mut self.memory, times, now, unix_ms);
        self.figures.cycles += 1;
        let judgement = match judged {
            Ok(judgement) => judgement,
            Err(error) => {
                self.reclaims.pause();
                self.held_back = Some(error.to_string());
                self.broken = Some(error.to_string());
                return;
            }
        };
        self.broken = None;
        let entitled: BTreeSet<&String> = judgement.entitled.iter().collect();
        self.memory
            .entitled_since
            .retain(|uid, _| entitled.contains(uid));
        for uid in entitled {
            let since = &mut self.memory.entitled_since;
            since.entry(uid.clone()).or_insert(ms);
        }
        self.rows = judgement
            .rows
            .iter()
            .map(|row| (row.name.clone(), row.clone()))
            .collect();
        self.note_unreadable();
        if holds {
            let grace = self.graces(times.grace_period_ms);
            let begun = self.reclaims.plan(judgement.reclaims.clone(), now, |uid| {
                grace.get(uid).copied().unwrap_or(times.grace_period_ms)
            });
            for victim in begun {
                self.figures.notices += 1;
                self.say_notice(&victim, now);
            }
            self.say_wrong(now);
        }
        self.judgement = judgement;
    }

    /// Pods for which no room is made now: they, or pods like them, did not start where it was made.
    fn unserved(&self, ms: u64) -> BTreeSet<String> {
        let mut unserved = self.reclaims.unserved(ms);
        if self.reclaims.has_missed(ms) {
            let pending = self.store.pods.iter().filter(|(_, pod)| pod.node.is_none());
            let inherits =
                pending.filter(|(uid, pod)| self.reclaims.inherits_wait(uid, &alike(pod), ms));
            unserved.extend(inherits.map(|(uid, _)| uid.clone()));
        }
        unserved
    }

    /// Holes that an earlier leader made: of namespaces that share, for nobody else is served.
    fn adopt_holes(&mut self, ms: u64) {
        let pods = &self.store.pods;
        let mut leaving_by_node: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (uid, pod) in pods.iter().filter(|(_, pod)| pod.leaves()) {
            let node = pod.node.as_deref().unwrap_or_default();
            leaving_by_node.entry(node).or_default().insert(uid.clone());
        }
        let consumers = self.store.consumers.iter();
        let specs = consumers.map(|(_, consumer)| consumer.spec.as_ref());
        let namespaces = specs.map(|spec| spec.map(|spec| spec.namespace.as_deref()));
        // With one that cannot be read nobody knows who shares, and what was made stays.
        let sharing: Result<BTreeSet<_>, _> = namespaces.collect();
        let kept = pods.iter().filter(|(_, pod)| {
            let shares = |sharing: &BTreeSet<_>| sharing.contains(&Some(pod.namespace.as_str()));
            let is_pending = pod.node.is_none() && !pod.is_leaving;
            pod.has_kept_hole() && is_pending && sharing.as_ref().map_or(true, shares)
        });
        for (uid, pod) in kept {
            let node = pod.room_on.as_deref().unwrap_or_default();
            let victims = leaving_by_node.get(node).cloned().unwrap_or_default();
            self.reclaims.adopt(uid, node, victims, ms);
        }
    }

    /// A Consumer that cannot be read says so itself.
    fn note_unreadable(&mut self) {
        for (name, consumer) in self.store.consumers.iter() {
            if let Err(why) = &consumer.spec {
                let text = format!(
                    "its spec cannot be read, so no pod of the cluster is evicted until it is mended: {why}"
                );
                let row = Row {
                    name: name.clone(),
                    wrong: vec![("Unreadable", text)],
                    ..Row::default()
                };
                self.rows.insert(name.clone(), row);
            }
        }
    }

    /// Grace periods of pods whose Consumer names one.
    fn graces(&self, usual_ms: u64) -> BTreeMap<String, u64> {
        let consumers = judge::consumers(&self.store).into_iter();
        let by_namespace: BTreeMap<String, u64> = consumers
            .filter_map(|(namespace, (_, spec))| Some((namespace, spec.grace_period_ms?)))
            .filter(|(_, ms)| *ms != usual_ms)
            .collect();
        if by_namespace.is_empty() {
            return BTreeMap::new();
        }
        let pods = self.store.pods.iter();
        pods.filter_map(|(uid, pod)| {
            let ms = by_namespace.get(&pod.namespace)?;
            Some((uid.clone(), *ms))
        })
        .collect()
    }

    fn shown(&self, uid: &str) -> String {
        let pod = self.store.pods.get(uid);
        pod.map_or_else(
            || format!("pod {uid}"),
            |pod| format!("{}/{}", pod.namespace, pod.name),
        )
    }

    fn say(&mut self, uid: &str, reason: &'static str, note: String, now: Now) {
        let Some(pod) = self.store.pods.get(uid) else {
            return;
        };
        let said = Said {
            regarding: Regarding {
                kind: "Pod",
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: uid.to_owned(),
            },
            reason,
            action: "Reclaim",
            note,
            ending: "",
            unix_ms: now.unix_ms,
            annotations: BTreeMap::new(),
        };
        self.events.say(said, now);
    }

    /// On both sides.
    fn say_notice(&mut self, victim: &str, now: Now) {
        let Some(notice) = self.reclaims.notices.get(victim).cloned() else {
            return;
        };
        let at = notice.value();
        let (one, other) = (self.shown(victim), self.shown(&notice.pod));
        let dry = if self.settings.is_dry {
            " (dry run)"
        } else {
            ""
        };
        let note = format!(
            "{other} is entitled to what this namespace uses above what it deserves; evicted after {at} unless there is room before{dry}"
        );
        self.say(victim, "ReclaimNotice", note, now);
        let note = format!(
            "there is no room; {one} is evicted for it after {at} unless there is room before{dry}"
        );
        self.say(&notice.pod, "ReclaimPlanned", note, now);
    }

    fn say_outcome(&mut self, victim: &str, for_pod: &str, outcome: Outcome, now: Now) {
        let (one, other) = (self.shown(victim), self.shown(for_pod));
        let dry = if self.settings.is_dry {
            " (dry run: it stays)"
        } else {
            ""
        };
        match outcome {
            Outcome::Evicted => {
                self.say(
                    victim,
                    "Reclaimed",
                    format!("evicted to make room for {other}{dry}"),
                    now,
                );
                self.say(
                    for_pod,
                    "RoomMade",
                    format!("{one} is evicted for it{dry}"),
                    now,
                );
            }
            Outcome::Budget => {
                let note =
                    format!("{one} stays for now: its disruption budget forbids the eviction");
                self.say(for_pod, "ReclaimRefused", note, now);
            }
            Outcome::Refused => {
                let note = format!("{one} stays for now: the API server refuses the eviction");
                self.say(for_pod, "ReclaimRefused", note, now);
            }
            Outcome::Changed | Outcome::Later | Outcome::NoRight | Outcome::Unclear => {}
        }
    }

    /// Each thing that is wrong with a Consumer, or unusual about its pods, once, until it is mended.
    fn say_wrong(&mut self, now: Now) {
        let rows = self.rows.values();
        let wrong = rows.flat_map(|row| {
            let warnings = row.pod_warnings.iter();
            let warnings = warnings.map(|(warning, pods)| (warning.reason(), warning.text(*pods)));
            let wrong = row.wrong.iter().cloned().chain(warnings);
            wrong.map(|wrong| (row.name.clone(), wrong))
        });
        let wrong: Vec<(String, (&'static str, String))> = wrong.collect();
        let known: BTreeSet<(String, &'static str)> = wrong
            .iter()
            .map(|(name, (reason, _))| (name.clone(), *reason))
            .collect();
        for (name, (reason, text)) in wrong {
            let Some(consumer) = self.store.consumers.get(&name) else {
                continue;
            };
            if self.said.contains(&(name.clone(), reason)) {
                continue;
            }
            let said = Said {
                regarding: Regarding {
                    kind: "Consumer",
                    namespace: String::new(),
                    uid: consumer.uid.clone(),
                    name,
                },
                reason,
                action: "Arbitrate",
                note: text,
                ending: "",
                unix_ms: now.unix_ms,
                annotations: BTreeMap::new(),
            };
            self.events.say(said, now);
        }
        self.said = known;
    }

    /// What came of a call.
    pub fn answered(&mut self, target: &Target, answer: &Answer, now: Now) {
        self.on_their_way.remove(target);
        match target {
            Target::Evict(victim) => {
                let dry = self.settings.is_dry;
                let (outcome, for_pod) = self.reclaims.answered(victim, answer, dry, now.mono_ms);
                self.note_outcome(victim, &for_pod, outcome, now);
            }
            Target::Try(victim) => {
                let (outcome, for_pod) = self.reclaims.note_trial(victim, answer, now.mono_ms);
                if outcome != Outcome::Evicted {
                    self.note_outcome(victim, &for_pod, outcome, now);
                }
            }
            Target::Event(key) => self.events.answered(key, answer, now),
            _ => {
                if let (Target::Overused(node), Answer::Done(_)) = (target, answer) {
                    self.overused_at.insert(node.clone(), now.mono_ms);
                }
                if let Answer::Done(body) = answer {
                    self.note_stored(target, body);
                }
                self.wait(target.clone(), answer, now);
            }
        }
    }

    fn note_outcome(&mut self, victim: &str, for_pod: &str, outcome: Outcome, now: Now) {
        *self.figures.evictions.entry(outcome).or_default() += 1;
        self.figures.refused += u64::from(outcome == Outcome::NoRight);
        self.say_outcome(victim, for_pod, outcome, now);
        self.is_changed = true;
    }

    /// When a write may be tried again, if the watch does not show it by then.
    fn wait(&mut self, target: Target, answer: &Answer, now: Now) {
        let seed = self.seed ^ now.mono_ms;
        // The scheduler may take back a hole at once.
        let seen_after_ms = match target {
            Target::Hole(_) => 0,
            _ => SEEN_AFTER_MS,
        };
        let ms = now.mono_ms;
        match &target {
            Target::Hole(pod) if self.reclaims.is_given_up(pod, answer, ms) => {
                self.reclaims.cannot_keep(pod, ms);
            }
            Target::Notice(victim) if self.reclaims.is_given_up(victim, answer, ms) => {
                let is_invalid = matches!(answer, Answer::Refused(refusal) if refusal.code == 422);
                if is_invalid {
                    // What its owner has made of it: full annotations, for example. The Event is the notice.
                    self.reclaims.note_read(victim);
                } else {
                    self.reclaims.leave_alone(victim, ms);
                }
            }
            _ => {}
        }
        let (until, backoff) = self
            .not_before
            .entry(target)
            .or_insert_with(|| (0, Backoff::new(seed)));
        let wait_ms = match answer {
            Answer::Done(_) => {
                backoff.reset();
                seen_after_ms
            }
            Answer::Refused(refusal) if refusal.is_passing() => {
                backoff.wait_at_least_ms(refusal.retry_after_ms)
            }
            Answer::Refused(_) => {
                self.figures.refused += 1;
                backoff.wait_ms().max(SEEN_AFTER_MS)
            }
            Answer::Lost(_) => backoff.wait_ms(),
        };
        *until = now.mono_ms + wait_ms;
    }

    /// The next call that may be made now. `acts`: this is the leader, and will be until the call has ended.
    pub fn next(&mut self, now: Now, acts: bool) -> Option<(Target, Call)> {
        let ms = now.mono_ms;
        if !acts || self.on_their_way.len() >= CALLS_MAX || !self.writes.allows(ms) {
            return None;
        }
        let urgent = match self.was_hole {
            true => self.next_eviction(ms).or_else(|| self.next_hole(ms)),
            false => self.next_hole(ms).or_else(|| self.next_eviction(ms)),
        };
        let (target, call) = match urgent {
            Some(urgent) => urgent,
            None => self.next_other(now)?,
        };
        if !matches!(target, Target::Event(_)) {
            self.was_hole = matches!(target, Target::Hole(_));
        }
        self.writes.count(ms);
        self.on_their_way.insert(target.clone());
        Some((target, call))
    }

    /// What is neither a hole nor an eviction.
    fn next_other(&mut self, now: Now) -> Option<(Target, Call)> {
        if !self.other_writes.allows(now.mono_ms) {
            return None;
        }
        let is_turn_of_events = self.since_event >= EVENT_EVERY;
        let event = is_turn_of_events.then(|| self.next_event(now)).flatten();
        let (target, call) = event
            .or_else(|| self.next_write(now))
            .or_else(|| self.next_event(now))?;
        self.since_event = match target {
            Target::Event(_) => 0,
            _ => self.since_event.saturating_add(1),
        };
        self.other_writes.count(now.mono_ms);
        Some((target, call))
    }

    /// How many holes may be begun: all, or one after the other while nothing shows that pods are placed.
    fn begins(&self, ms: u64) -> usize {
        // A dry run makes no hole.
        if self.settings.is_dry || self.scheduler.lives(ms) {
            usize::MAX
        } else {
            usize::from(self.scheduler.may_begin(self.reclaims.begun_ms(), ms))
        }
    }

    fn next_event(&mut self, now: Now) -> Option<(Target, Call)> {
        let key = self.events.next(now)?;
        let call = self.events.send(&key, false)?;
        Some((Target::Event(key), call))
    }

    /// Notes which notices the API shows. A dry run writes none.
    fn look_at_notices(&mut self) {
        let (pods, is_dry) = (&self.store.pods, self.settings.is_dry);
        self.reclaims.read(|uid, notice| {
            let shown = pods.get(uid).and_then(|pod| pod.evict_after.as_ref());
            is_dry || shown.is_some_and(|shown| *shown == notice.value())
        });
    }

    /// Notes what the API server has stored, by its answer: an owner may take it off before a watch shows it.
    fn note_stored(&mut self, target: &Target, body: &[u8]) {
        if !matches!(target, Target::Notice(_) | Target::Hole(_)) {
            return;
        }
        let Ok(PodRead::Counts(uid, pod)) = SeenPod::read(body, self.store.scheduler()) else {
            return;
        };
        match target {
            Target::Notice(victim) if *victim == uid => {
                let notice = self.reclaims.notices.get(victim);
                if notice.is_some_and(|notice| pod.evict_after == Some(notice.value())) {
                    self.reclaims.note_read(victim);
                }
            }
            Target::Hole(waiting) if *waiting == uid => {
                match pod.nominated.filter(|_| pod.room_on.is_some()) {
                    Some(node) => self.nominated.insert(uid, node),
                    None => self.nominated.remove(&uid),
                };
            }
            _ => {}
        }
    }

    fn next_eviction(&mut self, ms: u64) -> Option<(Target, Call)> {
        // A plan is as new as the cycle: what has changed since is judged first.
        if self.held_back.is_some() || self.is_changed || !self.evictions.allows(ms) {
            return None;
        }
        let (pods, is_dry) = (&self.store.pods, self.settings.is_dry);
        // The successor of a pod may be there before the pod has left: the hole is kept first.
        let is_kept = |uid: &str, node: &str| {
            let pod = pods.get(uid);
            is_dry || pod.is_some_and(|pod| self.is_kept(uid, pod, node))
        };
        let begins = self.begins(ms);
        let version = self.eviction_version.as_deref()?;
        if let Some((victim, for_pod)) = self.reclaims.next_trial(ms, begins, is_kept) {
            let pod: &SeenPod = pods.get(&victim)?;
            let call = writes::eviction(&victim, pod, version, true, true);
            self.reclaims
                .tries(&victim, &pod.resource_version, &for_pod, ms);
            return Some((Target::Try(victim), call));
        }
        let (victim, hole) = self.reclaims.next(ms, begins, is_kept)?;
        let pod: &SeenPod = pods.get(&victim)?;
        // Its owner changes it faster than it can be hit. What was judged is what the watch last showed of it.
        let is_any_version = self.reclaims.old_versions(&victim) >= HITS_BY_VERSION;
        let call = writes::eviction(&victim, pod, version, is_any_version, is_dry);
        self.evictions.count(ms);
        self.reclaims
            .sent(&victim, &pod.resource_version, &hole, ms);
        Some((Target::Evict(victim), call))
    }
}

/// What the pod has in common with those that would miss what it misses.
fn alike(pod: &SeenPod) -> Alike {
    (pod.namespace.clone(), pod.alike)
}

#[cfg(test)]
mod tests;
