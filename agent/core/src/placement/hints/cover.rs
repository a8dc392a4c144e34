//! Masks in which several needs are met at once.
//!
//! What prunes the search (see [`search`](super::search)): for each need, what the nodes taken so far have and the most
//! that the wanted number of the nodes left could add. The same for sums of needs, each measured by its demand: half of
//! the nodes may have the CPUs and the other half the memory, so that each need alone could be met and both never. And
//! *dominance*: if a node is taken though a lower one has at least as much of everything, exchanging them gives a
//! smaller number, so with a node all lower ones that dominate it are taken.

use super::search::{Steps, Test, best_of_size};
use super::{Need, spanned};
use crate::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};

/// In sums of needs, a demand counts as this much.
const DEMAND_UNIT: u64 = 1 << 32;

/// More needs than this are not added up in pairs.
const PAIRED_NEEDS_MAX: usize = 8;

/// The fewest nodes, but at least `at_least`, in which all needs are met.
pub(crate) fn smallest_size(
    nodes: NumaMask,
    needs: &[Need],
    at_least: u32,
    steps: &mut Steps,
) -> Option<u32> {
    if nodes.len() < at_least || !needs.iter().all(|need| need.is_met_in(nodes)) {
        return None;
    }
    if let Some(least) = least_for_one(nodes, needs) {
        return Some(least.max(at_least));
    }
    let mut cover = Cover::new(nodes, needs.iter(), Vec::new());
    let first = cover.least_size().max(at_least);
    let found =
        (first..nodes.len()).find(|size| best_of_size(&mut cover, *size, None, steps).is_some());
    Some(found.unwrap_or(nodes.len()))
}

/// For a single need of which no supply is shared by nodes: as many of the largest as it takes. All nodes meet it.
fn least_for_one(nodes: NumaMask, needs: &[Need]) -> Option<u32> {
    let mut needs = needs.iter().filter(|need| need.demand > 0);
    let need = match (needs.next(), needs.next()) {
        (Some(need), None) => need,
        _ => return None,
    };
    let mut amounts = [0_u64; NUMA_NODES_MAX as usize];
    for supply in &need.supplies {
        if supply.nodes.len() > 1 {
            return None;
        }
        for node in (supply.nodes & nodes).iter() {
            let amount = &mut amounts[node as usize];
            *amount = amount.saturating_add(supply.amount);
        }
    }
    amounts.sort_unstable_by(|a, b| b.cmp(a));
    let sums = amounts.iter().scan(0_u64, |sum, amount| {
        *sum = sum.saturating_add(*amount);
        Some(*sum)
    });
    let too_few = sums.take_while(|sum| *sum < need.demand).count();
    u32::try_from(too_few + 1).ok()
}

/// Masks that span exactly so many sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sockets<'a> {
    pub(crate) spanned: u32,
    pub(crate) nodes: &'a [NumaMask],
}

/// What the nodes have of one resource, by place.
struct Column {
    demand: u64,
    /// At most so much is added by the node of each place; exactly so much unless it shares supplies.
    amounts: Vec<u64>,
    /// By place and count: the most that so many nodes from that place on add.
    most: Vec<u64>,
}

/// The test whether all needs are met.
pub(crate) struct Cover<'a> {
    nodes: Vec<u32>,
    needs: Vec<&'a Need>,
    sockets: Vec<Sockets<'a>>,
    columns: Vec<Column>,
    /// By place: the lower nodes that have at least as much of everything.
    dominating: Vec<NumaMask>,
    /// Whether dominated nodes may be passed over: not when distances count.
    use_dominance: bool,
    /// By place, column by column: what the nodes taken before it have.
    taken: Vec<u64>,
    /// By place: nodes that must be taken from there on.
    forced: Vec<NumaMask>,
    /// By place: the nodes taken before it.
    masks: Vec<NumaMask>,
}

impl<'a> Cover<'a> {
    pub(crate) fn new(
        nodes: NumaMask,
        needs: impl Iterator<Item = &'a Need>,
        sockets: Vec<Sockets<'a>>,
    ) -> Self {
        let mut places: Vec<u32> = nodes.iter().collect();
        places.reverse();
        let mut distinct: Vec<&Need> = Vec::new();
        for need in needs.filter(|need| need.demand > 0) {
            if !distinct.contains(&need) {
                distinct.push(need);
            }
        }
        let mut columns: Vec<Column> = distinct
            .iter()
            .map(|need| Column::of_need(need, &places))
            .collect();
        columns.extend(sums(&columns));
        let width = columns.len();
        let mut cover = Self {
            dominating: Vec::new(),
            use_dominance: true,
            taken: vec![0; (places.len() + 1) * width],
            forced: vec![NumaMask::EMPTY; places.len() + 1],
            masks: vec![NumaMask::EMPTY; places.len() + 1],
            nodes: places,
            needs: distinct,
            sockets,
            columns,
        };
        let dominating = (0..cover.nodes.len()).map(|place| cover.dominating(place));
        cover.dominating = dominating.collect();
        cover
    }

    /// For a search by distance, where a lower node is not always the better one.
    pub(crate) fn without_dominance(mut self) -> Self {
        self.use_dominance = false;
        self
    }

    /// Each single need (or sum of needs) takes at least so many nodes.
    pub(crate) fn least_size(&self) -> u32 {
        let of_column = |column: &Column| {
            let enough = column.most[..=self.nodes.len()].iter();
            enough.take_while(|most| **most < column.demand).count()
        };
        let least = self.columns.iter().map(of_column).max().unwrap_or(0);
        u32::try_from(least).unwrap_or(u32::MAX)
    }

    fn dominating(&self, place: usize) -> NumaMask {
        let node = self.nodes[place];
        let exclusive_amount = |need: &Need, node| {
            let supplies = need
                .supplies
                .iter()
                .filter(|supply| supply.nodes == NumaMask::of(node));
            supplies
                .fold(0, |sum: u64, supply| sum.saturating_add(supply.amount))
                .min(need.demand)
        };
        let dominates = |lower: &u32| {
            let needs = self.needs.iter().all(|need| {
                let shared = need.supplies.iter().filter(|supply| supply.nodes.len() > 1);
                exclusive_amount(need, *lower) >= exclusive_amount(need, node)
                    && shared
                        .filter(|supply| supply.nodes.contains(node))
                        .all(|supply| supply.nodes.contains(*lower))
            });
            let mut sockets = self.sockets.iter().flat_map(|sockets| sockets.nodes);
            needs && sockets.all(|socket| socket.contains(node) == socket.contains(*lower))
        };
        let lower = self.nodes[place + 1..].iter().copied();
        lower.filter(dominates).collect()
    }

    /// Whether each need can still be met, and as many sockets as must be can be spanned.
    fn can_pass(&self, next: usize, wanted: usize) -> bool {
        let (width, places) = (self.columns.len(), self.nodes.len());
        let taken = &self.taken[next * width..(next + 1) * width];
        let mut needs = taken.iter().zip(&self.columns);
        if !needs.all(|(taken, column)| {
            taken.saturating_add(column.most[next * (places + 1) + wanted]) >= column.demand
        }) {
            return false;
        }
        let left = || self.nodes[next..].iter().copied().collect::<NumaMask>();
        let mask = self.masks[next];
        self.sockets.iter().all(|sockets| {
            spanned(sockets.nodes, mask) <= sockets.spanned
                && spanned(sockets.nodes, mask | left()) >= sockets.spanned
        })
    }
}

impl Test for Cover<'_> {
    fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    fn without(&mut self, place: usize, wanted: usize) -> bool {
        if self.forced[place].contains(self.nodes[place]) {
            return false;
        }
        let width = self.columns.len();
        self.taken
            .copy_within(place * width..(place + 1) * width, (place + 1) * width);
        self.forced[place + 1] = self.forced[place];
        self.masks[place + 1] = self.masks[place];
        self.can_pass(place + 1, wanted)
    }

    fn with(&mut self, place: usize, wanted: usize) -> bool {
        let node = NumaMask::of(self.nodes[place]);
        let width = self.columns.len();
        for (at, column) in self.columns.iter().enumerate() {
            self.taken[(place + 1) * width + at] =
                self.taken[place * width + at].saturating_add(column.amounts[place]);
        }
        let mut forced = self.forced[place] - node;
        if self.use_dominance {
            forced = forced | self.dominating[place];
        }
        self.forced[place + 1] = forced;
        self.masks[place + 1] = self.masks[place] | node;
        forced.len() as usize <= wanted && self.can_pass(place + 1, wanted)
    }

    fn passes(&self, mask: NumaMask) -> bool {
        let spans = |sockets: &Sockets<'_>| spanned(sockets.nodes, mask) == sockets.spanned;
        self.needs.iter().all(|need| need.is_met_in(mask)) && self.sockets.iter().all(spans)
    }

    fn effort(&self, _place: usize) -> u32 {
        1
    }
}

impl Column {
    fn of_need(need: &Need, places: &[u32]) -> Self {
        let amount = |node: &u32| {
            let reached = need
                .supplies
                .iter()
                .filter(|supply| supply.nodes.contains(*node));
            // No more than the demand counts, so that sums of needs compare.
            reached
                .fold(0, |sum: u64, supply| sum.saturating_add(supply.amount))
                .min(need.demand)
        };
        Self::new(need.demand, places.iter().map(amount).collect())
    }

    fn new(demand: u64, amounts: Vec<u64>) -> Self {
        let places = amounts.len();
        let mut most = vec![0; (places + 1) * (places + 1)];
        let mut largest: Vec<u64> = Vec::with_capacity(places);
        for place in (0..places).rev() {
            let amount = amounts[place];
            largest.insert(largest.partition_point(|other| *other > amount), amount);
            let row = &mut most[place * (places + 1)..(place + 1) * (places + 1)];
            let mut sum = 0_u64;
            for (count, slot) in row.iter_mut().enumerate().skip(1) {
                sum = sum.saturating_add(largest.get(count - 1).copied().unwrap_or(0));
                *slot = sum;
            }
        }
        Self {
            demand,
            amounts,
            most,
        }
    }

    /// Measured by the demand, rounded up: whatever meets the need reaches the unit.
    fn scaled(&self) -> Vec<u64> {
        let scale = |amount: &u64| {
            let scaled = u128::from(*amount) * u128::from(DEMAND_UNIT);
            // An amount is at most the demand, so this is at most the unit.
            u64::try_from(scaled.div_ceil(self.demand.into())).unwrap_or(DEMAND_UNIT)
        };
        self.amounts.iter().map(scale).collect()
    }
}

/// Sums of two needs, and of all.
fn sums(columns: &[Column]) -> Vec<Column> {
    let scaled: Vec<Vec<u64>> = columns.iter().map(Column::scaled).collect();
    let sum = |parts: &[usize]| {
        let places = 0..columns.first().map_or(0, |column| column.amounts.len());
        let amount = |place: usize| parts.iter().map(|part| scaled[*part][place]).sum();
        Column::new(
            DEMAND_UNIT * parts.len() as u64,
            places.map(amount).collect(),
        )
    };
    let all: Vec<usize> = (0..columns.len()).collect();
    let mut sums = Vec::new();
    if all.len() <= PAIRED_NEEDS_MAX {
        let pairs = all
            .iter()
            .flat_map(|a| all[a + 1..].iter().map(|b| [*a, *b]));
        sums.extend(pairs.map(|pair| sum(&pair)));
    }
    if all.len() > 2 {
        sums.push(sum(&all));
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::placement::hints::Supply;
    use crate::placement::hints::search::STEPS_MAX;

    fn fewest(nodes: u32, needs: &[Need]) -> Option<u32> {
        let masks = (1..1_u64 << nodes).map(NumaMask);
        let fitting = masks.filter(|mask| needs.iter().all(|need| need.is_met_in(*mask)));
        fitting.map(NumaMask::len).min()
    }

    proptest! {
        #[test]
        fn the_smallest_fit_is_the_smallest_of_all_masks(
            amounts in proptest::collection::vec(proptest::collection::vec(0..6_u64, 7), 1..4),
            shared in proptest::option::of((1..128_u64, 0..4_u64)),
            demands in proptest::collection::vec(0..20_u64, 3),
        ) {
            let per_node = |(amounts, demand): (&Vec<u64>, &u64)| {
                Need::per_node(*demand, (0..).zip(amounts.iter().copied()))
            };
            let mut needs: Vec<Need> = amounts.iter().zip(&demands).map(per_node).collect();
            if let Some((nodes, amount)) = shared {
                needs[0].supplies.push(Supply { nodes: NumaMask(nodes), amount });
            }
            let mut steps = Steps::new(STEPS_MAX);
            let fit = smallest_size(NumaMask(0x7f), &needs, 1, &mut steps);
            prop_assert_eq!(fit, fewest(7, &needs));
            prop_assert!(!steps.are_spent());
        }
    }

    /// Half of the nodes have what the other half lacks: each need alone could be met, and both never in so few.
    #[test]
    fn what_only_different_nodes_have_is_seen_without_a_search() {
        let nodes = NumaMask(u64::MAX);
        let needs = [0, 1]
            .map(|odd| Need::per_node(32, (0..64).map(|node| (node, u64::from(node % 2 == odd)))));
        let mut steps = Steps::new(100);
        assert_eq!(smallest_size(nodes, &needs, 1, &mut steps), Some(64));
        assert!(!steps.are_spent());
    }

    #[test]
    fn a_search_that_is_cut_short_says_so() {
        // Amounts that no bound distinguishes from a solution.
        let amounts = |factor: u64| {
            (0..40).map(move |node: u32| (node, 1000 + u64::from(node) * factor % 97))
        };
        let needs: Vec<Need> = [31, 57, 73]
            .map(|factor| Need::per_node(21_060, amounts(factor)))
            .into();
        let mut steps = Steps::new(50);
        let size = smallest_size((0..40).collect(), &needs, 1, &mut steps);
        assert!(steps.are_spent());
        assert!(size.is_some_and(|size| size <= 40));
    }
}
