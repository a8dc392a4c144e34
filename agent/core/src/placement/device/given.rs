//! Devices that a kubelet has given to containers: whoever places CPUs and memory beside it follows them.
//!
//! Problem: the kubelet's device manager takes devices when it admits a pod, and no other program can say which.
//! Approach: what it lists is a hint and nothing else: the NUMA nodes on which each device of a container is reached.
//! Nothing is allocated here, nor refused.
//!
//! The kubelet finds devices by UID and lists them by name (`v1PodResourcesServer.List` in
//! pkg/kubelet/apis/podresources/server_v1.go of 1.36; the messages have no UID), and a pod that was deleted and made
//! again has the name of the one before. So a name is a pod's only in an answer that was asked for after the pod was
//! known to be admitted: by then the kubelet has taken its devices, and has forgotten the other, for it hears of pods
//! of one name in the order in which the API had them. From there on devices are a UID's.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::reach;
use crate::kube::pod::{Container, Pod};
use crate::kube::pod_uid::PodUid;
use crate::placement::hints::{HintRule, HintSet, Need, Preference, ProviderHints, Supply};
use crate::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};
use crate::protocol::pod_resources::NodeResources;

/// The nodes of each device, by resource; none where the device is near to none.
type Near = BTreeMap<String, Vec<NumaMask>>;

/// What a kubelet lists of devices, by the names of pods.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedDevices {
    /// Before it was asked: CLOCK_MONOTONIC, nanoseconds.
    pub asked_at_ns: u64,
    /// Resources of which there are devices.
    pub resources: BTreeSet<String>,
    /// By pod (`namespace/pod`) and container what those have that have devices. Of two pods with one name neither is
    /// there.
    pub pods: BTreeMap<String, BTreeMap<String, Near>>,
}

/// Which pods have which of a kubelet's devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GivenDevices {
    /// Resources of which there are devices.
    resources: BTreeSet<String>,
    /// By pod and container what those have that have devices.
    pods: BTreeMap<PodUid, BTreeMap<String, Near>>,
}

impl ListedDevices {
    /// From what the kubelet says. Nodes that no machine has are left out.
    #[must_use]
    pub fn of(asked_at_ns: u64, resources: &NodeResources) -> Self {
        let mut all = Self {
            asked_at_ns,
            ..Self::default()
        };
        let everywhere = resources.given.iter().chain(&resources.allocatable);
        for devices in everywhere.flat_map(|given| &given.devices) {
            all.resources.insert(devices.resource.clone());
        }
        for given in &resources.given {
            let Some((pod, container)) = given.container.rsplit_once('/') else {
                continue;
            };
            // A device is listed once for each of its nodes.
            let mut by_id: BTreeMap<(&str, &str), NumaMask> = BTreeMap::new();
            for devices in &given.devices {
                let nodes = devices.numa_nodes.iter();
                let nodes = nodes.filter_map(|node| u32::try_from(*node).ok());
                let nodes: NumaMask = nodes.filter(|node| *node < NUMA_NODES_MAX).collect();
                for id in &devices.ids {
                    let known = by_id.entry((&devices.resource, id)).or_default();
                    *known = *known | nodes;
                }
            }
            let mut near = Near::new();
            for ((resource, _), nodes) in by_id {
                near.entry(resource.to_owned()).or_default().push(nodes);
            }
            if !near.is_empty() {
                let of_pod = all.pods.entry(pod.to_owned()).or_default();
                of_pod.insert(container.to_owned(), near);
            }
        }
        // Sorted by the kubelet's reader.
        for names in resources.pods.windows(2) {
            if names[0] == names[1] {
                all.pods.remove(&names[0]);
            }
        }
        all
    }

    /// Whether all is as in this one, but the time.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        (&self.resources, &self.pods) == (&other.resources, &other.pods)
    }

    /// To these pods, each by its name (`namespace/pod`). They were known to be admitted when the kubelet was asked,
    /// and no two of them have one name.
    #[must_use]
    pub fn given_to<'a>(&self, pods: impl Iterator<Item = (&'a str, &'a PodUid)>) -> GivenDevices {
        let pods = pods.filter_map(|(name, uid)| Some((uid.clone(), self.pods.get(name)?.clone())));
        GivenDevices {
            resources: self.resources.clone(),
            pods: pods.collect(),
        }
    }
}

impl GivenDevices {
    /// Whether a container of the pod wants devices, and the kubelet has not said yet which it has. A pod may be listed
    /// before it has got any; init containers, which end, are not listed.
    #[must_use]
    pub fn are_awaited(&self, pod: &Pod) -> bool {
        let of_pod = self.pods.get(&pod.uid());
        let mut listed = pod
            .all_containers()
            .filter(|container| !pod.is_plain_init(&container.name));
        listed.any(|container| {
            let near = of_pod.and_then(|containers| containers.get(&container.name));
            let mut wanted = container.resources.limits.iter();
            wanted.any(|(name, count)| {
                let is_device = self.resources.contains(name) && count.value() > 0;
                is_device && near.is_none_or(|near| !near.contains_key(name))
            })
        })
    }

    /// Where a container reaches all of its devices, by resource.
    #[must_use]
    pub fn hints(&self, machine: NumaMask, pod: &Pod, container: &Container) -> ProviderHints {
        let of_pod = self.pods.get(&pod.uid());
        let near = of_pod.and_then(|containers| containers.get(&container.name));
        hints(machine, near.into_iter().flatten())
    }

    /// Where a pod's containers reach all of their devices.
    #[must_use]
    pub fn pod_hints(&self, machine: NumaMask, pod: &Pod) -> ProviderHints {
        let of_pod = self.pods.get(&pod.uid()).into_iter();
        hints(machine, of_pod.flat_map(BTreeMap::values).flatten())
    }
}

fn hints<'a>(
    machine: NumaMask,
    near: impl Iterator<Item = (&'a String, &'a Vec<NumaMask>)>,
) -> ProviderHints {
    let mut by_resource = Near::new();
    for (resource, devices) in near {
        let known = devices.iter().map(|nodes| *nodes & machine);
        let known = known.filter(|nodes| !nodes.is_empty());
        by_resource
            .entry(resource.clone())
            .or_default()
            .extend(known);
    }
    let hint = |(resource, near): (String, Vec<NumaMask>)| {
        let fewest = reach::fewest(machine, &near, near.len(), NumaMask::EMPTY)
            .filter(|_| !near.is_empty())?;
        let supplies = near.iter().map(|nodes| Supply {
            nodes: *nodes,
            amount: 1,
        });
        let need = Need {
            demand: near.len() as u64,
            supplies: supplies.collect(),
        };
        let rule = HintRule::new(machine, vec![need], Preference::Nodes(fewest.len()));
        Some((resource, Some(HintSet::Rule(rule))))
    };
    by_resource.into_iter().filter_map(hint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::pod_resources::{Devices, Given};

    fn devices(resource: &str, ids: &[&str], numa_nodes: &[i64]) -> Devices {
        Devices {
            resource: resource.to_owned(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            numa_nodes: numa_nodes.to_vec(),
        }
    }

    fn listed() -> GivenDevices {
        let given = |container: &str, devices: Vec<Devices>| Given {
            container: container.to_owned(),
            devices,
            ..Given::default()
        };
        let listed = ListedDevices::of(
            7,
            &NodeResources {
                allocatable: Some(given("", vec![devices("x/gpu", &["g0", "g1"], &[0])])),
                given: vec![
                    given(
                        "n/p/main",
                        vec![
                            // One near to two nodes is listed twice.
                            devices("x/nic", &["c0"], &[1]),
                            devices("x/nic", &["c0"], &[2]),
                            devices("x/nic", &["c1"], &[2]),
                            devices("x/any", &["a"], &[]),
                            devices("x/odd", &["o"], &[-1, 64, 99]),
                        ],
                    ),
                    given("n/p/side", vec![devices("x/nic", &["c2"], &[0])]),
                ],
                pods: vec!["n/early".to_owned(), "n/p".to_owned()],
            },
        );
        let pods = ["p", "early"].map(|name| (format!("n/{name}"), PodUid::from(name)));
        listed.given_to(pods.iter().map(|(name, uid)| (&**name, uid)))
    }

    fn pod(name: &str, resource: &str) -> Pod {
        let container = |name: &str| serde_json::json!({"name": name, "resources": {"limits": {resource: "1"}}});
        let pod = serde_json::json!({
            "metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {"containers": [container("main"), container("side")]},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_hint_is_where_all_devices_of_a_container_are_reached() {
        let (all, machine, pod) = (listed(), NumaMask(0b1111), pod("p", "x/nic"));
        let fits = |hints: &ProviderHints, mask: u64| match &hints["x/nic"] {
            Some(HintSet::Rule(rule)) => (
                rule.fits(NumaMask(mask)),
                rule.preference.includes(NumaMask(mask)),
            ),
            other => panic!("{other:?}"),
        };
        let main = all.hints(machine, &pod, &pod.spec.containers[0]);
        assert_eq!(
            Vec::from_iter(main.keys()),
            ["x/nic"],
            "others are anywhere"
        );
        assert_eq!(fits(&main, 0b0100), (true, true));
        assert_eq!(fits(&main, 0b0010), (false, true));
        assert_eq!(fits(&main, 0b1110), (true, false));
        let whole = all.pod_hints(machine, &pod);
        assert_eq!(fits(&whole, 0b0100), (false, false));
        assert_eq!(fits(&whole, 0b0101), (true, true));
        // A machine that lacks a node of theirs, and a pod that has none.
        let main = all.hints(NumaMask(0b0010), &pod, &pod.spec.containers[0]);
        assert_eq!(fits(&main, 0b0010), (true, true));
        let none = super::tests::pod("early", "x/nic");
        assert!(all.pod_hints(machine, &none).is_empty());
    }

    #[test]
    fn of_two_pods_with_one_name_neither_has_the_others_devices() {
        let given = |container: &str, node| Given {
            container: container.to_owned(),
            devices: vec![devices("x/nic", &["c"], &[node])],
            ..Given::default()
        };
        let listed = |pods: &[&str]| {
            let listed = NodeResources {
                given: vec![given("n/p/main", 0), given("n/p/side", 1)],
                pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
                ..NodeResources::default()
            };
            ListedDevices::of(7, &listed)
        };
        assert!(listed(&["n/p", "n/p"]).pods.is_empty());
        let (one, same) = (listed(&["n/p"]), listed(&["n/o", "n/p"]));
        assert_eq!(one.pods.len(), 1);
        assert!(one.says_the_same(&ListedDevices {
            asked_at_ns: 8,
            ..same
        }));
        assert!(!one.says_the_same(&listed(&["n/p", "n/p"])));
        // Who is not named was not admitted when the kubelet was asked.
        let uid = PodUid::from("other");
        let given = one.given_to([("n/other", &uid)].into_iter());
        assert!(given.are_awaited(&pod("p", "x/nic")));
    }

    #[test]
    fn who_wants_devices_is_waited_for_until_its_kubelet_has_listed_them() {
        let all = listed();
        assert!(all.are_awaited(&pod("new", "x/gpu")), "none is given yet");
        assert!(all.are_awaited(&pod("new", "x/nic")));
        assert!(all.are_awaited(&pod("early", "x/gpu")), "it has none yet");
        assert!(!all.are_awaited(&pod("p", "x/nic")), "both have theirs");
        assert!(all.are_awaited(&pod("p", "x/odd")), "its other container");
        assert!(!all.are_awaited(&pod("new", "x/unknown")));
        let mut with_init = pod("new", "x/gpu");
        with_init.spec.init_containers = std::mem::take(&mut with_init.spec.containers);
        assert!(!all.are_awaited(&with_init));
    }
}
