//! Which hierarchies of cgroups are mounted (v2, v1, or both), and the files of each.
//!
//! A hierarchy that is not the only one is a directory below the mount of cgroups, and its cgroups have that
//! directory's name before their own.

use super::*;

/// How cgroups are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    V2,
    V1,
    /// All controllers on v1, and a v2 tree beside them without any, as systemd mounts it.
    Hybrid,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hierarchy {
    /// Below the mount of cgroups; empty for the only one.
    pub(crate) dir: &'static str,
    pub(crate) is_v1: bool,
    controllers: &'static str,
    /// The kernel's number of it.
    pub(crate) id: u32,
    /// Files of each cgroup, and what they say at first; those without are made when they are read.
    files: &'static [(&'static str, &'static str)],
}

impl Hierarchy {
    /// Files of the cgroup with this name, which is empty for the root.
    pub(crate) fn files(
        &self,
        name: &str,
    ) -> impl Iterator<Item = &'static (&'static str, &'static str)> + Clone + use<> {
        let is_v2_root = !self.is_v1 && name.is_empty();
        self.files
            .iter()
            .filter(move |(file, _)| !(is_v2_root && NOT_AT_ROOT.contains(file)))
    }
}

const V2_CONTROLLERS: &str = "cpuset cpu io memory pids";

const V2: [Hierarchy; 1] = [Hierarchy {
    dir: "",
    is_v1: false,
    controllers: V2_CONTROLLERS,
    id: 0,
    files: &V2_FILES,
}];

const fn v1(
    dir: &'static str,
    id: u32,
    files: &'static [(&'static str, &'static str)],
) -> Hierarchy {
    Hierarchy {
        dir,
        is_v1: true,
        controllers: dir,
        id,
        files,
    }
}

/// The first one accounts memory.
const HYBRID: [Hierarchy; 7] = [
    v1("memory", 4, &MEMORY_FILES),
    v1("cpu,cpuacct", 3, &CPU_FILES),
    v1("cpuset", 2, &CPUSET_FILES),
    v1("pids", 5, &PIDS_FILES),
    v1("freezer", 6, &FREEZER_FILES),
    v1("blkio", 7, &BLKIO_FILES),
    Hierarchy {
        dir: "unified",
        is_v1: false,
        controllers: "",
        id: 0,
        files: &UNIFIED_FILES,
    },
];

const V2_FILES: [(&str, &str); 34] = [
    ("cgroup.controllers", V2_CONTROLLERS),
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

/// Files of cgroup v2 that its root does not have.
const NOT_AT_ROOT: [&str; 20] = [
    "cgroup.events",
    "cgroup.freeze",
    "cgroup.kill",
    "cgroup.type",
    "cpu.idle",
    "cpu.max",
    "cpu.max.burst",
    "cpu.weight",
    "cpuset.cpus",
    "cpuset.mems",
    "memory.current",
    "memory.events",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.oom.group",
    "memory.swap.current",
    "memory.swap.max",
    "pids.max",
];

const UNIFIED_FILES: [(&str, &str); 8] = [
    ("cgroup.controllers", ""),
    ("cgroup.events", ""),
    ("cgroup.freeze", "0"),
    ("cgroup.kill", ""),
    ("cgroup.procs", ""),
    ("cgroup.subtree_control", ""),
    ("cgroup.threads", ""),
    ("cgroup.type", "domain"),
];

const MEMORY_FILES: [(&str, &str); 12] = [
    ("cgroup.event_control", ""),
    ("cgroup.procs", ""),
    ("memory.limit_in_bytes", "9223372036854771712"),
    ("memory.max_usage_in_bytes", "0"),
    ("memory.oom_control", ""),
    ("memory.pressure_level", ""),
    ("memory.soft_limit_in_bytes", "9223372036854771712"),
    ("memory.stat", ""),
    ("memory.swappiness", "60"),
    ("memory.usage_in_bytes", ""),
    ("memory.use_hierarchy", "1"),
    ("tasks", ""),
];

const CPU_FILES: [(&str, &str); 7] = [
    ("cgroup.procs", ""),
    ("cpu.cfs_period_us", "100000"),
    ("cpu.cfs_quota_us", "-1"),
    ("cpu.shares", "1024"),
    ("cpu.stat", ""),
    ("cpuacct.usage", "1000000"),
    ("tasks", ""),
];

const CPUSET_FILES: [(&str, &str); 7] = [
    ("cgroup.procs", ""),
    ("cpuset.cpus", "0-3"),
    ("cpuset.effective_cpus", "0-3"),
    ("cpuset.effective_mems", "0"),
    ("cpuset.memory_migrate", "0"),
    ("cpuset.mems", "0"),
    ("tasks", ""),
];

const PIDS_FILES: [(&str, &str); 4] = [
    ("cgroup.procs", ""),
    ("pids.current", ""),
    ("pids.max", "max"),
    ("tasks", ""),
];

const FREEZER_FILES: [(&str, &str); 3] = [
    ("cgroup.procs", ""),
    ("freezer.state", "THAWED"),
    ("tasks", ""),
];

const BLKIO_FILES: [(&str, &str); 3] = [
    ("blkio.throttle.io_service_bytes_recursive", "Total 0"),
    ("cgroup.procs", ""),
    ("tasks", ""),
];

impl Layout {
    pub(super) fn hierarchies(self) -> &'static [Hierarchy] {
        match self {
            Self::V2 => &V2,
            Self::V1 => &HYBRID[..HYBRID.len() - 1],
            Self::Hybrid => &HYBRID,
        }
    }

    /// `/proc/self/mounts`, as far as cgroups go.
    pub(super) fn mounts(self) -> String {
        let mut text = String::new();
        for it in self.hierarchies() {
            let (kind, options) = if it.is_v1 {
                ("cgroup", it.controllers)
            } else {
                ("cgroup2", "nsdelegate")
            };
            let slash = if it.dir.is_empty() { "" } else { "/" };
            writeln!(
                text,
                "{kind} {CGROUPS}{slash}{} {kind} rw,{options} 0 0",
                it.dir
            )
            .ok();
        }
        text
    }
}

impl Hierarchy {
    /// The name that a cgroup of it has in the model: with the hierarchy's directory.
    pub(crate) fn place(&self, name: &str) -> String {
        match (self.dir, name) {
            ("", name) => name.to_owned(),
            (dir, "") => dir.to_owned(),
            (dir, name) => format!("{dir}/{name}"),
        }
    }

    /// The line of `/proc/PID/cgroup`.
    pub(super) fn line(&self, name: &str) -> String {
        let controllers = if self.is_v1 { self.controllers } else { "" };
        format!("{}:{controllers}:/{name}\n", self.id)
    }
}

impl Machine {
    /// Lines before all others in the list of mounts.
    pub(crate) fn mount_first(&self, lines: &[u8]) {
        let path = self.root.join("proc/self/mounts");
        let mut text = lines.to_vec();
        text.extend(std::fs::read(&path).unwrap_or_default());
        std::fs::write(path, text).ok();
    }

    /// Of which hierarchy a cgroup is, and its name there.
    pub(super) fn hierarchy<'a>(&self, path: &'a str) -> Option<(usize, &'a str)> {
        if self.hierarchies[0].dir.is_empty() {
            return Some((0, path));
        }
        let (dir, name) = path.split_once('/').unwrap_or((path, ""));
        let index = self.hierarchies.iter().position(|it| it.dir == dir)?;
        Some((index, name))
    }

    /// The number of a cgroup's hierarchy, and its name there.
    pub(super) fn numbered(&self, index: usize) -> (u32, String) {
        let it = &self.cgroups[index];
        (self.hierarchies[it.hierarchy].id, it.name.clone())
    }

    /// Notifications of descriptors that are closed.
    pub(crate) fn forget_bells(&mut self, is_closed: impl Fn(i32) -> bool) {
        self.bells.retain(|bell| !is_closed(bell.fd));
    }

    /// Whether a process is in a cgroup that the freezer of v1 holds, or below one.
    pub(super) fn is_frozen(&self, pid: i32) -> bool {
        let Some(process) = self.processes.get(&pid) else {
            return false;
        };
        let above = process.cgroups.iter().flat_map(|index| {
            let path = self.cgroups[*index].path.as_str();
            let ends = path.match_indices('/').map(|(end, _)| end);
            ends.chain([path.len()]).map(move |end| &path[..end])
        });
        above.filter_map(|path| self.find(path)).any(|index| {
            let state = self.cgroups[index].values.get("freezer.state");
            state.is_some_and(|state| state == "FROZEN")
        })
    }

    /// Signals that waited for a thaw.
    pub(super) fn thawed(&mut self) {
        let waiting: Vec<i32> = self
            .processes
            .iter()
            .filter(|(pid, process)| process.is_kill_pending && !self.is_frozen(**pid))
            .map(|(pid, _)| *pid)
            .collect();
        for pid in waiting {
            if let Some(process) = self.processes.get_mut(&pid) {
                process.is_kill_pending = false;
            }
            self.signal(pid, libc::SIGKILL);
        }
    }

    /// The notifications of v1: an eventfd that is rung when the node's usage goes over this, or memory is short.
    pub(super) fn register(
        &mut self,
        line: &str,
        path_of: impl Fn(i32) -> Option<String>,
    ) -> Result<(), i32> {
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (Some(bell), Some(of)) = (number(), number()) else {
            return Err(libc::EINVAL);
        };
        let path = path_of(of).ok_or(libc::EBADF)?;
        let at_bytes = if path.ends_with("/memory.usage_in_bytes") {
            let bytes: u64 = words
                .next()
                .unwrap_or_default()
                .parse()
                .map_err(|_| libc::EINVAL)?;
            bytes
        } else if path.ends_with("/memory.pressure_level") {
            self.total_bytes - PRESSED_BYTES
        } else {
            return Ok(());
        };
        let is_over = self.used_bytes(self.now_ns) >= at_bytes;
        self.bells.push(Bell {
            fd: bell,
            at_bytes,
            is_over,
        });
        self.next_ns = None;
        Ok(())
    }

    /// What the root of v1's memory says.
    pub(super) fn used_bytes(&self, now_ns: u64) -> u64 {
        self.total_bytes - self.free(now_ns)
    }

    /// The bells of those whose line has been crossed since.
    pub(super) fn crossed_bells(&mut self) -> Vec<i32> {
        let used = self.used_bytes(self.now_ns);
        let crossed = self.bells.iter_mut().filter_map(|bell| {
            let was_over = std::mem::replace(&mut bell.is_over, used >= bell.at_bytes);
            (was_over != bell.is_over).then_some(bell.fd)
        });
        crossed.collect()
    }
}

/// A notification of v1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bell {
    pub(crate) fd: i32,
    pub(super) at_bytes: u64,
    pub(super) is_over: bool,
}
