//! The best mask that is an intersection of one hint of each resource.

use std::collections::BTreeSet;

use super::exclusion::Exclusion;
use super::lattice::Lattice;
use super::order::Order;
use super::{Bounds, Choices, NumaInfo};
use crate::placement::hints::search::{Steps, best_of_size};
use crate::placement::hints::{HintRule, Need};
use crate::placement::numa_mask::NumaMask;

/// More intersections of masks that stand for themselves are not followed, on machines too large for a lattice.
const PARTS_MAX: usize = 4096;

/// The best intersection that is not empty.
pub(super) fn best(
    resources: &[Choices<'_>],
    numa: &NumaInfo,
    order: Order<'_>,
    bounds: &mut Bounds,
) -> Option<NumaMask> {
    // No intersection has a node that one resource never has.
    let nodes = resources
        .iter()
        .fold(numa.nodes, |nodes, choices| nodes & choices.nodes());
    if nodes.is_empty() {
        return None;
    }
    let Some(lattice) = Lattice::new(nodes, bounds.lattice_nodes) else {
        return of_many_nodes(resources, nodes, order, &mut bounds.steps);
    };
    let sets = resources.iter().map(|choices| match choices {
        Choices::List(hints) => lattice.of_list(hints),
        Choices::Rule(rule) => lattice.cut_down(rule),
    });
    match sets.reduce(Lattice::intersections) {
        Some(masks) => order.best(lattice.masks(&masks)),
        None => Some(nodes),
    }
}

/// Some hints of each resource: the intersection of masks that stand for themselves, and the rules (by their place) of
/// which masks of several nodes are chosen, which may be any that fit.
type Part = (NumaMask, Vec<usize>);

fn of_many_nodes(
    resources: &[Choices<'_>],
    nodes: NumaMask,
    order: Order<'_>,
    steps: &mut Steps,
) -> Option<NumaMask> {
    let mut parts: BTreeSet<Part> = BTreeSet::from([(nodes, Vec::new())]);
    for (at, choices) in resources.iter().enumerate() {
        let mut next = BTreeSet::new();
        for (mask, rules) in &parts {
            let mut add = |with: NumaMask, rules: Vec<usize>| {
                let mask = *mask & with;
                if mask.is_empty() {
                } else if next.len() < PARTS_MAX {
                    next.insert((mask, rules));
                } else {
                    steps.cut_short();
                }
            };
            match choices {
                Choices::List(hints) => {
                    for hint in *hints {
                        add(hint.mask.unwrap_or(nodes), rules.clone());
                    }
                }
                Choices::Rule(rule) => {
                    if rule.together.len() > 1 && rule.fits(rule.together) {
                        add(rule.together, rules.iter().copied().chain([at]).collect());
                    }
                    rule.also.iter().for_each(|mask| add(*mask, rules.clone()));
                    let alone = rule.alone.iter().map(NumaMask::of);
                    let fitting = alone.filter(|node| rule.fits(*node));
                    fitting.for_each(|node| add(node, rules.clone()));
                }
            }
        }
        parts = next;
    }
    let mut best = None;
    // Parts that stand for themselves first: they need no search, and spare others theirs.
    for rules_chosen in [false, true] {
        for (mask, rules) in parts
            .iter()
            .filter(|(_, rules)| rules.is_empty() != rules_chosen)
        {
            let rules = rules.iter().filter_map(|at| resources[*at].rule());
            let found = of_part(*mask, &rules.collect::<Vec<_>>(), best, order, steps);
            best = order.best(best.into_iter().chain(found));
        }
    }
    best
}

/// The best mask of a part. If the rules allow some mask, they allow every larger one: so if the size aimed at cannot
/// be had, no smaller one can.
fn of_part(
    part: NumaMask,
    rules: &[&HintRule],
    best: Option<NumaMask>,
    order: Order<'_>,
    steps: &mut Steps,
) -> Option<NumaMask> {
    if rules.is_empty() || part.len() <= order.target {
        return Some(part);
    }
    for size in order.target.max(1)..=part.len() {
        if best.is_some_and(|best| order.by_size(best.len()) < order.by_size(size)) {
            return None;
        }
        // A mask of a rule that is chosen here has two nodes or more, which is news only if the result has one.
        let two: Vec<[Need; 1]> = rules.iter().map(|rule| [two_of(rule)]).collect();
        let constrained = rules.iter().zip(&two).map(|(rule, two)| {
            let more: &[Need] = if size == 1 && rule.alone != rule.together {
                two
            } else {
                &[]
            };
            (*rule, more)
        });
        let mut exclusion = Exclusion::new(
            part,
            &constrained.collect::<Vec<_>>(),
            order.distances.is_none(),
        );
        let found = best_of_size(&mut exclusion, size, order.distances, steps);
        if exclusion.dropped_shares() {
            steps.cut_short();
        }
        if found.is_some() {
            return found;
        }
    }
    // Only if the steps ran out: each rule's mask of all its nodes fits.
    Some(part)
}

fn two_of(rule: &HintRule) -> Need {
    Need::per_node(2, rule.together.iter().map(|node| (node, 1)))
}
