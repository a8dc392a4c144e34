//! The arbitrator beside the real scheduler and controllers: Deployments make pods, the scheduler places them, the
//! disruption controller counts. Nodes are objects; a stand-in for their kubelets starts pods that are bound, and ends
//! those that leave after their grace.

use std::time::Duration;

use plimsoll_cluster::api::Api;
use plimsoll_cluster::call::{Answer, Call, Content, Verb};
use plimsoll_cluster::clock::unix_ms_of;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::arbitrator::{
    Arbitrator, CONSUMERS, budgets_version, consumer, installed, kubeconfig, namespace,
    until_condition,
};
use super::support::server::{Control, Server, has_control};
use super::support::{run, until};
use super::unix_ms;

/// Pods take so long to end, seconds: their successors are there before they have gone.
const GRACE_S: u64 = 2;

/// A cluster but for its kubelets.
struct Cluster {
    control: Control,
    server: Server,
    kubelets: JoinHandle<()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kubelets.abort();
    }
}

impl Cluster {
    /// Nodes with these CPUs and GiB. `None`: what it takes is not here, and that is noted.
    async fn start(nodes: &[(&str, u64, u64)]) -> Option<Self> {
        if !has_control() {
            return None;
        }
        let server = installed().await?;
        let control = server.control();
        for (name, cpus, gibibytes) in nodes {
            let amounts =
                json!({"cpu": cpus.to_string(), "memory": format!("{gibibytes}Gi"), "pods": "110"});
            let node = json!({"metadata": {"name": name}, "status": {"capacity": amounts, "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}});
            server.create("/api/v1/nodes", &node).await;
        }
        let kubelets = tokio::spawn(kubelets(server.admin.clone()));
        Some(Self {
            control,
            server,
            kubelets,
        })
    }

    /// A namespace with a Consumer of this weight.
    async fn member(&self, name: &str, weight: u64) {
        namespace(&self.server, name).await;
        let spec = json!({"namespace": name, "weight": weight});
        consumer(&self.server, name, &spec).await;
    }

    async fn deployment(&self, namespace: &str, name: &str, replicas: u64, requests: &Value) {
        let labels = json!({"app": name});
        let body = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": GRACE_S,
                "containers": [{"name": "app", "image": "i", "resources": {"requests": requests}}]}}}});
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
        self.server.create(&path, &body).await;
    }

    async fn scale(&self, namespace: &str, name: &str, replicas: u64) {
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
        let body = json!({"spec": {"replicas": replicas}});
        self.server.merge(&path, &body).await;
    }

    /// Pods of a namespace: those that run, and those that wait.
    async fn pods(&self, namespace: &str) -> Option<(usize, usize)> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let list = self.server.get(&path).await?;
        let (mut running, mut waiting) = (0, 0);
        for pod in list["items"].as_array()? {
            if pod["metadata"]["deletionTimestamp"].is_string() {
                continue;
            }
            match pod["spec"]["nodeName"].as_str() {
                Some(_) => running += 1,
                None => waiting += 1,
            }
        }
        Some((running, waiting))
    }

    /// Waits until so many pods run and wait, by namespace.
    async fn until_pods(&self, expected: &[(&str, usize, usize)]) {
        until(&format!("{expected:?}"), async || {
            self.control.check();
            for (namespace, running, waiting) in expected {
                if self.pods(namespace).await? != (*running, *waiting) {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }
}

/// What kubelets do, until the test ends. It holds no server, which would outlive the test by a moment.
async fn kubelets(api: Api) {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let pods = Call::get("test", "/api/v1/pods".to_owned());
        let Answer::Done(list) = api.call(&pods).await else {
            continue;
        };
        let list: Value = serde_json::from_slice(&list).unwrap();
        for pod in list["items"].as_array().into_iter().flatten() {
            let text = |at: &str| pod.pointer(at).and_then(Value::as_str);
            let (Some(namespace), Some(name), Some(uid)) = (
                text("/metadata/namespace"),
                text("/metadata/name"),
                text("/metadata/uid"),
            ) else {
                continue;
            };
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            let end = text("/metadata/deletionTimestamp").and_then(unix_ms_of);
            let call = if end.is_some_and(|end| end <= unix_ms()) {
                let body = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
                Call::write(Verb::Delete, "test", &path, Content::Json, &body, false)
            } else if text("/spec/nodeName").is_some() && text("/status/phase") == Some("Pending") {
                let body = json!({"metadata": {"uid": uid}, "status": {"phase": "Running", "startTime": "2026-11-22T10:00:00Z",
                    "conditions": [{"type": "Ready", "status": "True"}]}});
                let path = format!("{path}/status");
                Call::write(
                    Verb::Patch,
                    "test",
                    &path,
                    Content::StrategicMerge,
                    &body,
                    false,
                )
            } else {
                continue;
            };
            // What has changed meanwhile is seen the next time.
            let _answer = api.call(&call).await;
        }
    }
}

/// Waits for twenty further cycles, each of which saw something change.
async fn twenty_cycles(cluster: &Cluster, arbitrator: &Arbitrator) {
    let server = &cluster.server;
    let before = arbitrator.metric("cycles_total").await;
    let mut at = 0;
    until("twenty more cycles", async || {
        at += 1;
        let labels = json!({"metadata": {"labels": {"turn": at.to_string()}}});
        server.merge("/api/v1/nodes/n1", &labels).await;
        (arbitrator.metric("cycles_total").await >= before + 20.0).then_some(())
    })
    .await;
}

/// Nothing more happens in twenty further cycles.
async fn still(cluster: &Cluster, arbitrator: &Arbitrator, evicted: f64) {
    twenty_cycles(cluster, arbitrator).await;
    assert_eq!(arbitrator.evicted().await, evicted, "no further eviction");
}

/// Waits for these pods, and that they stay; returns how many were evicted by then. Since there were `before` that is
/// no less than `least` and no more than three times that. The scheduler takes some holes back, many where they come
/// free together, and until the arbitrator has seen that and kept them again a successor can be faster: then another
/// pod goes. But it ends.
async fn settled(
    cluster: &Cluster,
    arbitrator: &Arbitrator,
    shares: &[(&str, usize, usize)],
    (before, least): (f64, f64),
) -> f64 {
    loop {
        cluster.until_pods(shares).await;
        let evicted = arbitrator.evicted().await;
        let evictions = evicted - before;
        assert!(
            evictions <= 3.0 * least,
            "{evictions} evictions for {least}"
        );
        twenty_cycles(cluster, arbitrator).await;
        if arbitrator.evicted().await == evicted {
            cluster.until_pods(shares).await;
            assert!(evictions >= least, "{evictions} evictions for {least}");
            return evicted;
        }
    }
}

/// A budget of the Deployment `app`, which the disruption controller judges. Returns its path.
async fn budget(server: &Server, namespace: &str, least: u64) -> String {
    let version = budgets_version(server).await;
    let path = format!("/apis/{version}/namespaces/{namespace}/poddisruptionbudgets");
    let body = json!({"apiVersion": version, "kind": "PodDisruptionBudget", "metadata": {"name": "app"},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "app"}}}});
    server.create(&path, &body).await;
    format!("{path}/app")
}

#[test]
fn a_lender_gets_its_place_back_and_no_successor_takes_it_again() {
    run(async {
        let Some(cluster) = Cluster::start(&[("n1", 6, 64), ("n2", 6, 64)]).await else {
            return;
        };
        let server = &cluster.server;
        for name in ["lender", "borrower"] {
            cluster.member(name, 1).await;
        }
        let one = json!({"cpu": "1"});
        cluster.deployment("borrower", "app", 12, &one).await;
        cluster.until_pods(&[("borrower", 12, 0)]).await;
        let arbitrator = Arbitrator::start(&kubeconfig(server), "one");

        // A budget that forbids all.
        let path = budget(server, "borrower", 12).await;
        until("the disruption controller", async || {
            let seen = server.get(&path).await?;
            (seen["status"]["currentHealthy"] == 12).then_some(())
        })
        .await;
        cluster.deployment("lender", "app", 6, &one).await;
        until_condition(server, "lender", "Underserved", "True", "Blocked").await;
        still(&cluster, &arbitrator, 0.0).await;

        // It allows six: these go, and each place is taken by a pod of the lender, while the borrower's Deployment
        // makes another one for each.
        server
            .merge(&path, &json!({"spec": {"minAvailable": 6}}))
            .await;
        let shares = [("lender", 6, 0), ("borrower", 6, 6)];
        let first = settled(&cluster, &arbitrator, &shares, (0.0, 6.0)).await;

        // What the lender does not use is lent, without an eviction; when it wants it back it gets it.
        cluster.scale("lender", "app", 0).await;
        cluster
            .until_pods(&[("lender", 0, 0), ("borrower", 12, 0)])
            .await;
        cluster.scale("lender", "app", 6).await;
        let both = settled(&cluster, &arbitrator, &shares, (first, 6.0)).await;
        super::support::notes::note(format_args!(
            "six holes at once took {first} evictions, and {} the second time",
            both - first
        ));
        until("no hole to be kept", async || {
            let list = server.get("/api/v1/pods").await?;
            let has =
                |pod: &Value| pod["metadata"]["annotations"]["plimsoll.dev/room-on"].is_string();
            (!list["items"].as_array()?.iter().any(has)).then_some(())
        })
        .await;
        for name in ["lender", "borrower"] {
            until(&format!("the status of {name}"), async || {
                let object = server.get(&format!("{CONSUMERS}/{name}")).await?;
                (object["status"]["deserved"]["cpu"] == "6").then_some(())
            })
            .await;
        }
        arbitrator.was_let().await;
        deleted_in_the_middle(&cluster, &arbitrator).await;
    });
}

/// The namespace for which pods have notice is deleted: they stay.
async fn deleted_in_the_middle(cluster: &Cluster, arbitrator: &Arbitrator) {
    let server = &cluster.server;
    cluster.scale("lender", "app", 0).await;
    cluster
        .until_pods(&[("lender", 0, 0), ("borrower", 12, 0)])
        .await;
    let before = arbitrator.evicted().await;
    let slow = json!({"spec": {"reclaim": {"gracePeriod": "10m"}}});
    server.merge(&format!("{CONSUMERS}/borrower"), &slow).await;
    cluster.scale("lender", "app", 6).await;
    until_condition(server, "borrower", "ReclaimPending", "True", "Notice").await;
    server.delete_plain("/api/v1/namespaces/lender").await;
    until_condition(server, "borrower", "ReclaimPending", "False", "None").await;
    until_condition(server, "lender", "Accepted", "False", "NoNamespace").await;
    cluster.until_pods(&[("borrower", 12, 0)]).await;
    still(cluster, arbitrator, before).await;
}

/// The example of the paper on dominant resource fairness: 9 CPUs and 18 GiB, a's pods of 1 and 4, b's of 3 and 1. It
/// gives three to a and two to b, where asset fairness (2.5 and 2.2) and competitive equilibrium (4.1 and 1.6) give
/// others.
#[test]
fn the_papers_example_comes_out_of_two_deployments() {
    run(async {
        let Some(cluster) = Cluster::start(&[("n1", 9, 18)]).await else {
            return;
        };
        for name in ["a", "b"] {
            cluster.member(name, 1).await;
        }
        let of_a = json!({"cpu": "1", "memory": "4Gi"});
        cluster.deployment("a", "app", 8, &of_a).await;
        cluster.until_pods(&[("a", 4, 4)]).await;
        let of_b = json!({"cpu": "3", "memory": "1Gi"});
        cluster.deployment("b", "app", 8, &of_b).await;
        let arbitrator = Arbitrator::start(&kubeconfig(&cluster.server), "one");
        let shares = [("a", 3, 5), ("b", 2, 6)];
        settled(&cluster, &arbitrator, &shares, (0.0, 1.0)).await;
    });
}

/// The loop of volcano#4947: one queue deserves 3 CPUs and has a pod of 4, the other deserves 5, has one and waits with
/// 4. The evicted pod's successor would fit into its own hole.
#[test]
fn a_successor_as_great_as_the_hole_does_not_take_it() {
    run(async {
        let Some(cluster) = Cluster::start(&[("n1", 8, 64)]).await else {
            return;
        };
        cluster.member("three", 3).await;
        cluster.member("five", 5).await;
        cluster
            .deployment("three", "app", 1, &json!({"cpu": "4"}))
            .await;
        cluster
            .deployment("five", "small", 1, &json!({"cpu": "1"}))
            .await;
        cluster.until_pods(&[("three", 1, 0), ("five", 1, 0)]).await;
        let arbitrator = Arbitrator::start(&kubeconfig(&cluster.server), "one");
        cluster
            .deployment("five", "app", 1, &json!({"cpu": "4"}))
            .await;
        let shares = [("three", 0, 1), ("five", 2, 0)];
        settled(&cluster, &arbitrator, &shares, (0.0, 1.0)).await;
    });
}
