//! What the API refuses in a ResourceQuota.
//!
//! Source: `ValidateResourceQuota` and what it calls in `pkg/apis/core/validation/validation.go` of 1.36.

use std::collections::BTreeSet;

use super::scope::{
    BEST_EFFORT, CROSS_NAMESPACE, NOT_BEST_EFFORT, NOT_TERMINATING, PRIORITY_CLASS, TERMINATING,
    VOLUME_ATTRIBUTES_CLASS,
};
use crate::kube::admission::Admission;
use crate::kube::admission::field::{FieldError, json_list, json_text};
use crate::kube::admission::names;
use crate::kube::admission::object::{
    ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus, ScopeRequirement,
};
use crate::kube::admission::object_meta::Scope;
use crate::kube::admission::resource_rules;
use crate::kube::resources::{CPU, MEMORY, ResourceList};

const SCOPES: [&str; 7] = [
    TERMINATING,
    NOT_TERMINATING,
    BEST_EFFORT,
    NOT_BEST_EFFORT,
    PRIORITY_CLASS,
    CROSS_NAMESPACE,
    VOLUME_ATTRIBUTES_CLASS,
];

/// Scopes that exclude each other.
const CONFLICTING: [[&str; 2]; 2] = [
    [BEST_EFFORT, NOT_BEST_EFFORT],
    [TERMINATING, NOT_TERMINATING],
];

/// Everything wrong with a new quota. A client's status is dropped before, so it is checked only where it is given.
pub fn create_errors(quota: &ResourceQuota, admission: Admission) -> Vec<FieldError> {
    let mut errors = quota.metadata.create_errors(Scope::Namespaced);
    spec_errors(&quota.spec, admission, &mut errors);
    status_errors(&quota.status, &mut errors);
    errors
}

/// Everything wrong with a changed quota.
pub fn update_errors(
    quota: &ResourceQuota,
    old: &ResourceQuota,
    admission: Admission,
) -> Vec<FieldError> {
    let mut errors = quota.metadata.update_errors(&old.metadata);
    spec_errors(&quota.spec, admission, &mut errors);
    let set = |quota: &ResourceQuota| {
        quota
            .spec
            .scopes
            .iter()
            .flatten()
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    if set(quota) != set(old) {
        let value = json_list(quota.spec.scopes.as_deref());
        errors.push(FieldError::invalid(
            "spec.scopes",
            &value,
            "field is immutable",
        ));
    }
    errors
}

/// Everything wrong with a changed status, by the rules of [`create_errors`]; asked by golden vectors.
pub fn status_update_errors(quota: &ResourceQuota, old: &ResourceQuota) -> Vec<FieldError> {
    let mut errors = quota.metadata.update_errors(&old.metadata);
    if quota.metadata.resource_version.is_empty() {
        errors.push(FieldError::required("resourceVersion", ""));
    }
    status_errors(&quota.status, &mut errors);
    errors
}

fn list_errors(list: &ResourceList, path: &str, errors: &mut Vec<FieldError>) {
    for (name, amount) in list {
        let path = format!("{path}[{name}]");
        resource_rules::quota_name_errors(name, &path, errors);
        resource_rules::amount_errors(name, amount, &path, errors);
    }
}

fn status_errors(status: &ResourceQuotaStatus, errors: &mut Vec<FieldError>) {
    list_errors(&status.hard, "status.hard", errors);
    list_errors(&status.used, "status.used", errors);
}

/// Whether a standard name may be counted in a scope (`IsResourceQuotaScopeValidForResource`).
fn fits(scope: &str, name: &str) -> bool {
    let is_compute = |name| {
        matches!(
            name,
            CPU | MEMORY | "limits.cpu" | "limits.memory" | "requests.cpu" | "requests.memory"
        )
    };
    match scope {
        TERMINATING | NOT_TERMINATING | NOT_BEST_EFFORT | PRIORITY_CLASS | CROSS_NAMESPACE => {
            name == "pods" || is_compute(name)
        }
        BEST_EFFORT => name == "pods",
        VOLUME_ATTRIBUTES_CLASS => matches!(name, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn spec_errors(spec: &ResourceQuotaSpec, admission: Admission, errors: &mut Vec<FieldError>) {
    list_errors(&spec.hard, "spec.hard", errors);
    let unfit = |scope: &str| {
        let names = spec.hard.keys();
        names
            .filter(|name| names::is_standard_for_quota(name) && !fits(scope, name))
            .count()
    };
    let shown_scopes = json_list(spec.scopes.as_deref());
    let scopes: Vec<&str> = spec.scopes.iter().flatten().map(String::as_str).collect();
    let path = "spec.scopes";
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            errors.push(FieldError::invalid(
                path,
                &shown_scopes,
                "unsupported scope",
            ));
        }
        for _ in 0..unfit(scope) {
            errors.push(FieldError::invalid(
                path,
                &shown_scopes,
                "unsupported scope applied to resource",
            ));
        }
    }
    conflicts(&scopes, path, &shown_scopes, errors);
    let Some(selector) = &spec.scope_selector else {
        return;
    };
    let requirements = selector.match_expressions.as_deref();
    let shown = selector_text(requirements);
    let requirements = requirements.unwrap_or_default();
    let path = "spec.scopeSelector.matchExpressions";
    for requirement in requirements {
        let scope = requirement.scope_name.as_str();
        if !SCOPES.contains(&scope) {
            let path = format!("{path}.scopeName");
            errors.push(FieldError::invalid(
                path,
                &json_text(scope),
                "unsupported scope",
            ));
        }
        for _ in 0..unfit(scope) {
            errors.push(FieldError::invalid(
                path,
                &shown,
                "unsupported scope applied to resource",
            ));
        }
        requirement_errors(requirement, path, errors);
    }
    let scopes: Vec<&str> = requirements
        .iter()
        .map(|requirement| requirement.scope_name.as_str())
        .collect();
    // Upstream shows the value of the other field.
    let shown = if admission.is_upstream() {
        &shown_scopes
    } else {
        &shown
    };
    conflicts(&scopes, path, shown, errors);
}

fn conflicts(scopes: &[&str], path: &str, shown: &str, errors: &mut Vec<FieldError>) {
    for pair in CONFLICTING {
        if pair.iter().all(|scope| scopes.contains(scope)) {
            errors.push(FieldError::invalid(path, shown, "conflicting scopes"));
        }
    }
}

fn requirement_errors(requirement: &ScopeRequirement, path: &str, errors: &mut Vec<FieldError>) {
    let ScopeRequirement {
        scope_name,
        operator,
        values,
    } = requirement;
    let shown = json_text(operator);
    let takes_values = !matches!(
        scope_name.as_str(),
        PRIORITY_CLASS | VOLUME_ATTRIBUTES_CLASS
    );
    if takes_values && SCOPES.contains(&scope_name.as_str()) && operator != "Exists" {
        let what = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
        errors.push(FieldError::invalid(
            format!("{path}.operator"),
            &shown,
            what,
        ));
    }
    let has_values = values.as_ref().is_some_and(|values| !values.is_empty());
    match operator.as_str() {
        "In" | "NotIn" if !has_values => {
            let what =
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
            errors.push(FieldError::required(format!("{path}.values"), what));
        }
        "In" | "NotIn" => {}
        "Exists" | "DoesNotExist" => {
            if has_values {
                let what = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                let values = json_list(values.as_deref());
                errors.push(FieldError::invalid(format!("{path}.values"), &values, what));
            }
        }
        _ => errors.push(FieldError::invalid(
            format!("{path}.operator"),
            &shown,
            "not a valid selector operator",
        )),
    }
}

/// The selector as Go's JSON of its internal type.
fn selector_text(requirements: Option<&[ScopeRequirement]>) -> String {
    let requirement = |requirement: &ScopeRequirement| {
        format!(
            "{{\"ScopeName\":{},\"Operator\":{},\"Values\":{}}}",
            json_text(&requirement.scope_name),
            json_text(&requirement.operator),
            json_list(requirement.values.as_deref())
        )
    };
    let list = requirements.map_or_else(
        || "null".to_owned(),
        |all| {
            let all: Vec<String> = all.iter().map(requirement).collect();
            format!("[{}]", all.join(","))
        },
    );
    format!("{{\"MatchExpressions\":{list}}}")
}
