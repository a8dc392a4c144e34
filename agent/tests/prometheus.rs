//! A real Prometheus scrapes the real programs, and takes every query of the dashboard and every rule of `deploy/`.
//!
//! `promtool` says whether a query can be read, and its tests of the alerts make up the series. Here the series are
//! ours: a name or a label that no program has gives no row. Needs `prometheus` where `cargo xtask deploy-check` puts
//! it, and the programs beside this test.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod notes;

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// Queries that may have no row here: they need BPF, a threshold that is met, or an arbitrator with a cluster.
const EMPTY: [&str; 6] = [
    "plimsoll_records_dropped_total",
    "plimsoll_threshold_met",
    "plimsoll_arbitrator_deserved",
    "plimsoll_arbitrator_used",
    "plimsoll_arbitrator_entitled_pods",
    "plimsoll_arbitrator_evictions_total",
];

/// Ended with this, so that the agent takes away what it has made.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _gone = self.0.wait();
    }
}

/// The tree that an agent keeps for its pods also when it has ended; removed with this.
struct Tree(String);

impl Drop for Tree {
    fn drop(&mut self) {
        let all = Path::new("/sys/fs/cgroup");
        let below = fs::read_dir(all).into_iter().flatten();
        let mounts = below.filter_map(|mount| Some(mount.ok()?.path()));
        for mount in mounts.chain([all.to_owned()]) {
            let root = mount.join(&self.0);
            for below in ["kubepods/burstable", "kubepods/besteffort", "kubepods", ""] {
                let _absent = fs::remove_dir(root.join(below));
            }
        }
    }
}

fn prometheus() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = set("PLIMSOLL_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("plimsoll")))
        .or_else(|| Some(set("HOME")?.join(".cache/plimsoll")))?;
    let program = cache.join("promtool/usr/bin/prometheus");
    program.is_file().then_some(program)
}

/// A program of this project, built beside this test.
fn beside(name: &str) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_plimsoll-agent")).with_file_name(name);
    program.is_file().then_some(program)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn started(program: &Path, arguments: &[String], log: &Path) -> Running {
    let log = fs::File::create(log).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(log.try_clone().unwrap()).stderr(log);
    Running(command.spawn().unwrap())
}

/// The body of an answer, or nothing where there is none.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    // 1.0: the answer comes in one piece, and the connection ends with it.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some(body.to_owned())
}

fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        write!(escaped, "%{byte:02X}").unwrap();
        escaped
    })
}

struct Scene {
    port: u16,
    folder: tempfile::TempDir,
    /// The order in which they end.
    programs: Vec<(&'static str, Running)>,
}

impl Scene {
    /// What Prometheus says to a question, once it says something.
    fn ask(&mut self, path: &str) -> Value {
        loop {
            let answer = get(self.port, path);
            if let Some(answer) = answer.and_then(|text| serde_json::from_str(&text).ok()) {
                return answer;
            }
            self.all_run();
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn rows(&mut self, query: &str) -> Vec<Value> {
        let answer = self.ask(&format!("/api/v1/query?query={}", escaped(query)));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// One that has ended says why.
    fn all_run(&mut self) {
        for (name, program) in &mut self.programs {
            if let Some(status) = program.0.try_wait().unwrap() {
                let log = fs::read_to_string(self.folder.path().join(*name)).unwrap();
                panic!("{name} has ended: {status}\n{log}");
            }
        }
    }
}

/// The queries of the dashboard, with what Grafana puts in its variables.
fn queries(deploy: &Path) -> Vec<String> {
    let text = fs::read_to_string(deploy.join("grafana/plimsoll.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let queries = targets.map(|target| target["expr"].as_str().unwrap());
    queries
        .map(|query| {
            query
                .replace("$__rate_interval", "10s")
                .replace("$node", ".*")
        })
        .collect()
}

#[test]
fn a_real_prometheus_takes_every_query_and_every_rule() {
    let Some(prometheus) = prometheus() else {
        return notes::left_out("needs Prometheus: cargo xtask deploy-check fetches it");
    };
    let (Some(agent), Some(cluster)) = (beside("plimsoll-agent"), beside("plimsoll-cluster"))
    else {
        return notes::left_out("needs plimsoll-cluster: cargo build -p plimsoll-cluster");
    };
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/components");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let rules: Value =
        serde_saphyr::from_str(&fs::read_to_string(deploy.join("prometheus/rules.yaml")).unwrap())
            .unwrap();
    let groups = json!({"groups": rules["spec"]["groups"]});
    fs::write(path("rules.json"), groups.to_string()).unwrap();
    let [agent_port, arbitrator_port, port] = [(); 3].map(|()| free_port());
    let job = |name: &str, port: u16| json!({"job_name": name, "static_configs": [{"targets": [format!("127.0.0.1:{port}")], "labels": {"node": "n", "pod": "p"}}]});
    let config = json!({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [path("rules.json")],
        "scrape_configs": [job("plimsoll/plimsoll", agent_port), job("plimsoll/plimsoll-arbitrator", arbitrator_port)],
    });
    fs::write(path("prometheus.json"), config.to_string()).unwrap();
    let nowhere = "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: 'http://127.0.0.1:9'}}]\n\
                   users: [{name: x, user: {}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n";
    fs::write(path("kubeconfig"), nowhere).unwrap();
    fs::create_dir(path("manifests")).unwrap();
    let text = |words: &[&str]| {
        words
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    let tree = Tree(format!("plimsoll-test-prometheus-{}", std::process::id()));
    let mut programs = Vec::new();
    let mut arguments = text(&["--without", "bpf", "--output", "json"]);
    arguments.extend([
        format!("--listen=127.0.0.1:{agent_port}"),
        format!("--state-dir={}", path("state").to_string_lossy()),
        format!("--manifests={}", path("manifests").to_string_lossy()),
        format!("--cgroup-root={}", tree.0),
    ]);
    programs.push(("agent", started(&agent, &arguments, &path("agent"))));
    let mut arguments = text(&["arbitrate"]);
    arguments.extend([
        format!("--kubeconfig={}", path("kubeconfig").to_string_lossy()),
        format!("--listen=127.0.0.1:{arbitrator_port}"),
    ]);
    programs.push((
        "arbitrator",
        started(&cluster, &arguments, &path("arbitrator")),
    ));
    let arguments = [
        format!(
            "--config.file={}",
            path("prometheus.json").to_string_lossy()
        ),
        format!("--storage.tsdb.path={}", path("data").to_string_lossy()),
        format!("--web.listen-address=127.0.0.1:{port}"),
    ];
    programs.push((
        "prometheus",
        started(&prometheus, &arguments, &path("prometheus")),
    ));
    let mut scene = Scene {
        port,
        folder,
        programs,
    };
    // Enough for a rate, of both.
    while scene.rows("count_over_time(up[1m]) >= 4").len() < 2 {
        scene.all_run();
        std::thread::sleep(Duration::from_millis(200));
    }
    let up = scene.rows("up == 1");
    assert_eq!(up.len(), 2, "{up:#?}");
    let queries = queries(&deploy);
    let mut with_rows = 0;
    for query in &queries {
        let rows = scene.rows(query);
        let may_be_empty = EMPTY.iter().any(|part| query.contains(part));
        assert!(!rows.is_empty() || may_be_empty, "no row: {query}");
        with_rows += usize::from(!rows.is_empty());
    }
    let answer = scene.ask("/api/v1/rules");
    let groups = answer["data"]["groups"].as_array().unwrap().iter();
    let rules: Vec<&Value> = groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    for rule in &rules {
        assert_ne!(rule["health"], "err", "{rule:#}");
    }
    notes::note(format_args!(
        "a real Prometheus took {} queries ({with_rows} with rows) and {} rules",
        queries.len(),
        rules.len()
    ));
    assert!(!rules.is_empty());
}
