//! A request to the API server, and a refusal of it.

use super::field::{FieldError, aggregate, quoted, sorted};
use super::object::{GroupResource, Object};
use super::object_meta::generated_name;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// A changed object.
    Update,
    /// The end of an object.
    Delete,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// What is asked for.
    pub operation: Operation,
    /// Which resource.
    pub resource: GroupResource,
    /// Which part of it, such as `status`; empty for the object itself.
    pub subresource: String,
    /// In which namespace; empty for kinds without one.
    pub namespace: String,
    /// The object, with the API's defaults.
    pub object: Object,
    /// The object as it was, with the API's defaults.
    pub old_object: Option<Object>,
    /// Whether nothing is to be written.
    pub dry_run: bool,
}

/// In which phase a plugin refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// While defaults were set.
    Mutate,
    /// The API's own validation.
    Api,
    /// After it.
    Validate,
}

/// What the client sees instead of success.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// In which phase.
    pub phase: Phase,
    /// The HTTP status.
    pub code: u16,
    /// The API's word for it; empty for an error that upstream gives no reason.
    pub reason: &'static str,
    /// The full text.
    pub message: String,
    /// The LimitRange or ResourceQuota that refused, if one did.
    pub refused_by: Option<String>,
    /// What is wrong, one by one, sorted.
    pub causes: Vec<String>,
    /// The same of the API's own validation.
    pub errors: Vec<FieldError>,
}

impl Request {
    /// The name as a plugin prints it: that of the object, else what it will begin with.
    pub fn name(&self) -> &str {
        let meta = self.object.meta();
        match (meta.name.as_str(), meta.generate_name.as_str()) {
            ("", "") => "Unknown",
            ("", base) => base,
            (name, _) => name,
        }
    }

    /// Gives a new object the name that it is to be generated, as the API server does between both phases.
    pub fn generate_name(&mut self) {
        let meta = self.object.meta_mut();
        if self.operation == Operation::Create
            && meta.name.is_empty()
            && !meta.generate_name.is_empty()
        {
            meta.name = generated_name(&meta.generate_name);
        }
    }

    /// A refusal with the reason `Forbidden` (`NewForbidden`).
    pub fn forbidden(&self, phase: Phase, why: &str) -> Refusal {
        Refusal {
            phase,
            code: 403,
            reason: "Forbidden",
            message: format!(
                "{} {} is forbidden: {why}",
                self.resource,
                quoted(self.name())
            ),
            refused_by: None,
            causes: vec![why.to_owned()],
            errors: Vec::new(),
        }
    }

    /// A refusal by the API's own validation (`NewInvalid`); `kind` is that of the object, such as `Pod`.
    pub fn invalid(&self, kind: &str, errors: Vec<FieldError>) -> Refusal {
        invalid(kind, &self.object.meta().name, errors)
    }
}

/// A refusal by the API's own validation; `kind` may have a group: `PriorityClass.scheduling.k8s.io`.
pub fn invalid(kind: &str, name: &str, errors: Vec<FieldError>) -> Refusal {
    let errors = sorted(errors);
    Refusal {
        phase: Phase::Api,
        code: 422,
        reason: "Invalid",
        message: format!("{kind} {} is invalid: {}", quoted(name), aggregate(&errors)),
        refused_by: None,
        causes: errors.iter().map(ToString::to_string).collect(),
        errors,
    }
}

impl Refusal {
    /// What the API server makes of an error that is no answer.
    pub fn plain_error(message: String) -> Self {
        Self {
            phase: Phase::Validate,
            code: 500,
            reason: "",
            causes: vec![message.clone()],
            message,
            refused_by: None,
            errors: Vec::new(),
        }
    }

    /// The refusal with the name of who refused.
    #[must_use]
    pub fn by(mut self, name: &str) -> Self {
        self.refused_by = Some(name.to_owned());
        self
    }
}
