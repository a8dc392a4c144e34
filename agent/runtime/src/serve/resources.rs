//! What the kubelet has given to containers, asked every second and when the agent wants to know it, and sent to the
//! agent as it changes, over the socket that is standard input.

use std::io;
use std::path::Path;
use std::time::Duration;

use plimsoll_core::protocol::framing::FrameError;
use plimsoll_core::protocol::pod_resources::{
    ASKED_APART_MS, ASKED_EVERY_MS, FRAMING, FromKubelet, NodeResources, PROTOCOL, ToKubelet,
};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::connection::CallError;
use crate::frames::{cut, read};
use crate::pod_resources::Kubelet;

/// One question that has not been put yet stands for all that come before it is.
const QUESTIONS: usize = 1;

/// Sends until the agent closes the socket.
///
/// # Errors
/// The system's, and frames that are none.
pub async fn run(socket: &Path, agent: UnixStream) -> io::Result<()> {
    run_every(Duration::from_millis(ASKED_EVERY_MS), socket, agent).await
}

async fn run_every(every: Duration, socket: &Path, agent: UnixStream) -> io::Result<()> {
    let (mut reader, mut writer) = agent.into_split();
    let (asked, questions) = mpsc::channel(QUESTIONS);
    let hearing = async {
        while let Some(ToKubelet::Ask) = read(&mut reader).await? {
            asked.try_send(()).ok(); // full: that one is put after this was heard
        }
        Ok(())
    };
    tokio::select! {
        sent = send_all(every, socket, &mut writer, questions) => sent,
        heard = hearing => heard,
    }
}

async fn send_all(
    every: Duration,
    socket: &Path,
    writer: &mut (impl AsyncWrite + Unpin),
    mut questions: mpsc::Receiver<()>,
) -> io::Result<()> {
    send(writer, &FromKubelet::Hello { protocol: PROTOCOL }).await?;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut kubelet, mut sent) = (None, None);
    let mut not_before = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Some(()) = questions.recv() => sleep_until(not_before).await,
        };
        not_before = Instant::now() + Duration::from_millis(ASKED_APART_MS);
        let asked_at_ns = now_ns();
        match ask(socket, &mut kubelet).await {
            Ok(resources) if sent.as_ref() == Some(&resources) => {
                send(writer, &FromKubelet::Same { asked_at_ns }).await?;
            }
            Ok(resources) => {
                let message = FromKubelet::Resources {
                    asked_at_ns,
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

/// By the agent's clock: CLOCK_MONOTONIC, nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // It is never negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
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
