//! How long it takes to choose CPUs for one container, and to say where it could have them.
//!
//! Recorded for the kubelet 1.36 (Go, CPU time of one call on a comparable machine, 256 CPUs on 8 NUMA nodes): packed
//! 64 CPUs 0.81–6.4 ms, distributed 4.3–9.7 ms; hints of the static policy 5.9 ms on 8 nodes, 3,500 ms on 16. It has no
//! figures for 64 nodes: neither the search over combinations nor the list of hints ends.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::placement::cpu_assignment::{CpuLayout, CpuSorting};
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::cpu_static::{
    CpuReservation, CpuState, StaticCpuPolicy, StaticCpuSettings,
};
use plimsoll_core::placement::hints::LISTED_NODES_MAX;
use plimsoll_core::placement::topology::{Cpu, CpuTopology};

/// Two sockets of half the nodes each; two threads per core, numbered half the CPUs apart; two caches per node.
fn machine(nodes: u32, cores_per_node: u32) -> CpuTopology {
    let cores = nodes * cores_per_node;
    let cpu = |id: u32| {
        let core = id % cores;
        let numa = core / cores_per_node;
        Cpu {
            id,
            core,
            socket: numa * 2 / nodes,
            numa,
            uncore: core * 2 / cores_per_node,
        }
    };
    CpuTopology::new((0..2 * cores).map(cpu).collect()).expect("a valid machine")
}

/// Where every node has another number of free CPUs.
fn partly_busy(topology: &CpuTopology) -> CpuSet {
    let free = topology.cpus().iter();
    free.filter(|cpu| cpu.core % 16 >= cpu.numa % 7)
        .map(|cpu| cpu.id)
        .collect()
}

fn assign(criterion: &mut Criterion) {
    for (name, nodes, cores) in [("256_cpus_8_nodes", 8, 16), ("1024_cpus_64_nodes", 64, 8)] {
        let topology = machine(nodes, cores);
        let layout = CpuLayout::new(&topology);
        let request = topology.all().len() / 4;
        let mut group = criterion.benchmark_group(name);
        for (state, free) in [("idle", topology.all()), ("busy", partly_busy(&topology))] {
            group.bench_function(format!("packed_quarter_{state}"), |bencher| {
                bencher.iter(|| {
                    layout.take_packed(black_box(&free), request, CpuSorting::Packed, true)
                });
            });
            for (share, request) in [("quarter", request), ("most", (free.len() * 7 / 10) | 1)] {
                group.bench_function(format!("distributed_{share}_{state}"), |bencher| {
                    bencher.iter(|| {
                        layout.take_distributed(black_box(&free), request, 1, CpuSorting::Packed)
                    });
                });
            }
        }
        group.finish();
    }
}

/// A container of eight CPUs, asked where it could be.
fn hints(criterion: &mut Criterion) {
    let cpus = serde_json::json!({ "cpu": "8", "memory": "1Gi" });
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": { "uid": "pod" },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": cpus, "limits": cpus } }] },
    }))
    .expect("a valid pod");
    let container = &pod.spec.containers[0];
    let mut group = criterion.benchmark_group("static_hints");
    for nodes in [8, 16, 64] {
        let settings = StaticCpuSettings {
            reservation: CpuReservation {
                count: 2,
                ..CpuReservation::default()
            },
            ..StaticCpuSettings::default()
        };
        let policy = StaticCpuPolicy::new(machine(nodes, 8), settings).expect("a valid policy");
        let cpus = policy.start(CpuState::default()).expect("an empty state");
        group.bench_function(format!("rule_{nodes}_nodes"), |bencher| {
            bencher.iter(|| cpus.hints(black_box(&pod), container));
        });
        if nodes <= LISTED_NODES_MAX {
            group.bench_function(format!("list_{nodes}_nodes"), |bencher| {
                bencher.iter(|| {
                    let set = cpus.hints(black_box(&pod), container).remove("cpu");
                    set.flatten().and_then(|set| set.list())
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, assign, hints);
criterion_main!(benches);
