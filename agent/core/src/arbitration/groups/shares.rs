//! What the children of a node get (`docs/reference/arbitrator.md`, "Who deserves how much").

use super::Tree;
use crate::arbitration::amounts::{Amounts, Bounds, Table};
use crate::arbitration::fill::{Claimant, ClassEnd, Room, fill};

/// The weight of the whole cluster in the last filling, of which each leaf has its part.
const WHOLE_WEIGHT: u64 = 1_000_000;

impl Tree<'_> {
    /// From the root down: what each leaf gets.
    pub(super) fn share(&mut self) {
        let whole = self.whole.clone();
        self.divide(self.cluster(), &whole);
    }

    /// Divides what a node has to give among its children, and theirs; what the leaves below it get.
    fn divide(&mut self, node: usize, given: &Bounds) -> Amounts {
        let children = self.sharers(node);
        let claimants = self.claimants(&children);
        let filled = fill(
            &claimants,
            Room {
                whole: &self.whole,
                given,
            },
        );
        if filled.shortage.iter().any(|short| *short > 0) {
            self.shortages[node] = Some(filled.shortage.clone());
        }
        let mut left: Bounds = given.clone();
        for amounts in filled.amounts.rows() {
            for (left, amount) in left.iter_mut().zip(amounts) {
                *left = left.map(|left| left.saturating_sub(*amount));
            }
        }
        let mut sum: Amounts = vec![0; given.len()].into();
        for (at, child) in children.into_iter().enumerate() {
            let amounts = filled.amounts.row(at);
            if self.is_group(child) {
                self.amounts[child] = self.divide_group(child, amounts, &mut left);
            } else {
                self.give(child, amounts, filled.ends(at));
            }
            for (sum, got) in sum.iter_mut().zip(&self.amounts[child]) {
                *sum = sum.saturating_add(*got);
            }
        }
        sum
    }

    /// What a leaf gets. If there are groups, how it ended shows only in the last filling.
    fn give(&mut self, leaf: usize, amounts: &[u64], ends: &[ClassEnd]) {
        self.amounts[leaf].copy_from_slice(amounts);
        if !self.has_groups {
            self.ends[leaf] = ends.to_vec();
        }
    }

    /// Divides what a group got, and what it may take of what is left over at its level; the rest goes back.
    fn divide_group(&mut self, group: usize, amounts: &[u64], left: &mut Bounds) -> Amounts {
        let given: Bounds = (0..left.len())
            .map(|resource| {
                let amount = amounts[resource];
                match left[resource] {
                    Some(left) => Some(amount + self.may_take(group, amounts, resource).min(left)),
                    None => self.consumers[group].hard[resource].map(|_| amount),
                }
            })
            .collect();
        let got = self.divide(group, &given);
        for resource in 0..left.len() {
            if let (Some(left), Some(_)) = (&mut left[resource], given[resource]) {
                *left = (*left + amounts[resource]).saturating_sub(got[resource]);
            }
        }
        got
    }

    /// How much more of a resource a group may take: up to the same share of the whole as it has of its dominant
    /// resource, within its `hard`. That costs no sibling a share, and lets members run whose mix is not the group's.
    fn may_take(&self, group: usize, amounts: &[u64], resource: usize) -> u64 {
        let Some(whole) = self.whole[resource] else {
            return 0;
        };
        let shares = amounts
            .iter()
            .zip(&self.whole)
            .filter_map(|(amount, whole)| Some((*amount, whole.filter(|whole| *whole > 0)?)));
        let dominant = shares.fold((0, 1), |greatest: (u64, u64), share| {
            let is_greater = u128::from(share.0) * u128::from(greatest.1)
                > u128::from(greatest.0) * u128::from(share.1);
            if is_greater { share } else { greatest }
        });
        let same_share = u128::from(dominant.0) * u128::from(whole) / u128::from(dominant.1);
        let same_share = u64::try_from(same_share).unwrap_or(u64::MAX);
        let hard = self.consumers[group].hard[resource].unwrap_or(u64::MAX);
        same_share.min(hard).saturating_sub(amounts[resource])
    }

    /// One filling over all leaves, in which each has for sure what it has, and does not pass it where a group above it
    /// has a `hard`.
    pub(super) fn fill_leaves(&mut self) {
        let weights = self.leaf_weights();
        let leaves: Vec<usize> = (0..self.cluster())
            .filter(|at| !self.is_group(*at) && !self.consumers[*at].unlimited)
            .collect();
        let mut caps = Table::new(leaves.len(), self.whole.len(), None);
        for (at, leaf) in leaves.iter().enumerate() {
            self.cap(*leaf, caps.row_mut(at));
        }
        let claimants: Vec<Claimant<'_>> = leaves
            .iter()
            .enumerate()
            .map(|(at, leaf)| Claimant {
                weight: weights[*leaf],
                demand: &self.demands[*leaf],
                floor: &self.amounts[*leaf],
                caps: caps.row(at),
                used: &self.used[*leaf],
            })
            .collect();
        let filled = fill(
            &claimants,
            Room {
                whole: &self.whole,
                given: &self.whole,
            },
        );
        for (at, leaf) in leaves.into_iter().enumerate() {
            self.amounts[leaf].copy_from_slice(filled.amounts.row(at));
            self.ends[leaf] = filled.ends(at).to_vec();
        }
    }

    /// The caps of a leaf: what it has, of resources where a group above it has a `hard`.
    fn cap(&self, leaf: usize, caps: &mut [Option<u64>]) {
        let mut above = self.consumers[leaf].parent;
        while let Some(group) = above {
            for (resource, cap) in caps.iter_mut().enumerate() {
                if self.consumers[group].hard[resource].is_some() {
                    *cap = Some(self.amounts[leaf][resource]);
                }
            }
            above = self.consumers[group].parent;
        }
    }

    /// Each Consumer's part of its parent's weight, by its weight among the siblings that ask for anything.
    fn leaf_weights(&self) -> Vec<u64> {
        let asks = |at: &usize| !self.consumers[*at].unlimited && !self.demands[*at].is_nothing();
        let sum = |node: usize| {
            self.children[node]
                .iter()
                .filter(|at| asks(at))
                .map(|at| self.consumers[*at].weight)
                .sum::<u64>()
        };
        let sums: Vec<u64> = (0..=self.cluster()).map(sum).collect();
        let mut weights = vec![1; self.cluster()];
        for at in &self.from_the_root {
            let parent = self.consumers[*at].parent;
            let above = parent.map_or(WHOLE_WEIGHT, |parent| weights[parent]);
            let siblings = sums[parent.unwrap_or(self.cluster())];
            // Who asks for nothing is not among the siblings, and may weigh more than all of them.
            let part = above.saturating_mul(self.consumers[*at].weight);
            weights[*at] = part.checked_div(siblings).unwrap_or(1).max(1);
        }
        weights
    }
}
