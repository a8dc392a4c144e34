//! What a pod counts.
//!
//! Source: `pkg/quota/v1/evaluator/core/pods.go` of 1.36.

use std::borrow::Cow;

use super::cluster::CLASS_PREFIX;
use super::usage::{Known, Usage, one};
use crate::kube::admission::names::{self, REQUESTS_PREFIX};
use crate::kube::admission::pod_object::PodObject;
use crate::kube::pod::Phase;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{self, CPU, EPHEMERAL_STORAGE, MEMORY, Scope, is_huge_pages};
use crate::kube::time::Time;

/// What a pod counts. One that has ended, or should be gone, counts only as an object.
pub fn pod_usage(pod: &PodObject, now: Time) -> Usage {
    if has_ended(pod, now) {
        return Usage::new(vec![(Cow::Borrowed("count/pods"), one())]);
    }
    let effective = pod.with_effective_resources();
    let requests = resources::pod_requests(&effective, Scope::ALL);
    let limits = resources::pod_limits(&effective, Scope::ALL);
    let mut known = [const { None }; _];
    let mut others = Vec::new();
    let mut set = |name: Known, amount: Quantity| {
        if let Some(known) = known.get_mut(name as usize) {
            *known = Some(amount);
        }
    };
    set(Known::CountPods, one());
    set(Known::Pods, one());
    for (name, request) in requests {
        let (bare, as_request) = match name.as_str() {
            CPU => (Known::Cpu, Known::RequestsCpu),
            MEMORY => (Known::Memory, Known::RequestsMemory),
            EPHEMERAL_STORAGE => (Known::EphemeralStorage, Known::RequestsEphemeralStorage),
            _ => {
                let as_request = || Cow::Owned(format!("{REQUESTS_PREFIX}{name}"));
                if is_huge_pages(&name) {
                    others.push((as_request(), request.clone()));
                    others.push((Cow::Owned(name), request));
                } else if names::is_extended(&name) || name.starts_with(CLASS_PREFIX) {
                    others.push((as_request(), request));
                }
                continue;
            }
        };
        set(bare, request.clone());
        set(as_request, request);
    }
    for (name, limit) in limits {
        let as_limit = match name.as_str() {
            CPU => Known::LimitsCpu,
            MEMORY => Known::LimitsMemory,
            EPHEMERAL_STORAGE => Known::LimitsEphemeralStorage,
            _ => continue,
        };
        set(as_limit, limit);
    }
    Usage::with_known(known, others)
}

/// Whether a pod has ended, or its time to do so is over (the opposite of `QuotaV1Pod`).
fn has_ended(pod: &PodObject, now: Time) -> bool {
    let meta = pod.meta();
    let overdue = meta
        .deletion_timestamp
        .zip(meta.deletion_grace_period_seconds);
    Phase::of(&pod.more.status.phase).is_terminal()
        || overdue.is_some_and(|(deletion, grace)| now > deletion.after(grace))
}
