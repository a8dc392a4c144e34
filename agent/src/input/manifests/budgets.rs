//! PodDisruptionBudget documents (`policy/v1`).
//!
//! Rules: `ValidatePodDisruptionBudgetSpec` in pkg/apis/policy/validation/validation.go of Kubernetes 1.36; field names
//! from `k8s.io/api/policy/v1/types.go`. One more: a budget that says neither amount has no meaning here, so it is
//! refused.

use std::path::Path;
use std::sync::Arc;

use plimsoll_core::kube::budget::{DisruptionBudget, IntOrPercent, LabelOperator};

use super::metadata::check_metadata;
use super::schema::{self, Field, Finding, Kind, METADATA, join};
use crate::input::yaml::Node;

/// A budget and where its document stands.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestBudget {
    /// The budget.
    pub budget: Arc<DisruptionBudget>,
    /// Its file.
    pub file: Arc<Path>,
    /// The line in the file at which its document starts.
    pub line: u64,
}

const BUDGET: &[Field] = &[
    ("apiVersion", Kind::Text),
    ("kind", Kind::Text),
    ("metadata", Kind::Object(METADATA)),
    ("spec", Kind::Object(SPEC)),
    ("status", Kind::Any),
];

const SPEC: &[Field] = &[
    ("maxUnavailable", Kind::Any),
    ("minAvailable", Kind::Any),
    ("selector", Kind::Object(SELECTOR)),
    ("unhealthyPodEvictionPolicy", Kind::Text),
];

const SELECTOR: &[Field] = &[
    ("matchExpressions", Kind::ListOf(EXPRESSION)),
    ("matchLabels", Kind::TextMap),
];

const EXPRESSION: &[Field] = &[
    ("key", Kind::Text),
    ("operator", Kind::Text),
    ("values", Kind::List),
];

/// Reads a document of kind PodDisruptionBudget.
pub(super) fn budget_of(document: &Node, path: &str) -> Result<DisruptionBudget, Vec<Finding>> {
    let mut findings = Vec::new();
    schema::check(document, BUDGET, path, &mut findings);
    check_metadata(document, path, &mut findings);
    let spec = document.get("spec");
    let line_of = |name: &str| {
        let node = spec.and_then(|spec| spec.get(name)).or(spec);
        node.map_or(document.line, |node| node.line)
    };
    let mut add = |name: &str, what: &str| {
        findings.push(Finding {
            line: line_of(name),
            field: join(path, &format!("spec.{name}")),
            what: what.to_owned(),
        });
    };
    let read = serde_json::from_value::<DisruptionBudget>(document.to_json());
    let amounts = ["minAvailable", "maxUnavailable"];
    match &read {
        Err(_) => {
            for name in amounts {
                let value = spec.and_then(|spec| spec.get(name)).map(Node::to_json);
                let is_amount =
                    |value| serde_json::from_value::<Option<IntOrPercent>>(value).is_ok();
                if value.is_some_and(|value| !is_amount(value)) {
                    add(
                        name,
                        "expected a number of pods from 0, or a percentage such as \"50%\"",
                    );
                }
            }
        }
        Ok(DisruptionBudget { spec, .. }) => {
            let given = [&spec.min_available, &spec.max_unavailable];
            match given {
                [Some(_), Some(_)] => add(
                    "maxUnavailable",
                    "cannot be combined with minAvailable; leave one out",
                ),
                [None, None] => add(
                    "minAvailable",
                    "missing; set minAvailable or maxUnavailable",
                ),
                _ => {}
            }
            for (name, amount) in amounts.into_iter().zip(given) {
                let is_wrong = |amount: &IntOrPercent| {
                    matches!(amount, IntOrPercent::Percent(_)) && amount.percent().is_none()
                };
                if amount.as_ref().is_some_and(is_wrong) {
                    add(
                        name,
                        "expected a number of pods from 0, or a percentage from \"0%\" to \"100%\"",
                    );
                }
            }
            for expression in spec
                .selector
                .iter()
                .flat_map(|selector| &selector.match_expressions)
            {
                let takes_values = matches!(
                    expression.operator,
                    LabelOperator::In | LabelOperator::NotIn
                );
                if takes_values == expression.values.is_empty() {
                    add(
                        "selector",
                        "matchExpressions: In and NotIn need values, Exists and DoesNotExist have none",
                    );
                }
            }
        }
    }
    if let (Err(error), true) = (&read, findings.is_empty()) {
        findings.push(Finding {
            line: document.line,
            field: path.to_owned(),
            what: error.to_string(),
        });
    }
    match read {
        Ok(budget) if findings.is_empty() => Ok(budget),
        _ => {
            findings.sort_by_key(|finding| finding.line);
            Err(findings)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bounds;
    use super::super::pods::{Parsed, parse};
    use super::*;

    const TEXT: &str = "\
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: web
spec:
  minAvailable: 50%
  selector:
    matchLabels: {app: web}
    matchExpressions:
    - {key: tier, operator: In, values: [front]}
status: {disruptionsAllowed: 1, currentHealthy: 3}
";

    fn read(text: &str) -> Parsed {
        parse(&Arc::from(Path::new("pdb.yaml")), text, Bounds::MANIFEST)
    }

    #[test]
    fn a_budget_is_read() {
        let parsed = read(TEXT);
        assert_eq!(parsed.errors, []);
        let budget = &parsed.budgets[0].budget;
        assert_eq!(&*budget.key(), "default/web");
        assert_eq!(budget.allows(4, 4, 0), 1);
        assert!(parsed.pods.is_empty());
    }

    #[test]
    fn errors_name_file_line_and_field() {
        for (from, to, message) in [
            (
                "policy/v1",
                "v1",
                "pdb.yaml:1: apiVersion: the text \"v1\" is unknown",
            ),
            ("name: web", "namespace: n", "metadata.name: missing"),
            (
                "minAvailable: 50%",
                "minAvailable: 500%",
                "pdb.yaml:6: spec.minAvailable: expected a number",
            ),
            (
                "minAvailable: 50%",
                "minAvailable: -1",
                "pdb.yaml:6: spec.minAvailable: expected a number",
            ),
            (
                "minAvailable: 50%",
                "minAvailable: 1\n  maxUnavailable: 1",
                "pdb.yaml:7: spec.maxUnavailable: cannot be combined with",
            ),
            ("  minAvailable: 50%\n", "", "spec.minAvailable: missing"),
            (
                "operator: In",
                "operator: Exists",
                "pdb.yaml:8: spec.selector: matchExpressions: In and NotIn",
            ),
            ("operator: In", "operator: Is", "unknown variant `Is`"),
            (
                "matchLabels",
                "matchLabel",
                "spec.selector.matchLabel: unknown field",
            ),
        ] {
            let parsed = read(&TEXT.replace(from, to));
            assert!(parsed.budgets.is_empty(), "{to}");
            let errors: Vec<String> = parsed.errors.iter().map(ToString::to_string).collect();
            assert!(
                errors.iter().any(|error| error.contains(message)),
                "{to}: {errors:?}"
            );
        }
    }
}
