//! The agent's end of the socket.

use plimsoll_core::protocol::runtime_link::FRAMING;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

pub(crate) async fn say(agent: &mut UnixStream, frame: &impl Serialize) {
    let json = serde_json::to_vec(frame).unwrap();
    agent
        .write_u32_le(u32::try_from(json.len()).unwrap())
        .await
        .unwrap();
    agent.write_all(&json).await.unwrap();
}

pub(crate) async fn hear<T: DeserializeOwned>(agent: &mut UnixStream) -> T {
    let length = usize::try_from(agent.read_u32_le().await.unwrap()).unwrap();
    assert!(length <= FRAMING.bytes_max);
    let mut frame = vec![0; length];
    agent.read_exact(&mut frame).await.unwrap();
    serde_json::from_slice(&frame).unwrap()
}
