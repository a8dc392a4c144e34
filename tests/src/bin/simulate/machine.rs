//! The machine: memory, cgroups (v2), processes, and the BPF programs' side of it. It changes by events in virtual time and by what the agent does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use plimsoll_abi as abi;
use zerocopy::IntoBytes as _;

use crate::bpf::ring_eventfd;
use crate::files::{Fd, Kind};
use crate::world::{AGENT_PID, World};

pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
const PAGE: u64 = 4096;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Of the kernel and everything that is no pod.
const SYSTEM_BYTES: u64 = GIB;
/// What a dying process takes for its memory, as FAULTS.md has measured it (A1).
const UNMAP_NS_PER_GIB: u64 = 320 * MS;
/// How much slower that is under SCHED_IDLE beside a hog (A1: 39.8 s for 1 GiB).
const STARVED_FACTOR: u64 = 124;
/// Below this the kernel's OOM killer strikes.
const EXHAUSTED_BYTES: u64 = 32 * MIB;
/// Below this tasks stall.
const PRESSED_BYTES: u64 = 256 * MIB;

/// Files of each cgroup, and what they say at first; those without are made when they are read.
const FILES: [(&str, &str); 34] = [
    ("cgroup.controllers", "cpuset cpu io memory pids"),
    ("cgroup.events", ""),
    ("cgroup.freeze", "0"),
    ("cgroup.kill", ""),
    ("cgroup.procs", ""),
    ("cgroup.subtree_control", ""),
    ("cgroup.threads", ""),
    ("cgroup.type", "domain"),
    ("cpu.idle", "0"),
    ("cpu.max", "max 100000"),
    ("cpu.max.burst", "0"),
    ("cpu.pressure", ""),
    ("cpu.stat", ""),
    ("cpu.weight", "100"),
    ("cpuset.cpus", ""),
    ("cpuset.cpus.effective", "0-3"),
    ("cpuset.mems", ""),
    ("cpuset.mems.effective", "0"),
    ("io.pressure", ""),
    ("io.stat", ""),
    ("memory.current", ""),
    ("memory.events", ""),
    ("memory.high", "max"),
    ("memory.low", "0"),
    ("memory.max", "max"),
    ("memory.min", "0"),
    ("memory.oom.group", "0"),
    ("memory.pressure", ""),
    ("memory.reclaim", ""),
    ("memory.stat", ""),
    ("memory.swap.current", "0"),
    ("memory.swap.max", "max"),
    ("pids.current", ""),
    ("pids.max", "max"),
];

/// What a process makes of SIGTERM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnTerm {
    Ends,
    /// It has a handler, and ends so much later.
    EndsAfter(u64),
    Ignores,
}

#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) started: u64,
    pub(crate) comm: Vec<u8>,
    pub(crate) cgroup: usize,
    pub(crate) on_term: OnTerm,
    /// Uninterruptible: no signal ends it until then.
    pub(crate) stuck_until_ns: u64,
    /// It gets the CPU when nobody else wants it.
    pub(crate) is_starved: bool,
    pub(crate) killed_ns: Option<u64>,
    pub(crate) ends_ns: Option<u64>,
    pub(crate) oom_score_adj: i32,
}

#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    pub(crate) path: String,
    pub(crate) id: u64,
    pub(crate) is_there: bool,
    pub(crate) is_threaded: bool,
    pub(crate) processes: BTreeSet<i32>,
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) pod: Option<usize>,
    pub(crate) oom_kills: u64,
    /// Made by the agent.
    pub(crate) is_agents: bool,
}

/// Memory that grows by the second up to a bound, or falls down to one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ramp {
    pub(crate) at_ns: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_per_s: u64,
    pub(crate) up_to_bytes: u64,
    pub(crate) falls: bool,
}

impl Ramp {
    fn at(&self, now_ns: u64) -> u64 {
        let grown = u128::from(self.bytes_per_s) * u128::from(now_ns.saturating_sub(self.at_ns))
            / u128::from(SECOND);
        let grown = u64::try_from(grown).unwrap_or(u64::MAX);
        if self.falls {
            return self.bytes.saturating_sub(grown).max(self.up_to_bytes);
        }
        self.bytes
            .saturating_add(grown)
            .min(self.up_to_bytes.max(self.bytes))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) path: String,
    pub(crate) request_bytes: u64,
    pub(crate) is_exempt: bool,
    pub(crate) ramp: Ramp,
    /// Of its memory, what is clean page cache that nobody uses.
    pub(crate) inactive_bytes: u64,
    /// What stays charged when its last process has gone, and until when.
    pub(crate) stays_bytes: u64,
    pub(crate) stays_for_ns: u64,
    pub(crate) processes: BTreeSet<i32>,
    /// A runtime starts it again.
    pub(crate) again: Option<Box<NewPod>>,
}

/// A pod to come.
#[derive(Debug, Clone)]
pub(crate) struct NewPod {
    pub(crate) name: String,
    pub(crate) request_bytes: u64,
    pub(crate) priority: i32,
    pub(crate) is_exempt: bool,
    pub(crate) bytes: u64,
    pub(crate) bytes_per_s: u64,
    pub(crate) up_to_bytes: u64,
    pub(crate) grows_after_ns: u64,
    pub(crate) inactive_bytes: u64,
    pub(crate) stays_bytes: u64,
    pub(crate) stays_for_ns: u64,
    pub(crate) on_term: OnTerm,
    pub(crate) stuck_for_ns: u64,
    pub(crate) is_starved: bool,
    pub(crate) is_restarted: bool,
    pub(crate) comm: Vec<u8>,
    pub(crate) shape: Shape,
}

/// Where in its cgroup a pod's processes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// In its container.
    Plain,
    /// So deep below the container.
    Deep(usize),
    /// In the last of so many cgroups below the container.
    Many(usize),
    /// In its container, with a threaded cgroup beside.
    Threaded,
}

impl Default for NewPod {
    fn default() -> Self {
        Self {
            name: String::new(),
            request_bytes: 64 * MIB,
            priority: 0,
            is_exempt: false,
            bytes: 100 * MIB,
            bytes_per_s: 0,
            up_to_bytes: 0,
            grows_after_ns: 0,
            inactive_bytes: 0,
            stays_bytes: 0,
            stays_for_ns: 0,
            on_term: OnTerm::Ends,
            stuck_for_ns: 0,
            is_starved: false,
            is_restarted: false,
            comm: b"app".to_vec(),
            shape: Shape::Plain,
        }
    }
}

/// What happens by itself.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    Start(Box<NewPod>),
    /// A pod is as hostile as this from now on.
    Grow(usize, Ramp),
    MemoryBack(usize),
    /// So many attaches in cgroups of no pod, so far apart, by a process without privileges.
    Attaches {
        left: u32,
        every_ns: u64,
    },
    /// A thread of the agent other than the loop stands still for so long.
    Hold {
        ns: u64,
    },
    /// A container meets its own limit, and the kernel takes its process.
    LimitMet(String),
    StartAgent,
    StopAgent,
    /// The run is over, whatever the agent does.
    End,
}

pub(crate) struct Machine {
    root: PathBuf,
    pub(crate) total_bytes: u64,
    pub(crate) now_ns: u64,
    pub(crate) cgroups: Vec<Cgroup>,
    by_path: BTreeMap<String, usize>,
    pub(crate) processes: BTreeMap<i32, Process>,
    pub(crate) pods: Vec<Pod>,
    events: BTreeMap<(u64, u64), Happening>,
    sequence: u64,
    next_pid: i32,
    next_ns: Option<u64>,
    /// Charged so far by what no longer grows.
    charged_bytes: u64,
    armed_bytes: Option<u64>,
    has_programs: bool,
    pub(crate) oom_kills: u64,
    stalled_since_ns: Option<u64>,
    /// When the agent is told to end.
    pub(crate) stop_ns: u64,
    /// How long `cgroup_mutex` is held by others.
    pub(crate) mutex_ns: u64,
}

impl Machine {
    /// A node with nothing on it.
    pub(crate) fn new(root: PathBuf, total_bytes: u64, now_ns: u64) -> Self {
        let mut it = Self {
            root,
            total_bytes,
            now_ns,
            cgroups: Vec::new(),
            by_path: BTreeMap::new(),
            processes: BTreeMap::new(),
            pods: Vec::new(),
            events: BTreeMap::new(),
            sequence: 0,
            next_pid: 10_000,
            next_ns: None,
            charged_bytes: 0,
            armed_bytes: None,
            has_programs: false,
            oom_kills: 0,
            stalled_since_ns: None,
            stop_ns: u64::MAX,
            mutex_ns: 0,
        };
        it.make_files();
        it.mkdir("", false).ok();
        it.cgroups[0].values.insert(
            "cgroup.subtree_control".to_owned(),
            "cpuset cpu io memory pids".to_owned(),
        );
        it.mkdir("system.slice", false).ok();
        it.add_process(AGENT_PID, 1, b"plimsoll-agent".to_vec());
        it
    }

    fn make_files(&self) {
        let write = |path: &str, text: &str| {
            let path = self.root.join(path);
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir).ok();
            }
            std::fs::write(path, text).ok();
        };
        write("proc/placeholder", "");
        write(
            "proc/self/mounts",
            "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\nbpf /sys/fs/bpf bpf rw,mode=700 0 0\n",
        );
        write(
            "proc/self/mountinfo",
            "1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        );
        write(
            "proc/self/status",
            "Name:\tplimsoll-agent\nCapEff:\t000001ffffffffff\n",
        );
        write("proc/self/maps", "");
        write("proc/self/statm", "1000 500 300 100 0 200 0\n");
        write("proc/self/oom_score_adj", "0\n");
        write(
            "proc/swaps",
            "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
        );
        write("proc/loadavg", "0.10 0.10 0.10 1/200 9999\n");
        write("proc/sys/kernel/osrelease", "6.12.0-model\n");
        write("proc/sys/kernel/pid_max", "4194304\n");
        write("proc/sys/kernel/threads-max", "200000\n");
        write(
            "proc/sys/kernel/random/boot_id",
            "8a5f6b3e-0000-4000-8000-000000000001\n",
        );
        write("proc/sys/fs/nr_open", "1048576\n");
        write("sys/devices/system/cpu/online", "0-3\n");
        write("sys/devices/system/cpu/possible", "0-3\n");
        write("sys/kernel/btf/vmlinux", "");
        for dir in ["sys/fs/bpf", "sys/fs/cgroup", "proc/pressure"] {
            std::fs::create_dir_all(self.root.join(dir)).ok();
        }
    }

    // Time.

    pub(crate) fn at(&mut self, at_ns: u64, happening: Happening) {
        self.sequence += 1;
        self.events.insert((at_ns, self.sequence), happening);
        self.next_ns = None;
    }

    /// When something happens next by itself.
    pub(crate) fn next_ns(&mut self) -> u64 {
        if let Some(at_ns) = self.next_ns {
            return at_ns;
        }
        let event_ns = self
            .events
            .keys()
            .next()
            .map_or(u64::MAX, |(at_ns, _)| *at_ns);
        let ends_ns = self
            .processes
            .values()
            .filter_map(|process| process.ends_ns)
            .min();
        let mut next_ns = event_ns.min(ends_ns.unwrap_or(u64::MAX));
        // What grows crosses something before that, or not.
        let horizon_ns = next_ns.min(self.now_ns + 3600 * SECOND);
        if let Some(armed) = self.armed_bytes
            && let Some(at_ns) = self.when(horizon_ns, |it, at_ns| it.charged(at_ns) >= armed)
        {
            next_ns = next_ns.min(at_ns);
        }
        let has_victims = self
            .processes
            .iter()
            .any(|(pid, process)| *pid != AGENT_PID && process.killed_ns.is_none());
        if has_victims
            && let Some(at_ns) = self.when(horizon_ns.min(next_ns), |it, at_ns| {
                it.free(at_ns) < EXHAUSTED_BYTES
            })
        {
            next_ns = next_ns.min(at_ns);
        }
        if self.stalled_since_ns.is_none()
            && let Some(at_ns) = self.when(horizon_ns.min(next_ns), |it, at_ns| {
                it.free(at_ns) < PRESSED_BYTES
            })
        {
            next_ns = next_ns.min(at_ns);
        }
        self.next_ns = Some(next_ns);
        next_ns
    }

    /// The first time up to the horizon at which something that grows is so.
    fn when(&self, horizon_ns: u64, is_so: impl Fn(&Self, u64) -> bool) -> Option<u64> {
        if is_so(self, self.now_ns) {
            return Some(self.now_ns);
        }
        if !is_so(self, horizon_ns) {
            return None;
        }
        let (mut before, mut after) = (self.now_ns, horizon_ns);
        while after - before > 1000 {
            let middle = before + (after - before) / 2;
            if is_so(self, middle) {
                after = middle;
            } else {
                before = middle;
            }
        }
        Some(after)
    }

    // Memory.

    pub(crate) fn used(&self, pod: usize, now_ns: u64) -> u64 {
        self.pods[pod].ramp.at(now_ns)
    }

    fn pods_bytes(&self, now_ns: u64) -> u64 {
        self.pods.iter().map(|pod| pod.ramp.at(now_ns)).sum()
    }

    fn free(&self, now_ns: u64) -> u64 {
        self.total_bytes
            .saturating_sub(SYSTEM_BYTES + self.pods_bytes(now_ns))
    }

    fn inactive_bytes(&self, pod: usize, now_ns: u64) -> u64 {
        self.pods[pod].inactive_bytes.min(self.used(pod, now_ns))
    }

    /// As the agent reckons it: what is free, and what can be had at once.
    pub(crate) fn available(&self, now_ns: u64) -> u64 {
        let inactive: u64 = (0..self.pods.len())
            .map(|pod| self.inactive_bytes(pod, now_ns))
            .sum();
        self.free(now_ns) + inactive
    }

    fn charged(&self, now_ns: u64) -> u64 {
        let grown: u64 = self
            .pods
            .iter()
            .map(|pod| pod.ramp.at(now_ns).saturating_sub(pod.ramp.bytes))
            .sum();
        self.charged_bytes + grown
    }

    /// A pod's memory is another from now on.
    fn set_ramp(&mut self, pod: usize, ramp: Ramp) {
        let before = self.pods[pod].ramp;
        self.charged_bytes += before.at(self.now_ns).saturating_sub(before.bytes);
        self.charged_bytes += ramp.bytes.saturating_sub(before.at(self.now_ns));
        self.pods[pod].ramp = ramp;
        self.next_ns = None;
    }

    fn set_bytes(&mut self, pod: usize, bytes: u64) {
        let ramp = Ramp {
            at_ns: self.now_ns,
            bytes,
            up_to_bytes: bytes,
            ..Ramp::default()
        };
        self.set_ramp(pod, ramp);
    }

    /// The programs count from now on.
    pub(crate) fn follow_charges(&mut self) {
        self.has_programs = true;
    }

    // Cgroups.

    pub(crate) fn find(&self, path: &str) -> Option<usize> {
        self.by_path.get(path).copied()
    }

    /// The cgroup that a control file is of.
    pub(crate) fn control(&self, path: &str) -> Option<usize> {
        let (dir, file) = World::cgroup_path(path)?
            .rsplit_once('/')
            .or(Some(("", World::cgroup_path(path)?)))?;
        FILES
            .iter()
            .any(|(name, _)| *name == file)
            .then(|| self.find(dir))?
    }

    pub(crate) fn mkdir(&mut self, path: &str, is_agents: bool) -> Result<usize, i32> {
        if self.by_path.contains_key(path) {
            return Err(libc::EEXIST);
        }
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if !path.is_empty() && !self.by_path.contains_key(parent) {
            return Err(libc::ENOENT);
        }
        let dir = self.root.join("sys/fs/cgroup").join(path);
        std::fs::create_dir_all(&dir).map_err(|_| libc::EIO)?;
        let is_nested = path.matches('/').count() > 3;
        for (file, _) in FILES {
            // A hostile tree has tens of thousands of these.
            if !is_nested || file.starts_with("cgroup.") {
                std::fs::File::create(dir.join(file)).map_err(|_| libc::EIO)?;
            }
        }
        let id = dir.metadata().map_or(0, |it| it.ino());
        let pod = self
            .find(parent)
            .and_then(|parent| self.cgroups[parent].pod);
        let values = FILES.iter().filter(|(_, value)| !value.is_empty());
        self.cgroups.push(Cgroup {
            path: path.to_owned(),
            id,
            is_there: true,
            is_threaded: false,
            processes: BTreeSet::new(),
            values: values
                .map(|(file, value)| ((*file).to_owned(), (*value).to_owned()))
                .collect(),
            pod,
            oom_kills: 0,
            is_agents,
        });
        let index = self.cgroups.len() - 1;
        self.by_path.insert(path.to_owned(), index);
        Ok(index)
    }

    pub(crate) fn mkdir_all(&mut self, path: &str) -> usize {
        let mut made = 0;
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let part = &path[..end];
            made = match self.find(part) {
                Some(index) => index,
                None => self.mkdir(part, false).unwrap_or(0),
            };
        }
        made
    }

    fn has_children(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.by_path
            .range(below.clone()..)
            .next()
            .is_some_and(|(path, _)| path.starts_with(&below))
    }

    pub(crate) fn rmdir(&mut self, path: &str) -> Result<u64, i32> {
        let index = self.find(path).ok_or(libc::ENOENT)?;
        if self.has_children(path) || !self.cgroups[index].processes.is_empty() {
            return Err(libc::EBUSY);
        }
        std::fs::remove_dir_all(self.root.join("sys/fs/cgroup").join(path))
            .map_err(|_| libc::EIO)?;
        self.by_path.remove(path);
        self.cgroups[index].is_there = false;
        Ok(self.cgroups[index].id)
    }

    /// Cgroups at and below a path.
    fn below(&self, path: &str) -> Vec<usize> {
        let under = format!("{path}/");
        self.by_path
            .range(path.to_owned()..)
            .take_while(|(found, _)| {
                *found == path || found.starts_with(&under) || found.starts_with(path)
            })
            .filter(|(found, _)| *found == path || found.starts_with(&under))
            .map(|(_, index)| *index)
            .collect()
    }

    pub(crate) fn is_populated(&self, index: usize) -> bool {
        let path = &self.cgroups[index].path;
        self.below(path)
            .iter()
            .any(|index| !self.cgroups[*index].processes.is_empty())
    }

    // Processes.

    fn add_process(&mut self, pid: i32, cgroup: usize, comm: Vec<u8>) {
        let started = self.now_ns / 10_000_000;
        let process = Process {
            started,
            comm,
            cgroup,
            on_term: OnTerm::Ends,
            stuck_until_ns: 0,
            is_starved: false,
            killed_ns: None,
            ends_ns: None,
            oom_score_adj: 0,
        };
        self.processes.insert(pid, process);
        self.cgroups[cgroup].processes.insert(pid);
    }

    /// How long a process takes to end, with its pod's memory.
    fn end_ns(&self, pid: i32) -> u64 {
        let Some(process) = self.processes.get(&pid) else {
            return 0;
        };
        let bytes = self.cgroups[process.cgroup]
            .pod
            .map_or(0, |pod| self.used(pod, self.now_ns));
        let unmap_ns =
            u64::try_from(u128::from(bytes) * u128::from(UNMAP_NS_PER_GIB) / u128::from(GIB))
                .unwrap_or(u64::MAX);
        let factor = if process.is_starved {
            STARVED_FACTOR
        } else {
            1
        };
        MS + unmap_ns * factor
    }

    /// A signal has been sent. Whether there was such a process.
    pub(crate) fn signal(&mut self, pid: i32, signal: i32) -> bool {
        let ends_in_ns = self.end_ns(pid);
        let now_ns = self.now_ns;
        let Some(process) = self.processes.get_mut(&pid) else {
            return false;
        };
        let after_ns = match (signal, process.on_term) {
            (libc::SIGKILL, _) | (libc::SIGTERM, OnTerm::Ends) => {
                process.killed_ns.get_or_insert(now_ns);
                ends_in_ns
            }
            (libc::SIGTERM, OnTerm::EndsAfter(ns)) => ns + ends_in_ns,
            _ => return true,
        };
        let ends_ns = process.stuck_until_ns.max(now_ns + after_ns);
        process.ends_ns = Some(process.ends_ns.map_or(ends_ns, |known| known.min(ends_ns)));
        let (is_killed, is_stuck) = (
            process.killed_ns == Some(now_ns),
            process.stuck_until_ns > now_ns,
        );
        self.next_ns = None;
        if is_killed && !is_stuck {
            self.unmaps(pid, after_ns);
        } else if is_killed
            && let Some(pod) = self
                .processes
                .get(&pid)
                .and_then(|process| self.cgroups[process.cgroup].pod)
        {
            // It holds what it has, and asks for no more.
            let bytes = self.used(pod, now_ns);
            self.set_bytes(pod, bytes);
        }
        true
    }

    /// A dying process gives its pod's memory back, in this time, but for what stays.
    fn unmaps(&mut self, pid: i32, within_ns: u64) {
        let Some(pod) = self
            .processes
            .get(&pid)
            .and_then(|process| self.cgroups[process.cgroup].pod)
        else {
            return;
        };
        let bytes = self.used(pod, self.now_ns);
        let per_s = u128::from(bytes) * u128::from(SECOND) / u128::from(within_ns.max(1));
        let ramp = Ramp {
            at_ns: self.now_ns,
            bytes,
            bytes_per_s: u64::try_from(per_s).unwrap_or(u64::MAX),
            up_to_bytes: self.pods[pod].stays_bytes.min(bytes),
            falls: true,
        };
        self.set_ramp(pod, ramp);
    }

    /// Another has unmapped what a dying process had.
    pub(crate) fn unmapped(&mut self, pid: i32) {
        let now_ns = self.now_ns;
        self.unmaps(pid, 1);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ends_ns = Some(process.stuck_until_ns.max(now_ns + MS));
            self.next_ns = None;
        }
    }

    pub(crate) fn unmap_ns(&self, pid: i32) -> u64 {
        self.end_ns(pid).saturating_sub(MS)
    }

    /// `/proc/PID/…`: whether the model makes this file, and whether it is there. `None`: it is a file like any other.
    pub(crate) fn makes(&self, path: &str) -> Option<bool> {
        if matches!(
            path,
            "/proc/meminfo"
                | "/proc/stat"
                | "/proc/vmstat"
                | "/proc/self/cgroup"
                | "/proc/self/stat"
        ) {
            return Some(true);
        }
        let rest = path.strip_prefix("/proc/")?;
        if let Some(file) = rest.strip_prefix("pressure/") {
            return Some(["memory", "cpu", "io"].contains(&file));
        }
        let (pid, file) = rest.split_once('/').unwrap_or((rest, ""));
        let pid: i32 = pid.parse().ok()?;
        if pid == AGENT_PID {
            return matches!(file, "cgroup" | "stat" | "oom_score_adj").then_some(true);
        }
        let files = ["stat", "cgroup", "oom_score_adj", "comm", "status"];
        Some(self.processes.contains_key(&pid) && (file.is_empty() || files.contains(&file)))
    }

    /// What a file of the model says; `None` for one that is like any other.
    pub(crate) fn content(&self, fd: &Fd, now_ns: u64) -> Option<Result<Vec<u8>, i32>> {
        let text = match &fd.kind {
            Kind::Control { cgroup } => {
                let file = fd.path.rsplit('/').next().unwrap_or_default();
                return Some(
                    self.control_text(*cgroup, file, now_ns)
                        .map(String::into_bytes),
                );
            }
            Kind::Made => self.made(&fd.path, now_ns),
            Kind::PsiTrigger => Some(pressure().into_bytes()),
            Kind::Plain | Kind::Pidfd { .. } | Kind::Map(_) | Kind::BpfObject => return None,
        };
        Some(text.ok_or(libc::ESRCH))
    }

    fn made(&self, path: &str, now_ns: u64) -> Option<Vec<u8>> {
        match path {
            "/proc/meminfo" => return Some(self.meminfo(now_ns).into_bytes()),
            "/proc/stat" => return Some(b"cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 100 0 100 1000 0 0 0 0 0 0\nctxt 1\nbtime 1700000000\n".to_vec()),
            "/proc/vmstat" => return Some(b"nr_free_pages 1000\n".to_vec()),
            _ => {}
        }
        let rest = path.strip_prefix("/proc/")?;
        if rest.starts_with("pressure/") {
            return Some(pressure().into_bytes());
        }
        let (pid, file) = rest.split_once('/')?;
        let pid = if pid == "self" {
            AGENT_PID
        } else {
            pid.parse().ok()?
        };
        let process = self.processes.get(&pid)?;
        let text = match file {
            "stat" => {
                let mut text = format!("{pid} (").into_bytes();
                text.extend(&process.comm);
                let rest = format!(
                    ") S 1 {pid} {pid} 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 {} 0 0\n",
                    process.started
                );
                text.extend(rest.into_bytes());
                return Some(text);
            }
            "comm" => {
                let mut text = process.comm.clone();
                text.push(b'\n');
                return Some(text);
            }
            "cgroup" => format!("0::/{}\n", self.cgroups[process.cgroup].path),
            "oom_score_adj" => format!("{}\n", process.oom_score_adj),
            "status" => "Name:\tapp\n".to_owned(),
            _ => return None,
        };
        Some(text.into_bytes())
    }

    fn meminfo(&self, now_ns: u64) -> String {
        let free = self.free(now_ns);
        let inactive = self.available(now_ns) - free;
        let anon = self.pods_bytes(now_ns).saturating_sub(inactive) + SYSTEM_BYTES;
        let mut text = String::new();
        for (name, bytes) in [
            ("MemTotal:", self.total_bytes),
            ("MemFree:", free),
            ("MemAvailable:", free + inactive),
            ("Buffers:", 0),
            ("Cached:", inactive),
            ("SwapCached:", 0),
            ("Active(anon):", anon),
            ("Inactive(anon):", 0),
            ("Active(file):", 0),
            ("Inactive(file):", inactive),
            ("Unevictable:", 0),
            ("SwapTotal:", 0),
            ("SwapFree:", 0),
            ("AnonPages:", anon),
            ("Shmem:", 0),
            ("KReclaimable:", 0),
            ("SReclaimable:", 0),
        ] {
            writeln!(text, "{name} {} kB", bytes >> 10).ok();
        }
        text
    }

    fn bytes_of(&self, index: usize, now_ns: u64) -> (u64, u64) {
        if let Some(pod) = self.cgroups[index].pod {
            // The pod's own cgroup and its first container have all of it.
            let depth = self.cgroups[index].path.matches('/').count();
            return if depth <= 3 {
                (self.used(pod, now_ns), self.inactive_bytes(pod, now_ns))
            } else {
                (0, 0)
            };
        }
        let path = &self.cgroups[index].path;
        let below =
            (0..self.pods.len()).filter(|pod| self.pods[*pod].path.starts_with(path.as_str()));
        below.fold((0, 0), |(used, inactive), pod| {
            (
                used + self.used(pod, now_ns),
                inactive + self.inactive_bytes(pod, now_ns),
            )
        })
    }

    fn control_text(&self, index: usize, file: &str, now_ns: u64) -> Result<String, i32> {
        let cgroup = &self.cgroups[index];
        if !cgroup.is_there {
            return Err(libc::ENODEV);
        }
        let (used, inactive) = self.bytes_of(index, now_ns);
        Ok(match file {
            "cgroup.procs" | "cgroup.threads" => {
                if cgroup.is_threaded && file == "cgroup.procs" {
                    return Err(libc::EOPNOTSUPP);
                }
                cgroup.processes.iter().fold(String::new(), |mut text, pid| {
                    writeln!(text, "{pid}").ok();
                    text
                })
            }
            "cgroup.events" => format!("populated {}\nfrozen 0\n", u8::from(self.is_populated(index))),
            "memory.current" => format!("{used}\n"),
            "memory.stat" => format!(
                "anon {}\nfile {inactive}\nkernel 0\nshmem 0\ninactive_anon 0\nactive_anon {}\ninactive_file {inactive}\nactive_file 0\nunevictable 0\n",
                used - inactive,
                used - inactive
            ),
            "memory.events" => format!("low 0\nhigh 0\nmax 0\noom {0}\noom_kill {0}\noom_group_kill 0\n", cgroup.oom_kills),
            "memory.pressure" | "cpu.pressure" | "io.pressure" => pressure(),
            "cpu.stat" => "usage_usec 1000\nuser_usec 500\nsystem_usec 500\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0\n".to_owned(),
            "pids.current" => {
                let below = self.below(&cgroup.path);
                let count: usize = below.iter().map(|index| self.cgroups[*index].processes.len()).sum();
                format!("{count}\n")
            }
            _ => cgroup.values.get(file).map_or_else(String::new, |value| format!("{value}\n")),
        })
    }
}

fn pressure() -> String {
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n".to_owned()
}

fn header(kind: abi::Kind, cgroup_id: u64, now_ns: u64) -> abi::Header {
    abi::Header {
        ts_ns: now_ns,
        cgroup_id,
        kind: kind.number(),
        abi_version: abi::ABI_VERSION,
        cpu: 0,
    }
}

/// What the machine does, and the world sees.
impl World {
    fn lifecycle(&mut self, kind: abi::Kind, record: &[u8]) {
        if self.bpf.is_attached(&self.root) {
            self.bpf.send("LIFECYCLE", kind, record, usize::MAX);
            self.ring_bell("LIFECYCLE");
        }
    }

    /// `mkdir` of a cgroup, by the agent or another.
    pub(crate) fn make_cgroup(&mut self, path: &str, is_agents: bool) -> Result<usize, i32> {
        let index = self.machine.mkdir(path, is_agents)?;
        let mut record = abi::CgroupMkdir {
            header: header(
                abi::Kind::CgroupMkdir,
                self.machine.cgroups[index].id,
                self.now_ns,
            ),
            level: u32::try_from(path.matches('/').count() + 1).unwrap_or(0),
            hierarchy_id: 0,
            path_len: 0,
            pad: 0,
            path: [0; abi::PATH_BYTES],
        };
        let text = format!("/{path}");
        let length = text.len().min(abi::PATH_BYTES - 1);
        record.path[..length].copy_from_slice(&text.as_bytes()[..length]);
        record.path_len = u32::try_from(length).unwrap_or(0);
        self.lifecycle(abi::Kind::CgroupMkdir, record.as_bytes());
        Ok(index)
    }

    pub(crate) fn remove_cgroup(&mut self, path: &str) -> Result<(), i32> {
        let id = self.machine.rmdir(path)?;
        let record = abi::CgroupRmdir {
            header: header(abi::Kind::CgroupRmdir, id, self.now_ns),
            level: u32::try_from(path.matches('/').count() + 1).unwrap_or(0),
            hierarchy_id: 0,
        };
        self.lifecycle(abi::Kind::CgroupRmdir, record.as_bytes());
        Ok(())
    }

    fn tell_populated(&mut self, index: usize) {
        let is_populated = self.machine.is_populated(index);
        let record = abi::CgroupPopulated {
            header: header(
                abi::Kind::CgroupPopulated,
                self.machine.cgroups[index].id,
                self.now_ns,
            ),
            populated: u32::from(is_populated),
            hierarchy_id: 0,
        };
        self.lifecycle(abi::Kind::CgroupPopulated, record.as_bytes());
        let path = self.machine.cgroups[index].path.clone();
        if let Some((parent, _)) = path.rsplit_once('/')
            && let Some(parent) = self.machine.find(parent)
        {
            self.tell_populated(parent);
        }
    }

    pub(crate) fn move_process(&mut self, pid: i32, to: usize) -> Result<(), i32> {
        let Some(process) = self.machine.processes.get_mut(&pid) else {
            return Err(libc::ESRCH);
        };
        let from = std::mem::replace(&mut process.cgroup, to);
        self.machine.cgroups[from].processes.remove(&pid);
        self.machine.cgroups[to].processes.insert(pid);
        let record = abi::CgroupAttach {
            header: header(
                abi::Kind::CgroupAttach,
                self.machine.cgroups[to].id,
                self.now_ns,
            ),
            tgid: pid.unsigned_abs(),
            hierarchy_id: 0,
        };
        self.lifecycle(abi::Kind::CgroupAttach, record.as_bytes());
        Ok(())
    }

    /// A pod begins: its cgroups, its process, its memory.
    pub(crate) fn start_pod(&mut self, new: &NewPod) {
        let tier = if new.request_bytes > 0 {
            "burstable"
        } else {
            "besteffort"
        };
        let path = format!("kubepods/{tier}/pod{}", new.name);
        self.machine.mkdir_all(&format!("kubepods/{tier}"));
        let pod = self.machine.pods.iter().position(|pod| pod.uid == new.name);
        let pod = pod.unwrap_or_else(|| {
            self.machine.pods.push(Pod {
                uid: new.name.clone(),
                path: path.clone(),
                request_bytes: new.request_bytes,
                is_exempt: new.is_exempt,
                ramp: Ramp::default(),
                inactive_bytes: new.inactive_bytes,
                stays_bytes: new.stays_bytes,
                stays_for_ns: new.stays_for_ns,
                processes: BTreeSet::new(),
                again: new.is_restarted.then(|| Box::new(new.clone())),
            });
            self.machine.pods.len() - 1
        });
        let mut container = path.clone();
        for part in ["", "/app"] {
            container = format!("{path}{part}");
            let index = match self.machine.find(&container) {
                Some(index) => index,
                None => self.make_cgroup(&container, false).unwrap_or(0),
            };
            self.machine.cgroups[index].pod = Some(pod);
        }
        let mut home = container.clone();
        match new.shape {
            Shape::Plain => {}
            Shape::Deep(levels) => {
                for level in 0..levels {
                    home = format!("{home}/d{level}");
                    self.make_cgroup(&home, false).ok();
                }
            }
            Shape::Many(count) => {
                for child in 0..count {
                    home = format!("{container}/n{child:06}");
                    self.make_cgroup(&home, false).ok();
                }
            }
            Shape::Threaded => {
                if let Ok(index) = self.make_cgroup(&format!("{container}/t"), false) {
                    self.machine.cgroups[index].is_threaded = true;
                }
            }
        }
        let pid = self.machine.next_pid;
        self.machine.next_pid += 1;
        self.machine.add_process(pid, 0, new.comm.clone());
        if let Some(process) = self.machine.processes.get_mut(&pid) {
            process.on_term = new.on_term;
            process.is_starved = new.is_starved;
            if new.stuck_for_ns > 0 {
                process.stuck_until_ns = self.now_ns + new.stuck_for_ns;
            }
        }
        self.machine.pods[pod].processes.insert(pid);
        let home = self.machine.find(&home).unwrap_or(0);
        self.move_process(pid, home).ok();
        self.tell_populated(home);
        self.machine.now_ns = self.now_ns;
        self.machine.set_bytes(pod, new.bytes);
        if new.bytes_per_s > 0 {
            let ramp = Ramp {
                bytes: new.bytes,
                bytes_per_s: new.bytes_per_s,
                up_to_bytes: new.up_to_bytes,
                ..Ramp::default()
            };
            self.machine
                .at(self.now_ns + new.grows_after_ns, Happening::Grow(pod, ramp));
        }
        self.checks.pod_started(pod, self.now_ns);
    }

    fn process_ended(&mut self, pid: i32) {
        let Some(process) = self.machine.processes.remove(&pid) else {
            return;
        };
        self.machine.cgroups[process.cgroup].processes.remove(&pid);
        self.machine.next_ns = None;
        let pod = self
            .machine
            .pods
            .iter()
            .position(|pod| pod.processes.contains(&pid));
        if let Some(pod) = pod {
            self.machine.pods[pod].processes.remove(&pid);
            if self.machine.pods[pod].processes.is_empty() {
                let Pod {
                    stays_bytes,
                    stays_for_ns,
                    ..
                } = self.machine.pods[pod];
                let stays = stays_bytes.min(self.machine.used(pod, self.now_ns));
                self.machine.set_bytes(pod, stays);
                if stays > 0 {
                    self.machine
                        .at(self.now_ns + stays_for_ns, Happening::MemoryBack(pod));
                }
                self.checks.pod_ended(pod, self.now_ns);
                if let Some(again) = self.machine.pods[pod].again.clone() {
                    self.machine
                        .at(self.now_ns + 10 * SECOND, Happening::Start(again));
                }
            }
        }
        self.tell_populated(process.cgroup);
    }

    /// A control file is written.
    pub(crate) fn write_control(
        &mut self,
        index: usize,
        file: &str,
        value: &str,
    ) -> Result<(), i32> {
        self.machine.now_ns = self.now_ns;
        if !self.machine.cgroups[index].is_there {
            return Err(libc::ENODEV);
        }
        let value = value.trim();
        match file {
            "cgroup.kill" => {
                let path = self.machine.cgroups[index].path.clone();
                let below = self.machine.below(&path);
                let pids: Vec<i32> = below
                    .iter()
                    .flat_map(|index| self.machine.cgroups[*index].processes.clone())
                    .collect();
                for pid in pids {
                    self.machine.signal(pid, libc::SIGKILL);
                }
            }
            "cgroup.procs" => {
                let pid: i32 = value.parse().map_err(|_| libc::EINVAL)?;
                self.move_process(if pid == 0 { AGENT_PID } else { pid }, index)?;
            }
            "cgroup.subtree_control" => {
                let values = &mut self.machine.cgroups[index].values;
                let text = values.entry(file.to_owned()).or_default();
                let mut now: BTreeSet<String> =
                    text.split_whitespace().map(str::to_owned).collect();
                for word in value.split_whitespace() {
                    match word.split_at(1) {
                        ("+", name) => now.insert(name.to_owned()),
                        (_, name) => now.remove(name),
                    };
                }
                *text = now.into_iter().collect::<Vec<_>>().join(" ");
            }
            "memory.reclaim" => return Err(libc::EAGAIN),
            _ => {
                self.machine.cgroups[index]
                    .values
                    .insert(file.to_owned(), value.to_owned());
            }
        }
        Ok(())
    }

    /// The kernel's OOM killer takes the largest.
    fn oom_kill(&mut self) {
        let now_ns = self.now_ns;
        let victims = self
            .machine
            .processes
            .iter()
            .filter(|(pid, process)| **pid != AGENT_PID && process.killed_ns.is_none());
        let largest = victims.max_by_key(|(_, process)| {
            let pod = self.machine.cgroups[process.cgroup].pod;
            pod.map_or(0, |pod| self.machine.used(pod, now_ns))
        });
        if let Some(pid) = largest.map(|(pid, _)| *pid) {
            self.machine.oom_kills += 1;
            self.oom_kill_process(pid);
        }
    }

    fn oom_kill_process(&mut self, pid: i32) {
        let now_ns = self.now_ns;
        let Some(process) = self.machine.processes.get(&pid).cloned() else {
            return;
        };
        self.machine.cgroups[process.cgroup].oom_kills += 1;
        let pod = self.machine.cgroups[process.cgroup].pod;
        self.checks.kernel_oom_kill(pod, now_ns);
        let mut comm = [0; abi::COMM_BYTES];
        let length = process.comm.len().min(abi::COMM_BYTES - 1);
        comm[..length].copy_from_slice(&process.comm[..length]);
        let record = abi::OomKill {
            header: header(
                abi::Kind::OomKill,
                self.machine.cgroups[process.cgroup].id,
                now_ns,
            ),
            limit_cgroup_id: abi::NODE_OOM,
            points: 1000,
            total_pages: 1000,
            anon_pages: 1000,
            tgid: pid.unsigned_abs(),
            oom_score_adj: 0,
            comm,
        };
        if self.bpf.is_attached(&self.root) {
            self.bpf.send(
                "CRITICAL",
                abi::Kind::OomKill,
                record.as_bytes(),
                abi::CRITICAL_SHARED_BYTES as usize,
            );
            self.ring_bell("CRITICAL");
        }
        self.process_ended(pid);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Start(new) => self.start_pod(&new),
            Happening::Grow(pod, mut ramp) => {
                ramp.at_ns = self.now_ns;
                ramp.bytes = self.machine.used(pod, self.now_ns);
                let is_dying = |pid: &i32| {
                    self.machine
                        .processes
                        .get(pid)
                        .is_none_or(|process| process.killed_ns.is_some())
                };
                if !self.machine.pods[pod].processes.iter().all(is_dying) {
                    self.machine.set_ramp(pod, ramp);
                }
            }
            Happening::MemoryBack(pod) => {
                if self.machine.pods[pod].processes.is_empty() {
                    self.machine.set_bytes(pod, 0);
                }
            }
            Happening::Attaches { left, every_ns } => {
                let record = abi::CgroupAttach {
                    header: header(
                        abi::Kind::CgroupAttach,
                        77_000 + u64::from(left),
                        self.now_ns,
                    ),
                    tgid: 1 << 21,
                    hierarchy_id: 0,
                };
                self.lifecycle(abi::Kind::CgroupAttach, record.as_bytes());
                if left > 1 {
                    self.machine.at(
                        self.now_ns + every_ns,
                        Happening::Attaches {
                            left: left - 1,
                            every_ns,
                        },
                    );
                }
            }
            Happening::Hold { ns } => {
                let incarnation = self.incarnation;
                let others: Vec<usize> = (0..self.threads.len())
                    .filter(|id| {
                        !self.threads[*id].is_loop && self.threads[*id].incarnation == incarnation
                    })
                    .collect();
                let index = usize::try_from(self.random.below(others.len() as u64)).unwrap_or(0);
                if let Some(id) = others.get(index) {
                    let thread = &mut self.threads[*id];
                    thread.local_ns = thread.local_ns.max(self.now_ns) + ns;
                }
            }
            Happening::LimitMet(name) => {
                let found = self.machine.pods.iter().find(|pod| pod.uid == name);
                let pid = found.and_then(|pod| pod.processes.first().copied());
                if let Some(pid) = pid {
                    self.oom_kill_process(pid);
                }
            }
            Happening::StartAgent => crate::run::start_agent(self),
            Happening::StopAgent => crate::run::stop_agent(self),
            Happening::End => {
                let now_ns = self.now_ns;
                self.checks.never_ended(now_ns);
                crate::run::report_and_exit(self)
            }
        }
    }
}

/// Everything that has come by now.
pub(crate) fn step(world: &mut World) {
    let now_ns = world.now_ns;
    world.machine.now_ns = now_ns;
    world.machine.next_ns = None;
    world.poked = true;
    // What crosses first: the kernel counts before a process can end.
    if let Some(armed) = world.machine.armed_bytes
        && world.machine.charged(now_ns) >= armed
    {
        cross(world);
    }
    let ended: Vec<i32> = world
        .machine
        .processes
        .iter()
        .filter(|(_, process)| process.ends_ns.is_some_and(|at_ns| at_ns <= now_ns))
        .map(|(pid, _)| *pid)
        .collect();
    for pid in ended {
        world.process_ended(pid);
    }
    while let Some(entry) = world.machine.events.first_entry()
        && entry.key().0 <= now_ns
    {
        let happening = entry.remove();
        world.happen(happening);
    }
    let free = world.machine.free(now_ns);
    if free < EXHAUSTED_BYTES {
        world.oom_kill();
    }
    if free < PRESSED_BYTES && world.machine.stalled_since_ns.is_none() {
        world.machine.stalled_since_ns = Some(now_ns);
        let triggers: Vec<i32> = world
            .fds
            .iter()
            .filter(|(_, fd)| fd.kind == Kind::PsiTrigger)
            .map(|(fd, _)| *fd)
            .collect();
        for fd in triggers {
            ring_eventfd(fd);
        }
    } else if free >= PRESSED_BYTES {
        world.machine.stalled_since_ns = None;
    }
    world.check_machine();
}

/// The agent has written into `CHARGES`.
pub(crate) fn armed(world: &mut World) {
    let pages = world.bpf.word("CHARGES", abi::charges::THRESHOLD_PAGES);
    world.machine.now_ns = world.now_ns;
    world.machine.armed_bytes = (pages > 0).then(|| pages * PAGE);
    world.machine.next_ns = None;
}

/// The total, as the program counts it.
pub(crate) fn count_charges(world: &mut World) {
    let pages = world.machine.charged(world.now_ns) / PAGE;
    world
        .bpf
        .set_word("CHARGES", abi::charges::TOTAL_PAGES, pages);
}

fn cross(world: &mut World) {
    world.machine.armed_bytes = None;
    world.machine.next_ns = None;
    count_charges(world);
    world
        .bpf
        .set_word("CHARGES", abi::charges::THRESHOLD_PAGES, 0);
    if !world.bpf.is_attached(&world.root) {
        return;
    }
    let record = abi::ChargesReached {
        header: header(abi::Kind::ChargesReached, 0, world.now_ns),
        charged_pages: world.bpf.word("CHARGES", abi::charges::TOTAL_PAGES),
        generation: world.bpf.word("CHARGES", abi::charges::GENERATION),
    };
    world.bpf.send(
        "CRITICAL",
        abi::Kind::ChargesReached,
        record.as_bytes(),
        usize::MAX,
    );
    world.ring_bell("CRITICAL");
    world.checks.crossed(world.now_ns);
}

/// `kill -9` of the agent: its process has gone, another comes.
pub(crate) fn agent_killed(world: &mut World) {
    world.machine.now_ns = world.now_ns;
    world
        .machine
        .at(world.now_ns + 200 * MS, Happening::StartAgent);
    if world.machine.stop_ns <= world.now_ns + SECOND {
        // The one that follows is to end as well.
        world
            .machine
            .at(world.now_ns + 10 * SECOND, Happening::StopAgent);
    }
}
