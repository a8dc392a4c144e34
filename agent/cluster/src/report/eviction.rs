//! One eviction on its way into the API: which call comes next, from the intent, the pod as watched, the answers so far
//! and the time.
//!
//! **Problem.** The pod is dead already; the API has to show it as `Failed`/`Evicted`, and the kubelet takes a status
//! that it did not write back unless an annotation changes with it. It drops the reason at its first look and takes it
//! again at its last one; while it is busy starting something it writes `Running` back (seen with 1.36.2).
//! **Approach.** Level-triggered: as long as the API does not show the end and the pod's cgroup is there, the same
//! PATCH is sent again, with another annotation value; not faster than the kubelet can look, and not for ever. Every
//! call carries the pod's UID, so that a pod of the same name is safe; the PATCH carries the resource version, so that
//! `Succeeded` is not overwritten. No call is ever an order to kill: the agent has done that. Where the pod's
//! annotations are full, which who makes the pod decides, a label takes the annotation's place.

use plimsoll_core::kube::pod::Phase;
use plimsoll_core::protocol::cluster_link::{EvictionIntent, Settled};

use crate::backoff::Backoff;
use crate::call::{Answer, Refusal};
use crate::clock::{Now, rfc3339_ms};
use crate::pod::{SeenPod, label_of};
use crate::report::policy::{EvictBy, EvictedPods, Policy};

/// How often the status is written at most.
pub const REPORTS_MAX: u32 = 5;
/// The least time between two of them, milliseconds: the kubelet's own writer comes every 10 s, a container's end makes
/// it look within 1 s.
const REPORT_EVERY_MS: u64 = 2_000;
/// How long what the API shows has to stand where nothing says that the kubelet has finished, milliseconds.
const STANDS_MS: u64 = 30_000;
/// How long the kubelet may take to show the end after the cgroup has gone, milliseconds.
const LAST_LOOK_MS: u64 = 60_000;
/// Refusals that no waiting mends, before the eviction is given up: some two minutes. RBAC and admission policies take
/// effect some seconds after they are written, and an API server that has just started refuses until it has read them.
const REFUSALS_MAX: u32 = 9;
/// How long the API server may answer that it cannot take the report of a pod that is held, milliseconds: as long as a
/// hold lasts where it does not answer. A webhook that is away answers 500 for as long as it is.
const UNTAKEN_MAX_MS: u64 = 600_000;
/// Writes one after the other that found the pod changed, before there are pauses: whoever may change the pod can go on
/// doing so.
const CONFLICTS_AT_ONCE: u32 = 3;
/// The field that the API server names where a pod's annotations are longer than it takes (`ValidateAnnotations` in
/// apimachinery's api/validation).
const ANNOTATIONS: &str = "metadata.annotations";
/// How soon a budget is asked again, milliseconds.
const BUDGET_EVERY_MS: u64 = 5_000;

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Read the pod: a precondition did not hold.
    Read,
    /// Write status and annotation.
    Report,
    /// Delete the object.
    Delete,
    /// Ask the Eviction API.
    Evict,
}

/// What to do about an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this time (`mono_ms`), or before something is heard.
    Wait(Option<u64>),
    /// This call.
    Call(Purpose),
    /// Nothing more.
    Settle(Settled),
}

/// What an answer means beyond this eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// The API server took the report: the agent and the Event may say so.
    Reported,
    /// A disruption budget, or what judges evictions as one, refuses for now: the agent may choose another pod.
    RefusedByBudget,
}

/// What is known of the cluster.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The options.
    pub policy: &'a Policy,
    /// Whether all pods of the node have been listed once.
    pub is_listed: bool,
    /// Whether none of them was left out.
    pub is_complete: bool,
    /// The last list of them that is whole has at least what was there at this time; none: it came from a cache.
    pub list_began_ms: Option<u64>,
    /// Whether the kubelet ends a pod whose status says `Failed` (1.22 and later).
    pub kubelet_heeds_status: bool,
    /// Whether the API server has `pods/eviction`; `None`: it has not said so yet.
    pub has_eviction_api: Option<bool>,
}

/// An eviction that is not settled.
#[derive(Debug, Clone)]
pub struct Eviction {
    /// What the agent wants shown.
    pub intent: EvictionIntent,
    /// The value of the annotation begins so.
    mark: String,
    arrived_ms: u64,
    /// When the grace is over.
    grace_ends_ms: u64,
    reports: u32,
    last_report_ms: Option<u64>,
    /// DELETE or Eviction was accepted.
    deleted_ms: Option<u64>,
    cgroup_gone_ms: Option<u64>,
    is_in_flight: bool,
    /// The agent does not want it any more.
    is_withdrawn: bool,
    /// The pod may run again.
    is_let_go: bool,
    must_read: bool,
    is_gone: bool,
    no_eviction_api: bool,
    /// The pod has no room for the annotation.
    uses_label: bool,
    /// Reasons of Events that were said.
    said: Vec<&'static str>,
    refusals: u32,
    /// Since when the API server has answered that it cannot take this now.
    untaken_since_ms: Option<u64>,
    conflicts: u32,
    not_before_ms: u64,
    backoff: Backoff,
}

impl Eviction {
    /// A new one. `seed`: for the jitter.
    #[must_use]
    pub fn new(intent: EvictionIntent, now: Now, seed: u64) -> Self {
        let past_ms = now.unix_ms.saturating_sub(intent.decided_unix_ms);
        let left_ms = (u64::from(intent.grace_s) * 1000).saturating_sub(past_ms);
        Self {
            mark: rfc3339_ms(intent.decided_unix_ms),
            arrived_ms: now.mono_ms,
            grace_ends_ms: now.mono_ms + left_ms,
            reports: 0,
            last_report_ms: None,
            deleted_ms: None,
            cgroup_gone_ms: None,
            is_in_flight: false,
            is_withdrawn: false,
            is_let_go: false,
            must_read: false,
            is_gone: false,
            no_eviction_api: false,
            uses_label: false,
            said: Vec::new(),
            refusals: 0,
            untaken_since_ms: None,
            conflicts: 0,
            not_before_ms: 0,
            backoff: Backoff::new(seed),
            intent,
        }
    }

    /// The agent saw the pod's cgroup go: the kubelet has finished.
    pub fn cgroup_gone(&mut self, now: Now) {
        self.cgroup_gone_ms.get_or_insert(now.mono_ms);
    }

    /// The agent does not want it any more, unless it says so again.
    pub const fn withdraw(&mut self) {
        self.is_withdrawn = true;
    }

    /// The agent wants it all the same, or again: `is_let_go`, though the pod may run.
    pub const fn keep(&mut self, is_let_go: bool) {
        (self.is_withdrawn, self.is_let_go) = (false, is_let_go);
    }

    /// The pod may run again: it does not end for this any more, long after what it was evicted for.
    pub const fn let_go(&mut self) {
        self.is_let_go = true;
    }

    /// Whether the pod may run again.
    #[must_use]
    pub const fn is_let_go(&self) -> bool {
        self.is_let_go
    }

    /// Whether it can be forgotten: it is withdrawn, and the API server has not taken it and is not being asked.
    #[must_use]
    pub const fn is_dropped(&self) -> bool {
        self.is_withdrawn && !self.is_reported() && !self.is_in_flight
    }

    /// Whether the API server has taken it.
    #[must_use]
    pub const fn is_reported(&self) -> bool {
        self.reports > 0 || self.deleted_ms.is_some()
    }

    /// Whether an Event with this reason was said, and from now on it was.
    pub fn say(&mut self, reason: &'static str) -> bool {
        let was_said = self.said.contains(&reason);
        if !was_said {
            self.said.push(reason);
        }
        was_said
    }

    /// How often it was told; what an earlier process told counts until this one has. Whoever may change the pod can
    /// write any number: at least one report follows.
    fn reports(&self, pod: &SeenPod) -> u32 {
        let noted = self.noted(pod).map(|rest| {
            let mut words = rest.split(' ');
            let number = words.find_map(|word| word.strip_prefix("report="));
            number
                .and_then(|number| number.parse::<u32>().ok())
                .unwrap_or(1)
        });
        match noted.max().filter(|_| self.reports == 0) {
            Some(noted) => noted.clamp(1, REPORTS_MAX - 1),
            None => self.reports,
        }
    }

    /// What follows the time in the pod's annotation and label, as far as they are of this eviction.
    fn noted<'a>(&'a self, pod: &'a SeenPod) -> impl Iterator<Item = &'a str> {
        let texts = pod.evicted.iter().flatten();
        texts.filter_map(|text| text.strip_prefix(self.mark.as_str()))
    }

    /// The label's value for the next report, where it takes the annotation's place.
    #[must_use]
    pub fn label(&self, pod: &SeenPod) -> Option<String> {
        let report = self.reports(pod) + 1;
        self.uses_label.then(|| label_of(&self.mark, report))
    }

    /// The annotation's value for the next report.
    #[must_use]
    pub fn annotation(&self, pod: &SeenPod) -> String {
        let EvictionIntent {
            signal,
            rank,
            ranked,
            journal,
            ..
        } = &self.intent;
        let mut value = format!("{} {signal} rank={rank}/{ranked}", self.mark);
        if let Some(line) = journal {
            value.push_str(&format!(" journal={line}"));
        }
        match self.reports(pod) {
            0 => {}
            reports => value.push_str(&format!(" report={}", reports + 1)),
        }
        value
    }

    /// What to do next. `pod`: as last seen, `None` where the API has none of this UID.
    #[must_use]
    pub fn next(&self, pod: Option<&SeenPod>, view: View<'_>, now: Now) -> Step {
        if self.is_in_flight || !view.is_listed || self.is_dropped() {
            return Step::Wait(None);
        }
        let Some(pod) = pod.filter(|_| !self.is_gone) else {
            // One that was left out may be there, and so may one that is newer than the list: it stays held.
            let is_sure = self.is_gone || view.is_complete && self.came_before(view.list_began_ms);
            return if is_sure {
                Step::Settle(Settled::Gone)
            } else {
                Step::Wait(None)
            };
        };
        if self.refusals >= REFUSALS_MAX || self.is_untaken(now) {
            return Step::Settle(Settled::GivenUp);
        }
        if now.mono_ms < self.not_before_ms {
            return Step::Wait(Some(self.not_before_ms));
        }
        if self.must_read {
            return Step::Call(Purpose::Read);
        }
        if let Some(deleted_ms) = self.deleted_ms {
            return self.after_delete(deleted_ms, view, now);
        }
        let reports = self.reports(pod);
        if reports > 0 && view.policy.dry_run {
            return Step::Settle(Settled::Shown);
        }
        let deletes = view.policy.evicted_pods == EvictedPods::Delete || !view.kubelet_heeds_status;
        if reports > 0 && deletes && (pod.phase != Phase::Succeeded || !view.kubelet_heeds_status) {
            return Step::Call(Purpose::Delete);
        }
        match pod.phase {
            Phase::Succeeded => Step::Settle(Settled::EndedOtherwise),
            Phase::Failed if self.noted(pod).next().is_none() => {
                Step::Settle(Settled::EndedOtherwise)
            }
            Phase::Failed if pod.has_evicted_reason || reports >= REPORTS_MAX => {
                self.when_finished(STANDS_MS, Settled::Shown, now)
            }
            Phase::Failed if self.cgroup_gone_ms.is_some() => Step::Settle(Settled::Shown),
            Phase::Living if reports == 0 && self.is_let_go => Step::Settle(Settled::GivenUp),
            Phase::Living if reports == 0 => self.begin(view, now),
            // What is written now is only taken back; the kubelet's last word is on its way.
            Phase::Living if self.cgroup_gone_ms.is_some() => {
                let since = self.cgroup_gone_ms.max(self.last_report_ms);
                wait_or(
                    since.unwrap_or(now.mono_ms) + LAST_LOOK_MS,
                    Step::Settle(Settled::GivenUp),
                    now,
                )
            }
            Phase::Living if reports >= REPORTS_MAX => wait_or(
                self.last_report() + STANDS_MS,
                Step::Settle(Settled::GivenUp),
                now,
            ),
            Phase::Failed | Phase::Living => wait_or(
                self.last_report() + REPORT_EVERY_MS,
                Step::Call(Purpose::Report),
                now,
            ),
        }
    }

    /// Whether the pod has been held for long enough for an API server that answers and takes nothing. A pod with a
    /// grace is held when nobody has acknowledged its eviction for some seconds.
    fn is_untaken(&self, now: Now) -> bool {
        let is_held = self.intent.is_held || self.intent.grace_s > 0;
        let since_ms = self.untaken_since_ms.filter(|_| is_held);
        since_ms.is_some_and(|since_ms| now.mono_ms >= since_ms + UNTAKEN_MAX_MS)
    }

    /// Whether the API server has answered and never taken it.
    #[must_use]
    pub const fn is_never_taken(&self) -> bool {
        self.untaken_since_ms.is_some() && self.refusals < REFUSALS_MAX && !self.is_reported()
    }

    /// An earlier process told it: then since the intent came here.
    fn last_report(&self) -> u64 {
        self.last_report_ms.unwrap_or(self.arrived_ms)
    }

    fn when_finished(&self, stands_ms: u64, how: Settled, now: Now) -> Step {
        if self.cgroup_gone_ms.is_some() {
            return Step::Settle(how);
        }
        wait_or(self.last_report() + stands_ms, Step::Settle(how), now)
    }

    /// The first call.
    fn begin(&self, view: View<'_>, now: Now) -> Step {
        let asks = view.policy.evict_by == EvictBy::EvictionApi
            && !self.no_eviction_api
            && now.mono_ms < self.grace_ends_ms;
        match view.has_eviction_api.filter(|_| asks) {
            Some(true) => Step::Call(Purpose::Evict),
            // Its budgets would not be asked.
            None if asks => Step::Wait(Some(self.grace_ends_ms)),
            Some(false) | None => Step::Call(Purpose::Report),
        }
    }

    fn after_delete(&self, deleted_ms: u64, view: View<'_>, now: Now) -> Step {
        let grace_ms = u64::from(self.intent.grace_s) * 1000;
        if self.cgroup_gone_ms.is_some() || view.policy.dry_run {
            return Step::Settle(Settled::Shown);
        }
        // A finalizer can keep the object for ever; the API shows its deletion.
        wait_or(
            deleted_ms + grace_ms + LAST_LOOK_MS,
            Step::Settle(Settled::Shown),
            now,
        )
    }

    /// A call of this purpose is on its way.
    pub const fn sent(&mut self) {
        self.is_in_flight = true;
    }

    /// The answer could not be read: it is asked again, later each time.
    pub fn unread(&mut self, now: Now) {
        self.must_read = true;
        self.not_before_ms = now.mono_ms + self.backoff.wait_ms();
    }

    /// The API server said so of the pod, or that its name has another UID.
    pub const fn gone(&mut self) {
        self.is_gone = true;
    }

    /// Whether it came earlier than a list was begun.
    fn came_before(&self, list_began_ms: Option<u64>) -> bool {
        list_began_ms.is_some_and(|began_ms| began_ms > self.arrived_ms)
    }

    /// Whether only a list can say if its pod is gone, and none was begun since it came.
    #[must_use]
    pub fn waits_for_a_list(&self, pod: Option<&SeenPod>, list_began_ms: Option<u64>) -> bool {
        let is_unknown = pod.is_none() && !self.is_gone && !self.is_dropped();
        is_unknown && !self.came_before(list_began_ms)
    }

    /// What came of the call. A pod in the answer is for the caller to take.
    pub fn answered(&mut self, purpose: Purpose, answer: &Answer, now: Now) -> Effect {
        self.is_in_flight = false;
        match answer {
            Answer::Done(_) => self.done(purpose, now),
            Answer::Lost(_) => {
                self.not_before_ms = now.mono_ms + self.backoff.wait_ms();
                Effect::None
            }
            Answer::Refused(refusal) => self.refused(purpose, refusal, now),
        }
    }

    fn done(&mut self, purpose: Purpose, now: Now) -> Effect {
        // What is read can be out of date again when it is used: pauses go on to grow.
        if purpose != Purpose::Read {
            self.backoff.reset();
            (self.refusals, self.conflicts) = (0, 0);
            self.untaken_since_ms = None;
        }
        match purpose {
            Purpose::Read => {
                self.must_read = false;
                return Effect::None;
            }
            Purpose::Report => {
                self.reports += 1;
                self.last_report_ms = Some(now.mono_ms);
            }
            Purpose::Delete | Purpose::Evict => self.deleted_ms = Some(now.mono_ms),
        }
        Effect::Reported
    }

    fn refused(&mut self, purpose: Purpose, refusal: &Refusal, now: Now) -> Effect {
        let wait_ms = |backoff: &mut Backoff| backoff.wait_at_least_ms(refusal.retry_after_ms);
        match refusal.code {
            404 if purpose == Purpose::Read && refusal.is_not_found() => self.is_gone = true,
            404 if refusal.is_not_found() => {
                // Heard of the pod itself, before its hold is lifted; the Eviction API may not be served.
                self.must_read = true;
                self.no_eviction_api |= purpose == Purpose::Evict;
            }
            409 => {
                self.must_read = true;
                self.conflicts += 1;
                if self.conflicts > CONFLICTS_AT_ONCE {
                    self.not_before_ms = now.mono_ms + wait_ms(&mut self.backoff);
                }
            }
            _ if purpose == Purpose::Evict && is_for_now(refusal) => {
                self.not_before_ms = (now.mono_ms + BUDGET_EVERY_MS).min(self.grace_ends_ms);
                return Effect::RefusedByBudget;
            }
            // The API server has not read the roles yet, or this account lacks the right: no other pod would go sooner.
            _ if purpose == Purpose::Evict && refusal.lacks_right() => {
                self.not_before_ms =
                    (now.mono_ms + wait_ms(&mut self.backoff)).min(self.grace_ends_ms);
            }
            _ if refusal.is_passing() => {
                self.untaken_since_ms.get_or_insert(now.mono_ms);
                self.not_before_ms = now.mono_ms + wait_ms(&mut self.backoff);
                if purpose == Purpose::Evict {
                    self.not_before_ms = self.not_before_ms.min(self.grace_ends_ms);
                }
            }
            // There is no such API (405): the status says the same.
            _ if purpose == Purpose::Evict => self.no_eviction_api = true,
            // Once: something else may refuse by that name.
            422 if purpose == Purpose::Report
                && !self.uses_label
                && refusal.is_of_field(ANNOTATIONS) =>
            {
                self.uses_label = true;
            }
            code => {
                // Old servers answer a wrong `metadata.uid` so.
                self.must_read |= code == 422;
                // A pod with too many annotations for the admission policy's expressions is refused without the name
                // of a field.
                self.uses_label |= code == 422 && purpose == Purpose::Report;
                self.refusals += 1;
                self.not_before_ms = now.mono_ms + wait_ms(&mut self.backoff);
            }
        }
        Effect::None
    }
}

fn wait_or(until_ms: u64, step: Step, now: Now) -> Step {
    if now.mono_ms < until_ms {
        Step::Wait(Some(until_ms))
    } else {
        step
    }
}

/// Whether an eviction is refused by who judges evictions. A budget does it by its cause, as a rule with 429, or by 500
/// where two select the pod. A webhook or an admission policy on `pods/eviction` does it by 400, 403 or 422, and the
/// API server by 403 where what a budget allows cannot be counted (`checkAndDecrement` in
/// `pkg/registry/core/pod/storage/eviction.go`): a status that is written at once would go past all of them. 403 for
/// want of the right is known by its words. 429 without the cause is flow control.
fn is_for_now(refusal: &Refusal) -> bool {
    let is_of_two = refusal.code == 500
        && refusal
            .message
            .contains("more than one PodDisruptionBudget");
    let is_judged =
        !refusal.is_foreign && !refusal.lacks_right() && matches!(refusal.code, 400 | 403 | 422);
    refusal.has_cause("DisruptionBudget") || is_of_two || is_judged
}

#[cfg(test)]
mod tests;
