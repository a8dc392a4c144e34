//! What to do for each entitled pod: where it fits, or which pods leave for it (ARBITRATOR.md, section 6).
//!
//! Entitled pods are served one after the other. Each claims a place: a hole, one that leaving pods will make, or one that the best set of victims on one node
//! makes ([`victims`]). Later pods see the claims of earlier ones, and what was planned for them.

mod victims;

use std::collections::BTreeMap;

use super::amounts::{ResourceSet, Table};
use super::census::{self, Census};
use super::cluster::Cluster;
use super::entitled::Entitled;
use super::groups::Deserved;
use victims::Victims;

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
    /// What each node has free now, less what is claimed; below 0 where more is requested than there is. It only falls.
    free: Table<i128>,
    /// The same, once all leaving pods have left.
    free_later: Table<i128>,
    /// The pods on each node that may be victims of some pod.
    candidates: Vec<Vec<usize>>,
    /// What they request together.
    potential: Table<u64>,
    /// What each namespace uses, as the plan goes on.
    used: Table<u64>,
    budgets: Vec<u64>,
    evictions_left: usize,
    /// The nodes on which something was claimed or evicted, in that order.
    changed: Vec<usize>,
    /// What is known of pods that may use all nodes, by what they request.
    known: BTreeMap<&'a [u64], Known>,
}

/// What was found for pods that request the same. It stays true of all nodes on which nothing has changed since.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// No node has room, nor will have it: at this length of [`Planner::changed`].
    no_room: Option<usize>,
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
        for (at, ask) in census.asks.iter().enumerate() {
            used.row_mut(at).copy_from_slice(&ask.used);
        }
        let mut planner = Self {
            cluster,
            census,
            deserved,
            counted: census::counted(&census.capacity),
            free_later: free.clone(),
            free,
            candidates: vec![Vec::new(); nodes],
            potential: Table::new(nodes, resources, 0),
            used,
            budgets: cluster.budgets.clone(),
            evictions_left: cluster.options.max_evictions_per_cycle,
            changed: Vec::new(),
            known: BTreeMap::new(),
        };
        for (at, pod) in cluster.pods.iter().enumerate() {
            if let Some(node) = pod.node {
                planner.place(at, node);
            }
        }
        planner
    }

    /// A pod that is on a node at the start.
    fn place(&mut self, at: usize, node: usize) {
        let pod = &self.cluster.pods[at];
        subtract(self.free.row_mut(node), &pod.requests);
        if pod.leaving {
            return;
        }
        subtract(self.free_later.row_mut(node), &pod.requests);
        if self.may_be_victim(at) {
            self.candidates[node].push(at);
            for (sum, request) in self.potential.row_mut(node).iter_mut().zip(&pod.requests) {
                *sum = sum.saturating_add(*request);
            }
        }
    }

    fn serve(&mut self, entitled: &Entitled) -> Action {
        let pod = &self.cluster.pods[entitled.pod];
        let mut known = Known::default();
        if pod.nodes.is_none() {
            known = self.known.get(&*pod.requests).copied().unwrap_or_default();
        }
        if let Some(action) = self.find_room(entitled.pod, &mut known) {
            return action;
        }
        let is_unlimited = self.cluster.consumers[pod.namespace].unlimited;
        let action = if pod.waiting < self.cluster.options.reclaim_grace_period && !is_unlimited {
            Action::Grace
        } else {
            self.find_victims(entitled, &mut known)
        };
        if pod.nodes.is_none() {
            self.known.insert(&pod.requests, known);
        }
        action
    }

    /// The nodes on which something has changed since, or all.
    fn nodes_since(&self, seen: Option<usize>) -> Vec<usize> {
        let Some(seen) = seen else {
            return (0..self.cluster.nodes.len()).collect();
        };
        let mut nodes = self.changed[seen..].to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Points 1 and 2: a node that has room, or will have it.
    fn find_room(&mut self, pod: usize, known: &mut Known) -> Option<Action> {
        let nodes = self.nodes_since(known.no_room);
        // What is free now only falls.
        let now = if known.no_room.is_none() {
            self.best_fit(pod, &nodes, &self.free)
        } else {
            None
        };
        if let Some(node) = now {
            self.claim(node, pod);
            return Some(Action::Fits { node });
        }
        if let Some(node) = self.best_fit(pod, &nodes, &self.free_later) {
            self.claim(node, pod);
            return Some(Action::Leaving { node });
        }
        known.no_room = Some(self.changed.len());
        None
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
        let in_vain = known
            .in_vain
            .filter(|(_, even_urgent)| *even_urgent || !urgent);
        let nodes = self.nodes_since(in_vain.map(|(seen, _)| seen));
        let search = self.victims(entitled, &nodes);
        let seen = self.changed.len();
        let Some((loss, Victims { node, pods })) = search.best else {
            if !search.is_close {
                known.in_vain = Some((seen, urgent));
            }
            return Action::Blocked;
        };
        if pods.len() > self.evictions_left {
            known.enough = (self.evictions_left == 0).then_some(Enough {
                seen,
                node,
                loss,
                urgent,
            });
            return Action::Limited;
        }
        self.evict(node, &pods);
        self.claim(node, entitled.pod);
        Action::Preempt { node, evict: pods }
    }

    /// Whether the pod may use the node, and the node could hold it if it were empty.
    fn is_usable(&self, pod: usize, node: usize) -> bool {
        let pod = &self.cluster.pods[pod];
        let may_use = pod
            .nodes
            .as_ref()
            .is_none_or(|nodes| nodes.binary_search(&node).is_ok());
        may_use && census::could_hold(&self.cluster.nodes[node], self.counted, &pod.requests)
    }

    /// Of the nodes with room for the pod the one that it leaves least of, of equals the lesser name.
    fn best_fit(&self, pod: usize, nodes: &[usize], free: &Table<i128>) -> Option<usize> {
        let requests = &self.cluster.pods[pod].requests;
        let needed = ResourceSet::needed(requests);
        let counted = || {
            needed
                .iter()
                .filter(|resource| self.counted.contains(*resource))
        };
        let fit = |node: usize| {
            let left = |resource: usize| free.row(node)[resource] - i128::from(requests[resource]);
            if counted().any(|resource| left(resource) < 0) || !self.is_usable(pod, node) {
                return None;
            }
            let rest: i128 = counted()
                .map(|resource| part_of(left(resource), self.census.capacity[resource], 32))
                .sum();
            Some((rest, node))
        };
        nodes
            .iter()
            .filter_map(|node| fit(*node))
            .min()
            .map(|(_, node)| node)
    }

    fn claim(&mut self, node: usize, pod: usize) {
        let pod = &self.cluster.pods[pod];
        subtract(self.free.row_mut(node), &pod.requests);
        subtract(self.free_later.row_mut(node), &pod.requests);
        self.changed.push(node);
    }

    /// From now on the pods are leaving.
    fn evict(&mut self, node: usize, pods: &[usize]) {
        self.candidates[node].retain(|pod| !pods.contains(pod));
        self.changed.push(node);
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
            for (sum, request) in self.potential.row_mut(node).iter_mut().zip(&pod.requests) {
                *sum = sum.saturating_sub(*request);
            }
            for budget in &pod.budgets {
                self.budgets[*budget] -= 1;
            }
        }
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
