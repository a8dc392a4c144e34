//! What is in use of a quota, counted anew from the objects of its namespace (`CalculateUsage`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    pub object: Arc<Object>,
}

/// Objects by resource, each with what it counts: made once for all quotas.
#[derive(Debug)]
pub struct Counts<'a> {
    resources: BTreeMap<GroupResource, OfResource<'a>>,
    cluster: &'a Cluster,
}

/// The objects of one resource.
#[derive(Debug)]
struct OfResource<'a> {
    evaluator: Evaluator,
    objects: Vec<(&'a Object, ResourceList)>,
}

impl<'a> Counts<'a> {
    /// What these objects count.
    pub fn of(objects: &'a [Counted], cluster: &'a Cluster) -> Self {
        let with_evaluator = |resource: GroupResource| {
            let evaluator = Evaluator::of(&resource);
            let objects = Vec::new();
            (resource, OfResource { evaluator, objects })
        };
        let known = STATIC.iter().chain(&BUILT_IN);
        let mut resources: BTreeMap<_, OfResource<'_>> = known
            .map(|name| with_evaluator(GroupResource::parse(name)))
            .collect();
        for Counted { resource, object } in objects {
            if !resources.contains_key(resource) {
                resources.extend([with_evaluator(resource.clone())]);
            }
            if let Some(of) = resources.get_mut(resource) {
                let usage = of.evaluator.usage(object, cluster);
                of.objects.push((object, usage));
            }
        }
        Self { resources, cluster }
    }

    /// What is in use of a quota: an entry for each name of `spec.hard` that can be counted. Objects of other namespaces are
    /// left out, and so are names of resources that no API server serves and no object has.
    pub fn used(&self, quota: &ResourceQuota) -> ResourceList {
        let hard = &quota.spec.hard;
        let mut used = ResourceList::new();
        let mut counted = BTreeSet::new();
        for OfResource { evaluator, objects } in self.resources.values() {
            let names: Vec<&str> = evaluator.counted(hard, self.cluster).collect();
            if names.is_empty() {
                continue;
            }
            for name in &names {
                *used.entry((*name).to_owned()).or_default() += &Quantity::default();
            }
            counted.extend(names);
            let of_namespace = objects
                .iter()
                .filter(|(object, _)| object.meta().namespace == quota.metadata.namespace);
            for (object, usage) in of_namespace {
                // A scope that cannot be read matches nothing.
                let matches = quota
                    .scopes()
                    .all(|scope| scope::matches(scope, object).unwrap_or(false));
                if !matches {
                    continue;
                }
                for (name, amount) in usage.iter().filter(|(name, _)| hard.contains_key(*name)) {
                    match used.get_mut(name) {
                        Some(sum) => *sum += amount,
                        None => {
                            used.insert(name.clone(), amount.clone());
                        }
                    }
                }
            }
        }
        // An object may count under a name that no evaluator has for its own.
        used.retain(|name, _| counted.contains(name.as_str()));
        used
    }
}

/// What is in use of one quota: see [`Counts::used`].
pub fn used(quota: &ResourceQuota, objects: &[Counted], cluster: &Cluster) -> ResourceList {
    Counts::of(objects, cluster).used(quota)
}
