//! From what is watched to what the core takes ([`Objects`]): what counts of each pod, and what only time can tell of
//! it.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::arbitration::cluster::{NodeState, Options};
use plimsoll_core::arbitration::deletion::{Deletion, GRACE_MAX_S};
use plimsoll_core::arbitration::named::{
    KUBE_SYSTEM, Named, NamedConsumer, NamedNode, NamedPod, Objects,
};
use plimsoll_core::arbitration::requests::is_of_limits;
use plimsoll_core::protocol::cluster_link::valid_ms;

use super::closed_nodes::{self, closed_nodes};
use super::{
    ALL_LONG_NOTICES_MAX, LONG_NOTICES_MAX, Memory, NOTICES_MAX, OfNamespaces, Times,
    has_long_grace,
};
use crate::arbitrate::seen::budget::asked;
use crate::arbitrate::seen::consumer::ConsumerSpec;
use crate::arbitrate::seen::pod::SeenPod;
use crate::arbitrate::store::Store;
use crate::clock::Now;

/// With so many evicted pods of a namespace that do not end on their node no further pod of it is evicted there. A
/// single pod may be kept from ending by something that is wrong with that pod only.
const HANGING_MAX: usize = 2;
/// A pod for which room was begun counts as one that has waited for longer than any other.
const BEGUN_S: u64 = 1 << 32;

/// A pod that was there before this process is as old as its time stamp says; each later one counts from when it was
/// seen, so that no clock but ours matters.
pub(super) fn note_running(store: &Store, memory: &mut Memory, mono_ms: u64, unix_ms: u64) {
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

pub(super) fn note_leaving(store: &Store, memory: &mut Memory, mono_ms: u64) {
    let terminating = store.namespaces.iter().filter(|(_, it)| it.is_terminating);
    let known = std::mem::take(&mut memory.terminating_since);
    memory.terminating_since = terminating
        .map(|(name, _)| (name.clone(), known.get(name).copied().unwrap_or(mono_ms)))
        .collect();
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

/// By our own clock, from when the deletion was seen: of the pod, or of its namespace, which deletes its pods unless
/// something keeps it from that.
fn leaving(memory: &Memory, uid: &str, pod: &SeenPod, mono_ms: u64) -> Deletion {
    if !pod.is_leaving {
        let since_ms = memory.terminating_since.get(&pod.namespace);
        let since_ms = since_ms.filter(|_| pod.node.is_some());
        return since_ms.map_or(Deletion::No, |since_ms| {
            Deletion::of(GRACE_MAX_S, mono_ms.saturating_sub(*since_ms))
        });
    }
    let since = memory.leaving_since.get(uid).copied();
    let (grace_s, since_ms) = since.unwrap_or((pod.leaving_grace_s, mono_ms));
    Deletion::of(grace_s, mono_ms.saturating_sub(since_ms))
}

/// Nodes, each with a namespace whose evicted pods do not end there.
pub(super) type Hanging<'a> = BTreeSet<(&'a str, &'a str)>;

/// On these nodes nothing shows that another pod of the namespace would end, and nobody would get its room. Each
/// namespace counts for itself: a pod that a tenant keeps from ending keeps no pod of another tenant.
pub(super) fn hanging<'a>(store: &'a Store, memory: &Memory, mono_ms: u64) -> Hanging<'a> {
    let mut hanging: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (uid, pod) in store.pods.iter() {
        // Its notice says that it was evicted, also to the next leader.
        if let Some(node) = &pod.node
            && pod.evict_after.is_some()
            && pod.is_leaving
            && !pod.is_daemon
            && leaving(memory, uid, pod, mono_ms) == Deletion::Hangs
        {
            *hanging.entry((node, &pod.namespace)).or_default() += 1;
        }
    }
    hanging.retain(|_, pods| *pods >= HANGING_MAX);
    hanging.into_keys().collect()
}

/// As the core takes objects.
pub(super) fn objects(
    store: &Store,
    memory: &Memory,
    consumers: &OfNamespaces<'_>,
    hanging: &Hanging<'_>,
    times: Times,
    now: Now,
) -> Objects {
    let closed = closed_nodes(store, consumers, closed_nodes::WORK_MAX);
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
        state: match node.state(now) {
            NodeState::Ready if closed.contains(name.as_str()) => NodeState::Cordoned,
            state => state,
        },
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
        let node = pod.node.as_deref().unwrap_or_default();
        let hangs = hanging.contains(&(node, pod.namespace.as_str()));
        named.daemon |= hangs || has_enough && !memory.noticed.contains(uid);
        named
    });
    let others = without_consumer(store, consumers);
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
        consumers: consumers.chain(others).collect(),
        pods: pods.collect(),
        budgets: store
            .budgets
            .iter()
            .map(|(key, budget)| (key.clone(), budget.allowed))
            .collect(),
        options: Options {
            // Notices take its place: the plan is made from the beginning, and what still stands at the end of the
            // notice is done.
            reclaim_grace_period: 0,
            minimum_run_time: minimum_run_time_s(times),
            max_evictions_per_cycle: NOTICES_MAX
                + long.values().sum::<usize>().min(ALL_LONG_NOTICES_MAX),
            // The hole is kept by a nominated node, which binds no pod of greater priority.
            spares_greater_priority: true,
        },
    }
}

/// A namespace without a Consumer gives nothing back, so what it uses cannot be promised to others: it has that before
/// all of them. The core has a rule of its own for `kube-system`.
fn without_consumer(store: &Store, consumers: &OfNamespaces<'_>) -> Vec<NamedConsumer> {
    let namespaces = store.namespaces.iter().map(|(name, _)| name);
    let of_pods = store.pods.iter().map(|(_, pod)| &pod.namespace);
    let all: BTreeSet<&String> = namespaces.chain(of_pods).collect();
    let others = all
        .into_iter()
        .filter(|name| *name != KUBE_SYSTEM && !consumers.contains_key(*name));
    let others = others.map(|namespace| NamedConsumer {
        // A colon is in no Consumer's name.
        name: format!("namespace:{namespace}"),
        namespace: Some(namespace.clone()),
        unlimited: true,
        ..NamedConsumer::default()
    });
    others.collect()
}

/// As the core counts, in seconds. Never none: a Consumer may ask for more.
fn minimum_run_time_s(times: Times) -> u64 {
    times.minimum_run_time_ms.div_ceil(1000).max(1)
}

/// Resources that some node has.
pub(super) fn offered(store: &Store) -> BTreeSet<&str> {
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
    // Pods that are alike keep the room that was begun for each: else one of them takes it in the plan, and the next
    // pod is evicted for another that has its own already.
    let begun = u64::from(memory.begun.contains(uid)) * BEGUN_S;
    let age = memory
        .running_since
        .get(uid)
        .map_or(0, |(since, age)| mono_ms.saturating_sub(*since) + age);
    let least = spec.and_then(|spec| spec.minimum_run_time_ms);
    let least = least.unwrap_or(times.minimum_run_time_ms);
    let usual = minimum_run_time_s(times);
    let age = match age / 1000 {
        // The core knows one time for all: who may go by its own Consumer is as old as that at least, and who may not
        // is younger.
        seconds if age < least => seconds.min(usual - 1),
        // Of victims that are alike the youngest goes. That is one that has notice: a new pod would begin the grace
        // anew.
        _ if memory.noticed.contains(uid) => usual,
        seconds => seconds.max(usual) + 1,
    };
    let in_namespace = (pod.namespace.clone(), String::new());
    let budgets = store.budgets.from(in_namespace);
    let budgets = budgets.take_while(|((namespace, _), _)| *namespace == pod.namespace);
    // Then no pod is compared with them.
    let has_many_budgets = store.has_many_budgets(&pod.namespace);
    let leaving = leaving(memory, uid, pod, mono_ms);
    let runs = || {
        pod.node.as_ref().is_some_and(|node| {
            let node = store.nodes.get(node);
            node.is_some_and(|node| node.is_ready)
        })
    };
    let is_leaving = match leaving {
        // Of a namespace that is not arbitrated only what runs counts: no room is made for the others.
        Deletion::No => spec.is_none() && pod.namespace != KUBE_SYSTEM && !runs(),
        Deletion::Soon => true,
        // A pending one waits for nothing any more, and from a node that is lost none comes back.
        Deletion::Later | Deletion::Hangs => !runs(),
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
        // What is never evicted: pods of namespaces that are not arbitrated, those whose owners say so, and those that
        // the Eviction API refused.
        daemon: pod.is_daemon
            || pod.stays
            // Nothing can be done about it but by its node.
            || leaving == Deletion::Hangs
            || has_many_budgets
            || spec.is_none()
            || memory.left_alone.contains(uid),
        nodes: None,
        // The Eviction API asks no budget about a pod that is being deleted: the deletion has disrupted it. Nor about
        // one of which nothing runs: it is not there yet. One that waits is no victim.
        budgets: if has_many_budgets
            || leaving == Deletion::Later
            || pod.is_pending
            || pod.node.is_none()
        {
            BTreeSet::new()
        } else {
            asked(budgets, &pod.labels, pod.is_ready)
        },
    }
}

/// `hard` with what the namespace's quotas say, and the resources of which a quota is less than the Consumer's.
pub(super) fn hard(store: &Store, spec: &ConsumerSpec) -> (Named, Vec<String>) {
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
