//! The plugin's end of the runtime's socket: it registers, is configured, and answers.
//!
//! The order is the runtime's (containerd/nri, pkg/adaptation/plugin.go): the plugin registers, the runtime configures
//! it, tells it of all containers, and from then on asks.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_core::protocol::runtime_link::{Adjustment, Answer, FromNri, Shown};
use plimsoll_core::shown::Show as _;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::Instant;

use super::Table;
use super::mux::{Connection, Kind, Message, Mux, TooLong};
use crate::frames::cut;
use crate::interface::nri::{
    ConfigureRequest, ConfigureResponse, ContainerAdjustment, ContainerUpdate,
    CreateContainerRequest, CreateContainerResponse, Event, LinuxContainerAdjustment,
    LinuxContainerUpdate, LinuxCpu, LinuxResources, OptionalInt, PodSandbox,
    PostUpdateContainerRequest, RegisterPluginRequest, StateChangeEvent, SynchronizeRequest,
    SynchronizeResponse, UpdateContainerRequest, UpdateContainerResponse,
};
use crate::interface::ttrpc;
use crate::outbox::Outbox;
use crate::reconnect::Reconnect;

/// The plugin's name, and its place among others: late, so that it sees what others have set, and leaves it.
const NAME: &str = "plimsoll";
const INDEX: &str = "90";
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// The stream of the only call that the plugin makes.
const REGISTER_STREAM: u32 = 1;
/// gRPC's codes, which ttrpc uses. A runtime takes neither for a plugin that has ended.
const FAILED_PRECONDITION: i32 = 9;
const UNIMPLEMENTED: i32 = 12;
/// To connect, and to write one answer.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// From the connection until the runtime has told of its containers: it registers one plugin at a time, each of which
/// may take 5 s and more.
const SYNCHRONIZED_WITHIN: Duration = Duration::from_secs(60);
/// A message that has begun is whole in this time.
const MESSAGE_WITHIN: Duration = Duration::from_secs(10);
/// Read at one time, bytes.
const PORTION: usize = 16 << 10;
/// The first pause after a connection that has ended, and the longest, after so many that ended soon: a runtime that
/// does not take the plugin.
const AGAIN: Reconnect = Reconnect::new(Duration::from_millis(250), Duration::from_secs(10));

/// Why a connection to the runtime has ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{socket}: nothing is there: this runtime offers no NRI, or does not run (containerd: it is on from 2.0; before, set disable = false for its plugin io.containerd.nri.v1.nri)", socket = .0.shown())]
    Absent(PathBuf),
    #[error("{socket}: {why}; is the runtime running, and is this the right socket?", socket = .socket.shown())]
    Connect { socket: PathBuf, why: String },
    #[error("the runtime has closed the connection")]
    Closed,
    #[error("the runtime ends")]
    Shutdown,
    #[error("the connection to the runtime: {0}")]
    Io(#[from] std::io::Error),
    #[error("the runtime sent {0}")]
    TooLong(#[from] TooLong),
    #[error("the runtime sent what is no message of NRI: {0}")]
    Nonsense(String),
    #[error("the runtime does not take this plugin: {}", .0.shown())]
    Refused(String),
    #[error("the runtime: {what} has taken more than {seconds} s; it is overloaded or hangs", what = .0, seconds = .1.as_secs())]
    Late(&'static str, Duration),
}

impl From<prost::DecodeError> for Ended {
    fn from(error: prost::DecodeError) -> Self {
        Self::Nonsense(error.to_string())
    }
}

/// Answers, and connects again each time that a connection has ended.
pub(super) async fn serve(socket: &Path, table: &Table, outbox: &Outbox) -> Infallible {
    let mut again = AGAIN;
    loop {
        let mut session = Session {
            table,
            outbox,
            mux: Mux::default(),
            runtime: String::new(),
            synchronized: None,
            begun: None,
        };
        let ended = match session.run(socket).await {
            Err(ended) => ended,
            Ok(never) => match never {},
        };
        let why = cut(&ended.to_string());
        outbox.state(FromNri::Away { why });
        let is_away = matches!(ended, Ended::Absent(_) | Ended::Connect { .. });
        let lasted = session.synchronized.map(|since| since.elapsed());
        let pause = again.pause(is_away, lasted);
        tokio::time::sleep(pause).await;
    }
}

/// What follows from a call, when its answer has been written.
enum Then {
    GoOn,
    /// The runtime has told of all that it has: from now on it asks.
    Asked,
    /// It ends.
    End,
}

/// One connection.
struct Session<'a> {
    table: &'a Table,
    outbox: &'a Outbox,
    mux: Mux,
    /// Its name and version.
    runtime: String,
    /// Since when the runtime asks.
    synchronized: Option<Instant>,
    /// Since when a message is under way.
    begun: Option<Instant>,
}

impl Session<'_> {
    async fn run(&mut self, socket: &Path) -> Result<Infallible, Ended> {
        let mut stream = connected(socket).await?;
        let register = RegisterPluginRequest {
            plugin_name: NAME.to_owned(),
            plugin_idx: INDEX.to_owned(),
        };
        let call = ttrpc::Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: register.encode_to_vec(),
        };
        let call = Message {
            connection: Connection::Runtime,
            stream: REGISTER_STREAM,
            kind: Kind::Request,
            body: call.encode_to_vec(),
        };
        write(&mut stream, &call).await?;
        let synchronized_by = Instant::now() + SYNCHRONIZED_WITHIN;
        let mut portion = vec![0; PORTION];
        loop {
            let bytes = self
                .read(&mut stream, &mut portion, synchronized_by)
                .await?;
            let messages = self.mux.take(&portion[..bytes])?;
            if !messages.is_empty() {
                self.begun = None;
            }
            for message in messages {
                match (message.connection, message.kind) {
                    (Connection::Runtime, Kind::Response) => registered(&message)?,
                    (Connection::Plugin, Kind::Request) => {
                        let (answer, then) = self.answer(&message)?;
                        write(&mut stream, &answer).await?;
                        self.answered(then)?;
                    }
                    // Neither end streams.
                    _ => {}
                }
            }
        }
    }

    /// Reads a portion. Where nothing is due it waits for ever: a runtime asks when a container is made.
    async fn read(
        &mut self,
        stream: &mut UnixStream,
        portion: &mut [u8],
        synchronized_by: Instant,
    ) -> Result<usize, Ended> {
        let reading = stream.read(portion);
        let read = match self.synchronized {
            None => tokio::time::timeout_at(synchronized_by, reading)
                .await
                .map_err(|_| Ended::Late("taking this plugin", SYNCHRONIZED_WITHIN))?,
            Some(_) if self.mux.is_partial() => {
                let begun = *self.begun.get_or_insert_with(Instant::now);
                tokio::time::timeout_at(begun + MESSAGE_WITHIN, reading)
                    .await
                    .map_err(|_| Ended::Late("a message that it has begun", MESSAGE_WITHIN))?
            }
            Some(_) => {
                self.begun = None;
                reading.await
            }
        };
        match read? {
            0 => Err(Ended::Closed),
            bytes => Ok(bytes),
        }
    }

    fn answer(&mut self, call: &Message) -> Result<(Message, Then), Ended> {
        let request = ttrpc::Request::decode(&call.body[..])?;
        let (response, then) = match request.service.as_str() {
            PLUGIN_SERVICE => self.response(&request)?,
            _ => {
                let why = "plimsoll has no such service".to_owned();
                (refusal(UNIMPLEMENTED, why), Then::GoOn)
            }
        };
        let answer = Message {
            connection: Connection::Plugin,
            stream: call.stream,
            kind: Kind::Response,
            body: response.encode_to_vec(),
        };
        Ok((answer, then))
    }

    fn response(&mut self, request: &ttrpc::Request) -> Result<(ttrpc::Response, Then), Ended> {
        let payload = &request.payload[..];
        let response = match request.method.as_str() {
            "Configure" => {
                let ConfigureRequest {
                    runtime_name,
                    runtime_version,
                } = ConfigureRequest::decode(payload)?;
                self.runtime = cut(&format!("{runtime_name} {runtime_version}"));
                let events = [
                    Event::CreateContainer,
                    Event::UpdateContainer,
                    Event::PostUpdateContainer,
                ];
                let bits = events.map(|event| 1 << (event as i32 - 1));
                sound(&ConfigureResponse {
                    events: bits.into_iter().sum(),
                })
            }
            "Synchronize" => {
                let more = SynchronizeRequest::decode(payload)?.more;
                let then = if more { Then::GoOn } else { Then::Asked };
                return Ok((sound(&SynchronizeResponse { more }), then));
            }
            "CreateContainer" => self.create_container(&CreateContainerRequest::decode(payload)?),
            "UpdateContainer" => self.update_container(&UpdateContainerRequest::decode(payload)?),
            "PostUpdateContainer" => {
                self.updated(PostUpdateContainerRequest::decode(payload)?.pod);
                ttrpc::Response::default()
            }
            "StateChange" => {
                let change = StateChangeEvent::decode(payload)?;
                if change.event() == Event::PostUpdateContainer {
                    self.updated(change.pod);
                }
                ttrpc::Response::default()
            }
            "Shutdown" => return Ok((ttrpc::Response::default(), Then::End)),
            // An error would be the pod's. The answer to each of them may be empty, and then nothing is changed.
            _ => ttrpc::Response::default(),
        };
        Ok((response, Then::GoOn))
    }

    fn create_container(&self, request: &CreateContainerRequest) -> ttrpc::Response {
        let (Some(pod), Some(container)) = (&request.pod, &request.container) else {
            return ttrpc::Response::default();
        };
        let linux = container.linux.as_ref();
        let cpu = linux.and_then(|linux| linux.resources.as_ref()?.cpu.as_ref());
        let shown = Shown {
            oom_score_adj: linux.and_then(|linux| Some(linux.oom_score_adj.as_ref()?.value)),
            cpus: cpu.map_or("", |cpu| &cpu.cpus),
            mems: cpu.map_or("", |cpu| &cpu.mems),
        };
        let answer = self.table.answer(&pod.uid, &container.name, shown);
        self.outbox.container(FromNri::Container {
            pod_uid: pod.uid.clone(),
            name: container.name.clone(),
            id: container.id.clone(),
            answer: answer.clone(),
            // Where only its memory nodes are set, its CPUs are ours to move.
            is_foreign: !shown.cpus.is_empty(),
        });
        match answer {
            Answer::Unchanged => ttrpc::Response::default(),
            Answer::Adjusted(adjustment) => sound(&CreateContainerResponse {
                adjust: Some(ContainerAdjustment {
                    linux: Some(adjusted(&adjustment)),
                }),
            }),
            Answer::Refused(why) => refusal(FAILED_PRECONDITION, format!("plimsoll: {why}")),
        }
    }

    /// Without an answer the runtime writes the set again that the container was made with.
    fn update_container(&self, request: &UpdateContainerRequest) -> ttrpc::Response {
        let (Some(pod), Some(container)) = (&request.pod, &request.container) else {
            return ttrpc::Response::default();
        };
        let resources = request.linux_resources.as_ref();
        let cpu = resources.and_then(|resources| resources.cpu.as_ref());
        let shown = Shown {
            oom_score_adj: None,
            cpus: cpu.map_or("", |cpu| &cpu.cpus),
            mems: cpu.map_or("", |cpu| &cpu.mems),
        };
        let answer = self
            .table
            .update(&pod.uid, (&container.name, &container.id), shown);
        self.outbox.container(FromNri::Update {
            pod_uid: pod.uid.clone(),
            answer: answer.clone(),
        });
        let Answer::Adjusted(adjustment) = answer else {
            return ttrpc::Response::default();
        };
        let update = ContainerUpdate {
            container_id: container.id.clone(),
            linux: Some(LinuxContainerUpdate {
                resources: placed(&adjustment),
            }),
        };
        sound(&UpdateContainerResponse {
            update: vec![update],
        })
    }

    /// What a plugin before or after this one, or the change itself, has made of the container is in its cgroup by now.
    fn updated(&self, pod: Option<PodSandbox>) {
        if let Some(PodSandbox { uid: pod_uid }) = pod {
            self.outbox.container(FromNri::Updated { pod_uid });
        }
    }

    fn answered(&mut self, then: Then) -> Result<(), Ended> {
        match then {
            Then::GoOn => {}
            Then::Asked => {
                self.synchronized = Some(Instant::now());
                let runtime = self.runtime.clone();
                self.outbox.state(FromNri::Connected { runtime });
            }
            Then::End => return Err(Ended::Shutdown),
        }
        Ok(())
    }
}

async fn connected(socket: &Path) -> Result<UnixStream, Ended> {
    let failed = |why: String| Ended::Connect {
        socket: socket.to_owned(),
        why,
    };
    match tokio::time::timeout(WRITTEN_WITHIN, UnixStream::connect(socket)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Ended::Absent(socket.to_owned()))
        }
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed("no connection within 5 s".to_owned())),
    }
}

async fn write(stream: &mut UnixStream, message: &Message) -> Result<(), Ended> {
    let bytes = message.encode()?;
    match tokio::time::timeout(WRITTEN_WITHIN, stream.write_all(&bytes)).await {
        Ok(written) => Ok(written?),
        Err(_) => Err(Ended::Late("reading an answer", WRITTEN_WITHIN)),
    }
}

/// The runtime's word on the plugin.
fn registered(answer: &Message) -> Result<(), Ended> {
    let response = ttrpc::Response::decode(&answer.body[..])?;
    match response.status {
        Some(status) if status.code != 0 => Err(Ended::Refused(status.message)),
        _ => Ok(()),
    }
}

/// What is not in it stays as it is.
fn adjusted(adjustment: &Adjustment) -> LinuxContainerAdjustment {
    let score = adjustment.oom_score_adj.map(|adj| OptionalInt {
        value: i64::from(adj),
    });
    LinuxContainerAdjustment {
        resources: placed(adjustment),
        oom_score_adj: score,
    }
}

fn placed(adjustment: &Adjustment) -> Option<LinuxResources> {
    let text = |set: &Option<String>| set.clone().unwrap_or_default();
    let cpu = LinuxCpu {
        cpus: text(&adjustment.cpus),
        mems: text(&adjustment.mems),
    };
    let is_placed = adjustment.cpus.is_some() || adjustment.mems.is_some();
    is_placed.then_some(LinuxResources { cpu: Some(cpu) })
}

fn sound(message: &impl prost::Message) -> ttrpc::Response {
    ttrpc::Response {
        status: None,
        payload: message.encode_to_vec(),
    }
}

fn refusal(code: i32, message: String) -> ttrpc::Response {
    ttrpc::Response {
        status: Some(ttrpc::Status { code, message }),
        payload: Vec::new(),
    }
}
