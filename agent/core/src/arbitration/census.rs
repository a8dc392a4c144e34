//! From pods to what namespaces use and ask for, and from nodes to what there is (ARBITRATOR.md, sections 2 and 3.1).

use std::cmp::Reverse;

use super::amounts::{AMOUNT_LIMIT, Amounts, Bounds, ResourceSet};
use super::cluster::{Cluster, Node, NodeState, Pod};
use super::demand::Counting;
use super::groups::Ask;

/// What a pod counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Runs on a node that is there: used, and asked for.
    Running,
    /// Was on a node that is not there any more, and will come back: asked for.
    Returning,
    /// Could run on a node if that were empty: asked for.
    Pending,
    /// No node could hold it, even if it were empty: not asked for.
    NeverFits,
    /// Being deleted: neither used nor asked for.
    Leaving,
}

/// What there is, and who asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    /// What the nodes have for pods (`C`); nothing of what no node has.
    pub capacity: Bounds,
    /// What each pod counts as.
    pub standings: Vec<Standing>,
    /// The pods of each Consumer, in the order in which they count.
    pub pods: Vec<Vec<usize>>,
    /// What each Consumer's pods come to.
    pub asks: Vec<Ask>,
}

impl Census {
    /// Counts all.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Self {
        let capacity = capacity(cluster);
        let shapes = Shapes::of(cluster, &capacity);
        let standings: Vec<Standing> = cluster
            .pods
            .iter()
            .map(|pod| standing(cluster, &shapes, pod))
            .collect();
        let mut places: Vec<Vec<_>> = cluster.consumers.iter().map(|_| Vec::new()).collect();
        for (at, pod) in cluster.pods.iter().enumerate() {
            places[pod.namespace].push((place(pod, standings[at]), at));
        }
        let pods: Vec<Vec<usize>> = places
            .into_iter()
            .map(|places| in_order(cluster, places))
            .collect();
        let rows = cluster.consumers.iter().zip(&pods);
        let asks =
            rows.map(|(consumer, pods)| ask(cluster, &standings, pods, &consumer.hard, &capacity));
        Self {
            asks: asks.collect(),
            capacity,
            standings,
            pods,
        }
    }
}

/// A pod's place in the order in which pods count: running ones first, then higher priority, those that return before pending ones, older; then the lesser UID.
fn place(pod: &Pod, standing: Standing) -> impl Ord + use<> {
    (
        standing != Standing::Running,
        Reverse(pod.priority),
        standing,
        Reverse(pod.seniority()),
    )
}

/// Pods by their places, of the same place the lesser UID first.
fn in_order(cluster: &Cluster, mut places: Vec<(impl Ord, usize)>) -> Vec<usize> {
    let uid = |at: usize| &cluster.pods[at].uid;
    places.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| uid(a.1).cmp(uid(b.1))));
    places.into_iter().map(|(_, at)| at).collect()
}

fn ask(
    cluster: &Cluster,
    standings: &[Standing],
    pods: &[usize],
    hard: &Bounds,
    capacity: &Bounds,
) -> Ask {
    let mut used = cluster.resources.none();
    let mut counting = Counting::new(hard, capacity);
    for at in pods {
        let requests = &cluster.pods[*at].requests;
        match standings[*at] {
            Standing::Running => add(&mut used, requests),
            Standing::Returning | Standing::Pending => {}
            Standing::NeverFits | Standing::Leaving => continue,
        }
        counting.add(requests, 1);
    }
    let (demand, passed_over) = counting.finish();
    Ask {
        demand,
        used,
        passed_over,
    }
}

fn add(sum: &mut Amounts, amounts: &Amounts) {
    for (sum, amount) in sum.iter_mut().zip(amounts) {
        *sum = sum.saturating_add(*amount);
    }
}

/// What there is: of a node that is ready what it offers, of a cordoned one the lesser of that and what its pods request
/// that do not leave.
fn capacity(cluster: &Cluster) -> Bounds {
    let mut requested = vec![cluster.resources.none(); cluster.nodes.len()];
    for pod in cluster.pods.iter().filter(|pod| !pod.leaving) {
        if let Some(node) = pod
            .node
            .filter(|node| cluster.nodes[*node].state == NodeState::Cordoned)
        {
            add(&mut requested[node], &pod.requests);
        }
    }
    let of_node = |node: &Node, requested: &Amounts, resource: usize| match node.state {
        NodeState::Ready => node.offered(resource),
        NodeState::Cordoned => node.offered(resource).min(requested[resource]),
        NodeState::NotReady => 0,
    };
    let nodes = || cluster.nodes.iter().zip(&requested);
    let sum = |resource: usize| {
        let sum = nodes().fold(0, |sum: u64, (node, requested)| {
            sum.saturating_add(of_node(node, requested, resource))
        });
        let is_counted = nodes().any(|(node, _)| node.allocatable[resource].is_some());
        is_counted.then_some(sum.min(AMOUNT_LIMIT - 1))
    };
    (0..cluster.resources.len()).map(sum).collect()
}

fn standing(cluster: &Cluster, shapes: &Shapes<'_>, pod: &Pod) -> Standing {
    if pod.leaving {
        return Standing::Leaving;
    }
    match pod.node.map(|node| cluster.nodes[node].state) {
        Some(NodeState::Ready | NodeState::Cordoned) => Standing::Running,
        Some(NodeState::NotReady) => Standing::Returning,
        None if shapes.could_hold(cluster, pod) => Standing::Pending,
        None => Standing::NeverFits,
    }
}

/// Whether the node is ready and could hold the pod if it were empty. What no node has is not asked of a node.
pub(super) fn could_hold(node: &Node, counted: ResourceSet, requests: &[u64]) -> bool {
    node.state == NodeState::Ready && has(&node.allocatable, counted, requests)
}

fn has(allocatable: &Bounds, counted: ResourceSet, requests: &[u64]) -> bool {
    let needed = ResourceSet::needed(requests)
        .iter()
        .filter(|resource| counted.contains(*resource));
    needed
        .into_iter()
        .all(|resource| allocatable[resource].is_some_and(|amount| amount >= requests[resource]))
}

/// The different sizes of ready nodes: there are few, and many pods.
struct Shapes<'a> {
    counted: ResourceSet,
    allocatable: Vec<&'a Bounds>,
}

impl<'a> Shapes<'a> {
    fn of(cluster: &'a Cluster, capacity: &Bounds) -> Self {
        let ready = cluster
            .nodes
            .iter()
            .filter(|node| node.state == NodeState::Ready);
        let mut allocatable: Vec<&Bounds> = ready.map(|node| &node.allocatable).collect();
        // Large ones first: most pods fit the first.
        allocatable.sort_unstable_by(|a, b| b.cmp(a));
        allocatable.dedup();
        Self {
            counted: counted(capacity),
            allocatable,
        }
    }

    fn could_hold(&self, cluster: &Cluster, pod: &Pod) -> bool {
        match &pod.nodes {
            None => self
                .allocatable
                .iter()
                .any(|shape| has(shape, self.counted, &pod.requests)),
            Some(nodes) => nodes
                .iter()
                .any(|node| could_hold(&cluster.nodes[*node], self.counted, &pod.requests)),
        }
    }
}

/// The resources that some node has.
pub(super) fn counted(capacity: &Bounds) -> ResourceSet {
    let mut counted = ResourceSet::default();
    for (resource, capacity) in capacity.iter().enumerate() {
        if capacity.is_some() {
            counted.insert(resource);
        }
    }
    counted
}
