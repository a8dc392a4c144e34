//! Many evictions at once, and what is said about them.

use serde_json::{Value, json};

use plimsoll_core::protocol::cluster_link::OverusedNamespace;

use super::*;
use crate::call::{Refusal, Verb};
use crate::pod::tests::api_pod;

const T_MS: u64 = 1_795_341_600_000;

fn now(mono_ms: u64) -> Now {
    Now {
        mono_ms,
        unix_ms: T_MS + mono_ms,
    }
}

fn intent(uid: &str) -> EvictionIntent {
    serde_json::from_value(json!({
        "uid": uid, "namespace": "shop", "name": format!("name-{uid}"), "decidedUnixMs": T_MS, "signal": "memory.available",
        "message": "m", "rank": 1, "ranked": 2, "graceS": 0, "isHeld": true, "starvedResource": "memory",
        "offendingContainers": "app", "offendingContainersUsage": "1Gi",
    }))
    .unwrap()
}

/// What the agent sends of a pod that it has evicted.
fn evicted(uid: &str) -> ToCluster {
    ToCluster::Evicted {
        intent: Box::new(intent(uid)),
        is_let_go: false,
    }
}

/// Pods `u0` to `uN`, running.
fn store(pods: usize) -> Store {
    let mut store = Store::new("node-1", false);
    store.list();
    for at in 0..pods {
        store.saw(api_pod(&format!("u{at}"), "1").to_string().as_bytes());
    }
    store.listed();
    store
}

fn reporter(policy: Policy) -> Reporter {
    let mut reporter = Reporter::new("node-1", policy, 7);
    reporter.saw_node(
        SeenNode {
            name: "node-1".into(),
            uid: "nu".into(),
            kubelet_version: "v1.36.2".into(),
            ..SeenNode::default()
        },
        now(0),
    );
    reporter.heard();
    reporter.outgoing();
    reporter
}

/// The pod as the API server answers to a report: its object with the patch in it.
fn answer_of(call: &Call) -> Answer {
    let patch: Value = serde_json::from_slice(&call.body).unwrap_or_default();
    let Some(uid) = patch["metadata"]["uid"].as_str() else {
        return Answer::Done(b"{}".to_vec());
    };
    let mut pod = api_pod(uid, "2");
    pod["status"]["phase"] = patch["status"]["phase"].clone();
    pod["status"]["reason"] = patch["status"]["reason"].clone();
    pod["metadata"]["annotations"] = patch["metadata"]["annotations"].clone();
    Answer::Done(pod.to_string().into_bytes())
}

#[test]
fn an_eviction_from_the_intent_to_the_agents_word() {
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(2));
    reporter.from_agent(evicted("u1"), now(0));
    assert_eq!(reporter.figures(now(5)).oldest_unreported_ms, 5);
    let (target, call) = reporter.next(&pods, now(5)).unwrap();
    assert_eq!((call.verb, call.resource), (Verb::Patch, "pods/status"));
    assert!(reporter.next(&pods, now(5)).is_none());
    reporter.answered(&target, &answer_of(&call), &mut pods, now(20));
    assert_eq!(
        reporter.outgoing(),
        [ToAgent::Reported { uid: "u1".into() }]
    );
    assert_eq!(reporter.figures(now(30)).unreported, 0);
    // Then the Event, which says that the pod is held.
    let (target, call) = reporter.next(&pods, now(21)).unwrap();
    assert_eq!((call.verb, call.resource), (Verb::Post, "events"));
    let body: Value = serde_json::from_slice(&call.body).unwrap();
    assert_eq!(
        body["note"],
        "m The pod is held: nothing can start in it until its end is shown here."
    );
    assert_eq!(
        body["metadata"]["annotations"]["offending_containers"],
        "app"
    );
    // The kubelet has finished; the intent is settled when its Event is written.
    reporter.from_agent(ToCluster::CgroupGone { uid: "u1".into() }, now(3_000));
    assert!(reporter.next(&pods, now(3_000)).is_none());
    assert!(reporter.outgoing().is_empty());
    reporter.answered(
        &target,
        &Answer::Done(b"{}".to_vec()),
        &mut pods,
        now(3_100),
    );
    assert!(reporter.next(&pods, now(3_200)).is_none());
    assert_eq!(
        reporter.outgoing(),
        [ToAgent::Settled {
            uid: "u1".into(),
            how: Settled::Shown
        }]
    );
    assert!(!reporter.is_busy(now(3_200)));
}

/// The agent had only seen its cgroup.
#[test]
fn the_event_of_a_pod_without_a_name_is_where_the_api_has_the_pod() {
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(2));
    let mut intent = intent("u1");
    (intent.namespace, intent.name) = ("-".into(), "u1".into());
    let intent = Box::new(intent);
    reporter.from_agent(
        ToCluster::Evicted {
            intent,
            is_let_go: false,
        },
        now(0),
    );
    let (target, call) = reporter.next(&pods, now(5)).unwrap();
    reporter.answered(&target, &answer_of(&call), &mut pods, now(20));
    let (_, call) = reporter.next(&pods, now(21)).unwrap();
    assert_eq!(call.resource, "events");
    assert!(call.path.contains("/namespaces/shop/"), "{}", call.path);
    let body: Value = serde_json::from_slice(&call.body).unwrap();
    assert_eq!(body["regarding"]["name"], "name-u1");
}

#[test]
fn a_thousand_intents_are_told_once_each_and_not_too_fast() {
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(INTENTS_MAX));
    for at in 0..INTENTS_MAX + 10 {
        reporter.from_agent(evicted(&format!("u{at}")), now(0));
    }
    assert_eq!(reporter.figures(now(0)).intents_refused, 10);
    let mut reported: BTreeMap<PodUid, u32> = BTreeMap::new();
    let (mut sent_at, mut settled) = (Vec::new(), 0);
    let mut at = 0;
    while settled < INTENTS_MAX {
        at += 100;
        assert!(at < 3_600_000, "{settled} are settled");
        // The API server comes and goes every 2 s.
        let is_up = at / 2_000 % 2 == 1;
        while let Some((target, call)) = reporter.next(&pods, now(at)) {
            sent_at.push(at);
            let answer = if is_up {
                answer_of(&call)
            } else {
                Answer::Lost("down".into())
            };
            if let (Target::Eviction(uid, _), true) = (&target, is_up) {
                *reported.entry(uid.clone()).or_default() += 1;
            }
            reporter.answered(&target, &answer, &mut pods, now(at));
        }
        for frame in reporter.outgoing() {
            match frame {
                ToAgent::Reported { uid } => {
                    reporter.from_agent(ToCluster::CgroupGone { uid }, now(at))
                }
                ToAgent::Settled { how, .. } => {
                    assert_eq!(how, Settled::Shown);
                    settled += 1;
                }
                _ => {}
            }
        }
    }
    assert!(reported.len() == INTENTS_MAX && reported.values().all(|times| *times == 1));
    for window in sent_at.windows(11) {
        assert!(
            window[10] - window[0] >= 1_000,
            "more than 10 within a second at {}",
            window[0]
        );
    }
    assert!(
        reporter.figures(now(at)).events_dropped > 0,
        "25 Events in a burst"
    );
}

#[test]
fn one_pod_that_cannot_be_told_holds_up_no_other() {
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(4));
    for uid in ["u0", "u1", "u2"] {
        reporter.from_agent(evicted(uid), now(0));
    }
    let mut reported = BTreeSet::new();
    for at in (0..20_000).step_by(50) {
        while let Some((target, call)) = reporter.next(&pods, now(at)) {
            // A webhook fails for one of them.
            let fails = call.path.contains("name-u0/");
            let answer = if fails {
                Answer::Refused(Refusal {
                    code: 500,
                    ..Refusal::default()
                })
            } else {
                answer_of(&call)
            };
            if let (Target::Eviction(uid, _), false) = (&target, fails) {
                reported.insert(uid.clone());
            }
            reporter.answered(&target, &answer, &mut pods, now(at));
        }
    }
    assert_eq!(reported.len(), 2);
    // Nor does it say anything about the API server.
    assert!(reporter.check_reach(now(20_000)));
    assert_eq!(reporter.figures(now(20_000)).unreported, 1);
}

#[test]
fn a_success_that_shows_no_pod_is_none() {
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(1));
    reporter.from_agent(evicted("u0"), now(0));
    let mut at = 0;
    for garbage in [&b"<html>log in</html>"[..], b"", b"{}", b"[]"] {
        at += 100_000;
        let (target, _) = reporter.next(&pods, now(at)).unwrap();
        reporter.answered(&target, &Answer::Done(garbage.to_vec()), &mut pods, now(at));
        assert_eq!(reporter.figures(now(at)).unreported, 1);
    }
    assert!(reporter.outgoing().is_empty());
}

#[test]
fn withdrawn_sent_again_and_gone() {
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(2));
    reporter.from_agent(evicted("u0"), now(0));
    reporter.from_agent(ToCluster::Withdrawn { uid: "u0".into() }, now(1));
    assert!(reporter.next(&pods, now(2)).is_none());
    // A pod that the API does not have: the Event alone.
    reporter.from_agent(evicted("away"), now(3));
    assert!(reporter.next(&pods, now(3)).is_none() && reporter.outgoing().is_empty());
    assert!(reporter.wants_list(&pods), "it may be newer than the list");
    reporter.list_begins(None);
    reporter.list_ends();
    assert!(reporter.wants_list(&pods), "it may be newer than a cache");
    assert!(reporter.next(&pods, now(4)).is_none());
    reporter.list_begins(Some(4));
    assert!(!reporter.wants_list(&pods));
    assert!(reporter.next(&pods, now(4)).is_none());
    reporter.list_ends();
    let (target, call) = reporter.next(&pods, now(4)).unwrap();
    assert_eq!(call.resource, "events");
    reporter.answered(&target, &Answer::Done(b"{}".to_vec()), &mut pods, now(5));
    reporter.next(&pods, now(6));
    assert_eq!(
        reporter.outgoing(),
        [ToAgent::Settled {
            uid: "away".into(),
            how: Settled::Gone
        }]
    );
    // Sent again after a connection: it goes on where it is, and what is told cannot be withdrawn.
    reporter.from_agent(evicted("u1"), now(7));
    let (target, call) = reporter.next(&pods, now(200)).unwrap();
    reporter.answered(&target, &answer_of(&call), &mut pods, now(210));
    reporter.from_agent(evicted("u1"), now(220));
    reporter.from_agent(ToCluster::Withdrawn { uid: "u1".into() }, now(230));
    assert_eq!(reporter.figures(now(230)).unsettled, 1);
    assert_eq!(reporter.figures(now(230)).unreported, 0);
}

#[test]
fn a_withdrawal_is_not_lost_while_the_api_server_is_asked_or_nothing_is_connected() {
    let hello = ToCluster::Hello {
        protocol: plimsoll_core::protocol::cluster_link::PROTOCOL,
        unreported: 0,
        soft_grace_s: None,
    };
    let withdrawn = ToCluster::Withdrawn { uid: "u0".into() };
    let evicted = evicted("u0");
    let budget = Answer::Refused(Refusal {
        code: 503,
        ..Refusal::default()
    });
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(1));
    reporter.from_agent(evicted.clone(), now(0));
    let (target, _) = reporter.next(&pods, now(1)).unwrap();
    reporter.from_agent(withdrawn, now(2));
    assert_eq!(
        reporter.figures(now(2)).unsettled,
        1,
        "the answer is on its way"
    );
    reporter.answered(&target, &budget, &mut pods, now(3));
    assert_eq!(reporter.figures(now(3)).unsettled, 0);

    // The agent has struck it from its list meanwhile.
    reporter.from_agent(evicted.clone(), now(10));
    reporter.from_agent(hello.clone(), now(11));
    assert!(reporter.next(&pods, now(30_000)).is_none());
    // And here it has not.
    reporter.from_agent(hello, now(30_001));
    reporter.from_agent(evicted, now(30_002));
    assert!(reporter.next(&pods, now(30_003)).is_some());
}

#[test]
fn kept_pods_are_deleted_when_their_time_is_over() {
    let policy = Policy {
        evicted_pods: policy::EvictedPods::KeepSome {
            per_owner: 0,
            for_ms: 1,
        },
        ..Policy::default()
    };
    let (mut reporter, mut pods) = (reporter(policy), store(1));
    let mut old = api_pod("old", "1");
    old["status"]["phase"] = json!("Failed");
    old["metadata"]["annotations"] = json!({"plimsoll.dev/evicted": "2026-11-22T09:00:00.000Z x"});
    pods.saw(old.to_string().as_bytes());
    let (target, call) = reporter.next(&pods, now(0)).unwrap();
    assert_eq!(
        (call.verb, &target),
        (Verb::Delete, &Target::Kept("old".into()))
    );
    let forbidden = Answer::Refused(Refusal {
        code: 403,
        ..Refusal::default()
    });
    reporter.answered(&target, &forbidden, &mut pods, now(1));
    assert!(
        reporter.next(&pods, now(9_999)).is_none(),
        "not before the next round"
    );
    let (target, _) = reporter.next(&pods, now(10_001)).unwrap();
    reporter.answered(
        &target,
        &Answer::Done(b"{}".to_vec()),
        &mut pods,
        now(10_002),
    );
    assert!(reporter.next(&pods, now(30_000)).is_none() && pods.get(&"old".into()).is_none());
    let gone = ToAgent::PodGone { uid: "old".into() };
    assert!(
        reporter.outgoing().contains(&gone),
        "the agent hears of it from nobody else"
    );
}

#[test]
fn the_agent_hears_whether_the_api_server_answers() {
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(1));
    reporter.from_agent(evicted("u0"), now(0));
    let mut at = 0;
    while reporter.check_reach(now(at)) {
        if let Some((target, _)) = reporter.next(&pods, now(at)) {
            reporter.answered(&target, &Answer::Lost("refused".into()), &mut pods, now(at));
        }
        at += 100;
    }
    assert_eq!(at, 5_000);
    assert_eq!(
        reporter.outgoing(),
        [ToAgent::Api {
            is_reachable: false
        }]
    );
    // The watch is back: what waited for the back-off goes at once where it may.
    reporter.heard();
    assert_eq!(reporter.outgoing(), [ToAgent::Api { is_reachable: true }]);
    assert_eq!(reporter.greeting(now(0)).len(), 3);
}

/// The agent lifts its holds when the API server has not answered for ten minutes: who does not take the token hears
/// nothing.
#[test]
fn a_token_that_is_not_taken_is_no_answer() {
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(1));
    reporter.from_agent(evicted("u0"), now(0));
    let unauthorized = Answer::Refused(Refusal {
        code: 401,
        reason: "Unauthorized".into(),
        ..Refusal::default()
    });
    let mut tries = 0;
    for at in (0..300_000).step_by(100) {
        if let Some((target, _)) = reporter.next(&pods, now(at)) {
            reporter.answered(&target, &unauthorized, &mut pods, now(at));
            tries += 1;
        }
        assert_eq!(reporter.check_reach(now(at)), at < 5_000, "{at}");
    }
    assert!(tries > 5);
}

#[test]
fn the_agent_hears_who_uses_too_much_once_and_for_as_long_as_it_holds() {
    let mut reporter = reporter(Policy::default());
    let node = |list: Option<&str>| {
        let object = json!({"metadata": {"name": "node-1", "uid": "nu", "resourceVersion": "1", "annotations": {"plimsoll.dev/overused": list}},
            "status": {"nodeInfo": {"kubeletVersion": "v1.36.2"}}});
        SeenNode::read(object.to_string().as_bytes()).unwrap()
    };
    let heard = |valid_ms, namespaces: &[(&str, u16)]| ToAgent::Overused {
        valid_ms,
        namespaces: namespaces
            .iter()
            .map(|(namespace, excess)| OverusedNamespace {
                namespace: (*namespace).to_owned(),
                excess: *excess,
            })
            .collect(),
    };
    let list = r#"{"at":"2026-11-22T10:00:00Z","namespaces":{"a":30,"b":7}}"#;
    reporter.saw_node(node(Some(list)), now(5_000));
    let both = [("a", 30), ("b", 7)];
    assert_eq!(reporter.outgoing(), [heard(55_000, &both)]);
    reporter.saw_node(node(Some(list)), now(6_000));
    assert_eq!(reporter.outgoing(), []);
    // An agent that comes later hears what is left of it.
    let greeting = |reporter: &Reporter, at| reporter.greeting(now(at)).pop();
    assert_eq!(greeting(&reporter, 59_000), Some(heard(1_000, &both)));
    assert_eq!(greeting(&reporter, 60_000), Some(heard(0, &[])));
    reporter.saw_node(node(Some("{}")), now(7_000));
    assert_eq!(reporter.outgoing(), [heard(0, &[])]);
    // Of a clock that is far ahead.
    let list = r#"{"at":"2126-11-22T10:00:00Z","namespaces":{"a":30}}"#;
    reporter.saw_node(node(Some(list)), now(8_000));
    assert_eq!(reporter.outgoing(), [heard(0, &[])]);
}

#[test]
fn what_an_agent_withheld_ends_with_it() {
    let (mut reporter, mut pods) = (reporter(Policy::default()), store(0));
    let condition = json!({"condition": "memory_pressure", "status": true, "reason": "R", "message": "m", "sinceUnixMs": T_MS});
    let conditions = vec![serde_json::from_value(condition).unwrap()];
    reporter.from_agent(ToCluster::Withheld { memory_bytes: 4096 }, now(0));
    reporter.from_agent(ToCluster::Conditions { conditions }, now(0));
    let mut written = |reporter: &mut Reporter, at| loop {
        let (target, call) = reporter.next(&pods, now(at))?;
        let node = br#"{"metadata": {"name": "node-1", "uid": "nu", "resourceVersion": "1"}}"#;
        reporter.answered(&target, &Answer::Done(node.to_vec()), &mut pods, now(at));
        if matches!(target, Target::Node(_)) {
            let body: Value = serde_json::from_slice(&call.body).unwrap();
            return Some(body["metadata"]["annotations"]["plimsoll.dev/withheld"].is_string());
        }
    };
    assert_eq!(written(&mut reporter, 0), Some(true));
    assert_eq!(written(&mut reporter, 1_000), None);
    reporter.lost_agent(now(1_500));
    assert_eq!(written(&mut reporter, 2_000), Some(false));
}

/// A controller that keeps to one pod at a time goes by the phase.
#[test]
fn a_grace_that_the_status_does_not_wait_for_is_said_once_and_so_is_one_that_is_not_there() {
    let said = |evict_by, soft_grace_s| {
        let mut reporter = reporter(Policy {
            evict_by,
            ..Policy::default()
        });
        let hello = ToCluster::Hello {
            protocol: plimsoll_core::protocol::cluster_link::PROTOCOL,
            unreported: 0,
            soft_grace_s,
        };
        let mut words = Vec::new();
        // The agent comes, goes, and is back.
        for _ in 0..2 {
            reporter.from_agent(hello.clone(), now(0));
            words.extend(reporter.words());
        }
        words
    };
    let words = said(EvictBy::Status, Some(60));
    assert_eq!(words.len(), 1, "{words:?}");
    for part in ["60 s", "--evict-by EvictionAPI"] {
        assert!(words[0].contains(part), "{words:?}");
    }
    assert!(said(EvictBy::Status, None).is_empty());
    assert!(said(EvictBy::Status, Some(0)).is_empty());
    assert!(said(EvictBy::EvictionApi, Some(60)).is_empty());
    // No budget would ever be asked.
    let words = said(EvictBy::EvictionApi, Some(0));
    assert_eq!(words.len(), 1, "{words:?}");
    assert!(words[0].contains("set evictionMaxPodGracePeriod"));
    assert!(said(EvictBy::EvictionApi, None).is_empty());
}
