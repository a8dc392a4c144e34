//! What objects of each kind count.
//!
//! Source: `pkg/quota/v1/evaluator/core` and `k8s.io/apiserver/pkg/quota/v1/generic` of 1.36.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::claims;
use super::cluster::{Cluster, is_extended_request};
use super::pods::pod_usage;
use super::usage::{Known, Usage, one};
use crate::kube::admission::Admission;
use crate::kube::admission::names::REQUESTS_PREFIX;
use crate::kube::admission::object::{
    GroupResource, Object, PersistentVolumeClaim, STORAGE, Service,
};
use crate::kube::admission::request::{Operation, Request};
use crate::kube::pod::Container;
use crate::kube::quantity::{Format, Quantity};
use crate::kube::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, ResourceList, is_huge_pages};

/// What counts objects of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evaluator {
    /// Pods.
    Pods,
    /// Claims for volumes.
    Claims,
    /// Services.
    Services,
    /// Claims for devices.
    ResourceClaims,
    /// Anything else: one each.
    Count {
        /// `count/` and the resource.
        count: String,
        /// The name from before there were such counts.
        alias: Option<String>,
    },
}

/// Core resources with a count under their bare names.
const ALIASED: [&str; 4] = [
    "configmaps",
    "resourcequotas",
    "replicationcontrollers",
    "secrets",
];

/// The names of storage in a quota.
const CLAIM_NAMES: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];

/// What precedes these where they are of one storage class.
const CLASS_INFIX: &str = ".storageclass.storage.k8s.io/";

impl Evaluator {
    /// The evaluator of a resource.
    pub fn of(resource: &GroupResource) -> Self {
        match (resource.group.as_str(), resource.resource.as_str()) {
            ("", "pods") => Self::Pods,
            ("", "persistentvolumeclaims") => Self::Claims,
            ("", "services") => Self::Services,
            ("resource.k8s.io", "resourceclaims") => Self::ResourceClaims,
            _ => {
                let name = resource.to_string();
                Self::Count {
                    count: resource.count_name(),
                    alias: ALIASED.contains(&name.as_str()).then_some(name),
                }
            }
        }
    }

    /// Whether a request changes what it counts.
    pub fn handles(&self, request: &Request, admission: Admission) -> bool {
        let Request {
            operation,
            object,
            old_object,
            ..
        } = request;
        let writes = matches!(operation, Operation::Create | Operation::Update);
        match (self, request.subresource.as_str()) {
            (Self::Pods, "") => match (operation, object, old_object) {
                (Operation::Create, ..) => true,
                (Operation::Update, Object::Pod(new), Some(Object::Pod(old))) => {
                    new.is_terminating() != old.is_terminating()
                }
                _ => false,
            },
            (Self::Pods, "resize") => *operation == Operation::Update,
            (Self::Claims, "status") => match (object, old_object) {
                (Object::Claim(new), Some(Object::Claim(old))) => {
                    needs_recount(new, old, admission)
                }
                _ => false,
            },
            (Self::Claims | Self::ResourceClaims | Self::Services, "") => writes,
            (Self::Count { .. }, "") => *operation == Operation::Create,
            _ => false,
        }
    }

    /// Whether a quota's name is one that this counts.
    pub fn counts(&self, name: &str, cluster: &Cluster) -> bool {
        match self {
            Self::ResourceClaims => cluster.device_classes.counts(name),
            _ => self.counts_by_name(name),
        }
    }

    /// The same where nothing else in the cluster decides.
    pub(super) fn counts_by_name(&self, name: &str) -> bool {
        match self {
            Self::Pods => {
                matches!(
                    name,
                    "count/pods"
                        | "pods"
                        | CPU
                        | MEMORY
                        | EPHEMERAL_STORAGE
                        | "requests.cpu"
                        | "requests.memory"
                        | "requests.ephemeral-storage"
                        | "limits.cpu"
                        | "limits.memory"
                        | "limits.ephemeral-storage"
                ) || is_huge_pages(name.strip_prefix(REQUESTS_PREFIX).unwrap_or(name))
                    || is_extended_request(name)
            }
            Self::Claims => {
                let of_class = name.rsplit_once(CLASS_INFIX).map(|(_, name)| name);
                name == "count/persistentvolumeclaims"
                    || CLAIM_NAMES.contains(&name)
                    || of_class.is_some_and(|name| CLAIM_NAMES.contains(&name))
            }
            Self::Services => matches!(
                name,
                "count/services" | "services" | "services.nodeports" | "services.loadbalancers"
            ),
            Self::ResourceClaims => false,
            Self::Count { count, alias } => name == count || alias.as_deref() == Some(name),
        }
    }

    /// The names of a list that this counts, sorted.
    pub fn counted<'a>(
        &self,
        list: &'a ResourceList,
        cluster: &Cluster,
    ) -> impl Iterator<Item = &'a str> {
        let names = list.keys().map(String::as_str);
        names.filter(|name| self.counts(name, cluster))
    }

    /// What an object counts, under all names.
    pub fn usage(&self, object: &Object, cluster: &Cluster) -> Usage {
        match (self, object) {
            (Self::Pods, Object::Pod(pod)) => pod_usage(pod, cluster.now),
            (Self::Claims, Object::Claim(claim)) => claim_usage(claim).into(),
            (Self::Services, Object::Service(service)) => service_usage(service).into(),
            (Self::ResourceClaims, Object::ResourceClaim(claim)) => {
                claims::usage(claim, cluster).into()
            }
            (Self::Count { count, alias }, _) => {
                let names = alias.iter().chain([count]);
                Usage::new(
                    names
                        .map(|name| (Cow::Owned(name.clone()), one()))
                        .collect(),
                )
            }
            _ => Usage::default(),
        }
    }

    /// The names for which a quota asks every container of the object, and that a container does not set: as a set.
    pub(super) fn unset(&self, object: &Object) -> u16 {
        let (Self::Pods, Object::Pod(pod)) = (self, object) else {
            return 0;
        };
        if pod.pod.pod_level_resources().is_some() {
            return 0;
        }
        // Several of the names are about the same field.
        let unset = |list: fn(&Container) -> &ResourceList, name: &str| {
            let mut containers = pod.pod.all_containers();
            containers.any(|container| !list(container).contains_key(name))
        };
        let [requests, limits]: [fn(&Container) -> &ResourceList; 2] =
            [|it| &it.resources.requests, |it| &it.resources.limits];
        let fields = [
            (unset(requests, CPU), [Known::Cpu, Known::RequestsCpu]),
            (
                unset(requests, MEMORY),
                [Known::Memory, Known::RequestsMemory],
            ),
            (unset(limits, CPU), [Known::LimitsCpu; 2]),
            (unset(limits, MEMORY), [Known::LimitsMemory; 2]),
        ];
        let unset = fields.into_iter().filter(|(is_unset, _)| *is_unset);
        let names = unset.flat_map(|(_, names)| names);
        names.fold(0, |set, name| set | name.bit())
    }

    /// Which containers do not set these names, which are sorted: `name for: containers`.
    pub(super) fn missing(names: &[&str], object: &Object) -> Vec<String> {
        let Object::Pod(pod) = object else {
            return Vec::new();
        };
        let shown = names.iter().map(|name| {
            let without = pod.pod.all_containers().filter(|it| !sets(it, name));
            let without: BTreeSet<&str> = without.map(|it| it.name.as_str()).collect();
            let without: Vec<&str> = without.into_iter().collect();
            format!("{name} for: {}", without.join(","))
        });
        shown.collect()
    }
}

/// Whether a container sets what a quota's name is about.
fn sets(container: &Container, name: &str) -> bool {
    let resources = &container.resources;
    match name.strip_prefix("limits.") {
        Some(name) => resources.limits.contains_key(name),
        None => resources
            .requests
            .contains_key(name.strip_prefix(REQUESTS_PREFIX).unwrap_or(name)),
    }
}

fn claim_usage(claim: &PersistentVolumeClaim) -> ResourceList {
    let mut usage = ResourceList::from([
        ("count/persistentvolumeclaims".to_owned(), one()),
        ("persistentvolumeclaims".to_owned(), one()),
    ]);
    if let Some(storage) = claim.storage() {
        usage.insert(format!("{REQUESTS_PREFIX}{STORAGE}"), storage);
    }
    let class = claim.storage_class();
    if !class.is_empty() {
        for name in CLAIM_NAMES {
            if let Some(quantity) = usage.get(name).cloned() {
                usage.insert(format!("{class}{CLASS_INFIX}{name}"), quantity);
            }
        }
    }
    usage
}

/// Whether the status of a claim changed in a way that counts (`RequiresQuotaReplenish`).
fn needs_recount(
    new: &PersistentVolumeClaim,
    old: &PersistentVolumeClaim,
    admission: Admission,
) -> bool {
    let allocated =
        |claim: &PersistentVolumeClaim| claim.status.allocated_resources.get(STORAGE).cloned();
    // Upstream compares where the two sizes are kept, and finds them different always.
    admission.is_upstream()
        || allocated(new) != allocated(old)
        || new.attributes_classes() != old.attributes_classes()
}

fn service_usage(service: &Service) -> ResourceList {
    let number = |count: usize| {
        Quantity::from_value(i64::try_from(count).unwrap_or(i64::MAX), Format::DecimalSI)
    };
    let spec = &service.spec;
    let balances = spec.kind == "LoadBalancer";
    let node_ports = if balances && spec.allocate_load_balancer_node_ports == Some(false) {
        spec.ports.iter().filter(|port| port.node_port != 0).count()
    } else if balances || spec.kind == "NodePort" {
        spec.ports.len()
    } else {
        0
    };
    ResourceList::from([
        ("count/services".to_owned(), one()),
        ("services".to_owned(), one()),
        (
            "services.loadbalancers".to_owned(),
            number(usize::from(balances)),
        ),
        ("services.nodeports".to_owned(), number(node_ports)),
    ])
}
