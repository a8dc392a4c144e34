//! What a search for victims is for, what it may cost, and what it has found so far.

use std::cmp::Reverse;

use crate::arbitration::amounts::ResourceSet;

/// Pods of one node that leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VictimSet {
    pub(super) node: usize,
    /// In the order in which they go: lower priority first, then younger, then lesser UID.
    pub(super) pods: Vec<usize>,
}

/// What is missing on a node, by resource; only what is.
pub(super) type Need = Vec<(usize, u64)>;

/// The resources of which something is missing.
pub(super) fn missing(need: &Need) -> ResourceSet {
    let mut missing = ResourceSet::default();
    need.iter()
        .for_each(|(resource, _)| missing.insert(*resource));
    missing
}

/// How good a set is, up to the UIDs; the least is the best. In this order: the highest priority among its pods, what
/// their namespaces lose, the least excess of these namespaces (greater is better), the age of the oldest, the node.
pub(super) type Worth = (i64, i128, Reverse<i128>, u64, usize);

/// The best set so far.
pub(super) struct Best<'a> {
    /// How many victims.
    pub(super) count: usize,
    pub(super) worth: Worth,
    /// Sorted: of sets that are worth the same the least ones.
    pub(super) uids: Vec<&'a str>,
    pub(super) victims: VictimSet,
}

/// The priority and the excess that a single pod of a node can have at best.
pub(super) type Bound = (i64, Reverse<i128>);

/// How much a search may do, and what it has done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Effort {
    pub(super) left: u64,
    pub(super) done: u64,
    /// It would have had to do more.
    pub(super) is_short: bool,
}

impl Effort {
    pub(super) fn of(left: u64) -> Self {
        Self {
            left,
            ..Self::default()
        }
    }

    /// Whether so much may be done.
    pub(super) fn take(&mut self, count: u64) -> bool {
        self.is_short |= count > self.left;
        if !self.is_short {
            self.left -= count;
            self.done += count;
        }
        !self.is_short
    }
}

/// What a search has found so far.
pub(super) struct Found<'a> {
    pub(super) price: Price,
    pub(super) best: Option<Best<'a>>,
    pub(super) closest: Option<i128>,
    pub(super) sets: Effort,
    pub(super) steps: Effort,
}

impl Found<'_> {
    pub(super) fn is_found(&self) -> bool {
        self.best.is_some()
    }

    /// Whether a single pod of a node with this bound can be as good as the best. No loss is less than none.
    pub(super) fn can_be_better(&self, (priority, excess): Bound) -> bool {
        let best = self.best.as_ref().map(|best| best.worth);
        best.is_none_or(|best| (priority, 0, excess) <= (best.0, best.1, best.2))
    }

    /// Whether a set of as many victims that is worth so much, or less, can be the best.
    pub(super) fn can_be_best(&self, worth: Worth) -> bool {
        self.best.as_ref().is_none_or(|best| worth <= best.worth)
    }

    /// Whether some pod with the same requests could afford the loss.
    pub(super) fn affords(&self, loss: i128) -> bool {
        match self.price {
            Price::Any => true,
            Price::Below { most, .. } => loss < most,
        }
    }
}

/// What a set may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Price {
    /// Anything: the pod is within what is reserved, or of an unlimited namespace.
    Any,
    /// Less than the pod's namespace gains.
    Below {
        gain: i128,
        /// The most that any namespace gains by such a pod: gains of pods with the same requests differ by rounding.
        most: i128,
    },
}

impl Price {
    /// What the pod's namespace gains, if that matters.
    pub(super) fn gain(self) -> Option<i128> {
        match self {
            Self::Any => None,
            Self::Below { gain, .. } => Some(gain),
        }
    }
}
