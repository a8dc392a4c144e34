//! From what is known to what should be: the shares of all Consumers, and which pods make room for which. Pure, and without memory of its own: what only time can
//! tell comes in as [`Memory`].
//!
//! Only a namespace with a Consumer is arbitrated. Pods of the others count, as they use the cluster, but none of them is evicted and none is evicted for them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use plimsoll_core::arbitration::amounts::{Amounts, Bounds, TooManyResources};
use plimsoll_core::arbitration::census::Census;
use plimsoll_core::arbitration::cluster::{Cluster, NodeState, Options};
use plimsoll_core::arbitration::entitled::{Entitled, entitled, overused};
use plimsoll_core::arbitration::groups::{Deserved, deserve};
use plimsoll_core::arbitration::leaving::{GRACE_MAX_S, Leaving};
use plimsoll_core::arbitration::named::{
    Condition, Named, NamedConsumer, NamedNode, NamedPod, Objects,
};
use plimsoll_core::arbitration::plan::{Action, Step, plan};
use plimsoll_core::arbitration::requests::is_of_limits;

use super::odd::Odd;
use super::placement::{Placement, TOO_LARGE};
use super::seen::budget::selecting;
use super::seen::consumer::ConsumerSpec;
use super::seen::pod::{SeenPod, TOO_MANY_RESOURCES};
use super::store::Store;
use crate::clock::Now;
use crate::report::pressure::valid_ms;

/// Evictions that can be noticed at once; of the plan the rest is *limited*.
pub const NOTICES_MAX: usize = 100;
/// Notices of one namespace whose Consumer gives a long grace. They do not count against the others.
const LONG_NOTICES_MAX: usize = 20;
/// All of them together.
const ALL_LONG_NOTICES_MAX: usize = 900;
/// A grace beyond this, and beyond the usual one, is long, milliseconds.
const LONG_GRACE_MS: u64 = 60_000;
/// Node numbers that the pending pods' choices may come to. A pod beyond has no room made for it in this cycle.
const CHOICES_MAX: usize = 4_000_000;
/// Comparisons of rules with nodes in a cycle, about: half a second of them.
const WORK_MAX: usize = 50_000_000;
/// Budgets of a namespace. Where there are more no pod of it is compared with them, and none is evicted.
const BUDGETS_MAX: usize = 100;
/// A pod for which room was begun counts as one that has waited for longer than any other.
const BEGUN_S: u64 = 1 << 32;
/// Why no room is made for pods of these.
const MISSED: &str = "room that they did not take twice";
const NO_SUCH_RESOURCE: &str = "a resource that no node has";
const TOO_MUCH_WORK: &str = "rules for their nodes of which there are too many";

/// Times that hold where a Consumer names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// How long before its eviction a pod has notice, milliseconds.
    pub grace_period_ms: u64,
    /// How long a pod runs before it can be evicted, milliseconds.
    pub minimum_run_time_ms: u64,
}

/// What only time can tell.
#[derive(Debug, Default)]
pub struct Memory {
    /// Since when a pending pod is entitled: milliseconds of the clock that never jumps.
    pub entitled_since: BTreeMap<String, u64>,
    /// Since when a pod is known to run, and how old it was then, milliseconds.
    pub running_since: BTreeMap<String, (u64, u64)>,
    /// Pods that are evicted, as far as is known, and not yet seen to leave.
    pub evicted: BTreeSet<String>,
    /// Pods that are left alone for now: the Eviction API refused.
    pub left_alone: BTreeSet<String>,
    /// Pods that have notice.
    pub noticed: BTreeSet<String>,
    /// Pending pods for which no room is made for now.
    pub unserved: BTreeSet<String>,
    /// The time that a leaving pod was given, seconds, and since when.
    pub leaving_since: BTreeMap<String, (u64, u64)>,
    /// Pending pods for which room is being made, or was.
    pub begun: BTreeSet<String>,
    /// There was a cycle before: a pod that is seen for the first time has just started.
    pub is_warm: bool,
}

/// Pods that make room for another one on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaim {
    /// For which pod: its UID.
    pub pod: String,
    /// Where.
    pub node: String,
    /// UIDs, in the order in which they go.
    pub victims: Vec<String>,
    /// The pod is of an unlimited Consumer: it waits for no notice.
    pub is_urgent: bool,
}

/// What is found for a Consumer that exists as an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its namespace, unless it is a group.
    pub namespace: Option<String>,
    /// What it may have.
    pub deserved: Named,
    /// What its pods use.
    pub used: Named,
    /// What it never passes, quotas counted.
    pub hard: Named,
    /// What it has for sure.
    pub reserved: Named,
    /// Resources of which it uses more than it deserves, with the excess.
    pub over: Named,
    /// By how much the floors of its members pass what it has.
    pub short: Named,
    /// The resource of which it uses the greatest share, with capacity.
    pub dominant: Option<(String, u64, u64)>,
    /// Pods beyond `hard`.
    pub passed_over: u64,
    /// Entitled pods that wait for others to leave, and those for which none may.
    pub waiting: u64,
    /// Of those.
    pub blocked: u64,
    /// Pending pods that are refused, by what they have.
    pub not_served: BTreeMap<&'static str, u64>,
    /// What is wrong with it: a word and a text.
    pub wrong: Vec<(&'static str, String)>,
    /// What is odd about pods of it, and of how many.
    pub odd_pods: BTreeMap<Odd, u64>,
}

/// What a cycle comes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judgement {
    /// What there is.
    pub capacity: Named,
    /// By name.
    pub rows: Vec<Row>,
    /// In the order in which pods are served.
    pub reclaims: Vec<Reclaim>,
    /// UIDs of all entitled pods.
    pub entitled: Vec<String>,
    /// Entitled pods by what the plan says: fit, leaving, preempt, blocked, limited, not served.
    pub actions: BTreeMap<&'static str, u64>,
    /// What is wrong with other objects, by reason.
    pub wrong_objects: BTreeMap<&'static str, u64>,
    /// Namespaces by node that reports pressure: what is overused there, in 1/1000 of the capacity.
    pub overused_on: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Judges. `unix_ms` is of the clock that never jumps; what nodes have stamped is compared with the one on the wall.
///
/// # Errors
/// More resources than can be computed with.
pub fn judge(
    store: &Store,
    memory: &mut Memory,
    times: Times,
    now: Now,
    unix_ms: u64,
) -> Result<Judgement, TooManyResources> {
    note_running(store, memory, now.mono_ms, unix_ms);
    note_leaving(store, memory, now.mono_ms);
    let consumers = consumers(store);
    let objects = objects(store, memory, &consumers, times, now);
    let resolved = objects.resolve()?;
    let mut cluster = resolved.cluster;
    let pods: Vec<(&String, &SeenPod)> = store.pods.iter().collect();
    let refused = choose_nodes(store, &pods, &mut cluster, WORK_MAX);
    let census = Census::of(&cluster);
    let deserved = deserve(&cluster.consumers, &census.asks, &census.capacity);
    let all = entitled(&cluster, &census, &deserved);
    let is_served = |entitled: &&Entitled| {
        let (uid, pod) = pods[entitled.pod];
        consumers.contains_key(&pod.namespace)
            && pod.placement.unknown.is_none()
            && !refused.contains_key(&entitled.pod)
            && !memory.unserved.contains(uid)
            && is_living(store, &pod.namespace)
    };
    let served: Vec<Entitled> = all.iter().filter(is_served).cloned().collect();
    let steps = plan(&cluster, &census, &deserved, &served);
    let mut judgement = Judgement {
        capacity: named(&cluster, &bounds(&census.capacity)),
        rows: rows(store, &cluster, &census, &deserved, &consumers),
        entitled: all.iter().map(|it| pods[it.pod].0.clone()).collect(),
        ..Judgement::default()
    };
    let not_served = all.len() - served.len();
    judgement
        .actions
        .insert("not_served", u64::try_from(not_served).unwrap_or(u64::MAX));
    for (at, (_, pod)) in pods.iter().enumerate() {
        if let Some(odd) = Odd::of(pod, census.standings[at]) {
            judgement.note_odd(odd, &cluster, at);
        }
    }
    let left_out = all.iter().filter(|entitled| !is_served(entitled));
    let left_out = left_out.filter(|entitled| is_living(store, &pods[entitled.pod].1.namespace));
    let left_out = left_out.map(|entitled| {
        let unknown = pods[entitled.pod].1.placement.unknown;
        (entitled.pod, unknown.unwrap_or(MISSED))
    });
    let mut why: BTreeMap<usize, &'static str> = left_out.collect();
    why.extend(&refused);
    for (at, why) in why {
        if let Some(row) = judgement.row_of(&cluster, at) {
            *row.not_served.entry(why).or_default() += 1;
        }
    }
    let long = |pod: &SeenPod| {
        let spec = consumers.get(&pod.namespace).map(|(_, spec)| *spec);
        has_long_grace(spec, times)
    };
    note_steps(&mut judgement, &cluster, &pods, &steps, &consumers, |uid| {
        let pod = store.pods.get(uid)?;
        (long(pod) && !memory.noticed.contains(uid)).then_some(pod.namespace.as_str())
    });
    blame(&mut judgement, resolved.conditions);
    judgement.overused_on = overused_on(store, &cluster, &census, &deserved, &consumers);
    Ok(judgement)
}

impl Judgement {
    fn note_odd(&mut self, odd: Odd, cluster: &Cluster, pod: usize) {
        if let Some(row) = self.row_of(cluster, pod) {
            *row.odd_pods.entry(odd).or_default() += 1;
        }
        let known = self.wrong_objects.entry(odd.reason());
        *known.or_default() += u64::from(odd == Odd::NeverFits);
    }

    /// The row of a pod's Consumer.
    fn row_of(&mut self, cluster: &Cluster, pod: usize) -> Option<&mut Row> {
        let name = &cluster.names[cluster.pods[pod].namespace];
        let at = self.rows.binary_search_by(|row| row.name.cmp(name)).ok()?;
        self.rows.get_mut(at)
    }
}

/// Whether notices to its pods take longer than most.
fn has_long_grace(spec: Option<&ConsumerSpec>, times: Times) -> bool {
    let grace_ms = spec.and_then(|spec| spec.grace_period_ms);
    grace_ms.is_some_and(|ms| ms > LONG_GRACE_MS.max(times.grace_period_ms))
}

/// Takes the steps of the plan. `begins_long`: the namespace of a victim with a long grace whose notice would begin now.
fn note_steps<'a>(
    judgement: &mut Judgement,
    cluster: &Cluster,
    pods: &[(&'a String, &'a SeenPod)],
    steps: &[Step],
    consumers: &BTreeMap<String, (&String, &ConsumerSpec)>,
    begins_long: impl Fn(&str) -> Option<&'a str>,
) {
    let mut begun: BTreeMap<&str, usize> = BTreeMap::new();
    for step in steps {
        let (uid, pod) = pods[step.pod];
        let word = match &step.action {
            Action::Fits { .. } => "fits",
            Action::Leaving { .. } => "leaving",
            Action::Grace => "grace",
            Action::Preempt { evict, .. } => {
                let long = evict.iter().filter_map(|at| begins_long(pods[*at].0));
                let long: Vec<&str> = long.collect();
                let is_beyond = long
                    .iter()
                    .any(|it| begun.get(it).copied().unwrap_or(0) >= LONG_NOTICES_MAX);
                long.iter()
                    .for_each(|it| *begun.entry(it).or_default() += 1);
                if is_beyond { "limited" } else { "preempt" }
            }
            Action::Blocked => "blocked",
            Action::Limited => "limited",
        };
        *judgement.actions.entry(word).or_default() += 1;
        if let Some(row) = judgement.row_of(cluster, step.pod) {
            row.waiting += u64::from(word != "fits");
            row.blocked += u64::from(word == "blocked");
        }
        if let Action::Preempt { node, evict } = &step.action
            && word == "preempt"
        {
            judgement.reclaims.push(Reclaim {
                pod: uid.clone(),
                node: cluster.nodes[*node].name.clone(),
                victims: evict.iter().map(|at| pods[*at].0.clone()).collect(),
                is_urgent: consumers
                    .get(&pod.namespace)
                    .is_some_and(|(_, spec)| spec.unlimited),
            });
        }
    }
}

/// Consumers of namespaces, by namespace; of two for the same one the first by name.
fn consumers(store: &Store) -> BTreeMap<String, (&String, &ConsumerSpec)> {
    let mut consumers = BTreeMap::new();
    for (name, consumer) in store.consumers.iter() {
        if let Ok(spec) = &consumer.spec
            && let Some(namespace) = &spec.namespace
        {
            consumers.entry(namespace.clone()).or_insert((name, spec));
        }
    }
    consumers
}

/// A namespace that is there to stay.
fn is_living(store: &Store, namespace: &str) -> bool {
    let namespace = store.namespaces.get(namespace);
    namespace.is_some_and(|namespace| !namespace.is_terminating)
}

/// A pod that was there before this process is as old as its time stamp says; each later one counts from when it was seen, so that no clock but ours matters.
fn note_running(store: &Store, memory: &mut Memory, mono_ms: u64, unix_ms: u64) {
    let is_bound = |uid: &String| {
        let pod = store.pods.get(uid);
        pod.is_some_and(|pod| pod.node.is_some())
    };
    memory.running_since.retain(|uid, _| is_bound(uid));
    for (uid, pod) in store.pods.iter().filter(|(_, pod)| pod.node.is_some()) {
        let started = pod.started_unix_ms.unwrap_or(unix_ms);
        let age = if memory.is_warm {
            0
        } else {
            unix_ms.saturating_sub(started)
        };
        memory
            .running_since
            .entry(uid.clone())
            .or_insert((mono_ms, age));
    }
    memory.is_warm = true;
}

fn note_leaving(store: &Store, memory: &mut Memory, mono_ms: u64) {
    let leaves = |uid: &String| store.pods.get(uid).is_some_and(|pod| pod.is_leaving);
    memory.leaving_since.retain(|uid, _| leaves(uid));
    for (uid, pod) in store.pods.iter().filter(|(_, pod)| pod.is_leaving) {
        let grace_s = pod.leaving_grace_s;
        let since = memory.leaving_since.entry(uid.clone());
        let since = since.or_insert((grace_s, mono_ms));
        // Made shorter by an eviction. Its owner may make it shorter again and again: that gives it no more time.
        if since.0 > GRACE_MAX_S && since.0 != grace_s {
            *since = (grace_s, mono_ms);
        }
    }
}

/// By our own clock, from when the deletion was seen.
fn leaving(memory: &Memory, uid: &str, pod: &SeenPod, mono_ms: u64) -> Leaving {
    if !pod.is_leaving {
        return Leaving::No;
    }
    let since = memory.leaving_since.get(uid).copied();
    let (grace_s, since_ms) = since.unwrap_or((pod.leaving_grace_s, mono_ms));
    Leaving::of(grace_s, mono_ms.saturating_sub(since_ms))
}

/// As the core takes objects.
fn objects(
    store: &Store,
    memory: &Memory,
    consumers: &BTreeMap<String, (&String, &ConsumerSpec)>,
    times: Times,
    now: Now,
) -> Objects {
    let nodes = store.nodes.iter().map(|(name, node)| NamedNode {
        name: name.clone(),
        allocatable: node.allocatable.clone(),
        // Of what the node does not have there is nothing to withhold, and a node's token can make such names up.
        withheld: if valid_ms(node.withheld_at_unix_ms, now.unix_ms) > 0 {
            let mut withheld = node.withheld.clone();
            withheld.retain(|name, _| node.allocatable.contains_key(name));
            withheld
        } else {
            Named::new()
        },
        state: node.state(),
    });
    // What only pods and quotas name bounds no pod that could run, and any tenant can make such names up.
    let known = known_resources(store);
    let keep = |mut amounts: Named| {
        amounts.retain(|name, _| known.contains(name.as_str()));
        amounts
    };
    let mut long: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in memory.noticed.iter().filter_map(|uid| store.pods.get(uid)) {
        let spec = consumers.get(&pod.namespace).map(|(_, spec)| *spec);
        if has_long_grace(spec, times) {
            *long.entry(&pod.namespace).or_default() += 1;
        }
    }
    let pods = store.pods.iter().map(|(uid, pod)| {
        let spec = consumers.get(&pod.namespace).map(|(_, spec)| *spec);
        let mut named = named_pod(store, memory, (uid, pod), spec, times, now.mono_ms);
        named.requests = keep(named.requests);
        let has_enough = long
            .get(pod.namespace.as_str())
            .is_some_and(|notices| *notices >= LONG_NOTICES_MAX);
        named.daemon |= has_enough && !memory.noticed.contains(uid);
        named
    });
    let consumers = store.consumers.iter().filter_map(|(name, consumer)| {
        let spec = consumer.spec.as_ref().ok()?;
        Some(NamedConsumer {
            name: name.clone(),
            namespace: spec.namespace.clone(),
            parent: spec.parent.clone(),
            weight: spec.weight,
            hard: keep(hard(store, spec).0),
            reserved: spec.reserved.clone(),
            unlimited: spec.unlimited,
        })
    });
    Objects {
        nodes: nodes.collect(),
        namespaces: store
            .namespaces
            .iter()
            .map(|(name, _)| name.clone())
            .collect(),
        consumers: consumers.collect(),
        pods: pods.collect(),
        budgets: store
            .budgets
            .iter()
            .map(|(key, budget)| (key.clone(), budget.allowed))
            .collect(),
        options: Options {
            // Notices take its place: the plan is made from the beginning, and what still stands at the end of the notice is done.
            reclaim_grace_period: 0,
            minimum_run_time: minimum_run_time_s(times),
            max_evictions_per_cycle: NOTICES_MAX
                + long.values().sum::<usize>().min(ALL_LONG_NOTICES_MAX),
        },
    }
}

/// As the core counts, in seconds. Never none: a Consumer may ask for more.
fn minimum_run_time_s(times: Times) -> u64 {
    times.minimum_run_time_ms.div_ceil(1000).max(1)
}

/// Resources that some node has.
fn offered(store: &Store) -> BTreeSet<&str> {
    let nodes = store.nodes.iter();
    let names = nodes.flat_map(|(_, node)| node.allocatable.keys());
    names.map(String::as_str).collect()
}

/// Resources that count: those that some node has, or that a Consumer names.
fn known_resources(store: &Store) -> BTreeSet<&str> {
    let specs = store.consumers.iter();
    let specs = specs.filter_map(|(_, consumer)| consumer.spec.as_ref().ok());
    let names = specs.flat_map(|spec| spec.hard.keys().chain(spec.reserved.keys()));
    let mut known = offered(store);
    known.extend(names.map(String::as_str));
    known.insert("pods");
    known
}

fn named_pod(
    store: &Store,
    memory: &Memory,
    (uid, pod): (&String, &SeenPod),
    spec: Option<&ConsumerSpec>,
    times: Times,
    mono_ms: u64,
) -> NamedPod {
    // Of whole seconds, so that the order of two pods is the same in each cycle.
    let since_ms = memory.entitled_since.get(uid).copied().unwrap_or(mono_ms);
    let waiting = (mono_ms / 1000).saturating_sub(since_ms / 1000);
    // Pods that are alike keep the room that was begun for each: else one of them takes it in the plan, and the next pod is evicted for another that has its own already.
    let begun = u64::from(memory.begun.contains(uid)) * BEGUN_S;
    let age = memory
        .running_since
        .get(uid)
        .map_or(0, |(since, age)| mono_ms.saturating_sub(*since) + age);
    let least = spec.and_then(|spec| spec.minimum_run_time_ms);
    let least = least.unwrap_or(times.minimum_run_time_ms);
    let usual = minimum_run_time_s(times);
    let age = match age / 1000 {
        // The core knows one time for all: who may go by its own Consumer is as old as that at least, and who may not is younger.
        seconds if age < least => seconds.min(usual - 1),
        // Of victims that are alike the youngest goes. That is one that has notice: a new pod would begin the grace anew.
        _ if memory.noticed.contains(uid) => usual,
        seconds => seconds.max(usual) + 1,
    };
    let in_namespace = (pod.namespace.clone(), String::new());
    let budgets = store.budgets.from(in_namespace);
    let budgets = budgets.take_while(|((namespace, _), _)| *namespace == pod.namespace);
    let has_many_budgets = budgets.clone().nth(BUDGETS_MAX).is_some();
    let terminating = store.namespaces.get(&pod.namespace);
    let terminating = terminating.is_some_and(|namespace| namespace.is_terminating);
    let leaving = leaving(memory, uid, pod, mono_ms);
    let is_leaving = match leaving {
        Leaving::No => terminating && pod.node.is_some(),
        Leaving::Soon => true,
        // A pending one waits for nothing any more, and from a node that is lost none comes back.
        Leaving::Later | Leaving::Hangs => !pod.node.as_ref().is_some_and(|node| {
            let node = store.nodes.get(node);
            node.is_some_and(|node| node.state() != NodeState::NotReady)
        }),
    };
    NamedPod {
        uid: uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        node: pod.node.clone(),
        requests: pod.requests.clone(),
        priority: pod.priority,
        age,
        waiting: waiting + begun,
        leaving: is_leaving || memory.evicted.contains(uid),
        // What is never evicted: pods of namespaces that are not arbitrated, and those that the Eviction API refused.
        daemon: pod.is_daemon
            // Nothing can be done about it but by its node.
            || leaving == Leaving::Hangs
            || has_many_budgets
            || spec.is_none()
            || memory.left_alone.contains(uid),
        nodes: None,
        // The Eviction API asks no budget of a pod that is being deleted: the deletion has disrupted it.
        budgets: if has_many_budgets || leaving == Leaving::Later {
            BTreeSet::new()
        } else {
            selecting(budgets, &pod.labels)
        },
    }
}

/// `hard` with what the namespace's quotas say, and the resources of which a quota is less than the Consumer's.
fn hard(store: &Store, spec: &ConsumerSpec) -> (Named, Vec<String>) {
    let mut hard = spec.hard.clone();
    let mut lowered = BTreeSet::new();
    let Some(namespace) = &spec.namespace else {
        return (hard, Vec::new());
    };
    let quotas = store.quotas.from((namespace.clone(), String::new()));
    for (_, quota) in quotas.take_while(|((of, _), _)| of == namespace) {
        // Limits count where the Consumer names them.
        let counts = |name: &str| !is_of_limits(name) || spec.hard.contains_key(name);
        for (resource, amount) in quota.hard.iter().filter(|(name, _)| counts(name)) {
            if spec.hard.get(resource).is_some_and(|hard| hard > amount) {
                lowered.insert(resource.clone());
            }
            let least = hard.entry(resource.clone()).or_insert(*amount);
            *least = (*least).min(*amount);
        }
    }
    (hard, lowered.into_iter().collect())
}

/// Writes into pending pods which nodes they may use; returns those for which no room is made, and why. Each namespace in turn, and in it the pods in the order in which they are
/// served, so that none can use up the work of all.
fn choose_nodes(
    store: &Store,
    pods: &[(&String, &SeenPod)],
    cluster: &mut Cluster,
    mut work_left: usize,
) -> BTreeMap<usize, &'static str> {
    let offered = offered(store);
    let mut refused = BTreeMap::new();
    let mut lines: BTreeMap<usize, VecDeque<usize>> = BTreeMap::new();
    for (at, (_, pod)) in pods.iter().enumerate() {
        if pod.node.is_some() {
            continue;
        }
        let mut names = pod.requests.iter();
        let unknown = pod.placement.unknown;
        if let Some(why) = unknown.filter(|why| [TOO_LARGE, TOO_MANY_RESOURCES].contains(why)) {
            refused.insert(at, why);
        } else if names.any(|(name, amount)| {
            *amount > 0 && !is_of_limits(name) && !offered.contains(name.as_str())
        }) {
            refused.insert(at, NO_SUCH_RESOURCE);
        } else {
            let line = lines.entry(cluster.pods[at].namespace).or_default();
            line.push_back(at);
            continue;
        }
        // It can start nowhere, so that it asks for nothing.
        cluster.pods[at].nodes = Some(Arc::default());
    }
    let mut lines: Vec<VecDeque<usize>> = lines.into_values().collect();
    for line in &mut lines {
        let order = |at: &usize| {
            let pod = &cluster.pods[*at];
            (Reverse(pod.priority), Reverse(pod.waiting), *at)
        };
        line.make_contiguous().sort_by_key(order);
    }
    let mut known: BTreeMap<&Placement, Option<Choice>> = BTreeMap::new();
    let mut choices_left = CHOICES_MAX;
    while !lines.is_empty() {
        lines.retain_mut(|line| {
            let Some(at) = line.pop_front() else {
                return false;
            };
            let placement = &pods[at].1.placement;
            let choice = known.entry(placement).or_insert_with(|| {
                work_left = work_left.checked_sub(cluster.nodes.len() * placement.work())?;
                let choice = choice(store, placement, cluster);
                choices_left =
                    choices_left.checked_sub(choice.as_ref().map_or(0, |it| it.len()))?;
                Some(choice)
            });
            match choice {
                Some(choice) => cluster.pods[at].nodes.clone_from(choice),
                None => {
                    refused.insert(at, TOO_MUCH_WORK);
                }
            }
            true
        });
    }
    refused
}

/// Nodes that a pod may use; nothing: all.
type Choice = Option<Arc<[usize]>>;

fn choice(store: &Store, placement: &Placement, cluster: &Cluster) -> Choice {
    let is_allowed = |name: &str| {
        let node = store.nodes.get(name);
        node.is_some_and(|node| placement.allows(name, node))
    };
    let nodes = cluster.nodes.iter().enumerate();
    let nodes: Arc<[usize]> = nodes
        .filter(|(_, node)| is_allowed(&node.name))
        .map(|(at, _)| at)
        .collect();
    (nodes.len() < cluster.nodes.len()).then_some(nodes)
}

fn bounds(bounds: &Bounds) -> Amounts {
    bounds.iter().map(|bound| bound.unwrap_or(0)).collect()
}

/// Amounts above 0, by name.
fn named(cluster: &Cluster, amounts: &[u64]) -> Named {
    let names = cluster.resources.names().zip(amounts);
    names
        .filter(|(_, amount)| **amount > 0)
        .map(|(name, amount)| (name.to_owned(), *amount))
        .collect()
}

fn rows(
    store: &Store,
    cluster: &Cluster,
    census: &Census,
    deserved: &Deserved,
    consumers: &BTreeMap<String, (&String, &ConsumerSpec)>,
) -> Vec<Row> {
    let over: BTreeSet<usize> = overused(&cluster.consumers, &census.asks, deserved)
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    let mut rows = Vec::new();
    for (at, name) in cluster.names.iter().enumerate() {
        let Some(Ok(spec)) = store.consumers.get(name).map(|consumer| &consumer.spec) else {
            continue;
        };
        let (used, may) = (&deserved.used[at], &deserved.amounts[at]);
        let excess: Vec<u64> = used
            .iter()
            .zip(may.iter())
            .map(|(used, may)| used.saturating_sub(*may))
            .collect();
        let (hard, lowered) = hard(store, spec);
        let mut wrong = Vec::new();
        if !lowered.is_empty() {
            let text = format!(
                "a ResourceQuota of the namespace allows less {} than hard; the lesser counts",
                lowered.join(", ")
            );
            wrong.push(("QuotaBelowHard", text));
        }
        if let Some(namespace) = spec
            .namespace
            .as_ref()
            .filter(|it| store.namespaces.get(*it).is_none())
        {
            wrong.push(("NoNamespace", format!("there is no namespace {namespace}")));
        }
        // One whose namespace another Consumer has is left out by the core.
        if spec
            .namespace
            .as_ref()
            .is_some_and(|it| consumers.get(it).is_none_or(|(first, _)| *first != name))
        {
            continue;
        }
        rows.push(Row {
            name: name.clone(),
            namespace: spec.namespace.clone(),
            // All resources that it asks for or that count are shown, also those of which it has nothing.
            deserved: shown(cluster, may, &census.capacity),
            used: shown(cluster, used, &census.capacity),
            hard,
            reserved: spec.reserved.clone(),
            over: if over.contains(&at) {
                named(cluster, &excess)
            } else {
                Named::new()
            },
            short: deserved
                .shortages
                .get(at)
                .and_then(Option::as_ref)
                .map(|short| named(cluster, short))
                .unwrap_or_default(),
            dominant: dominant(cluster, used, &census.capacity),
            passed_over: census.asks[at].passed_over,
            wrong,
            ..Row::default()
        });
    }
    // The cluster's own shortage stands after the last Consumer.
    if let Some(Some(short)) = deserved.shortages.get(cluster.names.len()) {
        let short = named(cluster, short);
        for row in rows
            .iter_mut()
            .filter(|row| !row.reserved.is_empty() && row.short.is_empty())
        {
            row.short = short
                .iter()
                .filter(|(name, _)| row.reserved.contains_key(*name))
                .map(|(name, amount)| (name.clone(), *amount))
                .collect();
        }
    }
    rows
}

/// Amounts of resources that some node has.
fn shown(cluster: &Cluster, amounts: &[u64], capacity: &Bounds) -> Named {
    let names = cluster.resources.names().zip(amounts).zip(capacity);
    names
        .filter(|((_, amount), capacity)| {
            capacity.is_some_and(|capacity| capacity > 0) || **amount > 0
        })
        .map(|((name, amount), _)| (name.to_owned(), *amount))
        .collect()
}

fn dominant(cluster: &Cluster, used: &[u64], capacity: &Bounds) -> Option<(String, u64, u64)> {
    let shares = cluster.resources.names().zip(used).zip(capacity);
    let shares = shares.filter_map(|((name, used), capacity)| {
        Some((name, *used, capacity.filter(|capacity| *capacity > 0)?))
    });
    let greatest = shares.reduce(|greatest, next| {
        let is_greater = u128::from(next.1) * u128::from(greatest.2)
            > u128::from(greatest.1) * u128::from(next.2);
        if is_greater { next } else { greatest }
    });
    greatest.map(|(name, used, capacity)| (name.to_owned(), used, capacity))
}

/// Conditions of Consumers go to their rows, the others are counted.
fn blame(judgement: &mut Judgement, conditions: Vec<Condition>) {
    for condition in conditions {
        let Some(name) = condition.object.strip_prefix("Consumer ") else {
            *judgement.wrong_objects.entry(condition.reason).or_default() += 1;
            continue;
        };
        let wrong = (condition.reason, condition.message);
        match judgement.rows.iter_mut().find(|row| row.name == name) {
            Some(row) => row.wrong.push(wrong),
            None => judgement.rows.push(Row {
                name: name.to_owned(),
                wrong: vec![wrong],
                ..Row::default()
            }),
        }
    }
}

/// For nodes that report pressure: namespaces that use too much and have pods there, with the excess in 1/1000 of the capacity.
fn overused_on(
    store: &Store,
    cluster: &Cluster,
    census: &Census,
    deserved: &Deserved,
    consumers: &BTreeMap<String, (&String, &ConsumerSpec)>,
) -> BTreeMap<String, BTreeMap<String, u64>> {
    let pressed = store.nodes.iter().filter(|(_, node)| node.has_pressure);
    let mut on: BTreeMap<String, BTreeMap<String, u64>> = pressed
        .map(|(name, _)| (name.clone(), BTreeMap::new()))
        .collect();
    if on.is_empty() {
        return on;
    }
    let mut excess: BTreeMap<&str, u64> = BTreeMap::new();
    let names: BTreeMap<&String, &String> = consumers
        .iter()
        .map(|(namespace, (name, _))| (*name, namespace))
        .collect();
    for (at, over) in overused(&cluster.consumers, &census.asks, deserved) {
        let part = |resource: usize| {
            let by = census.asks[at].used[resource].saturating_sub(deserved.amounts[at][resource]);
            let capacity = census.capacity[resource].unwrap_or(0);
            u128::from(by) * 1000 / u128::from(capacity.max(1))
        };
        let greatest = over.iter().map(part).max().unwrap_or(0);
        if let Some(namespace) = names.get(&cluster.names[at]) {
            excess.insert(namespace, u64::try_from(greatest).unwrap_or(u64::MAX));
        }
    }
    for (_, pod) in store.pods.iter() {
        let node = pod.node.as_ref().and_then(|node| on.get_mut(node));
        if let (Some(node), Some(by)) = (node, excess.get(pod.namespace.as_str())) {
            node.insert(pod.namespace.clone(), *by);
        }
    }
    on
}

/// Pods that are refused where a cycle may do so much work.
#[cfg(test)]
pub(super) fn refused_with(store: &Store, work: usize) -> BTreeSet<String> {
    let times = Times {
        grace_period_ms: 0,
        minimum_run_time_ms: 0,
    };
    let now = Now {
        mono_ms: 0,
        unix_ms: 0,
    };
    let objects = objects(store, &Memory::default(), &consumers(store), times, now);
    let mut cluster = objects.resolve().unwrap().cluster;
    let pods: Vec<(&String, &SeenPod)> = store.pods.iter().collect();
    let refused = choose_nodes(store, &pods, &mut cluster, work);
    refused.keys().map(|at| pods[*at].0.clone()).collect()
}
