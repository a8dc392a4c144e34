//! etcd and kube-apiserver as plain processes on loopback, without a machine of their own.

use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use plimsoll_cluster::api::{Api, Source};
use plimsoll_cluster::call::{Answer, Call, Content, Refusal, Verb};
use plimsoll_cluster::metrics::Metrics;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::until;

/// The token of who may do everything.
const ADMIN: &str = "admin-token";
/// The token that the program under test has.
pub(crate) const CLUSTER: &str = "cluster-token";

/// How often kube-apiserver is started until it serves.
const STARTS_MAX: u32 = 20;
/// How often a server that does not answer is asked, and with which pause.
const ASKED_MAX: u32 = 1000;
const ASKED_EVERY: Duration = Duration::from_millis(200);

/// Ports of servers: below those that the kernel gives to connections (`net.ipv4.ip_local_port_range`).
const PORTS: Range<u16> = 12_000..32_000;
/// That much has to be free in memory for the data of an etcd, which keeps two files of 64 MB for its log alone.
const DATA_BYTES_FREE: u64 = 2 << 30;

/// The address of the API server's own service, the first of its range.
pub(crate) const SERVICE: &str = "10.0.0.1";
/// What kube-apiserver is told of its admission plugins when it starts, if a test has written it.
pub(crate) const ADMISSION: &str = "admission.yaml";
/// The programs of a control plane that act by themselves.
const CONTROL: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

fn set(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// The cache of `cargo xtask`.
pub(crate) fn cache() -> Option<PathBuf> {
    set("PLIMSOLL_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("plimsoll")))
        .or_else(|| Some(set("HOME")?.join(".cache/plimsoll")))
}

/// Where `cargo xtask kubernetes` puts the binaries; `None`: not there.
fn binaries() -> Option<PathBuf> {
    let folder = set("PLIMSOLL_KUBERNETES").or_else(|| Some(cache()?.join("kubernetes/1.20.2")))?;
    let has = |name: &str| folder.join(name).is_file();
    (has("etcd") && has("kube-apiserver")).then_some(folder)
}

/// Who has which token: the program under test has this one.
fn tokens(cluster: &str) -> String {
    format!("{ADMIN},admin,1,system:masters\n{cluster},cluster,2,\n")
}

/// A certificate authority, and a certificate of loopback that it signed.
struct Certificates {
    authority: String,
    certificate: String,
    key: String,
}

impl Certificates {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let names = ["127.0.0.1", "localhost", SERVICE];
        let names = names.map(str::to_owned).to_vec();
        let certificate = CertificateParams::new(names)
            .unwrap()
            .signed_by(&key, &issuer)
            .unwrap()
            .pem();
        Self {
            authority,
            certificate,
            key: key.serialize_pem(),
        }
    }
}

impl Certificates {
    fn write(&self, folder: &Path) {
        for (name, text) in [
            ("ca.crt", &self.authority),
            ("tls.crt", &self.certificate),
            ("tls.key", &self.key),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
    }
}

/// A running API server with its etcd; both end with it.
pub(crate) struct Server {
    pub(crate) folder: TempDir,
    /// Where its programs write what they say.
    logs: PathBuf,
    binaries: PathBuf,
    etcd: Child,
    /// Its data, where they are in memory.
    _data: Option<TempDir>,
    etcd_port: u16,
    pub(crate) port: u16,
    api_server: Mutex<Option<Child>>,
    /// As the administrator.
    pub(crate) admin: Api,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ended = (self.etcd.kill(), self.etcd.wait());
    }
}

/// Scheduler and controllers of a server; they end with it.
pub(crate) struct Control {
    children: Mutex<Vec<Child>>,
}

impl Control {
    /// None of them has ended.
    pub(crate) fn check(&self) {
        for child in &mut *self.children.lock().unwrap() {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "{CONTROL:?}: one ended with {ended:?}");
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let children = self.children.get_mut();
        for child in children.unwrap_or_else(PoisonError::into_inner) {
            let _ended = (child.kill(), child.wait());
        }
    }
}

/// Whether a program opens a port without TLS besides, always the same one, as it did before 1.23.
fn has_open_port(program: &Path) -> bool {
    let said = Command::new(program).arg("--version").output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let minor = said.split('.').nth(1).and_then(|minor| minor.parse().ok());
    minor.is_some_and(|minor: u32| minor < 23)
}

/// Whether the scheduler and the controllers are there, of the version of the API server. `false`: they are not, and
/// that is noted.
pub(crate) fn has_control() -> bool {
    let is_elsewhere =
        std::env::var_os("PLIMSOLL_KUBERNETES").is_some_and(|folder| folder == "elsewhere");
    let missing = |name: &&&str| !binaries().is_some_and(|folder| folder.join(name).is_file());
    let missing: Vec<&str> = CONTROL.iter().filter(missing).copied().collect();
    if !is_elsewhere && !missing.is_empty() {
        super::notes::left_out(format_args!(
            "no {} beside kube-apiserver: `cargo xtask kubernetes test` builds them once",
            missing.join(" and ")
        ));
    }
    is_elsewhere || missing.is_empty()
}

static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
static STARTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The server of all tests that leave it as it is. `None`: there are no binaries, and that is noted.
pub(crate) async fn shared() -> Option<Arc<Server>> {
    let _one_at_a_time = STARTING.lock().await;
    if let Some(server) = SHARED.lock().unwrap().upgrade() {
        return Some(server);
    }
    let server = Arc::new(Server::start().await?);
    *SHARED.lock().unwrap() = Arc::downgrade(&server);
    Some(server)
}

/// A port that nobody listens at. No connection gets it as its own before it is used: the kernel gives those from 32768
/// on, and each port here is handed out once.
pub(crate) fn free_port() -> u16 {
    static HANDED_OUT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Another process of tests begins elsewhere.
        let at = std::process::id() * 64 + HANDED_OUT.fetch_add(1, Relaxed);
        let port = PORTS.start + u16::try_from(at % u32::try_from(PORTS.len()).unwrap()).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A folder in memory, of which etcd has more than enough: it waits for its disk at each change, and a machine that
/// builds keeps the disk busy. `None`: there is none, or the memory of this machine is what is tested.
fn in_memory() -> Option<TempDir> {
    let is_node = std::env::var_os("PLIMSOLL_NODE").is_some();
    let memory = Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).ok()?;
    let has_room = free.f_bavail.saturating_mul(free.f_frsize) >= DATA_BYTES_FREE;
    let folder = (!is_node && has_room).then(|| {
        tempfile::Builder::new()
            .prefix("plimsoll-etcd-")
            .tempdir_in(memory)
    });
    folder?.ok()
}

/// Starts a program with its output in this file; that of the start before is beside it.
fn spawn(program: &Path, arguments: &[String], log: &Path) -> Child {
    let _none = fs::rename(log, log.with_extension("before.log"));
    let log = File::create(log).unwrap();
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Where the object is that this call has made.
fn path_of_made(call: &Call) -> String {
    let body: Value = serde_json::from_slice(&call.body).unwrap();
    let collection = call.path.split('?').next().unwrap();
    format!(
        "{collection}/{}",
        body["metadata"]["name"].as_str().unwrap()
    )
}

impl Server {
    /// One for a test alone.
    pub(crate) async fn start() -> Option<Self> {
        if std::env::var_os("PLIMSOLL_KUBERNETES").is_some_and(|folder| folder == "elsewhere") {
            super::notes::left_out("needs an API server: the stage `API server` runs it");
            return None;
        }
        let Some(binaries) = binaries() else {
            super::notes::left_out(
                "no kube-apiserver and etcd here: `cargo xtask kubernetes up` builds them once",
            );
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // Of a node they outlive the machine.
        let logs = std::env::var_os("PLIMSOLL_SERVER_LOGS");
        let logs = logs.map_or_else(|| folder.path().to_owned(), PathBuf::from);
        Certificates::new().write(folder.path());
        let write = |name: &str, text: &str| fs::write(at(name), text).unwrap();
        let service = KeyPair::generate().unwrap();
        write("service.key", &service.serialize_pem());
        write("service.pub", &service.public_key_pem());
        write("tokens.csv", &tokens(CLUSTER));
        write("token", CLUSTER);
        let (etcd_port, peer_port, port) = (free_port(), free_port(), free_port());
        let data = in_memory();
        let data_folder = data
            .as_ref()
            .map_or_else(|| at("etcd"), |data| data.path().join("etcd"));
        let etcd = [
            "--data-dir",
            &data_folder.to_string_lossy(),
            "--log-level",
            "error",
        ]
        .map(str::to_owned);
        let urls = [
            ("listen-client-urls", etcd_port),
            ("advertise-client-urls", etcd_port),
            ("listen-peer-urls", peer_port),
            ("initial-advertise-peer-urls", peer_port),
        ];
        let urls = urls.map(|(name, port)| format!("--{name}=http://127.0.0.1:{port}"));
        let cluster = format!("--initial-cluster=default=http://127.0.0.1:{peer_port}");
        let arguments: Vec<String> = etcd.into_iter().chain(urls).chain([cluster]).collect();
        let etcd = spawn(&binaries.join("etcd"), &arguments, &logs.join("etcd.log"));
        let admin = folder.path().join("admin.conf");
        write_kubeconfig(&admin, port, &format!("token: {ADMIN}"), &at("ca.crt"));
        let admin = Api::new(Source::Kubeconfig(admin), Arc::new(Metrics::new()))
            .await
            .unwrap();
        let server = Self {
            folder,
            logs,
            binaries,
            etcd,
            _data: data,
            etcd_port,
            port,
            api_server: Mutex::default(),
            admin,
        };
        server.run().await;
        server
            .create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}))
            .await;
        server.grant(&RIGHTS).await;
        Some(server)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts kube-apiserver, and waits until it serves. It gives up by itself, in many words, where etcd or the
    /// machine is slow (its hooks have half a minute), and is then started again.
    pub(crate) async fn run(&self) {
        let file = |name: &str| self.path(name).to_string_lossy().into_owned();
        let mut arguments = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--secure-port={}", self.port),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            format!("--cert-dir={}", file("")),
            format!("--tls-cert-file={}", file("tls.crt")),
            format!("--tls-private-key-file={}", file("tls.key")),
            format!("--token-auth-file={}", file("tokens.csv")),
            format!("--service-account-key-file={}", file("service.pub")),
            format!("--service-account-signing-key-file={}", file("service.key")),
            "--service-account-issuer=https://127.0.0.1".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--watch-cache=true".to_owned(),
        ];
        if self.path(ADMISSION).exists() {
            let file = file(ADMISSION);
            arguments.push(format!("--admission-control-config-file={file}"));
        }
        let program = self.binaries.join("kube-apiserver");
        let log = self.logs.join("kube-apiserver.log");
        let start = || spawn(&program, &arguments, &log);
        *self.api_server.lock().unwrap() = Some(start());
        let mut starts = 1;
        let ready = Call::get("readyz", "/readyz".to_owned());
        until("the API server to be ready", async || {
            if let Some(child) = &mut *self.api_server.lock().unwrap()
                && let Ok(Some(status)) = child.try_wait()
            {
                let text = fs::read_to_string(&log).unwrap_or_default();
                let end: Vec<&str> = text.lines().rev().take(10).collect();
                assert!(
                    starts < STARTS_MAX,
                    "kube-apiserver ended with {status}, at start {starts}: {end:#?}"
                );
                *child = start();
                starts += 1;
            }
            matches!(self.admin.call(&ready).await, Answer::Done(_)).then_some(())
        })
        .await;
    }

    /// Starts kube-controller-manager and kube-scheduler, as the administrator. That a node says nothing does not make
    /// it unhealthy: none here has a kubelet.
    pub(crate) fn control(&self) -> Control {
        let admin = self.path("admin.conf").to_string_lossy().into_owned();
        let start = |name: &str| {
            let folder = self.path(&format!("{name}.certificates"));
            let mut arguments = vec![
                format!("--kubeconfig={admin}"),
                format!("--secure-port={}", free_port()),
                format!("--cert-dir={}", folder.to_string_lossy()),
                "--bind-address=127.0.0.1".to_owned(),
                "--leader-elect=false".to_owned(),
            ];
            if name == CONTROL[0] {
                let file = |name: &str| self.path(name).to_string_lossy().into_owned();
                arguments.extend([
                    "--node-monitor-grace-period=24h".to_owned(),
                    format!("--root-ca-file={}", file("ca.crt")),
                    format!("--service-account-private-key-file={}", file("service.key")),
                ]);
            }
            let program = self.binaries.join(name);
            if has_open_port(&program) {
                arguments.push("--port=0".to_owned());
            }
            let log = self.logs.join(format!("{name}.log"));
            spawn(&program, &arguments, &log)
        };
        Control {
            children: Mutex::new(CONTROL.map(start).into()),
        }
    }

    /// Another token of the program under test, in its file at once, and for the next start the only one that it has.
    pub(crate) fn replace_token(&self, token: &str) {
        fs::write(self.path("tokens.csv"), tokens(token)).unwrap();
        fs::write(self.path("token"), token).unwrap();
    }

    /// Another authority, for the next start.
    pub(crate) fn replace_authority(&self) {
        Certificates::new().write(self.folder.path());
    }

    /// Ends kube-apiserver at once.
    pub(crate) fn stop(&self) {
        if let Some(mut child) = self
            .api_server
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            let _ended = (child.kill(), child.wait());
        }
    }

    /// What the API server answers the administrator. One that is too slow, or has trouble of its own, is asked again.
    /// `was_lost`: it may have done before what it was asked to.
    async fn asked(&self, call: &Call) -> (Result<Vec<u8>, Refusal>, bool) {
        let mut was_lost = false;
        let mut last = String::new();
        for _ in 0..ASKED_MAX {
            match self.admin.call(call).await {
                Answer::Done(body) => return (Ok(body), was_lost),
                Answer::Refused(refusal) if !refusal.is_passing() => {
                    return (Err(refusal), was_lost);
                }
                // By 500 and more it says that it does not know what became of it.
                Answer::Refused(refusal) => {
                    was_lost |= refusal.code >= 500;
                    last = format!("{refusal:?}");
                }
                Answer::Lost(why) => {
                    was_lost = true;
                    last = why;
                }
            }
            tokio::time::sleep(ASKED_EVERY).await;
        }
        let what = format!("{} {}", call.verb.name(), call.path);
        panic!("{what}: no answer comes, at last {last}");
    }

    /// What the API server says to this call of the administrator, which changes nothing if it is made twice.
    pub(crate) async fn answer(&self, call: &Call) -> Result<Vec<u8>, Refusal> {
        self.asked(call).await.0
    }

    /// As the administrator; what comes must be a success. Not for what names the version that it changes: see
    /// [`Server::change`].
    pub(crate) async fn must(&self, call: &Call) -> Value {
        let mut was_lost = false;
        for _ in 0..ASKED_MAX {
            let (answer, is_lost) = self.asked(call).await;
            was_lost |= is_lost;
            let refusal = match answer {
                Ok(body) => return serde_json::from_slice(&body).unwrap(),
                Err(refusal) => refusal,
            };
            match (call.verb, refusal.code) {
                (Verb::Post, 409) if was_lost => {
                    if let Some(made) = self.get(&path_of_made(call)).await {
                        return made;
                    }
                }
                (Verb::Delete, 404) if was_lost => return Value::Null,
                // Others have changed it again and again while the API server merged the patch.
                (Verb::Patch, 409) => {}
                _ => panic!("{} {}: {refusal:?}", call.verb.name(), call.path),
            }
            tokio::time::sleep(ASKED_EVERY).await;
        }
        panic!("{} {}: no answer comes", call.verb.name(), call.path);
    }

    /// Reads an object, changes it, and replaces it, as often as it takes. `query`: of the path that is written to.
    pub(crate) async fn change(&self, path: &str, query: &str, change: impl Fn(&mut Value)) {
        until(&format!("{path} to be changed"), async || {
            let mut object = self.get(path).await?;
            change(&mut object);
            let call = Call {
                verb: Verb::Put,
                resource: "test",
                path: format!("{path}{query}"),
                content: Content::Json,
                body: object.to_string().into_bytes(),
            };
            match self.answer(&call).await {
                Ok(_) => Some(()),
                // Another one was faster, or the same call before, whose answer was lost.
                Err(refusal) if refusal.code == 409 => None,
                Err(refusal) => panic!("PUT {path}: {refusal:?}"),
            }
        })
        .await;
    }

    pub(crate) async fn create(&self, path: &str, body: &Value) -> Value {
        self.must(&Call::write(
            Verb::Post,
            "test",
            path,
            Content::Json,
            body,
            false,
        ))
        .await
    }

    /// An object or a list as it is; `None`: there is none.
    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        match self.answer(&Call::get("test", path.to_owned())).await {
            Ok(body) => Some(serde_json::from_slice(&body).unwrap()),
            Err(refusal) if refusal.code == 404 => None,
            Err(refusal) => panic!("GET {path}: {refusal:?}"),
        }
    }

    /// The objects of a collection, read in parts: one answer has no more than 4 MiB.
    pub(crate) async fn items(&self, collection: &str) -> Vec<Value> {
        let (mut items, mut next) = (Vec::new(), String::new());
        loop {
            let separator = if collection.contains('?') { '&' } else { '?' };
            let part = format!("{collection}{separator}limit=100&continue={next}");
            let list = self.get(&part).await.unwrap();
            items.extend(list["items"].as_array().unwrap().iter().cloned());
            let more = list["metadata"]["continue"].as_str();
            more.unwrap_or_default().clone_into(&mut next);
            if next.is_empty() {
                return items;
            }
        }
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Value {
        self.must(&Call::write(
            Verb::Patch,
            "test",
            path,
            Content::StrategicMerge,
            body,
            false,
        ))
        .await
    }

    pub(crate) async fn delete(&self, path: &str) {
        let body = json!({"gracePeriodSeconds": 0});
        self.must(&Call::write(
            Verb::Delete,
            "test",
            path,
            Content::Json,
            &body,
            false,
        ))
        .await;
    }

    /// A node object of this name.
    pub(crate) async fn node(&self, name: &str, kubelet_version: &str) {
        self.create("/api/v1/nodes", &json!({"metadata": {"name": name}}))
            .await;
        let status = json!({"status": {"nodeInfo": {"kubeletVersion": kubelet_version},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}});
        self.patch(&format!("/api/v1/nodes/{name}/status"), &status)
            .await;
    }

    /// A pod that runs on the node. Returns its UID.
    pub(crate) async fn pod(&self, node: &str, name: &str) -> String {
        self.pod_with(node, name, 0).await
    }

    /// One of some 12 kB, as they are with `managedFields` and what `kubectl apply` leaves.
    pub(crate) async fn large_pod(&self, node: &str, name: &str) -> String {
        self.pod_with(node, name, 10_000).await
    }

    async fn pod_with(&self, node: &str, name: &str, padding: usize) -> String {
        let applied =
            json!({"kubectl.kubernetes.io/last-applied-configuration": "x".repeat(padding)});
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}, "annotations": applied}, "spec": {"nodeName": node,
            "containers": [{"name": "app", "image": "i", "resources": {"requests": {"memory": "64Mi"}}}]}});
        let pod = self.create("/api/v1/namespaces/shop/pods", &pod).await;
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        self.patch(&format!("{}/status", pod_path(name)), &status)
            .await;
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// A pod as it is; null: there is none.
    pub(crate) async fn seen(&self, name: &str) -> Value {
        self.get(&pod_path(name)).await.unwrap_or_default()
    }

    /// The rights of the program under test. Returns when the API server goes by them, which it hears of by a watch of
    /// its own.
    pub(crate) async fn grant(&self, rights: &[(&str, &str, &[&str])]) {
        let rules: Vec<Value> = rights
            .iter()
            .map(|(group, resource, verbs)| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs}))
            .collect();
        let path = "/apis/rbac.authorization.k8s.io/v1";
        let role = format!("{path}/clusterroles/plimsoll");
        if self.get(&role).await.is_some() {
            self.merge(&role, &json!({"rules": rules})).await;
        } else {
            let role = json!({"metadata": {"name": "plimsoll"}, "rules": rules});
            self.create(&format!("{path}/clusterroles"), &role).await;
            let binding = json!({"metadata": {"name": "plimsoll"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "plimsoll"},
                "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "cluster"}]});
            self.create(&format!("{path}/clusterrolebindings"), &binding)
                .await;
        }
        for (group, resource, verbs) in RIGHTS {
            for verb in verbs {
                let is_granted = rights
                    .iter()
                    .any(|it| (it.0, it.1) == (group, resource) && it.2.contains(verb));
                until("the rights to be in force", async || {
                    (self.may(group, resource, verb).await == is_granted).then_some(())
                })
                .await;
            }
        }
    }

    /// Whether the API server lets the program under test do this.
    async fn may(&self, group: &str, resource: &str, verb: &str) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let asked =
            json!({"group": group, "resource": resource, "subresource": subresource, "verb": verb});
        let review = json!({"spec": {"user": "cluster", "resourceAttributes": asked}});
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = self.create(path, &review).await;
        answer["status"]["allowed"].as_bool().unwrap()
    }

    /// A kubeconfig with this token.
    pub(crate) fn kubeconfig_of(&self, name: &str, token: &str) -> PathBuf {
        let path = self.path(name);
        write_kubeconfig(
            &path,
            self.port,
            &format!("token: {token}"),
            &self.path("ca.crt"),
        );
        path
    }

    /// A merge patch.
    pub(crate) async fn merge(&self, path: &str, body: &Value) -> Value {
        self.must(&Call::write(
            Verb::Patch,
            "test",
            path,
            Content::Merge,
            body,
            false,
        ))
        .await
    }

    /// Deletes what has no grace.
    pub(crate) async fn delete_plain(&self, path: &str) {
        let call = Call::write(Verb::Delete, "test", path, Content::Json, &json!({}), false);
        self.must(&call).await;
    }

    /// A kubeconfig for the program under test.
    pub(crate) fn kubeconfig(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let token = format!("tokenFile: {}", self.path("token").to_string_lossy());
        write_kubeconfig(&path, self.port, &token, &self.path("ca.crt"));
        path
    }
}

/// What docs/reference/cluster.md says is needed, options included.
pub(crate) const RIGHTS: [(&str, &str, &[&str]); 8] = [
    ("", "pods", &["get", "list", "watch", "delete"]),
    ("", "pods/status", &["patch"]),
    ("", "pods/eviction", &["create"]),
    ("", "nodes", &["get", "list", "watch", "patch"]),
    ("", "nodes/status", &["patch"]),
    ("events.k8s.io", "events", &["create", "patch"]),
    ("policy", "poddisruptionbudgets", &["list", "watch"]),
    (
        "topology.node.k8s.io",
        "noderesourcetopologies",
        &["get", "create", "patch", "delete"],
    ),
];

pub(crate) fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/shop/pods/{name}")
}

pub(crate) fn write_kubeconfig(path: &Path, port: u16, user: &str, authority: &Path) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters:\n- name: x\n  cluster:\n    server: https://127.0.0.1:{port}\n    \
         certificate-authority: {}\nusers:\n- name: x\n  user:\n    {user}\ncontexts:\n- name: x\n  context: {{cluster: x, user: x}}\n",
        authority.to_string_lossy()
    );
    fs::write(path, text).unwrap();
}
