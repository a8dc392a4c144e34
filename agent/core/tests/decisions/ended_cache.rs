//! Page cache that a pod has read more than once and leaves when it ends. The kubelet counts it as used, so other pods
//! go for it, one after the other, although the kernel could drop it; `memoryAvailability: Reclaimable` is the answer
//! to that (docs/concepts/thresholds.md).

use std::collections::BTreeMap;

use plimsoll_core::model::event::{EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::options::{Availability, EvictionOptions};
use plimsoll_core::model::signal::Signal;
use serde_json::json;

use crate::node::{MI, Node, S, hard, names};

const CAPACITY_MI: u64 = 9216;
/// What a job has read twice. The kernel can drop all of it.
const ACTIVE_MI: u64 = 7600;
/// Anonymous memory of each of the others.
const SERVICE_MI: u64 = 150;
const SERVICES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Those evicted within ten seconds.
fn victims(availability: Availability, job_runs: bool) -> Vec<String> {
    let options = EvictionOptions {
        availability,
        ..EvictionOptions::default()
    };
    let thresholds = vec![
        hard(Signal::MemoryAvailable, 1100 * MI),
        hard(Signal::KernelMemoryAvailable, 64 * MI),
    ];
    let mut node = Node::new(thresholds, options);
    node.capacity_mi = CAPACITY_MI;
    // Usage and active page cache, Mi.
    let mut pods: BTreeMap<&str, (u64, u64)> = SERVICES.map(|name| (name, (SERVICE_MI, 0))).into();
    pods.insert("job", (ACTIVE_MI, ACTIVE_MI));
    for name in pods.keys() {
        node.pod(name, json!({}), json!({}));
    }
    if !job_runs {
        node.empty("job");
        pods.remove("job");
    }
    let mut victims = Vec::new();
    for _ in 0..1000 {
        node.now_ns += S / 100;
        let anon_mi: u64 = pods.values().map(|(usage, active)| usage - active).sum();
        let memory = |(name, (usage_mi, active_mi)): (&&str, &(u64, u64))| PodMemory {
            uid: (*name).into(),
            usage_bytes: usage_mi * MI,
            inactive_file_bytes: 0,
            usage_at_stat_bytes: usage_mi * MI,
            active_file_bytes: active_mi * MI,
            lazily_freed_bytes: 0,
            uncharged_bytes: 0,
            huge_page_bytes: 0,
            stat_age_ms: 0,
        };
        let free_mi = CAPACITY_MI - anon_mi - ACTIVE_MI;
        let sample = Sample {
            node: NodeMemory {
                capacity_bytes: CAPACITY_MI * MI,
                anon_bytes: anon_mi * MI,
                file_bytes: ACTIVE_MI * MI,
                active_file_bytes: ACTIVE_MI * MI,
                free_bytes: free_mi * MI,
                kernel_available_bytes: (free_mi + ACTIVE_MI) * MI,
                ..NodeMemory::default()
            },
            pods: pods.iter().map(memory).collect(),
            ..Sample::default()
        };
        for name in names(&node.step(EventKind::Sample(sample))) {
            victims.push(name.to_owned());
            pods.retain(|pod, _| *pod != name);
            node.empty(name);
        }
    }
    victims
}

#[test]
fn by_the_kubelets_formula_others_go_for_page_cache_that_an_ended_pod_has_left() {
    let gone = victims(Availability::Kubelet, false);
    assert!(gone.len() > 1, "{gone:?}");
    // While it runs it is the first.
    let first = victims(Availability::Kubelet, true);
    assert_eq!(first.first().map(String::as_str), Some("job"));
}

#[test]
fn nobody_goes_for_it_where_what_the_kernel_can_drop_counts_as_available() {
    for job_runs in [true, false] {
        assert!(victims(Availability::Reclaimable, job_runs).is_empty());
    }
}
