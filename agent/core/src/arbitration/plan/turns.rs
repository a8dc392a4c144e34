//! Whose turn it is to be searched for, from cycle to cycle.
//!
//! Problem: what a cycle searches is bounded ([`Work`](super::work::Work)), and pods are served in an order that may
//! stay the same. Who comes first would use the common part up in each cycle, and a pod behind that needs more than its
//! namespace's own part would wait without end, and nobody would have looked for victims for it.
//!
//! Approach: pods whose search was cut make a *round*. In the next cycle the first of them have a part of the bound for
//! themselves, whatever comes before them. Who was looked at leaves the round; when it is empty the next one begins
//! with those whose search was cut then. The first are one pod of each namespace, then a second one: a namespace with
//! thousands of them holds up no other. How many have their turn at once follows from how many could be looked at:
//! twice as many if all could, as many as could if not, one at the least.
//!
//! So in a round of `n` pods each is looked at within `2n` cycles: a cycle looks at one of them or more, or else the
//! next one leaves its part to a single pod, and what is not decided with that takes more than a cycle can do. Who
//! comes later waits for the next round.
//!
//! Victims have notice for many cycles before the first of them goes. So a pod that was found room in its turn, by
//! victims or by pods that leave, keeps its turn for as long as that is so.

use std::collections::{BTreeMap, BTreeSet};

use crate::arbitration::cluster::Cluster;

/// How many have their turn in one cycle at most.
const AT_ONCE_MAX: usize = 4096;
/// How many that were found room keep their turn at most: some times what a cycle evicts.
const FOUND_MAX: usize = 64;

/// What is known from cycle to cycle of searches that were cut. A new one is as if there had been none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turns {
    /// UIDs of pods whose turn is still to come in this round.
    round: BTreeSet<String>,
    /// UIDs of pods that were found room in their turn.
    found: BTreeSet<String>,
    /// How many of the round have it in the next cycle.
    at_once: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            round: BTreeSet::new(),
            found: BTreeSet::new(),
            at_once: 1,
        }
    }
}

impl Turns {
    /// How many pods wait for their turn, or keep it.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.round.len() + self.found.len()
    }

    /// Of these pods those whose turn it is, ascending.
    pub(super) fn now(&self, cluster: &Cluster, pods: impl Iterator<Item = usize>) -> Vec<usize> {
        if self.waiting() == 0 {
            return Vec::new();
        }
        let uid = |pod: &usize| cluster.pods[*pod].uid.as_str();
        let waits = |pod: &usize| self.found.contains(uid(pod)) || self.round.contains(uid(pod));
        let mut now: Vec<usize> = pods.filter(waits).collect();
        now.sort_unstable_by_key(uid);
        let mut of_namespace: BTreeMap<usize, usize> = BTreeMap::new();
        let mut served: Vec<(bool, usize, &str, usize)> = Vec::with_capacity(now.len());
        for pod in now {
            let turn = of_namespace.entry(cluster.pods[pod].namespace).or_default();
            served.push((!self.found.contains(uid(&pod)), *turn, uid(&pod), pod));
            *turn += 1;
        }
        served.sort_unstable();
        let found = served.iter().filter(|(is_new, ..)| !is_new).count();
        served.truncate(found + self.at_once);
        let mut now: Vec<usize> = served.into_iter().map(|(.., pod)| pod).collect();
        now.sort_unstable();
        now
    }

    /// What came of a cycle: whose turn it was, whose search was cut, and who was found room.
    pub(super) fn note(
        &mut self,
        cluster: &Cluster,
        now: &[usize],
        cut: &[usize],
        found: &[usize],
    ) {
        let uid = |pod: &usize| cluster.pods[*pod].uid.as_str();
        let cut: BTreeSet<&str> = cut.iter().map(uid).collect();
        let found: BTreeSet<&str> = found.iter().map(uid).collect();
        let had_turn: Vec<&str> = now.iter().map(uid).collect();
        let of_round: Vec<&str> = had_turn
            .iter()
            .copied()
            .filter(|uid| !self.found.contains(*uid))
            .collect();
        let looked_at = of_round.iter().filter(|uid| !cut.contains(*uid)).count();
        if let ([alone], 0) = (&of_round[..], looked_at) {
            // More than a cycle can do.
            self.round.remove(*alone);
        }
        if !of_round.is_empty() {
            self.at_once = if looked_at == of_round.len() {
                (2 * self.at_once).min(AT_ONCE_MAX)
            } else {
                looked_at.max(1)
            };
        }
        let keep = had_turn.into_iter().filter(|uid| found.contains(uid));
        self.found = keep.take(FOUND_MAX).map(str::to_owned).collect();
        self.round.retain(|uid| cut.contains(&**uid));
        if self.round.is_empty() {
            self.round = cut.into_iter().map(str::to_owned).collect();
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
            ..Pod::default()
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
            turns.note(&cluster, &[], &(0..PODS).collect::<Vec<usize>>(), &[]);
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
                turns.note(&cluster, &now, &cut, &[]);
            }
            assert_eq!(looked_at.len(), PODS, "{seed}");
        }
    }

    #[test]
    fn who_waits_no_more_has_no_turn() {
        let cluster = cluster(3);
        let mut turns = Turns::default();
        turns.note(&cluster, &[], &[0, 1, 2], &[]);
        let now = turns.now(&cluster, [1, 2].into_iter());
        // By UID: 37 is before 74.
        assert_eq!(now, [1]);
        turns.note(&cluster, &now, &[2], &[]);
        assert_eq!(turns.now(&cluster, 0..3), [2]);
        turns.note(&cluster, &[], &[], &[]);
        assert_eq!(turns.waiting(), 0);
    }

    #[test]
    fn a_namespace_with_many_pods_holds_up_no_other() {
        let mut cluster = cluster(40);
        let last = cluster.pods.iter().max_by_key(|pod| pod.uid.clone());
        let last = last.map(|pod| pod.uid.clone()).unwrap_or_default();
        let other = (0..40)
            .find(|at| cluster.pods[*at].uid == last)
            .unwrap_or(0);
        cluster.pods[other].namespace = 1;
        let mut turns = Turns::default();
        let all: Vec<usize> = (0..40).collect();
        turns.note(&cluster, &[], &all, &[]);
        let first = turns.now(&cluster, 0..40);
        turns.note(&cluster, &first, &all[1..], &[]);
        let second = turns.now(&cluster, 0..40);
        assert!(
            first.contains(&other) || second.contains(&other),
            "{first:?} {second:?}"
        );
    }

    /// A victim has notice for many cycles.
    #[test]
    fn who_was_found_room_keeps_its_turn_while_that_is_so() {
        let cluster = cluster(4);
        let mut turns = Turns::default();
        turns.note(&cluster, &[], &[0, 1, 2, 3], &[]);
        let now = turns.now(&cluster, 0..4);
        assert_eq!(now, [0]);
        turns.note(&cluster, &now, &[1, 2, 3], &[0]);
        for _ in 0..20 {
            let now = turns.now(&cluster, 0..4);
            assert!(now.contains(&0) && now.len() > 1, "{now:?}");
            let cut: Vec<usize> = (1..4).filter(|pod| !now.contains(pod)).collect();
            turns.note(&cluster, &now, &cut, &[0]);
            turns.note(&cluster, &[0], &[1, 2, 3], &[0]);
        }
        // Its victims have gone, or may not go any more.
        turns.note(&cluster, &[0], &[1, 2, 3], &[]);
        assert!(!turns.now(&cluster, 0..4).contains(&0));
    }
}
