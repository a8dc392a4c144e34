//! How much is tried to find victims, counted in sets.

use super::*;
use crate::arbitration::amounts::Resources;
use crate::arbitration::cluster::{Node, Options};
use crate::arbitration::groups::{Consumer, deserve};

const NODES: usize = 200;
const ON_A_NODE: usize = 110;

/// Nodes that pods of `a` fill, which request so much; pods of `b` wait that request `wanted`.
fn full(requests: impl Fn(usize) -> [u64; 2], wanted: &[[u64; 2]], most: usize) -> Cluster {
    let resources = Resources::new(["cpu", "pods"].map(str::to_owned)).unwrap();
    let consumer = || Consumer {
        parent: None,
        weight: 1,
        hard: resources.unbounded(),
        reserved: resources.none(),
        unlimited: false,
    };
    let pod = |at: usize, node: Option<usize>, requests: [u64; 2]| Pod {
        uid: format!("{:05}", at * 7919 % 100_003),
        namespace: usize::from(node.is_none()),
        node,
        requests: requests.into(),
        priority: 0,
        age: 1000 + at as u64 * 104_729 % 9973,
        waiting: 1000,
        leaving: false,
        daemon: false,
        nodes: None,
        budgets: Vec::new(),
    };
    let mut pods: Vec<Pod> = (0..NODES * ON_A_NODE)
        .map(|at| pod(at, Some(at / ON_A_NODE), requests(at)))
        .collect();
    let waiting = wanted.iter().zip(pods.len()..);
    pods.extend(waiting.map(|(wanted, at)| pod(at, None, *wanted)));
    let cpu = |node: usize| -> u64 {
        pods[node * ON_A_NODE..][..ON_A_NODE]
            .iter()
            .map(|pod| pod.requests[0])
            .sum()
    };
    Cluster {
        nodes: (0..NODES)
            .map(|at| Node {
                name: format!("n{at:03}"),
                allocatable: [Some(cpu(at)), Some(2 * ON_A_NODE as u64)].into(),
                withheld: [0, 0].into(),
                state: NodeState::Ready,
            })
            .collect(),
        consumers: vec![consumer(), consumer()],
        names: ["a", "b"].map(str::to_owned).into(),
        pods,
        budgets: Vec::new(),
        options: Options {
            max_evictions_per_cycle: most,
            ..Options::default()
        },
        resources,
    }
}

/// What is done for each pod that waits, the sets that were tried, and the pods that were looked at.
fn effort(cluster: &Cluster) -> (Vec<Action>, u64, u64) {
    let census = Census::of(cluster);
    let deserved = deserve(&cluster.consumers, &census.asks, &census.capacity);
    let entitled = entitled::entitled(cluster, &census, &deserved);
    let mut planner = Planner::new(cluster, &census, &deserved, &entitled);
    let actions = entitled.iter().map(|entitled| planner.serve(entitled));
    let actions = actions.collect();
    (actions, planner.sets.spent, planner.steps.spent)
}

fn victims(action: &Action) -> usize {
    match action {
        Action::Preempt { evict, .. } => evict.len(),
        _ => 0,
    }
}

/// All sets of two and three pods would be 44 million for each pod that waits.
#[test]
fn of_equal_pods_it_matters_only_how_many_leave() {
    let cluster = full(|_| [100, 1], &[[300, 1]; 30], 100);
    let (actions, sets, steps) = effort(&cluster);
    assert_eq!(actions.len(), 30);
    assert!(
        actions.iter().all(|action| victims(action) == 3),
        "{actions:?}"
    );
    assert!(sets <= 30 * 3 * NODES as u64, "{sets} sets");
    assert!(steps <= 30 * NODES as u64, "{steps} steps");
}

/// Each pod requests something else, and three are needed.
#[test]
fn of_different_pods_few_sets_are_tried() {
    let cluster = full(|at| [100 + at as u64 % 110, 1], &[[580, 1]; 5], 100);
    let (actions, sets, steps) = effort(&cluster);
    assert!(
        actions.iter().all(|action| victims(action) == 3),
        "{actions:?}"
    );
    // Of 220 million.
    assert!(sets < 3_000_000, "{sets} sets");
    assert!(steps <= 5 * 22_000, "{steps} steps");
}

/// Every set of two could be the beginning of one of three, and none is: a budget forbids each.
#[test]
fn what_is_searched_in_vain_ends() {
    let mut cluster = full(|at| [100 + at as u64 % 110, 1], &[[560, 1]; 8], 100);
    cluster.budgets = vec![2];
    for pod in &mut cluster.pods {
        if pod.node.is_some() {
            pod.budgets = vec![0];
        }
    }
    let (actions, sets, _) = effort(&cluster);
    // Cut: they wait.
    assert!(
        actions.iter().all(|action| *action == Action::Limited),
        "{actions:?}"
    );
    assert!(sets <= 4 << 20, "{sets} sets");
    // A pod for which one victim is enough is served all the same.
    let last = cluster.pods.len() - 1;
    cluster.pods[last].requests[0] = 150;
    let (actions, sets, _) = effort(&cluster);
    assert_eq!(actions.iter().map(victims).max(), Some(1), "{actions:?}");
    assert!(sets <= 4 << 20, "{sets} sets");
}
