//! `plimsoll run --manifests` with a LimitRange and a quota: the real binary, the real kernel, one agent after the
//! other.
//!
//! Needs root and writable cgroups; left out, with a line, where they are missing.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "fixtures/agent.rs"]
mod agent;
mod cgroups;
mod notes;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use agent::Agent;
use plimsoll::host::HostRoot;
use plimsoll::host::cgroup::{CgroupPath, Controller, Version};
use plimsoll::pods;
use plimsoll::serve::control::client::{AskError, ask, ask_overview};
use plimsoll::serve::control::{Answer, Request, SOCKET_FILE};
use plimsoll::serve::overview::{Overview, PodStatus};
use plimsoll_core::kube::qos::QosClass;

const LIMITS: &str = "\
apiVersion: v1
kind: LimitRange
metadata: {name: limits, namespace: team}
spec:
  limits:
  - type: Container
    default: {cpu: 500m, memory: 48Mi}
    defaultRequest: {cpu: 250m, memory: 32Mi}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: compute, namespace: team}
spec:
  hard: {pods: 2, requests.cpu: 1}
";

struct Node {
    dir: tempfile::TempDir,
    cgroup_root: String,
    /// `None`: none runs.
    agent: Option<Agent>,
}

fn start(dir: &Path, cgroup_root: &str) -> Agent {
    let mut agent = Agent::start(dir, cgroup_root, &["--without", "bpf"]);
    agent.wait_for("started");
    agent
}

impl Node {
    fn new(name: &str, files: &[(&str, &str)]) -> Option<Self> {
        let cgroup_root = format!("plimsoll-test-{name}-{}", std::process::id());
        cgroups::writable(&cgroup_root)?;
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pods")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join("pods").join(name), text).unwrap();
        }
        Some(Self {
            agent: Some(start(dir.path(), &cgroup_root)),
            dir,
            cgroup_root,
        })
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.dir.path().join("pods").join(name)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("state").join(SOCKET_FILE)
    }

    /// Waits, for as long as the agent runs, until it says of itself what is wanted.
    fn until(&mut self, what: &str, wanted: impl Fn(&Overview) -> bool) {
        loop {
            // That it runs.
            self.agent.as_mut().unwrap().wait_for("started");
            match ask_overview(&self.socket()) {
                Ok(overview) if wanted(&overview) => return,
                Ok(_) | Err(AskError::Refused(_)) => {}
                Err(error) => println!("{what}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn exec(&self, manifest: &str, script: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command
            .args(["exec", "--cgroup-root", &self.cgroup_root])
            .arg("--state-dir")
            .arg(self.dir.path().join("state"))
            .arg("-f")
            .arg(self.manifest(manifest))
            .args(["--", "sh", "-c", script]);
        command
    }

    fn refused(&self, manifest: &str) -> String {
        let Output { status, stderr, .. } = self.exec(manifest, "exit 0").output().unwrap();
        assert_eq!(status.code(), Some(125));
        String::from_utf8(stderr).unwrap()
    }

    /// What `plimsoll quota` says of a namespace: its exit status and output.
    fn quota(&self, namespace: &str) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["quota", "-n", namespace, "--state-dir"])
            .arg(self.dir.path().join("state"))
            .output()
            .unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), shown)
    }

    /// A pod that runs until it is ended.
    fn run(&mut self, manifest: &str, name: &str) -> Child {
        let mut command = self.exec(manifest, "exec sleep 100000");
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        self.until("it runs", |overview| {
            status(overview, name) == Some(PodStatus::Running)
        });
        child
    }

    /// Killed, as by a crash; and the next one.
    fn crash(&mut self) {
        self.agent = None;
        self.start();
    }

    /// Ended, in order.
    fn stop(&mut self) {
        self.agent.take().unwrap().stop();
    }

    fn start(&mut self) {
        self.agent = Some(start(self.dir.path(), &self.cgroup_root));
    }
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: team}}\nspec: {{terminationGracePeriodSeconds: 1, containers: [{{name: app}}]}}\n"
    )
}

fn status(overview: &Overview, name: &str) -> Option<PodStatus> {
    let name = format!("team/{name}");
    let pod = overview.pods.iter().find(|pod| pod.pod == name);
    pod.map(|pod| pod.status)
}

fn is_refused(overview: &Overview, name: &str) -> bool {
    let name = format!("team/{name}");
    overview.refused.iter().any(|pod| pod.pod == name)
}

/// `pods=2,requests.cpu=500m`
fn used(overview: &Overview) -> String {
    let used = overview.quotas.iter().flat_map(|quota| &quota.used);
    let used: Vec<String> = used
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect();
    used.join(",")
}

/// Who waits for `started` may remove a manifest then: the pod is known, and ends.
#[test]
fn it_has_started_when_the_manifests_are_read() {
    let pods = [("web.yaml", pod("web")), ("db.yaml", pod("db"))];
    let files: Vec<(&str, &str)> = pods.iter().map(|(name, text)| (*name, &text[..])).collect();
    let Some(mut node) = Node::new("started", &files) else {
        return;
    };
    let agent = node.agent.as_mut().unwrap();
    assert_eq!(agent.said("started")[0]["pods"], 2);
    assert_eq!(agent.said("started").len(), 1);
    agent.stop();
}

/// It does not start, and what it would have admitted is not written down.
#[test]
fn a_second_agent_admits_nothing() {
    let files = [("limits.yaml", LIMITS), ("a.yaml", &pod("a"))];
    let Some(mut node) = Node::new("second", &files) else {
        return;
    };
    node.until("it is admitted", |it| status(it, "a").is_some());
    let state = node.dir.path().join("state");
    let before = std::fs::read(state.join("admitted.json")).unwrap();
    let others = node.dir.path().join("others");
    std::fs::create_dir(&others).unwrap();
    std::fs::write(others.join("b.yaml"), pod("b")).unwrap();
    let second = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args([
            "run",
            "--without",
            "bpf",
            "--cgroup-root",
            &node.cgroup_root,
        ])
        .arg("--manifests")
        .arg(&others)
        .arg("--state-dir")
        .arg(&state)
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(
        said.contains("already runs with the state directory"),
        "{said}"
    );
    assert_eq!(
        std::fs::read(state.join("admitted.json")).unwrap(),
        before,
        "what is in use is the first agent's"
    );
    let overview = ask_overview(&node.socket()).unwrap();
    assert_eq!(used(&overview), "pods=1,requests.cpu=250m");
    assert!(status(&overview, "b").is_none());
    node.stop();
}

#[test]
fn a_quota_of_one_machine() {
    let Some(mut node) = Node::new(
        "admission",
        &[
            ("limits.yaml", LIMITS),
            ("a.yaml", &pod("a")),
            ("b.yaml", &pod("b")),
            ("c.yaml", &pod("c")),
        ],
    ) else {
        return;
    };
    let sentence = "pods \"c\" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=2, limited: pods=2";
    node.until("two are admitted", |it| {
        is_refused(it, "c") && status(it, "b").is_some()
    });
    let (mut a, mut b) = (node.run("a.yaml", "a"), node.run("b.yaml", "b"));
    assert!(node.refused("c.yaml").contains(sentence));
    let (status_of_team, shown) = node.quota("team");
    assert_eq!(status_of_team, Some(3), "{shown}");
    for line in [
        "ResourceQuota team/compute",
        "pods             2     2     0",
        "requests.cpu  500m     1  500m",
        "TAKEN BY",
        "pods a    pods=1,requests.cpu=250m",
        sentence,
    ] {
        assert!(shown.contains(line), "no {line:?} in\n{shown}");
    }
    let elsewhere = (Some(0), "no ResourceQuota: nothing is limited\n".to_owned());
    assert_eq!(node.quota("elsewhere"), elsewhere);
    let asked = Request::ExplainEviction {
        signal: None,
        pod: Some("team/c".to_owned()),
    };
    let Err(AskError::Refused(why)) = ask(&node.socket(), &asked) else {
        panic!("a pod that may not run is explained");
    };
    assert!(why.message.contains(sentence), "{why}");
    check_cgroups(&node.cgroup_root, "a");
    let asked = Request::ExplainEviction {
        signal: None,
        pod: Some("team/a".to_owned()),
    };
    let Answer::Eviction(explained) = ask(&node.socket(), &asked).unwrap() else {
        panic!("another answer");
    };
    let near: Vec<_> = explained.quotas[0].nearly_used_up().collect();
    assert_eq!(near[0].0, "pods", "{:?}", explained.quotas);

    // Nothing is counted twice, and nothing is lost.
    node.crash();
    node.until("the same is in use", |it| {
        is_refused(it, "c")
            && status(it, "a") == Some(PodStatus::Running)
            && status(it, "b") == Some(PodStatus::Running)
            && used(it) == "pods=2,requests.cpu=500m"
    });
    assert!(node.refused("c.yaml").contains(sentence));

    // What runs stays, whatever becomes of what was decided.
    std::fs::write(
        node.manifest("limits.yaml"),
        LIMITS.replace("pods: 2", "pods: 1"),
    )
    .unwrap();
    node.until("the quota is lowered", |it| {
        it.quotas
            .iter()
            .any(|quota| quota.hard["pods"].to_string() == "1")
    });
    assert!(a.try_wait().unwrap().is_none() && b.try_wait().unwrap().is_none());
    std::fs::write(node.manifest("limits.yaml"), LIMITS).unwrap();

    // A pod that is removed makes room when it has left.
    std::fs::remove_file(node.manifest("b.yaml")).unwrap();
    node.until("the third is admitted", |it| {
        !is_refused(it, "c") && status(it, "b").is_none() && status(it, "c").is_some()
    });
    b.wait().unwrap();
    let mut c = node.run("c.yaml", "c");
    let before = used(&ask_overview(&node.socket()).unwrap());
    assert_eq!(before, "pods=2,requests.cpu=500m");
    node.stop();
    // One whose manifest goes while no agent runs is ended by the next.
    std::fs::remove_file(node.manifest("c.yaml")).unwrap();
    node.start();
    c.wait().unwrap();
    node.until("it has left", |it| used(it) == "pods=1,requests.cpu=250m");
    assert!(a.try_wait().unwrap().is_none());
    std::fs::remove_file(node.manifest("a.yaml")).unwrap();
    a.wait().unwrap();
    node.until("all have left", |it| used(it) == "pods=0,requests.cpu=0");
    node.stop();
}

/// The defaults of the LimitRange are what the kernel enforces.
fn check_cgroups(cgroup_root: &str, name: &str) {
    let mounts = HostRoot::live().cgroup_mounts().unwrap();
    let root = CgroupPath::new(cgroup_root).unwrap();
    let tier = pods::cgroup::tier_path(&root, QosClass::Burstable).unwrap();
    let app = tier
        .join(&format!("podteam_{name}"))
        .unwrap()
        .join("app")
        .unwrap();
    let control = |controller, v1: &str, v2: &str| {
        let hierarchy = mounts.hierarchy_of(controller).unwrap();
        let file = match hierarchy.version {
            Version::V1 => v1,
            Version::V2 => v2,
        };
        let text = std::fs::read_to_string(hierarchy.dir(&app).join(file)).unwrap();
        (hierarchy.version, text.trim().to_owned())
    };
    let memory = control(Controller::Memory, "memory.limit_in_bytes", "memory.max").1;
    assert_eq!(memory, (48 << 20).to_string());
    let quota = match control(Controller::Cpu, "cpu.cfs_quota_us", "cpu.max") {
        (Version::V1, quota) => quota,
        (Version::V2, quota) => quota.replace(" 100000", ""),
    };
    assert_eq!(quota, "50000");
    if let (Version::V1, shares) = control(Controller::Cpu, "cpu.shares", "cpu.weight") {
        assert_eq!(shares, "256");
    }
}
