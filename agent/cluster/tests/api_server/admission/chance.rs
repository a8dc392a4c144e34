//! Objects by chance, from a fixed seed: every run has the same.

use serde_json::{Map, Value, json};

use super::cases::{self, Case, pod, quota, range};
use super::versions::Newer;

/// How many there are.
pub(super) const NAMESPACES: usize = 48;
/// Objects in each.
const OBJECTS: usize = 14;

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// True once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Names with amounts that rise.
const LADDERS: [(&str, [&str; 6]); 4] = [
    ("cpu", ["10m", "0.1", "250m", "1", "1500m", "4"]),
    ("memory", ["1Mi", "64Mi", "128M", "0.5Gi", "1Gi", "1.5e9"]),
    ("ephemeral-storage", ["0", "1k", "1Mi", "1Gi", "2G", "10Gi"]),
    ("example.com/gpu", ["0", "1", "1", "2", "3", "8"]),
];

fn amounts(chance: &mut Chance, rungs: std::ops::Range<usize>) -> Value {
    let mut list = Map::new();
    for (name, ladder) in &LADDERS[..3] {
        if chance.once_in(2) {
            let rung = rungs.start + chance.below(rungs.len());
            list.insert((*name).to_owned(), json!(ladder[rung]));
        }
    }
    Value::Object(list)
}

fn chance_range(chance: &mut Chance) -> Value {
    let mut items = Vec::new();
    for kind in ["Container", "Pod"] {
        if kind == "Pod" && !chance.once_in(4) {
            continue;
        }
        let mut item = json!({"type": kind});
        // Mostly in order, so that the LimitRange is mostly valid.
        let shift = usize::from(chance.once_in(6));
        let mut fields = vec![("min", 0..2), ("max", 4 - shift * 3..6)];
        if kind == "Container" {
            fields.extend([("defaultRequest", 1..3), ("default", 3..5)]);
        }
        for (field, rungs) in fields {
            if chance.once_in(2) {
                item[field] = amounts(chance, rungs);
            }
        }
        if chance.once_in(3) {
            item["maxLimitRequestRatio"] =
                json!({*chance.of(&["cpu", "memory"]): *chance.of(&["1", "1.5", "2", "40"])});
        }
        items.push(item);
    }
    range("limits", json!(items))
}

fn chance_quotas(chance: &mut Chance) -> Vec<Value> {
    let names = [
        ("pods", ["2", "5", "8"]),
        ("count/pods", ["3", "6", "9"]),
        ("cpu", ["500m", "2", "3.5"]),
        ("requests.cpu", ["1", "2500m", "6"]),
        ("limits.cpu", ["1", "4", "12"]),
        ("memory", ["256Mi", "1Gi", "3e9"]),
        ("limits.memory", ["512Mi", "2Gi", "8Gi"]),
        ("requests.ephemeral-storage", ["1Gi", "2Gi", "20Gi"]),
        ("limits.ephemeral-storage", ["1Gi", "4Gi", "20Gi"]),
        ("requests.example.com/gpu", ["0", "2", "4"]),
        ("configmaps", ["0", "1", "2"]),
        ("count/configmaps", ["0", "1", "2"]),
        ("secrets", ["0", "1", "2"]),
    ];
    let mut quotas = Vec::new();
    for at in 0..chance.below(4) {
        let mut hard = Map::new();
        for _ in 0..1 + chance.below(3) {
            let (name, amounts) = chance.of(&names);
            hard.insert((*name).to_owned(), json!(*chance.of(amounts)));
        }
        let mut object = quota(&format!("q{at}"), Value::Object(hard));
        if chance.once_in(3) {
            let scope = chance.of(&[
                "Terminating",
                "NotTerminating",
                "BestEffort",
                "NotBestEffort",
            ]);
            object["spec"]["scopes"] = json!([scope]);
        } else if chance.once_in(4) {
            let operator = chance.of(&["In", "NotIn", "Exists", "DoesNotExist"]);
            let mut expression = json!({"scopeName": "PriorityClass", "operator": operator});
            if operator.ends_with("In") {
                expression["values"] = json!([chance.of(&["high", "low"]), "ordinary"]);
            }
            object["spec"]["scopeSelector"] = json!({"matchExpressions": [expression]});
        }
        quotas.push(object);
    }
    quotas
}

fn chance_container(chance: &mut Chance) -> Value {
    let mut resources = json!({});
    for (name, ladder) in &LADDERS {
        let common = if *name == "example.com/gpu" { 8 } else { 2 };
        let request = chance.below(4);
        if chance.once_in(common) {
            resources["requests"][*name] = json!(ladder[request]);
        }
        if chance.once_in(common) {
            // Once in a while below the request.
            let low = if chance.once_in(10) { 0 } else { request };
            resources["limits"][*name] = json!(ladder[low + chance.below(6 - low)]);
        }
    }
    json!({"resources": resources})
}

/// A namespace by chance.
pub(super) fn case(at: usize) -> Case {
    let mut chance = Chance(0x5eed_0017 + u64::try_from(at).unwrap());
    let mut deciders = chance_quotas(&mut chance);
    if !chance.once_in(3) {
        deciders.push(chance_range(&mut chance));
    }
    let mut objects = Vec::new();
    for at in 0..OBJECTS {
        let name = format!("o{at}");
        if chance.once_in(6) {
            let resource = *chance.of(&["configmaps", "secrets"]);
            objects.push((resource, json!({"metadata": {"name": name}})));
            continue;
        }
        let containers: Vec<Value> = (0..1 + chance.below(3))
            .map(|_| chance_container(&mut chance))
            .collect();
        let mut object = pod(&name, json!(containers));
        if chance.once_in(4) {
            let mut init = chance_container(&mut chance);
            init["name"] = json!("i0");
            init["image"] = json!("i");
            object["spec"]["initContainers"] = json!([init]);
        }
        if chance.once_in(4) {
            object["spec"]["priorityClassName"] =
                json!(*chance.of(&["high", "low", "never", "missing"]));
        }
        if chance.once_in(3) {
            object["spec"]["activeDeadlineSeconds"] = json!(30);
        }
        objects.push(("pods", object));
    }
    let name = format!("chance-{at}");
    let has_pod_items = deciders.iter().any(|it| it.to_string().contains("\"Pod\""));
    cases::case(
        &name,
        has_pod_items.then_some(Newer::PodSums),
        deciders,
        objects,
    )
}
