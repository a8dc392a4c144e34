//! The agent's end of the socket to `plimsoll-cluster`: pods as the API server has them, evictions to be reported.
//!
//! **Problem.** The other end reads what a network sends, and may lie, stall or die. The loop must wait for none of it,
//! and an eviction must be reported although neither end lives for ever. **Approach.** One thread listens, for one
//! client, whose user the kernel names (`SO_PEERCRED`). It reads frames with bounds on their length, on the values in
//! them and on what is kept of all ([`known_objects`]), and hands the loop finished changes. Evictions go the other
//! way: first to the disk ([`intents`]), then to the client, again after each connection, until it says that one is
//! settled. **Terms.** Messages are those of [`plimsoll_core::protocol::cluster_link`].
#![forbid(unsafe_code)]

mod critical;
mod intents;
mod known_objects;
mod peer;
mod topology;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use plimsoll_core::kube::budget::DisruptionBudget;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::Overused;
use plimsoll_core::protocol::cluster_link::{
    EvictionIntent, NodeConditionReport, PROTOCOL, Settled, ToAgent, ToCluster,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use tokio::sync::mpsc;

use crate::host::clock::now_ns;
use crate::host::shown::{Show as _, line};
use crate::host::state_dir::{CRITICAL_FILE, INTENTS_FILE};
use crate::host::wake_fd::WakeFd;
use crate::host::worker::WorkerThread;
use critical::CriticalPods;
use intents::Intents;
use known_objects::KnownObjects;
use peer::{Peer, frame};

pub use topology::TopologySlot;

/// Where it listens, unless told otherwise.
pub const SOCKET: &str = "/run/plimsoll/cluster.sock";
/// The user of `plimsoll-cluster`, unless told otherwise.
pub const USER: u32 = 65532;
/// Only its owner may connect.
const MODE: u32 = 0o600;
/// Where the owner cannot be changed, anybody may try, and the kernel's word on the user decides.
const MODE_WITHOUT_OWNER: u32 = 0o666;
/// Events that may wait for the loop; then the socket is not read.
const EVENTS: usize = 16;
/// Reports of the loop that may wait for the thread.
const REPORTS: usize = 2048;
/// After this time it is tried again to hand an event to the loop.
const EVENT_AGAIN: Duration = Duration::from_millis(20);
const STACK_BYTES: usize = 512 << 10;

/// A pod of the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterPod {
    /// The pod, with the API server's defaults. A static pod has the UID of its cgroup, not that of its mirror.
    pub pod: Arc<Pod>,
    /// The kubelet ends it, or has.
    pub is_leaving: bool,
}

/// What has changed in the API.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClusterChange {
    /// Pods that were listed, added or changed.
    pub pods: Vec<ClusterPod>,
    /// Pods that have gone from the API.
    pub gone: Vec<PodUid>,
    /// Budgets that were listed, added or changed.
    pub budgets: Vec<Arc<DisruptionBudget>>,
    /// Budgets that have gone, by `namespace/name`.
    pub budgets_gone: Vec<Arc<str>>,
    /// This is a complete list.
    pub is_list: bool,
}

/// What the thread has for the loop.
#[derive(Debug, Clone, PartialEq)]
pub enum ClusterEvent {
    /// `plimsoll-cluster` is there.
    Connected {
        /// The node's name.
        node: String,
    },
    /// It has gone.
    Lost {
        /// Why.
        why: String,
    },
    /// Something has changed in the API.
    Change(ClusterChange),
    /// Whether the API server answers.
    Api {
        /// It does.
        is_reachable: bool,
    },
    /// The kubelet's version.
    Node {
        /// As it calls itself.
        kubelet_version: String,
    },
    /// Which namespaces use more of the cluster than they deserve.
    Overused(Arc<Overused>),
    /// An eviction was reported: the kubelet ends the pod.
    Reported {
        /// Which pod.
        uid: PodUid,
    },
    /// A disruption budget refuses the report of an eviction for now.
    Refused {
        /// Which pod.
        uid: PodUid,
    },
    /// An eviction needs no report any more.
    Settled {
        /// Which pod.
        uid: PodUid,
        /// How.
        how: Settled,
    },
    /// Something that people should know.
    Warning(String),
}

/// What the loop has for the thread.
#[derive(Debug)]
enum FromLoop {
    Evicted(Box<EvictionIntent>),
    Withdrawn(PodUid),
    CgroupGone(PodUid),
    LetGo(PodUid),
    Conditions(Vec<NodeConditionReport>),
    Withheld(u64),
}

/// What the thread counts.
#[derive(Debug, Default)]
pub struct ClusterCounts {
    /// Evictions that wait to be settled.
    pub waiting: AtomicU64,
    /// Evictions that will never be reported one by one, because too many waited.
    pub unreported: AtomicU64,
    /// Frames that were refused: malformed, of an unknown type, or about what is not known.
    pub refused_frames: AtomicU64,
    /// Clients that were refused: of another user, or while there was one.
    pub refused_clients: AtomicU64,
    /// `plimsoll-cluster` is connected, and has introduced itself.
    pub is_connected: AtomicBool,
}

impl ClusterCounts {
    /// A copy of its numbers.
    pub fn read(&self) -> [u64; 4] {
        [
            &self.waiting,
            &self.unreported,
            &self.refused_frames,
            &self.refused_clients,
        ]
        .map(|count| count.load(Ordering::Relaxed))
    }
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Something else is there.
    #[error("{path}: exists and is not a socket; remove it, or give another --cluster-socket", path = path.shown())]
    NotASocket {
        /// What is there.
        path: PathBuf,
    },
    /// The kernel refuses.
    #[error("{path}: the socket for plimsoll-cluster cannot be made: {what}: {source}; give another --cluster-socket (at most about 100 characters)", path = path.shown())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Which step.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The evictions that were not reported cannot be read.
    #[error("{path}: the list of evictions still to be reported cannot be read: {source}; move the file away (those evictions are then not reported)", path = path.shown())]
    Intents {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

/// Where it listens, and for whom.
#[derive(Debug, Clone)]
pub struct ClusterSettings {
    /// The socket.
    pub socket: PathBuf,
    /// The user that may connect, besides root.
    pub user: u32,
    /// The state directory.
    pub state_dir: PathBuf,
    /// What the client is told of soft thresholds: [`ToCluster::Hello`].
    pub soft_grace_s: Option<u32>,
}

/// The loop's side.
#[derive(Debug)]
pub struct ClusterLink {
    thread: WorkerThread<FromLoop>,
    wake: WakeFd,
    counts: Arc<ClusterCounts>,
    topology: TopologySlot,
    socket: PathBuf,
}

/// What an agent before has left on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeftBehind {
    /// Pods whose eviction is not settled.
    pub unsettled: BTreeSet<PodUid>,
    /// Those of them that were killed without grace, and not let go since.
    pub killed: BTreeSet<PodUid>,
    /// Pods that the API server said are critical.
    pub critical: BTreeSet<PodUid>,
}

/// What the thread says.
pub type ClusterEvents = mpsc::Receiver<ClusterEvent>;

impl ClusterLink {
    /// Listens. Also returns what an agent before has left.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn start(
        settings: &ClusterSettings,
    ) -> Result<(Self, ClusterEvents, LeftBehind), ClusterError> {
        let path = settings.state_dir.join(INTENTS_FILE);
        let intents =
            Intents::open(path.clone()).map_err(|source| ClusterError::Intents { path, source })?;
        let critical = CriticalPods::open(settings.state_dir.join(CRITICAL_FILE));
        let uids = |is_counted: &dyn Fn(&EvictionIntent) -> bool| {
            let counted = intents.iter().filter(|intent| is_counted(intent));
            counted.map(|intent| intent.uid.clone()).collect()
        };
        let left = LeftBehind {
            unsettled: uids(&|_| true),
            killed: uids(&|intent| intent.grace_s == 0 && !intents.is_let_go(&intent.uid)),
            critical: critical.uids().clone(),
        };
        let failed = |what: &'static str| {
            let path = settings.socket.clone();
            move |source: io::Error| ClusterError::Io { path, what, source }
        };
        let listener = listen(settings)?;
        let wake = WakeFd::new().map_err(|errno| failed("eventfd")(errno.into()))?;
        let (events, received) = mpsc::channel(EVENTS);
        let counts = Arc::new(ClusterCounts::default());
        let topology = TopologySlot::new(wake.clone());
        let work = Work {
            listener,
            user: settings.user,
            soft_grace_s: settings.soft_grace_s,
            wake: wake.clone(),
            events,
            waiting_event: None,
            unsaid_loss: None,
            peer: None,
            known_objects: KnownObjects::default(),
            intents,
            critical,
            conditions: Vec::new(),
            withheld_bytes: 0,
            newest: topology.clone(),
            topology: None,
            counts: Arc::clone(&counts),
        };
        let thread = WorkerThread::start("cluster", STACK_BYTES, REPORTS, move |reports, _| {
            work.run(&reports);
        })
        .map_err(failed("clone"))?;
        let link = Self {
            thread,
            wake,
            counts,
            topology,
            socket: settings.socket.clone(),
        };
        Ok((link, received, left))
    }

    /// What the thread has counted so far.
    pub fn counts(&self) -> &Arc<ClusterCounts> {
        &self.counts
    }

    /// Where the zones of NUMA nodes are put.
    pub fn topology(&self) -> TopologySlot {
        self.topology.clone()
    }

    /// A pod was evicted: it is to be reported. Does not wait. Returns whether there was room.
    pub fn evicted(&self, intent: EvictionIntent) -> bool {
        let is_taken = self.send(FromLoop::Evicted(Box::new(intent)));
        if !is_taken {
            self.counts.unreported.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }

    /// An eviction that was not begun is not wanted any more.
    pub fn withdrawn(&self, uid: PodUid) -> bool {
        self.send(FromLoop::Withdrawn(uid))
    }

    /// The cgroup of an evicted pod has gone.
    pub fn cgroup_gone(&self, uid: PodUid) -> bool {
        self.send(FromLoop::CgroupGone(uid))
    }

    /// An evicted pod may run again although the API server has not shown its end.
    pub fn let_go(&self, uid: PodUid) -> bool {
        self.send(FromLoop::LetGo(uid))
    }

    /// The conditions of this node are these now.
    pub fn conditions(&self, conditions: Vec<NodeConditionReport>) -> bool {
        self.send(FromLoop::Conditions(conditions))
    }

    /// So many bytes of this node's memory cannot be had without meeting a threshold.
    pub fn withheld(&self, memory_bytes: u64) -> bool {
        self.send(FromLoop::Withheld(memory_bytes))
    }

    fn send(&self, report: FromLoop) -> bool {
        let sent = self.thread.send(report);
        self.wake.wake();
        sent.is_ok()
    }
}

impl Drop for ClusterLink {
    /// Ends the thread, when it has written what it was given.
    fn drop(&mut self) {
        self.thread.close();
        self.wake.wake();
        self.thread.end();
        std::fs::remove_file(&self.socket).ok();
    }
}

/// Makes the socket; one that is there is an earlier agent's.
fn listen(settings: &ClusterSettings) -> Result<UnixListener, ClusterError> {
    let path = &settings.socket;
    let failed = |what: &'static str| {
        let path = path.clone();
        move |source: io::Error| ClusterError::Io { path, what, source }
    };
    remove_old(path)?;
    let listener = UnixListener::bind(path).map_err(failed("bind"))?;
    let set_mode = |mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    set_mode(MODE).map_err(failed("chmod"))?;
    if let Err(error) = chown(path, Some(settings.user), None) {
        // Without CAP_CHOWN.
        tracing::debug!(%error, "the socket for plimsoll-cluster stays this user's; its clients are told apart by SO_PEERCRED");
        set_mode(MODE_WITHOUT_OWNER).map_err(failed("chmod"))?;
    }
    listener.set_nonblocking(true).map_err(failed("fcntl"))?;
    Ok(listener)
}

fn remove_old(path: &Path) -> Result<(), ClusterError> {
    let failed = |what: &'static str| {
        let path = path.to_owned();
        move |source: io::Error| ClusterError::Io { path, what, source }
    };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("stat")(error)),
        Ok(there) if there.file_type().is_socket() => {
            std::fs::remove_file(path).map_err(failed("unlink"))
        }
        Ok(_) => Err(ClusterError::NotASocket {
            path: path.to_owned(),
        }),
    }
}

/// The thread.
struct Work {
    listener: UnixListener,
    user: u32,
    soft_grace_s: Option<u32>,
    wake: WakeFd,
    events: mpsc::Sender<ClusterEvent>,
    /// Found no room: nothing is read until it does.
    waiting_event: Option<ClusterEvent>,
    /// Why the last client went, where that has found no room either: holds depend on it.
    unsaid_loss: Option<String>,
    peer: Option<Peer>,
    known_objects: KnownObjects,
    intents: Intents,
    critical: CriticalPods,
    conditions: Vec<NodeConditionReport>,
    withheld_bytes: u64,
    newest: TopologySlot,
    /// The newest zones, as a frame.
    topology: Option<Vec<u8>>,
    counts: Arc<ClusterCounts>,
}

impl Work {
    fn run(mut self, reports: &Receiver<FromLoop>) {
        self.count();
        loop {
            let is_over = self.take_reports(reports);
            self.take_topology();
            self.write();
            if is_over {
                return;
            }
            self.hand_over();
            self.wait();
            self.read();
        }
    }

    fn has_hello(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.has_hello)
    }

    fn count(&self) {
        let counts = &self.counts;
        counts
            .waiting
            .store(self.intents.len() as u64, Ordering::Relaxed);
        counts
            .is_connected
            .store(self.has_hello(), Ordering::Relaxed);
    }

    /// Whether the loop has ended.
    fn take_reports(&mut self, reports: &Receiver<FromLoop>) -> bool {
        loop {
            let report = match reports.try_recv() {
                Ok(report) => report,
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            };
            let message = match report {
                FromLoop::Evicted(intent) => {
                    if !self.intents.add(&intent) {
                        continue; // it waits already
                    }
                    self.counts
                        .unreported
                        .fetch_add(self.intents.take_merged(), Ordering::Relaxed);
                    self.count();
                    ToCluster::Evicted {
                        intent,
                        is_let_go: false,
                    }
                }
                FromLoop::Withdrawn(uid) => {
                    self.intents.strike(&uid);
                    self.count();
                    ToCluster::Withdrawn { uid }
                }
                FromLoop::CgroupGone(uid) => {
                    self.intents.note_gone(&uid);
                    ToCluster::CgroupGone { uid }
                }
                FromLoop::LetGo(uid) => {
                    self.intents.let_go(&uid);
                    ToCluster::LetGo { uid }
                }
                FromLoop::Conditions(conditions) => {
                    self.conditions.clone_from(&conditions);
                    ToCluster::Conditions { conditions }
                }
                FromLoop::Withheld(memory_bytes) => {
                    self.withheld_bytes = memory_bytes;
                    ToCluster::Withheld { memory_bytes }
                }
            };
            self.tell_of_disk();
            self.send(&message);
        }
    }

    fn tell_of_disk(&mut self) {
        if let Some(error) = self.intents.take_error() {
            tracing::error!(%error, "evictions are reported, but after a restart of the agent they would be forgotten");
        }
    }

    fn take_topology(&mut self) {
        match self.newest.take() {
            None => {}
            Some(Ok(frame)) => {
                self.send_frame(Ok(frame.clone()));
                self.topology = Some(frame);
            }
            Some(Err(why)) => {
                tracing::warn!("the NodeResourceTopology of this node is not published: {why}");
            }
        }
    }

    /// To the client, if there is one that has introduced itself.
    fn send(&mut self, message: &ToCluster) {
        self.send_frame(frame(message));
    }

    fn send_frame(&mut self, frame: Result<Vec<u8>, String>) {
        if let Some(peer) = self.peer.as_mut().filter(|peer| peer.has_hello)
            && let Err(why) = frame.and_then(|frame| peer.queue(&frame))
        {
            self.lose(&why);
        }
    }

    fn write(&mut self) {
        if let Some(peer) = &mut self.peer
            && let Err(why) = peer.write()
        {
            self.lose(&why);
        }
    }

    fn hand_over(&mut self) {
        if let Some(event) = self.waiting_event.take()
            && let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event)
        {
            self.waiting_event = Some(event);
        }
        if self.waiting_event.is_none()
            && let Some(why) = self.unsaid_loss.take()
        {
            self.event(ClusterEvent::Lost { why });
        }
    }

    fn event(&mut self, event: ClusterEvent) {
        self.waiting_event = Some(event);
        self.hand_over();
    }

    fn wait(&self) {
        let readable = self.waiting_event.is_none();
        let mut wanted = PollFlags::empty();
        if let Some(peer) = &self.peer {
            wanted.set(PollFlags::IN, readable);
            wanted.set(PollFlags::OUT, peer.has_output());
        }
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
        ];
        if let Some(peer) = &self.peer {
            fds.push(PollFd::from_borrowed_fd(peer.stream.as_fd(), wanted));
        }
        let now = Instant::now();
        let until_event = (!readable).then_some(EVENT_AGAIN);
        let until_peer = self.peer.as_ref().and_then(|peer| peer.patience(now));
        let until_peer = until_peer.filter(|_| readable);
        let timeout = until_event.into_iter().chain(until_peer).min();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory for a moment.
            Err(_) => std::thread::sleep(EVENT_AGAIN),
        }
        self.wake.clear();
    }

    fn read(&mut self) {
        if let Ok((stream, _)) = self.listener.accept() {
            self.admit(stream);
        }
        let Some(peer) = &mut self.peer else { return };
        if let Err(why) = peer.read(Instant::now()) {
            // What came whole before is taken all the same.
            while self.waiting_event.is_none() && self.take_frame() {}
            return self.lose(&why);
        }
        while self.waiting_event.is_none() && self.take_frame() {}
    }

    fn admit(&mut self, stream: UnixStream) {
        let user = socket_peercred(&stream).map(|credentials| credentials.uid.as_raw());
        let is_welcome = user.is_ok_and(|user| user == self.user || user == 0);
        if !is_welcome || self.peer.is_some() || stream.set_nonblocking(true).is_err() {
            self.counts.refused_clients.fetch_add(1, Ordering::Relaxed);
            if !is_welcome {
                tracing::warn!(
                    ?user,
                    expected = self.user,
                    "a client of another user was refused (--cluster-uid)"
                );
            }
            return;
        }
        self.peer = Some(Peer::new(stream, Instant::now()));
    }

    /// Takes one frame that is whole, if there is one.
    fn take_frame(&mut self) -> bool {
        let Some(peer) = &mut self.peer else {
            return false;
        };
        let Some(bytes) = peer.take_frame(Instant::now()) else {
            return false;
        };
        let taken = peer::parse(&bytes).and_then(|message| self.take(message, bytes.len()));
        match taken {
            Ok(event) => {
                if let Some(event) = event {
                    self.event(event);
                }
            }
            Err(why) => self.refuse(&why),
        }
        true
    }

    fn refuse(&mut self, why: &str) {
        self.counts.refused_frames.fetch_add(1, Ordering::Relaxed);
        let Some(peer) = &mut self.peer else { return };
        match peer.refuse() {
            peer::Patience::Silent => {}
            peer::Patience::First => {
                let text = format!(
                    "plimsoll-cluster sent a frame that was refused: {}; decisions do not depend on it (further ones are counted)",
                    line(why)
                );
                self.event(ClusterEvent::Warning(text));
            }
            peer::Patience::Over => self.lose("too many of its frames were refused"),
        }
    }

    fn take(&mut self, message: ToAgent, bytes: usize) -> Result<Option<ClusterEvent>, String> {
        let has_hello = self.has_hello();
        match message {
            ToAgent::Hello { protocol, .. } if protocol != PROTOCOL => {
                let why = format!(
                    "it speaks protocol {protocol}, and this agent {PROTOCOL}; run both of one version"
                );
                self.lose(&why);
                let text = format!("plimsoll-cluster was sent away: {why}");
                Ok(Some(ClusterEvent::Warning(text)))
            }
            ToAgent::Hello { node, .. } if !has_hello => {
                self.greet();
                Ok(Some(ClusterEvent::Connected { node }))
            }
            _ if !has_hello => Err("its first frame is not Hello".to_owned()),
            ToAgent::Hello { .. } => Err("a second Hello".to_owned()),
            ToAgent::Settled { uid, how } => {
                let uid = self.known_objects.uid(&uid);
                if !self.intents.strike(&uid) {
                    return Err("Settled for a pod that was not evicted".to_owned());
                }
                self.count();
                Ok(Some(ClusterEvent::Settled { uid, how }))
            }
            ToAgent::Reported { uid } => {
                let uid = self.waiting(&uid)?;
                Ok(Some(ClusterEvent::Reported { uid }))
            }
            ToAgent::Refused { uid } => {
                let uid = self.waiting(&uid)?;
                Ok(Some(ClusterEvent::Refused { uid }))
            }
            ToAgent::Api { is_reachable } => Ok(Some(ClusterEvent::Api { is_reachable })),
            ToAgent::Node { kubelet_version } => Ok(Some(ClusterEvent::Node { kubelet_version })),
            ToAgent::Overused {
                valid_ms,
                namespaces,
            } => {
                let list = known_objects::overused(namespaces, valid_ms, now_ns())?;
                Ok(Some(ClusterEvent::Overused(Arc::new(list))))
            }
            other => {
                let change = self.known_objects.take(other, bytes)?;
                if let Some(change) = &change {
                    self.critical.note(change);
                }
                Ok(change.map(ClusterEvent::Change))
            }
        }
    }

    /// A pod whose eviction waits to be settled.
    fn waiting(&self, uid: &PodUid) -> Result<PodUid, String> {
        let uid = self.known_objects.uid(uid);
        let waits = self.intents.contains(&uid);
        waits
            .then_some(uid)
            .ok_or_else(|| "about a pod that was not evicted".to_owned())
    }

    /// The client has introduced itself: our part, and all that waits.
    fn greet(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.has_hello = true;
        }
        self.count();
        let unreported = self.counts.unreported.load(Ordering::Relaxed);
        let hello = ToCluster::Hello {
            protocol: PROTOCOL,
            unreported,
            soft_grace_s: self.soft_grace_s,
        };
        self.send(&hello);
        let waiting: Vec<EvictionIntent> = self.intents.iter().cloned().collect();
        for intent in waiting {
            // In the same frame: in between the client could end the pod.
            let is_let_go = self.intents.is_let_go(&intent.uid);
            let intent = Box::new(intent);
            self.send(&ToCluster::Evicted { intent, is_let_go });
        }
        let gone: Vec<PodUid> = self.intents.gone().cloned().collect();
        for uid in gone {
            self.send(&ToCluster::CgroupGone { uid });
        }
        // Nothing withheld is what it takes for granted.
        let memory_bytes = self.withheld_bytes;
        if memory_bytes > 0 {
            self.send(&ToCluster::Withheld { memory_bytes });
        }
        if let Some(frame) = self.topology.clone() {
            self.send_frame(Ok(frame));
        }
        let conditions = self.conditions.clone();
        self.send(&ToCluster::Conditions { conditions });
    }

    fn lose(&mut self, why: &str) {
        let Some(peer) = self.peer.take() else { return };
        self.known_objects.forget_list();
        self.count();
        if peer.has_hello {
            // An event that waits goes first.
            self.unsaid_loss = Some(line(why).to_string());
            self.hand_over();
        } else {
            tracing::debug!(why, "a client left before it introduced itself");
        }
    }
}

#[cfg(test)]
mod tests;
