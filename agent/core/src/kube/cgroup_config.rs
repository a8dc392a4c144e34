//! What the kubelet writes into the cgroups of pods and containers.
//!
//! Problem: requests, limits and the node's settings become control files of five kinds of cgroups: kubepods, the two
//! tiers below it, pods and containers. Approach: one value, [`CgroupConfig`], for each of them, computed from pods,
//! the operator's [`QosSettings`] and the machine's [`NodeCapacity`]. It is in the kubelet's terms (cgroup v1: shares,
//! quota, period) with the cgroup v2 weight beside it, so one value serves both hierarchies. A field that is `None` is
//! left alone. Pods must have API defaults applied ([`Pod::set_defaults`](crate::kube::pod::Pod::set_defaults)).
//!
//! Terms: a *tier* is the cgroup of all pods of a QoS class; *Memory QoS* is the kubelet's feature gate for
//! `memory.min`, `memory.low` and `memory.high`, on cgroup v2.
//!
//! Source: `pkg/kubelet/cm/helpers_linux.go` (`ResourceConfigForPod`), `pkg/kubelet/cm/qos_container_manager_linux.go`,
//! `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go` of 1.36, and opencontainers/cgroups v0.0.6 for weights.

mod cpu;
mod memory;
mod pod;
mod settings;
mod tiers;

use std::collections::BTreeMap;

use crate::kube::pod::Pod;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{HUGE_PAGES_PREFIX, ResourceList, Scope, pod_requests};

pub use cpu::{
    PERIOD_US, QUOTA_UNLIMITED, SHARES_MAX, SHARES_MIN, milli_cpu_to_quota_us, milli_cpu_to_shares,
    quota_us_to_milli_cpu, shares_to_milli_cpu, shares_to_weight, weight_to_shares,
};
pub use memory::swap_request_bytes;
pub use pod::{container_config, pod_config};
pub use settings::{MemoryReservationPolicy, NodeCapacity, QosSettings, SwapBehavior};
pub use tiers::{Tiers, tiers};

/// The contents of one cgroup's control files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CgroupConfig {
    /// v1 `cpu.shares`.
    pub cpu_shares: Option<u64>,
    /// v2 `cpu.weight`, from the shares.
    pub cpu_weight: Option<u64>,
    /// v1 `cpu.cfs_quota_us`; [`QUOTA_UNLIMITED`] for no limit. See [`Self::cpu_max`].
    pub cpu_quota_us: Option<i64>,
    /// v1 `cpu.cfs_period_us`.
    pub cpu_period_us: Option<u64>,
    /// v2 `memory.max`, v1 `memory.limit_in_bytes`. Below 0 on a tier for which others' reservations leave nothing.
    pub memory_max_bytes: Option<i64>,
    /// v2 `memory.min`: never reclaimed.
    pub memory_min_bytes: Option<u64>,
    /// v2 `memory.low`: reclaimed only if nothing unprotected is left.
    pub memory_low_bytes: Option<u64>,
    /// v2 `memory.high`: above it, allocations are slowed down and reclaim.
    pub memory_high_bytes: Option<u64>,
    /// v2 `memory.swap.max`. On v1, 0 means that memory and swap together have the limit of memory.
    pub swap_max_bytes: Option<u64>,
    /// `hugetlb.<size>.max` by page size, both in bytes. The kubelet limits every size of the host that is not listed
    /// here to zero (`cgroup_manager_linux.go`, `GetHugepageLimitsFromResources`).
    pub huge_pages_max_bytes: BTreeMap<u64, u64>,
    /// `pids.max`.
    pub pids_max: Option<u64>,
}

impl CgroupConfig {
    /// The text of v2 `cpu.max`. A quota of zero is unset, as it is to container runtimes.
    pub fn cpu_max(&self) -> Option<String> {
        let (quota, period) = (self.cpu_quota_us?, self.cpu_period_us?);
        match quota {
            0 => None,
            1.. => Some(format!("{quota} {period}")),
            _ => Some(format!("max {period}")),
        }
    }

    /// Sets shares and the weight that belongs to them.
    pub(crate) fn set_shares(&mut self, shares: u64) {
        self.cpu_shares = Some(shares);
        self.cpu_weight = Some(shares_to_weight(shares));
    }
}

/// Bytes of a quantity; a negative one, which the API refuses, is none.
fn bytes(quantity: &Quantity) -> u64 {
    u64::try_from(quantity.value()).unwrap_or(0)
}

/// The limits of huge pages in a list, by page size, both in bytes (`HugePageLimits`).
pub(crate) fn huge_pages_max_bytes(list: &ResourceList) -> BTreeMap<u64, u64> {
    let mut limits: BTreeMap<u64, u64> = BTreeMap::new();
    for (name, limit) in list {
        // A size that is no quantity is refused by the API.
        let size = name
            .strip_prefix(HUGE_PAGES_PREFIX)
            .and_then(|size| Quantity::parse(size).ok());
        if let Some(size) = size {
            // Two names of one size, such as 2Mi and 2048Ki, add up.
            let sum = limits.entry(bytes(&size)).or_default();
            *sum = sum.saturating_add(bytes(limit));
        }
    }
    limits
}

/// What a pod requests of huge pages of all sizes together, bytes. The kubelet limits it to that.
pub fn huge_page_request_bytes(pod: &Pod) -> u64 {
    let by_size = huge_pages_max_bytes(&pod_requests(pod, Scope::ALL));
    by_size.values().copied().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::NodeCapacity;
    use crate::kube::pod::Pod;

    /// A machine of 16 GiB, all of them for pods, and 4 GiB of swap.
    pub(crate) const NODE: NodeCapacity = NodeCapacity {
        is_cgroup_v2: true,
        memory_bytes: 16 << 30,
        swap_bytes: 4 << 30,
        allocatable_memory_bytes: 16 << 30,
        page_bytes: 4096,
    };

    pub(crate) fn pod(spec: &str) -> Pod {
        serde_json::from_str::<Pod>(&format!(r#"{{"spec":{spec}}}"#))
            .unwrap()
            .with_defaults()
    }
}
