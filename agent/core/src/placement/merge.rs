//! The merge of all providers' hints into one: the kubelet's topology manager policies, without the product.
//!
//! Problem: the kubelet (cm/topologymanager/policy.go, 1.36) takes one hint of each resource in every possible way,
//! merges each such choice, and keeps the best. With 255 hints for each of 3 resources that is 16 million merges; with
//! 64 NUMA nodes a single list is out of reach. Approach: find the best merged hint from what a merged hint *is*.
//!
//! # What is merged, and what is best
//!
//! A choice takes one hint of each resource. Its mask is the intersection of the masks, where no mask counts as all
//! nodes; choices with an empty mask are dropped. It is preferred if all its hints are, and all masks that are not
//! missing are the same.
//!
//! The kubelet folds choices in some order with `compare(current, candidate)`. With *t* the largest over the resources
//! of the size of the narrowest mask (`bestNonPreferredAffinityCount`), `compare` prefers
//! 1. a preferred hint to one that is not;
//! 2. of two preferred: fewer nodes; then, with prefer-closest-numa-nodes, the smaller average distance; then the
//!    smaller number;
//! 3. of two that are not: its cases 1 to 3cc, read as a ranking of sizes, say *t*, *t*−1, …, 1, *t*+1, *t*+2, …; then
//!    as in 2.
//!
//! # Why the search finds the same hint
//!
//! *The order of the fold does not matter.* Rules 1 to 3 compare keys: (preferred, rank of the size, sum of distances,
//! mask). A comparison of keys is a total order, and two hints with the same key are the same hint, since the mask is
//! part of it. A fold with "the better of two" over a total order gives its best element, whatever the sequence and
//! however often one comes. (That case 1 takes any narrower candidate, below *t* as well, and case 3a none above *t*,
//! is what makes sizes above *t* rank last: no pair is judged differently in the two directions.) With *t* = 0 ranking
//! 3 is ranking 2.
//!
//! *Preferred.* A choice is preferred if and only if there is one mask *M* such that each resource gives either a
//! preferred hint with *M* or a preferred hint without mask. So the candidates are the masks that are preferred hints
//! of every resource that has no preferred hint without mask; or, if all have one, the preferred masks of any, and all
//! nodes (`preferred`).
//!
//! *Not preferred.* Looked at only if nothing is preferred. Then every choice with a mask is a candidate, and only the
//! masks matter: the best of all non-empty intersections of one mask of each resource (`intersection`), a set that
//! needs no list of choices: up to 16 nodes it is an array of 2ⁿ places (`lattice`); beyond, masks come from rules, and
//! which intersections arise is the question which nodes the providers can leave out (`exclusion`).
//!
//! *single-numa-node* first drops all hints but preferred ones of one node or without mask. What is left are candidates
//! of one node on which all agree, or, if each resource may be anywhere, all nodes.
//!
//! # What is bounded
//!
//! Lists, and rules of up to 16 nodes, are exact. For rules of more nodes the searches take at most a fixed number of
//! steps; in theory they need exponentially many (demands of several resources, closest nodes, sharing out nodes of
//! different sizes), in practice hundreds. If the steps run out, [`Merged::is_exact`] is false and the hint is a valid
//! one (some choice gives it), though perhaps not the best.

mod exclusion;
mod intersection;
mod lattice;
mod order;
mod preferred;

use crate::placement::TopologyHint;
use crate::placement::hints::cover::smallest_size;
use crate::placement::hints::search::{STEPS_MAX, Steps};
use crate::placement::hints::{HintRule, HintSet, ProviderHints};
use crate::placement::numa_distances::NumaDistances;
use crate::placement::numa_mask::NumaMask;

use lattice::LATTICE_NODES_MAX;
use order::Order;

/// What is done with the merged hint (cm/topologymanager/policy_*.go, 1.36).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// Nothing is aligned.
    None,
    /// Every container is admitted.
    BestEffort,
    /// Containers are admitted on a preferred hint.
    Restricted,
    /// Containers are admitted on a preferred hint of one node.
    SingleNumaNode,
}

/// The NUMA nodes of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaInfo {
    /// All of them.
    pub nodes: NumaMask,
    /// If closer nodes are to be preferred to lower ones (`prefer-closest-numa-nodes`).
    pub distances: Option<NumaDistances>,
}

/// What all providers' hints come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// The best hint. With no mask, any node will do.
    pub hint: TopologyHint,
    /// Whether the policy admits a container with it.
    pub admitted: bool,
    /// How many nodes a hint that is not preferred aims at: what the most demanding resource needs.
    pub target_nodes: u32,
    /// False if a search was cut short: the hint is valid, but a better one may exist.
    pub is_exact: bool,
}

/// The hints of one resource, as the merge takes them.
#[derive(Debug, Clone, Copy)]
enum Choices<'a> {
    /// One hint at least.
    List(&'a [TopologyHint]),
    /// One mask at least.
    Rule(&'a HintRule),
}

const ANY: &[TopologyHint] = &[TopologyHint {
    mask: None,
    preferred: true,
}];

const IMPOSSIBLE: &[TopologyHint] = &[TopologyHint {
    mask: None,
    preferred: false,
}];

impl<'a> Choices<'a> {
    /// `filterProvidersHints` in policy.go, 1.36.
    fn of(providers: &'a [ProviderHints]) -> Vec<Self> {
        let mut choices = Vec::new();
        for provider in providers {
            if provider.is_empty() {
                choices.push(Self::List(ANY));
            }
            let sets = provider.values().map(Option::as_ref);
            choices.extend(sets.map(|hints| hints.map_or(Self::List(ANY), Self::of_set)));
        }
        choices
    }

    fn of_set(hints: &'a HintSet) -> Self {
        match hints {
            hints if hints.is_empty() => Self::List(IMPOSSIBLE),
            HintSet::List(hints) => Self::List(hints),
            HintSet::Rule(rule) => Self::Rule(rule),
        }
    }

    fn list(&self) -> Option<&'a [TopologyHint]> {
        match self {
            Self::List(hints) => Some(hints),
            Self::Rule(_) => None,
        }
    }

    fn rule(&self) -> Option<&'a HintRule> {
        match self {
            Self::List(_) => None,
            Self::Rule(rule) => Some(rule),
        }
    }

    /// Whether there is a preferred hint without mask.
    fn prefer_any(&self) -> bool {
        let hints = self.list().unwrap_or_default();
        hints
            .iter()
            .any(|hint| hint.mask.is_none() && hint.preferred)
    }

    fn prefers(&self, mask: NumaMask) -> bool {
        match self {
            Self::List(hints) => hints.contains(&TopologyHint {
                mask: Some(mask),
                preferred: true,
            }),
            Self::Rule(rule) => preferred::is_preferred(rule, mask),
        }
    }

    /// All nodes of any hint.
    fn nodes(&self) -> NumaMask {
        match self {
            Self::List(hints) => {
                let all = NumaMask(u64::MAX);
                let masks = hints.iter().map(|hint| hint.mask.unwrap_or(all));
                masks.fold(NumaMask::EMPTY, |nodes, mask| nodes | mask)
            }
            Self::Rule(rule) => rule.nodes(),
        }
    }

    /// The size of the narrowest mask; 0 if no hint has one.
    fn narrowest(&self, steps: &mut Steps) -> u32 {
        match self {
            Self::List(hints) => {
                let sizes = hints.iter().filter_map(|hint| hint.mask).map(NumaMask::len);
                sizes.min().unwrap_or(0)
            }
            Self::Rule(rule) => {
                if rule.alone.iter().any(|node| rule.fits(NumaMask::of(node))) {
                    return 1;
                }
                let also = rule.also.iter().filter(|mask| !mask.is_empty());
                let also_size = also.map(|mask| mask.len()).min();
                let several = smallest_size(rule.together, &rule.needs, 2, steps);
                also_size.into_iter().chain(several).min().unwrap_or(0)
            }
        }
    }
}

/// What a merge may do.
struct Bounds {
    /// Of so many nodes all masks may be held at once.
    lattice_nodes: u32,
    /// Decisions that searches may take.
    steps: Steps,
}

/// Merges the hints of all providers. The order of providers, and of resources within one, does not matter.
#[must_use]
pub fn merge(policy: TopologyPolicy, numa: &NumaInfo, providers: &[ProviderHints]) -> Merged {
    let bounds = Bounds {
        lattice_nodes: LATTICE_NODES_MAX,
        steps: Steps::new(STEPS_MAX),
    };
    merge_within(policy, numa, providers, bounds)
}

/// The best hint of one resource, were there no other: its mask, if it has one, and whether it is preferred.
pub(super) fn best_alone(hints: &HintSet, numa: &NumaInfo) -> Option<(NumaMask, bool)> {
    let mut bounds = Bounds {
        lattice_nodes: LATTICE_NODES_MAX,
        steps: Steps::new(STEPS_MAX),
    };
    let choices = Choices::of_set(hints);
    let (hint, _) = on_any_nodes(&[choices], numa, &mut bounds);
    let mask = hint.mask.filter(|_| !choices.prefer_any())?;
    Some((mask, hint.preferred))
}

/// Whether a resource may be served on exactly this mask, and if so, whether it prefers that.
pub(super) fn is_hint(hints: &HintSet, mask: NumaMask) -> Option<bool> {
    match hints {
        HintSet::List(hints) => {
            let fitting = hints
                .iter()
                .filter(|hint| hint.mask.is_none_or(|hint_mask| hint_mask == mask));
            fitting.map(|hint| hint.preferred).max()
        }
        HintSet::Rule(rule) => rule.contains(mask).then(|| rule.preference.includes(mask)),
    }
}

fn merge_within(
    policy: TopologyPolicy,
    numa: &NumaInfo,
    providers: &[ProviderHints],
    mut bounds: Bounds,
) -> Merged {
    let resources = Choices::of(providers);
    let (hint, target_nodes) = match policy {
        TopologyPolicy::None => {
            let hint = TopologyHint {
                mask: None,
                preferred: false,
            };
            (hint, 0)
        }
        TopologyPolicy::SingleNumaNode => (on_one_node(&resources, numa), 1),
        TopologyPolicy::BestEffort | TopologyPolicy::Restricted => {
            on_any_nodes(&resources, numa, &mut bounds)
        }
    };
    Merged {
        hint,
        admitted: match policy {
            TopologyPolicy::None | TopologyPolicy::BestEffort => true,
            TopologyPolicy::Restricted | TopologyPolicy::SingleNumaNode => hint.preferred,
        },
        target_nodes,
        is_exact: !bounds.steps.are_spent(),
    }
}

/// The best hint, and how many nodes it aimed at.
fn on_any_nodes(
    resources: &[Choices<'_>],
    numa: &NumaInfo,
    bounds: &mut Bounds,
) -> (TopologyHint, u32) {
    let narrowest = resources
        .iter()
        .map(|choices| choices.narrowest(&mut bounds.steps));
    let target = narrowest.max().unwrap_or(0);
    if let Some(mask) = preferred::best(resources, numa, bounds) {
        let hint = TopologyHint {
            mask: Some(mask),
            preferred: true,
        };
        return (hint, target);
    }
    let order = Order {
        target,
        distances: numa.distances.as_ref(),
    };
    let mask = intersection::best(resources, numa, order, bounds).unwrap_or(numa.nodes);
    let hint = TopologyHint {
        mask: Some(mask),
        preferred: false,
    };
    (hint, target)
}

/// The lowest node that all agree on; no mask if there is none (`policy_single_numa_node.go`, 1.36).
fn on_one_node(resources: &[Choices<'_>], numa: &NumaInfo) -> TopologyHint {
    let anywhere = resources.iter().all(Choices::prefer_any);
    let agreed = |node: &NumaMask| {
        let mut prefer = resources.iter().map(|choices| choices.prefers(*node));
        // Where each may be anywhere, one that names the node is enough.
        if anywhere {
            prefer.any(|prefers| prefers)
        } else {
            resources
                .iter()
                .zip(prefer)
                .all(|(choices, prefers)| prefers || choices.prefer_any())
        }
    };
    let node = numa.nodes.iter().map(NumaMask::of).find(agreed);
    TopologyHint {
        // Upstream shows all nodes as no mask, also where there is only one.
        mask: node.filter(|node| *node != numa.nodes),
        preferred: anywhere || node.is_some(),
    }
}

#[cfg(test)]
mod tests;
