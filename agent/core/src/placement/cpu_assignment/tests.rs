use proptest::prelude::*;

use super::*;
use crate::placement::topology::{Cpu, CpuTopology};

/// `sockets` × `nodes` × `cores` × `threads`, siblings next to each other; two cores share a cache.
fn machine(sockets: u32, nodes: u32, cores: u32, threads: u32) -> CpuTopology {
    let cpu = |id: u32| {
        let core = id / threads;
        let numa = core / cores;
        Cpu {
            id,
            core: core * threads,
            socket: numa / nodes,
            numa,
            uncore: core / 2,
        }
    };
    let count = sockets * nodes * cores * threads;
    CpuTopology::new((0..count).map(cpu).collect()).unwrap()
}

fn set(list: &str) -> CpuSet {
    CpuSet::parse(list).unwrap()
}

#[test]
fn whole_things_are_taken_before_parts() {
    // Two sockets of two nodes of four cores of two threads.
    let layout = CpuLayout::new(&machine(2, 2, 4, 2));
    let packed = |available: &str, request, sorting, uncore| {
        layout
            .take_packed(&set(available), request, sorting, uncore)
            .unwrap()
            .to_string()
    };
    let core_by_core = CpuSorting::Packed;
    for (available, request, uncore, taken) in [
        ("0-31", 16, false, "0-15"),
        ("1-31", 16, false, "16-31"),
        // The node with fewest free CPUs that is whole.
        ("1-31", 8, false, "8-15"),
        // Whole cores from the fuller socket, then what is left of a core.
        ("1,4-31", 3, false, "1,4-5"),
        // One cache that holds the rest, rather than two half caches.
        ("2-3,6-15", 4, false, "2-3,6-7"),
        ("2-3,6-15", 4, true, "8-11"),
    ] {
        assert_eq!(
            packed(available, request, core_by_core, uncore),
            taken,
            "{request} of {available}"
        );
    }
    assert_eq!(packed("1-31", 3, CpuSorting::Spread, false), "1-3");
    assert_eq!(packed("0-31", 0, core_by_core, true), "");
}

/// Nodes 0-7 and 8-15; caches 0-3, 4-11 and 12-15.
#[test]
fn a_cache_of_two_nodes_is_one_of_the_node_where_it_has_free_cpus() {
    let cpu = |id: u32| Cpu {
        id,
        core: id,
        socket: 0,
        numa: id / 8,
        uncore: (id + 4) / 8,
    };
    let machine = CpuTopology::new((0..16).map(cpu).collect()).unwrap();
    let layout = CpuLayout::new(&machine);
    let free = set("0-2,8-9,12-13");
    let taken = layout.take_packed(&free, 2, CpuSorting::Packed, true);
    assert_eq!(taken.unwrap(), set("0-1"));
}

#[test]
fn a_distributed_request_takes_the_same_from_each_of_the_fewest_nodes() {
    let layout = CpuLayout::new(&machine(2, 2, 4, 2));
    let spread = |available: &str, request, group| {
        let taken = layout.take_distributed(&set(available), request, group, CpuSorting::Packed);
        taken.unwrap().to_string()
    };
    assert_eq!(spread("0-31", 8, 1), "0-7");
    assert_eq!(spread("0-31", 12, 2), "0-5,8-13");
    // Seven groups over two nodes: the remainder leaves the nodes most alike.
    assert_eq!(spread("0-31", 14, 2), "0-13");
    // No multiple of the group: packed.
    assert_eq!(spread("0-31", 9, 2), "0-8");
}

#[test]
fn what_is_left_of_a_large_socket_is_not_a_whole_one() {
    // Sockets of 6 and 2 CPUs: on average 4, as many as are free on the first.
    let cpu = |id: u32| Cpu {
        id,
        core: id,
        socket: id / 6,
        numa: id / 6,
        uncore: id / 6,
    };
    let layout = CpuLayout::new(&CpuTopology::new((0..8).map(cpu).collect()).unwrap());
    let taken = layout
        .take_packed(&set("1-4,6-7"), 6, CpuSorting::Packed, false)
        .unwrap();
    assert_eq!(taken.to_string(), "1-4,6-7");
}

#[test]
fn too_few_are_named() {
    let layout = CpuLayout::new(&machine(1, 1, 4, 2));
    let error = layout
        .take_packed(&set("2-4,60"), 5, CpuSorting::Packed, false)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "5 CPUs are wanted, and 3 may be taken (2-4): 2 more would have to be free"
    );
}

fn irregular() -> impl Strategy<Value = CpuTopology> {
    let cpu = (0..6_u32, 0..4_u32, 0..3_u32, 0..5_u32);
    proptest::collection::vec(cpu, 1..40).prop_map(|places| {
        let cpus = (0_u32..)
            .zip(places)
            .map(|(id, (core, numa, socket, uncore))| Cpu {
                id,
                core,
                socket,
                numa,
                uncore,
            });
        CpuTopology::new(cpus.collect()).unwrap()
    })
}

proptest! {
    #[test]
    fn a_request_gets_what_it_asks_for_on_any_machine(
        topology in irregular(),
        busy in proptest::collection::vec(0..40_u32, 0..20),
        share in 0..=100_u32,
        group in 0..4_u32,
        spread: bool,
        uncore: bool,
    ) {
        let layout = CpuLayout::new(&topology);
        let available = topology.all() - busy.into_iter().collect();
        let request = available.len() * share / 100;
        let sorting = if spread { CpuSorting::Spread } else { CpuSorting::Packed };
        let packed = layout.take_packed(&available, request, sorting, uncore).unwrap();
        let distributed = layout.take_distributed(&available, request, group, sorting).unwrap();
        for taken in [packed, distributed] {
            prop_assert_eq!(taken.len(), request);
            prop_assert!(taken.is_subset(&available));
        }
        prop_assert!(layout.take_packed(&available, available.len() + 1, sorting, uncore).is_err());
    }
}

#[test]
fn the_largest_machine_is_served_in_any_state() {
    let topology = machine(8, 8, 8, 2);
    let layout = CpuLayout::new(&topology);
    // Each node another number of free CPUs.
    let free = topology
        .cpus()
        .iter()
        .filter(|cpu| cpu.id % 16 >= cpu.numa % 7);
    let available: CpuSet = free.map(|cpu| cpu.id).collect();
    for request in [1, 63, 500, 700, available.len()] {
        let taken = layout
            .take_distributed(&available, request, 1, CpuSorting::Packed)
            .unwrap();
        assert_eq!(taken.len(), request);
        assert!(taken.is_subset(&available));
    }
}
