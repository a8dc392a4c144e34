use super::*;
use crate::call::Refusal;

fn now(mono_ms: u64) -> Now {
    Now {
        mono_ms,
        unix_ms: 1_795_341_600_000 + mono_ms,
    }
}

fn pressure(status: bool) -> NodeConditionReport {
    NodeConditionReport {
        condition: PlimsollCondition::MemoryPressure,
        status,
        reason: "Any".into(),
        message: "m".into(),
        since_unix_ms: 1_795_341_600_000,
    }
}

fn node(taints: &Value) -> SeenNode {
    let object = json!({
        "metadata": {"name": "n", "uid": "nu", "managedFields": []},
        "spec": {"taints": taints},
        "status": {"nodeInfo": {"kubeletVersion": "v1.36.2"}},
    });
    SeenNode::read(object.to_string().as_bytes()).unwrap()
}

fn body(call: &Call) -> Value {
    serde_json::from_slice(&call.body).unwrap()
}

#[test]
fn which_kubelets_heed_a_status() {
    for (version, heeds) in [
        ("v1.20.2", false),
        ("v1.21.14", false),
        ("v1.22.0", true),
        ("v1.36.2-eks-1", true),
        ("v2.0", true),
        ("", true),
        ("dev", true),
    ] {
        let node = SeenNode {
            kubelet_version: version.into(),
            ..SeenNode::default()
        };
        assert_eq!(node.kubelet_heeds_status(), heeds, "{version}");
    }
}

#[test]
fn what_an_agent_that_is_gone_said_is_unknown_and_has_no_heartbeat() {
    let mut reports = NodeReports::new(1);
    let clean = node(&json!(null));
    let tainted = node(&json!([{"key": TAINT_KEY, "effect": "NoSchedule"}]));
    let written = |reports: &mut NodeReports, node: &SeenNode, ms| {
        let purpose = reports.next(Some(node), now(ms))?;
        let call = reports.send(purpose, "n", now(ms), false);
        reports.answered(purpose, &Answer::Done(Vec::new()), now(ms));
        let body: Value = serde_json::from_slice(&call.body).unwrap_or_default();
        Some((purpose, body["status"]["conditions"][0].clone()))
    };
    reports.want(vec![pressure(true)], true);
    assert_eq!(
        written(&mut reports, &tainted, 1_000).unwrap().1["status"],
        "True"
    );
    reports.lose_agent(now(590_000));
    assert_eq!(
        written(&mut reports, &tainted, 601_000),
        None,
        "no heartbeat"
    );
    assert!(reports.is_idle(Some(&tainted), now(639_999)));
    // It is gone for good: the taint goes, and the condition says so, once, as of when the agent was there.
    let (purpose, _) = written(&mut reports, &tainted, 640_000).unwrap();
    assert_eq!(purpose, NodePurpose::ReadTaints);
    let (_, shown) = written(&mut reports, &clean, 640_000).unwrap();
    assert_eq!(
        (&shown["status"], &shown["reason"]),
        (&json!("Unknown"), &json!("AgentStatusUnknown"))
    );
    assert_eq!(shown["lastHeartbeatTime"], "2026-11-22T10:09:50Z");
    assert_eq!(written(&mut reports, &clean, 4_000_000), None);
    // The taint is not put back by a later look, and a second loss is the first one.
    reports.lose_agent(now(4_000_000));
    assert_eq!(written(&mut reports, &clean, 4_000_001), None);
    // It comes back and says the same as before.
    assert!(reports.want(vec![pressure(true)], true).is_empty());
    let (_, shown) = written(&mut reports, &tainted, 4_001_000).unwrap();
    assert_eq!(shown["status"], "True");
    assert_eq!(written(&mut reports, &tainted, 4_002_000), None);
    assert!(written(&mut reports, &tainted, 4_601_000).is_some());
}

#[test]
fn a_taint_that_was_on_its_way_when_the_agent_was_lost_goes_once() {
    let mut reports = NodeReports::new(1);
    let taint = json!([{"key": TAINT_KEY, "effect": TAINT_EFFECT}]);
    let (clean, tainted) = (node(&json!([])), node(&taint));
    let answer = |taints: &Value| {
        let object = json!({"metadata": {"name": "n", "uid": "nu"}, "spec": {"taints": taints}});
        Answer::Done(object.to_string().into_bytes())
    };
    let write = |reports: &mut NodeReports, seen: &SeenNode, now_taints: &Value, at: Now| {
        for purpose in [NodePurpose::ReadTaints, NodePurpose::WriteTaints] {
            assert_eq!(reports.next(Some(seen), at), Some(purpose));
            reports.send(purpose, "n", at, false);
            reports.answered(purpose, &answer(now_taints), at);
        }
    };
    reports.want(vec![pressure(true)], true);
    reports.lose_agent(now(1_000));
    write(&mut reports, &clean, &taint, now(2_000));
    write(&mut reports, &tainted, &json!([]), now(51_000));
    // Somebody sets it again.
    let next = reports.next(Some(&tainted), now(51_001));
    assert_eq!(next, Some(NodePurpose::Conditions));
}

#[test]
fn what_an_agent_before_has_left_becomes_unknown_where_none_comes() {
    let left = json!({
        "metadata": {"name": "n", "uid": "nu"},
        "spec": {"taints": [{"key": TAINT_KEY, "effect": "NoSchedule"}]},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"}, {"type": "plimsoll.dev/MemoryPressure", "status": "True"},
            {"type": "plimsoll.dev/Stalled", "status": "Unknown"},
        ]},
    });
    let mut left = SeenNode::read(left.to_string().as_bytes()).unwrap();
    assert_eq!(left.stated, [PlimsollCondition::MemoryPressure]);
    let next = |reports: &mut NodeReports, node: &SeenNode, ms| {
        reports.take_over(Some(node), now(ms));
        reports.next(Some(node), now(ms))
    };
    let mut reports = NodeReports::new(1);
    assert_eq!(next(&mut reports, &left, 1_000), None);
    assert_eq!(next(&mut reports, &left, 50_999), None);
    assert_eq!(
        next(&mut reports, &left, 51_000),
        Some(NodePurpose::ReadTaints)
    );
    left.taints.clear();
    assert_eq!(
        next(&mut reports, &left, 51_000),
        Some(NodePurpose::Conditions)
    );
    let call = reports.send(NodePurpose::Conditions, "n", now(51_000), false);
    let conditions = &body(&call)["status"]["conditions"];
    assert_eq!(conditions.as_array().unwrap().len(), 1);
    assert_eq!(conditions[0]["type"], "plimsoll.dev/MemoryPressure");
    assert_eq!(conditions[0]["status"], UNKNOWN);
    let done = Answer::Done(Vec::new());
    reports.answered(NodePurpose::Conditions, &done, now(51_000));
    assert_eq!(next(&mut reports, &left, 9_000_000), None);
    // An agent that comes after all says how it is.
    assert_eq!(reports.want(vec![pressure(true)], true).len(), 1);
    left.taints = vec![json!({"key": TAINT_KEY, "effect": TAINT_EFFECT})];
    assert_eq!(
        next(&mut reports, &left, 9_000_001),
        Some(NodePurpose::Conditions)
    );
    // One that is there from the beginning has time to say it.
    let mut reports = NodeReports::new(1);
    assert_eq!(next(&mut reports, &left, 1_000), None);
    reports.want(vec![pressure(true)], true);
    assert_eq!(
        next(&mut reports, &left, 60_000),
        Some(NodePurpose::Conditions)
    );
}

#[test]
fn a_taint_of_before_the_option_was_taken_away_goes_where_it_may() {
    let mut reports = NodeReports::new(1);
    let tainted = node(&json!([{"key": TAINT_KEY, "effect": "NoSchedule"}]));
    reports.want(vec![pressure(true)], false);
    reports.send(NodePurpose::Conditions, "n", now(0), false);
    reports.answered(NodePurpose::Conditions, &Answer::Done(Vec::new()), now(0));
    assert_eq!(
        reports.next(Some(&tainted), now(1)),
        Some(NodePurpose::ReadTaints)
    );
    reports.send(NodePurpose::ReadTaints, "n", now(1), false);
    let forbidden = Answer::Refused(Refusal {
        code: 403,
        ..Refusal::default()
    });
    reports.answered(NodePurpose::ReadTaints, &forbidden, now(2));
    reports.want(vec![pressure(true)], false);
    assert_eq!(reports.next(Some(&tainted), now(100_000)), None);
    assert!(reports.is_idle(Some(&tainted), now(100_000)));
    // With the option again it is ours.
    reports.want(vec![pressure(false)], true);
    reports.send(NodePurpose::Conditions, "n", now(100_000), false);
    reports.answered(
        NodePurpose::Conditions,
        &Answer::Done(Vec::new()),
        now(100_000),
    );
    assert_eq!(
        reports.next(Some(&tainted), now(100_001)),
        Some(NodePurpose::ReadTaints)
    );
}

#[test]
fn an_agent_that_starts_anew_changes_nothing() {
    let mut reports = NodeReports::new(1);
    let node = node(&json!(null));
    reports.want(vec![pressure(true)], false);
    reports.send(NodePurpose::Conditions, "n", now(0), false);
    reports.answered(NodePurpose::Conditions, &Answer::Done(Vec::new()), now(0));
    reports.lose_agent(now(1_000));
    assert_eq!(reports.next(Some(&node), now(50_999)), None);
    reports.want(vec![pressure(true)], false);
    let call = reports.send(NodePurpose::Conditions, "n", now(51_000), false);
    assert_eq!(body(&call)["status"]["conditions"][0]["status"], "True");
}

#[test]
fn a_taint_that_is_refused_for_good_keeps_back_no_condition_and_no_heartbeat() {
    let mut reports = NodeReports::new(1);
    let node = node(&json!(null));
    reports.want(vec![pressure(true)], true);
    reports.withhold(4096);
    let forbidden = Answer::Refused(Refusal {
        code: 403,
        ..Refusal::default()
    });
    let (mut conditions, mut taints) = (0, 0);
    for at in 0..600 {
        let Some(purpose) = reports.next(Some(&node), now(at * 1_000)) else {
            continue;
        };
        reports.send(purpose, "n", now(at * 1_000), false);
        let is_condition = purpose == NodePurpose::Conditions;
        *(if is_condition {
            &mut conditions
        } else {
            &mut taints
        }) += 1;
        let answer = if is_condition {
            &Answer::Done(Vec::new())
        } else {
            &forbidden
        };
        reports.answered(purpose, answer, now(at * 1_000));
    }
    // What is withheld is renewed each 25 s; the taint is tried again and again.
    assert_eq!(conditions, 24);
    assert!((10..40).contains(&taints), "{taints}");
}

#[test]
fn a_node_that_is_registered_anew_gets_its_conditions_at_once() {
    let mut reports = NodeReports::new(1);
    let node = node(&json!(null));
    reports.note_new_node();
    assert_eq!(reports.next(Some(&node), now(1)), None);
    reports.want(vec![pressure(false)], false);
    reports.send(NodePurpose::Conditions, "n", now(1), false);
    reports.answered(NodePurpose::Conditions, &Answer::Done(Vec::new()), now(1));
    assert_eq!(reports.next(Some(&node), now(2)), None);
    reports.note_new_node();
    assert_eq!(
        reports.next(Some(&node), now(2)),
        Some(NodePurpose::Conditions)
    );
}

#[test]
fn conditions_are_written_on_a_change_and_every_ten_minutes() {
    let mut reports = NodeReports::new(1);
    let node = node(&json!(null));
    assert_eq!(
        reports.next(Some(&node), now(400_000)),
        None,
        "nothing is known yet"
    );
    assert_eq!(reports.want(vec![pressure(true)], false).len(), 1);
    assert_eq!(reports.next(None, now(400_000)), None, "without a node");
    assert_eq!(
        reports.next(Some(&node), now(400_000)),
        Some(NodePurpose::Conditions)
    );
    let call = reports.send(NodePurpose::Conditions, "n", now(400_000), false);
    assert_eq!(call.path, "/api/v1/nodes/n/status?fieldManager=plimsoll");
    assert_eq!(
        body(&call)["status"]["conditions"][0]["lastTransitionTime"],
        "2026-11-22T10:00:00Z"
    );
    assert_eq!(
        body(&call)["status"]["conditions"][0]["lastHeartbeatTime"],
        "2026-11-22T10:06:40Z"
    );
    // Changed while the call is on its way: once more, and nothing has begun.
    assert!(reports.want(vec![pressure(false)], false).is_empty());
    assert_eq!(reports.next(Some(&node), now(400_001)), None);
    reports.answered(
        NodePurpose::Conditions,
        &Answer::Done(Vec::new()),
        now(400_002),
    );
    assert_eq!(
        reports.next(Some(&node), now(400_003)),
        Some(NodePurpose::Conditions)
    );
    reports.send(NodePurpose::Conditions, "n", now(400_003), false);
    reports.answered(
        NodePurpose::Conditions,
        &Answer::Lost(String::new()),
        now(400_004),
    );
    assert_eq!(
        reports.next(Some(&node), now(400_005)),
        None,
        "after a pause"
    );
    assert_eq!(
        reports.next(Some(&node), now(402_000)),
        Some(NodePurpose::Conditions)
    );
    reports.send(NodePurpose::Conditions, "n", now(402_000), false);
    reports.answered(
        NodePurpose::Conditions,
        &Answer::Done(Vec::new()),
        now(402_000),
    );
    assert!(reports.is_idle(Some(&node), now(402_000)));
    assert_eq!(reports.next(Some(&node), now(1_001_999)), None);
    assert_eq!(
        reports.next(Some(&node), now(1_002_000)),
        Some(NodePurpose::Conditions)
    );
}

#[test]
fn what_is_withheld_is_renewed_before_it_is_void_and_taken_away() {
    let mut reports = NodeReports::new(1);
    let node = node(&json!(null));
    reports.want(vec![pressure(true)], false);
    let mut written = |withheld_bytes: u64, at| {
        reports.withhold(withheld_bytes);
        let purpose = reports.next(Some(&node), now(at))?;
        let call = reports.send(purpose, "n", now(at), false);
        reports.answered(purpose, &Answer::Done(Vec::new()), now(at));
        Some(body(&call)["metadata"]["annotations"][WITHHELD_ANNOTATION].clone())
    };
    let value = |at: &str| {
        json!(format!(
            r#"{{"at":"2026-11-22T10:0{at}Z","memory":"4096"}}"#
        ))
    };
    assert_eq!(
        written(0, 1_000),
        Some(Value::Null),
        "of an earlier process"
    );
    assert_eq!(written(4096, 2_000), Some(value("0:02")));
    assert_eq!(written(4096, 26_999), None);
    assert_eq!(written(4096, 27_000), Some(value("0:27")));
    assert_eq!(written(0, 28_000), Some(Value::Null));
    assert_eq!(written(0, 60_000), None);
}

#[test]
fn a_taint_is_written_among_those_of_others_and_again_after_a_conflict() {
    let mut reports = NodeReports::new(1);
    let others =
        json!([{"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z", "new": 1}]);
    let stale = node(&json!(null));
    reports.want(vec![pressure(true)], true);
    let answer = |reports: &mut NodeReports, answer: Answer, at| {
        let purpose = reports.next(Some(&stale), now(at)).unwrap();
        let call = reports.send(purpose, "n", now(at), false);
        reports.answered(purpose, &answer, now(at));
        (purpose, call)
    };
    let read = || {
        let object = json!({"metadata": {"name": "n", "uid": "nu"}, "spec": {"taints": others}});
        Answer::Done(object.to_string().into_bytes())
    };
    assert_eq!(answer(&mut reports, read(), 1).0, NodePurpose::ReadTaints);
    let refused = |code| {
        Answer::Refused(Refusal {
            code,
            ..Refusal::default()
        })
    };
    let (purpose, call) = answer(&mut reports, refused(422), 2);
    assert_eq!(purpose, NodePurpose::WriteTaints);
    let uid = json!({"op": "test", "path": "/metadata/uid", "value": "nu"});
    let ours = json!({"key": TAINT_KEY, "effect": "NoSchedule"});
    let add = json!({"op": "add", "path": "/spec/taints/-", "value": ours});
    assert_eq!(body(&call), json!([uid, add]));
    assert_eq!(answer(&mut reports, read(), 3).0, NodePurpose::ReadTaints);
    // Somebody else writes them all the time: that keeps back nothing else.
    assert_eq!(
        answer(&mut reports, refused(409), 4).0,
        NodePurpose::WriteTaints
    );
    assert_eq!(
        answer(&mut reports, Answer::Done(Vec::new()), 5).0,
        NodePurpose::Conditions
    );
    assert_eq!(reports.next(Some(&stale), now(6)), None);
    assert!(reports.is_idle(Some(&stale), now(6)));
    assert_eq!(
        answer(&mut reports, read(), 60_000).0,
        NodePurpose::ReadTaints
    );
    let (purpose, _) = answer(&mut reports, read(), 60_001);
    assert_eq!(purpose, NodePurpose::WriteTaints);
    // The first taint of a node.
    let add = json!([uid,
        {"op": "test", "path": "/spec/taints", "value": null},
        {"op": "add", "path": "/spec/taints", "value": [ours]}]);
    assert_eq!(body(&taints_call(&stale, true, false)), add);
    // Gone again, whatever its effect, and those of others are still there.
    let twice = json!([ours, others[0], {"key": TAINT_KEY, "effect": "NoExecute"}, {"key": "b"}]);
    let tainted = node(&twice);
    let remove = json!([uid,
        {"op": "test", "path": "/spec/taints/2/key", "value": TAINT_KEY},
        {"op": "remove", "path": "/spec/taints/2"},
        {"op": "test", "path": "/spec/taints/0/key", "value": TAINT_KEY},
        {"op": "remove", "path": "/spec/taints/0"}]);
    assert_eq!(body(&taints_call(&tainted, false, false)), remove);
    let resources = |node| {
        let calls = removal(node, false).into_iter();
        calls.map(|call| call.resource).collect::<Vec<_>>()
    };
    assert_eq!(resources(&tainted), ["nodes", "nodes/status"]);
    assert_eq!(resources(&stale), ["nodes/status"]);
}
