//! The hole that is kept for the pod for which it is made.

use super::*;
use crate::arbitrate::seen::pod::ROOM_ON;

/// What was written about holes: pod, node of the annotation, node of the status. Nothing of one is not written, an
/// empty text takes it away.
fn holes(calls: &[(Target, Call)]) -> Vec<(String, Option<String>, Option<String>)> {
    let text = |value: Option<&Value>| Some(value?.as_str().unwrap_or_default().to_owned());
    let holes = calls.iter().filter_map(|(target, call)| {
        let Target::Hole(pod) = target else {
            return None;
        };
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        let annotation = body["metadata"]["annotations"].get(ROOM_ON);
        let status = body.pointer("/status/nominatedNodeName");
        Some((pod.clone(), text(annotation), text(status)))
    });
    holes.collect()
}

fn kept(node: &str) -> (String, Option<String>, Option<String>) {
    ("b0".into(), Some(node.into()), Some(node.into()))
}

/// The pod leaves, or has left.
fn leaves(world: &mut World, name: &str) {
    world.change(name, |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-22T10:00:31Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(600);
    });
}

fn starts(world: &mut World, name: &str) {
    world.change(name, |pod| pod["spec"]["nodeName"] = json!("n"));
}

#[test]
fn the_hole_is_kept_before_the_first_victim_goes_and_until_the_pod_has_started() {
    let mut world = World::full(false);
    assert!(holes(&world.run(30, true, |_| None)).is_empty());
    let calls = world.run(2, true, |_| None);
    let is_of_it =
        |(target, _): &&(Target, Call)| matches!(target, Target::Hole(_) | Target::Evict(_));
    let order: Vec<&Target> = calls
        .iter()
        .filter(is_of_it)
        .map(|(target, _)| target)
        .collect();
    assert_eq!(
        order,
        [&Target::Hole("b0".into()), &Target::Evict("a0".into())]
    );
    assert_eq!(holes(&calls), [kept("n")]);
    // The pod takes two minutes to end: a claim of a minute would have ended.
    leaves(&mut world, "a0");
    world.pod("a", "a0-successor", None);
    assert!(holes(&world.run(120, true, |_| None)).is_empty());
    // The scheduler takes it back: it is written again.
    world.change("b0", |pod| pod["status"]["nominatedNodeName"] = Value::Null);
    assert_eq!(holes(&world.run(1, true, |_| None)), [kept("n")]);
    world.gone("a0");
    assert!(holes(&world.run(59, true, |_| None)).is_empty());
    starts(&mut world, "b0");
    let calls = world.run(100, true, |_| None);
    assert_eq!(holes(&calls), [("b0".into(), Some(String::new()), None)]);
    assert!(evictions(&calls).is_empty(), "one hole, one eviction");
}

#[test]
fn a_hole_that_cannot_be_kept_evicts_no_pod_and_takes_no_notice_of_others() {
    let mut world = World::full(false);
    let calls = world.run(40, true, |target| {
        matches!(target, Target::Hole(_)).then(|| refused(422, ""))
    });
    assert!(evictions(&calls).is_empty());
    assert_eq!(
        holes(&calls),
        [kept("n")],
        "once, then others have their turn"
    );
    assert_eq!(world.arbiter.notices(), 0);
}

/// The pod that waits is as large as etcd takes.
#[test]
fn a_hole_that_can_never_be_stored_takes_no_notice_of_others_either() {
    let mut world = World::full(false);
    let mut evicted = Vec::new();
    let mut ends = None;
    for second in 0..200 {
        let calls = world.run(1, true, |target| {
            matches!(target, Target::Hole(_)).then(|| refused(500, ""))
        });
        evicted.extend(evictions(&calls));
        if second > 30 && world.arbiter.notices() == 0 {
            ends = ends.or(Some(second));
        }
    }
    assert!(evicted.is_empty());
    assert!(ends.is_some(), "other pods have their turn");
}

#[test]
fn no_room_is_kept_where_no_eviction_comes_of_it() {
    let mut world = World::full(false);
    let forbidden = |target: &Target| {
        (matches!(target, Target::Evict(_))).then(|| refused(429, "DisruptionBudget"))
    };
    let calls = world.run(33, true, forbidden);
    assert_eq!(evictions(&calls), ["a0"]);
    let given_up = ("b0".into(), Some(String::new()), Some(String::new()));
    assert_eq!(holes(&calls), [kept("n"), given_up]);
    // In doubt nothing goes, so nothing is prepared.
    let mut world = World::full(false);
    world.run(20, true, |_| None);
    world
        .arbiter
        .hear(Kind::Budgets, WatchEvent::Missed("away".into()));
    assert!(holes(&world.run(20, true, |_| None)).is_empty());
}

/// Two pods make room for the one that waits.
#[test]
fn the_refusal_of_a_second_victim_does_not_cost_the_first() {
    let wide = |world: &mut World| {
        world.change("b0", |pod| {
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
        });
    };
    let trials = |calls: &[(Target, Call)]| -> Vec<String> {
        let tried = calls.iter().filter_map(|(target, call)| {
            let Target::Try(uid) = target else {
                return None;
            };
            let body: Value = serde_json::from_slice(&call.body).unwrap();
            assert_eq!(body["deleteOptions"]["dryRun"], json!(["All"]));
            Some(uid.clone())
        });
        tried.collect()
    };
    let mut world = World::full(false);
    wide(&mut world);
    let calls = world.run(34, true, |_| None);
    assert_eq!(trials(&calls), ["a0", "a1"]);
    assert_eq!(evictions(&calls), ["a0", "a1"]);
    let mut world = World::full(false);
    wide(&mut world);
    let forbidden = |target: &Target| {
        (*target == Target::Try("a1".into())).then(|| refused(429, "DisruptionBudget"))
    };
    let calls = world.run(34, true, forbidden);
    assert_eq!(trials(&calls), ["a0", "a1"]);
    assert!(evictions(&calls).is_empty());
    assert!(events(&calls).contains(&("b0".into(), "ReclaimRefused".into())));
    // Others are found, with a notice of their own; nothing keeps them.
    assert_eq!(evictions(&world.run(40, true, forbidden)), ["a0", "a2"]);
}

#[test]
fn a_nomination_of_the_schedulers_own_stays_and_evicts_no_pod() {
    let mut world = World::full(false);
    world.change("b0", |pod| {
        pod["status"]["nominatedNodeName"] = json!("another");
    });
    let calls = world.run(60, true, |_| None);
    assert!(holes(&calls).is_empty() && evictions(&calls).is_empty());
}

#[test]
fn a_new_leader_keeps_a_hole_whose_victim_is_slow() {
    let mut world = World::full(false);
    world.run(32, true, |_| None);
    leaves(&mut world, "a0");
    assert!(world.run(20, false, |_| None).is_empty());
    assert!(holes(&world.run(200, true, |_| None)).is_empty());
    world.gone("a0");
    assert!(holes(&world.run(58, true, |_| None)).is_empty());
}

#[test]
fn a_hole_that_the_pod_does_not_use_is_given_up_after_a_minute() {
    let mut world = World::full(false);
    world.run(32, true, |_| None);
    world.gone("a0");
    // A pod that takes no note of it has filled the hole.
    world.pod("a", "faster", Some("n"));
    let slow = json!({"namespace": "a", "reclaim": {"gracePeriod": "10m"}});
    world.consumer("a", &slow);
    assert!(holes(&world.run(58, true, |_| None)).is_empty());
    let given_up = [("b0".into(), Some(String::new()), Some(String::new()))];
    assert_eq!(holes(&world.run(4, true, |_| None)), given_up);
}

#[test]
fn a_new_leader_keeps_the_hole_and_none_that_a_tenant_makes_up() {
    let mut world = World::full(false);
    world.run(32, true, |_| None);
    leaves(&mut world, "a0");
    assert!(world.run(20, false, |_| None).is_empty());
    assert!(holes(&world.run(20, true, |_| None)).is_empty());
    world.gone("a0");
    starts(&mut world, "b0");
    world.run(2, true, |_| None);
    // What a tenant can write, and what the scheduler has written for its own reasons.
    let mut pod = world.pod_object("b", "b1", None);
    pod["metadata"]["annotations"] = json!({ROOM_ON: "n"});
    world.see_pod(pod);
    let mut pod = world.pod_object("b", "b2", None);
    pod["status"]["nominatedNodeName"] = json!("n");
    world.see_pod(pod);
    let calls = world.run(20, true, |_| None);
    assert_eq!(holes(&calls), [("b1".into(), Some(String::new()), None)]);
}

/// As an earlier leader left it.
fn pod_with_hole(world: &mut World, namespace: &str, name: &str) -> Value {
    let mut pod = world.pod_object(namespace, name, None);
    pod["metadata"]["annotations"] = json!({ROOM_ON: "n"});
    pod["status"]["nominatedNodeName"] = json!("n");
    pod
}

#[test]
fn a_new_leader_takes_back_a_hole_of_a_namespace_that_shares_no_more() {
    let mut world = World::full(false);
    for (namespace, name) in [("b", "b1"), ("nobody", "x")] {
        let pod = pod_with_hole(&mut world, namespace, name);
        world.see_pod(pod);
    }
    let given_up = [("x".into(), Some(String::new()), Some(String::new()))];
    assert_eq!(holes(&world.run(10, true, |_| None)), given_up);
}

#[test]
fn a_hole_is_taken_back_only_as_it_was_seen_and_not_once_it_is_wanted_again() {
    let mut world = World::full(false);
    let pod = pod_with_hole(&mut world, "nobody", "x");
    let version = pod["metadata"]["resourceVersion"].clone();
    world.see_pod(pod);
    let calls = world.run(10, true, |_| None);
    let (_, taken_back) = calls
        .iter()
        .find(|(target, _)| *target == Target::Hole("x".into()))
        .unwrap();
    let body: Value = serde_json::from_slice(&taken_back.body).unwrap();
    assert_eq!(body["metadata"]["resourceVersion"], version);
    // The queue says that the hole has ended, and since then it is kept.
    let mut world = World::full(false);
    world.run(32, true, |_| None);
    let target = Target::Hole("b0".into());
    assert!(world.arbiter.is_wanted_again(&target, world.ms));
    starts(&mut world, "b0");
    assert!(!world.arbiter.is_wanted_again(&target, world.ms));
}

/// Pods that are alike come within a second, in cycles of their own, the last in the order of UIDs first. Victims are
/// slow.
#[test]
fn each_pod_keeps_the_room_that_was_begun_for_it() {
    let mut world = World::full(false);
    world.arbiter.settings.cycle_ms = 200;
    world.gone("b0");
    let mut evicted = Vec::new();
    for turn in 0..300 {
        if turn < 5 {
            world.pod("b", &format!("b{}", 4 - turn), None);
        }
        for victim in evictions(&world.run(1, true, |_| None)) {
            leaves(&mut world, &victim);
            evicted.push(victim);
        }
        world.ms -= 800;
    }
    assert_eq!(evicted.len(), 5, "{evicted:?}");
    let pods = world.pods.values();
    let kept = pods.filter(|pod| pod["status"]["nominatedNodeName"] == "n");
    assert_eq!(kept.count(), 5, "one hole for each");
}

/// Whether the scheduler has tried its pod before is not known, and it may have been taken: no sign of the scheduler
/// need follow.
#[test]
fn a_hole_that_was_free_before_a_leader_came_is_no_doubt_about_the_scheduler() {
    let mut world = World::full(false);
    world.no_scheduler = true;
    let pod = pod_with_hole(&mut world, "b", "b0");
    world.see_pod(pod);
    // Another pod of `b` has it.
    world.gone("a0");
    world.pod("b", "b1", Some("n"));
    for _ in 0..12 {
        world.run(10, true, |_| None);
        assert!(!world.held().contains("kube-scheduler"), "{}", world.held());
    }
    // One that comes free later is.
    let mut world = World::full(false);
    world.no_scheduler = true;
    let pod = pod_with_hole(&mut world, "b", "b0");
    world.see_pod(pod);
    leaves(&mut world, "a0");
    world.run(10, true, |_| None);
    world.gone("a0");
    world.run(25, true, |_| None);
    assert!(world.held().contains("kube-scheduler"), "{}", world.held());
}

/// A script of the owner takes the annotation off whenever it appears.
#[test]
fn who_takes_the_mark_of_a_hole_off_takes_no_writes_of_others_and_keeps_no_room() {
    let mut world = World::full(false);
    for at in 1..5 {
        world.pod("b", &format!("b{at}"), None);
    }
    let (mut written, mut evicted) = (0, Vec::new());
    for _ in 0..60 {
        let calls = world.run(1, true, |_| None);
        written += holes(&calls).len();
        for victim in evictions(&calls) {
            leaves(&mut world, &victim);
            evicted.push(victim);
        }
        let pods: Vec<Value> = world.pods.values().cloned().collect();
        for mut pod in pods
            .into_iter()
            .filter(|pod| pod["spec"]["nodeName"].is_null())
        {
            pod["metadata"]["annotations"] = json!({});
            world.see_pod(pod);
        }
    }
    assert_eq!(evicted.len(), 5, "{evicted:?}");
    assert_eq!(written, 5, "each hole once");
    // What is given up is taken back also without the annotation.
    for victim in &evicted {
        world.pod("a", &format!("faster-{victim}"), Some("n"));
        world.gone(victim);
    }
    world.consumer(
        "a",
        &json!({"namespace": "a", "reclaim": {"gracePeriod": "10m"}}),
    );
    world.run(70, true, |_| None);
    let mut pods = world.pods.values();
    let nominated = pods.find(|pod| pod["status"]["nominatedNodeName"].is_string());
    assert_eq!(nominated, None);
}

/// Its owner took the mark off, the Lease was lost, and then the scheduler has named the same node by itself.
#[test]
fn who_has_lost_the_lease_takes_no_nomination_for_its_own() {
    let mut world = World::full(false);
    assert_eq!(holes(&world.run(32, true, |_| None)), [kept("n")]);
    let mut pod = world.pods["b0"].clone();
    assert_eq!(pod["status"]["nominatedNodeName"], "n");
    pod["metadata"]["annotations"] = json!({});
    world.see_pod(pod);
    world.run(20, false, |_| None);
    // There is room by now, so that this process keeps none.
    world.gone("a0");
    assert!(holes(&world.run(30, true, |_| None)).is_empty());
}

#[test]
fn in_doubt_a_hole_that_was_made_stays() {
    let mut world = World::full(false);
    world.run(32, true, |_| None);
    leaves(&mut world, "a0");
    let missed = WatchEvent::Missed("away".into());
    world.arbiter.hear(Kind::Budgets, missed);
    assert!(holes(&world.run(90, true, |_| None)).is_empty());
    world.arbiter.hear(Kind::Budgets, WatchEvent::Word);
    assert!(holes(&world.run(30, true, |_| None)).is_empty());
}

#[test]
fn a_dry_run_keeps_no_hole() {
    let mut world = World::full(true);
    let calls = world.run(40, true, |_| None);
    assert!(holes(&calls).is_empty());
    assert_eq!(evictions(&calls), ["a0"]);
}

/// Pods of a Job that ends before it has started, and of the next Job: each has a UID of its own.
#[test]
fn jobs_that_come_one_after_the_other_do_not_miss_their_holes_for_ever() {
    let mut world = World::full(false);
    let mut evicted = Vec::new();
    world.gone("b0");
    for at in 0..8 {
        let job = format!("b-job{at}");
        world.pod("b", &job, None);
        let calls = world.run(34, true, |_| None);
        for victim in evictions(&calls) {
            world.gone(&victim);
            // It takes the hole as the Job's pod does not.
            world.pod("a", &format!("{victim}-successor"), Some("n"));
            evicted.push(at);
        }
        world.run(4, true, |_| None);
        world.gone(&job);
        world.run(1, true, |_| None);
    }
    // None for a minute after the second one, and for two minutes after the third.
    assert_eq!(evicted, [0, 1, 4]);
    // One that takes its room is a sign that the next one does, too.
    let mut world = World::full(false);
    world.gone("b0");
    for at in 0..4 {
        let job = format!("b-job{at}");
        world.pod("b", &job, None);
        let calls = world.run(34, true, |_| None);
        let victims = evictions(&calls);
        assert_eq!(victims.len(), 1, "{at}");
        world.gone(&victims[0]);
        if at % 2 == 1 {
            // It starts and ends between two cycles.
            let placed = world.pods[&job].clone();
            world.pod("b", "other", None);
            let mut placed = placed;
            placed["spec"]["nodeName"] = json!("n");
            world.see_pod(placed);
        }
        world.gone(&job);
        if at % 2 == 1 {
            world.gone("other");
        }
        world.pod("a", &format!("{}-successor", victims[0]), Some("n"));
        world.run(2, true, |_| None);
    }
}
