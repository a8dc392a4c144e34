//! What the kubelet says that it has given to containers: by that what each NUMA node has left, and where the devices
//! of a container are that is about to be placed.
//!
//! **Problem.** Only the kubelet knows, and says it over gRPC when it is asked; a scheduler that hears it a minute late
//! binds pods that are refused. **Approach.** `plimsoll-runtime resources` asks every second and sends what has changed
//! ([`pod_resources`](plimsoll_core::protocol::pod_resources)); it is a process that this thread starts, and kills when
//! it is silent. The thread reads the machine again with each change and every [`LOOK`] (CPUs and memory come and go),
//! and puts the zones where plimsoll-cluster is served ([`TopologySlot`]). A loop that places containers says what it
//! has placed ([`TopologySource::place`]), which counts in the zones; else it has no part in that. To such a loop it
//! also sends which devices containers have, as that changes; and, where a pod waits for it, what the kubelet has said
//! since then, at once ([`TopologySource::ask`]).
#![forbid(unsafe_code)]

mod connection;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_core::kube::node_resource_topology::{Alignment, NodeTopology};
use plimsoll_core::placement::device::ListedDevices;
use plimsoll_core::placement::numa_zones::{AgentPlacement, Doubt, Survey, survey};
use plimsoll_core::protocol::backoff::Backoff;
use plimsoll_core::protocol::pod_resources::{FromKubelet, NodeResources, ToKubelet};

use tokio::sync::mpsc;

use crate::host::HostRoot;
use crate::host::clock::now_ns;
use crate::host::panics;
use crate::host::runtime_program::{Lost, RESTARTS};
use crate::host::shown::line;
use crate::host::topology::read_machine;
use crate::host::worker::WorkerThread;
use crate::source::cluster::TopologySlot;
use connection::{Connection, Start, Stopper, started};

/// Where the kubelet listens, unless told otherwise.
pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// The same in the directory of any kubelet (`getPodResourcesDir` in pkg/kubelet/kubelet_getters.go).
pub const IN_KUBELET_DIR: &str = "pod-resources/kubelet.sock";
/// How often the machine and the kubelet's configuration are read although the kubelet says nothing new.
const LOOK: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 512 << 10;
/// Later than anything the kubelet says.
const NOT_AWAITED: u64 = u64::MAX;

/// Whom to ask.
#[derive(Debug, Clone)]
pub struct ResourceSettings {
    /// The kubelet's socket.
    pub socket: PathBuf,
    /// `plimsoll-runtime`.
    pub program: PathBuf,
}

/// Who wants to hear what.
#[derive(Debug, Default)]
pub struct Outlets {
    /// Where zones are put.
    pub zones: Option<TopologySlot>,
    /// Where devices are sent to; `None` while it is not known who has them.
    pub devices: Option<mpsc::Sender<Option<Arc<ListedDevices>>>>,
}

/// Reads the kubelet's topology policy, where it is known.
pub type ReadAlignment = Box<dyn Fn() -> Option<Alignment> + Send>;

/// Asks once.
///
/// # Errors
/// Why there is no answer.
pub fn once(settings: &ResourceSettings) -> Result<NodeResources, String> {
    let mut connection = started(settings).map_err(|error| error.to_string())?;
    connection.greet()?;
    match connection.read()? {
        FromKubelet::Resources { resources, .. } => Ok(*resources),
        FromKubelet::Failed { why } => Err(why),
        FromKubelet::Hello { .. } | FromKubelet::Same { .. } => Err(Lost::Nonsense.into()),
    }
}

/// The zones of this machine; `placed`: by the agent.
///
/// # Errors
/// The machine cannot be read, or the kubelet does not say enough.
pub fn look(
    host: &HostRoot,
    resources: &NodeResources,
    alignment: Option<Alignment>,
    placed: Option<&AgentPlacement>,
) -> Result<Survey, String> {
    let machine = read_machine(host).map_err(|error| error.to_string())?;
    let surveyed = panics::guard(|| match placed {
        Some(placed) => placed.survey(&machine, resources, alignment),
        None => survey(&machine, resources, alignment),
    });
    let surveyed = surveyed.map_err(|panicked| panicked.to_string())?;
    surveyed.map_err(|error| error.to_string())
}

/// The thread, which ends with this.
#[derive(Debug)]
pub struct TopologySource {
    stopper: Arc<Stopper>,
    awaited: Arc<AtomicU64>,
    /// `None`: nobody wants zones.
    placed: Option<PlacementSlot>,
    _thread: WorkerThread<Infallible>,
}

/// What the agent has placed, the newest only.
type PlacementSlot = Arc<Mutex<Option<Arc<AgentPlacement>>>>;

impl TopologySource {
    /// Begins.
    ///
    /// # Errors
    /// The system's: no thread.
    pub fn start(
        settings: ResourceSettings,
        host: HostRoot,
        alignment: ReadAlignment,
        outlets: Outlets,
    ) -> io::Result<Self> {
        let start = Box::new(move || started(&settings));
        Self::started_by(start, host, alignment, outlets)
    }

    /// Has the kubelet asked at once, for it has probably given or taken back something. Does not wait.
    pub fn prompt(&self) {
        self.stopper.send(&ToKubelet::Ask);
    }

    /// Has the kubelet asked at once. What it says from now on is sent once, although it may be the same as before.
    /// Does not wait; where the question finds no way, that is what it says within a second.
    pub fn ask(&self) {
        self.awaited.store(now_ns(), Ordering::SeqCst);
        self.prompt();
    }

    /// Whether what is placed counts for anybody.
    pub fn wants_placement(&self) -> bool {
        self.placed.is_some()
    }

    /// The agent has placed this; `None`: it places nothing any more. Where that is something new the zones are counted
    /// anew, as soon as the kubelet has answered. Does not wait.
    pub fn place(&self, placed: Option<AgentPlacement>) {
        let Some(slot) = &self.placed else {
            return;
        };
        let mut newest = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.as_deref() != placed.as_ref() {
            *newest = placed.map(Arc::new);
            drop(newest);
            self.prompt();
        }
    }

    fn started_by(
        start: Start,
        host: HostRoot,
        alignment: ReadAlignment,
        outlets: Outlets,
    ) -> io::Result<Self> {
        let stopper = Arc::new(Stopper::default());
        let awaited = Arc::new(AtomicU64::new(NOT_AWAITED));
        let placed: Option<PlacementSlot> = outlets.zones.is_some().then(PlacementSlot::default);
        let work = Work {
            start,
            host,
            alignment,
            outlets,
            devices: None,
            awaited: Arc::clone(&awaited),
            placed: placed.clone(),
            stopper: Arc::clone(&stopper),
            resources: None,
            looked: None,
            counted: None,
            sent: None,
            doubts: BTreeSet::new(),
            said: None,
        };
        let thread = WorkerThread::start("topology", STACK_BYTES, 0, move |_, _| work.run())?;
        Ok(Self {
            stopper,
            awaited,
            placed,
            _thread: thread,
        })
    }
}

impl Drop for TopologySource {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

struct Work {
    start: Start,
    host: HostRoot,
    alignment: ReadAlignment,
    outlets: Outlets,
    /// What was last sent to the loop.
    devices: Option<Arc<ListedDevices>>,
    /// Since when the loop waits for what the kubelet says, or [`NOT_AWAITED`].
    awaited: Arc<AtomicU64>,
    placed: Option<PlacementSlot>,
    stopper: Arc<Stopper>,
    /// What the kubelet last said.
    resources: Option<NodeResources>,
    /// When the machine was last read.
    looked: Option<Instant>,
    /// What the agent had placed then.
    counted: Option<Arc<AgentPlacement>>,
    sent: Option<NodeTopology>,
    /// What was last said.
    doubts: BTreeSet<Doubt>,
    said: Option<String>,
}

impl Work {
    fn run(mut self) {
        let mut restarts = RESTARTS;
        while !self.stopper.is_stopped() {
            let connected = (self.start)().map_err(|error| error.to_string());
            let ended = connected.and_then(|mut connection| {
                self.stopper.watch(&connection)?;
                connection.greet()?;
                self.follow(&mut connection, &mut restarts)
            });
            let Err(why) = ended else { return };
            if !self.stopper.is_stopped() {
                self.fail(why);
                let until = Instant::now() + restarts.failed();
                while !self.stopper.is_stopped() && Instant::now() < until {
                    std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    /// Until the connection ends, which is a failure unless it was stopped.
    fn follow(
        &mut self,
        connection: &mut Connection,
        restarts: &mut Backoff,
    ) -> Result<(), String> {
        loop {
            let heard = connection.read();
            if self.stopper.is_stopped() {
                return Ok(());
            }
            let asked_at_ns = match heard? {
                FromKubelet::Hello { .. } => return Err(Lost::Nonsense.into()),
                FromKubelet::Resources {
                    asked_at_ns,
                    resources,
                } => {
                    (self.resources, self.looked) = (Some(*resources), None);
                    asked_at_ns
                }
                FromKubelet::Same { asked_at_ns } => asked_at_ns,
                FromKubelet::Failed { why } => {
                    self.fail(why);
                    continue;
                }
            };
            restarts.reset();
            self.tell_devices(asked_at_ns);
            self.look();
        }
    }

    /// The kubelet did not answer: its last answer may be out of date, and is withdrawn.
    fn fail(&mut self, why: String) {
        self.say_failure(Some(why));
        self.send_devices(None);
    }

    fn tell_devices(&mut self, asked_at_ns: u64) {
        let resources = self.resources.as_ref();
        let Some(resources) = resources.filter(|_| self.outlets.devices.is_some()) else {
            return;
        };
        if resources.has_too_many_pods() {
            let pods = resources.pods.len();
            return self.fail(format!("it lists {pods} pods, more than are taken"));
        }
        let given = panics::guard(|| ListedDevices::of(asked_at_ns, resources));
        match given {
            Ok(given) => self.send_devices(Some(given)),
            Err(panicked) => self.fail(panicked.to_string()),
        }
    }

    /// Sent if it is something else than before, or is waited for. What finds no room is sent with the next word of the
    /// other end.
    fn send_devices(&mut self, given: Option<ListedDevices>) {
        let Some(listener) = &self.outlets.devices else {
            return;
        };
        let awaited = self.awaited.load(Ordering::SeqCst);
        let is_same = match (&self.devices, &given) {
            (Some(before), Some(given)) => {
                before.says_the_same(given) && given.asked_at_ns <= awaited
            }
            (before, given) => before.is_none() && given.is_none(),
        };
        if is_same {
            return;
        }
        let given = given.map(Arc::new);
        if listener.try_send(given.clone()).is_ok() {
            if given
                .as_ref()
                .is_some_and(|given| given.asked_at_ns > awaited)
            {
                // Unless it waits for something later by now.
                let order = Ordering::SeqCst;
                self.awaited
                    .compare_exchange(awaited, NOT_AWAITED, order, order)
                    .ok();
            }
            self.devices = given;
        }
    }

    fn look(&mut self) {
        let Some(slot) = self.outlets.zones.clone() else {
            return self.say_failure(None);
        };
        let placed = self.placed.as_ref().and_then(|slot| {
            let newest = slot.lock().unwrap_or_else(PoisonError::into_inner);
            newest.clone()
        });
        let is_due =
            self.looked.is_none_or(|looked| looked.elapsed() >= LOOK) || placed != self.counted;
        let Some(resources) = self.resources.as_ref().filter(|_| is_due) else {
            return;
        };
        self.looked = Some(Instant::now());
        let alignment = panics::guard(|| (self.alignment)()).ok().flatten();
        self.counted = placed;
        match look(&self.host, resources, alignment, self.counted.as_deref()) {
            Ok(Survey { topology, doubts }) => {
                for doubt in doubts.difference(&self.doubts) {
                    tracing::warn!("NodeResourceTopology: {doubt}");
                }
                self.doubts = doubts;
                self.say_failure(None);
                if self.sent.as_ref() != Some(&topology) {
                    slot.put(topology.clone());
                    self.sent = Some(topology);
                }
            }
            Err(why) => self.say_failure(Some(why)),
        }
    }

    /// Says what is wrong, once for each change.
    fn say_failure(&mut self, failure: Option<String>) {
        if let Some(why) = failure.as_ref().filter(|_| failure != self.said) {
            let parts = [
                self.outlets
                    .zones
                    .is_some()
                    .then_some("the NodeResourceTopology of this node is not kept up to date"),
                self.outlets
                    .devices
                    .is_some()
                    .then_some("containers are not placed near to their devices"),
            ];
            let lost: Vec<&str> = parts.into_iter().flatten().collect();
            tracing::warn!(
                "what the kubelet has given to containers is not known, so {}: {}",
                lost.join(", and "),
                line(why)
            );
        }
        self.said = failure;
    }
}

#[cfg(test)]
mod tests;
