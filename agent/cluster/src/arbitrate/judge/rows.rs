//! What is found for each Consumer: its amounts, and what is wrong with it.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::arbitration::amounts::{Amounts, Bounds};
use plimsoll_core::arbitration::census::Census;
use plimsoll_core::arbitration::cluster::Cluster;
use plimsoll_core::arbitration::entitled::overused;
use plimsoll_core::arbitration::groups::Deserved;
use plimsoll_core::arbitration::named::{Condition, Named};

use super::objects::hard;
use super::{Judgement, OfNamespaces, Row};
use crate::arbitrate::store::{OF_A_NAMESPACE_MAX, Store};

pub(super) fn rows(
    store: &Store,
    cluster: &Cluster,
    census: &Census,
    deserved: &Deserved,
    consumers: &OfNamespaces<'_>,
) -> Vec<Row> {
    let over: BTreeSet<usize> = overused(&cluster.consumers, &census.asks, deserved)
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    let mut rows = Vec::new();
    for (at, name) in cluster.names.iter().enumerate() {
        let Some(Ok(spec)) = store.consumers.get(name).map(|consumer| &consumer.spec) else {
            continue;
        };
        // One whose namespace another Consumer has is left out by the core.
        let is_left_out = |namespace: &String| {
            let first = consumers.get(namespace);
            first.is_none_or(|(first, _)| *first != name)
        };
        if spec.namespace.as_ref().is_some_and(is_left_out) {
            continue;
        }
        let (used, may) = (&deserved.used[at], &deserved.amounts[at]);
        let excess: Vec<u64> = used
            .iter()
            .zip(may.iter())
            .map(|(used, may)| used.saturating_sub(*may))
            .collect();
        let (hard, lowered) = hard(store, spec);
        let mut wrong = Vec::new();
        if !lowered.is_empty() {
            let text = format!(
                "a ResourceQuota of the namespace allows less {} than hard; the lesser counts",
                lowered.join(", ")
            );
            wrong.push(("QuotaBelowHard", text));
        }
        if let Some(namespace) = &spec.namespace {
            if store.namespaces.get(namespace).is_none() {
                wrong.push(("NoNamespace", format!("there is no namespace {namespace}")));
            }
            wrong.extend(left_out(store, namespace));
        }
        rows.push(Row {
            name: name.clone(),
            namespace: spec.namespace.clone(),
            // All resources that it asks for or that count are shown, also those of which it has nothing.
            deserved: shown(cluster, may, &census.capacity),
            used: shown(cluster, used, &census.capacity),
            hard,
            reserved: spec.reserved.clone(),
            over: if over.contains(&at) {
                named(cluster, &excess)
            } else {
                Named::new()
            },
            short: deserved
                .shortages
                .get(at)
                .and_then(Option::as_ref)
                .map(|short| named(cluster, short))
                .unwrap_or_default(),
            dominant: dominant(cluster, used, &census.capacity),
            passed_over: census.asks[at].passed_over,
            wrong,
            ..Row::default()
        });
    }
    // The cluster's own shortage stands after the last Consumer.
    if let Some(Some(short)) = deserved.shortages.get(cluster.names.len()) {
        let short = named(cluster, short);
        for row in rows
            .iter_mut()
            .filter(|row| !row.reserved.is_empty() && row.short.is_empty())
        {
            row.short = short
                .iter()
                .filter(|(name, _)| row.reserved.contains_key(*name))
                .map(|(name, amount)| (name.clone(), *amount))
                .collect();
        }
    }
    rows
}

/// What a namespace has too many of, and what follows for it.
fn left_out(store: &Store, namespace: &str) -> Vec<(&'static str, String)> {
    let mut wrong = Vec::new();
    if store.has_many_budgets(namespace) {
        let text = format!(
            "its namespace has more than {OF_A_NAMESPACE_MAX} disruption budgets, so that none of its pods is evicted: delete those that it does not need"
        );
        wrong.push(("TooManyBudgets", text));
    }
    if store.has_many_quotas(namespace) {
        let text = format!(
            "its namespace has more than {OF_A_NAMESPACE_MAX} resource quotas, so that its pending pods ask for nothing: delete those that it does not need"
        );
        wrong.push(("TooManyQuotas", text));
    }
    if store.allocations.left_out_of(namespace) > 0 {
        let text = format!(
            "its namespace has more than {OF_A_NAMESPACE_MAX} Allocations, so that its own may not be kept up to date: delete the others"
        );
        wrong.push(("TooManyAllocations", text));
    }
    let pods = store.pods.left_out_of(namespace);
    if pods > 0 {
        let text = format!(
            "its namespace has more pending pods than are looked at: {pods} times one was left out, and asks for nothing; make fewer at once"
        );
        wrong.push(("TooManyPods", text));
    }
    wrong
}

/// Conditions of Consumers go to their rows, the others are counted.
pub(super) fn blame(judgement: &mut Judgement, conditions: Vec<Condition>) {
    let rows = std::mem::take(&mut judgement.rows).into_iter();
    let mut rows: BTreeMap<String, Row> = rows.map(|row| (row.name.clone(), row)).collect();
    for condition in conditions {
        let Some(name) = condition.object.strip_prefix("Consumer ") else {
            *judgement.wrong_objects.entry(condition.reason).or_default() += 1;
            continue;
        };
        let wrong = (condition.reason, condition.message);
        let row = rows.entry(name.to_owned()).or_insert_with(|| Row {
            name: name.to_owned(),
            ..Row::default()
        });
        row.wrong.push(wrong);
    }
    // By name, as they are looked for.
    judgement.rows = rows.into_values().collect();
}

pub(super) fn bounds(bounds: &Bounds) -> Amounts {
    bounds.iter().map(|bound| bound.unwrap_or(0)).collect()
}

/// Amounts above 0, by name.
pub(super) fn named(cluster: &Cluster, amounts: &[u64]) -> Named {
    let names = cluster.resources.names().zip(amounts);
    names
        .filter(|(_, amount)| **amount > 0)
        .map(|(name, amount)| (name.to_owned(), *amount))
        .collect()
}

/// Amounts of resources that some node has.
fn shown(cluster: &Cluster, amounts: &[u64], capacity: &Bounds) -> Named {
    let names = cluster.resources.names().zip(amounts).zip(capacity);
    names
        .filter(|((_, amount), capacity)| {
            capacity.is_some_and(|capacity| capacity > 0) || **amount > 0
        })
        .map(|((name, amount), _)| (name.to_owned(), *amount))
        .collect()
}

fn dominant(cluster: &Cluster, used: &[u64], capacity: &Bounds) -> Option<(String, u64, u64)> {
    let shares = cluster.resources.names().zip(used).zip(capacity);
    let shares = shares.filter_map(|((name, used), capacity)| {
        Some((name, *used, capacity.filter(|capacity| *capacity > 0)?))
    });
    let greatest = shares.reduce(|greatest, next| {
        let is_greater = u128::from(next.1) * u128::from(greatest.2)
            > u128::from(greatest.1) * u128::from(next.2);
        if is_greater { next } else { greatest }
    });
    greatest.map(|(name, used, capacity)| (name.to_owned(), used, capacity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrate::seen::pod::SeenPod;
    use crate::arbitrate::store::Most;

    #[test]
    fn a_namespace_with_more_pods_than_are_looked_at_says_so() {
        let mut store = Store::default();
        let pod = SeenPod {
            namespace: "a".to_owned(),
            ..SeenPod::default()
        };
        let most = Most {
            in_all: 2,
            of_each: 1,
        };
        store.pods.put("u1".to_owned(), pod.clone(), most);
        assert_eq!(left_out(&store, "a"), []);
        store.pods.put("u2".to_owned(), pod, most);
        let [(reason, text)] = &left_out(&store, "a")[..] else {
            panic!("{:?}", left_out(&store, "a"));
        };
        assert_eq!(*reason, "TooManyPods");
        assert!(text.contains("1 times one was left out"), "{text}");
        assert_eq!(left_out(&store, "b"), []);
    }

    #[test]
    fn a_condition_finds_its_row_or_makes_one_in_its_place() {
        let row = |name: &str| Row {
            name: name.to_owned(),
            ..Row::default()
        };
        let mut judgement = Judgement {
            rows: vec![row("b"), row("d")],
            ..Judgement::default()
        };
        let said = |object: &str| Condition {
            object: object.to_owned(),
            reason: "NoParent",
            message: String::new(),
        };
        let conditions = [
            "Consumer d",
            "Consumer c",
            "Consumer a",
            "Consumer c",
            "Pod a/b",
        ];
        blame(&mut judgement, conditions.map(said).into());
        let rows = judgement.rows.iter();
        let rows: Vec<(&str, usize)> = rows.map(|row| (&*row.name, row.wrong.len())).collect();
        // Rows are looked for by name.
        assert_eq!(rows, [("a", 1), ("b", 0), ("c", 2), ("d", 1)]);
        assert_eq!(judgement.wrong_objects["NoParent"], 1);
    }
}
