//! What the API server's admission makes of an object: LimitRange, PriorityClass and ResourceQuota.
//!
//! Problem: a pod's requests, limits and priority, and whether it may exist at all, are decided by the API server
//! before a kubelet sees it. On a machine without a cluster that half is missing, and on one with a cluster its answer
//! is to be explained.
//!
//! Approach: the plugins LimitRanger, Priority and ResourceQuota as functions of a request and of the objects in its
//! namespace, with the API's own defaulting and validation of these objects between them. Every sentence is the API
//! server's. Where upstream goes through a hash map, this goes through a sorted one: lists of causes are sorted, and
//! objects are processed in the order in which they are given.
//!
//! Source: Kubernetes 1.36 (`plugin/pkg/admission/{limitranger,priority}`,
//! `staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota`, `pkg/quota/v1`, `pkg/apis/core/validation`).
//!
//! Terms: a *plugin* has a *mutating* phase that fills in defaults and a *validating* phase that refuses; the API's
//! *validation* runs between both. A *refusal* is what the client sees: code, reason, message.

pub mod chain;
pub mod claim_rules;
pub mod field;
pub mod limit_range;
pub mod names;
pub mod object;
pub mod object_meta;
pub mod pod_object;
pub mod pod_rules;
pub mod priority;
pub mod request;
pub mod resource_quota;
pub mod resource_rules;
pub mod standing;

/// Whether the API server's known defects are kept.
///
/// Kept, an answer is the one that a cluster gives. The defects:
///
/// 1. a `matchScopes` entry of the quota configuration that cannot be parsed turns the whole quota plugin off for a
///    request;
/// 2. "insufficient quota to match these scopes" is a 500 without reason instead of a 403;
/// 3. a limited scope counts as covered by a quota that does not apply to the object;
/// 4. every status update of a claim is handled, whether or not its size changes;
/// 5. "conflicting scopes" of a scope selector shows the value of `scopes`;
/// 6. an error about `default` of a LimitRange shows the value of `min` or `max`;
/// 7. the ratio of limit to request is compared as a float;
/// 8. LimitRanger compares amounts beyond 64 bits as what wraps around, or as 0, and large ones in whole units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admission {
    /// As the API server of Kubernetes 1.36 answers.
    #[default]
    Upstream,
    /// As its documentation says.
    Corrected,
}

impl Admission {
    /// Whether the defects are kept.
    pub fn is_upstream(self) -> bool {
        self == Self::Upstream
    }
}
