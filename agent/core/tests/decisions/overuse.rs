//! What the arbitrator of a cluster says of namespaces, and what a node under pressure says to it.

use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::explain::EvictionExplanation;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Event, EventKind, Overused, Sample};
use plimsoll_core::model::options::OveruseRanking;
use plimsoll_core::model::rank_row::Comparator;
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::threshold::{Amount, Threshold};
use plimsoll_core::policy::eviction::thresholds::withheld_bytes;
use plimsoll_core::protocol::cluster_link::OverusedNamespace;
use serde_json::json;

use crate::node::{MI, Node, S, evicted, hard};

/// Three pods of two namespaces; `greedy` uses too much of the cluster, for five seconds.
fn node(overuse_ranking: OveruseRanking) -> Node {
    let mut config = EngineConfig {
        thresholds: vec![hard(Signal::MemoryAvailable, 300 * MI)],
        beside_kubelet: true,
        ..EngineConfig::default()
    };
    config.options.overuse_ranking = overuse_ranking;
    let mut node = Node::with(config);
    for (name, namespace, priority) in [("a", "fair", 0), ("b", "greedy", 0), ("c", "greedy", 5)] {
        let pod = json!({"metadata": {"name": name, "uid": name, "namespace": namespace},
            "spec": {"priority": priority, "containers": [{"name": "c"}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let uid = pod.uid();
        node.step(EventKind::PodApplied { pod: Arc::new(pod) });
        node.step(EventKind::PodRunning { uid });
    }
    let until_ns = node.now_ns + 5 * S;
    let greedy = OverusedNamespace {
        namespace: "greedy".into(),
        excess: 12,
    };
    node.step(EventKind::Overused(Arc::new(Overused {
        until_ns,
        namespaces: vec![greedy],
    })));
    node
}

const SHORT: [(&str, u64, u64, u64); 3] = [("a", 500, 0, 0), ("b", 200, 0, 0), ("c", 100, 0, 0)];

fn first(decisions: &[Decision]) -> (String, Option<Comparator>) {
    let all = evicted(decisions);
    (all[0].0.to_owned(), all[0].1.ahead_by)
}

#[test]
fn the_pod_of_the_overused_namespace_goes_while_the_list_holds() {
    let cases = [
        (OveruseRanking::Ignore, "a", Comparator::UsageOverRequest),
        (OveruseRanking::AmongEquals, "b", Comparator::OverShare),
        (OveruseRanking::BeforePriority, "b", Comparator::Priority),
    ];
    for (ranking, name, by) in cases {
        let decisions = node(ranking).sample(&SHORT, Sample::default());
        assert_eq!(
            first(&decisions),
            (name.to_owned(), Some(by)),
            "{ranking:?}"
        );
        let late = node(ranking).sample_after(5 * S, &SHORT, Sample::default());
        let kubelets = ("a".to_owned(), Some(Comparator::UsageOverRequest));
        assert_eq!(first(&late), kubelets, "{ranking:?}");
    }
    // An empty list takes the place of the one before.
    let mut node = node(OveruseRanking::AmongEquals);
    node.step(EventKind::Overused(Arc::default()));
    assert_eq!(first(&node.sample(&SHORT, Sample::default())).0, "a");
}

#[test]
fn it_is_explained_beside_the_kubelets_answer() {
    let mut node = node(OveruseRanking::AmongEquals);
    let calm = [("a", 300, 0, 0), ("b", 200, 0, 0), ("c", 100, 0, 0)];
    node.sample(&calm, Sample::default());
    let explain = |node: &Node| {
        EvictionExplanation::new(node.engine.config(), node.engine.state(), None, None).unwrap()
    };
    let explained = explain(&node);
    let overuse = explained.overuse.unwrap();
    assert_eq!((overuse.valid_for_ns, overuse.namespaces.len()), (4 * S, 1));
    assert_eq!(explained.victims, ["greedy/b"]);
    assert_eq!(explained.kubelet.victim.as_deref(), Some("fair/a"));
    assert_eq!(explained.kubelet.differences[0].because, "overuseRanking");
    node.sample_after(4 * S, &calm, Sample::default());
    let explained = explain(&node);
    assert_eq!(
        (explained.overuse, explained.kubelet.differences.len()),
        (None, 0)
    );
    assert_eq!(explained.victims, ["fair/a"]);
}

/// The list and its end are in the journal: nothing else is needed to decide the same again.
#[test]
fn a_replay_decides_the_same() {
    let mut node = node(OveruseRanking::BeforePriority);
    let (config, state) = (node.engine.config().clone(), node.engine.state().clone());
    let text = serde_json::to_string(&(&config, &state)).unwrap();
    let (config, state) = serde_json::from_str(&text).unwrap();
    let mut replayed = Engine::resume(config, state);
    for after_ns in [S, 60 * S] {
        let before = node.now_ns;
        let decisions = node.sample_after(after_ns, &SHORT, Sample::default());
        assert!(node.now_ns > before);
        let list = Arc::new(Overused {
            until_ns: node.now_ns + S,
            namespaces: Vec::new(),
        });
        // Through the journal's text.
        let event = Event {
            at_ns: node.now_ns,
            kind: EventKind::Overused(list),
        };
        let read: Event = serde_json::from_str(&serde_json::to_string(&event).unwrap()).unwrap();
        assert_eq!(read, event);
        let mut again = Node {
            engine: replayed.clone(),
            ..node.clone()
        };
        again.now_ns = before;
        assert_eq!(
            again.sample_after(after_ns, &SHORT, Sample::default()),
            decisions
        );
        replayed = again.engine;
    }
}

#[test]
fn what_is_withheld_is_what_a_threshold_lacks_while_there_is_pressure() {
    let with_reclaim = |value, min_reclaim| Threshold {
        min_reclaim: Some(Amount::Absolute(min_reclaim * MI)),
        grace_ns: 60 * S,
        ..hard(Signal::MemoryAvailable, value * MI)
    };
    let mut node = Node::with(EngineConfig {
        thresholds: vec![
            hard(Signal::MemoryAvailable, 100 * MI),
            with_reclaim(300, 50),
            hard(Signal::NumaMemoryAvailable, 900 * MI),
        ],
        pressure_transition_period_ns: 300 * S,
        ..EngineConfig::default()
    });
    node.pod("a", json!({}), json!({}));
    let mut withheld = |used| {
        node.sample(&[("a", used, 0, 0)], Sample::default());
        withheld_bytes(node.engine.config(), node.engine.state()) / MI
    };
    assert_eq!(withheld(500), 0);
    // Within the minimum reclaim, and no threshold is met.
    assert_eq!(withheld(680), 0);
    assert_eq!(withheld(750), 100);
    assert_eq!(withheld(690), 40, "while the condition lasts");
    assert_eq!(withheld(500), 0);
}
