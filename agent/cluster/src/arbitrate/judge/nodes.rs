//! Which nodes pending pods may use, and pods for which no room is made since that is not known.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use plimsoll_core::arbitration::cluster::Cluster;
use plimsoll_core::arbitration::requests::is_of_limits;

use super::objects::offered;
use crate::arbitrate::seen::placement::{Placement, TOO_LARGE};
use crate::arbitrate::seen::pod::{SeenPod, TOO_MANY_RESOURCES};
use crate::arbitrate::store::Store;

/// Node numbers that the pending pods' choices may come to. A pod beyond has no room made for it in this cycle.
const CHOICES_MAX: usize = 4_000_000;
/// Comparisons of rules with nodes in a cycle, about: half a second of them.
pub(super) const WORK_MAX: usize = 50_000_000;
/// Why no room is made for pods of these.
const NO_SUCH_RESOURCE: &str = "a resource that no node has";
const TOO_MANY_QUOTAS: &str = "more resource quotas in their namespace than are compared";
const TOO_MUCH_WORK: &str = "rules for their nodes of which there are too many";

/// Writes into pending pods which nodes they may use; returns those for which no room is made, and why. Each namespace
/// in turn, and in it the pods in the order in which they are served, so that none can use up the work of all.
pub(super) fn choose_nodes(
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
        } else if store.has_many_quotas(&pod.namespace) {
            refused.insert(at, TOO_MANY_QUOTAS);
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

/// Pods that are refused where a cycle may do so much work.
#[cfg(test)]
pub(in crate::arbitrate) fn refused_with(
    store: &Store,
    work: usize,
) -> std::collections::BTreeSet<String> {
    use super::objects::{Hanging, objects};
    use super::{Memory, Times, consumers};
    use crate::clock::Now;

    let times = Times {
        grace_period_ms: 0,
        minimum_run_time_ms: 0,
    };
    let now = Now {
        mono_ms: 0,
        unix_ms: 0,
    };
    let (memory, consumers) = (Memory::default(), consumers(store));
    let objects = objects(store, &memory, &consumers, &Hanging::new(), times, now);
    let mut cluster = objects.resolve().unwrap().cluster;
    let pods: Vec<(&String, &SeenPod)> = store.pods.iter().collect();
    let refused = choose_nodes(store, &pods, &mut cluster, work);
    refused.keys().map(|at| pods[*at].0.clone()).collect()
}
