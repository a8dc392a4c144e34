//! Bytes from a ring buffer → [`Record`]. Pure: no I/O, no allocation, no panic on any input.
//!
//! The kernel side and this side are built from the same `plimsoll-abi`, but the bytes are not trusted: a record says
//! which version wrote it and of which kind it is, and is read only as far as it is long. An unknown kind is for the
//! caller to count and skip (a newer object may send more than this agent knows); another ABI version is an error,
//! because every field of every record may have moved.

mod record;

use std::mem::offset_of;

use plimsoll_abi::{
    self as abi, ABI_VERSION, Header, Kind, NODE_OOM, PATH_BYTES, UNKNOWN_U32, UNKNOWN_U64,
    last_line::{UID_BYTES, reason},
    memory_event, reclaim_phase, refault, stall_cause, throttle_phase,
};
use plimsoll_core::model::event::LastLineReason;
use zerocopy::FromBytes;

use super::charges::{Generation, bytes_of_pages};
pub use record::{
    Body, MemoryLimitEvent, NodeCounters, OomLimit, ReclaimPhase, Record, RefaultKind, StallCause,
    ThrottlePhase,
};

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

/// Reads one record, with the kind under which it is counted. Bytes after it are ignored.
///
/// # Errors
/// See [`DecodeError`]; only [`DecodeError::AbiMismatch`] concerns more than this one record.
pub fn decode(bytes: &[u8]) -> Result<(Kind, Record<'_>), DecodeError> {
    let header: Header = read(bytes)?;
    if header.abi_version != ABI_VERSION {
        return Err(DecodeError::AbiMismatch {
            got: header.abi_version,
        });
    }
    let kind = Kind::try_from(header.kind)
        .map_err(|unknown| DecodeError::UnknownKind { number: unknown.0 })?;
    let body = match kind {
        Kind::ChargesReached => read_charges_reached(bytes)?,
        Kind::LastLineKill => read_last_line_kill(bytes)?,
        Kind::CgroupMkdir => read_cgroup_mkdir(bytes)?,
        Kind::CgroupRmdir => read_cgroup_rmdir(bytes)?,
        Kind::CgroupAttach => read_cgroup_attach(bytes)?,
        Kind::CgroupPopulated => read_cgroup_populated(bytes)?,
        Kind::OomKill => read_oom_kill(bytes)?,
        Kind::MemoryEvent => read_memory_event(bytes)?,
        Kind::Throttle => read_throttle(bytes)?,
        Kind::MemoryStall => read_memory_stall(bytes)?,
        Kind::Refault => read_refault(bytes)?,
        Kind::ProcessBirth => read_process_birth(bytes)?,
        Kind::NodeReclaim => read_node_reclaim(bytes)?,
    };
    let record = Record {
        ts_ns: header.ts_ns,
        cgroup_id: header.cgroup_id,
        cpu: header.cpu,
        body,
    };
    Ok((kind, record))
}

fn read_charges_reached(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::ChargesReached = read(bytes)?;
    Ok(Body::ChargesReached {
        charged_bytes: bytes_of_pages(record.charged_pages),
        generation: Generation(record.generation),
        node: (record.node != abi::NodePages::UNKNOWN).then(|| node_counters(&record.node)),
    })
}

fn read_last_line_kill(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::last_line::LastLineKill = read(bytes)?;
    let length = record.comm.iter().take_while(|byte| **byte != 0).count();
    Ok(Body::LastLineKill {
        why: match last_line_reason(record.reason) {
            Some(why) => why,
            None => return unknown_value(Kind::LastLineKill, "reason", record.reason),
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
        available_pages: (record.available_pages != UNKNOWN_U64).then_some(record.available_pages),
        wanted_pages: record.wanted_pages,
        crossed_ns: (record.crossed_ns != 0).then_some(record.crossed_ns),
        acked_ns: record.acked_ns,
    })
}

fn read_cgroup_mkdir(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::CgroupMkdir = read(bytes)?;
    let length = (record.path_len as usize).min(PATH_BYTES);
    Ok(Body::CgroupMkdir {
        level: record.level,
        hierarchy_id: record.hierarchy_id,
        path: slice(bytes, offset_of!(abi::CgroupMkdir, path), length),
        is_cut: length >= PATH_BYTES - 1,
    })
}

fn read_cgroup_rmdir(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::CgroupRmdir = read(bytes)?;
    Ok(Body::CgroupRmdir {
        level: record.level,
        hierarchy_id: record.hierarchy_id,
    })
}

fn read_cgroup_attach(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::CgroupAttach = read(bytes)?;
    Ok(Body::CgroupAttach {
        tgid: record.tgid,
        hierarchy_id: record.hierarchy_id,
    })
}

fn read_cgroup_populated(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::CgroupPopulated = read(bytes)?;
    Ok(Body::CgroupPopulated {
        is_populated: record.populated != 0,
        hierarchy_id: record.hierarchy_id,
    })
}

fn read_oom_kill(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::OomKill = read(bytes)?;
    let length = record.comm.iter().take_while(|byte| **byte != 0).count();
    Ok(Body::OomKill {
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
    })
}

fn read_memory_event(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::MemoryEvent = read(bytes)?;
    Ok(Body::MemoryEvent {
        event: match memory_limit_event(record.event) {
            Some(event) => event,
            None => return unknown_value(Kind::MemoryEvent, "event", record.event),
        },
        count: record.count,
        pages: (record.pages != UNKNOWN_U64).then_some(record.pages),
    })
}

fn read_throttle(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::Throttle = read(bytes)?;
    Ok(Body::Throttle {
        phase: match record.phase {
            throttle_phase::START => ThrottlePhase::Start,
            throttle_phase::STOP => ThrottlePhase::Stop,
            value => return unknown_value(Kind::Throttle, "phase", value),
        },
        count: record.count,
        sum_ns: record.sum_ns,
        max_ns: record.max_ns,
    })
}

fn read_memory_stall(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::MemoryStall = read(bytes)?;
    Ok(Body::MemoryStall {
        cause: match stall_cause_of(record.cause) {
            Some(cause) => cause,
            None => return unknown_value(Kind::MemoryStall, "cause", record.cause),
        },
        actor_cgroup_id: record.actor_cgroup_id,
        count: record.count,
        sum_ns: record.sum_ns,
        max_ns: record.max_ns,
        pages: (record.pages != UNKNOWN_U64).then_some(record.pages),
    })
}

fn read_refault(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::Refault = read(bytes)?;
    Ok(Body::Refault {
        what: match refault_kind(record.what) {
            Some(what) => what,
            None => return unknown_value(Kind::Refault, "what", record.what),
        },
        count: record.count,
        pages: record.pages,
    })
}

fn read_process_birth(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::ProcessBirth = read(bytes)?;
    Ok(Body::ProcessBirth {
        tgid: record.tgid,
        parent_tgid: record.parent_tgid,
        parent_cgroup_id: record.parent_cgroup_id,
    })
}

fn read_node_reclaim(bytes: &[u8]) -> Result<Body<'_>, DecodeError> {
    let record: abi::NodeReclaim = read(bytes)?;
    Ok(Body::NodeReclaim {
        phase: match record.phase {
            reclaim_phase::KSWAPD_WAKE => ReclaimPhase::KswapdWake,
            reclaim_phase::DIRECT_RECLAIM => ReclaimPhase::DirectReclaim,
            value => return unknown_value(Kind::NodeReclaim, "phase", value),
        },
        count: record.count,
        node: (record.node != UNKNOWN_U32).then_some(record.node),
        order: record.order,
    })
}

fn node_counters(pages: &abi::NodePages) -> NodeCounters {
    NodeCounters {
        free_bytes: bytes_of_pages(pages.free),
        available_bytes: bytes_of_pages(pages.available),
        anon_bytes: bytes_of_pages(pages.anon),
        file_bytes: bytes_of_pages(pages.file),
        inactive_file_bytes: bytes_of_pages(pages.inactive_file),
        active_file_bytes: bytes_of_pages(pages.active_file),
        shmem_bytes: bytes_of_pages(pages.shmem),
    }
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
mod tests;
