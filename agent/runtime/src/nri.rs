//! `plimsoll-runtime nri`: a plugin of the container runtime (Node Resource Interface), which answers when a container
//! is made.
//!
//! **Problem.** A runtime that asks waits for the answer, and after two seconds it goes on without the plugin, for
//! good. What the agent writes after a container's start comes after its first instructions. **Approach.** The agent
//! sends all answers ahead ([`ToNri`]); [`plugin`] answers from that table, without asking anybody, and the agent hears
//! what was answered. If the agent does not read that, it is dropped and counted. A runtime that is away, hangs or
//! sends what is no message is left and tried again later; containers that it makes meanwhile are as they would be
//! without NRI, and the agent repairs them as it does without it.
//!
//! Containers that start and end it tells of too, where the runtime says it by itself ([`crate::events`]): that also
//! comes unasked.
//!
//! It is a process of its own, beside the one that asks the runtime ([`crate::serve`]): that one is ended when an
//! answer is late, and then the runtime would go on without a plugin.

pub mod mux;
mod plugin;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use plimsoll_core::protocol::runtime_link::{
    ANSWERED_PODS_MAX, Answer, FromNri, PROTOCOL, PodAnswers, Shown, ToNri,
};
use tokio::io::AsyncWrite;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, watch};

use crate::events;
use crate::frames::{encode, read, write};
use crate::outbox::{FRAMES_MAX, Outbox};

/// What is answered.
#[derive(Debug, Default)]
struct Table {
    pods: RefCell<BTreeMap<String, PodAnswers>>,
    /// Where containers are made that have no CPUs of their own.
    pool: RefCell<Option<String>>,
}

impl Table {
    /// Takes the place of what was known of the pod. Whether there was room.
    fn set(&self, uid: String, answers: PodAnswers) -> bool {
        let mut pods = self.pods.borrow_mut();
        if answers.is_empty() {
            pods.remove(&uid);
            return true;
        }
        let has_room = pods.len() < ANSWERED_PODS_MAX || pods.contains_key(&uid);
        if has_room {
            pods.insert(uid, answers);
        }
        has_room
    }

    /// For a container that is being made.
    fn answer(&self, pod_uid: &str, container: &str, shown: Shown<'_>) -> Answer {
        let (pods, unknown) = (self.pods.borrow(), PodAnswers::default());
        let answers = pods.get(pod_uid).unwrap_or(&unknown);
        answers.for_container(container, shown, self.pool.borrow().as_deref())
    }

    /// For a container, by name and id, whose resources are about to be changed.
    fn update(&self, pod_uid: &str, container: (&str, &str), shown: Shown<'_>) -> Answer {
        let (pods, unknown) = (self.pods.borrow(), PodAnswers::default());
        let answers = pods.get(pod_uid).unwrap_or(&unknown);
        answers.for_update(container, shown, self.pool.borrow().as_deref())
    }
}

/// Answers the runtime until the agent closes its socket. `runtime`: where it is asked for its events.
///
/// # Errors
/// The system's, and frames of the agent that are none.
pub async fn run(socket: &Path, runtime: Option<&Path>, agent: UnixStream) -> io::Result<()> {
    let (mut reader, mut writer) = agent.into_split();
    let (state, mut states) = watch::channel(None);
    let (containers, mut made) = mpsc::channel(FRAMES_MAX);
    let outbox = Outbox {
        state,
        containers,
        dropped: Cell::new(0),
    };
    let (table, complete) = (Table::default(), Notify::new());
    let complete_for_events = Notify::new();
    let hearing = async {
        while let Some(frame) = read(&mut reader).await? {
            match frame {
                ToNri::Complete => {
                    complete.notify_one();
                    complete_for_events.notify_one();
                }
                ToNri::SharedPool { cpus } => drop(table.pool.replace(cpus)),
                ToNri::Pod { uid, answers } => {
                    if !table.set(uid, answers) {
                        let text = "plimsoll-runtime: the agent sent answers for too many pods, which are not used";
                        return Err(io::Error::other(text));
                    }
                }
            }
        }
        Ok(())
    };
    let telling = async {
        say(&mut writer, &FromNri::Hello { protocol: PROTOCOL }).await?;
        loop {
            let frame = tokio::select! {
                Ok(()) = states.changed() => states.borrow_and_update().clone(),
                frame = made.recv() => frame,
            };
            if let Some(frame) = frame {
                say(&mut writer, &frame).await?;
            }
            let frames = outbox.dropped.take();
            if frames > 0 {
                say(&mut writer, &FromNri::Dropped { frames }).await?;
            }
        }
    };
    let answering = async {
        // Not before all that is known is there: the first question may be about any pod.
        complete.notified().await;
        plugin::serve(socket, &table, &outbox).await
    };
    let following = async {
        complete_for_events.notified().await;
        match runtime {
            Some(runtime) => events::follow(runtime, &outbox).await,
            None => std::future::pending().await,
        }
    };
    // Each goes on while the others wait.
    tokio::select! {
        never = following => match never {},
        heard = hearing => heard,
        result = telling => result,
        never = answering => match never {},
    }
}

/// What is too long was made so by the runtime, and names no container of a pod.
async fn say(writer: &mut (impl AsyncWrite + Unpin), frame: &FromNri) -> io::Result<()> {
    match encode(frame) {
        Some(frame) => write(writer, &frame).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
