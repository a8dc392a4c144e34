//! Names of objects and resources: what the API takes, and what a resource's name says about it.
//!
//! Source: `k8s.io/apimachinery/pkg/api/validate/content`, `pkg/util/validation` and `pkg/apis/core/helper` of 1.36.

use crate::kube::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, is_huge_pages};

/// The longest name part of a qualified name, and the longest label value, in bytes.
const NAME_BYTES_MAX: usize = 63;
/// The longest subdomain, in bytes.
const SUBDOMAIN_BYTES_MAX: usize = 253;

/// What the names of requests in a quota begin with.
pub const REQUESTS_PREFIX: &str = "requests.";
/// What the names of object counts begin with.
pub const COUNT_PREFIX: &str = "count/";
/// A name that contains this is Kubernetes' own.
const NATIVE_DOMAIN: &str = "kubernetes.io/";

const KEY_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// Upstream has the check of a length twice, and the texts differ.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Characters,
}

fn too_long(max: usize, unit: Unit) -> String {
    let unit = match unit {
        Unit::Bytes => "bytes",
        Unit::Characters => "characters",
    };
    format!("must be no more than {max} {unit}")
}

/// Whether the text is letters and digits, with `-`, `_` and `.` between them.
fn is_name(text: &str) -> bool {
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn is_dns_label(text: &str) -> bool {
    let is_edge = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let bytes = text.as_bytes();
    is_edge(bytes.first())
        && is_edge(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
}

fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

/// What is wrong with a qualified name: `name` or `domain/name` (`IsQualifiedName`).
pub fn qualified_name_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut parts = value.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, None) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                let prefixed = |error| format!("prefix part {error}");
                errors.extend(
                    subdomain_errors(prefix, Unit::Bytes)
                        .into_iter()
                        .map(prefixed),
                );
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {KEY_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > NAME_BYTES_MAX {
        errors.push(format!(
            "name part {}",
            too_long(NAME_BYTES_MAX, Unit::Bytes)
        ));
    }
    if !is_name(name) {
        errors.push(format!("name part {KEY_RULE}"));
    }
    errors
}

/// What is wrong with a label's value (`IsValidLabelValue`).
pub fn label_value_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > NAME_BYTES_MAX {
        errors.push(too_long(NAME_BYTES_MAX, Unit::Bytes));
    }
    if !value.is_empty() && !is_name(value) {
        errors.push(VALUE_RULE.to_owned());
    }
    errors
}

/// What is wrong with a DNS subdomain (`IsDNS1123Subdomain`).
pub fn dns_subdomain_errors(value: &str) -> Vec<String> {
    subdomain_errors(value, Unit::Characters)
}

fn subdomain_errors(value: &str, unit: Unit) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_BYTES_MAX {
        errors.push(too_long(SUBDOMAIN_BYTES_MAX, unit));
    }
    if !is_dns_subdomain(value) {
        errors.push(SUBDOMAIN_RULE.to_owned());
    }
    errors
}

/// What is wrong with a DNS label (`IsDNS1123Label`).
pub fn dns_label_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > NAME_BYTES_MAX {
        errors.push(too_long(NAME_BYTES_MAX, Unit::Characters));
    }
    if !is_dns_label(value) {
        errors.push(if is_dns_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            LABEL_RULE.to_owned()
        });
    }
    errors
}

/// Whether a resource is Kubernetes' own: without a domain, or with `kubernetes.io/` anywhere (`IsNativeResource`).
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains(NATIVE_DOMAIN)
}

/// Whether a name is that of an extended resource (`IsExtendedResourceName`).
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with(REQUESTS_PREFIX)
        && qualified_name_errors(&format!("{REQUESTS_PREFIX}{name}")).is_empty()
}

/// Whether requests may be below limits (`IsOvercommitAllowed`).
pub fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

/// Names that count objects, without a domain.
fn is_object_count(name: &str) -> bool {
    matches!(
        name,
        "pods"
            | "resourcequotas"
            | "services"
            | "replicationcontrollers"
            | "secrets"
            | "configmaps"
            | "persistentvolumeclaims"
            | "services.nodeports"
            | "services.loadbalancers"
    )
}

/// Whether the resource is measured in whole numbers (`IsIntegerResourceName`).
pub fn is_whole(name: &str) -> bool {
    is_object_count(name) || is_extended(name)
}

fn is_quota_huge_pages(name: &str) -> bool {
    is_huge_pages(name.strip_prefix(REQUESTS_PREFIX).unwrap_or(name))
}

/// Whether a quota may have the name (`IsStandardQuotaResourceName`).
pub fn is_standard_for_quota(name: &str) -> bool {
    is_object_count(name)
        || matches!(name, CPU | MEMORY | EPHEMERAL_STORAGE | "requests.storage")
        || matches!(
            name,
            "requests.cpu" | "requests.memory" | "requests.ephemeral-storage"
        )
        || matches!(
            name,
            "limits.cpu" | "limits.memory" | "limits.ephemeral-storage"
        )
        || is_quota_huge_pages(name)
}

/// Whether the API knows the name at all (`IsStandardResourceName`).
pub fn is_standard(name: &str) -> bool {
    name == "storage" || is_standard_for_quota(name)
}

/// Whether a container may request it (`IsStandardContainerResourceName`).
pub fn is_standard_for_container(name: &str) -> bool {
    matches!(name, CPU | MEMORY | EPHEMERAL_STORAGE) || is_huge_pages(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_by_name() {
        for (name, native, extended, overcommit) in [
            ("cpu", true, false, true),
            ("hugepages-2Mi", true, false, false),
            ("nvidia.com/gpu", false, true, false),
            ("requests.nvidia.com/gpu", false, false, false),
            ("kubernetes.io/batteries", true, false, true),
            ("a.kubernetes.io/x", true, false, true),
            ("UPPER.example.com/Gpu", false, false, false),
        ] {
            assert_eq!(is_native(name), native, "{name}");
            assert_eq!(is_extended(name), extended, "{name}");
            assert_eq!(may_overcommit(name), overcommit, "{name}");
        }
    }

    #[test]
    fn qualified_names() {
        for good in ["a", "A.b_c-d", "example.com/x"] {
            assert!(qualified_name_errors(good).is_empty(), "{good}");
        }
        for (bad, errors) in [
            ("", 2),
            ("/x", 1),
            ("a/", 2),
            ("a/b/c", 1),
            ("-a", 1),
            ("A.com/x", 1),
        ] {
            assert_eq!(qualified_name_errors(bad).len(), errors, "{bad}");
        }
    }
}
