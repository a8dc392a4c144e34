//! The HTTP listener with a loop that is not one: what clients get, and what hostile ones cannot do.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use plimsoll::host::{CgroupPath, HostRoot};
use plimsoll::record::snapshot::Snapshot;
use plimsoll::record::tally::Tally;
use plimsoll::serve::control::{SnapshotRequests, Snapshots, snapshots};
use plimsoll::serve::http::{Answers, Bounds, Server, address, bind};
use plimsoll::serve::summary::Statistics;
use plimsoll_core::engine::{Engine, EngineConfig};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::event::{Event, EventKind, NodeMemory, Sample};
use plimsoll_core::model::reading::{
    ContainerStorage, FileSystemReading, PodStorage, StorageReading, Used, VolumeStorage,
};

/// Patience with who is cut off, or with a loop that does not answer. Who is to get an answer meanwhile has it, too, on
/// a machine that is busy.
const SHORT: Duration = Duration::from_secs(5);
/// Patience that is never used up.
const LONG: Duration = Duration::from_secs(100_000);

/// A listener, and a loop that answers, or never does.
struct Fixture {
    server: Server,
    /// Snapshots that the loop has given.
    given: Arc<AtomicUsize>,
    listed: Arc<AtomicBool>,
    /// Held by a test whose loop does not answer.
    silent: Option<SnapshotRequests>,
}

fn serve(answers_questions: bool, bounds: Bounds) -> Fixture {
    let engine = Engine::new(EngineConfig::default());
    serve_host(
        &HostRoot::live(),
        CgroupPath::default(),
        engine,
        answers_questions,
        bounds,
    )
}

fn serve_host(
    host: &HostRoot,
    root: CgroupPath,
    engine: Engine,
    answers_questions: bool,
    bounds: Bounds,
) -> Fixture {
    let (source, mut requests) = snapshots();
    let given = Arc::new(AtomicUsize::new(0));
    let listed = Arc::new(AtomicBool::new(true));
    let silent = if answers_questions {
        let (given, listed) = (Arc::clone(&given), Arc::clone(&listed));
        std::thread::spawn(move || {
            while let Some(asked) = requests.blocking_recv() {
                given.fetch_add(1, Ordering::Relaxed);
                let snapshot = Snapshot {
                    tally: Tally {
                        pods_watched: listed.load(Ordering::Relaxed),
                        last_line_holds_ns: Some(600_000_000_000),
                        ..Tally::default()
                    },
                    ..Snapshot::of(&engine)
                };
                asked.send(snapshot).ok();
            }
        });
        None
    } else {
        Some(requests)
    };
    let statistics = Statistics::new(host.clone(), host.cgroup_mounts().unwrap(), root);
    let answers =
        Answers::new(Arc::new(Snapshots::new(source)), statistics).with_loop_bound(bounds.patience);
    let listener = bind(address("127.0.0.1:0").unwrap()).unwrap();
    let server = Server::start(listener, answers, bounds).unwrap();
    Fixture {
        server,
        given,
        listed,
        silent,
    }
}

/// Nobody is cut off for being slow.
fn bounds() -> Bounds {
    Bounds {
        first_byte: LONG,
        patience: LONG,
        connection: LONG,
        ..Bounds::default()
    }
}

/// Who is slow is cut off.
fn short() -> Bounds {
    Bounds {
        first_byte: SHORT,
        patience: SHORT,
        ..bounds()
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).unwrap()
}

/// Sends `bytes`, and reads what comes until the listener closes.
fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(bytes).ok();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Status, head and body of an answer.
fn ask(fixture: &Fixture, method: &str, path: &str, headers: &str) -> (u16, String, String) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
    let answer = raw(fixture.server.address(), request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

fn get(fixture: &Fixture, path: &str) -> (u16, String) {
    let (status, _, body) = ask(fixture, "GET", path, "");
    (status, body)
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eprintln!("waits until {what}");
    while !holds() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn metrics_in_the_form_that_is_asked_for() {
    let fixture = serve(true, bounds());
    let (status, head, body) = ask(&fixture, "GET", "/metrics", "");
    assert_eq!(status, 200);
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(
        body.contains("# TYPE plimsoll_decisions_total counter\n"),
        "{body}"
    );
    assert!(body.contains("plimsoll_loop_answering 1\n"), "{body}");

    let accept = "accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1\r\n";
    let (status, head, body) = ask(&fixture, "GET", "/metrics", accept);
    assert_eq!(status, 200);
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(body.ends_with("# EOF\n"), "{body}");

    let (status, head, body) = ask(&fixture, "HEAD", "/metrics", "");
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.contains("content-length: "), "{head}");
}

#[test]
fn health_and_readiness() {
    let fixture = serve(true, bounds());
    assert_eq!(get(&fixture, "/healthz"), (200, "ok\n".to_owned()));
    let (status, text) = get(&fixture, "/readyz");
    assert_eq!(status, 200);
    assert!(
        text.contains("the last line in the kernel holds for 600s"),
        "{text}"
    );

    fixture.listed.store(false, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(150));
    let (status, text) = get(&fixture, "/readyz");
    assert_eq!(status, 503);
    assert!(text.contains("not known"), "{text}");
    assert_eq!(get(&fixture, "/healthz").0, 200);
}

#[test]
fn a_loop_that_does_not_answer_is_said() {
    let fixture = serve(false, short());
    for path in ["/healthz", "/readyz", "/stats/summary"] {
        let (status, text) = get(&fixture, path);
        assert_eq!(status, 503);
        assert!(text.contains("had no time"), "{text}");
    }
    let (status, text) = get(&fixture, "/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("plimsoll_loop_answering 0\n"), "{text}");
    assert!(text.contains("process_cpu_seconds_total "), "{text}");
    let (status, text) = get(&fixture, "/metrics/resource");
    assert_eq!(status, 200);
    assert!(text.ends_with("\nresource_scrape_error 1\n"), "{text}");
}

#[test]
fn other_paths_and_methods_are_told_what_there_is() {
    let fixture = serve(true, bounds());
    let (status, text) = get(&fixture, "/");
    assert_eq!(status, 404);
    for path in [
        "/metrics ",
        "/metrics/resource ",
        "/healthz",
        "/readyz",
        "/stats/summary",
    ] {
        assert!(text.contains(path), "{text}");
    }
    for path in [
        "/metrics/",
        "/metrics/../metrics",
        "//metrics",
        "/%6detrics",
    ] {
        assert_eq!(get(&fixture, path).0, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let (status, head, _) = ask(&fixture, method, "/metrics", "content-length: 0\r\n");
        assert_eq!(status, 405, "{method}");
        assert!(head.to_lowercase().contains("allow: get, head"), "{head}");
    }
}

#[test]
fn requests_that_are_wrong_or_huge_are_refused() {
    // A line that is empty is the beginning of a request.
    let fixture = serve(true, short());
    let address = fixture.server.address();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    let answer = raw(address, long.as_bytes());
    assert!(!answer.contains(" 200 "), "{answer}");
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1000));
    let answer = raw(address, many.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    for wrong in [
        &b"\n"[..],
        b"\xff\xfe\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"{\"v\":1}\n\n",
    ] {
        let answer = raw(address, wrong);
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert_eq!(get(&fixture, "/healthz").0, 200);
}

#[test]
fn one_request_per_connection() {
    let fixture = serve(true, bounds());
    let two = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2);
    let answer = raw(fixture.server.address(), two.as_bytes());
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
}

#[test]
fn slow_clients_are_cut_off_and_hold_nobody_up() {
    let fixture = serve(true, short());
    let address = fixture.server.address();
    let mut half = connect(address);
    half.write_all(b"GET /metrics HT").unwrap();
    let mut silent = connect(address);
    assert_eq!(get(&fixture, "/healthz").0, 200);
    let mut rest = Vec::new();
    half.read_to_end(&mut rest).ok();
    silent.read_to_end(&mut rest).ok();
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    until("both are counted", || fixture.server.clients().lost >= 2);
}

#[test]
fn a_client_that_sends_a_byte_now_and_then_is_cut_off_too() {
    let fixture = serve(
        true,
        Bounds {
            connection: Duration::from_millis(600),
            ..bounds()
        },
    );
    let mut stream = connect(fixture.server.address());
    while stream.write_all(b"G").is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A client that has sent a request whose answer takes as long as the loop does.
fn asks(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = connect(address);
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

#[test]
fn requests_beyond_the_limit_are_sent_away_and_probes_are_not() {
    let bounds = Bounds {
        clients: 4,
        clients_of_one_address: 3,
        ..bounds()
    };
    let mut fixture = serve(false, bounds);
    let address = fixture.server.address();
    let held: Vec<TcpStream> = (0..4).map(|_| asks(address, "/stats/summary")).collect();
    until("one has no place", || {
        fixture.server.clients().sent_away == 1
    });
    let mut probes: Vec<TcpStream> = ["/healthz", "/readyz"]
        .map(|path| asks(address, path))
        .into();
    let mut requests = fixture.silent.take().unwrap();
    std::thread::spawn(move || {
        while let Some(asked) = requests.blocking_recv() {
            let engine = Engine::new(EngineConfig::default());
            asked.send(Snapshot::of(&engine)).ok();
        }
    });
    let answer = |mut stream: &TcpStream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(answer(&probes.remove(0)).starts_with("HTTP/1.1 200"));
    assert!(answer(&probes.remove(0)).contains("not known"));
    let answers: Vec<String> = held.iter().map(answer).collect();
    let away = |it: &&String| it.starts_with("HTTP/1.1 503") && it.ends_with("ask again shortly\n");
    assert_eq!(answers.iter().filter(away).count(), 1, "{answers:?}");
    let served = answers.iter().filter(|it| it.starts_with("HTTP/1.1 200"));
    assert_eq!(served.count(), 3, "{answers:?}");
}

#[test]
fn silent_clients_do_not_keep_a_probe_from_its_answer() {
    // Each that goes gave way.
    let fixture = serve(true, bounds());
    let address = fixture.server.address();
    let silent: Vec<TcpStream> = (0..40).map(|_| connect(address)).collect();
    assert_eq!(get(&fixture, "/healthz").0, 200);
    assert_eq!(get(&fixture, "/readyz").0, 200);
    assert_eq!(get(&fixture, "/metrics").0, 200);
    let gave_way = fixture.server.clients().sent_away;
    assert!(gave_way >= 40 - 32, "{gave_way}");
    drop(silent);
    until("the rest is counted", || {
        let figures = fixture.server.clients();
        figures.lost + figures.sent_away == 40
    });
}

#[test]
fn a_client_that_sends_nothing_is_cut_off_before_one_that_is_slow() {
    let bounds = Bounds {
        first_byte: Duration::from_millis(50),
        ..bounds()
    };
    let fixture = serve(true, bounds);
    let address = fixture.server.address();
    // On a busy machine the first byte may come too late: then once more.
    until("one that has begun in time is waited for", || {
        let (mut slow, mut silent) = (connect(address), connect(address));
        slow.write_all(b"GET /healthz HTTP/1.1\r\n").ok();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0, "cut off");
        slow.write_all(b"host: x\r\n\r\n").ok();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).ok();
        answer.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn many_scrapes_cost_the_loop_few_snapshots() {
    let fixture = serve(true, bounds());
    let start = std::time::Instant::now();
    for _ in 0..50 {
        assert_eq!(get(&fixture, "/metrics").0, 200);
    }
    // One when the first came, and one each 100 ms.
    let at_most = 2 + start.elapsed().as_millis() / 100;
    let given = fixture.given.load(Ordering::Relaxed);
    assert!(given as u128 <= at_most, "{given} > {at_most}");
    until("all are counted", || {
        fixture.server.clients().answered == 50
    });
}

#[test]
fn the_port_is_free_when_the_server_is_gone() {
    let Fixture { server, .. } = serve(true, bounds());
    let address = server.address();
    let error = bind(address).unwrap_err().to_string();
    assert!(error.contains("in use"), "{error}");
    drop(server);
    bind(address).unwrap();
}

const MANIFESTS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, uid: u-web}
spec:
  containers: [{name: app, resources: {requests: {memory: 16Mi}}}]
  volumes: [{name: cache, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: data}
spec: {containers: [{name: pg}]}
---
apiVersion: v1
kind: Pod
metadata: {name: idle}
spec: {containers: [{name: app}]}
"#;

fn pods() -> Vec<Pod> {
    let json = [
        r#"{"metadata":{"name":"web","uid":"u-web"},"spec":{"containers":[{"name":"app","resources":{"requests":{"memory":"16Mi"}}}],"volumes":[{"name":"cache","emptyDir":{}}]}}"#,
        r#"{"metadata":{"name":"db","namespace":"data"},"spec":{"containers":[{"name":"pg"}]}}"#,
        r#"{"metadata":{"name":"idle"},"spec":{"containers":[{"name":"app"}]}}"#,
    ];
    json.map(|own| serde_json::from_str(own).unwrap()).into()
}

fn cgroup(dir: &Path, bytes: u64, processes: &str) {
    fs::create_dir_all(dir).unwrap();
    let stat = "anon 4096\ninactive_file 1024\npgfault 12\npgmajfault 3\n";
    for (file, text) in [
        ("memory.current", format!("{bytes}\n").as_str()),
        ("memory.stat", stat),
        ("memory.max", "max\n"),
        ("cpu.stat", "usage_usec 1500\nuser_usec 1000\n"),
        ("cgroup.procs", processes),
    ] {
        fs::write(dir.join(file), text).unwrap();
    }
}

/// A node on cgroup v2 where `web` and `db` run and `idle` does not.
fn node() -> (tempfile::TempDir, HostRoot, Engine) {
    let dir = tempfile::tempdir().unwrap();
    let host = HostRoot::new(dir.path());
    fs::create_dir_all(host.procfs("self")).unwrap();
    let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
    fs::write(host.procfs("self/mounts"), mounts).unwrap();
    let mount = host.path("/sys/fs/cgroup");
    cgroup(&mount.join("node/kubepods"), 9 << 20, "");
    fs::write(mount.join("cgroup.controllers"), "cpu io memory pids\n").unwrap();
    fs::write(mount.join("cpu.stat"), "usage_usec 9000000\n").unwrap();
    fs::copy("/proc/meminfo", host.procfs("meminfo")).unwrap();
    let web = mount.join("node/kubepods/burstable/podu-web");
    cgroup(&web, (5 << 20) + 1024, "");
    cgroup(&web.join("app"), 4 << 20, "11\n12\n");
    cgroup(
        &mount.join("node/kubepods/besteffort/poddata_db"),
        3 << 20,
        "13\n",
    );

    let mut engine = Engine::new(EngineConfig::default());
    let mut step = |kind| engine.step(&Event { at_ns: 1, kind }, &mut Vec::new());
    for pod in pods() {
        step(EventKind::PodApplied { pod: Arc::new(pod) });
    }
    let used = |bytes, inodes| Used {
        bytes: Some(bytes),
        inodes: Some(inodes),
    };
    let storage = StorageReading {
        nodefs: Some(FileSystemReading {
            at_ns: 1,
            available_bytes: 600,
            capacity_bytes: 1000,
            inodes_free: Some(50),
            inodes: Some(100),
        }),
        imagefs: None,
        containerfs: None,
        pods: vec![PodStorage {
            uid: pods()[0].uid(),
            containers: vec![ContainerStorage {
                name: "app".to_owned(),
                rootfs: used(70, 7),
                logs: used(20, 2),
            }],
            volumes: vec![VolumeStorage {
                name: "cache".to_owned(),
                used: used(5, 1),
            }],
            files: Used::default(),
            is_cut: false,
        }],
    };
    step(EventKind::Sample(Sample {
        node: NodeMemory {
            capacity_bytes: 1 << 30,
            ..NodeMemory::default()
        },
        storage: Some(Arc::new(storage)),
        ..Sample::default()
    }));
    (dir, host, engine)
}

#[test]
fn rank_reads_our_summary_as_it_reads_a_kubelets() {
    let (dir, host, engine) = node();
    let root = CgroupPath::new("node").unwrap();
    let fixture = serve_host(&host, root, engine, true, bounds());
    let (status, head, body) = ask(&fixture, "GET", "/stats/summary", "");
    assert_eq!(status, 200, "{body}");
    assert!(head.contains("application/json"), "{head}");
    let (manifests, usage) = (
        dir.path().join("pods.yaml"),
        dir.path().join("summary.json"),
    );
    fs::write(&manifests, MANIFESTS).unwrap();
    fs::write(&usage, &body).unwrap();
    let rank = |signal: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["rank", "--output", "json", "--signal", signal, "-f"])
            .arg(&manifests)
            .arg("--usage")
            .arg(&usage)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        assert_eq!(errors, "");
        String::from_utf8(output.stdout).unwrap()
    };
    // What is used according to each signal: bytes without inactive file pages, processes, bytes on disk.
    for (signal, pod, usage) in [
        ("memory.available", "default/web", 5 << 20),
        ("memory.available", "data/db", (3 << 20) - 1024),
        ("pid.available", "default/web", 2),
        ("pid.available", "data/db", 1),
        ("nodefs.available", "default/web", 95),
        ("nodefs.inodesFree", "default/web", 10),
    ] {
        let text = rank(signal);
        let ranking: serde_json::Value = serde_json::from_str(&text).unwrap();
        let pods = ranking["pods"].as_array().unwrap();
        let place = pods.iter().find(|own| own["pod"] == pod).unwrap();
        assert_eq!(place["usage"], usage, "{signal} {pod}: {text}");
    }
}

/// What metrics-server takes from it.
#[test]
fn a_reader_of_resource_metrics_finds_node_and_pods() {
    let (_dir, host, engine) = node();
    let root = CgroupPath::new("node").unwrap();
    let fixture = serve_host(&host, root, engine, true, bounds());
    let (status, head, body) = ask(&fixture, "GET", "/metrics/resource", "");
    assert_eq!(status, 200);
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    let series = |name: &str| {
        let lines = body.lines().filter(|line| line.starts_with(name));
        let lines: Vec<&str> = lines.collect();
        assert!(!lines.is_empty(), "{name}: {body}");
        lines
    };
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis();
    for name in [
        "node_cpu_usage_seconds_total ",
        "node_memory_working_set_bytes ",
        "pod_cpu_usage_seconds_total{",
        "pod_memory_working_set_bytes{",
        "container_cpu_usage_seconds_total{",
        "container_memory_working_set_bytes{",
    ] {
        for line in series(name) {
            let mut words = line.rsplit(' ');
            let at_ms: u128 = words.next().unwrap().parse().unwrap();
            assert!(now_ms.abs_diff(at_ms) < 60_000, "{line}");
            let value: f64 = words.next().unwrap().parse().unwrap();
            assert!(value > 0.0, "{line}");
        }
    }
    let memory = series("container_memory_working_set_bytes{");
    assert!(
        memory
            .iter()
            .any(|line| line.contains("namespace=\"default\",pod=\"web\"")),
        "{memory:?}"
    );
    series("container_start_time_seconds{");
    assert!(body.ends_with("\nresource_scrape_error 0\n"), "{body}");
}

#[test]
fn the_short_summary_has_cpu_and_memory_alone() {
    let (_dir, host, engine) = node();
    let root = CgroupPath::new("node").unwrap();
    let fixture = serve_host(&host, root, engine, true, bounds());
    let (status, body) = get(&fixture, "/stats/summary?only_cpu_and_memory=true");
    assert_eq!(status, 200);
    let summary: serde_json::Value = serde_json::from_str(&body).unwrap();
    let pods = summary["pods"].as_array().unwrap();
    assert_eq!(pods.len(), 2, "one has no cgroup: {body}");
    for pod in pods {
        assert!(pod["cpu"].is_object() && pod["memory"].is_object(), "{pod}");
        for absent in [
            "volume",
            "ephemeral-storage",
            "process_stats",
            "swap",
            "network",
        ] {
            assert!(pod.get(absent).is_none(), "{pod}");
        }
    }
}
