//! The plugin LimitRanger: defaults of containers' requests and limits, and bounds on them.
//!
//! Source: `plugin/pkg/admission/limitranger/admission.go` and `SetDefaults_LimitRangeItem` of 1.36.

pub mod bounds;
pub mod validate;

use super::Admission;
use super::field::aggregate;
use super::object::{LimitRange, LimitRangeItem, Object};
use super::pod_object::{PodObject, round_to_milli};
use super::request::{Operation, Phase, Refusal, Request};
use crate::kube::pod::Resources;
use crate::kube::quantity::Quantity;
use crate::kube::resources::ResourceList;

/// The item type for containers.
pub const CONTAINER: &str = "Container";
/// The item type for pods as a whole.
pub const POD: &str = "Pod";
/// The item type for claims.
pub const CLAIM: &str = "PersistentVolumeClaim";

/// Where the plugin notes what it has set.
pub const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// What the note begins with.
const PREFIX: &str = "LimitRanger plugin set: ";

/// About as long is a note.
const NOTE_BYTES: usize = 192;

/// Adds what `from` has and `to` lacks.
fn fill(to: &mut ResourceList, from: &ResourceList) {
    for (name, quantity) in from {
        if !to.contains_key(name) {
            to.insert(name.clone(), quantity.clone());
        }
    }
}

impl LimitRangeItem {
    /// Sets what the API sets by itself, without rounding: the default limit from the maximum, the default request from
    /// the default limit, else from the minimum. Only for containers.
    pub fn fill_defaults(&mut self) {
        if self.kind == CONTAINER {
            fill(&mut self.default, &self.max);
            fill(&mut self.default_request, &self.default);
            fill(&mut self.default_request, &self.min);
        }
    }
}

impl LimitRange {
    /// Sets what the API sets by itself when it reads the object.
    pub fn set_defaults(&mut self) {
        for item in &mut self.spec.limits {
            item.fill_defaults();
            for list in [
                &mut item.max,
                &mut item.min,
                &mut item.default,
                &mut item.default_request,
                &mut item.max_limit_request_ratio,
            ] {
                round_to_milli(list);
            }
        }
    }

    /// What containers without get: the last item that names a resource decides.
    pub fn container_defaults(&self) -> Resources {
        let mut defaults = Resources::default();
        for item in self
            .spec
            .limits
            .iter()
            .filter(|item| item.kind == CONTAINER)
        {
            defaults.requests.extend(item.default_request.clone());
            defaults.limits.extend(item.default.clone());
        }
        defaults
    }
}

/// Whether the plugin looks at the request at all.
pub fn handles(request: &Request) -> bool {
    if !matches!(request.operation, Operation::Create | Operation::Update) {
        return false;
    }
    let is_pod = request.resource.is("pods");
    match (request.subresource.as_str(), request.operation) {
        ("resize", Operation::Update) => is_pod,
        // The containers of a pod cannot be changed otherwise.
        ("", Operation::Update) => request.resource.is("persistentvolumeclaims"),
        ("", _) => is_pod || request.resource.is("persistentvolumeclaims"),
        _ => false,
    }
}

/// Whether the object is on its way out; then nothing is checked any more.
fn is_leaving(request: &Request) -> bool {
    let old = request.old_object.as_ref();
    old.is_some_and(|old| old.meta().deletion_timestamp.is_some())
}

/// The mutating phase: containers get the requests and limits that they lack.
pub fn admit<'a>(request: &mut Request, ranges: impl IntoIterator<Item = &'a LimitRange>) {
    if !handles(request) || is_leaving(request) {
        return;
    }
    if let Object::Pod(pod) = &mut request.object {
        for range in ranges {
            default_pod(range, pod);
        }
    }
}

/// An amount that a LimitRange has set in a container.
#[derive(Debug, Clone, Copy)]
pub struct Filled<'a> {
    /// Whether it is an init container.
    pub is_init: bool,
    /// Its place in its list, from 0.
    pub at: usize,
    /// Whether it is a request; else a limit.
    pub is_request: bool,
    /// Of which resource.
    pub resource: &'a str,
    /// How much.
    pub amount: &'a Quantity,
}

/// The same with the defaults of one LimitRange, made before; `filled` hears of each amount.
pub fn fill_request(request: &mut Request, defaults: &Resources, filled: impl FnMut(Filled<'_>)) {
    if !handles(request) || is_leaving(request) {
        return;
    }
    if let Object::Pod(pod) = &mut request.object {
        fill_pod(defaults, pod, filled);
    }
}

/// Sets what one LimitRange sets, and notes it in the pod's annotation (`PodMutateLimitFunc`).
pub fn default_pod(range: &LimitRange, pod: &mut PodObject) {
    fill_pod(&range.container_defaults(), pod, |_| {});
}

fn fill_pod(defaults: &Resources, pod: &mut PodObject, mut filled: impl FnMut(Filled<'_>)) {
    let mut note = String::new();
    let spec = &mut pod.pod.spec;
    let containers = spec.containers.iter_mut().enumerate();
    let init = spec.init_containers.iter_mut().enumerate();
    let all = containers
        .map(|numbered| (false, numbered))
        .chain(init.map(|numbered| (true, numbered)));
    for (is_init, (at, container)) in all {
        let what = if is_init {
            "init container"
        } else {
            "container"
        };
        let resources = &mut container.resources;
        for (is_request, list, default) in [
            (true, &mut resources.requests, &defaults.requests),
            (false, &mut resources.limits, &defaults.limits),
        ] {
            let mut between = if note.is_empty() { PREFIX } else { "; " };
            let before = note.len();
            for (resource, amount) in default {
                if !list.contains_key(resource) {
                    list.insert(resource.clone(), amount.clone());
                    filled(Filled {
                        is_init,
                        at,
                        is_request,
                        resource,
                        amount,
                    });
                    if note.is_empty() {
                        note.reserve(NOTE_BYTES);
                    }
                    note.push_str(between);
                    note.push_str(resource);
                    between = ", ";
                }
            }
            if note.len() > before {
                let list = if is_request { "request" } else { "limit" };
                for part in [" ", list, " for ", what, " ", &container.name] {
                    note.push_str(part);
                }
            }
        }
    }
    if !note.is_empty() {
        pod.more
            .metadata
            .annotations
            .insert(ANNOTATION.to_owned(), note);
    }
}

/// The validating phase: the first LimitRange with a cause refuses, and names its own causes only.
///
/// # Errors
/// If a LimitRange does not allow the object.
pub fn validate<'a>(
    request: &Request,
    ranges: impl IntoIterator<Item = &'a LimitRange>,
    admission: Admission,
) -> Result<(), Refusal> {
    if !handles(request) || is_leaving(request) {
        return Ok(());
    }
    for range in ranges {
        let causes = causes(&request.object, range, admission);
        if !causes.is_empty() {
            let mut refusal = request
                .forbidden(Phase::Validate, &aggregate(&causes))
                .by(&range.metadata.name);
            refusal.causes = causes;
            return Err(refusal);
        }
    }
    Ok(())
}

/// What one LimitRange says against an object: each text once, sorted.
pub fn causes(object: &Object, range: &LimitRange, admission: Admission) -> Vec<String> {
    let items = range.spec.limits.iter();
    let mut causes: Vec<String> = match object {
        Object::Pod(pod) => items
            .flat_map(|item| bounds::of_pod(item, &pod.pod, admission))
            .collect(),
        Object::Claim(claim) => items
            .filter(|item| item.kind == CLAIM)
            .flat_map(|item| bounds::of_claim(item, &claim.spec.resources.requests, admission))
            .collect(),
        _ => Vec::new(),
    };
    causes.sort_unstable();
    causes.dedup();
    causes
}

/// From which field of a LimitRange a container's default comes, in a chain such as `defaultRequest`, `default`, `max`.
pub fn origin(raw: &LimitRange, is_request: bool, resource: &str) -> Option<Origin> {
    let items = raw.spec.limits.iter().enumerate().rev();
    let mut items = items.filter(|(_, item)| item.kind == CONTAINER);
    items.find_map(|(at, item)| {
        let limit = [("default", &item.default), ("max", &item.max)];
        let request = [
            ("defaultRequest", &item.default_request),
            ("default", &item.default),
            ("max", &item.max),
            ("min", &item.min),
        ];
        let fields = if is_request { &request[..] } else { &limit[..] };
        let field = fields.iter().find(|(_, list)| list.contains_key(resource));
        field.map(|(field, _)| Origin { item: at, field })
    })
}

/// A field of a LimitRange's item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Index in `spec.limits`.
    pub item: usize,
    /// The field that the object itself has.
    pub field: &'static str,
}
