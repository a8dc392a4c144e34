//! The plugin's configuration file: what is limited by default, and so needs a quota that covers it.

use serde::Deserialize;

use crate::kube::admission::object::{GroupResource, ScopeRequirement};
use crate::kube::admission::object_meta::null_as_default;

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

impl LimitedResource {
    /// Whether the entry is about that resource.
    pub(super) fn is_about(&self, resource: &GroupResource) -> bool {
        self.resource == resource.resource && self.api_group == resource.group
    }
}
