//! What is tried before a pod is evicted for memory, and how it ended: the words, and what is remembered of it.
//!
//! The rules are in [`remedies`](crate::policy::eviction::remedies).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;

/// Something that is tried before an eviction, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// The kernel takes back page cache, and moves memory to swap.
    Reclaim,
    /// The pod is kept from growing.
    Throttle,
    /// The pod is asked to give memory back.
    Notify,
}

impl Remedy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Reclaim, Self::Throttle, Self::Notify];

    /// As it is called in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reclaim => "reclaim",
            Self::Throttle => "throttle",
            Self::Notify => "notify",
        }
    }
}

/// How something that was tried before an eviction ended. Unless it is resolved, the next remedy follows, and after the
/// last the eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemedyEnd {
    /// The threshold is satisfied, with its minimum reclaim: no pod is evicted.
    Resolved,
    /// The kernel has taken what it could from this pod.
    Exhausted,
    /// Nothing came back for too long.
    NoProgress,
    /// Its time is over.
    BudgetOver,
    /// Memory runs out too quickly to try anything: eviction follows at once.
    NoTime,
    /// The pod leaves, or may not be worked on any more.
    PodLeaves,
    /// This kernel, or this cgroup hierarchy, does not have it: it is not tried again.
    Unsupported,
    /// It could not be done.
    Failed,
}

impl fmt::Display for RemedyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Resolved => "that was enough",
            Self::Exhausted => "there was no more to take",
            Self::NoProgress => "nothing more came back",
            Self::BudgetOver => "its time is over",
            Self::NoTime => "memory runs out too quickly",
            Self::PodLeaves => "the pod leaves",
            Self::Unsupported => {
                "this kernel or cgroup version does not have it, so it is not tried again"
            }
            Self::Failed => "it could not be done",
        })
    }
}

/// What is remembered of remedies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RemedyState {
    /// The shortage that is being worked on.
    pub episode: Option<Episode>,
    /// Remedies, in the order of [`Remedy::ALL`], that this node cannot do.
    pub unsupported: [bool; Remedy::ALL.len()],
    /// Pods whose `memory.high` could not be put back, and when that is tried again, nanoseconds.
    pub clear_again: BTreeMap<PodUid, u64>,
    /// How fast memory is lost.
    #[serde(default)]
    pub loss: Loss,
}

/// The loss of `kernelMemory.available`. Page cache that comes into use is none.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Loss {
    /// The fastest between any two samples lately, bytes per second.
    pub peak_bytes_per_s: u64,
    /// The fastest lately over [`LOSS_WINDOW_NS`](crate::policy::eviction::remedies::LOSS_WINDOW_NS), or over a shorter
    /// time in which a [`LOSS_PART`](crate::policy::eviction::remedies::LOSS_PART) of what was left went; bytes per
    /// second.
    pub lasting_bytes_per_s: u64,
    /// When the present window began, nanoseconds, and what was left then, bytes.
    pub(crate) window: Option<(u64, u64)>,
}

/// From the sample at which a pod would have been evicted until none has to be or one is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Episode {
    /// The threshold that asks for a victim: its place in the configuration.
    pub threshold: usize,
    /// When it began, nanoseconds.
    pub since_ns: u64,
    /// The remedy that it has come to.
    pub remedy: Remedy,
    /// When that remedy's budget is over, nanoseconds.
    pub until_ns: u64,
    /// What is being tried; `None` between two attempts.
    pub attempt: Option<Attempt>,
}

/// A remedy at work on a pod.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// Which pod.
    pub uid: PodUid,
    /// Since when, nanoseconds.
    pub since_ns: u64,
    /// When there was progress last, nanoseconds.
    pub progress_ns: u64,
    /// The least that was missing so far, bytes.
    pub shortfall_bytes: u64,
    /// The least that the pod used so far, bytes.
    pub usage_bytes: u64,
    /// What the executor said last, if that ends it.
    pub ended: Option<RemedyEnd>,
}
