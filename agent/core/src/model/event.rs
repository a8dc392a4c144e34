//! Everything that can happen to the engine. Time is a field: the engine has no clock.
//!
//! An event holds raw readings (bytes as the kernel reports them), never a conclusion: what a reading means is decided
//! in the core, so that a journal of events replays to the same decisions.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kube::budget::DisruptionBudget;
use crate::kube::pod::Pod;
use crate::kube::pod_uid::PodUid;
use crate::model::bandwidth::{CpuKnob, CpuReading};
use crate::model::options::Availability;
use crate::model::page_cache::{CACHE_NOISE_BYTES, PageCache};
use crate::model::reading::{
    NumaMemory, NumaPods, PodLoads, PressureReading, ProcessReading, StorageReading,
};
use crate::model::remedy::Remedy;
use crate::model::swap::CompressedSwap;
use crate::placement::assignments::Assignments;
use crate::placement::device::ListedDevices;
use crate::placement::machine::Machine;
use crate::placement::node::PlacementSettings;
use crate::protocol::cluster_link::{EXCESS_MAX, OverusedNamespace};

/// Something that happened, and when.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// When it was noticed: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all events are samples, and their buffers are used again: a box would be one more allocation"
)]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A pod is to be looked after, or its specification changed. Requests must be defaulted from limits already.
    PodApplied {
        /// The pod as its source gives it.
        pod: Arc<Pod>,
    },
    /// A pod's manifest was removed: the pod is to be ended.
    PodRemoved {
        /// Which pod.
        uid: PodUid,
    },
    /// A disruption budget is there, or has changed.
    BudgetApplied {
        /// The budget as its source gives it.
        budget: Arc<DisruptionBudget>,
    },
    /// A disruption budget was removed.
    BudgetRemoved {
        /// Its `namespace/name`.
        budget: Arc<str>,
    },
    /// A pod's cgroup has its first process.
    PodRunning {
        /// Which pod.
        uid: PodUid,
    },
    /// The last process of a pod ended, or its cgroup was removed.
    PodEmpty {
        /// Which pod.
        uid: PodUid,
    },
    /// The first process of each container of a pod has ended, and others are left, for which a container runtime does
    /// not wait either.
    FirstProcessesEnded {
        /// Which pod.
        uid: PodUid,
    },
    /// The kubelet ends a pod, by its own decision or another's: its phase is terminal, or its deletion has begun.
    /// Nothing if it is leaving already.
    PodEndedByKubelet {
        /// Which pod.
        uid: PodUid,
    },
    /// The API server refuses the eviction of a pod for now: a disruption budget has no disruption left. Nothing if it
    /// was killed already.
    EvictionRefused {
        /// Which pod.
        uid: PodUid,
    },
    /// The arbitrator of the cluster says which namespaces use more than they deserve. Takes the place of what it said
    /// before.
    Overused(Arc<Overused>),
    /// A container's cgroup has lost its last process, and its pod has others.
    ContainerEnded {
        /// Which pod.
        uid: PodUid,
        /// Which container.
        container: String,
    },
    /// All manifests that were there at the start have been applied: a pod that is not known now has none.
    PodsListed,
    /// The kubelet beside the agent says which devices it has given to containers. Takes the place of what it said
    /// before; `None`: it does not say any more.
    DevicesGiven {
        /// All of them.
        devices: Option<Arc<ListedDevices>>,
    },
    /// There is time to try more of the pods that wait for CPUs or memory, since some of it was given back.
    RoomSought,
    /// CPUs and memory are to be placed: at the start, and when the machine's CPUs have changed.
    PlacementStarted(Box<PlacementStart>),
    /// Nothing urgent is left to do in this turn: what pods have given up meanwhile is given to others
    /// ([`NodeState::giving_back`]).
    ///
    /// [`NodeState::giving_back`]: crate::model::state::NodeState::giving_back
    PlacementDue,
    /// Readings of the node and of every pod with a cgroup.
    Sample(Sample),
    /// What was asked for by [`Decision::FreeDisk`](crate::model::decision::Decision::FreeDisk) has been done, as
    /// far as it could be. The next sample with [`Cause::DiskFreed`] shows what came of it.
    DiskFreed {
        /// Bytes that were freed.
        bytes: u64,
        /// Inodes that were freed.
        inodes: u64,
        /// What could not be done.
        error: Option<String>,
    },
    /// A process of a condemned pod was killed by the last line in the kernel ([`crate::policy::oom::last_line`]).
    LastLineKill {
        /// Which pod.
        uid: PodUid,
        /// What was done, and why.
        kill: LastLineKill,
    },
    /// A remedy before an eviction has ended by itself, or could not be done.
    RemedyReported {
        /// Which pod it concerned.
        uid: PodUid,
        /// Which remedy.
        remedy: Remedy,
        /// What there is to say.
        #[serde(flatten)]
        report: RemedyReport,
    },
    /// What pods had of the CPUs and how they waited for them.
    CpuReading(Arc<CpuReading>),
    /// [`Decision::SetCpu`](crate::model::decision::Decision::SetCpu) or
    /// [`Decision::RestoreCpu`](crate::model::decision::Decision::RestoreCpu) could not be carried out.
    CpuNotWritten {
        /// Which pod it concerned.
        uid: PodUid,
        /// Which of its containers; empty for the pod's own cgroup.
        container: Arc<str>,
        /// What was to be changed.
        knob: CpuKnob,
        /// Why not.
        error: String,
    },
    /// A decision could not be carried out.
    Outcome {
        /// Which pod it concerned.
        uid: PodUid,
        /// What had been asked for.
        action: Action,
        /// Why not.
        error: String,
    },
}

impl EventKind {
    /// Whether the agent takes it in between a record of the kernel and the signal that answers it: then
    /// [`Engine::step`](crate::engine::Engine::step) allocates nothing.
    pub(crate) fn is_on_kill_path(&self) -> bool {
        match self {
            Self::Sample(_)
            | Self::PodEmpty { .. }
            | Self::FirstProcessesEnded { .. }
            | Self::LastLineKill { .. }
            | Self::RemedyReported { .. }
            | Self::Outcome { .. } => true,
            Self::PodApplied { .. }
            | Self::PodRemoved { .. }
            | Self::BudgetApplied { .. }
            | Self::BudgetRemoved { .. }
            | Self::PodRunning { .. }
            | Self::PodEndedByKubelet { .. }
            | Self::EvictionRefused { .. }
            | Self::Overused(_)
            | Self::ContainerEnded { .. }
            | Self::PodsListed
            | Self::PlacementStarted(_)
            | Self::PlacementDue
            | Self::RoomSought
            | Self::DevicesGiven { .. }
            | Self::DiskFreed { .. }
            | Self::CpuReading(_)
            | Self::CpuNotWritten { .. } => false,
        }
    }
}

/// Namespaces that use more of the cluster than they deserve.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Overused {
    /// From then on it means nothing: CLOCK_MONOTONIC, nanoseconds.
    pub until_ns: u64,
    /// Sorted by name, which each has once; [`OVERUSED_MAX`](crate::protocol::cluster_link::OVERUSED_MAX) at most.
    pub namespaces: Vec<OverusedNamespace>,
}

impl Overused {
    /// By how much a namespace is over, in thousandths of the cluster; 0 for one that is not on the list.
    #[must_use]
    pub fn excess(&self, namespace: &str) -> u16 {
        let found = self
            .namespaces
            .binary_search_by(|known| known.namespace.as_str().cmp(namespace));
        found.map_or(0, |at| self.namespaces[at].excess.min(EXCESS_MAX))
    }
}

/// A kill by the last line in the kernel. Times are CLOCK_MONOTONIC, nanoseconds; amounts bytes of
/// `kernelMemory.available`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LastLineKill {
    /// When.
    pub killed_ns: u64,
    /// Why.
    pub why: LastLineReason,
    /// The process.
    pub tgid: u32,
    /// Processes of the pod that it killed, this one included: in a record's event all so far, in a line of output
    /// those that no line before it has.
    pub kills: u64,
    /// What was available. `None`: nothing, by the page allocator's own account; or the record was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// What should have been. `None`: as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_bytes: Option<u64>,
    /// The crossing that was not acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crossed_ns: Option<u64>,
}

/// Why the last line killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastLineReason {
    /// Less than the critical amount was available.
    Critical,
    /// Less than the line was available, and the agent had not acknowledged a crossing in time.
    Unacknowledged,
    /// The kernel was about to call its OOM killer.
    Exhausted,
}

impl fmt::Display for LastLineReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Critical => "memory was critically short",
            Self::Unacknowledged => "the agent did not answer in time",
            Self::Exhausted => "the kernel was about to call its OOM killer",
        })
    }
}

/// With what placement starts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PlacementStart {
    /// What the configuration says.
    pub settings: PlacementSettings,
    /// The machine as it is now.
    pub machine: Machine,
    /// What an earlier agent has left. `None`: go on with what there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<Assignments>,
}

/// What an executor says of a remedy before an eviction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum RemedyReport {
    /// The kernel has done what it could, or all that was asked for.
    Reclaimed {
        /// What it says to have taken.
        bytes: u64,
    },
    /// This kernel, or this cgroup hierarchy, does not have it.
    Unsupported,
    /// It could not be done.
    Failed {
        /// Why.
        error: String,
    },
    /// `memory.high` could not be put back.
    NotCleared {
        /// Why.
        error: String,
    },
}

/// What an executor does to a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// SIGTERM to the pod's containers.
    Terminate,
    /// The whole cgroup is killed.
    Kill,
}

/// Why a sample was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The time that the engine asked for has come.
    #[default]
    Timer,
    /// The armed charge threshold was crossed.
    ChargeThreshold {
        /// When, by the kernel's CLOCK_MONOTONIC.
        crossed_ns: u64,
    },
    /// The kernel woke kswapd: free memory fell below the low watermark.
    KswapdWake {
        /// When, by the kernel's CLOCK_MONOTONIC.
        crossed_ns: u64,
    },
    /// A task had to reclaim by itself: free memory fell below the min watermark.
    DirectReclaim {
        /// When, by the kernel's CLOCK_MONOTONIC.
        crossed_ns: u64,
    },
    /// A PSI trigger fired.
    PressureStall,
    /// A `memory.events` file changed, or a cgroup v1 event descriptor fired.
    MemoryEvent,
    /// A pod's cgroup came, went, or lost its last process.
    Lifecycle,
    /// File systems, and what pods have on them, have been read.
    Storage,
    /// Disk space has been freed without ending a pod, and file systems have been read since.
    DiskFreed,
}

/// Which pods a [`Sample`] has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodsRead {
    /// All that have a cgroup.
    #[default]
    All,
    /// Those on whose memory the decision about this sample rests: [`Engine::stale`](crate::engine::Engine::stale)
    /// names each.
    Leaders,
    /// None: no decision about this sample depends on them.
    None,
}

impl PodsRead {
    /// Whether all were read.
    pub fn is_all(&self) -> bool {
        *self == PodsRead::All
    }
}

/// Readings taken at one instant. Pods are read first and the node last, so that the node's figures are never older
/// than a victim's.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Why it was taken.
    pub cause: Cause,
    /// The node, from `/proc/meminfo`.
    pub node: NodeMemory,
    /// The kubepods cgroup, where it exists.
    pub kubepods: Option<CgroupMemory>,
    /// Bytes charged to memory cgroups since the programs were loaded (gross: it never falls). `None` without that
    /// program.
    pub charged_bytes: Option<u64>,
    /// Every pod with a cgroup, in no particular order.
    pub pods: Vec<PodMemory>,
    /// Which pods were read. What is known of the others stands.
    #[serde(default, skip_serializing_if = "PodsRead::is_all")]
    pub pods_read: PodsRead,
    /// File systems, if they have been read since the last sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Arc<StorageReading>>,
    /// Processes, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Arc<ProcessReading>>,
    /// Pressure stalls, if they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<PressureReading>,
    /// NUMA nodes by ascending number; empty if they were not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<NumaMemory>,
    /// What pods have on the most pressed of them, if the engine asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_pods: Option<Arc<NumaPods>>,
    /// What pods take of the CPUs and disks, if it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads: Option<Arc<PodLoads>>,
}

/// The node's memory, all bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeMemory {
    /// `MemTotal`.
    pub capacity_bytes: u64,
    /// `AnonPages`.
    pub anon_bytes: u64,
    /// `Cached + Buffers + SwapCached`: the kernel's NR_FILE_PAGES.
    pub file_bytes: u64,
    /// `Inactive(file)`.
    pub inactive_file_bytes: u64,
    /// `Active(file)`.
    #[serde(default)]
    pub active_file_bytes: u64,
    /// What of these two is no page cache ([`page_cache`](crate::model::page_cache)), or all of it where the kernel can
    /// take none ([`reclaim_yield`](crate::model::reclaim_yield)).
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub lazily_freed_bytes: u64,
    /// `MemFree`.
    pub free_bytes: u64,
    /// `MemAvailable`.
    pub kernel_available_bytes: u64,
    /// `SwapTotal`.
    pub swap_total_bytes: u64,
    /// `SwapFree`.
    pub swap_free_bytes: u64,
    /// What of the swap is in memory.
    #[serde(default, skip_serializing_if = "CompressedSwap::is_none")]
    pub compressed_swap: CompressedSwap,
}

impl NodeMemory {
    /// `Inactive(file)` and `Active(file)`, as far as they are page cache.
    pub(crate) fn page_cache(&self) -> PageCache {
        PageCache::of_lists(
            self.inactive_file_bytes,
            self.active_file_bytes,
            self.lazily_freed_bytes,
        )
    }

    /// `MemAvailable` without what is lazily freed, which it counts as page cache.
    pub fn left_bytes(&self) -> u64 {
        self.kernel_available_bytes
            .saturating_sub(self.lazily_freed_bytes)
    }
}

/// Memory of one cgroup, all bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CgroupMemory {
    /// `memory.current` (v1: `memory.usage_in_bytes`).
    pub usage_bytes: u64,
    /// `inactive_file` of `memory.stat` (v1: `total_inactive_file`).
    pub inactive_file_bytes: u64,
    /// The usage when `inactive_file_bytes` was read: at an urgent sample that may be a while ago.
    pub usage_at_stat_bytes: u64,
    /// `active_file` of `memory.stat` (v1: `total_active_file`), read at the same time.
    #[serde(default)]
    pub active_file_bytes: u64,
    /// What of these two is no page cache ([`page_cache`](crate::model::page_cache)).
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub lazily_freed_bytes: u64,
    /// `memory.max`, where one is set.
    pub limit_bytes: Option<u64>,
    /// `memory.swap.current`; 0 where there is no swap or it is not counted.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub swap_bytes: u64,
}

impl CgroupMemory {
    /// The working set: usage minus inactive page cache, never below 0. cAdvisor takes all inactive file pages off.
    pub fn working_set_bytes(&self) -> u64 {
        self.usage_bytes
            .saturating_sub(self.page_cache().inactive_bytes)
    }

    /// Usage without any page cache, never below 0.
    pub fn unreclaimable_bytes(&self) -> u64 {
        self.usage_bytes
            .saturating_sub(self.page_cache().all_bytes())
    }

    fn page_cache(&self) -> PageCache {
        PageCache::of_lists(
            self.inactive_file_bytes,
            self.active_file_bytes,
            self.lazily_freed_bytes,
        )
    }
}

/// Memory of one pod's cgroup, all bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodMemory {
    /// Which pod.
    pub uid: PodUid,
    /// `memory.current` of the pod's cgroup.
    pub usage_bytes: u64,
    /// `inactive_file` of its `memory.stat`.
    pub inactive_file_bytes: u64,
    /// The usage when `inactive_file_bytes` was read: at an urgent sample that may be a while ago.
    pub usage_at_stat_bytes: u64,
    /// `active_file` of its `memory.stat`, read at the same time.
    #[serde(default)]
    pub active_file_bytes: u64,
    /// What of these two is no page cache ([`page_cache`](crate::model::page_cache)).
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub lazily_freed_bytes: u64,
    /// What the kernel holds for it without charging its cgroup ([`uncharged`](crate::model::uncharged)): not in
    /// `usage_bytes`.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub uncharged_bytes: u64,
    /// Huge pages (hugetlbfs) in the usage, where the kernel counts them there: `hugetlb` of its `memory.stat`, read at
    /// the same time. They go back to the machine's pool of huge pages, and are no memory that others can have.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub huge_page_bytes: u64,
    /// How long before the sample `memory.stat` was read, milliseconds.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub stat_age_ms: u32,
}

impl PodMemory {
    /// The working set: usage minus inactive page cache and huge pages, never below 0, and what is not charged. The
    /// kubelet takes all inactive file pages off and no huge pages, and knows nothing of what is not charged.
    pub fn working_set_bytes(&self) -> u64 {
        self.usage_bytes
            .saturating_sub(self.page_cache().inactive_bytes)
            .saturating_sub(self.huge_page_bytes)
            .saturating_add(self.uncharged_bytes)
    }

    /// What it uses in the sense in which memory is available: the amount by which the signal would rise without the
    /// pod.
    pub fn used_bytes(&self, availability: Availability) -> u64 {
        self.usage_bytes
            .saturating_sub(self.unused_bytes(availability))
            .saturating_add(self.uncharged_bytes)
    }

    /// What of the usage does not count as used: page cache that is available, and huge pages.
    pub(crate) fn unused_bytes(&self, availability: Availability) -> u64 {
        availability
            .cache_bytes(self.page_cache())
            .saturating_add(self.huge_page_bytes)
    }

    fn page_cache(&self) -> PageCache {
        PageCache::of_lists(
            self.inactive_file_bytes,
            self.active_file_bytes,
            self.lazily_freed_bytes,
        )
    }

    /// Only page cache, and without what cannot be: a pod has no more of it than the node, whose figures are of this
    /// moment. Those of the pod may be of an earlier reading.
    pub(crate) fn limited(&self, node: &NodeMemory) -> Self {
        let cache = self.page_cache();
        // Which of the node's lists has what is lazily freed is not known: each may have all of the page cache.
        let all_bytes = node.page_cache().all_bytes();
        let most = |bytes: u64, listed_bytes: u64| {
            bytes.min(
                listed_bytes
                    .min(all_bytes)
                    .saturating_add(CACHE_NOISE_BYTES),
            )
        };
        Self {
            inactive_file_bytes: most(cache.inactive_bytes, node.inactive_file_bytes),
            active_file_bytes: most(cache.active_bytes, node.active_file_bytes),
            lazily_freed_bytes: 0,
            ..self.clone()
        }
    }
}
