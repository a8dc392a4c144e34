//! A policy tried over days of virtual time, before it is used.
//!
//! Problem: what weights and reservations do is seen only when the cluster is short and namespaces come and go. Then it
//! is late to find that a namespace waits for hours.
//!
//! Approach: the pods of a snapshot, and pods that come from a seeded load ([`load`]), go through turns of equal
//! length. In each turn pods end, pods come, and a [`Policy`] decides which start and which are evicted. Two baselines
//! ([`baseline`]) get the same pods at the same times, so that policies can be compared. What happened to each
//! namespace is counted ([`figures`]).
//!
//! A model, and no more: a pod that is evicted has left within the turn, comes back at once as a pending pod and starts
//! over; a pod starts in the turn in which it gets its place. Pods of the snapshot run for ever. Nodes neither come nor
//! go.

mod baseline;
pub mod figures;
pub mod load;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::amounts::{Bounds, ResourceSet, Table};
use super::census::{Census, PodUse};
use super::cluster::{Cluster, NodeState, Pod};
use super::plan::Action;
use super::plan::turns::Turns;
use super::{Cycle, arbitrate_in_turn};
use figures::{Figures, Outcome, PARTS};
use load::{Arrival, Stream};

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// The arbitrator. Pods that are not entitled start where there is room as long as no entitled pod waits.
    Shares,
    /// Each namespace has its part of the cluster by its weight, at least what is reserved and at most its `hard`, and
    /// never more. No pod is evicted.
    Quotas,
    /// As the kube-scheduler: higher priority first, and pods of lower priority are evicted for it. `hard` is kept;
    /// budgets are a preference.
    Priorities,
}

/// How long, and in which steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Seconds in all.
    pub seconds: u64,
    /// Seconds of a turn, at least 1.
    pub turn: u64,
}

/// A rehearsal that goes on.
pub struct Rehearsal<'a> {
    policy: Policy,
    terms: Terms,
    streams: &'a [Stream],
    arrivals: &'a [Arrival],
    next_arrival: usize,
    now: u64,
    /// As it is now: its pods are those that are there.
    cluster: Cluster,
    /// Of each pod of the cluster.
    lives: Vec<Life>,
    lines: usize,
    turns: Turns,
    /// What is free on each node.
    free: Table<i128>,
    /// What each Consumer uses; of groups the sums.
    used: Table<u64>,
    capacity: Bounds,
    /// What namespaces may use under [`Policy::Quotas`].
    quotas: Vec<Bounds>,
    /// When something last came, ended, started or was evicted.
    changed_at: u64,
    /// How many pods have come or ended.
    outside_changes: u64,
    /// Which line was evicted for which, and at how many outside changes last.
    evicted_for: BTreeMap<(usize, usize), u64>,
    /// How many seconds of each part of the length are counted.
    part_s: [u64; PARTS],
    outcome: Outcome,
}

/// What the API server does not know of a pod.
#[derive(Debug, Clone, Copy)]
struct Life {
    /// The same of a pod and of those that come back for it.
    line: usize,
    /// When the first of the line came.
    came: u64,
    /// When it started, if it runs.
    started: u64,
    entitled_since: Option<u64>,
    /// How long it runs; nothing: for ever.
    runs: Option<u64>,
    /// How often it was evicted.
    evicted: u64,
    has_started: bool,
    /// Budgets count it as disrupted.
    is_disrupted: bool,
}

impl<'a> Rehearsal<'a> {
    /// From a cluster, with what comes.
    #[must_use]
    pub fn new(
        cluster: &Cluster,
        streams: &'a [Stream],
        arrivals: &'a [Arrival],
        policy: Policy,
        terms: Terms,
    ) -> Self {
        let resources = cluster.resources.len();
        let capacity = Census::of(cluster).capacity;
        let figures = Figures {
            used: vec![0; resources],
            parts: vec![0; PARTS],
            ..Figures::default()
        };
        let mut rehearsal = Self {
            policy,
            terms,
            streams,
            arrivals,
            next_arrival: 0,
            now: 0,
            cluster: cluster.clone(),
            lives: Vec::new(),
            lines: 0,
            turns: Turns::default(),
            free: Table::new(cluster.nodes.len(), resources, 0),
            used: Table::new(cluster.consumers.len(), resources, 0),
            quotas: baseline::quotas(cluster, &capacity),
            changed_at: 0,
            outside_changes: 0,
            evicted_for: BTreeMap::new(),
            part_s: [0; PARTS],
            outcome: Outcome {
                figures: vec![figures; cluster.consumers.len()],
                capacity: capacity
                    .iter()
                    .map(|capacity| capacity.unwrap_or(0))
                    .collect(),
                seconds: terms.seconds,
                repeats: 0,
                loops: 0,
            },
            capacity,
        };
        for (at, node) in cluster.nodes.iter().enumerate() {
            for (resource, free) in rehearsal.free.row_mut(at).iter_mut().enumerate() {
                *free = i128::from(node.offered(resource));
            }
        }
        // What is leaving is gone before anything is decided.
        rehearsal.cluster.pods.retain(|pod| !pod.leaving);
        for at in 0..rehearsal.cluster.pods.len() {
            let life = rehearsal.life(None);
            rehearsal.lives.push(life);
            if let Some(node) = rehearsal.cluster.pods[at].node {
                rehearsal.lives[at].has_started = true;
                rehearsal.occupy(at, node, true);
            }
        }
        rehearsal
    }

    fn life(&mut self, runs: Option<u64>) -> Life {
        self.lines += 1;
        Life {
            line: self.lines,
            came: self.now,
            started: self.now,
            entitled_since: None,
            runs,
            evicted: 0,
            has_started: false,
            is_disrupted: false,
        }
    }

    /// Goes through all turns.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        while self.turn() {}
        self.finish()
    }

    /// One turn; false when the time is over.
    pub fn turn(&mut self) -> bool {
        if self.now >= self.terms.seconds {
            return false;
        }
        self.end_pods();
        self.add_pods();
        // Once nothing has happened for longer than any period counts, nothing will.
        let options = &self.cluster.options;
        let rest = options.reclaim_grace_period + options.minimum_run_time + 2 * self.terms.turn;
        if self.now <= self.changed_at + rest
            && self.cluster.pods.iter().any(|pod| pod.node.is_none())
        {
            match self.policy {
                Policy::Shares => self.arbitrate(),
                Policy::Quotas => self.start_within_quotas(),
                Policy::Priorities => self.start_by_priority(),
            }
        }
        self.count();
        self.now += self.terms.turn;
        true
    }

    /// How many seconds have been played.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The cluster as it is.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn end_pods(&mut self) {
        for at in (0..self.cluster.pods.len()).rev() {
            let life = self.lives[at];
            let is_over = |runs: u64| life.started + runs <= self.now;
            if self.cluster.pods[at].node.is_some() && life.runs.is_some_and(is_over) {
                self.leave(at);
                let pod = self.cluster.pods.swap_remove(at);
                self.lives.swap_remove(at);
                self.outcome.figures[pod.namespace].ended += 1;
                self.note_outside_change();
            }
        }
    }

    fn add_pods(&mut self) {
        while let Some(arrival) = self.arrivals.get(self.next_arrival)
            && arrival.at <= self.now
        {
            let life = self.life(Some(arrival.runs));
            let mut pod = self.streams[arrival.stream].pod.clone();
            pod.uid = format!("{:08}", life.line);
            self.outcome.figures[pod.namespace].came += 1;
            self.cluster.pods.push(pod);
            self.lives.push(life);
            self.next_arrival += 1;
            self.note_outside_change();
        }
    }

    fn note_outside_change(&mut self) {
        self.changed_at = self.now;
        self.outside_changes += 1;
    }

    /// What the arbitrator decides.
    fn arbitrate(&mut self) {
        for (pod, life) in self.cluster.pods.iter_mut().zip(&self.lives) {
            let entitled_since = life.entitled_since.unwrap_or(self.now);
            match pod.node {
                // Of the snapshot's pods the age at the start stays beyond what counts.
                Some(_) if life.runs.is_none() && life.evicted == 0 => {
                    pod.age = pod.age.saturating_add(self.terms.turn);
                }
                Some(_) => pod.age = self.now - life.started,
                None => pod.waiting = self.now - entitled_since,
            }
        }
        let Cycle { steps, census, .. } = arbitrate_in_turn(&self.cluster, &mut self.turns);
        let mut is_entitled = vec![false; self.cluster.pods.len()];
        steps.iter().for_each(|step| is_entitled[step.pod] = true);
        for (life, is_entitled) in self.lives.iter_mut().zip(&is_entitled) {
            let since = life.entitled_since.unwrap_or(self.now);
            life.entitled_since = is_entitled.then_some(since);
        }
        let mut one_waits = false;
        for step in steps {
            match step.action {
                Action::Fits { node } => self.start(step.pod, node),
                Action::Preempt { node, evict } => {
                    self.evict(&evict, step.pod);
                    self.start(step.pod, node);
                }
                Action::Leaving { .. } | Action::Grace | Action::Blocked | Action::Limited => {
                    one_waits = true;
                }
            }
        }
        if !one_waits {
            let rest = |at: &usize| !is_entitled[*at] && census.standings[*at] == PodUse::Pending;
            let rest = self.in_order((0..is_entitled.len()).filter(rest).collect());
            for pod in rest {
                let hard = |at: usize| &self.cluster.consumers[at].hard;
                if self.stays_within(pod, hard)
                    && let Some(node) = self.best_fit(pod)
                {
                    self.start(pod, node);
                }
            }
        }
    }

    /// Higher priority first, then who came first.
    fn in_order(&self, mut pods: Vec<usize>) -> Vec<usize> {
        pods.sort_unstable_by_key(|at| {
            (
                Reverse(self.cluster.pods[*at].priority),
                self.lives[*at].line,
            )
        });
        pods
    }

    /// Whether the pod's namespace and the groups above it stay within bounds with the pod.
    fn stays_within<'b>(&'b self, pod: usize, bounds: impl Fn(usize) -> &'b Bounds) -> bool {
        let pod = &self.cluster.pods[pod];
        let mut consumer = Some(pod.namespace);
        while let Some(at) = consumer {
            let used = self.used.row(at).iter().zip(&pod.requests).zip(bounds(at));
            for ((used, request), bound) in used {
                if *request > 0 && bound.is_some_and(|bound| used + request > bound) {
                    return false;
                }
            }
            consumer = self.cluster.consumers[at].parent;
        }
        true
    }

    /// Whether the pod could start on the node with so much free.
    fn could_start(&self, pod: &Pod, node: usize, free: impl Fn(usize) -> i128) -> bool {
        let mut needed = ResourceSet::needed(&pod.requests)
            .iter()
            .filter(|resource| self.capacity[*resource].is_some());
        self.cluster.nodes[node].state == NodeState::Ready
            && pod.may_use(node)
            && needed.all(|resource| free(resource) >= i128::from(pod.requests[resource]))
    }

    /// The node with room that the pod leaves least of, as the arbitrator chooses: so that policies differ in who runs
    /// and not in where.
    fn best_fit(&self, pod: usize) -> Option<usize> {
        let pod = &self.cluster.pods[pod];
        let fit = |node: usize| {
            let free = self.free.row(node);
            let rest = ResourceSet::needed(&pod.requests).iter().map(|resource| {
                let left = (free[resource] - i128::from(pod.requests[resource])).max(0);
                let capacity = self.capacity[resource].unwrap_or(0);
                (left << 32).checked_div(capacity.into()).unwrap_or(0)
            });
            let could_start = self.could_start(pod, node, |resource| free[resource]);
            could_start.then(|| (rest.sum::<i128>(), node))
        };
        let fits = (0..self.cluster.nodes.len()).filter_map(fit);
        fits.min().map(|(_, node)| node)
    }

    fn start(&mut self, at: usize, node: usize) {
        let life = &mut self.lives[at];
        let figures = &mut self.outcome.figures[self.cluster.pods[at].namespace];
        if !life.has_started {
            life.has_started = true;
            figures.started += 1;
            figures.waits_s.push(self.now - life.came);
        }
        if let Some(since) = life.entitled_since.take() {
            figures.entitled_waits_s.push(self.now - since);
        }
        if std::mem::take(&mut life.is_disrupted) {
            for budget in &self.cluster.pods[at].budgets {
                self.cluster.budgets[*budget] += 1;
            }
        }
        life.started = self.now;
        self.changed_at = self.now;
        let pod = &mut self.cluster.pods[at];
        (pod.node, pod.age, pod.waiting) = (Some(node), 0, 0);
        self.occupy(at, node, true);
    }

    /// Takes a pod's requests from what is free, or gives them back.
    fn occupy(&mut self, at: usize, node: usize, is_taken: bool) {
        let pod = &self.cluster.pods[at];
        for (free, request) in self.free.row_mut(node).iter_mut().zip(&pod.requests) {
            *free += if is_taken {
                -i128::from(*request)
            } else {
                i128::from(*request)
            };
        }
        let mut consumer = Some(pod.namespace);
        while let Some(at) = consumer {
            for (used, request) in self.used.row_mut(at).iter_mut().zip(&pod.requests) {
                *used = if is_taken {
                    used.saturating_add(*request)
                } else {
                    used.saturating_sub(*request)
                };
            }
            consumer = self.cluster.consumers[at].parent;
        }
    }

    fn leave(&mut self, at: usize) {
        if let Some(node) = self.cluster.pods[at].node.take() {
            self.occupy(at, node, false);
        }
    }

    /// Evicts pods for another. Each comes back at once.
    fn evict(&mut self, victims: &[usize], claimer: usize) {
        for at in victims {
            self.leave(*at);
            let lines = (self.lives[*at].line, self.lives[claimer].line);
            if let Some(changes) = self.evicted_for.insert(lines, self.outside_changes) {
                self.outcome.repeats += 1;
                self.outcome.loops += u64::from(changes == self.outside_changes);
            }
            let life = &mut self.lives[*at];
            let pod = &mut self.cluster.pods[*at];
            let figures = &mut self.outcome.figures[pod.namespace];
            figures.evicted += 1;
            figures.lost_s += self.now - life.started;
            life.evicted += 1;
            life.is_disrupted = true;
            (pod.age, pod.waiting) = (0, 0);
            pod.uid = format!("{:08}.{}", life.line, life.evicted);
            let is_allowed = pod.budgets.len() <= 1
                && pod
                    .budgets
                    .iter()
                    .all(|budget| self.cluster.budgets[*budget] > 0);
            figures.beyond_budget += u64::from(!is_allowed);
            for budget in &pod.budgets {
                let budget = &mut self.cluster.budgets[*budget];
                *budget = budget.saturating_sub(1);
            }
        }
        for at in victims {
            let pod = &self.cluster.pods[*at];
            let reserved = &self.cluster.consumers[pod.namespace].reserved;
            let is_below = ResourceSet::needed(&pod.requests)
                .iter()
                .any(|resource| self.used.row(pod.namespace)[resource] < reserved[resource]);
            self.outcome.figures[pod.namespace].below_reserved += u64::from(is_below);
        }
        self.changed_at = self.now;
    }

    /// Counts what this turn comes to.
    fn count(&mut self) {
        let turn = self.terms.turn.min(self.terms.seconds - self.now);
        let part = part_of(PARTS as u64, self.now, self.terms.seconds);
        let part = usize::try_from(part).unwrap_or(0);
        self.part_s[part] += turn;
        let mut is_short = vec![false; self.cluster.consumers.len()];
        for pod in self.cluster.pods.iter().filter(|pod| pod.node.is_none()) {
            let reserved = &self.cluster.consumers[pod.namespace].reserved;
            let used = self.used.row(pod.namespace);
            // With the pod the namespace would still be within what is reserved, of what is.
            let needed = ResourceSet::needed(&pod.requests).iter();
            let reserves = needed.filter(|resource| reserved[*resource] > 0);
            let holds = |resource: usize| {
                reserved[resource] >= used[resource].saturating_add(pod.requests[resource])
            };
            is_short[pod.namespace] |= reserves
                .map(holds)
                .reduce(|all, holds| all && holds)
                .unwrap_or(false);
        }
        for (at, figures) in self.outcome.figures.iter_mut().enumerate() {
            figures.short_s += if is_short[at] { turn } else { 0 };
            let mut share = 0;
            for (resource, used) in self.used.row(at).iter().enumerate() {
                figures.used[resource] += u128::from(*used) * u128::from(turn);
                let thousandths = (u128::from(*used) * 1000 * u128::from(turn))
                    .checked_div(self.outcome.capacity[resource].into());
                share = share.max(u64::try_from(thousandths.unwrap_or(0)).unwrap_or(u64::MAX));
            }
            figures.parts[part] += share;
        }
    }

    /// What it came to.
    #[must_use]
    pub fn finish(mut self) -> Outcome {
        for (pod, life) in self.cluster.pods.iter().zip(&self.lives) {
            let figures = &mut self.outcome.figures[pod.namespace];
            if !life.has_started {
                figures.waits_s.push(self.now - life.came);
            }
            if let Some(since) = life.entitled_since {
                figures.entitled_waits_s.push(self.now - since);
            }
        }
        for figures in &mut self.outcome.figures {
            figures.waits_s.sort_unstable();
            figures.entitled_waits_s.sort_unstable();
            for (share, seconds) in figures.parts.iter_mut().zip(self.part_s) {
                *share = share.checked_div(seconds).unwrap_or(0);
            }
        }
        self.outcome
    }
}

/// How much there is to decide, at the least: the pods that are there, summed over all turns, if each of them started
/// at once and ended in time. A policy that makes pods wait has more.
#[must_use]
pub fn pod_turns(of_the_snapshot: usize, arrivals: &[Arrival], terms: Terms) -> u64 {
    let turns = |seconds: u64| seconds.div_ceil(terms.turn.max(1));
    let of_the_snapshot = u64::try_from(of_the_snapshot).unwrap_or(u64::MAX);
    let come = arrivals.iter().map(|arrival| {
        let left = terms.seconds.saturating_sub(arrival.at);
        turns(arrival.runs.min(left))
    });
    come.fold(
        of_the_snapshot.saturating_mul(turns(terms.seconds)),
        u64::saturating_add,
    )
}

/// The lesser of two bounds.
fn lesser(bound: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (bound, other) {
        (Some(bound), Some(other)) => Some(bound.min(other)),
        (bound, other) => bound.or(other),
    }
}

/// A part of an amount, rounded down.
fn part_of(amount: u64, part: u64, whole: u64) -> u64 {
    let exact = (u128::from(amount) * u128::from(part)).checked_div(u128::from(whole));
    u64::try_from(exact.unwrap_or(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
