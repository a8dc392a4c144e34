//! A quota as it is enforced: what a check asks of it for each object, worked out once.
//!
//! Problem: a check reads each quota's limits, usage and scopes. Most of its time goes to finding texts in maps and in
//! lists of names.
//!
//! Approach: the entries of `status.hard` are rows in the order of their names, each with what is in use and whether
//! pods count under it; scopes are read beforehand. What is counted then goes by places.

use std::sync::Arc;

use super::Charge;
use super::cluster::Cluster;
use super::evaluator::Evaluator;
use super::scope::{Facts, Prepared, SelectorError};
use super::usage::Known;
use crate::kube::admission::object::{ResourceQuota, Scope};
use crate::kube::quantity::Quantity;

/// A quota that is enforced.
#[derive(Debug, Clone, PartialEq)]
pub struct EnforcedQuota {
    /// What is in use of the rows is in these, not here.
    quota: ResourceQuota,
    pub(super) name: Arc<str>,
    pub(super) rows: Vec<Row>,
    scopes: Vec<Prepared>,
    /// Under which of the known names pods count.
    pub(super) pod_names: u16,
}

/// An entry of `status.hard`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) known: Option<Known>,
    pub(super) hard: Quantity,
    /// `None`: `status.used` lacks it.
    pub(super) used: Option<Quantity>,
    /// Whether pods count under the name.
    counts_pods: bool,
}

impl Row {
    /// Whether objects that an evaluator is about count under the name.
    pub(super) fn is_counted(&self, evaluator: &Evaluator, cluster: &Cluster) -> bool {
        match evaluator {
            Evaluator::Pods => self.counts_pods,
            _ => evaluator.counts(&self.name, cluster),
        }
    }
}

impl EnforcedQuota {
    /// The quota, with its status.
    pub fn new(quota: ResourceQuota) -> Self {
        let row = |(name, hard): (&String, &Quantity)| Row {
            known: Known::of(name),
            hard: hard.clone(),
            used: quota.status.used.get(name).cloned(),
            counts_pods: Evaluator::Pods.counts_by_name(name),
            name: name.clone(),
        };
        let rows: Vec<Row> = quota.status.hard.iter().map(row).collect();
        let of_pods = rows.iter().filter(|row| row.counts_pods);
        Self {
            name: quota.metadata.name.as_str().into(),
            pod_names: of_pods
                .filter_map(|row| row.known)
                .fold(0, |set, known| set | known.bit()),
            scopes: quota.scopes().map(Prepared::new).collect(),
            rows,
            quota,
        }
    }

    /// The quota with what is in use now.
    pub fn current(&self) -> ResourceQuota {
        let mut quota = self.quota.clone();
        for row in &self.rows {
            if let Some(used) = &row.used {
                match quota.status.used.get_mut(&row.name) {
                    Some(value) => value.clone_from(used),
                    None => {
                        quota.status.used.insert(row.name.clone(), used.clone());
                    }
                }
            }
        }
        quota
    }

    /// Adds what this quota counts for an object. What is not in use yet is taken over.
    pub fn add(&mut self, charge: &Charge<'_>) {
        for (at, amount) in charge.by_row() {
            if let Some(row) = self.rows.get_mut(at) {
                match &mut row.used {
                    Some(used) => *used += amount,
                    None => row.used = Some(amount.clone()),
                }
            }
        }
    }

    /// Whether nothing has calculated its usage yet.
    pub fn is_without_status(&self) -> bool {
        self.rows.is_empty()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether an object is in each scope of the quota; `matching` hears of those that it is in.
    ///
    /// # Errors
    /// The first scope that cannot be read, after those before it.
    pub(super) fn matches<'a>(
        &'a self,
        facts: &Facts<'_>,
        mut matching: impl FnMut(Scope<'a>),
    ) -> Result<bool, (Scope<'a>, SelectorError)> {
        let mut is_matched = true;
        for scope in &self.scopes {
            let matches = scope
                .matches(facts)
                .map_err(|error| (scope.expression(), error))?;
            is_matched &= matches;
            if matches {
                matching(scope.expression());
            }
        }
        Ok(is_matched)
    }

    /// Whether the quota is about an object: it counts a name of its kind, and every scope matches.
    ///
    /// # Errors
    /// If a scope cannot be read.
    pub fn applies(
        &self,
        evaluator: &Evaluator,
        facts: &Facts<'_>,
        cluster: &Cluster,
    ) -> Result<bool, SelectorError> {
        let is_matched = self.matches(facts, |_| {}).map_err(|(_, error)| error)?;
        let mut rows = self.rows.iter();
        Ok(is_matched && rows.any(|row| row.is_counted(evaluator, cluster)))
    }
}
