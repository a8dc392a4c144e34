//! Placement by the engine, from outside: when pods get CPUs and when they give them back.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::{ContainerStatus, Pod};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Event, EventKind, PlacementStart, Sample};
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::device::ListedDevices;
use plimsoll_core::placement::machine::{Core, Machine, NumaNode, Parts};
use plimsoll_core::placement::node::{CpuManagerPolicy, MemoryManagerPolicy, PlacementSettings};
use plimsoll_core::policy::placement::{is_waiting_for_devices, may_resize};
use plimsoll_core::protocol::pod_resources::{Devices, Given, NodeResources};
use serde_json::json;

/// One NUMA node of `cpus` cores with one thread each.
fn machine(cpus: u32) -> Machine {
    let core = |cpu| Core {
        cpus: CpuSet::of(cpu),
        socket: Some(0),
        node: Some(0),
        ..Core::default()
    };
    let nodes = vec![NumaNode {
        memory_bytes: Some(8 << 30),
        ..NumaNode::default()
    }];
    let cores = (0..cpus).map(core).collect();
    Machine::new(Parts {
        cores,
        nodes,
        ..Parts::default()
    })
    .unwrap()
}

/// Guaranteed, with one container.
fn pod(name: &str, cpus: u32) -> Pod {
    let amounts = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
    let resources = json!({"requests": amounts, "limits": amounts});
    let pod = json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
    });
    serde_json::from_value(pod).unwrap()
}

struct Node(Engine);

impl Node {
    /// Eight CPUs, of which the first is reserved.
    fn new(saved: Option<Assignments>) -> Self {
        let mut node = Self(Engine::new(EngineConfig::default()));
        node.machine_is(8, saved);
        node
    }

    fn beside_kubelet() -> Self {
        let config = EngineConfig {
            beside_kubelet: true,
            ..EngineConfig::default()
        };
        let mut node = Self(Engine::new(config));
        node.machine_is(8, None);
        node
    }

    fn machine_is(&mut self, cpus: u32, saved: Option<Assignments>) -> Vec<String> {
        let settings = PlacementSettings {
            cpu_manager_policy: CpuManagerPolicy::Static,
            reserved_system_cpus: CpuSet::of(0),
            reserved_cpu_count: 1,
            ..PlacementSettings::default()
        };
        let start = PlacementStart {
            settings,
            machine: machine(cpus),
            saved,
        };
        self.step(EventKind::PlacementStarted(Box::new(start)))
    }

    /// What is decided about placement.
    fn step(&mut self, kind: EventKind) -> Vec<String> {
        self.step_at(1, kind)
    }

    fn step_at(&mut self, at_ns: u64, kind: EventKind) -> Vec<String> {
        let mut decisions = Vec::new();
        self.0.step(&Event { at_ns, kind }, &mut decisions);
        let about_placement = decisions.iter().filter(|decision| {
            matches!(
                decision,
                Decision::Place { .. }
                    | Decision::PlacementRefused { .. }
                    | Decision::PlacementLost { .. }
                    | Decision::PlacementFailed { .. }
            )
        });
        about_placement.map(ToString::to_string).collect()
    }

    fn apply(&mut self, name: &str, cpus: u32) -> Vec<String> {
        let pod = Arc::new(pod(name, cpus));
        self.step(EventKind::PodApplied { pod })
    }

    fn runs(&mut self, name: &str) -> Vec<String> {
        self.step(EventKind::PodRunning { uid: name.into() })
    }

    /// And nothing urgent is left to do.
    fn is_empty(&mut self, name: &str) -> Vec<String> {
        let mut said = self.step(EventKind::PodEmpty { uid: name.into() });
        said.extend(self.step(EventKind::PlacementDue));
        said
    }

    fn is_removed(&mut self, name: &str) -> Vec<String> {
        self.step(EventKind::PodRemoved { uid: name.into() })
    }

    fn assignments(&self) -> Assignments {
        self.0.state().placement.as_ref().unwrap().assignments()
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_pod_holds_its_cpus_until_its_manifest_and_its_processes_are_gone() {
    let mut node = Node::new(None);
    assert_eq!(node.apply("a", 2), ["shared pool 0,3-7; a/main CPUs 1-2"]);
    assert_eq!(node.apply("a", 2), NOTHING, "nothing has changed");
    assert_eq!(node.runs("a"), NOTHING);
    assert_eq!(node.is_empty("a"), NOTHING, "it may be started again");
    node.runs("a");
    assert_eq!(node.is_removed("a"), NOTHING, "it still runs");
    assert_eq!(node.is_empty("a"), ["shared pool 0-7"]);
    node.apply("b", 3);
    assert_eq!(node.is_removed("b"), ["shared pool 0-7"]);
}

/// A node that is short of memory does not wait for placement.
#[test]
fn what_an_urgent_event_frees_is_given_back_by_the_next_event_that_is_not() {
    let mut node = Node::beside_kubelet();
    for (name, cpus) in [("a", 4), ("waits", 5)] {
        node.apply(name, cpus);
        node.runs(name);
    }
    node.is_removed("a");
    let uid = PodUid::from("a");
    let urgent = [
        EventKind::PodEmpty { uid: uid.clone() },
        EventKind::PodEmpty { uid: uid.clone() },
        EventKind::Sample(Sample::default()),
    ];
    for kind in urgent {
        assert_eq!(node.step(kind), NOTHING);
        assert_eq!(
            node.0.state().giving_back,
            std::slice::from_ref(&uid),
            "noted once"
        );
        assert_eq!(node.assignments().cpus(&uid, "main").cpus.len(), 4);
    }
    // It is part of the state: a journal may begin here.
    let text = serde_json::to_string(node.0.state()).unwrap();
    let state = serde_json::from_str(&text).unwrap();
    let config = node.0.config().clone();
    let mut again = Node(Engine::resume(config, state));
    let others = ["shared pool 0,6-7; waits/main CPUs 1-5"];
    assert_eq!(again.step(EventKind::PlacementDue), others);
    // Any event will do that is not urgent, and it is done once.
    assert_eq!(node.step(EventKind::PodsListed), others);
    assert_eq!(node.step(EventKind::PlacementDue), NOTHING);
    // One that holds nothing gives nothing back.
    let uid = PodUid::from("nobody");
    node.step(EventKind::PodEmpty { uid });
    assert!(node.0.state().giving_back.is_empty());
}

#[test]
fn a_pod_that_changes_is_placed_anew_and_one_that_does_not_fit_is_refused_once() {
    let mut node = Node::new(None);
    node.apply("a", 2);
    let refused = node.apply("b", 6);
    assert_eq!(refused.len(), 2);
    assert!(
        refused[0].contains("6 CPUs are wanted") && refused[0].ends_with("it must not be started"),
        "{refused:?}"
    );
    assert_eq!(refused[1], "shared pool 0,3-7; a/main CPUs 1-2");
    assert!(node.assignments().refused.contains_key(&"b".into()));
    assert_eq!(node.runs("b"), NOTHING, "it has been said");
    assert_eq!(
        node.apply("b", 5),
        ["shared pool 0; a/main CPUs 1-2; b/main CPUs 3-7"]
    );
    assert_eq!(
        node.apply("a", 1),
        ["shared pool 0,2; a/main CPUs 1; b/main CPUs 3-7"]
    );
}

#[test]
fn what_runs_keeps_its_cpus_when_it_grows_or_shrinks() {
    let mut node = Node::new(None);
    node.apply("a", 3);
    node.apply("b", 2);
    for name in ["a", "b"] {
        node.runs(name);
    }
    let resize = |node: &Node, cpus| may_resize(node.0.state(), &pod("a", cpus));
    assert_eq!(resize(&node, 3), Ok(()), "it is the same");
    assert_eq!(resize(&node, 5), Ok(()));
    let before = node.assignments();
    let refused = resize(&node, 6).unwrap_err().to_string();
    assert!(
        refused.contains("container main has CPUs 1-3 and wants 3 more")
            && refused.contains("NUMA node 0 is short of 1 (free there: 6-7)"),
        "{refused}"
    );
    assert_eq!(node.assignments(), before, "it was only asked");
    assert_eq!(
        node.apply("a", 5),
        ["shared pool 0; a/main CPUs 1-3,6-7; b/main CPUs 4-5"]
    );
    assert_eq!(
        node.apply("a", 2),
        ["shared pool 0,3,6-7; a/main CPUs 1-2; b/main CPUs 4-5"]
    );
    assert_eq!(
        node.apply("b", 4),
        ["shared pool 0,7; a/main CPUs 1-2; b/main CPUs 3-6"]
    );
    node.is_empty("a");
    assert_eq!(
        node.apply("a", 3).len(),
        1,
        "it does not run: it is placed anew"
    );
    assert_eq!(may_resize(node.0.state(), &pod("new", 3)), Ok(()));
}

/// Anybody who may create pods can name the node in one, and its kubelet has not looked at it yet.
#[test]
fn beside_a_kubelet_a_pod_is_placed_when_its_sandbox_runs() {
    let mut node = Node::beside_kubelet();
    node.apply("a", 2);
    node.runs("a");
    assert_eq!(node.apply("large", 5), NOTHING);
    assert_eq!(node.is_removed("a"), NOTHING);
    assert_eq!(
        node.is_empty("a"),
        ["shared pool 0-7"],
        "nobody waits for it"
    );
    assert_eq!(node.apply("b", 3), NOTHING);
    assert_eq!(node.runs("b"), ["shared pool 0,4-7; b/main CPUs 1-3"]);
    let said = node.runs("large");
    assert!(said[0].contains("5 CPUs are wanted"), "{said:?}");
    // Between two containers nothing runs, and it keeps what it has.
    assert_eq!(node.is_empty("b"), NOTHING);
    assert_eq!(node.apply("b", 3), NOTHING);
    assert_eq!(node.assignments().cpus(&"b".into(), "main").cpus.len(), 3);
}

/// Only a kubelet writes what becomes of containers.
#[test]
fn a_pod_is_placed_when_its_kubelet_has_said_something_of_its_containers() {
    let mut node = Node::beside_kubelet();
    assert_eq!(node.apply("a", 2), NOTHING);
    let mut admitted = pod("a", 2);
    let waiting = ContainerStatus {
        name: "main".to_owned(),
        ..ContainerStatus::default()
    };
    admitted.status.container_statuses.push(waiting);
    let pod = Arc::new(admitted);
    assert_eq!(
        node.step(EventKind::PodApplied { pod }),
        ["shared pool 0,3-7; a/main CPUs 1-2"]
    );
    assert_eq!(node.runs("a"), NOTHING);
}

/// Its kubelet has admitted it.
#[test]
fn what_cannot_grow_keeps_what_it_has_and_grows_when_there_is_room() {
    let mut node = Node::beside_kubelet();
    node.apply("a", 3);
    node.apply("b", 2);
    node.apply("c", 2);
    for name in ["a", "b", "c"] {
        node.runs(name);
    }
    // Its containers are about to be started again, or run: the pod is the same.
    node.is_empty("a");
    let before = node.assignments();
    let said = node.apply("a", 5);
    let [said] = &said[..] else {
        panic!("{said:?}")
    };
    assert!(
        said.starts_with("a does not get what it requests: ")
            && said.ends_with(
                "NUMA node 0 is short of 2 (free there: none); it goes on with what it has"
            ),
        "{said}"
    );
    assert_eq!(node.apply("a", 5), NOTHING, "it has been said");
    assert_eq!(node.assignments(), before);
    node.is_removed("b");
    assert_eq!(
        node.is_empty("b"),
        ["shared pool 0; a/main CPUs 1-5; c/main CPUs 6-7"]
    );
    // What is not asked for any more is given back.
    assert_eq!(
        node.apply("a", 1),
        ["shared pool 0,2-5; a/main CPUs 1; c/main CPUs 6-7"]
    );
}

/// Two containers of a Guaranteed pod that its kubelet has admitted, with CPUs and MiB of memory, and whether the
/// kubelet has allocated them.
fn two_containers(amounts: [(&str, u32, bool); 2]) -> EventKind {
    let container = |(name, (cpus, mib, is_allocated)): (&str, (&str, u32, bool))| {
        let amounts = json!({"cpu": cpus, "memory": format!("{mib}Mi")});
        let resources = json!({"requests": amounts, "limits": amounts});
        json!({"name": name, "resources": resources, "unallocated": !is_allocated})
    };
    let containers: Vec<_> = ["main", "side"]
        .into_iter()
        .zip(amounts)
        .map(container)
        .collect();
    let pod = json!({
        "metadata": {"name": "a", "uid": "a"},
        "spec": {"containers": containers},
        "status": {"qosClass": "Guaranteed", "containerStatuses": [{"name": "main", "containerID": "c://1"}, {"name": "side"}]},
    });
    let pod = Arc::new(serde_json::from_value(pod).unwrap());
    EventKind::PodApplied { pod }
}

/// An owner can write any amount into a pod; of a container that was never made the kubelet does not say what it has
/// allocated.
#[test]
fn what_the_kubelet_has_not_allocated_is_not_given() {
    let start = |node: &mut Node, saved: Option<Assignments>| {
        let mut start = two_nodes();
        let memory = BTreeMap::from([("memory".to_owned(), 512 << 20)]);
        start.settings.memory_manager_policy = MemoryManagerPolicy::Static;
        start.settings.reserved_memory = BTreeMap::from([(0, memory)]);
        start.saved = saved;
        node.step(EventKind::PlacementStarted(Box::new(start)));
    };
    let mut node = Node::beside_kubelet();
    start(&mut node, None);
    let first = [("1", 100, true), ("500m", 100, true)];
    node.step(two_containers(first));
    let held = node.assignments();
    assert_eq!(held.exclusive().len(), 1);
    assert_eq!(held.get(&"a".into(), "side").unwrap().memory.len(), 1);
    // Of both the owner wants all that there is, or nothing of it.
    for wanted in [
        [("5", 4000, false), ("500m", 100, true)],
        [("1", 100, true), ("4", 4000, false)],
        [("5", 4000, false), ("2", 4000, false)],
        [("100m", 1, false), ("100m", 1, false)],
    ] {
        assert_eq!(node.step(two_containers(wanted)), NOTHING, "{wanted:?}");
        assert_eq!(node.assignments(), held, "{wanted:?}");
    }
    // Nor from an agent that is started anew.
    let mut again = Node::beside_kubelet();
    start(&mut again, Some(held.clone()));
    again.step(two_containers([("5", 4000, false), ("2", 4000, false)]));
    assert_eq!(again.assignments(), held);
    // What was allocated is given.
    node.step(two_containers([("2", 100, true), ("4", 4000, false)]));
    let grown = node.assignments();
    assert_eq!(grown.cpus(&"a".into(), "main").cpus.len(), 2);
    assert_eq!(grown.exclusive().len(), 2);
}

/// The kubelet has admitted what it was before, and nobody knows that.
#[test]
fn a_pod_that_has_nothing_gets_nothing_for_what_is_not_allocated() {
    let waiting = |cpus: u32, unallocated: bool| {
        let mut pod = pod("a", cpus);
        pod.spec.containers[0].unallocated = unallocated;
        pod.status.container_statuses.push(ContainerStatus {
            name: "main".to_owned(),
            ..ContainerStatus::default()
        });
        EventKind::PodApplied { pod: Arc::new(pod) }
    };
    let mut node = Node::beside_kubelet();
    assert_eq!(node.step(waiting(5, true)), NOTHING);
    assert_eq!(node.runs("a"), NOTHING);
    let placed = node.step(waiting(2, false));
    assert_eq!(placed, ["shared pool 0,3-7; a/main CPUs 1-2"]);
    // One that was refused, and would get more when there is room.
    let mut node = Node::beside_kubelet();
    node.apply("b", 5);
    node.runs("b");
    let said = node.step(waiting(3, false));
    assert!(said[0].contains("3 CPUs are wanted"), "{said:?}");
    assert_eq!(node.step(waiting(6, true)), NOTHING);
    node.is_removed("b");
    assert_eq!(node.is_empty("b"), ["shared pool 0-7"]);
    let placed = node.step(waiting(3, false));
    assert_eq!(placed, ["shared pool 0,4-7; a/main CPUs 1-3"]);
    // A kubelet without resizes says nothing of what it allocates, and has made the container.
    let EventKind::PodApplied { pod } = waiting(2, true) else {
        panic!("it is one")
    };
    let mut pod = Pod::clone(&pod);
    pod.status.container_statuses[0].container_id = Some("c://1".to_owned());
    let mut node = Node::beside_kubelet();
    let pod = Arc::new(pod);
    let placed = node.step(EventKind::PodApplied { pod });
    assert_eq!(placed, ["shared pool 0,3-7; a/main CPUs 1-2"]);
}

/// On node 0 CPUs 0 to 3, on node 1 the others; aligned as far as can be.
fn two_nodes() -> PlacementStart {
    let core = |cpu| Core {
        cpus: CpuSet::of(cpu),
        socket: Some(0),
        node: Some(cpu / 4),
        ..Core::default()
    };
    let node = |id| NumaNode {
        id,
        memory_bytes: Some(8 << 30),
        ..NumaNode::default()
    };
    let parts = Parts {
        cores: (0..8).map(core).collect(),
        nodes: (0..2).map(node).collect(),
        ..Parts::default()
    };
    PlacementStart {
        settings: PlacementSettings {
            cpu_manager_policy: CpuManagerPolicy::Static,
            reserved_system_cpus: CpuSet::of(0),
            reserved_cpu_count: 1,
            topology_manager_policy: "best-effort".to_owned(),
            ..PlacementSettings::default()
        },
        machine: Machine::new(parts).unwrap(),
        saved: None,
    }
}

/// Two CPUs and a device.
fn with_device(name: &str) -> Arc<Pod> {
    let mut pod = pod(name, 2);
    let limits = &mut pod.spec.containers[0].resources.limits;
    limits.insert("x/gpu".to_owned(), "1".parse().unwrap());
    Arc::new(pod)
}

/// The kubelet, which was asked at this time, has a device that is near to node 1, and has given it to these.
fn devices(asked_at_ns: u64, given_to: &[&str]) -> EventKind {
    let gpu = || Devices {
        resource: "x/gpu".to_owned(),
        ids: vec!["g".to_owned()],
        numa_nodes: vec![1],
    };
    let given = |name: &&str| Given {
        container: format!("default/{name}/main"),
        devices: vec![gpu()],
        ..Given::default()
    };
    let resources = NodeResources {
        allocatable: Some(Given {
            devices: vec![gpu()],
            ..Given::default()
        }),
        given: given_to.iter().map(given).collect(),
        pods: given_to
            .iter()
            .map(|name| format!("default/{name}"))
            .collect(),
    };
    EventKind::DevicesGiven {
        devices: Some(Arc::new(ListedDevices::of(asked_at_ns, &resources))),
    }
}

#[test]
fn beside_a_kubelet_a_container_is_placed_near_to_the_devices_that_it_was_given() {
    let mut node = Node::beside_kubelet();
    node.step(EventKind::PlacementStarted(Box::new(two_nodes())));
    // Nobody says who has devices.
    let apply = |node: &mut Node, name: &str| {
        let pod = with_device(name);
        node.step(EventKind::PodApplied { pod });
        node.runs(name)
    };
    assert_eq!(
        apply(&mut node, "a"),
        ["shared pool 0,3-7; a/main CPUs 1-2"]
    );
    assert_eq!(node.step(devices(2, &["a"])), NOTHING, "it is not moved");
    // From here on it is waited for.
    assert_eq!(apply(&mut node, "b"), NOTHING);
    assert_eq!(apply(&mut node, "c"), NOTHING);
    let plain = node.apply("plain", 1);
    assert_eq!(plain, NOTHING);
    assert_eq!(node.runs("plain").len(), 1, "it wants no device");
    let text = serde_json::to_string(node.0.state()).unwrap();
    let config = node.0.config().clone();
    let mut again = Node(Engine::resume(config, serde_json::from_str(&text).unwrap()));
    for node in [&mut node, &mut again] {
        assert_eq!(
            node.step(devices(2, &["a", "b"])),
            ["shared pool 0,6-7; a/main CPUs 1-2; b/main CPUs 4-5; plain/main CPUs 3"]
        );
    }
    // A start anew keeps what is known.
    let mut start = two_nodes();
    start.saved = Some(node.assignments());
    assert_eq!(
        node.step(EventKind::PlacementStarted(Box::new(start)))
            .len(),
        1
    );
    assert_eq!(node.runs("c"), NOTHING);
    // Nobody says it any more.
    assert_eq!(
        node.step(EventKind::DevicesGiven { devices: None }),
        ["shared pool 0; a/main CPUs 1-2; b/main CPUs 4-5; c/main CPUs 6-7; plain/main CPUs 3"]
    );
}

/// The kubelet lists names. What it said of a pod is not that of one that was made again with the name.
#[test]
fn a_pod_that_is_made_again_has_no_devices_of_the_one_before() {
    let mut node = Node::beside_kubelet();
    node.step(EventKind::PlacementStarted(Box::new(two_nodes())));
    let apply = |node: &mut Node, uid: &str| {
        let mut pod = (*with_device("a")).clone();
        pod.metadata.uid = Some(uid.into());
        node.step(EventKind::PodApplied { pod: pod.into() });
        node.runs(uid)
    };
    node.step(devices(0, &[]));
    assert_eq!(apply(&mut node, "old"), NOTHING);
    // It is admitted at 1. A kubelet that was asked before may have meant another.
    assert_eq!(node.step(devices(1, &["a"])), NOTHING);
    assert!(is_waiting_for_devices(node.0.state()));
    assert_eq!(
        node.step(devices(2, &["a"])),
        ["shared pool 0-3,6-7; old/main CPUs 4-5"]
    );
    assert!(!is_waiting_for_devices(node.0.state()));
    node.is_removed("old");
    node.is_empty("old");
    node.step_at(3, EventKind::PlacementDue);
    assert_eq!(apply(&mut node, "new"), NOTHING, "it is another pod");
    assert_eq!(node.step(devices(3, &["a"])), NOTHING);
    assert_eq!(
        node.step(devices(4, &["a"])),
        ["shared pool 0-3,6-7; new/main CPUs 4-5"]
    );
}

/// However many wait, one step does not try them all.
#[test]
fn of_many_that_wait_each_has_its_turn() {
    let mut node = Node::beside_kubelet();
    node.apply("a", 7);
    node.runs("a");
    for at in 0..99 {
        // All but the last want more than there ever is.
        let (name, cpus) = (format!("w{at:02}"), if at == 98 { 7 } else { 8 });
        node.apply(&name, cpus);
        node.runs(&name);
    }
    let has_untried = |node: &Node| node.0.state().placement.as_ref().unwrap().has_untried();
    while has_untried(&node) {
        assert_eq!(
            node.step(EventKind::RoomSought),
            NOTHING,
            "there is no room"
        );
    }
    node.is_removed("a");
    let given_back = node.is_empty("a");
    assert!(
        given_back.len() == 1 && has_untried(&node),
        "{given_back:?}"
    );
    let text = serde_json::to_string(node.0.state()).unwrap();
    let config = EngineConfig {
        beside_kubelet: true,
        ..EngineConfig::default()
    };
    let mut again = Node(Engine::resume(config, serde_json::from_str(&text).unwrap()));
    for node in [&mut node, &mut again] {
        let mut steps = 0;
        let mut said = Vec::new();
        while has_untried(node) {
            said.extend(node.step(EventKind::RoomSought));
            steps += 1;
        }
        assert!((2..=4).contains(&steps), "{steps}");
        assert_eq!(said.len(), 1, "{said:?}");
        assert_eq!(node.assignments().cpus(&"w98".into(), "main").cpus.len(), 7);
    }
}

#[test]
fn saved_assignments_are_kept_and_given_back_when_unclaimed() {
    let mut before = Node::new(None);
    before.apply("a", 2);
    before.apply("gone", 2);
    let saved = before.assignments();
    let mut node = Node::new(Some(saved.clone()));
    assert_eq!(node.assignments(), saved);
    assert_eq!(node.apply("a", 2), NOTHING);
    assert_eq!(
        node.apply("new", 3),
        ["shared pool 0; a/main CPUs 1-2; gone/main CPUs 3-4; new/main CPUs 5-7"]
    );
    assert_eq!(
        node.step(EventKind::PodsListed),
        ["shared pool 0,3-4; a/main CPUs 1-2; new/main CPUs 5-7"]
    );
}

#[test]
fn when_cpus_go_offline_only_containers_on_them_move() {
    let mut node = Node::new(None);
    node.apply("a", 2);
    node.apply("b", 2);
    assert_eq!(
        node.assignments().to_string(),
        "shared pool 0,5-7; a/main CPUs 1-2; b/main CPUs 3-4"
    );
    node.runs("b");
    let notes = node.machine_is(4, None);
    assert_eq!(notes.len(), 3);
    assert!(
        notes[0].starts_with("pod b, container main: it had CPUs 3-4, of which 4 are offline"),
        "{notes:?}"
    );
    assert!(
        notes[1].ends_with("it goes on with what it has"),
        "{notes:?}"
    );
    assert_eq!(notes[2], "shared pool 0,3; a/main CPUs 1-2");
    // Back again: what could not be is now possible.
    assert_eq!(
        node.machine_is(8, None),
        ["shared pool 0,5-7; a/main CPUs 1-2; b/main CPUs 3-4"]
    );
}

#[test]
fn a_state_with_a_placement_goes_on_where_it_was_saved() {
    let mut node = Node::new(None);
    node.apply("a", 2);
    node.apply("b", 6);
    let text = serde_json::to_string(node.0.state()).unwrap();
    let state = serde_json::from_str(&text).unwrap();
    let mut again = Node(Engine::resume(EngineConfig::default(), state));
    assert_eq!(again.0.state(), node.0.state());
    assert_eq!(again.apply("c", 1), node.apply("c", 1));
}

#[test]
fn events_and_decisions_read_as_they_were_written() {
    let mut before = Node::new(None);
    before.apply("a", 2);
    let start = PlacementStart {
        settings: PlacementSettings {
            cpu_manager_policy: CpuManagerPolicy::Static,
            reserved_system_cpus: CpuSet::of(0),
            reserved_cpu_count: 1,
            reserved_memory: [(0, [("memory".to_owned(), 1)].into())].into(),
            ..PlacementSettings::default()
        },
        machine: machine(8),
        saved: Some(before.assignments()),
    };
    for kind in [
        EventKind::PlacementStarted(Box::new(start)),
        EventKind::PodsListed,
        EventKind::PlacementDue,
        EventKind::RoomSought,
        devices(2, &["a"]),
        EventKind::DevicesGiven { devices: None },
        EventKind::ContainerEnded {
            uid: "a".into(),
            container: "init".into(),
        },
    ] {
        let event = Event { at_ns: 1, kind };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(
            serde_json::from_str::<Event>(&text).unwrap(),
            event,
            "{text}"
        );
    }
    let decision = Decision::Place {
        assignments: Arc::new(before.assignments()),
    };
    let text = serde_json::to_string(&decision).unwrap();
    assert_eq!(
        serde_json::from_str::<Decision>(&text).unwrap(),
        decision,
        "{text}"
    );
}

#[test]
fn settings_that_cannot_be_leave_everything_as_it_is() {
    let mut node = Node::new(None);
    node.apply("a", 2);
    let before = node.assignments();
    let start = PlacementStart {
        settings: PlacementSettings {
            cpu_manager_policy: CpuManagerPolicy::Static,
            ..PlacementSettings::default()
        },
        machine: machine(8),
        saved: None,
    };
    let notes = node.step(EventKind::PlacementStarted(Box::new(start)));
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("reservedSystemCPUs"), "{notes:?}");
    assert_eq!(node.assignments(), before);
}

#[test]
fn a_pod_that_the_api_has_not_named_yet_keeps_what_was_saved_for_it() {
    let mut before = Node::new(None);
    before.apply("a", 2);
    before.apply("b", 2);
    before.is_removed("a");
    before.is_empty("a");
    let saved = before.assignments();
    let mut node = Node::new(Some(saved.clone()));
    let unnamed = Pod::unnamed("b".into(), QosClass::Guaranteed);
    let pod = Arc::new(unnamed);
    assert_eq!(node.step(EventKind::PodApplied { pod }), NOTHING);
    assert_eq!(node.runs("b"), NOTHING);
    // A first fit would move it to 1-2.
    assert_eq!(node.apply("b", 2), NOTHING);
    assert_eq!(node.assignments(), saved);
}

#[test]
fn a_pod_that_has_ended_holds_nothing_however_long_the_api_keeps_it() {
    let mut node = Node::new(None);
    let ends =
        |node: &mut Node, name: &str| node.step(EventKind::PodEndedByKubelet { uid: name.into() });
    node.apply("job", 2);
    node.runs("job");
    assert_eq!(ends(&mut node, "job"), NOTHING, "its processes run");
    assert_eq!(node.is_empty("job"), ["shared pool 0-7"]);
    assert_eq!(node.apply("job", 2), NOTHING, "its status has changed");
    assert_eq!(node.runs("job"), NOTHING);
    // Listed by an agent that never saw it run.
    node.apply("old", 2);
    assert_eq!(ends(&mut node, "old"), ["shared pool 0-7"]);
}
