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
            status: Status,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase", default)]
        struct Status {
            observed_generation: i64,
        }
        let budget: DisruptionBudget = read(object)?;
        let judged: Judged = read(object)?;
        let allowed = budget.status.and_then(|status| status.disruptions_allowed);
        let is_judged = judged.status.observed_generation >= judged.metadata.generation;
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
        };
        let namespace = budget.metadata.namespace.unwrap_or_default();
        Ok(((namespace, budget.metadata.name), seen))
    }
}

/// Names of budgets of the pod's namespace that select it, two at most: the Eviction API refuses a pod that several
/// select.
pub fn selecting<'a>(
    budgets: impl Iterator<Item = (&'a (String, String), &'a SeenBudget)>,
    labels: &Texts,
) -> BTreeSet<String> {
    budgets
        .filter(|(_, budget)| {
            let selector = budget.selector.as_ref();
            selector.is_some_and(|selector| selector.matches(labels))
        })
        .map(|((_, name), _)| name.clone())
        .take(2)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
