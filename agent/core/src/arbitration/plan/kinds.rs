//! Candidates of a node by kind: pods of one namespace with the same requests, priority and budget.
//!
//! Pods of a kind differ in age and UID alone, so in a set of victims one is as good as another for every rule
//! (`docs/reference/arbitrator.md`, "Who gives back"): what is covered, budgets, `reserved`, excess and loss stay as
//! they are if one takes the place of another. Of the comparison only its last parts tell them apart: the age of the
//! oldest, and then the UIDs. So it is enough to try how many of each kind leave:
//!
//! - the least age that the oldest can have is that of the oldest among the k youngest of each kind;
//! - all sets in which none is older compare as equal up to the UIDs, and the k least UIDs of each kind among those
//!   that are not older are the least: any other choice has, place by place of the sorted list, no lesser one.
//!
//! The second is why the youngest alone would not do: beside an old victim the younger ones may be of any age up to
//! that.

use std::cell::OnceCell;

use super::candidates::Candidates;
use crate::arbitration::cluster::Cluster;

/// Candidates that are alike: their places.
#[derive(Debug)]
pub(super) struct Kind {
    /// The youngest first, of the same age the lesser UID.
    members: Vec<usize>,
}

impl Kind {
    /// Those that have run for so many seconds.
    pub(super) fn since(&self, candidates: &Candidates, age: u64) -> &[usize] {
        let from = self
            .members
            .partition_point(|at| candidates.get(*at).age < age);
        &self.members[from..]
    }
}

/// The kinds on each node, found when they are asked for.
#[derive(Debug)]
pub(super) struct Kinds(Vec<OnceCell<Box<[Kind]>>>);

impl Kinds {
    pub(super) fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| OnceCell::new()).collect())
    }

    /// In an order that does not depend on that of the input.
    pub(super) fn on(&self, node: usize, cluster: &Cluster, candidates: &Candidates) -> &[Kind] {
        self.0[node].get_or_init(|| of(cluster, candidates, candidates.on(node).collect()))
    }

    /// Candidates of the node have other places.
    pub(super) fn forget(&mut self, node: usize) {
        self.0[node].take();
    }
}

fn of(cluster: &Cluster, candidates: &Candidates, mut places: Vec<usize>) -> Box<[Kind]> {
    let kind = |at: usize| {
        let candidate = candidates.get(at);
        (
            candidate.namespace,
            candidate.priority,
            candidate.budget,
            candidates.requests(at),
        )
    };
    let within_kind = |at: usize| {
        let candidate = candidates.get(at);
        (candidate.age, &cluster.pods[candidate.pod].uid)
    };
    places.sort_unstable_by(|a, b| {
        let by_kind = kind(*a).cmp(&kind(*b));
        by_kind.then_with(|| within_kind(*a).cmp(&within_kind(*b)))
    });
    let alike = places.chunk_by(|a, b| kind(*a) == kind(*b));
    let kinds = alike.map(|members| Kind {
        members: members.to_vec(),
    });
    kinds.collect()
}
