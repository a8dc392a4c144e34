//! The listener of the arbitrator's webhook, asked by a client over TLS.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::StatusCode;
use plimsoll_cluster::arbitrate::webhook::Pair;
use plimsoll_cluster::certificate::{make, served};
use plimsoll_cluster::serve::peer::{CONNECTIONS_MAX, Peer};
use plimsoll_cluster::serve::webhook::{BODY_BYTES_MAX, Slot, serve};
use support::tls::{Client, connect, connect_as, exchange, post};
use support::{run, until};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

const ANSWER_BYTES_MAX: usize = 4096;

fn pair() -> Pair {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    make("127.0.0.1", unix.as_millis().try_into().unwrap()).unwrap()
}

/// Sends back what it is sent, and refuses `no`.
async fn review(_: Peer, body: Bytes) -> Result<Vec<u8>, StatusCode> {
    match &body[..] {
        b"no" => Err(StatusCode::SERVICE_UNAVAILABLE),
        _ => Ok(body.to_vec()),
    }
}

async fn listener(slot: &Slot) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(serve(listener, slot.clone(), review, || ()));
    port
}

async fn asked(port: u16, authorities: &str, request: &[u8]) -> String {
    let mut stream = connect(port, authorities).await.unwrap();
    exchange(&mut stream, request, ANSWER_BYTES_MAX).await
}

/// The same for what is large: a machine that is busy may take longer for it than the webhook waits, and then once
/// more.
async fn asked_again(port: u16, authorities: &str, request: &[u8]) -> String {
    until("an answer in time", async || {
        let mut stream = connect(port, authorities).await.ok()?;
        let answer = exchange(&mut stream, request, ANSWER_BYTES_MAX).await;
        let is_late = answer.is_empty() || answer.starts_with("HTTP/1.1 408");
        (!is_late).then_some(answer)
    })
    .await
}

#[test]
fn reviews_are_answered_over_tls_and_nothing_else_is() {
    run(async {
        let (slot, pair) = (Slot::default(), pair());
        let port = listener(&slot).await;
        assert!(
            connect(port, &pair.authorities).await.is_err(),
            "no certificate yet"
        );
        slot.set(served(&pair, None).unwrap());
        let trusted = &pair.authorities;
        let ask = async |request: &[u8]| asked(port, trusted, request).await;
        let answer = ask(&post("/consumers?timeout=3s", "{}")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("application/json") && answer.ends_with("{}"));
        for (request, code) in [
            (post("/consumers", "no"), "503"),
            (post("/metrics", "{}"), "404"),
            (
                b"GET /consumers HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
                "405",
            ),
            (b"garbage\r\n\r\n".to_vec(), "400"),
        ] {
            let answer = ask(&request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{answer}");
        }
        // Who trusts another authority goes.
        assert!(connect(port, &self::pair().authorities).await.is_err());
    });
}

#[test]
fn a_body_is_refused_before_it_is_read() {
    run(async {
        let (slot, pair) = (Slot::default(), pair());
        slot.set(served(&pair, None).unwrap());
        let port = listener(&slot).await;
        let head = |rest: &str| format!("POST /consumers HTTP/1.1\r\nHost: x\r\n{rest}\r\n\r\n");
        // None of the body is ever sent.
        let announced = head(&format!("Content-Length: {}", BODY_BYTES_MAX + 1));
        let answer = asked(port, &pair.authorities, announced.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        let mut chunks = head("Transfer-Encoding: chunked").into_bytes();
        chunks.extend_from_slice(format!("{:x}\r\n", BODY_BYTES_MAX + 1).as_bytes());
        chunks.resize(chunks.len() + BODY_BYTES_MAX + 1, b'x');
        let answer = asked_again(port, &pair.authorities, &chunks).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        let whole = "x".repeat(BODY_BYTES_MAX);
        let answer = asked_again(port, &pair.authorities, &post("/consumers", &whole)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    });
}

#[test]
fn who_says_nothing_is_let_go() {
    run(async {
        let (slot, pair) = (Slot::default(), pair());
        slot.set(served(&pair, None).unwrap());
        let port = listener(&slot).await;
        let mut silent = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(silent.read(&mut [0; 16]).await.unwrap_or(0), 0);
    });
}

/// A connection from an address of loopback.
async fn from(address: [u8; 4], port: u16) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((address, 0).into())?;
    socket.connect(([127, 0, 0, 1], port).into()).await
}

#[test]
fn who_takes_all_places_keeps_nobody_else_away() {
    run(async {
        let (slot, pair) = (Slot::default(), pair());
        slot.set(served(&pair, None).unwrap());
        let port = listener(&slot).await;
        // Another host that fills all places, and again and again.
        let greedy = tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                held.push(from([127, 0, 0, 2], port).await.unwrap());
                if held.len() > 2 * CONNECTIONS_MAX {
                    held.remove(0);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        for _ in 0..20 {
            let answer = asked(port, &pair.authorities, &post("/consumers", "{}")).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        greedy.abort();
    });
}

#[test]
fn with_authorities_of_clients_nobody_else_is_heard() {
    run(async {
        let (slot, pair, ours) = (Slot::default(), pair(), Client::new());
        slot.set(served(&pair, Some(&ours.authority)).unwrap());
        let port = listener(&slot).await;
        let ask = async |client: Option<&Client>| {
            let connected = connect_as(port, &pair.authorities, client).await;
            // A client of TLS 1.3 hears that it is refused when it reads.
            let mut stream = connected.ok()?;
            let answer = exchange(&mut stream, &post("/consumers", "{}"), ANSWER_BYTES_MAX).await;
            answer.starts_with("HTTP/1.1 200").then_some(())
        };
        assert_eq!(ask(Some(&ours)).await, Some(()));
        assert_eq!(ask(None).await, None);
        assert_eq!(ask(Some(&Client::new())).await, None);
    });
}

#[test]
fn a_certificate_is_renewed_while_connections_go_on() {
    run(async {
        let (slot, first, second) = (Slot::default(), pair(), pair());
        slot.set(served(&first, None).unwrap());
        let port = listener(&slot).await;
        let mut stream = connect(port, &first.authorities).await.unwrap();
        slot.set(served(&second, None).unwrap());
        let answer = exchange(&mut stream, &post("/consumers", "{}"), ANSWER_BYTES_MAX).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(connect(port, &first.authorities).await.is_err());
        // As the configuration has it meanwhile.
        let both = second.after(&first);
        assert!(connect(port, &both.authorities).await.is_ok());
    });
}
