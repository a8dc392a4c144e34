//! Who owns an object, as far as decisions look at it.

use serde::{Deserialize, Serialize};

/// One of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Whether it made the object.
    pub controller: Option<bool>,
}

impl OwnerReference {
    /// It makes the pod anew on the same node, whatever is evicted. What a tenant can write on any pod is none: a Node
    /// as owner, for example, which says nothing that the annotation of a mirror pod does not say.
    #[must_use]
    pub fn is_daemon_set(&self) -> bool {
        self.kind == "DaemonSet" && self.api_version == "apps/v1" && self.controller == Some(true)
    }
}
