//! Which reading must be fresh before a decision hangs on it.
//!
//! Problem: a cgroup's usage is one cheap read, its inactive file pages are one of fifty lines that cost a hundred times as much
//! to produce; reading them for every pod would take milliseconds between a record and a kill. Yet a pod that has only read
//! files since the last look must not be evicted for it.
//! Approach: at an urgent sample the agent reads usage only and keeps the inactive file pages of the last full reading. Then it asks
//! here, again and again, for the one figure that could still change the decision, until there is none. Usually there is none:
//! the pod that grew was ahead already.
//!
//! Before that comes a cheaper question ([`pods_needed`]): from the node's figures alone, is any pod's figure needed at all? Far from every
//! threshold the answer is no, and a report costs three reads instead of one for each pod.
//!
//! Bounds: what a cgroup has grown by since its last full reading may all be inactive file pages; so its working set is at least what it
//! was then, and at most usage minus the inactive file pages of then. Usage that has hardly moved ([`STALE_BYTES`]) is taken as
//! unchanged.

use crate::engine::{EngineConfig, Scratch};
use crate::model::event::{PodMemory, Sample};
use crate::model::options::Availability;
use crate::model::signal::{Readings, Resource, Signal};
use crate::model::state::{NodeState, PodState};
use crate::policy::memory::rank::{RankRow, Ranking};
use crate::policy::memory::swap;
use crate::policy::memory::thresholds::{self, Met};
use crate::policy::memory::{foresight, on_node};

/// Usage may move this far before the inactive file pages of the last full reading count as old.
pub const STALE_BYTES: u64 = 4 << 20;

/// The memory of each pod is read at least this often while samples are taken, nanoseconds: the last line, the OOM order and what is shown of pods
/// rest on it.
pub const PODS_AGE_MAX_NS: u64 = 250_000_000;

/// A reading that is too old for what hangs on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stale {
    /// The inactive file pages of the kubepods cgroup.
    Kubepods,
    /// What pods have on this NUMA node: [`Sample::numa_pods`].
    NumaPods(u32),
    /// The inactive file pages of the pod at this index of [`Sample::pods`].
    Pod(usize),
}

/// Whether a decision about `sample`, of which only the node has been read, may depend on a pod's memory.
///
/// `false` promises that [`Engine::step`](crate::engine::Engine::step) decides the same with and without the pods. It does if no threshold asks for a victim and no end
/// of memory is foreseen, nothing is under way that looks at pods (a pod that leaves, a remedy, disk space that is being freed, limits of local
/// storage), and every pod that runs was read not longer than [`PODS_AGE_MAX_NS`] ago.
pub(crate) fn pods_needed(
    config: &EngineConfig,
    state: &NodeState,
    sample: &Sample,
    now_ns: u64,
) -> bool {
    let is_due = |pod: &PodState| {
        let is_old = pod
            .memory
            .is_none_or(|memory| now_ns.saturating_sub(memory.at_ns) >= PODS_AGE_MAX_NS);
        pod.leaving.is_some() || pod.running && is_old
    };
    let under_way = state.remedies.episode.is_some() || state.node_reclaim.is_some();
    if under_way || sample.storage.is_some() || state.pods.values().any(is_due) {
        return true;
    }
    let swap_bytes = swap::left_bytes(config, state, sample);
    let observations = state.observations.updated(&Readings {
        sample,
        at_ns: now_ns,
        availability: config.options.availability,
        swap_bytes,
    });
    foresight::would_foresee(config, state, sample, now_ns, swap_bytes).is_some()
        || thresholds::would_act_on(config, state, &observations, now_ns).is_some()
}

/// The first figure of `sample` that is old and could change what the engine decides about it.
pub(crate) fn decisive(
    config: &EngineConfig,
    state: &NodeState,
    sample: &Sample,
    now_ns: u64,
    Scratch { rows, places, .. }: &mut Scratch,
) -> Option<Stale> {
    let availability = config.options.availability;
    let swap_bytes = swap::left_bytes(config, state, sample);
    let observations = state.observations.updated(&Readings {
        sample,
        at_ns: now_ns,
        availability,
        swap_bytes,
    });
    let foreseen = foresight::would_foresee(config, state, sample, now_ns, swap_bytes);
    let met = foreseen.as_ref().map(Met::foreseen);
    let met = met.or_else(|| thresholds::would_act_on(config, state, &observations, now_ns))?;
    if met.resource() != Resource::Memory {
        return None;
    }
    let kubepods_is_stale = sample
        .kubepods
        .is_some_and(|memory| is_stale(memory.usage_bytes, memory.usage_at_stat_bytes));
    if met.threshold.signal == Signal::AllocatableMemoryAvailable && kubepods_is_stale {
        return Some(Stale::Kubepods);
    }
    if state.eviction_under_way(Resource::Memory) {
        return None;
    }
    if met.threshold.signal == Signal::NumaMemoryAvailable {
        return on_node::missing(sample).map(Stale::NumaPods);
    }
    rows.clear();
    rows.extend(sample.pods.iter().filter_map(|memory| {
        let pod = state.pods.get(&memory.uid)?;
        (pod.running && !pod.stuck).then(|| RankRow {
            usage: memory.used_bytes(availability),
            stats_known: true,
            ..pod.row.clone()
        })
    }));
    Ranking::Memory.rank(rows, places);
    let mut candidates = rows.iter().filter(|row| !row.exempt);
    let first = candidates.next()?;
    let index = sample
        .pods
        .iter()
        .position(|memory| memory.uid == first.uid)?;
    let memory = &sample.pods[index];
    if !is_stale(memory.usage_bytes, memory.usage_at_stat_bytes) {
        return None;
    }
    let at_least = RankRow {
        usage: least_used_bytes(memory, availability),
        ..first.clone()
    };
    let stays_first = candidates
        .next()
        .is_none_or(|next| Ranking::Memory.compare(&at_least, next).is_lt());
    (!stays_first).then_some(Stale::Pod(index))
}

fn is_stale(usage_bytes: u64, usage_at_stat_bytes: u64) -> bool {
    usage_bytes.abs_diff(usage_at_stat_bytes) >= STALE_BYTES
}

fn least_used_bytes(memory: &PodMemory, availability: Availability) -> u64 {
    memory
        .usage_bytes
        .min(memory.usage_at_stat_bytes)
        .saturating_sub(memory.cache_bytes(availability))
}
