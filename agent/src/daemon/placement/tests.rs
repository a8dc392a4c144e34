use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::machine::{Core, NumaNode, Parts};

use super::*;
use crate::act::placement::kubelet_state::{FOR_KUBELET, keep};
use crate::host::cgroup::tests::fake_v2;

/// Sixteen CPUs on two NUMA nodes, as in the fixtures.
fn machine() -> Machine {
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
    let around = Surroundings {
        host: &host,
        mounts: &mounts,
        cgroup_root: &cgroup_root,
        kubelet: Some(&tree),
        state_dir: &state_dir,
        kubelet_dir: dir.path(),
        capacity: NodeCapacity::default(),
        moves_interrupts: false,
    };
    let taken = |remarks: &mut Vec<String>| {
        saved(&around, &machine(), &mut |remark| remarks.push(remark)).unwrap()
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
    kubelet_state::forget(&state_dir).unwrap();
    assert_eq!(taken(&mut remarks), Assignments::default());
}
