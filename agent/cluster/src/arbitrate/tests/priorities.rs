//! Pods of greater priority than the one that waits.

use super::*;

fn with_priority(world: &mut World, name: &str, priority: i64) {
    world.change(name, |pod| pod["spec"]["priority"] = json!(priority));
}

/// The successor of such a victim would take the hole: the scheduler keeps room against no pod of greater priority.
#[test]
fn no_pod_of_greater_priority_goes_for_one_of_lesser() {
    let mut world = World::full(false);
    for at in 0..10 {
        with_priority(&mut world, &format!("a{at}"), 1000);
    }
    let calls = world.run(300, true, |_| None);
    assert!(evictions(&calls).is_empty());
    assert_eq!(world.arbiter.judgement.actions["blocked"], 1);
    let written = calls.iter().rev();
    let mut written = written.filter(|(target, _)| *target == Target::Consumer("b".into()));
    let body = String::from_utf8_lossy(&written.next().unwrap().1.body).into_owned();
    assert!(body.contains("greater priorities"), "{body}");
    // One of equal priority keeps its room, and one of lesser does.
    with_priority(&mut world, "a7", 0);
    assert_eq!(evictions(&world.run(40, true, |_| None)), ["a7"]);
    let mut world = World::full(false);
    for at in 0..10 {
        with_priority(&mut world, &format!("a{at}"), 1000);
    }
    with_priority(&mut world, "b0", 1000);
    assert_eq!(evictions(&world.run(40, true, |_| None)), ["a0"]);
}
