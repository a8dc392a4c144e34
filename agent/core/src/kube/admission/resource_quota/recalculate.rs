//! What is in use of a quota, counted anew from the objects of its namespace (`CalculateUsage`).

use std::collections::BTreeSet;

use super::add;
use super::evaluator::{Cluster, Evaluator};
use super::scope;
use crate::kube::admission::object::{GroupResource, Object, ResourceQuota};
use crate::kube::quantity::Quantity;
use crate::kube::resources::ResourceList;

/// Resources that are counted by more than the number of objects, or under an alias.
const STATIC: [&str; 8] = [
    "pods",
    "services",
    "persistentvolumeclaims",
    "resourceclaims.resource.k8s.io",
    "configmaps",
    "resourcequotas",
    "replicationcontrollers",
    "secrets",
];

/// Namespaced resources that every API server of 1.36 has, and that are counted by number alone.
const BUILT_IN: [&str; 22] = [
    "controllerrevisions.apps",
    "cronjobs.batch",
    "csistoragecapacities.storage.k8s.io",
    "daemonsets.apps",
    "deployments.apps",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "horizontalpodautoscalers.autoscaling",
    "ingresses.networking.k8s.io",
    "jobs.batch",
    "leases.coordination.k8s.io",
    "limitranges",
    "networkpolicies.networking.k8s.io",
    "poddisruptionbudgets.policy",
    "podtemplates",
    "replicasets.apps",
    "resourceclaimtemplates.resource.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "serviceaccounts",
    "statefulsets.apps",
    "volumeattachments.storage.k8s.io",
];

/// An object and what it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Counted {
    /// The resource.
    pub resource: GroupResource,
    /// The object, with the API's defaults.
    pub object: Object,
}

/// What is in use of a quota: an entry for each name of `spec.hard` that can be counted. Objects of other namespaces are
/// left out, and so are names of resources that no API server serves and no object has.
pub fn used(quota: &ResourceQuota, objects: &[Counted], cluster: &Cluster) -> ResourceList {
    let hard = &quota.spec.hard;
    let mut resources: BTreeSet<GroupResource> = STATIC
        .iter()
        .chain(&BUILT_IN)
        .map(|name| GroupResource::parse(name))
        .collect();
    resources.extend(objects.iter().map(|counted| counted.resource.clone()));
    let scopes = quota.scopes();
    let mut used = ResourceList::new();
    let mut counted = BTreeSet::new();
    for resource in resources {
        let evaluator = Evaluator::of(&resource);
        let names = evaluator.counted(hard, cluster);
        if names.is_empty() {
            continue;
        }
        let zero = names
            .iter()
            .map(|name| ((*name).to_owned(), Quantity::default()));
        used = add(&used, &zero.collect());
        counted.extend(names);
        let of_namespace = objects.iter().filter(|own| {
            own.resource == resource && own.object.meta().namespace == quota.metadata.namespace
        });
        for Counted { object, .. } in of_namespace {
            // A scope that cannot be read matches nothing.
            let matches = scopes
                .iter()
                .all(|scope| scope::matches(scope, object).unwrap_or(false));
            if matches {
                let mut usage = evaluator.usage(object, cluster);
                usage.retain(|name, _| hard.contains_key(name));
                used = add(&used, &usage);
            }
        }
    }
    // An object may count under a name that no evaluator has for its own.
    used.retain(|name, _| counted.contains(name.as_str()));
    used
}
