//! What counts of a pod (`docs/reference/arbitrator.md`, "Words"): its requests, one of `pods`, and its limits under
//! names of their own, `limits.cpu` and the like, as ResourceQuotas have them.
//!
//! Limits count only where a Consumer names them: [`Objects::resolve`](super::named::Objects::resolve) leaves out the
//! others. No node has them, so that they bound nobody but by `hard`.

use super::units::{Named, Rounding, canonical};
use crate::kube::pod::Pod;
use crate::kube::resources::{Scope, pod_limits, pod_requests};

/// What every pod requests one of.
pub const PODS: &str = "pods";
/// The names of limits, and of the resources that they are of.
const LIMITS: [(&str, &str); 3] = [
    ("limits.cpu", "cpu"),
    ("limits.memory", "memory"),
    ("limits.ephemeral-storage", "ephemeral-storage"),
];

/// Whether it is the name of limits.
#[must_use]
pub fn is_of_limits(name: &str) -> bool {
    LIMITS.iter().any(|(limits, _)| *limits == name)
}

/// Whether these are no requests of anything.
#[must_use]
pub fn is_nothing(counted: &Named) -> bool {
    let mut names = counted.keys();
    names.all(|name| name == PODS || is_of_limits(name))
}

/// What counts of a pod, in canonical units.
#[must_use]
pub fn counted(pod: &Pod) -> Named {
    let requests = pod_requests(pod, Scope::ALL).into_iter();
    let mut counted: Named = requests
        .map(|(name, quantity)| {
            let amount = canonical(&name, &quantity, Rounding::Up);
            (name, amount)
        })
        .collect();
    let of_pod = pod_limits(pod, Scope::ALL);
    for (limits, resource) in LIMITS {
        let quantity = of_pod.get(resource);
        let amount = quantity.map_or(0, |quantity| canonical(limits, quantity, Rounding::Up));
        if amount > 0 {
            counted.insert(limits.to_owned(), amount);
        }
    }
    counted.insert(PODS.to_owned(), 1);
    counted
}
