//! Where pods that are alike have room: the best fit, found without a look at all nodes each time.
//!
//! How well a pod fits is, but for rounding, what is free on the node less what the pod requests, as parts of the
//! cluster. So for all pods that request the same resources the [`Order`] of nodes is the same, and is made once. Pods
//! that are alike go along it, each node once, as far as they need: nodes with room go into a heap. A node on which
//! something has changed since is looked at again, and goes into the heap anew; what the heap still has of it is void.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use super::Changes;
use super::free::{Free, Parts};

/// How much of the cluster a pod leaves free on a node, and which; the least is the best.
type Fit = (u64, usize);

/// Nodes by how much of the cluster is free on them, for pods that request the same resources.
#[derive(Debug)]
pub(super) struct Order {
    /// The least first.
    nodes: Vec<(u64, usize)>,
    /// How many changes there had been.
    pub(super) seen: usize,
}

impl Order {
    /// Of these nodes, by what is free of these resources.
    pub(super) fn new(
        nodes: impl Iterator<Item = usize>,
        resources: &[usize],
        free: &Free,
        seen: usize,
    ) -> Self {
        let sum = |node: usize| {
            let parts = free.parts(node);
            resources.iter().map(|at| parts[*at]).sum()
        };
        let mut nodes: Vec<(u64, usize)> = nodes.map(|node| (sum(node), node)).collect();
        nodes.sort_unstable();
        Self { nodes, seen }
    }
}

/// What pods that are alike ask of a node.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// The resources that they request, and how much; without what no node has.
    needs: Vec<(usize, u64)>,
    /// How much of the cluster that is, in 2⁻³², rounded up.
    part: u64,
}

impl Wanted {
    pub(super) fn new(needs: Vec<(usize, u64)>, parts: &[Parts]) -> Self {
        let part = |(at, request): &(usize, u64)| parts[*at].part(*request) + 1;
        Self {
            part: needs.iter().map(part).sum(),
            needs,
        }
    }

    /// The resources that they request.
    pub(super) fn resources(&self) -> Vec<usize> {
        self.needs.iter().map(|(resource, _)| *resource).collect()
    }

    /// How well a pod fits on a node, if there is room.
    pub(super) fn fit(&self, free: &Free, parts: &[Parts], node: usize) -> Option<Fit> {
        let room = free.room(node);
        let mut needs = self.needs.iter();
        needs.all(|(at, request)| room[*at] >= *request).then(|| {
            let rest = |(at, request): &(usize, u64)| parts[*at].part(room[*at] - request);
            (self.needs.iter().map(rest).sum(), node)
        })
    }

    /// At least so much is left free where so much was: what is rounded down twice can be one less.
    fn at_least(&self, free: u64) -> u64 {
        free.saturating_sub(self.part)
    }
}

/// The nodes with room for pods that are alike.
#[derive(Debug)]
pub(super) struct Holes {
    order: Rc<Order>,
    /// Up to where it was gone along.
    next: usize,
    /// Those with room, and all that have changed.
    known: BinaryHeap<Reverse<Fit>>,
    /// Up to where changes are known.
    seen: usize,
}

impl Holes {
    pub(super) fn new(order: Rc<Order>) -> Self {
        Self {
            seen: order.seen,
            order,
            next: 0,
            known: BinaryHeap::new(),
        }
    }

    /// How many nodes are remembered.
    pub(super) fn places(&self) -> usize {
        self.known.len()
    }

    /// The best fit. `may_use` says of a node that has changed whether such pods may use it.
    pub(super) fn best(
        &mut self,
        changes: &Changes,
        wanted: &Wanted,
        may_use: impl Fn(usize) -> bool,
        fit: impl Fn(usize) -> Option<Fit>,
    ) -> Option<usize> {
        let changed = changes.since(self.seen).filter(|node| may_use(*node));
        self.known.extend(changed.filter_map(&fit).map(Reverse));
        self.seen = changes.count();
        loop {
            let best = self.known.peek().map(|Reverse(best)| *best);
            match self.order.nodes.get(self.next) {
                Some((free, node)) if best.is_none_or(|best| wanted.at_least(*free) <= best.0) => {
                    self.next += 1;
                    self.known.extend(fit(*node).map(Reverse));
                }
                _ => {
                    let best = best?;
                    if fit(best.1) == Some(best) {
                        return Some(best.1);
                    }
                    self.known.pop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::free_of;
    use super::*;

    /// Nodes fill up and are emptied in a fixed scatter: always the same as a look at all of them.
    #[test]
    fn the_best_of_all_nodes() {
        const CAPACITY: u64 = 300_007;
        let rows: Vec<[u64; 2]> = (0..3000)
            .map(|node| [node * 7919 % 101, node * 104_729 % 53])
            .collect();
        let parts = [CAPACITY, CAPACITY / 2].map(|capacity| Parts::of(Some(capacity)));
        let mut free = free_of(&rows, &parts);
        let mut changes = Changes::new(rows.len());
        let kinds = [[5, 1], [20, 3], [1, 30]].map(|[one, other]| vec![(0, one), (1, other)]);
        let mut kinds = kinds.map(|needs| {
            let order = Order::new(0..rows.len(), &[0, 1], &free, 0);
            (Wanted::new(needs, &parts), Holes::new(Rc::new(order)))
        });
        for turn in 0..20_000_usize {
            let (wanted, holes) = &mut kinds[turn % 3];
            let fit = |node: usize| wanted.fit(&free, &parts, node);
            let plain = (0..rows.len()).filter_map(fit).min().map(|(_, node)| node);
            assert_eq!(holes.best(&changes, wanted, |_| true, fit), plain, "{turn}");
            if let Some(node) = plain {
                let requests: Vec<u64> = wanted.needs.iter().map(|(_, request)| *request).collect();
                free.change(node, super::super::subtract, &requests, &parts);
                changes.note(node);
            }
            if turn % 3 == 0 {
                let other = turn * 37 % rows.len();
                let room = [turn as u64 * 31 % 60, turn as u64 * 17 % 40];
                free.change(other, super::super::add, &room, &parts);
                changes.note(other);
            }
        }
    }
}
