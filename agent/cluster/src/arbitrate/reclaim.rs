//! From plan to eviction (`docs/reference/arbitrator.md`, "In a cluster"): notices, evictions, and what is left alone.
//!
//! Each cycle brings a plan. A victim that it names has notice from then on, as long as further plans name it; one that
//! names others for a moment ends no notice. When all victims of a hole have had their notice, and its annotation was
//! seen in the API, they are evicted, one after the other, and of several each is tried before: the refusal of one must
//! not have cost another. What an answer leaves open counts as done until it is clear that it was not.
//!
//! The owner of a victim makes another pod at once, and the scheduler would give it the hole before the pod for which
//! it was made has had its turn again. So the hole is kept: `status.nominatedNodeName` of that pod names the node
//! before the first victim goes, until the pod has started or a minute after the last victim has gone.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::arbitration::deletion::GRACE_MAX_S;

use super::judge::Reclaim;
use crate::backoff::Backoff;
use crate::call::{Answer, Refusal};
use crate::clock::{Now, rfc3339_s};

/// A refused pod is left alone for a minute first.
const ALONE_MS: u64 = 60_000;
/// And for 16 at most.
const ALONE_MAX_MS: u64 = 16 * ALONE_MS;
/// What an eviction's answer leaves open is clear by then, or it was not done.
const UNCLEAR_MS: u64 = 15_000;
/// What a trial has shown is true for so long.
const TRIED_MS: u64 = 10_000;
/// A claim on a hole ends so long after its last victim has gone.
const CLAIM_MS: u64 = 60_000;
/// And so long after the last eviction, gone or not.
const CLAIM_MAX_MS: u64 = GRACE_MAX_S * 1000 + 60_000;
/// A hole is kept for so long at most, whatever is not seen meanwhile.
const KEPT_MAX_MS: u64 = 30 * 60_000;
/// A victim that no plan names for so long has no notice any more.
const GAP_MS: u64 = 10_000;
/// So often in a row an eviction may meet a pod that has changed: the API server counts each one against the budget
/// first.
const CONFLICTS_MAX: u32 = 3;
/// So often in a row the API server may answer a write of one pod with what may be its own trouble.
const ERRORS_MAX: u32 = 3;
/// So often a pod may miss its hole.
const MISSES_MAX: u32 = 2;
/// Kinds of pods whose misses are remembered at most: the newest.
const HEIRS_MAX: usize = 4096;

/// Pods that are made by the same kind of object in one namespace and request the same: what one of them missed, the
/// next one would miss as well. The namespace, and [a number](super::seen::pod::SeenPod::alike) for the rest.
pub type Alike = (String, u64);

/// What has become of a pod that waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It still waits.
    Waits(Alike),
    /// It was placed on a node.
    Started,
    /// It is gone, or leaves, and was not seen to start.
    Gone,
}

/// What pods missed that are gone, for the next one like them: a Job that ends leaves its misses to the next Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Missed {
    misses: u32,
    unserved_until_ms: u64,
    at_ms: u64,
}

/// Notice of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// For which pod.
    pub pod: String,
    /// Since when, by the clock that never jumps.
    pub since_ms: u64,
    /// When it is evicted.
    pub due_ms: u64,
    /// The same by the clock on the wall when the notice began, milliseconds since 1970.
    pub due_unix_ms: u64,
    /// The API had it once. Its owner may take it off again, and has read it.
    pub was_read: bool,
}

impl Notice {
    /// The value of the annotation.
    #[must_use]
    pub fn value(&self) -> String {
        rfc3339_s(self.due_unix_ms)
    }

    /// Whether the pod has a time of grace: without one there is nothing to wait for.
    #[must_use]
    pub const fn has_grace(&self) -> bool {
        self.due_ms > self.since_ms
    }
}

/// That a pod had changed when it was to go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Conflicts {
    /// How often in a row.
    times: u32,
    /// How many versions of it were asked for.
    versions: u32,
    /// The newest of these.
    version: String,
}

/// An eviction that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    for_pod: String,
    /// The pod's version that was seen.
    version: String,
    node: String,
    /// Victims of the same hole that come after it.
    left: usize,
    at_ms: u64,
    /// The API server said yes; else it is not clear.
    is_done: bool,
    is_on_its_way: bool,
    /// When the hole before this one was begun, as it stands again if nothing comes of it.
    begun_before_ms: Option<u64>,
}

/// An eviction that changes nothing, of a victim of a hole of several: the refusal of a later one must not cost the
/// first.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Trial {
    for_pod: String,
    version: String,
    at_ms: u64,
    is_on_its_way: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Alone {
    until_ms: u64,
    wait_ms: u64,
}

/// A hole that was made for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Claim {
    node: String,
    /// Those of its victims that have not gone yet.
    victims: BTreeSet<String>,
    /// How many more of its victims are to be evicted, as the plan had it.
    left: usize,
    /// When the first eviction for it was answered: the end that no doubt puts off counts from here.
    opened_ms: u64,
    /// When the last eviction for it was answered.
    made_ms: u64,
    /// When a victim of it was last there, or was seen to have gone.
    free_ms: u64,
    /// It was free before this process looked: since when, and whether its pod was tried, is not known.
    was_free: bool,
    /// What came of it since was not seen.
    is_unseen: bool,
    is_open: bool,
    misses: u32,
    unserved_until_ms: u64,
    /// What its pod is like, once it was looked at.
    alike: Option<Alike>,
}

impl Claim {
    /// An eviction for it may have been carried out. `left`: so many of its victims come after this one.
    fn opens(&mut self, node: String, victim: &str, left: usize, mono_ms: u64) {
        if !self.is_open {
            self.opened_ms = mono_ms;
        } else if self.victims.is_empty() && left >= self.left && !self.is_unseen {
            // All victims have gone, and the plan has another hole for the pod: it missed this one.
            self.missed(mono_ms);
        }
        self.node = node;
        self.victims.insert(victim.to_owned());
        self.left = left;
        self.made_ms = mono_ms;
        self.was_free = false;
        self.is_open = true;
    }

    fn missed(&mut self, mono_ms: u64) {
        self.misses += 1;
        if self.misses >= MISSES_MAX {
            let doublings = (self.misses - MISSES_MAX).min(4);
            self.unserved_until_ms = mono_ms + (ALONE_MS << doublings);
        }
    }

    /// Begins with what pods like its own have missed.
    fn inherit(&mut self, alike: Alike, missed: Option<&Missed>) {
        if let Some(missed) = missed {
            self.misses += missed.misses;
            self.unserved_until_ms = self.unserved_until_ms.max(missed.unserved_until_ms);
        }
        self.alike = Some(alike);
    }

    const fn is_kept(&self, mono_ms: u64) -> bool {
        self.is_open && mono_ms < self.opened_ms + KEPT_MAX_MS
    }
}

/// What came of an eviction, for metrics and Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It leaves.
    Evicted,
    /// A budget forbids it now.
    Budget,
    /// It changed since it was seen, or is gone.
    Changed,
    /// The server asks for patience, or has trouble.
    Later,
    /// Refused for another reason.
    Refused,
    /// This account may not evict it, or the API server has not read the roles yet.
    NoRight,
    /// No answer.
    Unclear,
}

impl Outcome {
    /// A metric's label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Budget => "budget",
            Self::Changed => "changed",
            Self::Later => "later",
            Self::Refused => "refused",
            Self::NoRight => "no_right",
            Self::Unclear => "unclear",
        }
    }
}

/// What was begun.
#[derive(Debug)]
pub struct Reclaims {
    /// By the victim's UID.
    pub notices: BTreeMap<String, Notice>,
    /// Notices that the newest plans do not name, and since when.
    gaps: BTreeMap<String, (Notice, u64)>,
    conflicts: BTreeMap<String, Conflicts>,
    /// How often in a row the API server answered a write of a pod with what may be its own trouble, and when that last
    /// counted.
    errors: BTreeMap<String, (u32, u64)>,
    /// Holes of the last plan.
    plan: Vec<Reclaim>,
    asked: BTreeMap<String, Asked>,
    /// That the API server would take.
    tried: BTreeMap<String, Trial>,
    alone: BTreeMap<String, Alone>,
    claims: BTreeMap<String, Claim>,
    /// Of pods that are gone.
    missed: BTreeMap<Alike, Missed>,
    begun_ms: Option<u64>,
    pause_until_ms: u64,
    backoff: Backoff,
}

impl Reclaims {
    /// Nothing.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            notices: BTreeMap::new(),
            gaps: BTreeMap::new(),
            conflicts: BTreeMap::new(),
            errors: BTreeMap::new(),
            plan: Vec::new(),
            asked: BTreeMap::new(),
            tried: BTreeMap::new(),
            alone: BTreeMap::new(),
            claims: BTreeMap::new(),
            missed: BTreeMap::new(),
            begun_ms: None,
            pause_until_ms: 0,
            backoff: Backoff::new(seed),
        }
    }

    /// Pods that leave as far as is known.
    #[must_use]
    pub fn evicted(&self) -> BTreeSet<String> {
        self.asked.keys().cloned().collect()
    }

    /// Pods that are left alone now.
    #[must_use]
    pub fn left_alone(&self, mono_ms: u64) -> BTreeSet<String> {
        let alone = self.alone.iter().filter(|(_, it)| it.until_ms > mono_ms);
        alone.map(|(uid, _)| uid.clone()).collect()
    }

    /// Holes that are free for their pods, which have not started there: since when.
    pub fn free_ms(&self) -> impl Iterator<Item = u64> {
        let open = self.claims.values().filter(|claim| claim.is_open);
        let free =
            open.filter(|claim| claim.victims.is_empty() && claim.left == 0 && !claim.was_free);
        free.map(|claim| claim.free_ms)
    }

    /// Nobody places pods: that is no fault of those for which holes are kept.
    pub fn nobody_places(&mut self) {
        for claim in self.claims.values_mut() {
            claim.is_unseen = true;
        }
    }

    /// Pods for which no room is made now: they did not start where it was made.
    #[must_use]
    pub fn unserved(&self, mono_ms: u64) -> BTreeSet<String> {
        let unserved = self.claims.iter();
        let unserved = unserved.filter(|(_, claim)| claim.unserved_until_ms > mono_ms);
        unserved.map(|(uid, _)| uid.clone()).collect()
    }

    /// Whether any pods are gone that did not start where room was made, so that pods like them have to wait.
    #[must_use]
    pub fn has_missed(&self, mono_ms: u64) -> bool {
        let mut missed = self.missed.values();
        missed.any(|it| it.unserved_until_ms > mono_ms)
    }

    /// Whether a pod for which nothing was done yet has to wait for what pods like it have missed.
    #[must_use]
    pub fn inherits_wait(&self, uid: &str, alike: &Alike, mono_ms: u64) -> bool {
        let missed = self.missed.get(alike);
        missed.is_some_and(|it| it.unserved_until_ms > mono_ms) && !self.claims.contains_key(uid)
    }

    /// Pods for which evictions were sent, and whose holes are not given up.
    #[must_use]
    pub fn begun(&self) -> BTreeSet<String> {
        let open = self.claims.iter().filter(|(_, claim)| claim.is_open);
        let open = open.map(|(pod, _)| pod.clone());
        let asked = self.asked.values().map(|asked| asked.for_pod.clone());
        open.chain(asked).collect()
    }

    /// Whether the pod has notice, or had it a moment ago.
    #[must_use]
    pub fn is_noticed(&self, uid: &str) -> bool {
        self.notices.contains_key(uid) || self.gaps.contains_key(uid)
    }

    /// The API has this notice, or it takes no annotation on the pod because of what its owner has written there: then
    /// its Event is the notice.
    pub fn note_read(&mut self, victim: &str) {
        if let Some(notice) = self.notices.get_mut(victim) {
            notice.was_read = true;
        }
    }

    /// Notes the notices that the API has, by what a watch shows.
    pub fn read(&mut self, shows: impl Fn(&str, &Notice) -> bool) {
        for (victim, notice) in &mut self.notices {
            notice.was_read = notice.was_read || shows(victim, notice);
        }
    }

    /// How many versions of the pod, one after the other, were old when it was to go. A watch that is late shows the
    /// same one again, and says nothing new.
    #[must_use]
    pub fn old_versions(&self, victim: &str) -> u32 {
        let conflicts = self.conflicts.get(victim);
        conflicts.map_or(0, |conflicts| conflicts.versions)
    }

    /// Pods with notice.
    #[must_use]
    pub fn noticed(&self) -> BTreeSet<String> {
        self.notices.keys().cloned().collect()
    }

    /// A victim that should have left by now and was not seen to: what is known is old.
    #[must_use]
    pub fn overdue(&self, mono_ms: u64) -> Option<&str> {
        let late = |asked: &Asked| asked.is_done && mono_ms >= asked.at_ms + UNCLEAR_MS;
        let overdue = self.asked.iter().find(|(_, asked)| late(asked));
        overdue.map(|(uid, _)| uid.as_str())
    }

    /// Looks at what was seen: `leaves` of pods that leave or are gone, `is_gone` of the latter, `fate` of pods that
    /// waited.
    pub fn look(
        &mut self,
        mono_ms: u64,
        leaves: impl Fn(&str) -> bool,
        is_gone: impl Fn(&str) -> bool,
        fate: impl Fn(&str) -> Fate,
    ) {
        let claims = &mut self.claims;
        self.asked.retain(|uid, asked| {
            let was_not_done =
                !asked.is_done && !asked.is_on_its_way && mono_ms >= asked.at_ms + UNCLEAR_MS;
            if was_not_done
                && !leaves(uid)
                && let Some(claim) = claims.get_mut(&asked.for_pod)
                && claim.victims.remove(uid)
            {
                // Nothing was evicted: there is no hole, and no miss.
                claim.is_open = !claim.victims.is_empty();
            }
            // Its answer may come after the watch has shown what came of it.
            asked.is_on_its_way || !(leaves(uid) || was_not_done)
        });
        self.conflicts.retain(|uid, _| !leaves(uid));
        self.errors.retain(|uid, _| !leaves(uid));
        self.tried
            .retain(|_, trial| trial.is_on_its_way || mono_ms < trial.at_ms + TRIED_MS);
        self.alone
            .retain(|uid, alone| !leaves(uid) && mono_ms < alone.until_ms + ALONE_MAX_MS);
        let missed = &mut self.missed;
        missed.retain(|_, it| mono_ms < it.at_ms.max(it.unserved_until_ms) + ALONE_MAX_MS);
        self.claims.retain(|uid, claim| {
            if !claim.victims.is_empty() {
                claim.free_ms = mono_ms;
            }
            claim.victims.retain(|victim| !is_gone(victim));
            let is_unseen = std::mem::take(&mut claim.is_unseen);
            if is_unseen {
                claim.made_ms = mono_ms;
            }
            let end_ms = claim.made_ms.max(claim.free_ms) + CLAIM_MS;
            let is_over = mono_ms >= end_ms.min(claim.made_ms + CLAIM_MAX_MS);
            if claim.is_open && (is_over || !claim.is_kept(mono_ms)) {
                claim.is_open = false;
                claim.missed(mono_ms);
            }
            match (fate(uid), claim.alike.take()) {
                (Fate::Waits(alike), None) => {
                    let known = missed.get(&alike);
                    claim.inherit(alike, known);
                    true
                }
                (Fate::Waits(_), known) => {
                    claim.alike = known;
                    true
                }
                (Fate::Started, alike) => {
                    // The others would start as well.
                    if let Some(alike) = alike {
                        missed.remove(&alike);
                    }
                    false
                }
                (Fate::Gone, alike) => {
                    if claim.is_open && !is_unseen {
                        claim.missed(mono_ms);
                    }
                    if let Some(alike) = alike.filter(|_| claim.misses > 0) {
                        note_missed(missed, alike, claim, mono_ms);
                    }
                    false
                }
            }
        });
    }

    /// Evictions that were answered, and did nothing to pods that were leaving already.
    pub fn give_up(&mut self, mono_ms: u64, is_stuck: impl Fn(&str) -> bool) {
        let late = |asked: &Asked| asked.is_done && mono_ms >= asked.at_ms + UNCLEAR_MS;
        let asked = self
            .asked
            .extract_if(.., |uid, asked| late(asked) && is_stuck(uid));
        let stuck: Vec<String> = asked.map(|(uid, _)| uid).collect();
        for victim in stuck {
            self.leave_alone(&victim, mono_ms);
        }
    }

    /// A hole that an earlier leader made: the API shows that it is kept. Only at the beginning of a leader's time, so
    /// that no owner can keep room by what he writes on a pod. `victims`: the pods that leave that node.
    pub fn adopt(&mut self, pod: &str, node: &str, victims: BTreeSet<String>, mono_ms: u64) {
        let claim = self.claims.entry(pod.to_owned()).or_default();
        claim.node = node.to_owned();
        claim.was_free = victims.is_empty();
        claim.victims = victims;
        claim.left = 0;
        claim.opened_ms = mono_ms;
        claim.made_ms = mono_ms;
        claim.free_ms = mono_ms;
        claim.is_open = true;
    }

    /// The API server does not take that a hole is kept for this pod: it is not served for a while, and others are.
    pub fn cannot_keep(&mut self, pod: &str, mono_ms: u64) {
        let claim = self.claims.entry(pod.to_owned()).or_default();
        claim.misses = claim.misses.max(MISSES_MAX - 1);
        claim.missed(mono_ms);
    }

    /// When the first eviction for the last hole was sent.
    #[must_use]
    pub const fn begun_ms(&self) -> Option<u64> {
        self.begun_ms
    }

    /// Whether an eviction for this pod was sent, and its hole is not given up.
    fn is_begun(&self, pod: &str) -> bool {
        let is_open = self.claims.get(pod).is_some_and(|claim| claim.is_open);
        is_open || self.asked.values().any(|asked| asked.for_pod == pod)
    }

    /// Holes whose victims may go: those that are begun, and so many others at most.
    fn due(&self, mono_ms: u64, begins: usize) -> impl Iterator<Item = &Reclaim> {
        let mut left = begins;
        let is_paused = mono_ms < self.pause_until_ms;
        self.plan.iter().filter(move |reclaim| {
            if is_paused || !self.is_due(reclaim, mono_ms) {
                return false;
            }
            let is_begun = self.is_begun(&reclaim.pod);
            let goes = is_begun || left > 0;
            left -= usize::from(goes && !is_begun);
            goes
        })
    }

    /// Holes that are kept now, by the pod for which they are: those that were made, and the next ones of the plan, so
    /// many that are not begun at most.
    #[must_use]
    pub fn holes(&self, mono_ms: u64, begins: Option<usize>) -> BTreeMap<&str, &str> {
        let claims = self.claims.iter();
        let claims = claims.filter(|(_, claim)| claim.is_kept(mono_ms));
        let made = claims.map(|(pod, claim)| (pod.as_str(), claim.node.as_str()));
        // Its answer is not there yet.
        let asked = self.asked.values();
        let asked = asked.map(|asked| (asked.for_pod.as_str(), asked.node.as_str()));
        // None: no eviction follows.
        let next = begins.map(|begins| self.due(mono_ms, begins));
        let next = next
            .into_iter()
            .flatten()
            .map(|reclaim| (reclaim.pod.as_str(), reclaim.node.as_str()));
        next.chain(asked).chain(made).collect()
    }

    /// Whether nothing but the hole itself keeps the victims of a plan from being evicted.
    fn is_due(&self, reclaim: &Reclaim, mono_ms: u64) -> bool {
        let mut victims = reclaim.victims.iter();
        victims.all(|victim| {
            let alone = self.alone.get(victim);
            let notice = self.notice_over(victim, mono_ms);
            !self.asked.contains_key(victim)
                && alone.is_none_or(|alone| alone.until_ms <= mono_ms)
                && notice.is_some_and(|notice| !notice.has_grace() || notice.was_read)
        })
    }

    /// The pod's notice, if its time is over.
    fn notice_over(&self, victim: &str, mono_ms: u64) -> Option<&Notice> {
        let notice = self.notices.get(victim);
        notice.filter(|notice| notice.due_ms <= mono_ms)
    }

    /// Takes a plan; returns victims that have notice from now on. `grace_ms` of a victim's namespace.
    pub fn plan(
        &mut self,
        plan: Vec<Reclaim>,
        now: Now,
        grace_ms: impl Fn(&str) -> u64,
    ) -> Vec<String> {
        let mono_ms = now.mono_ms;
        self.gaps
            .retain(|_, (_, since_ms)| mono_ms < *since_ms + GAP_MS);
        let mut begun = Vec::new();
        let mut notices = BTreeMap::new();
        for reclaim in &plan {
            for victim in &reclaim.victims {
                let known = self.notices.remove(victim);
                let known = known.or_else(|| Some(self.gaps.remove(victim)?.0));
                if known.is_none() {
                    begun.push(victim.clone());
                }
                let since_ms = known.as_ref().map_or(mono_ms, |notice| notice.since_ms);
                let grace_ms = if reclaim.is_urgent {
                    0
                } else {
                    grace_ms(victim)
                };
                let due_ms = since_ms + grace_ms;
                // The text stays as long as what it says: the clock on the wall may jump.
                let known = known.filter(|notice| notice.due_ms == due_ms);
                let was_read = known.as_ref().is_some_and(|notice| notice.was_read);
                let due_unix_ms = known.map_or_else(
                    || now.unix_ms + due_ms.saturating_sub(mono_ms),
                    |notice| notice.due_unix_ms,
                );
                let notice = Notice {
                    pod: reclaim.pod.clone(),
                    since_ms,
                    due_ms,
                    due_unix_ms,
                    was_read,
                };
                notices.insert(victim.clone(), notice);
            }
        }
        for (victim, notice) in std::mem::replace(&mut self.notices, notices) {
            self.gaps.insert(victim, (notice, mono_ms));
        }
        self.plan = plan;
        begun
    }

    /// The next victim to be evicted, and the hole. `begins`: how many holes may be begun. `is_kept`: whether the API
    /// has it that the hole on this node is kept for this pod.
    #[must_use]
    pub fn next(
        &self,
        mono_ms: u64,
        begins: usize,
        is_kept: impl Fn(&str, &str) -> bool,
    ) -> Option<(String, Reclaim)> {
        // One at a time for each hole, and only while the plan still is what was last computed.
        let is_busy = |pod: &str| {
            let mut asked = self.asked.values();
            asked.any(|it| it.for_pod == pod && it.is_on_its_way)
        };
        let mut due = self.due(mono_ms, begins);
        let reclaim = due.find(|reclaim| {
            let has_tried = self.untried(reclaim, mono_ms).is_none();
            has_tried && !is_busy(&reclaim.pod) && is_kept(&reclaim.pod, &reclaim.node)
        })?;
        Some((reclaim.victims.first()?.clone(), reclaim.clone()))
    }

    /// The next victim whose eviction is to be tried before one of its hole goes, and the pod that waits. Parameters as
    /// of [`Reclaims::next`].
    #[must_use]
    pub fn next_trial(
        &self,
        mono_ms: u64,
        begins: usize,
        is_kept: impl Fn(&str, &str) -> bool,
    ) -> Option<(String, String)> {
        let mut due = self.due(mono_ms, begins);
        due.find_map(|reclaim| {
            let victim = self.untried(reclaim, mono_ms)?;
            let is_new = !self.tried.contains_key(victim);
            let is_next = is_new && is_kept(&reclaim.pod, &reclaim.node);
            is_next.then(|| (victim.clone(), reclaim.pod.clone()))
        })
    }

    /// The first victim of a hole of several, not yet begun, of which it is not known that the API server would take
    /// its eviction.
    fn untried<'a>(&self, reclaim: &'a Reclaim, mono_ms: u64) -> Option<&'a String> {
        let is_known = |victim: &String| {
            let trial = self.tried.get(victim);
            trial.is_some_and(|it| !it.is_on_its_way && mono_ms < it.at_ms + TRIED_MS)
        };
        let mut victims = reclaim.victims.iter();
        let victim = victims.find(|victim| !is_known(victim));
        victim.filter(|_| reclaim.victims.len() > 1 && !self.is_begun(&reclaim.pod))
    }

    /// A trial is on its way.
    pub fn tries(&mut self, victim: &str, version: &str, for_pod: &str, mono_ms: u64) {
        let trial = Trial {
            for_pod: for_pod.to_owned(),
            version: version.to_owned(),
            at_ms: mono_ms,
            is_on_its_way: true,
        };
        self.tried.insert(victim.to_owned(), trial);
    }

    /// What came of a trial, and for which pod it was.
    pub fn note_trial(&mut self, victim: &str, answer: &Answer, mono_ms: u64) -> (Outcome, String) {
        let outcome = outcome(answer);
        let Some(trial) = self.tried.get_mut(victim) else {
            return (outcome, String::new());
        };
        let (for_pod, version) = (trial.for_pod.clone(), trial.version.clone());
        if outcome == Outcome::Evicted {
            (trial.at_ms, trial.is_on_its_way) = (mono_ms, false);
        } else {
            self.tried.remove(victim);
            self.not_done(victim, &version, outcome, answer, mono_ms);
        }
        (outcome, for_pod)
    }

    /// The call is on its way.
    pub fn sent(&mut self, victim: &str, version: &str, hole: &Reclaim, mono_ms: u64) {
        let asked = Asked {
            for_pod: hole.pod.clone(),
            version: version.to_owned(),
            node: hole.node.clone(),
            left: hole.victims.len().saturating_sub(1),
            at_ms: mono_ms,
            is_done: false,
            is_on_its_way: true,
            begun_before_ms: self.begun_ms,
        };
        if !self.is_begun(&hole.pod) {
            self.begun_ms = Some(mono_ms);
        }
        self.asked.insert(victim.to_owned(), asked);
    }

    /// What came of it, and for which pod it was. `is_dry`: nothing was stored.
    pub fn answered(
        &mut self,
        victim: &str,
        answer: &Answer,
        is_dry: bool,
        mono_ms: u64,
    ) -> (Outcome, String) {
        let outcome = outcome(answer);
        let Some(asked) = self.asked.get_mut(victim) else {
            return (outcome, String::new());
        };
        asked.is_on_its_way = false;
        asked.is_done = outcome == Outcome::Evicted;
        asked.at_ms = mono_ms;
        let (for_pod, node, left) = (asked.for_pod.clone(), asked.node.clone(), asked.left);
        let version = asked.version.clone();
        if !matches!(outcome, Outcome::Evicted | Outcome::Unclear) {
            self.begun_ms = asked.begun_before_ms;
        }
        if outcome != Outcome::Changed {
            self.conflicts.remove(victim);
        }
        match outcome {
            Outcome::Evicted if is_dry => {
                self.asked.remove(victim);
                self.leave_alone(victim, mono_ms);
            }
            Outcome::Evicted => {
                self.backoff.reset();
                self.errors.remove(victim);
                let claim = self.claims.entry(for_pod.clone()).or_default();
                claim.opens(node, victim, left, mono_ms);
            }
            Outcome::Unclear => {
                // Counts as done until it is seen that it was not.
                if !is_dry {
                    let claim = self.claims.entry(for_pod.clone()).or_default();
                    claim.opens(node, victim, left, mono_ms);
                }
                self.not_done(victim, &version, outcome, answer, mono_ms);
            }
            _ => {
                self.asked.remove(victim);
                self.not_done(victim, &version, outcome, answer, mono_ms);
            }
        }
        (outcome, for_pod)
    }

    /// What follows of an eviction, or a trial of one, that the API server did not take: a pause for all, or another
    /// victim.
    fn not_done(
        &mut self,
        victim: &str,
        version: &str,
        outcome: Outcome,
        answer: &Answer,
        mono_ms: u64,
    ) {
        if !matches!(outcome, Outcome::Unclear | Outcome::NoRight) {
            self.errors.remove(victim);
        }
        match outcome {
            Outcome::Unclear | Outcome::NoRight => {
                let is_error = matches!(answer, Answer::Refused(it) if may_be_of_the_server(it));
                let errors = is_error.then(|| self.note_error(victim, mono_ms)).flatten();
                // The first time it may be the server's trouble; then it is this pod's, as of a webhook that is away
                // for its namespace, or of a right that was granted for others.
                if errors.is_none_or(|errors| errors < 2) {
                    let wait_ms = self.backoff.wait_ms();
                    self.pause_until(mono_ms + wait_ms);
                }
                if errors.is_some_and(|errors| errors >= ERRORS_MAX) {
                    self.errors.remove(victim);
                    self.leave_alone(victim, mono_ms);
                }
            }
            Outcome::Later => {
                let wait_ms = self.backoff.wait_at_least_ms(answer.retry_after_ms());
                self.pause_until(mono_ms + wait_ms);
            }
            // Seen anew by the watch before it is planned again.
            Outcome::Changed => {
                self.pause_until(mono_ms + 1_000);
                let conflicts = self.conflicts.entry(victim.to_owned()).or_default();
                conflicts.times += 1;
                if conflicts.version != version {
                    conflicts.versions += 1;
                    version.clone_into(&mut conflicts.version);
                }
                if conflicts.times >= CONFLICTS_MAX {
                    self.conflicts.remove(victim);
                    self.leave_alone(victim, mono_ms);
                }
            }
            Outcome::Budget | Outcome::Refused => self.leave_alone(victim, mono_ms),
            Outcome::Evicted => {}
        }
    }

    /// Whether a write of this pod, a notice or a hole, is given up: the API server refuses it, or has answered three
    /// times in a row with what may be its own trouble and may be the pod's: an object that its owner has made as large
    /// as etcd takes has no room for a word more (500).
    pub fn is_given_up(&mut self, uid: &str, answer: &Answer, mono_ms: u64) -> bool {
        match answer {
            Answer::Done(_) => {
                self.errors.remove(uid);
                false
            }
            Answer::Refused(refusal) if may_be_of_the_server(refusal) => {
                let errors = self.note_error(uid, mono_ms);
                let is_over = errors.is_some_and(|errors| errors >= ERRORS_MAX);
                if is_over {
                    self.errors.remove(uid);
                }
                is_over
            }
            Answer::Refused(refusal) => !refusal.is_passing() && !matches!(refusal.code, 404 | 409),
            Answer::Lost(_) => false,
        }
    }

    /// Counts such an answer, but one in [`UNCLEAR_MS`]: one hiccup is no row. Returns how many there are, if this one
    /// counts.
    fn note_error(&mut self, victim: &str, mono_ms: u64) -> Option<u32> {
        let (errors, at_ms) = self.errors.entry(victim.to_owned()).or_default();
        let counts = *errors == 0 || mono_ms >= *at_ms + UNCLEAR_MS;
        if !counts {
            return None;
        }
        (*errors, *at_ms) = (*errors + 1, mono_ms);
        Some(*errors)
    }

    /// Nothing is begun before that. What another answer has asked for stays.
    fn pause_until(&mut self, until_ms: u64) {
        self.pause_until_ms = self.pause_until_ms.max(until_ms);
    }

    /// The API server does not take this pod's eviction, or the notice on it: others are looked for, for a while that
    /// doubles each time.
    pub fn leave_alone(&mut self, victim: &str, mono_ms: u64) {
        let wait_ms = self
            .alone
            .get(victim)
            .map_or(ALONE_MS, |alone| (alone.wait_ms * 2).min(ALONE_MAX_MS));
        let alone = Alone {
            until_ms: mono_ms + wait_ms,
            wait_ms,
        };
        self.alone.insert(victim.to_owned(), alone);
    }

    /// Forgets the plan and its notices: what is known is old. What is left alone stays so, and so do holes that were
    /// made.
    pub fn pause(&mut self) {
        self.plan.clear();
        self.notices.clear();
        self.gaps.clear();
        // Whether the pod started in its hole was not seen: its time begins anew.
        self.nobody_places();
    }

    /// Forgets the claims, too: another one has the Lease. What the API then shows as kept is adopted.
    pub fn stop(&mut self) {
        self.pause();
        self.claims.retain(|_, claim| claim.misses > 0);
        for claim in self.claims.values_mut() {
            claim.is_open = false;
        }
    }
}

/// Remembers what a pod that is gone has missed. Of several alike the most counts: they waited at the same time.
fn note_missed(missed: &mut BTreeMap<Alike, Missed>, alike: Alike, claim: &Claim, mono_ms: u64) {
    let oldest = missed.iter().min_by_key(|(_, it)| it.at_ms);
    if missed.len() >= HEIRS_MAX
        && !missed.contains_key(&alike)
        && let Some(oldest) = oldest.map(|(alike, _)| alike.clone())
    {
        missed.remove(&oldest);
    }
    let known = missed.get(&alike).copied();
    let most = |known: Option<u64>, now: u64| known.unwrap_or(0).max(now);
    let it = Missed {
        misses: known.map_or(0, |it| it.misses).max(claim.misses),
        unserved_until_ms: most(
            known.map(|it| it.unserved_until_ms),
            claim.unserved_until_ms,
        ),
        at_ms: mono_ms,
    };
    missed.insert(alike, it);
}

fn outcome(answer: &Answer) -> Outcome {
    match answer {
        Answer::Done(_) => Outcome::Evicted,
        Answer::Lost(_) => Outcome::Unclear,
        Answer::Refused(refusal) => match refusal.code {
            404 | 409 => Outcome::Changed,
            429 if refusal.has_cause("DisruptionBudget") => Outcome::Budget,
            // Two budgets select it.
            500 if refusal.message.contains("PodDisruptionBudget") => Outcome::Budget,
            // Something on the way gave up: the server may have done it.
            500 | 502 | 504 => Outcome::Unclear,
            _ if refusal.is_passing() => Outcome::Later,
            _ if refusal.lacks_right() => Outcome::NoRight,
            _ => Outcome::Refused,
        },
    }
}

/// Whether this answer may be the API server's own trouble, and may be what it always answers for this pod.
fn may_be_of_the_server(refusal: &Refusal) -> bool {
    refusal.code == 500 || refusal.lacks_right()
}

#[cfg(test)]
mod tests;
