//! `plimsoll web` as a browser meets it: an agent's socket, a journal, and what is refused.
#![expect(clippy::unwrap_used, reason = "a test that fails names the line")]

mod node;
mod notes;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A running `plimsoll web`.
struct Web {
    child: Child,
    address: String,
}

impl Web {
    fn start(args: &[&str], path: &Path) -> Self {
        Self::started(
            Command::new(env!("CARGO_BIN_EXE_plimsoll"))
                .args(["web", "--listen", "127.0.0.1:0"])
                .args(args)
                .arg(path),
        )
    }

    fn started(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.strip_prefix("http://").unwrap();
        let address = address.split('/').next().unwrap().to_owned();
        Self { child, address }
    }

    /// Status line with headers, and body.
    fn ask(&self, method: &str, path: &str, host: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), body.to_owned())
    }

    fn json(&self, path: &str) -> Value {
        let (head, body) = self.ask("GET", path, &self.address);
        assert!(head.starts_with("http/1.1 200"), "{head}\n{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn end(mut self) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn the_page_of_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let _server = node::serve(&dir.path().join("control.sock"), None, &["a", "b"]);
    let web = Web::start(&["--state-dir"], dir.path());
    for (path, is_there) in [
        ("/", "<script src=\"script.js\""),
        ("/script.js", "\"use strict\""),
        ("/style.css", "color-scheme"),
    ] {
        let (head, body) = web.ask("GET", path, &web.address);
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(
            head.contains("content-security-policy: default-src 'self'"),
            "{head}"
        );
        assert!(body.contains(is_there), "{path}: {body}");
    }
    let state = web.json("/state.json");
    assert_eq!(state["overview"]["pods"].as_array().unwrap().len(), 2);
    let next = state["candidates"][0].as_str().unwrap();
    let reason = state["reasons"][next].as_str().unwrap();
    assert!(reason.contains("its request"), "{reason}");
    assert_eq!(web.json("/timeline.json"), Value::Null);
    let refused = |method: &str, path: &str, host: &str| web.ask(method, path, host).0;
    assert!(refused("POST", "/state.json", &web.address).starts_with("http/1.1 405"));
    assert!(refused("GET", "/../etc/passwd", &web.address).starts_with("http/1.1 404"));
    // Its name was made to point here by a stranger, whose page would read this one.
    assert!(refused("GET", "/state.json", "rebound.example").starts_with("http/1.1 403"));
    web.end();
}

#[test]
fn a_journal_has_a_time_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.journal");
    node::engine(&["a", "b"], Some(&path));
    let web = Web::start(&["--journal"], &path);
    let timeline = web.json("/timeline.json");
    let points = timeline["points"].as_array().unwrap();
    assert_eq!(points.last().unwrap()["availableBytes"], 24 << 20);
    assert_eq!(points.last().unwrap()["thresholdBytes"], 100 << 20);
    assert!(points.is_sorted_by_key(|point| point["atNs"].as_u64()));
    let decisions = timeline["decisions"].as_array().unwrap();
    let evicted = decisions
        .iter()
        .find(|decision| decision["text"].as_str().unwrap().contains("evict"))
        .unwrap();
    // Before and after it.
    let available = |at_ns: u64| {
        let state = web.json(&format!("/state.json?at={at_ns}"));
        state["overview"]["node"]["memoryAvailableBytes"].as_u64()
    };
    let at_ns = evicted["atNs"].as_u64().unwrap();
    assert_eq!(available(at_ns), Some(24 << 20));
    assert_eq!(available(at_ns - 1), Some(512 << 20));
    web.end();
}

#[test]
fn without_an_agent_it_says_so_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["web", "--state-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no plimsoll agent answers"), "{text}");
}

/// A kubectl that knows two nodes, of which `b` does not answer, and a pod that has ended.
fn kubectl(dir: &Path) {
    let text = format!(
        r#"#!/bin/sh
[ "$1 $2" = "--namespace plimsoll" ] || exit 9
case "$3 $4" in
"get pods")
    printf 'a pod-a\nb pod-b\n'
    # Pods that have ended are listed, but for a selector.
    case "$*" in
    *status.phase=Running*) ;;
    *) printf 'a pod-ended\n' ;;
    esac ;;
"exec pod-a") shift 8; exec {plimsoll} "$@" --state-dir {dir} ;;
*) echo "no route to $4" >&2; exit 1 ;;
esac
"#,
        plimsoll = env!("CARGO_BIN_EXE_plimsoll"),
        dir = dir.to_str().unwrap(),
    );
    let path = dir.join("kubectl");
    std::fs::write(&path, text).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, executable).unwrap();
}

/// With its own `kubectl` first in PATH.
fn of_cluster(dir: &Path) -> Web {
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", dir.to_str().unwrap());
    Web::started(
        Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["web", "--listen", "127.0.0.1:0", "--cluster"])
            .env("PATH", path),
    )
}

#[test]
fn the_page_of_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let _server = node::serve(&dir.path().join("control.sock"), None, &["x", "y"]);
    kubectl(dir.path());
    let web = of_cluster(dir.path());
    let rows = web.json("/nodes.json");
    assert_eq!(
        (&rows[0]["node"], &rows[0]["pods"]),
        (&"a".into(), &"1".into())
    );
    assert!(
        rows[0]["next"].as_str().unwrap().contains("default/"),
        "{rows}"
    );
    assert_eq!(rows[1]["node"], "b");
    let problem = rows[1]["problem"].as_str().unwrap();
    assert!(problem.contains("no route to pod-b"), "{problem}");
    let state = web.json("/state.json?node=a");
    assert_eq!(state["overview"]["pods"].as_array().unwrap().len(), 2);
    for (path, says) in [
        ("/state.json?node=b", "no route to pod-b"),
        (
            "/state.json?node=--help",
            "no agent is known on node --help",
        ),
        ("/state.json", "no agent is known"),
    ] {
        let (head, body) = web.ask("GET", path, &web.address);
        assert!(
            head.starts_with("http/1.1 503") && body.contains(says),
            "{path}: {body}"
        );
    }
    web.end();
}

/// What a real browser makes of the page: its script runs, fills the tables from the documents, and shows strangers'
/// words as text.
#[test]
fn a_real_browser_shows_nodes_pods_and_who_goes_next() {
    let Some(browser) = ["chromium", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok())
    else {
        return notes::left_out("needs a browser: apt-get install chromium");
    };
    let dir = tempfile::tempdir().unwrap();
    let _server = node::serve(&dir.path().join("control.sock"), None, &["x", "y"]);
    kubectl(dir.path());
    let alone = Web::start(&["--state-dir"], dir.path());
    let cluster = of_cluster(dir.path());
    for (web, nodes) in [(&alone, 0), (&cluster, 2)] {
        let shown = (0..20).find_map(|_| {
            let mut command = Command::new(browser);
            command
                .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
                .args(["--virtual-time-budget=5000", "--timeout=60000"])
                .arg(format!(
                    "--user-data-dir={}",
                    dir.path().join("profile").to_string_lossy()
                ))
                .arg(format!("http://{}/", web.address));
            let page = String::from_utf8(command.output().unwrap().stdout).unwrap();
            // On a slow machine the script has not drawn yet.
            page.contains("<td>default/x</td>").then_some(page)
        });
        let page = shown.expect("the page shows no pod");
        assert_eq!(page.matches("data-node=").count(), nodes, "{page}");
        assert!(page.contains("<td>default/y</td>") && page.contains("<li>default/x: "));
        assert!(
            page.contains("id=\"problem\" role=\"alert\" hidden"),
            "{page}"
        );
        assert_eq!(page.contains("no route to pod-b"), nodes > 0);
        assert!(page.contains("class=\"available\""), "the curve is drawn");
    }
}
