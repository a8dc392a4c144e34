//! Pods that make cgroups to hide in, on the real kernel: nested, many, threaded, frozen. Whatever they make, the agent
//! sees whether they run, and ends them.
//!
//! What needs root and writable cgroups is left out where they are missing. Everything is made below a cgroup of its
//! own, which is gone afterwards.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod notes;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use plimsoll::host::HostRoot;
use plimsoll::host::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use plimsoll::host::shown::Show as _;
use plimsoll::pods::cgroup::remove_empty;
use plimsoll::pods::kill::{CGROUPS_PER_POD_MAX, PodKill};

/// Attempts to remove a cgroup that was just emptied.
const REMOVALS_MAX: u32 = 10_000;

/// A cgroup of the machine's own unified tree that looks like the whole tree of a host.
struct V2 {
    dir: tempfile::TempDir,
    host: HostRoot,
    mounts: CgroupMounts,
    children: Vec<Child>,
}

impl V2 {
    fn new(name: &str) -> Option<Self> {
        let real = HostRoot::live().cgroup_mounts().ok();
        let unified = real.as_ref().and_then(CgroupMounts::unified);
        let Some(unified) = unified else {
            notes::left_out("no cgroup2 is mounted");
            return None;
        };
        let root = unified
            .mount
            .join(format!("plimsoll-test-{name}-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&root) {
            notes::left_out(error);
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc");
        fs::create_dir_all(proc.join("self")).unwrap();
        let mounts = "cgroup2 /cgroup cgroup2 rw 0 0\n";
        fs::write(proc.join("self/mounts"), mounts).unwrap();
        std::os::unix::fs::symlink(&root, dir.path().join("cgroup")).unwrap();
        let host = HostRoot::new(dir.path());
        let mounts = host.cgroup_mounts().unwrap();
        fs::create_dir(root.join("pod")).unwrap();
        Some(Self {
            dir,
            host,
            mounts,
            children: Vec::new(),
        })
    }

    fn path() -> CgroupPath {
        CgroupPath::new("pod").unwrap()
    }

    fn pod(&self) -> PathBuf {
        self.dir.path().join("cgroup/pod")
    }

    fn open(&self) -> PodKill {
        PodKill::open(&self.host, &self.mounts, &Self::path()).unwrap()
    }

    /// Starts a process in a cgroup of the pod.
    fn start_in(&mut self, cgroup: impl AsRef<Path>) {
        let child = sleeper();
        put(&self.pod().join(cgroup), &child);
        let link = self.host.procfs(child.id().to_string());
        std::os::unix::fs::symlink(format!("/proc/{}", child.id()), link).unwrap();
        self.children.push(child);
    }

    /// Waits until all processes have ended, which nothing but SIGKILL makes them do.
    fn end(&mut self) {
        for child in self.children.drain(..) {
            assert_eq!(signal_of(child), Some(9));
        }
    }

    fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.pod().join("cgroup.events")).unwrap();
        events.contains("populated 1")
    }
}

impl Drop for V2 {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
        remove(&self.mounts, &Self::path());
        let root = fs::read_link(self.dir.path().join("cgroup")).unwrap();
        fs::remove_dir(root).ok();
    }
}

/// A dead process may be in its cgroup for a moment. Not for ever: after a failure this must not hide it.
fn remove(mounts: &CgroupMounts, cgroup: &CgroupPath) {
    for _ in 0..REMOVALS_MAX {
        if remove_empty(mounts, cgroup).unwrap_or(true) {
            return;
        }
        std::thread::yield_now();
    }
}

fn sleeper() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

fn put(dir: &Path, child: &Child) {
    fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
}

fn signal_of(mut child: Child) -> Option<i32> {
    child.wait().unwrap().signal()
}

#[test]
fn no_depth_hides_a_process() {
    let Some(mut node) = V2::new("deep") else {
        return;
    };
    let deep = "c/1/2/3/4/5/6/7/8/9";
    fs::create_dir_all(node.pod().join(deep)).unwrap();
    let mut pod = node.open();
    assert!(!pod.is_populated().unwrap());
    node.start_in(deep);
    assert!(pod.is_populated().unwrap());
    assert!(pod.refresh().unwrap() && node.open().is_populated().unwrap());
    assert_eq!(pod.count_tasks().unwrap(), 1);
    pod.kill().unwrap();
    node.end();
    while pod.is_populated().unwrap() {
        std::thread::yield_now();
    }
    assert!(!node.is_populated() && !pod.refresh().unwrap());
}

#[test]
fn no_number_of_cgroups_hides_a_process() {
    let Some(mut node) = V2::new("many") else {
        return;
    };
    fs::create_dir(node.pod().join("c")).unwrap();
    for index in 0..CGROUPS_PER_POD_MAX + 44 {
        fs::create_dir(node.pod().join(format!("c/{index}"))).unwrap();
    }
    let known = node.open();
    let hidden = (0..CGROUPS_PER_POD_MAX + 44)
        .map(|index| format!("c/{index}"))
        .find(|cgroup| known.cgroups().all(|known| !known.dir.ends_with(cgroup)));
    node.start_in(hidden.unwrap());
    let mut pod = node.open();
    assert!(pod.is_populated().unwrap() && pod.refresh().unwrap());
    pod.kill().unwrap();
    node.end();
    while pod.is_populated().unwrap() {
        std::thread::yield_now();
    }
    assert!(!pod.refresh().unwrap());
}

#[test]
fn a_threaded_cgroup_neither_blocks_nor_hides() {
    let Some(mut node) = V2::new("threaded") else {
        return;
    };
    fs::create_dir(node.pod().join("c")).unwrap();
    node.start_in("c");
    let mut opened_before = node.open();
    let threaded = node.pod().join("c/t");
    fs::create_dir(&threaded).unwrap();
    fs::write(threaded.join("cgroup.type"), "threaded").unwrap();
    let mut opened_after = node.open();
    for pod in [&mut opened_before, &mut opened_after] {
        assert!(pod.is_populated().unwrap() && pod.refresh().unwrap());
        assert_eq!(
            pod.first_processes().count(),
            1,
            "listed in the domain's root"
        );
        assert_eq!(pod.count_tasks().unwrap(), 1);
    }
    // Without cgroup.kill, signals reach it all the same.
    let signals = PodKill::open_without_cgroup_kill(&node.host, &node.mounts, &V2::path()).unwrap();
    signals.kill().unwrap();
    node.end();
    for pod in [&mut opened_before, &mut opened_after] {
        while pod.is_populated().unwrap() {
            std::thread::yield_now();
        }
        assert!(!pod.refresh().unwrap());
    }
    // What the runtime restarts there is seen.
    node.start_in("c");
    assert!(opened_before.refresh().unwrap() && node.open().is_populated().unwrap());
    opened_before.kill().unwrap();
    node.end();
}

/// Waits until a line of `/proc/PID/status` begins like this.
fn wait_for_status(pid: u32, begins: &str) {
    let path = format!("/proc/{pid}/status");
    let holds = || {
        let status = fs::read_to_string(&path).unwrap();
        status.lines().any(|line| line.starts_with(begins))
    };
    while !holds() {
        std::thread::yield_now();
    }
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// A sibling stops the pod's process, traces it, and never looks at what becomes of it. With `PTRACE_O_TRACEEXIT`,
/// which strace sets, the kernel holds it on its way out for as long; it has its SIGKILL, and ends with the tracer.
#[test]
fn a_process_that_a_sibling_stops_and_traces_ends_with_the_tracer() {
    use rustix::process::Signal;
    let Some(mut node) = V2::new("traced") else {
        return;
    };
    if Command::new("strace").arg("-V").output().is_err() {
        return notes::left_out("strace is no program of this machine");
    }
    node.start_in("");
    let pod = node.open();
    let pid = node.children[0].id();
    signal(&node.children[0], Signal::STOP);
    wait_for_status(pid, "State:\tT");
    assert!(pod.is_populated().unwrap());
    let mut tracer = Command::new("strace")
        .args(["-qq", "-o", "/dev/null", "-p", &pid.to_string()])
        .spawn()
        .unwrap();
    wait_for_status(pid, &format!("TracerPid:\t{}", tracer.id()));
    signal(&tracer, Signal::STOP);
    wait_for_status(tracer.id(), "State:\tT");
    pod.kill().unwrap();
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    node.end();
    while pod.is_populated().unwrap() {
        std::thread::yield_now();
    }
}

/// Trees from a seed: whatever they are like, the kernel is believed.
#[test]
fn what_runs_is_what_the_kernel_says() {
    let Some(mut node) = V2::new("random") else {
        return;
    };
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..12 {
        let mut cgroups = vec![PathBuf::new()];
        for _ in 0..random(40) {
            // The newest ones have children more often, so that some trees are deep.
            let newest = cgroups.len() as u64;
            let at = newest - 1 - random(newest).min(random(newest));
            let cgroup = cgroups[at as usize].join(format!("g{}", random(1000)));
            if fs::create_dir(node.pod().join(&cgroup)).is_ok() {
                cgroups.push(cgroup);
            }
        }
        let mut pod = node.open();
        for _ in 0..random(4) {
            let at = random(cgroups.len() as u64) as usize;
            node.start_in(&cgroups[at]);
            assert_eq!(pod.is_populated().unwrap(), node.is_populated());
            assert_eq!(node.open().is_populated().unwrap(), node.is_populated());
        }
        assert_eq!(pod.refresh().unwrap(), node.is_populated());
        pod.kill().unwrap();
        node.end();
        while node.is_populated() {
            std::thread::yield_now();
        }
        assert!(!pod.is_populated().unwrap() && !pod.refresh().unwrap());
        remove(&node.mounts, &V2::path());
        fs::create_dir(node.pod()).unwrap();
    }
}

/// Cgroups of this machine's v1 hierarchies for memory and the freezer.
struct V1 {
    mounts: CgroupMounts,
    path: CgroupPath,
    memory: PathBuf,
    freezer: PathBuf,
}

impl V1 {
    fn new(name: &str) -> Option<Self> {
        let mounts = HostRoot::live().cgroup_mounts().ok()?;
        let path =
            CgroupPath::new(&format!("plimsoll-test-{name}-{}", std::process::id())).unwrap();
        let dir = |controller| {
            let hierarchy = mounts.hierarchy_of(controller).ok()?;
            let dir = hierarchy.dir(&path);
            let is_usable = hierarchy.version == Version::V1 && fs::create_dir(&dir).is_ok();
            is_usable.then_some(dir)
        };
        let (memory, freezer) = (dir(Controller::Memory), dir(Controller::Freezer));
        let Some((memory, freezer)) = memory.zip(freezer) else {
            notes::left_out("no v1 hierarchies of memory and the freezer that can be written");
            return None;
        };
        Some(Self {
            mounts,
            path,
            memory,
            freezer,
        })
    }

    fn open(&self) -> PodKill {
        PodKill::open(&HostRoot::live(), &self.mounts, &self.path).unwrap()
    }
}

impl Drop for V1 {
    fn drop(&mut self) {
        for dir in [&self.memory, &self.freezer] {
            for _ in 0..REMOVALS_MAX {
                if remove_all(dir).is_ok() || !dir.exists() {
                    break;
                }
                std::thread::yield_now();
            }
        }
    }
}

fn remove_all(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_all(&entry.path())?;
        }
    }
    fs::remove_dir(dir)
}

#[test]
fn a_frozen_pod_of_v1_is_thawed_and_ends() {
    let Some(node) = V1::new("frozen") else {
        return;
    };
    fs::create_dir(node.memory.join("c")).unwrap();
    fs::create_dir_all(node.freezer.join("c/deeper")).unwrap();
    let (outer, inner) = (sleeper(), sleeper());
    put(&node.memory.join("c"), &outer);
    put(&node.memory.join("c"), &inner);
    put(&node.freezer.join("c"), &outer);
    put(&node.freezer.join("c/deeper"), &inner);
    let pod = node.open();
    let states = ["c/deeper/freezer.state", "c/freezer.state"].map(|file| node.freezer.join(file));
    for state in &states {
        fs::write(state, "FROZEN").unwrap();
        while fs::read_to_string(state).unwrap() != "FROZEN\n" {
            std::thread::yield_now();
        }
    }
    pod.kill().unwrap();
    for state in &states {
        let now = fs::read_to_string(state).unwrap();
        if now != "THAWED\n" {
            // Thawed here, so that the test ends.
            fs::write(&states[1], "THAWED").unwrap();
            fs::write(&states[0], "THAWED").unwrap();
            panic!("{}: {now}", state.shown());
        }
    }
    assert_eq!((signal_of(outer), signal_of(inner)), (Some(9), Some(9)));
}

#[test]
fn on_v1_the_rest_of_a_pod_is_ended_too() {
    let Some(node) = V1::new("rest") else {
        return;
    };
    for index in 0..CGROUPS_PER_POD_MAX + 44 {
        fs::create_dir(node.memory.join(index.to_string())).unwrap();
    }
    let pod = node.open();
    assert!(pod.has_more_cgroups() && pod.is_populated().unwrap());
    let known: Vec<PathBuf> = pod.cgroups().map(|cgroup| cgroup.dir.to_owned()).collect();
    let hidden = (0..CGROUPS_PER_POD_MAX + 44)
        .map(|index| node.memory.join(index.to_string()))
        .find(|dir| !known.contains(dir))
        .unwrap();
    // Frozen and deep as well.
    let hidden = hidden.join("1/2/3/4/5/6/7/8/9");
    fs::create_dir_all(&hidden).unwrap();
    let child = sleeper();
    put(&hidden, &child);
    put(&node.freezer, &child);
    fs::write(node.freezer.join("freezer.state"), "FROZEN").unwrap();
    pod.kill().unwrap();
    assert!(pod.is_populated().unwrap());
    let sweep = pod.needed_sweep().unwrap();
    let ended = sweep
        .end(&mut |_| {
            std::thread::yield_now();
            true
        })
        .unwrap();
    assert!(ended.is_empty && ended.signals >= 1, "{ended:?}");
    assert_eq!(signal_of(child), Some(9));
    assert!(!pod.is_populated().unwrap());
}

/// Says that the test that is named is alone in its process.
const ALONE: &str = "PLIMSOLL_TEST_ALONE";

/// Whether this process is for this test alone, which may change its limits; if not, one that is has just passed it.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .status();
    assert!(status.unwrap().success());
    false
}

/// What `work` returns while this process gets no descriptor.
fn without_descriptors<T>(work: impl FnOnce() -> T) -> T {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..before
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let opened = fs::File::open("/dev/null");
    let result = work();
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(opened.is_err(), "there are descriptors");
    result
}

#[test]
fn no_descriptor_is_needed_to_end_a_pod_of_v2() {
    if !is_alone("no_descriptor_is_needed_to_end_a_pod_of_v2") {
        return;
    }
    let Some(mut node) = V2::new("descriptors") else {
        return;
    };
    fs::create_dir_all(node.pod().join("c/d")).unwrap();
    node.start_in("c");
    node.start_in("c");
    node.start_in("c/d");
    let pod = node.open();
    let first = without_descriptors(|| pod.kill_first_processes()).unwrap();
    assert_eq!(first, 1);
    without_descriptors(|| pod.kill()).unwrap();
    node.end();
}

/// There is no `cgroup.kill`: who is in a cgroup is listed anew, and signalled by a descriptor of its own, so that no
/// stranger is. The caller is told, and tries again.
#[test]
fn a_pod_of_v1_that_cannot_be_killed_without_descriptors_is_said_and_killed_later() {
    if !is_alone("a_pod_of_v1_that_cannot_be_killed_without_descriptors_is_said_and_killed_later") {
        return;
    }
    let Some(node) = V1::new("descriptors") else {
        return;
    };
    fs::create_dir(node.memory.join("c")).unwrap();
    let children = [sleeper(), sleeper()];
    for child in &children {
        put(&node.memory.join("c"), child);
    }
    let pod = node.open();
    let failed = without_descriptors(|| pod.kill());
    let was_populated = pod.is_populated();
    // Before anything that can fail: nothing of the test is to be left.
    pod.kill().unwrap();
    assert_eq!(children.map(signal_of), [Some(9), Some(9)]);
    let error = failed.unwrap_err();
    assert!(error.to_string().contains("os error 24"), "{error}");
    assert!(was_populated.unwrap());
}
