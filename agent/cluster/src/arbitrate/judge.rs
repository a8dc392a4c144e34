//! From what is known to what should be: the shares of all Consumers, and which pods make room for which. Pure, and without memory of its own: what only time can
//! tell comes in as [`Memory`].
//!
//! Only a namespace with a Consumer is arbitrated. Pods of the others count, as they use the cluster, but none of them is evicted and none is evicted for them.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::arbitration::amounts::{Amounts, Bounds, TooManyResources};
use plimsoll_core::arbitration::census::Census;
use plimsoll_core::arbitration::cluster::{Cluster, Options};
use plimsoll_core::arbitration::entitled::{Entitled, entitled, overused};
use plimsoll_core::arbitration::groups::{Deserved, deserve};
use plimsoll_core::arbitration::named::{
    Condition, Named, NamedConsumer, NamedNode, NamedPod, Objects,
};
use plimsoll_core::arbitration::plan::{Action, plan};

use super::placement::Placement;
use super::seen::{ConsumerSpec, SeenPod, selecting};
use super::store::Store;

/// Evictions that can be noticed at once; of the plan the rest is *limited*.
pub const NOTICES_MAX: usize = 100;
/// Node numbers that the pending pods' choices may come to. A pod beyond has no room made for it in this cycle.
const CHOICES_MAX: usize = 4_000_000;

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
    /// Pending pods for which no room is made for now.
    pub unserved: BTreeSet<String>,
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
    /// What is wrong with it: a word and a text.
    pub wrong: Vec<(&'static str, String)>,
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

/// Judges. `mono_ms` and `unix_ms` are of the clock that never jumps.
///
/// # Errors
/// More resources than can be computed with.
pub fn judge(
    store: &Store,
    memory: &mut Memory,
    times: Times,
    mono_ms: u64,
    unix_ms: u64,
) -> Result<Judgement, TooManyResources> {
    note_running(store, memory, mono_ms, unix_ms);
    let consumers = consumers(store);
    let objects = objects(store, memory, &consumers, times, mono_ms);
    let resolved = objects.resolve()?;
    let mut cluster = resolved.cluster;
    let pods: Vec<(&String, &SeenPod)> = store.pods.iter().collect();
    let too_many = choose_nodes(store, &pods, &mut cluster);
    let census = Census::of(&cluster);
    let deserved = deserve(&cluster.consumers, &census.asks, &census.capacity);
    let all = entitled(&cluster, &census, &deserved);
    let is_served = |entitled: &&Entitled| {
        let (uid, pod) = pods[entitled.pod];
        consumers.contains_key(&pod.namespace)
            && pod.placement.unknown.is_none()
            && !too_many.contains(&entitled.pod)
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
    for step in &steps {
        let (uid, pod) = pods[step.pod];
        let word = match &step.action {
            Action::Fits { .. } => "fits",
            Action::Leaving { .. } => "leaving",
            Action::Grace => "grace",
            Action::Preempt { .. } => "preempt",
            Action::Blocked => "blocked",
            Action::Limited => "limited",
        };
        *judgement.actions.entry(word).or_default() += 1;
        let namespace = cluster.pods[step.pod].namespace;
        let name = &cluster.names[namespace];
        let row = judgement.rows.binary_search_by(|row| row.name.cmp(name));
        if let Ok(row) = row.map(|row| &mut judgement.rows[row]) {
            row.waiting += u64::from(word != "fits");
            row.blocked += u64::from(word == "blocked");
        }
        if let Action::Preempt { node, evict } = &step.action {
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
    blame(&mut judgement, resolved.conditions);
    judgement.overused_on = overused_on(store, &cluster, &census, &deserved, &consumers);
    Ok(judgement)
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

/// As the core takes objects.
fn objects(
    store: &Store,
    memory: &Memory,
    consumers: &BTreeMap<String, (&String, &ConsumerSpec)>,
    times: Times,
    mono_ms: u64,
) -> Objects {
    let nodes = store.nodes.iter().map(|(name, node)| NamedNode {
        name: name.clone(),
        allocatable: node.allocatable.clone(),
        withheld: node.withheld.clone(),
        state: node.state(),
    });
    let pods = store.pods.iter().map(|(uid, pod)| {
        let spec = consumers.get(&pod.namespace).map(|(_, spec)| *spec);
        named_pod(store, memory, (uid, pod), spec, times, mono_ms)
    });
    let consumers = store.consumers.iter().filter_map(|(name, consumer)| {
        let spec = consumer.spec.as_ref().ok()?;
        Some(NamedConsumer {
            name: name.clone(),
            namespace: spec.namespace.clone(),
            parent: spec.parent.clone(),
            weight: spec.weight,
            hard: hard(store, spec).0,
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
            minimum_run_time: times.minimum_run_time_ms / 1000,
            max_evictions_per_cycle: NOTICES_MAX,
        },
    }
}

fn named_pod(
    store: &Store,
    memory: &Memory,
    (uid, pod): (&String, &SeenPod),
    spec: Option<&ConsumerSpec>,
    times: Times,
    mono_ms: u64,
) -> NamedPod {
    let since = |since: Option<u64>| mono_ms.saturating_sub(since.unwrap_or(mono_ms)) / 1000;
    let age = memory
        .running_since
        .get(uid)
        .map_or(0, |(since, age)| mono_ms.saturating_sub(*since) + age);
    let least = spec.and_then(|spec| spec.minimum_run_time_ms);
    let usual = times.minimum_run_time_ms;
    let age = match least {
        // The core knows one time for all: who may go by its own Consumer is as old as that at least, and who may not is younger.
        Some(least) if age >= least => age.max(usual),
        Some(_) => age.min(usual.saturating_sub(1000)),
        None => age,
    };
    let in_namespace = (pod.namespace.clone(), String::new());
    let budgets = store
        .budgets
        .from(in_namespace)
        .take_while(|((namespace, _), _)| *namespace == pod.namespace);
    let terminating = store.namespaces.get(&pod.namespace);
    let terminating = terminating.is_some_and(|namespace| namespace.is_terminating);
    NamedPod {
        uid: uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        node: pod.node.clone(),
        requests: pod.requests.clone(),
        priority: pod.priority,
        age: age / 1000,
        waiting: since(memory.entitled_since.get(uid).copied()),
        leaving: pod.is_leaving
            || memory.evicted.contains(uid)
            || (terminating && pod.node.is_some()),
        // What is never evicted: pods of namespaces that are not arbitrated, and those that the Eviction API refused.
        daemon: pod.is_daemon || spec.is_none() || memory.left_alone.contains(uid),
        nodes: None,
        budgets: selecting(budgets, &pod.labels),
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
        for (resource, amount) in &quota.hard {
            if spec.hard.get(resource).is_some_and(|hard| hard > amount) {
                lowered.insert(resource.clone());
            }
            let least = hard.entry(resource.clone()).or_insert(*amount);
            *least = (*least).min(*amount);
        }
    }
    (hard, lowered.into_iter().collect())
}

/// Writes into pending pods which nodes they may use; the places of those for which that would be too much to hold.
fn choose_nodes(
    store: &Store,
    pods: &[(&String, &SeenPod)],
    cluster: &mut Cluster,
) -> BTreeSet<usize> {
    let mut known: BTreeMap<&Placement, Option<Vec<usize>>> = BTreeMap::new();
    let mut left = CHOICES_MAX;
    let mut too_many = BTreeSet::new();
    for (at, (_, pod)) in pods.iter().enumerate() {
        if pod.node.is_some() {
            continue;
        }
        let choice = known
            .entry(&pod.placement)
            .or_insert_with(|| choice(store, &pod.placement, cluster));
        let Some(nodes) = choice else { continue };
        if nodes.len() > left {
            too_many.insert(at);
            continue;
        }
        left -= nodes.len();
        cluster.pods[at].nodes = Some(nodes.clone());
    }
    too_many
}

/// Nothing: all nodes.
fn choice(store: &Store, placement: &Placement, cluster: &Cluster) -> Option<Vec<usize>> {
    let is_allowed = |name: &str| {
        let node = store.nodes.get(name);
        node.is_some_and(|node| placement.allows(name, node))
    };
    let nodes = cluster.nodes.iter().enumerate();
    let nodes: Vec<usize> = nodes
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
