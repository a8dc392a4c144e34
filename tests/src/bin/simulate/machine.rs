//! The machine: memory, cgroups, processes, and the BPF programs' side of it. It changes by events in virtual time and
//! by what the agent does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use plimsoll_abi as abi;
use zerocopy::IntoBytes as _;

use crate::bpf::ring_eventfd;
use crate::files::{Fd, Kind};
use crate::world::{AGENT_PID, World};

mod content;
mod disk;
mod happenings;
mod layout;
mod user;

pub(crate) use disk::{Disks, Lacks};
pub(crate) use happenings::{agent_killed, armed, count_charges, step};
pub(crate) use layout::Layout;
use layout::{Bell, Hierarchy};
use user::Locked;

pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
const PAGE: u64 = 4096;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Of the kernel and everything that is no pod.
const SYSTEM_BYTES: u64 = GIB;
/// What a dying process takes for its memory, as it was measured.
const UNMAP_NS_PER_GIB: u64 = 320 * MS;
/// How much slower that is under SCHED_IDLE beside a hog: 39.8 s were measured for 1 GiB.
const STARVED_FACTOR: u64 = 124;
/// Below this the kernel's OOM killer strikes.
const EXHAUSTED_BYTES: u64 = 32 * MIB;
/// Below this tasks stall.
const PRESSED_BYTES: u64 = 256 * MIB;

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
    /// One for each hierarchy.
    pub(crate) cgroups: Vec<usize>,
    pub(crate) on_term: OnTerm,
    /// Uninterruptible: no signal ends it until then.
    pub(crate) stuck_until_ns: u64,
    /// It gets the CPU when no other process wants it.
    pub(crate) is_starved: bool,
    /// SIGKILL waits for a thaw (v1).
    is_kill_pending: bool,
    pub(crate) killed_ns: Option<u64>,
    pub(crate) ends_ns: Option<u64>,
    pub(crate) oom_score_adj: i32,
}

#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    /// Below the mount of cgroups.
    pub(crate) path: String,
    /// Which hierarchy, and the name there.
    pub(crate) hierarchy: usize,
    pub(crate) name: String,
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
    /// Of its memory, what is clean page cache that no process uses.
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
    /// Its limits are its requests.
    pub(crate) is_guaranteed: bool,
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
    /// How many processes it has; the others sleep, and hold nothing.
    pub(crate) processes: u32,
    /// The agent hears of it when it starts, and not from its own start on.
    pub(crate) is_manifest_late: bool,
    /// Of CPU, in thousandths: what the weight of its tier follows.
    pub(crate) request_millicpu: u32,
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
            is_guaranteed: false,
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
            processes: 1,
            is_manifest_late: false,
            request_millicpu: 0,
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
    /// So many attaches, so far apart, by a process without privileges: in cgroups of no pod, or to and fro in a pod of
    /// that name.
    Attaches {
        left: u32,
        every_ns: u64,
        pod: Option<&'static str>,
    },
    /// A thread of the agent other than the loop stands still for so long.
    Hold {
        ns: u64,
    },
    /// A container meets its own limit, and the kernel takes its process.
    LimitMet(String),
    /// A user without privileges locks what he can open, again and again.
    UserLocks,
    /// A stopped process of root's has the lock of a file in the state directory, for so long.
    RootLocks {
        file: &'static str,
        for_ns: u64,
    },
    Unlock,
    /// A place below the run's directory lacks something, or `None` any more.
    Disk(&'static str, Option<Lacks>),
    /// CLOCK_REALTIME jumps by so many nanoseconds.
    Clock(i64),
    /// The freezer of v1 holds a pod's processes.
    Freeze(String),
    StartAgent,
    StopAgent,
    /// The run is over, whatever the agent does.
    End,
}

pub(crate) struct Machine {
    root: PathBuf,
    pub(crate) hierarchies: &'static [Hierarchy],
    bells: Vec<Bell>,
    pub(crate) total_bytes: u64,
    pub(crate) now_ns: u64,
    pub(crate) cgroups: Vec<Cgroup>,
    by_path: BTreeMap<String, usize>,
    pub(crate) processes: BTreeMap<i32, Process>,
    /// When each of those ends that do.
    ends: BTreeSet<(u64, i32)>,
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
    /// When the agent gets SIGTERM.
    pub(crate) stop_ns: u64,
    /// How long `cgroup_mutex` is held by others.
    pub(crate) mutex_ns: u64,
    /// How long a write of `oom_score_adj` waits for others.
    pub(crate) oom_adj_ns: u64,
    /// With each crossing a pod makes a cgroup, and a thread of low priority has the heap's lock for so long.
    pub(crate) heap_ns: u64,
    pub(crate) heap_held_until_ns: u64,
    pub(crate) disks: Disks,
    pub(crate) locked: Vec<Locked>,
    /// A process of root's has had a lock.
    pub(crate) has_locked: bool,
    /// What CLOCK_REALTIME has jumped by so far.
    pub(crate) clock_ns: i64,
    /// When a flood began, and what the loop had worked by then.
    flood: Option<(u64, u64)>,
}

impl Machine {
    /// A node with nothing on it.
    pub(crate) fn new(root: PathBuf, layout: Layout, total_bytes: u64, now_ns: u64) -> Self {
        let mut it = Self {
            root,
            hierarchies: layout.hierarchies(),
            bells: Vec::new(),
            total_bytes,
            now_ns,
            cgroups: Vec::new(),
            by_path: BTreeMap::new(),
            processes: BTreeMap::new(),
            ends: BTreeSet::new(),
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
            oom_adj_ns: 0,
            heap_ns: 0,
            heap_held_until_ns: 0,
            disks: Disks::default(),
            locked: Vec::new(),
            has_locked: false,
            clock_ns: 0,
            flood: None,
        };
        it.make_files(layout);
        for hierarchy in it.hierarchies {
            let root = it.mkdir(hierarchy.dir, false).unwrap_or(0);
            let controllers = hierarchy
                .files("")
                .find(|(file, _)| *file == "cgroup.controllers");
            if let Some((_, controllers)) = controllers {
                let values = &mut it.cgroups[root].values;
                values.insert(
                    "cgroup.subtree_control".to_owned(),
                    (*controllers).to_owned(),
                );
            }
            it.mkdir(&hierarchy.place("system.slice"), false).ok();
        }
        it.add_process(AGENT_PID, "system.slice", b"plimsoll-agent".to_vec());
        it
    }

    fn make_files(&self, layout: Layout) {
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
            &format!("{}bpf /sys/fs/bpf bpf rw,mode=700 0 0\n", layout.mounts()),
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
        write("sys/devices/system/cpu/present", "0-3\n");
        for cpu in 0..4 {
            let dir = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            write(&format!("{dir}/core_cpus_list"), &format!("{cpu}\n"));
            write(&format!("{dir}/physical_package_id"), "0\n");
        }
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
        let ends_ns = self.ends.first().map_or(u64::MAX, |(at_ns, _)| *at_ns);
        let mut next_ns = event_ns.min(ends_ns);
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
        for bell in &self.bells {
            let crossed = self.when(horizon_ns.min(next_ns), |it, at_ns| {
                (it.used_bytes(at_ns) >= bell.at_bytes) != bell.is_over
            });
            next_ns = next_ns.min(crossed.unwrap_or(u64::MAX));
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
        let index = self.find(dir)?;
        let cgroup = &self.cgroups[index];
        let mut files = self.hierarchies[cgroup.hierarchy].files(&cgroup.name);
        files.any(|(name, _)| *name == file).then_some(index)
    }

    pub(crate) fn mkdir(&mut self, path: &str, is_agents: bool) -> Result<usize, i32> {
        if self.by_path.contains_key(path) {
            return Err(libc::EEXIST);
        }
        let (hierarchy, name) = self.hierarchy(path).ok_or(libc::EPERM)?;
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        if !name.is_empty() && !self.by_path.contains_key(parent) {
            return Err(libc::ENOENT);
        }
        let files = self.hierarchies[hierarchy].files(name);
        let dir = self.root.join("sys/fs/cgroup").join(path);
        std::fs::create_dir_all(&dir).map_err(|_| libc::EIO)?;
        let is_nested = name.matches('/').count() > 3;
        for (file, _) in files.clone() {
            // A hostile tree has tens of thousands of these.
            if !is_nested || file.starts_with("cgroup.") {
                std::fs::File::create(dir.join(file)).map_err(|_| libc::EIO)?;
            }
        }
        let id = dir.metadata().map_or(0, |it| it.ino());
        let pod = self
            .find(parent)
            .and_then(|parent| self.cgroups[parent].pod);
        let values = files.filter(|(_, value)| !value.is_empty());
        self.cgroups.push(Cgroup {
            path: path.to_owned(),
            hierarchy,
            name: name.to_owned(),
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

    /// In each hierarchy.
    pub(crate) fn mkdir_all(&mut self, name: &str) {
        for hierarchy in self.hierarchies {
            for (end, _) in name.match_indices('/').chain([(name.len(), "")]) {
                self.mkdir(&hierarchy.place(&name[..end]), false).ok();
            }
        }
    }

    fn has_children(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.by_path
            .range(below.clone()..)
            .next()
            .is_some_and(|(path, _)| path.starts_with(&below))
    }

    pub(crate) fn rmdir(&mut self, path: &str) -> Result<usize, i32> {
        let index = self.find(path).ok_or(libc::ENOENT)?;
        if self.has_children(path) || !self.cgroups[index].processes.is_empty() {
            return Err(libc::EBUSY);
        }
        std::fs::remove_dir_all(self.root.join("sys/fs/cgroup").join(path))
            .map_err(|_| libc::EIO)?;
        self.by_path.remove(path);
        self.cgroups[index].is_there = false;
        Ok(index)
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

    fn add_process(&mut self, pid: i32, name: &str, comm: Vec<u8>) {
        let started = self.now_ns / 10_000_000;
        let places = self.hierarchies.iter().map(|it| it.place(name));
        let cgroups: Vec<usize> = places.map(|path| self.find(&path).unwrap_or(0)).collect();
        for cgroup in &cgroups {
            self.cgroups[*cgroup].processes.insert(pid);
        }
        let process = Process {
            started,
            comm,
            cgroups,
            on_term: OnTerm::Ends,
            stuck_until_ns: 0,
            is_starved: false,
            is_kill_pending: false,
            killed_ns: None,
            ends_ns: None,
            oom_score_adj: 0,
        };
        self.processes.insert(pid, process);
    }

    /// Whose a process is.
    pub(crate) fn pod_of(&self, pid: i32) -> Option<usize> {
        let process = self.processes.get(&pid)?;
        self.cgroups[process.cgroups[0]].pod
    }

    /// How long a process takes to end, with its pod's memory.
    fn end_ns(&self, pid: i32) -> u64 {
        let Some(process) = self.processes.get(&pid) else {
            return 0;
        };
        let bytes = self
            .pod_of(pid)
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
        let is_frozen = self.is_frozen(pid);
        let Some(process) = self.processes.get_mut(&pid) else {
            return false;
        };
        if is_frozen {
            process.is_kill_pending |= signal == libc::SIGKILL;
            return true;
        }
        let after_ns = match (signal, process.on_term) {
            (libc::SIGKILL, _) | (libc::SIGTERM, OnTerm::Ends) => {
                process.killed_ns.get_or_insert(now_ns);
                ends_in_ns
            }
            (libc::SIGTERM, OnTerm::EndsAfter(ns)) => ns + ends_in_ns,
            _ => return true,
        };
        let ends_ns = process.stuck_until_ns.max(now_ns + after_ns);
        let ends_ns = process
            .ends_ns
            .map_or(ends_ns, |known_ns| known_ns.min(ends_ns));
        let (is_killed, is_stuck) = (
            process.killed_ns == Some(now_ns),
            process.stuck_until_ns > now_ns,
        );
        self.ends_at(pid, ends_ns);
        if is_killed && !is_stuck {
            self.unmaps(pid, after_ns);
        } else if is_killed && let Some(pod) = self.pod_of(pid) {
            // It holds what it has, and asks for no more.
            let bytes = self.used(pod, now_ns);
            self.set_bytes(pod, bytes);
        }
        true
    }

    /// A dying process gives its pod's memory back, in this time, but for what stays.
    fn unmaps(&mut self, pid: i32, within_ns: u64) {
        let Some(pod) = self.pod_of(pid) else {
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
        if let Some(process) = self.processes.get(&pid) {
            self.ends_at(pid, process.stuck_until_ns.max(now_ns + MS));
        }
    }

    /// A process ends then, and not when it would have.
    fn ends_at(&mut self, pid: i32, ends_ns: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            if let Some(known_ns) = process.ends_ns.replace(ends_ns) {
                self.ends.remove(&(known_ns, pid));
            }
            self.ends.insert((ends_ns, pid));
            self.next_ns = None;
        }
    }

    /// It has ended.
    fn remove_process(&mut self, pid: i32) -> Option<Process> {
        let process = self.processes.remove(&pid)?;
        if let Some(ends_ns) = process.ends_ns {
            self.ends.remove(&(ends_ns, pid));
        }
        for cgroup in &process.cgroups {
            self.cgroups[*cgroup].processes.remove(&pid);
        }
        self.next_ns = None;
        Some(process)
    }

    pub(crate) fn unmap_ns(&self, pid: i32) -> u64 {
        self.end_ns(pid).saturating_sub(MS)
    }
}
