//! What is set and not acted on as the kubelet would: nothing that changes eviction, QoS or OOM handling passes in
//! silence.

use plimsoll_core::kube::duration;
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::kube::resources::EPHEMERAL_STORAGE;
use plimsoll_core::model::signal::Signal;

use super::document::{Node, Origin, Value};
use super::kubelet::{DEFAULT_EVICTION_HARD, FIELDS};
use super::plimsoll;
use super::resolve::Effective;
use super::schema::{self, Class, Field, Shape};
use super::tree::GATES;
use super::tree::Tree;

/// Feature gates that change eviction, QoS, OOM handling or placement in the kubelet and are not acted on, with their
/// defaults in 1.36.
const GATES_NOT_ACTED_ON: [(&str, bool); 6] = [
    ("InPlacePodVerticalScaling", true),
    ("InPlacePodVerticalScalingExclusiveCPUs", false),
    ("InPlacePodVerticalScalingExclusiveMemory", false),
    ("KubeletSeparateDiskGC", true),
    ("LocalStorageCapacityIsolationFSQuotaMonitoring", false),
    ("PodLevelResources", true),
];

/// Something that is accepted, and does not do what the kubelet would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Where the value comes from.
    pub origin: Origin,
    /// The field.
    pub field: String,
    /// What is different.
    pub text: String,
}

impl Effective {
    /// What is set and not acted on as the kubelet would.
    pub fn remarks(&self) -> Vec<Remark> {
        let tree = Tree(&self.root);
        let mut remarks = Vec::new();
        let mut say = |origin: Origin, field: String, text: String| {
            remarks.push(Remark {
                origin,
                field,
                text,
            });
        };
        for field in FIELDS
            .iter()
            .filter(|field| field.class == Class::NotActedOn)
        {
            let Some(node) = self.root.get(field.name) else {
                continue;
            };
            if node.origin == Origin::Default || same_as_default(node, field) {
                continue;
            }
            let text = match field.name {
                "cgroupDriver" => {
                    "systemd applies only with --kubernetes, where plimsoll finds the kubelet's cgroups with either driver; without it, plimsoll creates cgroups with the names of cgroupfs"
                        .to_owned()
                }
                _ => format!("accepted, and not acted on: {}", field.meaning),
            };
            say(node.origin, field.name.to_owned(), text);
        }
        let section = tree.object("plimsoll");
        for field in plimsoll::FIELDS {
            if let Some(section) = section
                && field.class == Class::NotActedOn
                && let Some(origin) = section.given(field.name)
                && section.bool(field.name) != Some(false)
            {
                let text = format!("accepted, and not acted on: {}", field.meaning);
                say(origin, format!("plimsoll.{}", field.name), text);
            }
        }
        for list in ["kubeReserved", "systemReserved"] {
            for (name, quantity, origin) in tree.quantities(list) {
                if name == EPHEMERAL_STORAGE && !quantity.is_zero() {
                    say(
                        origin,
                        format!("{list}: {name}"),
                        "accepted, and not acted on: it changes the node's status, which the kubelet reports".to_owned(),
                    );
                }
            }
        }
        for (name, default) in GATES_NOT_ACTED_ON {
            let gates = tree.object("featureGates");
            if let Some(gates) = gates
                && gates.bool(name) == Some(!default)
            {
                say(
                    gates.given(name).unwrap_or(Origin::Default),
                    format!("featureGates: {name}"),
                    "accepted, and not acted on".to_owned(),
                );
            }
        }
        remarks.sort_by_key(|remark| match remark.origin {
            Origin::File { line } => line,
            Origin::Default | Origin::Flag(_) => 0,
        });
        remarks
    }
}

/// What is done with one entry of a map or an object, where that differs from entry to entry.
pub(crate) fn class_of_entry(field: &Field, key: &str) -> Class {
    if let Shape::Object(inner) = field.shape {
        let inner = inner.iter().find(|inner| inner.name == key);
        return inner.map_or(field.class, |inner| inner.class);
    }
    match field.name {
        "kubeReserved" | "systemReserved" if key == EPHEMERAL_STORAGE => Class::NotActedOn,
        "featureGates" if GATES_NOT_ACTED_ON.iter().any(|(gate, _)| *gate == key) => {
            Class::NotActedOn
        }
        "featureGates" if GATES.iter().all(|(gate, _)| *gate != key) => Class::Kubelet,
        _ => field.class,
    }
}

impl Effective {
    /// What is as in the kubelet, and perhaps not meant: one sentence each.
    pub fn hints(&self) -> Vec<Remark> {
        let mut hints = Vec::new();
        if let Some(hard) = self.root.get("evictionHard") {
            let missing: Vec<&str> = DEFAULT_EVICTION_HARD
                .iter()
                .map(|(signal, _)| *signal)
                .filter(|signal| hard.get(signal).is_none())
                .collect();
            let remedy = match hard.origin {
                Origin::Flag(_) => "name them in the flag, too",
                _ => "mergeDefaultEvictionSettings: true keeps their defaults",
            };
            if !missing.is_empty() {
                hints.push(Remark {
                    origin: hard.origin,
                    field: "evictionHard".to_owned(),
                    text: format!(
                        "as in the kubelet, signals that it does not name have no threshold: {}; {remedy}",
                        missing.join(", ")
                    ),
                });
            }
        }
        // `UpdateContainerFsThresholds` in pkg/kubelet/eviction/helpers.go.
        for field in ["evictionHard", "evictionSoft"] {
            for signal in [Signal::ContainerfsAvailable, Signal::ContainerfsInodesFree] {
                let name = signal.row().name;
                if let Some(node) = self.root.get(field).and_then(|node| node.get(name)) {
                    hints.push(Remark {
                        origin: node.origin,
                        field: format!("{field}: {name}"),
                        text: "as in the kubelet, it has no effect: the threshold of nodefs or imagefs holds, whichever has the writable layers"
                            .to_owned(),
                    });
                }
            }
        }
        hints
    }
}

/// Whether a value means the same as leaving the field out.
fn same_as_default(node: &Node, field: &Field) -> bool {
    schema::default_value(field).is_some_and(|default| same(&node.value, &default, &field.shape))
}

fn same(value: &Value, other: &Value, shape: &Shape) -> bool {
    match (shape, value, other) {
        (Shape::Duration, Value::Text(a), Value::Text(b)) => {
            duration::parse_ns(a) == duration::parse_ns(b)
        }
        (Shape::Quantity, Value::Text(a), Value::Text(b)) => {
            matches!((Quantity::parse(a), Quantity::parse(b)), (Ok(a), Ok(b)) if a == b)
        }
        (Shape::Object(fields), Value::Map(a), Value::Map(b)) => {
            a.len() == b.len()
                && a.iter().all(|entry| {
                    let field = fields.iter().find(|field| field.name == entry.key);
                    let other = b.iter().find(|other| other.key == entry.key);
                    matches!((field, other), (Some(field), Some(other))
                        if same(&entry.node.value, &other.node.value, &field.shape))
                })
        }
        (Shape::Number, Value::Integer(a), Value::Float(b)) => *a as f64 == *b,
        _ => value == other,
    }
}
