//! Where Plimsoll can do better than the kubelet: one option each, with the complaint that it answers.
//!
//! Problem: users have asked the kubelet for these for years, and an operator who replaces its eviction loop must still
//! be able to have exactly its answers. Approach: [`EvictionOptions::kubelet`] is the kubelet, bit for bit, but for
//! memory that is lazily freed ([`page_cache`](crate::model::page_cache)), which a pod could hide in; every other
//! departure is a named option with its default argued in `docs/decisions/`, and `explain` shows both answers where
//! they differ.

use serde::{Deserialize, Serialize};

use crate::model::page_cache::PageCache;

/// The options of the eviction policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EvictionOptions {
    /// How many pods one pass may evict.
    pub victims: Victims,
    /// What counts as available memory.
    pub availability: Availability,
    /// Evict before the kernel's OOM killer runs, whatever the thresholds say. `None`: off.
    pub foresight: Option<Foresight>,
    /// What is tried before a pod is evicted for memory. `None`: nothing, as the kubelet.
    pub remedies: Option<Remedies>,
    /// Whether a pod whose disruption budget is used up is passed over where another choice exists.
    pub disruption_budgets: bool,
    /// The order in which the kernel's OOM killer is to take pods.
    pub oom_order: OomOrder,
    /// What the arbitrator's list of overused namespaces means for the order of pods.
    #[serde(default)]
    pub overuse_ranking: OveruseRanking,
    /// Whether the kernel's OOM killer takes a pod as a whole (`memory.oom.group` on the pod's cgroup;
    /// kubernetes#117793).
    pub pod_oom_group: bool,
    /// Leave the kernel an order in which it may kill when the agent does not answer. `None`: off.
    #[serde(default)]
    pub last_line: Option<LastLine>,
    /// Evict slowly while the memory of an evicted pod does not come back. `None`: off.
    #[serde(default)]
    pub breaker: Option<Breaker>,
}

/// What is done about CPU time. Each is off where it is `None`, as in the kubelet, which sets a quota and leaves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CpuOptions {
    /// Let a throttled container exceed its CPU limit for a while when the node has idle CPU time (kubernetes#67577,
    /// #51135).
    #[serde(default)]
    pub burst: Option<CpuBurst>,
    /// Hold back pods without a CPU request while pods with one wait.
    #[serde(default)]
    pub suppress: Option<CpuSuppress>,
}

/// Bursts above a CPU limit. All shares are per cent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CpuBurst {
    /// `cpu.max.burst` as a part of the quota, 100 at most (the kernel's bound); 0: this step is left out.
    pub burst_percent: u32,
    /// The largest quota as a part of the limit's; 100: this step is left out.
    pub quota_percent: u32,
    /// How much CPU time below its limit a container can save to use above it: what its limit allows in this time,
    /// nanoseconds.
    pub allowance_ns: u64,
    /// How busy the shared CPUs may be.
    pub node_use_percent: u32,
    /// How much of the time another pod that has not got its request may wait.
    pub wait_percent: u32,
}

impl Default for CpuBurst {
    fn default() -> Self {
        Self {
            burst_percent: 100,
            quota_percent: 200,
            allowance_ns: 60_000_000_000,
            node_use_percent: 80,
            wait_percent: 10,
        }
    }
}

/// Holding back pods without requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CpuSuppress {
    /// How much of the time a pod that comes first may wait, per cent.
    pub wait_percent: u32,
    /// What no pod is held below, thousandths of a CPU; 10 at least, for the kernel takes no quota below 1 ms.
    pub floor_milli: u64,
    /// The longest at one time, nanoseconds, and over time not more than half of it.
    pub budget_ns: u64,
}

impl Default for CpuSuppress {
    fn default() -> Self {
        Self {
            wait_percent: 10,
            floor_milli: 100,
            budget_ns: 60_000_000_000,
        }
    }
}

/// What the pods of a namespace may use of this node together before they go first among equals
/// ([`share`](crate::policy::eviction::share)).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceShare {
    /// The namespace.
    pub namespace: String,
    /// Their working sets, bytes; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Their CPU time, thousandths of a CPU; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
}

/// What it means for a pod that its namespace uses more of the cluster than it deserves
/// ([`share`](crate::policy::eviction::share)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OveruseRanking {
    /// Nothing, as in the kubelet.
    #[default]
    Ignore,
    /// It goes first among pods that exceed their requests alike and have the same priority.
    AmongEquals,
    /// It goes first among pods that exceed their requests alike, whatever their priority.
    BeforePriority,
}

/// How many pods one pass may evict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Victims {
    /// One, as the kubelet.
    #[default]
    One,
    /// As many as the threshold and its minimum reclaim need, and no more (kubernetes#30173, #31362, #56152).
    Targeted,
}

/// What counts as available memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// Capacity minus working set, as the kubelet: active page cache counts as used, free swap as nothing.
    #[default]
    Kubelet,
    /// What the kernel could hand out: page cache that can go counts as available, and so does free swap for what can
    /// move there (kubernetes#43916, #138372, enhancements#5433).
    Reclaimable,
}

impl Availability {
    /// What of so much page cache does not count as used, bytes.
    pub(crate) fn cache_bytes(self, cache: PageCache) -> u64 {
        match self {
            Self::Kubelet => cache.inactive_bytes,
            Self::Reclaimable => cache.all_bytes(),
        }
    }
}

/// Evicting before the kernel's OOM killer has to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Foresight {
    /// How far ahead, nanoseconds: if memory keeps shrinking at this rate, the kernel has none left by then.
    pub horizon_ns: u64,
}

/// Steps before an eviction, in this order. A step with a budget of 0 is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Remedies {
    /// How long the kernel may reclaim page cache and swap from the first in the ranking (`memory.reclaim`),
    /// nanoseconds.
    pub reclaim_budget_ns: u64,
    /// How long the first in the ranking may be held at its present size (`memory.high`), nanoseconds; never longer
    /// than [`THROTTLE_MAX_NS`](crate::policy::eviction::remedies::THROTTLE_MAX_NS).
    pub throttle_budget_ns: u64,
    /// How long a notified pod may take to give memory back by itself, nanoseconds.
    pub notify_budget_ns: u64,
}

/// A last line inside the kernel ([`last_line`](crate::policy::oom::last_line)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LastLine {
    /// A crossing is to be answered by a sample within this time, nanoseconds.
    pub acknowledge_within_ns: u64,
    /// What was left in the kernel holds for so long after the agent was last heard of, nanoseconds.
    pub expires_after_ns: u64,
}

impl Default for LastLine {
    /// An agent that is alive answers within milliseconds. One that has ended is restarted within seconds, or after
    /// some minutes by a supervisor that waits longer after each failure; a leak of some MB/s takes minutes to the
    /// line, too.
    fn default() -> Self {
        Self {
            acknowledge_within_ns: 200_000_000,
            expires_after_ns: 600_000_000_000,
        }
    }
}

/// A limit on evictions after one that freed next to nothing ([`breaker`](crate::policy::eviction::breaker)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Breaker {
    /// At most one pod is evicted in this time, nanoseconds.
    pub interval_ns: u64,
}

impl Default for Breaker {
    /// The kubelet's `evictionMonitoringPeriod`.
    fn default() -> Self {
        Self {
            interval_ns: 10_000_000_000,
        }
    }
}

/// The order in which the kernel's OOM killer is to take pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OomOrder {
    /// `oom_score_adj` by QoS class and request when a container starts, as the kubelet.
    #[default]
    Kubelet,
    /// By the eviction ranking, recomputed when usage, requests or limits change (kubernetes#142230, #111356).
    Dynamic,
}

impl EvictionOptions {
    /// Exactly the kubelet.
    pub const fn kubelet() -> Self {
        Self {
            victims: Victims::One,
            availability: Availability::Kubelet,
            foresight: None,
            remedies: None,
            disruption_budgets: false,
            oom_order: OomOrder::Kubelet,
            overuse_ranking: OveruseRanking::Ignore,
            pod_oom_group: false,
            last_line: None,
            breaker: None,
        }
    }
}

impl Default for EvictionOptions {
    /// The kubelet with the breaker: its default is argued in `docs/decisions/0033-breaker.md`.
    fn default() -> Self {
        Self {
            breaker: Some(Breaker::default()),
            ..Self::kubelet()
        }
    }
}
