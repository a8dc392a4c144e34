//! Pods that are being deleted: those that are gone soon make room, others use what they request.

use super::*;

/// The API server shows that the pod is being deleted, and until when it may take.
fn leaves_until(world: &mut World, name: &str, end: &str) {
    let mut pod = world.pods[name].clone();
    pod["metadata"]["deletionTimestamp"] = json!(end);
    world.see_pod(pod);
}

/// The grace that an eviction asks for; none: the pod's own.
fn graces(calls: &[(Target, Call)]) -> Vec<Option<u64>> {
    let evictions = calls
        .iter()
        .filter(|(target, _)| matches!(target, Target::Evict(_)));
    let grace = |(_, call): &(Target, Call)| {
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        body.pointer("/deleteOptions/gracePeriodSeconds")
            .and_then(Value::as_u64)
    };
    evictions.map(grace).collect()
}

/// A tenant deletes its pods, whose grace is a year, to have used nothing.
#[test]
fn a_pod_that_leaves_for_a_year_uses_what_it_requests_and_goes_as_others_do() {
    let mut world = World::full(false);
    let budget = json!({"metadata": {"name": "none", "namespace": "a", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": 0, "observedGeneration": 1}});
    world.see(Kind::Budgets, &budget);
    for at in 0..10 {
        leaves_until(&mut world, &format!("a{at}"), "2027-11-22T10:00:00Z");
    }
    world.pod("a", "more", None);
    let calls = world.run(29, true, |_| None);
    assert!(evictions(&calls).is_empty());
    let entitled: Vec<&String> = world.arbiter.memory.entitled_since.keys().collect();
    assert_eq!(entitled, ["b0"]);
    let calls = world.run(5, true, |_| None);
    assert_eq!(evictions(&calls), ["a0"]);
    assert_eq!(graces(&calls), [Some(30)]);
    // The deletion was an hour ago: so was the end of thirty seconds.
    leaves_until(&mut world, "a0", "2026-11-22T09:00:30Z");
    assert!(evictions(&world.run(29, true, |_| None)).is_empty());
    world.gone("a0");
    let mut pod = world.pods["b0"].clone();
    pod["spec"]["nodeName"] = json!("n");
    world.see_pod(pod);
    assert!(evictions(&world.run(120, true, |_| None)).is_empty());
}

#[test]
fn a_pod_that_is_gone_soon_makes_room_and_one_that_hangs_does_not() {
    let mut world = World::full(false);
    leaves_until(&mut world, "a0", "2026-11-22T10:00:50Z");
    // Until 10:01:50 it may be there still.
    assert!(evictions(&world.run(110, true, |_| None)).is_empty());
    let calls = world.run(50, true, |_| None);
    assert_eq!(evictions(&calls), ["a1"], "a0 would not go");
    assert_eq!(graces(&calls), [None]);
}

#[test]
fn a_long_grace_is_cut_short_after_a_notice_of_its_own() {
    let mut world = World::full(false);
    let calls = world.run(32, true, |_| None);
    assert_eq!(
        (evictions(&calls), graces(&calls)),
        (vec!["a0".into()], vec![None])
    );
    leaves_until(&mut world, "a0", "2026-11-22T10:10:00Z");
    assert!(evictions(&world.run(28, true, |_| None)).is_empty());
    let calls = world.run(15, true, |_| None);
    assert_eq!(
        (evictions(&calls), graces(&calls)),
        (vec!["a0".into()], vec![Some(30)])
    );
}

/// A pod that leaves for long and whose eviction is refused is left alone as others are.
#[test]
fn a_pod_that_leaves_for_long_is_not_evicted_again_and_again() {
    let mut world = World::full(false);
    for at in 0..10 {
        leaves_until(&mut world, &format!("a{at}"), "2027-11-22T10:00:00Z");
    }
    let refuse =
        |target: &Target| matches!(target, Target::Evict(_)).then(|| refused(403, "forbidden"));
    let calls = world.run(60, true, refuse);
    assert_eq!(evictions(&calls), ["a0"], "the next one has notice first");
}
