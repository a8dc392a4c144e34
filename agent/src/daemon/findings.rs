//! What a turn of the loop has found, before it takes a sample.

use plimsoll_core::model::event::Cause;

use crate::kernel::decode::NodeCounters;

/// What the record of a crossing says.
#[derive(Clone, Copy, Debug)]
pub struct Crossing {
    /// When it was, `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Charged to memory cgroups in total.
    pub charged_bytes: u64,
    /// The node's memory.
    pub node: Option<NodeCounters>,
}

/// What a turn of the loop has found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) cause: Option<Cause>,
    /// The crossing of the newest threshold, if that is what woke the loop.
    pub(super) crossing: Option<Crossing>,
    /// A container may have come: a cgroup, or a process into one.
    pub(super) containers: bool,
}

impl Findings {
    /// Of several causes the most telling is kept: an armed threshold before the watermarks, those before everything
    /// else.
    pub(super) fn add_cause(&mut self, cause: Cause) {
        let weight = |cause: &Cause| match cause {
            Cause::ChargeThreshold { .. } => 4,
            Cause::DirectReclaim { .. } => 3,
            Cause::KswapdWake { .. } => 2,
            Cause::PressureStall | Cause::MemoryEvent | Cause::Lifecycle | Cause::Storage => 1,
            // Rare, and what it answers waits for nothing else.
            Cause::DiskFreed => 5,
            Cause::Timer => 0,
        };
        if self
            .cause
            .as_ref()
            .is_none_or(|known| weight(known) < weight(&cause))
        {
            self.cause = Some(cause);
        }
    }
}
