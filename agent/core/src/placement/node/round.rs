//! Who waits for room, and in which order they are tried.
//!
//! Problem: with each change all who wait may have room, and each try is a search; a node with hundreds of such pods
//! would do nothing else. Approach: a change begins a round over all of them, and each step tries a few. A change in
//! the middle of a round begins another one where that was, so that nobody is passed over for ever.

use std::collections::BTreeSet;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;

/// Pods that one step tries.
pub(crate) const TRIED_MAX: usize = 32;

/// A round over those who wait.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Round {
    /// The last that was tried; a round that follows a whole one begins with the first.
    after: Option<PodUid>,
    /// How many are still to be tried.
    left: usize,
}

impl Round {
    /// Something was given back: all of so many are to be tried.
    pub(crate) fn begin(&mut self, waiting: usize) {
        self.left = waiting;
    }

    /// Whether some are still to be tried.
    pub(crate) fn is_under_way(&self) -> bool {
        self.left > 0
    }

    /// Those that are tried in this step, of those who wait.
    pub(crate) fn next(&mut self, waiting: &BTreeSet<PodUid>) -> Vec<PodUid> {
        let count = self.left.min(TRIED_MAX).min(waiting.len());
        let beyond = |uid| waiting.range::<PodUid, _>((Bound::Excluded(uid), Bound::Unbounded));
        let later = self.after.as_ref().map(beyond).into_iter().flatten();
        // Each of them once: the whole set follows what comes after the last.
        let chosen: Vec<PodUid> = later.chain(waiting).take(count).cloned().collect();
        self.left = match waiting.is_empty() {
            true => 0,
            false => self.left - count,
        };
        self.after = chosen.last().filter(|_| self.left > 0).cloned();
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(count: usize) -> BTreeSet<PodUid> {
        (0..count)
            .map(|pod| PodUid::new(format!("{pod:04}")))
            .collect()
    }

    #[test]
    fn a_round_tries_each_once_in_steps_of_a_bounded_length() {
        let waiting = pods(3 * TRIED_MAX + 1);
        let mut round = Round::default();
        assert!(round.next(&waiting).is_empty(), "nothing was given back");
        round.begin(waiting.len());
        let mut tried = Vec::new();
        while round.is_under_way() {
            let step = round.next(&waiting);
            assert!(step.len() <= TRIED_MAX);
            tried.extend(step);
        }
        assert_eq!(tried, Vec::from_iter(waiting.clone()));
        // The next one begins with the first.
        round.begin(waiting.len());
        assert_eq!(round.next(&waiting)[0], tried[0]);
    }

    #[test]
    fn with_a_change_at_each_step_everybody_has_a_turn() {
        let waiting = pods(5 * TRIED_MAX + 7);
        let mut round = Round::default();
        let mut tried = BTreeSet::new();
        for _ in 0..6 {
            round.begin(waiting.len());
            tried.extend(round.next(&waiting));
        }
        assert_eq!(tried, waiting);
        // All of them have gone meanwhile.
        assert!(round.next(&BTreeSet::new()).is_empty());
        assert!(!round.is_under_way());
    }
}
