//! A pod that its CPU limit throttles gets burst, on a real kernel by the real binary: it is explained, and put back
//! when the agent ends, and by the next one when it was killed. And a BestEffort pod is held back while another waits.
//!
//! Needs root and writable cgroups; left out, with a line, where they are missing.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod cgroups;
mod notes;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll::host::CgroupMounts;
use plimsoll::host::cgroup::{CgroupPath, Controller, Version};
use serde_json::Value;

const PODS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: tight}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 50m}, requests: {cpu: 10m}}
---
apiVersion: v1
kind: Pod
metadata: {name: first, annotations: {plimsoll.dev/latency-critical: \"true\"}}
spec:
  containers:
  - name: app
    resources: {requests: {cpu: 10m}}
---
apiVersion: v1
kind: Pod
metadata: {name: batch}
spec:
  containers: [{name: app}]
";

/// Nobody's neighbours on this machine may keep the guard closed.
const BURST: &str =
    "plimsoll: {cpuBurst: {enabled: true, nodeUsePercent: 100, waitPercent: 100}}\n";
const SUPPRESS: &str =
    "plimsoll: {cpuSuppress: {enabled: true, waitPercent: 1, floorMilliCPU: 10}}\n";
const OFF: &str = "plimsoll: {}\n";
const SPIN: &str = "while :; do :; done";

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    eprintln!("waits until {what}");
    while !done() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Killed when dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

struct Agent {
    process: Guard,
    lines: Arc<Mutex<Vec<Value>>>,
}

impl Agent {
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.process.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert!(self.process.0.wait().unwrap().success());
    }

    /// Waits until it has decided so about a pod.
    fn decides(&self, decision: &str, pod: &str) -> Value {
        let mut found = Value::Null;
        wait(&format!("no {decision} of {pod}"), || {
            let lines = self.lines.lock().unwrap();
            let is_it =
                |line: &&Value| line["decision"]["decision"] == decision && line["pod"] == pod;
            found = lines.iter().find(is_it).cloned().unwrap_or_default();
            !found.is_null()
        });
        found
    }
}

struct Node {
    dir: tempfile::TempDir,
    cgroup_root: String,
    mounts: CgroupMounts,
    pods: Vec<Guard>,
}

impl Node {
    /// `None`, and a line, where cgroups cannot be made or do not account CPU time.
    fn new(name: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pods")).unwrap();
        std::fs::write(dir.path().join("pods/pods.yaml"), PODS).unwrap();
        let cgroup_root = format!("plimsoll-test-cpu-{name}-{}", std::process::id());
        let mounts = cgroups::writable(&cgroup_root)?;
        Some(Self {
            dir,
            cgroup_root,
            mounts,
            pods: Vec::new(),
        })
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command
            .arg(what)
            .arg("--state-dir")
            .arg(self.dir.path().join("state"));
        command
    }

    fn agent(&self, config: &str) -> Agent {
        let file = self.dir.path().join("config.yaml");
        std::fs::write(&file, config).unwrap();
        let mut process = self
            .command("run")
            .arg("--manifests")
            .arg(self.dir.path().join("pods"))
            .arg("--config")
            .arg(file)
            .args(["--cgroup-root", &self.cgroup_root, "--output", "json"])
            // Nobody is to be evicted for what other tests do to this machine.
            .args(["--eviction-hard", "memory.available<1Ki"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::<Value>::new()));
        let (output, sink) = (process.stdout.take().unwrap(), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let line = serde_json::from_str(&line.unwrap()).unwrap();
                sink.lock().unwrap().push(line);
            }
        });
        let agent = Agent {
            process: Guard(process),
            lines,
        };
        wait("the agent does not start", || {
            let lines = agent.lines.lock().unwrap();
            lines.iter().any(|line| line["event"] == "started")
        });
        agent
    }

    /// Starts a pod that computes without end.
    fn spin(&mut self, pod: &str) {
        let exec = self
            .command("exec")
            .args(["--pod", pod, "--cgroup-root", &self.cgroup_root, "-f"])
            .arg(self.dir.path().join("pods/pods.yaml"))
            .args(["--", "sh", "-c", SPIN])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.pods.push(Guard(exec));
    }

    /// The quota or burst of a pod's own cgroup, as this host calls it.
    fn file(&self, pod: &str, burst: bool) -> PathBuf {
        let hierarchy = self.mounts.hierarchy_of(Controller::Cpu).unwrap();
        let name = match (hierarchy.version, burst) {
            (Version::V2, true) => "cpu.max.burst",
            (Version::V2, false) => "cpu.max",
            (Version::V1, true) => "cpu.cfs_burst_us",
            (Version::V1, false) => "cpu.cfs_quota_us",
        };
        let path = CgroupPath::new(&format!("{}/kubepods/{pod}", self.cgroup_root)).unwrap();
        hierarchy.dir(&path).join(name)
    }

    /// Ends the pods; an agent that ends then leaves nothing of them.
    fn clear(&mut self, agent: Agent) {
        self.pods.clear();
        agent.stop();
        let hierarchy = self.mounts.hierarchy_of(Controller::Cpu).unwrap();
        let root = CgroupPath::new(&self.cgroup_root).unwrap();
        assert!(!hierarchy.has(&root), "{} is left", self.cgroup_root);
    }

    fn explain(&self, arguments: &[&str]) -> Output {
        let output = self
            .command("explain")
            .arg("throttling")
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        output
    }
}

fn number(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_throttled_pod_gets_burst_and_gives_it_back() {
    let Some(mut node) = Node::new("burst") else {
        return;
    };
    let agent = node.agent(BURST);
    node.spin("tight");
    let (own, container) = (
        node.file("burstable/poddefault_tight", true),
        node.file("burstable/poddefault_tight/app", true),
    );
    let given = agent.decides("set_cpu", "default/tight");
    assert_eq!(given["decision"]["us"], 5000, "{given}");
    assert_eq!(given["decision"]["why"]["because"], "throttled", "{given}");
    for path in [&own, &container] {
        wait("the burst is not written", || number(path) == "5000");
    }
    // What is explained is the newest reading: a second later it has the burst.
    let mut app = Value::Null;
    wait("the burst is not explained", || {
        let told = node.explain(&["tight", "--output", "json"]).stdout;
        let mut told: Value = serde_json::from_slice(&told).unwrap();
        app = told["cgroups"][1].take();
        app["burstUs"] == 5000
    });
    assert_eq!(app["container"], "app", "{app}");
    assert_eq!(app["ownQuotaUs"], 5000, "{app}");
    let verdict = app["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("given more: throttled in"), "{app}");
    let text = String::from_utf8(node.explain(&[]).stdout).unwrap();
    assert!(
        text.contains("default/tight") && text.contains("cpuSuppress is off"),
        "{text}"
    );
    agent.stop();
    assert_eq!((number(&own), number(&container)), ("0".into(), "0".into()));

    let mut agent = node.agent(BURST);
    wait("the burst is not written again", || {
        number(&container) == "5000"
    });
    agent.process.0.kill().unwrap();
    agent.process.0.wait().unwrap();
    assert_eq!(
        number(&container),
        "5000",
        "killed too late: the test tests nothing"
    );
    let agent = node.agent(OFF);
    assert_eq!((number(&own), number(&container)), ("0".into(), "0".into()));
    node.clear(agent);
}

#[test]
fn best_effort_is_held_back_while_another_waits() {
    let Some(mut node) = Node::new("suppress") else {
        return;
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    let agent = node.agent(SUPPRESS);
    // More than there are CPUs: one of them waits.
    for _ in 0..=cpus {
        node.spin("batch");
    }
    node.spin("first");
    let held = agent.decides("set_cpu", "default/batch");
    assert_eq!(held["decision"]["why"]["because"], "others_wait", "{held}");
    assert_eq!(
        held["decision"]["why"]["waiter"]["pod"], "default/first",
        "{held}"
    );
    let quota = node.file("besteffort/poddefault_batch", false);
    wait("no quota is written", || {
        number(&quota).parse::<u64>().is_ok()
    });
    agent.stop();
    let now = number(&quota);
    assert!(["max", "-1"].contains(&&*now), "{now}");
    let agent = node.agent(OFF);
    node.clear(agent);
}
