//! What runs here and what it uses, in the shape of a kubelet's `/stats/summary`, read when it is asked for.
//!
//! **Problem.** The kubelet's own figures come from a cache that is up to ten seconds old, or longer, and dear to fill.
//! **Approach.** Which pods there are is the loop's newest snapshot; everything else is read from cgroup files at the
//! request, on the listener's thread, about ten files per cgroup: the cost is linear in pods and containers, and
//! nothing is kept but one CPU reading per cgroup, for rates. What is on disks is the newest reading of the threads
//! that survey them ([`crate::storage`]), with its own time. **Limits.** A figure that is not known is absent, as in
//! the kubelet. Pods in the node's network namespace have no network. `usageNanoCores` is the mean since an earlier
//! request, at most a few seconds of it, and absent at the first. Containers that a container runtime has started have
//! its ids as names.
//!
//! Source: `k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go` and
//! `pkg/kubelet/stats/{helper,cadvisor_stats_provider}.go` of 1.36.

mod cgroup;
mod clock;
mod network;
mod rate;
mod resource;
mod shape;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::reading::{
    ContainerStorage, FileSystemReading, PodStorage, StorageReading, Used,
};
use plimsoll_core::model::state::{NodeState, PodState};

use crate::host::HostRoot;
use crate::host::cgroup::{CgroupMounts, CgroupPath};
use crate::host::file::read_text;
use crate::host::meminfo::MeminfoFile;
use crate::host::pressure::{PressureFile, read_stalls};
use crate::host::processes::ProcessFiles;
use crate::pods;
use crate::pods::names::{self, KubeletTree};
use cgroup::CgroupReader;
use clock::Clock;
use rate::Rates;

pub use clock::Time;
pub use resource::page as resource_metrics;
pub use shape::{
    ContainerStats, CpuStats, FsStats, InterfaceStats, IoStats, MemoryStats, NetworkStats,
    NodeStats, PodReference, PodStats, ProcessStats, PsiData, PsiStats, RlimitStats, RuntimeStats,
    Summary, SwapStats, VolumeStats,
};

/// Where it is read.
#[derive(Debug)]
pub struct Statistics {
    host: HostRoot,
    mounts: CgroupMounts,
    cgroup_root: CgroupPath,
    /// `None`: no kubelet runs the pods.
    kubelet: Option<KubeletTree>,
    node_name: String,
    rates: Rates,
}

/// What a pod as a whole takes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodUse {
    /// CPU time.
    pub cpu: Option<CpuStats>,
    /// Memory.
    pub memory: Option<MemoryStats>,
    /// Disks.
    pub io: Option<IoStats>,
    /// Swap.
    pub swap: Option<SwapStats>,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Everything.
    All,
    /// Nothing that is read for the network: who asks leaves it out.
    AllButNetwork,
}

/// One request: every figure of it is of about the same time.
#[derive(Debug)]
pub struct Request<'a> {
    statistics: &'a Statistics,
    state: &'a NodeState,
    clock: Clock,
}

impl Statistics {
    /// Of the pods below `cgroup_root` of this host.
    pub fn new(host: HostRoot, mounts: CgroupMounts, cgroup_root: CgroupPath) -> Self {
        let uname = rustix::system::uname();
        let node_name = uname.nodename().to_string_lossy();
        Self {
            host,
            mounts,
            cgroup_root,
            kubelet: None,
            // A kubelet registers its node so.
            node_name: node_name.trim().to_lowercase(),
            rates: Rates::default(),
        }
    }

    /// Of the pods in this tree, if there is one.
    #[must_use]
    pub fn beside_kubelet(self, kubelet: Option<KubeletTree>) -> Self {
        Self { kubelet, ..self }
    }

    /// Begins an answer about what `state` knows.
    pub fn request<'a>(&'a self, state: &'a NodeState) -> Request<'a> {
        self.rates.forget_old();
        Request {
            statistics: self,
            state,
            clock: Clock::now(),
        }
    }
}

impl Request<'_> {
    /// The node.
    pub fn node(&self, wanted: Wanted) -> NodeStats {
        let statistics = self.statistics;
        let reader = self.reader();
        let storage = self.state.storage.as_deref();
        let root = CgroupPath::default();
        let mut cpu = reader.cpu(&root).or_else(|| self.node_cpu());
        if let Some(cpu) = &mut cpu {
            cpu.psi = self.node_psi(PressureFile::Cpu);
        }
        let mut memory = self.node_memory(&reader);
        if let Some(memory) = &mut memory {
            memory.psi = self.node_psi(PressureFile::Memory);
        }
        let io = self.node_psi(PressureFile::Io).map(|psi| IoStats {
            time: self.clock.time(),
            psi: Some(psi),
        });
        let file_system = |of: fn(&StorageReading) -> Option<FileSystemReading>| {
            let reading = of(storage?)?;
            Some(self.file_system(&reading))
        };
        let runtime = RuntimeStats {
            image_fs: file_system(|storage| storage.imagefs),
            container_fs: file_system(|storage| storage.containerfs),
        };
        NodeStats {
            node_name: statistics.node_name.clone(),
            system_containers: self.pods_as_one(&reader).into_iter().collect(),
            start_time: self.boot_time(),
            cpu,
            memory,
            io,
            network: self.network(wanted, || network::of_node(&statistics.host)),
            fs: file_system(|storage| storage.nodefs),
            runtime: Some(runtime).filter(|it| *it != RuntimeStats::default()),
            rlimit: self.rlimit(),
            swap: self.node_swap(),
        }
    }

    /// The UIDs of all pods that are known.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.state.pods.keys()
    }

    /// One pod; `None` while it has no cgroup.
    pub fn pod(&self, uid: &PodUid, wanted: Wanted) -> Option<PodStats> {
        let statistics = self.statistics;
        let known = self.state.pods.get(uid)?;
        let reader = self.reader();
        let path = self.cgroup_of(uid, known)?;
        let dir = reader.memory_dir(&path)?;
        let start_time = self.clock.made(&dir)?;
        let storage = self.state.storage.as_deref();
        let on_disk = storage.and_then(|all| {
            let at = all.pods.binary_search_by(|pod| pod.uid.cmp(uid)).ok()?;
            Some((all, &all.pods[at]))
        });
        let containers = pods::cgroup::containers(&statistics.mounts, &path).unwrap_or_default();
        let mut containers: BTreeMap<String, ContainerStats> = containers
            .into_iter()
            .filter_map(|it| {
                // A runtime names them by their ids; without one it is the sandbox's.
                let name = match names::container_id(&it.name) {
                    Some(_) => names::container_name(&known.pod, &it.name)?.to_owned(),
                    None => it.name,
                };
                let stats = self.container(&reader, &name, &it.path);
                Some((name, stats))
            })
            .collect();
        if let Some((all, pod)) = on_disk {
            for stored in &pod.containers {
                self.stored(all, stored, &mut containers);
            }
        }
        let used = |used: &Used, all| self.used(used, all);
        let volumes = on_disk.into_iter().flat_map(|(all, pod)| {
            pod.volumes.iter().map(move |volume| VolumeStats {
                fs: used(&volume.used, all.nodefs),
                name: volume.name.clone(),
            })
        });
        let metadata = &known.pod.metadata;
        let processes = reader.processes(&dir);
        // Those of a pod share one namespace.
        let network = self.network(wanted, || {
            network::of_process(&self.statistics.host, processes?.first?)
        });
        Some(PodStats {
            pod_ref: PodReference {
                name: metadata.name.clone(),
                namespace: known.pod.namespace().to_owned(),
                uid: uid.to_string(),
            },
            start_time,
            containers: containers.into_values().collect(),
            cpu: reader.cpu(&path),
            memory: reader.memory(&path),
            io: reader.io(&path),
            network,
            volume: volumes.collect(),
            ephemeral_storage: on_disk.map(|(all, pod)| self.used(&sum(pod), all.nodefs)),
            process_stats: processes.map(|it| ProcessStats {
                process_count: it.count,
            }),
            swap: reader.swap(&path),
        })
    }

    /// What a pod as a whole takes of CPU, memory and disks, and how it waits for them; `None` while it has no cgroup.
    pub fn pod_use(&self, uid: &PodUid) -> Option<PodUse> {
        let path = self.cgroup_of(uid, self.state.pods.get(uid)?)?;
        let reader = self.reader();
        Some(PodUse {
            cpu: reader.cpu(&path),
            memory: reader.memory(&path),
            io: reader.io(&path),
            swap: reader.swap(&path),
        })
    }

    fn reader(&self) -> CgroupReader<'_> {
        CgroupReader {
            mounts: &self.statistics.mounts,
            rates: &self.statistics.rates,
            clock: &self.clock,
        }
    }

    /// Where its specification says, or where it was when that said otherwise.
    fn cgroup_of(&self, uid: &PodUid, known: &PodState) -> Option<CgroupPath> {
        let statistics = self.statistics;
        if let Some(tree) = &statistics.kubelet {
            return tree.pod(known.pod.qos_class(), uid).ok();
        }
        let path = pods::cgroup::pod_path(&statistics.cgroup_root, &known.pod).ok()?;
        let is_there = statistics
            .mounts
            .hierarchies()
            .iter()
            .any(|one| one.has(&path));
        if is_there {
            Some(path)
        } else {
            pods::cgroup::find(&statistics.mounts, &statistics.cgroup_root, uid)
        }
    }

    fn container(
        &self,
        reader: &CgroupReader<'_>,
        name: &str,
        path: &CgroupPath,
    ) -> ContainerStats {
        let dir = reader.memory_dir(path);
        ContainerStats {
            name: name.to_owned(),
            start_time: dir
                .and_then(|dir| self.clock.made(&dir))
                .unwrap_or_default(),
            cpu: reader.cpu(path),
            memory: reader.memory(path),
            io: reader.io(path),
            swap: reader.swap(path),
            ..ContainerStats::default()
        }
    }

    /// What a container has on disk, also after it has ended.
    fn stored(
        &self,
        all: &StorageReading,
        stored: &ContainerStorage,
        containers: &mut BTreeMap<String, ContainerStats>,
    ) {
        let stats = containers
            .entry(stored.name.clone())
            .or_insert_with(|| ContainerStats {
                name: stored.name.clone(),
                ..ContainerStats::default()
            });
        let layers = all.containerfs.or(all.imagefs).or(all.nodefs);
        stats.rootfs = Some(self.used(&stored.rootfs, layers));
        stats.logs = Some(self.used(&stored.logs, all.nodefs));
    }

    fn used(&self, used: &Used, on: Option<FileSystemReading>) -> FsStats {
        FsStats {
            used_bytes: used.bytes,
            inodes_used: used.inodes,
            ..on.map_or_else(FsStats::default, |on| self.file_system(&on))
        }
    }

    /// Blocks that only root may use count as used.
    fn file_system(&self, reading: &FileSystemReading) -> FsStats {
        FsStats {
            time: self.clock.time_of(reading.at_ns),
            available_bytes: Some(reading.available_bytes),
            capacity_bytes: Some(reading.capacity_bytes),
            used_bytes: Some(
                reading
                    .capacity_bytes
                    .saturating_sub(reading.available_bytes),
            ),
            inodes_free: reading.inodes_free,
            inodes: reading.inodes,
            inodes_used: reading
                .inodes
                .zip(reading.inodes_free)
                .map(|(all, free)| all.saturating_sub(free)),
        }
    }

    /// The kubelet's system container `pods`.
    fn pods_as_one(&self, reader: &CgroupReader<'_>) -> Option<ContainerStats> {
        let kubepods = match &self.statistics.kubelet {
            Some(tree) => tree.kubepods().clone(),
            None => pods::cgroup::kubepods_path(&self.statistics.cgroup_root).ok()?,
        };
        self.clock.made(&reader.memory_dir(&kubepods)?)?;
        Some(self.container(reader, "pods", &kubepods))
    }

    /// From `/proc/stat`, where no root cgroup counts CPU time: v1 without `cpuacct`.
    fn node_cpu(&self) -> Option<CpuStats> {
        let path = self.statistics.host.procfs("stat");
        let text = read_text(&path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line
            .split_ascii_whitespace()
            .map_while(|it| it.parse().ok())
            .collect();
        let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else {
            return None;
        };
        let busy = user + nice + system + irq + softirq;
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let usage_ns = busy.saturating_mul(tick_ns);
        let rates = &self.statistics.rates;
        Some(CpuStats {
            time: self.clock.time(),
            usage_nano_cores: rates.nano_cores(&path, Instant::now(), usage_ns),
            usage_core_nano_seconds: Some(usage_ns),
            psi: None,
        })
    }

    fn network(
        &self,
        wanted: Wanted,
        read: impl FnOnce() -> Option<Vec<InterfaceStats>>,
    ) -> Option<NetworkStats> {
        let interfaces = (wanted == Wanted::All).then(read)??;
        Some(NetworkStats {
            time: self.clock.time(),
            default: network::default_of(&interfaces),
            interfaces,
        })
    }

    fn boot_time(&self) -> Time {
        let text = read_text(self.statistics.host.procfs("stat")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("btime "));
        let seconds = line.and_then(|it| it.trim().parse().ok());
        Time(Duration::from_secs(seconds.unwrap_or(0)))
    }

    fn meminfo(&self) -> Option<crate::host::meminfo::NodeMemory> {
        let file = MeminfoFile::open(&self.statistics.host).ok()?;
        file.read().ok()
    }

    /// As the kubelet has it on cgroup v2, where the root cgroup has no usage: from meminfo.
    fn node_memory(&self, reader: &CgroupReader<'_>) -> Option<MemoryStats> {
        let meminfo = self.meminfo()?;
        let usage = meminfo.anon + meminfo.cached + meminfo.buffers + meminfo.swap_cached;
        let working_set = usage.saturating_sub(meminfo.inactive_file);
        let [page_faults, major_page_faults] = reader.page_faults(&CgroupPath::default());
        Some(MemoryStats {
            time: self.clock.time(),
            available_bytes: Some(meminfo.total.saturating_sub(working_set)),
            usage_bytes: Some(usage),
            working_set_bytes: Some(working_set),
            rss_bytes: Some(meminfo.anon),
            page_faults,
            major_page_faults,
            psi: None,
        })
    }

    fn node_swap(&self) -> Option<SwapStats> {
        let meminfo = self.meminfo()?;
        Some(SwapStats {
            time: self.clock.time(),
            swap_available_bytes: Some(meminfo.swap_free),
            swap_usage_bytes: Some(meminfo.swap_total.saturating_sub(meminfo.swap_free)),
        })
    }

    fn node_psi(&self, file: PressureFile) -> Option<PsiStats> {
        let path = self.statistics.host.procfs(file.procfs_path());
        read_stalls(path).ok().map(PsiStats::from)
    }

    fn rlimit(&self) -> Option<RlimitStats> {
        let files = ProcessFiles::open(&self.statistics.host, |_| {})?;
        let found = files.read(|_| {}).ok()?;
        Some(RlimitStats {
            time: self.clock.time(),
            maxpid: i64::try_from(found.max).ok(),
            curproc: i64::try_from(found.running).ok(),
        })
    }
}

/// Writable layers, logs, volumes and the kubelet's files of a pod; `None` for what none of them shows.
fn sum(pod: &PodStorage) -> Used {
    let containers = pod.containers.iter().flat_map(|it| [it.rootfs, it.logs]);
    let volumes = pod.volumes.iter().map(|it| it.used);
    let all: Vec<Used> = containers.chain(volumes).chain([pod.files]).collect();
    let total = |of: fn(&Used) -> Option<u64>| {
        all.iter()
            .filter_map(of)
            .fold(None, |sum: Option<u64>, it| {
                Some(sum.unwrap_or(0).saturating_add(it))
            })
    };
    Used {
        bytes: total(|used| used.bytes),
        inodes: total(|used| used.inodes),
    }
}

#[cfg(test)]
mod tests;
