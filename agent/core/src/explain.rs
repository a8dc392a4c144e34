//! Decisions as they can be read: the figures behind them, and what set one choice apart from the next.
//!
//! Problem: "why this pod?" must be answered by the same code that chose it, or the answer is a guess. Approach:
//! everything here is a pure view on what the policies compute; nothing decides. The types serialise, so that tables
//! for people and JSON for programs say the same.

mod eviction;
mod kubelet;
mod limit_defaults;
mod oom;
mod placement;
mod pod;
mod ranking;
mod status_message;
mod throttling;
mod usage;

pub use eviction::{
    EvictionExplanation, ExplainError, ExplainedCondition, ExplainedOveruse, ExplainedShare,
    ExplainedSignal, ExplainedThreshold, LeavingPod, OverLocalStorage, SignalChoice, headroom,
};
pub use kubelet::{Difference, KubeletAnswer};
pub use limit_defaults::{LimitDefault, LimitDefaults, ScoreChange};
pub use oom::{OomContainer, OomError, OomExplanation, PlannedScore};
pub use placement::{
    AlignmentView, AlternativeView, ContainerPlacement, NodeMemoryLeft, OfferView,
    PlacementExplanation, PlacementNotExplained, PodPlacement, placement, placement_of,
};
pub use pod::{ExplainedPod, Neighbour, NoSuchPod, WayOut, find as find_pod};
pub use ranking::{
    Candidate, EvictionStatus, ExplainedRanking, NotRanked, NotRankedReason, RankedPod,
};
pub use status_message::{ContainerUse, RunnerUp, StatusMessage};
pub use throttling::{CgroupCpuView, NodeCpuView, ThrottlingExplanation};
pub use usage::PodUsage;
