//! Metrics and probes over HTTP, on a Unix socket or loopback.

pub mod peer;
pub mod webhook;

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, Semaphore};

use self::peer::{Peer, Seats};
use crate::metrics::Metrics;

/// Connections to a Unix socket at once.
const SOCKET_CONNECTIONS_MAX: usize = 4;
/// The machine has no descriptor left: others may end meanwhile.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
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
        match self {
            Self::Unix(listener) => serve_socket(listener, metrics).await,
            Self::Tcp(listener) => serve_port(listener, metrics).await,
        }
    }
}

/// The connections, and what ends each.
#[derive(Clone)]
struct Connections {
    seats: Arc<Mutex<Seats<Arc<Notify>>>>,
    began: Instant,
}

impl Connections {
    fn new() -> Self {
        Self {
            seats: Arc::default(),
            began: Instant::now(),
        }
    }

    fn seats(&self) -> MutexGuard<'_, Seats<Arc<Notify>>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Who may open the socket is trusted: the next one waits for a place.
async fn serve_socket(listener: UnixListener, metrics: Arc<Metrics>) {
    let free = Arc::new(Semaphore::new(SOCKET_CONNECTIONS_MAX));
    loop {
        let Ok(permit) = free.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(AFTER_REFUSAL).await;
            continue;
        };
        let metrics = metrics.clone();
        tokio::spawn(async move {
            connection(stream, metrics).await;
            drop(permit);
        });
    }
}

/// Any pod may reach the port, and the kubelet asks there whether this program lives: nobody waits for a place, and
/// whoever has the most makes room.
async fn serve_port(listener: TcpListener, metrics: Arc<Metrics>) {
    let connections = Connections::new();
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(AFTER_REFUSAL).await;
            continue;
        };
        let (peer, ms, end) = (
            Peer::of(from.ip()),
            connections.ms(),
            Arc::new(Notify::new()),
        );
        let taken = connections.seats().take(peer, end.clone(), ms);
        let Some((number, ended)) = taken else {
            continue;
        };
        if let Some(ended) = ended {
            ended.notify_one();
        }
        let (metrics, connections) = (metrics.clone(), connections.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = connection(stream, metrics) => {}
                () = end.notified() => {}
            }
            connections.seats().free(number);
        });
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;

    /// More than there is room for, by one peer who says nothing: another one is answered.
    #[tokio::test]
    async fn who_has_all_places_makes_room_for_the_probe() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(Listener::Tcp(listener).serve(Arc::default()));
        let mut silent = Vec::new();
        for _ in 0..2 * peer::CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut probe = socket.connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n";
        probe.write_all(request).await.unwrap();
        let mut said = String::new();
        let read = tokio::time::timeout(HEAD_TIMEOUT / 2, probe.read_to_string(&mut said));
        read.await
            .expect("an answer before the others' time is over")
            .unwrap();
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    }

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
