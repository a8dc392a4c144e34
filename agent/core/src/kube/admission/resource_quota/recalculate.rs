//! What is in use of a quota, counted anew from the objects of its namespace (`CalculateUsage`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::cluster::Cluster;
use super::evaluator::Evaluator;
use super::scope;
use super::usage::Usage;
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
    objects: Vec<One<'a>>,
}

/// An object.
#[derive(Debug)]
struct One<'a> {
    /// Its place among all objects.
    at: usize,
    counted: &'a Counted,
    usage: Usage,
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
        for (at, counted) in objects.iter().enumerate() {
            let resource = &counted.resource;
            if !resources.contains_key(resource) {
                resources.extend([with_evaluator(resource.clone())]);
            }
            if let Some(of) = resources.get_mut(resource) {
                let usage = of.evaluator.usage(&counted.object, cluster);
                of.objects.push(One { at, counted, usage });
            }
        }
        Self { resources, cluster }
    }

    /// The names of a quota that can be counted.
    fn names<'q>(&self, quota: &'q ResourceQuota) -> BTreeSet<&'q str> {
        let all = self.resources.values();
        all.flat_map(|of| of.evaluator.counted(&quota.spec.hard, self.cluster))
            .collect()
    }

    /// The objects that count under some of these names of a quota, which are all that can be counted.
    fn of_quota<'q>(
        &'q self,
        quota: &'q ResourceQuota,
        names: &'q BTreeSet<&str>,
    ) -> impl Iterator<Item = &'q One<'a>> {
        let hard = &quota.spec.hard;
        let all = self.resources.values();
        // An object may count under a name that no evaluator has for its own, and then only beside one that it has.
        let counting = all.filter(|of| of.evaluator.counted(hard, self.cluster).next().is_some());
        counting
            .flat_map(|of| &of.objects)
            .filter(|one| one.counted.object.meta().namespace == quota.metadata.namespace)
            .filter(|one| one.usage.iter().any(|(name, _)| names.contains(name)))
            .filter(|one| {
                // A scope that cannot be read matches nothing.
                let object = &one.counted.object;
                quota
                    .scopes()
                    .all(|scope| scope::matches(scope, object).unwrap_or(false))
            })
    }

    /// What is in use of a quota: an entry for each name of `spec.hard` that can be counted. Objects of other
    /// namespaces are left out, and so are names of resources that no API server serves and no object has.
    pub fn used(&self, quota: &ResourceQuota) -> ResourceList {
        let names = self.names(quota);
        let zero = |name: &&str| ((*name).to_owned(), Quantity::default());
        let mut used: ResourceList = names.iter().map(zero).collect();
        for one in self.of_quota(quota, &names) {
            for (name, sum) in &mut used {
                if let Some(amount) = one.usage.get(name) {
                    *sum += amount;
                }
            }
        }
        used
    }

    /// What each object counts of a quota, in the order in which they were given; those that count nothing are left
    /// out.
    pub fn takers(&self, quota: &ResourceQuota) -> Vec<(&'a Counted, ResourceList)> {
        let names = self.names(quota);
        let mut takers: Vec<(usize, &Counted, ResourceList)> = self
            .of_quota(quota, &names)
            .map(|one| {
                let takes = one
                    .usage
                    .iter()
                    .filter(|(name, amount)| names.contains(name) && !amount.is_zero());
                let takes = takes.map(|(name, amount)| (name.to_owned(), amount.clone()));
                (one.at, one.counted, takes.collect())
            })
            .collect();
        takers.retain(|(_, _, takes)| !takes.is_empty());
        takers.sort_by_key(|(at, ..)| *at);
        let ordered = takers.into_iter();
        ordered
            .map(|(_, counted, takes)| (counted, takes))
            .collect()
    }
}

/// What is in use of one quota: see [`Counts::used`].
pub fn used(quota: &ResourceQuota, objects: &[Counted], cluster: &Cluster) -> ResourceList {
    Counts::of(objects, cluster).used(quota)
}
