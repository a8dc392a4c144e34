use plimsoll_core::kube::node_resource_topology::{Amounts, Held, Zone};

use super::*;
use crate::pod::tests::api_pod;

fn now(mono_ms: u64) -> Now {
    Now {
        mono_ms,
        unix_ms: 1_795_341_600_000 + mono_ms,
    }
}

fn node() -> SeenNode {
    SeenNode {
        name: "n".into(),
        uid: "nu".into(),
        ..SeenNode::default()
    }
}

fn topology(available: u64) -> NodeTopology {
    let amounts = Amounts {
        capacity: 8,
        allocatable: 7,
        available,
    };
    NodeTopology {
        zones: vec![Zone {
            distances: vec![10],
            resources: [("cpu".to_owned(), amounts)].into(),
        }],
        alignment: None,
        pods: vec![ListedPod {
            namespace: "shop".to_owned(),
            name: "name-u1".to_owned(),
            held: vec![Held {
                zone: 0,
                resource: "cpu".to_owned(),
                amount: 7 - available,
            }],
        }],
    }
}

fn store(pods: &[Value]) -> Store {
    let mut store = Store::new("node-1", false);
    for pod in pods {
        store.saw(pod.to_string().as_bytes());
    }
    store
}

fn refused(code: u16) -> Answer {
    Answer::Refused(Refusal {
        code,
        message: "conflict with \"nfd-master\" using topology.node.k8s.io/v1alpha2: .zones"
            .to_owned(),
        ..Refusal::default()
    })
}

fn done() -> Answer {
    Answer::Done(b"{}".to_vec())
}

/// The writer in virtual time: the milliseconds at which it writes, with what is available, while the agent says these
/// things at these times.
fn written(
    until_ms: u64,
    said: &[(u64, u64)],
    answer: impl Fn(u64) -> Answer,
) -> Vec<(u64, String)> {
    let (node, pods) = (node(), store(&[]));
    let mut reports = TopologyReports::new(1);
    let mut writes = Vec::new();
    for at in (0..until_ms).step_by(100) {
        for (_, available) in said.iter().filter(|(said_ms, _)| *said_ms == at) {
            reports.want(topology(*available));
        }
        if reports.prepare(Some(&node), &pods, now(at)) {
            let call = reports.send("n", now(at), false);
            let body: Value = serde_json::from_slice(&call.body).unwrap();
            let available = &body["zones"][0]["resources"][0]["available"];
            writes.push((at, available.as_str().unwrap().to_owned()));
            assert!(
                !reports.prepare(Some(&node), &pods, now(at)),
                "one at a time"
            );
            reports.answered(&answer(at), now(at));
        }
    }
    writes
}

#[test]
fn a_change_is_written_within_three_seconds_and_no_two_writes_are_closer() {
    // A burst, a change right after a write, one that is taken back, and silence.
    let said: Vec<(u64, u64)> = (0..40).map(|at| (at * 100, at % 7)).collect();
    let writes = written(20_000, &said, |_| done());
    assert_eq!(writes.first(), Some(&(0, "0".to_owned())));
    assert!(
        writes.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 3_000),
        "{writes:?}"
    );
    // The last word, at 3.9 s.
    assert_eq!(writes.last(), Some(&(6_000, (39 % 7).to_string())));
    let every = |said_ms: u64| {
        let writes = written(20_000, &[(0, 1), (said_ms, 2)], |_| done());
        writes
            .iter()
            .find(|(_, available)| available == "2")
            .unwrap()
            .0
            - said_ms
    };
    assert!(
        (100..9_000)
            .step_by(100)
            .all(|said_ms| every(said_ms) <= 3_000)
    );
    assert_eq!(every(5_000), 0);
    assert_eq!(
        written(20_000, &[(0, 1), (100, 2), (200, 1)], |_| done()).len(),
        1
    );
}

#[test]
fn what_has_not_changed_is_written_every_five_minutes() {
    let writes = written(700_000, &[(0, 1)], |_| done());
    let times: Vec<u64> = writes.iter().map(|it| it.0).collect();
    assert_eq!(times, [0, 300_000, 600_000]);
}

#[test]
fn another_writers_object_is_left_alone_and_an_absent_resource_looked_for() {
    let times = |code: u16| {
        let writes = written(200_000, &[(0, 1), (5_000, 2), (9_000, 3)], |at| match at {
            0..100_000 => refused(code),
            _ => done(),
        });
        writes.iter().map(|it| it.0).collect::<Vec<u64>>()
    };
    assert_eq!(times(409), [0, 60_000, 120_000]);
    assert_eq!(times(404), [0, 30_000, 60_000, 90_000, 120_000]);
    let mut reports = TopologyReports::new(1);
    reports.want(topology(1));
    let mut said = Vec::new();
    for (at, answer) in [
        refused(409),
        refused(409),
        refused(404),
        refused(404),
        done(),
        done(),
    ]
    .iter()
    .enumerate()
    {
        let at = at as u64 * 100_000;
        assert!(reports.prepare(Some(&node()), &store(&[]), now(at)) || at > 400_000);
        reports.send("n", now(at), false);
        reports.answered(answer, now(at));
        said.push(reports.words());
    }
    let counts: Vec<usize> = said.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 0, 1, 0, 1, 0], "{said:?}");
    assert!(said[0][0].contains("nfd-master") && said[2][0].contains("install"));
    assert_eq!(reports.state(now(1_000_000)).0, ObjectState::Written);
}

#[test]
fn failures_are_waited_out_and_the_newest_is_written() {
    let writes = written(60_000, &[(0, 1), (10_000, 2)], |at| match at {
        0..20_000 => Answer::Lost("no route".to_owned()),
        _ => done(),
    });
    assert!(writes.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 3_000));
    assert_eq!(writes.last().unwrap().1, "2");
    assert!(writes.last().unwrap().0 < 60_000);
}

#[test]
fn the_object_names_its_node_and_forces_nothing() {
    let mut reports = TopologyReports::new(1);
    assert!(!reports.prepare(Some(&node()), &store(&[]), now(0)) && reports.is_idle());
    reports.want(topology(3));
    assert!(!reports.prepare(None, &store(&[]), now(0)));
    assert!(reports.prepare(Some(&node()), &store(&[]), now(0)) && !reports.is_idle());
    let call = reports.send("n", now(0), true);
    assert_eq!(
        call.path,
        "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n?fieldManager=plimsoll&dryRun=All"
    );
    assert_eq!(call.content.mime(), "application/apply-patch+yaml");
    let body: Value = serde_json::from_slice(&call.body).unwrap();
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "nu");
    assert_eq!(body["zones"][0]["name"], "node-0");
    assert_eq!(body["zones"][0]["resources"][0]["available"], "3");
    assert_eq!(body["attributes"][0]["name"], "nodeTopologyPodsFingerprint");
}

#[test]
fn what_an_ended_pod_has_is_available_and_a_guaranteed_one_is_counted() {
    let object = |pods: &[Value]| object(&topology(3), &node(), &store(pods));
    let available = |object: &Value| object["zones"][0]["resources"][0]["available"].clone();
    let mut guaranteed = api_pod("u1", "1");
    guaranteed["status"]["qosClass"] = json!("Guaranteed");
    let mut ended = guaranteed.clone();
    ended["status"]["phase"] = json!("Succeeded");
    let running = object(std::slice::from_ref(&guaranteed));
    assert_eq!(available(&running), "3");
    assert_eq!(available(&object(&[ended.clone()])), "7");
    assert_ne!(
        object(&[ended.clone()])["attributes"],
        running["attributes"]
    );
    // Its successor of the same name is there.
    let mut successor = api_pod("u2", "1");
    successor["metadata"]["name"] = json!("name-u1");
    assert_eq!(available(&object(&[ended, successor])), "3");
    let mut idle = topology(3);
    idle.pods[0].held.clear();
    let of = |pods: &[Value]| super::object(&idle, &node(), &store(pods))["attributes"].clone();
    assert_ne!(of(&[guaranteed]), of(&[api_pod("u1", "1")]));
}

#[test]
fn only_what_was_written_here_is_deleted() {
    let object = |manager: &str, operation: &str, field: &str| {
        let entry = json!({"manager": manager, "operation": operation, "fieldsV1": {field: {}}});
        json!({"metadata": {"managedFields": [entry]}}).to_string()
    };
    let here = |object: String| is_written_here(object.as_bytes());
    assert!(here(object("plimsoll", "Apply", "f:zones")));
    assert!(!here(object("nfd-master", "Update", "f:zones")));
    assert!(!here(object("plimsoll", "Apply", "f:metadata")));
    assert!(!here("<html>".to_owned()) && !here("{}".to_owned()));
}

/// The objects of which scheduler-plugins' own code was asked (docs/contributing/build.md), those that are kept with
/// all that they are made of.
#[test]
fn the_object_is_the_one_that_the_plugin_was_asked_of() {
    let vectors = include_str!("../../../../core/src/placement/numa_zones/tests/plugin.jsonl");
    let cases = vectors
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut whole = 0;
    for case in cases.filter(|case| case["frame"].is_object()) {
        let topology: NodeTopology = serde_json::from_value(case["frame"].clone()).unwrap();
        let running = case["running"].as_array().unwrap();
        let object = object(&topology, &node(), &store(running));
        let list = |of: &Value| of.as_array().unwrap().clone();
        let attributes = list(&object["attributes"]).into_iter();
        let attributes: serde_json::Map<String, Value> = attributes
            .map(|it| (it["name"].as_str().unwrap().to_owned(), it["value"].clone()))
            .collect();
        assert_eq!(Value::Object(attributes), case["attributes"]);
        let zones = list(&object["zones"]);
        assert_eq!(zones.len(), list(&case["zones"]).len());
        for (at, (zone, available)) in zones.iter().zip(list(&case["zones"])).enumerate() {
            assert_eq!(zone["name"], format!("node-{at}"));
            assert_eq!(zone["type"], "Node");
            let resources = list(&zone["resources"]).into_iter();
            let resources: serde_json::Map<String, Value> = resources
                .map(|it| {
                    let there: u64 = it["available"].as_str().unwrap().parse().unwrap();
                    (it["name"].as_str().unwrap().to_owned(), there.into())
                })
                .collect();
            assert_eq!(Value::Object(resources), available);
        }
        whole += 1;
    }
    assert!(whole > 5, "{whole}");
}

#[test]
fn a_pod_is_counted_by_what_it_requests() {
    let mut idle = topology(3);
    idle.pods[0].held.clear();
    let mut with_nics = idle.clone();
    let none = ("example.com/nic".to_owned(), Amounts::default());
    with_nics.zones[0].resources.extend([none]);
    let of = |topology: &NodeTopology, class: &str, requests: Value| {
        let mut pod = api_pod("u1", "1");
        pod["spec"]["containers"][0]["resources"]["requests"] = requests;
        pod["status"] = json!({"phase": "Running", "qosClass": class});
        object(topology, &node(), &store(&[pod]))["attributes"].clone()
    };
    let memory = || json!({"memory": "1Gi"});
    let (counted, not) = (
        of(&idle, "Guaranteed", memory()),
        of(&idle, "Burstable", memory()),
    );
    assert_ne!(counted, not);
    // The amounts are the pod's, and no container's.
    assert_eq!(of(&idle, "Guaranteed", json!({})), not);
    // A resource of a zone, even none of it.
    let nic = || json!({"example.com/nic": "0"});
    assert_eq!(of(&idle, "Burstable", nic()), not);
    assert_eq!(of(&with_nics, "Burstable", nic()), counted);
}
