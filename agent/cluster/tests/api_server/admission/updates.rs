//! Changes of objects that are there, beside a real API server: what may change, what a quota charges for it, and
//! in-place resize.
//!
//! The objects are those of [`all`], created like those of the other cases. Each change is made to the object as the
//! server has it, and asked on both sides with the quotas as the server has them then, so that one difference makes no
//! other.

use plimsoll_core::kube::admission::limit_range::{self, validate as range_rules};
use plimsoll_core::kube::admission::object::{GroupResource, LimitRange};
use plimsoll_core::kube::admission::request::{Operation, Request, invalid};
use plimsoll_core::kube::admission::resource_quota::{
    Charge, Conflict, EnforcedQuota, Plugin, QuotaStore, validate as quota_rules,
};
use plimsoll_core::kube::admission::{pod_rules, priority};

use super::cases::{case, claim, limits, pod, quota, range, requests, service, with};
use super::*;

/// The first version with `pods/NAME/ephemeralcontainers`, with `pods/NAME/resize`, and with all that this is compared
/// with.
const EPHEMERAL: u32 = 25;
const RESIZE: u32 = 33;
const NEWEST: u32 = 36;

/// A change of one object.
struct Change {
    /// From which version on servers can be asked.
    since: u32,
    resource: &'static str,
    name: &'static str,
    subresource: &'static str,
    make: fn(&mut Value),
}

const fn put(resource: &'static str, name: &'static str, make: fn(&mut Value)) -> Change {
    Change {
        since: 0,
        resource,
        name,
        subresource: "",
        make,
    }
}

const fn resize(name: &'static str, make: fn(&mut Value)) -> Change {
    Change {
        since: RESIZE,
        subresource: "resize",
        ..put("pods", name, make)
    }
}

/// The first container's requests or limits.
fn amounts<'a>(pod: &'a mut Value, list: &str) -> &'a mut Value {
    &mut pod["spec"]["containers"][0]["resources"][list]
}

fn label(object: &mut Value) {
    object["metadata"]["labels"]["tier"] = json!("front");
}

/// The namespaces in which objects are changed.
pub(super) fn all() -> Vec<Case> {
    let pods = |names: Vec<(&str, Value)>| -> Vec<(&'static str, Value)> {
        let named = |(name, containers)| ("pods", pod(name, containers));
        names.into_iter().map(named).collect()
    };
    let item = json!([{"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1500m"}}]);
    let both = json!([{"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}}]);
    let level = with(
        pod("level", json!([{}])),
        "resources",
        json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "128Mi"}}),
    );
    let step = |name: &str, more: Value| {
        let mut container = json!({"name": name, "image": "i", "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}});
        let more = more.as_object().unwrap().clone();
        container.as_object_mut().unwrap().extend(more);
        container
    };
    let init = with(
        pod("steps", requests(json!({"cpu": "100m"}))),
        "initContainers",
        json!([
            step("stays", json!({"restartPolicy": "Always"})),
            step("once", json!({}))
        ]),
    );
    let mut bound = claim("grows", "4Gi", Some("grows"));
    bound["spec"]["volumeName"] = json!("volume");
    vec![
        case(
            "changes",
            None,
            vec![
                range("limits", item),
                quota("compute", json!({"requests.cpu": "2", "pods": 10})),
                with(
                    quota("jobs", json!({"pods": 1})),
                    "scopes",
                    json!(["Terminating"]),
                ),
            ],
            pods(vec![("a", both), ("b", json!([{}]))]),
        ),
        case(
            "changes-bare",
            None,
            vec![quota(
                "compute",
                json!({"requests.cpu": "2", "limits.cpu": "4"}),
            )],
            pods(vec![(
                "a",
                json!([{"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "example.com/gpu": "1"}}}]),
            )]),
        ),
        case(
            "changes-level",
            Some(Newer::PodLevel),
            vec![quota("compute", json!({"requests.cpu": "3"}))],
            vec![("pods", level)],
        ),
        case(
            "changes-steps",
            Some(Newer::Sidecars),
            vec![quota("compute", json!({"requests.cpu": "1500m"}))],
            vec![("pods", init)],
        ),
        case(
            "changes-services",
            None,
            vec![quota(
                "objects",
                json!({"services": 5, "services.nodeports": 1, "services.loadbalancers": 0}),
            )],
            vec![
                ("services", service("one", "ClusterIP", 1)),
                ("services", service("two", "ClusterIP", 1)),
            ],
        ),
        case(
            "changes-claims",
            None,
            vec![
                quota("storage", json!({"requests.storage": "6Gi"})),
                range(
                    "storage",
                    json!([{"type": "PersistentVolumeClaim", "max": {"storage": "8Gi"}}]),
                ),
            ],
            vec![("persistentvolumeclaims", bound)],
        ),
        case(
            "changes-quota",
            None,
            vec![
                quota("pods", json!({"pods": 3})),
                range(
                    "limits",
                    json!([{"type": "Container", "defaultRequest": {"cpu": "100m"}}]),
                ),
            ],
            pods(vec![("a", json!([{}])), ("b", limits(json!({"cpu": "1"})))]),
        ),
    ]
}

/// The changes of each of these namespaces.
fn changes(namespace: &str) -> Vec<Change> {
    match namespace {
        "changes" => pods_changes(),
        "changes-bare" => bare_changes(),
        "changes-level" => {
            const fn level(make: fn(&mut Value)) -> Change {
                Change {
                    since: NEWEST,
                    ..resize("level", make)
                }
            }
            vec![
                level(|pod| pod["spec"]["resources"]["requests"]["cpu"] = json!("2")),
                level(|pod| pod["spec"]["resources"]["requests"]["cpu"] = json!("2500m")),
                level(
                    |pod| pod["spec"]["resources"] = json!({"requests": {"cpu": "4", "memory": "64Mi"}, "limits": {"cpu": "5", "memory": "128Mi"}}),
                ),
                level(|pod| {
                    pod["spec"]["resources"] =
                        json!({"requests": {"cpu": "1"}, "limits": {"cpu": "5", "memory": "128Mi"}})
                }),
                level(|pod| pod["spec"]["resources"]["limits"]["memory"] = json!("32Mi")),
                level(|pod| pod["spec"]["resources"] = Value::Null),
            ]
        }
        "changes-steps" => {
            const fn step(make: fn(&mut Value)) -> Change {
                Change {
                    since: NEWEST,
                    ..resize("steps", make)
                }
            }
            vec![
                step(|pod| {
                    pod["spec"]["initContainers"][0]["resources"]["requests"]["cpu"] = json!("700m")
                }),
                step(|pod| {
                    pod["spec"]["initContainers"][1]["resources"]["requests"]["cpu"] = json!("900m")
                }),
                step(|pod| {
                    pod["spec"]["initContainers"][1]["resources"]["requests"]["cpu"] = json!("600m")
                }),
                step(|pod| {
                    pod["spec"]["initContainers"][1]["resources"]["limits"]["memory"] = json!("1Gi")
                }),
            ]
        }
        "changes-services" => vec![
            put("services", "one", label),
            put("services", "one", |service| {
                service["spec"]["type"] = json!("NodePort")
            }),
            put("services", "two", |service| {
                service["spec"]["type"] = json!("NodePort")
            }),
            put("services", "two", |service| {
                service["spec"]["type"] = json!("LoadBalancer")
            }),
            put("services", "one", |service| {
                service["spec"]["type"] = json!("ClusterIP");
                service["spec"]["ports"][0]["nodePort"] = json!(0);
            }),
        ],
        "changes-claims" => {
            const fn size(make: fn(&mut Value)) -> Change {
                put("persistentvolumeclaims", "grows", make)
            }
            vec![
                size(label),
                size(|claim| claim["spec"]["resources"]["requests"]["storage"] = json!("5Gi")),
                size(|claim| claim["spec"]["resources"]["requests"]["storage"] = json!("7Gi")),
                size(|claim| claim["spec"]["resources"]["requests"]["storage"] = json!("9Gi")),
            ]
        }
        "changes-quota" => vec![
            put("resourcequotas", "pods", label),
            put("resourcequotas", "pods", |quota| {
                quota["spec"]["hard"]["pods"] = json!("-1")
            }),
            put("resourcequotas", "pods", |quota| {
                quota["spec"]["hard"]["gpu"] = json!("1")
            }),
            put("resourcequotas", "pods", |quota| {
                quota["spec"]["scopes"] = json!(["BestEffort"])
            }),
            put("resourcequotas", "pods", |quota| {
                quota["spec"]["hard"]["pods"] = json!("1")
            }),
            put("limitranges", "limits", |range| {
                range["spec"]["limits"][0]["max"] = json!({"cpu": "50m"})
            }),
            put("limitranges", "limits", |range| {
                range["spec"]["limits"][0]["max"] = json!({"cpu": "2"})
            }),
            put("pods", "a", label),
        ],
        other => panic!("no changes of namespace {other}"),
    }
}

fn pods_changes() -> Vec<Change> {
    vec![
        put("pods", "a", label),
        put("pods", "a", |pod| {
            pod["spec"]["containers"][0]["image"] = json!("other")
        }),
        put("pods", "a", |pod| {
            amounts(pod, "requests")["cpu"] = json!("600m")
        }),
        put("pods", "a", |pod| pod["spec"]["priority"] = json!(8)),
        put("pods", "a", |pod| pod["spec"]["priority"] = Value::Null),
        put("pods", "a", |pod| {
            pod["spec"]["priorityClassName"] = json!("high")
        }),
        put("pods", "a", |pod| {
            pod["spec"]["preemptionPolicy"] = json!("Never")
        }),
        put("pods", "a", |pod| {
            pod["metadata"]["labels"]["-bad"] = json!("x")
        }),
        Change {
            since: NEWEST,
            ..put("pods", "a", |pod| {
                pod["spec"]["activeDeadlineSeconds"] = json!(60)
            })
        },
        Change {
            since: NEWEST,
            ..put("pods", "b", |pod| {
                pod["spec"]["activeDeadlineSeconds"] = json!(60)
            })
        },
        Change {
            since: EPHEMERAL,
            subresource: "ephemeralcontainers",
            ..put("pods", "b", |pod| {
                pod["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i"}])
            })
        },
        Change {
            since: EPHEMERAL,
            subresource: "ephemeralcontainers",
            ..put("pods", "a", |pod| {
                pod["spec"]["ephemeralContainers"] =
                    json!([{"name": "e", "image": "i", "resources": {"limits": {"cpu": "9"}}}]);
            })
        },
        resize("a", |pod| amounts(pod, "requests")["cpu"] = json!("700m")),
        resize("a", |pod| {
            amounts(pod, "requests")["cpu"] = json!("1");
            amounts(pod, "limits")["cpu"] = json!("1500m");
        }),
        resize("a", |pod| amounts(pod, "limits")["cpu"] = json!("2")),
        resize("b", |pod| amounts(pod, "requests")["cpu"] = json!("1")),
        resize("a", |pod| amounts(pod, "requests")["cpu"] = json!("1100m")),
        resize("a", |pod| amounts(pod, "requests")["cpu"] = json!("200m")),
        resize("a", |pod| *amounts(pod, "limits") = json!({})),
        resize("a", |pod| *amounts(pod, "requests") = json!({})),
        resize("a", |pod| amounts(pod, "limits")["memory"] = json!("64Mi")),
        resize("b", label),
    ]
}

fn bare_changes() -> Vec<Change> {
    vec![
        resize("a", |pod| {
            amounts(pod, "limits")
                .as_object_mut()
                .unwrap()
                .remove("cpu");
        }),
        resize("a", |pod| amounts(pod, "requests")["cpu"] = json!("-1")),
        resize("a", |pod| amounts(pod, "requests")["cpu"] = json!("1100m")),
        resize("a", |pod| {
            amounts(pod, "requests")["example.com/gpu"] = json!("2");
            amounts(pod, "limits")["example.com/gpu"] = json!("2");
        }),
        resize("a", |pod| {
            let all = json!({"cpu": "1", "memory": "1Gi", "example.com/gpu": "1"});
            *amounts(pod, "requests") = all.clone();
            *amounts(pod, "limits") = all;
        }),
        resize("a", |pod| {
            pod["spec"]["containers"][0]["name"] = json!("other")
        }),
        resize("a", |pod| {
            let more =
                json!({"name": "more", "image": "i", "resources": {"requests": {"cpu": "1"}}});
            pod["spec"]["containers"].as_array_mut().unwrap().push(more);
        }),
        resize("a", |pod| amounts(pod, "limits")["cpu"] = json!("5")),
        resize("a", |pod| amounts(pod, "limits")["cpu"] = json!("4")),
    ]
}

/// What must be there before a claim can grow.
pub(super) async fn storage_class(client: &Client) {
    let class = json!({"metadata": {"name": "grows"}, "provisioner": "example.com/disk", "allowVolumeExpansion": true});
    let resource = "storageclasses.storage.k8s.io";
    client.create(resource, "", &class).await.unwrap();
}

/// The quotas as the server has them, and what the plugin adds.
struct Store(Vec<EnforcedQuota>);

impl QuotaStore for Store {
    fn quotas(&mut self, _: &str) -> &[EnforcedQuota] {
        &self.0
    }

    fn add_used(&mut self, _: &str, charge: Charge<'_>) -> Result<(), Conflict> {
        let mut quotas = self.0.iter_mut();
        let quota = quotas.find(|quota| quota.name() == charge.quota);
        quota.ok_or(Conflict)?.add(&charge);
        Ok(())
    }
}

impl Client {
    async fn get(&self, path: &str) -> Value {
        let (code, body) = self
            .send("GET", path, "application/json", &Value::Null)
            .await;
        assert_eq!(code, 200, "{path}: {body}");
        body
    }

    async fn items<T: DeserializeOwned>(&self, resource: &str, namespace: &str) -> Vec<T> {
        let list = self.get(&path(resource, namespace)).await;
        list["items"].as_array().unwrap().iter().map(read).collect()
    }

    async fn put(&self, path: &str, object: &Value) -> Result<Value, Status> {
        let (code, body) = self.send("PUT", path, "application/json", object).await;
        if code == 200 {
            Ok(body)
        } else {
            Err(Status::theirs(&body))
        }
    }
}

/// The core's answer to a change: what is kept then, in the order of the API server's phases.
fn answer(
    change: &Change,
    [before, after]: [&Value; 2],
    ranges: &[LimitRange],
    classes: &[PriorityClass],
    store: &mut Store,
) -> Result<Value, Refusal> {
    let refuse = |kind: &str, errors: Vec<FieldError>| match errors.is_empty() {
        true => Ok(()),
        false => Err(invalid(kind, change.name, errors)),
    };
    match change.resource {
        "resourcequotas" => {
            let (mut new, old): (ResourceQuota, ResourceQuota) = (read(after), read(before));
            new.set_defaults();
            refuse(
                "ResourceQuota",
                quota_rules::update_errors(&new, &old, Admission::Upstream),
            )?;
            return Ok(Value::Null);
        }
        "limitranges" => {
            let mut range: LimitRange = read(after);
            range.set_defaults();
            refuse(
                "LimitRange",
                range_rules::validate(&range, Admission::Upstream),
            )?;
            return Ok(Value::Null);
        }
        _ => {}
    }
    let mut request = Request {
        operation: Operation::Update,
        resource: GroupResource::parse(change.resource),
        subresource: change.subresource.to_owned(),
        namespace: after["metadata"]["namespace"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        object: object(change.resource, after),
        old_object: Some(object(change.resource, before)),
        dry_run: false,
    };
    request.object.set_defaults();
    limit_range::admit(&mut request, ranges);
    priority::admit(&mut request, classes, priority::Gates::default())?;
    match (&request.object, &request.old_object) {
        (Object::Pod(new), Some(Object::Pod(old))) if change.subresource == "resize" => {
            refuse("Pod", pod_rules::resize_errors(new, old))?;
        }
        (Object::Pod(new), Some(Object::Pod(old))) => {
            refuse("Pod", pod_rules::update_errors(new, old))?;
        }
        (Object::PriorityClass(new), Some(Object::PriorityClass(old))) => {
            refuse(priority::CLASS_KIND, priority::update_errors(new, old))?;
        }
        _ => {}
    }
    limit_range::validate(&request, ranges, Admission::Upstream)?;
    priority::validate(&request, classes)?;
    let plugin = Plugin {
        configuration: &Default::default(),
        cluster: &Default::default(),
        admission: Admission::Upstream,
    };
    plugin.validate(&request, store)?;
    // A resize leaves metadata as it was, what LimitRanger has noted too.
    if let (Object::Pod(new), Some(Object::Pod(old))) = (&mut request.object, &request.old_object)
        && change.subresource == "resize"
    {
        let annotations = &mut new.more.metadata.annotations;
        annotations.clone_from(&old.more.metadata.annotations);
    }
    Ok(ours(change.resource, &request.object))
}

/// Below the error about a field that may not change the server prints all that differs.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// One change on both sides, and what is in use then.
async fn compare(
    client: &Client,
    namespace: &str,
    at: usize,
    change: &Change,
    classes: &[PriorityClass],
    tally: &mut Tally,
) {
    let (resource, name) = (change.resource, change.name);
    let path = format!("{}/{name}", path(resource, namespace));
    let before = client.get(&path).await;
    let mut after = before.clone();
    (change.make)(&mut after);
    let quotas: Vec<ResourceQuota> = client.items("resourcequotas", namespace).await;
    let mut store = Store(quotas.into_iter().map(EnforcedQuota::new).collect());
    let ranges: Vec<LimitRange> = client.items("limitranges", namespace).await;
    let ours =
        answer(change, [&before, &after], &ranges, classes, &mut store).map_err(|mut refusal| {
            refusal.message = first_line(&refusal.message);
            for error in &mut refusal.errors {
                error.body = first_line(&error.body);
            }
            refusal
        });
    let whole = match change.subresource {
        "" => path,
        subresource => format!("{path}/{subresource}"),
    };
    let theirs = client.put(&whole, &after).await;
    let theirs = theirs.map(|object| kept(resource, &object));
    let theirs = theirs.map_err(|status| status.mapped(first_line));
    let what = format!("{namespace}/{name}: {resource} {} {at}", change.subresource);
    let is_taken = theirs.is_ok();
    tally.compare(&what, None, ours.as_ref().cloned(), theirs, &[]);
    if resource == "resourcequotas" || !is_taken {
        return;
    }
    let quotas: Vec<ResourceQuota> = client.items("resourcequotas", namespace).await;
    for (ours, theirs) in store.0.iter().map(EnforcedQuota::current).zip(&quotas) {
        if ours.status.used != theirs.status.used {
            let [ours, theirs] = [&ours.status.used, &theirs.status.used].map(|used| json!(used));
            tally.differences.push(format!(
                "{what}: status.used\n  ours   {ours}\n  theirs {theirs}"
            ));
        }
    }
}

/// A quota that was lowered below its use, as its controller then counts it: what is there stays, and nothing more
/// comes.
async fn lowered(client: &Client, tally: &mut Tally) {
    let namespace = "changes-quota";
    let mut quotas: Vec<ResourceQuota> = client.items("resourcequotas", namespace).await;
    for quota in &mut quotas {
        quota.status.hard = quota.spec.hard.clone();
        client.set_status(quota).await;
    }
    let more = pod("more", json!([{}]));
    let dry = format!("{}?dryRun=All", path("pods", namespace));
    until("the lowered quota in the cache", async || {
        let refused = client.create_at(&dry, &more).await.err()?;
        refused.message.contains("limited: pods=1").then_some(())
    })
    .await;
    let mut world = world(&[]);
    for quota in quotas {
        world.add_quota(quota).unwrap();
    }
    let admitted = world.admit("pods", object("pods", &placed(namespace, &more)));
    let theirs = client
        .create("pods", namespace, &more)
        .await
        .map(|_| Value::Null);
    let ours = admitted.as_ref().map(|_| Value::Null);
    tally.compare("changes-quota/more", None, ours, theirs, &[]);
}

/// Priority classes belong to no namespace.
async fn change_classes(client: &Client, classes: &[PriorityClass], tally: &mut Tally) {
    const RESOURCE: &str = "priorityclasses.scheduling.k8s.io";
    let changes = [
        put(RESOURCE, "high", |class| class["value"] = json!(5)),
        put(RESOURCE, "high", |class| {
            class["description"] = json!("for a few")
        }),
        put(RESOURCE, "high", |class| {
            class["preemptionPolicy"] = json!("Never")
        }),
        put(RESOURCE, "high", |class| {
            class["globalDefault"] = json!(true)
        }),
        put(RESOURCE, "ordinary", label),
    ];
    for (at, change) in changes.iter().enumerate() {
        compare(client, "", at, change, classes, tally).await;
    }
}

/// Every change, one after the other.
pub(super) async fn ask(client: &Client, minor: u32, classes: &[PriorityClass], tally: &mut Tally) {
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "4Gi"}, "accessModes": ["ReadWriteOnce"]}});
    let claim = format!(
        "{}/grows/status",
        path("persistentvolumeclaims", "changes-claims")
    );
    let (code, body) = client
        .send("PATCH", &claim, "application/merge-patch+json", &bound)
        .await;
    assert_eq!(code, 200, "{body}");
    for case in all() {
        let changes = changes(&case.name);
        let asked = changes
            .iter()
            .enumerate()
            .filter(|(_, change)| change.since <= minor);
        for (at, change) in asked {
            compare(client, &case.name, at, change, classes, tally).await;
        }
    }
    lowered(client, tally).await;
    change_classes(client, classes, tally).await;
}
