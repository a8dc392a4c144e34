//! Where pods that request the same have room: the best fit, found without looking at all nodes each time.
//!
//! A scan of all nodes keeps the best of them in a heap, and how well the best of the others fits. A node on which something has changed since is looked
//! at again, and goes into the heap anew; what the heap still has of it is void. All nodes are scanned again only when what is left in the heap is worse than the others may be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Changes;

/// Nodes that a scan keeps.
const KEPT: usize = 1024;

/// How much of the cluster a pod leaves free on a node, and which; the least is the best.
pub(super) type Fit = (u64, usize);

/// The nodes with room for pods that request the same.
#[derive(Debug, Default)]
pub(super) struct Holes {
    known: BinaryHeap<Reverse<Fit>>,
    /// No node that is not in the heap fits better than this; nothing: no other node has room.
    others: Option<Fit>,
    /// Up to where changes are known; nothing: no node has been looked at.
    seen: Option<usize>,
}

impl Holes {
    /// The best fit. `nodes` are all that may be used. Of one with room `fit` computes how well it fits, and `at_least` a bound of that, cheaply.
    pub(super) fn best(
        &mut self,
        changes: &Changes,
        nodes: impl Iterator<Item = usize>,
        at_least: impl Fn(usize) -> Option<u64>,
        fit: impl Fn(usize) -> Option<Fit>,
    ) -> Option<usize> {
        if let Some(seen) = self.seen {
            let again = changes.since(seen).filter_map(&fit);
            self.known.extend(again.map(Reverse));
            self.seen = Some(changes.count());
            while let Some(Reverse(best)) = self.known.peek().copied() {
                if self.others.is_some_and(|other| other < best) {
                    break;
                }
                if fit(best.1) == Some(best) {
                    return Some(best.1);
                }
                self.known.pop();
            }
            self.others?;
        }
        self.seen = Some(changes.count());
        self.scan(nodes, at_least, fit);
        self.known.peek().map(|Reverse((_, node))| *node)
    }

    fn scan(
        &mut self,
        nodes: impl Iterator<Item = usize>,
        at_least: impl Fn(usize) -> Option<u64>,
        fit: impl Fn(usize) -> Option<Fit>,
    ) {
        let bound = |node| Some((at_least(node)?, node));
        let mut bounds: Vec<(u64, usize)> = Vec::with_capacity(nodes.size_hint().1.unwrap_or(0));
        bounds.extend(nodes.filter_map(bound));
        self.others = None;
        if bounds.len() > KEPT {
            let (_, (other, _), _) = bounds.select_nth_unstable(KEPT);
            self.others = Some((*other, 0));
            bounds.truncate(KEPT);
        }
        let kept = bounds.into_iter().filter_map(|(_, node)| fit(node));
        self.known = kept.map(Reverse).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes fill up and are emptied in a fixed scatter: always the same as a look at all of them.
    #[test]
    fn the_best_of_all_nodes() {
        let mut free: Vec<u64> = (0..3000).map(|node| node * 7919 % 101).collect();
        let (mut holes, mut changes) = (Holes::default(), Changes::new(3000));
        for turn in 0..20_000_usize {
            let fit = |node: usize| Some((free[node].checked_sub(5)?, node));
            let at_least = |node: usize| Some(free[node].checked_sub(5)?.saturating_sub(3));
            let plain = (0..free.len()).filter_map(fit).min().map(|(_, node)| node);
            assert_eq!(
                holes.best(&changes, 0..free.len(), at_least, fit),
                plain,
                "{turn}"
            );
            if let Some(node) = plain {
                free[node] -= 5;
                changes.note(node);
            }
            let other = turn * 37 % free.len();
            if turn % 3 == 0 {
                free[other] = turn as u64 * 31 % 60;
                changes.note(other);
            }
        }
    }
}
