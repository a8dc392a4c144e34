use std::fs;
use std::sync::Arc;

use plimsoll_core::engine::Engine;
use plimsoll_core::kube::budget::DisruptionBudget;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Event, EventKind};
use plimsoll_core::model::signal::NodeCondition;
use plimsoll_core::protocol::cluster_link::{PlimsollCondition, Settled};

use serde_json::{Value, json};

use super::report::{losses_in_short, only_container};
use super::*;
use crate::daemon::tests::{Cgroup, Node, VICTIM, container_id, pod_dir};
use crate::pods::kill::HOLD_FILE;
use crate::source::cluster::{ClusterChange, ClusterEvent, ClusterPod};

/// A node, a pod of it, and the file that holds the pod.
fn held() -> (Node, PodUid, std::path::PathBuf) {
    let mut node = Node::with(Cgroup::V2, true);
    node.timer();
    node.rest();
    let file = pod_dir(&node.host, Cgroup::V2, VICTIM).join(HOLD_FILE);
    let uid = PodUid::new(format!("uid-{VICTIM}"));
    node.agent.hold(&uid);
    node.agent.follow_up_kubelet();
    node.wait_for_kill();
    // A plain file keeps what is longer.
    fs::write(&file, "0").unwrap();
    (node, uid, file)
}

/// Until the thread has lifted what it was given.
fn wait_for_lifts(node: &mut Node) {
    while !work(node).holds.as_ref().unwrap().to_lift().is_empty() {
        node.agent.note_lifted();
        std::thread::yield_now();
    }
}

fn work(node: &mut Node) -> &mut KubeletWork {
    node.agent.kubelet.as_mut().unwrap()
}

/// What it has reserved its pods cannot have, whatever this agent's own configuration says.
#[test]
fn what_pods_may_have_is_what_the_kubelet_limits_them_to() {
    const GIB: u64 = 1 << 30;
    for cgroup in [Cgroup::V1, Cgroup::V2] {
        let mut node = Node::with(cgroup, true);
        let file = node
            .host
            .path(cgroup.mount())
            .join("kubepods")
            .join(cgroup.limit());
        // Nothing; what v1 has where there is no limit; a limit; one above what the configuration leaves.
        for (text, gib) in [
            ("max", 15),
            ("9223372036854771712", 15),
            ("5368709120", 5),
            ("17179869184", 15),
        ] {
            fs::write(&file, text).unwrap();
            node.timer();
            let kubepods = node.agent.sample.kubepods.unwrap();
            assert_eq!(kubepods.limit_bytes, Some(gib * GIB), "{text}");
        }
    }
}

#[test]
fn a_hold_ends_when_the_api_server_stays_silent() {
    let (mut node, uid, file) = held();
    let due_ns = work(&mut node).at_ns().unwrap();
    let event = ClusterEvent::Api { is_reachable: true };
    node.agent.cluster_event(event).unwrap();
    node.agent.give_up_holds(due_ns);
    assert_eq!(work(&mut node).at_ns(), None, "it answers");
    let event = ClusterEvent::Api {
        is_reachable: false,
    };
    node.agent.cluster_event(event).unwrap();
    let due_ns = work(&mut node).at_ns().unwrap();
    node.agent.give_up_holds(due_ns - 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), "0");
    node.agent.give_up_holds(due_ns);
    wait_for_lifts(&mut node);
    assert_eq!(fs::read_to_string(&file).unwrap(), "max");
    assert!(work(&mut node).evicted.is_empty());
    // It can be held again.
    node.rest();
    node.agent.hold(&uid);
    node.wait_for_kill();
    assert!(fs::read_to_string(&file).unwrap().starts_with('0'));
}

#[test]
fn a_hold_ends_with_the_pod_in_the_api_and_when_its_report_is_given_up() {
    let gone = |uid: &PodUid| {
        ClusterEvent::Change(ClusterChange {
            gone: vec![uid.clone()],
            ..ClusterChange::default()
        })
    };
    let settled = |how| {
        move |uid: &PodUid| ClusterEvent::Settled {
            uid: uid.clone(),
            how,
        }
    };
    type Say<'a> = &'a dyn Fn(&PodUid) -> ClusterEvent;
    let cases: [(Say<'_>, &str); 4] = [
        (&gone, "max"),
        (&settled(Settled::Gone), "max"),
        (&settled(Settled::GivenUp), "max"),
        (&settled(Settled::Shown), "0"),
    ];
    for (event, expected) in cases {
        let (mut node, uid, file) = held();
        node.agent.cluster_event(event(&uid)).unwrap();
        wait_for_lifts(&mut node);
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            expected,
            "{:?}",
            event(&uid)
        );
    }
}

/// A SIGTERM after two seconds would be an eviction that the budget has just refused.
#[test]
fn a_refused_eviction_is_not_begun_for_want_of_an_answer() {
    let (mut node, uid, _) = held();
    let by_ns = now_ns() + ACKNOWLEDGE_NS;
    let evicted = work(&mut node).evicted.entry(uid.clone()).or_default();
    evicted.acknowledge_by_ns = Some(by_ns);
    let refused = ClusterEvent::Refused { uid: uid.clone() };
    node.agent.hurry = false;
    node.agent.cluster_event(refused.clone()).unwrap();
    assert_eq!(work(&mut node).evicted[&uid].acknowledge_by_ns, None);
    assert!(!node.agent.hurry, "it is held: too late to take back");
    work(&mut node)
        .evicted
        .insert(uid.clone(), Evicted::default());
    node.agent.cluster_event(refused).unwrap();
    assert!(node.agent.hurry, "another pod may have to go");
}

/// What `plimsoll-cluster` alone was told to do.
#[test]
fn budgets_that_the_engine_does_not_go_by_are_said_once() {
    let mut node = Node::with(Cgroup::V2, true);
    let lists = |budgets| {
        ClusterEvent::Change(ClusterChange {
            budgets,
            ..ClusterChange::default()
        })
    };
    node.agent.cluster_event(lists(Vec::new())).unwrap();
    assert!(!work(&mut node).is_unused_budgets_said);
    let budget = || vec![Arc::new(DisruptionBudget::default())];
    node.agent.cluster_event(lists(budget())).unwrap();
    assert!(work(&mut node).is_unused_budgets_said);
    let mut config = node.agent.engine.config().clone();
    config.options.disruption_budgets = true;
    node.agent.engine = Engine::new(config);
    work(&mut node).is_unused_budgets_said = false;
    node.agent.cluster_event(lists(budget())).unwrap();
    assert!(!work(&mut node).is_unused_budgets_said);
}

#[test]
fn after_a_sigterm_of_ours_a_refusal_comes_too_late() {
    let mut node = Node::with(Cgroup::V2, true);
    node.timer();
    node.rest();
    let uid = PodUid::new(format!("uid-{VICTIM}"));
    let by_ns = now_ns();
    let evicted = Evicted {
        acknowledge_by_ns: Some(by_ns),
        ..Evicted::default()
    };
    assert!(!evicted.is_begun());
    work(&mut node).evicted.insert(uid.clone(), evicted);
    node.agent.end_unacknowledged(by_ns);
    assert!(work(&mut node).evicted[&uid].is_begun());
}

#[test]
fn a_withdrawn_eviction_is_forgotten() {
    let (mut node, uid, _) = held();
    let decision = Decision::Withdraw { uid: uid.clone() };
    let event = Event {
        at_ns: now_ns(),
        kind: EventKind::EvictionRefused { uid: uid.clone() },
    };
    node.agent.report_decision(&event, &decision);
    assert!(!work(&mut node).evicted.contains_key(&uid));
}

#[test]
fn conditions_of_the_engine_are_reported_and_the_kubelets_are_not() {
    let mut node = Node::with(Cgroup::V2, true);
    node.agent.begin_kubelet();
    let event = Event {
        at_ns: now_ns(),
        kind: EventKind::PodsListed,
    };
    for condition in NodeCondition::ALL {
        let status = true;
        let decision = Decision::Condition { condition, status };
        node.agent.report_decision(&event, &decision);
    }
    let shown = work(&mut node).conditions.iter();
    let shown: Vec<_> = shown.map(|one| (one.condition, one.status)).collect();
    let expected = [
        (PlimsollCondition::MemoryPressure, true),
        (PlimsollCondition::Stalled, true),
        (PlimsollCondition::Degraded, false),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn a_node_is_degraded_while_nothing_is_placed() {
    let mut node = Node::with(Cgroup::V2, true);
    node.agent.begin_kubelet();
    let degraded = |node: &mut Node| {
        let mut conditions = work(node).conditions.iter();
        let found = conditions.find(|one| one.condition == PlimsollCondition::Degraded);
        found.map(|one| (one.status, one.message.clone())).unwrap()
    };
    let (calm, message) = degraded(&mut node);
    assert!(!calm, "{message}");
    for why in ["the state is not there", "the kubelet places"] {
        node.agent.say_no_placement(Some(why.to_owned()));
        assert_eq!(degraded(&mut node), (true, why.to_owned()));
    }
    node.agent.say_no_placement(None);
    assert_eq!(degraded(&mut node), (false, message));
}

#[test]
fn a_condition_names_the_first_loss_and_counts_the_others() {
    let lost = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
    assert_eq!(losses_in_short(&[]), None);
    assert_eq!(losses_in_short(&lost[..1]).as_deref(), Some("a"));
    let others = " more: kubectl plimsoll check NODE)";
    assert_eq!(
        losses_in_short(&lost[..2]),
        Some(format!("a (and 1{others}"))
    );
    assert_eq!(losses_in_short(&lost), Some(format!("a (and 2{others}")));
}

/// The message of an eviction names the container that used the memory.
#[test]
fn the_pods_usage_is_its_containers_only_while_no_init_container_runs() {
    let running = json!({"running": {"startedAt": "2026-11-23T00:00:00Z"}});
    let ended = json!({"terminated": {"exitCode": 0}});
    let init = |state: &Value| json!([{"name": "setup", "state": state}]);
    let setup = json!([{"name": "setup"}]);
    let app = json!([{"name": "app"}]);
    let cases = [
        (&app, json!([]), json!([]), Some("app")),
        (&app, setup.clone(), init(&ended), Some("app")),
        (&app, setup.clone(), init(&running), None),
        (&app, setup, json!([]), None),
        (
            &json!([{"name": "app"}, {"name": "b"}]),
            json!([]),
            json!([]),
            None,
        ),
    ];
    for (containers, init, statuses, expected) in cases {
        let pod = json!({"spec": {"containers": containers, "initContainers": init},
            "status": {"initContainerStatuses": statuses}});
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let found = only_container(&pod).map(|container| container.name.as_str());
        assert_eq!(found, expected, "{pod:?}");
    }
}

#[test]
fn a_pod_without_a_name_is_not_known_before_names_had_their_time() {
    let mut node = Node::with(Cgroup::V2, true);
    (node.agent.tally.pods_listed, node.agent.tally.pods_watched) = (false, false);
    node.agent.started_ns = now_ns();
    assert!(!node.agent.has_names());
    node.agent.follow_kubelet_tree();
    assert!(!node.agent.tally.pods_watched);
    node.agent.started_ns -= NAMES_WITHIN_NS;
    assert!(node.agent.has_names(), "the API server is silent");
    // A control plane that is away makes no agent unready.
    node.agent.follow_kubelet_tree();
    assert!(node.agent.tally.pods_watched);
    node.agent.started_ns = now_ns();
    node.agent.tally.pods_listed = true;
    assert!(node.agent.has_names());
}

/// Held for ten minutes with the API server well, a pod is not let go because plimsoll-cluster is started anew.
#[test]
fn holds_end_by_the_time_since_the_api_server_last_answered() {
    let mut node = Node::with(Cgroup::V2, true);
    let began_ns = now_ns();
    let lost = || ClusterEvent::Lost { why: "x".into() };
    (
        work(&mut node).is_api_reachable,
        work(&mut node).api_answered_ns,
    ) = (true, 1);
    node.agent.cluster_event(lost()).unwrap();
    let answered_ns = work(&mut node).api_answered_ns;
    assert!(answered_ns >= began_ns && !work(&mut node).is_api_reachable);
    // It was away already, and whoever connects next says so.
    node.agent.cluster_event(lost()).unwrap();
    let event = ClusterEvent::Api {
        is_reachable: false,
    };
    node.agent.cluster_event(event).unwrap();
    assert_eq!(work(&mut node).api_answered_ns, answered_ns);
}

#[test]
fn what_the_kubelet_ends_is_waited_for_and_a_soft_eviction_once() {
    let mut node = Node::with(Cgroup::V2, true);
    node.timer();
    node.rest();
    let uid = PodUid::new(format!("uid-{VICTIM}"));
    let soft = Evicted {
        acknowledge_by_ns: Some(7),
        ..Evicted::default()
    };
    work(&mut node).evicted.insert(uid.clone(), soft);
    assert_eq!(work(&mut node).at_ns(), Some(7));
    let pod = node.agent.pods.pod(&uid).unwrap().clone();
    let change = ClusterChange {
        pods: vec![ClusterPod {
            pod,
            is_leaving: true,
        }],
        ..ClusterChange::default()
    };
    node.agent
        .cluster_event(ClusterEvent::Change(change))
        .unwrap();
    assert!(node.agent.engine.state().pods[&uid].leaving.is_some());
    assert_eq!(work(&mut node).at_ns(), None, "acknowledged: no SIGTERM");
}

/// On v1 nothing holds it, and its kubelet starts its containers again while the API server is away.
#[test]
fn what_an_agent_before_has_killed_is_killed_again() {
    let mut node = Node::with(Cgroup::V2, true);
    node.timer();
    node.rest();
    let [killed, soft] = [VICTIM, VICTIM + 1].map(|at| PodUid::new(format!("uid-{at}")));
    let left = LeftBehind {
        unsettled: [killed.clone(), soft.clone()].into(),
        killed: [killed].into(),
        ..LeftBehind::default()
    };
    *work(&mut node) = KubeletWork::new(None, None, Vec::new(), left, Vec::new());
    node.agent.follow_up_kubelet();
    node.wait_for_kill();
    let kill = |at| {
        pod_dir(&node.host, Cgroup::V2, at)
            .join(container_id('1'))
            .join("cgroup.kill")
    };
    let written = |at| fs::read_to_string(kill(at)).unwrap();
    assert_eq!(
        (written(VICTIM), written(VICTIM + 1)),
        ("1".into(), "".into())
    );
}
