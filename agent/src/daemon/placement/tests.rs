use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::machine::{Core, NumaNode, Parts};
use plimsoll_core::protocol::runtime_link::FromNri;

use super::*;
use crate::act::placement::kubelet_state::keep;
use crate::daemon::NriWork;
use crate::daemon::tests::{Cgroup, Node, set_available};
use crate::host::cgroup::CgroupPath;
use crate::host::cgroup::tests::fake_v2;
use crate::input::config::{ConfigFile, EvictionFlags};
use crate::pods::names::KubeletTree;
use crate::source::cluster::{ClusterChange, ClusterEvent, ClusterPod};
use crate::source::nri::NriLink;

/// Sixteen CPUs on two NUMA nodes, as in the fixtures.
pub(in crate::daemon) fn machine() -> Machine {
    let core = |at: u32| Core {
        cpus: [at, at + 8].into_iter().collect(),
        socket: Some(at / 4),
        node: Some(at / 4),
        ..Core::default()
    };
    let node = |id: u32| NumaNode {
        id,
        memory_bytes: Some(8 << 30),
        ..NumaNode::default()
    };
    let parts = Parts {
        cores: (0..8).map(core).collect(),
        nodes: (0..2).map(node).collect(),
        ..Parts::default()
    };
    Machine::new(parts).unwrap()
}

/// Has the node's agent place on [`machine`], of which CPU 0 is reserved. Its thread is there, and can write nothing.
pub(in crate::daemon) fn place_on(node: &mut Node, beside_kubelet: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    kubelet_says(&node.host, "none");
    let kubelet_dir = PathBuf::from("/var/lib/kubelet");
    let mounts = node.host.cgroup_mounts().unwrap();
    let cgroup_root = CgroupPath::default();
    let tree = || KubeletTree::find(&mounts, &cgroup_root).unwrap();
    let paths = NodePaths {
        host: node.host.clone(),
        mounts: mounts.clone(),
        cgroup_root: cgroup_root.clone(),
        kubelet: beside_kubelet.then(tree),
        state_dir: dir.path().to_owned(),
        kubelet_dir,
    };
    let options = Options {
        moves_interrupts: false,
        keeps_quota: false,
    };
    let (applier, _) = Applier::open(paths, options).unwrap();
    let (placement, _) = Placement::start(applier, RECONCILE_PERIOD).unwrap();
    let settings = PlacementSettings {
        cpu_manager_policy: plimsoll_core::placement::node::CpuManagerPolicy::Static,
        reserved_system_cpus: CpuSet::of(0),
        reserved_cpu_count: 1,
        ..PlacementSettings::default()
    };
    let usable = Usable {
        cpus: machine().online(),
        ..Usable::default()
    };
    node.agent.placement = Some(PlacementWork {
        host: node.host.clone(),
        mounts,
        qos: QosSettings::default(),
        capacity: NodeCapacity::default(),
        placement,
        usable,
        planned: usable,
        not_taken: None,
        refused: None,
        start: Some(Box::new(PlacementStart {
            settings: settings.clone(),
            machine: machine(),
            saved: None,
        })),
        settings,
        listed: false,
        unseen: false,
        resizes: BTreeMap::new(),
        beside_kubelet,
        in_force: InForce::default(),
        names: Names::new(),
        made: Made::default(),
        foreign_given: plugin_cpusets::Ids::new(),
        answered_given: Answered::new(),
        has_changed: false,
        due: None,
        number: 0,
        tally: PlacementTally::default(),
    });
    node.agent.begin_placement();
    dir
}

/// Guaranteed, with so many CPUs.
pub(in crate::daemon) fn pod(uid: &str, cpus: u32, id: Option<&str>) -> Arc<Pod> {
    let amounts = serde_json::json!({"cpu": cpus.to_string(), "memory": "16Mi"});
    let status = id.map(|id| {
        serde_json::json!({"name": "c", "containerID": format!("x://{id}"), "state": {"running": {}}})
    });
    let statuses: Vec<_> = status.into_iter().collect();
    let pod = serde_json::json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]},
        "status": {"containerStatuses": statuses},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn cpus_of(node: &Node, uid: &str) -> u32 {
    let placement = node.agent.engine.state().placement.as_ref().unwrap();
    let cpus = placement.assignments().cpus(&uid.into(), "c");
    if cpus.exclusive { cpus.cpus.len() } else { 0 }
}

#[test]
fn what_waits_for_room_is_applied_when_there_is_some() {
    let mut node = Node::with(Cgroup::V2, false);
    let _dir = place_on(&mut node, false);
    for (uid, cpus) in [("uid-0", 4), ("uid-1", 10)] {
        node.agent.apply(pod(uid, cpus, None), "");
        node.agent
            .handle_event(EventKind::PodRunning { uid: uid.into() });
        assert_eq!(cpus_of(&node, uid), cpus);
    }
    let larger = pod("uid-0", 6, None);
    assert!(!node.agent.admit_resize(&larger), "one CPU is free");
    let known = |node: &Node| {
        let known = &node.agent.engine.state().pods[&PodUid::from("uid-0")];
        known.pod.spec.containers[0]
            .resources
            .request("cpu")
            .value()
    };
    // Something has changed, and it is not enough.
    node.agent.apply(pod("uid-2", 1, None), "");
    node.agent.rescan_placement();
    assert_eq!(known(&node), 4);
    let waits = |node: &Node| node.agent.placement.as_ref().unwrap().resizes.len();
    assert_eq!(waits(&node), 1);

    node.agent.handle_event(EventKind::PodRemoved {
        uid: "uid-1".into(),
    });
    node.agent.handle_event(EventKind::PodEmpty {
        uid: "uid-1".into(),
    });
    assert_eq!(known(&node), 4, "not before there is time");
    node.agent.give_back();
    node.agent.rescan_placement();
    assert_eq!((known(&node), cpus_of(&node, "uid-0")), (6, 6));
    assert_eq!(waits(&node), 0);
}

#[test]
fn a_container_that_the_api_names_is_placed_at_once() {
    let mut node = Node::with(Cgroup::V2, true);
    let _dir = place_on(&mut node, true);
    node.timer();
    node.rest();
    let id = "a".repeat(64);
    let named = |node: &Node| {
        let work = node.agent.placement.as_ref().unwrap();
        let names = work.names.get(&"uid-0".into());
        names.and_then(|names| names.get(&id)).cloned()
    };
    let tell = |node: &mut Node, id: Option<&str>| {
        let one = ClusterPod {
            pod: pod("uid-0", 4, id),
            is_leaving: false,
        };
        let change = ClusterChange {
            pods: vec![one],
            ..ClusterChange::default()
        };
        node.agent
            .cluster_event(ClusterEvent::Change(change))
            .unwrap();
    };
    tell(&mut node, None);
    assert_eq!((cpus_of(&node, "uid-0"), named(&node)), (4, None));
    let number = node.agent.placement.as_ref().unwrap().number;
    tell(&mut node, Some(&id));
    assert_eq!(named(&node).as_deref(), Some("c"));
    assert_eq!(node.agent.placement.as_ref().unwrap().number, number + 1);
}

/// From a kubelet with static policies to the agent, and back.
#[test]
fn what_a_kubelet_had_is_kept_beside_it_and_given_back() {
    let (dir, host) = fake_v2();
    let mounts = host.cgroup_mounts().unwrap();
    let cgroup_root = CgroupPath::default();
    std::fs::create_dir_all(host.path("/sys/fs/cgroup/kubepods/poda")).unwrap();
    let tree = KubeletTree::find(&mounts, &cgroup_root).unwrap();
    let state_dir = dir.path().join("state");
    std::fs::create_dir(&state_dir).unwrap();
    let paths = NodePaths {
        host,
        mounts,
        cgroup_root,
        kubelet: Some(tree),
        state_dir: state_dir.clone(),
        kubelet_dir: dir.path().to_owned(),
    };
    let taken = |remarks: &mut Vec<String>| {
        saved(&paths, &machine(), &mut |remark| remarks.push(remark)).unwrap()
    };
    let mut remarks = Vec::new();
    assert_eq!(taken(&mut remarks), Assignments::default());
    let fixture = |name: &str| {
        let fixtures = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/act/placement/kubelet_state/fixtures"
        );
        std::fs::read_to_string(Path::new(fixtures).join(name)).unwrap()
    };
    let put = |name: &str, text: String| std::fs::write(state_dir.join(name), text).unwrap();
    for name in [CPU_MANAGER_STATE, MEMORY_MANAGER_STATE] {
        put(&format!("{FROM_KUBELET}{name}"), fixture(name));
    }
    let had = taken(&mut remarks);
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert!(
        remarks[0].contains("exclusive CPUs 1-3,8-11 of 3 pods are taken over"),
        "{remarks:?}"
    );
    // The engine keeps all of it.
    let settings = PlacementSettings {
        cpu_manager_policy: plimsoll_core::placement::node::CpuManagerPolicy::Static,
        reserved_system_cpus: CpuSet::of(0),
        reserved_cpu_count: 1,
        memory_manager_policy: plimsoll_core::placement::node::MemoryManagerPolicy::Static,
        reserved_memory: BTreeMap::from([(0, BTreeMap::from([("memory".to_owned(), 100 << 20)]))]),
        ..PlacementSettings::default()
    };
    let (placement, notes) = NodePlacement::start(settings, machine(), &had).unwrap();
    assert_eq!(notes, []);
    assert_eq!(placement.assignments().containers, had.containers);
    // Back: the same CPUs, in a file that reads as the kubelet's.
    let memory = placement.memory().unwrap().nodes();
    keep(&state_dir, &placement.assignments(), memory).unwrap();
    let back = |name: &str| {
        let path = state_dir.join(format!("{FOR_KUBELET}{name}"));
        std::fs::read_to_string(path).unwrap()
    };
    let cpus = CpuManagerState::parse(&back(CPU_MANAGER_STATE)).unwrap();
    assert_eq!(
        cpus,
        CpuManagerState::parse(&fixture(CPU_MANAGER_STATE)).unwrap()
    );
    let memory = MemoryManagerState::parse(&back(MEMORY_MANAGER_STATE)).unwrap();
    let before = MemoryManagerState::parse(&fixture(MEMORY_MANAGER_STATE)).unwrap();
    assert_eq!(memory.entries, before.entries);
    for (id, node) in &memory.machine {
        let table = |state: &MemoryManagerState| state.machine[id].tables["memory"].reserved_bytes;
        assert_eq!(table(&memory), table(&before), "NUMA node {id}");
        assert_eq!(node.assignments, before.machine[id].assignments);
        assert_eq!(node.cells, before.machine[id].cells);
    }
    // What this agent has placed is what runs; that a kubelet has newer files is said.
    remarks.clear();
    let placed = Checkpoint {
        assignments: placement.assignments(),
        before: None,
        keeps_quota: false,
    };
    let lock = || PlacementLock::exclusive_by_force(&state_dir, BREAK_AFTER).unwrap();
    placed.write(&lock(), &state_dir).unwrap();
    let from = std::fs::File::open(state_dir.join(format!("{FROM_KUBELET}{CPU_MANAGER_STATE}")));
    let at = |seconds| std::time::SystemTime::now() + Duration::from_secs(seconds);
    from.as_ref().unwrap().set_modified(at(60)).unwrap();
    taken(&mut remarks);
    assert!(remarks[0].contains("nothing is taken over"), "{remarks:?}");
    Checkpoint::remove(&lock(), &state_dir).unwrap();
    kubelet_state::forget(&state_dir).unwrap();
    assert_eq!(taken(&mut remarks), Assignments::default());
}

/// What a machine with these CPUs shows of them; it has no NUMA.
fn show_cpus(host: &HostRoot, online: &str) {
    let put = |path: String, text: &str| {
        let path = host.sysfs(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for list in ["online", "present"] {
        put(format!("devices/system/cpu/{list}"), online);
    }
    for cpu in CpuSet::parse(online).unwrap().iter() {
        let topology = format!("devices/system/cpu/cpu{cpu}/topology");
        put(format!("{topology}/physical_package_id"), "0");
        put(format!("{topology}/thread_siblings_list"), &cpu.to_string());
    }
    set_available(host, 8 << 30);
}

fn kubelet_says(host: &HostRoot, policy: &str) {
    let dir = host.path("/var/lib/kubelet");
    std::fs::create_dir_all(&dir).unwrap();
    let text = format!(r#"{{"policyName":"{policy}","defaultCpuSet":"","checksum":0}}"#);
    std::fs::write(dir.join(CPU_MANAGER_STATE), text).unwrap();
}

/// Scenario 34, at the agent's start: the kubelet may be given another policy.
#[test]
fn beside_a_kubelet_that_places_the_agent_is_ready_and_not_active() {
    let (dir, host) = fake_v2();
    show_cpus(&host, "0-3");
    kubelet_says(&host, "static");
    std::fs::create_dir_all(host.path("/sys/fs/cgroup/kubepods/poda")).unwrap();
    let mounts = host.cgroup_mounts().unwrap();
    let cgroup_root = CgroupPath::default();
    let tree = KubeletTree::find(&mounts, &cgroup_root).unwrap();
    let file = dir.path().join("config.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
    std::fs::write(&file, text).unwrap();
    let file = ConfigFile::read(&file).unwrap();
    let config = Config::new(file, &EvictionFlags::default()).unwrap();
    let prepared = |kubelet| {
        let paths = NodePaths {
            host: host.clone(),
            mounts: mounts.clone(),
            cgroup_root: cgroup_root.clone(),
            kubelet,
            state_dir: dir.path().join("state"),
            kubelet_dir: PathBuf::from("/var/lib/kubelet"),
        };
        PlacementWork::prepare(paths, NodeCapacity::default(), false, &config, None, |_| {})
    };
    let (work, _) = prepared(Some(tree)).unwrap().unwrap();
    assert_eq!(work.tally(), PlacementTally::default());
    // Without its tree nobody knows whose the pods are.
    std::fs::create_dir_all(host.procfs("77")).unwrap();
    std::fs::write(host.procfs("77/comm"), "kubelet\n").unwrap();
    std::fs::write(host.procfs("77/cmdline"), "kubelet\0").unwrap();
    std::fs::write(host.procfs("77/status"), "Uid:\t0\t0\t0\t0\n").unwrap();
    std::fs::write(host.procfs("77/cgroup"), "0::/system.slice\n").unwrap();
    prepared(None).unwrap_err();
}

/// The thread says once what pods can use.
#[test]
fn a_machine_that_cannot_be_read_or_planned_with_is_tried_again() {
    let mut node = Node::with(Cgroup::V2, false);
    let _dir = place_on(&mut node, false);
    let report = |node: &mut Node, cpus: &str| {
        let usable = Usable {
            cpus: CpuSet::parse(cpus).unwrap(),
            ..Usable::default()
        };
        let usable = Box::new(usable);
        node.agent.placement_reported(Report::Machine { usable });
    };
    let plans_with = |node: &Node| {
        let placement = node.agent.engine.state().placement.as_ref().unwrap();
        placement.machine().online().to_string()
    };
    // Its files are not there yet.
    report(&mut node, "0-3");
    assert_eq!(plans_with(&node), "0-15");
    let said = node.agent.placement.as_ref().unwrap().not_taken.clone();
    assert!(said.unwrap().contains("devices/system/cpu/online"));
    // Containers are not sent to CPUs that are gone all the same.
    let usable = node.agent.placement.as_ref().unwrap().usable;
    assert_eq!(usable.cpus.to_string(), "0-3");
    show_cpus(&node.host, "0-3");
    node.agent.rescan_placement();
    assert_eq!(plans_with(&node), "0-3");
    // Without the reserved CPU the engine cannot plan.
    show_cpus(&node.host, "1-3");
    report(&mut node, "1-3");
    assert_eq!(plans_with(&node), "0-3");
    let is_tried = |node: &Node| node.agent.placement.as_ref().unwrap().refused.is_some();
    assert!(is_tried(&node));
    show_cpus(&node.host, "0-2");
    node.agent.rescan_placement();
    assert_eq!(plans_with(&node), "0-2");
    assert!(!is_tried(&node));
}

/// A node whose memory came later has books.
#[test]
fn memory_that_came_is_placed() {
    let mut node = Node::with(Cgroup::V2, false);
    let _dir = place_on(&mut node, false);
    show_cpus(&node.host, "0-15");
    let put = |path: &str, text: &str| {
        let path = node.host.sysfs("devices/system/node").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("online", "0,2");
    put("node0/cpulist", "0-15");
    put("node2/cpulist", "");
    let usable = Usable {
        nodes: CpuSet::parse("0,2").unwrap(),
        ..node.agent.placement.as_ref().unwrap().usable
    };
    let usable = Box::new(usable);
    node.agent.placement_reported(Report::Machine { usable });
    let placement = node.agent.engine.state().placement.as_ref().unwrap();
    assert_eq!(placement.machine().node_ids().to_string(), "0,2");
}

/// Where containers are made while nothing can be written for a moment, and where the kubelet says it.
#[test]
fn the_pool_of_new_containers_stays_unless_the_kubelet_places() {
    let mut node = Node::with(Cgroup::V2, true);
    let _dir = place_on(&mut node, true);
    node.agent.place_what_is_due();
    let number = node.agent.placement.as_ref().unwrap().number;
    let pool = |node: &Node| node.agent.placement.as_ref().unwrap().pool_of_new();
    assert_eq!(pool(&node), None, "nothing is carried out yet");
    let outcome = Box::<Outcome>::default();
    node.agent
        .placement_reported(Report::Applied { number, outcome });
    let all = pool(&node);
    assert!(all.is_some());
    // What was decided could not be kept: what was before is in force.
    let kept = Assignments {
        shared_pool: CpuSet::parse("0-3").unwrap(),
        ..Assignments::default()
    };
    let outcome = Box::new(Outcome {
        fell_back: Some(("no room".to_owned(), kept)),
        ..Outcome::default()
    });
    node.agent
        .placement_reported(Report::Applied { number, outcome });
    assert_eq!(pool(&node), CpuSet::parse("0-3").ok());
    let outcome = Box::<Outcome>::default();
    node.agent
        .placement_reported(Report::Applied { number, outcome });
    assert_eq!(pool(&node), all);
    let failed = |node: &mut Node, owner: OtherOwner| {
        let error = PlacementError::OtherOwner(owner);
        node.agent
            .placement_reported(Report::Failed { number, error });
        assert!(!node.agent.placement.as_ref().unwrap().tally().is_active);
    };
    let file = PathBuf::from("cpu_manager_state");
    let why = "it is being written".to_owned();
    failed(
        &mut node,
        OtherOwner::Unknown {
            file: file.clone(),
            why,
        },
    );
    assert_eq!(pool(&node), all);
    failed(
        &mut node,
        OtherOwner::Rewriter {
            cgroup: CgroupPath::default(),
            ours: String::new(),
            theirs: String::new(),
            times: 3,
            pause_s: 60,
        },
    );
    assert_eq!(pool(&node), all);
    failed(
        &mut node,
        OtherOwner::Kubelet {
            pid: None,
            file,
            policy: "static".to_owned(),
            field: "cpuManagerPolicy",
        },
    );
    assert_eq!(pool(&node), None);
}

/// Meanwhile a resize may have had the runtime write what the container was made with.
#[test]
fn when_the_runtime_asks_again_and_when_a_frame_was_lost_the_thread_looks() {
    let mut node = Node::with(Cgroup::V2, false);
    let _dir = place_on(&mut node, true);
    let (link, _changes) = NriLink::without_thread();
    node.agent.nri = Some(NriWork::new(link));
    for event in [
        FromNri::Connected {
            runtime: "containerd 2".to_owned(),
        },
        FromNri::Dropped { frames: 1 },
    ] {
        node.agent.placement.as_mut().unwrap().unseen = false;
        node.agent.nri_event(event);
        assert!(node.agent.placement.as_ref().unwrap().unseen);
    }
}
