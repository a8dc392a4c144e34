//! The node itself, and the rights that it takes.

use std::time::Duration;

use plimsoll_cluster::report::pressure::{OVERUSED, OverusedList, WITHHELD, read_withheld};

use super::*;

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
        let (mut agent, program) = beside(
            &server,
            "node",
            "v1.36.2",
            &["--taint-on-pressure", "--clean-up-on-exit"],
        )
        .await;
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
            for status in [true, false, true] {
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
        // It began twice: one Event of the node, which counts.
        until("the node's Event, twice", async || {
            let all = server
                .get("/apis/events.k8s.io/v1/namespaces/kube-system/events")
                .await?;
            let ours: Vec<&Value> = all["items"]
                .as_array()?
                .iter()
                .filter(|event| {
                    event["reason"] == "PlimsollMemoryPressure"
                        && event["regarding"]["name"] == "node"
                })
                .collect();
            assert!(ours.len() <= 1, "{ours:#?}");
            (ours.first()?["series"]["count"] == 2).then_some(())
        })
        .await;
        // Uninstalled while the node is short: what is ours is gone, and nothing else.
        program.ask_to_end();
        program.ended().await;
        let node = server.get(path).await.unwrap();
        assert!(condition_of(&node, "plimsoll.dev/MemoryPressure").is_null());
        assert_eq!(condition_of(&node, "Ready")["status"], "True");
        let taints = node["spec"]["taints"].as_array().unwrap();
        let keys: Vec<&Value> = taints.iter().map(|taint| &taint["key"]).collect();
        assert!(keys.contains(&&json!("other")), "{node:#}");
        assert!(
            !keys.contains(&&json!("plimsoll.dev/memory-pressure")),
            "{node:#}"
        );
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

/// What is withheld goes to the arbitrator, and who uses too much to the agent, both by annotations.
#[test]
fn a_node_under_pressure_and_the_arbitrator_hear_of_each_other() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let (mut agent, _program) = beside(&server, "pressed", "v1.36.2", &[]).await;
        let path = "/api/v1/nodes/pressed";
        let withheld = async || {
            let node = server.get(path).await?;
            let text = node["metadata"]["annotations"][WITHHELD]
                .as_str()?
                .to_owned();
            read_withheld(&text).map(|(_, quantities)| quantities["memory"].clone())
        };
        agent.send(&pressure(true)).await;
        agent
            .send(&ToCluster::Withheld { memory_bytes: 4096 })
            .await;
        until("what is withheld", async || {
            (withheld().await? == "4096").then_some(())
        })
        .await;
        // Written again, as the arbitrator does: where the first one takes a minute to get here, it is void.
        let (name, renewed) = (format!("{path}/status"), AtomicBool::new(false));
        let arbitrator = async {
            while !renewed.load(Ordering::Relaxed) {
                let list = OverusedList::value(&[("greedy".to_owned(), 12)].into(), unix_ms());
                let body = json!({"metadata": {"annotations": {OVERUSED: list}}});
                server.merge(&name, &body).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let heard = async {
            agent
                .until("who uses too much", |known| {
                    known
                        .overused
                        .iter()
                        .any(|it| it.namespace == "greedy" && it.excess == 12)
                })
                .await;
            renewed.store(true, Ordering::Relaxed);
        };
        tokio::join!(arbitrator, heard);
        let body = json!({"metadata": {"annotations": {OVERUSED: null}}});
        server.merge(&format!("{path}/status"), &body).await;
        agent
            .until("the end of the list", |known| known.overused.is_empty())
            .await;
        agent.send(&ToCluster::Withheld { memory_bytes: 0 }).await;
        until("nothing to be withheld", async || {
            let node = server.get(path).await?;
            node["metadata"]["annotations"][WITHHELD]
                .is_null()
                .then_some(())
        })
        .await;
    });
}
