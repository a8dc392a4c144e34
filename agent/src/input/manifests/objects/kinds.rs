//! Which kinds are read for admission, and the field names of those that are checked by name.

use crate::input::manifests::schema::{Field, Kind, METADATA, POD, RESOURCES};

/// How a kind is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Pod,
    Claim,
    Service,
    ResourceClaim,
    LimitRange,
    Quota,
    PriorityClass,
    DeviceClass,
    /// Only counted.
    Counted,
    /// Without effect here, for that reason.
    LeftOut(&'static str),
}

const CLUSTER: Form =
    Form::LeftOut("not in a namespace: no LimitRange or ResourceQuota is about it");

/// Kind, version, plural with group, and how it is read. A group's versions are those that 1.36 serves and that mean
/// the same here.
pub(super) const KINDS: &[(&str, &[&str], &str, Form)] = &[
    (
        "ClusterRole",
        &["rbac.authorization.k8s.io/v1"],
        "",
        CLUSTER,
    ),
    (
        "ClusterRoleBinding",
        &["rbac.authorization.k8s.io/v1"],
        "",
        CLUSTER,
    ),
    ("ConfigMap", &["v1"], "configmaps", Form::Counted),
    ("CronJob", &["batch/v1"], "cronjobs.batch", Form::Counted),
    (
        "CustomResourceDefinition",
        &["apiextensions.k8s.io/v1"],
        "",
        CLUSTER,
    ),
    ("DaemonSet", &["apps/v1"], "daemonsets.apps", Form::Counted),
    (
        "Deployment",
        &["apps/v1"],
        "deployments.apps",
        Form::Counted,
    ),
    (
        "DeviceClass",
        &["resource.k8s.io/v1"],
        "",
        Form::DeviceClass,
    ),
    (
        "EndpointSlice",
        &["discovery.k8s.io/v1"],
        "endpointslices.discovery.k8s.io",
        Form::Counted,
    ),
    ("Endpoints", &["v1"], "endpoints", Form::Counted),
    (
        "Event",
        &["v1", "events.k8s.io/v1"],
        "",
        Form::LeftOut("events are never counted"),
    ),
    (
        "HorizontalPodAutoscaler",
        &["autoscaling/v1", "autoscaling/v2"],
        "horizontalpodautoscalers.autoscaling",
        Form::Counted,
    ),
    (
        "Ingress",
        &["networking.k8s.io/v1"],
        "ingresses.networking.k8s.io",
        Form::Counted,
    ),
    ("IngressClass", &["networking.k8s.io/v1"], "", CLUSTER),
    ("Job", &["batch/v1"], "jobs.batch", Form::Counted),
    (
        "Lease",
        &["coordination.k8s.io/v1"],
        "leases.coordination.k8s.io",
        Form::Counted,
    ),
    ("LimitRange", &["v1"], "limitranges", Form::LimitRange),
    (
        "Namespace",
        &["v1"],
        "",
        Form::LeftOut("every namespace that is named exists here"),
    ),
    (
        "NetworkPolicy",
        &["networking.k8s.io/v1"],
        "networkpolicies.networking.k8s.io",
        Form::Counted,
    ),
    ("Node", &["v1"], "", CLUSTER),
    ("PersistentVolume", &["v1"], "", CLUSTER),
    (
        "PersistentVolumeClaim",
        &["v1"],
        "persistentvolumeclaims",
        Form::Claim,
    ),
    ("Pod", &["v1"], "pods", Form::Pod),
    (
        "PodDisruptionBudget",
        &["policy/v1"],
        "poddisruptionbudgets.policy",
        Form::Counted,
    ),
    (
        "PriorityClass",
        &["scheduling.k8s.io/v1"],
        "",
        Form::PriorityClass,
    ),
    (
        "ReplicaSet",
        &["apps/v1"],
        "replicasets.apps",
        Form::Counted,
    ),
    (
        "ReplicationController",
        &["v1"],
        "replicationcontrollers",
        Form::Counted,
    ),
    (
        "ResourceClaim",
        &["resource.k8s.io/v1"],
        "resourceclaims.resource.k8s.io",
        Form::ResourceClaim,
    ),
    (
        "ResourceClaimTemplate",
        &["resource.k8s.io/v1"],
        "resourceclaimtemplates.resource.k8s.io",
        Form::Counted,
    ),
    ("ResourceQuota", &["v1"], "resourcequotas", Form::Quota),
    (
        "Role",
        &["rbac.authorization.k8s.io/v1"],
        "roles.rbac.authorization.k8s.io",
        Form::Counted,
    ),
    (
        "RoleBinding",
        &["rbac.authorization.k8s.io/v1"],
        "rolebindings.rbac.authorization.k8s.io",
        Form::Counted,
    ),
    ("Secret", &["v1"], "secrets", Form::Counted),
    ("Service", &["v1"], "services", Form::Service),
    ("ServiceAccount", &["v1"], "serviceaccounts", Form::Counted),
    (
        "StatefulSet",
        &["apps/v1"],
        "statefulsets.apps",
        Form::Counted,
    ),
    ("StorageClass", &["storage.k8s.io/v1"], "", CLUSTER),
];

/// Kinds whose pods are not looked at: a controller makes them later.
pub(super) const OWNERS: [&str; 7] = [
    "CronJob",
    "DaemonSet",
    "Deployment",
    "Job",
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
];

const LIMIT_RANGE: &[Field] = &[
    ("apiVersion", Kind::Text),
    ("kind", Kind::Text),
    ("metadata", Kind::Object(METADATA)),
    (
        "spec",
        Kind::Object(&[("limits", Kind::ListOf(LIMIT_RANGE_ITEM))]),
    ),
];

const LIMIT_RANGE_ITEM: &[Field] = &[
    ("default", Kind::Quantities),
    ("defaultRequest", Kind::Quantities),
    ("max", Kind::Quantities),
    ("maxLimitRequestRatio", Kind::Quantities),
    ("min", Kind::Quantities),
    ("type", Kind::Text),
];

const QUOTA: &[Field] = &[
    ("apiVersion", Kind::Text),
    ("kind", Kind::Text),
    ("metadata", Kind::Object(METADATA)),
    ("spec", Kind::Object(QUOTA_SPEC)),
    (
        "status",
        Kind::Object(&[("hard", Kind::Quantities), ("used", Kind::Quantities)]),
    ),
];

const QUOTA_SPEC: &[Field] = &[
    ("hard", Kind::Quantities),
    (
        "scopeSelector",
        Kind::Object(&[("matchExpressions", Kind::ListOf(SCOPE))]),
    ),
    ("scopes", Kind::List),
];

const SCOPE: &[Field] = &[
    ("operator", Kind::Text),
    ("scopeName", Kind::Text),
    ("values", Kind::List),
];

const PRIORITY_CLASS: &[Field] = &[
    ("apiVersion", Kind::Text),
    ("description", Kind::Text),
    ("globalDefault", Kind::Boolean),
    ("kind", Kind::Text),
    ("metadata", Kind::Object(METADATA)),
    ("preemptionPolicy", Kind::Text),
    ("value", Kind::Integer),
];

const CLAIM: &[Field] = &[
    ("apiVersion", Kind::Text),
    ("kind", Kind::Text),
    ("metadata", Kind::Object(METADATA)),
    ("spec", Kind::Object(CLAIM_SPEC)),
    ("status", Kind::Any),
];

const CLAIM_SPEC: &[Field] = &[
    ("accessModes", Kind::List),
    ("dataSource", Kind::Any),
    ("dataSourceRef", Kind::Any),
    ("resources", Kind::Object(RESOURCES)),
    ("selector", Kind::Any),
    ("storageClassName", Kind::Text),
    ("volumeAttributesClassName", Kind::Text),
    ("volumeMode", Kind::Text),
    ("volumeName", Kind::Text),
];

/// The fields of a kind; none where they are not checked by name.
pub(super) fn fields_of(form: Form) -> Option<&'static [Field]> {
    match form {
        Form::Pod => Some(POD),
        Form::Claim => Some(CLAIM),
        Form::LimitRange => Some(LIMIT_RANGE),
        Form::Quota => Some(QUOTA),
        Form::PriorityClass => Some(PRIORITY_CLASS),
        Form::Service
        | Form::ResourceClaim
        | Form::DeviceClass
        | Form::Counted
        | Form::LeftOut(_) => None,
    }
}
