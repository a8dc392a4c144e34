//! A real containerd of a test's own, on this host.
//!
//! containerd and runc are Debian bookworm's, as `cargo xtask kubernetes node` has fetched them (`PLIMSOLL_CONTAINERD`
//! names another folder with `containerd/usr/bin` and `runc/usr/sbin`), and busybox is the guests'. Where they are not
//! there, or this is not root, what needs them is left out.
#![allow(
    dead_code,
    reason = "each program of tests takes what it needs of this"
)]

#[path = "../../../tests/notes/mod.rs"]
pub(crate) mod notes;

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use plimsoll_runtime::cri::Runtime;
use plimsoll_runtime::interface::cri::runtime_service_client::RuntimeServiceClient;
use plimsoll_runtime::interface::cri::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig,
    PodSandboxMetadata, RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest,
    StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tonic::Status;
use tonic::transport::Channel;

/// What is not there, where [`programs`] finds nothing.
pub(crate) const NEEDED: &str =
    "needs root, and containerd and runc of `cargo xtask kubernetes node`";

/// Debian bookworm's, 1.6.
const CONTAINERD: &str = "containerd";
/// Debian sid's, in the same folder: with NRI.
const CONTAINERD_2: &str = "containerd-2";

/// What is not there, where [`programs_with_nri`] finds nothing.
pub(crate) const NEEDED_WITH_NRI: &str = "needs root, and containerd 2 and runc of `cargo xtask kubernetes node` with Kubernetes 1.26 or later";

/// In this process: each has a cgroup of its own.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// A containerd with directories of its own; it ends with this.
pub(crate) struct Containerd {
    process: Child,
    pub(crate) dir: tempfile::TempDir,
    programs: PathBuf,
    package: &'static str,
    /// Above its pods.
    pub(crate) cgroup: String,
    is_mounted: bool,
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
        if self.is_mounted {
            let _busy = unmount(self.dir.path(), UnmountFlags::DETACH);
        }
        remove_cgroups(&self.cgroup);
    }
}

/// A cgroup that is removed with this.
pub(crate) struct Cgroup(pub(crate) String);

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove_cgroups(&self.0);
    }
}

/// Ends what is in a cgroup of a test, and removes it with all below it, in every hierarchy.
fn remove_cgroups(cgroup: &str) {
    for hierarchy in fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten()
    {
        remove_below(&hierarchy.path().join(&cgroup[1..]));
    }
    remove_below(&Path::new("/sys/fs/cgroup").join(&cgroup[1..]));
}

fn remove_below(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path());
        }
    }
    let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines().filter_map(|line| line.parse().ok()) {
        let _gone = Pid::from_raw(process).map(|pid| kill_process(pid, Signal::KILL));
    }
    // The kernel may still be at the last process.
    for _ in 0..100 {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(20));
            }
            _ => break,
        }
    }
}

/// The folder of containerd and runc, and busybox.
pub(crate) fn programs() -> Option<(PathBuf, PathBuf)> {
    programs_of(CONTAINERD)
}

/// The same with a containerd that has NRI.
pub(crate) fn programs_with_nri() -> Option<(PathBuf, PathBuf)> {
    programs_of(CONTAINERD_2)
}

fn programs_of(package: &str) -> Option<(PathBuf, PathBuf)> {
    let cache = PathBuf::from(std::env::var_os("HOME")?).join(".cache/plimsoll");
    let given = std::env::var_os("PLIMSOLL_CONTAINERD").map(PathBuf::from);
    let programs = given.unwrap_or_else(|| cache.join("packages/bookworm"));
    let busybox = cache.join("busybox/bin/busybox");
    let containerd = programs.join(package).join("usr/bin/containerd");
    let is_there = containerd.is_file()
        && programs.join("runc/usr/sbin/runc").is_file()
        && busybox.is_file()
        && fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0);
    is_there.then_some((programs, busybox))
}

fn process(programs: &Path, package: &str, dir: &Path) -> Child {
    let log = || File::create(dir.join("log")).unwrap();
    let bin = programs.join(package).join("usr/bin");
    let path = format!(
        "{}:{}:{}",
        programs.join("runc/usr/sbin").to_string_lossy(),
        bin.to_string_lossy(),
        std::env::var("PATH").unwrap()
    );
    Command::new(bin.join("containerd"))
        .arg("--config")
        .arg(dir.join("config.toml"))
        .env("PATH", path)
        .stdout(log())
        .stderr(log())
        .spawn()
        .unwrap()
}

impl Containerd {
    /// `options`: of a tmpfs for all that it keeps, such as `size=300m`.
    pub(crate) async fn start(programs: PathBuf, options: Option<&CStr>) -> Self {
        Self::started(programs, CONTAINERD, options).await
    }

    /// One that takes plugins at [`Self::nri_socket`].
    pub(crate) async fn start_with_nri(programs: PathBuf) -> Self {
        Self::started(programs, CONTAINERD_2, None).await
    }

    async fn started(programs: PathBuf, package: &'static str, options: Option<&CStr>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        if let Some(options) = options {
            mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options).unwrap();
        }
        let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\naddress = {:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\ndisable_tcp_service = true\nrestrict_oom_score_adj = true\nsandbox_image = \"localhost/sandbox:1\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n\
             [plugins.\"io.containerd.nri.v1.nri\"]\ndisable = false\nsocket_path = {:?}\nplugin_path = {:?}\nplugin_config_path = {:?}\n",
            at("root"),
            at("state"),
            at("c.sock"),
            at("nri.sock"),
            at("plugins"),
            at("plugins.d"),
        );
        fs::write(dir.path().join("config.toml"), config).unwrap();
        let mut containerd = Self {
            process: process(&programs, package, dir.path()),
            dir,
            programs,
            package,
            is_mounted: options.is_some(),
            cgroup: format!(
                "/plimsoll-runtime-test-{}-{}",
                std::process::id(),
                STARTED.fetch_add(1, Ordering::Relaxed)
            ),
        };
        containerd.answers().await;
        containerd
    }

    /// Ends it and starts another one with its directories: the containers go on.
    pub(crate) async fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = process(&self.programs, self.package, self.dir.path());
        self.answers().await;
    }

    async fn answers(&mut self) {
        while Runtime::open(&self.socket()).await.is_err() {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "{}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn nri_socket(&self) -> PathBuf {
        self.dir.path().join("nri.sock")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("c.sock")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// An image of busybox and of so many bytes that no other image has.
    pub(crate) fn import(&self, busybox: &Path, name: &str, bytes: usize, command: &[&str]) {
        let work = tempfile::tempdir().unwrap();
        let root = work.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::copy(busybox, root.join("busybox")).unwrap();
        fs::write(root.join("name"), name.repeat(bytes / name.len())).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program)
                .args(arguments)
                .current_dir(work.path())
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        run("tar", &["-C", "root", "-cf", "layer.tar", "."]);
        let sum = run("sha256sum", &["layer.tar"]);
        let sum = sum.split_whitespace().next().unwrap();
        let config = json!({"architecture": "amd64", "os": "linux", "config": {"Entrypoint": command},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]}});
        fs::write(work.path().join("config.json"), config.to_string()).unwrap();
        let manifest =
            json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
        fs::write(work.path().join("manifest.json"), manifest.to_string()).unwrap();
        run(
            "tar",
            &[
                "-cf",
                "image.tar",
                "manifest.json",
                "config.json",
                "layer.tar",
            ],
        );
        let ctr = self.programs.join(self.package).join("usr/bin/ctr");
        let socket = self.socket();
        let socket = socket.to_str().unwrap();
        let mut import = vec!["-a", socket, "-n", "k8s.io", "images", "import"];
        if self.package == CONTAINERD_2 {
            // Unpacked by this client: the service for it knows no snapshotter but its configured one.
            import.push("--local");
        }
        import.extend(["--snapshotter", "native", "image.tar"]);
        run(ctr.to_str().unwrap(), &import);
    }

    /// What `plimsoll-runtime list` says.
    pub(crate) fn listed(&self, what: &str) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-runtime"))
            .args(["list", what, "--output", "json", "--runtime-endpoint"])
            .arg(self.socket())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", self.log());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// `cpuset.cpus` of a container in the cgroup above all pods.
    pub(crate) fn cpuset_of(&self, id: &str) -> String {
        cpuset_of(&self.cgroup, id)
    }

    /// Its `cpu.weight` or `cpu.shares`.
    pub(crate) fn shares_of(&self, id: &str) -> u64 {
        let text = file_of(&self.cgroup, id, &["cpu.shares", "cpu.weight"]);
        text.trim().parse().unwrap()
    }

    /// The image's use, as it is listed.
    pub(crate) fn use_of(&self, name: &str) -> Option<String> {
        let images = self.listed("images");
        let mut images = images["images"].as_array().unwrap().iter();
        let image = images.find(|image| image["names"][0] == name)?;
        Some(image["use"].as_str().unwrap().to_owned())
    }
}

/// `cpuset.cpus` of a container in the cgroup of its pod.
pub(crate) fn cpuset_of(pod: &str, id: &str) -> String {
    let text = file_of(pod, id, &["cpuset.cpus"]);
    text.trim().to_owned()
}

/// The processes of a container in the cgroup of its pod; none where it has gone.
pub(crate) fn processes_of(pod: &str, id: &str) -> Vec<u32> {
    let text = read_file_of(pod, id, &["cgroup.procs"]).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// A file of a container's cgroup, of the hierarchy that has it.
fn file_of(pod: &str, id: &str, names: &[&str]) -> String {
    read_file_of(pod, id, names).unwrap()
}

fn read_file_of(pod: &str, id: &str, names: &[&str]) -> Option<String> {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(root).unwrap().flatten();
    let hierarchies = hierarchies.map(|entry| entry.path());
    let mut dirs = hierarchies.chain([root.to_owned()]);
    dirs.find_map(|hierarchy| {
        let dir = hierarchy.join(&pod[1..]).join(id);
        names
            .iter()
            .find_map(|name| fs::read_to_string(dir.join(name)).ok())
    })
}

/// A pod in the host's network: none has to be made for it.
pub(crate) fn pod(uid: &str, cgroup: &str) -> PodSandboxConfig {
    let label = |name: &str, value: &str| (format!("io.kubernetes.pod.{name}"), value.to_owned());
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "web".to_owned(),
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        labels: [
            label("name", "web"),
            label("namespace", "default"),
            label("uid", uid),
        ]
        .into(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup.to_owned(),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(NamespaceOption {
                    network: NamespaceMode::Node as i32,
                    ..NamespaceOption::default()
                }),
                ..LinuxSandboxSecurityContext::default()
            }),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    }
}

/// Makes its sandbox, and returns the id.
pub(crate) async fn run_pod(
    client: &mut RuntimeServiceClient<Channel>,
    pod: &PodSandboxConfig,
) -> String {
    let request = RunPodSandboxRequest {
        config: Some(pod.clone()),
        runtime_handler: String::new(),
    };
    let made = client.run_pod_sandbox(request).await.unwrap();
    made.into_inner().pod_sandbox_id
}

/// Tries to end a pod, as a kubelet does, which tries again as well: a runtime may still be at what was asked of it
/// before.
const STOP_TRIES: usize = 20;

/// Ends and removes it.
pub(crate) async fn end_pod(client: &mut RuntimeServiceClient<Channel>, sandbox: String) {
    for tries_left in (0..STOP_TRIES).rev() {
        let pod_sandbox_id = sandbox.clone();
        let request = StopPodSandboxRequest { pod_sandbox_id };
        match client.stop_pod_sandbox(request).await {
            Ok(_) => break,
            Err(why) => assert!(tries_left > 0, "{why}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let pod_sandbox_id = sandbox;
    client
        .remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id })
        .await
        .unwrap();
}

/// Ends and removes a container.
pub(crate) async fn remove_container(client: &mut RuntimeServiceClient<Channel>, id: String) {
    let container_id = id;
    let stop = StopContainerRequest {
        container_id: container_id.clone(),
        timeout: 0,
    };
    client.stop_container(stop).await.unwrap();
    let remove = RemoveContainerRequest { container_id };
    client.remove_container(remove).await.unwrap();
}

/// Makes a container, and returns its id.
pub(crate) async fn create(
    client: &mut RuntimeServiceClient<Channel>,
    pod: &PodSandboxConfig,
    sandbox: &str,
    (name, attempt): (&str, u32),
    image: &str,
) -> Result<String, Status> {
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: name.to_owned(),
            attempt,
        }),
        image: Some(ImageSpec {
            image: image.to_owned(),
            ..ImageSpec::default()
        }),
        labels: pod.labels.clone(),
        log_path: format!("{name}.{attempt}"),
        ..ContainerConfig::default()
    };
    let create = CreateContainerRequest {
        pod_sandbox_id: sandbox.to_owned(),
        config: Some(config),
        sandbox_config: Some(pod.clone()),
    };
    let created = client.create_container(create).await?;
    Ok(created.into_inner().container_id)
}

/// Starts a container, and returns its id.
pub(crate) async fn run_container(
    client: &mut RuntimeServiceClient<Channel>,
    pod: &PodSandboxConfig,
    sandbox: &str,
    container: (&str, u32),
    image: &str,
) -> String {
    let id = create(client, pod, sandbox, container, image)
        .await
        .unwrap();
    let start = StartContainerRequest {
        container_id: id.clone(),
    };
    client.start_container(start).await.unwrap();
    id
}
