//! From pods to what namespaces use and ask for, and from nodes to what there is (`docs/reference/arbitrator.md`,
//! "Words").

use std::cmp::Reverse;

use super::amounts::{AMOUNT_LIMIT, Amounts, Bounds, ResourceSet, Table};
use super::cluster::{Cluster, Node, NodeState, Pod};
use super::demand::{Counting, Demand};
use super::groups::Ask;

/// What a pod counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodUse {
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
    pub standings: Vec<PodUse>,
    /// The pending pods of each Consumer, in the order in which they count.
    pub pending: Vec<Vec<usize>>,
    /// What each Consumer's pods come to.
    pub asks: Vec<Ask>,
}

impl Census {
    /// Counts all.
    #[must_use]
    pub fn of(cluster: &Cluster) -> Self {
        let capacity = capacity(cluster);
        let shapes = Shapes::of(cluster, &capacity);
        let mut census = Self {
            standings: Vec::with_capacity(cluster.pods.len()),
            pending: vec![Vec::new(); cluster.consumers.len()],
            asks: Vec::new(),
            capacity,
        };
        let mut tally = Tally::new(cluster.consumers.len(), cluster.resources.len());
        for (at, pod) in cluster.pods.iter().enumerate() {
            let standing = standing(cluster, pod, || shapes.could_hold(cluster, pod));
            census.standings.push(standing);
            tally.add(pod, standing);
            if standing == PodUse::Pending {
                census.pending[pod.namespace].push(at);
            }
        }
        census.asks = tally.asks();
        for pending in &mut census.pending {
            in_order(cluster, &census.standings, pending);
        }
        census.keep_bounds(cluster);
        census
    }

    /// Only where all pods together pass a bound it matters in which order they count.
    fn keep_bounds(&mut self, cluster: &Cluster) {
        let asks = self.asks.iter().zip(&cluster.consumers);
        let passes = asks.map(|(ask, consumer)| passes(ask, &consumer.hard, &self.capacity));
        let passes: Vec<bool> = passes.collect();
        if !passes.contains(&true) {
            return;
        }
        let mut pods: Vec<Vec<usize>> = vec![Vec::new(); passes.len()];
        for (at, pod) in cluster.pods.iter().enumerate() {
            if passes[pod.namespace] && self.standings[at].is_asked_for() {
                pods[pod.namespace].push(at);
            }
        }
        for (namespace, mut pods) in pods.into_iter().enumerate() {
            if passes[namespace] {
                self.count_in_order(cluster, namespace, &mut pods);
            }
        }
    }

    /// Counts the pods that a namespace asks for in their order, up to its bounds.
    fn count_in_order(&mut self, cluster: &Cluster, namespace: usize, pods: &mut [usize]) {
        in_order(cluster, &self.standings, pods);
        let hard = &cluster.consumers[namespace].hard;
        let mut counting = Counting::new(hard, &self.capacity);
        let requests = |at: &usize| &cluster.pods[*at].requests;
        // Those that request the same count together, so that all of them that pass `hard` are reported, also where the
        // capacity ends before it.
        for alike in pods.chunk_by(|one, other| requests(one) == requests(other)) {
            counting.add(requests(&alike[0]), alike.len() as u64);
        }
        let ask = &mut self.asks[namespace];
        (ask.demand, ask.passed_over) = counting.finish();
    }
}

impl PodUse {
    /// Whether such a pod is asked for.
    fn is_asked_for(self) -> bool {
        match self {
            Self::Running | Self::Returning | Self::Pending => true,
            Self::NeverFits | Self::Leaving => false,
        }
    }
}

/// What pods come to, whatever the bounds. In few pieces of memory, as each pod goes to another namespace's sums than
/// the one before.
struct Tally {
    used: Table<u64>,
    /// The last class of each namespace.
    last: Vec<Option<usize>>,
    /// What the pods of each class request, and the class of the same namespace before it.
    classes: Vec<(ResourceSet, Option<usize>)>,
    /// What each class asks for.
    asked: Table<u64>,
}

impl Tally {
    fn new(namespaces: usize, resources: usize) -> Self {
        Self {
            used: Table::new(namespaces, resources, 0),
            last: vec![None; namespaces],
            classes: Vec::with_capacity(namespaces),
            asked: Table::new(0, resources, 0),
        }
    }

    fn add(&mut self, pod: &Pod, standing: PodUse) {
        if standing == PodUse::Running {
            add(self.used.row_mut(pod.namespace), &pod.requests);
        }
        let needs = ResourceSet::needed(&pod.requests);
        if !standing.is_asked_for() || needs.is_empty() {
            return;
        }
        let mut class = self.last[pod.namespace];
        while let Some(at) = class
            && self.classes[at].0 != needs
        {
            class = self.classes[at].1;
        }
        let class = class.unwrap_or_else(|| {
            let class = self.classes.len();
            self.classes.push((needs, self.last[pod.namespace]));
            self.last[pod.namespace] = Some(class);
            self.asked.resize(class + 1);
            class
        });
        add(self.asked.row_mut(class), &pod.requests);
    }

    fn asks(self) -> Vec<Ask> {
        let resources = self.used.width();
        let namespaces = self.last.iter().enumerate();
        let ask = |(namespace, last): (usize, &Option<usize>)| {
            let mut demand = Demand::nothing(resources);
            let mut class = *last;
            while let Some(at) = class {
                let (needs, before) = self.classes[at];
                let asked = self.asked.row(at);
                demand.add(needs, |resource| asked[resource]);
                class = before;
            }
            Ask {
                demand,
                used: self.used.row(namespace).into(),
                passed_over: 0,
            }
        };
        namespaces.map(ask).collect()
    }
}

/// Whether all that is asked for is more than can count.
fn passes(ask: &Ask, hard: &Bounds, capacity: &Bounds) -> bool {
    let bounds = hard.iter().zip(capacity);
    ask.demand
        .total
        .iter()
        .zip(bounds)
        .any(|(total, (hard, capacity))| {
            let bound = capacity.unwrap_or(AMOUNT_LIMIT - 1);
            *total > bound.min(hard.unwrap_or(bound))
        })
}

/// A pod's place in the order in which pods count: running ones first, then higher priority, those that return before
/// pending ones, older; then the lesser UID.
fn place(pod: &Pod, standing: PodUse) -> impl Ord + use<> {
    (
        standing != PodUse::Running,
        Reverse(pod.priority),
        standing,
        Reverse(pod.seniority()),
    )
}

/// Sorts pods by their places, of the same place the lesser UID first.
fn in_order(cluster: &Cluster, standings: &[PodUse], pods: &mut [usize]) {
    pods.sort_unstable_by(|a, b| {
        let (one, other) = (&cluster.pods[*a], &cluster.pods[*b]);
        place(one, standings[*a])
            .cmp(&place(other, standings[*b]))
            .then_with(|| one.uid.cmp(&other.uid))
    });
}

fn add(sum: &mut [u64], amounts: &[u64]) {
    for (sum, amount) in sum.iter_mut().zip(amounts) {
        *sum = sum.saturating_add(*amount);
    }
}

/// What there is: of a node that is ready what it offers, of a cordoned one the lesser of that and what its pods
/// request that do not leave.
fn capacity(cluster: &Cluster) -> Bounds {
    let is_cordoned = |node: &usize| cluster.nodes[*node].state == NodeState::Cordoned;
    let mut requested = vec![cluster.resources.none(); cluster.nodes.len()];
    if (0..cluster.nodes.len()).any(|node| is_cordoned(&node)) {
        for pod in cluster.pods.iter().filter(|pod| !pod.leaving) {
            if let Some(node) = pod.node.filter(is_cordoned) {
                add(&mut requested[node], &pod.requests);
            }
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

fn standing(cluster: &Cluster, pod: &Pod, could_be_held: impl Fn() -> bool) -> PodUse {
    if pod.leaving {
        return PodUse::Leaving;
    }
    match pod.node.map(|node| cluster.nodes[node].state) {
        Some(NodeState::Ready | NodeState::Cordoned) => PodUse::Running,
        Some(NodeState::NotReady) => PodUse::Returning,
        None if could_be_held() => PodUse::Pending,
        None => PodUse::NeverFits,
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
