//! What keeps pods from eviction, and what a tenant cannot do.

use super::*;
use crate::arbitrate::pod_warning::PodWarning;

fn actions(world: &World, word: &str) -> u64 {
    let actions = &world.arbiter.judgement.actions;
    actions.get(word).copied().unwrap_or(0)
}

fn row(world: &World, name: &str) -> Row {
    let mut rows = world.arbiter.judgement.rows.iter();
    rows.find(|row| row.name == name).unwrap().clone()
}

#[test]
fn after_an_outage_all_notices_begin_anew() {
    let mut world = World::full(false);
    world.run(20, true, |_| None);
    let missed = WatchEvent::Missed("away".into());
    world.arbiter.hear(Kind::Budgets, missed);
    assert!(evictions(&world.run(20, true, |_| None)).is_empty());
    // The watch comes back before its backlog does.
    world.arbiter.hear(Kind::Budgets, WatchEvent::Word);
    assert!(evictions(&world.run(30, true, |_| None)).is_empty());
    assert_eq!(evictions(&world.run(2, true, |_| None)), ["a0"]);
}

#[test]
fn a_moment_of_silence_holds_evictions_and_ends_no_notice() {
    let mut world = World::full(false);
    let mut evicted = Vec::new();
    // Something on the way ends each connection after some seconds.
    for _ in 0..3 {
        evicted.extend(evictions(&world.run(8, true, |_| None)));
        let missed = WatchEvent::Missed("broke off".into());
        world.arbiter.hear(Kind::Pods, missed);
        world.arbiter.hear(Kind::Pods, WatchEvent::Word);
        let held = evictions(&world.run(5, true, |_| None));
        assert!(held.is_empty(), "{held:?}");
        assert!(world.held().contains("only just"));
    }
    assert_eq!(evicted, ["a0"]);
}

#[test]
fn nothing_goes_at_once_after_an_outage_also_without_grace() {
    let mut world = World::full(false);
    world.consumer("b", &json!({"namespace": "b", "unlimited": true}));
    assert!(evictions(&world.run(5, true, |_| None)).is_empty());
    assert!(world.held().contains("only just"), "{}", world.held());
    assert_eq!(evictions(&world.run(2, true, |_| None)), ["a0"]);
}

#[test]
fn a_list_after_410_holds_evictions() {
    let mut world = World::full(false);
    world.run(29, true, |_| None);
    world.arbiter.hear(Kind::Pods, WatchEvent::List(None));
    assert!(evictions(&world.run(60, true, |_| None)).is_empty());
    assert!(world.held().contains("listed anew"), "{}", world.held());
    assert!(world.arbiter.is_ready());
}

/// A tenant with more pods than can be kept has them listed again every ten minutes.
#[test]
fn a_long_list_holds_evictions_and_ends_no_notice() {
    let mut world = World::full(false);
    world.run(20, true, |_| None);
    world.arbiter.hear(Kind::Pods, WatchEvent::List(None));
    assert!(evictions(&world.run(20, true, |_| None)).is_empty());
    let pods: Vec<Value> = world.pods.values().cloned().collect();
    pods.into_iter().for_each(|pod| world.see_pod(pod));
    world.arbiter.hear(Kind::Pods, WatchEvent::Listed);
    assert!(evictions(&world.run(4, true, |_| None)).is_empty());
    assert_eq!(evictions(&world.run(4, true, |_| None)), ["a0"]);
}

#[test]
fn a_notice_that_is_not_written_evicts_no_pod() {
    let mut world = World::full(false);
    let refuse = |target: &Target| matches!(target, Target::Notice(_)).then(|| refused(403, ""));
    assert!(evictions(&world.run(200, true, refuse)).is_empty());
}

/// No authorizer allows it: this account's role lacks pods/eviction, or the API server has just started and has not
/// read the role yet.
#[test]
fn a_missing_right_is_counted_and_costs_a_victim_its_turn_only_if_it_stays_missing() {
    let mut world = World::full(false);
    world.run(30, true, |_| None);
    let message = r#"pods "a0" is forbidden: User "x" cannot create resource "pods/eviction" in API group "" in the namespace "a""#;
    let forbidden = Answer::Refused(Refusal {
        code: 403,
        message: message.to_owned(),
        ..Refusal::default()
    });
    let cannot = |target: &Target| matches!(target, Target::Evict(_)).then(|| forbidden.clone());
    let asked = evictions(&world.run(5, true, cannot));
    assert!(!asked.is_empty() && asked.iter().all(|victim| victim == "a0"));
    assert_eq!(world.arbiter.figures.refused, asked.len() as u64);
    assert_eq!(evictions(&world.run(10, true, |_| None)), ["a0"]);
    // It stays missing: the next one has notice.
    let mut world = World::full(false);
    let asked = evictions(&world.run(150, true, cannot));
    assert!(asked.contains(&"a1".to_owned()), "{asked:?}");
}

/// Its owner has made it as large as etcd takes: an annotation more, and the API server answers 500. It would be the
/// best victim of all plans, and nobody would get anything back.
#[test]
fn a_pod_on_which_no_notice_can_be_stored_keeps_nobody_from_what_others_give_back() {
    let mut world = World::full(false);
    let is_full = |target: &Target| *target == Target::Notice("a0".into());
    let too_large = |target: &Target| is_full(target).then(|| refused(500, ""));
    let calls = world.run(150, true, too_large);
    assert_eq!(evictions(&calls), ["a1"]);
    // One hiccup costs it nothing.
    let mut world = World::full(false);
    world.run(5, true, too_large);
    assert_eq!(evictions(&world.run(50, true, |_| None)), ["a0"]);
}

/// Its owner sees it, so it was a notice.
#[test]
fn who_takes_the_notice_off_again_is_evicted_all_the_same() {
    let mut world = World::full(false);
    let mut evicted = Vec::new();
    for _ in 0..35 {
        evicted.extend(evictions(&world.run(1, true, |_| None)));
        let pods: Vec<Value> = world.pods.values().cloned().collect();
        for mut pod in pods {
            if let Some(annotations) = pod["metadata"].get_mut("annotations") {
                annotations
                    .as_object_mut()
                    .unwrap()
                    .remove("plimsoll.dev/evict-after");
                world.see_pod(pod);
            }
        }
    }
    assert_eq!(evicted, ["a0"]);
}

/// Annotations that are full are of the owner's own making: he has the Event.
#[test]
fn a_pod_that_takes_no_annotation_is_evicted_all_the_same() {
    let mut world = World::full(false);
    let refuse = |target: &Target| matches!(target, Target::Notice(_)).then(|| refused(422, ""));
    assert!(evictions(&world.run(30, true, refuse)).is_empty());
    assert_eq!(evictions(&world.run(3, true, refuse)), ["a0"]);
}

#[test]
fn a_pod_that_changes_all_the_time_is_evicted_in_any_version() {
    let mut world = World::full(false);
    let conflict = |target: &Target| matches!(target, Target::Evict(_)).then(|| refused(409, ""));
    let mut asked = Vec::new();
    for _ in 0..45 {
        let calls = world.run(1, true, conflict);
        let hits = calls.iter();
        for (_, call) in hits.filter(|(target, _)| *target == Target::Evict("a0".into())) {
            let body: Value = serde_json::from_slice(&call.body).unwrap();
            let preconditions = &body["deleteOptions"]["preconditions"];
            assert_eq!(preconditions["uid"], "a0");
            asked.push(preconditions["resourceVersion"].is_string());
            let mut pod = world.pods["a0"].clone();
            world.version += 1;
            pod["metadata"]["resourceVersion"] = json!(world.version.to_string());
            world.see_pod(pod);
        }
    }
    assert_eq!(asked, [true, true, false]);
}

const YEAR_S: u64 = 365 * 86_400;

/// The pod leaves, and may take so long.
fn leaves_in(world: &mut World, name: &str, grace_s: u64) {
    world.change(name, |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2027-11-22T10:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace_s);
    });
}

/// A tenant deletes all its pods, which have a year to end: it uses what it did before, and gives back as before.
#[test]
fn a_pod_that_leaves_in_a_year_is_there() {
    let mut world = World::full(false);
    for at in 0..10 {
        leaves_in(&mut world, &format!("a{at}"), YEAR_S);
    }
    for at in 0..5 {
        world.pod("a", &format!("more{at}"), None);
        world.pod("b", &format!("b{}", at + 1), None);
    }
    world.run(2, true, |_| None);
    assert_eq!(row(&world, "a").over["cpu"], 5_000);
    let entitled = &world.arbiter.judgement.entitled;
    assert!(
        !entitled.iter().any(|uid| uid.starts_with("more")),
        "{entitled:?}"
    );
    let mut evicted = Vec::new();
    for _ in 0..150 {
        for (target, call) in world.run(1, true, |_| None) {
            let Target::Evict(victim) = target else {
                continue;
            };
            let body: Value = serde_json::from_slice(&call.body).unwrap();
            assert_eq!(body["deleteOptions"]["gracePeriodSeconds"], 600);
            // Its time is shorter now: it leaves as others do.
            leaves_in(&mut world, &victim, 600);
            evicted.push(victim);
        }
    }
    assert_eq!(evicted.len(), 5, "{evicted:?}");
    assert_eq!((world.held().as_str(), actions(&world, "leaving")), ("", 5));
}

/// The budget would keep pods that run, and none of these is counted as one any more.
#[test]
fn no_budget_keeps_a_pod_that_leaves_in_a_year() {
    let mut world = World::full(false);
    world.see(
        Kind::Budgets,
        &json!({"metadata": {"name": "none", "namespace": "a"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}}, "status": {"disruptionsAllowed": 0}}),
    );
    assert!(evictions(&world.run(40, true, |_| None)).is_empty());
    leaves_in(&mut world, "a3", YEAR_S);
    assert_eq!(evictions(&world.run(40, true, |_| None)), ["a3"]);
}

#[test]
fn who_makes_the_time_shorter_again_and_again_has_no_more_of_it() {
    let mut world = World::full(false);
    leaves_in(&mut world, "a0", 600);
    world.run(500, true, |_| None);
    assert_eq!(actions(&world, "leaving"), 1);
    leaves_in(&mut world, "a0", 599);
    assert!(evictions(&world.run(100, true, |_| None)).is_empty());
    assert_eq!(evictions(&world.run(100, true, |_| None)), ["a1"]);
}

/// Its replacement is pending already.
#[test]
fn a_pod_that_was_deleted_on_a_lost_node_is_not_asked_for() {
    let mut world = World::full(false);
    leaves_in(&mut world, "a0", 30);
    world.see(Kind::Nodes, &json!({"metadata": {"name": "n"}, "status": {
        "allocatable": {"cpu": "10", "pods": "110"}, "conditions": [{"type": "Ready", "status": "Unknown"}]}}));
    world.see(Kind::Nodes, &json!({"metadata": {"name": "m"}, "status": {
        "allocatable": {"cpu": "20", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}}));
    world.run(100, true, |_| None);
    assert_eq!(row(&world, "a").deserved["cpu"], 9_000);
}

/// What the API server did with the eviction of a pod that was leaving is nothing: it is left alone, and others go on.
#[test]
fn an_eviction_that_makes_no_time_shorter_stops_nobody() {
    let mut world = World::full(false);
    leaves_in(&mut world, "a0", YEAR_S);
    let calls = world.run(100, true, |_| None);
    assert_eq!(evictions(&calls), ["a0", "a1"], "then another one");
}

#[test]
fn a_pod_that_does_not_end_in_its_time_holds_up_nobody() {
    let mut world = World::full(false);
    let calls = world.run(32, true, |_| None);
    assert_eq!(evictions(&calls), ["a0"]);
    leaves_in(&mut world, "a0", 20);
    assert!(evictions(&world.run(50, true, |_| None)).is_empty());
    assert_eq!(evictions(&world.run(40, true, |_| None)).len(), 1);
    // Of a usual time nothing is said.
    let body: Value = serde_json::from_slice(
        &calls
            .iter()
            .find(|(target, _)| matches!(target, Target::Evict(_)))
            .unwrap()
            .1
            .body,
    )
    .unwrap();
    assert!(body["deleteOptions"]["gracePeriodSeconds"].is_null());
}

/// What is evicted in so many seconds. None of it ends.
fn evicted_in_vain(world: &mut World, seconds: u64) -> Vec<String> {
    let mut evicted = Vec::new();
    for _ in 0..seconds {
        for victim in evictions(&world.run(1, true, |_| None)) {
            leaves_in(world, &victim, 2);
            evicted.push(victim);
        }
    }
    evicted
}

/// A node on which no sandbox is torn down any more: each pod that is evicted there stays, uses what it did, and makes
/// no room, so that another one would have to go for the same pod.
#[test]
fn a_node_on_which_evicted_pods_do_not_end_loses_no_further_ones() {
    let mut world = World::full(false);
    assert_eq!(evicted_in_vain(&mut world, 900).len(), 2);
    assert!(!world.pods["a0"]["metadata"]["annotations"]["plimsoll.dev/evict-after"].is_null());
    assert_eq!(row(&world, "b").blocked, 1);
    let wrong = &world.arbiter.judgement.wrong_objects;
    assert_eq!(wrong["EvictedPodsHang"], 1);
    // Its Consumer says so: else nobody would know whose pods these are.
    assert_eq!(
        row(&world, "a").pod_warnings[&PodWarning::EvictedPodsHang],
        8
    );
    // Who has lost the Lease for a while knows it, too.
    world.run(20, false, |_| None);
    assert!(evicted_in_vain(&mut world, 900).is_empty());
    // One of them has gone: another one may go.
    world.gone("a0");
    world.pod("a", "again", Some("n"));
    assert_eq!(evicted_in_vain(&mut world, 100).len(), 1);
}

#[test]
fn pods_of_one_namespace_that_do_not_end_keep_none_of_another_on_their_node() {
    let mut world = World::full(false);
    assert_eq!(evicted_in_vain(&mut world, 200), ["a0", "a1"]);
    world.see(Kind::Namespaces, &json!({"metadata": {"name": "c"}}));
    world.consumer("c", &json!({"namespace": "c"}));
    for at in 4..10 {
        world.gone(&format!("a{at}"));
        world.pod("c", &format!("c{at}"), Some("n"));
    }
    assert_eq!(evicted_in_vain(&mut world, 100), ["c4"]);
}

#[test]
fn a_namespace_with_too_many_budgets_keeps_its_pods_and_costs_no_other() {
    for (count, evicted) in [(100, 1), (101, 0), (3_000, 0)] {
        let mut world = World::full(false);
        for at in 0..count {
            let name = format!("budget{at}");
            world.see(Kind::Budgets, &json!({"metadata": {"name": name, "namespace": "a"},
                "spec": {"selector": {"matchLabels": {"app": name}}}, "status": {"disruptionsAllowed": 1}}));
        }
        let calls = world.run(32, true, |_| None);
        assert_eq!(evictions(&calls).len(), evicted, "{count}");
        assert_eq!(world.held(), "");
        let wrong = row(&world, "a").wrong;
        let reasons: Vec<&str> = wrong.iter().map(|(reason, _)| *reason).collect();
        let event = ("a".to_owned(), "TooManyBudgets".to_owned());
        let is_said = events(&calls).contains(&event);
        assert_eq!(
            (reasons == ["TooManyBudgets"], is_said),
            (count > 100, count > 100)
        );
        assert!(row(&world, "b").wrong.is_empty());
    }
}

#[test]
fn a_namespace_with_too_many_quotas_has_no_room_made_for_it_and_costs_no_other() {
    for (count, evicted) in [(100, 1), (101, 0)] {
        let mut world = World::full(false);
        for at in 0..count {
            let quota = json!({"metadata": {"name": format!("q{at}"), "namespace": "b"}, "spec": {"hard": {"cpu": "100"}}});
            world.see(Kind::Quotas, &quota);
        }
        let calls = world.run(32, true, |_| None);
        assert_eq!(evictions(&calls).len(), evicted, "{count}");
        let b = row(&world, "b");
        assert_eq!(
            b.wrong.first().map(|it| it.0),
            (count > 100).then_some("TooManyQuotas")
        );
        // What it might ask for is not held back from others.
        let rest = row(&world, "a").deserved["cpu"];
        assert_eq!(rest, if count > 100 { 10_000 } else { 9_000 });
    }
}

#[test]
fn an_entitled_pod_for_which_no_room_is_made_is_said() {
    let mut world = World::full(false);
    let mut pod = world.pod_object("b", "b0", None);
    pod["spec"]["volumes"] = json!([{"persistentVolumeClaim": {"claimName": "x"}}]);
    world.see_pod(pod);
    world.run(2, true, |_| None);
    assert_eq!(
        row(&world, "b").not_served,
        [("a persistent volume", 1)].into()
    );
    // And one that missed its hole twice, or cannot have one.
    let mut world = World::full(false);
    let refuse = |target: &Target| matches!(target, Target::Hole(_)).then(|| refused(422, ""));
    world.run(35, true, refuse);
    assert_eq!(
        row(&world, "b").not_served,
        [("room that they did not take twice", 1)].into()
    );
}

#[test]
fn a_text_that_an_earlier_leader_left_is_written_anew() {
    let mut world = World::full(false);
    let mut pod = world.pod_object("a", "a0", Some("n"));
    pod["metadata"]["annotations"] = json!({"plimsoll.dev/evict-after": "2026-11-22T09:00:00Z"});
    world.see_pod(pod);
    let calls = world.run(3, true, |_| None);
    let notices = calls
        .iter()
        .filter(|(target, _)| *target == Target::Notice("a0".into()));
    let bodies: Vec<String> = notices
        .map(|(_, call)| String::from_utf8_lossy(&call.body).into_owned())
        .collect();
    assert!(
        bodies.len() == 1 && bodies[0].contains("2026-11-22T10:00:30Z"),
        "{bodies:?}"
    );
}

#[test]
fn notices_come_before_what_others_left() {
    let mut world = World::full(false);
    for at in 0..400 {
        let mut pod = world.pod_object("left", &format!("a-{at}"), Some("away"));
        pod["metadata"]["annotations"] = json!({"plimsoll.dev/evict-after": "x"});
        world.see(Kind::Pods, &pod);
    }
    let calls = world.run(1, true, |_| None);
    let mut notices = calls
        .iter()
        .filter(|(target, _)| matches!(target, Target::Notice(_)));
    assert_eq!(notices.next().unwrap().0, Target::Notice("a0".into()));
    let is_status = |target: &Target| matches!(target, Target::Consumer(_));
    assert!(
        calls.iter().any(|(target, _)| is_status(target)),
        "each class has its part"
    );
}

#[test]
fn pods_that_come_and_go_do_not_put_off_a_reclaim() {
    let mut world = World::full(false);
    // Each second a younger pod of the namespace that uses too much is old enough to go.
    world.consumer(
        "a",
        &json!({"namespace": "a", "reclaim": {"minimumRunTime": "0s"}}),
    );
    let mut evicted = Vec::new();
    for at in 0..40 {
        world.gone(&format!("a{}", at + 1));
        world.pod("a", &format!("a{}", at + 10), Some("n"));
        evicted.extend(evictions(&world.run(1, true, |_| None)));
        if !world.pods.contains_key(&format!("a{}", at + 2)) {
            break;
        }
    }
    assert_eq!(evicted, ["a0"]);
}

#[test]
fn no_pod_goes_for_one_that_no_node_can_run() {
    let mut world = World::full(false);
    let mut pod = world.pod_object("b", "b0", None);
    pod["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = json!("1");
    world.see_pod(pod);
    assert!(evictions(&world.run(100, true, |_| None)).is_empty());
    assert_eq!(
        row(&world, "b").not_served,
        [("a resource that no node has", 1)].into()
    );
}

#[test]
fn names_that_a_tenant_makes_up_stop_no_other() {
    let mut world = World::full(false);
    for at in 0..4 {
        let mut pod = world.pod_object("a", &format!("odd{at}"), None);
        for name in 0..100 {
            let name = format!("example.com/r{at}-{name}");
            pod["spec"]["containers"][0]["resources"]["requests"][name] = json!("1");
        }
        world.see_pod(pod);
    }
    assert_eq!(evictions(&world.run(32, true, |_| None)), ["a0"]);
}

#[test]
fn a_minimum_below_a_second_does_not_pass_over_a_consumers() {
    let mut world = World::full(false);
    world.arbiter.settings.times.minimum_run_time_ms = 500;
    world.consumer(
        "a",
        &json!({"namespace": "a", "reclaim": {"minimumRunTime": "3h"}}),
    );
    assert!(evictions(&world.run(3_000, true, |_| None)).is_empty());
}

#[test]
fn a_consumer_with_a_long_grace_does_not_take_all_notices() {
    let mut world = World::new(false);
    world.see(Kind::Nodes, &json!({"metadata": {"name": "n"}, "status": {
        "allocatable": {"cpu": "200", "pods": "500"}, "conditions": [{"type": "Ready", "status": "True"}]}}));
    world.consumer(
        "a",
        &json!({"namespace": "a", "reclaim": {"gracePeriod": "24h"}}),
    );
    world.see(Kind::Namespaces, &json!({"metadata": {"name": "c"}}));
    world.consumer("c", &json!({"namespace": "c"}));
    for at in 0..150 {
        world.pod("a", &format!("a{at:03}"), Some("n"));
        let mut pod = world.pod_object("b", &format!("b{at:03}"), None);
        pod["spec"]["priority"] = json!(1);
        world.see_pod(pod);
    }
    // The pods of `a` go first: they have the lesser priority.
    for at in 0..50 {
        let mut pod = world.pod_object("c", &format!("c{at:03}"), Some("n"));
        pod["spec"]["priority"] = json!(1);
        world.see_pod(pod);
    }
    world.consumer("b", &json!({"namespace": "b", "weight": 100}));
    world.run(5, true, |_| None);
    let notices = world.arbiter.reclaims.notices.keys();
    let of = |namespace: char| {
        notices
            .clone()
            .filter(|uid| uid.starts_with(namespace))
            .count()
    };
    assert_eq!(of('a'), 20);
    assert!(of('c') > 10, "{}", of('c'));
}

#[test]
fn no_namespace_uses_up_the_work_of_all() {
    let mut world = World::full(false);
    for at in 0..50 {
        let mut pod = world.pod_object("a", &format!("0odd{at:02}"), None);
        pod["spec"]["nodeSelector"] = json!({"disk": format!("{at}")});
        world.see_pod(pod);
    }
    world.run(1, true, |_| None);
    let store = &world.arbiter.store;
    let not_served = judge::refused_with(store, 20);
    assert!(
        not_served.contains("0odd40") && !not_served.contains("b0"),
        "{not_served:?}"
    );
    assert!(!not_served.contains("0odd00"));
    assert_eq!(actions(&world, "not_served"), 0);
}

#[test]
fn what_others_compare_is_of_the_clock_on_the_wall() {
    let mut world = World::full(false);
    world.jump_ms = 3_600_000;
    let calls = world.run(2, true, |_| None);
    let notice = calls
        .iter()
        .find(|(target, _)| *target == Target::Notice("a0".into()));
    let body = String::from_utf8_lossy(&notice.unwrap().1.body).into_owned();
    assert!(body.contains("2026-11-22T11:00:30Z"), "{body}");
}

#[test]
fn a_list_of_the_overused_is_not_stamped_anew_where_nothing_was_judged() {
    let mut world = World::full(false);
    world.consumer("a", &json!({"namespace": "a", "hard": {"cpu": "8"}}));
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "10", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "True"}]}});
    world.see(Kind::Nodes, &node);
    let lists = |calls: &[(Target, Call)]| {
        calls
            .iter()
            .filter(|(target, _)| *target == Target::Overused("n".into()))
            .count()
    };
    // What is not done is not taken for done.
    let calls = world.run(10, true, |target| {
        matches!(target, Target::Overused(_)).then(|| refused(500, ""))
    });
    assert!(lists(&calls) > 1);
    world.run(5, true, |_| None);
    let many: serde_json::Map<String, Value> = (0..200)
        .map(|at| (format!("example.com/r{at}"), json!("1")))
        .collect();
    world.consumer("a", &json!({"namespace": "a", "reserved": many}));
    assert_eq!(lists(&world.run(100, true, |_| None)), 0);
}

#[test]
fn an_eviction_is_on_its_way_until_it_is_answered() {
    let mut world = World::full(false);
    world.run(30, true, |_| None);
    let now = world.now();
    world.arbiter.turn(now, true);
    let (target, call) = world.arbiter.next(now, true).unwrap();
    assert_eq!(target, Target::Hole("b0".into()));
    world.annotate("b0", &call);
    world.ms += 1_000;
    let now = world.now();
    world.arbiter.turn(now, true);
    let (target, _) = world.arbiter.next(now, true).unwrap();
    assert_eq!(target, Target::Evict("a0".into()));
    assert!(world.arbiter.is_evicting());
    let answer = Answer::Done(Vec::new());
    world.arbiter.answered(&target, &answer, now);
    assert!(!world.arbiter.is_evicting());
}

#[test]
fn where_nobody_places_pods_one_goes_and_no_other() {
    let mut world = World::full(false);
    world.no_scheduler = true;
    for at in 1..5 {
        world.pod("b", &format!("b{at}"), None);
    }
    let calls = world.run(33, true, |_| None);
    assert_eq!(evictions(&calls).len(), 1, "the others wait for its answer");
    let victim = evictions(&calls)[0].clone();
    world.gone(&victim);
    assert_eq!(evictions(&world.run(20, true, |_| None)), [""; 0]);
    let calls = world.run(400, true, |_| None);
    assert!(evictions(&calls).is_empty());
    assert!(world.held().contains("kube-scheduler"), "{}", world.held());
    let kept = |world: &World| {
        let pods = world.pods.values();
        let kept = pods.filter(|pod| pod["status"]["nominatedNodeName"] == "n");
        kept.count()
    };
    assert_eq!(kept(&world), 1, "the hole waits for its pod");
    // It is back, and places the pod: the others have their turn.
    let mut pods = world.pods.values();
    let mut pod = pods
        .find(|pod| pod["status"]["nominatedNodeName"] == "n")
        .unwrap()
        .clone();
    pod["spec"]["nodeName"] = json!("n");
    world.see_pod(pod);
    let calls = world.run(40, true, |_| None);
    assert_eq!(evictions(&calls).len(), 4, "{:?}", evictions(&calls));
}

/// Pods of `b` wait, nobody places any, and a hole is free for longer than a scheduler would take.
fn in_doubt() -> World {
    let mut world = World::full(false);
    world.no_scheduler = true;
    for at in 1..5 {
        world.pod("b", &format!("b{at}"), None);
    }
    let calls = world.run(33, true, |_| None);
    world.gone(&evictions(&calls)[0]);
    world.run(22, true, |_| None);
    assert!(world.held().contains("kube-scheduler"), "{}", world.held());
    world
}

#[test]
fn a_tenant_does_not_end_the_doubt_about_the_scheduler() {
    let mut world = in_doubt();
    // Made with a node; of another scheduler, which places it; waiting, changed, and deleted.
    world.pod("b", "bound", Some("n"));
    for more in [json!({}), json!({"volumes": [{"ephemeral": {}}]})] {
        for node in [None, Some("n")] {
            let mut pod = world.pod_object("b", "other", node);
            pod["spec"]["schedulerName"] = json!("volcano");
            for (key, value) in more.as_object().unwrap() {
                pod["spec"][key] = value.clone();
            }
            world.see_pod(pod);
        }
        world.gone("other");
    }
    for node in ["n", "m"] {
        let mut pod = world.pod_object("b", "waits", None);
        pod["metadata"]["annotations"] = json!({"plimsoll.dev/room-on": node});
        world.see_pod(pod);
    }
    world.gone("waits");
    assert!(evictions(&world.run(5, true, |_| None)).is_empty());
    assert!(world.held().contains("kube-scheduler"), "{}", world.held());
    // What only the scheduler does.
    world.change("b4", |pod| {
        pod["status"]["conditions"] =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    });
    world.run(1, true, |_| None);
    assert!(!world.held().contains("kube-scheduler"), "{}", world.held());
}

#[test]
fn without_a_scheduler_fewer_and_fewer_pods_go() {
    let mut world = World::full(false);
    let mut leaving = Vec::new();
    world.no_scheduler = true;
    for at in 1..5 {
        world.pod("b", &format!("b{at}"), None);
    }
    let mut minutes = Vec::new();
    while world.ms < 6 * 3_600_000 {
        let calls = world.run(1, true, |_| None);
        for victim in evictions(&calls) {
            minutes.push(world.ms / 60_000);
            leaving.push((victim, world.ms + 40_000));
        }
        world.ms += 9_000;
        let ms = world.ms;
        for (victim, _) in leaving.extract_if(.., |(_, end_ms)| *end_ms <= ms) {
            world.gone(&victim);
        }
    }
    // After each the doubt, of 10, 20, 40, 80 and 160 minutes.
    assert_eq!(minutes, [0, 12, 33, 74, 156]);
}

#[test]
fn a_dry_run_needs_nobody_who_places_pods() {
    let evicted = [false, true].map(|no_scheduler| {
        let mut world = World::full(true);
        world.no_scheduler = no_scheduler;
        for at in 1..5 {
            world.pod("b", &format!("b{at}"), None);
        }
        evictions(&world.run(33, true, |_| None))
    });
    assert!(evicted[0].len() > 1, "{evicted:?}");
    assert_eq!(evicted[0], evicted[1]);
}

#[test]
fn holes_and_evictions_wait_for_no_other_write() {
    let mut world = World::full(false);
    // Conditions of hundreds of Consumers change in each turn.
    for at in 0..300 {
        let name = format!("t{at}");
        world.see(Kind::Namespaces, &json!({"metadata": {"name": name}}));
        world.consumer(&name, &json!({"namespace": name}));
    }
    let refuse = |target: &Target| {
        let is_urgent = matches!(
            target,
            Target::Hole(_) | Target::Evict(_) | Target::Notice(_)
        );
        (!is_urgent).then(|| refused(500, ""))
    };
    world.run(29, true, refuse);
    world.ms = 29_500;
    assert_eq!(
        world.run(1, true, refuse).len(),
        30,
        "all that others may have"
    );
    // Half a second later the notice is over.
    world.ms = 30_100;
    let calls = world.run(1, true, refuse);
    let targets: Vec<&Target> = calls.iter().map(|(target, _)| target).collect();
    assert_eq!(targets, [&Target::Hole("b0".into())]);
}
