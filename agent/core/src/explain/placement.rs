//! Where pods run, and why there, as it can be read.

use serde::{Deserialize, Serialize};

use super::pod::{NoSuchPod, find};
use crate::kube::pod::{Container, Pod};
use crate::kube::qos::QosClass;
use crate::model::state::NodeState;
use crate::placement::assignments::Assignments;
use crate::placement::cpu_set::CpuSet;
use crate::placement::cpu_static::exclusive_cpus;
use crate::placement::device::Held;
use crate::placement::node::{NodePlacement, PlacementSettings, Reason};
use crate::placement::numa_mask::NumaMask;
use crate::placement::topology_manager::{Alternative, Loss, Offer, ResourceOffer};

/// The placement of a node, and what of it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementExplanation {
    /// The settings that it follows.
    pub settings: PlacementSettings,
    /// CPUs of containers without exclusive CPUs.
    pub shared_pool: CpuSet,
    /// CPUs that are kept for the system.
    pub reserved: CpuSet,
    /// What may still be handed out, and has been, of each NUMA node's memory; empty unless memoryManagerPolicy is
    /// Static.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<NodeMemoryLeft>,
    /// The pods, in the order in which they were given.
    pub pods: Vec<PodPlacement>,
}

/// A resource of a NUMA node, bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMemoryLeft {
    /// The node.
    pub node: u32,
    /// `memory`, or huge pages of one size.
    pub resource: String,
    /// What containers may have.
    pub allocatable_bytes: u64,
    /// How much of that is free.
    pub free_bytes: u64,
}

/// Where a pod runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPlacement {
    /// `namespace/name`.
    pub pod: String,
    /// Its class: only Guaranteed pods get anything of their own.
    pub qos: QosClass,
    /// Why it must not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its containers, as they are started.
    pub containers: Vec<ContainerPlacement>,
    /// How it was aligned: once for each container or once for the pod. Empty if topologyManagerPolicy is none, or the
    /// pod was placed before a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alignments: Vec<AlignmentView>,
}

/// Where a container runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPlacement {
    /// Its name.
    pub name: String,
    /// How many exclusive CPUs it requests; 0 if it runs in the shared pool.
    pub wanted_cpus: u32,
    /// The CPUs that it runs on; `None` if the pod was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Whether the CPUs are exclusive.
    pub exclusive: bool,
    /// The NUMA nodes of its memory; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_nodes: Option<NumaMask>,
    /// Its devices, by resource.
    #[serde(default, skip_serializing_if = "Held::is_empty")]
    pub devices: Held,
}

/// How hints were merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlignmentView {
    /// The container; `None` for the pod as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The merged hint's nodes; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NumaMask>,
    /// Whether every provider likes that best.
    pub preferred: bool,
    /// Whether the policy admits it.
    pub admitted: bool,
    /// What each provider can do.
    pub offers: Vec<OfferView>,
    /// What was not taken, and why.
    pub alternatives: Vec<AlternativeView>,
    /// Alternatives that are not shown.
    pub left_out: usize,
}

/// What a provider can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferView {
    /// `cpu`, `memory` or `devices`.
    pub provider: String,
    /// The resource, if it says anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The best nodes for it alone; `None`: see `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<NumaMask>,
    /// In words.
    pub text: String,
}

/// A set of nodes that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlternativeView {
    /// The nodes.
    pub nodes: NumaMask,
    /// Why not, in words.
    pub why: String,
}

/// Why a placement cannot be explained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementNotExplained {
    /// No policy is on.
    #[error(
        "nothing is placed on this node: cpuManagerPolicy and memoryManagerPolicy are none; all containers share all CPUs"
    )]
    NothingPlaced,
    /// No pod has that name, or several have.
    #[error(transparent)]
    Pod(#[from] NoSuchPod),
}

/// Explains where the pods of a node are, or one of them.
///
/// # Errors
///
/// If nothing is placed here, or there is no such pod.
pub fn placement_of(
    state: &NodeState,
    pod: Option<&str>,
) -> Result<PlacementExplanation, PlacementNotExplained> {
    let node_placement = state
        .placement
        .as_ref()
        .ok_or(PlacementNotExplained::NothingPlaced)?;
    Ok(match pod {
        Some(name) => placement(node_placement, [&*find(state, name)?.pod]),
        None => placement(node_placement, state.pods.values().map(|pod| &*pod.pod)),
    })
}

/// Explains the placement of these pods.
#[must_use]
pub fn placement<'a>(
    placement: &NodePlacement,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> PlacementExplanation {
    let assignments = placement.assignments();
    PlacementExplanation {
        settings: placement.settings().clone(),
        shared_pool: assignments.shared_pool,
        reserved: placement.reserved_cpus(),
        memory: memory_left(placement),
        pods: pods
            .into_iter()
            .map(|pod| of_pod(placement, &assignments, pod))
            .collect(),
    }
}

fn memory_left(placement: &NodePlacement) -> Vec<NodeMemoryLeft> {
    let nodes = placement
        .memory()
        .into_iter()
        .flat_map(|memory| memory.nodes());
    let left = nodes.flat_map(|(node, books)| {
        books.memory.iter().map(|(resource, table)| NodeMemoryLeft {
            node: *node,
            resource: resource.clone(),
            allocatable_bytes: table.allocatable,
            free_bytes: table.free,
        })
    });
    left.collect()
}

fn of_pod(placement: &NodePlacement, assignments: &Assignments, pod: &Pod) -> PodPlacement {
    let uid = pod.uid();
    let refused = assignments.refused.get(&uid).cloned();
    let containers: Vec<&Container> = pod
        .spec
        .init_containers
        .iter()
        .chain(&pod.spec.containers)
        .collect();
    let of_container = |container: &&Container| {
        let on = assignments.cpus(&uid, &container.name);
        ContainerPlacement {
            name: container.name.clone(),
            wanted_cpus: exclusive_cpus(pod, container),
            cpus: refused.is_none().then_some(on.cpus),
            exclusive: on.exclusive,
            memory_nodes: assignments.nodes(&uid, &container.name),
            devices: assignments
                .get(&uid, &container.name)
                .map(|assignment| assignment.devices.clone())
                .unwrap_or_default(),
        }
    };
    PodPlacement {
        pod: pod.full_name(),
        qos: pod.qos_class(),
        containers: containers.iter().map(of_container).collect(),
        alignments: placement.reasons(&uid).iter().map(alignment).collect(),
        refused,
    }
}

fn alignment(reason: &Reason) -> AlignmentView {
    AlignmentView {
        container: reason.container.clone(),
        nodes: reason.hint.mask,
        preferred: reason.hint.preferred,
        admitted: reason.admitted,
        offers: reason.explanation.offers.iter().map(offer).collect(),
        // Where any node will do, none was turned down.
        alternatives: match (reason.hint.mask, reason.admitted) {
            (None, true) => Vec::new(),
            _ => reason
                .explanation
                .alternatives
                .iter()
                .map(alternative)
                .collect(),
        },
        left_out: reason.explanation.left_out,
    }
}

fn offer(offer: &ResourceOffer) -> OfferView {
    OfferView {
        provider: offer.provider.to_owned(),
        resource: offer.resource.clone(),
        best: match offer.offer {
            Offer::On { best, .. } => Some(best),
            Offer::Anywhere | Offer::Nowhere => None,
        },
        text: offer.to_string(),
    }
}

fn alternative(alternative: &Alternative) -> AlternativeView {
    let why = match &alternative.loss {
        Loss::NotOfferedBy(names) => format!("not enough there: {}", names.join(", ")),
        Loss::NotPreferredBy(names) => format!(
            "possible, but elsewhere fewer nodes would do: {}",
            names.join(", ")
        ),
        Loss::MoreNodes => "as good, on more nodes".to_owned(),
        Loss::FurtherApart { sum, best } => {
            format!(
                "as good, and its nodes are further apart (distances add up to {sum}, not {best})"
            )
        }
        Loss::HigherNumber => "as good, and its number is higher".to_owned(),
        Loss::NotReached => {
            "the policy does not allow it, or the search did not get there".to_owned()
        }
    };
    AlternativeView {
        nodes: alternative.mask,
        why,
    }
}
