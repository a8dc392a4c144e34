//! Against a real API server on loopback (ring 1): numbers are those of the scenarios in the test plan.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_cluster::call::{Answer, Call, Content, Verb};
use plimsoll_core::kube::cluster_link::{
    NodeConditionReport, PlimsollCondition, Settled, ToCluster,
};
use plimsoll_core::kube::pod_uid::PodUid;
use serde_json::{Value, json};
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

/// Scenarios 4 and 5: the pod is another one of the same name, or has ended by itself.
#[test]
fn another_pod_and_one_that_succeeded_stay_as_they_are() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let old = server.pod("replaced", "replaced-0").await;
        let done = server.pod("replaced", "replaced-1").await;
        let (mut agent, _program) = beside(&server, "replaced", "v1.36.2", &[]).await;
        // Both change behind the back of the watch as far as can be: the intent comes right after.
        server.delete(&pod_path("replaced-0")).await;
        let new = server.pod("replaced", "replaced-0").await;
        let succeeded = json!({"status": {"phase": "Succeeded"}});
        server
            .patch(&format!("{}/status", pod_path("replaced-1")), &succeeded)
            .await;
        agent.evict(&old, "replaced-0", DECIDED_MS, 0).await;
        agent.evict(&done, "replaced-1", DECIDED_MS, 0).await;
        agent
            .until("both ends", |known| known.settled.len() == 2)
            .await;
        assert_eq!(settled(&agent, &old), Some(Settled::Gone));
        assert_eq!(settled(&agent, &done), Some(Settled::EndedOtherwise));
        let pod = server.seen("replaced-0").await;
        assert_eq!(
            (&pod["metadata"]["uid"], &pod["status"]["phase"]),
            (&json!(new), &json!("Running"))
        );
        assert_eq!(
            server.seen("replaced-1").await["status"]["phase"],
            "Succeeded"
        );
        assert_eq!(events(&server, &done).await.len(), 1, "the Event alone");
    });
}

/// The same as the API server itself answers: a wrong UID, and an old version.
#[test]
fn preconditions_hold_at_the_server() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        server.pod("conditions", "conditions-0").await;
        let path = format!("{}/status", pod_path("conditions-0"));
        let patch = |metadata: Value| {
            let body = json!({"metadata": metadata, "status": {"phase": "Failed"}});
            Call::write(
                Verb::Patch,
                "pods/status",
                &path,
                Content::StrategicMerge,
                &body,
                false,
            )
        };
        let code = async |metadata: Value| match server.admin.call(&patch(metadata)).await {
            Answer::Refused(refusal) => refusal.code,
            other => panic!("{other:?}"),
        };
        let wrong_uid = code(json!({"uid": "00000000-0000-0000-0000-000000000000"})).await;
        assert!(matches!(wrong_uid, 409 | 422), "{wrong_uid}");
        assert_eq!(code(json!({"resourceVersion": "1"})).await, 409);
    });
}

/// Scenarios 2, 6, 7 and a part of 12: the API server goes away, evictions are decided meanwhile, both programs start anew, and the API server comes back.
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
            .until("three reports", |known| known.reported.len() == 3)
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
                == 3.0
        );
        assert!(program.metric("unreported_evictions", "").await == 0.0);
        // Nothing was said to be gone while the API server was.
        agent.until("the list", |known| known.is_listed).await;
        assert_eq!((agent.known.pods.len(), agent.known.gone), (4, 0));
        // Away once more, without a restart of the program: what changed meanwhile is known afterwards, from the version on that was seen.
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

/// Scenario 8.
#[test]
fn the_eviction_api_and_its_budgets() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let free = server.pod("soft", "soft-free").await;
        let bound = server.pod("soft", "soft-bound").await;
        let twice = server.pod("soft", "soft-twice").await;
        let group = server.get("/apis/policy").await.unwrap();
        let version = group["preferredVersion"]["groupVersion"]
            .as_str()
            .unwrap()
            .to_owned();
        let budgets = format!("/apis/{version}/namespaces/shop/poddisruptionbudgets");
        for (name, app) in [
            ("bound", "soft-bound"),
            ("one", "soft-twice"),
            ("two", "soft-twice"),
        ] {
            let budget = json!({"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}});
            server.create(&budgets, &budget).await;
        }
        let options = ["--evict-by", "EvictionAPI", "--respect-disruption-budgets"];
        let (mut agent, _program) = beside(&server, "soft", "v1.36.2", &options).await;
        agent
            .until("the budgets", |known| known.budgets.len() >= 3)
            .await;
        let now_ms = unix_ms();
        // The hard threshold asks nobody.
        let hard = server.pod("soft", "soft-hard").await;
        agent.until("a pod", |known| has(&known.pods, &hard)).await;
        agent.evict(&free, "soft-free", now_ms, 600).await;
        agent.until("201", |known| !known.reported.is_empty()).await;
        until("the deletion", async || {
            let pod = server.seen("soft-free").await;
            (pod.is_null() || !pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
        })
        .await;
        agent.evict(&bound, "soft-bound", now_ms, 8).await;
        agent.evict(&twice, "soft-twice", now_ms, 600).await;
        let refused =
            |known: &support::agent::Known, uid: &str| known.refused.contains(&PodUid::from(uid));
        agent
            .until("two refusals", |known| {
                refused(known, &bound) && refused(known, &twice)
            })
            .await;
        assert_eq!(
            server.seen("soft-twice").await["status"]["phase"],
            "Running"
        );
        // At the end of its grace the status says it all the same.
        agent
            .until("the report at the end of the grace", |known| {
                known.reported.iter().any(|uid| uid.as_str() == bound)
            })
            .await;
        assert_eq!(
            server.seen("soft-bound").await["status"]["reason"],
            "Evicted"
        );
        agent
            .send(&ToCluster::Withdrawn {
                uid: twice.as_str().into(),
            })
            .await;
        agent.evict(&hard, "soft-hard", now_ms, 0).await;
        agent
            .until("the hard one", |known| {
                known.reported.iter().any(|uid| uid.as_str() == hard)
            })
            .await;
        assert_eq!(server.seen("soft-hard").await["status"]["phase"], "Failed");
        assert_eq!(
            server.seen("soft-twice").await["status"]["phase"],
            "Running"
        );
    });
}

/// Scenario 8, the end of it.
#[test]
fn a_dry_run_changes_nothing() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let hard = server.pod("dry", "dry-hard").await;
        let soft = server.pod("dry", "dry-soft").await;
        let options = [
            "--dry-run",
            "--evict-by",
            "EvictionAPI",
            "--taint-on-pressure",
            "--evicted-pods",
            "Delete",
        ];
        let (mut agent, _program) = beside(&server, "dry", "v1.36.2", &options).await;
        let versions = async || {
            let mut versions = Vec::new();
            for path in [
                pod_path("dry-hard"),
                pod_path("dry-soft"),
                "/api/v1/nodes/dry".to_owned(),
            ] {
                versions
                    .push(server.get(&path).await.unwrap()["metadata"]["resourceVersion"].clone());
            }
            versions
        };
        let before = versions().await;
        agent.evict(&hard, "dry-hard", DECIDED_MS, 0).await;
        agent.evict(&soft, "dry-soft", unix_ms(), 600).await;
        agent.send(&pressure(true)).await;
        agent
            .until("both ends", |known| known.settled.len() == 2)
            .await;
        assert_eq!(versions().await, before);
        assert!(events(&server, &hard).await.is_empty());
    });
}

/// A kubelet before 1.22 takes the status back: the object goes.
#[test]
fn beside_an_old_kubelet_the_object_is_deleted() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let uid = server.pod("old", "old-0").await;
        let (mut agent, _program) = beside(&server, "old", "v1.20.2", &[]).await;
        agent.evict(&uid, "old-0", DECIDED_MS, 0).await;
        until("the deletion", async || {
            let pod = server.seen("old-0").await;
            (pod.is_null() || !pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
        })
        .await;
        // The kubelet's part.
        if !server.seen("old-0").await.is_null() {
            server.delete(&pod_path("old-0")).await;
        }
        agent
            .until("its end", |known| known.settled.len() == 1)
            .await;
        assert_eq!(settled(&agent, &uid), Some(Settled::Gone));
    });
}

/// What the kubelet does to the status (KUBERNETES.md §11): the reason is dropped at its first look, and `Running` comes back while it is busy.
#[test]
fn what_the_kubelet_takes_back_is_told_again() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let uid = server.pod("back", "back-0").await;
        let (mut agent, _program) = beside(&server, "back", "v1.36.2", &[]).await;
        agent.evict(&uid, "back-0", DECIDED_MS, 0).await;
        let status = format!("{}/status", pod_path("back-0"));
        let evicted = |pod: &Value| {
            pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "Evicted"
        };
        let annotation = |pod: &Value| {
            pod["metadata"]["annotations"]["plimsoll.dev/evicted"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        for (taken_back, report) in [
            (json!({"reason": null, "message": null}), "report=2"),
            (json!({"phase": "Running", "reason": null}), "report=3"),
        ] {
            until("the report", async || {
                evicted(&server.seen("back-0").await).then_some(())
            })
            .await;
            server.patch(&status, &json!({"status": taken_back})).await;
            let again = async || {
                let pod = server.seen("back-0").await;
                (evicted(&pod) && annotation(&pod).ends_with(report)).then_some(())
            };
            until(report, again).await;
        }
        agent.cgroup_gone(&uid).await;
        agent
            .until("its end", |known| known.settled.len() == 1)
            .await;
        assert_eq!(settled(&agent, &uid), Some(Settled::Shown));
        assert_eq!(events(&server, &uid).await.len(), 1);
    });
}

/// Scenario 9: a burst, and a namespace that is being deleted.
#[test]
fn events_are_bounded_and_end_with_their_namespace() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let (mut agent, program) = beside(&server, "burst", "v1.36.2", &[]).await;
        // A namespace that is being deleted takes none: it is dropped at once, and the eviction is settled.
        let ending = json!({"metadata": {"name": "ending"}});
        server.create("/api/v1/namespaces", &ending).await;
        server.delete("/api/v1/namespaces/ending").await;
        let mut intent = support::agent::intent("ending-uid", "ending-0", DECIDED_MS, 0);
        intent.namespace = "ending".to_owned();
        let intent = Box::new(intent);
        agent.send(&ToCluster::Evicted { intent }).await;
        agent
            .until("its end", |known| known.settled.len() == 1)
            .await;
        let refused = "verb=\"POST\",resource=\"events\",code=\"403\"";
        assert!(program.metric("api_calls_total", refused).await == 1.0);
        // Pods that the API does not have: an Event each.
        for at in 0..40 {
            agent
                .evict(
                    &format!("burst-uid-{at}"),
                    &format!("burst-{at}"),
                    DECIDED_MS,
                    0,
                )
                .await;
        }
        agent
            .until("forty ends", |known| known.settled.len() == 41)
            .await;
        let all = server
            .get("/apis/events.k8s.io/v1/namespaces/shop/events")
            .await
            .unwrap();
        let ours = all["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| {
                event["regarding"]["name"]
                    .as_str()
                    .is_some_and(|name| name.starts_with("burst-"))
            })
            .count();
        // The burst has one less by now; one more for every 6 s that this takes.
        assert!((24..35).contains(&ours), "{ours}");
        assert!(program.metric("dropped", "of=\"events\"").await >= 5.0);
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

fn condition_of(node: &Value, name: &str) -> Value {
    let conditions = node["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    conditions
        .into_iter()
        .find(|it| it["type"] == name)
        .unwrap_or_default()
}

/// Scenarios 10 and 11: beside others that write the node without a pause.
#[test]
fn conditions_and_taint_beside_other_writers() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let (mut agent, program) =
            beside(&server, "node", "v1.36.2", &["--taint-on-pressure"]).await;
        let path = "/api/v1/nodes/node";
        let stop = AtomicBool::new(false);
        let others = async {
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                at += 1;
                let status = json!({"status": {"conditions": [{"type": "Other", "status": "True", "reason": format!("R{at}")}]}});
                server.patch(&format!("{path}/status"), &status).await;
                // Another writer of taints, who heeds the resource version as everybody should.
                let node = server.get(path).await.unwrap();
                let mut taints = node["spec"]["taints"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                taints.retain(|taint| taint["key"] != "other");
                taints.push(
                    json!({"key": "other", "value": at.to_string(), "effect": "PreferNoSchedule"}),
                );
                let body = json!({"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": taints}});
                server
                    .admin
                    .call(&Call::write(
                        Verb::Patch,
                        "test",
                        path,
                        Content::Merge,
                        &body,
                        false,
                    ))
                    .await;
            }
            at
        };
        let ours = async {
            let has_taint = |node: &Value, key: &str| {
                node["spec"]["taints"]
                    .as_array()
                    .is_some_and(|taints| taints.iter().any(|taint| taint["key"] == key))
            };
            for status in [true, false, true, false] {
                agent.send(&pressure(status)).await;
                let written = if status { "True" } else { "False" };
                until("condition and taint", async || {
                    let node = server.get(path).await?;
                    let condition = condition_of(&node, "plimsoll.dev/MemoryPressure");
                    (condition["status"] == written
                        && has_taint(&node, "plimsoll.dev/memory-pressure") == status)
                        .then_some(())
                })
                .await;
            }
            stop.store(true, Ordering::Relaxed);
        };
        let (writes, ()) = tokio::join!(others, ours);
        let node = server.get(path).await.unwrap();
        assert_eq!(condition_of(&node, "Ready")["status"], "True");
        assert_eq!(condition_of(&node, "Other")["reason"], format!("R{writes}"));
        assert_eq!(
            node["spec"]["taints"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|taint| taint["key"] == "other")
                .count(),
            1
        );
        // The node's Event says that it began.
        until("the node's Event", async || {
            let all = server
                .get("/apis/events.k8s.io/v1/namespaces/kube-system/events")
                .await?;
            all["items"]
                .as_array()?
                .iter()
                .any(|event| {
                    event["reason"] == "PlimsollMemoryPressure"
                        && event["regarding"]["name"] == "node"
                })
                .then_some(())
        })
        .await;
        drop(program);
        // Uninstalled: what is ours is gone, and nothing else.
        let kubeconfig = server.kubeconfig("node.conf");
        let cleaned = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll-cluster"))
            .args(["--node", "node", "--clean-up", "--kubeconfig"])
            .arg(kubeconfig)
            .status()
            .unwrap();
        assert!(cleaned.success());
        let node = server.get(path).await.unwrap();
        assert!(condition_of(&node, "plimsoll.dev/MemoryPressure").is_null());
        assert_eq!(condition_of(&node, "Ready")["status"], "True");
    });
}

/// Scenario 12: the documented rights suffice, without them the call is refused and said, and a token is replaced while it runs.
#[test]
fn rights_and_tokens() {
    run(async {
        let Some(server) = Server::start().await else {
            return;
        };
        let uid = server.pod("rights", "rights-0").await;
        let kept = server.pod("rights", "rights-1").await;
        let (mut agent, program) = beside(&server, "rights", "v1.36.2", &[]).await;
        // The least that docs/reference/cluster.md names: no other call is made by a default configuration.
        let least: [(&str, &str, &[&str]); 5] = [
            ("", "pods", &["get", "list", "watch"]),
            ("", "pods/status", &["patch"]),
            ("", "nodes", &["get", "list", "watch"]),
            ("", "nodes/status", &["patch"]),
            ("events.k8s.io", "events", &["create", "patch"]),
        ];
        server.grant(&least).await;
        agent.evict(&uid, "rights-0", DECIDED_MS, 0).await;
        agent.send(&pressure(true)).await;
        agent.cgroup_gone(&uid).await;
        agent
            .until("its end", |known| known.settled.len() == 1)
            .await;
        until("the condition", async || {
            (program
                .metric("api_calls_total", "resource=\"nodes/status\",code=\"200\"")
                .await
                > 0.0)
                .then_some(())
        })
        .await;
        assert!(
            program.metric("api_calls_total", "code=\"403\"").await == 0.0,
            "{}",
            program.page("/metrics").await
        );
        // Without the right to write status.
        server.grant(&least[..1]).await;
        agent.evict(&kept, "rights-1", DECIDED_MS, 0).await;
        agent
            .until("that it is given up", |known| known.settled.len() == 2)
            .await;
        assert_eq!(settled(&agent, &kept), Some(Settled::GivenUp));
        assert!(
            program
                .metric(
                    "api_calls_total",
                    "verb=\"PATCH\",resource=\"pods/status\",code=\"403\""
                )
                .await
                >= 5.0
        );
        // Another token in the file: the watch goes on, whoever the token is of has the rights.
        std::fs::write(server.path("token"), "admin-token").unwrap();
        let added = server.pod("rights", "rights-2").await;
        agent
            .until("a pod after the token changed", |known| {
                has(&known.pods, &added)
            })
            .await;
        assert_eq!(agent.known.gone, 0);
    });
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
