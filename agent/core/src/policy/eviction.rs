//! Which thresholds are met, what that means for the node's conditions, and which pod has to go.
//!
//! Rules: `synchronize` in pkg/kubelet/eviction/eviction_manager.go of Kubernetes 1.36, for memory signals. A threshold is
//! *met* while less than its value is available; one that was met for its grace period stays met until its minimum reclaim
//! is available on top. Conditions follow the thresholds at once and leave a transition period after the last. At most one
//! pod is chosen, the first of the ranking that is not exempt; a hard threshold gives it one second, a soft one the smaller
//! of `evictionMaxPodGracePeriod` and its own.
//!
//! Differences, each on purpose:
//! - The kubelet chooses among several met memory thresholds in no defined order; here hard comes before soft, then the order
//!   of the configuration.
//! - Pods without processes are not candidates: nothing would come back.
//! - While a victim's memory is still being freed nobody else is chosen (the kubelet waits up to 30 s, blind). If meanwhile
//!   half of a hard threshold is gone too, the victim's grace is over.

use crate::decision::{Decision, KillReason, NoVictimReason, Reason};
use crate::engine::EngineConfig;
use crate::event::Sample;
use crate::policy::leaving;
use crate::policy::rank::{RankRow, Ranking};
use crate::signal::{Observation, Signal};
use crate::state::{NodeState, ThresholdState};
use crate::threshold::Threshold;

/// Grace period of a hard eviction (`immediateEvictionGracePeriodSeconds` of the kubelet: 1 s, whatever its documentation says).
pub const HARD_EVICTION_GRACE_MS: u64 = 1000;

/// A threshold that asks for a victim.
#[derive(Clone, Copy)]
struct Met {
    threshold: Threshold,
    observation: Observation,
    value_bytes: u64,
}

/// Judges one sample.
pub(crate) fn decide(
    config: &EngineConfig,
    state: &mut NodeState,
    sample: &Sample,
    rows: &mut Vec<RankRow>,
    decisions: &mut Vec<Decision>,
) {
    let met = thresholds(config, state, sample);
    conditions(config, state, decisions);
    shorten_grace(config, state, sample, decisions);
    let Some(met) = met else {
        state.no_victim = None;
        return;
    };
    if !state.eviction_under_way() {
        choose(config, state, &met, rows, decisions);
    }
}

/// Brings the thresholds up to date. Returns the one to act on: hard before soft, then in the order of the configuration.
fn thresholds(config: &EngineConfig, state: &mut NodeState, sample: &Sample) -> Option<Met> {
    let now_ns = state.now_ns;
    let known = state.thresholds.iter_mut();
    most_urgent(
        config
            .thresholds
            .iter()
            .zip(known)
            .filter_map(|(threshold, known)| {
                let met;
                (*known, met) = judge(threshold, *known, sample, now_ns);
                met
            }),
    )
}

/// The threshold that a sample would make the engine act on, without taking note of anything.
pub(crate) fn would_act_on(
    config: &EngineConfig,
    state: &NodeState,
    sample: &Sample,
    now_ns: u64,
) -> Option<Signal> {
    let known = state.thresholds.iter();
    most_urgent(
        config
            .thresholds
            .iter()
            .zip(known)
            .filter_map(|(threshold, known)| judge(threshold, *known, sample, now_ns).1),
    )
    .map(|met| met.threshold.signal)
}

fn most_urgent(met: impl Iterator<Item = Met>) -> Option<Met> {
    met.fold(None, |best, met| match best {
        Some(best) if best.threshold.is_hard() || !met.threshold.is_hard() => Some(best),
        _ => Some(met),
    })
}

/// What a sample makes of a threshold, and whether it is to be acted on.
fn judge(
    threshold: &Threshold,
    known: ThresholdState,
    sample: &Sample,
    now_ns: u64,
) -> (ThresholdState, Option<Met>) {
    let Some(observation) = (threshold.signal.row().observe)(sample) else {
        return (ThresholdState::default(), None);
    };
    let value_bytes = threshold.value.bytes(observation.capacity_bytes);
    // A threshold that was met is resolved only when its minimum reclaim is there too.
    let min_reclaim_bytes = match threshold.min_reclaim {
        Some(amount) if known.met => amount.bytes(observation.capacity_bytes),
        _ => 0,
    };
    let below = observation.available_bytes < value_bytes.saturating_add(min_reclaim_bytes);
    let first_observed_ns = below.then(|| known.first_observed_ns.unwrap_or(now_ns));
    let met = first_observed_ns
        .is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= threshold.grace_ns);
    let judged = ThresholdState {
        first_observed_ns,
        met,
    };
    let met = met.then_some(Met {
        threshold: *threshold,
        observation,
        value_bytes,
    });
    (judged, met)
}

fn conditions(config: &EngineConfig, state: &mut NodeState, decisions: &mut Vec<Decision>) {
    // Every signal so far raises MemoryPressure; more conditions come with more signals.
    let condition = crate::signal::NodeCondition::MemoryPressure;
    let now_ns = state.now_ns;
    let observed = config
        .thresholds
        .iter()
        .zip(&state.thresholds)
        .any(|(threshold, known)| {
            threshold.signal.row().condition == condition && known.first_observed_ns.is_some()
        });
    let known = &mut state.memory_pressure;
    if observed {
        known.last_observed_ns = Some(now_ns);
    }
    let status = known
        .last_observed_ns
        .is_some_and(|last_ns| observed || now_ns - last_ns < config.pressure_transition_period_ns);
    if status != known.status {
        known.status = status;
        decisions.push(Decision::Condition { condition, status });
    }
}

/// The first hard threshold of which less than half is left.
fn half_gone(config: &EngineConfig, sample: &Sample) -> Option<KillReason> {
    config
        .thresholds
        .iter()
        .filter(|threshold| threshold.is_hard())
        .find_map(|threshold| {
            let observation = (threshold.signal.row().observe)(sample)?;
            let limit_bytes = half(threshold, observation);
            (observation.available_bytes < limit_bytes).then_some(KillReason::HeadroomHalved {
                signal: threshold.signal,
                observed_bytes: observation.available_bytes,
                limit_bytes,
            })
        })
}

/// Below this a victim of this threshold has no grace left.
pub(crate) fn half(threshold: &Threshold, observation: Observation) -> u64 {
    threshold.value.bytes(observation.capacity_bytes) / 2
}

fn shorten_grace(
    config: &EngineConfig,
    state: &mut NodeState,
    sample: &Sample,
    decisions: &mut Vec<Decision>,
) {
    let now_ns = state.now_ns;
    for (uid, pod) in &mut state.pods {
        let Some(leaving) = &mut pod.leaving else {
            continue;
        };
        if !leaving.evicted || leaving.killed_at_ns.is_some() || leaving.empty_at_ns.is_some() {
            continue;
        }
        if let Some(why) = half_gone(config, sample) {
            leaving::killed(leaving, now_ns);
            decisions.push(Decision::Kill {
                uid: uid.clone(),
                why,
            });
        }
    }
}

fn choose(
    config: &EngineConfig,
    state: &mut NodeState,
    met: &Met,
    rows: &mut Vec<RankRow>,
    decisions: &mut Vec<Decision>,
) {
    rows.clear();
    rows.extend(
        state
            .pods
            .values()
            .filter(|pod| pod.running && !pod.stuck)
            .map(|pod| pod.row.clone()),
    );
    Ranking::Memory.rank(rows);
    let Some(position) = rows
        .iter()
        .position(|row| state.pods.get(&row.uid).is_some_and(|pod| !pod.exempt))
    else {
        no_victim(state, met, rows, decisions);
        return;
    };
    state.no_victim = None;
    let row = &rows[position];
    let ahead_by = rows
        .get(position + 1)
        .map(|next| Ranking::Memory.deciding_comparator(row, next));
    let reason = Reason {
        signal: met.threshold.signal,
        soft: !met.threshold.is_hard(),
        observed_bytes: met.observation.available_bytes,
        threshold_bytes: met.value_bytes,
        capacity_bytes: met.observation.capacity_bytes,
        usage_bytes: row.usage,
        request_bytes: row.request.units_up(),
        priority: row.priority,
        rank: place(position),
        ranked: place(rows.len().saturating_sub(1)),
        exempt: place(position) - 1,
        ahead_by,
    };
    let now_ns = state.now_ns;
    let Some(pod) = state.pods.get_mut(&row.uid) else {
        return;
    };
    let grace_ms = if met.threshold.is_hard() {
        HARD_EVICTION_GRACE_MS
    } else {
        config
            .max_pod_grace_period_s
            .min(pod.termination_grace_period_s)
            .saturating_mul(1000)
    };
    let told = leaving::told_to_leave(pod, true, now_ns, grace_ms);
    pod.leaving = Some(match pod.leaving {
        // Its manifest is gone and it is still there: it was leaving already, now it has less time.
        Some(earlier) => crate::state::Leaving {
            kill_at_ns: earlier.kill_at_ns.min(told.kill_at_ns),
            killed_at_ns: earlier.killed_at_ns,
            usage_before_bytes: told.usage_before_bytes,
            ..told
        },
        None => told,
    });
    decisions.push(Decision::Evict {
        uid: row.uid.clone(),
        grace_ms,
        reason,
    });
}

/// A place in a ranking, counted from 1.
fn place(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX - 1) + 1
}

fn no_victim(state: &mut NodeState, met: &Met, rows: &[RankRow], decisions: &mut Vec<Decision>) {
    // Said once per threshold, not at every sample.
    if state.no_victim == Some(met.threshold.signal) {
        return;
    }
    state.no_victim = Some(met.threshold.signal);
    decisions.push(Decision::NoVictim {
        signal: met.threshold.signal,
        observed_bytes: met.observation.available_bytes,
        threshold_bytes: met.value_bytes,
        why: if rows.is_empty() {
            NoVictimReason::NoPods
        } else {
            NoVictimReason::AllExempt
        },
    });
}
