//! Random pods on random machines under the static CPU policy: no CPU has two owners, none is lost, what is freed is as
//! before.
//!
//! `PLIMSOLL_PLACEMENT_OPS=1000000 cargo test --release -p tests --test exclusive_cpus` makes a million operations;
//! without it a few thousand are made. A failure names the seed of its machine.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeMap;

use plimsoll_core::kube::pod::{Container, Pod};
use plimsoll_core::placement::TopologyHint;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::cpu_static::{
    CpuReservation, CpuState, StaticCpuOption, StaticCpuPolicy, StaticCpuSettings, StaticCpus,
    exclusive_cpus,
};
use plimsoll_core::placement::topology::{Cpu, CpuTopology};
use serde_json::json;

const OPERATIONS: u64 = 4_000;
const OPERATIONS_PER_MACHINE: u64 = 400;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        u32::try_from(number % u64::from(bound)).unwrap()
    }

    fn one_in(&mut self, chances: u32) -> bool {
        self.below(chances) == 0
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let count = u32::try_from(of.len()).unwrap();
        (count > 0).then(|| &of[self.below(count) as usize])
    }
}

/// Sockets, NUMA nodes, caches and cores of equal or unlike size, some CPUs offline.
fn machine(random: &mut Random) -> CpuTopology {
    let (sockets, nodes, cores) = (
        1 + random.below(4),
        1 + random.below(8),
        1 + random.below(24),
    );
    let threads = [1, 2, 2, 4][random.below(4) as usize];
    let offline = if random.one_in(3) { 8 } else { u32::MAX };
    let split = random.one_in(2);
    let unlike = random.one_in(4);
    let mut cpus = Vec::new();
    let per_cache = 1 + random.below(8);
    for id in 0..cores * threads {
        let core = if split { id % cores } else { id / threads };
        let numa = if unlike { core * core / cores } else { core } * nodes / cores;
        let place = Cpu {
            id,
            core,
            socket: numa * sockets / nodes,
            numa,
            uncore: core / per_cache,
        };
        if id == 0 || !random.one_in(offline) {
            cpus.push(place);
        }
    }
    CpuTopology::new(cpus).unwrap()
}

fn settings(random: &mut Random, topology: &CpuTopology) -> StaticCpuSettings {
    let mut settings = StaticCpuSettings {
        shared_min: 1,
        ..StaticCpuSettings::default()
    };
    for option in StaticCpuOption::ALL {
        settings.set(option, random.one_in(3));
    }
    let count = random.below(topology.all().len());
    settings.reservation.count = count;
    if random.one_in(2) {
        let named = (0..count).filter_map(|_| random.pick(topology.cpus()).map(|cpu| cpu.id));
        let cpus: CpuSet = named.collect();
        settings.reservation = CpuReservation {
            count: cpus.len(),
            cpus,
        };
    }
    settings
}

fn pod(random: &mut Random, uid: u64, largest: u32) -> Pod {
    let mut container = |name: String, sidecar: bool| {
        let milli = if random.one_in(8) { 500 } else { 0 };
        let cpu = format!("{}m", 1000 * (1 + random.below(largest)) + milli);
        let list = json!({ "cpu": cpu, "memory": "1Gi" });
        json!({
            "name": name,
            "resources": { "requests": list, "limits": list },
            "restartPolicy": sidecar.then_some("Always"),
        })
    };
    let shapes = [(0, 0, 1), (0, 0, 3), (1, 0, 1), (2, 1, 2), (1, 2, 1)];
    let (inits, sidecars, apps) = shapes[(uid % 5) as usize];
    let inits: Vec<_> = (0..inits)
        .map(|at| container(format!("i{at}"), false))
        .collect();
    let sidecars: Vec<_> = (0..sidecars)
        .map(|at| container(format!("s{at}"), true))
        .collect();
    let apps: Vec<_> = (0..apps)
        .map(|at| container(format!("c{at}"), false))
        .collect();
    let inits = [inits, sidecars].concat();
    serde_json::from_value(json!({
        "metadata": { "uid": format!("pod-{uid}") },
        "spec": { "initContainers": inits, "containers": apps },
    }))
    .unwrap()
}

/// A node: its books, and the pods on it.
struct Node {
    cpus: StaticCpus,
    pods: BTreeMap<u64, Pod>,
    operations: u64,
}

impl Node {
    fn check(&mut self) {
        self.operations += 1;
        let state = self.cpus.state();
        let policy = self.cpus.policy();
        assert!(!state.shared.is_empty(), "the shared pool is empty");
        let mut all = state.shared;
        let mut owners: Vec<(&str, bool, CpuSet)> = Vec::new();
        for pod in self.pods.values() {
            let uid = pod.uid();
            for container in pod.all_containers() {
                let Some(cpus) = self.cpus.cpus_of(&uid, &container.name) else {
                    continue;
                };
                assert!(
                    cpus.is_disjoint(&state.shared),
                    "{cpus} is shared and exclusive"
                );
                assert!(cpus.is_disjoint(&policy.reserved()), "{cpus} is reserved");
                assert_eq!(cpus.len(), exclusive_cpus(pod, container));
                let ends = container.name.starts_with('i');
                for (other, other_ends, others) in &owners {
                    let in_turn = *other == pod.metadata.uid.as_ref().unwrap().as_str()
                        && (ends || *other_ends);
                    assert!(in_turn || cpus.is_disjoint(others), "{cpus} has two owners");
                }
                owners.push((pod.metadata.uid.as_ref().unwrap().as_str(), ends, cpus));
                all |= cpus;
            }
        }
        assert_eq!(all, policy.managed(), "CPUs are lost");
        let known: usize = state.assignments.values().map(BTreeMap::len).sum();
        assert_eq!(known, owners.len(), "CPUs of pods that are gone");
    }

    fn allocate(&mut self, random: &mut Random, pod: &Pod, container: &Container) -> bool {
        let rule = self.cpus.hints(pod, container).remove("cpu").flatten();
        let hints = rule.and_then(|rule| rule.list()).unwrap_or_default();
        self.operations += 1;
        let mut hint = TopologyHint {
            mask: None,
            preferred: true,
        };
        if !random.one_in(4) {
            hint = random.pick(&hints).copied().unwrap_or(hint);
        }
        let before = self.cpus.state().clone();
        let is_first = !before.assignments.contains_key(&pod.uid());
        match self.cpus.allocate(pod, container, hint) {
            Ok(cpus) => {
                if let (Some(cpus), Some(mask), true) = (cpus, hint.mask, is_first)
                    && !self.cpus.policy().options().align_by_socket
                {
                    let near = self.cpus.policy().topology().cpus_of_nodes(mask);
                    assert!(
                        cpus.is_subset(&near),
                        "{cpus} is not on the hinted nodes {mask}"
                    );
                }
                // Asked again, it is the same.
                let again = self.cpus.allocate(pod, container, hint);
                assert!(again.is_err() || again == Ok(cpus));
                true
            }
            Err(error) => {
                assert_eq!(*self.cpus.state(), before, "changed by: {error}");
                false
            }
        }
    }

    /// As the kubelet admits a pod: all of its containers in order, or none.
    fn admit(&mut self, random: &mut Random, uid: u64, pod: Pod) {
        let before = self.cpus.state().clone();
        self.pods.insert(uid, pod.clone());
        for container in pod.spec.init_containers.iter().chain(&pod.spec.containers) {
            let placed = self.allocate(random, &pod, container);
            self.check();
            if !placed {
                self.cpus.remove_pod(&pod.uid());
                self.pods.remove(&uid);
                self.check();
                assert_eq!(*self.cpus.state(), before, "what is freed is not as before");
                return;
            }
        }
    }

    fn step(&mut self, random: &mut Random, next_uid: &mut u64) {
        let uids: Vec<u64> = self.pods.keys().copied().collect();
        let chosen = random.pick(&uids).copied();
        match (random.below(8), chosen) {
            (0..=3, _) | (_, None) => {
                let largest = (self.cpus.policy().topology().all().len() / 2).max(2);
                let pod = pod(random, *next_uid, largest);
                self.admit(random, *next_uid, pod);
                *next_uid += 1;
            }
            // Its init containers have ended.
            (4, Some(uid)) => {
                for init in self.pods[&uid].spec.init_containers.clone() {
                    if !init.is_sidecar() {
                        self.cpus.remove(&self.pods[&uid].uid(), &init.name);
                        self.check();
                    }
                }
            }
            (5, Some(_)) => {
                let state = self.cpus.state().clone();
                self.cpus = self
                    .cpus
                    .policy()
                    .start(state.clone())
                    .expect("own state is accepted");
                assert_eq!(*self.cpus.state(), state);
                self.check();
            }
            (_, Some(uid)) => {
                let pod = self.pods.remove(&uid).unwrap();
                self.cpus.remove_pod(&pod.uid());
                self.check();
            }
        }
    }
}

/// How many operations were made.
fn run(seed: u64) -> u64 {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let topology = machine(&mut random);
    let settings = settings(&mut random, &topology);
    // Settings that contradict each other are refused, which is tested elsewhere.
    let Ok(policy) = StaticCpuPolicy::new(topology, settings) else {
        return 1;
    };
    let started = policy.start(CpuState::default()).unwrap();
    if started.shared().is_empty() {
        return 1;
    }
    let mut node = Node {
        cpus: started,
        pods: BTreeMap::new(),
        operations: 0,
    };
    let mut next_uid = 0;
    while node.operations < OPERATIONS_PER_MACHINE {
        node.step(&mut random, &mut next_uid);
    }
    for pod in std::mem::take(&mut node.pods).into_values() {
        node.cpus.remove_pod(&pod.uid());
    }
    node.check();
    assert_eq!(
        node.cpus.shared(),
        node.cpus.policy().managed(),
        "not all was given back"
    );
    node.operations
}

#[test]
fn nothing_overlaps_and_nothing_leaks() {
    let wanted = std::env::var("PLIMSOLL_PLACEMENT_OPS").map_or(OPERATIONS, |text| {
        text.parse()
            .expect("PLIMSOLL_PLACEMENT_OPS is a number of operations")
    });
    let (mut operations, mut seed) = (0, 0);
    while operations < wanted {
        seed += 1;
        let made = std::panic::catch_unwind(|| run(seed));
        operations += made.unwrap_or_else(|_| panic!("the failure above is that of seed {seed}"));
    }
    println!("{operations} operations on {seed} machines");
}
