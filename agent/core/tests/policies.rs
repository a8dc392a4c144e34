//! The options beyond the kubelet, one by one, on small nodes.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

use std::sync::Arc;

use plimsoll_core::decision::{Decision, Reason, ThresholdReason};
use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::event::{Event, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::options::{Availability, EvictionOptions};
use plimsoll_core::pod::Pod;
use plimsoll_core::signal::Signal;
use plimsoll_core::threshold::{Amount, Passes, Threshold};
use plimsoll_core::units::PodUid;
use serde_json::{Value, json};

const MI: u64 = 1 << 20;
const S: u64 = 1_000_000_000;

/// A hard threshold.
fn hard(signal: Signal, value: u64) -> Threshold {
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
type Memory = (&'static str, u64, u64, u64);

struct Node {
    engine: Engine,
    now_ns: u64,
}

impl Node {
    fn new(thresholds: Vec<Threshold>, options: EvictionOptions) -> Self {
        let config = EngineConfig {
            thresholds,
            options,
            ..EngineConfig::default()
        };
        Self {
            engine: Engine::new(config),
            now_ns: S,
        }
    }

    fn step(&mut self, kind: EventKind) -> Vec<Decision> {
        let at_ns = self.now_ns;
        let mut decisions = Vec::new();
        self.engine.step(&Event { at_ns, kind }, &mut decisions);
        decisions
    }

    fn pod(&mut self, name: &str, requests: Value, spec: Value) {
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

    /// A sample a second later, of a node of 1000 Mi with what its pods use.
    fn sample(&mut self, pods: &[Memory], more: Sample) -> Vec<Decision> {
        self.now_ns += S;
        let sum = |of: fn(&Memory) -> u64| pods.iter().map(of).sum::<u64>() * MI;
        let (used, inactive, active) = (sum(|pod| pod.1), sum(|pod| pod.2), sum(|pod| pod.3));
        let free = 1000 * MI - used;
        let memory = |&(name, usage, inactive, active): &Memory| PodMemory {
            uid: PodUid::from(name),
            usage_bytes: usage * MI,
            inactive_file_bytes: inactive * MI,
            usage_at_stat_bytes: usage * MI,
            active_file_bytes: active * MI,
        };
        self.step(EventKind::Sample(Sample {
            node: NodeMemory {
                capacity_bytes: 1000 * MI,
                anon_bytes: used - inactive - active,
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

/// Who is evicted, and why.
fn evicted(decisions: &[Decision]) -> Vec<(&str, &ThresholdReason)> {
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

fn names(decisions: &[Decision]) -> Vec<&str> {
    evicted(decisions)
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}

/// Nobody is evicted while active page cache would do; and when it would not, what a pod has in page cache is not held against it.
#[test]
fn page_cache_is_neither_used_nor_anyones_fault() {
    let node = |availability| {
        let options = EvictionOptions {
            availability,
            ..EvictionOptions::kubelet()
        };
        let mut node = Node::new(vec![hard(Signal::MemoryAvailable, 100 * MI)], options);
        node.pod("reader", json!({}), json!({}));
        node.pod("hog", json!({}), json!({}));
        node
    };
    let read = [("reader", 650, 50, 550), ("hog", 310, 0, 0)];
    assert_eq!(
        names(&node(Availability::Kubelet).sample(&read, Sample::default())),
        ["reader"]
    );
    let mut node = node(Availability::Reclaimable);
    assert_eq!(
        names(&node.sample(&read, Sample::default())),
        Vec::<&str>::new()
    );
    // Short of memory after all: 80 Mi of what the reader has would come back without it.
    let short = [("reader", 520, 0, 80), ("hog", 470, 0, 0)];
    let decisions = node.sample(&short, Sample::default());
    assert_eq!(names(&decisions), ["hog"]);
    assert_eq!(evicted(&decisions)[0].1.usage, 470 * MI);
}
