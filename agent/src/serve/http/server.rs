//! The server: one thread of ordinary priority, which owns the listener and every client.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{Answers, ListenError, Reply};
use crate::serve::serving::{ClientFigures, Clients, ServingThread, accept_for_ever};

/// More than any scraper sends.
const HEADERS_MAX: usize = 64;
/// To one client too many, without waiting and without reading what it asks.
const SENT_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 1\r\n\
      content-length: 44\r\nconnection: close\r\n\r\ntoo many clients at once; ask again shortly\n";

/// What clients may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Clients at one time.
    pub clients: usize,
    /// Bytes of a request's head. Not below 8 KiB, which is `hyper`'s own least.
    pub head_bytes: usize,
    /// Time for a request to arrive.
    pub patience: Duration,
    /// Time for a client from its first byte to its last.
    pub connection: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            clients: 16,
            head_bytes: 16 << 10,
            patience: Duration::from_secs(5),
            connection: Duration::from_secs(15),
        }
    }
}

/// A running server. Dropping it ends its thread.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    clients: Arc<Clients>,
    _thread: ServingThread,
}

impl Server {
    /// Serves `answers` at `listener`.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    pub fn start(
        listener: StdListener,
        answers: Answers,
        bounds: Bounds,
    ) -> Result<Self, ListenError> {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = listener.local_addr().unwrap_or(unknown);
        let failed = |source| ListenError::Io {
            address,
            what: "its thread",
            source,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        let clients = Clients::new(bounds.clients);
        let shared = Arc::new(Shared {
            answers,
            bounds,
            clients: Arc::clone(&clients),
        });
        let thread = ServingThread::start("http", || serve(listener, shared)).map_err(failed)?;
        Ok(Self {
            address,
            clients,
            _thread: thread,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has become of clients so far.
    pub fn clients(&self) -> ClientFigures {
        self.clients.figures()
    }
}

/// What the tasks of all clients share.
struct Shared {
    answers: Answers,
    bounds: Bounds,
    clients: Arc<Clients>,
}

/// Accepts for ever.
async fn serve(listener: StdListener, shared: Arc<Shared>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let accept = async || listener.accept().await;
    accept_for_ever(accept, |(stream, peer)| {
        tracing::debug!(%peer, "http client");
        let shared = Arc::clone(&shared);
        let Some(place) = shared.clients.place() else {
            stream.try_write(SENT_AWAY).ok();
            return;
        };
        tokio::spawn(async move {
            let attended = timeout(shared.bounds.connection, attend(stream, &shared)).await;
            place.leave(match attended {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(elapsed) => Err(elapsed.to_string()),
            });
        });
    })
    .await
}

/// Serves one client its one request.
async fn attend(stream: TcpStream, shared: &Shared) -> hyper::Result<()> {
    let service =
        service_fn(|request| async move { Ok::<_, Infallible>(respond(&request, shared).await) });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.bounds.patience)
        .max_buf_size(shared.bounds.head_bytes)
        .max_headers(HEADERS_MAX)
        // A client that keeps its connection would keep its place.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn respond(request: &Request<Incoming>, shared: &Shared) -> Response<Full<Bytes>> {
    let uri = request.uri();
    let accept = request.headers().get(ACCEPT);
    let accept = accept.and_then(|own| own.to_str().ok()).unwrap_or_default();
    let Reply {
        status,
        content_type,
        body,
    } = shared
        .answers
        .answer(
            request.method(),
            uri.path(),
            uri.query().unwrap_or_default(),
            accept,
            shared.clients.figures(),
        )
        .await;
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_sent_away_gets_a_whole_answer() {
        let text = std::str::from_utf8(SENT_AWAY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("content-length: {}\r\n", body.len())),
            "{head}"
        );
    }
}
