//! A limit on evictions after one that freed next to nothing.
//!
//! Problem: memory can outlive the processes that took it. An `emptyDir` in memory stays mounted, a memfd is open in
//! another pod, pages are pinned. The victim is gone, the threshold is still met, and pod after pod is evicted for
//! memory that none of them has: one tenant ends all pods of a node in seconds.
//!
//! Approach (option [`Breaker`](crate::model::options::Breaker)): an eviction for memory *failed* if less than a fifth
//! of what the pod used came back. What stayed is *retained*. It is remembered as long as a threshold on available
//! memory is met, and until then:
//!
//! - No other pod is asked for it: pods must free what is missing beyond the retained memory.
//! - If nothing is missing beyond it, at most one pod is evicted per interval, and the first not before the interval
//!   after the failed eviction. Only while the node is *critically* short that first one goes at once.
//!
//! Critically short is a node that has less than half of a hard threshold on memory left, which is where a victim loses
//! its grace. For `memory.available` it is `kernelMemory.available` that must be below that half: it says what the
//! kernel can hand out before its OOM killer runs, while the kubelet's formula can be far below its threshold on a node
//! full of page cache in use, and showed 140 MB when the OOM killer ran. An end of memory that is foreseen is critical
//! as well.
//!
//! The kubelet waits for the volumes and cgroups of its victim, up to 30 s, and then goes on
//! (`docs/decisions/0033-breaker.md`).

use crate::model::config::EngineConfig;
use crate::model::decision::Decision;
use crate::model::signal::{Observations, Resource, Signal};
use crate::model::state::NodeState;
use crate::model::threshold::{Operator, Threshold};
use crate::policy::eviction::foresight::Shortage;
use crate::policy::eviction::thresholds::{Met, half, is_memory_floor};
use crate::policy::eviction::view::View;

/// Whether what a threshold lacks is bytes of memory.
fn applies_to(threshold: &Threshold) -> bool {
    threshold.operator == Operator::LessThan && threshold.signal.row().resource == Resource::Memory
}

/// Whether no pod is evicted for this threshold now.
pub(crate) fn holds(view: &View<'_>, met: &Met, observations: &Observations) -> bool {
    let Some(hold) = view.hold().filter(|_| applies_to(&met.threshold)) else {
        return false;
    };
    let need_bytes = met.threshold.shortfall(met.observation, true);
    if need_bytes.is_none_or(|need| need > hold.bytes) {
        return false;
    }
    let is_critical = met.foreseen.is_some() || is_critical(view.config, observations);
    let until_ns = if is_critical {
        hold.critical_until_ns
    } else {
        hold.until_ns
    };
    view.now_ns < until_ns
}

/// Whether less than half of a hard threshold on memory is left.
fn is_critical(config: &EngineConfig, observations: &Observations) -> bool {
    let floors = config.thresholds.iter();
    let mut known = floors.filter(|threshold| {
        is_memory_floor(threshold) && observations.get(threshold.signal).is_some()
    });
    known.any(|threshold| above_critical_bytes(threshold, observations).is_none())
}

/// What must still go before a hard threshold makes the node critically short, bytes; `None` if it does now.
pub(crate) fn above_critical_bytes(
    threshold: &Threshold,
    observations: &Observations,
) -> Option<u64> {
    let observation = observations.get(threshold.signal)?;
    let kernel = observations
        .get(Signal::KernelMemoryAvailable)
        .filter(|_| threshold.signal == Signal::MemoryAvailable);
    let left_bytes = kernel.unwrap_or(observation).value;
    left_bytes.checked_sub(half(threshold, observation))
}

/// What pods must free of `need`: not what is retained.
pub(crate) fn asked_of_others(view: &View<'_>, met: &Met, need: Option<u64>) -> Option<u64> {
    let hold = view.hold().filter(|_| applies_to(&met.threshold));
    let retained_bytes = hold.map_or(0, |hold| hold.bytes);
    need.map(|need| need.saturating_sub(retained_bytes))
}

/// A pod is evicted for memory now: the interval begins.
pub(crate) fn taken(config: &EngineConfig, state: &mut NodeState) {
    if let (Some(breaker), Some(retained)) = (config.options.breaker, &mut state.retained) {
        let until_ns = state.now_ns.saturating_add(breaker.interval_ns);
        retained.hold.until_ns = until_ns;
        retained.hold.critical_until_ns = until_ns;
    }
}

/// Forgets what is retained when memory suffices all the same.
pub(crate) fn end_if_resolved(
    config: &EngineConfig,
    state: &mut NodeState,
    foreseen: Option<&Shortage>,
) {
    let mut known = config.thresholds.iter().zip(&state.thresholds);
    let is_short =
        known.any(|(threshold, known)| known.first_observed_ns.is_some() && applies_to(threshold));
    if !is_short && foreseen.is_none() && state.retained.take().is_some() {
        for pod in state.pods.values_mut() {
            pod.retained_bytes = 0;
        }
    }
}

/// Says once that evictions are held.
pub(crate) fn report(state: &mut NodeState, met: &Met, decisions: &mut Vec<Decision>) {
    let Some(retained) = &mut state.retained else {
        return;
    };
    if std::mem::replace(&mut retained.reported, true) {
        return;
    }
    decisions.push(Decision::EvictionsHeld {
        uid: retained.uid.clone(),
        signal: met.threshold.signal,
        observed: met.observation.value,
        threshold: met.threshold.amount(met.observation.capacity),
        retained_bytes: retained.hold.bytes,
        until_ns: retained.hold.until_ns,
    });
}
