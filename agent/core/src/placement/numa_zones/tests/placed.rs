//! What the agent has placed itself: of each random pod the scheduler plugin says on the zones what the agent's own
//! admission then does.

use proptest::prelude::*;
use serde_json::json;

use super::properties::{Request, plugin_admits};
use super::*;
use crate::kube::pod::Pod;
use crate::kube::pod_uid::PodUid;
use crate::placement::assignments::Assignments;
use crate::placement::node::{
    CpuManagerPolicy, MemoryManagerPolicy, NodePlacement, PlacementSettings,
};

/// A kubelet whose policies are none, with a NIC on node 1.
fn kubelet_that_places_nothing() -> NodeResources {
    NodeResources {
        allocatable: Some(Given {
            devices: vec![devices(&["a"], &[1])],
            ..Given::default()
        }),
        ..NodeResources::default()
    }
}

/// CPU 0 and 2 GiB of node 0 are reserved.
fn settings(scope: &str, is_strict: bool) -> PlacementSettings {
    PlacementSettings {
        cpu_manager_policy: CpuManagerPolicy::Static,
        cpu_manager_policy_options: [("strict-cpu-reservation".to_owned(), is_strict)].into(),
        reserved_system_cpus: CpuSet::of(0),
        reserved_cpu_count: 1,
        memory_manager_policy: MemoryManagerPolicy::Static,
        reserved_memory: [(0, [(MEMORY.to_owned(), 2 * GIB)].into())].into(),
        topology_manager_policy: "single-numa-node".to_owned(),
        topology_manager_scope: scope.to_owned(),
        ..PlacementSettings::default()
    }
}

fn placement(settings: PlacementSettings) -> NodePlacement {
    let started = NodePlacement::start(settings, machine(), &Assignments::default());
    started.unwrap().0
}

/// Guaranteed, with whole CPUs.
fn pod(name: &str, containers: &[Request]) -> Pod {
    let container = |(at, (cpus, gib, _)): (usize, &Request)| {
        let amounts = json!({"cpu": cpus.to_string(), "memory": format!("{gib}Gi")});
        json!({"name": at.to_string(), "resources": {"requests": amounts, "limits": amounts}})
    };
    let containers: Vec<_> = containers.iter().enumerate().map(container).collect();
    let pod = json!({"metadata": {"namespace": "n", "name": name, "uid": name}, "spec": {"containers": containers}});
    serde_json::from_value(pod).unwrap()
}

/// A pod whose UID begins with `x` has no name yet.
fn own(placement: &NodePlacement) -> AgentPlacement {
    AgentPlacement::of(placement, |uid: &PodUid| {
        (!uid.as_str().starts_with('x')).then(|| format!("n/{uid}"))
    })
}

fn surveyed_with(placement: &NodePlacement, resources: &NodeResources) -> Survey {
    let of_kubelet = Alignment {
        policy: "restricted".to_owned(),
        scope: "container".to_owned(),
    };
    let own = own(placement);
    let own: AgentPlacement = serde_json::from_str(&serde_json::to_string(&own).unwrap()).unwrap();
    own.survey(&machine(), resources, Some(of_kubelet)).unwrap()
}

#[test]
fn what_the_agent_has_placed_and_what_it_reserves_is_not_available() {
    let mut placement = placement(settings("pod", false));
    placement.admit(&pod("a", &[(2, 3, 0)])).unwrap();
    placement.admit(&pod("x", &[(1, 1, 0)])).unwrap();
    let mut kubelet = kubelet_that_places_nothing();
    kubelet.pods = vec!["n/a".to_owned(), "n/idle".to_owned()];
    kubelet.given = vec![Given {
        devices: vec![devices(&["a"], &[1])],
        ..given("n/a/0", &[])
    }];
    let Survey { topology, doubts } = surveyed_with(&placement, &kubelet);
    assert_eq!(doubts, BTreeSet::new());
    let of = |zone: usize, resource: &str| {
        let amounts = topology.zones[zone].resources[resource];
        (amounts.capacity, amounts.allocatable, amounts.available)
    };
    assert_eq!(of(0, CPU), (4, 3, 0));
    assert_eq!(of(1, CPU), (3, 3, 3));
    // Of 16 GiB one is in huge pages, and two are reserved.
    assert_eq!(of(0, MEMORY), (16 * GIB, 13 * GIB, 9 * GIB));
    assert_eq!(of(1, NIC), (1, 1, 0));
    let alignment = topology.alignment.unwrap();
    assert_eq!(
        (&*alignment.policy, &*alignment.scope),
        ("single-numa-node", "pod")
    );
    // What nobody has named yet is of no pod that could be listed.
    let pods = topology.pods.iter();
    let pods: Vec<(&str, usize)> = pods.map(|pod| (&*pod.name, pod.held.len())).collect();
    assert_eq!(pods, [("a", 3), ("idle", 0)]);
}

#[test]
fn one_policy_counts_where_there_is_no_other() {
    let only_cpus = PlacementSettings {
        memory_manager_policy: MemoryManagerPolicy::None,
        topology_manager_policy: "none".to_owned(),
        ..settings("container", false)
    };
    let mut placement = placement(only_cpus);
    placement.admit(&pod("a", &[(1, 3, 0)])).unwrap();
    let Survey { topology, doubts } = surveyed_with(&placement, &kubelet_that_places_nothing());
    assert_eq!(doubts, [Doubt::NoMemoryManager].into());
    let cpus: Vec<u64> = topology
        .zones
        .iter()
        .map(|zone| zone.resources[CPU].available)
        .collect();
    assert_eq!(cpus.iter().sum::<u64>(), 5);
    // The kubelet aligns devices.
    assert_eq!(topology.alignment.unwrap().policy, "restricted");
}

#[test]
fn of_a_kubelet_that_places_its_word_counts_alone() {
    let mut placement = placement(settings("pod", false));
    placement.admit(&pod("a", &[(2, 3, 0)])).unwrap();
    let said = surveyed_with(&placement, &kubelet());
    assert_eq!(said.topology.zones, surveyed(&kubelet()).topology.zones);
    assert_eq!(said.topology.alignment.unwrap().policy, "restricted");
}

#[test]
fn nothing_is_available_where_all_is_reserved() {
    let all = settings("pod", false);
    let online = machine().online();
    let placement = placement(PlacementSettings {
        reserved_system_cpus: online,
        reserved_cpu_count: online.len(),
        ..all
    });
    let Survey { topology, doubts } = surveyed_with(&placement, &kubelet_that_places_nothing());
    assert_eq!(doubts, BTreeSet::new());
    let zones = topology.zones.iter();
    assert!(
        zones
            .map(|zone| zone.resources[CPU])
            .all(|cpus| (cpus.allocatable, cpus.available) == (0, 0))
    );
}

fn guaranteed() -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec((1..4_u64, 1..7_u64, Just(0_u64)), 1..4)
}

proptest! {
    #[test]
    fn the_plugin_says_what_the_agent_will_do(
        by_pod: bool,
        is_strict: bool,
        there in prop::collection::vec(guaranteed(), 0..6),
        mut next in guaranteed(),
    ) {
        if is_strict {
            // That the pool keeps its last CPU is in each zone: of several at once a zone cannot say it.
            next.truncate(1);
        }
        let mut placement = placement(settings(if by_pod { "pod" } else { "container" }, is_strict));
        for (at, requests) in there.iter().enumerate() {
            // One that is refused runs in the shared pool, and holds nothing.
            placement.admit(&pod(&format!("p{at}"), requests)).ok();
        }
        let survey = surveyed_with(&placement, &kubelet_that_places_nothing());
        prop_assert_eq!(&survey.doubts, &BTreeSet::new());
        let sum = next.iter().fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, 0));
        let asked = if by_pod { vec![sum] } else { next.clone() };
        let verdict = plugin_admits(&survey.topology, &asked);
        prop_assert_eq!(verdict, placement.admit(&pod("next", &next)).is_ok());
    }
}
