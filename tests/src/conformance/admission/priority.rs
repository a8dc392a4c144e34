//! `priority`: the plugin Priority whole, for pods, pod groups and classes.

use plimsoll_core::kube::admission::Admission;
use plimsoll_core::kube::admission::object::{Object, PriorityClass};
use plimsoll_core::kube::admission::priority::{self, CLASS_KIND, Gates};
use plimsoll_core::kube::admission::request::{Operation, Request};
use serde_json::{Map, Value, json};

use super::limit_range::api_errors;
use super::{Verdict, errors_json, judge, list, request_of, stage, verdict_json};

pub(in crate::conformance) fn check(vector: &Value) -> Verdict {
    // Upstream lists every outcome that it has shown; without the one of the given order first.
    judge(&without_differences(vector), |admission| {
        admit(&vector["in"], admission).map(first_lines)
    })
}

/// What differs between two pods is printed as Go structs; only the sentence before it is compared.
fn first_lines(mut value: Value) -> Value {
    match &mut value {
        Value::String(text) => {
            if let Some((first, _)) = text.split_once('\n') {
                *text = first.to_owned();
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| *item = first_lines(item.take())),
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|field| *field = first_lines(field.take())),
        _ => {}
    }
    value
}

fn without_differences(vector: &Value) -> Value {
    let mut vector = vector.clone();
    vector["out"] = first_lines(vector["out"].take());
    vector
}

fn admit(input: &Value, _: Admission) -> Result<Value, String> {
    let mut request = request_of(input)?;
    let mut classes: Vec<PriorityClass> = list(&input["priority_classes"])?;
    classes.iter_mut().for_each(PriorityClass::set_defaults);
    let gates = Gates {
        workload_aware_preemption: input["feature_gates"]["WorkloadAwarePreemption"] == true,
    };
    let mut out = Map::new();
    if let Err(refusal) = priority::admit(&mut request, &classes, gates) {
        out.insert("stage".to_owned(), stage(refusal.phase));
        verdict_json(&mut out, &Err(refusal));
        return Ok(out.into());
    }
    request.generate_name();
    if let Some(object) = object_json(&request.object) {
        out.insert("object".to_owned(), object);
    }
    if let Some((kind, errors)) = errors(&request) {
        let api = errors_json(errors, kind, &request.object.meta().name);
        out.insert("api_validation".to_owned(), api.into());
    }
    let verdict = priority::validate(&request, &classes);
    if let Err(refusal) = &verdict {
        out.insert("stage".to_owned(), stage(refusal.phase));
    }
    verdict_json(&mut out, &verdict);
    Ok(out.into())
}

fn errors(
    request: &Request,
) -> Option<(
    &'static str,
    Vec<plimsoll_core::kube::admission::field::FieldError>,
)> {
    match (&request.object, &request.old_object) {
        _ if request.operation == Operation::Delete => None,
        (Object::PriorityClass(class), Some(Object::PriorityClass(old))) => {
            Some((CLASS_KIND, priority::update_errors(class, old)))
        }
        (Object::PriorityClass(class), _) => Some((CLASS_KIND, priority::create_errors(class))),
        (Object::Pod(_), _) if request.subresource.is_empty() => api_errors(request),
        _ => None,
    }
}

fn object_json(object: &Object) -> Option<Value> {
    match object {
        Object::Pod(pod) => Some(json!({
            "priorityClassName": pod.priority_class_name(),
            "priority": pod.pod.spec.priority,
            "preemptionPolicy": pod.more.spec.preemption_policy,
        })),
        Object::PodGroup(group) => Some(json!({
            "priorityClassName": group.spec.priority_class_name,
            "priority": group.spec.priority,
        })),
        Object::PriorityClass(class) => Some(json!({
            "value": class.value,
            "globalDefault": class.global_default,
            "preemptionPolicy": class.preemption_policy,
        })),
        _ => None,
    }
}
