//! A node: containerd, kubelet, API server, `plimsoll-agent` and `plimsoll-cluster`, all as they are installed, in a
//! guest that is only there for this.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use plimsoll_cluster::call::{Answer, Call};
use serde_json::{Value, json};

use super::support::server::{Server, pod_path};
use super::support::{notes, until};
use super::vitals;

/// The node's name.
pub(crate) const NODE: &str = "node-1";
/// Of the pods' containers: the program `hog`.
const IMAGE: &str = "localhost/plimsoll/hog:1";
/// Of the sandboxes.
const SANDBOX_IMAGE: &str = "localhost/plimsoll/sandbox:1";
/// The end of the sandbox's command line.
const SANDBOX_SLEEP: &[u8] = b"sleep\x001000000\0";
/// Where the kubelet finds the manifests of static pods.
pub(crate) const STATIC_PODS: &str = "/run/manifests";
/// The HTTP end of `plimsoll-cluster`.
pub(crate) const CLUSTER_METRICS: &str = "/run/cluster-metrics.sock";
/// What the kubelet's CPU manager has given.
pub(crate) const CPU_MANAGER_STATE: &str = "/var/lib/kubelet/cpu_manager_state";
const CONTAINERD: &str = "/run/containerd/containerd.sock";
/// The node falls below the agent's threshold when pods have taken so much, MiB. Page faults are slow in a guest
/// without an emulator.
const HEADROOM_MIB: u64 = 200;
/// How long after the cgroup's end the API may be without the reason, before it is taken for lost: the kubelet has had
/// its last word then.
pub(crate) const LAST_WORD: Duration = Duration::from_secs(15);

/// Takes memory as soon as it is asked to.
pub(crate) const LEAK: [&str; 5] = ["/hog", "ramp", "--rate-mb-s", "25", "--wait-usr1"];

/// A process that ends with it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

fn start(program: impl AsRef<Path>, arguments: &[&str], log: &Path) -> Process {
    let program = program.as_ref();
    let file = File::options().create(true).append(true).open(log).unwrap();
    let mut command = Command::new(program);
    command.args(arguments).env("NODE_NAME", NODE);
    command
        .stdin(Stdio::null())
        .stderr(file.try_clone().unwrap());
    let child = command.stdout(file).spawn();
    Process(child.unwrap_or_else(|error| panic!("{program:?}: {error}")))
}

/// What a program says; it has to succeed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {text}{errors}"
    );
    text
}

/// All that runs on the node.
pub(crate) struct Machine {
    kubelet: Option<Process>,
    agent: Option<Process>,
    cluster: Option<Process>,
    pub(crate) server: Server,
    folder: PathBuf,
    /// The agent's threshold, MiB.
    threshold_mib: u64,
    started: Instant,
    /// Of the kubelet: what is added to [`KUBELET_CONFIG`].
    kubelet_config: String,
    _containerd: Process,
}

impl Machine {
    /// Starts everything. `None`: this is no guest for it, and that is noted.
    pub(crate) async fn start() -> Option<Self> {
        let Some(folder) = std::env::var_os("PLIMSOLL_NODE").map(PathBuf::from) else {
            notes::left_out(
                "needs a machine of its own with a kubelet: `cargo xtask test --cluster`",
            );
            return None;
        };
        let started = Instant::now();
        vitals::follow();
        let containerd = start_containerd(&folder).await;
        say(started, "containerd is there");
        let server = Server::start().await?;
        say(started, "the API server is there");
        let mut machine = Self {
            kubelet: None,
            agent: None,
            cluster: None,
            server,
            folder,
            threshold_mib: 0,
            started,
            kubelet_config: "evictionHard: {memory.available: 1Mi}".to_owned(),
            _containerd: containerd,
        };
        fs::create_dir_all(STATIC_PODS).unwrap();
        machine.start_kubelet();
        machine.is_ready_after(&Value::Null).await;
        machine.say(&format!(
            "the node is ready, kubelet {}",
            machine.kubelet_version().await
        ));
        machine.threshold_mib = available_mib() - HEADROOM_MIB;
        machine.start_agent();
        machine.start_cluster();
        Some(machine)
    }

    /// Waits until the kubelet says that the node is ready, at another time than this one.
    async fn is_ready_after(&self, heartbeat: &Value) {
        until("the node to be ready", async || {
            let ready = self.ready().await?;
            let is_new = ready["lastHeartbeatTime"] != *heartbeat;
            (is_new && ready["status"] == "True").then_some(())
        })
        .await;
    }

    /// The node's condition `Ready`.
    async fn ready(&self) -> Option<Value> {
        let node = self.server.get(&format!("/api/v1/nodes/{NODE}")).await?;
        let mut conditions = node["status"]["conditions"].as_array()?.iter();
        conditions.find(|one| one["type"] == "Ready").cloned()
    }

    /// Takes the threshold anew, for the agent that is started next: what runs on the node, and what tests have left,
    /// is not what leaks.
    pub(crate) async fn renew_threshold(&mut self) {
        self.threshold_mib = available_mib() - HEADROOM_MIB;
        self.kill_agent();
        self.start_agent();
        until("the agent to show the node", async || {
            self.top().map(|_| ())
        })
        .await;
    }

    pub(crate) fn threshold_mib(&self) -> u64 {
        self.threshold_mib
    }

    pub(crate) fn say(&self, what: &str) {
        say(self.started, what);
    }

    /// As the node says it: `v1.20.2`.
    pub(crate) async fn kubelet_version(&self) -> String {
        let node = format!("/api/v1/nodes/{NODE}");
        until("the kubelet's version", async || {
            let node = self.server.get(&node).await?;
            let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str()?;
            Some(version.to_owned())
        })
        .await
    }

    /// 36 of `v1.36.2`.
    pub(crate) async fn minor_version(&self) -> u32 {
        minor(&self.kubelet_version().await)
    }

    /// Whether the kubelet ends a pod whose status says `Failed`.
    pub(crate) async fn kubelet_heeds_status(&self) -> bool {
        self.minor_version().await >= 22
    }

    /// Makes the image of the programs as they are installed.
    pub(crate) fn import_programs(&self, name: &str) {
        let programs = ["plimsoll", "plimsoll-agent", "plimsoll-cluster"];
        let programs = programs.map(|name| self.folder.join(name));
        import(&programs, name, &["/plimsoll"]);
    }

    /// Puts the image of `cargo xtask image` onto the node, as the guide says it.
    pub(crate) fn import_image(&self) {
        let image = self.file("image.tar");
        output(
            "/usr/bin/ctr",
            &[
                "--namespace",
                "k8s.io",
                "images",
                "import",
                &image.to_string_lossy(),
            ],
        );
    }

    /// Pods' cgroups in which nothing may start.
    pub(crate) fn held(&self) -> Vec<PathBuf> {
        let pods = CLASSES.map(|class| fs::read_dir(class_cgroup(class)));
        let pods = pods.into_iter().flatten().flatten().flatten();
        let is_held = |dir: &PathBuf| {
            let text = fs::read_to_string(dir.join("cgroup.max.descendants"));
            text.is_ok_and(|text| text.trim() == "0")
        };
        pods.map(|entry| entry.path()).filter(is_held).collect()
    }

    pub(crate) fn start_kubelet(&mut self) {
        let kubeconfig = self.server.path("admin.conf");
        let config = self.server.path("kubelet.yaml");
        let more = &self.kubelet_config;
        let driver = if has_systemd_driver() {
            "systemd"
        } else {
            "cgroupfs"
        };
        let text = format!(
            "{KUBELET_CONFIG}cgroupDriver: {driver}\nstaticPodPath: {STATIC_PODS}\n{more}\n"
        );
        fs::write(&config, text).unwrap();
        let socket = format!("unix://{CONTAINERD}");
        let mut arguments = vec![
            "--kubeconfig".to_owned(),
            kubeconfig.to_string_lossy().into_owned(),
            format!("--config={}", config.to_string_lossy()),
            format!("--container-runtime-endpoint={socket}"),
            format!("--hostname-override={NODE}"),
            "--node-ip=10.0.2.15".to_owned(),
            "--v=2".to_owned(),
        ];
        let program = self.folder.join("kubelet");
        // Before 1.24 the default is docker; from 1.27 on the option is not known.
        if minor(&output(&program.to_string_lossy(), &["--version"])) < 24 {
            arguments.push("--container-runtime=remote".to_owned());
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.kubelet = Some(start(program, &arguments, Path::new("/out/kubelet.log")));
    }

    pub(crate) fn stop_kubelet(&mut self) {
        self.kubelet = None;
    }

    /// Starts the kubelet anew with these lines in its configuration, and returns what it had.
    pub(crate) async fn restart_kubelet_with(&mut self, config: String) -> String {
        self.stop_kubelet();
        let ready = until("the node's condition", async || self.ready().await).await;
        let before = std::mem::replace(&mut self.kubelet_config, config);
        // A kubelet does not start on the state of another policy.
        let _none = fs::remove_file(CPU_MANAGER_STATE);
        self.start_kubelet();
        self.is_ready_after(&ready["lastHeartbeatTime"]).await;
        before
    }

    pub(crate) fn start_agent(&mut self) {
        let threshold = format!("memory.available<{}Mi", self.threshold_mib);
        self.start_agent_with(&["--eviction-hard", &threshold]);
    }

    pub(crate) fn start_agent_with(&mut self, thresholds: &[&str]) {
        let always = [
            "--kubernetes",
            "--cluster-socket=/run/cluster.sock",
            "--keep-on-exit",
            "--output=json",
        ];
        let arguments = [&always, thresholds].concat();
        self.agent = Some(start(
            self.folder.join("plimsoll-agent"),
            &arguments,
            agent_log(),
        ));
    }

    /// Kills it.
    pub(crate) fn kill_agent(&mut self) {
        self.agent = None;
    }

    pub(crate) fn start_cluster(&mut self) {
        let kubeconfig = self.server.kubeconfig("cluster.conf");
        let kubeconfig = kubeconfig.to_string_lossy();
        let metrics = format!("--metrics=unix:{CLUSTER_METRICS}");
        let arguments = [
            "--socket=/run/cluster.sock",
            &metrics,
            "--kubeconfig",
            &kubeconfig,
        ];
        let program = env!("CARGO_BIN_EXE_plimsoll-cluster");
        let program = self.folder.join(Path::new(program).file_name().unwrap());
        self.cluster = Some(start(program, &arguments, Path::new("/out/cluster.log")));
    }

    pub(crate) fn kill_cluster(&mut self) {
        self.cluster = None;
    }

    /// What `plimsoll top --once` shows.
    pub(crate) fn top(&self) -> Option<String> {
        let program = self.folder.join("plimsoll");
        let output = Command::new(program)
            .args(["top", "--once"])
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What `plimsoll explain eviction` shows.
    pub(crate) fn explain(&self) -> String {
        let program = self.folder.join("plimsoll");
        output(&program.to_string_lossy(), &["explain", "eviction"])
    }

    /// What `plimsoll check` shows; its status says that this machine has not everything.
    pub(crate) fn check(&self) -> String {
        let output = Command::new(self.folder.join("plimsoll"))
            .arg("check")
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The process of `plimsoll-cluster`.
    pub(crate) fn cluster_pid(&self) -> u32 {
        self.cluster.as_ref().unwrap().0.id()
    }

    /// The agent's process.
    pub(crate) fn agent_pid(&self) -> u32 {
        self.agent.as_ref().unwrap().0.id()
    }

    /// Shows what `kubectl` says; nothing where there is none.
    pub(crate) fn show(&self, arguments: &[&str]) {
        if self.file("kubectl").is_file() {
            let _whatever_it_is = self.kubectl(&[&["--namespace", "shop"], arguments].concat());
        }
    }

    /// Runs `kubectl` and shows what it says. Whether it succeeded.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> bool {
        let mut kubectl = Command::new(self.file("kubectl"));
        let output = self.shown(kubectl.args(arguments), arguments);
        output.status.success()
    }

    /// Runs `kubectl`, which has to succeed, and returns what it says; that is shown, too.
    pub(crate) fn kubectl_says(&self, arguments: &[&str]) -> String {
        let mut kubectl = Command::new(self.file("kubectl"));
        let output = self.shown(kubectl.args(arguments), arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `kubectl plimsoll` and shows what it says, which has to have this in it. Its status is of what it was asked
    /// for: `check` on a node that has not everything is 1.
    pub(crate) fn kubectl_plimsoll(&self, arguments: &[&str], expected: &str) {
        let plugin = self.file("deploy/kubectl-plimsoll");
        let mut command = Command::new("/bin/sh");
        let output = self.shown(command.arg(plugin).args(arguments), arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(expected), "no {expected:?}: {output:?}");
    }

    fn shown(&self, command: &mut Command, arguments: &[&str]) -> Output {
        let command = command
            .env("KUBECONFIG", self.server.path("admin.conf"))
            .env("KUBECACHEDIR", "/run/kubectl");
        let output = command.output().unwrap();
        self.say(&format!("kubectl {}", arguments.join(" ")));
        println!("{}", String::from_utf8_lossy(&output.stdout));
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// A file that came with the guest.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether the node has what an operator installs with.
    pub(crate) fn has_operator(&self) -> bool {
        let names = ["kubectl", "kube-controller-manager", "kube-scheduler"];
        names.iter().all(|name| self.file(name).is_file())
    }

    /// Makes a pod of one container, `app`; `more` is put into its spec. Waits as [`Machine::runs`] does.
    pub(crate) async fn pod(
        &self,
        name: &str,
        command: &[&str],
        resources: Value,
        more: Value,
    ) -> Pod {
        let mut app = container("app", command);
        app["resources"] = resources;
        let mut spec = json!({"containers": [app]});
        if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
            spec.extend(more.clone());
        }
        let uid = self.create(name, spec).await;
        self.runs(name, &uid, "app").await
    }

    /// Makes a pod with this spec and what all of them have. Returns its UID.
    pub(crate) async fn create(&self, name: &str, mut spec: Value) -> String {
        drop_page_cache();
        let always = json!({"nodeName": NODE, "hostNetwork": true, "automountServiceAccountToken": false, "enableServiceLinks": false,
            "tolerations": [{"operator": "Exists"}]});
        if let (Some(spec), Some(always)) = (spec.as_object_mut(), always.as_object()) {
            spec.extend(always.clone());
        }
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": spec});
        let pods = "/api/v1/namespaces/shop/pods";
        let pod = self.server.create(pods, &pod).await;
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Waits until the API shows this container of a pod running, and the agent the pod's name.
    pub(crate) async fn runs(&self, name: &str, uid: &str, container: &str) -> Pod {
        let pod = self.runs_by_api(name, uid, container).await;
        let shown = format!("shop/{name} ");
        until(&format!("pod {name} to be shown"), async || {
            self.top().filter(|top| top.contains(&shown)).map(|_| ())
        })
        .await;
        pod
    }

    /// Waits until the API shows this container of a pod running.
    async fn runs_by_api(&self, name: &str, uid: &str, container: &str) -> Pod {
        until(&format!("{container} of pod {name} to run"), async || {
            let pod = self.server.get(&pod_path(name)).await?;
            let of = |key: &str| pod["status"][key].as_array().cloned().unwrap_or_default();
            let all = [of("containerStatuses"), of("initContainerStatuses")].concat();
            let is_running =
                |one: &&Value| one["name"] == container && one["state"]["running"].is_object();
            all.iter().find(is_running).map(|_| ())
        })
        .await;
        let cgroup = pod_cgroup(uid);
        self.say(&format!("pod {name} runs in {}", cgroup.to_string_lossy()));
        Pod {
            name: name.to_owned(),
            uid: uid.to_owned(),
            cgroup,
        }
    }

    /// A pod that takes memory as soon as it is asked to.
    pub(crate) async fn leaky(&self, name: &str) -> Pod {
        self.pod(
            name,
            &LEAK,
            json!({"requests": {"memory": "16Mi"}}),
            json!({}),
        )
        .await
    }

    /// As [`Machine::leaky`], where no agent may be there to show it.
    pub(crate) async fn leaky_by_api(&self, name: &str) -> Pod {
        let mut app = container("app", &LEAK);
        app["resources"] = json!({"requests": {"memory": "16Mi"}});
        let uid = self.create(name, json!({"containers": [app]})).await;
        self.runs_by_api(name, &uid, "app").await
    }

    /// Asks its `hog` to leak.
    pub(crate) fn begin_leak(&self, pod: &Pod) {
        for pid in pod.processes() {
            output("/bin/busybox", &["kill", "-USR1", &pid]);
        }
        self.say(&format!("pod {} leaks", pod.name));
    }

    /// Lets it leak, and waits until the agent has decided about it and its processes have ended.
    pub(crate) async fn leak(&self, pod: &Pod) {
        let sandbox = pod.sandbox();
        self.begin_leak(pod);
        until("the decision", async || {
            said("\"evict\"", &pod.uid).then_some(())
        })
        .await;
        until("the end of its processes", async || {
            pod.processes().is_empty().then_some(())
        })
        .await;
        self.say(&format!("pod {} was killed", pod.name));
        // By its age or by the ids of containers the agent knows it; its kubelet may have ended it already.
        let is_there = !pids(&sandbox).is_empty();
        let state = if is_there { "runs" } else { "has ended" };
        self.say(&format!("its sandbox {state}"));
    }

    /// Waits for what the pod's owner is to find in the end; nothing may run in the pod meanwhile.
    pub(crate) async fn is_evicted(&self, pod: &Pod) -> Eviction {
        let heeds_status = self.kubelet_heeds_status().await;
        let mut seen = Value::Null;
        let mut ended = None::<Instant>;
        until("the API to show the eviction", async || {
            assert_eq!(pod.processes(), [""; 0], "a container was started again");
            match self
                .server
                .admin
                .call(&Call::get("test", pod_path(&pod.name)))
                .await
            {
                Answer::Done(body) => seen = serde_json::from_slice(&body).unwrap(),
                Answer::Refused(refusal) if refusal.code == 404 && !heeds_status => return Some(()),
                _ => return None,
            }
            if !heeds_status || pod.cgroup.exists() {
                return None;
            }
            let had_last_word = ended.get_or_insert_with(Instant::now).elapsed() >= LAST_WORD;
            (is_shown(&seen["status"]) || had_last_word && keeps_its_story(&seen)).then_some(())
        })
        .await;
        if heeds_status && !is_shown(&seen["status"]) {
            notes::note(format!("{}: the kubelet has dropped the reason", pod.name));
        }
        self.say(&format!("the API shows it: {}", shown(&seen)));
        until("the pod's cgroup to go", async || {
            (!pod.cgroup.exists()).then_some(())
        })
        .await;
        self.say("the kubelet has removed its cgroup");
        let (ours, all) = until("the Event", async || {
            let events = self.server.get("/api/v1/namespaces/shop/events").await?;
            let about = |event: &&Value| event["involvedObject"]["uid"] == pod.uid.as_str();
            let all: Vec<Value> = events["items"]
                .as_array()?
                .iter()
                .filter(about)
                .cloned()
                .collect();
            let is_ours = |event: &&Value| event["reason"] == "Evicted";
            let ours: Vec<Value> = all.iter().filter(is_ours).cloned().collect();
            (!ours.is_empty()).then_some((ours, all))
        })
        .await;
        for event in &all {
            self.say(&format!(
                "Event {} ({}): {}",
                event["reason"], event["count"], event["message"]
            ));
        }
        assert_eq!(ours.len(), 1, "{ours:#?}");
        let message = ours[0]["message"].as_str().unwrap();
        assert!(
            message.starts_with("The node was low on resource: memory."),
            "{message}"
        );
        // Where the object is deleted, nobody may have looked in between.
        if seen["status"]["phase"] == "Failed" {
            let annotation = seen["metadata"]["annotations"]["plimsoll.dev/evicted"].as_str();
            let rank = 1 + exempt_before(message);
            let ranked = format!(" memory.available rank={rank}/");
            assert!(
                annotation.is_some_and(|text| text.contains(&ranked)),
                "{seen:#}"
            );
        }
        let restarts = &seen["status"]["containerStatuses"][0]["restartCount"];
        let restarts = restarts.as_u64().unwrap_or_default();
        self.say(&format!("{restarts} starts were refused"));
        Eviction {
            restarts,
            event: ours.into_iter().next().unwrap(),
        }
    }
}

/// What the owner of a pod finds.
#[derive(Debug)]
pub(crate) struct Eviction {
    /// How often its first container was to be started again; that nothing ran is seen already.
    pub(crate) restarts: u64,
    /// Plimsoll's, the only one.
    pub(crate) event: Value,
}

/// How many pods that never go were ranked before the one whose eviction this says.
fn exempt_before(message: &str) -> u32 {
    let count = message
        .split_once(" before it exempt")
        .and_then(|(before, _)| before.rsplit(' ').next());
    count.map_or(0, |count| count.parse().unwrap())
}

/// Phase and reason of an evicted pod that the API shows.
pub(crate) fn is_shown(status: &Value) -> bool {
    status["phase"] == "Failed" && status["reason"] == "Evicted"
}

/// What every evicted pod keeps, be its reason dropped or not.
pub(crate) fn keeps_its_story(pod: &Value) -> bool {
    let status = &pod["status"];
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    status["phase"] == "Failed"
        && pod["metadata"]["annotations"]["plimsoll.dev/evicted"].is_string()
        && conditions.any(|one| one["type"] == "DisruptionTarget")
}

/// Phase, reason and conditions.
fn shown(pod: &Value) -> String {
    let status = &pod["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let disrupted = conditions
        .filter(|one| one["type"] == "DisruptionTarget")
        .count();
    format!(
        "phase {}, reason {}, {disrupted} DisruptionTarget, {}",
        status["phase"], status["reason"], pod["metadata"]["annotations"]
    )
}

/// A pod on the node.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) cgroup: PathBuf,
}

impl Pod {
    /// The cgroups below it.
    fn groups(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.cgroup).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect()
    }

    /// The cgroup of its sandbox, by what runs in it.
    pub(crate) fn sandbox(&self) -> PathBuf {
        let is_sandbox = |pid: &String| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.ends_with(SANDBOX_SLEEP)
        };
        let mut groups = self.groups().into_iter();
        groups
            .find(|group| pids(group).iter().any(is_sandbox))
            .unwrap()
    }

    /// The processes of `hog` in it.
    pub(crate) fn processes(&self) -> Vec<String> {
        let is_hog = |pid: &String| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "hog")
        };
        self.groups()
            .iter()
            .flat_map(|group| pids(group))
            .filter(is_hog)
            .collect()
    }
}

/// A container of a pod; what it runs is in the image.
pub(crate) fn container(name: &str, command: &[&str]) -> Value {
    json!({"name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": command})
}

/// 36 of `v1.36.2`, with whatever is before it.
fn minor(version: &str) -> u32 {
    let minor = version.split_once("v1.").unwrap().1.split('.').next();
    minor.unwrap().parse().unwrap()
}

pub(crate) fn pids(cgroup: &Path) -> Vec<String> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// QoS classes as cgroups have them; pods of the class Guaranteed are beside the others.
const CLASSES: [&str; 3] = ["", "burstable", "besteffort"];

/// Whether systemd makes the pods' cgroups.
fn has_systemd_driver() -> bool {
    std::env::var_os("PLIMSOLL_CGROUP_DRIVER").is_some_and(|driver| driver == "systemd")
}

/// The cgroup of a QoS class, by the kubelet's names.
fn class_cgroup(class: &str) -> PathBuf {
    let all = Path::new("/sys/fs/cgroup");
    match (has_systemd_driver(), class) {
        (false, _) => all.join("kubepods").join(class),
        (true, "") => all.join("kubepods.slice"),
        (true, _) => all.join(format!("kubepods.slice/kubepods-{class}.slice")),
    }
}

/// The cgroup of a pod, by the kubelet's names.
pub(crate) fn pod_cgroup(uid: &str) -> PathBuf {
    let of_class = |class: &str| {
        let name = match (has_systemd_driver(), class) {
            (false, _) => format!("pod{uid}"),
            (true, "") => format!("kubepods-pod{}.slice", uid.replace('-', "_")),
            (true, _) => format!("kubepods-{class}-pod{}.slice", uid.replace('-', "_")),
        };
        class_cgroup(class).join(name)
    };
    let mut all = CLASSES.into_iter().map(of_class);
    all.find(|path| path.is_dir()).unwrap()
}

/// The cgroup of a container of it, by the runtime's names.
pub(crate) fn container_cgroup(pod: &Path, id: &str) -> PathBuf {
    match has_systemd_driver() {
        true => pod.join(format!("cri-containerd-{id}.scope")),
        false => pod.join(id),
    }
}

pub(crate) fn agent_log() -> &'static Path {
    Path::new("/out/agent.log")
}

/// Whether the agent has written a line with both words.
pub(crate) fn said(word: &str, uid: &str) -> bool {
    times_said(word, uid) > 0
}

/// How many lines with both words the agents have written.
pub(crate) fn times_said(word: &str, uid: &str) -> usize {
    let log = fs::read_to_string(agent_log()).unwrap_or_default();
    log.lines()
        .filter(|line| line.contains(word) && line.contains(uid))
        .count()
}

fn say(started: Instant, what: &str) {
    println!("{:7.1} s  {what}", started.elapsed().as_secs_f64());
}

/// What the kubelet and the agent call available, with an empty page cache.
fn available_mib() -> u64 {
    drop_page_cache();
    free_mib()
}

/// What the kubelet and the agent call available: capacity minus working set.
pub(crate) fn free_mib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let kib = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.unwrap().split_whitespace().next();
        number.unwrap().parse().unwrap()
    };
    (kib("MemFree:") + kib("Inactive(file):")) / 1024
}

/// Takes memory, until no more than this is available. A file takes it: page faults of a process are slow here.
pub(crate) struct Ballast;

impl Ballast {
    const DIRECTORY: &str = "/run/ballast";

    pub(crate) fn until_available(mib: u64) -> Self {
        fs::create_dir_all(Self::DIRECTORY).unwrap();
        let mount = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            "size=100%",
            "none",
            Self::DIRECTORY,
        ];
        output("/bin/busybox", &mount);
        let mut file = File::create(Path::new(Self::DIRECTORY).join("file")).unwrap();
        let piece = vec![1; 4 << 20];
        drop_page_cache();
        while free_mib() > mib {
            file.write_all(&piece).unwrap();
        }
        Self
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        output("/bin/busybox", &["umount", Self::DIRECTORY]);
    }
}

/// What programs are read from counts as used; it is not to cross a threshold by itself.
fn drop_page_cache() {
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
}

/// Its own eviction is set apart: of 1.20 it works on cgroup v1 alone.
const KUBELET_CONFIG: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
";

/// Its last table goes on with what makes the containers.
const CONTAINERD_CONFIG: &str = "\
version = 2
[plugins.\"io.containerd.grpc.v1.cri\"]
  sandbox_image = \"localhost/plimsoll/sandbox:1\"
  [plugins.\"io.containerd.grpc.v1.cri\".cni]
    bin_dir = \"/run\"
    conf_dir = \"/run/cni\"
  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]
    runtime_type = \"io.containerd.runc.v2\"
    [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]
";

async fn start_containerd(folder: &Path) -> Process {
    fs::create_dir_all("/run/cni").unwrap();
    // Its presence makes the node ready. All pods here are on the node's network.
    let network = json!({"cniVersion": "0.3.1", "name": "none", "plugins": [{"type": "loopback"}]});
    fs::write("/run/cni/10-none.conflist", network.to_string()).unwrap();
    let config = format!(
        "{CONTAINERD_CONFIG}      SystemdCgroup = {}\n",
        has_systemd_driver()
    );
    fs::write("/run/containerd.toml", config).unwrap();
    let process = start(
        "/usr/bin/containerd",
        &["--config", "/run/containerd.toml"],
        Path::new("/out/containerd.log"),
    );
    until("containerd", async || {
        let version = Command::new("/usr/bin/ctr").arg("version").output();
        version
            .is_ok_and(|output| output.status.success())
            .then_some(())
    })
    .await;
    let files = [folder.join("hog"), PathBuf::from("/bin/busybox")];
    import(&files, SANDBOX_IMAGE, &["/busybox", "sleep", "1000000"]);
    import(&files, IMAGE, &["/hog"]);
    process
}

/// Makes an image of these files, in the form that `docker save` writes.
fn import(files: &[PathBuf], name: &str, entrypoint: &[&str]) {
    let work = Path::new("/run/image");
    let root = work.join("root");
    fs::create_dir_all(&root).unwrap();
    for file in files {
        fs::copy(file, root.join(file.file_name().unwrap())).unwrap();
    }
    let path = |name: &str| work.join(name).to_string_lossy().into_owned();
    output(
        "/bin/busybox",
        &["tar", "-C", &path("root"), "-cf", &path("layer.tar"), "."],
    );
    let sum = output("/bin/busybox", &["sha256sum", &path("layer.tar")]);
    let sum = sum.split_whitespace().next().unwrap();
    let config = json!({"architecture": "amd64", "os": "linux", "config": {"Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]}});
    fs::write(work.join("config.json"), config.to_string()).unwrap();
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    fs::write(work.join("manifest.json"), manifest.to_string()).unwrap();
    output(
        "/bin/busybox",
        &[
            "tar",
            "-C",
            &path(""),
            "-cf",
            "/run/image.tar",
            "manifest.json",
            "config.json",
            "layer.tar",
        ],
    );
    output(
        "/usr/bin/ctr",
        &["-n", "k8s.io", "images", "import", "/run/image.tar"],
    );
    fs::remove_dir_all(work).unwrap();
    fs::remove_file("/run/image.tar").unwrap();
}
