//! What the operator and the machine bring to cgroup configuration.

use super::PERIOD_US;

/// What a KubeletConfiguration says about the cgroups of pods. The default is the kubelet's.
///
/// `pkg/kubelet/apis/config/v1beta1/defaults.go` of 1.36.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QosSettings {
    /// `cpuCFSQuota`: whether CPU limits are enforced.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod` in microseconds.
    pub cpu_period_us: u64,
    /// `podPidsLimit`; `None` for no limit.
    pub pod_pids_limit: Option<u64>,
    /// `featureGates.MemoryQoS`.
    pub memory_qos: bool,
    /// `memoryThrottlingFactor`, above 0 and at most 1: how far from the request to the limit `memory.high` lies.
    pub memory_throttling_factor: f64,
    /// `memoryReservationPolicy`.
    pub memory_reservation_policy: MemoryReservationPolicy,
    /// `memorySwap.swapBehavior`.
    pub swap_behavior: SwapBehavior,
    /// `qosReserved.memory` in percent, 0 to 100, where `featureGates.QOSReserved` is on; `None`: the tiers are not
    /// limited.
    pub qos_reserved_memory_percent: Option<i64>,
}

impl Default for QosSettings {
    fn default() -> Self {
        Self {
            cpu_cfs_quota: true,
            cpu_period_us: PERIOD_US,
            pod_pids_limit: None,
            memory_qos: false,
            memory_throttling_factor: 0.9,
            memory_reservation_policy: MemoryReservationPolicy::None,
            swap_behavior: SwapBehavior::NoSwap,
            qos_reserved_memory_percent: None,
        }
    }
}

impl QosSettings {
    /// Whether requests are protected from reclaim on this node.
    pub(super) fn reserves_memory(&self) -> bool {
        self.memory_reservation_policy == MemoryReservationPolicy::TieredReservation
    }
}

/// `memoryReservationPolicy`: whether requests are protected from reclaim. Takes part with Memory QoS only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryReservationPolicy {
    /// They are not; `memory.high` alone is set.
    #[default]
    None,
    /// Those of Guaranteed pods by `memory.min`, those of Burstable pods by `memory.low`.
    TieredReservation,
}

/// `memorySwap.swapBehavior`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SwapBehavior {
    /// Pods do not swap. Also the meaning of an empty field.
    #[default]
    NoSwap,
    /// Containers of Burstable pods may swap in proportion to what they request of the node's memory.
    LimitedSwap,
}

/// What of the machine takes part in its cgroups' configuration. The default is one of which nothing is known: no value
/// that depends on it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeCapacity {
    /// Whether memory is accounted on cgroup v2: v1 has neither Memory QoS nor a swap limit of its own.
    pub is_cgroup_v2: bool,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Swap, bytes.
    pub swap_bytes: u64,
    /// Memory that pods may have, without the eviction threshold
    /// ([`allocatable_absolute`](crate::kube::node_allocatable::NodeResources::allocatable_absolute)), bytes. 0: not
    /// known.
    pub allocatable_memory_bytes: u64,
    /// Size of a page, bytes. 0: not known.
    pub page_bytes: u64,
}
