//! A new object on its way through all of it, and the namespaces that it meets.
//!
//! Order, as in the API server of 1.36: the API's defaults; LimitRanger and Priority set theirs; the name is generated
//! and the status dropped; the API's validation; LimitRanger, Priority and ResourceQuota refuse; an object of that name
//! may exist already. A refused object changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::field::quoted;
use super::limit_range::{self, Filled, Origin};
use super::object::{GroupResource, LimitRange, Object, PriorityClass, ResourceQuota};
use super::pod_object::{MILLI, MoreStatus};
use super::priority::{self, CLASS_KIND, Gates};
use super::request::{Phase, Refusal, Request};
use super::resource_quota::cluster::Cluster;
use super::resource_quota::configuration::Configuration;
use super::resource_quota::recalculate::{Counted, Counts};
use super::resource_quota::{Charge, Charges, Conflict, EnforcedQuota, Plugin, QuotaStore};
use super::{Admission, claim_rules, limit_range::validate as range_rules, pod_rules};
use crate::kube::pod::{PodStatus, Resources};
use crate::kube::quantity::Quantity;

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

/// A field of a pod that defaults set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DefaultedField {
    /// An amount of a container.
    Container {
        /// Whether it is an init container.
        is_init: bool,
        /// Its place in its list, from 0.
        at: usize,
        /// Whether it is a request; else a limit.
        is_request: bool,
        /// Of which resource.
        resource: String,
    },
    /// A field of `spec`.
    Spec(&'static str),
    /// An amount of the pod as a whole.
    Pod {
        /// Whether it is a request; else a limit.
        is_request: bool,
        /// Of which resource.
        resource: String,
    },
}

impl fmt::Display for DefaultedField {
    /// `spec.containers[0].resources.requests[cpu]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |is_request| if is_request { "requests" } else { "limits" };
        match self {
            Self::Container {
                is_init,
                at,
                is_request,
                resource,
            } => {
                let containers = if *is_init {
                    "initContainers"
                } else {
                    "containers"
                };
                let list = list(*is_request);
                write!(f, "spec.{containers}[{at}].resources.{list}[{resource}]")
            }
            Self::Spec(field) => write!(f, "spec.{field}"),
            Self::Pod {
                is_request,
                resource,
            } => {
                write!(f, "spec.resources.{}[{resource}]", list(*is_request))
            }
        }
    }
}

/// What a field was set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefaultedValue {
    /// An amount.
    Amount(Quantity),
    /// A priority.
    Number(i32),
    /// A name.
    Text(String),
}

impl fmt::Display for DefaultedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(amount) => amount.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// A value that an object did not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Defaulted {
    /// The field.
    #[serde(serialize_with = "as_text")]
    pub field: DefaultedField,
    /// Its value.
    #[serde(serialize_with = "as_text")]
    pub value: DefaultedValue,
    /// Where it comes from.
    #[serde(flatten)]
    pub source: Source,
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// An object that was let in.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// The object with every default.
    pub object: Arc<Object>,
    /// What was added to it, in the order of the fields.
    pub defaults: Vec<Defaulted>,
    /// What the quotas count for it.
    pub charges: Charges,
}

/// The objects of all namespaces that decide about others.
#[derive(Debug, Clone, Default)]
pub struct World {
    admission: Admission,
    configuration: Configuration,
    cluster: Cluster,
    classes: Vec<PriorityClass>,
    /// By namespace, then by name.
    ranges: BTreeMap<String, BTreeMap<String, Range>>,
    /// By namespace, sorted by name.
    quotas: BTreeMap<String, Vec<EnforcedQuota>>,
    /// The names that are taken, by resource and namespace.
    names: BTreeMap<GroupResource, BTreeMap<String, BTreeSet<String>>>,
    objects: Vec<Counted>,
}

/// A LimitRange in force.
#[derive(Debug, Clone)]
struct Range {
    /// With the API's defaults.
    range: LimitRange,
    /// What containers without get.
    defaults: Resources,
    /// Which field of the object that was given has each of these: of requests, of limits.
    origins: [BTreeMap<String, Origin>; 2],
}

struct Store<'a>(&'a mut BTreeMap<String, Vec<EnforcedQuota>>);

impl QuotaStore for Store<'_> {
    fn quotas(&mut self, namespace: &str) -> &[EnforcedQuota] {
        self.0.get(namespace).map_or(&[], Vec::as_slice)
    }

    fn add_used(&mut self, namespace: &str, charge: Charge<'_>) -> Result<(), Conflict> {
        let quotas = self.0.get_mut(namespace).ok_or(Conflict)?;
        // No write fails here, so that all were checked, in this order.
        let quota = quotas.get_mut(charge.at);
        let quota = quota.filter(|quota| quota.name() == charge.quota);
        quota.ok_or(Conflict)?.add(&charge);
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
    pub fn add_range(&mut self, given: LimitRange) -> Result<(), Refusal> {
        let mut range = given.clone();
        range.set_defaults();
        let meta = range.metadata.clone();
        let request = self.request("limitranges", Object::Other(Box::new(meta.clone())));
        let errors = range_rules::validate(&range, self.admission);
        if !errors.is_empty() {
            return Err(request.invalid("LimitRange", errors));
        }
        self.take_name(&request)?;
        self.add_object(request);
        let range = Range::new(&given, range);
        self.ranges
            .entry(meta.namespace)
            .or_default()
            .insert(meta.name, range);
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
        let at = all.partition_point(|other| other.name() < meta.name.as_str());
        all.insert(at, EnforcedQuota::new(quota));
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

    fn add_object(&mut self, request: Request) -> Arc<Object> {
        let object = Arc::new(request.object);
        self.objects.push(Counted {
            resource: request.resource,
            object: Arc::clone(&object),
        });
        object
    }

    /// Counts what the objects added so far use of the quotas without status, and makes these enforce what they want.
    pub fn count(&mut self) {
        let counts = Counts::of(&self.objects, &self.cluster);
        for enforced in self.quotas.values_mut().flatten() {
            if enforced.is_without_status() {
                let mut quota = enforced.current();
                quota.status.used = counts.used(&quota);
                quota.status.hard = quota.spec.hard.clone();
                *enforced = EnforcedQuota::new(quota);
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

    /// The names that are taken, where the request is about.
    fn names_beside(&mut self, request: &Request) -> Option<&mut BTreeSet<String>> {
        let of_resource = self.names.get_mut(&request.resource)?;
        of_resource.get_mut(&request.namespace)
    }

    /// # Errors
    /// If there is an object of that kind, namespace and name.
    fn take_name(&mut self, request: &Request) -> Result<(), Refusal> {
        let name = request.object.meta().name.clone();
        let is_new = if let Some(names) = self.names_beside(request) {
            names.insert(name)
        } else {
            let of_resource = self.names.entry(request.resource.clone()).or_default();
            let names = of_resource.entry(request.namespace.clone()).or_default();
            names.insert(name)
        };
        if is_new { Ok(()) } else { Err(exists(request)) }
    }

    /// The object does not come to be after all.
    fn leave_name(&mut self, request: &Request) {
        if let Some(names) = self.names_beside(request) {
            names.remove(&request.object.meta().name);
        }
    }

    /// Asks for a new object.
    ///
    /// # Errors
    /// If the API server would refuse it.
    pub fn admit(&mut self, resource: &str, object: Object) -> Result<Admitted, Refusal> {
        let mut request = self.request(resource, object);
        let mut defaults = Vec::new();
        set_api_defaults(&mut request.object, &mut defaults);
        let namespaced = self
            .ranges
            .get(&request.namespace)
            .into_iter()
            .flat_map(BTreeMap::values);
        let ranges: Vec<&Range> = namespaced.collect();
        for range in &ranges {
            limit_range::fill_request(&mut request, &range.defaults, |filled| {
                defaults.push(range.source_of(filled));
            });
        }
        let given = Ranked::of(&request.object);
        priority::admit(&mut request, &self.classes, Gates::default())?;
        note_priority(given, &request.object, &mut defaults);
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
        let defaulted = ranges.iter().map(|range| &range.range);
        limit_range::validate(&request, defaulted, self.admission)?;
        // The object would be counted and then found to exist; the count is put right soon after.
        self.take_name(&request)?;
        let plugin = Plugin {
            configuration: &self.configuration,
            cluster: &self.cluster,
            admission: self.admission,
        };
        let charges = plugin.validate(&request, &mut Store(&mut self.quotas));
        let charges = charges.inspect_err(|_| self.leave_name(&request))?;
        defaults.sort_by(|a, b| a.field.cmp(&b.field));
        Ok(Admitted {
            object: self.add_object(request),
            defaults,
            charges,
        })
    }

    /// The quotas with what is in use now, by namespace and name.
    pub fn quotas(&self) -> impl Iterator<Item = ResourceQuota> {
        self.quotas.values().flatten().map(EnforcedQuota::current)
    }

    /// What each object counts: made once for all quotas.
    pub fn counts(&self) -> Counts<'_> {
        Counts::of(&self.objects, &self.cluster)
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

impl Range {
    /// `range` is what was given, with the API's defaults.
    fn new(given: &LimitRange, range: LimitRange) -> Self {
        let defaults = range.container_defaults();
        let origins = [(true, &defaults.requests), (false, &defaults.limits)];
        let origins = origins.map(|(is_request, list)| {
            let origin = |name: &String| limit_range::origin(given, is_request, name);
            let found = list.keys().map(|name| Some((name.clone(), origin(name)?)));
            found.flatten().collect()
        });
        Self {
            range,
            defaults,
            origins,
        }
    }

    /// What it has set, and by which of its fields.
    fn source_of(&self, filled: Filled<'_>) -> Defaulted {
        let [requests, limits] = &self.origins;
        let origins = if filled.is_request { requests } else { limits };
        let origin = origins.get(filled.resource).copied();
        let Origin { item, field } = origin.unwrap_or(Origin { item: 0, field: "" });
        Defaulted {
            field: DefaultedField::Container {
                is_init: filled.is_init,
                at: filled.at,
                is_request: filled.is_request,
                resource: filled.resource.to_owned(),
            },
            value: DefaultedValue::Amount(filled.amount.clone()),
            source: Source::LimitRange {
                name: self.range.metadata.name.clone(),
                item,
                field,
            },
        }
    }
}

/// Sets what the API sets by itself, and notes it: requests of containers from their limits, and pod-level values from
/// those of the containers.
fn set_api_defaults(object: &mut Object, defaults: &mut Vec<Defaulted>) {
    let Object::Pod(pod) = object else {
        return object.set_defaults();
    };
    let mut note = |field, amount| {
        defaults.push(Defaulted {
            field,
            value: DefaultedValue::Amount(amount),
            source: Source::Api,
        });
    };
    let spec = &pod.pod.spec;
    for (is_init, containers) in [(false, &spec.containers), (true, &spec.init_containers)] {
        for (at, container) in containers.iter().enumerate() {
            let Resources { requests, limits } = &container.resources;
            let lacking = limits
                .iter()
                .filter(|(name, _)| !requests.contains_key(*name));
            for (resource, limit) in lacking {
                let mut amount = limit.clone();
                amount.round_up(MILLI);
                let field = DefaultedField::Container {
                    is_init,
                    at,
                    is_request: true,
                    resource: resource.clone(),
                };
                note(field, amount);
            }
        }
    }
    let given = spec.resources.clone();
    pod.set_defaults();
    if let (Some(given), Some(now)) = (&given, &pod.pod.spec.resources) {
        for (is_request, given, now) in [
            (true, &given.requests, &now.requests),
            (false, &given.limits, &now.limits),
        ] {
            for (resource, amount) in now.iter().filter(|(name, _)| !given.contains_key(*name)) {
                let field = DefaultedField::Pod {
                    is_request,
                    resource: resource.clone(),
                };
                note(field, amount.clone());
            }
        }
    }
}

/// What a pod says of its priority.
struct Ranked {
    class: String,
    has_priority: bool,
    has_policy: bool,
}

impl Ranked {
    /// `None`: it is no pod.
    fn of(object: &Object) -> Option<Self> {
        let Object::Pod(pod) = object else {
            return None;
        };
        Some(Self {
            class: pod.priority_class_name().to_owned(),
            has_priority: pod.pod.spec.priority.is_some(),
            has_policy: pod.more.spec.preemption_policy.is_some(),
        })
    }
}

/// Notes what the plugin Priority has set.
fn note_priority(given: Option<Ranked>, object: &Object, defaults: &mut Vec<Defaulted>) {
    let (Some(given), Object::Pod(pod)) = (given, object) else {
        return;
    };
    let class = pod.priority_class_name();
    let mut note = |field, value| {
        defaults.push(Defaulted {
            field: DefaultedField::Spec(field),
            value,
            source: Source::PriorityClass {
                name: class.to_owned(),
            },
        });
    };
    if given.class != class {
        note("priorityClassName", DefaultedValue::Text(class.to_owned()));
    }
    if let (false, Some(priority)) = (given.has_priority, pod.pod.spec.priority) {
        note("priority", DefaultedValue::Number(priority));
    }
    if let (false, Some(policy)) = (given.has_policy, &pod.more.spec.preemption_policy) {
        note("preemptionPolicy", DefaultedValue::Text(policy.clone()));
    }
}
