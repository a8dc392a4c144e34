//! The control socket: how a running agent is asked what it knows and what it would do. Read-only.
//!
//! **Problem.** Questions come from anybody who may open the socket, at any time, and answering one means walking over
//! all pods and writing JSON. The agent's loop must not notice. **Approach.** A thread of ordinary priority owns the
//! socket and does all the work. From the loop it gets a *snapshot*, a plain copy of what the engine knows, asked for
//! through a short queue that the loop looks at when nothing else wakes it, and kept for a moment, so that many
//! questions cost the loop no more than a few. Everything a client can take is bounded: connections, bytes, time.
//! **Protocol.** One connection, one question, one answer: a line of JSON each, `{"v":1,"request":"explainEviction"}`
//! and `{"v":1,"answer":…}` or `{"v":1,"error":{"kind":…,"message":…}}`.

pub mod client;
mod newest;
mod protocol;
pub mod server;
mod socket;

pub use newest::{NoSnapshot, SNAPSHOT_LIFE, Snapshots};
pub use protocol::{Answer, Health, Refusal, RefusalKind, Reply, Request, VERSION};
pub use socket::{SocketError, prepare_place};

pub(crate) use socket::remove_group_dir;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;
use tokio::sync::{mpsc, oneshot};

use crate::record::snapshot::Snapshot;

/// The state directory, unless `--state-dir` names another.
pub const STATE_DIR: &str = "/run/plimsoll";

/// The socket's name in its directory.
pub const SOCKET_FILE: &str = "control.sock";

/// What the state directory's name is followed by in the name of the directory for a socket that a group may use.
const GROUP_DIR_SUFFIX: &str = "-control";

/// Questions to the loop that may wait.
const SNAPSHOTS_WAITING: usize = 2;

/// The loop's end: where a snapshot is to go.
pub type SnapshotRequests = mpsc::Receiver<oneshot::Sender<Snapshot>>;

/// The server's end.
pub type SnapshotSource = mpsc::Sender<oneshot::Sender<Snapshot>>;

/// The queue between both.
pub fn snapshots() -> (SnapshotSource, SnapshotRequests) {
    mpsc::channel(SNAPSHOTS_WAITING)
}

/// Where a client finds the socket. Which of the two default places it is depends on the agent; all users see whether
/// there is one for a group.
pub fn socket_path(state_dir: &Path, option: Option<&Path>) -> PathBuf {
    if let Some(socket) = option {
        return socket.to_owned();
    }
    let for_group = group_dir(state_dir).join(SOCKET_FILE);
    match std::fs::symlink_metadata(&for_group) {
        Err(error) if error.kind() == ErrorKind::NotFound => state_dir.join(SOCKET_FILE),
        // Also one in a directory that this user cannot search: the answer is then that it is not allowed.
        _ => for_group,
    }
}

/// The directory for a socket that a group may use, beside the state directory, which is root's alone:
/// `/run/plimsoll-control`.
pub fn group_dir(state_dir: &Path) -> PathBuf {
    let mut name = state_dir.file_name().unwrap_or_default().to_owned();
    name.push(GROUP_DIR_SUFFIX);
    state_dir.with_file_name(name)
}

/// Which agent is asked, the same for every command that asks one.
#[derive(Debug, Clone, Default, Args)]
pub struct AgentArgs {
    /// State directory of the agent
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Control socket of the agent
    /// [default: control.sock in the state directory, or in DIR-control for an agent with --control-group]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
}

impl AgentArgs {
    /// Where the agent's socket is.
    pub fn socket(&self) -> PathBuf {
        socket_path(&self.state_dir, self.control_socket.as_deref())
    }
}
