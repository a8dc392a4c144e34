//! LimitRange, ResourceQuota, PriorityClass and the API's resource rules: whole requests, and single functions.
//!
//! Each vector is answered as upstream answers it, and that has to agree to the letter. Where the answer without
//! upstream's defects is another one, the vector counts as a known upstream defect.

pub(super) mod functions;
pub(super) mod limit_range;
pub(super) mod priority;
pub(super) mod resource_names;
pub(super) mod resource_quota;

use plimsoll_core::kube::admission::Admission;
use plimsoll_core::kube::admission::field::FieldError;
use plimsoll_core::kube::admission::object::{GroupResource, Object};
use plimsoll_core::kube::admission::object_meta::ObjectMeta;
use plimsoll_core::kube::admission::pod_object::{MorePod, PodObject};
use plimsoll_core::kube::admission::request::{self, Operation, Phase, Refusal, Request};
use plimsoll_core::kube::pod::{Container, Pod};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::Verdict;

/// Answers as upstream does, compares, and says whether the corrected answer is another one.
fn judge(vector: &Value, answer: impl Fn(Admission) -> Result<Value, String>) -> Verdict {
    let complaint = |why| Verdict::Fail { why };
    let upstream = match answer(Admission::Upstream) {
        Ok(upstream) => upstream,
        Err(why) => return complaint(why),
    };
    if let Err(why) = agrees(&upstream, &vector["out"]) {
        return complaint(why);
    }
    match answer(Admission::Corrected) {
        Ok(corrected) if corrected == upstream => Verdict::Pass,
        Ok(corrected) => Verdict::KnownUpstreamDefect(difference(&corrected, &upstream)),
        Err(why) => complaint(why),
    }
}

/// Whether an answer is the expected one, or that of another order. `other_orders` leave out what is the same in all.
fn agrees(answer: &Value, expected: &Value) -> Result<(), String> {
    let mut first = expected.clone();
    let others = first
        .as_object_mut()
        .and_then(|first| first.remove("other_orders"));
    if *answer == first {
        return Ok(());
    }
    let others = others.as_ref().and_then(Value::as_array);
    let has = |other: &Value| {
        let all = other.as_object().into_iter().flatten();
        let mut own = answer.clone();
        if let Some(own) = own.as_object_mut() {
            own.retain(|name, _| other.get(name).is_some());
        }
        all.count() > 0 && own == *other
    };
    if others.is_some_and(|others| others.iter().any(has)) {
        return Ok(());
    }
    Err(difference(answer, &first))
}

/// The fields that differ.
fn difference(got: &Value, expected: &Value) -> String {
    let empty = Map::new();
    let (got, expected) = (
        got.as_object().unwrap_or(&empty),
        expected.as_object().unwrap_or(&empty),
    );
    let names: std::collections::BTreeSet<_> = got.keys().chain(expected.keys()).collect();
    let differing = names
        .into_iter()
        .filter(|name| got.get(*name) != expected.get(*name));
    let differing = differing.map(|name| {
        let text =
            |map: &Map<String, Value>| map.get(name).map_or("nothing".to_owned(), Value::to_string);
        format!("{name}: got {}, expected {}", text(got), text(expected))
    });
    differing.collect::<Vec<_>>().join("; ")
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_value(value.clone()).map_err(|error| format!("cannot read {value}: {error}"))
}

/// A list of objects; absent is empty.
fn list<T: DeserializeOwned>(value: &Value) -> Result<Vec<T>, String> {
    if value.is_null() {
        Ok(Vec::new())
    } else {
        read(value)
    }
}

fn pod(value: &Value) -> Result<PodObject, String> {
    let (pod, more): (Pod, MorePod) = (read(value)?, read(value)?);
    Ok(PodObject::new(pod, more))
}

/// An object of a resource, without the API's defaults.
fn object(resource: &GroupResource, value: &Value) -> Result<Object, String> {
    Ok(match resource.to_string().as_str() {
        "pods" => Object::Pod(Box::new(pod(value)?)),
        "persistentvolumeclaims" => Object::Claim(read(value)?),
        "services" => Object::Service(read(value)?),
        "resourceclaims.resource.k8s.io" => Object::ResourceClaim(read(value)?),
        "priorityclasses.scheduling.k8s.io" => Object::PriorityClass(read(value)?),
        "podgroups.scheduling.k8s.io" => Object::PodGroup(read(value)?),
        _ => Object::Other(Box::new(read::<ObjectMeta>(&value["metadata"])?)),
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The request of a vector, with the API's defaults.
fn request_of(input: &Value) -> Result<Request, String> {
    let resource = GroupResource::parse(text(&input["resource"]));
    let with_defaults = |value: &Value| {
        let mut object = object(&resource, value)?;
        object.set_defaults();
        Ok::<_, String>(object)
    };
    let new = with_defaults(&input["object"])?;
    let old_object = match &input["old_object"] {
        Value::Null => None,
        old => Some(with_defaults(old)?),
    };
    Ok(Request {
        operation: match text(&input["operation"]) {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            "DELETE" => Operation::Delete,
            other => return Err(format!("operation {other:?} is unknown")),
        },
        namespace: new.meta().namespace.clone(),
        resource,
        subresource: text(&input["subresource"]).to_owned(),
        object: new,
        old_object,
        dry_run: input["dry_run"].as_bool().unwrap_or(false),
    })
}

/// What the API's validation says, as vectors have it.
fn errors_json(errors: Vec<FieldError>, kind: &str, name: &str) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("valid".to_owned(), errors.is_empty().into());
    if errors.is_empty() {
        return out;
    }
    let refusal = request::invalid(kind, name, errors);
    out.insert("errors".to_owned(), error_list(&refusal.errors));
    out.insert("code".to_owned(), refusal.code.into());
    out.insert("reason".to_owned(), refusal.reason.into());
    out.insert("message".to_owned(), refusal.message.into());
    out
}

fn error_list(errors: &[FieldError]) -> Value {
    let error = |error: &FieldError| json!({"type": error.kind.as_str(), "field": error.field, "message": error.to_string()});
    errors.iter().map(error).collect()
}

/// A verdict as vectors have it.
fn verdict_json(out: &mut Map<String, Value>, verdict: &Result<(), Refusal>) {
    out.insert("allowed".to_owned(), verdict.is_ok().into());
    if let Err(refusal) = verdict {
        out.insert("code".to_owned(), refusal.code.into());
        out.insert("reason".to_owned(), refusal.reason.into());
        out.insert("message".to_owned(), refusal.message.clone().into());
    }
}

fn stage(phase: Phase) -> Value {
    match phase {
        Phase::Mutate => "mutate".into(),
        Phase::Api => "api".into(),
        Phase::Validate => "validate".into(),
    }
}

/// A pod's resources and annotations.
fn pod_json(pod: &PodObject) -> Value {
    let mut out = Map::new();
    let more = &pod.more.spec;
    let containers = |all: &[Container], claims: &dyn Fn(usize) -> Value| -> Value {
        let one = |(at, container): (usize, &Container)| {
            let mut resources = json!(container.resources);
            if !claims(at).is_null() {
                resources["claims"] = claims(at);
            }
            json!({"name": container.name, "resources": resources})
        };
        all.iter().enumerate().map(one).collect()
    };
    let claims = |all: &[plimsoll_core::kube::admission::pod_object::MoreContainer], at: usize| {
        all.get(at)
            .map_or(Value::Null, |more| json!(more.resources.claims))
    };
    let spec = &pod.pod.spec;
    out.insert(
        "containers".to_owned(),
        containers(&spec.containers, &|at| claims(&more.containers, at)),
    );
    for (name, all) in [
        ("initContainers", &spec.init_containers),
        ("ephemeralContainers", &more.ephemeral_containers),
    ] {
        if !all.is_empty() {
            let of = |at| {
                if name == "initContainers" {
                    claims(&more.init_containers, at)
                } else {
                    Value::Null
                }
            };
            out.insert(name.to_owned(), containers(all, &of));
        }
    }
    if let Some(level) = &spec.resources {
        let mut level = json!(level);
        if let Some(claims) = &more.resources.claims {
            level["claims"] = json!(claims);
        }
        out.insert("resources".to_owned(), level);
    }
    if !pod.meta().annotations.is_empty() {
        out.insert("annotations".to_owned(), json!(pod.meta().annotations));
    }
    out.into()
}
