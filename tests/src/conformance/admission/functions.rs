//! `limit_range` and `resource_quota`: single functions of the plugins, and the recalculation of usage.
//!
//! Objects have the API's defaults but are not rounded to thousandths. Texts are compared, too.

use plimsoll_core::kube::admission::Admission;
use std::sync::Arc;

use plimsoll_core::kube::admission::limit_range::{self, ANNOTATION};
use plimsoll_core::kube::admission::object::{
    GroupResource, LimitRange, LimitRangeItem, Object, ResourceQuota,
};
use plimsoll_core::kube::admission::pod_object::PodObject;
use plimsoll_core::kube::admission::request::{Operation, Request};
use plimsoll_core::kube::admission::resource_quota::cluster::Cluster;
use plimsoll_core::kube::admission::resource_quota::configuration::{
    Configuration, LimitedResource,
};
use plimsoll_core::kube::admission::resource_quota::evaluator::Evaluator;
use plimsoll_core::kube::admission::resource_quota::recalculate::{self, Counted};
use plimsoll_core::kube::admission::resource_quota::scope::Facts;
use plimsoll_core::kube::admission::resource_quota::{EnforcedQuota, Plugin};
use plimsoll_core::kube::pod::Container;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::kube::resources::ResourceList;
use plimsoll_core::kube::time::Time;
use serde_json::{Map, Value, json};

use super::{Verdict, list, object, pod, read, text};
use crate::conformance::pods::{
    add_overhead_to_shared_limits, add_overhead_to_shared_requests, resource_errors,
};
use crate::conformance::same;

pub(in crate::conformance) fn limit_range(vector: &Value) -> Verdict {
    Verdict::of(ranges(vector))
}

pub(in crate::conformance) fn resource_quota(vector: &Value) -> Verdict {
    match vector["kind"].as_str() {
        Some("usage") => Verdict::of(usage(vector)),
        Some("pod_create") => {
            let answer = |admission, shared| pod_create(vector, admission, shared);
            match answer(Admission::Upstream, Decimals::Copied) {
                Ok(()) => match answer(Admission::Corrected, Decimals::Copied) {
                    Ok(()) => Verdict::Pass,
                    Err(why) => Verdict::KnownUpstreamDefect(why),
                },
                Err(why) => match answer(Admission::Upstream, Decimals::Shared) {
                    Ok(()) => Verdict::KnownUpstreamDefect(
                        "overhead was added to a shared decimal more than once".to_owned(),
                    ),
                    Err(_) => Verdict::Fail { why },
                },
            }
        }
        other => Verdict::Fail {
            why: format!("kind {other:?} is unknown"),
        },
    }
}

/// Lists equal by value; no list is an empty one.
fn same_list(what: &str, actual: &ResourceList, expected: &Value) -> Result<(), String> {
    let expected: ResourceList = if expected.is_null() {
        ResourceList::new()
    } else {
        read(expected)?
    };
    same(what, actual, &expected)
}

fn ranges(vector: &Value) -> Result<(), String> {
    let mut ranges: Vec<LimitRange> = list(&vector["limit_ranges"])?;
    for (range, expected) in ranges.iter_mut().zip(
        vector["limit_ranges_defaulted"]
            .as_array()
            .into_iter()
            .flatten(),
    ) {
        range
            .spec
            .limits
            .iter_mut()
            .for_each(LimitRangeItem::fill_defaults);
        for (at, item) in range.spec.limits.iter().enumerate() {
            let expected = &expected[at];
            same("type", &item.kind.as_str(), &text(&expected["type"]))?;
            same_list("default", &item.default, &expected["default"])?;
            same_list(
                "default_request",
                &item.default_request,
                &expected["default_request"],
            )?;
            same_list("max", &item.max, &expected["max"])?;
            same_list("min", &item.min, &expected["min"])?;
            let ratio = &expected["max_limit_request_ratio"];
            same_list(
                "max_limit_request_ratio",
                &item.max_limit_request_ratio,
                ratio,
            )?;
        }
    }
    let object = match vector["kind"].as_str() {
        Some("pod") => Object::Pod(Box::new(mutated(vector, &ranges)?)),
        _ => Object::Claim(read(&vector["pvc"])?),
    };
    let refused = ranges.iter().enumerate().find_map(|(at, range)| {
        let causes = limit_range::causes(&object, range, Admission::Upstream);
        (!causes.is_empty()).then_some((at, causes))
    });
    same(
        "admit",
        &refused.is_none(),
        &vector["admit"].as_bool().unwrap_or(true),
    )?;
    let (at, causes) = match refused {
        Some((at, causes)) => (json!(at), causes),
        None => (Value::Null, Vec::new()),
    };
    same("failed_limit_range", &at, &vector["failed_limit_range"])?;
    let mut expected: Vec<String> = list(&vector["errors"])?;
    expected.sort_unstable();
    expected.dedup();
    same("errors", &causes, &expected)
}

/// The pod after API defaulting and after the plugin.
fn mutated(vector: &Value, ranges: &[LimitRange]) -> Result<PodObject, String> {
    let mut pod = pod(&vector["pod"])?;
    pod.pod.set_defaults();
    // Upstream's copies share their maps, so that what the plugin set is often in this one, too.
    compare_pod(
        "after_api_defaulting",
        &pod,
        &vector["after_api_defaulting"],
        &vector["after_limit_ranger"],
    )?;
    for range in ranges {
        limit_range::default_pod(range, &mut pod);
    }
    compare_pod(
        "after_limit_ranger",
        &pod,
        &vector["after_limit_ranger"],
        &Value::Null,
    )?;
    let note = pod
        .meta()
        .annotations
        .get(ANNOTATION)
        .map_or("", String::as_str);
    same("annotation", &note, &text(&vector["annotation"]))?;
    same(
        "qos_after",
        &QosClass::of(&pod.pod).as_str(),
        &text(&vector["qos_after"]),
    )?;
    let valid = resource_errors(&pod.pod).is_empty();
    same(
        "resources_valid_after",
        &valid,
        &(vector["resources_valid_after"] == true),
    )?;
    Ok(pod)
}

/// Compares with `expected`; a list that is not `expected`'s may be one of `or`, if `expected` has that, too.
fn compare_pod(what: &str, pod: &PodObject, expected: &Value, or: &Value) -> Result<(), String> {
    let spec = &pod.pod.spec;
    let containers = |name: &str, all: &[Container]| {
        let or = &or[name];
        let expected = expected[name].as_array().map_or(&[][..], Vec::as_slice);
        same(
            &format!("{what}: number of {name}"),
            &all.len(),
            &expected.len(),
        )?;
        for (at, (container, expected)) in all.iter().zip(expected).enumerate() {
            let what = format!("{what}: {}", container.name);
            same(&what, &container.name.as_str(), &text(&expected["name"]))?;
            for (field, list) in [
                ("requests", &container.resources.requests),
                ("limits", &container.resources.limits),
            ] {
                let equal = same_list(&what, list, &expected[field]);
                let all: ResourceList = read::<Option<_>>(&expected[field])?.unwrap_or_default();
                let is_part = list
                    .iter()
                    .all(|(name, quantity)| all.get(name) == Some(quantity));
                if !(is_part && expected[field] == or[at][field]) {
                    equal?;
                }
            }
        }
        Ok::<_, String>(())
    };
    containers("containers", &spec.containers)?;
    containers("init_containers", &spec.init_containers)?;
    let level = spec.resources.clone().unwrap_or_default();
    let expected = &expected["pod_level_resources"];
    same_list(what, &level.requests, &expected["requests"])?;
    same_list(what, &level.limits, &expected["limits"])
}

/// The resource of a kind.
fn resource_of(kind: &str) -> Result<GroupResource, String> {
    Ok(GroupResource::parse(match kind {
        "Pod" => "pods",
        "Service" => "services",
        "PersistentVolumeClaim" => "persistentvolumeclaims",
        "ConfigMap" => "configmaps",
        "Secret" => "secrets",
        "ReplicationController" => "replicationcontrollers",
        "ResourceQuota" => "resourcequotas",
        "Deployment" => "deployments.apps",
        other => return Err(format!("objects of kind {other:?} are not expected here")),
    }))
}

fn usage(vector: &Value) -> Result<(), String> {
    let quota: ResourceQuota = read(&vector["quota"])?;
    let mut objects = Vec::new();
    for value in vector["objects"].as_array().into_iter().flatten() {
        let resource = resource_of(text(&value["kind"]))?;
        let mut object = object(&resource, value)?;
        if let Object::Pod(pod) = &mut object {
            pod.pod.set_defaults();
        }
        objects.push(Counted {
            resource,
            object: Arc::new(object),
        });
    }
    let cluster = Cluster {
        now: Time::parse(text(&vector["now"])).map_err(|error| error.to_string())?,
        ..Cluster::default()
    };
    let used = recalculate::used(&quota, &objects, &cluster);
    let milli: Map<String, Value> = used
        .iter()
        .map(|(name, quantity)| (name.clone(), quantity.milli_value().to_string().into()))
        .collect();
    same("used_milli", &Value::Object(milli), &vector["used_milli"])?;
    for (name, text) in vector["used"].as_object().into_iter().flatten() {
        // Where the notation depends on the order of a list there is none.
        if let (Some(text), Some(quantity)) = (text.as_str(), used.get(name)) {
            same(
                &format!("used {name}"),
                &quantity.to_string().as_str(),
                &text,
            )?;
        }
    }
    Ok(())
}

/// Whether big decimals of a pod are shared with what is computed from it, as upstream has it.
#[derive(Clone, Copy, PartialEq)]
enum Decimals {
    Copied,
    Shared,
}

/// The pod as the plugin counts it last: its usage was asked for `pod_usage` before, and is asked by the plugin once
/// more if something is limited by default (`CheckRequest`).
fn counted_before(mut pod: PodObject, limited_resources: &[LimitedResource]) -> PodObject {
    let is_limited =
        |limited: &LimitedResource| limited.resource == "pods" && limited.api_group.is_empty();
    let times = if limited_resources.iter().any(is_limited) {
        2
    } else {
        1
    };
    for _ in 0..times {
        add_overhead_to_shared_requests(&mut pod.pod);
        add_overhead_to_shared_limits(&mut pod.pod);
    }
    pod
}

fn pod_create(vector: &Value, admission: Admission, decimals: Decimals) -> Result<(), String> {
    let mut pod = pod(&vector["pod"])?;
    pod.pod.set_defaults();
    let limited_resources: Vec<LimitedResource> = list(&vector["limited_resources"])?;
    let cluster = Cluster::default();
    let usage = Evaluator::Pods.usage(&Object::Pod(Box::new(pod.clone())), &cluster);
    same_list("pod_usage", &(&usage).into(), &vector["pod_usage"])?;
    if decimals == Decimals::Shared {
        pod = counted_before(pod, &limited_resources);
    }
    let request = Request {
        operation: Operation::Create,
        resource: GroupResource::parse("pods"),
        subresource: String::new(),
        namespace: pod.meta().namespace.clone(),
        object: Object::Pod(Box::new(pod)),
        old_object: None,
        dry_run: false,
    };
    let configuration = Configuration {
        limited_resources,
        ..Configuration::default()
    };
    let quotas: Vec<ResourceQuota> = list(&vector["quotas"])?;
    let enforced: Vec<EnforcedQuota> = quotas.iter().cloned().map(EnforcedQuota::new).collect();
    let facts = Facts::of(&request.object);
    let matches = enforced
        .iter()
        .map(|quota| quota.applies(&Evaluator::Pods, &facts, &cluster));
    let matches: Result<Vec<bool>, _> = matches.collect();
    let matches = matches.map_err(|error| error.to_string())?;
    same("quota_matches", &json!(matches), &vector["quota_matches"])?;
    let plugin = Plugin {
        configuration: &configuration,
        cluster: &cluster,
        admission,
    };
    let borrowed: Vec<&EnforcedQuota> = enforced.iter().collect();
    match plugin.check(&request, &borrowed) {
        Ok(charges) => {
            same("admit", &true, &(vector["admit"] == true))?;
            let expected = vector["new_used"].as_array().map_or(&[][..], Vec::as_slice);
            same("number of quotas", &quotas.len(), &expected.len())?;
            for (mut quota, expected) in enforced.into_iter().zip(expected) {
                let mut charges = charges.iter();
                let charge = charges.find(|charge| charge.quota == quota.name());
                if let Some(charge) = charge {
                    quota.add(&charge);
                }
                same_list("new_used", &quota.current().status.used, expected)?;
            }
            Ok(())
        }
        Err(refusal) => {
            same("admit", &false, &(vector["admit"] == true))?;
            same(
                "message",
                &refusal.message.as_str(),
                &text(&vector["message"]),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1.5Gi is a big decimal: `PodRequests` and `PodLimits` of 1.36.2 return 1.5Gi and 1Gi, then 2Gi, then 3Gi of
    /// overhead.
    #[test]
    fn a_pod_that_is_counted_again_has_more_overhead() {
        let vector = |used: &str, limited: Value| {
            let list = json!({"cpu": "1", "memory": "1.5Gi"});
            let hard = json!({"requests.memory": "100Gi", "limits.memory": "100Gi"});
            let usage = json!({
                "count/pods": "1", "pods": "1", "cpu": "1", "requests.cpu": "1", "limits.cpu": "1",
                "memory": "2560Mi", "requests.memory": "2560Mi", "limits.memory": "2560Mi",
            });
            json!({
                "kind": "pod_create",
                "pod": {"metadata": {"name": "p", "namespace": "ns"}, "spec": {
                    "containers": [{"name": "c"}], "overhead": {"memory": "1Gi"},
                    "resources": {"requests": list, "limits": list},
                }},
                "limited_resources": limited, "pod_usage": usage, "quota_matches": [true],
                "quotas": [{"metadata": {"name": "q", "namespace": "ns"}, "spec": {"hard": hard},
                    "status": {"hard": hard, "used": {"requests.memory": "0", "limits.memory": "0"}}}],
                "admit": true, "new_used": [{"requests.memory": used, "limits.memory": used}],
            })
        };
        let limited = json!([{"resource": "pods", "matchContains": ["requests.memory"]}]);
        assert_eq!(resource_quota(&vector("2560Mi", json!([]))), Verdict::Pass);
        assert_eq!(
            resource_quota(&vector("2560Mi", limited.clone())),
            Verdict::Pass
        );
        for (used, limited, is_known) in [
            ("3584Mi", json!([]), true),
            ("4608Mi", limited.clone(), true),
            ("3584Mi", limited, false),
            ("4608Mi", json!([]), false),
        ] {
            let verdict = resource_quota(&vector(used, limited));
            let known = matches!(verdict, Verdict::KnownUpstreamDefect(_));
            assert_eq!(known, is_known, "{used}: {verdict:?}");
            assert_eq!(matches!(verdict, Verdict::Fail { .. }), !is_known);
        }
    }
}
