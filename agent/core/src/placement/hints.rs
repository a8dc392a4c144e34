//! Hints as rules: on which sets of NUMA nodes a container could be served, without a list of them.
//!
//! Problem: the kubelet's providers enumerate every mask of NUMA nodes and keep those that fit
//! (`generateCPUTopologyHints` in cm/cpumanager/policy_static.go, `calculateHints` in
//! cm/memorymanager/policy_static.go, `generateDeviceTopologyHints` in cm/devicemanager/topology_hints.go, 1.36). On 64
//! nodes there are 2^64. Approach: each of these loops is a test that a mask passes or not, and the test is small: what
//! each node has, and how much is needed. So a [`HintSet`] is either a list, as upstream, or the test itself, a
//! [`HintRule`].
//!
//! Terms: a mask *fits* if its nodes together have enough of everything ([`Need`]). If a mask fits, every mask that
//! contains it fits too; what breaks this for memory (a node that serves single-node containers may not serve others)
//! is said by the nodes that may be used [`alone`](HintRule::alone) and [`together`](HintRule::together), and by masks
//! that are hints of their own ([`also`](HintRule::also)).

pub(crate) mod cover;
pub(crate) mod search;

use std::collections::BTreeMap;

use crate::placement::TopologyHint;
use crate::placement::numa_mask::NumaMask;

/// Rules over more nodes than this are not turned into lists.
pub const LISTED_NODES_MAX: u32 = 16;

/// What one provider says: hints by resource.
///
/// A resource with `None` may be served anywhere, and that is preferred; so may a provider with no resource at all. An
/// empty [`HintSet`] means that nothing will do.
pub type ProviderHints = BTreeMap<String, Option<HintSet>>;

/// The hints of one provider for one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HintSet {
    /// One by one, in the provider's order.
    List(Vec<TopologyHint>),
    /// All masks that pass a test.
    Rule(HintRule),
}

/// An amount that a mask has if it contains any of some nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supply {
    /// Usually one node; a device near to several has them all.
    pub nodes: NumaMask,
    /// In the unit of the demand: CPUs, bytes, devices.
    pub amount: u64,
}

/// How much of one resource is needed, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// At least this much.
    pub demand: u64,
    /// What there is. Several supplies of the same node add up.
    pub supplies: Vec<Supply>,
}

/// Which of the masks that are hints are preferred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preference {
    /// Those with this many nodes.
    Nodes(u32),
    /// Those with this many nodes, and those that span this many sockets (`align-by-socket`, `isHintSocketAligned` in
    /// cm/cpumanager/policy_static.go, 1.36).
    NodesOrSockets {
        /// How many nodes.
        nodes: u32,
        /// How many sockets.
        sockets: u32,
        /// The nodes of each socket.
        nodes_of_sockets: Vec<NumaMask>,
    },
}

/// All masks that pass a test.
///
/// A mask is a hint if it is one of [`also`](Self::also), or if it is made of the right nodes and every [`Need`] is met
/// in it. The empty mask never is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HintRule {
    /// Nodes that may be a mask of one node.
    pub alone: NumaMask,
    /// Nodes that may be in a mask of several nodes.
    pub together: NumaMask,
    /// What the nodes of a mask must have.
    pub needs: Vec<Need>,
    /// Masks that are hints whatever the rest says: a group of nodes that may only be used as a whole, a mask on which
    /// this pod may reuse memory.
    pub also: Vec<NumaMask>,
    /// Which hints are preferred.
    pub preference: Preference,
}

impl Need {
    /// From what each node has.
    #[must_use]
    pub fn per_node(demand: u64, amounts: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let supply = |(node, amount)| Supply {
            nodes: NumaMask::of(node),
            amount,
        };
        Self {
            demand,
            supplies: amounts.into_iter().map(supply).collect(),
        }
    }

    /// The mask must contain one of these nodes: something to be reused is there.
    #[must_use]
    pub fn any_of(nodes: NumaMask) -> Self {
        Self {
            demand: 1,
            supplies: vec![Supply { nodes, amount: 1 }],
        }
    }

    /// Whether the nodes of the mask have enough.
    #[must_use]
    pub fn is_met_in(&self, mask: NumaMask) -> bool {
        let reached = self
            .supplies
            .iter()
            .filter(|supply| !(supply.nodes & mask).is_empty());
        let amounts = reached.map(|supply| supply.amount);
        amounts.fold(0, u64::saturating_add) >= self.demand
    }
}

impl Preference {
    /// Whether a hint with this mask is preferred.
    #[must_use]
    pub fn includes(&self, mask: NumaMask) -> bool {
        match self {
            Self::Nodes(nodes) => mask.len() == *nodes,
            Self::NodesOrSockets {
                nodes,
                sockets,
                nodes_of_sockets,
            } => mask.len() == *nodes || spanned(nodes_of_sockets, mask) == *sockets,
        }
    }
}

/// How many of these sets the mask touches.
pub(crate) fn spanned(sets: &[NumaMask], mask: NumaMask) -> u32 {
    let touched = sets.iter().filter(|set| !(**set & mask).is_empty());
    u32::try_from(touched.count()).unwrap_or(u32::MAX)
}

impl HintRule {
    /// Of any of these nodes, alone or together: the rule of CPUs and of devices.
    #[must_use]
    pub fn new(nodes: NumaMask, needs: Vec<Need>, preference: Preference) -> Self {
        Self {
            alone: nodes,
            together: nodes,
            needs,
            also: Vec::new(),
            preference,
        }
    }

    /// All nodes that occur in any hint.
    #[must_use]
    pub fn nodes(&self) -> NumaMask {
        let also = self.also.iter().copied();
        also.fold(self.alone | self.together, |nodes, mask| nodes | mask)
    }

    /// Whether every need is met in the mask, whatever the nodes are.
    #[must_use]
    pub fn fits(&self, mask: NumaMask) -> bool {
        self.needs.iter().all(|need| need.is_met_in(mask))
    }

    /// Whether a mask is a hint.
    #[must_use]
    pub fn contains(&self, mask: NumaMask) -> bool {
        let usable = match mask.len() {
            0 => return false,
            1 => self.alone,
            _ => self.together,
        };
        (mask.is_subset(usable) && self.fits(mask)) || self.also.contains(&mask)
    }

    /// Whether no mask is a hint. Exact and fast: a larger mask fits if a smaller one does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.contains(self.together)
            && !self.also.iter().any(|mask| !mask.is_empty())
            && !self
                .alone
                .iter()
                .any(|node| self.contains(NumaMask::of(node)))
    }

    /// The hints one by one, in upstream's order: by size, then by the lowest nodes (`IterateBitMasks` in
    /// cm/topologymanager/bitmask/bitmask.go, 1.36). `None` for more than [`LISTED_NODES_MAX`] nodes.
    #[must_use]
    pub fn list(&self) -> Option<Vec<TopologyHint>> {
        let nodes: Vec<u32> = self.nodes().iter().collect();
        if nodes.len() > LISTED_NODES_MAX as usize {
            return None;
        }
        let hint = |mask| TopologyHint {
            mask: Some(mask),
            preferred: self.preference.includes(mask),
        };
        let masks = (1..=nodes.len()).flat_map(|size| combinations(&nodes, size));
        Some(
            masks
                .filter(|mask| self.contains(*mask))
                .map(hint)
                .collect(),
        )
    }
}

/// All masks of `size` of the nodes, by the lowest nodes.
fn combinations(nodes: &[u32], size: usize) -> impl Iterator<Item = NumaMask> {
    let mut places: Vec<usize> = (0..size).collect();
    let mut done = size > nodes.len();
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let mask = places.iter().map(|place| nodes[*place]).collect();
        // The last place that can move up; those after it follow directly.
        let movable = (0..size)
            .rev()
            .find(|at| places[*at] < nodes.len() - size + at);
        match movable {
            Some(at) => {
                let from = places[at] + 1;
                (at..size).for_each(|i| places[i] = from + i - at);
            }
            None => done = true,
        }
        Some(mask)
    })
}

impl HintSet {
    /// Whether nothing will do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::List(hints) => hints.is_empty(),
            Self::Rule(rule) => rule.is_empty(),
        }
    }

    /// The hints one by one; `None` if they are too many ([`HintRule::list`]).
    #[must_use]
    pub fn list(&self) -> Option<Vec<TopologyHint>> {
        match self {
            Self::List(hints) => Some(hints.clone()),
            Self::Rule(rule) => rule.list(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(rule: &HintRule) -> Vec<(u64, bool)> {
        let hints = rule.list().unwrap().into_iter();
        hints
            .map(|hint| (hint.mask.unwrap().0, hint.preferred))
            .collect()
    }

    #[test]
    fn masks_are_listed_by_size_and_then_by_the_lowest_nodes() {
        let needs = vec![Need::per_node(4, [(0, 4), (1, 2), (3, 2)])];
        let rule = HintRule::new(NumaMask(0b1011), needs, Preference::Nodes(1));
        assert_eq!(
            masks(&rule),
            [
                (0b0001, true),
                (0b0011, false),
                (0b1001, false),
                (0b1010, false),
                (0b1011, false)
            ]
        );
    }

    #[test]
    fn a_device_near_two_nodes_is_counted_once() {
        let near = |nodes, amount| Supply {
            nodes: NumaMask(nodes),
            amount,
        };
        let need = Need {
            demand: 2,
            supplies: vec![near(0b011, 1), near(0b100, 1)],
        };
        assert!(!need.is_met_in(NumaMask(0b011)));
        assert!(need.is_met_in(NumaMask(0b110)));
    }

    /// Memory: node 0 serves single-node containers, nodes 1 and 2 are a group, 3 and 4 are unused.
    #[test]
    fn nodes_in_use_keep_their_groups() {
        let rule = HintRule {
            alone: NumaMask(0b11001),
            together: NumaMask(0b11000),
            needs: vec![Need::per_node(10, (0..5).map(|node| (node, 5)))],
            also: vec![NumaMask(0b00110)],
            preference: Preference::Nodes(2),
        };
        assert_eq!(masks(&rule), [(0b00110, true), (0b11000, true)]);
        assert!(!rule.is_empty());
    }

    #[test]
    fn sockets_can_make_a_wider_mask_preferred() {
        let preference = Preference::NodesOrSockets {
            nodes: 1,
            sockets: 1,
            nodes_of_sockets: vec![NumaMask(0b0011), NumaMask(0b1100)],
        };
        assert!(preference.includes(NumaMask(0b0011)));
        assert!(!preference.includes(NumaMask(0b0110)));
    }

    #[test]
    fn what_must_be_reused_must_be_there() {
        let needs = vec![
            Need::per_node(1, [(0, 1), (1, 1)]),
            Need::any_of(NumaMask(0b10)),
        ];
        let rule = HintRule::new(NumaMask(0b11), needs, Preference::Nodes(1));
        assert_eq!(masks(&rule), [(0b10, true), (0b11, false)]);
    }

    #[test]
    fn an_impossible_rule_is_empty_at_any_size() {
        let all = NumaMask(u64::MAX);
        let needs = vec![Need::per_node(65, (0..64).map(|node| (node, 1)))];
        let rule = HintRule::new(all, needs, Preference::Nodes(64));
        assert!(rule.is_empty());
        assert_eq!(rule.list(), None);
        // Two unused nodes that fit only together, and a third that may not be used with them.
        let rule = HintRule {
            alone: NumaMask(0b111),
            together: NumaMask(0b011),
            needs: vec![Need::per_node(2, (0..3).map(|node| (node, 1)))],
            also: Vec::new(),
            preference: Preference::Nodes(2),
        };
        assert!(!rule.is_empty());
    }
}
