//! `metadata` of all kinds: names, namespaces and UIDs, which may become names of directories.

use plimsoll_core::kube::admission::names::{dns_label_errors, dns_subdomain_errors};
use plimsoll_core::kube::pod::DEFAULT_NAMESPACE;

use super::schema::{Finding, join};
use crate::input::yaml::Node;

/// Longest file name on Linux, less `pod`: the UID is part of the cgroup's name.
const UID_BYTES_MAX: usize = 252;

/// Checks `metadata`.
pub(super) fn check_metadata(document: &Node, path: &str, findings: &mut Vec<Finding>) {
    let path = join(path, "metadata");
    let mut add = |line: u64, field: &str, what: String| {
        findings.push(Finding {
            line,
            field: join(&path, field),
            what,
        });
    };
    let metadata = document.get("metadata");
    let text = |name: &str| {
        metadata
            .and_then(|node| node.get(name))
            .and_then(|node| Some((node.line, node.text()?)))
    };
    match text("name") {
        None | Some((_, "")) => {
            let line = metadata.map_or(document.line, |node| node.line);
            add(line, "name", "missing; it needs a name".to_owned());
        }
        Some((line, name)) if !is_dns_subdomain(name) => {
            let what = format!(
                "{name:?} is not a name; use lower-case letters, digits, '-' and '.', at most 253, a letter or digit at both ends"
            );
            add(line, "name", what);
        }
        Some(_) => {}
    }
    if let Some((line, namespace)) =
        text("namespace").filter(|(_, namespace)| !namespace.is_empty() && !is_dns_label(namespace))
    {
        let what = format!(
            "{namespace:?} is not a namespace; use lower-case letters, digits and '-', at most 63 (default: {DEFAULT_NAMESPACE})"
        );
        add(line, "namespace", what);
    }
    let is_safe = |uid: &str| {
        uid.len() <= UID_BYTES_MAX
            && uid
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    if let Some((line, uid)) = text("uid").filter(|(_, uid)| !is_safe(uid)) {
        let what = format!(
            "{uid:?} cannot name a cgroup; use letters, digits, '-', '_' and '.', or leave it out"
        );
        add(line, "uid", what);
    }
}

/// RFC 1123 label.
pub(super) fn is_dns_label(name: &str) -> bool {
    dns_label_errors(name).is_empty()
}

/// RFC 1123 subdomain: labels with dots between; only the whole has a length limit.
pub(super) fn is_dns_subdomain(name: &str) -> bool {
    dns_subdomain_errors(name).is_empty()
}
