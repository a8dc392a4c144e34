//! What a namespace asks for (`docs/reference/arbitrator.md`, "Who deserves how much").
//!
//! The pods that count are taken in one order, and a pod counts as long as the sum stays within the bounds. So what is
//! asked for is always a set of whole pods, and a list of pods that could never run has no weight. Pods that count fall
//! into classes by what they request: when a resource runs out, pods that do not need it go on.

use super::amounts::{AMOUNT_LIMIT, Amounts, ResourceSet};

/// The pods of a namespace that request the same resources, added up (`E_S`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// What each of them requests: the resources with a request above 0.
    pub needs: ResourceSet,
    /// Their sum.
    pub amounts: Amounts,
}

/// What a namespace or a group asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// By what they request, lesser sets first.
    pub classes: Vec<Class>,
    /// The sum of all classes (`E`).
    pub total: Amounts,
}

impl Demand {
    /// Nothing, of so many resources.
    #[must_use]
    pub fn nothing(resources: usize) -> Self {
        Self {
            classes: Vec::new(),
            total: vec![0; resources].into(),
        }
    }

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.classes.is_empty()
    }

    /// Adds to the class of the given needs. A need of nothing is no class.
    pub(super) fn add(&mut self, needs: ResourceSet, amounts: impl Fn(usize) -> u64) {
        if needs.is_empty() {
            return;
        }
        let found = self
            .classes
            .binary_search_by(|class| class.needs.cmp(&needs));
        let at = found.unwrap_or_else(|at| {
            let amounts = vec![0; self.total.len()].into();
            self.classes.insert(at, Class { needs, amounts });
            at
        });
        for resource in needs.iter() {
            let amount = amounts(resource);
            let class = &mut self.classes[at].amounts[resource];
            *class = class.saturating_add(amount);
            self.total[resource] = self.total[resource].saturating_add(amount);
        }
    }
}

/// Adds pods up, in their order.
#[derive(Debug)]
pub struct Counting<'a> {
    hard: &'a [Option<u64>],
    capacity: &'a [Option<u64>],
    demand: Demand,
    passed_over: u64,
}

impl<'a> Counting<'a> {
    /// For a namespace with this `hard`, in a cluster with this capacity.
    #[must_use]
    pub fn new(hard: &'a [Option<u64>], capacity: &'a [Option<u64>]) -> Self {
        Self {
            hard,
            capacity,
            demand: Demand::nothing(capacity.len()),
            passed_over: 0,
        }
    }

    /// Adds the next `count` pods, all with the same requests: those count with which the sum stays within `hard` and
    /// the capacity. Those beyond `hard` are passed over and reported, measured from the sum before the first of them;
    /// what the cluster could never hold does not count, silently.
    pub fn add(&mut self, requests: &[u64], count: u64) {
        let needs = ResourceSet::needed(requests);
        let by_hard = self.within(needs, requests, count, |resource| self.hard[resource]);
        self.passed_over += count - by_hard;
        let by_capacity = self.within(needs, requests, count, |resource| {
            self.capacity[resource].or(Some(AMOUNT_LIMIT - 1))
        });
        let counted = by_hard.min(by_capacity);
        if counted > 0 {
            self.demand
                .add(needs, |resource| requests[resource] * counted);
        }
    }

    /// How many of so many pods with the same requests the bounds allow.
    fn within(
        &self,
        needs: ResourceSet,
        requests: &[u64],
        count: u64,
        bound: impl Fn(usize) -> Option<u64>,
    ) -> u64 {
        let mut within = count;
        for resource in needs.iter() {
            if let Some(bound) = bound(resource) {
                let left = bound.saturating_sub(self.demand.total[resource]);
                // Most often one pod, and there is room: no division.
                if requests[resource].saturating_mul(within) > left {
                    within = left / requests[resource];
                }
            }
        }
        within
    }

    /// What is asked for, and how many pods were passed over.
    #[must_use]
    pub fn finish(self) -> (Demand, u64) {
        (self.demand, self.passed_over)
    }
}
