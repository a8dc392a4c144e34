//! What the API refuses in names and amounts of resources.
//!
//! Source: `pkg/apis/core/validation/validation.go` of 1.36 (`ValidateContainerResourceRequirements` and what it
//! calls).

use std::collections::BTreeSet;
use std::fmt;

use super::field::{FieldError, json_text, quoted};
use super::names;
use super::pod_object::{ClaimReference, RESTART_CONTAINER, ResizePolicy};
use crate::kube::pod::Resources;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{
    CPU, EPHEMERAL_STORAGE, MEMORY, ResourceList, is_huge_pages, is_multiple_of_page,
    is_pod_level_resource,
};

/// The resize policies that there are.
const RESIZE_POLICIES: [&str; 2] = ["NotRequired", RESTART_CONTAINER];
/// The resources that a resize changes.
const RESIZABLE: [&str; 2] = [CPU, MEMORY];

/// Whose resources are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A container.
    Container,
    /// The pod as a whole.
    Pod,
}

/// What else is allowed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// The names of the pod's `resourceClaims`.
    pub pod_claims: &'a [String],
    /// Whether parts of huge pages are: only in a pod that has had them before.
    pub parts_of_huge_pages: bool,
}

/// What is wrong with a resource's name.
pub fn name_errors(name: &str, path: impl fmt::Display + Copy, errors: &mut Vec<FieldError>) {
    let error = |what: &str| FieldError::invalid(path.to_string(), &json_text(name), what);
    let malformed = names::qualified_name_errors(name);
    if malformed.is_empty() && !name.contains('/') && !names::is_standard(name) {
        errors.push(error("must be a standard resource type or fully qualified"));
    }
    errors.extend(malformed.iter().map(|what| error(what)));
}

/// What is wrong with the name of a container's resource.
pub fn container_name_errors(
    name: &str,
    path: impl fmt::Display + Copy,
    errors: &mut Vec<FieldError>,
) {
    if matches!(name, CPU | MEMORY | EPHEMERAL_STORAGE) {
        return;
    }
    name_errors(name, path, errors);
    let what = if !name.contains('/') {
        (!names::is_standard_for_container(name))
            .then_some("must be a standard resource for containers")
    } else {
        (!names::is_native(name) && !names::is_extended(name))
            .then_some("doesn't follow extended resource name standard")
    };
    errors.extend(what.map(|what| FieldError::invalid(path.to_string(), &json_text(name), what)));
}

/// What is wrong with the name of a pod-level resource.
pub fn pod_name_errors(name: &str, path: impl fmt::Display + Copy, errors: &mut Vec<FieldError>) {
    let before = errors.len();
    name_errors(name, path, errors);
    if errors.len() == before && !is_pod_level_resource(name) {
        let supported = [CPU, "hugepages-", MEMORY];
        errors.push(FieldError::not_supported(
            path.to_string(),
            &json_text(name),
            &supported,
        ));
    }
}

/// What is wrong with the name of a quota's resource.
pub fn quota_name_errors(name: &str, path: impl fmt::Display + Copy, errors: &mut Vec<FieldError>) {
    name_errors(name, path, errors);
    if !name.contains('/') && !names::is_standard_for_quota(name) {
        let what = "must be a standard resource for quota";
        errors.push(FieldError::invalid(
            path.to_string(),
            &json_text(name),
            what,
        ));
    }
}

/// What is wrong with an amount.
pub fn amount_errors(
    name: &str,
    amount: &Quantity,
    path: impl fmt::Display + Copy,
    errors: &mut Vec<FieldError>,
) {
    let error =
        |what: &str| FieldError::invalid(path.to_string(), &quoted(&amount.to_string()), what);
    if amount.sign() < 0 {
        errors.push(error("must be greater than or equal to 0"));
    }
    if names::is_whole(name) && !is_whole(amount) {
        errors.push(error("must be an integer"));
    }
}

/// Whether an amount in thousandths, as the API keeps it, is a whole number. Beyond 64 bits it is what wraps around.
fn is_whole(amount: &Quantity) -> bool {
    amount.wrapping_scaled_value(-3) % 1000 == 0
}

/// What is wrong with requests and limits.
pub fn requirement_errors(
    resources: &Resources,
    claims: &[ClaimReference],
    owner: Owner,
    path: impl fmt::Display + Copy,
    options: Options<'_>,
    errors: &mut Vec<FieldError>,
) {
    let mut list_errors = |field: &str, list: &ResourceList| {
        for (name, amount) in list {
            // A text only where something is wrong.
            let path = format_args!("{path}.{field}[{name}]");
            match owner {
                Owner::Container => container_name_errors(name, path, errors),
                Owner::Pod => pod_name_errors(name, path, errors),
            }
            amount_errors(name, amount, path, errors);
            let is_part = is_huge_pages(name) && !is_multiple_of_page(name, amount);
            if is_part && !options.parts_of_huge_pages {
                let what = format!("{amount} is not positive integer multiple of {name}");
                errors.push(FieldError::invalid(
                    path.to_string(),
                    &quoted(&amount.to_string()),
                    &what,
                ));
            }
        }
    };
    list_errors("limits", &resources.limits);
    list_errors("requests", &resources.requests);
    for (name, request) in &resources.requests {
        errors.extend(against_limit(
            name,
            request,
            resources.limits.get(name),
            path,
        ));
    }
    let mut names = resources.limits.keys().chain(resources.requests.keys());
    let has_huge_pages = names.clone().any(|name| is_huge_pages(name));
    if has_huge_pages && !names.any(|name| matches!(name.as_str(), CPU | MEMORY)) {
        errors.push(FieldError::forbidden(
            path.to_string(),
            "HugePages require cpu or memory",
        ));
    }
    if !claims.is_empty() {
        let path = format!("{path}.claims");
        claim_errors(claims, options.pod_claims, &path, errors);
    }
}

fn against_limit(
    name: &str,
    request: &Quantity,
    limit: Option<&Quantity>,
    path: impl fmt::Display,
) -> Option<FieldError> {
    let error = |what: &str, limit: &Quantity| {
        let what = format!("must be {what} {name} limit of {limit}");
        FieldError::invalid(
            format!("{path}.requests"),
            &quoted(&request.to_string()),
            &what,
        )
    };
    let may_overcommit = names::may_overcommit(name);
    match limit {
        Some(limit) if request != limit && !may_overcommit => Some(error("equal to", limit)),
        Some(limit) if request > limit => Some(error("less than or equal to", limit)),
        None if !may_overcommit => Some(FieldError::required(
            format!("{path}.limits"),
            "Limit must be set for non overcommitable resources",
        )),
        _ => None,
    }
}

/// What is wrong with claims for devices: each names one of the pod's, and none is named twice.
fn claim_errors(
    claims: &[ClaimReference],
    pod_claims: &[String],
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (at, ClaimReference { name, request }) in claims.iter().enumerate() {
        let path = format!("{path}[{at}]");
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        if seen.contains(name) {
            errors.push(FieldError::duplicate(&path, &quoted(name)));
        } else {
            let mut key = name.clone();
            if !request.is_empty() {
                let all = names::dns_label_errors(request);
                let path = format!("{path}.request");
                errors.extend(
                    all.iter()
                        .map(|what| FieldError::invalid(&path, &quoted(request), what)),
                );
                key = format!("{name}/{request}");
            }
            if seen.contains(&key) {
                errors.push(FieldError::duplicate(&path, &quoted(&key)));
            } else if request.is_empty() {
                // Requests of the same claim were named before: one error for each.
                let of_claim = seen.iter().filter_map(|key| key.split_once('/'));
                let times = of_claim.filter(|(claim, _)| claim == name).count();
                errors.extend((0..times).map(|_| FieldError::duplicate(&path, &quoted(name))));
            }
            seen.insert(key);
        }
        if !pod_claims.contains(name) {
            let mut what = "must be one of the names in pod.spec.resourceClaims".to_owned();
            if pod_claims.is_empty() {
                what.push_str(" which is empty");
            } else {
                let sorted: BTreeSet<&str> = pod_claims.iter().map(String::as_str).collect();
                let sorted: Vec<&str> = sorted.into_iter().collect();
                what = format!("{what}: {}", sorted.join(", "));
            }
            errors.push(FieldError::not_found(&path, &quoted(name), &what));
        }
    }
}

/// What is wrong with a container's resize policies (`validateResizePolicy`).
pub fn resize_policy_errors(
    policies: &[ResizePolicy],
    pod_restart_policy: &str,
    path: impl fmt::Display + Copy,
    errors: &mut Vec<FieldError>,
) {
    for (at, policy) in policies.iter().enumerate() {
        let (resource, restart) = (&policy.resource_name, &policy.restart_policy);
        let mut earlier = policies.iter().take(at);
        if earlier.any(|other| other.resource_name == *resource) {
            errors.push(FieldError::duplicate(
                format!("{path}[{at}]"),
                &json_text(resource),
            ));
        }
        for (value, supported) in [(resource, RESIZABLE), (restart, RESIZE_POLICIES)] {
            if value.is_empty() {
                errors.push(FieldError::required(path.to_string(), ""));
            } else if !supported.contains(&value.as_str()) {
                let value = json_text(value);
                errors.push(FieldError::not_supported(
                    path.to_string(),
                    &value,
                    &supported,
                ));
            }
        }
        if pod_restart_policy == "Never" && restart != "NotRequired" {
            errors.push(FieldError::invalid(
                path.to_string(),
                &json_text(restart),
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `IsNativeResource` looks for the domain anywhere in the name; `validateContainerResourceName` for what an
    /// extended resource may be called. A name can break several rules.
    #[test]
    fn a_name_with_a_domain_is_not_enough() {
        for (name, count) in [
            ("xkubernetes.io/foo", 0),
            ("nvidia.com/gpu", 0),
            ("requests.example.com/gpu", 1),
            ("example.com/", 3),
        ] {
            let mut errors = Vec::new();
            container_name_errors(name, "", &mut errors);
            assert_eq!(errors.len(), count, "{name}: {errors:?}");
        }
    }

    /// As `MilliValue` of 1.36 has them: 1E has no thousandths in 64 bits, and as 27 digits of nanos other ones.
    #[test]
    fn whole_is_what_upstream_counts_in_thousandths() {
        for (text, whole) in [
            ("1", true),
            ("1500m", false),
            ("1u", false),
            ("999999999n", true),
            ("1E", true),
            ("9223372036854775807", true),
            ("9223372036854775807500m", false),
            ("1000000000000000000000000000n", false),
        ] {
            assert_eq!(is_whole(&Quantity::parse(text).unwrap()), whole, "{text}");
        }
    }
}
