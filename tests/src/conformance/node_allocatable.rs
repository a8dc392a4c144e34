//! `node_allocatable`: what of a node pods may have.
//!
//! Expected quantities are compared as numbers.

use std::collections::BTreeMap;

use plimsoll_core::kube::node_allocatable::{Limited, NodeResources, OverReserved, cgroup_config};
use plimsoll_core::kube::quantity::Quantity;
use plimsoll_core::kube::resources::{MEMORY, ResourceList};
use plimsoll_core::model::threshold::{ThresholdSettings, eviction_reservation, parse};
use serde::Deserialize;
use serde_json::Value;

use super::cgroup_config::Limits;
use super::{Verdict, read, same};

#[derive(Deserialize)]
struct Vector {
    capacity: ResourceList,
    kube_reserved: Option<ResourceList>,
    system_reserved: Option<ResourceList>,
    eviction_hard: Option<BTreeMap<String, String>>,
    reservation: Option<ResourceList>,
    node_status_allocatable: ResourceList,
    node_status_allocatable_memory_bytes: i64,
    allocatable_absolute_for_cgroup: ResourceList,
    kubepods_cgroup: Limits,
    kubepods_cgroup_compressible_only: Limits,
    valid: bool,
    #[serde(default)]
    validation_errors: Vec<String>,
}

pub(super) fn check(vector: &Value) -> Verdict {
    Verdict::of(read(vector).and_then(compare))
}

fn compare(vector: Vector) -> Result<(), String> {
    let hard = vector.eviction_hard.unwrap_or_default();
    let settings = ThresholdSettings {
        hard: hard.clone(),
        ..ThresholdSettings::default()
    };
    let thresholds = parse(&settings).map_err(|error| error.to_string())?;
    let node = NodeResources {
        eviction_hard: eviction_reservation(&thresholds, &hard, &vector.capacity),
        capacity: vector.capacity,
        kube_reserved: vector.kube_reserved.unwrap_or_default(),
        system_reserved: vector.system_reserved.unwrap_or_default(),
    };
    same(
        "reservation",
        &node.reservation(),
        &vector.reservation.unwrap_or_default(),
    )?;
    let allocatable = node.allocatable();
    same(
        "node_status_allocatable",
        &allocatable,
        &vector.node_status_allocatable,
    )?;
    same(
        "node_status_allocatable_memory_bytes",
        &allocatable.get(MEMORY).map_or(0, Quantity::value),
        &vector.node_status_allocatable_memory_bytes,
    )?;
    let absolute = node.allocatable_absolute();
    same(
        "allocatable_absolute_for_cgroup",
        &absolute,
        &vector.allocatable_absolute_for_cgroup,
    )?;
    vector
        .kubepods_cgroup
        .same_as("kubepods_cgroup", &cgroup_config(&absolute, Limited::All))?;
    vector.kubepods_cgroup_compressible_only.same_as(
        "kubepods_cgroup_compressible_only",
        &cgroup_config(&absolute, Limited::Compressible),
    )?;
    let errors = node.validate().err().unwrap_or_default();
    same("valid", &errors.is_empty(), &vector.valid)?;
    same(
        "number of validation_errors",
        &errors.len(),
        &vector.validation_errors.len(),
    )?;
    for OverReserved { resource, .. } in &errors {
        let about = format!("Resource {resource:?} ");
        if !vector
            .validation_errors
            .iter()
            .any(|expected| expected.starts_with(&about))
        {
            return Err(format!(
                "validation_errors: got one of {resource}, expected {:?}",
                vector.validation_errors
            ));
        }
    }
    Ok(())
}
