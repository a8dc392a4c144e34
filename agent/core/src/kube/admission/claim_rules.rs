//! What the API refuses in a claim for a volume, as far as its size goes.
//!
//! Source: `ValidatePersistentVolumeClaimSpec` in `pkg/apis/core/validation/validation.go` of 1.36. Not checked:
//! everything else in a claim, and what may change in one.

use super::field::{FieldError, quoted};
use super::object::{PersistentVolumeClaim, STORAGE};
use super::object_meta::Scope;

/// Everything wrong with a new claim that has its defaults and its name.
pub fn create_errors(claim: &PersistentVolumeClaim) -> Vec<FieldError> {
    let mut errors = claim.metadata.create_errors(Scope::Namespaced);
    if claim.spec.access_modes.is_empty() {
        errors.push(FieldError::required(
            "spec.accessModes",
            "at least 1 access mode is required",
        ));
    }
    let path = "spec.resources[storage]";
    match claim.spec.resources.requests.get(STORAGE) {
        None => errors.push(FieldError::required(path, "")),
        Some(storage) if storage.sign() <= 0 => {
            let value = quoted(&storage.to_string());
            errors.push(FieldError::invalid(
                path,
                &value,
                "must be greater than zero",
            ));
        }
        Some(_) => {}
    }
    errors
}
