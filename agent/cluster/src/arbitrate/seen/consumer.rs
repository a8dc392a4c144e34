//! Consumers and Allocations.

use std::collections::BTreeMap;

use plimsoll_core::arbitration::named::Named;
use plimsoll_core::arbitration::units::{Rounding, canonical_name};
use plimsoll_core::kube::duration;
use serde::Deserialize;
use serde_json::Value;

use super::{Meta, amounts, read};

/// A Consumer's `spec`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsumerSpec {
    /// Its namespace; none: a group.
    pub namespace: Option<String>,
    /// The group that it is in.
    pub parent: Option<String>,
    /// None: 1.
    pub weight: Option<u64>,
    /// Gets what it asks for before all others.
    pub unlimited: bool,
    /// What it never passes.
    pub hard: Named,
    /// What it has for sure.
    pub reserved: Named,
    /// How long before its eviction a pod has notice, milliseconds.
    pub grace_period_ms: Option<u64>,
    /// How long a pod runs before it can be evicted, milliseconds.
    pub minimum_run_time_ms: Option<u64>,
}

/// A Consumer.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenConsumer {
    /// UID.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// What was asked for, or why it cannot be read.
    pub spec: Result<ConsumerSpec, String>,
    /// `status` as it is there.
    pub status: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ApiConsumer {
    metadata: Meta,
    spec: Value,
    status: Value,
}

/// Strict: a field that is not known here is of a later version, and what it means cannot be left out.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ApiConsumerSpec {
    namespace: Option<String>,
    parent: Option<String>,
    weight: Option<u64>,
    unlimited: Option<bool>,
    hard: Option<BTreeMap<String, Value>>,
    reserved: Option<BTreeMap<String, Value>>,
    reclaim: Option<Reclaim>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Reclaim {
    grace_period: Option<String>,
    minimum_run_time: Option<String>,
}

impl SeenConsumer {
    /// Reads one, with its name. A `spec` that cannot be read is a part of what was seen.
    ///
    /// # Errors
    /// What serde says, where even the name cannot be read.
    pub fn read(object: &[u8]) -> Result<(String, Self), String> {
        let consumer: ApiConsumer = read(object)?;
        if consumer.metadata.name.is_empty() {
            return Err("it has no name".to_owned());
        }
        let seen = Self {
            uid: consumer.metadata.uid,
            generation: consumer.metadata.generation,
            spec: consumer_spec(consumer.spec),
            status: consumer.status,
        };
        Ok((consumer.metadata.name, seen))
    }
}

fn consumer_spec(spec: Value) -> Result<ConsumerSpec, String> {
    let spec = if spec.is_null() {
        Value::Object(serde_json::Map::new())
    } else {
        spec
    };
    let spec: ApiConsumerSpec = serde_json::from_value(spec).map_err(|error| error.to_string())?;
    let reclaim = spec.reclaim.unwrap_or_default();
    Ok(ConsumerSpec {
        namespace: spec.namespace,
        parent: spec.parent,
        weight: spec.weight,
        unlimited: spec.unlimited.unwrap_or(false),
        hard: checked(spec.hard, "hard", Rounding::Down)?,
        reserved: checked(spec.reserved, "reserved", Rounding::Up)?,
        grace_period_ms: milliseconds(reclaim.grace_period, "reclaim.gracePeriod")?,
        minimum_run_time_ms: milliseconds(reclaim.minimum_run_time, "reclaim.minimumRunTime")?,
    })
}

/// Amounts that people wrote: all must be readable.
fn checked(
    quantities: Option<BTreeMap<String, Value>>,
    field: &str,
    rounding: Rounding,
) -> Result<Named, String> {
    let names: Vec<String> = quantities
        .iter()
        .flat_map(BTreeMap::keys)
        .cloned()
        .collect();
    let amounts = amounts(quantities, rounding);
    match names
        .iter()
        .find(|name| !amounts.contains_key(canonical_name(name)))
    {
        Some(name) => Err(format!("spec.{field}.{name} is no quantity")),
        None => Ok(amounts),
    }
}

fn milliseconds(text: Option<String>, field: &str) -> Result<Option<u64>, String> {
    let Some(text) = text else { return Ok(None) };
    let ns = duration::parse_ns(&text).ok();
    let ns = ns.and_then(|ns| u64::try_from(ns).ok());
    ns.map(|ns| Some(ns / 1_000_000))
        .ok_or_else(|| format!("spec.{field} {text:?} is no time such as 30s"))
}

/// An Allocation: its `status` as it is there.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenAllocation {
    /// `status`.
    pub status: Value,
}

impl SeenAllocation {
    /// Reads one, with its namespace and name.
    ///
    /// # Errors
    /// What serde says.
    pub fn read(object: &[u8]) -> Result<((String, String), Self), String> {
        let allocation: ApiConsumer = read(object)?;
        let key = (
            allocation.metadata.namespace.unwrap_or_default(),
            allocation.metadata.name,
        );
        Ok((
            key,
            Self {
                status: allocation.status,
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_time_of_a_consumer_sets_no_other() {
        let file = include_str!("../../../../../deploy/components/arbitrator/consumers.yaml");
        let resources: Vec<Value> = serde_saphyr::from_multiple(file).unwrap();
        let version = &resources[0]["spec"]["versions"][0];
        let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let reclaim = spec["properties"]["reclaim"]["properties"]
            .as_object()
            .unwrap();
        assert_eq!(reclaim.len(), 2);
        assert!(reclaim.values().all(|field| field.get("default").is_none()));
    }
}
