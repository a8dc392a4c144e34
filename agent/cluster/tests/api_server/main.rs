//! Against a real API server on loopback (ring 1): numbers are those of the scenarios in the test plan.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod admission;
mod arbitrator;
mod deploy;
mod evictions;
mod guide;
mod node;
mod policies;
mod scheduler;
#[path = "../support/mod.rs"]
mod support;
mod topology;
mod webhook;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_cluster::call::{Call, Content, Verb};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::protocol::cluster_link::{
    NodeConditionReport, PlimsollCondition, Settled, ToCluster,
};
use serde_json::{Value, json};
use support::agent::Agent;
use support::program::{Program, succeeds};
use support::server::{self, Server, pod_path};
use support::{run, until};

const DECIDED_MS: u64 = 1_795_341_600_123;

/// A node with an agent and the program beside it, in step.
async fn beside(
    server: &Server,
    node: &str,
    kubelet_version: &str,
    options: &[&str],
) -> (Agent, Program) {
    server.node(node, kubelet_version).await;
    let mut agent = Agent::new();
    let kubeconfig = server.kubeconfig(&format!("{node}.conf"));
    let program = Program::start(node, &kubeconfig, &agent.socket(), options);
    agent.accept().await;
    // A program's first list is what the API server has in memory, which the newest pods may not have reached.
    let pods = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}");
    let pods = server.items(&pods).await;
    let uids: BTreeSet<PodUid> = pods
        .iter()
        .map(|pod| pod["metadata"]["uid"].as_str().unwrap().into())
        .collect();
    agent
        .until("the list and the kubelet's version", |known| {
            known.is_listed && known.kubelet_version.is_some() && known.pods.is_superset(&uids)
        })
        .await;
    (agent, program)
}

/// What the program has written of this node goes.
async fn clean_up(server: &Server, node: &str) {
    let kubeconfig = server.kubeconfig(&format!("{node}.conf"));
    succeeds(&["--node", node, "--clean-up"], &kubeconfig).await;
}

/// Gives a pod as many bytes of annotations as the API server takes, so that there is no room for another one.
async fn fill_annotations(server: &Server, name: &str) {
    const BYTES_MAX: usize = 256 << 10;
    const FILLER: &str = "example.com/filler";
    let pod = server.seen(name).await;
    let present = pod["metadata"]["annotations"].as_object().unwrap();
    let bytes = present
        .iter()
        .map(|(key, value)| key.len() + value.as_str().unwrap().len());
    let left = BYTES_MAX - bytes.sum::<usize>() - FILLER.len();
    let filler = json!({"metadata": {"annotations": {FILLER: "x".repeat(left)}}});
    server.merge(&pod_path(name), &filler).await;
}

fn has(pods: &BTreeSet<PodUid>, uid: &str) -> bool {
    pods.contains(&PodUid::from(uid))
}

fn unix_ms() -> u64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(unix.as_millis()).unwrap()
}

fn settled(agent: &Agent, uid: &str) -> Option<Settled> {
    agent.known.settled.get(&PodUid::from(uid)).copied()
}

/// Scenario 1.
#[test]
fn the_agents_pods_are_those_of_the_api() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let mut uids = BTreeSet::new();
        for at in 0..250 {
            let uid = server.large_pod("many", &format!("many-{at}")).await;
            uids.insert(PodUid::from(uid.as_str()));
        }
        server.pod("elsewhere", "elsewhere-0").await;
        let (mut agent, program) = beside(&server, "many", "v1.36.2", &[]).await;
        assert_eq!(agent.known.pods, uids);
        agent
            .until("that the API server is there", |known| {
                known.is_reachable == Some(true)
            })
            .await;
        let added = server.pod("many", "many-added").await;
        agent
            .until("an added pod", |known| has(&known.pods, &added))
            .await;
        server
            .patch(
                &format!("{}/status", pod_path("many-0")),
                &json!({"status": {"phase": "Succeeded"}}),
            )
            .await;
        agent
            .until("a pod that ended", |known| !known.leaving.is_empty())
            .await;
        server.delete(&pod_path("many-added")).await;
        agent
            .until("a deleted pod", |known| !has(&known.pods, &added))
            .await;
        assert_eq!(agent.known.pods, uids);
        // The agent goes and comes back: it hears everything again.
        agent.close();
        agent.accept().await;
        agent
            .until("the list", |known| known.is_listed && known.pods == uids)
            .await;
        assert_eq!(agent.known.gone, 0);
        assert!(program.page("/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(program.metric("pods", "").await >= 249.0);
        let (now_kb, peak_kb) = (program.memory_kb("VmRSS"), program.memory_kb("VmHWM"));
        support::notes::note(format_args!(
            "plimsoll-cluster with 250 pods of 12 kB: {now_kb} kB resident, {peak_kb} kB at most"
        ));
        // The budget of 16 MiB is that of the release build; this one may be the debug build.
        assert!(peak_kb < 48 << 10, "{peak_kb}");
        assert!(
            program
                .metric(
                    "api_calls_total",
                    "verb=\"LIST\",resource=\"pods\",code=\"200\""
                )
                .await
                >= 1.0
        );
    });
}

/// The Events about this UID.
async fn events(server: &Server, uid: &str) -> Vec<Value> {
    let all = server
        .get("/apis/events.k8s.io/v1/namespaces/shop/events")
        .await
        .unwrap();
    let all = all["items"].as_array().cloned().unwrap_or_default();
    all.into_iter()
        .filter(|event| event["regarding"]["uid"] == uid)
        .collect()
}

/// Scenarios 2, 6, 7 and a part of 12: the API server goes away, evictions are decided meanwhile, both programs start
/// anew, and the API server comes back.
#[test]
fn an_outage_delays_what_is_told_and_changes_nothing_of_it() {
    run(async {
        let Some(server) = Server::start().await else {
            return;
        };
        let mut uids = Vec::new();
        for at in 0..4 {
            uids.push(server.pod("away", &format!("away-{at}")).await);
        }
        let (mut agent, mut program) = beside(&server, "away", "v1.36.2", &[]).await;
        server.stop();
        agent
            .until("the outage", |known| known.is_reachable == Some(false))
            .await;
        for (at, uid) in uids.iter().take(3).enumerate() {
            agent
                .evict(uid, &format!("away-{at}"), DECIDED_MS + at as u64, 0)
                .await;
        }
        until("three evictions to be counted", async || {
            (program.metric("unreported_evictions", "").await == 3.0).then_some(())
        })
        .await;
        assert!(
            program
                .metric("oldest_unreported_eviction_age_seconds", "")
                .await
                >= 0.0
        );
        // Both are killed; the agent has its intents on disk.
        drop(program);
        agent.close();
        program = Program::start(
            "away",
            &server.kubeconfig("away.conf"),
            &agent.socket(),
            &[],
        );
        agent.accept().await;
        for (at, uid) in uids.iter().take(3).enumerate() {
            agent
                .evict(uid, &format!("away-{at}"), DECIDED_MS + at as u64, 0)
                .await;
        }
        server.run().await;
        agent
            .until("three reports", |known| {
                uids.iter().take(3).all(|uid| known.is_told(uid))
            })
            .await;
        for (at, uid) in uids.iter().take(3).enumerate() {
            let pod = server.seen(&format!("away-{at}")).await;
            let value = pod["metadata"]["annotations"]["plimsoll.dev/evicted"]
                .as_str()
                .unwrap()
                .to_owned();
            assert!(
                value.starts_with(&format!("2026-11-22T10:00:00.{}Z", 123 + at)),
                "the original time: {value}"
            );
            assert!(!value.contains("report="), "told once: {value}");
            agent.cgroup_gone(uid).await;
        }
        agent
            .until("three ends", |known| known.settled.len() == 3)
            .await;
        assert!(
            program
                .metric(
                    "api_calls_total",
                    "verb=\"PATCH\",resource=\"pods/status\",code=\"200\""
                )
                .await
                <= 3.0
        );
        assert!(program.metric("unreported_evictions", "").await == 0.0);
        // Nothing was said to be gone while the API server was.
        agent.until("the list", |known| known.is_listed).await;
        assert_eq!((agent.known.pods.len(), agent.known.gone), (4, 0));
        // Away once more, without a restart of the program: what changed meanwhile is known afterwards, from the
        // version on that was seen.
        server.stop();
        agent
            .until("the outage", |known| known.is_reachable == Some(false))
            .await;
        // It comes back with a certificate of another authority, which is in the file that the kubeconfig names.
        server.replace_authority();
        server.run().await;
        let added = server.pod("away", "away-added").await;
        agent
            .until("a pod made after the outage", |known| {
                has(&known.pods, &added)
            })
            .await;
        assert_eq!(agent.known.gone, 0);
    });
}

fn pressure(status: bool) -> ToCluster {
    let condition = NodeConditionReport {
        condition: PlimsollCondition::MemoryPressure,
        status,
        reason: "MemoryAvailable".into(),
        message: "memory.available is below 1Gi".into(),
        since_unix_ms: DECIDED_MS,
    };
    ToCluster::Conditions {
        conditions: vec![condition],
    }
}

/// No test: the servers of `cargo xtask kubernetes up`, until `down` asks for their end.
#[test]
#[ignore = "for `cargo xtask kubernetes up`"]
fn stays_up() {
    run(async {
        let folder = std::path::PathBuf::from(std::env::var_os("PLIMSOLL_KUBERNETES_UP").unwrap());
        let Some(server) = Server::start().await else {
            return;
        };
        let ours = std::fs::read_to_string(server.path("admin.conf")).unwrap();
        // Whole or not there.
        std::fs::write(folder.join("partial"), ours).unwrap();
        std::fs::rename(folder.join("partial"), folder.join("admin.conf")).unwrap();
        while !folder.join("stop").exists() {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        drop(server);
        std::fs::remove_file(folder.join("admin.conf")).unwrap();
    });
}
