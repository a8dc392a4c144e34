//! A limit on evictions after one that freed next to nothing.
//!
//! Problem: memory can outlive the processes that took it. An `emptyDir` in memory stays mounted, a memfd is open in another pod, pages are
//! pinned. The victim is gone, the threshold is still met, and pod after pod is evicted for memory that none of them has: one tenant ends
//! all pods of a node in seconds.
//!
//! Approach (option [`Breaker`](crate::model::options::Breaker)): an eviction for memory *failed* if less than a fifth of what the pod used came back. What stayed is
//! *retained*. It is remembered as long as a threshold on available memory is met, and until then:
//!
//! - No other pod is asked for it: pods must free what is missing beyond the retained memory.
//! - If nothing is missing beyond it, at most one pod is evicted per interval, and the first not before the interval after the failed
//!   eviction. Only while the node is *critically* short that first one goes at once.
//!
//! Critically short is a node that has less than half of a hard threshold on memory left, which is where a victim loses its grace. For
//! `memory.available` it is `kernelMemory.available` that must be below that half: it says what the kernel can hand out before its OOM killer
//! runs, while the kubelet's formula can be far below its threshold on a node full of page cache in use, and showed 140 MB when the OOM
//! killer ran. An end of memory that is foreseen is critical as well.
//!
//! The same holds where memory that no pod is charged for has [taken](crate::policy::memory::uncharged) a fifth or more of what evictions have given
//! back: other pods are asked only for what is missing beyond its growth. That is not over when enough is available for a moment, which it is after each
//! eviction, but when it has been for the interval.
//!
//! The kubelet waits for the volumes and cgroups of its victim, up to 30 s, and then goes on (`docs/decisions/0033-breaker.md`).

use crate::model::config::EngineConfig;
use crate::model::decision::Decision;
use crate::model::event::Sample;
use crate::model::signal::{Observations, Resource, Signal};
use crate::model::state::{Hold, NodeState};
use crate::model::threshold::{Operator, Threshold};
use crate::policy::memory::foresight::Shortage;
use crate::policy::memory::thresholds::{Met, half, is_memory_floor};
use crate::policy::memory::uncharged::{is_kubepods_stale, taken_bytes};
use crate::policy::memory::view::View;

/// Whether what a threshold lacks is bytes of memory.
fn applies_to(threshold: &Threshold) -> bool {
    threshold.operator == Operator::LessThan && threshold.signal.row().resource == Resource::Memory
}

/// What other pods are not asked for, and until when.
fn hold(view: &View<'_>, threshold: &Threshold) -> Option<Hold> {
    if !applies_to(threshold) {
        return None;
    }
    let retained = view.hold();
    let availability = view.config.options.availability;
    let uncharged = view.uncharged().and_then(|known| {
        let bytes = taken_bytes(&known, threshold.signal, availability);
        (bytes > 0).then_some(Hold {
            bytes,
            until_ns: known.until_ns,
            critical_until_ns: known.critical_until_ns,
        })
    });
    match (retained, uncharged) {
        (Some(retained), Some(uncharged)) => Some(Hold {
            bytes: retained.bytes.saturating_add(uncharged.bytes),
            until_ns: retained.until_ns.max(uncharged.until_ns),
            critical_until_ns: retained.critical_until_ns.max(uncharged.critical_until_ns),
        }),
        (retained, uncharged) => retained.or(uncharged),
    }
}

/// What other pods are not asked for of what a signal lacks, bytes.
pub(crate) fn not_asked_bytes(config: &EngineConfig, state: &NodeState, signal: Signal) -> u64 {
    let retained_bytes = state.retained.as_ref().map_or(0, |known| known.hold.bytes);
    let availability = config.options.availability;
    let uncharged = state.uncharged;
    let uncharged_bytes = uncharged.map_or(0, |known| taken_bytes(&known, signal, availability));
    retained_bytes.saturating_add(uncharged_bytes)
}

/// Whether what no pod is charged for has not been read since an eviction: its growth counts from the next sample on, whichever pods that reads.
pub(crate) fn lacks_baseline(state: &NodeState) -> bool {
    state.uncharged.is_some_and(|known| known.before.is_none())
}

/// Whether a sample ahead lacks what [`holds`] goes by: the memory of the kubepods cgroup, all of it of one time. It is read first with the sample after
/// an eviction.
pub(crate) fn lacks_kubepods(view: &View<'_>, met: Option<&Met>, sample: &Sample) -> bool {
    let is_judged = |met: &Met| {
        applies_to(&met.threshold)
            && matches!(
                met.threshold.signal,
                Signal::MemoryAvailable | Signal::KernelMemoryAvailable
            )
    };
    let is_judging = view.state.uncharged.is_some() && met.is_some_and(is_judged);
    (is_judging || lacks_baseline(view.state))
        && sample.kubepods.as_ref().is_none_or(is_kubepods_stale)
}

/// Whether no pod is evicted for this threshold now.
pub(crate) fn holds(view: &View<'_>, met: &Met, observations: &Observations) -> bool {
    let Some(hold) = hold(view, &met.threshold) else {
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

/// What pods must free of `need`: not what is retained, or taken by what is no pod.
pub(crate) fn asked_of_others(view: &View<'_>, met: &Met, need: Option<u64>) -> Option<u64> {
    let hold_bytes = hold(view, &met.threshold).map_or(0, |hold| hold.bytes);
    need.map(|need| need.saturating_sub(hold_bytes))
}

/// A pod is evicted for memory now: the interval begins.
pub(crate) fn taken(config: &EngineConfig, state: &mut NodeState) {
    let Some(breaker) = config.options.breaker else {
        return;
    };
    let until_ns = state.now_ns.saturating_add(breaker.interval_ns);
    if let Some(retained) = &mut state.retained {
        retained.hold.until_ns = until_ns;
        retained.hold.critical_until_ns = until_ns;
    }
    // The first that follows goes at once while the node is critically short.
    let critical_until_ns = state.uncharged.map_or(0, |_| until_ns);
    let known = state.uncharged.get_or_insert_default();
    known.until_ns = until_ns;
    known.critical_until_ns = critical_until_ns;
}

/// Forgets what is retained when memory suffices all the same, and what no pod is charged for when it has sufficed for the interval.
pub(crate) fn end_if_resolved(
    config: &EngineConfig,
    state: &mut NodeState,
    foreseen: Option<&Shortage>,
) {
    let mut known = config.thresholds.iter().zip(&state.thresholds);
    let is_short =
        known.any(|(threshold, known)| known.first_observed_ns.is_some() && applies_to(threshold));
    if !is_short && foreseen.is_none() {
        state.retained = None;
        state
            .uncharged
            .take_if(|known| state.now_ns >= known.until_ns);
    }
}

/// Says once that evictions are held.
pub(crate) fn report(
    config: &EngineConfig,
    state: &mut NodeState,
    met: &Met,
    decisions: &mut Vec<Decision>,
) {
    let signal = met.threshold.signal;
    let Some(hold) = hold(&View::now(config, state), &met.threshold) else {
        return;
    };
    let availability = config.options.availability;
    let uncharged_bytes = state
        .uncharged
        .map_or(0, |known| taken_bytes(&known, signal, availability));
    let retained = &mut state.retained;
    let is_new = retained
        .as_mut()
        .is_some_and(|it| !std::mem::replace(&mut it.reported, true));
    let uncharged = state.uncharged.as_mut().filter(|_| uncharged_bytes > 0);
    let is_new = uncharged.is_some_and(|it| !std::mem::replace(&mut it.reported, true)) || is_new;
    if !is_new {
        return;
    }
    decisions.push(Decision::EvictionsHeld {
        uid: retained.as_ref().map(|retained| retained.uid.clone()),
        signal,
        observed: met.observation.value,
        threshold: met.threshold.amount(met.observation.capacity),
        retained_bytes: retained.as_ref().map_or(0, |retained| retained.hold.bytes),
        uncharged_bytes,
        until_ns: hold.until_ns,
    });
}
