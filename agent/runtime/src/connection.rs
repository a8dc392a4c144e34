//! gRPC over a socket of this node, with a bound on every wait.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use plimsoll_core::shown::Show as _;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// To connect: the other end is on this node.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Of one answer, bytes: what the kubelet takes (`maxMsgSize` in pkg/kubelet/cri).
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// What went wrong with the other end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing answers there.
    #[error("{socket}: {why}; is it running, and is this the right socket?", socket = .socket.shown())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The system's answer.
        why: String,
    },
    /// It has answered with an error.
    #[error("{call}: {code:?}: {message}", message = .message.shown())]
    Refused {
        /// Which call.
        call: &'static str,
        /// Of which kind.
        code: Code,
        /// Its words.
        message: String,
    },
    /// It has not answered.
    #[error("{call}: no answer within {seconds} s; it is overloaded or hangs")]
    Late {
        /// Which call.
        call: &'static str,
        /// The bound.
        seconds: u64,
    },
    /// It says what cannot be.
    #[error("{call}: {why}")]
    Nonsense {
        /// Which call.
        call: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl CallError {
    /// Whether it answered with this kind of error.
    pub fn is(&self, kind: Code) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == kind)
    }

    /// Whether the other end may have been started anew, perhaps as another version. One that refuses a removal is the
    /// same, and what is known of it is dear to ask again.
    pub fn may_have_restarted(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Late { .. } => true,
            Self::Refused { code, .. } => matches!(
                code,
                Code::Unavailable | Code::Unknown | Code::Unimplemented | Code::Cancelled
            ),
            Self::Nonsense { .. } => false,
        }
    }
}

/// Connects to a socket.
///
/// # Errors
/// [`CallError::Connect`].
pub async fn connect(socket: &Path) -> Result<Channel, CallError> {
    let failed = |why: String| CallError::Connect {
        socket: socket.to_owned(),
        why,
    };
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is not used.
    let endpoint = Endpoint::from_static("http://localhost");
    let channel = endpoint.connect_with_connector(connector);
    match tokio::time::timeout(CONNECT_WITHIN, channel).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(failed(root_cause(&error))),
        Err(_) => Err(failed("no connection within 5 s".to_owned())),
    }
}

/// What a library's error hides: the system's answer.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Waits for an answer, so long.
///
/// # Errors
/// [`CallError::Refused`], [`CallError::Late`].
pub async fn call<T>(
    call: &'static str,
    within: Duration,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(within, answer).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(CallError::Refused {
            call,
            code: status.code(),
            message: status.message().to_owned(),
        }),
        Err(_) => Err(CallError::Late {
            call,
            seconds: within.as_secs(),
        }),
    }
}
