//! Which nodes can be left out, when each provider leaves out some.
//!
//! Rules whose masks may always grow: the intersection of one mask of each can be *S* if every other node is left out
//! by one of the providers, and what each provider leaves out still leaves it enough. So a provider has something to
//! *spare* of each need, leaving a node out *costs* it what the node has, and the question is whether the nodes can be
//! shared out so that no provider spends more than it has.
//!
//! In theory that is bin packing. In practice most nodes cost a provider the same or nothing: a node that costs a
//! provider nothing is left out by that provider; providers that pay the same for each node ([`Payer`]) are a common
//! *pool* with a number of nodes to leave out, and which of them pays does not matter. Only for others are several ways
//! of sharing followed ([`Share`]), those that spare less of everything than another being dropped; and if one way is
//! seen to lead to the best mask that is still open, no other.

use crate::placement::hints::search::Test;
use crate::placement::hints::{HintRule, Need};
use crate::placement::numa_mask::NumaMask;

/// More ways of sharing out the same nodes than this are not followed.
const SHARES_MAX: usize = 64;

/// A provider that does not pay the same for all nodes.
struct Payer<'a> {
    together: NumaMask,
    needs: Vec<&'a Need>,
    /// Where its needs begin in [`Share::spare`].
    first: usize,
    /// Whether a supply is shared by nodes, so that costs do not add up.
    shares_supplies: bool,
}

/// One way to share out the nodes left out so far.
#[derive(Clone)]
struct Share {
    /// How many more nodes the pool can pay for.
    pool: u32,
    /// What payers have to spare, need by need.
    spare: Vec<u128>,
    /// What each payer has left out.
    left_out: Vec<NumaMask>,
}

/// The costs of one need of one payer.
struct Costs {
    of_place: Vec<u128>,
    /// By place and count: the least that leaving out so many nodes from there on costs, free ones apart.
    least: Vec<Vec<u128>>,
    /// The most that it costs.
    most: Vec<Vec<u128>>,
}

/// The test whether all nodes that are not in a mask can be left out.
pub(super) struct Exclusion<'a> {
    nodes: Vec<u32>,
    payers: Vec<Payer<'a>>,
    costs: Vec<Costs>,
    /// By place: whether a provider can leave the node out for nothing.
    is_free: Vec<bool>,
    /// By place: how many free nodes there are from there on.
    free: Vec<usize>,
    /// By place: the ways to share out the nodes before it.
    shares: Vec<Vec<Share>>,
    /// Whether the first mask that passes is the one that is wanted.
    first_is_best: bool,
    /// Whether ways were dropped that might have led further.
    dropped: bool,
}

impl<'a> Exclusion<'a> {
    /// Masks of `nodes` that arise when each rule (with further needs) leaves out some of them. Each rule's mask of all
    /// its nodes fits. `first_is_best`: in ascending order, the first one is wanted.
    pub(super) fn new(
        nodes: NumaMask,
        rules: &[(&'a HintRule, &'a [Need])],
        first_is_best: bool,
    ) -> Self {
        let mut places: Vec<u32> = nodes.iter().collect();
        places.reverse();
        let mut is_free = vec![false; places.len()];
        let mut pool = 0_u32;
        let mut payers = Vec::new();
        let mut spare = Vec::new();
        let mut costs: Vec<Vec<u128>> = Vec::new();
        for (rule, more) in rules {
            let needs = rule.needs.iter().chain(*more);
            // What is met without any of these nodes does not matter.
            let needs: Vec<&Need> = needs
                .filter(|need| !need.is_met_in(rule.together - nodes))
                .collect();
            let of_needs: Vec<Vec<u128>> =
                needs.iter().map(|need| costs_of(need, &places)).collect();
            let spared: Vec<u128> = needs
                .iter()
                .map(|need| to_spare(need, rule.together))
                .collect();
            let shared = |node: Option<u32>| {
                let mut supplies = needs.iter().flat_map(|need| &need.supplies);
                supplies.any(|supply| {
                    supply.nodes.len() > 1 && node.is_none_or(|node| supply.nodes.contains(node))
                })
            };
            for (place, node) in places.iter().enumerate() {
                let costs_nothing = of_needs.iter().all(|costs| costs[place] == 0);
                is_free[place] |= costs_nothing && !shared(Some(*node));
            }
            let shares_supplies = shared(None);
            if !shares_supplies && let Some(room) = room_of_equal_costs(&of_needs, &spared) {
                pool = pool.saturating_add(room);
                continue;
            }
            payers.push(Payer {
                together: rule.together,
                needs,
                first: costs.len(),
                shares_supplies,
            });
            spare.extend(spared);
            costs.extend(of_needs);
        }
        let free =
            (0..=places.len()).map(|from| is_free[from..].iter().filter(|free| **free).count());
        let start = Share {
            pool,
            spare,
            left_out: vec![NumaMask::EMPTY; payers.len()],
        };
        let mut shares = vec![Vec::new(); places.len() + 1];
        shares[0].push(start);
        Self {
            free: free.collect(),
            costs: costs
                .into_iter()
                .map(|costs| Costs::new(costs, &is_free))
                .collect(),
            nodes: places,
            payers,
            is_free,
            shares,
            first_is_best,
            dropped: false,
        }
    }

    /// Whether ways were dropped, so that a better mask may have been missed.
    pub(super) fn dropped_shares(&self) -> bool {
        self.dropped
    }

    /// The ways to go on if the node of this place is left out.
    fn leave_out(&self, share: &Share, place: usize, next: &mut Vec<Share>) {
        if self.is_free[place] {
            next.push(share.clone());
            return;
        }
        if share.pool > 0 {
            let mut share = share.clone();
            share.pool -= 1;
            next.push(share);
        }
        for payer in 0..self.payers.len() {
            let mut share = share.clone();
            if self.pay(&mut share, place, payer) {
                next.push(share);
            }
        }
    }

    /// Whether the payer can leave out the node of this place; if so, it does.
    fn pay(&self, share: &mut Share, place: usize, at: usize) -> bool {
        let payer = &self.payers[at];
        let needs = payer.first..payer.first + payer.needs.len();
        let cost = |need: usize| self.costs[need].of_place[place];
        if needs.clone().any(|need| share.spare[need] < cost(need)) {
            return false;
        }
        let left_out = share.left_out[at] | NumaMask::of(self.nodes[place]);
        let left = payer.together - left_out;
        if payer.shares_supplies && !payer.needs.iter().all(|need| need.is_met_in(left)) {
            return false;
        }
        needs.for_each(|need| share.spare[need] -= cost(need));
        share.left_out[at] = left_out;
        true
    }

    /// Whether this way surely leads to the best mask that is open: to leave out `count` nodes from this place on.
    fn leads_on(&self, share: &Share, place: usize, count: usize) -> bool {
        if self.first_is_best {
            // That mask leaves out the next ones. A provider that can leave out a node does; the search takes the same
            // turns.
            let mut share = share.clone();
            return (place..place + count).all(|place| {
                if self.is_free[place] {
                    return true;
                }
                if share.pool > 0 {
                    share.pool -= 1;
                    return true;
                }
                (0..self.payers.len()).any(|payer| self.pay(&mut share, place, payer))
            });
        }
        // Any of them may have to go: a provider has to have enough for the most expensive.
        let paid = self.nodes.len() - place - self.free[place];
        let count = count.min(paid);
        let has_enough = |payer: &Payer<'_>| {
            let mut needs = payer.first..payer.first + payer.needs.len();
            !payer.shares_supplies
                && needs.all(|need| self.costs[need].most[place][count] <= share.spare[need])
        };
        share.pool as usize >= count || self.payers.iter().any(has_enough)
    }

    /// Whether so many of the nodes from this place on might still be left out.
    fn can_leave_out(&self, share: &Share, place: usize, count: usize) -> bool {
        let paid = count.saturating_sub(self.free[place]);
        let of_payer = |payer: &Payer<'_>| {
            let needs = payer.first..payer.first + payer.needs.len();
            let affordable = needs.map(|need| {
                let least = &self.costs[need].least[place];
                least.partition_point(|cost| *cost <= share.spare[need]) - 1
            });
            affordable.min().unwrap_or(self.nodes.len())
        };
        let most = self.payers.iter().map(of_payer).sum::<usize>() + share.pool as usize;
        paid <= most
    }

    /// Keeps the ways that can leave out enough of what is left, and of those the ones that spare most.
    fn enter(&mut self, next: usize, mut shares: Vec<Share>, wanted: usize) -> bool {
        let Some(count) = (self.nodes.len() - next).checked_sub(wanted) else {
            return false;
        };
        if let Some(share) = shares
            .iter()
            .find(|share| self.leads_on(share, next, count))
        {
            self.shares[next] = vec![share.clone()];
            return true;
        }
        shares.retain(|share| self.can_leave_out(share, next, count));
        let mut kept: Vec<Share> = Vec::with_capacity(shares.len().min(SHARES_MAX));
        for share in shares {
            if kept.iter().any(|other| self.is_as_good(other, &share)) {
                continue;
            }
            kept.retain(|other| !self.is_as_good(&share, other));
            if kept.len() < SHARES_MAX {
                kept.push(share);
            } else {
                self.dropped = true;
            }
        }
        let any = !kept.is_empty();
        self.shares[next] = kept;
        any
    }

    fn is_as_good(&self, a: &Share, b: &Share) -> bool {
        let left_out = self.payers.iter().zip(a.left_out.iter().zip(&b.left_out));
        a.pool >= b.pool
            && a.spare.iter().zip(&b.spare).all(|(a, b)| a >= b)
            && left_out
                .filter(|(payer, _)| payer.shares_supplies)
                .all(|(_, (a, b))| a.is_subset(*b))
    }
}

impl Test for Exclusion<'_> {
    fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    fn without(&mut self, place: usize, wanted: usize) -> bool {
        let mut next = Vec::new();
        for share in &self.shares[place] {
            self.leave_out(share, place, &mut next);
        }
        self.enter(place + 1, next, wanted)
    }

    fn with(&mut self, place: usize, wanted: usize) -> bool {
        let next = self.shares[place].clone();
        self.enter(place + 1, next, wanted)
    }

    fn passes(&self, _mask: NumaMask) -> bool {
        // Every node that is not in the mask was left out by a provider that could.
        true
    }

    fn effort(&self, place: usize) -> u32 {
        let shares = u32::try_from(self.shares[place].len()).unwrap_or(u32::MAX);
        shares * shares.div_ceil(4)
    }
}

impl Costs {
    fn new(of_place: Vec<u128>, is_free: &[bool]) -> Self {
        let mut sorted: Vec<u128> = Vec::new();
        let mut least = vec![vec![0]];
        let mut most = vec![vec![0]];
        for (cost, free) in of_place.iter().zip(is_free).rev() {
            if !free {
                sorted.insert(sorted.partition_point(|other| other < cost), *cost);
            }
            least.push(sums(sorted.iter()));
            most.push(sums(sorted.iter().rev()));
        }
        least.reverse();
        most.reverse();
        Self {
            of_place,
            least,
            most,
        }
    }
}

/// Of the first none, one, two, …
fn sums<'a>(costs: impl Iterator<Item = &'a u128>) -> Vec<u128> {
    let sums = costs.scan(0_u128, |sum, cost| {
        *sum += cost;
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

/// What leaving out the node of each place costs, shared supplies apart.
fn costs_of(need: &Need, places: &[u32]) -> Vec<u128> {
    let supply_of = |node: &u32| {
        let exclusive = need
            .supplies
            .iter()
            .filter(|supply| supply.nodes == NumaMask::of(*node));
        exclusive.map(|supply| u128::from(supply.amount)).sum()
    };
    places.iter().map(supply_of).collect()
}

/// What the nodes have beyond the demand.
fn to_spare(need: &Need, nodes: NumaMask) -> u128 {
    let reached = need
        .supplies
        .iter()
        .filter(|supply| !(supply.nodes & nodes).is_empty());
    let total: u128 = reached.map(|supply| u128::from(supply.amount)).sum();
    total.saturating_sub(need.demand.into())
}

/// How many nodes can be paid for, if each that costs anything costs the same.
fn room_of_equal_costs(costs: &[Vec<u128>], spare: &[u128]) -> Option<u32> {
    let places = costs.first().map_or(0, Vec::len);
    let at = |place: usize| costs.iter().map(move |costs| costs[place]);
    let mut paid = (0..places).filter(|place| at(*place).any(|cost| cost > 0));
    let Some(first) = paid.next() else {
        return Some(0);
    };
    if !paid.all(|place| at(place).eq(at(first))) {
        return None;
    }
    let rooms = at(first).zip(spare).filter(|(cost, _)| *cost > 0);
    let room = rooms.map(|(cost, spare)| spare / cost).min().unwrap_or(0);
    Some(u32::try_from(room).unwrap_or(u32::MAX))
}
