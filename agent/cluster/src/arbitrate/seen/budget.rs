//! Disruption budgets.

use std::collections::BTreeSet;

use plimsoll_core::kube::budget::{DisruptionBudget, LabelSelector, SELECTOR_BYTES_MAX};
use serde::Deserialize;

use super::{Meta, Texts, read};

/// A disruption budget.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenBudget {
    /// Which pods; none: no pod.
    pub selector: Option<LabelSelector>,
    /// How many more may go. What the disruption controller has not looked at since the last change allows none.
    pub allowed: u64,
    /// The Eviction API does not ask it about pods that are not ready: its policy for those is `AlwaysAllow`, or as
    /// many are healthy as its owner wants.
    pub spares_unready: bool,
}

impl SeenBudget {
    /// Reads one, with its namespace and name.
    ///
    /// # Errors
    /// What serde says.
    pub fn read(object: &[u8]) -> Result<((String, String), Self), String> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Judged {
            metadata: Meta,
            spec: Spec,
            status: Status,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Spec {
            unhealthy_pod_eviction_policy: Option<String>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            observed_generation: i64,
            current_healthy: i64,
            desired_healthy: i64,
        }
        let budget: DisruptionBudget = read(object)?;
        let Judged {
            metadata,
            spec,
            status,
        } = read(object)?;
        let allowed = budget.status.and_then(|status| status.disruptions_allowed);
        let is_judged = status.observed_generation >= metadata.generation;
        let policy = spec.unhealthy_pod_eviction_policy;
        let is_healthy =
            status.desired_healthy > 0 && status.current_healthy >= status.desired_healthy;
        let selector = budget.spec.selector;
        let is_long = selector
            .as_ref()
            .is_some_and(|it| it.bytes() > SELECTOR_BYTES_MAX);
        // Then it selects all pods of its namespace, and allows none to go: its owner wants some of them to stay.
        let seen = Self {
            selector: if is_long {
                Some(LabelSelector::default())
            } else {
                selector
            },
            allowed: allowed
                .filter(|_| is_judged && !is_long)
                .unwrap_or(0)
                .into(),
            // `pkg/registry/core/pod/storage/eviction.go` of Kubernetes 1.36. Any other policy is `IfHealthyBudget`.
            spares_unready: !is_long
                && (policy.as_deref() == Some("AlwaysAllow") || is_judged && is_healthy),
        };
        let namespace = budget.metadata.namespace.unwrap_or_default();
        Ok(((namespace, budget.metadata.name), seen))
    }
}

/// Names of budgets of the pod's namespace that the Eviction API asks about it, two at most: it refuses a pod that
/// several select.
pub fn asked<'a>(
    budgets: impl Iterator<Item = (&'a (String, String), &'a SeenBudget)>,
    labels: &Texts,
    is_ready: bool,
) -> BTreeSet<String> {
    let selecting = budgets.filter(|(_, budget)| {
        let selector = budget.selector.as_ref();
        selector.is_some_and(|selector| selector.matches(labels))
    });
    let selecting: Vec<(&String, bool)> = selecting
        .map(|((_, name), budget)| (name, budget.spares_unready))
        .take(2)
        .collect();
    match selecting[..] {
        [(_, true)] if !is_ready => BTreeSet::new(),
        _ => selecting
            .into_iter()
            .map(|(name, _)| name.clone())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_is_not_asked_about_a_pod_that_is_not_ready_where_the_api_does_not_ask() {
        let asked = |policy: Option<&str>,
                     healthy: [i64; 2],
                     observed: i64,
                     of: usize,
                     is_ready| {
            let object = json!({"metadata": {"name": "b", "namespace": "a", "generation": 2},
                "spec": {"selector": {}, "unhealthyPodEvictionPolicy": policy},
                "status": {"observedGeneration": observed, "currentHealthy": healthy[0], "desiredHealthy": healthy[1]}});
            let (_, budget) = SeenBudget::read(object.to_string().as_bytes()).unwrap();
            let keys: Vec<_> = (0..of)
                .map(|at| ("a".to_owned(), format!("b{at}")))
                .collect();
            asked(
                keys.iter().map(|key| (key, &budget)),
                &Texts::new(),
                is_ready,
            )
            .len()
        };
        let if_healthy = Some("IfHealthyBudget");
        let always = Some("AlwaysAllow");
        for (policy, healthy, observed, of, expected) in [
            (always, [0, 3], 2, 1, 0),
            // It is what the owner says, whatever the controller has seen.
            (always, [0, 3], 1, 1, 0),
            (if_healthy, [3, 3], 2, 1, 0),
            (None, [4, 3], 2, 1, 0),
            (None, [2, 3], 2, 1, 1),
            (None, [3, 3], 1, 1, 1),
            (None, [0, 0], 2, 1, 1),
            (Some("OfALaterVersion"), [0, 3], 2, 1, 1),
            // Two refuse whatever they say.
            (always, [3, 3], 2, 2, 2),
        ] {
            let case = format!("{policy:?} {healthy:?} {observed} {of}");
            assert_eq!(
                asked(policy, healthy, observed, of, false),
                expected,
                "{case}"
            );
            assert_eq!(asked(policy, healthy, observed, of, true), of, "{case}");
        }
    }

    #[test]
    fn of_a_long_selector_nothing_is_kept_and_it_allows_nothing() {
        let budget = |values: usize| {
            let values: Vec<String> = (0..values).map(|at| format!("v{at}")).collect();
            let object = json!({"metadata": {"name": "b", "namespace": "a"}, "status": {"disruptionsAllowed": 5},
                "spec": {"selector": {"matchExpressions": [{"key": "x", "operator": "NotIn", "values": values}]}}});
            SeenBudget::read(object.to_string().as_bytes()).unwrap().1
        };
        let usual = budget(10);
        assert_eq!(
            (
                usual.selector.as_ref().map(LabelSelector::bytes),
                usual.allowed
            ),
            (Some(197), 5)
        );
        let long = budget(100_000);
        assert_eq!(
            (long.selector, long.allowed),
            (Some(LabelSelector::default()), 0)
        );
    }
}
