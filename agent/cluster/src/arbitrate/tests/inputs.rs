//! Objects that are wrong: each says so in a condition and an Event of its own, and evicts no pod that would not have
//! gone without it.

use super::*;

/// The condition `Accepted` as it was last written for a Consumer.
fn accepted(calls: &[(Target, Call)], name: &str) -> Option<(String, String)> {
    let written = calls.iter().rev();
    let mut bodies = written
        .filter(|(target, _)| *target == Target::Consumer(name.to_owned()))
        .map(|(_, call)| serde_json::from_slice::<Value>(&call.body).unwrap());
    let body = bodies.next()?;
    let conditions = body["status"]["conditions"].as_array()?;
    let accepted = conditions.iter().find(|it| it["type"] == "Accepted")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some((text(&accepted["status"]), text(&accepted["reason"])))
}

#[test]
fn what_is_wrong_has_a_condition_and_an_event_and_evicts_no_pod() {
    let far = "2e18";
    let cases = [
        (
            json!({"namespace": "c", "reserved": {"example.com/none": 1}}),
            "UnknownResource",
        ),
        (
            json!({"namespace": "c", "hard": {"memory": far}}),
            "AmountTooLarge",
        ),
        (
            json!({"namespace": "c", "reserved": {"cpu": far}, "hard": {"cpu": far}}),
            "AmountTooLarge",
        ),
        (
            json!({"namespace": "c", "reserved": {"cpu": 2}, "hard": {"cpu": 1}}),
            "ReservedAboveHard",
        ),
        (json!({"namespace": "c", "parent": "nowhere"}), "NoParent"),
        (json!({"parent": "wrong"}), "Cycle"),
        (json!({"namespace": "a"}), "NamespaceTaken"),
        (json!({"namespace": "gone"}), "NoNamespace"),
        // A field of a later version, or what a resource of an earlier one let through.
        (json!({"namespace": "c", "burst": 5}), "Unreadable"),
        (json!({"namespace": "c", "weight": "heavy"}), "Unreadable"),
    ];
    for (spec, reason) in cases {
        // `a` has all that it deserves, `b` asks for nothing.
        let mut world = World::new(false);
        for at in 0..10 {
            world.pod("a", &format!("a{at}"), Some("n"));
        }
        world.see(Kind::Namespaces, &json!({"metadata": {"name": "c"}}));
        world.consumer("wrong", &spec);
        let calls = world.run(100, true, |_| None);
        assert!(evictions(&calls).is_empty(), "{spec}");
        let condition = accepted(&calls, "wrong");
        assert_eq!(condition, Some(("False".into(), reason.into())), "{spec}");
        let event = ("wrong".to_owned(), reason.to_owned());
        assert!(
            events(&calls).contains(&event),
            "{spec}: {:?}",
            events(&calls)
        );
    }
}

#[test]
fn one_consumer_that_cannot_be_read_is_in_doubt_for_all_and_any_other_fault_for_itself() {
    let faults = [
        (json!({"namespace": "c", "reserved": {"cpu": "2e18"}}), 1),
        (
            json!({"namespace": "c", "reserved": {"example.com/none": 1}}),
            1,
        ),
        (json!({"namespace": "c", "parent": "nowhere"}), 1),
        (json!({"namespace": "c", "burst": 5}), 0),
    ];
    for (spec, expected) in faults {
        let mut world = World::full(false);
        world.see(Kind::Namespaces, &json!({"metadata": {"name": "c"}}));
        world.consumer("wrong", &spec);
        let calls = world.run(34, true, |_| None);
        assert_eq!(evictions(&calls).len(), expected, "{spec}");
    }
}

#[test]
fn a_namespace_that_is_deleted_in_the_middle_of_a_plan_ends_it() {
    for deleted in ["a", "b"] {
        let mut world = World::full(false);
        world.run(29, true, |_| None);
        assert_eq!(world.arbiter.notices(), 1);
        let stamp = "2026-11-22T10:00:29Z";
        let terminating = json!({"metadata": {"name": deleted, "deletionTimestamp": stamp}});
        world.see(Kind::Namespaces, &terminating);
        let calls = world.run(100, true, |_| None);
        assert!(evictions(&calls).is_empty(), "{deleted}");
        assert_eq!(world.arbiter.notices(), 0);
        // It is gone: its Consumer says so.
        let gone = WatchEvent::Gone(terminating.to_string().into_bytes());
        world.arbiter.hear(Kind::Namespaces, gone);
        let calls = world.run(20, true, |_| None);
        assert!(evictions(&calls).is_empty(), "{deleted}");
        let event = (deleted.to_owned(), "NoNamespace".to_owned());
        assert!(events(&calls).contains(&event), "{:?}", events(&calls));
    }
}

/// Something keeps their deletion back, such as a webhook: they make no room, and what they use counts.
#[test]
fn pods_of_a_namespace_whose_deletion_hangs_hold_up_nobody_for_longer_than_one_that_hangs_itself() {
    let mut world = World::new(false);
    world.see(Kind::Namespaces, &json!({"metadata": {"name": "c"}}));
    world.consumer("c", &json!({"namespace": "c"}));
    for at in 0..5 {
        world.pod("a", &format!("a{at}"), Some("n"));
        world.pod("c", &format!("c{at}"), Some("n"));
    }
    world.pod("b", "b0", None);
    let terminating =
        json!({"metadata": {"name": "c", "deletionTimestamp": "2026-11-22T10:00:00Z"}});
    world.see(Kind::Namespaces, &terminating);
    let calls = world.run(625, true, |_| None);
    assert!(evictions(&calls).is_empty(), "{:?}", evictions(&calls));
    let calls = world.run(60, true, |_| None);
    let evicted = evictions(&calls);
    assert!(
        evicted.len() == 1 && evicted[0].starts_with('a'),
        "{evicted:?}"
    );
}

#[test]
fn pods_that_count_otherwise_than_their_owners_think_are_told_by_their_consumer() {
    let mut world = World::new(false);
    for (name, requests) in [
        ("none", json!({})),
        ("large", json!({"cpu": "11"})),
        ("usual", json!({"cpu": "1"})),
    ] {
        let mut pod = world.pod_object("b", name, None);
        pod["spec"]["containers"][0]["resources"]["requests"] = requests;
        world.see_pod(pod);
    }
    let calls = world.run(3, true, |_| None);
    let accepted = ("True".to_owned(), "Accepted".to_owned());
    assert_eq!(self::accepted(&calls, "b"), Some(accepted));
    let bodies = calls
        .iter()
        .map(|(_, call)| String::from_utf8_lossy(&call.body));
    let text: String = bodies.collect();
    for said in [
        "1 pods request nothing: each counts as one of pods alone",
        "1 pods ask for nothing, as no node that is ready",
    ] {
        assert!(text.contains(said), "{said}");
    }
    for reason in ["NoRequests", "NeverFits"] {
        let told = events(&calls).into_iter();
        let told = told.filter(|event| *event == ("b".to_owned(), reason.to_owned()));
        assert_eq!(told.count(), 1, "{reason}");
    }
    assert!(events(&world.run(30, true, |_| None)).is_empty(), "once");
}

#[test]
fn limits_count_where_a_consumer_names_them() {
    let mut world = World::new(false);
    for at in 0..4 {
        let mut pod = world.pod_object("b", &format!("b{at}"), Some("n"));
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({"cpu": "2"});
        world.see_pod(pod);
    }
    let row = |world: &World| {
        let mut rows = world.arbiter.judgement.rows.iter();
        rows.find(|row| row.name == "b").unwrap().clone()
    };
    world.run(2, true, |_| None);
    assert_eq!(row(&world).used.get("limits.cpu"), None);
    // Three pods of 2 are within it, the fourth is beyond.
    world.consumer("b", &json!({"namespace": "b", "hard": {"limits.cpu": "7"}}));
    world.run(2, true, |_| None);
    let b = row(&world);
    assert_eq!(
        (b.used["limits.cpu"], b.deserved["limits.cpu"]),
        (8_000, 6_000)
    );
    assert_eq!((b.deserved["cpu"], b.passed_over), (3_000, 1));
    assert_eq!(b.over["limits.cpu"], 2_000);
    // A pod that waits is not taken for one that fits on no node.
    let mut pod = world.pod_object("a", "a0", None);
    pod["spec"]["containers"][0]["resources"]["limits"] = json!({"cpu": "2"});
    world.see_pod(pod);
    world.run(2, true, |_| None);
    assert_eq!(world.arbiter.judgement.entitled, ["a0"]);
    // A quota of limits bounds who is bound by them.
    let quota =
        json!({"metadata": {"name": "q", "namespace": "b"}, "spec": {"hard": {"limits.cpu": "4"}}});
    world.see(Kind::Quotas, &quota);
    world.run(2, true, |_| None);
    assert_eq!(row(&world).hard["limits.cpu"], 4_000);
}

/// Whoever may write in the namespace makes others beside it, which sort before its own.
#[test]
fn an_allocation_among_too_many_is_not_written_again_and_again() {
    let mut world = World::new(false);
    for at in 0..200 {
        let other = json!({"metadata": {"name": format!("0-{at:03}"), "namespace": "a"}});
        world.see(Kind::Allocations, &other);
    }
    let own = json!({"metadata": {"name": "a", "namespace": "a"}});
    world.see(Kind::Allocations, &own);
    let calls = world.run(60, true, |_| None);
    let written = |namespace: &str| {
        let own = |target: &Target| matches!(target, Target::Allocation(of, _) | Target::AllocationStatus(of, _) if of == namespace);
        calls.iter().filter(|(target, _)| own(target)).count()
    };
    assert_eq!(written("a"), 0);
    assert!(written("b") > 0);
    let condition = accepted(&calls, "a");
    assert_eq!(
        condition,
        Some(("False".into(), "TooManyAllocations".into()))
    );
}

/// An administrator gives a namespace to another Consumer, and leaves the old one: what its tenants read of the old one
/// is not what it was before.
#[test]
fn the_allocation_of_a_consumer_that_counts_no_more_says_so() {
    let mut world = World::new(false);
    for at in 0..3 {
        world.pod("b", &format!("b{at}"), Some("n"));
    }
    let status = json!({"observedGeneration": 1, "passedOver": 0, "deserved": {"cpu": "10"}, "used": {"cpu": "3"},
        "conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "nothing is wrong with it"}]});
    let old = json!({"metadata": {"name": "b", "namespace": "b"}, "status": status});
    world.see(Kind::Allocations, &old);
    world.consumer("0b", &json!({"namespace": "b"}));
    let calls = world.run(3, true, |_| None);
    let target = Target::AllocationStatus("b".into(), "b".into());
    let (_, call) = calls.iter().find(|(it, _)| *it == target).unwrap();
    let body: Value = serde_json::from_slice(&call.body).unwrap();
    assert_eq!(body["status"]["conditions"][0]["reason"], "NamespaceTaken");
    assert_eq!(body["status"]["deserved"]["cpu"], Value::Null);
    // None is made for it.
    let own = json!({"metadata": {"name": "b", "namespace": "b"}});
    let gone = WatchEvent::Gone(own.to_string().into_bytes());
    world.arbiter.hear(Kind::Allocations, gone);
    let calls = world.run(100, true, |_| None);
    let made = |name: &str| {
        let made = Target::Allocation("b".into(), name.into());
        calls.iter().any(|(target, _)| *target == made)
    };
    assert!(made("0b") && !made("b"));
}
