//! "Who deserves how much" of `docs/reference/arbitrator.md`, whole units and groups included, read plainly: vectors of
//! vectors, every sum made anew, the level found by bisection. Slow, and what the tests and the bench compare with.
//! Nothing is taken from the implementation but its types.

use plimsoll_core::arbitration::amounts::{Amounts, ResourceSet};
use plimsoll_core::arbitration::demand::{Class, Demand};
use plimsoll_core::arbitration::groups::{Ask, Consumer};

const ONE: u128 = 1 << 64;

/// Who shares.
#[derive(Clone)]
struct Claim {
    weight: u128,
    classes: Vec<Class>,
    floor: Vec<u64>,
    cap: Vec<Option<u64>>,
    used: Vec<u64>,
}

impl Claim {
    fn asks_for(&self, r: usize) -> u64 {
        self.classes.iter().map(|class| class.amounts[r]).sum()
    }
}

/// Where a claim stands in a filling.
#[derive(Clone)]
struct State {
    x: u128,
    end: Vec<u128>,
    is_open: Vec<bool>,
    cap: Vec<Option<u128>>,
}

struct Filled {
    amounts: Vec<Vec<u64>>,
    floors: Vec<Vec<u64>>,
    states: Vec<State>,
}

/// What one claim has of a resource.
fn phi(claim: &Claim, floor: &[u64], state: &State, r: usize) -> u128 {
    let classes = claim.classes.iter().zip(&state.end);
    let sum: u128 = classes
        .map(|(class, end)| u128::from(class.amounts[r]) * state.x.min(*end))
        .sum();
    sum.max(u128::from(floor[r]) * ONE)
}

/// Moves a claim along its path of this phase up to a level; at the end of the path it stays. Returns the level at
/// which the path ends.
fn walk(claim: &Claim, state: &mut State, whole: &[Vec<u128>; 2], level: u128) -> u128 {
    let mut start = 0;
    while state.is_open.contains(&true) {
        let total = |r: usize| -> u128 {
            let open = claim.classes.iter().zip(&state.is_open);
            open.filter(|(_, is_open)| **is_open)
                .map(|(class, _)| u128::from(class.amounts[r]))
                .sum()
        };
        let closed = |r: usize| -> u128 {
            let closed = claim.classes.iter().zip(&state.is_open).zip(&state.end);
            closed
                .filter(|((_, is_open), _)| !**is_open)
                .map(|((class, _), end)| u128::from(class.amounts[r]) * end)
                .sum()
        };
        let limit = |r: usize| {
            let cap = state.cap[r].filter(|_| total(r) > 0)?;
            Some(state.x.max(cap.saturating_sub(closed(r)) / total(r)))
        };
        let resources = 0..whole[0].len();
        let next = resources.clone().filter_map(limit).fold(ONE, u128::min);
        // What no node has counts only for who asks for nothing else.
        let is_asked = |whole: &&Vec<u128>| (0..whole.len()).any(|r| whole[r] > 0 && total(r) > 0);
        let whole = whole.iter().find(is_asked).unwrap_or(&whole[0]);
        let mut dominant: Option<usize> = None;
        for r in resources.clone().filter(|r| whole[*r] > 0 && total(*r) > 0) {
            if dominant.is_none_or(|d| total(r) * whole[d] > total(d) * whole[r]) {
                dominant = Some(r);
            }
        }
        let length = dominant.map_or(0, |d| {
            ((next - state.x) * total(d)).div_ceil(whole[d] * claim.weight)
        });
        if let Some(d) = dominant
            && level < start + length
        {
            let grown = (level - start) * claim.weight * whole[d] / total(d);
            state.x += grown.min(next - state.x);
            return level;
        }
        let at_cap: Vec<usize> = resources
            .filter(|r| limit(*r).is_some_and(|limit| limit <= next))
            .collect();
        for (at, class) in claim.classes.iter().enumerate() {
            let ends = next == ONE || at_cap.iter().any(|r| class.amounts[*r] > 0);
            if state.is_open[at] && ends {
                state.is_open[at] = false;
                state.end[at] = next;
            }
        }
        state.x = next;
        start += length;
    }
    start
}

fn fill(claims: &[Claim], whole: &[Option<u64>], given: &[Option<u64>]) -> Filled {
    let resources = given.len();
    let floors = scaled_floors(claims, given);
    let all = |measure: &dyn Fn(usize) -> Option<u64>| -> Vec<u128> {
        let measures = (0..resources).map(measure);
        measures
            .map(|measure| measure.map_or(0, u128::from))
            .collect()
    };
    let given_alone = |r: usize| given[r].filter(|_| whole[r].is_none());
    let measures = [all(&|r| whole[r]), all(&given_alone)];
    let mut used_up: Vec<bool> = given.iter().map(|given| *given == Some(0)).collect();
    let mut states: Vec<State> = claims
        .iter()
        .map(|claim| State {
            x: 0,
            end: vec![ONE; claim.classes.len()],
            is_open: vec![true; claim.classes.len()],
            cap: (0..resources)
                .map(|r| {
                    if used_up[r] {
                        Some(0)
                    } else {
                        claim.cap[r].map(|cap| u128::from(cap) * ONE)
                    }
                })
                .collect(),
        })
        .collect();
    loop {
        let at = |level: u128| -> Vec<State> {
            let mut states = states.clone();
            for (claim, state) in claims.iter().zip(&mut states) {
                walk(claim, state, &measures, level);
            }
            states
        };
        let passes = |states: &[State], r: usize| {
            let mut left = given[r].map(|given| u128::from(given) * ONE);
            claims
                .iter()
                .zip(&floors)
                .zip(states)
                .any(|((claim, floor), state)| {
                    let had = phi(claim, floor, state, r);
                    left = left.map(|left| left.checked_sub(had).unwrap_or(u128::MAX));
                    left == Some(u128::MAX)
                })
        };
        let fits = |level: u128| {
            let states = at(level);
            (0..resources).all(|r| !passes(&states, r))
        };
        let ends = claims.iter().zip(&states);
        let last = ends
            .map(|(claim, state)| walk(claim, &mut state.clone(), &measures, u128::MAX))
            .max()
            .unwrap_or(0);
        if fits(last) {
            states = at(last);
            break;
        }
        let (mut low, mut high) = (0, last);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                low = middle
            } else {
                high = middle
            }
        }
        let above = at(high);
        states = at(low);
        for r in (0..resources).filter(|r| passes(&above, *r)) {
            used_up[r] = true;
            for ((claim, floor), state) in claims.iter().zip(&floors).zip(&mut states) {
                state.cap[r] = Some(phi(claim, floor, state, r));
            }
        }
    }
    Filled {
        amounts: whole_units(claims, &floors, &states, given, &used_up),
        floors,
        states,
    }
}

fn scaled_floors(claims: &[Claim], given: &[Option<u64>]) -> Vec<Vec<u64>> {
    let mut floors: Vec<Vec<u64>> = claims.iter().map(|claim| claim.floor.clone()).collect();
    for (r, given) in given.iter().enumerate() {
        let column: Vec<u64> = claims.iter().map(|claim| claim.floor[r]).collect();
        if let Some(given) = given {
            for (floor, scaled) in floors.iter_mut().zip(in_proportion(&column, *given)) {
                floor[r] = scaled;
            }
        }
    }
    floors
}

fn in_proportion(amounts: &[u64], given: u64) -> Vec<u64> {
    let sum: u128 = amounts.iter().map(|amount| u128::from(*amount)).sum();
    let given = u128::from(given);
    if sum <= given {
        return amounts.to_vec();
    }
    let mut scaled: Vec<u128> = amounts
        .iter()
        .map(|amount| u128::from(*amount) * given / sum)
        .collect();
    let mut left = given - scaled.iter().sum::<u128>();
    let mut order: Vec<usize> = (0..amounts.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(u128::from(amounts[*at]) * given % sum));
    for at in order {
        let unit = left.min(1);
        scaled[at] += unit;
        left -= unit;
    }
    scaled
        .into_iter()
        .map(|amount| amount.try_into().unwrap())
        .collect()
}

fn whole_units(
    claims: &[Claim],
    floors: &[Vec<u64>],
    states: &[State],
    given: &[Option<u64>],
    used_up: &[bool],
) -> Vec<Vec<u64>> {
    let mut amounts = vec![vec![0; given.len()]; claims.len()];
    for (r, given) in given.iter().enumerate() {
        let rows = claims.iter().zip(floors).zip(states);
        let parts: Vec<u128> = rows
            .map(|((claim, floor), state)| (phi(claim, floor, state, r) + (1 << 47)) >> 48)
            .collect();
        let Some(given) = given else {
            for (row, parts) in amounts.iter_mut().zip(parts) {
                row[r] = parts.div_ceil(65536).try_into().unwrap();
            }
            continue;
        };
        let mut column: Vec<u64> = parts
            .iter()
            .map(|parts| (parts >> 16).try_into().unwrap())
            .collect();
        let mut left = given.saturating_sub(column.iter().sum());
        let mut order: Vec<usize> = (0..claims.len())
            .filter(|at| parts[*at] & 65535 > 0)
            .collect();
        order.sort_by_key(|at| {
            let uses_it = claims[*at].used[r] > column[*at];
            (std::cmp::Reverse(parts[*at] & 65535), !uses_it)
        });
        loop {
            let below: Vec<usize> = order
                .iter()
                .copied()
                .filter(|at| column[*at] < claims[*at].asks_for(r))
                .collect();
            for at in &below {
                let unit = left.min(1);
                column[*at] += unit;
                left -= unit;
            }
            if left == 0 || below.is_empty() || !used_up[r] {
                break;
            }
        }
        for (row, amount) in amounts.iter_mut().zip(column) {
            row[r] = amount;
        }
    }
    amounts
}

/// What each Consumer deserves.
pub(crate) fn deserve(
    consumers: &[Consumer],
    asks: &[Ask],
    capacity: &[Option<u64>],
) -> Vec<Amounts> {
    let mut tree = Tree::new(consumers, asks, capacity);
    let roots = tree.children(None);
    for root in &roots {
        tree.ask(*root);
    }
    let whole = tree.whole.clone();
    tree.divide(&roots, &whole);
    if consumers.iter().any(|consumer| consumer.parent.is_some()) {
        tree.fill_leaves();
    }
    (0..consumers.len())
        .map(|at| tree.sum_of(at).into())
        .collect()
}

struct Tree<'a> {
    consumers: &'a [Consumer],
    whole: Vec<Option<u64>>,
    claims: Vec<Claim>,
    got: Vec<Vec<u64>>,
}

impl<'a> Tree<'a> {
    fn new(consumers: &'a [Consumer], asks: &'a [Ask], capacity: &[Option<u64>]) -> Self {
        let resources = capacity.len();
        let claim = |(consumer, ask): (&Consumer, &Ask)| Claim {
            weight: consumer.weight.into(),
            classes: ask.demand.classes.clone(),
            floor: (0..resources)
                .map(|r| consumer.reserved[r].min(ask.demand.total[r]))
                .collect(),
            cap: vec![None; resources],
            used: ask.used.to_vec(),
        };
        let mut tree = Self {
            consumers,
            whole: capacity.to_vec(),
            claims: consumers.iter().zip(asks).map(claim).collect(),
            got: vec![vec![0; resources]; consumers.len()],
        };
        let unlimited: Vec<usize> = (0..consumers.len())
            .filter(|at| consumers[*at].unlimited)
            .collect();
        for r in 0..resources {
            let asked: Vec<u64> = unlimited
                .iter()
                .map(|at| tree.claims[*at].asks_for(r))
                .collect();
            let scaled =
                capacity[r].map_or(asked.clone(), |capacity| in_proportion(&asked, capacity));
            for (at, amount) in unlimited.iter().zip(&scaled) {
                tree.got[*at][r] = *amount;
            }
            tree.whole[r] = capacity[r].map(|capacity| capacity - scaled.iter().sum::<u64>());
        }
        tree
    }

    fn children(&self, parent: Option<usize>) -> Vec<usize> {
        let all = 0..self.consumers.len();
        all.filter(|at| self.consumers[*at].parent == parent && !self.consumers[*at].unlimited)
            .collect()
    }

    fn ask(&mut self, node: usize) {
        let members = self.children(Some(node));
        if members.is_empty() {
            return;
        }
        for member in &members {
            self.ask(*member);
        }
        let claims: Vec<Claim> = members
            .iter()
            .map(|member| self.claims[*member].clone())
            .collect();
        let consumer = &self.consumers[node];
        let resources = self.whole.len();
        let room: Vec<Option<u64>> = (0..resources)
            .map(|r| match (consumer.hard[r], self.whole[r]) {
                (Some(hard), Some(whole)) => Some(hard.min(whole)),
                (hard, whole) => hard.or(whole),
            })
            .collect();
        let filled = fill(&claims, &self.whole, &room);
        let classes = joint_classes(&claims, &filled, &room);
        let joint = &mut self.claims[node];
        joint.classes = classes;
        joint.used = (0..resources)
            .map(|r| claims.iter().map(|claim| claim.used[r]).sum())
            .collect();
        joint.floor = (0..resources)
            .map(|r| {
                let members: u64 = claims.iter().map(|claim| claim.floor[r]).sum();
                members.max(consumer.reserved[r])
            })
            .collect();
        for r in 0..resources {
            let asked = joint.asks_for(r);
            joint.floor[r] = joint.floor[r].min(asked);
        }
    }

    fn divide(&mut self, children: &[usize], given: &[Option<u64>]) {
        let claims: Vec<Claim> = children
            .iter()
            .map(|child| self.claims[*child].clone())
            .collect();
        let filled = fill(&claims, &self.whole, given);
        let mut left: Vec<Option<u64>> = given.to_vec();
        for row in &filled.amounts {
            for (left, amount) in left.iter_mut().zip(row) {
                *left = left.map(|left| left.saturating_sub(*amount));
            }
        }
        for (child, amounts) in children.iter().zip(filled.amounts) {
            let members = self.children(Some(*child));
            if members.is_empty() {
                self.got[*child] = amounts;
                continue;
            }
            let mut room = Vec::new();
            for (r, left) in left.iter().enumerate() {
                room.push(match left {
                    None => self.consumers[*child].hard[r].map(|_| amounts[r]),
                    Some(left) => Some(amounts[r] + left.min(&self.may_take(*child, &amounts, r))),
                });
            }
            self.divide(&members, &room);
            let sum = self.sum_of(*child);
            for (r, left) in left.iter_mut().enumerate() {
                *left = left.map(|left| (left + amounts[r]).saturating_sub(sum[r]));
            }
        }
    }

    /// How much more a group may take, to the share of its dominant resource.
    fn may_take(&self, group: usize, amounts: &[u64], r: usize) -> u64 {
        let counted: Vec<usize> = (0..amounts.len())
            .filter(|d| self.whole[*d].is_some_and(|whole| whole > 0))
            .collect();
        let Some(whole) = self.whole[r] else { return 0 };
        let same_share = counted.iter().map(|d| {
            let of = self.whole[*d].unwrap();
            u128::from(amounts[*d]) * u128::from(whole) / u128::from(of)
        });
        let most = u64::try_from(same_share.max().unwrap_or(0)).unwrap();
        most.min(self.consumers[group].hard[r].unwrap_or(u64::MAX))
            .saturating_sub(amounts[r])
    }

    fn fill_leaves(&mut self) {
        let leaves: Vec<usize> = (0..self.consumers.len())
            .filter(|at| {
                !self
                    .consumers
                    .iter()
                    .any(|consumer| consumer.parent == Some(*at))
                    && !self.consumers[*at].unlimited
            })
            .collect();
        let claims: Vec<Claim> = leaves
            .iter()
            .map(|leaf| Claim {
                weight: self.leaf_weight(*leaf),
                floor: self.got[*leaf].clone(),
                cap: (0..self.whole.len())
                    .map(|r| self.is_bound_above(*leaf, r).then_some(self.got[*leaf][r]))
                    .collect(),
                ..self.claims[*leaf].clone()
            })
            .collect();
        let filled = fill(&claims, &self.whole, &self.whole);
        for (leaf, amounts) in leaves.into_iter().zip(filled.amounts) {
            self.got[leaf] = amounts;
        }
    }

    fn is_bound_above(&self, leaf: usize, r: usize) -> bool {
        self.consumers[leaf].parent.is_some_and(|group| {
            self.consumers[group].hard[r].is_some() || self.is_bound_above(group, r)
        })
    }

    fn leaf_weight(&self, at: usize) -> u128 {
        let parent = self.consumers[at].parent;
        let above = parent.map_or(1_000_000, |parent| self.leaf_weight(parent));
        let siblings = self.children(parent);
        let asking = siblings
            .iter()
            .filter(|sibling| !self.claims[**sibling].classes.is_empty());
        let sum: u128 = asking.map(|sibling| self.claims[*sibling].weight).sum();
        (above * self.claims[at].weight)
            .checked_div(sum)
            .unwrap_or(1)
            .max(1)
    }

    fn sum_of(&self, at: usize) -> Vec<u64> {
        let members = self.children(Some(at));
        if members.is_empty() {
            return self.got[at].clone();
        }
        let mut sum = vec![0; self.whole.len()];
        for member in members {
            for (sum, amount) in sum.iter_mut().zip(self.sum_of(member)) {
                *sum += amount;
            }
        }
        sum
    }
}

fn joint_classes(claims: &[Claim], filled: &Filled, room: &[Option<u64>]) -> Vec<Class> {
    let resources = room.len();
    let mut sums: std::collections::BTreeMap<Vec<usize>, Vec<u64>> =
        std::collections::BTreeMap::new();
    for (claim, state) in claims.iter().zip(&filled.states) {
        for (class, end) in claim.classes.iter().zip(&state.end) {
            let sum = sums
                .entry(class.needs.iter().collect())
                .or_insert_with(|| vec![0; resources]);
            for (r, sum) in sum.iter_mut().enumerate() {
                let had = u128::from(class.amounts[r]) * state.x.min(*end);
                let parts = (had + (1 << 47)) >> 48;
                *sum += u64::try_from((parts + 65535) >> 16).unwrap();
            }
        }
    }
    let mut classes: Vec<Vec<u64>> = sums.into_values().collect();
    for (r, room) in room.iter().enumerate() {
        let sum: u64 = classes.iter().map(|class| class[r]).sum();
        let mut over = room.map_or(0, |room| sum.saturating_sub(room));
        for class in &mut classes {
            let taken = over.min(class[r]);
            class[r] -= taken;
            over -= taken;
        }
    }
    for r in 0..resources {
        let sum: u64 = classes.iter().map(|class| class[r]).sum();
        let floors: u64 = filled.floors.iter().map(|floor| floor[r]).sum();
        if floors > sum {
            let mut alone = vec![0; resources];
            alone[r] = floors - sum;
            classes.push(alone);
        }
    }
    let mut demand = Demand::nothing(resources);
    for class in classes
        .into_iter()
        .filter(|class| class.iter().any(|amount| *amount > 0))
    {
        let needs = ResourceSet::needed(&class);
        match demand.classes.iter_mut().find(|other| other.needs == needs) {
            Some(other) => other
                .amounts
                .iter_mut()
                .zip(class)
                .for_each(|(sum, amount)| *sum += amount),
            None => demand.classes.push(Class {
                needs,
                amounts: class.into(),
            }),
        }
    }
    demand.classes
}
