//! Victims whose disruption budgets are used up are passed over where others suffice.
//!
//! Problem: an eviction under pressure asks no budget (the kubelet calls no Eviction API), and takes the last replica
//! of a service even if another pod has replicas to spare. Approach, for candidates in the order in which they would be
//! evicted:
//!
//! 1. In that order, each candidate uses up one disruption of each of its budgets; one whose budget has none left is
//!    *against* it. Pods that are leaving already have used up theirs.
//! 2. An *alternative* is a candidate that is not against a budget, and not of a higher priority than the first that
//!    is, unless it comes before it anyway: a budget says how many of a set may be missing, not that others matter
//!    less.
//! 3. If the alternatives together free enough, only they are candidates.
//! 4. Otherwise, where several may be evicted at once, as few against their budgets as are needed beside the
//!    alternatives; else the ranking stands as it is.

use crate::model::decision::Disruption;
use crate::model::state::NodeState;
use crate::policy::eviction::rank::{RankRow, Ranking};
use crate::policy::eviction::target;
use crate::policy::eviction::view::View;

/// Its buffers, kept so that nothing is allocated on the way to a kill.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budgeting {
    /// What each budget still allows, in the order of their names.
    allowed: Vec<u32>,
    /// Places of the candidates that are against a budget, ascending.
    against: Vec<usize>,
    /// Those of them that are evicted all the same.
    needed: Vec<usize>,
}

/// What budgets make of a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Preference {
    /// No candidate is against a budget.
    None,
    /// Only alternatives may be evicted; those up to the row `last` free enough.
    Suffices {
        /// The row.
        last: usize,
    },
    /// The alternatives do not free enough.
    Falls,
}

impl Budgeting {
    pub(crate) fn reserve(&mut self, pods: usize, budgets: usize) {
        self.allowed.clear();
        self.against.clear();
        self.needed.clear();
        self.allowed.reserve(budgets);
        self.against.reserve(pods);
        self.needed.reserve(pods);
    }

    /// Forgets the last decision.
    pub(crate) fn clear(&mut self) {
        self.against.clear();
    }

    /// Keeps of `chosen` (places in `rows`) those that may be evicted. `need`: what is to be freed, `None` if unknown;
    /// `several`: whether more than one may be evicted.
    pub(crate) fn prefer(
        &mut self,
        view: &View<'_>,
        ranking: Ranking,
        rows: &[RankRow],
        chosen: &mut Vec<usize>,
        need: Option<u64>,
        several: bool,
    ) -> Preference {
        self.split(view, rows, chosen);
        let Some(&first) = self.against.first() else {
            return Preference::None;
        };
        let against = &self.against;
        let is_alternative = |at: usize| {
            against.binary_search(&at).is_err()
                && (at < first || rows[at].priority <= rows[first].priority)
        };
        let alternatives = || chosen.iter().copied().filter(|&at| is_alternative(at));
        let mut freed = 0u64;
        let last = alternatives().find(|&at| {
            freed = freed.saturating_add(rows[at].usage);
            need.is_none_or(|need| freed >= need)
        });
        if let Some(last) = last {
            chosen.retain(|&at| is_alternative(at));
            return Preference::Suffices { last };
        }
        let Some(rest) = need.filter(|_| several).map(|need| need - freed) else {
            return Preference::Falls;
        };
        let needed = &mut self.needed;
        needed.clear();
        needed.extend_from_slice(against);
        target::select(
            needed,
            rest,
            |at| rows[at].usage,
            |candidates, at| target::class_end(ranking, rows, candidates, at),
        );
        let freed = needed
            .iter()
            .fold(0u64, |sum, &at| sum.saturating_add(rows[at].usage));
        if freed >= rest {
            chosen.retain(|&at| is_alternative(at) || needed.binary_search(&at).is_ok());
        }
        Preference::Falls
    }

    fn split(&mut self, view: &View<'_>, rows: &[RankRow], chosen: &[usize]) {
        let state = view.state;
        self.allowed.clear();
        self.allowed.extend(state.budgets.values().map(|budget| {
            let (mut expected, mut healthy, mut leaving) = (0, 0, 0);
            for pod in state.pods.values() {
                if budget.selects(&pod.pod) {
                    expected += u32::from(!pod.removed);
                    let leaves = view.leaving(pod).is_some();
                    healthy += u32::from(pod.running && !leaves);
                    leaving += u32::from(leaves);
                }
            }
            budget.allows(expected, healthy, leaving)
        }));
        self.against.clear();
        for &at in chosen {
            let Some(pod) = state.pods.get(&rows[at].uid) else {
                continue;
            };
            let mut exhausted = false;
            for (budget, allowed) in state.budgets.values().zip(&mut self.allowed) {
                if budget.selects(&pod.pod) {
                    exhausted |= *allowed == 0;
                    *allowed = allowed.saturating_sub(1);
                }
            }
            if exhausted {
                self.against.push(at);
            }
        }
    }

    /// What budgets had to do with the choice of the pod at `at`, when `chosen` go.
    pub(crate) fn note(
        &self,
        state: &NodeState,
        rows: &[RankRow],
        chosen: &[usize],
        at: usize,
    ) -> Option<Disruption> {
        if self.against.binary_search(&at).is_ok() {
            let pod = state.pods.get(&rows[at].uid)?;
            let mut budgets = state.budgets.iter();
            let (name, _) = budgets.find(|(_, budget)| budget.selects(&pod.pod))?;
            return Some(Disruption::AgainstBudget {
                budget: name.clone(),
            });
        }
        let passed = self.against.iter().take_while(|&&other| other < at);
        let passed = passed.filter(|other| !chosen.contains(other)).count();
        (passed > 0).then(|| Disruption::PassedOver {
            pods: u32::try_from(passed).unwrap_or(u32::MAX),
        })
    }
}
