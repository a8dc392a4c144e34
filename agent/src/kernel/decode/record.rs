//! What a record says, in the agent's types.

use plimsoll_abi::Kind;
use plimsoll_core::model::event::LastLineReason;

use crate::kernel::charges::Generation;

/// Something that happened in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'bytes> {
    /// When, `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// Which cgroup it is about; each variant of [`Body`] says in what sense. 0 for the whole node.
    pub cgroup_id: u64,
    /// On which CPU.
    pub cpu: u32,
    /// What.
    pub body: Body<'bytes>,
}

/// The node's memory as the kernel counts it, bytes: what `/proc/meminfo` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCounters {
    /// `MemFree`.
    pub free_bytes: u64,
    /// `MemAvailable`.
    pub available_bytes: u64,
    /// `AnonPages`.
    pub anon_bytes: u64,
    /// `Cached`, `Buffers` and `SwapCached` together.
    pub file_bytes: u64,
    /// `Inactive(file)`.
    pub inactive_file_bytes: u64,
    /// `Active(file)`.
    pub active_file_bytes: u64,
    /// `Shmem`.
    pub shmem_bytes: u64,
}

/// The part of a [`Record`] that depends on its kind. Sizes are in pages of the kernel; numbers called *so far* are
/// totals since the programs were attached, so that a lost record loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'bytes> {
    /// The cgroup was made.
    CgroupMkdir {
        /// Distance from the root.
        level: u32,
        /// 0 for cgroup v2.
        hierarchy_id: u32,
        /// Path from the root of the hierarchy, starting with `/`; perhaps cut (see `is_cut`).
        path: &'bytes [u8],
        /// Whether the path filled the record, so that its end may be missing.
        is_cut: bool,
    },
    /// The cgroup was removed.
    CgroupRmdir {
        /// Distance from the root.
        level: u32,
        /// 0 for cgroup v2.
        hierarchy_id: u32,
    },
    /// A process moved into the cgroup.
    CgroupAttach {
        /// Its process id in the initial namespace.
        tgid: u32,
        /// 0 for cgroup v2.
        hierarchy_id: u32,
    },
    /// The cgroup's subtree got its first task or lost its last.
    CgroupPopulated {
        /// Whether there are tasks now.
        is_populated: bool,
        /// 0 for cgroup v2.
        hierarchy_id: u32,
    },
    /// The kernel's OOM killer chose a process of the cgroup.
    OomKill {
        /// Whose limit was hit.
        limit: OomLimit,
        /// The victim's process id in the initial namespace.
        tgid: u32,
        /// Its `oom_score_adj`.
        oom_score_adj: i32,
        /// Its points in pages, where the hook sees them.
        points: Option<i64>,
        /// Its address space.
        total_pages: u64,
        /// Its resident anonymous pages.
        anon_pages: u64,
        /// Its command name, without padding.
        comm: &'bytes [u8],
    },
    /// The cgroup's own limit was met.
    MemoryEvent {
        /// Which limit.
        event: MemoryLimitEvent,
        /// How often so far.
        count: u64,
        /// Pages asked for so far, where the hook sees them.
        pages: Option<u64>,
    },
    /// The cgroup's CPU quota stopped or resumed one of its run queues.
    Throttle {
        /// Which of the two.
        phase: ThrottlePhase,
        /// Finished throttles so far, each CPU by itself.
        count: u64,
        /// Their time.
        sum_ns: u64,
        /// The longest of them.
        max_ns: u64,
    },
    /// The node's free memory fell below a zone watermark.
    NodeReclaim {
        /// Below which.
        phase: ReclaimPhase,
        /// How often so far.
        count: u64,
        /// NUMA node of the zone; direct reclaim walks several.
        node: Option<u32>,
        /// Order of the allocation that asked.
        order: u32,
    },
    /// What is charged to memory cgroups has reached the armed total. One-shot: it is disarmed now.
    ChargesReached {
        /// Charged since the programs were attached, gross.
        charged_bytes: u64,
        /// Which arming this answers.
        generation: Generation,
        /// The node's memory then, where the program reads it.
        node: Option<NodeCounters>,
    },
    /// A process of the condemned pod that has this cgroup was killed.
    LastLineKill {
        /// Why.
        why: LastLineReason,
        /// Its process id in the initial namespace.
        tgid: u32,
        /// Its command name, without padding.
        comm: &'bytes [u8],
        /// The pod's UID, padded with NULs.
        uid: &'bytes [u8],
        /// The pod's place in the order, from 0.
        place: u32,
        /// Processes of the pod killed so far.
        kills: u64,
        /// What was available; `None`: nothing, by the page allocator's own account.
        available_pages: Option<u64>,
        /// What should have been.
        wanted_pages: u64,
        /// The crossing that was not acknowledged.
        crossed_ns: Option<u64>,
        /// The newest acknowledgement.
        acked_ns: u64,
    },
    /// Tasks were held up for lack of memory. The cgroup owns the limit for [`StallCause::Limit`] where fentry works,
    /// else it is the task's. Numbers are of all threads so far.
    MemoryStall {
        /// Why.
        cause: StallCause,
        /// The memory cgroup of the task whose stall has just ended.
        actor_cgroup_id: u64,
        /// Finished stalls.
        count: u64,
        /// Their time.
        sum_ns: u64,
        /// The longest of them.
        max_ns: u64,
        /// Pages reclaimed, for causes that reclaim.
        pages: Option<u64>,
    },
    /// Tasks of the cgroup needed pages that had been taken away.
    Refault {
        /// Which pages.
        what: RefaultKind,
        /// How often so far.
        count: u64,
        /// How many pages so far.
        pages: u64,
    },
    /// A process was born into the cgroup by a parent in another one.
    ProcessBirth {
        /// Its process id in the initial namespace.
        tgid: u32,
        /// Its parent's.
        parent_tgid: u32,
        /// Its parent's memory cgroup.
        parent_cgroup_id: u64,
    },
}

impl Body<'_> {
    /// The kind of record that this was.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Body::CgroupMkdir { .. } => Kind::CgroupMkdir,
            Body::CgroupRmdir { .. } => Kind::CgroupRmdir,
            Body::CgroupAttach { .. } => Kind::CgroupAttach,
            Body::CgroupPopulated { .. } => Kind::CgroupPopulated,
            Body::OomKill { .. } => Kind::OomKill,
            Body::MemoryEvent { .. } => Kind::MemoryEvent,
            Body::Throttle { .. } => Kind::Throttle,
            Body::NodeReclaim { .. } => Kind::NodeReclaim,
            Body::ChargesReached { .. } => Kind::ChargesReached,
            Body::LastLineKill { .. } => Kind::LastLineKill,
            Body::MemoryStall { .. } => Kind::MemoryStall,
            Body::Refault { .. } => Kind::Refault,
            Body::ProcessBirth { .. } => Kind::ProcessBirth,
        }
    }
}

/// Whose memory was exhausted when the OOM killer ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomLimit {
    /// The node's.
    Node,
    /// This cgroup's limit; it may be an ancestor of the victim's cgroup.
    Cgroup(u64),
    /// The hook that names each victim (`mark_victim`) does not see it. The record of the choice before it has it,
    /// where that hook is attached.
    Unknown,
}

/// Which limit of a memory cgroup was met; the names of the lines in `memory.events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimitEvent {
    /// `memory.high`: the task was sent to reclaim.
    High,
    /// `memory.max`: the charge has to reclaim first.
    Max,
    /// Reclaim made no room: the memcg OOM path was entered.
    Oom,
    /// The cgroup is below its `memory.low` and was reclaimed from all the same.
    Low,
    /// An OOM killer killed a process of the cgroup.
    OomKill,
    /// The cgroup was killed as a whole (`memory.oom.group`).
    OomGroupKill,
}

/// Why a task is held up for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StallCause {
    /// Whatever the reason: what PSI counts. The others are parts of it.
    Memory,
    /// It reclaims because of a limit.
    Limit,
    /// It sleeps because `memory.high` is exceeded.
    High,
    /// It reclaims because the node is short.
    Node,
}

/// What is read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefaultKind {
    /// Anonymous memory that had been taken away.
    Anon,
    /// Page cache that had been taken away.
    File,
    /// Anything from swap.
    SwapIn,
}

/// The two ends of a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottlePhase {
    /// The first throttle of a window.
    Start,
    /// The first end of a throttle in a window.
    Stop,
}

/// How far the node's free memory has fallen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimPhase {
    /// Below the low watermark: kswapd woke up.
    KswapdWake,
    /// Below the min watermark: a task reclaims by itself. The OOM killer is next.
    DirectReclaim,
}
