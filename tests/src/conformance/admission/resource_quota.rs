//! `admission_resource_quota`: the plugin ResourceQuota whole, and ResourceQuotas themselves.

use plimsoll_core::kube::admission::Admission;
use plimsoll_core::kube::admission::field::aggregate;
use plimsoll_core::kube::admission::object::{DeviceClass, ResourceQuota, ResourceQuotaStatus};
use plimsoll_core::kube::admission::request::Refusal;
use plimsoll_core::kube::admission::resource_quota::cluster::{Cluster, DeviceClasses};
use plimsoll_core::kube::admission::resource_quota::configuration::{
    Configuration, LimitedResource,
};
use plimsoll_core::kube::admission::resource_quota::evaluator::Evaluator;
use plimsoll_core::kube::admission::resource_quota::scope::Facts;
use plimsoll_core::kube::admission::resource_quota::{
    self, Charge, Conflict, EnforcedQuota, Plugin, QuotaStore, validate,
};
use plimsoll_core::kube::resources::ResourceList;
use plimsoll_core::kube::time::Time;
use serde_json::{Map, Value, json};

use super::{Verdict, errors_json, judge, list, pod, read, request_of, text, verdict_json};

/// When the vectors were made; pods that should have been gone by then are long gone.
const NOW: &str = "2026-11-01T00:00:00Z";

pub(in crate::conformance) fn check(vector: &Value) -> Verdict {
    judge(vector, |admission| {
        let input = &vector["in"];
        match input["kind"].as_str() {
            Some("admit") => admit(input, admission),
            Some("resource_quota") => object(input, admission),
            other => Err(format!("kind {other:?} is unknown")),
        }
    })
}

fn object(input: &Value, admission: Admission) -> Result<Value, String> {
    let read_quota = |value: &Value| {
        let mut quota: ResourceQuota = read(value)?;
        quota.set_defaults();
        Ok::<_, String>(quota)
    };
    let quota = read_quota(&input["object"])?;
    let name = &quota.metadata.name;
    let json = |errors| errors_json(errors, "ResourceQuota", name);
    if !input["old_object"].is_null() {
        let old = read_quota(&input["old_object"])?;
        let errors = if input["subresource"] == "status" {
            validate::status_update_errors(&quota, &old)
        } else {
            validate::update_errors(&quota, &old, admission)
        };
        return Ok(json(errors).into());
    }
    let mut created = quota.clone();
    created.status = ResourceQuotaStatus::default();
    let mut out = json(validate::create_errors(&created, admission));
    if created != quota {
        let with_status = json(validate::create_errors(&quota, admission));
        out.insert("with_status".to_owned(), with_status.into());
    }
    Ok(out.into())
}

/// Quotas of which the first writes fail.
struct Store {
    quotas: Vec<EnforcedQuota>,
    conflicts: u64,
    writes: u64,
}

impl QuotaStore for Store {
    fn quotas(&mut self, _: &str) -> &[EnforcedQuota] {
        &self.quotas
    }

    fn add_used(&mut self, _: &str, charge: Charge<'_>) -> Result<(), Conflict> {
        self.writes += 1;
        if self.conflicts > 0 {
            self.conflicts -= 1;
            return Err(Conflict);
        }
        let own = self
            .quotas
            .iter_mut()
            .find(|quota| quota.name() == charge.quota);
        own.ok_or(Conflict)?.add(&charge);
        Ok(())
    }
}

/// The fields of an object that is decoded strictly.
struct Fields {
    plain: &'static [&'static str],
    /// A list of objects, and their fields.
    list: Option<(&'static str, &'static Fields)>,
}

const CONFIGURATION_FIELDS: Fields = Fields {
    plain: &["apiVersion", "kind"],
    list: Some((
        "limitedResources",
        &Fields {
            plain: &["apiGroup", "resource", "matchContains"],
            list: Some((
                "matchScopes",
                &Fields {
                    plain: &["scopeName", "operator", "values"],
                    list: None,
                },
            )),
        },
    )),
};

/// Upstream names unknown fields with their path, in the order of the document (`newFieldError` of sigs.k8s.io/json).
fn unknown_fields(value: &Value, path: &str, fields: &Fields, unknown: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        match fields.list {
            Some((list, of_item)) if list == name => {
                for (at, item) in value.as_array().into_iter().flatten().enumerate() {
                    unknown_fields(item, &format!("{path}[{at}]"), of_item, unknown);
                }
            }
            _ if fields.plain.contains(&name.as_str()) => {}
            _ => unknown.push(format!("unknown field \"{path}\"")),
        }
    }
}

/// Group and version with the kind of a configuration, each of those that upstream reads.
const KINDS: [(&str, &str); 3] = [
    ("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration"),
    ("resourcequota.admission.k8s.io/v1alpha1", "Configuration"),
    ("resourcequota.admission.k8s.io/v1beta1", "Configuration"),
];

/// Why the API server does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("couldn't init admission plugin \"ResourceQuota\": {what}")]
struct ConfigurationError {
    what: String,
}

fn configuration(value: &Value) -> Result<Configuration, ConfigurationError> {
    if value.is_null() {
        return Ok(Configuration::default());
    }
    let (version, kind) = (text(&value["apiVersion"]), text(&value["kind"]));
    if !KINDS.contains(&(version, kind)) {
        let what = format!("no kind {kind:?} is registered for version {version:?}");
        return Err(ConfigurationError { what });
    }
    let mut unknown = Vec::new();
    unknown_fields(value, "", &CONFIGURATION_FIELDS, &mut unknown);
    if !unknown.is_empty() {
        let what = format!("strict decoding error: {}", unknown.join(", "));
        return Err(ConfigurationError { what });
    }
    let configuration: Configuration =
        serde_json::from_value(value.clone()).map_err(|error| ConfigurationError {
            what: error.to_string(),
        })?;
    let without = |(_, limited): &(usize, &LimitedResource)| limited.resource.is_empty();
    let limited = configuration.limited_resources.iter().enumerate();
    let wrong: Vec<_> = limited
        .filter(without)
        .map(|(at, _)| format!("limitedResources[{at}].resource: Required value"))
        .collect();
    if wrong.is_empty() {
        return Ok(configuration);
    }
    let what = aggregate(&wrong);
    Err(ConfigurationError { what })
}

fn admit(input: &Value, admission: Admission) -> Result<Value, String> {
    let mut out = Map::new();
    let configuration = match configuration(&input["configuration"]) {
        Ok(configuration) => configuration,
        Err(error) => return Ok(json!({"configuration_error": error.to_string()})),
    };
    let mut request = request_of(input)?;
    request.generate_name();
    let classes: Vec<DeviceClass> = list(&input["device_classes"])?;
    let mut pods = Vec::new();
    for value in input["pods"].as_array().into_iter().flatten() {
        let mut pod = pod(value)?;
        pod.set_defaults();
        pods.push(pod);
    }
    let cluster = Cluster {
        now: Time::parse(NOW).map_err(|error| error.to_string())?,
        device_classes: DeviceClasses::new(&classes),
        pods,
        resource_claims: list(&input["resource_claims"])?,
    };
    let mut quotas: Vec<ResourceQuota> = list(&input["quotas"])?;
    quotas.iter_mut().for_each(ResourceQuota::set_defaults);
    let handled = resource_quota::handles(&request, admission);
    out.insert("handled".to_owned(), handled.into());
    let evaluator = Evaluator::of(&request.resource);
    if handled {
        out.insert(
            "usage".to_owned(),
            json!(evaluator.usage(&request.object, &cluster)),
        );
        let facts = Facts::of(&request.object);
        let applies = |quota: &EnforcedQuota| match quota.applies(&evaluator, &facts, &cluster) {
            Ok(applies) => applies.into(),
            Err(error) => Value::from(error.to_string()),
        };
        let enforced = quotas.iter().cloned().map(EnforcedQuota::new);
        let matches: Map<_, _> = enforced
            .map(|quota| (quota.name().to_owned(), applies(&quota)))
            .collect();
        if !matches.is_empty() {
            out.insert("matches".to_owned(), matches.into());
        }
    }
    if input["list_error"] == true {
        let refusal = Refusal::plain_error("etcdserver: request timed out".to_owned());
        verdict_json(&mut out, &Err(refusal));
        return Ok(out.into());
    }
    let mut store = Store {
        quotas: quotas.iter().cloned().map(EnforcedQuota::new).collect(),
        conflicts: input["update_conflicts"].as_u64().unwrap_or(0),
        writes: 0,
    };
    let plugin = Plugin {
        configuration: &configuration,
        cluster: &cluster,
        admission,
    };
    let verdict = plugin.validate(&request, &mut store).map(|_| ());
    let after: Vec<ResourceQuota> = store.quotas.iter().map(EnforcedQuota::current).collect();
    if verdict.is_ok() {
        changes(&mut out, &quotas, &after);
        if input["update_conflicts"].is_u64() {
            out.insert("status_updates".to_owned(), store.writes.into());
        }
    } else if after != quotas {
        return Err("a refused request changed a quota".to_owned());
    }
    verdict_json(&mut out, &verdict);
    Ok(out.into())
}

/// What is in use now, and what was added.
fn changes(out: &mut Map<String, Value>, before: &[ResourceQuota], after: &[ResourceQuota]) {
    let (mut used, mut delta) = (Map::new(), Map::new());
    for (before, after) in before
        .iter()
        .zip(after)
        .filter(|(before, after)| before != after)
    {
        let name = &after.metadata.name;
        used.insert(name.clone(), json!(after.status.used));
        let mut added = ResourceList::new();
        for (resource, quantity) in &after.status.used {
            let mut quantity = quantity.clone();
            if let Some(old) = before.status.used.get(resource) {
                if *old == quantity {
                    continue;
                }
                quantity -= old;
            }
            added.insert(resource.clone(), quantity);
        }
        delta.insert(name.clone(), json!(added));
    }
    if !used.is_empty() {
        out.insert("used".to_owned(), used.into());
        out.insert("delta".to_owned(), delta.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_field_is_named_with_its_path() {
        let of = |limited: Value| {
            let value = json!({
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
                "limitedResources": limited,
            });
            configuration(&value).map_err(|error| error.what)
        };
        let scope = json!({"scopeName": "PriorityClass", "operator": "Exists", "value": "x"});
        let pods = json!({"resource": "pods", "matchScopes": [scope], "foo": 1});
        let error = of(json!([{"resource": "services"}, pods])).unwrap_err();
        assert_eq!(
            error,
            "strict decoding error: unknown field \"limitedResources[1].foo\", \
             unknown field \"limitedResources[1].matchScopes[0].value\""
        );
        assert!(of(json!([{"resource": "services", "matchContains": ["x"]}])).is_ok());
    }
}
