//! What is to be done about what the signals show: the one judgement.
//!
//! [`eviction`](crate::policy::eviction) carries it out, [`freshness`](crate::policy::eviction::freshness) asks
//! which figures it rests on before it is, `explain` shows it. It changes nothing but the space that it computes in,
//! and allocates nothing once there is room for all pods.
//!
//! 1. [`asked`]: the threshold, met or foreseen, that asks for a victim.
//! 2. [`next`]: whether a pod is evicted for it now, or the engine has to wait or free space first.
//! 3. [`victims`]: which pods. Its [`Choice::rests_on`] says how far down the ranking figures matter: the pods ranked
//!    after that may use less than is known, and the same pods go.

use crate::model::config::EngineConfig;
use crate::model::decision::FreeSource;
use crate::model::event::{Cause, CgroupMemory, NodeMemory, Sample};
use crate::model::options;
use crate::model::signal::{Observations, Resource, Signal};
use crate::model::state::{DiskFreeing, PodState};
use crate::model::threshold::Operator;
use crate::policy::disk::freeing;
use crate::policy::eviction::disruption::{Budgeting, Preference};
use crate::policy::eviction::foresight;
use crate::policy::eviction::lineup::Lineup;
use crate::policy::eviction::rank::{RankRow, SortKey};
use crate::policy::eviction::thresholds::{self, Met};
use crate::policy::eviction::view::View;
use crate::policy::eviction::{breaker, candidates, leaving, numa, ranking_head, stall, target};

/// Space for one judgement, kept so that none is allocated on the way to a kill.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    /// The ranking, or its head.
    pub(crate) rows: Vec<RankRow>,
    /// For sorting it.
    pub(crate) sort_keys: Vec<SortKey>,
    /// The rows of the pods that go.
    pub(crate) chosen: Vec<usize>,
    /// All pods, as the head of the ranking is found.
    pub(crate) lineup: Lineup,
    /// Of the sample that was asked about last.
    pub(crate) by_node: Option<ByNode>,
    /// What disruption budgets make of them.
    pub(crate) budgeting: Budgeting,
}

impl Scratch {
    pub(crate) fn reserve(&mut self, pods: usize, budgets: usize) {
        self.rows.reserve(pods.saturating_sub(self.rows.len()));
        self.sort_keys
            .reserve(pods.saturating_sub(self.sort_keys.len()));
        self.chosen.reserve(pods.saturating_sub(self.chosen.len()));
        self.lineup.reserve(pods);
        self.budgeting.reserve(pods, budgets);
    }
}

/// What asks for a victim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The most urgent threshold.
    pub(crate) met: Option<Met>,
    /// Set if this is about the threshold for which disk space has been freed, and about no other.
    pub(crate) after_freeing: bool,
}

/// What the figures of the node in a sample ahead say. Kept from one question about the sample to the next: in between
/// pods are read, on whose memory none of this depends; and whatever changes the state forgets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByNode {
    at_ns: u64,
    cause: Cause,
    node: NodeMemory,
    kubepods: Option<CgroupMemory>,
    /// What it lacks was left out, and not missed.
    is_part: bool,
    pub(crate) observations: Observations,
    pub(crate) asked: Asked,
}

impl ByNode {
    /// Of the sample that `view` has ahead.
    fn of(view: &View<'_>, sample: &Sample) -> Self {
        let (observations, swap_bytes) = view.observations();
        let foreseen = foresight::foreseen(view, swap_bytes);
        Self {
            at_ns: view.now_ns,
            cause: sample.cause,
            node: sample.node,
            kubepods: sample.kubepods,
            is_part: is_part(sample),
            observations,
            asked: asked(view, sample.cause, &observations, foreseen.as_ref()),
        }
    }

    /// Whether it is still what this sample says.
    pub(crate) fn is_of(&self, config: &EngineConfig, sample: &Sample, at_ns: u64) -> bool {
        let has_more = sample.storage.is_some()
            || sample.processes.is_some()
            || sample.pressure.is_some()
            || !sample.numa.is_empty();
        // Foresight depends on the memory of pods that leave.
        let rests_on_pods = config.options.foresight.is_some();
        self.at_ns == at_ns
            && self.cause == sample.cause
            && self.node == sample.node
            && self.kubepods == sample.kubepods
            && (self.kubepods.is_some() || self.is_part == is_part(sample))
            && !has_more
            && !rests_on_pods
    }

    /// The one that was kept, or a new one in its place.
    pub(crate) fn keep<'kept>(
        kept: &'kept mut Option<Self>,
        view: &View<'_>,
        sample: &Sample,
    ) -> &'kept Self {
        kept.take_if(|kept| !kept.is_of(view.config, sample, view.now_ns));
        let kept = kept.get_or_insert_with(|| Self::of(view, sample));
        debug_assert_eq!(
            kept.observations,
            view.observations().0,
            "nothing that it rests on has changed"
        );
        kept
    }
}

/// A sample of the node, or of leaders, leaves out what no threshold is on.
fn is_part(sample: &Sample) -> bool {
    !sample.pods_read.is_all()
}

/// What is to be done first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nothing: no pod has to go, or something under way has to end before.
    Nothing,
    /// Wait: the memory of an evicted pod did not come back, and no other pod has what is missing.
    Held,
    /// Free disk space.
    FreeDisk(&'static [FreeSource]),
    /// Evict, unless a remedy helps.
    Evict,
}

/// The threshold that asks for a victim.
pub(crate) fn asked(
    view: &View<'_>,
    cause: Cause,
    observations: &Observations,
    foreseen: Option<&foresight::Shortage>,
) -> Asked {
    if let Some(freeing) = &view.state.disk_freeing {
        let is_done = freeing.done && cause == Cause::DiskFreed;
        // Nothing was heard of it for too long: go by what is known.
        let waited_ns = view.now_ns.saturating_sub(freeing.since_ns);
        if is_done || waited_ns >= freeing::PATIENCE_NS {
            return Asked {
                met: after_freeing(view, freeing, observations),
                after_freeing: true,
            };
        }
    }
    Asked {
        met: foreseen
            .map(Met::foreseen)
            .or_else(|| thresholds::most_urgent(view, observations)),
        after_freeing: false,
    }
}

/// Space has been freed and file systems have been read again: does a pod still have to be evicted?
fn after_freeing(
    view: &View<'_>,
    freeing: &DiskFreeing,
    observations: &Observations,
) -> Option<Met> {
    let threshold = view.config.thresholds.get(freeing.threshold)?;
    if thresholds::all_satisfied(view.config, observations) {
        return None;
    }
    // The kubelet acts on what it saw before, even if this very threshold is satisfied now and another one is not.
    let observation = observations
        .get(threshold.signal)
        .or_else(|| view.state.observations.get(threshold.signal))?;
    Some(Met {
        index: freeing.threshold,
        threshold: *threshold,
        observation,
        foreseen: None,
    })
}

/// What is to be done for it first.
pub(crate) fn next(view: &View<'_>, asked: &Asked, observations: &Observations) -> Next {
    let Some(met) = &asked.met else {
        return Next::Nothing;
    };
    let resource = met.resource();
    if waits_for_victim(view, met, observations) || !stall::is_known(view, resource) {
        return Next::Nothing;
    }
    let sources = freeing::sources(resource, view.config.layout);
    if breaker::holds(view, met, observations) {
        Next::Held
    } else if sources.is_empty() || asked.after_freeing {
        Next::Evict
    } else if view.state.disk_freeing.is_none() {
        Next::FreeDisk(sources)
    } else {
        Next::Nothing
    }
}

/// Whether a threshold waits for a pod on its way out: an eviction is under way, or its kubelet ends a pod whose share
/// may come back. Memory does not wait for a pod that was killed and does not go while ever less memory is available.
fn waits_for_victim(view: &View<'_>, met: &Met, observations: &Observations) -> bool {
    let resource = met.resource();
    let known = view.state.thresholds.get(met.index);
    let seen_ns = known.and_then(|known| known.first_observed_ns);
    let since_ns = seen_ns.map(|seen_ns| seen_ns.saturating_add(met.threshold.grace_ns));
    let met_ns = view.now_ns.saturating_sub(since_ns.unwrap_or(view.now_ns));
    let mut leaving_uids = view.state.leaving().filter_map(|pod| view.leaving(pod));
    leaving_uids.any(|leaving| {
        let passed_over = resource == Resource::Memory
            && leaving::is_overdue(&leaving, view.now_ns)
            && leaving::has_memory_fallen(&leaving, observations);
        let may_come_back =
            || leaving::may_come_back(&leaving, resource, met_ns, observations, view.now_ns);
        leaving::is_under_way(&leaving, resource) && !passed_over
            || met.foreseen.is_none() && may_come_back()
    })
}

/// Whether the threshold evicts one pod: the first of the memory ranking that may be evicted. What else hangs on the
/// figures of pods that are not ahead of it is [`ThresholdReason::ahead_by`](crate::model::decision::ThresholdReason).
pub(crate) fn takes_the_first(config: &EngineConfig, met: &Met) -> bool {
    let options = &config.options;
    met.resource() == Resource::Memory
        && met.threshold.signal != Signal::NumaMemoryAvailable
        && options.victims == options::Victims::One
        && !options.disruption_budgets
        && options.remedies.is_none()
        // What a namespace uses is the sum over its pods.
        && config.namespace_shares.is_empty()
}

/// Which pods go: rows of [`Scratch::chosen`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    /// How many pods were candidates. [`Scratch::rows`] has all of them, or the
    /// [head](crate::policy::eviction::ranking_head) of their ranking.
    pub(crate) ranked: usize,
    /// The figures of so many rows, from the first of the ranking on, decide it. If those of later rows are smaller
    /// than is known, the same pods go.
    pub(crate) rests_on: usize,
    /// What they must free together for it; `None` if that did not count.
    pub(crate) need: Option<u64>,
}

/// Fills `rows` with the candidates for `signal`, unsorted.
pub(crate) fn candidates(view: &View<'_>, signal: Signal, rows: &mut Vec<RankRow>) {
    candidates::rows(view, signal.row().resource, rows);
    numa::use_numa_figures(view, signal, rows);
}

/// The first in the ranking of what is known, up to the one that would go, which the sample ahead lacks.
pub(crate) fn first_known<'scratch>(
    view: &View<'_>,
    scratch: &'scratch mut Scratch,
) -> Option<&'scratch RankRow> {
    let Scratch {
        rows,
        sort_keys,
        lineup,
        ..
    } = scratch;
    ranking_head::fill(view, true, lineup, rows, sort_keys, |pod| !pod.row.exempt);
    let first = rows.iter().position(|row| !row.exempt)?;
    let mut leaders = rows[..=first].iter();
    leaders.find(|row| view.is_unread(&row.uid))
}

/// Ranks the candidates and chooses the victims.
pub(crate) fn victims(view: &View<'_>, met: &Met, scratch: &mut Scratch) -> Choice {
    let ranked = rank(view, met, scratch);
    let Scratch { rows, chosen, .. } = scratch;
    chosen.clear();
    chosen.extend((0..rows.len()).filter(|&at| !rows[at].exempt));
    if !met.threshold.is_hard() {
        pass_over_refused(view, rows, chosen);
    }
    choose(view, met, ranked, scratch)
}

/// Fills [`Scratch::rows`] with the candidates in the order of their ranking, or with the head of it if no more is
/// needed. Returns how many candidates there are.
fn rank(view: &View<'_>, met: &Met, scratch: &mut Scratch) -> usize {
    let Scratch {
        rows,
        sort_keys,
        lineup,
        ..
    } = scratch;
    if takes_the_first(view.config, met) {
        let is_soft = !met.threshold.is_hard();
        let goes = |pod: &PodState| !(pod.row.exempt || is_soft && view.is_refused(pod));
        let ranked = ranking_head::fill(view, false, lineup, rows, sort_keys, goes);
        if let Some(ranked) = ranked {
            return ranked;
        }
    }
    candidates(view, met.threshold.signal, rows);
    met.resource().ranking().rank(rows, sort_keys);
    rows.len()
}

/// Keeps in [`Scratch::chosen`], which has the candidates that may go, those that go.
fn choose(view: &View<'_>, met: &Met, ranked: usize, scratch: &mut Scratch) -> Choice {
    let Scratch {
        rows,
        chosen,
        budgeting,
        ..
    } = scratch;
    let ranking = met.resource().ranking();
    let options = &view.config.options;
    let several = options.victims == options::Victims::Targeted;
    let need = need(view, met);
    let first = chosen.first().map_or(0, |at| at + 1);
    budgeting.clear();
    let preference = if options.disruption_budgets {
        budgeting.prefer(view, ranking, rows, chosen, need, several)
    } else {
        Preference::None
    };
    let all = rows.len();
    // What a namespace uses decides, too: any of its pods may.
    let one_by_one = view.config.namespace_shares.is_empty();
    let mut rests_on = match preference {
        Preference::None if one_by_one => first,
        Preference::Suffices { last } => last + 1,
        Preference::None | Preference::Falls => all,
    };
    if let (true, Some(need)) = (several, need) {
        let last = target::select(
            chosen,
            need,
            |at| rows[at].usage,
            |candidates, at| target::class_end(ranking, rows, candidates, at),
        );
        // If all together do not suffice, all go: also if they use less.
        let last = last.map_or(0, |last| last + 1);
        rests_on = match preference {
            Preference::None if one_by_one => last,
            Preference::None => all,
            Preference::Suffices { .. } | Preference::Falls => rests_on.max(last),
        };
    } else {
        chosen.truncate(1);
    }
    Choice {
        ranked,
        rests_on,
        need: need.filter(|_| several || preference != Preference::None),
    }
}

/// What the victims must free, if the threshold can say it.
fn need(view: &View<'_>, met: &Met) -> Option<u64> {
    let need = met.threshold.shortfall(met.observation, true);
    let need = need.filter(|_| met.threshold.operator == Operator::LessThan);
    breaker::asked_of_others(view, met, need)
}

fn is_refused(view: &View<'_>, row: &RankRow) -> bool {
    let pod = view.state.pods.get(&row.uid);
    pod.is_some_and(|pod| view.is_refused(pod))
}

/// Keeps the pods whose eviction no disruption budget has refused, if there are any.
fn pass_over_refused(view: &View<'_>, rows: &[RankRow], chosen: &mut Vec<usize>) {
    let is_refused = |at: &usize| is_refused(view, &rows[*at]);
    if !chosen.iter().all(is_refused) {
        chosen.retain(|at| !is_refused(at));
    }
}
