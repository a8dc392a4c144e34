//! All maps.
//!
//! Every hash map is preallocated: neither a program nor the agent allocates kernel memory to use one, which matters
//! because they are used when there is none left.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use plimsoll_abi::{
    BY_CGROUP_AND_CAUSE_MAX, BY_CGROUP_MAX, COUNTED_MAX, COUNTERS, CRITICAL_BYTES, KIND_SLOTS,
    LIFECYCLE_BYTES, MANIFEST_BYTES, PRESSURE_BYTES, charges, last_line, memory_totals, oom_totals,
    process_totals, refault_totals, stall_totals, stalled, throttle_totals,
};

/// What leads to a decision at once: each record wakes the agent. No flood can fill it: a part of it takes only the
/// record that the agent has armed (`plimsoll_abi::CRITICAL_RESERVED_BYTES`).
#[map]
pub(crate) static CRITICAL: RingBuf = RingBuf::with_byte_size(CRITICAL_BYTES, 0);

/// Cgroups and processes that come and go. Any user with a delegated cgroup can flood it; the agent then reads
/// cgroupfs. Wakes the agent when that has read all there was.
#[map]
pub(crate) static LIFECYCLE: RingBuf = RingBuf::with_byte_size(LIFECYCLE_BYTES, 0);

/// Aggregated: no wakeup, the agent polls it (`run` at its housekeeping, `events` every 20 ms).
#[map]
pub(crate) static PRESSURE: RingBuf = RingBuf::with_byte_size(PRESSURE_BYTES, 0);

/// Produced, dropped and folded by kind, and untracked (`plimsoll_abi::produced` and its siblings give the index).
#[map]
pub(crate) static COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// What is charged in all, and the total to report (`plimsoll_abi::charges`).
#[map]
pub(crate) static CHARGES: Array<u64> = Array::with_max_entries(charges::WORDS, 0);

/// What the last line goes by (`plimsoll_abi::last_line`): one slot is in force, the other is written by the agent.
#[map]
pub(crate) static LAST_LINE: Array<[u64; last_line::SLOT_WORDS]> =
    Array::with_max_entries(last_line::SLOTS, 0);

/// The number of the value of [`LAST_LINE`] that is in force. Written by the agent.
#[map]
pub(crate) static LAST_LINE_NEWEST: Array<u64> = Array::with_max_entries(1, 0);

/// What the last line has seen (`plimsoll_abi::last_line::seen`).
#[map]
pub(crate) static LAST_LINE_SEEN: Array<u64> = Array::with_max_entries(last_line::seen::WORDS, 0);

/// Cgroup id of a pod that may be condemned → what is known of it, and what was done to it
/// (`plimsoll_abi::last_line::pods`). The agent adds and removes entries.
#[map]
pub(crate) static LAST_LINE_PODS: HashMap<u64, [u64; last_line::pods::WORDS]> =
    HashMap::with_max_entries(256, 0);

/// Cgroup id of a pod → how many of its kills the agent has reported. Only agents use it: it is here so that the next
/// one knows.
#[map]
pub(crate) static KILLS_REPORTED: HashMap<u64, u64> = HashMap::with_max_entries(256, 0);

/// Process → when the last line killed it.
#[map]
pub(crate) static SIGNALLED: LruHashMap<u32, u64> = LruHashMap::with_max_entries(1024, 0);

/// (Hierarchy, cgroup id) → 1: the cgroups of pods that have counts of their own in the maps below. The agent adds
/// entries; those of removed cgroups go.
#[map]
pub(crate) static COUNTED: HashMap<[u64; 2], u64> = HashMap::with_max_entries(2 * COUNTED_MAX, 0);

/// Since when the run queue that is being resumed on this CPU was throttled.
#[map]
pub(crate) static THROTTLED: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Cgroup id → `plimsoll_abi::throttle_totals`.
#[map]
pub(crate) static THROTTLE: HashMap<u64, [u64; throttle_totals::WORDS]> =
    HashMap::with_max_entries(BY_CGROUP_MAX, 0);

/// (Cgroup id, event) → `plimsoll_abi::memory_totals`.
#[map]
pub(crate) static MEMORY: HashMap<[u64; 2], [u64; memory_totals::WORDS]> =
    HashMap::with_max_entries(BY_CGROUP_AND_CAUSE_MAX, 0);

/// Cgroup id, or `plimsoll_abi::NO_POD` → `plimsoll_abi::oom_totals`.
#[map]
pub(crate) static OOM_KILLS: HashMap<u64, [u64; oom_totals::WORDS]> =
    HashMap::with_max_entries(BY_CGROUP_MAX, 0);

/// What the agent has read, by CPU and kind. No program uses it: it is here so that it lives as long as the counts of
/// the programs. The agent maps it, and gives it room for the CPUs there are.
#[map]
pub(crate) static CONSUMED: Array<u64> = Array::with_max_entries(KIND_SLOTS as u32, BPF_F_MMAPABLE);

/// What the agent that loaded the programs found out, for the one that takes them over. No program uses it.
#[map]
pub(crate) static MANIFEST: Array<[u8; MANIFEST_BYTES]> = Array::with_max_entries(1, 0);

/// Thread → 1 while it reclaims for a reason other than a charge that met `memory.max`.
#[map]
pub(crate) static NOT_A_CHARGE: HashMap<u64, u64> = HashMap::with_max_entries(4096, 0);

/// Thread → `plimsoll_abi::stalled`, while it waits for memory.
#[map]
pub(crate) static STALLED: HashMap<u64, [u64; stalled::WORDS]> = HashMap::with_max_entries(8192, 0);

/// Thread → since when it reclaims.
#[map]
pub(crate) static RECLAIMING: HashMap<u64, u64> = HashMap::with_max_entries(8192, 0);

/// (Cgroup id, cause) → `plimsoll_abi::stall_totals`.
#[map]
pub(crate) static STALLS: HashMap<[u64; 2], [u64; stall_totals::WORDS]> =
    HashMap::with_max_entries(BY_CGROUP_AND_CAUSE_MAX, 0);

/// (Cgroup id, what) → `plimsoll_abi::refault_totals`.
#[map]
pub(crate) static REFAULTS: HashMap<[u64; 2], [u64; refault_totals::WORDS]> =
    HashMap::with_max_entries(BY_CGROUP_AND_CAUSE_MAX, 0);

/// Memory cgroup id → `plimsoll_abi::process_totals`. Only the agent adds entries: those are the cgroups that are
/// followed.
#[map]
pub(crate) static PROCESSES: HashMap<u64, [u64; process_totals::WORDS]> =
    HashMap::with_max_entries(4096, 0);

/// NUMA node (or [`DIRECT`]) → [last sent ns, count].
#[map]
pub(crate) static NODE_RECLAIM: Array<[u64; 2]> = Array::with_max_entries(DIRECT + 1, 0);

/// NUMA nodes with an entry each; a node beyond shares the last one.
pub(crate) const NODES: u32 = 64;

/// Index of direct reclaim in [`NODE_RECLAIM`].
pub(crate) const DIRECT: u32 = NODES;
