//! The field names of a Pod, so that a misspelt one is found where it stands.
//!
//! Source: the Kubernetes 1.36 API reference (`k8s.io/api/core/v1/types.go`: Pod, PodSpec, Container,
//! EphemeralContainer, ResourceRequirements; `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`: ObjectMeta). All of an
//! object's fields are listed, also those that Plimsoll does not use; objects that it never looks into (probes,
//! affinity, …) are not checked inside.

use crate::input::spelling::nearest;
use crate::input::yaml::{Node, Value};

/// What a field's value has to be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Not looked into.
    Any,
    Text,
    Integer,
    Boolean,
    /// An object whose values are texts.
    TextMap,
    /// An object whose values are quantities; checked apart.
    Quantities,
    List,
    Object(&'static [Field]),
    ListOf(&'static [Field]),
}

pub(super) type Field = (&'static str, Kind);

use Kind::{Any, Boolean, Integer, List, ListOf, Object, Quantities, Text, TextMap};

pub(super) const POD: &[Field] = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("metadata", Object(METADATA)),
    ("spec", Object(POD_SPEC)),
    ("status", Any),
];

pub(super) const LIST: &[Field] = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("metadata", Any),
    ("items", List),
];

pub(super) const METADATA: &[Field] = &[
    ("annotations", TextMap),
    ("creationTimestamp", Any),
    ("deletionGracePeriodSeconds", Integer),
    ("deletionTimestamp", Any),
    ("finalizers", List),
    ("generateName", Text),
    ("generation", Integer),
    ("labels", TextMap),
    ("managedFields", List),
    ("name", Text),
    ("namespace", Text),
    ("ownerReferences", List),
    ("resourceVersion", Text),
    ("selfLink", Text),
    ("uid", Text),
];

const POD_SPEC: &[Field] = &[
    ("activeDeadlineSeconds", Integer),
    ("affinity", Any),
    ("automountServiceAccountToken", Boolean),
    ("containers", ListOf(CONTAINER)),
    ("dnsConfig", Any),
    ("dnsPolicy", Text),
    ("enableServiceLinks", Boolean),
    ("ephemeralContainers", ListOf(EPHEMERAL_CONTAINER)),
    ("hostAliases", List),
    ("hostIPC", Boolean),
    ("hostNetwork", Boolean),
    ("hostPID", Boolean),
    ("hostUsers", Boolean),
    ("hostname", Text),
    ("hostnameOverride", Text),
    ("imagePullSecrets", List),
    ("initContainers", ListOf(CONTAINER)),
    ("nodeName", Text),
    ("nodeSelector", TextMap),
    ("os", Any),
    ("overhead", Quantities),
    ("preemptionPolicy", Text),
    ("priority", Integer),
    ("priorityClassName", Text),
    ("readinessGates", List),
    ("resourceClaims", List),
    ("resources", Object(RESOURCES)),
    ("restartPolicy", Text),
    ("runtimeClassName", Text),
    ("schedulerName", Text),
    ("schedulingGates", List),
    ("schedulingGroup", Any),
    ("securityContext", Any),
    ("serviceAccount", Text),
    ("serviceAccountName", Text),
    ("setHostnameAsFQDN", Boolean),
    ("shareProcessNamespace", Boolean),
    ("subdomain", Text),
    ("terminationGracePeriodSeconds", Integer),
    ("tolerations", List),
    ("topologySpreadConstraints", List),
    ("volumes", List),
    // 1.35 had this; 1.36 has schedulingGroup in its place.
    ("workloadRef", Any),
];

const CONTAINER: &[Field] = &[
    ("args", List),
    ("command", List),
    ("env", List),
    ("envFrom", List),
    ("image", Text),
    ("imagePullPolicy", Text),
    ("lifecycle", Any),
    ("livenessProbe", Any),
    ("name", Text),
    ("ports", List),
    ("readinessProbe", Any),
    ("resizePolicy", List),
    ("resources", Object(RESOURCES)),
    ("restartPolicy", Text),
    ("restartPolicyRules", List),
    ("securityContext", Any),
    ("startupProbe", Any),
    ("stdin", Boolean),
    ("stdinOnce", Boolean),
    ("terminationMessagePath", Text),
    ("terminationMessagePolicy", Text),
    ("tty", Boolean),
    ("volumeDevices", List),
    ("volumeMounts", List),
    ("workingDir", Text),
];

const EPHEMERAL_CONTAINER: &[Field] = &[
    ("args", List),
    ("command", List),
    ("env", List),
    ("envFrom", List),
    ("image", Text),
    ("imagePullPolicy", Text),
    ("lifecycle", Any),
    ("livenessProbe", Any),
    ("name", Text),
    ("ports", List),
    ("readinessProbe", Any),
    ("resizePolicy", List),
    ("resources", Object(RESOURCES)),
    ("restartPolicy", Text),
    ("restartPolicyRules", List),
    ("securityContext", Any),
    ("startupProbe", Any),
    ("stdin", Boolean),
    ("stdinOnce", Boolean),
    ("targetContainerName", Text),
    ("terminationMessagePath", Text),
    ("terminationMessagePolicy", Text),
    ("tty", Boolean),
    ("volumeDevices", List),
    ("volumeMounts", List),
    ("workingDir", Text),
];

pub(super) const RESOURCES: &[Field] = &[
    ("claims", List),
    ("limits", Quantities),
    ("requests", Quantities),
];

/// A finding of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) line: u64,
    /// `spec.containers[0].resorces`
    pub(super) field: String,
    pub(super) what: String,
}

/// Checks an object's field names and the kinds of their values, and adds what is wrong to `findings`.
pub(super) fn check(
    node: &Node,
    schema: &'static [Field],
    path: &str,
    findings: &mut Vec<Finding>,
) {
    for (key, value) in node.fields() {
        let field = join(path, &key.name);
        let Some((_, kind)) = schema.iter().find(|(name, _)| *name == key.name) else {
            findings.push(Finding {
                line: key.line,
                field,
                what: format!("unknown field{}", hint(&key.name, schema)),
            });
            continue;
        };
        if !value.is_null() {
            check_value(value, *kind, &field, findings);
        }
    }
}

fn check_value(value: &Node, kind: Kind, field: &str, findings: &mut Vec<Finding>) {
    let mut expected = |what: &str, line, got: String| {
        findings.push(Finding {
            line,
            field: field.to_owned(),
            what: format!("expected {what}, found {got}"),
        });
    };
    match (kind, &value.value) {
        (Any, _)
        | (Text, Value::Text(_))
        | (Boolean, Value::Bool(_))
        | (Quantities, Value::Map(_))
        | (List, Value::List(_)) => {}
        (Integer, Value::Number(number)) if number.is_i64() => {}
        (TextMap, Value::Map(fields)) => {
            for (key, value) in fields {
                if !matches!(value.value, Value::Text(_) | Value::Null) {
                    let what = format!("text for {:?} (put it in quotes)", key.name);
                    expected(&what, value.line, value.kind());
                }
            }
        }
        (Object(schema), Value::Map(_)) => check(value, schema, field, findings),
        (ListOf(schema), Value::List(items)) => {
            for (index, item) in items.iter().enumerate() {
                check_value(item, Object(schema), &format!("{field}[{index}]"), findings);
            }
        }
        (Text, _) => expected("text (put it in quotes)", value.line, value.kind()),
        (Boolean, _) => expected("true or false", value.line, value.kind()),
        (Integer, _) => expected("a whole number", value.line, value.kind()),
        (Object(_) | TextMap | Quantities, _) => expected("an object", value.line, value.kind()),
        (List | ListOf(_), _) => expected("a list", value.line, value.kind()),
    }
}

/// `a.b`
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn hint(name: &str, schema: &[Field]) -> String {
    match nearest(name, schema.iter().map(|(known, _)| *known)) {
        Some(known) => format!("; did you mean {known}?"),
        None => format!(
            "; known here: {}",
            schema
                .iter()
                .map(|(known, _)| *known)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_without_twins() {
        for schema in [METADATA, CONTAINER, EPHEMERAL_CONTAINER, RESOURCES] {
            assert!(
                schema.windows(2).all(|pair| pair[0].0 < pair[1].0),
                "{schema:?}"
            );
        }
        assert!(POD_SPEC.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
