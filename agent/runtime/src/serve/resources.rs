//! What the kubelet has given to containers, asked every second and when the agent wants to know it of a pod, and sent to the agent as it changes, over the socket that is standard input.

use std::io;
use std::path::Path;
use std::time::Duration;

use plimsoll_core::kube::framing::FrameError;
use plimsoll_core::kube::pod_resources::{
    ASKED_EVERY_MS, FRAMING, FromKubelet, NodeResources, PROTOCOL, ToKubelet,
};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::connection::CallError;
use crate::frames::{cut, read};
use crate::pod_resources::Kubelet;

/// Pods that wait to be asked about. Those beyond have their turn with all.
const QUESTIONS: usize = 64;

/// Sends until the agent closes the socket.
///
/// # Errors
/// The system's, and frames that are none.
pub async fn run(socket: &Path, agent: UnixStream) -> io::Result<()> {
    let (mut reader, mut writer) = agent.into_split();
    let (asked, questions) = mpsc::channel(QUESTIONS);
    let hearing = async {
        while let Some(ToKubelet::Pod { pod }) = read(&mut reader).await? {
            asked.try_send(pod).ok(); // full: all are asked for within a second
        }
        Ok(())
    };
    tokio::select! {
        sent = send_all(socket, &mut writer, questions) => sent,
        heard = hearing => heard,
    }
}

async fn send_all(
    socket: &Path,
    writer: &mut (impl AsyncWrite + Unpin),
    mut questions: mpsc::Receiver<String>,
) -> io::Result<()> {
    send(writer, &FromKubelet::Hello { protocol: PROTOCOL }).await?;
    let mut ticks = interval(Duration::from_millis(ASKED_EVERY_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut kubelet, mut sent) = (None, None);
    loop {
        let pod = tokio::select! {
            _ = ticks.tick() => None,
            pod = questions.recv() => pod,
        };
        match ask(socket, &mut kubelet, pod.as_deref().zip(sent.as_ref())).await {
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

/// All, or in what is known anew what one pod has.
async fn ask(
    socket: &Path,
    kubelet: &mut Option<Kubelet>,
    pod: Option<(&str, &NodeResources)>,
) -> Result<NodeResources, CallError> {
    let kubelet = match kubelet {
        Some(kubelet) => kubelet,
        None => kubelet.insert(Kubelet::open(socket).await?),
    };
    match pod {
        Some((pod, known)) => kubelet.with_pod(pod, known).await,
        None => kubelet.resources().await,
    }
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
