//! Readings beside memory: file systems, processes, stalls, loads and NUMA nodes, as they are on the machine.
//!
//! Problem: these change slowly and cost much to read (a directory tree is walked, a hundred files are opened), so they
//! are read off the hot path and at other times than memory. Approach: each reading carries its own time; it comes with
//! a [`Sample`](crate::model::event::Sample) once, and the engine keeps the newest. A threshold never evicts twice on
//! one reading.
//!
//! Like every part of an event, a reading holds raw figures, never a conclusion.

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;

/// The node's file systems and what each pod has on them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StorageReading {
    /// The file system of the kubelet's directory. `None`: it could not be read.
    pub nodefs: Option<FileSystemReading>,
    /// The file system of images.
    pub imagefs: Option<FileSystemReading>,
    /// The file system of writable layers.
    pub containerfs: Option<FileSystemReading>,
    /// What pods use, by ascending UID. A pod that cannot be measured is missing, and so is one that has not been
    /// measured yet, unless all others have been for a ranking.
    pub pods: Vec<PodStorage>,
}

/// One file system, from `statvfs(3)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileSystemReading {
    /// When it was read: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// Bytes that are free for unprivileged users (`f_bavail`).
    pub available_bytes: u64,
    /// Bytes in all.
    pub capacity_bytes: u64,
    /// Free inodes; `None` on file systems that make them as needed (btrfs says 0 of 0).
    pub inodes_free: Option<u64>,
    /// Inodes in all.
    pub inodes: Option<u64>,
}

/// What one pod has on the node's file systems.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodStorage {
    /// Which pod.
    pub uid: PodUid,
    /// Its containers.
    pub containers: Vec<ContainerStorage>,
    /// Its volumes, as far as they have a directory here.
    pub volumes: Vec<VolumeStorage>,
    /// Files that the kubelet makes beside its volumes and that its containers may write: `/etc/hosts` and termination
    /// messages.
    #[serde(default, skip_serializing_if = "Used::is_unknown")]
    pub files: Used,
    /// Whether a count ended before the directory did: it has more than the figures say. In the rankings of disks it is
    /// a pod without statistics, so that nobody hides what he has behind too many names, too deep down, or by moving it
    /// while it is counted; at limits the figures count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

impl PodStorage {
    /// A pod of which nothing was found.
    pub fn nothing(uid: PodUid) -> Self {
        Self {
            uid,
            containers: Vec::new(),
            volumes: Vec::new(),
            files: Used::default(),
            is_cut: false,
        }
    }
}

/// What one container has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ContainerStorage {
    /// Its name.
    pub name: String,
    /// Its writable layer.
    pub rootfs: Used,
    /// Its logs.
    pub logs: Used,
}

/// What one volume takes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VolumeStorage {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub used: Used,
}

/// Space and inodes taken; `None` where it could not be found out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Used {
    /// Bytes on disk (blocks, not file lengths).
    pub bytes: Option<u64>,
    /// Files, directories and links; a file with several names counts once.
    pub inodes: Option<u64>,
}

impl Used {
    /// Whether neither is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// The node's processes and threads: both take a PID.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessReading {
    /// When: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// The smaller of `kernel.pid_max` and `kernel.threads-max`.
    pub max: u64,
    /// Threads that exist (`/proc/loadavg`).
    pub running: u64,
    /// Those of each pod, by ascending UID.
    pub pods: Vec<PodProcesses>,
}

/// Processes and threads of one pod.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodProcesses {
    /// Which pod.
    pub uid: PodUid,
    /// The PIDs that it takes (`pids.current`); its processes alone (`cgroup.procs`, as cAdvisor counts them) where
    /// there is no pids controller, and in what a kubelet has recorded.
    pub processes: u64,
}

/// Pressure stall information of the node (`/proc/pressure`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PressureReading {
    /// When: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// `/proc/pressure/memory`; `None` where it could not be read.
    pub memory: Option<StallReading>,
    /// `/proc/pressure/io`.
    pub io: Option<StallReading>,
    /// `/proc/pressure/cpu`.
    pub cpu: Option<StallReading>,
}

/// One file of `/proc/pressure`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StallReading {
    /// At least one task waited.
    pub some: StallShares,
    /// All tasks waited.
    pub full: StallShares,
}

/// One line of it: shares of time in hundredths of a percent, as the kernel prints them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StallShares {
    /// Over 10 seconds.
    pub avg10: u16,
    /// Over 60 seconds.
    pub avg60: u16,
    /// Over 300 seconds.
    pub avg300: u16,
    /// Since boot, microseconds.
    pub total_us: u64,
}

/// Memory of one NUMA node (`/sys/devices/system/node/nodeN/meminfo`), all bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NumaMemory {
    /// The node's number.
    pub node: u32,
    /// `MemTotal`.
    pub capacity_bytes: u64,
    /// `MemFree`.
    pub free_bytes: u64,
    /// `AnonPages`.
    pub anon_bytes: u64,
    /// `FilePages`.
    pub file_bytes: u64,
    /// `Inactive(file)`.
    pub inactive_file_bytes: u64,
    /// What of it, or of `Active(file)`, is no page cache ([`page_cache`](crate::model::page_cache)).
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub lazily_freed_bytes: u64,
}

/// What pods have on one NUMA node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NumaPods {
    /// When: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// The node's number.
    pub node: u32,
    /// By ascending UID. A pod that could not be read is missing.
    pub pods: Vec<PodOnNode>,
}

/// What one pod has there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodOnNode {
    /// Which pod.
    pub uid: PodUid,
    /// Its working set on the node (`memory.numa_stat`).
    pub used_bytes: u64,
}

/// What pods take of the CPUs and disks, as means since the reading before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodLoads {
    /// When: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// By ascending UID. A pod that has not been read twice yet is missing.
    pub pods: Vec<PodLoad>,
}

/// What one pod takes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PodLoad {
    /// Which pod.
    pub uid: PodUid,
    /// Thousandths of a CPU (`usage_usec` of `cpu.stat`, v1: `cpuacct.usage`). `None` where it could not be read.
    pub cpu_milli: Option<u64>,
    /// Bytes read and written per second (`io.stat`, v1: `blkio.throttle.io_service_bytes`). `None` where it could not
    /// be read.
    pub io_bytes_per_s: Option<u64>,
}
