//! The merge of topology hints: 8 NUMA nodes and 1, 2 and 3 resources, as lists of all masks (what the kubelet takes
//! 0.034, 10 and 3,800 ms for) and as rules; 64 NUMA nodes and 3 resources.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use plimsoll_core::placement::TopologyHint;
use plimsoll_core::placement::hints::{HintRule, HintSet, Need, Preference, ProviderHints};
use plimsoll_core::placement::merge::{NumaInfo, TopologyPolicy, merge};
use plimsoll_core::placement::numa_distances::NumaDistances;
use plimsoll_core::placement::numa_mask::NumaMask;

fn numa(nodes: u32, closest: bool) -> NumaInfo {
    let nodes: NumaMask = (0..nodes).collect();
    // Sockets of 8 nodes.
    let distance = |from: u32, to: u32| match (from == to, from / 8 == to / 8) {
        (true, _) => 10,
        (_, true) => 12,
        _ => 32,
    };
    let distances = |from, to| Some(distance(from, to));
    NumaInfo {
        nodes,
        distances: closest.then(|| {
            NumaDistances::new(nodes, distances).unwrap_or_else(|error| panic!("{error}"))
        }),
    }
}

fn merge_all(
    numa: &NumaInfo,
    providers: &[ProviderHints],
) -> plimsoll_core::placement::merge::Merged {
    merge(TopologyPolicy::Restricted, numa, black_box(providers))
}

fn provider(at: usize, hints: HintSet) -> ProviderHints {
    [(format!("resource-{at}"), Some(hints))].into()
}

/// Every mask of the nodes; only those of one more node for each further provider are preferred, so that no choice is.
fn all_masks(nodes: u32, providers: u32) -> Vec<ProviderHints> {
    let list = |size: u32| {
        let hint = |mask: u64| TopologyHint {
            mask: Some(NumaMask(mask)),
            preferred: NumaMask(mask).len() == size,
        };
        HintSet::List((1..1 << nodes).map(hint).collect())
    };
    (1..=providers)
        .map(|at| provider(at as usize, list(at)))
        .collect()
}

/// What each node has of a resource, the demand, and the size that is preferred.
fn rule(nodes: u32, has: impl Fn(u32) -> u64, demand: u64, preferred: u32) -> HintSet {
    let all = (0..nodes).collect();
    let need = Need::per_node(demand, (0..nodes).map(|node| (node, has(node))));
    HintSet::Rule(HintRule::new(all, vec![need], Preference::Nodes(preferred)))
}

/// CPUs, memory and devices of a partly used machine: what is free differs from node to node.
fn used(nodes: u32, [cpus, gib, devices]: [u64; 3], preferred: [u32; 3]) -> Vec<ProviderHints> {
    let sets = [
        rule(nodes, |node| u64::from(node * 7 % 17), cpus, preferred[0]),
        rule(
            nodes,
            |node| u64::from(node * 5 % 13) << 30,
            gib << 30,
            preferred[1],
        ),
        rule(nodes, |node| u64::from(node % 3), devices, preferred[2]),
    ];
    sets.into_iter()
        .enumerate()
        .map(|(at, set)| provider(at, set))
        .collect()
}

fn hint_merge(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hint_merge");
    let mut run = |name: &str, parameter: &str, numa: &NumaInfo, providers: &[ProviderHints]| {
        let merged = merge_all(numa, providers);
        println!("{name}/{parameter}: {merged:?}");
        group.bench_function(BenchmarkId::new(name, parameter), |bencher| {
            bencher.iter(|| merge_all(numa, providers));
        });
    };
    let (eight, many, closest) = (numa(8, false), numa(64, false), numa(64, true));
    for providers in 1..=3 {
        run(
            "lists_8_nodes",
            &providers.to_string(),
            &eight,
            &all_masks(8, providers),
        );
    }
    run(
        "rules_8_nodes",
        "agreed",
        &eight,
        &used(8, [12, 8, 2], [2, 2, 2]),
    );
    run(
        "rules_8_nodes",
        "apart",
        &eight,
        &used(8, [12, 8, 2], [1, 1, 2]),
    );
    for (numa, name) in [
        (&many, "rules_64_nodes"),
        (&closest, "rules_64_nodes_closest"),
    ] {
        run(name, "agreed_4", numa, &used(64, [40, 30, 6], [4, 4, 4]));
        run(
            name,
            "agreed_32",
            numa,
            &used(64, [300, 200, 36], [32, 32, 32]),
        );
        run(name, "apart", numa, &used(64, [40, 30, 6], [4, 3, 4]));
        run(name, "full", numa, &used(64, [500, 370, 60], [60, 61, 62]));
    }
    group.finish();
}

criterion_group!(benches, hint_merge);
criterion_main!(benches);
