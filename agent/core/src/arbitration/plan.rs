//! What to do for each entitled pod: where it fits, or which pods leave for it (ARBITRATOR.md, section 6).
//!
//! Entitled pods are served one after the other. Each claims a place: a hole, one that leaving pods will make, or one that the best set of victims on one node
//! makes ([`victims`]). Later pods see the claims of earlier ones, and what was planned for them.

mod candidates;
mod holes;
mod victims;

use std::collections::BTreeMap;

use super::amounts::{ResourceSet, Table};
use super::census::{self, Census};
use super::cluster::{Cluster, NodeState};
use super::entitled::Entitled;
use super::groups::Deserved;
use candidates::Candidates;
use holes::{Fit, Holes};
use victims::Victims;

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
    /// There are such pods, but the cycle has evicted enough.
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

/// Plans for all entitled pods, in the order in which they are served.
#[must_use]
pub fn plan(
    cluster: &Cluster,
    census: &Census,
    deserved: &Deserved,
    entitled: &[Entitled],
) -> Vec<Step> {
    let mut planner = Planner::new(cluster, census, deserved);
    let steps = entitled.iter().map(|entitled| Step {
        pod: entitled.pod,
        action: planner.serve(entitled),
    });
    steps.collect()
}

struct Planner<'a> {
    cluster: &'a Cluster,
    census: &'a Census,
    deserved: &'a Deserved,
    counted: ResourceSet,
    /// By resource.
    parts: Vec<Parts>,
    /// What each node has free now, less what is claimed; below 0 where more is requested than there is. It only falls.
    free: Table<i128>,
    /// The same, once all leaving pods have left.
    free_later: Table<i128>,
    /// How much of the cluster `free` and `free_later` are, in 2⁻³², rounded down.
    part_free: Table<u64>,
    part_free_later: Table<u64>,
    candidates: Candidates,
    /// What they request together.
    potential: Table<u64>,
    /// What each namespace uses, as the plan goes on.
    used: Table<u64>,
    /// Of what each uses more than it deserves.
    over: Vec<ResourceSet>,
    budgets: Vec<u64>,
    evictions_left: usize,
    /// When the cycle has evicted enough: nodes with victims for some pod, the last one found first. There may be some for other pods, too.
    lenient: Vec<usize>,
    changes: Changes,
    /// What is known of pods that are alike.
    known: Vec<Known>,
    /// Its place, by what makes pods alike.
    alike: BTreeMap<Alike<'a>, usize>,
}

/// What pods request, and the nodes that they may use: of pods that have both in common one has room where the other has.
type Alike<'a> = (&'a [u64], Option<&'a [usize]>);

/// What was found for pods that are alike. It stays true of all nodes on which nothing has changed since, by the [number of changes](Changes::count).
#[derive(Debug, Default)]
struct Known {
    /// Room that is there now.
    now: Holes,
    /// Room that is there once all leaving pods have left.
    later: Holes,
    /// There are no victims, at this length; if true not even for a pod that is served at any loss.
    in_vain: Option<(usize, bool)>,
    /// When the cycle had evicted enough: victims that there would be.
    enough: Option<Enough>,
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
    fn new(cluster: &'a Cluster, census: &'a Census, deserved: &'a Deserved) -> Self {
        let (nodes, resources) = (cluster.nodes.len(), cluster.resources.len());
        let mut free = Table::new(nodes, resources, 0);
        for (at, node) in cluster.nodes.iter().enumerate() {
            for (resource, free) in free.row_mut(at).iter_mut().enumerate() {
                *free = i128::from(node.offered(resource));
            }
        }
        let mut used = Table::new(cluster.consumers.len(), resources, 0);
        let mut over = Vec::with_capacity(census.asks.len());
        for (at, ask) in census.asks.iter().enumerate() {
            used.row_mut(at).copy_from_slice(&ask.used);
            over.push(ResourceSet::greater(&ask.used, &deserved.amounts[at]));
        }
        let mut planner = Self {
            cluster,
            census,
            deserved,
            counted: census::counted(&census.capacity),
            parts: census
                .capacity
                .iter()
                .map(|capacity| Parts::of(*capacity))
                .collect(),
            free_later: free.clone(),
            part_free: Table::new(nodes, resources, 0),
            part_free_later: Table::new(nodes, resources, 0),
            free,
            candidates: Candidates::default(),
            potential: Table::new(nodes, resources, 0),
            used,
            over,
            budgets: cluster.budgets.clone(),
            evictions_left: cluster.options.max_evictions_per_cycle,
            lenient: Vec::new(),
            changes: Changes::new(nodes),
            known: Vec::new(),
            alike: BTreeMap::new(),
        };
        let mut candidates = Vec::new();
        for (at, pod) in cluster.pods.iter().enumerate() {
            let Some(node) = pod.node else { continue };
            subtract(planner.free.row_mut(node), &pod.requests);
            if pod.leaving {
                continue;
            }
            subtract(planner.free_later.row_mut(node), &pod.requests);
            if planner.may_be_victim(at) {
                candidates.push((at, node));
                let sums = planner.potential.row_mut(node).iter_mut();
                for (sum, request) in sums.zip(&pod.requests) {
                    *sum = sum.saturating_add(*request);
                }
            }
        }
        for node in 0..nodes {
            planner.count_free(node);
        }
        planner.candidates = Candidates::new(cluster, &candidates);
        planner
    }

    fn serve(&mut self, entitled: &Entitled) -> Action {
        let pod = &self.cluster.pods[entitled.pod];
        let next = self.known.len();
        let at = *self
            .alike
            .entry((&pod.requests, pod.nodes.as_deref()))
            .or_insert(next);
        let mut known = if at == next {
            self.known.push(Known::default());
            Known::default()
        } else {
            std::mem::take(&mut self.known[at])
        };
        let is_unlimited = self.cluster.consumers[pod.namespace].unlimited;
        let action = if let Some(action) = self.find_room(entitled.pod, &mut known) {
            action
        } else if pod.waiting < self.cluster.options.reclaim_grace_period && !is_unlimited {
            Action::Grace
        } else {
            self.find_victims(entitled, &mut known)
        };
        self.known[at] = known;
        action
    }

    /// The nodes on which something has changed since, or all.
    fn nodes_since(&self, seen: Option<usize>) -> Vec<usize> {
        let Some(seen) = seen else {
            return (0..self.cluster.nodes.len()).collect();
        };
        let mut nodes: Vec<usize> = self.changes.since(seen).collect();
        nodes.sort_unstable();
        nodes
    }

    /// Points 1 and 2: a node that has room, or will have it.
    fn find_room(&mut self, pod: usize, known: &mut Known) -> Option<Action> {
        let action =
            if let Some(node) = self.best_fit(pod, &mut known.now, &self.free, &self.part_free) {
                Action::Fits { node }
            } else {
                let (free, part) = (&self.free_later, &self.part_free_later);
                let node = self.best_fit(pod, &mut known.later, free, part)?;
                Action::Leaving { node }
            };
        if let Action::Fits { node } | Action::Leaving { node } = action {
            self.claim(node, pod);
        }
        Some(action)
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
        if self.evictions_left == 0 && self.victims(entitled, &self.lenient).best.is_some() {
            return Action::Limited;
        }
        let in_vain = known
            .in_vain
            .filter(|(_, even_urgent)| *even_urgent || !urgent);
        let nodes = self.nodes_since(in_vain.map(|(seen, _)| seen));
        let search = self.victims(entitled, &nodes);
        let seen = self.changes.count();
        let Some((loss, Victims { node, pods })) = search.best else {
            if !search.is_close {
                known.in_vain = Some((seen, urgent));
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
            }
            return Action::Limited;
        }
        self.evict(node, &pods);
        self.claim(node, entitled.pod);
        Action::Preempt { node, evict: pods }
    }

    /// Whether the pod may use the node, and the node could hold it if it were empty.
    fn is_usable(&self, pod: usize, node: usize) -> bool {
        let pod = &self.cluster.pods[pod];
        pod.may_use(node)
            && census::could_hold(&self.cluster.nodes[node], self.counted, &pod.requests)
    }

    /// Of the nodes with room for the pod the one that it leaves least of, of equals the lesser name.
    fn best_fit(
        &self,
        pod: usize,
        holes: &mut Holes,
        free: &Table<i128>,
        part_free: &Table<u64>,
    ) -> Option<usize> {
        let pod = &self.cluster.pods[pod];
        let needed = ResourceSet::needed(&pod.requests);
        let needed: Vec<(usize, i128)> = needed
            .iter()
            .filter(|resource| self.counted.contains(*resource))
            .map(|resource| (resource, i128::from(pod.requests[resource])))
            .collect();
        // What is rounded down twice can be one less.
        let requested = needed
            .iter()
            .map(|(resource, request)| self.parts[*resource].part(*request) + 1)
            .sum::<u64>();
        let has_room = |node: usize| {
            let free = free.row(node);
            needed
                .iter()
                .all(|(resource, request)| free[*resource] >= *request)
                && self.cluster.nodes[node].state == NodeState::Ready
                && pod.may_use(node)
        };
        let at_least = |node: usize| {
            let parts = part_free.row(node);
            let parts = needed.iter().map(|(resource, _)| parts[*resource]);
            has_room(node).then(|| parts.sum::<u64>().saturating_sub(requested))
        };
        let fit = |node: usize| -> Option<Fit> {
            let free = free.row(node);
            let rest = needed
                .iter()
                .map(|(resource, request)| self.parts[*resource].part(free[*resource] - request));
            has_room(node).then(|| (rest.sum(), node))
        };
        match &pod.nodes {
            None => holes.best(&self.changes, 0..self.cluster.nodes.len(), at_least, fit),
            Some(nodes) => holes.best(&self.changes, nodes.iter().copied(), at_least, fit),
        }
    }

    /// Counts anew how much of the cluster is free on a node.
    fn count_free(&mut self, node: usize) {
        let of = [
            (&self.free, &mut self.part_free),
            (&self.free_later, &mut self.part_free_later),
        ];
        for (free, parts) in of {
            let rows = free.row(node).iter().zip(parts.row_mut(node));
            for ((free, part), parts) in rows.zip(&self.parts) {
                *part = parts.part(*free);
            }
        }
    }

    fn note_change(&mut self, node: usize) {
        self.count_free(node);
        self.changes.note(node);
    }

    fn claim(&mut self, node: usize, pod: usize) {
        let pod = &self.cluster.pods[pod];
        subtract(self.free.row_mut(node), &pod.requests);
        subtract(self.free_later.row_mut(node), &pod.requests);
        self.note_change(node);
    }

    /// From now on the pods are leaving.
    fn evict(&mut self, node: usize, pods: &[usize]) {
        self.candidates.remove(node, pods);
        self.evictions_left -= pods.len();
        for pod in pods {
            let pod = &self.cluster.pods[*pod];
            for (free, request) in self.free_later.row_mut(node).iter_mut().zip(&pod.requests) {
                *free += i128::from(*request);
            }
            for (used, request) in self
                .used
                .row_mut(pod.namespace)
                .iter_mut()
                .zip(&pod.requests)
            {
                *used -= request;
            }
            self.over[pod.namespace] = ResourceSet::greater(
                self.used.row(pod.namespace),
                &self.deserved.amounts[pod.namespace],
            );
            for (sum, request) in self.potential.row_mut(node).iter_mut().zip(&pod.requests) {
                *sum = sum.saturating_sub(*request);
            }
            for budget in &pod.budgets {
                self.budgets[*budget] -= 1;
            }
        }
        self.note_change(node);
    }
}

fn subtract(row: &mut [i128], requests: &[u64]) {
    for (left, request) in row.iter_mut().zip(requests) {
        *left -= i128::from(*request);
    }
}

/// The capacity of a resource, to tell what part of it an amount is, in 2⁻³². By a multiplication: a plan asks for millions of them.
struct Parts {
    capacity: u128,
    /// 2⁹² divided by the capacity.
    reciprocal: u128,
}

impl Parts {
    fn of(capacity: Option<u64>) -> Self {
        let capacity = u128::from(capacity.unwrap_or(0));
        Self {
            capacity,
            reciprocal: (1_u128 << 92).checked_div(capacity).unwrap_or(0),
        }
    }

    /// Rounded down: of less than nothing 0, of more than there is the whole; no ready node has more.
    fn part(&self, amount: i128) -> u64 {
        let amount = amount.max(0).unsigned_abs().min(self.capacity);
        // The reciprocal is rounded down by less than one, and the amount is below 2⁶⁰: the product can be short of one.
        let low = (amount * self.reciprocal) >> 60;
        let is_short = (low + 1) * self.capacity <= amount << 32 && self.capacity > 0;
        u64::try_from(low + u128::from(is_short)).unwrap_or(u64::MAX)
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

    #[test]
    fn a_part_is_what_a_division_says() {
        let amounts = [
            0,
            1,
            2,
            3,
            999,
            1000,
            4095,
            1 << 31,
            (1 << 36) + 7,
            (1 << 48) - 1,
            (1 << 60) - 1,
        ];
        for capacity in amounts {
            let parts = Parts::of(Some(capacity));
            for amount in amounts.into_iter().filter(|amount| *amount <= capacity) {
                let amount = i128::from(amount);
                let exact = part_of(amount, Some(capacity), 32);
                assert_eq!(
                    i128::from(parts.part(amount)),
                    exact,
                    "{amount} of {capacity}"
                );
            }
        }
        assert_eq!(Parts::of(None).part(5), 0);
        assert_eq!(Parts::of(Some(5)).part(-1), 0);
    }
}
