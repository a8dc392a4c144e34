//! What was made of the objects of files: for people and for programs.

use plimsoll_core::kube::admission::chain::Admitted;
use plimsoll_core::kube::admission::object::Object;
use plimsoll_core::kube::admission::pod_object::PodObject;
use plimsoll_core::kube::admission::request::Refusal;
use serde_json::{Value, json};

use super::{Line, Outcome};
use crate::host::shown::Show as _;
use crate::input::manifests::dry_run::{Row, Verdict};

/// `Pod team-a/web`.
pub(crate) fn label(row: &Row) -> String {
    let kind = &row.source.kind;
    match (row.namespace.as_str(), row.name.as_str()) {
        (_, "") => kind.clone(),
        ("", name) => format!("{kind} {name}"),
        (namespace, name) => format!("{kind} {namespace}/{name}"),
    }
}

/// `FILE:LINE` of a field, or of the document.
fn place(row: &Row, field: &str) -> String {
    format!("{}:{}", row.source.file.shown(), row.source.line_of(field))
}

/// An object, for people.
pub(crate) fn line(row: &Row) -> Line<'_> {
    let outcome = match &row.verdict {
        Verdict::Admitted(admitted) => Outcome::Admitted(admitted),
        Verdict::InForce => Outcome::InForce,
        Verdict::Existing => Outcome::Existing,
        Verdict::Refused(refusal) => Outcome::Refused {
            message: &refusal.message,
            causes: causes(row, refusal),
        },
        Verdict::LeftOut(why) => Outcome::LeftOut(why),
    };
    // A second default class is refused without naming the field.
    let field = match &row.verdict {
        Verdict::Refused(refusal)
            if row.source.kind == "PriorityClass"
                && refusal.errors.is_empty()
                && refusal.reason == "Forbidden" =>
        {
            "globalDefault"
        }
        _ => "",
    };
    Line {
        label: label(row),
        place: place(row, field),
        outcome,
    }
}

/// The causes of a refusal that name a field, each with its line.
fn causes(row: &Row, refusal: &Refusal) -> Vec<String> {
    let errors = refusal.errors.iter();
    errors
        .map(|error| format!("{}: {error}", place(row, &error.field)))
        .collect()
}

/// An object, for programs.
pub(crate) fn json(row: &Row) -> Value {
    let mut value = json!({
        "kind": row.source.kind,
        "name": row.name,
        "file": row.source.file.shown().to_string(),
        "line": row.source.line(),
    });
    if !row.namespace.is_empty() {
        value["namespace"] = json!(row.namespace);
    }
    let more = match &row.verdict {
        Verdict::Admitted(admitted) => json!({
            "verdict": "Admitted",
            "defaults": admitted.defaults,
            "charges": admitted.charges,
            "object": kept(row, admitted),
        }),
        Verdict::InForce => json!({"verdict": "InForce"}),
        Verdict::Existing => json!({"verdict": "Exists"}),
        Verdict::LeftOut(why) => json!({"verdict": "LeftOut", "why": why}),
        Verdict::Refused(refusal) => {
            let errors = refusal.errors.iter();
            let errors: Vec<Value> = errors
                .map(|error| {
                    let line = row.source.line_of(&error.field);
                    json!({"type": error.kind.as_str(), "field": error.field, "line": line, "message": error.to_string()})
                })
                .collect();
            json!({
                "verdict": "Refused",
                "code": refusal.code,
                "reason": refusal.reason,
                "message": refusal.message,
                "refusedBy": refusal.refused_by,
                "causes": refusal.causes,
                "errors": errors,
            })
        }
    };
    if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
        value.extend(more);
    }
    value
}

/// The document with what admission has set.
fn kept(row: &Row, admitted: &Admitted) -> Value {
    let mut document = row.source.json();
    let meta = admitted.object.meta();
    document["metadata"]["name"] = json!(meta.name);
    document["metadata"]["namespace"] = json!(meta.namespace);
    if let Object::Pod(pod) = &*admitted.object {
        set_pod(&mut document, pod);
    }
    document
}

fn set_pod(document: &mut Value, pod: &PodObject) {
    let spec = &pod.pod.spec;
    if let Some(fields) = document.as_object_mut() {
        fields.remove("status"); // a client's is dropped on creation
    }
    if !pod.meta().annotations.is_empty() {
        document["metadata"]["annotations"] = json!(pod.meta().annotations);
    }
    for (list, containers) in [
        ("containers", &spec.containers),
        ("initContainers", &spec.init_containers),
    ] {
        for (at, container) in containers.iter().enumerate() {
            if let Some(given) = document.pointer_mut(&format!("/spec/{list}/{at}")) {
                set_amounts(&mut given["resources"], &json!(container.resources));
            }
        }
    }
    if let Some(level) = &spec.resources {
        set_amounts(&mut document["spec"]["resources"], &json!(level));
    }
    for (field, value) in [
        ("priorityClassName", json!(spec.priority_class_name)),
        ("priority", json!(spec.priority)),
        ("preemptionPolicy", json!(pod.more.spec.preemption_policy)),
    ] {
        if !value.is_null() {
            document["spec"][field] = value;
        }
    }
}

/// Sets requests and limits, and leaves the rest.
fn set_amounts(resources: &mut Value, amounts: &Value) {
    for list in ["requests", "limits"] {
        if let Some(amounts) = amounts.get(list) {
            resources[list] = amounts.clone();
        }
    }
}
