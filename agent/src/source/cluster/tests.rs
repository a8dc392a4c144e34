//! Scenario 15: hostile frames over a real socket.

use std::io::{Read, Write};

use plimsoll_core::kube::pod::Exemption;
use plimsoll_core::protocol::cluster_link::{FRAMING, PODS_MAX};
use serde_json::{Value, json};

use super::*;

struct Scene {
    dir: tempfile::TempDir,
    link: Option<ClusterLink>,
    events: ClusterEvents,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (link, events, left) = start(dir.path());
        assert_eq!(left, LeftBehind::default());
        let link = Some(link);
        Self { dir, link, events }
    }

    fn counts(&self) -> [u64; 4] {
        self.link.as_ref().unwrap().counts().read()
    }

    fn is_connected(&self) -> bool {
        let counts = self.link.as_ref().unwrap().counts();
        counts.is_connected.load(Ordering::Relaxed)
    }

    fn client(&self) -> Client {
        Client(UnixStream::connect(self.dir.path().join("cluster.sock")).unwrap())
    }

    /// A client that has introduced itself, and what it was told.
    fn introduced(&mut self) -> (Client, Vec<Value>) {
        let mut client = self.client();
        client.say(&json!({"type": "hello", "protocol": PROTOCOL, "node": "n1"}));
        let connected = self.next();
        let node = "n1".to_owned();
        assert_eq!(connected, ClusterEvent::Connected { node });
        let mut heard = Vec::new();
        loop {
            heard.push(client.hear());
            if heard.last().unwrap()["type"] == "conditions" {
                return (client, heard);
            }
        }
    }

    fn next(&mut self) -> ClusterEvent {
        self.events.blocking_recv().unwrap()
    }

    fn change(&mut self) -> ClusterChange {
        match self.next() {
            ClusterEvent::Change(change) => change,
            other => panic!("{other:?}"),
        }
    }

    /// Until the thread has counted so many refused frames.
    fn refused(&self, frames: u64) {
        while self.counts()[2] < frames {
            std::thread::yield_now();
        }
        assert_eq!(self.counts()[2], frames);
    }
}

fn start(dir: &Path) -> (ClusterLink, ClusterEvents, LeftBehind) {
    let settings = ClusterSettings {
        socket: dir.join("cluster.sock"),
        user: rustix::process::geteuid().as_raw(),
        state_dir: dir.to_owned(),
        soft_grace_s: Some(60),
    };
    ClusterLink::start(&settings).unwrap()
}

struct Client(UnixStream);

impl Client {
    fn say(&mut self, message: &Value) {
        self.say_bytes(message.to_string().as_bytes());
    }

    fn say_bytes(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        self.0.write_all(&[&length, bytes].concat()).unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut frame).unwrap();
        serde_json::from_slice(&frame).unwrap()
    }

    fn is_sent_away(&mut self) -> bool {
        let mut rest = Vec::new();
        // Reset where it had not read all.
        self.0.read_to_end(&mut rest).ok();
        true
    }
}

fn pod(uid: &str) -> Value {
    json!({"type": "pod", "pod": {"metadata": {"name": "web", "namespace": "default", "uid": uid}, "spec": {"containers": [{"name": "app"}]}}})
}

fn overused(valid_ms: u64, namespaces: &Value) -> Value {
    json!({"type": "overused", "valid_ms": valid_ms, "namespaces": namespaces})
}

fn uids(change: &ClusterChange) -> Vec<String> {
    change
        .pods
        .iter()
        .map(|pod| pod.pod.uid().to_string())
        .collect()
}

/// The UID of a static pod's cgroup.
const HASH: &str = "0123456789abcdef0123456789abcdef";

fn intent(uid: &str) -> EvictionIntent {
    EvictionIntent {
        uid: uid.into(),
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        decided_unix_ms: 7,
        signal: "memory.available".to_owned(),
        message: "The node was low on resource: memory. ".to_owned(),
        rank: 1,
        ranked: 1,
        journal: None,
        grace_s: 0,
        is_held: true,
        starved_resource: "memory".to_owned(),
        offending_containers: String::new(),
        offending_containers_usage: String::new(),
    }
}

#[test]
fn a_list_replaces_what_was_known_and_a_mirror_has_the_uid_of_its_cgroup() {
    let mut scene = Scene::new();
    let (mut client, _) = scene.introduced();
    client.say(&json!({"type": "list"}));
    client.say(&pod("a"));
    let mut mirror = pod("of-the-api");
    mirror["pod"]["metadata"]["annotations"] = json!({
        "kubernetes.io/config.mirror": HASH, "kubernetes.io/config.hash": HASH, "plimsoll.dev/unnamed": ""});
    client.say(&mirror);
    client.say(&json!({"type": "listed"}));
    let change = scene.change();
    assert_eq!(
        (uids(&change), change.is_list),
        (vec!["a".to_owned(), HASH.to_owned()], true)
    );
    assert!(!change.pods[1].pod.is_unnamed());
    client.say(&json!({"type": "pod_gone", "uid": "of-the-api"}));
    assert_eq!(scene.change().gone, [PodUid::from(HASH)]);
    client.say(&pod("b"));
    assert_eq!(uids(&scene.change()), ["b"]);
    // A list that is cut off says nothing.
    client.say(&json!({"type": "list"}));
    drop(client);
    assert!(matches!(scene.next(), ClusterEvent::Lost { .. }));
    let (mut client, _) = scene.introduced();
    client.say(&json!({"type": "list"}));
    client.say(&pod("b"));
    client.say(&json!({"type": "listed"}));
    let change = scene.change();
    assert_eq!(
        (uids(&change), change.gone),
        (vec!["b".to_owned()], vec!["a".into()])
    );
}

/// Whoever creates pods can write these annotations, and the UIDs of others can be read.
#[test]
fn no_pod_says_of_itself_that_it_is_static_or_another_one() {
    let mut scene = Scene::new();
    let (mut client, _) = scene.introduced();
    let with = |uid: &str, annotations: Value| {
        let mut pod = pod(uid);
        pod["pod"]["metadata"]["annotations"] = annotations;
        pod
    };
    let image = |of: &str| json!({"kubernetes.io/config.mirror": of, "kubernetes.io/config.hash": of, "kubernetes.io/config.source": "file"});
    client.say(&json!({"type": "list"}));
    client.say(&pod("victim"));
    client.say(&with("mirror", image(HASH)));
    client.say(&json!({"type": "listed"}));
    let listed = scene.change();
    assert_eq!(uids(&listed), ["victim", HASH]);
    assert_eq!(listed.pods[1].pod.exemption(), Some(Exemption::Static));
    for (uid, annotations) in [
        (
            "says-static",
            json!({"kubernetes.io/config.source": "file"}),
        ),
        ("says-mirror", json!({"kubernetes.io/config.mirror": "x"})),
        ("of-the-victim", image("victim")),
        ("second-mirror", image(HASH)),
        // It becomes no other one, either.
        ("victim", image("0123456789abcdef0123456789abcde0")),
    ] {
        client.say(&with(uid, annotations));
        let change = scene.change();
        assert_eq!(uids(&change), [uid]);
        assert_eq!(change.pods[0].pod.exemption(), None, "{uid}");
        if uid != "victim" {
            client.say(&json!({"type": "pod_gone", "uid": uid}));
            assert_eq!(scene.change().gone, [PodUid::from(uid)]);
        }
    }
    client.say(&with("mirror", json!({})));
    assert_eq!(uids(&scene.change()), [HASH]);
}

#[test]
fn hostile_frames_are_refused_counted_and_change_nothing() {
    let mut scene = Scene::new();
    let (mut client, _) = scene.introduced();
    let hostile = [
        b"{".to_vec(),
        b"\xff\xfe".to_vec(),
        json!({"type": "reboot"}).to_string().into_bytes(),
        json!({"type": "listed"}).to_string().into_bytes(),
        json!({"type": "pod_gone", "uid": "never-heard-of"})
            .to_string()
            .into_bytes(),
        json!({"type": "settled", "uid": "never-heard-of", "how": "gone"})
            .to_string()
            .into_bytes(),
        json!({"type": "reported", "uid": "never-heard-of"})
            .to_string()
            .into_bytes(),
        json!({"type": "hello", "protocol": PROTOCOL, "node": "again"})
            .to_string()
            .into_bytes(),
        overused(1, &json!([{"namespace": "../../etc", "excess": 1}]))
            .to_string()
            .into_bytes(),
        overused(1, &json!([{"namespace": "a", "excess": 1001}]))
            .to_string()
            .into_bytes(),
        overused(60_001, &json!([])).to_string().into_bytes(),
        overused(
            1,
            &json!([{"namespace": "a", "excess": 1}, {"namespace": "a", "excess": 2}]),
        )
        .to_string()
        .into_bytes(),
        overused(1, &json!(vec![json!({"namespace": "a", "excess": 1}); 257]))
            .to_string()
            .into_bytes(),
        pod("../../etc").to_string().into_bytes(),
        pod("").to_string().into_bytes(),
        // Deeper than any parser goes, and more values than a pod has.
        [b"[".repeat(20_000), b"]".repeat(20_000)].concat(),
        format!(
            "{{\"type\":\"pod\",\"pod\":{{\"spec\":{{\"containers\":[{}{{}}]}}}}}}",
            "{},".repeat(300_000)
        )
        .into_bytes(),
    ];
    let count = hostile.len() as u64;
    for frame in &hostile {
        assert!(frame.len() <= FRAMING.bytes_max);
        client.say_bytes(frame);
    }
    // The first is said; then only what is right is heard of.
    assert!(matches!(scene.next(), ClusterEvent::Warning(_)));
    client.say(&pod("a"));
    assert_eq!(uids(&scene.change()), ["a"]);
    scene.refused(count);
}

#[test]
fn a_list_of_overused_namespaces_holds_from_when_it_came() {
    let mut scene = Scene::new();
    let (mut client, _) = scene.introduced();
    let before_ns = now_ns();
    let both = json!([{"namespace": "b", "excess": 7}, {"namespace": "a", "excess": 30}]);
    client.say(&overused(60_000, &both));
    let ClusterEvent::Overused(list) = scene.next() else {
        panic!("no list");
    };
    let found: Vec<(&str, u16)> = list
        .namespaces
        .iter()
        .map(|it| (it.namespace.as_str(), it.excess))
        .collect();
    assert_eq!(found, [("a", 30), ("b", 7)]);
    let (from, to) = (before_ns + 60_000_000_000, now_ns() + 60_000_000_000);
    assert!((from..=to).contains(&list.until_ns));
    // And the other way: what is withheld is said again after each connection.
    scene.link.as_ref().unwrap().withheld(4096);
    let withheld = json!({"type": "withheld", "memory_bytes": 4096});
    assert_eq!(client.hear(), withheld);
    drop(client);
    assert!(matches!(scene.next(), ClusterEvent::Lost { .. }));
    let (_client, heard) = scene.introduced();
    assert!(heard.contains(&withheld), "{heard:?}");
}

#[test]
fn a_client_that_goes_while_the_loop_is_behind_is_missed_all_the_same() {
    let mut scene = Scene::new();
    let (mut client, _) = scene.introduced();
    // More than the loop's queue takes, and few enough for the socket's buffer: nobody reads while they are written.
    for _ in 0..EVENTS * 4 {
        client.say(&json!({"type": "api", "is_reachable": true}));
    }
    drop(client);
    let mut heard = 0;
    while !matches!(scene.next(), ClusterEvent::Lost { .. }) {
        heard += 1;
    }
    assert!(heard > 0);
}

#[test]
fn two_thousand_pods_are_taken_up_to_the_bound() {
    let mut scene = Scene::new();
    let (mut client, _) = scene.introduced();
    client.say(&json!({"type": "list"}));
    for number in 0..2000 {
        client.say(&pod(&format!("u{number}")));
    }
    client.say(&json!({"type": "listed"}));
    assert!(matches!(scene.next(), ClusterEvent::Warning(_)));
    let change = scene.change();
    assert_eq!(change.pods.len(), PODS_MAX);
    scene.refused(2000 - PODS_MAX as u64);
}

#[test]
fn a_frame_that_is_too_long_or_cut_off_costs_the_connection() {
    let mut scene = Scene::new();
    let (mut client, _) = scene.introduced();
    let length = u32::try_from(FRAMING.bytes_max + 1).unwrap();
    client.0.write_all(&length.to_le_bytes()).unwrap();
    assert!(client.is_sent_away());
    let ClusterEvent::Lost { why } = scene.next() else {
        panic!("not lost");
    };
    assert!(why.contains("1048577"), "{why}");
    let (mut client, _) = scene.introduced();
    client.0.write_all(&100_u32.to_le_bytes()).unwrap();
    client.0.write_all(b"{\"type\":").unwrap();
    drop(client);
    assert!(matches!(scene.next(), ClusterEvent::Lost { .. }));
    // Before Hello nothing is believed.
    let mut client = scene.client();
    client.say(&pod("a"));
    client.say(&json!({"type": "hello", "protocol": 99, "node": "n"}));
    assert!(client.is_sent_away());
    for word in ["not Hello", "protocol 99"] {
        let ClusterEvent::Warning(text) = scene.next() else {
            panic!("no warning");
        };
        assert!(text.contains(word), "{text}");
    }
    let (mut client, _) = scene.introduced();
    client.say(&pod("b"));
    assert_eq!(uids(&scene.change()), ["b"]);
}

#[test]
fn one_client_at_a_time() {
    let mut scene = Scene::new();
    assert!(!scene.is_connected());
    let (mut first, _) = scene.introduced();
    assert!(scene.is_connected());
    let mut second = scene.client();
    assert!(second.is_sent_away());
    assert_eq!(scene.counts()[3], 1);
    first.say(&json!({"type": "api", "is_reachable": false}));
    assert_eq!(
        scene.next(),
        ClusterEvent::Api {
            is_reachable: false
        }
    );
    drop(first);
    let lost = scene.next();
    assert!(matches!(lost, ClusterEvent::Lost { .. }), "{lost:?}");
    assert!(!scene.is_connected());
}

#[test]
fn an_eviction_is_sent_again_after_each_connection_until_it_is_settled() {
    let mut scene = Scene::new();
    // Nobody is there: it waits on the disk.
    assert!(scene.link.as_ref().unwrap().evicted(intent("a")));
    assert!(scene.link.as_ref().unwrap().evicted(intent("a")));
    while scene.counts()[0] == 0 {
        std::thread::yield_now();
    }
    for _ in 0..2 {
        let (client, heard) = scene.introduced();
        let evicted: Vec<&Value> = heard
            .iter()
            .filter(|one| one["type"] == "evicted")
            .collect();
        assert_eq!(evicted.len(), 1);
        assert_eq!(evicted[0]["intent"]["uid"], "a");
        drop(client);
        assert!(matches!(scene.next(), ClusterEvent::Lost { .. }));
    }
    assert_eq!(scene.counts()[0], 1);
    // The agent is replaced.
    scene.link = None;
    let (link, events, left) = start(scene.dir.path());
    assert_eq!(left.unsettled, [PodUid::from("a")].into());
    // Without grace: what runs in it now was started again.
    assert_eq!(left.killed, left.unsettled);
    (scene.link, scene.events) = (Some(link), events);
    let (mut client, heard) = scene.introduced();
    assert_eq!(heard[0]["type"], "hello");
    assert_eq!(heard[0]["soft_grace_s"], 60);
    assert_eq!(heard[1]["intent"]["decidedUnixMs"], 7);
    assert!(scene.link.as_ref().unwrap().evicted(intent("b")));
    assert_eq!(client.hear()["intent"]["uid"], "b");
    // Its hold is given up, and its cgroup goes: who connects next hears of both, too.
    assert!(scene.link.as_ref().unwrap().let_go("b".into()));
    assert!(scene.link.as_ref().unwrap().cgroup_gone("b".into()));
    let let_go = json!({"type": "let_go", "uid": "b"});
    let gone = json!({"type": "cgroup_gone", "uid": "b"});
    assert_eq!(client.hear(), let_go);
    assert_eq!(client.hear(), gone);
    drop(client);
    assert!(matches!(scene.next(), ClusterEvent::Lost { .. }));
    let (mut client, heard) = scene.introduced();
    assert!(heard.contains(&gone), "{heard:?}");
    let is_let_go = |uid: &str| {
        let frame = heard.iter().find(|frame| frame["intent"]["uid"] == uid);
        frame.unwrap()["is_let_go"] == true
    };
    assert!(is_let_go("b") && !is_let_go("a"), "{heard:?}");
    client.say(&json!({"type": "reported", "uid": "b"}));
    assert_eq!(scene.next(), ClusterEvent::Reported { uid: "b".into() });
    client.say(&json!({"type": "settled", "uid": "a", "how": "shown"}));
    let settled = ClusterEvent::Settled {
        uid: "a".into(),
        how: Settled::Shown,
    };
    assert_eq!(scene.next(), settled);
    scene.link = None;
    let (_link, _events, left) = start(scene.dir.path());
    assert_eq!(left.unsettled, [PodUid::from("b")].into());
    assert!(left.killed.is_empty(), "it was let go");
}

#[test]
fn the_newest_zones_are_sent_and_again_after_each_connection() {
    use plimsoll_core::kube::node_resource_topology::{NodeTopology, Zone};
    let mut scene = Scene::new();
    let slot = scene.link.as_ref().unwrap().topology();
    let with = |zones: usize| NodeTopology {
        zones: vec![Zone::default(); zones],
        ..NodeTopology::default()
    };
    let (mut client, heard) = scene.introduced();
    assert!(heard.iter().all(|frame| frame["type"] != "node_topology"));
    slot.put(with(2));
    let frame = client.hear();
    assert_eq!(frame["type"], "node_topology");
    assert_eq!(frame["topology"]["zones"].as_array().unwrap().len(), 2);
    drop(client);
    assert!(matches!(scene.next(), ClusterEvent::Lost { .. }));
    let (mut client, heard) = scene.introduced();
    let zones = |frame: &Value| frame["topology"]["zones"].as_array().map(Vec::len);
    assert_eq!(heard.iter().find_map(zones), Some(2));
    slot.put(with(3));
    slot.put(with(4));
    while zones(&client.hear()) != Some(4) {}
}

#[test]
fn zones_that_do_not_fit_into_a_frame_are_not_sent_and_end_no_connection() {
    use plimsoll_core::kube::node_resource_topology::{ListedPod, NodeTopology};
    let mut scene = Scene::new();
    let slot = scene.link.as_ref().unwrap().topology();
    let (mut client, _) = scene.introduced();
    let pod = ListedPod {
        namespace: "n".repeat(253),
        name: "p".repeat(253),
        held: Vec::new(),
    };
    slot.put(NodeTopology {
        pods: vec![pod; 4096],
        ..NodeTopology::default()
    });
    slot.put(NodeTopology {
        pods: Vec::new(),
        ..NodeTopology::default()
    });
    assert_eq!(client.hear()["type"], "node_topology");
}
