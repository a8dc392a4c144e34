//! `plimsoll-agent` places containers near to the devices that a kubelet has given to them, end to end: this test in
//! the place of the kubelet's PodResources and of `plimsoll-cluster`, the real `plimsoll-runtime` between, cpusets of
//! real cgroups (v1 or v2).
//!
//! This machine may have one NUMA node: the agent is shown two, in a mount namespace of its own. The last CPU is on
//! node 1, all others on node 0, the first is reserved. What is waited for is progress.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![expect(dead_code, reason = "of the stand-in a part is needed here")]

#[path = "../src/tests/stand_in.rs"]
mod stand_in;
mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::protocol::cluster_link::{FRAMING, PROTOCOL, ToAgent};
// Where the stand-in looks for them.
use plimsoll_runtime::interface;
use plimsoll_runtime::interface::pod_resources as messages;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::{Value, json};

use stand_in::{Answer, StandIn, sound};
use support::{Cgroup, notes};

const POLL: Duration = Duration::from_millis(5);
const NODES: &str = "/sys/devices/system/node";
const NAME: &str = "web";

/// A directory like that of this machine's nodes, with these CPUs on node 0 and on node 1.
fn two_nodes(cpus: [CpuSet; 2]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("online"), "0-1\n").unwrap();
    for (id, (cpus, distances)) in cpus.into_iter().zip(["10 20\n", "20 10\n"]).enumerate() {
        let node = dir.path().join(format!("node{id}"));
        fs::create_dir(&node).unwrap();
        let mut files = vec![
            ("cpulist", format!("{cpus}\n")),
            ("distance", distances.to_owned()),
        ];
        for name in ["meminfo", "vmstat"] {
            if let Ok(text) = fs::read_to_string(format!("{NODES}/node0/{name}")) {
                files.push((name, text.replace("Node 0 ", &format!("Node {id} "))));
            }
        }
        for (name, text) in files {
            fs::write(node.join(name), text).unwrap();
        }
    }
    dir
}

/// The directories of a cgroup: in the hierarchies of memory and of cpusets, and in the unified one.
fn dirs(cgroup: &str) -> Vec<PathBuf> {
    let mounts = ["memory", "cpuset", "unified", ""].map(|it| Path::new("/sys/fs/cgroup").join(it));
    let is_mount = |dir: &&PathBuf| dir.join("cgroup.procs").exists();
    let mounts = mounts.iter().filter(is_mount);
    mounts.map(|mount| mount.join(&cgroup[1..])).collect()
}

/// Makes it as a runtime does: on the CPUs of the cgroup above.
fn make(cgroup: &str) -> std::io::Result<()> {
    for dir in dirs(cgroup) {
        let above = dir.parent().unwrap();
        // v2. A hierarchy without these controllers says so.
        let _none = fs::write(above.join("cgroup.subtree_control"), "+cpuset +memory");
        fs::create_dir_all(&dir)?;
        for name in ["cpuset.mems", "cpuset.cpus"] {
            if dir.join("cpuset.sched_load_balance").exists() {
                fs::write(dir.join(name), fs::read_to_string(above.join(name))?)?;
            }
        }
    }
    Ok(())
}

/// A kubelet that says whose device is on which NUMA node.
struct Kubelet {
    stand_in: StandIn,
    given: Arc<Mutex<Option<i64>>>,
    lists: Arc<AtomicU32>,
}

fn gpu(node: i64) -> messages::ContainerDevices {
    messages::ContainerDevices {
        resource_name: "x/gpu".to_owned(),
        device_ids: vec![format!("g{node}")],
        topology: Some(messages::TopologyInfo {
            nodes: vec![messages::NumaNode { id: node }],
        }),
    }
}

fn answer(path: &str, given: Option<i64>) -> Answer {
    if path.ends_with("GetAllocatableResources") {
        return sound(&messages::AllocatableResourcesResponse {
            devices: vec![gpu(0), gpu(1)],
            ..Default::default()
        });
    }
    let pod = |node| messages::PodResources {
        name: NAME.to_owned(),
        namespace: "default".to_owned(),
        containers: vec![messages::ContainerResources {
            name: "own".to_owned(),
            devices: vec![gpu(node)],
            ..Default::default()
        }],
    };
    sound(&messages::ListPodResourcesResponse {
        pod_resources: given.into_iter().map(pod).collect(),
    })
}

impl Kubelet {
    fn start() -> Self {
        let given = Arc::new(Mutex::new(None));
        let lists = Arc::new(AtomicU32::new(0));
        let (of_answers, counted) = (Arc::clone(&given), Arc::clone(&lists));
        let stand_in = StandIn::start(move |path, _| {
            counted.fetch_add(u32::from(path.ends_with("/List")), Ordering::SeqCst);
            answer(path, *of_answers.lock().unwrap())
        });
        Self {
            stand_in,
            given,
            lists,
        }
    }

    /// The pod with the name has the device of this node from now on.
    fn gives(&self, node: i64) {
        *self.given.lock().unwrap() = Some(node);
    }

    /// Until it has been asked so often.
    async fn is_asked(&self, times: u32) {
        let until = self.lists.load(Ordering::SeqCst) + times;
        while self.lists.load(Ordering::SeqCst) < until {
            tokio::time::sleep(POLL).await;
        }
    }
}

/// The next of the agent's frames.
fn report(reports: &mut UnixStream) -> Option<Value> {
    let mut length = [0; 4];
    reports.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    reports.read_exact(&mut frame).ok()?;
    Some(serde_json::from_slice(&frame).unwrap())
}

/// How many CPUs of a zone may be given, and how many no pod has.
fn cpus_of(zones: &Value, zone: usize) -> (u64, u64) {
    let cpus = &zones["zones"][zone]["resources"]["cpu"];
    let amount = |name: &str| cpus[name].as_u64().unwrap_or(u64::MAX);
    (amount("allocatable"), amount("available"))
}

struct Agent {
    process: Child,
    cluster: UnixStream,
    output: Arc<Mutex<String>>,
    /// What NUMA nodes have left, as it has said last.
    zones: Arc<Mutex<Value>>,
    _dirs: [tempfile::TempDir; 2],
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _gone = kill_process(Pid::from_child(&self.process), Signal::INT);
        let _gone = self.process.wait();
    }
}

impl Agent {
    fn start(program: &Path, root: &str, kubelet: &Kubelet, nodes: tempfile::TempDir) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let state = r#"{"policyName":"none","defaultCpuSet":"","checksum":0}"#;
        fs::write(at("cpu_manager_state"), state).unwrap();
        let first = online().first().unwrap();
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\n\
             topologyManagerPolicy: restricted\nreservedSystemCPUs: \"{first}\"\n"
        );
        fs::write(at("config.yaml"), config).unwrap();
        let bind = format!(r#"mount --bind "$0" {NODES} && exec "$@""#);
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &bind])
            .arg(nodes.path())
            .arg(program)
            .args(["--kubernetes", "--without", "bpf", "--cluster-uid", "0"])
            .arg("--node-resource-topology")
            // Whatever this machine's disks have left.
            .args(["--eviction-hard", "memory.available<1Mi"])
            .args(["--cgroup-root", root, "--config"])
            .arg(at("config.yaml"))
            .arg("--cluster-socket")
            .arg(at("cluster.sock"))
            .arg("--state-dir")
            .arg(at("state"))
            .arg("--kubelet-dir")
            .arg(dir.path())
            .arg("--pod-resources")
            .arg(kubelet.stand_in.socket())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = Arc::new(Mutex::new(String::new()));
        let (said, lines) = (Arc::clone(&output), process.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                println!("{line}");
                said.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let cluster = loop {
            match UnixStream::connect(at("cluster.sock")) {
                Ok(cluster) => break cluster,
                Err(_) => std::thread::sleep(POLL),
            }
            assert_eq!(process.try_wait().unwrap(), None, "the agent has ended");
        };
        let zones = Arc::new(Mutex::new(Value::Null));
        let (newest, mut reports) = (Arc::clone(&zones), cluster.try_clone().unwrap());
        std::thread::spawn(move || {
            while let Some(mut report) = report(&mut reports) {
                if report["type"] == "node_topology" {
                    *newest.lock().unwrap() = report["topology"].take();
                }
            }
        });
        let mut agent = Self {
            process,
            cluster,
            output,
            zones,
            _dirs: [dir, nodes],
        };
        let node = "node".to_owned();
        let protocol = PROTOCOL;
        agent.say(&ToAgent::Hello { protocol, node });
        agent.say(&ToAgent::List);
        agent.say(&ToAgent::Listed);
        agent
    }

    fn say(&mut self, frame: &ToAgent) {
        let json = serde_json::to_vec(frame).unwrap();
        let frame = FRAMING.frame(&json).unwrap();
        self.cluster.write_all(&frame).unwrap();
    }

    /// Until it says so of the zones.
    async fn zones_are(&self, so: impl Fn(&Value) -> bool) {
        while !so(&self.zones.lock().unwrap()) {
            tokio::time::sleep(POLL).await;
        }
    }

    fn has_said(&self, words: [&str; 2]) -> bool {
        let output = self.output.lock().unwrap();
        let mut lines = output.lines();
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    }
}

/// A pod with one container, which runs.
struct Running {
    uid: String,
    cgroup: Cgroup,
    process: Child,
}

impl Running {
    /// Its kubelet has admitted it and has started its container, and the API says so.
    fn start(agent: &mut Agent, root: &str, number: u32) -> Self {
        let uid = format!("1b2c9a00-0000-4000-8000-{number:012}");
        let id = format!("{number:064x}");
        let cgroup = Cgroup(format!("{root}/kubepods/pod{uid}"));
        make(&cgroup.0).unwrap();
        let container = format!("{}/{id}", cgroup.0);
        make(&container).unwrap();
        let process = Command::new("sleep").arg("100000").spawn().unwrap();
        for dir in dirs(&container) {
            fs::write(dir.join("cgroup.procs"), process.id().to_string()).unwrap();
        }
        let amounts = json!({"cpu": "1", "memory": "64Mi", "x/gpu": "1"});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": NAME, "namespace": "default", "uid": uid},
            "spec": {"containers": [{"name": "own", "resources": {"requests": amounts, "limits": amounts}}]},
            "status": {"containerStatuses": [{"name": "own", "containerID": format!("containerd://{id}"), "state": {"running": {}}}]},
        }))
        .unwrap();
        agent.say(&ToAgent::Pod {
            pod: Box::new(pod),
            is_leaving: false,
        });
        Self {
            uid,
            cgroup,
            process,
        }
    }

    /// Those of its process.
    fn cpus(&self) -> CpuSet {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let cpus = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        CpuSet::parse(cpus.unwrap().trim()).unwrap()
    }

    async fn comes_to(&self, cpus: CpuSet) {
        while self.cpus() != cpus {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Gone at once, from the node and from the API.
    fn end(mut self, agent: &mut Agent) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        drop(self.cgroup);
        let uid = (&*self.uid).into();
        agent.say(&ToAgent::PodGone { uid });
    }
}

fn online() -> CpuSet {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    CpuSet::parse(online.trim()).unwrap()
}

#[tokio::test]
async fn a_container_is_near_to_its_device_and_not_to_that_of_the_pod_that_had_its_name() {
    let program =
        Path::new(env!("CARGO_BIN_EXE_plimsoll-runtime")).with_file_name("plimsoll-agent");
    if !program.is_file() {
        return notes::left_out("needs plimsoll-agent: cargo build -p plimsoll");
    }
    let online = online();
    let cpus: Vec<u32> = online.iter().collect();
    let [_, second, ..] = cpus[..] else {
        return notes::left_out("a second CPU");
    };
    if !geteuid().is_root() || !Path::new(NODES).is_dir() {
        return notes::left_out("needs root, for cgroups and mounts, and a kernel with NUMA");
    }
    let root = Cgroup(format!("/plimsoll-test-devices-{}", std::process::id()));
    if let Err(error) = make(&root.0).and_then(|()| make(&format!("{}/kubepods", root.0))) {
        return notes::left_out(format!("cgroups cannot be made: {error}"));
    }
    let last = CpuSet::of(cpus[cpus.len() - 1]);
    let kubelet = Kubelet::start();
    let mut agent = Agent::start(
        &program,
        &root.0,
        &kubelet,
        two_nodes([online - last, last]),
    );
    // The reserved CPU is nobody's to give.
    let on_first = u64::from(online.len()) - 2;
    let idle =
        |zones: &Value| (cpus_of(zones, 0), cpus_of(zones, 1)) == ((on_first, on_first), (1, 1));
    agent.zones_are(idle).await;
    // By then the loop has heard the first answer: without one nobody is waited for.
    kubelet.is_asked(2).await;

    // It wants a device, and is placed when the kubelet has said which.
    let pod = Running::start(&mut agent, &root.0, 1);
    kubelet.is_asked(3).await;
    assert_eq!(pod.cpus(), online);
    kubelet.gives(1);
    pod.comes_to(last).await;
    // A scheduler hears of it, and of the agent's policy: the kubelet's own is none.
    agent
        .zones_are(|zones| {
            let of_pod = json!({"namespace": "default", "name": NAME, "held": [
                {"zone": 1, "resource": "cpu", "amount": 1}, {"zone": 1, "resource": "x/gpu", "amount": 1}]});
            cpus_of(zones, 1) == (1, 0)
                && zones["pods"] == json!([of_pod])
                && zones["alignment"]["policy"] == "restricted"
        })
        .await;
    // Nobody is moved for a device that changes.
    kubelet.gives(0);
    kubelet.is_asked(3).await;
    assert_eq!(pod.cpus(), last);

    // Made again with the same name. What the kubelet has said until now was of the one before.
    kubelet.gives(1);
    kubelet.is_asked(3).await;
    pod.end(&mut agent);
    kubelet.gives(0);
    let pod = Running::start(&mut agent, &root.0, 2);
    if cpus.len() == 2 {
        // The one CPU of node 0 is reserved.
        while !agent.has_said([&pod.uid, "does not get what it requests"]) {
            assert_ne!(pod.cpus(), last, "it is near to the device of the other");
            tokio::time::sleep(POLL).await;
        }
        assert_eq!(pod.cpus(), online);
    } else {
        while pod.cpus() == online {
            tokio::time::sleep(POLL).await;
        }
        assert_eq!(pod.cpus(), CpuSet::of(second));
    }
    pod.end(&mut agent);
    // And once more, on the other side.
    kubelet.gives(1);
    let pod = Running::start(&mut agent, &root.0, 3);
    pod.comes_to(last).await;
    pod.end(&mut agent);
    agent.zones_are(idle).await;
}
