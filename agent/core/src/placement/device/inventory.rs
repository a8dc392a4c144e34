//! What devices a machine has: from configuration, and from the kubelet's PodResources API.
//!
//! Source: `AllocatableResourcesResponse` of the PodResources API v1 (k8s.io/kubelet/pkg/apis, 1.36). Both spellings of
//! its JSON fields are read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::placement::numa_mask::{NUMA_NODES_MAX, NumaMask};

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Unique within its resource.
    pub id: String,
    /// The NUMA nodes it is near to: usually one, several for some, none if it is not known or does not matter.
    #[serde(default)]
    pub numa_nodes: NumaMask,
    /// Whether it may be allocated.
    #[serde(default = "healthy")]
    pub healthy: bool,
}

fn healthy() -> bool {
    true
}

/// Which devices to take of those that would do: in place of a plugin's `GetPreferredAllocation`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Preference {
    /// Any; here the lowest ids. The kubelet takes them in no order.
    #[default]
    Any,
    /// These first, in this order.
    Listed(Vec<String>),
    /// Such that all devices of the container are near to as few NUMA nodes as possible.
    FewestNodes,
}

/// The devices of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resource {
    pub(super) devices: BTreeMap<String, Device>,
    pub(super) preference: Preference,
}

/// The devices of a machine, by resource name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    pub(super) resources: BTreeMap<String, Resource>,
}

/// `NUMANode` of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiNode {
    /// The node's number; below zero where the kernel knows none.
    #[serde(rename = "ID", alias = "id", default)]
    pub id: i64,
}

/// `TopologyInfo` and `NUMATopology`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ApiTopology {
    /// The nodes.
    #[serde(default)]
    pub nodes: Vec<ApiNode>,
}

/// `ContainerDevices` of the PodResources API: in `AllocatableResourcesResponse.devices` all that are healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatableDevices {
    /// Such as `vendor.example/nic`.
    #[serde(alias = "resourceName")]
    pub resource_name: String,
    /// The devices.
    #[serde(alias = "deviceIds", default)]
    pub device_ids: Vec<String>,
    /// Where all of them are.
    #[serde(default)]
    pub topology: Option<ApiTopology>,
}

/// Devices that cannot be taken over.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InventoryError {
    /// A node beyond those that are supported.
    #[error(
        "{resource}, device {device}: NUMA node {node} is beyond {max}, the highest that is supported", max = NUMA_NODES_MAX - 1
    )]
    NodeTooHigh {
        /// The resource.
        resource: String,
        /// The device.
        device: String,
        /// The node.
        node: i64,
    },
    /// One id twice.
    #[error("{resource}: device {device} is listed twice: give each device an id of its own")]
    Twice {
        /// The resource.
        resource: String,
        /// The device.
        device: String,
    },
}

impl Inventory {
    /// Every resource with its devices and which of them to take first.
    pub fn resources(
        &self,
    ) -> impl Iterator<Item = (&str, impl Iterator<Item = &Device>, &Preference)> {
        let all = self.resources.iter();
        all.map(|(name, resource)| {
            (
                name.as_str(),
                resource.devices.values(),
                &resource.preference,
            )
        })
    }

    /// Sets all devices of a resource, in place of those it had.
    ///
    /// # Errors
    ///
    /// If an id occurs twice; then nothing has changed.
    pub fn set(
        &mut self,
        resource: &str,
        devices: impl IntoIterator<Item = Device>,
        preference: Preference,
    ) -> Result<(), InventoryError> {
        let mut by_id = BTreeMap::new();
        for device in devices {
            if let Some(twice) = by_id.insert(device.id.clone(), device) {
                return Err(InventoryError::Twice {
                    resource: resource.to_owned(),
                    device: twice.id,
                });
            }
        }
        let devices = Resource {
            devices: by_id,
            preference,
        };
        self.resources.insert(resource.to_owned(), devices);
        Ok(())
    }

    /// From what the PodResources API calls allocatable. An id that is there more than once is near to all the nodes it
    /// has there.
    ///
    /// # Errors
    ///
    /// The first device that cannot be taken over.
    pub fn from_pod_resources(all: &[AllocatableDevices]) -> Result<Self, InventoryError> {
        let mut inventory = Self::default();
        for entry in all {
            let resource = inventory
                .resources
                .entry(entry.resource_name.clone())
                .or_default();
            for id in &entry.device_ids {
                let numa_nodes = nodes(&entry.resource_name, id, entry.topology.as_ref())?;
                let device = resource
                    .devices
                    .entry(id.clone())
                    .or_insert_with(|| Device {
                        id: id.clone(),
                        numa_nodes: NumaMask::EMPTY,
                        healthy: true,
                    });
                device.numa_nodes = device.numa_nodes | numa_nodes;
            }
        }
        Ok(inventory)
    }
}

/// The nodes of a topology; those below zero are none.
fn nodes(
    resource: &str,
    device: &str,
    topology: Option<&ApiTopology>,
) -> Result<NumaMask, InventoryError> {
    let mut mask = NumaMask::EMPTY;
    for ApiNode { id } in topology.into_iter().flat_map(|topology| &topology.nodes) {
        if *id < 0 {
            continue;
        }
        let node = u32::try_from(*id)
            .ok()
            .filter(|node| *node < NUMA_NODES_MAX);
        let node = node.ok_or_else(|| InventoryError::NodeTooHigh {
            resource: resource.to_owned(),
            device: device.to_owned(),
            node: *id,
        })?;
        mask = mask | NumaMask::of(node);
    }
    Ok(mask)
}
