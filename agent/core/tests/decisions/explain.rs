//! What is explained is what is done: explanations against decisions of the same engine.

use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::explain::{
    EvictionExplanation, EvictionStatus, ExplainError, NoSuchPod, NotRankedReason, OomExplanation,
    SignalChoice,
};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Event, EventKind, NodeMemory, PodMemory, Sample};
use plimsoll_core::model::options::{Availability, EvictionOptions, Victims};
use plimsoll_core::model::rank_row::Comparator;
use plimsoll_core::model::signal::{NodeCondition, Signal};
use plimsoll_core::model::threshold::{Amount, Operator, Passes, Threshold};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn threshold(signal: Signal, mib: u64, grace_ns: u64) -> Threshold {
    Threshold {
        signal,
        operator: Operator::LessThan,
        value: Amount::Absolute(mib * MIB),
        grace_ns,
        min_reclaim: None,
        passes: Passes::All,
    }
}

fn config(options: EvictionOptions) -> EngineConfig {
    EngineConfig {
        thresholds: vec![
            threshold(Signal::MemoryAvailable, 100, 0),
            threshold(Signal::MemoryAvailable, 300, 30_000_000_000),
        ],
        options,
        ..EngineConfig::default()
    }
}

/// A pod: priority, request and working set in MiB.
#[derive(Clone, Debug)]
struct Figures {
    priority: i32,
    request: u64,
    uses: u64,
    annotation: &'static str,
}

fn figures(priority: i32, request: u64, uses: u64) -> Figures {
    Figures {
        priority,
        request,
        uses,
        annotation: "{}",
    }
}

const STATIC: &str = r#"{"kubernetes.io/config.source":"file"}"#;

/// An engine with running pods, and what it decides when `available_mib` of 1 GiB of memory are available.
fn seen(config: EngineConfig, pods: &[Figures], available_mib: u64) -> (Engine, Vec<Decision>) {
    let mut engine = Engine::new(config);
    let mut memory = Vec::new();
    for (index, figures) in pods.iter().enumerate() {
        let json = format!(
            r#"{{"metadata":{{"name":"p{index}","annotations":{}}},"spec":{{"priority":{},
            "containers":[{{"name":"app","resources":{{"requests":{{"memory":"{}Mi"}}}}}}]}}}}"#,
            figures.annotation, figures.priority, figures.request
        );
        let pod: Arc<Pod> = Arc::new(serde_json::from_str(&json).unwrap());
        let uid = pod.uid();
        let mut none = Vec::new();
        let mut step = |kind| engine.step(&Event { at_ns: 1, kind }, &mut none);
        step(EventKind::PodApplied { pod });
        step(EventKind::PodRunning { uid: uid.clone() });
        memory.push(PodMemory {
            uid,
            usage_bytes: figures.uses * MIB,
            inactive_file_bytes: 0,
            active_file_bytes: 0,
            lazily_freed_bytes: 0,
            huge_page_bytes: 0,
            usage_at_stat_bytes: figures.uses * MIB,
            uncharged_bytes: 0,
            stat_age_ms: 0,
        });
    }
    let mut decisions = Vec::new();
    let sample = Sample {
        node: NodeMemory {
            capacity_bytes: 1024 * MIB,
            anon_bytes: (1024 - available_mib) * MIB,
            kernel_available_bytes: available_mib * MIB,
            ..NodeMemory::default()
        },
        pods: memory,
        ..Sample::default()
    };
    let kind = EventKind::Sample(sample);
    engine.step(&Event { at_ns: 2, kind }, &mut decisions);
    (engine, decisions)
}

fn explained(engine: &Engine, pod: Option<&str>) -> EvictionExplanation {
    EvictionExplanation::new(engine.config(), engine.state(), None, pod).unwrap()
}

fn evicted(engine: &Engine, decisions: &[Decision]) -> Vec<String> {
    let name = |decision: &Decision| match decision {
        Decision::Evict { uid, .. } => Some(engine.state().pods[uid].name.clone()),
        _ => None,
    };
    decisions.iter().filter_map(name).collect()
}

#[test]
fn a_calm_node_is_explained() {
    let pods = [figures(0, 10, 100), figures(5, 10, 200), figures(0, 50, 20)];
    let (engine, decisions) = seen(config(EvictionOptions::kubelet()), &pods, 500);
    assert!(evicted(&engine, &decisions).is_empty());
    let all = explained(&engine, None);
    assert_eq!(all.signal, Signal::MemoryAvailable);
    assert_eq!(all.signal_because, SignalChoice::Nearest);
    let memory = &all.signals[0];
    assert_eq!(memory.observed, Some(500 * MIB));
    assert_eq!(memory.condition, Some(NodeCondition::MemoryPressure));
    let headroom: Vec<_> = memory
        .thresholds
        .iter()
        .map(|threshold| threshold.headroom)
        .collect();
    assert_eq!(headroom, [Some(400 << 20), Some(200 << 20)]);
    assert_eq!(memory.thresholds[1].met_since_ns, None);
    assert_eq!(all.victims, ["default/p0"]);
    assert_eq!(
        all.ranking.pods[0].ahead_of_next_by,
        Some(Comparator::Priority)
    );
    assert_eq!(all.kubelet.victim.as_deref(), Some("default/p0"));
    assert_eq!(all.kubelet.differences, []);

    let pod = explained(&engine, Some("p1")).pod.unwrap();
    assert_eq!(pod.before.unwrap().pod, "default/p0");
    assert_eq!(pod.after.unwrap().by, Comparator::ExceedsRequest);
    assert_eq!((pod.shielded_by, pod.next_at_usage), (1, None));
    let pod = explained(&engine, Some("p2")).pod.unwrap();
    // Over its request of 50, and by more than p0's 90.
    assert_eq!(pod.next_at_usage, Some(140 * MIB + 1));
}

#[test]
fn a_grace_period_runs_and_the_condition_stands() {
    let (engine, _) = seen(
        config(EvictionOptions::kubelet()),
        &[figures(0, 10, 100)],
        200,
    );
    let all = explained(&engine, None);
    let soft = &all.signals[0].thresholds[1];
    assert_eq!(soft.headroom, Some(-(100 << 20)));
    assert_eq!(soft.grace_left_ns, Some(30_000_000_000));
    let memory = all.conditions[0];
    assert!(memory.status && memory.ends_in_ns == Some(300_000_000_000));
}

#[test]
fn exempt_and_idle_pods_are_distinguished() {
    let mut exempt = figures(0, 0, 400);
    exempt.annotation = STATIC;
    let pods = [exempt, figures(0, 10, 50), figures(0, 10, 40)];
    let (mut engine, _) = seen(config(EvictionOptions::kubelet()), &pods, 500);
    let uid = engine.state().pods.keys().nth(1).unwrap().clone();
    let kind = EventKind::PodEmpty { uid: uid.clone() };
    engine.step(&Event { at_ns: 3, kind }, &mut Vec::new());
    let all = explained(&engine, None);
    let standing: Vec<_> = all.ranking.pods.iter().map(|pod| pod.standing).collect();
    assert_eq!(standing, [EvictionStatus::Skipped, EvictionStatus::Next]);
    assert_eq!(all.not_ranked[0].pod, "default/p1");
    assert_eq!(all.not_ranked[0].why, NotRankedReason::NotRunning);
    let kubelet = &all.kubelet;
    assert_eq!(kubelet.victim.as_deref(), Some("default/p1"));
    assert!(kubelet.differences[0].plimsoll.contains("default/p2"));
    let pod = explained(&engine, Some("p1")).pod.unwrap();
    assert_eq!(pod.not_ranked, Some(NotRankedReason::NotRunning));
    let pod = explained(&engine, Some("p0")).pod.unwrap();
    assert!(pod.exempt.is_some() && pod.ways_out.is_empty());
    // A pod that has ended for good is ranked by neither.
    let kind = EventKind::PodEndedByKubelet { uid };
    engine.step(&Event { at_ns: 4, kind }, &mut Vec::new());
    let kubelet = explained(&engine, None).kubelet;
    assert_eq!(kubelet.victim.as_deref(), Some("default/p2"));
    assert_eq!(kubelet.differences, []);
}

#[test]
fn options_are_named_where_they_make_a_difference() {
    let options = EvictionOptions {
        victims: Victims::Targeted,
        availability: Availability::Reclaimable,
        ..EvictionOptions::kubelet()
    };
    let pods = [figures(0, 0, 30), figures(0, 0, 20), figures(9, 0, 25)];
    let (engine, decisions) = seen(config(options), &pods, 60);
    let all = explained(&engine, None);
    assert_eq!(all.signal_because, SignalChoice::Met);
    assert_eq!(all.victims, ["default/p0", "default/p1"]);
    assert_eq!(evicted(&engine, &decisions), all.victims);
    let because: Vec<_> = all
        .kubelet
        .differences
        .iter()
        .map(|difference| difference.because.as_str())
        .collect();
    // The page cache is empty here, so both see the same amount.
    assert_eq!(because, ["evictionVictims: Targeted"]);
    assert_eq!(all.leaving.len(), 2);
}

#[test]
fn names_of_no_pod_or_of_several() {
    let (engine, _) = seen(
        config(EvictionOptions::kubelet()),
        &[figures(0, 0, 1), figures(0, 0, 2)],
        500,
    );
    let error = |signal, pod| {
        EvictionExplanation::new(engine.config(), engine.state(), signal, pod).unwrap_err()
    };
    assert!(matches!(
        error(None, Some("x")),
        ExplainError::Pod(NoSuchPod::Unknown { .. })
    ));
    assert!(error(Some("x"), None).to_string().contains("pid.available"));
    let mut engine = engine;
    let other =
        r#"{"metadata":{"name":"p0","namespace":"other"},"spec":{"containers":[{"name":"app"}]}}"#;
    let pod = Arc::new(serde_json::from_str(other).unwrap());
    engine.step(
        &Event {
            at_ns: 3,
            kind: EventKind::PodApplied { pod },
        },
        &mut Vec::new(),
    );
    let error = OomExplanation::new(engine.config(), engine.state(), None, Some("p0")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "several pods are called \"p0\"; ask for one of default/p0, other/p0"
    );
    let one = OomExplanation::new(engine.config(), engine.state(), None, Some("default/p0"));
    assert_eq!(one.unwrap().containers.len(), 1);
}

#[test]
fn an_engine_that_has_seen_nothing() {
    let engine = Engine::new(config(EvictionOptions::kubelet()));
    let all = explained(&engine, None);
    assert!(all.victims.is_empty() && all.ranking.pods.is_empty());
    assert_eq!(all.signals[0].observed, None);
    assert_eq!(all.signal_because, SignalChoice::Default);
    assert!(OomExplanation::new(engine.config(), engine.state(), None, None).is_err());
}

fn any_pods() -> impl Strategy<Value = Vec<Figures>> {
    let pod = (0i32..3, 0u64..60, 1u64..60, prop::bool::weighted(0.2));
    let pod = pod.prop_map(|(priority, request, uses, is_static)| Figures {
        annotation: if is_static { STATIC } else { "{}" },
        ..figures(priority, request, uses)
    });
    prop::collection::vec(pod, 0..12)
}

proptest! {
    #[test]
    fn the_victims_explained_are_the_victims_chosen(
        pods in any_pods(), available in 0u64..100, targeted: bool,
    ) {
        let victims = if targeted { Victims::Targeted } else { Victims::One };
        let options = EvictionOptions { victims, ..EvictionOptions::kubelet() };
        let (engine, decisions) = seen(config(options), &pods, available);
        let all = explained(&engine, None);
        prop_assert_eq!(all.signal_because, SignalChoice::Met);
        prop_assert_eq!(evicted(&engine, &decisions), all.victims.clone());
        if victims == Victims::One {
            let next = all.ranking.next().map(|pod| pod.pod.clone());
            prop_assert_eq!(next, all.victims.first().cloned());
        }
        let json = serde_json::to_string(&all).unwrap();
        prop_assert_eq!(serde_json::from_str::<EvictionExplanation>(&json).unwrap(), all);
    }
}
