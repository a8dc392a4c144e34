//! The control socket with a loop that is not one: what clients get, and what hostile ones cannot do.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

#[path = "../src/testkit.rs"]
mod testkit;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll::host::{CgroupPath, HostRoot};
use plimsoll::record::snapshot::Snapshot;
use plimsoll::serve::control::client::{AskError, ask};
use plimsoll::serve::control::server::{AnswerSources, Bounds, Server};
use plimsoll::serve::control::{
    Answer, RefusalKind, Request, SnapshotRequests, Snapshots, snapshots,
};
use plimsoll::serve::summary::Statistics;
use plimsoll_core::engine::Engine;
use plimsoll_core::model::signal::Signal;
use testkit::MIB;

/// Patience with who is cut off, or with a loop that does not answer. Who is to get an answer meanwhile has it, too, on
/// a machine that is busy.
const SHORT: Duration = Duration::from_secs(5);
/// Patience that is never used up.
const LONG: Duration = Duration::from_secs(100_000);

/// An engine that has seen `pods` running pods, each with its index in MiB.
fn engine(pods: u64) -> Engine {
    let pods = (0..pods).map(|index| (testkit::pod(&format!("p{index}"), testkit::PLAIN), index));
    testkit::engine(
        testkit::config(),
        &testkit::events(pods, &[(2, 512)]),
        |_, _| {},
    )
}

/// A server with a loop that answers at once, or never.
struct Fixture {
    path: PathBuf,
    server: Server,
    given: Arc<AtomicUsize>,
    _loop: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

fn answer_all(mut requests: SnapshotRequests, engine: Engine, given: &AtomicUsize) {
    while let Some(asked) = requests.blocking_recv() {
        given.fetch_add(1, Ordering::Relaxed);
        asked.send(Snapshot::of(&engine)).ok();
    }
}

/// One that cuts off nobody for being slow.
fn serve(pods: u64) -> Fixture {
    serve_with(pods, LONG)
}

fn serve_with(pods: u64, patience: Duration) -> Fixture {
    let (source, requests) = snapshots();
    let given = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&given);
    let engine = engine(pods);
    let thread = std::thread::spawn(move || answer_all(requests, engine, &counter));
    fixture(source, given, Some(thread), patience)
}

fn fixture(
    source: plimsoll::serve::control::SnapshotSource,
    given: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    patience: Duration,
) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sock");
    let bounds = Bounds {
        patience,
        first_byte: patience,
        ..Bounds::default()
    };
    let host = HostRoot::live();
    let mounts = host.cgroup_mounts().unwrap();
    let sources = AnswerSources {
        snapshots: Arc::new(Snapshots::new(source)),
        statistics: Statistics::new(host, mounts, CgroupPath::default()),
    };
    let server = Server::start(&path, None, sources, bounds).unwrap();
    Fixture {
        path,
        server,
        given,
        _loop: thread,
        _dir: dir,
    }
}

fn eviction(pod: Option<&str>) -> Request {
    Request::ExplainEviction {
        signal: None,
        pod: pod.map(ToOwned::to_owned),
    }
}

fn refused(path: &Path, request: &Request) -> (RefusalKind, String) {
    match ask(path, request) {
        Err(AskError::Refused(refusal)) => (refusal.kind, refusal.message),
        other => panic!("{other:?}"),
    }
}

/// Sends `bytes`, and reads what comes.
fn raw(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(bytes).ok();
    let mut text = String::new();
    stream.read_to_string(&mut text).ok();
    text
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eprintln!("waits until {what}");
    while !holds() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_question_is_answered() {
    let fixture = serve(4);
    let Answer::Eviction(answer) = ask(&fixture.path, &eviction(None)).unwrap() else {
        panic!("another answer");
    };
    assert_eq!(answer.victims, ["default/p3"]);
    assert_eq!(answer.signal, Signal::MemoryAvailable);
    assert_eq!(answer.signals[0].thresholds[0].headroom, Some(412 << 20));
    let Answer::Oom(answer) = ask(&fixture.path, &Request::ExplainOom { pod: None }).unwrap()
    else {
        panic!("another answer");
    };
    assert_eq!(answer.containers[0].pod, "default/p3");
    assert_eq!(answer.containers[0].kubelet_adj, 1000);
}

#[test]
fn pods_are_found_or_the_reason_is_given() {
    let fixture = serve(3);
    for name in ["default/p1", "p1", "default_p1"] {
        let Answer::Eviction(answer) = ask(&fixture.path, &eviction(Some(name))).unwrap() else {
            panic!("another answer");
        };
        assert_eq!(answer.pod.unwrap().pod, "default/p1", "{name}");
    }
    let (kind, text) = refused(&fixture.path, &eviction(Some("web")));
    assert_eq!(kind, RefusalKind::UnknownPod);
    assert!(
        text.contains("default/p0, default/p1, default/p2"),
        "{text}"
    );
    let signal = Request::ExplainEviction {
        signal: Some("memory.free".to_owned()),
        pod: None,
    };
    let (kind, text) = refused(&fixture.path, &signal);
    assert_eq!(kind, RefusalKind::UnknownSignal);
    assert!(text.contains("nodefs.inodesFree"), "{text}");
}

#[test]
fn many_questions_cost_the_loop_few_snapshots() {
    let fixture = serve(1);
    let start = Instant::now();
    for _ in 0..50 {
        ask(&fixture.path, &eviction(None)).unwrap();
    }
    // One when the first came, and one each 100 ms.
    let at_most = 2 + start.elapsed().as_millis() / 100;
    let given = fixture.given.load(Ordering::Relaxed);
    assert!(given as u128 <= at_most, "{given} > {at_most}");
}

#[test]
fn one_overview_serves_many() {
    let fixture = serve(4);
    let Answer::Overview(first) = ask(&fixture.path, &Request::Overview).unwrap() else {
        panic!("another answer");
    };
    assert_eq!(first.pid, Some(std::process::id()));
    assert_eq!(first.pods.len(), 4);
    assert_eq!(first.pods[3].ranked.unwrap().rank, 1);
    assert_eq!(first.pods[3].memory.usage_bytes, Some(3 * MIB));
    assert_eq!(first.node.memory_capacity_bytes, Some(1024 * MIB));
    assert!(first.node.name.is_some(), "read from this host");
    let start = Instant::now();
    for _ in 0..50 {
        ask(&fixture.path, &Request::Overview).unwrap();
    }
    // One when the first came, and one each half second.
    let at_most = 2 + start.elapsed().as_millis() / 500;
    let given = fixture.given.load(Ordering::Relaxed);
    assert!(given as u128 <= at_most, "{given} > {at_most}");
}

#[test]
fn an_overview_of_many_pods_is_small() {
    let fixture = serve(1000);
    let text = raw(&fixture.path, Request::Overview.to_line().as_bytes());
    assert!(
        text.contains("\"answer\""),
        "{}",
        &text[..200.min(text.len())]
    );
    assert!(text.len() < 1000 << 10, "{} bytes", text.len());
}

#[test]
fn a_loop_without_time_is_said() {
    let (source, requests) = snapshots();
    let fixture = fixture(source, Arc::default(), None, SHORT);
    let (kind, text) = refused(&fixture.path, &eviction(None));
    assert_eq!(kind, RefusalKind::Busy);
    assert!(text.contains("had no time"), "{text}");
    drop(requests);
    let (kind, text) = refused(&fixture.path, &eviction(None));
    assert_eq!(kind, RefusalKind::Busy);
    assert!(text.contains("starting or stopping"), "{text}");
}

#[test]
fn lines_that_are_wrong_are_refused() {
    let fixture = serve(1);
    let huge = vec![b'x'; 1 << 20];
    assert!(raw(&fixture.path, &huge).contains("longer than 65536 bytes"));
    assert!(raw(&fixture.path, b"\n").contains("badRequest"));
    assert!(raw(&fixture.path, b"\xff\x00{\n").contains("badRequest"));
    assert!(raw(&fixture.path, b"{\"v\":7}\n").contains("\"version\""));
    let deep = "[".repeat(60_000) + "\n";
    assert!(raw(&fixture.path, deep.as_bytes()).contains("badRequest"));
    // What follows the line is not looked at.
    let two = eviction(None).to_line() + "garbage";
    assert!(raw(&fixture.path, two.as_bytes()).contains("\"answer\""));
    ask(&fixture.path, &eviction(None)).unwrap();
}

#[test]
fn a_half_line_is_cut_off() {
    let fixture = serve_with(1, SHORT);
    let mut half = UnixStream::connect(&fixture.path).unwrap();
    half.write_all(b"{\"v\":1,").unwrap();
    let silent = UnixStream::connect(&fixture.path).unwrap();
    // Both are there and hold nobody up.
    ask(&fixture.path, &eviction(None)).unwrap();
    assert_eq!(half.read(&mut [0]).unwrap(), 0, "cut off without an answer");
    drop(silent);
    until("both are counted", || fixture.server.clients().lost >= 2);

    let mut ended = UnixStream::connect(&fixture.path).unwrap();
    ended.write_all(b"{\"v\":1,").unwrap();
    ended.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    ended.read_to_string(&mut text).unwrap();
    assert!(text.contains("incomplete"), "{text}");
}

#[test]
fn a_hundred_silent_connections_hold_nobody_up() {
    let fixture = serve_with(1, SHORT);
    let mut clients: Vec<UnixStream> = (0..100)
        .map(|_| UnixStream::connect(&fixture.path).unwrap())
        .collect();
    let Answer::Health(health) = ask(&fixture.path, &Request::Health).unwrap() else {
        panic!("another answer");
    };
    assert_eq!(health.pods, 1);
    ask(&fixture.path, &eviction(None)).unwrap();
    let mut sent_away = 0;
    for client in &mut clients {
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        sent_away += u64::from(text.contains("\"busy\""));
    }
    // Those whom newer ones have displaced were told so, the others were cut off for being silent.
    until("all are counted", || {
        let figures = fixture.server.clients();
        figures.sent_away == sent_away && figures.lost == 100 - sent_away
    });
}

#[test]
fn questions_beyond_the_limit_are_sent_away_and_probes_are_not() {
    let (source, requests) = snapshots();
    let fixture = fixture(source, Arc::default(), None, LONG);
    let asks = |request: &Request| {
        let mut stream = UnixStream::connect(&fixture.path).unwrap();
        stream.write_all(request.to_line().as_bytes()).unwrap();
        stream
    };
    let held: Vec<UnixStream> = (0..17).map(|_| asks(&eviction(None))).collect();
    until("one has no place", || {
        fixture.server.clients().sent_away == 1
    });
    let probe = asks(&Request::Health);
    let engine = engine(2);
    std::thread::spawn(move || answer_all(requests, engine, &AtomicUsize::new(0)));
    let answer = |mut stream: &UnixStream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(answer(&probe).contains("\"pods\":2"));
    let answers: Vec<String> = held.iter().map(answer).collect();
    let away = |it: &&String| it.contains("already serves 16 clients");
    assert_eq!(answers.iter().filter(away).count(), 1);
    let served = answers.iter().filter(|it| it.contains("\"answer\""));
    assert_eq!(served.count(), 16);
}

#[test]
fn whoever_goes_or_stops_reading_amid_an_answer_is_forgotten() {
    // An answer much larger than a socket's buffer.
    let fixture = serve_with(3000, SHORT);
    let line = eviction(None).to_line();
    // One whose answer has begun to come. On a busy machine the loop may be too slow for one: then once more.
    let begun = || loop {
        let mut client = UnixStream::connect(&fixture.path).unwrap();
        client.write_all(line.as_bytes()).ok();
        let mut begin = [0; 13];
        if client.read_exact(&mut begin).is_ok() && begin == *br#"{"v":1,"answe"# {
            return client;
        }
    };
    drop(begun());
    let slow = begun();
    until("both are forgotten", || fixture.server.clients().lost >= 2);
    drop(slow);
    until("another one has the whole answer", || {
        match ask(&fixture.path, &eviction(None)) {
            Ok(Answer::Eviction(answer)) => {
                assert_eq!(answer.ranking.pods.len(), 3000);
                true
            }
            Ok(_) => panic!("another answer"),
            Err(_) => false,
        }
    });
}

#[test]
fn nobody_there_is_said_with_the_next_step() {
    let Fixture {
        path, server, _dir, ..
    } = serve(1);
    drop(server);
    assert!(!path.exists(), "the socket goes with its server");
    let error = ask(&path, &eviction(None)).unwrap_err();
    assert!(error.to_string().contains("plimsoll run"), "{error}");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let error = ask(&path, &eviction(None)).unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    let refused = UnixStream::connect(&path).unwrap_err().kind();
    assert_eq!(refused, ErrorKind::ConnectionRefused);
}
