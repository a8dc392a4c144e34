//! Random machines, settings and pods.

use std::collections::BTreeMap;

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::placement::cpu_static::StaticCpuOption;
use plimsoll_core::placement::device::{Device, Preference};
use plimsoll_core::placement::machine::{Core, HugePages, Machine, NumaNode, Parts};
use plimsoll_core::placement::node::{
    CpuManagerPolicy, DeviceSettings, MemoryManagerPolicy, PlacementSettings, ResourceDevices,
};
use plimsoll_core::placement::numa_mask::NumaMask;
use serde_json::{Value, json};
use tests::fuzz::Random;

const GI: u64 = 1 << 30;
const PAGE: u64 = 2 << 20;
const DEVICES: [&str; 2] = ["vendor.example/nic", "vendor.example/gpu"];

fn below(random: &mut Random, bound: u32) -> u32 {
    u32::try_from(random.below(bound.into())).unwrap()
}

/// NUMA nodes (with gaps in their numbers, without memory, without CPUs), sockets, caches and cores of equal or unlike
/// size; some CPUs are offline.
pub(crate) fn parts(random: &mut Random) -> Parts {
    let many = random.one_in(40);
    let nodes = 1 + below(random, if many { 32 } else { 8 });
    let sockets = 1 + below(random, 4).min(nodes - 1);
    let cores = 2 + below(random, 24).max(if many { nodes } else { 0 });
    let threads = [1, 2, 2, 4][random.below(4) as usize];
    let gap = if random.one_in(6) { 2 } else { 1 };
    let (unlike, split) = (random.one_in(4), random.one_in(2));
    let per_cache = 1 + below(random, 8);
    let place = |core: u32| {
        let at = if unlike { core * core / cores } else { core };
        at * nodes / cores
    };
    let of_core = |core: u32| Core {
        cpus: (0..threads)
            .map(|thread| {
                if split {
                    thread * cores + core
                } else {
                    core * threads + thread
                }
            })
            .collect(),
        socket: Some(place(core) * sockets / nodes),
        node: Some(place(core) * gap),
        l3: Some(core / per_cache),
        ..Core::default()
    };
    let unlike_memory = random.one_in(2);
    let pages = if random.one_in(2) { 0 } else { 64 };
    let mut of_node = |id: u32| {
        let gib = if unlike_memory { random.below(17) } else { 8 };
        NumaNode {
            id: id * gap,
            memory_bytes: Some((gib * GI).max(pages * PAGE)),
            hugepages: vec![HugePages {
                page_bytes: PAGE,
                pages,
            }],
            distances: Some(
                (0..nodes)
                    .map(|other| if other == id { 10 } else { 12 + (id ^ other) })
                    .collect(),
            ),
        }
    };
    let nodes = (0..nodes).map(&mut of_node).collect();
    let mut parts = Parts {
        cores: (0..cores).map(of_core).collect(),
        nodes,
        ..Parts::default()
    };
    if random.one_in(3) {
        parts.offline = some_cpus(random, cores * threads, 8);
    }
    parts
}

/// The same machine, with other CPUs offline. `None` if there would be none.
pub(crate) fn plugged(random: &mut Random, parts: &Parts) -> Option<(Parts, Machine)> {
    let all = parts.cores.iter().map(|core| core.cpus.len()).sum();
    let mut parts = parts.clone();
    let few = *random.pick(&[3, 8, 20]);
    parts.offline = some_cpus(random, all, few);
    let machine = Machine::new(parts.clone()).ok()?;
    Some((parts, machine))
}

/// One CPU in so many.
fn some_cpus(random: &mut Random, all: u32, few: u64) -> CpuSet {
    (0..all).filter(|_| random.one_in(few)).collect()
}

fn devices(random: &mut Random, nodes: NumaMask) -> DeviceSettings {
    let nodes: Vec<u32> = nodes.iter().collect();
    let mut all = BTreeMap::new();
    for resource in DEVICES {
        if random.one_in(2) {
            continue;
        }
        let count = 1 + random.below(10);
        let device = |at| {
            let near = match random.below(6) {
                0 => NumaMask::EMPTY,
                1 => [*random.pick(&nodes), *random.pick(&nodes)]
                    .into_iter()
                    .collect(),
                _ => NumaMask::of(*random.pick(&nodes)),
            };
            Device {
                id: format!("{at}"),
                numa_nodes: near,
                healthy: !random.one_in(12),
            }
        };
        let devices: Vec<Device> = (0..count).map(device).collect();
        let preference = match random.below(3) {
            0 => Preference::Any,
            1 => Preference::FewestNodes,
            _ => Preference::Listed(devices.iter().rev().map(|own| own.id.clone()).collect()),
        };
        let own = ResourceDevices {
            devices,
            preference,
        };
        all.insert(resource.to_owned(), own);
    }
    DeviceSettings(all)
}

/// Policies, scopes, options and reservations; many of them cannot be together, or not on this machine. Devices are
/// those of `before`.
pub(crate) fn settings(
    random: &mut Random,
    machine: &Machine,
    before: Option<&PlacementSettings>,
) -> PlacementSettings {
    let mut settings = PlacementSettings {
        devices: match before {
            Some(before) => before.devices.clone(),
            None => devices(random, machine.node_ids()),
        },
        ..PlacementSettings::default()
    };
    if !random.one_in(10) {
        settings.cpu_manager_policy = CpuManagerPolicy::Static;
    }
    for option in StaticCpuOption::ALL {
        if random.one_in(4) {
            let name = option.name().to_owned();
            settings.cpu_manager_policy_options.insert(name, true);
        }
    }
    let online: Vec<u32> = machine.online().iter().collect();
    let most = 1 + random.below(4.max(online.len() as u64 / 4));
    if random.one_in(2) {
        let cpus: CpuSet = (0..most).map(|_| *random.pick(&online)).collect();
        settings.reserved_system_cpus = cpus;
        settings.reserved_cpu_count = cpus.len();
    } else {
        settings.reserved_cpu_count = u32::try_from(most).unwrap();
    }
    if !random.one_in(4) {
        settings.memory_manager_policy = MemoryManagerPolicy::Static;
        for node in machine.nodes() {
            let most = node.memory_bytes.unwrap_or(0) / 4;
            let limits = BTreeMap::from([("memory".to_owned(), random.below(most + 1))]);
            settings.reserved_memory.insert(node.id, limits);
        }
    }
    let policies = ["none", "best-effort", "restricted", "single-numa-node"];
    (*random.pick(&policies)).clone_into(&mut settings.topology_manager_policy);
    (*random.pick(&["container", "pod"])).clone_into(&mut settings.topology_manager_scope);
    let options = &mut settings.topology_manager_policy_options;
    options.insert("max-allowable-numa-nodes".into(), "64".into());
    if random.one_in(3) {
        options.insert("prefer-closest-numa-nodes".into(), "true".into());
    }
    settings
}

/// Guaranteed most of the time, with init containers, sidecars and containers that want whole CPUs, memory, huge pages
/// and devices.
pub(crate) fn pod(random: &mut Random, uid: u64, cpus: u32) -> Pod {
    let guaranteed = !random.one_in(8);
    let largest = u64::from(cpus / 2).max(2);
    let largest_gib = *random.pick(&[1, 4, 12, 24]);
    let (pages, with_devices) = (random.one_in(4), random.one_in(3));
    let mut container = |name: String, sidecar: bool| {
        let milli = 1000 * (1 + random.below(largest)) + if random.one_in(8) { 500 } else { 0 };
        let mut limits = serde_json::Map::new();
        let mut put = |name: &str, amount: String| limits.insert(name.to_owned(), amount.into());
        put("cpu", format!("{milli}m"));
        put("memory", format!("{}Gi", 1 + random.below(largest_gib)));
        if pages {
            put("hugepages-2Mi", format!("{}Mi", 2 * random.below(80)));
        }
        if with_devices {
            let resource = *random.pick(&DEVICES);
            put(resource, (1 + random.below(4)).to_string());
        }
        let mut requests = limits.clone();
        if !guaranteed {
            requests.insert("cpu".into(), "100m".into());
        }
        json!({
            "name": name,
            "resources": { "requests": requests, "limits": limits },
            "restartPolicy": sidecar.then_some("Always"),
        })
    };
    let (inits, sidecars, apps) =
        [(0, 0, 1), (0, 0, 3), (1, 0, 1), (2, 1, 2), (1, 2, 1)][(uid % 5) as usize];
    let mut named = |letter: char, count: usize, sidecar: bool| -> Vec<Value> {
        (0..count)
            .map(|at| container(format!("{letter}{at}"), sidecar))
            .collect()
    };
    let inits = [named('i', inits, false), named('s', sidecars, true)].concat();
    let containers = named('c', apps, false);
    serde_json::from_value(json!({
        "metadata": { "uid": format!("pod-{uid}"), "name": format!("pod-{uid}") },
        "spec": { "initContainers": inits, "containers": containers },
    }))
    .unwrap()
}

/// The same pod, of which some containers that stay request other amounts of CPU and memory.
pub(crate) fn resized(random: &mut Random, pod: &Pod, cpus: u32) -> Pod {
    let mut pod = pod.clone();
    let largest = u64::from(cpus / 2).max(2);
    let sidecars = pod.spec.init_containers.iter_mut();
    let sidecars = sidecars.filter(|container| container.is_sidecar());
    for container in sidecars.chain(&mut pod.spec.containers) {
        let milli = 1000 * (1 + random.below(largest)) + if random.one_in(8) { 500 } else { 0 };
        let gib = 1 + random.below(8);
        for (name, amount) in [("cpu", format!("{milli}m")), ("memory", format!("{gib}Gi"))] {
            if random.one_in(2) {
                continue;
            }
            let amount: Quantity = amount.parse().unwrap();
            let resources = &mut container.resources;
            for amounts in [&mut resources.requests, &mut resources.limits] {
                // What a Burstable one requests stays below its limit.
                if amounts
                    .get(name)
                    .is_some_and(|now| *now > "100m".parse().unwrap())
                {
                    amounts.insert(name.to_owned(), amount.clone());
                }
            }
        }
    }
    pod
}
