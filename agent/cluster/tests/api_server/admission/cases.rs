//! The objects: those by hand, and with them those of [`chance`].

use serde_json::{Value, json};

use super::chance;
use super::versions::Newer;

/// A namespace, what decides in it, and what is asked for.
pub(super) struct Case {
    pub(super) name: String,
    /// Why an older version may answer otherwise.
    pub(super) newer: Option<Newer>,
    /// LimitRanges and quotas, good and bad.
    pub(super) deciders: Vec<Value>,
    /// Resource and object, in their order.
    pub(super) objects: Vec<(&'static str, Value)>,
}

/// Classes, good and bad. The first default stays the only one.
pub(super) fn classes() -> Vec<Value> {
    let class = |name: &str, value: i64| json!({"metadata": {"name": name}, "value": value});
    let mut default = class("ordinary", 7);
    default["globalDefault"] = json!(true);
    let mut second = class("second-default", 8);
    second["globalDefault"] = json!(true);
    let mut never = class("never", -5);
    never["preemptionPolicy"] = json!("Never");
    let mut unknown = class("unknown-policy", 1);
    unknown["preemptionPolicy"] = json!("Sometimes");
    vec![
        class("high", 1_000_000_000),
        class("low", -10),
        never,
        default,
        second,
        unknown,
        class("too-high", 1_000_000_001),
        class("system-something", 1),
        class("system-node-critical", 5),
        class("Upper_Case", 1),
        class("high", 3),
    ]
}

/// A pod with these containers, to which name and image are added.
pub(super) fn pod(name: &str, containers: Value) -> Value {
    let named = |prefix: &str, list: &Value| -> Value {
        let list = list.as_array().into_iter().flatten().enumerate();
        let named = list.map(|(at, container)| {
            let mut container = container.clone();
            container["name"] = json!(format!("{prefix}{at}"));
            container["image"] = json!("i");
            container
        });
        named.collect()
    };
    json!({"metadata": {"name": name}, "spec": {"containers": named("c", &containers)}})
}

pub(super) fn with(mut object: Value, field: &str, value: Value) -> Value {
    object["spec"][field] = value;
    object
}

pub(super) fn range(name: &str, items: Value) -> Value {
    json!({"kind": "LimitRange", "metadata": {"name": name, "namespace": ""}, "spec": {"limits": items}})
}

pub(super) fn quota(name: &str, hard: Value) -> Value {
    json!({"kind": "ResourceQuota", "metadata": {"name": name, "namespace": ""}, "spec": {"hard": hard}})
}

pub(super) fn requests(list: Value) -> Value {
    json!([{"resources": {"requests": list}}])
}

pub(super) fn limits(list: Value) -> Value {
    json!([{"resources": {"limits": list}}])
}

pub(super) fn claim(name: &str, storage: &str, class: Option<&str>) -> Value {
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}});
    let claim = json!({"metadata": {"name": name}, "spec": spec});
    class.map_or(claim.clone(), |class| {
        with(claim, "storageClassName", json!(class))
    })
}

pub(super) fn service(name: &str, kind: &str, ports: u16) -> Value {
    let ports: Vec<Value> = (0..ports)
        .map(|at| json!({"name": format!("p{at}"), "port": 80 + at}))
        .collect();
    json!({"metadata": {"name": name}, "spec": {"type": kind, "ports": ports}})
}

fn deployment(name: &str) -> Value {
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}})
}

/// A case with everything placed in its namespace.
pub(super) fn case(
    name: &str,
    newer: Option<Newer>,
    deciders: Vec<Value>,
    objects: Vec<(&'static str, Value)>,
) -> Case {
    let mut deciders = deciders;
    for decider in &mut deciders {
        decider["metadata"]["namespace"] = json!(name);
    }
    Case {
        name: name.to_owned(),
        newer,
        deciders,
        objects,
    }
}

pub(super) fn all() -> Vec<Case> {
    let mut all = vec![
        guide(),
        scopes(),
        counts(),
        bounds("bounds", false),
        bounds("pod-bounds", true),
        bad_ranges(),
        bad_quotas(),
        names(),
        odd_amounts(),
        priorities(),
    ];
    all.extend([pod_level(), sidecars(), huge_pages()]);
    all.extend((0..chance::NAMESPACES).map(chance::case));
    all
}

/// docs/guide/limits.md.
fn guide() -> Case {
    let limits_item = json!([{"type": "Container", "default": {"cpu": "500m", "memory": "256Mi"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": 2}}]);
    let deciders = vec![
        range("limits", limits_item),
        quota(
            "compute",
            json!({"pods": 3, "requests.cpu": 1, "limits.memory": "1Gi"}),
        ),
    ];
    let web = with(pod("web", json!([{}])), "priorityClassName", json!("high"));
    let db = pod(
        "db",
        json!([{"resources": {"requests": {"cpu": "800m"}, "limits": {"cpu": 1, "memory": "512Mi"}}}]),
    );
    let objects = [
        web,
        db,
        pod("batch", limits(json!({"cpu": 4}))),
        pod("more", requests(json!({"cpu": "200m"}))),
    ];
    case(
        "guide",
        None,
        deciders,
        objects.map(|pod| ("pods", pod)).into(),
    )
}

fn scopes() -> Case {
    let scoped = |name: &str, scopes: Value, hard: Value| with(quota(name, hard), "scopes", scopes);
    let selected = |name: &str, operator: &str, values: Option<Value>| {
        let mut expression = json!({"scopeName": "PriorityClass", "operator": operator});
        if let Some(values) = values {
            expression["values"] = values;
        }
        with(
            quota(name, json!({"pods": 1})),
            "scopeSelector",
            json!({"matchExpressions": [expression]}),
        )
    };
    let deciders = vec![
        scoped("best-effort", json!(["BestEffort"]), json!({"pods": 2})),
        scoped(
            "jobs",
            json!(["Terminating"]),
            json!({"pods": 1, "requests.cpu": 1}),
        ),
        scoped(
            "services",
            json!(["NotTerminating", "NotBestEffort"]),
            json!({"requests.memory": "1Gi"}),
        ),
        selected("of-high", "In", Some(json!(["high", "never"]))),
        selected(
            "not-low",
            "NotIn",
            Some(json!(["low", "high", "never", "ordinary"])),
        ),
        selected("exists", "Exists", Some(json!(["high"]))),
        selected("in-nothing", "In", None),
        selected("bad-value", "In", Some(json!(["-high"]))),
        scoped(
            "both",
            json!(["BestEffort", "NotBestEffort"]),
            json!({"pods": 1}),
        ),
        scoped("wrong", json!(["BestEffort"]), json!({"requests.cpu": 1})),
        scoped("unknown", json!(["Mine"]), json!({"pods": 1})),
        scoped(
            "twice",
            json!(["Terminating", "Terminating"]),
            json!({"pods": 1}),
        ),
    ];
    let job = |name: &str, cpu: &str| {
        with(
            pod(name, requests(json!({"cpu": cpu}))),
            "activeDeadlineSeconds",
            json!(60),
        )
    };
    let of = |name: &str, class: &str| {
        with(
            pod(name, requests(json!({"memory": "1Mi"}))),
            "priorityClassName",
            json!(class),
        )
    };
    let objects = vec![
        pod("plain", json!([{}])),
        job("job", "500m"),
        job("job-2", "1"),
        with(
            pod("empty-job", json!([{}])),
            "activeDeadlineSeconds",
            json!(1),
        ),
        of("first", "high"),
        of("second", "never"),
        of("third", "low"),
        pod("large", requests(json!({"memory": "2Gi"}))),
        pod("no-memory", requests(json!({"cpu": 1}))),
        pod("last", json!([{}])),
    ];
    case(
        "scopes",
        None,
        deciders,
        objects.into_iter().map(|pod| ("pods", pod)).collect(),
    )
}

fn counts() -> Case {
    let objects = json!({"count/deployments.apps": 1, "configmaps": 2, "count/configmaps": 5, "secrets": 1, "replicationcontrollers": 0, "count/jobs.batch": 0,
        "services": 4, "services.nodeports": 3, "services.loadbalancers": 1, "persistentvolumeclaims": 3, "requests.storage": "10Gi",
        "gold.storageclass.storage.k8s.io/requests.storage": "5Gi", "gold.storageclass.storage.k8s.io/persistentvolumeclaims": 1, "resourcequotas": 3});
    let named = |name: &str| json!({"metadata": {"name": name}});
    let asked = vec![
        ("deployments.apps", deployment("shop")),
        ("deployments.apps", deployment("blog")),
        ("configmaps", named("one")),
        ("configmaps", named("two")),
        ("configmaps", named("three")),
        ("secrets", named("one")),
        ("secrets", named("two")),
        ("services", service("cluster", "ClusterIP", 1)),
        ("services", service("node", "NodePort", 2)),
        ("services", service("node-2", "NodePort", 2)),
        ("services", service("balancer", "LoadBalancer", 1)),
        ("services", service("balancer-2", "LoadBalancer", 1)),
        ("persistentvolumeclaims", claim("a", "4Gi", Some("gold"))),
        ("persistentvolumeclaims", claim("b", "2Gi", Some("gold"))),
        ("persistentvolumeclaims", claim("c", "6.5Gi", None)),
        ("persistentvolumeclaims", claim("d", "1500m", None)),
        ("persistentvolumeclaims", claim("e", "-1Gi", None)),
        ("persistentvolumeclaims", claim("f", "1Gi", None)),
        ("persistentvolumeclaims", claim("g", "1Gi", None)),
        ("configmaps", named("one")),
    ];
    case("counts", None, vec![quota("objects", objects)], asked)
}

/// Bounds of containers and claims; of pods, too.
fn bounds(name: &str, of_pods: bool) -> Case {
    let mut items = json!([
        {"type": "Container", "min": {"cpu": "100m", "memory": "64Mi"}, "max": {"cpu": "2", "memory": "1Gi"}, "default": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "3"}},
        {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "10Gi"}},
    ]);
    if of_pods {
        let item = json!({"type": "Pod", "max": {"memory": "1536Mi"}, "min": {"cpu": "200m"}, "maxLimitRequestRatio": {"memory": "1.5"}});
        items.as_array_mut().unwrap().push(item);
    }
    let both = |cpu: [&str; 2], memory: [&str; 2]| json!({"resources": {"requests": {"cpu": cpu[0], "memory": memory[0]}, "limits": {"cpu": cpu[1], "memory": memory[1]}}});
    let good = || both(["500m", "1"], ["512Mi", "768Mi"]);
    let objects = vec![
        ("pods", pod("default", json!([{}]))),
        ("pods", pod("good", json!([good()]))),
        ("pods", pod("two", json!([good(), good(), good()]))),
        (
            "pods",
            pod("small", json!([both(["50m", "60m"], ["1Mi", "2Mi"])])),
        ),
        (
            "pods",
            pod("large", json!([both(["3", "4"], ["2Gi", "3Gi"])])),
        ),
        (
            "pods",
            pod("ratio", json!([both(["250m", "1"], ["256Mi", "512Mi"])])),
        ),
        (
            "pods",
            pod("third", json!([both(["333m", "1"], ["512Mi", "768Mi"])])),
        ),
        (
            "pods",
            pod("zero", json!([both(["0", "1"], ["0", "64Mi"])])),
        ),
        (
            "pods",
            pod(
                "half",
                json!([{"resources": {"limits": {"memory": "1Gi"}}}]),
            ),
        ),
        (
            "pods",
            pod(
                "above",
                requests(json!({"cpu": "1500m", "memory": "100Mi"})),
            ),
        ),
        ("persistentvolumeclaims", claim("small", "1Mi", None)),
        ("persistentvolumeclaims", claim("large", "10.5Gi", None)),
        ("persistentvolumeclaims", claim("right", "1024Mi", None)),
    ];
    let newer = of_pods.then_some(Newer::PodSums);
    case(name, newer, vec![range("bounds", items)], objects)
}

fn bad_ranges() -> Case {
    let item = |fields: Value| {
        let mut item = json!({"type": "Container"});
        item.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        json!([item])
    };
    let bad = [
        item(json!({"min": {"cpu": "2"}, "max": {"cpu": "1"}})),
        item(
            json!({"min": {"cpu": "2"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "500m"}}),
        ),
        item(
            json!({"max": {"memory": "1Gi"}, "default": {"memory": "2Gi"}, "defaultRequest": {"memory": "3Gi"}}),
        ),
        item(json!({"default": {"memory": "1Gi"}, "defaultRequest": {"memory": "3Gi"}})),
        item(
            json!({"max": {"example.com/gpu": "2"}, "default": {"example.com/gpu": "1"}, "defaultRequest": {"example.com/gpu": "1"}}),
        ),
        item(json!({"defaultRequest": {"hugepages-2Mi": "2Mi"}})),
        item(json!({"maxLimitRequestRatio": {"cpu": "500m"}})),
        item(
            json!({"max": {"cpu": "4"}, "min": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "8"}}),
        ),
        item(json!({"max": {"gpu": "2"}})),
        item(json!({"max": {"example.com/": "2"}})),
        item(json!({"max": {"cpu": "-1"}})),
        json!([{"type": "Pod", "default": {"cpu": "1"}}]),
        json!([{"type": "Pod", "defaultRequest": {"cpu": "1"}}]),
        json!([{"type": "Pod", "max": {"cpu": "1"}}, {"type": "Pod", "min": {"cpu": "1"}}]),
        json!([{"type": "PersistentVolumeClaim"}]),
        json!([{"type": "PersistentVolumeClaim", "max": {"cpu": "1"}}]),
        json!([{"type": "Machine", "max": {"cpu": "1"}}]),
        json!([{"type": "example.com/machine", "max": {"cpu": "1"}}]),
        json!([{"type": "", "max": {"cpu": "1"}}]),
    ];
    let named = |(at, items): (usize, Value)| range(&format!("r{at}"), items);
    let mut deciders: Vec<Value> = bad.into_iter().enumerate().map(named).collect();
    deciders.push(range(
        "Bad_Name",
        json!([{"type": "Container", "max": {"cpu": "1"}}]),
    ));
    case(
        "bad-ranges",
        None,
        deciders,
        vec![("pods", pod("p", json!([{}])))],
    )
}

fn bad_quotas() -> Case {
    let bad = [
        json!({"gpu": 1}),
        json!({"cpu": "-1"}),
        json!({"pods": "1500m"}),
        json!({"requests.example.com/gpu": "1500m"}),
        json!({"limits.example.com/gpu": "1"}),
        json!({"example.com/gpu": "1"}),
        json!({"storage": "1Gi"}),
        json!({"requests.storage": "1Gi"}),
        json!({"hugepages-2Mi": "3Mi"}),
        json!({"count/": "1"}),
        json!({"count/widgets.example.com": "1"}),
        json!({"a/b/c": "1"}),
        json!({"services.nodeports": "0.5"}),
        json!({}),
    ];
    let named = |(at, hard): (usize, Value)| quota(&format!("q{at}"), hard);
    let deciders = bad.into_iter().enumerate().map(named).collect();
    let gpu = limits(json!({"example.com/gpu": "1"}));
    case(
        "bad-quotas",
        None,
        deciders,
        vec![
            ("pods", pod("gpu", gpu.clone())),
            ("pods", pod("gpu-2", gpu)),
        ],
    )
}

/// Names and amounts of resources in pods.
fn names() -> Case {
    let lists = [
        json!({"gpu": 1}),
        json!({"Cpu": 1}),
        json!({"storage": "1Gi"}),
        json!({"example.com/gpu": "500m"}),
        json!({"example.com/gpu": "2"}),
        json!({"kubernetes.io/batteries": 1}),
        json!({"requests.example.com/gpu": 1}),
        json!({"example.com/": 1}),
        json!({"-x.example.com/gpu": 1}),
        json!({"cpu": "-100m"}),
        json!({"memory": "-1"}),
        json!({"hugepages-2Mi": "4Mi"}),
        json!({"hugepages-2Mi": "4Mi", "memory": "8Mi"}),
        json!({"ephemeral-storage": "1Gi"}),
        json!({"pods": 1}),
    ];
    let mut objects: Vec<(&str, Value)> = Vec::new();
    for (at, list) in lists.iter().enumerate() {
        objects.push(("pods", pod(&format!("r{at}"), requests(list.clone()))));
        objects.push(("pods", pod(&format!("l{at}"), limits(list.clone()))));
    }
    let both = json!([{"resources": {"requests": {"cpu": "2", "example.com/gpu": "1"}, "limits": {"cpu": "1", "example.com/gpu": "2"}}}]);
    objects.push(("pods", pod("above", both)));
    for name in ["Upper", "a..b", "-a", "under_score"] {
        objects.push(("pods", pod(name, json!([{}]))));
        objects.push(("configmaps", json!({"metadata": {"name": name}})));
    }
    objects.retain(|(resource, _)| *resource == "pods");
    objects.push((
        "pods",
        with(
            pod("class", json!([{}])),
            "priorityClassName",
            json!("Bad_Class"),
        ),
    ));
    case("names", None, vec![], objects)
}

/// Notations, and amounts at the edges.
fn odd_amounts() -> Case {
    let hard = json!({"requests.cpu": "1e1", "requests.memory": "1.5Gi", "limits.cpu": "9223372036854775807", "pods": 30});
    let deciders = vec![
        quota("odd", hard),
        range(
            "odd",
            json!([{"type": "Container", "default": {"memory": "0.1Gi", "cpu": "0.0005"}, "max": {"cpu": "9e15"}}]),
        ),
    ];
    let amounts = [
        "0.1",
        "100m",
        "1e0",
        "1E-1",
        "0.0004",
        "1.0000001",
        "+1",
        "1500u",
        "9223372036854775807",
        "9223372036854775808",
        "1Ei",
        "12e6",
        "1k",
        ".5",
        "2.",
    ];
    let mut objects: Vec<(&str, Value)> = Vec::new();
    for (at, amount) in amounts.iter().enumerate() {
        objects.push((
            "pods",
            pod(&format!("c{at}"), requests(json!({"cpu": amount}))),
        ));
        objects.push((
            "pods",
            pod(&format!("m{at}"), limits(json!({"memory": amount}))),
        ));
        objects.push((
            "pods",
            pod(
                &format!("l{at}"),
                limits(json!({"cpu": amount, "memory": "1Mi"})),
            ),
        ));
    }
    case("odd-amounts", None, deciders, objects)
}

fn priorities() -> Case {
    let of = |name: &str, fields: Value| {
        let mut pod = pod(name, json!([{}]));
        pod["spec"]
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        ("pods", pod)
    };
    let objects = vec![
        of("none", json!({})),
        of("high", json!({"priorityClassName": "high"})),
        of("missing", json!({"priorityClassName": "missing"})),
        of("never", json!({"priorityClassName": "never"})),
        of("same", json!({"priorityClassName": "low", "priority": -10})),
        of("other", json!({"priorityClassName": "low", "priority": 10})),
        of(
            "policy",
            json!({"priorityClassName": "never", "preemptionPolicy": "PreemptLowerPriority"}),
        ),
        of(
            "policy-2",
            json!({"priorityClassName": "high", "preemptionPolicy": "Never"}),
        ),
        of("policy-3", json!({"preemptionPolicy": "Sometimes"})),
        of("number", json!({"priority": 5})),
        of("number-2", json!({"priority": 7})),
        of(
            "critical",
            json!({"priorityClassName": "system-cluster-critical"}),
        ),
        of("none", json!({})),
    ];
    case("priorities", None, vec![], objects)
}

/// Pod-level resources, which are on from 1.34 on.
fn pod_level() -> Case {
    let of = |name: &str, level: Value, containers: Value| {
        ("pods", with(pod(name, containers), "resources", level))
    };
    let deciders = vec![
        quota(
            "level",
            json!({"requests.cpu": "4", "limits.memory": "4Gi", "requests.memory": "4Gi"}),
        ),
        range("level", json!([{"type": "Pod", "max": {"cpu": "3"}}])),
    ];
    let small = || requests(json!({"cpu": "500m"}));
    let objects = vec![
        of(
            "whole",
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}),
            json!([{}]),
        ),
        of(
            "limits",
            json!({"limits": {"cpu": "2", "memory": "1Gi"}}),
            small(),
        ),
        of(
            "below",
            json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Gi"}}),
            small(),
        ),
        of(
            "container",
            json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
            limits(json!({"cpu": "2", "memory": "1Mi"})),
        ),
        of(
            "storage",
            json!({"limits": {"ephemeral-storage": "1Gi"}}),
            json!([{}]),
        ),
        of(
            "gpu",
            json!({"limits": {"example.com/gpu": "1"}}),
            json!([{}]),
        ),
        of(
            "above",
            json!({"limits": {"cpu": "4", "memory": "1Gi"}}),
            json!([{}]),
        ),
        of(
            "memory",
            json!({"limits": {"memory": "1Gi"}}),
            json!([{}, {}]),
        ),
        of(
            "huge",
            json!({"limits": {"hugepages-2Mi": "4Mi", "cpu": "1", "memory": "1Gi"}}),
            json!([{}]),
        ),
    ];
    case("pod-level", Some(Newer::PodLevel), deciders, objects)
}

/// Parts of huge pages.
fn huge_pages() -> Case {
    let parts = json!({"hugepages-2Mi": "3Mi", "cpu": "1"});
    let objects = vec![
        ("pods", pod("request", requests(parts.clone()))),
        ("pods", pod("limit", limits(parts))),
        (
            "pods",
            pod("whole", limits(json!({"hugepages-2Mi": "6Mi", "cpu": "1"}))),
        ),
    ];
    case("huge-pages", Some(Newer::HugePages), vec![], objects)
}

/// Init containers; those that go on running count beside the others (from 1.29 on, where there is a bound on the pod).
fn sidecars() -> Case {
    let init = |name: &str, init: Value| {
        let mut object = pod(name, requests(json!({"cpu": "500m", "memory": "64Mi"})));
        let list = init.as_array().unwrap().iter().enumerate();
        let named = list.map(|(at, container)| {
            let mut container = container.clone();
            container["name"] = json!(format!("i{at}"));
            container["image"] = json!("i");
            container
        });
        object["spec"]["initContainers"] = named.collect();
        ("pods", object)
    };
    let step = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}});
    let stays = |cpu: &str| {
        let mut container = step(cpu);
        container["restartPolicy"] = json!("Always");
        container
    };
    let deciders = vec![
        quota(
            "sidecars",
            json!({"requests.cpu": "6", "requests.memory": "1Gi"}),
        ),
        range(
            "sidecars",
            json!([{"type": "Pod", "max": {"cpu": "3"}}, {"type": "Container", "default": {"cpu": "1500m"}}]),
        ),
    ];
    let objects = vec![
        init("one", json!([step("1")])),
        init("stays", json!([stays("250m"), step("1")])),
        init("after", json!([step("1"), stays("250m")])),
        init("many", json!([stays("1"), stays("1"), step("2")])),
        init("nothing", json!([{}])),
        init("large", json!([step("4")])),
    ];
    case("sidecars", Some(Newer::Sidecars), deciders, objects)
}
