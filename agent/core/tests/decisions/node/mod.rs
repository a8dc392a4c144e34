//! A node and the engine that looks after it.

use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::{Decision, Reason, ThresholdReason};
use plimsoll_core::model::event::{Event, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::options::EvictionOptions;
use plimsoll_core::model::reading::{PodStorage, StorageReading};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::{Amount, Passes, Threshold};
use serde_json::{Value, json};

pub(crate) const MI: u64 = 1 << 20;
pub(crate) const S: u64 = 1_000_000_000;

/// A hard threshold.
pub(crate) fn hard(signal: Signal, value: u64) -> Threshold {
    Threshold {
        signal,
        operator: signal.row().operator,
        value: Amount::Absolute(value),
        grace_ns: 0,
        min_reclaim: None,
        passes: Passes::All,
    }
}

/// A pod's memory in Mi: in use, inactive and active page cache.
pub(crate) type Memory<'name> = (&'name str, u64, u64, u64);

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) now_ns: u64,
    pub(crate) capacity_mi: u64,
    /// Taken by no pod.
    pub(crate) other_mi: u64,
}

impl Node {
    pub(crate) fn new(thresholds: Vec<Threshold>, options: EvictionOptions) -> Self {
        Self::with(EngineConfig {
            thresholds,
            options,
            ..EngineConfig::default()
        })
    }

    pub(crate) fn with(config: EngineConfig) -> Self {
        Self {
            engine: Engine::new(config),
            now_ns: S,
            capacity_mi: 1000,
            other_mi: 0,
        }
    }

    pub(crate) fn step(&mut self, kind: EventKind) -> Vec<Decision> {
        let at_ns = self.now_ns;
        let mut decisions = Vec::new();
        self.engine.step(&Event { at_ns, kind }, &mut decisions);
        decisions
    }

    /// A running pod. Those whose names have the same prefix are one app.
    pub(crate) fn pod(&mut self, name: &str, requests: Value, spec: Value) {
        let mut pod = json!({
            "metadata": {"name": name, "uid": name, "labels": {"app": name.split('-').next()}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
        });
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let uid = pod.uid();
        self.step(EventKind::PodApplied { pod: Arc::new(pod) });
        self.step(EventKind::PodRunning { uid });
    }

    /// The disruption budget of an app.
    pub(crate) fn budget(&mut self, app: &str, spec: &Value) {
        let mut budget = json!({"metadata": {"name": app}, "spec": spec});
        budget["spec"]["selector"] = json!({"matchLabels": {"app": app}});
        let budget = Arc::new(serde_json::from_value(budget).unwrap());
        self.step(EventKind::BudgetApplied { budget });
    }

    pub(crate) fn empty(&mut self, name: &str) -> Vec<Decision> {
        let uid = PodUid::from(name);
        self.step(EventKind::PodEmpty { uid })
    }

    /// A sample a second later, with what the pods use.
    pub(crate) fn sample(&mut self, pods: &[Memory<'_>], more: Sample) -> Vec<Decision> {
        self.sample_after(S, pods, more)
    }

    pub(crate) fn sample_after(
        &mut self,
        after_ns: u64,
        pods: &[Memory<'_>],
        more: Sample,
    ) -> Vec<Decision> {
        self.now_ns += after_ns;
        let sum = |of: fn(&Memory<'_>) -> u64| pods.iter().map(of).sum::<u64>() * MI;
        let (used, inactive, active) = (sum(|pod| pod.1), sum(|pod| pod.2), sum(|pod| pod.3));
        let taken = used + self.other_mi * MI;
        let free = (self.capacity_mi * MI).saturating_sub(taken);
        let memory = |&(name, usage, inactive, active): &Memory<'_>| PodMemory {
            uid: PodUid::from(name),
            usage_bytes: usage * MI,
            inactive_file_bytes: inactive * MI,
            usage_at_stat_bytes: usage * MI,
            active_file_bytes: active * MI,
            lazily_freed_bytes: 0,
            uncharged_bytes: 0,
            huge_page_bytes: 0,
            stat_age_ms: 0,
        };
        self.step(EventKind::Sample(Sample {
            node: NodeMemory {
                capacity_bytes: self.capacity_mi * MI,
                anon_bytes: taken - inactive - active,
                file_bytes: inactive + active,
                inactive_file_bytes: inactive,
                active_file_bytes: active,
                free_bytes: free,
                kernel_available_bytes: free + inactive + active,
                ..NodeMemory::default()
            },
            pods: pods.iter().map(memory).collect(),
            ..more
        }))
    }
}

/// A sample with what a pod has on the node's disks.
pub(crate) fn with_storage(pod: PodStorage) -> Sample {
    let reading = StorageReading {
        pods: vec![pod],
        nodefs: None,
        imagefs: None,
        containerfs: None,
    };
    Sample {
        storage: Some(Arc::new(reading)),
        ..Sample::default()
    }
}

/// The evicted pods, and why.
pub(crate) fn evicted(decisions: &[Decision]) -> Vec<(&str, &ThresholdReason)> {
    let evictions = decisions.iter().filter_map(|decision| match decision {
        Decision::Evict {
            uid,
            reason: Reason::Threshold(reason),
            ..
        } => Some((uid.as_str(), reason)),
        _ => None,
    });
    evictions.collect()
}

pub(crate) fn names(decisions: &[Decision]) -> Vec<&str> {
    evicted(decisions)
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}
