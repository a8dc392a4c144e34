//! The Unix socket to the agent, which listens. Frames are bounded both ways; an agent that does not read, or sends
//! what is no frame, is left and called again, and then hears everything from the beginning.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_core::protocol::cluster_link::{FRAMING, PROTOCOL, ToAgent, ToCluster};
use plimsoll_core::protocol::framing::{FrameError, LENGTH_BYTES};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::backoff::Backoff;

/// An agent that takes no bytes for so long is left.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// An agent that does not greet is left.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest pause between two calls, milliseconds: the agent is on the same machine, and has evictions to tell.
const PAUSE_MAX_MS: u64 = 3_000;
/// Batches that wait for the agent.
const WAITING_MAX: usize = 64;

/// A frame's bytes, with its length.
pub type Frame = Arc<[u8]>;
/// Frames that go together.
pub type Batch = Vec<Frame>;

/// What is heard of the agent.
#[derive(Debug)]
pub enum FromAgent {
    /// It is there; frames for it go here.
    Connected(Sender<Batch>),
    /// It says this; the first one is its greeting.
    Frame(ToCluster),
    /// It is gone. Why, in words.
    Lost(String),
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(
        "cannot connect to {0:?}: {1}; plimsoll-agent has to run with --kubernetes and the same --cluster-socket"
    )]
    Connect(PathBuf, std::io::Error),
    #[error("the connection broke off: {0}")]
    Io(#[from] std::io::Error),
    #[error("the agent closed the connection")]
    Closed,
    #[error("the agent sent {0}")]
    Refused(#[from] FrameError),
    #[error("the agent's frame cannot be read: {0}")]
    Garbage(#[from] serde_json::Error),
    #[error("the agent speaks protocol {0}, this is {PROTOCOL}: use both of one release")]
    Protocol(u32),
    #[error("the agent did not greet within {} s", GREETING_TIMEOUT.as_secs())]
    NoGreeting,
    #[error("the agent took nothing for {} s", WRITE_TIMEOUT.as_secs())]
    Stalled,
}

/// A frame's bytes. `None`: it is too long for the agent, which cannot happen to what this program makes.
#[must_use]
pub fn encode(frame: &ToAgent) -> Option<Frame> {
    let json = serde_json::to_vec(frame).ok()?;
    FRAMING.frame(&json).ok().map(Into::into)
}

/// Connects, again and again, until the receiver is gone.
pub async fn run(socket: PathBuf, node: String, heard: Sender<FromAgent>, seed: u64) {
    let mut backoff = Backoff::new(seed);
    loop {
        let Err(error) = connection(&socket, &node, &heard, &mut backoff).await else {
            return;
        };
        if heard
            .send(FromAgent::Lost(error.to_string()))
            .await
            .is_err()
        {
            return;
        }
        let pause_ms = backoff.wait_ms().min(PAUSE_MAX_MS);
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    }
}

/// One connection. Ends well only when this program ends.
async fn connection(
    socket: &Path,
    node: &str,
    heard: &Sender<FromAgent>,
    backoff: &mut Backoff,
) -> Result<(), LinkError> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|error| LinkError::Connect(socket.to_owned(), error))?;
    let (mut reader, mut writer) = stream.into_split();
    let hello = ToAgent::Hello {
        protocol: PROTOCOL,
        node: node.to_owned(),
    };
    if let Some(hello) = encode(&hello) {
        write(&mut writer, &hello).await?;
    }
    let greeting = timeout(GREETING_TIMEOUT, read(&mut reader)).await;
    let greeting = greeting.map_err(|_| LinkError::NoGreeting)??;
    match &greeting {
        ToCluster::Hello { protocol, .. } if *protocol == PROTOCOL => {}
        ToCluster::Hello { protocol, .. } => return Err(LinkError::Protocol(*protocol)),
        _ => return Err(LinkError::NoGreeting),
    }
    backoff.reset();
    let (batches, mut waiting) = channel(WAITING_MAX);
    for first in [FromAgent::Connected(batches), FromAgent::Frame(greeting)] {
        if heard.send(first).await.is_err() {
            return Ok(());
        }
    }
    tokio::select! {
        read = read_all(&mut reader, heard) => read,
        written = write_all(&mut writer, &mut waiting) => written,
    }
}

async fn read_all(reader: &mut OwnedReadHalf, heard: &Sender<FromAgent>) -> Result<(), LinkError> {
    loop {
        let frame = read(reader).await?;
        if heard.send(FromAgent::Frame(frame)).await.is_err() {
            return Ok(());
        }
    }
}

async fn write_all(
    writer: &mut OwnedWriteHalf,
    waiting: &mut Receiver<Batch>,
) -> Result<(), LinkError> {
    while let Some(batch) = waiting.recv().await {
        for frame in batch {
            write(writer, &frame).await?;
        }
    }
    // The loop has let go of this connection: the agent did not keep up.
    Err(LinkError::Stalled)
}

async fn write(writer: &mut OwnedWriteHalf, frame: &[u8]) -> Result<(), LinkError> {
    timeout(WRITE_TIMEOUT, writer.write_all(frame))
        .await
        .map_err(|_| LinkError::Stalled)??;
    Ok(())
}

async fn read(reader: &mut OwnedReadHalf) -> Result<ToCluster, LinkError> {
    let mut length = [0; LENGTH_BYTES];
    match reader.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            return Err(LinkError::Closed);
        }
        Err(error) => return Err(error.into()),
    }
    let mut bytes = vec![0; FRAMING.announced(length)?];
    reader.read_exact(&mut bytes).await?;
    Ok(serde_json::from_slice(FRAMING.body(&bytes)?)?)
}
