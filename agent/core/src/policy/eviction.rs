//! Shortages of memory, disk and PIDs: which thresholds are met, which pod is evicted, what is tried before, and when
//! to sample again. This file has the choice, the files of the folder have a step of it each.
//!
//! Rules: `synchronize` in pkg/kubelet/eviction/eviction_manager.go of Kubernetes 1.36, from the choice of a threshold
//! on ([`thresholds`](crate::policy::eviction::thresholds) says which): pods over a local storage limit are evicted
//! first, all of them; for a disk signal space is freed without ending a pod, and only if that does not suffice the
//! first pod of the ranking that is not exempt is evicted. A hard threshold gives it one second, a soft one the smaller
//! of `evictionMaxPodGracePeriod` and the pod's grace period.
//!
//! Differences, each on purpose:
//! - A pod over a local storage limit does not put off the choice for a threshold (the kubelet ends its pass there):
//!   memory does not wait for a disk.
//! - While a victim is leaving and its memory is still being freed no other pod is chosen for the same resource (the
//!   kubelet waits up to 30 s, blind), unless it was killed, does not go, and memory shrinks. If meanwhile half of a
//!   hard memory threshold is used up too, the victim's grace period ends.
//! - Memory that is lazily freed counts as used, of pods and of the node ([`page_cache`](crate::model::page_cache)).
//! - With [`foresight`](crate::policy::eviction::foresight) the first in the ranking is also evicted when the kernel
//!   will soon have no memory left.
//! - With [`Remedies`](crate::model::options::Remedies) other means are tried before a pod is evicted for memory
//!   ([`remedies`](crate::policy::eviction::remedies)).
//! - While the memory of an evicted pod does not come back, others are evicted slowly
//!   ([`breaker`](crate::policy::eviction::breaker)).
//! - With [`Victims::Targeted`] as many pods are evicted at once as are needed
//!   ([`target`](crate::policy::eviction::target)).

pub mod breaker;
pub mod candidates;
pub mod disruption;
pub mod foresight;
pub mod freshness;
pub mod leaving;
pub(crate) mod lineup;
pub mod local_storage;
pub mod numa;
pub mod rank;
pub(crate) mod ranking_head;
pub mod remedies;
pub(crate) mod retained;
pub mod sampling;
pub mod share;
pub mod stall;
pub mod swap;
pub mod target;
pub mod thresholds;
pub mod usage_bounds;
pub(crate) mod verdict;
pub(crate) mod view;

use crate::kube::pod_uid::PodUid;
use crate::model::config::EngineConfig;
use crate::model::decision::{Decision, KillReason, NoVictimReason, Reason, ThresholdReason};
use crate::model::event::Cause;
#[cfg(doc)]
use crate::model::options::Victims;
use crate::model::signal::{NodeCondition, Observations, Resource};
use crate::model::state::{DiskFreeing, NodeState};
use crate::model::threshold::Threshold;
use foresight::Shortage;
use thresholds::Met;
use verdict::{Next, Scratch};
use view::View;

/// Decides evictions from the signals of a sample.
pub(crate) fn decide(
    config: &EngineConfig,
    state: &mut NodeState,
    cause: Cause,
    observations: &Observations,
    scratch: &mut Scratch,
    decisions: &mut Vec<Decision>,
) {
    let foreseen = foresight::shortage(config, state);
    let view = View::now(config, state);
    let asked = verdict::asked(&view, cause, observations, foreseen.as_ref());
    if asked.after_freeing {
        state.disk_freeing = None;
    } else {
        thresholds::update(config, state, observations);
        state.passed = true;
        if foreseen.is_some() {
            state.conditions[NodeCondition::MemoryPressure as usize].last_observed_ns =
                Some(state.now_ns);
        }
        thresholds::conditions(config, state, decisions);
        shorten_grace(config, state, observations, foreseen.as_ref(), decisions);
        if config.local_storage_limits && state.storage_is_new {
            local_storage::decide(config, state, decisions);
            scratch.lineup.outdate();
        }
        remedies::end_if_resolved(config, state, decisions);
        breaker::end_if_resolved(config, state, foreseen.as_ref());
        if asked.met.is_none() {
            state.no_victim = None;
        }
    }
    let Some(met) = &asked.met else { return };
    match verdict::next(&View::now(config, state), &asked, observations) {
        // A pod leaves already. An episode that only waits would ask for one sample after the other.
        Next::Nothing if met.resource() == Resource::Memory => remedies::end(state, decisions),
        Next::Nothing => {}
        Next::Held => {
            remedies::end(state, decisions);
            breaker::report(state, met, decisions);
        }
        Next::FreeDisk(sources) => {
            state.disk_freeing = Some(DiskFreeing {
                threshold: met.index,
                since_ns: state.now_ns,
                done: false,
            });
            decisions.push(Decision::FreeDisk {
                signal: met.threshold.signal,
                sources: sources.to_vec(),
            });
        }
        Next::Evict => {
            let waits = !asked.after_freeing
                && remedies::before_eviction(config, state, met, observations, scratch, decisions);
            if !waits {
                choose(config, state, met, scratch, decisions);
            }
        }
    }
}

/// Whether a hard memory threshold is met.
fn is_floor_met(config: &EngineConfig, observations: &Observations) -> bool {
    let mut floors = config
        .thresholds
        .iter()
        .filter(|floor| thresholds::is_memory_floor(floor));
    floors.any(|floor| {
        let observation = observations.get(floor.signal);
        observation.is_some_and(|seen| seen.value < floor.amount(seen.capacity))
    })
}

fn shorten_grace(
    config: &EngineConfig,
    state: &mut NodeState,
    observations: &Observations,
    foreseen: Option<&Shortage>,
    decisions: &mut Vec<Decision>,
) {
    let now_ns = state.now_ns;
    let available_bytes = leaving::available_bytes(observations);
    for (uid, pod) in state.leaving_mut() {
        let running = pod.running;
        let Some(leaving) = &mut pod.leaving else {
            continue;
        };
        if leaving.evicted_for != Some(Resource::Memory)
            || leaving.killed_at_ns.is_some()
            || leaving.empty_at_ns.is_some()
        {
            continue;
        }
        let no_grace = config.beside_kubelet && is_floor_met(config, observations);
        let why = no_grace.then_some(KillReason::NoGrace);
        if let Some(why) = why.or_else(|| thresholds::half_gone(config, observations, foreseen)) {
            leaving::killed(leaving, running, now_ns, available_bytes);
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
    scratch: &mut Scratch,
    decisions: &mut Vec<Decision>,
) {
    let resource = met.resource();
    let ranking = resource.ranking();
    let ranked = verdict::victims(&View::now(config, state), met, scratch).ranked;
    let Scratch {
        rows,
        chosen,
        budgeting,
        ..
    } = scratch;
    if chosen.is_empty() {
        no_victim(state, met, ranked, decisions);
        return;
    }
    state.no_victim = None;
    for &at in chosen.iter() {
        let row = &rows[at];
        // What nothing runs in was not started again.
        let started_again = state.pods.get(&row.uid).filter(|pod| pod.running);
        let exempt_before = rows[..at].iter().filter(|row| row.exempt);
        let reason = ThresholdReason {
            signal: met.threshold.signal,
            soft: !met.threshold.is_hard(),
            observed: met.observation.value,
            threshold: met.threshold.amount(met.observation.capacity),
            capacity: met.observation.capacity,
            usage: row.usage,
            is_usage_unknown: !row.stats_known,
            request: row.request.units_up(),
            priority: row.priority,
            rank: count(at + 1),
            ranked: count(ranked),
            exempt: count(exempt_before.count()),
            ahead_by: rows
                .get(at + 1)
                .map(|next| ranking.deciding_comparator(row, next)),
            disruption: budgeting.note(state, rows, chosen, at),
            numa_node: numa::node(state, met.threshold.signal),
            evicted_before: started_again.map_or(0, |pod| pod.evictions),
            foreseen: met.foreseen,
        };
        let grace_s = grace_s(config, state, &met.threshold, &row.uid);
        leaving::steps::evict(
            config,
            state,
            &row.uid,
            resource,
            grace_s,
            Reason::Threshold(reason),
            decisions,
        );
    }
    if resource == Resource::Memory {
        breaker::taken(config, state);
    }
}

fn grace_s(config: &EngineConfig, state: &NodeState, threshold: &Threshold, uid: &PodUid) -> i64 {
    if threshold.is_hard() {
        return leaving::steps::hard_grace_s(config);
    }
    let max_s = config.max_pod_grace_period_s;
    let pod = state.pods.get(uid);
    let pod_s = pod.and_then(|pod| pod.pod.spec.termination_grace_period_seconds);
    pod_s.map_or(max_s, |pod_s| pod_s.min(max_s))
}

/// A number of pods, for a reason.
fn count(pods: usize) -> u32 {
    u32::try_from(pods).unwrap_or(u32::MAX)
}

fn no_victim(state: &mut NodeState, met: &Met, ranked: usize, decisions: &mut Vec<Decision>) {
    // Reported once per threshold, not at every sample.
    if state.no_victim == Some(met.threshold.signal) {
        return;
    }
    state.no_victim = Some(met.threshold.signal);
    decisions.push(Decision::NoVictim {
        signal: met.threshold.signal,
        observed: met.observation.value,
        threshold: met.threshold.amount(met.observation.capacity),
        why: if ranked == 0 {
            NoVictimReason::NoPods
        } else {
            NoVictimReason::AllExempt
        },
    });
}
