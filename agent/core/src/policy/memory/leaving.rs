//! Pods on their way out: SIGTERM, grace period, kill, and the wait for their memory.
//!
//! Problem: a second pod must never be chosen while the first one's memory is still being freed (earlyoom#61, the kubelet's
//! fixed 30 s wait), yet a process that cannot die must not hold up the node for ever.
//! Approach: a pod has left when its cgroup is empty *and* 95 % of what it used has come back, as read from its own cgroup;
//! every wait has a bound.
//!
//! A pod that was killed and does not go for [`OVERDUE_AFTER_KILL_NS`] is *overdue*: if since the kill ever less memory is available, the next
//! one is chosen. After [`STUCK_AFTER_KILL_NS`] it is *stuck*, and not chosen again before it was empty: what runs then is new. As that
//! moment can be missed where something starts its containers again at once, it counts as new after [`STUCK_FOR_NS`] too.
//!
//! A pod that its kubelet ends has the grace period that its owner chose, be it a year. So it is not waited for as a victim is: for a short
//! time after a threshold is met, what it has may come back ([`may_come_back`]); then it is ranked as any other.

use crate::model::config::EngineConfig;
use crate::model::decision::{Decision, Ending, KillReason};
use crate::model::event::{Event, EventKind, LastLineKill};
use crate::model::signal::{Observations, Resource, Signal};
use crate::model::state::{Leaving, NodeState, PodState, leaving_of};
use crate::model::units::PodUid;
use crate::policy::memory::view::View;
use crate::policy::memory::{breaker, remedies};

/// A killed process frees its memory by itself as soon as it runs. After this time it evidently does not: it is throttled, frozen
/// or behind others.
pub const RELEASE_AFTER_KILL_NS: u64 = 20_000_000;
/// How long after a kill a pod may take to go (`podCleanupTimeout` of the kubelet's eviction manager).
pub const STUCK_AFTER_KILL_NS: u64 = 30_000_000_000;
/// How long memory that ever shrinks waits for it.
pub const OVERDUE_AFTER_KILL_NS: u64 = 2_000_000_000;
/// How long a pod that is stuck is not chosen again if it is not seen without a process, nanoseconds.
pub const STUCK_FOR_NS: u64 = 600_000_000_000;
/// Memory has shrunk when one part in so many of what was available is gone: less is what comes and goes on any node.
const FALL_PART: u64 = 16;
/// How long a threshold that is met waits for pods that their kubelet ends, nanoseconds.
pub const KUBELET_ENDS_NS: u64 = 2_000_000_000;
/// The same for disks, on which a pod has space until its directories are removed (`podCleanupTimeout` again).
pub const KUBELET_CLEANS_UP_NS: u64 = 30_000_000_000;
/// How often a pod that its kubelet ends is looked at for [`KUBELET_ENDS_NS`].
const KUBELET_LOOK_NS: u64 = 50_000_000;
/// How long an empty cgroup may take to give its memory back: what is left then is shared or cached, and another pod's kill
/// may be what frees it.
pub const LINGER_AFTER_EMPTY_NS: u64 = 1_000_000_000;

/// What a moment makes of a pod on its way out: it still is, or it has ended like this.
pub(crate) type Left = Result<Leaving, Ending>;

/// The outcome for a pod that is being ended and uses this much now; `None`: its cgroup was removed. [`decide`] does the same, and says it.
pub(crate) fn after(mut leaving: Leaving, usage_bytes: Option<u64>, now_ns: u64) -> Left {
    if kill_now(&leaving, now_ns).is_some() {
        killed(&mut leaving, now_ns, None);
    }
    // The figure is of this moment.
    ending(&leaving, usage_bytes, now_ns, now_ns).map_or(Ok(leaving), Err)
}

/// Begins to end pods whose manifest was removed, kills those whose grace period is over, and records those that have ended.
pub(crate) fn decide(
    config: &EngineConfig,
    state: &mut NodeState,
    event: &Event,
    decisions: &mut Vec<Decision>,
) {
    let now_ns = state.now_ns;
    match &event.kind {
        EventKind::PodRemoved { uid } if config.exempt_uids.contains(uid) => {}
        // Its kubelet ends it.
        EventKind::PodRemoved { uid } if config.beside_kubelet && is_running(state, uid) => {}
        EventKind::PodRemoved { uid } => end(state, uid, decisions),
        EventKind::PodEnding { uid } if config.exempt_uids.contains(uid) => {}
        EventKind::PodEnding { uid } => ends_elsewhere(state, uid),
        EventKind::EvictionRefused { uid } => refused(config, state, uid, decisions),
        EventKind::LastLineKill { uid, .. } if config.exempt_uids.contains(uid) => {}
        EventKind::LastLineKill { uid, kill } => finish(state, uid, kill, decisions),
        EventKind::PodEmpty { uid } => forget_if_removed(state, uid),
        _ => {}
    }
    let mut gone = false;
    let available_bytes = available_bytes(&state.observations);
    let NodeState {
        pods,
        retained,
        leavers,
        ..
    } = state;
    for (uid, pod) in leaving_of(pods, leavers) {
        let usage_bytes = pod.memory.map(|memory| memory.usage_bytes);
        let read_ns = pod.memory.map_or(now_ns, |memory| memory.at_ns);
        let Some(leaving) = &mut pod.leaving else {
            continue;
        };
        if let Some(why) = kill_now(leaving, now_ns) {
            killed(leaving, now_ns, available_bytes);
            decisions.push(Decision::Kill {
                uid: uid.clone(),
                why,
            });
        }
        if release_now(leaving, now_ns) {
            leaving.released = true;
            decisions.push(Decision::ReleaseMemory { uid: uid.clone() });
        }
        if let Some(ending) = ending(leaving, usage_bytes, read_ns, now_ns) {
            decisions.push(Decision::Finished {
                uid: uid.clone(),
                ending,
                usage_before_bytes: leaving.usage_before_bytes,
                freed_bytes: leaving
                    .usage_before_bytes
                    .saturating_sub(usage_bytes.unwrap_or(0)),
            });
            let known = retained.as_ref().map(|retained| retained.hold);
            let hold = breaker::after(config, known, leaving, ending, pod.row.usage, now_ns);
            breaker::remember(retained, uid, hold);
            pod.stuck = ending == Ending::Stuck;
            pod.stuck_since_ns = now_ns;
            pod.leaving = None;
            gone |= pod.removed;
        }
    }
    if gone {
        state
            .pods
            .retain(|_, pod| !pod.removed || pod.leaving.is_some() || pod.running);
    }
}

fn end(state: &mut NodeState, uid: &PodUid, decisions: &mut Vec<Decision>) {
    let now_ns = state.now_ns;
    state.leaves(uid);
    let Some(pod) = state.pods.get_mut(uid) else {
        return;
    };
    if !pod.running {
        if pod.leaving.is_none() {
            state.pods.remove(uid);
        }
        return;
    }
    if pod.leaving.is_none() {
        let grace_ms = pod.termination_grace_period_s.saturating_mul(1000);
        pod.leaving = Some(begun(pod, None, now_ns, grace_ms));
        decisions.push(Decision::End {
            uid: uid.clone(),
            grace_ms,
        });
    }
}

fn is_running(state: &NodeState, uid: &PodUid) -> bool {
    state.pods.get(uid).is_some_and(|pod| pod.running)
}

/// The kubelet ends a pod, and kills it at the end of its grace period.
fn ends_elsewhere(state: &mut NodeState, uid: &PodUid) {
    let now_ns = state.now_ns;
    let available_bytes = available_bytes(&state.observations);
    state.leaves(uid);
    let Some(pod) = state.pods.get_mut(uid) else {
        return;
    };
    if !pod.running || pod.leaving.is_some() {
        return;
    }
    let grace_ms = pod.termination_grace_period_s.saturating_mul(1000);
    pod.leaving = Some(Leaving {
        ended_by_kubelet: true,
        available_at_kill_bytes: available_bytes,
        ..begun(pod, None, now_ns, grace_ms)
    });
}

/// A disruption budget refuses an eviction for a soft threshold. Another pod goes, if there is one; else this one goes when its grace period is
/// over. A pod is taken back once while its threshold is met, so that pods cannot take turns for ever.
fn refused(
    config: &EngineConfig,
    state: &mut NodeState,
    uid: &PodUid,
    decisions: &mut Vec<Decision>,
) {
    let now_ns = state.now_ns;
    let view = View::now(config, state);
    let can_go = |other: &PodState| {
        let is_spared = other.row.exempt || view.is_refused(other);
        let has_time = other
            .leaving
            .is_some_and(|leaving| !leaving.ended_by_kubelet);
        !has_time && !is_spared && view.is_candidate(other)
    };
    let has_other = state.pods.values().any(can_go);
    let known = state.thresholds.iter();
    let met_since_ns = known.filter_map(|known| known.first_observed_ns).min();
    let Some(pod) = state.pods.get_mut(uid) else {
        return;
    };
    let is_first = pod
        .refused_until_ns
        .is_none_or(|until_ns| met_since_ns.is_some_and(|since_ns| until_ns < since_ns));
    let Some(leaving) = pod.leaving.filter(|leaving| {
        let has_begun = leaving.killed_at_ns.is_some() || leaving.empty_at_ns.is_some();
        leaving.evicted_for.is_some() && !has_begun
    }) else {
        return;
    };
    if !is_first || leaving.kill_at_ns <= now_ns {
        return;
    }
    pod.refused_until_ns = Some(leaving.kill_at_ns);
    if has_other {
        pod.leaving = None;
        pod.evictions = pod.evictions.saturating_sub(1);
        decisions.push(Decision::Withdraw { uid: uid.clone() });
    }
}

/// A pod that was not ended when its manifest was removed has ended now.
fn forget_if_removed(state: &mut NodeState, uid: &PodUid) {
    let is_over = |pod: &PodState| pod.removed && pod.leaving.is_none();
    if state.pods.get(uid).is_some_and(is_over) {
        state.pods.remove(uid);
    }
}

/// Completes what the last line in the kernel began: what it does is an eviction, and a pod leaves as a whole. What it did so long ago
/// that the pod would count as stuck by now is past: the pod may have been started anew.
fn finish(state: &mut NodeState, uid: &PodUid, kill: &LastLineKill, decisions: &mut Vec<Decision>) {
    let now_ns = state.now_ns;
    let available_bytes = available_bytes(&state.observations);
    if now_ns.saturating_sub(kill.killed_ns) >= STUCK_AFTER_KILL_NS {
        return;
    }
    remedies::let_go(state, uid, decisions);
    state.leaves(uid);
    let Some(pod) = state.pods.get_mut(uid).filter(|pod| pod.running) else {
        return;
    };
    let mut leaving = pod
        .leaving
        .unwrap_or_else(|| begun(pod, Some(Resource::Memory), now_ns, 0));
    leaving.evicted_for.get_or_insert(Resource::Memory);
    leaving.ended_by_kubelet = false;
    if leaving.killed_at_ns.is_none() && leaving.empty_at_ns.is_none() {
        killed(&mut leaving, now_ns, available_bytes);
        decisions.push(Decision::Kill {
            uid: uid.clone(),
            why: KillReason::LastLine { reason: kill.why },
        });
    }
    pod.leaving = Some(leaving);
}

/// The state of a pod whose ending begins now.
pub(crate) fn begun(
    pod: &PodState,
    evicted_for: Option<Resource>,
    now_ns: u64,
    grace_ms: u64,
) -> Leaving {
    let kill_at_ns = now_ns.saturating_add(grace_ms.saturating_mul(1_000_000));
    Leaving {
        evicted_for,
        ended_by_kubelet: false,
        since_ns: now_ns,
        kill_at_ns,
        killed_at_ns: None,
        kill_tried_ns: None,
        released: false,
        empty_at_ns: None,
        terminate_failed: false,
        usage_before_bytes: pod.memory.map_or(0, |memory| memory.usage_bytes),
        used_before_bytes: pod.row.usage,
        available_at_kill_bytes: None,
    }
}

/// Takes note that it is killed now, when so much memory is available.
pub(crate) fn killed(leaving: &mut Leaving, now_ns: u64, available_bytes: Option<u64>) {
    leaving.killed_at_ns = Some(now_ns);
    if leaving.kill_tried_ns.is_none() {
        leaving.kill_tried_ns = Some(now_ns);
        leaving.available_at_kill_bytes = available_bytes;
    }
}

/// What the node has available: what the kernel can hand out, where that is known.
pub(crate) fn available_bytes(observations: &Observations) -> Option<u64> {
    let kernel = observations.get(Signal::KernelMemoryAvailable);
    let available = kernel.or_else(|| observations.get(Signal::MemoryAvailable));
    available.map(|observation| observation.value)
}

/// Whether it was killed a while ago and still has processes.
pub(crate) fn is_overdue(leaving: &Leaving, now_ns: u64) -> bool {
    let tried_ns = leaving
        .kill_tried_ns
        .filter(|_| leaving.empty_at_ns.is_none());
    tried_ns.is_some_and(|tried_ns| now_ns >= tried_ns.saturating_add(OVERDUE_AFTER_KILL_NS))
}

/// Whether it is waited for now: a victim, one whose kubelet may be about to end it, or one that has ended and has memory still.
#[must_use]
pub fn is_awaited(leaving: &Leaving, now_ns: u64) -> bool {
    !leaving.ended_by_kubelet
        || leaving.empty_at_ns.is_some()
        || now_ns.saturating_sub(leaving.since_ns) < KUBELET_CLEANS_UP_NS
}

/// Whether what a pod has that its kubelet ends may come back before another one has to go for a threshold that has been met for `met_ns`.
pub(crate) fn may_come_back(
    leaving: &Leaving,
    resource: Resource,
    met_ns: u64,
    observations: &Observations,
    now_ns: u64,
) -> bool {
    let patience_ns = match resource {
        Resource::DiskBytes(_) | Resource::DiskInodes(_) => KUBELET_CLEANS_UP_NS,
        Resource::Memory | Resource::Processes | Resource::Io | Resource::Cpu => KUBELET_ENDS_NS,
    };
    let has_fallen = resource == Resource::Memory && has_memory_fallen(leaving, observations);
    let ends_ns = now_ns.saturating_sub(leaving.since_ns);
    leaving.ended_by_kubelet && ends_ns.max(met_ns) < patience_ns && !has_fallen
}

/// How much less memory may be available, bytes, before a pod that its kubelet ends is waited for no more; `None`: it is not waited for.
pub(crate) fn left_to_wait_bytes(
    leaving: &Leaving,
    observations: &Observations,
    now_ns: u64,
) -> Option<u64> {
    let is_waited_for = may_come_back(leaving, Resource::Memory, 0, observations, now_ns);
    let (then, now) = leaving
        .available_at_kill_bytes
        .filter(|_| is_waited_for)
        .zip(available_bytes(observations))?;
    Some(
        now.saturating_sub(then - then / FALL_PART)
            .saturating_add(1),
    )
}

/// Whether less memory is available now than when it was killed, or its kubelet began to end it.
pub(crate) fn has_memory_fallen(leaving: &Leaving, observations: &Observations) -> bool {
    let now_bytes = available_bytes(observations);
    let both = leaving.available_at_kill_bytes.zip(now_bytes);
    both.is_some_and(|(then, now)| now < then - then / FALL_PART)
}

/// Whether what runs in it has survived SIGKILL, as far as is known.
pub(crate) fn is_stuck(pod: &PodState, now_ns: u64) -> bool {
    // One without a manifest is not looked at any more.
    pod.stuck && (pod.removed || now_ns.saturating_sub(pod.stuck_since_ns) < STUCK_FOR_NS)
}

fn kill_now(leaving: &Leaving, now_ns: u64) -> Option<KillReason> {
    let is_over = leaving.killed_at_ns.is_some() || leaving.empty_at_ns.is_some();
    if is_over || leaving.ended_by_kubelet {
        return None;
    }
    if leaving.terminate_failed {
        return Some(KillReason::TerminateFailed);
    }
    (now_ns >= leaving.kill_at_ns).then_some(KillReason::GraceOver)
}

fn release_now(leaving: &Leaving, now_ns: u64) -> bool {
    let overdue = leaving
        .killed_at_ns
        .is_some_and(|at_ns| now_ns >= at_ns.saturating_add(RELEASE_AFTER_KILL_NS));
    overdue && leaving.empty_at_ns.is_none() && !leaving.released
}

fn ending(
    leaving: &Leaving,
    usage_bytes: Option<u64>,
    read_ns: u64,
    now_ns: u64,
) -> Option<Ending> {
    if let Some(empty_at_ns) = leaving.empty_at_ns {
        // 95 % back: usage at most a twentieth of what it was. No reading: the cgroup was removed.
        let back =
            usage_bytes.is_none_or(|usage| usage.saturating_mul(20) <= leaving.usage_before_bytes);
        if back {
            return Some(Ending::Freed);
        }
        // Only a figure from after the wait shows that memory is still held: any event comes here, and the newest figure may be from
        // before the cgroup was empty.
        return (read_ns >= empty_at_ns.saturating_add(LINGER_AFTER_EMPTY_NS))
            .then_some(Ending::Lingering);
    }
    let tried_ns = leaving.kill_tried_ns?;
    (now_ns >= tried_ns.saturating_add(STUCK_AFTER_KILL_NS)).then_some(Ending::Stuck)
}

/// When something is to be done about this pod, if nothing happens before.
pub(crate) fn next_ns(leaving: &Leaving, now_ns: u64) -> u64 {
    let since_ns = now_ns.saturating_sub(leaving.since_ns);
    if leaving.ended_by_kubelet && leaving.empty_at_ns.is_none() {
        return match since_ns {
            0..KUBELET_ENDS_NS => now_ns.saturating_add(KUBELET_LOOK_NS),
            KUBELET_ENDS_NS..KUBELET_CLEANS_UP_NS => {
                leaving.since_ns.saturating_add(KUBELET_CLEANS_UP_NS)
            }
            // Its end shows as that of any pod.
            KUBELET_CLEANS_UP_NS.. => u64::MAX,
        };
    }
    // Memory comes back within milliseconds of a kill, or not at all for a long time.
    let step_ns = if since_ns < 2_000_000_000 {
        5_000_000
    } else {
        50_000_000
    };
    let look_ns = now_ns.saturating_add(step_ns);
    if leaving.killed_at_ns.is_none()
        && leaving.empty_at_ns.is_none()
        && leaving.kill_at_ns > now_ns
    {
        look_ns.min(leaving.kill_at_ns)
    } else {
        look_ns
    }
}
