//! The fewest NUMA nodes that a given number of devices are near to.
//!
//! Problem: the kubelet tries all sets of nodes. Where each device is near to one node, the nodes with most devices are
//! the answer; where some are near to several, finding it is a covering problem. Approach: a greedy answer, then a
//! search for fewer nodes, depth first, cut off where even the best nodes left cannot add enough.
//!
//! Bound: each search visits at most [`SEARCH_STEPS_MAX`] sets. The answer then may have more nodes than the least;
//! that many devices are near to it all the same.

use crate::placement::numa_mask::NumaMask;

/// How many sets one search examines.
const SEARCH_STEPS_MAX: u32 = 1 << 12;

/// A set of as few of `nodes` as possible that includes `required` and that `demand` of the devices are near to, or one
/// of at least one node. `near`: the nodes of each device. `None`: all nodes together have not enough.
pub(super) fn fewest(
    nodes: NumaMask,
    near: &[NumaMask],
    demand: usize,
    required: NumaMask,
) -> Option<NumaMask> {
    let near: Vec<NumaMask> = near.iter().map(|mask| *mask & nodes).collect();
    if reached(&near, nodes | required) < demand || nodes.is_empty() {
        return None;
    }
    let mut greedy = required;
    while reached(&near, greedy) < demand || greedy.is_empty() {
        let left = (nodes - greedy).iter().map(NumaMask::of);
        let best =
            left.max_by_key(|node| (reached(&near, greedy | *node), std::cmp::Reverse(*node)))?;
        greedy = greedy | best;
    }
    for size in required.len().max(1)..greedy.len() {
        let mut search = Search {
            near: &near,
            demand,
            steps: 0,
        };
        if let Some(found) = search.descend(required, nodes - required, size - required.len()) {
            return Some(found);
        }
    }
    Some(greedy)
}

/// How many devices are near to a node of the mask.
pub(super) fn reached(near: &[NumaMask], mask: NumaMask) -> usize {
    near.iter()
        .filter(|nodes| !(**nodes & mask).is_empty())
        .count()
}

/// A search for a set of a given size.
struct Search<'a> {
    near: &'a [NumaMask],
    demand: usize,
    steps: u32,
}

impl Search<'_> {
    /// Adds `size` nodes of `left` to `chosen`, lowest first.
    fn descend(&mut self, chosen: NumaMask, left: NumaMask, size: u32) -> Option<NumaMask> {
        self.steps += 1;
        let have = reached(self.near, chosen);
        if size == 0 {
            return (have >= self.demand).then_some(chosen);
        }
        if self.steps > SEARCH_STEPS_MAX || left.len() < size {
            return None;
        }
        let others: Vec<NumaMask> = self
            .near
            .iter()
            .copied()
            .filter(|nodes| (*nodes & chosen).is_empty())
            .collect();
        let mut gains: Vec<usize> = left
            .iter()
            .map(|node| reached(&others, NumaMask::of(node)))
            .collect();
        gains.sort_unstable_by(|a, b| b.cmp(a));
        // Devices near to two nodes count for both here, so that the sum is never too small.
        if have + gains.iter().take(size as usize).sum::<usize>() < self.demand {
            return None;
        }
        let node = NumaMask::of(left.iter().next()?);
        let with = self.descend(chosen | node, left - node, size - 1);
        with.or_else(|| self.descend(chosen, left - node, size))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_set_is_smaller(
            near in prop::collection::vec(0u64..64, 0..10),
            demand in 0usize..10,
            required in 0u64..64,
        ) {
            let near: Vec<NumaMask> = near.into_iter().map(NumaMask).collect();
            let (nodes, required) = (NumaMask(63), NumaMask(required));
            let sets = (1..64).map(NumaMask);
            let least = sets
                .filter(|set| required.is_subset(*set) && reached(&near, *set) >= demand)
                .map(NumaMask::len)
                .min();
            let found = fewest(nodes, &near, demand, required);
            prop_assert_eq!(found.map(NumaMask::len), least);
            if let Some(found) = found {
                prop_assert!(required.is_subset(found) && reached(&near, found) >= demand);
            }
        }
    }

    #[test]
    fn many_nodes_end_at_the_bound() {
        let near: Vec<NumaMask> = (0..64u32)
            .map(|at| {
                [at, (at * 7 + 3) % 64, (at * 11 + 5) % 64]
                    .into_iter()
                    .collect()
            })
            .collect();
        let found = fewest(NumaMask(u64::MAX), &near, 64, NumaMask::EMPTY).unwrap();
        assert_eq!(reached(&near, found), 64);
        assert!((22..=32).contains(&found.len()), "{}", found.len());
    }
}
