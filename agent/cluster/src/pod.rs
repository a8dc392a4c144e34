//! A pod of the API, reduced to what decisions read: here, and in the agent.
//!
//! **Problem.** A pod of the API is some 12 kB of JSON, of which `managedFields` and the status are most; a reflector of typed pods takes 36 MiB for
//! 250 of them. **Approach.** Each pod is read once, from its bytes: a few fields for the reports, and the frame for the agent, as the
//! bytes that go over the socket.

use std::sync::Arc;

use plimsoll_core::kube::cluster_link::{FRAMING, ToAgent};
use plimsoll_core::kube::pod::{
    CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_SOURCE_ANNOTATION, ContainerStatus,
    LATENCY_CRITICAL_ANNOTATION, Metadata, PRESSURE_SIGNAL_ANNOTATION, Pod, PodSpec, PodStatus,
};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::kube::resources::ResourceList;
use serde::Deserialize;

use crate::clock::unix_ms_of;

/// The annotation that carries an eviction. A change of it is what makes the kubelet look at once (docs/reference/cluster.md).
pub const EVICTED_ANNOTATION: &str = "plimsoll.dev/evicted";
/// What the kubelet, and so we, give as the reason of an evicted pod.
pub const EVICTED_REASON: &str = "Evicted";
/// Annotations that decisions read.
const ANNOTATIONS: [&str; 5] = [
    CONFIG_SOURCE_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_HASH_ANNOTATION,
    LATENCY_CRITICAL_ANNOTATION,
    PRESSURE_SIGNAL_ANNOTATION,
];

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// `Pending`, `Running`, `Unknown`, or what is not known here.
    #[default]
    Living,
    /// `Succeeded`.
    Succeeded,
    /// `Failed`.
    Failed,
}

impl Phase {
    fn of(name: &str) -> Self {
        match name {
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Living,
        }
    }

    /// Nothing of the pod will run again.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        self != Self::Living
    }
}

/// A pod as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPod {
    /// `metadata.uid`.
    pub uid: PodUid,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// `metadata.resourceVersion`: opaque.
    pub resource_version: Box<str>,
    /// `status.phase`.
    pub phase: Phase,
    /// Whether `status.reason` is [`EVICTED_REASON`].
    pub has_evicted_reason: bool,
    /// The value of [`EVICTED_ANNOTATION`].
    pub evicted: Option<Box<str>>,
    /// UID of the owner that controls it.
    pub owner: Option<Box<str>>,
    /// Whether it has a deletion timestamp.
    pub is_deleting: bool,
    /// Whether its QoS class is `Guaranteed`.
    pub is_guaranteed: bool,
    /// The frame of [`ToAgent::Pod`], without its length.
    pub frame: Arc<[u8]>,
}

/// Why an object of the API was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// It is no pod that can be read.
    Garbage,
    /// What decisions read of it does not fit into a frame.
    TooLarge,
    /// It is of another node: the API server did not apply the selector.
    OtherNode,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiPod {
    metadata: ApiMeta,
    spec: ApiSpec,
    status: Option<ApiStatus>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiMeta {
    #[serde(flatten)]
    kept: Metadata,
    resource_version: String,
    deletion_timestamp: Option<String>,
    owner_references: Option<Vec<ApiOwner>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiOwner {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
    controller: Option<bool>,
}

impl ApiOwner {
    /// As the kubelet names the node in its mirror pods (`CreateMirrorPod` in pkg/kubelet/pod/mirror_client.go, since 1.17).
    fn is_node(&self, name: &str) -> bool {
        self.api_version == "v1" && self.kind == "Node" && self.name == name
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiSpec {
    #[serde(flatten)]
    kept: PodSpec,
    node_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiStatus {
    phase: Option<String>,
    reason: Option<String>,
    qos_class: Option<String>,
    container_statuses: Option<Vec<ApiContainerStatus>>,
    init_container_statuses: Option<Vec<ApiContainerStatus>>,
    ephemeral_container_statuses: Option<Vec<ApiContainerStatus>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiContainerStatus {
    #[serde(flatten)]
    kept: ContainerStatus,
    allocated_resources: Option<ResourceList>,
}

impl SeenPod {
    /// Reads a pod object. `labels`: whether the agent needs them, for budgets.
    ///
    /// # Errors
    /// [`NotTaken`], to be counted.
    pub fn read(object: &[u8], node: &str, labels: bool) -> Result<Self, NotTaken> {
        let api: ApiPod = serde_json::from_slice(object).map_err(|_| NotTaken::Garbage)?;
        if api.spec.node_name.as_deref() != Some(node) {
            return Err(NotTaken::OtherNode);
        }
        let ApiMeta {
            kept: mut metadata,
            resource_version,
            deletion_timestamp,
            owner_references,
        } = api.metadata;
        let uid = metadata.uid.clone().filter(|uid| !uid.as_str().is_empty());
        let uid = uid.ok_or(NotTaken::Garbage)?;
        if metadata.name.is_empty() || metadata.namespace.as_deref().is_none_or(str::is_empty) {
            return Err(NotTaken::Garbage);
        }
        let status = api.status.unwrap_or_default();
        let evicted = metadata.annotations.remove(EVICTED_ANNOTATION);
        metadata
            .annotations
            .retain(|key, _| ANNOTATIONS.contains(&key.as_str()));
        if !labels {
            metadata.labels.clear();
        }
        let phase = Phase::of(status.phase.as_deref().unwrap_or_default());
        let is_deleting = deletion_timestamp.is_some();
        let namespace = Arc::from(metadata.namespace.as_deref().unwrap_or_default());
        let name = Box::from(metadata.name.as_str());
        let spec = reduced(api.spec.kept, &status);
        let qos_class = status.qos_class.as_deref().and_then(QosClass::from_name);
        // By their ids the agent tells containers from the sandbox.
        let kept = |statuses: Option<Vec<ApiContainerStatus>>| {
            let statuses = statuses.unwrap_or_default();
            statuses.into_iter().map(|status| status.kept).collect()
        };
        let owners = owner_references.unwrap_or_default();
        let owner = owners
            .into_iter()
            .find(|owner| owner.controller == Some(true));
        let mut pod = Pod {
            metadata,
            spec,
            status: PodStatus {
                qos_class,
                container_statuses: kept(status.container_statuses),
                init_container_statuses: kept(status.init_container_statuses),
                ephemeral_container_statuses: kept(status.ephemeral_container_statuses),
            },
        };
        if !(pod.is_mirror() && owner.as_ref().is_some_and(|owner| owner.is_node(node))) {
            pod.clear_static();
        }
        let frame = ToAgent::Pod {
            pod: Box::new(pod),
            is_leaving: is_deleting || phase.is_terminal(),
        };
        let json = serde_json::to_vec(&frame).map_err(|_| NotTaken::Garbage)?;
        let body = FRAMING.body(&json).map_err(|_| NotTaken::TooLarge)?;
        let frame = FRAMING.frame(body).map_err(|_| NotTaken::TooLarge)?;
        Ok(Self {
            uid,
            namespace,
            name,
            resource_version: resource_version.into(),
            phase,
            has_evicted_reason: status.reason.as_deref() == Some(EVICTED_REASON),
            evicted: evicted.map(Into::into),
            owner: owner.map(|owner| owner.uid.into()),
            is_deleting,
            is_guaranteed: qos_class == Some(QosClass::Guaranteed),
            frame: frame.into(),
        })
    }

    /// Whether it is a pod, of whatever node.
    #[must_use]
    pub fn is_one(object: &[u8]) -> bool {
        serde_json::from_slice::<ApiPod>(object).is_ok_and(|pod| pod.metadata.kept.uid.is_some())
    }

    /// When Plimsoll evicted it, by its annotation: milliseconds since 1970.
    #[must_use]
    pub fn evicted_unix_ms(&self) -> Option<u64> {
        unix_ms_of(self.evicted.as_deref()?.split(' ').next()?)
    }
}

/// Requests as the kubelet has allocated them (an in-place resize changes them late, `getAllocatedPods`), and only volumes whose space counts.
fn reduced(mut spec: PodSpec, status: &ApiStatus) -> PodSpec {
    for (containers, statuses) in [
        (&mut spec.containers, &status.container_statuses),
        (&mut spec.init_containers, &status.init_container_statuses),
    ] {
        let Some(statuses) = statuses else { continue };
        for container in containers {
            let status = statuses
                .iter()
                .find(|status| status.kept.name == container.name);
            let allocated = status.and_then(|status| status.allocated_resources.as_ref());
            for (name, quantity) in allocated.into_iter().flatten() {
                container
                    .resources
                    .requests
                    .insert(name.clone(), quantity.clone());
            }
        }
    }
    spec.volumes.retain(|volume| {
        volume.host_path.is_some()
            || volume.git_repo.is_some()
            || volume.config_map.is_some()
            || volume.empty_dir.is_some()
    });
    for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
        container
            .volume_mounts
            .retain(|mount| spec.volumes.iter().any(|volume| volume.name == mount.name));
    }
    spec
}

#[cfg(test)]
pub(crate) mod tests {
    use plimsoll_core::kube::framing::LENGTH_BYTES;
    use serde_json::{Value, json};

    use super::*;

    /// As the API server has it, with what decisions do not read.
    pub(crate) fn api_pod(uid: &str, resource_version: &str) -> Value {
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": format!("name-{uid}"), "namespace": "shop", "uid": uid, "resourceVersion": resource_version,
                "labels": {"app": "web"},
                "annotations": {"kubernetes.io/config.source": "api", "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(999)},
                "ownerReferences": [{"uid": "other"}, {"uid": "rs-1", "controller": true}],
                "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:x": {}}}],
            },
            "spec": {
                "nodeName": "node-1", "serviceAccountName": "default",
                "containers": [{"name": "app", "image": "i", "resources": {"requests": {"memory": "1Gi"}},
                    "volumeMounts": [{"name": "scratch", "mountPath": "/s"}, {"name": "token", "mountPath": "/t"}]}],
                "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "token", "projected": {}}],
            },
            "status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": [{"name": "app", "allocatedResources": {"memory": "2Gi"},
                "containerID": "containerd://c1", "image": "i", "state": {"running": {"startedAt": "2026-11-22T10:00:00Z"}}, "lastState": {}}]},
        })
    }

    fn read(pod: &Value) -> Result<SeenPod, NotTaken> {
        SeenPod::read(pod.to_string().as_bytes(), "node-1", false)
    }

    fn pod_of(seen: &SeenPod) -> Pod {
        match serde_json::from_slice(&seen.frame[LENGTH_BYTES..]) {
            Ok(ToAgent::Pod { pod, .. }) => *pod,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_a_node_owns_is_the_image_of_a_static_pod() {
        let node = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n", "controller": true}]);
        let other = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-2", "uid": "n", "controller": true}]);
        let not_controller =
            json!([{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n"}]);
        let source = json!({"kubernetes.io/config.source": "file"});
        let mirror = json!({"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"});
        for (annotations, owners, is_static) in [
            (&mirror, &node, true),
            (&mirror, &other, false),
            (&mirror, &not_controller, false),
            (&mirror, &json!([]), false),
            (&source, &node, false),
        ] {
            let mut pod = api_pod("u1", "1");
            pod["metadata"]["annotations"] = annotations.clone();
            pod["metadata"]["ownerReferences"] = owners.clone();
            let pod = pod_of(&read(&pod).unwrap());
            assert_eq!(pod.is_static(), is_static, "{annotations} {owners}");
            assert_eq!(pod.is_critical(), is_static, "{annotations} {owners}");
        }
    }

    #[test]
    fn nothing_is_held_that_no_decision_reads() {
        let seen = read(&api_pod("u1", "7")).unwrap();
        assert_eq!(
            (&*seen.namespace, &*seen.name, &*seen.resource_version),
            ("shop", "name-u1", "7")
        );
        assert_eq!(seen.owner.as_deref(), Some("rs-1"));
        let text = String::from_utf8(seen.frame[LENGTH_BYTES..].to_vec()).unwrap();
        for absent in [
            "managedFields",
            "last-applied",
            "token",
            "labels",
            "image",
            "null",
        ] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
        let frame: ToAgent = serde_json::from_str(&text).unwrap();
        let ToAgent::Pod { pod, is_leaving } = frame else {
            panic!("{text}")
        };
        assert!(!is_leaving);
        let containers: Vec<_> = pod.status.containers().collect();
        assert_eq!(containers[0].id(), Some("c1"));
        assert!(containers[0].state.running.is_some());
        // What the kubelet has allocated, not what the specification asks for.
        assert_eq!(
            pod.spec.containers[0].resources.requests["memory"].value(),
            2 << 30
        );
        assert_eq!(pod.spec.containers[0].volume_mounts.len(), 1);
        assert!(text.len() < 600, "{}", text.len());
    }

    #[test]
    fn an_evicted_pod_is_recognised() {
        let mut pod = api_pod("u1", "7");
        pod["status"]["phase"] = json!("Failed");
        pod["status"]["reason"] = json!("Evicted");
        pod["metadata"]["annotations"][EVICTED_ANNOTATION] =
            json!("2026-11-22T10:00:00.123Z memory.available rank=1/2");
        let seen = read(&pod).unwrap();
        assert!(seen.has_evicted_reason && seen.phase == Phase::Failed);
        assert_eq!(seen.evicted_unix_ms(), Some(1_795_341_600_123));
    }

    #[test]
    fn what_is_no_pod_of_this_node_is_not_taken() {
        let change = |path: &str, value: Value| {
            let mut pod = api_pod("u1", "7");
            *pod.pointer_mut(path).unwrap() = value;
            read(&pod).unwrap_err()
        };
        assert_eq!(
            change("/spec/nodeName", json!("node-2")),
            NotTaken::OtherNode
        );
        assert_eq!(change("/metadata/uid", json!("")), NotTaken::Garbage);
        assert_eq!(change("/metadata/name", json!(null)), NotTaken::Garbage);
        assert_eq!(change("/spec/containers", json!(7)), NotTaken::Garbage);
        let long = "x".repeat(FRAMING.bytes_max);
        assert_eq!(
            change("/spec/containers/0/name", json!(long)),
            NotTaken::TooLarge
        );
        for garbage in [&b"<html>"[..], b"{}", b"null", b"\xff"] {
            assert!(SeenPod::read(garbage, "node-1", false).is_err());
        }
    }
}
