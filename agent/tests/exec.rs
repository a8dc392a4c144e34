//! `plimsoll exec`, the real binary on the real kernel: v1, hybrid or v2, whatever is mounted here.
//!
//! What needs root and writable cgroups says so and is left out where they are missing. Everything is made below a
//! cgroup of its own, which is gone afterwards.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod notes;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll::act::placement::checkpoint::{Checkpoint, LOCK, PlacementLock};
use plimsoll::host::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use plimsoll::host::ledger::{PODS_LEDGER, UndoOutcome, Undone};
use plimsoll::host::{HostRoot, Ledger, PodMemoryFiles};
use plimsoll::pods;
use plimsoll::pods::kill::PodKill;
use plimsoll_core::placement::assignments::Assignments;
use plimsoll_core::placement::cpu_set::CpuSet;

const PODS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: burstable}
spec:
  containers:
  - name: app
    resources: {requests: {cpu: 500m, memory: 32Mi}, limits: {cpu: '1', memory: 64Mi}}
  - name: side
---
apiVersion: v1
kind: Pod
metadata: {name: besteffort}
spec:
  containers: [{name: app}]
";

/// The tests share one thing: what is enabled in the root's `cgroup.subtree_control`, which cannot be taken back while
/// another uses it.
static ROOT: Mutex<()> = Mutex::new(());

struct Node {
    _root: MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    host: HostRoot,
    cgroup_root: String,
}

impl Node {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("pods.yaml"), PODS).unwrap();
        let cgroup_root = format!("plimsoll-test-{name}-{}", std::process::id());
        Self {
            _root: ROOT.lock().unwrap_or_else(PoisonError::into_inner),
            dir,
            host: HostRoot::live(),
            cgroup_root,
        }
    }

    /// `None`, and a line, where cgroups cannot be made.
    fn with_cgroups(name: &str) -> Option<(Self, CgroupMounts)> {
        let node = Self::new(name);
        let mounts = match node.host.cgroup_mounts() {
            Ok(mounts) => mounts,
            Err(error) => {
                notes::left_out(error);
                return None;
            }
        };
        let probe = node.ledger().create_cgroup(
            pods::cgroup::pod_hierarchies(&mounts)[0].0,
            &node.root(),
            &[],
        );
        match probe {
            Ok(()) => Some((node, mounts)),
            Err(error) => {
                notes::left_out(error);
                None
            }
        }
    }

    fn root(&self) -> CgroupPath {
        CgroupPath::new(&self.cgroup_root).unwrap()
    }

    fn ledger(&self) -> Ledger {
        Ledger::open(&self.host, self.dir.path().join(PODS_LEDGER)).unwrap()
    }

    fn command(&self, options: &[&str], command: &[&str]) -> Command {
        let mut exec = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        exec.arg("exec")
            .arg("-f")
            .arg(self.dir.path().join("pods.yaml"));
        exec.arg("--state-dir").arg(self.dir.path());
        if !options.contains(&"--config") {
            exec.args(["--cgroup-root", &self.cgroup_root]);
        }
        exec.args(options).arg("--").args(command);
        exec
    }

    fn output(&self, options: &[&str], command: &[&str]) -> Output {
        self.command(options, command).output().unwrap()
    }

    /// Starts a command and waits until it says that it runs.
    fn start(&self, options: &[&str], script: &str) -> Child {
        use std::io::BufRead;
        let script = format!("echo started; {script}");
        let mut child = self
            .command(options, &["sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "started\n");
        child
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok(mut ledger) = Ledger::open(&self.host, self.dir.path().join(PODS_LEDGER)) {
            ledger.restore().ok();
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Without a limit: xtask stops a test in which nothing moves any more.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    eprintln!("waits until {what}");
    while !is_so() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn control(
    mounts: &CgroupMounts,
    controller: Controller,
    cgroup: &CgroupPath,
    v1: &str,
    v2: &str,
) -> String {
    let hierarchy = mounts.hierarchy_of(controller).unwrap();
    let file = if hierarchy.version == Version::V1 {
        v1
    } else {
        v2
    };
    std::fs::read_to_string(hierarchy.dir(cgroup).join(file))
        .unwrap()
        .trim()
        .to_owned()
}

#[test]
fn mistakes_are_named_before_anything_is_made() {
    let node = Node::new("mistakes");
    std::fs::write(node.dir.path().join("plain"), "").unwrap();
    let plain = node.dir.path().join("plain");
    for (options, command, code, message) in [
        (
            &[][..],
            "true",
            125,
            "several pods; choose one with --pod; the file has: default/burstable, default/besteffort",
        ),
        (&["--pod", "none"], "true", 125, "no pod none"),
        (
            &["--pod", "burstable"],
            "true",
            125,
            "several containers; choose one with -c; it has: app, side",
        ),
        (
            &["--pod", "burstable", "-c", "none"],
            "true",
            125,
            "no container none",
        ),
        (
            &["--pod", "besteffort", "--pod-pids-limit", "0"],
            "true",
            125,
            "--pod-pids-limit 0",
        ),
        (
            &["--pod", "besteffort"],
            "plimsoll-no-such-command",
            127,
            "command not found",
        ),
        (
            &["--pod", "besteffort"],
            plain.to_str().unwrap(),
            126,
            "cannot be executed",
        ),
    ] {
        let output = node.output(options, &[command]);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{options:?} {command}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(message),
            "{options:?} {command}: {}",
            stderr(&output)
        );
    }
    std::fs::write(
        node.dir.path().join("pods.yaml"),
        PODS.replace("resources", "resorces"),
    )
    .unwrap();
    let output = node.output(&[], &["true"]);
    assert_eq!(output.status.code(), Some(125));
    let wanted = "pods.yaml:7: spec.containers[0].resorces: unknown field; did you mean resources?";
    assert!(stderr(&output).contains(wanted), "{}", stderr(&output));
    assert!(
        !node.dir.path().join(PODS_LEDGER).exists(),
        "nothing was made"
    );
    std::fs::remove_file(node.dir.path().join("pods.yaml")).unwrap();
    assert_eq!(node.output(&[], &["true"]).status.code(), Some(125));
}

#[test]
fn a_command_runs_in_its_pods_cgroups_and_is_killed_with_them() {
    let Some((node, mounts)) = Node::with_cgroups("run") else {
        return;
    };
    if let Err(error) = mounts.hierarchy_of(Controller::Memory) {
        let output = node.output(&["--pod", "burstable", "-c", "app"], &["true"]);
        assert_eq!(output.status.code(), Some(125));
        assert!(
            stderr(&output).contains(&format!(
                "resources.limits.memory needs a cgroup controller: {error}"
            )),
            "{}",
            stderr(&output)
        );
        return;
    }
    let output = node.output(&["--pod", "besteffort"], &["sh", "-c", "exit 7"]);
    assert_eq!(
        output.status.code(),
        Some(7),
        "the command's own status: {}",
        stderr(&output)
    );

    let options = ["--pod", "burstable", "-c", "app", "--pod-pids-limit", "200"];
    let mut main = node.start(&options, "sleep 1000 & sleep 1000 & wait");
    let mut side = node.start(
        &[
            "--pod",
            "burstable",
            "-c",
            "side",
            "--pod-pids-limit",
            "200",
        ],
        "exec sleep 1000",
    );
    let pod = CgroupPath::new(&format!(
        "{}/kubepods/burstable/poddefault_burstable",
        node.cgroup_root
    ))
    .unwrap();
    assert_eq!(
        pods::cgroup::find(&mounts, &node.root(), &"default_burstable".into()),
        Some(pod.clone())
    );
    let app = pod.join("app").unwrap();

    // Same pid, in the container's cgroup of every hierarchy, with its score.
    for (hierarchy, _) in pods::cgroup::pod_hierarchies(&mounts) {
        let procs = std::fs::read_to_string(hierarchy.dir(&app).join("cgroup.procs")).unwrap();
        assert!(
            procs.lines().any(|pid| pid == main.id().to_string()),
            "{hierarchy:?}: {procs}"
        );
    }
    let adj = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", main.id())).unwrap();
    assert!(
        (900..1000).contains(&adj.trim().parse::<i32>().unwrap()),
        "{adj}"
    );
    // The limits: kubelet's 512 shares are a weight of 59 (opencontainers/cgroups v0.0.6).
    if mounts.hierarchy_of(Controller::Cpu).is_ok() {
        let cpu = mounts.hierarchy_of(Controller::Cpu).unwrap();
        let wanted = if cpu.version == Version::V1 {
            ("512", "100000")
        } else {
            ("59", "100000 100000")
        };
        assert_eq!(
            control(&mounts, Controller::Cpu, &app, "cpu.shares", "cpu.weight"),
            wanted.0
        );
        assert_eq!(
            control(
                &mounts,
                Controller::Cpu,
                &app,
                "cpu.cfs_quota_us",
                "cpu.max"
            ),
            wanted.1
        );
    }
    assert_eq!(
        control(
            &mounts,
            Controller::Memory,
            &app,
            "memory.limit_in_bytes",
            "memory.max"
        ),
        (64 << 20).to_string()
    );
    if mounts.hierarchy_of(Controller::Pids).is_ok() {
        assert_eq!(
            control(&mounts, Controller::Pids, &pod, "pids.max", "pids.max"),
            "200"
        );
    }
    if mounts.hierarchy_of(Controller::Memory).unwrap().version == Version::V2 {
        assert_eq!(
            control(&mounts, Controller::Memory, &app, "", "memory.oom.group"),
            "1"
        );
    }
    let memory = PodMemoryFiles::open(&mounts, &pod).unwrap();
    assert!(memory.read_usage_bytes().unwrap() > 0);

    // SIGTERM reaches the two first processes and not their children; the kill reaches the rest.
    wait_until("two children", || {
        let dir = mounts.hierarchy_of(Controller::Memory).unwrap().dir(&app);
        std::fs::read_to_string(dir.join("cgroup.procs"))
            .unwrap()
            .lines()
            .count()
            == 3
    });
    let mut pod_kill = PodKill::open(&node.host, &mounts, &pod).unwrap();
    let mut first: Vec<_> = pod_kill
        .first_processes()
        .map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
        .collect();
    first.sort_unstable();
    let mut wanted = [main.id(), side.id()];
    wanted.sort_unstable();
    assert_eq!(first, wanted);
    assert_eq!(pod_kill.sigterm().unwrap(), 2);
    main.wait().unwrap();
    side.wait().unwrap();
    assert!(pods::cgroup::is_populated(&mounts, &pod).unwrap() && pod_kill.is_populated().unwrap());
    pod_kill.refresh().unwrap();
    assert_eq!(
        (
            pod_kill.first_processes().count(),
            pod_kill.sigterm().unwrap()
        ),
        (0, 0),
        "both first processes have ended"
    );
    pod_kill.kill().unwrap();
    wait_until("the pod is empty", || {
        !pods::cgroup::is_populated(&mounts, &pod).unwrap()
    });
    wait_until("its processes have left the lists", || {
        !pod_kill.is_populated().unwrap()
    });

    // An agent removes what has ended, and the ledger the rest.
    wait_until("the cgroup can be removed", || {
        pods::cgroup::remove_empty(&mounts, &pod).unwrap()
    });
    assert!(
        memory.read_usage_bytes().unwrap_err().is_vanished(),
        "open files say that their cgroup is gone"
    );
    assert!(pod_kill.refresh().unwrap_err().is_vanished());
    assert_eq!(pod_kill.kill().unwrap().processes, 0);
    // Others on this host may use a controller that was enabled in the root; that line then stays for later.
    let restoration = node.ledger().restore().unwrap();
    let is_root = |undone: &&Undone| {
        mounts
            .hierarchies()
            .iter()
            .any(|hierarchy| hierarchy.mount == undone.change.subject())
    };
    let busy = |undone: &&Undone| {
        !matches!(
            undone.outcome,
            UndoOutcome::Restored | UndoOutcome::NothingToDo
        )
    };
    let left: Vec<_> = restoration
        .changes
        .iter()
        .filter(busy)
        .filter(|undone| !is_root(undone))
        .collect();
    assert!(
        left.is_empty() && restoration.restored() > 0,
        "{restoration:?}"
    );
    nothing_is_left(&mounts, &node.root());
}

/// It is stopped on its way, and the agent does not wait for it.
#[test]
fn what_the_agent_decides_while_a_command_is_held_up_counts() {
    let Some((node, _)) = Node::with_cgroups("overtaken") else {
        return;
    };
    let state_dir = node.dir.path();
    // Here it waits, when it has its leave and before it makes its cgroup.
    let ledger = File::options()
        .append(true)
        .open(state_dir.join(PODS_LEDGER));
    let ledger = ledger.unwrap();
    ledger.lock().unwrap();
    let held_up = node
        .command(&["--pod", "besteffort"], &["true"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it has its leave", || {
        File::open(state_dir.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_err())
    });
    let agent = PlacementLock::exclusive_by_force(state_dir, Duration::ZERO).unwrap();
    let why = "no CPU is free".to_owned();
    let checkpoint = Checkpoint {
        assignments: Assignments {
            shared_pool: CpuSet::of(0),
            containers: BTreeMap::new(),
            refused: [("default_besteffort".into(), why)].into(),
        },
        before: None,
        keeps_quota: false,
    };
    checkpoint.write(&agent, state_dir).unwrap();
    drop(agent);
    drop(ledger);
    let output = held_up.wait_with_output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("no CPU is free"), "{text}");
}

#[test]
fn a_command_finds_its_volumes_and_its_log_is_where_the_kubelet_has_it() {
    let Some((node, _mounts)) = Node::with_cgroups("volumes") else {
        return;
    };
    let pods = "\
apiVersion: v1
kind: Pod
metadata: {name: web, uid: u-1}
spec:
  containers:
  - name: app
    volumeMounts: [{name: my-data, mountPath: /data}]
  volumes:
  - {name: my-data, emptyDir: {sizeLimit: 1Mi}}
";
    std::fs::write(node.dir.path().join("pods.yaml"), pods).unwrap();
    let dir = node.dir.path().to_str().unwrap();
    let kubelet = format!("--kubelet-dir={dir}/kubelet");
    let logs = format!("--logs-dir={dir}/logs");
    let script = "echo x > $PLIMSOLL_VOLUME_MY_DATA/file; echo out; echo err >&2";
    let output = node.output(&[&kubelet, &logs, "--log"], &["sh", "-c", script]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((output.stdout.len(), stderr(&output).as_str()), (0, ""));
    let text = |path: &str| std::fs::read_to_string(node.dir.path().join(path)).unwrap();
    assert_eq!(
        text("kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/my-data/file"),
        "x\n"
    );
    assert_eq!(text("logs/default_web_u-1/app/0.log"), "out\nerr\n");

    // Without --log nothing is logged, and an error with it is said on the terminal.
    let output = node.output(&[&kubelet, &logs], &["sh", "-c", "echo out"]);
    assert_eq!(output.stdout, b"out\n");
    let bad = node.dir.path().join("bad");
    std::fs::write(&bad, "#!/none/such\n").unwrap();
    let executable = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(&bad, executable).unwrap();
    let output = node.output(&[&kubelet, &logs, "--log"], &[bad.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126));
    assert!(
        stderr(&output).contains("cannot be executed"),
        "{}",
        stderr(&output)
    );
    assert_eq!(text("logs/default_web_u-1/app/0.log"), "out\nerr\n");
}

/// The agent that has the same configuration looks there.
#[test]
fn a_configuration_says_where_the_pods_are() {
    let Some((node, _)) = Node::with_cgroups("config") else {
        return;
    };
    let config = node.dir.path().join("config.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupRoot: /{}\n",
        node.cgroup_root
    );
    std::fs::write(&config, text).unwrap();
    let options = ["--pod", "besteffort", "--config", config.to_str().unwrap()];
    let output = node.output(&options, &["cat", "/proc/self/cgroup"]);
    let pod = format!("/{}/kubepods/besteffort/", node.cgroup_root);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains(&pod), "{said}{}", stderr(&output));
}

#[test]
fn a_fork_storm_is_killed_without_cgroup_kill() {
    let Some((node, mounts)) = Node::with_cgroups("storm") else {
        return;
    };
    let options = ["--pod", "besteffort", "--pod-pids-limit", "60"];
    let mut main = node.start(
        &options,
        "while :; do (sleep 1000) & (:) & done 2>/dev/null",
    );
    let pod = CgroupPath::new(&format!(
        "{}/kubepods/besteffort/poddefault_besteffort",
        node.cgroup_root
    ))
    .unwrap();
    let dir = pods::cgroup::pod_hierarchies(&mounts)[0]
        .0
        .dir(&pod.join("app").unwrap());
    wait_until("many children", || {
        std::fs::read_to_string(dir.join("cgroup.procs"))
            .unwrap()
            .lines()
            .count()
            > 20
    });
    // A host without the unified tree: only the hierarchies with the memory controller of v1, or on v2 the same tree as
    // signals see it.
    let pod_kill = PodKill::open_without_cgroup_kill(&node.host, &mounts, &pod).unwrap();
    wait_until("the pod is empty", || {
        pod_kill.kill().unwrap();
        !pods::cgroup::is_populated(&mounts, &pod).unwrap()
    });
    main.wait().unwrap();
    wait_until("the cgroup can be removed", || {
        pods::cgroup::remove_empty(&mounts, &pod).unwrap()
    });
}

#[test]
fn a_ledger_outlives_its_writers_and_spares_what_runs() {
    let Some((node, mounts)) = Node::with_cgroups("ledger") else {
        return;
    };
    let mut child = node.start(&["--pod", "besteffort"], "exec sleep 1000");
    let busy = node.ledger().restore().unwrap();
    assert!(
        busy.remarks()
            .iter()
            .any(|remark| remark.contains("not undone yet")),
        "{busy:?}"
    );
    assert!(child.try_wait().unwrap().is_none(), "the pod runs on");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("its cgroups are gone", || {
        node.ledger().restore().unwrap();
        mounts
            .hierarchies()
            .iter()
            .all(|hierarchy| !hierarchy.has(&node.root()))
    });
    nothing_is_left(&mounts, &node.root());
}

fn nothing_is_left(mounts: &CgroupMounts, root: &CgroupPath) {
    let left: Vec<PathBuf> = mounts
        .hierarchies()
        .iter()
        .map(|hierarchy| hierarchy.dir(root))
        .filter(|dir: &PathBuf| Path::exists(dir))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
