//! `plimsoll-agent` with `cpuManagerPolicy: static` beside a real containerd 2, and this test in place of
//! `plimsoll-cluster`: on which CPUs a container's first instructions run, with NRI and without, how soon one is on its
//! own without NRI where the runtime tells of it and where only the API does, and what stays when the pod is resized in
//! place; and what other containers see of its CPUs while the plugin is frozen and containerd is killed.
//!
//! What is waited for is progress; how long it took is printed.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::protocol::cluster_link::{FRAMING, PROTOCOL, ToAgent};
use plimsoll_runtime::connection::connect;
use plimsoll_runtime::interface::cri::runtime_service_client::RuntimeServiceClient;
use plimsoll_runtime::interface::cri::{PodSandboxConfig, StartContainerRequest};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tonic::transport::Channel;

use support::{
    Containerd, NEEDED_WITH_NRI, create, end_pod, notes, pod, programs_with_nri, run_container,
    run_pod,
};

const UID: &str = "1b2c9a00-0000-4000-8000-0000000000aa";
/// Of a pod whose containers share.
const OTHER_UID: &str = "1b2c9a00-0000-4000-8000-0000000000bb";
const POLL: Duration = Duration::from_micros(200);
/// Containers with NRI, and without.
const CONTAINERS: u32 = 100;
const CONTAINERS_WITHOUT: u32 = 10;
/// Until the plugin has the table.
const CONTAINERS_BEFORE: u32 = 100;
/// What takes longer on any machine does not happen.
const PATIENCE: Duration = Duration::from_secs(60);
const PROBE: &str = "localhost/probe:1";
const SLEEP: &str = "localhost/sandbox:1";

/// The agent, and what it takes for plimsoll-cluster.
struct Agent {
    process: Child,
    cluster: UnixStream,
    dir: tempfile::TempDir,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

/// The agent as it is built beside the program of this package.
fn program() -> Option<PathBuf> {
    let agent = Path::new(env!("CARGO_BIN_EXE_plimsoll-runtime")).with_file_name("plimsoll-agent");
    agent.is_file().then_some(agent)
}

impl Agent {
    /// With a kubelet that places nothing. `sockets`: of NRI, and of the runtime.
    fn start(
        program: &Path,
        containerd: &Containerd,
        (nri, runtime): (&Path, &Path),
        reserved: u32,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = r#"{"policyName":"none","defaultCpuSet":"","checksum":0}"#;
        fs::write(dir.path().join("cpu_manager_state"), state).unwrap();
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: \"{reserved}\"\n"
        );
        fs::write(dir.path().join("config.yaml"), config).unwrap();
        let socket = dir.path().join("cluster.sock");
        let process = Command::new(program)
            .args(["--kubernetes", "--without", "bpf", "--cluster-uid", "0"])
            // Whatever this machine's disks have left.
            .args(["--eviction-hard", "memory.available<1Mi"])
            .args(["--cgroup-root", &containerd.cgroup, "--config"])
            .arg(dir.path().join("config.yaml"))
            .arg("--cluster-socket")
            .arg(&socket)
            .arg("--state-dir")
            .arg(dir.path().join("state"))
            .arg("--kubelet-dir")
            .arg(dir.path())
            .arg("--runtime-endpoint")
            .arg(runtime)
            .arg("--nri-socket")
            .arg(nri)
            .stdout(Stdio::inherit())
            .spawn()
            .unwrap();
        let cluster = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(POLL),
            }
        };
        let mut agent = Self {
            process,
            cluster,
            dir,
        };
        // What it reports is read and of no interest.
        let mut reports = agent.cluster.try_clone().unwrap();
        std::thread::spawn(
            move || while reports.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {},
        );
        agent.say(&ToAgent::Hello {
            protocol: PROTOCOL,
            node: "node".to_owned(),
        });
        agent.say(&ToAgent::List);
        agent
    }

    fn say(&mut self, frame: &ToAgent) {
        let json = serde_json::to_vec(frame).unwrap();
        let frame = FRAMING.frame(&json).unwrap();
        self.cluster.write_all(&frame).unwrap();
    }

    /// As the API has it: the container `own` with so many CPUs, and its id once it runs.
    fn pod(&mut self, cpus: u32, id: Option<&str>) {
        let amounts = json!({"cpu": cpus.to_string(), "memory": "64Mi"});
        let status = |id| json!({"name": "own", "containerID": format!("containerd://{id}"), "state": {"running": {}}});
        let statuses: Vec<_> = id.into_iter().map(status).collect();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "uid": UID},
            "spec": {"containers": [{"name": "own", "resources": {"requests": amounts, "limits": amounts}}]},
            "status": {"containerStatuses": statuses},
        }))
        .unwrap();
        self.say(&ToAgent::Pod {
            pod: Box::new(pod),
            is_leaving: false,
        });
    }

    /// A pod that requests nothing, with a container `shared`.
    fn other_pod(&mut self) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "other", "namespace": "default", "uid": OTHER_UID},
            "spec": {"containers": [{"name": "shared"}]},
            "status": {"containerStatuses": [{"name": "shared"}]},
        }))
        .unwrap();
        self.say(&ToAgent::Pod {
            pod: Box::new(pod),
            is_leaving: false,
        });
    }

    /// The `plimsoll-runtime nri` that it has started.
    fn plugin(&self) -> Pid {
        loop {
            let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
            let children = threads.flatten().flat_map(|thread| {
                let children = fs::read_to_string(thread.path().join("children"));
                let children = children.unwrap_or_default();
                let pids = children.split_whitespace().map(str::to_owned);
                pids.collect::<Vec<_>>()
            });
            let is_plugin = |child: &String| {
                let arguments = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
                arguments.split(|byte| *byte == 0).nth(1) == Some(b"nri")
            };
            let mut plugins = children.filter(is_plugin);
            if let Some(pid) = plugins.find_map(|child| Pid::from_raw(child.parse().ok()?)) {
                return pid;
            }
            std::thread::sleep(POLL);
        }
    }

    /// The exclusive CPUs by the file that it leaves for a kubelet.
    fn held(&self) -> String {
        let path = self.dir.path().join("state/for-kubelet.cpu_manager_state");
        fs::read_to_string(path).unwrap_or_default()
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::INT).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

struct Scene {
    containerd: Containerd,
    client: RuntimeServiceClient<Channel>,
    pod: PodSandboxConfig,
    sandbox: String,
}

impl Scene {
    async fn new(programs: PathBuf, busybox: &Path) -> Self {
        let containerd = Containerd::start_with_nri(programs).await;
        let sleeps = ["/busybox", "sleep", "100000"];
        containerd.import(busybox, SLEEP, 4096, &sleeps);
        let probe = ["/busybox", "grep", "Cpus_allowed_list", "/proc/self/status"];
        containerd.import(busybox, PROBE, 4096, &probe);
        let cgroup = format!("{}/kubepods/pod{UID}", containerd.cgroup);
        let logs = containerd.dir.path().join("logs");
        let pod = PodSandboxConfig {
            log_directory: logs.to_string_lossy().into_owned(),
            ..pod(UID, &cgroup)
        };
        let mut client = RuntimeServiceClient::new(connect(&containerd.socket()).await.unwrap());
        let sandbox = run_pod(&mut client, &pod).await;
        Self {
            containerd,
            client,
            pod,
            sandbox,
        }
    }

    /// How long each of some containers is not on its own CPUs after its start. `tell`: what follows from its id.
    async fn windows(
        &mut self,
        attempt: &mut u32,
        own: &str,
        mut tell: impl FnMut(&str),
    ) -> Vec<Duration> {
        let cgroup = format!("{}/kubepods/pod{UID}", self.containerd.cgroup);
        let mut windows = Vec::new();
        for _ in 0..CONTAINERS_WITHOUT {
            *attempt += 1;
            let container = ("own", *attempt);
            let Self {
                client,
                pod,
                sandbox,
                ..
            } = self;
            let id = run_container(client, pod, sandbox, container, SLEEP).await;
            let since = Instant::now();
            tell(&id);
            while support::cpuset_of(&cgroup, &id) != own {
                assert!(since.elapsed() < PATIENCE, "{id} is not placed");
                std::thread::sleep(POLL);
            }
            windows.push(since.elapsed());
            support::remove_container(&mut self.client, id).await;
        }
        windows
    }

    /// The CPUs that the container's first process sees.
    async fn first_look(&mut self, attempt: u32) -> String {
        let container = ("own", attempt);
        let container_id = create(&mut self.client, &self.pod, &self.sandbox, container, PROBE)
            .await
            .unwrap();
        let start = StartContainerRequest { container_id };
        self.client.start_container(start).await.unwrap();
        let log = format!("{}/own.{attempt}", self.pod.log_directory);
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < PATIENCE, "{log} says nothing");
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.ends_with('\n') {
                return text.split_whitespace().last().unwrap().to_owned();
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// The cgroup of its pod, and its id.
type Watched = (String, String);
/// Looks so far, and since when until when others were where they should not be.
type Seen = (u64, Vec<(Instant, Instant)>);

/// Reads again and again on which CPUs the processes of other containers may run.
struct Witness {
    /// Those that share; `None`: it ends.
    watched: Arc<Mutex<Option<Vec<Watched>>>>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// `own`: where others should not be.
    fn start(own: CpuSet) -> Self {
        let watched = Arc::new(Mutex::new(Some(Vec::new())));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (of_thread, notes) = (Arc::clone(&watched), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            let mut is_overlapping = false;
            loop {
                let Some(watched) = of_thread.lock().unwrap().clone() else {
                    return;
                };
                let looked = Instant::now();
                let overlaps = watched.iter().any(|(pod, id): &Watched| {
                    let processes = support::processes_of(pod, id).into_iter();
                    processes
                        .filter_map(allowed)
                        .any(|cpus| !cpus.is_disjoint(&own))
                });
                let mut seen = notes.lock().unwrap();
                seen.0 += 1;
                match seen.1.last_mut().filter(|_| is_overlapping && overlaps) {
                    Some(last) => last.1 = looked,
                    None if overlaps => seen.1.push((looked, looked)),
                    None => {}
                }
                is_overlapping = overlaps;
                drop(seen);
                std::thread::sleep(POLL);
            }
        });
        Self {
            watched,
            seen,
            thread: Some(thread),
        }
    }

    fn watch(&self, pod: &str, id: &str) {
        let mut watched = self.watched.lock().unwrap();
        watched
            .as_mut()
            .unwrap()
            .push((pod.to_owned(), id.to_owned()));
    }

    /// After so many more looks: all looks, and the overlaps.
    fn looks(&self, more: u64) -> Seen {
        let until = self.seen.lock().unwrap().0 + more;
        loop {
            let seen = self.seen.lock().unwrap();
            if seen.0 >= until {
                return seen.clone();
            }
            drop(seen);
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        *self.watched.lock().unwrap() = None;
        let _panicked = self.thread.take().unwrap().join();
    }
}

/// CPUs of a process; `None` where it has gone.
fn allowed(pid: u32) -> Option<CpuSet> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines();
    let cpus = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    CpuSet::parse(cpus.trim()).ok()
}

fn print_windows(what: &str, mut windows: Vec<Duration>) {
    windows.sort();
    println!(
        "{what}, from its start to its own CPUs: median {:?}, longest {:?}",
        windows[windows.len() / 2],
        windows[windows.len() - 1]
    );
}

#[tokio::test]
async fn containers_run_on_their_own_cpus_with_nri_and_without_and_keep_them_when_resized() {
    let (Some((programs, busybox)), Some(program)) = (programs_with_nri(), program()) else {
        notes::left_out(format!(
            "{NEEDED_WITH_NRI}, and a plimsoll-agent that is built"
        ));
        return;
    };
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online: Vec<u32> = CpuSet::parse(&online).unwrap().iter().collect();
    let [first, second, ..] = online[..] else {
        notes::left_out("a second CPU");
        return;
    };
    let own = second.to_string();
    let mut scene = Scene::new(programs, &busybox).await;

    // With NRI.
    let nri = scene.containerd.nri_socket();
    let runtime = scene.containerd.socket();
    let mut agent = Agent::start(&program, &scene.containerd, (&nri, &runtime), first);
    agent.pod(1, None);
    agent.say(&ToAgent::Listed);
    let mut attempt = 0;
    while scene.first_look(attempt).await != own {
        attempt += 1;
        assert!(attempt < CONTAINERS_BEFORE, "the plugin has no table");
    }
    println!("{attempt} containers until the plugin had the table");
    let mut elsewhere = 0;
    for _ in 0..CONTAINERS {
        attempt += 1;
        elsewhere += u32::from(scene.first_look(attempt).await != own);
    }
    println!("{CONTAINERS} containers with NRI: {elsewhere} first looks elsewhere");
    assert_eq!(elsewhere, 0);
    // More than there is: it keeps what it has, and its next container too.
    agent.pod(2, None);
    for _ in 0..5 {
        attempt += 1;
        assert_eq!(scene.first_look(attempt).await, own);
    }
    assert!(
        agent.held().contains(&format!(r#""own":"{own}""#)),
        "{}",
        agent.held()
    );
    agent.stop();

    // Without, and the runtime tells of containers that start: nobody else names them.
    let nowhere = nri.with_file_name("nothing.sock");
    let mut agent = Agent::start(&program, &scene.containerd, (&nowhere, &runtime), first);
    agent.pod(1, None);
    agent.say(&ToAgent::Listed);
    let told = scene.windows(&mut attempt, &own, |_| {}).await;
    print_windows("without NRI, by the runtime's events", told);
    agent.stop();

    // Without both: the API names the container as soon as it runs.
    let mut agent = Agent::start(&program, &scene.containerd, (&nowhere, &nowhere), first);
    agent.pod(1, None);
    agent.say(&ToAgent::Listed);
    let mut elsewhere = 0;
    for _ in 0..CONTAINERS {
        attempt += 1;
        elsewhere += u32::from(scene.first_look(attempt).await != own);
    }
    println!("{CONTAINERS} containers without NRI: {elsewhere} first looks elsewhere");
    // Nobody has told the agent which container they are, and a first look comes before the API could.
    assert_eq!(elsewhere, CONTAINERS);
    let told = scene.windows(&mut attempt, &own, |id| agent.pod(1, Some(id)));
    print_windows("without NRI, by the API", told.await);
    agent.stop();
    end_pod(&mut scene.client, scene.sandbox).await;
}

/// So long the plugin is frozen at least: longer than a runtime waits for it.
const FROZEN: Duration = Duration::from_secs(5);
/// Looks of the witness in which nothing may overlap.
const LOOKS: u64 = 500;

#[tokio::test]
async fn nothing_overlaps_after_the_plugin_was_frozen_and_containerd_killed() {
    let (Some((programs, busybox)), Some(program)) = (programs_with_nri(), program()) else {
        notes::left_out(format!(
            "{NEEDED_WITH_NRI}, and a plimsoll-agent that is built"
        ));
        return;
    };
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online = CpuSet::parse(online.trim()).unwrap();
    let cpus: Vec<u32> = online.iter().collect();
    let [first, second, ..] = cpus[..] else {
        notes::left_out("a second CPU");
        return;
    };
    let own = CpuSet::of(second);
    let (own_text, pool) = (own.to_string(), (online - own).to_string());
    let mut scene = Scene::new(programs, &busybox).await;
    let (nri, runtime) = (scene.containerd.nri_socket(), scene.containerd.socket());
    let above = format!("{}/kubepods/pod{UID}", scene.containerd.cgroup);
    let beside = format!(
        "{}/kubepods/besteffort/pod{OTHER_UID}",
        scene.containerd.cgroup
    );
    let other = PodSandboxConfig {
        log_directory: format!("{}/other", scene.pod.log_directory),
        ..pod(OTHER_UID, &beside)
    };
    let other_sandbox = run_pod(&mut scene.client, &other).await;
    let mut agent = Agent::start(&program, &scene.containerd, (&nri, &runtime), first);
    agent.pod(1, None);
    agent.other_pod();
    agent.say(&ToAgent::Listed);
    let mut attempt = 0;
    while scene.first_look(attempt).await != own_text {
        attempt += 1;
        assert!(attempt < CONTAINERS_BEFORE, "the plugin has no table");
    }
    let witness = Witness::start(own);
    let shared = async |client: &mut RuntimeServiceClient<Channel>, number: u32| {
        let id = create(client, &other, &other_sandbox, ("shared", number), SLEEP);
        let id = id.await.unwrap();
        witness.watch(&beside, &id);
        let container_id = id.clone();
        let start = StartContainerRequest { container_id };
        client.start_container(start).await.unwrap();
        id
    };
    // Before.
    attempt += 1;
    let container = ("own", attempt);
    let exclusive = run_container(
        &mut scene.client,
        &scene.pod,
        &scene.sandbox,
        container,
        SLEEP,
    );
    let exclusive = exclusive.await;
    agent.pod(1, Some(&exclusive));
    let mut sharing = vec![shared(&mut scene.client, 0).await];
    let (_, overlaps) = witness.looks(LOOKS);
    assert_eq!(overlaps, [], "with NRI");

    // During: the runtime waits for the plugin, and goes on without it.
    let plugin = agent.plugin();
    kill_process(plugin, Signal::STOP).unwrap();
    let frozen = Instant::now();
    sharing.push(shared(&mut scene.client, 1).await);
    let without_plugin = frozen.elapsed();
    scene.containerd.restart().await;
    scene.client = RuntimeServiceClient::new(connect(&runtime).await.unwrap());
    sharing.push(shared(&mut scene.client, 2).await);
    support::remove_container(&mut scene.client, exclusive).await;
    attempt += 1;
    let container = ("own", attempt);
    let exclusive = run_container(
        &mut scene.client,
        &scene.pod,
        &scene.sandbox,
        container,
        SLEEP,
    );
    let exclusive = exclusive.await;
    agent.pod(1, Some(&exclusive));
    while frozen.elapsed() < FROZEN {
        tokio::time::sleep(POLL).await;
    }
    kill_process(plugin, Signal::CONT).unwrap();
    let thawed = Instant::now();
    let is_repaired = |sharing: &[String]| {
        let is_own = support::cpuset_of(&above, &exclusive) == own_text;
        let mut sets = sharing.iter().map(|id| support::cpuset_of(&beside, id));
        is_own && sets.all(|set| set == pool)
    };
    while !is_repaired(&sharing) {
        assert!(thawed.elapsed() < PATIENCE, "it is not repaired");
        tokio::time::sleep(POLL).await;
    }
    let repaired = Instant::now();

    // After: the plugin is there again, and nothing overlaps any more.
    let mut again = 0;
    while scene.first_look(attempt + 1 + again).await != own_text {
        again += 1;
        assert!(again < CONTAINERS_BEFORE, "the plugin is away");
    }
    let connected = thawed.elapsed();
    for number in 3..6 {
        sharing.push(shared(&mut scene.client, number).await);
    }
    let (looks, overlaps) = witness.looks(LOOKS);
    let longest = overlaps.iter().map(|(from, until)| *until - *from).max();
    let late: Vec<_> = overlaps
        .iter()
        .filter(|(_, until)| *until > repaired)
        .collect();
    println!(
        "the plugin frozen for {:?}, containerd killed and started: a container without the plugin took {without_plugin:?}; {} times others were on the exclusive CPU, \
         longest {:?}; all was repaired {:?} after the thaw, and the first container with the plugin made at most {connected:?} after it; {looks} looks, overlaps after the repair: {}",
        thawed - frozen,
        overlaps.len(),
        longest.unwrap_or_default(),
        repaired - thawed,
        late.len(),
    );
    assert!(late.is_empty(), "{late:?}");
    assert!(is_repaired(&sharing));
    drop(witness);
    agent.stop();
    end_pod(&mut scene.client, other_sandbox).await;
    end_pod(&mut scene.client, scene.sandbox).await;
}
