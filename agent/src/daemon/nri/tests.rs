use std::sync::mpsc::Receiver;

use plimsoll_core::model::event::EventKind;
use plimsoll_core::protocol::cluster_link::Settled;
use plimsoll_core::protocol::runtime_link::{Adjustment, Answer};

use super::*;
use crate::act::oom_order::OomOrdering;
use crate::daemon::now_ns;
use crate::daemon::placement::tests::place_on;
use crate::daemon::tests::{Cgroup, Node, VICTIM};
use crate::source::cluster::{ClusterChange, ClusterEvent, ClusterPod};

/// A node with a kubelet's pods, and what the thread for NRI would be given.
fn node() -> (Node, Receiver<NriChange>) {
    let mut node = Node::with(Cgroup::V2, true);
    let (link, changes) = NriLink::without_thread();
    node.agent.nri = Some(NriWork::new(link));
    node.timer();
    node.rest();
    (node, changes)
}

fn victim() -> PodUid {
    PodUid::new(format!("uid-{VICTIM}"))
}

/// Gives the victim a place in the order.
fn order(node: &mut Node, adj: i32) {
    let scores = node.agent.oom.scores.as_mut().unwrap();
    scores.order(&victim(), "c", Some(adj));
    node.agent.note_nri(&victim());
}

/// The newest answers of a pod in the queue.
fn newest(changes: &Receiver<NriChange>, uid: &PodUid) -> Option<PodAnswers> {
    let of_pod = changes.try_iter().filter_map(|change| match change {
        NriChange::Pod { uid: of, answers } if of == *uid => Some(answers),
        _ => None,
    });
    of_pod.last()
}

#[test]
fn the_scores_of_the_order_are_sent_once_for_each_change() {
    let (mut node, changes) = node();
    // The plan of a moment ago knew no cgroups yet.
    let mounts = node.host.cgroup_mounts().unwrap();
    node.agent.oom.order = Some(OomOrdering::open(&node.host, &mounts).unwrap());
    node.agent.order_oom_scores().unwrap();
    node.agent.send_answers();
    let scores = node.agent.oom.scores.as_ref().unwrap();
    let ordered = scores.ordered(&victim()).unwrap().clone();
    assert_eq!(ordered.keys().collect::<Vec<_>>(), ["c"]);
    let answers = newest(&changes, &victim()).unwrap();
    assert_eq!(answers.oom_score_adj, ordered);
    assert_eq!(answers.refusal, None);
    node.agent.note_nri(&victim());
    node.agent.send_answers();
    assert_eq!(changes.try_iter().count(), 0);

    order(&mut node, -5);
    node.agent.send_answers();
    let answers = newest(&changes, &victim()).unwrap();
    assert_eq!(answers.oom_score_adj["c"], -5);
}

#[test]
fn scores_stay_the_kubelets_without_an_order() {
    let (mut node, changes) = node();
    changes.try_iter().for_each(drop);
    node.agent.oom.order = None;
    order(&mut node, -5);
    node.agent.send_answers();
    assert!(newest(&changes, &victim()).unwrap_or_default().is_empty());
}

#[test]
fn containers_of_a_held_pod_are_refused_until_it_is_let_go() {
    let (mut node, changes) = node();
    node.agent.send_answers();
    changes.try_iter().for_each(drop);
    node.agent.hold(&victim());
    // As at the end of the turn that has killed it.
    node.agent.follow_up_features();
    let refusal = newest(&changes, &victim()).unwrap().refusal;
    assert_eq!(refusal.as_deref(), Some(EVICTED));
    node.agent.follow_up_features();
    assert_eq!(newest(&changes, &victim()), None);

    node.wait_for_kill();
    let settled = ClusterEvent::Settled {
        uid: victim(),
        how: Settled::GivenUp,
    };
    node.agent.cluster_event(settled).unwrap();
    node.agent.follow_up_features();
    assert_eq!(newest(&changes, &victim()).unwrap().refusal, None);
}

/// A turn of the loop asks twice.
#[test]
fn answers_are_made_only_where_something_may_have_changed() {
    let (mut node, changes) = node();
    let _dir = place_on(&mut node, true);
    let uid = PodUid::from("held");
    let pod = crate::daemon::placement::tests::pod(uid.as_str(), 2, Some("a"));
    node.agent.apply(pod, "");
    node.agent
        .handle_event(EventKind::PodRunning { uid: uid.clone() });
    node.agent.send_answers();
    let noted = |node: &mut Node| {
        node.agent.note_what_may_differ();
        let work = node.agent.nri.as_mut().unwrap();
        std::mem::take(&mut work.changed)
    };
    assert_eq!(noted(&mut node), BTreeSet::new());
    // It is in force.
    let number = node.agent.placement.as_ref().unwrap().number();
    let applied = || crate::act::placement::Report::Applied {
        number,
        outcome: Box::default(),
    };
    node.agent.placement_reported(applied());
    node.agent.send_answers();
    let places = newest(&changes, &uid).unwrap().places;
    assert_eq!(places["c"].cpus.as_deref(), Some("1,9"));
    assert_eq!(noted(&mut node), BTreeSet::new());
    node.agent.placement_reported(applied());
    assert_eq!(noted(&mut node), BTreeSet::new(), "it was so before");
    node.agent
        .handle_event(EventKind::PodRemoved { uid: uid.clone() });
    node.agent
        .handle_event(EventKind::PodEmpty { uid: uid.clone() });
    node.agent.give_back();
    node.agent.send_answers();
    assert!(newest(&changes, &uid).unwrap().is_empty());
    assert_eq!(noted(&mut node), BTreeSet::new());
}

#[test]
fn a_pod_that_has_gone_needs_no_answer() {
    let (mut node, changes) = node();
    node.agent.send_answers();
    changes.try_iter().for_each(drop);
    let gone = PodUid::from("gone");
    let answers = PodAnswers {
        refusal: Some(String::new()),
        ..PodAnswers::default()
    };
    let work = node.agent.nri.as_mut().unwrap();
    work.sent.insert(gone.clone(), answers);
    node.agent.rescan_nri();
    node.agent.send_answers();
    assert_eq!(newest(&changes, &gone), Some(PodAnswers::default()));
    let work = node.agent.nri.as_ref().unwrap();
    assert!(!work.sent.contains_key(&gone));
}

#[test]
fn what_finds_no_room_is_sent_later() {
    let (mut node, changes) = node();
    let work = node.agent.nri.as_mut().unwrap();
    let filler = NriChange::Pod {
        uid: PodUid::from("filler"),
        answers: PodAnswers::default(),
    };
    while work.link.set(filler.clone()) {}
    order(&mut node, -5);
    node.agent.send_answers();
    assert!(!node.agent.nri.as_ref().unwrap().changed.is_empty());
    changes.try_iter().for_each(drop);
    node.agent.send_answers();
    assert!(newest(&changes, &victim()).is_some());
    assert!(node.agent.nri.as_ref().unwrap().changed.is_empty());
}

#[test]
fn what_the_runtime_says_is_counted_and_leads_to_a_look() {
    let (mut node, _changes) = node();
    let asked = |node: &mut Node| {
        let Agent { rescans, pods, .. } = &mut node.agent;
        rescans.take(now_ns(), pods, true)
    };
    asked(&mut node);
    let made = |answer| FromNri::Container {
        pod_uid: victim().as_str().to_owned(),
        name: "c".to_owned(),
        id: "f".repeat(64),
        answer,
        is_foreign: false,
    };
    node.agent.nri_event(FromNri::Connected {
        runtime: "containerd 2".to_owned(),
    });
    assert_eq!(
        asked(&mut node),
        node.agent.pods.uids(),
        "those made before"
    );
    for answer in [
        Answer::Unchanged,
        Answer::Adjusted(Box::new(Adjustment {
            oom_score_adj: Some(1),
            ..Adjustment::default()
        })),
        Answer::Refused(String::new()),
        Answer::Unchanged,
    ] {
        node.agent.nri_event(made(answer));
    }
    assert!(asked(&mut node).contains(&victim()));
    for answer in [Answer::Unchanged, Answer::Refused(String::new())] {
        node.agent.nri_event(FromNri::Update {
            pod_uid: victim().as_str().to_owned(),
            answer,
        });
    }
    assert!(
        !asked(&mut node).contains(&victim()),
        "what it writes is not there yet"
    );
    let pod_uid = victim().as_str().to_owned();
    node.agent.nri_event(FromNri::Updated { pod_uid });
    assert!(asked(&mut node).contains(&victim()));
    node.agent.nri_event(FromNri::Dropped { frames: 7 });
    assert_eq!(asked(&mut node), node.agent.pods.uids());
    let tally = node.agent.nri.as_ref().unwrap().tally();
    let expected = NriTally {
        is_connected: true,
        unchanged: 3,
        changed: 1,
        refused: 2,
        dropped: 7,
    };
    assert_eq!(tally, expected);
    node.agent.nri_event(FromNri::Away {
        why: "it hangs".to_owned(),
    });
    assert!(!node.agent.nri.as_ref().unwrap().tally().is_connected);
}

#[test]
fn a_container_that_the_runtime_tells_of_is_placed_before_the_api_names_it() {
    let (mut node, _changes) = node();
    let _dir = place_on(&mut node, true);
    let uid = PodUid::from("held");
    let pod = crate::daemon::placement::tests::pod(uid.as_str(), 2, None);
    node.agent.apply(pod, "");
    node.agent
        .handle_event(EventKind::PodRunning { uid: uid.clone() });
    node.rest();
    let number = |node: &Node| node.agent.placement.as_ref().unwrap().number();
    let before = number(&node);
    let started = |pod: &str| FromNri::Started {
        pod_uid: pod.to_owned(),
        name: "c".to_owned(),
        id: "f".repeat(64),
    };
    node.agent.nri_event(FromNri::Events { away: None });
    node.agent.nri_event(started("nobody"));
    node.agent.rescan_placement();
    assert_eq!(number(&node), before);
    node.agent.nri_event(started(uid.as_str()));
    node.agent.rescan_placement();
    assert_eq!(number(&node), before + 1, "it has a name by now");
    let asked = |node: &mut Node| {
        let Agent { rescans, pods, .. } = &mut node.agent;
        rescans.take(now_ns(), pods, true)
    };
    assert!(asked(&mut node).contains(&uid));
    let pod_uid = uid.as_str().to_owned();
    node.agent.nri_event(FromNri::Ended { pod_uid });
    assert!(asked(&mut node).contains(&uid));
    let away = Some("it is too old".to_owned());
    node.agent.nri_event(FromNri::Events { away: away.clone() });
    assert_eq!(node.agent.nri.as_ref().unwrap().no_events, away);
}

/// Its set may be another one than what is wanted when the runtime writes it.
#[test]
fn the_thread_is_told_what_the_runtime_was_answered() {
    let (mut node, _changes) = node();
    let _dir = place_on(&mut node, true);
    node.rest();
    let made = |adjustment| FromNri::Container {
        pod_uid: victim().as_str().to_owned(),
        name: "c".to_owned(),
        id: "f".repeat(64),
        answer: Answer::Adjusted(Box::new(adjustment)),
        is_foreign: false,
    };
    let number = |node: &Node| node.agent.placement.as_ref().unwrap().number();
    let before = number(&node);
    node.agent.nri_event(made(Adjustment {
        oom_score_adj: Some(1),
        ..Adjustment::default()
    }));
    node.agent.rescan_placement();
    assert_eq!(number(&node), before, "that is no set");
    for cpus in ["0-1", "0-1", "0"] {
        node.agent.nri_event(made(Adjustment {
            cpus: Some(cpus.to_owned()),
            ..Adjustment::default()
        }));
        node.agent.rescan_placement();
    }
    assert_eq!(number(&node), before + 2);
}

#[test]
fn a_container_of_another_plugin_is_left_alone_although_its_pod_is_not_known_yet() {
    let (mut node, _changes) = node();
    let _dir = place_on(&mut node, true);
    let uid = PodUid::from("new");
    let id = "f".repeat(64);
    node.agent.nri_event(FromNri::Container {
        pod_uid: uid.as_str().to_owned(),
        name: "c".to_owned(),
        id: id.clone(),
        answer: Answer::Unchanged,
        is_foreign: true,
    });
    node.rest();
    let pod = serde_json::json!({
        "metadata": {"name": "new", "namespace": "default", "uid": "new"},
        "spec": {"containers": [{"name": "c"}]},
    });
    let one = ClusterPod {
        pod: std::sync::Arc::new(serde_json::from_value(pod).unwrap()),
        is_leaving: false,
    };
    let change = ClusterChange {
        pods: vec![one],
        is_list: true,
        ..ClusterChange::default()
    };
    node.agent
        .cluster_event(ClusterEvent::Change(change))
        .unwrap();
    node.rest();
    let work = node.agent.placement.as_ref().unwrap();
    assert_eq!(work.foreign(&uid), [id].into());
}
