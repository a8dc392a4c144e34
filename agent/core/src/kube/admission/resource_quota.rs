//! The plugin ResourceQuota: what a namespace may use together.
//!
//! Source: `staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go` and `pkg/quota/v1` of 1.36.
//! Quotas are taken in the order in which they are given; upstream takes them from a hash map.

pub mod check;
pub mod claims;
pub mod cluster;
pub mod configuration;
pub mod enforced;
pub mod evaluator;
pub mod pods;
pub mod recalculate;
pub mod scope;
pub mod usage;
pub mod validate;

use super::Admission;
use super::request::{Operation, Phase, Refusal, Request};
use crate::kube::quantity::Quantity;
use cluster::Cluster;
use configuration::Configuration;
pub use enforced::EnforcedQuota;
use evaluator::Evaluator;
pub use usage::{Charge, Charges, Usage};

/// How often a write that conflicted is tried again.
const RETRIES_MAX: usize = 3;

/// Resources that are not counted: virtual ones that are not kept, and events.
const IGNORED: [&str; 10] = [
    "bindings",
    "componentstatuses",
    "tokenreviews.authentication.k8s.io",
    "selfsubjectreviews.authentication.k8s.io",
    "subjectaccessreviews.authorization.k8s.io",
    "selfsubjectaccessreviews.authorization.k8s.io",
    "localsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectrulesreviews.authorization.k8s.io",
    "events",
    "events.events.k8s.io",
];

/// Where quotas are kept.
pub trait QuotaStore {
    /// The quotas of a namespace, as they are now.
    fn quotas(&mut self, namespace: &str) -> &[EnforcedQuota];

    /// Adds to `status.used` of a quota.
    ///
    /// # Errors
    /// If the quota has changed since it was read; then it is tried again with the quota as it is now.
    fn add_used(&mut self, namespace: &str, charge: Charge<'_>) -> Result<(), Conflict>;
}

/// A quota that has changed since it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict;

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub struct Plugin<'a> {
    /// What is limited by default.
    pub configuration: &'a Configuration,
    /// What else is in the cluster.
    pub cluster: &'a Cluster,
    /// Whether upstream's defects are kept.
    pub admission: Admission,
}

/// Whether the plugin counts the request at all.
pub fn handles(request: &Request, admission: Admission) -> bool {
    !IGNORED.iter().any(|ignored| request.resource.is(ignored))
        && Evaluator::of(&request.resource).handles(request, admission)
}

impl Plugin<'_> {
    /// The validating phase: refuses, or counts the object in every quota that applies.
    ///
    /// # Errors
    /// If a quota does not allow the object, or what is limited by default is covered by no quota.
    pub fn validate(
        &self,
        request: &Request,
        store: &mut impl QuotaStore,
    ) -> Result<Charges, Refusal> {
        let namespace = request.namespace.as_str();
        let creates_namespace =
            request.resource.is("namespaces") && request.operation == Operation::Create;
        if namespace.is_empty() || creates_namespace || !handles(request, self.admission) {
            return Ok(Charges::default());
        }
        // At first all are looked at; then those whose write failed. What a write has counted is kept in `written`.
        let mut written: Vec<Charges> = Vec::new();
        let mut failed: Option<Vec<String>> = None;
        for tries_left in (0..=RETRIES_MAX).rev() {
            let all = store.quotas(namespace).iter();
            let is_left = |quota: &&EnforcedQuota| {
                let failed = failed.as_ref();
                failed.is_none_or(|failed| failed.iter().any(|name| name == quota.name()))
            };
            let quotas: Vec<&EnforcedQuota> = all.filter(is_left).collect();
            if quotas.is_empty() && self.configuration.limited_resources.is_empty() {
                break;
            }
            let mut changed = self.check(request, &quotas)?;
            if request.dry_run {
                break;
            }
            let mut failed_now = Vec::new();
            for charge in changed.iter() {
                if store.add_used(namespace, charge) == Err(Conflict) {
                    failed_now.push(charge.quota.to_owned());
                }
            }
            if !failed_now.is_empty() {
                changed.retain(|charge| !failed_now.iter().any(|name| name == charge.quota));
            }
            written.push(changed);
            match failed_now.last() {
                None => break,
                Some(last) if tries_left == 0 => return Err(conflict(last)),
                Some(_) => failed = Some(failed_now),
            }
        }
        let mut charges = written.into_iter();
        let mut first = charges.next().unwrap_or_default();
        charges.for_each(|more| first.append(&more));
        Ok(first)
    }
}

fn conflict(name: &str) -> Refusal {
    let message = format!(
        "Operation cannot be fulfilled on resourcequotas {}: the object has been modified; please apply your changes to the latest version and try again",
        super::field::quoted(name)
    );
    Refusal {
        phase: Phase::Validate,
        code: 409,
        reason: "Conflict",
        causes: vec![message.clone()],
        message,
        refused_by: Some(name.to_owned()),
        errors: Vec::new(),
    }
}

/// `cpu=1,memory=1Gi`.
fn shown<'a>(list: impl Iterator<Item = (&'a str, &'a Quantity)>) -> String {
    let parts: Vec<String> = list
        .map(|(name, quantity)| format!("{name}={quantity}"))
        .collect();
    parts.join(",")
}
