//! Against a runtime of the tests' own making. Time is tokio's, which goes on by itself when all wait.

use std::collections::VecDeque;
use std::path::PathBuf;

use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use super::mux::{Connection, Kind, MESSAGE_BYTES_MAX, Message, Mux};
use plimsoll_core::protocol::runtime_link::{Adjustment, ContainerPlace};

use super::*;
use crate::interface::{nri, ttrpc};
use crate::tests::agent::{hear, say};

/// The runtime's end of one connection.
struct Runtime {
    stream: UnixStream,
    mux: Mux,
    messages: VecDeque<Message>,
    last: u32,
}

impl Runtime {
    async fn accept(listener: &UnixListener) -> Self {
        Self {
            stream: listener.accept().await.unwrap().0,
            mux: Mux::default(),
            messages: VecDeque::new(),
            last: 1,
        }
    }

    /// As a runtime goes on until it asks.
    async fn connect(listener: &UnixListener) -> Self {
        let mut runtime = Self::accept(listener).await;
        let call = runtime.next().await.unwrap();
        assert_eq!(
            (call.connection, call.kind),
            (Connection::Runtime, Kind::Request)
        );
        let request = ttrpc::Request::decode(&call.body[..]).unwrap();
        assert_eq!(
            (request.service.as_str(), request.method.as_str()),
            ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        );
        let plugin = nri::RegisterPluginRequest::decode(&request.payload[..]).unwrap();
        assert_eq!(
            (plugin.plugin_name.as_str(), plugin.plugin_idx.as_str()),
            ("plimsoll", "90")
        );
        let answer = Message {
            kind: Kind::Response,
            body: ttrpc::Response::default().encode_to_vec(),
            ..call
        };
        runtime
            .stream
            .write_all(&answer.encode().unwrap())
            .await
            .unwrap();
        let configure = nri::ConfigureRequest {
            runtime_name: "stand-in".to_owned(),
            runtime_version: "1.0".to_owned(),
        };
        let configured = runtime.call("Configure", &configure).await;
        let configured = nri::ConfigureResponse::decode(&configured.payload[..]).unwrap();
        // CREATE_CONTAINER, UPDATE_CONTAINER, POST_UPDATE_CONTAINER: each further event would be one more thing that a
        // container's start waits for.
        assert_eq!(configured.events, 0b1_1000_1000);
        for more in [true, false] {
            let request = nri::SynchronizeRequest { more };
            let response = runtime.call("Synchronize", &request).await;
            let response = nri::SynchronizeResponse::decode(&response.payload[..]).unwrap();
            assert_eq!(response.more, more);
        }
        runtime
    }

    async fn next(&mut self) -> Option<Message> {
        let mut bytes = [0; 1000];
        while self.messages.is_empty() {
            let read = self.stream.read(&mut bytes).await.unwrap_or(0);
            if read == 0 {
                return None;
            }
            self.messages.extend(self.mux.take(&bytes[..read]).unwrap());
        }
        self.messages.pop_front()
    }

    fn request(&mut self, method: &str, payload: Vec<u8>) -> Vec<u8> {
        self.last += 2;
        let request = ttrpc::Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method: method.to_owned(),
            payload,
        };
        let message = Message {
            connection: Connection::Plugin,
            stream: self.last,
            kind: Kind::Request,
            body: request.encode_to_vec(),
        };
        message.encode().unwrap()
    }

    async fn call(&mut self, method: &str, request: &impl prost::Message) -> ttrpc::Response {
        let bytes = self.request(method, request.encode_to_vec());
        self.stream.write_all(&bytes).await.unwrap();
        let answer = self.next().await.unwrap();
        assert_eq!(
            (answer.connection, answer.kind, answer.stream),
            (Connection::Plugin, Kind::Response, self.last)
        );
        ttrpc::Response::decode(&answer.body[..]).unwrap()
    }

    async fn create(&mut self, pod: &str, container: &str) -> ttrpc::Response {
        self.call("CreateContainer", &creation(pod, container))
            .await
    }

    /// The plugin has left.
    async fn is_left(&mut self) -> bool {
        self.next().await.is_none()
    }
}

fn creation(pod: &str, container: &str) -> nri::CreateContainerRequest {
    nri::CreateContainerRequest {
        pod: Some(nri::PodSandbox {
            uid: pod.to_owned(),
        }),
        container: Some(nri::Container {
            id: format!("id-of-{container}"),
            name: container.to_owned(),
            linux: Some(nri::LinuxContainer {
                resources: None,
                oom_score_adj: Some(nri::OptionalInt { value: 1000 }),
            }),
        }),
    }
}

fn score(response: &ttrpc::Response) -> Option<i64> {
    assert_eq!(response.status, None);
    let response = nri::CreateContainerResponse::decode(&response.payload[..]).unwrap();
    Some(response.adjust?.linux?.oom_score_adj?.value)
}

/// The plugin, its agent, and where the runtime listens.
struct Scene {
    _folder: tempfile::TempDir,
    socket: PathBuf,
    listener: UnixListener,
    agent: UnixStream,
    plugin: JoinHandle<io::Result<()>>,
}

impl Scene {
    async fn new(pods: &[(&str, PodAnswers)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nri.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (mut agent, theirs) = UnixStream::pair().unwrap();
        let path = socket.clone();
        // Its futures are of one thread, as in the program.
        let plugin = tokio::task::spawn_local(async move { run(&path, None, theirs).await });
        let hello = hear(&mut agent).await;
        assert_eq!(FromNri::Hello { protocol: PROTOCOL }, hello);
        for (uid, answers) in pods {
            let (uid, answers) = ((*uid).to_owned(), answers.clone());
            say(&mut agent, &ToNri::Pod { uid, answers }).await;
        }
        say(&mut agent, &ToNri::Complete).await;
        Self {
            _folder: folder,
            socket,
            listener,
            agent,
            plugin,
        }
    }

    async fn connected(&mut self) -> Runtime {
        let runtime = Runtime::connect(&self.listener).await;
        let heard = hear(&mut self.agent).await;
        let name = "stand-in 1.0".to_owned();
        assert_eq!(FromNri::Connected { runtime: name }, heard);
        runtime
    }

    async fn away(&mut self) -> String {
        match hear(&mut self.agent).await {
            FromNri::Away { why } => why,
            other => panic!("{other:?}"),
        }
    }
}

fn scored(container: &str, adj: i32) -> PodAnswers {
    PodAnswers {
        refusal: None,
        oom_score_adj: [(container.to_owned(), adj)].into(),
        ..PodAnswers::default()
    }
}

fn of_score(adj: i32) -> Box<Adjustment> {
    Box::new(Adjustment {
        oom_score_adj: Some(adj),
        ..Adjustment::default()
    })
}

async fn local(test: impl Future<Output = ()>) {
    tokio::task::LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_is_answered_from_the_table_and_the_agent_hears_what() {
    local(async {
        let refused = PodAnswers {
            refusal: Some("it was evicted".to_owned()),
            ..scored("app", 7)
        };
        let specified = |adj| PodAnswers {
            specified: [("app".to_owned(), adj)].into(),
            ..scored("app", 321)
        };
        // What the runtime shows is not what the kubelet has specified for the second.
        let pods = [
            ("u1", specified(1000)),
            ("u3", specified(999)),
            ("u2", refused),
        ];
        let mut scene = Scene::new(&pods).await;
        let mut runtime = scene.connected().await;
        assert_eq!(score(&runtime.create("u1", "app").await), Some(321));
        assert_eq!(score(&runtime.create("u1", "other").await), None);
        assert_eq!(score(&runtime.create("u9", "app").await), None);
        assert_eq!(score(&runtime.create("u3", "app").await), None);
        let status = runtime.create("u2", "app").await.status.unwrap();
        assert_eq!(
            (status.code, status.message.as_str()),
            (9, "plimsoll: it was evicted")
        );
        let answers = [
            ("u1", "app", Answer::Adjusted(of_score(321))),
            ("u1", "other", Answer::Unchanged),
            ("u9", "app", Answer::Unchanged),
            ("u3", "app", Answer::Unchanged),
            ("u2", "app", Answer::Refused("it was evicted".to_owned())),
        ];
        for (pod_uid, name, answer) in answers {
            let told = FromNri::Container {
                pod_uid: pod_uid.to_owned(),
                id: format!("id-of-{name}"),
                name: name.to_owned(),
                answer,
                is_foreign: false,
            };
            assert_eq!(told, hear(&mut scene.agent).await);
        }

        // What the agent says later counts from then on: also that nothing is to be changed.
        for (answers, expected) in [(scored("app", 5), Some(5)), (PodAnswers::default(), None)] {
            let uid = "u1".to_owned();
            say(&mut scene.agent, &ToNri::Pod { uid, answers }).await;
            while score(&runtime.create("u1", "app").await) != expected {}
        }

        // Events that were not asked for, as from a later runtime, are nobody's error.
        let response = runtime.call("StateChange", &nri::Empty {}).await;
        assert_eq!(response, ttrpc::Response::default());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_ends_the_connection_and_it_connects_again() {
    local(async {
        let mut scene = Scene::new(&[("u1", scored("app", 321))]).await;
        let header = |bytes: usize| {
            let bytes = u32::try_from(bytes).unwrap();
            [1_u32.to_be_bytes(), bytes.to_be_bytes()].concat()
        };
        let announced = u32::try_from(MESSAGE_BYTES_MAX + 1).unwrap().to_be_bytes();
        let message = [header(10), announced.to_vec(), vec![0, 0, 0, 9, 1, 0]].concat();
        let call = [
            header(14),
            vec![0, 0, 0, 4, 0, 0, 0, 9, 1, 0],
            vec![0xff; 4],
        ]
        .concat();
        let garbage = [
            (header(64 << 20), "a frame of 67108864 bytes"),
            (message, "a message of 4194305 bytes"),
            (call, "no message of NRI"),
            (vec![0xff; 64], "a frame of 4294967295 bytes"),
        ];
        for (bytes, why) in garbage {
            let mut runtime = scene.connected().await;
            runtime.stream.write_all(&bytes).await.unwrap();
            assert!(runtime.is_left().await);
            let away = scene.away().await;
            assert!(away.contains(why), "{away}");
        }
        // A payload that is none: the runtime goes on without the plugin, and the container is not refused.
        let mut runtime = scene.connected().await;
        let bytes = runtime.request("CreateContainer", vec![0x0a, 0xff]);
        runtime.stream.write_all(&bytes).await.unwrap();
        assert!(runtime.is_left().await);
        assert!(scene.away().await.contains("no message of NRI"));
        let mut runtime = scene.connected().await;
        assert_eq!(score(&runtime.create("u1", "app").await), Some(321));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_stops_in_the_middle_is_left() {
    local(async {
        let mut scene = Scene::new(&[]).await;
        // It never answers.
        let mut runtime = Runtime::accept(&scene.listener).await;
        assert!(runtime.next().await.is_some());
        assert!(runtime.is_left().await);
        let away = scene.away().await;
        assert!(away.contains("taking this plugin"), "{away}");
        // A frame that is cut off.
        let mut runtime = scene.connected().await;
        runtime.stream.write_all(&[0, 0, 0, 1, 0]).await.unwrap();
        assert!(runtime.is_left().await);
        let away = scene.away().await;
        assert!(away.contains("a message that it has begun"), "{away}");
        // The end in the middle of one.
        let mut runtime = scene.connected().await;
        runtime.stream.write_all(&[0, 0, 0, 1, 0]).await.unwrap();
        drop(runtime);
        assert!(scene.away().await.contains("closed"));
        // One that asks, and reads no answer.
        let mut runtime = scene.connected().await;
        let question = runtime.request("StateChange", Vec::new());
        while runtime.stream.write_all(&question).await.is_ok() {}
        let away = scene.away().await;
        assert!(away.contains("reading an answer"), "{away}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_started_anew_is_found_again() {
    local(async {
        let mut scene = Scene::new(&[("u1", scored("app", 321))]).await;
        let mut runtime = scene.connected().await;
        let response = runtime.call("Shutdown", &nri::Empty {}).await;
        assert_eq!(response, ttrpc::Response::default());
        assert!(runtime.is_left().await);
        assert!(scene.away().await.contains("the runtime ends"));
        // Its socket stays for a while, then it is gone; each is said once, however often it is tried.
        scene.listener = {
            drop(scene.listener);
            let refused = match hear(&mut scene.agent).await {
                FromNri::Away { why } => why,
                other => panic!("{other:?}"),
            };
            assert!(refused.contains("is the runtime running"), "{refused}");
            std::fs::remove_file(&scene.socket).unwrap();
            let absent = match hear(&mut scene.agent).await {
                FromNri::Away { why } => why,
                other => panic!("{other:?}"),
            };
            assert!(absent.contains("offers no NRI"), "{absent}");
            tokio::time::sleep(std::time::Duration::from_secs(300)).await;
            UnixListener::bind(&scene.socket).unwrap()
        };
        // However long it was away: until then it makes containers without the plugin.
        let listens = tokio::time::Instant::now();
        let mut runtime = scene.connected().await;
        let found = listens.elapsed();
        assert!(found <= std::time::Duration::from_millis(600), "{found:?}");
        assert_eq!(score(&runtime.create("u1", "app").await), Some(321));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_take_the_plugin_is_asked_less_and_less_often() {
    local(async {
        let mut scene = Scene::new(&[]).await;
        let mut refused = Vec::new();
        for _ in 0..8 {
            let mut runtime = Runtime::accept(&scene.listener).await;
            refused.push(tokio::time::Instant::now());
            let call = runtime.next().await.unwrap();
            let status = ttrpc::Status {
                code: 7,
                message: "no plugins here".to_owned(),
            };
            let response = ttrpc::Response {
                status: Some(status),
                payload: Vec::new(),
            };
            let answer = Message {
                kind: Kind::Response,
                body: response.encode_to_vec(),
                ..call
            };
            let answer = answer.encode().unwrap();
            runtime.stream.write_all(&answer).await.unwrap();
            assert!(runtime.is_left().await);
        }
        assert!(scene.away().await.contains("no plugins here"));
        let pauses = refused.windows(2).map(|pair| pair[1] - pair[0]);
        let pauses: Vec<u64> = pauses.map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 10]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_answered_while_the_agent_reads_nothing() {
    const CONTAINERS: u64 = 3000;
    local(async {
        let mut scene = Scene::new(&[("u1", scored("app", 321))]).await;
        let mut runtime = scene.connected().await;
        for _ in 0..CONTAINERS {
            assert_eq!(score(&runtime.create("u1", "app").await), Some(321));
        }
        let (mut heard, mut dropped) = (0, 0);
        while heard + dropped < CONTAINERS {
            match hear(&mut scene.agent).await {
                FromNri::Container { .. } => heard += 1,
                FromNri::Dropped { frames } => dropped += frames,
                other => panic!("{other:?}"),
            }
        }
        assert!(dropped > 0, "{heard}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_the_agent_and_takes_no_more_pods_than_its_bound() {
    local(async {
        let scene = Scene::new(&[]).await;
        drop(scene.agent);
        scene.plugin.await.unwrap().unwrap();

        let mut scene = Scene::new(&[]).await;
        for number in 0..=ANSWERED_PODS_MAX {
            let (uid, answers) = (number.to_string(), scored("app", 1));
            say(&mut scene.agent, &ToNri::Pod { uid, answers }).await;
        }
        let ended = scene.plugin.await.unwrap().unwrap_err();
        assert!(ended.to_string().contains("too many pods"), "{ended}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_container_is_made_where_it_is_placed_and_another_plugins_set_stays() {
    local(async {
        let place = ContainerPlace {
            cpus: Some("2-3".to_owned()),
            mems: Some("1".to_owned()),
        };
        let answers = PodAnswers {
            places: [("app".to_owned(), place)].into(),
            ..PodAnswers::default()
        };
        let mut scene = Scene::new(&[("u1", answers)]).await;
        let mut runtime = scene.connected().await;
        let cpu = |response: &ttrpc::Response| {
            assert_eq!(response.status, None);
            let response = nri::CreateContainerResponse::decode(&response.payload[..]).unwrap();
            let linux = response.adjust?.linux?;
            assert_eq!(linux.oom_score_adj, None);
            let cpu = linux.resources?.cpu?;
            Some((cpu.cpus, cpu.mems))
        };
        let texts = |cpus: &str, mems: &str| Some((cpus.to_owned(), mems.to_owned()));
        // Nothing is placed yet.
        assert_eq!(cpu(&runtime.create("u1", "app").await), None);
        let cpus = Some("0-1".to_owned());
        say(&mut scene.agent, &ToNri::SharedPool { cpus }).await;
        while cpu(&runtime.create("u9", "app").await) != texts("0-1", "") {}
        assert_eq!(cpu(&runtime.create("u1", "app").await), texts("2-3", "1"));
        assert_eq!(cpu(&runtime.create("u1", "other").await), texts("0-1", ""));
        let mut creation = creation("u1", "app");
        let linux = creation.container.as_mut().unwrap().linux.as_mut().unwrap();
        linux.resources = Some(nri::LinuxResources {
            cpu: Some(nri::LinuxCpu {
                cpus: "7".to_owned(),
                mems: String::new(),
            }),
        });
        let response = runtime.call("CreateContainer", &creation).await;
        assert_eq!(cpu(&response), None, "its memory nodes stay, too");
        // A resize in place, which says something of CPUs or nothing.
        let update = |cpus: &str| nri::UpdateContainerRequest {
            pod: creation.pod.clone(),
            container: creation.container.clone(),
            linux_resources: Some(nri::LinuxResources {
                cpu: Some(nri::LinuxCpu {
                    cpus: cpus.to_owned(),
                    mems: String::new(),
                }),
            }),
        };
        let updated = |response: &ttrpc::Response| {
            assert_eq!(response.status, None);
            let response = nri::UpdateContainerResponse::decode(&response.payload[..]).unwrap();
            let [update] = &response.update[..] else {
                return None;
            };
            assert_eq!(update.container_id, "id-of-app");
            let cpu = update.linux.clone()?.resources?.cpu?;
            Some((cpu.cpus, cpu.mems))
        };
        let response = runtime.call("UpdateContainer", &update("")).await;
        assert_eq!(updated(&response), texts("2-3", "1"));
        let response = runtime.call("UpdateContainer", &update("5")).await;
        assert_eq!(updated(&response), texts("", "1"), "by request");
        // It is done; said in either way, and another event in the older one is nobody's.
        let pod = creation.pod.clone();
        let state = |event: nri::Event| nri::StateChangeEvent {
            event: event.into(),
            pod: creation.pod.clone(),
        };
        let done = nri::PostUpdateContainerRequest { pod };
        runtime.call("PostUpdateContainer", &done).await;
        let created = state(nri::Event::CreateContainer);
        runtime.call("StateChange", &created).await;
        let done = state(nri::Event::PostUpdateContainer);
        runtime.call("StateChange", &done).await;
        let mut told = Vec::new();
        while told.len() < 2 {
            match hear(&mut scene.agent).await {
                FromNri::Updated { pod_uid } => told.push(pod_uid),
                FromNri::Container { .. } | FromNri::Update { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(told, ["u1", "u1"]);
        // Its set is another plugin's.
        let uid = "u1".to_owned();
        let answers = PodAnswers {
            foreign: ["id-of-app".to_owned()].into(),
            ..PodAnswers::default()
        };
        say(&mut scene.agent, &ToNri::Pod { uid, answers }).await;
        while updated(&runtime.call("UpdateContainer", &update("")).await).is_some() {}
        // The kubelet has another policy now.
        say(&mut scene.agent, &ToNri::SharedPool { cpus: None }).await;
        while cpu(&runtime.create("u1", "app").await).is_some() {}
    })
    .await;
}
