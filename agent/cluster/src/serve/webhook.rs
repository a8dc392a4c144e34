//! The listener of the webhook: HTTPS, one path, bodies that are bounded before they are read. Whoever reaches the port
//! may ask, so everything has a bound and a time, and no peer can have all of it ([`peer`]).

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::peer::{FairPace, Peer};
use super::{AFTER_REFUSAL, Connections};
use crate::certificate::Served;

/// The path of reviews of Consumers.
pub const PATH: &str = "/consumers";
/// New connections in any second. Each costs a handshake.
const CONNECTIONS_PER_SECOND: usize = 100;
/// Bytes of a review: a Consumer as it is and as it was. One object has at most 1.5 MiB in the API server's store, and
/// a Consumer some kilobytes.
pub const BODY_BYTES_MAX: usize = 2 << 20;
/// A client that does not end its handshake, its head or its body in this time is left. The API server has three
/// seconds for all.
const PART_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection is ended after this: then a new certificate is seen, and others have their turn.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// So long an answer that is on its way then may take.
const ENDING_TIMEOUT: Duration = Duration::from_secs(10);

/// What is served now, if there is a certificate.
#[derive(Clone, Default)]
pub struct Slot {
    served: Arc<Mutex<Option<Served>>>,
}

impl Slot {
    /// From now on, new connections have this.
    pub fn set(&self, served: Served) {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner) = Some(served);
    }

    fn get(&self) -> Option<Served> {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.clone()
    }
}

/// Answers reviews until the program ends. `review` takes a body that is whole and who sent it, and gives the body of
/// the answer, or a code. `left_out` hears of each connection that is not taken, or is ended, because there are too
/// many.
pub async fn serve<F, A>(
    listener: TcpListener,
    slot: Slot,
    review: F,
    left_out: impl Fn() + Send + 'static,
) where
    F: Fn(Peer, Bytes) -> A + Clone + Send + 'static,
    A: Future<Output = Result<Vec<u8>, StatusCode>> + Send + 'static,
{
    let connections = Connections::new();
    let mut pace = FairPace::new(CONNECTIONS_PER_SECOND);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(AFTER_REFUSAL).await;
            continue;
        };
        let Some(served) = slot.get() else {
            continue;
        };
        let (peer, ms, end) = (
            Peer::of(from.ip()),
            connections.ms(),
            Arc::new(Notify::new()),
        );
        let taken = pace
            .takes(peer, ms)
            .then(|| connections.seats().take(peer, end.clone(), ms));
        let Some((number, ended)) = taken.flatten() else {
            left_out();
            continue;
        };
        if let Some(ended) = ended {
            ended.notify_one();
            left_out();
        }
        let connections = connections.clone();
        let review = review.clone();
        tokio::spawn(async move {
            let asked = {
                let connections = connections.clone();
                move |body: Bytes| {
                    let (connections, answer) = (connections.clone(), review(peer, body));
                    async move {
                        connections.seats().answers(number, false, connections.ms());
                        let answer = answer.await;
                        connections.seats().answers(number, true, connections.ms());
                        answer
                    }
                }
            };
            tokio::select! {
                () = connection(stream, served, asked) => {}
                () = end.notified() => {}
            }
            connections.seats().free(number);
        });
    }
}

async fn connection<F, A>(stream: TcpStream, served: Served, review: F)
where
    F: Fn(Bytes) -> A + Clone + Send + 'static,
    A: Future<Output = Result<Vec<u8>, StatusCode>> + Send + 'static,
{
    let accepted = timeout(PART_TIMEOUT, TlsAcceptor::from(served).accept(stream)).await;
    let Ok(Ok(stream)) = accepted else {
        return;
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let review = review.clone();
        async move { Ok::<_, Infallible>(answer(request, review).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PART_TIMEOUT)
        .max_buf_size(64 << 10)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A client that breaks off is answered by nothing.
    if timeout(CONNECTION_TIMEOUT, connection.as_mut())
        .await
        .is_err()
    {
        connection.as_mut().graceful_shutdown();
        let _ended = timeout(ENDING_TIMEOUT, connection).await;
    }
}

async fn answer<F, A>(request: Request<Incoming>, review: F) -> Response<Full<Bytes>>
where
    F: Fn(Bytes) -> A,
    A: Future<Output = Result<Vec<u8>, StatusCode>>,
{
    let answered = match body(request).await {
        Ok(body) => review(body).await,
        Err(code) => Err(code),
    };
    let (code, body) = match answered {
        Ok(body) => (StatusCode::OK, body),
        Err(code) => (code, Vec::new()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

async fn body(request: Request<Incoming>) -> Result<Bytes, StatusCode> {
    if request.uri().path() != PATH {
        return Err(StatusCode::NOT_FOUND);
    }
    if request.method() != Method::POST {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    let body = request.into_body();
    let most = u64::try_from(BODY_BYTES_MAX).unwrap_or(u64::MAX);
    // What the head announces; a body in chunks is cut off.
    if body.size_hint().lower() > most {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let body = Limited::new(body, BODY_BYTES_MAX).collect();
    match timeout(PART_TIMEOUT, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(StatusCode::PAYLOAD_TOO_LARGE),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}
