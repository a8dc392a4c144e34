//! Which pods leave for an entitled one (`docs/reference/arbitrator.md`, "Who gives back").
//!
//! A set of victims is on one node, and each rule is kept by the set as a whole: budgets, what namespaces have for
//! sure, and that a namespace has too much even when all its victims but one are gone. As few pods as can leave do: of
//! sets of one, two and three ([`sets`](super::sets)) the best is found, smaller first. Beyond three the search is
//! greedy: a set from which no pod can be left out.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::search::{Best, Bound, Effort, Found, Need, Price, VictimSet, Worth, missing};
use super::sets::Site;
use super::{Enough, Planner, part_of};
use crate::arbitration::amounts::ResourceSet;
use crate::arbitration::cluster::Pod;
use crate::arbitration::entitled::Entitled;

/// Pods of this priority and above are critical to the system and never evicted.
const CRITICAL_PRIORITY: i64 = 2_000_000_000;

/// How many of the first candidates are left out in turn where a greedy search finds nothing.
const LEFT_OUT_MAX: usize = 16;

/// What a search came to.
pub(super) struct Search {
    /// With what their namespaces lose.
    pub(super) best: Option<(i128, VictimSet)>,
    /// Of sets that were refused by so little that another pod with the same requests could have them: the least loss.
    pub(super) closest: Option<i128>,
    /// Sets that were tried, and pods that were looked at.
    pub(super) sets: Effort,
    pub(super) steps: Effort,
}

impl Search {
    /// It would have had to go on: there may be better victims, or some.
    pub(super) fn is_cut(&self) -> bool {
        self.sets.is_short || self.steps.is_short
    }
}

/// Whether a pod may be a victim of any other (used amounts only fall, so what may not be now never will), where
/// namespaces use too much of these resources.
pub(super) fn may_be_victim(pod: &Pod, over: &[ResourceSet]) -> bool {
    over[pod.namespace].meets(ResourceSet::needed(&pod.requests))
        && !pod.daemon
        && pod.priority < CRITICAL_PRIORITY
        // The Eviction API refuses a pod that several budgets select.
        && pod.budgets.len() <= 1
}

impl Planner<'_> {
    /// The best set of victims on these nodes for a pod that has no room. If no more may be evicted any set will do.
    pub(super) fn victims(&self, entitled: &Entitled, nodes: &[usize]) -> Search {
        let namespace = self.cluster.pods[entitled.pod].namespace;
        let has_turn = self.has_turn(entitled);
        let mut found = Found {
            price: self.price(entitled),
            best: None,
            closest: None,
            sets: Effort::of(self.sets.left(namespace, has_turn)),
            steps: Effort::of(self.steps.left(namespace, has_turn)),
        };
        let any_will_do = self.evictions_left == 0;
        let mut needs = Vec::new();
        for node in nodes {
            if !found.can_be_better(self.bound(*node)) {
                continue;
            }
            let Some(need) = self.need(entitled, *node) else {
                continue;
            };
            self.try_singles(entitled, *node, &need, &mut found);
            if any_will_do && found.is_found() {
                break;
            }
            needs.push((*node, need));
        }
        if !found.is_found() {
            self.try_several(entitled, needs, any_will_do, &mut found);
        }
        Search {
            best: found.best.map(|best| (best.worth.1, best.victims)),
            closest: found.closest,
            sets: found.sets,
            steps: found.steps,
        }
    }

    /// Tries each candidate that alone makes enough room.
    fn try_singles<'a>(
        &'a self,
        entitled: &Entitled,
        node: usize,
        need: &Need,
        found: &mut Found<'a>,
    ) {
        let missing = missing(need);
        for at in self.candidates.on(node) {
            let best = found.best.as_ref();
            let is_worse = best.is_some_and(|best| self.candidates.get(at).priority > best.worth.0);
            if !is_worse && self.covers(&[at], need) && self.may_leave(entitled, at, need, missing)
            {
                self.weigh(node, &[at], found, |_| vec![at]);
            }
        }
    }

    /// Sets of more than one, where so much is missing; the best one is kept.
    fn try_several<'a>(
        &'a self,
        entitled: &Entitled,
        needs: Vec<(usize, Need)>,
        any_will_do: bool,
        found: &mut Found<'a>,
    ) {
        let mut excesses = BTreeMap::new();
        let mut sites = Vec::new();
        for (node, need) in needs {
            if found.steps.is_short {
                break;
            }
            sites.extend(self.site(entitled, node, need, &mut excesses, found));
            if any_will_do {
                self.try_all(&mut sites, found);
                sites.clear();
                if found.is_found() {
                    return;
                }
            }
        }
        self.try_all(&mut sites, found);
    }

    fn try_all<'a>(&'a self, sites: &mut [Site<'a>], found: &mut Found<'a>) {
        self.try_sets(sites, found);
        if !found.is_found() {
            self.try_many(sites, found);
        }
    }

    /// Whether these victims, which are there still, would be enough for this pod.
    pub(super) fn holds(&self, enough: Enough, entitled: &Entitled) -> bool {
        let urgent = self.is_urgent(entitled);
        let is_affordable = match self.price(entitled) {
            Price::Any => true,
            Price::Below { gain, .. } => enough.loss < gain,
        };
        is_affordable
            && (urgent || !enough.urgent)
            && !self.changes.has_since(enough.seen, enough.node)
    }

    /// What is missing on a node. Nothing if pods that leave cannot be enough.
    fn need(&self, entitled: &Entitled, node: usize) -> Option<Need> {
        if self.candidates.on(node).is_empty() {
            return None;
        }
        let requests = &self.cluster.pods[entitled.pod].requests;
        let free = self.free_later.exact(node);
        let potential = self.potential.row(node);
        let needed = || ResourceSet::needed(requests).and(self.counted).iter();
        let missing = |resource: usize| i128::from(requests[resource]) - free[resource];
        if needed().any(|resource| missing(resource) > i128::from(potential[resource]))
            || !self.is_usable(entitled.pod, node)
        {
            return None;
        }
        let amount = |resource| {
            u64::try_from(missing(resource))
                .ok()
                .filter(|missing| *missing > 0)
        };
        let need = needed().filter_map(|resource| Some((resource, amount(resource)?)));
        Some(need.collect())
    }

    /// Whether a candidate could leave, if it were the only one.
    pub(super) fn may_leave(
        &self,
        entitled: &Entitled,
        at: usize,
        need: &Need,
        missing: ResourceSet,
    ) -> bool {
        let candidate = self.candidates.get(at);
        if !self.over[candidate.namespace].meets(candidate.needs.and(missing)) {
            return false;
        }
        let claimer = &self.cluster.pods[entitled.pod];
        candidate.namespace != claimer.namespace
            && self
                .priority_limit(claimer)
                .is_none_or(|limit| candidate.priority <= limit)
            && candidate.age >= self.minimum_run_time(entitled)
            && self.keeps_rules(&[at], need)
    }

    /// The greatest priority of a victim, if it is bounded by that of the pod.
    pub(super) fn priority_limit(&self, claimer: &Pod) -> Option<i64> {
        let is_bounded = self.cluster.options.spares_greater_priority;
        is_bounded.then_some(claimer.priority)
    }

    /// For how long a victim has to have run.
    pub(super) fn minimum_run_time(&self, entitled: &Entitled) -> u64 {
        if self.is_urgent(entitled) {
            0
        } else {
            self.cluster.options.minimum_run_time
        }
    }

    /// Whether the pod is served at any loss: it is within what is reserved, or of an unlimited namespace.
    pub(super) fn is_urgent(&self, entitled: &Entitled) -> bool {
        let namespace = self.cluster.pods[entitled.pod].namespace;
        entitled.within_reserved || self.cluster.consumers[namespace].unlimited
    }

    /// Whether the set of candidates, as a whole, keeps budgets, reservations and the rule that only namespaces with
    /// too much give back.
    pub(super) fn keeps_rules(&self, set: &[usize], need: &[(usize, u64)]) -> bool {
        set.iter().all(|at| {
            let candidate = self.candidates.get(*at);
            let requests = self.candidates.requests(*at);
            let deserved = self.deserved.row(candidate.namespace);
            let reserved = self.reserved.row(candidate.namespace);
            let rest = |resource: usize| self.rest(set, candidate.namespace, resource);
            let is_over = need.iter().any(|(resource, _)| {
                let request = requests[*resource];
                request > 0 && rest(*resource) + request > deserved[*resource]
            });
            let mut needed = candidate.needs.iter();
            is_over
                && needed
                    .all(|resource| reserved[resource] == 0 || rest(resource) >= reserved[resource])
                && candidate.budget.is_none_or(|budget| {
                    let taken = set.iter().map(|other| self.candidates.get(*other).budget);
                    let taken = taken.filter(|other| *other == Some(budget)).count();
                    u64::try_from(taken).is_ok_and(|taken| taken <= self.budgets[budget])
                })
        })
    }

    /// What a namespace uses of a resource without those of the set that are its pods.
    fn rest(&self, set: &[usize], namespace: usize, resource: usize) -> u64 {
        let leaving = set
            .iter()
            .filter(|at| self.candidates.get(**at).namespace == namespace)
            .map(|at| self.candidates.requests(*at)[resource]);
        let leaving = leaving.fold(0, u64::saturating_add);
        self.used.row(namespace)[resource].saturating_sub(leaving)
    }

    /// Whether the set makes enough room.
    pub(super) fn covers(&self, set: &[usize], need: &[(usize, u64)]) -> bool {
        need.iter().all(|(resource, need)| {
            let freed = set
                .iter()
                .map(|at| self.candidates.requests(*at)[*resource]);
            freed.fold(0, u64::saturating_add) >= *need
        })
    }

    /// Keeps a set that may leave and is enough, if it is better. `members`: who they are, where it was only said what
    /// they are like and how old the oldest is.
    pub(super) fn weigh<'a>(
        &'a self,
        node: usize,
        set: &[usize],
        found: &mut Found<'a>,
        members: impl FnOnce(u64) -> Vec<usize>,
    ) {
        let (count, loss) = (set.len(), self.loss(set));
        if !found.affords(loss) {
            return;
        }
        if matches!(found.price, Price::Below { gain, .. } if loss >= gain) {
            found.closest = Some(found.closest.map_or(loss, |closest| closest.min(loss)));
            return;
        }
        let best = found.best.as_ref();
        let first = |(highest, loss, ..): Worth| (highest, loss);
        if best.is_some_and(|best| {
            (best.count, first(best.worth)) < (count, (self.highest_priority(set), loss))
        }) {
            return;
        }
        let worth = self.worth(node, set, loss, self.least_excess(set));
        if best.is_some_and(|best| (best.count, best.worth) < (count, worth)) {
            return;
        }
        let members = members(worth.3);
        let pods = members.iter().map(|at| self.candidates.get(*at).pod);
        let mut pods: Vec<usize> = pods.collect();
        let mut uids: Vec<&str> = pods.iter().map(|pod| self.uid(*pod)).collect();
        uids.sort_unstable();
        if best.is_none_or(|best| (count, worth, &uids) < (best.count, best.worth, &best.uids)) {
            pods.sort_unstable_by(|a, b| self.eviction_order(*a).cmp(&self.eviction_order(*b)));
            found.best = Some(Best {
                count,
                worth,
                uids,
                victims: VictimSet { node, pods },
            });
        }
    }

    /// How good a set is that loses so much, of namespaces with at least this excess.
    pub(super) fn worth(&self, node: usize, set: &[usize], loss: i128, excess: i128) -> Worth {
        let ages = set.iter().map(|at| self.candidates.get(*at).age);
        let oldest = ages.max().unwrap_or(0);
        (
            self.highest_priority(set),
            loss,
            Reverse(excess),
            oldest,
            node,
        )
    }

    fn highest_priority(&self, set: &[usize]) -> i64 {
        let priorities = set.iter().map(|at| self.candidates.get(*at).priority);
        priorities.max().unwrap_or(0)
    }

    pub(super) fn uid(&self, pod: usize) -> &str {
        &self.cluster.pods[pod].uid
    }

    /// Lower priority goes first, then the younger pod, then the lesser UID.
    fn eviction_order(&self, pod: usize) -> (i64, u64, &str) {
        let pod = &self.cluster.pods[pod];
        (pod.priority, pod.age, &pod.uid)
    }

    /// What the pod's namespace gains by it: that is what victims may cost.
    pub(super) fn price(&self, entitled: &Entitled) -> Price {
        if self.is_urgent(entitled) {
            return Price::Any;
        }
        let pod = &self.cluster.pods[entitled.pod];
        // Not what the walk of its namespace came to: pods before it may have found no room.
        let used = self.used.row(pod.namespace);
        let claimed = self.claimed.row(pod.namespace);
        let before = |resource: usize| used[resource].saturating_add(claimed[resource]);
        let with_it = |resource: usize| before(resource).saturating_add(pod.requests[resource]);
        let requests = pod.requests.iter().zip(&self.census.capacity);
        let rounded_up = |(request, capacity): (&u64, &Option<u64>)| {
            part_of(i128::from(*request), *capacity, 40) + 1
        };
        Price::Below {
            gain: self.served(pod.namespace, with_it, before),
            most: requests.map(rounded_up).sum(),
        }
    }

    /// How much more of the cluster a namespace has of what it deserves, if it uses so much instead of so much: the
    /// difference of the sums of its shares, in 2⁻⁴⁰.
    fn served(
        &self,
        namespace: usize,
        more: impl Fn(usize) -> u64,
        instead_of: impl Fn(usize) -> u64,
    ) -> i128 {
        let deserved = self.deserved.row(namespace).iter().enumerate();
        let shares = deserved.map(|(resource, deserved)| {
            let (more, less) = (
                more(resource).min(*deserved),
                instead_of(resource).min(*deserved),
            );
            if more == less {
                return 0;
            }
            let share =
                |amount: u64| part_of(i128::from(amount), self.census.capacity[resource], 40);
            share(more) - share(less)
        });
        shares.sum()
    }

    /// The namespaces of a set, each once.
    fn namespaces(&self, set: &[usize]) -> impl Iterator<Item = usize> {
        let namespace = |at: usize| self.candidates.get(set[at]).namespace;
        (0..set.len())
            .filter(move |at| (0..*at).all(|before| namespace(before) != namespace(*at)))
            .map(namespace)
    }

    /// What the namespaces of a set lose together.
    pub(super) fn loss(&self, set: &[usize]) -> i128 {
        let loss = |namespace: usize| {
            let used = self.used.row(namespace);
            let rest = |resource: usize| self.rest(set, namespace, resource);
            self.served(namespace, |resource| used[resource], rest)
        };
        self.namespaces(set).map(loss).sum()
    }

    /// By how much of the cluster a namespace uses more than it deserves, in the resource where that is most, in 2⁻⁴⁸.
    pub(super) fn excess(&self, namespace: usize) -> i128 {
        let deserved = self.deserved.row(namespace);
        let rows = self.used.row(namespace).iter().zip(deserved);
        let excess = rows.zip(&self.census.capacity);
        let excess = excess.map(|((used, deserved), capacity)| {
            part_of(i128::from(*used) - i128::from(*deserved), *capacity, 48)
        });
        excess.max().unwrap_or(0)
    }

    /// The least excess of the namespaces of a set.
    pub(super) fn least_excess(&self, set: &[usize]) -> i128 {
        let namespaces = self.namespaces(set);
        let excess = namespaces.map(|namespace| self.excess(namespace));
        excess.min().unwrap_or(0)
    }

    /// What single pods can be at best: on each node the least priority, and the greatest excess of their namespaces.
    /// As the plan goes on pods go and excess falls, so the bounds stay true.
    pub(super) fn bounds(&self) -> Vec<Bound> {
        let mut excess = vec![None; self.over.len()];
        let mut bounds = Vec::with_capacity(self.cluster.nodes.len());
        for node in 0..self.cluster.nodes.len() {
            let mut bound = (i64::MAX, Reverse(i128::MIN));
            for at in self.candidates.on(node) {
                let candidate = self.candidates.get(at);
                let namespace = candidate.namespace;
                let excess = *excess[namespace].get_or_insert_with(|| self.excess(namespace));
                bound = (
                    bound.0.min(candidate.priority),
                    bound.1.min(Reverse(excess)),
                );
            }
            bounds.push(bound);
        }
        bounds
    }

    fn bound(&self, node: usize) -> Bound {
        let bound = self.bounds.get(node).copied();
        bound.unwrap_or((i64::MIN, Reverse(i128::MAX)))
    }

    /// More victims than are tried exactly: on each node candidates in the order of eviction, then by how much room
    /// they make, until there is enough; then those that can be left out stay. Where that leads to a set on no node, it
    /// may be one of the first that keeps later ones from going: each of the first [`LEFT_OUT_MAX`] is left out in
    /// turn.
    fn try_many<'a>(&'a self, sites: &[Site<'a>], found: &mut Found<'a>) {
        for left_out in std::iter::once(None).chain((0..LEFT_OUT_MAX).map(Some)) {
            for site in sites {
                if found.steps.is_short {
                    return;
                }
                self.try_orders(site, left_out, found);
            }
            if found.best.is_some() {
                return;
            }
        }
    }

    /// The same on one node, without the candidate that is at this place of the order of eviction.
    fn try_orders<'a>(&'a self, site: &Site<'a>, left_out: Option<usize>, found: &mut Found<'a>) {
        let mut in_order = site.candidates();
        let pod = |at: &usize| self.candidates.get(*at).pod;
        in_order.sort_unstable_by(|a, b| {
            self.eviction_order(pod(a))
                .cmp(&self.eviction_order(pod(b)))
        });
        match left_out {
            Some(at) if at < in_order.len() => {
                in_order.remove(at);
            }
            Some(_) => return,
            None => {}
        }
        let mut by_room = in_order.clone();
        by_room.sort_by_cached_key(|victim| Reverse(self.room_made(*victim, &site.need)));
        for order in [in_order, by_room] {
            let set = self.enough_of(&order, &site.need, &mut found.steps);
            if let Some(set) = set.filter(|set| self.keeps_rules(set, &site.need)) {
                self.weigh(site.node, &set, found, |_| set.clone());
            }
        }
    }

    /// How much of what is missing a pod would give back, summed over resources, in 2⁻³².
    fn room_made(&self, victim: usize, need: &[(usize, u64)]) -> i128 {
        let requests = self.candidates.requests(victim);
        let parts = need.iter().map(|(resource, need)| {
            part_of(i128::from(requests[*resource].min(*need)), Some(*need), 32)
        });
        parts.sum()
    }

    /// A set that makes enough room, from which no pod can be left out: taken in order, then the last ones first are
    /// tried to be left out.
    fn enough_of(
        &self,
        order: &[usize],
        need: &[(usize, u64)],
        steps: &mut Effort,
    ) -> Option<Vec<usize>> {
        let mut set = Vec::new();
        let mut freed: Vec<i128> = need.iter().map(|(_, need)| -i128::from(*need)).collect();
        let mut parts = BTreeMap::new();
        for victim in order {
            if freed.iter().all(|freed| *freed >= 0) {
                break;
            }
            let part = parts
                .entry(self.candidates.get(*victim).namespace)
                .or_insert_with(|| Part::new(self.cluster.resources.len()));
            if !steps.take(1 + part.set.len() as u64) {
                return None;
            }
            if self.takes(part, *victim, need) {
                set.push(*victim);
                self.free(&mut freed, *victim, need, 1);
            }
        }
        if freed.iter().any(|freed| *freed < 0) {
            return None;
        }
        for at in (0..set.len()).rev() {
            self.free(&mut freed, set[at], need, -1);
            if freed.iter().all(|freed| *freed >= 0) {
                set.remove(at);
            } else {
                self.free(&mut freed, set[at], need, 1);
            }
        }
        Some(set)
    }

    /// What a victim makes free, or not.
    fn free(&self, freed: &mut [i128], victim: usize, need: &[(usize, u64)], sign: i128) {
        let requests = self.candidates.requests(victim);
        for (freed, (resource, _)) in freed.iter_mut().zip(need) {
            *freed += sign * i128::from(requests[*resource]);
        }
    }

    /// Takes one more of a namespace, if that keeps [the rules](Self::keeps_rules).
    fn takes(&self, part: &mut Part, victim: usize, need: &[(usize, u64)]) -> bool {
        let candidate = self.candidates.get(victim);
        let used = self.used.row(candidate.namespace);
        let deserved = self.deserved.row(candidate.namespace);
        let reserved = self.reserved.row(candidate.namespace);
        let more = self.candidates.requests(victim);
        let rest = |resource: usize| {
            used[resource].saturating_sub(part.requested[resource].saturating_add(more[resource]))
        };
        let mut all = part.set.iter().copied().chain([victim]);
        let keeps_rules = all.all(|at| {
            let requests = self.candidates.requests(at);
            let mut missing = need.iter().map(|(resource, _)| *resource);
            let mut needs = self.candidates.get(at).needs.iter();
            missing.any(|resource| {
                requests[resource] > 0 && rest(resource) + requests[resource] > deserved[resource]
            }) && needs
                .all(|resource| reserved[resource] == 0 || rest(resource) >= reserved[resource])
        });
        let of_budget = |budget: usize| {
            let taken = part.set.iter().map(|at| self.candidates.get(*at).budget);
            taken.filter(|other| *other == Some(budget)).count() as u64
        };
        let is_in_budget = candidate
            .budget
            .is_none_or(|budget| of_budget(budget) < self.budgets[budget]);
        if !keeps_rules || !is_in_budget {
            return false;
        }
        for (requested, more) in part.requested.iter_mut().zip(more) {
            *requested = requested.saturating_add(*more);
        }
        part.set.push(victim);
        true
    }
}

/// Victims of one namespace.
struct Part {
    set: Vec<usize>,
    /// What they request together.
    requested: Vec<u64>,
}

impl Part {
    fn new(resources: usize) -> Self {
        Self {
            set: Vec::new(),
            requested: vec![0; resources],
        }
    }
}
