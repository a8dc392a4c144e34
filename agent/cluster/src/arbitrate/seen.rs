//! Objects of the API, reduced to what the arbitrator reads of them. Each is read once, from its bytes; what cannot be
//! read is an error with a reason.

pub mod budget;
pub mod consumer;
mod counted;
pub mod node;
pub mod placement;
pub mod pod;
pub mod quota;

use std::collections::BTreeMap;

use plimsoll_core::arbitration::named::Named;
use plimsoll_core::arbitration::units::{self, Rounding};
use plimsoll_core::kube::owner::OwnerReference;
use plimsoll_core::kube::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;

type Texts = BTreeMap<String, String>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    name: String,
    namespace: Option<String>,
    uid: String,
    resource_version: String,
    generation: i64,
    labels: Option<Texts>,
    annotations: Option<Texts>,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
    owner_references: Option<Vec<OwnerReference>>,
}

fn read<'a, T: Deserialize<'a>>(object: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(object).map_err(|error| error.to_string())
}

/// Amounts by resource; those that cannot be read are left out, as the API server has checked them.
fn amounts(quantities: Option<BTreeMap<String, Value>>, rounding: Rounding) -> Named {
    let mut amounts = Named::new();
    for (name, quantity) in quantities.into_iter().flatten() {
        let text = match quantity {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            _ => continue,
        };
        if let Ok(quantity) = Quantity::parse(&text) {
            units::insert(&mut amounts, &name, &quantity, rounding);
        }
    }
    amounts
}

/// A namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SeenNamespace {
    /// It is being deleted.
    pub is_terminating: bool,
}

impl SeenNamespace {
    /// Reads one, with its name.
    ///
    /// # Errors
    /// What serde says.
    pub fn read(object: &[u8]) -> Result<(String, Self), String> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ApiNamespace {
            metadata: Meta,
        }
        let namespace: ApiNamespace = read(object)?;
        let seen = Self {
            is_terminating: namespace.metadata.deletion_timestamp.is_some(),
        };
        Ok((namespace.metadata.name, seen))
    }
}

/// UID of an object that is gone; the key of others.
///
/// # Errors
/// What serde says.
pub fn uid_of(object: &[u8]) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Any {
        metadata: Meta,
    }
    read::<Any>(object).map(|any| any.metadata.uid)
}
