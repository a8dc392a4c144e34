//! NodeResourceTopology against a real API server: written where the resource is installed, and never over another writer's.

use plimsoll_core::kube::node_topology::{Alignment, Amounts, NodeTopology, Zone};

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
        capacity: 8,
        allocatable: 7,
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

async fn is_so(program: &Program, of: &str) -> Option<()> {
    let is_so = program
        .metric("node_topology", &format!("of=\"{of}\""))
        .await;
    (is_so > 0.0).then_some(())
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
