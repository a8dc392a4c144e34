//! Which thresholds are met, and what that means for the node's conditions.
//!
//! Rules: `synchronize` in pkg/kubelet/eviction/eviction_manager.go of Kubernetes 1.36, up to the choice of a
//! threshold, with the functions of helpers.go that it calls. A threshold is *met* while its signal shows less than its
//! value (stalls: more); one that was met for its grace period stays met until its minimum reclaim is there on top.
//! Conditions follow thresholds at once, also within a grace period, and leave a transition period after the last. Only
//! a threshold whose signal has been read anew since the last time evicts: one reading never evicts twice.
//!
//! Difference, on purpose: of several met thresholds of one kind the kubelet takes any (it sorts by "memory first"
//! only); here hard comes before soft, then the order of the configuration.

use crate::model::config::EngineConfig;
use crate::model::decision::{Decision, KillReason};
use crate::model::signal::{NodeCondition, Observation, Observations, Resource, Signal, Unit};
use crate::model::state::{NodeState, ThresholdState};
use crate::model::threshold::{Operator, Passes, Threshold};
use crate::policy::eviction::foresight::{Foreseen, Shortage};
use crate::policy::eviction::stall;
use crate::policy::eviction::view::View;

/// A threshold that asks for a victim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    /// Its place in the configuration.
    pub(crate) index: usize,
    pub(crate) threshold: Threshold,
    pub(crate) observation: Observation,
    /// Set if it is no threshold of the configuration but what would be short within the horizon.
    pub(crate) foreseen: Option<Foreseen>,
}

impl Met {
    /// An end of memory that is foreseen, as a threshold that is met.
    pub(crate) fn foreseen(verdict: &Shortage) -> Self {
        let (threshold, observation) = verdict.threshold();
        Self {
            // None has this place: it has been met since now.
            index: usize::MAX,
            threshold,
            observation,
            foreseen: Some(verdict.foreseen),
        }
    }

    pub(crate) fn resource(&self) -> Resource {
        self.threshold.signal.row().resource
    }
}

/// Brings the thresholds up to date.
pub(crate) fn update(config: &EngineConfig, state: &mut NodeState, observations: &Observations) {
    let NodeState {
        now_ns,
        thresholds,
        observations: last,
        passed,
        ..
    } = state;
    for (threshold, known) in config.thresholds.iter().zip(thresholds) {
        *known = judge(threshold, *known, observations, last, *now_ns, *passed);
    }
}

/// The threshold that asks for a victim, before [`update`] has taken note of it: of several memory before everything
/// else, hard before soft, then the order of the configuration.
pub(crate) fn most_urgent(view: &View<'_>, observations: &Observations) -> Option<Met> {
    let View { state, now_ns, .. } = *view;
    let thresholds = view.config.thresholds.iter().zip(&state.thresholds);
    most_urgent_of(
        thresholds
            .enumerate()
            .filter_map(|(index, (threshold, known))| {
                let last = &state.observations;
                let judged = judge(threshold, *known, observations, last, now_ns, state.passed);
                met(index, threshold, judged, observations)
                    .filter(|met| stall::settled(view, met.threshold.signal))
            }),
    )
}

/// Memory before everything else, hard before soft, then the order of the configuration.
pub(crate) fn most_urgent_of(met: impl Iterator<Item = Met>) -> Option<Met> {
    met.min_by_key(|met| {
        (
            met.resource() != Resource::Memory,
            !met.threshold.is_hard(),
            met.index,
        )
    })
}

fn met(
    index: usize,
    threshold: &Threshold,
    judged: ThresholdState,
    observations: &Observations,
) -> Option<Met> {
    (judged.met && judged.updated).then_some(Met {
        index,
        threshold: *threshold,
        observation: observations.get(threshold.signal)?,
        foreseen: None,
    })
}

/// What observations make of a threshold.
fn judge(
    threshold: &Threshold,
    known: ThresholdState,
    observations: &Observations,
    last: &Observations,
    now_ns: u64,
    passed: bool,
) -> ThresholdState {
    let Some(observation) = observations.get(threshold.signal) else {
        return ThresholdState::default();
    };
    match threshold.passes {
        Passes::First if passed && !known.met => return ThresholdState::default(),
        Passes::Later if !passed => return ThresholdState::default(),
        Passes::All | Passes::First | Passes::Later => {}
    }
    // A threshold that was met is resolved only when its minimum reclaim is there too.
    let first_observed_ns = threshold
        .shortfall(observation, known.met)
        .map(|_| known.first_observed_ns.unwrap_or(now_ns));
    let met = first_observed_ns
        .is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= threshold.grace_ns);
    let updated = match (observation.at_ns, last.get(threshold.signal)) {
        (Some(at_ns), Some(last)) => last.at_ns.is_none_or(|last_ns| at_ns > last_ns),
        _ => true,
    };
    ThresholdState {
        first_observed_ns,
        met,
        updated,
    }
}

/// Whether every threshold is satisfied with its minimum reclaim, whatever its grace period: the kubelet's test after
/// it has freed disk space without ending a pod.
pub(crate) fn all_satisfied(config: &EngineConfig, observations: &Observations) -> bool {
    let mut all = config
        .thresholds
        .iter()
        .filter(|threshold| threshold.passes != Passes::First);
    all.all(|threshold| {
        observations
            .get(threshold.signal)
            .and_then(|observation| threshold.shortfall(observation, true))
            .is_none()
    })
}

/// What of the node's memory cannot be had without meeting an eviction threshold: while `MemoryPressure` lasts, the
/// most that is missing to a threshold with its minimum reclaim, bytes. 0 without pressure.
#[must_use]
pub fn withheld_bytes(config: &EngineConfig, state: &NodeState) -> u64 {
    if !state.condition(NodeCondition::MemoryPressure).status {
        return 0;
    }
    let missing = |threshold: &Threshold| {
        let row = threshold.signal.row();
        // What one NUMA node lacks, the others may have.
        let counts = row.resource == Resource::Memory
            && row.unit == Unit::Bytes
            && row.signal != Signal::NumaMemoryAvailable;
        let observation = state
            .observations
            .get(threshold.signal)
            .filter(|_| counts)?;
        threshold.shortfall(observation, true)
    };
    let missing = config.thresholds.iter().filter_map(missing);
    missing.max().unwrap_or(0)
}

/// Brings the node conditions up to date.
pub(crate) fn conditions(
    config: &EngineConfig,
    state: &mut NodeState,
    decisions: &mut Vec<Decision>,
) {
    let now_ns = state.now_ns;
    for condition in NodeCondition::ALL {
        let observed = config
            .thresholds
            .iter()
            .zip(&state.thresholds)
            .any(|(threshold, known)| {
                threshold.signal.row().condition == Some(condition)
                    && known.first_observed_ns.is_some()
            });
        let known = &mut state.conditions[condition as usize];
        if observed {
            known.last_observed_ns = Some(now_ns);
        }
        let status = known
            .last_observed_ns
            .is_some_and(|last_ns| now_ns - last_ns < config.pressure_transition_period_ns);
        if status != known.status {
            known.status = status;
            decisions.push(Decision::Condition { condition, status });
        }
    }
}

/// The first hard memory threshold of which less than half is left; or half of the horizon is over.
pub(crate) fn half_gone(
    config: &EngineConfig,
    observations: &Observations,
    foreseen: Option<&Shortage>,
) -> Option<KillReason> {
    let soon = foreseen.filter(|soon| soon.left_bytes < soon.half_bytes());
    let soon = soon.map(|soon| KillReason::HeadroomHalved {
        signal: Signal::KernelMemoryAvailable,
        observed: soon.left_bytes,
        limit: soon.half_bytes(),
    });
    let thresholds = config
        .thresholds
        .iter()
        .filter(|threshold| is_memory_floor(threshold))
        .find_map(|threshold| {
            let observation = observations.get(threshold.signal)?;
            let limit = half(threshold, observation);
            (observation.value < limit).then_some(KillReason::HeadroomHalved {
                signal: threshold.signal,
                observed: observation.value,
                limit,
            })
        });
    soon.or(thresholds)
}

/// Whether it is a hard threshold below which memory runs out.
pub(crate) fn is_memory_floor(threshold: &Threshold) -> bool {
    threshold.is_hard()
        && threshold.operator == Operator::LessThan
        && threshold.signal.row().resource == Resource::Memory
}

/// Below this a victim of this threshold has no grace left.
pub(crate) fn half(threshold: &Threshold, observation: Observation) -> u64 {
    threshold.amount(observation.capacity) / 2
}
