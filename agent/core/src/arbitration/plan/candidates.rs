//! The pods that may be victims of some pod, by node, with what they request in one piece of memory: a search for
//! victims goes over all of them.

use std::ops::Range;

use crate::arbitration::amounts::{ResourceSet, Table};
use crate::arbitration::cluster::Cluster;

/// By node. A candidate is a place here until one on the same node is taken out.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Where those of each node start, and where the last one's end.
    first: Vec<usize>,
    /// How many of each node are left.
    left: Vec<usize>,
    all: Vec<Candidate>,
    requests: Table<u64>,
}

/// A pod that may be a victim: what a search asks of it, without a look at the pod.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Candidate {
    pub(super) pod: usize,
    pub(super) namespace: usize,
    /// What it requests.
    pub(super) needs: ResourceSet,
    pub(super) priority: i64,
    pub(super) age: u64,
    /// The budget that selects it.
    pub(super) budget: Option<usize>,
}

impl Candidates {
    /// From pods with their nodes.
    pub(super) fn new(cluster: &Cluster, all: &[(usize, usize)]) -> Self {
        let (nodes, resources) = (cluster.nodes.len(), cluster.resources.len());
        let mut left = vec![0; nodes];
        for (_, node) in all {
            left[*node] += 1;
        }
        let mut first = Vec::with_capacity(nodes + 1);
        let mut sum = 0;
        for count in &mut left {
            first.push(sum);
            sum += std::mem::take(count);
        }
        first.push(sum);
        let mut candidates = Self {
            first,
            left,
            all: vec![Candidate::default(); sum],
            requests: Table::new(sum, resources, 0),
        };
        for (pod, node) in all {
            let at = candidates.on(*node).end;
            let place = *pod;
            let pod = &cluster.pods[place];
            candidates
                .requests
                .row_mut(at)
                .copy_from_slice(&pod.requests);
            candidates.all[at] = Candidate {
                pod: place,
                namespace: pod.namespace,
                needs: ResourceSet::needed(&pod.requests),
                priority: pod.priority,
                age: pod.age,
                budget: pod.budgets.first().copied(),
            };
            candidates.left[*node] += 1;
        }
        candidates
    }

    /// Those on a node.
    pub(super) fn on(&self, node: usize) -> Range<usize> {
        self.first[node]..self.first[node] + self.left[node]
    }

    /// Which pod it is.
    pub(super) fn get(&self, at: usize) -> Candidate {
        self.all[at]
    }

    /// What it requests.
    pub(super) fn requests(&self, at: usize) -> &[u64] {
        self.requests.row(at)
    }

    /// Takes pods of a node out.
    pub(super) fn remove(&mut self, node: usize, pods: &[usize]) {
        for at in self.on(node).rev() {
            if pods.contains(&self.all[at].pod) {
                let last = self.on(node).end - 1;
                self.all.swap(at, last);
                self.requests.move_row(last, at);
                self.left[node] -= 1;
            }
        }
    }
}
