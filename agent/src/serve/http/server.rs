//! The server: one thread of ordinary priority, which owns the listener and every client.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue,
    RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{ListenError, Reply};
use crate::serve::listener::{
    ClientFigures, ClientLimits, ClientSlot, Clients, ListenerThread, accept_for_ever,
};

pub(super) const PLAIN: &str = "text/plain; charset=utf-8";
/// More than any scraper sends.
const HEADERS_MAX: usize = 64;
/// To one client too many.
const SENT_AWAY: &str = "too many clients at once; ask again shortly\n";

/// A page of ours loads nothing from elsewhere, runs no script but its own, and is in no other page's frame.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A request, as far as anything here looks at it.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// GET, or what else it says.
    pub method: &'a Method,
    /// Without the query.
    pub path: &'a str,
    /// After the question mark.
    pub query: &'a str,
    /// Its header `Accept`; empty without.
    pub accept: &'a str,
    /// Its header `Host`; empty without.
    pub host: &'a str,
    /// What has become of all clients so far.
    pub clients: ClientFigures,
}

/// What is served.
pub trait Pages: Send + Sync + 'static {
    /// Paths of a few bytes that probes ask for: these have places for themselves.
    const PROBES: &'static [&'static str];

    /// Answers a request.
    fn answer(&self, asked: Asked<'_>) -> impl Future<Output = Reply> + Send;
}

/// What clients may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Clients that are answered at one time, probes apart.
    pub clients: usize,
    /// As many of these as one address may have.
    pub clients_of_one_address: usize,
    /// Clients whose request has not arrived; one more takes the place of the oldest.
    pub waiting: usize,
    /// Clients that are answered at [`Pages::PROBES`], which have these places for themselves.
    pub probes: usize,
    /// Bytes of a request's head. Not below 8 KiB, which is `hyper`'s own least.
    pub head_bytes: usize,
    /// Time for the first byte of a request to arrive.
    pub first_byte: Duration,
    /// Time for a request to arrive.
    pub patience: Duration,
    /// Time for a client from its first byte to its last.
    pub connection: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            clients: 16,
            clients_of_one_address: 8,
            waiting: 32,
            probes: 4,
            head_bytes: 16 << 10,
            first_byte: Duration::from_secs(1),
            patience: Duration::from_secs(5),
            connection: Duration::from_secs(15),
        }
    }
}

/// A running server. Dropping it ends its thread.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    clients: Arc<Clients<IpAddr>>,
    _thread: ListenerThread,
}

impl Server {
    /// Serves `pages` at `listener`.
    ///
    /// # Errors
    /// [`ListenError::Io`].
    pub fn start(
        listener: StdListener,
        pages: impl Pages,
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
        let clients = Clients::new(ClientLimits {
            waiting: bounds.waiting,
            served: bounds.clients,
            of_one_peer: bounds.clients_of_one_address,
            probes: bounds.probes,
        });
        let shared = Arc::new(Shared {
            pages,
            bounds,
            clients: Arc::clone(&clients),
        });
        let thread = ListenerThread::start("http", || serve(listener, shared)).map_err(failed)?;
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
struct Shared<P> {
    pages: P,
    bounds: Bounds,
    clients: Arc<Clients<IpAddr>>,
}

/// Accepts for ever.
async fn serve<P: Pages>(listener: StdListener, shared: Arc<Shared<P>>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let accept = async || listener.accept().await;
    accept_for_ever(accept, |(stream, peer)| {
        tracing::debug!(%peer, "http client");
        let shared = Arc::clone(&shared);
        let mut slot = shared.clients.enter(peer.ip());
        let gives_way = slot.gives_way();
        tokio::spawn(async move {
            let served = tokio::select! {
                () = gives_way => Err("another has taken its place".to_owned()),
                served = timeout(shared.bounds.connection, serve_client(stream, &slot, &shared)) => match served {
                    Ok(served) => served,
                    Err(elapsed) => Err(elapsed.to_string()),
                },
            };
            slot.leave(served);
        });
    })
    .await
}

/// Serves one client its one request.
async fn serve_client<P: Pages>(
    stream: TcpStream,
    slot: &ClientSlot<IpAddr>,
    shared: &Shared<P>,
) -> Result<(), String> {
    match timeout(shared.bounds.first_byte, stream.peek(&mut [0])).await {
        Ok(Ok(0)) => return Err("closed before a request".to_owned()),
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(error.to_string()),
        Err(elapsed) => return Err(elapsed.to_string()),
    }
    let service =
        service_fn(
            |request| async move { Ok::<_, Infallible>(respond(&request, slot, shared).await) },
        );
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.bounds.patience)
        .max_buf_size(shared.bounds.head_bytes)
        .max_headers(HEADERS_MAX)
        // A client that keeps its connection would keep its place.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    served.map_err(|error| error.to_string())
}

async fn respond<P: Pages>(
    request: &Request<Incoming>,
    slot: &ClientSlot<IpAddr>,
    shared: &Shared<P>,
) -> Response<Full<Bytes>> {
    let uri = request.uri();
    if !slot.is_served(P::PROBES.contains(&uri.path())) {
        let mut response = Response::new(Full::new(Bytes::from_static(SENT_AWAY.as_bytes())));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PLAIN));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        return response;
    }
    let header = |name| {
        let value = request.headers().get(name);
        value.and_then(|it| it.to_str().ok()).unwrap_or_default()
    };
    let Reply {
        status,
        content_type,
        body,
    } = shared
        .pages
        .answer(Asked {
            method: request.method(),
            path: uri.path(),
            query: uri.query().unwrap_or_default(),
            accept: header(ACCEPT),
            host: header(HOST),
            clients: shared.clients.figures(),
        })
        .await;
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
