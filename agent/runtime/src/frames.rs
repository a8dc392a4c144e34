//! Frames to and from the agent: four bytes of length, then so many bytes of JSON (`plimsoll_core::kube::runtime_link`).

use std::io;

use plimsoll_core::kube::runtime_link::{FRAME_BYTES_MAX, FromRuntime, ToRuntime};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// A message as it goes over the socket; `None`: it is too long.
pub fn encode(message: &FromRuntime) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(message).ok()?;
    let length = u32::try_from(json.len()).ok()?;
    (json.len() <= FRAME_BYTES_MAX).then(|| [&length.to_le_bytes(), &json[..]].concat())
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
pub async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<ToRuntime>> {
    let length = match reader.read_u32_le().await {
        Ok(length) => usize::try_from(length).unwrap_or(usize::MAX),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > FRAME_BYTES_MAX {
        let text = format!("the agent announced a frame of {length} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).await?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}
