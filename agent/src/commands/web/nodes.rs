//! The agents of a cluster, asked by `kubectl exec` with the rights of the user who has started this.
//!
//! **Problem.** An agent's socket is on its node, and the page is for people elsewhere. **Approach.** What
//! `kubectl plimsoll` does: the pods of the DaemonSet are listed, and in each the program beside the agent asks its
//! socket. Nothing listens for that in the cluster, and no right is needed but `exec` there. Answers are bounded in
//! size and in time; a node that does not answer is a row that says so.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Shown;
use super::document::{Problem, json};
use crate::host::shown::line;
use crate::serve::overview::Overview;

/// How long one answer may take.
const WITHIN: Duration = Duration::from_secs(15);
/// Bytes of an answer: an overview of a thousand pods has some 2 MiB.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Bytes of what kubectl says of a failure.
const FAILURE_BYTES_MAX: u64 = 1 << 10;
/// Nodes that are asked at a time.
const AT_ONCE: usize = 8;
/// Nodes that are asked at all.
const NODES_MAX: usize = 1_000;
/// However many browsers ask: how old the table of nodes may be, and what one node says.
const TABLE_AGE_MAX: Duration = Duration::from_secs(5);
const NODE_AGE_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether a program has ended.
const STEP: Duration = Duration::from_millis(5);

/// A node in the table: the fields of `plimsoll top --line`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRow {
    node: String,
    pods: String,
    available: String,
    of: String,
    conditions: String,
    next: String,
    /// Why nothing else is known.
    problem: Option<String>,
}

/// The agents of a cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    namespace: String,
    /// Pods of the agents by their nodes, as last listed.
    agents: Mutex<BTreeMap<String, String>>,
    table: Mutex<Option<(Instant, String)>>,
    nodes: Mutex<BTreeMap<String, (Instant, String)>>,
}

impl Cluster {
    /// Lists the agents once.
    ///
    /// # Errors
    /// kubectl's, and that there are none.
    pub(super) fn open(namespace: String) -> Result<Self, Problem> {
        let cluster = Self {
            namespace,
            agents: Mutex::default(),
            table: Mutex::default(),
            nodes: Mutex::default(),
        };
        cluster.list()?;
        Ok(cluster)
    }

    fn list(&self) -> Result<BTreeMap<String, String>, Problem> {
        let output = self.kubectl(&[
            "get",
            "pods",
            "--selector",
            "app.kubernetes.io/name=plimsoll",
            // Those that have ended stay beside the one that runs.
            "--field-selector",
            "status.phase=Running",
            "--output",
            r#"jsonpath={range .items[*]}{.spec.nodeName}{" "}{.metadata.name}{"\n"}{end}"#,
        ])?;
        let text = String::from_utf8_lossy(&output);
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        let agents: BTreeMap<String, String> = pairs
            .filter(|(node, pod)| !node.is_empty() && !pod.is_empty())
            .map(|(node, pod)| (node.to_owned(), pod.to_owned()))
            .take(NODES_MAX)
            .collect();
        if agents.is_empty() {
            return Err(format!(
                "no agent runs in namespace {}: see docs/guide/cluster.md, or give --namespace",
                self.namespace
            ));
        }
        held(&self.agents).clone_from(&agents);
        Ok(agents)
    }

    /// The table of all nodes, as a document.
    ///
    /// # Errors
    /// kubectl's.
    pub(super) fn table(&self) -> Result<String, Problem> {
        // A client that comes while it is made waits for it.
        let mut table = held(&self.table);
        if let Some((_, text)) = table
            .as_ref()
            .filter(|(at, _)| at.elapsed() < TABLE_AGE_MAX)
        {
            return Ok(text.clone());
        }
        let agents: Vec<(String, String)> = self.list()?.into_iter().collect();
        let next = AtomicUsize::new(0);
        let rows = Mutex::new(vec![NodeRow::default(); agents.len()]);
        thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(agents.len()) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((node, pod)) = agents.get(at) else {
                            return;
                        };
                        let row = self.row(node, pod);
                        if let Some(place) = held(&rows).get_mut(at) {
                            *place = row;
                        }
                    }
                });
            }
        });
        let text = json(&*held(&rows))?;
        *table = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    fn row(&self, node: &str, pod: &str) -> NodeRow {
        let node = node.to_owned();
        match self.ask(pod, &["top", "--line"]) {
            Ok(answer) => {
                let text = String::from_utf8_lossy(&answer);
                let mut fields = text.trim_end().split('\t').map(str::to_owned);
                let mut field = || fields.next().unwrap_or_default();
                NodeRow {
                    node,
                    pods: field(),
                    available: field(),
                    of: field(),
                    conditions: field(),
                    next: field(),
                    problem: None,
                }
            }
            Err(problem) => NodeRow {
                node,
                problem: Some(problem),
                ..NodeRow::default()
            },
        }
    }

    /// What one node shows, as a document.
    ///
    /// # Errors
    /// An unknown node, and kubectl's.
    pub(super) fn node(&self, node: &str) -> Result<String, Problem> {
        let pod = held(&self.agents).get(node).cloned();
        let pod = pod.ok_or_else(|| format!("no agent is known on node {}", line(node)))?;
        let known = held(&self.nodes).get(node).cloned();
        if let Some((_, text)) = known.filter(|(at, _)| at.elapsed() < NODE_AGE_MAX) {
            return Ok(text);
        }
        let answer = self.ask(&pod, &["top", "--once", "--output", "json"])?;
        let overview: Overview = serde_json::from_slice(&answer).map_err(|error| {
            format!("the agent on {node} is of another version than this plimsoll: {error}")
        })?;
        let text = json(&Shown::of(&overview))?;
        let mut nodes = held(&self.nodes);
        nodes.retain(|_, (at, _)| at.elapsed() < NODE_AGE_MAX);
        nodes.insert(node.to_owned(), (Instant::now(), text.clone()));
        Ok(text)
    }

    /// What the program beside an agent prints.
    fn ask(&self, pod: &str, arguments: &[&str]) -> Result<Vec<u8>, Problem> {
        let exec = ["exec", pod, "--container", "agent", "--", "/plimsoll"];
        self.kubectl(&[&exec, arguments].concat())
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<Vec<u8>, Problem> {
        let mut command = Command::new("kubectl");
        command
            .args(["--namespace", &self.namespace])
            .args(arguments);
        bounded(command, WITHIN)
    }
}

/// A mistake in one question leaves nothing half done that another would read.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a program prints, which is bounded, as is the time that it has.
///
/// # Errors
/// It cannot be started, is late, or fails: then with the beginning of what it says.
fn bounded(mut command: Command, within: Duration) -> Result<Vec<u8>, Problem> {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        format!("kubectl cannot be started: {error}; install it, or add it to PATH")
    })?;
    let by = Instant::now() + within;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (sender, printed) = mpsc::channel();
    thread::spawn(move || {
        let printed = read(stdout, ANSWER_BYTES_MAX)
            .and_then(|answer| Ok((answer, read(stderr, FAILURE_BYTES_MAX)?)));
        sender.send(printed).ok(); // it is not waited for any more
    });
    let printed = printed.recv_timeout(within);
    let status = loop {
        match child.try_wait() {
            Ok(None) if printed.is_ok() && Instant::now() < by => thread::sleep(STEP),
            Ok(status) => break status,
            Err(error) => return Err(format!("kubectl cannot be waited for: {error}")),
        }
    };
    let Some(status) = status else {
        let _ended = child.kill().and_then(|()| child.wait().map(drop));
        return Err(format!(
            "kubectl has not ended within {} s",
            within.as_secs()
        ));
    };
    let (answer, failure) = printed
        .map_err(|_| "kubectl's answer cannot be read".to_owned())?
        .map_err(|error| format!("kubectl's answer cannot be read: {error}"))?;
    if status.success() {
        return Ok(answer);
    }
    let failure = String::from_utf8_lossy(&failure);
    Err(format!("kubectl: {status}: {}", line(failure.trim_end())))
}

fn read(from: Option<impl Read>, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(most).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_heard_within_its_bounds() {
        let run = |script: &str, within| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            bounded(command, within)
        };
        assert_eq!(run("echo well", WITHIN), Ok(b"well\n".to_vec()));
        let refused = run("echo no >&2; exit 3", WITHIN).unwrap_err();
        assert!(refused.ends_with("3: no"), "{refused}");
        let late = run("exec sleep 600", Duration::from_millis(50)).unwrap_err();
        assert!(late.contains("has not ended"), "{late}");
        let endless = run("exec yes", Duration::from_secs(5));
        assert!(endless.is_err(), "it is ended");
        let missing = bounded(Command::new("/nowhere/kubectl"), WITHIN).unwrap_err();
        assert!(missing.contains("cannot be started"), "{missing}");
    }
}
