//! The head of the memory ranking: up to the second pod that may go.
//!
//! **Problem.** One pod is evicted, yet a row and a key for each of a thousand pods, several times for one decision, is most of the time between a record and
//! a signal. **Approach.** One pass over the pods. What sets two apart is computed from what is kept ready, without a row: flags, priority and shares as one
//! number ([`class`]), and the excess over the request. The two first that may go are remembered; those that may not (critical pods) and are ahead of the second
//! are looked for in another pass, only if there is one. These get rows, and the comparators sort them.
//!
//! The order is the comparators' own ([`Ranking::Memory`]): a test compares both.

use std::cmp::Ordering;

use crate::model::event::Sample;
use crate::model::rank_row::{Nanos, RankRow};
use crate::model::state::PodState;
use crate::model::unread::Unread;
use crate::policy::memory::freshness::most_used_bytes;
use crate::policy::memory::rank::{Place, Ranking};
use crate::policy::memory::share;
use crate::policy::memory::view::View;

/// A sample with more leaders than that is a matter of the whole ranking.
const LEADERS_MAX: usize = 8;

/// What is known of what a pod uses.
enum Figures<'a> {
    /// The state has it.
    Known,
    /// A sample of leaders is ahead: what they use, and bounds for all others.
    Ahead {
        leaders: [Option<(&'a PodState, u64)>; LEADERS_MAX],
        unread: Unread,
    },
}

impl<'a> Figures<'a> {
    fn ahead(view: &View<'a>, sample: &Sample) -> Option<Self> {
        if sample.pods.len() > LEADERS_MAX {
            return None;
        }
        let mut leaders = [None; LEADERS_MAX];
        for (leader, memory) in leaders.iter_mut().zip(&sample.pods) {
            let pod = view.state.pods.get(&memory.uid);
            let memory = memory.limited(&sample.node);
            let used_bytes = most_used_bytes(&memory, view.config.options.availability);
            *leader = pod.map(|pod| (pod, used_bytes));
        }
        let unread = Unread::of(sample);
        Some(Self::Ahead { leaders, unread })
    }

    /// Whether there are statistics of a pod, and what it uses at most.
    fn of(&self, pod: &PodState) -> (bool, u64) {
        let row = &pod.row;
        let Self::Ahead { leaders, unread } = self else {
            return (row.stats_known, row.usage);
        };
        let mut read = leaders.iter().flatten();
        if let Some((_, used_bytes)) = read.find(|(leader, _)| std::ptr::eq(*leader, pod)) {
            return (true, *used_bytes);
        }
        let bound = pod.memory.as_ref().map(|known| unread.most_bytes(known));
        (row.stats_known, bound.unwrap_or(row.usage))
    }
}

/// A pod as the ranking sees it.
#[derive(Clone, Copy)]
struct Contender<'a> {
    row: &'a RankRow,
    stats_known: bool,
    usage: u64,
    overused: u16,
    over_share: u16,
    /// Whether it may be evicted.
    may_go: bool,
    class: u64,
    excess: Nanos,
}

impl<'a> Contender<'a> {
    /// `overused` and `over_share` as in a [`RankRow`].
    fn new(
        row: &'a RankRow,
        (stats_known, usage): (bool, u64),
        (overused, over_share): (u16, u16),
        may_go: bool,
    ) -> Self {
        let used = Nanos::from_units(usage);
        let exceeds_request = stats_known && used > row.allowance;
        Self {
            row,
            stats_known,
            usage,
            overused,
            over_share,
            may_go,
            class: class(row, stats_known, exceeds_request, overused, over_share),
            excess: if stats_known {
                used.minus(row.request)
            } else {
                // Two pods without statistics have no usage to compare.
                Nanos::default()
            },
        }
    }

    /// `Less`: it goes earlier.
    fn compare(&self, other: &Self) -> Ordering {
        let classes = self.class.cmp(&other.class);
        classes
            .then_with(|| other.excess.cmp(&self.excess))
            .then_with(|| self.row.uid.cmp(&other.row.uid))
    }

    fn is_before(&self, other: Option<&Self>) -> bool {
        other.is_none_or(|other| self.compare(other).is_lt())
    }

    /// [`Contender::is_before`] one with a smaller UID.
    fn overtakes(&self, other: Option<&Self>) -> bool {
        other.is_none_or(|other| {
            let is_same_class = self.class == other.class;
            self.class < other.class || is_same_class && self.excess > other.excess
        })
    }

    fn row(&self) -> RankRow {
        RankRow {
            stats_known: self.stats_known,
            usage: self.usage,
            overused: self.overused,
            over_share: self.over_share,
            ..self.row.clone()
        }
    }
}

/// All comparators of [`Ranking::Memory`] but amounts and UIDs as one number that is smaller the earlier a pod goes.
fn class(
    row: &RankRow,
    stats_known: bool,
    exceeds_request: bool,
    overused: u16,
    over_share: u16,
) -> u64 {
    // Moved up by 2^31: the order of i32 as that of u32.
    let priority = row.priority.cast_unsigned() ^ i32::MIN.cast_unsigned();
    let mut class = u64::from(row.unnamed & 3);
    class = class << 1 | u64::from(stats_known);
    class = class << 1 | u64::from(!exceeds_request);
    // 1000 at most, see `RankRow::overused`.
    class = class << 10 | u64::from(1023 - overused.min(1023));
    class = class << 32 | u64::from(priority);
    class << 16 | u64::from(u16::MAX - over_share)
}

/// Fills `rows` with the head of the memory ranking, in order, and returns how many pods are ranked. The pods that `may_go` says of are the ones that the
/// head is about; where there are fewer than two, the head is all of the ranking. `None`, and nothing filled: the sample ahead has the memory of all pods, or of many.
/// Allocates nothing if there is room for all pods.
pub(super) fn fill(
    view: &View<'_>,
    by_known: bool,
    rows: &mut Vec<RankRow>,
    places: &mut Vec<Place>,
    may_go: impl Fn(&PodState) -> bool,
) -> Option<usize> {
    let figures = match view.pods_ahead() {
        Some(sample) if !by_known && !sample.leaders_only => return None,
        Some(sample) if !by_known => Figures::ahead(view, sample)?,
        _ => Figures::Known,
    };
    let View { config, state, .. } = *view;
    let list = share::overused(config, state, view.now_ns);
    let pods = state.pods.values().filter(|pod| view.is_candidate(pod));
    let contenders = pods.map(|pod| {
        let shares = list.map_or((0, 0), |list| share::of_overuse(config, list, pod));
        Contender::new(&pod.row, figures.of(pod), shares, may_go(pod))
    });
    Some(collect(contenders, rows, places))
}

/// The contenders come in the order of their UIDs.
fn collect<'a>(
    contenders: impl Iterator<Item = Contender<'a>> + Clone,
    rows: &mut Vec<RankRow>,
    places: &mut Vec<Place>,
) -> usize {
    let mut ranked = 0;
    let (mut first, mut second): (Option<Contender<'_>>, Option<Contender<'_>>) = (None, None);
    let mut barred: Option<Contender<'_>> = None;
    for contender in contenders.clone() {
        ranked += 1;
        if !contender.may_go {
            if contender.overtakes(barred.as_ref()) {
                barred = Some(contender);
            }
        } else if contender.overtakes(first.as_ref()) {
            second = first.replace(contender);
        } else if contender.overtakes(second.as_ref()) {
            second = Some(contender);
        }
    }
    rows.clear();
    let leaders = [&first, &second].into_iter().flatten();
    rows.extend(leaders.map(Contender::row));
    if barred.is_some_and(|barred| barred.is_before(second.as_ref())) {
        let ahead = contenders.filter(|contender| !contender.may_go);
        let ahead = ahead.filter(|contender| contender.is_before(second.as_ref()));
        rows.extend(ahead.map(|contender| contender.row()));
    }
    Ranking::Memory.rank(rows, places);
    ranked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::memory::rank::tests::any_rows;

    proptest! {
        #[test]
        fn it_is_the_beginning_of_the_whole_order(rows in any_rows(), exempt in prop::collection::vec(0..3u8, 40)) {
            let mut sorted = rows;
            for (row, exempt) in sorted.iter_mut().zip(exempt) {
                row.exempt = exempt > 0;
            }
            sorted.sort_by(|a, b| a.uid.cmp(&b.uid));
            let contenders = sorted.iter().map(|row| {
                let figures = (row.stats_known, row.usage);
                Contender::new(row, figures, (row.overused, row.over_share), !row.exempt)
            });
            let mut head = Vec::new();
            let ranked = collect(contenders, &mut head, &mut Vec::new());
            prop_assert_eq!(ranked, sorted.len());
            Ranking::Memory.rank(&mut sorted, &mut Vec::new());
            let may_go = sorted.iter().enumerate().filter(|(_, row)| !row.exempt);
            let known = may_go.map(|(at, _)| at + 1).nth(1).unwrap_or(sorted.len());
            prop_assert_eq!(&head[..], &sorted[..known]);
        }
    }
}
