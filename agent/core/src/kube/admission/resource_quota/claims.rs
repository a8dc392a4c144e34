//! What claims for devices count.
//!
//! Source: `pkg/quota/v1/evaluator/core/resource_claims.go` of 1.36.

use std::collections::BTreeMap;

use super::cluster::{COUNT, Cluster, DEVICES_SUFFIX, REQUESTS_CLASS_PREFIX};
use super::pods::pod_usage;
use super::usage::{Usage, one};
use crate::kube::admission::names::REQUESTS_PREFIX;
use crate::kube::admission::object::{DeviceCount, ResourceClaim};
use crate::kube::quantity::{Format, Quantity};
use crate::kube::resources::ResourceList;

/// Marks the claim that stands for a pod's extended resources.
const EXTENDED_CLAIM_ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// How many devices a claim for all of them counts: the most that can be allocated.
const DEVICES_MAX: i64 = 32;

/// How many devices an alternative asks for, at most.
fn devices(count: &DeviceCount) -> i64 {
    match count.allocation_mode.as_deref() {
        None | Some("" | "ExactCount") => count.count.filter(|count| *count != 0).unwrap_or(1),
        Some("All") => DEVICES_MAX,
        Some(_) => 0,
    }
}

/// What a claim counts.
pub(super) fn usage(claim: &ResourceClaim, cluster: &Cluster) -> ResourceList {
    let mut usage = ResourceList::from([(COUNT.to_owned(), one())]);
    let name_of = |count: &DeviceCount| format!("{}{DEVICES_SUFFIX}", count.device_class_name);
    let quantity = |count| Quantity::from_value(count, Format::DecimalSI);
    let mut add = |name: String, count: i64| *usage.entry(name).or_default() += &quantity(count);
    for request in &claim.spec.devices.requests {
        if !request.first_available.is_empty() {
            // The worst alternative counts, for each class.
            let mut most: BTreeMap<String, i64> = BTreeMap::new();
            for alternative in &request.first_available {
                let count = devices(alternative);
                if count > 0 {
                    let largest = most.entry(name_of(alternative)).or_default();
                    *largest = count.max(*largest);
                }
            }
            most.into_iter().for_each(|(name, count)| add(name, count));
        } else if let Some(exactly) = &request.exactly {
            add(name_of(exactly), devices(exactly));
        }
    }
    add_extended(&mut usage, claim, cluster);
    usage
}

/// Adds the extended resources that devices stand for, beyond what the pod that owns the claim counts already.
fn add_extended(usage: &mut ResourceList, claim: &ResourceClaim, cluster: &Cluster) {
    let of_pod = usage_of_owner(claim, cluster).unwrap_or_default();
    let mut extended = ResourceList::new();
    for (name, quantity) in usage.iter() {
        let Some(class) = name
            .strip_suffix(DEVICES_SUFFIX)
            .filter(|class| !class.is_empty())
        else {
            continue;
        };
        extended.insert(format!("{REQUESTS_CLASS_PREFIX}{class}"), quantity.clone());
        if let Some(resource) = cluster.device_classes.resource_of(class) {
            extended.insert(format!("{REQUESTS_PREFIX}{resource}"), quantity.clone());
        }
    }
    for (name, mut quantity) in extended {
        if let Some(counted) = of_pod.get(&name) {
            quantity -= counted;
        }
        if quantity.sign() > 0 {
            usage.insert(name, quantity);
        }
    }
}

/// What the pod counts that owns an extended resource claim, if both know each other.
fn usage_of_owner(claim: &ResourceClaim, cluster: &Cluster) -> Option<Usage> {
    let meta = &claim.metadata;
    if meta
        .annotations
        .get(EXTENDED_CLAIM_ANNOTATION)
        .map(String::as_str)
        != Some("true")
    {
        return None;
    }
    let owner = meta.controller()?;
    if owner.kind != "Pod" || owner.api_version != "v1" {
        return None;
    }
    let pod = cluster
        .pods
        .iter()
        .find(|pod| pod.meta().namespace == meta.namespace && pod.meta().name == owner.name)?;
    if pod.meta().uid != owner.uid {
        return None;
    }
    if let Some(status) = &pod.more.status.extended_resource_claim_status {
        if status.resource_claim_name != meta.name {
            return None;
        }
    } else {
        // The pod does not name its claim: the first of those that it owns counts.
        let key = |claim: &ResourceClaim| {
            (
                claim.metadata.creation_timestamp,
                claim.metadata.name.clone(),
            )
        };
        let is_owned = |other: &&ResourceClaim| {
            other.metadata.namespace == meta.namespace
                && other
                    .metadata
                    .annotations
                    .get(EXTENDED_CLAIM_ANNOTATION)
                    .map(String::as_str)
                    == Some("true")
                && other.metadata.controller().is_some_and(|other| {
                    other.kind == "Pod" && other.api_version == "v1" && other.uid == owner.uid
                })
        };
        let mut owned = cluster.resource_claims.iter().filter(is_owned);
        if owned.any(|other| key(other) < key(claim)) {
            return None;
        }
    }
    Some(pod_usage(pod, cluster.now))
}
