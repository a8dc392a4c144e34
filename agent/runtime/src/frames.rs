//! Frames to and from the agent (`plimsoll_core::protocol::runtime_link`).

use std::io;
use std::os::fd::AsFd as _;

use plimsoll_core::protocol::framing::{FrameError, LENGTH_BYTES};
use plimsoll_core::protocol::runtime_link::FRAMING;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// Of a text of others, characters.
const TEXT_MAX: usize = 300;

/// The agent's socket, which is standard input.
///
/// # Errors
/// Standard input is no socket: the agent starts this.
pub fn agent() -> io::Result<UnixStream> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::net::sockopt::socket_type(&socket)?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// A message as it goes over the socket; `None`: it is too long.
pub fn encode(message: &impl Serialize) -> Option<Vec<u8>> {
    FRAMING.frame(&serde_json::to_vec(message).ok()?).ok()
}

/// A text of others, of which any frame has room for so much.
pub fn cut(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// Writes a frame.
///
/// # Errors
/// The system's.
pub async fn write(writer: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    writer.write_all(frame).await
}

/// The next message; `None`: the agent has ended.
///
/// # Errors
/// The system's, and what is no message of this protocol.
pub async fn read<T: DeserializeOwned>(
    reader: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<T>> {
    let mut length = [0; LENGTH_BYTES];
    match reader.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let refused = |error: FrameError| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the agent sent {error}"),
        )
    };
    let mut bytes = vec![0; FRAMING.announced(length).map_err(refused)?];
    reader.read_exact(&mut bytes).await?;
    let body = FRAMING.body(&bytes).map_err(refused)?;
    Ok(Some(serde_json::from_slice(body)?))
}
