//! `plimsoll-runtime` as it is installed, beside a real containerd of this test's own, with images, a pod that runs and a container that has ended.
//!
//! containerd and runc are Debian bookworm's, as `cargo xtask kubernetes node` has fetched them (`PLIMSOLL_CONTAINERD` names another folder with
//! `containerd/usr/bin` and `runc/usr/sbin`), and busybox is the guests'. Where they are not there, or this is not root, the test is left out.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plimsoll_core::kube::runtime_link::{ContainerState, Removal};
use plimsoll_runtime::connection::connect;
use plimsoll_runtime::cri::Runtime;
use plimsoll_runtime::interface::cri::runtime_service_client::RuntimeServiceClient;
use plimsoll_runtime::interface::cri::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig,
    PodSandboxMetadata, RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest,
    StopPodSandboxRequest,
};
use serde_json::{Value, json};
use tonic::transport::Channel;

/// A containerd with directories of its own; it ends with this.
struct Containerd {
    process: Child,
    dir: tempfile::TempDir,
    programs: PathBuf,
    /// Of its pods.
    cgroup: String,
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
        for hierarchy in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let _not_there = fs::remove_dir(hierarchy.path().join(&self.cgroup[1..]));
        }
    }
}

fn programs() -> Option<(PathBuf, PathBuf)> {
    let cache = PathBuf::from(std::env::var_os("HOME")?).join(".cache/plimsoll");
    let given = std::env::var_os("PLIMSOLL_CONTAINERD").map(PathBuf::from);
    let programs = given.unwrap_or_else(|| cache.join("packages/bookworm"));
    let busybox = cache.join("busybox/bin/busybox");
    let is_there = programs.join("containerd/usr/bin/containerd").is_file()
        && programs.join("runc/usr/sbin/runc").is_file()
        && busybox.is_file()
        && fs::metadata("/proc/self").is_ok_and(|this| this.uid() == 0);
    is_there.then_some((programs, busybox))
}

impl Containerd {
    async fn start(programs: PathBuf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\naddress = {:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\ndisable_tcp_service = true\nrestrict_oom_score_adj = true\nsandbox_image = \"localhost/sandbox:1\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n",
            at("root"),
            at("state"),
            at("c.sock"),
        );
        fs::write(dir.path().join("config.toml"), config).unwrap();
        let log = || File::create(dir.path().join("log")).unwrap();
        let path = format!(
            "{}:{}:{}",
            programs.join("runc/usr/sbin").to_string_lossy(),
            programs.join("containerd/usr/bin").to_string_lossy(),
            std::env::var("PATH").unwrap()
        );
        let process = Command::new(programs.join("containerd/usr/bin/containerd"))
            .arg("--config")
            .arg(dir.path().join("config.toml"))
            .env("PATH", path)
            .stdout(log())
            .stderr(log())
            .spawn()
            .unwrap();
        let mut containerd = Self {
            process,
            dir,
            programs,
            cgroup: format!("/plimsoll-runtime-test-{}", std::process::id()),
        };
        while Runtime::open(&containerd.socket()).await.is_err() {
            let ended = containerd.process.try_wait().unwrap();
            assert!(ended.is_none(), "{}", containerd.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        containerd
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("c.sock")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// An image of busybox and of something that no other image has.
    fn import(&self, busybox: &Path, name: &str, command: &[&str]) {
        let work = tempfile::tempdir().unwrap();
        let root = work.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::copy(busybox, root.join("busybox")).unwrap();
        fs::write(root.join("name"), name.repeat(100_000)).unwrap();
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
        let ctr = self.programs.join("containerd/usr/bin/ctr");
        let socket = self.socket();
        let socket = socket.to_str().unwrap();
        run(
            ctr.to_str().unwrap(),
            &[
                "-a",
                socket,
                "-n",
                "k8s.io",
                "images",
                "import",
                "image.tar",
            ],
        );
    }

    /// What `plimsoll-runtime list` says.
    fn listed(&self, what: &str) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll-runtime"))
            .args(["list", what, "--output", "json", "--runtime-endpoint"])
            .arg(self.socket())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", self.log());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The image's use, as it is listed.
    fn use_of(&self, name: &str) -> Option<String> {
        let images = self.listed("images");
        let mut images = images["images"].as_array().unwrap().iter();
        let image = images.find(|image| image["names"][0] == name)?;
        Some(image["use"].as_str().unwrap().to_owned())
    }
}

/// A pod in the host's network: none has to be made for it.
fn pod(cgroup: &str) -> PodSandboxConfig {
    let label = |name: &str, value: &str| (format!("io.kubernetes.pod.{name}"), value.to_owned());
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "web".to_owned(),
            uid: "u1".to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        labels: [
            label("name", "web"),
            label("namespace", "default"),
            label("uid", "u1"),
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

async fn run_container(
    client: &mut RuntimeServiceClient<Channel>,
    pod: &PodSandboxConfig,
    sandbox: &str,
    (name, attempt): (&str, u32),
    image: &str,
) -> String {
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
        ..ContainerConfig::default()
    };
    let create = CreateContainerRequest {
        pod_sandbox_id: sandbox.to_owned(),
        config: Some(config),
        sandbox_config: Some(pod.clone()),
    };
    let id = client
        .create_container(create)
        .await
        .unwrap()
        .into_inner()
        .container_id;
    let start = StartContainerRequest {
        container_id: id.clone(),
    };
    client.start_container(start).await.unwrap();
    id
}

#[tokio::test]
async fn containers_and_images_of_a_real_containerd_are_listed_and_removed() {
    let Some((programs, busybox)) = programs() else {
        eprintln!("left out: needs root, and containerd and runc of `cargo xtask kubernetes node`");
        return;
    };
    let containerd = Containerd::start(programs).await;
    containerd.import(
        &busybox,
        "localhost/sandbox:1",
        &["/busybox", "sleep", "100000"],
    );
    containerd.import(
        &busybox,
        "localhost/app:1",
        &["/busybox", "sleep", "100000"],
    );
    containerd.import(&busybox, "localhost/short:1", &["/busybox", "true"]);
    containerd.import(&busybox, "localhost/old:1", &["/busybox", "true"]);
    let file_systems = containerd.listed("filesystems");
    assert_eq!(file_systems["runtime"]["name"], "containerd");
    let directory = file_systems["filesystems"][0]["directory"]
        .as_str()
        .unwrap();
    assert!(
        directory.starts_with(containerd.dir.path().to_str().unwrap()),
        "{directory}"
    );

    let pod = pod(&containerd.cgroup);
    let mut client = RuntimeServiceClient::new(connect(&containerd.socket()).await.unwrap());
    let request = RunPodSandboxRequest {
        config: Some(pod.clone()),
        runtime_handler: String::new(),
    };
    let sandbox = client
        .run_pod_sandbox(request)
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id;
    let running = run_container(&mut client, &pod, &sandbox, ("app", 0), "localhost/app:1").await;
    let dead = run_container(
        &mut client,
        &pod,
        &sandbox,
        ("once", 0),
        "localhost/short:1",
    )
    .await;

    let runtime = Runtime::open(&containerd.socket()).await.unwrap();
    let state_of = async |id: &str| {
        let inventory = runtime.inventory().await.unwrap();
        assert_eq!(inventory.left_out, 0);
        let one = inventory
            .containers
            .into_iter()
            .find(|container| container.id == id);
        one.map(|one| {
            (
                one.state,
                one.finished_unix_ns.is_some(),
                one.is_sandbox_ready,
                one.pod,
            )
        })
    };
    while state_of(&dead).await.unwrap().0 != ContainerState::Exited {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(
        state_of(&dead).await,
        Some((ContainerState::Exited, true, true, "web".to_owned()))
    );
    assert_eq!(state_of(&running).await.unwrap().0, ContainerState::Running);
    for (image, used) in [
        ("localhost/sandbox:1", "pinned"),
        ("localhost/app:1", "in use"),
        ("localhost/short:1", "in use"),
        ("localhost/old:1", "unused"),
    ] {
        assert_eq!(containerd.use_of(image).as_deref(), Some(used), "{image}");
    }

    // The one that runs is not ended by mistake; the dead one goes, and then its image is unused.
    let refused = runtime
        .remove(&Removal::Container(running.clone()))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("has not ended"), "{refused}");
    runtime
        .remove(&Removal::Container(dead.clone()))
        .await
        .unwrap();
    assert_eq!(state_of(&dead).await, None);
    assert_eq!(state_of(&running).await.unwrap().0, ContainerState::Running);
    // Once more: it is gone, as when a kubelet was faster.
    runtime.remove(&Removal::Container(dead)).await.unwrap();
    assert_eq!(
        containerd.use_of("localhost/short:1").as_deref(),
        Some("unused")
    );
    let images = runtime.inventory().await.unwrap().images;
    for name in ["localhost/short:1", "localhost/old:1"] {
        let image = images.iter().find(|image| image.is_named(name)).unwrap();
        let removal = Removal::Image(image.id.clone());
        runtime.remove(&removal).await.unwrap();
        runtime.remove(&removal).await.unwrap();
        assert_eq!(containerd.use_of(name), None);
    }

    let pod_sandbox_id = sandbox.clone();
    client
        .stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id })
        .await
        .unwrap();
    let pod_sandbox_id = sandbox;
    client
        .remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id })
        .await
        .unwrap();
}
