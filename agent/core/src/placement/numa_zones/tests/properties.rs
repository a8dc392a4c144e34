//! What holds whatever a kubelet lists; and, of one that keeps to its rules, that the scheduler plugin says of each pod
//! what the kubelet will say.

use proptest::prelude::*;

use super::*;
use crate::kube::node_resource_topology::{KnownPod, zone_name};

/// A request: CPUs, GiB of memory, NICs; and disk space, which no zone has.
pub(super) type Request = (u64, u64, u64);

fn resources_of(request: Request) -> BTreeMap<String, u64> {
    let (cpus, gib, nics) = request;
    let all = [
        (CPU, cpus),
        (MEMORY, gib * GIB),
        (NIC, nics),
        ("ephemeral-storage", 1),
    ];
    let asked = all.into_iter().filter(|(_, amount)| *amount > 0);
    asked
        .map(|(name, amount)| (name.to_owned(), amount))
        .collect()
}

/// The plugin's filter for `single-numa-node` and a Guaranteed pod, stated anew (filter.go:
/// `singleNUMAContainerLevelHandler`, `resourcesAvailableInAnyNUMANodes`, `subtractResourcesFromNUMANodeList`). It
/// reads names and `available` alone.
pub(super) fn plugin_admits(topology: &NodeTopology, containers: &[Request]) -> bool {
    let numbered = topology.zones.iter().enumerate();
    let mut zones: BTreeMap<u32, BTreeMap<String, u64>> = numbered
        .map(|(at, zone)| {
            let name = zone_name(at);
            let number = name.strip_prefix("node-").unwrap().parse().unwrap();
            let available = zone.resources.iter();
            let available = available.map(|(name, amounts)| (name.clone(), amounts.available));
            (number, available.collect())
        })
        .collect();
    for container in containers {
        let request = resources_of(*container);
        let mut fitting: BTreeSet<u32> = (0..64).collect();
        for (name, amount) in &request {
            let is_in_a_zone = zones.values().any(|zone| zone.contains_key(name));
            let is_of_the_host = name == "ephemeral-storage" || name.contains('/');
            if !is_in_a_zone && is_of_the_host {
                continue;
            }
            fitting.retain(|number| {
                let there = zones.get(number).and_then(|zone| zone.get(name));
                there.is_some_and(|there| there >= amount)
            });
        }
        let Some(zone) = fitting.first().and_then(|lowest| zones.get_mut(lowest)) else {
            return false;
        };
        for (name, amount) in &request {
            if let Some(there) = zone.get_mut(name) {
                *there -= amount;
            }
        }
    }
    true
}

/// A kubelet with `single-numa-node`: each container is on one node, the lowest that has all.
#[derive(Debug, Clone)]
struct Kubelet {
    cpus: [Vec<i64>; 2],
    bytes: [u64; 2],
    nics: [Vec<String>; 2],
    listed: NodeResources,
}

impl Kubelet {
    fn new(gib: [u64; 2], nics: [usize; 2]) -> Self {
        let nics = [0, 1].map(|node| {
            let ids = 0..nics[node];
            ids.map(|at| format!("nic-{node}-{at}")).collect::<Vec<_>>()
        });
        let node = |at: usize| [i64::try_from(at).unwrap()];
        let memory = (0..2).map(|at| memory("memory", gib[at] * GIB, &node(at)));
        let devices =
            (0..2).flat_map(|at| nics[at].iter().map(move |id| devices(&[id], &node(at))));
        let allocatable = Given {
            memory: memory.collect(),
            devices: devices.collect(),
            ..given("", &[1, 2, 3, 4, 5, 6])
        };
        Self {
            cpus: [vec![1, 4, 5], vec![2, 3, 6]],
            bytes: gib.map(|gib| gib * GIB),
            nics,
            listed: NodeResources {
                allocatable: Some(allocatable),
                ..NodeResources::default()
            },
        }
    }

    /// Admits a pod, all containers or none.
    fn admit(&mut self, name: &str, containers: &[Request]) -> bool {
        let mut with = self.clone();
        for (number, (cpus, gib, nics)) in containers.iter().enumerate() {
            let has_all = |at: &usize| {
                with.cpus[*at].len() as u64 >= *cpus
                    && with.bytes[*at] >= gib * GIB
                    && with.nics[*at].len() as u64 >= *nics
            };
            let Some(at) = [0, 1].into_iter().find(has_all) else {
                return false;
            };
            let node = [i64::try_from(at).unwrap()];
            let cpus: Vec<i64> = with.cpus[at].drain(..*cpus as usize).collect();
            let mut given = given(&format!("n/{name}/{number}"), &cpus);
            with.bytes[at] -= gib * GIB;
            if *gib > 0 {
                given.memory = vec![memory("memory", gib * GIB, &node)];
            }
            let nics = with.nics[at].drain(..*nics as usize);
            given.devices = nics.map(|id| devices(&[&id], &node)).collect();
            with.listed.given.push(given);
        }
        with.listed.pods.push(format!("n/{name}"));
        *self = with;
        true
    }
}

fn pod() -> impl Strategy<Value = Vec<Request>> {
    prop::collection::vec((0..4_u64, 0..7_u64, 0..2_u64), 1..4)
}

/// Anything that a kubelet might list, also what cannot be.
fn anything() -> impl Strategy<Value = NodeResources> {
    let nodes = || prop::collection::vec(-1..4_i64, 0..3);
    let kind = prop::sample::select(vec!["memory", "hugepages-1Gi", "hugepages-4Ki"]);
    let memory =
        (kind, 0..20_u64, nodes()).prop_map(|(kind, gib, nodes)| memory(kind, gib * GIB, &nodes));
    let ids = prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 0..3);
    let device = (ids, nodes()).prop_map(|(ids, nodes)| devices(&ids, &nodes));
    let given = (
        prop::sample::select(vec!["n/a/1", "n/a/2", "n/b/1", "m/a/1", "broken"]),
        prop::collection::vec(-1..9_i64, 0..6),
        prop::collection::vec(memory, 0..4),
        prop::collection::vec(device, 0..4),
    );
    let given = given.prop_map(|(container, cpus, memory, devices)| Given {
        container: container.to_owned(),
        cpus,
        memory,
        devices,
    });
    let given = prop::collection::vec(given, 1..7);
    given.prop_map(|mut given| NodeResources {
        allocatable: given.pop(),
        given,
        pods: vec!["n/a".to_owned(), "n/idle".to_owned()],
    })
}

proptest! {
    #[test]
    fn the_plugin_says_what_the_kubelet_will_say(
        gib in [0..15_u64, 0..15_u64],
        nics in [0..3_usize, 0..3_usize],
        there in prop::collection::vec(pod(), 0..5),
        next in pod(),
    ) {
        let mut kubelet = Kubelet::new(gib, nics);
        for (at, pod) in there.iter().enumerate() {
            kubelet.admit(&format!("p{at}"), pod);
        }
        let survey = surveyed(&kubelet.listed);
        prop_assert_eq!(&survey.doubts, &BTreeSet::new());
        // A NIC that the node has none of is refused before the zones are looked at.
        let has_nics = nics[0] + nics[1] > 0 || next.iter().all(|it| it.2 == 0);
        let verdict = has_nics && plugin_admits(&survey.topology, &next);
        prop_assert_eq!(verdict, kubelet.admit("next", &next));
    }

    #[test]
    fn nothing_is_counted_twice_and_nothing_is_negative(resources in anything()) {
        let survey = surveyed(&resources);
        let mut held = BTreeMap::<(u32, &str), u64>::new();
        for one in survey.topology.pods.iter().flat_map(|pod| &pod.held) {
            *held.entry((one.zone, &one.resource)).or_default() += one.amount;
        }
        for (at, zone) in (0..).zip(&survey.topology.zones) {
            for (name, amounts) in &zone.resources {
                prop_assert!(amounts.available <= amounts.allocatable && amounts.allocatable <= amounts.capacity, "{name} {amounts:?}");
                let held = held.remove(&(at, name.as_str())).unwrap_or(0);
                prop_assert_eq!(held, amounts.allocatable - amounts.available);
            }
        }
        prop_assert!(held.is_empty());
        // With all pods gone all of it is back.
        let ended = |_: &ListedPod| KnownPod { has_ended: true, requests: None };
        for zone in survey.topology.clone().without(ended).zones {
            prop_assert!(zone.resources.values().all(|amounts| amounts.available == amounts.allocatable));
        }
    }

    #[test]
    fn the_order_of_what_is_listed_does_not_matter(resources in anything(), by in 0..6_usize) {
        let mut turned = resources.clone();
        let turn = |given: &mut Given| {
            given.cpus.reverse();
            given.memory.reverse();
            given.devices.reverse();
            for devices in &mut given.devices {
                devices.ids.reverse();
                devices.numa_nodes.reverse();
            }
        };
        turned.allocatable.iter_mut().for_each(turn);
        turned.given.iter_mut().for_each(turn);
        let at = by.min(turned.given.len());
        turned.given.rotate_left(at);
        turned.pods.reverse();
        prop_assert_eq!(surveyed(&turned), surveyed(&resources));
    }
}
