//! Victims of greater priority than the pod for which they would go.

use super::*;
use crate::arbitration::amounts::Resources;
use crate::arbitration::cluster::{Node, Options};
use crate::arbitration::groups::deserve;

/// A node that six pods of `a` fill; `b` and `c` wait with a pod of these priorities.
fn full(priorities: [i64; 2], spares_greater_priority: bool) -> Cluster {
    let resources = Resources::new(["cpu".to_owned()]).unwrap();
    let consumer = || plain_consumer(&resources);
    let pod = |at: usize| Pod {
        uid: format!("u{at}"),
        namespace: at.saturating_sub(5),
        node: (at < 6).then_some(0),
        requests: [1].into(),
        priority: if at < 6 { 5 } else { priorities[at - 6] },
        age: 1000,
        waiting: 1000,
        ..Pod::default()
    };
    Cluster {
        nodes: vec![Node {
            name: "n".to_owned(),
            allocatable: [Some(6)].into(),
            withheld: [0].into(),
            state: NodeState::Ready,
        }],
        consumers: vec![consumer(), consumer(), consumer()],
        names: ["a", "b", "c"].map(str::to_owned).into(),
        pods: (0..8).map(pod).collect(),
        budgets: Vec::new(),
        options: Options {
            spares_greater_priority,
            ..Options::default()
        },
        resources,
    }
}

fn evicted(cluster: &Cluster) -> Vec<usize> {
    let census = Census::of(cluster);
    let deserved = deserve(&cluster.consumers, &census.asks, &census.capacity);
    let entitled = entitled::entitled(cluster, &census, &deserved);
    let steps = plan(
        cluster,
        &census,
        &deserved,
        &entitled,
        &mut Turns::default(),
    );
    let victims = steps.iter().map(|step| match &step.action {
        Action::Preempt { evict, .. } => evict.len(),
        Action::Blocked => 0,
        other => panic!("{other:?}"),
    });
    victims.collect()
}

#[test]
fn greater_priority_is_spared_only_where_the_options_say_so() {
    for (priorities, expected) in [([5, 5], [1, 1]), ([0, 0], [0, 0]), ([9, 9], [1, 1])] {
        assert_eq!(evicted(&full(priorities, true)), expected, "{priorities:?}");
        assert_eq!(evicted(&full(priorities, false)), [1, 1], "{priorities:?}");
    }
}

/// What is found for one is not true of another that requests the same.
#[test]
fn pods_that_differ_in_priority_alone_are_searched_for_one_by_one() {
    assert_eq!(evicted(&full([0, 9], true)), [0, 1]);
    assert_eq!(evicted(&full([9, 0], true)), [1, 0]);
}
