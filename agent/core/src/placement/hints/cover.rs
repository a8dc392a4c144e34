//! Masks in which several needs are met at once.
//!
//! What prunes the search (see [`search`](super::search)): for each need, what the nodes taken so far have and the most that
//! the wanted number of the nodes left could add. The same for sums of needs, each measured by its demand: half of the
//! nodes may have the CPUs and the other half the memory, so that each need alone could be met and both never. And
//! *dominance*: if a node is taken though a lower one has at least as much of everything, exchanging them gives a smaller
//! number, so with a node all lower ones that dominate it are taken.

use super::search::{Steps, Test, best_of_size};
use super::{Need, spanned};
use crate::numa_mask::NumaMask;

/// In sums of needs, a demand counts as this much.
const DEMAND_UNIT: u64 = 1 << 32;

/// More needs than this are not added up in pairs.
const PAIRED_NEEDS_MAX: usize = 8;

/// The fewest nodes in which all needs are met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallestFit {
    /// How many; `None` if all nodes together do not meet them.
    pub nodes: Option<u32>,
    /// False if the search was cut short: fewer nodes might do.
    pub is_exact: bool,
}

/// The fewest of these nodes in which all needs are met: the size by which providers say which hints are preferred.
///
/// Exact for a single resource, and in practice for several; in theory the latter is NP-hard, and the search has a bound.
#[must_use]
pub fn smallest_fit(nodes: NumaMask, needs: &[Need]) -> SmallestFit {
    let mut steps = Steps::new(super::search::STEPS_MAX);
    let fit = smallest_size(nodes, needs, 1, &mut steps);
    SmallestFit {
        nodes: fit,
        is_exact: !steps.are_spent(),
    }
}

/// The fewest nodes, but at least so many, in which all needs are met.
pub(crate) fn smallest_size(
    nodes: NumaMask,
    needs: &[Need],
    at_least: u32,
    steps: &mut Steps,
) -> Option<u32> {
    if nodes.len() < at_least || !needs.iter().all(|need| need.is_met_in(nodes)) {
        return None;
    }
    let mut cover = Cover::new(nodes, needs.iter(), Vec::new());
    let first = cover.least_size().max(at_least);
    let found = (first..nodes.len()).find(|size| {
        // A single need that no two nodes share: as many of the largest as it takes, which is how `first` was found.
        cover.is_simple() || best_of_size(&mut cover, *size, None, steps).is_some()
    });
    Some(found.unwrap_or(nodes.len()))
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

    /// One need at most, of which no supply is shared: then [`Self::least_size`] is exact.
    fn is_simple(&self) -> bool {
        let shared = |need: &&Need| need.supplies.iter().any(|supply| supply.nodes.len() > 1);
        self.needs.len() <= 1 && !self.needs.iter().any(shared)
    }

    fn dominating(&self, place: usize) -> NumaMask {
        let node = self.nodes[place];
        let own = |need: &Need, node| {
            let own = need
                .supplies
                .iter()
                .filter(|supply| supply.nodes == NumaMask::of(node));
            own.fold(0, |sum: u64, supply| sum.saturating_add(supply.amount))
                .min(need.demand)
        };
        let dominates = |lower: &u32| {
            let needs = self.needs.iter().all(|need| {
                let shared = need.supplies.iter().filter(|supply| supply.nodes.len() > 1);
                own(need, *lower) >= own(need, node)
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
