//! From a manifest's text to pods, as the API server would admit them.
//!
//! Rules: `pkg/apis/core/validation/validation.go` (names, `ValidateContainerResourceRequirements`), `pkg/apis/core/v1/defaults.go` and
//! the Priority admission plugin of Kubernetes 1.36. Each finding names file, line and field; a document with a finding gives no pod.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use plimsoll_core::kube::pod::{
    DEFAULT_NAMESPACE, Pod, SYSTEM_CRITICAL_PRIORITY, SYSTEM_NODE_CRITICAL,
};
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::kube::resources;

use super::budgets::{ManifestBudget, budget_of};
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
/// Longest file name on Linux, less `pod`: the UID is part of the cgroup's name.
const UID_BYTES_MAX: usize = 252;

/// What a file gave.
#[derive(Debug, Clone, Default)]
pub(super) struct Parsed {
    pub(super) pods: Vec<ManifestPod>,
    pub(super) budgets: Vec<ManifestBudget>,
    pub(super) errors: Vec<ManifestError>,
}

/// Reads all documents of a text.
pub(super) fn parse(file: &Arc<Path>, text: &str, bounds: Bounds) -> Parsed {
    let mut parsed = Parsed::default();
    let documents = match documents(text, bounds.limits()) {
        Ok(documents) => documents,
        Err(error) => {
            parsed.errors.push(ManifestError::Syntax {
                file: Arc::clone(file),
                line: error.line,
                what: error.what,
            });
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
            Ok(_) => match pod_of(document, path) {
                Ok(pod) => parsed.pods.push(ManifestPod {
                    pod: Arc::new(pod),
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

/// `Pod`, `List` or [`BUDGET`].
fn kind_of<'document>(document: &'document Node, path: &str) -> Result<&'document str, Finding> {
    const ACCEPTED: &str = "accepted are kind: Pod and kind: List, both apiVersion: v1, and kind: PodDisruptionBudget of policy/v1";
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

/// Checks `metadata`.
pub(super) fn check_metadata(document: &Node, path: &str, findings: &mut Vec<Finding>) {
    let mut check = Check {
        findings: std::mem::take(findings),
    };
    check.metadata(document, path);
    *findings = check.findings;
}

fn pod_of(document: &Node, path: &str) -> Result<Pod, Vec<Finding>> {
    let mut check = Check {
        findings: Vec::new(),
    };
    schema::check(document, schema::POD, path, &mut check.findings);
    check.metadata(document, path);
    check.spec(document, path);
    if !check.findings.is_empty() {
        check.findings.sort_by_key(|finding| finding.line);
        return Err(check.findings);
    }
    let mut json = document.to_json();
    if let Some(object) = json.as_object_mut() {
        object.remove("status"); // what `kubectl get -o yaml` adds; the API server ignores it on creation too
    }
    let mut pod: Pod = serde_json::from_value(json).map_err(|error| {
        vec![Finding {
            line: document.line,
            field: path.to_owned(),
            what: error.to_string(),
        }]
    })?;
    pod.metadata.namespace = Some(pod.namespace().to_owned());
    pod.spec
        .termination_grace_period_seconds
        .get_or_insert(GRACE_PERIOD_S);
    if let Some(priority) = pod
        .spec
        .priority_class_name
        .as_deref()
        .and_then(system_priority)
    {
        pod.spec.priority = Some(priority);
    }
    pod.set_defaults();
    Ok(pod)
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

    fn metadata(&mut self, document: &Node, path: &str) {
        let path = join(path, "metadata");
        let metadata = document.get("metadata");
        let text = |name: &str| {
            metadata
                .and_then(|node| node.get(name))
                .and_then(|node| Some((node.line, node.text()?)))
        };
        match text("name") {
            None | Some((_, "")) => {
                let line = metadata.map_or(document.line, |node| node.line);
                self.add(line, join(&path, "name"), "missing; it needs a name");
            }
            Some((line, name)) if !is_dns_subdomain(name) => {
                let what = format!(
                    "{name:?} is not a name; use lower-case letters, digits, '-' and '.', at most 253, a letter or digit at both ends"
                );
                self.add(line, join(&path, "name"), what);
            }
            Some(_) => {}
        }
        if let Some((line, namespace)) = text("namespace")
            .filter(|(_, namespace)| !namespace.is_empty() && !is_dns_label(namespace))
        {
            let what = format!(
                "{namespace:?} is not a namespace; use lower-case letters, digits and '-', at most 63 (default: {DEFAULT_NAMESPACE})"
            );
            self.add(line, join(&path, "namespace"), what);
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
            self.add(line, join(&path, "uid"), what);
        }
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

    /// Volumes and who mounts them (`ValidateVolumes`, `ValidateVolumeMounts`). A volume's name becomes a directory's name.
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
                Some((_, limit)) if !is_overcommitable(name) && request != limit => {
                    self.add(
                        *line,
                        field,
                        format!("{request} must be equal to {name} limit of {limit}"),
                    );
                }
                None if !is_overcommitable(name) => {
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
            if let Some(quantity) = self.quantity(value, field, is_whole(name)) {
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

/// `helper.IsStandardContainerResourceName`, hugepages and extended resources.
fn is_resource_name(name: &str) -> bool {
    matches!(
        name,
        resources::CPU | resources::MEMORY | resources::EPHEMERAL_STORAGE
    ) || resources::is_huge_pages(name)
        || name
            .split_once('/')
            .is_some_and(|(domain, name)| is_dns_subdomain(domain) && !name.is_empty())
}

/// `helper.IsOvercommitAllowed`: extended resources and huge pages are handed out whole.
fn is_overcommitable(name: &str) -> bool {
    !name.contains('/') && !resources::is_huge_pages(name)
}

/// `helper.IsIntegerResourceName`.
fn is_whole(name: &str) -> bool {
    name.contains('/')
}

/// RFC 1123 label.
fn is_dns_label(name: &str) -> bool {
    let is_end = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let bytes = name.as_bytes();
    bytes.len() <= 63
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
}

/// RFC 1123 subdomain: labels with dots between; only the whole has a length limit.
fn is_dns_subdomain(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_end = |byte: Option<&u8>| {
            byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let bytes = part.as_bytes();
        is_end(bytes.first())
            && is_end(bytes.last())
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::super::DOCUMENTS_PER_FILE_MAX;
    use super::*;

    fn parse_text(text: &str) -> Parsed {
        parse(&Arc::from(Path::new("pods.yaml")), text, Bounds::MANIFEST)
    }

    const GOOD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  priorityClassName: system-cluster-critical
  containers:
  - name: app
    image: nginx
    livenessProbe: {httpGet: {path: /, port: 80}}
    resources:
      limits: {cpu: 1, memory: 1Gi}
      requests:
        cpu: 0.5
";

    #[test]
    fn defaults_are_those_of_the_api_server() {
        let parsed = parse_text(GOOD);
        assert!(parsed.errors.is_empty(), "{:?}", parsed.errors);
        let pod = &parsed.pods[0].pod;
        assert_eq!(
            (pod.uid().as_str(), pod.metadata.namespace.as_deref()),
            ("default_web", Some("default"))
        );
        assert_eq!(
            (pod.priority(), pod.spec.termination_grace_period_seconds),
            (2_000_000_000, Some(30))
        );
        let resources = &pod.spec.containers[0].resources;
        assert_eq!(
            (
                resources.request("cpu").to_string(),
                resources.request("memory").to_string()
            ),
            ("500m".into(), "1Gi".into())
        );
    }

    #[test]
    fn every_error_names_file_line_and_field() {
        // What is replaced in GOOD, by what, and what the error has to say.
        let cases = [
            (
                "resources:",
                "resorces:",
                "pods.yaml:11: spec.containers[0].resorces: unknown field; did you mean resources?",
            ),
            (
                "memory: 1Gi",
                "memory: 12Qi",
                "pods.yaml:12: spec.containers[0].resources.limits.memory: \"12Qi\" is not a quantity",
            ),
            (
                "memory: 1Gi",
                "memory: -1",
                "pods.yaml:12: spec.containers[0].resources.limits.memory: -1 must be greater",
            ),
            (
                "memory: 1Gi",
                "memory: [1]",
                "pods.yaml:12: spec.containers[0].resources.limits.memory: expected a quantity",
            ),
            (
                "memory: 1Gi",
                "memroy: 1Gi",
                "pods.yaml:12: spec.containers[0].resources.limits.memroy: unknown resource",
            ),
            (
                "cpu: 0.5",
                "cpu: 2",
                "pods.yaml:14: spec.containers[0].resources.requests.cpu: 2 must be less than or equal to cpu limit of 1",
            ),
            (
                "cpu: 0.5",
                "hugepages-2Mi: 4Mi",
                "pods.yaml:14: spec.containers[0].resources.requests.hugepages-2Mi: limits.hugepages-2Mi must be set",
            ),
            (
                "memory: 1Gi",
                "example.com/gpu: 0.5",
                "pods.yaml:12: spec.containers[0].resources.limits.example.com/gpu: 0.5 must be a whole",
            ),
            (
                "kind: Pod",
                "kind: Deployment",
                "pods.yaml:2: kind: the text \"Deployment\" is not accepted here; accepted are kind: Pod",
            ),
            (
                "apiVersion: v1",
                "apiVersion: v2",
                "pods.yaml:1: apiVersion: the text \"v2\" is unknown",
            ),
            ("apiVersion: v1\n", "", "apiVersion: missing"),
            (
                "name: web",
                "name: Web",
                "pods.yaml:4: metadata.name: \"Web\" is not a name",
            ),
            ("name: web", "namespace: n", "metadata.name: missing"),
            (
                "name: web",
                "name: web\n  uid: ../x",
                "pods.yaml:5: metadata.uid: \"../x\" cannot name a cgroup",
            ),
            (
                "name: web",
                "name: 7",
                "pods.yaml:4: metadata.name: expected text (put it in quotes), found the number 7",
            ),
            (
                "name: app",
                "name: app\n  - name: app",
                "pods.yaml:9: spec.containers[1].name: \"app\" is already the container of line 8",
            ),
            (
                "  priorityClassName: system-cluster-critical",
                "  priority: 2000000000",
                "pods.yaml:6: spec.priority: 2000000000 is out of range",
            ),
            (
                "critical\n",
                "critical\n  priority: 5\n",
                "pods.yaml:7: spec.priority: 5 differs from 2000000000",
            ),
            (
                "critical\n",
                "critical\n  terminationGracePeriodSeconds: -1\n",
                "pods.yaml:7: spec.terminationGracePeriodSeconds: must not",
            ),
            ("image: nginx", "image: nginx\n   bad", "pods.yaml:"),
            (
                "  containers:",
                "  volumes: [{name: ../etc, emptyDir: {}}]\n  containers:",
                "pods.yaml:7: spec.volumes[0].name: \"../etc\" is not a volume's name",
            ),
            (
                "  containers:",
                "  volumes: [{name: a}, {emptyDir: {}}, {name: a}]\n  containers:",
                "pods.yaml:7: spec.volumes[2].name: \"a\" is already the volume of line 7",
            ),
            (
                "  containers:",
                "  volumes: [{emptyDir: {}}]\n  containers:",
                "pods.yaml:7: spec.volumes[0].name: missing",
            ),
            (
                "  containers:",
                "  volumes: [{name: a, emptyDir: {sizeLimit: -1Gi}}]\n  containers:",
                "pods.yaml:7: spec.volumes[0].emptyDir.sizeLimit: -1Gi must be greater",
            ),
            (
                "    image: nginx",
                "    volumeMounts: [{name: a, mountPath: /a}]",
                "pods.yaml:9: spec.containers[0].volumeMounts[0].name: \"a\" is no volume of this pod",
            ),
            (
                "    image: nginx",
                "    volumeMounts: [{name: a}]",
                "pods.yaml:9: spec.containers[0].volumeMounts[0].mountPath: missing",
            ),
        ];
        for (old, new, wanted) in cases {
            assert!(GOOD.contains(old), "{old}");
            let parsed = parse_text(&GOOD.replacen(old, new, 1));
            assert!(parsed.pods.is_empty(), "{new}");
            let errors: Vec<_> = parsed.errors.iter().map(ToString::to_string).collect();
            assert!(
                errors.iter().any(|error| error.contains(wanted)),
                "{new}: {errors:#?}"
            );
        }
    }

    #[test]
    fn one_bad_document_does_not_take_the_others() {
        let bad = GOOD
            .replace("name: web", "name: bad")
            .replace("1Gi", "12Qi");
        let third = GOOD.replace("name: web", "name: third");
        let parsed = parse_text(&format!("{GOOD}---\n{bad}---\n# nothing\n---\n{third}"));
        let names: Vec<_> = parsed
            .pods
            .iter()
            .map(|pod| pod.pod.metadata.name.as_str())
            .collect();
        assert_eq!(
            (names, parsed.errors.len()),
            (vec!["web", "third"], 1),
            "{:?}",
            parsed.errors
        );
    }

    #[test]
    fn lists_and_json() {
        let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME"},"spec":{"containers":[{"name":"c"}]},"status":{"qosClass":"Guaranteed"}}"#;
        let text = format!(
            r#"{{"apiVersion":"v1","kind":"List","metadata":{{}},"items":[{},{},{{"apiVersion":"apps/v1","kind":"Job"}}]}}"#,
            pod.replace("NAME", "a"),
            pod.replace("NAME", "b")
        );
        let parsed = parse_text(&text);
        assert_eq!(parsed.pods.len(), 2, "{:?}", parsed.errors);
        assert!(
            parsed.pods[0].pod.status.qos_class.is_none(),
            "a manifest's status is not believed"
        );
        assert!(
            parsed.errors[0].to_string().contains("items[2].kind"),
            "{}",
            parsed.errors[0]
        );
    }

    #[test]
    fn too_many_documents_are_one_error() {
        let text = GOOD.to_owned() + "---\n";
        let parsed = parse_text(&text.repeat(DOCUMENTS_PER_FILE_MAX + 5));
        assert_eq!(
            (parsed.pods.len(), parsed.errors.len()),
            (DOCUMENTS_PER_FILE_MAX - 1, 1)
        );
    }
}
