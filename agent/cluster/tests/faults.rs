//! An API server that answers nonsense, nothing, too much or too slowly; and an agent that does. A small HTTP server in
//! this process stands for the former: what a real one does is in api_server.rs.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod support;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use plimsoll_core::protocol::cluster_link::{
    FRAMING, NodeConditionReport, PODS_MAX, PlimsollCondition, Settled, ToCluster,
};
use serde_json::{Value, json};
use support::agent::{Agent, intent};
use support::program::Program;
use support::{run, until};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How requests are answered now.
#[derive(Debug, Clone, PartialEq)]
enum Mood {
    /// As an API server does.
    Right,
    /// This code, with a body that is no Status.
    Code(u16),
    /// 200, and bytes that are no JSON.
    Garbage,
    /// No answer at all.
    Silent,
    /// A list of so many pods of so many bytes each, on any node.
    Large { pods: usize, bytes: usize },
    /// One item of a list is no pod, one is of another node.
    Mixed,
}

struct State {
    mood: watch::Sender<Mood>,
    /// Tokens that came, in order, each once.
    tokens: Mutex<Vec<String>>,
    /// Requests by method and path.
    requests: Mutex<BTreeMap<String, usize>>,
    pods: Mutex<Vec<Value>>,
    node: Mutex<&'static str>,
    /// `node-1`, with what was written.
    object: Mutex<Value>,
    /// While it is set a write of the node's status is stored and answered only when it no longer is, but what takes
    /// conditions away at once.
    holds: watch::Sender<bool>,
    valid_token: Mutex<Option<String>>,
}

struct Fake {
    state: Arc<State>,
    port: u16,
    folder: TempDir,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

fn respond(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

/// Of the size of a real one.
fn pod(uid: &str, node: &str, padding: usize) -> Value {
    json!({"metadata": {"name": format!("pod-{uid}"), "namespace": "shop", "uid": uid, "resourceVersion": "5",
            "managedFields": [{"fieldsV1": "x".repeat(padding)}]},
        "spec": {"nodeName": node, "containers": [{"name": "app", "resources": {"requests": {"memory": "64Mi", "cpu": "10m"}}}]},
        "status": {"phase": "Running", "qosClass": "Burstable"}})
}

fn list(items: &[Value]) -> Body {
    let list = json!({"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": items});
    body(list.to_string())
}

/// An answer whose bytes are made while they are sent.
fn large(pods: usize, bytes: usize) -> Body {
    let stream = tokio_stream(pods, bytes);
    StreamBody::new(stream).boxed_unsync()
}

fn tokio_stream(
    pods: usize,
    bytes: usize,
) -> impl futures_core::Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let mut at = 0;
    let mut ended = false;
    PollFn(move || {
        if ended {
            return None;
        }
        let text = if at == 0 {
            r#"{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":["#.to_owned()
        } else if at <= pods {
            let comma = if at == 1 { "" } else { "," };
            format!("{comma}{}", pod(&format!("large-{at}"), "node-1", bytes))
        } else {
            ended = true;
            "]}".to_owned()
        };
        at += 1;
        Some(Ok(Frame::data(Bytes::from(text))))
    })
}

/// A stream that always has its next item at once.
struct PollFn<F>(F);

impl<F: FnMut() -> Option<T> + Unpin, T> futures_core::Stream for PollFn<F> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        std::task::Poll::Ready((self.0)())
    }
}

impl Fake {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            mood: watch::Sender::new(Mood::Right),
            tokens: Mutex::default(),
            requests: Mutex::default(),
            pods: Mutex::new(vec![pod("u1", "node-1", 10), pod("u2", "node-1", 10)]),
            node: Mutex::new("node-1"),
            object: Mutex::new(
                json!({"metadata": {"name": "node-1", "uid": "nu", "resourceVersion": "4"},
                "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            ),
            holds: watch::Sender::new(false),
            valid_token: Mutex::default(),
        });
        let served = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = served.clone();
                tokio::spawn(async move {
                    // A change of mood ends what is open, as a restart does.
                    let mut mood = state.mood.subscribe();
                    let service = service_fn(|request| answer(state.clone(), request));
                    let connection =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    tokio::select! {
                        _ = connection => {}
                        _ = mood.changed() => {}
                    }
                });
            }
        });
        let folder = tempfile::tempdir().unwrap();
        // As an editor leaves it.
        std::fs::write(folder.path().join("token"), "first\n").unwrap();
        Self {
            state,
            port,
            folder,
        }
    }

    fn kubeconfig(&self) -> PathBuf {
        let path = self.folder.path().join("config");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters:\n- name: x\n  cluster: {{server: \"http://127.0.0.1:{}\"}}\nusers:\n\
             - name: x\n  user: {{tokenFile: {}}}\ncontexts:\n- name: x\n  context: {{cluster: x, user: x}}\n",
            self.port,
            self.folder.path().join("token").to_string_lossy()
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    fn set(&self, mood: Mood) {
        self.state.mood.send_replace(mood);
    }

    fn requests(&self, what: &str) -> usize {
        let requests = self.state.requests.lock().unwrap();
        requests
            .iter()
            .filter(|(name, _)| name.contains(what))
            .map(|(_, count)| count)
            .sum()
    }
}

async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (parts, sent) = request.into_parts();
    let sent = sent
        .collect()
        .await
        .map(|sent| sent.to_bytes())
        .unwrap_or_default();
    let (path, query) = (
        parts.uri.path().to_owned(),
        parts.uri.query().unwrap_or_default().to_owned(),
    );
    let watches = query.contains("watch=1");
    let name = format!(
        "{} {path}{}",
        parts.method,
        if watches { " watch" } else { "" }
    );
    *state.requests.lock().unwrap().entry(name).or_default() += 1;
    let agent = parts.headers.get("user-agent").unwrap();
    let program = concat!("plimsoll-cluster/", env!("CARGO_PKG_VERSION"));
    assert_eq!(agent, program);
    let token = parts
        .headers
        .get("authorization")
        .map(|value| value.to_str().unwrap().to_owned())
        .unwrap_or_default();
    {
        let mut tokens = state.tokens.lock().unwrap();
        if tokens.last() != Some(&token) {
            tokens.push(token.clone());
        }
    }
    let valid = state.valid_token.lock().unwrap().clone();
    if valid.is_some_and(|valid| token != format!("Bearer {valid}")) {
        return Ok(respond(
            401,
            body(r#"{"kind":"Status","reason":"Unauthorized"}"#),
        ));
    }
    let mood = state.mood.borrow().clone();
    match mood {
        Mood::Code(code) => return Ok(respond(code, body("<html>no Status</html>"))),
        Mood::Garbage => return Ok(respond(200, body(vec![0xff; 300_000]))),
        Mood::Silent => std::future::pending().await,
        _ => {}
    }
    if watches {
        // Open, and nothing happens.
        let open = StreamBody::new(PollPending).boxed_unsync();
        return Ok(respond(200, open));
    }
    Ok(match (parts.method.as_str(), path.as_str()) {
        ("GET", "/api/v1/pods") => respond(
            200,
            match mood {
                Mood::Large { pods, bytes } => large(pods, bytes),
                Mood::Mixed => list(&[
                    json!("no pod"),
                    pod("u1", "node-1", 9),
                    json!({"metadata": 7}),
                    pod("other", "node-2", 9),
                    json!({}),
                ]),
                _ => list(&state.pods.lock().unwrap()),
            },
        ),
        ("GET", "/api/v1/nodes") => {
            let name = *state.node.lock().unwrap();
            let node = json!({"metadata": {"name": name, "uid": "nu", "resourceVersion": "4"}, "status": {"nodeInfo": {"kubeletVersion": "v1.36.2"}}});
            let is_asked_for = query.contains(&format!("metadata.name%3D{name}"));
            respond(
                200,
                list(if is_asked_for {
                    std::slice::from_ref(&node)
                } else {
                    &[]
                }),
            )
        }
        ("GET", "/api/v1/nodes/node-1") => {
            respond(200, body(state.object.lock().unwrap().to_string()))
        }
        ("PATCH", "/api/v1/nodes/node-1") => {
            let patch: Value = serde_json::from_slice(&sent).unwrap();
            let mut node = state.object.lock().unwrap();
            if !patch_taints(&mut node, &patch) {
                return Ok(respond(
                    422,
                    body(r#"{"kind":"Status","reason":"Invalid"}"#),
                ));
            }
            count_up(&mut node);
            respond(200, body(node.to_string()))
        }
        ("GET", "/api/v1") => respond(200, body(json!({"resources": []}).to_string())),
        ("GET", "/apis/policy") => respond(
            200,
            body(json!({"versions": [{"version": "v1"}]}).to_string()),
        ),
        ("PATCH", status) if status.ends_with("/status") => {
            let patch: Value = serde_json::from_slice(&sent).unwrap();
            let uid = patch["metadata"]["uid"].as_str().unwrap_or("u1").to_owned();
            if status.starts_with("/api/v1/nodes/") {
                if !is_removal(&patch) {
                    let mut holds = state.holds.subscribe();
                    let _open = holds.wait_for(|holds| !holds).await;
                }
                let mut node = state.object.lock().unwrap();
                patch_status(&mut node, &patch);
                return Ok(respond(200, body(node.to_string())));
            }
            let mut pod = pod(&uid, "node-1", 9);
            pod["status"] = patch["status"].clone();
            pod["metadata"]["annotations"] = patch["metadata"]["annotations"].clone();
            respond(200, body(pod.to_string()))
        }
        ("POST", _) => respond(201, body(sent)),
        _ => respond(
            404,
            body(r#"{"kind":"Status","reason":"NotFound","code":404}"#),
        ),
    })
}

fn is_removal(patch: &Value) -> bool {
    patch["status"]["conditions"][0]["$patch"] == "delete"
}

fn count_up(node: &mut Value) {
    let version = node["metadata"]["resourceVersion"].as_str().unwrap();
    let next = version.parse::<u64>().unwrap() + 1;
    node["metadata"]["resourceVersion"] = json!(next.to_string());
}

/// As an API server carries out a JSON patch of the taints, of which there are some. False: a step cannot be done, and
/// none is.
fn patch_taints(node: &mut Value, steps: &Value) -> bool {
    let mut changed = node.clone();
    let done = steps.as_array().unwrap().iter().all(|step| {
        let path = step["path"].as_str().unwrap();
        let taints = changed["spec"]["taints"].as_array().unwrap();
        match (
            step["op"].as_str().unwrap(),
            path.strip_prefix("/spec/taints/"),
        ) {
            ("test", _) => changed.pointer(path) == Some(&step["value"]),
            ("add", Some("-")) => {
                changed["spec"]["taints"] =
                    taints.iter().chain([&step["value"]]).cloned().collect();
                true
            }
            ("remove", Some(place)) => {
                let place = place.parse::<usize>().unwrap();
                let is_there = place < taints.len();
                let others = taints.iter().enumerate().filter(|(at, _)| *at != place);
                changed["spec"]["taints"] = others.map(|(_, taint)| taint.clone()).collect();
                is_there
            }
            other => panic!("{other:?}"),
        }
    });
    if done {
        *node = changed;
    }
    done
}

/// As an API server merges conditions and annotations.
fn patch_status(node: &mut Value, patch: &Value) {
    let given = patch["status"]["conditions"].as_array().unwrap();
    let conditions = node["status"]["conditions"].as_array_mut().unwrap();
    conditions.retain(|known| given.iter().all(|new| new["type"] != known["type"]));
    conditions.extend(
        given
            .iter()
            .filter(|new| new["$patch"] != "delete")
            .cloned(),
    );
    let annotations = patch["metadata"]["annotations"].as_object();
    for (key, value) in annotations.into_iter().flatten() {
        node["metadata"]["annotations"][key] = value.clone();
    }
    count_up(node);
}

struct PollPending;

impl futures_core::Stream for PollPending {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}

async fn beside(fake: &Fake) -> (Agent, Program) {
    let mut agent = Agent::new();
    let program = Program::start("node-1", &fake.kubeconfig(), &agent.socket(), &[]);
    agent.accept().await;
    (agent, program)
}

#[test]
fn whatever_the_api_server_answers_the_pods_stay_and_the_evictions_wait() {
    run(async {
        let fake = Fake::start().await;
        let moods = [
            Mood::Code(500),
            Mood::Garbage,
            Mood::Silent,
            Mood::Code(429),
            Mood::Code(401),
            // A load balancer without an API server behind it, a login page.
            Mood::Code(404),
            Mood::Code(302),
        ];
        let uid = |at: usize| format!("m{at}");
        let pods = (0..moods.len())
            .map(|at| pod(&uid(at), "node-1", 9))
            .collect();
        *fake.state.pods.lock().unwrap() = pods;
        let (mut agent, program) = beside(&fake).await;
        agent.until("the list", |known| known.is_listed).await;
        for (at, mood) in moods.iter().enumerate() {
            let (before, all) = (fake.requests(""), moods.len());
            fake.set(mood.clone());
            agent
                .evict(&uid(at), &format!("pod-{}", uid(at)), 1_795_341_600_000, 0)
                .await;
            until("it to be tried", async || {
                let waits = program.metric("unreported_evictions", "").await == 1.0;
                (waits && fake.requests("") > before + 3).then_some(())
            })
            .await;
            assert_eq!(
                (agent.known.pods.len(), agent.known.gone),
                (all, 0),
                "{mood:?}"
            );
            fake.set(Mood::Right);
            agent
                .until("its report", |known| known.reported.len() == at + 1)
                .await;
            agent.cgroup_gone(&uid(at)).await;
            agent
                .until("its end", |known| known.settled.len() == at + 1)
                .await;
        }
        assert!(
            agent
                .known
                .settled
                .values()
                .all(|how| *how == Settled::Shown)
        );
        assert!(program.memory_kb("VmHWM") < 64 << 10);
    });
}

#[test]
fn a_list_of_a_hundred_megabytes_takes_no_memory() {
    run(async {
        let fake = Fake::start().await;
        // Each byte is looked at, and the whole has to be there within two minutes.
        fake.set(Mood::Large {
            pods: 12_500,
            bytes: 8_000,
        });
        let (mut agent, program) = beside(&fake).await;
        agent.until("the list", |known| known.is_listed).await;
        assert_eq!(agent.known.pods.len(), PODS_MAX);
        until("what is beyond to be counted", async || {
            // On a slow machine the list may have been repeated by now, and counted again.
            (program.metric("dropped_total", "of=\"too_many\"").await >= 12_500.0 - PODS_MAX as f64)
                .then_some(())
        })
        .await;
        let peak_kb = program.memory_kb("VmHWM");
        support::notes::note(format_args!(
            "plimsoll-cluster, a list of 100 MB (debug build): {peak_kb} kB at most"
        ));
        // 26 MB without the list.
        assert!(peak_kb < 48 << 10, "{peak_kb}");
    });
}

#[test]
fn one_object_that_is_no_pod_hides_no_other() {
    run(async {
        let fake = Fake::start().await;
        fake.set(Mood::Mixed);
        let (mut agent, program) = beside(&fake).await;
        agent.until("the list", |known| known.is_listed).await;
        assert_eq!(agent.known.pods, ["u1".into()].into());
        until("what was not taken to be counted", async || {
            let (garbage, other) = (
                program.metric("dropped_total", "of=\"garbage\"").await,
                program.metric("dropped_total", "of=\"other_node\"").await,
            );
            (garbage >= 2.0 && other >= 1.0).then_some(())
        })
        .await;
    });
}

/// Where budgets are not served, or may not be read, the rest of the cluster is there all the same.
#[test]
fn one_collection_that_is_refused_makes_the_api_server_no_less_reachable() {
    run(async {
        let fake = Fake::start().await;
        let mut agent = Agent::new();
        let options = ["--respect-disruption-budgets"];
        let program = Program::start("node-1", &fake.kubeconfig(), &agent.socket(), &options);
        agent.accept().await;
        agent.until("the list", |known| known.is_listed).await;
        // Errors alone for 5 s make it unreachable: the fifth question is later than that.
        until("budgets to be asked for again and again", async || {
            (fake.requests("poddisruptionbudgets") >= 5).then_some(())
        })
        .await;
        assert_eq!(program.metric("api_reachable", "").await, 1.0);
        assert_eq!(
            fake.requests("/apis/policy") - fake.requests("poddisruptionbudgets"),
            1
        );
        agent.evict("u1", "pod-u1", 1_795_341_600_000, 0).await;
        agent
            .until("the report", |known| !known.reported.is_empty())
            .await;
        assert_eq!(agent.known.is_reachable, Some(true));
    });
}

#[test]
fn a_token_that_is_replaced_is_read_again() {
    run(async {
        let fake = Fake::start().await;
        let (mut agent, _program) = beside(&fake).await;
        agent.until("the list", |known| known.is_listed).await;
        // The old one expires, and the new one is in the file.
        *fake.state.valid_token.lock().unwrap() = Some("second".to_owned());
        std::fs::write(fake.folder.path().join("token"), "second").unwrap();
        agent.evict("u1", "pod-u1", 1_795_341_600_000, 0).await;
        agent
            .until("the report", |known| !known.reported.is_empty())
            .await;
        assert_eq!(
            *fake.state.tokens.lock().unwrap(),
            ["Bearer first", "Bearer second"]
        );
    });
}

/// A node that was renamed, or whose name was given wrongly: it is said, it is looked for, and nothing of it is written
/// meanwhile.
#[test]
fn a_node_that_the_api_server_does_not_have() {
    run(async {
        let fake = Fake::start().await;
        *fake.state.node.lock().unwrap() = "renamed";
        fake.state.pods.lock().unwrap().clear();
        let (mut agent, program) = beside(&fake).await;
        agent.until("the list", |known| known.is_listed).await;
        assert!(agent.known.pods.is_empty());
        agent.send(&stalled()).await;
        // What was decided under the other name is of a pod that is not here any more.
        agent.evict("u1", "pod-u1", 1_795_341_600_000, 0).await;
        agent
            .until("its end", |known| known.settled.len() == 1)
            .await;
        assert_eq!(agent.known.settled.values().next(), Some(&Settled::Gone));
        assert_eq!(program.metric("node_known", "").await, 0.0);
        assert_eq!(fake.requests("PATCH"), 0);
        // It is there under its name: a watch that ends shows it.
        *fake.state.node.lock().unwrap() = "node-1";
        fake.set(Mood::Code(410));
        until("a new list", async || {
            (fake.requests("GET /api/v1/nodes") > 2).then_some(())
        })
        .await;
        fake.set(Mood::Right);
        until("the node", async || {
            (program.metric("node_known", "").await == 1.0).then_some(())
        })
        .await;
        until("its condition", async || {
            (fake.requests("PATCH /api/v1/nodes/node-1/status") == 1).then_some(())
        })
        .await;
    });
}

fn stalled() -> ToCluster {
    let condition = NodeConditionReport {
        condition: PlimsollCondition::Stalled,
        status: false,
        reason: "Any".into(),
        message: "m".into(),
        since_unix_ms: 1_795_341_600_000,
    };
    ToCluster::Conditions {
        conditions: vec![condition],
    }
}

/// Neither 1970 nor the end of all years keeps an eviction from being told, nor lengthens its grace.
#[test]
fn a_clock_that_is_wrong() {
    run(async {
        let fake = Fake::start().await;
        let times = [0, 1, 253_402_300_799_999, u64::MAX];
        let uid = |at: usize| format!("c{at}");
        *fake.state.pods.lock().unwrap() = (0..times.len())
            .map(|at| pod(&uid(at), "node-1", 9))
            .collect();
        let (mut agent, program) = beside(&fake).await;
        agent.until("the list", |known| known.is_listed).await;
        for (at, decided_ms) in times.into_iter().enumerate() {
            agent
                .evict(&uid(at), &format!("pod-{}", uid(at)), decided_ms, 30)
                .await;
            agent.cgroup_gone(&uid(at)).await;
        }
        agent
            .until("their ends", |known| known.settled.len() == times.len())
            .await;
        let is_shown = |how: &Settled| *how == Settled::Shown;
        assert!(agent.known.settled.values().all(is_shown));
        assert!(
            program
                .metric("oldest_unreported_eviction_age_seconds", "")
                .await
                == 0.0
        );
    });
}

/// Scenario 36.
#[test]
fn many_intents_while_the_api_server_comes_and_goes() {
    run(async {
        let fake = Fake::start().await;
        let count = 12;
        *fake.state.pods.lock().unwrap() = (0..count)
            .map(|at| pod(&format!("f{at}"), "node-1", 10))
            .collect();
        let (mut agent, _program) = beside(&fake).await;
        agent.until("the list", |known| known.is_listed).await;
        let state = fake.state.clone();
        let flapping = tokio::spawn(async move {
            for _ in 0..4 {
                for mood in [Mood::Code(503), Mood::Right] {
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                    state.mood.send_replace(mood);
                }
            }
        });
        for at in 0..count {
            agent
                .evict(
                    &format!("f{at}"),
                    &format!("pod-f{at}"),
                    1_795_341_600_000,
                    0,
                )
                .await;
        }
        while agent.known.settled.len() < count {
            let ended: Vec<_> = agent.known.reported.drain(..).collect();
            for uid in ended {
                agent.cgroup_gone(uid.as_str()).await;
            }
            agent.hear().await;
        }
        flapping.await.unwrap();
        assert!(
            agent
                .known
                .settled
                .values()
                .all(|how| *how == Settled::Shown)
        );
    });
}

/// What the agent may send, and does not.
#[test]
fn an_agent_that_sends_nonsense_is_left_and_called_again() {
    run(async {
        let fake = Fake::start().await;
        let (mut agent, program) = beside(&fake).await;
        let too_long = u32::try_from(FRAMING.bytes_max + 1).unwrap().to_le_bytes();
        let nonsense: [&[u8]; 5] = [
            &too_long,
            &u32::MAX.to_le_bytes(),
            b"\x04\0\0\0null",
            b"\x02\0\0\0{}",
            b"\x01\0\0\0\xff",
        ];
        for bytes in nonsense {
            agent.send_raw(bytes).await;
            while agent.is_open().await {}
            agent.close();
            agent.accept().await;
            agent.until("the list", |known| known.is_listed).await;
        }
        // Half a frame, and then the end.
        agent.send_raw(b"\x40\0\0\0{\"type\":\"evi").await;
        agent.close();
        agent.accept().await;
        agent.until("the list", |known| known.is_listed).await;
        // A UID that the API does not have ends with an Event.
        agent
            .send(&ToCluster::Evicted {
                intent: Box::new(intent("unknown", "unknown", 1, 0)),
                is_let_go: false,
            })
            .await;
        agent
            .until("its end", |known| known.settled.len() == 1)
            .await;
        assert_eq!(agent.known.settled.values().next(), Some(&Settled::Gone));
        assert_eq!(
            fake.requests("POST /apis/events.k8s.io/v1/namespaces/shop/events"),
            1
        );
        assert!(program.memory_kb("VmHWM") < 64 << 10);
    });
}

/// What takes no frame is let go, and nothing piles up.
#[test]
fn an_agent_that_does_not_read_takes_no_memory() {
    run(async {
        let fake = Fake::start().await;
        *fake.state.pods.lock().unwrap() = (0..PODS_MAX)
            .map(|at| pod(&format!("s{at}"), "node-1", 10))
            .collect();
        let (mut agent, program) = beside(&fake).await;
        // Every change of mood makes it list again, and the agent reads nothing.
        for _ in 0..3 {
            for mood in [Mood::Code(410), Mood::Right] {
                let before = fake.requests("GET /api/v1/pods");
                fake.set(mood);
                until("a request", async || {
                    (fake.requests("GET /api/v1/pods") > before).then_some(())
                })
                .await;
            }
        }
        assert!(program.memory_kb("VmHWM") < 64 << 10);
        agent.close();
        agent.accept().await;
        agent.until("the list", |known| known.is_listed).await;
        assert_eq!(agent.known.pods.len(), PODS_MAX);
    });
}

/// Whether anything of Plimsoll is on the node, and that what others wrote there still is.
fn is_clean(fake: &Fake) -> bool {
    let node = fake.state.object.lock().unwrap().clone();
    let names = |list: &Value, key: &str| -> Vec<String> {
        let all = list.as_array().unwrap().iter();
        all.map(|it| it[key].as_str().unwrap().to_owned()).collect()
    };
    let conditions = names(&node["status"]["conditions"], "type");
    let taints = names(&node["spec"]["taints"], "key");
    assert_eq!((&*conditions[0], &*taints[0]), ("Ready", "other"));
    let withheld = &node["metadata"]["annotations"]["plimsoll.dev/withheld"];
    (conditions.len(), taints.len()) == (1, 1) && withheld.is_null()
}

/// Under pressure: condition, taint and annotation are on the node.
async fn pressed(fake: &Fake, options: &[&str]) -> (Agent, Program) {
    let mut agent = Agent::new();
    let program = Program::start("node-1", &fake.kubeconfig(), &agent.socket(), options);
    agent.accept().await;
    agent
        .send(&ToCluster::Withheld { memory_bytes: 4096 })
        .await;
    agent.send(&pressure("first")).await;
    until("condition, annotation and taint", async || {
        let node = fake.state.object.lock().unwrap().clone();
        let has = |list: &Value| list.as_array().unwrap().len() == 2;
        (has(&node["status"]["conditions"])
            && has(&node["spec"]["taints"])
            && node["metadata"]["annotations"]["plimsoll.dev/withheld"].is_string())
        .then_some(())
    })
    .await;
    (agent, program)
}

fn pressure(message: &str) -> ToCluster {
    let condition = NodeConditionReport {
        condition: PlimsollCondition::MemoryPressure,
        status: true,
        reason: "MemoryAvailable".into(),
        message: message.into(),
        since_unix_ms: 1_795_341_600_123,
    };
    ToCluster::Conditions {
        conditions: vec![condition],
    }
}

#[test]
fn asked_to_end_it_leaves_nothing_on_the_node_although_a_write_is_on_its_way() {
    run(async {
        let fake = Fake::start().await;
        let options = ["--taint-on-pressure", "--clean-up-on-exit"];
        let (mut agent, program) = pressed(&fake, &options).await;
        // A write that the API server has, and has not stored.
        let writes = || fake.requests("PATCH /api/v1/nodes/node-1/status");
        let before = writes();
        fake.state.holds.send_replace(true);
        agent.send(&pressure("second")).await;
        until("the write", async || (writes() > before).then_some(())).await;
        let before = writes();
        program.ask_to_end();
        // Who takes off what is there without waiting for it does so now; who waits does nothing, which half a second
        // shows on most machines.
        for _ in 0..50 {
            if writes() > before {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        fake.state.holds.send_replace(false);
        program.ended().await;
        // What was on its way is stored by now, whoever waits for its answer.
        until("the write to be stored", async || {
            (fake.state.holds.receiver_count() == 0).then_some(())
        })
        .await;
        assert!(is_clean(&fake), "{}", fake.state.object.lock().unwrap());
    });
}

#[test]
fn a_restart_leaves_everything_on_the_node() {
    run(async {
        let fake = Fake::start().await;
        let (_agent, program) = pressed(&fake, &["--taint-on-pressure"]).await;
        program.ask_to_end();
        program.ended().await;
        assert!(!is_clean(&fake));
    });
}
