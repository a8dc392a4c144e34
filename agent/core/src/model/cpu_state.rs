//! What is remembered of CPU time: what pods had of it, and what was changed for them.
//!
//! The rules are in [`cpu`](crate::policy::cpu).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;
use crate::model::bandwidth::{CgroupCpu, CpuWhy, SharedCpus, WaitSource, Waiter};

/// All of the time, in the unit of shares: hundredths of a per cent.
pub const WHOLE: u32 = 10_000;

/// What is known of CPU time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CpuState {
    /// When the newest reading was taken, nanoseconds.
    pub read_ns: Option<u64>,
    /// The time between that and the one before, nanoseconds.
    pub interval_ns: u64,
    /// The shared CPUs then.
    pub shared: SharedCpus,
    /// How busy they were meanwhile, in hundredths of a per cent.
    pub busy: u32,
    /// How waiting is measured.
    pub source: Option<WaitSource>,
    /// Pods with processes.
    pub pods: BTreeMap<PodUid, PodCpuState>,
    /// The pods that come first and waited longest, at most two.
    pub waiters: Vec<Waiter>,
    /// The pods that are held back.
    pub suppression: Suppression,
}

/// One pod.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PodCpuState {
    /// CPU time used in all, microseconds.
    pub usage_us: u64,
    /// Time waited in all, microseconds.
    pub waited_us: Option<u64>,
    /// What it used since the reading before, thousandths of a CPU.
    pub used_milli: u64,
    /// How much of that time it waited, in hundredths of a per cent, never above [`WHOLE`]; `None`: not measured.
    pub waited: Option<u32>,
    /// Its cgroups, by the name of the container; the pod's own is "".
    pub cgroups: BTreeMap<Arc<str>, CgroupState>,
}

/// One cgroup.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CgroupState {
    /// The newest reading.
    pub reading: CgroupCpu,
    /// Over how long the figures below were counted, nanoseconds; 0 at first sight.
    pub counted_ns: u64,
    /// Periods.
    pub periods: u64,
    /// Those in which it was throttled.
    pub throttled: u64,
    /// Those in which it used more than its quota.
    pub bursts: u64,
    /// CPU time used, microseconds.
    pub used_us: u64,
    /// What it is given above its limit.
    pub grant: Grant,
}

/// What a cgroup is given above its limit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// Whether it has burst.
    pub burst: bool,
    /// Its quota, per cent of the limit.
    pub quota_percent: u32,
    /// What it has saved under its limit, microseconds of CPU time.
    pub allowance_us: u64,
    /// Since when it was neither throttled nor above its quota, nanoseconds.
    pub quiet_since_ns: Option<u64>,
    /// How long it must be quiet before a step is taken back, nanoseconds.
    pub patience_ns: u64,
    /// The newest step that was taken back because it was quiet: when, and what it had.
    pub taken_back: Option<(u64, bool, u32)>,
    /// When it may be given more, nanoseconds.
    pub not_before_ns: u64,
    /// Why it has what it has; `None`: nothing was ever changed.
    pub why: Option<CpuWhy>,
}

impl Default for Grant {
    fn default() -> Self {
        Self {
            burst: false,
            quota_percent: 100,
            allowance_us: 0,
            quiet_since_ns: None,
            patience_ns: PATIENCE_NS.0,
            taken_back: None,
            not_before_ns: 0,
            why: None,
        }
    }
}

/// How long a cgroup must have been quiet before a step is taken back, nanoseconds: at first, and at most.
pub const PATIENCE_NS: (u64, u64) = (10_000_000_000, 640_000_000_000);

/// The pods that are held back.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Suppression {
    /// The quota of each, microseconds per period.
    pub held: BTreeMap<PodUid, u64>,
    /// Since when at least one pod is held back, nanoseconds.
    pub since_ns: Option<u64>,
    /// How much of the budget is used up, nanoseconds.
    pub spent_ns: u64,
    /// It was used up, and half of it is not back yet.
    pub is_spent: bool,
    /// Readings in a row in which a pod waited too long for CPU time.
    #[serde(rename = "looks")]
    pub consecutive_waits: u32,
    /// Since when no pod has waited too long, nanoseconds.
    pub calm_since_ns: Option<u64>,
    /// Since when every held pod is at the floor, nanoseconds.
    pub at_floor_since_ns: Option<u64>,
    /// When it may be tried again, nanoseconds.
    pub not_before_ns: u64,
    /// Why it is as it is; `None`: no pod was ever held back.
    pub why: Option<CpuWhy>,
}
