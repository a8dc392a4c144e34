//! The smallest set of NUMA nodes that together have enough of every resource.
//!
//! Problem: the kubelet tries all sets of nodes, 2^n of them. With one resource the largest nodes are the answer; with
//! several, one node may have the memory and another the huge pages, and finding the least number of nodes is a
//! knapsack problem.
//!
//! Approach: for each size from a lower bound on, search for a *witness*, a set of that size that has enough. One
//! resource: the largest nodes. Several: depth first over *kinds* of nodes (nodes with equal amounts are
//! interchangeable, and real machines have few kinds), cut off where even the largest nodes left are too few for some
//! resource or for all resources weighed together. From the witness the set with the smallest number is made: from the
//! highest node down, each one that the witness needs is left out if another witness exists among the lower ones.
//!
//! Bound: a search visits at most [`SEARCH_STEPS_MAX`] combinations; one that ends there counts as without witness. The
//! answer then may have a node more than the least, or not the smallest number; it always has enough.

use crate::placement::numa_mask::NumaMask;

/// How many combinations one search tries.
const SEARCH_STEPS_MAX: u32 = 1 << 11;

/// A node and what it has of each resource.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) node: u32,
    pub(super) amounts: &'a [u64],
}

/// The smallest set, of as many nodes the one with the smallest number, that includes `required` and has `demand`.
/// `None`: all together have not enough. `rows`: by ascending node, one for each node of `required` too. A set has at
/// least one node.
pub(super) fn smallest(rows: &[Row], demand: &[u64], required: NumaMask) -> Option<NumaMask> {
    let (required_rows, others): (Vec<Row>, Vec<Row>) =
        rows.iter().partition(|row| required.contains(row.node));
    let rest = required_rows
        .iter()
        .fold(demand.to_vec(), |rest, row| less(&rest, row.amounts));
    let least = u32::from(required.is_empty()).max(fewest(&others, &rest)?);
    let others_len = u32::try_from(others.len()).unwrap_or(u32::MAX);
    // With all others there is enough: `fewest` found that.
    let (size, mut found) =
        (least..=others_len).find_map(|size| Some((size, witness(&others, size, &rest)?)))?;
    // From here on: what is chosen and `found`, which has `left` nodes up to the one looked at, have enough.
    let (mut chosen, mut left, mut rest) = (required, size, rest);
    for (at, row) in others.iter().enumerate().rev() {
        let node = NumaMask::of(row.node);
        if !found.contains(row.node) {
            continue;
        }
        if let Some(without) = witness(&others[..at], left, &rest) {
            found = without;
            continue;
        }
        chosen = chosen | node;
        found = found - node;
        rest = less(&rest, row.amounts);
        left -= 1;
    }
    Some(chosen)
}

/// What is still wanted once this much is there.
fn less(wanted: &[u64], amounts: &[u64]) -> Vec<u64> {
    let pairs = wanted.iter().zip(amounts);
    pairs
        .map(|(wanted, amount)| wanted.saturating_sub(*amount))
        .collect()
}

/// The least number of nodes that each resource alone needs; `None` if all have not enough of one.
fn fewest(rows: &[Row], wanted: &[u64]) -> Option<u32> {
    let mut fewest = 0;
    for (at, wanted) in wanted.iter().enumerate() {
        let mut amounts: Vec<u64> = rows.iter().map(|row| row.amounts[at]).collect();
        amounts.sort_unstable_by(|a, b| b.cmp(a));
        let (mut sum, mut count) = (0u64, 0);
        let mut amounts = amounts.into_iter();
        while sum < *wanted {
            sum = sum.saturating_add(amounts.next()?);
            count += 1;
        }
        fewest = fewest.max(count);
    }
    Some(fewest)
}

/// A set of `size` nodes that has what is wanted.
fn witness(rows: &[Row], size: u32, wanted: &[u64]) -> Option<NumaMask> {
    if (rows.len() as u64) < u64::from(size) {
        return None;
    }
    let count = size as usize;
    let scarce: Vec<usize> = (0..wanted.len()).filter(|at| wanted[*at] > 0).collect();
    match scarce[..] {
        [] => Some(rows[..count].iter().map(|row| row.node).collect()),
        [only] => {
            let mut rows = rows.to_vec();
            rows.sort_by_key(|row| std::cmp::Reverse(row.amounts[only]));
            let amounts = rows[..count].iter().map(|row| row.amounts[only]);
            let enough = amounts.fold(0, u64::saturating_add) >= wanted[only];
            enough.then(|| rows[..count].iter().map(|row| row.node).collect())
        }
        _ => Search::new(rows, &scarce, wanted).run(size),
    }
}

/// Nodes with equal amounts.
struct Kind {
    /// Of each scarce resource, never more than is wanted.
    amounts: Vec<u64>,
    /// All resources weighed by how scarce they are.
    weight: u128,
    nodes: Vec<u32>,
}

/// A depth-first search over kinds, heaviest first.
struct Search {
    kinds: Vec<Kind>,
    wanted: Vec<u64>,
    /// For each resource, and last for the weight, the kinds by descending amount.
    order: Vec<Vec<usize>>,
    steps: u32,
}

/// What one resource counts for in [`Kind::weight`] when all that is wanted of it is there.
const WHOLE: u128 = 1 << 32;

impl Search {
    fn new(rows: &[Row], scarce: &[usize], wanted: &[u64]) -> Self {
        let wanted: Vec<u64> = scarce.iter().map(|at| wanted[*at]).collect();
        let mut kinds: Vec<Kind> = Vec::new();
        for row in rows {
            let pairs = scarce.iter().zip(&wanted);
            let amounts: Vec<u64> = pairs
                .map(|(at, wanted)| row.amounts[*at].min(*wanted))
                .collect();
            match kinds.iter_mut().find(|kind| kind.amounts == amounts) {
                Some(kind) => kind.nodes.push(row.node),
                None => kinds.push(Kind {
                    weight: weight(&amounts, &wanted),
                    amounts,
                    nodes: vec![row.node],
                }),
            }
        }
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.weight));
        let mut order: Vec<Vec<usize>> = Vec::new();
        for at in 0..wanted.len() {
            let mut by_amount: Vec<usize> = (0..kinds.len()).collect();
            by_amount.sort_by_key(|kind| std::cmp::Reverse(kinds[*kind].amounts[at]));
            order.push(by_amount);
        }
        Self {
            kinds,
            wanted,
            order,
            steps: 0,
        }
    }

    fn run(mut self, size: u32) -> Option<NumaMask> {
        let wanted = self.wanted.clone();
        self.descend(0, size, &wanted)
    }

    /// Whether the largest `size` nodes of the kinds from `from` on have enough, by each resource and by weight.
    fn is_hopeless(&self, from: usize, size: u32, wanted: &[u64]) -> bool {
        let short = |order: &mut dyn Iterator<Item = usize>,
                     amount: &dyn Fn(usize) -> u128,
                     wanted: u128| {
            let (mut left, mut sum) = (u128::from(size), 0u128);
            for kind in order.filter(|kind| *kind >= from) {
                let count = left.min(self.kinds[kind].nodes.len() as u128);
                sum += count * amount(kind);
                left -= count;
                if sum >= wanted || left == 0 {
                    break;
                }
            }
            sum < wanted
        };
        let by_resource = wanted.iter().enumerate().any(|(at, wanted)| {
            let amount = |kind: usize| u128::from(self.kinds[kind].amounts[at]);
            short(
                &mut self.order[at].iter().copied(),
                &amount,
                u128::from(*wanted),
            )
        });
        let by_weight = |kind: usize| self.kinds[kind].weight;
        by_resource
            || short(
                &mut (from..self.kinds.len()),
                &by_weight,
                least_weight(wanted, &self.wanted),
            )
    }

    fn descend(&mut self, from: usize, size: u32, wanted: &[u64]) -> Option<NumaMask> {
        self.steps += 1;
        if self.steps > SEARCH_STEPS_MAX || self.is_hopeless(from, size, wanted) {
            return None;
        }
        if wanted.iter().all(|wanted| *wanted == 0) {
            let left = self.kinds[from..].iter().flat_map(|kind| &kind.nodes);
            let nodes: Vec<u32> = left.copied().take(size as usize).collect();
            return (nodes.len() == size as usize).then(|| nodes.into_iter().collect());
        }
        let kind = self.kinds.get(from)?;
        let (nodes, amounts) = (kind.nodes.clone(), kind.amounts.clone());
        for count in (0..=nodes.len().min(size as usize)).rev() {
            let times = count as u64;
            let pairs = wanted.iter().zip(&amounts);
            let rest: Vec<u64> = pairs
                .map(|(wanted, amount)| wanted.saturating_sub(amount.saturating_mul(times)))
                .collect();
            // At most `size`, a number of nodes.
            let left = size - u32::try_from(count).unwrap_or(size);
            if let Some(others) = self.descend(from + 1, left, &rest) {
                return Some(others | nodes[..count].iter().copied().collect());
            }
        }
        None
    }
}

/// The amounts as parts of what was wanted at first, added up; rounded up, so that enough never looks too little.
fn weight(amounts: &[u64], wanted: &[u64]) -> u128 {
    let pairs = amounts.iter().zip(wanted);
    pairs
        .map(|(amount, wanted)| (u128::from(*amount) * WHOLE).div_ceil(u128::from(*wanted)))
        .sum()
}

/// The weight that nodes need at least that have `rest`: rounded down.
fn least_weight(rest: &[u64], wanted: &[u64]) -> u128 {
    let pairs = rest.iter().zip(wanted);
    pairs
        .map(|(rest, wanted)| u128::from(*rest) * WHOLE / u128::from(*wanted))
        .sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(amounts: &[Vec<u64>]) -> Vec<Row<'_>> {
        let numbered = (0u32..).zip(amounts);
        numbered
            .map(|(node, amounts)| Row { node, amounts })
            .collect()
    }

    fn enough(amounts: &[Vec<u64>], mask: NumaMask, demand: &[u64]) -> bool {
        (0..demand.len()).all(|at| {
            let sum: u64 = mask.iter().map(|node| amounts[node as usize][at]).sum();
            sum >= demand[at]
        })
    }

    #[test]
    fn sixty_four_nodes_of_a_few_kinds() {
        let mut amounts = vec![vec![4, 0]; 64];
        amounts[40] = vec![0, 7];
        amounts[63] = vec![4, 7];
        // One with both and three with memory alone; or the one with huge pages and four.
        let found = smallest(&rows(&amounts), &[16, 7], NumaMask::EMPTY).unwrap();
        assert_eq!(found, [0, 1, 2, 63].into_iter().collect());
        let found = smallest(&rows(&amounts), &[16, 7], NumaMask::of(40)).unwrap();
        assert_eq!(found, [0, 1, 2, 3, 40].into_iter().collect());
        assert_eq!(smallest(&rows(&amounts), &[253, 0], NumaMask::EMPTY), None);
    }

    proptest! {
        #[test]
        fn all_sets_have_nothing_smaller(
            amounts in prop::collection::vec(prop::collection::vec(0u64..12, 3), 1..9),
            demand in prop::collection::vec(0u64..30, 3),
            required in 0u64..512,
        ) {
            let all = (1u64 << amounts.len()) - 1;
            let required = NumaMask(required & all);
            let sets = (1..=all).map(NumaMask);
            let expected = sets
                .filter(|mask| required.is_subset(*mask) && enough(&amounts, *mask, &demand))
                .min_by_key(|mask| (mask.len(), *mask));
            prop_assert_eq!(smallest(&rows(&amounts), &demand, required), expected);
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// Where the search may end at its bound: what it finds has enough, and something is found if all together
        /// have.
        #[test]
        fn what_is_found_has_enough(
            amounts in prop::collection::vec(prop::collection::vec(0u64..1 << 40, 3), 64),
            demand in prop::collection::vec(0u64..1 << 45, 3),
        ) {
            let found = smallest(&rows(&amounts), &demand, NumaMask::EMPTY);
            prop_assert_eq!(found.is_some(), enough(&amounts, NumaMask(u64::MAX), &demand));
            if let Some(found) = found {
                prop_assert!(enough(&amounts, found, &demand));
            }
        }
    }
}
