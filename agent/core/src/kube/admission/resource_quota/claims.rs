//! What claims for devices count, and the extended resources that device classes stand for.
//!
//! Source: `pkg/quota/v1/evaluator/core/resource_claims.go` and
//! `k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache` of 1.36.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::evaluator::{Cluster, one, pod_usage};
use super::usage::Usage;
use crate::kube::admission::names::REQUESTS_PREFIX;
use crate::kube::admission::object::{DeviceClass, DeviceCount, ResourceClaim};
use crate::kube::quantity::{Format, Quantity};
use crate::kube::resources::ResourceList;

/// The count of claims.
pub(super) const COUNT: &str = "count/resourceclaims.resource.k8s.io";
/// What follows a class's name in the name of its devices.
pub(super) const DEVICES_SUFFIX: &str = ".deviceclass.resource.k8s.io/devices";
/// What precedes a class's name where its devices are requested like an extended resource.
pub(super) const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";
/// The same in a quota.
pub(super) const REQUESTS_CLASS_PREFIX: &str = "requests.deviceclass.resource.kubernetes.io/";
/// Marks the claim that stands for a pod's extended resources.
const EXTENDED_CLAIM_ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// How many devices a claim for all of them counts: the most that can be allocated.
const DEVICES_MAX: i64 = 32;

/// Which extended resources device classes stand for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceClasses {
    by_resource: BTreeMap<String, String>,
    by_class: BTreeMap<String, String>,
}

impl DeviceClasses {
    /// The mapping of these classes. Of several with one extended resource the newest counts, then the first by name.
    pub fn new(classes: &[DeviceClass]) -> Self {
        let mut all = Self::default();
        let mut ranked: Vec<&DeviceClass> = classes.iter().collect();
        ranked.sort_by_key(|class| {
            (
                Reverse(class.metadata.creation_timestamp),
                &class.metadata.name,
            )
        });
        for class in ranked {
            let name = &class.metadata.name;
            if let Some(resource) = &class.spec.extended_resource_name {
                all.by_class.insert(name.clone(), resource.clone());
                if all.by_resource.contains_key(resource) {
                    continue;
                }
                all.by_resource.insert(resource.clone(), name.clone());
            }
            all.by_resource
                .insert(format!("{CLASS_PREFIX}{name}"), name.clone());
        }
        all
    }

    /// Whether a quota's name is about devices.
    pub(super) fn counts(&self, name: &str) -> bool {
        let class = name.strip_prefix(REQUESTS_CLASS_PREFIX);
        let resource = name.strip_prefix(REQUESTS_PREFIX);
        name == COUNT
            || name.ends_with(DEVICES_SUFFIX)
            || class.is_some_and(|class| self.resource_of(class).is_some())
            || (super::evaluator::is_extended_request(name)
                && resource.is_some_and(|resource| self.by_resource.contains_key(resource)))
    }

    fn resource_of(&self, class: &str) -> Option<&str> {
        let resource = self.by_class.get(class).map(String::as_str);
        resource.filter(|resource| !resource.is_empty())
    }
}

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
