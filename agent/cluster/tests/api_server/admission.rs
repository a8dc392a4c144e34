//! The admission that the core computes beside that of a real API server: same objects, same answers, letter by letter.
//!
//! Each case is a namespace with LimitRanges and quotas, and objects that are created in it one after the other, on
//! both sides; some are then changed ([`updates`]). There is no controller of quotas here: their status is set once
//! through the subresource, and from then on the admission plugin alone keeps `status.used`, as [`World`] does.
//!
//! The plugins look at caches. A namespace for probes is asked until it has the last of the deciding objects: a cache
//! gets them in their order. It is asked before, too: a plugin that has nothing of a namespace lists it, and remembers
//! the empty list longer than the cache needs.

mod cases;
mod chance;
mod pace;
mod updates;
mod versions;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use http::Request;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use plimsoll_core::kube::admission::Admission;
use plimsoll_core::kube::admission::chain::World;
use plimsoll_core::kube::admission::field::FieldError;
use plimsoll_core::kube::admission::object::{
    Object, PersistentVolumeClaim, PriorityClass, ResourceQuota, Service,
};
use plimsoll_core::kube::admission::object_meta::ObjectMeta;
use plimsoll_core::kube::admission::pod_object::{MorePod, PodObject};
use plimsoll_core::kube::admission::request::Refusal;
use plimsoll_core::kube::pod::Pod;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::cases::Case;
use self::versions::{Newer, Versions};
use super::support::server::Server;
use super::support::{notes, run, until};

/// Where the caches are watched.
const PROBE: &str = "probe";

/// A refusal, as the client sees it.
#[derive(Debug, Clone, PartialEq)]
struct Status {
    code: u64,
    reason: String,
    message: String,
    /// Kind, field and text of each.
    causes: BTreeSet<[String; 3]>,
}

impl Status {
    fn theirs(status: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let causes = status["details"]["causes"].as_array();
        let cause =
            |cause: &Value| [&cause["reason"], &cause["field"], &cause["message"]].map(text);
        Self {
            code: status["code"].as_u64().unwrap(),
            reason: text(&status["reason"]),
            message: text(&status["message"]),
            causes: causes.into_iter().flatten().map(cause).collect(),
        }
    }

    fn ours(refusal: &Refusal) -> Self {
        let errors = refusal.errors.iter();
        let cause = |error: &FieldError| {
            [
                error.kind.as_str().to_owned(),
                error.field.clone(),
                error.body.clone(),
            ]
        };
        Self {
            code: u64::from(refusal.code),
            reason: refusal.reason.to_owned(),
            message: refusal.message.clone(),
            causes: errors.map(cause).collect(),
        }
    }

    /// With every text changed.
    fn mapped(&self, text: fn(&str) -> String) -> Self {
        let causes = self.causes.iter();
        Self {
            message: text(&self.message),
            causes: causes
                .map(|[kind, field, what]| [kind.clone(), text(field), text(what)])
                .collect(),
            ..self.clone()
        }
    }

    /// A list in brackets is in any order: it comes out of a hash map there.
    fn is_same(&self, theirs: &Self) -> bool {
        (self.code, &self.reason, &self.causes) == (theirs.code, &theirs.reason, &theirs.causes)
            && parts(&self.message) == parts(&theirs.message)
    }
}

/// The message before its list, and the list's pieces, sorted. Where a piece has a comma, both sides are cut in the
/// same places.
fn parts(message: &str) -> (&str, Vec<&str>) {
    let list = message
        .split_once(": [")
        .filter(|(_, list)| list.ends_with(']'));
    let Some((before, list)) = list else {
        return (message, Vec::new());
    };
    let mut parts: Vec<&str> = list.trim_end_matches(']').split(", ").collect();
    parts.sort_unstable();
    (before, parts)
}

/// The server's side, with whole answers.
struct Client(kube::Client);

/// Whether a server says that it cannot answer now. With 500 it also refuses what it cannot make sense of, and that is
/// an answer.
fn is_trouble(code: u16, body: &Value) -> bool {
    let message = body["message"].as_str().unwrap_or_default();
    let of_storage = [
        "etcdserver:",
        "timed out",
        "deadline exceeded",
        "connection",
    ];
    code > 500 || code == 500 && of_storage.iter().any(|words| message.contains(words))
}

impl Client {
    async fn new(server: &Server) -> Self {
        let file = Kubeconfig::read_from(server.path("admin.conf")).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options);
        Self(kube::Client::try_from(config.await.unwrap()).unwrap())
    }

    /// Asks until there is an answer. What was made and is made again as the first answer was lost is answered as it
    /// is.
    async fn send(&self, method: &str, path: &str, mime: &str, body: &Value) -> (u16, Value) {
        let was_lost = AtomicBool::new(false);
        let (code, answer) = until(&format!("an answer to {method} {path}"), async || {
            let answer = self.send_once(method, path, mime, body).await;
            let answer = answer.filter(|(code, body)| !is_trouble(*code, body));
            was_lost.fetch_or(answer.is_none(), Relaxed);
            answer
        })
        .await;
        if was_lost.into_inner() && (method, code) == ("POST", 409) {
            let name = body["metadata"]["name"].as_str().unwrap();
            let path = format!("{path}/{name}");
            return until("what was made", async || {
                self.send_once("GET", &path, mime, &Value::Null).await
            })
            .await;
        }
        (code, answer)
    }

    async fn send_once(
        &self,
        method: &str,
        path: &str,
        mime: &str,
        body: &Value,
    ) -> Option<(u16, Value)> {
        use http_body_util::BodyExt as _;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", mime);
        let request = request
            .body(Body::from(body.to_string().into_bytes()))
            .unwrap();
        let response = self.0.send(request).await.ok()?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some((code, serde_json::from_slice(&body).unwrap()))
    }

    async fn create(
        &self,
        resource: &str,
        namespace: &str,
        object: &Value,
    ) -> Result<Value, Status> {
        let path = path(resource, namespace);
        self.create_at(&path, object).await
    }

    async fn create_at(&self, path: &str, object: &Value) -> Result<Value, Status> {
        let (code, body) = self.send("POST", path, "application/json", object).await;
        if (200..300).contains(&code) {
            Ok(body)
        } else {
            Err(Status::theirs(&body))
        }
    }

    async fn set_status(&self, quota: &ResourceQuota) {
        let meta = &quota.metadata;
        let path = format!(
            "{}/{}/status",
            path("resourcequotas", &meta.namespace),
            meta.name
        );
        let status = json!({"status": {"hard": quota.status.hard, "used": quota.status.used}});
        let (code, body) = self
            .send("PATCH", &path, "application/merge-patch+json", &status)
            .await;
        assert_eq!(code, 200, "{body}");
    }
}

/// `deployments.apps` as the path of its collection.
fn path(resource: &str, namespace: &str) -> String {
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let prefix = match group {
        "" => "/api/v1".to_owned(),
        group => format!("/apis/{group}/v1"),
    };
    match namespace {
        "" => format!("{prefix}/{plural}"),
        namespace => format!("{prefix}/namespaces/{namespace}/{plural}"),
    }
}

fn read<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

/// An object for the core.
fn object(resource: &str, value: &Value) -> Object {
    match resource {
        "pods" => {
            let (pod, more) = (read::<Pod>(value), read::<MorePod>(value));
            Object::Pod(Box::new(PodObject::new(pod, more)))
        }
        "persistentvolumeclaims" => Object::Claim(Box::new(read::<PersistentVolumeClaim>(value))),
        "services" => Object::Service(Box::new(read::<Service>(value))),
        "priorityclasses.scheduling.k8s.io" => Object::PriorityClass(Box::new(read(value))),
        _ => Object::Other(Box::new(read::<ObjectMeta>(&value["metadata"]))),
    }
}

/// What admission may set in an object, as the API has it.
fn kept(resource: &str, object: &Value) -> Value {
    let without_empty = |resources: &Value| {
        let lists = ["limits", "requests"].map(|list| (list.to_owned(), resources[list].clone()));
        let is_set = |list: &Value| list.as_object().is_some_and(|list| !list.is_empty());
        Value::Object(lists.into_iter().filter(|(_, list)| is_set(list)).collect())
    };
    let containers = |list: &str| -> Vec<Value> {
        let containers = object["spec"][list].as_array().into_iter().flatten();
        containers
            .map(|container| without_empty(&container["resources"]))
            .collect()
    };
    let note = "kubernetes.io/limit-ranger";
    match resource {
        "pods" => json!({
            "containers": containers("containers"),
            "initContainers": containers("initContainers"),
            "resources": without_empty(&object["spec"]["resources"]),
            "annotation": object["metadata"]["annotations"][note],
            "priority": object["spec"]["priority"],
            "priorityClassName": object["spec"]["priorityClassName"],
            "preemptionPolicy": object["spec"]["preemptionPolicy"],
            "qosClass": object["status"]["qosClass"],
        }),
        "persistentvolumeclaims" => without_empty(&object["spec"]["resources"]),
        _ => Value::Null,
    }
}

fn ours(resource: &str, object: &Object) -> Value {
    let object = match object {
        Object::Pod(pod) => {
            let mut value =
                json!({"spec": pod.pod.spec, "metadata": {"annotations": pod.meta().annotations}});
            value["spec"]["preemptionPolicy"] = json!(pod.more.spec.preemption_policy);
            value["status"]["qosClass"] = json!(pod.pod.qos_class().as_str());
            value
        }
        Object::Claim(claim) => json!({"spec": {"resources": claim.spec.resources}}),
        _ => Value::Null,
    };
    kept(resource, &object)
}

/// What differs, and how often the sides agreed.
struct Tally {
    taken: usize,
    refused: usize,
    differences: Vec<String>,
    versions: Versions,
}

impl Tally {
    /// Compares the answers to an object, `namespace/name`. `others` are refusals that chance decides about there.
    fn compare(
        &mut self,
        what: &str,
        newer: Option<Newer>,
        ours: Result<Value, &Refusal>,
        theirs: Result<Value, Status>,
        others: &[Refusal],
    ) {
        let is_same = match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => ours == theirs,
            (Err(refusal), Err(theirs)) => {
                let mut all = std::iter::once(*refusal).chain(others);
                all.any(|refusal| {
                    let (ours, theirs) =
                        self.versions.common(Status::ours(refusal), theirs.clone());
                    ours.is_same(&theirs)
                })
            }
            _ => false,
        };
        match (is_same, &theirs) {
            (true, Ok(_)) => self.taken += 1,
            (true, Err(_)) => self.refused += 1,
            (false, _) if self.versions.explains(newer) => {}
            (false, _) => self.differences.push(format!(
                "{what}\n  ours   {:?}\n  theirs {theirs:?}",
                ours.map_err(Status::ours)
            )),
        }
    }
}

/// One case on both sides.
struct Pair<'a> {
    case: &'a Case,
    world: World,
}

/// Refusals by each quota alone: the API server takes them in any order.
fn alone(
    pair: &Pair<'_>,
    classes: &[PriorityClass],
    resource: &str,
    given: &Value,
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let of_case = |quota: &ResourceQuota| quota.metadata.namespace == pair.case.name;
    for quota in pair.world.quotas().filter(of_case) {
        let mut world = world(classes);
        for range in pair
            .case
            .deciders
            .iter()
            .filter(|it| it["kind"] == "LimitRange")
        {
            world.add_range(read(range)).ok();
        }
        world.add_quota(quota).unwrap();
        refusals.extend(world.admit(resource, object(resource, given)).err());
    }
    refusals
}

fn world(classes: &[PriorityClass]) -> World {
    let mut world = World::new(Admission::Upstream, Default::default(), Default::default());
    for class in classes {
        world.add_class(class.clone()).unwrap();
    }
    world
}

/// A namespace's objects, as they are sent.
fn placed(namespace: &str, object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["namespace"] = json!(namespace);
    object
}

async fn probe(client: &Client, class: &str) -> bool {
    let mut pod = cases::pod("probe", json!([{}]));
    pod["spec"]["priorityClassName"] = json!(class);
    let path = format!("{}?dryRun=All", path("pods", PROBE));
    match client.create_at(&path, &pod).await {
        Err(refused) => refused.message.contains("exceeded quota"),
        Ok(_) => false,
    }
}

/// What every cache is to have before objects are asked for: a class, then a LimitRange, then a quota, each the last of
/// its kind.
async fn wait_for_caches(client: &Client) {
    let class = json!({"metadata": {"name": "probe"}, "value": 1});
    client
        .create("priorityclasses.scheduling.k8s.io", "", &class)
        .await
        .unwrap();
    let range = json!({"metadata": {"name": "probe"}, "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "7"}}]}});
    client.create("limitranges", PROBE, &range).await.unwrap();
    let mut quota: ResourceQuota = read(
        &json!({"metadata": {"name": "probe", "namespace": PROBE}, "spec": {"hard": {"requests.cpu": "6"}}}),
    );
    client
        .create(
            "resourcequotas",
            PROBE,
            &json!({"metadata": {"name": "probe"}, "spec": {"hard": {"requests.cpu": "6"}}}),
        )
        .await
        .unwrap();
    quota.status.hard = quota.spec.hard.clone();
    quota.status.used = read(&json!({"requests.cpu": "0"}));
    client.set_status(&quota).await;
    until("the caches of the API server", async || {
        probe(client, "probe").await.then_some(())
    })
    .await;
}

/// The deciding objects of every case, on both sides.
async fn decide<'a>(
    client: &Client,
    cases: &'a [Case],
    classes: &[PriorityClass],
    tally: &mut Tally,
) -> Vec<Pair<'a>> {
    let mut pairs = Vec::new();
    for case in cases {
        let mut world = world(classes);
        let namespace = json!({"metadata": {"name": case.name}});
        client.create("namespaces", "", &namespace).await.unwrap();
        for decider in &case.deciders {
            let (resource, added) = match decider["kind"].as_str() {
                Some("LimitRange") => ("limitranges", world.add_range(read(decider))),
                _ => ("resourcequotas", world.add_quota(read(decider))),
            };
            let theirs = client.create(resource, &case.name, decider).await;
            let what = format!(
                "{}/{}",
                case.name,
                decider["metadata"]["name"].as_str().unwrap()
            );
            let ours = added.as_ref().map(|()| Value::Null);
            tally.compare(&what, case.newer, ours, theirs.map(|_| Value::Null), &[]);
        }
        world.count();
        for quota in world.quotas() {
            client.set_status(&quota).await;
        }
        pairs.push(Pair { case, world });
    }
    pairs
}

/// Every object of a case, one after the other, and what is in use then.
async fn ask(client: &Client, pair: &mut Pair<'_>, classes: &[PriorityClass], tally: &mut Tally) {
    let Case { name, newer, .. } = pair.case;
    for (resource, given) in &pair.case.objects {
        let theirs = client.create(resource, name, given).await;
        let placed = placed(name, given);
        let others = alone(pair, classes, resource, &placed);
        let admitted = pair.world.admit(resource, object(resource, &placed));
        let what = format!("{name}/{}", given["metadata"]["name"].as_str().unwrap());
        let ours = admitted
            .as_ref()
            .map(|admitted| ours(resource, &admitted.object));
        tally.compare(
            &what,
            *newer,
            ours,
            theirs.map(|object| kept(resource, &object)),
            &others,
        );
    }
    let path = path("resourcequotas", name);
    let (_, list) = client
        .send("GET", &path, "application/json", &Value::Null)
        .await;
    for quota in pair.world.quotas() {
        let mut items = list["items"].as_array().unwrap().iter();
        let theirs = items.find(|item| item["metadata"]["name"] == quota.metadata.name.as_str());
        let theirs = &theirs.unwrap()["status"]["used"];
        // A client leaves an empty list out.
        let theirs = if theirs.is_null() { &json!({}) } else { theirs };
        let ours = json!(quota.status.used);
        let what = format!("{name}/{}: status.used", quota.metadata.name);
        if ours != *theirs && !tally.versions.explains(*newer) {
            tally
                .differences
                .push(format!("{what}\n  ours   {ours}\n  theirs {theirs}"));
        }
    }
}

/// The classes, on both sides; those that are in force.
async fn add_classes(client: &Client, tally: &mut Tally) -> Vec<PriorityClass> {
    let mut classes = Vec::new();
    let mut all = world(&[]);
    for class in cases::classes() {
        let added = all.add_class(read(&class));
        let resource = "priorityclasses.scheduling.k8s.io";
        if added.is_err() {
            // Which one is the default the server looks up in a cache, which may be late.
            let path = format!("{}?dryRun=All", path(resource, ""));
            until("a class to be refused", async || {
                client.create_at(&path, &class).await.err()
            })
            .await;
        }
        let theirs = client.create(resource, "", &class).await;
        let ours = added.as_ref().map(|()| Value::Null);
        tally.compare(
            &class.to_string(),
            None,
            ours,
            theirs.map(|_| Value::Null),
            &[],
        );
        if added.is_ok() {
            classes.push(read(&class));
        }
    }
    classes
}

/// Issue 17: same objects, same answers, message by message.
#[test]
fn admission_answers_as_a_real_api_server() {
    run(async {
        let Some(server) = Server::start().await else {
            return;
        };
        let client = Client::new(&server).await;
        let (_, version) = client
            .send("GET", "/version", "application/json", &Value::Null)
            .await;
        // `minor` is empty in a build from a source archive.
        let parts: Vec<&str> = version["gitVersion"].as_str().unwrap().split('.').collect();
        let minor: u32 = parts[1].parse().unwrap();
        let mut tally = Tally {
            taken: 0,
            refused: 0,
            differences: Vec::new(),
            versions: Versions::of(minor),
        };
        client
            .create("namespaces", "", &json!({"metadata": {"name": PROBE}}))
            .await
            .unwrap();
        assert!(!probe(&client, "").await);
        let classes = add_classes(&client, &mut tally).await;
        let mut cases = cases::all();
        cases.extend(updates::all());
        updates::storage_class(&client).await;
        let mut pairs = decide(&client, &cases, &classes, &mut tally).await;
        wait_for_caches(&client).await;
        for pair in &mut pairs {
            ask(&client, pair, &classes, &mut tally).await;
        }
        updates::ask(&client, minor, &classes, &mut tally).await;
        let Tally {
            taken,
            refused,
            differences,
            versions,
        } = tally;
        let [sentences, answers] = versions.counts();
        notes::note(format_args!(
            "admission beside kube-apiserver 1.{minor}: {} namespaces, {taken} objects taken and {refused} refused alike; by version {sentences} sentences and {answers} answers \
             differ",
            cases.len()
        ));
        assert!(
            differences.is_empty(),
            "{} differences:\n{}",
            differences.len(),
            differences.join("\n")
        );
        assert_eq!(
            versions.unused(),
            Vec::<String>::new(),
            "these differ no more: take them out of the tables"
        );
    });
}
