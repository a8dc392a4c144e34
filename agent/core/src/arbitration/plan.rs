//! What to do for each entitled pod: where it fits, or which pods leave for it (ARBITRATOR.md, section 6).
//!
//! Entitled pods are served one after the other. Each claims a place: a hole, one that leaving pods will make, or one that the best set of victims on one node
//! makes ([`victims`]). Later pods see the claims of earlier ones, and what was planned for them.

mod victims;

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
    /// What each node has free now, less what is claimed; below 0 where more is requested than there is.
    free: Table<i128>,
    /// The same, once all leaving pods have left.
    free_later: Table<i128>,
    /// The pods that run on each node and do not leave.
    staying: Vec<Vec<usize>>,
    /// What each namespace uses, as the plan goes on.
    used: Table<u64>,
    budgets: Vec<u64>,
    evictions_left: usize,
}

impl<'a> Planner<'a> {
    fn new(cluster: &'a Cluster, census: &'a Census, deserved: &'a Deserved) -> Self {
        let resources = cluster.resources.len();
        let mut free = Table::new(cluster.nodes.len(), resources, 0);
        for (at, node) in cluster.nodes.iter().enumerate() {
            for (resource, free) in free.row_mut(at).iter_mut().enumerate() {
                *free = i128::from(node.offered(resource));
            }
        }
        let mut free_later = free.clone();
        let mut staying = vec![Vec::new(); cluster.nodes.len()];
        for (at, pod) in cluster.pods.iter().enumerate() {
            let Some(node) = pod.node else { continue };
            subtract(free.row_mut(node), &pod.requests);
            if !pod.leaving {
                subtract(free_later.row_mut(node), &pod.requests);
                staying[node].push(at);
            }
        }
        let mut used = Table::new(cluster.consumers.len(), resources, 0);
        for (at, ask) in census.asks.iter().enumerate() {
            used.row_mut(at).copy_from_slice(&ask.used);
        }
        Self {
            cluster,
            census,
            deserved,
            counted: census::counted(&census.capacity),
            free,
            free_later,
            staying,
            used,
            budgets: cluster.budgets.clone(),
            evictions_left: cluster.options.max_evictions_per_cycle,
        }
    }

    fn serve(&mut self, entitled: &Entitled) -> Action {
        let pod = &self.cluster.pods[entitled.pod];
        let is_unlimited = self.cluster.consumers[pod.namespace].unlimited;
        if let Some(node) = self.best_fit(entitled.pod, &self.free) {
            self.claim(node, entitled.pod);
            return Action::Fits { node };
        }
        if let Some(node) = self.best_fit(entitled.pod, &self.free_later) {
            self.claim(node, entitled.pod);
            return Action::Leaving { node };
        }
        if pod.waiting < self.cluster.options.reclaim_grace_period && !is_unlimited {
            return Action::Grace;
        }
        match self.victims(entitled) {
            None => Action::Blocked,
            Some(victims) if victims.pods.len() > self.evictions_left => Action::Limited,
            Some(Victims { node, pods }) => {
                self.evict(node, &pods);
                self.claim(node, entitled.pod);
                Action::Preempt { node, evict: pods }
            }
        }
    }

    /// The nodes that the pod may use, and that could hold it if they were empty.
    fn usable(&self, pod: usize) -> impl Iterator<Item = usize> {
        let pod = &self.cluster.pods[pod];
        let may_use = |node: &usize| {
            pod.nodes
                .as_ref()
                .is_none_or(|nodes| nodes.binary_search(node).is_ok())
        };
        let could_hold = |node: &usize| {
            census::could_hold(&self.cluster.nodes[*node], self.counted, &pod.requests)
        };
        (0..self.cluster.nodes.len())
            .filter(may_use)
            .filter(could_hold)
    }

    /// Of the nodes with room for the pod the one that it leaves least of, of equals the lesser name.
    fn best_fit(&self, pod: usize, free: &Table<i128>) -> Option<usize> {
        let requests = &self.cluster.pods[pod].requests;
        let needed = ResourceSet::needed(requests);
        let fit = |node: usize| {
            let mut rest = 0;
            for resource in needed
                .iter()
                .filter(|resource| self.counted.contains(*resource))
            {
                let left = free.row(node)[resource] - i128::from(requests[resource]);
                if left < 0 {
                    return None;
                }
                rest += part_of(left, self.census.capacity[resource], 32);
            }
            Some((rest, node))
        };
        self.usable(pod).filter_map(fit).min().map(|(_, node)| node)
    }

    fn claim(&mut self, node: usize, pod: usize) {
        let pod = &self.cluster.pods[pod];
        subtract(self.free.row_mut(node), &pod.requests);
        subtract(self.free_later.row_mut(node), &pod.requests);
    }

    /// From now on the pods are leaving.
    fn evict(&mut self, node: usize, pods: &[usize]) {
        self.staying[node].retain(|pod| !pods.contains(pod));
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
