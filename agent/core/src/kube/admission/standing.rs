//! What an agent that admits pods by itself shows of it: which pods were refused, and how much of each quota is in use.

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;
use crate::kube::resources::ResourceList;

/// A pod that has a manifest and was refused. It is asked about again when something has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedPod {
    /// `namespace/name`.
    pub pod: String,
    /// Its identity.
    pub uid: PodUid,
    /// Where its manifest stands: `FILE:LINE`.
    pub place: String,
    /// Why, in the API server's words where these decide.
    pub message: String,
}

/// How much of a quota is in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaUse {
    /// `namespace/name`.
    pub quota: String,
    /// What may be in use.
    pub hard: ResourceList,
    /// What is in use; may be more, where the quota came later or was lowered.
    pub used: ResourceList,
}
