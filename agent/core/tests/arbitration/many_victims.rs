//! More than three victims: any set from which none can be left out will do, and one is found.

use plimsoll_core::arbitration::amounts::Resources;
use plimsoll_core::arbitration::arbitrate;
use plimsoll_core::arbitration::cluster::{Cluster, Node, NodeState, Options, Pod};
use plimsoll_core::arbitration::groups::Consumer;
use plimsoll_core::arbitration::plan::Action;

/// One node of 16 CPUs and 16 GPUs that `c` uses whole; it deserves 9 and 8, and has 5 and 2 for sure. The pod of `z`
/// that waits requests 7 and 8.
fn cluster() -> Cluster {
    let resources = Resources::new(["cpu", "gpu"].map(str::to_owned)).unwrap();
    let consumer = |weight, reserved: [u64; 2]| Consumer {
        parent: None,
        weight,
        hard: resources.unbounded(),
        reserved: reserved.into(),
        unlimited: false,
    };
    let pod = |uid: &str, requests: [u64; 2], priority, age, has_budget| Pod {
        uid: uid.to_owned(),
        namespace: 0,
        node: Some(0),
        requests: requests.into(),
        priority,
        age,
        waiting: 0,
        leaving: false,
        daemon: false,
        nodes: None,
        budgets: if has_budget { vec![0] } else { Vec::new() },
    };
    Cluster {
        nodes: vec![Node {
            name: "n".to_owned(),
            allocatable: [Some(16), Some(16)].into(),
            withheld: [0, 0].into(),
            state: NodeState::Ready,
        }],
        consumers: vec![consumer(2, [5, 2]), consumer(5, [0, 0])],
        names: ["c", "z"].map(str::to_owned).into(),
        pods: vec![
            pod("u00", [2, 0], 0, 200, true),
            pod("u01", [1, 1], 0, 100, false),
            pod("u02", [2, 0], 1, 100, false),
            pod("u03", [2, 2], 0, 100, false),
            pod("u04", [3, 1], 0, 200, true),
            pod("u05", [0, 3], 0, 200, false),
            pod("u06", [2, 2], 0, 100, false),
            pod("u07", [0, 3], 0, 200, true),
            pod("u08", [2, 1], 0, 100, false),
            pod("u09", [0, 2], 1, 100, false),
            Pod {
                namespace: 1,
                node: None,
                waiting: 100,
                ..pod("p", [7, 8], 0, 0, false)
            },
        ],
        budgets: vec![1],
        options: Options::default(),
        resources,
    }
}

/// The first pods in the order of eviction keep later ones from going: without one of them there is a set.
#[test]
fn a_set_is_found_where_the_first_pods_are_in_the_way() {
    let cycle = arbitrate(&cluster());
    let [step] = &*cycle.steps else {
        panic!("{:?}", cycle.steps);
    };
    let Action::Preempt { evict, .. } = &step.action else {
        panic!("{:?}", step.action);
    };
    assert_eq!(evict.len(), 4);
}
