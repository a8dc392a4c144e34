//! Scopes: which objects a quota is about.

use crate::kube::admission::field::{FieldError, aggregate, json_list, quoted};
use crate::kube::admission::names;
use crate::kube::admission::object::{Object, PersistentVolumeClaim, Scope};
use crate::kube::admission::pod_object::PodObject;
use crate::kube::qos::QosClass;

/// The scopes of pods.
pub(super) const TERMINATING: &str = "Terminating";
pub(super) const NOT_TERMINATING: &str = "NotTerminating";
pub(super) const BEST_EFFORT: &str = "BestEffort";
pub(super) const NOT_BEST_EFFORT: &str = "NotBestEffort";
pub(super) const PRIORITY_CLASS: &str = "PriorityClass";
pub(super) const CROSS_NAMESPACE: &str = "CrossNamespacePodAffinity";
/// The scope of claims.
pub(super) const VOLUME_ATTRIBUTES_CLASS: &str = "VolumeAttributesClass";

/// A selector that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse and convert selector: {what}")]
pub struct SelectorError {
    /// What is wrong.
    pub what: String,
}

/// Whether an object is in a scope. Only pods and claims are in any.
///
/// # Errors
/// If the expression cannot be read.
pub fn matches(scope: Scope<'_>, object: &Object) -> Result<bool, SelectorError> {
    match object {
        Object::Pod(pod) => matches_pod(scope, pod),
        Object::Claim(claim) => matches_claim(scope, claim),
        _ => Ok(false),
    }
}

fn matches_pod(scope: Scope<'_>, pod: &PodObject) -> Result<bool, SelectorError> {
    let is_best_effort = || pod.pod.qos_class() == QosClass::BestEffort;
    Ok(match scope.scope_name {
        TERMINATING => pod.is_terminating(),
        NOT_TERMINATING => !pod.is_terminating(),
        BEST_EFFORT => is_best_effort(),
        NOT_BEST_EFFORT => !is_best_effort(),
        CROSS_NAMESPACE => pod.crosses_namespaces(),
        PRIORITY_CLASS => {
            let class = Some(pod.priority_class_name()).filter(|class| !class.is_empty());
            match scope.operator {
                // Upstream does not read the rest of the expression.
                "Exists" => class.is_some(),
                _ => Operator::read(scope)?.holds(class, scope),
            }
        }
        _ => false,
    })
}

fn matches_claim(scope: Scope<'_>, claim: &PersistentVolumeClaim) -> Result<bool, SelectorError> {
    if scope.scope_name != VOLUME_ATTRIBUTES_CLASS {
        return Ok(false);
    }
    let classes = claim.attributes_classes();
    if scope.operator == "Exists" {
        return Ok(!classes.is_empty());
    }
    let operator = Operator::read(scope)?;
    if classes.is_empty() {
        return Ok(operator.holds(None, scope));
    }
    Ok(classes
        .iter()
        .any(|class| operator.holds(Some(class), scope)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Operator {
    /// Reads an expression as a label selector (`ScopedResourceSelectorRequirementsAsSelector`).
    fn read(scope: Scope<'_>) -> Result<Self, SelectorError> {
        let operator = match scope.operator {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            other => {
                let what = format!("{} is not a valid scope selector operator", quoted(other));
                return Err(SelectorError { what });
            }
        };
        let values = scope.values.unwrap_or_default();
        let mut errors = Vec::new();
        let takes_values = matches!(operator, Self::In | Self::NotIn);
        if takes_values == values.is_empty() {
            let what = if takes_values {
                "for 'in', 'notin' operators, values set can't be empty"
            } else {
                "values set must be empty for exists and does not exist"
            };
            errors.push(FieldError::invalid(
                "values",
                &json_list(scope.values),
                what,
            ));
        }
        for (at, value) in values.iter().enumerate() {
            let wrong = names::label_value_errors(value);
            if !wrong.is_empty() {
                let field = format!("values[{at}][{}]", scope.scope_name);
                errors.push(FieldError::invalid(
                    field,
                    &quoted(value),
                    &wrong.join("; "),
                ));
            }
        }
        if errors.is_empty() {
            return Ok(operator);
        }
        let what = aggregate(&errors);
        Err(SelectorError { what })
    }

    fn holds(self, class: Option<&str>, scope: Scope<'_>) -> bool {
        let listed = |class: &str| {
            scope
                .values
                .into_iter()
                .flatten()
                .any(|value| value == class)
        };
        match self {
            Self::In => class.is_some_and(listed),
            Self::NotIn => !class.is_some_and(listed),
            Self::Exists => class.is_some(),
            Self::DoesNotExist => class.is_none(),
        }
    }
}
