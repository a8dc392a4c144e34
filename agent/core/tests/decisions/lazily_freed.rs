//! Memory that a pod frees lazily and writes again is on the kernel's lists of page cache, and counts all the same.

use plimsoll_core::model::event::{Cause, CgroupMemory, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::options::{Availability, EvictionOptions};
use plimsoll_core::model::signal::Signal;
use serde_json::json;

use crate::node::{MI, Node, S, hard, names};

/// Of 1000 Mi the hog has 800, all of it on the lists, and an innocent pod 60, of which 10 are page cache.
fn sample(lazily_freed_mi: u64) -> Sample {
    let pod = |name: &str, usage_mi, inactive_mi, lazily_freed_mi| PodMemory {
        uid: name.into(),
        usage_bytes: usage_mi * MI,
        inactive_file_bytes: inactive_mi * MI,
        usage_at_stat_bytes: usage_mi * MI,
        active_file_bytes: 0,
        lazily_freed_bytes: lazily_freed_mi * MI,
        uncharged_bytes: 0,
        huge_page_bytes: 0,
        stat_age_ms: 0,
    };
    Sample {
        cause: Cause::Timer,
        node: NodeMemory {
            capacity_bytes: 1000 * MI,
            anon_bytes: 850 * MI,
            file_bytes: 10 * MI,
            inactive_file_bytes: 810 * MI,
            lazily_freed_bytes: lazily_freed_mi * MI,
            free_bytes: 100 * MI,
            kernel_available_bytes: 880 * MI,
            ..NodeMemory::default()
        },
        kubepods: Some(CgroupMemory {
            usage_bytes: 860 * MI,
            inactive_file_bytes: 810 * MI,
            lazily_freed_bytes: lazily_freed_mi * MI,
            usage_at_stat_bytes: 860 * MI,
            limit_bytes: Some(950 * MI),
            ..CgroupMemory::default()
        }),
        pods: vec![
            pod("hog", 800, 800, lazily_freed_mi),
            pod("innocent", 60, 10, 0),
        ],
        ..Sample::default()
    }
}

fn evicted(signal: Signal, availability: Availability, sample: Sample) -> Vec<String> {
    let options = EvictionOptions {
        availability,
        ..EvictionOptions::kubelet()
    };
    let mut node = Node::new(vec![hard(signal, 200 * MI)], options);
    node.pod("hog", json!({"memory": "64Mi"}), json!({}));
    node.pod("innocent", json!({"memory": "16Mi"}), json!({}));
    node.now_ns += S;
    let decisions = node.step(EventKind::Sample(sample));
    names(&decisions).into_iter().map(str::to_owned).collect()
}

#[test]
fn the_pod_that_has_it_goes_by_each_signal() {
    for availability in [Availability::Kubelet, Availability::Reclaimable] {
        for signal in [
            Signal::MemoryAvailable,
            Signal::KernelMemoryAvailable,
            Signal::AllocatableMemoryAvailable,
        ] {
            assert_eq!(
                evicted(signal, availability, sample(800)),
                ["hog"],
                "{signal:?} {availability:?}"
            );
            // By the lists alone nothing is short.
            assert!(evicted(signal, availability, sample(0)).is_empty());
        }
    }
}

#[test]
fn an_innocent_pod_does_not_go_in_its_place() {
    for availability in [Availability::Kubelet, Availability::Reclaimable] {
        // Something else has the rest.
        let mut sample = sample(800);
        sample.node.kernel_available_bytes = 100 * MI;
        sample.node.capacity_bytes = 900 * MI;
        let gone = evicted(Signal::MemoryAvailable, availability, sample);
        assert_eq!(gone, ["hog"], "{availability:?}");
    }
}

#[test]
fn what_the_node_has_of_it_bounds_no_page_cache_of_others() {
    // The hog's pages are active by now, and the innocent pod's page cache is inactive.
    let mut sample = sample(800);
    sample.node.inactive_file_bytes = 10 * MI;
    sample.node.active_file_bytes = 800 * MI;
    sample.pods[0].inactive_file_bytes = 0;
    sample.pods[0].active_file_bytes = 800 * MI;
    // Both exceed their requests; without its page cache, the innocent one does so by the least.
    sample.pods[1].usage_bytes = 840 * MI;
    sample.pods[1].usage_at_stat_bytes = 840 * MI;
    let gone = evicted(
        Signal::MemoryAvailable,
        Availability::Kubelet,
        sample.clone(),
    );
    assert_eq!(gone, ["innocent"]);
    sample.pods[1].inactive_file_bytes = 110 * MI;
    sample.node.inactive_file_bytes = 110 * MI;
    sample.node.file_bytes = 110 * MI;
    let gone = evicted(Signal::MemoryAvailable, Availability::Kubelet, sample);
    assert_eq!(gone, ["hog"]);
}

#[test]
fn a_journal_of_before_has_none_and_one_without_any_says_nothing() {
    let text = serde_json::to_string(&sample(0)).unwrap();
    assert!(!text.contains("lazily"), "{text}");
    assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), sample(0));
    let text = serde_json::to_string(&sample(800)).unwrap();
    assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), sample(800));
}
