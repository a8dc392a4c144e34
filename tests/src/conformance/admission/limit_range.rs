//! `admission_limit_range`: the plugin LimitRanger whole, and LimitRanges themselves.

use plimsoll_core::kube::admission::Admission;
use plimsoll_core::kube::admission::field::FieldError;
use plimsoll_core::kube::admission::limit_range::{self, validate};
use plimsoll_core::kube::admission::object::{LimitRange, Object};
use plimsoll_core::kube::admission::request::{Operation, Phase, Request};
use plimsoll_core::kube::admission::{claim_rules, pod_rules};
use serde_json::{Map, Value, json};

use super::{Verdict, errors_json, judge, list, pod_json, read, request_of, stage, verdict_json};

pub(in crate::conformance) fn check(vector: &Value) -> Verdict {
    judge(vector, |admission| {
        let input = &vector["in"];
        match input["kind"].as_str() {
            Some("admit") => admit(input, admission),
            Some("limit_range") => object(input, admission),
            other => Err(format!("kind {other:?} is unknown")),
        }
    })
}

fn object(input: &Value, admission: Admission) -> Result<Value, String> {
    let mut range: LimitRange = read(&input["object"])?;
    range.set_defaults();
    let errors = validate::validate(&range, admission);
    let mut out = errors_json(errors, "LimitRange", &range.metadata.name);
    out.insert("defaulted".to_owned(), json!(range.spec.limits));
    Ok(out.into())
}

fn admit(input: &Value, admission: Admission) -> Result<Value, String> {
    let mut request = request_of(input)?;
    let mut ranges: Vec<LimitRange> = list(&input["limit_ranges"])?;
    ranges.iter_mut().for_each(LimitRange::set_defaults);
    let mut out = Map::new();
    out.insert("handled".to_owned(), limit_range::handles(&request).into());
    if input["list_error"] == true {
        let mut refusal = request.forbidden(Phase::Mutate, "etcdserver: request timed out");
        refusal.causes.clear();
        out.insert("stage".to_owned(), stage(refusal.phase));
        verdict_json(&mut out, &Err(refusal));
        return Ok(out.into());
    }
    limit_range::admit(&mut request, &ranges);
    request.generate_name();
    if let Object::Pod(pod) = &request.object {
        out.insert("object".to_owned(), pod_json(pod));
    }
    if limit_range::handles(&request)
        && let Some((kind, errors)) = api_errors(&request)
    {
        let api = errors_json(errors, kind, &request.object.meta().name);
        out.insert("api_validation".to_owned(), api.into());
    }
    let verdict = limit_range::validate(&request, &ranges, admission);
    if let Err(refusal) = &verdict {
        out.insert("stage".to_owned(), stage(refusal.phase));
        out.insert("refused_by".to_owned(), json!(refusal.refused_by));
        out.insert("causes".to_owned(), json!(refusal.causes));
    }
    verdict_json(&mut out, &verdict);
    Ok(out.into())
}

/// The kind, and what the API's validation says.
pub(super) fn api_errors(request: &Request) -> Option<(&'static str, Vec<FieldError>)> {
    let (kind, errors) = match (&request.object, &request.old_object) {
        (Object::Pod(pod), None) => ("Pod", pod_rules::create_errors(pod)),
        (Object::Pod(pod), Some(Object::Pod(old))) if request.subresource == "resize" => {
            ("Pod", pod_rules::resize_errors(pod, old))
        }
        (Object::Pod(pod), Some(Object::Pod(old))) => ("Pod", pod_rules::update_errors(pod, old)),
        (Object::Claim(claim), _) if request.operation == Operation::Create => {
            ("PersistentVolumeClaim", claim_rules::create_errors(claim))
        }
        _ => return None,
    };
    Some((kind, errors))
}
