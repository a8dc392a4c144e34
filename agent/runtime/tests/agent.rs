//! `plimsoll-agent --runtime-endpoint` beside a real containerd on a disk that fills: unused images go, no more than
//! needed, and no pod; whatever happens to the `plimsoll-runtime` that the agent has started. The same disk without it,
//! where the pod goes, is beside it for comparison.
//!
//! The disk is a tmpfs. What is waited for is progress, and how long it took is noted; the one bound in time is the
//! agent's, for an answer.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_runtime::connection::connect;
use plimsoll_runtime::interface::cri::runtime_service_client::RuntimeServiceClient;
use rustix::fs::statvfs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use support::{
    Cgroup, Containerd, NEEDED, NEEDED_WITH_NRI, create, end_pod, notes, pod, programs,
    programs_with_nri, run_container, run_pod,
};

const UID: &str = "1b2c9a00-0000-4000-8000-00000000000a";
/// Of the pod that goes.
const OTHER_UID: &str = "1b2c9a00-0000-4000-8000-00000000000b";
const MIB: u64 = 1 << 20;
/// Of an image; it is there twice, packed and unpacked.
const IMAGE_BYTES: usize = 8 << 20;
const IMAGES: usize = 12;
/// The threshold, and what is to be available when it has been met.
const THRESHOLD: u64 = 64 * MIB;
const TARGET: u64 = 84 * MIB;
const POLL: Duration = Duration::from_millis(2);

/// The agent, until it is dropped.
struct Agent {
    process: Child,
    output: BufReader<ChildStdout>,
    /// All that it has said.
    said: Vec<Value>,
    dir: tempfile::TempDir,
}

/// The agent as it is built beside the program of this package.
fn program() -> Option<PathBuf> {
    let agent = Path::new(env!("CARGO_BIN_EXE_plimsoll-runtime")).with_file_name("plimsoll-agent");
    agent.is_file().then_some(agent)
}

impl Agent {
    fn start(program: &Path, cgroup: &str, images: &Path, socket: &Path, hard: &str) -> Self {
        Self::start_with(program, cgroup, images, Some(socket), hard)
    }

    /// `socket`: the runtime's; `None`: it is asked nothing.
    fn start_with(
        program: &Path,
        cgroup: &str,
        images: &Path,
        socket: Option<&Path>,
        hard: &str,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        if let Some(socket) = socket {
            command.arg("--runtime-endpoint").arg(socket);
            let nri = socket.with_file_name("nri.sock");
            command.arg("--nri-socket").arg(nri);
        }
        let mut process = command
            .args(["--kubernetes", "--output", "json", "--without", "bpf"])
            .args(["--cluster-uid", "0", "--eviction-hard", hard])
            .args(["--eviction-minimum-reclaim", "imagefs.available=20Mi"])
            .args(["--eviction-pressure-transition-period", "1s"])
            .args(["--cgroup-root", cgroup])
            .arg("--cluster-socket")
            .arg(dir.path().join("cluster.sock"))
            .arg("--state-dir")
            .arg(dir.path().join("state"))
            .arg("--kubelet-dir")
            .arg(dir.path())
            .arg("--image-dir")
            .arg(images)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut agent = Self {
            process,
            output,
            said: Vec::new(),
            dir,
        };
        agent.wait_for(|line| line["event"] == "started");
        agent
    }

    fn wait_for(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the agent has ended");
            eprint!("{line}");
            let line: Value = serde_json::from_str(&line).unwrap();
            self.said.push(line.clone());
            if is_it(&line) {
                return line;
            }
        }
    }

    /// Until no threshold has been met for a second: what was decided for one is decided.
    fn wait_until_satisfied(&mut self) {
        self.wait_for(|line| {
            let decision = &line["decision"];
            decision["condition"] == "DiskPressure" && decision["status"] == false
        });
    }

    /// How many pods it has said to go.
    fn evicted(&self) -> usize {
        let said = self.said.iter();
        said.filter(|line| line["decision"]["decision"] == "evict")
            .count()
    }

    /// The `plimsoll-runtime serve` that it has started.
    fn child(&self) -> Option<Pid> {
        let agent = self.process.id();
        let threads = fs::read_dir(format!("/proc/{agent}/task")).unwrap();
        let children = threads.flatten().filter_map(|thread| {
            let children = fs::read_to_string(thread.path().join("children")).ok()?;
            children.split_whitespace().next()?.parse().ok()
        });
        let serves = |child: &i32| {
            let arguments = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).nth(1) == Some(b"serve")
        };
        Pid::from_raw(children.into_iter().find(serves)?)
    }

    /// Whether it answers.
    fn answers(&self, program: &Path) -> bool {
        let plimsoll = program.with_file_name("plimsoll");
        let top = Command::new(plimsoll)
            .args(["top", "--once", "--output", "json", "--state-dir"])
            .arg(self.dir.path().join("state"))
            .output()
            .unwrap();
        top.status.success()
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
        std::io::copy(&mut self.output, &mut std::io::sink()).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

fn available(dir: &Path) -> u64 {
    let status = statvfs(dir).unwrap();
    status.f_bavail * status.f_frsize
}

/// Leaves so much of the disk.
fn fill(dir: &Path, left: u64) {
    let filler = dir.join("filler");
    let has = fs::metadata(&filler).map_or(0, |filler| filler.len());
    let more = available(dir) - left;
    let zeros = vec![1; usize::try_from(has + more).unwrap()];
    fs::write(filler, zeros).unwrap();
}

fn unused(containerd: &Containerd) -> usize {
    let images = containerd.listed("images");
    let images = images["images"].as_array().unwrap().iter();
    images.filter(|image| image["use"] == "unused").count()
}

/// Waits until something has been removed.
fn wait_for_removal(dir: &Path) {
    let before = available(dir);
    while available(dir) < before + MIB {
        std::thread::sleep(POLL);
    }
}

fn cgroup_of(pods_above: &str) -> String {
    cgroup_of_pod(pods_above, UID)
}

fn cgroup_of_pod(pods_above: &str, uid: &str) -> String {
    format!("{pods_above}/kubepods/besteffort/pod{uid}")
}

fn make_cgroups(cgroup: &str) {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).unwrap().flatten();
    let is_hierarchy =
        |dir: &PathBuf| dir.join("cgroup.procs").is_file() && !root.join("cgroup.procs").is_file();
    let mut dirs: Vec<PathBuf> = hierarchies
        .map(|entry| entry.path())
        .filter(is_hierarchy)
        .collect();
    if root.join("cgroup.procs").is_file() {
        dirs.push(root.to_owned());
    }
    for dir in dirs {
        fs::create_dir_all(dir.join(&cgroup[1..])).unwrap();
    }
}

/// What runc leaves out where cgroup v2 is beside v1: a node of a kubelet has one of both.
fn into_unified(cgroup: &str) {
    let root = Path::new("/sys/fs/cgroup");
    let unified = root.join("unified");
    if !unified.is_dir() {
        return;
    }
    let pod = root.join("memory").join(&cgroup[1..]);
    for container in fs::read_dir(&pod).unwrap().flatten() {
        let Ok(processes) = fs::read_to_string(container.path().join("cgroup.procs")) else {
            continue;
        };
        let dir = unified.join(&cgroup[1..]).join(container.file_name());
        fs::create_dir_all(&dir).unwrap();
        for process in processes.lines() {
            fs::write(dir.join("cgroup.procs"), process).unwrap();
        }
    }
}

#[tokio::test]
async fn images_go_and_no_pod_whatever_happens_to_the_program_that_asks() {
    let (Some((programs, busybox)), Some(program)) = (programs(), program()) else {
        notes::left_out(format!("{NEEDED}, and a plimsoll-agent that is built"));
        return;
    };
    let containerd = Containerd::start(programs, Some(c"size=400m")).await;
    let dir = containerd.dir.path();
    let sleeps = ["/busybox", "sleep", "100000"];
    containerd.import(&busybox, "localhost/sandbox:1", 4096, &sleeps);
    containerd.import(&busybox, "localhost/app:1", 4096, &sleeps);
    for number in 0..IMAGES {
        let name = format!("localhost/old:{number}");
        containerd.import(&busybox, &name, IMAGE_BYTES, &["/busybox", "true"]);
    }
    let mut client = RuntimeServiceClient::new(connect(&containerd.socket()).await.unwrap());
    let hard = format!("imagefs.available<{THRESHOLD}");
    let short = THRESHOLD - 4 * MIB;

    // Without the runtime the pod goes, which has written nothing, and the images stay.
    let cgroup = cgroup_of_pod(&containerd.cgroup, OTHER_UID);
    make_cgroups(&cgroup);
    let other = pod(OTHER_UID, &cgroup);
    let sandbox = run_pod(&mut client, &other).await;
    run_container(&mut client, &other, &sandbox, ("app", 0), "localhost/app:1").await;
    into_unified(&cgroup);
    let mut agent = Agent::start_with(&program, &containerd.cgroup, dir, None, &hard);
    fill(dir, short);
    let filled = Instant::now();
    agent.wait_for(|line| line["decision"]["decision"] == "evict");
    println!(
        "a disk that has {} MiB less than its threshold, without the runtime: {} pod evicted after {:?}, {} of {IMAGES} unused images removed",
        4,
        agent.evicted(),
        filled.elapsed(),
        IMAGES - unused(&containerd),
    );
    assert_eq!(unused(&containerd), IMAGES);
    agent.stop();
    end_pod(&mut client, sandbox).await;
    fs::remove_file(dir.join("filler")).unwrap();

    let cgroup = cgroup_of(&containerd.cgroup);
    make_cgroups(&cgroup);
    let pod = pod(UID, &cgroup);
    let sandbox = run_pod(&mut client, &pod).await;
    run_container(&mut client, &pod, &sandbox, ("app", 0), "localhost/app:1").await;
    into_unified(&cgroup);
    let mut agent = Agent::start(
        &program,
        &containerd.cgroup,
        dir,
        &containerd.socket(),
        &hard,
    );
    assert_eq!(unused(&containerd), IMAGES);

    // No more than is needed.
    fill(dir, short);
    let filled = Instant::now();
    let freed = agent.wait_for(|line| line["event"] == "disk_freed");
    let took = filled.elapsed();
    let free = available(dir);
    agent.wait_until_satisfied();
    let gone = IMAGES - unused(&containerd);
    println!(
        "the same disk with it: {} pods evicted, {gone} of {IMAGES} unused images removed in {took:?}; {} MiB are free, and {} MiB were to be",
        agent.evicted(),
        free / MIB,
        TARGET / MIB,
    );
    assert_eq!(freed["images"], gone);
    assert!((1..4).contains(&gone), "{freed}");
    assert!(available(dir) >= TARGET, "{freed}");
    assert!(available(dir) < TARGET + 3 * IMAGE_BYTES as u64, "{freed}");

    // It dies in the middle of an order: the same order goes on with a second one.
    let first = agent.child().unwrap();
    fill(dir, THRESHOLD - 40 * MIB);
    wait_for_removal(dir);
    kill_process(first, Signal::KILL).unwrap();
    agent.wait_until_satisfied();
    assert!(available(dir) >= TARGET);
    let second = agent.child().unwrap();
    assert_ne!(first, second);
    assert_eq!(
        containerd.use_of("localhost/app:1").as_deref(),
        Some("in use")
    );
    assert_eq!(agent.evicted(), 0);

    // It hangs in the middle of an order: the agent works on, ends it when its time is over, and the next order goes to
    // another one. Whether the pod goes in between hangs on how much had been freed by then.
    fill(dir, THRESHOLD - 40 * MIB);
    wait_for_removal(dir);
    kill_process(second, Signal::STOP).unwrap();
    assert!(agent.answers(&program));
    agent.wait_for(|line| line.to_string().contains("not answered in time"));
    assert!(!Path::new(&format!("/proc/{second}")).exists());
    agent.wait_until_satisfied();
    assert!(available(dir) >= TARGET);
    assert_eq!(
        containerd.use_of("localhost/sandbox:1").as_deref(),
        Some("pinned")
    );
    agent.stop();
    end_pod(&mut client, sandbox).await;
}

#[tokio::test]
async fn the_next_container_of_an_evicted_pod_is_refused_with_the_reason() {
    let (Some((programs, busybox)), Some(program)) = (programs_with_nri(), program()) else {
        notes::left_out(format!(
            "{NEEDED_WITH_NRI}, and a plimsoll-agent that is built"
        ));
        return;
    };
    let containerd = Containerd::start_with_nri(programs).await;
    let sleeps = ["/busybox", "sleep", "100000"];
    containerd.import(&busybox, "localhost/sandbox:1", 4096, &sleeps);
    containerd.import(&busybox, "localhost/app:1", 4096, &sleeps);
    let cgroup = cgroup_of(&containerd.cgroup);
    make_cgroups(&cgroup);
    let pod = pod(UID, &cgroup);
    let mut client = RuntimeServiceClient::new(connect(&containerd.socket()).await.unwrap());
    let sandbox = run_pod(&mut client, &pod).await;
    run_container(&mut client, &pod, &sandbox, ("app", 0), "localhost/app:1").await;
    into_unified(&cgroup);
    let mut agent = Agent::start(
        &program,
        &containerd.cgroup,
        containerd.dir.path(),
        &containerd.socket(),
        "imagefs.available<1Pi",
    );
    agent.wait_for(|line| line["decision"]["decision"] == "evict");
    // As a kubelet, which starts again what has died. The plugin may not have been there yet.
    let mut attempt = 1;
    let refused = loop {
        let container = ("app", attempt);
        match create(&mut client, &pod, &sandbox, container, "localhost/app:1").await {
            Err(refused) if refused.message().contains("plimsoll") => break refused,
            Ok(_) | Err(_) => attempt += 1,
        }
    };
    assert!(
        refused
            .message()
            .contains("plimsoll: this pod was evicted from the node"),
        "{refused}"
    );
    agent.stop();
    end_pod(&mut client, sandbox).await;
}

#[test]
fn without_the_runtimes_socket_the_agent_works_as_without_a_runtime() {
    let is_root = rustix::process::geteuid().is_root();
    let Some(program) = program().filter(|_| is_root) else {
        notes::left_out("needs root, and a plimsoll-agent that is built");
        return;
    };
    let above = Cgroup(format!("/plimsoll-runtime-absent-{}", std::process::id()));
    let cgroup = cgroup_of(&above.0);
    make_cgroups(&cgroup);
    let images = tempfile::tempdir().unwrap();
    let socket = images.path().join("nothing.sock");
    let mut agent = Agent::start(
        &program,
        &above.0,
        images.path(),
        &socket,
        "imagefs.available<1Pi",
    );
    let warning = agent
        .wait_for(|line| line["event"] == "warning" && line.to_string().contains("nothing.sock"));
    assert!(warning.to_string().contains("unused images"), "{warning}");
    let mut sleeps = Command::new("sleep").arg("1000").spawn().unwrap();
    for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        let procs = hierarchy.path().join(&cgroup[1..]).join("cgroup.procs");
        let _not_there = fs::write(procs, sleeps.id().to_string());
    }
    // Nothing could be freed, so a pod goes.
    sleeps.wait().unwrap();
    agent.stop();
}
