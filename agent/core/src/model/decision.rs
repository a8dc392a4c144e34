//! What the engine wants done, as plain data, each with its reason.
//!
//! A decision carries every figure it was based on: the line on the screen and the journal print the same value.
//! Carrying one out is the agent's job; what failed returns as
//! [`EventKind::Outcome`](crate::model::event::EventKind::Outcome).

mod text;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kube::pod::PressureSignal;
use crate::kube::pod_uid::PodUid;
pub use crate::model::amount::In;
use crate::model::bandwidth::{CpuKnob, CpuWhy};
use crate::model::event::LastLineReason;
use crate::model::outlook::Foreseen;
use crate::model::rank_row::Comparator;
use crate::model::remedy::Remedy;
pub use crate::model::remedy::RemedyEnd;
use crate::model::signal::{NodeCondition, Operator, Signal};
use crate::placement::assignments::Assignments;
use crate::placement::node::Note;

/// One thing to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum Decision {
    /// Have the kernel report when the bytes charged to memory cgroups (gross, since load) reach a value: until then no
    /// threshold can have been crossed by charges.
    Arm {
        /// The value of `charged_bytes` at which to report.
        at_charged_bytes: u64,
    },
    /// Take a sample at this time at the latest. Replaces the earlier time.
    SampleBy {
        /// CLOCK_MONOTONIC, nanoseconds.
        at_ns: u64,
    },
    /// Evict a pod: SIGTERM now; [`Decision::Kill`] follows when the grace period is over.
    Evict {
        /// Which pod.
        uid: PodUid,
        /// Grace period, in seconds. Not below 0 unless `evictionMaxPodGracePeriod` is: the kubelet passes that
        /// on, and here it means at once.
        grace_s: i64,
        /// Why, and why this one.
        reason: Reason,
    },
    /// Take back an eviction for a soft threshold that a disruption budget refused: another pod can go.
    Withdraw {
        /// Which pod stays.
        uid: PodUid,
    },
    /// End a pod whose manifest was removed: SIGTERM now.
    End {
        /// Which pod.
        uid: PodUid,
        /// Grace period, in milliseconds.
        grace_ms: u64,
    },
    /// Kill everything in the pod's cgroup.
    Kill {
        /// Which pod.
        uid: PodUid,
        /// Why now.
        why: KillReason,
    },
    /// Free the memory of a pod's killed processes from the agent's own CPU time (`process_mrelease`): they have been
    /// killed and do not get to run.
    ReleaseMemory {
        /// Which pod.
        uid: PodUid,
    },
    /// A pod that was being ended is waited for no longer, and how that ended.
    Finished {
        /// Which pod.
        uid: PodUid,
        /// How it ended.
        ending: EvictionEnding,
        /// `memory.current` of the pod when its eviction began.
        usage_before_bytes: u64,
        /// How much of that came back.
        freed_bytes: u64,
    },
    /// Free disk space without ending a pod;
    /// [`EventKind::DiskFreed`](crate::model::event::EventKind::DiskFreed) follows.
    FreeDisk {
        /// The threshold that is met.
        signal: Signal,
        /// What to look at, in this order.
        sources: Vec<FreeSource>,
    },
    /// Read file systems, and what pods have on them, at this interval. Replaces the earlier one.
    ReadStorageEvery {
        /// Nanoseconds.
        interval_ns: u64,
    },
    /// Have the kernel reclaim memory from a pod (`memory.reclaim`), until the amount is reached or the time is over;
    /// [`RemedyReport`](crate::model::event::RemedyReport) follows.
    Reclaim {
        /// Which pod.
        uid: PodUid,
        /// How much, inactive page cache included.
        bytes: u64,
        /// CLOCK_MONOTONIC, nanoseconds.
        until_ns: u64,
    },
    /// Have it stop that.
    StopReclaim {
        /// Which pod.
        uid: PodUid,
    },
    /// Hold a pod at a size (`memory.high`). [`Decision::ClearHigh`] follows by that time.
    SetHigh {
        /// Which pod.
        uid: PodUid,
        /// The size.
        bytes: u64,
        /// CLOCK_MONOTONIC, nanoseconds.
        until_ns: u64,
    },
    /// Put the pod's `memory.high` back to what it was.
    ClearHigh {
        /// Which pod.
        uid: PodUid,
    },
    /// Tell a pod that memory is short, in the way that it has asked for.
    Notify {
        /// Which pod.
        uid: PodUid,
        /// What its containers' first processes get.
        signal: PressureSignal,
        /// How much is missing.
        shortfall_bytes: u64,
        /// How long it may take, CLOCK_MONOTONIC, nanoseconds.
        until_ns: u64,
    },
    /// Something that was tried before an eviction is over, and how it went.
    RemedyEnded {
        /// Which pod.
        uid: PodUid,
        /// What was tried.
        remedy: Remedy,
        /// How it ended.
        end: RemedyEnd,
        /// How long it took.
        took_ns: u64,
        /// How long ago the pod would have been evicted without any remedy.
        episode_ns: u64,
    },
    /// Apply these assignments: the CPUs and memory nodes of each container.
    Place {
        /// What each container holds.
        assignments: Arc<Assignments>,
    },
    /// A pod is refused exclusive resources and must not be started; if it already runs, it stays in the shared pool or
    /// keeps what it has.
    PlacementRefused {
        /// Which pod.
        uid: PodUid,
        /// What it lacks.
        why: String,
        /// It runs already.
        runs_on: bool,
    },
    /// A container cannot keep what it had.
    PlacementLost {
        /// Which one, and why.
        note: Note,
    },
    /// No placement is possible with these settings on this machine. The current placement stays.
    PlacementFailed {
        /// Why.
        why: String,
    },
    /// Give a cgroup other CPU bandwidth than it was configured with. [`Decision::RestoreCpu`] follows.
    SetCpu {
        /// Which pod.
        uid: PodUid,
        /// Which of its containers; empty for the pod's own cgroup.
        #[serde(default, skip_serializing_if = "str::is_empty")]
        container: Arc<str>,
        /// What is changed.
        knob: CpuKnob,
        /// To this, microseconds of CPU time per period.
        us: u64,
        /// The configured value, which Plimsoll restores later; `None` for no limit.
        #[serde(rename = "own_us")]
        configured_us: Option<u64>,
        /// Why.
        why: CpuWhy,
    },
    /// Put it back to what it was.
    RestoreCpu {
        /// Which pod.
        uid: PodUid,
        /// Which of its containers; empty for the pod's own cgroup.
        #[serde(default, skip_serializing_if = "str::is_empty")]
        container: Arc<str>,
        /// What is put back.
        knob: CpuKnob,
        /// Why.
        why: CpuWhy,
    },
    /// Pods must leave, and none may be chosen.
    NoVictim {
        /// The threshold that asks for one.
        signal: Signal,
        /// What it shows, in its unit.
        observed: u64,
        /// What it should show.
        threshold: u64,
        /// Why there is none.
        why: NoVictimReason,
    },
    /// Pods must leave, and none is evicted for a while: the memory of one that was did not come back, and no other pod
    /// has it.
    EvictionsHeld {
        /// The pod whose memory stayed.
        uid: PodUid,
        /// The threshold that asks for a victim.
        signal: Signal,
        /// What it shows, in its unit.
        observed: u64,
        /// What it should show.
        threshold: u64,
        /// What stays charged to evicted pods that have ended, bytes.
        retained_bytes: u64,
        /// Until when, unless the node becomes critically short: CLOCK_MONOTONIC, nanoseconds.
        until_ns: u64,
    },
    /// A node condition changed.
    Condition {
        /// Which one.
        condition: NodeCondition,
        /// Its new status.
        status: bool,
    },
}

/// What can be freed on a file system without ending a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FreeSource {
    /// Logs and local volumes of pods that have ended.
    EndedPods,
    /// Containers that have ended (`containerGC.DeleteAllUnusedContainers` of the kubelet).
    EndedContainers,
    /// Images that no container uses (`imageGC.DeleteUnusedImages`).
    UnusedImages,
}

/// Why a pod is evicted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Reason {
    /// A threshold is met, and it is the pod's turn.
    Threshold(ThresholdReason),
    /// It has more on disk than it may.
    LocalStorage(LocalStorageReason),
}

impl Reason {
    /// The signal whose threshold is met; `None` if it is about the pod's own limit.
    pub const fn signal(&self) -> Option<Signal> {
        match self {
            Self::Threshold(reason) => Some(reason.signal),
            Self::LocalStorage(_) => None,
        }
    }
}

/// Which threshold is met, and why it is this pod's turn. Amounts are in the signal's unit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ThresholdReason {
    /// The signal whose threshold is met.
    pub signal: Signal,
    /// Whether the threshold is soft (met for its grace period).
    pub soft: bool,
    /// What the signal shows.
    pub observed: u64,
    /// The threshold.
    pub threshold: u64,
    /// What a percentage would be a percentage of.
    pub capacity: u64,
    /// What the victim uses, by what is known.
    pub usage: u64,
    /// There are no statistics of it, or they are short of what it uses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_usage_unknown: bool,
    /// Its request.
    pub request: u64,
    /// Its priority.
    pub priority: i32,
    /// Its place in the ranking, from 1.
    pub rank: u32,
    /// How many pods were ranked.
    pub ranked: u32,
    /// How many before it may not be evicted (static, mirror or critical pods).
    pub exempt: u32,
    /// What decided between it and the next pod in the ranking; `None` if it is the last.
    pub ahead_by: Option<Comparator>,
    /// What disruption budgets had to do with it (option `respectDisruptionBudgets`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<Disruption>,
    /// The NUMA node that is short, if the signal is about one: usage is what the pod has there, its request the same
    /// share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// How often the pod was evicted before: each time something started it again.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub evicted_before: u32,
    /// Set if no threshold is met but memory is predicted to run out (option `outOfMemoryForesight`): `threshold` is
    /// then what goes within the horizon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreseen: Option<Foreseen>,
}

/// What disruption budgets had to do with the choice of a pod.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disruption {
    /// Others before it were passed over: their budgets allow no disruption, and this pod's do.
    PassedOver {
        /// How many.
        pods: u32,
    },
    /// One of its budgets allows no disruption, and the other candidates do not free enough.
    AgainstBudget {
        /// One of its budgets: `namespace/name`.
        budget: Arc<str>,
    },
}

/// Which limit on local storage is exceeded. All bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LocalStorageReason {
    /// What has the limit.
    pub limited: Limited,
    /// What it uses.
    pub usage: u64,
    /// The limit.
    pub limit: u64,
}

/// What has a limit on local storage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limited {
    /// An `emptyDir` with a `sizeLimit`, by name.
    EmptyDir(String),
    /// The pod: the sum of its limits on `ephemeral-storage`.
    Pod,
    /// A container's `ephemeral-storage` limit, by name.
    Container(String),
}

/// Why a pod is killed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// Its grace period is over.
    GraceOver,
    /// Its grace period still runs, but the node cannot wait: half of the hard threshold is used up too.
    HeadroomHalved {
        /// Which signal.
        signal: Signal,
        /// What it shows, in its unit.
        observed: u64,
        /// Half of its threshold.
        limit: u64,
    },
    /// A hard threshold is met, and beside a kubelet it gives no grace period: a container that exits with 0 on SIGTERM
    /// would cost the pod's status its reason.
    NoGrace,
    /// SIGTERM could not be sent.
    TerminateFailed,
    /// The first process of each of its containers has ended, and with it the container: as a container runtime does,
    /// what is left gets no grace period.
    FirstProcessesEnded,
    /// The last line in the kernel has killed one of its processes: the others are killed too.
    LastLine {
        /// Why it did.
        reason: LastLineReason,
    },
}

/// How a pod that was being ended finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvictionEnding {
    /// Its cgroup is empty and 95 % of its memory is back.
    Freed,
    /// Its cgroup is empty, and memory is still charged to it after the wait: shared pages or a slow release.
    Lingering,
    /// It is still there after the wait. Another pod may be chosen now.
    Stuck,
}

/// Why no pod is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoVictimReason {
    /// No pod has processes.
    NoPods,
    /// All that are left are exempt: static, mirror or critical, or the agent's.
    AllExempt,
}
