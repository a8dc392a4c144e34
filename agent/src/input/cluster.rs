//! A cluster's objects from files, as `kubectl get … -o yaml` prints them: what the arbitrator uses of nodes,
//! namespaces, pods, budgets and Consumers.
//!
//! Objects of other kinds are counted and left out. Of Kubernetes' own objects only the fields that are used are read,
//! as the API server has checked them; a Consumer is read strictly, since it is written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::arbitration::cluster::NodeState;
use plimsoll_core::arbitration::deletion::Deletion;
use plimsoll_core::arbitration::named::{Named, NamedConsumer, NamedNode, NamedPod, Objects};
use plimsoll_core::arbitration::requests::counted;
use plimsoll_core::arbitration::units::{self, Rounding};
use plimsoll_core::kube::admission::pod_object::MoreStatus;
use plimsoll_core::kube::budget::{
    DisruptionBudget, LabelSelector, OF_A_NAMESPACE_MAX, SELECTOR_BYTES_MAX,
};
use plimsoll_core::kube::owner::OwnerReference;
use plimsoll_core::kube::pod::{DEFAULT_NAMESPACE, Phase, Pod};
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::kube::time::Time;
use plimsoll_core::protocol::cluster_link::{WITHHELD_ANNOTATION, valid_ms};

use super::manifests::{Bounds, ManifestError, read_or_stdin};
use super::yaml::{self, Limits, Node, Value};

/// Bytes of one file.
const BYTES_MAX: u64 = 256 << 20;

/// Values in one file.
const VALUES_MAX: usize = 32_000_000;

/// Bytes of a pod's node selector, with 16 for each label.
const NODE_SELECTOR_BYTES_MAX: usize = 4096;

/// How long something without a time stamp is taken to have been there: longer than any grace period.
const LONG_S: u64 = 86_400;

/// What the files have.
#[derive(Debug, Default)]
pub struct ClusterFiles {
    /// What the arbitrator judges.
    pub objects: Objects,
    /// Objects of kinds that are not used, by kind.
    pub left_out: BTreeMap<String, usize>,
}

/// Reads all files; [`STDIN`](super::manifests::STDIN) stands for `stdin`. Ages are counted up to `now_s`, in seconds
/// since 1970.
///
/// # Errors
/// All errors of all files.
pub fn read(
    paths: &[PathBuf],
    mut stdin: impl Read,
    now_s: u64,
) -> Result<ClusterFiles, Vec<ManifestError>> {
    let mut reader = Reader {
        now_s,
        newest_s: 0,
        file: Arc::from(Path::new("")),
        errors: Vec::new(),
        files: ClusterFiles::default(),
        labels: BTreeMap::new(),
        pods: Vec::new(),
        budgets: BTreeMap::new(),
    };
    for path in paths {
        let (file, text) = read_or_stdin(path, &mut stdin, BYTES_MAX);
        reader.file = file;
        match text {
            Ok(text) => reader.text(&text),
            Err(error) => reader.errors.push(error),
        }
    }
    reader.finish()
}

struct Reader {
    now_s: u64,
    /// The newest time that the files name, up to now: they are from then, or later.
    newest_s: u64,
    file: Arc<Path>,
    errors: Vec<ManifestError>,
    files: ClusterFiles,
    /// Of the nodes.
    labels: BTreeMap<String, BTreeMap<String, String>>,
    pods: Vec<FoundPod>,
    /// By namespace.
    budgets: BTreeMap<String, Vec<DisruptionBudget>>,
}

/// A pod, with what is looked up when all files are read.
struct FoundPod {
    named: NamedPod,
    pod: Pod,
    selector: BTreeMap<String, String>,
    deletion: Option<DeletionTimestamp>,
}

/// That a pod is being deleted.
#[derive(Clone, Copy)]
struct DeletionTimestamp {
    /// How long it may take.
    grace_s: u64,
    /// When it began: the timestamp is the end of the grace.
    since_s: u64,
}

impl DeletionTimestamp {
    /// A file may be old, and a pod that left when it was written has not hung since.
    fn leaving(self, newest_s: u64) -> Deletion {
        let for_s = newest_s.saturating_sub(self.since_s);
        Deletion::of(self.grace_s, for_s.saturating_mul(1000))
    }
}

impl Reader {
    /// A time at which the files were not written yet, or just then.
    fn note_time(&mut self, stamp: Option<&str>) {
        let seconds = stamp.and_then(seconds_since_1970).unwrap_or(0);
        self.newest_s = self.newest_s.max(seconds.min(self.now_s));
    }

    fn text(&mut self, text: &str) {
        let limits = Limits {
            nodes: VALUES_MAX,
            documents: Bounds::OFFLINE.documents,
            repeated_keys: false,
        };
        match yaml::documents(text, limits) {
            Ok(documents) => documents.iter().for_each(|document| self.object(document)),
            Err(error) => self.errors.push(ManifestError::syntax(&self.file, error)),
        }
    }

    fn wrong(&mut self, line: u64, field: &str, what: impl Into<String>) {
        self.errors.push(ManifestError::Field {
            file: Arc::clone(&self.file),
            line,
            field: field.to_owned(),
            what: what.into(),
        });
    }

    fn object(&mut self, document: &Node) {
        let Some(kind) = document.get("kind").and_then(Node::text) else {
            self.wrong(
                document.line,
                "kind",
                "missing; give objects as `kubectl get … -o yaml` prints them",
            );
            return;
        };
        if kind == "List" || (kind.ends_with("List") && document.get("items").is_some()) {
            let items = document.get("items").map(Node::items).unwrap_or_default();
            items.iter().for_each(|item| self.object(item));
            return;
        }
        let name = document
            .get("metadata")
            .and_then(|metadata| metadata.get("name"))
            .and_then(Node::text);
        let Some(name) = name else {
            self.wrong(
                document.line,
                "metadata.name",
                "missing; every object needs a name",
            );
            return;
        };
        match kind {
            "Node" => self.node(document, name),
            "Namespace" => {
                self.files.objects.namespaces.insert(name.to_owned());
            }
            "Pod" => self.pod(document, name),
            "PodDisruptionBudget" => self.budget(document),
            "Consumer" => self.consumer(document, name),
            other => *self.files.left_out.entry(other.to_owned()).or_default() += 1,
        }
    }

    fn node(&mut self, document: &Node, name: &str) {
        let status = document.get("status");
        let allocatable = status.and_then(|status| status.get("allocatable"));
        let Some(allocatable) = allocatable else {
            self.wrong(
                document.line,
                "status.allocatable",
                "missing; a node without it has nothing for pods",
            );
            return;
        };
        let conditions = status
            .and_then(|status| status.get("conditions"))
            .map(Node::items)
            .unwrap_or_default();
        let text =
            |node: &Node, field: &str| node.get(field).and_then(Node::text).map(str::to_owned);
        for condition in conditions {
            self.note_time(text(condition, "lastHeartbeatTime").as_deref());
        }
        let is_true = |kind: &str| {
            let found = conditions
                .iter()
                .find(|condition| text(condition, "type").as_deref() == Some(kind))?;
            Some(text(found, "status").as_deref() == Some("True"))
        };
        // Without conditions, as in a file written by hand, a node is ready.
        let is_ready = is_true("Ready").unwrap_or(true);
        let pressure = NodeState::KUBELET_PRESSURE.into_iter();
        let has_pressure = pressure
            .chain([NodeState::AGENT_PRESSURE])
            .any(|kind| is_true(kind) == Some(true));
        let cordoned = document
            .get("spec")
            .and_then(|spec| spec.get("unschedulable"));
        let is_cordoned = cordoned.is_some_and(|value| matches!(value.value, Value::Bool(true)));
        let node = NamedNode {
            name: name.to_owned(),
            allocatable: self.amounts(allocatable, "status.allocatable", Rounding::Down),
            withheld: self.withheld(document),
            state: NodeState::of(is_ready, is_cordoned, has_pressure),
        };
        let metadata = document.get("metadata");
        self.labels.insert(
            name.to_owned(),
            texts(metadata.and_then(|metadata| metadata.get("labels"))),
        );
        self.files.objects.nodes.push(node);
    }

    /// The node's annotation, which is JSON in a text.
    fn withheld(&mut self, document: &Node) -> Named {
        let annotations = document
            .get("metadata")
            .and_then(|metadata| metadata.get("annotations"));
        let Some(annotation) =
            annotations.and_then(|annotations| annotations.get(WITHHELD_ANNOTATION))
        else {
            return Named::new();
        };
        let field = format!("metadata.annotations[{WITHHELD_ANNOTATION}]");
        let limits = Limits {
            nodes: 1024,
            documents: 1,
            repeated_keys: false,
        };
        let parsed = yaml::documents(annotation.text().unwrap_or_default(), limits);
        let Ok(
            [
                Node {
                    line,
                    value: Value::Map(fields),
                },
            ],
        ) = parsed.as_deref()
        else {
            self.wrong(
                annotation.line,
                &field,
                r#"expected amounts by resource, such as {"memory":"4Gi"}"#,
            );
            return Named::new();
        };
        let fields = fields.iter().cloned();
        let (at, amounts): (Vec<_>, Vec<_>) = fields.partition(|(key, _)| key.name == "at");
        let is_void = at.first().is_some_and(|(_, at)| {
            let at_s = at.text().and_then(seconds_since_1970).unwrap_or(0);
            valid_ms(at_s.saturating_mul(1000), self.now_s.saturating_mul(1000)) == 0
        });
        if is_void {
            return Named::new();
        }
        let amounts = Node {
            line: *line,
            value: Value::Map(amounts),
        };
        self.amounts(&amounts, &field, Rounding::Up)
    }

    fn consumer(&mut self, document: &Node, name: &str) {
        let Some(spec) = document.get("spec") else {
            self.wrong(document.line, "spec", "missing; an empty one is {}");
            return;
        };
        let mut consumer = NamedConsumer {
            name: name.to_owned(),
            ..NamedConsumer::default()
        };
        for (key, value) in spec.fields().iter().filter(|(_, value)| !value.is_null()) {
            let field = format!("spec.{}", key.name);
            match key.name.as_str() {
                "namespace" => consumer.namespace = self.text_of(value, &field),
                "parent" => consumer.parent = self.text_of(value, &field),
                "weight" => match &value.value {
                    Value::Number(number) if number.as_u64().is_some() => consumer.weight = number.as_u64(),
                    _ => self.wrong(value.line, &field, format!("expected a whole number from 1 to 1000000, not {}", value.kind())),
                },
                "unlimited" => match value.value {
                    Value::Bool(unlimited) => consumer.unlimited = unlimited,
                    _ => self.wrong(value.line, &field, format!("expected true or false, not {}", value.kind())),
                },
                "hard" => consumer.hard = self.amounts(value, &field, Rounding::Down),
                "reserved" => consumer.reserved = self.amounts(value, &field, Rounding::Up),
                // Times of the arbitrator in the cluster.
                "reclaim" => {}
                _ => self.wrong(key.line, &field, "no field of a Consumer; known are namespace, parent, weight, hard, reserved, unlimited and reclaim"),
            }
        }
        self.files.objects.consumers.push(consumer);
    }

    fn text_of(&mut self, value: &Node, field: &str) -> Option<String> {
        if value.text().is_none() {
            self.wrong(
                value.line,
                field,
                format!("expected a name, not {}", value.kind()),
            );
        }
        value.text().map(str::to_owned)
    }

    /// Amounts by resource, in canonical units.
    fn amounts(&mut self, list: &Node, field: &str, rounding: Rounding) -> Named {
        let mut amounts = Named::new();
        let given = quantities(list, field, |line, field, what| {
            self.wrong(line, field, what);
        });
        for (name, quantity) in given {
            units::insert(&mut amounts, name, &quantity, rounding);
        }
        amounts
    }

    fn budget(&mut self, document: &Node) {
        let budget: DisruptionBudget = match serde_json::from_value(document.to_json()) {
            Ok(budget) => budget,
            Err(error) => {
                self.wrong(document.line, "PodDisruptionBudget", error.to_string());
                return;
            }
        };
        let selector = budget.spec.selector.as_ref();
        if let Some(bytes) = selector
            .map(LabelSelector::bytes)
            .filter(|bytes| *bytes > SELECTOR_BYTES_MAX)
        {
            let what = format!(
                "{bytes} bytes to compare with each pod, and {SELECTOR_BYTES_MAX} is the most; in a cluster no pod of the namespace is evicted then. Select by fewer labels, or leave the budget out"
            );
            self.wrong(document.line, "spec.selector", what);
            return;
        }
        let namespace = budget.metadata.namespace.as_deref();
        let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE).to_owned();
        let budgets = self.budgets.entry(namespace.clone()).or_default();
        budgets.push(budget);
        // Said once.
        if budgets.len() == OF_A_NAMESPACE_MAX + 1 {
            let what = format!(
                "namespace {namespace} has more than {OF_A_NAMESPACE_MAX} disruption budgets; in a cluster no pod of it is evicted then. Leave out those that it does not need"
            );
            self.wrong(document.line, "PodDisruptionBudget", what);
        }
    }

    fn pod(&mut self, document: &Node, name: &str) {
        let pod: Pod = match serde_json::from_value(document.to_json()) {
            Ok(pod) => pod,
            Err(error) => {
                self.wrong(
                    document.line,
                    &format!("Pod {name}"),
                    format!("{error}; correct it, or leave the pod out"),
                );
                return;
            }
        };
        let part = |of: &str, field: &str| document.get(of).and_then(|part| part.get(field));
        let text = |of: &str, field: &str| part(of, field).and_then(Node::text);
        if text("status", "phase").is_some_and(|name| Phase::of(name).is_terminal()) {
            return;
        }
        let node = text("spec", "nodeName").filter(|node| !node.is_empty());
        let node = node.map(str::to_owned);
        let requests = match (&node, document.get("status")) {
            // A resize that has not been done yet, or cannot be: as the scheduler counts it.
            (Some(_), Some(status)) => match serde_json::from_value(status.to_json()) {
                Ok(more) => counted(&MoreStatus::as_scheduled(&more, &pod)),
                Err(error) => {
                    let what = format!("{error}; correct it, or leave the status out");
                    self.wrong(status.line, &format!("Pod {name}: status"), what);
                    return;
                }
            },
            _ => counted(&pod),
        };
        let since = |stamp: Option<&str>| {
            stamp
                .and_then(seconds_since_1970)
                .map_or(LONG_S, |stamp| self.now_s.saturating_sub(stamp))
        };
        let gates = part("spec", "schedulingGates").map(Node::items);
        // A gate holds it back: it asks for nothing.
        if node.is_none() && gates.is_some_and(|gates| !gates.is_empty()) {
            return;
        }
        let created = since(text("metadata", "creationTimestamp"));
        let started = text("status", "startTime").map_or(created, |start| since(Some(start)));
        let owners = part("metadata", "ownerReferences").map(Node::items);
        let mut owners = owners.unwrap_or_default().iter().map(owner);
        let deletion = document.get("metadata").and_then(deletion);
        self.note_time(text("metadata", "creationTimestamp"));
        self.note_time(text("status", "startTime"));
        if let Some(deletion) = deletion {
            self.newest_s = self.newest_s.max(deletion.since_s.min(self.now_s));
        }
        let named = NamedPod {
            uid: pod.uid().as_str().to_owned(),
            namespace: pod.namespace().to_owned(),
            name: name.to_owned(),
            age: if node.is_some() { started } else { 0 },
            waiting: if node.is_some() { 0 } else { created },
            // A pending one waits for nothing any more.
            leaving: node.is_none() && deletion.is_some(),
            node,
            requests,
            priority: pod.spec.priority.unwrap_or(0).into(),
            daemon: pod.is_mirror() || owners.any(|owner| owner.is_daemon_set()),
            nodes: None,
            budgets: BTreeSet::new(),
        };
        let selector = texts(part("spec", "nodeSelector"));
        if let Err(what) = check_selector(&selector) {
            self.wrong(document.line, "spec.nodeSelector", what);
            return;
        }
        self.pods.push(FoundPod {
            named,
            pod,
            selector,
            deletion,
        });
    }

    /// Looks up which nodes and budgets pods mean.
    fn finish(mut self) -> Result<ClusterFiles, Vec<ManifestError>> {
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let objects = &mut self.files.objects;
        for (namespace, budgets) in &self.budgets {
            for budget in budgets {
                let allowed = budget
                    .status
                    .and_then(|status| status.disruptions_allowed)
                    .unwrap_or(0);
                objects.budgets.insert(
                    (namespace.clone(), budget.metadata.name.clone()),
                    allowed.into(),
                );
            }
        }
        let there = objects.nodes.iter();
        let there = there.filter(|node| node.state != NodeState::NotReady);
        let there: BTreeSet<String> = there.map(|node| node.name.clone()).collect();
        for found in self.pods {
            let FoundPod {
                mut named,
                pod,
                selector,
                deletion,
            } = found;
            let leaving = deletion.map_or(Deletion::No, |deletion| deletion.leaving(self.newest_s));
            // From a node that is lost, or that nobody knows, none comes back.
            let is_lost = leaving != Deletion::No
                && named
                    .node
                    .as_deref()
                    .is_some_and(|node| !there.contains(node));
            named.leaving |= is_lost || leaving == Deletion::Soon;
            // Nothing can be done about it but by its node.
            named.daemon |= leaving == Deletion::Hangs;
            // The Eviction API asks no budget of a pod that is being deleted.
            let budgets = self.budgets.get(&named.namespace);
            let budgets = budgets.filter(|_| leaving != Deletion::Later);
            let selecting = budgets
                .into_iter()
                .flatten()
                .filter(|budget| budget.selects(&pod));
            named.budgets = selecting
                .map(|budget| budget.metadata.name.clone())
                .collect();
            if !selector.is_empty() {
                let has_all = |labels: &BTreeMap<String, String>| {
                    selector
                        .iter()
                        .all(|(name, value)| labels.get(name) == Some(value))
                };
                let nodes = self.labels.iter().filter(|(_, labels)| has_all(labels));
                named.nodes = Some(nodes.map(|(name, _)| name.clone()).collect());
            }
            objects.pods.push(named);
        }
        Ok(self.files)
    }
}

/// One of a pod's owners. What is not as the API server has it is another one.
fn owner(node: &Node) -> OwnerReference {
    let text = |field: &str| node.get(field).and_then(Node::text).unwrap_or_default();
    let controller = node.get("controller").map(|node| &node.value);
    OwnerReference {
        api_version: text("apiVersion").to_owned(),
        kind: text("kind").to_owned(),
        controller: Some(matches!(controller, Some(Value::Bool(true)))),
    }
}

/// Since when the pod with this metadata is being deleted; none: it is not.
fn deletion(metadata: &Node) -> Option<DeletionTimestamp> {
    let end = metadata.get("deletionTimestamp")?;
    let end_s = end.text().and_then(seconds_since_1970).unwrap_or(0);
    let grace_s = metadata.get("deletionGracePeriodSeconds");
    let grace_s = match grace_s.map(|node| &node.value) {
        Some(Value::Number(seconds)) => seconds.as_u64().unwrap_or(0),
        _ => 0,
    };
    Some(DeletionTimestamp {
        grace_s,
        since_s: end_s.saturating_sub(grace_s),
    })
}

/// A cluster compares it with the labels of each node. What is wrong with one that is too long for that.
fn check_selector(selector: &BTreeMap<String, String>) -> Result<(), String> {
    let lengths = selector.iter().map(|(key, value)| key.len() + value.len());
    let bytes = lengths.sum::<usize>() + 16 * selector.len();
    if bytes > NODE_SELECTOR_BYTES_MAX {
        return Err(format!(
            "{bytes} bytes to compare with each node, and {NODE_SELECTOR_BYTES_MAX} is the most; in a cluster no room is made for such a pod. Select by fewer labels, or leave the pod out"
        ));
    }
    Ok(())
}

/// The texts of a map.
fn texts(map: Option<&Node>) -> BTreeMap<String, String> {
    let fields = map.map(Node::fields).unwrap_or_default();
    fields
        .iter()
        .filter_map(|(key, value)| Some((key.name.clone(), value.text()?.to_owned())))
        .collect()
}

/// The quantities of a map by resource, from 0. `wrong` gets line, field and text of each error.
pub(super) fn quantities<'list>(
    list: &'list Node,
    field: &str,
    mut wrong: impl FnMut(u64, &str, String),
) -> Vec<(&'list str, Quantity)> {
    if !matches!(list.value, Value::Map(_)) {
        let what = format!("expected amounts by resource, not {}", list.kind());
        wrong(list.line, field, what);
    }
    let mut quantities = Vec::new();
    for (key, value) in list.fields() {
        let text = match &value.value {
            Value::Text(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        let field = format!("{field}.{}", key.name);
        match Quantity::parse(&text) {
            Ok(quantity) if quantity.sign() >= 0 => quantities.push((&*key.name, quantity)),
            Ok(_) => wrong(
                value.line,
                &field,
                "is below 0; give an amount from 0".to_owned(),
            ),
            Err(error) => wrong(value.line, &field, error.to_string()),
        }
    }
    quantities
}

/// In thousandths for CPU, else in whole units; from 0.
pub(crate) fn in_canonical_units(name: &str, quantity: &Quantity) -> u64 {
    units::canonical(name, quantity, Rounding::Up)
}

/// Of a time stamp of the API, such as `2026-11-23T02:39:40Z`; fractions of a second are dropped.
pub(crate) fn seconds_since_1970(stamp: &str) -> Option<u64> {
    let time = Time::parse(stamp).ok()?;
    u64::try_from(time.seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stamps() {
        assert_eq!(seconds_since_1970("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(
            seconds_since_1970("2000-02-29T12:00:01Z"),
            Some(951_825_601)
        );
        assert_eq!(
            seconds_since_1970("2026-11-23T02:39:40.123456Z"),
            Some(1_795_401_580)
        );
        for wrong in [
            "",
            "2026-11-23",
            "2026-13-23T02:39:40Z",
            "2026-11-00T00:00:00Z",
        ] {
            assert_eq!(seconds_since_1970(wrong), None, "{wrong}");
        }
    }

    fn read_text(text: &str) -> Result<ClusterFiles, String> {
        let read = read(&["-".into()], text.as_bytes(), 1_000_000);
        read.map_err(|errors| {
            errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        })
    }

    #[test]
    fn objects_as_kubectl_prints_them() {
        let files = read_text(
            r#"
apiVersion: v1
kind: List
items:
- kind: Node
  metadata: {name: n1, labels: {disk: ssd}, annotations: {plimsoll.dev/withheld: '{"memory":"1Gi"}'}}
  spec: {unschedulable: true}
  status: {allocatable: {cpu: 3920m, memory: "7Gi", pods: "110"}, conditions: [{type: Ready, status: "True"}]}
- kind: Pod
  metadata: {name: p, namespace: web, uid: u1, creationTimestamp: "1970-01-12T13:46:30Z", labels: {app: p}, ownerReferences: [{kind: ReplicaSet}]}
  spec:
    nodeName: n1
    nodeSelector: {disk: ssd}
    containers: [{name: c, resources: {requests: {cpu: 0.5, memory: 100M}}}]
  status: {phase: Running}
- {kind: Pod, metadata: {name: done, namespace: web}, status: {phase: Succeeded}}
- kind: PodDisruptionBudget
  metadata: {name: b, namespace: web}
  spec: {minAvailable: 1, selector: {matchLabels: {app: p}}}
  status: {disruptionsAllowed: 2}
- {kind: Service, metadata: {name: s}}
---
kind: Consumer
metadata: {name: web}
spec: {namespace: web, weight: 2, hard: {requests.cpu: "6"}, reserved: {memory: 1Gi}}
"#,
        )
        .unwrap();
        let objects = &files.objects;
        let node = &objects.nodes[0];
        assert_eq!(
            (node.state, node.allocatable["cpu"], node.withheld["memory"]),
            (NodeState::Cordoned, 3920, 1 << 30)
        );
        let [pod] = objects.pods.as_slice() else {
            panic!("{:?}", objects.pods)
        };
        assert_eq!(
            (
                pod.requests["cpu"],
                pod.requests["memory"],
                pod.requests["pods"],
                pod.age
            ),
            (500, 100_000_000, 1, 10)
        );
        assert_eq!(
            (&pod.nodes, &pod.budgets),
            (&Some(["n1".to_owned()].into()), &["b".to_owned()].into())
        );
        assert_eq!(objects.budgets[&("web".to_owned(), "b".to_owned())], 2);
        assert_eq!(
            (
                objects.consumers[0].weight,
                objects.consumers[0].hard["cpu"]
            ),
            (Some(2), 6000)
        );
        assert_eq!(files.left_out["Service"], 1);
    }

    /// Its node has not given it the third CPU so far, and can never give the other pod a thousand.
    #[test]
    fn a_resize_of_a_pod_as_a_whole_counts_as_in_a_cluster() {
        let requests = |asked: &str, reason: &str| {
            let text = format!(
                r#"
kind: Pod
metadata: {{name: p, namespace: web}}
spec: {{nodeName: n1, resources: {{requests: {{cpu: {asked}}}}}, containers: [{{name: c}}]}}
status:
  resources: {{requests: {{cpu: 2}}}}
  allocatedResources: {{cpu: 2}}
  conditions: [{{type: PodResizePending, status: "True", reason: {reason}}}]
"#
            );
            let pod = read_text(&text).unwrap().objects.pods.remove(0);
            pod.requests["cpu"]
        };
        assert_eq!(requests("3", "Deferred"), 3_000);
        assert_eq!(requests("1", "Deferred"), 2_000);
        assert_eq!(requests("1000", "Infeasible"), 2_000);
    }

    #[test]
    fn a_node_under_pressure_and_a_gated_pod_are_as_in_a_cluster() {
        // It is 1970-01-12T13:46:40Z.
        for (at, pressure, withheld, state) in [
            ("13:46:00", "True", Some(4096), NodeState::Cordoned),
            ("13:45:40", "True", None, NodeState::Cordoned),
            ("13:48:00", "False", None, NodeState::Ready),
        ] {
            let files = read_text(&format!(
                r#"
kind: Node
metadata: {{name: n1, annotations: {{plimsoll.dev/withheld: '{{"at":"1970-01-12T{at}Z","memory":"4096"}}'}}}}
status: {{allocatable: {{memory: 7Gi}}, conditions: [{{type: Ready, status: "True"}}, {{type: MemoryPressure, status: "{pressure}"}}]}}
---
kind: Pod
metadata: {{name: p, namespace: web}}
spec: {{schedulingGates: [{{name: x}}], containers: [{{name: c}}]}}
"#
            ))
            .unwrap();
            let node = &files.objects.nodes[0];
            assert_eq!(
                (node.withheld.get("memory").copied(), node.state),
                (withheld, state),
                "{at}"
            );
            assert!(files.objects.pods.is_empty());
        }
    }

    /// Ten seconds of grace, and it was deleted at 13:00:00.
    #[test]
    fn a_deletion_is_as_old_as_the_files_and_not_as_what_is_read_today() {
        let leaving = |beside: &str| {
            let text = format!(
                r#"
kind: Pod
metadata: {{name: p, namespace: web, deletionTimestamp: "1970-01-12T13:00:10Z", deletionGracePeriodSeconds: 10}}
spec: {{nodeName: n1, containers: [{{name: c}}]}}
---
kind: Node
metadata: {{name: n1}}
status: {{allocatable: {{memory: 7Gi}}, conditions: [{{type: Ready, status: "True", lastHeartbeatTime: "{beside}"}}]}}
"#
            );
            let pod = read_text(&text).unwrap().objects.pods.remove(0);
            (pod.leaving, pod.daemon)
        };
        // Three quarters of an hour ago.
        assert_eq!(leaving(""), (true, false));
        assert_eq!(leaving("1970-01-12T13:00:39Z"), (true, false));
        // It hung when the file was written.
        assert_eq!(leaving("1970-01-12T13:00:40Z"), (false, true));
        // A clock that is ahead of this one counts as this one.
        assert_eq!(leaving("1970-02-12T00:00:00Z"), (false, true));
    }

    #[test]
    fn budgets_and_selectors_beyond_what_is_compared_are_errors() {
        let budgets = |count: usize| {
            let budget = |at: usize| {
                format!(
                    "kind: PodDisruptionBudget\nmetadata: {{name: b{at}, namespace: web}}\nspec: {{selector: {{}}}}\n---\n"
                )
            };
            (0..count).map(budget).collect::<String>()
        };
        let most = read_text(&budgets(100)).unwrap();
        assert_eq!(most.objects.budgets.len(), 100);
        let errors = read_text(&budgets(103)).unwrap_err();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(
            errors.contains("namespace web has more than 100 disruption budgets"),
            "{errors}"
        );
        let selector = |value: usize| {
            let value = "v".repeat(value);
            read_text(&format!(
                "kind: PodDisruptionBudget\nmetadata: {{name: b}}\nspec: {{selector: {{matchLabels: {{app: {value}}}}}}}\n"
            ))
        };
        assert!(selector(1024 - 16 - 3).is_ok());
        let errors = selector(1024 - 16 - 2).unwrap_err();
        assert!(
            errors.contains("spec.selector: 1025 bytes to compare with each pod"),
            "{errors}"
        );
        let nodes = |labels: usize| {
            let labels: Vec<String> = (0..labels).map(|at| format!("l{at:03}: abcd")).collect();
            let labels = labels.join(", ");
            read_text(&format!(
                "kind: Pod\nmetadata: {{name: p}}\nspec: {{nodeSelector: {{{labels}}}, containers: [{{name: c}}]}}\n"
            ))
        };
        assert!(nodes(4096 / 24).is_ok());
        let errors = nodes(4096 / 24 + 1).unwrap_err();
        assert!(
            errors.contains("spec.nodeSelector: 4104 bytes to compare with each node"),
            "{errors}"
        );
    }

    /// As in a cluster: it has a year to leave, and none comes back from a node that is not there.
    #[test]
    fn a_pod_that_leaves_from_a_node_that_no_file_names_has_left() {
        let leaving = |node: &str| {
            let text = format!(
                r#"
kind: Node
metadata: {{name: n1}}
status: {{allocatable: {{memory: 7Gi}}}}
---
kind: Pod
metadata: {{name: p, namespace: web, deletionTimestamp: "1971-01-12T13:00:00Z", deletionGracePeriodSeconds: 31536000}}
spec: {{nodeName: {node}, containers: [{{name: c}}]}}
"#
            );
            read_text(&text).unwrap().objects.pods[0].leaving
        };
        assert!(!leaving("n1"));
        assert!(leaving("gone"));
    }

    #[test]
    fn what_a_tenant_can_write_exempts_no_pod() {
        let is_exempt = |metadata: &str| {
            let text = format!(
                "kind: Pod\nmetadata: {{name: p, namespace: web, {metadata}}}\nspec: {{nodeName: n1, containers: [{{name: c}}]}}\n"
            );
            read_text(&text).unwrap().objects.pods[0].daemon
        };
        for (metadata, exempt) in [
            ("annotations: {kubernetes.io/config.source: file}", false),
            ("annotations: {kubernetes.io/config.mirror: x}", true),
            (
                "ownerReferences: [{apiVersion: v1, kind: Node, controller: true}]",
                false,
            ),
            (
                "ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, controller: true}]",
                true,
            ),
            (
                "ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet}]",
                false,
            ),
            (
                "ownerReferences: [{apiVersion: example.com/v1, kind: DaemonSet, controller: true}]",
                false,
            ),
        ] {
            assert_eq!(is_exempt(metadata), exempt, "{metadata}");
        }
    }

    #[test]
    fn errors_name_file_line_field_and_what_to_do() {
        let errors = read_text(
            "kind: Consumer\nmetadata: {name: a}\nspec:\n  wieght: 2\n  hard: {cpu: many}\n  weight: -1\n---\nkind: Node\nmetadata: {name: n1}\n---\nmetadata: {}\n",
        )
        .unwrap_err();
        for line in [
            "standard input:4: spec.wieght: no field of a Consumer; known are",
            "standard input:5: spec.hard.cpu: quantity \"many\"",
            "standard input:6: spec.weight: expected a whole number",
            "status.allocatable: missing",
            "kind: missing; give objects as",
        ] {
            assert!(errors.contains(line), "{line}\n{errors}");
        }
    }
}
