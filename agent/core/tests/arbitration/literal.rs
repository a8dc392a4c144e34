//! "Who deserves how much" and "Who gives back" of `docs/reference/arbitrator.md` read sentence by sentence, over
//! clusters of many shapes: every sum is made anew, every set of up to three victims is tried and all of them are
//! ranked. Nothing is taken from the implementation but its types. What namespaces deserve is read by
//! [`plain`](crate::plain).

use std::cmp::Reverse;

use plimsoll_core::arbitration::amounts::{Amounts, Bounds, ResourceSet, Resources};
use plimsoll_core::arbitration::cluster::{Cluster, Node, NodeState, Options, Pod};
use plimsoll_core::arbitration::demand::{Class, Demand};
use plimsoll_core::arbitration::groups::{Ask, Consumer};
use plimsoll_core::arbitration::plan::Action;
use plimsoll_core::arbitration::rehearsal::load::Numbers;
use plimsoll_core::arbitration::{Cycle, arbitrate};

use crate::plain;

/// A cluster, and what has been read of it so far.
struct Reading<'a> {
    cluster: &'a Cluster,
    capacity: Vec<Option<u64>>,
    deserved: Vec<Amounts>,
    used: Vec<Vec<u64>>,
    /// Pods that leave: those that did before, and the victims.
    leaving: Vec<bool>,
    /// Which pod has claimed a place on which node.
    claims: Vec<(usize, usize)>,
    budgets: Vec<u64>,
    evictions: usize,
}

/// An entitled pod.
struct Turn {
    pod: usize,
    is_urgent: bool,
}

/// How good a set of victims is.
type Rank = (usize, i64, i128, i128, u64, usize, Vec<String>);

fn state_of(cluster: &Cluster, pod: &Pod) -> Option<NodeState> {
    pod.node.map(|node| cluster.nodes[node].state)
}

fn is_used(cluster: &Cluster, pod: &Pod) -> bool {
    !pod.leaving
        && matches!(
            state_of(cluster, pod),
            Some(NodeState::Ready | NodeState::Cordoned)
        )
}

fn offered(node: &Node, r: usize) -> u64 {
    node.allocatable[r]
        .unwrap_or(0)
        .saturating_sub(node.withheld[r])
}

/// Section 2: the sum over nodes.
fn capacity(cluster: &Cluster) -> Vec<Option<u64>> {
    let of = |at: usize, r: usize| -> u128 {
        let node = &cluster.nodes[at];
        let here = cluster
            .pods
            .iter()
            .filter(|pod| pod.node == Some(at) && !pod.leaving);
        let requested: u128 = here.map(|pod| u128::from(pod.requests[r])).sum();
        match node.state {
            NodeState::Ready => offered(node, r).into(),
            NodeState::Cordoned => requested.min(offered(node, r).into()),
            NodeState::NotReady => 0,
        }
    };
    (0..cluster.resources.len())
        .map(|r| {
            let sum: u128 = (0..cluster.nodes.len()).map(|at| of(at, r)).sum();
            let is_counted = cluster
                .nodes
                .iter()
                .any(|node| node.allocatable[r].is_some());
            is_counted.then(|| u64::try_from(sum).unwrap())
        })
        .collect()
}

/// An empty Ready node that it may use could hold it; what no node has is not asked of one.
fn could_hold(cluster: &Cluster, capacity: &[Option<u64>], pod: &Pod, at: usize) -> bool {
    let node = &cluster.nodes[at];
    let holds = |r: usize| {
        pod.requests[r] == 0
            || capacity[r].is_none()
            || node.allocatable[r].is_some_and(|has| has >= pod.requests[r])
    };
    node.state == NodeState::Ready
        && pod.nodes.as_ref().is_none_or(|nodes| nodes.contains(&at))
        && (0..capacity.len()).all(holds)
}

/// Section 3.1, of one namespace.
fn ask(cluster: &Cluster, capacity: &[Option<u64>], namespace: usize) -> (Ask, u64) {
    let hard = &cluster.consumers[namespace].hard;
    let rank = |pod: &Pod| match state_of(cluster, pod) {
        Some(NodeState::NotReady) => 1,
        Some(_) => 0,
        None => 2,
    };
    let is_asked_for = |pod: &&Pod| {
        pod.namespace == namespace
            && !pod.leaving
            && (pod.node.is_some()
                || (0..cluster.nodes.len()).any(|at| could_hold(cluster, capacity, pod, at)))
    };
    let mut pods: Vec<&Pod> = cluster.pods.iter().filter(is_asked_for).collect();
    pods.sort_by_key(|pod| {
        let time = if pod.node.is_some() {
            pod.age
        } else {
            pod.waiting
        };
        let place = (
            rank(pod) > 0,
            Reverse(pod.priority),
            rank(pod),
            Reverse(time),
        );
        (place, pod.uid.clone())
    });
    let mut demand = Demand::nothing(capacity.len());
    let (mut used, mut passed_over) = (vec![0; capacity.len()], 0);
    // The pods in a row that request the same: what they request, the sum before the first, and how many.
    let mut alike = (Vec::new(), Vec::new(), 0);
    for pod in pods {
        let needs: Vec<usize> = (0..capacity.len())
            .filter(|r| pod.requests[*r] > 0)
            .collect();
        if is_used(cluster, pod) {
            needs.iter().for_each(|r| used[*r] += pod.requests[*r]);
        }
        let within = |bound: &dyn Fn(usize) -> Option<u64>| {
            let sum = |r: usize| demand.total[r] + pod.requests[r];
            needs
                .iter()
                .all(|r| bound(*r).is_none_or(|bound| sum(*r) <= bound))
        };
        let is_in_hard = within(&|r| hard[r]);
        if alike.0 != pod.requests.to_vec() {
            alike = (pod.requests.to_vec(), demand.total.to_vec(), 0);
        }
        alike.2 += 1;
        let with_all = |r: &usize| alike.1[*r] + alike.2 * pod.requests[*r];
        let is_beyond = |r: &usize| hard[*r].is_some_and(|hard| with_all(r) > hard);
        passed_over += u64::from(needs.iter().any(is_beyond));
        if !is_in_hard || !within(&|r| capacity[r].or(Some((1 << 60) - 1))) || needs.is_empty() {
            continue;
        }
        let set = ResourceSet::needed(&pod.requests);
        if !demand.classes.iter().any(|class| class.needs == set) {
            let amounts = vec![0; capacity.len()].into();
            demand.classes.push(Class {
                needs: set,
                amounts,
            });
        }
        let class = demand
            .classes
            .iter_mut()
            .find(|class| class.needs == set)
            .unwrap();
        for r in needs {
            class.amounts[r] += pod.requests[r];
            demand.total[r] += pod.requests[r];
        }
    }
    demand
        .classes
        .sort_by_key(|class| class.needs.iter().collect::<Vec<_>>());
    let used = used.into();
    (
        Ask {
            demand,
            used,
            passed_over,
        },
        passed_over,
    )
}

impl<'a> Reading<'a> {
    fn new(cluster: &'a Cluster) -> (Self, Vec<Ask>) {
        let capacity = capacity(cluster);
        let namespaces = 0..cluster.consumers.len();
        let asks: Vec<Ask> = namespaces.map(|at| ask(cluster, &capacity, at).0).collect();
        let reading = Self {
            deserved: plain::deserve(&cluster.consumers, &asks, &capacity),
            used: asks.iter().map(|ask| ask.used.to_vec()).collect(),
            leaving: cluster.pods.iter().map(|pod| pod.leaving).collect(),
            claims: Vec::new(),
            budgets: cluster.budgets.clone(),
            evictions: 0,
            capacity,
            cluster,
        };
        (reading, asks)
    }

    fn resources(&self) -> std::ops::Range<usize> {
        0..self.capacity.len()
    }

    /// Section 5.
    fn turns(&self) -> Vec<Turn> {
        let mut turns = Vec::new();
        for (namespace, consumer) in self.cluster.consumers.iter().enumerate() {
            let is_pending = |at: &usize| {
                let pod = &self.cluster.pods[*at];
                pod.namespace == namespace
                    && pod.node.is_none()
                    && !pod.leaving
                    && (0..self.cluster.nodes.len())
                        .any(|node| could_hold(self.cluster, &self.capacity, pod, node))
            };
            let mut pods: Vec<usize> = (0..self.cluster.pods.len()).filter(is_pending).collect();
            pods.sort_by_key(|at| {
                let pod = &self.cluster.pods[*at];
                (Reverse(pod.priority), Reverse(pod.waiting), pod.uid.clone())
            });
            let mut u = self.used[namespace].clone();
            for at in pods {
                let p = &self.cluster.pods[at].requests;
                let within = |bound: &[u64]| {
                    self.resources().all(|r| {
                        p[r] == 0 || u128::from(u[r]) + u128::from(p[r]) <= bound[r].into()
                    })
                };
                if !within(&self.deserved[namespace]) {
                    continue;
                }
                let share = |r: usize| {
                    let capacity = self.capacity[r].filter(|capacity| *capacity > 0)?;
                    Some(
                        (u128::from(u[r]) << 48)
                            / (u128::from(capacity) * u128::from(consumer.weight)),
                    )
                };
                let share = self.resources().filter_map(share).max().unwrap_or(0);
                let turn = Turn {
                    pod: at,
                    is_urgent: consumer.unlimited || within(&consumer.reserved),
                };
                turns.push(((!consumer.unlimited, share, namespace), turn));
                self.resources().for_each(|r| u[r] += p[r]);
            }
        }
        turns.sort_by_key(|(order, _)| *order);
        turns.into_iter().map(|(_, turn)| turn).collect()
    }

    /// What is free on a node; `later`: once leaving pods are gone.
    fn free(&self, node: usize, r: usize, later: bool) -> i128 {
        let here = self.cluster.pods.iter().enumerate();
        let here = here.filter(|(at, pod)| pod.node == Some(node) && !(later && self.leaving[*at]));
        let requested: i128 = here.map(|(_, pod)| i128::from(pod.requests[r])).sum();
        let claims = self.claims.iter().filter(|(_, at)| *at == node);
        let claimed: i128 = claims
            .map(|(pod, _)| i128::from(self.cluster.pods[*pod].requests[r]))
            .sum();
        i128::from(offered(&self.cluster.nodes[node], r)) - requested - claimed
    }

    fn usable(&self, pod: &Pod) -> Vec<usize> {
        let nodes = 0..self.cluster.nodes.len();
        nodes
            .filter(|node| could_hold(self.cluster, &self.capacity, pod, *node))
            .collect()
    }

    /// A part of what there is.
    fn part(&self, amount: i128, r: usize, bits: u32) -> i128 {
        match self.capacity[r] {
            None | Some(0) => 0,
            Some(capacity) => (amount << bits) / i128::from(capacity),
        }
    }

    fn best_fit(&self, pod: &Pod, later: bool) -> Option<usize> {
        let needed = |r: &usize| pod.requests[*r] > 0 && self.capacity[*r].is_some();
        let fit = |node: usize| {
            let mut sum = 0;
            for r in self.resources().filter(needed) {
                let rest = self.free(node, r, later) - i128::from(pod.requests[r]);
                if rest < 0 {
                    return None;
                }
                sum += self.part(rest, r, 32);
            }
            Some((sum, node))
        };
        self.usable(pod)
            .into_iter()
            .filter_map(fit)
            .min()
            .map(|(_, node)| node)
    }

    fn need(&self, pod: &Pod, node: usize, r: usize) -> i128 {
        if pod.requests[r] == 0 || self.capacity[r].is_none() {
            return 0;
        }
        (i128::from(pod.requests[r]) - self.free(node, r, true)).max(0)
    }

    fn served(&self, namespace: usize, u: impl Fn(usize) -> u64) -> i128 {
        let of = |r: usize| self.part(u(r).min(self.deserved[namespace][r]).into(), r, 40);
        self.resources().map(of).sum()
    }

    /// What a namespace uses without the pods of a set.
    fn rest(&self, set: &[usize], namespace: usize, r: usize) -> u64 {
        let theirs = set
            .iter()
            .map(|at| &self.cluster.pods[*at])
            .filter(|pod| pod.namespace == namespace);
        self.used[namespace][r] - theirs.map(|pod| pod.requests[r]).sum::<u64>()
    }

    /// Section 6, point 4: how good the set is; nothing if it may not leave, or is not enough.
    fn rank(&self, turn: &Turn, node: usize, set: &[usize]) -> Option<Rank> {
        let p = &self.cluster.pods[turn.pod];
        let pods: Vec<&Pod> = set.iter().map(|at| &self.cluster.pods[*at]).collect();
        let options = &self.cluster.options;
        let may_be = |(at, victim): (&usize, &&Pod)| {
            victim.node == Some(node)
                && !self.leaving[*at]
                && victim.namespace != p.namespace
                && !self.cluster.consumers[victim.namespace].unlimited
                && !victim.daemon
                && victim.priority < 2_000_000_000
                && (turn.is_urgent || victim.age >= options.minimum_run_time)
                && victim.budgets.len() <= 1
        };
        if !set.iter().zip(&pods).all(may_be) {
            return None;
        }
        for victim in &pods {
            let consumer = &self.cluster.consumers[victim.namespace];
            let in_budget = victim.budgets.iter().all(|budget| {
                let taken = pods
                    .iter()
                    .filter(|pod| pod.budgets.contains(budget))
                    .count();
                u64::try_from(taken).unwrap() <= self.budgets[*budget]
            });
            let deserved = &self.deserved[victim.namespace];
            let last = |r: usize| self.rest(set, victim.namespace, r) + victim.requests[r];
            let is_over = self.resources().any(|r| {
                self.need(p, node, r) > 0 && victim.requests[r] > 0 && last(r) > deserved[r]
            });
            let keeps = self.resources().all(|r| {
                victim.requests[r] == 0
                    || consumer.reserved[r] == 0
                    || self.rest(set, victim.namespace, r) >= consumer.reserved[r]
            });
            if !in_budget || !is_over || !keeps {
                return None;
            }
        }
        let freed = |r: usize| {
            pods.iter()
                .map(|pod| i128::from(pod.requests[r]))
                .sum::<i128>()
        };
        if self.resources().any(|r| freed(r) < self.need(p, node, r)) {
            return None;
        }
        let mut namespaces: Vec<usize> = pods.iter().map(|pod| pod.namespace).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        let lost = |at: &usize| {
            self.served(*at, |r| self.used[*at][r]) - self.served(*at, |r| self.rest(set, *at, r))
        };
        let loss: i128 = namespaces.iter().map(lost).sum();
        let claimed = self.claims.iter().map(|(at, _)| &self.cluster.pods[*at]);
        let claimed: Vec<&Pod> = claimed.filter(|of| of.namespace == p.namespace).collect();
        let has = |r: usize| {
            let claimed: u64 = claimed.iter().map(|of| of.requests[r]).sum();
            self.used[p.namespace][r] + claimed
        };
        let after = self.served(p.namespace, |r| has(r) + p.requests[r]);
        let gain = after - self.served(p.namespace, has);
        if !turn.is_urgent && gain <= loss {
            return None;
        }
        let excess = |at: &usize| {
            let over = |r: usize| i128::from(self.used[*at][r]) - i128::from(self.deserved[*at][r]);
            self.resources()
                .map(|r| self.part(over(r), r, 48))
                .max()
                .unwrap_or(0)
        };
        let mut uids: Vec<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
        uids.sort_unstable();
        let highest = pods.iter().map(|pod| pod.priority).max().unwrap();
        let least_excess = namespaces.iter().map(excess).min().unwrap();
        let oldest = pods.iter().map(|pod| pod.age).max().unwrap();
        Some((set.len(), highest, loss, -least_excess, oldest, node, uids))
    }

    /// The best set of at most three, in the order in which they go.
    fn best_set(&self, turn: &Turn) -> Option<(usize, Vec<usize>)> {
        let mut best: Option<(Rank, Vec<usize>)> = None;
        for node in self.usable(&self.cluster.pods[turn.pod]) {
            let here: Vec<usize> = (0..self.cluster.pods.len())
                .filter(|at| self.cluster.pods[*at].node == Some(node))
                .collect();
            for set in sets(&here) {
                let Some(rank) = self.rank(turn, node, &set) else {
                    continue;
                };
                if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                    best = Some((rank, set));
                }
            }
        }
        best.map(|(rank, mut set)| {
            let pod = |at: &usize| &self.cluster.pods[*at];
            set.sort_by_key(|at| (pod(at).priority, pod(at).age, pod(at).uid.clone()));
            (rank.5, set)
        })
    }

    fn evict(&mut self, set: &[usize]) {
        for at in set {
            let pod = &self.cluster.pods[*at];
            self.leaving[*at] = true;
            for (used, request) in self.used[pod.namespace].iter_mut().zip(&pod.requests) {
                *used -= request;
            }
            pod.budgets
                .iter()
                .for_each(|budget| self.budgets[*budget] -= 1);
            self.evictions += 1;
        }
    }

    /// Section 6. Sets of more than three are an implementation's choice: what it did is checked, and taken.
    fn act(&mut self, turn: &Turn, done: &Action) -> Action {
        let pod = &self.cluster.pods[turn.pod];
        let is_unlimited = self.cluster.consumers[pod.namespace].unlimited;
        if let Some(node) = self.best_fit(pod, false) {
            self.claims.push((turn.pod, node));
            return Action::Fits { node };
        }
        if let Some(node) = self.best_fit(pod, true) {
            self.claims.push((turn.pod, node));
            return Action::Leaving { node };
        }
        if pod.waiting < self.cluster.options.reclaim_grace_period && !is_unlimited {
            return Action::Grace;
        }
        let most = self.cluster.options.max_evictions_per_cycle;
        let (node, evict) = match (self.best_set(turn), done) {
            (Some((_, set)), _) if self.evictions + set.len() > most => return Action::Limited,
            (Some(best), _) => best,
            (None, Action::Preempt { node, evict }) if evict.len() > 3 => {
                let is_allowed = self.rank(turn, *node, evict).is_some();
                assert!(is_allowed, "{} may not evict {evict:?}", pod.uid);
                for left_out in 0..evict.len() {
                    let mut less = evict.clone();
                    less.remove(left_out);
                    let freed = |r| {
                        less.iter()
                            .map(|at| i128::from(self.cluster.pods[*at].requests[r]))
                            .sum::<i128>()
                    };
                    let is_enough = self
                        .resources()
                        .all(|r| freed(r) >= self.need(pod, *node, r));
                    assert!(!is_enough, "{evict:?} can do without one");
                }
                (*node, evict.clone())
            }
            (None, Action::Limited) => return Action::Limited,
            (None, _) => return Action::Blocked,
        };
        self.evict(&evict);
        self.claims.push((turn.pod, node));
        Action::Preempt { node, evict }
    }
}

/// All sets of one to three.
fn sets(of: &[usize]) -> Vec<Vec<usize>> {
    let mut sets = Vec::new();
    for (a, first) in of.iter().enumerate() {
        sets.push(vec![*first]);
        for (b, second) in of.iter().enumerate().skip(a + 1) {
            sets.push(vec![*first, *second]);
            sets.extend(
                of[b + 1..]
                    .iter()
                    .map(|third| vec![*first, *second, *third]),
            );
        }
    }
    sets
}

/// Compares a cycle with the reading; what the cycle came to.
fn check(seed: u64, cluster: &Cluster) -> Cycle {
    let cycle = arbitrate(cluster);
    let (mut reading, asks) = Reading::new(cluster);
    assert_eq!(
        cycle.census.capacity.to_vec(),
        reading.capacity,
        "seed {seed}: capacity"
    );
    assert_eq!(cycle.census.asks, asks, "seed {seed}: asked for");
    assert_eq!(
        cycle.deserved.amounts, reading.deserved,
        "seed {seed}: deserved"
    );
    let turns = reading.turns();
    let order: Vec<usize> = turns.iter().map(|turn| turn.pod).collect();
    let served: Vec<usize> = cycle.steps.iter().map(|step| step.pod).collect();
    assert_eq!(served, order, "seed {seed}: entitled, in turn");
    for (turn, step) in turns.iter().zip(&cycle.steps) {
        let action = reading.act(turn, &step.action);
        assert_eq!(
            step.action, action,
            "seed {seed}: {}",
            cluster.pods[turn.pod].uid
        );
    }
    cycle
}

/// A cluster of any shape: none or few nodes, resources that no node has or of which there is nothing, groups in
/// groups, bounds of 0 and reservations above all there is, ties, amounts up to 2⁶⁰, pods without requests, pods that
/// no node can hold, pods of several budgets, a cycle that may evict nothing.
fn any_cluster(seed: u64) -> Cluster {
    let mut numbers = Numbers::new(seed);
    let one_in = |numbers: &mut Numbers, of: u64| numbers.below(of) == 0;
    let names = ["cpu", "example.com/gpu", "memory", "pods"];
    let width = 1 + usize::try_from(numbers.below(4)).unwrap();
    let resources = Resources::new(names[..width].iter().map(|name| (*name).to_owned())).unwrap();
    // All amounts of a resource are of one magnitude, so that ties and near misses are common.
    let scales: Vec<u64> = (0..width)
        .map(|_| {
            [1, 1, 1, 100, 1000, 1 << 30, (1 << 30) + 1, 1 << 52]
                [usize::try_from(numbers.below(8)).unwrap()]
        })
        .collect();
    let missing: Vec<u64> = (0..width)
        .map(|_| [0, 0, 0, 4, 1][usize::try_from(numbers.below(5)).unwrap()])
        .collect();
    let nodes: Vec<Node> = (0..numbers.below(5))
        .map(|at| {
            let allocatable: Bounds = (0..width)
                .map(|r| {
                    let amount = numbers.below(16) * scales[r] + numbers.below(2);
                    // 4: one node in four lacks it, 1: all do.
                    let lacks = missing[r] > 0 && one_in(&mut numbers, missing[r]);
                    (!lacks).then_some(amount)
                })
                .collect();
            let withheld = (0..width).map(|r| {
                if one_in(&mut numbers, 6) {
                    numbers.below(4) * scales[r]
                } else {
                    0
                }
            });
            Node {
                name: format!("n{at}"),
                withheld: withheld.collect(),
                allocatable,
                state: match numbers.below(10) {
                    0 => NodeState::NotReady,
                    1 => NodeState::Cordoned,
                    _ => NodeState::Ready,
                },
            }
        })
        .collect();
    let consumers = consumers(&mut numbers, &scales);
    let budgets: Vec<u64> = (0..3).map(|_| numbers.below(3)).collect();
    let is_parent = |at: usize| consumers.iter().any(|other| other.parent == Some(at));
    let leaves: Vec<usize> = (0..consumers.len()).filter(|at| !is_parent(*at)).collect();
    let pods = (0..numbers.below(24)).map(|at| {
        let is_bound = !nodes.is_empty() && !one_in(&mut numbers, 3);
        let node = is_bound.then(|| usize::try_from(numbers.below(nodes.len() as u64)).unwrap());
        let requests = (0..width).map(|r| match numbers.below(8) {
            0..=2 => 0,
            7 => numbers.below(20) * scales[r],
            _ => numbers.below(5) * scales[r] + numbers.below(2),
        });
        let requests: Amounts = requests.collect();
        let seconds =
            [0, 29, 30, 59, 60, 100, 100, 5000][usize::try_from(numbers.below(8)).unwrap()];
        Pod {
            uid: format!("u{:02}", (at * 7 + seed % 5) % 24),
            namespace: leaves[usize::try_from(numbers.below(leaves.len() as u64)).unwrap()],
            requests,
            priority: [0, 0, 0, 0, 1, 5, -1, 2_000_000_000]
                [usize::try_from(numbers.below(8)).unwrap()],
            age: if is_bound { seconds } else { 0 },
            waiting: if is_bound { 0 } else { seconds },
            leaving: is_bound && one_in(&mut numbers, 12),
            daemon: one_in(&mut numbers, 15),
            nodes: one_in(&mut numbers, 8)
                .then(|| (0..nodes.len()).filter(|_| numbers.below(2) == 0).collect()),
            budgets: (0..budgets.len())
                .filter(|_| numbers.below(10) == 0)
                .collect(),
            node,
        }
    });
    let pods = pods.collect();
    Cluster {
        names: (0..consumers.len()).map(|at| format!("c{at}")).collect(),
        pods,
        options: Options {
            max_evictions_per_cycle: [10, 10, 3, 1, 0][usize::try_from(numbers.below(5)).unwrap()],
            ..Options::default()
        },
        nodes,
        consumers,
        budgets,
        resources,
    }
}

/// Up to nine, in groups of up to four levels; parents stand before or after their children.
fn consumers(numbers: &mut Numbers, scales: &[u64]) -> Vec<Consumer> {
    let count = 1 + usize::try_from(numbers.below(9)).unwrap();
    let in_groups = numbers.below(3) > 0;
    let is_turned = numbers.below(2) == 0;
    let place = |at: usize| if is_turned { count - 1 - at } else { at };
    let mut levels = vec![1; count];
    let mut rows: Vec<Consumer> = (0..count)
        .map(|at| {
            let parent = usize::try_from(numbers.below(at as u64 + 1)).unwrap();
            let is_member = in_groups && at > 0 && parent < at && levels[parent] < 4;
            if is_member {
                levels[at] = levels[parent] + 1;
            }
            let reserved: Amounts = scales
                .iter()
                .map(|scale| {
                    if numbers.below(3) == 0 {
                        numbers.below(8) * scale
                    } else {
                        0
                    }
                })
                .collect();
            let hard = scales.iter().zip(&reserved).map(|(scale, reserved)| {
                (numbers.below(5) == 0).then(|| (numbers.below(16) * scale).max(*reserved))
            });
            Consumer {
                hard: hard.collect(),
                parent: is_member.then(|| place(parent)),
                weight: [1, 1, 1, 2, 3, 1_000_000][usize::try_from(numbers.below(6)).unwrap()],
                unlimited: !is_member && numbers.below(12) == 0,
                reserved,
            }
        })
        .collect();
    // A group is not unlimited: what it asks for depends on what unlimited ones leave.
    let parents: Vec<usize> = rows.iter().filter_map(|row| row.parent).collect();
    if is_turned {
        rows.reverse();
    }
    parents
        .into_iter()
        .for_each(|parent| rows[parent].unlimited = false);
    rows
}

/// Full nodes of pods of a few kinds, of which those that wait need several: many sets compare as equal up to the ages
/// and UIDs of their pods, which are scattered.
fn cluster_of_kinds(seed: u64) -> Cluster {
    let mut numbers = Numbers::new(seed ^ 0x5eed);
    let pick = |numbers: &mut Numbers, of: &[u64]| {
        of[usize::try_from(numbers.below(of.len() as u64)).unwrap()]
    };
    let resources = Resources::new(["cpu", "memory"].map(str::to_owned)).unwrap();
    let node = |at: usize| Node {
        name: format!("n{at}"),
        allocatable: [Some(12), Some(16)].into(),
        withheld: [0, 0].into(),
        state: NodeState::Ready,
    };
    let nodes: Vec<Node> = (0..1 + usize::try_from(numbers.below(3)).unwrap())
        .map(node)
        .collect();
    let consumers: Vec<Consumer> = (0..2 + numbers.below(3))
        .map(|_| Consumer {
            parent: None,
            weight: pick(&mut numbers, &[1, 1, 2]),
            hard: resources.unbounded(),
            reserved: [pick(&mut numbers, &[0, 0, 2, 6]), 0].into(),
            unlimited: false,
        })
        .collect();
    let budgets: Vec<u64> = (0..2).map(|_| numbers.below(4)).collect();
    let is_mixed = numbers.below(2) == 0;
    let mut pods = Vec::new();
    for at in 0..nodes.len() {
        let mut left = 12;
        while left > 0 {
            let cpu = if is_mixed { 1 + numbers.below(3) } else { 1 };
            let cpu = cpu.min(left);
            left -= cpu;
            let memory = if is_mixed { numbers.below(3) } else { 1 };
            pods.push((Some(at), [cpu, memory]));
        }
    }
    for _ in 0..1 + numbers.below(4) {
        pods.push((None, [2 + numbers.below(3), 1 + numbers.below(4)]));
    }
    let count = pods.len() as u64;
    let pods = (0..).zip(pods).map(|(at, (node, requests))| {
        let namespace = numbers.below(consumers.len() as u64);
        // Who waits mostly has little.
        let namespace = if node.is_some() {
            namespace / 2
        } else {
            namespace
        };
        let seconds = pick(&mut numbers, &[40, 100, 100, 200, 300, 1000 + at]);
        Pod {
            uid: format!("u{:02}", (at * 41 + seed) % count),
            namespace: usize::try_from(namespace).unwrap(),
            requests: requests.into(),
            priority: i64::from(numbers.below(5) == 0),
            age: node.map_or(0, |_| seconds),
            waiting: node.map_or(seconds, |_| 0),
            leaving: false,
            daemon: false,
            nodes: None,
            budgets: (0..budgets.len())
                .filter(|_| numbers.below(8) == 0)
                .collect(),
            node,
        }
    });
    Cluster {
        names: (0..consumers.len()).map(|at| format!("c{at}")).collect(),
        pods: pods.collect(),
        options: Options {
            max_evictions_per_cycle: [10, 10, 4, 2][usize::try_from(numbers.below(4)).unwrap()],
            ..Options::default()
        },
        nodes,
        consumers,
        budgets,
        resources,
    }
}

/// The same over many seeds, and how often which action was seen.
fn run(seeds: std::ops::Range<u64>, any: fn(u64) -> Cluster) -> [usize; 8] {
    let mut seen = [0; 8];
    for seed in seeds {
        for step in check(seed, &any(seed)).steps {
            seen[match step.action {
                Action::Fits { .. } => 0,
                Action::Leaving { .. } => 1,
                Action::Grace => 2,
                Action::Preempt { evict, .. } if evict.len() > 2 => 7,
                Action::Preempt { evict, .. } if evict.len() > 1 => 6,
                Action::Preempt { .. } => 3,
                Action::Blocked => 4,
                Action::Limited => 5,
            }] += 1;
        }
    }
    seen
}

#[test]
fn a_cycle_is_what_the_specification_says() {
    let seen = run(0..3000, any_cluster);
    assert!(
        seen[..7].iter().all(|count| *count > 5),
        "{seen:?} shows little"
    );
}

#[test]
fn the_best_set_of_pods_that_are_alike_is_that_of_all_sets() {
    let seen = run(0..1500, cluster_of_kinds);
    assert!(
        seen[6] > 300 && seen[7] > 100 && seen[4] > 20 && seen[5] > 20,
        "{seen:?} shows little"
    );
}

/// `READINGS=1000000 cargo test --release -p plimsoll-core --test arbitration literal -- --ignored --nocapture`.
#[test]
#[ignore = "minutes"]
fn many_cycles_are_what_the_specification_says() {
    let readings = std::env::var("READINGS").map_or(100_000, |text| text.parse().unwrap());
    for any in [any_cluster, cluster_of_kinds] {
        println!(
            "fits, leaving, grace, preempts one, blocked, limited, preempts two, three or more: {:?}",
            run(3000..3000 + readings, any)
        );
    }
}
