//! What the token of a node may change: the policies of `deploy/base/admission-policy.yaml`, asked with a token as the
//! pod of the DaemonSet has it, which names its node; and what that of the arbitrator may change.
//!
//! A call that is to be refused is first made by the administrator, as a dry run: one that the API server takes for no
//! change, or refuses by itself, would show nothing.

use plimsoll_cluster::api::{Api, Source};
use plimsoll_cluster::call::Answer;
use plimsoll_cluster::metrics::Metrics;

use super::*;

const POLICIES: &str = include_str!("../../../../deploy/base/admission-policy.yaml");
const ROLE: &str = include_str!("../../../../deploy/base/rbac.yaml");
const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const NODE: &str = "bound";
/// What components add to the role: the taint, and the retention of evicted pods.
const MORE_RIGHTS: [(&str, &str); 2] = [("nodes", "patch"), ("pods", "delete")];

/// Changes of `pods/status` that no eviction makes.
fn of_a_pods_status() -> Vec<(&'static str, Value)> {
    let container = json!([{"name": "app", "ready": true, "restartCount": 1, "image": "i", "imageID": "i", "state": {"running": {}}}]);
    vec![
        (
            "metadata",
            json!({"metadata": {"finalizers": ["example.com/kept"]}}),
        ),
        ("label", json!({"metadata": {"labels": {"app": "web"}}})),
        ("label", json!({"metadata": {"labels": null}})),
        (
            "annotation",
            json!({"metadata": {"annotations": {"example.com/a": "b"}}}),
        ),
        (
            "annotation",
            json!({"metadata": {"annotations": {"plimsoll.dev/evict-after": "2026-11-22T10:00:00Z"}}}),
        ),
        (
            "annotation",
            json!({"metadata": {"annotations": {"example.com/owner": null}}}),
        ),
        ("phase", json!({"status": {"phase": "Succeeded"}})),
        (
            "condition",
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        ),
        (
            "status",
            json!({"status": {"hostIP": "192.0.2.9", "hostIPs": [{"ip": "192.0.2.9"}]}}),
        ),
        (
            "status",
            json!({"status": {"podIP": "192.0.2.9", "podIPs": [{"ip": "192.0.2.9"}]}}),
        ),
        (
            "status",
            json!({"status": {"startTime": "2026-11-22T10:00:00Z"}}),
        ),
        ("status", json!({"status": {"startTime": null}})),
        (
            "status",
            json!({"status": {"containerStatuses": container}}),
        ),
        (
            "status",
            json!({"status": {"ephemeralContainerStatuses": container}}),
        ),
        (
            "status",
            json!({"status": {"initContainerStatuses": container}}),
        ),
    ]
}

/// Changes of a node's metadata.
fn of_a_nodes_metadata() -> Vec<(&'static str, Value)> {
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "away", "uid": "1"}]);
    vec![
        (
            "metadata",
            json!({"metadata": {"finalizers": ["example.com/kept"]}}),
        ),
        ("metadata", json!({"metadata": {"ownerReferences": owner}})),
        ("metadata", json!({"metadata": {"labels": {"zone": "a"}}})),
        ("metadata", json!({"metadata": {"labels": null}})),
        (
            "annotation",
            json!({"metadata": {"annotations": {"plimsoll.dev/overused": "{}"}}}),
        ),
        (
            "annotation",
            json!({"metadata": {"annotations": {"example.com/owner": null}}}),
        ),
    ]
}

/// Changes of `nodes/status` that are the kubelet's, or a controller's.
fn of_a_nodes_status() -> Vec<(&'static str, Value)> {
    let status = [
        json!({"nodeInfo": {"kubeletVersion": "v1.0.0"}}),
        json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}),
        json!({"volumesAttached": [{"name": "v", "devicePath": "/dev/v"}]}),
        json!({"volumesInUse": ["v"]}),
        json!({"images": [{"names": ["i"], "sizeBytes": 1}]}),
        json!({"images": null}),
        json!({"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}),
        json!({"capacity": {"cpu": "64"}}),
        json!({"allocatable": {"cpu": "64"}}),
        json!({"phase": "Terminated"}),
    ];
    let status = status.map(|status| ("status", json!({"status": status})));
    let condition = (
        "conditions",
        json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
    );
    let mut all = of_a_nodes_metadata();
    all.extend(status);
    all.push(condition);
    all
}

/// Changes of `nodes`, which are for the taint alone.
fn of_a_node() -> Vec<(&'static str, Value)> {
    let taint = json!([{"key": "example.com/out", "effect": "NoExecute"}]);
    let mut all = of_a_nodes_metadata();
    all.extend([
        ("taints", json!({"spec": {"taints": taint}})),
        ("taints of a node", json!({"spec": {"unschedulable": true}})),
        ("taints of a node", json!({"spec": {"providerID": "p://1"}})),
        (
            "taints of a node",
            json!({"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}),
        ),
    ]);
    all
}

fn dry(path: &str, content: Content, body: &Value) -> Call {
    Call::write(Verb::Patch, "test", path, content, body, true)
}

/// What a write leaves that changes nothing else.
fn compared(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for own in ["managedFields", "resourceVersion"] {
        metadata.remove(own);
    }
    object
}

/// What the API server says to the token, however often it has to be asked.
async fn said(token: &Api, call: &Call) -> Answer {
    until(&format!("an answer to {}", call.path), async || {
        let answer = token.call(call).await;
        match &answer {
            Answer::Lost(_) => None,
            Answer::Refused(refusal) if refusal.is_passing() => None,
            _ => Some(answer),
        }
    })
    .await
}

/// The change is one, and the policy refuses it with these words.
async fn is_refused(
    server: &Server,
    token: &Api,
    (policy, words): (&str, &str),
    path: &str,
    patch: &Value,
) {
    // Lists as they are given: each is to be what the API server stores.
    let content = if patch["status"]["conditions"].is_null() {
        Content::Merge
    } else {
        Content::StrategicMerge
    };
    let object = path.trim_end_matches("/status");
    let before = compared(server.get(object).await.unwrap());
    let call = dry(path, content, patch);
    let after = compared(server.must(&call).await);
    assert_ne!(before, after, "{path} {patch}: changes nothing");
    let answer = said(token, &call).await;
    let Answer::Refused(refusal) = &answer else {
        panic!("{path} {patch}: is not refused");
    };
    let message = &refusal.message;
    assert!(
        refusal.code == 422 && message.contains(policy) && message.contains(words),
        "{path} {patch}: {refusal:?}"
    );
}

/// The role and the account of `deploy/base`, with what components add, and the policies. `false`: this server knows
/// none.
async fn install(server: &Server) -> bool {
    if !knows_policies(server).await {
        return false;
    }
    let namespace = json!({"metadata": {"name": "plimsoll"}});
    server.create("/api/v1/namespaces", &namespace).await;
    let account = json!({"metadata": {"name": "plimsoll"}});
    let accounts = "/api/v1/namespaces/plimsoll/serviceaccounts";
    server.create(accounts, &account).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for mut object in serde_saphyr::from_multiple::<Value>(ROLE).unwrap() {
        // The other tests' rights have the name of the base.
        object["metadata"]["name"] = json!("plimsoll-base");
        let collection = if object["kind"] == "ClusterRole" {
            let rules = object["rules"].as_array_mut().unwrap();
            rules.extend(MORE_RIGHTS.map(
                |(resource, verb)| json!({"apiGroups": [""], "resources": [resource], "verbs": [verb]}),
            ));
            "clusterroles"
        } else {
            object["roleRef"]["name"] = json!("plimsoll-base");
            // Which Kustomize writes.
            object["subjects"][0]["namespace"] = json!("plimsoll");
            "clusterrolebindings"
        };
        server
            .create(&format!("{rbac}/{collection}"), &object)
            .await;
    }
    make_policies(server, serde_saphyr::from_multiple(POLICIES).unwrap()).await;
    true
}

/// Whether this server knows them, as from Kubernetes 1.30 on.
pub(super) async fn knows_policies(server: &Server) -> bool {
    let policies = format!("{GROUP}/validatingadmissionpolicies");
    server.get(&policies).await.is_some()
}

pub(super) async fn make_policies(server: &Server, objects: Vec<Value>) {
    for object in objects {
        let collection = match object["kind"].as_str() {
            Some("ValidatingAdmissionPolicy") => "validatingadmissionpolicies",
            _ => "validatingadmissionpolicybindings",
        };
        server
            .create(&format!("{GROUP}/{collection}"), &object)
            .await;
    }
}

/// The token of a pod of the account, on this node.
async fn token_of_a_pod(server: &Server, node: &str) -> String {
    let name = format!("plimsoll-{node}");
    let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "serviceAccountName": "plimsoll",
        "containers": [{"name": "cluster", "image": "i"}]}});
    let pod = server
        .create("/api/v1/namespaces/plimsoll/pods", &pod)
        .await;
    let bound =
        json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]});
    let request = json!({"spec": {"boundObjectRef": bound, "expirationSeconds": 36_000}});
    let path = "/api/v1/namespaces/plimsoll/serviceaccounts/plimsoll/token";
    let answer = server.create(path, &request).await;
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// What a kubelet and the controllers have written of a node and of a pod.
async fn fill(server: &Server, node: &str, pods: &[&str]) {
    let path = format!("/api/v1/nodes/{node}");
    let meta = json!({"metadata": {"labels": {"zone": "b"}, "annotations": {"example.com/owner": "b"}, "finalizers": ["example.com/first"]},
        "spec": {"taints": [{"key": "example.com/first", "effect": "NoSchedule"}]}});
    server.merge(&path, &meta).await;
    let status = json!({"status": {
        "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"}, "allocatable": {"cpu": "7500m", "memory": "15Gi", "pods": "110"},
        "addresses": [{"type": "Hostname", "address": node}], "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "images": [{"names": ["a", "b"], "sizeBytes": 12}], "volumesInUse": ["a"], "volumesAttached": [{"name": "a", "devicePath": ""}]}});
    server.merge(&format!("{path}/status"), &status).await;
    for pod in pods {
        let meta = json!({"metadata": {"annotations": {"example.com/owner": "b"}}});
        server.merge(&pod_path(pod), &meta).await;
        let container = json!([{"name": "app", "ready": true, "restartCount": 3, "image": "i", "imageID": "i", "started": true,
            "state": {"running": {"startedAt": "2026-11-22T09:00:00Z"}}}]);
        let status = json!({"status": {"hostIP": "192.0.2.1", "podIP": "192.0.2.2", "startTime": "2026-11-22T09:00:00Z", "containerStatuses": container}});
        server
            .merge(&format!("{}/status", pod_path(pod)), &status)
            .await;
    }
}

#[test]
fn the_token_of_a_node_changes_what_an_eviction_needs_and_nothing_else() {
    run(async {
        let Some(server) = Server::start().await else {
            return;
        };
        if !install(&server).await {
            return support::notes::left_out("policies of admission: Kubernetes 1.30 and later");
        }
        for node in [NODE, "other"] {
            server.node(node, "v1.36.2").await;
        }
        let mut uids = Vec::new();
        for name in ["bound-0", "bound-1"] {
            uids.push(server.pod(NODE, name).await);
        }
        server.pod("other", "other-0").await;
        fill(&server, NODE, &["bound-0", "bound-1"]).await;
        fill(&server, "other", &["other-0"]).await;
        let token = token_of_a_pod(&server, NODE).await;
        let kubeconfig = server.kubeconfig_of("bound.conf", &token);
        let source = Source::Kubeconfig(kubeconfig.clone());
        let api = Api::new(source, Metrics::new().into()).await.unwrap();

        // The API server hears of policies by a watch of its own.
        let path = format!("{}/status", pod_path("other-0"));
        let patch = json!({"status": {"reason": "Evicted"}});
        until("the policies to be in force", async || {
            match api.call(&dry(&path, Content::Merge, &patch)).await {
                Answer::Refused(refusal) => refusal.message.contains("plimsoll-pods").then_some(()),
                _ => None,
            }
        })
        .await;
        let nodes = format!("/api/v1/nodes/{NODE}");
        until("the policy of nodes to be in force", async || {
            let path = "/api/v1/nodes/other/status";
            let patch = json!({"status": {"conditions": [{"type": "plimsoll.dev/Stalled", "status": "True"}]}});
            match api.call(&dry(path, Content::StrategicMerge, &patch)).await {
                Answer::Refused(refusal) => {
                    refusal.message.contains("plimsoll-nodes").then_some(())
                }
                _ => None,
            }
        })
        .await;

        let mut refused = 0;
        let all = [
            (
                "plimsoll-pods",
                path_of_status("bound-0"),
                of_a_pods_status(),
            ),
            (
                "plimsoll-nodes",
                format!("{nodes}/status"),
                of_a_nodes_status(),
            ),
            ("plimsoll-nodes", nodes.clone(), of_a_node()),
        ];
        for (policy, path, patches) in all {
            for (words, patch) in patches {
                is_refused(&server, &api, (policy, words), &path, &patch).await;
                refused += 1;
            }
        }
        support::notes::note(format_args!("{refused} changes are refused"));

        // Everything that the program does passes, also where a pod's annotations are full; one of the pods is being
        // deleted.
        fill_annotations(&server, "bound-0").await;
        let mut agent = Agent::new();
        let options = ["--taint-on-pressure"];
        let program = Program::start(NODE, &kubeconfig, &agent.socket(), &options);
        agent.accept().await;
        let leaving = Call::write(
            Verb::Delete,
            "test",
            &pod_path("bound-1"),
            Content::Json,
            &json!({"gracePeriodSeconds": 3_600}),
            false,
        );
        server.must(&leaving).await;
        agent
            .until("the list", |known| known.is_listed && known.pods.len() > 2)
            .await;
        for (at, uid) in uids.iter().enumerate() {
            agent
                .evict(uid, &format!("bound-{at}"), DECIDED_MS, 0)
                .await;
        }
        agent
            .until("the reports", |known| {
                uids.iter().all(|uid| known.is_told(uid))
            })
            .await;
        for at in 0..2 {
            let pod = server.seen(&format!("bound-{at}")).await;
            assert_eq!(pod["status"]["reason"], "Evicted", "{pod:#}");
            assert_eq!(pod["status"]["hostIP"], "192.0.2.1");
        }
        agent
            .send(&ToCluster::Withheld { memory_bytes: 4096 })
            .await;
        for status in [true, false] {
            agent.send(&pressure(status)).await;
            until("conditions and the taint", async || {
                let node = server.get(&nodes).await?;
                let conditions = node["status"]["conditions"].as_array()?;
                let written = if status { "True" } else { "False" };
                let has_condition = conditions.iter().any(|it| {
                    it["type"] == "plimsoll.dev/MemoryPressure" && it["status"] == written
                });
                let taints = node["spec"]["taints"].as_array()?;
                let has_taint = taints
                    .iter()
                    .any(|it| it["key"] == "plimsoll.dev/memory-pressure");
                (has_condition && has_taint == status).then_some(())
            })
            .await;
        }
        let label = &server.seen("bound-0").await["metadata"]["labels"]["plimsoll.dev/evicted"];
        assert_eq!(*label, "2026-11-22T10.00.00.123Z.1");
        // That annotations are full is heard from the first try.
        let refused = program.metric("api_calls_total", "code=\"422\"").await;
        assert!(refused == 1.0, "{}", program.page("/metrics").await);
    });
}

#[test]
fn the_token_of_the_arbitrator_changes_what_it_writes_and_nothing_else() {
    run(async {
        let Some(server) = Server::start().await else {
            return;
        };
        if !knows_policies(&server).await {
            return support::notes::left_out("policies of admission: Kubernetes 1.30 and later");
        }
        server.node(NODE, "v1.36.2").await;
        server.pod(NODE, "bound-0").await;
        fill(&server, NODE, &["bound-0"]).await;
        arbitrator::namespace(&server, "plimsoll").await;
        arbitrator::account(&server).await;
        let source = Source::Kubeconfig(arbitrator::kubeconfig(&server));
        let api = Api::new(source, Metrics::new().into()).await.unwrap();
        let (pod, node) = (
            path_of_status("bound-0"),
            format!("/api/v1/nodes/{NODE}/status"),
        );
        for (policy, path, patch) in [
            (
                "plimsoll-arbitrator-pods",
                &pod,
                json!({"status": {"reason": "Evicted"}}),
            ),
            (
                "plimsoll-arbitrator-nodes",
                &node,
                json!({"status": {"phase": "Terminated"}}),
            ),
        ] {
            until("the policies to be in force", async || {
                match api.call(&dry(path, Content::Merge, &patch)).await {
                    Answer::Refused(refusal) => refusal.message.contains(policy).then_some(()),
                    _ => None,
                }
            })
            .await;
        }

        // What no eviction by its node makes is no write of the arbitrator either, but for the notice; nor is what that
        // makes.
        let is_notice =
            |patch: &Value| !patch["metadata"]["annotations"]["plimsoll.dev/evict-after"].is_null();
        let mut of_a_pod = of_a_pods_status();
        of_a_pod.retain(|(_, patch)| !is_notice(patch));
        of_a_pod.extend([
            ("status", json!({"status": {"phase": "Failed"}})),
            (
                "status",
                json!({"status": {"reason": "Evicted", "message": "m"}}),
            ),
            (
                "status",
                json!({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}}),
            ),
            (
                "annotation",
                json!({"metadata": {"annotations": {"plimsoll.dev/evicted": "x"}}}),
            ),
            (
                "metadata",
                json!({"metadata": {"labels": {"plimsoll.dev/evict-after": "x"}}}),
            ),
        ]);
        let is_list =
            |patch: &Value| !patch["metadata"]["annotations"]["plimsoll.dev/overused"].is_null();
        let mut of_a_node = of_a_nodes_status();
        of_a_node.retain(|(_, patch)| !is_list(patch));
        of_a_node.extend([
            (
                "status",
                json!({"status": {"conditions": [{"type": "plimsoll.dev/Stalled", "status": "True"}]}}),
            ),
            (
                "annotation",
                json!({"metadata": {"annotations": {"plimsoll.dev/withheld": "{}"}}}),
            ),
        ]);
        let mut refused = 0;
        for (policy, path, patches) in [
            ("plimsoll-arbitrator-pods", &pod, of_a_pod),
            ("plimsoll-arbitrator-nodes", &node, of_a_node),
        ] {
            for (_, patch) in patches {
                is_refused(&server, &api, (policy, "may be changed"), path, &patch).await;
                refused += 1;
            }
        }
        support::notes::note(format_args!("{refused} changes are refused"));

        // What it writes, each after the other, as bodies of `arbitrate/writes.rs`. Only a pod that waits has a hole.
        let waiting = json!({"metadata": {"name": "waits-0", "annotations": {"example.com/owner": "b"}},
            "spec": {"containers": [{"name": "app", "image": "i"}]}});
        let waiting = server
            .create("/api/v1/namespaces/shop/pods", &waiting)
            .await;
        let waits = path_of_status("waits-0");
        let of_pod = |annotation: &str, value: Value| json!({"metadata": {"annotations": {annotation: value}}});
        let overused =
            |value: Value| json!({"metadata": {"annotations": {"plimsoll.dev/overused": value}}});
        let mut hole = of_pod("plimsoll.dev/room-on", json!(NODE));
        hole["metadata"]["uid"] = waiting["metadata"]["uid"].clone();
        hole["status"] = json!({"nominatedNodeName": NODE});
        let mut no_hole = of_pod("plimsoll.dev/room-on", Value::Null);
        no_hole["status"] = json!({"nominatedNodeName": null});
        for (path, patch) in [
            (
                &pod,
                of_pod("plimsoll.dev/evict-after", json!("2026-11-22T10:00:00Z")),
            ),
            (&waits, hole),
            (&waits, no_hole),
            (&pod, of_pod("plimsoll.dev/evict-after", Value::Null)),
            (&node, overused(json!("{}"))),
            (&node, overused(Value::Null)),
        ] {
            let before = compared(server.get(path.trim_end_matches("/status")).await.unwrap());
            let call = Call::write(Verb::Patch, "test", path, Content::Merge, &patch, false);
            let answer = said(&api, &call).await;
            assert!(matches!(answer, Answer::Done(_)), "{patch}: {answer:?}");
            let after = compared(server.get(path.trim_end_matches("/status")).await.unwrap());
            assert_ne!(before, after, "{patch}: changes nothing");
        }
    });
}

fn path_of_status(pod: &str) -> String {
    format!("{}/status", pod_path(pod))
}
