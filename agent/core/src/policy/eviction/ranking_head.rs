//! The head of the memory ranking: up to the second pod that may go.
//!
//! **Problem.** One pod is evicted, yet a row and a key for each of a thousand pods, several times for one decision, is
//! most of the time between a record and a signal. **Approach.** One pass over the [`Lineup`]. What sets two pods apart
//! is there without a row: flags, priority and shares as one number, and the excess over the request. The two first
//! that may go are remembered; those that may not (critical pods) and are ahead of the second are looked for in another
//! pass, only if there is one. These get rows, and the comparators sort them.
//!
//! The order is the comparators' own ([`Ranking::Memory`]): a test compares both.

use crate::model::event::PodsRead;
use crate::model::rank_row::RankRow;
use crate::model::state::PodState;
use crate::policy::eviction::lineup::{Ahead, Contender, Lineup};
use crate::policy::eviction::rank::{Ranking, SortKey};
use crate::policy::eviction::view::View;

impl Contender<'_> {
    fn fill(&self, row: &RankRow) -> RankRow {
        let (overused, over_share) = self.shares;
        RankRow {
            stats_known: self.stats_known,
            usage: self.usage,
            overused,
            over_share,
            ..row.clone()
        }
    }
}

/// Fills `rows` with the head of the memory ranking, in order, and returns how many pods are ranked. The pods that
/// `may_go` says of are the ones that the head is about; where there are fewer than two, the head is all of the
/// ranking. `None`, and nothing filled: the sample ahead has the memory of all pods, or of many. Allocates nothing if
/// there is room for all pods.
pub(super) fn fill(
    view: &View<'_>,
    by_known: bool,
    lineup: &mut Lineup,
    rows: &mut Vec<RankRow>,
    sort_keys: &mut Vec<SortKey>,
    may_go: impl Fn(&PodState) -> bool,
) -> Option<usize> {
    let sample = view.pods_ahead().filter(|_| !by_known);
    if sample.is_some_and(|sample| sample.pods_read != PodsRead::Leaders) {
        return None;
    }
    lineup.bring_up_to_date(view.config, view.state, view.now_ns);
    let ahead = match sample {
        Some(sample) => Some(lineup.ahead(view, sample)?),
        None => None,
    };
    let row_of = |contender: &Contender<'_>| {
        let pod = view.state.pods.get(contender.uid);
        pod.map(|pod| contender.fill(&pod.row))
    };
    Some(collect(
        view,
        lineup,
        ahead.as_ref(),
        &may_go,
        row_of,
        rows,
        sort_keys,
    ))
}

fn collect(
    view: &View<'_>,
    lineup: &Lineup,
    ahead: Option<&Ahead>,
    may_go: &impl Fn(&PodState) -> bool,
    row_of: impl Fn(&Contender<'_>) -> Option<RankRow>,
    rows: &mut Vec<RankRow>,
    sort_keys: &mut Vec<SortKey>,
) -> usize {
    let head = lineup.head(view, ahead, may_go);
    let second = head.second.as_ref();
    rows.clear();
    rows.extend(
        [&head.first, &head.second]
            .into_iter()
            .flatten()
            .filter_map(&row_of),
    );
    if head.barred.is_some_and(|barred| barred.is_before(second)) {
        lineup.barred(view, ahead, may_go, |contender| {
            if contender.is_before(second) {
                rows.extend(row_of(&contender));
            }
        });
        Ranking::Memory.rank(rows, sort_keys);
    }
    head.ranked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::config::EngineConfig;
    use crate::model::state::NodeState;
    use crate::policy::eviction::rank::tests::any_rows;

    proptest! {
        #[test]
        fn it_is_the_beginning_of_the_whole_order(rows in any_rows(), exempt in prop::collection::vec(0..3u8, 40)) {
            let mut sorted = rows;
            for (row, exempt) in sorted.iter_mut().zip(exempt) {
                row.exempt = exempt > 0;
            }
            sorted.sort_by(|a, b| a.uid.cmp(&b.uid));
            let lineup = Lineup::of_rows(&sorted);
            let row_of = |contender: &Contender<'_>| {
                let row = sorted.iter().find(|row| row.uid == *contender.uid);
                row.map(|row| contender.fill(row))
            };
            let mut head = Vec::new();
            let (config, state) = (EngineConfig::default(), NodeState::default());
            let view = View::now(&config, &state);
            let ranked = collect(&view, &lineup, None, &|_| false, row_of, &mut head, &mut Vec::new());
            prop_assert_eq!(ranked, sorted.len());
            Ranking::Memory.rank(&mut sorted, &mut Vec::new());
            let may_go = sorted.iter().enumerate().filter(|(_, row)| !row.exempt);
            let known = may_go.map(|(at, _)| at + 1).nth(1).unwrap_or(sorted.len());
            prop_assert_eq!(&head[..], &sorted[..known]);
        }
    }
}
