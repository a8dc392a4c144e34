//! The options beyond the kubelet, one by one, on small nodes.

use std::sync::Arc;

use plimsoll_core::engine::Engine;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::{Decision, Disruption, ThresholdReason};
use plimsoll_core::model::event::{EventKind, Sample};
use plimsoll_core::model::options::{Availability, EvictionOptions, Victims};
use plimsoll_core::model::reading::{
    NumaMemory, NumaPods, PodLoad, PodLoads, PodOnNode, PressureReading, StallReading, StallShares,
};
use plimsoll_core::model::signal::{NodeCondition, Signal};
use plimsoll_core::model::threshold::Threshold;
use plimsoll_core::policy::eviction::freshness::Stale;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::node::{MI, Memory, Node, S, evicted, hard, names};

/// No pod is evicted while reclaiming active page cache suffices; when it does not, page cache does not count as usage
/// of a pod.
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

const IDLE: [Memory<'static>; 3] = [
    ("busy", 10, 0, 0),
    ("hungry", 10, 0, 0),
    ("quiet", 10, 0, 0),
];

/// Three pods: `busy` takes what it requested, `hungry` more than that, `quiet` has the lowest name of all and does
/// nothing.
fn three(threshold: Threshold) -> Node {
    let mut node = Node::new(vec![threshold], EvictionOptions::kubelet());
    node.pod("busy", json!({"cpu": "4"}), json!({}));
    node.pod("hungry", json!({"cpu": "500m"}), json!({}));
    node.pod("quiet", json!({}), json!({}));
    // What the stalls show from now on has been seen from its beginning.
    node.now_ns += 10 * S;
    node
}

#[test]
fn cpu_stalls_evict_the_pod_furthest_above_its_request() {
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
fn no_pod_is_evicted_for_an_unknown_load() {
    let mut node = three(stall(Signal::CpuSome10, 50));
    assert_eq!(
        names(&node.sample(&IDLE, stalled(2 * S, 60))),
        Vec::<&str>::new()
    );
    let mut with = |at_ns, pods: &[_]| {
        let more = Sample {
            loads: loads(at_ns, pods),
            ..stalled(at_ns, 60)
        };
        names(&node.sample(&IDLE, more))
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(with(3 * S, &[]), Vec::<&str>::new());
    // `quiet` has just begun.
    assert_eq!(
        with(4 * S, &[("busy", 9, 0), ("hungry", 700, 0)]),
        ["hungry"]
    );
}

#[test]
fn disk_stalls_evict_the_pod_that_reads_and_writes_most() {
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
    let condition = NodeCondition::Stalled;
    let status = true;
    assert!(decisions.contains(&Decision::Condition { condition, status }));
}

#[test]
fn after_a_victim_a_stall_has_its_window_to_pass() {
    let mut node = three(stall(Signal::MemoryFull10, 50));
    let used = [
        ("busy", 200, 0, 0),
        ("hungry", 300, 0, 0),
        ("quiet", 100, 0, 0),
    ];
    let mut stalled_at = |used: &[Memory<'_>], percent| {
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
    // It has ended by the next sample; its ten seconds count from the last time it was seen.
    for second in 0..10 {
        assert_eq!(stalled_at(&used, 90), Vec::<&str>::new(), "{second}");
    }
    assert_eq!(stalled_at(&used, 90), ["busy"]);
}

/// What an average shows at the agent's start may be the stall of a pod that its predecessor evicted.
#[test]
fn a_stall_from_before_the_start_evicts_no_pod() {
    let mut node = three(stall(Signal::MemorySome10, 50));
    node.engine = Engine::new(node.engine.config().clone());
    for name in ["busy", "hungry"] {
        node.pod(name, json!({}), json!({}));
    }
    let used = [("busy", 200, 0, 0), ("hungry", 300, 0, 0)];
    for second in 1..10 {
        let at_ns = node.now_ns + S;
        let decisions = node.sample(&used, stalled(at_ns, 90));
        assert_eq!(names(&decisions), Vec::<&str>::new(), "{second}");
    }
    let at_ns = node.now_ns + S;
    assert_eq!(names(&node.sample(&used, stalled(at_ns, 90))), ["hungry"]);
}

#[test]
fn a_numa_node_evicts_the_pod_that_uses_it() {
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

/// Pods with what they use in Mi; those whose names have the same prefix are one app. Budgets by app.
fn budgeted(
    victims: Victims,
    pods: &[(&str, u64, i32)],
    budgets: &[(&str, Value)],
    need: u64,
) -> Vec<Decision> {
    let options = EvictionOptions {
        victims,
        disruption_budgets: true,
        ..EvictionOptions::kubelet()
    };
    let used: u64 = pods.iter().map(|pod| pod.1).sum();
    let mut node = Node::new(
        vec![hard(Signal::MemoryAvailable, (1000 - used + need) * MI)],
        options,
    );
    for (name, _, priority) in pods {
        node.pod(name, json!({}), json!({"priority": priority}));
    }
    for (app, spec) in budgets {
        node.budget(app, spec);
    }
    let memory: Vec<Memory<'_>> = pods
        .iter()
        .map(|(name, used, _)| (*name, *used, 0, 0))
        .collect();
    node.sample(&memory, Sample::default())
}

#[test]
fn a_budget_that_is_used_up_is_respected_where_another_suffices() {
    let all = json!({"minAvailable": "100%"});
    let pods = [("web-1", 300, 0), ("job-1", 200, 0), ("log-1", 50, 0)];
    let decide = |victims, pods: &[_], budgets: &[_], need| budgeted(victims, pods, budgets, need);
    let one = |budgets: &[_], need| decide(Victims::One, &pods, budgets, need);
    assert_eq!(names(&one(&[], 100)), ["web-1"]);
    let decisions = one(&[("web", all.clone())], 100);
    assert_eq!(names(&decisions), ["job-1"]);
    let text = decisions
        .iter()
        .find(|decision| matches!(decision, Decision::Evict { .. }))
        .unwrap()
        .to_string();
    assert!(
        text.contains("1 before it passed over because their disruption budgets are used up"),
        "{text}"
    );
    // Not even both others free 251: it is evicted, and the reason says so.
    let decisions = one(&[("web", all.clone())], 251);
    assert_eq!(names(&decisions), ["web-1"]);
    assert_eq!(
        evicted(&decisions)[0].1.disruption,
        Some(Disruption::AgainstBudget {
            budget: Arc::from("default/web")
        })
    );
    // A budget says nothing about a pod that matters more.
    let important = [("web-1", 300, 0), ("job-1", 200, 10), ("log-1", 50, 10)];
    assert_eq!(
        names(&decide(Victims::One, &important, &[("web", all)], 100)),
        ["web-1"]
    );
}

#[test]
fn several_victims_use_a_budget_up_one_after_the_other() {
    let pods = [
        ("web-1", 200, 0),
        ("web-2", 190, 0),
        ("web-3", 180, 0),
        ("job-1", 100, 0),
    ];
    let budgets = [("web", json!({"maxUnavailable": 1}))];
    let decide = |need| budgeted(Victims::Targeted, &pods, &budgets, need);
    assert_eq!(names(&decide(290)), ["web-1", "job-1"]);
    // One more than the budget allows, and not two.
    let decisions = decide(400);
    assert_eq!(names(&decisions), ["web-1", "web-2", "job-1"]);
    assert!(matches!(
        evicted(&decisions)[1].1.disruption,
        Some(Disruption::AgainstBudget { .. })
    ));
}

proptest! {
    /// No pod is evicted against a budget if the other candidates suffice; and a budget never prevents an eviction.
    #[test]
    fn budgets_are_broken_only_when_they_must_be(
        used in prop::collection::vec((1u64..90, 0usize..3), 1..9),
        allowed in prop::collection::vec(0u32..3, 3),
        need in 1u64..300,
        targeted in any::<bool>(),
    ) {
        const APPS: [&str; 3] = ["a", "b", "c"];
        let pods: Vec<(String, u64, i32)> = used
            .iter()
            .enumerate()
            .map(|(at, (mi, app))| (format!("{}-{at}", APPS[*app]), *mi, 0))
            .collect();
        let pods: Vec<(&str, u64, i32)> = pods.iter().map(|(name, mi, priority)| (name.as_str(), *mi, *priority)).collect();
        let budgets: Vec<(&str, Value)> = APPS.iter().zip(&allowed).map(|(app, allowed)| (*app, json!({"maxUnavailable": allowed}))).collect();
        let victims = if targeted { Victims::Targeted } else { Victims::One };
        let decisions = budgeted(victims, &pods, &budgets, need);
        let gone = evicted(&decisions);
        prop_assert!(!gone.is_empty());
        // In the order of the ranking (usage down, then name), the first pods of each app may be evicted.
        let mut order = pods.clone();
        order.sort_by_key(|(name, mi, _)| (u64::MAX - mi, *name));
        let mut left = allowed.clone();
        let free: Vec<&str> = order.iter().filter(|(name, ..)| {
            let app = APPS.iter().position(|app| name.starts_with(app)).unwrap();
            let is_free = left[app] > 0;
            left[app] = left[app].saturating_sub(1);
            is_free
        }).map(|(name, ..)| *name).collect();
        let freed = |names: &[&str]| order.iter().filter(|(name, ..)| names.contains(name)).map(|(_, mi, _)| mi).sum::<u64>();
        let against = |name: &&(&str, &ThresholdReason)| matches!(name.1.disruption, Some(Disruption::AgainstBudget { .. }));
        for (name, reason) in &gone {
            let is_against = matches!(reason.disruption, Some(Disruption::AgainstBudget { .. }));
            prop_assert_eq!(is_against, !free.contains(name));
        }
        if freed(&free) >= need {
            prop_assert_eq!(gone.iter().filter(against).count(), 0);
        }
        if targeted && freed(&order.iter().map(|(name, ..)| *name).collect::<Vec<_>>()) >= need {
            prop_assert!(freed(&names(&decisions)) >= need);
        }
    }
}
