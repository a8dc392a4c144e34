//! The best mask of a given size, found node by node.
//!
//! Problem: of all masks with so many nodes that pass some test, the smallest number, or the closest nodes, without
//! looking at all of them. Approach: decide node by node, from the highest to the lowest, first without the node and
//! then with it. So masks come up in the order of their numbers, and the first that passes is the smallest. A branch is
//! left when the test says that nothing in it can pass ([`Test`]), or when its nodes are further apart than the best
//! found so far.
//!
//! In theory this is exponential: to cover demands of several resources, or to pick the closest of many nodes, is
//! NP-hard. Every decision therefore costs a step of a budget ([`Steps`]), and an answer that was cut short says so.
//!
//! Why there is no exact search for the closest nodes beside it: with two distances, near and far, the closest *k* of
//! *n* nodes are a clique of *k* wherever there is one, so that no method is both exact and bounded for every table.
//! Tables of real machines are hierarchies (package, drawer, hop), and there a table of the best sum by subtree and
//! count would do, but only if every node has the same to give: with needs, the entry would have to hold every sum of
//! CPUs, bytes and devices that a subtree can come to, which is the knapsack again. What is cut short in practice is
//! half or more of 64 nodes.

use crate::placement::numa_distances::NumaDistances;
use crate::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};

/// Decisions that one merge may take: a few milliseconds.
pub(crate) const STEPS_MAX: u32 = 1 << 15;

/// What is left of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steps {
    left: u32,
    cut_short: bool,
}

impl Steps {
    pub(crate) fn new(left: u32) -> Self {
        Self {
            left,
            cut_short: false,
        }
    }

    /// Whether that many were left. If not, nothing is left, and what is found from now on may not be the best.
    pub(crate) fn take(&mut self, steps: u32) -> bool {
        let left = self.left.checked_sub(steps);
        self.cut_short |= left.is_none();
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Something was left undone for another bound.
    pub(crate) fn cut_short(&mut self) {
        self.cut_short = true;
    }

    pub(crate) fn are_spent(self) -> bool {
        self.cut_short
    }
}

/// What a mask must pass. Decisions are made in the order of places, highest node first, and are taken back by making
/// another one at the same or an earlier place.
pub(crate) trait Test {
    /// The nodes that masks are made of, highest first.
    fn nodes(&self) -> &[u32];
    /// Leaves the node out; `wanted` more are to come from the places after it. False if that cannot pass.
    fn without(&mut self, place: usize, wanted: usize) -> bool;
    /// Takes the node in, likewise.
    fn with(&mut self, place: usize, wanted: usize) -> bool;
    /// Whether the mask passes, once all nodes are decided.
    fn passes(&self, mask: NumaMask) -> bool;
    /// How many steps a decision at this place costs.
    fn effort(&self, place: usize) -> u32;
}

/// The best mask with `size` nodes that passes: the closest nodes, if distances are given, and of those the smallest
/// number.
///
/// If the steps run out, the best that was found, or none.
pub(crate) fn best_of_size<T: Test>(
    test: &mut T,
    size: u32,
    distances: Option<&NumaDistances>,
    steps: &mut Steps,
) -> Option<NumaMask> {
    let nodes = test.nodes().to_vec();
    let wanted = size as usize;
    if wanted == 0 || wanted > nodes.len() {
        return None;
    }
    let mut search = Search {
        closeness: distances.map(|distances| Closeness::new(distances, &nodes)),
        nodes,
        test,
        best: None,
        steps,
    };
    search.decide(0, NumaMask::EMPTY, wanted);
    search.best.map(|(_, mask)| mask)
}

struct Search<'a, T> {
    nodes: Vec<u32>,
    test: &'a mut T,
    closeness: Option<Closeness<'a>>,
    best: Option<(u64, NumaMask)>,
    steps: &'a mut Steps,
}

impl<T: Test> Search<'_, T> {
    /// Decides all places from this one on. True if the search is over.
    fn decide(&mut self, place: usize, mask: NumaMask, wanted: usize) -> bool {
        let Some(node) = self.nodes.get(place).copied() else {
            return self.found(mask);
        };
        let left = self.nodes.len() - place;
        // Bounding looks at the distances between all nodes left and all taken.
        let bounding = match self.closeness {
            Some(_) => left * (mask.len() as usize + 4) / 32 + 1,
            None => 0,
        };
        let bounding = u32::try_from(bounding).unwrap_or(u32::MAX);
        if !self.steps.take(self.test.effort(place) + bounding) {
            return true;
        }
        if let (Some(closeness), Some((best, _))) = (&self.closeness, self.best)
            && closeness.at_least(place, mask, wanted) >= best
        {
            return false;
        }
        if left > wanted && self.test.without(place, wanted) && self.decide(place + 1, mask, wanted)
        {
            return true;
        }
        wanted > 0
            && self.test.with(place, wanted - 1)
            && self.decide(place + 1, mask | NumaMask::of(node), wanted - 1)
    }

    fn found(&mut self, mask: NumaMask) -> bool {
        if !self.test.passes(mask) {
            return false;
        }
        let sum = self
            .closeness
            .as_ref()
            .map_or(0, |closeness| closeness.distances.sum(mask));
        // Masks come in ascending order: of as close ones the first stays.
        if self.best.is_none_or(|(best, _)| sum < best) {
            self.best = Some((sum, mask));
        }
        self.closeness.is_none()
    }
}

/// How close the nodes of a mask can at best be, when some are decided.
struct Closeness<'a> {
    distances: &'a NumaDistances,
    nodes: Vec<u32>,
    /// By place and count: the sum of that many of the shortest distances from the node to others.
    nearest: Vec<Vec<u64>>,
}

impl<'a> Closeness<'a> {
    fn new(distances: &'a NumaDistances, nodes: &[u32]) -> Self {
        let nearest = |from: &u32| -> Vec<u64> {
            let others = nodes.iter().filter(|to| *to != from);
            let mut row: Vec<u64> = others
                .map(|to| distances.between(*from, *to).into())
                .collect();
            row.sort_unstable();
            let sums = row.iter().scan(0, |sum, distance| {
                *sum += distance;
                Some(*sum)
            });
            std::iter::once(0).chain(sums).collect()
        };
        Self {
            distances,
            nearest: nodes.iter().map(nearest).collect(),
            nodes: nodes.to_vec(),
        }
    }

    /// A bound from below of the sum of distances, with `wanted` more nodes from this place on. Each of them adds its
    /// distances to and from the nodes decided, to itself, and to the other new ones, for which the nearest nodes of
    /// all stand in.
    fn at_least(&self, place: usize, mask: NumaMask, wanted: usize) -> u64 {
        let mut added = [0_u64; NUMA_NODES_MAX as usize];
        let left = &self.nodes[place..];
        let added = &mut added[..left.len()];
        for ((added, node), nearest) in added.iter_mut().zip(left).zip(&self.nearest[place..]) {
            let both_ways = |other| {
                u64::from(self.distances.between(*node, other))
                    + u64::from(self.distances.between(other, *node))
            };
            *added = mask.iter().map(both_ways).sum::<u64>()
                + u64::from(self.distances.between(*node, *node))
                + nearest[wanted.saturating_sub(1)];
        }
        if wanted > 0 && wanted < added.len() {
            added.select_nth_unstable(wanted - 1);
        }
        self.distances.sum(mask) + added.iter().take(wanted).sum::<u64>()
    }
}
