use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::placement::machine::{Core, NumaNode, Parts};
use crate::placement::numa_mask::NumaMask;

const GI: u64 = 1 << 30;

/// Two NUMA nodes in a socket each, of four cores with these CPUs; CPUs `offline` are switched off.
fn machine_of(cpus: impl Fn(u32) -> CpuSet, offline: &str) -> Machine {
    let core = |at: u32| Core {
        cpus: cpus(at),
        socket: Some(at / 4),
        node: Some(at / 4),
        ..Core::default()
    };
    let node = |id: u32| NumaNode {
        id,
        memory_bytes: Some(8 * GI),
        ..NumaNode::default()
    };
    let parts = Parts {
        cores: (0..8).map(core).collect(),
        offline: CpuSet::parse(offline).unwrap(),
        nodes: (0..2).map(node).collect(),
        ..Parts::default()
    };
    Machine::new(parts).unwrap()
}

/// Of cores with one thread.
fn machine(offline: &str) -> Machine {
    machine_of(CpuSet::of, offline)
}

fn settings(reserved: &str, topology: &str) -> PlacementSettings {
    let reserved = CpuSet::parse(reserved).unwrap();
    PlacementSettings {
        cpu_manager_policy: CpuManagerPolicy::Static,
        reserved_system_cpus: reserved,
        reserved_cpu_count: reserved.len(),
        memory_manager_policy: MemoryManagerPolicy::Static,
        reserved_memory: BTreeMap::from([(0, BTreeMap::from([("memory".to_owned(), GI)]))]),
        topology_manager_policy: topology.into(),
        ..PlacementSettings::default()
    }
}

fn start(settings: PlacementSettings) -> NodePlacement {
    let (placement, notes) =
        NodePlacement::start(settings, machine(""), &Assignments::default()).unwrap();
    assert_eq!(notes, []);
    placement
}

fn containers(list: &[(&str, u32, u32)]) -> serde_json::Value {
    let container = |(name, cpus, gi): &(&str, u32, u32)| {
        let amounts = json!({"cpu": cpus.to_string(), "memory": format!("{gi}Gi")});
        json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
    };
    list.iter().map(container).collect()
}

fn pod_of(name: &str, init: &[(&str, u32, u32)], app: &[(&str, u32, u32)]) -> Pod {
    let pod = json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"initContainers": containers(init), "containers": containers(app)},
    });
    serde_json::from_value(pod).unwrap()
}

fn pod(name: &str, cpus: u32, gi: u32) -> Pod {
    pod_of(name, &[], &[("main", cpus, gi)])
}

fn cpus(placement: &NodePlacement, pod: &str, container: &str) -> String {
    let assignments = placement.assignments();
    let exclusive = assignments
        .get(&pod.into(), container)
        .and_then(|assignment| assignment.cpus);
    exclusive.map_or("shared".into(), |cpus| cpus.to_string())
}

/// A refused pod waits, and is tried again: what its init container had is somebody else's by then.
#[test]
fn what_a_refused_pod_gave_back_is_not_reused_by_it() {
    let mut placement = start(settings("0", "single-numa-node"));
    placement.admit(&pod("a", 3, 1)).unwrap();
    placement.admit(&pod("q", 1, 1)).unwrap();
    // No node has so much memory for its app container.
    let p = pod_of("p", &[("i", 2, 1)], &[("main", 2, 9)]);
    placement.admit(&p).unwrap_err();
    placement.admit(&pod("q", 2, 1)).unwrap();
    assert_eq!(cpus(&placement, "q", "main"), "4-5");
    placement.admit(&p).unwrap_err();
    let assignments = placement.assignments();
    assert_eq!(assignments.shared_pool.to_string(), "0,6-7");
    assert!(
        assignments
            .shared_pool
            .is_disjoint(&assignments.exclusive())
    );
}

/// The same after an init container has ended, or has left CPUs that another container grows into.
#[test]
fn what_an_init_container_left_is_not_reused_when_another_pod_has_it() {
    let mut placement = start(settings("0", "none"));
    let p = |main| {
        let mut p = pod_of("p", &[("i", 3, 1)], &[("main", 1, 1), ("side", 1, 1)]);
        let amounts = &mut p.spec.containers[1].resources;
        for (list, cpu) in [(&mut amounts.requests, main), (&mut amounts.limits, main)] {
            list.insert("cpu".into(), format!("{cpu}m").parse().unwrap());
        }
        p
    };
    placement.admit(&p(1500)).unwrap();
    placement.admit(&pod("q", 1, 1)).unwrap();
    placement.container_ended(&p(1500), "i");
    placement.admit(&pod("q", 5, 1)).unwrap();
    placement.admit(&p(1000)).unwrap();
    let [main, side] = ["main", "side"].map(|name| cpus(&placement, "p", name));
    let q = CpuSet::parse(&cpus(&placement, "q", "main")).unwrap();
    for own in [main, side] {
        let own = CpuSet::parse(&own).unwrap();
        assert!(own.is_disjoint(&q), "{own} and {q}");
    }
}

/// Siblings of reserved CPUs are nobody's under `full-pcpus-only`, and a hint that counts them is none.
#[test]
fn a_container_grows_within_its_node_or_not_at_all() {
    let mut settings = settings("0-1", "single-numa-node");
    settings
        .cpu_manager_policy_options
        .insert("full-pcpus-only".into(), true);
    let machine = machine_of(|at| [at, at + 8].into_iter().collect(), "");
    let (mut placement, _) =
        NodePlacement::start(settings, machine, &Assignments::default()).unwrap();
    placement.admit(&pod("c", 2, 1)).unwrap();
    placement.admit(&pod("d", 2, 1)).unwrap();
    assert_eq!(cpus(&placement, "c", "main"), "2,10");
    assert_eq!(cpus(&placement, "d", "main"), "3,11");
    let refusal = placement.admit(&pod("c", 4, 1)).unwrap_err().to_string();
    assert!(
        refusal.contains("NUMA node 0 is short of 2 (free there: none)"),
        "{refusal}"
    );
    assert_eq!(cpus(&placement, "c", "main"), "2,10");
}

#[test]
fn cpus_and_memory_come_from_one_node() {
    let mut placement = start(settings("0", "single-numa-node"));
    placement.admit(&pod("a", 3, 7)).unwrap();
    placement.admit(&pod("b", 4, 8)).unwrap();
    assert_eq!(
        (cpus(&placement, "a", "main"), cpus(&placement, "b", "main")),
        ("1-3".into(), "4-7".into())
    );
    let assignments = placement.assignments();
    assert_eq!(
        assignments.nodes(&"a".into(), "main"),
        Some(NumaMask::of(0))
    );
    assert_eq!(
        assignments.nodes(&"b".into(), "main"),
        Some(NumaMask::of(1))
    );
    assert_eq!(assignments.shared_pool.to_string(), "0");
    let [reason] = placement.reasons(&"b".into()) else {
        panic!()
    };
    assert!(reason.admitted && reason.hint.preferred);

    let before = placement.clone();
    let refusal = placement.admit(&pod("c", 1, 1)).unwrap_err().to_string();
    assert!(
        refusal.contains("cpu has not enough on any nodes"),
        "{refusal}"
    );
    assert_eq!(placement.placed(&"c".into()), Placed::Refused(refusal));
    assert_eq!(
        placement.assignments().containers,
        before.assignments().containers
    );
    assert!(placement.remove(&"b".into()) && placement.remove(&"c".into()));
    assert!(!placement.remove(&"b".into()), "it holds nothing any more");
    placement.admit(&pod("c", 1, 1)).unwrap();
    assert!(matches!(placement.placed(&"c".into()), Placed::Holds(_)));
}

#[test]
fn a_pod_whose_second_container_does_not_fit_leaves_nothing() {
    let mut placement = start(settings("0", "none"));
    let empty = placement.assignments();
    let greedy = pod_of("greedy", &[("init", 2, 1)], &[("one", 4, 1), ("two", 6, 1)]);
    let refusal = placement.admit(&greedy).unwrap_err().to_string();
    assert!(
        refusal.contains("container two: 6 CPUs are wanted"),
        "{refusal}"
    );
    placement.remove(&"greedy".into());
    assert_eq!(placement.assignments(), empty);
}

#[test]
fn init_containers_give_back_what_no_container_reuses() {
    let mut placement = start(settings("0", "none"));
    let two = pod_of("two", &[("init", 4, 1)], &[("main", 2, 1)]);
    placement.admit(&two).unwrap();
    // As in the kubelet without a hint: the least free node first, and not what could be used again.
    assert_eq!(placement.shared_pool().len(), 2);
    assert!(
        !placement.container_ended(&two, "main"),
        "it may be started again"
    );
    assert!(placement.container_ended(&two, "init"));
    assert_eq!(placement.shared_pool().len(), 6);
    let main = cpus(&placement, "two", "main");
    // The same pod once more, as after a restart: its init container is behind it.
    placement.admit(&two).unwrap();
    assert_eq!(
        (
            cpus(&placement, "two", "main"),
            cpus(&placement, "two", "init")
        ),
        (main, "shared".into())
    );
}

#[test]
fn a_change_of_settings_or_cpus_moves_only_containers_that_have_to_move() {
    let mut placement = start(settings("0", "restricted"));
    for name in ["a", "b"] {
        placement.admit(&pod(name, 2, 1)).unwrap();
    }
    assert_eq!(
        (cpus(&placement, "a", "main"), cpus(&placement, "b", "main")),
        ("1-2".into(), "4-5".into())
    );
    let saved = placement.assignments();

    // CPU 1 is reserved now, and CPU 7 was removed.
    let (mut placement, notes) =
        NodePlacement::start(settings("0-1", "restricted"), machine("7"), &saved).unwrap();
    assert_eq!(notes.len(), 1);
    assert_eq!(
        notes[0].to_string(),
        "pod a, container main: it had CPUs 1-2, of which 1 are offline, outside of the cpuset of all pods or reserved now: it is placed anew"
    );
    assert_eq!(
        (cpus(&placement, "a", "main"), cpus(&placement, "b", "main")),
        ("shared".into(), "4-5".into())
    );
    placement.admit(&pod("a", 2, 1)).unwrap();
    assert_eq!(
        (cpus(&placement, "a", "main"), cpus(&placement, "b", "main")),
        ("2-3".into(), "4-5".into())
    );

    let none = PlacementSettings::default();
    let (placement, notes) =
        NodePlacement::start(none, machine(""), &placement.assignments()).unwrap();
    assert_eq!((notes.len(), placement.shared_pool().len()), (2, 8));
}

#[test]
fn a_state_that_contradicts_itself_costs_the_second_owner_its_cpus() {
    let mut placement = start(settings("0", "none"));
    placement.admit(&pod("a", 2, 1)).unwrap();
    let mut saved = placement.assignments();
    let of_a = saved.containers[&"a".into()].clone();
    saved.containers.insert("b".into(), of_a);
    let (placement, notes) =
        NodePlacement::start(settings("0", "none"), machine(""), &saved).unwrap();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].why.contains("another pod has"), "{notes:?}");
    assert_eq!(
        (cpus(&placement, "a", "main"), cpus(&placement, "b", "main")),
        ("1-2".into(), "shared".into())
    );
}

#[test]
fn what_cannot_be_is_refused_at_the_start() {
    let refused = |settings| {
        let started = NodePlacement::start(settings, machine(""), &Assignments::default());
        started.unwrap_err().to_string()
    };
    assert!(refused(settings("", "none")).contains("reservedSystemCPUs"));
    assert!(refused(settings("9", "none")).contains("not online"));
    assert!(refused(settings("0", "some")).contains("some"));
    let mut much = settings("0", "none");
    much.reserved_memory
        .insert(1, BTreeMap::from([("memory".to_owned(), 9 * GI)]));
    assert!(refused(much).contains("NUMA node 1"));
}

#[test]
fn reserved_memory_has_to_add_up() {
    let list = |text: &str| -> crate::kube::resources::ResourceList {
        let quantity = crate::kube::quantity::Quantity::parse(text).unwrap();
        [("memory".to_owned(), quantity)].into()
    };
    let check = |settings: &PlacementSettings, reservation: &str| {
        let checked = settings.check_reserved_memory(&list(reservation), &machine(""));
        checked.map_err(|error| error.to_string())
    };
    let mut node_settings = settings("0", "none");
    assert_eq!(check(&node_settings, "1Gi"), Ok(()));
    let refused = check(&node_settings, "1100Mi").unwrap_err();
    assert!(
        refused.contains("1073741824 bytes of memory") && refused.contains("1153433600"),
        "{refused}"
    );
    node_settings
        .reserved_memory
        .insert(2, BTreeMap::from([("memory".to_owned(), 1)]));
    assert_eq!(
        check(&node_settings, "1Gi").unwrap_err(),
        "reservedMemory: NUMA node 2 is not there; this machine has 0-1"
    );
    node_settings.memory_manager_policy = MemoryManagerPolicy::None;
    assert_eq!(check(&node_settings, "5Gi"), Ok(()));
}

#[derive(Debug, Clone)]
enum Happens {
    Admit(usize, u32, u32, u32),
    Remove(usize),
    InitEnds(usize),
    Restart,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (0..6usize, 0..4u32, 1..5u32, 1..6u32).prop_map(|(pod, init, cpus, gi)| Happens::Admit(pod, init, cpus, gi)),
        2 => (0..6usize).prop_map(Happens::Remove),
        1 => (0..6usize).prop_map(Happens::InitEnds),
        1 => Just(Happens::Restart),
    ]
}

proptest! {
    #[test]
    fn nothing_is_shared_lost_or_left(
        happenings in proptest::collection::vec(happens(), 1..40),
        policy in proptest::sample::select(vec!["none", "best-effort", "restricted", "single-numa-node"]),
        scope in proptest::sample::select(vec!["container", "pod"]),
    ) {
        let settings = PlacementSettings { topology_manager_scope: scope.into(), ..settings("0", policy) };
        let mut placement = start(settings.clone());
        let empty = placement.clone();
        let mut pods = BTreeMap::<String, Pod>::new();
        for happening in happenings {
            match happening {
                Happens::Admit(pod, init, cpus, gi) => {
                    let name = format!("p{pod}");
                    let inits = [("init", init, gi)];
                    let inits = if init == 0 { &inits[..0] } else { &inits[..] };
                    let wanted = pods.entry(name.clone()).or_insert_with(|| pod_of(&name, inits, &[("main", cpus, gi)]));
                    let before = placement.assignments();
                    if placement.admit(wanted).is_err() {
                        prop_assert_eq!(&placement.assignments().containers, &before.containers);
                    } else {
                        prop_assert!(placement.assignments().cpus(&name.as_str().into(), "main").exclusive);
                    }
                }
                Happens::Remove(pod) => {
                    let name = format!("p{pod}");
                    placement.remove(&name.as_str().into());
                    pods.remove(&name);
                }
                Happens::InitEnds(pod) => {
                    if let Some(pod) = pods.get(&format!("p{pod}")) {
                        placement.container_ended(pod, "init");
                    }
                }
                Happens::Restart => {
                    let (again, notes) = NodePlacement::start(settings.clone(), machine(""), &placement.assignments()).unwrap();
                    prop_assert_eq!(notes, vec![]);
                    prop_assert_eq!(&again.assignments().containers, &placement.assignments().containers);
                    placement = again;
                }
            }
            let assignments = placement.assignments();
            let mut seen = assignments.shared_pool;
            prop_assert!(seen.contains(0));
            for containers in assignments.containers.values() {
                let exclusive = containers.values().filter_map(|assignment| assignment.cpus).fold(CpuSet::EMPTY, |all, cpus| all | cpus);
                prop_assert!(exclusive.is_disjoint(&seen), "{:?}", assignments);
                seen |= exclusive;
            }
            prop_assert_eq!(seen, placement.machine().online(), "a CPU is nobody's");
        }
        for pod in placement.pods() {
            placement.remove(&pod);
        }
        prop_assert_eq!(placement.memory().unwrap().nodes(), empty.memory().unwrap().nodes());
        prop_assert_eq!(placement, empty);
    }
}

fn memory(placement: &NodePlacement, pod: &str) -> (String, u64) {
    let assignments = placement.assignments();
    let assignment = assignments.get(&pod.into(), "main").unwrap();
    let [block] = &assignment.memory[..] else {
        panic!("{assignment:?}")
    };
    (block.nodes.to_string(), block.bytes / GI)
}

#[test]
fn a_container_that_grows_stays_on_its_node_and_the_refusal_names_the_node_that_is_short() {
    let mut placement = start(settings("0", "single-numa-node"));
    placement.admit(&pod("a", 1, 2)).unwrap();
    placement.admit(&pod("b", 1, 2)).unwrap();
    placement.admit(&pod("c", 2, 2)).unwrap();
    let node_of = |placement: &NodePlacement, pod: &str| memory(placement, pod).0;
    assert_eq!(node_of(&placement, "a"), "0");
    assert_eq!(node_of(&placement, "b"), "0");
    assert_eq!(node_of(&placement, "c"), "1");
    // One CPU is left on node 0, and 3 GiB.
    placement.admit(&pod("a", 2, 4)).unwrap();
    assert_eq!(cpus(&placement, "a", "main"), "1,3");
    assert_eq!(memory(&placement, "a"), ("0".into(), 4));
    assert_eq!(cpus(&placement, "b", "main"), "2");

    let before = placement.assignments();
    let refusal = placement.admit(&pod("b", 2, 2)).unwrap_err().to_string();
    assert!(
        refusal.contains(
            "container main has CPUs 2 and wants 1 more, and NUMA node 0 is short of 1 (free there: none)"
        ),
        "{refusal}"
    );
    assert_eq!(placement.assignments(), before);
    let refusal = placement.admit(&pod("b", 1, 4)).unwrap_err().to_string();
    assert!(
        refusal.contains(
            "it has 2Gi of memory and wants 2Gi more, and NUMA node 0 has 1Gi free: 1Gi more"
        ),
        "{refusal}"
    );
    assert_eq!(placement.assignments(), before);
    assert_eq!(placement.unserved().len(), 1);

    // Both ways at once: what shrinks gives back first.
    placement.admit(&pod("a", 1, 1)).unwrap();
    placement.admit(&pod("b", 2, 4)).unwrap();
    assert_eq!(placement.unserved().len(), 0);
    assert_eq!(memory(&placement, "b"), ("0".into(), 4));
    let b = cpus(&placement, "b", "main");
    assert!(b.contains('2') && b.len() == 3, "{b}");
    // A fraction: no CPUs of its own any more.
    let mut fraction = pod("b", 2, 4);
    let cpu: crate::kube::quantity::Quantity = "1500m".parse().unwrap();
    let resources = &mut fraction.spec.containers[0].resources;
    for amounts in [&mut resources.requests, &mut resources.limits] {
        amounts.insert("cpu".to_owned(), cpu.clone());
    }
    placement.admit(&fraction).unwrap();
    assert_eq!(cpus(&placement, "b", "main"), "shared");
    placement.admit(&pod("b", 2, 4)).unwrap();
    assert_eq!(cpus(&placement, "b", "main").len(), 3);
}

#[test]
fn without_a_policy_what_grows_gets_cpus_of_its_own_node_first() {
    let mut placement = start(settings("0", "none"));
    placement.admit(&pod("a", 4, 1)).unwrap();
    assert_eq!(cpus(&placement, "a", "main"), "4-7");
    placement.admit(&pod("a", 1, 1)).unwrap();
    let one = placement.assignments();
    let one = one.get(&"a".into(), "main").unwrap().cpus.unwrap();
    assert!(one.is_subset(&CpuSet::parse("4-7").unwrap()));
    placement.admit(&pod("a", 5, 1)).unwrap();
    let grown = cpus(&placement, "a", "main");
    assert!(grown.ends_with("4-7"), "{grown}");
    placement.admit(&pod("a", 4, 1)).unwrap();
    assert_eq!(cpus(&placement, "a", "main"), "4-7", "of one node");
}

/// A kubelet that started before some CPUs came, or that keeps pods off those that are reserved.
#[test]
fn cpus_that_no_pod_can_use_are_given_to_nobody() {
    let outside = |settings: PlacementSettings, outside: &str| {
        let outside = CpuSet::parse(outside).unwrap();
        let machine = machine("").without(outside).unwrap();
        let settings = settings.without(outside);
        let start = NodePlacement::start(settings, machine, &Assignments::default());
        start.unwrap().0
    };
    let mut placement = outside(settings("0-1", "none"), "6-7");
    placement.admit(&pod("a", 5, 1)).unwrap_err();
    placement.admit(&pod("a", 4, 1)).unwrap();
    assert_eq!(cpus(&placement, "a", "main"), "2-5");
    assert_eq!(placement.assignments().shared_pool.to_string(), "0-1");

    let mut strict = settings("0-1", "none");
    let options = &mut strict.cpu_manager_policy_options;
    options.insert("strict-cpu-reservation".into(), true);
    for settings in [settings("0-1", "none"), strict] {
        let mut placement = outside(settings.clone(), "0-1");
        placement.admit(&pod("a", 6, 1)).unwrap_err();
        placement.admit(&pod("a", 5, 1)).unwrap();
        let assignments = placement.assignments();
        assert_eq!(assignments.shared_pool.len(), 1);
        assert_eq!(
            (assignments.shared_pool | assignments.exclusive()).to_string(),
            "2-7"
        );
        // One of them is.
        assert_eq!(outside(settings, "1").reserved_cpus().to_string(), "0");
    }
    let all = CpuSet::parse("0-7").unwrap();
    machine("").without(all).unwrap_err();
}
