//! The objects that admission looks at.
//!
//! Fields carry the API's names and meaning; unknown fields are ignored, `null` reads as absent.
//!
//! Source: `k8s.io/api/{core/v1,scheduling/v1,resource/v1}/types.go` and their `defaults.go` of 1.36.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::object_meta::{ObjectMeta, null_as_default};
use super::pod_object::{PodObject, round_to_milli};
use crate::kube::quantity::Quantity;
use crate::kube::resources::ResourceList;

/// A resource of the API: the plural name and its group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupResource {
    /// The group; empty for the core group.
    pub group: String,
    /// The plural name, such as `pods`.
    pub resource: String,
}

impl GroupResource {
    /// Reads `pods` or `deployments.apps`.
    pub fn parse(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
        }
    }

    /// Whether it is the one of that text.
    pub fn is(&self, text: &str) -> bool {
        match text.strip_prefix(self.resource.as_str()) {
            Some("") => self.group.is_empty(),
            Some(rest) => rest.strip_prefix('.') == Some(self.group.as_str()),
            None => false,
        }
    }

    /// The name under which a quota counts such objects.
    pub fn count_name(&self) -> String {
        format!("{}{self}", super::names::COUNT_PREFIX)
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// An object of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// A pod.
    Pod(Box<PodObject>),
    /// A claim for a volume.
    Claim(Box<PersistentVolumeClaim>),
    /// A service.
    Service(Box<Service>),
    /// A claim for devices.
    ResourceClaim(Box<ResourceClaim>),
    /// A priority class.
    PriorityClass(Box<PriorityClass>),
    /// A group of pods.
    PodGroup(Box<PodGroup>),
    /// Anything else; only its metadata matters.
    Other(Box<ObjectMeta>),
}

impl Object {
    /// `metadata`.
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Pod(pod) => &pod.more.metadata,
            Self::Claim(claim) => &claim.metadata,
            Self::Service(service) => &service.metadata,
            Self::ResourceClaim(claim) => &claim.metadata,
            Self::PriorityClass(class) => &class.metadata,
            Self::PodGroup(group) => &group.metadata,
            Self::Other(meta) => meta,
        }
    }

    /// `metadata`, to be changed.
    pub fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Pod(pod) => &mut pod.more.metadata,
            Self::Claim(claim) => &mut claim.metadata,
            Self::Service(service) => &mut service.metadata,
            Self::ResourceClaim(claim) => &mut claim.metadata,
            Self::PriorityClass(class) => &mut class.metadata,
            Self::PodGroup(group) => &mut group.metadata,
            Self::Other(meta) => meta,
        }
    }

    /// Sets what the API sets by itself when it reads the object.
    pub fn set_defaults(&mut self) {
        match self {
            Self::Pod(pod) => pod.set_defaults(),
            Self::Claim(claim) => claim.set_defaults(),
            Self::PriorityClass(class) => class.set_defaults(),
            Self::Service(_) | Self::ResourceClaim(_) | Self::PodGroup(_) | Self::Other(_) => {}
        }
    }
}

/// A LimitRange.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitRange {
    /// Its name and namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// Its items.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: LimitRangeSpec,
}

/// `spec` of a LimitRange.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitRangeSpec {
    /// Bounds and defaults, for a type each.
    #[serde(deserialize_with = "null_as_default")]
    pub limits: Vec<LimitRangeItem>,
}

/// One of `spec.limits`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitRangeItem {
    /// `Container`, `Pod` or `PersistentVolumeClaim`; others have no effect.
    #[serde(rename = "type", deserialize_with = "null_as_default")]
    pub kind: String,
    /// At most this much.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub max: ResourceList,
    /// At least this much.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub min: ResourceList,
    /// Limits of containers that have none.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub default: ResourceList,
    /// Requests of containers that have none.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub default_request: ResourceList,
    /// How many times the request a limit may be.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub max_limit_request_ratio: ResourceList,
}

/// A ResourceQuota.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    /// Its name and namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ResourceQuotaSpec,
    /// What is enforced.
    #[serde(deserialize_with = "null_as_default")]
    pub status: ResourceQuotaStatus,
}

/// `spec` of a ResourceQuota.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceQuotaSpec {
    /// At most this much, by name.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub hard: ResourceList,
    /// Scopes that objects have to match, all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    /// The same, as expressions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope_selector: Option<ScopeSelector>,
}

/// `scopeSelector`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScopeSelector {
    /// Expressions that have to hold, all of them.
    pub match_expressions: Option<Vec<ScopeRequirement>>,
}

/// One expression of a scope selector.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScopeRequirement {
    /// The scope.
    #[serde(deserialize_with = "null_as_default")]
    pub scope_name: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    #[serde(deserialize_with = "null_as_default")]
    pub operator: String,
    /// What the operator compares with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<String>>,
}

impl fmt::Display for ScopeRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.borrowed().fmt(f)
    }
}

impl ScopeRequirement {
    /// The same, borrowed.
    pub fn borrowed(&self) -> Scope<'_> {
        Scope {
            scope_name: &self.scope_name,
            operator: &self.operator,
            values: self.values.as_deref(),
        }
    }
}

/// One of a quota's scopes, as an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope<'a> {
    /// The scope.
    pub scope_name: &'a str,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: &'a str,
    /// What the operator compares with.
    pub values: Option<&'a [String]>,
}

impl fmt::Display for Scope<'_> {
    /// Go's `%v` of the struct.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.unwrap_or_default().join(" ");
        write!(f, "{{{} {} [{values}]}}", self.scope_name, self.operator)
    }
}

/// `status` of a ResourceQuota.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceQuotaStatus {
    /// What is enforced; taken from `spec.hard` when the usage is calculated.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub hard: ResourceList,
    /// What is in use.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub used: ResourceList,
}

impl ResourceQuota {
    /// Rounds every quantity as the API does.
    pub fn set_defaults(&mut self) {
        for list in [
            &mut self.spec.hard,
            &mut self.status.hard,
            &mut self.status.used,
        ] {
            round_to_milli(list);
        }
    }

    /// The quota's scopes and the expressions of its selector, as expressions.
    pub fn scopes(&self) -> impl Iterator<Item = Scope<'_>> {
        let exists = |scope_name| Scope {
            scope_name,
            operator: "Exists",
            values: None,
        };
        let named = self.spec.scopes.iter().flatten();
        let selector = self.spec.scope_selector.iter();
        let selected = selector.flat_map(|selector| selector.match_expressions.iter().flatten());
        named
            .map(move |name| exists(name.as_str()))
            .chain(selected.map(ScopeRequirement::borrowed))
    }
}

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    /// Its name and namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: PersistentVolumeClaimSpec,
    /// What the cluster has recorded.
    #[serde(deserialize_with = "null_as_default")]
    pub status: PersistentVolumeClaimStatus,
}

/// `spec` of a claim.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimSpec {
    /// How the volume is mounted.
    #[serde(deserialize_with = "null_as_default")]
    pub access_modes: Vec<String>,
    /// How much storage.
    #[serde(deserialize_with = "null_as_default")]
    pub resources: crate::kube::pod::Resources,
    /// Of which class.
    pub storage_class_name: Option<String>,
    /// With which attributes.
    pub volume_attributes_class_name: Option<String>,
}

/// `status` of a claim.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimStatus {
    /// What is set aside while the volume grows.
    #[serde(deserialize_with = "null_as_default")]
    pub allocated_resources: ResourceList,
    /// The attributes that the volume has.
    pub current_volume_attributes_class_name: Option<String>,
    /// A change of attributes under way.
    pub modify_volume_status: Option<ModifyVolumeStatus>,
}

/// `modifyVolumeStatus`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeStatus {
    /// The attributes that the volume will have.
    #[serde(deserialize_with = "null_as_default")]
    pub target_volume_attributes_class_name: String,
}

/// The resource of claims for volumes.
pub const STORAGE: &str = "storage";

/// Where a claim had its class before there was a field.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

impl PersistentVolumeClaim {
    fn set_defaults(&mut self) {
        for list in [
            &mut self.spec.resources.requests,
            &mut self.spec.resources.limits,
            &mut self.status.allocated_resources,
        ] {
            round_to_milli(list);
        }
    }

    /// The storage class; empty for none (`GetPersistentVolumeClaimClass`).
    pub fn storage_class(&self) -> &str {
        let annotated = self.metadata.annotations.get(CLASS_ANNOTATION);
        annotated
            .or(self.spec.storage_class_name.as_ref())
            .map_or("", String::as_str)
    }

    /// The classes of attributes that the claim has, wants, or is about to have.
    pub fn attributes_classes(&self) -> std::collections::BTreeSet<&str> {
        let target = self.status.modify_volume_status.as_ref();
        let classes = [
            self.spec.volume_attributes_class_name.as_deref(),
            self.status.current_volume_attributes_class_name.as_deref(),
            target.map(|status| status.target_volume_attributes_class_name.as_str()),
        ];
        classes
            .into_iter()
            .flatten()
            .filter(|name| !name.is_empty())
            .collect()
    }

    /// How much storage counts, in whole bytes; none if none is asked for.
    pub fn storage(&self) -> Option<Quantity> {
        let mut storage = self.spec.resources.requests.get(STORAGE)?.clone();
        storage.round_up(0);
        if let Some(allocated) = self.status.allocated_resources.get(STORAGE)
            && *allocated > storage
        {
            storage = allocated.clone();
            storage.round_up(0);
        }
        Some(storage)
    }
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its name and namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ServiceSpec,
}

/// `spec` of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP` if empty.
    #[serde(rename = "type", deserialize_with = "null_as_default")]
    pub kind: String,
    /// Its ports.
    #[serde(deserialize_with = "null_as_default")]
    pub ports: Vec<ServicePort>,
    /// Whether a load balancer's ports get ports of the nodes; absent is yes.
    pub allocate_load_balancer_node_ports: Option<bool>,
}

/// One of a service's ports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// The port of the nodes; 0 if none is asked for.
    #[serde(deserialize_with = "null_as_default")]
    pub node_port: i64,
}

/// A ResourceClaim.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    /// Its name and namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: ResourceClaimSpec,
}

/// `spec` of a resource claim.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimSpec {
    /// Devices.
    #[serde(deserialize_with = "null_as_default")]
    pub devices: DeviceClaim,
}

/// `spec.devices`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClaim {
    /// Requests for devices.
    #[serde(deserialize_with = "null_as_default")]
    pub requests: Vec<DeviceRequest>,
}

/// One request for devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceRequest {
    /// One way to satisfy it.
    pub exactly: Option<DeviceCount>,
    /// Several ways, the first possible one is taken.
    #[serde(deserialize_with = "null_as_default")]
    pub first_available: Vec<DeviceCount>,
}

/// How many devices of a class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceCount {
    /// The class.
    #[serde(deserialize_with = "null_as_default")]
    pub device_class_name: String,
    /// `ExactCount` (if absent) or `All`.
    pub allocation_mode: Option<String>,
    /// How many; 1 if absent.
    pub count: Option<i64>,
}

/// A DeviceClass.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClass {
    /// Its name.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What it stands for.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: DeviceClassSpec,
}

/// `spec` of a device class.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceClassSpec {
    /// The extended resource that is satisfied by such devices.
    pub extended_resource_name: Option<String>,
}

/// A PriorityClass.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PriorityClass {
    /// Its name.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// The priority of its pods.
    #[serde(deserialize_with = "null_as_default")]
    pub value: i32,
    /// Whether pods without class get it.
    #[serde(deserialize_with = "null_as_default")]
    pub global_default: bool,
    /// Whether its pods may preempt others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<String>,
}

/// The policy of pods that may preempt others.
pub const PREEMPT_LOWER_PRIORITY: &str = "PreemptLowerPriority";

impl PriorityClass {
    /// Sets the policy that a class without has.
    pub fn set_defaults(&mut self) {
        self.preemption_policy
            .get_or_insert_with(|| PREEMPT_LOWER_PRIORITY.to_owned());
    }
}

/// A PodGroup.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct PodGroup {
    /// Its name and namespace.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What was asked for.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: PodGroupSpec,
}

/// `spec` of a pod group.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupSpec {
    /// Its class; empty for none.
    #[serde(deserialize_with = "null_as_default")]
    pub priority_class_name: String,
    /// Its priority.
    pub priority: Option<i32>,
}
