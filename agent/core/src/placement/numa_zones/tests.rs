use crate::kube::node_resource_topology::KnownPod;
use crate::protocol::pod_resources::Devices;

use super::*;

mod placed;
mod plugin;
mod properties;

const GIB: u64 = 1 << 30;
const NIC: &str = "example.com/nic";

/// Two nodes of four CPUs, siblings four apart, 16 GiB each, 1 GiB of huge pages on the first; CPU 7 is off.
const TWO_NODES: &str = r#"{
    "version": 1, "offline": "7",
    "cores": [
        {"threads": ["0,4", "1,5"], "socket": 0, "node": 0},
        {"threads": ["2,6", "3,7"], "socket": 1, "node": 1}
    ],
    "nodes": [
        {"id": 0, "memory": "16Gi", "hugepages": [{"pageSize": "1Gi", "pages": 1}, {"pageSize": "2Mi", "pages": 0}], "distances": [10, 21]},
        {"id": 1, "memory": "16Gi", "distances": [21, 10]}
    ]
}"#;

fn machine() -> Machine {
    serde_json::from_str(TWO_NODES).unwrap()
}

fn memory(kind: &str, bytes: u64, nodes: &[i64]) -> Memory {
    Memory {
        kind: kind.to_owned(),
        bytes,
        numa_nodes: nodes.to_vec(),
    }
}

fn devices(ids: &[&str], nodes: &[i64]) -> Devices {
    Devices {
        resource: NIC.to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        numa_nodes: nodes.to_vec(),
    }
}

fn given(container: &str, cpus: &[i64]) -> Given {
    Given {
        container: container.to_owned(),
        cpus: cpus.to_vec(),
        ..Given::default()
    }
}

/// A kubelet that reserves CPU 0 and 2 GiB of each node, with two NICs on node 1 and one on both.
fn kubelet() -> NodeResources {
    NodeResources {
        allocatable: Some(Given {
            memory: vec![
                memory("memory", 13 * GIB, &[0]),
                memory("memory", 14 * GIB, &[1]),
                memory("hugepages-1Gi", GIB, &[0]),
            ],
            devices: vec![
                devices(&["a", "b"], &[1]),
                devices(&["c"], &[0]),
                devices(&["c"], &[1]),
                devices(&["any"], &[]),
            ],
            ..given("", &[1, 2, 3, 4, 5, 6])
        }),
        ..NodeResources::default()
    }
}

fn surveyed(resources: &NodeResources) -> Survey {
    survey(&machine(), resources, None).unwrap()
}

fn amounts(survey: &Survey, zone: usize, resource: &str) -> (u64, u64, u64) {
    let Amounts {
        capacity,
        allocatable,
        available,
    } = survey.topology.zones[zone].resources[resource];
    (capacity, allocatable, available)
}

#[test]
fn an_idle_node_has_all_that_may_be_given() {
    let survey = surveyed(&kubelet());
    assert_eq!(amounts(&survey, 0, "cpu"), (4, 3, 3));
    // CPU 7 is off.
    assert_eq!(amounts(&survey, 1, "cpu"), (3, 3, 3));
    assert_eq!(
        amounts(&survey, 0, "memory"),
        (16 * GIB, 13 * GIB, 13 * GIB)
    );
    assert_eq!(amounts(&survey, 0, "hugepages-1Gi"), (GIB, GIB, GIB));
    assert_eq!(amounts(&survey, 0, NIC), (1, 1, 1));
    assert_eq!(amounts(&survey, 1, NIC), (3, 3, 3));
    assert_eq!(survey.topology.zones[1].distances, [21, 10]);
    let resources: Vec<&String> = survey.topology.zones[1].resources.keys().collect();
    assert_eq!(resources, ["cpu", NIC, "memory"]);
    let several = Doubt::DevicesOfSeveralNodes {
        resource: NIC.to_owned(),
    };
    assert_eq!(survey.doubts, [several].into());
}

#[test]
fn what_containers_have_is_not_available() {
    let mut node = kubelet();
    node.given = vec![
        Given {
            memory: vec![
                memory("memory", 3 * GIB, &[1]),
                memory("hugepages-1Gi", GIB, &[0]),
            ],
            devices: vec![
                devices(&["c"], &[0]),
                devices(&["c"], &[1]),
                devices(&["any"], &[]),
            ],
            ..given("n/p/app", &[2, 6])
        },
        Given {
            memory: vec![memory("memory", GIB, &[1])],
            ..given("n/p/side", &[3])
        },
    ];
    node.pods = vec!["n/p".to_owned(), "n/plain".to_owned()];
    let survey = surveyed(&node);
    assert_eq!(amounts(&survey, 0, "cpu"), (4, 3, 3));
    assert_eq!(amounts(&survey, 1, "cpu"), (3, 3, 0));
    assert_eq!(
        amounts(&survey, 1, "memory"),
        (16 * GIB, 14 * GIB, 10 * GIB)
    );
    assert_eq!(amounts(&survey, 0, "hugepages-1Gi"), (GIB, GIB, 0));
    // One device, near to both.
    assert_eq!(amounts(&survey, 0, NIC), (1, 1, 0));
    assert_eq!(amounts(&survey, 1, NIC), (3, 3, 2));
    let [p, plain] = &survey.topology.pods[..] else {
        panic!("{:?}", survey.topology.pods);
    };
    assert_eq!((&*p.namespace, &*p.name, p.held.len()), ("n", "p", 5));
    assert!(plain.held.is_empty());
    // With the pod gone all of it is back.
    let ended = |pod: &ListedPod| KnownPod {
        has_ended: pod.name == "p",
        requests: None,
    };
    let back = survey.topology.clone().without(ended);
    assert_eq!(back.zones, surveyed(&kubelet()).topology.zones);
}

#[test]
fn memory_of_several_nodes_is_taken_from_the_lowest_first_and_counts_once() {
    let mut node = kubelet();
    let over_both = memory("memory", 15 * GIB, &[0, 1]);
    node.given = vec![Given {
        memory: vec![over_both],
        ..given("n/p/app", &[])
    }];
    let survey = surveyed(&node);
    assert_eq!(amounts(&survey, 0, "memory").2, 0);
    assert_eq!(amounts(&survey, 1, "memory").2, 12 * GIB);
    let held: u64 = survey.topology.pods[0]
        .held
        .iter()
        .map(|it| it.amount)
        .sum();
    assert_eq!(held, 15 * GIB);
}

#[test]
fn without_managers_the_zones_have_what_the_machine_has() {
    let mut node = kubelet();
    node.allocatable = Some(Given::default());
    let survey = surveyed(&node);
    assert_eq!(amounts(&survey, 0, "cpu"), (4, 4, 4));
    // Huge pages are no memory that a pod can have as memory.
    assert_eq!(
        amounts(&survey, 0, "memory"),
        (16 * GIB, 15 * GIB, 15 * GIB)
    );
    assert_eq!(amounts(&survey, 0, "hugepages-1Gi"), (GIB, GIB, GIB));
    assert_eq!(
        survey.doubts,
        [Doubt::NoCpuManager, Doubt::NoMemoryManager].into()
    );
}

#[test]
fn cpus_of_the_shared_pool_are_of_no_pod() {
    let mut node = kubelet();
    node.given = vec![
        given("n/a/app", &[1, 4, 5]),
        given("n/b/app", &[1, 4, 5]),
        // Containers of one pod may have CPUs together.
        given("n/c/app", &[2, 3]),
        given("n/c/side", &[2, 3]),
    ];
    let survey = surveyed(&node);
    assert_eq!(amounts(&survey, 0, "cpu").2, 3);
    assert_eq!(amounts(&survey, 1, "cpu").2, 1);
    assert!(
        survey
            .doubts
            .contains(&Doubt::SharedCpus("1,4-5".to_owned()))
    );
    assert_eq!(survey.topology.pods[0].held, []);
}

#[test]
fn what_cannot_be_is_cut_and_said() {
    let mut node = kubelet();
    let allocatable = node.allocatable.as_mut().unwrap();
    allocatable.cpus.extend([7, 99, -1, i64::MAX]);
    allocatable.memory.push(memory("memory", 99 * GIB, &[1]));
    allocatable.memory.push(memory("memory", GIB, &[0, 1]));
    node.given = vec![
        Given {
            memory: vec![memory("memory", 14 * GIB, &[0])],
            devices: vec![devices(&["a", "old"], &[1])],
            ..given("n/a/app", &[0])
        },
        Given {
            devices: vec![devices(&["a"], &[1])],
            ..given("n/b/app", &[])
        },
    ];
    let survey = surveyed(&node);
    assert_eq!(amounts(&survey, 0, "cpu"), (4, 3, 3));
    assert_eq!(amounts(&survey, 0, "memory"), (16 * GIB, 13 * GIB, 0));
    assert_eq!(
        amounts(&survey, 1, "memory"),
        (16 * GIB, 16 * GIB, 16 * GIB)
    );
    // One that is in use and not healthy is there, and may not be given.
    assert_eq!(amounts(&survey, 1, NIC), (4, 3, 2));
    let said: Vec<String> = survey.doubts.iter().map(ToString::to_string).collect();
    for part in [
        "CPUs 0,7,99 are listed",
        "node-1 has less memory",
        "pods have more memory",
        "memory is listed for several NUMA nodes",
        "listed for several containers",
    ] {
        assert!(
            said.iter().any(|said| said.contains(part)),
            "{part}: {said:?}"
        );
    }
}

/// The plugin writes a score at the place of a zone's number in a list that is as long as there are zones
/// (`scoreForEachNUMANode`).
#[test]
fn a_number_without_a_node_has_a_zone_that_fits_nothing() {
    let text = TWO_NODES
        .replace(r#""id": 1"#, r#""id": 3"#)
        .replace(r#""node": 1"#, r#""node": 3"#);
    let machine: Machine = serde_json::from_str(&text).unwrap();
    let survey = survey(
        &machine,
        &NodeResources {
            allocatable: Some(Given::default()),
            ..kubelet()
        },
        None,
    )
    .unwrap();
    let zones = &survey.topology.zones;
    assert_eq!(zones.len(), 4);
    assert_eq!((&zones[1], &zones[2]), (&Zone::default(), &Zone::default()));
    assert_eq!(zones[3].distances, [21, 0, 0, 10]);
    assert_eq!(zones[3].resources["cpu"].capacity, 3);
}

#[test]
fn without_what_may_be_given_there_is_nothing_to_say() {
    let refused = |resources: &NodeResources| survey(&machine(), resources, None).unwrap_err();
    assert_eq!(
        refused(&NodeResources::default()),
        SurveyError::NoAllocatable
    );
    let many = NodeResources {
        pods: vec!["n/p".to_owned(); 1025],
        ..kubelet()
    };
    assert_eq!(refused(&many), SurveyError::TooManyPods { pods: 1025 });
}
