//! `plimsoll-agent --kubernetes`, the real binary on real cgroups: a kubelet's tree of this test's own making, and a
//! stand-in for `plimsoll-cluster`.
//!
//! Needs root and writable cgroups, v2 or hybrid. Everything is below a cgroup of its own, which is gone afterwards.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod notes;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use plimsoll::host::HostRoot;
use plimsoll::host::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use plimsoll::host::cpuset::fill_from_above;
use plimsoll::pods::kill::HOLD_FILE;
use plimsoll::pods::names::{Driver, KubeletTree};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::kube::qos::QosClass;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::protocol::cluster_link::PROTOCOL;
use serde_json::{Value, json};

const LEAKY: &str = "1b2c9a00-0000-4000-8000-00000000000a";
const CRITICAL: &str = "1b2c9a00-0000-4000-8000-00000000000b";
const STATIC: &str = "0123456789abcdef0123456789abcdef";
const NODE_CRITICAL: &str = "1b2c9a00-0000-4000-8000-00000000000d";
const UNNAMED: &str = "1b2c9a00-0000-4000-8000-00000000000c";
const LOOK: Duration = Duration::from_millis(2);

/// One scene at a time: each is on the whole machine's memory.
static SCENE: Mutex<()> = Mutex::new(());

/// A threshold that is met on every machine: all its memory. As a percentage that would mean none, and less of it is
/// not met where nothing runs.
fn met() -> String {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let total = meminfo.split_whitespace().nth(1).unwrap();
    format!("memory.available<{total}Ki")
}

fn id(digit: char) -> String {
    std::iter::repeat_n(digit, 64).collect()
}

/// A kubelet's tree.
struct Tree {
    mounts: CgroupMounts,
    root: CgroupPath,
    driver: Driver,
    processes: Vec<Child>,
}

impl Tree {
    /// `None`, and a line, where cgroups cannot be made.
    fn new(driver: Driver) -> Option<Self> {
        let mounts = match HostRoot::live().cgroup_mounts() {
            Ok(mounts) => mounts,
            Err(error) => {
                notes::left_out(error);
                return None;
            }
        };
        let name = format!(
            "plimsoll-test-kubelet-{}-{}",
            driver.name(),
            std::process::id()
        );
        let tree = Self {
            mounts,
            root: CgroupPath::new(&name).unwrap(),
            driver,
            processes: Vec::new(),
        };
        if tree.mounts.unified().is_none() {
            notes::left_out("no cgroup v2 here: nothing can be held");
            return None;
        }
        let kubepods = match driver {
            Driver::Cgroupfs => "kubepods",
            Driver::Systemd => "kubepods.slice",
        };
        for dir in tree.dirs(&tree.root.join(kubepods).unwrap()) {
            if let Err(error) = fs::create_dir_all(dir) {
                notes::left_out(format!("cgroups cannot be made: {error}"));
                return None;
            }
        }
        Some(tree)
    }

    /// In the hierarchy of memory and in the unified one.
    fn dirs(&self, path: &CgroupPath) -> Vec<PathBuf> {
        let memory = self.mounts.hierarchy_of(Controller::Memory).unwrap();
        let mut dirs = vec![memory.dir(path)];
        dirs.push(self.mounts.unified().unwrap().dir(path));
        dirs.dedup();
        dirs
    }

    fn found(&self) -> KubeletTree {
        let tree = KubeletTree::find(&self.mounts, &self.root).unwrap();
        assert_eq!(tree.driver(), self.driver);
        tree
    }

    fn pod(&self, uid: &str) -> CgroupPath {
        self.found()
            .pod(QosClass::BestEffort, &PodUid::from(uid))
            .unwrap()
    }

    fn container(&self, uid: &str, digit: char) -> CgroupPath {
        let name = match self.driver {
            Driver::Cgroupfs => id(digit),
            Driver::Systemd => format!("cri-containerd-{}.scope", id(digit)),
        };
        self.pod(uid).join(&name).unwrap()
    }

    fn make(&self, uid: &str, digits: &str) {
        for digit in digits.chars() {
            for dir in self.dirs(&self.container(uid, digit)) {
                fs::create_dir_all(dir).unwrap();
            }
        }
    }

    /// Starts a process in a container, as a runtime does. Returns its place.
    fn start(&mut self, uid: &str, digit: char) -> usize {
        let process = Command::new("sleep").arg("600").spawn().unwrap();
        for dir in self.dirs(&self.container(uid, digit)) {
            fs::write(dir.join("cgroup.procs"), process.id().to_string()).unwrap();
        }
        self.processes.push(process);
        self.processes.len() - 1
    }

    fn runs(&mut self, process: usize) -> bool {
        self.processes[process].try_wait().unwrap().is_none()
    }

    fn hold_file(&self, uid: &str) -> PathBuf {
        let unified = self.mounts.unified().unwrap();
        unified.dir(&self.pod(uid)).join(HOLD_FILE)
    }

    /// Whether nothing new can start in a pod.
    fn is_held(&self, uid: &str) -> bool {
        fs::read_to_string(self.hold_file(uid)).unwrap().trim() == "0"
    }

    /// Every cgroup and every setting of the tree, but for holds and what moves by itself.
    fn settings(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        for dir in self.dirs(&self.root) {
            walk(&dir, &mut |dir| {
                found.insert(dir.to_owned(), String::new());
                for entry in fs::read_dir(dir).unwrap().flatten() {
                    let name = entry.file_name().into_string().unwrap();
                    let is_setting = [
                        "limit_in_bytes",
                        ".max",
                        ".high",
                        ".low",
                        ".min",
                        ".weight",
                        ".depth",
                        "subtree_control",
                        "oom.group",
                    ];
                    if is_setting.iter().any(|end| name.ends_with(end)) {
                        let text = fs::read_to_string(entry.path()).unwrap_or_default();
                        found.insert(entry.path(), text);
                    }
                }
            });
        }
        found
    }
}

fn walk(dir: &Path, each: &mut dyn FnMut(&Path)) {
    each(dir);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), each);
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.kill().ok();
            process.wait().ok();
        }
        for dir in self.dirs(&self.root) {
            let mut dirs = Vec::new();
            walk(&dir, &mut |dir| dirs.push(dir.to_owned()));
            for dir in dirs.iter().rev() {
                // The kernel may still be at the last process.
                for _ in 0..100 {
                    match fs::remove_dir(dir) {
                        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                            std::thread::sleep(LOOK);
                        }
                        _ => break,
                    }
                }
            }
        }
    }
}

/// `plimsoll-agent`, until it is dropped: what it prints, what it said when it had started, and its warnings so far.
struct Agent(
    Child,
    BufReader<std::process::ChildStdout>,
    Value,
    Vec<String>,
);

impl Agent {
    fn start(dir: &Path, tree: &Tree, options: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_plimsoll-agent"))
            .args([
                "--kubernetes",
                "--output",
                "json",
                "--without",
                "bpf",
                "--cluster-uid",
                "0",
            ])
            .arg("--cgroup-root")
            .arg(tree.root.to_string())
            .arg("--cluster-socket")
            .arg(dir.join("cluster.sock"))
            .arg("--state-dir")
            .arg(dir.join("state"))
            .arg("--kubelet-dir")
            .arg(dir.join("kubelet"))
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut agent = Self(process, output, Value::Null, Vec::new());
        agent.2 = agent.wait_for("started");
        agent
    }

    fn wait_for(&mut self, event: &str) -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.1.read_line(&mut line).unwrap(),
                0,
                "the agent has ended"
            );
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["event"] == "warning" {
                self.3.push(line["text"].as_str().unwrap().to_owned());
            }
            if line["event"] == event {
                return line;
            }
        }
    }

    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        // What it says until its end.
        std::io::copy(&mut self.1, &mut std::io::sink()).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A stand-in for `plimsoll-cluster`.
struct Cluster(UnixStream);

impl Cluster {
    fn connect(dir: &Path) -> Self {
        let mut cluster = Self(UnixStream::connect(dir.join("cluster.sock")).unwrap());
        cluster.say(&json!({"type": "hello", "protocol": PROTOCOL, "node": "n1"}));
        // An agent that sends this client away closes the connection: then this fails, and nothing waits for what will
        // not come.
        assert_eq!(cluster.hear("hello")["protocol"], PROTOCOL);
        cluster
    }

    fn say(&mut self, message: &Value) {
        let bytes = message.to_string().into_bytes();
        let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        self.0.write_all(&[&length, &bytes[..]].concat()).unwrap();
    }

    fn list(&mut self, pods: &[Value]) {
        self.say(&json!({"type": "list"}));
        for pod in pods {
            self.say(&json!({"type": "pod", "pod": pod}));
        }
        self.say(&json!({"type": "listed"}));
    }

    /// Until the node's condition `Degraded` says this.
    fn wait_for_degraded(&mut self, why: &str) {
        loop {
            let heard = self.hear("conditions");
            let mut conditions = heard["conditions"].as_array().unwrap().iter();
            let degraded = conditions.find(|one| one["condition"] == "degraded");
            let says = |one: &Value| one["message"].as_str().unwrap().contains(why);
            if degraded.is_some_and(|one| one["status"] == true && says(one)) {
                return;
            }
        }
    }

    fn hear(&mut self, kind: &str) -> Value {
        loop {
            let mut length = [0; 4];
            self.0.read_exact(&mut length).unwrap();
            let mut frame = vec![0; u32::from_le_bytes(length) as usize];
            self.0.read_exact(&mut frame).unwrap();
            let message: Value = serde_json::from_slice(&frame).unwrap();
            if message["type"] == kind {
                return message;
            }
        }
    }
}

fn pod(name: &str, uid: &str, digit: char, spec: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "app"}]},
        "status": {"qosClass": "BestEffort", "containerStatuses": [
            {"name": "app", "containerID": format!("containerd://{}", id(digit)), "state": {"running": {}}},
        ]},
    });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// Until the agent knows a pod by its name.
fn wait_until_named(dir: &Path, name: &str) {
    loop {
        let top = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["top", "--once", "--output", "json", "--state-dir"])
            .arg(dir.join("state"))
            .output()
            .unwrap();
        if String::from_utf8_lossy(&top.stdout).contains(name) {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::sleep(LOOK);
    }
}

fn hard_eviction(driver: Driver) {
    let _scene = SCENE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut tree) = Tree::new(driver) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    // The sandbox is 0, the container 1.
    for (uid, digits) in [(LEAKY, "01"), (CRITICAL, "23"), (STATIC, "45")] {
        tree.make(uid, digits);
    }
    let agent = Agent::start(dir.path(), &tree, &["--eviction-hard", &met()]);
    let mut cluster = Cluster::connect(dir.path());
    let critical = json!({"priority": 2_000_001_000, "priorityClassName": "system-node-critical"});
    cluster.list(&[
        pod("leaky", LEAKY, '1', &json!({})),
        pod("critical", CRITICAL, '3', &critical),
    ]);
    wait_until_named(dir.path(), "default/leaky");
    wait_until_named(dir.path(), "default/critical");
    let before = tree.settings();

    // The others run first, so that one of them would be taken if it could be.
    let others = [
        tree.start(CRITICAL, '2'),
        tree.start(CRITICAL, '3'),
        tree.start(STATIC, '4'),
        tree.start(STATIC, '5'),
    ];
    let sandbox = tree.start(LEAKY, '0');
    let app = tree.start(LEAKY, '1');
    let status = tree.processes[app].wait().unwrap();
    assert_eq!(status.signal(), Some(9), "no SIGTERM at a hard threshold");
    // Its leaders are killed before what waits for a lock.
    wait_until(|| tree.is_held(LEAKY));
    let again = tree
        .mounts
        .unified()
        .unwrap()
        .dir(&tree.container(LEAKY, '9'));
    let refused = fs::create_dir(again).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(11), "EAGAIN: {refused}");

    let intent = cluster.hear("evicted")["intent"].clone();
    assert_eq!(
        (&intent["uid"], &intent["name"]),
        (&json!(LEAKY), &json!("leaky"))
    );
    assert_eq!(
        (&intent["isHeld"], &intent["graceS"]),
        (&json!(true), &json!(0))
    );
    let message = intent["message"].as_str().unwrap();
    let sentence = "The node was low on resource: memory. Threshold quantity: ";
    assert!(
        message.starts_with(sentence) && message.contains("Ranked "),
        "{message}"
    );
    let file = dir.path().join("state/intents.jsonl");
    assert!(fs::read_to_string(&file).unwrap().contains(LEAKY));
    let ledger = dir.path().join("state/holds.jsonl");
    assert!(fs::read_to_string(&ledger).unwrap().contains(HOLD_FILE));

    // The agent is replaced: the pod stays held, and its eviction is sent again.
    drop(cluster);
    agent.stop();
    assert!(tree.runs(sandbox), "the sandbox was ended");
    assert!(tree.is_held(LEAKY), "the hold was lifted");
    let mut agent = Agent::start(dir.path(), &tree, &["--eviction-hard", &met()]);
    let mut cluster = Cluster::connect(dir.path());
    assert_eq!(cluster.hear("evicted")["intent"], intent);
    assert!(tree.is_held(LEAKY), "the hold was lifted");
    cluster.list(&[
        pod("leaky", LEAKY, '1', &json!({})),
        pod("critical", CRITICAL, '3', &critical),
    ]);
    agent.wait_for("decision");
    cluster.say(&json!({"type": "settled", "uid": LEAKY, "how": "shown"}));
    wait_until(|| {
        let text = fs::read_to_string(&file).unwrap();
        text.is_empty() || text.contains("struck")
    });
    for other in others {
        assert!(tree.runs(other), "a critical or static pod was ended");
    }
    assert_eq!(
        tree.settings(),
        before,
        "a setting or a directory of the kubelet's was changed"
    );

    // It has gone from the API: nothing holds it any more.
    cluster.say(&json!({"type": "pod_gone", "uid": LEAKY}));
    wait_until(|| !tree.is_held(LEAKY));
    agent.stop();
}

/// Nobody has to ask for it.
#[test]
fn a_kubelet_that_evicts_first_is_named_from_its_own_configuration() {
    let _scene = SCENE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(tree) = Tree::new(Driver::Cgroupfs) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {memory.available: 2Mi}\n";
    fs::create_dir(dir.path().join("kubelet")).unwrap();
    fs::write(dir.path().join("kubelet/config.yaml"), text).unwrap();
    let options = ["--eviction-hard", "memory.available<1Mi"];
    let agent = Agent::start(dir.path(), &tree, &options);
    let named = |text: &&String| text.contains("(2 Mi) is met no later than plimsoll's");
    assert_eq!(agent.3.iter().filter(named).count(), 1, "{:?}", agent.3);
    agent.stop();
}

/// A mount of DirectoryOrCreate makes that directory where the kubelet has another one.
#[test]
fn a_directory_that_is_no_kubelets_is_among_what_the_node_lacks() {
    let _scene = SCENE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(tree) = Tree::new(Driver::Cgroupfs) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for (made, is_lost) in [("kubelet", true), ("kubelet/pods", false)] {
        fs::create_dir(dir.path().join(made)).unwrap();
        let options = ["--eviction-hard", "memory.available<1Mi"];
        let agent = Agent::start(dir.path(), &tree, &options);
        let lost = agent.2["lost"].as_array().unwrap();
        let is_nodefs = |text: &Value| text.as_str().unwrap().starts_with("nodefs: ");
        assert_eq!(lost.iter().any(is_nodefs), is_lost, "{made}: {lost:?}");
        agent.stop();
    }
}

#[test]
fn a_hard_threshold_holds_kills_the_container_and_reports_with_cgroupfs() {
    hard_eviction(Driver::Cgroupfs);
}

#[test]
fn a_hard_threshold_holds_kills_the_container_and_reports_with_systemd() {
    hard_eviction(Driver::Systemd);
}

#[test]
fn a_soft_threshold_reports_first_and_ends_the_pod_itself_when_nothing_acknowledges() {
    let _scene = SCENE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut tree) = Tree::new(Driver::Systemd) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    tree.make(LEAKY, "01");
    let soft = met();
    let options = [
        "--eviction-hard",
        "memory.available<1Ki",
        "--eviction-soft",
        &soft,
        "--eviction-soft-grace-period",
        "memory.available=100ms",
        "--eviction-max-pod-grace-period",
        "600",
    ];
    let agent = Agent::start(dir.path(), &tree, &options);
    let mut cluster = Cluster::connect(dir.path());
    let grace = json!({"terminationGracePeriodSeconds": 300});
    cluster.list(&[pod("leaky", LEAKY, '1', &grace)]);
    wait_until_named(dir.path(), "default/leaky");
    let sandbox = tree.start(LEAKY, '0');
    let app = tree.start(LEAKY, '1');
    let intent = cluster.hear("evicted")["intent"].clone();
    assert_eq!(
        (&intent["graceS"], &intent["isHeld"]),
        (&json!(300), &json!(false))
    );
    // Said before anything is done: the kubelet runs the hooks. It does not, here.
    let status = tree.processes[app].wait().unwrap();
    assert_eq!(status.signal(), Some(15));
    // Another thread writes it.
    wait_until(|| tree.is_held(LEAKY));
    agent.stop();
    assert!(tree.runs(sandbox), "the sandbox was ended");
}

#[test]
fn without_the_api_pods_are_known_by_their_cgroups_and_a_second_tree_is_an_error() {
    let _scene = SCENE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut tree) = Tree::new(Driver::Systemd) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for (uid, digits) in [
        (UNNAMED, "01"),
        (CRITICAL, "23"),
        (STATIC, "45"),
        (NODE_CRITICAL, "67"),
    ] {
        tree.make(uid, digits);
    }
    let mut others = vec![
        tree.start(STATIC, '4'),
        tree.start(STATIC, '5'),
        tree.start(CRITICAL, '3'),
    ];
    // As a kubelet has it for what is node-critical, of any class.
    let lowered = tree.start(NODE_CRITICAL, '7');
    let adj = format!("/proc/{}/oom_score_adj", tree.processes[lowered].id());
    match fs::write(adj, "-997") {
        Ok(()) => others.push(lowered),
        Err(error) => {
            notes::left_out(format!("a node-critical pod without a name: {error}"));
            tree.processes[lowered].kill().unwrap();
        }
    }
    let agent = Agent::start(
        dir.path(),
        &tree,
        &["--eviction-hard", "memory.available<1Ki"],
    );
    wait_until_named(dir.path(), UNNAMED);
    // The API server says once that a pod is critical, and is then away.
    let mut cluster = Cluster::connect(dir.path());
    let critical =
        json!({"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"});
    cluster.list(&[pod("critical", CRITICAL, '3', &critical)]);
    wait_until_named(dir.path(), "default/critical");
    drop(cluster);
    agent.stop();
    let before = tree.settings();
    let mut agent = Agent::start(dir.path(), &tree, &["--eviction-hard", &met()]);
    let app = tree.start(UNNAMED, '1');
    let sandbox = tree.start(UNNAMED, '0');
    assert_eq!(tree.processes[app].wait().unwrap().signal(), Some(9));
    let decision = agent.wait_for("eviction_finished");
    assert_eq!(decision["uid"], UNNAMED);
    // Of the pod's cgroups the runtime has made that of the sandbox first.
    assert!(tree.runs(sandbox), "the sandbox was ended");
    for other in others {
        assert!(tree.runs(other), "a static or critical pod was ended");
    }
    assert_eq!(tree.settings(), before);
    agent.stop();

    for dir in tree.dirs(&tree.root.join(&format!("kubepods/pod{LEAKY}")).unwrap()) {
        fs::create_dir_all(dir).unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-agent"))
        .args(["--kubernetes", "--cgroup-root", &tree.root.to_string()])
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        error.contains("kubepods.slice and ") || error.contains("kubepods and "),
        "{error}"
    );
}

/// A pod's containers that a runtime has made, in the hierarchy of cpusets too; `None`, and a line, where there is
/// none.
fn placeable(tree: &Tree, uid: &str, digits: &str) -> Option<Vec<PathBuf>> {
    let Ok(cpusets) = tree.mounts.hierarchy_of(Controller::Cpuset) else {
        notes::left_out("no hierarchy has the cpuset controller");
        return None;
    };
    let pod = tree.found().pod(QosClass::Guaranteed, &PodUid::from(uid));
    let pod = pod.unwrap();
    let made = digits.chars().map(|digit| {
        let path = pod.join(&id(digit)).unwrap();
        for dir in tree.dirs(&path).into_iter().chain([cpusets.dir(&path)]) {
            fs::create_dir_all(dir).unwrap();
        }
        fill_from_above(cpusets, &path).unwrap();
        cpusets.dir(&path)
    });
    Some(made.collect())
}

fn cpus(container: &Path) -> String {
    // Where the controller is not enabled yet there is none.
    let text = fs::read_to_string(container.join("cpuset.cpus")).unwrap_or_default();
    text.trim().to_owned()
}

fn kubelet_says(dir: &Path, policy: &str) {
    fs::create_dir_all(dir.join("kubelet")).unwrap();
    let text = format!(r#"{{"policyName":"{policy}","defaultCpuSet":"","checksum":1}}"#);
    fs::write(dir.join("kubelet/cpu_manager_state"), text).unwrap();
}

#[test]
fn a_runtimes_containers_are_placed_stay_there_and_get_back_what_they_had() {
    let _scene = SCENE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(tree) = Tree::new(Driver::Cgroupfs) else {
        return;
    };
    let Some(made) = placeable(&tree, LEAKY, "01") else {
        return;
    };
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online = CpuSet::parse(&online).unwrap();
    let (Some(first), Some(second)) = (online.iter().next(), online.iter().nth(1)) else {
        notes::left_out("a second CPU");
        remove_cpusets(&tree);
        return;
    };
    let (own, rest) = (CpuSet::of(second), online - CpuSet::of(second));
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: \"{first}\"\n"
    );
    fs::write(&config, text).unwrap();
    let options = ["--config", config.to_str().unwrap()];
    let amounts = json!({"cpu": "1", "memory": "64Mi"});
    let mut spec = pod("exact", LEAKY, '1', &json!({}));
    spec["spec"]["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    spec["status"]["qosClass"] = json!("Guaranteed");
    let before: Vec<String> = made.iter().map(|made| cpus(made)).collect();
    let are = |wanted: [CpuSet; 2]| {
        made.iter()
            .map(|made| cpus(made))
            .eq(wanted.map(|set| set.to_string()))
    };

    kubelet_says(dir.path(), "none");
    let mut agent = Agent::start(dir.path(), &tree, &options);
    let mut cluster = Cluster::connect(dir.path());
    let began = Instant::now();
    cluster.list(&[spec.clone()]);
    wait_until(|| are([rest, own]));
    println!(
        "from the API's word to the container's CPUs: {:?}",
        began.elapsed()
    );
    drop(cluster);
    agent.0.kill().unwrap();
    agent.0.wait().unwrap();

    // The next one moves nobody, before and after the API has named the pod.
    let agent = Agent::start(dir.path(), &tree, &options);
    assert!(are([rest, own]));
    let mut cluster = Cluster::connect(dir.path());
    cluster.list(&[spec.clone()]);
    wait_until_named(dir.path(), "default/exact");
    assert!(are([rest, own]));
    // A container that ended for good holds nothing.
    cluster.say(&json!({"type": "pod", "pod": spec, "is_leaving": true}));
    wait_until(|| are([online, online]));
    drop(cluster);
    agent.stop();

    // Switched off: as it was before.
    let agent = Agent::start(dir.path(), &tree, &[]);
    assert!(made.iter().map(|made| cpus(made)).eq(before.clone()));
    agent.stop();

    // Scenario 34: the kubelet's own, until its policy changes.
    kubelet_says(dir.path(), "static");
    let listen = free_address();
    let agent = Agent::start(
        dir.path(),
        &tree,
        &[&options[..], &["--listen", &listen]].concat(),
    );
    assert_eq!(metric(&listen, "plimsoll_placement_active"), "0");
    let mut cluster = Cluster::connect(dir.path());
    cluster.wait_for_degraded("the kubelet manages cpusets itself");
    cluster.list(&[spec]);
    wait_until_named(dir.path(), "default/exact");
    assert!(made.iter().map(|made| cpus(made)).eq(before));
    assert_eq!(metric(&listen, "plimsoll_placement_active"), "0");
    kubelet_says(dir.path(), "none");
    wait_until(|| are([rest, own]));
    wait_until(|| metric(&listen, "plimsoll_placement_active") == "1");
    agent.stop();
    remove_cpusets(&tree);
}

/// A kubelet writes the set of its pods at its start: CPUs that come later are outside of it until it is started again.
#[test]
fn cpus_outside_of_the_kubelets_set_are_given_to_nobody_until_they_are_inside() {
    let _scene = SCENE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(tree) = Tree::new(Driver::Cgroupfs) else {
        return;
    };
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online = CpuSet::parse(&online).unwrap();
    let (Some(first), Some(second)) = (online.iter().next(), online.iter().nth(1)) else {
        notes::left_out("a second CPU");
        return;
    };
    let (own, rest) = (CpuSet::of(second), online - CpuSet::of(second));
    let narrow = CpuSet::of(first);
    let Some(kubepods) = with_set(&tree, narrow) else {
        return;
    };
    let Some(made) = placeable(&tree, LEAKY, "01") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    kubelet_says(dir.path(), "none");
    let config = dir.path().join("config.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: \"{first}\"\n"
    );
    fs::write(&config, text).unwrap();
    let listen = free_address();
    let options = ["--config", config.to_str().unwrap(), "--listen", &listen];
    let agent = Agent::start(dir.path(), &tree, &options);
    let mut cluster = Cluster::connect(dir.path());
    cluster.list(&[]);
    let are = |wanted: [CpuSet; 2]| {
        made.iter()
            .map(|made| cpus(made))
            .eq(wanted.map(|set| set.to_string()))
    };
    wait_until(|| are([narrow, narrow]));
    let outside = (online - narrow).len().to_string();
    wait_until(|| metric(&listen, "plimsoll_placement_cpus_outside") == outside);

    // On v1 its pod has the CPUs that there were when it was made.
    fs::write(kubepods.join("cpuset.cpus"), online.to_string()).unwrap();
    wait_until(|| metric(&listen, "plimsoll_placement_cpus_outside") == "0");
    let cpusets = tree.mounts.hierarchy_of(Controller::Cpuset).unwrap();
    let pool = match cpusets.version {
        Version::V1 => narrow,
        Version::V2 => online,
    };
    wait_until(|| are([pool, pool]));
    assert_eq!(metric(&listen, "plimsoll_placement_failed"), "0");

    // As of a pod that is made anew.
    if cpusets.version == Version::V1 {
        let pod = made[0].parent().unwrap();
        fs::write(pod.join("cpuset.cpus"), online.to_string()).unwrap();
    }
    let amounts = json!({"cpu": "1", "memory": "64Mi"});
    let mut spec = pod("exact", LEAKY, '1', &json!({}));
    spec["spec"]["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    spec["status"]["qosClass"] = json!("Guaranteed");
    cluster.say(&json!({"type": "pod", "pod": spec}));
    wait_until(|| are([rest, own]));
    agent.stop();
    remove_cpusets(&tree);
}

/// `kubepods` with this set; `None`, and a line, where it can have none.
fn with_set(tree: &Tree, cpus: CpuSet) -> Option<PathBuf> {
    let Ok(cpusets) = tree.mounts.hierarchy_of(Controller::Cpuset) else {
        notes::left_out("no hierarchy has the cpuset controller");
        return None;
    };
    let path = tree.found().kubepods().clone();
    let dir = cpusets.dir(&path);
    fs::create_dir_all(&dir).unwrap();
    fill_from_above(cpusets, &path).unwrap();
    for above in dir.ancestors().skip(1).take(path.lineage().len()) {
        // v2; one that has it already takes it again.
        let _absent = fs::write(above.join("cgroup.subtree_control"), "+cpuset");
    }
    if let Err(error) = fs::write(dir.join("cpuset.cpus"), cpus.to_string()) {
        notes::left_out(format!("kubepods has no cpuset: {error}"));
        remove_cpusets(tree);
        return None;
    }
    Some(dir)
}

/// Nobody listens there.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// The value of a metric without labels; empty where it is absent.
fn metric(address: &str, name: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let mut lines = page.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(series, _)| *series == name);
    found.map_or_else(String::new, |(_, value)| value.to_owned())
}

fn remove_cpusets(tree: &Tree) {
    let cpusets = tree.mounts.hierarchy_of(Controller::Cpuset).unwrap();
    let mut dirs = Vec::new();
    walk(&cpusets.dir(&tree.root), &mut |dir| {
        dirs.push(dir.to_owned())
    });
    for dir in dirs.iter().rev() {
        fs::remove_dir(dir).ok();
    }
}
