//! What pods use, from a file: Plimsoll's own short form, or a kubelet's `/stats/summary` as it is.
//!
//! ```yaml
//! default/web:                     # namespace/name, or the UID
//!   memoryWorkingSet: 300Mi        # quantities, or whole numbers
//!   processes: 12
//!   containers:
//!     app: {rootfs: {bytes: 1Gi, inodes: 100}, logs: {bytes: 20Mi, inodes: 3}}
//!   volumes:
//!     cache: {bytes: 2Gi, inodes: 5000}
//! ```
//!
//! A pod that is missing has no statistics, which ranks it first; a figure that is missing counts as zero. Both as in
//! the kubelet.
//!
//! Source of the other form: `k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go` of 1.36.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use plimsoll_core::explain::PodUsage;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::model::reading::{ContainerStorage, Used, VolumeStorage};

use crate::input::manifests::{Bounds, ManifestError};
use crate::input::yaml::{Key, Node, SyntaxError, Value, documents};

/// What a file gave.
#[derive(Debug, Default)]
pub struct Usages {
    /// By pod.
    pub pods: BTreeMap<PodUid, PodUsage>,
    /// Pods of a kubelet's summary that are not among the manifests: `namespace/name`.
    pub unknown: Vec<String>,
}

/// Reads the usage of `pods` from `text`.
///
/// # Errors
/// Everything that is wrong, in the order of lines.
pub fn parse(
    file: &Arc<Path>,
    text: &str,
    pods: &BTreeMap<PodUid, Arc<Pod>>,
) -> Result<Usages, Vec<ManifestError>> {
    let wrong = |error| vec![ManifestError::syntax(file, error)];
    let documents = documents(text, Bounds::OFFLINE.limits()).map_err(wrong)?;
    let document = match &documents[..] {
        [] => return Ok(Usages::default()),
        [one] => one,
        [_, second, ..] => {
            return Err(wrong(SyntaxError {
                line: second.line,
                what: "more than one document; write one".to_owned(),
            }));
        }
    };
    let mut reader = Reader {
        file,
        pods,
        names: pods
            .iter()
            .map(|(uid, pod)| {
                let name = pod.full_name();
                (name, uid.clone())
            })
            .collect(),
        usages: Usages::default(),
        errors: Vec::new(),
    };
    match document.get("pods") {
        Some(list) if matches!(list.value, Value::List(_)) => reader.summary(list),
        _ => reader.plimsoll_form(document),
    }
    if reader.errors.is_empty() {
        Ok(reader.usages)
    } else {
        Err(reader.errors)
    }
}

struct Reader<'a> {
    file: &'a Arc<Path>,
    /// By UID.
    pods: &'a BTreeMap<PodUid, Arc<Pod>>,
    /// By `namespace/name`.
    names: BTreeMap<String, PodUid>,
    usages: Usages,
    errors: Vec<ManifestError>,
}

/// The fields of a pod, of its containers, and of what both have on disk.
const POD: &[&str] = &["memoryWorkingSet", "processes", "containers", "volumes"];
const CONTAINER: &[&str] = &["rootfs", "logs"];
const DISK: &[&str] = &["bytes", "inodes"];

impl Reader<'_> {
    fn error(&mut self, line: u64, field: &str, what: String) {
        self.errors.push(ManifestError::Field {
            file: Arc::clone(self.file),
            line,
            field: field.to_owned(),
            what,
        });
    }

    /// The fields of an object, each of `known`; others are errors.
    fn object<'node>(
        &mut self,
        node: &'node Node,
        field: &str,
        known: &[&str],
    ) -> Vec<&'node (Key, Node)> {
        if !matches!(node.value, Value::Map(_) | Value::Null) {
            let what = format!("expected an object, found {}", node.kind());
            self.error(node.line, field, what);
        }
        let (good, bad): (Vec<_>, Vec<_>) = node
            .fields()
            .iter()
            .partition(|(key, _)| known.contains(&key.name.as_str()));
        for (key, _) in bad {
            let what = format!("unknown field; known are {}", known.join(", "));
            self.error(key.line, &format!("{field}.{}", key.name), what);
        }
        good
    }

    fn amount(&mut self, node: &Node, field: &str) -> Option<u64> {
        let amount = match &node.value {
            Value::Null => return None,
            Value::Number(number) => number.as_u64(),
            Value::Text(text) => Quantity::parse(text)
                .ok()
                .and_then(|quantity| u64::try_from(quantity.value()).ok()),
            _ => None,
        };
        if amount.is_none() {
            let what = format!(
                "expected a quantity such as 300Mi or a whole number, not negative; found {}",
                node.kind()
            );
            self.error(node.line, field, what);
        }
        amount
    }

    fn plimsoll_form(&mut self, document: &Node) {
        if !matches!(document.value, Value::Map(_)) {
            let what = format!(
                "expected an object with pods (namespace/name or UID) as fields, or a kubelet's /stats/summary; found {}",
                document.kind()
            );
            self.error(document.line, "usage", what);
        }
        for (key, node) in document.fields() {
            let by_uid = PodUid::from(key.name.as_str());
            let uid = self.names.get(&key.name).unwrap_or(&by_uid).clone();
            let Some(pod) = self.pods.get(&uid).cloned() else {
                let what = "no pod of the manifests has this namespace/name or UID".to_owned();
                self.error(key.line, &key.name, what);
                continue;
            };
            let usage = self.pod(&pod, node, &key.name);
            if self.usages.pods.insert(uid, usage).is_some() {
                let what = "this pod is already listed by its other name".to_owned();
                self.error(key.line, &key.name, what);
            }
        }
    }

    fn pod(&mut self, pod: &Pod, node: &Node, name: &str) -> PodUsage {
        let mut usage = PodUsage::default();
        for (key, value) in self.object(node, name, POD) {
            let field = format!("{name}.{}", key.name);
            match key.name.as_str() {
                "memoryWorkingSet" => usage.working_set_bytes = self.amount(value, &field),
                "processes" => usage.processes = self.amount(value, &field),
                "containers" => {
                    let known: Vec<&str> = pod
                        .all_containers()
                        .map(|part_of_spec| part_of_spec.name.as_str())
                        .collect();
                    for (key, value) in self.object(value, &field, &known) {
                        let container = self.container(value, &field, &key.name);
                        usage.containers.push(container);
                    }
                }
                _ => {
                    let known: Vec<&str> = pod
                        .spec
                        .volumes
                        .iter()
                        .map(|part_of_spec| part_of_spec.name.as_str())
                        .collect();
                    for (key, value) in self.object(value, &field, &known) {
                        usage.volumes.push(VolumeStorage {
                            name: key.name.clone(),
                            used: self.disk(value, &format!("{field}.{}", key.name)),
                        });
                    }
                }
            }
        }
        usage
    }

    fn container(&mut self, node: &Node, field: &str, name: &str) -> ContainerStorage {
        let field = format!("{field}.{name}");
        let mut container = ContainerStorage {
            name: name.to_owned(),
            ..ContainerStorage::default()
        };
        for (key, value) in self.object(node, &field, CONTAINER) {
            let used = self.disk(value, &format!("{field}.{}", key.name));
            match key.name.as_str() {
                "rootfs" => container.rootfs = used,
                _ => container.logs = used,
            }
        }
        container
    }

    fn disk(&mut self, node: &Node, field: &str) -> Used {
        let mut used = Used::default();
        for (key, value) in self.object(node, field, DISK) {
            let amount = self.amount(value, &format!("{field}.{}", key.name));
            match key.name.as_str() {
                "bytes" => used.bytes = amount,
                _ => used.inodes = amount,
            }
        }
        used
    }

    /// `pods` of a kubelet's summary. It has many more fields; only those that rank are looked at.
    fn summary(&mut self, list: &Node) {
        for (index, node) in list.items().iter().enumerate() {
            let field = format!("pods[{index}]");
            let reference = node.get("podRef");
            let part = |name| {
                reference
                    .and_then(|object| object.get(name))
                    .and_then(Node::text)
            };
            let (Some(namespace), Some(name)) = (part("namespace"), part("name")) else {
                let what = "needs podRef with namespace and name".to_owned();
                self.error(node.line, &field, what);
                continue;
            };
            // By name: the kubelet's UID of a static pod is not the API server's.
            let name = format!("{namespace}/{name}");
            let Some(uid) = self.names.get(&name).cloned() else {
                self.usages.unknown.push(name);
                continue;
            };
            let usage = self.summary_pod(node, &field);
            if self.usages.pods.insert(uid, usage).is_some() {
                self.error(node.line, &field, format!("{name} is listed twice"));
            }
        }
    }

    fn summary_pod(&mut self, node: &Node, field: &str) -> PodUsage {
        let mut figure = |from: &Node, object: &str, name: &str| {
            let value = from.get(object)?.get(name)?;
            self.amount(value, &format!("{field}.{object}.{name}"))
        };
        let working_set_bytes = figure(node, "memory", "workingSetBytes");
        let processes = figure(node, "process_stats", "process_count");
        let mut used = |from: &Node, object: &str| Used {
            bytes: figure(from, object, "usedBytes"),
            inodes: figure(from, object, "inodesUsed"),
        };
        let items = |name: &str| node.get(name).map_or(&[][..], Node::items);
        let name = |item: &Node| {
            item.get("name")
                .and_then(Node::text)
                .unwrap_or_default()
                .to_owned()
        };
        let containers = items("containers")
            .iter()
            .map(|item| ContainerStorage {
                name: name(item),
                rootfs: used(item, "rootfs"),
                logs: used(item, "logs"),
            })
            .collect();
        let volumes = items("volume")
            .iter()
            .map(|item| {
                let mut direct = |name: &str| {
                    let value = item.get(name)?;
                    self.amount(value, &format!("{field}.volume.{name}"))
                };
                VolumeStorage {
                    name: name(item),
                    used: Used {
                        bytes: direct("usedBytes"),
                        inodes: direct("inodesUsed"),
                    },
                }
            })
            .collect();
        PodUsage {
            working_set_bytes,
            processes,
            containers,
            volumes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> BTreeMap<PodUid, Arc<Pod>> {
        let web = r#"{"metadata":{"name":"web","uid":"u-1"},"spec":{"containers":[{"name":"app"}],"volumes":[{"name":"cache","emptyDir":{}}]}}"#;
        let db = r#"{"metadata":{"name":"db","namespace":"data"},"spec":{"containers":[{"name":"pg"}]}}"#;
        [web, db]
            .map(|json| Arc::new(serde_json::from_str::<Pod>(json).unwrap()))
            .into_iter()
            .map(|pod| (pod.uid(), pod))
            .collect()
    }

    fn of(text: &str) -> Result<Usages, Vec<String>> {
        parse(&Arc::from(Path::new("usage.yaml")), text, &pods())
            .map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn plimsoll_form() {
        let usages = of("u-1:\n  memoryWorkingSet: 1Ki\n  containers: {app: {rootfs: {bytes: 5, inodes: 2}, logs: {bytes: 7}}}\n  \
             volumes: {cache: {inodes: 3}}\ndata/db: {processes: 4}\n")
        .unwrap();
        let web = &usages.pods[&PodUid::from("u-1")];
        assert_eq!((web.working_set_bytes, web.processes), (Some(1024), None));
        assert_eq!(
            web.containers[0].rootfs,
            Used {
                bytes: Some(5),
                inodes: Some(2)
            }
        );
        assert_eq!(
            web.containers[0].logs,
            Used {
                bytes: Some(7),
                inodes: None
            }
        );
        assert_eq!(
            web.volumes[0].used,
            Used {
                bytes: None,
                inodes: Some(3)
            }
        );
        assert_eq!(usages.pods[&PodUid::from("data_db")].processes, Some(4));
        assert!(of("").unwrap().pods.is_empty());
    }

    #[test]
    fn a_kubelets_summary() {
        let usages = of(r#"{"node":{"nodeName":"n"},"pods":[
            {"podRef":{"name":"web","namespace":"default","uid":"other"},"startTime":"2026-11-21T05:00:00Z",
             "containers":[{"name":"app","cpu":{"usageNanoCores":1},"rootfs":{"usedBytes":4096,"inodesUsed":9},"logs":{"usedBytes":12}}],
             "memory":{"workingSetBytes":123456,"rssBytes":1},"process_stats":{"process_count":6},
             "volume":[{"name":"cache","usedBytes":77,"inodesUsed":1}]},
            {"podRef":{"name":"gone","namespace":"default"}}]}"#)
        .unwrap();
        let web = &usages.pods[&PodUid::from("u-1")];
        assert_eq!(
            (web.working_set_bytes, web.processes),
            (Some(123_456), Some(6))
        );
        assert_eq!(
            web.containers[0].rootfs,
            Used {
                bytes: Some(4096),
                inodes: Some(9)
            }
        );
        assert_eq!(web.volumes[0].used.bytes, Some(77));
        assert_eq!(usages.unknown, ["default/gone"]);
    }

    #[test]
    fn errors_name_line_and_field() {
        let errors = of("default/web:\n  memoryWorkingSet: lots\n  memory: 1\n  containers:\n    side: {}\ndefault/wbe: {}\nu-1: {processes: -1}\n")
            .unwrap_err();
        let expect = [
            "usage.yaml:3: default/web.memory: unknown field; known are memoryWorkingSet",
            "usage.yaml:2: default/web.memoryWorkingSet: expected a quantity",
            "usage.yaml:5: default/web.containers.side: unknown field; known are app",
            "usage.yaml:6: default/wbe: no pod of the manifests",
            "usage.yaml:7: u-1.processes: expected a quantity",
            "usage.yaml:7: u-1: this pod is already listed",
        ];
        assert_eq!(errors.len(), expect.len(), "{errors:#?}");
        for (error, start) in errors.iter().zip(expect) {
            assert!(error.starts_with(start), "{error}");
        }
        assert!(of("- a\n").unwrap_err()[0].contains("found a list"));
        assert!(of("a: 1\n---\nb: 1\n").unwrap_err()[0].contains("more than one document"));
        assert!(of("a: [\n").unwrap_err()[0].starts_with("usage.yaml:"));
    }
}
