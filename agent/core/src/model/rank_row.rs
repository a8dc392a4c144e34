//! One pod in a ranking, and the steps by which two are compared.
//!
//! What a comparison needs is computed once for each pod; [`rank`](crate::policy::eviction::rank) compares and sorts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kube::pod::Pod;
use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::kube::quantity::Quantity;
use crate::kube::resources::{self, CPU, EPHEMERAL_STORAGE, MEMORY};

/// Units of a resource, counted in 10⁻⁹ because requests may have fractions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Nanos(pub(crate) i128);

impl Nanos {
    const PER_UNIT: i128 = 1_000_000_000;

    /// Whole units, such as bytes.
    pub const fn from_units(units: u64) -> Self {
        // Below 2^64 × 2^30.
        Self(units as i128 * Self::PER_UNIT)
    }

    /// Any quantity, clamped to ±2¹²⁷ nanos.
    pub fn from_quantity(quantity: &Quantity) -> Self {
        Self(quantity.nanos())
    }

    /// In whole units, rounded up, between 0 and 2⁶⁴ - 1.
    pub fn units_up(self) -> u64 {
        let units = self.0.max(0).saturating_add(Self::PER_UNIT - 1) / Self::PER_UNIT;
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// In whole units, rounded down, between -2⁶³ and 2⁶³ - 1.
    pub fn units_down(self) -> i64 {
        let units = self.0.div_euclid(Self::PER_UNIT);
        i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX })
    }

    /// `part` of `whole` of it, rounded down. `whole` is not 0.
    pub(crate) const fn share(self, part: u64, whole: u64) -> Self {
        let (part, whole) = (part as i128, whole as i128);
        // Below 2^127 in two steps: quotient and remainder are each multiplied by less than 2^64.
        let (quotient, rest) = (self.0.div_euclid(whole), self.0.rem_euclid(whole));
        Self(
            quotient
                .saturating_mul(part)
                .saturating_add(rest * part / whole),
        )
    }

    /// What `self` has beyond `other`.
    pub(crate) const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// One pod in a ranking. A field that the ranking does not use stays at its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankRow {
    /// Whose row it is; the last tie-break.
    pub uid: PodUid,
    /// Whether there are statistics for the pod at all. A missing single figure counts as zero instead.
    pub stats_known: bool,
    /// Only its cgroup is known: how late it goes among such pods, from 1, by QoS class. 0 for all others.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub unnamed: u8,
    /// Whether it is never evicted (static, mirror and critical pods). It is ranked all the same.
    pub exempt: bool,
    /// The pod's priority, 0 if it has none.
    pub priority: i32,
    /// What its namespace uses beyond what it deserves of the cluster, in thousandths of the cluster, 1000 at most;
    /// only with [`OveruseRanking::BeforePriority`](crate::model::options::OveruseRanking::BeforePriority), else 0.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub overused: u16,
    /// What its namespace uses beyond its share, in thousandths of the share:
    /// [`share`](crate::policy::eviction::share). 0 without one.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub over_share: u16,
    /// What the pod uses, in the signal's unit: bytes, inodes or processes.
    pub usage: u64,
    /// Usage above this exceeds the pod's request.
    pub allowance: Nanos,
    /// What is subtracted from usage before amounts are compared.
    ///
    /// The same as `allowance`, except for inodes: nothing requests inodes, so the allowance is zero, yet the kubelet
    /// subtracts the pod's disk request in bytes.
    pub request: Nanos,
}

impl RankRow {
    /// A row of the memory ranking. `usage_bytes` is the working set; `None` if there are no statistics.
    pub fn memory(pod: &Pod, usage_bytes: Option<u64>) -> Self {
        let request = Nanos::from_quantity(&resources::eviction_request(pod, MEMORY));
        Self::new(pod, usage_bytes, request, request)
    }

    /// A row of the disk ranking by bytes.
    pub fn disk_bytes(pod: &Pod, usage_bytes: Option<u64>) -> Self {
        let request = Nanos::from_quantity(&resources::eviction_request(pod, EPHEMERAL_STORAGE));
        Self::new(pod, usage_bytes, request, request)
    }

    /// A row of the disk ranking by inodes; see [`Self::request`].
    pub fn disk_inodes(pod: &Pod, inodes: Option<u64>) -> Self {
        let request = Nanos::from_quantity(&resources::eviction_request(pod, EPHEMERAL_STORAGE));
        Self::new(pod, inodes, Nanos::default(), request)
    }

    /// A row of the process ranking. Nothing requests processes.
    pub fn pids(pod: &Pod, processes: Option<u64>) -> Self {
        Self::new(pod, processes, Nanos::default(), Nanos::default())
    }

    /// A row of the ranking by CPU time: `milli_cpus` of `pod` against its CPU request.
    pub fn cpu(pod: &Pod, milli_cpus: Option<u64>) -> Self {
        let request = Nanos::from_quantity(&resources::eviction_request(pod, CPU));
        let milli = Nanos(request.0.saturating_mul(1000));
        Self::new(pod, milli_cpus, milli, milli)
    }

    /// A row of the ranking by disk traffic. Nothing requests it.
    pub fn io(pod: &Pod, bytes_per_s: Option<u64>) -> Self {
        Self::new(pod, bytes_per_s, Nanos::default(), Nanos::default())
    }

    fn new(pod: &Pod, usage: Option<u64>, allowance: Nanos, request: Nanos) -> Self {
        Self {
            uid: pod.uid(),
            stats_known: usage.is_some(),
            unnamed: match pod.qos_class() {
                _ if !pod.is_unnamed() => 0,
                QosClass::BestEffort => 1,
                QosClass::Burstable => 2,
                QosClass::Guaranteed => 3,
            },
            exempt: pod.is_critical(),
            priority: pod.priority(),
            overused: 0,
            over_share: 0,
            usage: usage.unwrap_or(0),
            allowance,
            request,
        }
    }

    /// Whether the pod uses more than it requested; never known without statistics.
    pub fn exceeds_request(&self) -> bool {
        self.stats_known && Nanos::from_units(self.usage) > self.allowance
    }

    /// Usage minus request, negative below it.
    pub fn excess(&self) -> Nanos {
        Nanos::from_units(self.usage).minus(self.request)
    }
}

/// One step of a ranking. `Less` means: evicted earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Comparator {
    /// A pod that the API server has named is evicted before one of which only the cgroup is known; among those, the
    /// QoS class. Beside a kubelet only.
    Unnamed,
    /// A pod without statistics is evicted first: its usage is unknown and may be the cause.
    MissingStats,
    /// A pod above its request is evicted before one within it.
    ExceedsRequest,
    /// The namespace that is further above what it deserves of the cluster goes first:
    /// `overuseRanking: BeforePriority`. The kubelet does not have this.
    Overused,
    /// The lower priority is evicted first.
    Priority,
    /// The namespace that is further above its share goes first: options `namespaceShares`, and
    /// `overuseRanking: AmongEquals` with what it deserves of the cluster. The kubelet does not have this.
    OverShare,
    /// The larger usage minus request is evicted first.
    UsageOverRequest,
    /// The smaller UID is evicted first. The kubelet defines no order for such pods.
    Uid,
}

impl fmt::Display for Comparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unnamed => "being known by more than its cgroup, or by its QoS class",
            Self::MissingStats => "having no statistics",
            Self::ExceedsRequest => "exceeding its request",
            Self::Overused => "its namespace using more of the cluster than it deserves",
            Self::Priority => "lower priority",
            Self::OverShare => "its namespace being further above its share",
            Self::UsageOverRequest => "more usage over request",
            Self::Uid => "UID only",
        })
    }
}
