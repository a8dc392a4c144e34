//! What holds for admission whatever the objects: it is idempotent, it counts what is there, and a refusal counts
//! nothing.

use std::collections::BTreeMap;

use plimsoll_core::kube::admission::Admission;
use plimsoll_core::kube::admission::chain::{Source, World};
use plimsoll_core::kube::admission::field::FieldError;
use plimsoll_core::kube::admission::object::{LimitRange, Object, ResourceQuota};
use plimsoll_core::kube::admission::pod_object::{MorePod, PodObject};
use plimsoll_core::kube::admission::pod_rules;
use plimsoll_core::kube::admission::resource_quota::cluster::Cluster;
use plimsoll_core::kube::admission::resource_quota::configuration::Configuration;
use plimsoll_core::kube::admission::standing::{QuotaUse, TAKERS_MAX};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::resources::ResourceList;
use proptest::prelude::*;
use serde_json::{Value, json};

fn pod(value: &Value) -> PodObject {
    let pod: Pod = serde_json::from_value(value.clone()).unwrap();
    let more: MorePod = serde_json::from_value(value.clone()).unwrap();
    PodObject::new(pod, more)
}

fn world(ranges: &[Value], quotas: &[Value]) -> World {
    let mut world = World::new(
        Admission::Upstream,
        Configuration::default(),
        Cluster::default(),
    );
    for range in ranges {
        let range: LimitRange = serde_json::from_value(range.clone()).unwrap();
        // One that the API refuses has no effect.
        world.add_range(range).ok();
    }
    for quota in quotas {
        let quota: ResourceQuota = serde_json::from_value(quota.clone()).unwrap();
        world.add_quota(quota).ok();
    }
    world.count();
    world
}

fn used(world: &World) -> Vec<ResourceList> {
    world.quotas().map(|quota| quota.status.used).collect()
}

const NAMES: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "example.com/gpu"];
const AMOUNTS: [&str; 7] = ["0", "1m", "500m", "1", "1500m", "2", "1Gi"];
const HARD: [&str; 8] = [
    "pods",
    "count/pods",
    "cpu",
    "limits.cpu",
    "requests.memory",
    "limits.memory",
    "requests.ephemeral-storage",
    "requests.example.com/gpu",
];
const SCOPES: [&str; 4] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
];

fn amounts(names: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let entry = (
        prop::sample::select(names),
        prop::sample::select(&AMOUNTS[..]),
    );
    prop::collection::vec(entry, 0..3).prop_map(|entries| {
        let entries = entries
            .into_iter()
            .map(|(name, amount)| (name.to_owned(), json!(amount)));
        Value::Object(entries.collect())
    })
}

fn resources() -> impl Strategy<Value = Value> {
    (amounts(&NAMES), amounts(&NAMES))
        .prop_map(|(requests, limits)| json!({"requests": requests, "limits": limits}))
}

/// Pods, some with pod-level resources if `with_level`.
fn pods(with_level: bool) -> impl Strategy<Value = Vec<Value>> {
    let containers = prop::collection::vec((resources(), any::<bool>()), 1..4);
    let level = prop::option::weighted(0.2, amounts(&["cpu", "memory"]));
    let one =
        (containers, level, any::<bool>()).prop_map(move |(containers, level, terminates)| {
            let (mut init, mut regular) = (Vec::new(), Vec::new());
            for (at, (resources, is_init)) in containers.into_iter().enumerate() {
                let container = json!({"name": format!("c{at}"), "resources": resources});
                if is_init && at > 0 {
                    init.push(container)
                } else {
                    regular.push(container)
                }
            }
            let mut spec = json!({"containers": regular, "initContainers": init});
            if let Some(level) = level.filter(|_| with_level) {
                spec["resources"] = json!({"limits": level});
            }
            if terminates {
                spec["activeDeadlineSeconds"] = json!(60);
            }
            spec
        });
    prop::collection::vec(one, 1..8).prop_map(|specs| {
        let named = |(at, spec): (usize, Value)| {
            json!({"metadata": {"name": format!("p{at}"), "namespace": "n"}, "spec": spec})
        };
        specs.into_iter().enumerate().map(named).collect()
    })
}

fn ranges() -> impl Strategy<Value = Vec<Value>> {
    let item = (
        prop::sample::select(&["Container", "Pod"][..]),
        amounts(&NAMES),
        amounts(&NAMES),
        amounts(&NAMES),
    );
    let item = item.prop_map(|(kind, min, max, default)| match kind {
        "Pod" => json!({"type": kind, "min": min, "max": max}),
        _ => json!({"type": kind, "max": max, "default": default}),
    });
    prop::collection::vec(item, 0..3).prop_map(|items| {
        let named = |(at, item): (usize, Value)| {
            json!({"metadata": {"name": format!("l{at}"), "namespace": "n"}, "spec": {"limits": [item]}})
        };
        items.into_iter().enumerate().map(named).collect()
    })
}

fn quotas() -> impl Strategy<Value = Vec<Value>> {
    let hard = prop::collection::btree_map(
        prop::sample::select(&HARD[..]),
        prop::sample::select(&["2", "4", "3Gi"][..]),
        1..4,
    );
    let scope = prop::option::weighted(0.3, prop::sample::select(&SCOPES[..]));
    prop::collection::vec((hard, scope), 0..4).prop_map(|quotas| {
        let named = |(at, (hard, scope)): (usize, (BTreeMap<&str, &str>, Option<&str>))| {
            json!({"metadata": {"name": format!("q{at}"), "namespace": "n"},
                "spec": {"hard": hard, "scopes": scope.map(|scope| vec![scope])}})
        };
        quotas.into_iter().enumerate().map(named).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Not with pod-level resources: the API fills these from the containers' before LimitRanger sets more of those.
    #[test]
    fn an_admitted_pod_is_admitted_as_it_is(ranges in ranges(), pods in pods(false)) {
        let mut first = world(&ranges, &[]);
        let mut second = world(&ranges, &[]);
        for value in &pods {
            let Ok(admitted) = first.admit("pods", Object::Pod(Box::new(pod(value)))) else { continue };
            let again = second.admit("pods", (*admitted.object).clone()).unwrap();
            prop_assert_eq!(&again.object, &admitted.object);
            prop_assert_eq!(again.defaults, vec![]);
        }
    }

    #[test]
    fn what_is_kept_is_what_is_counted_anew(ranges in ranges(), quotas in quotas(), pods in pods(true)) {
        let mut world = world(&ranges, &quotas);
        for value in &pods {
            let before = used(&world);
            let admitted = world.admit("pods", Object::Pod(Box::new(pod(value))));
            if admitted.is_err() {
                prop_assert_eq!(used(&world), before);
            }
        }
        let quotas: Vec<ResourceQuota> = world.quotas().collect();
        for quota in quotas {
            let mut anew = ResourceList::new();
            for (_, takes) in world.counts().takers(&quota) {
                for (name, quantity) in takes {
                    *anew.entry(name).or_default() += &quantity;
                }
            }
            for (name, quantity) in &quota.status.used {
                prop_assert_eq!(quantity, &anew.remove(name).unwrap_or_default(), "{} of {}", name, quota.metadata.name);
            }
            prop_assert!(anew.is_empty());
        }
    }
}

#[test]
fn each_default_names_where_it_comes_from() {
    let range = json!({"metadata": {"name": "limits", "namespace": "n"}, "spec": {"limits": [
        {"type": "Pod", "max": {"cpu": "8"}},
        {"type": "Container", "max": {"memory": "1Gi"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}}]}});
    let mut world = world(&[range], &[]);
    let value = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [
        {"name": "c", "resources": {"limits": {"ephemeral-storage": "1Gi"}}}]}});
    let admitted = world
        .admit("pods", Object::Pod(Box::new(pod(&value))))
        .unwrap();
    let range = |field| Source::LimitRange {
        name: "limits".to_owned(),
        item: 1,
        field,
    };
    let source = |field: &str| {
        let defaults = admitted.defaults.iter();
        let found = defaults.filter(|default| default.field.to_string().ends_with(field));
        found
            .map(|default| default.source.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(source("requests[ephemeral-storage]"), [Source::Api]);
    assert_eq!(source("requests[cpu]"), [range("defaultRequest")]);
    assert_eq!(source("limits[cpu]"), [range("default")]);
    assert_eq!(source("requests[memory]"), [range("max")]);
    assert_eq!(
        source("spec.priority"),
        [Source::PriorityClass {
            name: String::new()
        }]
    );
}

#[test]
fn a_second_default_class_is_refused() {
    let mut world = world(&[], &[]);
    let class = |name: &str| {
        serde_json::from_value(
            json!({"metadata": {"name": name}, "value": 1, "globalDefault": true}),
        )
        .unwrap()
    };
    world.add_class(class("a")).unwrap();
    let refusal = world.add_class(class("b")).unwrap_err();
    assert_eq!(
        refusal.message,
        "priorityclasses.scheduling.k8s.io \"b\" is forbidden: PriorityClass a is already marked as default. Only one default can exist"
    );
}

#[test]
fn an_object_is_there_once() {
    let mut world = world(&[], &[]);
    let value = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c"}]}});
    world
        .admit("pods", Object::Pod(Box::new(pod(&value))))
        .unwrap();
    let refusal = world
        .admit("pods", Object::Pod(Box::new(pod(&value))))
        .unwrap_err();
    assert_eq!(
        (refusal.code, refusal.message.as_str()),
        (409, "pods \"p\" already exists")
    );
}

/// Each taker is one that the quota is about, in the order in which the objects came.
#[test]
fn takers_come_in_the_order_of_the_objects() {
    let quota = json!({"metadata": {"name": "q", "namespace": "n"}, "spec": {"hard": {"pods": "9", "count/configmaps": "9"}}});
    let mut world = world(&[], &[quota]);
    let meta = |name: &str, namespace: &str| json!({"name": name, "namespace": namespace});
    let pod_of = |name: &str, namespace: &str| {
        let value =
            json!({"metadata": meta(name, namespace), "spec": {"containers": [{"name": "c"}]}});
        Object::Pod(Box::new(pod(&value)))
    };
    let other =
        |name: &str| Object::Other(Box::new(serde_json::from_value(meta(name, "n")).unwrap()));
    world.admit("pods", pod_of("b", "n")).unwrap();
    world.admit("configmaps", other("settings")).unwrap();
    world.admit("secrets", other("key")).unwrap();
    world.admit("pods", pod_of("elsewhere", "m")).unwrap();
    world.admit("pods", pod_of("a", "n")).unwrap();
    let counts = world.counts();
    let takers = counts.takers(&world.quotas().next().unwrap());
    let takers: Vec<String> = takers
        .iter()
        .map(|(counted, takes)| format!("{} {takes:?}", counted.object.meta().name))
        .collect();
    assert_eq!(
        takers,
        [
            r#"b {"pods": Quantity(1)}"#,
            r#"settings {"count/configmaps": Quantity(1)}"#,
            r#"a {"pods": Quantity(1)}"#,
        ]
    );
}

/// What else than resources a resize brings along: metadata is dropped, restarts and claims may not differ.
#[test]
fn a_resize_changes_cpu_and_memory_alone() {
    let value = json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1", "labels": {"a": "b"}}, "spec": {
        "resourceClaims": [{"name": "gpu"}],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}, "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}]}});
    let errors = |old: &Value, new: &Value| -> Vec<String> {
        let errors = pod_rules::resize_errors(&pod(new), &pod(old)).into_iter();
        errors.map(|error| error.to_string()).collect()
    };
    let only = "spec: Forbidden: only cpu and memory resources are mutable";
    let changed = |pointer: &str, to: Value| {
        let mut changed = value.clone();
        *changed.pointer_mut(pointer).unwrap() = to;
        changed
    };
    let container = "/spec/containers/0";
    let cpu = changed(&format!("{container}/resources/requests/cpu"), json!("2"));
    let label = changed("/metadata/labels", json!({"-bad": "-bad"}));
    let policy = changed(
        &format!("{container}/resizePolicy/0/restartPolicy"),
        json!("RestartContainer"),
    );
    let claims = changed(
        &format!("{container}/resources"),
        json!({"requests": {"cpu": "1"}, "claims": [{"name": "gpu"}]}),
    );
    for (old, new, wanted) in [
        (&value, &cpu, &[][..]),
        (&value, &label, &[]),
        (&value, &policy, &[only]),
        (&claims, &claims, &[only]),
    ] {
        assert_eq!(errors(old, new), wanted, "{new}");
    }
    let mut node = value.clone();
    node["status"] =
        json!({"nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "gpu"}]});
    assert_eq!(
        errors(&node, &node),
        ["spec: Forbidden: pods with node allocatable resource claims cannot be resized"]
    );
}

/// 1.36 refuses a restart of a container that ends before the others start; a pod that has one keeps it, and is not
/// resized there.
#[test]
fn resize_policies_of_new_and_old_pods() {
    let with = |more: Value| {
        let mut value = json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"}, "spec": {
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1"}}}], "containers": [{"name": "c"}]}});
        for (pointer, field) in [
            ("init", "/spec/initContainers/0"),
            ("container", "/spec/containers/0"),
            ("spec", "/spec"),
        ] {
            for (name, new) in more[pointer].as_object().into_iter().flatten() {
                value.pointer_mut(field).unwrap()[name] = new.clone();
            }
        }
        value
    };
    let texts = |errors: Vec<FieldError>| -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    };
    let policy =
        |resource: &str, restart: &str| json!({"resourceName": resource, "restartPolicy": restart});
    let restarts = json!([
        policy("memory", "NotRequired"),
        policy("cpu", "RestartContainer")
    ]);
    let restarted = with(json!({"init": {"resizePolicy": restarts}}));
    let cases: [(Value, &[&str]); 6] = [
        (
            restarted.clone(),
            &[
                "spec.initContainers[0].resizePolicy[1].restartPolicy: Invalid value: \"RestartContainer\": must not be set to 'RestartContainer' for non-sidecar initContainers",
            ],
        ),
        (
            with(json!({"init": {"resizePolicy": restarts, "restartPolicy": "Always"}})),
            &[],
        ),
        (with(json!({"container": {"resizePolicy": restarts}})), &[]),
        (
            with(
                json!({"container": {"resizePolicy": restarts}, "spec": {"restartPolicy": "Never"}}),
            ),
            &[
                "spec.containers[0].resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            ],
        ),
        (
            with(
                json!({"container": {"resizePolicy": [policy("cpu", "NotRequired"), policy("cpu", "Sometimes")]}}),
            ),
            &[
                "spec.containers[0].resizePolicy[1]: Duplicate value: \"cpu\"",
                "spec.containers[0].resizePolicy: Unsupported value: \"Sometimes\": supported values: \"NotRequired\", \"RestartContainer\"",
            ],
        ),
        (
            with(json!({"container": {"resizePolicy": [policy("pods", "")]}})),
            &[
                "spec.containers[0].resizePolicy: Unsupported value: \"pods\": supported values: \"cpu\", \"memory\"",
                "spec.containers[0].resizePolicy: Required value",
            ],
        ),
    ];
    for (value, wanted) in cases {
        let errors = texts(pod_rules::create_errors(&pod(&value)));
        assert_eq!(errors, wanted, "{value}");
    }
    let mut resized = restarted.clone();
    resized["spec"]["initContainers"][0]["resources"]["requests"]["cpu"] = json!("2");
    let old = pod(&restarted);
    assert_eq!(pod_rules::update_errors(&old, &old), []);
    assert_eq!(pod_rules::resize_errors(&old, &old), []);
    assert_eq!(
        texts(pod_rules::resize_errors(&pod(&resized), &old)),
        [
            "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
        ]
    );
}

/// Those that take most are named; the rest is summed, and how many they are is said.
#[test]
fn the_largest_takers_are_named() {
    let mut world = world(&[], &[]);
    let quota = json!({"metadata": {"name": "compute", "namespace": "n"}, "spec": {"hard": {"pods": "100", "requests.cpu": "10"}}});
    world
        .add_quota(serde_json::from_value(quota).unwrap())
        .unwrap();
    world.count();
    for at in 0..TAKERS_MAX + 3 {
        let value = json!({"metadata": {"name": format!("p{at}"), "namespace": "n"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": format!("{}m", 100 + at)}}}]}});
        world
            .admit("pods", Object::Pod(Box::new(pod(&value))))
            .unwrap();
    }
    let uses = QuotaUse::of_all(world.quotas(), &world.counts());
    let [one] = uses.as_slice() else {
        panic!("{uses:?}");
    };
    assert_eq!((one.takers.len(), one.others_count), (TAKERS_MAX, 3));
    assert_eq!(one.takers[0].object, format!("pods p{}", TAKERS_MAX + 2));
    assert_eq!(one.takers[0].amounts["requests.cpu"].to_string(), "118m");
    assert_eq!(one.others["requests.cpu"].to_string(), "303m");
    // Together they are what is in use.
    let mut sum = one.others["requests.cpu"].clone();
    for taker in &one.takers {
        sum += &taker.amounts["requests.cpu"];
    }
    assert_eq!(sum, one.used["requests.cpu"]);
}
