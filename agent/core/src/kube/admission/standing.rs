//! What an agent that admits pods by itself shows of it: which pods were refused, and how much of each quota is in use.

use serde::{Deserialize, Serialize};

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
}

/// Above this part of what may be in use a quota counts as nearly used up, per cent.
pub const NEARLY_USED_UP_PERCENT: i64 = 80;

impl QuotaUse {
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
            let quota = QuotaUse {
                quota: "team/compute".into(),
                hard: list("1", "5"),
                used: list(cpu, pods),
            };
            let near = quota.nearly_used_up();
            near.map(|(name, used, _)| format!("{name}={used}"))
                .collect()
        };
        assert_eq!(near("799m", "3"), Vec::<String>::new());
        assert_eq!(near("800m", "4"), ["cpu=800m", "pods=4"]);
        assert_eq!(near("2", "0"), ["cpu=2"]);
    }
}
