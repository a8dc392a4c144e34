//! The best mask on which all providers agree, and which all of them prefer.

use super::lattice::Lattice;
use super::order::Order;
use super::{Bounds, Choices, NumaInfo};
use crate::placement::hints::cover::{Cover, Sockets};
use crate::placement::hints::search::{Steps, best_of_size};
use crate::placement::hints::{HintRule, Preference};
use crate::placement::numa_mask::NumaMask;

/// The best preferred mask, cut down to the machine's nodes; `None` if no merged hint is preferred.
pub(super) fn best(
    resources: &[Choices<'_>],
    numa: &NumaInfo,
    bounds: &mut Bounds,
) -> Option<NumaMask> {
    // Fewer nodes are better among preferred masks: no number of them is aimed at.
    let order = Order {
        target: 0,
        distances: numa.distances.as_ref(),
    };
    let merged = |mask: NumaMask| Some(mask & numa.nodes).filter(|mask| !mask.is_empty());
    let binding = || resources.iter().filter(|choices| !choices.prefer_any());
    let lists = binding().filter_map(Choices::list);
    let Some(shortest) = lists.map(preferred_masks).min_by_key(Vec::len) else {
        let rules: Vec<&HintRule> = binding().filter_map(Choices::rule).collect();
        if !rules.is_empty() {
            return of_rules(&rules, numa, order, bounds);
        }
        // Each resource may be anywhere, so each may follow another's list, or all of them none.
        let masks = resources
            .iter()
            .filter_map(Choices::list)
            .flat_map(preferred_masks);
        return order.best(std::iter::once(numa.nodes).chain(masks.filter_map(merged)));
    };
    let agreed = binding().fold(shortest, |mut masks, choices| {
        match choices {
            Choices::List(hints) => {
                let others = preferred_masks(hints);
                masks.retain(|mask| others.binary_search(mask).is_ok());
            }
            Choices::Rule(rule) => masks.retain(|mask| is_preferred(rule, *mask)),
        }
        masks
    });
    order.best(agreed.into_iter().filter_map(merged))
}

/// In ascending order.
fn preferred_masks(hints: &[crate::placement::TopologyHint]) -> Vec<NumaMask> {
    let preferred = hints.iter().filter(|hint| hint.preferred);
    let mut masks: Vec<NumaMask> = preferred.filter_map(|hint| hint.mask).collect();
    masks.sort_unstable();
    masks
}

pub(super) fn is_preferred(rule: &HintRule, mask: NumaMask) -> bool {
    rule.preference.includes(mask) && rule.contains(mask)
}

/// The best mask that is preferred by all these rules.
fn of_rules(
    rules: &[&HintRule],
    numa: &NumaInfo,
    order: Order<'_>,
    bounds: &mut Bounds,
) -> Option<NumaMask> {
    let shared = |nodes: fn(&HintRule) -> NumaMask| {
        let sets = rules.iter().map(|rule| nodes(rule));
        sets.reduce(|a, b| a & b).unwrap_or(NumaMask::EMPTY)
    };
    let nodes = shared(HintRule::nodes);
    if let Some(lattice) = Lattice::new(nodes, bounds.lattice_nodes) {
        let sets = rules.iter().map(|rule| lattice.of_rule(rule));
        let agreed = sets.reduce(|a, b| Lattice::in_both(a, &b))?;
        let preferred = lattice
            .masks(&agreed)
            .filter(|mask| rules.iter().all(|rule| rule.preference.includes(*mask)));
        let merged = preferred.map(|mask| mask & numa.nodes);
        return order.best(merged.filter(|mask| !mask.is_empty()));
    }
    if !nodes.is_subset(numa.nodes) {
        // Masks that reach beyond the machine's nodes would have to be compared by the part within. No provider has
        // such.
        bounds.steps.cut_short();
    }
    let nodes = nodes & numa.nodes;
    let single = nodes.iter().map(NumaMask::of);
    let also = rules.iter().flat_map(|rule| rule.also.iter().copied());
    let unshared = single.chain(also.filter(|mask| mask.is_subset(nodes)));
    let agreed = unshared.filter(|mask| rules.iter().all(|rule| is_preferred(rule, *mask)));
    let unshared = order.best(agreed);
    let together = shared(|rule| rule.together) & numa.nodes;
    let largest = unshared.map_or(together.len(), |mask| mask.len().min(together.len()));
    let several = of_several_nodes(rules, together, largest, order, &mut bounds.steps);
    order.best(unshared.into_iter().chain(several))
}

/// The best mask of two nodes or more, and of no more than `largest`, that all rules allow for its nodes and prefer.
fn of_several_nodes(
    rules: &[&HintRule],
    together: NumaMask,
    largest: u32,
    order: Order<'_>,
    steps: &mut Steps,
) -> Option<NumaMask> {
    let cover = |sockets| {
        let cover = Cover::new(together, rules.iter().flat_map(|rule| &rule.needs), sockets);
        match order.distances {
            Some(_) => cover.without_dominance(),
            None => cover,
        }
    };
    // A size for which sockets decide is not one that all rules prefer by itself; mostly one cover serves.
    let mut last: Option<(Vec<Sockets<'_>>, Cover<'_>)> = None;
    for size in 2..=largest {
        let Some(sockets) = sockets_for(rules, size) else {
            continue;
        };
        let (_, cover) = match &mut last {
            Some(last) if last.0 == sockets => last,
            last => last.insert((sockets.clone(), cover(sockets))),
        };
        if size < cover.least_size() {
            continue;
        }
        let found = best_of_size(cover, size, order.distances, steps);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// What else makes a mask of this size preferred by all rules; `None` if nothing does.
fn sockets_for<'a>(rules: &[&'a HintRule], size: u32) -> Option<Vec<Sockets<'a>>> {
    let mut sockets = Vec::new();
    for rule in rules {
        match &rule.preference {
            Preference::Nodes(nodes) | Preference::NodesOrSockets { nodes, .. }
                if *nodes == size => {}
            Preference::Nodes(_) => return None,
            Preference::NodesOrSockets {
                sockets: spanned,
                nodes_of_sockets: nodes,
                ..
            } => sockets.push(Sockets {
                spanned: *spanned,
                nodes,
            }),
        }
    }
    Some(sockets)
}
