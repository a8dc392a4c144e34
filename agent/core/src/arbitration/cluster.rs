//! What the arbitrator knows of a cluster (`docs/reference/arbitrator.md`, "Words"), with names looked up: nodes,
//! Consumers and budgets are sorted by name and referred to by their places.

use std::sync::Arc;

use super::amounts::{Amounts, Bounds, Resources};
use super::groups::Consumer;

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// What it has for pods; nothing of what it does not have.
    pub allocatable: Bounds,
    /// What of that cannot be had without passing a pressure threshold (section 8).
    pub withheld: Amounts,
    /// Whether pods can start there.
    pub state: NodeState,
}

impl Node {
    /// What pods can have there: allocatable less withheld.
    pub(super) fn offered(&self, resource: usize) -> u64 {
        self.allocatable[resource]
            .unwrap_or(0)
            .saturating_sub(self.withheld[resource])
    }
}

/// Whether a node counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// Pods run and start there.
    Ready,
    /// Pods run there, none starts.
    Cordoned,
    /// It is not there; its pods will come back elsewhere.
    NotReady,
}

impl NodeState {
    /// The kubelet's conditions of a node with which it takes no further pod.
    pub const KUBELET_PRESSURE: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];
    /// That of Plimsoll's agent.
    pub const AGENT_PRESSURE: &str = "plimsoll.dev/MemoryPressure";

    /// Of a node that says so. Under pressure no pod is planned there, and what it has is what runs there.
    #[must_use]
    pub const fn of(is_ready: bool, is_cordoned: bool, has_pressure: bool) -> Self {
        match (is_ready, is_cordoned || has_pressure) {
            (false, _) => Self::NotReady,
            (true, true) => Self::Cordoned,
            (true, false) => Self::Ready,
        }
    }
}

/// A pod that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// The API server's.
    pub uid: String,
    /// Its Consumer, which is a namespace.
    pub namespace: usize,
    /// Where it runs; nothing: it is pending.
    pub node: Option<usize>,
    /// What it requests.
    pub requests: Amounts,
    /// Greater is more important.
    pub priority: i64,
    /// Seconds since it started; 0 of a pending one.
    pub age: u64,
    /// Seconds for which it is pending and entitled.
    pub waiting: u64,
    /// It is being deleted: its place is not free yet.
    pub leaving: bool,
    /// Of a DaemonSet, a mirror or a static pod: it would come back at the same place.
    pub daemon: bool,
    /// The nodes that it may use, ascending; nothing: all. Pods that are alike share them.
    pub nodes: Option<Arc<[usize]>>,
    /// The disruption budgets that select it.
    pub budgets: Vec<usize>,
}

impl Pod {
    /// Whether it may use the node.
    pub(super) fn may_use(&self, node: usize) -> bool {
        let nodes = self.nodes.as_ref();
        nodes.is_none_or(|nodes| nodes.binary_search(&node).is_ok())
    }

    /// For how long it has been what it is: bound or pending.
    pub(super) fn seniority(&self) -> u64 {
        if self.node.is_some() {
            self.age
        } else {
            self.waiting
        }
    }
}

/// How preemption is held back (section 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// For so many seconds an entitled pod waits before another pod is evicted for it.
    pub reclaim_grace_period: u64,
    /// So many seconds a pod runs before it can be evicted.
    pub minimum_run_time: u64,
    /// Pods that one cycle evicts at most.
    pub max_evictions_per_cycle: usize,
    /// No pod goes for one of lesser priority. Where a scheduler keeps room for a pod against no other of greater
    /// priority, the victim's successor would take the hole.
    pub spares_greater_priority: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            reclaim_grace_period: 30,
            minimum_run_time: 60,
            max_evictions_per_cycle: 10,
            spares_greater_priority: false,
        }
    }
}

/// A snapshot of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cluster {
    /// All that is named anywhere.
    pub resources: Resources,
    /// By name.
    pub nodes: Vec<Node>,
    /// By name. Parents form a tree.
    pub consumers: Vec<Consumer>,
    /// The Consumers' names.
    pub names: Vec<String>,
    /// In any order.
    pub pods: Vec<Pod>,
    /// How many more pods each budget allows to be evicted.
    pub budgets: Vec<u64>,
    /// How preemption is held back.
    pub options: Options,
}
