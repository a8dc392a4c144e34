//! What scheduler-plugins' NodeResourceTopologyMatch itself has said of our objects (`plugin.jsonl`; how it was made:
//! docs/contributing/build.md), against its filter as it is stated anew here, and against what a kubelet then does,
//! which is our own placement with its policies.

use serde::Deserialize;

use super::properties::{Request, plugin_admits};
use super::*;
use crate::kube::admission::names::is_native;
use crate::kube::node_resource_topology::{ExclusiveRequests, KnownPod, NodeTopology, ZONES_MAX};
use crate::kube::pod::Pod;
use crate::kube::qos::QosClass;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{EPHEMERAL_STORAGE, ResourceList, is_huge_pages};
use crate::placement::assignments::Assignments;
use crate::placement::device::Device;
use crate::placement::machine::{Core, HugePages, NumaNode, Parts};
use crate::placement::node::{
    CpuManagerPolicy, MemoryManagerPolicy, NodePlacement, PlacementSettings, ResourceDevices,
};

const VECTORS: &str = include_str!("plugin.jsonl");
/// A resource that no device plugin has: the node has it, and no zone.
const DONGLE: &str = "example.com/dongle";

/// One node of a machine; CPUs are numbered through, two of a core.
#[derive(Debug, Clone, Copy, Deserialize)]
struct NodeOf {
    id: u32,
    cores: u32,
    gib: u64,
    /// Pages of 1 GiB.
    huge: u64,
    nics: u32,
}

/// A pod: what its containers request, by kind; of a Guaranteed one the limits are the same.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct PodOf {
    init: Vec<BTreeMap<String, String>>,
    sidecar: Vec<BTreeMap<String, String>>,
    app: Vec<BTreeMap<String, String>>,
    /// Of the pod as a whole.
    level: BTreeMap<String, String>,
    /// Its limits of CPU and memory are left out.
    unlimited: bool,
}

/// A pod that is to be scheduled, and the plugin's answer.
#[derive(Debug, Clone, Deserialize)]
struct Next {
    pod: PodOf,
    /// Empty: it fits.
    filter: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Case {
    nodes: Vec<NodeOf>,
    /// NICs near to the first two nodes, and near to none.
    odd_nics: [u32; 2],
    policy: String,
    scope: String,
    there: Vec<PodOf>,
    /// What the object had: the attributes, and what each zone has available.
    attributes: BTreeMap<String, String>,
    zones: Vec<BTreeMap<String, u64>>,
    /// Whether the plugin's cache takes the fingerprint for that of the pods that are there.
    believed: bool,
    next: Vec<Next>,
    /// The whole of what the agent sends, of some.
    #[serde(default)]
    frame: Option<NodeTopology>,
}

impl PodOf {
    fn pod(&self, name: &str) -> Pod {
        serde_json::from_value(self.api(name)).unwrap()
    }

    /// As the API has it.
    fn api(&self, name: &str) -> serde_json::Value {
        let is_limited = |(resource, _): &(&String, &String)| {
            !self.unlimited || !matches!(resource.as_str(), CPU | MEMORY)
        };
        let of = |requests: &BTreeMap<String, String>| {
            let limits: BTreeMap<_, _> = requests.iter().filter(is_limited).collect();
            serde_json::json!({"requests": requests, "limits": limits})
        };
        let containers = |kind: &str, all: &[BTreeMap<String, String>]| {
            let all = all.iter().enumerate();
            all.map(|(at, requests)| serde_json::json!({"name": format!("{kind}{at}"), "resources": of(requests)}))
                .collect::<Vec<_>>()
        };
        let mut init = containers("side", &self.sidecar);
        for sidecar in &mut init {
            sidecar["restartPolicy"] = "Always".into();
        }
        init.extend(containers("init", &self.init));
        let mut pod = serde_json::json!({
            "metadata": {"namespace": "n", "name": name, "uid": name},
            "spec": {"initContainers": init, "containers": containers("app", &self.app)},
        });
        if !self.level.is_empty() {
            pod["spec"]["resources"] = of(&self.level);
        }
        pod
    }
}

/// A kubelet with the policies of a case.
struct Kubelet {
    placement: NodePlacement,
    pods: Vec<(Pod, bool)>,
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
            let distance = |to: &NodeOf| match to.id.abs_diff(node.id) {
                0 => 10,
                1 => 16,
                _ => 21,
            };
            parts.nodes.push(NumaNode {
                id: node.id,
                memory_bytes: Some(node.gib * GIB),
                hugepages: vec![pages],
                distances: Some(self.nodes.iter().map(distance).collect()),
            });
        }
        Machine::new(parts).unwrap()
    }

    fn nics(&self) -> Vec<Device> {
        let nic = |id: String, numa_nodes: NumaMask| Device {
            id,
            numa_nodes,
            healthy: true,
        };
        let of_nodes = self.nodes.iter().flat_map(|node| {
            (0..node.nics).map(|at| nic(format!("{}-{at}", node.id), NumaMask::of(node.id)))
        });
        let first_two = self.nodes.iter().take(2).map(|node| node.id).collect();
        let [of_two, of_none] = self.odd_nics;
        let of_two = (0..of_two).map(|at| nic(format!("two-{at}"), first_two));
        let of_none = (0..of_none).map(|at| nic(format!("any-{at}"), NumaMask::EMPTY));
        of_nodes.chain(of_two).chain(of_none).collect()
    }

    /// What the node says that pods may have, as the scheduler sees it.
    fn allocatable(&self) -> BTreeMap<String, u64> {
        let sum = |of: fn(&NodeOf) -> u64| self.nodes.iter().map(of).sum::<u64>();
        let huge = sum(|node| node.huge);
        let all = [
            (CPU, 2 * sum(|node| node.cores.into()) - 1),
            (MEMORY, (sum(|node| node.gib) - huge - 1) * GIB),
            ("hugepages-1Gi", huge * GIB),
            ("ephemeral-storage", 100 * GIB),
            (NIC, self.nics().len() as u64),
            (DONGLE, 4),
        ];
        let there = all.into_iter().filter(|(_, amount)| *amount > 0);
        there
            .map(|(name, amount)| (name.to_owned(), amount))
            .collect()
    }

    /// CPU 0 and 1 GiB of the first node are reserved.
    fn kubelet(&self) -> Kubelet {
        let nics = ResourceDevices {
            devices: self.nics(),
            ..ResourceDevices::default()
        };
        let reserved = BTreeMap::from([(MEMORY.to_owned(), GIB)]);
        let mut settings = PlacementSettings {
            cpu_manager_policy: CpuManagerPolicy::Static,
            reserved_system_cpus: CpuSet::of(0),
            reserved_cpu_count: 1,
            memory_manager_policy: MemoryManagerPolicy::Static,
            reserved_memory: [(self.nodes[0].id, reserved)].into(),
            topology_manager_policy: self.policy.clone(),
            topology_manager_scope: self.scope.clone(),
            ..PlacementSettings::default()
        };
        settings.topology_manager_policy_options = match self.nodes.len() {
            9.. => [("max-allowable-numa-nodes".to_owned(), "64".to_owned())].into(),
            _ => BTreeMap::new(),
        };
        // No device plugin is there for none.
        if !nics.devices.is_empty() {
            settings.devices.0.insert(NIC.to_owned(), nics);
        }
        let nothing = Assignments::default();
        let (placement, notes) = NodePlacement::start(settings, self.machine(), &nothing).unwrap();
        assert_eq!(notes, []);
        let mut kubelet = Kubelet {
            placement,
            pods: Vec::new(),
        };
        for (at, pod) in self.there.iter().enumerate() {
            let pod = pod.pod(&format!("p{at}"));
            let is_admitted = kubelet.placement.admit(&pod).is_ok();
            // Init containers have ended.
            for container in pod.all_containers() {
                if pod.is_plain_init(&container.name) {
                    kubelet.placement.container_ended(&pod, &container.name);
                }
            }
            kubelet.pods.push((pod, is_admitted));
        }
        kubelet
    }

    /// What PodResources says.
    fn listed(&self, kubelet: &Kubelet) -> NodeResources {
        let placement = &kubelet.placement;
        let inventory = self.nics();
        let nodes_of = |mask: NumaMask| mask.iter().map(i64::from).collect::<Vec<_>>();
        let devices_of = |ids: &BTreeSet<String>| {
            let held = inventory.iter().filter(|device| ids.contains(&device.id));
            held.map(|device| devices(&[&device.id], &nodes_of(device.numa_nodes)))
                .collect::<Vec<_>>()
        };
        let all = inventory.iter().map(|device| device.id.clone()).collect();
        let tables = placement.memory().unwrap().nodes().iter();
        let tables = tables.flat_map(|(node, books)| {
            let kinds = books.memory.iter();
            let kinds = kinds.filter(|(_, table)| table.allocatable > 0);
            kinds.map(|(kind, table)| memory(kind, table.allocatable, &[i64::from(*node)]))
        });
        let numbers = |cpus: CpuSet| cpus.iter().map(i64::from).collect::<Vec<_>>();
        let allocatable = Given {
            memory: tables.collect(),
            devices: devices_of(&all),
            ..given("", &numbers(placement.machine().online() - CpuSet::of(0)))
        };
        let mut listed = NodeResources {
            allocatable: Some(allocatable),
            ..NodeResources::default()
        };
        for (pod, containers) in &placement.assignments().containers {
            for (container, held) in containers {
                let blocks = held.memory.iter();
                let blocks = blocks
                    .map(|block| memory(&block.resource, block.bytes, &nodes_of(block.nodes)));
                listed.given.push(Given {
                    memory: blocks.collect(),
                    devices: held.devices.values().flat_map(&devices_of).collect(),
                    ..given(
                        &format!("n/{}/{container}", pod.as_str()),
                        &numbers(held.cpus.unwrap_or_default()),
                    )
                });
            }
        }
        let admitted = kubelet.pods.iter().filter(|(_, is_admitted)| *is_admitted);
        let names = admitted.map(|(pod, _)| format!("n/{}", pod.metadata.name));
        listed.pods = names.collect();
        listed
    }

    fn topology(&self, kubelet: &Kubelet) -> NodeTopology {
        let alignment = Alignment {
            policy: self.policy.clone(),
            scope: self.scope.clone(),
        };
        let survey = survey(&self.machine(), &self.listed(kubelet), Some(alignment)).unwrap();
        survey.topology
    }
}

/// What each pod requests, as the API says it.
fn requests(kubelet: &Kubelet) -> BTreeMap<String, ExclusiveRequests> {
    let pods = kubelet.pods.iter().map(|(pod, _)| pod);
    let of = |pod: &Pod| ExclusiveRequests::of(pod.qos_class(), &pod.spec);
    pods.map(|pod| (pod.metadata.name.clone(), of(pod)))
        .collect()
}

/// The plugin's filter, stated anew: `Filter`, `singleNUMAContainerLevelHandler`, `singleNUMAPodLevelHandler` and
/// `resourcesAvailableInAnyNUMANodes` in filter.go, `subtractResourcesFromNUMANodeList` in numaresources.go,
/// `GetPodEffectiveRequest` in pkg/util/resource.go.
struct Filter<'a> {
    /// What the node has at all.
    node: &'a BTreeMap<String, u64>,
    zones: Vec<BTreeMap<String, Quantity>>,
    is_guaranteed: bool,
}

fn is_numa_affine(name: &str) -> bool {
    name == CPU || name == MEMORY || is_huge_pages(name)
}

impl Filter<'_> {
    /// The lowest zone that has all of it.
    fn zone_for(&self, requests: &ResourceList) -> Option<usize> {
        let mut fitting = [true; ZONES_MAX];
        for (name, amount) in requests.iter().filter(|(_, amount)| !amount.is_zero()) {
            if !self.node.contains_key(name) {
                return None;
            }
            let is_of_the_host = name == EPHEMERAL_STORAGE || !is_native(name);
            if is_of_the_host && !self.zones.iter().any(|zone| zone.contains_key(name)) {
                continue;
            }
            let is_any_good = !self.is_guaranteed && is_numa_affine(name);
            let is_good = |there: &Quantity| is_any_good || there >= amount;
            for (zone, fits) in fitting.iter_mut().enumerate() {
                let there = self.zones.get(zone).and_then(|zone| zone.get(name));
                *fits &= there.is_some_and(is_good);
            }
        }
        fitting.iter().position(|fits| *fits)
    }

    fn take(&mut self, zone: usize, requests: &ResourceList) {
        for (name, amount) in requests {
            let is_taken = self.is_guaranteed || !is_numa_affine(name);
            let there = self.zones.get_mut(zone).and_then(|zone| zone.get_mut(name));
            if let Some(there) = there.filter(|_| is_taken) {
                *there -= amount;
            }
        }
    }

    fn container_scope(mut self, pod: &Pod) -> &'static str {
        for container in &pod.spec.init_containers {
            if self.zone_for(&container.resources.requests).is_none() {
                return match container.is_sidecar() {
                    true => "Unschedulable: cannot align sidecar container",
                    false => "Unschedulable: cannot align init container",
                };
            }
        }
        for container in &pod.spec.containers {
            let Some(zone) = self.zone_for(&container.resources.requests) else {
                return "Unschedulable: cannot align container";
            };
            self.take(zone, &container.resources.requests);
        }
        ""
    }

    fn pod_scope(self, pod: &Pod) -> &'static str {
        let mut all = ResourceList::new();
        for container in &pod.spec.containers {
            for (name, amount) in &container.resources.requests {
                *all.entry(name.clone()).or_default() += amount;
            }
        }
        for container in &pod.spec.init_containers {
            for (name, amount) in &container.resources.requests {
                let of_all = all.entry(name.clone()).or_default();
                *of_all = of_all.clone().max(amount.clone());
            }
        }
        match self.zone_for(&all) {
            Some(_) => "",
            None => "Unschedulable: cannot align pod",
        }
    }
}

impl Case {
    /// As the plugin reads it, from the object's attributes and zones.
    fn filter(&self, pod: &Pod) -> &'static str {
        let has_others = pod.all_containers().any(|container| {
            let mut names = container.resources.requests.keys();
            names.any(|name| !is_native(name))
        });
        let class = pod.qos_class();
        let policy = &self.attributes["topologyManagerPolicy"];
        if class == QosClass::BestEffort && !has_others || policy != "single-numa-node" {
            return "";
        }
        let zones = self.zones.iter().map(|zone| {
            let zone = zone.iter();
            let amount = |there: &u64| Quantity::parse(&there.to_string()).unwrap();
            zone.map(|(name, there)| (name.clone(), amount(there)))
                .collect()
        });
        let filter = Filter {
            node: &self.allocatable(),
            zones: zones.collect(),
            is_guaranteed: class == QosClass::Guaranteed,
        };
        match self.attributes["topologyManagerScope"].as_str() {
            "pod" => filter.pod_scope(pod),
            _ => filter.container_scope(pod),
        }
    }

    /// Whether what the plugin says has to be what the kubelet does: where the zones say all that it goes by. With init
    /// containers it does not, for what they had is left to the others; nor with sidecars, which the plugin does not
    /// add to the others; nor with a part of a CPU, which the kubelet takes from no node; nor with amounts of the pod
    /// as a whole.
    fn has_to_agree(&self, next: &PodOf) -> bool {
        let has_nics = !self.nics().is_empty();
        let is_whole = |requests: &BTreeMap<String, String>| {
            let nics = requests.get(NIC).map_or("0", String::as_str);
            let is_whole_of = |cpus: &String| next.unlimited || !cpus.ends_with('m');
            requests.get(CPU).is_none_or(is_whole_of)
                // Of others than Guaranteed pods the kubelet gives none, and the plugin wants a zone that has such.
                && !(next.unlimited && requests.contains_key("hugepages-1Gi"))
                // What the node has none of is refused before the zones are looked at.
                && (has_nics || nics == "0")
                && !requests.contains_key("example.com/nobody")
        };
        self.policy == "single-numa-node"
            && self.odd_nics == [0, 0]
            && next.init.is_empty()
            && next.sidecar.is_empty()
            && next.level.is_empty()
            && next.app.iter().all(is_whole)
    }
}

fn cases() -> Vec<Case> {
    let lines = VECTORS.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What the plugin was asked of is what we say of these nodes.
#[test]
fn the_zones_are_those_that_the_plugin_has_seen() {
    let mut believed = 0;
    for (at, case) in cases().iter().enumerate() {
        let kubelet = case.kubelet();
        assert!(kubelet.pods.iter().all(|(_, is_admitted)| *is_admitted));
        let topology = case.topology(&kubelet);
        let zones = topology.zones.iter().map(|zone| {
            let resources = zone.resources.iter();
            resources
                .map(|(name, amounts)| (name.clone(), amounts.available))
                .collect::<BTreeMap<_, _>>()
        });
        assert_eq!(zones.collect::<Vec<_>>(), case.zones, "case {at}");
        let requests = requests(&kubelet);
        let known = |listed: &ListedPod| KnownPod {
            has_ended: false,
            requests: requests.get(&listed.name),
        };
        let attributes = topology.attributes(topology.fingerprint(known));
        let attributes = attributes.into_iter();
        let attributes: BTreeMap<String, String> = attributes
            .map(|attribute| (attribute.name.to_owned(), attribute.value))
            .collect();
        assert_eq!(attributes, case.attributes, "case {at}");
        if let Some(frame) = &case.frame {
            assert_eq!(&topology, frame, "case {at}");
        }
        believed += usize::from(case.believed);
    }
    assert_eq!(believed, cases().len(), "each fingerprint is the plugin's");
    assert!(believed > 100);
}

#[test]
fn the_plugin_says_what_its_filter_says_here() {
    let mut counts = BTreeMap::<&str, usize>::new();
    for (at, case) in cases().iter().enumerate() {
        for next in &case.next {
            let ours = case.filter(&next.pod.pod("next"));
            assert_eq!(ours, next.filter, "case {at}: {:?}", next.pod);
            *counts.entry(ours).or_default() += 1;
        }
    }
    // Each of its answers is among them.
    assert_eq!(counts.len(), 5, "{counts:?}");
    assert!(counts.values().all(|count| *count >= 10), "{counts:?}");
}

#[test]
fn what_the_plugin_said_the_kubelet_does() {
    let (mut counts, mut others, mut simply) = ([0; 2], [[0; 2]; 2], 0);
    for (at, case) in cases().iter().enumerate() {
        let kubelet = case.kubelet();
        for next in &case.next {
            let mut placement = kubelet.placement.clone();
            let admitted = placement.admit(&next.pod.pod("next"));
            let fits = next.filter.is_empty();
            if case.has_to_agree(&next.pod) {
                assert_eq!(fits, admitted.is_ok(), "case {at}: {:?}", next.pod);
                let simple: Option<Vec<Request>> = next.pod.app.iter().map(simple).collect();
                let simple = simple.filter(|_| case.scope == "container" && !next.pod.unlimited);
                if let Some(simple) = simple {
                    let topology = case.topology(&kubelet);
                    assert_eq!(plugin_admits(&topology, &simple), fits, "case {at}");
                    simply += 1;
                }
                counts[usize::from(fits)] += 1;
            } else if case.policy == "single-numa-node" {
                others[usize::from(fits)][usize::from(admitted.is_ok())] += 1;
            }
        }
    }
    println!("{counts:?} agree; of the others, by what the plugin and the kubelet say: {others:?}");
    assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    assert!(simply > 20, "{simply}");
}

/// A request as the properties have them.
fn simple(requests: &BTreeMap<String, String>) -> Option<Request> {
    let of = |name: &str| requests.get(name).map_or("0", String::as_str);
    let is_known = |name: &String| [CPU, MEMORY, NIC].contains(&name.as_str());
    let gib = of(MEMORY).strip_suffix("Gi")?;
    requests.keys().all(is_known).then_some(())?;
    Some((
        of(CPU).parse().ok()?,
        gib.parse().ok()?,
        of(NIC).parse().ok()?,
    ))
}
