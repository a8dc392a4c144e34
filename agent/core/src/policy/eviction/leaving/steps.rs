//! How pods begin and end to leave: an eviction, a manifest that was removed, a kubelet that ends them, the last line's
//! kill. What a moment makes of one that leaves is in [`leaving`].

use crate::kube::pod_uid::PodUid;
use crate::model::config::EngineConfig;
use crate::model::decision::{Decision, EvictionEnding, KillReason, Reason};
use crate::model::event::{Event, EventKind, LastLineKill};
use crate::model::signal::Resource;
use crate::model::state::{Leaving, NodeState, PodState, leaving_of};
use crate::policy::eviction::view::View;
use crate::policy::eviction::{candidates, leaving, remedies, retained};

/// Grace period of a hard eviction (`immediateEvictionGracePeriodSeconds` of the kubelet: 1 s, whatever its
/// documentation says).
pub(crate) const HARD_EVICTION_GRACE_S: i64 = 1;

/// Begins to end pods whose manifest was removed, kills those whose grace period is over, and records those that have
/// ended.
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
        EventKind::PodEndedByKubelet { uid } if config.exempt_uids.contains(uid) => {}
        EventKind::PodEndedByKubelet { uid } => ends_elsewhere(state, uid),
        EventKind::EvictionRefused { uid } => refused(config, state, uid, decisions),
        EventKind::LastLineKill { uid, .. } if config.exempt_uids.contains(uid) => {}
        EventKind::LastLineKill { uid, kill } => finish(state, uid, kill, decisions),
        EventKind::PodEmpty { uid } => forget_if_removed(state, uid),
        _ => {}
    }
    let mut gone = false;
    let available_bytes = leaving::available_bytes(&state.observations);
    let NodeState {
        pods,
        retained,
        leaving_uids,
        ..
    } = state;
    for (uid, pod) in leaving_of(pods, leaving_uids) {
        let usage_bytes = pod.memory.map(|memory| memory.usage_bytes);
        let read_ns = pod.memory.map_or(now_ns, |memory| memory.at_ns);
        let running = pod.running;
        let Some(leaving) = &mut pod.leaving else {
            continue;
        };
        let first_processes_ended =
            matches!(&event.kind, EventKind::FirstProcessesEnded { uid: of } if of == uid);
        if let Some(why) = leaving::kill_now(leaving, first_processes_ended, now_ns) {
            leaving::killed(leaving, running, now_ns, available_bytes);
            decisions.push(Decision::Kill {
                uid: uid.clone(),
                why,
            });
        }
        if leaving::release_now(leaving, now_ns) {
            leaving.released = true;
            decisions.push(Decision::ReleaseMemory { uid: uid.clone() });
        }
        if let Some(ending) = leaving::ending(leaving, running, usage_bytes, read_ns, now_ns) {
            decisions.push(Decision::Finished {
                uid: uid.clone(),
                ending,
                usage_before_bytes: leaving.usage_before_bytes,
                freed_bytes: leaving
                    .usage_before_bytes
                    .saturating_sub(usage_bytes.unwrap_or(0)),
            });
            let known = retained.as_ref().map(|retained| retained.hold);
            let (counted_bytes, used_bytes) = (pod.retained_bytes, pod.row.usage);
            let hold = retained::after(
                config,
                known,
                leaving,
                counted_bytes,
                ending,
                used_bytes,
                now_ns,
            );
            if hold != known {
                pod.retained_bytes = used_bytes;
            }
            retained::remember(retained, uid, hold);
            if leaving.evicted_for.is_some() {
                pod.evicted_at_ns = Some(now_ns);
            }
            pod.stuck = ending == EvictionEnding::Stuck;
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

/// Evicts a pod.
pub(crate) fn evict(
    config: &EngineConfig,
    state: &mut NodeState,
    uid: &PodUid,
    resource: Resource,
    grace_s: i64,
    reason: Reason,
    decisions: &mut Vec<Decision>,
) {
    let now_ns = state.now_ns;
    remedies::let_go(state, uid, decisions);
    let available_bytes = leaving::available_bytes(&state.observations);
    state.leaves(uid);
    let Some(pod) = state.pods.get_mut(uid) else {
        return;
    };
    let grace_ms = grace_s.max(0).unsigned_abs().saturating_mul(1000);
    let begun = leaving::begun(pod, Some(resource), now_ns, grace_ms);
    let earlier = pod.leaving.filter(|leaving| !leaving.ended_by_kubelet);
    pod.leaving = Some(match earlier {
        // It was leaving already and is still there: now it has less time.
        Some(earlier) => Leaving {
            kill_at_ns: earlier.kill_at_ns.min(begun.kill_at_ns),
            killed_at_ns: earlier.killed_at_ns,
            kill_tried_ns: earlier.kill_tried_ns,
            available_at_kill_bytes: earlier.available_at_kill_bytes,
            ..begun
        },
        None => begun,
    });
    pod.evictions = pod.evictions.saturating_add(1);
    decisions.push(Decision::Evict {
        uid: uid.clone(),
        grace_s,
        reason,
    });
    let running = pod.running;
    // At once: the next event may be a while away.
    if let Some(leaving) = pod
        .leaving
        .as_mut()
        .filter(|leaving| config.beside_kubelet && grace_ms == 0 && leaving.killed_at_ns.is_none())
    {
        leaving::killed(leaving, running, now_ns, available_bytes);
        decisions.push(Decision::Kill {
            uid: uid.clone(),
            why: KillReason::NoGrace,
        });
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
        pod.leaving = Some(leaving::begun(pod, None, now_ns, grace_ms));
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
    let available_bytes = leaving::available_bytes(&state.observations);
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
        ..leaving::begun(pod, None, now_ns, grace_ms)
    });
}

/// A disruption budget refuses an eviction for a soft threshold. Another pod goes, if there is one; else this one goes
/// when its grace period is over. A pod is taken back once while its threshold is met, so that pods cannot take turns
/// for ever.
fn refused(
    config: &EngineConfig,
    state: &mut NodeState,
    uid: &PodUid,
    decisions: &mut Vec<Decision>,
) {
    let now_ns = state.now_ns;
    let view = View::now(config, state);
    let evicted = state.pods.get(uid).and_then(|pod| pod.leaving);
    let Some(resource) = evicted.and_then(|leaving| leaving.evicted_for) else {
        return;
    };
    let can_go = |other: &PodState| {
        let is_spared = other.row.exempt || view.is_refused(other);
        let has_time = other
            .leaving
            .is_some_and(|leaving| !leaving.ended_by_kubelet);
        !has_time && !is_spared && candidates::row_of_candidate(&view, other, resource).is_some()
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
        !has_begun
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

/// Completes what the last line in the kernel began: what it does is an eviction, and a pod leaves as a whole. What it
/// did so long ago that the pod would count as stuck by now is past: the pod may have been started anew.
fn finish(state: &mut NodeState, uid: &PodUid, kill: &LastLineKill, decisions: &mut Vec<Decision>) {
    let now_ns = state.now_ns;
    let available_bytes = leaving::available_bytes(&state.observations);
    if now_ns.saturating_sub(kill.killed_ns) >= leaving::STUCK_AFTER_KILL_NS {
        return;
    }
    remedies::let_go(state, uid, decisions);
    state.leaves(uid);
    let Some(pod) = state.pods.get_mut(uid).filter(|pod| pod.running) else {
        return;
    };
    let mut leaving = pod
        .leaving
        .unwrap_or_else(|| leaving::begun(pod, Some(Resource::Memory), now_ns, 0));
    leaving.evicted_for.get_or_insert(Resource::Memory);
    leaving.ended_by_kubelet = false;
    if leaving.killed_at_ns.is_none() && leaving.empty_at_ns.is_none() {
        leaving::killed(&mut leaving, pod.running, now_ns, available_bytes);
        decisions.push(Decision::Kill {
            uid: uid.clone(),
            why: KillReason::LastLine { reason: kill.why },
        });
    }
    pod.leaving = Some(leaving);
}

/// The grace period of an eviction that is not for a soft threshold.
pub(crate) fn hard_grace_s(config: &EngineConfig) -> i64 {
    if config.beside_kubelet {
        0
    } else {
        HARD_EVICTION_GRACE_S
    }
}
