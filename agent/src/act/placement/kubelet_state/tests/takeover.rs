//! Both ways with the state code of a kubelet 1.36.2's managers (`takeover.jsonl`; how it was made:
//! docs/contributing/build.md).

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::placement::machine::{Core, HugePages, Machine, NumaNode, Parts};
use plimsoll_core::placement::node::{
    CpuManagerPolicy, MemoryManagerPolicy, NodePlacement, PlacementSettings,
};
use serde_json::json;

use super::*;

const VECTORS: &str = include_str!("../fixtures/takeover.jsonl");
const GIB: u64 = 1 << 30;

/// What a container requests, which are its limits too.
type Requests = BTreeMap<String, String>;

/// A NUMA node with cores of two threads, and huge pages of 1 GiB. CPUs are numbered through.
#[derive(Debug, Clone, Copy, Deserialize)]
struct NodeOf {
    id: u32,
    cores: u32,
    gib: u64,
    huge: u64,
}

#[derive(Debug, Clone, Deserialize)]
struct PodOf {
    #[serde(default)]
    init: Vec<Requests>,
    app: Vec<Requests>,
}

/// What the state code has said that it holds after it has read both files.
#[derive(Debug, Clone, Deserialize)]
struct Read {
    default: String,
    cpus: BTreeMap<String, BTreeMap<String, String>>,
    blocks: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
    machine: BTreeMap<u32, Node>,
}

#[derive(Debug, Clone, Deserialize)]
struct Case {
    nodes: Vec<NodeOf>,
    policy: String,
    scope: String,
    pods: Vec<PodOf>,
    /// Where the state code wrote the files itself: whether with `PodLevelResourceManagers`. `None`: it read those of
    /// Plimsoll.
    gate: Option<bool>,
    /// Both files.
    cpu: String,
    memory: String,
    read: Read,
}

impl PodOf {
    fn pod(&self, number: usize) -> Pod {
        let containers = |kind: &str, all: &[Requests]| {
            let all = all.iter().enumerate();
            all.map(|(at, amounts)| {
                json!({"name": format!("{kind}{at}"), "resources": {"requests": amounts, "limits": amounts}})
            })
            .collect::<Vec<_>>()
        };
        let uid = format!("0a1b2c3d-0000-4000-8000-{number:012}");
        let pod = json!({
            "metadata": {"name": format!("p{number}"), "uid": uid},
            "spec": {"initContainers": containers("init", &self.init), "containers": containers("app", &self.app)},
        });
        serde_json::from_value(pod).unwrap()
    }
}

impl Case {
    fn machine(&self) -> Machine {
        let mut parts = Parts::default();
        let mut cpu = 0;
        for node in &self.nodes {
            for _ in 0..node.cores {
                parts.cores.push(Core {
                    cpus: [cpu, cpu + 1].into_iter().collect(),
                    socket: Some(node.id),
                    node: Some(node.id),
                    ..Core::default()
                });
                cpu += 2;
            }
            let pages = HugePages {
                page_bytes: GIB,
                pages: node.huge,
            };
            parts.nodes.push(NumaNode {
                id: node.id,
                memory_bytes: Some(node.gib * GIB),
                hugepages: vec![pages],
                distances: None,
            });
        }
        Machine::new(parts).unwrap()
    }

    /// CPU 0 and 1 GiB of the first node are reserved.
    fn start(&self, from: &Assignments) -> NodePlacement {
        let reserved = BTreeMap::from([("memory".to_owned(), GIB)]);
        let settings = PlacementSettings {
            cpu_manager_policy: CpuManagerPolicy::Static,
            reserved_system_cpus: CpuSet::of(0),
            reserved_cpu_count: 1,
            memory_manager_policy: MemoryManagerPolicy::Static,
            reserved_memory: [(self.nodes[0].id, reserved)].into(),
            topology_manager_policy: self.policy.clone(),
            topology_manager_scope: self.scope.clone(),
            ..PlacementSettings::default()
        };
        let (placement, notes) = NodePlacement::start(settings, self.machine(), from).unwrap();
        assert_eq!(notes, []);
        placement
    }

    /// After Plimsoll has placed the pods.
    fn placed(&self) -> NodePlacement {
        let mut placement = self.start(&Assignments::default());
        for (at, pod) in self.pods.iter().enumerate() {
            // Whether there is room does not matter here.
            placement.admit(&pod.pod(at)).ok();
        }
        placement
    }
}

fn written(placement: &NodePlacement) -> [String; 2] {
    let assignments = placement.assignments();
    let nodes = placement.memory().unwrap().nodes();
    [
        cpu_manager_state(&assignments).unwrap(),
        memory_manager_state(&assignments, nodes).unwrap(),
    ]
}

fn cases() -> Vec<Case> {
    let lines = VECTORS.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What our reader makes of both files is what the kubelet's own code holds after it has read them.
fn assert_read(at: usize, case: &Case) -> (CpuManagerState, MemoryManagerState) {
    let cpu = CpuManagerState::parse(&case.cpu).unwrap();
    let memory = MemoryManagerState::parse(&case.memory).unwrap();
    assert!(cpu.verified && memory.verified, "case {at}");
    assert_eq!((&*cpu.policy, &*memory.policy), ("static", "Static"));
    let parsed = |list: &str| CpuSet::parse(list).unwrap();
    assert_eq!(cpu.default_cpus, parsed(&case.read.default), "case {at}");
    let cpus = case.read.cpus.iter().map(|(pod, containers)| {
        let containers = containers.iter();
        let containers = containers.map(|(name, list)| (name.clone(), parsed(list)));
        (PodUid::from(pod.as_str()), containers.collect())
    });
    assert_eq!(cpu.entries, cpus.collect::<CpuEntries>(), "case {at}");
    let read = MemoryData {
        policy_name: "Static".to_owned(),
        machine_state: case.read.machine.clone(),
        entries: case.read.blocks.clone(),
        pod_entries: None,
    };
    let read = MemoryManagerState::of(&read, true).unwrap();
    assert_eq!(memory.machine, read.machine, "case {at}");
    assert_eq!(memory.entries, read.entries, "case {at}");
    (cpu, memory)
}

/// The state code has read these very bytes, and has found in them what we hold. It then wrote the same bytes.
#[test]
fn a_kubelet_goes_on_from_what_is_written_here() {
    let cases = cases();
    let ours = cases.iter().enumerate().filter(|(_, it)| it.gate.is_none());
    let mut pods = 0;
    for (at, case) in ours {
        let placement = case.placed();
        let files = [case.cpu.clone(), case.memory.clone()];
        assert_eq!(written(&placement), files, "case {at}");
        let (cpu, memory) = assert_read(at, case);
        let held = placement.assignments();
        let read = assignments(&cpu, Some(&memory));
        assert_eq!(read.shared_pool, held.shared_pool, "case {at}");
        assert_eq!(read.containers, held.containers, "case {at}");
        pods += read.containers.len();
    }
    assert!(pods > 50, "{pods}");
}

/// Files that the state code wrote, in the formats of both settings of `PodLevelResourceManagers`, are read, and a
/// placement starts from them as they are.
#[test]
fn what_a_kubelet_wrote_goes_on_here() {
    let (mut pods, mut with_pods) = (0, 0);
    for (at, case) in cases().iter().enumerate() {
        let Some(gate) = case.gate else { continue };
        let (cpu, memory) = assert_read(at, case);
        let taken = assignments(&cpu, Some(&memory));
        let placement = case.start(&taken);
        assert_eq!(placement.assignments().containers, taken.containers);
        pods += taken.containers.len();
        if gate {
            assert_eq!((cpu.pods.len(), memory.pods.len()), (2, 1), "case {at}");
            with_pods += 1;
        } else {
            // And back: to the byte.
            let files = [case.cpu.clone(), case.memory.clone()];
            assert_eq!(written(&placement), files, "case {at}");
        }
    }
    assert!(pods > 50 && with_pods > 5, "{pods} {with_pods}");
}
