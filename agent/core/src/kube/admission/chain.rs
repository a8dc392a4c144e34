//! A new object on its way through all of it, and the namespaces that it meets.
//!
//! Order, as in the API server of 1.36: the API's defaults; LimitRanger and Priority set theirs; the name is generated and
//! the status dropped; the API's validation; LimitRanger, Priority and ResourceQuota refuse; an object of that name may
//! exist already. A refused object changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::field::quoted;
use super::limit_range::{self, Origin};
use super::object::{GroupResource, LimitRange, Object, PriorityClass, ResourceQuota};
use super::pod_object::MoreStatus;
use super::priority::{self, CLASS_KIND, Gates};
use super::request::{Phase, Refusal, Request};
use super::resource_quota::configuration::Configuration;
use super::resource_quota::evaluator::Cluster;
use super::resource_quota::recalculate::{self, Counted, Counts};
use super::resource_quota::{Charge, Conflict, Plugin, QuotaStore};
use super::{Admission, claim_rules, limit_range::validate as range_rules, pod_rules};
use crate::kube::pod::{PodStatus, Resources};
use crate::kube::resources::ResourceList;

/// Where a value comes from that its object did not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    tag = "source"
)]
pub enum Source {
    /// The API: a request from the limit, or pod-level values from those of the containers.
    Api,
    /// A LimitRange.
    LimitRange {
        /// Its name.
        name: String,
        /// The item, from 0.
        item: usize,
        /// The item's field that has the value.
        field: &'static str,
    },
    /// A PriorityClass; its name is empty where there is no default class.
    PriorityClass {
        /// Its name.
        name: String,
    },
}

/// A value that an object did not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Defaulted {
    /// The field, such as `spec.containers[0].resources.requests[cpu]`.
    pub field: String,
    /// Its value.
    pub value: String,
    /// Where it comes from.
    #[serde(flatten)]
    pub source: Source,
}

/// An object that was let in.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// The object with every default.
    pub object: Object,
    /// What was added to it, in the order of the fields.
    pub defaults: Vec<Defaulted>,
    /// What the quotas count for it.
    pub charges: Vec<Charge>,
}

/// The objects of all namespaces that decide about others.
#[derive(Debug, Clone, Default)]
pub struct World {
    admission: Admission,
    configuration: Configuration,
    cluster: Cluster,
    classes: Vec<PriorityClass>,
    /// As they were given, for the origin of a default, and with defaults; by namespace, then by name.
    ranges: BTreeMap<String, BTreeMap<String, (LimitRange, LimitRange)>>,
    /// By namespace, sorted by name.
    quotas: BTreeMap<String, Vec<ResourceQuota>>,
    names: BTreeSet<(GroupResource, String, String)>,
    objects: Vec<Counted>,
}

struct Store<'a>(&'a mut BTreeMap<String, Vec<ResourceQuota>>);

impl QuotaStore for Store<'_> {
    fn quotas(&mut self, namespace: &str) -> &[ResourceQuota] {
        self.0.get(namespace).map_or(&[], Vec::as_slice)
    }

    fn write_used(
        &mut self,
        namespace: &str,
        name: &str,
        used: ResourceList,
    ) -> Result<(), Conflict> {
        let mut all = self.0.get_mut(namespace).into_iter().flatten();
        let own = all.find(|quota| quota.metadata.name == name);
        own.ok_or(Conflict)?.status.used = used;
        Ok(())
    }
}

impl World {
    /// Namespaces with nothing in them, and the classes that every cluster has.
    pub fn new(admission: Admission, configuration: Configuration, cluster: Cluster) -> Self {
        Self {
            admission,
            configuration,
            cluster,
            classes: priority::system_classes(),
            ..Self::default()
        }
    }

    /// Adds a class.
    ///
    /// # Errors
    /// If the API server would refuse it.
    pub fn add_class(&mut self, mut class: PriorityClass) -> Result<(), Refusal> {
        class.set_defaults();
        let known = self
            .classes
            .iter_mut()
            .find(|known| known.metadata.name == class.metadata.name);
        // The two that every cluster has may be given, too.
        if let Some(known) = known
            && (known.value, known.global_default) == (class.value, class.global_default)
        {
            return Ok(());
        }
        let mut request = self.request(
            priority::CLASS_RESOURCE,
            Object::PriorityClass(Box::new(class.clone())),
        );
        request.namespace.clear();
        let errors = priority::create_errors(&class);
        if !errors.is_empty() {
            return Err(request.invalid(CLASS_KIND, errors));
        }
        priority::validate(&request, &self.classes)?;
        self.take_name(&request)?;
        self.classes.push(class);
        Ok(())
    }

    /// Adds a LimitRange. Those of a namespace are used in the order of their names.
    ///
    /// # Errors
    /// If the API server would refuse it.
    pub fn add_range(&mut self, raw: LimitRange) -> Result<(), Refusal> {
        let mut range = raw.clone();
        range.set_defaults();
        let meta = range.metadata.clone();
        let request = self.request("limitranges", Object::Other(Box::new(meta.clone())));
        let errors = range_rules::validate(&range, self.admission);
        if !errors.is_empty() {
            return Err(request.invalid("LimitRange", errors));
        }
        self.take_name(&request)?;
        self.add_object(request);
        self.ranges
            .entry(meta.namespace)
            .or_default()
            .insert(meta.name, (raw, range));
        Ok(())
    }

    /// Adds a quota. One without status enforces what it wants, and its usage is counted by [`World::count`]; one with
    /// status is taken as it is.
    ///
    /// # Errors
    /// If the API server would refuse it.
    pub fn add_quota(&mut self, mut quota: ResourceQuota) -> Result<(), Refusal> {
        quota.set_defaults();
        let meta = quota.metadata.clone();
        let request = self.request("resourcequotas", Object::Other(Box::new(meta.clone())));
        let errors = super::resource_quota::validate::create_errors(&quota, self.admission);
        if !errors.is_empty() {
            return Err(request.invalid("ResourceQuota", errors));
        }
        self.take_name(&request)?;
        self.add_object(request);
        let all = self.quotas.entry(meta.namespace).or_default();
        let at = all.partition_point(|other| other.metadata.name < meta.name);
        all.insert(at, quota);
        Ok(())
    }

    /// Adds an object that is there already: it is counted, and not asked about.
    ///
    /// # Errors
    /// If there are two of that name.
    pub fn add_existing(&mut self, resource: &str, mut object: Object) -> Result<(), Refusal> {
        object.set_defaults();
        let request = self.request(resource, object);
        self.take_name(&request)?;
        self.add_object(request);
        Ok(())
    }

    fn add_object(&mut self, request: Request) {
        let Request {
            resource, object, ..
        } = request;
        self.objects.push(Counted { resource, object });
    }

    /// Counts what the objects added so far use of the quotas without status, and makes these enforce what they want.
    pub fn count(&mut self) {
        let counts = Counts::of(&self.objects, &self.cluster);
        for quota in self.quotas.values_mut().flatten() {
            if quota.status.hard.is_empty() {
                quota.status.used = counts.used(quota);
                quota.status.hard = quota.spec.hard.clone();
            }
        }
    }

    fn request(&self, resource: &str, object: Object) -> Request {
        Request {
            operation: super::request::Operation::Create,
            resource: GroupResource::parse(resource),
            subresource: String::new(),
            namespace: object.meta().namespace.clone(),
            object,
            old_object: None,
            dry_run: false,
        }
    }

    fn take_name(&mut self, request: &Request) -> Result<(), Refusal> {
        let name = request.object.meta().name.clone();
        let key = (request.resource.clone(), request.namespace.clone(), name);
        if self.names.insert(key) {
            return Ok(());
        }
        Err(exists(request))
    }

    /// Asks for a new object.
    ///
    /// # Errors
    /// If the API server would refuse it.
    pub fn admit(&mut self, resource: &str, object: Object) -> Result<Admitted, Refusal> {
        let mut request = self.request(resource, object);
        let mut defaults = Vec::new();
        let mut before = Before::of(&request.object);
        request.object.set_defaults();
        before.note(&request.object, &mut defaults, |_| Source::Api);
        let namespaced = self
            .ranges
            .get(&request.namespace)
            .into_iter()
            .flat_map(BTreeMap::values);
        let ranges: Vec<&(LimitRange, LimitRange)> = namespaced.collect();
        for (raw, range) in &ranges {
            limit_range::admit(&mut request, std::slice::from_ref(range));
            before.note(&request.object, &mut defaults, |field| {
                range_source(raw, field)
            });
        }
        priority::admit(&mut request, &self.classes, Gates::default())?;
        let class = class_of(&request.object);
        before.note(&request.object, &mut defaults, |_| Source::PriorityClass {
            name: class.clone(),
        });
        request.generate_name();
        drop_status(&mut request.object);
        let errors = match &request.object {
            Object::Pod(pod) => Some(("Pod", pod_rules::create_errors(pod))),
            Object::Claim(claim) => {
                Some(("PersistentVolumeClaim", claim_rules::create_errors(claim)))
            }
            _ => None,
        };
        if let Some((kind, errors)) = errors
            && !errors.is_empty()
        {
            return Err(request.invalid(kind, errors));
        }
        let defaulted = ranges.iter().map(|(_, range)| range);
        limit_range::validate(&request, defaulted, self.admission)?;
        let key = (
            request.resource.clone(),
            request.namespace.clone(),
            request.object.meta().name.clone(),
        );
        // The object would be counted and then found to exist; the count is put right soon after.
        if self.names.contains(&key) {
            return Err(exists(&request));
        }
        let plugin = Plugin {
            configuration: &self.configuration,
            cluster: &self.cluster,
            admission: self.admission,
        };
        let charges = plugin.validate(&request, &mut Store(&mut self.quotas))?;
        self.names.insert(key);
        defaults.sort_by(|a, b| a.field.cmp(&b.field));
        let object = request.object.clone();
        self.add_object(request);
        Ok(Admitted {
            object,
            defaults,
            charges,
        })
    }

    /// The quotas, by namespace and name.
    pub fn quotas(&self) -> impl Iterator<Item = &ResourceQuota> {
        self.quotas.values().flatten()
    }

    /// What each object counts of a quota, in the order in which they were added; those that count nothing are left out.
    pub fn takers(&self, quota: &ResourceQuota) -> Vec<(&Counted, ResourceList)> {
        let objects = self.objects.iter();
        let takes = objects.map(|counted| {
            let one = std::slice::from_ref(counted);
            let mut takes = recalculate::used(quota, one, &self.cluster);
            takes.retain(|_, quantity| !quantity.is_zero());
            (counted, takes)
        });
        takes.filter(|(_, takes)| !takes.is_empty()).collect()
    }
}

fn exists(request: &Request) -> Refusal {
    let message = format!(
        "{} {} already exists",
        request.resource,
        quoted(&request.object.meta().name)
    );
    Refusal {
        phase: Phase::Validate,
        code: 409,
        reason: "AlreadyExists",
        causes: vec![message.clone()],
        message,
        refused_by: None,
        errors: Vec::new(),
    }
}

/// A new object has no status yet (`PrepareForCreate`).
fn drop_status(object: &mut Object) {
    match object {
        Object::Pod(pod) => {
            pod.pod.status = PodStatus::default();
            pod.more.status = MoreStatus::default();
        }
        Object::Claim(claim) => {
            claim.status = super::object::PersistentVolumeClaimStatus::default()
        }
        _ => {}
    }
}

fn class_of(object: &Object) -> String {
    match object {
        Object::Pod(pod) => pod.priority_class_name().to_owned(),
        _ => String::new(),
    }
}

/// The source of a field that a LimitRange has set.
fn range_source(raw: &LimitRange, field: &str) -> Source {
    let resource = field
        .rsplit_once('[')
        .map_or("", |(_, rest)| rest.trim_end_matches(']'));
    let is_request = field.contains(".requests[");
    let Origin { item, field } =
        limit_range::origin(raw, is_request, resource).unwrap_or(Origin { item: 0, field: "" });
    Source::LimitRange {
        name: raw.metadata.name.clone(),
        item,
        field,
    }
}

/// The names of the resources of one list.
type Names = Vec<String>;

/// What a pod has, as far as steps add to it; nothing else gets defaults that are noted.
struct Before(Option<Has>);

/// What a pod has.
#[derive(Default)]
struct Has {
    /// Requests and limits of each container, then of each init container.
    containers: Vec<[Names; 2]>,
    /// The same of the pod as a whole.
    level: [Names; 2],
    class: String,
    priority: bool,
    policy: bool,
}

impl Before {
    fn of(object: &Object) -> Self {
        let Object::Pod(pod) = object else {
            return Self(None);
        };
        let names = |list: &ResourceList| list.keys().cloned().collect();
        let both = |resources: &Resources| [names(&resources.requests), names(&resources.limits)];
        let spec = &pod.pod.spec;
        Self(Some(Has {
            containers: pod
                .pod
                .all_containers()
                .map(|container| both(&container.resources))
                .collect(),
            level: spec.resources.as_ref().map(both).unwrap_or_default(),
            class: pod.priority_class_name().to_owned(),
            priority: spec.priority.is_some(),
            policy: pod.more.spec.preemption_policy.is_some(),
        }))
    }

    /// Notes what is new.
    fn note(
        &mut self,
        object: &Object,
        defaults: &mut Vec<Defaulted>,
        source: impl Fn(&str) -> Source,
    ) {
        let (Some(has), Object::Pod(pod)) = (&mut self.0, object) else {
            return;
        };
        let mut add = |field: String, value: String| {
            let source = source(&field);
            defaults.push(Defaulted {
                field,
                value,
                source,
            });
        };
        let mut lists = |path: &dyn Fn() -> String, has: &mut [Names; 2], now: &Resources| {
            let [requests, limits] = has;
            for (name, has, now) in [
                ("requests", requests, &now.requests),
                ("limits", limits, &now.limits),
            ] {
                // A step only adds.
                if has.len() == now.len() {
                    continue;
                }
                for (resource, amount) in now {
                    if !has.contains(resource) {
                        add(format!("{}.{name}[{resource}]", path()), amount.to_string());
                        has.push(resource.clone());
                    }
                }
            }
        };
        let spec = &pod.pod.spec;
        let all = [
            ("containers", &spec.containers),
            ("initContainers", &spec.init_containers),
        ];
        let numbered = all.into_iter().flat_map(|(list, containers)| {
            let containers = containers.iter().enumerate();
            containers.map(move |(at, container)| (list, at, container))
        });
        for ((list, at, container), has) in numbered.zip(&mut has.containers) {
            let path = || format!("spec.{list}[{at}].resources");
            lists(&path, has, &container.resources);
        }
        if let Some(level) = &spec.resources {
            lists(&|| "spec.resources".to_owned(), &mut has.level, level);
        }
        let class = pod.priority_class_name();
        if has.class != class {
            add("spec.priorityClassName".to_owned(), class.to_owned());
            class.clone_into(&mut has.class);
        }
        if let (false, Some(priority)) = (has.priority, spec.priority) {
            add("spec.priority".to_owned(), priority.to_string());
            has.priority = true;
        }
        if let (false, Some(policy)) = (has.policy, &pod.more.spec.preemption_policy) {
            add("spec.preemptionPolicy".to_owned(), policy.clone());
            has.policy = true;
        }
    }
}
