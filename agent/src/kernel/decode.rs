//! Bytes from a ring buffer → [`Record`]. Pure: no I/O, no allocation, no panic on any input.
//!
//! The kernel side and this side are built from the same `plimsoll-abi`, but the bytes are not trusted: a record says which
//! version wrote it and of which kind it is, and is read only as far as it is long. An unknown kind is for the caller to count
//! and skip (a newer object may send more than this agent knows); another ABI version is an error, because every field of
//! every record may have moved.

use std::mem::offset_of;

use plimsoll_abi::{
    self as abi, ABI_VERSION, Header, Kind, NODE_OOM, PATH_BYTES, UNKNOWN_U32, UNKNOWN_U64,
    last_line::{UID_BYTES, reason},
    memory_event, reclaim_phase, refault, stall_cause, throttle_phase,
};
use plimsoll_core::model::event::LastLineReason;
use zerocopy::FromBytes;

use super::charges::{Generation, bytes_of_pages};

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than its kind.
    #[error("a record of {got} bytes is shorter than the {wanted} bytes of its kind")]
    Truncated {
        /// Bytes there.
        got: usize,
        /// Bytes needed.
        wanted: usize,
    },
    /// Written by programs of another version.
    #[error(
        "a record of ABI version {got}, but this plimsoll reads version {ABI_VERSION}: build the agent and its BPF object \
         from the same source"
    )]
    AbiMismatch {
        /// The record's version.
        got: u16,
    },
    /// A kind that this version does not know: count it and go on.
    #[error("a record of kind {number}, which this plimsoll does not know")]
    UnknownKind {
        /// The record's kind.
        number: u16,
    },
    /// A number outside its enumeration.
    #[error("a {kind} record with {field} = {value}, which this plimsoll does not know", kind = kind.name())]
    UnknownValue {
        /// The record's kind.
        kind: Kind,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
    },
}

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

/// The part of a [`Record`] that depends on its kind. Sizes are in pages of the kernel; numbers called *so far* are totals
/// since the programs were attached, so that a lost record loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'bytes> {
    /// The watched cgroup's counter is about to reach its threshold. One-shot: it is disarmed now.
    ThresholdCrossed {
        /// The counter before the charge.
        usage_pages: u64,
        /// The charge that would reach the threshold.
        charge_pages: u64,
        /// What was armed.
        threshold_pages: u64,
        /// The number given when arming.
        generation: u64,
    },
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
    /// Tasks were held up for want of memory. The cgroup owns the limit for [`StallCause::Limit`] where fentry works, else it is
    /// the task's. Numbers are of all threads so far.
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
            Body::ThresholdCrossed { .. } => Kind::ThresholdCrossed,
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
    /// The hook that names each victim (`mark_victim`) does not tell. The choice before it does, where that hook is attached.
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

/// Why a task is held up for want of memory.
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

/// Reads one record. Bytes after it are ignored.
///
/// # Errors
/// See [`DecodeError`]; only [`DecodeError::AbiMismatch`] concerns more than this one record.
pub fn decode(bytes: &[u8]) -> Result<Record<'_>, DecodeError> {
    let header: Header = read(bytes)?;
    if header.abi_version != ABI_VERSION {
        return Err(DecodeError::AbiMismatch {
            got: header.abi_version,
        });
    }
    let kind = Kind::try_from(header.kind)
        .map_err(|unknown| DecodeError::UnknownKind { number: unknown.0 })?;
    let body = match kind {
        Kind::ThresholdCrossed => {
            let record: abi::ThresholdCrossed = read(bytes)?;
            Body::ThresholdCrossed {
                usage_pages: record.usage_pages,
                charge_pages: record.charge_pages,
                threshold_pages: record.threshold_pages,
                generation: record.generation,
            }
        }
        Kind::ChargesReached => {
            let record: abi::ChargesReached = read(bytes)?;
            Body::ChargesReached {
                charged_bytes: bytes_of_pages(record.charged_pages),
                generation: Generation(record.generation),
            }
        }
        Kind::LastLineKill => {
            let record: abi::last_line::LastLineKill = read(bytes)?;
            let length = record.comm.iter().take_while(|byte| **byte != 0).count();
            Body::LastLineKill {
                why: match last_line_reason(record.reason) {
                    Some(why) => why,
                    None => return unknown_value(kind, "reason", record.reason),
                },
                tgid: record.tgid,
                comm: slice(
                    bytes,
                    offset_of!(abi::last_line::LastLineKill, comm),
                    length,
                ),
                uid: slice(
                    bytes,
                    offset_of!(abi::last_line::LastLineKill, uid),
                    UID_BYTES,
                ),
                place: record.place,
                kills: record.kills,
                available_pages: (record.available_pages != UNKNOWN_U64)
                    .then_some(record.available_pages),
                wanted_pages: record.wanted_pages,
                crossed_ns: (record.crossed_ns != 0).then_some(record.crossed_ns),
                acked_ns: record.acked_ns,
            }
        }
        Kind::CgroupMkdir => {
            let record: abi::CgroupMkdir = read(bytes)?;
            let length = (record.path_len as usize).min(PATH_BYTES);
            Body::CgroupMkdir {
                level: record.level,
                hierarchy_id: record.hierarchy_id,
                path: slice(bytes, offset_of!(abi::CgroupMkdir, path), length),
                is_cut: length >= PATH_BYTES - 1,
            }
        }
        Kind::CgroupRmdir => {
            let record: abi::CgroupRmdir = read(bytes)?;
            Body::CgroupRmdir {
                level: record.level,
                hierarchy_id: record.hierarchy_id,
            }
        }
        Kind::CgroupAttach => {
            let record: abi::CgroupAttach = read(bytes)?;
            Body::CgroupAttach {
                tgid: record.tgid,
                hierarchy_id: record.hierarchy_id,
            }
        }
        Kind::CgroupPopulated => {
            let record: abi::CgroupPopulated = read(bytes)?;
            Body::CgroupPopulated {
                is_populated: record.populated != 0,
                hierarchy_id: record.hierarchy_id,
            }
        }
        Kind::OomKill => {
            let record: abi::OomKill = read(bytes)?;
            let length = record.comm.iter().take_while(|byte| **byte != 0).count();
            Body::OomKill {
                limit: match record.limit_cgroup_id {
                    NODE_OOM => OomLimit::Node,
                    UNKNOWN_U64 => OomLimit::Unknown,
                    id => OomLimit::Cgroup(id),
                },
                tgid: record.tgid,
                oom_score_adj: record.oom_score_adj,
                points: (record.points != i64::MAX).then_some(record.points),
                total_pages: record.total_pages,
                anon_pages: record.anon_pages,
                comm: slice(bytes, offset_of!(abi::OomKill, comm), length),
            }
        }
        Kind::MemoryEvent => {
            let record: abi::MemoryEvent = read(bytes)?;
            Body::MemoryEvent {
                event: match memory_limit_event(record.event) {
                    Some(event) => event,
                    None => return unknown_value(kind, "event", record.event),
                },
                count: record.count,
                pages: (record.pages != UNKNOWN_U64).then_some(record.pages),
            }
        }
        Kind::Throttle => {
            let record: abi::Throttle = read(bytes)?;
            Body::Throttle {
                phase: match record.phase {
                    throttle_phase::START => ThrottlePhase::Start,
                    throttle_phase::STOP => ThrottlePhase::Stop,
                    value => return unknown_value(kind, "phase", value),
                },
                count: record.count,
                sum_ns: record.sum_ns,
                max_ns: record.max_ns,
            }
        }
        Kind::MemoryStall => {
            let record: abi::MemoryStall = read(bytes)?;
            Body::MemoryStall {
                cause: match stall_cause_of(record.cause) {
                    Some(cause) => cause,
                    None => return unknown_value(kind, "cause", record.cause),
                },
                actor_cgroup_id: record.actor_cgroup_id,
                count: record.count,
                sum_ns: record.sum_ns,
                max_ns: record.max_ns,
                pages: (record.pages != UNKNOWN_U64).then_some(record.pages),
            }
        }
        Kind::Refault => {
            let record: abi::Refault = read(bytes)?;
            Body::Refault {
                what: match refault_kind(record.what) {
                    Some(what) => what,
                    None => return unknown_value(kind, "what", record.what),
                },
                count: record.count,
                pages: record.pages,
            }
        }
        Kind::ProcessBirth => {
            let record: abi::ProcessBirth = read(bytes)?;
            Body::ProcessBirth {
                tgid: record.tgid,
                parent_tgid: record.parent_tgid,
                parent_cgroup_id: record.parent_cgroup_id,
            }
        }
        Kind::NodeReclaim => {
            let record: abi::NodeReclaim = read(bytes)?;
            Body::NodeReclaim {
                phase: match record.phase {
                    reclaim_phase::KSWAPD_WAKE => ReclaimPhase::KswapdWake,
                    reclaim_phase::DIRECT_RECLAIM => ReclaimPhase::DirectReclaim,
                    value => return unknown_value(kind, "phase", value),
                },
                count: record.count,
                node: (record.node != UNKNOWN_U32).then_some(record.node),
                order: record.order,
            }
        }
    };
    Ok(Record {
        ts_ns: header.ts_ns,
        cgroup_id: header.cgroup_id,
        cpu: header.cpu,
        body,
    })
}

/// A number of `plimsoll_abi::last_line::reason`.
pub(crate) fn last_line_reason(number: u32) -> Option<LastLineReason> {
    match number {
        reason::CRITICAL => Some(LastLineReason::Critical),
        reason::UNACKNOWLEDGED => Some(LastLineReason::Unacknowledged),
        reason::EXHAUSTED => Some(LastLineReason::Exhausted),
        _ => None,
    }
}

/// A number of `plimsoll_abi::memory_event`.
pub(crate) fn memory_limit_event(number: u32) -> Option<MemoryLimitEvent> {
    match number {
        memory_event::HIGH => Some(MemoryLimitEvent::High),
        memory_event::MAX => Some(MemoryLimitEvent::Max),
        memory_event::OOM => Some(MemoryLimitEvent::Oom),
        memory_event::LOW => Some(MemoryLimitEvent::Low),
        memory_event::OOM_KILL => Some(MemoryLimitEvent::OomKill),
        memory_event::OOM_GROUP_KILL => Some(MemoryLimitEvent::OomGroupKill),
        _ => None,
    }
}

/// A number of `plimsoll_abi::stall_cause`.
pub(crate) fn stall_cause_of(number: u32) -> Option<StallCause> {
    match number {
        stall_cause::MEMORY => Some(StallCause::Memory),
        stall_cause::LIMIT => Some(StallCause::Limit),
        stall_cause::HIGH => Some(StallCause::High),
        stall_cause::NODE => Some(StallCause::Node),
        _ => None,
    }
}

/// A number of `plimsoll_abi::refault`.
pub(crate) fn refault_kind(number: u32) -> Option<RefaultKind> {
    match number {
        refault::ANON => Some(RefaultKind::Anon),
        refault::FILE => Some(RefaultKind::File),
        refault::SWAP_IN => Some(RefaultKind::SwapIn),
        _ => None,
    }
}

fn read<T: FromBytes>(bytes: &[u8]) -> Result<T, DecodeError> {
    T::read_from_prefix(bytes)
        .map(|(record, _)| record)
        .map_err(|_| DecodeError::Truncated {
            got: bytes.len(),
            wanted: size_of::<T>(),
        })
}

/// A byte array inside a record that [`read`] found long enough; empty if it were not.
fn slice(bytes: &[u8], offset: usize, length: usize) -> &[u8] {
    bytes.get(offset..offset + length).unwrap_or(&[])
}

fn unknown_value<T>(kind: Kind, field: &'static str, value: u32) -> Result<T, DecodeError> {
    Err(DecodeError::UnknownValue { kind, field, value })
}

#[cfg(test)]
mod tests {
    use plimsoll_abi::KINDS;
    use zerocopy::IntoBytes;

    use super::*;

    fn header(kind: Kind) -> Header {
        Header {
            ts_ns: 7,
            cgroup_id: 42,
            kind: kind.number(),
            abi_version: ABI_VERSION,
            cpu: 3,
        }
    }

    /// One record of each kind.
    fn samples() -> Vec<Vec<u8>> {
        let mut path = [0xffu8; PATH_BYTES];
        path[..5].copy_from_slice(b"/a/b\0");
        let mut comm = [0u8; 16];
        comm[..3].copy_from_slice(b"hog");
        vec![
            abi::ThresholdCrossed {
                header: header(Kind::ThresholdCrossed),
                usage_pages: 100,
                charge_pages: 64,
                threshold_pages: 150,
                generation: 9,
            }
            .as_bytes()
            .to_vec(),
            abi::CgroupMkdir {
                header: header(Kind::CgroupMkdir),
                level: 2,
                hierarchy_id: 0,
                path_len: 4,
                pad: 0,
                path,
            }
            .as_bytes()
            .to_vec(),
            abi::CgroupRmdir {
                header: header(Kind::CgroupRmdir),
                level: 2,
                hierarchy_id: 5,
            }
            .as_bytes()
            .to_vec(),
            abi::CgroupAttach {
                header: header(Kind::CgroupAttach),
                tgid: 77,
                hierarchy_id: 0,
            }
            .as_bytes()
            .to_vec(),
            abi::CgroupPopulated {
                header: header(Kind::CgroupPopulated),
                populated: 1,
                hierarchy_id: 0,
            }
            .as_bytes()
            .to_vec(),
            abi::OomKill {
                header: header(Kind::OomKill),
                limit_cgroup_id: 41,
                points: 1234,
                total_pages: 10,
                anon_pages: 9,
                tgid: 78,
                oom_score_adj: -997,
                comm,
            }
            .as_bytes()
            .to_vec(),
            abi::MemoryEvent {
                header: header(Kind::MemoryEvent),
                count: 4,
                pages: UNKNOWN_U64,
                event: memory_event::MAX,
                pad: 0,
            }
            .as_bytes()
            .to_vec(),
            abi::Throttle {
                header: header(Kind::Throttle),
                count: 5,
                sum_ns: 50,
                max_ns: 20,
                phase: throttle_phase::STOP,
                pad: 0,
            }
            .as_bytes()
            .to_vec(),
            abi::NodeReclaim {
                header: header(Kind::NodeReclaim),
                count: 6,
                phase: reclaim_phase::DIRECT_RECLAIM,
                node: UNKNOWN_U32,
                order: 0,
                pad: 0,
            }
            .as_bytes()
            .to_vec(),
            abi::ChargesReached {
                header: header(Kind::ChargesReached),
                charged_pages: 1000,
                generation: 12,
            }
            .as_bytes()
            .to_vec(),
            abi::last_line::LastLineKill {
                header: header(Kind::LastLineKill),
                available_pages: UNKNOWN_U64,
                wanted_pages: 500,
                crossed_ns: 0,
                acked_ns: 5,
                kills: 2,
                uid: [u64::from_ne_bytes(*b"default_"), 0, 0, 0, 0],
                tgid: 77,
                reason: reason::EXHAUSTED,
                place: 1,
                pad: 0,
                comm,
            }
            .as_bytes()
            .to_vec(),
            abi::MemoryStall {
                header: header(Kind::MemoryStall),
                actor_cgroup_id: 43,
                count: 3,
                sum_ns: 60,
                max_ns: 30,
                pages: 32,
                cause: stall_cause::LIMIT,
                pad: 0,
            }
            .as_bytes()
            .to_vec(),
            abi::Refault {
                header: header(Kind::Refault),
                count: 2,
                pages: 16,
                what: refault::SWAP_IN,
                pad: 0,
            }
            .as_bytes()
            .to_vec(),
            abi::ProcessBirth {
                header: header(Kind::ProcessBirth),
                parent_cgroup_id: 1,
                tgid: 80,
                parent_tgid: 79,
            }
            .as_bytes()
            .to_vec(),
        ]
    }

    #[test]
    fn every_kind_is_read_field_by_field() {
        let wanted = [
            Body::ThresholdCrossed {
                usage_pages: 100,
                charge_pages: 64,
                threshold_pages: 150,
                generation: 9,
            },
            Body::CgroupMkdir {
                level: 2,
                hierarchy_id: 0,
                path: b"/a/b",
                is_cut: false,
            },
            Body::CgroupRmdir {
                level: 2,
                hierarchy_id: 5,
            },
            Body::CgroupAttach {
                tgid: 77,
                hierarchy_id: 0,
            },
            Body::CgroupPopulated {
                is_populated: true,
                hierarchy_id: 0,
            },
            Body::OomKill {
                limit: OomLimit::Cgroup(41),
                tgid: 78,
                oom_score_adj: -997,
                points: Some(1234),
                total_pages: 10,
                anon_pages: 9,
                comm: b"hog",
            },
            Body::MemoryEvent {
                event: MemoryLimitEvent::Max,
                count: 4,
                pages: None,
            },
            Body::Throttle {
                phase: ThrottlePhase::Stop,
                count: 5,
                sum_ns: 50,
                max_ns: 20,
            },
            Body::NodeReclaim {
                phase: ReclaimPhase::DirectReclaim,
                count: 6,
                node: None,
                order: 0,
            },
            Body::ChargesReached {
                charged_bytes: bytes_of_pages(1000),
                generation: Generation(12),
            },
            Body::LastLineKill {
                why: LastLineReason::Exhausted,
                tgid: 77,
                comm: b"hog",
                uid: b"default_\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
                place: 1,
                kills: 2,
                available_pages: None,
                wanted_pages: 500,
                crossed_ns: None,
                acked_ns: 5,
            },
            Body::MemoryStall {
                cause: StallCause::Limit,
                actor_cgroup_id: 43,
                count: 3,
                sum_ns: 60,
                max_ns: 30,
                pages: Some(32),
            },
            Body::Refault {
                what: RefaultKind::SwapIn,
                count: 2,
                pages: 16,
            },
            Body::ProcessBirth {
                tgid: 80,
                parent_tgid: 79,
                parent_cgroup_id: 1,
            },
        ];
        assert_eq!(samples().len(), KINDS.len());
        assert_eq!(wanted.len(), KINDS.len());
        for ((kind, bytes), body) in KINDS.into_iter().zip(samples()).zip(wanted) {
            let record = decode(&bytes).expect("a whole record");
            assert_eq!(
                record,
                Record {
                    ts_ns: 7,
                    cgroup_id: 42,
                    cpu: 3,
                    body
                }
            );
            assert_eq!(record.body.kind(), kind);
            // Nothing about alignment is assumed.
            let mut shifted = vec![0u8];
            shifted.extend_from_slice(&bytes);
            assert_eq!(decode(&shifted[1..]), Ok(record));
        }
    }

    #[test]
    fn a_cut_record_is_an_error_at_every_length() {
        for bytes in samples() {
            for length in 0..bytes.len() {
                assert!(
                    matches!(
                        decode(&bytes[..length]),
                        Err(DecodeError::Truncated { got, wanted }) if got == length && wanted > length
                    ),
                    "{length} bytes of {}",
                    bytes.len()
                );
            }
        }
    }

    #[test]
    fn other_versions_and_kinds_are_told_apart() {
        let mut bytes = samples().remove(0);
        bytes[offset_of!(Header, kind)..][..2].copy_from_slice(&999u16.to_le_bytes());
        assert_eq!(
            decode(&bytes),
            Err(DecodeError::UnknownKind { number: 999 })
        );
        bytes[offset_of!(Header, abi_version)..][..2].copy_from_slice(&1u16.to_le_bytes());
        assert_eq!(decode(&bytes), Err(DecodeError::AbiMismatch { got: 1 }));
    }

    #[test]
    fn a_number_outside_its_enumeration_names_the_field() {
        let mut bytes = samples().remove(6);
        bytes[offset_of!(abi::MemoryEvent, event)..][..4].copy_from_slice(&8u32.to_le_bytes());
        let error = decode(&bytes).expect_err("event 8");
        assert_eq!(
            error.to_string(),
            "a memory-event record with event = 8, which this plimsoll does not know"
        );
    }

    #[test]
    fn an_absurd_path_length_stays_inside_the_record() {
        let mut bytes = samples().remove(1);
        bytes[offset_of!(abi::CgroupMkdir, path_len)..][..4]
            .copy_from_slice(&u32::MAX.to_le_bytes());
        let Ok(Record {
            body: Body::CgroupMkdir { path, is_cut, .. },
            ..
        }) = decode(&bytes)
        else {
            panic!("not a mkdir record");
        };
        assert_eq!(path.len(), PATH_BYTES);
        assert!(is_cut);
    }

    #[test]
    fn any_bytes_decode_or_are_refused() {
        // A small deterministic generator is enough: what is tested is that no input panics.
        let mut state = 0x1234_5678_9abc_def0u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let samples = samples();
        let mut decoded = 0;
        for _ in 0..50_000 {
            let mut bytes = samples[(next() as usize) % samples.len()].clone();
            for _ in 0..next() % 8 {
                let at = (next() as usize) % bytes.len();
                bytes[at] = next() as u8;
            }
            bytes.truncate((next() as usize) % (bytes.len() + 64));
            decoded += usize::from(decode(&bytes).is_ok());
        }
        assert!(decoded > 0);
    }
}
