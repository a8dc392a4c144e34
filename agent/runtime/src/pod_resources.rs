//! What the kubelet has given to containers: exclusive CPUs, memory of NUMA nodes, devices (`PodResourcesLister`, v1).

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::connection::{ANSWER_BYTES_MAX, CallError, call, connect};
use crate::interface::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use crate::interface::pod_resources::{
    AllocatableResourcesRequest, ContainerDevices, ContainerMemory, ListPodResourcesRequest,
    TopologyInfo,
};

/// Where the kubelet listens.
pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// The kubelet answers from memory.
const WITHIN: Duration = Duration::from_secs(10);

/// Devices of one kind on the same NUMA nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Devices {
    /// The resource that asks for them.
    pub resource: String,
    /// Their ids.
    pub ids: Vec<String>,
    /// NUMA nodes that they are near to; none: it does not matter.
    pub numa_nodes: Vec<i64>,
}

/// Memory or huge pages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// `memory`, `hugepages-2Mi`.
    pub kind: String,
    /// How much, bytes.
    pub bytes: u64,
    /// Of these NUMA nodes.
    pub numa_nodes: Vec<i64>,
}

/// What one container has got, or all of the node together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Given {
    /// `namespace/pod/container`; empty for the node.
    pub container: String,
    /// Exclusive CPUs; of the node: those that may become exclusive.
    pub cpus: Vec<i64>,
    /// Memory.
    pub memory: Vec<Memory>,
    /// Devices.
    pub devices: Vec<Devices>,
}

/// What the kubelet has, and what it has given away.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeResources {
    /// All that it may give; `None`: a kubelet before 1.23 does not say.
    pub allocatable: Option<Given>,
    /// Containers that have got something, sorted.
    pub given: Vec<Given>,
}

impl NodeResources {
    /// Which of the kubelet's managers give something to containers now: then CPUs or memory nodes are the kubelet's to place.
    pub fn owners(&self) -> Vec<&'static str> {
        let cpus = self.given.iter().any(|given| !given.cpus.is_empty());
        let memory = self.given.iter().any(|given| !given.memory.is_empty());
        let owners = [
            cpus.then_some("cpuManagerPolicy: static"),
            memory.then_some("memoryManagerPolicy: Static"),
        ];
        owners.into_iter().flatten().collect()
    }
}

/// Asks the kubelet.
///
/// # Errors
/// [`CallError`].
pub async fn list(socket: &Path) -> Result<NodeResources, CallError> {
    let channel = connect(socket).await?;
    let mut client =
        PodResourcesListerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    let allocatable = client.get_allocatable_resources(AllocatableResourcesRequest {});
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
    let listed = client.list(ListPodResourcesRequest {});
    let listed = call("List", WITHIN, listed).await?;
    let mut given: Vec<Given> = listed
        .pod_resources
        .into_iter()
        .flat_map(|pod| {
            let of = format!("{}/{}", pod.namespace, pod.name);
            pod.containers.into_iter().map(move |container| Given {
                container: format!("{of}/{}", container.name),
                cpus: container.cpu_ids,
                memory: memory(container.memory),
                devices: devices(container.devices),
            })
        })
        .filter(|given| {
            !(given.cpus.is_empty() && given.memory.is_empty() && given.devices.is_empty())
        })
        .collect();
    given.sort();
    Ok(NodeResources { allocatable, given })
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
