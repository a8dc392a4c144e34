//! The node itself, and the rights that it takes.

use std::time::Duration;

use plimsoll_cluster::call::Answer;
use plimsoll_cluster::report::pressure::{OVERUSED, OverusedList, read_withheld};
use plimsoll_core::protocol::cluster_link::WITHHELD_ANNOTATION;

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

/// What a writer has written of something that is its alone.
#[derive(Default)]
struct Written {
    /// What was taken last; 0: nothing yet.
    last: u64,
    /// What may have been taken or not, or may be taken later: the answers were lost.
    unsure: BTreeSet<u64>,
}

impl Written {
    fn may_be(&self, found: u64) -> bool {
        found == self.last || self.unsure.contains(&found)
    }

    /// What became of a call that wrote `at`. Whether another one has changed the object that the call names.
    fn answered(&mut self, at: u64, answer: &Answer) -> bool {
        match answer {
            Answer::Done(_) => self.last = at,
            Answer::Refused(refusal) if refusal.code == 409 => return true,
            // A busy API server, or none.
            Answer::Refused(_) | Answer::Lost(_) => {
                self.unsure.insert(at);
            }
        }
        false
    }
}

/// Another writer of a node, who writes all the time and heeds resource versions as everybody should: it alone writes
/// the condition `Other` and the taint `other`, and finds each as it left it.
struct Rival<'a> {
    server: &'a Server,
    path: &'a str,
    condition: Written,
    taint: Written,
    /// Taints that the API server did not take, because another one had written the node meanwhile.
    conflicts: u64,
}

impl Rival<'_> {
    /// The node, with what this one has written there.
    async fn seen(&self) -> Value {
        let node = self.server.get(self.path).await.unwrap();
        let number = |found: &Value| -> u64 {
            let text = found.as_str().unwrap_or("0");
            text.trim_start_matches('R').parse().unwrap()
        };
        let condition = number(&condition_of(&node, "Other")["reason"]);
        assert!(self.condition.may_be(condition), "a condition lost: {node}");
        let values = |key: &str| -> Vec<&Value> {
            let taints = node["spec"]["taints"].as_array().into_iter().flatten();
            let of_key = taints.filter(|taint| taint["key"] == key);
            of_key.map(|taint| &taint["value"]).collect()
        };
        let taints = values("other");
        assert!(taints.len() < 2, "{node}");
        let taint = taints.first().map_or(0, |value| number(value));
        assert!(self.taint.may_be(taint), "a taint lost: {node}");
        assert_eq!(values("standing"), [&json!("always")], "a taint lost");
        node
    }

    /// Writes both once.
    async fn write(&mut self, at: u64) {
        let status = json!({"status": {"conditions": [{"type": "Other", "status": "True", "reason": format!("R{at}")}]}});
        let path = format!("{}/status", self.path);
        let call = |path: &str, content, body: &Value| {
            Call::write(Verb::Patch, "test", path, content, body, false)
        };
        let call_of_status = call(&path, Content::StrategicMerge, &status);
        let answer = self.server.admin.call(&call_of_status).await;
        self.condition.answered(at, &answer);
        let node = self.seen().await;
        let mut taints = node["spec"]["taints"].as_array().cloned().unwrap();
        taints.retain(|taint| taint["key"] != "other");
        taints.push(json!({"key": "other", "value": at.to_string(), "effect": "PreferNoSchedule"}));
        let body = json!({"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": taints}});
        let answer = (self.server.admin)
            .call(&call(self.path, Content::Merge, &body))
            .await;
        self.conflicts += u64::from(self.taint.answered(at, &answer));
    }
}

/// Scenarios 10 and 11: beside another one that writes the node without a pause.
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
        let standing = json!({"key": "standing", "value": "always", "effect": "PreferNoSchedule"});
        server
            .merge(path, &json!({"spec": {"taints": [standing]}}))
            .await;
        let mut rival = Rival {
            server: &server,
            path,
            condition: Written::default(),
            taint: Written::default(),
            conflicts: 0,
        };
        let stop = AtomicBool::new(false);
        let others = async {
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                at += 1;
                rival.write(at).await;
            }
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
        tokio::join!(others, ours);
        let node = rival.seen().await;
        assert!(rival.condition.last > 0, "its condition was never taken");
        assert!(rival.taint.last > 0, "its taint was never taken");
        assert_eq!(condition_of(&node, "Ready")["status"], "True");
        support::notes::note(format_args!(
            "another writer of the node: {} rounds, {} conflicts; plimsoll-cluster: {} conflicts",
            rival.condition.last,
            rival.conflicts,
            program
                .metric("api_calls_total", "resource=\"nodes\",code=\"409\"")
                .await
        ));
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
        rival.seen().await;
        assert!(
            !keys.contains(&&json!("plimsoll.dev/memory-pressure")),
            "{node:#}"
        );
    });
}

/// What the program may do where it is installed as it is.
const INSTALLED: &str = include_str!("../../../../deploy/base/rbac.yaml");

/// The rights of these rules, one by one.
fn each_right(rules: &Value) -> BTreeSet<[String; 3]> {
    let words = |rule: &Value, key: &str| -> Vec<String> {
        let words = rule[key].as_array().into_iter().flatten();
        words
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    let mut all = BTreeSet::new();
    for rule in rules.as_array().unwrap() {
        for group in words(rule, "apiGroups") {
            for resource in words(rule, "resources") {
                let right = |verb| [group.clone(), resource.clone(), verb];
                all.extend(words(rule, "verbs").into_iter().map(right));
            }
        }
    }
    all
}

/// Scenario 12: the installed rights suffice, and no call is made that they do not allow; without them the call is
/// refused and the eviction given up; a token that has expired is replaced by the one in its file.
#[test]
fn rights_and_tokens() {
    run(async {
        let Some(server) = Server::start().await else {
            return;
        };
        let uid = server.pod("rights", "rights-0").await;
        let kept = server.pod("rights", "rights-1").await;
        let (mut agent, program) = beside(&server, "rights", "v1.36.2", &[]).await;
        let least: [(&str, &str, &[&str]); 5] = [
            ("", "pods", &["get", "list", "watch"]),
            ("", "pods/status", &["patch"]),
            ("", "nodes", &["get", "list", "watch"]),
            ("", "nodes/status", &["patch"]),
            ("events.k8s.io", "events", &["create", "patch"]),
        ];
        let role: Vec<Value> = serde_saphyr::from_multiple(INSTALLED).unwrap();
        let rules: Vec<Value> = least
            .iter()
            .map(|(group, resource, verbs)| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs}))
            .collect();
        assert_eq!(each_right(&role[0]["rules"]), each_right(&json!(rules)));
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
        // Each of the writes was made.
        for write in [
            "verb=\"PATCH\",resource=\"pods/status\",code=\"200\"",
            "verb=\"PATCH\",resource=\"nodes/status\",code=\"200\"",
            "verb=\"POST\",resource=\"events\",code=\"201\"",
        ] {
            until(write, async || {
                (program.metric("api_calls_total", write).await > 0.0).then_some(())
            })
            .await;
        }
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
        // The API server knows the first token no more, and the file has another one.
        server.stop();
        server.replace_token("another-token");
        server.run().await;
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
            let text = node["metadata"]["annotations"][WITHHELD_ANNOTATION]
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
            node["metadata"]["annotations"][WITHHELD_ANNOTATION]
                .is_null()
                .then_some(())
        })
        .await;
    });
}
