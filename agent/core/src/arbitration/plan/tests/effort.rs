//! How much is tried to find victims, counted in sets.

use super::*;
use crate::arbitration::amounts::Resources;
use crate::arbitration::cluster::{Node, Options};
use crate::arbitration::groups::deserve;

const NODES: usize = 200;
const ON_A_NODE: usize = 110;

/// Nodes that pods of `a` fill, which request so much; pods of `b` wait that request `wanted`.
fn full(requests: impl Fn(usize) -> [u64; 2], wanted: &[[u64; 2]], most: usize) -> Cluster {
    let resources = Resources::new(["cpu", "pods"].map(str::to_owned)).unwrap();
    let consumer = || plain_consumer(&resources);
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
            .fold(0, u64::saturating_add)
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
    let all = (Vec::new(), Most::default());
    let mut planner = Planner::new(cluster, &census, &deserved, &entitled, all);
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

/// Pods of `b`, each of which has to be searched for in vain: a budget forbids that two leave.
fn in_vain(waiting: u64) -> Cluster {
    let wanted: Vec<[u64; 2]> = (0..waiting).map(|at| [300 + at, 1]).collect();
    let mut cluster = full(|at| [200 + at as u64 % 12, 1], &wanted, 100);
    let nodes = 5;
    cluster.nodes.truncate(nodes);
    cluster
        .pods
        .retain(|pod| pod.node.is_none_or(|node| node < nodes));
    cluster.budgets = vec![1];
    for pod in cluster.pods.iter_mut().filter(|pod| pod.node.is_some()) {
        pod.budgets = vec![0];
    }
    cluster
}

/// Pods for which nothing was found and nothing more is to be searched.
fn decided(cluster: &Cluster, turns: &mut Turns, most: Most) -> Vec<usize> {
    let census = Census::of(cluster);
    let deserved = deserve(&cluster.consumers, &census.asks, &census.capacity);
    let entitled = entitled::entitled(cluster, &census, &deserved);
    let steps = plan_within(cluster, &census, &deserved, &entitled, turns, most);
    let blocked = steps.iter().filter(|step| step.action == Action::Blocked);
    blocked.map(|step| step.pod).collect()
}

#[test]
fn each_pod_has_its_turn_where_a_cycle_cannot_search_for_all() {
    const WAITING: usize = 9;
    let (actions, sets, _) = effort(&in_vain(1));
    assert_eq!(actions, [Action::Blocked]);
    assert!(sets > 100, "{sets} sets");
    let cluster = in_vain(WAITING as u64);
    let few = Most {
        sets: sets * 9 / 2,
        ..Most::default()
    };
    // Without a word of earlier cycles always the same.
    let first = decided(&cluster, &mut Turns::default(), few);
    assert!((1..WAITING).contains(&first.len()), "{first:?}");
    assert_eq!(decided(&cluster, &mut Turns::default(), few), first);
    let mut turns = Turns::default();
    let mut looked_at = std::collections::BTreeSet::new();
    for _ in 0..2 * WAITING {
        looked_at.extend(decided(&cluster, &mut turns, few));
    }
    assert_eq!(looked_at.len(), WAITING);
    // Where all can be searched for nothing is left of it.
    assert_eq!(
        decided(&cluster, &mut turns, Most::default()).len(),
        WAITING
    );
    assert_eq!(turns.waiting(), 0);
}

/// Seventeen pods that each request nearly 2^60, which nobody but the API server's own bounds forbids.
#[test]
fn more_than_can_be_counted_is_the_most_that_can() {
    const MOST: u64 = (1 << 60) - 1;
    let mut cluster = full(|_| [MOST, 1], &[[5, 1]], 100);
    cluster.nodes.truncate(1);
    cluster.nodes[0].allocatable[0] = Some(MOST);
    cluster
        .pods
        .retain(|pod| pod.node.is_none_or(|node| node == 0));
    cluster.pods.drain(17..ON_A_NODE);
    // At any loss: what is gained is nothing beside it.
    cluster.consumers[1].reserved = [5, 1].into();
    let (actions, ..) = effort(&cluster);
    assert_eq!(actions.iter().map(victims).collect::<Vec<_>>(), [17]);
}
