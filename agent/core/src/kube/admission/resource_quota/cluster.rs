//! What an object's usage depends on besides the object: pods, claims for devices, and the extended resources that
//! device classes stand for.
//!
//! Source: `k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache` of 1.36.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::kube::admission::names::{self, REQUESTS_PREFIX};
use crate::kube::admission::object::{DeviceClass, ResourceClaim};
use crate::kube::admission::pod_object::PodObject;
use crate::kube::time::Time;

/// The count of claims.
pub(super) const COUNT: &str = "count/resourceclaims.resource.k8s.io";
/// What follows a class's name in the name of its devices.
pub(super) const DEVICES_SUFFIX: &str = ".deviceclass.resource.k8s.io/devices";
/// What precedes a class's name where its devices are requested like an extended resource.
pub(super) const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";
/// The same in a quota.
pub(super) const REQUESTS_CLASS_PREFIX: &str = "requests.deviceclass.resource.kubernetes.io/";

/// What else is in the cluster.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// The time; pods that should be gone by then do not count.
    pub now: Time,
    /// The device classes.
    pub device_classes: DeviceClasses,
    /// Pods that own claims.
    pub pods: Vec<PodObject>,
    /// All claims for devices.
    pub resource_claims: Vec<ResourceClaim>,
}

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
            || (is_extended_request(name)
                && resource.is_some_and(|resource| self.by_resource.contains_key(resource)))
    }

    /// The extended resource that a class stands for.
    pub(super) fn resource_of(&self, class: &str) -> Option<&str> {
        let resource = self.by_class.get(class).map(String::as_str);
        resource.filter(|resource| !resource.is_empty())
    }
}

/// Whether a name in a quota is that of requests for an extended resource.
pub(super) fn is_extended_request(name: &str) -> bool {
    name.starts_with(REQUESTS_PREFIX)
        && (!names::is_native(name) || name.starts_with(REQUESTS_CLASS_PREFIX))
}
