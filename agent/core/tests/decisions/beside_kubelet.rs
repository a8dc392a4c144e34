//! A node whose pods a kubelet runs.

use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::explain::{EvictionExplanation, NotRankedReason, RunnerUp};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::model::decision::{Decision, EvictionEnding, KillReason};
use plimsoll_core::model::event::{EventKind, NodeMemory, PodMemory, PodsRead, Sample};
use plimsoll_core::model::options::{Breaker, LastLine};
use plimsoll_core::model::rank_row::Comparator;
use plimsoll_core::model::reading::{
    FileSystemReading, NumaMemory, NumaPods, PodOnNode, PodProcesses, PodStorage, ProcessReading,
    StorageReading, Used, VolumeStorage,
};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::Threshold;
use plimsoll_core::policy::eviction::freshness::Stale;
use plimsoll_core::policy::eviction::leaving::{KUBELET_ENDS_NS, STUCK_FOR_NS};
use plimsoll_core::policy::oom::last_line;
use serde_json::json;

use crate::node::{MI, Node, S, evicted, hard, names, with_storage};

fn beside(thresholds: Vec<Threshold>) -> Node {
    let mut node = Node::with(EngineConfig {
        thresholds,
        max_pod_grace_period_s: 30,
        beside_kubelet: true,
        ..EngineConfig::default()
    });
    for name in ["a", "b", "c"] {
        let spec = json!({"terminationGracePeriodSeconds": 20});
        node.pod(name, json!({"memory": "10Mi"}), spec);
    }
    node
}

fn soft(value: u64) -> Threshold {
    Threshold {
        grace_ns: S,
        ..hard(Signal::MemoryAvailable, value)
    }
}

fn kills(decisions: &[Decision]) -> Vec<(&str, KillReason)> {
    let kills = decisions.iter().filter_map(|decision| match decision {
        Decision::Kill { uid, why } => Some((uid.as_str(), *why)),
        _ => None,
    });
    kills.collect()
}

const SHORT: [(&str, u64, u64, u64); 3] = [("a", 500, 0, 0), ("b", 300, 0, 0), ("c", 1, 0, 0)];

#[test]
fn a_hard_threshold_kills_in_the_same_step() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 300 * MI)]);
    let decisions = node.sample(&SHORT, Sample::default());
    assert_eq!(names(&decisions), ["a"]);
    assert_eq!(kills(&decisions), [("a", KillReason::NoGrace)]);
    let grace = decisions.iter().find_map(|decision| match decision {
        Decision::Evict { grace_s, .. } => Some(*grace_s),
        _ => None,
    });
    assert_eq!(grace, Some(0));
    let (config, state) = (node.engine.config(), node.engine.state());
    let next = RunnerUp::of(config, state, Signal::MemoryAvailable, &"a".into()).unwrap();
    assert_eq!(next.pod, "default/b");
    assert_eq!(next.ahead_by, Comparator::UsageOverRequest);
    // Not once more while it goes.
    let decisions = node.sample_after(S / 100, &SHORT, Sample::default());
    assert_eq!((names(&decisions).len(), kills(&decisions).len()), (0, 0));
}

#[test]
fn the_runner_up_is_a_pod_that_can_go() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 300 * MI)]);
    let priority = json!({"priority": 2_000_000_000});
    node.pod("critical", json!({"memory": "10Mi"}), priority);
    let next = |node: &Node, signal, uid: &str| {
        let (config, state) = (node.engine.config(), node.engine.state());
        RunnerUp::of(config, state, signal, &uid.into()).map(|next| next.pod)
    };
    let pods = [
        ("a", 500, 0, 0),
        ("critical", 210, 0, 0),
        ("b", 5, 0, 0),
        ("c", 1, 0, 0),
    ];
    assert_eq!(names(&node.sample(&pods, Sample::default())), ["a"]);
    // The critical pod is ranked before b, which uses less than its request, and after c by its priority alone.
    let memory = Signal::MemoryAvailable;
    assert_eq!(next(&node, memory, "a").unwrap(), "default/b");
    let processes = Signal::PidAvailable;
    assert_eq!(next(&node, processes, "c"), None);
}

#[test]
fn a_soft_victim_has_its_grace_until_a_hard_threshold_is_met() {
    let hard = hard(Signal::MemoryAvailable, 100 * MI);
    let mut node = beside(vec![soft(300 * MI), hard]);
    node.sample(&SHORT, Sample::default());
    let decisions = node.sample(&SHORT, Sample::default());
    assert_eq!(names(&decisions), ["a"]);
    assert_eq!(kills(&decisions), []);
    let decisions = node.sample(&SHORT, Sample::default());
    assert_eq!(kills(&decisions), []);
    let shorter = [("a", 620, 0, 0), ("b", 300, 0, 0), ("c", 1, 0, 0)];
    let decisions = node.sample(&shorter, Sample::default());
    assert_eq!(kills(&decisions), [("a", KillReason::NoGrace)]);
}

#[test]
fn a_pod_that_has_gone_from_the_api_is_its_kubelets_to_end() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 300 * MI)]);
    let uid = PodUid::from("a");
    let decisions = node.step(EventKind::PodRemoved { uid: uid.clone() });
    let is_signal =
        |decision: &Decision| matches!(decision, Decision::End { .. } | Decision::Kill { .. });
    assert!(!decisions.iter().any(is_signal), "{decisions:?}");
    node.empty("a");
    assert!(!node.engine.state().pods.contains_key(&uid));
}

#[test]
fn a_threshold_that_is_met_waits_briefly_for_a_pod_that_the_kubelet_ends() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 300 * MI)]);
    node.step(EventKind::PodEndedByKubelet { uid: "b".into() });
    let decisions = node.sample_after(S / 100, &SHORT, Sample::default());
    assert_eq!(names(&decisions), [""; 0], "b is on its way out");
    let decisions = node.sample_after(2 * S - S / 50, &SHORT, Sample::default());
    assert_eq!(names(&decisions), [""; 0]);
    assert_eq!(kills(&decisions), [], "its kubelet kills it");
    let decisions = node.sample_after(S / 100, &SHORT, Sample::default());
    assert_eq!(names(&decisions), ["a"]);
    assert_eq!(kills(&decisions), [("a", KillReason::NoGrace)]);
}

/// Its grace period is over when a pod is to go: the time from then on counts.
#[test]
fn a_soft_threshold_waits_as_briefly() {
    let mut node = beside(vec![soft(300 * MI)]);
    node.sample(&SHORT, Sample::default());
    node.step(EventKind::PodEndedByKubelet { uid: "b".into() });
    let decisions = node.sample(&SHORT, Sample::default());
    assert_eq!(names(&decisions), [""; 0], "b is on its way out");
    assert_eq!(names(&node.sample(&SHORT, Sample::default())), ["a"]);
}

/// Whoever makes a pod chooses its grace period, and when it is deleted.
#[test]
fn pods_that_are_deleted_and_stay_hold_up_no_eviction_and_are_evicted_themselves() {
    let year = json!({"terminationGracePeriodSeconds": 31_536_000});
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 300 * MI)]);
    let mut pods = vec![("a", 620, 0, 0), ("b", 300, 0, 0), ("c", 1, 0, 0)];
    for uid in ["d", "e", "f", "g"] {
        node.pod(uid, json!({}), year.clone());
        pods.push((uid, 2, 0, 0));
    }
    // One after the other is deleted: the time for which the threshold is met counts, not the time since the last one.
    let mut evicted = None;
    let mut waited_ns = 0;
    for uid in ["d", "e", "f", "g"] {
        node.step(EventKind::PodEndedByKubelet { uid: uid.into() });
        let decisions = node.sample_after(9 * S / 10, &pods, Sample::default());
        waited_ns += 9 * S / 10;
        if let Some(name) = names(&decisions).first() {
            evicted = Some((name.to_string(), waited_ns));
            break;
        }
    }
    assert_eq!(evicted, Some(("a".to_owned(), 4 * 9 * S / 10)));

    // Where ever less is available nobody waits at all.
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 300 * MI)]);
    node.pod("d", json!({}), year.clone());
    let plenty = [
        ("a", 500, 0, 0),
        ("b", 100, 0, 0),
        ("c", 1, 0, 0),
        ("d", 1, 0, 0),
    ];
    assert_eq!(names(&node.sample(&plenty, Sample::default())), [""; 0]);
    node.step(EventKind::PodEndedByKubelet { uid: "d".into() });
    let short = [
        ("a", 640, 0, 0),
        ("b", 100, 0, 0),
        ("c", 1, 0, 0),
        ("d", 1, 0, 0),
    ];
    let decisions = node.sample_after(S / 100, &short, Sample::default());
    assert_eq!(names(&decisions), ["a"]);

    // The greatest user is not spared for being deleted.
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 300 * MI)]);
    node.pod("d", json!({}), year);
    node.step(EventKind::PodEndedByKubelet { uid: "d".into() });
    let greatest = [
        ("a", 100, 0, 0),
        ("b", 100, 0, 0),
        ("c", 1, 0, 0),
        ("d", 640, 0, 0),
    ];
    node.sample_after(S / 100, &greatest, Sample::default());
    let decisions = node.sample_after(2 * S, &greatest, Sample::default());
    assert_eq!(kills(&decisions), [("d", KillReason::NoGrace)]);
}

#[test]
fn a_limit_of_local_storage_waits_for_nobody_and_evicts_no_pod_that_is_killed() {
    let spec = json!({"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "10Mi"}}]});
    let above = |node: &mut Node| {
        let used = Used {
            bytes: Some(20 * MI),
            inodes: Some(1),
        };
        let sample = with_storage(PodStorage {
            uid: "d".into(),
            containers: Vec::new(),
            volumes: vec![VolumeStorage {
                name: "scratch".to_owned(),
                used,
            }],
            files: Used::default(),
            is_cut: false,
        });
        let decisions = node.sample(&[("d", 1, 0, 0)], sample);
        let evictions = decisions.iter().filter_map(|decision| match decision {
            Decision::Evict { uid, .. } => Some(uid.to_string()),
            _ => None,
        });
        evictions.collect::<Vec<_>>()
    };
    let mut node = beside(Vec::new());
    node.pod("d", json!({}), spec.clone());
    node.step(EventKind::PodEndedByKubelet { uid: "d".into() });
    assert_eq!(above(&mut node), ["d"]);
    assert_eq!(above(&mut node), [""; 0], "once");

    // Without a kubelet, when its grace period is over.
    let mut node = Node::with(EngineConfig::default());
    node.pod("d", json!({}), spec);
    node.step(EventKind::PodRemoved { uid: "d".into() });
    let decisions = node.sample_after(31 * S, &[("d", 1, 0, 0)], Sample::default());
    assert_eq!(kills(&decisions), [("d", KillReason::GraceOver)]);
    assert_eq!(above(&mut node), [""; 0]);
}

#[test]
fn a_pod_without_a_name_is_the_last_to_go_and_a_static_one_never_goes() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 500 * MI)]);
    let digits = "0123456789abcdef0123456789abcdef";
    for uid in ["unnamed", digits] {
        let pod = Pod::unnamed(uid.into(), QosClass::BestEffort);
        let pod = Arc::new(pod);
        node.step(EventKind::PodApplied { pod });
        node.step(EventKind::PodRunning { uid: uid.into() });
    }
    let mut order = Vec::new();
    let mut left = vec![
        ("a", 1, 0, 0),
        ("b", 2, 0, 0),
        ("c", 3, 0, 0),
        (digits, 700, 0, 0),
        ("unnamed", 200, 0, 0),
    ];
    for _ in 0..5 {
        let decisions = node.sample_after(60 * S, &left, Sample::default());
        for name in names(&decisions) {
            left.retain(|(other, ..)| *other != name);
            order.push(name.to_owned());
        }
        for name in &order {
            node.empty(name);
        }
    }
    assert_eq!(order, ["c", "b", "a", "unnamed"]);
}

fn withdrawn(decisions: &[Decision]) -> Vec<&str> {
    let withdrawn = decisions.iter().filter_map(|decision| match decision {
        Decision::Withdraw { uid } => Some(uid.as_str()),
        _ => None,
    });
    withdrawn.collect()
}

/// Kubernetes' Eviction API answers 429 while a budget has no disruption left.
#[test]
fn when_a_budget_refuses_a_soft_victim_the_next_one_goes() {
    let mut node = beside(vec![soft(300 * MI)]);
    node.sample(&SHORT, Sample::default());
    assert_eq!(names(&node.sample(&SHORT, Sample::default())), ["a"]);
    let refused = |uid: &str| EventKind::EvictionRefused { uid: uid.into() };
    assert_eq!(withdrawn(&node.step(refused("a"))), ["a"]);
    let state = &node.engine.state().pods[&PodUid::from("a")];
    assert_eq!((state.leaving, state.evictions), (None, 0));
    assert_eq!(names(&node.sample(&SHORT, Sample::default())), ["b"]);
    assert_eq!(withdrawn(&node.step(refused("b"))), ["b"]);
    // The last one stays chosen, and is killed when its grace period of 20 s is over.
    assert_eq!(names(&node.sample(&SHORT, Sample::default())), ["c"]);
    assert_eq!(withdrawn(&node.step(refused("c"))), [""; 0]);
    let mut killed = Vec::new();
    for _ in 0..3 {
        let decisions = node.sample_after(10 * S, &SHORT, Sample::default());
        killed.extend(kills(&decisions).into_iter().map(|(uid, _)| uid.to_owned()));
    }
    assert_eq!(killed, ["c"]);
}

#[test]
fn a_refusal_is_for_one_grace_period_and_spares_nobody_at_a_hard_threshold() {
    let mut node = beside(vec![
        soft(300 * MI),
        hard(Signal::MemoryAvailable, 100 * MI),
    ]);
    node.sample(&SHORT, Sample::default());
    assert_eq!(names(&node.sample(&SHORT, Sample::default())), ["a"]);
    let refused = EventKind::EvictionRefused { uid: "a".into() };
    assert_eq!(withdrawn(&node.step(refused.clone())), ["a"]);
    let shorter = [("a", 620, 0, 0), ("b", 300, 0, 0), ("c", 1, 0, 0)];
    let decisions = node.sample(&shorter, Sample::default());
    assert_eq!(names(&decisions), ["a"]);
    assert_eq!(kills(&decisions), [("a", KillReason::NoGrace)]);
    // What was killed is not taken back.
    assert_eq!(withdrawn(&node.step(refused)), [""; 0]);

    let mut node = beside(vec![soft(300 * MI)]);
    node.sample(&SHORT, Sample::default());
    node.sample(&SHORT, Sample::default());
    let refused = EventKind::EvictionRefused { uid: "a".into() };
    assert_eq!(withdrawn(&node.step(refused)), ["a"]);
    let plenty = [("a", 1, 0, 0), ("b", 1, 0, 0), ("c", 1, 0, 0)];
    node.sample_after(21 * S, &plenty, Sample::default());
    node.sample(&SHORT, Sample::default());
    assert_eq!(names(&node.sample(&SHORT, Sample::default())), ["a"]);
}

/// Else pods that budgets protect could take turns, and none would go.
#[test]
fn a_pod_is_taken_back_once_while_its_threshold_is_met() {
    let mut node = beside(vec![soft(300 * MI)]);
    node.sample(&SHORT, Sample::default());
    node.sample(&SHORT, Sample::default());
    let refused = EventKind::EvictionRefused { uid: "a".into() };
    assert_eq!(withdrawn(&node.step(refused.clone())), ["a"]);
    let decisions = node.sample_after(21 * S, &SHORT, Sample::default());
    assert_eq!(names(&decisions), ["a"], "its time is over");
    assert_eq!(withdrawn(&node.step(refused)), [""; 0]);
}

/// Whose init container has left something in an `emptyDir`, and whose container cannot start.
fn waits_with(node: &mut Node, status: serde_json::Value) {
    let pod = json!({
        "metadata": {"name": "waits", "namespace": "default", "uid": "waits"},
        "spec": {"containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}]},
        "status": status,
    });
    let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).unwrap());
    node.step(EventKind::PodApplied { pod });
}

fn waiting() -> serde_json::Value {
    json!({"containerStatuses": [
        {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
    ]})
}

fn short(waits_mi: u64) -> [(&'static str, u64, u64, u64); 4] {
    [
        ("a", 300, 0, 0),
        ("b", 200, 0, 0),
        ("c", 1, 0, 0),
        ("waits", waits_mi, 0, 0),
    ]
}

#[test]
fn a_pod_in_which_nothing_runs_goes_for_what_it_has_left() {
    let goes = |status: &serde_json::Value, waits_mi: u64| {
        let mut node = beside(vec![hard(Signal::MemoryAvailable, 600 * MI)]);
        waits_with(&mut node, status.clone());
        let decisions = node.sample(&short(waits_mi), Sample::default());
        let gone = names(&decisions).concat();
        // What it has left is there until its kubelet has ended it: it is not asked for again.
        let again = node.sample_after(120 * S, &short(waits_mi), Sample::default());
        let again = names(&again).concat();
        (gone, again)
    };
    let both = |gone: &str, again: &str| (gone.to_owned(), again.to_owned());
    assert_eq!(goes(&waiting(), 400), both("waits", "a"));
    // Its sandbox, and what the kernel counts for it.
    assert_eq!(goes(&waiting(), 4).0, "a");
    // Not admitted yet: there is nothing for its kubelet to end.
    assert_eq!(goes(&json!({}), 400).0, "a");
    // Its kubelet has not seen the end of its container: the pod may be over.
    let runs = json!({"containerStatuses": [
        {"name": "c", "state": {"running": {"startedAt": "2026-11-29T06:00:00Z"}}},
    ]});
    assert_eq!(goes(&runs, 400).0, "a");
}

/// The API server was away, or the report was lost.
#[test]
fn a_pod_in_which_nothing_runs_is_asked_for_again() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 150 * MI)]);
    waits_with(&mut node, waiting());
    let decisions = node.sample(&short(400), Sample::default());
    assert_eq!(names(&decisions), ["waits"]);
    let enough = [("a", 200, 0, 0), ("waits", 400, 0, 0)];
    let decisions = node.sample_after(2 * S, &enough, Sample::default());
    assert_eq!(endings(&decisions), [("waits", EvictionEnding::Lingering)]);
    let decisions = node.sample_after(STUCK_FOR_NS - 10 * S, &short(400), Sample::default());
    assert_eq!(names(&decisions), ["a"], "not so soon");
    node.empty("a");
    node.sample(&enough[1..], Sample::default());
    let decisions = node.sample_after(10 * S, &short(700)[1..], Sample::default());
    assert_eq!(names(&decisions), ["waits"]);
    assert_eq!(evicted(&decisions)[0].1.evicted_before, 0, "not started");
}

/// What is started in it anew is a pod like any other.
#[test]
fn a_pod_that_was_evicted_and_started_again_goes_for_what_it_has_left() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 150 * MI)]);
    waits_with(&mut node, waiting());
    let uid = PodUid::from("waits");
    let runs = EventKind::PodRunning { uid };
    node.step(runs.clone());
    let decisions = node.sample(&short(400), Sample::default());
    assert_eq!(names(&decisions), ["waits"]);
    node.empty("waits");
    // What it has left stays, and its kubelet has been asked.
    let decisions = node.sample_after(20 * S, &short(400), Sample::default());
    assert_eq!(names(&decisions), ["a"]);
    node.empty("a");
    node.sample(&short(400)[1..], Sample::default());
    node.step(runs);
    node.empty("waits");
    let decisions = node.sample(&short(700)[1..], Sample::default());
    assert_eq!(names(&decisions), ["waits"]);
}

#[test]
fn what_outlives_a_pod_that_is_asked_for_again_counts_once() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 150 * MI)]);
    let mut config = node.engine.config().clone();
    config.options.breaker = Some(Breaker::default());
    node.engine = Engine::resume(config, node.engine.state().clone());
    for name in ["a", "b", "c"] {
        node.empty(name);
    }
    waits_with(&mut node, waiting());
    node.other_mi = 500;
    let left = [("waits", 400, 0, 0)];
    for _ in 0..2 {
        let decisions = node.sample_after(STUCK_FOR_NS, &left, Sample::default());
        assert_eq!(names(&decisions), ["waits"]);
        node.sample_after(2 * S, &left, Sample::default());
        let retained = node.engine.state().retained.as_ref().unwrap();
        assert_eq!(retained.hold.bytes, 400 * MI);
    }
}

/// What goes for a signal of a disk, or of processes, if `waits` has this and the others next to nothing.
fn goes_for(signal: Signal, waits: Option<PodStorage>) -> Option<String> {
    let mut node = beside(vec![hard(signal, 1000)]);
    waits_with(&mut node, waiting());
    let others = ["a", "b", "c"].map(|uid| left(uid, 1, 1));
    let nodefs = FileSystemReading {
        at_ns: 0,
        available_bytes: 1,
        capacity_bytes: 100 << 30,
        inodes_free: Some(1),
        inodes: Some(1 << 20),
    };
    let taken = |uid: &str, processes| PodProcesses {
        uid: uid.into(),
        processes,
    };
    // Space is freed before a pod goes.
    (0..90).find_map(|_| {
        let at_ns = node.now_ns + S;
        let reading = StorageReading {
            nodefs: Some(FileSystemReading { at_ns, ..nodefs }),
            imagefs: None,
            containerfs: None,
            pods: others.iter().cloned().chain(waits.clone()).collect(),
        };
        let processes = ProcessReading {
            at_ns,
            max: 1000,
            running: 999,
            pods: vec![taken("a", 3), taken("b", 2), taken("c", 1)],
        };
        let sample = Sample {
            storage: Some(Arc::new(reading)),
            processes: Some(Arc::new(processes)),
            ..Sample::default()
        };
        let decisions = node.sample(&[("waits", 400, 0, 0)], sample);
        names(&decisions).first().map(|name| name.to_string())
    })
}

fn left(uid: &str, mib: u64, inodes: u64) -> PodStorage {
    PodStorage {
        files: Used {
            bytes: Some(mib * MI),
            inodes: Some(inodes),
        },
        ..PodStorage::nothing(uid.into())
    }
}

#[test]
fn a_pod_in_which_nothing_runs_goes_for_a_disk_only_if_it_has_much_there() {
    let goes = |signal, left| goes_for(signal, left).unwrap();
    for (signal, much, little) in [
        (
            Signal::NodefsAvailable,
            left("waits", 16, 9),
            left("waits", 15, 9000),
        ),
        (
            Signal::NodefsInodesFree,
            left("waits", 9, 1024),
            left("waits", 900, 1023),
        ),
    ] {
        assert_eq!(goes(signal, Some(much)), "waits");
        assert_eq!(goes(signal, Some(little.clone())), "a");
        // Whose image is being pulled may not have been measured.
        assert_eq!(goes(signal, None), "a");
        // Nobody hides behind more names than are counted.
        let is_cut = true;
        assert_eq!(goes(signal, Some(PodStorage { is_cut, ..little })), "waits");
    }
    // It has no processes that would go with it, whatever it has besides.
    let much = left("waits", 900, 9000);
    assert_eq!(goes(Signal::PidAvailable, Some(much)), "a");
}

#[test]
fn a_pod_in_which_nothing_runs_goes_for_a_numa_node_only_if_it_has_much_there() {
    for (waits_mi, gone) in [(None, "a"), (Some(15), "a"), (Some(200), "waits")] {
        let mut node = beside(vec![hard(Signal::NumaMemoryAvailable, 150 * MI)]);
        waits_with(&mut node, waiting());
        let on = |(uid, mib): (&str, u64)| PodOnNode {
            uid: uid.into(),
            used_bytes: mib * MI,
        };
        let others = [("a", 10), ("b", 1), ("c", 1)].into_iter();
        let pods = others.chain(waits_mi.map(|mib| ("waits", mib)));
        let numa_pods = NumaPods {
            at_ns: node.now_ns + S,
            node: 0,
            pods: pods.map(on).collect(),
        };
        let pressed = NumaMemory {
            node: 0,
            capacity_bytes: 500 * MI,
            free_bytes: 50 * MI,
            anon_bytes: 450 * MI,
            file_bytes: 0,
            inactive_file_bytes: 0,
            lazily_freed_bytes: 0,
        };
        let sample = Sample {
            numa: vec![pressed],
            numa_pods: Some(Arc::new(numa_pods)),
            ..Sample::default()
        };
        assert_eq!(names(&node.sample(&short(400), sample)), [gone]);
    }
}

/// What it has left is written until its last process ends, and counts as it is.
#[test]
fn the_newest_figure_of_a_pod_in_which_nothing_runs_counts() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 600 * MI)]);
    waits_with(&mut node, waiting());
    for name in ["b", "c"] {
        node.empty(name);
    }
    let known = [("a", 300, 0, 0), ("waits", 4, 0, 0)];
    let charged = |mib: u64| Sample {
        charged_bytes: Some(mib * MI),
        ..Sample::default()
    };
    assert_eq!(names(&node.sample(&known, charged(0))), [""; 0]);
    let memory = |name: &str, mib: u64, then_mib: u64| PodMemory {
        uid: name.into(),
        usage_bytes: mib * MI,
        inactive_file_bytes: 0,
        usage_at_stat_bytes: then_mib * MI,
        active_file_bytes: 0,
        lazily_freed_bytes: 0,
        uncharged_bytes: 0,
        huge_page_bytes: 0,
        stat_age_ms: 0,
    };
    let (a, waits) = (memory("a", 300, 300), memory("waits", 400, 4));
    let mut sample = Sample {
        node: NodeMemory {
            capacity_bytes: 1000 * MI,
            anon_bytes: 550 * MI,
            file_bytes: 400 * MI,
            inactive_file_bytes: 400 * MI,
            free_bytes: 50 * MI,
            kernel_available_bytes: 450 * MI,
            ..NodeMemory::default()
        },
        pods: vec![a, waits.clone()],
        ..charged(396)
    };
    let at_ns = node.now_ns + S;
    assert_eq!(node.engine.stale(&sample, at_ns), Some(Stale::Pod(1)));
    // It may be the one that has grown.
    sample.pods_read = PodsRead::Leaders;
    sample.pods.truncate(1);
    let unread = Stale::Unread("waits".into());
    assert_eq!(node.engine.stale(&sample, at_ns), Some(unread));
    sample.pods.push(PodMemory {
        usage_at_stat_bytes: waits.usage_bytes,
        ..waits
    });
    assert_eq!(node.engine.stale(&sample, at_ns), None);
    node.now_ns = at_ns;
    let decisions = node.step(EventKind::Sample(sample));
    assert_eq!(names(&decisions), ["waits"]);
}

/// What is kept ready of it between two samples follows.
#[test]
fn whether_a_pod_in_which_nothing_runs_goes_follows_what_becomes_of_it() {
    let uid = || PodUid::from("waits");
    let runs = EventKind::PodRunning { uid: uid() };
    let empties = EventKind::PodEmpty { uid: uid() };
    let ends = EventKind::PodEndedByKubelet { uid: uid() };
    let removed = EventKind::PodRemoved { uid: uid() };
    for (events, gone) in [
        (vec![], "waits"),
        (vec![runs.clone(), empties.clone()], "waits"),
        (vec![ends.clone()], "a"),
        (vec![removed], "a"),
        (vec![runs, ends, empties], "a"),
    ] {
        let mut node = beside(vec![hard(Signal::MemoryAvailable, 150 * MI)]);
        waits_with(&mut node, json!({}));
        node.sample(&short(100), Sample::default());
        waits_with(&mut node, waiting());
        node.engine.prepare();
        for kind in events {
            node.step(kind);
            node.engine.prepare();
        }
        // Longer than a pod is waited for that its kubelet ends.
        let decisions = node.sample_after(3 * S, &short(400), Sample::default());
        assert_eq!(names(&decisions), [gone]);
    }
}

#[test]
fn it_is_said_why_a_pod_in_which_nothing_runs_is_not_ranked() {
    let why = |node: &Node, signal: Signal| {
        let (config, state) = (node.engine.config(), node.engine.state());
        let signal = Some(signal.row().name);
        let all = EvictionExplanation::new(config, state, signal, Some("waits")).unwrap();
        let of_all = all.not_ranked.first().map(|not| not.why);
        assert_eq!(all.pod.unwrap().not_ranked, of_all);
        let mut differences = all.kubelet.differences.into_iter();
        let difference = differences.next().map(|difference| difference.because);
        (of_all, difference)
    };
    let memory = Signal::MemoryAvailable;
    let not_ranked =
        |why: NotRankedReason| (Some(why), Some(format!("a pod is not ranked: {why}")));
    let mut node = beside(vec![hard(memory, 150 * MI)]);
    waits_with(&mut node, json!({}));
    node.sample(&short(100), Sample::default());
    assert_eq!(why(&node, memory).0, Some(NotRankedReason::NotRunning));
    waits_with(&mut node, waiting());
    assert_eq!(why(&node, memory), (None, None));
    // None would end with it.
    assert_eq!(
        why(&node, Signal::PidAvailable).0,
        Some(NotRankedReason::NotRunning)
    );
    node.sample(
        &[
            ("waits", 15, 0, 0),
            ("a", 1, 0, 0),
            ("b", 1, 0, 0),
            ("c", 1, 0, 0),
        ],
        Sample::default(),
    );
    assert_eq!(why(&node, memory), not_ranked(NotRankedReason::LittleLeft));
    node.sample(&short(400), Sample::default());
    assert_eq!(why(&node, memory), not_ranked(NotRankedReason::Evicted));
    node.sample_after(2 * S, &short(400), Sample::default());
    assert_eq!(why(&node, memory), not_ranked(NotRankedReason::Evicted));
    let uid = PodUid::from("waits");
    node.step(EventKind::PodEndedByKubelet { uid });
    assert_eq!(why(&node, memory).0, Some(NotRankedReason::NotRunning));
}

#[test]
fn the_last_line_kills_no_pod_in_which_nothing_runs() {
    let mut node = beside(vec![hard(Signal::MemoryAvailable, 50 * MI)]);
    let mut config = node.engine.config().clone();
    config.options.last_line = Some(LastLine::default());
    node.engine = Engine::resume(config, node.engine.state().clone());
    waits_with(&mut node, waiting());
    node.sample(&short(400), Sample::default());
    let plan = last_line::plan(node.engine.config(), node.engine.state()).unwrap();
    let order = plan.order.iter().map(|condemned| condemned.uid().as_str());
    assert_eq!(order.collect::<Vec<_>>(), ["a", "b", "c"]);
}

fn endings(decisions: &[Decision]) -> Vec<(&str, EvictionEnding)> {
    let endings = decisions.iter().filter_map(|decision| match decision {
        Decision::Finished { uid, ending, .. } => Some((uid.as_str(), *ending)),
        _ => None,
    });
    endings.collect()
}

/// A soft threshold is met, and the pod in which nothing runs has been chosen.
fn softly_evicted() -> Node {
    let mut node = beside(vec![soft(600 * MI), hard(Signal::MemoryAvailable, 50 * MI)]);
    waits_with(&mut node, waiting());
    node.sample(&short(400), Sample::default());
    let decisions = node.sample(&short(400), Sample::default());
    assert_eq!(names(&decisions), ["waits"]);
    assert_eq!((kills(&decisions), endings(&decisions)), (vec![], vec![]));
    node
}

#[test]
fn a_refusal_puts_off_a_pod_in_which_nothing_runs() {
    let mut node = softly_evicted();
    // The API server takes its time.
    let decisions = node.sample_after(5 * S, &short(400), Sample::default());
    assert_eq!((names(&decisions).len(), endings(&decisions)), (0, vec![]));
    let uid = PodUid::from("waits");
    let refused = EventKind::EvictionRefused { uid };
    assert_eq!(withdrawn(&node.step(refused.clone())), ["waits"]);
    assert_eq!(names(&node.sample(&short(400), Sample::default())), ["a"]);
    assert_eq!(withdrawn(&node.step(refused)), [""; 0]);
    // a goes, and the time for which it was put off is over.
    node.empty("a");
    let left = [("b", 200, 0, 0), ("c", 1, 0, 0), ("waits", 400, 0, 0)];
    let decisions = node.sample_after(30 * S, &left, Sample::default());
    assert_eq!(names(&decisions), ["waits"]);
}

#[test]
fn the_grace_period_counts_where_nothing_runs() {
    let mut node = softly_evicted();
    let empty = EventKind::PodEmpty {
        uid: "waits".into(),
    };
    assert_eq!(endings(&node.step(empty)), []);
    let decisions = node.sample_after(20 * S, &short(400), Sample::default());
    assert_eq!((kills(&decisions), endings(&decisions)), (vec![], vec![]));
    let decisions = node.sample_after(10 * S, &short(400), Sample::default());
    assert_eq!(kills(&decisions), [("waits", KillReason::GraceOver)]);
    assert_eq!(endings(&decisions), []);
    let decisions = node.sample_after(KUBELET_ENDS_NS, &short(400), Sample::default());
    assert_eq!(endings(&decisions), [("waits", EvictionEnding::Lingering)]);

    // Its kubelet is earlier.
    let mut node = softly_evicted();
    let decisions = node.sample(&short(0), Sample::default());
    assert_eq!(endings(&decisions), [("waits", EvictionEnding::Freed)]);

    // There is no time left.
    let mut node = softly_evicted();
    let decisions = node.sample(&short(480), Sample::default());
    assert_eq!(kills(&decisions), [("waits", KillReason::NoGrace)]);
}

#[test]
fn limits_of_local_storage_hold_while_nothing_runs() {
    let left = |mib: u64| {
        with_storage(PodStorage {
            uid: "waits".into(),
            containers: Vec::new(),
            volumes: vec![VolumeStorage {
                name: "v".to_owned(),
                used: Used {
                    bytes: Some(mib * MI),
                    inodes: Some(1),
                },
            }],
            files: Used::default(),
            is_cut: false,
        })
    };
    let evicted = |mib: u64| {
        let mut node = beside(Vec::new());
        waits_with(&mut node, waiting());
        let decisions = node.sample(&[("waits", 1, 0, 0)], left(mib));
        decisions.iter().any(
            |decision| matches!(decision, Decision::Evict { uid, .. } if uid.as_str() == "waits"),
        )
    };
    assert!(evicted(50));
    assert!(!evicted(9));
}
