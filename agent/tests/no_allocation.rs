//! Between a record of the kernel and the signal that ends a pod nothing is allocated: there may be no memory left to allocate.
//!
//! A host with 100 pods is made of files in a temporary directory, and the agent's own loop functions run on it:
//! [`Agent::react`], which samples, decides and acts, is measured; [`Agent::settle`], which follows it (journal, output), is
//! not. The victim is a real process, listed in its fake cgroup, so that SIGTERM goes the whole way.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use plimsoll::daemon::Agent;
use plimsoll::daemon::limits::{Limits, Origins};
use plimsoll::daemon::sampler::Sampler;
use plimsoll::host::output::Output;
use plimsoll::host::{CgroupPath, HostRoot};
use plimsoll::input::config::{Config, ConfigFile, EvictionFlags};
use plimsoll::input::manifests::{ManifestChange, ManifestPod};
use plimsoll::pods::registry::Pods;
use plimsoll::record::lines::Reporter;
use plimsoll_core::engine::Engine;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::event::Cause;

const PODS: usize = 100;
/// Its usage is the largest.
const VICTIM: usize = 42;
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A fake node of 16 GiB.
struct Node {
    _dir: tempfile::TempDir,
    host: HostRoot,
    agent: Agent,
    /// One process in each pod.
    processes: Vec<Child>,
}

#[derive(Clone, Copy)]
enum Cgroup {
    V1,
    V2,
}

impl Cgroup {
    fn mount(self) -> &'static str {
        match self {
            Self::V1 => "/sys/fs/cgroup/memory",
            Self::V2 => "/sys/fs/cgroup",
        }
    }

    fn set_usage(self, dir: &Path, usage_bytes: u64) {
        let (usage, prefix) = match self {
            Self::V1 => ("memory.usage_in_bytes", "total_"),
            Self::V2 => ("memory.current", ""),
        };
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(usage), format!("{usage_bytes}\n")).unwrap();
        let stat = format!(
            "anon {usage_bytes}\nfile 0\n{prefix}inactive_file 4096\n{prefix}active_file 4096\n"
        );
        fs::write(dir.join("memory.stat"), stat).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for process in &mut self.processes {
            process.kill().ok();
            process.wait().ok();
        }
    }
}

fn pod(index: usize) -> Pod {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("p{index}"), "namespace": "default", "uid": format!("uid-{index}")},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"memory": "16Mi"}}}]},
    }))
    .unwrap()
}

impl Node {
    fn new(cgroup: Cgroup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        let mount = host.path(cgroup.mount());
        fs::create_dir_all(&mount).unwrap();
        fs::create_dir_all(host.procfs("self")).unwrap();
        let kind = match cgroup {
            Cgroup::V1 => "cgroup",
            Cgroup::V2 => "cgroup2",
        };
        let mounts = format!("{kind} {} {kind} rw,memory 0 0\n", cgroup.mount());
        fs::write(host.procfs("self/mounts"), mounts).unwrap();
        fs::write(mount.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let kubepods = CgroupPath::new("kubepods").unwrap();
        cgroup.set_usage(&mount.join("kubepods"), 4 * GIB);

        let mut processes = Vec::new();
        for index in 0..PODS {
            let process = Command::new("sleep").arg("600").spawn().unwrap();
            let pid = process.id().to_string();
            std::os::unix::fs::symlink(format!("/proc/{pid}"), host.procfs(&pid)).unwrap();
            processes.push(process);
            let pod_dir = pod_dir(&host, cgroup, index);
            cgroup.set_usage(&pod_dir, 32 * MIB);
            fs::write(pod_dir.join("cgroup.procs"), "").unwrap();
            fs::write(pod_dir.join("cgroup.kill"), "").unwrap();
            fs::create_dir(pod_dir.join("c")).unwrap();
            fs::write(pod_dir.join("c/cgroup.procs"), format!("{pid}\n")).unwrap();
        }

        set_available(&host, 8 * GIB);
        let mounts = host.cgroup_mounts().unwrap();
        let config = Config::new(ConfigFile::default(), &EvictionFlags::default()).unwrap();
        let sampler = Sampler::open(&host, &mounts, &kubepods, 15 * GIB).unwrap();
        let limits = Limits::new(&mounts, Origins::of(&[], false)).unwrap();
        let pods = Pods::new(host.clone(), mounts, CgroupPath::default());
        let reporter = Reporter::start(Output::Json).unwrap();
        let mut agent = Agent::new(
            Engine::new(config.engine),
            pods,
            sampler,
            limits,
            None,
            None,
            reporter,
        );
        agent.manifests(ManifestChange {
            added: (0..PODS)
                .map(|index| ManifestPod {
                    pod: Arc::new(pod(index)),
                    file: Arc::from(dir.path()),
                    line: 1,
                })
                .collect(),
            ..ManifestChange::default()
        });
        Self {
            _dir: dir,
            host,
            agent,
            processes,
        }
    }

    /// One turn of the loop. Returns what `react` allocated.
    fn turn(&mut self, cause: Cause) -> u64 {
        let agent = &mut self.agent;
        let allocated = allocation_counter::measure(|| agent.react(cause, None).unwrap());
        agent.settle();
        allocated.count_total
    }
}

fn pod_dir(host: &HostRoot, cgroup: Cgroup, index: usize) -> PathBuf {
    host.path(cgroup.mount())
        .join(format!("kubepods/burstable/poduid-{index}"))
}

fn set_available(host: &HostRoot, available_bytes: u64) {
    let total_kib = (16 * GIB) >> 10;
    let available_kib = available_bytes >> 10;
    let anon_kib = total_kib - available_kib;
    let text = format!(
        "MemTotal: {total_kib} kB\nMemFree: {available_kib} kB\nMemAvailable: {available_kib} kB\nBuffers: 0 kB\nCached: 0 kB\n\
         SwapCached: 0 kB\nActive(file): 0 kB\nInactive(file): 0 kB\nAnonPages: {anon_kib} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    );
    fs::write(host.procfs("meminfo"), text).unwrap();
}

fn nothing_is_allocated(cgroup: Cgroup) {
    let mut node = Node::new(cgroup);
    let (host, victim_dir) = (node.host.clone(), pod_dir(&node.host, cgroup, VICTIM));
    let crossing = Cause::ChargeThreshold { crossed_ns: 1 };

    // The counter does count, on this thread.
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(Box::new([0_u8; 64]))));
    assert_eq!(counted.count_total, 1);

    // The first sample finds buffers that nobody has filled yet.
    node.turn(Cause::Timer);
    assert_eq!(node.turn(Cause::Timer), 0, "a calm sample");
    assert_eq!(node.turn(crossing), 0, "a calm sample, urgently");

    cgroup.set_usage(&victim_dir, 2 * GIB);
    set_available(&host, 90 * MIB);
    assert_eq!(node.turn(crossing), 0, "crossing, decision, SIGTERM");
    let status = node.processes[VICTIM].wait().unwrap();
    assert_eq!(status.signal(), Some(15));

    // A process that does not mind SIGTERM is in the pod as well, and half of the threshold is gone.
    let stubborn = Command::new("sleep").arg("600").spawn().unwrap();
    fs::write(
        victim_dir.join("c/cgroup.procs"),
        format!("{}\n", stubborn.id()),
    )
    .unwrap();
    node.processes.push(stubborn);
    set_available(&host, 40 * MIB);
    assert_eq!(node.turn(crossing), 0, "the kill");
    match cgroup {
        Cgroup::V1 => {
            let status = node.processes[PODS].wait().unwrap();
            assert_eq!(status.signal(), Some(9));
        }
        Cgroup::V2 => {
            let written = fs::read_to_string(victim_dir.join("cgroup.kill")).unwrap();
            assert_eq!(written, "1");
        }
    }

    // It does not get to run, so its memory is freed for it.
    std::thread::sleep(Duration::from_millis(25));
    assert_eq!(node.turn(crossing), 0, "process_mrelease");

    // It is gone and its memory is back, but that was not enough: the next one goes.
    fs::write(victim_dir.join("c/cgroup.procs"), "").unwrap();
    cgroup.set_usage(&victim_dir, 0);
    let next = VICTIM + 1;
    cgroup.set_usage(&pod_dir(&host, cgroup, next), GIB);
    assert_eq!(node.turn(crossing), 0, "the victim is gone");
    assert_eq!(node.turn(crossing), 0, "the next victim");
    let status = node.processes[next].wait().unwrap();
    assert_eq!(status.signal(), Some(15));
}

#[test]
fn nothing_is_allocated_between_record_and_kill_on_v2() {
    nothing_is_allocated(Cgroup::V2);
}

#[test]
fn nothing_is_allocated_between_record_and_kill_on_v1() {
    nothing_is_allocated(Cgroup::V1);
}
