//! `plimsoll-cluster arbitrate` against a real API server. Nodes are objects; a stand-in binds pods where there is
//! room, takes evicted ones away as a kubelet does, and makes another pod for each as an owner does.

mod troubles;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_cluster::api::{Api, Source};
use plimsoll_cluster::call::{Answer, Call, Content, Verb};
use plimsoll_cluster::metrics::Metrics;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::policies::{knows_policies, make_policies};
use super::support::program::{page, succeeds};
use super::support::server::{Server, free_port};
use super::support::{run, until};

pub(super) const CONSUMERS: &str = "/apis/plimsoll.dev/v1alpha1/consumers";

/// Of resources that the API server gets to know.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Of the arbitrator and its account.
const OWN_NAMESPACE: &str = "/api/v1/namespaces/plimsoll";
const ACCOUNT: &str = "plimsoll-arbitrator";
/// The kubeconfig of the arbitrator.
const CONFIG: &str = "arbitrator.conf";

pub(super) fn deploy(file: &str) -> Vec<Value> {
    let path = format!(
        "{}/../../deploy/components/arbitrator/{file}",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A server with the resources and rights of `deploy/`, and a namespace for the Lease.
pub(super) async fn installed() -> Option<Server> {
    installed_with(|_| ()).await
}

/// The same, with the resources changed.
async fn installed_with(change: impl Fn(&mut Value)) -> Option<Server> {
    let server = Server::start().await?;
    for file in ["consumers.yaml", "allocations.yaml"] {
        for mut object in deploy(file) {
            change(&mut object);
            server.create(DEFINITIONS, &object).await;
        }
    }
    namespace(&server, "plimsoll").await;
    account(&server).await;
    until("the resource to be served", async || {
        server.get(CONSUMERS).await
    })
    .await;
    let allocations = "/apis/plimsoll.dev/v1alpha1/allocations";
    until("the resource to be served", async || {
        server.get(allocations).await
    })
    .await;
    Some(server)
}

/// The account of the arbitrator with its rights, a token of it that is bound to a pod, as a kubelet asks for one, and
/// from Kubernetes 1.30 on the policies that say what of a pod and of a node it changes.
pub(super) async fn account(server: &Server) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for object in deploy("rbac.yaml") {
        let path = match object["kind"].as_str().unwrap() {
            "ServiceAccount" => format!("{OWN_NAMESPACE}/serviceaccounts"),
            "ClusterRole" => format!("{rbac}/clusterroles"),
            "ClusterRoleBinding" => format!("{rbac}/clusterrolebindings"),
            "Role" => format!("{rbac}/namespaces/plimsoll/roles"),
            "RoleBinding" => format!("{rbac}/namespaces/plimsoll/rolebindings"),
            other => panic!("{other}"),
        };
        server.create(&path, &object).await;
    }
    let pod = json!({"metadata": {"name": "arbitrator"}, "spec": {"serviceAccountName": ACCOUNT,
        "containers": [{"name": "arbitrator", "image": "i"}]}});
    let pod = server.create(&format!("{OWN_NAMESPACE}/pods"), &pod).await;
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "arbitrator", "uid": pod["metadata"]["uid"]});
    let request = json!({"spec": {"boundObjectRef": bound, "expirationSeconds": 36_000}});
    let path = format!("{OWN_NAMESPACE}/serviceaccounts/{ACCOUNT}/token");
    let answer = server.create(&path, &request).await;
    let token = answer["status"]["token"].as_str().unwrap();
    let source = Source::Kubeconfig(server.kubeconfig_of(CONFIG, token));
    let api = Api::new(source, Metrics::new().into()).await.unwrap();
    // The API server hears of roles and of policies by watches of its own.
    let lease = "/apis/coordination.k8s.io/v1/namespaces/plimsoll/leases/plimsoll-arbitrator";
    until("the rights to be in force", async || {
        let nodes = api
            .call(&Call::get("test", "/api/v1/nodes".to_owned()))
            .await;
        let lease = api.call(&Call::get("test", lease.to_owned())).await;
        let is_known = |answer: &Answer| !matches!(answer, Answer::Refused(it) if it.code == 403);
        (is_known(&nodes) && is_known(&lease)).then_some(())
    })
    .await;
    if !knows_policies(server).await {
        return;
    }
    make_policies(server, deploy("admission-policy.yaml")).await;
    let path = format!("{OWN_NAMESPACE}/pods/arbitrator/status");
    let failed = json!({"status": {"phase": "Failed"}});
    let call = Call::write(Verb::Patch, "test", &path, Content::Merge, &failed, true);
    until("the policies to be in force", async || {
        match api.call(&call).await {
            Answer::Refused(refusal) => refusal
                .message
                .contains("plimsoll-arbitrator-pods")
                .then_some(()),
            _ => None,
        }
    })
    .await;
}

pub(super) async fn namespace(server: &Server, name: &str) {
    server
        .create("/api/v1/namespaces", &json!({"metadata": {"name": name}}))
        .await;
}

pub(super) async fn consumer(server: &Server, name: &str, spec: &Value) -> Value {
    let body = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Consumer", "metadata": {"name": name}, "spec": spec});
    server.create(CONSUMERS, &body).await
}

pub(super) async fn node(server: &Server, name: &str, cpus: u64) {
    server
        .create("/api/v1/nodes", &json!({"metadata": {"name": name}}))
        .await;
    let amounts = json!({"cpu": cpus.to_string(), "pods": "110"});
    let status = json!({"status": {"capacity": amounts, "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}});
    server
        .patch(&format!("/api/v1/nodes/{name}/status"), &status)
        .await;
    // The API server taints a new node until a controller has looked at it.
    let call = Call::write(
        Verb::Patch,
        "test",
        &format!("/api/v1/nodes/{name}"),
        Content::Merge,
        &json!({"spec": {"taints": null}}),
        false,
    );
    server.must(&call).await;
}

/// It may take ten minutes to end: past its time it would be no room any more, and here nobody ends it, or a stand-in
/// that a busy machine keeps waiting.
fn pod_body(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "app"}}, "spec": {"terminationGracePeriodSeconds": 600,
        "containers": [{"name": "app", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}})
}

async fn pods(server: &Server, namespace: &str, names: std::ops::Range<u32>) {
    for at in names {
        let body = pod_body(&format!("{namespace}-{at}"));
        server
            .create(&format!("/api/v1/namespaces/{namespace}/pods"), &body)
            .await;
    }
}

/// The arbitrator, as it is installed.
pub(super) struct Arbitrator {
    child: Child,
    port: u16,
}

impl Drop for Arbitrator {
    fn drop(&mut self) {
        let _ended = (self.child.kill(), self.child.wait());
    }
}

impl Arbitrator {
    pub(super) fn start(kubeconfig: &Path, name: &str) -> Self {
        Self::start_with(kubeconfig, name, &[])
    }

    pub(super) fn start_with(kubeconfig: &Path, name: &str, options: &[String]) -> Self {
        let port = free_port();
        let child = Command::new(env!("CARGO_BIN_EXE_plimsoll-cluster"))
            .args([
                "arbitrate",
                "--grace-period=2s",
                "--minimum-run-time=1s",
                "--cycle=200ms",
            ])
            .args(["--identity", name])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg(format!("--listen=127.0.0.1:{port}"))
            .args(options)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, port }
    }

    async fn page(&self, path: &str) -> String {
        page(TcpStream::connect(("127.0.0.1", self.port)).await, path).await
    }

    /// Pods that it has evicted. Evictions whose answer was lost count as well: most of them were done.
    pub(super) async fn evicted(&self) -> f64 {
        let unclear = self.metric("evictions_total{of=\"unclear\"}").await;
        unclear + self.metric("evictions_total{of=\"evicted\"}").await
    }

    pub(super) async fn metric(&self, name: &str) -> f64 {
        let name = format!("plimsoll_arbitrator_{name} ");
        let text = self.page("/metrics").await;
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    /// The API server has refused nothing for want of a right, or by a policy.
    pub(super) async fn was_let(&self) {
        let text = self.page("/metrics").await;
        let is = |line: &&str| {
            ["403", "422"]
                .iter()
                .any(|code| line.contains(&format!("code=\"{code}\"")))
        };
        let refused: Vec<&str> = text.lines().filter(is).collect();
        assert!(refused.is_empty(), "{refused:?}");
    }

    async fn leads(&self) -> bool {
        self.metric("leader").await > 0.0
    }
}

/// What the stand-in adds to the name of a pod that was evicted to name its successor.
const SUCCESSOR: char = 'x';

/// What the stand-in has seen.
#[derive(Default)]
struct Seen {
    evicted: BTreeSet<String>,
    /// Running pods by namespace.
    running: BTreeMap<String, usize>,
}

/// Scheduler, kubelets and owners.
struct Cluster {
    seen: Arc<Mutex<Seen>>,
    ways: Arc<Ways>,
    task: JoinHandle<()>,
}

/// What the stand-in does not do for now.
#[derive(Default)]
struct Ways {
    /// It places no pod.
    is_scheduler_away: AtomicBool,
    /// Pods that leave take their time.
    is_slow: AtomicBool,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Cluster {
    fn start(server: &Arc<Server>, nodes: &[(&'static str, usize)]) -> Self {
        let (seen, ways): (Arc<Mutex<Seen>>, Arc<Ways>) = Default::default();
        let (server, nodes) = (server.clone(), nodes.to_vec());
        let (into, how) = (seen.clone(), ways.clone());
        let task = tokio::spawn(async move {
            loop {
                let made = turn(&server, &into, &how, &nodes).await;
                tokio::time::sleep(Duration::from_millis(if made { 20 } else { 200 })).await;
            }
        });
        Self { seen, ways, task }
    }

    fn evicted(&self) -> usize {
        self.seen.lock().unwrap().evicted.len()
    }

    async fn runs(&self, expected: &[(&str, usize)]) {
        until(&format!("{expected:?} to run"), async || {
            assert!(!self.task.is_finished(), "the stand-in has ended");
            let seen = self.seen.lock().unwrap();
            let is = expected.iter().all(|(namespace, count)| {
                seen.running.get(*namespace).copied().unwrap_or(0) == *count
            });
            is.then_some(())
        })
        .await;
    }
}

async fn turn(
    server: &Server,
    into: &Mutex<Seen>,
    how: &Ways,
    nodes: &[(&'static str, usize)],
) -> bool {
    let Some(list) = server.get("/api/v1/pods").await else {
        return false;
    };
    let mut free: BTreeMap<&str, usize> = nodes.iter().copied().collect();
    let mut running: BTreeMap<String, usize> = BTreeMap::new();
    let mut pending = Vec::new();
    let mut changed = false;
    for pod in list["items"].as_array().unwrap() {
        let text = |path: &str| {
            pod.pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (namespace, name, uid) = (
            text("/metadata/namespace"),
            text("/metadata/name"),
            text("/metadata/uid"),
        );
        // The pod of the arbitrator's token.
        if namespace == "plimsoll" {
            continue;
        }
        let node = text("/spec/nodeName");
        if !text("/metadata/deletionTimestamp").is_empty() {
            // Its owner makes another one, as often as it takes; before it has gone: who sees it go sees its successor.
            if !into.lock().unwrap().evicted.contains(&uid) {
                let body = pod_body(&format!("{name}{SUCCESSOR}"));
                let path = format!("/api/v1/namespaces/{namespace}/pods");
                let call = Call::write(Verb::Post, "test", &path, Content::Json, &body, false);
                let is_made = match server.admin.call(&call).await {
                    Answer::Done(_) => true,
                    // 409: it was, and the answer was lost.
                    Answer::Refused(refusal) => !refusal.is_passing(),
                    Answer::Lost(_) => false,
                };
                if is_made {
                    into.lock().unwrap().evicted.insert(uid.clone());
                }
                changed |= is_made;
            }
            // As a kubelet that has ended it.
            let is_over = into.lock().unwrap().evicted.contains(&uid);
            if is_over && !how.is_slow.load(Relaxed) {
                let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
                let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
                let call = Call::write(Verb::Delete, "test", &path, Content::Json, &body, false);
                let _gone = server.admin.call(&call).await;
            }
        } else if node.is_empty() {
            let made = text("/metadata/creationTimestamp");
            pending.push((name.ends_with(SUCCESSOR), made, namespace, name));
            continue;
        } else {
            if text("/status/phase") == "Pending" {
                starts(server, &namespace, &name).await;
            }
            *running.entry(namespace).or_default() += 1;
        }
        if let Some(free) = free.get_mut(node.as_str()) {
            *free = free.saturating_sub(1);
        }
    }
    // Those that wait longest first, as the scheduler's queue has it. Where the machine is slow a test is so as well: a
    // successor can be older than the last pods for which room is made, and takes its own hole again, for which another
    // pod goes. That is told elsewhere, with a real scheduler.
    pending.sort();
    if how.is_scheduler_away.load(Relaxed) {
        pending.clear();
    }
    for (.., namespace, name) in pending {
        let Some((node, free)) = free.iter_mut().find(|(_, free)| **free > 0) else {
            break;
        };
        let body = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        let call = Call::write(Verb::Post, "test", &path, Content::Json, &body, false);
        if matches!(server.admin.call(&call).await, Answer::Done(_)) {
            starts(server, &namespace, &name).await;
            *free -= 1;
            changed = true;
        }
    }
    into.lock().unwrap().running = running;
    changed
}

/// What a kubelet says of a pod that it has started. It may have been deleted meanwhile, and without an answer it is
/// said in the next turn.
async fn starts(server: &Server, namespace: &str, name: &str) {
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
    let content = Content::StrategicMerge;
    let call = Call::write(Verb::Patch, "test", &path, content, &status, false);
    let _started = server.admin.call(&call).await;
}

pub(super) async fn condition(server: &Server, consumer: &str, kind: &str) -> Option<Value> {
    let object = server.get(&format!("{CONSUMERS}/{consumer}")).await?;
    let conditions = object["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
        .cloned()
}

pub(super) async fn until_condition(
    server: &Server,
    consumer: &str,
    kind: &str,
    status: &str,
    reason: &str,
) -> Value {
    until(
        &format!("{consumer} {kind}={status} {reason}"),
        async || {
            let found = condition(server, consumer, kind).await?;
            (found["status"] == status && found["reason"] == reason).then_some(found)
        },
    )
    .await
}

/// The kubeconfig that [`account`] has written: with the account of `deploy/`.
pub(super) fn kubeconfig(server: &Server) -> PathBuf {
    server.path(CONFIG)
}

/// Two groups with weights 4 and 6 on ten CPUs; `four` has filled the cluster.
async fn two_groups() -> Option<(Arc<Server>, Cluster)> {
    let server = Arc::new(installed().await?);
    let nodes = [("n1", 5_u64), ("n2", 5)];
    for (name, cpus) in nodes {
        node(&server, name, cpus).await;
    }
    for (group, weight, member) in [("big-four", 4, "four"), ("big-six", 6, "six")] {
        consumer(&server, group, &json!({"weight": weight})).await;
        namespace(&server, member).await;
        consumer(
            &server,
            member,
            &json!({"namespace": member, "parent": group}),
        )
        .await;
    }
    pods(&server, "four", 0..10).await;
    let cluster = Cluster::start(&server, &nodes.map(|(name, cpus)| (name, cpus as usize)));
    cluster.runs(&[("four", 10)]).await;
    Some((server, cluster))
}

#[test]
fn two_groups_share_lend_and_take_back_within_budgets_whatever_happens() {
    run(async {
        let Some((server, cluster)) = two_groups().await else {
            return;
        };
        let arbitrator = Arbitrator::start(&kubeconfig(&server), "one");
        // What is idle is lent.
        until("the borrower's share", async || {
            let four = server.get(&format!("{CONSUMERS}/four")).await?;
            (four["status"]["deserved"]["cpu"] == "10").then_some(())
        })
        .await;
        assert_eq!(cluster.evicted(), 0);

        // A budget forbids all.
        let version = budgets_version(&server).await;
        let budgets = &format!("/apis/{version}/namespaces/four/poddisruptionbudgets");
        let budget = json!({"apiVersion": version, "kind": "PodDisruptionBudget", "metadata": {"name": "all"},
            "spec": {"minAvailable": 10, "selector": {"matchLabels": {"app": "app"}}}});
        server.create(budgets, &budget).await;
        allow(&server, budgets, 0).await;
        pods(&server, "six", 0..8).await;
        until_condition(&server, "six", "Underserved", "True", "Blocked").await;
        assert_eq!(cluster.evicted(), 0);
        // It allows one.
        allow(&server, budgets, 1).await;
        cluster.runs(&[("four", 9), ("six", 1)]).await;
        until_condition(&server, "six", "Underserved", "True", "Blocked").await;
        assert_eq!(cluster.evicted(), 1);

        // Evictions are answered with 500: a webhook is down.
        let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let hook = json!({"metadata": {"name": "down"}, "webhooks": [{"name": "down.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "timeoutSeconds": 1, "clientConfig": {"url": "https://127.0.0.1:1/x"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}]}]});
        server.create(hooks, &hook).await;
        until_evictions_get(&server, "four", 500).await;
        server.delete_plain(&format!("{budgets}/all")).await;
        until("an eviction that is answered with 500", async || {
            let text = arbitrator.page("/metrics").await;
            let is = |line: &&str| line.contains("pods/eviction") && line.contains("code=\"500\"");
            text.lines().any(|line| is(&line)).then_some(())
        })
        .await;
        assert_eq!(cluster.evicted(), 1);
        server.delete_plain(&format!("{hooks}/down")).await;

        // 40 to 60.
        cluster.runs(&[("four", 4), ("six", 6)]).await;
        assert_eq!(cluster.evicted(), 6, "as many as are needed");
        for (name, amount) in [
            ("four", "4"),
            ("six", "6"),
            ("big-four", "4"),
            ("big-six", "6"),
        ] {
            until(&format!("the status of {name}"), async || {
                let object = server.get(&format!("{CONSUMERS}/{name}")).await?;
                (object["status"]["deserved"]["cpu"] == amount
                    && object["status"]["used"]["cpu"] == amount)
                    .then_some(())
            })
            .await;
        }
        let allocation = "/apis/plimsoll.dev/v1alpha1/namespaces/six/allocations/six";
        until("the Allocation", async || {
            let object = server.get(allocation).await?;
            (object["status"]["dominant"] == json!({"resource": "cpu", "share": "0.60"}))
                .then_some(())
        })
        .await;
        said(&server).await;

        // The borrower's pods go, the lender's come back: it is entitled to its own again.
        until("the lender to have no pod", async || {
            let list = server.get("/api/v1/namespaces/six/pods").await?;
            let pods = list["items"].as_array()?.clone();
            for pod in &pods {
                let name = pod["metadata"]["name"].as_str()?;
                let path = format!("/api/v1/namespaces/six/pods/{name}");
                let body = json!({"gracePeriodSeconds": 0});
                let call = Call::write(Verb::Delete, "test", &path, Content::Json, &body, false);
                let _gone = server.admin.call(&call).await;
            }
            pods.is_empty().then_some(())
        })
        .await;
        cluster.runs(&[("four", 10), ("six", 0)]).await;
        // While they went one after the other, those that were left had rights.
        let before = cluster.evicted();
        pods(&server, "six", 20..26).await;
        cluster.runs(&[("four", 4), ("six", 6)]).await;
        assert_eq!(cluster.evicted(), before + 6);

        // A quota below hard.
        let path = format!("{CONSUMERS}/four");
        server
            .merge(&path, &json!({"spec": {"hard": {"cpu": "9"}}}))
            .await;
        let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "3"}}});
        server
            .create("/api/v1/namespaces/four/resourcequotas", &quota)
            .await;
        let wrong = until_condition(&server, "four", "Accepted", "False", "QuotaBelowHard").await;
        assert!(wrong["message"].as_str().unwrap().contains("cpu"));
        until("the lesser bound", async || {
            let object = server.get(&path).await?;
            (object["status"]["hard"]["cpu"] == "3" && object["status"]["deserved"]["cpu"] == "3")
                .then_some(())
        })
        .await;
        // `six` has no further pod: the fourth CPU is nobody's, and its pod stays.
        assert_eq!(cluster.evicted(), before + 6);
        assert!(arbitrator.page("/readyz").await.starts_with("HTTP/1.1 200"));
        arbitrator.was_let().await;
    });
}

/// Group and version of disruption budgets: the first before 1.21, the other one from 1.25 on.
pub(super) async fn budgets_version(server: &Server) -> &'static str {
    let version = "policy/v1beta1";
    match server.get(&format!("/apis/{version}")).await {
        Some(_) => version,
        None => "policy/v1",
    }
}

/// What the disruption controller would write.
async fn allow(server: &Server, budgets: &str, allowed: u32) {
    let seen = server.get(&format!("{budgets}/all")).await.unwrap();
    let status = json!({"status": {"observedGeneration": seen["metadata"]["generation"], "disruptionsAllowed": allowed,
        "currentHealthy": 10, "desiredHealthy": 10, "expectedPods": 10}});
    server
        .merge(&format!("{budgets}/all/status"), &status)
        .await;
}

/// The API server sees a configuration of webhooks a moment after it is stored: waits until an eviction is answered
/// with this code.
async fn until_evictions_get(server: &Server, namespace: &str, code: u16) {
    let version = budgets_version(server).await;
    until(
        &format!("evictions to be answered with {code}"),
        async || {
            let list = server
                .get(&format!("/api/v1/namespaces/{namespace}/pods"))
                .await?;
            let name = list["items"][0]["metadata"]["name"].as_str()?;
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction");
            let eviction =
                json!({"apiVersion": version, "kind": "Eviction", "metadata": {"name": name}});
            let call = Call::write(Verb::Post, "test", &path, Content::Json, &eviction, true);
            let answer = server.admin.call(&call).await;
            matches!(answer, Answer::Refused(refusal) if refusal.code == code).then_some(())
        },
    )
    .await;
}

/// Events on both sides of a reclaim.
async fn said(server: &Server) {
    for (namespace, reason) in [
        ("four", "ReclaimNotice"),
        ("four", "Reclaimed"),
        ("six", "ReclaimPlanned"),
        ("six", "RoomMade"),
    ] {
        until(&format!("{reason} in {namespace}"), async || {
            let events = server
                .get(&format!(
                    "/apis/events.k8s.io/v1/namespaces/{namespace}/events"
                ))
                .await?;
            let is = |event: &Value| {
                event["reason"] == reason
                    && event["reportingController"] == "plimsoll.dev/arbitrator"
            };
            events["items"].as_array()?.iter().any(is).then_some(())
        })
        .await;
    }
}

#[test]
fn a_leader_that_is_killed_in_the_middle_of_a_plan_is_followed_by_the_other_one() {
    run(async {
        let Some((server, cluster)) = two_groups().await else {
            return;
        };
        let config = kubeconfig(&server);
        let mut pair = [
            Arbitrator::start(&config, "one"),
            Arbitrator::start(&config, "other"),
        ];
        until("a leader and a follower that knows all", async || {
            let leaders = (pair[0].leads().await, pair[1].leads().await);
            let ready = pair[0].metric("ready").await + pair[1].metric("ready").await;
            ((leaders.0 != leaders.1) && ready == 2.0).then_some(())
        })
        .await;
        pods(&server, "six", 0..6).await;
        until("an eviction", async || {
            (cluster.evicted() > 0).then_some(())
        })
        .await;
        if pair[1].leads().await {
            pair.swap(0, 1);
        }
        let [leader, follower] = pair;
        drop(leader);
        until("the other one to lead", async || {
            follower.leads().await.then_some(())
        })
        .await;
        cluster.runs(&[("four", 4), ("six", 6)]).await;
        assert_eq!(cluster.evicted(), 6, "as many as one alone would have");
        // No notice is left on a pod.
        until("no annotation", async || {
            let list = server.get("/api/v1/pods").await?;
            let has = |pod: &Value| {
                pod["metadata"]["annotations"]["plimsoll.dev/evict-after"].is_string()
            };
            (!list["items"].as_array()?.iter().any(has)).then_some(())
        })
        .await;
        follower.was_let().await;
    });
}

#[test]
fn what_the_resource_refuses_and_what_slips_through() {
    run(async {
        let Some(server) = installed().await else {
            return;
        };
        namespace(&server, "a").await;
        node(&server, "n1", 5).await;
        let made = consumer(
            &server,
            "a",
            &json!({"namespace": "a", "reserved": {"cpu": 2}, "parent": "nowhere"}),
        )
        .await;
        assert_eq!(
            (&made["spec"]["weight"], &made["spec"]["unlimited"]),
            (&json!(1), &json!(false))
        );
        for wrong in [
            json!({"weight": 0}),
            json!({"weight": 1_000_001}),
            json!({"hard": {"cpu": "many"}}),
            json!({"reclaim": {"gracePeriod": "soon"}}),
            json!({"namespace": ""}),
        ] {
            let body = json!({"apiVersion": "plimsoll.dev/v1alpha1", "kind": "Consumer", "metadata": {"name": "wrong"}, "spec": wrong});
            let call = Call::write(Verb::Post, "test", CONSUMERS, Content::Json, &body, false);
            let answer = server.answer(&call).await;
            let is_refused = answer.as_ref().is_err_and(|refusal| refusal.code == 422);
            assert!(is_refused, "{wrong}: {answer:?}");
        }
        consumer(&server, "again", &json!({"namespace": "a"})).await;
        let arbitrator = Arbitrator::start(&kubeconfig(&server), "one");
        until_condition(&server, "a", "Accepted", "False", "NoParent").await;
        until_condition(&server, "again", "Accepted", "False", "NamespaceTaken").await;
        until("the Event", async || {
            let events = server
                .get("/apis/events.k8s.io/v1/namespaces/kube-system/events")
                .await?;
            let is = |event: &Value| {
                event["reason"] == "NoParent" && event["regarding"]["kind"] == "Consumer"
            };
            events["items"].as_array()?.iter().any(is).then_some(())
        })
        .await;
        // As `kubectl get csm` has it.
        let config = kubeconfig(&server);
        let once =
            async |format| succeeds(&["arbitrate", "--once", "--output", format], &config).await;
        let found: Value = serde_json::from_str(&once("json").await).unwrap();
        assert_eq!(found["consumers"][0]["name"], "a");
        assert_eq!(found["consumers"][0]["reserved"]["cpu"], "2");
        assert!(
            once("text")
                .await
                .contains("Consumer a: NoParent: its parent nowhere does not exist")
        );
        the_guide(&server).await;
        drop(arbitrator);
    });
}

/// What `docs/guide/sharing.md` has applied is taken, and what it has asked for answers.
async fn the_guide(server: &Server) {
    let page = include_str!("../../../../docs/guide/sharing.md");
    let (_, applied) = page.split_once("kubectl apply -f - <<EOF\n").unwrap();
    let (applied, asked) = applied.split_once("\nEOF\n").unwrap();
    namespace(server, "spark").await;
    let objects: Vec<Value> = serde_saphyr::from_multiple(applied).unwrap();
    assert_eq!(objects.len(), 2);
    for object in &objects {
        server.create(CONSUMERS, object).await;
    }
    for name in ["bigdata", "spark"] {
        until_condition(server, name, "Accepted", "True", "Accepted").await;
    }
    let (asked, _) = asked.split_once("```").unwrap();
    let short = "/apis/plimsoll.dev/v1alpha1";
    for line in asked.lines() {
        let path = match line {
            "kubectl get csm" => CONSUMERS.to_owned(),
            "kubectl get allocations -A" => format!("{short}/allocations"),
            "kubectl -n spark get events --field-selector reason=ReclaimNotice" => {
                "/api/v1/namespaces/spark/events?fieldSelector=reason%3DReclaimNotice".to_owned()
            }
            other => panic!("the guide has a command that no test runs: {other}"),
        };
        assert!(server.get(&path).await.is_some(), "{line}");
    }
    let resources = server.get(short).await.unwrap();
    let names = resources["resources"].as_array().unwrap().iter();
    let names: Vec<&Value> = names
        .flat_map(|it| it["shortNames"].as_array())
        .flatten()
        .collect();
    assert!(names.contains(&&json!("csm")), "{names:?}");
}

/// Objects at the same time: creating thousands one after the other takes minutes.
async fn all(server: &Arc<Server>, path: &'static str, bodies: Vec<Value>) {
    let make = async {
        let mut calls = tokio::task::JoinSet::new();
        for body in bodies {
            while calls.len() >= 16 {
                calls.join_next().await;
            }
            let server = server.clone();
            calls.spawn_local(async move { server.create(path, &body).await });
        }
        while let Some(made) = calls.join_next().await {
            made.unwrap();
        }
    };
    tokio::task::LocalSet::new().run_until(make).await;
}

/// What the scheduler says of a pod that it cannot place, in other words each time.
async fn tried(server: &Server, namespace: &str, pod: &str, times: u32) {
    let message = format!("0/500 nodes are available: {times} Insufficient cpu.");
    let body = json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}});
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/status");
    server.patch(&path, &body).await;
}

/// How many pods of a collection are being deleted.
async fn leaving(server: &Server, path: &str) -> usize {
    let pods = server.items(path).await.into_iter();
    pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_string())
        .count()
}

/// Nodes here have no kubelet at all: evicted pods stay, as leaving ones. 41 s of CPU time with the servers, most of it
/// to make the objects.
#[test]
fn five_hundred_nodes_with_five_thousand_pods() {
    run(async {
        let Some(server) = installed().await else {
            return;
        };
        let server = Arc::new(server);
        for member in ["four", "six"] {
            namespace(&server, member).await;
            consumer(&server, member, &json!({"namespace": member})).await;
        }
        let amounts = json!({"cpu": "10", "pods": "110"});
        let nodes = (0..500).map(|at| {
            json!({"metadata": {"name": format!("n{at}")}, "status": {"capacity": amounts, "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}})
        });
        all(&server, "/api/v1/nodes", nodes.collect()).await;
        for at in 0..500 {
            let path = format!("/api/v1/nodes/n{at}");
            server
                .merge(&path, &json!({"spec": {"taints": null}}))
                .await;
        }
        let pods_of_four = (0..5_000).map(|at| {
            let mut body = pod_body(&format!("four-{at}"));
            body["spec"]["nodeName"] = json!(format!("n{}", at % 500));
            body
        });
        let path = "/api/v1/namespaces/four/pods";
        all(&server, path, pods_of_four.collect()).await;
        let arbitrator = Arbitrator::start(&kubeconfig(&server), "one");
        until("the whole cluster to be known", async || {
            (arbitrator.metric("ready").await > 0.0).then_some(())
        })
        .await;
        pods(&server, "six", 0..50).await;
        let began = std::time::Instant::now();
        let mut times = 0;
        until("fifty evictions", async || {
            times += 1;
            tried(&server, "six", "six-0", times).await;
            (arbitrator.evicted().await >= 50.0 && leaving(&server, path).await >= 50).then_some(())
        })
        .await;
        let took = began.elapsed().as_secs();
        let cycle = arbitrator.metric("last_cycle_seconds").await;
        let status = std::fs::read_to_string(format!("/proc/{}/status", arbitrator.child.id()));
        let status = status.unwrap();
        let memory = status.lines().find(|line| line.starts_with("VmHWM"));
        super::support::notes::note(format_args!(
            "500 nodes, 5,000 pods: fifty evictions in {took} s with 2 s of notice, a cycle in {cycle} s, {memory:?}"
        ));
        // No further one.
        let before = arbitrator.metric("cycles_total").await;
        until("ten more cycles", async || {
            times += 1;
            tried(&server, "six", "six-0", times).await;
            (arbitrator.metric("cycles_total").await >= before + 10.0).then_some(())
        })
        .await;
        assert_eq!(leaving(&server, path).await, 50);
    });
}
