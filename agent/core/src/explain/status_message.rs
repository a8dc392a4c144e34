//! The status message of an evicted pod: the kubelet's own sentences first, so that what parses those goes on working;
//! then what the kubelet does not say: the pod's rank, what set it apart from the next one, and which that is.
//!
//! Source: `evictionMessage` and the formats above it in pkg/kubelet/eviction/helpers.go, and `synchronize` and
//! `localStorageEviction` in eviction_manager.go, of 1.36. Difference, on purpose: amounts of a signal that the kubelet
//! does not know have their unit.

use std::fmt::Write as _;

use crate::kube::pod::Pod;
use crate::kube::pod_uid::PodUid;
use crate::kube::quantity::{Format, Quantity};
use crate::kube::resources::MEMORY;
use crate::model::amount::In;
use crate::model::config::EngineConfig;
use crate::model::decision::{Limited, LocalStorageReason, Reason, ThresholdReason};
use crate::model::rank_row::Comparator;
use crate::model::signal::{Resource, Signal, Unit};
use crate::model::state::NodeState;
use crate::policy::eviction::verdict;
use crate::policy::eviction::view::View;

/// What the kubelet calls the resource of a limit on local storage.
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// What a container used when its pod was evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContainerUse<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its working set, bytes.
    pub usage_bytes: u64,
}

/// The next pod in the ranking that may be evicted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunnerUp {
    /// `namespace/name`.
    pub pod: String,
    /// What set the evicted pod apart from it.
    pub ahead_by: Comparator,
}

impl RunnerUp {
    /// The first after `uid` in the ranking for `signal` that is not exempt from eviction.
    pub fn of(
        config: &EngineConfig,
        state: &NodeState,
        signal: Signal,
        uid: &PodUid,
    ) -> Option<Self> {
        let ranking = signal.row().resource.ranking();
        let mut rows = Vec::new();
        verdict::candidates(&View::now(config, state), signal, &mut rows);
        ranking.rank(&mut rows, &mut Vec::new());
        let at = rows.iter().position(|row| row.uid == *uid)?;
        let next = rows[at + 1..].iter().find(|row| !row.exempt)?;
        Some(Self {
            pod: state.pods.get(&next.uid)?.name.clone(),
            ahead_by: ranking.deciding_comparator(&rows[at], next),
        })
    }
}

/// The message, and what the kubelet's Event has besides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StatusMessage {
    /// The message.
    pub message: String,
    /// `starved_resource`.
    pub starved_resource: String,
    /// `offending_containers`: those above their requests, separated by commas.
    pub offending_containers: String,
    /// `offending_containers_usage`, in the same order.
    pub offending_containers_usage: String,
}

impl StatusMessage {
    /// For an eviction. `containers`: what is known of them; `next`: the runner-up, if there is one.
    pub fn new(
        pod: &Pod,
        reason: &Reason,
        containers: &[ContainerUse<'_>],
        next: Option<&RunnerUp>,
    ) -> Self {
        match reason {
            Reason::Threshold(reason) => Self::of_threshold(pod, reason, containers, next),
            Reason::LocalStorage(reason) => Self {
                message: of_local_storage(pod, reason),
                starved_resource: EPHEMERAL_STORAGE.to_owned(),
                ..Self::default()
            },
        }
    }

    fn of_threshold(
        pod: &Pod,
        reason: &ThresholdReason,
        containers: &[ContainerUse<'_>],
        next: Option<&RunnerUp>,
    ) -> Self {
        let row = reason.signal.row();
        let resource = resource_name(row.resource);
        let amount = |value| amount(row.unit, value);
        let mut text = format!(
            "The node was low on resource: {resource}. Threshold quantity: {}, available: {}. ",
            amount(reason.threshold),
            amount(reason.observed)
        );
        let (mut names, mut usages) = (Vec::new(), Vec::new());
        if row.resource == Resource::Memory {
            for used in containers {
                let Some(container) = pod.container(used.name) else {
                    continue;
                };
                let request = container.resources.request(MEMORY);
                let usage = bytes(used.usage_bytes);
                if usage <= request {
                    continue;
                }
                let name = used.name;
                // Writing to a String cannot fail.
                write!(text, "Container {name} was using {usage}, request is {request}, has larger consumption of {resource}. ").ok();
                names.push(name);
                usages.push(usage.to_string());
            }
        }
        text.push_str(&ranked(reason, next));
        Self {
            message: text,
            starved_resource: resource.to_owned(),
            offending_containers: names.join(","),
            offending_containers_usage: usages.join(","),
        }
    }
}

fn ranked(reason: &ThresholdReason, next: Option<&RunnerUp>) -> String {
    let mut text = format!("Ranked {} of {}", Ordinal(reason.rank), reason.ranked);
    if reason.exempt > 0 {
        write!(text, ", {} before it exempt", reason.exempt).ok();
    }
    match next {
        Some(RunnerUp { pod, ahead_by }) => {
            write!(text, ": {ahead_by}; next: {pod}.").ok();
        }
        None => text.push('.'),
    }
    text
}

fn of_local_storage(pod: &Pod, reason: &LocalStorageReason) -> String {
    let limit = bytes(reason.limit).to_string();
    match &reason.limited {
        Limited::EmptyDir(name) => {
            let volumes = &pod.spec.volumes;
            let volume = volumes.iter().find(|volume| volume.name == *name);
            // As it is written.
            let written = volume.and_then(|volume| volume.empty_dir.as_ref()?.size_limit.as_ref());
            let limit = written.map_or(limit, ToString::to_string);
            format!("Usage of EmptyDir volume {name:?} exceeds the limit {limit:?}. ")
        }
        Limited::Pod => format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        ),
        Limited::Container(name) => {
            format!("Container {name} exceeded its local ephemeral storage limit {limit:?}. ")
        }
    }
}

/// As in the kubelet's `signalToResource`.
fn resource_name(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => MEMORY,
        Resource::DiskBytes(_) => EPHEMERAL_STORAGE,
        Resource::DiskInodes(_) => "inodes",
        Resource::Processes => "pids",
        Resource::Io => "io",
        Resource::Cpu => "cpu",
    }
}

fn bytes(value: u64) -> Quantity {
    Quantity::from_value(i64::try_from(value).unwrap_or(i64::MAX), Format::BinarySI)
}

fn amount(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Bytes => bytes(value).to_string(),
        Unit::Inodes | Unit::Processes => value.to_string(),
        Unit::Share | Unit::BytesPerSecond | Unit::MilliCpus => In(unit, value).to_string(),
    }
}

/// `1st`, `12th`, `23rd`.
struct Ordinal(u32);

impl std::fmt::Display for Ordinal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let suffix = match (self.0 % 10, self.0 % 100) {
            (_, 11..=13) => "th",
            (1, _) => "st",
            (2, _) => "nd",
            (3, _) => "rd",
            _ => "th",
        };
        write!(f, "{}{suffix}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        let pod = json!({
            "metadata": {"name": "leaky", "uid": "u"},
            "spec": {
                "containers": [
                    {"name": "app", "resources": {"requests": {"memory": "64Mi"}}},
                    {"name": "proxy", "resources": {"requests": {"memory": "256Mi"}}},
                    {"name": "log"},
                ],
                "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "100M"}}],
            },
        });
        serde_json::from_value(pod).unwrap()
    }

    fn threshold(signal: Signal, observed: u64, threshold: u64) -> ThresholdReason {
        ThresholdReason {
            signal,
            soft: false,
            observed,
            threshold,
            capacity: 16 << 30,
            usage: 3 << 30,
            is_usage_unknown: false,
            request: 320 << 20,
            priority: 0,
            rank: 1,
            ranked: 37,
            exempt: 0,
            ahead_by: None,
            disruption: None,
            numa_node: None,
            evicted_before: 0,
            foreseen: None,
        }
    }

    #[test]
    fn the_kubelets_sentences_come_first_and_then_the_rank() {
        let reason = threshold(Signal::MemoryAvailable, 1012 << 20, 1 << 30);
        let uses = [
            ("app", 3 << 30),
            ("proxy", 1 << 20),
            ("log", 4096),
            ("gone", 1),
        ];
        let uses = uses.map(|(name, usage_bytes)| ContainerUse { name, usage_bytes });
        let next = RunnerUp {
            pod: "default/web".to_owned(),
            ahead_by: Comparator::UsageOverRequest,
        };
        let found = StatusMessage::new(&pod(), &Reason::Threshold(reason), &uses, Some(&next));
        let expected = StatusMessage {
            message:
                "The node was low on resource: memory. Threshold quantity: 1Gi, available: 1012Mi. \
                Container app was using 3Gi, request is 64Mi, has larger consumption of memory. \
                Container log was using 4Ki, request is 0, has larger consumption of memory. \
                Ranked 1st of 37: more usage over request; next: default/web."
                    .to_owned(),
            starved_resource: "memory".to_owned(),
            offending_containers: "app,log".to_owned(),
            offending_containers_usage: "3Gi,4Ki".to_owned(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn each_resource_has_the_kubelets_name_and_amounts_their_unit() {
        let message = |reason: ThresholdReason| {
            let reason = Reason::Threshold(reason);
            StatusMessage::new(&pod(), &reason, &[], None).message
        };
        let reason = ThresholdReason {
            rank: 3,
            exempt: 2,
            ..threshold(Signal::PidAvailable, 90, 100)
        };
        assert_eq!(
            message(reason),
            "The node was low on resource: pids. Threshold quantity: 100, available: 90. Ranked 3rd of 37, 2 before it exempt."
        );
        let reason = threshold(Signal::NodefsAvailable, 1536 << 20, 2 << 30);
        assert!(message(reason).starts_with(
            "The node was low on resource: ephemeral-storage. Threshold quantity: 2Gi, available: 1536Mi. "
        ));
        let ordinals = [1, 2, 3, 4, 11, 12, 13, 21, 112, 122].map(|n| Ordinal(n).to_string());
        let expected = "1st 2nd 3rd 4th 11th 12th 13th 21st 112th 122nd";
        assert_eq!(ordinals.join(" "), expected);
    }

    #[test]
    fn a_limit_on_local_storage_is_told_as_the_kubelet_does() {
        let message = |limited| {
            let reason = Reason::LocalStorage(LocalStorageReason {
                limited,
                usage: 200 << 20,
                limit: 100 << 20,
            });
            let found = StatusMessage::new(&pod(), &reason, &[], None);
            assert_eq!(found.starved_resource, "ephemeral-storage");
            found.message
        };
        assert_eq!(
            message(Limited::EmptyDir("scratch".to_owned())),
            "Usage of EmptyDir volume \"scratch\" exceeds the limit \"100M\". "
        );
        assert_eq!(
            message(Limited::Pod),
            "Pod ephemeral local storage usage exceeds the total limit of containers 100Mi. "
        );
        assert_eq!(
            message(Limited::Container("app".to_owned())),
            "Container app exceeded its local ephemeral storage limit \"100Mi\". "
        );
    }
}
