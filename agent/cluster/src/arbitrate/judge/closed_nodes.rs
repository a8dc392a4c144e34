//! Nodes on which no pod of a Consumer may start.
//!
//! **Problem.** The nodes of the control plane, of a virtual kubelet or of a pool that is not used now have taints that
//! no tenant's pod tolerates. Counted as what there is, they let each namespace deserve what nobody can have: the
//! cluster is full, and none of them is above its share. **Approach.** A node whose taints no pod of a namespace with a
//! Consumer tolerates, pending or running, counts as a cordoned one: it has what runs there. Pods of DaemonSets do not
//! open a node: they follow the nodes, and those of monitoring tolerate everything. A taint of the node's state, such
//! as that of a full disk, closes none: what there is would come and go with it.

use std::collections::{BTreeMap, BTreeSet};

use super::OfNamespaces;
use crate::arbitrate::seen::node::Taint;
use crate::arbitrate::seen::placement::{OF_NODE_STATE, Toleration};
use crate::arbitrate::store::Store;

/// Comparisons of tolerations with taints in a cycle, about. Tenants write as many tolerations as they like: beyond,
/// all nodes count in full.
pub(super) const WORK_MAX: usize = 10_000_000;

/// Their names, ready or not.
pub(super) fn closed_nodes<'a>(
    store: &'a Store,
    consumers: &OfNamespaces<'_>,
    mut work_left: usize,
) -> BTreeSet<&'a str> {
    // Nodes with the same taints are alike.
    let mut closed: BTreeMap<Vec<&Taint>, Vec<&str>> = BTreeMap::new();
    for (name, node) in store.nodes.iter() {
        let taints = node.taints.iter();
        let taints: Vec<_> = taints
            .filter(|taint| !taint.key.starts_with(OF_NODE_STATE))
            .collect();
        if !taints.is_empty() {
            closed.entry(taints).or_default().push(name);
        }
    }
    if closed.is_empty() {
        return BTreeSet::new();
    }
    let pods = store.pods.iter().map(|(_, pod)| pod);
    let pods = pods.filter(|pod| !pod.is_daemon && !pod.placement.tolerations().is_empty());
    let pods = pods.filter(|pod| consumers.contains_key(&pod.namespace));
    let mut known: BTreeSet<&[Toleration]> = BTreeSet::new();
    for placement in pods.map(|pod| &pod.placement) {
        if !known.insert(placement.tolerations()) {
            continue;
        }
        let work = closed.keys().map(|taints| taints.len()).sum::<usize>() * placement.work();
        let Some(left) = work_left.checked_sub(work) else {
            return BTreeSet::new();
        };
        work_left = left;
        closed.retain(|taints, _| !placement.tolerates(taints.iter().copied()));
    }
    closed.into_values().flatten().collect()
}

/// The same where a cycle may do so much work.
#[cfg(test)]
pub(in crate::arbitrate) fn closed_with(store: &Store, work: usize) -> Vec<&str> {
    let closed = closed_nodes(store, &super::consumers(store), work);
    closed.into_iter().collect()
}
