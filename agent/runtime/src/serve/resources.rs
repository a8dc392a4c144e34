//! What the kubelet has given to containers, asked every second and sent to the agent as it changes, over the socket that is standard input.

use std::io;
use std::path::Path;
use std::time::Duration;

use plimsoll_core::kube::framing::FrameError;
use plimsoll_core::kube::pod_resources::{
    ASKED_EVERY_MS, FRAMING, FromKubelet, NodeResources, PROTOCOL,
};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{MissedTickBehavior, interval};

use crate::connection::CallError;
use crate::frames::cut;
use crate::pod_resources::Kubelet;

/// Sends until the agent closes the socket.
///
/// # Errors
/// The system's.
pub async fn run(socket: &Path, agent: UnixStream) -> io::Result<()> {
    let (mut reader, mut writer) = agent.into_split();
    let mut byte = [0];
    tokio::select! {
        sent = send_all(socket, &mut writer) => sent,
        // It sends nothing: what can be read is its end.
        ended = reader.read(&mut byte) => ended.map(|_| ()),
    }
}

async fn send_all(socket: &Path, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    send(writer, &FromKubelet::Hello { protocol: PROTOCOL }).await?;
    let mut ticks = interval(Duration::from_millis(ASKED_EVERY_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut kubelet, mut sent) = (None, None);
    loop {
        ticks.tick().await;
        match ask(socket, &mut kubelet).await {
            Ok(resources) if sent.as_ref() == Some(&resources) => {
                send(writer, &FromKubelet::Same).await?;
            }
            Ok(resources) => {
                let message = FromKubelet::Resources {
                    resources: Box::new(resources.clone()),
                };
                sent = send(writer, &message).await?.then_some(resources);
            }
            Err(error) => {
                // It may have been started anew.
                (kubelet, sent) = (None, None);
                fail(writer, &error.to_string()).await?;
            }
        }
    }
}

async fn ask(socket: &Path, kubelet: &mut Option<Kubelet>) -> Result<NodeResources, CallError> {
    let kubelet = match kubelet {
        Some(kubelet) => kubelet,
        None => kubelet.insert(Kubelet::open(socket).await?),
    };
    kubelet.resources().await
}

/// Whether it was sent as it is; one that is too large is a failure, which the agent hears.
async fn send(writer: &mut (impl AsyncWrite + Unpin), message: &FromKubelet) -> io::Result<bool> {
    match frame(message)? {
        Ok(frame) => {
            writer.write_all(&frame).await?;
            Ok(true)
        }
        Err(error) => {
            let why = format!("what the kubelet lists does not fit: {error}");
            fail(writer, &why).await?;
            Ok(false)
        }
    }
}

async fn fail(writer: &mut (impl AsyncWrite + Unpin), why: &str) -> io::Result<()> {
    let why = cut(why);
    match frame(&FromKubelet::Failed { why })? {
        Ok(frame) => writer.write_all(&frame).await,
        Err(error) => Err(io::Error::other(error)), // a short text fits
    }
}

fn frame(message: &FromKubelet) -> io::Result<Result<Vec<u8>, FrameError>> {
    let json = serde_json::to_vec(message)?;
    Ok(FRAMING.body(&json).and_then(|body| FRAMING.frame(body)))
}

#[cfg(test)]
mod tests;
