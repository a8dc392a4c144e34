//! Which pods leave for an entitled one (ARBITRATOR.md, section 6, point 4).
//!
//! A set of victims is on one node, and each rule is kept by the set as a whole: budgets, what namespaces have for sure, and that a namespace has too much even when
//! all its victims but one are gone. As few pods as can leave do: sets of one, two and three are all tried, smaller first. Pods of a node that are alike are tried once, as only their ages and
//! UIDs tell them apart. Beyond three, and where a plan has tried [`SETS_MAX`] sets, the search is greedy: a set from which no pod can be left out.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Enough, Planner, part_of};
use crate::arbitration::amounts::ResourceSet;
use crate::arbitration::cluster::Pod;
use crate::arbitration::entitled::Entitled;

/// Pods of this priority and above are critical to the system and never evicted.
const CRITICAL_PRIORITY: i64 = 2_000_000_000;

/// Up to so many victims all sets are tried.
const EXACT_MAX: usize = 3;

/// Sets of more than one that a plan tries at most, some tenths of a second: a node has a million sets of three if no two of its pods are alike.
pub(super) const SETS_MAX: usize = 4_000_000;

/// Pods of one node that leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Victims {
    pub(super) node: usize,
    /// In the order in which they go: lower priority first, then younger, then lesser UID.
    pub(super) pods: Vec<usize>,
}

/// What is missing on a node, by resource; only what is.
type Need = Vec<(usize, u64)>;

/// The resources of which something is missing.
fn missing(need: &Need) -> ResourceSet {
    let mut missing = ResourceSet::default();
    need.iter()
        .for_each(|(resource, _)| missing.insert(*resource));
    missing
}

/// A node on which pods could leave.
struct Site {
    node: usize,
    need: Need,
    /// Those who could leave, each for itself.
    candidates: Vec<usize>,
    /// The same by what they are alike in, the younger ones first, then by UID.
    kinds: Vec<Vec<usize>>,
    /// Fewer than so many cannot make enough room.
    fewest: usize,
}

/// How good a set is; the least is the best. In this order: the highest priority among its pods, what their namespaces lose, the least excess of these namespaces
/// (greater is better), the age of the oldest, the node, the UIDs.
type Rank<'a> = (i64, i128, Reverse<i128>, u64, usize, Vec<&'a str>);

/// What the first of a rank can be at best, for a single pod of a node.
pub(super) type Bound = (i64, Reverse<i128>);

/// What a search has found so far.
struct Found<'a> {
    price: Price,
    /// How many victims, how good, and which.
    best: Option<(usize, Rank<'a>, Victims)>,
    is_close: bool,
    /// So many more sets may be tried.
    sets_left: usize,
}

impl Found<'_> {
    /// Whether a single pod of a node with this bound can be as good as the best. No loss is less than none.
    fn can_be_better(&self, (priority, excess): Bound) -> bool {
        let best = self.best.as_ref();
        best.is_none_or(|(_, best, _)| (priority, 0, excess) <= (best.0, best.1, best.2))
    }

    /// Whether some pod with the same requests could afford the loss.
    fn affords(&self, loss: i128) -> bool {
        match self.price {
            Price::Any => true,
            Price::Below { most, .. } => loss < most,
        }
    }
}

/// What a search came to.
pub(super) struct Search {
    /// With what their namespaces lose.
    pub(super) best: Option<(i128, Victims)>,
    /// A set was refused by so little that another pod with the same requests could have it.
    pub(super) is_close: bool,
    /// So many more sets may be tried.
    pub(super) sets_left: usize,
}

/// What a set may cost.
#[derive(Clone, Copy)]
enum Price {
    /// Anything: the pod is within what is reserved, or of an unlimited namespace.
    Any,
    /// Less than the pod's namespace gains.
    Below {
        gain: i128,
        /// The most that any namespace gains by such a pod: gains of pods with the same requests differ by rounding.
        most: i128,
    },
}

/// Whether a pod may be a victim of any other (used amounts only fall, so what may not be now never will), where namespaces use too much of these resources.
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
        let mut found = Found {
            price: self.price(entitled),
            best: None,
            is_close: false,
            sets_left: self.sets_left,
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
            if any_will_do && found.best.is_some() {
                break;
            }
            needs.push((*node, need));
        }
        if found.best.is_none() {
            let sites = needs
                .into_iter()
                .filter_map(|(node, need)| self.site(entitled, node, need));
            if any_will_do {
                sites
                    .map(|site| self.try_all(&[site], &mut found))
                    .find(|is_found| *is_found);
            } else {
                self.try_all(&sites.collect::<Vec<_>>(), &mut found);
            }
        }
        Search {
            best: found.best.map(|(_, rank, victims)| (rank.1, victims)),
            is_close: found.is_close,
            sets_left: found.sets_left,
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
            let is_worse =
                best.is_some_and(|(_, rank, _)| self.candidates.get(at).priority > rank.0);
            if !is_worse && self.covers(&[at], need) && self.may_leave(entitled, at, need, missing)
            {
                self.weigh(node, &[at], found);
            }
        }
    }

    /// Whether there is a set of more than one on these sites; the best one is kept.
    fn try_all<'a>(&'a self, sites: &[Site], found: &mut Found<'a>) -> bool {
        for count in 2..=EXACT_MAX {
            for site in sites.iter().filter(|site| site.fewest <= count) {
                self.try_sets(site, count, (0, 0), &mut Vec::new(), found);
            }
            if found.best.is_some() {
                return true;
            }
        }
        self.try_many(sites, found);
        found.best.is_some()
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

    /// Who could leave on a node. Nothing if that cannot be enough.
    fn site(&self, entitled: &Entitled, node: usize, need: Need) -> Option<Site> {
        let missing = missing(&need);
        let candidates: Vec<usize> = self
            .candidates
            .on(node)
            .filter(|at| self.may_leave(entitled, *at, &need, missing))
            .collect();
        let fewest = need
            .iter()
            .map(|need| self.fewest(&candidates, *need))
            .try_fold(1, |most, fewest| Some(most.max(fewest?)))?;
        Some(Site {
            node,
            need,
            kinds: self.kinds(&candidates),
            candidates,
            fewest,
        })
    }

    /// Candidates of a node by what every rule and price looks at.
    fn kinds(&self, candidates: &[usize]) -> Vec<Vec<usize>> {
        let mut kinds: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for at in candidates {
            let candidate = self.candidates.get(*at);
            let kind = (
                candidate.priority,
                candidate.namespace,
                candidate.budget,
                self.candidates.requests(*at),
            );
            kinds.entry(kind).or_default().push(*at);
        }
        let mut kinds: Vec<Vec<usize>> = kinds.into_values().collect();
        for alike in &mut kinds {
            alike.sort_unstable_by_key(|at| self.age_and_uid(*at));
        }
        kinds
    }

    fn age_and_uid(&self, at: usize) -> (u64, &str) {
        let candidate = self.candidates.get(at);
        (candidate.age, self.uid(candidate.pod))
    }

    /// How few of the candidates can have so much of a resource.
    fn fewest(&self, candidates: &[usize], (resource, need): (usize, u64)) -> Option<usize> {
        let mut amounts: Vec<u64> = candidates
            .iter()
            .map(|at| self.candidates.requests(*at)[resource])
            .collect();
        amounts.sort_unstable_by_key(|amount| Reverse(*amount));
        let mut sum = 0_u64;
        let enough = amounts.iter().position(|amount| {
            sum = sum.saturating_add(*amount);
            sum >= need
        });
        enough.map(|last| last + 1)
    }

    /// Whether a candidate could leave, if it were the only one.
    fn may_leave(&self, entitled: &Entitled, at: usize, need: &Need, missing: ResourceSet) -> bool {
        let candidate = self.candidates.get(at);
        if !self.over[candidate.namespace].meets(candidate.needs.and(missing)) {
            return false;
        }
        let claimer = &self.cluster.pods[entitled.pod];
        let minimum_run_time = if self.is_urgent(entitled) {
            0
        } else {
            self.cluster.options.minimum_run_time
        };
        candidate.namespace != claimer.namespace
            && candidate.age >= minimum_run_time
            && self.keeps_rules(&[at], need)
    }

    /// Whether the pod is served at any loss: it is within what is reserved, or of an unlimited namespace.
    pub(super) fn is_urgent(&self, entitled: &Entitled) -> bool {
        let namespace = self.cluster.pods[entitled.pod].namespace;
        entitled.within_reserved || self.cluster.consumers[namespace].unlimited
    }

    /// Whether the set of candidates, as a whole, keeps budgets, reservations and the rule that only namespaces with too much give back.
    fn keeps_rules(&self, set: &[usize], need: &[(usize, u64)]) -> bool {
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
        self.used.row(namespace)[resource].saturating_sub(leaving.sum())
    }

    /// Whether the set makes enough room.
    fn covers(&self, set: &[usize], need: &[(usize, u64)]) -> bool {
        need.iter().all(|(resource, need)| {
            let freed = set
                .iter()
                .map(|at| self.candidates.requests(*at)[*resource]);
            freed.fold(0, u64::saturating_add) >= *need
        })
    }

    /// Tries every set of so many candidates, from the given kind on, of which so many are taken. What breaks a rule, or costs too much, does so with more victims, too.
    fn try_sets<'a>(
        &'a self,
        site: &Site,
        count: usize,
        (from, taken): (usize, usize),
        set: &mut Vec<usize>,
        found: &mut Found<'a>,
    ) {
        let is_last = set.len() + 1 == count;
        for (kind, alike) in site.kinds.iter().enumerate().skip(from) {
            let taken = if kind == from { taken } else { 0 };
            let Some(next) = alike.get(taken) else {
                continue;
            };
            let Some(left) = found.sets_left.checked_sub(1) else {
                return;
            };
            found.sets_left = left;
            set.push(*next);
            if is_last {
                if self.covers(set, &site.need) && self.keeps_rules(set, &site.need) {
                    self.weigh(site.node, &self.alike(site, set), found);
                }
            } else if self.keeps_rules(set, &site.need) && found.affords(self.loss(set)) {
                self.try_sets(site, count, (kind, taken + 1), set, found);
            }
            set.pop();
        }
    }

    /// The best set of pods that are alike those of a set, which has the youngest ones: none is older than its oldest, and of those the lesser UIDs.
    fn alike(&self, site: &Site, set: &[usize]) -> Vec<usize> {
        let ages = set.iter().map(|at| self.candidates.get(*at).age);
        let oldest = ages.max().unwrap_or(0);
        let mut best = Vec::with_capacity(set.len());
        for alike in &site.kinds {
            let count = alike.iter().take_while(|at| set.contains(at)).count();
            if count == 0 {
                continue;
            }
            let young = alike
                .iter()
                .copied()
                .take_while(|at| self.candidates.get(*at).age <= oldest);
            let mut young: Vec<usize> = young.collect();
            young.sort_unstable_by_key(|at| self.age_and_uid(*at).1);
            best.extend(&young[..count]);
        }
        best
    }

    /// Keeps the set as the best one, if it may leave, is enough, and is better.
    fn keep_better<'a>(&'a self, node: usize, need: &Need, set: &[usize], found: &mut Found<'a>) {
        if self.covers(set, need) && self.keeps_rules(set, need) {
            self.weigh(node, set, found);
        }
    }

    /// Keeps a set that may leave and is enough, if it is better.
    fn weigh<'a>(&'a self, node: usize, set: &[usize], found: &mut Found<'a>) {
        let loss = self.loss(set);
        if !found.affords(loss) {
            return;
        }
        if matches!(found.price, Price::Below { gain, .. } if loss >= gain) {
            found.is_close = true;
            return;
        }
        let victims = set.iter().map(|at| self.candidates.get(*at));
        let highest = victims.clone().map(|victim| victim.priority).max();
        let highest = highest.unwrap_or(0);
        let best = found.best.as_ref();
        if best
            .is_some_and(|(count, best, _)| (*count, best.0, best.1) < (set.len(), highest, loss))
        {
            return;
        }
        let mut pods: Vec<usize> = victims.clone().map(|victim| victim.pod).collect();
        let mut uids: Vec<&str> = pods.iter().map(|pod| self.uid(*pod)).collect();
        uids.sort_unstable();
        let rank = (
            highest,
            loss,
            Reverse(self.least_excess(set)),
            victims.map(|victim| victim.age).max().unwrap_or(0),
            node,
            uids,
        );
        if best.is_none_or(|(count, least, _)| (set.len(), &rank) < (*count, least)) {
            pods.sort_unstable_by(|a, b| self.eviction_order(*a).cmp(&self.eviction_order(*b)));
            found.best = Some((set.len(), rank, Victims { node, pods }));
        }
    }

    fn uid(&self, pod: usize) -> &str {
        &self.cluster.pods[pod].uid
    }

    /// Lower priority goes first, then the younger pod, then the lesser UID.
    fn eviction_order(&self, pod: usize) -> (i64, u64, &str) {
        let pod = &self.cluster.pods[pod];
        (pod.priority, pod.age, &pod.uid)
    }

    /// What the pod's namespace gains by it: that is what victims may cost.
    fn price(&self, entitled: &Entitled) -> Price {
        if self.is_urgent(entitled) {
            return Price::Any;
        }
        let pod = &self.cluster.pods[entitled.pod];
        let with_it = |resource: usize| entitled.before[resource] + pod.requests[resource];
        let before = |resource: usize| entitled.before[resource];
        let requests = pod.requests.iter().zip(&self.census.capacity);
        let rounded_up = |(request, capacity): (&u64, &Option<u64>)| {
            part_of(i128::from(*request), *capacity, 40) + 1
        };
        Price::Below {
            gain: self.served(pod.namespace, with_it, before),
            most: requests.map(rounded_up).sum(),
        }
    }

    /// How much more of the cluster a namespace has of what it deserves, if it uses so much instead of so much: the difference of the sums of its shares, in 2⁻⁴⁰.
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
    fn loss(&self, set: &[usize]) -> i128 {
        let loss = |namespace: usize| {
            let used = self.used.row(namespace);
            let rest = |resource: usize| self.rest(set, namespace, resource);
            self.served(namespace, |resource| used[resource], rest)
        };
        self.namespaces(set).map(loss).sum()
    }

    /// By how much of the cluster a namespace uses more than it deserves, in the resource where that is most, in 2⁻⁴⁸.
    fn excess(&self, namespace: usize) -> i128 {
        let deserved = self.deserved.row(namespace);
        let rows = self.used.row(namespace).iter().zip(deserved);
        let excess = rows.zip(&self.census.capacity);
        let excess = excess.map(|((used, deserved), capacity)| {
            part_of(i128::from(*used) - i128::from(*deserved), *capacity, 48)
        });
        excess.max().unwrap_or(0)
    }

    /// The least excess of the namespaces of a set.
    fn least_excess(&self, set: &[usize]) -> i128 {
        let namespaces = self.namespaces(set);
        let excess = namespaces.map(|namespace| self.excess(namespace));
        excess.min().unwrap_or(0)
    }

    /// What single pods can be at best: on each node the least priority, and the greatest excess of their namespaces. As the plan goes on pods go and excess falls, so the bounds stay true.
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

    /// More victims than are tried exactly: on each node candidates in the order of eviction, then by how much room they make, until there is enough; then those that can be left
    /// out stay.
    fn try_many<'a>(&'a self, sites: &[Site], found: &mut Found<'a>) {
        for site in sites {
            let mut in_order = site.candidates.clone();
            let pod = |at: &usize| self.candidates.get(*at).pod;
            in_order.sort_unstable_by(|a, b| {
                self.eviction_order(pod(a))
                    .cmp(&self.eviction_order(pod(b)))
            });
            let mut by_room = in_order.clone();
            by_room.sort_by_cached_key(|victim| Reverse(self.room_made(*victim, &site.need)));
            for order in [in_order, by_room] {
                if let Some(set) = self.enough_of(&order, &site.need) {
                    self.keep_better(site.node, &site.need, &set, found);
                }
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

    /// A set that makes enough room, from which no pod can be left out: taken in order, then the last ones first are tried to be left out.
    fn enough_of(&self, order: &[usize], need: &[(usize, u64)]) -> Option<Vec<usize>> {
        let mut set = Vec::new();
        for victim in order {
            set.push(*victim);
            if !self.keeps_rules(&set, need) {
                set.pop();
            } else if self.covers(&set, need) {
                break;
            }
        }
        if !self.covers(&set, need) {
            return None;
        }
        for at in (0..set.len()).rev() {
            let victim = set.remove(at);
            if !self.covers(&set, need) {
                set.insert(at, victim);
            }
        }
        Some(set)
    }
}
