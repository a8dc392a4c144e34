//! Who may run, and who has too much (`docs/reference/arbitrator.md`, "Who gives back").

use std::cmp::Reverse;

use super::amounts::{Amounts, ResourceSet};
use super::census::Census;
use super::cluster::Cluster;
use super::groups::{Ask, Consumer, Deserved};

/// Namespaces that use more than they deserve of a resource, by their places, and of which resources. Groups are not
/// judged, and unlimited namespaces never use too much.
#[must_use]
pub fn overused(
    consumers: &[Consumer],
    asks: &[Ask],
    deserved: &Deserved,
) -> Vec<(usize, ResourceSet)> {
    let mut all = Vec::new();
    for (at, consumer) in consumers.iter().enumerate() {
        let over = ResourceSet::greater(&asks[at].used, &deserved.amounts[at]);
        if !over.is_empty() && !consumer.unlimited {
            all.push((at, over));
        }
    }
    all
}

/// A pending pod that its namespace may run within what it deserves. Only such a pod ever causes an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entitled {
    /// Its place.
    pub pod: usize,
    /// With it, its namespace is within what is reserved, in every resource that it requests.
    pub within_reserved: bool,
}

/// All entitled pods, in the order in which they are served: those of unlimited namespaces, then those whose namespace
/// has the least share by its weight, then by namespace.
#[must_use]
pub fn entitled(cluster: &Cluster, census: &Census, deserved: &Deserved) -> Vec<Entitled> {
    let mut all = Vec::new();
    for (namespace, pods) in census.pending.iter().enumerate() {
        if pods.is_empty() {
            continue;
        }
        let mut used = census.asks[namespace].used.clone();
        let consumer = &cluster.consumers[namespace];
        for pod in pods {
            let requests = &cluster.pods[*pod].requests;
            let within = |bounds: &Amounts| {
                let amounts = used.iter().zip(requests).zip(bounds);
                amounts.into_iter().all(|((used, request), bound)| {
                    *request == 0 || used.saturating_add(*request) <= *bound
                })
            };
            if !within(&deserved.amounts[namespace]) {
                continue;
            }
            let share = share(&used, &census.capacity, consumer.weight);
            let entitled = Entitled {
                pod: *pod,
                within_reserved: within(&consumer.reserved),
            };
            all.push(((Reverse(consumer.unlimited), share, namespace), entitled));
            for (used, request) in used.iter_mut().zip(requests) {
                *used += request;
            }
        }
    }
    // Stable: within a namespace the order stays.
    all.sort_by_key(|(order, _)| *order);
    all.into_iter().map(|(_, entitled)| entitled).collect()
}

/// The greatest share that these amounts are of the cluster, by weight, in 2⁻⁴⁸.
fn share(amounts: &[u64], capacity: &[Option<u64>], weight: u64) -> u128 {
    let parts = amounts.iter().zip(capacity);
    let parts = parts.filter_map(|(amount, capacity)| {
        Some((*amount, capacity.filter(|capacity| *capacity > 0)?))
    });
    let greatest = parts.reduce(|greatest, part| {
        let is_greater = u128::from(part.0) * u128::from(greatest.1)
            > u128::from(greatest.0) * u128::from(part.1);
        if is_greater { part } else { greatest }
    });
    let (amount, capacity) = greatest.unwrap_or((0, 1));
    (u128::from(amount) << 48)
        .checked_div(u128::from(capacity) * u128::from(weight))
        .unwrap_or(0)
}
