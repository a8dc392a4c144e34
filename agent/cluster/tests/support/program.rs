//! `plimsoll-cluster` itself, as it is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::until;

/// What an HTTP end says of a path, head and all; nothing where no connection was made.
pub(crate) async fn page(
    connection: std::io::Result<impl AsyncRead + AsyncWrite + Unpin>,
    path: &str,
) -> String {
    let Ok(mut stream) = connection else {
        return String::new();
    };
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Runs the program until it ends well, and returns what it prints: where the API server is too slow it ends with an
/// error.
pub(crate) async fn succeeds(arguments: &[&str], kubeconfig: &Path) -> String {
    until(&format!("{arguments:?} to end well"), async || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll-cluster"));
        command.args(arguments).arg("--kubeconfig").arg(kubeconfig);
        let output = command.output().unwrap();
        if !output.status.success() {
            eprintln!("{output:?}");
            return None;
        }
        Some(String::from_utf8(output.stdout).unwrap())
    })
    .await
}

pub(crate) struct Program {
    child: Child,
    metrics: PathBuf,
}

/// The program under test; another build of it, to be measured, by `PLIMSOLL_CLUSTER_PROGRAM`.
fn program() -> PathBuf {
    let given = std::env::var_os("PLIMSOLL_CLUSTER_PROGRAM");
    given.map_or_else(
        || env!("CARGO_BIN_EXE_plimsoll-cluster").into(),
        PathBuf::from,
    )
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ended = (self.child.kill(), self.child.wait());
    }
}

impl Program {
    /// Starts it for this node, with these options beside the usual ones.
    pub(crate) fn start(node: &str, kubeconfig: &Path, socket: &Path, options: &[&str]) -> Self {
        let metrics = socket.with_file_name("metrics.sock");
        let child = Command::new(program())
            .args(["--node", node])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--socket")
            .arg(socket)
            .arg(format!("--metrics=unix:{}", metrics.to_string_lossy()))
            .args(options)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self { child, metrics }
    }

    /// Asks it to end, as a kubelet does.
    pub(crate) fn ask_to_end(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Waits for its end, which must be a good one.
    pub(crate) async fn ended(mut self) {
        let status = until("the program's end", async || self.child.try_wait().unwrap()).await;
        assert_eq!(status.code(), Some(0), "{status}");
    }

    /// A line of `/proc/PID/status`, kB.
    pub(crate) fn memory_kb(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The body of a page of its HTTP end.
    pub(crate) async fn page(&self, path: &str) -> String {
        page(UnixStream::connect(&self.metrics).await, path).await
    }

    /// The sum of a metric over all of its labels that contain `labels`.
    pub(crate) async fn metric(&self, name: &str, labels: &str) -> f64 {
        let name = format!("plimsoll_cluster_{name}");
        let text = self.page("/metrics").await;
        let of = |line: &&str| {
            line.strip_prefix(&name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
        };
        let values = text
            .lines()
            .filter(of)
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }
}
