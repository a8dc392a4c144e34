//! Huge pages that the kernel counts in a pod's usage are no memory that others can have, and no pod goes for them.

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::{Cause, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::options::{Availability, EvictionOptions};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::policy::eviction::freshness::Stale;
use plimsoll_core::policy::eviction::usage_bounds::STAT_AGE_MAX_MS;
use serde_json::json;

use crate::node::{MI, Node, S, hard, names};

fn memory(name: &str, usage_mi: u64, huge_page_mi: u64) -> PodMemory {
    PodMemory {
        uid: PodUid::from(name),
        usage_bytes: usage_mi * MI,
        inactive_file_bytes: 0,
        usage_at_stat_bytes: usage_mi * MI,
        active_file_bytes: 0,
        lazily_freed_bytes: 0,
        huge_page_bytes: huge_page_mi * MI,
        uncharged_bytes: 0,
        stat_age_ms: 0,
    }
}

/// 100 Mi are missing. `dpdk` requests 200 Mi, and huge pages if it is to; `leak` 100 Mi.
fn node(options: EvictionOptions, with_huge_pages: bool) -> Node {
    let mut node = Node::new(vec![hard(Signal::KernelMemoryAvailable, 200 * MI)], options);
    let requests = match with_huge_pages {
        true => json!({"memory": "200Mi", "hugepages-2Mi": "1000Mi"}),
        false => json!({"memory": "200Mi"}),
    };
    node.pod("dpdk", requests, json!({}));
    node.pod("leak", json!({"memory": "100Mi"}), json!({}));
    node.now_ns += S;
    node
}

fn sample(cause: Cause, pods: [PodMemory; 2]) -> Sample {
    Sample {
        cause,
        node: NodeMemory {
            capacity_bytes: 2000 * MI,
            anon_bytes: 900 * MI,
            kernel_available_bytes: 100 * MI,
            ..NodeMemory::default()
        },
        pods: pods.into(),
        ..Sample::default()
    }
}

fn evicted(availability: Availability, huge_page_mi: u64) -> Vec<String> {
    let options = EvictionOptions {
        availability,
        ..EvictionOptions::kubelet()
    };
    let mut node = node(options, true);
    let pods = [memory("dpdk", 1100, huge_page_mi), memory("leak", 160, 0)];
    let decisions = node.step(EventKind::Sample(sample(Cause::Timer, pods)));
    names(&decisions).into_iter().map(str::to_owned).collect()
}

#[test]
fn a_pod_does_not_go_for_them() {
    for availability in [Availability::Kubelet, Availability::Reclaimable] {
        assert_eq!(evicted(availability, 1000), ["leak"], "{availability:?}");
        assert_eq!(evicted(availability, 0), ["dpdk"], "{availability:?}");
    }
}

/// A pod that has given them back and has memory in their place has the same usage. And what it has taken since the
/// last reading may be huge pages.
#[test]
fn old_figures_of_a_pod_that_requests_them_are_read_anew() {
    let urgent = Cause::ChargeThreshold { crossed_ns: 0 };
    let old = |huge_page_mi| PodMemory {
        stat_age_ms: STAT_AGE_MAX_MS + 1,
        ..memory("dpdk", 1100, huge_page_mi)
    };
    let grown = PodMemory {
        usage_at_stat_bytes: 100 * MI,
        ..memory("dpdk", 1100, 0)
    };
    for (figures, with_huge_pages, asked) in [
        (old(1000), true, true),
        (old(0), true, true),
        (grown.clone(), true, true),
        // The node has no page cache: it goes whatever the figures are.
        (old(0), false, false),
        (grown, false, false),
    ] {
        let mut node = node(EvictionOptions::kubelet(), with_huge_pages);
        let text = format!("{figures:?} {with_huge_pages}");
        let pods = [figures, memory("leak", 160, 0)];
        let now_ns = node.now_ns;
        let stale = node.engine.stale(&sample(urgent, pods), now_ns);
        assert_eq!(stale, asked.then_some(Stale::Pod(0)), "{text}");
    }
}

#[test]
fn a_journal_of_before_has_none_and_one_without_any_says_nothing() {
    let pods = |huge_page_mi| {
        let pods = [memory("dpdk", 1100, huge_page_mi), memory("leak", 160, 0)];
        sample(Cause::Timer, pods)
    };
    let text = serde_json::to_string(&pods(0)).unwrap();
    assert!(!text.contains("huge"), "{text}");
    assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), pods(0));
    let text = serde_json::to_string(&pods(1000)).unwrap();
    assert_eq!(serde_json::from_str::<Sample>(&text).unwrap(), pods(1000));
}
