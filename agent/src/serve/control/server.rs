//! The server: one thread of ordinary priority, which owns the socket and every client.
//!
//! Bounds ([`Bounds`]): so many clients at once, a line of so many bytes, and for each of the three steps (its line,
//! the loop's snapshot, our answer) so much time; then it is cut off. A client beyond the number gets
//! [`RefusalKind::Busy`] and is not waited for. Probes have places of their own.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::explain::{
    EvictionExplanation, ExplainError, NoSuchPod, OomError, OomExplanation, PlacementNotExplained,
    placement_of,
};
use plimsoll_core::kube::admission::standing::RefusedPod;
use plimsoll_core::policy::placement::agent_placement;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::newest::Newest;
use super::socket::ControlSocket;
use super::{Answer, Health, Refusal, RefusalKind, Reply, Request, Snapshots, SocketError};
use crate::record::snapshot::Snapshot;
use crate::serve::explained::{ExplainedMemory, ExplainedThrottling};
use crate::serve::listener::{
    ClientFigures, ClientLimits, ClientSlot, Clients, ListenerThread, accept_for_ever,
};
use crate::serve::overview::{Figures, Overview};
use crate::serve::summary::{Statistics, Wanted};

/// What clients may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Clients that are answered at one time, probes apart.
    pub clients: usize,
    /// Clients whose request has not arrived; one more takes the place of the oldest.
    pub waiting: usize,
    /// Clients that ask how the agent is ([`Request::Health`]), which have these places for themselves.
    pub probes: usize,
    /// Bytes of a request, its end included.
    pub line_bytes: usize,
    /// Time for the first byte of a request to arrive.
    pub first_byte: Duration,
    /// Time for each step.
    pub patience: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            clients: 16,
            waiting: 32,
            probes: 4,
            line_bytes: 64 << 10,
            first_byte: Duration::from_secs(1),
            patience: Duration::from_secs(5),
        }
    }
}

/// An overview is as good as a new one for so long: its figures come from some files of each pod.
const OVERVIEW_LIFE: Duration = Duration::from_millis(500);

/// Where answers come from.
#[derive(Debug)]
pub struct AnswerSources {
    /// The loop.
    pub snapshots: Arc<Snapshots>,
    /// Cgroup files, for figures that no decision uses.
    pub statistics: Statistics,
}

/// A running server. Dropping it ends its thread and removes the socket.
#[derive(Debug)]
pub struct Server {
    clients: Arc<Clients<u32>>,
    _thread: ListenerThread,
    // Dropped last: while the file is there, somebody answers.
    _socket: ControlSocket,
}

impl Server {
    /// Makes the socket at `path`, for root and `group`, and serves it.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn start(
        path: &Path,
        group: Option<&str>,
        sources: AnswerSources,
        bounds: Bounds,
    ) -> Result<Self, SocketError> {
        let (socket, listener) = ControlSocket::bind(path, group)?;
        let failed = |source| SocketError::Io {
            path: path.to_owned(),
            what: "its thread",
            source,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        let clients = Clients::new(ClientLimits {
            waiting: bounds.waiting,
            served: bounds.clients,
            of_one_peer: bounds.clients,
            probes: bounds.probes,
        });
        let shared = Arc::new(Shared {
            sources,
            overview: Newest::new(OVERVIEW_LIFE),
            bounds,
            clients: Arc::clone(&clients),
        });
        let thread =
            ListenerThread::start("control", || serve(listener, shared)).map_err(failed)?;
        Ok(Self {
            clients,
            _thread: thread,
            _socket: socket,
        })
    }

    /// What has become of clients so far.
    pub fn clients(&self) -> ClientFigures {
        self.clients.figures()
    }
}

/// What the tasks of all clients share.
struct Shared {
    sources: AnswerSources,
    overview: Newest<Overview>,
    bounds: Bounds,
    clients: Arc<Clients<u32>>,
}

/// Accepts for ever.
async fn serve(listener: StdListener, shared: Arc<Shared>) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let accept = async || listener.accept().await;
    accept_for_ever(accept, |(stream, _)| {
        let shared = Arc::clone(&shared);
        let peer = stream.peer_cred().ok();
        if let Some(peer) = &peer {
            tracing::debug!(
                pid = peer.pid(),
                uid = peer.uid(),
                gid = peer.gid(),
                "control client"
            );
        }
        // No user has this ID.
        let mut slot = shared
            .clients
            .enter(peer.map_or(u32::MAX, |peer| peer.uid()));
        let gives_way = slot.gives_way();
        tokio::spawn(async move {
            let served = tokio::select! {
                () = gives_way => {
                    // Without waiting: it fits into the socket's buffer.
                    stream.try_write(busy(&shared).to_line().as_bytes()).map(drop)
                }
                served = serve_client(&stream, &slot, &shared) => served,
            };
            slot.leave(served);
        });
    })
    .await
}

fn busy(shared: &Shared) -> Reply {
    let text = format!(
        "the agent already serves {} clients; try again in a few seconds",
        shared.bounds.clients
    );
    Reply::Error(Refusal::new(RefusalKind::Busy, text))
}

/// Serves one client.
async fn serve_client(
    stream: &UnixStream,
    slot: &ClientSlot<u32>,
    shared: &Shared,
) -> io::Result<()> {
    let Bounds {
        patience,
        line_bytes,
        first_byte,
        ..
    } = shared.bounds;
    timeout(first_byte, stream.readable()).await??;
    let reply = match timeout(patience, read_line(stream, line_bytes)).await? {
        Ok(line) => match Request::of_line(&line) {
            Ok(request) if slot.is_served(request == Request::Health) => {
                reply_to(request, shared).await
            }
            Ok(_) => busy(shared),
            Err(refusal) => Reply::Error(refusal),
        },
        Err(ReadError::Io(error)) => return Err(error),
        Err(ReadError::Refused(refusal)) => Reply::Error(refusal),
    };
    let line = reply.to_line();
    timeout(patience, write_all(stream, line.as_bytes())).await?
}

async fn reply_to(request: Request, shared: &Shared) -> Reply {
    if request == Request::Overview {
        let overview = shared.overview.get(async || make_overview(shared).await);
        // Others may have asked before, and each waits for the loop.
        let overview = timeout(shared.bounds.patience, overview).await;
        let late = |_| Refusal::new(RefusalKind::Busy, "the agent does not answer".to_owned());
        let overview = overview.map_err(late).and_then(|overview| overview);
        return overview.map(Answer::Overview).into();
    }
    match shared.snapshots().await {
        Ok(snapshot) => answer(&request, &snapshot)
            .map_err(|refusal| why_unknown(&request, &snapshot, refusal))
            .into(),
        Err(refusal) => Reply::Error(refusal),
    }
}

impl Shared {
    async fn snapshots(&self) -> Result<Arc<Snapshot>, Refusal> {
        let snapshot = self.sources.snapshots.get(self.bounds.patience).await;
        snapshot.map_err(|error| Refusal::new(RefusalKind::Busy, error.to_string()))
    }
}

/// An overview from the loop and from files.
async fn make_overview(shared: &Shared) -> Result<Overview, Refusal> {
    let snapshot = shared.snapshots().await?;
    let request = shared.sources.statistics.request(&snapshot.state);
    let mut figures = Figures {
        pid: Some(std::process::id()),
        node: Some(request.node(Wanted::AllButNetwork)),
        ..Figures::default()
    };
    for uid in request.pods() {
        if let Some(read) = request.pod_use(uid) {
            figures.pods.insert(uid.clone(), read);
        }
        // Others who ask meanwhile have their turn.
        tokio::task::yield_now().await;
    }
    overview_of(&snapshot, &figures)
}

fn overview_of(snapshot: &Snapshot, figures: &Figures) -> Result<Overview, Refusal> {
    Overview::new(snapshot, figures).map_err(refused)
}

/// Computes an answer.
///
/// # Errors
/// The reason, for the client.
pub fn answer(request: &Request, snapshot: &Snapshot) -> Result<Answer, Refusal> {
    let Snapshot {
        config,
        state,
        oom_plan,
        records,
        ..
    } = snapshot;
    match request {
        Request::Overview => {
            overview_of(snapshot, &Figures::default()).map(|it| Answer::Overview(Arc::new(it)))
        }
        Request::Records => Ok(Answer::Records(records.clone())),
        Request::Health => Ok(Answer::Health(Health {
            ready: snapshot.tally.pods_watched,
            pods: state.pods.len(),
        })),
        Request::ExplainEviction { signal, pod } => {
            EvictionExplanation::new(config, state, signal.as_deref(), pod.as_deref())
                .map(|it| Answer::Eviction(Box::new(it.with_quotas(&snapshot.quotas))))
                .map_err(refused)
        }
        Request::ExplainOom { pod } => {
            OomExplanation::new(config, state, oom_plan.as_ref(), pod.as_deref())
                .map(|it| Answer::Oom(Box::new(it)))
                .map_err(|error| {
                    let kind = match &error {
                        OomError::NotReady => RefusalKind::NotReady,
                        OomError::Pod(pod) => kind_of(pod),
                    };
                    Refusal::new(kind, error.to_string())
                })
        }
        Request::ExplainThrottling { pod } => ExplainedThrottling::new(snapshot, pod.as_deref())
            .map(|it| Answer::Throttling(Box::new(it)))
            .map_err(|error| Refusal::new(kind_of(&error), error.to_string())),
        Request::ExplainMemory { pod } => ExplainedMemory::new(snapshot, pod.as_deref())
            .map(|it| Answer::Memory(Box::new(it)))
            .map_err(refused),
        Request::AgentPlacement => Ok(Answer::AgentPlacement(agent_placement(state).map(Box::new))),
        Request::ExplainPlacement { pod } => placement_of(state, pod.as_deref())
            .map(|it| Answer::Placement(Box::new(it)))
            .map_err(|error| {
                let kind = match &error {
                    PlacementNotExplained::NothingPlaced => RefusalKind::NothingPlaced,
                    PlacementNotExplained::Pod(pod) => kind_of(pod),
                };
                Refusal::new(kind, error.to_string())
            }),
    }
}

fn refused(error: ExplainError) -> Refusal {
    let kind = match &error {
        ExplainError::UnknownSignal(_) => RefusalKind::UnknownSignal,
        ExplainError::Pod(pod) => kind_of(pod),
    };
    Refusal::new(kind, error.to_string())
}

fn kind_of(error: &NoSuchPod) -> RefusalKind {
    match error {
        NoSuchPod::Unknown { .. } => RefusalKind::UnknownPod,
        NoSuchPod::Ambiguous { .. } => RefusalKind::AmbiguousPod,
    }
}

/// A pod that may not run is unknown to the engine; the client hears why.
fn why_unknown(request: &Request, snapshot: &Snapshot, refusal: Refusal) -> Refusal {
    let asked = match request {
        Request::ExplainEviction { pod, .. }
        | Request::ExplainOom { pod }
        | Request::ExplainThrottling { pod }
        | Request::ExplainMemory { pod }
        | Request::ExplainPlacement { pod } => pod.as_deref(),
        Request::Health | Request::Records | Request::Overview | Request::AgentPlacement => None,
    };
    let (Some(asked), RefusalKind::UnknownPod) = (asked, refusal.kind) else {
        return refusal;
    };
    let is_asked = |it: &&RefusedPod| {
        let name = it.pod.split_once('/').map(|(_, name)| name);
        it.pod == asked || it.uid.as_str() == asked || name == Some(asked)
    };
    match snapshot.refused.iter().find(is_asked) {
        Some(RefusedPod {
            pod,
            place,
            message,
            ..
        }) => Refusal::new(
            refusal.kind,
            format!("pod {pod} ({place}) does not run, because it was refused: {message}"),
        ),
        None => refusal,
    }
}

enum ReadError {
    Io(io::Error),
    Refused(Refusal),
}

/// A line without its end.
async fn read_line(stream: &UnixStream, bytes_max: usize) -> Result<Vec<u8>, ReadError> {
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        stream.readable().await.map_err(ReadError::Io)?;
        let read = match stream.try_read(&mut buffer) {
            Ok(0) if line.is_empty() => {
                return Err(ReadError::Io(ErrorKind::UnexpectedEof.into()));
            }
            Ok(0) => {
                let text = "the request is incomplete: it must be one line of JSON";
                return Err(ReadError::Refused(Refusal::new(
                    RefusalKind::BadRequest,
                    text,
                )));
            }
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(ReadError::Io(error)),
        };
        let end = buffer[..read].iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&buffer[..end.unwrap_or(read)]);
        if line.len() >= bytes_max {
            let text = format!("the request is longer than {bytes_max} bytes");
            return Err(ReadError::Refused(Refusal::new(
                RefusalKind::BadRequest,
                text,
            )));
        }
        if end.is_some() {
            return Ok(line);
        }
    }
}

async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
