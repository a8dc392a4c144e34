//! Over which NUMA nodes a request is spread, and how many groups of CPUs each gives: the kubelet's choice without its
//! search.
//!
//! The kubelet (`takeByTopologyNUMADistributed`, 1.36) tries k = fewest, fewest + 1, … nodes. For each combination of k
//! nodes, in lexicographic order of their places in its list, every node gives the same *even* number of groups,
//! ⌊groups / k⌋, and the remaining groups are handed out one at a time, round after round, to a *remainder set*: some
//! of those nodes of the combination that have a group left, tried from all of them down to one, lexicographically
//! within a size. The first k with a combination that works is used; of its combinations the one with the lowest
//! balance, of its remainder sets likewise, the first found on a tie. *Balance* is the standard deviation of what is
//! then free on each node.
//!
//! That is up to C(64, k) · 2^k trials. The same answer comes from a table, because
//! 1. the mean of what is free afterwards does not depend on the choice, so balance grows with the sum of squares, and
//!    that sum is one term per node;
//! 2. a round-robin over a remainder set has an end: after some `w` whole rounds the nodes up to some place in the list
//!    have given min(w + 1, what they had), later ones min(w, what they had). And whatever has this form with the right
//!    total is the outcome of some round-robin. So for a fixed `w` the outcome is built node by node from (nodes
//!    chosen, groups given, whether the last round is still on), and a table over these yields the least sum of
//!    squares;
//! 3. rounding makes neighbouring sums equal: [`highest_cost_alike`] is the largest that still rounds to the least
//!    balance. "The first found with the lowest balance" is then the lexicographically first choice within that bound,
//!    which is built greedily: a node is chosen if the table says that the rest can still stay within the bound.
//!
//! Work is at most (nodes · k · remainder) for each `w`, with remainder < k, and `w` below both the remainder and the
//! most groups that a node has left. A brute-force enumeration agrees in the tests.
//!
//! Balance is a float in the kubelet: mean and deviation are rounded to three decimals, halves away from zero. Here
//! both are integers in thousandths. The mean is the same number: a half in the fourth place needs a count of nodes
//! divisible by 16, and such a fraction is exact in binary. Where the deviation itself would be such a half, the
//! kubelet's depends on the order of its map.

use std::ops::RangeInclusive;

/// How a request is spread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NumaDistribution {
    /// What each chosen node gives at first, in groups.
    pub(super) even: u32,
    /// By node: `None` if it is not chosen, else what it gives on top, in groups.
    pub(super) extra: Vec<Option<u32>>,
}

/// The state of a round-robin after a node: is the last round, which not all nodes see, still on?
const ON: usize = 0;
const OVER: usize = 1;

/// More than any cost: squares of at most 1,024 CPUs are summed.
const IMPOSSIBLE: i64 = 1 << 40;

impl NumaDistribution {
    /// Spreads `groups` groups of `group` CPUs over nodes with `free` CPUs each, in the kubelet's order, trying these
    /// numbers of nodes in turn.
    pub(super) fn find(
        free: &[u32],
        groups: u32,
        group: u32,
        nodes: RangeInclusive<usize>,
    ) -> Option<Self> {
        nodes
            .filter(|chosen| *chosen > 0)
            .find_map(|chosen| Self::over(free, groups, group, chosen))
    }

    /// Over that many nodes.
    fn over(free: &[u32], groups: u32, group: u32, chosen: usize) -> Option<Self> {
        let divisor = u32::try_from(chosen).ok()?;
        let (even, rest) = (groups / divisor, groups % divisor);
        let places: Vec<usize> = (0..free.len())
            .filter(|place| free[*place] / group >= even)
            .collect();
        let mut most: Vec<u32> = places.iter().map(|place| free[*place] / group).collect();
        most.sort_unstable_by(|a, b| b.cmp(a));
        if places.len() < chosen || most.iter().take(chosen).sum::<u32>() < groups {
            return None;
        }

        let node = |place: &usize| Node {
            left: free[*place] - even * group,
            group,
            spare: free[*place] / group - even,
        };
        let nodes: Vec<Node> = places.iter().map(node).collect();
        // Costs are squares of what is free; nodes that cannot be chosen, and what does not change, are constants.
        let unchosen = |node: &Node| square(node.left + even * group);
        let candidates = nodes.iter().map(|node| Candidate {
            node: *node,
            uncounted: unchosen(node),
            without_extra: Some(node.cost(0)),
        });
        let mut combination = RoundRobin::new(candidates.collect(), chosen, rest);
        let least = combination
            .rounds()
            .map(|rounds| combination.least_cost(rounds, chosen))
            .min()
            .filter(|least| *least < IMPOSSIBLE)?;
        let ineligible: i64 = free.iter().map(|free| square(*free)).sum::<i64>()
            - nodes.iter().map(unchosen).sum::<i64>();
        let bound = highest_cost_alike(least + ineligible, free, groups * group) - ineligible;
        let picked = combination.first_within(bound, chosen..=chosen)?;

        // The same again within the combination: which of its nodes are in the remainder set.
        let unpicked: i64 = (0..nodes.len())
            .filter(|at| !picked.contains(at))
            .map(|at| unchosen(&nodes[at]))
            .sum();
        let (with_spare, without): (Vec<usize>, Vec<usize>) =
            picked.iter().partition(|at| nodes[**at].spare > 0);
        let fixed: i64 = without.iter().map(|at| nodes[*at].cost(0)).sum();
        let mut extra = vec![None; free.len()];
        for at in &picked {
            extra[places[*at]] = Some(0);
        }
        if rest > 0 {
            let candidates = with_spare.iter().map(|at| Candidate {
                node: nodes[*at],
                uncounted: nodes[*at].cost(0),
                without_extra: None,
            });
            let mut remainder = RoundRobin::new(candidates.collect(), with_spare.len(), rest);
            let set = remainder.first_within(bound - unpicked - fixed, 1..=with_spare.len())?;
            let spare: Vec<u32> = set.iter().map(|at| nodes[with_spare[*at]].spare).collect();
            for (at, given) in set.iter().zip(hand_out(&spare, rest)) {
                extra[places[with_spare[*at]]] = Some(given);
            }
        }
        Some(Self { even, extra })
    }
}

/// A node that can give the even share.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// CPUs left after that share.
    left: u32,
    /// CPUs in a group.
    group: u32,
    /// Groups left.
    spare: u32,
}

impl Node {
    /// What it adds to the sum of squares when it gives `extra` groups on top.
    fn cost(&self, extra: u32) -> i64 {
        square(self.left - extra * self.group)
    }
}

fn square(cpus: u32) -> i64 {
    i64::from(cpus) * i64::from(cpus)
}

/// A node that may be counted (chosen, or put into the remainder set), and what it costs otherwise.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    node: Node,
    uncounted: i64,
    /// Counted and yet outside of the round-robin: chosen, but not in the remainder set.
    without_extra: Option<i64>,
}

/// The least sum of squares for the nodes from a place on, by what is still to be counted and given.
struct RoundRobin {
    candidates: Vec<Candidate>,
    most_counted: usize,
    rest: u32,
    /// Index: place, last round on or over, counted, given.
    least: Vec<i64>,
    /// The whole rounds for which `least` holds.
    filled: Option<u32>,
}

impl RoundRobin {
    fn new(candidates: Vec<Candidate>, most_counted: usize, rest: u32) -> Self {
        let entries = (candidates.len() + 1) * 2 * (most_counted + 1) * (rest as usize + 1);
        Self {
            candidates,
            most_counted,
            rest,
            least: vec![IMPOSSIBLE; entries],
            filled: None,
        }
    }

    /// The numbers of whole rounds that can come before the last one.
    fn rounds(&self) -> std::ops::Range<u32> {
        let most_spare = self.candidates.iter().map(|one| one.node.spare).max();
        0..self.rest.min(most_spare.unwrap_or(0)).max(1)
    }

    fn at(&self, place: usize, last: usize, counted: usize, given: u32) -> usize {
        let row = (place * 2 + last) * (self.most_counted + 1) + counted;
        row * (self.rest as usize + 1) + given as usize
    }

    /// With so many whole rounds and so many nodes counted.
    fn least_cost(&mut self, rounds: u32, counted: usize) -> i64 {
        self.fill(rounds);
        self.least[self.at(0, ON, counted, self.rest)]
    }

    fn fill(&mut self, rounds: u32) {
        if self.filled == Some(rounds) {
            return;
        }
        self.filled = Some(rounds);
        let end = self.candidates.len();
        let first_of_end = self.at(end, ON, 0, 0);
        self.least[first_of_end..].fill(IMPOSSIBLE);
        for last in [ON, OVER] {
            let nothing_more = self.at(end, last, 0, 0);
            self.least[nothing_more] = 0;
        }
        let given_range = self.rest as usize + 1;
        for place in (0..end).rev() {
            let candidate = self.candidates[place];
            for last in [OVER, ON] {
                let share = share_of(&candidate.node, rounds, last) as usize;
                let cost = candidate.node.cost(share_of(&candidate.node, rounds, last));
                for counted in 0..=self.most_counted {
                    let row = self.at(place, last, counted, 0);
                    let other = self.at(place, OVER, counted, 0);
                    let after = self.at(place + 1, last, counted, 0);
                    let after_counted = counted
                        .checked_sub(1)
                        .map(|less| self.at(place + 1, last, less, 0));
                    for given in 0..given_range {
                        let mut least = candidate.uncounted + self.least[after + given];
                        if let Some(after) = after_counted {
                            if let Some(cost) = candidate.without_extra {
                                least = least.min(cost + self.least[after + given]);
                            }
                            if given >= share {
                                least = least.min(cost + self.least[after + given - share]);
                            }
                        }
                        if last == ON {
                            least = least.min(self.least[other + given]);
                        }
                        self.least[row + given] = least.min(IMPOSSIBLE);
                    }
                }
            }
        }
    }

    /// The largest choice with a size in `counted`, and of that size the lexicographically first, that costs at most
    /// `bound`.
    fn first_within(&mut self, bound: i64, counted: RangeInclusive<usize>) -> Option<Vec<usize>> {
        let mut best: Option<Vec<usize>> = None;
        for rounds in self.rounds() {
            self.fill(rounds);
            let possible = |size: &usize| self.least[self.at(0, ON, *size, self.rest)] <= bound;
            let Some(size) = counted.clone().rev().find(possible) else {
                continue;
            };
            let first = self.first_of_size(size, rounds, bound);
            let rank = |chosen: &[usize]| (std::cmp::Reverse(chosen.len()), chosen.to_vec());
            if best.as_ref().is_none_or(|best| rank(&first) < rank(best)) {
                best = Some(first);
            }
        }
        best
    }

    /// For the rounds that the table holds, with a choice of that size known to exist.
    fn first_of_size(&self, size: usize, rounds: u32, bound: i64) -> Vec<usize> {
        let given_range = self.rest as usize + 1;
        let mut chosen = Vec::with_capacity(size);
        // What the places so far cost at least, by the state that they leave: last round on or over, groups given.
        let mut so_far = [vec![IMPOSSIBLE; given_range], vec![IMPOSSIBLE; given_range]];
        so_far[ON][0] = 0;
        for (place, candidate) in self.candidates.iter().enumerate() {
            if chosen.len() == size {
                break;
            }
            let [on, over] = &mut so_far;
            for (over, on) in over.iter_mut().zip(on) {
                *over = (*over).min(*on);
            }
            let mut with = [vec![IMPOSSIBLE; given_range], vec![IMPOSSIBLE; given_range]];
            for last in [ON, OVER] {
                let share = share_of(&candidate.node, rounds, last);
                let cost = candidate.node.cost(share);
                for given in 0..given_range {
                    let before = so_far[last][given];
                    if let Some(cost) = candidate.without_extra {
                        with[last][given] = with[last][given].min(before + cost);
                    }
                    if let Some(entry) = with[last].get_mut(given + share as usize) {
                        *entry = (*entry).min(before + cost);
                    }
                }
            }
            let still_to_count = size - chosen.len() - 1;
            let can_end_well = [ON, OVER].into_iter().any(|last| {
                (0..=self.rest).any(|given| {
                    let after = self.at(place + 1, last, still_to_count, self.rest - given);
                    with[last][given as usize] + self.least[after] <= bound
                })
            });
            if can_end_well {
                chosen.push(place);
                so_far = with;
            } else {
                for entry in so_far.iter_mut().flatten() {
                    *entry = (*entry + candidate.uncounted).min(IMPOSSIBLE);
                }
            }
        }
        chosen
    }
}

/// What a node has given in the end: one more if it was reached in the last round.
fn share_of(node: &Node, rounds: u32, last: usize) -> u32 {
    node.spare.min(if last == ON { rounds + 1 } else { rounds })
}

/// Hands out `rest` groups one at a time, round after round, to nodes with so many to spare.
fn hand_out(spare: &[u32], mut rest: u32) -> Vec<u32> {
    let mut given = vec![0; spare.len()];
    while rest > 0 && given.iter().zip(spare).any(|(given, spare)| given < spare) {
        for (given, spare) in given.iter_mut().zip(spare) {
            if rest > 0 && *given < *spare {
                *given += 1;
                rest -= 1;
            }
        }
    }
    given
}

/// The largest sum of squares whose balance rounds to that of `squares`, when `taken` of the `free` CPUs are taken.
fn highest_cost_alike(squares: i64, free: &[u32], taken: u32) -> i64 {
    let nodes = i64::try_from(free.len()).unwrap_or(1).max(1);
    let left = free.iter().map(|free| i64::from(*free)).sum::<i64>() - i64::from(taken);
    // In thousandths, a half rounded up.
    let mean = (2_000 * left + nodes) / (2 * nodes);
    // The sum of squared distances from the mean, in millionths: a million times `squares`, and a constant.
    let constant = nodes * mean * mean - 2_000 * mean * left;
    let distances = 1_000_000 * squares + constant;
    // The deviation d is √(distances / nodes), rounded; it is the largest with (2d - 1)² · nodes ≤ 4 · distances.
    let deviation = ((4 * distances.max(0) / nodes).isqrt() + 1) / 2;
    let beyond = (2 * deviation + 1) * (2 * deviation + 1) * nodes;
    ((beyond - 1).div_euclid(4) - constant).div_euclid(1_000_000)
}

#[cfg(test)]
mod tests;
