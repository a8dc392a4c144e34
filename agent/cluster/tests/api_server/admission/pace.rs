//! The scene of the bench `admission` beside a real API server: the same pods, one after the other, on both sides.

use std::time::{Duration, Instant};

use plimsoll_core::kube::admission::object::ResourceQuota;
use serde_json::{Value, json};

use super::super::support::server::Server;
use super::super::support::{notes, run};
use super::{Client, PROBE, kept, object, ours, path, placed, probe, read, wait_for_caches, world};

/// How many pods, where the environment does not say it: with 1,000 the API server takes minutes.
const PODS: usize = 50;

/// The variable that says how many pods.
const PODS_VARIABLE: &str = "PLIMSOLL_ADMISSION_PODS";

const NAMESPACE: &str = "pace";

fn quota(at: usize) -> Value {
    let mut quota = json!({"metadata": {"name": format!("q{at}")},
        "spec": {"hard": {"pods": "100k", "requests.cpu": "100k", "limits.memory": "100Ti"}}});
    if at % 2 == 1 {
        quota["spec"]["scopes"] = json!(["Terminating"]);
    }
    quota
}

fn pod(at: usize) -> Value {
    json!({"metadata": {"name": format!("p{at}")}, "spec": {"containers": [
        {"name": "main", "image": "none", "resources": {"requests": {"cpu": "500m", "memory": "128Mi"}}},
        {"name": "sidecar", "image": "none"}]}})
}

#[test]
fn the_pods_of_the_bench_are_admitted_alike() {
    run(async {
        let Some(server) = Server::start().await else {
            return;
        };
        let client = Client::new(&server).await;
        let mut ours_of = world(&[]);
        for namespace in [PROBE, NAMESPACE] {
            let namespace = json!({"metadata": {"name": namespace}});
            client.create("namespaces", "", &namespace).await.unwrap();
        }
        assert!(!probe(&client, "").await);
        let range = json!({"metadata": {"name": "limits"}, "spec": {"limits": [
            {"type": "Container", "default": {"cpu": "1", "memory": "256Mi"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "4"}}]}});
        let placed = |object: &Value| placed(NAMESPACE, object);
        ours_of.add_range(read(&placed(&range))).unwrap();
        client
            .create("limitranges", NAMESPACE, &range)
            .await
            .unwrap();
        for quota in (0..20).map(quota) {
            ours_of.add_quota(read(&placed(&quota))).unwrap();
            let added = client.create("resourcequotas", NAMESPACE, &quota).await;
            added.unwrap();
        }
        ours_of.count();
        for quota in ours_of.quotas() {
            client.set_status(&quota).await;
        }
        wait_for_caches(&client).await;
        let asked = std::env::var(PODS_VARIABLE).ok();
        let pods = asked.map_or(PODS, |asked| asked.parse().unwrap());
        let (mut here, mut there) = (Duration::ZERO, Duration::ZERO);
        for pod in (0..pods).map(pod) {
            let given = object("pods", &placed(&pod));
            let began = Instant::now();
            let admitted = ours_of.admit("pods", given).unwrap();
            here += began.elapsed();
            let began = Instant::now();
            let created = client.create("pods", NAMESPACE, &pod).await.unwrap();
            there += began.elapsed();
            assert_eq!(ours("pods", &admitted.object), kept("pods", &created));
        }
        let list = path("resourcequotas", NAMESPACE);
        let (_, list) = client
            .send("GET", &list, "application/json", &Value::Null)
            .await;
        for ours in ours_of.quotas() {
            let mut items = list["items"].as_array().unwrap().iter();
            let theirs = items.find(|item| item["metadata"]["name"] == ours.metadata.name.as_str());
            let theirs: ResourceQuota = read(theirs.unwrap());
            assert_eq!(
                ours.status.used, theirs.status.used,
                "{}",
                ours.metadata.name
            );
        }
        let each = |sum: Duration| sum.as_secs_f64() * 1e6 / pods as f64;
        notes::note(format_args!(
            "{pods} pods against 20 quotas: {:.0} µs a pod through the API server, {:.1} µs in this build of the core; the same defaults and usage",
            each(there),
            each(here)
        ));
    });
}
