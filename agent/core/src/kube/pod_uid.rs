//! The identity of a pod.
//!
//! Immutable text shared by reference count: a clone on the path from kernel record to kill is a
//! counter increment, never an allocation.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Of a static pod's UID.
const STATIC_DIGITS: usize = 32;

/// A pod's identity: `metadata.uid`, or `<namespace>_<name>` for a manifest without one.
///
/// Ordered by its bytes. Rankings use that order as their last tie-break, so it never depends on where a pod was read
/// from or when.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(Arc<str>);

impl PodUid {
    /// Takes the text as it is; whether it may name a directory is checked where manifests are read.
    pub fn new(uid: impl Into<Arc<str>>) -> Self {
        Self(uid.into())
    }

    /// The identity of a pod that has no UID. `_` cannot occur in a Kubernetes name, so no two pods collide.
    pub fn of_name(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}_{name}").into())
    }

    /// The text, as used in the pod's cgroup name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether only a static pod has such a UID: the hash of its manifest (`applyDefaults` in
    /// pkg/kubelet/config/common.go), where the API server gives dashes.
    pub fn is_static(&self) -> bool {
        let mut bytes = self.0.bytes();
        bytes.len() == STATIC_DIGITS && bytes.all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodUid({})", self.0)
    }
}

impl From<&str> for PodUid {
    fn from(uid: &str) -> Self {
        Self::new(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_pod_has_a_hash() {
        for (uid, is_static) in [
            ("0123456789abcdef0123456789abcdef", true),
            ("0123456789ABCDEF0123456789ABCDEF", false),
            ("0123456789abcdef0123456789abcde", false),
            ("3f6b1a52-9c1e-4f39-8a31-0b7f5e2d8c11", false),
        ] {
            assert_eq!(PodUid::from(uid).is_static(), is_static, "{uid}");
        }
    }

    #[test]
    fn uid_is_plain_text_in_json() {
        let uid = PodUid::of_name("default", "web");
        assert_eq!(serde_json::to_string(&uid).unwrap(), r#""default_web""#);
        assert_eq!(
            serde_json::from_str::<PodUid>(r#""default_web""#).unwrap(),
            uid
        );
        assert_eq!(format!("{uid:>12}"), " default_web");
    }

    #[test]
    fn clone_shares_the_text() {
        let uid = PodUid::new("a-uid");
        assert!(std::ptr::eq(uid.as_str(), uid.clone().as_str()));
    }
}
