//! Random Consumers with their pods, and random clusters.

use plimsoll_core::arbitration::amounts::{Amounts, Bounds, Resources};
use plimsoll_core::arbitration::cluster::{Cluster, Node, NodeState, Options, Pod};
use plimsoll_core::arbitration::demand::Counting;
use plimsoll_core::arbitration::groups::{Ask, Consumer};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// How many resources the random cases have.
const RESOURCES: usize = 3;

/// Consumers and what their pods ask for.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) capacity: Bounds,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) asks: Vec<Ask>,
}

/// What bounds a random Consumer has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounded {
    pub(crate) by_hard: bool,
    pub(crate) by_reserved: bool,
    /// Pods of one Consumer request different resources.
    pub(crate) mixed: bool,
    pub(crate) in_groups: bool,
    pub(crate) unlimited: bool,
    /// Every pod requests every resource.
    pub(crate) need_all: bool,
}

/// One class each and no bounds: what the papers' theorems speak of.
pub(crate) const PLAIN: Bounded = Bounded {
    by_hard: false,
    by_reserved: false,
    mixed: false,
    in_groups: false,
    unlimited: false,
    need_all: false,
};

/// Everything but groups.
pub(crate) const FLAT: Bounded = Bounded {
    by_hard: true,
    by_reserved: true,
    mixed: true,
    in_groups: false,
    unlimited: true,
    need_all: false,
};

/// Everything.
pub(crate) const TREE: Bounded = Bounded {
    in_groups: true,
    ..FLAT
};

#[derive(Debug, Clone)]
struct Kind {
    /// In 64ths of the capacity.
    requests: [u64; RESOURCES],
    odd: u64,
    count: u64,
    bound: bool,
}

#[derive(Debug, Clone)]
struct Row {
    weight: u64,
    kinds: Vec<Kind>,
    hard: [Option<u64>; RESOURCES],
    reserved: [u64; RESOURCES],
    parent: usize,
    unlimited: bool,
}

fn capacity() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(0)),
        4 => (1..40_u64).prop_map(Some),
        4 => (1_000..100_000_u64).prop_map(Some),
        4 => ((1_u64 << 30)..(1 << 44)).prop_map(Some),
        1 => ((1_u64 << 50)..(1 << 57)).prop_map(Some),
    ]
}

fn kind(need_all: bool) -> impl Strategy<Value = Kind> {
    let least = u64::from(need_all);
    let request = prop_oneof![2 => Just(least), 3 => 1..40_u64];
    (
        [request.clone(), request.clone(), request],
        0..7_u64,
        1..12_u64,
        any::<bool>(),
    )
        .prop_map(|(requests, odd, count, bound)| Kind {
            requests,
            odd,
            count,
            bound,
        })
}

fn row(bounded: Bounded) -> impl Strategy<Value = Row> {
    let kinds = if bounded.mixed { 4 } else { 1 };
    let hard =
        option::weighted(0.3, 0..64_u64).prop_map(move |hard| hard.filter(|_| bounded.by_hard));
    let reserved =
        prop_oneof![2 => Just(0), 1 => 0..(if bounded.by_reserved { 40_u64 } else { 1 })];
    let weight = prop_oneof![4 => 1..5_u64, 1 => 1..1_000_001_u64];
    (
        weight,
        vec(kind(bounded.need_all), 0..=kinds),
        [hard.clone(), hard.clone(), hard],
        [reserved.clone(), reserved.clone(), reserved],
        any::<usize>(),
        prop::bool::weighted(0.1).prop_map(move |unlimited| unlimited && bounded.unlimited),
    )
        .prop_map(|(weight, kinds, hard, reserved, parent, unlimited)| Row {
            weight,
            kinds,
            hard,
            reserved,
            parent,
            unlimited,
        })
}

/// So many 64ths of a capacity, and a bit.
fn scaled(capacity: Option<u64>, parts: u64, odd: u64) -> u64 {
    match parts {
        0 => 0,
        _ => {
            let exact = u128::from(capacity.unwrap_or(1000)) * u128::from(parts) / 64;
            u64::try_from(exact).unwrap() / 8 + odd.max(1)
        }
    }
}

/// Random Consumers.
pub(crate) fn cases(bounded: Bounded) -> impl Strategy<Value = Case> {
    let groups = if bounded.in_groups { 4_usize } else { 0 };
    let capacity = [capacity(), capacity(), capacity()];
    (capacity, vec(row(bounded), 1..9), 0..=groups, any::<bool>()).prop_map(
        |(capacity, rows, groups, groups_first)| case(capacity.into(), &rows, groups, groups_first),
    )
}

fn case(capacity: Bounds, rows: &[Row], groups: usize, groups_first: bool) -> Case {
    let groups = groups.min(rows.len());
    let group_at = |group: usize| {
        if groups_first {
            group
        } else {
            rows.len() - 1 - group
        }
    };
    let number = |at: usize| (0..groups).find(|group| group_at(*group) == at);
    let (mut consumers, mut asks) = (Vec::new(), Vec::new());
    for (at, row) in rows.iter().enumerate() {
        let above = number(at).unwrap_or(groups);
        let parent = (row.parent % (above + 1)).checked_sub(1).map(group_at);
        let is_group = number(at).is_some();
        let hard: Bounds = (0..RESOURCES)
            .map(|r| row.hard[r].map(|parts| scaled(capacity[r], parts, 3) * 4))
            .collect();
        let mut counting = Counting::new(&hard, &capacity);
        let mut used: Amounts = vec![0; RESOURCES].into();
        let mut kinds: Vec<&Kind> = row.kinds.iter().filter(|_| !is_group).collect();
        kinds.sort_by_key(|kind| !kind.bound);
        for kind in kinds {
            let requests: Vec<u64> = (0..RESOURCES)
                .map(|r| scaled(capacity[r], kind.requests[r], kind.odd))
                .collect();
            counting.add(&requests, kind.count);
            for (used, request) in used.iter_mut().zip(&requests).filter(|_| kind.bound) {
                *used += request * kind.count;
            }
        }
        let (demand, passed_over) = counting.finish();
        asks.push(Ask {
            demand,
            used,
            passed_over,
        });
        consumers.push(Consumer {
            parent,
            weight: row.weight,
            reserved: (0..RESOURCES)
                .map(|r| scaled(capacity[r], row.reserved[r], 1))
                .collect(),
            hard,
            unlimited: row.unlimited && parent.is_none() && !is_group,
        });
    }
    Case {
        capacity,
        consumers,
        asks,
    }
}

#[derive(Debug, Clone)]
struct PodRow {
    namespace: usize,
    node: Option<usize>,
    requests: [u64; 2],
    priority: i64,
    seconds: u64,
    leaving: bool,
    daemon: bool,
    only: Option<usize>,
    budget: Option<usize>,
}

fn pod_row() -> impl Strategy<Value = PodRow> {
    (
        any::<usize>(),
        option::weighted(0.7, 0..3_usize),
        [0..5_u64, 0..4_u64],
        prop_oneof![4 => Just(0), 1 => 1..3_i64],
        prop_oneof![1 => 0..90_u64, 3 => 90..2000_u64],
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.05),
        (
            option::weighted(0.1, 0..3_usize),
            option::weighted(0.15, 0..2_usize),
        ),
    )
        .prop_map(
            |(namespace, node, requests, priority, seconds, leaving, daemon, (only, budget))| {
                PodRow {
                    namespace,
                    node,
                    requests,
                    priority,
                    seconds,
                    leaving,
                    daemon,
                    only,
                    budget,
                }
            },
        )
}

/// Random small clusters: three nodes, two resources, some namespaces in up to two groups.
pub(crate) fn clusters() -> impl Strategy<Value = Cluster> {
    let namespaces = vec(
        (
            1..4_u64,
            option::weighted(0.2, 2..12_u64),
            prop_oneof![2 => Just(0), 1 => 1..6_u64],
            0..3_usize,
        ),
        2..5,
    );
    let sizes = [4..13_u64, 4..13, 4..13];
    let states = vec(
        prop_oneof![8 => Just(NodeState::Ready), 1 => Just(NodeState::Cordoned), 1 => Just(NodeState::NotReady)],
        3,
    );
    (
        namespaces,
        vec(pod_row(), 3..22),
        sizes,
        states,
        [0..3_u64, 0..3],
    )
        .prop_map(|(namespaces, pods, sizes, states, budgets)| {
            cluster(&namespaces, &pods, sizes, &states, budgets)
        })
}

fn cluster(
    namespaces: &[(u64, Option<u64>, u64, usize)],
    pods: &[PodRow],
    sizes: [u64; 3],
    states: &[NodeState],
    budgets: [u64; 2],
) -> Cluster {
    let resources = Resources::new(["cpu", "memory"].map(str::to_owned)).unwrap();
    let groups = 2;
    let mut consumers: Vec<Consumer> = (0..groups)
        .map(|_| Consumer {
            parent: None,
            weight: 1,
            hard: resources.unbounded(),
            reserved: resources.none(),
            unlimited: false,
        })
        .collect();
    for (weight, hard, reserved, parent) in namespaces {
        consumers.push(Consumer {
            parent: parent.checked_sub(1),
            weight: *weight,
            hard: [*hard, None].into(),
            reserved: [*reserved, 0].into(),
            unlimited: false,
        });
    }
    let nodes = (0..3)
        .map(|at| Node {
            name: format!("n{at}"),
            allocatable: [Some(sizes[at]), Some(sizes[at])].into(),
            withheld: resources.none(),
            state: states[at],
        })
        .collect();
    let pods = pods.iter().enumerate();
    let pods = pods.map(|(at, row)| Pod {
        uid: format!("pod-{at:02}"),
        namespace: groups + row.namespace % namespaces.len(),
        node: row.node,
        requests: row.requests.into(),
        priority: row.priority,
        age: row.node.map_or(0, |_| row.seconds),
        waiting: row.node.map_or(row.seconds, |_| 0),
        leaving: row.leaving && row.node.is_some(),
        daemon: row.daemon,
        nodes: row.only.map(|node| vec![node].into()),
        budgets: row.budget.into_iter().collect(),
    });
    Cluster {
        nodes,
        names: (0..consumers.len()).map(|at| format!("c{at}")).collect(),
        consumers,
        pods: pods.collect(),
        budgets: budgets.to_vec(),
        options: Options::default(),
        resources,
    }
}
