//! What is tried before a pod is evicted for memory: reclaim, throttle, notify.
//!
//! Problem: an eviction costs all that a pod has done, where often its page cache, a pause or a notification would have
//! been enough. But each of these takes time, and while it is tried the node may run out; and a cgroup that is held at
//! `memory.high` with nothing to reclaim stands still for as long as the limit stays there.
//!
//! Approach: an *episode* begins when a memory threshold asks for a victim and goes through the *remedies* in their
//! order, each at most once and each within its *budget*. A remedy is over at once when the threshold is satisfied with
//! its minimum reclaim, when it makes no *progress* for a quarter of its budget, when its pod is leaving, or when there
//! is no time: less than half of any hard memory threshold is left, or what the kernel has left would, at the rate at
//! which it shrinks, be gone before the budget. Then, and when no remedy is left, the pod is evicted as without
//! remedies. At most one pod is worked on at a time.
//!
//! 1. *Reclaim*: `memory.reclaim` on the first in the ranking that has something which would count, then on the next
//!    such.
//! 2. *Throttle*: `memory.high` a little below the present size of the pod that is to go. Every [`Decision::SetHigh`]
//!    is followed by a [`Decision::ClearHigh`] within its budget, whatever happens and also if nothing does; then the
//!    pod is left alone for [`THROTTLE_COOL_DOWN_NS`].
//! 3. *Notify*: the signal that the pod that is to go has asked for in its annotation
//!    [`PRESSURE_SIGNAL_ANNOTATION`](crate::kube::pod::PRESSURE_SIGNAL_ANNOTATION).
//!
//! A hard threshold gets remedies only if the node was looked at a moment ago and was seen to shrink slowly: without
//! that evidence, as after a sudden ramp, it evicts at once, with the decisions that it takes without remedies.
//! Thresholds on stalls get none: what they lack is not counted in bytes, and reclaim makes stalls; nor does one NUMA
//! node, whose pods these means do not single out. Nor does an end of memory that is foreseen
//! ([`foresight`](crate::policy::eviction::foresight)).
//!
//! The kubelet has no such remedies: it evicts as soon as a threshold is met.

use crate::kube::pod_uid::PodUid;
use crate::model::config::EngineConfig;
use crate::model::decision::Decision;
use crate::model::event::{Event, EventKind, NodeMemory, RemedyReport};
use crate::model::options::{Availability, Remedies};
use crate::model::remedy::{Attempt, Episode, Remedy, RemedyEnd, RemedyState};
use crate::model::signal::{Observations, Resource, Signal};
use crate::model::state::{NodeState, PodState};
use crate::model::swap::PodSwap;
use crate::model::threshold::{Operator, Threshold};
use crate::policy::eviction::candidates;
use crate::policy::eviction::rank::Ranking;
use crate::policy::eviction::thresholds::{self, Met};
use crate::policy::eviction::verdict::Scratch;
use crate::policy::eviction::view::View;

/// The longest that a pod is held at `memory.high` at one time, whatever the budget says, nanoseconds.
pub const THROTTLE_MAX_NS: u64 = 10_000_000_000;
/// Shortest pause between two holds of one pod, nanoseconds.
pub const THROTTLE_COOL_DOWN_NS: u64 = 60_000_000_000;
/// How long a pod is spared the same other remedy again, nanoseconds: cache that is back so soon is in use.
pub const COOL_DOWN_NS: u64 = 30_000_000_000;
/// Less than this is no progress, and not worth a remedy: the kernel charges in batches of 64 pages per CPU.
pub const PROGRESS_BYTES: u64 = 1 << 20;
/// How often a running remedy is checked, nanoseconds.
pub const LOOK_EVERY_NS: u64 = 10_000_000;
/// A hard threshold trusts the rate at which memory shrinks only if the reading before is not older than this,
/// nanoseconds.
pub const EVIDENCE_MAX_NS: u64 = 250_000_000;
/// A loss that lasts this long counts as one that goes on: a start of a process or a read of a file is shorter,
/// nanoseconds.
pub const LOSS_WINDOW_NS: u64 = 50_000_000;
/// So does the loss of one part in so many of what was left, however soon it went.
pub const LOSS_PART: u64 = 16;
/// A `memory.high` that could not be put back is tried again after this time, nanoseconds.
pub const CLEAR_RETRY_NS: u64 = 100_000_000;
/// `memory.high` is set in steps of this: a multiple of every page size, so that the kernel takes it as it is.
const HIGH_STEP_BYTES: u64 = 64 << 10;
/// A remedy may continue for this part of its budget without progress.
const PATIENCE_PART: u64 = 4;

impl Remedy {
    /// How long it may take, nanoseconds; 0: it is left out.
    pub const fn budget_ns(self, remedies: &Remedies) -> u64 {
        match self {
            Self::Reclaim => remedies.reclaim_budget_ns,
            Self::Throttle if remedies.throttle_budget_ns > THROTTLE_MAX_NS => THROTTLE_MAX_NS,
            Self::Throttle => remedies.throttle_budget_ns,
            Self::Notify => remedies.notify_budget_ns,
        }
    }

    /// How long a pod is spared it afterwards, nanoseconds.
    const fn cool_down_ns(self) -> u64 {
        match self {
            Self::Throttle => THROTTLE_COOL_DOWN_NS,
            Self::Reclaim | Self::Notify => COOL_DOWN_NS,
        }
    }
}

/// Takes in what an event says about a running remedy, and ends one that must not go on.
pub(crate) fn follow(
    config: &EngineConfig,
    state: &mut NodeState,
    event: &Event,
    decisions: &mut Vec<Decision>,
) {
    if let (EventKind::Sample(sample), Some(_)) = (&event.kind, &config.options.remedies) {
        observe_loss(state, &sample.node);
    }
    if let EventKind::RemedyReported {
        uid,
        remedy,
        report,
    } = &event.kind
    {
        take_report(state, uid, *remedy, report);
    }
    let now_ns = state.now_ns;
    if let Some(Episode {
        until_ns,
        attempt: Some(attempt),
        ..
    }) = &state.remedies.episode
    {
        let stays = state.pods.get(&attempt.uid).is_some_and(may_be_treated);
        if !stays {
            end_attempt(state, RemedyEnd::PodLeaves, decisions);
        } else if now_ns >= *until_ns {
            end_attempt(state, RemedyEnd::BudgetOver, decisions);
        }
    }
    let NodeState { pods, remedies, .. } = state;
    remedies.clear_again.retain(|uid, at_ns| {
        let due = now_ns >= *at_ns;
        if due && pods.contains_key(uid) {
            decisions.push(Decision::ClearHigh { uid: uid.clone() });
        }
        !due
    });
}

fn observe_loss(state: &mut NodeState, node: &NodeMemory) {
    if node.capacity_bytes == 0 {
        return;
    }
    let left_bytes = |node: &NodeMemory| node.left_bytes().saturating_add(node.swap_free_bytes);
    let (now_ns, now_left) = (state.now_ns, left_bytes(node));
    let rate = |since_ns: u64, lost_bytes: u64| {
        let elapsed_ns = u128::from(now_ns.saturating_sub(since_ns).max(1));
        u64::try_from(u128::from(lost_bytes) * 1_000_000_000 / elapsed_ns).unwrap_or(u64::MAX)
    };
    let raise = |known: &mut u64, seen: u64| *known = (*known - *known / 8).max(seen);
    let loss = &mut state.remedies.loss;
    // As in `sampling`: over less than a millisecond the kernel's batches say more than the rate does.
    let tells = |since_ns: u64| now_ns.saturating_sub(since_ns) >= 1_000_000;
    if let Some(last) = &state.node
        && tells(last.at_ns)
    {
        let lost_bytes = left_bytes(&last.memory).saturating_sub(now_left);
        raise(&mut loss.peak_bytes_per_s, rate(last.at_ns, lost_bytes));
    }
    let (since_ns, was_left) = *loss.window.get_or_insert((now_ns, now_left));
    let lost_bytes = was_left.saturating_sub(now_left);
    let is_long = now_ns.saturating_sub(since_ns) >= LOSS_WINDOW_NS;
    if is_long || tells(since_ns) && lost_bytes > was_left / LOSS_PART {
        raise(&mut loss.lasting_bytes_per_s, rate(since_ns, lost_bytes));
        loss.window = Some((now_ns, now_left));
    }
}

fn take_report(state: &mut NodeState, uid: &PodUid, remedy: Remedy, report: &RemedyReport) {
    let ended = match report {
        RemedyReport::Reclaimed { .. } => RemedyEnd::Exhausted,
        RemedyReport::Unsupported => {
            state.remedies.unsupported[remedy as usize] = true;
            RemedyEnd::Unsupported
        }
        RemedyReport::Failed { .. } => RemedyEnd::Failed,
        RemedyReport::NotCleared { .. } => {
            let again_ns = state.now_ns.saturating_add(CLEAR_RETRY_NS);
            state.remedies.clear_again.insert(uid.clone(), again_ns);
            return;
        }
    };
    if let Some(episode) = &mut state.remedies.episode
        && episode.remedy == remedy
        && let Some(attempt) = &mut episode.attempt
        && attempt.uid == *uid
    {
        attempt.ended = Some(ended);
    }
}

/// Whether a pod may be reclaimed from, throttled or notified.
fn may_be_treated(pod: &PodState) -> bool {
    pod.running && !pod.removed && !pod.row.exempt && !pod.stuck && pod.leaving.is_none()
}

/// Ends the remedy on a pod that is about to be evicted: a throttled process cannot exit quickly.
pub(crate) fn let_go(state: &mut NodeState, uid: &PodUid, decisions: &mut Vec<Decision>) {
    let attempt = state
        .remedies
        .episode
        .as_ref()
        .and_then(|episode| episode.attempt.as_ref());
    if attempt.is_some_and(|attempt| attempt.uid == *uid) {
        end_attempt(state, RemedyEnd::PodLeaves, decisions);
    }
}

/// Ends the episode if no threshold that it could be about asks for a victim any more.
pub(crate) fn end_if_resolved(
    config: &EngineConfig,
    state: &mut NodeState,
    decisions: &mut Vec<Decision>,
) {
    let mut known = config.thresholds.iter().zip(&state.thresholds);
    if known.any(|(threshold, known)| known.met && applies_to(threshold)) {
        return;
    }
    end(state, decisions);
}

/// Ends the episode: no pod is evicted for now.
pub(crate) fn end(state: &mut NodeState, decisions: &mut Vec<Decision>) {
    end_attempt(state, RemedyEnd::Resolved, decisions);
    state.remedies.episode = None;
}

/// Whether the eviction that a met threshold asks for can wait for a remedy.
pub(crate) fn before_eviction(
    config: &EngineConfig,
    state: &mut NodeState,
    met: &Met,
    observations: &Observations,
    scratch: &mut Scratch,
    decisions: &mut Vec<Decision>,
) -> bool {
    let Some(remedies) = &config.options.remedies else {
        return false;
    };
    let shortfall_bytes = met.threshold.shortfall(met.observation, true);
    // What is foreseen is soon: not a moment is lost.
    let applies = met.foreseen.is_none() && applies_to(&met.threshold);
    let (true, Some(shortfall_bytes)) = (applies, shortfall_bytes) else {
        end_attempt(state, RemedyEnd::NoTime, decisions);
        state.remedies.episode = None;
        return false;
    };
    let left_ns = time_left_ns(config, state, met, observations);
    if let Some(end) = judge(remedies, state, met, shortfall_bytes, left_ns) {
        end_attempt(state, end, decisions);
        if end == RemedyEnd::NoTime {
            state.remedies.episode = None;
            return false;
        }
    }
    if attempt_of(state).is_some() {
        return true;
    }
    let situation = Situation {
        remedies,
        met,
        shortfall_bytes,
        left_ns,
    };
    if begin_next(config, state, &situation, scratch, decisions) {
        return true;
    }
    state.remedies.episode = None;
    false
}

fn attempt_of(state: &NodeState) -> Option<&Attempt> {
    state.remedies.episode.as_ref()?.attempt.as_ref()
}

/// What is missing must be counted in bytes that any pod could give back: no stalls, and not those of one NUMA node.
fn applies_to(threshold: &Threshold) -> bool {
    threshold.operator == Operator::LessThan
        && matches!(
            threshold.signal,
            Signal::MemoryAvailable
                | Signal::AllocatableMemoryAvailable
                | Signal::KernelMemoryAvailable
        )
}

/// How what is being tried ends now; `None` if it goes on, or nothing is.
fn judge(
    remedies: &Remedies,
    state: &mut NodeState,
    met: &Met,
    shortfall_bytes: u64,
    left_ns: u64,
) -> Option<RemedyEnd> {
    let now_ns = state.now_ns;
    let episode = state.remedies.episode.as_mut()?;
    let attempt = episode.attempt.as_mut()?;
    let pod = state.pods.get(&attempt.uid)?;
    let usage_bytes = pod.memory.map_or(0, |memory| memory.usage_bytes);
    if episode.threshold != met.index {
        // Another threshold is more urgent now: what was missing cannot be compared, and the time goes on.
        episode.threshold = met.index;
        attempt.shortfall_bytes = shortfall_bytes;
    }
    if episode.until_ns.saturating_sub(now_ns) > left_ns {
        return Some(RemedyEnd::NoTime);
    }
    if attempt.ended.is_some() {
        return attempt.ended;
    }
    let less = |now: u64, least: u64| now.saturating_add(PROGRESS_BYTES) <= least;
    if less(shortfall_bytes, attempt.shortfall_bytes) || less(usage_bytes, attempt.usage_bytes) {
        attempt.progress_ns = now_ns;
        attempt.shortfall_bytes = attempt.shortfall_bytes.min(shortfall_bytes);
        attempt.usage_bytes = attempt.usage_bytes.min(usage_bytes);
    }
    let patience_ns = episode.remedy.budget_ns(remedies) / PATIENCE_PART;
    let idle_ns = now_ns.saturating_sub(attempt.progress_ns);
    (idle_ns >= patience_ns).then_some(RemedyEnd::NoProgress)
}

/// How long the node can be expected to last, nanoseconds; 0 if nothing may be tried now.
fn time_left_ns(
    config: &EngineConfig,
    state: &NodeState,
    met: &Met,
    observations: &Observations,
) -> u64 {
    if thresholds::half_gone(config, observations, None).is_some() {
        return 0;
    }
    let value = |signal| {
        observations
            .get(signal)
            .map(|observation| observation.value)
    };
    let (Some(kernel_bytes), Some(last)) = (value(Signal::KernelMemoryAvailable), &state.node)
    else {
        return 0;
    };
    let elapsed_ns = state.now_ns.saturating_sub(last.at_ns);
    if met.threshold.is_hard() && elapsed_ns > EVIDENCE_MAX_NS {
        return 0;
    }
    let left_bytes = value(Signal::AllocatableMemoryAvailable)
        .map_or(kernel_bytes, |allocatable| allocatable.min(kernel_bytes));
    // Past a hard threshold nothing is waited for on the strength of a slow second: it may have become fast just now.
    let loss = &state.remedies.loss;
    let rate = u128::from(if met.threshold.is_hard() {
        loss.peak_bytes_per_s
    } else {
        loss.lasting_bytes_per_s
    });
    match (u128::from(left_bytes) * 1_000_000_000).checked_div(rate) {
        Some(left_ns) => u64::try_from(left_ns).unwrap_or(u64::MAX),
        None => u64::MAX,
    }
}

/// What a remedy is chosen by.
struct Situation<'a> {
    remedies: &'a Remedies,
    met: &'a Met,
    shortfall_bytes: u64,
    left_ns: u64,
}

/// Begins the next attempt, if there is one and time for it.
fn begin_next(
    config: &EngineConfig,
    state: &mut NodeState,
    situation: &Situation<'_>,
    scratch: &mut Scratch,
    decisions: &mut Vec<Decision>,
) -> bool {
    let now_ns = state.now_ns;
    let rows = &mut scratch.rows;
    candidates::rows(&View::now(config, state), Resource::Memory, rows);
    rows.retain(|row| state.pods.get(&row.uid).is_some_and(may_be_treated));
    Ranking::Memory.rank(rows, &mut scratch.sort_keys);
    for remedy in Remedy::ALL {
        let budget_ns = remedy.budget_ns(situation.remedies);
        let (since_ns, until_ns) = match &state.remedies.episode {
            // Not again, except that what is left of the time for reclaim is for the next pod.
            Some(episode) if episode.remedy > remedy => continue,
            Some(episode) if episode.remedy == remedy && remedy != Remedy::Reclaim => continue,
            Some(episode) if episode.remedy == remedy => (episode.since_ns, episode.until_ns),
            Some(episode) => (episode.since_ns, now_ns.saturating_add(budget_ns)),
            None => (now_ns, now_ns.saturating_add(budget_ns)),
        };
        let wanted = budget_ns > 0 && now_ns < until_ns;
        if !wanted || state.remedies.unsupported[remedy as usize] {
            continue;
        }
        let mut pods = rows.iter().filter_map(|row| state.pods.get(&row.uid));
        let decision = match remedy {
            Remedy::Reclaim => pods
                .filter(|pod| is_rested(pod, remedy, now_ns))
                .find_map(|pod| reclaim(config, state, pod, situation, until_ns)),
            Remedy::Throttle if !state.remedies.clear_again.is_empty() => None,
            Remedy::Throttle => pods
                .next()
                .filter(|pod| is_rested(pod, remedy, now_ns))
                .and_then(|pod| set_high(pod, until_ns)),
            Remedy::Notify => pods
                .next()
                .filter(|pod| is_rested(pod, remedy, now_ns))
                .and_then(|pod| notify(pod, situation, until_ns)),
        };
        let Some((decision, uid)) = decision else {
            continue;
        };
        if until_ns - now_ns > situation.left_ns {
            return false;
        }
        let Some(pod) = state.pods.get_mut(&uid) else {
            return false;
        };
        state.remedies.episode = Some(Episode {
            threshold: situation.met.index,
            since_ns,
            remedy,
            until_ns,
            attempt: Some(Attempt {
                uid,
                since_ns: now_ns,
                progress_ns: now_ns,
                shortfall_bytes: situation.shortfall_bytes,
                usage_bytes: pod.memory.map_or(0, |memory| memory.usage_bytes),
                ended: None,
            }),
        });
        pod.remedied_ns[remedy as usize] = Some(until_ns);
        decisions.push(decision);
        return true;
    }
    false
}

/// Whether the same remedy may be tried on it again.
fn is_rested(pod: &PodState, remedy: Remedy, now_ns: u64) -> bool {
    pod.remedied_ns[remedy as usize]
        .is_none_or(|ended_ns| now_ns >= ended_ns.saturating_add(remedy.cool_down_ns()))
}

fn reclaim(
    config: &EngineConfig,
    state: &NodeState,
    pod: &PodState,
    situation: &Situation<'_>,
    until_ns: u64,
) -> Option<(Decision, PodUid)> {
    let memory = pod.memory?;
    // A share that `LimitedSwap` gives is not looked at: the check of progress ends what wins nothing.
    let may_swap = config.pod_swap != PodSwap::Forbidden;
    let swap_free_bytes = state
        .node
        .as_ref()
        .filter(|_| may_swap)
        .map_or(0, |node| node.memory.swap_free_bytes);
    // What is not charged cannot be reclaimed.
    let charged_bytes = memory
        .working_set_bytes
        .saturating_sub(memory.uncharged_bytes);
    let anon_bytes = charged_bytes.saturating_sub(memory.active_file_bytes);
    // What the signal does not count as available yet. MemAvailable counts all of it, and of the swap as well.
    let counts_cache = config.options.availability == Availability::Reclaimable;
    let gain_bytes = match situation.met.threshold.signal {
        Signal::AllocatableMemoryAvailable if counts_cache => anon_bytes.min(swap_free_bytes),
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable if !counts_cache => memory
            .active_file_bytes
            .saturating_add(anon_bytes.min(swap_free_bytes)),
        _ => 0,
    };
    // The kernel takes inactive pages first, which change nothing.
    let unused_bytes = memory.usage_bytes.saturating_sub(charged_bytes);
    let inactive_bytes = unused_bytes.saturating_sub(memory.huge_page_bytes);
    (gain_bytes >= PROGRESS_BYTES).then(|| {
        let decision = Decision::Reclaim {
            uid: pod.row.uid.clone(),
            bytes: inactive_bytes.saturating_add(situation.shortfall_bytes.min(gain_bytes)),
            until_ns,
        };
        (decision, pod.row.uid.clone())
    })
}

fn set_high(pod: &PodState, until_ns: u64) -> Option<(Decision, PodUid)> {
    let usage_bytes = pod.memory?.usage_bytes;
    let bytes = (usage_bytes - usage_bytes / 64) / HIGH_STEP_BYTES * HIGH_STEP_BYTES;
    (bytes >= PROGRESS_BYTES).then(|| {
        let uid = pod.row.uid.clone();
        let decision = Decision::SetHigh {
            uid: uid.clone(),
            bytes,
            until_ns,
        };
        (decision, uid)
    })
}

fn notify(pod: &PodState, situation: &Situation<'_>, until_ns: u64) -> Option<(Decision, PodUid)> {
    let decision = Decision::Notify {
        uid: pod.row.uid.clone(),
        signal: pod.pressure_signal?,
        shortfall_bytes: situation.shortfall_bytes,
        until_ns,
    };
    Some((decision, pod.row.uid.clone()))
}

/// Ends the running remedy, if any; the episode continues.
fn end_attempt(state: &mut NodeState, end: RemedyEnd, decisions: &mut Vec<Decision>) {
    let now_ns = state.now_ns;
    let Some(episode) = &mut state.remedies.episode else {
        return;
    };
    let Some(attempt) = episode.attempt.take() else {
        return;
    };
    let Attempt { uid, since_ns, .. } = attempt;
    match episode.remedy {
        // It has come to its end by itself.
        Remedy::Reclaim if attempt.ended.is_some() => {}
        Remedy::Reclaim => decisions.push(Decision::StopReclaim { uid: uid.clone() }),
        Remedy::Throttle => decisions.push(Decision::ClearHigh { uid: uid.clone() }),
        Remedy::Notify => {}
    }
    if let Some(pod) = state.pods.get_mut(&uid) {
        pod.remedied_ns[episode.remedy as usize] = Some(now_ns);
    }
    decisions.push(Decision::RemedyEnded {
        uid,
        remedy: episode.remedy,
        end,
        took_ns: now_ns.saturating_sub(since_ns),
        episode_ns: now_ns.saturating_sub(episode.since_ns),
    });
}

/// When something is to be done, if nothing happens before.
pub(crate) fn next_ns(state: &NodeState) -> Option<u64> {
    let RemedyState {
        episode,
        clear_again,
        ..
    } = &state.remedies;
    let look_ns = episode.as_ref().map(|episode| match &episode.attempt {
        Some(attempt) if attempt.ended.is_none() => episode
            .until_ns
            .min(state.now_ns.saturating_add(LOOK_EVERY_NS)),
        _ => state.now_ns,
    });
    look_ns
        .into_iter()
        .chain(clear_again.values().copied())
        .min()
}
