//! A pod of the API, reduced to what decisions read: here, and in the agent.
//!
//! **Problem.** A pod of the API is some 12 kB of JSON, of which `managedFields` and the status are most; a reflector
//! of typed pods takes 36 MiB for 250 of them. **Approach.** Each pod is read from its bytes when it changes: a few
//! fields for the reports, and the frame for the agent, as the bytes that go over the socket.
//!
//! Whoever may create a pod decides how large it is, and whether its fields can be read here. A pod that the agent does
//! not know by name is the last to be evicted, so that must never be the way to become one: what cannot be read, or
//! makes the frame longer than [`FRAME_BYTES_MAX`], is left out ([`shortened`]), and the pod is known by its name,
//! priority and class.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_core::kube::node_resource_topology::ExclusiveRequests;
use plimsoll_core::kube::pod::{
    CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_SOURCE_ANNOTATION, Container,
    ContainerStatus, LATENCY_CRITICAL_ANNOTATION, Metadata, PRESSURE_SIGNAL_ANNOTATION, Phase, Pod,
    PodSpec, PodStatus, Resources, SHORTENED_ANNOTATION, SYSTEM_CRITICAL_PRIORITY,
};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::kube::resources::{
    CPU, EPHEMERAL_STORAGE, MEMORY, ResourceList, Scope, pod_limits, pod_requests,
};
use plimsoll_core::protocol::cluster_link::{
    FRAMING, NAME_BYTES_MAX, PODS_BYTES_MAX, PODS_MAX, ToAgent,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::clock::unix_ms_of;

/// The annotation that carries an eviction. A change of it is what makes the kubelet look at once
/// (docs/reference/cluster.md).
pub const EVICTED_ANNOTATION: &str = "plimsoll.dev/evicted";
/// The label that carries one where the pod's annotations are full: the API server takes 256 KiB of them, and the
/// kubelet looks at a changed label as well (`podsDifferSemantically` in pkg/kubelet/config/config.go).
pub const EVICTED_LABEL: &str = EVICTED_ANNOTATION;
/// What the kubelet, and so we, give as the reason of an evicted pod.
pub const EVICTED_REASON: &str = "Evicted";
/// The condition of a pod whose resize the kubelet has put off, or refuses (1.33).
const RESIZE_PENDING: &str = "PodResizePending";
/// What a resize can change.
const RESIZABLE: [&str; 2] = [CPU, MEMORY];
/// Annotations that decisions read.
const ANNOTATIONS: [&str; 5] = [
    CONFIG_SOURCE_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    CONFIG_HASH_ANNOTATION,
    LATENCY_CRITICAL_ANNOTATION,
    PRESSURE_SIGNAL_ANNOTATION,
];

/// Bytes of a pod's frame at most: what each of [`PODS_MAX`] has room for.
pub const FRAME_BYTES_MAX: usize = PODS_BYTES_MAX / PODS_MAX;
/// Bytes of the value of one of [`ANNOTATIONS`], and of a container's id, at most: the longest that means something is
/// a hash.
const TEXT_BYTES_MAX: usize = 128;
/// Containers of a pod that is [`shortened`] whose ids are kept.
const SHORTENED_CONTAINERS_MAX: usize = 64;

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
    /// The value of [`EVICTED_ANNOTATION`], and that of [`EVICTED_LABEL`] as the annotation has it.
    pub evicted: [Option<Box<str>>; 2],
    /// UID of the owner that controls it.
    pub owner: Option<Box<str>>,
    /// Whether it has a deletion timestamp.
    pub is_deleting: bool,
    /// What it requests that no other pod can have; `None`: that cannot be read.
    pub exclusive: Option<ExclusiveRequests>,
    /// Whether one of its containers was started.
    pub has_started: bool,
    /// Whether its priority is that of the system.
    pub is_critical: bool,
    /// Whether something that decisions read is not in its frame, because it cannot be read or is too long.
    pub is_shortened: bool,
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

/// What must be readable, or it is no pod: only what the API server itself wrote, or bounds.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Outline {
    metadata: ApiMeta,
    spec: OutlineSpec,
    status: Option<OutlineStatus>,
}

// Not flattened anywhere: that would read fields that are skipped, however deep they are.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<PodUid>,
    annotations: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
    resource_version: String,
    /// Of the specification: 1 when the pod is made; none before 1.33.
    generation: Option<i64>,
    deletion_timestamp: Option<String>,
    owner_references: Option<Vec<ApiOwner>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct OutlineSpec {
    node_name: Option<String>,
    priority: Option<i32>,
    priority_class_name: Option<String>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct OutlineStatus {
    phase: Option<String>,
    reason: Option<String>,
    qos_class: Option<String>,
}

impl OutlineSpec {
    fn without_containers(self) -> PodSpec {
        PodSpec {
            priority: self.priority,
            priority_class_name: self.priority_class_name,
            termination_grace_period_seconds: self.termination_grace_period_seconds,
            ..PodSpec::default()
        }
    }
}

/// Of a pod object, only whose it is.
#[derive(Deserialize)]
struct Identity {
    metadata: IdentityMeta,
}

#[derive(Deserialize)]
struct IdentityMeta {
    uid: PodUid,
}

/// What the user wrote.
#[derive(Deserialize)]
struct Wanted {
    spec: PodSpec,
}

/// What the kubelet wrote.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Observed {
    status: Option<Containers>,
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
    /// As the kubelet names the node in its mirror pods (`CreateMirrorPod` in pkg/kubelet/pod/mirror_client.go, since
    /// 1.17).
    fn is_node(&self, name: &str) -> bool {
        self.api_version == "v1" && self.kind == "Node" && self.name == name
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ApiCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Containers {
    /// The generation that the kubelet has looked at: from 1.34 on.
    observed_generation: Option<i64>,
    conditions: Option<Vec<ApiCondition>>,
    /// Of the whole pod, with overhead: from 1.35 on.
    allocated_resources: Option<ResourceList>,
    container_statuses: Option<Vec<ApiContainerStatus>>,
    init_container_statuses: Option<Vec<ApiContainerStatus>>,
    ephemeral_container_statuses: Option<Vec<ApiContainerStatus>>,
}

impl Containers {
    /// Whether the specification may ask for other amounts than the kubelet has allocated. The first one is what it has
    /// admitted: servers before 1.33 give none a number, and unless an alpha gate is on they let nobody change an
    /// amount. A pod that was made before its server was upgraded to 1.33 has its first number from its first change,
    /// which is not told from the making of a pod: until its kubelet says that it has not allocated it, it counts.
    fn may_differ(&self, generation: i64) -> bool {
        let is_pending = |condition: &ApiCondition| {
            condition.kind == RESIZE_PENDING && condition.status == "True"
        };
        let is_pending = self.conditions.iter().flatten().any(is_pending);
        let is_observed = generation <= self.observed_generation.unwrap_or_default();
        is_pending || generation > 1 && (!is_observed || self.is_without_resize())
    }

    /// The kubelet says nothing of what it allocates to a container that it has made: it takes what the specification
    /// asks for.
    fn is_without_resize(&self) -> bool {
        let all = [&self.container_statuses, &self.init_container_statuses];
        let mut statuses = all.into_iter().flatten().flatten();
        statuses.any(|status| status.kept.is_made() && status.allocated_resources.is_none())
    }

    /// By the ids of their containers the agent tells these from the sandbox.
    fn into_status(self, qos_class: Option<QosClass>) -> PodStatus {
        let kept = |statuses: Option<Vec<ApiContainerStatus>>| {
            let statuses = statuses.unwrap_or_default();
            statuses.into_iter().map(|status| status.kept).collect()
        };
        PodStatus {
            qos_class,
            container_statuses: kept(self.container_statuses),
            init_container_statuses: kept(self.init_container_statuses),
            ephemeral_container_statuses: kept(self.ephemeral_container_statuses),
        }
    }
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
        let outline: Outline = part(object).ok_or(NotTaken::Garbage)?;
        if outline.spec.node_name.as_deref() != Some(node) {
            return Err(NotTaken::OtherNode);
        }
        let ApiMeta {
            name,
            namespace,
            uid,
            annotations,
            labels: all_labels,
            resource_version,
            generation,
            deletion_timestamp,
            owner_references,
        } = outline.metadata;
        let is_there = |text: &String| !text.is_empty();
        let uid = uid.filter(|uid| !uid.as_str().is_empty());
        let uid = uid.ok_or(NotTaken::Garbage)?;
        let name = name.filter(is_there).ok_or(NotTaken::Garbage)?;
        let namespace = namespace.filter(is_there).ok_or(NotTaken::Garbage)?;
        let mut annotations = annotations.unwrap_or_default();
        let label = all_labels
            .as_ref()
            .and_then(|labels| labels.get(EVICTED_LABEL));
        let evicted = [
            annotations.remove(EVICTED_ANNOTATION),
            label.and_then(|value| of_label(value)),
        ];
        annotations.retain(|key, value| {
            ANNOTATIONS.contains(&key.as_str()) && value.len() <= TEXT_BYTES_MAX
        });
        let status = outline.status.unwrap_or_default();
        let phase = Phase::of(status.phase.as_deref().unwrap_or_default());
        let is_deleting = deletion_timestamp.is_some();
        let qos_class = status.qos_class.as_deref().and_then(QosClass::from_name);
        let (wanted, observed) = (part::<Wanted>(object), part::<Observed>(object));
        let is_readable = wanted.is_some() && observed.is_some();
        let containers = observed.unwrap_or_default().status.unwrap_or_default();
        let spec = match wanted {
            Some(wanted) => reduced(wanted.spec, &containers, generation.unwrap_or_default()),
            None => outline.spec.without_containers(),
        };
        let owner = owner_references
            .unwrap_or_default()
            .into_iter()
            .find(|owner| owner.controller == Some(true));
        let mut pod = Pod {
            metadata: Metadata {
                name: name.clone(),
                namespace: Some(namespace.clone()),
                uid: Some(uid.clone()),
                annotations,
                labels: all_labels.filter(|_| labels).unwrap_or_default(),
            },
            spec,
            status: containers.into_status(qos_class),
        };
        if !(pod.is_mirror() && owner.as_ref().is_some_and(|owner| owner.is_node(node))) {
            pod.clear_static();
        }
        let exclusive = is_readable.then(|| ExclusiveRequests::of(pod.qos_class(), &pod.spec));
        let has_started = pod.status.containers().any(ContainerStatus::is_made);
        let is_critical = pod.priority() >= SYSTEM_CRITICAL_PRIORITY;
        // The image of a static pod is made anew when it is deleted, and the pod runs on.
        let is_leaving = phase.is_terminal() || is_deleting && !pod.is_mirror();
        let whole = is_readable.then(|| frame(pod.clone(), is_leaving).ok());
        let (frame, is_shortened) = match whole.flatten() {
            Some(whole) => (whole, false),
            None => (frame(shortened(pod), is_leaving)?, true),
        };
        Ok(Self {
            uid,
            namespace: namespace.into(),
            name: name.into(),
            resource_version: resource_version.into(),
            phase,
            has_evicted_reason: status.reason.as_deref() == Some(EVICTED_REASON),
            evicted: evicted.map(|text| text.map(Into::into)),
            owner: owner.map(|owner| owner.uid.into()),
            is_deleting,
            exclusive,
            has_started,
            is_critical,
            is_shortened,
            frame,
        })
    }

    /// The UID of an object, of whatever node; `None`: it is no pod.
    #[must_use]
    pub fn uid_of(object: &[u8]) -> Option<PodUid> {
        part::<Identity>(object).map(|identity| identity.metadata.uid)
    }

    /// Whether it carries an eviction.
    #[must_use]
    pub fn carries_eviction(&self) -> bool {
        self.evicted.iter().any(Option::is_some)
    }

    /// When Plimsoll evicted it, by its annotation or label, the later one: milliseconds since 1970.
    #[must_use]
    pub fn evicted_unix_ms(&self) -> Option<u64> {
        let noted = self.evicted.iter().flatten();
        let times = noted.filter_map(|text| unix_ms_of(text.split(' ').next()?));
        times.max()
    }
}

/// What [`EVICTED_LABEL`] says of report number `report` of the eviction of this time (RFC 3339): a label's value has
/// no colon and no space.
#[must_use]
pub fn label_of(time: &str, report: u32) -> String {
    format!("{}.{report}", time.replace(':', "."))
}

/// The same, as the annotation has it. `None`: it is none of ours.
fn of_label(value: &str) -> Option<String> {
    let (time, report) = value.rsplit_once("Z.")?;
    let (day, time) = time.split_once('T')?;
    Some(format!(
        "{day}T{}Z report={report}",
        time.replacen('.', ":", 2)
    ))
}

/// Reads a part of an object; `None`: it cannot be read.
fn part<T: DeserializeOwned>(object: &[u8]) -> Option<T> {
    serde_json::from_slice(object).ok()
}

fn frame(pod: Pod, is_leaving: bool) -> Result<Arc<[u8]>, NotTaken> {
    let pod = Box::new(pod);
    let frame = ToAgent::Pod { pod, is_leaving };
    let json = serde_json::to_vec(&frame).map_err(|_| NotTaken::Garbage)?;
    let body = FRAMING.body(&json).map_err(|_| NotTaken::TooLarge)?;
    let frame = FRAMING.frame(body).map_err(|_| NotTaken::TooLarge)?;
    let fits = frame.len() <= FRAME_BYTES_MAX;
    fits.then(|| frame.into()).ok_or(NotTaken::TooLarge)
}

/// What is left of a pod that is too long: who it is, its priority and class, the sums of what its containers request
/// of memory and disk, and the ids of [`SHORTENED_CONTAINERS_MAX`] of them. It has no label that a disruption budget
/// could select, and what it has on disk is not known.
fn shortened(mut pod: Pod) -> Pod {
    let sums = |amounts: ResourceList| {
        let counts = |name: &str| name == MEMORY || name == EPHEMERAL_STORAGE;
        let amounts = amounts.into_iter().filter(|(name, _)| counts(name));
        amounts.collect::<ResourceList>()
    };
    let all = Container {
        name: "all".to_owned(),
        resources: Resources {
            requests: sums(pod_requests(&pod, Scope::ALL)),
            limits: sums(pod_limits(&pod, Scope::ALL)),
        },
        ..Container::default()
    };
    let ids = pod.status.containers().filter(|status| {
        let id = status.container_id.as_deref();
        id.is_some_and(|id| id.len() <= TEXT_BYTES_MAX)
    });
    let ids = ids
        .take(SHORTENED_CONTAINERS_MAX)
        .map(|status| ContainerStatus {
            name: String::new(),
            ..status.clone()
        });
    let container_statuses = ids.collect();
    let mark = (SHORTENED_ANNOTATION.to_owned(), "true".to_owned());
    pod.metadata.annotations.extend([mark]);
    let qos_class = Some(pod.qos_class());
    let class_name = pod.spec.priority_class_name;
    Pod {
        metadata: Metadata {
            labels: BTreeMap::new(),
            ..pod.metadata
        },
        spec: PodSpec {
            containers: vec![all],
            priority: pod.spec.priority,
            priority_class_name: class_name.filter(|name| name.len() <= NAME_BYTES_MAX),
            termination_grace_period_seconds: pod.spec.termination_grace_period_seconds,
            ..PodSpec::default()
        },
        status: PodStatus {
            qos_class,
            container_statuses,
            ..PodStatus::default()
        },
    }
}

/// Requests as the kubelet has allocated them (an in-place resize changes them late, `getAllocatedPods`), and only
/// volumes whose space counts. `generation`: that of the specification, 0 if it has none.
///
/// The kubelet says what it has allocated only of a container that it has made (`convertToAPIContainerStatuses` in
/// pkg/kubelet/kubelet_pods.go, 1.33 to 1.36). Of all others the specification counts, unless it may have been changed
/// since the kubelet looked at it: then they are marked, and those that were never made request nothing that can be
/// resized.
fn reduced(mut spec: PodSpec, status: &Containers, generation: i64) -> PodSpec {
    for (containers, statuses) in [
        (&mut spec.containers, &status.container_statuses),
        (&mut spec.init_containers, &status.init_container_statuses),
    ] {
        let statuses = statuses.as_deref().unwrap_or_default();
        for container in containers {
            let found = statuses
                .iter()
                .find(|status| status.kept.name == container.name);
            let allocated = found.and_then(|status| status.allocated_resources.as_ref());
            container.unallocated = allocated.is_none() && status.may_differ(generation);
            let is_made = found.is_some_and(|found| found.kept.is_made());
            if container.unallocated && !is_made {
                // It uses nothing, and what its owner has written would keep the pod below its requests.
                for amounts in [
                    &mut container.resources.requests,
                    &mut container.resources.limits,
                ] {
                    amounts.retain(|name, _| !RESIZABLE.contains(&name.as_str()));
                }
            }
            for (name, quantity) in allocated.into_iter().flatten() {
                container
                    .resources
                    .requests
                    .insert(name.clone(), quantity.clone());
            }
        }
    }
    if let (Some(asked), Some(allocated)) = (&mut spec.resources, &status.allocated_resources) {
        for (name, quantity) in &mut asked.requests {
            if let Some(allocated) = allocated.get(name) {
                quantity.clone_from(allocated);
                if let Some(overhead) = spec.overhead.get(name) {
                    *quantity -= overhead;
                }
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
    use plimsoll_core::protocol::framing::LENGTH_BYTES;
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

    /// A resize that the kubelet has not allocated changes no ranking.
    #[test]
    fn requests_of_the_whole_pod_are_those_that_are_allocated() {
        let mut pod = api_pod("u", "1");
        pod["spec"]["resources"] =
            json!({"requests": {"memory": "100Gi"}, "limits": {"memory": "200Gi"}});
        pod["spec"]["overhead"] = json!({"memory": "1Mi"});
        pod["status"]["allocatedResources"] = json!({"memory": "65Mi", "cpu": "1"});
        let pod = pod_of(&read(&pod).unwrap());
        let requests = pod.spec.resources.unwrap().requests;
        let requests: Vec<_> = requests
            .iter()
            .map(|(name, quantity)| (name.as_str(), quantity.value()))
            .collect();
        assert_eq!(requests, [("memory", 64 << 20)]);
    }

    /// Of a container that was never made the kubelet does not say what it has allocated.
    #[test]
    fn what_the_kubelet_may_not_have_allocated_is_marked() {
        let unallocated = |generation: Value, status: Value| {
            let mut pod = api_pod("u", "1");
            pod["metadata"]["generation"] = generation;
            pod["status"] = status;
            let pod = pod_of(&read(&pod).unwrap());
            let container = &pod.spec.containers[0];
            // Also the kubelet of a pod that it has made and knows no resize for goes by the specification.
            let counts = container.resources.requests.contains_key(MEMORY);
            assert_eq!(
                counts,
                !pod.awaits_allocation(),
                "{:?}",
                container.resources
            );
            (container.unallocated, pod.awaits_allocation())
        };
        let waiting = json!([{"name": "app", "image": "i", "state": {"waiting": {}}}]);
        let made = json!([{"name": "app", "containerID": "c://1"}]);
        let allocated =
            json!([{"name": "app", "containerID": "c://1", "allocatedResources": {"cpu": "1"}}]);
        let pending = json!([{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]);
        let over = json!([{"type": "PodResizePending", "status": "False"}, {"type": "Ready", "status": "True"}]);
        for (generation, status, expected) in [
            // Nobody has changed it, or nobody can.
            (
                json!(1),
                json!({"containerStatuses": waiting}),
                (false, false),
            ),
            (
                json!(null),
                json!({"containerStatuses": waiting}),
                (false, false),
            ),
            (
                json!(null),
                json!({"containerStatuses": made}),
                (false, false),
            ),
            // Changed, and not seen yet.
            (
                json!(2),
                json!({"containerStatuses": waiting}),
                (true, true),
            ),
            (
                json!(3),
                json!({"containerStatuses": waiting, "observedGeneration": 2}),
                (true, true),
            ),
            (json!(3), json!({}), (true, true)),
            (
                json!(3),
                json!({"containerStatuses": allocated, "observedGeneration": 2}),
                (false, false),
            ),
            // Seen and allocated.
            (
                json!(3),
                json!({"containerStatuses": waiting, "observedGeneration": 3}),
                (false, false),
            ),
            (
                json!(3),
                json!({"containerStatuses": waiting, "observedGeneration": 3, "conditions": over}),
                (false, false),
            ),
            // Seen, and not allocated.
            (
                json!(3),
                json!({"containerStatuses": waiting, "observedGeneration": 3, "conditions": pending}),
                (true, true),
            ),
            (
                json!(3),
                json!({"containerStatuses": allocated, "observedGeneration": 3, "conditions": pending}),
                (false, false),
            ),
            // A kubelet that knows no resize: the pod is placed, and does not grow.
            (json!(2), json!({"containerStatuses": made}), (true, false)),
            (
                json!(2),
                json!({"containerStatuses": made, "observedGeneration": 2}),
                (true, false),
            ),
        ] {
            let found = unallocated(generation.clone(), status.clone());
            assert_eq!(found, expected, "{generation} {status}");
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
        // By its label, whatever somebody has made of its annotation; and of two times the later one counts.
        pod["metadata"]["labels"][EVICTED_LABEL] = json!(label_of("2026-11-22T10:00:01.123Z", 2));
        let seen = read(&pod).unwrap();
        assert_eq!(seen.evicted_unix_ms(), Some(1_795_341_601_123));
        pod["metadata"]["annotations"][EVICTED_ANNOTATION] = json!("soon");
        assert_eq!(
            read(&pod).unwrap().evicted_unix_ms(),
            Some(1_795_341_601_123)
        );
        for foreign in ["yes", "Z.", "TZ.", "", "2026-11-22T10.00.01.123Z"] {
            pod["metadata"]["labels"][EVICTED_LABEL] = json!(foreign);
            assert_eq!(read(&pod).unwrap().evicted_unix_ms(), None, "{foreign}");
        }
    }

    /// `IsValidLabelValue` in apimachinery's util/validation.
    #[test]
    fn an_eviction_is_a_valid_label() {
        let value = label_of("2026-11-22T10:00:00.123Z", u32::MAX);
        assert!(value.len() <= 63, "{value}");
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        assert!(value.bytes().all(is_inner), "{value}");
        for end in [value.chars().next(), value.chars().last()] {
            assert!(end.is_some_and(|end| end.is_ascii_alphanumeric()));
        }
        let read_back = of_label(&label_of("2026-11-22T10:00:00.123Z", 2));
        assert_eq!(
            read_back.as_deref(),
            Some("2026-11-22T10:00:00.123Z report=2")
        );
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
        for garbage in [&b"<html>"[..], b"{}", b"null", b"\xff"] {
            assert!(SeenPod::read(garbage, "node-1", false).is_err());
        }
    }

    /// Else it would be a way to be evicted after all others.
    #[test]
    fn no_pod_makes_itself_unreadable_or_too_long_to_be_known() {
        let changed = |path: &str, value: Value| {
            let mut pod = api_pod("u1", "7");
            pod["spec"]["priority"] = json!(7);
            *pod.pointer_mut(path).unwrap() = value;
            let seen = read(&pod).unwrap();
            assert!(seen.frame.len() <= FRAME_BYTES_MAX);
            assert!(seen.has_started, "{path}");
            let pod = pod_of(&seen);
            assert_eq!((pod.metadata.name.as_str(), pod.priority()), ("name-u1", 7));
            assert_eq!(pod.is_shortened(), seen.is_shortened);
            (seen.is_shortened, pod)
        };
        let memory = |pod: &Pod| {
            pod_requests(pod, Scope::ALL)
                .get(MEMORY)
                .map(|it| it.value())
        };
        let long = "x".repeat(300_000);
        let commas = ",".repeat(33_000);
        // What means nothing is left out, and nothing is lost.
        for value in [&long, &commas] {
            let annotations =
                json!({PRESSURE_SIGNAL_ANNOTATION: value, CONFIG_SOURCE_ANNOTATION: value});
            let (is_shortened, pod) = changed("/metadata/annotations", annotations);
            assert!(!is_shortened && pod.metadata.annotations.is_empty());
            assert_eq!(memory(&pod), Some(2 << 30));
        }
        // What is too long: the sums are known.
        let (is_shortened, pod) =
            changed("/spec/containers/0/volumeMounts/0/mountPath", json!(long));
        assert!(is_shortened);
        assert_eq!(memory(&pod), Some(2 << 30));
        assert_eq!(pod.qos_class(), QosClass::Burstable);
        assert_eq!(pod.status.container_statuses.len(), 1);
        let many: Vec<Value> = (0..2_000)
            .map(|at| json!({"name": format!("c{at}"), "resources": {"requests": {"memory": "1Mi", "cpu": "1"}}}))
            .collect();
        let (is_shortened, pod) = changed("/spec/containers", json!(many));
        assert!(is_shortened);
        assert_eq!(memory(&pod), Some(2_000 << 20));
        let status = json!({"name": "app", "containerID": format!("containerd://{}", "c".repeat(64)), "state": {}});
        let (is_shortened, pod) = changed("/status/containerStatuses", json!(vec![status; 2_000]));
        assert!(is_shortened);
        assert_eq!(
            pod.status.container_statuses.len(),
            SHORTENED_CONTAINERS_MAX
        );
        // What cannot be read: it requests nothing.
        let size = json!([{"name": "scratch", "emptyDir": {"sizeLimit": "1e10001"}}]);
        for (path, value) in [("/spec/volumes", size), ("/spec/containers", json!(7))] {
            let (is_shortened, pod) = changed(path, value);
            assert!(is_shortened, "{path}");
            assert_eq!(memory(&pod), None);
        }
        // Nor by fields that nobody reads.
        let deep = format!(
            "{}{}",
            "{\"f:x\":".repeat(500),
            "{}".to_owned() + &"}".repeat(500)
        );
        let object = api_pod("u1", "7")
            .to_string()
            .replace("{\"f:x\":{}}", &deep);
        assert!(object.len() > 4_000);
        let seen = SeenPod::read(object.as_bytes(), "node-1", false).unwrap();
        assert!(!seen.is_shortened);
        assert_eq!(SeenPod::uid_of(object.as_bytes()), Some("u1".into()));
    }
}
