//! The agent's questions, one after the other, over the socket that is standard input.

pub mod resources;

use std::io;
use std::path::Path;
use std::time::Duration;

use plimsoll_core::protocol::runtime_link::{FromRuntime, Inventory, PROTOCOL, Removal, ToRuntime};
use tokio::io::AsyncWrite;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::connection::CallError;
use crate::cri::Runtime;
use crate::frames::{cut, encode, read, write};

/// Questions that wait: the agent asks one at a time.
const QUESTIONS: usize = 16;
/// For the answer to one question, as a whole.
const ANSWER_WITHIN: Duration = Duration::from_secs(25);

/// Answers until the agent closes the socket.
///
/// # Errors
/// The system's, and frames that are none.
pub async fn run(socket: &Path, agent: UnixStream) -> io::Result<()> {
    let (mut reader, mut writer) = agent.into_split();
    let (questions, mut asked) = mpsc::channel(QUESTIONS);
    let mut reading = tokio::spawn(async move {
        while let Some(question) = read(&mut reader).await? {
            if questions.send(question).await.is_err() {
                break;
            }
        }
        Ok(())
    });
    let answering = async {
        send(&mut writer, &FromRuntime::Hello { protocol: PROTOCOL }).await?;
        let mut runtime = None;
        while let Some(question) = asked.recv().await {
            answer(socket, &mut runtime, question, &mut writer).await?;
        }
        // The reading ends the process, and says why.
        std::future::pending().await
    };
    // The end of the agent ends an answer that is under way.
    tokio::select! {
        read = &mut reading => read.unwrap_or_else(|panicked| Err(io::Error::other(panicked))),
        answered = answering => answered,
    }
}

async fn answer(
    socket: &Path,
    runtime: &mut Option<Runtime>,
    question: ToRuntime,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (ToRuntime::List { number }
    | ToRuntime::Directories { number }
    | ToRuntime::Remove { number, .. }) = question;
    let answered = tokio::time::timeout(ANSWER_WITHIN, ask(socket, runtime, question)).await;
    match answered {
        Ok(Ok(Some(inventory))) => send_inventory(inventory, number, writer).await,
        Ok(Ok(None)) => send(writer, &FromRuntime::Removed { number }).await,
        Ok(Err(error)) => {
            if error.may_have_restarted() {
                *runtime = None;
            }
            let why = cut(&error.to_string());
            let is_late = matches!(error, CallError::Late { .. });
            let failed = FromRuntime::Failed {
                number,
                why,
                is_late,
            };
            send(writer, &failed).await
        }
        Err(_) => {
            *runtime = None;
            let why = format!("no answer within {} s", ANSWER_WITHIN.as_secs());
            let failed = FromRuntime::Failed {
                number,
                why,
                is_late: true,
            };
            send(writer, &failed).await
        }
    }
}

async fn ask(
    socket: &Path,
    runtime: &mut Option<Runtime>,
    question: ToRuntime,
) -> Result<Option<Inventory>, CallError> {
    let runtime = match runtime {
        Some(runtime) => runtime,
        None => runtime.insert(Runtime::open(socket).await?),
    };
    match question {
        ToRuntime::List { .. } => runtime.inventory().await.map(Some),
        ToRuntime::Directories { .. } => Ok(Some(Inventory {
            directories: runtime.directories().await,
            ..Inventory::default()
        })),
        ToRuntime::Remove { removal, .. } => {
            let removal: Removal = removal;
            runtime.remove(&removal).await.map(|()| None)
        }
    }
}

async fn send_inventory(
    inventory: Inventory,
    number: u64,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let Inventory {
        containers,
        images,
        unix_ns,
        mut left_out,
        mut images_left_out,
        mounts_unread,
        directories,
    } = inventory;
    let containers = containers
        .into_iter()
        .map(|container| FromRuntime::Container {
            container: Box::new(container),
        });
    let images = images.into_iter().map(|image| FromRuntime::Image {
        image: Box::new(image),
    });
    for message in containers.chain(images) {
        match encode(&message) {
            Some(frame) => write(writer, &frame).await?,
            None if matches!(message, FromRuntime::Image { .. }) => images_left_out += 1,
            None => left_out += 1,
        }
    }
    let listed = FromRuntime::Listed {
        number,
        unix_ns,
        left_out,
        images_left_out,
        mounts_unread,
        directories,
    };
    send(writer, &listed).await
}

async fn send(writer: &mut (impl AsyncWrite + Unpin), message: &FromRuntime) -> io::Result<()> {
    match encode(message) {
        Some(frame) => write(writer, &frame).await,
        None => Ok(()), // only what is bounded comes here
    }
}

#[cfg(test)]
mod tests;
