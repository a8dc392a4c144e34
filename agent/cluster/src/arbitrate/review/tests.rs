use serde_json::json;

use super::*;
use crate::watch_event::WatchEvent;

fn object(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name, "uid": name}, "spec": spec})
}

fn question(name: &str, spec: &Value, before: Option<&Value>) -> Question {
    let before = before.map(|before| object(name, before));
    let review =
        json!({"request": {"uid": "r", "object": object(name, spec), "oldObject": before}});
    Question::read(review.to_string().as_bytes()).unwrap()
}

fn hear(store: &mut Store, kind: Kind, objects: &[Value]) {
    store.hear(kind, WatchEvent::List(None));
    for object in objects {
        store.hear(kind, WatchEvent::Object(object.to_string().into_bytes()));
    }
    store.hear(kind, WatchEvent::Listed);
}

/// A cluster of ten CPUs with a group of two members.
pub(in crate::arbitrate) fn store() -> Store {
    let mut store = Store::default();
    let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "10"}}});
    let quota = json!({"metadata": {"name": "q", "namespace": "a"}, "spec": {"hard": {"requests.cpu": "4"}}});
    let consumers = [
        object(
            "group",
            &json!({"hard": {"cpu": "6"}, "reserved": {"cpu": "2"}}),
        ),
        object(
            "a",
            &json!({"namespace": "a", "parent": "group", "reserved": {"cpu": "2"}}),
        ),
        object("b", &json!({"namespace": "b", "parent": "group"})),
        object(
            "alone",
            &json!({"namespace": "alone", "reserved": {"cpu": "7"}}),
        ),
    ];
    hear(&mut store, Kind::Nodes, &[node]);
    hear(&mut store, Kind::Quotas, &[quota]);
    hear(&mut store, Kind::Consumers, &consumers);
    store
}

fn refused(name: &str, spec: &Value) -> Vec<String> {
    review(&store(), &question(name, spec, None)).refused
}

/// Each sentence says what, why and what to do: the last part begins after the colon.
#[track_caller]
fn is_refused(name: &str, spec: &Value, words: [&str; 2]) {
    let all = refused(name, spec);
    let has = |reason: &String| words.iter().all(|word| reason.contains(word));
    assert!(all.iter().any(has), "{spec}: {all:?}");
}

#[test]
fn amounts_are_within_their_bounds() {
    is_refused(
        "c",
        &json!({"namespace": "c", "hard": {"cpu": "500m"}, "reserved": {"cpu": 1}}),
        [
            "reserved.cpu: 1 is more than spec.hard.cpu, 500m",
            ": reserve less",
        ],
    );
    is_refused(
        "a",
        &json!({"namespace": "a", "parent": "group", "hard": {"cpu": "5"}}),
        [
            "5 is more than ResourceQuota a/q lets through, 4",
            "raise the quota first",
        ],
    );
    for field in ["hard", "reserved"] {
        let amount = (1_u64 << 60).to_string();
        is_refused(
            "c",
            &json!({"namespace": "c", field: {"memory": amount}}),
            [
                &format!("spec.{field}.memory: more than can be counted"),
                "give less",
            ],
        );
        let amount = ((1_u64 << 60) - 1).to_string();
        let all = refused("c", &json!({"namespace": "c", field: {"memory": amount}}));
        assert!(!all.iter().any(|it| it.contains("counted")), "{all:?}");
    }
    is_refused(
        "c",
        &json!({"namespace": "c", "later": 1}),
        ["spec cannot be read", "later version"],
    );
}

#[test]
fn a_place_in_the_tree() {
    is_refused(
        "c",
        &json!({"namespace": "a"}),
        ["Consumer a is for a already", "delete it first"],
    );
    is_refused(
        "c",
        &json!({"namespace": "c", "parent": "nowhere"}),
        ["there is no Consumer nowhere", "create the group first"],
    );
    is_refused(
        "c",
        &json!({"namespace": "c", "parent": "alone"}),
        [
            "Consumer alone is for a namespace",
            "without spec.namespace",
        ],
    );
    is_refused(
        "group",
        &json!({"parent": "group"}),
        [
            "a cycle: group is this Consumer, or below it",
            "name a group",
        ],
    );
    is_refused(
        "group",
        &json!({"namespace": "x"}),
        [
            "Consumer a names this one as its parent",
            "change the parent of a first",
        ],
    );
    for spec in [
        json!({"namespace": "c", "parent": "group", "unlimited": true}),
        json!({"unlimited": true}),
    ] {
        is_refused("c", &spec, ["without a parent", "leave unlimited out"]);
    }
    let allowed = json!({"namespace": "c", "unlimited": true});
    assert_eq!(refused("c", &allowed), [""; 0]);
}

#[test]
fn a_cycle_of_two_and_what_hangs_on_it() {
    let mut store = store();
    let other = object("other", &json!({"parent": "group"}));
    store.hear(
        Kind::Consumers,
        WatchEvent::Object(other.to_string().into_bytes()),
    );
    let spec = json!({"parent": "other"});
    let before = json!({});
    let all = review(&store, &question("group", &spec, Some(&before))).refused;
    assert!(
        all.iter().any(|it| it.contains("a cycle: other is")),
        "{all:?}"
    );
    // One that is there already, as when the webhook was down.
    let group = object("group", &spec);
    store.hear(
        Kind::Consumers,
        WatchEvent::Object(group.to_string().into_bytes()),
    );
    let spec = json!({"namespace": "c", "parent": "other", "reserved": {"cpu": 1}});
    let all = review(&store, &question("c", &spec, None)).refused;
    assert!(all.iter().any(|it| it.contains("levels")), "{all:?}");
}

#[test]
fn reservations_are_within_the_group_and_the_cluster() {
    is_refused(
        "b",
        &json!({"namespace": "b", "parent": "group", "reserved": {"cpu": 5}}),
        [
            "spec.reserved.cpu: the Consumers in group group have 7 reserved together, and its hard is 6",
            "raise its hard",
        ],
    );
    is_refused(
        "group",
        &json!({"hard": {"cpu": 1}}),
        [
            "spec.hard.cpu: the Consumers in group group have 2 reserved together, and its hard is 1",
            "reserve less in it",
        ],
    );
    is_refused(
        "c",
        &json!({"namespace": "c", "reserved": {"cpu": 2}}),
        [
            "11 would be reserved by all Consumers together, and the nodes have 10",
            "reserve less",
        ],
    );
    is_refused(
        "c",
        &json!({"namespace": "c", "reserved": {"example.com/gpu": 2}}),
        ["no node has such a resource", "correct its name"],
    );
    let fits = json!({"namespace": "c", "reserved": {"cpu": 1}});
    assert_eq!(refused("c", &fits), [""; 0]);
}

#[test]
fn what_is_reserved_far_below_counts_at_the_root() {
    let mut store = store();
    for (name, spec) in [
        ("top", json!({})),
        ("middle", json!({"parent": "top"})),
        (
            "leaf",
            json!({"namespace": "leaf", "parent": "middle", "reserved": {"cpu": 1}}),
        ),
    ] {
        let object = object(name, &spec);
        store.hear(
            Kind::Consumers,
            WatchEvent::Object(object.to_string().into_bytes()),
        );
    }
    // 2 of the group, 7 and 1.
    let spec = json!({"namespace": "c", "reserved": {"cpu": 1}});
    let all = review(&store, &question("c", &spec, None)).refused;
    assert!(
        all.iter().any(|it| it.contains("11 would be reserved")),
        "{all:?}"
    );
    let bound = json!({"hard": {"cpu": "500m"}});
    let all = review(&store, &question("top", &bound, Some(&json!({})))).refused;
    assert!(
        all.iter().any(|it| it.contains("have 1 reserved together")),
        "{all:?}"
    );
}

#[test]
fn what_mends_and_what_is_in_doubt_is_allowed() {
    let mut store = store();
    // More is reserved than there is: what lowers it, or has no part in it, is allowed.
    let spec = |cpu: u32| json!({"namespace": "alone", "reserved": {"cpu": cpu}});
    let asked =
        |store: &Store, to, from| review(store, &question("alone", &spec(to), Some(&spec(from))));
    assert_eq!(asked(&store, 19, 20).refused, [""; 0]);
    assert_eq!(asked(&store, 21, 20).refused.len(), 1);
    let other = question("c", &json!({"namespace": "c"}), None);
    assert_eq!(review(&store, &other), Verdict::default());
    // Above what the group has reserved, within its hard.
    let more = json!({"namespace": "b", "parent": "group", "reserved": {"cpu": 1}});
    let verdict = review(&store, &question("b", &more, None));
    assert_eq!((verdict.refused.len(), verdict.warnings.len()), (0, 1));
    // A finalizer of one that was wrong before, and a change of something else of it.
    let wrong = json!({"namespace": "c", "parent": "nowhere"});
    let heavier = json!({"namespace": "c", "parent": "nowhere", "weight": 2});
    for spec in [&wrong, &heavier] {
        let verdict = review(&store, &question("c", spec, Some(&wrong)));
        assert_eq!(verdict, Verdict::default());
    }
    let moved = json!({"namespace": "c", "parent": "elsewhere"});
    let verdict = review(&store, &question("c", &moved, Some(&wrong)));
    assert_eq!(verdict.refused.len(), 1);
    // Its deletion.
    let gone = json!({"request": {"uid": "r", "object": null, "oldObject": object("a", &wrong)}});
    let gone = Question::read(gone.to_string().as_bytes()).unwrap();
    assert_eq!(review(&store, &gone), Verdict::default());
    store.hear(Kind::Consumers, WatchEvent::Missed("x".into()));
    let verdict = review(&store, &question("c", &wrong, None));
    assert_eq!((verdict.refused.len(), verdict.name()), (0, "uncompared"));
    assert!(verdict.warnings[0].contains("does not know all consumers"));
}

#[test]
fn a_namespace_stays_as_it_is() {
    let question = question(
        "a",
        &json!({"namespace": "z", "parent": "group"}),
        Some(&json!({"namespace": "a", "parent": "group"})),
    );
    let all = review(&store(), &question).refused;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].contains("cannot change from a to z: make another Consumer"));
}

#[test]
fn eight_levels_and_no_more() {
    let mut store = store();
    for level in 0..7 {
        let parent = (level > 0).then(|| format!("l{}", level - 1));
        let object = object(&format!("l{level}"), &json!({"parent": parent}));
        store.hear(
            Kind::Consumers,
            WatchEvent::Object(object.to_string().into_bytes()),
        );
    }
    let refused = |name: &str, parent: &str| {
        let spec = json!({"parent": parent});
        review(&store, &question(name, &spec, None)).refused.len()
    };
    assert_eq!((refused("new", "l6"), refused("new", "l5")), (0, 0));
    // The group has members: with them it would be nine.
    assert_eq!((refused("group", "l6"), refused("group", "l5")), (1, 0));
    assert_eq!(refused("l0", "l6"), 1);
}

#[test]
fn the_answer_has_the_requests_uid_and_is_bounded() {
    let asked = question("c", &json!({"namespace": "c", "parent": "nowhere"}), None);
    let answer = asked.answer(&review(&store(), &asked));
    assert_eq!(
        (&answer["response"]["uid"], &answer["response"]["allowed"]),
        (&json!("r"), &json!(false))
    );
    let message = answer["response"]["status"]["message"].as_str().unwrap();
    assert!(message.contains("nowhere"));
    assert_eq!(
        asked.answer(&Verdict::default())["response"],
        json!({"uid": "r", "allowed": true})
    );
    let amounts: BTreeMap<String, &str> = (0..64)
        .map(|at| (format!("{}{at}", "x".repeat(1_000)), "1"))
        .collect();
    let all = refused("c", &json!({"namespace": "c", "reserved": amounts}));
    assert_eq!(all.len(), REASONS_MAX);
    assert!(all.iter().all(|reason| reason.len() <= REASON_BYTES_MAX));
    for garbage in [
        &b"{}"[..],
        b"",
        b"[]",
        b"{\"request\":{\"uid\":\"r\",\"object\":{}}}",
    ] {
        assert!(Question::read(garbage).is_err());
    }
    let deep = format!(
        "{{\"request\":{{\"uid\":\"r\",\"object\":{}}}}}",
        "[".repeat(100_000)
    );
    assert!(Question::read(deep.as_bytes()).is_err());
}

#[test]
fn a_question_holds_no_status_and_no_more_resources_than_there_can_be() {
    let question = |resources: usize| {
        let hard: serde_json::Map<String, Value> = (0..resources)
            .map(|number| (format!("example.com/r{number}"), json!(1)))
            .collect();
        let object =
            json!({"metadata": {"name": "c"}, "spec": {"hard": hard}, "status": [0, 0, 0]});
        let review = json!({"request": {"uid": "u", "object": object}});
        Question::read(review.to_string().as_bytes())
    };
    let (_, wanted) = question(RESOURCES_MAX).unwrap().wanted.unwrap();
    assert_eq!(wanted.status, Value::Null);
    question(RESOURCES_MAX + 1).unwrap_err();
}
