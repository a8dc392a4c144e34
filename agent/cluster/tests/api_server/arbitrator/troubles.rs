//! What goes wrong around the arbitrator: a scheduler that is away, a leader that dies beside a slow pod, an API server
//! that asks for patience, resources of other versions.

use bytes::Bytes;
use k8s_openapi::ByteString;
use plimsoll_cluster::certificate;
use plimsoll_cluster::serve::webhook::{PATH, Slot, serve};
use tokio::net::TcpListener;

use super::super::support::server;
use super::super::unix_ms;
use super::*;

/// One node, and two namespaces with the same weight.
async fn two_members(cpus: u64) -> Option<(Arc<Server>, Cluster)> {
    let server = Arc::new(installed().await?);
    node(&server, "n1", cpus).await;
    for member in ["one", "other"] {
        namespace(&server, member).await;
        consumer(&server, member, &json!({"namespace": member})).await;
    }
    let cluster = Cluster::start(&server, &[("n1", usize::try_from(cpus).unwrap())]);
    Some((server, cluster))
}

/// The cycles go on, and no further pod goes in them.
async fn no_further(arbitrator: &Arbitrator, server: &Server, cluster: &Cluster, evicted: usize) {
    let before = arbitrator.metric("cycles_total").await;
    let mut at = 0;
    until("ten more cycles", async || {
        at += 1;
        let labels = json!({"metadata": {"labels": {"turn": at.to_string()}}});
        server.merge("/api/v1/nodes/n1", &labels).await;
        (arbitrator.metric("cycles_total").await >= before + 10.0).then_some(())
    })
    .await;
    assert_eq!(cluster.evicted(), evicted, "no further eviction");
}

async fn deserves(server: &Server, name: &str, cpus: &str) {
    until(&format!("{name} to deserve {cpus}"), async || {
        let object = server.get(&format!("{CONSUMERS}/{name}")).await?;
        (object["status"]["deserved"]["cpu"] == cpus).then_some(())
    })
    .await;
}

/// The proposal's T1 to T3: one namespace has all that is idle; another one that comes gets its half back; and with a
/// half each, who waits for more gets nothing.
#[test]
fn the_three_scenarios_of_the_proposal() {
    run(async {
        let Some((server, cluster)) = two_members(2).await else {
            return;
        };
        // T1.
        pods(&server, "one", 0..2).await;
        cluster.runs(&[("one", 2)]).await;
        let arbitrator = Arbitrator::start(&kubeconfig(&server), "one");
        deserves(&server, "one", "2").await;
        no_further(&arbitrator, &server, &cluster, 0).await;
        // T2.
        pods(&server, "other", 0..1).await;
        cluster.runs(&[("one", 1), ("other", 1)]).await;
        for name in ["one", "other"] {
            deserves(&server, name, "1").await;
        }
        assert_eq!(cluster.evicted(), 1);
        // T3: the successor of the pod that went waits.
        until_condition(&server, "one", "Overused", "False", "WithinDeserved").await;
        no_further(&arbitrator, &server, &cluster, 1).await;
        cluster.runs(&[("one", 1), ("other", 1)]).await;
    });
}

#[test]
fn where_nobody_places_pods_one_pod_goes_and_the_others_when_the_scheduler_is_back() {
    run(async {
        let Some((server, cluster)) = two_members(6).await else {
            return;
        };
        pods(&server, "one", 0..6).await;
        cluster.runs(&[("one", 6)]).await;
        let arbitrator = Arbitrator::start(&kubeconfig(&server), "one");
        cluster.ways.is_scheduler_away.store(true, Relaxed);
        pods(&server, "other", 0..3).await;
        until("an eviction", async || {
            (cluster.evicted() == 1).then_some(())
        })
        .await;
        until("the doubt", async || {
            (arbitrator.metric("held_back").await > 0.0).then_some(())
        })
        .await;
        until("its reason in the status", async || {
            let pending = condition(&server, "one", "ReclaimPending").await?;
            pending["message"]
                .as_str()?
                .contains("kube-scheduler")
                .then_some(())
        })
        .await;
        no_further(&arbitrator, &server, &cluster, 1).await;
        cluster.ways.is_scheduler_away.store(false, Relaxed);
        cluster.runs(&[("one", 3), ("other", 3)]).await;
        assert_eq!(cluster.evicted(), 3, "as many as are needed");
        until("no doubt", async || {
            (arbitrator.metric("held_back").await == 0.0).then_some(())
        })
        .await;
    });
}

/// What the arbitrator takes for a word of the scheduler needs rights that no tenant has: the roles of Kubernetes for
/// them let pods be made and changed, and nothing else of a pod be written.
#[test]
fn a_tenant_writes_nothing_that_is_taken_for_a_word_of_the_scheduler() {
    run(async {
        let Some(server) = server::shared().await else {
            return;
        };
        let roles =
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:aggregate-to-".to_owned();
        let has = |list: &Value, names: &[&str]| {
            let list = list.as_array().into_iter().flatten();
            list.filter_map(Value::as_str).any(|it| names.contains(&it))
        };
        for role in ["view", "edit", "admin"] {
            let role = server.get(&format!("{roles}{role}")).await.unwrap();
            for rule in role["rules"].as_array().unwrap() {
                let words = [
                    "*",
                    "*/*",
                    "pods/*",
                    "pods/status",
                    "pods/binding",
                    "bindings",
                ];
                let writes = has(&rule["verbs"], &["*", "create", "update", "patch"]);
                assert!(!(writes && has(&rule["resources"], &words)), "{rule}");
            }
        }
        // Nor does the pod itself let them through.
        let status = json!({"nominatedNodeName": "n1", "conditions": [{"type": "PodScheduled", "status": "False"}]});
        let mut body = pod_body("tenant");
        body["status"] = status.clone();
        server.create("/api/v1/namespaces/shop/pods", &body).await;
        let path = server::pod_path("tenant");
        server.merge(&path, &json!({"status": status})).await;
        let seen = server.seen("tenant").await;
        assert!(seen["status"]["nominatedNodeName"].is_null(), "{seen}");
        assert!(seen["status"]["conditions"].is_null(), "{seen}");
        let node = json!({"spec": {"nodeName": "n1"}});
        let call = Call::write(Verb::Patch, "test", &path, Content::Merge, &node, false);
        let answer = server.answer(&call).await;
        let is_refused = answer.as_ref().is_err_and(|refusal| refusal.code == 422);
        assert!(is_refused, "{answer:?}");
        server.delete(&path).await;
    });
}

/// A tenant's pods have a year to end, and it deletes them: they are evicted all the same, which makes their time ten
/// minutes.
#[test]
fn a_pod_that_leaves_in_a_year_is_evicted_once_more() {
    run(async {
        let Some((server, cluster)) = two_members(2).await else {
            return;
        };
        cluster.ways.is_slow.store(true, Relaxed);
        for at in 0..2 {
            let mut body = pod_body(&format!("one-{at}"));
            body["spec"]["terminationGracePeriodSeconds"] = json!(31_536_000);
            server.create("/api/v1/namespaces/one/pods", &body).await;
        }
        cluster.runs(&[("one", 2)]).await;
        for at in 0..2 {
            let path = format!("/api/v1/namespaces/one/pods/one-{at}");
            server.delete_plain(&path).await;
        }
        let _arbitrator = Arbitrator::start(&kubeconfig(&server), "one");
        pods(&server, "other", 0..1).await;
        let graces = async || {
            let mut graces = Vec::new();
            for at in 0..2 {
                let path = format!("/api/v1/namespaces/one/pods/one-{at}");
                let pod = server.get(&path).await?;
                graces.push(pod["metadata"]["deletionGracePeriodSeconds"].as_u64()?);
            }
            graces.sort_unstable();
            Some(graces)
        };
        until("one of them to have less time", async || {
            (graces().await? == [600, 31_536_000]).then_some(())
        })
        .await;
        cluster.ways.is_slow.store(false, Relaxed);
        until("the other pod to run", async || {
            let seen = cluster.seen.lock().unwrap();
            (seen.running.get("other") == Some(&1)).then_some(())
        })
        .await;
    });
}

/// A pod takes its time to end, and the leader dies meanwhile: the next one goes on with the hole, and evicts no other
/// pod for it.
#[test]
fn a_new_leader_goes_on_with_the_hole_of_a_slow_pod() {
    run(async {
        let Some((server, cluster)) = two_members(2).await else {
            return;
        };
        pods(&server, "one", 0..2).await;
        cluster.runs(&[("one", 2)]).await;
        cluster.ways.is_slow.store(true, Relaxed);
        let leader = Arbitrator::start(&kubeconfig(&server), "leader");
        pods(&server, "other", 0..1).await;
        until("an eviction", async || {
            (cluster.evicted() == 1).then_some(())
        })
        .await;
        drop(leader);
        let follower = Arbitrator::start(&kubeconfig(&server), "follower");
        until("the other one to lead", async || {
            follower.leads().await.then_some(())
        })
        .await;
        no_further(&follower, &server, &cluster, 1).await;
        let path = "/api/v1/namespaces/other/pods/other-0";
        let kept = server.get(path).await.unwrap();
        let kept = [
            &kept["metadata"]["annotations"]["plimsoll.dev/room-on"],
            &kept["status"]["nominatedNodeName"],
        ];
        assert_eq!(kept, [&json!("n1"), &json!("n1")]);
        cluster.ways.is_slow.store(false, Relaxed);
        cluster.runs(&[("one", 1), ("other", 1)]).await;
        no_further(&follower, &server, &cluster, 1).await;
        until("no hole", async || {
            let pod = server.get(path).await?;
            let annotation = &pod["metadata"]["annotations"]["plimsoll.dev/room-on"];
            annotation.is_null().then_some(())
        })
        .await;
    });
}

/// Refuses every eviction with 429 and no word of a budget, as a server that has too much to do.
async fn too_many_requests(body: Bytes) -> Result<Vec<u8>, http::StatusCode> {
    let review: Value = serde_json::from_slice(&body).unwrap();
    let answer = json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": {
        "uid": review["request"]["uid"], "allowed": false,
        "status": {"code": 429, "reason": "TooManyRequests", "message": "try again later"}}});
    Ok(answer.to_string().into_bytes())
}

#[test]
fn an_api_server_that_asks_for_patience_gets_it() {
    run(async {
        let Some((server, cluster)) = two_members(2).await else {
            return;
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let pair = certificate::make("127.0.0.1", unix_ms()).unwrap();
        let slot = Slot::default();
        slot.set(certificate::served(&pair, None).unwrap());
        let refuse = |_, body| too_many_requests(body);
        let patience = tokio::spawn(serve(listener, slot, refuse, || ()));
        let hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let url = format!("https://127.0.0.1:{port}{PATH}");
        let trusted = ByteString(pair.authorities.into_bytes());
        let hook = json!({"metadata": {"name": "busy"}, "webhooks": [{"name": "busy.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "timeoutSeconds": 5, "clientConfig": {"url": url, "caBundle": trusted},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}]}]});
        server.create(hooks, &hook).await;
        pods(&server, "one", 0..2).await;
        cluster.runs(&[("one", 2)]).await;
        until_evictions_get(&server, "one", 429).await;
        let arbitrator = Arbitrator::start(&kubeconfig(&server), "one");
        pods(&server, "other", 0..1).await;
        until("two evictions that are put off", async || {
            let later = "evictions_total{of=\"later\"}";
            (arbitrator.metric(later).await >= 2.0).then_some(())
        })
        .await;
        assert_eq!(cluster.evicted(), 0);
        server.delete_plain(&format!("{hooks}/busy")).await;
        cluster.runs(&[("one", 1), ("other", 1)]).await;
        assert_eq!(cluster.evicted(), 1);
        patience.abort();
    });
}

/// A resource of before `unlimited` and `reclaim` takes them from what is written, and one of later keeps a field that
/// is not known here. The first is arbitrated by the usual times, the second stops evictions and says so.
#[test]
fn resources_of_an_earlier_and_of_a_later_version() {
    run(async {
        let earlier = |object: &mut Value| {
            let schema = &mut object["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            // Of the two resources the one that has them.
            let Some(spec) = schema.pointer_mut("/properties/spec") else {
                return;
            };
            let later = ["unlimited", "reclaim"];
            let Some(fields) = spec["properties"].as_object_mut() else {
                return;
            };
            if !fields.contains_key(later[0]) {
                return;
            }
            for field in later {
                fields.remove(field).unwrap();
            }
            // A rule on a field that is not there is refused.
            let rules = spec["x-kubernetes-validations"].as_array_mut().unwrap();
            let names = |rule: &Value| rule["rule"].as_str().unwrap_or_default().to_owned();
            rules.retain(|rule| !later.iter().any(|field| names(rule).contains(field)));
        };
        let Some(server) = installed_with(earlier).await else {
            return;
        };
        let server = Arc::new(server);
        node(&server, "n1", 2).await;
        for member in ["one", "other"] {
            namespace(&server, member).await;
            let spec = json!({"namespace": member, "reclaim": {"gracePeriod": "24h"}});
            let made = consumer(&server, member, &spec).await;
            assert!(made["spec"]["reclaim"].is_null(), "{made}");
        }
        let cluster = Cluster::start(&server, &[("n1", 2)]);
        pods(&server, "one", 0..2).await;
        cluster.runs(&[("one", 2)]).await;
        let arbitrator = Arbitrator::start(&kubeconfig(&server), "one");
        pods(&server, "other", 0..1).await;
        cluster.runs(&[("one", 1), ("other", 1)]).await;
        for member in ["one", "other"] {
            until_condition(&server, member, "Accepted", "True", "Accepted").await;
        }
        // A later one, with a Consumer that has a field of it.
        let path = format!("{DEFINITIONS}/consumers.plimsoll.dev");
        let later = |definition: &mut Value| {
            let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            schema["properties"]["spec"]["properties"]["burst"] = json!({"type": "integer"});
        };
        server.change(&path, "", later).await;
        namespace(&server, "third").await;
        until("the field to be kept", async || {
            let body = json!({"spec": {"burst": 5}});
            let path = format!("{CONSUMERS}/other");
            let call = Call::write(Verb::Patch, "test", &path, Content::Merge, &body, false);
            server.must(&call).await;
            let seen = server.get(&path).await?;
            (seen["spec"]["burst"] == 5).then_some(())
        })
        .await;
        let wrong = until_condition(&server, "other", "Accepted", "False", "Unreadable").await;
        assert!(
            wrong["message"].as_str().unwrap().contains("burst"),
            "{wrong}"
        );
        let before = cluster.evicted();
        pods(&server, "other", 1..3).await;
        until("the doubt", async || {
            (arbitrator.metric("held_back").await > 0.0).then_some(())
        })
        .await;
        no_further(&arbitrator, &server, &cluster, before).await;
    });
}
