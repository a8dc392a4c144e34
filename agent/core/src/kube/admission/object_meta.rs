//! `metadata`, and the API's validation of it.
//!
//! Source: `k8s.io/apimachinery/pkg/api/validation/objectmeta.go` of 1.36. Not checked: annotations' total size,
//! owner references, finalizers and managed fields.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::field::{FieldError, json_text, quoted};
use super::names;
use crate::kube::time::Time;

/// Reads `null` as the type's default.
pub(super) fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// `metadata` of any object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Unique in the namespace for its kind; empty before it is generated.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// What a generated name begins with.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub generate_name: String,
    /// Empty for kinds without namespace.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub namespace: String,
    /// Given by the API server.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub uid: String,
    /// Empty for an object that the API server does not have.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub resource_version: String,
    /// When it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// When it is to be gone; absent unless it is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// Seconds that it has to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// Labels.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    /// Free text by key.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
    /// Objects without which this one is deleted.
    #[serde(
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub owner_references: Vec<OwnerReference>,
}

/// One of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// The owner's group and version.
    #[serde(deserialize_with = "null_as_default")]
    pub api_version: String,
    /// The owner's kind.
    #[serde(deserialize_with = "null_as_default")]
    pub kind: String,
    /// The owner's name.
    #[serde(deserialize_with = "null_as_default")]
    pub name: String,
    /// The owner's UID.
    #[serde(deserialize_with = "null_as_default")]
    pub uid: String,
    /// Whether it is the one that manages the object.
    #[serde(deserialize_with = "null_as_default")]
    pub controller: bool,
}

/// Whether objects of a kind are in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// They are.
    Namespaced,
    /// They are not.
    Cluster,
}

/// The longest base of a generated name, in bytes: five characters follow.
const GENERATED_BASE_BYTES_MAX: usize = 58;

/// What follows the base of a generated name here; the API server takes five characters by chance.
pub const GENERATED_SUFFIX: &str = "00000";

/// The name that an object with this `generateName` gets.
pub fn generated_name(base: &str) -> String {
    let mut end = base.len().min(GENERATED_BASE_BYTES_MAX);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{GENERATED_SUFFIX}", base.get(..end).unwrap_or_default())
}

impl ObjectMeta {
    /// The controller that manages the object.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }

    /// What the API refuses in the metadata of a new object. Names have to be DNS subdomains.
    pub fn create_errors(&self, scope: Scope) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if !self.generate_name.is_empty() {
            // A generated name goes on after a dash.
            let masked = match self.generate_name.strip_suffix('-') {
                Some(base) if !base.is_empty() => {
                    format!("{}a", base.get(..base.len() - 1).unwrap_or_default())
                }
                _ => self.generate_name.clone(),
            };
            let value = quoted(&self.generate_name);
            let all = names::dns_subdomain_errors(&masked);
            errors.extend(
                all.iter()
                    .map(|what| FieldError::invalid("metadata.generateName", &value, what)),
            );
        }
        if self.name.is_empty() {
            errors.push(FieldError::required(
                "metadata.name",
                "name or generateName is required",
            ));
        } else {
            let all = names::dns_subdomain_errors(&self.name);
            errors.extend(
                all.iter()
                    .map(|what| FieldError::invalid("metadata.name", &quoted(&self.name), what)),
            );
        }
        match (scope, self.namespace.is_empty()) {
            (Scope::Namespaced, true) => {
                errors.push(FieldError::required("metadata.namespace", ""))
            }
            (Scope::Namespaced, false) => {
                let all = names::dns_label_errors(&self.namespace);
                errors.extend(all.iter().map(|what| {
                    FieldError::invalid("metadata.namespace", &quoted(&self.namespace), what)
                }));
            }
            (Scope::Cluster, true) => {}
            (Scope::Cluster, false) => {
                errors.push(FieldError::forbidden(
                    "metadata.namespace",
                    "not allowed on this type",
                ));
            }
        }
        self.label_errors(&mut errors);
        errors
    }

    /// What the API refuses in the metadata of a changed object.
    pub fn update_errors(&self, old: &Self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.resource_version.is_empty() {
            errors.push(FieldError::invalid(
                "metadata.resourceVersion",
                "\"\"",
                "must be specified for an update",
            ));
        }
        for (field, new, old) in [
            ("metadata.name", &self.name, &old.name),
            ("metadata.namespace", &self.namespace, &old.namespace),
        ] {
            if new != old {
                errors.push(FieldError::invalid(
                    field,
                    &quoted(new),
                    "field is immutable",
                ));
            }
        }
        // An absent UID is taken from the old object.
        if !self.uid.is_empty() && self.uid != old.uid {
            errors.push(FieldError::invalid(
                "metadata.uid",
                &json_text(&self.uid),
                "field is immutable",
            ));
        }
        self.label_errors(&mut errors);
        errors
    }

    fn label_errors(&self, errors: &mut Vec<FieldError>) {
        for (key, value) in &self.labels {
            let all = names::qualified_name_errors(key);
            errors.extend(
                all.iter()
                    .map(|what| FieldError::invalid("metadata.labels", &quoted(key), what)),
            );
            let all = names::label_value_errors(value);
            errors.extend(
                all.iter()
                    .map(|what| FieldError::invalid("metadata.labels", &quoted(value), what)),
            );
        }
        for key in self.annotations.keys() {
            // The rule is of lower-case keys.
            let all = names::qualified_name_errors(&key.to_lowercase());
            errors.extend(
                all.iter()
                    .map(|what| FieldError::invalid("metadata.annotations", &quoted(key), what)),
            );
        }
    }
}
