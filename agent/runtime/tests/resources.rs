//! `plimsoll-agent --node-resource-topology` beside a kubelet's PodResources: a stand-in lists, the real
//! `plimsoll-runtime` asks, and what comes out is heard where plimsoll-cluster is.
//!
//! What is waited for is progress; how long it takes is noted.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![expect(dead_code, reason = "of the stand-in a part is needed here")]

#[path = "../../tests/notes/mod.rs"]
mod notes;
#[path = "../src/tests/stand_in.rs"]
mod stand_in;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, io};

use plimsoll_core::protocol::cluster_link::PROTOCOL;
// Where the stand-in looks for them.
use plimsoll_runtime::interface;
use plimsoll_runtime::interface::pod_resources as messages;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use stand_in::{Answer, StandIn, sound};

/// A kubelet's empty tree, which is removed with this.
struct Tree {
    name: String,
    dirs: Vec<PathBuf>,
}

impl Tree {
    /// `None`, and a line, where cgroups cannot be made.
    fn new() -> Option<Self> {
        let name = format!("plimsoll-test-resources-{}", std::process::id());
        let mounts = ["memory", "unified", ""].map(|it| Path::new("/sys/fs/cgroup").join(it));
        let is_mount = |dir: &&PathBuf| dir.join("cgroup.procs").exists();
        let dirs: Vec<PathBuf> = mounts
            .iter()
            .filter(is_mount)
            .map(|mount| mount.join(&name))
            .collect();
        let tree = Self { name, dirs };
        for dir in &tree.dirs {
            if let Err(error) = fs::create_dir_all(dir.join("kubepods")) {
                notes::left_out(format!("cgroups cannot be made: {error}"));
                return None;
            }
        }
        Some(tree)
    }
}

impl Tree {
    /// A pod with a process, which has ended when this returns.
    fn pod(&self, number: u32) {
        let pod = format!("kubepods/pod00000000-0000-0000-0000-{number:012}");
        let mut process = Command::new("sleep").arg("1").spawn().unwrap();
        for dir in &self.dirs {
            let container = dir.join(&pod).join(format!("{number:064x}"));
            fs::create_dir_all(&container).unwrap();
            fs::write(container.join("cgroup.procs"), process.id().to_string()).unwrap();
        }
        process.wait().unwrap();
        for dir in &self.dirs {
            fs::remove_dir(dir.join(&pod).join(format!("{number:064x}"))).unwrap();
            fs::remove_dir(dir.join(&pod)).unwrap();
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for dir in &self.dirs {
            let _busy = fs::remove_dir(dir.join("kubepods"));
            let _busy = fs::remove_dir(dir);
        }
    }
}

/// Ended with this.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _gone = self.0.wait();
    }
}

fn started(program: &Path, tree: &Tree, dir: &Path, kubelet: &Path) -> Agent {
    let policy = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ntopologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\n";
    fs::write(dir.join("config.yaml"), policy).unwrap();
    let process = Command::new(program)
        .args(["--kubernetes", "--output", "json", "--without", "bpf"])
        .args(["--cluster-uid", "0", "--node-resource-topology"])
        .arg("--pod-resources")
        .arg(kubelet)
        .arg("--cgroup-root")
        .arg(&tree.name)
        .arg("--cluster-socket")
        .arg(dir.join("cluster.sock"))
        .arg("--state-dir")
        .arg(dir.join("state"))
        .arg("--kubelet-dir")
        .arg(dir)
        .stdout(Stdio::null())
        .spawn();
    Agent(process.unwrap())
}

/// The stand-in for plimsoll-cluster, once the agent listens.
async fn connected(dir: &Path) -> UnixStream {
    let mut cluster = loop {
        match UnixStream::connect(dir.join("cluster.sock")).await {
            Ok(cluster) => break cluster,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let hello = json!({"type": "hello", "protocol": PROTOCOL, "node": "n"}).to_string();
    let length = u32::try_from(hello.len()).unwrap();
    // Where it is sent away at once, reading fails.
    let _closed = cluster.write_u32_le(length).await;
    let _closed = cluster.write_all(hello.as_bytes()).await;
    cluster
}

/// The next zones that it hears; an error if the agent closes the connection.
async fn zones(cluster: &mut UnixStream) -> io::Result<Value> {
    loop {
        let length = cluster.read_u32_le().await?;
        let mut frame = vec![0; usize::try_from(length).unwrap()];
        cluster.read_exact(&mut frame).await?;
        let mut message: Value = serde_json::from_slice(&frame)?;
        if message["type"] == "node_topology" {
            return Ok(message["topology"].take());
        }
    }
}

/// CPU 0 may be given; so many pods are there, the first of which has it.
fn answer(path: &str, pods: u32) -> Answer {
    if path.ends_with("GetAllocatableResources") {
        return sound(&messages::AllocatableResourcesResponse {
            cpu_ids: vec![0],
            ..Default::default()
        });
    }
    let pod = |number: u32| messages::PodResources {
        name: format!("p{number}"),
        namespace: "n".to_owned(),
        containers: vec![messages::ContainerResources {
            name: "app".to_owned(),
            cpu_ids: if number == 0 { vec![0] } else { Vec::new() },
            ..Default::default()
        }],
    };
    sound(&messages::ListPodResourcesResponse {
        pod_resources: (0..pods).map(pod).collect(),
    })
}

#[tokio::test]
async fn what_the_kubelet_gives_is_soon_heard_where_plimsoll_cluster_is() {
    let program =
        Path::new(env!("CARGO_BIN_EXE_plimsoll-runtime")).with_file_name("plimsoll-agent");
    if !program.is_file() {
        return notes::left_out("needs plimsoll-agent: cargo build -p plimsoll");
    }
    let Some(tree) = Tree::new() else { return };
    let pods = Arc::new(AtomicU32::new(0));
    let of_kubelet = Arc::clone(&pods);
    let kubelet = StandIn::start(move |path, _| answer(path, of_kubelet.load(Ordering::SeqCst)));
    let dir = tempfile::tempdir().unwrap();
    let _agent = started(&program, &tree, dir.path(), kubelet.socket());
    let mut cluster = connected(dir.path()).await;
    let available = |topology: &Value| {
        let zones = topology["zones"].as_array().unwrap().iter();
        let of = |zone: &Value| zone["resources"]["cpu"]["available"].as_u64().unwrap_or(0);
        zones.map(of).sum::<u64>()
    };
    let idle = zones(&mut cluster).await.unwrap();
    assert_eq!(available(&idle), 1, "{idle}");
    assert_eq!(idle["alignment"]["policy"], "single-numa-node");
    assert_eq!(idle["alignment"]["scope"], "pod");
    let changed = Instant::now();
    pods.store(1, Ordering::SeqCst);
    let busy = zones(&mut cluster).await.unwrap();
    let heard_ms = changed.elapsed().as_millis();
    assert_eq!(available(&busy), 0, "{busy}");
    assert_eq!(busy["pods"][0]["held"][0]["resource"], "cpu");
    notes::note(format_args!(
        "a change in PodResources is on the socket of plimsoll-cluster after {heard_ms} ms"
    ));
    // Another connection hears it again.
    drop(cluster);
    let (mut cluster, heard) = loop {
        let mut cluster = connected(dir.path()).await;
        // One that comes before the agent has seen the end of the first is sent away.
        if let Ok(heard) = zones(&mut cluster).await {
            break (cluster, heard);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(heard, busy);
    pods.store(0, Ordering::SeqCst);
    assert_eq!(available(&zones(&mut cluster).await.unwrap()), 1);
}

/// The kubelet is asked every second; here also in between.
#[tokio::test]
async fn a_pod_that_starts_has_the_kubelet_asked_at_once() {
    let program =
        Path::new(env!("CARGO_BIN_EXE_plimsoll-runtime")).with_file_name("plimsoll-agent");
    if !program.is_file() {
        return notes::left_out("needs plimsoll-agent: cargo build -p plimsoll");
    }
    let Some(tree) = Tree::new() else { return };
    let asked: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let of_kubelet = Arc::clone(&asked);
    let kubelet = StandIn::start(move |path, _| {
        if path.ends_with("List") {
            of_kubelet.lock().unwrap().push(Instant::now());
        }
        answer(path, 0)
    });
    let dir = tempfile::tempdir().unwrap();
    let _agent = started(&program, &tree, dir.path(), kubelet.socket());
    let mut cluster = connected(dir.path()).await;
    zones(&mut cluster).await.unwrap();
    let is_early = |asked: &[Instant]| {
        let apart = asked.windows(2).map(|pair| pair[1] - pair[0]);
        apart.filter(|apart| apart.as_millis() < 700).count() > 2
    };
    let tree = Arc::new(tree);
    for number in 0..60 {
        let tree = Arc::clone(&tree);
        tokio::task::spawn_blocking(move || tree.pod(number))
            .await
            .unwrap();
        if is_early(&asked.lock().unwrap()) {
            return;
        }
    }
    panic!("asked every second only, while 60 pods came and went");
}
