//! The part of a Kubernetes Pod that decisions look at.
//!
//! Fields carry the API's names and meaning. Unknown fields are ignored here: whether a manifest may contain them is
//! checked where manifests are read. `null` reads as absent, as the API server does it.
//!
//! Source: `k8s.io/api/core/v1/types.go`, `pkg/apis/core/v1/defaults.go`, `pkg/kubelet/types/pod_update.go` of 1.36.

mod latency_critical;
mod phase;
mod pressure_signal;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::kube::quantity::Quantity;
use crate::kube::resource_list::{ResourceList, is_huge_pages};

pub use latency_critical::{LATENCY_CRITICAL_ANNOTATION, UnknownLatencyCritical};
pub use phase::Phase;
pub use pressure_signal::{PRESSURE_SIGNAL_ANNOTATION, PressureSignal, UnknownPressureSignal};

/// Where the kubelet notes the source of a pod; anything but `api` makes it a static pod.
pub const CONFIG_SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";

/// Marks the API server's image of a static pod.
pub const CONFIG_MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Which revision of its file a static pod, or the mirror of one, is of: the UID that the kubelet knows it by, and
/// names its cgroup by.
pub const CONFIG_HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

/// The namespace of a pod of which only the cgroup is known: none can be called that.
pub const NO_NAMESPACE: &str = "-";

/// Marks a pod of which only the cgroup is known. Set by the agent alone: taken off what others send.
pub const UNNAMED_ANNOTATION: &str = "plimsoll.dev/unnamed";

/// The lowest priority of the system classes; pods at or above it are critical.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// The class of pods that the node cannot do without.
pub const SYSTEM_NODE_CRITICAL: &str = "system-node-critical";

/// The namespace of a manifest that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Marks a pod of which only the outline is known, without its containers and volumes. Set by `plimsoll-cluster` alone.
pub const SHORTENED_ANNOTATION: &str = "plimsoll.dev/shortened";

/// Reads `null` as the type's default.
fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// Its name, namespace, UID and the like.
    #[serde(deserialize_with = "null_as_default")]
    pub metadata: Metadata,
    /// What was asked for.
    #[serde(deserialize_with = "null_as_default")]
    pub spec: PodSpec,
    /// What the API server has recorded.
    #[serde(deserialize_with = "null_as_default")]
    pub status: PodStatus,
}

/// `metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// The pod's name; empty only in synthetic input.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// Absent means [`DEFAULT_NAMESPACE`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Absent in hand-written manifests; see [`Pod::uid`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<PodUid>,
    /// Free text by key; four keys have a meaning here, see [`Pod::is_static`], [`Pod::is_mirror`],
    /// [`Pod::pressure_signal`] and [`Pod::latency_critical`].
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
    /// Labels.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
}

/// `spec`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The pod's regular containers.
    #[serde(deserialize_with = "null_as_default")]
    pub containers: Vec<Container>,
    /// Containers that run before the regular ones, and sidecars ([`Container::is_sidecar`]).
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub init_containers: Vec<Container>,
    /// Pod-level resources. An empty object differs from none: the pod is then BestEffort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// What the sandbox itself takes.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub overhead: ResourceList,
    /// Absent means 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The class that `priority` was taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Seconds between SIGTERM and SIGKILL; the API's default is 30.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    /// `false`: the pod has a user namespace of its own. Absent means `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,
    /// The pod's volumes.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volumes: Vec<Volume>,
}

/// A container's, or the pod's, `resources`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// What is guaranteed.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub requests: ResourceList,
    /// What is not exceeded.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    pub limits: ResourceList,
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Unique within the pod.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// Requests and limits.
    #[serde(deserialize_with = "null_as_default")]
    pub resources: Resources,
    /// `Always` on an init container makes it a sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Which of the pod's volumes it sees, and where.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volume_mounts: Vec<VolumeMount>,
    /// Whether its requests may be only what its owner wants, because the kubelet has not said what it has allocated.
    /// Set by `plimsoll-cluster` alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unallocated: bool,
}

/// One of a container's `volumeMounts`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMount {
    /// One of the pod's volumes.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// Where the container sees it.
    #[serde(deserialize_with = "null_as_default")]
    pub mount_path: String,
}

impl Container {
    /// Whether, as an init container, it keeps running beside the regular ones.
    pub fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

/// A volume, as far as its storage counts against the node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Unique within the pod.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// A directory of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<AnySource>,
    /// A git checkout (deprecated).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_repo: Option<AnySource>,
    /// A config map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map: Option<AnySource>,
    /// An empty directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<EmptyDir>,
}

/// A volume source of which only the presence matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AnySource {}

/// `emptyDir`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EmptyDir {
    /// Empty for the node's disk, `Memory`, `HugePages` or `HugePages-<size>`.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub medium: String,
    /// Above this much the pod is evicted (`emptyDirLimitEviction`); absent or zero: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<Quantity>,
}

impl Volume {
    /// Whether the volume takes space of the node's root file system (`volumeutils.IsLocalEphemeralVolume`, and
    /// hostPath).
    pub fn is_local(&self) -> bool {
        self.host_path.is_some()
            || self.git_repo.is_some()
            || self.config_map.is_some()
            || self
                .empty_dir
                .as_ref()
                .is_some_and(|dir| dir.medium.is_empty())
    }
}

/// `status`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// The class the API server computed when the pod was created; empty text counts as absent.
    #[serde(
        deserialize_with = "qos_class_or_empty",
        skip_serializing_if = "Option::is_none"
    )]
    pub qos_class: Option<QosClass>,
    /// The regular containers.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub container_statuses: Vec<ContainerStatus>,
    /// The init containers.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// The ephemeral containers.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub ephemeral_container_statuses: Vec<ContainerStatus>,
}

impl PodStatus {
    /// Of all containers.
    pub fn containers(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.container_statuses
            .iter()
            .chain(&self.init_container_statuses)
            .chain(&self.ephemeral_container_statuses)
    }
}

/// One of a pod's `containerStatuses`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Which container.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// `RUNTIME://ID` of its newest instance.
    #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// What it does.
    #[serde(deserialize_with = "null_as_default")]
    pub state: ContainerState,
}

/// `state`: only whether it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// It does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<AnySource>,
}

impl ContainerStatus {
    /// Whether its runtime has made it once.
    pub fn is_made(&self) -> bool {
        self.container_id.is_some()
    }

    /// The id, without the runtime.
    pub fn id(&self) -> Option<&str> {
        let id = self.container_id.as_deref()?;
        Some(id.split_once("://").map_or(id, |(_, id)| id))
    }
}

fn qos_class_or_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<QosClass>, D::Error> {
    match Option::<String>::deserialize(deserializer)?.as_deref() {
        None | Some("") => Ok(None),
        Some(name) => QosClass::from_name(name).map(Some).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "qosClass {name:?} is unknown: write Guaranteed, Burstable or BestEffort, or leave it out"
            ))
        }),
    }
}

/// Why evictions skip a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Exemption {
    /// The node's own: [`Pod::is_static`].
    Static,
    /// The API server's image of a static pod: [`Pod::is_mirror`].
    Mirror,
    /// Its priority is [`SYSTEM_CRITICAL_PRIORITY`] or above.
    SystemPriority,
    /// The agent runs in it ([`EngineConfig::exempt_uids`](crate::model::config::EngineConfig::exempt_uids)).
    Agent,
}

impl fmt::Display for Exemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Static => "static pod",
            Self::Mirror => "mirror of a static pod",
            Self::SystemPriority => "system-critical priority",
            Self::Agent => "the agent runs in it",
        })
    }
}

impl Pod {
    /// `metadata.uid`, else an identity made of namespace and name.
    pub fn uid(&self) -> PodUid {
        match &self.metadata.uid {
            Some(uid) if !uid.as_str().is_empty() => uid.clone(),
            _ => PodUid::of_name(self.namespace(), &self.metadata.name),
        }
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.metadata.name)
    }

    /// How an error calls it: [`Self::full_name`], or its UID where it has no name.
    pub fn label(&self) -> String {
        if self.metadata.name.is_empty() {
            self.uid().to_string()
        } else {
            self.full_name()
        }
    }

    /// `metadata.namespace`, else [`DEFAULT_NAMESPACE`].
    pub fn namespace(&self) -> &str {
        self.metadata
            .namespace
            .as_deref()
            .filter(|name| !name.is_empty())
            .unwrap_or(DEFAULT_NAMESPACE)
    }

    /// The priority; 0 if none is set.
    pub fn priority(&self) -> i32 {
        self.spec.priority.unwrap_or(0)
    }

    /// Whether the container of this name runs to its end before others start: an init container that is no sidecar.
    pub fn is_plain_init(&self, container: &str) -> bool {
        let mut inits = self.spec.init_containers.iter();
        inits
            .find(|init| init.name == container)
            .is_some_and(|init| !init.is_sidecar())
    }

    /// Regular containers, then init containers.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec
            .containers
            .iter()
            .chain(&self.spec.init_containers)
    }

    /// Whether it requests huge pages of any size. Allocates nothing.
    pub fn requests_huge_pages(&self) -> bool {
        let of_containers = self.all_containers().map(|container| &container.resources);
        let mut all = of_containers.chain(&self.spec.resources);
        all.any(|resources| resources.requests.keys().any(|name| is_huge_pages(name)))
    }

    /// Whether its kubelet has yet to say what it allocates to a container: the requests may be larger than what it has
    /// admitted. A kubelet that says nothing of a container that it has made knows no resize in place, and takes
    /// requests as they are.
    pub fn awaits_allocation(&self) -> bool {
        let is_made = |container: &Container| {
            let mut statuses = self.status.containers();
            statuses.any(|status| status.name == container.name && status.is_made())
        };
        let mut unallocated = self.all_containers().filter(|it| it.unallocated).peekable();
        unallocated.peek().is_some() && !unallocated.any(is_made)
    }

    /// Whether only its cgroup is known.
    pub fn is_unnamed(&self) -> bool {
        self.metadata.annotations.contains_key(UNNAMED_ANNOTATION)
    }

    /// Whether its containers and volumes are not known: it is too long, or a part of it cannot be read.
    pub fn is_shortened(&self) -> bool {
        self.metadata.annotations.contains_key(SHORTENED_ANNOTATION)
    }

    /// A pod of which only the cgroup is known: no requests, no priority. Its UID tells whether it is static.
    pub fn unnamed(uid: PodUid, class: QosClass) -> Self {
        let mut annotations = BTreeMap::from([(UNNAMED_ANNOTATION.to_owned(), String::new())]);
        if uid.is_static() {
            annotations.insert(CONFIG_SOURCE_ANNOTATION.to_owned(), "file".to_owned());
        }
        Self {
            metadata: Metadata {
                name: uid.to_string(),
                namespace: Some(NO_NAMESPACE.to_owned()),
                uid: Some(uid),
                annotations,
                labels: BTreeMap::new(),
            },
            status: PodStatus {
                qos_class: Some(class),
                ..PodStatus::default()
            },
            ..Self::default()
        }
    }

    /// Whether a file or URL of the node, not the API server, is where the pod comes from.
    ///
    /// Only the annotation counts: a pod without it is not static, also where Plimsoll read it from a file.
    pub fn is_static(&self) -> bool {
        self.metadata
            .annotations
            .get(CONFIG_SOURCE_ANNOTATION)
            .is_some_and(|source| source != "api")
    }

    /// Whether it is the API server's image of a static pod.
    pub fn is_mirror(&self) -> bool {
        self.metadata
            .annotations
            .contains_key(CONFIG_MIRROR_ANNOTATION)
    }

    /// Takes off what says that the pod is static, or the image of one. For a pod of the API that is neither: whoever
    /// creates pods can write it there.
    pub fn clear_static(&mut self) {
        for key in [
            CONFIG_SOURCE_ANNOTATION,
            CONFIG_MIRROR_ANNOTATION,
            CONFIG_HASH_ANNOTATION,
        ] {
            self.metadata.annotations.remove(key);
        }
    }

    /// Why evictions skip it, if they do (`types.IsCriticalPod`, which asks in this order).
    pub fn exemption(&self) -> Option<Exemption> {
        if self.is_static() {
            Some(Exemption::Static)
        } else if self.is_mirror() {
            Some(Exemption::Mirror)
        } else if self.priority() >= SYSTEM_CRITICAL_PRIORITY {
            Some(Exemption::SystemPriority)
        } else {
            None
        }
    }

    /// Whether evictions skip it: static, mirror, or of a system priority.
    pub fn is_critical(&self) -> bool {
        self.exemption().is_some()
    }

    /// Whether it is critical and of the class `system-node-critical` (`types.IsNodeCriticalPod`).
    pub fn is_node_critical(&self) -> bool {
        self.is_critical() && self.spec.priority_class_name.as_deref() == Some(SYSTEM_NODE_CRITICAL)
    }

    /// The container of that name, regular or init.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.all_containers()
            .find(|container| container.name == name)
    }
}

impl Resources {
    /// The request, zero where none is set.
    pub fn request(&self, name: &str) -> Quantity {
        self.requests.get(name).cloned().unwrap_or_default()
    }

    /// The limit, zero where none is set.
    pub fn limit(&self, name: &str) -> Quantity {
        self.limits.get(name).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: &str) -> Pod {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn unknown_fields_and_nulls_are_tolerated() {
        let pod = pod(
            r#"{"kind":"Pod","metadata":{"name":"a","labels":null},"spec":{"containers":[{"name":"c","image":"x","resources":null}],
            "initContainers":null,"hostNetwork":true},"status":null}"#,
        );
        assert_eq!(pod.uid().as_str(), "default_a");
        assert_eq!(pod.spec.containers[0].resources, Resources::default());
    }

    #[test]
    fn an_empty_dir_has_a_size_limit_and_a_container_says_where_it_sees_it() {
        let pod = pod(
            r#"{"spec":{"containers":[{"name":"c","volumeMounts":[{"name":"data","mountPath":"/data","readOnly":true}]},
            {"name":"d","volumeMounts":null}],
            "volumes":[{"name":"data","emptyDir":{"sizeLimit":"1Gi"}},{"name":"more","emptyDir":{"sizeLimit":null}}]}}"#,
        );
        let limit = |index: usize| {
            let volume = &pod.spec.volumes[index];
            volume.empty_dir.as_ref().unwrap().size_limit.clone()
        };
        assert_eq!(limit(0).map(|limit| limit.to_string()), Some("1Gi".into()));
        assert_eq!(limit(1), None);
        let mounts = &pod.spec.containers[0].volume_mounts;
        assert_eq!(
            (mounts[0].name.as_str(), mounts[0].mount_path.as_str()),
            ("data", "/data")
        );
        assert!(pod.spec.containers[1].volume_mounts.is_empty());
        let again: Pod = serde_json::from_str(&serde_json::to_string(&pod).unwrap()).unwrap();
        assert_eq!(again, pod);
    }

    #[test]
    fn uid_of_the_manifest_wins() {
        assert_eq!(
            pod(r#"{"metadata":{"name":"a","uid":"u"}}"#).uid().as_str(),
            "u"
        );
        assert_eq!(
            pod(r#"{"metadata":{"name":"a","namespace":"n","uid":""}}"#)
                .uid()
                .as_str(),
            "n_a"
        );
    }

    #[test]
    fn critical_pods_are_static_mirror_or_of_system_priority() {
        let with = |key: &str, value: &str| {
            let mut pod = Pod::default();
            pod.metadata
                .annotations
                .insert(key.to_owned(), value.to_owned());
            pod
        };
        assert_eq!(Pod::default().exemption(), None);
        assert_eq!(
            with(CONFIG_SOURCE_ANNOTATION, "file").exemption(),
            Some(Exemption::Static)
        );
        assert!(!with(CONFIG_SOURCE_ANNOTATION, "api").is_critical());
        assert_eq!(
            with(CONFIG_MIRROR_ANNOTATION, "").exemption(),
            Some(Exemption::Mirror)
        );
        let mut pod = Pod::default();
        pod.spec.priority = Some(SYSTEM_CRITICAL_PRIORITY);
        assert_eq!(pod.exemption(), Some(Exemption::SystemPriority));
        assert!(!pod.is_node_critical());
        pod.spec.priority_class_name = Some(SYSTEM_NODE_CRITICAL.to_owned());
        assert!(pod.is_node_critical());
    }

    #[test]
    fn requests_default_to_limits_once() {
        let once = pod(
            r#"{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":1,"memory":"1Gi"},"requests":{"cpu":"500m"}}}],
            "resources":{"limits":{"cpu":"2"}}}}"#,
        )
        .with_defaults();
        assert_eq!(
            once.spec.containers[0]
                .resources
                .request("memory")
                .to_string(),
            "1Gi"
        );
        assert_eq!(
            once.spec.containers[0].resources.request("cpu").to_string(),
            "500m"
        );
        let level = once.spec.resources.as_ref().unwrap();
        assert_eq!(level.request("cpu").to_string(), "500m");
        assert_eq!(level.request("memory").to_string(), "1Gi");
        assert_eq!(once.clone().with_defaults(), once);
    }

    #[test]
    fn an_unknown_qos_class_is_named() {
        let error = serde_json::from_str::<Pod>(r#"{"status":{"qosClass":"Best"}}"#)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"Best\"") && error.contains("BestEffort"),
            "{error}"
        );
    }
}
