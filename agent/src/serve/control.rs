//! The control socket: how a running agent is asked what it knows and what it would do. Read-only.
//!
//! **Problem.** Questions come from anybody who may open the socket, at any time, and answering one means walking over all pods and
//! writing JSON. The agent's loop must not notice.
//! **Approach.** A thread of ordinary priority owns the socket and does all the work. From the loop it gets a *snapshot*, a plain copy of
//! what the engine knows, asked for through a short queue that the loop looks at when nothing else wakes it, and kept for a moment, so that
//! many questions cost the loop no more than a few. Everything a client can take is bounded: connections, bytes, time.
//! **Protocol.** One connection, one question, one answer: a line of JSON each, `{"v":1,"request":"explainEviction"}` and
//! `{"v":1,"answer":…}` or `{"v":1,"error":{"kind":…,"message":…}}`.

pub mod client;
mod newest;
mod protocol;
pub mod server;
mod socket;

pub use newest::{NoSnapshot, SNAPSHOT_LIFE, Snapshots};
pub use protocol::{Answer, Refusal, RefusalKind, Reply, Request, VERSION};
pub use socket::SocketError;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::model::state::NodeState;
use plimsoll_core::model::units::PodUid;
use plimsoll_core::policy::oom::order::OomPlan;
use tokio::sync::{mpsc, oneshot};

use crate::daemon::limits::LimitTotals;
use crate::kernel::AccountReport;
use crate::record::lines::Told;
use crate::record::tally::Tally;

/// The socket's name in the state directory.
pub const SOCKET_FILE: &str = "control.sock";

/// Questions to the loop that may wait.
const SNAPSHOTS_WAITING: usize = 2;

/// What the loop gives away: all that explanations are made of, at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// What the engine was told.
    pub config: EngineConfig,
    /// What it knows.
    pub state: NodeState,
    /// The order of OOM kills, where the agent makes one.
    pub oom_plan: Option<OomPlan>,
    /// Where every record of the kernel went, where BPF programs send any.
    pub records: Option<AccountReport>,
    /// What the loop has counted of its own work.
    pub tally: Tally,
    /// What limits have cost the pods.
    pub limits: BTreeMap<PodUid, LimitTotals>,
    /// The newest of what was said, the oldest first.
    pub told: Vec<Arc<Told>>,
}

impl Snapshot {
    /// What an engine knows, without anything that only a running loop has.
    pub fn of(engine: &Engine) -> Self {
        Self {
            config: engine.config().clone(),
            state: engine.state().clone(),
            oom_plan: None,
            records: None,
            tally: Tally::default(),
            limits: BTreeMap::new(),
            told: Vec::new(),
        }
    }
}

/// The loop's end: where a snapshot is to go.
pub type SnapshotRequests = mpsc::Receiver<oneshot::Sender<Snapshot>>;

/// The server's end.
pub type SnapshotSource = mpsc::Sender<oneshot::Sender<Snapshot>>;

/// The queue between both.
pub fn snapshots() -> (SnapshotSource, SnapshotRequests) {
    mpsc::channel(SNAPSHOTS_WAITING)
}

/// Where the socket is.
pub fn socket_path(state_dir: &Path, option: Option<&Path>) -> PathBuf {
    option.map_or_else(|| state_dir.join(SOCKET_FILE), Path::to_owned)
}
