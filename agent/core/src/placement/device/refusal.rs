//! Why a container gets no devices, and what would have to be free.

use std::collections::BTreeMap;

use thiserror::Error;

use super::Ids;
use crate::kube::pod_uid::PodUid;

/// Why a container gets no devices.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("pod {pod}, container {container}: {reason}")]
pub struct DeviceError {
    /// Namespace and name.
    pub pod: String,
    /// The container.
    pub container: String,
    /// Why.
    pub reason: Box<Reason>,
}

/// The reasons of a [`DeviceError`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reason {
    /// It holds another number of them.
    #[error(
        "it holds {held} of {resource} and now wants {wanted}: a container's devices cannot change, make a new pod"
    )]
    Changed {
        /// The resource.
        resource: String,
        /// How many it has.
        held: usize,
        /// How many it wants.
        wanted: usize,
    },
    /// The resource was removed.
    #[error("nothing offers {resource} any more: wait until its device plugin is back")]
    Unregistered {
        /// The resource.
        resource: String,
    },
    /// All its devices are unhealthy.
    #[error("no device of {resource} is healthy: {wanted} would have to be")]
    NoneHealthy {
        /// The resource.
        resource: String,
        /// How many it wants.
        wanted: usize,
    },
    /// What it holds is not healthy any more.
    #[error("its devices of {resource} are no longer healthy: {ids}", ids = listed(.ids))]
    Unhealthy {
        /// The resource.
        resource: String,
        /// Which.
        ids: Ids,
    },
    /// Too few are free.
    #[error(
        "{wanted} of {resource} are wanted and {free} are free (near to NUMA node: {per_node}): {missing} more would have to be \
         free{unhealthy}; held by {holders}",
        per_node = counts_shown(.per_node), missing = .wanted.saturating_sub(*.free),
        unhealthy = if *.unhealthy == 0 { String::new() } else { format!(", {} are not healthy", .unhealthy) },
        holders = holders_shown(.holders),
    )]
    TooFew {
        /// The resource.
        resource: String,
        /// How many it wants.
        wanted: usize,
        /// How many it could have.
        free: usize,
        /// How many of these each NUMA node is near to.
        per_node: BTreeMap<u32, usize>,
        /// How many are not healthy.
        unhealthy: usize,
        /// The holders of the others: pod and container.
        holders: Vec<(PodUid, String)>,
    },
}

fn listed(ids: &Ids) -> String {
    ids.iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

fn counts_shown(counts: &BTreeMap<u32, usize>) -> String {
    let counts = counts
        .iter()
        .map(|(node, count)| format!("{count} to {node}"));
    let counts: Vec<String> = counts.collect();
    if counts.is_empty() {
        "none".to_owned()
    } else {
        counts.join(", ")
    }
}

fn holders_shown(holders: &[(PodUid, String)]) -> String {
    let holders = holders
        .iter()
        .map(|(pod, container)| format!("pod {pod} container {container}"));
    let holders: Vec<String> = holders.collect();
    if holders.is_empty() {
        "no container".to_owned()
    } else {
        holders.join(", ")
    }
}
