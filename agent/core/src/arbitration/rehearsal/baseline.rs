//! What others do instead of arbitration: static quotas and plain priorities. Modelled as they are, at their best:
//! where a pod goes is decided as the arbitrator does.

use std::cmp::Reverse;

use super::{Rehearsal, lesser, part_of};
use crate::arbitration::amounts::Bounds;
use crate::arbitration::cluster::Cluster;

/// Each Consumer's part of its parent's, by its weight among all siblings, whether they ask for anything or not: at
/// least what is reserved, at most its `hard`. Unlimited ones have none.
pub(super) fn quotas(cluster: &Cluster, capacity: &Bounds) -> Vec<Bounds> {
    let consumers = &cluster.consumers;
    let sum = |parent: Option<usize>| -> u64 {
        let siblings = consumers
            .iter()
            .filter(|consumer| consumer.parent == parent && !consumer.unlimited);
        siblings.map(|consumer| consumer.weight).sum()
    };
    let of_parents: Vec<u64> = (0..consumers.len()).map(|at| sum(Some(at))).collect();
    let of_the_cluster = sum(None);
    let mut quotas: Vec<Option<Bounds>> = vec![None; consumers.len()];
    // A parent comes before its children in one of so many rounds.
    while quotas.contains(&None) {
        for (at, consumer) in consumers.iter().enumerate() {
            let (above, weights) = match consumer.parent {
                None => (Some(capacity), of_the_cluster),
                Some(parent) => (quotas[parent].as_ref(), of_parents[parent]),
            };
            let Some(above) = above else { continue };
            let quota = above.iter().enumerate().map(|(resource, above)| {
                let part = above.map(|above| part_of(above, consumer.weight, weights));
                let at_least = part.map(|part| part.max(consumer.reserved[resource]));
                let bounded = lesser(at_least, consumer.hard[resource]);
                bounded.filter(|_| !consumer.unlimited)
            });
            let quota = quota.collect();
            quotas[at] = Some(quota);
        }
    }
    quotas.into_iter().flatten().collect()
}

/// Pods of one node that the kube-scheduler would evict.
struct Preemption {
    /// How many of them no budget allows.
    violations: usize,
    /// The highest priority among them.
    highest: i64,
    pods: Vec<usize>,
    node: usize,
}

impl Rehearsal<'_> {
    fn pending(&self) -> Vec<usize> {
        let pods = 0..self.cluster.pods.len();
        self.in_order(
            pods.filter(|at| self.cluster.pods[*at].node.is_none())
                .collect(),
        )
    }

    /// Static quotas: who came first, within the namespace's quota.
    pub(super) fn start_within_quotas(&mut self) {
        for pod in self.pending() {
            if self.stays_within(pod, |at| &self.quotas[at])
                && let Some(node) = self.best_fit(pod)
            {
                self.start(pod, node);
            }
        }
    }

    /// Plain priorities: as the kube-scheduler, with `hard` as a quota.
    pub(super) fn start_by_priority(&mut self) {
        for pod in self.pending() {
            if !self.stays_within(pod, |at| &self.cluster.consumers[at].hard) {
                continue;
            }
            if let Some(node) = self.best_fit(pod) {
                self.start(pod, node);
            } else if let Some(preemption) = self.preemption(pod) {
                self.evict(&preemption.pods, pod);
                self.start(pod, preemption.node);
            }
        }
    }

    /// The node where least is lost: fewest violations of budgets, lowest highest priority, fewest pods
    /// (kubernetes/pkg/scheduler/framework/preemption, `pickOneNodeForPreemption`).
    fn preemption(&self, pod: usize) -> Option<Preemption> {
        let all = (0..self.cluster.nodes.len()).filter_map(|node| self.preemption_on(pod, node));
        all.min_by_key(|found| {
            (
                found.violations,
                found.highest,
                found.pods.len(),
                found.node,
            )
        })
    }

    /// All pods of lower priority would go; then as many as possible stay, those that budgets protect first, then the
    /// highest priority.
    fn preemption_on(&self, claimer: usize, node: usize) -> Option<Preemption> {
        let claimer = &self.cluster.pods[claimer];
        let is_lower = |at: &usize| {
            let pod = &self.cluster.pods[*at];
            pod.node == Some(node) && pod.priority < claimer.priority && !pod.daemon
        };
        let mut lower: Vec<usize> = (0..self.cluster.pods.len()).filter(is_lower).collect();
        let mut free = self.free.row(node).to_vec();
        for at in &lower {
            add(&mut free, &self.cluster.pods[*at].requests, 1);
        }
        if lower.is_empty() || !self.could_start(claimer, node, |resource| free[resource]) {
            return None;
        }
        let is_protected = |at: usize| {
            let mut budgets = self.cluster.pods[at].budgets.iter();
            budgets.any(|budget| self.cluster.budgets[*budget] == 0)
        };
        lower.sort_unstable_by_key(|at| {
            let (pod, life) = (&self.cluster.pods[*at], &self.lives[*at]);
            (
                Reverse(is_protected(*at)),
                Reverse(pod.priority),
                life.started,
                life.line,
            )
        });
        let mut victims = Vec::new();
        for at in lower {
            add(&mut free, &self.cluster.pods[at].requests, -1);
            if !self.could_start(claimer, node, |resource| free[resource]) {
                add(&mut free, &self.cluster.pods[at].requests, 1);
                victims.push(at);
            }
        }
        let priorities = victims.iter().map(|at| self.cluster.pods[*at].priority);
        Some(Preemption {
            violations: victims.iter().filter(|at| is_protected(**at)).count(),
            highest: priorities.max()?,
            pods: victims,
            node,
        })
    }
}

fn add(free: &mut [i128], requests: &[u64], sign: i128) {
    for (free, request) in free.iter_mut().zip(requests) {
        *free += sign * i128::from(*request);
    }
}
