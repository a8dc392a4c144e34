//! `drf_deserved`: what namespaces and groups deserve of a cluster, by capacity, Consumers and their pods.
//!
//! Pods of a Consumer are listed older first; the bound ones count first, then those of higher priority.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use plimsoll_core::arbitration::amounts::{Amounts, Bounds, Resources};
use plimsoll_core::arbitration::demand::Counting;
use plimsoll_core::arbitration::entitled::overused;
use plimsoll_core::arbitration::groups::{Ask, Consumer, deserve};
use serde::Deserialize;
use serde_json::Value;

use super::{Verdict, read, same};

type Named = BTreeMap<String, u64>;

#[derive(Deserialize)]
struct Vector {
    capacity: Named,
    consumers: Vec<ConsumerInput>,
    deserved: BTreeMap<String, Named>,
    used: BTreeMap<String, Named>,
    overused: BTreeMap<String, Vec<String>>,
    passed_over: BTreeMap<String, u64>,
    shortage: BTreeMap<String, Named>,
}

/// A Consumer; `arbitration_plan` has them without pods.
#[derive(Deserialize)]
pub(super) struct ConsumerInput {
    pub(super) name: String,
    pub(super) parent: Option<String>,
    pub(super) weight: Option<u64>,
    #[serde(default)]
    pub(super) hard: Named,
    #[serde(default)]
    pub(super) reserved: Named,
    #[serde(default)]
    pub(super) unlimited: bool,
    #[serde(default)]
    pods: Vec<PodsInput>,
}

#[derive(Deserialize)]
struct PodsInput {
    requests: Named,
    count: Option<u64>,
    #[serde(default)]
    bound: bool,
    #[serde(default)]
    priority: i64,
}

pub(super) fn check(vector: &Value) -> Verdict {
    Verdict::of(read(vector).and_then(compare))
}

fn compare(mut vector: Vector) -> Result<(), String> {
    vector.consumers.sort_by(|a, b| a.name.cmp(&b.name));
    let resources = Resources::new(names(&vector)).map_err(|error| error.to_string())?;
    let capacity = bounds(&resources, &vector.capacity);
    let mut passed_over = BTreeMap::new();
    let (mut consumers, mut asks) = (Vec::new(), Vec::new());
    for input in &vector.consumers {
        let hard = bounds(&resources, &input.hard);
        let mut counting = Counting::new(&hard, &capacity);
        let mut used = resources.none();
        let mut pods: Vec<&PodsInput> = input.pods.iter().collect();
        pods.sort_by_key(|pods| (!pods.bound, Reverse(pods.priority)));
        for pods in pods {
            let requests = amounts(&resources, &pods.requests);
            let count = pods.count.unwrap_or(1);
            counting.add(&requests, count);
            for (used, request) in used.iter_mut().zip(requests).filter(|_| pods.bound) {
                *used += request * count;
            }
        }
        let (demand, passed) = counting.finish();
        if passed > 0 {
            passed_over.insert(input.name.clone(), passed);
        }
        asks.push(Ask {
            demand,
            used,
            passed_over: passed,
        });
        let parent = |name: &String| {
            vector
                .consumers
                .iter()
                .position(|consumer| consumer.name == *name)
        };
        consumers.push(Consumer {
            parent: input.parent.as_ref().and_then(parent),
            weight: input.weight.unwrap_or(1),
            reserved: amounts(&resources, &input.reserved),
            hard,
            unlimited: input.unlimited,
        });
    }
    let deserved = deserve(&consumers, &asks, &capacity);
    let by_name = |rows: &[Amounts]| -> BTreeMap<String, Named> {
        let rows = vector.consumers.iter().zip(rows);
        rows.map(|(consumer, row)| (consumer.name.clone(), named(&resources, row, |_| true)))
            .collect()
    };
    same("deserved", &by_name(&deserved.amounts), &vector.deserved)?;
    same("used", &by_name(&deserved.used), &vector.used)?;
    same("passed_over", &passed_over, &vector.passed_over)?;
    let groups = vector
        .consumers
        .iter()
        .map(|consumer| consumer.name.as_str())
        .chain([""]);
    let shortage = groups
        .zip(&deserved.shortages)
        .filter_map(|(name, shortage)| {
            let shortage = named(&resources, shortage.as_ref()?, |amount| amount > 0);
            Some((name.to_owned(), shortage))
        });
    same("shortage", &shortage.collect(), &vector.shortage)?;
    let over = overused(&consumers, &asks, &deserved);
    let over = over.into_iter().map(|(consumer, over)| {
        let names: Vec<&str> = resources.names().collect();
        (
            vector.consumers[consumer].name.clone(),
            over.iter().map(|place| names[place].to_owned()).collect(),
        )
    });
    same("overused", &over.collect(), &vector.overused)
}

/// Every resource named anywhere.
fn names(vector: &Vector) -> BTreeSet<String> {
    let consumers = vector.consumers.iter();
    let of_consumers = consumers.flat_map(|consumer| {
        let pods = consumer.pods.iter().map(|pods| &pods.requests);
        pods.chain([&consumer.hard, &consumer.reserved])
    });
    of_consumers
        .chain([&vector.capacity])
        .flat_map(|named| named.keys().cloned())
        .collect()
}

/// Of each resource its amount, 0 if it is not named.
pub(super) fn amounts(resources: &Resources, named: &Named) -> Amounts {
    resources
        .names()
        .map(|name| named.get(name).copied().unwrap_or(0))
        .collect()
}

/// Of each resource its amount, if it is named.
pub(super) fn bounds(resources: &Resources, named: &Named) -> Bounds {
    resources
        .names()
        .map(|name| named.get(name).copied())
        .collect()
}

/// By name, the amounts that are shown.
pub(super) fn named(
    resources: &Resources,
    amounts: &Amounts,
    shown: impl Fn(u64) -> bool,
) -> Named {
    let all = resources.names().zip(amounts);
    all.filter(|(_, amount)| shown(**amount))
        .map(|(name, amount)| (name.to_owned(), *amount))
        .collect()
}
