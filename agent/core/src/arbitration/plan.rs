//! What to do for each entitled pod: where it fits, or which pods leave for it (`docs/reference/arbitrator.md`, "Who
//! gives back").
//!
//! Entitled pods are served one after the other. Each claims a place: a hole, one that leaving pods will make, or one
//! that the best set of victims on one node makes ([`victims`]). Later pods see the claims of earlier ones, and what
//! was planned for them.

mod candidates;
mod free;
mod holes;
mod kinds;
mod search;
mod sets;
pub mod turns;
mod victims;
mod work;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;

use super::amounts::{ResourceSet, Table};
use super::census::{self, Census};
use super::cluster::{Cluster, NodeState, Pod};
use super::entitled::{self, Entitled};
use super::groups::Deserved;
use candidates::Candidates;
use free::{Free, Parts};
use holes::{Holes, Order, Wanted};
use kinds::Kinds;
use search::{Bound, Price, VictimSet};
use turns::Turns;
use victims::Search;
use work::{Most, Work};

/// After so many changes an order of nodes is made anew for pods that are not like any before: they look at each node
/// that has changed.
const ORDER_KEPT_FOR: usize = 1024;
/// Nodes that all kinds of pods together remember at most, 64 MiB: each pod may be a kind of its own, with room on
/// every node.
const PLACES_MAX: usize = 4 << 20;
/// Orders of nodes that are kept at most, each of all nodes.
const ORDERS_MAX: usize = 128;

/// Nodes on which a search that needs any victims looks first.
const LENIENT_MAX: usize = 8;

/// What is done for an entitled pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A node has room.
    Fits {
        /// Where.
        node: usize,
    },
    /// A node will have room once pods have left that are leaving.
    Leaving {
        /// Where.
        node: usize,
    },
    /// It has not waited long enough for an eviction.
    Grace,
    /// Pods are evicted for it.
    Preempt {
        /// Where.
        node: usize,
        /// In the order in which they go.
        evict: Vec<usize>,
    },
    /// No pods may be evicted that would make enough room.
    Blocked,
    /// There are such pods, but the cycle has evicted enough; or there may be, and it has searched enough for pods of
    /// the namespace.
    Limited,
}

/// One entitled pod, and what is done for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its place.
    pub pod: usize,
    /// What is done.
    pub action: Action,
}

/// Plans for all entitled pods, in the order in which they are served. With what is known of earlier cycles each is
/// looked at in the end, where one cycle cannot search for all.
#[must_use]
pub fn plan(
    cluster: &Cluster,
    census: &Census,
    deserved: &Deserved,
    entitled: &[Entitled],
    turns: &mut Turns,
) -> Vec<Step> {
    plan_within(cluster, census, deserved, entitled, turns, Most::default())
}

fn plan_within(
    cluster: &Cluster,
    census: &Census,
    deserved: &Deserved,
    entitled: &[Entitled],
    turns: &mut Turns,
    most: Most,
) -> Vec<Step> {
    let now = turns.now(cluster, entitled.iter().map(|entitled| entitled.pod));
    let mut planner = Planner::new(cluster, census, deserved, entitled, (now, most));
    let steps = entitled.iter().map(|entitled| Step {
        pod: entitled.pod,
        action: planner.serve(entitled),
    });
    let steps: Vec<Step> = steps.collect();
    let found = steps.iter().filter(|step| {
        let is_found = matches!(step.action, Action::Preempt { .. } | Action::Leaving { .. });
        is_found && planner.in_turn.binary_search(&step.pod).is_ok()
    });
    let found: Vec<usize> = found.map(|step| step.pod).collect();
    turns.note(cluster, &planner.in_turn, &planner.cut, &found);
    steps
}

struct Planner<'a> {
    cluster: &'a Cluster,
    census: &'a Census,
    /// What each namespace deserves, and what is reserved for it.
    deserved: Table<u64>,
    reserved: Table<u64>,
    counted: ResourceSet,
    /// By resource.
    parts: Vec<Parts>,
    /// What each node has free now, less what is claimed; below 0 where more is requested than there is. It only falls.
    free: Free,
    /// The same, once all leaving pods have left.
    free_later: Free,
    /// A pod is leaving. If none is, the same is free later as now.
    any_leaves: bool,
    candidates: Candidates,
    kinds: Kinds,
    /// Sets of two and three that are tried.
    sets: Work,
    /// Pods that are looked at for sets.
    steps: Work,
    /// Pods whose turn it is, ascending.
    in_turn: Vec<usize>,
    /// Pods for which nothing is done, as their search was cut.
    cut: Vec<usize>,
    /// What the candidates of each node request together.
    potential: Table<u64>,
    /// What each namespace uses, as the plan goes on.
    used: Table<u64>,
    /// What the pods of each for which a node has been found in this plan request.
    claimed: Table<u64>,
    /// Of what each uses more than it deserves; an unlimited one of nothing.
    over: Vec<ResourceSet>,
    budgets: Vec<u64>,
    evictions_left: usize,
    /// What victims on each node can be at best, and the nodes in that order: a search that has found good ones first
    /// need not look at the others. Empty until the first search.
    bounds: Vec<Bound>,
    by_bound: Vec<usize>,
    /// When the cycle has evicted enough: nodes with victims for some pod, the last one found first. There may be some
    /// for other pods, too.
    lenient: Vec<usize>,
    changes: Changes,
    /// What is known of pods that are alike.
    known: Vec<Known>,
    /// How many nodes all of them remember.
    places: usize,
    /// Since places were last forgotten.
    orders_made: usize,
    /// Its place, by what makes pods alike.
    alike: BTreeMap<Alike<'a>, usize>,
    orders: BTreeMap<OrderOf<'a>, Rc<Order>>,
}

/// What an order of nodes is for: whether once leaving pods have left, the resources that pods request, and the nodes
/// that they may use.
type OrderOf<'a> = (bool, ResourceSet, Option<&'a [usize]>);

/// What pods request, and the nodes that they may use: of pods that have both in common one has room where the other
/// has. Where it bounds that of victims, their priority as well: then one has victims where the other has.
type Alike<'a> = (&'a [u64], Option<&'a [usize]>, Option<i64>);

/// What was found for pods that are alike. It stays true of all nodes on which nothing has changed since, by the
/// [number of changes](Changes::count).
#[derive(Debug, Default)]
struct Known {
    wanted: Wanted,
    /// Room that is there now.
    now: Option<Holes>,
    /// Room that is there once all leaving pods have left.
    later: Option<Holes>,
    /// No node has room now. None will have: what is free now only falls.
    is_full: bool,
    /// With so many evictions left no node had room even once leaving pods have left. Only an eviction makes room.
    is_full_later: Option<usize>,
    /// There are no victims, at this length; if true not even for a pod that is served at any loss.
    in_vain: Option<(usize, bool)>,
    /// There are none that cost as little as this.
    too_dear: Option<TooDear>,
    /// There are more victims than the cycle may evict.
    too_many: Option<TooMany>,
    /// When the cycle had evicted enough: victims that there would be.
    enough: Option<Enough>,
}

impl Known {
    fn places(&self) -> usize {
        let holes = [&self.now, &self.later];
        holes.into_iter().flatten().map(Holes::places).sum()
    }
}

/// What victims cost at least, if anything can be refused for it.
#[derive(Debug, Clone, Copy)]
struct TooDear {
    seen: usize,
    loss: i128,
    /// The next eviction changes what others lose.
    evictions_left: usize,
}

/// The best victims of a pod are more than the cycle may evict, as long as nothing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TooMany {
    seen: usize,
    price: Price,
}

/// Victims that would be taken if the cycle could evict more.
#[derive(Debug, Clone, Copy)]
struct Enough {
    seen: usize,
    node: usize,
    loss: i128,
    urgent: bool,
}

/// The nodes on which something was claimed or evicted, in that order.
struct Changes {
    nodes: Vec<usize>,
    /// Of each node the number of changes up to its last one.
    last: Vec<usize>,
}

impl Changes {
    fn new(nodes: usize) -> Self {
        Self {
            nodes: Vec::new(),
            last: vec![0; nodes],
        }
    }

    /// How many there have been.
    fn count(&self) -> usize {
        self.nodes.len()
    }

    fn note(&mut self, node: usize) {
        self.nodes.push(node);
        self.last[node] = self.nodes.len();
    }

    /// Whether the node has changed since.
    fn has_since(&self, seen: usize, node: usize) -> bool {
        self.last[node] > seen
    }

    /// The nodes that have changed since, each once.
    fn since(&self, seen: usize) -> impl Iterator<Item = usize> {
        let nodes = self.nodes.iter().copied().enumerate().skip(seen);
        nodes
            .filter(|(at, node)| self.last[*node] == at + 1)
            .map(|(_, node)| node)
    }
}

impl<'a> Planner<'a> {
    fn new(
        cluster: &'a Cluster,
        census: &'a Census,
        deserved: &'a Deserved,
        entitled: &[Entitled],
        (in_turn, most): (Vec<usize>, Most),
    ) -> Self {
        let mut is_waiting = vec![false; cluster.consumers.len()];
        for entitled in entitled {
            is_waiting[cluster.pods[entitled.pod].namespace] = true;
        }
        let (nodes, resources) = (cluster.nodes.len(), cluster.resources.len());
        let mut free = Table::new(nodes, resources, 0);
        for (at, node) in cluster.nodes.iter().enumerate() {
            for (resource, free) in free.row_mut(at).iter_mut().enumerate() {
                *free = i128::from(node.offered(resource));
            }
        }
        let none = Table::new(cluster.consumers.len(), resources, 0);
        let (mut used, mut deserves, mut reserved) = (none.clone(), none.clone(), none.clone());
        for (at, ask) in census.asks.iter().enumerate() {
            used.row_mut(at).copy_from_slice(&ask.used);
            deserves.row_mut(at).copy_from_slice(&deserved.amounts[at]);
            reserved
                .row_mut(at)
                .copy_from_slice(&cluster.consumers[at].reserved);
        }
        let mut over = vec![ResourceSet::default(); cluster.consumers.len()];
        for (at, set) in entitled::overused(&cluster.consumers, &census.asks, deserved) {
            over[at] = set;
        }
        let (mut candidates, mut leaving) = (Vec::new(), Vec::new());
        let mut potential = Table::new(nodes, resources, 0);
        for (at, pod) in cluster.pods.iter().enumerate() {
            let Some(node) = pod.node else { continue };
            subtract(free.row_mut(node), &pod.requests);
            if pod.leaving {
                leaving.push((at, node));
            } else if victims::may_be_victim(pod, &over) {
                candidates.push((at, node));
                let sums = potential.row_mut(node).iter_mut();
                for (sum, request) in sums.zip(&pod.requests) {
                    *sum = u64::saturating_add(*sum, *request);
                }
            }
        }
        let mut free_later = free.clone();
        for (at, node) in &leaving {
            add(free_later.row_mut(*node), &cluster.pods[*at].requests);
        }
        let capacity = census.capacity.iter().copied();
        let parts: Vec<Parts> = capacity.map(Parts::of).collect();
        Self {
            cluster,
            census,
            deserved: deserves,
            reserved,
            counted: census::counted(&census.capacity),
            free: Free::new(free, nodes, &parts),
            free_later: Free::new(free_later, nodes, &parts),
            parts,
            any_leaves: !leaving.is_empty(),
            candidates: Candidates::new(cluster, &candidates),
            kinds: Kinds::new(nodes),
            sets: Work::new(most.sets, &is_waiting, !in_turn.is_empty()),
            steps: Work::new(most.steps, &is_waiting, !in_turn.is_empty()),
            in_turn,
            cut: Vec::new(),
            potential,
            used,
            claimed: none,
            over,
            budgets: cluster.budgets.clone(),
            evictions_left: cluster.options.max_evictions_per_cycle,
            bounds: Vec::new(),
            by_bound: Vec::new(),
            lenient: Vec::new(),
            changes: Changes::new(nodes),
            known: Vec::new(),
            places: 0,
            orders_made: 0,
            alike: BTreeMap::new(),
            orders: BTreeMap::new(),
        }
    }

    fn serve(&mut self, entitled: &Entitled) -> Action {
        let pod = &self.cluster.pods[entitled.pod];
        let next = self.known.len();
        let at = *self
            .alike
            .entry((
                &pod.requests,
                pod.nodes.as_deref(),
                self.priority_limit(pod),
            ))
            .or_insert(next);
        let mut known = if at == next {
            self.known.push(Known::default());
            self.first_of(pod)
        } else {
            std::mem::take(&mut self.known[at])
        };
        let places = known.places();
        let is_unlimited = self.cluster.consumers[pod.namespace].unlimited;
        let action = if let Some(action) = self.find_room(entitled.pod, &mut known) {
            action
        } else if pod.waiting < self.cluster.options.reclaim_grace_period && !is_unlimited {
            Action::Grace
        } else {
            self.find_victims(entitled, &mut known)
        };
        self.places = self.places + known.places() - places;
        self.known[at] = known;
        if self.places > PLACES_MAX || self.orders_made > ORDERS_MAX {
            self.forget_places();
        }
        action
    }

    /// What is remembered of nodes is found again by who needs it.
    fn forget_places(&mut self) {
        for known in &mut self.known {
            (known.now, known.later) = (None, None);
        }
        self.orders.clear();
        (self.places, self.orders_made) = (0, 0);
    }

    /// The nodes on which something has changed since, or all, in the order of their bounds.
    fn nodes_since(&mut self, seen: Option<usize>) -> Vec<usize> {
        if let Some(seen) = seen {
            return self.changes.since(seen).collect();
        }
        if self.bounds.is_empty() {
            self.bounds = self.bounds();
            self.by_bound = (0..self.cluster.nodes.len()).collect();
            self.by_bound.sort_by_key(|node| self.bounds[*node]);
        }
        self.by_bound.clone()
    }

    /// What is known of pods when the first of those that are alike is served.
    fn first_of(&self, pod: &Pod) -> Known {
        let requests = pod.requests.iter().copied().enumerate();
        let needs = requests.filter(|(at, request)| *request > 0 && self.counted.contains(*at));
        let needs: Vec<(usize, u64)> = needs.collect();
        Known {
            wanted: Wanted::new(needs, &self.parts),
            ..Known::default()
        }
    }

    /// Points 1 and 2: a node that has room, or will have it.
    fn find_room(&mut self, pod: usize, known: &mut Known) -> Option<Action> {
        if !known.is_full {
            if let Some(node) = self.best_fit(pod, known, false) {
                self.claim(node, pod);
                return Some(Action::Fits { node });
            }
            known.is_full = true;
            known.now = None;
        }
        if !self.any_leaves || known.is_full_later == Some(self.evictions_left) {
            return None;
        }
        let Some(node) = self.best_fit(pod, known, true) else {
            known.is_full_later = Some(self.evictions_left);
            return None;
        };
        self.claim(node, pod);
        Some(Action::Leaving { node })
    }

    /// Of the nodes with room for the pod, now or later, the one that it leaves least of, of equals the lesser name.
    fn best_fit(&mut self, pod: usize, known: &mut Known, later: bool) -> Option<usize> {
        let (free, holes) = if later {
            (&self.free_later, &mut known.later)
        } else {
            (&self.free, &mut known.now)
        };
        let wanted = &known.wanted;
        let (cluster, changes) = (self.cluster, &self.changes);
        let pod = &cluster.pods[pod];
        let holes = holes.get_or_insert_with(|| {
            let resources = wanted.resources();
            let mut set = ResourceSet::default();
            resources.iter().for_each(|at| set.insert(*at));
            let mut make = || {
                self.orders_made += 1;
                Rc::new(Order::new(
                    usable(cluster, pod),
                    &resources,
                    free,
                    changes.count(),
                ))
            };
            let key = (later, set, pod.nodes.as_deref());
            let order = match self.orders.entry(key) {
                Entry::Vacant(vacant) => vacant.insert(make()),
                Entry::Occupied(known) => {
                    let order = known.into_mut();
                    if changes.count() - order.seen > ORDER_KEPT_FOR {
                        *order = make();
                    }
                    order
                }
            };
            Holes::new(Rc::clone(order))
        });
        let fit = |node: usize| wanted.fit(free, &self.parts, node);
        holes.best(changes, wanted, |node| pod.may_use(node), fit)
    }

    /// Points 4 and 5: the best victims, if there are any and the cycle may evict so many.
    fn find_victims(&mut self, entitled: &Entitled, known: &mut Known) -> Action {
        let urgent = self.is_urgent(entitled);
        if self.evictions_left == 0
            && known
                .enough
                .is_some_and(|enough| self.holds(enough, entitled))
        {
            return Action::Limited;
        }
        if self.evictions_left == 0 {
            let search = self.victims(entitled, &self.lenient);
            self.count_work(entitled, &search);
            if search.best.is_some() {
                return Action::Limited;
            }
        }
        let price = self.price(entitled);
        let seen = self.changes.count();
        if known.too_many == Some(TooMany { seen, price }) {
            return Action::Limited;
        }
        let too_dear = known.too_dear.filter(|known| {
            let gain = price.gain();
            known.evictions_left == self.evictions_left
                && gain.is_some_and(|gain| gain <= known.loss)
        });
        let in_vain = known
            .in_vain
            .filter(|(_, even_urgent)| *even_urgent || !urgent);
        let since = too_dear.map(|known| known.seen);
        let nodes = self.nodes_since(since.max(in_vain.map(|(seen, _)| seen)));
        let search = self.victims(entitled, &nodes);
        let is_cut = search.is_cut();
        self.count_work(entitled, &search);
        let Some((loss, VictimSet { node, pods })) = search.best else {
            let least = [search.closest, too_dear.map(|known| known.loss)];
            match least.into_iter().flatten().min() {
                _ if is_cut => {
                    self.cut.push(entitled.pod);
                    return Action::Limited;
                }
                None => known.in_vain = Some((seen, urgent)),
                Some(loss) => {
                    known.too_dear = Some(TooDear {
                        seen,
                        loss,
                        evictions_left: self.evictions_left,
                    });
                }
            }
            return Action::Blocked;
        };
        if pods.len() > self.evictions_left {
            if self.evictions_left == 0 {
                known.enough = Some(Enough {
                    seen,
                    node,
                    loss,
                    urgent,
                });
                self.lenient.truncate(LENIENT_MAX - 1);
                self.lenient.insert(0, node);
            } else if !is_cut {
                known.too_many = Some(TooMany { seen, price });
            }
            return Action::Limited;
        }
        self.evict(node, &pods);
        self.claim(node, entitled.pod);
        Action::Preempt { node, evict: pods }
    }

    fn count_work(&mut self, entitled: &Entitled, search: &Search) {
        let namespace = self.cluster.pods[entitled.pod].namespace;
        let has_turn = self.has_turn(entitled);
        self.sets.spend(namespace, has_turn, search.sets.done);
        self.steps.spend(namespace, has_turn, search.steps.done);
    }

    fn has_turn(&self, entitled: &Entitled) -> bool {
        self.in_turn.binary_search(&entitled.pod).is_ok()
    }

    /// Whether the pod may use the node, and the node could hold it if it were empty.
    fn is_usable(&self, pod: usize, node: usize) -> bool {
        let pod = &self.cluster.pods[pod];
        pod.may_use(node)
            && census::could_hold(&self.cluster.nodes[node], self.counted, &pod.requests)
    }

    fn claim(&mut self, node: usize, pod: usize) {
        let requests = &self.cluster.pods[pod].requests;
        self.free.change(node, subtract, requests, &self.parts);
        self.free_later
            .change(node, subtract, requests, &self.parts);
        let claimed = self.claimed.row_mut(self.cluster.pods[pod].namespace);
        for (claimed, request) in claimed.iter_mut().zip(requests) {
            *claimed = claimed.saturating_add(*request);
        }
        self.changes.note(node);
    }

    /// From now on the pods are leaving.
    fn evict(&mut self, node: usize, pods: &[usize]) {
        self.candidates.remove(node, pods);
        self.kinds.forget(node);
        self.any_leaves = true;
        self.evictions_left -= pods.len();
        for pod in pods {
            let pod = &self.cluster.pods[*pod];
            self.free_later
                .change(node, add, &pod.requests, &self.parts);
            for (used, request) in self
                .used
                .row_mut(pod.namespace)
                .iter_mut()
                .zip(&pod.requests)
            {
                // What is used saturates where it is counted.
                *used = used.saturating_sub(*request);
            }
            self.over[pod.namespace] = ResourceSet::greater(
                self.used.row(pod.namespace),
                self.deserved.row(pod.namespace),
            );
            for (sum, request) in self.potential.row_mut(node).iter_mut().zip(&pod.requests) {
                *sum = sum.saturating_sub(*request);
            }
            for budget in &pod.budgets {
                self.budgets[*budget] -= 1;
            }
        }
        self.changes.note(node);
    }
}

/// The nodes on which the pod may start.
fn usable<'a>(cluster: &'a Cluster, pod: &'a Pod) -> impl Iterator<Item = usize> + 'a {
    let all = pod.nodes.is_none().then_some(0..cluster.nodes.len());
    let some = pod.nodes.as_deref().unwrap_or_default();
    let nodes = all.into_iter().flatten().chain(some.iter().copied());
    nodes.filter(|node| cluster.nodes[*node].state == NodeState::Ready)
}

fn add(row: &mut [i128], requests: &[u64]) {
    for (left, request) in row.iter_mut().zip(requests) {
        *left += i128::from(*request);
    }
}

fn subtract(row: &mut [i128], requests: &[u64]) {
    for (left, request) in row.iter_mut().zip(requests) {
        *left -= i128::from(*request);
    }
}

/// An amount as a part of the capacity, in 2 to the power of `-bits`; 0 of what there is nothing of.
fn part_of(amount: i128, capacity: Option<u64>, bits: u32) -> i128 {
    (amount << bits)
        .checked_div(i128::from(capacity.unwrap_or(0)))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitration::amounts::Resources;
    use crate::arbitration::groups::Consumer;

    mod effort;
    mod priority;

    /// One that shares with others like it, and has no bounds.
    pub(super) fn plain_consumer(resources: &Resources) -> Consumer {
        Consumer {
            parent: None,
            weight: 1,
            hard: resources.unbounded(),
            reserved: resources.none(),
            unlimited: false,
        }
    }

    /// So much is free on each node.
    pub(super) fn free_of(rows: &[[u64; 2]], parts: &[Parts]) -> Free {
        let mut exact = Table::new(rows.len(), 2, 0);
        for (at, row) in rows.iter().enumerate() {
            add(exact.row_mut(at), row);
        }
        Free::new(exact, rows.len(), parts)
    }
}
