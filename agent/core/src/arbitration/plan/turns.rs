//! Whose turn it is to be searched for, from cycle to cycle.
//!
//! Problem: what a cycle searches is bounded ([`Work`](super::work::Work)), and pods are served in an order that may stay the same. Who comes first would use the common part up in each cycle, and a pod behind that
//! needs more than its namespace's own part would wait without end, and nobody would have looked for victims for it.
//!
//! Approach: pods whose search was cut make a *round*. In the next cycle the first of them have a part of the bound for themselves, whatever comes before them. Who was looked at leaves the round; when it is empty the next
//! one begins with those whose search was cut then. How many have their turn at once follows from how many could be looked at: twice as many if all could, as many as could if not, one at the least.
//!
//! So in a round of `n` pods each is looked at within `2n` cycles: a cycle looks at one of them or more, or else the next one leaves its part to a single pod, and what is not decided with that takes more than
//! a cycle can do. Who comes later waits for the next round.

use std::collections::BTreeSet;

use crate::arbitration::cluster::Cluster;

/// How many have their turn in one cycle at most.
const AT_ONCE_MAX: usize = 4096;

/// What is known from cycle to cycle of searches that were cut. A new one is as if there had been none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turns {
    /// UIDs of pods whose turn is still to come in this round.
    round: BTreeSet<String>,
    /// How many have it in the next cycle.
    at_once: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            round: BTreeSet::new(),
            at_once: 1,
        }
    }
}

impl Turns {
    /// How many pods wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.round.len()
    }

    /// Of these pods those whose turn it is, ascending.
    pub(super) fn now(&self, cluster: &Cluster, pods: impl Iterator<Item = usize>) -> Vec<usize> {
        if self.round.is_empty() {
            return Vec::new();
        }
        let waits = |pod: &usize| self.round.contains(&cluster.pods[*pod].uid);
        let mut now: Vec<usize> = pods.filter(waits).collect();
        now.sort_unstable_by_key(|pod| &*cluster.pods[*pod].uid);
        now.truncate(self.at_once);
        now.sort_unstable();
        now
    }

    /// What came of a cycle: whose turn it was, and whose search was cut.
    pub(super) fn note(&mut self, cluster: &Cluster, now: &[usize], cut: &[usize]) {
        let mut uids: BTreeSet<&str> = BTreeSet::new();
        uids.extend(cut.iter().map(|pod| &*cluster.pods[*pod].uid));
        let is_cut = |pod: &&usize| uids.contains(&*cluster.pods[**pod].uid);
        let looked_at = now.len() - now.iter().filter(is_cut).count();
        if let ([alone], 0) = (now, looked_at) {
            // More than a cycle can do.
            self.round.remove(&cluster.pods[*alone].uid);
        }
        if !now.is_empty() {
            self.at_once = if looked_at == now.len() {
                (2 * self.at_once).min(AT_ONCE_MAX)
            } else {
                looked_at.max(1)
            };
        }
        self.round.retain(|uid| uids.contains(&**uid));
        if self.round.is_empty() {
            self.round = uids.into_iter().map(str::to_owned).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitration::cluster::Pod;
    use crate::arbitration::rehearsal::load::Numbers;

    fn cluster(pods: usize) -> Cluster {
        let pod = |at: usize| Pod {
            uid: format!("{:03}", at * 37 % 101),
            namespace: 0,
            node: None,
            requests: Vec::new().into(),
            priority: 0,
            age: 0,
            waiting: 0,
            leaving: false,
            daemon: false,
            nodes: None,
            budgets: Vec::new(),
        };
        Cluster {
            pods: (0..pods).map(pod).collect(),
            ..Cluster::default()
        }
    }

    /// Of more than one whose turn it is any number is cut; one alone is looked at, whether that is enough or not.
    #[test]
    fn whatever_is_cut_each_pod_is_looked_at_within_two_cycles_for_each() {
        const PODS: usize = 40;
        let cluster = cluster(PODS);
        for seed in 0..200 {
            let mut numbers = Numbers::new(seed);
            let mut turns = Turns::default();
            turns.note(&cluster, &[], &(0..PODS).collect::<Vec<usize>>());
            assert_eq!(turns.waiting(), PODS);
            let mut looked_at: BTreeSet<usize> = BTreeSet::new();
            for _ in 0..2 * PODS {
                let now = turns.now(&cluster, 0..PODS);
                assert!(now.is_sorted());
                let cut: Vec<usize> = (0..PODS)
                    .filter(|pod| !now.contains(pod) || numbers.below(4) < seed % 5)
                    .collect();
                let alone = now.len() == 1;
                looked_at.extend(now.iter().filter(|pod| alone || !cut.contains(pod)));
                turns.note(&cluster, &now, &cut);
            }
            assert_eq!(looked_at.len(), PODS, "{seed}");
        }
    }

    #[test]
    fn who_waits_no_more_has_no_turn() {
        let cluster = cluster(3);
        let mut turns = Turns::default();
        turns.note(&cluster, &[], &[0, 1, 2]);
        let now = turns.now(&cluster, [1, 2].into_iter());
        // By UID: 37 is before 74.
        assert_eq!(now, [1]);
        turns.note(&cluster, &now, &[2]);
        assert_eq!(turns.now(&cluster, 0..3), [2]);
        turns.note(&cluster, &[], &[]);
        assert_eq!(turns.waiting(), 0);
    }
}
