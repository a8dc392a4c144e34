//! Pods: what counts of them, and what their owners write on them.

use plimsoll_core::arbitration::amounts::RESOURCES_MAX;
use plimsoll_core::arbitration::deletion::GRACE_MAX_S;
use plimsoll_core::arbitration::named::Named;
use plimsoll_core::arbitration::requests::counted;
use plimsoll_core::kube::admission::pod_object::MoreStatus;
use plimsoll_core::kube::owner::OwnerReference;
use plimsoll_core::kube::pod::{Phase, Pod};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::counted::CountedPod;
use super::placement::{ApiPlacement, Placement, Tolerations};
use super::{Meta, Texts, read};
use crate::clock::unix_ms_of;

/// The notice on a pod: when it is evicted if nothing changes.
pub const EVICT_AFTER: &str = "plimsoll.dev/evict-after";
/// On a pending pod: the node on which room is made for it, as long as `status.nominatedNodeName` is the arbitrator's
/// word.
pub const ROOM_ON: &str = "plimsoll.dev/room-on";
/// Annotations with which a pod asks an autoscaler to leave it on its node, and their values.
const STAYS: [(&str, &str); 2] = [
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ("karpenter.sh/do-not-disrupt", "true"),
];
/// Bytes of a node's name.
const NODE_NAME_MAX: usize = 253;
/// More of an [`EVICT_AFTER`] is not kept: its owner may write what he likes, and a time takes 20.
const TIME_MAX: usize = 32;

/// Bytes of a pod's labels. Of a pod with more none is kept: the Eviction API still asks its budgets.
const LABEL_BYTES_MAX: usize = 4096;
/// Resources that a pod requests: more than a cluster can have.
const REQUESTS_MAX: usize = RESOURCES_MAX;
/// Bytes of their names.
const REQUEST_BYTES_MAX: usize = 4096;
/// Why a pod with more has no room made for it.
pub const TOO_MANY_RESOURCES: &str =
    "requests of more than 128 resources, or with names of more than 4 KiB";

/// A grace; API servers before 1.27 take ones below 0.
fn seconds(grace: Option<i64>) -> u64 {
    grace.and_then(|it| u64::try_from(it).ok()).unwrap_or(0)
}

fn name_bytes(requests: &Named) -> usize {
    requests.keys().map(String::len).sum()
}

fn text_bytes(labels: &Texts) -> usize {
    let labels = labels.iter();
    labels.map(|(key, value)| key.len() + value.len()).sum()
}

/// FNV-1a. Two texts with the same one cost a sign of life, and there will be another.
fn fingerprint<'a>(texts: impl Iterator<Item = &'a str>) -> u64 {
    let bytes = texts.flat_map(|text| text.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What pods have in common of which one would miss what the other has missed.
fn alike(owners: &[OwnerReference], priority: i64, requests: &Named) -> u64 {
    let maker = owners.iter().find(|owner| owner.controller == Some(true));
    let maker = maker.map_or(["", ""], |it| [it.api_version.as_str(), it.kind.as_str()]);
    let requests = requests.iter();
    let amounts: Vec<String> = requests.map(|(name, it)| format!("{name}={it}")).collect();
    let priority = priority.to_string();
    let texts = maker.into_iter().chain([priority.as_str()]);
    fingerprint(texts.chain(amounts.iter().map(String::as_str)))
}

/// A pod that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Opaque.
    pub resource_version: String,
    /// Where it runs.
    pub node: Option<String>,
    /// What it requests, with one of `pods`.
    pub requests: Named,
    /// Greater is more important.
    pub priority: i64,
    /// When the kubelet took it: milliseconds since 1970.
    pub started_unix_ms: Option<u64>,
    /// It is being deleted.
    pub is_leaving: bool,
    /// How long that may take, seconds.
    pub leaving_grace_s: u64,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace_s: u64,
    /// Of a DaemonSet, a mirror or a static pod.
    pub is_daemon: bool,
    /// Its phase is `Pending`: on a node none of its containers has started so far.
    pub is_pending: bool,
    /// Its condition `Ready` is true.
    pub is_ready: bool,
    /// Its owner asks [autoscalers](STAYS) to leave it where it is.
    pub stays: bool,
    /// Labels, by which budgets select it.
    pub labels: Texts,
    /// Where a pending pod may go, and which taints one on a node tolerates.
    pub placement: Placement,
    /// It waits for another scheduler than that of the pods for which room is made.
    pub has_own_scheduler: bool,
    /// The value of [`EVICT_AFTER`], its beginning if it is no time.
    pub evict_after: Option<String>,
    /// `status.nominatedNodeName`: there the scheduler keeps room for it.
    pub nominated: Option<String>,
    /// The value of [`ROOM_ON`]. Its owner can write it too, but not the status beside it.
    pub room_on: Option<String>,
    /// What the scheduler has said of a pending pod, as a number that differs where the words do.
    pub tried: Option<u64>,
    /// Of a pending pod a number that pods have in common which the same kind of object makes, with the same requests
    /// and priority. The next pod of a CronJob has it, too.
    pub alike: u64,
}

impl SeenPod {
    /// Whether the scheduler has done something since the pod was seen before: it placed it, said something else about
    /// it, or took back the node that was kept for it. Each of these takes a right to bind pods or to write their
    /// status; a pod that is made with a node was placed by nobody.
    #[must_use]
    pub fn is_sign_after(&self, before: &Self) -> bool {
        let is_tried = self.tried.is_some() && self.tried != before.tried;
        let took_back = before.has_kept_hole()
            && self.room_on == before.room_on
            && self.nominated != before.nominated;
        let is_done = self.node.is_some() || is_tried || took_back;
        before.node.is_none() && !before.has_own_scheduler && is_done
    }

    /// About how many bytes of it its owner has written.
    #[must_use]
    pub fn bytes(&self) -> usize {
        name_bytes(&self.requests) + text_bytes(&self.labels) + self.placement.bytes()
    }

    /// Whether it leaves within the time that a pod may take for it.
    #[must_use]
    pub const fn leaves(&self) -> bool {
        self.is_leaving && self.leaving_grace_s <= GRACE_MAX_S
    }

    /// Whether its status and [`ROOM_ON`] name the same node: the arbitrator keeps room for it there.
    #[must_use]
    pub fn has_kept_hole(&self) -> bool {
        self.nominated.is_some() && self.nominated == self.room_on
    }
}

/// What came of reading a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodRead {
    /// It counts.
    Counts(String, Box<SeenPod>),
    /// It has ended, or a gate holds it back: it asks for nothing.
    Idle(String),
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ApiPod {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    scheduling_gates: Option<Vec<IgnoredAny>>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ApiPending {
    spec: ApiPlacement,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ApiBound {
    spec: Tolerated,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Tolerated {
    tolerations: Option<Tolerations>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: Option<String>,
    start_time: Option<String>,
    nominated_node_name: Option<String>,
    conditions: Option<Vec<PodCondition>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodCondition {
    r#type: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
    last_transition_time: Option<String>,
}

impl SeenPod {
    /// Reads one, with its UID. `scheduler`: whose pods have room made for them.
    ///
    /// # Errors
    /// What serde says.
    pub fn read(object: &[u8], scheduler: &str) -> Result<PodRead, String> {
        let ApiPod {
            metadata,
            spec,
            status,
        } = read(object)?;
        if metadata.uid.is_empty() || metadata.name.is_empty() {
            return Err("it has no UID or no name".to_owned());
        }
        let has_ended = Phase::of(status.phase.as_deref().unwrap_or_default()).is_terminal();
        let node = spec.node_name.filter(|node| !node.is_empty());
        let is_gated = node.is_none() && spec.scheduling_gates.is_some_and(|it| !it.is_empty());
        if has_ended || is_gated {
            return Ok(PodRead::Idle(metadata.uid));
        }
        let mut core = core_pod(object)?;
        if node.is_some() {
            core = with_resize(core, object);
        }
        let mut requests = counted(&core);
        // Schedulers and kubelets pass over what is 0 and no node has: a pod runs with any number of such names, and
        // they hide no other.
        let usual = ["cpu", "memory", "ephemeral-storage", "pods"];
        requests.retain(|name, amount| *amount > 0 || usual.contains(&name.as_str()));
        let owners = metadata.owner_references.unwrap_or_default();
        let is_daemon = core.is_mirror() || owners.iter().any(OwnerReference::is_daemon_set);
        // Read by itself: beside other fields of the same object all of them would be held at once.
        let (has_own_scheduler, mut placement) = if node.is_none() {
            let bound_by = read::<ApiPending>(object)?.spec;
            (
                bound_by.has_other_scheduler(scheduler),
                Placement::of(bound_by, scheduler),
            )
        } else {
            let tolerations = read::<ApiBound>(object)?.spec.tolerations;
            let placement = Placement::of_bound(tolerations.unwrap_or_default());
            (false, placement)
        };
        if requests.len() > REQUESTS_MAX || name_bytes(&requests) > REQUEST_BYTES_MAX {
            requests.retain(|name, _| usual.contains(&name.as_str()));
            placement.unknown = Some(TOO_MANY_RESOURCES);
        }
        let mut labels = core.metadata.labels;
        // Budgets select what runs.
        if text_bytes(&labels) > LABEL_BYTES_MAX || node.is_none() {
            labels = Texts::new();
        }
        let conditions = status.conditions.unwrap_or_default();
        let is_ready = conditions
            .iter()
            .any(|it| it.r#type == "Ready" && it.status == "True");
        let mut conditions = conditions.into_iter();
        let scheduled = conditions.find(|it| it.r#type == "PodScheduled");
        let tried = scheduled.filter(|_| node.is_none()).map(|it| {
            let words = [it.reason, it.message, it.last_transition_time];
            let words = words.iter().flatten().chain([&it.status]);
            fingerprint(words.map(String::as_str))
        });
        let priority = i64::from(core.spec.priority.unwrap_or(0));
        let alike = match node {
            None => alike(&owners, priority, &requests),
            Some(_) => 0,
        };
        let mut annotations = metadata.annotations.unwrap_or_default();
        let stays = STAYS
            .iter()
            .any(|(name, value)| annotations.get(*name).is_some_and(|it| it == value));
        let evict_after = annotations.remove(EVICT_AFTER);
        let room_on = annotations.remove(ROOM_ON);
        let nominated = status.nominated_node_name;
        let seen = Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name,
            resource_version: metadata.resource_version,
            requests,
            priority,
            started_unix_ms: status.start_time.and_then(|stamp| unix_ms_of(&stamp)),
            is_leaving: metadata.deletion_timestamp.is_some(),
            leaving_grace_s: seconds(metadata.deletion_grace_period_seconds),
            grace_s: seconds(spec.termination_grace_period_seconds),
            is_daemon,
            is_pending: status.phase.as_deref() == Some("Pending"),
            is_ready,
            stays,
            labels,
            placement,
            has_own_scheduler,
            evict_after: evict_after.map(|value| value.chars().take(TIME_MAX).collect()),
            nominated: nominated.filter(|node| !node.is_empty()),
            room_on: room_on.filter(|node| node.len() <= NODE_NAME_MAX),
            tried,
            alike,
            node,
        };
        Ok(PodRead::Counts(metadata.uid, Box::new(seen)))
    }
}

/// What counts of a pod. A pod can have more than is read here (volumes, words of its status), and quantities with more
/// digits than any machine has: nobody hides one by that.
fn core_pod(object: &[u8]) -> Result<Pod, String> {
    match read(object) {
        Ok(pod) => Ok(pod),
        Err(_) => read::<CountedPod>(object).map(Pod::from),
    }
}

/// A pod on a node with what its containers and it have, where a resize has not been done yet or cannot be: so the
/// scheduler counts it.
fn with_resize(pod: Pod, object: &[u8]) -> Pod {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct ApiPod {
        status: MoreStatus,
    }
    match read::<ApiPod>(object) {
        Ok(ApiPod { status }) => status.as_scheduled(&pod).into_owned(),
        // Only the kubelet writes it, and what it says of a pod that was not resized is what the specification says.
        Err(_) => pod,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::arbitrate::seen::placement::DEFAULT_SCHEDULER;

    fn pod(metadata: &Value, more: &Value) -> SeenPod {
        let mut object = json!({"metadata": {"name": "p", "namespace": "a", "uid": "u", "creationTimestamp": "2026-11-22T08:00:00Z"},
            "spec": {"nodeName": "n", "containers": []}});
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        for (key, value) in more.as_object().unwrap() {
            object[key] = value.clone();
        }
        match SeenPod::read(object.to_string().as_bytes(), DEFAULT_SCHEDULER).unwrap() {
            PodRead::Counts(_, pod) => *pod,
            PodRead::Idle(uid) => panic!("{uid}"),
        }
    }

    #[test]
    fn a_notice_is_kept_no_longer_than_a_time_is() {
        let long = "9".repeat(200_000);
        let noticed = pod(&json!({"annotations": {EVICT_AFTER: long}}), &json!({}));
        assert_eq!(noticed.evict_after.unwrap().len(), TIME_MAX);
    }

    #[test]
    fn what_the_scheduler_does_is_a_sign_and_what_others_do_is_none() {
        let waits = |status: Value, more: Value| {
            let mut spec = json!({"nodeName": null, "containers": []});
            for (key, value) in more.as_object().unwrap() {
                spec[key] = value.clone();
            }
            pod(
                &json!({"annotations": {ROOM_ON: "n"}}),
                &json!({"spec": spec, "status": status}),
            )
        };
        let said = |message: &str| json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]});
        let none = json!({});
        let before = waits(json!({}), none.clone());
        let tried = waits(said("0/1 nodes"), none.clone());
        assert!(tried.is_sign_after(&before));
        assert!(!tried.is_sign_after(&tried.clone()));
        assert!(waits(said("0/2 nodes"), none.clone()).is_sign_after(&tried));
        let placed = pod(&json!({}), &json!({}));
        assert!(placed.is_sign_after(&before) && !placed.is_sign_after(&placed.clone()));
        // A nomination that was taken back; the arbitrator takes its annotation with it.
        let kept = waits(json!({"nominatedNodeName": "n"}), none.clone());
        assert!(before.is_sign_after(&kept) && !kept.is_sign_after(&before));
        let mut given_up = before.clone();
        given_up.room_on = None;
        assert!(!given_up.is_sign_after(&kept));
        // Of another scheduler nothing follows, whatever else binds the pod to nodes.
        let far: String = "x".repeat(5_000);
        let requests: BTreeMap<String, String> = (0..200)
            .map(|at| (format!("example.com/r{at}"), "1".to_owned()))
            .collect();
        for more in [
            json!({}),
            json!({"volumes": [{"persistentVolumeClaim": {"claimName": "x"}}]}),
            json!({"nodeSelector": {"far": far}}),
            json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}),
        ] {
            let mut spec = json!({"schedulerName": "volcano"});
            for (key, value) in more.as_object().unwrap() {
                spec[key] = value.clone();
            }
            let other = waits(none.clone(), spec.clone());
            assert!(!placed.is_sign_after(&other), "{more}");
            let tried = waits(said("0/1 nodes"), spec);
            assert!(!tried.is_sign_after(&other), "{more}");
        }
    }

    #[test]
    fn what_a_tenant_writes_makes_no_daemon() {
        let owner = |version: &str, kind: &str, controller: Value| json!({"ownerReferences": [{"apiVersion": version, "kind": kind, "controller": controller}]});
        let cases = [
            (
                json!({"annotations": {"kubernetes.io/config.source": "file"}}),
                false,
            ),
            (
                json!({"annotations": {"kubernetes.io/config.mirror": "x"}}),
                true,
            ),
            (owner("v1", "Node", json!(true)), false),
            (owner("apps/v1", "DaemonSet", json!(true)), true),
            (owner("apps/v1", "DaemonSet", json!(false)), false),
            (owner("apps/v1", "DaemonSet", Value::Null), false),
            (owner("example.com/v1", "DaemonSet", json!(true)), false),
        ];
        for (metadata, is_daemon) in cases {
            let seen = pod(&metadata, &json!({}));
            assert_eq!(seen.is_daemon, is_daemon, "{metadata}");
        }
    }

    #[test]
    fn no_pod_hides_behind_what_is_not_read() {
        let odd = json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 31_536_000,
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1e20000"}}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1e20000"}}}]}});
        let seen = pod(&json!({}), &odd);
        assert_eq!(
            (
                seen.requests["cpu"],
                seen.requests["memory"],
                seen.requests["pods"]
            ),
            (2000, 1 << 60, 1)
        );
        assert_eq!(seen.grace_s, 31_536_000);
        // Whatever else is in the place of an amount, also of millions of others.
        for (amount, counted) in [
            (json!("1e20000"), 1 << 60),
            (json!({"a": [1]}), 1 << 60),
            (json!([1]), 1 << 60),
            (json!(true), 1 << 60),
            (json!(null), 0),
        ] {
            let names = (0..100_000).map(|at| (format!("example.com/r{at}"), json!("1")));
            let requests: BTreeMap<String, Value> = names
                .chain([
                    ("memory".into(), amount.clone()),
                    ("cpu".into(), json!(0.5)),
                ])
                .collect();
            let odd = json!({"spec": {"nodeName": "n", "priority": 7, "overhead": {"cpu": 1},
                "containers": [{"name": "c", "resources": {"requests": requests}}, {"name": "d"}],
                "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]}});
            let seen = pod(&json!({"labels": {"app": "x"}}), &odd);
            assert_eq!(
                (seen.requests["cpu"], seen.requests["memory"], seen.priority),
                (2500, counted, 7),
                "{amount}"
            );
            assert_eq!((seen.labels.len(), seen.requests.len()), (1, 3));
        }
        let below = json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": -1, "containers": []}});
        let seen = pod(&json!({"deletionGracePeriodSeconds": -1}), &below);
        assert_eq!((seen.grace_s, seen.leaving_grace_s), (0, 0));
    }

    #[test]
    fn a_resize_counts_as_the_scheduler_counts_it() {
        let resized = |asked: &str, has: &str, reason: &str| {
            let object = json!({"spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": {"cpu": asked}}}]},
                "status": {"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": has}, "resources": {"requests": {"cpu": has}}}],
                    "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]}});
            pod(&json!({}), &object).requests["cpu"]
        };
        // It never gets that.
        assert_eq!(resized("1000", "10m", "Infeasible"), 10);
        assert_eq!(resized("2", "1", "Deferred"), 2000);
        // It still has it.
        assert_eq!(resized("1", "2", "Deferred"), 2000);
    }

    /// The scheduler counts its overhead twice, as what is set aside has it already.
    #[test]
    fn a_resize_of_the_pod_as_a_whole_counts_likewise() {
        let resized = |asked: &str, has: &str, allocated: &str, reason: &str| {
            let object = json!({"spec": {"nodeName": "n", "overhead": {"cpu": "100m"}, "resources": {"requests": {"cpu": asked}},
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": "10m"}}}]},
                "status": {"resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": allocated, "memory": "1Gi"},
                    "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]}});
            pod(&json!({}), &object).requests
        };
        assert_eq!(resized("1000", "2", "2100m", "Infeasible")["cpu"], 2200);
        assert_eq!(resized("2", "1", "1100m", "Deferred")["cpu"], 2100);
        let shrinks = resized("1", "2", "2100m", "Deferred");
        assert_eq!(shrinks["cpu"], 2200);
        assert!(!shrinks.contains_key("memory"));
    }

    #[test]
    fn amounts_of_nothing_hide_no_other() {
        let mut requests: BTreeMap<String, &str> = (0..200)
            .map(|at| (format!("a.example/r{at}"), "0"))
            .collect();
        requests.insert("nvidia.com/gpu".to_owned(), "8");
        requests.insert("cpu".to_owned(), "1");
        let spec = json!({"spec": {"nodeName": "n", "containers": [{"resources": {"requests": requests}}]}});
        let seen = pod(&json!({}), &spec);
        assert_eq!(
            (seen.requests["nvidia.com/gpu"], seen.requests["cpu"]),
            (8, 1000)
        );
        assert_eq!(seen.placement.unknown, None);
    }

    #[test]
    fn a_pod_that_has_not_started_has_no_age() {
        assert_eq!(pod(&json!({}), &json!({})).started_unix_ms, None);
        let status = json!({"status": {"startTime": "2026-11-22T10:00:00Z"}});
        assert_eq!(
            pod(&json!({}), &status).started_unix_ms,
            Some(1_795_341_600_000)
        );
    }

    #[test]
    fn what_is_kept_of_a_pod_is_bounded() {
        let labels: BTreeMap<String, String> = (0..100)
            .map(|at| (format!("key-{at}"), "x".repeat(60)))
            .collect();
        assert!(
            pod(&json!({"labels": labels}), &json!({}))
                .labels
                .is_empty()
        );
        let requests: BTreeMap<String, String> = (0..1_000)
            .map(|at| (format!("example.com/r{at}"), "1".to_owned()))
            .chain([("cpu".to_owned(), "1".to_owned())])
            .collect();
        let spec =
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}});
        let seen = pod(&json!({}), &spec);
        assert_eq!(
            (seen.requests.len(), seen.placement.unknown),
            (2, Some(TOO_MANY_RESOURCES))
        );
    }
}
