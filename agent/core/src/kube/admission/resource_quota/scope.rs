//! Scopes: which objects a quota is about.

use std::cell::OnceCell;

use crate::kube::admission::field::{FieldError, aggregate, json_list, quoted};
use crate::kube::admission::names;
use crate::kube::admission::object::{Object, Scope, ScopeRequirement};
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
    Test::of(scope.scope_name).matches(scope, None, &Facts::of(object))
}

/// An object, and what scopes ask of a pod: found once for all quotas.
#[derive(Debug)]
pub struct Facts<'a> {
    object: &'a Object,
    is_best_effort: OnceCell<bool>,
    crosses_namespaces: OnceCell<bool>,
}

impl<'a> Facts<'a> {
    /// Of this object.
    pub fn of(object: &'a Object) -> Self {
        Self {
            object,
            is_best_effort: OnceCell::new(),
            crosses_namespaces: OnceCell::new(),
        }
    }

    fn is_best_effort(&self, pod: &PodObject) -> bool {
        let find = || pod.pod.qos_class() == QosClass::BestEffort;
        *self.is_best_effort.get_or_init(find)
    }

    fn crosses_namespaces(&self, pod: &PodObject) -> bool {
        let find = || pod.crosses_namespaces();
        *self.crosses_namespaces.get_or_init(find)
    }
}

/// What a scope asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    Terminating(bool),
    BestEffort(bool),
    CrossNamespace,
    PriorityClass,
    AttributesClass,
    Nothing,
}

impl Test {
    fn of(scope_name: &str) -> Self {
        match scope_name {
            TERMINATING => Self::Terminating(true),
            NOT_TERMINATING => Self::Terminating(false),
            BEST_EFFORT => Self::BestEffort(true),
            NOT_BEST_EFFORT => Self::BestEffort(false),
            CROSS_NAMESPACE => Self::CrossNamespace,
            PRIORITY_CLASS => Self::PriorityClass,
            VOLUME_ATTRIBUTES_CLASS => Self::AttributesClass,
            _ => Self::Nothing,
        }
    }

    /// `operator`: the expression's, where it was read before.
    fn matches(
        self,
        scope: Scope<'_>,
        operator: Option<&Result<Operator, SelectorError>>,
        facts: &Facts<'_>,
    ) -> Result<bool, SelectorError> {
        let read = || operator.map_or_else(|| Operator::read(scope), Clone::clone);
        Ok(match (self, facts.object) {
            (Self::Terminating(is), Object::Pod(pod)) => pod.is_terminating() == is,
            (Self::BestEffort(is), Object::Pod(pod)) => facts.is_best_effort(pod) == is,
            (Self::CrossNamespace, Object::Pod(pod)) => facts.crosses_namespaces(pod),
            (Self::PriorityClass, Object::Pod(pod)) => {
                let class = Some(pod.priority_class_name()).filter(|class| !class.is_empty());
                match scope.operator {
                    // Upstream does not read the rest of the expression.
                    "Exists" => class.is_some(),
                    _ => read()?.holds(class, scope),
                }
            }
            (Self::AttributesClass, Object::Claim(claim)) => {
                let classes = claim.attributes_classes();
                if scope.operator == "Exists" {
                    return Ok(!classes.is_empty());
                }
                let operator = read()?;
                if classes.is_empty() {
                    return Ok(operator.holds(None, scope));
                }
                let mut classes = classes.iter();
                classes.any(|class| operator.holds(Some(class), scope))
            }
            _ => false,
        })
    }
}

/// A scope of a quota that is read before it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prepared {
    expression: ScopeRequirement,
    test: Test,
    operator: Result<Operator, SelectorError>,
}

impl Prepared {
    pub(super) fn new(scope: Scope<'_>) -> Self {
        Self {
            expression: ScopeRequirement {
                scope_name: scope.scope_name.to_owned(),
                operator: scope.operator.to_owned(),
                values: scope.values.map(<[String]>::to_vec),
            },
            test: Test::of(scope.scope_name),
            operator: Operator::read(scope),
        }
    }

    /// The scope as the quota has it.
    pub(super) fn expression(&self) -> Scope<'_> {
        self.expression.borrowed()
    }

    /// Whether an object is in it, as [`matches`].
    pub(super) fn matches(&self, facts: &Facts<'_>) -> Result<bool, SelectorError> {
        self.test
            .matches(self.expression(), Some(&self.operator), facts)
    }
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
