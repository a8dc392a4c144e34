//! Consumers as a tree: what each deserves (`docs/reference/arbitrator.md`, "Who deserves how much").
//!
//! Problem: a group with a member that needs CPU and one that needs GPUs counts as a big one on either if the tree is
//! divided level by level, and a sibling that is out of CPU would hold up one that needs none.
//!
//! Approach, in three passes:
//! 1. From the leaves up: a group asks for what its members would deserve if they had all of the cluster, within the
//!    group's `hard`, to themselves ([`asks`]).
//! 2. From the root down: the children of a node share what it got ([`shares`]).
//! 3. If there are groups: one filling over all leaves, in which each has for sure what the second pass gave it. So
//!    nothing is idle that any leaf could use.
//!
//! Namespaces without limits (`unlimited`, kube-system) come before all that: they get what they ask for.

mod asks;
mod shares;

use std::borrow::Cow;

use super::amounts::{Amounts, Bounds, Table};
use super::demand::Demand;
use super::fill::{self, ClassEnd};

/// A namespace or a group: what is decided about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// By its place; nothing: the cluster.
    pub parent: Option<usize>,
    /// 1 to 1000000.
    pub weight: u64,
    /// What it never passes.
    pub hard: Bounds,
    /// What it has for sure.
    pub reserved: Amounts,
    /// Gets what it asks for before all others. Not for one with a parent.
    pub unlimited: bool,
}

/// What the pods of a namespace come to; those of a group to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// What they ask for.
    pub demand: Demand,
    /// What they use.
    pub used: Amounts,
    /// Pods beyond the namespace's `hard`.
    pub passed_over: u64,
}

/// What Consumers deserve, by their places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deserved {
    /// Of namespaces, and of groups the sums of their namespaces.
    pub amounts: Vec<Amounts>,
    /// What they use: of groups the sums.
    pub used: Vec<Amounts>,
    /// By how much the floors of its members pass what a group has to give; at the end the cluster's. None where they
    /// do not.
    pub shortages: Vec<Option<Amounts>>,
    /// How the filling of each class of a namespace's demand ended.
    pub ends: Vec<Vec<ClassEnd>>,
}

/// Computes what each deserves. Consumers are sorted by name, and asks stand as they do; parents form a tree.
#[must_use]
pub fn deserve(consumers: &[Consumer], asks: &[Ask], capacity: &[Option<u64>]) -> Deserved {
    let mut tree = Tree::new(consumers, asks, capacity);
    tree.serve_unlimited(capacity);
    tree.ask();
    tree.share();
    if tree.has_groups {
        tree.fill_leaves();
    }
    tree.finish()
}

/// Consumers by their places, and the cluster as one more at the end.
struct Tree<'a> {
    consumers: &'a [Consumer],
    children: Vec<Vec<usize>>,
    has_groups: bool,
    /// Every Consumer after its parent.
    from_the_root: Vec<usize>,
    /// What shares are measured against (`T`): what unlimited Consumers leave.
    whole: Bounds,
    /// What each asks for: of a group what its members would deserve.
    demands: Vec<Cow<'a, Demand>>,
    floors: Table<u64>,
    used: Vec<Amounts>,
    amounts: Vec<Amounts>,
    ends: Vec<Vec<ClassEnd>>,
    shortages: Vec<Option<Amounts>>,
}

impl<'a> Tree<'a> {
    fn new(consumers: &'a [Consumer], asks: &'a [Ask], capacity: &[Option<u64>]) -> Self {
        let cluster = consumers.len();
        let mut children = vec![Vec::new(); cluster + 1];
        for (at, consumer) in consumers.iter().enumerate() {
            children[consumer.parent.unwrap_or(cluster)].push(at);
        }
        let mut from_the_root = children[cluster].clone();
        let mut next = 0;
        while next < from_the_root.len() {
            let consumer: usize = from_the_root[next];
            from_the_root.extend_from_slice(&children[consumer]);
            next += 1;
        }
        let none: Amounts = vec![0; capacity.len()].into();
        let mut floors = Table::new(cluster, capacity.len(), 0);
        for (at, (consumer, ask)) in consumers.iter().zip(asks).enumerate() {
            let amounts = consumer.reserved.iter().zip(&ask.demand.total);
            for (floor, (reserved, asked)) in floors.row_mut(at).iter_mut().zip(amounts) {
                *floor = *reserved.min(asked);
            }
        }
        let mut used: Vec<Amounts> = asks.iter().map(|ask| ask.used.clone()).collect();
        add_to_groups(consumers, &from_the_root, &mut used);
        Self {
            consumers,
            has_groups: children[..cluster]
                .iter()
                .any(|children| !children.is_empty()),
            children,
            from_the_root,
            whole: capacity.into(),
            demands: asks.iter().map(|ask| Cow::Borrowed(&ask.demand)).collect(),
            floors,
            used,
            amounts: vec![none; cluster],
            ends: vec![Vec::new(); cluster],
            shortages: vec![None; cluster + 1],
        }
    }

    fn cluster(&self) -> usize {
        self.consumers.len()
    }

    fn is_group(&self, consumer: usize) -> bool {
        !self.children[consumer].is_empty()
    }

    /// Those who share what a node gets. Unlimited Consumers have theirs already.
    fn sharers(&self, node: usize) -> Vec<usize> {
        let children = self.children[node].iter().copied();
        children
            .filter(|child| !self.consumers[*child].unlimited)
            .collect()
    }

    /// Unlimited Consumers get what they ask for, in proportion if that is more than there is (section 3.4). The others
    /// share what they leave.
    fn serve_unlimited(&mut self, capacity: &[Option<u64>]) {
        let unlimited: Vec<usize> = (0..self.cluster())
            .filter(|at| self.consumers[*at].unlimited)
            .collect();
        for (resource, capacity) in capacity.iter().enumerate() {
            let mut column: Vec<u64> = unlimited
                .iter()
                .map(|at| self.demands[*at].total[resource])
                .collect();
            if let Some(capacity) = capacity {
                fill::scale_down(&mut column, *capacity);
                self.whole[resource] = Some(capacity - column.iter().sum::<u64>());
            }
            for (at, amount) in unlimited.iter().zip(column) {
                self.amounts[*at][resource] = amount;
            }
        }
    }

    fn finish(mut self) -> Deserved {
        for at in 0..self.cluster() {
            if self.is_group(at) {
                self.amounts[at].fill(0);
            }
        }
        add_to_groups(self.consumers, &self.from_the_root, &mut self.amounts);
        Deserved {
            amounts: self.amounts,
            used: self.used,
            shortages: self.shortages,
            ends: self.ends,
        }
    }
}

/// Adds what each Consumer has to its group, from the leaves up.
fn add_to_groups(consumers: &[Consumer], from_the_root: &[usize], amounts: &mut [Amounts]) {
    for at in from_the_root.iter().rev() {
        let Some(parent) = consumers[*at].parent else {
            continue;
        };
        for resource in 0..amounts[*at].len() {
            amounts[parent][resource] =
                amounts[parent][resource].saturating_add(amounts[*at][resource]);
        }
    }
}
