//! How long the arbitrator takes: what namespaces deserve, a whole cycle, and a cycle after one pod has changed; by the
//! number of namespaces, beside the plain reading of the specification.

#[expect(
    clippy::unwrap_used,
    reason = "an oracle of the tests: it overflows aloud"
)]
#[path = "../../agent/core/tests/arbitration/plain.rs"]
mod plain;

use std::hint::black_box;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use plimsoll_core::arbitration::amounts::{Amounts, Resources};
use plimsoll_core::arbitration::arbitrate;
use plimsoll_core::arbitration::census::Census;
use plimsoll_core::arbitration::cluster::{Cluster, Node, NodeState, Options, Pod};
use plimsoll_core::arbitration::groups::{Consumer, deserve};

/// The time for which this thread had a CPU, so that what else the machine does is not in the figures.
struct CpuTime;

impl CpuTime {
    fn now_ns() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let first = text.split_whitespace().next();
        first.and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

impl Measurement for CpuTime {
    type Intermediate = u64;
    type Value = u64;

    fn start(&self) -> u64 {
        Self::now_ns()
    }

    fn end(&self, start: u64) -> u64 {
        Self::now_ns() - start
    }

    fn add(&self, a: &u64, b: &u64) -> u64 {
        a + b
    }

    fn zero(&self) -> u64 {
        0
    }

    fn to_f64(&self, value: &u64) -> f64 {
        *value as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// Namespaces in a group, pods of a namespace, pods on a node.
const IN_A_GROUP: usize = 100;
const IN_A_NAMESPACE: usize = 10;
const ON_A_NODE: usize = 20;

/// In the order of their names: cpu, memory, nvidia.com/gpu, pods.
const NODE: [u64; 4] = [16_000, 64 << 30, 1, 110];

/// A scattered but fixed cluster that is short of CPU: nodes are full, a tenth of the pods waits, every third namespace
/// has a reservation and every fifth a `hard`.
fn cluster(namespaces: usize, in_groups: bool) -> Cluster {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: u64| {
        // xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let resources = Resources::new(["cpu", "memory", "nvidia.com/gpu", "pods"].map(str::to_owned));
    let resources = resources.unwrap_or_default();
    let groups = if in_groups {
        namespaces.div_ceil(IN_A_GROUP)
    } else {
        0
    };
    let consumer = |parent, weight, hard, reserved: Amounts| Consumer {
        parent,
        weight,
        hard,
        reserved,
        unlimited: false,
    };
    let mut consumers: Vec<Consumer> = (0..groups)
        .map(|at| {
            consumer(
                None,
                1 + at as u64 % 4,
                resources.unbounded(),
                resources.none(),
            )
        })
        .collect();
    for at in 0..namespaces {
        let parent = in_groups.then_some(at / IN_A_GROUP);
        let hard = [(at % 5 == 0).then_some(24_000), None, None, None];
        let reserved = [if at % 3 == 0 { 2_000 } else { 0 }, 0, 0, 0];
        consumers.push(consumer(parent, 1 + next(8), hard.into(), reserved.into()));
    }
    let pods = namespaces * IN_A_NAMESPACE;
    let nodes = pods.div_ceil(ON_A_NODE);
    let pods = (0..pods).map(|at| {
        let pends = next(10) == 0;
        Pod {
            uid: format!("{:016x}", next(u64::MAX)),
            namespace: groups + (next(namespaces as u64) as usize + at % namespaces) / 2,
            node: (!pends).then_some(at % nodes),
            requests: [
                250 * (1 + next(5)),
                (1 + next(6)) << 30,
                u64::from(next(20) == 0),
                1,
            ]
            .into(),
            priority: [0, 0, 0, 1000][next(4) as usize],
            age: 100 + next(100_000),
            waiting: 100 + next(1000),
            leaving: false,
            daemon: next(20) == 0,
            nodes: None,
            budgets: Vec::new(),
        }
    });
    Cluster {
        pods: pods.collect(),
        nodes: (0..nodes)
            .map(|at| Node {
                name: format!("n{at:06}"),
                allocatable: NODE.map(Some).into(),
                withheld: [0; 4].into(),
                state: NodeState::Ready,
            })
            .collect(),
        names: (0..consumers.len()).map(|at| format!("c{at:06}")).collect(),
        consumers,
        budgets: Vec::new(),
        options: Options::default(),
        resources,
    }
}

fn sizes(criterion: &mut Criterion<CpuTime>) {
    for in_groups in [false, true] {
        let how = if in_groups { "in_groups" } else { "flat" };
        let mut group = criterion.benchmark_group(format!("arbitration_{how}"));
        group.sample_size(10);
        for namespaces in [100, 1_000, 10_000, 100_000] {
            let cluster = cluster(namespaces, in_groups);
            let census = Census::of(&cluster);
            group.bench_with_input(
                BenchmarkId::new("census", namespaces),
                &cluster,
                |bencher, cluster| {
                    bencher.iter(|| Census::of(black_box(cluster)));
                },
            );
            group.bench_with_input(
                BenchmarkId::new("deserved", namespaces),
                &cluster,
                |bencher, cluster| {
                    bencher.iter(|| {
                        deserve(
                            black_box(&cluster.consumers),
                            &census.asks,
                            &census.capacity,
                        )
                    });
                },
            );
            group.bench_with_input(
                BenchmarkId::new("cycle", namespaces),
                &cluster,
                |bencher, cluster| {
                    bencher.iter(|| arbitrate(black_box(cluster)));
                },
            );
            if namespaces <= 1_000 {
                group.bench_with_input(
                    BenchmarkId::new("deserved_plain", namespaces),
                    &cluster,
                    |bencher, cluster| {
                        bencher.iter(|| {
                            plain::deserve(
                                black_box(&cluster.consumers),
                                &census.asks,
                                &census.capacity,
                            )
                        });
                    },
                );
            }
        }
        group.finish();
    }
}

/// A pod for which three victims are needed, on nodes that 110 pods fill: equal ones, and such as all differ.
fn three_victims(criterion: &mut Criterion<CpuTime>) {
    let mut group = criterion.benchmark_group("arbitration_three_victims");
    group.sample_size(10);
    for (name, kinds, wanted) in [("equal", 1, 300), ("different", 110, 580)] {
        for nodes in [20, 200] {
            let cluster = full(nodes, kinds, wanted);
            group.bench_with_input(
                BenchmarkId::new(name, nodes),
                &cluster,
                |bencher, cluster| {
                    bencher.iter(|| arbitrate(black_box(cluster)));
                },
            );
        }
    }
    group.finish();
}

/// Nodes that pods of one namespace fill, of so many kinds; a pod of another one waits.
fn full(nodes: usize, kinds: usize, wanted: u64) -> Cluster {
    const PODS: usize = 110;
    let mut cluster = cluster(2, false);
    let of = |at: usize, node: Option<usize>, cpu: u64| Pod {
        uid: format!("{:016x}", (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        namespace: usize::from(node.is_none()),
        node,
        requests: [cpu, 0, 0, 1].into(),
        priority: 0,
        age: 1000 + (at * 7919 % 10_007) as u64,
        waiting: 1000,
        leaving: false,
        daemon: false,
        nodes: None,
        budgets: Vec::new(),
    };
    let cpu = |at: usize| 100 + (at % PODS % kinds) as u64;
    let pods = (0..nodes * PODS).map(|at| of(at, Some(at / PODS), cpu(at)));
    cluster.pods = pods.chain([of(nodes * PODS, None, wanted)]).collect();
    for consumer in &mut cluster.consumers {
        consumer.reserved = [0; 4].into();
        consumer.hard = [None; 4].into();
    }
    cluster.nodes = (0..nodes)
        .map(|at| Node {
            name: format!("n{at:06}"),
            allocatable: [
                Some((0..PODS).map(cpu).sum()),
                Some(64 << 30),
                Some(0),
                Some(220),
            ]
            .into(),
            withheld: [0; 4].into(),
            state: NodeState::Ready,
        })
        .collect();
    cluster
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = sizes, three_victims
}
criterion_main!(benches);
