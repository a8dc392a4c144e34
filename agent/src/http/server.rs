//! The server: one thread of ordinary priority, which owns the listener and every client.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
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
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::{Answers, ListenError, Reply};
use crate::metrics::ClientFigures;

/// All of it is locked in memory with the agent. Nothing on it recurses.
const STACK_BYTES: usize = 512 << 10;
/// After an `accept` that failed, for instance because all descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
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

/// What has become of clients.
#[derive(Debug, Default)]
pub(super) struct Counts {
    answered: AtomicU64,
    sent_away: AtomicU64,
    lost: AtomicU64,
}

impl Counts {
    fn figures(&self) -> ClientFigures {
        ClientFigures {
            answered: self.answered.load(Ordering::Relaxed),
            sent_away: self.sent_away.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

/// A running server. Dropping it ends its thread.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<Counts>,
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let counts = Arc::new(Counts::default());
        let shared = Arc::new(Shared {
            answers,
            places: Arc::new(Semaphore::new(bounds.clients)),
            bounds,
            counts: Arc::clone(&counts),
        });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        biased;
                        _ = stopped => {}
                        error = serve(listener, shared) => {
                            tracing::error!(%error, "--listen is not served any more");
                        }
                    }
                });
                // Clients that are being served are cut off.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
            counts,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has become of clients so far.
    pub fn clients(&self) -> ClientFigures {
        self.counts.figures()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It waits for nothing that is not bounded; a panic in it has been printed.
            thread.join().ok();
        }
    }
}

/// What the tasks of all clients share.
struct Shared {
    answers: Answers,
    places: Arc<Semaphore>,
    bounds: Bounds,
    counts: Arc<Counts>,
}

/// Accepts for ever.
async fn serve(listener: StdListener, shared: Arc<Shared>) -> io::Error {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return error,
    };
    loop {
        let stream = match listener.accept().await {
            Ok((stream, peer)) => {
                tracing::debug!(%peer, "http client");
                stream
            }
            Err(error) => {
                tracing::debug!(%error, "accept on --listen");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let shared = Arc::clone(&shared);
        let Ok(place) = Arc::clone(&shared.places).try_acquire_owned() else {
            stream.try_write(SENT_AWAY).ok();
            shared.counts.sent_away.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        tokio::spawn(async move {
            let _place = place;
            let attended = timeout(shared.bounds.connection, attend(stream, &shared)).await;
            let counted = match attended {
                Ok(Ok(())) => &shared.counts.answered,
                failed => {
                    tracing::debug!(?failed, "http client");
                    &shared.counts.lost
                }
            };
            counted.fetch_add(1, Ordering::Relaxed);
        });
    }
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
            shared.counts.figures(),
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
