//! The options beyond the kubelet, one by one, on small nodes.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

use std::sync::Arc;

use plimsoll_core::decision::{Decision, Reason, ThresholdReason};
use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::event::{Event, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::options::{Availability, EvictionOptions};
use plimsoll_core::pod::Pod;
use plimsoll_core::policy::freshness::Stale;
use plimsoll_core::reading::{
    NumaMemory, NumaPods, PodLoad, PodLoads, PodOnNode, PressureReading, StallReading, StallShares,
};
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

/// A threshold on a share of time, in percent.
fn stall(signal: Signal, percent: u64) -> Threshold {
    hard(signal, percent * 100)
}

/// A sample's part with stalls of all kinds in percent.
fn stalled(at_ns: u64, percent: u16) -> Sample {
    let shares = StallShares {
        avg10: percent * 100,
        ..StallShares::default()
    };
    let stall = Some(StallReading {
        some: shares,
        full: shares,
    });
    Sample {
        pressure: Some(PressureReading {
            at_ns,
            memory: stall,
            io: stall,
            cpu: stall,
        }),
        ..Sample::default()
    }
}

fn loads(at_ns: u64, pods: &[(&str, u64, u64)]) -> Option<Arc<PodLoads>> {
    let load = |&(name, cpu_milli, io_bytes_per_s): &(&str, u64, u64)| PodLoad {
        uid: PodUid::from(name),
        cpu_milli: Some(cpu_milli),
        io_bytes_per_s: Some(io_bytes_per_s),
    };
    let pods = pods.iter().map(load).collect();
    Some(Arc::new(PodLoads { at_ns, pods }))
}

const IDLE: [Memory; 3] = [
    ("busy", 10, 0, 0),
    ("hungry", 10, 0, 0),
    ("quiet", 10, 0, 0),
];

/// Three pods: `busy` takes what it requested, `hungry` more than that, `quiet` has the lowest name of all and does nothing.
fn three(threshold: Threshold) -> Node {
    let mut node = Node::new(vec![threshold], EvictionOptions::kubelet());
    node.pod("busy", json!({"cpu": "4"}), json!({}));
    node.pod("hungry", json!({"cpu": "500m"}), json!({}));
    node.pod("quiet", json!({}), json!({}));
    node
}

#[test]
fn stalls_for_the_cpu_take_who_is_furthest_above_its_request() {
    let mut node = three(stall(Signal::CpuSome10, 50));
    let pods = [("busy", 3900, 9), ("hungry", 1500, 0), ("quiet", 3, 0)];
    let more = Sample {
        loads: loads(2 * S, &pods),
        ..stalled(2 * S, 60)
    };
    let decisions = node.sample(&IDLE, more);
    let [(name, reason)] = evicted(&decisions)[..] else {
        panic!("{decisions:?}");
    };
    assert_eq!((name, reason.usage, reason.request), ("hungry", 1500, 500));
    let text = decisions
        .iter()
        .find(|decision| matches!(decision, Decision::Evict { .. }))
        .unwrap()
        .to_string();
    assert!(
        text.contains("cpuPressure.some.avg10 60.00% > 50.00%; it uses 1500m CPU, 1000m CPU over its request of 500m CPU"),
        "{text}"
    );
}

#[test]
fn stalls_for_the_disk_take_who_reads_and_writes_most() {
    let mut node = three(stall(Signal::IoFull10, 50));
    let pods = [
        ("busy", 3900, 20 * MI),
        ("hungry", 1500, 90 * MI),
        ("quiet", 3, 0),
    ];
    let more = Sample {
        loads: loads(2 * S, &pods),
        ..stalled(2 * S, 60)
    };
    let decisions = node.sample(&IDLE, more);
    assert_eq!(names(&decisions), ["hungry"]);
    assert_eq!(evicted(&decisions)[0].1.usage, 90 * MI);
}

#[test]
fn after_a_victim_a_stall_has_its_window_to_pass() {
    let mut node = three(stall(Signal::MemoryFull10, 50));
    let used = [
        ("busy", 200, 0, 0),
        ("hungry", 300, 0, 0),
        ("quiet", 100, 0, 0),
    ];
    let mut stalled_at = |used: &[Memory], percent| {
        let at_ns = node.now_ns + S;
        let decisions = node.sample(used, stalled(at_ns, percent));
        let evicted: Vec<String> = names(&decisions).into_iter().map(str::to_owned).collect();
        for uid in &evicted {
            let uid = PodUid::from(uid.as_str());
            node.step(EventKind::PodEmpty { uid });
        }
        evicted
    };
    assert_eq!(stalled_at(&used, 90), ["hungry"]);
    let used = [used[0], used[2]];
    // It is gone with the next sample; its ten seconds count from the last time it was seen.
    for second in 0..10 {
        assert_eq!(stalled_at(&used, 90), Vec::<&str>::new(), "{second}");
    }
    assert_eq!(stalled_at(&used, 90), ["busy"]);
}

#[test]
fn a_numa_node_takes_who_uses_that_node() {
    let mut node = Node::new(
        vec![hard(Signal::NumaMemoryAvailable, 100 * MI)],
        EvictionOptions::kubelet(),
    );
    for name in ["elsewhere", "here"] {
        node.pod(name, json!({"memory": "100Mi"}), json!({}));
    }
    let used = [("elsewhere", 400, 0, 0), ("here", 250, 0, 0)];
    let numa = |node, used| NumaMemory {
        node,
        capacity_bytes: 500 * MI,
        anon_bytes: used * MI,
        ..NumaMemory::default()
    };
    let mut sample = Sample {
        numa: vec![numa(0, 200), numa(1, 450)],
        ..Sample::default()
    };
    let at_ns = node.now_ns + S;
    node.now_ns = at_ns;
    let mut asked = sample.clone();
    asked.node.capacity_bytes = 1000 * MI;
    assert_eq!(node.engine.stale(&asked, at_ns), Some(Stale::NumaPods(1)));
    let on_node = |name: &str, used| PodOnNode {
        uid: PodUid::from(name),
        used_bytes: used * MI,
    };
    sample.numa_pods = Some(Arc::new(NumaPods {
        at_ns,
        node: 1,
        pods: vec![on_node("elsewhere", 200), on_node("here", 240)],
    }));
    asked.numa_pods = sample.numa_pods.clone();
    assert_eq!(node.engine.stale(&asked, at_ns), None);
    let decisions = node.sample(&used, sample);
    let [(name, reason)] = evicted(&decisions)[..] else {
        panic!("{decisions:?}");
    };
    // 240 of 250 there, so 96 of the 100 requested; 200 of 400, so 50 of 100.
    assert_eq!(
        (name, reason.usage, reason.request),
        ("elsewhere", 200 * MI, 50 * MI)
    );
    assert_eq!(reason.numa_node, Some(1));
}
