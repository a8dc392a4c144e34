//! What containers and pods want of the memory that is placed.
//!
//! Source: `getRequestedResources` and `getPodRequestedResources` of pkg/kubelet/cm/memorymanager/policy_static.go,
//! 1.36. What the kubelet reads from a pod's status after an in-place resize is not known here: the spec counts.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::kube::pod::{Container, Pod};
use crate::kube::qos::QosClass;
use crate::kube::resources::{MEMORY, is_huge_pages};

/// Bytes by resource: `memory` and huge pages.
pub type MemoryDemand = BTreeMap<String, u64>;

/// A request that is not a number of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "pod {pod}, container {container}: the request of {quantity} of {resource} is not a whole number of bytes below 8Ei: write one"
)]
pub struct DemandError {
    /// Namespace and name.
    pub pod: String,
    /// The container.
    pub container: String,
    /// What it requests.
    pub resource: String,
    /// How much.
    pub quantity: String,
}

/// Whether the pod's containers get memory of their own: it is Guaranteed, and has no pod-level resources.
pub(super) fn is_placed(pod: &Pod) -> bool {
    pod.qos_class() == QosClass::Guaranteed && pod.pod_level_resources().is_none()
}

/// What a container requests.
pub(super) fn of_container(pod: &Pod, container: &Container) -> Result<MemoryDemand, DemandError> {
    let requests = container.resources.requests.iter();
    requests
        .filter(|(name, _)| *name == MEMORY || is_huge_pages(name))
        .map(|(name, quantity)| {
            let bytes = quantity
                .as_i64()
                .and_then(|bytes| u64::try_from(bytes).ok());
            let bytes = bytes.ok_or_else(|| DemandError {
                pod: pod.label(),
                container: container.name.clone(),
                resource: name.clone(),
                quantity: quantity.to_string(),
            })?;
            Ok((name.clone(), bytes))
        })
        .collect()
}

/// What a pod needs at once: its containers and sidecars together, or the largest init container beside the sidecars
/// that are started before it. Resources that no regular container requests do not count.
pub(super) fn of_pod(pod: &Pod) -> Result<MemoryDemand, DemandError> {
    let mut starting = MemoryDemand::new();
    let mut sidecars = MemoryDemand::new();
    for container in &pod.spec.init_containers {
        for (name, bytes) in of_container(pod, container)? {
            let beside = sidecars.entry(name.clone()).or_default();
            if container.is_sidecar() {
                *beside = beside.saturating_add(bytes);
            } else {
                let largest = starting.entry(name).or_default();
                *largest = beside.saturating_add(bytes).max(*largest);
            }
        }
    }
    let mut running = MemoryDemand::new();
    for container in &pod.spec.containers {
        for (name, bytes) in of_container(pod, container)? {
            let sum = running
                .entry(name.clone())
                .or_insert_with(|| sidecars.get(&name).copied().unwrap_or(0));
            *sum = sum.saturating_add(bytes);
        }
    }
    for (name, sum) in &mut running {
        *sum = starting.get(name).copied().unwrap_or(0).max(*sum);
    }
    Ok(running)
}
