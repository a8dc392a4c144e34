//! From a manifest's text to pods, as the API server would admit them.
//!
//! Rules: `pkg/apis/core/validation/validation.go` (names, `ValidateContainerResourceRequirements`),
//! `pkg/apis/core/v1/defaults.go` and the Priority admission plugin of Kubernetes 1.36. Each finding names file, line
//! and field; a document with a finding gives no pod.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use plimsoll_core::kube::admission::names;
use plimsoll_core::kube::admission::resource_rules::container_name_errors;
use plimsoll_core::kube::pod::{Pod, SYSTEM_CRITICAL_PRIORITY, SYSTEM_NODE_CRITICAL};
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::kube::resources;
use serde::Deserialize as _;

use super::budgets::{ManifestBudget, budget_of};
use super::limits::{self, ManifestLimit};
use super::metadata::{check_metadata, is_dns_label};
use super::objects::is_owner;
use super::schema::{self, Finding, join};
use super::{Bounds, ManifestError, ManifestPod};
use crate::input::yaml::{Node, Value, documents};

const SYSTEM_CLUSTER_CRITICAL: &str = "system-cluster-critical";
/// `scheduling.SystemCriticalPriority + 1000`.
const SYSTEM_NODE_CRITICAL_PRIORITY: i32 = SYSTEM_CRITICAL_PRIORITY + 1000;
/// `scheduling.HighestUserDefinablePriority`.
const USER_PRIORITY_MAX: i64 = 1_000_000_000;
/// `DefaultTerminationGracePeriodSeconds` of the API.
const GRACE_PERIOD_S: i64 = 30;

/// What a file gave.
#[derive(Debug, Clone, Default)]
pub(super) struct Parsed {
    pub(super) pods: Vec<ManifestPod>,
    pub(super) budgets: Vec<ManifestBudget>,
    pub(super) limits: Vec<ManifestLimit>,
    pub(super) errors: Vec<ManifestError>,
}

/// Reads all documents of a text.
pub(super) fn parse(file: &Arc<Path>, text: &str, bounds: Bounds) -> Parsed {
    let mut parsed = Parsed::default();
    let documents = match documents(text, bounds.limits()) {
        Ok(documents) => documents,
        Err(error) => {
            parsed.errors.push(ManifestError::syntax(file, error));
            return parsed;
        }
    };
    let mut budget = bounds.documents;
    for document in &documents {
        read_document(file, document, "", bounds, &mut budget, &mut parsed);
    }
    parsed
}

fn read_document(
    file: &Arc<Path>,
    document: &Node,
    path: &str,
    bounds: Bounds,
    budget: &mut usize,
    parsed: &mut Parsed,
) {
    let mut findings = Vec::new();
    if *budget == 0 {
        return; // reported once, below
    }
    *budget -= 1;
    if *budget == 0 {
        let what = format!(
            "more than {} documents and list items; split the file",
            bounds.documents
        );
        findings.push(Finding {
            line: document.line,
            field: path.to_owned(),
            what,
        });
    } else {
        match kind_of(document, path) {
            Ok("List") => {
                schema::check(document, schema::LIST, path, &mut findings);
                let items = document.get("items").map_or(&[][..], Node::items);
                for (index, item) in items.iter().enumerate() {
                    read_document(
                        file,
                        item,
                        &join(path, &format!("items[{index}]")),
                        bounds,
                        budget,
                        parsed,
                    );
                }
            }
            Ok(BUDGET) => match budget_of(document, path) {
                Ok(budget) => parsed.budgets.push(ManifestBudget {
                    budget: Arc::new(budget),
                    file: Arc::clone(file),
                    line: document.line,
                }),
                Err(found) => findings.extend(found),
            },
            Ok(kind) if limits::is_kind(kind) => {
                let (limit, found) = limits::limit_of(file, document, kind, path);
                parsed.limits.extend(limit);
                findings.extend(found);
            }
            Ok(_) => match pod_of(document, path) {
                Ok((pod, document_json)) => parsed.pods.push(ManifestPod {
                    pod: Arc::new(pod),
                    document: Arc::new(document_json),
                    file: Arc::clone(file),
                    line: document.line,
                }),
                Err(found) => findings.extend(found),
            },
            Err(finding) => findings.push(finding),
        }
    }
    let to_error = |Finding { line, field, what }| ManifestError::Field {
        file: Arc::clone(file),
        line,
        field,
        what,
    };
    parsed.errors.extend(findings.into_iter().map(to_error));
}

const BUDGET: &str = "PodDisruptionBudget";

/// `Pod`, `List`, [`BUDGET`] or one of [`limits::KINDS`].
fn kind_of<'document>(document: &'document Node, path: &str) -> Result<&'document str, Finding> {
    const ACCEPTED: &str = "accepted are kind: Pod and kind: List, both apiVersion: v1, kind: PodDisruptionBudget of policy/v1, and Namespace, LimitRange, ResourceQuota and PriorityClass";
    let finding = |node: &Node, name: &str, what: String| {
        Err(Finding {
            line: node.line,
            field: join(path, name),
            what,
        })
    };
    if !matches!(document.value, Value::Map(_)) {
        return finding(
            document,
            "",
            format!("expected an object, found {}; {ACCEPTED}", document.kind()),
        );
    }
    let kind = match document.get("kind") {
        None => return finding(document, "kind", format!("missing; {ACCEPTED}")),
        Some(node) => match node.text() {
            Some("Pod") => "Pod",
            Some("List" | "PodList" | "PodDisruptionBudgetList") => "List",
            Some(BUDGET) => BUDGET,
            // Their version is checked with the rest.
            Some(kind) if limits::is_kind(kind) => return Ok(kind),
            Some(kind) if is_owner(kind) => {
                let what = format!(
                    "a controller makes the pods of a {kind}, and one machine has no such controller; write each of its pods as kind: Pod"
                );
                return finding(node, "kind", what);
            }
            _ => {
                return finding(
                    node,
                    "kind",
                    format!("{} is not accepted here; {ACCEPTED}", node.kind()),
                );
            }
        },
    };
    let version = match document.get("kind").and_then(Node::text) {
        Some(BUDGET | "PodDisruptionBudgetList") => "policy/v1",
        _ => "v1",
    };
    match document.get("apiVersion") {
        None => finding(document, "apiVersion", format!("missing; {ACCEPTED}")),
        Some(node) if node.text() != Some(version) => finding(
            node,
            "apiVersion",
            format!("{} is unknown; {ACCEPTED}", node.kind()),
        ),
        Some(_) => Ok(kind),
    }
}

/// The pod, and the document without its status.
fn pod_of(document: &Node, path: &str) -> Result<(Pod, serde_json::Value), Vec<Finding>> {
    let mut check = Check {
        findings: Vec::new(),
    };
    schema::check(document, schema::POD, path, &mut check.findings);
    check_metadata(document, path, &mut check.findings);
    check.spec(document, path);
    if !check.findings.is_empty() {
        check.findings.sort_by_key(|finding| finding.line);
        return Err(check.findings);
    }
    let mut json = document.to_json();
    if let Some(object) = json.as_object_mut() {
        object.remove("status"); // what `kubectl get -o yaml` adds; the API server ignores it on creation too
    }
    let mut pod = Pod::deserialize(&json).map_err(|error| {
        vec![Finding {
            line: document.line,
            field: path.to_owned(),
            what: error.to_string(),
        }]
    })?;
    set_namespace_and_grace(&mut pod);
    if let Some(priority) = pod
        .spec
        .priority_class_name
        .as_deref()
        .and_then(system_priority)
    {
        pod.spec.priority = Some(priority);
    }
    pod.set_defaults();
    Ok((pod, json))
}

/// Sets what the API sets by itself and no plugin asks about.
pub(super) fn set_namespace_and_grace(pod: &mut Pod) {
    pod.metadata.namespace = Some(pod.namespace().to_owned());
    pod.spec
        .termination_grace_period_seconds
        .get_or_insert(GRACE_PERIOD_S);
}

fn system_priority(class: &str) -> Option<i32> {
    match class {
        SYSTEM_NODE_CRITICAL => Some(SYSTEM_NODE_CRITICAL_PRIORITY),
        SYSTEM_CLUSTER_CRITICAL => Some(SYSTEM_CRITICAL_PRIORITY),
        _ => None,
    }
}

struct Check {
    findings: Vec<Finding>,
}

impl Check {
    fn add(&mut self, line: u64, field: String, what: impl Into<String>) {
        self.findings.push(Finding {
            line,
            field,
            what: what.into(),
        });
    }

    fn spec(&mut self, document: &Node, path: &str) {
        let path = join(path, "spec");
        let Some(spec) = document.get("spec") else {
            self.add(
                document.line,
                path,
                "missing; every Pod needs a spec with containers",
            );
            return;
        };
        let empty = spec
            .get("containers")
            .is_none_or(|list| matches!(list.value, Value::List(_)) && list.items().is_empty());
        if empty {
            self.add(
                spec.line,
                join(&path, "containers"),
                "missing; every Pod needs at least one container",
            );
        }
        let mut names: BTreeMap<&str, u64> = BTreeMap::new();
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            let items = spec.get(list).map_or(&[][..], Node::items);
            for (index, container) in items.iter().enumerate() {
                let path = join(&path, &format!("{list}[{index}]"));
                match container.get("name").map(|node| (node.line, node.text())) {
                    None => self.add(
                        container.line,
                        join(&path, "name"),
                        "missing; every container needs a name",
                    ),
                    Some((line, Some(name))) if !is_dns_label(name) => {
                        let what = format!(
                            "{name:?} is not a container's name; use lower-case letters, digits and '-', at most 63"
                        );
                        self.add(line, join(&path, "name"), what);
                    }
                    Some((line, Some(name))) => {
                        if let Some(first) = names.insert(name, line) {
                            self.add(
                                line,
                                join(&path, "name"),
                                format!("{name:?} is already the container of line {first}"),
                            );
                        }
                    }
                    Some((_, None)) => {} // not text: found by the field check
                }
                if let Some(resources) = container.get("resources") {
                    self.resources(resources, &join(&path, "resources"));
                }
            }
        }
        self.volumes(spec, &path);
        if let Some(resources) = spec.get("resources") {
            self.resources(resources, &join(&path, "resources"));
        }
        if let Some(overhead) = spec.get("overhead") {
            self.quantities(overhead, &join(&path, "overhead"));
        }
        if let Some(grace) = spec.get("terminationGracePeriodSeconds")
            && matches!(&grace.value, Value::Number(number) if number.as_i64().is_some_and(|seconds| seconds < 0))
        {
            self.add(
                grace.line,
                join(&path, "terminationGracePeriodSeconds"),
                "must not be negative",
            );
        }
        self.priority(spec, &path);
    }

    /// Volumes and who mounts them (`ValidateVolumes`, `ValidateVolumeMounts`). A volume's name becomes a directory's
    /// name.
    fn volumes(&mut self, spec: &Node, path: &str) {
        let mut names: BTreeMap<&str, u64> = BTreeMap::new();
        let volumes = spec.get("volumes").map_or(&[][..], Node::items);
        for (index, volume) in volumes.iter().enumerate() {
            let path = join(path, &format!("volumes[{index}]"));
            match volume.get("name").map(|node| (node.line, node.text())) {
                Some((line, Some(name))) if is_dns_label(name) => {
                    if let Some(first) = names.insert(name, line) {
                        let what = format!("{name:?} is already the volume of line {first}");
                        self.add(line, join(&path, "name"), what);
                    }
                }
                Some((line, Some(name))) => {
                    let what = format!(
                        "{name:?} is not a volume's name; use lower-case letters, digits and '-', at most 63"
                    );
                    self.add(line, join(&path, "name"), what);
                }
                Some((line, None)) => self.add(line, join(&path, "name"), "expected text"),
                None => {
                    let what = "missing; every volume needs a name";
                    self.add(volume.line, join(&path, "name"), what);
                }
            }
            let limit = volume
                .get("emptyDir")
                .and_then(|source| source.get("sizeLimit"))
                .filter(|limit| !limit.is_null());
            if let Some(limit) = limit {
                let field = join(&join(&path, "emptyDir"), "sizeLimit");
                self.quantity(limit, field, false);
            }
        }
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            let containers = spec.get(list).map_or(&[][..], Node::items);
            for (index, container) in containers.iter().enumerate() {
                let mounts = container.get("volumeMounts").map_or(&[][..], Node::items);
                for (mount_index, mount) in mounts.iter().enumerate() {
                    let path = join(
                        path,
                        &format!("{list}[{index}].volumeMounts[{mount_index}]"),
                    );
                    let name = mount.get("name").and_then(Node::text).unwrap_or_default();
                    if !names.contains_key(name) {
                        let what = format!("{name:?} is no volume of this pod; see spec.volumes");
                        self.add(mount.line, join(&path, "name"), what);
                    }
                    let at = mount.get("mountPath").and_then(Node::text);
                    if at.is_none_or(str::is_empty) {
                        let what = "missing; every mount needs a path";
                        self.add(mount.line, join(&path, "mountPath"), what);
                    }
                }
            }
        }
    }

    fn priority(&mut self, spec: &Node, path: &str) {
        let class = spec.get("priorityClassName").and_then(Node::text);
        let Some(node) = spec.get("priority") else {
            return;
        };
        let Value::Number(number) = &node.value else {
            return;
        };
        let Some(priority) = number.as_i64() else {
            return;
        };
        let wanted = class.and_then(system_priority).map(i64::from);
        let what = match wanted {
            Some(wanted) if wanted != priority => {
                format!(
                    "{priority} differs from {wanted}, the priority of its priorityClassName; leave it out"
                )
            }
            None if !(i64::from(i32::MIN)..=USER_PRIORITY_MAX).contains(&priority) => {
                format!(
                    "{priority} is out of range; at most {USER_PRIORITY_MAX}, above that use priorityClassName: {SYSTEM_NODE_CRITICAL} or {SYSTEM_CLUSTER_CRITICAL}"
                )
            }
            _ => return,
        };
        self.add(node.line, join(path, "priority"), what);
    }

    fn resources(&mut self, node: &Node, path: &str) {
        let of = |this: &mut Self, name: &str| {
            node.get(name)
                .map(|list| this.quantities(list, &join(path, name)))
                .unwrap_or_default()
        };
        let limits = of(self, "limits");
        let requests = of(self, "requests");
        for (name, (line, request)) in &requests {
            let field = join(&join(path, "requests"), name);
            match limits.get(name) {
                Some((_, limit)) if request > limit => {
                    self.add(
                        *line,
                        field,
                        format!("{request} must be less than or equal to {name} limit of {limit}"),
                    );
                }
                Some((_, limit)) if !names::may_overcommit(name) && request != limit => {
                    self.add(
                        *line,
                        field,
                        format!("{request} must be equal to {name} limit of {limit}"),
                    );
                }
                None if !names::may_overcommit(name) => {
                    self.add(
                        *line,
                        field,
                        format!("limits.{name} must be set too: {name} cannot be overcommitted"),
                    );
                }
                _ => {}
            }
        }
        let names = || limits.keys().chain(requests.keys());
        if names().any(|name| resources::is_huge_pages(name))
            && !names().any(|name| *name == resources::CPU || *name == resources::MEMORY)
        {
            self.add(
                node.line,
                path.to_owned(),
                "hugepages need cpu or memory beside them",
            );
        }
    }

    /// The valid quantities of a resource list; what is not valid is a finding.
    fn quantities<'node>(
        &mut self,
        list: &'node Node,
        path: &str,
    ) -> BTreeMap<&'node str, (u64, Quantity)> {
        let mut quantities = BTreeMap::new();
        for (key, value) in list.fields() {
            let field = join(path, &key.name);
            let name = key.name.as_str();
            if !is_resource_name(name) {
                let what = "unknown resource; known are cpu, memory, ephemeral-storage, hugepages-<size> and vendor.example/name";
                self.add(key.line, field, what);
                continue;
            }
            if let Some(quantity) = self.quantity(value, field, names::is_whole(name)) {
                quantities.insert(name, (value.line, quantity));
            }
        }
        quantities
    }

    /// A quantity that is not negative; anything else is a finding.
    fn quantity(&mut self, value: &Node, field: String, is_whole: bool) -> Option<Quantity> {
        let text = match &value.value {
            Value::Text(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => {
                let kind = value.kind();
                let what = format!("expected a quantity such as 500m or 1Gi, found {kind}");
                self.add(value.line, field, what);
                return None;
            }
        };
        let what = match Quantity::parse(&text) {
            Err(error) => format!("{text:?} is not a quantity: {error}"),
            Ok(quantity) if quantity.sign() < 0 => {
                format!("{text} must be greater than or equal to 0")
            }
            Ok(quantity) if is_whole && quantity.milli_value() % 1000 != 0 => {
                format!("{text} must be a whole number")
            }
            Ok(quantity) => return Some(quantity),
        };
        self.add(value.line, field, what);
        None
    }
}

/// Whether a container may have a resource of this name.
fn is_resource_name(name: &str) -> bool {
    let mut errors = Vec::new();
    container_name_errors(name, "", &mut errors);
    errors.is_empty()
}

#[cfg(test)]
mod tests;
