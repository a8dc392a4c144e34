//! ResourceQuotas.

use std::collections::BTreeMap;

use plimsoll_core::arbitration::named::Named;
use plimsoll_core::arbitration::requests::is_of_limits;
use plimsoll_core::arbitration::units::{Rounding, canonical_name};
use serde::Deserialize;
use serde_json::Value;

use super::{Meta, amounts, read};

/// A ResourceQuota: its `hard` for what the arbitrator counts. One with scopes is for some pods only, and bounds no
/// namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenQuota {
    /// By resource.
    pub hard: Named,
}

impl SeenQuota {
    /// Reads one, with its namespace and name.
    ///
    /// # Errors
    /// What serde says.
    pub fn read(object: &[u8]) -> Result<((String, String), Self), String> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ApiQuota {
            metadata: Meta,
            spec: Spec,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Spec {
            hard: Option<BTreeMap<String, Value>>,
            scopes: Option<Vec<String>>,
            scope_selector: Option<Value>,
        }
        let quota: ApiQuota = read(object)?;
        let has_scopes = quota.spec.scopes.is_some_and(|scopes| !scopes.is_empty())
            || quota.spec.scope_selector.is_some();
        let mut hard = quota.spec.hard.unwrap_or_default();
        hard.retain(|name, _| !has_scopes && counts_pods(name));
        let key = (
            quota.metadata.namespace.unwrap_or_default(),
            quota.metadata.name,
        );
        let hard = amounts(Some(hard), Rounding::Down);
        Ok((key, Self { hard }))
    }
}

/// Whether a row of a quota bounds what pods request or are limited to, and not storage or objects.
fn counts_pods(name: &str) -> bool {
    let resource = canonical_name(name);
    is_of_limits(name)
        || matches!(resource, "cpu" | "memory" | "ephemeral-storage" | "pods")
        || resource.starts_with("hugepages-")
        || (name.starts_with("requests.") && resource.contains('/'))
}
