//! The rules of a plan (`docs/reference/arbitrator.md`, "Who gives back"), read plainly: every set of victims is tried.

use plimsoll_core::arbitration::cluster::{Cluster, NodeState};
use plimsoll_core::arbitration::plan::Action;
use plimsoll_core::arbitration::{Cycle, arbitrate};
use proptest::prelude::*;

/// What the plan changes as it goes on.
struct Replay<'a> {
    cluster: &'a Cluster,
    cycle: &'a Cycle,
    used: Vec<Vec<u64>>,
    /// What is free once leaving pods are gone.
    free: Vec<Vec<i128>>,
    gone: Vec<usize>,
    claims: Vec<usize>,
    budgets: Vec<u64>,
}

/// Checks one cycle, step by step.
pub(crate) fn check(cluster: &Cluster) -> Result<(), TestCaseError> {
    let cycle = arbitrate(cluster);
    let mut replay = Replay::new(cluster, &cycle);
    let mut walked: Vec<Vec<u64>> = replay.used.clone();
    for step in &cycle.steps {
        let pod = &cluster.pods[step.pod];
        let before = walked[pod.namespace].clone();
        for (used, request) in walked[pod.namespace].iter_mut().zip(&pod.requests) {
            *used += request;
        }
        let deserved = &cycle.deserved.amounts[pod.namespace];
        let needed = || (0..before.len()).filter(|r| pod.requests[*r] > 0);
        prop_assert!(
            needed().all(|r| before[r] + pod.requests[r] <= deserved[r]),
            "{} is not entitled",
            pod.uid
        );
        let within_reserved = needed()
            .all(|r| before[r] + pod.requests[r] <= cluster.consumers[pod.namespace].reserved[r]);
        let claim = Claim {
            pod: step.pod,
            within_reserved,
        };
        match &step.action {
            Action::Fits { node } | Action::Leaving { node } => replay.claim(*node, step.pod),
            Action::Grace => prop_assert!(pod.waiting < cluster.options.reclaim_grace_period),
            Action::Blocked => {
                prop_assert_eq!(replay.fewest(&claim), None, "{} is not blocked", &pod.uid)
            }
            Action::Limited => {}
            Action::Preempt { node, evict } => {
                prop_assert!(
                    replay.allows(&claim, *node, evict),
                    "{} may not evict {:?}",
                    pod.uid,
                    evict
                );
                // Beyond three the fewest is not promised.
                let is_fewest = replay
                    .fewest(&claim)
                    .map_or(evict.len() > 3, |fewest| fewest == evict.len());
                prop_assert!(is_fewest, "{} evicts more than it must", pod.uid);
                replay.evict(*node, evict);
                for victim in evict {
                    prop_assert!(
                        !replay.is_entitled(*victim),
                        "the successor of {} is entitled",
                        cluster.pods[*victim].uid
                    );
                }
                replay.claim(*node, step.pod);
            }
        }
    }
    Ok(())
}

struct Claim {
    pod: usize,
    within_reserved: bool,
}

impl<'a> Replay<'a> {
    fn new(cluster: &'a Cluster, cycle: &'a Cycle) -> Self {
        let free = cluster.nodes.iter().enumerate().map(|(at, node)| {
            let requested = |r: usize| -> u64 {
                let here = cluster
                    .pods
                    .iter()
                    .filter(|pod| pod.node == Some(at) && !pod.leaving);
                here.map(|pod| pod.requests[r]).sum()
            };
            let sizes = node.allocatable.iter().enumerate();
            sizes
                .map(|(r, size)| i128::from(size.unwrap()) - i128::from(requested(r)))
                .collect()
        });
        Self {
            cluster,
            cycle,
            used: cycle
                .census
                .asks
                .iter()
                .map(|ask| ask.used.to_vec())
                .collect(),
            free: free.collect(),
            gone: Vec::new(),
            claims: Vec::new(),
            budgets: cluster.budgets.clone(),
        }
    }

    fn claim(&mut self, node: usize, pod: usize) {
        for (free, request) in self.free[node]
            .iter_mut()
            .zip(&self.cluster.pods[pod].requests)
        {
            *free -= i128::from(*request);
        }
        self.claims.push(pod);
    }

    fn evict(&mut self, node: usize, pods: &[usize]) {
        for at in pods {
            let pod = &self.cluster.pods[*at];
            for (r, request) in pod.requests.iter().enumerate() {
                self.free[node][r] += i128::from(*request);
                self.used[pod.namespace][r] -= request;
            }
            pod.budgets
                .iter()
                .for_each(|budget| self.budgets[*budget] -= 1);
            self.gone.push(*at);
        }
    }

    /// Whether the pod's namespace could run it once more, within what it deserves. Not of a victim's, until more are
    /// evicted from the same namespace.
    fn is_entitled(&self, pod: usize) -> bool {
        let pod = &self.cluster.pods[pod];
        let deserved = &self.cycle.deserved.amounts[pod.namespace];
        let used = &self.used[pod.namespace];
        (0..deserved.len())
            .all(|r| pod.requests[r] == 0 || used[r] + pod.requests[r] <= deserved[r])
    }

    /// The size of the smallest set on any node that may leave, up to three.
    fn fewest(&self, claim: &Claim) -> Option<usize> {
        (1..=3).find(|size| {
            (0..self.cluster.nodes.len()).any(|node| {
                let here: Vec<usize> = (0..self.cluster.pods.len())
                    .filter(|pod| self.cluster.pods[*pod].node == Some(node))
                    .collect();
                sets(&here, *size)
                    .iter()
                    .any(|set| self.allows(claim, node, set))
            })
        })
    }

    /// Whether the set may leave this node for the claim, and is enough.
    fn allows(&self, claim: &Claim, node: usize, set: &[usize]) -> bool {
        let cluster = self.cluster;
        let pod = &cluster.pods[claim.pod];
        let resources = 0..pod.requests.len();
        let usable = cluster.nodes[node].state == NodeState::Ready
            && pod.nodes.as_ref().is_none_or(|nodes| nodes.contains(&node))
            && resources
                .clone()
                .all(|r| cluster.nodes[node].allocatable[r].unwrap() >= pod.requests[r]);
        let need = |r: usize| {
            if pod.requests[r] == 0 {
                0
            } else {
                (i128::from(pod.requests[r]) - self.free[node][r]).max(0)
            }
        };
        let freed = |r: usize| -> i128 {
            set.iter()
                .map(|victim| i128::from(cluster.pods[*victim].requests[r]))
                .sum()
        };
        let covers = resources.clone().all(|r| freed(r) >= need(r));
        let rest = |namespace: usize, r: usize| {
            let leaving = set
                .iter()
                .map(|victim| &cluster.pods[*victim])
                .filter(|victim| victim.namespace == namespace);
            // Pods that leave already, and those of nodes that are gone, are not used.
            self.used[namespace][r].saturating_sub(leaving.map(|victim| victim.requests[r]).sum())
        };
        let each = set.iter().all(|at| {
            let victim = &cluster.pods[*at];
            let deserved = &self.cycle.deserved.amounts[victim.namespace];
            let reserved = &cluster.consumers[victim.namespace].reserved;
            let taken = |budget: &usize| {
                set.iter()
                    .filter(|other| cluster.pods[**other].budgets.contains(budget))
                    .count()
            };
            victim.node == Some(node)
                && !victim.leaving
                && !self.gone.contains(at)
                && victim.namespace != pod.namespace
                && !victim.daemon
                && (victim.age >= cluster.options.minimum_run_time || claim.within_reserved)
                && victim.budgets.len() <= 1
                && victim
                    .budgets
                    .iter()
                    .all(|budget| taken(budget) as u64 <= self.budgets[*budget])
                && resources.clone().any(|r| {
                    need(r) > 0
                        && victim.requests[r] > 0
                        && rest(victim.namespace, r) + victim.requests[r] > deserved[r]
                })
                && resources.clone().all(|r| {
                    victim.requests[r] == 0
                        || reserved[r] == 0
                        || rest(victim.namespace, r) >= reserved[r]
                })
        });
        usable
            && covers
            && each
            && (claim.within_reserved || self.gain(claim) > self.loss(set, rest))
    }

    fn served(&self, namespace: usize, used: impl Fn(usize) -> u64) -> u128 {
        let deserved = self.cycle.deserved.amounts[namespace].iter().enumerate();
        let counted = deserved.zip(&self.cycle.census.capacity);
        counted
            .map(|((r, deserved), capacity)| {
                (u128::from(used(r).min(*deserved)) << 40)
                    .checked_div(capacity.unwrap().into())
                    .unwrap_or(0)
            })
            .sum()
    }

    fn gain(&self, claim: &Claim) -> u128 {
        let pod = &self.cluster.pods[claim.pod];
        let claimed = self.claims.iter().map(|at| &self.cluster.pods[*at]);
        let claimed: Vec<_> = claimed.filter(|of| of.namespace == pod.namespace).collect();
        let has = |r: usize| {
            let claimed: u64 = claimed.iter().map(|of| of.requests[r]).sum();
            self.used[pod.namespace][r] + claimed
        };
        self.served(pod.namespace, |r| has(r) + pod.requests[r]) - self.served(pod.namespace, has)
    }

    fn loss(&self, set: &[usize], rest: impl Fn(usize, usize) -> u64) -> u128 {
        let mut namespaces: Vec<usize> = set
            .iter()
            .map(|victim| self.cluster.pods[*victim].namespace)
            .collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        let lost = namespaces.iter().map(|namespace| {
            self.served(*namespace, |r| self.used[*namespace][r])
                - self.served(*namespace, |r| rest(*namespace, r))
        });
        lost.sum()
    }
}

fn sets(of: &[usize], size: usize) -> Vec<Vec<usize>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let firsts = of.iter().enumerate();
    firsts
        .flat_map(|(at, first)| {
            let rest = sets(&of[at + 1..], size - 1);
            rest.into_iter().map(|mut set| {
                set.insert(0, *first);
                set
            })
        })
        .collect()
}

/// A cycle in words that do not depend on the order of pods.
fn shown(cluster: &Cluster) -> String {
    let cycle = arbitrate(cluster);
    let uid = |pod: usize| cluster.pods[pod].uid.clone();
    let steps = cycle.steps.iter().map(|step| match &step.action {
        Action::Preempt { node, evict } => format!(
            "{} preempts {:?} on {node}",
            uid(step.pod),
            evict.iter().map(|pod| uid(*pod)).collect::<Vec<_>>()
        ),
        action => format!("{} {action:?}", uid(step.pod)),
    });
    format!(
        "{:?} {:?} {:?}",
        cycle.deserved,
        cycle.overused,
        steps.collect::<Vec<_>>()
    )
}

/// Shuffled pods make the same cycle.
pub(crate) fn check_order(cluster: &Cluster, seed: u64) -> Result<(), TestCaseError> {
    let mut shuffled = cluster.clone();
    let mut state = seed | 1;
    shuffled.pods.sort_by_cached_key(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    });
    prop_assert_eq!(shown(cluster), shown(&shuffled));
    Ok(())
}

/// Cycle after cycle, 100 s apart, with every victim made anew as a pending pod: after a while there is nothing more to
/// evict.
pub(crate) fn check_rest(mut cluster: Cluster) -> Result<(), TestCaseError> {
    for cycle in 0..60 {
        let steps = arbitrate(&cluster).steps;
        if !steps
            .iter()
            .any(|step| matches!(step.action, Action::Preempt { .. }))
        {
            return Ok(());
        }
        for step in steps {
            match step.action {
                Action::Fits { node } => start(&mut cluster, step.pod, node),
                Action::Preempt { node, evict } => {
                    for victim in evict {
                        let pod = &mut cluster.pods[victim];
                        (pod.node, pod.age, pod.waiting) = (None, 0, 0);
                        pod.uid = format!("{}-{cycle}", pod.uid);
                    }
                    start(&mut cluster, step.pod, node);
                }
                _ => {}
            }
        }
        cluster.pods.retain(|pod| !pod.leaving);
        for pod in &mut cluster.pods {
            let seconds = if pod.node.is_some() {
                &mut pod.age
            } else {
                &mut pod.waiting
            };
            *seconds += 100;
        }
    }
    prop_assert!(false, "it goes round: {:?}", arbitrate(&cluster).steps);
    Ok(())
}

fn start(cluster: &mut Cluster, pod: usize, node: usize) {
    let pod = &mut cluster.pods[pod];
    (pod.node, pod.age, pod.waiting) = (Some(node), 0, 0);
}
