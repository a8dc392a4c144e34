//! The client's end: one question, one answer.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Refusal, RefusalKind, Reply, Request};

use crate::host::shown::Show as _;
use crate::serve::overview::Overview;

/// How long the agent may take: longer than its own patience, so that its reason is seen.
const PATIENCE: Duration = Duration::from_secs(15);
/// The largest answer: a thousand pods take less than a tenth of it.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No socket, or no agent behind it.
    #[error("no plimsoll agent answers at {path}: {why}. Start one (plimsoll run), or set --control-socket or --state-dir", path = path.shown())]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// What was found.
        why: &'static str,
    },
    /// The socket is not for this user.
    #[error("{path}: permission denied: run as root, or start the agent with --control-group and join that group", path = path.shown())]
    NotAllowed {
        /// The socket.
        path: PathBuf,
    },
    /// The connection broke, or nothing came.
    #[error("{path}: the agent does not answer: {source}; it may be stopping or overloaded, try again", path = path.shown())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What happened.
        #[source]
        source: io::Error,
    },
    /// Not this protocol.
    #[error("{path}: the answer cannot be read: {source}; agent and command may be of different releases: restart the agent", path = path.shown())]
    Malformed {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The agent says why not.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Asks the agent behind `path`.
///
/// # Errors
/// [`AskError`], with what to do next.
pub fn ask(path: &Path, request: &Request) -> Result<Answer, AskError> {
    let path_of = || path.to_owned();
    let no_agent = |why| AskError::NoAgent {
        path: path_of(),
        why,
    };
    let failed = |source| AskError::Io {
        path: path_of(),
        source,
    };
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => no_agent("no such socket"),
        ErrorKind::ConnectionRefused => no_agent("its agent has ended"),
        ErrorKind::PermissionDenied => AskError::NotAllowed { path: path_of() },
        _ => failed(error),
    })?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    // An agent that has no place for us answers without reading: what it says counts, not that our line found no
    // reader.
    let sent = stream.write_all(request.to_line().as_bytes());
    let mut line = Vec::new();
    let read = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut line);
    if line.is_empty() {
        sent.map_err(failed)?;
        read.map_err(failed)?;
        return Err(failed(ErrorKind::UnexpectedEof.into()));
    }
    match Reply::of_line(&line) {
        Ok(Reply::Answer(answer)) => Ok(answer),
        Ok(Reply::Error(refusal)) => Err(refusal.into()),
        Err(source) => {
            // Cut off, rather than wrong.
            read.map_err(failed)?;
            Err(AskError::Malformed {
                path: path_of(),
                source,
            })
        }
    }
}
/// Asks the agent behind `path` for the node at a glance.
///
/// # Errors
/// [`AskError`]; a refusal as a bad request comes from an agent that is too old for the question.
pub fn ask_overview(path: &Path) -> Result<Arc<Overview>, AskError> {
    match ask(path, &Request::Overview)? {
        Answer::Overview(answer) => Ok(answer),
        // Another question's answer.
        _ => Err(AskError::Refused(Refusal {
            kind: RefusalKind::BadRequest,
            message: "the agent is of another version than this plimsoll; restart the agent"
                .to_owned(),
        })),
    }
}
