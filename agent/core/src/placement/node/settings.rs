//! What the configuration says about placement.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::PlacementError;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{MEMORY, ResourceList, is_huge_pages};
use crate::placement::cpu_set::CpuSet;
use crate::placement::cpu_static::{CpuReservation, StaticCpuOption, StaticCpuSettings};
use crate::placement::device::{Device, Inventory, InventoryError, Preference};
use crate::placement::machine::Machine;
use crate::placement::memory::{NumaMemory, ReservedMemory};
use crate::placement::numa_mask::NumaMask;
use crate::placement::topology_manager::TopologySettings;

/// `cpuManagerPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuManagerPolicy {
    /// All containers share all CPUs.
    #[default]
    None,
    /// Containers of Guaranteed pods that request whole CPUs have them to themselves.
    Static,
}

/// `memoryManagerPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MemoryManagerPolicy {
    /// Memory comes from anywhere.
    #[default]
    None,
    /// Containers of Guaranteed pods have NUMA nodes.
    Static,
}

/// The fields of the kubelet's configuration that placement follows, by their names there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementSettings {
    /// `cpuManagerPolicy`.
    pub cpu_manager_policy: CpuManagerPolicy,
    /// `cpuManagerPolicyOptions`.
    pub cpu_manager_policy_options: BTreeMap<String, bool>,
    /// `reservedSystemCPUs`; empty if only their number is given.
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: CpuSet,
    /// How many CPUs `kubeReserved` and `systemReserved` add up to, rounded up.
    pub reserved_cpu_count: u32,
    /// `memoryManagerPolicy`.
    pub memory_manager_policy: MemoryManagerPolicy,
    /// `reservedMemory`.
    #[serde(with = "reserved_memory")]
    pub reserved_memory: ReservedMemory,
    /// `topologyManagerPolicy`.
    pub topology_manager_policy: String,
    /// `topologyManagerScope`.
    pub topology_manager_scope: String,
    /// `topologyManagerPolicyOptions`.
    pub topology_manager_policy_options: BTreeMap<String, String>,
    /// Devices of the machine; the kubelet hears of them from device plugins.
    #[serde(skip_serializing_if = "DeviceSettings::is_empty")]
    pub devices: DeviceSettings,
}

/// As in the kubelet's file. A map with numbers as keys cannot be read back where serde has to look at a value first
/// (flattened, tagged).
mod reserved_memory {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::ReservedMemory;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Reservation {
        numa_node: u32,
        /// Bytes by resource.
        limits: BTreeMap<String, u64>,
    }

    pub(super) fn serialize<S: Serializer>(
        reserved: &ReservedMemory,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(reserved.iter().map(|(node, limits)| Reservation {
            numa_node: *node,
            limits: limits.clone(),
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ReservedMemory, D::Error> {
        let all = Vec::<Reservation>::deserialize(deserializer)?;
        Ok(all
            .into_iter()
            .map(|reservation| (reservation.numa_node, reservation.limits))
            .collect())
    }
}

/// Devices by resource name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceSettings(pub BTreeMap<String, ResourceDevices>);

/// The devices of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceDevices {
    /// All of them.
    pub devices: Vec<Device>,
    /// Which to take first of those that would do.
    #[serde(default)]
    pub preference: Preference,
}

impl DeviceSettings {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn inventory(&self) -> Result<Inventory, InventoryError> {
        let mut inventory = Inventory::default();
        for (resource, devices_of_resource) in &self.0 {
            inventory.set(
                resource,
                devices_of_resource.devices.iter().cloned(),
                devices_of_resource.preference.clone(),
            )?;
        }
        Ok(inventory)
    }
}

impl From<&Inventory> for DeviceSettings {
    fn from(inventory: &Inventory) -> Self {
        let devices_of_resource = inventory
            .resources()
            .map(|(resource, devices, preference)| {
                let devices_of_resource = ResourceDevices {
                    devices: devices.cloned().collect(),
                    preference: preference.clone(),
                };
                (resource.to_owned(), devices_of_resource)
            });
        Self(devices_of_resource.collect())
    }
}

/// Why `reservedMemory` cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReservedMemoryError {
    /// A node that is not there.
    #[error("reservedMemory: NUMA node {node} is not there; this machine has {machine}")]
    UnknownNode {
        /// The node.
        node: u32,
        /// The machine's.
        machine: NumaMask,
    },
    /// The nodes' amounts do not add up.
    #[error(
        "reservedMemory: {given} bytes of {resource} are reserved on all NUMA nodes together, but kubeReserved, systemReserved and \
         evictionHard add up to {wanted}: make both the same"
    )]
    Sum {
        /// `memory`, or huge pages of one size.
        resource: String,
        /// On all nodes.
        given: u64,
        /// For the whole machine.
        wanted: u64,
    },
}

/// CPUs that stay in the shared pool whatever is requested: the kubelet can leave it empty under
/// `strict-cpu-reservation`, and then nothing but exclusive containers can run
/// (docs/reference/placement-improvements.md).
const SHARED_POOL_MIN: u32 = 1;

impl Default for PlacementSettings {
    /// The kubelet's defaults: nothing is placed.
    fn default() -> Self {
        Self {
            cpu_manager_policy: CpuManagerPolicy::None,
            cpu_manager_policy_options: BTreeMap::new(),
            reserved_system_cpus: CpuSet::EMPTY,
            reserved_cpu_count: 0,
            memory_manager_policy: MemoryManagerPolicy::None,
            reserved_memory: ReservedMemory::new(),
            topology_manager_policy: "none".into(),
            topology_manager_scope: "container".into(),
            topology_manager_policy_options: BTreeMap::new(),
            devices: DeviceSettings::default(),
        }
    }
}

impl PlacementSettings {
    /// Whether anything is placed at all.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.cpu_manager_policy != CpuManagerPolicy::None
            || self.memory_manager_policy != MemoryManagerPolicy::None
            || !self.devices.is_empty()
    }

    /// The settings where pods can run on none of the CPUs `outside`, which are not in the machine then. Reserved CPUs
    /// among them are the system's anyway; where all are, one CPU stays in the shared pool in their place, for
    /// containers without CPUs of their own.
    #[must_use]
    pub fn without(&self, outside: CpuSet) -> Self {
        let mut settings = self.clone();
        let reserved = self.reserved_system_cpus;
        if reserved.is_disjoint(&outside) {
            return settings;
        }
        settings.reserved_system_cpus = reserved - outside;
        settings.reserved_cpu_count = settings.reserved_system_cpus.len().max(1);
        if settings.reserved_system_cpus.is_empty() {
            let strict = StaticCpuOption::StrictReservation.name();
            settings.cpu_manager_policy_options.remove(strict);
        }
        settings
    }

    /// Whether `reservedMemory` adds up to what the node reserves: `kubeReserved`, `systemReserved` and the hard
    /// eviction threshold (`validateReservedMemory` in pkg/kubelet/cm/memorymanager/memory_manager.go, 1.36). Only
    /// under the policy Static.
    ///
    /// # Errors
    ///
    /// The first resource of which it does not, or a NUMA node that the machine has not.
    pub fn check_reserved_memory(
        &self,
        reservation: &ResourceList,
        machine: &Machine,
    ) -> Result<(), ReservedMemoryError> {
        if self.memory_manager_policy == MemoryManagerPolicy::None {
            return Ok(());
        }
        for (node, amounts) in &self.reserved_memory {
            if machine.node(*node).is_none() && amounts.values().any(|bytes| *bytes > 0) {
                return Err(ReservedMemoryError::UnknownNode {
                    node: *node,
                    machine: machine.node_ids(),
                });
            }
        }
        let is_memory = |name: &&String| *name == MEMORY || is_huge_pages(name);
        let of_nodes = self.reserved_memory.values().flat_map(BTreeMap::keys);
        let names: BTreeSet<&String> = of_nodes
            .chain(reservation.keys())
            .filter(is_memory)
            .collect();
        for name in names {
            let of_nodes = self
                .reserved_memory
                .values()
                .filter_map(|amounts| amounts.get(name));
            let given = of_nodes.fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
            let wanted = reservation.get(name).map_or(0, Quantity::value);
            let wanted = u64::try_from(wanted).unwrap_or(0);
            if given != wanted {
                return Err(ReservedMemoryError::Sum {
                    resource: name.clone(),
                    given,
                    wanted,
                });
            }
        }
        Ok(())
    }

    pub(super) fn static_cpus(&self) -> Result<StaticCpuSettings, PlacementError> {
        if self.reserved_cpu_count == 0 && self.reserved_system_cpus.is_empty() {
            return Err(PlacementError::NothingReserved);
        }
        let mut settings = StaticCpuSettings {
            reservation: CpuReservation {
                count: self.reserved_cpu_count,
                cpus: self.reserved_system_cpus,
            },
            single_numa_node: self.topology_manager_policy == "single-numa-node",
            shared_min: SHARED_POOL_MIN,
            ..StaticCpuSettings::default()
        };
        for (name, on) in &self.cpu_manager_policy_options {
            let option = StaticCpuOption::from_name(name);
            let option = option.ok_or_else(|| PlacementError::UnknownCpuOption(name.clone()))?;
            settings.set(option, *on);
        }
        Ok(settings)
    }

    pub(super) fn topology(&self) -> TopologySettings<'_> {
        TopologySettings {
            policy: &self.topology_manager_policy,
            scope: &self.topology_manager_scope,
            options: &self.topology_manager_policy_options,
        }
    }
}

/// The memory of each NUMA node that has any.
pub(super) fn numa_memory(machine: &Machine) -> Vec<NumaMemory> {
    let nodes = machine.nodes().iter().filter_map(|node| {
        Some(NumaMemory {
            id: node.id,
            bytes: node.memory_bytes?,
            huge_pages: node.hugepages.clone(),
        })
    });
    nodes.collect()
}
