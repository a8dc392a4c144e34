//! The loop on a host made of files: between a record and the signal nothing is allocated, and no optional source ends
//! the agent.
//!
//! The host has 100 pods, of which one is Guaranteed and has a CPU of its own. On are journal, scores and their order,
//! last line, disks, remedies, placement and limits. Records go through the decoder, and [`Agent::respond`], which
//! samples, decides and acts, is measured. What follows it (journal, output) is not. The victim is a real process,
//! listed in its fake cgroup, so that SIGTERM goes the whole way.
//!
//! Not covered, as there are no BPF programs here: draining the rings, arming the charge threshold, the maps of the
//! last line. Off as well are CPU time, the runtime's events (NRI), the cgroups above the pods and OOM groups.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use plimsoll_abi::{self as abi, ABI_VERSION, Header, Kind, UNKNOWN_U64};
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::FreeSource;
use plimsoll_core::model::event::{Cause, EventKind, PlacementStart, PodsRead};
use plimsoll_core::model::options;
use plimsoll_core::model::reading::{FileSystemReading, PodStorage, StorageReading};
use zerocopy::IntoBytes as _;

use super::findings::Findings;
use super::turn::note_critical_record;
use super::wake::SourceName;
use super::*;
use crate::act::holds::{HOLDS_LEDGER, Holds};
use crate::act::memory_release::MemoryRelease;
use crate::act::oom_order::OomOrdering;
use crate::act::oom_scores::OomScores;
use crate::act::remedies::{REMEDIES_LEDGER, Remedies};
use crate::daemon::limits::{Limits, Origins};
use crate::daemon::placement::tests::{machine, place_on};
use crate::host::ledger::Ledger;
use crate::host::output::Output;
use crate::host::{CgroupPath, HostRoot};
use crate::input::config::{Config, ConfigFile, EvictionFlags};
use crate::input::manifests::{ManifestChange, ManifestPod};
use crate::kernel::Generation;
use crate::kernel::decode::decode;
use crate::pods::kill::{HOLD_FILE, KillThread, What};
use crate::pods::memory_reader::StatThread;
use crate::pods::names::KubeletTree;
use crate::source::cluster::LeftBehind;
use crate::source::cluster::{ClusterChange, ClusterEvent};
use crate::storage::freeing::Freed;
use crate::storage::{Storage, StorageEvent, StorageSettings};

const PODS: usize = 100;
/// Its usage is the largest.
pub(super) const VICTIM: usize = 42;
/// Guaranteed, with one CPU.
const HOLDER: usize = 7;
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const ARMING: u64 = 7;
/// How often a process is looked at that a signal ends: it ends when it has a CPU.
const LOOKS_MAX: usize = 6_000;

/// A fake node of 16 GiB.
pub(super) struct Node {
    _dir: tempfile::TempDir,
    pub(super) host: HostRoot,
    pub(super) agent: Agent,
    /// One process in each pod.
    processes: Vec<Child>,
    _storage: tokio::sync::mpsc::Receiver<StorageEvent>,
    _remedies: crate::act::remedies::Reports,
}

#[derive(Clone, Copy)]
pub(super) enum Cgroup {
    V1,
    V2,
}

impl Cgroup {
    pub(super) fn mount(self) -> &'static str {
        match self {
            Self::V1 => "/sys/fs/cgroup/memory",
            Self::V2 => "/sys/fs/cgroup",
        }
    }

    pub(super) fn limit(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
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
    let resources = match index {
        HOLDER => {
            let amounts = serde_json::json!({"cpu": "1", "memory": "16Mi"});
            serde_json::json!({"requests": amounts, "limits": amounts})
        }
        _ => serde_json::json!({"requests": {"memory": "16Mi"}}),
    };
    serde_json::from_value(serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("p{index}"), "namespace": "default", "uid": format!("uid-{index}")},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
        "status": {"containerStatuses": [{"name": "c", "containerID": format!("x://{}", container_id('1')), "state": {"running": {}}}]},
    }))
    .unwrap()
}

/// Of the containers, and of the sandboxes.
pub(super) fn container_id(digit: char) -> String {
    std::iter::repeat_n(digit, 64).collect()
}

impl Node {
    fn new(cgroup: Cgroup) -> Self {
        Self::with(cgroup, false)
    }

    /// `is_kubelets`: a kubelet runs the pods.
    pub(super) fn with(cgroup: Cgroup, is_kubelets: bool) -> Self {
        Self::built(
            cgroup,
            is_kubelets,
            true,
            KillThread::start().unwrap(),
            StatThread::start().unwrap(),
        )
    }

    fn built(
        cgroup: Cgroup,
        is_kubelets: bool,
        has_remedies: bool,
        kill_thread: KillThread,
        stat_thread: StatThread,
    ) -> Self {
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
            for file in ["cgroup.kill", "memory.reclaim", "memory.events"] {
                fs::write(pod_dir.join(file), "").unwrap();
            }
            fs::write(pod_dir.join("memory.high"), "max\n").unwrap();
            fs::create_dir(pod_dir.join("c")).unwrap();
            fs::write(pod_dir.join("c/cgroup.procs"), format!("{pid}\n")).unwrap();
            if is_kubelets {
                fs::write(pod_dir.join(HOLD_FILE), "max\n").unwrap();
                fs::rename(pod_dir.join("c"), pod_dir.join(container_id('1'))).unwrap();
                fs::create_dir(pod_dir.join(container_id('0'))).unwrap();
                fs::write(pod_dir.join(container_id('0')).join("cgroup.procs"), "").unwrap();
                for container in ['0', '1'].map(container_id) {
                    let dir = pod_dir.join(container);
                    fs::write(dir.join("cgroup.kill"), "").unwrap();
                    fs::write(dir.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
                    fs::write(dir.join("memory.current"), "4096\n").unwrap();
                }
            }
        }

        set_available(&host, 8 * GIB);
        let mounts = host.cgroup_mounts().unwrap();
        let file = dir.path().join("config.yaml");
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
        fs::write(&file, text).unwrap();
        let file = ConfigFile::read(&file).unwrap();
        let mut config = Config::new(file, &EvictionFlags::default()).unwrap();
        config.engine.beside_kubelet = is_kubelets;
        let options = &mut config.engine.options;
        options.remedies = has_remedies.then_some(options::Remedies {
            reclaim_budget_ns: 1,
            throttle_budget_ns: 1,
            notify_budget_ns: 1,
        });
        options.last_line = Some(options::LastLine::default());
        let mut sampler = Sampler::open(&host, &mounts, &kubepods, 15 * GIB).unwrap();
        if is_kubelets {
            fs::write(mount.join("kubepods").join(cgroup.limit()), "max\n").unwrap();
            sampler.heed_kubelets_limit(&mounts, &kubepods).unwrap();
        }
        let origins = Origins {
            memory_events: true,
            ..Origins::of(&[], false)
        };
        let limits = Limits::new(&mounts, origins, origins.events().unwrap());
        let pods = Pods::new(host.clone(), mounts.clone(), CgroupPath::default())
            .with_kill_thread(Some(kill_thread))
            .with_stat_thread(Some(stat_thread))
            .with_remedy_files(true);
        let tree = || KubeletTree::find(&mounts, &CgroupPath::default()).unwrap();
        let (pods, kubelet) = match is_kubelets {
            false => (pods, None),
            true => {
                let ledger = Ledger::open(&host, dir.path().join(HOLDS_LEDGER)).unwrap();
                let (holds, held) = Holds::take_up(ledger, &BTreeSet::new()).unwrap();
                let (left, lost) = (LeftBehind::default(), Vec::new());
                let work = KubeletWork::new(None, Some(holds), held, left, lost);
                (pods.beside_kubelet(Some(tree())), Some(work))
            }
        };
        let reporter = Reporter::start(Output::Json, false, io::sink()).unwrap();
        let engine = Engine::new(config.engine);
        let journal = Journal::create(&dir.path().join("journal"), &engine).unwrap();
        let capacity = NonZeroU64::new(16 * GIB).unwrap();
        let scores = OomScores::start(host.clone(), capacity, true, Arc::default()).unwrap();
        let order = OomOrdering::open(&host, &mounts).unwrap();
        let ledger = Ledger::open(&host, dir.path().join(REMEDIES_LEDGER)).unwrap();
        let (remedies, remedy_reports) = Remedies::start(ledger).unwrap();
        let (threads, storage_events) = Storage::spawn(StorageSettings {
            host: host.clone(),
            kubelet_dir: dir.path().join("kubelet"),
            logs_dir: dir.path().join("logs"),
            ..StorageSettings::live(CgroupPath::default())
        })
        .unwrap();
        let mut agent = Agent::new(engine, pods, sampler, limits, None, Some(journal), reporter)
            .with_oom(OomWork {
                scores: Some(scores),
                order: Some(order),
                groups: None,
            })
            .with_storage(StorageWork::new(threads))
            .with_kubelet(kubelet)
            .with_memory_release(Some(MemoryRelease::start(host.clone()).unwrap()))
            .with_remedies(remedies);
        // Its maps need a kernel; all else of it is here.
        agent.last_line = Some(LastLine::new(options::LastLine::default(), &host));
        let start = PlacementStart {
            settings: config.placement.clone(),
            machine: machine(),
            saved: None,
        };
        agent.handle_event(EventKind::PlacementStarted(Box::new(start)));
        assert!(agent.engine.state().placement.is_some());
        agent
            .manifests(ManifestChange {
                added: (0..PODS)
                    .map(|index| ManifestPod {
                        pod: Arc::new(pod(index)),
                        document: Arc::default(),
                        file: Arc::from(dir.path()),
                        line: 1,
                    })
                    .collect(),
                ..ManifestChange::default()
            })
            .unwrap();
        Self {
            _dir: dir,
            host,
            agent,
            processes,
            _storage: storage_events,
            _remedies: remedy_reports,
        }
    }

    /// One turn of the loop with these records in the ring. Returns how often it allocated up to the signal.
    fn turn(&mut self, records: &[Vec<u8>]) -> u64 {
        self.turn_for(Findings::default(), records)
    }

    fn turn_for(&mut self, mut found: Findings, records: &[Vec<u8>]) -> u64 {
        let agent = &mut self.agent;
        let allocated = allocation_counter::measure(|| {
            for record in records {
                let (_, record) = decode(record).unwrap();
                let last_line = agent.last_line.as_mut();
                let newest = Generation(ARMING);
                note_critical_record(&record, newest, &mut found, last_line, &mut agent.oom_kills);
            }
            agent.react_if_asked(&mut found).unwrap();
        });
        agent.after_sample();
        agent.publish();
        allocated.count_total
    }

    /// What can wait: as much of it as there is without a kernel's rings.
    pub(super) fn rest(&mut self) {
        self.agent.follow_up_features();
        self.agent.report_oom_kills(u64::MAX);
        self.agent.serve_newcomers();
        self.agent.order_oom_scores().unwrap();
        self.agent.rescan(false).unwrap();
    }

    pub(super) fn timer(&mut self) -> u64 {
        let mut found = Findings::default();
        found.add_cause(Cause::Timer);
        self.turn_for(found, &[])
    }

    /// Until the thread has written what it was given: a hold, and each `cgroup.kill`.
    pub(super) fn wait_for_kill(&self) {
        let pods = &self.agent.pods;
        while pods.kill_writes().count == 0 || !pods.are_holds_written() {
            std::thread::yield_now();
        }
    }

    fn cgroup_id(&self, index: usize) -> u64 {
        let uid = PodUid::new(format!("uid-{index}"));
        self.agent.pods.cgroup(&uid).unwrap().1
    }

    /// Whether a process has ended by a signal.
    fn ended_by(&mut self, index: usize) -> Option<i32> {
        let status = self.processes[index].try_wait().unwrap();
        status.and_then(|status| status.signal())
    }

    /// Crossings until a process has ended; none may allocate.
    fn cross_until_ended(&mut self, index: usize, what: &str) -> i32 {
        for _ in 0..LOOKS_MAX {
            assert_eq!(self.turn(&[crossing(ARMING)]), 0, "{what}");
            if let Some(signal) = self.ended_by(index) {
                return signal;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{what}: the process goes on");
    }
}

fn header(kind: Kind, cgroup_id: u64) -> Header {
    Header {
        ts_ns: now_ns(),
        cgroup_id,
        kind: kind.number(),
        abi_version: ABI_VERSION,
        cpu: 0,
    }
}

fn crossing(generation: u64) -> Vec<u8> {
    let record = abi::ChargesReached {
        header: header(Kind::ChargesReached, 0),
        charged_pages: 1 << 20,
        generation,
        node: abi::NodePages::UNKNOWN,
    };
    record.as_bytes().to_vec()
}

/// A crossing so long ago, with what the node had then.
fn crossing_with(available_bytes: u64, age_ns: u64) -> Vec<u8> {
    let pages = |bytes: u64| bytes / rustix::param::page_size() as u64;
    let record = abi::ChargesReached {
        header: Header {
            ts_ns: now_ns() - age_ns,
            ..header(Kind::ChargesReached, 0)
        },
        charged_pages: 1 << 20,
        generation: ARMING,
        node: abi::NodePages {
            free: pages(available_bytes),
            available: pages(available_bytes),
            anon: pages(16 * GIB - available_bytes),
            file: 0,
            inactive_file: 0,
            active_file: 0,
            shmem: 0,
        },
    };
    record.as_bytes().to_vec()
}

fn last_line_kill(cgroup_id: u64, uid: [u64; 5]) -> Vec<u8> {
    let record = abi::last_line::LastLineKill {
        header: header(Kind::LastLineKill, cgroup_id),
        available_pages: UNKNOWN_U64,
        wanted_pages: 500,
        crossed_ns: 0,
        acked_ns: 5,
        kills: 1,
        uid,
        tgid: 77,
        reason: abi::last_line::reason::EXHAUSTED,
        place: 1,
        pad: 0,
        comm: [b'x'; abi::COMM_BYTES],
    };
    record.as_bytes().to_vec()
}

fn oom_kill(cgroup_id: u64) -> Vec<u8> {
    let record = abi::OomKill {
        header: header(Kind::OomKill, cgroup_id),
        limit_cgroup_id: UNKNOWN_U64,
        points: 1,
        total_pages: 1,
        anon_pages: 1,
        tgid: 78,
        oom_score_adj: 0,
        comm: [b'x'; abi::COMM_BYTES],
    };
    record.as_bytes().to_vec()
}

/// A process that is put into a cgroup.
fn attach(cgroup_id: u64) -> Vec<u8> {
    let record = abi::CgroupAttach {
        header: header(Kind::CgroupAttach, cgroup_id),
        tgid: 1 << 30,
        hierarchy_id: 0,
    };
    record.as_bytes().to_vec()
}

pub(super) fn pod_dir(host: &HostRoot, cgroup: Cgroup, index: usize) -> PathBuf {
    let class = match index {
        HOLDER => "",
        _ => "burstable/",
    };
    host.path(cgroup.mount())
        .join(format!("kubepods/{class}poduid-{index}"))
}

pub(super) fn set_available(host: &HostRoot, available_bytes: u64) {
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

    // The counter does count, on this thread.
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(Box::new([0_u8; 64]))));
    assert_eq!(counted.count_total, 1);

    // The first sample finds buffers that nothing has filled yet.
    node.timer();
    node.rest();
    assert_eq!(node.timer(), 0, "a calm sample");
    assert_eq!(node.turn(&[crossing(ARMING)]), 0, "a calm crossing");
    assert!(
        node.agent.sample.pods_read == PodsRead::None,
        "and no pod is read for it"
    );
    assert_eq!(node.turn(&[crossing(ARMING - 1)]), 0, "an old one");

    // All at once: a flood of processes that come, the kernel's OOM killer elsewhere, a reading of disks.
    let mut asks = lifecycle::Asks::default();
    for index in 0..2000 {
        let record = attach(node.cgroup_id(index % PODS));
        let (_, record) = decode(&record).unwrap();
        let Agent {
            pods, oom, rescans, ..
        } = &mut node.agent;
        lifecycle::note_lifecycle_record(&record, pods, oom.scores.as_mut(), rescans, &mut asks);
    }
    let mut found = Findings::default();
    let reading = StorageEvent::Reading(Arc::new(StorageReading {
        nodefs: Some(FileSystemReading {
            at_ns: now_ns(),
            available_bytes: 90 * GIB,
            capacity_bytes: 100 * GIB,
            inodes_free: None,
            inodes: None,
        }),
        imagefs: None,
        containerfs: None,
        pods: Vec::new(),
    }));
    node.agent.storage_event(reading, &mut found);
    let many: Vec<_> = (0..100)
        .map(|_| oom_kill(1))
        .chain([crossing(ARMING)])
        .collect();
    assert_eq!(node.turn_for(found, &many), 0, "a flood of everything");
    node.rest();

    // A process that does not mind SIGTERM is in the pod as well. It goes with the kill, or when the first process has
    // ended.
    let stubborn = Command::new("sh")
        .args(["-c", "trap '' TERM; exec sleep 600"])
        .spawn()
        .unwrap();
    let comm = format!("/proc/{}/comm", stubborn.id());
    while fs::read_to_string(&comm).unwrap().trim() != "sleep" {
        std::thread::yield_now();
    }
    let pids = format!("{}\n{}\n", node.processes[VICTIM].id(), stubborn.id());
    fs::write(victim_dir.join("c/cgroup.procs"), pids).unwrap();
    node.processes.push(stubborn);
    cgroup.set_usage(&victim_dir, 2 * GIB);
    set_available(&host, 90 * MIB);
    let signal = node.cross_until_ended(VICTIM, "crossing, remedies, decision, SIGTERM");
    assert_eq!(signal, 15);
    node.rest();

    // Half of the threshold is gone.
    set_available(&host, 40 * MIB);
    assert_eq!(node.turn(&[crossing(ARMING)]), 0, "the kill");
    match cgroup {
        Cgroup::V1 => {
            let status = node.processes[PODS].wait().unwrap();
            assert_eq!(status.signal(), Some(9));
        }
        Cgroup::V2 => {
            node.wait_for_kill();
            let written = fs::read_to_string(victim_dir.join("cgroup.kill")).unwrap();
            assert_eq!(written, "1");
        }
    }

    // It does not get to run, so its memory is freed for it.
    std::thread::sleep(Duration::from_millis(25));
    assert_eq!(node.turn(&[crossing(ARMING)]), 0, "process_mrelease");

    // It is gone and its memory is back, but that was not enough: the next one goes.
    fs::write(victim_dir.join("c/cgroup.procs"), "").unwrap();
    cgroup.set_usage(&victim_dir, 0);
    let next = VICTIM + 1;
    cgroup.set_usage(&pod_dir(&host, cgroup, next), GIB);
    let signal = node.cross_until_ended(next, "the next victim");
    assert_eq!(signal, 15);

    // The last line has killed a pod.
    let kill = last_line_kill(node.cgroup_id(VICTIM + 2), [0; 5]);
    assert_eq!(node.turn(&[kill]), 0, "a kill of the last line");
    node.rest();
    // This test can fail: for a pod that is not known the engine is given a new identity.
    let unknown = last_line_kill(u64::MAX, [u64::from_ne_bytes(*b"unknown_"), 0, 0, 0, 0]);
    assert_ne!(node.turn(&[unknown]), 0);
}

#[test]
fn nothing_is_allocated_between_record_and_kill_on_v2() {
    nothing_is_allocated(Cgroup::V2);
}

#[test]
fn nothing_is_allocated_between_record_and_kill_on_v1() {
    nothing_is_allocated(Cgroup::V1);
}

/// Placement is not waited for: what the pod that has left held is given back when there is time.
#[test]
fn nothing_is_allocated_when_a_victim_had_cpus_and_the_next_one_goes() {
    let mut node = Node::new(Cgroup::V2);
    let _state_dir = place_on(&mut node, false);
    let holder_dir = pod_dir(&node.host, Cgroup::V2, HOLDER);
    let uid = PodUid::new(format!("uid-{HOLDER}"));
    let holds = |node: &Node| {
        let placement = node.agent.engine.state().placement.as_ref().unwrap();
        placement.has_exclusive_cpus(&uid)
    };
    let placements = |node: &Node| node.agent.placement.as_ref().unwrap().number();
    node.timer();
    node.rest();
    node.timer();
    let before = placements(&node);
    assert!(before > 0 && holds(&node));

    Cgroup::V2.set_usage(&holder_dir, 2 * GIB);
    set_available(&node.host, 90 * MIB);
    assert_eq!(node.cross_until_ended(HOLDER, "it goes"), 15);
    node.rest();
    fs::write(holder_dir.join("c/cgroup.procs"), "").unwrap();
    Cgroup::V2.set_usage(&holder_dir, 0);
    Cgroup::V2.set_usage(&pod_dir(&node.host, Cgroup::V2, VICTIM), GIB);
    assert_eq!(node.cross_until_ended(VICTIM, "the next victim"), 15);
    assert_eq!(
        node.agent.engine.state().giving_back,
        std::slice::from_ref(&uid)
    );
    assert!(holds(&node) && placements(&node) == before);

    node.rest();
    assert!(!holds(&node) && placements(&node) == before + 1);
}

#[test]
fn a_record_says_what_the_node_has_unless_it_is_old_or_there_is_swap() {
    let mut node = Node::built(
        Cgroup::V2,
        false,
        false,
        KillThread::start().unwrap(),
        StatThread::start().unwrap(),
    );
    let host = node.host.clone();
    set_available(&host, 8 * GIB);
    node.timer();
    node.rest();
    node.timer();
    let mut free_bytes = |available_bytes, age_ns| {
        let record = crossing_with(available_bytes, age_ns);
        assert_eq!(node.turn(&[record]), 0);
        node.agent.sample.node.free_bytes
    };
    // The loop itself may be late by more than a millisecond: then the file is read, and the next crossing is asked.
    let said = (0..1000).find(|_| free_bytes(4 * GIB, 0) == 4 * GIB);
    assert!(said.is_some(), "what the record says is never used");
    assert_eq!(free_bytes(4 * GIB, 2_000_000), 8 * GIB, "an old one");

    let text = fs::read_to_string(host.procfs("meminfo")).unwrap();
    let swap = text.replace("SwapTotal: 0 kB", "SwapTotal: 4096 kB");
    fs::write(host.procfs("meminfo"), swap).unwrap();
    node.timer();
    let mut turn = |available_bytes| {
        node.turn(&[crossing_with(available_bytes, 0)]);
        node.agent.sample.node.free_bytes
    };
    assert!((0..10).all(|_| turn(4 * GIB) == 8 * GIB), "with swap");
}

#[test]
fn only_the_leader_is_read_and_nothing_is_allocated_for_it() {
    let mut node = Node::built(
        Cgroup::V2,
        false,
        false,
        KillThread::start().unwrap(),
        StatThread::start().unwrap(),
    );
    let (host, victim_dir) = (node.host.clone(), pod_dir(&node.host, Cgroup::V2, VICTIM));
    Cgroup::V2.set_usage(&victim_dir, GIB);
    node.timer();
    node.rest();
    node.timer();
    Cgroup::V2.set_usage(&victim_dir, 2 * GIB);
    let kubepods = host.path(Cgroup::V2.mount()).join("kubepods");
    Cgroup::V2.set_usage(&kubepods, 2 * GIB + 512 * MIB);
    set_available(&host, 90 * MIB);
    // What was charged since the timer's samples is not known here: so another pod is read, and the kubepods cgroup
    // with it, before the victim goes.
    for (what, pods) in [("it goes", 2), ("it leaves", 1)] {
        assert_eq!(node.turn(&[crossing(ARMING)]), 0, "{what}");
        let sample = &node.agent.sample;
        let read: Vec<_> = sample
            .pods
            .iter()
            .map(|memory| memory.uid.as_str())
            .collect();
        assert!(sample.pods_read == PodsRead::Leaders, "{what}");
        assert_eq!(read[0], format!("uid-{VICTIM}"), "{what}");
        assert_eq!(read.len(), pods, "{what}");
        assert_eq!(sample.pods[0].usage_bytes, 2 * GIB, "{what}");
    }
    assert_eq!(
        node.cross_until_ended(VICTIM, "crossing, decision, SIGTERM"),
        15
    );
    // What could not be told by what is left of the kubepods cgroup is read of all pods.
    Cgroup::V2.set_usage(&kubepods, 4 * GIB);
    fs::write(victim_dir.join("c/cgroup.procs"), "").unwrap();
    Cgroup::V2.set_usage(&victim_dir, 0);
    let next = VICTIM + 1;
    Cgroup::V2.set_usage(&pod_dir(&host, Cgroup::V2, next), GIB);
    assert_eq!(node.cross_until_ended(next, "the next victim"), 15);
}

#[test]
fn beside_a_kubelet_the_hold_and_the_kill_allocate_nothing_and_spare_the_sandbox() {
    let mut node = Node::with(Cgroup::V2, true);
    let (host, victim_dir) = (node.host.clone(), pod_dir(&node.host, Cgroup::V2, VICTIM));
    let read = |path: &str| fs::read_to_string(victim_dir.join(path)).unwrap();
    node.timer();
    node.rest();
    let ledger = fs::read_to_string(node._dir.path().join(HOLDS_LEDGER)).unwrap();
    assert_eq!(ledger.lines().count(), PODS, "a line before any change");
    assert_eq!(read(HOLD_FILE), "max\n");
    Cgroup::V2.set_usage(&victim_dir, 2 * GIB);
    set_available(&host, 90 * MIB);
    let signal = node.cross_until_ended(VICTIM, "crossing, remedies, hold, kill");
    assert_eq!(signal, 9, "no SIGTERM at a hard threshold");
    node.wait_for_kill();
    // A plain file keeps what is longer.
    assert_eq!(read(HOLD_FILE), "0ax\n");
    let kill = |digit| read(&format!("{}/cgroup.kill", container_id(digit)));
    assert_eq!(
        (kill('1'), kill('0'), read("cgroup.kill")),
        ("1".into(), "".into(), "".into())
    );
    // What the report says was read before.
    let uid = PodUid::new(format!("uid-{VICTIM}"));
    assert_eq!(node.agent.pods.container_usages(&uid), [("c", 4096)]);
    // Other pods are not held.
    let other = pod_dir(&host, Cgroup::V2, VICTIM + 1).join(HOLD_FILE);
    assert_eq!(fs::read_to_string(other).unwrap(), "max\n");
}

/// Its cgroup is made when the kill has its list of them, and before the pod is held.
#[test]
fn beside_a_kubelet_a_container_that_was_about_to_start_is_killed_too() {
    let mut node = Node::with(Cgroup::V2, true);
    let victim_dir = pod_dir(&node.host, Cgroup::V2, VICTIM);
    node.timer();
    node.rest();
    Cgroup::V2.set_usage(&victim_dir, 2 * GIB);
    set_available(&node.host, 90 * MIB);
    node.cross_until_ended(VICTIM, "crossing, remedies, hold, kill");
    node.wait_for_kill();
    let [ended, late] = ['1', '2'].map(|digit| victim_dir.join(container_id(digit)));
    fs::create_dir(&late).unwrap();
    for file in fs::read_dir(&ended).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), late.join(file.file_name())).unwrap();
        }
    }
    let killed = late.join("cgroup.kill");
    fs::write(&killed, "").unwrap();
    let uid = PodUid::new(format!("uid-{VICTIM}"));
    loop {
        node.timer();
        node.rest();
        node.wait_for_kill();
        let pod = &node.agent.engine.state().pods[&uid];
        assert!(pod.leaving.is_some(), "others go in its place");
        if fs::read_to_string(&killed).unwrap() == "1" {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A tenant holds the lock that the kernel takes for either write.
#[test]
fn beside_a_kubelet_the_signals_wait_for_nothing_and_the_hold_is_written_before_the_kill() {
    let (let_go, held_up) = std::sync::mpsc::channel::<()>();
    let written = Arc::new(Mutex::new(Vec::new()));
    let of_thread = Arc::clone(&written);
    let thread = KillThread::start_with(move |file, what| {
        held_up.recv().ok();
        of_thread.lock().unwrap().push(what);
        file.write(what.text())
    });
    let mut node = Node::built(
        Cgroup::V2,
        true,
        true,
        thread.unwrap(),
        StatThread::start().unwrap(),
    );
    let victim_dir = pod_dir(&node.host, Cgroup::V2, VICTIM);
    let hold = || fs::read_to_string(victim_dir.join(HOLD_FILE)).unwrap();
    node.timer();
    node.rest();
    Cgroup::V2.set_usage(&victim_dir, 2 * GIB);
    set_available(&node.host, 90 * MIB);
    let signal = node.cross_until_ended(VICTIM, "crossing, remedies, kill, hold");
    assert_eq!((signal, hold()), (9, "max\n".to_owned()));
    // Its line in the ledger stays until it is written, and can be taken back.
    let uid = PodUid::new(format!("uid-{VICTIM}"));
    let gone = ClusterChange {
        gone: vec![uid],
        ..ClusterChange::default()
    };
    node.agent
        .cluster_event(ClusterEvent::Change(gone))
        .unwrap();
    let ledger = || fs::read_to_string(node._dir.path().join(HOLDS_LEDGER)).unwrap();
    let file = victim_dir.to_string_lossy().into_owned();
    assert!(ledger().contains(&file));
    drop(let_go);
    node.wait_for_kill();
    assert_eq!(*written.lock().unwrap(), [What::Hold, What::Kill]);
    assert_eq!(hold(), "0ax\n");
    fs::write(victim_dir.join(HOLD_FILE), "0").unwrap();
    while let Some(due_ns) = node.agent.kubelet.as_ref().unwrap().at_ns() {
        node.agent.lift_again(due_ns);
        node.agent.note_lifted();
        std::thread::yield_now();
    }
    let ledger = fs::read_to_string(node._dir.path().join(HOLDS_LEDGER)).unwrap();
    assert!(hold() == "max" && !ledger.contains(&file));
}

/// The kernel may take seconds for what a tenant's nested cgroups have counted.
#[test]
fn no_signal_waits_for_a_memory_stat_that_is_slow_to_read() {
    let (let_go, held_up) = std::sync::mpsc::channel::<()>();
    let thread = StatThread::start_with(0, move |files| {
        held_up.recv().ok();
        files.read_cache()
    });
    let mut node = Node::built(
        Cgroup::V2,
        false,
        false,
        KillThread::start().unwrap(),
        thread.unwrap(),
    );
    let host = node.host.clone();
    let pod_dirs: Vec<PathBuf> = (0..PODS)
        .map(|index| pod_dir(&host, Cgroup::V2, index))
        .collect();
    // The first reading of each is the loop's.
    node.timer();
    node.rest();
    node.timer();
    node.rest();
    let kubepods_dir = host.path("/sys/fs/cgroup/kubepods");
    Cgroup::V2.set_usage(&kubepods_dir, 5 * GIB);
    fs::write(
        kubepods_dir.join("memory.stat"),
        "inactive_file 8192\nactive_file 0\n",
    )
    .unwrap();
    Cgroup::V2.set_usage(&pod_dirs[VICTIM], 2 * GIB);
    // Who reads one fails, and the text of that is allocated.
    for dir in &pod_dirs {
        fs::write(dir.join("memory.stat"), "").unwrap();
    }
    set_available(&host, 90 * MIB);
    let signal = node.cross_until_ended(VICTIM, "crossing, decision, SIGTERM");
    assert_eq!(signal, 15);
    let cache_bytes = |node: &mut Node| {
        node.timer();
        let kubepods = node.agent.sample.kubepods.unwrap();
        assert_eq!(kubepods.usage_bytes, 5 * GIB);
        kubepods.inactive_file_bytes
    };
    assert_eq!(cache_bytes(&mut node), 4096, "as it was read last");
    drop(let_go);
    while cache_bytes(&mut node) != 8192 {
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn an_agent_that_loses_every_source_goes_on() {
    let mut node = Node::new(Cgroup::V2);
    let mut sources = Sources::none();
    sources.reports_cgroups = true;
    let deadlines = Deadlines::default();
    node.timer();
    for (lost, name) in SourceName::ALL.into_iter().enumerate() {
        let error = "it is broken".to_owned();
        let wake = Wake::Lost(Lost { name, error });
        node.agent.turn(wake, &deadlines, &mut sources).unwrap();
        assert_eq!(node.agent.tally.sources_lost, lost as u64 + 1);
    }
    assert!(!sources.reports_cgroups, "cgroups are rescanned instead");
    assert!(node.agent.has_lost_ring);
    let (host, victim_dir) = (node.host.clone(), pod_dir(&node.host, Cgroup::V2, VICTIM));
    Cgroup::V2.set_usage(&victim_dir, 2 * GIB);
    set_available(&host, 40 * MIB);
    for _ in 0..LOOKS_MAX {
        let deadlines = Deadlines::default();
        node.agent
            .turn(Wake::Deadline, &deadlines, &mut sources)
            .unwrap();
        if node.ended_by(VICTIM).is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nobody is evicted");
}

#[test]
fn urgent_work_comes_between_two_pods_but_not_in_the_first_list() {
    let mut node = Node::new(Cgroup::V2);
    node.timer();
    let sampled = |node: &Node| node.agent.last_line.as_ref().unwrap().sampled();
    for is_listed in [false, true] {
        node.agent.tally.pods_listed = is_listed;
        node.agent.hurry = true;
        let before = sampled(&node);
        let changed = (0..2).map(|index| ManifestPod {
            pod: Arc::new(pod(index)),
            document: Arc::default(),
            file: Arc::from(Path::new("pods.yaml")),
            line: 1,
        });
        let change = ManifestChange {
            changed: changed.collect(),
            ..ManifestChange::default()
        };
        node.agent.manifests(change).unwrap();
        assert_eq!(sampled(&node) > before, is_listed);
    }
}

#[test]
fn memory_that_cannot_be_read_is_tried_again_and_then_ends_the_agent_with_what_to_do() {
    let mut node = Node::new(Cgroup::V2);
    let handle_urgent = |node: &mut Node| {
        let mut found = Findings::default();
        found.add_cause(Cause::Timer);
        node.agent.handle_urgent(&mut found)
    };
    node.timer();
    let text = fs::read(node.host.procfs("meminfo")).unwrap();
    fs::write(node.host.procfs("meminfo"), "").unwrap();
    let sampled = |node: &Node| node.agent.last_line.as_ref().unwrap().sampled();
    let before = sampled(&node);
    for _ in 0..5 {
        assert!(!handle_urgent(&mut node).unwrap());
        assert_eq!(sampled(&node), before, "nothing is acknowledged");
        let wait_ns = node.agent.sample_by_ns.saturating_sub(now_ns());
        assert!(wait_ns <= 100_000_000, "{wait_ns}");
        let deadlines = node.agent.deadlines();
        let renewal_ns = deadlines.last_line_ns.unwrap();
        assert!(
            renewal_ns >= node.agent.sample_by_ns,
            "tried without a pause"
        );
    }
    fs::write(node.host.procfs("meminfo"), text).unwrap();
    assert!(handle_urgent(&mut node).unwrap());
    assert!(sampled(&node) > before);
    fs::write(node.host.procfs("meminfo"), "").unwrap();
    // As long as it takes: a second.
    let error = loop {
        std::thread::sleep(Duration::from_millis(10));
        if let Err(error) = handle_urgent(&mut node) {
            break format!("{error:#}");
        }
    };
    assert!(
        error.contains("meminfo") && error.contains("start plimsoll again"),
        "{error}"
    );
    assert!(!node.agent.keeps_programs);
    node.agent.leave_last_line();
    assert!(node.agent.keeps_programs, "the last line stays");
}

#[test]
fn freeing_that_frees_nothing_is_tried_again_after_ten_seconds() {
    let mut node = Node::new(Cgroup::V2);
    let agent = &mut node.agent;
    let wants = |agent: &mut Agent| {
        let storage = agent.storage.as_mut().unwrap();
        storage.free(&[FreeSource::EndedPods]);
        agent.order_storage_work();
        agent.storage.as_ref().unwrap().order_at_ns()
    };
    assert_eq!(wants(agent), None, "the first is ordered at once");
    let nothing = StorageEvent::Freed {
        provider: "test",
        dry: false,
        freed: Freed::default(),
    };
    agent.storage_event(nothing, &mut Findings::default());
    let wait_ns = wants(agent).unwrap().saturating_sub(now_ns());
    assert!((1..=10_000_000_000).contains(&wait_ns), "{wait_ns}");
    // A pod that has ended leaves something to free.
    let storage = agent.storage.as_mut().unwrap();
    storage.note_ended(&PodUid::new("uid-1"));
    agent.order_storage_work();
    assert_eq!(agent.storage.as_ref().unwrap().order_at_ns(), None);
}

/// Who makes a ranking long does not choose thereby who goes: the pods that came meanwhile.
#[test]
fn a_pod_that_came_during_a_ranking_has_nothing_on_disk_until_it_is_measured() {
    let mut node = Node::new(Cgroup::V2);
    let reading = Arc::new(StorageReading {
        nodefs: None,
        imagefs: None,
        containerfs: None,
        pods: vec![PodStorage {
            is_cut: true,
            ..PodStorage::nothing(PodUid::new("uid-1"))
        }],
    });
    let agent = &mut node.agent;
    let mut taken = |event| {
        agent.storage_event(event, &mut Findings::default());
        let reading = agent.storage.as_mut().unwrap().take_reading();
        reading.unwrap().pods.clone()
    };
    // Until all were measured, it may be the one that fills the disk.
    assert_eq!(
        taken(StorageEvent::Reading(Arc::clone(&reading))),
        reading.pods
    );
    for event in [StorageEvent::Ranked, StorageEvent::Reading] {
        let pods = taken(event(Arc::clone(&reading)));
        assert_eq!(pods.len(), PODS);
        assert!(pods.is_sorted_by(|a, b| a.uid < b.uid));
        let cut: Vec<_> = pods.iter().filter(|pod| pod.is_cut).collect();
        assert_eq!(cut, [&reading.pods[0]]);
    }
}

#[test]
fn remedies_that_failed_are_reported_in_their_order() {
    let mut node = Node::new(Cgroup::V2);
    let gone = ["gone-1", "gone-2", "gone-3"].map(PodUid::from);
    for uid in &gone {
        node.agent.reclaim(uid, MIB, u64::MAX);
    }
    node.agent.remedy_outcomes();
    node.agent.publish();
    node.agent.journal.take().unwrap().finish().unwrap();
    let journal = fs::read_to_string(node.host.path("journal")).unwrap();
    let places = gone.map(|uid| journal.find(uid.as_str()).unwrap());
    assert!(places.is_sorted(), "{places:?}: {journal}");
}
