//! Against a real API server on loopback (ring 1): numbers are those of the scenarios in the test plan.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod support;

use std::collections::BTreeSet;

use plimsoll_core::kube::cluster_link::Settled;
use plimsoll_core::kube::pod_uid::PodUid;
use serde_json::json;
use support::agent::Agent;
use support::program::Program;
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
    agent
        .until("the list and the kubelet's version", |known| {
            known.is_listed && known.kubelet_version.is_some()
        })
        .await;
    (agent, program)
}

fn has(pods: &BTreeSet<PodUid>, uid: &str) -> bool {
    pods.contains(&PodUid::from(uid))
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
        for at in 0..50 {
            uids.insert(PodUid::from(
                server.pod("many", &format!("many-{at}")).await.as_str(),
            ));
        }
        server.pod("elsewhere", "elsewhere-0").await;
        let (mut agent, program) = beside(&server, "many", "v1.36.2", &[]).await;
        assert_eq!(agent.known.pods, uids);
        assert_eq!(agent.known.is_reachable, Some(true));
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
        agent.until("the list", |known| known.is_listed).await;
        assert_eq!((&agent.known.pods, agent.known.gone), (&uids, 0));
        assert!(program.page("/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(program.metric("pods", "").await > 49.0);
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

/// Scenario 3.
#[test]
fn an_eviction_is_shown_beside_what_others_wrote() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let uid = server.pod("told", "told-0").await;
        let (mut agent, _program) = beside(&server, "told", "v1.36.2", &[]).await;
        agent.evict(&uid, "told-0", DECIDED_MS, 0).await;
        agent
            .until("the report", |known| !known.reported.is_empty())
            .await;
        let pod = server.seen("told-0").await;
        let status = &pod["status"];
        assert_eq!(
            (&status["phase"], &status["reason"]),
            (&json!("Failed"), &json!("Evicted"))
        );
        assert!(
            status["message"]
                .as_str()
                .unwrap()
                .starts_with("The node was low on resource: memory.")
        );
        assert_eq!(
            pod["metadata"]["annotations"]["plimsoll.dev/evicted"],
            "2026-11-22T10:00:00.123Z memory.available rank=1/2"
        );
        let conditions = status["conditions"].as_array().unwrap();
        let condition = |name: &str| {
            conditions
                .iter()
                .find(|it| it["type"] == name)
                .cloned()
                .unwrap_or_default()
        };
        assert_eq!(
            condition("Ready")["status"],
            "True",
            "another's condition stays"
        );
        assert_eq!(
            condition("DisruptionTarget")["reason"],
            "TerminationByPlimsoll"
        );
        assert_eq!(
            condition("DisruptionTarget")["lastTransitionTime"],
            "2026-11-22T10:00:00Z"
        );
        agent.cgroup_gone(&uid).await;
        agent
            .until("its end", |known| !known.settled.is_empty())
            .await;
        assert_eq!(settled(&agent, &uid), Some(Settled::Shown));
        // One Event, whose words say that the pod is held.
        let events = server
            .get("/apis/events.k8s.io/v1/namespaces/shop/events")
            .await
            .unwrap();
        let events: Vec<_> = events["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["regarding"]["uid"] == uid.as_str())
            .collect();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(
            (&events[0]["reason"], &events[0]["type"]),
            (&json!("Evicted"), &json!("Warning"))
        );
        assert!(
            events[0]["note"]
                .as_str()
                .unwrap()
                .contains("The pod is held")
        );
        assert_eq!(
            events[0]["metadata"]["annotations"]["offending_containers"],
            "app"
        );
    });
}
