//! The plugin's configuration file: what is limited by default, and so needs a quota that covers it.

use serde::Deserialize;

use crate::kube::admission::object::{GroupResource, ScopeRequirement};
use crate::kube::admission::object_meta::null_as_default;

/// Group and version with the kind of the configuration, each of those that upstream reads.
const KINDS: [(&str, &str); 3] = [
    ("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration"),
    ("resourcequota.admission.k8s.io/v1alpha1", "Configuration"),
    ("resourcequota.admission.k8s.io/v1beta1", "Configuration"),
];

/// The configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Configuration {
    /// Group and version.
    #[serde(deserialize_with = "null_as_default")]
    pub api_version: String,
    /// The kind.
    #[serde(deserialize_with = "null_as_default")]
    pub kind: String,
    /// What is limited by default.
    #[serde(deserialize_with = "null_as_default")]
    pub limited_resources: Vec<LimitedResource>,
}

/// One of `limitedResources`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LimitedResource {
    /// The group; empty for the core group.
    #[serde(deserialize_with = "null_as_default")]
    pub api_group: String,
    /// The plural name.
    #[serde(deserialize_with = "null_as_default")]
    pub resource: String,
    /// Parts of names: what of the usage has one in its name is limited.
    #[serde(deserialize_with = "null_as_default")]
    pub match_contains: Vec<String>,
    /// Scopes that are limited, whatever `resource` says.
    #[serde(deserialize_with = "null_as_default")]
    pub match_scopes: Vec<ScopeRequirement>,
}

/// Why the API server does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("couldn't init admission plugin \"ResourceQuota\": {what}")]
pub struct ConfigurationError {
    /// What is wrong.
    pub what: String,
}

impl Configuration {
    /// Whether group, version and kind are those of a configuration.
    ///
    /// # Errors
    /// If they are not: then upstream does not look at the rest.
    pub fn check_kind(api_version: &str, kind: &str) -> Result<(), ConfigurationError> {
        if KINDS.contains(&(api_version, kind)) {
            return Ok(());
        }
        let what = format!("no kind {kind:?} is registered for version {api_version:?}");
        Err(ConfigurationError { what })
    }

    /// Checks what was read.
    ///
    /// # Errors
    /// If an entry names no resource.
    pub fn check(&self) -> Result<(), ConfigurationError> {
        let without = |limited: &LimitedResource| limited.resource.is_empty();
        let wrong: Vec<String> = (0..self.limited_resources.len())
            .filter(|at| self.limited_resources.get(*at).is_some_and(without))
            .map(|at| format!("limitedResources[{at}].resource: Required value"))
            .collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let what = crate::kube::admission::field::aggregate(&wrong);
        Err(ConfigurationError { what })
    }
}

impl LimitedResource {
    /// Whether the entry is about that resource.
    pub(super) fn is_about(&self, resource: &GroupResource) -> bool {
        self.resource == resource.resource && self.api_group == resource.group
    }
}
