//! What sets pods apart in the memory ranking, kept ready between two decisions.
//!
//! **Problem.** Between a record and a kill all pods are looked at three times: who leads by what is known, who may
//! lead by the bounds of those that were not read, who goes. What is known of a pod is spread over a tree of large
//! values, and each look computed the same again from it. **Approach.** A table with one short entry for each pod, in
//! the order of their UIDs. [`Lineup::bring_up_to_date`] makes it when nothing is urgent
//! ([`Engine::prepare`](crate::engine::Engine::prepare)), so that a look is one pass over memory that is in one place.
//! Whatever may change a pod outdates it ([`Lineup::outdate`]); then the next look makes it anew first.
//!
//! A pod whose part depends on the time (it leaves, is stuck, waits for its containers, or its eviction was refused) is
//! looked up in the state each time: there are few. Those that have ended for good may be many.

use std::cmp::Ordering;

use crate::kube::pod_uid::PodUid;
use crate::model::config::EngineConfig;
use crate::model::event::{Overused, PodsRead, Sample};
use crate::model::rank_row::{Nanos, RankRow};
use crate::model::signal::Resource;
use crate::model::state::{NodeState, PodState};
use crate::model::unread::{Charged, Unread};
use crate::policy::eviction::share;
use crate::policy::eviction::usage_bounds::most_used_bytes;
use crate::policy::eviction::view::View;

/// The table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lineup {
    entries: Vec<Entry>,
    is_current: bool,
    /// The arbitrator's list that the entries rest on holds until then, nanoseconds.
    until_ns: Option<u64>,
}

/// One pod.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    uid: PodUid,
    /// What [`class`] says.
    class: u64,
    allowance: Nanos,
    request: Nanos,
    stats_known: bool,
    /// What it uses by what is known.
    usage: u64,
    /// Where it stands with that.
    known: SortPosition,
    /// From what a bound follows.
    charged: Option<Charged>,
    part: Part,
    shares: (u16, u16),
}

/// What sets pods apart but their UIDs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SortPosition {
    /// All comparators before amounts, as one number that is smaller the earlier a pod goes.
    class: u64,
    /// What pods of one class are compared by.
    excess: Nanos,
}

impl SortPosition {
    /// Ranked last.
    const LAST: Self = Self {
        class: u64::MAX,
        excess: Nanos(0),
    };

    #[inline(always)]
    fn is_ahead_of(&self, other: &Self) -> bool {
        self.class < other.class || self.class == other.class && self.excess > other.excess
    }
}

/// Whether it is ranked, and may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It has no process, and its kubelet does not have it, or ends it.
    None,
    /// It is ranked only.
    Exempt,
    Candidate,
    /// Depends on the time.
    Depends,
}

/// A pod as the ranking sees it.
#[derive(Clone, Copy)]
pub(super) struct Contender<'a> {
    pub(super) uid: &'a PodUid,
    pub(super) stats_known: bool,
    pub(super) usage: u64,
    /// `overused` and `over_share` as in a [`RankRow`].
    pub(super) shares: (u16, u16),
    standing: SortPosition,
}

/// Above all that sets classes apart after it.
const STATS_KNOWN: u64 = 1 << 59;
const WITHIN_REQUEST: u64 = 1 << 58;

/// All comparators of [`Ranking::Memory`](crate::policy::eviction::rank::Ranking::Memory) but what hangs on amounts,
/// and UIDs, as one number that is smaller the earlier a pod goes.
fn class(row: &RankRow, (overused, over_share): (u16, u16)) -> u64 {
    // Moved up by 2^31: the order of i32 as that of u32.
    let priority = row.priority.cast_unsigned() ^ i32::MIN.cast_unsigned();
    // 1000 at most, see `RankRow::overused`.
    let overused = u64::from(1023 - overused.min(1023));
    let unnamed = u64::from(row.unnamed & 3) << 60;
    unnamed | overused << 48 | u64::from(priority) << 16 | u64::from(u16::MAX - over_share)
}

impl Entry {
    fn of(row: &RankRow, shares: (u16, u16)) -> Self {
        let mut entry = Self {
            uid: row.uid.clone(),
            class: class(row, shares),
            allowance: row.allowance,
            request: row.request,
            stats_known: row.stats_known,
            usage: row.usage,
            known: SortPosition::LAST,
            charged: None,
            part: match row.exempt {
                true => Part::Exempt,
                false => Part::Candidate,
            },
            shares,
        };
        entry.learn(row.usage);
        entry
    }

    /// It uses this.
    fn learn(&mut self, usage: u64) {
        self.usage = usage;
        self.known = self.standing(self.stats_known, usage);
    }

    fn of_pod(config: &EngineConfig, list: Option<&Overused>, pod: &PodState) -> Self {
        let shares = list.map_or((0, 0), |list| share::of_overuse(config, list, pod));
        let depends =
            !pod.running || pod.leaving.is_some() || pod.stuck || pod.refused_until_ns.is_some();
        let entry = Self::of(&pod.row, shares);
        let part = match entry.part {
            _ if !pod.running && !pod.is_waiting(config) => Part::None,
            _ if depends => Part::Depends,
            part => part,
        };
        Self {
            charged: pod.memory.as_ref().map(Charged::of),
            part,
            ..entry
        }
    }

    /// Where it would stand with these figures.
    #[inline(always)]
    fn standing(&self, stats_known: bool, usage: u64) -> SortPosition {
        if !stats_known {
            // Two pods without statistics have no usage to compare.
            return SortPosition {
                class: self.class | WITHIN_REQUEST,
                excess: Nanos::default(),
            };
        }
        let used = Nanos::from_units(usage);
        let within = if used > self.allowance {
            0
        } else {
            WITHIN_REQUEST
        };
        SortPosition {
            class: self.class | STATS_KNOWN | within,
            excess: used.minus(self.request),
        }
    }

    /// With these figures.
    fn contender(&self, figures: Figures) -> Contender<'_> {
        Contender {
            uid: &self.uid,
            stats_known: figures.stats_known,
            usage: figures.usage,
            shares: self.shares,
            standing: figures.standing,
        }
    }

    /// By what is known.
    #[inline(always)]
    fn known(&self) -> Figures {
        Figures {
            stats_known: self.stats_known,
            usage: self.usage,
            standing: self.known,
        }
    }

    /// With this usage in place of what is known.
    #[inline(always)]
    fn with(&self, stats_known: bool, usage: u64) -> Figures {
        Figures {
            stats_known,
            usage,
            standing: self.standing(stats_known, usage),
        }
    }

    /// Whether it may be evicted if it uses so much; `None`: it is not ranked.
    #[inline(always)]
    fn may_go(
        &self,
        view: &View<'_>,
        usage: u64,
        may_go: &impl Fn(&PodState) -> bool,
    ) -> Option<bool> {
        match self.part {
            Part::None => None,
            Part::Candidate => Some(true),
            Part::Exempt => Some(false),
            Part::Depends => {
                let pod = view.state.pods.get(&self.uid);
                pod.filter(|pod| view.is_candidate(pod, Resource::Memory, usage))
                    .map(may_go)
            }
        }
    }

    /// What it uses at most if it was not read.
    #[inline(always)]
    fn bound(&self, unread: &Unread) -> u64 {
        let charged = self.charged.as_ref();
        charged.map_or(self.usage, |known| unread.most_bytes(known))
    }
}

/// What counts of a pod in one look, and where it stands with that.
#[derive(Clone, Copy)]
struct Figures {
    stats_known: bool,
    usage: u64,
    standing: SortPosition,
}

/// A sample of leaders that is ahead: what they use, and bounds for all others.
pub(super) struct Ahead {
    /// Where the pods that were read stand, in that order, and what they use at most.
    leaders: [(usize, u64); LEADERS_MAX],
    read: usize,
    unread: Unread,
}

impl Ahead {
    /// What pods use, for a pass over all of them in order.
    fn figures(&self) -> impl FnMut(usize, &Entry) -> Figures {
        let mut leaders = self.leaders[..self.read].iter();
        let mut leader = leaders.next();
        move |at, entry| match leader {
            Some((leads_at, used_bytes)) if *leads_at == at => {
                leader = leaders.next();
                entry.with(true, *used_bytes)
            }
            _ => entry.with(entry.stats_known, entry.bound(&self.unread)),
        }
    }
}

/// The head of the ranking.
#[derive(Default)]
pub(super) struct Head<'a> {
    /// How many pods are ranked.
    pub(super) ranked: usize,
    pub(super) first: Option<Contender<'a>>,
    pub(super) second: Option<Contender<'a>>,
    /// The first of those that may not go.
    pub(super) barred: Option<Contender<'a>>,
}

/// A sample with more leaders than that is a matter of the whole ranking.
const LEADERS_MAX: usize = 8;

impl Contender<'_> {
    /// `Less`: it goes earlier.
    fn compare(&self, other: &Self) -> Ordering {
        let (one, others) = (&self.standing, &other.standing);
        let classes = one.class.cmp(&others.class);
        classes
            .then_with(|| others.excess.cmp(&one.excess))
            .then_with(|| self.uid.cmp(other.uid))
    }

    pub(super) fn is_before(&self, other: Option<&Self>) -> bool {
        other.is_none_or(|other| self.compare(other).is_lt())
    }

    /// [`Contender::is_before`] one with a smaller UID.
    fn overtakes(&self, other: Option<&Self>) -> bool {
        other.is_none_or(|other| self.standing.is_ahead_of(&other.standing))
    }
}

impl Lineup {
    /// Of these rows alone.
    #[cfg(test)]
    pub(super) fn of_rows(rows: &[RankRow]) -> Self {
        let entry = |row: &RankRow| Entry::of(row, (row.overused, row.over_share));
        Self {
            entries: rows.iter().map(entry).collect(),
            is_current: true,
            until_ns: None,
        }
    }

    pub(crate) fn reserve(&mut self, pods: usize) {
        self.entries
            .reserve(pods.saturating_sub(self.entries.len()));
    }

    /// Pods may be other than it says.
    pub(crate) fn outdate(&mut self) {
        self.is_current = false;
    }

    /// Makes it anew if it is out of date. Allocates nothing if there is room for all pods.
    pub(crate) fn bring_up_to_date(
        &mut self,
        config: &EngineConfig,
        state: &NodeState,
        now_ns: u64,
    ) {
        let holds = self.until_ns.is_none_or(|until_ns| now_ns < until_ns);
        if self.is_current && holds {
            debug_assert!(
                self.is_of(config, state, now_ns),
                "whatever changes a pod outdates it"
            );
            return;
        }
        let list = share::overused(config, state, now_ns);
        let entry = |pod: &PodState| Entry::of_pod(config, list, pod);
        self.entries.clear();
        self.entries.extend(state.pods.values().map(entry));
        self.until_ns = list.map(|list| list.until_ns);
        self.is_current = true;
    }

    /// Whether it says of each pod what a new one would, or that it depends. One that is not ranked, or depends, may be
    /// gone.
    fn is_of(&self, config: &EngineConfig, state: &NodeState, now_ns: u64) -> bool {
        let list = share::overused(config, state, now_ns);
        let mut pods = state.pods.values();
        let may_be_gone = |entry: &&Entry| matches!(entry.part, Part::None | Part::Depends);
        let mut entries = self
            .entries
            .iter()
            .filter(|entry| !may_be_gone(entry) || state.pods.contains_key(&entry.uid));
        let same = pods.all(|pod| {
            let new = Entry::of_pod(config, list, pod);
            entries.next().is_some_and(|entry| {
                let part = match entry.part {
                    Part::Depends => Part::Depends,
                    _ => new.part,
                };
                *entry == Entry { part, ..new }
            })
        });
        same && entries.next().is_none()
    }

    /// Takes in what has become of one pod.
    pub(crate) fn refresh(&mut self, config: &EngineConfig, state: &NodeState, uid: &PodUid) {
        if !self.is_current {
            return;
        }
        let list = share::overused(config, state, state.now_ns);
        match (self.find(uid), state.pods.get(uid)) {
            (Ok(at), Some(pod)) => self.entries[at] = Entry::of_pod(config, list, pod),
            (Err(_), None) => {}
            _ => self.outdate(),
        }
    }

    fn find(&self, uid: &PodUid) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.uid.cmp(uid))
    }

    /// What a sample of leaders says; `None` if it has too many.
    pub(super) fn ahead(&self, view: &View<'_>, sample: &Sample) -> Option<Ahead> {
        let mut ahead = Ahead {
            leaders: Default::default(),
            read: 0,
            unread: Unread::of(sample),
        };
        for memory in &sample.pods {
            let Ok(at) = self.find(&memory.uid) else {
                continue;
            };
            let memory = memory.limited(&sample.node);
            let used_bytes = most_used_bytes(&memory, view.config.options.availability);
            *ahead.leaders.get_mut(ahead.read)? = (at, used_bytes);
            ahead.read += 1;
        }
        ahead.leaders[..ahead.read].sort_unstable();
        Some(ahead)
    }

    /// Finds the first two pods that may go, and the first of those that may not. `may_go`: whether one that depends on
    /// the time may.
    pub(super) fn head(
        &self,
        view: &View<'_>,
        ahead: Option<&Ahead>,
        may_go: &impl Fn(&PodState) -> bool,
    ) -> Head<'_> {
        match ahead {
            Some(ahead) => self.head_by(view, may_go, ahead.figures()),
            None => self.head_by(view, may_go, |_, entry| entry.known()),
        }
    }

    /// The pods that are ranked, and may not go.
    pub(super) fn barred(
        &self,
        view: &View<'_>,
        ahead: Option<&Ahead>,
        may_go: &impl Fn(&PodState) -> bool,
        mut each: impl FnMut(Contender<'_>),
    ) {
        let mut figures = ahead.map(Ahead::figures);
        for (at, entry) in self.entries.iter().enumerate() {
            let figures = match &mut figures {
                Some(figures) => figures(at, entry),
                None => entry.known(),
            };
            if entry.may_go(view, figures.usage, may_go) == Some(false) {
                each(entry.contender(figures));
            }
        }
    }

    /// One pass over all pods. Nearly all are behind those that lead already, and most of them by their class.
    #[inline(always)]
    fn head_by(
        &self,
        view: &View<'_>,
        may_go: &impl Fn(&PodState) -> bool,
        mut figures: impl FnMut(usize, &Entry) -> Figures,
    ) -> Head<'_> {
        let mut head = Head::default();
        // Behind them a pod is not among those that are looked for.
        let (mut last, mut last_barred) = (SortPosition::LAST, SortPosition::LAST);
        for (at, entry) in self.entries.iter().enumerate() {
            let figures = figures(at, entry);
            let Some(may_go) = entry.may_go(view, figures.usage, may_go) else {
                continue;
            };
            head.ranked += 1;
            let behind = if may_go { &last } else { &last_barred };
            if !figures.standing.is_ahead_of(behind) {
                continue;
            }
            let contender = entry.contender(figures);
            if !may_go {
                last_barred = contender.standing;
                head.barred = Some(contender);
                continue;
            }
            if contender.overtakes(head.first.as_ref()) {
                head.second = head.first.replace(contender);
            } else {
                head.second = Some(contender);
            }
            if let Some(second) = &head.second {
                last = second.standing;
            }
        }
        head
    }

    /// Follows a sample that the state has taken in. Pods that a sample of leaders has not read have no more than their
    /// bounds from now on, so that none is ahead of a leader with what it has no more.
    pub(crate) fn take_in(
        &mut self,
        config: &EngineConfig,
        state: &mut NodeState,
        sample: &Sample,
    ) {
        if sample.pods_read == PodsRead::None {
            return;
        }
        if sample.pods_read != PodsRead::Leaders {
            self.outdate();
            return;
        }
        for memory in &sample.pods {
            self.refresh(config, state, &memory.uid);
        }
        self.bring_up_to_date(config, state, state.now_ns);
        // What was charged since only adds to what is known.
        let unread = Unread::of(sample);
        let Some(rest_bytes) = unread.rest_bytes() else {
            return;
        };
        let now_ns = state.now_ns;
        for entry in &mut self.entries {
            if entry.usage <= rest_bytes {
                continue;
            }
            let bound = entry.bound(&unread);
            let pod = state
                .pods
                .get_mut(&entry.uid)
                .filter(|_| bound < entry.usage);
            let is_unread =
                |pod: &&mut PodState| pod.memory.is_some_and(|memory| memory.at_ns != now_ns);
            if let Some(pod) = pod.filter(is_unread) {
                pod.row.usage = bound;
                entry.learn(bound);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::engine::Engine;
    use crate::model::event::{Event, EventKind};

    fn part(engine: &Engine) -> Part {
        let mut lineup = Lineup::default();
        lineup.bring_up_to_date(engine.config(), engine.state(), 0);
        lineup.entries[0].part
    }

    /// A node keeps pods that have ended for days.
    #[test]
    fn pods_that_have_ended_are_not_looked_up() {
        for beside_kubelet in [true, false] {
            let mut engine = Engine::new(EngineConfig {
                beside_kubelet,
                ..EngineConfig::default()
            });
            let mut becomes = |kind| {
                engine.step(&Event { at_ns: 1, kind }, &mut Vec::new());
                part(&engine)
            };
            let mut applied = |statuses: serde_json::Value| {
                let pod = json!({"metadata": {"name": "a", "uid": "a"}, "status": {"containerStatuses": statuses}});
                let pod = Arc::new(serde_json::from_value(pod).unwrap());
                becomes(EventKind::PodApplied { pod })
            };
            let waiting = match beside_kubelet {
                true => Part::Depends,
                false => Part::None,
            };
            assert_eq!(applied(json!([])), Part::None, "not admitted");
            assert_eq!(applied(json!([{"name": "c"}])), waiting);
            let uid = PodUid::from("a");
            let uid = || uid.clone();
            assert_eq!(
                becomes(EventKind::PodRunning { uid: uid() }),
                Part::Candidate
            );
            assert_eq!(becomes(EventKind::PodEmpty { uid: uid() }), waiting);
            let ends = EventKind::PodEndedByKubelet { uid: uid() };
            assert_eq!(becomes(ends), Part::None);
        }
    }
}
