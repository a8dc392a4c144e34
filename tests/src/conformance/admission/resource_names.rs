//! `resource_names`: what the API refuses in the resources of containers and pods.

use plimsoll_core::kube::admission::pod_object::ClaimReference;
use plimsoll_core::kube::admission::resource_rules::{self, Options, Owner};
use plimsoll_core::kube::admission::{field, pod_rules};
use plimsoll_core::kube::pod::Resources;
use serde_json::{Map, Value};

use super::{Verdict, error_list, errors_json, judge, list, pod, pod_json, read};

pub(in crate::conformance) fn check(vector: &Value) -> Verdict {
    judge(vector, |_| {
        let input = &vector["in"];
        match input["kind"].as_str() {
            Some("container") => container(input),
            Some("pod") => whole(input),
            other => Err(format!("kind {other:?} is unknown")),
        }
    })
}

fn container(input: &Value) -> Result<Value, String> {
    let resources: Resources = read(&input["resources"])?;
    let claims: Vec<ClaimReference> = list(&input["resources"]["claims"])?;
    let pod_claims: Vec<String> = list(&input["pod_claims"])?;
    let options = Options {
        pod_claims: &pod_claims,
        parts_of_huge_pages: false,
    };
    let mut errors = Vec::new();
    resource_rules::requirement_errors(
        &resources,
        &claims,
        Owner::Container,
        "resources",
        options,
        &mut errors,
    );
    let mut out = Map::new();
    out.insert("valid".to_owned(), errors.is_empty().into());
    if !errors.is_empty() {
        out.insert("errors".to_owned(), error_list(&field::sorted(errors)));
    }
    Ok(out.into())
}

fn whole(input: &Value) -> Result<Value, String> {
    let mut pod = pod(&input["object"])?;
    pod.set_defaults();
    let mut out = errors_json(pod_rules::create_errors(&pod), "Pod", &pod.meta().name);
    out.insert("object".to_owned(), pod_json(&pod));
    Ok(out.into())
}
