//! The records that cross the border between Plimsoll's BPF programs and its agent.
//!
//! Problem: two programs built by two compilers must agree on every byte, and the reader must never trust what it
//! reads. Approach: `repr(C)` structs of fixed-width integers and byte arrays only, without padding (zerocopy's
//! `IntoBytes` refuses padding at compile time), each opening with a [`Header`] whose `kind` and `abi_version` are
//! checked before anything else is read. "Unknown" is an all-ones value at this border and nowhere else.
//!
//! Terms: a *page* is the kernel's page (`page_counter` counts them). Times are `CLOCK_MONOTONIC` nanoseconds, as
//! `bpf_ktime_get_ns` gives them. A *cgroup id* is the 64-bit kernfs id, which is the inode number of the cgroup's
//! directory. A *hierarchy id* is 0 for cgroup v2 and the v1 hierarchy's number otherwise; ids are unique only
//! within a hierarchy.
#![no_std]
#![forbid(unsafe_code)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub mod last_line;
pub mod sampling;

/// Version of every layout in this file. A change to any of them raises it, and the agent refuses other versions.
pub const ABI_VERSION: u16 = 8;

/// "The program could not know this" in a 64-bit field.
pub const UNKNOWN_U64: u64 = u64::MAX;

/// "The program could not know this" in a 32-bit field.
pub const UNKNOWN_U32: u32 = u32::MAX;

/// [`OomKill::limit_cgroup_id`] of a kill for the whole node rather than for one cgroup's limit.
pub const NODE_OOM: u64 = 0;

/// Bytes of a cgroup path that a record can carry. A systemd path under containerd is about 191 bytes long.
pub const PATH_BYTES: usize = 256;

/// Bytes of a task's command name, including its NUL (the kernel's `TASK_COMM_LEN`).
pub const COMM_BYTES: usize = 16;

/// What a record reports. The number is the record's [`Header::kind`] and its index among the drop counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Kind {
    /// A cgroup was made: [`CgroupMkdir`].
    CgroupMkdir = 1,
    /// A cgroup was removed: [`CgroupRmdir`].
    CgroupRmdir = 2,
    /// A task moved into a cgroup: [`CgroupAttach`]. Not sent for births by `clone3(CLONE_INTO_CGROUP)`.
    CgroupAttach = 3,
    /// A cgroup got its first or lost its last task: [`CgroupPopulated`].
    CgroupPopulated = 4,
    /// The kernel's OOM killer chose a victim: [`OomKill`].
    OomKill = 5,
    /// `memory.high`, `memory.max` or a memcg OOM was met: [`MemoryEvent`].
    MemoryEvent = 6,
    /// CPU bandwidth control stopped or resumed a run queue: [`Throttle`].
    Throttle = 7,
    /// The node's free memory fell below a zone watermark: [`NodeReclaim`].
    NodeReclaim = 8,
    /// What is charged to memory cgroups has reached the armed total: [`ChargesReached`].
    ChargesReached = 9,
    /// A process of a condemned pod was killed in the kernel: [`last_line::LastLineKill`].
    LastLineKill = 10,
    /// Tasks were held up for lack of memory: [`MemoryStall`].
    MemoryStall = 11,
    /// Pages that had been taken away were read back: [`Refault`].
    Refault = 12,
    /// A process was born into a cgroup that is not its parent's: [`ProcessBirth`].
    ProcessBirth = 13,
}

/// Every kind, in the order of their numbers.
pub const KINDS: [Kind; 13] = [
    Kind::CgroupMkdir,
    Kind::CgroupRmdir,
    Kind::CgroupAttach,
    Kind::CgroupPopulated,
    Kind::OomKill,
    Kind::MemoryEvent,
    Kind::Throttle,
    Kind::NodeReclaim,
    Kind::ChargesReached,
    Kind::LastLineKill,
    Kind::MemoryStall,
    Kind::Refault,
    Kind::ProcessBirth,
];

/// One more than the largest kind number: the length of an array indexed by kind.
pub const KIND_SLOTS: usize = KINDS.len() + 1;

impl Kind {
    /// The record's number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The name used in output and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::CgroupMkdir => "cgroup-mkdir",
            Kind::CgroupRmdir => "cgroup-rmdir",
            Kind::CgroupAttach => "cgroup-attach",
            Kind::CgroupPopulated => "cgroup-populated",
            Kind::OomKill => "oom-kill",
            Kind::MemoryEvent => "memory-event",
            Kind::Throttle => "throttle",
            Kind::NodeReclaim => "node-reclaim",
            Kind::ChargesReached => "charges-reached",
            Kind::LastLineKill => "last-line-kill",
            Kind::MemoryStall => "memory-stall",
            Kind::Refault => "refault",
            Kind::ProcessBirth => "process-birth",
        }
    }
}

/// A kind number that this version does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKind(pub u16);

impl TryFrom<u16> for Kind {
    type Error = UnknownKind;

    fn try_from(number: u16) -> Result<Self, UnknownKind> {
        usize::from(number)
            .checked_sub(1)
            .and_then(|index| KINDS.get(index).copied())
            .ok_or(UnknownKind(number))
    }
}

/// What every record starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// When it happened.
    pub ts_ns: u64,
    /// The cgroup it is about (each record says in what sense), 0 for the whole node.
    pub cgroup_id: u64,
    /// A [`Kind`] by number.
    pub kind: u16,
    /// [`ABI_VERSION`] of the program that wrote the record.
    pub abi_version: u16,
    /// The CPU that it happened on.
    pub cpu: u32,
}

/// [`Kind::CgroupMkdir`]. `cgroup_id` is the new cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CgroupMkdir {
    /// Common part.
    pub header: Header,
    /// Distance from the root of the hierarchy.
    pub level: u32,
    /// 0 for cgroup v2.
    pub hierarchy_id: u32,
    /// Bytes of `path` that count; [`PATH_BYTES`] − 1 means that the path may have been cut.
    pub path_len: u32,
    /// Zero.
    pub pad: u32,
    /// Path from the root of the hierarchy, without NUL. Bytes after `path_len` are undefined.
    pub path: [u8; PATH_BYTES],
}

/// [`Kind::CgroupRmdir`]. `cgroup_id` is the removed cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CgroupRmdir {
    /// Common part.
    pub header: Header,
    /// Distance from the root of the hierarchy.
    pub level: u32,
    /// 0 for cgroup v2.
    pub hierarchy_id: u32,
}

/// [`Kind::CgroupAttach`]. `cgroup_id` is the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CgroupAttach {
    /// Common part.
    pub header: Header,
    /// The process. When a whole process moves this is sent once.
    pub tgid: u32,
    /// 0 for cgroup v2.
    pub hierarchy_id: u32,
}

/// [`Kind::CgroupPopulated`]. `cgroup_id` is the cgroup whose state flipped; each ancestor that flips sends its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CgroupPopulated {
    /// Common part.
    pub header: Header,
    /// 1 when the subtree has tasks now, 0 when it has none.
    pub populated: u32,
    /// 0 for cgroup v2.
    pub hierarchy_id: u32,
}

/// [`Kind::OomKill`]. `cgroup_id` is the victim's memory cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OomKill {
    /// Common part.
    pub header: Header,
    /// The cgroup whose limit was hit, [`NODE_OOM`], or [`UNKNOWN_U64`] when the hook does not see it.
    pub limit_cgroup_id: u64,
    /// The OOM killer's points for the victim, in pages (`oom_control.chosen_points`); `i64::MAX` when unknown.
    pub points: i64,
    /// Pages of address space of the victim (`mm.total_vm`).
    pub total_pages: u64,
    /// Anonymous pages of the victim that are resident; approximate since 6.2, where the kernel counts per CPU.
    pub anon_pages: u64,
    /// The victim's process id.
    pub tgid: u32,
    /// The victim's `oom_score_adj`.
    pub oom_score_adj: i32,
    /// The victim's command name, padded with NULs.
    pub comm: [u8; COMM_BYTES],
}

/// [`MemoryEvent::event`] numbers: those of the kernel's `enum memcg_memory_event`.
pub mod memory_event {
    /// A cgroup below its `memory.low` was reclaimed from all the same.
    pub const LOW: u32 = 0;
    /// `memory.high` was exceeded and the task was sent to reclaim.
    pub const HIGH: u32 = 1;
    /// A charge met `memory.max`.
    pub const MAX: u32 = 2;
    /// Reclaim could not make room: the memcg OOM path was entered.
    pub const OOM: u32 = 3;
    /// A process of the cgroup was killed by an OOM killer.
    pub const OOM_KILL: u32 = 4;
    /// The cgroup was killed as a whole (`memory.oom.group`).
    pub const OOM_GROUP_KILL: u32 = 5;
    /// All of them.
    pub const ALL: [u32; 6] = [LOW, HIGH, MAX, OOM, OOM_KILL, OOM_GROUP_KILL];
}

/// [`Kind::MemoryEvent`]. `cgroup_id` owns the limit (it may be an ancestor of the task's cgroup). At most one per
/// cgroup, event and window; the numbers are totals since the programs were attached, so a lost record loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryEvent {
    /// Common part.
    pub header: Header,
    /// How often so far.
    pub count: u64,
    /// Pages asked for so far; [`UNKNOWN_U64`] where the hook does not see them (7.2).
    pub pages: u64,
    /// One of [`memory_event`].
    pub event: u32,
    /// Zero.
    pub pad: u32,
}

/// [`Throttle::phase`] numbers.
pub mod throttle_phase {
    /// The first throttle of a window: sent at once.
    pub const START: u32 = 1;
    /// A run queue was resumed: sent at most once per window, with the totals.
    pub const STOP: u32 = 2;
}

/// [`Kind::Throttle`]. `cgroup_id` is the cgroup with the quota. The numbers are totals since the programs were
/// attached and count each CPU's run queue by itself, as `throttled_usec` in `cpu.stat` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Throttle {
    /// Common part.
    pub header: Header,
    /// Finished throttles so far.
    pub count: u64,
    /// Their time.
    pub sum_ns: u64,
    /// The longest of them.
    pub max_ns: u64,
    /// One of [`throttle_phase`].
    pub phase: u32,
    /// Zero.
    pub pad: u32,
}

/// [`NodeReclaim::phase`] numbers.
pub mod reclaim_phase {
    /// A zone fell below its low watermark and kswapd woke up.
    pub const KSWAPD_WAKE: u32 = 1;
    /// A zone fell below its min watermark and a task began to reclaim by itself: the last stop before the OOM killer.
    pub const DIRECT_RECLAIM: u32 = 2;
}

/// [`Kind::NodeReclaim`]. `cgroup_id` is 0. At most one per phase (and NUMA node for kswapd) and window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NodeReclaim {
    /// Common part.
    pub header: Header,
    /// How often so far, since the programs were attached.
    pub count: u64,
    /// One of [`reclaim_phase`].
    pub phase: u32,
    /// NUMA node, [`UNKNOWN_U32`] for direct reclaim, which walks several.
    pub node: u32,
    /// Order of the allocation that asked for it.
    pub order: u32,
    /// Zero.
    pub pad: u32,
}

/// [`Kind::ChargesReached`]. One-shot: the threshold is disarmed before this is sent. `cgroup_id` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChargesReached {
    /// Common part.
    pub header: Header,
    /// Pages charged so far, this charge included.
    pub charged_pages: u64,
    /// Which arming this answers: [`charges::GENERATION`] when the threshold was taken.
    pub generation: u64,
    /// The node's memory then.
    pub node: NodePages,
}

/// The node's pages by the kernel's own counters, those that `/proc/meminfo` shows; all [`UNKNOWN_U64`] where the
/// program does not read them ([`Config::memory_nodes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NodePages {
    /// `MemFree`.
    pub free: u64,
    /// `MemAvailable`.
    pub available: u64,
    /// `AnonPages`.
    pub anon: u64,
    /// `Cached`, `Buffers` and `SwapCached` together.
    pub file: u64,
    /// `Inactive(file)`.
    pub inactive_file: u64,
    /// `Active(file)`.
    pub active_file: u64,
    /// `Shmem`.
    pub shmem: u64,
}

/// The kernel's counters, summed up over NUMA nodes, pages. One that has not heard of all CPUs yet can be below zero,
/// in two's complement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSums {
    /// `NR_FREE_PAGES`.
    pub free: u64,
    /// `NR_ANON_MAPPED`.
    pub anon: u64,
    /// `NR_FILE_PAGES`.
    pub file: u64,
    /// `NR_INACTIVE_FILE`.
    pub inactive_file: u64,
    /// `NR_ACTIVE_FILE`.
    pub active_file: u64,
    /// `NR_SHMEM`.
    pub shmem: u64,
    /// `NR_SLAB_RECLAIMABLE_B`.
    pub slab: u64,
    /// `NR_KERNEL_MISC_RECLAIMABLE`.
    pub misc: u64,
    /// `totalreserve_pages`.
    pub reserve: u64,
    /// The low watermarks of all zones.
    pub low_watermarks: u64,
}

impl NodePages {
    /// What `/proc/meminfo` makes of the counters: one below zero counts as 0, and `MemAvailable` is that of
    /// `si_mem_available` in mm/show_mem.c.
    #[must_use]
    #[inline(always)]
    pub const fn of(sums: &NodeSums) -> Self {
        let free = positive(sums.free);
        let inactive_file = positive(sums.inactive_file);
        let active_file = positive(sums.active_file);
        let pages = last_line::Pages {
            free,
            file: inactive_file.wrapping_add(active_file),
            reclaimable: positive(sums.slab).wrapping_add(positive(sums.misc)),
            reserve: sums.reserve,
            swap: 0,
        };
        Self {
            free,
            available: last_line::available_pages(pages, sums.low_watermarks),
            anon: positive(sums.anon),
            file: positive(sums.file),
            inactive_file,
            active_file,
            shmem: positive(sums.shmem),
        }
    }

    /// Not read.
    pub const UNKNOWN: Self = Self {
        free: UNKNOWN_U64,
        available: UNKNOWN_U64,
        anon: UNKNOWN_U64,
        file: UNKNOWN_U64,
        inactive_file: UNKNOWN_U64,
        active_file: UNKNOWN_U64,
        shmem: UNKNOWN_U64,
    };
}

/// [`MemoryStall::cause`] numbers.
pub mod stall_cause {
    /// A task waited for memory, for whatever reason, by the kernel's own definition (`psi_memstall_enter` to
    /// `psi_memstall_leave`): what PSI counts. `cgroup_id` is the task's. The other causes are parts of it.
    pub const MEMORY: u32 = 1;
    /// A task reclaimed because of a limit. `cgroup_id` owns the limit, or is the task's where the hook does not see
    /// the owner.
    pub const LIMIT: u32 = 2;
    /// A task was put to sleep because `memory.high` is exceeded. `cgroup_id` is the task's.
    pub const HIGH: u32 = 3;
    /// A task reclaimed because the node is short of memory. `cgroup_id` is the task's.
    pub const NODE: u32 = 4;
    /// All of them.
    pub const ALL: [u32; 4] = [MEMORY, LIMIT, HIGH, NODE];
}

/// [`Kind::MemoryStall`]. At most one per cgroup, cause and window; the numbers are totals since the programs were
/// attached, over all threads, so that two that wait at the same time count twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryStall {
    /// Common part.
    pub header: Header,
    /// The memory cgroup of the task whose stall has just ended.
    pub actor_cgroup_id: u64,
    /// Finished stalls so far.
    pub count: u64,
    /// Their time.
    pub sum_ns: u64,
    /// The longest of them.
    pub max_ns: u64,
    /// Pages reclaimed so far; [`UNKNOWN_U64`] for causes that reclaim none.
    pub pages: u64,
    /// One of [`stall_cause`].
    pub cause: u32,
    /// Zero.
    pub pad: u32,
}

/// [`Refault::what`] numbers.
pub mod refault {
    /// Anonymous memory, back from swap.
    pub const ANON: u32 = 1;
    /// Page cache, back from its file.
    pub const FILE: u32 = 2;
    /// Read from swap: anonymous memory and tmpfs, whether it was evicted long ago or not, compressed swap included.
    pub const SWAP_IN: u32 = 3;
    /// All of them.
    pub const ALL: [u32; 3] = [ANON, FILE, SWAP_IN];
}

/// [`Kind::Refault`]. `cgroup_id` is the memory cgroup of the task that reads the pages back. At most one per cgroup,
/// `what` and window; the numbers are totals since the programs were attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Refault {
    /// Common part.
    pub header: Header,
    /// How often so far.
    pub count: u64,
    /// Pages so far.
    pub pages: u64,
    /// One of [`refault`].
    pub what: u32,
    /// Zero.
    pub pad: u32,
}

/// [`Kind::ProcessBirth`]: `clone3(CLONE_INTO_CGROUP)`, which [`Kind::CgroupAttach`] does not report. `cgroup_id` is
/// the child's memory cgroup; only cgroups that the agent follows have such records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProcessBirth {
    /// Common part.
    pub header: Header,
    /// The parent's memory cgroup.
    pub parent_cgroup_id: u64,
    /// The new process.
    pub tgid: u32,
    /// Its parent.
    pub parent_tgid: u32,
}

/// Bytes of the `MANIFEST` map's value: JSON, filled up with zeros.
pub const MANIFEST_BYTES: usize = 32 << 10;

/// A counter of the kernel as it shows it.
#[inline(always)]
pub(crate) const fn positive(counter: u64) -> u64 {
    if counter > u64::MAX / 2 { 0 } else { counter }
}

/// The words of the `CHARGES` map.
pub mod charges {
    /// Pages charged to memory cgroups since the programs were attached: gross, so it never falls. Only the program
    /// writes it.
    pub const TOTAL_PAGES: u32 = 0;
    /// The total at which to send a record; 0 when none is armed. Written by the agent, cleared by the program.
    pub const THRESHOLD_PAGES: u32 = 1;
    /// The number of the newest arming, from 1; 0 when nothing was ever armed. Written by the agent, before the
    /// threshold that it belongs to, and read by the program after it has taken a threshold. So the newest threshold is
    /// never reported under an older number. An older threshold may be reported under the newest number, if it is
    /// crossed between the two writes: the newest threshold is then armed all the same.
    pub const GENERATION: u32 = 2;
    /// Length.
    pub const WORDS: u32 = 3;
}

const _: () = assert!(size_of::<Header>() == 24);
const _: () = assert!(size_of::<CgroupMkdir>() == 296);
const _: () = assert!(size_of::<OomKill>() == 80);

/// What the agent decides once, before the programs are loaded. Lives in frozen read-only data, so nothing in it may
/// depend on the agent's process: the programs outlive that.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Config {
    /// Aggregation window of the pressure kinds.
    pub window_ns: u64,
    /// The most pages that one charge of memory can be for: of a larger one so many count.
    pub charge_pages_max: u64,
    /// 1 when the memory controller sits on a cgroup v1 hierarchy: a task's memory cgroup is then found through
    /// `css_set.subsys` instead of `css_set.dfl_cgrp`.
    pub memory_is_v1: u32,
    /// The number of the hierarchy that has the memory controller: 0 for v2. Ids of cgroups are unique only within one.
    pub memory_hierarchy: u32,
    /// The number of the hierarchy that has the cpu controller.
    pub cpu_hierarchy: u32,
    /// 1 when PSI counts, so that `task_struct.in_memstall` distinguishes an outer stall from one inside it.
    pub psi_is_on: u32,
    /// 1 when only what happens in pods is counted, under the ids in the `COUNTED` map; 0: each cgroup by itself.
    pub counts_pods_only: u32,
    /// NUMA nodes that there can be: the counters of so many make [`NodePages`]. At most [`MEMORY_NODES_MAX`]; 0 when
    /// there are more, or a member that they are found by is missing.
    pub memory_nodes: u32,
}

const _: () = assert!(size_of::<Config>() == 40);

/// The most of [`Config::memory_nodes`]: a bound that the verifier can walk.
pub const MEMORY_NODES_MAX: u32 = 8;

/// Cgroups of one hierarchy that have counts of their own, when only pods are counted. So many have room in every map
/// of totals, with all their events and causes.
pub const COUNTED_MAX: u32 = 1024;

/// Entries of the maps whose key is a cgroup id.
pub const BY_CGROUP_MAX: u32 = 4096;

/// Entries of the maps whose key is a cgroup id and an event or cause.
pub const BY_CGROUP_AND_CAUSE_MAX: u32 = 8192;

const _: () =
    assert!(COUNTED_MAX as usize * memory_event::ALL.len() <= BY_CGROUP_AND_CAUSE_MAX as usize);
const _: () =
    assert!(COUNTED_MAX as usize * stall_cause::ALL.len() <= BY_CGROUP_AND_CAUSE_MAX as usize);
const _: () =
    assert!(COUNTED_MAX as usize * refault::ALL.len() <= BY_CGROUP_AND_CAUSE_MAX as usize);
// One for NO_POD.
const _: () = assert!(COUNTED_MAX < BY_CGROUP_MAX);

macro_rules! layout {
    ($($(#[$doc:meta])+ $field:ident: $path:literal,)+) => {
        /// Where things are in the running kernel. The agent fills it from the kernel's BTF before loading; because the
        /// map is frozen, the verifier knows each number and checks each load against the same BTF.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct Layout { $($(#[$doc])+ pub $field: u32,)+ }

        impl Layout {
            /// The members by the name under which errors report them, in the order of the fields.
            pub const MEMBERS: &'static [&'static str] = &[$($path,)+];

            /// All unresolved.
            pub const UNRESOLVED: Layout = Layout { $($field: u32::MAX,)+ };

            /// The field that holds `member`'s offset.
            pub fn field_mut(&mut self, member: &str) -> Option<&mut u32> {
                match member { $($path => Some(&mut self.$field),)+ _ => None }
            }
        }
    };
}

layout! {
    /// The css embedded in a memcg.
    memcg_css: "mem_cgroup.css",
    /// The cgroup of a css.
    css_cgroup: "cgroup_subsys_state.cgroup",
    /// The css of the parent cgroup.
    css_parent: "cgroup_subsys_state.parent",
    /// The cgroup's own css.
    cgroup_self: "cgroup.self",
    /// A memcg's page counter of all its memory.
    memcg_usage: "mem_cgroup.memory.usage",
    /// What a memcg has on each NUMA node: pointers, by node.
    memcg_nodes: "mem_cgroup.nodeinfo",
    /// The NUMA node that such a part belongs to.
    memcg_node_pgdat: "mem_cgroup_per_node.lruvec.pgdat",
    /// Pages of a NUMA node that the kernel keeps for itself.
    pgdat_reserve: "pglist_data.totalreserve_pages",
    /// Its counters, each by its place.
    pgdat_anon: "pglist_data.vm_stat[NR_ANON_MAPPED]",
    /// As above.
    pgdat_file: "pglist_data.vm_stat[NR_FILE_PAGES]",
    /// As above.
    pgdat_inactive_file: "pglist_data.vm_stat[NR_INACTIVE_FILE]",
    /// As above.
    pgdat_active_file: "pglist_data.vm_stat[NR_ACTIVE_FILE]",
    /// As above.
    pgdat_shmem: "pglist_data.vm_stat[NR_SHMEM]",
    /// As above.
    pgdat_slab: "pglist_data.vm_stat[NR_SLAB_RECLAIMABLE_B]",
    /// As above.
    pgdat_misc: "pglist_data.vm_stat[NR_KERNEL_MISC_RECLAIMABLE]",
    /// Its zones.
    pgdat_zones: "pglist_data.node_zones[0]",
    /// The second of them, for the length of one.
    pgdat_second_zone: "pglist_data.node_zones[1]",
    /// How many have memory, counted up to the last that has.
    pgdat_zone_count: "pglist_data.nr_zones",
    /// Free pages of a zone.
    zone_free: "zone.vm_stat[NR_FREE_PAGES]",
    /// Its low watermark.
    zone_low: "zone._watermark[WMARK_LOW]",
    /// What is added to its watermarks for a while.
    zone_boost: "zone.watermark_boost",
    /// The cgroups above a cgroup, by level, and itself.
    cgroup_ancestors: "cgroup.ancestors",
    /// The memory controller's entry in `cgroup.subsys`.
    cgroup_memory_css: "cgroup.subsys[memory_cgrp_id]",
    /// The cgroup's directory.
    cgroup_kn: "cgroup.kn",
    /// Depth.
    cgroup_level: "cgroup.level",
    /// The cgroup's hierarchy.
    cgroup_root: "cgroup.root",
    /// The hierarchy's number.
    root_hierarchy_id: "cgroup_root.hierarchy_id",
    /// The cgroup id.
    kn_id: "kernfs_node.id",
    /// Process id.
    task_tgid: "task_struct.tgid",
    /// Thread id.
    task_pid: "task_struct.pid",
    /// The bit, counted from the start of the struct, that says that the task waits for memory.
    task_in_memstall_bit: "task_struct.in_memstall",
    /// Flags of a folio.
    folio_flags: "folio.flags",
    /// Pages of a folio that has more than one.
    folio_pages: "folio.nr_pages",
    /// The flag of such a folio.
    page_head_bit: "PG_head",
    /// The flag of anonymous memory and tmpfs.
    page_swapbacked_bit: "PG_swapbacked",
    /// The task's set of cgroups.
    task_cgroups: "task_struct.cgroups",
    /// State shared by the threads of a process.
    task_signal: "task_struct.signal",
    /// Command name.
    task_comm: "task_struct.comm",
    /// Address space.
    task_mm: "task_struct.mm",
    /// The task's cgroup on the v2 hierarchy.
    cset_dfl_cgrp: "css_set.dfl_cgrp",
    /// The memory controller's entry in `css_set.subsys`.
    cset_memory_css: "css_set.subsys[memory_cgrp_id]",
    /// What the name says.
    signal_oom_score_adj: "signal_struct.oom_score_adj",
    /// Pages of address space.
    mm_total_vm: "mm_struct.total_vm",
    /// Anonymous resident pages.
    mm_anon: "mm_struct.rss_stat[MM_ANONPAGES]",
    /// The memcg whose limit was hit.
    oc_memcg: "oom_control.memcg",
    /// The victim.
    oc_chosen: "oom_control.chosen",
    /// Its points.
    oc_chosen_points: "oom_control.chosen_points",
    /// The group that a run queue belongs to.
    cfs_rq_tg: "cfs_rq.tg",
    /// The css embedded in a task group.
    tg_css: "task_group.css",
    /// When a run queue was stopped for want of quota, by its CPU's clock; when it was not, 0, or before 6.6 what it
    /// last was.
    cfs_rq_throttled_clock: "cfs_rq.throttled_clock",
    /// When the running throttle began for the group's own tasks. Came (6.6) with the change that sets both clocks back
    /// to 0 at the end.
    cfs_rq_throttled_clock_self: "cfs_rq.throttled_clock_self",
    /// The CPU that a run queue belongs to.
    cfs_rq_rq: "cfs_rq.rq",
    /// That CPU's clock, by which waits are measured.
    rq_clock: "rq.clock",
    /// Position of `order` among the arguments of the direct reclaim tracepoint.
    direct_reclaim_order_arg: "mm_vmscan_direct_reclaim_begin(order)",
}

/// Entries of the per-CPU counter array: produced, dropped and folded for each kind, then [`UNTRACKED`].
pub const COUNTERS: u32 = 3 * KIND_SLOTS as u32 + 1;

/// Index of the counter of things that found their map full, so that later totals miss them.
pub const UNTRACKED: u32 = 3 * KIND_SLOTS as u32;

/// Index of the counter of records of `kind` that the programs tried to send.
#[must_use]
pub const fn produced(kind: Kind) -> u32 {
    3 * kind.number() as u32
}

/// Index of the counter of records of `kind` that found their ring full.
#[must_use]
pub const fn dropped(kind: Kind) -> u32 {
    3 * kind.number() as u32 + 1
}

/// Index of the counter of events of `kind` that got no record of their own, because their cgroup had its share: they
/// are in that cgroup's totals instead. Not among those [`produced`].
#[must_use]
pub const fn folded(kind: Kind) -> u32 {
    3 * kind.number() as u32 + 2
}

/// Key of the `OOM_KILLS` map for kills in no pod, when only pods are counted, and for those in cgroups that have been
/// removed.
pub const NO_POD: u64 = 0;

/// Value of the `OOM_KILLS` map (key: the victims' cgroup id, or [`NO_POD`]), by field.
pub mod oom_totals {
    /// When the window began in which records are counted now.
    pub const WINDOW_NS: usize = 0;
    /// Records sent in that window.
    pub const SENT: usize = 1;
    /// Choices of the OOM killer that got no record.
    pub const CHOICES: usize = 2;
    /// Victims named that got no record.
    pub const VICTIMS: usize = 3;
    /// Length of the value in 64-bit words.
    pub const WORDS: usize = 4;
}

/// Records of OOM kills that one cgroup gets in a window. More than a container usually has processes, for one that is
/// killed as a whole names each.
pub const OOM_RECORDS_PER_WINDOW: u64 = 128;

/// Size of the ring for what leads to a decision at once.
pub const CRITICAL_BYTES: u32 = 64 << 10;

/// So much of that ring is kept for [`Kind::ChargesReached`], the only record that the agent asks for. It arms one at a
/// time, after it has read up to 512 records; a full ring has about a thousand, so a handful can wait at most. The rest
/// is for CPUs that found room for another record at the same moment.
pub const CRITICAL_RESERVED_BYTES: u32 = 16 << 10;

/// The rest of that ring: for records that processes without privileges can cause.
pub const CRITICAL_SHARED_BYTES: u32 = CRITICAL_BYTES - CRITICAL_RESERVED_BYTES;

/// Size of the ring for cgroups and processes that come and go: some 860 cgroups that are made with paths of any
/// length, or 6,500 of the other records, between two reads. It is read when its first record comes; what a flood
/// loses, the agent makes up for by a look at cgroupfs.
pub const LIFECYCLE_BYTES: u32 = 256 << 10;

/// Size of the ring for what is aggregated: some 3,200 records between two reads. The agent reads it every 5 s, so for
/// 65 causes in cgroups that send one in each window of 100 ms; the totals in the maps have what it loses.
pub const PRESSURE_BYTES: u32 = 256 << 10;

/// What the kernel puts before each record of a ring.
pub const RING_HEADER_BYTES: usize = 8;

// Sixteen records of crossings, and one of the largest others from each of 64 CPUs.
const _: () = assert!(
    CRITICAL_RESERVED_BYTES as usize
        >= 16 * (size_of::<ChargesReached>() + RING_HEADER_BYTES)
            + 64 * (size_of::<last_line::LastLineKill>() + RING_HEADER_BYTES)
);

/// Value of the `THROTTLE` map (key: cgroup id), by field: running totals.
pub mod throttle_totals {
    /// When the last start record was sent.
    pub const START_SENT_NS: usize = 0;
    /// When the last stop record was sent.
    pub const STOP_SENT_NS: usize = 1;
    /// Finished throttles.
    pub const COUNT: usize = 2;
    /// Their time.
    pub const SUM_NS: usize = 3;
    /// The longest.
    pub const MAX_NS: usize = 4;
    /// Length of the value in 64-bit words.
    pub const WORDS: usize = 5;
}

/// Value of the `MEMORY` map (key: cgroup id, event), by field: running totals.
pub mod memory_totals {
    /// When the last record was sent.
    pub const SENT_NS: usize = 0;
    /// Events.
    pub const COUNT: usize = 1;
    /// Pages asked for.
    pub const PAGES: usize = 2;
    /// Length of the value in 64-bit words.
    pub const WORDS: usize = 3;
}

/// Value of the `STALLED` map (key: thread), by field.
pub mod stalled {
    /// How many stalls the thread is in, one inside the other.
    pub const DEPTH: usize = 0;
    /// When the outermost began.
    pub const SINCE_NS: usize = 1;
    /// When it was put to sleep because of `memory.high`; 0 when it was not.
    pub const ASLEEP_NS: usize = 2;
    /// Length of the value in 64-bit words.
    pub const WORDS: usize = 3;
}

/// Value of the `STALLS` map (key: cgroup id, cause), by field: running totals.
pub mod stall_totals {
    /// When the last record was sent.
    pub const SENT_NS: usize = 0;
    /// Finished stalls.
    pub const COUNT: usize = 1;
    /// Their time.
    pub const SUM_NS: usize = 2;
    /// The longest.
    pub const MAX_NS: usize = 3;
    /// Pages reclaimed.
    pub const PAGES: usize = 4;
    /// Length of the value in 64-bit words.
    pub const WORDS: usize = 5;
}

/// Value of the `REFAULTS` map (key: cgroup id, [`refault`]), by field: running totals.
pub mod refault_totals {
    /// When the last record was sent.
    pub const SENT_NS: usize = 0;
    /// How often.
    pub const COUNT: usize = 1;
    /// Pages.
    pub const PAGES: usize = 2;
    /// Length of the value in 64-bit words.
    pub const WORDS: usize = 3;
}

/// Value of the `PROCESSES` map (key: cgroup id), by field: running totals.
pub mod process_totals {
    /// Processes born.
    pub const FORKS: usize = 0;
    /// Programs started.
    pub const EXECS: usize = 1;
    /// Length of the value in 64-bit words.
    pub const WORDS: usize = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_without_gaps_and_round_trip() {
        for (index, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(usize::from(kind.number()), index + 1);
            assert_eq!(Kind::try_from(kind.number()), Ok(kind));
        }
        assert_eq!(Kind::try_from(0), Err(UnknownKind(0)));
        assert_eq!(
            Kind::try_from(KIND_SLOTS as u16),
            Err(UnknownKind(KIND_SLOTS as u16))
        );
        assert_eq!(Kind::try_from(u16::MAX), Err(UnknownKind(u16::MAX)));
    }

    #[test]
    fn every_counter_index_is_used_once() {
        let mut seen = [false; COUNTERS as usize];
        for kind in KINDS {
            for index in [produced(kind), dropped(kind), folded(kind)] {
                assert!(!core::mem::replace(&mut seen[index as usize], true));
            }
        }
        assert!(!seen[UNTRACKED as usize]);
    }

    #[test]
    fn counters_are_shown_as_the_kernel_shows_them() {
        let sums = NodeSums {
            free: 1000,
            anon: 500,
            file: 400,
            inactive_file: 100,
            active_file: 300,
            shmem: 20,
            slab: 60,
            misc: 4,
            reserve: 50,
            low_watermarks: 40,
        };
        let pages = NodePages::of(&sums);
        // Of 400 pages of cache 360 can go, of 64 others half.
        assert_eq!(pages.available, 1000 + 360 + 32 - 50);
        assert_eq!(
            (pages.free, pages.anon, pages.file, pages.shmem),
            (sums.free, sums.anon, sums.file, sums.shmem)
        );
        // Not all CPUs have told theirs: that is no page, not nearly all there could be.
        let below: NodeSums = NodeSums {
            free: 10_u64.wrapping_neg(),
            anon: 10_u64.wrapping_neg(),
            file: 10_u64.wrapping_neg(),
            inactive_file: 10_u64.wrapping_neg(),
            active_file: 10_u64.wrapping_neg(),
            shmem: 10_u64.wrapping_neg(),
            slab: 10_u64.wrapping_neg(),
            misc: 10_u64.wrapping_neg(),
            ..sums
        };
        let none = NodePages {
            free: 0,
            available: 0,
            anon: 0,
            file: 0,
            inactive_file: 0,
            active_file: 0,
            shmem: 0,
        };
        assert_eq!(NodePages::of(&below), none);
    }

    #[test]
    fn every_member_has_a_field() {
        let mut layout = Layout::UNRESOLVED;
        for (index, member) in Layout::MEMBERS.iter().enumerate() {
            *layout.field_mut(member).expect("a field") = u32::try_from(index).expect("small");
        }
        let words: [u32; Layout::MEMBERS.len()] = zerocopy::transmute!(layout);
        for (index, word) in words.into_iter().enumerate() {
            assert_eq!(word as usize, index);
        }
    }
}
