use proptest::prelude::*;

use super::*;

/// A desk machine by hand: two cores of two threads and two of one, one L3, one node; CPU 5 is off.
const HYBRID: &str = r#"{
    "version": 1,
    "name": "desk",
    "offline": "5",
    "cores": [
        {"threads": ["0,2", "1,3"], "socket": 0, "die": 0, "cluster": 0, "node": 0, "l3": 0},
        {"threads": ["4-5"], "socket": 0, "die": 0, "cluster": 8, "node": 0, "l3": 0}
    ],
    "nodes": [
        {"id": 0, "memory": "16Gi", "hugepages": [{"pageSize": "2Mi", "pages": 8}], "distances": [10, 38]},
        {"id": 4, "memory": 1073741824, "distances": [38, 10]}
    ]
}"#;

fn read(text: &str) -> Machine {
    serde_json::from_str(text).unwrap()
}

fn refused(text: &str) -> String {
    let file: MachineFile = serde_json::from_str(text).unwrap();
    file.machine().unwrap_err().to_string()
}

/// Cores of two threads, siblings `cores` apart, with the place of each.
fn machine(cores: u32, nodes: u32, place: impl Fn(u32) -> Core) -> Machine {
    let core = |cpu| Core {
        cpus: CpuSet::of(cpu) | CpuSet::of(cpu + cores),
        ..place(cpu)
    };
    let node = |id| NumaNode {
        id,
        ..NumaNode::default()
    };
    Machine::new(Parts {
        cores: (0..cores).map(core).collect(),
        nodes: (0..nodes).map(node).collect(),
        ..Parts::default()
    })
    .unwrap()
}

fn uncore_of_first_cpus(machine: &Machine, cpus: &[u32]) -> Vec<u32> {
    let topology = machine.cpu_topology().unwrap();
    let uncore = |cpu: &u32| topology.cpu(*cpu).unwrap().uncore;
    cpus.iter().map(uncore).collect()
}

#[test]
fn a_description_is_read_and_written_back() {
    let machine = read(HYBRID);
    assert_eq!(machine.name(), Some("desk"));
    assert_eq!(machine.online().to_string(), "0-4");
    assert_eq!(machine.cores()[1].cpus.to_string(), "2-3");
    assert_eq!(machine.node(0).unwrap().memory_bytes, Some(16 << 30));
    assert_eq!(machine.node_ids().to_string(), "0,4");
    assert_eq!(machine.distance(0, 4), Some(38));
    assert_eq!(machine.distance(0, 1), None);
    let written = serde_json::to_string(&machine).unwrap();
    assert!(
        written.contains(r#"{"threads":["0,2","1,3"],"socket":0,"#),
        "{written}"
    );
    assert!(
        written.contains(r#"{"pageSize":"2Mi","pages":8}"#),
        "{written}"
    );
    assert_eq!(read(&written), machine);
}

#[test]
fn the_kubelet_sees_online_cpus_only() {
    let topology = read(HYBRID).cpu_topology().unwrap();
    let counts = topology.counts();
    assert_eq!((counts.cpus, counts.cores, counts.numa_nodes), (5, 3, 1));
    assert_eq!(topology.cpu(3).unwrap().core, 2);
    let without_first = read(&HYBRID.replace(r#""offline": "5""#, r#""offline": "0,5""#));
    let topology = without_first.cpu_topology().unwrap();
    assert_eq!(topology.cpu(1).unwrap().core, 1, "lowest online CPU");
    assert_eq!(topology.counts().cores, 3);
}

#[test]
fn an_l3_of_the_whole_node_is_no_uncore_cache() {
    let place = |node, l3| Core {
        socket: Some(node / 2),
        node: Some(node),
        l3: Some(l3),
        ..Core::default()
    };
    // Four cores a node, an L3 a node: the L3 is the node's, and the kubelet falls back to the socket.
    let one_per_node = machine(16, 4, |cpu| place(cpu / 4, 10 + cpu / 4));
    assert_eq!(
        uncore_of_first_cpus(&one_per_node, &[0, 4, 8, 12]),
        [0, 0, 1, 1]
    );
    // Two L3 a node: split.
    let split = machine(16, 4, |cpu| place(cpu / 4, 10 + cpu / 2));
    assert_eq!(
        uncore_of_first_cpus(&split, &[0, 2, 4, 31]),
        [10, 11, 12, 17]
    );
    // One L3 for two nodes is not the node's either.
    let shared = machine(16, 4, |cpu| place(cpu / 4, 10 + cpu / 8));
    assert_eq!(uncore_of_first_cpus(&shared, &[0, 4, 8]), [10, 10, 11]);
    // Cores of one thread beside cores of two: by no core's count is the L3 the node's.
    assert_eq!(uncore_of_first_cpus(&read(HYBRID), &[0, 4]), [0, 0]);
}

#[test]
fn the_kubelet_does_not_see_cpus_without_a_node() {
    let text = HYBRID.replace(r#""cluster": 8, "node": 0,"#, r#""cluster": 8,"#);
    let topology = read(&text).cpu_topology().unwrap();
    assert_eq!(topology.all().to_string(), "0-3");
}

#[test]
fn lines_of_golden_topologies_are_machines() {
    let text = r#"{"id":"t14","desc":"3 of 8 CPUs offline","num_cpus":5,"num_cores":4,"num_sockets":1,"num_numa_nodes":2,
        "num_uncore_caches":1,"cpus":[[0,0,0,0,7],[1,1,0,0,7],[6,6,0,1,7],[3,3,0,1,7],[4,0,0,0,7]]}"#;
    let machine = read(text);
    assert_eq!(machine.name(), Some("t14: 3 of 8 CPUs offline"));
    let topology = machine.cpu_topology().unwrap();
    assert_eq!(topology.all().to_string(), "0-1,3-4,6");
    assert_eq!(topology.by_core()[&0].to_string(), "0,4");
    assert_eq!(topology.by_uncore()[&7], topology.all());
    assert_eq!(topology.counts().cores, 4);
    assert_eq!(read(&serde_json::to_string(&machine).unwrap()), machine);
    for (right, wrong, message) in [
        (
            "[3,3,",
            "[3,2,",
            "core 2: the kubelet numbers a core by its lowest online CPU, which is 3 here",
        ),
        (
            "[4,0,0,0,7]",
            "[4,0,0,1,7]",
            "CPU 4 is said to be in another NUMA node than CPU 0, which is in the same core",
        ),
        ("[4,0,0,0,7]", "[0,0,0,0,7]", "CPU 0 is in two cores"),
        (
            "[4,0,0,0,7]",
            "[1024,0,0,0,7]",
            "cpus[4][0]: CPU 1024 is beyond 1023, the highest that is supported",
        ),
        (
            "[4,0,0,0,7]",
            "[4,0,0,0]",
            "cpus[4]: expected five numbers: CPU, core, socket, NUMA node, uncore cache, found a list",
        ),
        (
            "\"num_cores\":4",
            "\"num_cores\":-4",
            "num_cores: expected a whole number, found -4",
        ),
    ] {
        assert_eq!(refused(&text.replace(right, wrong)), message);
    }
}

#[test]
fn what_is_wrong_is_named_by_field() {
    for (right, wrong, message) in [
        (
            "\"version\": 1",
            "\"version\": 2",
            "version: 2 is not known; this release reads version 1",
        ),
        ("\"version\": 1,", "", "version: is missing"),
        (
            "\"name\"",
            "\"title\"",
            "title: unknown field; known are version, name, offline, isolated, cores, nodes, counts",
        ),
        (
            "\"name\": \"desk\"",
            "\"name\": true",
            "name: expected a text, found true",
        ),
        (
            "\"offline\": \"5\"",
            "\"offline\": \"5-\"",
            "offline: \"5-\" in \"5-\" is neither a CPU number nor a range like 0-3",
        ),
        ("\"cluster\": 8", "\"l3\": 8", "cores[1].l3: is there twice"),
        (
            "[\"4-5\"]",
            "[\"4-5\", \"6\"]",
            "cores[1].threads[1]: 1 CPUs, but 2 in threads[0]; the n-th CPUs of all lists are the n-th core",
        ),
        (
            "[\"4-5\"]",
            "[]",
            "cores[1].threads: expected a list of lists of CPUs such as [\"0-3\", \"4-7\"], found a list",
        ),
        ("[\"4-5\"]", "[\"3-4\"]", "CPU 3 is in two cores"),
        (
            "[\"4-5\"], \"socket\": 0",
            "[\"4-5\"]",
            "CPU 4 is online, but its socket is missing",
        ),
        (
            "\"cluster\": 8, \"node\": 0",
            "\"node\": 3",
            "CPU 4 is on NUMA node 3, which is not among the nodes",
        ),
        (
            "\"16Gi\"",
            "\"16Gib\"",
            "nodes[0].memory: expected whole bytes, or a quantity such as 64Gi, found \"16Gib\"",
        ),
        (
            "\"16Gi\"",
            "\"-16Gi\"",
            "nodes[0].memory: expected whole bytes, or a quantity such as 64Gi, found \"-16Gi\"",
        ),
        (
            "\"2Mi\"",
            "0",
            "NUMA node 0: huge pages of 0 bytes cannot be",
        ),
        (
            "\"pages\": 8",
            "\"pages\": null",
            "nodes[0].hugepages[0].pages: is missing",
        ),
        (
            "[10, 38]",
            "[10]",
            "NUMA node 0: 1 distances, but there are 2 nodes",
        ),
        ("\"id\": 4", "\"id\": 0", "NUMA node 0 is there twice"),
        (
            "\"id\": 4",
            "\"id\": 64",
            "NUMA node 64 is beyond 63, the highest that is supported",
        ),
        (
            "\"cluster\": 8",
            "\"uncore\": 8",
            "CPU 0 has no uncore cache, but others have; give it of all or of none",
        ),
        (
            "\"offline\": \"5\"",
            "\"offline\": \"0-5\"",
            "the machine has no CPU",
        ),
    ] {
        assert!(HYBRID.contains(right), "{right}");
        assert_eq!(refused(&HYBRID.replacen(right, wrong, 1)), message);
    }
    assert_eq!(refused("[]"), "the file: expected an object, found a list");
}

#[test]
fn the_example_of_the_reference_is_a_machine() {
    let page = include_str!("../../../../../docs/reference/machine.md");
    let example = page.split("```json\n").nth(1).unwrap();
    let machine = read(example.split("```").next().unwrap());
    assert_eq!(machine.node(2).unwrap().memory_bytes, Some(256 << 30));
    let topology = machine.cpu_topology().unwrap();
    assert_eq!(topology.numa_nodes().to_string(), "0-1");
    assert_eq!(topology.by_uncore().len(), 3);
    // Every field of the format has its row.
    for field in [
        "version", "name", "offline", "isolated", "cores", "nodes", "counts",
    ] {
        assert!(page.contains(&format!("\n| `{field}` |")), "{field}");
    }
}

#[test]
fn page_sizes_are_kubernetes_names() {
    for (bytes, name) in [
        (2 << 20, "2Mi"),
        (1 << 30, "1Gi"),
        (64 << 10, "64Ki"),
        (1000, "1000"),
        (0, "0"),
    ] {
        assert_eq!(page_size(bytes), name);
    }
}

proptest! {
    /// Any pairing of threads survives, also one that no machine has.
    #[test]
    fn what_is_written_is_read_back(
        owners in proptest::collection::vec(0..24_u32, 1..96),
        offline in proptest::collection::btree_set(1..96_u32, 0..20),
    ) {
        let mut cores = BTreeMap::<u32, Core>::new();
        for (cpu, owner) in (0..).zip(&owners) {
            let core = cores.entry(*owner).or_default();
            core.cpus.insert(cpu);
            core.socket = Some(owner % 3);
            core.node = Some(owner % 6);
            core.l3 = (owner % 2 == 0).then_some(owner / 4);
        }
        let machine = Machine::new(Parts {
            cores: cores.into_values().collect(),
            offline: offline.into_iter().collect(),
            nodes: (0..6).map(|id| NumaNode { id, ..NumaNode::default() }).collect(),
            ..Parts::default()
        }).unwrap();
        let written = serde_json::to_string(&machine).unwrap();
        prop_assert_eq!(read(&written), machine.clone());
        let topology = machine.cpu_topology().unwrap();
        prop_assert_eq!(topology.all(), machine.online());
        for (core, cpus) in topology.by_core() {
            prop_assert_eq!(cpus.first(), Some(*core));
        }
    }
}
