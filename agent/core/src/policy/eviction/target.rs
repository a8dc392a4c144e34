//! As many victims as a target needs, and no more.
//!
//! Problem: the kubelet evicts one pod per pass, whatever is missing; a node that is short of 10 GiB loses its pods one
//! at a time over minutes, or its OOM killer comes first (kubernetes#30173, #31362, #56152). Taking the first n of the
//! ranking until the target is reached is no better the other way: a large pod at the end makes the small ones before
//! it needless.
//!
//! Approach, with *candidates* in the order in which they would be evicted and what each one's leaving *frees*:
//! 1. The shortest prefix that frees enough says how far up the ranking one has to go: without its last member, and so
//!    without any pod from there on, nothing suffices.
//! 2. If one candidate of that last member's class (as important:
//!    [`Ranking::same_class`](crate::policy::eviction::rank::Ranking)) or a less important one frees enough alone, only
//!    the first such pod is evicted.
//! 3. Otherwise the prefix, from its most important member down, loses every candidate without which it still suffices.
//!
//! So no victim is more important than needed, none could be spared, and two never go where one suffices without being
//! more important. If all together do not suffice, all go.

use crate::policy::eviction::rank::{RankRow, Ranking};

/// Keeps of `candidates` those that are to go, in their order. `class_end(n)`: how many candidates are at most as
/// important as the one at position `n`. Returns the last candidate that was considered, `None` if all together do not
/// suffice.
pub fn select(
    candidates: &mut Vec<usize>,
    need: u64,
    frees: impl Fn(usize) -> u64,
    class_end: impl Fn(&[usize], usize) -> usize,
) -> Option<usize> {
    let mut sum = 0u64;
    let last = candidates.iter().position(|&candidate| {
        sum = sum.saturating_add(frees(candidate));
        sum >= need
    })?;
    let end = class_end(candidates, last);
    if let Some(alone) = candidates[..end]
        .iter()
        .position(|&candidate| frees(candidate) >= need)
    {
        candidates.swap(0, alone);
        candidates.truncate(1);
        return candidates.first().copied();
    }
    candidates.truncate(last + 1);
    let considered = candidates.last().copied();
    for at in (0..last).rev() {
        let freed = frees(candidates[at]);
        if sum - freed >= need {
            sum -= freed;
            candidates.remove(at);
        }
    }
    considered
}

/// How many of `candidates` (places in `rows`, in the order of `ranking`) are at most as important as the one at
/// position `at`.
pub(crate) fn class_end(
    ranking: Ranking,
    rows: &[RankRow],
    candidates: &[usize],
    at: usize,
) -> usize {
    let last = &rows[candidates[at]];
    let same = |next: &&usize| ranking.same_class(last, &rows[**next]);
    at + 1 + candidates[at + 1..].iter().take_while(same).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Candidates `(class, frees)` in order; returns the positions that go.
    fn chosen(candidates: &[(u8, u64)], need: u64) -> Vec<usize> {
        let mut all: Vec<usize> = (0..candidates.len()).collect();
        select(
            &mut all,
            need,
            |at| candidates[at].1,
            |positions, at| {
                let class = candidates[positions[at]].0;
                positions
                    .iter()
                    .take_while(|&&at| candidates[at].0 <= class)
                    .count()
            },
        );
        all
    }

    #[test]
    fn examples() {
        type Case = (&'static [(u8, u64)], u64, &'static [usize]);
        let cases: [Case; 7] = [
            // The first suffices.
            (&[(0, 50), (0, 40)], 30, &[0]),
            // A small one before a large one is spared.
            (&[(0, 5), (0, 40)], 30, &[1]),
            // Not at the price of a more important pod.
            (&[(0, 20), (0, 20), (1, 100)], 30, &[0, 1]),
            // The important pod is needed, and then the small one is not.
            (&[(0, 5), (1, 100)], 30, &[1]),
            (&[(0, 10), (0, 30), (0, 25)], 50, &[1, 2]),
            // All that there are.
            (&[(0, 10), (0, 10)], 50, &[0, 1]),
            (&[], 50, &[]),
        ];
        for (candidates, need, expected) in cases {
            assert_eq!(chosen(candidates, need), expected, "{candidates:?} {need}");
        }
    }

    proptest! {
        #[test]
        fn brute_force_finds_nothing_better(
            mut candidates in prop::collection::vec((0u8..3, 0u64..20), 0..10),
            need in 1u64..80,
        ) {
            candidates.sort_by_key(|(class, _)| *class);
            let chosen = chosen(&candidates, need);
            let freed = |set: &[usize]| set.iter().map(|&at| candidates[at].1).sum::<u64>();
            let subsets = (0u32..1 << candidates.len()).map(|mask| {
                (0..candidates.len()).filter(|at| mask >> at & 1 == 1).collect::<Vec<_>>()
            });
            let sufficient: Vec<Vec<usize>> = subsets.filter(|set| freed(set) >= need).collect();
            if sufficient.is_empty() {
                prop_assert_eq!(chosen.len(), candidates.len());
                return Ok(());
            }
            prop_assert!(freed(&chosen) >= need);
            // No victim could be spared.
            for spared in &chosen {
                let rest: Vec<usize> = chosen.iter().copied().filter(|at| at != spared).collect();
                prop_assert!(freed(&rest) < need);
            }
            // No victim is more important than in the best case.
            let top = |set: &[usize]| set.iter().map(|&at| candidates[at].0).max();
            let least = sufficient.iter().map(|set| top(set)).min().unwrap();
            prop_assert_eq!(top(&chosen), least);
            // Never two where one suffices that is not more important.
            let one = sufficient.iter().any(|set| set.len() == 1 && top(set) == least);
            prop_assert!(!one || chosen.len() == 1);
        }
    }
}
