//! Which reading must be made before a decision rests on it.
//!
//! Problem: a cgroup's usage is one cheap read, its inactive file pages are one of fifty lines that cost a hundred
//! times as much to produce; reading them for every pod would take milliseconds between a record and a kill. Yet a pod
//! that has only read files since the last reading must not be evicted for it, nor another one for a pod whose files
//! have become anonymous memory since. Approach: the agent reads the usage of each pod and keeps the inactive file
//! pages of an earlier reading. Then it asks here, again and again, for the one figure that could still change the
//! [verdict](crate::policy::eviction::verdict), until there is none. Usually there is none: the pod that grew was ahead
//! already.
//!
//! Before that comes a cheaper question ([`pods_needed`]): from the node's figures alone, is any pod's figure needed at
//! all? Far from every threshold the answer is no, and a report costs three reads instead of one for each pod. Where
//! nothing may be lost the question is [`wanted`]: to evict the first pod of the memory ranking, only pods that may be
//! the first are read, one by one ([`Stale::Unread`]). Of the others there are bounds
//! ([`unread`](crate::model::unread)). What a pod uses at least and at most is in
//! [`usage_bounds`](crate::policy::eviction::usage_bounds).

use crate::kube::pod_uid::PodUid;
use crate::model::event::{PodMemory, PodsRead, Sample};
use crate::model::signal::{Resource, Signal};
use crate::model::state::{NodeState, PodState};
use crate::policy::eviction::rank::{RankRow, Ranking};
use crate::policy::eviction::thresholds::Met;
use crate::policy::eviction::usage_bounds::{is_stale, is_stale_pod, least_used_bytes};
use crate::policy::eviction::verdict::{self, ByNode, Next, Scratch};
use crate::policy::eviction::view::View;
use crate::policy::eviction::{foresight, leaving, numa};

/// The memory of each pod is read at least this often while samples are taken, nanoseconds: the last line, the OOM
/// order and what is shown of pods rest on it.
pub const PODS_AGE_MAX_NS: u64 = 250_000_000;

/// A reading that is too old for what hangs on it, or was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stale {
    /// The memory of this pod, which [`Sample::pods`] lacks; and from the second on that of the kubepods cgroup after
    /// it. Without a cgroup all pods are to be read.
    Unread(PodUid),
    /// The inactive file pages of the kubepods cgroup.
    Kubepods,
    /// What pods have on this NUMA node: [`Sample::numa_pods`].
    NumaPods(u32),
    /// The inactive file pages of the pod at this index of [`Sample::pods`].
    Pod(usize),
}

/// Whether a decision about `sample`, of which only the node has been read, may depend on a pod's memory.
///
/// `false` promises that [`Engine::step`](crate::engine::Engine::step) decides the same with and without the pods. It
/// does if no threshold asks for a victim and no end of memory is foreseen, nothing is under way that depends on pods
/// (a pod that leaves, a remedy, disk space that is being freed, limits of local storage), and every pod that runs was
/// read not longer than [`PODS_AGE_MAX_NS`] ago.
pub(crate) fn pods_needed(view: &View<'_>, sample: &Sample) -> bool {
    let state = view.state;
    let is_awaited = |leaving| leaving::is_awaited(&leaving, view.now_ns);
    let is_due = |pod: &PodState| pod.leaving.is_some_and(is_awaited) || is_old(pod, view.now_ns);
    let under_way = state.remedies.episode.is_some() || state.disk_freeing.is_some();
    if under_way || sample.storage.is_some() || state.pods.values().any(is_due) {
        return true;
    }
    let (observations, swap_bytes) = view.observations();
    let foreseen = foresight::foreseen(view, swap_bytes);
    let asked = verdict::asked(view, sample.cause, &observations, foreseen.as_ref());
    asked.met.is_some()
}

fn is_old(pod: &PodState, now_ns: u64) -> bool {
    let is_old = |at_ns: u64| now_ns.saturating_sub(at_ns) >= PODS_AGE_MAX_NS;
    pod.running && pod.memory.is_none_or(|memory| is_old(memory.at_ns))
}

/// Whether a pod that runs was not read for [`PODS_AGE_MAX_NS`].
pub(crate) fn has_old_pods(state: &NodeState, now_ns: u64) -> bool {
    state.pods.values().any(|pod| is_old(pod, now_ns))
}

/// The pods whose memory can change the decision about `sample`, ignoring how old their known figures are. Only the
/// node has been read.
///
/// [`PodsRead::None`] and [`PodsRead::Leaders`] promise that [`Engine::step`](crate::engine::Engine::step) decides the
/// same as with all pods, but for the comparator that set the victim apart from the next
/// ([`ThresholdReason::ahead_by`](crate::model::decision::ThresholdReason)): it goes by what is known. So does the
/// number of pods that are ranked, as far as nothing runs in them. And a cgroup that is gone is not missed before its
/// end is reported, unless its pod is asked for.
pub(crate) fn wanted(view: &View<'_>, sample: &Sample, scratch: &mut Scratch) -> PodsRead {
    let View { config, state, .. } = *view;
    let under_way = state.remedies.episode.is_some() || state.disk_freeing.is_some();
    if under_way || sample.storage.is_some() {
        return PodsRead::All;
    }
    match ByNode::keep(&mut scratch.by_node, view, sample).asked.met {
        Some(met) if !verdict::takes_the_first(config, &met) => PodsRead::All,
        None if !has_awaited(view) => PodsRead::None,
        _ => PodsRead::Leaders,
    }
}

/// Whether a pod that leaves is waited for.
fn has_awaited(view: &View<'_>) -> bool {
    let mut leaving = view.state.leaving().filter_map(|pod| pod.leaving);
    leaving.any(|leaving| leaving::is_awaited(&leaving, view.now_ns))
}

/// The first outdated figure of the sample that `view` has ahead which could change the decision about it.
pub(crate) fn decisive(view: &View<'_>, sample: &Sample, scratch: &mut Scratch) -> Option<Stale> {
    if sample.pods_read == PodsRead::Leaders {
        let mut pods = view.state.leaving();
        let unread = pods.find(|pod| view.is_unread(&pod.row.uid));
        if let Some(pod) = unread {
            return Some(Stale::Unread(pod.row.uid.clone()));
        }
    }
    if let Some(index) = stale_retained(view, sample) {
        return Some(Stale::Pod(index));
    }
    let by_node = ByNode::keep(&mut scratch.by_node, view, sample);
    let met = by_node.asked.met?;
    if met.resource() != Resource::Memory {
        return None;
    }
    let kubepods_is_stale = sample
        .kubepods
        .is_some_and(|memory| is_stale(memory.usage_bytes, memory.usage_at_stat_bytes));
    if met.threshold.signal == Signal::AllocatableMemoryAvailable && kubepods_is_stale {
        return Some(Stale::Kubepods);
    }
    if verdict::next(view, &by_node.asked, &by_node.observations) != Next::Evict {
        return None;
    }
    if met.threshold.signal == Signal::NumaMemoryAvailable
        && let Some(node) = numa::missing(sample)
    {
        return Some(Stale::NumaPods(node));
    }
    stale_pod(view, &met, sample, scratch)
}

/// A pod that ends with this sample, and whose figure is old: what stays of its memory is not asked of others
/// ([`breaker`](crate::policy::eviction::breaker)).
fn stale_retained(view: &View<'_>, sample: &Sample) -> Option<usize> {
    view.config.options.breaker?;
    let pods = view.state.leaving();
    let mut ended = pods.filter(|pod| view.ends_lingering(pod));
    ended.find_map(|pod| {
        let index = index_of(&sample.pods, &pod.row)?;
        is_stale_pod(&sample.pods[index]).then_some(index)
    })
}

/// Where a row's pod is in a sample.
fn index_of(pods: &[PodMemory], row: &RankRow) -> Option<usize> {
    // Nearly always in this order.
    let sorted = pods.binary_search_by(|memory| memory.uid.cmp(&row.uid));
    let index = sorted.ok();
    index.or_else(|| pods.iter().position(|memory| memory.uid == row.uid))
}

/// The first pod of the ranking whose figure is old and decides which pods are evicted.
fn stale_pod(view: &View<'_>, met: &Met, sample: &Sample, scratch: &mut Scratch) -> Option<Stale> {
    if sample.pods_read == PodsRead::Leaders
        && sample.pods.iter().all(|memory| is_leaving(view, memory))
        && let Some(row) = verdict::first_known(view, scratch)
    {
        // With this one most of what the others can have is accounted for.
        return Some(Stale::Unread(row.uid.clone()));
    }
    let victims = verdict::victims(view, met, scratch);
    let rows = &scratch.rows;
    if sample.pods_read == PodsRead::Leaders {
        // One that is not evicted and may be ahead counts too: for the rank of the victim.
        let mut leaders = rows[..victims.rests_on].iter();
        if let Some(row) = leaders.find(|row| view.is_unread(&row.uid)) {
            return Some(Stale::Unread(row.uid.clone()));
        }
    }
    let mut candidates = rows[..victims.rests_on].iter().filter(|row| !row.exempt);
    let stale = candidates.find_map(|row| {
        let index = index_of(&sample.pods, row)?;
        let memory = &sample.pods[index];
        is_stale_pod(memory).then_some((index, row))
    });
    let (index, row) = stale?;
    // The first of all, and the only one that counts: whatever it uses, it may still go before the next.
    let is_alone = candidates.next().is_none() && scratch.chosen.len() == 1;
    let whole_pods = met.threshold.signal != Signal::NumaMemoryAvailable;
    let mut others = rows.iter().filter(|other| !other.exempt);
    if is_alone
        && whole_pods
        && others.next().is_some_and(|first| first.uid == row.uid)
        && let Some(pod) = view.state.pods.get(&row.uid)
    {
        let at_least = RankRow {
            usage: least_used_bytes(
                &pod.pod,
                &sample.pods[index],
                &sample.node,
                view.config.options.availability,
            ),
            ..row.clone()
        };
        let suffices = victims.need.is_none_or(|need| at_least.usage >= need);
        let stays_first = others
            .next()
            .is_none_or(|next| Ranking::Memory.compare(&at_least, next).is_lt());
        if suffices && stays_first {
            return None;
        }
    }
    Some(Stale::Pod(index))
}

fn is_leaving(view: &View<'_>, memory: &PodMemory) -> bool {
    let pod = view.state.pods.get(&memory.uid);
    pod.is_some_and(|pod| pod.leaving.is_some())
}
