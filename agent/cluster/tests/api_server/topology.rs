//! NodeResourceTopology against a real API server: written where the resource is installed, and never over another
//! writer's.

use std::time::{Duration, Instant};

use plimsoll_core::kube::node_resource_topology::{Alignment, Amounts, NodeTopology, Zone};

use super::*;

const OBJECTS: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";

/// The resource as the scheduler's plugin reads it, in the fewest words.
fn resource() -> Value {
    let text = json!({"type": "string"});
    let quantity = json!({"x-kubernetes-int-or-string": true});
    let list = |properties: Value, required: &[&str]| json!({"type": "array", "items": {"type": "object", "properties": properties, "required": required}});
    let attributes = list(json!({"name": text, "value": text}), &["name", "value"]);
    let costs = list(
        json!({"name": text, "value": {"type": "integer", "format": "int64"}}),
        &["name", "value"],
    );
    let resources = list(
        json!({"name": text, "capacity": quantity, "allocatable": quantity, "available": quantity}),
        &["name", "capacity", "allocatable", "available"],
    );
    let zones = list(
        json!({"name": text, "type": text, "parent": text, "costs": costs, "attributes": attributes, "resources": resources}),
        &["name", "type"],
    );
    let schema = json!({"type": "object", "required": ["zones"], "properties": {"zones": zones, "attributes": attributes,
        "topologyPolicies": {"type": "array", "items": text}}});
    json!({
        "metadata": {"name": "noderesourcetopologies.topology.node.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"}},
        "spec": {"group": "topology.node.k8s.io", "scope": "Cluster",
            "names": {"kind": "NodeResourceTopology", "plural": "noderesourcetopologies", "singular": "noderesourcetopology"},
            "versions": [{"name": "v1alpha2", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    })
}

fn frame(available: u64) -> ToCluster {
    let amounts = Amounts {
        capacity: 1000,
        allocatable: 999,
        available,
    };
    ToCluster::NodeTopology {
        topology: Box::new(NodeTopology {
            zones: vec![Zone {
                distances: vec![10],
                resources: [("cpu".to_owned(), amounts)].into(),
            }],
            alignment: Some(Alignment {
                policy: "single-numa-node".to_owned(),
                scope: "container".to_owned(),
            }),
            pods: Vec::new(),
        }),
    }
}

fn available(object: &Value) -> Value {
    object["zones"][0]["resources"][0]["available"].clone()
}

/// As another program would write it.
async fn written_by_another(server: &Server, name: &str) {
    let object = json!({"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name},
        "zones": [{"name": "node-0", "type": "Node"}]});
    let call = Call {
        verb: Verb::Post,
        resource: "test",
        path: format!("{OBJECTS}?fieldManager=nfd-master"),
        content: Content::Json,
        body: object.to_string().into_bytes(),
    };
    server.must(&call).await;
}

/// Until the object has what this frame or a later one says; what it has.
async fn written(server: &Server, path: &str, at_least: u64) -> u64 {
    until("the change", async || {
        let text = available(&server.get(path).await?);
        let now = text.as_str()?.parse().ok()?;
        (now >= at_least).then_some(now)
    })
    .await
}

async fn is_so(program: &Program, of: &str) -> Option<()> {
    let is_so = program
        .metric("node_topology", &format!("of=\"{of}\""))
        .await;
    (is_so > 0.0).then_some(())
}

/// What a scheduler waits for at most, noted; and that it costs the API server a write in three seconds at most.
#[test]
fn a_change_is_soon_in_the_object_which_is_seldom_written() {
    const PACE: Duration = Duration::from_secs(3);
    const ALONE: u64 = 5;
    const IN_A_ROW: u64 = 30;
    run(async {
        let Some(server) = Server::start().await else {
            return;
        };
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        server.create(path, &resource()).await;
        let option = ["--node-resource-topology"];
        let (mut agent, _program) = beside(&server, "numa-aged", "v1.36.2", &option).await;
        let path = format!("{OBJECTS}/numa-aged");
        agent.send(&frame(1)).await;
        written(&server, &path, 1).await;
        let mut alone = Vec::new();
        for change in 2..2 + ALONE {
            tokio::time::sleep(PACE).await;
            let sent = Instant::now();
            agent.send(&frame(change)).await;
            written(&server, &path, change).await;
            alone.push(sent.elapsed());
        }
        let generation = async || {
            let object = server.get(&path).await.unwrap();
            object["metadata"]["generation"].as_u64().unwrap()
        };
        let (began, before) = (Instant::now(), generation().await);
        let (mut waiting, mut in_a_row) = (Vec::new(), Vec::new());
        for change in 100..100 + IN_A_ROW {
            agent.send(&frame(change)).await;
            waiting.push((change, Instant::now()));
            tokio::time::sleep(Duration::from_millis(400)).await;
            let is = written(&server, &path, 0).await;
            in_a_row.extend(
                waiting
                    .extract_if(.., |(change, _)| *change <= is)
                    .map(|(_, sent)| sent.elapsed()),
            );
        }
        written(&server, &path, 99 + IN_A_ROW).await;
        in_a_row.extend(waiting.iter().map(|(_, sent)| sent.elapsed()));
        let (writes, took) = (generation().await - before, began.elapsed());
        for ages in [&mut alone, &mut in_a_row] {
            ages.sort_unstable();
        }
        let median_and_longest = |ages: &[Duration]| (ages[ages.len() / 2], ages[ages.len() - 1]);
        support::notes::note(format_args!(
            "a change is in the NodeResourceTopology, median and longest, after {:?} alone, after {:?} of {IN_A_ROW} in a row in {took:?}, which were {writes} writes",
            median_and_longest(&alone),
            median_and_longest(&in_a_row)
        ));
        assert!(writes > 1);
        assert!(
            PACE * u32::try_from(writes - 1).unwrap() <= took,
            "{writes} writes in {took:?}"
        );
    });
}

#[test]
fn what_numa_nodes_have_left_is_written_by_one_writer() {
    run(async {
        let Some(server) = Server::start().await else {
            return;
        };
        let option = ["--node-resource-topology"];
        let (mut agent, program) = beside(&server, "numa", "v1.36.2", &option).await;
        agent.send(&frame(7)).await;
        until("that there is no such resource", async || {
            is_so(&program, "absent").await
        })
        .await;
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        server.create(path, &resource()).await;
        let path = format!("{OBJECTS}/numa");
        let object = until("the object", async || server.get(&path).await).await;
        assert_eq!(available(&object), "7");
        let node = server.get("/api/v1/nodes/numa").await.unwrap();
        let owner = &object["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], node["metadata"]["uid"]);
        assert_eq!(object["zones"][0]["costs"][0]["value"], 10);
        assert_eq!(object["attributes"][0]["value"], "single-numa-node");
        agent.send(&frame(3)).await;
        until("the change", async || {
            (available(&server.get(&path).await?) == "3").then_some(())
        })
        .await;
        until("that it is written", async || {
            is_so(&program, "written").await
        })
        .await;
        // Another writer takes it over: from then on it is left alone.
        let taken = |object: &mut Value| {
            object["zones"] = json!([{"name": "node-0", "type": "Node", "resources": [
                {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"}]}]);
        };
        let query = "?fieldManager=nfd-master";
        server.change(&path, query, taken).await;
        agent.send(&frame(2)).await;
        until("that it is another's", async || {
            is_so(&program, "foreign").await
        })
        .await;
        assert_eq!(available(&server.get(&path).await.unwrap()), "8");
        drop(program);

        // Uninstalled: what was written here goes, what another wrote stays.
        let (mut agent, program) = beside(&server, "numa-second", "v1.36.2", &option).await;
        agent.send(&frame(1)).await;
        let second = format!("{OBJECTS}/numa-second");
        until("the object", async || server.get(&second).await).await;
        drop(program);
        clean_up(&server, "numa-second").await;
        assert!(server.get(&second).await.is_none());
        written_by_another(&server, "numa-other").await;
        server.node("numa-other", "v1.36.2").await;
        clean_up(&server, "numa-other").await;
        let other = format!("{OBJECTS}/numa-other");
        assert!(server.get(&other).await.is_some());

        // A token that names no node may write none: as the policy of deploy/ says.
        if !bind(&server).await {
            return support::notes::left_out("policies of admission: Kubernetes 1.30 and later");
        }
        let (mut agent, program) = beside(&server, "numa-bound", "v1.36.2", &option).await;
        let mut at = 0;
        until("that the policy refuses it", async || {
            at += 1;
            agent.send(&frame(at % 7)).await;
            is_so(&program, "failed").await
        })
        .await;
    });
}

/// The policy for these objects, for the user of the program under test. `false`: this server knows none.
async fn bind(server: &Server) -> bool {
    let text = include_str!("../../../../deploy/base/admission-policy.yaml").replace(
        "^system:serviceaccount:[^:]+:([^:]+-)?plimsoll$",
        "^cluster$",
    );
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policies = format!("{group}/validatingadmissionpolicies");
    if server.get(&policies).await.is_none() {
        return false;
    }
    for object in objects {
        let collection = match object["kind"].as_str() {
            Some("ValidatingAdmissionPolicy") => "validatingadmissionpolicies",
            _ => "validatingadmissionpolicybindings",
        };
        if object["metadata"]["name"] == "plimsoll-topologies" {
            server
                .create(&format!("{group}/{collection}"), &object)
                .await;
        }
    }
    true
}
