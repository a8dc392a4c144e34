mod properties;

use serde_json::json;

use super::*;

const GI: u64 = 1 << 30;
const MI: u64 = 1 << 20;
const MEMORY: &str = "memory";
const PAGES: &str = "hugepages-2Mi";

const ANY: TopologyHint = TopologyHint {
    mask: None,
    preferred: false,
};

fn at(mask: u64) -> TopologyHint {
    TopologyHint {
        mask: Some(NumaMask(mask)),
        preferred: false,
    }
}

/// A machine of which pods may have `memory` bytes and `pages` huge pages of each node.
fn machine(nodes: impl IntoIterator<Item = (u64, u64)>) -> StaticMemory {
    let mut reserved = ReservedMemory::new();
    let nodes = (0u32..).zip(nodes).map(|(id, (memory, pages))| {
        reserved.insert(id, [(MEMORY.to_owned(), GI)].into());
        NumaMemory {
            id,
            bytes: memory + GI + pages * 2 * MI,
            huge_pages: vec![HugePages {
                page_bytes: 2 * MI,
                pages,
            }],
        }
    });
    let nodes: Vec<NumaMemory> = nodes.collect();
    StaticMemory::new(&nodes, &reserved).unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Init,
    Sidecar,
    App,
}

/// A Guaranteed pod of containers `c0`, `c1`… that want these bytes and huge pages.
fn pod(name: &str, containers: &[(Kind, u64, u64)]) -> Pod {
    let (mut init, mut app) = (Vec::new(), Vec::new());
    for (at, (kind, memory, pages)) in containers.iter().enumerate() {
        let mut list = json!({"cpu": "1", "memory": memory.to_string()});
        if *pages > 0 {
            list[PAGES] = json!((pages * 2 * MI).to_string());
        }
        let mut container = json!({
            "name": format!("c{at}"),
            "resources": {"requests": list, "limits": list},
        });
        if *kind == Kind::Sidecar {
            container["restartPolicy"] = json!("Always");
        }
        let list = if *kind == Kind::App {
            &mut app
        } else {
            &mut init
        };
        list.push(container);
    }
    let pod = json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"initContainers": init, "containers": app},
    });
    serde_json::from_value(pod).unwrap()
}

fn allocate(
    memory: &mut StaticMemory,
    pod: &Pod,
    name: &str,
    hint: TopologyHint,
) -> Result<(), AllocateError> {
    let mut all = pod.all_containers();
    let container = all.find(|container| container.name == name).unwrap();
    memory.allocate(pod, container, hint)
}

fn masks(memory: &StaticMemory, pod: &Pod, name: &str) -> Vec<u64> {
    let mut all = pod.all_containers();
    let container = all.find(|container| container.name == name).unwrap();
    let hints = memory.hints(pod, container).unwrap_or_default();
    let list = hints.get(MEMORY).and_then(|hints| hints.as_ref()?.list());
    let list = list.unwrap_or_default().into_iter();
    list.map(|hint| hint.mask.unwrap().0).collect()
}

#[test]
fn a_group_serves_only_its_pods() {
    let mut memory = machine([(4 * GI, 0), (4 * GI, 0), (4 * GI, 0)]);
    let wide = pod("wide", &[(Kind::App, 6 * GI, 0)]);
    let small = pod("small", &[(Kind::App, GI, 0)]);
    allocate(&mut memory, &wide, "c0", ANY).unwrap();
    assert_eq!(
        memory.memory_nodes(&wide.uid(), "c0"),
        Some(NumaMask(0b011))
    );
    assert_eq!(masks(&memory, &small, "c0"), [0b100, 0b011]);
    allocate(&mut memory, &small, "c0", ANY).unwrap();
    // Nodes 0 and 1 have two left, node 2 has three, and no set of them serves six.
    let more = pod("more", &[(Kind::App, 3 * GI + 1, 0)]);
    assert_eq!(masks(&memory, &more, "c0"), Vec::<u64>::new());
    memory.remove(&wide.uid(), "c0");
    assert_eq!(masks(&memory, &more, "c0"), [0b001, 0b010, 0b011]);
}

#[test]
fn init_containers_leave_their_memory_to_the_same_set_only() {
    let mut memory = machine([(4 * GI, 0), (4 * GI, 0)]);
    let app_pod = pod(
        "own",
        &[
            (Kind::Init, 3 * GI, 0),
            (Kind::App, 4 * GI, 0),
            (Kind::App, GI, 0),
        ],
    );
    allocate(&mut memory, &app_pod, "c0", at(0b01)).unwrap();
    allocate(&mut memory, &app_pod, "c1", at(0b01)).unwrap();
    let free = |memory: &StaticMemory, node: u32| memory.nodes()[&node].memory[MEMORY].free;
    assert_eq!(free(&memory, 0), 0);
    allocate(&mut memory, &app_pod, "c2", at(0b10)).unwrap();
    assert_eq!(free(&memory, 1), 3 * GI);
    let bytes = |name: &str| memory.assignments()[&app_pod.uid()][name][0].bytes;
    assert_eq!([bytes("c0"), bytes("c1"), bytes("c2")], [0, 4 * GI, GI]);
}

#[test]
fn refusals_say_what_would_have_to_be_free() {
    let mut memory = machine([(4 * GI, 2), (4 * GI, 0)]);
    let message = |outcome: Result<(), AllocateError>| outcome.unwrap_err().to_string();
    let holder = pod("holder", &[(Kind::App, 3 * GI, 1)]);
    allocate(&mut memory, &holder, "c0", ANY).unwrap();

    let huge = pod("huge", &[(Kind::App, 9 * GI, 0)]);
    assert_eq!(
        message(allocate(&mut memory, &huge, "c0", ANY)),
        "pod default/huge, container c0: no NUMA nodes have 9Gi of memory; memory free: 1Gi on node 0, 4Gi on node 1; pods may have \
         8Gi of memory on this machine: request less, or reserve less for the system"
    );
    let pages = pod("pages", &[(Kind::App, 2 * GI, 2)]);
    assert_eq!(
        message(allocate(&mut memory, &pages, "c0", ANY)),
        "pod default/pages, container c0: no NUMA nodes have 4Mi of hugepages-2Mi and 2Gi of memory; hugepages-2Mi free: 2Mi on node \
         0, 0 on node 1; memory free: 1Gi on node 0, 4Gi on node 1; it fits on NUMA nodes 0 once 2Mi of hugepages-2Mi and 1Gi of \
         memory more is free there, where memory is held by pod holder container c0"
    );
    let both = pod("both", &[(Kind::App, 5 * GI, 0)]);
    assert_eq!(
        message(allocate(&mut memory, &both, "c0", at(0b11))),
        "pod default/both, container c0: NUMA nodes 0-1 hold memory of containers with other sets of nodes, so they cannot together \
         give 5Gi of memory; memory free: 1Gi on node 0, 4Gi on node 1; it fits on NUMA nodes 0-1 once no other container's set shares \
         them, where memory is held by pod holder container c0"
    );
    assert_eq!(
        message(allocate(&mut memory, &both, "c0", at(0b100))),
        "pod default/both, container c0: the hint names NUMA nodes 2, which this machine has not: merge hints of this machine only"
    );
}

#[test]
fn a_resource_that_no_node_has_fits_nowhere() {
    let mut memory = machine([(4 * GI, 4)]);
    let mut app_pod = pod("own", &[(Kind::App, GI, 0)]);
    let resources = &mut app_pod.spec.containers[0].resources;
    for list in [&mut resources.requests, &mut resources.limits] {
        list.insert("hugepages-1Gi".to_owned(), "1Gi".parse().unwrap());
    }
    assert_eq!(masks(&memory, &app_pod, "c0"), Vec::<u64>::new());
    let error = allocate(&mut memory, &app_pod, "c0", at(0b1)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("hugepages-1Gi free: 0 on node 0"),
        "{error}"
    );
}

#[test]
fn requests_that_are_not_bytes_are_refused_by_name() {
    let mut memory = machine([(4 * GI, 0)]);
    let mut app_pod = pod("own", &[(Kind::App, GI, 0)]);
    let resources = &mut app_pod.spec.containers[0].resources;
    for list in [&mut resources.requests, &mut resources.limits] {
        list.insert(MEMORY.to_owned(), "100m".parse().unwrap());
    }
    assert_eq!(memory.hints(&app_pod, &app_pod.spec.containers[0]), None);
    let error = allocate(&mut memory, &app_pod, "c0", ANY).unwrap_err();
    assert!(
        error.to_string().starts_with(
            "pod default/own, container c0: the request of 100m of memory is not a whole number of bytes"
        ),
        "{error}"
    );
}

#[test]
fn the_policy_none_places_nothing() {
    let mut policy = MemoryPolicy::None;
    let app_pod = pod("own", &[(Kind::App, GI, 0)]);
    policy
        .allocate(&app_pod, &app_pod.spec.containers[0], ANY)
        .unwrap();
    assert_eq!(policy.hints(&app_pod, &app_pod.spec.containers[0]), None);
    assert_eq!(policy.pod_hints(&app_pod), None);
}

#[test]
fn what_no_longer_fits_is_not_restored() {
    let mut memory = machine([(4 * GI, 0), (4 * GI, 0)]);
    let app_pod = pod("own", &[(Kind::App, 6 * GI, 0)]);
    allocate(&mut memory, &app_pod, "c0", ANY).unwrap();
    assert_eq!(
        memory.restored(memory.assignments()).unwrap().nodes(),
        memory.nodes()
    );
    let error = |memory: StaticMemory, of: &StaticMemory| {
        memory.restored(of.assignments()).unwrap_err().to_string()
    };
    assert_eq!(
        error(machine([(4 * GI, 0), (GI, 0)]), &memory),
        "pod own, container c0: NUMA nodes 0-1 have 1Gi too little for its 6Gi of memory: less is allocatable there than when it was \
         placed; place the pod anew, or reserve less"
    );
    assert_eq!(
        error(machine([(9 * GI, 0)]), &memory),
        "pod own, container c0: memory is on NUMA nodes 0-1, but the machine has 0: place the pod anew"
    );
}

#[test]
fn sixty_four_nodes_are_as_quick_as_two() {
    let mut memory = machine((0..64).map(|node| (GI, if node % 2 == 0 { 0 } else { 8 })));
    let app_pod = pod("own", &[(Kind::App, 40 * GI, 80)]);
    allocate(
        &mut memory,
        &app_pod,
        "c0",
        TopologyHint {
            mask: None,
            preferred: true,
        },
    )
    .unwrap();
    let nodes = memory.memory_nodes(&app_pod.uid(), "c0").unwrap();
    // Ten nodes with huge pages, and the lowest for the rest.
    assert_eq!(nodes.len(), 40);
    assert_eq!(nodes, (0..40).collect());
    let other = pod("other", &[(Kind::App, 25 * GI, 0)]);
    let error = allocate(&mut memory, &other, "c0", ANY).unwrap_err();
    assert!(
        matches!(error, AllocateError::Refused(refusal) if refusal.kind == RefusalKind::NoDefaultAffinity)
    );
}
