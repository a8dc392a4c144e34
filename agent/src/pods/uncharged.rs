//! What the kernel holds for pods without charging them, found by a thread.
//!
//! **Problem.** The queues of some sockets are charged to no cgroup
//! ([`socket_queues`](crate::host::socket_queues)), so a pod can take the node's memory and use none by its own
//! figures. The kernel lists the queues by network namespace, and a pod decides how many sockets and processes there
//! are.
//! **Approach.** A thread of its own looks, when the node's memory says that there may be something
//! ([`UnchargedWatch`]). The queues of a namespace in which one pod alone has processes are that pod's. In one that
//! several share, as pods of the host's network do, a queue is the pod's that has the socket open. All counts are
//! bounded. Less than [`LEAST_BYTES`] does not count: each pod that talks has some, and the kubelet's order stays.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::NodeMemory;
use plimsoll_core::model::uncharged::{LookEnd, UnchargedWatch};
use rustix::fs::{Mode, OFlags, openat};

use crate::host::HostRoot;
use crate::host::network_namespace::NetworkNamespace;
use crate::host::socket_queues::{InetQueues, Queue, each_queue};
use crate::host::worker::{End, WorkerThread};
use crate::pods::registry::Pods;
use crate::pods::walk::{Step, Walk};

/// A pod has at least so much uncharged memory, or none that counts, bytes.
pub const LEAST_BYTES: u64 = 4 << 20;

/// Cgroups of one pod, and processes in them, that are looked at.
const CGROUPS_MAX: usize = 4096;
const PROCESSES_MAX: usize = 32_768;
/// Processes that are asked for the tables of their namespace, until one answers: others may have ended.
const ASKED_MAX: usize = 64;
/// The largest queues of a shared namespace are looked for among descriptors: so many.
const QUEUES_MAX: usize = 65_536;
/// Less in one does not count, bytes: its socket costs its pod as much that is charged.
const QUEUE_LEAST_BYTES: u64 = 1024;
/// Descriptors that are looked at for them: of all pods together, and of each pod at least.
const DESCRIPTORS_MAX: usize = 1 << 20;
const DESCRIPTORS_OF_POD_MIN: usize = 1 << 14;
/// Of one `cgroup.procs`: some 130,000 processes.
const PROCS_BYTES_MAX: u64 = 1 << 20;
const STACK_BYTES: usize = 256 << 10;
const PROCS_FILE: &CStr = c"cgroup.procs";

/// A pod with processes, and its cgroup.
type Running = (PodUid, Arc<Path>);
/// Pods that have uncharged memory, and how much, bytes.
type Found = Vec<(PodUid, u64)>;

/// The thread, and when it looks.
#[derive(Debug)]
pub struct UnchargedReader {
    watch: UnchargedWatch,
    thread: WorkerThread<Vec<Running>>,
    found: Receiver<Found>,
    /// When the look began that is under way.
    looks_since_ns: Option<u64>,
}

impl UnchargedReader {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn start(host: HostRoot, inet: InetQueues) -> io::Result<Self> {
        let (sender, found) = sync_channel(1);
        let thread = WorkerThread::start("uncharged", STACK_BYTES, 1, move |queue, end| {
            work(&host, inet, queue, &sender, &end);
        })?;
        Ok(Self {
            watch: UnchargedWatch::default(),
            thread,
            found,
            looks_since_ns: None,
        })
    }

    /// Takes what the thread has found into `pods`, and has it look again if there may be something else. Whether a
    /// pod's figure has changed. Does not wait.
    pub fn follow(&mut self, now_ns: u64, node: &NodeMemory, pods: &mut Pods) -> bool {
        let mut has_changed = false;
        if let Ok(found) = self.found.try_recv() {
            let began_ns = self.looks_since_ns.take().unwrap_or(now_ns);
            has_changed = pods.set_uncharged(&found, began_ns);
            let end = match (found.is_empty(), has_changed) {
                (true, _) => LookEnd::Nothing,
                (false, false) => LookEnd::Same,
                (false, true) => LookEnd::News,
            };
            self.watch.ended(now_ns, end);
        }
        if self.looks_since_ns.is_none() && self.watch.begins(now_ns, node) {
            let is_taken = self.thread.send(pods.running()).is_ok();
            self.looks_since_ns = is_taken.then_some(now_ns);
        }
        has_changed
    }
}

fn work(
    host: &HostRoot,
    inet: InetQueues,
    queue: Receiver<Vec<Running>>,
    found: &SyncSender<Found>,
    end: &End,
) {
    for pods in queue {
        // The reader takes each before it asks for the next.
        if found.send(look(host, inet, &pods, end)).is_err() {
            return;
        }
    }
}

/// A process, or the thread that is left of it, and which of the pods it belongs to.
#[derive(Debug, Clone)]
struct Process {
    pod: usize,
    pid: u32,
    /// Below `/proc`: `PID`, or `PID/task/TID` where the first thread has ended.
    task: Box<str>,
}

impl Process {
    fn find(host: &HostRoot, pod: usize, pid: u32) -> Option<(NetworkNamespace, Self)> {
        let of_task = |task: String| {
            let namespace = NetworkNamespace::of(host, &task)?;
            let task = task.into();
            Some((namespace, Self { pod, pid, task }))
        };
        of_task(pid.to_string()).or_else(|| {
            let tids = threads(host, pid);
            tids.into_iter()
                .find_map(|tid| of_task(format!("{pid}/task/{tid}")))
        })
    }
}

/// The threads of a process.
fn threads(host: &HostRoot, pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(host.procfs(format!("{pid}/task")));
    let names = tasks.into_iter().flatten().flatten().take(PROCESSES_MAX);
    names
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}

fn look(host: &HostRoot, inet: InetQueues, pods: &[Running], end: &End) -> Found {
    let of_node = NetworkNamespace::of_node(host);
    let mut namespaces: BTreeMap<NetworkNamespace, Vec<Process>> = BTreeMap::new();
    for (pod, (_, dir)) in pods.iter().enumerate() {
        if end.is_asked() {
            return Vec::new();
        }
        for pid in processes(dir) {
            if let Some((namespace, process)) = Process::find(host, pod, pid) {
                namespaces.entry(namespace).or_default().push(process);
            }
        }
    }
    let mut bytes = vec![0_u64; pods.len()];
    for (namespace, processes) in &namespaces {
        let first = processes.first().map_or(0, |process| process.pod);
        let is_shared =
            Some(*namespace) == of_node || processes.iter().any(|process| process.pod != first);
        let (total, queues) = queues(host, inet, *namespace, processes, is_shared);
        if total < LEAST_BYTES {
            continue;
        }
        match is_shared {
            false => bytes[first] = bytes[first].saturating_add(total),
            true => {
                let pods: BTreeSet<usize> = processes.iter().map(|process| process.pod).collect();
                let of_pod = (DESCRIPTORS_MAX / pods.len().max(1)).max(DESCRIPTORS_OF_POD_MIN);
                share(host, processes, queues, &mut bytes, of_pod, end);
            }
        }
    }
    let pods = pods.iter().zip(bytes);
    pods.filter(|(_, bytes)| *bytes >= LEAST_BYTES)
        .map(|((uid, _), bytes)| (uid.clone(), bytes))
        .collect()
}

/// The processes in a pod's cgroups.
fn processes(dir: &Path) -> Vec<u32> {
    let mut pids = Vec::new();
    let Ok(Some(mut walk)) = Walk::below(dir) else {
        return pids;
    };
    let mut cgroups = 0;
    while let Some(step) = walk.next() {
        let Step::Entered { dir, .. } = step else {
            continue;
        };
        cgroups += 1;
        if cgroups > CGROUPS_MAX || pids.len() >= PROCESSES_MAX {
            break;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A threaded cgroup does not say them; the one that its processes belong to does.
        let Ok(file) = openat(dir, PROCS_FILE, flags, Mode::empty()) else {
            continue;
        };
        let mut text = String::new();
        let file = io::Read::take(fs::File::from(file), PROCS_BYTES_MAX);
        if io::read_to_string(file).map(|read| text = read).is_ok() {
            // 0: of a PID namespace that is not shown here.
            let numbers = text.lines().filter_map(|line| line.parse::<u32>().ok());
            pids.extend(numbers.filter(|&pid| pid != 0).take(PROCESSES_MAX));
        }
    }
    pids
}

/// What waits in the namespace that these processes are in; the largest queues one by one, if they are `wanted`.
fn queues(
    host: &HostRoot,
    inet: InetQueues,
    namespace: NetworkNamespace,
    processes: &[Process],
    wanted: bool,
) -> (u64, Vec<Queue>) {
    for process in processes.iter().take(ASKED_MAX) {
        let (mut total, mut queues) = (0_u64, Vec::new());
        let read = each_queue(host, &process.task, inet, &mut |queue| {
            total = total.saturating_add(queue.bytes);
            if wanted && queue.bytes >= QUEUE_LEAST_BYTES {
                if queues.len() == 2 * QUEUES_MAX {
                    keep_largest(&mut queues);
                }
                queues.push(queue);
            }
        });
        // One that has ended meanwhile has no tables, or, where another has its number, those of another namespace.
        if read.is_ok() && NetworkNamespace::of(host, &process.task) == Some(namespace) {
            keep_largest(&mut queues);
            return (total, queues);
        }
    }
    (0, Vec::new())
}

fn keep_largest(queues: &mut Vec<Queue>) {
    if queues.len() > QUEUES_MAX {
        queues.select_nth_unstable_by_key(QUEUES_MAX, |queue| Reverse(queue.bytes));
        queues.truncate(QUEUES_MAX);
    }
}

/// Adds each queue to the pod that has its socket open: the first one, if several have. Of each pod so many descriptors
/// are looked at.
fn share(
    host: &HostRoot,
    processes: &[Process],
    mut queues: Vec<Queue>,
    bytes: &mut [u64],
    descriptors_max: usize,
    end: &End,
) {
    queues.sort_unstable_by_key(|queue| queue.inode);
    // What one pod has open takes no place of another's.
    let mut left: BTreeMap<usize, usize> = BTreeMap::new();
    let mut look_at = |task: &str, pod: usize, queues: &mut [Queue]| {
        let left = left.entry(pod).or_insert(descriptors_max);
        for inode in sockets(&host.procfs(format!("{task}/fd")), left) {
            if let Ok(at) = queues.binary_search_by_key(&inode, |queue| queue.inode) {
                bytes[pod] = bytes[pod].saturating_add(std::mem::take(&mut queues[at].bytes));
            }
        }
    };
    for process in processes {
        if end.is_asked() {
            return;
        }
        look_at(&process.task, process.pod, &mut queues);
    }
    // A thread may have descriptors that its process has not (`unshare(CLONE_FILES)`).
    let is_missing = |queues: &[Queue]| {
        let bytes = queues.iter().map(|queue| queue.bytes);
        bytes.fold(0, u64::saturating_add) >= LEAST_BYTES
    };
    for process in processes {
        if end.is_asked() || !is_missing(&queues) {
            return;
        }
        for tid in threads(host, process.pid) {
            let task = format!("{}/task/{tid}", process.pid);
            if tid != process.pid && *task != *process.task {
                look_at(&task, process.pod, &mut queues);
            }
        }
    }
}

/// The sockets among the descriptors in a folder of procfs. Without CAP_SYS_PTRACE the kernel shows those of few
/// processes.
fn sockets(folder: &Path, left: &mut usize) -> Vec<u64> {
    let mut inodes = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Some(rest) = left.checked_sub(1) else {
            break;
        };
        *left = rest;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let target = target
            .to_str()
            .and_then(|text| text.strip_prefix("socket:["));
        let inode = target.and_then(|text| text.strip_suffix(']'));
        inodes.extend(inode.and_then(|digits| digits.parse::<u64>().ok()));
    }
    inodes
}

#[cfg(test)]
mod tests;
