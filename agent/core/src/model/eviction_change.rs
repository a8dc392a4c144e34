//! What a decision says of a pod's leaving: the one match on all decisions for that.

use crate::kube::pod_uid::PodUid;
use crate::model::decision::{Decision, EvictionEnding};

/// What a decision says of a pod's leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionChange<'a> {
    /// Nothing that has to be followed up.
    None,
    /// The pod is evicted.
    Evicted(&'a PodUid),
    /// It has left, or what is left of it is not waited for any more.
    Over {
        /// Which pod.
        uid: &'a PodUid,
        /// How it ended.
        ending: EvictionEnding,
        /// `memory.current` of the pod when its eviction began.
        usage_before_bytes: u64,
        /// How much of that came back.
        freed_bytes: u64,
    },
}

impl Decision {
    /// What it says of a pod's leaving.
    pub const fn eviction_change(&self) -> EvictionChange<'_> {
        match self {
            Self::Evict { uid, .. } => EvictionChange::Evicted(uid),
            Self::Finished {
                uid,
                ending,
                usage_before_bytes,
                freed_bytes,
            } => EvictionChange::Over {
                uid,
                ending: *ending,
                usage_before_bytes: *usage_before_bytes,
                freed_bytes: *freed_bytes,
            },
            Self::Arm { .. }
            | Self::SampleBy { .. }
            | Self::Withdraw { .. }
            | Self::End { .. }
            | Self::Kill { .. }
            | Self::ReleaseMemory { .. }
            | Self::FreeDisk { .. }
            | Self::ReadStorageEvery { .. }
            | Self::Reclaim { .. }
            | Self::StopReclaim { .. }
            | Self::SetHigh { .. }
            | Self::ClearHigh { .. }
            | Self::Notify { .. }
            | Self::RemedyEnded { .. }
            | Self::Place { .. }
            | Self::PlacementRefused { .. }
            | Self::PlacementLost { .. }
            | Self::PlacementFailed { .. }
            | Self::SetCpu { .. }
            | Self::RestoreCpu { .. }
            | Self::NoVictim { .. }
            | Self::EvictionsHeld { .. }
            | Self::Condition { .. } => EvictionChange::None,
        }
    }
}
