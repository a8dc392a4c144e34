//! What the kernel holds for a pod without charging its cgroup counts as used by the pod.

use plimsoll_core::model::event::{Cause, CgroupMemory, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::options::{Availability, EvictionOptions};
use plimsoll_core::model::signal::Signal;
use serde_json::json;

use crate::node::{MI, Node, S, hard, names};

/// Of 1000 Mi queues have 600, and an innocent pod 60.
fn sample(uncharged_mi: u64, stat_age_ms: u32) -> Sample {
    let pod = |name: &str, usage_mi, uncharged_mi| PodMemory {
        uid: name.into(),
        usage_bytes: usage_mi * MI,
        inactive_file_bytes: MI,
        usage_at_stat_bytes: usage_mi * MI,
        active_file_bytes: 0,
        lazily_freed_bytes: 0,
        huge_page_bytes: 0,
        uncharged_bytes: uncharged_mi * MI,
        stat_age_ms,
    };
    Sample {
        cause: Cause::Timer,
        node: NodeMemory {
            capacity_bytes: 1000 * MI,
            anon_bytes: 200 * MI,
            file_bytes: 100 * MI,
            inactive_file_bytes: 50 * MI,
            free_bytes: 100 * MI,
            kernel_available_bytes: 150 * MI,
            ..NodeMemory::default()
        },
        kubepods: Some(CgroupMemory {
            usage_bytes: 70 * MI,
            usage_at_stat_bytes: 70 * MI,
            limit_bytes: Some(950 * MI),
            ..CgroupMemory::default()
        }),
        pods: vec![pod("hog", 4, uncharged_mi), pod("innocent", 60, 0)],
        ..Sample::default()
    }
}

fn evicted(availability: Availability, sample: Sample) -> Vec<String> {
    let options = EvictionOptions {
        availability,
        ..EvictionOptions::kubelet()
    };
    let threshold = hard(Signal::KernelMemoryAvailable, 200 * MI);
    let mut node = Node::new(vec![threshold], options);
    for pod in ["hog", "innocent"] {
        node.pod(pod, json!({"memory": "16Mi"}), json!({}));
    }
    node.now_ns += S;
    let decisions = node.step(EventKind::Sample(sample));
    names(&decisions).into_iter().map(str::to_owned).collect()
}

#[test]
fn the_pod_that_has_it_goes() {
    for availability in [Availability::Kubelet, Availability::Reclaimable] {
        // Recent figures, and old ones.
        for stat_age_ms in [0, 60_000] {
            assert_eq!(evicted(availability, sample(600, stat_age_ms)), ["hog"]);
            assert_eq!(evicted(availability, sample(0, stat_age_ms)), ["innocent"]);
        }
    }
}

#[test]
fn it_is_no_page_cache_and_in_the_working_set() {
    let hog = &sample(600, 0).pods[0];
    assert_eq!(hog.working_set_bytes(), 603 * MI);
    assert_eq!(hog.used_bytes(Availability::Kubelet), 603 * MI);
}

#[test]
fn a_journal_of_before_has_none_and_one_without_any_says_nothing() {
    let text = serde_json::to_string(&sample(0, 0)).unwrap();
    assert!(!text.contains("uncharged"), "{text}");
    assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), sample(0, 0));
}
