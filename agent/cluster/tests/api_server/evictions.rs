//! One eviction after the other: what the API shows, and what others do to it.

use super::*;

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
        agent.until("the report", |known| known.is_told(&uid)).await;
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

/// Scenario 3, of a pod that leaves no room for an annotation: it ends all the same, and what was told to the kubelet
/// is known from the label.
#[test]
fn a_pod_whose_annotations_are_full_is_told_by_a_label() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let uid = server.pod("filled", "filled-0").await;
        fill_annotations(&server, "filled-0").await;
        let (mut agent, program) = beside(&server, "filled", "v1.36.2", &[]).await;
        agent.evict(&uid, "filled-0", DECIDED_MS, 0).await;
        agent.until("the report", |known| known.is_told(&uid)).await;
        let pod = server.seen("filled-0").await;
        assert_eq!(
            (&pod["status"]["phase"], &pod["status"]["reason"]),
            (&json!("Failed"), &json!("Evicted"))
        );
        let metadata = &pod["metadata"];
        assert_eq!(
            metadata["labels"],
            json!({"app": "filled-0", "plimsoll.dev/evicted": "2026-11-22T10.00.00.123Z.1"})
        );
        assert_eq!(metadata["annotations"]["plimsoll.dev/evicted"], json!(null));
        let refused = program.metric("api_calls_total", "code=\"422\"").await;
        assert!(refused == 1.0, "{}", program.page("/metrics").await);
        agent.cgroup_gone(&uid).await;
        agent
            .until("its end", |known| !known.settled.is_empty())
            .await;
        assert_eq!(settled(&agent, &uid), Some(Settled::Shown));
    });
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

/// What a clock that is wrong makes of the times is taken by a real API server, too.
#[test]
fn an_eviction_of_any_time_is_shown() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let times = [0, 253_402_300_799_999, u64::MAX];
        let mut uids = Vec::new();
        for at in 0..times.len() {
            uids.push(server.pod("clock", &format!("clock-{at}")).await);
        }
        let (mut agent, _program) = beside(&server, "clock", "v1.36.2", &[]).await;
        for (at, (uid, decided_ms)) in uids.iter().zip(times).enumerate() {
            agent
                .evict(uid, &format!("clock-{at}"), decided_ms, 0)
                .await;
        }
        agent
            .until("the reports", |known| {
                uids.iter().all(|uid| known.is_told(uid))
            })
            .await;
        for (at, uid) in uids.iter().enumerate() {
            let pod = server.seen(&format!("clock-{at}")).await;
            assert_eq!(pod["status"]["reason"], "Evicted", "{pod:#}");
            agent.cgroup_gone(uid).await;
        }
        agent
            .until("their ends", |known| known.settled.len() == times.len())
            .await;
        for uid in &uids {
            assert_eq!(settled(&agent, uid), Some(Settled::Shown));
            assert_eq!(events(&server, uid).await.len(), 1);
        }
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
        let code = async |metadata: Value| server.answer(&patch(metadata)).await.unwrap_err().code;
        let wrong_uid = code(json!({"uid": "00000000-0000-0000-0000-000000000000"})).await;
        assert!(matches!(wrong_uid, 409 | 422), "{wrong_uid}");
        assert_eq!(code(json!({"resourceVersion": "1"})).await, 409);
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
        // The hard threshold asks nobody.
        let hard = server.pod("soft", "soft-hard").await;
        agent.until("a pod", |known| has(&known.pods, &hard)).await;
        agent.evict(&free, "soft-free", unix_ms(), 600).await;
        agent.until("201", |known| known.is_told(&free)).await;
        until("the deletion", async || {
            let pod = server.seen("soft-free").await;
            (pod.is_null() || !pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
        })
        .await;
        agent.evict(&bound, "soft-bound", unix_ms(), 20).await;
        agent.evict(&twice, "soft-twice", unix_ms(), 600).await;
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
                known.is_told(&bound)
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
        agent.evict(&hard, "soft-hard", unix_ms(), 0).await;
        agent
            .until("the hard one", |known| known.is_told(&hard))
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
        // The kubelet's part; it may have gone by now.
        let now = json!({"gracePeriodSeconds": 0});
        let path = pod_path("old-0");
        let call = Call::write(Verb::Delete, "test", &path, Content::Json, &now, false);
        let _gone = server.admin.call(&call).await;
        agent
            .until("its end", |known| known.settled.len() == 1)
            .await;
        assert_eq!(settled(&agent, &uid), Some(Settled::Gone));
    });
}

/// What the kubelet does to the status (seen with 1.36.2): the reason is dropped at its first look, and `Running` comes
/// back while it is busy.
#[test]
fn what_the_kubelet_takes_back_is_told_again() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let (mut agent, _program) = beside(&server, "back", "v1.36.2", &[]).await;
        for at in 0.. {
            let name = format!("back-{at}");
            let uid = server.pod("back", &name).await;
            agent.until("the pod", |known| has(&known.pods, &uid)).await;
            agent.evict(&uid, &name, DECIDED_MS, 0).await;
            if !is_told_again(&server, &mut agent, &uid, &name).await {
                continue;
            }
            agent.cgroup_gone(&uid).await;
            agent.until("its end", |known| known.has_ended(&uid)).await;
            assert_eq!(settled(&agent, &uid), Some(Settled::Shown));
            assert_eq!(events(&server, &uid).await.len(), 1);
            return;
        }
    });
}

/// Takes a report back twice, and waits each time until it is told again. `false`: what stands for half a minute is
/// settled, and that was too fast for this machine.
async fn is_told_again(server: &Server, agent: &mut Agent, uid: &str, name: &str) -> bool {
    let status = format!("{}/status", pod_path(name));
    // Which one it is; where answers are lost there are more.
    let reports = |pod: &Value| {
        let value = pod["metadata"]["annotations"]["plimsoll.dev/evicted"].as_str()?;
        let number = value.split(" report=").nth(1);
        Some(number.map_or(1, |number| number.parse().unwrap()))
    };
    let evicted =
        |pod: &Value| pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "Evicted";
    for (taken_back, least) in [
        (json!({"reason": null, "message": null}), 2),
        (json!({"phase": "Running", "reason": null}), 3),
    ] {
        let is_told = until(&format!("report {least}"), async || {
            let pod = server.seen(name).await;
            if evicted(&pod) && reports(&pod) >= Some(least) {
                return Some(true);
            }
            // Not twice: the version is that of the report that is taken back.
            let version = &pod["metadata"]["resourceVersion"];
            let body = json!({"metadata": {"resourceVersion": version}, "status": taken_back});
            let content = Content::StrategicMerge;
            let call = Call::write(Verb::Patch, "test", &status, content, &body, false);
            if evicted(&pod)
                && let Err(refusal) = server.answer(&call).await
            {
                assert_eq!(refusal.code, 409, "{refusal:?}");
            }
            agent.hear_all().await;
            agent.known.has_ended(uid).then_some(false)
        })
        .await;
        if !is_told {
            return false;
        }
    }
    true
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
        agent
            .send(&ToCluster::Evicted {
                intent,
                is_let_go: false,
            })
            .await;
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
        assert!(program.metric("dropped_total", "of=\"events\"").await >= 5.0);
    });
}
