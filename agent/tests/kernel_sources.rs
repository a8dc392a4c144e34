//! The sources that need no BPF, on a real kernel: root, real cgroups, real memory.
//!
//! Ignored by default because each wants something of the machine; the start of a test's name says what: `v1_` a cgroup
//! v1 memory hierarchy, `v2_` the memory controller in the unified tree, `psi_` pressure stall information. In a guest
//! or on such a host, as root: `cargo test -p plimsoll --test kernel_sources -- --ignored --test-threads=1 v1_
//! psi_node`.

#![expect(
    deprecated,
    reason = "tokio 1.54 has no safe way to watch for priority readiness but AsyncFd::with_interest; these types own their descriptors"
)]
#![expect(
    clippy::unwrap_used,
    reason = "all of this file is tests; clippy knows only the functions marked so"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plimsoll::host::{Controller, HostRoot, Version};
use plimsoll::source::cgroup_watch::{CgroupChange, CgroupWatch};
use plimsoll::source::memcg_v1::{MemcgV1, PressureLevel};
use plimsoll::source::memory_events::{CgroupEvents, MemoryEvents};
use plimsoll::source::pressure::{PressureError, PsiTrigger, Stall, Trigger, Wake};
use rustix::fs::inotify;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 1024 * 1024;

/// A cgroup of our own, removed at the end.
struct TestCgroup(PathBuf);

impl TestCgroup {
    fn new(version: Version, name: &str) -> Self {
        let mounts = HostRoot::live().cgroup_mounts().unwrap();
        let memory = mounts.hierarchy_of(Controller::Memory).unwrap();
        assert_eq!(
            memory.version, version,
            "run the tests whose names fit this machine"
        );
        if version == Version::V2 {
            std::fs::write(memory.mount.join("cgroup.subtree_control"), "+memory").unwrap();
        }
        let dir = memory.mount.join(format!(
            "plimsoll-ladder-test-{name}-{}",
            std::process::id()
        ));
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn set(&self, file: &str, value: &str) {
        std::fs::write(self.0.join(file), value).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    /// A process in here that touches `bytes` at once and ends; `dd` because busybox has it too.
    fn touch(&self, bytes: u64) -> Child {
        self.run(&format!(
            "exec dd if=/dev/zero of=/dev/null bs={bytes} count=1"
        ))
    }

    fn run(&self, script: &str) -> Child {
        let script = format!("echo $$ > {}/cgroup.procs && {script}", self.0.display());
        Command::new("sh")
            .args(["-c", &script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        // A dead task leaves its cgroup a moment after it was waited for.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} is still there", self.0.display());
    }
}

#[test]
#[ignore = "needs root and a cgroup v1 memory hierarchy"]
fn v1_threshold_is_signalled_when_crossed_and_not_before() {
    let cgroup = TestCgroup::new(Version::V1, "threshold");
    let memcg = MemcgV1::open(&cgroup.0).unwrap();
    let armed = memcg.notify_at(32 * MIB).unwrap();
    assert!(cgroup.touch(8 * MIB).wait().unwrap().success());
    assert_eq!(armed.take().unwrap(), 0, "8 MiB do not cross 32 MiB");
    let mut child = cgroup.touch(64 * MIB);
    assert!(armed.wait(LONG).unwrap() >= 1);
    child.wait().unwrap();
    // Another threshold is another notification; the old one, dropped, is out of the kernel's list.
    drop(armed);
    let armed = memcg.notify_at(16 * MIB).unwrap();
    let mut child = cgroup.touch(64 * MIB);
    assert!(armed.wait(LONG).unwrap() >= 1);
    child.wait().unwrap();
}

#[test]
#[ignore = "needs root and a cgroup v1 memory hierarchy"]
fn v1_removal_signals_and_the_next_read_has_vanished() {
    let cgroup = TestCgroup::new(Version::V1, "removal");
    let memcg = MemcgV1::open(&cgroup.0).unwrap();
    let armed = memcg.notify_at(1024 * MIB).unwrap();
    std::fs::remove_dir(&cgroup.0).unwrap();
    assert!(armed.wait(LONG).unwrap() >= 1);
    assert!(memcg.usage_bytes().unwrap_err().is_vanished());
    assert!(memcg.notify_at(MIB).unwrap_err().is_vanished());
}

#[test]
#[ignore = "needs root and a cgroup v1 memory hierarchy"]
fn v1_out_of_memory_is_signalled_and_counted() {
    let cgroup = TestCgroup::new(Version::V1, "oom");
    cgroup.set("memory.limit_in_bytes", &(16 * MIB).to_string());
    let memcg = MemcgV1::open(&cgroup.0).unwrap();
    let armed = memcg.notify_oom().unwrap();
    let before = memcg.oom_control().unwrap();
    assert!(!before.oom_kill_disable);
    let mut child = cgroup.touch(64 * MIB);
    assert!(armed.wait(LONG).unwrap() >= 1);
    assert!(!child.wait().unwrap().success());
    assert!(memcg.oom_control().unwrap().oom_kill > before.oom_kill);
}

#[test]
#[ignore = "needs root and a cgroup v1 memory hierarchy"]
fn v1_pressure_level_is_signalled() {
    let cgroup = TestCgroup::new(Version::V1, "pressure");
    cgroup.set("memory.limit_in_bytes", &(16 * MIB).to_string());
    let memcg = MemcgV1::open(&cgroup.0).unwrap();
    let armed = memcg.notify_pressure(PressureLevel::Low).unwrap();
    let mut child = cgroup.touch(64 * MIB);
    assert!(armed.wait(LONG).unwrap() >= 1);
    child.wait().unwrap();
}

#[test]
#[ignore = "needs root and cgroup v2 with the memory controller"]
fn v2_events_wake_count_and_vanish() {
    let cgroup = TestCgroup::new(Version::V2, "events");
    cgroup.set("memory.max", &(16 * MIB).to_string());
    let mut events = MemoryEvents::open(&cgroup.0).unwrap();
    let state = CgroupEvents::open(&cgroup.0).unwrap();
    assert!(!state.read().unwrap().populated);
    assert!(
        !events.wait(Duration::ZERO).unwrap(),
        "nothing has happened yet"
    );
    let mut child = cgroup.touch(64 * MIB);
    let mut oom_kill = 0;
    while oom_kill == 0 {
        assert!(events.wait(LONG).unwrap(), "no notification");
        oom_kill += events.read_delta().unwrap().oom_kill;
    }
    assert!(events.counts().max > 0);
    child.wait().unwrap();
    while state.wait(Duration::from_millis(500)).unwrap() {
        state.read().unwrap();
    }
    assert!(!state.read().unwrap().populated);
    std::fs::remove_dir(&cgroup.0).unwrap();
    assert!(events.wait(LONG).unwrap(), "a removal wakes as well");
    assert!(events.read_delta().unwrap_err().is_vanished());
    assert!(state.read().unwrap_err().is_vanished());
}

#[test]
#[ignore = "needs root and cgroup v2 with the memory controller"]
fn v2_events_wake_tokio() {
    let cgroup = TestCgroup::new(Version::V2, "tokio");
    cgroup.set("memory.high", &(8 * MIB).to_string());
    cgroup.set("memory.max", &(16 * MIB).to_string());
    block_on(async {
        let mut events =
            AsyncFd::with_interest(MemoryEvents::open(&cgroup.0).unwrap(), Interest::PRIORITY)
                .unwrap();
        let mut child = cgroup.touch(64 * MIB);
        while events.get_ref().counts().high == 0 {
            let mut ready = tokio::time::timeout(LONG, events.ready_mut(Interest::PRIORITY))
                .await
                .unwrap()
                .unwrap();
            ready.clear_ready();
            ready.get_inner_mut().read_delta().unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
#[ignore = "needs root and cgroup v2 with the memory controller and PSI"]
fn v2_pressure_of_a_cgroup_wakes_tokio_and_vanishes() {
    let cgroup = TestCgroup::new(Version::V2, "psi");
    cgroup.set("memory.high", &(8 * MIB).to_string());
    let trigger = Trigger::new(Stall::Some, 20, 500).unwrap();
    let armed = PsiTrigger::arm(cgroup.0.join("memory.pressure"), trigger).unwrap();
    assert_eq!(armed.wait(Duration::ZERO).unwrap(), Wake::Quiet);
    let armed = block_on(async {
        let armed = AsyncFd::with_interest(armed, Interest::PRIORITY).unwrap();
        // Anonymous memory over memory.high without swap: throttled for seconds.
        let mut child = cgroup.touch(64 * MIB);
        tokio::time::timeout(LONG, armed.ready(Interest::PRIORITY))
            .await
            .unwrap()
            .unwrap()
            .clear_ready();
        child.kill().unwrap();
        child.wait().unwrap();
        armed.into_inner()
    });
    assert_eq!(armed.check(), Ok(()));
    let path = armed.path().to_owned();
    drop(cgroup);
    assert!(!path.exists(), "the cgroup could not be removed");
    let gone = armed.wait(LONG).unwrap_err();
    assert!(matches!(gone, PressureError::Vanished { .. }), "{gone}");
}

#[test]
#[ignore = "needs root and PSI (psi=1)"]
fn psi_node_trigger_is_taken_once_per_descriptor() {
    let armed = arm(
        "/proc/pressure/memory",
        Trigger::new(Stall::Full, 400, 1000).unwrap(),
    );
    assert_eq!(armed.check(), Ok(()));
    let error = rustix::io::write(&armed, b"some 50000 2000000\0").unwrap_err();
    assert_eq!(error, rustix::io::Errno::BUSY);
}

#[test]
#[ignore = "needs root and PSI (psi=1)"]
fn psi_cpu_trigger_fires() {
    // CPU pressure is easy to make anywhere: more busy tasks than CPUs.
    let armed = arm(
        "/proc/pressure/cpu",
        Trigger::new(Stall::Some, 20, 500).unwrap(),
    );
    let cpus = std::thread::available_parallelism().unwrap().get();
    let busy: Vec<Child> = (0..cpus + 1)
        .map(|_| {
            Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn()
                .unwrap()
        })
        .collect();
    let wake = armed.wait(LONG);
    for mut child in busy {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(wake, Ok(Wake::Stalled));
}

fn watch_a_pod(cgroup: &Path) {
    let mut watch = CgroupWatch::open(cgroup).unwrap();
    std::fs::create_dir(cgroup.join("pod1")).unwrap();
    std::fs::create_dir(cgroup.join("pod1/c1")).unwrap();
    let created = [
        CgroupChange::Created("pod1".into()),
        CgroupChange::Created("pod1/c1".into()),
    ];
    assert_eq!(watch.changes().unwrap(), created);
    std::fs::remove_dir(cgroup.join("pod1/c1")).unwrap();
    std::fs::remove_dir(cgroup.join("pod1")).unwrap();
    let removed = [
        CgroupChange::Removed("pod1/c1".into()),
        CgroupChange::Removed("pod1".into()),
    ];
    assert_eq!(watch.changes().unwrap(), removed);
}

#[test]
#[ignore = "needs root and a cgroup v1 memory hierarchy"]
fn v1_inotify_sees_cgroups() {
    watch_a_pod(&TestCgroup::new(Version::V1, "inotify").0);
}

#[test]
#[ignore = "needs root and cgroup v2 with the memory controller"]
fn v2_inotify_sees_cgroups() {
    watch_a_pod(&TestCgroup::new(Version::V2, "inotify").0);
}

/// Makes the real kernel's queue overflow instead of believing in it.
#[test]
#[ignore = "needs root, to lower fs.inotify.max_queued_events"]
fn any_inotify_overflow_is_healed_by_a_rescan() {
    // The limit of a queue is fixed when the instance is made.
    let limit = Path::new("/proc/sys/fs/inotify/max_queued_events");
    let before = std::fs::read_to_string(limit).unwrap();
    std::fs::write(limit, "16").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let watch = CgroupWatch::open(dir.path());
    std::fs::write(limit, before).unwrap();
    let mut watch = watch.unwrap();
    for pod in 0..200 {
        std::fs::create_dir(dir.path().join(format!("pod{pod}"))).unwrap();
    }
    assert_eq!(watch.changes().unwrap().len(), 200);
    assert_eq!(watch.overflows(), 1);
    assert_eq!(watch.unwatched(), 0);
    // And what inotify itself says of a directory that is not there, which the watch relies on.
    let fd = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    let error =
        inotify::add_watch(&fd, dir.path().join("no"), inotify::WatchFlags::CREATE).unwrap_err();
    assert_eq!(error, rustix::io::Errno::NOENT);
}

/// Some hosts, this project's own among them, give root no CAP_SYS_RESOURCE.
fn arm(path: &str, trigger: Trigger) -> PsiTrigger {
    PsiTrigger::arm_as_allowed(path, trigger).unwrap()
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
