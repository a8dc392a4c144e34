//! What a node's NUMA nodes have and have left, as a NodeResourceTopology object says it
//! (`topology.node.k8s.io/v1alpha2`).
//!
//! Source of every rule here: scheduler-plugins, pkg/noderesourcetopology (2026-08, v0.35): `createNUMANodeList` and
//! `extractResources` in pluginhelpers.go, `TopologyManagerFromNodeResourceTopology` in nodeconfig/topologymanager.go,
//! `scoreForEachNUMANode` in score.go, cache/store.go. Of a zone it reads the name (`node-N`), the type (`Node`), the
//! costs and each resource's `available`; of the object the attributes below.
//!
//! `topologyPolicies` is not written: the plugin takes the attributes where both are there, and logs a line for each
//! pod and node where it finds the old field.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::kube::admission::names::is_native;
use crate::kube::pod::{Container, PodSpec};
use crate::kube::pods_fingerprint::PodsFingerprint;
use crate::kube::qos::QosClass;
use crate::kube::resources::{CPU, MEMORY, is_huge_pages};

/// Of an object: more zones than this the plugin does not look up.
pub const ZONES_MAX: usize = 64;
/// So many NUMA nodes the plugin takes for granted (`DefaultMaxNUMANodes`). A score is 100 divided by it, less that for
/// each node: with more nodes than it has been told of, the score is negative, and the scheduler refuses it.
const ZONES_DEFAULT_MAX: usize = 8;
/// Which pods the fingerprint is of: those with something that no other pod can have.
const FINGERPRINT_METHOD: &str = "with-exclusive-resources";

/// How much of a resource a zone has: CPUs, bytes or devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Amounts {
    /// What is there.
    pub capacity: u64,
    /// What pods may have of it: `capacity` at most.
    pub allocatable: u64,
    /// What no pod has: `allocatable` at most.
    pub available: u64,
}

/// A NUMA node. Its number is its place in the list: the plugin indexes a list by it, and ends the scheduler where a
/// number is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Zone {
    /// How far each zone is, in their order (10 is the zone itself); 0: there is no such node. Empty: unknown.
    pub distances: Vec<u32>,
    /// By name, as pods request it. None of a number that the machine has no node of.
    pub resources: BTreeMap<String, Amounts>,
}

/// What a pod has of a zone and no other pod can have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The zone.
    pub zone: u32,
    /// Of what.
    pub resource: String,
    /// How much: CPUs, bytes or devices.
    pub amount: u64,
}

/// A pod that the kubelet lists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// By zone and resource, each once.
    pub held: Vec<Held>,
}

/// How the kubelet aligns pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alignment {
    /// `topologyManagerPolicy`.
    pub policy: String,
    /// `topologyManagerScope`.
    pub scope: String,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeTopology {
    /// By number.
    pub zones: Vec<Zone>,
    /// `None`: unknown. The plugin then filters nothing.
    pub alignment: Option<Alignment>,
    /// All pods whose share is counted, and those that have none; sorted.
    pub pods: Vec<ListedPod>,
}

/// What a pod requests that no other pod can have, as the plugin looks at it (`AreExclusiveForPod` in
/// resourcerequests/exclusive.go): of its containers and sidecars, not of init containers that end, nor of what the pod
/// has as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExclusiveRequests {
    /// Whole CPUs, memory or huge pages of a Guaranteed pod.
    pub is_guaranteed: bool,
    /// Resources that are not Kubernetes' own. The plugin counts those that a zone has, even where none of it is
    /// requested (`0`).
    pub devices: BTreeSet<Box<str>>,
}

impl ExclusiveRequests {
    /// Of a pod of this class.
    #[must_use]
    pub fn of(class: QosClass, spec: &PodSpec) -> Self {
        let sidecars = spec.init_containers.iter().filter(|it| it.is_sidecar());
        let containers = spec.containers.iter().chain(sidecars);
        let requests = containers.flat_map(|container: &Container| &container.resources.requests);
        let mut all = Self::default();
        for (name, amount) in requests {
            if !is_native(name) {
                all.devices.insert(name.as_str().into());
            } else if class == QosClass::Guaranteed && amount.value() > 0 {
                all.is_guaranteed |= match name.as_str() {
                    CPU => amount.value().checked_mul(1000) == Some(amount.milli_value()),
                    MEMORY => true,
                    name => is_huge_pages(name),
                };
            }
        }
        all
    }

    /// Whether the plugin counts such a pod where these are the zones.
    fn are_counted(&self, zones: &[Zone]) -> bool {
        let mut devices = self.devices.iter();
        let is_of = |zone: &Zone, name: &str| zone.resources.contains_key(name);
        self.is_guaranteed || devices.any(|name| zones.iter().any(|zone| is_of(zone, name)))
    }
}

/// What the API knows of a pod that the kubelet lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownPod<'a> {
    /// Its phase is `Succeeded` or `Failed`.
    pub has_ended: bool,
    /// `None`: not known.
    pub requests: Option<&'a ExclusiveRequests>,
}

impl NodeTopology {
    /// Gives back what pods have that have ended: kubelets before 1.34 list them until the next pod is admitted
    /// (k/k#119423), and take it from them then.
    #[must_use]
    pub fn without<'a>(mut self, known: impl Fn(&ListedPod) -> KnownPod<'a>) -> Self {
        let (ended, living) = self.pods.into_iter().partition(|pod| known(pod).has_ended);
        self.pods = living;
        let ended: Vec<ListedPod> = ended;
        for held in ended.iter().flat_map(|pod| &pod.held) {
            let zone = usize::try_from(held.zone)
                .ok()
                .and_then(|at| self.zones.get_mut(at));
            if let Some(amounts) = zone.and_then(|zone| zone.resources.get_mut(&held.resource)) {
                let available = amounts.available.saturating_add(held.amount);
                amounts.available = available.min(amounts.allocatable);
            }
        }
        self
    }

    /// Which pods are counted here, as the plugin computes it of those that it knows: while the two differ, it believes
    /// its own book and not this object.
    ///
    /// It goes by what pods request ([`ExclusiveRequests`]); of one that the API does not know yet that has something
    /// here.
    #[must_use]
    pub fn fingerprint<'a>(&self, known: impl Fn(&ListedPod) -> KnownPod<'a>) -> String {
        let mut fingerprint = PodsFingerprint::default();
        for pod in &self.pods {
            let is_counted = match known(pod).requests {
                Some(requests) => requests.are_counted(&self.zones),
                None => !pod.held.is_empty(),
            };
            if is_counted {
                fingerprint.add(&pod.namespace, &pod.name);
            }
        }
        fingerprint.sign()
    }

    /// The object's attributes.
    #[must_use]
    pub fn attributes(&self, fingerprint: String) -> Vec<Attribute> {
        let mut attributes = Vec::new();
        let mut say = |name, value| attributes.push(Attribute { name, value });
        if let Some(Alignment { policy, scope }) = &self.alignment {
            say("topologyManagerPolicy", policy.clone());
            say("topologyManagerScope", scope.clone());
        }
        let zones = self.zones.len();
        if zones > ZONES_DEFAULT_MAX {
            say("topologyManagerMaxNUMANodes", zones.to_string());
        }
        say("nodeTopologyPodsFingerprint", fingerprint);
        let method = FINGERPRINT_METHOD.to_owned();
        say("nodeTopologyPodsFingerprintMethod", method);
        attributes
    }

    /// The object's zones.
    #[must_use]
    pub fn named_zones(&self) -> Vec<NamedZone<'_>> {
        let zones = self.zones.iter().enumerate();
        zones.map(|(at, zone)| NamedZone::of(at, zone)).collect()
    }
}

/// An attribute of the object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attribute {
    /// Which.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

/// A zone as the object has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamedZone<'a> {
    /// `node-N`.
    pub name: String,
    /// `Node`: the plugin looks at no other.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// To each node that is there.
    pub costs: Vec<Cost>,
    /// By name.
    pub resources: Vec<NamedResource<'a>>,
}

/// How far a zone is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Which zone.
    pub name: String,
    /// 10 is the zone itself.
    pub value: u32,
}

/// A resource of a zone as the object has it: quantities as texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamedResource<'a> {
    /// As pods request it.
    pub name: &'a str,
    /// [`Amounts::capacity`].
    pub capacity: String,
    /// [`Amounts::allocatable`].
    pub allocatable: String,
    /// [`Amounts::available`].
    pub available: String,
}

impl<'a> NamedZone<'a> {
    fn of(number: usize, zone: &'a Zone) -> Self {
        let distances = zone.distances.iter().enumerate();
        let there = distances.filter(|(_, distance)| **distance > 0);
        let costs = there.map(|(to, distance)| Cost {
            name: zone_name(to),
            value: *distance,
        });
        let resources = zone.resources.iter();
        let resources = resources.map(|(name, amounts)| NamedResource {
            name,
            capacity: amounts.capacity.to_string(),
            allocatable: amounts.allocatable.to_string(),
            available: amounts.available.to_string(),
        });
        Self {
            name: zone_name(number),
            kind: "Node",
            costs: costs.collect(),
            resources: resources.collect(),
        }
    }
}

/// The name of a zone.
#[must_use]
pub fn zone_name(number: usize) -> String {
    format!("node-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(capacity: u64, allocatable: u64, available: u64) -> Amounts {
        Amounts {
            capacity,
            allocatable,
            available,
        }
    }

    fn pod(name: &str, held: &[(u32, &str, u64)]) -> ListedPod {
        let held = held.iter().map(|(zone, resource, amount)| Held {
            zone: *zone,
            resource: (*resource).to_owned(),
            amount: *amount,
        });
        ListedPod {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            held: held.collect(),
        }
    }

    fn topology() -> NodeTopology {
        let zone = |available| Zone {
            distances: vec![10, 21],
            resources: [("cpu".to_owned(), amounts(8, 7, available))].into(),
        };
        NodeTopology {
            zones: vec![zone(1), zone(7)],
            alignment: None,
            pods: vec![
                pod("a", &[(0, "cpu", 2)]),
                pod("b", &[(0, "cpu", 4)]),
                pod("c", &[]),
            ],
        }
    }

    fn known<'a>(ended: &str, c: &'a ExclusiveRequests) -> impl Fn(&ListedPod) -> KnownPod<'a> {
        move |pod| KnownPod {
            has_ended: pod.name == ended,
            requests: (pod.name == "c").then_some(c),
        }
    }

    fn requests(spec: serde_json::Value) -> ExclusiveRequests {
        let pod = serde_json::json!({"spec": spec});
        let pod: crate::kube::pod::Pod = serde_json::from_value(pod).unwrap();
        ExclusiveRequests::of(pod.qos_class(), &pod.spec)
    }

    fn container(amounts: &serde_json::Value) -> serde_json::Value {
        serde_json::json!({"resources": {"requests": amounts, "limits": amounts}})
    }

    #[test]
    fn what_an_ended_pod_has_is_available_and_never_more_than_there_is() {
        let left = topology().without(known("b", &ExclusiveRequests::default()));
        assert_eq!(left.zones[0].resources["cpu"], amounts(8, 7, 5));
        assert_eq!(left.pods.len(), 2);
        let mut wrong = topology();
        wrong.pods[1] = pod("b", &[(0, "cpu", u64::MAX), (9, "cpu", 1), (1, "x", 1)]);
        let left = wrong.without(known("b", &ExclusiveRequests::default()));
        assert_eq!(left.zones[0].resources["cpu"], amounts(8, 7, 7));
    }

    #[test]
    fn the_fingerprint_is_of_pods_that_the_scheduler_counts_and_that_are_listed() {
        let with = |c: &ExclusiveRequests| topology().fingerprint(known("", c));
        let (counted, not) = (
            ExclusiveRequests {
                is_guaranteed: true,
                ..ExclusiveRequests::default()
            },
            ExclusiveRequests::default(),
        );
        // Guaranteed with a part of a CPU: nothing is given to it alone, and the scheduler counts it.
        assert_ne!(with(&counted), with(&not));
        let mut others = topology();
        others.pods.push(pod("best-effort", &[]));
        assert_eq!(others.fingerprint(known("", &not)), with(&not));
        others.pods[3] = pod("d", &[(0, "cpu", 1)]);
        assert_ne!(others.fingerprint(known("", &not)), with(&not));
        // What it has is not asked for where the API says what it requests.
        others.pods.pop();
        others.pods[2] = pod("c", &[(0, "cpu", 1)]);
        assert_eq!(others.fingerprint(known("", &not)), with(&not));
        // Devices count where a zone has such.
        let nic = ExclusiveRequests {
            devices: ["example.com/nic".into()].into(),
            ..ExclusiveRequests::default()
        };
        assert_eq!(with(&nic), with(&not));
        let mut there = topology();
        let nics = ("example.com/nic".to_owned(), amounts(0, 0, 0));
        there.zones[1].resources.extend([nics]);
        assert_eq!(there.fingerprint(known("", &nic)), with(&counted));
    }

    #[test]
    fn what_a_pod_requests_that_no_other_can_have() {
        use serde_json::json;
        let of =
            |amounts: serde_json::Value| requests(json!({"containers": [container(&amounts)]}));
        for (amounts, is_guaranteed) in [
            (json!({"cpu": "1", "memory": "1Gi"}), true),
            (json!({"cpu": "500m", "memory": "1"}), true),
            (json!({"cpu": "1"}), false),
            (json!({"memory": "1Gi", "hugepages-1Gi": "1Gi"}), false),
            (json!({}), false),
        ] {
            assert_eq!(
                of(amounts.clone()).is_guaranteed,
                is_guaranteed,
                "{amounts}"
            );
        }
        let none = of(json!({"example.com/nic": "0", "kubernetes.io/x": "1"}));
        assert_eq!(none.devices, ["example.com/nic".into()].into());
        // The pod's own amounts make its class, and are no container's.
        let level = json!({"cpu": "2", "memory": "1Gi"});
        let level = container(&level)["resources"].clone();
        let whole = requests(json!({"resources": level, "containers": [{}]}));
        assert_eq!(whole, ExclusiveRequests::default());
        let part = json!({"cpu": "1"});
        let part = requests(json!({"resources": level, "containers": [container(&part)]}));
        assert!(part.is_guaranteed);
        // Of init containers only what goes on beside the others.
        let nic = container(&json!({"example.com/nic": "1"}));
        let init = |init| requests(json!({"initContainers": [init], "containers": [{}]}));
        assert_eq!(init(nic.clone()), ExclusiveRequests::default());
        let mut sidecar = nic;
        sidecar["restartPolicy"] = "Always".into();
        assert_eq!(init(sidecar).devices.len(), 1);
    }

    #[test]
    fn more_nodes_than_the_plugin_takes_for_granted_are_told() {
        let mut topology = topology();
        let names = |topology: &NodeTopology| {
            let attributes = topology.attributes("f".to_owned());
            attributes.iter().map(|it| it.name).collect::<Vec<_>>()
        };
        let fingerprint = [
            "nodeTopologyPodsFingerprint",
            "nodeTopologyPodsFingerprintMethod",
        ];
        assert_eq!(names(&topology), fingerprint);
        topology.alignment = Some(Alignment {
            policy: "single-numa-node".to_owned(),
            scope: "pod".to_owned(),
        });
        topology.zones = vec![Zone::default(); 9];
        let attributes = topology.attributes("f".to_owned());
        let max = Attribute {
            name: "topologyManagerMaxNUMANodes",
            value: "9".to_owned(),
        };
        assert!(attributes.contains(&max));
        assert_eq!(attributes.len(), 5);
    }

    #[test]
    fn zones_are_named_and_a_number_without_a_node_costs_nothing() {
        let mut topology = topology();
        topology.zones[0].distances = vec![10, 0];
        let zones = serde_json::to_value(topology.named_zones()).unwrap();
        let expected = serde_json::json!([
            {"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}],
                "resources": [{"name": "cpu", "capacity": "8", "allocatable": "7", "available": "1"}]},
            {"name": "node-1", "type": "Node", "costs": [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}],
                "resources": [{"name": "cpu", "capacity": "8", "allocatable": "7", "available": "7"}]},
        ]);
        assert_eq!(zones, expected);
    }
}
