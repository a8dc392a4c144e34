use serde_json::json;

use super::*;
use crate::placement::hints::HintSet;
use crate::placement::numa_mask::NumaMask;
use crate::placement::topology::{Cpu, CpuTopology};

/// Nodes of `cores` cores of two threads, siblings next to each other, two nodes per socket.
fn machine(nodes: u32, cores: u32) -> CpuTopology {
    let cpu = |id: u32| {
        let numa = id / (2 * cores);
        Cpu {
            id,
            core: id / 2 * 2,
            socket: numa / 2,
            numa,
            uncore: numa,
        }
    };
    CpuTopology::new((0..nodes * cores * 2).map(cpu).collect()).unwrap()
}

fn reserving(list: &str) -> StaticCpuSettings {
    let cpus = CpuSet::parse(list).unwrap();
    StaticCpuSettings {
        reservation: CpuReservation {
            count: cpus.len(),
            cpus,
        },
        ..StaticCpuSettings::default()
    }
}

fn started(topology: CpuTopology, settings: StaticCpuSettings) -> StaticCpus {
    let policy = StaticCpuPolicy::new(topology, settings).unwrap();
    policy.start(CpuState::default()).unwrap()
}

/// Init containers and sidecars (name, CPUs, sidecar), then containers.
fn pod(uid: &str, inits: &[(&str, &str, bool)], containers: &[(&str, &str)]) -> Pod {
    let resources = |cpu: &str| {
        let list = json!({ "cpu": cpu, "memory": "1Gi" });
        json!({ "requests": list, "limits": list })
    };
    let init = |(name, cpu, sidecar): &(&str, &str, bool)| json!({ "name": name, "resources": resources(cpu), "restartPolicy": sidecar.then_some("Always") });
    let container =
        |(name, cpu): &(&str, &str)| json!({ "name": name, "resources": resources(cpu) });
    serde_json::from_value(json!({
        "metadata": { "uid": uid },
        "spec": {
            "initContainers": inits.iter().map(init).collect::<Vec<_>>(),
            "containers": containers.iter().map(container).collect::<Vec<_>>(),
        },
    }))
    .unwrap()
}

fn anywhere() -> TopologyHint {
    TopologyHint {
        mask: None,
        preferred: true,
    }
}

fn on(mask: u64) -> TopologyHint {
    TopologyHint {
        mask: Some(NumaMask(mask)),
        preferred: true,
    }
}

/// What all containers of the pod get, in its order.
fn serve(cpus: &mut StaticCpus, pod: &Pod) -> Vec<String> {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let served = containers.map(|container| {
        let cpus_or_error = cpus.allocate(pod, container, anywhere());
        cpus_or_error.map_or_else(
            |error| error.to_string(),
            |cpus_or_error| {
                cpus_or_error.map_or("shared".to_owned(), |cpus_or_error| {
                    cpus_or_error.to_string()
                })
            },
        )
    });
    served.collect()
}

#[test]
fn only_whole_cpus_of_guaranteed_pods_are_exclusive() {
    let mut cpus = started(machine(1, 4), reserving("0-1"));
    assert_eq!(
        serve(&mut cpus, &pod("p", &[], &[("a", "2"), ("b", "1500m")])),
        ["2-3", "shared"]
    );
    let mut burstable = pod("q", &[], &[("a", "2")]);
    burstable.spec.containers[0].resources.limits.clear();
    assert_eq!(serve(&mut cpus, &burstable), ["shared"]);
    assert_eq!(cpus.shared().to_string(), "0-1,4-7");
}

#[test]
fn cpus_of_init_containers_are_used_again_and_given_back() {
    let mut cpus = started(machine(1, 4), reserving("0-1"));
    let guaranteed_pod = pod(
        "p",
        &[("init", "4", false), ("side", "2", true)],
        &[("app", "2")],
    );
    assert_eq!(serve(&mut cpus, &guaranteed_pod), ["2-5", "2-3", "4-5"]);
    // The init container ends: what others took over stays theirs.
    assert_eq!(cpus.remove(&guaranteed_pod.uid(), "init").to_string(), "");
    assert_eq!(cpus.remove(&guaranteed_pod.uid(), "app").to_string(), "4-5");
    assert_eq!(cpus.remove_pod(&guaranteed_pod.uid()).to_string(), "2-3");
    assert_eq!(cpus.shared().to_string(), "0-7");
    assert!(cpus.state().assignments.is_empty());
}

#[test]
fn a_refusal_says_what_would_have_to_be_free_and_changes_nothing() {
    let mut cpus = started(machine(2, 4), reserving("0"));
    serve(&mut cpus, &pod("p", &[], &[("a", "10")]));
    let before = cpus.state().clone();
    assert_eq!(
        serve(&mut cpus, &pod("q", &[], &[("a", "6")])),
        [
            "pod q, container a: 6 CPUs are wanted, and 5 may be taken (NUMA node 0: 1,4-7): 1 more would have to be free"
        ]
    );
    assert_eq!(*cpus.state(), before);

    let mut settings = reserving("0");
    settings.full_pcpus_only = true;
    let mut cpus = started(machine(1, 2), settings);
    assert_eq!(
        serve(&mut cpus, &pod("p", &[], &[("a", "3"), ("b", "4")])),
        [
            "pod p, container a: full-pcpus-only: 3 CPUs are no whole number of cores of 2 CPUs; request a multiple of 2",
            "pod p, container b: full-pcpus-only: 4 CPUs are wanted on cores without a reserved CPU, and 2 are free there (2-3): 2 \
             more would have to be free",
        ]
    );

    let mut settings = reserving("0");
    settings.strict_reservation = true;
    settings.shared_min = 1;
    let mut cpus = started(machine(1, 2), settings);
    assert_eq!(
        serve(&mut cpus, &pod("p", &[], &[("a", "3")])),
        [
            "pod p, container a: 3 CPUs are wanted of the shared pool (1-3), in which 1 have to stay for containers without CPUs of \
          their own: 1 more would have to be in it"
        ]
    );
}

#[test]
fn a_hint_is_followed_as_far_as_its_nodes_go() {
    let guaranteed_pod = pod("p", &[], &[("a", "6")]);
    let other = pod("q", &[], &[("a", "5")]);
    for (align_by_socket, expected) in [(false, "2-3,8-11"), (true, "8-13")] {
        let mut settings = reserving("0");
        settings.align_by_socket = align_by_socket;
        let mut cpus = started(machine(4, 2), settings);
        // Two CPUs are left on the first socket: the best fit for what node 2 cannot give.
        let taken = cpus.allocate(&other, &other.spec.containers[0], on(0b0011));
        assert_eq!(taken.unwrap().unwrap().to_string(), "1,4-7");
        let taken = cpus.allocate(
            &guaranteed_pod,
            &guaranteed_pod.spec.containers[0],
            on(0b0100),
        );
        assert_eq!(taken.unwrap().unwrap().to_string(), expected);
    }
}

#[test]
fn hints_of_sixty_four_nodes_are_a_rule() {
    let mut cpus = started(machine(64, 8), reserving("0-7"));
    let guaranteed_pod = pod("p", &[("init", "2", false)], &[("a", "20")]);
    let hints = |cpus: &StaticCpus, container: &Container| match cpus
        .hints(&guaranteed_pod, container)
        .remove("cpu")
    {
        Some(Some(HintSet::Rule(rule))) => rule,
        other => panic!("{other:?}"),
    };
    let rule = hints(&cpus, &guaranteed_pod.spec.containers[0]);
    assert!(rule.contains(NumaMask(1 << 63 | 1 << 5)));
    assert!(!rule.contains(NumaMask(1 << 63)));
    assert!(rule.preference.includes(NumaMask(1 << 63 | 1 << 5)));
    assert!(!rule.preference.includes(NumaMask(0b111)));
    // Node 0 has 8 CPUs left.
    assert!(!rule.contains(NumaMask(0b1)) && rule.contains(NumaMask(0b11)));

    cpus.allocate(
        &guaranteed_pod,
        &guaranteed_pod.spec.init_containers[0],
        on(1 << 40),
    )
    .unwrap();
    let rule = hints(&cpus, &guaranteed_pod.spec.containers[0]);
    assert!(
        !rule.contains(NumaMask(1 << 63 | 1 << 5)),
        "the node of reusable CPUs is missing"
    );
    assert!(rule.contains(NumaMask(1 << 63 | 1 << 40)));
}

#[test]
fn state_that_cannot_be_is_refused_by_name() {
    let policy = StaticCpuPolicy::new(machine(1, 4), reserving("0")).unwrap();
    let refused = |shared: &str, assigned: &[(&str, &str)]| {
        let mut state = CpuState {
            shared: CpuSet::parse(shared).unwrap(),
            ..CpuState::default()
        };
        for (pod, list) in assigned {
            let of_pod = state.assignments.entry(PodUid::new(*pod)).or_default();
            of_pod.insert("c".to_owned(), CpuSet::parse(list).unwrap());
        }
        policy.start(state).unwrap_err().to_string()
    };
    for (said, part) in [
        (refused("", &[("p", "1")]), "no shared pool"),
        (
            refused("1-7", &[]),
            "reserved CPUs 0 are not in the shared pool",
        ),
        (
            refused("0-7", &[("p", "1")]),
            "pod p, container c: its CPUs 1 are in the shared pool too",
        ),
        (
            refused("0-5", &[("p", "6-7"), ("q", "7")]),
            "pods p and q both have CPUs 7",
        ),
        (
            refused("0-5", &[("p", "6,8")]),
            "CPUs 7-8 were added or taken away",
        ),
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let refused = |settings: StaticCpuSettings| {
        StaticCpuPolicy::new(machine(1, 4), settings)
            .unwrap_err()
            .to_string()
    };
    let mut conflict = reserving("0");
    conflict.prefer_uncore = true;
    conflict.distribute_across_numa = true;
    assert!(refused(conflict).contains("distribute-cpus-across-numa exclude each other"));
    assert!(refused(reserving("0,9")).contains("CPUs 9 are not online"));
    let mut count = reserving("0-1");
    count.reservation.count = 1;
    assert!(refused(count).contains("1 CPUs are to be reserved"));
}
