//! The step as a whole: objects in, calls out.

use serde_json::{Value, json};

use super::*;
use crate::call::{Refusal, Verb};
use crate::report::pressure::OVERUSED;

struct World {
    arbiter: Arbiter,
    version: u64,
    ms: u64,
    /// Added to what the clock on the wall says.
    jump_ms: u64,
    /// Pods as the API server has them.
    pods: BTreeMap<String, Value>,
    /// Nobody places pods.
    no_scheduler: bool,
}

fn settings(is_dry: bool) -> Settings {
    Settings {
        times: Times {
            grace_period_ms: 30_000,
            minimum_run_time_ms: 60_000,
        },
        cycle_ms: 1_000,
        evictions_per_second: 10,
        is_dry,
        identity: "one".into(),
        scheduler: "default-scheduler".into(),
    }
}

impl World {
    /// A cluster of one node with 10 CPUs: `a` runs pods of 1 CPU, `b` asks for some.
    fn new(is_dry: bool) -> Self {
        let now = Now {
            mono_ms: 0,
            unix_ms: 1_795_341_600_000,
        };
        let mut world = Self {
            arbiter: Arbiter::new(settings(is_dry), now, 1),
            version: 1,
            ms: 0,
            jump_ms: 0,
            pods: BTreeMap::new(),
            no_scheduler: false,
        };
        world.arbiter.eviction_version = Some("policy/v1".into());
        for kind in Kind::ALL {
            world.arbiter.hear(kind, WatchEvent::List(None));
        }
        world.see(Kind::Nodes, &json!({"metadata": {"name": "n"}, "status": {
            "allocatable": {"cpu": "10", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}}));
        for namespace in ["a", "b"] {
            world.see(Kind::Namespaces, &json!({"metadata": {"name": namespace}}));
            world.consumer(namespace, &json!({"namespace": namespace}));
        }
        for kind in Kind::ALL {
            world.arbiter.hear(kind, WatchEvent::Listed);
        }
        world
    }

    fn see(&mut self, kind: Kind, object: &Value) {
        self.arbiter
            .hear(kind, WatchEvent::Object(object.to_string().into_bytes()));
    }

    fn consumer(&mut self, name: &str, spec: &Value) {
        let object = json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1}, "spec": spec});
        self.see(Kind::Consumers, &object);
    }

    fn pod_object(&mut self, namespace: &str, name: &str, node: Option<&str>) -> Value {
        self.version += 1;
        json!({"metadata": {"name": name, "namespace": namespace, "uid": name, "resourceVersion": self.version.to_string(),
                "creationTimestamp": "2026-11-22T08:00:00Z", "labels": {"app": namespace}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"startTime": node.map(|_| "2026-11-22T08:00:00Z")}})
    }

    fn pod(&mut self, namespace: &str, name: &str, node: Option<&str>) {
        let pod = self.pod_object(namespace, name, node);
        self.see_pod(pod);
    }

    fn see_pod(&mut self, pod: Value) {
        self.see(Kind::Pods, &pod);
        self.pods
            .insert(pod["metadata"]["name"].as_str().unwrap().to_owned(), pod);
    }

    /// The pod is seen with something else in it.
    fn change(&mut self, name: &str, how: impl FnOnce(&mut Value)) {
        let mut pod = self.pods[name].clone();
        how(&mut pod);
        self.see_pod(pod);
    }

    fn gone(&mut self, name: &str) {
        let pod = self.pods.remove(name).unwrap();
        let gone = WatchEvent::Gone(pod.to_string().into_bytes());
        self.arbiter.hear(Kind::Pods, gone);
    }

    /// What a patch of annotations and of the status does.
    fn annotate(&mut self, name: &str, call: &Call) {
        let Some(mut pod) = self.pods.remove(name) else {
            return;
        };
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        self.version += 1;
        for part in ["/metadata/annotations", "/status"] {
            for (key, value) in body
                .pointer(part)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                let (of, name) = part.rsplit_once('/').unwrap();
                let there = &mut pod.pointer_mut(of).unwrap()[name];
                there[key] = value.clone();
                if value.is_null() {
                    there.as_object_mut().unwrap().remove(key);
                }
            }
        }
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.see_pod(pod);
    }

    /// `a` fills the node, and a pod of `b` waits.
    fn full(is_dry: bool) -> Self {
        let mut world = Self::new(is_dry);
        for at in 0..10 {
            world.pod("a", &format!("a{at}"), Some("n"));
        }
        world.pod("b", "b0", None);
        world
    }

    fn now(&self) -> Now {
        Now {
            mono_ms: self.ms,
            unix_ms: 1_795_341_600_000 + self.ms + self.jump_ms,
        }
    }

    /// Turns of a second each; calls for which `answer` has none are done.
    fn run(
        &mut self,
        seconds: u64,
        acts: bool,
        answer: impl Fn(&Target) -> Option<Answer>,
    ) -> Vec<(Target, Call)> {
        let mut calls = Vec::new();
        for _ in 0..seconds {
            let now = self.now();
            self.arbiter.store.signs += u64::from(!self.no_scheduler);
            self.arbiter.turn(now, acts);
            while let Some((target, call)) = self.arbiter.next(now, acts) {
                let mut answer = answer(&target).unwrap_or(Answer::Done(Vec::new()));
                if let (Target::Notice(name) | Target::Hole(name), Answer::Done(body)) =
                    (&target, &mut answer)
                {
                    self.annotate(name, &call);
                    let pod = self.pods.get(name).map(Value::to_string);
                    *body = pod.unwrap_or_default().into_bytes();
                }
                self.arbiter.answered(&target, &answer, now);
                calls.push((target, call));
            }
            self.ms += 1_000;
        }
        calls
    }

    fn held(&self) -> String {
        self.arbiter.held_back.clone().unwrap_or_default()
    }
}

fn evictions(calls: &[(Target, Call)]) -> Vec<String> {
    let evictions = calls.iter().filter_map(|(target, _)| match target {
        Target::Evict(uid) => Some(uid.clone()),
        _ => None,
    });
    evictions.collect()
}

fn events(calls: &[(Target, Call)]) -> Vec<(String, String)> {
    let bodies = calls
        .iter()
        .filter(|(target, call)| matches!(target, Target::Event(_)) && call.verb == Verb::Post);
    let bodies = bodies.map(|(_, call)| serde_json::from_slice::<Value>(&call.body).unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    bodies
        .map(|body| (text(&body["regarding"]["name"]), text(&body["reason"])))
        .collect()
}

fn refused(code: u16, cause: &str) -> Answer {
    Answer::Refused(Refusal {
        code,
        causes: vec![(cause.to_owned(), String::new())],
        ..Refusal::default()
    })
}

#[test]
fn a_notice_comes_first_then_the_eviction_and_both_sides_hear_of_it() {
    let mut world = World::full(false);
    let calls = world.run(30, true, |_| None);
    assert!(evictions(&calls).is_empty());
    let notice = calls
        .iter()
        .find(|(target, _)| *target == Target::Notice("a0".into()));
    let body: Value = serde_json::from_slice(&notice.unwrap().1.body).unwrap();
    assert_eq!(
        body["metadata"]["annotations"]["plimsoll.dev/evict-after"],
        "2026-11-22T10:00:30Z"
    );
    let said = events(&calls);
    assert!(
        said.contains(&("a0".into(), "ReclaimNotice".into()))
            && said.contains(&("b0".into(), "ReclaimPlanned".into())),
        "{said:?}"
    );
    let calls = world.run(5, true, |_| None);
    assert_eq!(evictions(&calls), ["a0"]);
    let (_, call) = calls
        .iter()
        .find(|(target, _)| matches!(target, Target::Evict(_)))
        .unwrap();
    let body: Value = serde_json::from_slice(&call.body).unwrap();
    assert_eq!(
        body["deleteOptions"]["preconditions"],
        json!({"uid": "a0", "resourceVersion": "13"}),
        "with its notice"
    );
    let said = events(&calls);
    assert!(
        said.contains(&("a0".into(), "Reclaimed".into()))
            && said.contains(&("b0".into(), "RoomMade".into())),
        "{said:?}"
    );
    // It leaves, and starts anew where the other one was to be: that costs no second pod.
    world.gone("a0");
    world.pod("a", "again", None);
    world.pod("b", "b0", Some("n"));
    assert!(evictions(&world.run(300, true, |_| None)).is_empty());
}

#[test]
fn what_comes_back_to_lend_no_more_is_given_by_its_share() {
    // Weights 2 and 3 on ten CPUs: four and six.
    let mut world = World::full(false);
    world.consumer("a", &json!({"namespace": "a", "weight": 2}));
    world.consumer("b", &json!({"namespace": "b", "weight": 3}));
    for at in 1..8 {
        world.pod("b", &format!("b{at}"), None);
    }
    let calls = world.run(40, true, |_| None);
    assert_eq!(evictions(&calls).len(), 6, "{:?}", evictions(&calls));
    let row = world
        .arbiter
        .judgement
        .rows
        .iter()
        .find(|row| row.name == "a")
        .unwrap();
    assert_eq!((row.deserved["cpu"], row.used["cpu"]), (4000, 4000));
}

mod closed_nodes;
mod doubts;
mod figures;
mod holes;
mod inputs;
mod priorities;

#[test]
fn without_a_consumer_all_is_as_before() {
    for without in ["a", "b"] {
        let mut world = World::full(false);
        let gone = json!({"metadata": {"name": without}});
        world.arbiter.hear(
            Kind::Consumers,
            WatchEvent::Gone(gone.to_string().into_bytes()),
        );
        let calls = world.run(300, true, |_| None);
        assert!(evictions(&calls).is_empty(), "{without}");
        let is_of = |target: &Target| matches!(target, Target::Allocation(namespace, _) if namespace == without);
        assert!(
            !calls
                .iter()
                .any(|(target, _)| is_of(target) || matches!(target, Target::Notice(_)))
        );
    }
}

/// What no Consumer gives back cannot be promised to another: with a share for `legacy` nobody would deserve less than
/// it uses, and `b` would wait for ever.
#[test]
fn consumers_share_what_namespaces_without_one_leave() {
    let mut world = World::new(false);
    world.see(Kind::Namespaces, &json!({"metadata": {"name": "legacy"}}));
    // A group may have the name of a namespace.
    world.consumer("legacy", &json!({}));
    for at in 0..7 {
        world.pod("legacy", &format!("legacy{at}"), Some("n"));
    }
    for at in 0..3 {
        world.pod("a", &format!("a{at}"), Some("n"));
        world.pod("b", &format!("b{at}"), None);
        // What it asks for beyond takes nothing from the others, as nobody makes room for it.
        world.pod("legacy", &format!("legacy-waits{at}"), None);
    }
    let calls = world.run(40, true, |_| None);
    assert_eq!(evictions(&calls), ["a0"]);
    let rows = &world.arbiter.judgement.rows;
    let of = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
    let cpu = |name: &str| of(name).deserved["cpu"];
    assert_eq!((cpu("a"), cpu("b")), (1500, 1500));
    assert_eq!(of("legacy").used["cpu"], 0, "the group has no members");
}

#[test]
fn who_does_not_lead_writes_nothing_and_a_new_leader_begins_the_notice_anew() {
    let mut world = World::full(false);
    assert!(world.run(100, false, |_| None).is_empty());
    assert!(evictions(&world.run(29, true, |_| None)).is_empty());
    assert!(world.run(10, false, |_| None).is_empty());
    let calls = world.run(30, true, |_| None);
    assert!(evictions(&calls).is_empty());
    assert_eq!(evictions(&world.run(2, true, |_| None)), ["a0"]);
}

#[test]
fn whatever_is_in_doubt_evicts_no_pod() {
    type Doubt = (fn(&mut World), &'static str);
    let doubts: [Doubt; 4] = [
        (
            |world| {
                world
                    .arbiter
                    .hear(Kind::Nodes, WatchEvent::Missed("500".into()))
            },
            "nodes are not known",
        ),
        (
            |world| world.consumer("c", &json!({"namespace": "c", "burst": 1})),
            "Consumer c cannot be read",
        ),
        (
            |world| {
                world.see(Kind::Namespaces, &json!({"metadata": {"name": "b", "deletionTimestamp": "2026-11-22T10:00:00Z"}}))
            },
            "",
        ),
        (
            |world| {
                // More resources than can be computed with.
                let many: serde_json::Map<String, Value> = (0..200)
                    .map(|at| (format!("example.com/r{at}"), json!("1")))
                    .collect();
                world.consumer("a", &json!({"namespace": "a", "reserved": many}));
            },
            "resources are named",
        ),
    ];
    for (doubt, word) in doubts {
        let mut world = World::full(false);
        world.run(20, true, |_| None);
        doubt(&mut world);
        let calls = world.run(60, true, |_| None);
        assert!(evictions(&calls).is_empty(), "{word}");
        assert!(world.held().contains(word), "{word}: {}", world.held());
    }
}

#[test]
fn an_eviction_that_is_not_seen_stops_the_next_one() {
    let mut world = World::full(false);
    for at in 1..3 {
        world.pod("b", &format!("b{at}"), None);
    }
    // The watch is behind: it never shows that one leaves.
    let calls = world.run(35, true, |_| None);
    assert_eq!(evictions(&calls).len(), 3);
    world.pod("b", "b3", None);
    let calls = world.run(100, true, |_| None);
    assert!(evictions(&calls).is_empty());
    assert!(
        world.held().contains("is not seen to leave"),
        "{}",
        world.held()
    );
}

#[test]
fn a_budget_that_forbids_is_kept_and_a_refusal_chooses_another_pod() {
    // Known before: not even planned.
    let mut world = World::full(false);
    let budget = json!({"metadata": {"name": "x", "namespace": "a", "generation": 1}, "spec": {"selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": 0, "observedGeneration": 1}});
    world.see(Kind::Budgets, &budget);
    assert!(evictions(&world.run(100, true, |_| None)).is_empty());
    assert_eq!(world.arbiter.judgement.actions["blocked"], 1);
    // Known only to the API server.
    let mut world = World::full(false);
    let is_first = |target: &Target| {
        (*target == Target::Evict("a0".into())).then(|| refused(429, "DisruptionBudget"))
    };
    let calls = world.run(100, true, is_first);
    assert_eq!(
        evictions(&calls),
        ["a0", "a1"],
        "each with a notice of its own"
    );
    assert!(events(&calls).contains(&("b0".into(), "ReclaimRefused".into())));
}

/// Else they would keep their room, and a pod that serves would go in their place, or none.
#[test]
fn a_budget_keeps_no_broken_pod_that_the_api_server_would_let_go() {
    let ready = |is: &str| json!([{"type": "Ready", "status": is}]);
    let broken = [
        (
            None,
            json!({"phase": "Pending", "conditions": ready("False")}),
            true,
        ),
        (
            None,
            json!({"phase": "Running", "conditions": ready("False")}),
            false,
        ),
        (
            Some("AlwaysAllow"),
            json!({"phase": "Running", "conditions": ready("False")}),
            true,
        ),
        (Some("AlwaysAllow"), json!({"phase": "Running"}), true),
        (
            Some("AlwaysAllow"),
            json!({"phase": "Running", "conditions": ready("True")}),
            false,
        ),
    ];
    for (policy, status, goes) in broken {
        let mut world = World::full(false);
        let budget = json!({"metadata": {"name": "x", "namespace": "a", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "a"}}, "unhealthyPodEvictionPolicy": policy},
            "status": {"disruptionsAllowed": 0, "observedGeneration": 1, "currentHealthy": 9, "desiredHealthy": 10}});
        world.see(Kind::Budgets, &budget);
        for at in 0..10 {
            world.change(&format!("a{at}"), |pod| {
                pod["status"]["conditions"] = ready("True");
            });
        }
        world.change("a5", |pod| {
            pod["status"]["conditions"] = Value::Null;
            for (key, value) in status.as_object().unwrap() {
                pod["status"][key] = value.clone();
            }
        });
        let expected = if goes { vec!["a5"] } else { Vec::new() };
        let calls = world.run(40, true, |_| None);
        assert_eq!(evictions(&calls), expected, "{policy:?} {status}");
    }
}

#[test]
fn what_an_autoscaler_leaves_on_its_node_stays() {
    let stays = [
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
    ];
    for (name, value) in stays {
        let mut world = World::full(false);
        for at in 0..9 {
            world.change(&format!("a{at}"), |pod| {
                pod["metadata"]["annotations"] = json!({name: value});
            });
        }
        // Another value says nothing of the kind.
        let mut pod = world.pods["a9"].clone();
        let other = if value == "true" { "false" } else { "true" };
        pod["metadata"]["annotations"] = json!({name: other});
        world.see_pod(pod);
        assert_eq!(evictions(&world.run(40, true, |_| None)), ["a9"], "{name}");
    }
}

#[test]
fn a_clock_that_jumps_changes_nothing() {
    let mut steady = World::full(false);
    let mut jumping = World::full(false);
    for at in 0..10 {
        // A day on, and back again.
        jumping.jump_ms = (at % 2) * 86_400_000;
        let young = format!("young{at}");
        let calls: Vec<Vec<String>> = [&mut steady, &mut jumping]
            .into_iter()
            .map(|world| {
                world.pod("a", &young, Some("n"));
                evictions(&world.run(7, true, |_| None))
            })
            .collect();
        assert_eq!(calls[0], calls[1]);
    }
}

#[test]
fn a_dry_run_says_all_and_evicts_no_pod() {
    let mut world = World::full(true);
    let calls = world.run(60, true, |_| None);
    let sent: Vec<&Call> = calls
        .iter()
        .filter(|(target, _)| matches!(target, Target::Evict(_)))
        .map(|(_, call)| call)
        .collect();
    assert!(!sent.is_empty() && sent.iter().all(|call| call.path.ends_with("dryRun=All")));
    assert!(
        sent.iter()
            .all(|call| String::from_utf8_lossy(&call.body).contains(r#""dryRun":["All"]"#))
    );
    assert!(
        !calls
            .iter()
            .any(|(target, _)| matches!(target, Target::Notice(_)))
    );
    assert!(events(&calls).contains(&("a0".into(), "ReclaimNotice".into())));
}

#[test]
fn a_quota_below_hard_counts_and_is_said() {
    let mut world = World::full(false);
    world.consumer("a", &json!({"namespace": "a", "hard": {"cpu": "8"}}));
    let quota = |cpu: &str, scopes: Value| json!({"metadata": {"name": "q", "namespace": "a"}, "spec": {"hard": {"requests.cpu": cpu, "services": "1"}, "scopes": scopes}});
    world.see(Kind::Quotas, &quota("6", json!([])));
    let calls = world.run(3, true, |_| None);
    let row = |world: &World| {
        world
            .arbiter
            .judgement
            .rows
            .iter()
            .find(|row| row.name == "a")
            .unwrap()
            .clone()
    };
    assert_eq!(
        (
            row(&world).hard["cpu"],
            row(&world).deserved["cpu"],
            row(&world).wrong[0].0
        ),
        (6000, 6000, "QuotaBelowHard")
    );
    assert!(events(&calls).contains(&("a".into(), "QuotaBelowHard".into())));
    // One with scopes is for some pods only.
    world.see(Kind::Quotas, &quota("1", json!(["BestEffort"])));
    world.run(2, true, |_| None);
    assert_eq!(
        (row(&world).hard["cpu"], row(&world).wrong.len()),
        (8000, 0)
    );
}

#[test]
fn no_hole_is_planned_under_pressure_and_the_node_hears_who_uses_too_much() {
    let mut world = World::full(false);
    world.consumer("a", &json!({"namespace": "a", "hard": {"cpu": "8"}}));
    let node = |pressure: &str, annotations: Value| {
        json!({"metadata": {"name": "n", "annotations": annotations}, "status": {"allocatable": {"cpu": "10", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "plimsoll.dev/MemoryPressure", "status": pressure, "lastHeartbeatTime": "2026-11-22T10:00:00Z"}]}})
    };
    world.see(Kind::Nodes, &node("True", json!({})));
    let calls = world.run(60, true, |_| None);
    assert!(evictions(&calls).is_empty());
    let lists: Vec<Value> = calls
        .iter()
        .filter(|(target, _)| *target == Target::Overused("n".into()))
        .map(|(_, call)| serde_json::from_slice(&call.body).unwrap())
        .collect();
    assert_eq!(lists.len(), 3, "renewed before it is void");
    // A dry run sends none: the node would evict others for it.
    let mut dry = World::full(true);
    dry.consumer("a", &json!({"namespace": "a", "hard": {"cpu": "8"}}));
    dry.see(Kind::Nodes, &node("True", json!({})));
    let calls = dry.run(60, true, |_| None);
    let is_list = |(target, _): &(Target, Call)| *target == Target::Overused("n".into());
    assert!(!calls.iter().any(is_list));
    let list: Value = serde_json::from_str(
        lists[0]["metadata"]["annotations"][OVERUSED]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    assert_eq!(list["at"], "2026-11-22T10:00:00Z");
    assert_eq!(list["namespaces"], json!({"a": 200}));
    // Gone with the pressure.
    world.see(
        Kind::Nodes,
        &node("False", json!({"plimsoll.dev/overused": "{}"})),
    );
    let calls = world.run(3, true, |_| None);
    let gone = calls
        .iter()
        .find(|(target, _)| *target == Target::Overused("n".into()))
        .unwrap();
    assert!(String::from_utf8_lossy(&gone.1.body).contains("null"));
}

#[test]
fn a_node_hears_nothing_where_nobody_uses_too_much() {
    let node = |annotations: Value| {
        json!({"metadata": {"name": "n", "annotations": annotations}, "status": {"allocatable": {"cpu": "10", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "plimsoll.dev/MemoryPressure", "status": "True", "lastHeartbeatTime": "2026-11-22T10:00:00Z"}]}})
    };
    let mut world = World::new(false);
    world.pod("a", "a0", Some("n"));
    world.see(Kind::Nodes, &node(json!({})));
    let lists = |calls: Vec<(Target, Call)>| -> Vec<String> {
        let lists = calls.into_iter();
        let lists = lists.filter(|(target, _)| *target == Target::Overused("n".into()));
        lists
            .map(|(_, call)| String::from_utf8(call.body).unwrap())
            .collect()
    };
    assert_eq!(lists(world.run(60, true, |_| None)), [""; 0]);
    // What an earlier list says holds no more.
    world.see(Kind::Nodes, &node(json!({"plimsoll.dev/overused": "{}"})));
    assert!(lists(world.run(3, true, |_| None))[0].contains("null"));
}

/// Of two Consumers for one namespace the first by name counts, with all its times.
#[test]
fn the_grace_of_a_consumer_that_is_ignored_counts_for_nothing() {
    let mut world = World::full(false);
    let ignored = json!({"namespace": "a", "reclaim": {"gracePeriod": "0s"}});
    world.consumer("z", &ignored);
    world.consumer("a", &json!({"namespace": "a"}));
    let calls = world.run(29, true, |_| None);
    assert!(evictions(&calls).is_empty(), "the usual grace is 30 s");
    assert_eq!(evictions(&world.run(5, true, |_| None)), ["a0"]);
}

#[test]
fn what_a_node_withholds_lowers_what_there_is_for_a_minute() {
    let mut world = World::full(false);
    let node = |at: &str| {
        let withheld = format!(r#"{{"at":"{at}","cpu":"4"}}"#);
        json!({"metadata": {"name": "n", "annotations": {"plimsoll.dev/withheld": withheld}},
            "status": {"allocatable": {"cpu": "10", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}})
    };
    let mut capacity = |at: &str, seconds| {
        world.see(Kind::Nodes, &node(at));
        world.run(seconds, true, |_| None);
        world.arbiter.judgement.capacity["cpu"]
    };
    assert_eq!(capacity("2026-11-22T10:00:00Z", 40), 6000);
    assert_eq!(capacity("2026-11-22T10:00:30Z", 40), 6000, "renewed");
    assert_eq!(capacity("2026-11-22T10:00:30Z", 30), 10_000, "void");
    assert_eq!(
        capacity("2026-11-22T12:00:00Z", 2),
        10_000,
        "of another clock"
    );
    assert_eq!(capacity("later", 2), 10_000);
}

#[test]
fn a_pod_whose_place_is_not_known_costs_no_other() {
    let mut world = World::full(false);
    let mut pod = world.pod_object("b", "b0", None);
    pod["spec"]["volumes"] = json!([{"persistentVolumeClaim": {"claimName": "x"}}]);
    world.see(Kind::Pods, &pod);
    assert!(evictions(&world.run(100, true, |_| None)).is_empty());
    assert_eq!(world.arbiter.judgement.actions["not_served"], 1);
    // Nor one that may use no node.
    pod["spec"]["volumes"] = json!([]);
    pod["spec"]["nodeSelector"] = json!({"disk": "ssd"});
    world.see(Kind::Pods, &pod);
    assert!(evictions(&world.run(100, true, |_| None)).is_empty());
}

#[test]
fn a_consumers_own_times_count() {
    let mut world = World::full(false);
    world.consumer(
        "a",
        &json!({"namespace": "a", "reclaim": {"gracePeriod": "2m"}}),
    );
    assert!(evictions(&world.run(120, true, |_| None)).is_empty());
    assert_eq!(evictions(&world.run(2, true, |_| None)), ["a0"]);
    // All pods are two hours old.
    let mut world = World::full(false);
    world.consumer(
        "a",
        &json!({"namespace": "a", "reclaim": {"minimumRunTime": "3h"}}),
    );
    assert!(evictions(&world.run(3600, true, |_| None)).is_empty());
}

#[test]
fn writes_are_bounded_and_a_status_is_written_once() {
    let mut world = World::new(false);
    for at in 0..300 {
        let name = format!("t{at}");
        world.see(Kind::Namespaces, &json!({"metadata": {"name": name}}));
        world.consumer(&name, &json!({"namespace": name}));
    }
    let first = world.run(1, true, |_| None);
    assert_eq!(first.len(), 30, "the rest is for holes and evictions");
    // The watch does not show them: they are tried again, and not in each turn.
    let calls = world.run(4, true, |target| {
        matches!(target, Target::Consumer(_)).then(|| refused(500, ""))
    });
    assert!(calls.len() <= 200);
}
