//! What an agent that admits pods by itself shows of it: which pods were refused, and how much of each quota is in use.

use serde::{Deserialize, Serialize};

use super::object::ResourceQuota;
use super::resource_quota::recalculate::{Counted, Counts};
use crate::kube::pod_uid::PodUid;
use crate::kube::quantity::Quantity;
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
    /// Who takes most of it: the one with the largest part of any resource first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub takers: Vec<Taker>,
    /// What all others take together.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub others: ResourceList,
    /// How many objects these others are.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub others_count: usize,
}

/// An object that takes some of a quota.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taker {
    /// Its resource and name: `pods web`.
    pub object: String,
    /// How much it takes.
    pub amounts: ResourceList,
}

/// Takers of a quota that are named, at most.
pub const TAKERS_MAX: usize = 16;

/// Takers of all quotas that are named, at most: an answer that holds them stays small.
pub const TAKERS_OF_ALL_MAX: usize = 1024;

/// Above this part of what may be in use a quota counts as nearly used up, per cent.
pub const NEARLY_USED_UP_PERCENT: i64 = 80;

impl QuotaUse {
    /// Of `namespace/name` nothing is known but what is in use.
    pub fn alone(quota: String, hard: ResourceList, used: ResourceList) -> Self {
        Self {
            quota,
            hard,
            used,
            takers: Vec::new(),
            others: ResourceList::new(),
            others_count: 0,
        }
    }

    /// What is in use of each quota, and who takes it.
    pub fn of_all(quotas: impl Iterator<Item = ResourceQuota>, counts: &Counts<'_>) -> Vec<Self> {
        let quotas: Vec<ResourceQuota> = quotas.collect();
        let named = (TAKERS_OF_ALL_MAX / quotas.len().max(1)).min(TAKERS_MAX);
        let of_one = |quota| Self::of(quota, counts, named);
        quotas.into_iter().map(of_one).collect()
    }

    fn of(quota: ResourceQuota, counts: &Counts<'_>, named: usize) -> Self {
        let part = |takes: &ResourceList| {
            let parts = takes.iter().filter_map(|(name, amount)| {
                let hard = quota.status.hard.get(name)?;
                Some(amount.approximate_f64() / hard.approximate_f64())
            });
            parts.fold(0.0, f64::max)
        };
        let mut takers: Vec<(f64, &Counted, ResourceList)> = counts
            .takers(&quota)
            .into_iter()
            .map(|(counted, takes)| (part(&takes), counted, takes))
            .collect();
        // Of equal parts the order in which they were counted stays.
        takers.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        let rest = takers.split_off(named.min(takers.len()));
        let mut others = ResourceList::new();
        for (name, amount) in rest.iter().flat_map(|(.., takes)| takes) {
            *others.entry(name.clone()).or_default() += amount;
        }
        let taker = |(_, counted, amounts): (f64, &Counted, ResourceList)| Taker {
            object: label(counted),
            amounts,
        };
        Self {
            quota: format!("{}/{}", quota.metadata.namespace, quota.metadata.name),
            takers: takers.into_iter().map(taker).collect(),
            others,
            others_count: rest.len(),
            hard: quota.status.hard,
            used: quota.status.used,
        }
    }

    /// The resources of which nearly all is in use, or all, or more: name, used, hard.
    pub fn nearly_used_up(&self) -> impl Iterator<Item = (&str, &Quantity, &Quantity)> {
        self.hard.iter().filter_map(|(name, hard)| {
            let used = self.used.get(name)?;
            let part =
                |quantity: &Quantity, times: i64| quantity.nanos().saturating_mul(times.into());
            let is_near = used.sign() > 0 && part(used, 100) >= part(hard, NEARLY_USED_UP_PERCENT);
            is_near.then_some((name.as_str(), used, hard))
        })
    }
}

/// An object that takes some of a quota, as it is shown.
pub fn label(counted: &Counted) -> String {
    format!("{} {}", counted.resource, counted.object.meta().name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_nearly_used_up_from_four_fifths_on() {
        let list = |cpu: &str, pods: &str| -> ResourceList {
            let text = format!(r#"{{"cpu":"{cpu}","pods":"{pods}"}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let near = |cpu: &str, pods: &str| -> Vec<String> {
            let quota = QuotaUse::alone("team/compute".into(), list("1", "5"), list(cpu, pods));
            let near = quota.nearly_used_up();
            near.map(|(name, used, _)| format!("{name}={used}"))
                .collect()
        };
        assert_eq!(near("799m", "3"), Vec::<String>::new());
        assert_eq!(near("800m", "4"), ["cpu=800m", "pods=4"]);
        assert_eq!(near("2", "0"), ["cpu=2"]);
    }
}
