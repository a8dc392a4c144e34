//! Warnings of pods that count otherwise than their owners may think. They are many and come and go, so that each says
//! nothing by itself: their Consumer says how many there are.

use plimsoll_core::arbitration::census::PodUse;
use plimsoll_core::arbitration::requests::is_nothing;

use super::seen::pod::SeenPod;

/// What is unusual about a pod: it counts otherwise than its owner may think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodWarning {
    /// It requests nothing.
    NoRequests,
    /// No node could hold it.
    NeverFits,
    /// Evicted pods of its namespace do not end on its node, so that it stays.
    EvictedPodsHang,
}

impl PodWarning {
    /// What is unusual about this one by itself.
    #[must_use]
    pub fn of(pod: &SeenPod, standing: PodUse) -> Option<Self> {
        if standing == PodUse::NeverFits {
            return Some(Self::NeverFits);
        }
        is_nothing(&pod.requests).then_some(Self::NoRequests)
    }

    /// The word of Events and metrics.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NoRequests => "NoRequests",
            Self::NeverFits => "NeverFits",
            Self::EvictedPodsHang => "EvictedPodsHang",
        }
    }

    /// What it is of so many pods, and what follows.
    #[must_use]
    pub fn text(self, pods: u64) -> String {
        match self {
            Self::NoRequests => {
                format!("{pods} pods request nothing: each counts as one of pods alone")
            }
            Self::NeverFits => format!(
                "{pods} pods ask for nothing, as no node that is ready and that they may use could hold them, even an empty one: lower their requests, or add such a node"
            ),
            Self::EvictedPodsHang => format!(
                "{pods} pods are not evicted, as on their nodes two evicted pods of the namespace have not ended in their time: see there why these stay in Terminating (the runtime, the network plugin, a volume)"
            ),
        }
    }
}
