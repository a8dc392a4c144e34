//! `qos_class`, `oom_score_adj` and `pod_resources`: functions of one pod.
//!
//! Vectors of pods that the API server would refuse are compared like any other, and their refusal too.

use std::num::NonZeroU64;

use plimsoll_core::kube::admission::field::FieldError;
use plimsoll_core::kube::admission::pod_object::{MorePod, PodObject, round_to_milli};
use plimsoll_core::kube::admission::pod_rules;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::kube::resources::{self, ResourceList, Scope};
use plimsoll_core::policy::oom::score;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{Verdict, read, same};

#[derive(Deserialize)]
struct QosVector {
    pod: Pod,
    resources_valid: bool,
    qos_after_api_defaulting: String,
    qos_without_defaulting: String,
}

pub(super) fn qos_class(vector: &Value) -> Verdict {
    Verdict::of(read(vector).and_then(|expected: QosVector| {
        let raw = QosClass::of(&expected.pod);
        same(
            "qos_without_defaulting",
            &raw.as_str(),
            &expected.qos_without_defaulting.as_str(),
        )?;
        let pod = expected.pod.with_defaults();
        refused(&pod, expected.resources_valid)?;
        let defaulted = QosClass::of(&pod);
        same(
            "qos_after_api_defaulting",
            &defaulted.as_str(),
            &expected.qos_after_api_defaulting.as_str(),
        )
    }))
}

#[derive(Deserialize)]
pub(super) struct OomVector {
    pod: Pod,
    memory_capacity: NonZeroU64,
    /// Absent in `seeds_tables`, whose pods are valid.
    #[serde(default = "yes")]
    resources_valid: bool,
    qos: String,
    expected: Vec<OomExpected>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct OomExpected {
    list: String,
    index: usize,
    adj: i32,
}

pub(super) fn oom_score_adj(vector: &Value) -> Verdict {
    Verdict::of(read(vector).and_then(oom))
}

fn oom(expected: OomVector) -> Result<(), String> {
    let pod = expected.pod.with_defaults();
    refused(&pod, expected.resources_valid)?;
    same("qos", &pod.qos_class().as_str(), &expected.qos.as_str())?;
    same(
        "number of containers",
        &pod.all_containers().count(),
        &expected.expected.len(),
    )?;
    for OomExpected { list, index, adj } in expected.expected {
        let containers = match list.as_str() {
            "containers" => &pod.spec.containers,
            "initContainers" => &pod.spec.init_containers,
            _ => return Err(format!("list {list:?} is unknown")),
        };
        let container = containers
            .get(index)
            .ok_or_else(|| format!("{list}[{index}] does not exist"))?;
        let actual = score::oom_score_adj(&pod, container, expected.memory_capacity);
        same(&format!("{list}[{index}]"), &actual, &adj)?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct ResourcesVector {
    pod: Pod,
    resources_valid: bool,
    api_resource_errors: Vec<String>,
    defaulted_pod_level_resources: Option<Level>,
    eviction_request_quantity_after_defaulting: ResourceList,
    #[serde(deserialize_with = "null_as_empty")]
    pod_limits: ResourceList,
    #[serde(deserialize_with = "null_as_empty")]
    pod_requests: ResourceList,
    #[serde(deserialize_with = "null_as_empty")]
    pod_requests_no_overhead: ResourceList,
    #[serde(deserialize_with = "null_as_empty")]
    pod_requests_skip_pod_level: ResourceList,
}

#[derive(Deserialize)]
struct Level {
    #[serde(default, deserialize_with = "null_as_empty")]
    requests: ResourceList,
    #[serde(default, deserialize_with = "null_as_empty")]
    limits: ResourceList,
}

fn null_as_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ResourceList, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What the API server refuses in the resources of a pod that has its defaults.
pub(super) fn resource_errors(pod: &Pod) -> Vec<FieldError> {
    let mut pod = PodObject::new(pod.clone(), MorePod::default());
    let spec = &mut pod.pod.spec;
    let containers = spec.containers.iter_mut().chain(&mut spec.init_containers);
    let resources = containers.map(|container| &mut container.resources);
    for resources in resources.chain(&mut spec.resources) {
        round_to_milli(&mut resources.requests);
        round_to_milli(&mut resources.limits);
    }
    round_to_milli(&mut spec.overhead);
    let mut errors = pod_rules::create_errors(&pod);
    errors.retain(|error| {
        error.field.contains("resources") || error.field.starts_with("spec.overhead")
    });
    errors
}

/// Whether the API server refuses the pod's resources.
pub(super) fn refused(pod: &Pod, resources_valid: bool) -> Result<(), String> {
    let errors = resource_errors(pod);
    if errors.is_empty() == resources_valid {
        Ok(())
    } else {
        Err(format!(
            "resources_valid is {resources_valid}, our errors are {errors:?}"
        ))
    }
}

/// What a call of upstream's `PodRequests` leaves in the pod. A pod-level request that is a big decimal is shared with
/// the result, and overhead is added to it in place (`reqs[resourceName] = quantity` and then `value.Add` in
/// helpers.go): each call adds it once more.
pub(super) fn add_overhead_to_shared_requests(pod: &mut Pod) {
    if pod.pod_level_resources().is_some()
        && let Some(level) = &mut pod.spec.resources
    {
        add_to_shared(&mut level.requests, &pod.spec.overhead);
    }
}

/// The same of `PodLimits`, which leaves limits of zero alone.
pub(super) fn add_overhead_to_shared_limits(pod: &mut Pod) {
    if pod.pod_level_resources().is_some()
        && let Some(level) = &mut pod.spec.resources
    {
        let limits = level.limits.iter_mut();
        let limits = limits.filter(|(_, limit)| !limit.is_zero());
        add_to_shared(limits, &pod.spec.overhead);
    }
}

fn add_to_shared<'a>(
    amounts: impl IntoIterator<Item = (&'a String, &'a mut Quantity)>,
    overhead: &ResourceList,
) {
    for (name, amount) in amounts {
        if amount.is_big()
            && resources::is_pod_level_resource(name)
            && let Some(overhead) = overhead.get(name)
        {
            *amount += overhead;
        }
    }
}

pub(super) fn pod_resources(vector: &Value) -> Verdict {
    read(vector)
        .and_then(totals)
        .unwrap_or_else(|why| Verdict::Fail { why })
}

fn totals(expected: ResourcesVector) -> Result<Verdict, String> {
    let pod = expected.pod.with_defaults();
    refused(&pod, expected.resources_valid)?;
    let mut fields: Vec<_> = resource_errors(&pod)
        .into_iter()
        .map(|error| error.field)
        .collect();
    fields.sort_unstable();
    let upstream = expected
        .api_resource_errors
        .iter()
        .map(|text| text.split(": ").next().unwrap_or(text));
    let mut upstream: Vec<_> = upstream.map(str::to_owned).collect();
    upstream.sort_unstable();
    same("fields of errors", &fields, &upstream)?;
    let level = pod
        .spec
        .resources
        .as_ref()
        .map(|own| (&own.requests, &own.limits));
    let expected_level = expected.defaulted_pod_level_resources.as_ref();
    same(
        "pod level",
        &level,
        &expected_level.map(|own| (&own.requests, &own.limits)),
    )?;
    for (name, request) in &expected.eviction_request_quantity_after_defaulting {
        let actual: Quantity = resources::eviction_request(&pod, name);
        same(&format!("eviction request of {name}"), &actual, request)?;
    }
    let requests = |scope| resources::pod_requests(&pod, scope);
    same(
        "pod_limits",
        &resources::pod_limits(&pod, Scope::ALL),
        &expected.pod_limits,
    )?;
    let all = requests(Scope::ALL);
    same("pod_requests", &all, &expected.pod_requests)?;
    let skip_pod_level = requests(Scope {
        pod_level: false,
        ..Scope::ALL
    });
    same(
        "pod_requests_skip_pod_level",
        &skip_pod_level,
        &expected.pod_requests_skip_pod_level,
    )?;

    let without_overhead = Scope {
        overhead: false,
        ..Scope::ALL
    };
    let no_overhead = requests(without_overhead);
    // The call with overhead came first.
    let mut after = pod.clone();
    add_overhead_to_shared_requests(&mut after);
    if no_overhead != expected.pod_requests_no_overhead
        && resources::pod_requests(&after, without_overhead) == expected.pod_requests_no_overhead
    {
        return Ok(Verdict::KnownUpstreamDefect(
            "pod_requests_no_overhead has overhead in a shared decimal".to_owned(),
        ));
    }
    same(
        "pod_requests_no_overhead",
        &no_overhead,
        &expected.pod_requests_no_overhead,
    )?;
    Ok(Verdict::Pass)
}
