//! What nodes under pressure are told: which namespaces use too much.

use std::collections::BTreeMap;

use plimsoll_core::arbitration::census::Census;
use plimsoll_core::arbitration::cluster::Cluster;
use plimsoll_core::arbitration::entitled::overused;
use plimsoll_core::arbitration::groups::Deserved;

use super::OfNamespaces;
use crate::arbitrate::store::Store;
use crate::clock::Now;

/// For nodes that report pressure: namespaces that use too much and have pods there, with the excess in 1/1000 of the
/// capacity.
pub(super) fn overused_on(
    store: &Store,
    cluster: &Cluster,
    census: &Census,
    deserved: &Deserved,
    consumers: &OfNamespaces<'_>,
    now: Now,
) -> BTreeMap<String, BTreeMap<String, u64>> {
    let pressed = store
        .nodes
        .iter()
        .filter(|(_, node)| node.has_pressure(now));
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
