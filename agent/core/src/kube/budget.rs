//! Disruption budgets: how many pods of a set may be missing at once, as their owners wrote it.
//!
//! Source: `k8s.io/api/policy/v1/types.go` and `pkg/controller/disruption/disruption.go` (`getExpectedPodCount`,
//! `updatePdbStatus`) of Kubernetes 1.36. Percentages are rounded up. Differences, each because only this node is
//! known: `status.disruptionsAllowed` is taken where it is given; else the pods of this node are all that is expected,
//! where the controller asks the owner's `scale`. A pod with processes counts as healthy.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kube::pod::{Metadata, Pod};

/// Disruption budgets of a namespace that the arbitrator compares with its pods, at most: its owners make as many as
/// they like.
pub const OF_A_NAMESPACE_MAX: usize = 100;
/// [Bytes](LabelSelector::bytes) of a selector that the arbitrator compares, at most.
pub const SELECTOR_BYTES_MAX: usize = 1024;

/// A PodDisruptionBudget.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DisruptionBudget {
    /// Name and namespace.
    pub metadata: Metadata,
    /// What the owner wants.
    pub spec: BudgetSpec,
    /// What the cluster says, where it has said anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<BudgetStatus>,
}

/// `spec`. At most one of the two amounts is set.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpec {
    /// So many must be left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available: Option<IntOrPercent>,
    /// So many may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// Which pods of the namespace: an empty one selects all, none selects none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// `status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// How many more pods may be disrupted now, in the whole cluster.
    pub disruptions_allowed: Option<u32>,
}

/// A number of pods, or a share of them such as `30%`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrPercent {
    /// Pods.
    Int(u32),
    /// A percentage, as written.
    Percent(String),
}

impl IntOrPercent {
    /// The percentage, if it is one between 0 and 100.
    pub fn percent(&self) -> Option<u32> {
        match self {
            Self::Int(_) => None,
            Self::Percent(text) => {
                let number = text.strip_suffix('%')?.parse().ok()?;
                (number <= 100).then_some(number)
            }
        }
    }

    /// Of `pods` pods; a percentage is rounded up.
    fn of(&self, pods: u32) -> u32 {
        match self {
            Self::Int(number) => *number,
            Self::Percent(_) => {
                let share = u64::from(pods) * u64::from(self.percent().unwrap_or(0));
                u32::try_from(share.div_ceil(100)).unwrap_or(u32::MAX)
            }
        }
    }
}

/// `metav1.LabelSelector`: everything in it must hold.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// Labels with these values.
    pub match_labels: BTreeMap<String, String>,
    /// Expressions on labels.
    pub match_expressions: Vec<Expression>,
}

/// An expression on one label.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Expression {
    /// The label.
    pub key: String,
    /// How it is compared.
    pub operator: LabelOperator,
    /// With what; empty for `Exists` and `DoesNotExist`.
    #[serde(default)]
    pub values: Vec<String>,
}

/// How a label is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LabelOperator {
    /// It has one of the values.
    In,
    /// It is missing or has none of the values.
    NotIn,
    /// It is there.
    Exists,
    /// It is missing.
    DoesNotExist,
}

impl LabelSelector {
    /// Bytes of what it compares, with 16 for each text.
    pub fn bytes(&self) -> usize {
        let labels = self.match_labels.iter();
        let labels = labels.map(|(key, value)| key.len() + value.len() + 16);
        let expressions = self.match_expressions.iter().map(|expression| {
            let values = expression.values.iter().map(|value| value.len() + 16);
            expression.key.len() + 16 + values.sum::<usize>()
        });
        labels.chain(expressions).sum()
    }

    /// Whether a pod with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        let holds = |expression: &Expression| {
            let value = labels.get(&expression.key);
            match expression.operator {
                LabelOperator::In => value.is_some_and(|value| expression.values.contains(value)),
                LabelOperator::NotIn => {
                    value.is_none_or(|value| !expression.values.contains(value))
                }
                LabelOperator::Exists => value.is_some(),
                LabelOperator::DoesNotExist => value.is_none(),
            }
        };
        self.match_labels.iter().all(equal) && self.match_expressions.iter().all(holds)
    }
}

impl DisruptionBudget {
    /// `namespace/name`.
    pub fn key(&self) -> Arc<str> {
        let namespace = self.metadata.namespace.as_deref();
        let namespace = namespace.unwrap_or(crate::kube::pod::DEFAULT_NAMESPACE);
        Arc::from(format!("{namespace}/{}", self.metadata.name))
    }

    /// Whether it is about this pod.
    pub fn selects(&self, pod: &Pod) -> bool {
        let namespace = self.metadata.namespace.as_deref();
        namespace.unwrap_or(crate::kube::pod::DEFAULT_NAMESPACE) == pod.namespace()
            && self
                .spec
                .selector
                .as_ref()
                .is_some_and(|selector| selector.matches(&pod.metadata.labels))
    }

    /// How many pods may be disrupted, with `expected` pods, of which `healthy` run and Plimsoll is ending `leaving`.
    pub fn allows(&self, expected: u32, healthy: u32, leaving: u32) -> u32 {
        if let Some(allowed) = self.status.and_then(|status| status.disruptions_allowed) {
            return allowed.saturating_sub(leaving);
        }
        let desired = match (&self.spec.max_unavailable, &self.spec.min_available) {
            (Some(missing), _) => expected.saturating_sub(missing.of(expected)),
            (None, Some(left)) => left.of(expected),
            (None, None) => 0,
        };
        healthy.saturating_sub(desired)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn budget(spec: serde_json::Value) -> DisruptionBudget {
        serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": spec})).unwrap()
    }

    #[test]
    fn what_is_allowed() {
        let cases = [
            (json!({"minAvailable": 2}), 3, 3, 1),
            (json!({"minAvailable": 2}), 3, 2, 0),
            (json!({"minAvailable": "50%"}), 3, 3, 1),
            (json!({"minAvailable": "100%"}), 3, 3, 0),
            (json!({"maxUnavailable": 1}), 3, 3, 1),
            (json!({"maxUnavailable": 1}), 3, 2, 0),
            // 30 % of 3 are 1.
            (json!({"maxUnavailable": "30%"}), 3, 3, 1),
            (json!({"maxUnavailable": 5}), 3, 3, 3),
        ];
        for (spec, expected, healthy, allowed) in cases {
            let budget = budget(spec.clone());
            assert_eq!(budget.allows(expected, healthy, 0), allowed, "{spec}");
        }
        let mut known = budget(json!({"minAvailable": 9}));
        known.status = Some(BudgetStatus {
            disruptions_allowed: Some(2),
        });
        assert_eq!(
            (
                known.allows(9, 9, 0),
                known.allows(9, 9, 1),
                known.allows(9, 9, 3)
            ),
            (2, 1, 0)
        );
    }

    #[test]
    fn selectors() {
        let selects = |selector: serde_json::Value, labels: serde_json::Value| {
            let budget = budget(json!({"selector": selector}));
            let pod =
                json!({"metadata": {"name": "p", "labels": labels}, "spec": {"containers": []}});
            budget.selects(&serde_json::from_value(pod).unwrap())
        };
        let web = json!({"app": "web", "tier": "front"});
        assert!(selects(json!({}), json!({})));
        assert!(!selects(json!(null), web.clone()));
        assert!(selects(json!({"matchLabels": {"app": "web"}}), web.clone()));
        assert!(!selects(
            json!({"matchLabels": {"app": "web", "x": "y"}}),
            web.clone()
        ));
        let expression = |operator: &str, key: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (operator, key, values, expected) in [
            ("In", "app", &["db", "web"][..], true),
            ("In", "x", &["web"], false),
            ("NotIn", "app", &["web"], false),
            ("NotIn", "x", &["web"], true),
            ("Exists", "tier", &[], true),
            ("DoesNotExist", "tier", &[], false),
        ] {
            assert_eq!(
                selects(expression(operator, key, values), web.clone()),
                expected,
                "{operator} {key}"
            );
        }
        let mut elsewhere = budget(json!({"selector": {}}));
        elsewhere.metadata.namespace = Some("elsewhere".to_owned());
        assert_eq!(&*elsewhere.key(), "elsewhere/b");
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": []}});
        assert!(!elsewhere.selects(&serde_json::from_value(pod).unwrap()));
    }
}
