//! What the kubelet has given to containers: exclusive CPUs, memory of NUMA nodes, devices (`PodResourcesLister`, v1).

use std::path::Path;
use std::time::Duration;

use plimsoll_core::protocol::pod_resources::{Devices, Given, Memory, NodeResources};
use tonic::transport::Channel;

use crate::connection::{ANSWER_BYTES_MAX, CallError, call, connect};
use crate::interface::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use crate::interface::pod_resources::{
    AllocatableResourcesRequest, ContainerDevices, ContainerMemory, ListPodResourcesRequest,
    PodResources, TopologyInfo,
};

/// Where the kubelet listens.
pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// The kubelet answers from memory.
const WITHIN: Duration = Duration::from_secs(10);

/// The kubelet, connected.
#[derive(Debug, Clone)]
pub struct Kubelet {
    client: PodResourcesListerClient<Channel>,
}

impl Kubelet {
    /// Connects.
    ///
    /// # Errors
    /// [`CallError::Connect`].
    pub async fn open(socket: &Path) -> Result<Self, CallError> {
        let client = PodResourcesListerClient::new(connect(socket).await?);
        let client = client.max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Self { client })
    }

    /// Asks.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn resources(&mut self) -> Result<NodeResources, CallError> {
        let allocatable = self
            .client
            .get_allocatable_resources(AllocatableResourcesRequest {});
        let allocatable = match call("GetAllocatableResources", WITHIN, allocatable).await {
            Ok(answer) => Some(Given {
                container: String::new(),
                cpus: answer.cpu_ids,
                memory: memory(answer.memory),
                devices: devices(answer.devices),
            }),
            Err(error) if error.is(tonic::Code::Unimplemented) => None,
            Err(error) => return Err(error),
        };
        let listed = self.client.list(ListPodResourcesRequest {});
        let listed = call("List", WITHIN, listed).await?;
        let mut resources = NodeResources {
            allocatable,
            ..NodeResources::default()
        };
        for pod in listed.pod_resources {
            take_in(&mut resources, pod);
        }
        sort(&mut resources);
        Ok(resources)
    }
}

fn take_in(resources: &mut NodeResources, pod: PodResources) {
    let of = format!("{}/{}", pod.namespace, pod.name);
    let given = pod.containers.into_iter().map(|container| Given {
        container: format!("{of}/{}", container.name),
        cpus: container.cpu_ids,
        memory: memory(container.memory),
        devices: devices(container.devices),
    });
    resources.given.extend(given.filter(|given| {
        !(given.cpus.is_empty() && given.memory.is_empty() && given.devices.is_empty())
    }));
    resources.pods.push(of);
}

/// The kubelet's order changes from answer to answer.
fn sort(resources: &mut NodeResources) {
    for given in resources.given.iter_mut().chain(&mut resources.allocatable) {
        given.cpus.sort_unstable();
    }
    resources.given.sort();
    resources.pods.sort_unstable();
}

/// Asks the kubelet once.
///
/// # Errors
/// [`CallError`].
pub async fn list(socket: &Path) -> Result<NodeResources, CallError> {
    Kubelet::open(socket).await?.resources().await
}

fn nodes(topology: Option<TopologyInfo>) -> Vec<i64> {
    let nodes = topology.unwrap_or_default().nodes;
    let mut nodes: Vec<i64> = nodes.into_iter().map(|node| node.id).collect();
    nodes.sort_unstable();
    nodes
}

fn memory(memory: Vec<ContainerMemory>) -> Vec<Memory> {
    let read = |memory: ContainerMemory| Memory {
        kind: memory.memory_type,
        bytes: memory.size,
        numa_nodes: nodes(memory.topology),
    };
    let mut all: Vec<Memory> = memory.into_iter().map(read).collect();
    all.sort();
    all
}

fn devices(devices: Vec<ContainerDevices>) -> Vec<Devices> {
    let read = |devices: ContainerDevices| Devices {
        resource: devices.resource_name,
        ids: devices.device_ids,
        numa_nodes: nodes(devices.topology),
    };
    let mut all: Vec<Devices> = devices.into_iter().map(read).collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests;
