//! Metrics and probes over HTTP, on a Unix socket or loopback.

pub mod webhook;

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use crate::metrics::Metrics;

/// Connections at once.
const CONNECTIONS_MAX: usize = 4;
/// A client that does not send its request in this time is left; so is one that keeps a connection this long.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// EAFNOSUPPORT: the kernel runs without IPv6 (`ipv6.disable=1`).
const NO_ADDRESS_FAMILY: i32 = 97;

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A port.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let wrong = || {
            format!(
                "{text:?} is neither such as `unix:/run/plimsoll/cluster-metrics.sock` nor such as `127.0.0.1:9100`"
            )
        };
        let address: SocketAddr = text.parse().map_err(|_| wrong())?;
        if address.ip().is_loopback() {
            Ok(Self::Tcp(address))
        } else {
            Err(format!(
                "{address} is no address of loopback: metrics are served without authentication, so use 127.0.0.1 or unix:PATH and let a proxy with TLS ask"
            ))
        }
    }
}

/// Binds the address. That of all addresses, `[::]`, is that of IPv4 where the machine has no IPv6.
///
/// # Errors
/// Those of `bind`.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && error.raw_os_error() == Some(NO_ADDRESS_FAMILY) =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
}

/// A listener that is open.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// A port of loopback.
    Tcp(TcpListener),
}

impl Listener {
    /// Opens it; a socket that an earlier process left is replaced.
    ///
    /// # Errors
    /// Those of `bind`.
    pub async fn open(address: &Address) -> std::io::Result<Self> {
        match address {
            Address::Tcp(address) => bind(*address).await.map(Self::Tcp),
            Address::Unix(path) => {
                let is_left = std::os::unix::net::UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
                if is_left {
                    std::fs::remove_file(path)?;
                }
                UnixListener::bind(path).map(Self::Unix)
            }
        }
    }

    /// Serves until the program ends.
    pub async fn serve(self, metrics: Arc<Metrics>) {
        let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(permit) = free.clone().acquire_owned().await else {
                return;
            };
            let metrics = metrics.clone();
            let accepted = match &self {
                Self::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move {
                        connection(stream, metrics).await;
                        drop(permit);
                    })
                }),
                Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(async move {
                        connection(stream, metrics).await;
                        drop(permit);
                    })
                }),
            };
            if accepted.is_err() {
                // Out of descriptors: others may end meanwhile.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    metrics: Arc<Metrics>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request.uri().path(), &metrics);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off has had what it wanted.
    let _ended = tokio::time::timeout(CONNECTION_TIMEOUT, served).await;
}

fn answer(path: &str, metrics: &Metrics) -> Response<Full<Bytes>> {
    let (code, text) = match path {
        "/metrics" => (StatusCode::OK, metrics.text()),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if metrics.is_ready() => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: plimsoll-agent is not connected, or not all objects are listed\n"
                .to_owned(),
        ),
        _ => (
            StatusCode::NOT_FOUND,
            "try /metrics, /healthz or /readyz\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!("unix:/a/b".parse(), Ok(Address::Unix("/a/b".into())));
        assert!(matches!("127.0.0.1:9100".parse(), Ok(Address::Tcp(_))));
        assert!(matches!("[::1]:9100".parse(), Ok(Address::Tcp(_))));
        for wrong in ["0.0.0.0:9100", "192.0.2.1:80", "unix:", "9100", ""] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
