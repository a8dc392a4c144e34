//! All masks of a few nodes at once: one place for each in an array.
//!
//! Which masks can arise as the intersection of one mask from each of several sets is a convolution over the lattice of
//! masks: with the number of masks in each set that contain a given one (a sum over supersets), a product counts the
//! choices whose masks all contain it, and taking the supersets off again leaves those whose intersection it is. For
//! *n* nodes that is *n·2ⁿ* additions per set where the product of the sets has *2ⁿ* to the power of how many they are.

use crate::placement::TopologyHint;
use crate::placement::hints::HintRule;
use crate::placement::numa_mask::NumaMask;

/// Masks of more nodes than this are not held all at once: 2¹⁶ places, half a megabyte per set.
pub(super) const LATTICE_NODES_MAX: u32 = 16;

/// The masks of some nodes; the *i*-th bit of a place is the *i*-th lowest of the nodes, so that places are in the
/// order of masks.
pub(super) struct Lattice {
    all: NumaMask,
    nodes: Vec<u32>,
    /// Whether they are numbered from 0 without gaps, so that a place is a mask.
    without_gaps: bool,
}

/// A set of masks: 1 at the places of those that are in it.
pub(super) type Masks = Vec<u64>;

impl Lattice {
    /// `None` if there are more nodes than that.
    pub(super) fn new(nodes: NumaMask, at_most: u32) -> Option<Self> {
        (nodes.len() <= at_most.min(LATTICE_NODES_MAX)).then(|| Self {
            all: nodes,
            nodes: nodes.iter().collect(),
            without_gaps: nodes == NumaMask((1 << nodes.len()) - 1),
        })
    }

    fn size(&self) -> usize {
        1 << self.nodes.len()
    }

    /// The place of the part of a mask that is here.
    fn place(&self, mask: NumaMask) -> usize {
        if self.without_gaps {
            // Of no more than 16 bits.
            return (mask & self.all).0 as usize;
        }
        let bits = self.nodes.iter().enumerate();
        bits.fold(0, |place, (bit, node)| {
            place | usize::from(mask.contains(*node)) << bit
        })
    }

    fn mask(&self, place: usize) -> NumaMask {
        if self.without_gaps {
            return NumaMask(place as u64);
        }
        let bits = self.nodes.iter().enumerate();
        let nodes = bits.filter(|(bit, _)| place >> bit & 1 == 1);
        nodes.map(|(_, node)| *node).collect()
    }

    /// The masks of a list, cut down to the nodes here; no mask stands for all of them.
    pub(super) fn of_list(&self, hints: &[TopologyHint]) -> Masks {
        let mut masks = vec![0; self.size()];
        for hint in hints {
            masks[self.place(hint.mask.unwrap_or(self.all))] = 1;
        }
        masks
    }

    /// The hints of a rule that are made of the nodes here.
    pub(super) fn of_rule(&self, rule: &HintRule) -> Masks {
        let also = rule.also.iter().copied();
        self.usable(
            rule,
            NumaMask::EMPTY,
            also.filter(|mask| mask.is_subset(self.all)),
        )
    }

    /// All hints of a rule, cut down to the nodes here. The largest mask with a given part here is the one that has all
    /// the nodes elsewhere, and if any fits, it does.
    pub(super) fn cut_down(&self, rule: &HintRule) -> Masks {
        self.usable(rule, rule.together - self.all, rule.also.iter().copied())
    }

    fn usable(
        &self,
        rule: &HintRule,
        elsewhere: NumaMask,
        also: impl Iterator<Item = NumaMask>,
    ) -> Masks {
        let mut masks = vec![1; self.size()];
        self.keep_fitting(rule, elsewhere, &mut masks);
        let together = self.place(rule.together);
        for (place, found) in masks.iter_mut().enumerate() {
            let several = place.count_ones() > 1 || (place != 0 && !elsewhere.is_empty());
            if place & !together != 0 || !several {
                *found = 0;
            }
        }
        for node in (rule.alone & self.all).iter().map(NumaMask::of) {
            if rule.fits(node) {
                masks[self.place(node)] = 1;
            }
        }
        for mask in also {
            masks[self.place(mask)] = 1;
        }
        masks
    }

    /// Drops the masks that, with the nodes elsewhere, do not meet every need.
    fn keep_fitting(&self, rule: &HintRule, elsewhere: NumaMask, masks: &mut Masks) {
        let mut amounts = vec![0_u64; self.size()];
        for need in &rule.needs {
            let mut of_node = vec![0_u64; self.nodes.len()];
            let mut of_several: Vec<(usize, u64)> = Vec::new();
            amounts[0] = 0;
            for supply in &need.supplies {
                let here = self.place(supply.nodes);
                if !(supply.nodes & elsewhere).is_empty() {
                    amounts[0] = amounts[0].saturating_add(supply.amount);
                } else if here.count_ones() == 1 {
                    let amount = &mut of_node[here.trailing_zeros() as usize];
                    *amount = amount.saturating_add(supply.amount);
                } else if here != 0 {
                    of_several.push((here, supply.amount));
                }
            }
            for place in 1..amounts.len() {
                let (rest, lowest) = (place & (place - 1), place.trailing_zeros() as usize);
                amounts[place] = amounts[rest].saturating_add(of_node[lowest]);
            }
            for (place, amount) in amounts.iter().enumerate() {
                let shared = of_several.iter().filter(|(nodes, _)| nodes & place != 0);
                let amount = shared.fold(*amount, |sum, (_, more)| sum.saturating_add(*more));
                if amount < need.demand {
                    masks[place] = 0;
                }
            }
        }
    }

    /// The masks that are in both sets.
    pub(super) fn in_both(mut a: Masks, b: &Masks) -> Masks {
        a.iter_mut().zip(b).for_each(|(a, b)| *a &= b);
        a
    }

    /// The masks that are an intersection of one from each set.
    ///
    /// No count overflows: a set has at most 2¹⁶ masks, and a product of two such counts fits 64 bits.
    pub(super) fn intersections(mut a: Masks, mut b: Masks) -> Masks {
        add_supersets(&mut a);
        add_supersets(&mut b);
        a.iter_mut().zip(&b).for_each(|(a, b)| *a *= b);
        take_supersets_off(&mut a);
        a.iter_mut().for_each(|count| *count = (*count).min(1));
        a
    }

    /// The masks of a set, except the empty one.
    pub(super) fn masks(&self, masks: &Masks) -> impl Iterator<Item = NumaMask> {
        let places = masks.iter().enumerate().skip(1);
        places
            .filter(|(_, count)| **count != 0)
            .map(|(place, _)| self.mask(place))
    }
}

/// Each place gets what is at all places that contain it.
fn add_supersets(counts: &mut Masks) {
    let mut half = 1;
    while half < counts.len() {
        for block in counts.chunks_exact_mut(2 * half) {
            let (without, with) = block.split_at_mut(half);
            without.iter_mut().zip(with).for_each(|(a, b)| *a += *b);
        }
        half *= 2;
    }
}

fn take_supersets_off(counts: &mut Masks) {
    let mut half = 1;
    while half < counts.len() {
        for block in counts.chunks_exact_mut(2 * half) {
            let (without, with) = block.split_at_mut(half);
            without.iter_mut().zip(with).for_each(|(a, b)| *a -= *b);
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(lattice: &Lattice, masks: &[u64]) -> Masks {
        let hints: Vec<_> = masks
            .iter()
            .map(|mask| TopologyHint {
                mask: Some(NumaMask(*mask)),
                preferred: true,
            })
            .collect();
        lattice.of_list(&hints)
    }

    #[test]
    fn intersections_are_those_of_the_product() {
        // Nodes with gaps: places are not masks.
        let lattice = Lattice::new(NumaMask(0b1011), 16).unwrap();
        let a = set(&lattice, &[0b0011, 0b1000]);
        let b = set(&lattice, &[0b1001, 0b1010]);
        let both: Vec<_> = lattice
            .masks(&Lattice::intersections(a, b))
            .map(|mask| mask.0)
            .collect();
        assert_eq!(both, [0b0001, 0b0010, 0b1000]);
    }

    #[test]
    fn too_many_nodes_have_no_lattice() {
        assert!(Lattice::new(NumaMask(0x1_ffff), 64).is_none());
    }
}
