//! The configuration in force as a file: what is printed is accepted as input and means the same.

use std::fmt::Write as _;

use crate::input::config::document::{Node, Origin, Value};
use crate::input::config::kubelet::{self, FIELDS};
use crate::input::config::plimsoll;
use crate::input::config::resolve::Effective;
use crate::input::config::schema::Class;
use crate::input::config::tree::Tree;

/// Column in which the origin of a value begins, where the value leaves room.
const ORIGIN_COLUMN: usize = 56;

impl Effective {
    /// As YAML, with the origin of each value behind it. Fields that are the kubelet's alone only where `all` is set.
    pub fn yaml(&self, all: bool) -> String {
        let mut text = String::from(
            "# The configuration in force, with the origin of each value: default, line of the file, or flag.\n",
        );
        for (name, node) in self.fields(all) {
            write_entry(&mut text, name, &node, 0);
        }
        text
    }

    /// As a JSON object, without origins.
    pub fn json(&self, all: bool) -> serde_json::Value {
        self.fields(all)
            .into_iter()
            .map(|(name, node)| (name.to_owned(), json(&node.value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }

    /// The fields in the order of the table.
    fn fields(&self, all: bool) -> Vec<(&'static str, Node)> {
        let shown = FIELDS
            .iter()
            .filter(|field| all || field.class != Class::Kubelet);
        shown
            .filter_map(|field| {
                let node = match field.name {
                    "apiVersion" | "kind" => Some(self.kind(field.name)),
                    name => self.root.get(name).cloned(),
                };
                Some((field.name, node?))
            })
            .collect()
    }

    /// `apiVersion` or `kind`, from the other one where only that is given.
    fn kind(&self, field: &str) -> Node {
        if let Some(node) = self.root.get(field) {
            return node.clone();
        }
        let tree = Tree(&self.root);
        let is_kubelets = tree.text("apiVersion") == Some(kubelet::API_VERSION)
            || tree.text("kind") == Some(kubelet::KIND);
        let text = match (field, is_kubelets) {
            ("kind", true) => kubelet::KIND,
            ("kind", false) => plimsoll::KIND,
            (_, true) => kubelet::API_VERSION,
            (_, false) => plimsoll::API_VERSION,
        };
        Node::default_of(Value::Text(text.to_owned()))
    }
}

/// Where a value comes from, in a few characters.
pub(crate) fn origin(origin: Origin) -> String {
    match origin {
        Origin::Default => "default".to_owned(),
        Origin::File { line } => format!("line {line}"),
        Origin::Flag(name) => format!("--{name}"),
    }
}

fn write_entry(text: &mut String, key: &str, node: &Node, indent: usize) {
    let start = format!("{:indent$}{}:", "", scalar(key));
    write_value(text, &start, node, indent);
}

/// `start` is what the line begins with, and `indent` where it begins.
fn write_value(text: &mut String, start: &str, node: &Node, indent: usize) {
    let mut leaf = |value: &str| {
        let line = format!("{start} {value}");
        // Writing to a String cannot fail.
        writeln!(text, "{line:ORIGIN_COLUMN$}  # {}", origin(node.origin)).ok();
    };
    match &node.value {
        Value::List(items) if items.is_empty() => leaf("[]"),
        Value::Map(entries) if entries.is_empty() => leaf("{}"),
        Value::List(items) => {
            writeln!(text, "{start}").ok();
            for item in items {
                write_item(text, item, indent + 2);
            }
        }
        Value::Map(entries) => {
            writeln!(text, "{start}").ok();
            for entry in entries {
                write_entry(text, &entry.key, &entry.node, indent + 2);
            }
        }
        Value::Text(value) => leaf(&scalar(value)),
        Value::Float(value) => leaf(&format!("{value:?}")),
        value => leaf(&value.to_string()),
    }
}

/// A map inside a list stands below its dash, so that no line depends on the one before it.
fn write_item(text: &mut String, item: &Node, indent: usize) {
    let start = format!("{:indent$}-", "");
    write_value(text, &start, item, indent);
}

/// A text as YAML: plain where it cannot be taken for anything else, else quoted as JSON, which YAML reads as well.
fn scalar(text: &str) -> String {
    const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if plain {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

pub(crate) fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        // A checked number fits in 64 bits; where the shape has no bound, what does not is a float.
        Value::Integer(value) => i64::try_from(*value)
            .map_or_else(|_| serde_json::Value::from(*value as f64), Into::into),
        Value::Float(value) => (*value).into(),
        Value::Text(text) => text.as_str().into(),
        Value::List(items) => items.iter().map(|item| json(&item.value)).collect(),
        Value::Map(entries) => entries
            .iter()
            .map(|entry| (entry.key.clone(), json(&entry.node.value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::config::{ConfigFile, EvictionFlags};

    fn effective(text: &str) -> Effective {
        let file = ConfigFile::parse(text, None).unwrap();
        Effective::new(file, &EvictionFlags::default()).unwrap()
    }

    #[test]
    fn what_is_printed_means_the_same() {
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\n\
             evictionHard: {memory.available: 5%}\nevictionSoft: {nodefs.available: \"1e9\"}\n\
             evictionSoftGracePeriod: {nodefs.available: 1m30s}\n\
             staticPodURLHeader: {\"X: y\": [a, \"on\", \"#\\n\"]}\nclusterDNS: [10.0.0.10]\nshutdownGracePeriod: 0s\n\
             reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 1, limits: {memory: 2, hugepages-2Mi: 1}}]\n\
             registerWithTaints: [{key: a, effect: NoSchedule}]\nmemoryThrottlingFactor: 1\nlogging: {flushFrequency: 5000000000}\n\
             featureGates: {MemoryQoS: true}\nplimsoll: {remedies: {reclaim: 1m1ms}}\nsystemReserved: {}\n";
        let before = effective(text);
        for all in [false, true] {
            let again = effective(&before.yaml(all));
            assert_eq!(again.config, before.config, "{}", before.yaml(all));
            assert_eq!(again.json(all), before.json(all));
            let from_json = effective(&before.json(all).to_string());
            assert_eq!(from_json.config, before.config);
        }
        assert!(!before.yaml(false).contains("clusterDNS"));
        assert!(before.yaml(true).contains("clusterDNS"));
    }

    #[test]
    fn each_value_says_where_it_comes_from() {
        let file = ConfigFile::parse("maxPods: 5\nevictionHard:\n  memory.available: 1Gi\n", None)
            .unwrap();
        let flags = EvictionFlags {
            eviction_soft: Some("memory.available<2Gi".into()),
            eviction_soft_grace_period: Some("memory.available=5s".into()),
            ..EvictionFlags::default()
        };
        let text = Effective::new(file, &flags).unwrap().yaml(false);
        let line = |start: &str| {
            let mut lines = text.lines().map(str::trim_start);
            let line = lines.find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("maxPods"), "maxPods: 5 # line 1");
        assert_eq!(
            line("memory.available"),
            "memory.available: \"1Gi\" # line 3"
        );
        assert_eq!(
            line("kernelMemory.available"),
            "kernelMemory.available: \"64Mi\" # default"
        );
        assert_eq!(
            line("memory.available: \"2Gi\""),
            "memory.available: \"2Gi\" # --eviction-soft"
        );
        assert_eq!(line("kind"), "kind: PlimsollConfiguration # default");
    }
}
