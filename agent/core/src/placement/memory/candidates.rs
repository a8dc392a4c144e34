//! Which sets of NUMA nodes could serve a container.
//!
//! Problem: the kubelet tries every set of nodes (`calculateHints`, policy_static.go, 1.36). Approach: the same rules
//! as a [`HintRule`], and the best hint found without a list.
//!
//! The rules: a set is a hint if it has enough of every resource, first by what is allocatable, then by what is free or
//! left by the pod's init containers on exactly this set. A node of a group is no set of its own; in a set of several,
//! each node in use must have exactly this set as its group. So besides single nodes only unused nodes can be joined,
//! and the few groups that exist; the sets on which something was left are checked one by one. A hint is preferred if
//! no smaller set has enough allocatable, however much of it is in use.

use std::collections::{BTreeMap, BTreeSet};

use super::cover::{self, Row};
use super::demand::MemoryDemand;
use super::machine::Books;
use crate::placement::TopologyHint;
use crate::placement::hints::{HintRule, HintSet, Need, Preference, ProviderHints};
use crate::placement::numa_mask::NumaMask;

/// What one node has; amounts in the order of the demand.
struct Node {
    id: u32,
    free: Vec<u64>,
    allocatable: Vec<u64>,
}

/// Where a demand can be served.
pub(super) struct Candidates<'a> {
    demand: &'a MemoryDemand,
    nodes: Vec<Node>,
    rule: HintRule,
}

impl<'a> Candidates<'a> {
    /// `reusable`: what init containers of the pod left, by exact set and resource.
    pub(super) fn new(
        books: &Books,
        demand: &'a MemoryDemand,
        reusable: &BTreeMap<NumaMask, BTreeMap<String, u64>>,
    ) -> Self {
        let nodes = books.0.iter().map(|(id, node)| Node {
            id: *id,
            free: demand.keys().map(|name| node.free(name)).collect(),
            allocatable: demand.keys().map(|name| node.allocatable(name)).collect(),
        });
        let nodes: Vec<Node> = nodes.collect();
        let needs = demand.iter().enumerate().map(|(at, (_, wanted))| {
            Need::per_node(*wanted, nodes.iter().map(|node| (node.id, node.free[at])))
        });
        let with = |test: &dyn Fn(&super::NodeMemory) -> bool| {
            let nodes = books.0.iter().filter(|(_, node)| test(node));
            nodes.map(|(id, _)| *id).collect::<NumaMask>()
        };
        let rule = HintRule {
            alone: with(&|node| node.cells.len() == 1),
            together: with(&|node| node.assignments == 0),
            needs: needs.collect(),
            also: Vec::new(),
            preference: Preference::Nodes(0),
        };
        let mut candidates = Self {
            demand,
            nodes,
            rule,
        };
        let minimal = candidates.smallest_by_allocatable(NumaMask::EMPTY);
        let minimal = minimal.unwrap_or(books.mask()).len();
        candidates.rule.preference = Preference::Nodes(minimal);
        let groups = books.0.values().map(|node| node.cells);
        let sets: BTreeSet<NumaMask> = groups.chain(reusable.keys().copied()).collect();
        let admitted = sets
            .into_iter()
            .filter(|set| candidates.admits(books, *set, reusable.get(set)));
        candidates.rule.also = admitted.collect();
        candidates
    }

    /// Whether the set is a hint: the rules one by one.
    fn admits(&self, books: &Books, set: NumaMask, left: Option<&BTreeMap<String, u64>>) -> bool {
        let has = |amounts: Amounts, at: usize, beside: u64, wanted: u64| {
            let free = self.of(set).map(|node| amounts(node)[at]);
            free.fold(beside, u64::saturating_add) >= wanted
        };
        let enough = self.demand.iter().enumerate().all(|(at, (name, wanted))| {
            let left = left.and_then(|left| left.get(name)).copied();
            has(|node| &node.allocatable, at, 0, *wanted)
                && has(|node| &node.free, at, left.unwrap_or(0), *wanted)
        });
        let mut members = set.iter().filter_map(|id| books.0.get(&id));
        let free_of_others = if set.len() == 1 {
            members.all(|node| node.cells.len() == 1)
        } else {
            !books.is_shared_by_others(set)
        };
        enough && free_of_others
    }

    /// The hints by resource, the same for each; no resource if there is none, which the merge takes as no preference.
    pub(super) fn hints(&self) -> ProviderHints {
        if self.rule.is_empty() {
            return ProviderHints::new();
        }
        let names = self.demand.keys();
        names
            .map(|name| (name.clone(), Some(HintSet::Rule(self.rule.clone()))))
            .collect()
    }

    /// The best hint that includes `mask`: preferred if there is one, then with the fewest nodes, then with the
    /// smallest number (`findBestHint` and `extendTopologyManagerHint`). No hint has fewer nodes than a preferred one,
    /// so the narrowest it is.
    pub(super) fn narrowest_including(&self, mask: NumaMask) -> Option<TopologyHint> {
        if self.demand.is_empty() {
            return None;
        }
        let singles = self.nodes.iter().map(|node| NumaMask::of(node.id));
        let mut singles = singles.filter(|set| mask.is_subset(*set) && self.rule.contains(*set));
        let best = singles.next().or_else(|| {
            let also = self.rule.also.iter().copied();
            let also = also.filter(|set| mask.is_subset(*set));
            let joined = mask
                .is_subset(self.rule.together)
                .then(|| self.smallest(self.rule.together, mask, |node| &node.free))
                .flatten();
            also.chain(joined.filter(|set| self.rule.contains(*set)))
                .min_by_key(|set| (set.len(), *set))
        });
        best.map(|set| TopologyHint {
            mask: Some(set),
            preferred: self.rule.preference.includes(set),
        })
    }

    /// Of the smallest sets that include `mask` and would have enough if they were unused, one whose nodes have much
    /// free.
    pub(super) fn roomiest(&self, mask: NumaMask) -> Option<NumaMask> {
        let mut nodes: Vec<&Node> = self.nodes.iter().collect();
        nodes.sort_by(|a, b| b.free.cmp(&a.free).then(a.id.cmp(&b.id)));
        // The set with the smallest number is the one with the lowest places.
        let rows = (0u32..).zip(&nodes).map(|(place, node)| Row {
            node: place,
            amounts: &node.allocatable,
        });
        let places = (0u32..).zip(&nodes);
        let required = places.filter(|(_, node)| mask.contains(node.id));
        let required = required.map(|(place, _)| place).collect();
        let found = cover::smallest(&rows.collect::<Vec<_>>(), &self.wanted(), required)?;
        Some(found.iter().map(|place| nodes[place as usize].id).collect())
    }

    /// The smallest set that includes `mask` and would have enough if it were unused.
    fn smallest_by_allocatable(&self, mask: NumaMask) -> Option<NumaMask> {
        self.smallest(NumaMask(u64::MAX), mask, |node| &node.allocatable)
    }

    fn smallest(
        &self,
        within: NumaMask,
        including: NumaMask,
        amounts: Amounts,
    ) -> Option<NumaMask> {
        let rows = self.of(within).map(|node| Row {
            node: node.id,
            amounts: amounts(node),
        });
        cover::smallest(&rows.collect::<Vec<_>>(), &self.wanted(), including)
    }

    fn wanted(&self) -> Vec<u64> {
        self.demand.values().copied().collect()
    }

    fn of(&self, mask: NumaMask) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| mask.contains(node.id))
    }
}

/// Which of a node's amounts.
type Amounts = for<'a> fn(&'a Node) -> &'a [u64];
