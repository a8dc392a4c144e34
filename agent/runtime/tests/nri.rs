//! `plimsoll-runtime nri` as it is installed, beside a real containerd 2 of this test's own: what a container's first
//! process has, what is refused, and what happens while the plugin is frozen and containerd is started anew.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use plimsoll_core::placement::cpu_set::CpuSet;
use plimsoll_core::protocol::framing::LENGTH_BYTES;
use plimsoll_core::protocol::runtime_link::{
    Adjustment, Answer, ContainerPlace, FRAMING, FromNri, PROTOCOL, PodAnswers, ToNri,
};
use plimsoll_runtime::connection::connect;
use plimsoll_runtime::interface::cri::runtime_service_client::RuntimeServiceClient;
use plimsoll_runtime::interface::cri::{
    LinuxContainerResources, PodSandboxConfig, StartContainerRequest,
    UpdateContainerResourcesRequest,
};
use rustix::process::{Pid, Signal, kill_process};
use tonic::Status;
use tonic::transport::Channel;

use support::{
    Containerd, NEEDED_WITH_NRI, create, end_pod, notes, pod, programs_with_nri, run_container,
    run_pod,
};

const ADJ: i32 = 777;

/// The plugin, and the agent's end of its socket.
struct Plugin {
    process: Child,
    agent: UnixStream,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

impl Plugin {
    fn start(containerd: &Containerd, pods: &[(&str, PodAnswers)]) -> Self {
        let (agent, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_plimsoll-runtime"))
            .args(["nri", "--nri-socket"])
            .arg(containerd.nri_socket())
            .stdin(OwnedFd::from(theirs))
            .spawn()
            .unwrap();
        let mut plugin = Self { process, agent };
        let protocol = PROTOCOL;
        assert_eq!(plugin.hear(), FromNri::Hello { protocol });
        for (uid, answers) in pods {
            let (uid, answers) = ((*uid).to_owned(), answers.clone());
            plugin.say(&ToNri::Pod { uid, answers });
        }
        plugin.say(&ToNri::Complete);
        plugin
    }

    fn say(&mut self, frame: &ToNri) {
        let json = serde_json::to_vec(frame).unwrap();
        let frame = FRAMING.frame(&json).unwrap();
        self.agent.write_all(&frame).unwrap();
    }

    fn hear(&mut self) -> FromNri {
        let mut length = [0; LENGTH_BYTES];
        self.agent.read_exact(&mut length).unwrap();
        let mut frame = vec![0; FRAMING.announced(length).unwrap()];
        self.agent.read_exact(&mut frame).unwrap();
        serde_json::from_slice(&frame).unwrap()
    }

    /// Until the runtime asks; what was before is passed over.
    fn connected(&mut self) -> String {
        loop {
            if let FromNri::Connected { runtime } = self.hear() {
                return runtime;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

/// A pod with a sandbox.
struct Scene {
    pod: PodSandboxConfig,
    sandbox: String,
    client: RuntimeServiceClient<Channel>,
}

impl Scene {
    async fn new(containerd: &Containerd, uid: &str) -> Self {
        let logs = containerd.dir.path().join("logs").join(uid);
        let pod = PodSandboxConfig {
            log_directory: logs.to_string_lossy().into_owned(),
            ..pod(uid, &containerd.cgroup)
        };
        let mut client = RuntimeServiceClient::new(connect(&containerd.socket()).await.unwrap());
        let sandbox = run_pod(&mut client, &pod).await;
        Self {
            pod,
            sandbox,
            client,
        }
    }

    async fn create(&mut self, name: &str, attempt: u32) -> Result<String, Status> {
        let image = "localhost/probe:1";
        create(
            &mut self.client,
            &self.pod,
            &self.sandbox,
            (name, attempt),
            image,
        )
        .await
    }

    /// Its output.
    fn log(&self, name: &str, attempt: u32) -> String {
        let log = format!("{}/{name}.{attempt}", self.pod.log_directory);
        fs::read_to_string(log).unwrap_or_default()
    }

    /// The `oom_score_adj` that the container's first process reads as the first thing that it does; and the
    /// container's id.
    async fn first_adj(&mut self, name: &str, attempt: u32) -> (i32, String) {
        let (adj, id) = self.first_word(name, attempt).await;
        (adj.parse().unwrap(), id)
    }

    /// What the container's first process says last; and the container's id.
    async fn first_word(&mut self, name: &str, attempt: u32) -> (String, String) {
        let container_id = self.create(name, attempt).await.unwrap();
        let start = StartContainerRequest {
            container_id: container_id.clone(),
        };
        self.client.start_container(start).await.unwrap();
        // `TIME stdout F TEXT`
        while !self.log(name, attempt).ends_with('\n') {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let text = self.log(name, attempt);
        let word = text.split_whitespace().last().unwrap();
        (word.to_owned(), container_id)
    }
}

fn heard(uid: &str, name: &str, id: &str, answer: Answer) -> FromNri {
    FromNri::Container {
        pod_uid: uid.to_owned(),
        name: name.to_owned(),
        id: id.to_owned(),
        answer,
        is_foreign: false,
    }
}

#[tokio::test]
async fn a_real_container_starts_with_its_score_and_one_of_an_evicted_pod_does_not_start() {
    let Some((programs, busybox)) = programs_with_nri() else {
        notes::left_out(NEEDED_WITH_NRI);
        return;
    };
    let _scene = SCENE.lock().await;
    let mut containerd = Containerd::start_with_nri(programs).await;
    let sleep = ["/busybox", "sleep", "100000"];
    containerd.import(&busybox, "localhost/sandbox:1", 1 << 10, &sleep);
    let probe = ["/busybox", "cat", "/proc/self/oom_score_adj"];
    containerd.import(&busybox, "localhost/probe:1", 1 << 10, &probe);

    let scored = PodAnswers {
        refusal: None,
        oom_score_adj: [("app".to_owned(), ADJ)].into(),
        ..PodAnswers::default()
    };
    let why = "this pod was evicted".to_owned();
    let refused = PodAnswers {
        refusal: Some(why.clone()),
        ..PodAnswers::default()
    };
    let mut plugin = Plugin::start(&containerd, &[("u1", scored), ("u2", refused)]);
    let runtime = plugin.connected();
    assert!(runtime.starts_with("containerd "), "{runtime}");

    let mut one = Scene::new(&containerd, "u1").await;
    let (adj, id) = one.first_adj("app", 0).await;
    assert_eq!(adj, ADJ);
    let answer = Answer::Adjusted(Box::new(Adjustment {
        oom_score_adj: Some(ADJ),
        ..Adjustment::default()
    }));
    assert_eq!(plugin.hear(), heard("u1", "app", &id, answer));
    let (adj, id) = one.first_adj("other", 0).await;
    assert_ne!(adj, ADJ);
    assert_eq!(plugin.hear(), heard("u1", "other", &id, Answer::Unchanged));

    let mut two = Scene::new(&containerd, "u2").await;
    let error = two.create("app", 0).await.unwrap_err();
    assert!(
        error.message().contains("plimsoll: this pod was evicted"),
        "{error}"
    );
    match plugin.hear() {
        FromNri::Container { answer, .. } => assert_eq!(answer, Answer::Refused(why)),
        other => panic!("{other:?}"),
    }

    // Frozen: the container is made without it, and it is found again.
    plugin.signal(Signal::STOP);
    let began = Instant::now();
    let (adj, _) = one.first_adj("app", 1).await;
    println!("a container beside a frozen plugin: {:?}", began.elapsed());
    assert_ne!(adj, ADJ);
    plugin.signal(Signal::CONT);
    // The question that came too late is answered, and nobody hears it.
    plugin.connected();
    assert_eq!(one.first_adj("app", 2).await.0, ADJ);
    plugin.hear();

    containerd.restart().await;
    plugin.connected();
    let connection = connect(&containerd.socket()).await.unwrap();
    one.client = RuntimeServiceClient::new(connection);
    assert_eq!(one.first_adj("app", 3).await.0, ADJ);
    end_pod(&mut one.client, one.sandbox).await;
    end_pod(&mut one.client, two.sandbox).await;
}

/// One containerd at a time.
static SCENE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
/// Containers that are started one after the other.
const CONTAINERS: u32 = 50;

#[tokio::test]
async fn the_first_instruction_of_a_real_container_runs_on_its_own_cpus() {
    let Some((programs, busybox)) = programs_with_nri() else {
        notes::left_out(NEEDED_WITH_NRI);
        return;
    };
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online = CpuSet::parse(&online).unwrap();
    let _scene = SCENE.lock().await;
    let containerd = Containerd::start_with_nri(programs).await;
    let sleep = ["/busybox", "sleep", "100000"];
    containerd.import(&busybox, "localhost/sandbox:1", 1 << 10, &sleep);
    let probe = ["/busybox", "grep", "Cpus_allowed_list", "/proc/self/status"];
    containerd.import(&busybox, "localhost/probe:1", 1 << 10, &probe);
    let cpus: Vec<u32> = online.iter().collect();
    let [first, .., last] = cpus[..] else {
        notes::left_out("a second CPU");
        return;
    };
    let own = CpuSet::of(last);
    let place = ContainerPlace {
        cpus: Some(own.to_string()),
        mems: Some("0".to_owned()),
    };
    let answers = PodAnswers {
        places: [("own".to_owned(), place)].into(),
        ..PodAnswers::default()
    };
    let mut plugin = Plugin::start(&containerd, &[("u1", answers)]);
    plugin.connected();
    let mut one = Scene::new(&containerd, "u1").await;
    // Nothing is placed: as without a plugin.
    assert_eq!(one.first_word("own", 1000).await.0, online.to_string());
    assert!(matches!(plugin.hear(), FromNri::Container { .. }));
    let pool = CpuSet::of(first);
    plugin.say(&ToNri::SharedPool {
        cpus: Some(pool.to_string()),
    });
    let mut attempt = 1001;
    while one.first_word("shared", attempt).await.0 != pool.to_string() {
        plugin.hear();
        attempt += 1;
    }
    plugin.hear();
    let mut wrong = 0;
    for attempt in 0..CONTAINERS {
        for (name, expected) in [("own", own), ("shared", pool)] {
            let (list, _) = one.first_word(name, attempt).await;
            wrong += u32::from(list != expected.to_string());
            match plugin.hear() {
                FromNri::Container {
                    answer: Answer::Adjusted(adjustment),
                    ..
                } => assert_eq!(adjustment.cpus, Some(expected.to_string())),
                other => panic!("{other:?}"),
            }
        }
    }
    println!(
        "{CONTAINERS} containers with a CPU of their own and as many without: {wrong} first looks elsewhere"
    );
    assert_eq!(wrong, 0);
    end_pod(&mut one.client, one.sandbox).await;
}

/// As a kubelet does for a resize in place: it says nothing of CPUs, and the runtime writes all that the specification
/// has.
#[tokio::test]
async fn a_container_whose_resources_change_stays_where_it_is_by_now() {
    let Some((programs, busybox)) = programs_with_nri() else {
        notes::left_out(NEEDED_WITH_NRI);
        return;
    };
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online: Vec<u32> = CpuSet::parse(&online).unwrap().iter().collect();
    let [first, .., last] = online[..] else {
        notes::left_out("a second CPU");
        return;
    };
    let _scene = SCENE.lock().await;
    let containerd = Containerd::start_with_nri(programs).await;
    let sleep = ["/busybox", "sleep", "100000"];
    containerd.import(&busybox, "localhost/sandbox:1", 1 << 10, &sleep);
    let on = |cpu: u32| PodAnswers {
        places: [(
            "own".to_owned(),
            ContainerPlace {
                cpus: Some(cpu.to_string()),
                mems: None,
            },
        )]
        .into(),
        ..PodAnswers::default()
    };
    let mut plugin = Plugin::start(&containerd, &[("u1", on(last))]);
    plugin.connected();
    let mut one = Scene::new(&containerd, "u1").await;
    let pool = || ToNri::SharedPool {
        cpus: Some(first.to_string()),
    };
    plugin.say(&pool());
    // Frames are taken in their order: one more of which the effect shows.
    let mut attempt = 0;
    let id = loop {
        let container = ("own", attempt);
        let image = "localhost/sandbox:1";
        let id = run_container(&mut one.client, &one.pod, &one.sandbox, container, image).await;
        plugin.hear();
        if containerd.cpuset_of(&id) == last.to_string() {
            break id;
        }
        attempt += 1;
    };
    let made_with = containerd.shares_of(&id);
    let mut shares = 3000;
    let mut update = async |plugin: &mut Plugin| {
        shares += 100;
        let linux = LinuxContainerResources {
            cpu_shares: shares,
            ..LinuxContainerResources::default()
        };
        let request = UpdateContainerResourcesRequest {
            container_id: id.clone(),
            linux: Some(linux),
            ..UpdateContainerResourcesRequest::default()
        };
        one.client
            .update_container_resources(request)
            .await
            .unwrap();
        let answer = match plugin.hear() {
            FromNri::Update { answer, .. } => answer,
            other => panic!("{other:?}"),
        };
        let pod_uid = "u1".to_owned();
        assert_eq!(plugin.hear(), FromNri::Updated { pod_uid });
        answer
    };
    let uid = "u1".to_owned();
    let answers = on(first);
    plugin.say(&ToNri::Pod { uid, answers });
    let moved = loop {
        match update(&mut plugin).await {
            Answer::Adjusted(told) if told.cpus == Some(first.to_string()) => break told,
            Answer::Adjusted(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(moved.mems, None);
    assert_eq!(containerd.cpuset_of(&id), first.to_string());
    assert_ne!(containerd.shares_of(&id), made_with, "the change itself");
    // One of another plugin's: what the specification has is written, and nothing else.
    let uid = "u1".to_owned();
    let answers = PodAnswers {
        foreign: [id.clone()].into(),
        ..on(last)
    };
    plugin.say(&ToNri::Pod { uid, answers });
    while update(&mut plugin).await != Answer::Unchanged {}
    assert_eq!(containerd.cpuset_of(&id), first.to_string());
    end_pod(&mut one.client, one.sandbox).await;
}
