//! Devices for containers, near to their CPUs and memory.
//!
//! Problem: a container that asks for two network cards wants them on the NUMA node where it runs. Approach: an
//! [`Inventory`] of devices by resource, with the nodes each is near to; the devices each container holds; and from
//! both the sets of nodes that could serve a container ([`ProviderHints`]), as the kubelet's device manager makes them.
//!
//! Rules (pkg/kubelet/cm/devicemanager of 1.36, `topology_hints.go` and `manager.go`): a set of nodes is a hint if
//! enough devices are near to it that are healthy and free, or left by the pod's init containers, and if each of the
//! latter is. It is preferred if no smaller set would have enough with all devices there are. Of no device of a
//! resource a node is known: no preference. Devices are taken in this order: what init containers left; those near to
//! the hint's nodes; those near to others; those near to none. Among equals [`Preference`] decides.
//!
//! Differences from the kubelet:
//! * Among equals it takes devices in random order; here the lowest ids.
//! * A refused container changes nothing; there the resources before the refused one stay taken until the next
//!   clean-up.
//! * A device whose topology lists no node counts as one without topology everywhere; there, once it is left by an init
//!   container, no set of nodes will do. Devices that are left and no longer healthy are not reused.
//! * A plugin's preferred allocation is a setting, not a call.
//! * Nothing takes 2^n steps: hints are rules, and `reach` says how the fewest nodes are found.

mod given;
mod inventory;
mod reach;
mod refusal;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use given::{GivenDevices, ListedDevices};
pub use inventory::{
    AllocatableDevices, ApiNode, ApiTopology, Device, Inventory, InventoryError, Preference,
    Resource,
};
pub use refusal::{DeviceError, Reason};

use crate::kube::pod::{Container, Pod};
use crate::kube::pod_uid::PodUid;
use crate::kube::resources::{ResourceList, Scope, pod_limits};
use crate::placement::TopologyHint;
use crate::placement::hints::{
    HintRule, HintSet, Need, Preference as Preferred, ProviderHints, Supply,
};
use crate::placement::numa_mask::NumaMask;

/// Ids of devices of one resource.
pub type Ids = BTreeSet<String>;

/// Devices by resource.
pub type Held = BTreeMap<String, Ids>;

/// Which container holds which devices of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    nodes: NumaMask,
    inventory: Inventory,
    held: BTreeMap<PodUid, BTreeMap<String, Held>>,
    /// What init containers of the pod that was served last left to the rest of it.
    reusable: Option<(PodUid, Held)>,
}

impl Devices {
    /// The devices of a machine with these NUMA nodes.
    #[must_use]
    pub fn new(nodes: NumaMask, inventory: Inventory) -> Self {
        Self {
            nodes,
            inventory,
            held: BTreeMap::new(),
            reusable: None,
        }
    }

    /// Enters what a container held before a restart, whatever the inventory has by now.
    pub fn restore(&mut self, pod: &PodUid, container: &str, held: Held) {
        let containers = self.held.entry(pod.clone()).or_default();
        containers.insert(container.to_owned(), held);
    }

    /// What a container holds.
    #[must_use]
    pub fn held(&self, pod: &PodUid, container: &str) -> Option<&Held> {
        self.held.get(pod)?.get(container)
    }

    /// What each container holds. A container that holds nothing is not in it.
    #[must_use]
    pub fn assignments(&self) -> &BTreeMap<PodUid, BTreeMap<String, Held>> {
        &self.held
    }

    /// Takes back what a container holds. The kubelet does so only for whole pods.
    pub fn remove_container(&mut self, pod: &PodUid, container: &str) {
        if let Some(containers) = self.held.get_mut(pod) {
            containers.remove(container);
            if containers.is_empty() {
                self.remove(pod);
            }
        }
    }

    /// Takes back all that a pod's containers hold. Nothing if they hold nothing.
    pub fn remove(&mut self, pod: &PodUid) {
        self.held.remove(pod);
        self.reusable.take_if(|(owner, _)| owner == pod);
    }

    /// Gives a container the devices that its limits ask for, near to the hint's nodes as far as there are any.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]; then nothing has changed.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: TopologyHint,
    ) -> Result<(), DeviceError> {
        let uid = pod.uid();
        self.reusable.take_if(|(owner, _)| *owner != uid);
        let error = |reason| DeviceError {
            pod: pod.label(),
            container: container.name.clone(),
            reason: Box::new(reason),
        };
        let mut chosen = Held::new();
        for (resource, wanted) in self.wanted(&container.resources.limits) {
            let ids = self
                .choose(&uid, &container.name, &resource, wanted, hint.mask)
                .map_err(error)?;
            if !ids.is_empty() {
                chosen.insert(resource, ids);
            }
        }
        if !chosen.is_empty() {
            let containers = self.held.entry(uid.clone()).or_default();
            containers
                .entry(container.name.clone())
                .or_default()
                .extend(chosen);
        }
        self.note_reusable(pod, container);
        Ok(())
    }

    /// Whether a container has all the devices that it asks for, and they are healthy.
    #[must_use]
    pub fn is_served(&self, pod: &Pod, container: &Container) -> bool {
        let uid = pod.uid();
        let mut wanted = self.wanted(&container.resources.limits).into_iter();
        wanted.all(|(resource, wanted)| {
            // A resource without devices is refused.
            let chosen = self.choose(&uid, &container.name, &resource, wanted, None);
            chosen.is_ok_and(|missing| missing.is_empty())
        })
    }

    /// The devices to add to what the container holds (`devicesToAllocate`).
    fn choose(
        &self,
        pod: &PodUid,
        container: &str,
        name: &str,
        wanted: usize,
        affinity: Option<NumaMask>,
    ) -> Result<Ids, Reason> {
        let nothing = Ids::new();
        let held_ids = self.held(pod, container).and_then(|held| held.get(name));
        if let Some(held_ids) = held_ids.filter(|held_ids| held_ids.len() != wanted) {
            return Err(Reason::Changed {
                resource: name.to_owned(),
                held: held_ids.len(),
                wanted,
            });
        }
        let Some(resource) = self.inventory.resources.get(name) else {
            return Err(Reason::Unregistered {
                resource: name.to_owned(),
            });
        };
        let is_healthy = |id: &&String| {
            resource
                .devices
                .get(*id)
                .is_some_and(|device| device.healthy)
        };
        if !resource.devices.values().any(|device| device.healthy) {
            return Err(Reason::NoneHealthy {
                resource: name.to_owned(),
                wanted,
            });
        }
        if let Some(held_ids) = held_ids {
            let ids: Ids = held_ids
                .iter()
                .filter(|id| !is_healthy(id))
                .cloned()
                .collect();
            if !ids.is_empty() {
                return Err(Reason::Unhealthy {
                    resource: name.to_owned(),
                    ids,
                });
            }
            return Ok(Ids::new());
        }
        let mut choice = Choice {
            resource,
            nodes: self.nodes,
            wanted,
            chosen: Ids::new(),
        };
        let left = self.left(pod, name).unwrap_or(&nothing);
        choice.take(left.iter().filter(is_healthy));
        let free = self.free(name, resource);
        if choice.missing() > free.len() {
            return Err(self.too_few(name, resource, wanted, &free, choice.chosen.len()));
        }
        // Near to the hint's nodes, near to others, near to none. Without hint or topology it is all one.
        let affinity = affinity.filter(|_| is_aligned(resource));
        let near = |device: &Device, to: NumaMask| !(device.numa_nodes & to).is_empty();
        let (mut aligned, mut rest) = (Vec::new(), [Vec::new(), Vec::new()]);
        for device in &free {
            match affinity {
                Some(mask) if near(device, mask) => aligned.push(*device),
                Some(_) if !device.numa_nodes.is_empty() => rest[0].push(*device),
                _ => rest[1].push(*device),
            }
        }
        if choice.missing() < aligned.len() {
            choice.take_preferred(&aligned);
            choice.take(aligned.iter().map(|device| &device.id));
        } else {
            choice.take(aligned.iter().map(|device| &device.id));
            choice.take_preferred(&free);
            choice.take(rest.iter().flatten().map(|device| &device.id));
        }
        Ok(choice.chosen)
    }

    fn too_few(
        &self,
        name: &str,
        resource: &Resource,
        wanted: usize,
        free: &[&Device],
        reused: usize,
    ) -> Reason {
        let mut per_node = BTreeMap::new();
        for node in free.iter().flat_map(|device| device.numa_nodes.iter()) {
            *per_node.entry(node).or_default() += 1;
        }
        let mut holders = Vec::new();
        for (pod, containers) in &self.held {
            for (container, held) in containers {
                if held.get(name).is_some_and(|ids| !ids.is_empty()) {
                    holders.push((pod.clone(), container.clone()));
                }
            }
        }
        Reason::TooFew {
            resource: name.to_owned(),
            wanted,
            free: free.len() + reused,
            per_node,
            unhealthy: resource
                .devices
                .values()
                .filter(|device| !device.healthy)
                .count(),
            holders,
        }
    }

    /// The sets of nodes that could serve a container, by resource (`GetTopologyHints`).
    #[must_use]
    pub fn hints(&self, pod: &Pod, container: &Container) -> ProviderHints {
        let uid = pod.uid();
        let held = self.held(&uid, &container.name);
        let wanted = self.wanted(&container.resources.limits).into_iter();
        let hints = wanted.map(|(name, wanted)| {
            let held_ids = held.and_then(|held| held.get(&name)).cloned();
            let left = self.left(&uid, &name).cloned();
            let hints = self.resource_hints(
                &name,
                wanted,
                held_ids.unwrap_or_default(),
                left.unwrap_or_default(),
            );
            (name, hints)
        });
        hints.collect()
    }

    /// The sets of nodes that could serve a whole pod (`GetPodTopologyHints`).
    #[must_use]
    pub fn pod_hints(&self, pod: &Pod) -> ProviderHints {
        let limits = pod_limits(
            pod,
            Scope {
                containers: true,
                pod_level: true,
                overhead: false,
            },
        );
        let containers = self.held.get(&pod.uid());
        let hints = self.wanted(&limits).into_iter().map(|(name, wanted)| {
            let all = containers.into_iter().flat_map(BTreeMap::values);
            let held_ids: Ids = all
                .filter_map(|held| held.get(&name))
                .flatten()
                .cloned()
                .collect();
            let hints = self.resource_hints(&name, wanted, held_ids, Ids::new());
            (name, hints)
        });
        hints.collect()
    }

    fn resource_hints(
        &self,
        name: &str,
        wanted: usize,
        held_ids: Ids,
        left: Ids,
    ) -> Option<HintSet> {
        let resource = self
            .inventory
            .resources
            .get(name)
            .filter(|resource| is_aligned(resource))?;
        let known = |ids: &Ids| -> Vec<&Device> {
            ids.iter()
                .filter_map(|id| resource.devices.get(id))
                .collect()
        };
        let (available, left) = if held_ids.is_empty() {
            let mut left = known(&left);
            left.retain(|device| device.healthy);
            (self.free(name, resource), left)
        } else if held_ids.len() == wanted {
            (known(&held_ids), Vec::new())
        } else {
            return Some(HintSet::List(Vec::new()));
        };
        if available.len() + left.len() < wanted {
            return Some(HintSet::List(Vec::new()));
        }
        let supplies = available.iter().chain(&left).map(|device| Supply {
            nodes: device.numa_nodes & self.nodes,
            amount: 1,
        });
        let mut needs = vec![Need {
            demand: wanted as u64,
            supplies: supplies.filter(|supply| !supply.nodes.is_empty()).collect(),
        }];
        let left = left.iter().map(|device| device.numa_nodes);
        let left: BTreeSet<NumaMask> = left.filter(|nodes| !nodes.is_empty()).collect();
        needs.extend(
            left.into_iter()
                .map(|nodes| Need::any_of(nodes & self.nodes)),
        );
        let near: Vec<NumaMask> = resource
            .devices
            .values()
            .map(|device| device.numa_nodes)
            .collect();
        let fewest = reach::fewest(self.nodes, &near, wanted, NumaMask::EMPTY);
        let fewest = fewest.unwrap_or(self.nodes).len();
        let rule = HintRule::new(self.nodes, needs, Preferred::Nodes(fewest));
        Some(HintSet::Rule(rule))
    }

    /// What is wanted of each resource that has devices: limits, as devices cannot be overcommitted.
    fn wanted(&self, limits: &ResourceList) -> BTreeMap<String, usize> {
        let held = |name: &str| {
            let mut all = self.held.values().flat_map(BTreeMap::values);
            all.any(|held| held.contains_key(name))
        };
        let limits = limits.iter();
        let known =
            limits.filter(|(name, _)| self.inventory.resources.contains_key(*name) || held(name));
        known
            .map(|(name, count)| (name.clone(), usize::try_from(count.value()).unwrap_or(0)))
            .collect()
    }

    /// Healthy devices that no container holds, by ascending id.
    fn free<'a>(&self, name: &str, resource: &'a Resource) -> Vec<&'a Device> {
        let all = self.held.values().flat_map(BTreeMap::values);
        let held: BTreeSet<&String> = all.filter_map(|held| held.get(name)).flatten().collect();
        let devices = resource.devices.values();
        devices
            .filter(|device| device.healthy && !held.contains(&device.id))
            .collect()
    }

    fn left(&self, pod: &PodUid, name: &str) -> Option<&Ids> {
        let (owner, left) = self.reusable.as_ref()?;
        left.get(name).filter(|_| owner == pod)
    }

    /// What an init container holds the rest of the pod may use; what others hold it may not any more.
    fn note_reusable(&mut self, pod: &Pod, container: &Container) {
        let uid = pod.uid();
        let held = self
            .held(&uid, &container.name)
            .cloned()
            .unwrap_or_default();
        let ends = pod.is_plain_init(&container.name);
        let (_, left) = self.reusable.get_or_insert_with(|| (uid, Held::new()));
        for (name, ids) in held {
            let left = left.entry(name).or_default();
            if ends {
                left.extend(ids);
            } else {
                left.retain(|id| !ids.contains(id));
            }
        }
    }
}

/// Whether a node is known of any device.
fn is_aligned(resource: &Resource) -> bool {
    let mut devices = resource.devices.values();
    devices.any(|device| !device.numa_nodes.is_empty())
}

/// Devices chosen so far.
struct Choice<'a> {
    resource: &'a Resource,
    nodes: NumaMask,
    wanted: usize,
    chosen: Ids,
}

impl Choice<'_> {
    fn missing(&self) -> usize {
        self.wanted - self.chosen.len()
    }

    /// Takes these in order until there are enough.
    fn take<'i>(&mut self, ids: impl Iterator<Item = &'i String>) {
        for id in ids {
            if self.missing() == 0 {
                return;
            }
            self.chosen.insert(id.clone());
        }
    }

    /// Takes of these what is preferred.
    fn take_preferred(&mut self, among: &[&Device]) {
        match &self.resource.preference {
            Preference::Any => {}
            Preference::Listed(ids) => {
                let among: BTreeSet<&String> = among.iter().map(|device| &device.id).collect();
                self.take(ids.iter().filter(|id| among.contains(id)));
            }
            Preference::FewestNodes => {
                let chosen = self.chosen.iter();
                let chosen = chosen.filter_map(|id| self.resource.devices.get(id));
                let (mut here, mut near) = (NumaMask::EMPTY, Vec::new());
                for device in chosen {
                    if (device.numa_nodes & here).is_empty() {
                        here = here | device.numa_nodes;
                    }
                }
                let among: Vec<&Device> = among
                    .iter()
                    .copied()
                    .filter(|device| !self.chosen.contains(&device.id))
                    .collect();
                near.extend(among.iter().map(|device| device.numa_nodes));
                let all = near.iter().fold(self.nodes, |all, nodes| all | *nodes);
                // As many as have a node at all; the rest is near to none and comes last.
                let demand = self.missing().min(reach::reached(&near, all));
                let fewest = reach::fewest(all, &near, demand, here).unwrap_or(all);
                let close = among
                    .iter()
                    .filter(|device| !(device.numa_nodes & fewest).is_empty());
                self.take(close.map(|device| &device.id));
            }
        }
    }
}
