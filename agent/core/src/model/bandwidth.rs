//! CPU time as pods get it and wait for it: readings, the two settings that are changed for it, and the reasons.
//!
//! Terms, as in Documentation/scheduler/sched-bwc.rst of the kernel: a cgroup may use its *quota* of CPU time in each
//! *period*; when that is used up it is *throttled* until the next. *Burst* is what it may save of quotas that it did
//! not use, and use later. A cgroup *waits* while a task of it could run and does not.
//!
//! Readings hold totals as the kernel counts them, so that one which was missed loses nothing; a pod of which no figure
//! has moved is left out.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;
use crate::model::amount::{In, Unit};

/// The CPUs and the pods on them, at one time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CpuReading {
    /// When it was taken, a little before the event: CLOCK_MONOTONIC, nanoseconds.
    pub read_ns: u64,
    /// The CPUs that pods share: all that are not exclusive to a container.
    pub shared: SharedCpus,
    /// How waiting was measured; `None`: it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<WaitSource>,
    /// Pods with a cgroup of which some figure has moved, by ascending UID.
    pub pods: Vec<PodCpu>,
}

/// CPUs that pods share, from `/proc/stat`. Totals since boot, of all of them together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SharedCpus {
    /// How many.
    pub cpus: u32,
    /// Time in which they did anything, microseconds.
    pub busy_us: u64,
    /// Time in all, microseconds.
    pub total_us: u64,
}

/// How the time that a pod waited was measured: the best that the host has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitSource {
    /// `some` of the cgroup's `cpu.pressure` (PSI): time in which at least one task waited.
    Pressure,
    /// `run_delay` of each task's `/proc/TID/schedstat`. Tasks that wait at the same time add up; those of a task that
    /// has ended since the reading before are missing.
    Tasks,
}

impl fmt::Display for WaitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pressure => "cpu.pressure",
            Self::Tasks => "schedstat of its tasks",
        })
    }
}

/// One pod. Totals since its cgroup was made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodCpu {
    /// Which pod.
    pub uid: PodUid,
    /// CPU time that it has used, microseconds.
    pub usage_us: u64,
    /// Time that it has waited, microseconds; `None`: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_us: Option<u64>,
    /// Its own cgroup, then its containers'.
    pub cgroups: Vec<CgroupCpu>,
}

/// The bandwidth of one cgroup. Totals since it was made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CgroupCpu {
    /// The name of the container's cgroup; empty for the pod's own.
    pub container: Arc<str>,
    /// `cpu.max`, second number, microseconds.
    pub period_us: u64,
    /// `cpu.max`, first number, microseconds; `None` for no limit.
    pub quota_us: Option<u64>,
    /// The quota that the container runtime or the kubelet set; equal to `quota_us` unless Plimsoll has changed it.
    #[serde(rename = "own_quota_us")]
    pub configured_quota_us: Option<u64>,
    /// `cpu.max.burst`, microseconds; `None`: the kernel does not have it.
    pub burst_us: Option<u64>,
    /// The burst that the container runtime or the kubelet set.
    #[serde(rename = "own_burst_us")]
    pub configured_burst_us: Option<u64>,
    /// `nr_periods` of `cpu.stat`: periods in which it had anything to do.
    pub periods: u64,
    /// `nr_throttled`: periods in which it was throttled.
    pub throttled: u64,
    /// `nr_bursts`: periods in which it used more than its quota.
    pub bursts: u64,
    /// CPU time that it has used, microseconds.
    pub usage_us: u64,
}

/// What is changed of a cgroup. In the order in which it is set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuKnob {
    /// The quota of `cpu.max`; v1: `cpu.cfs_quota_us`.
    Quota,
    /// `cpu.max.burst`; v1: `cpu.cfs_burst_us`.
    Burst,
}

impl fmt::Display for CpuKnob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Quota => "cpu.max",
            Self::Burst => "cpu.max.burst",
        })
    }
}

/// A pod that waits for CPU time. Shares are in hundredths of a per cent of the time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiter {
    /// `namespace/name`.
    pub pod: Arc<str>,
    /// Its identity.
    pub uid: PodUid,
    /// How much of the time it waited.
    pub waited: u32,
    /// How that was measured.
    pub source: WaitSource,
}

impl fmt::Display for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} waits for CPU {} of the time by {}",
            self.pod,
            In(Unit::Share, self.waited.into()),
            self.source
        )
    }
}

/// Why a setting is changed, is as it is, or is put back. Shares are in hundredths of a per cent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "because", rename_all = "snake_case")]
pub enum CpuWhy {
    /// It was throttled.
    Throttled {
        /// The number of periods with throttling since the reading before.
        throttled: u64,
        /// The number of all periods since the reading before.
        periods: u64,
    },
    /// The pod's cgroup has to let through what its containers are given.
    FollowsContainers,
    /// It has been neither throttled nor above its quota.
    Quiet {
        /// For so long, nanoseconds.
        for_ns: u64,
    },
    /// It has used up what it had saved under its limit.
    AllowanceSpent {
        /// What is left, microseconds of CPU time.
        left_us: u64,
        /// What the quota would need until the next reading.
        needed_us: u64,
    },
    /// The shared CPUs are too busy.
    NodeBusy {
        /// How busy.
        used: u32,
        /// How busy they may be.
        limit: u32,
    },
    /// A pod that has not got its request waits.
    OthersWait {
        /// The waiting pod.
        waiter: Waiter,
        /// The share of the time that it may wait, hundredths of a per cent.
        limit: u32,
    },
    /// No pod that comes first waits any more.
    Calm {
        /// For so long, nanoseconds.
        for_ns: u64,
    },
    /// It has been held back for as long as it may be.
    BudgetOver {
        /// That long, nanoseconds.
        budget_ns: u64,
    },
    /// Holding back has not helped.
    NoEffect {
        /// Tried for so long, nanoseconds.
        tried_ns: u64,
    },
    /// The pod is being evicted or ended: throttling would slow its exit.
    Leaves,
    /// Its bandwidth must not be changed (any more): it has exclusive CPUs, its limit was removed, or it is exempt.
    Untouchable,
    /// It could not be written; it is tried again later.
    NotWritten,
}

impl fmt::Display for CpuWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |share: u32| In(Unit::Share, share.into());
        let seconds = |ns: u64| ns / 1_000_000_000;
        match self {
            Self::Throttled { throttled, periods } => {
                write!(f, "throttled in {throttled} of {periods} periods")
            }
            Self::FollowsContainers => write!(f, "lets through what its containers are given"),
            Self::Quiet { for_ns } => write!(
                f,
                "neither throttled nor above its quota for {} s",
                seconds(*for_ns)
            ),
            Self::AllowanceSpent { left_us, needed_us } => write!(
                f,
                "what it saved under its limit is used up: {} ms of CPU time left, {} ms needed",
                left_us / 1000,
                needed_us / 1000
            ),
            Self::NodeBusy { used, limit } => write!(
                f,
                "the shared CPUs are busy {} of the time, above {}",
                share(*used),
                share(*limit)
            ),
            Self::OthersWait { waiter, limit } => {
                write!(f, "{waiter}, above {}", share(*limit))
            }
            Self::Calm { for_ns } => write!(
                f,
                "no pod within its CPU request has waited for {} s",
                seconds(*for_ns)
            ),
            Self::BudgetOver { budget_ns } => write!(
                f,
                "held back for the {} s that are allowed",
                seconds(*budget_ns)
            ),
            Self::NoEffect { tried_ns } => write!(
                f,
                "holding back has not helped for {} s",
                seconds(*tried_ns)
            ),
            Self::Leaves => write!(f, "the pod is to leave"),
            Self::Untouchable => write!(
                f,
                "it has CPUs of its own, is exempt, or has no limit any more"
            ),
            Self::NotWritten => write!(f, "it could not be written"),
        }
    }
}
