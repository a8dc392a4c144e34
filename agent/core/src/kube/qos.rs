//! The quality-of-service classes of pods. [`crate::kube::pod_qos`] computes the class of one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far a pod's requests cover what it may use. Ordered from the best protected to the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QosClass {
    /// Every container has cpu and memory limits, and requests equal to them.
    Guaranteed,
    /// Something is requested or limited, but the pod is not Guaranteed.
    Burstable,
    /// Nothing is requested or limited.
    BestEffort,
}

impl QosClass {
    /// The API's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// The class of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Guaranteed, Self::Burstable, Self::BestEffort]
            .into_iter()
            .find(|class| class.as_str() == name)
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
