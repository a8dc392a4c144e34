//! Reads the node and its pods into the engine's sample, without allocating.

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::{Cause, CgroupMemory, NodeMemory, PodsRead, Sample};
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::swap::{CompressedSwap, PodSwap};
use plimsoll_core::model::threshold::Threshold;
use plimsoll_core::policy::eviction::freshness::Stale;

use crate::daemon::node_cgroup::NodeCgroup;
use crate::daemon::node_meters::NodeMeters;
use crate::daemon::pod_meters::PodMeters;
use crate::daemon::reclaim_reader::ReclaimReader;
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupMounts, CgroupPath, MemoryLimitFile, PodMemoryFiles};
use crate::host::clock::now_ns;
use crate::host::file::FileError;
use crate::host::meminfo::{self, MeminfoFile};
use crate::host::swap::SwapFiles;
use crate::kernel::decode::NodeCounters;
use crate::pods::memory_reader::{MemoryReader, StatThread};
use crate::pods::registry::Pods;
use crate::pods::uncharged::UnchargedReader;
use crate::record::timeline::Hops;

/// So few pods are read at once where `/proc/meminfo` has to be read too: to read that twice costs more than they do.
const FEW_PODS: usize = 8;
/// Leaders that are read one by one. To find each takes a look at what is known of all pods; from this number on it is
/// less work to read them all.
const LEADERS_MAX: usize = 4;

/// Whether a sample for this leaves out what is slow to read: the answer cannot wait.
pub(super) const fn skips_slow_reads(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::ChargeThreshold { .. } | Cause::DirectReclaim { .. }
    )
}

/// The files that every sample reads.
#[derive(Debug)]
pub struct Sampler {
    meminfo: MeminfoFile,
    /// What it said last.
    known: Option<meminfo::NodeMemory>,
    /// Where the node is a container.
    node_cgroup: Option<NodeCgroup>,
    reclaim: ReclaimReader,
    /// `None`: what pods are not charged for is not seen.
    uncharged: Option<UnchargedReader>,
    swap: SwapFiles,
    kubepods: MemoryReader,
    /// Its newest full reading.
    kubepods_memory: CgroupMemory,
    /// What the kubelet limits it to, and what this node's own configuration leaves to pods. The lesser one counts.
    kubelets_limit: Option<(MemoryLimitFile, u64)>,
    /// What thresholds need beside memory.
    node_meters: NodeMeters,
    /// What some thresholds need of pods beside memory.
    meters: Option<PodMeters>,
    /// Whether a threshold is on what pods use together: then it is read before the question which pods are wanted.
    kubepods_first: bool,
}

impl Sampler {
    /// Opens the node's files. `kubepods_limit_bytes` is what was written to the kubepods cgroup's limit, or would be.
    ///
    /// # Errors
    /// When one of them cannot be opened: without them nothing can be decided.
    pub fn open(
        host: &HostRoot,
        mounts: &CgroupMounts,
        kubepods: &CgroupPath,
        kubepods_limit_bytes: u64,
    ) -> Result<Self, CgroupError> {
        let node_cgroup = NodeCgroup::open(mounts)?;
        Ok(Self {
            meminfo: MeminfoFile::open(host)?,
            known: None,
            reclaim: ReclaimReader::open(host, node_cgroup.is_some()),
            node_cgroup,
            uncharged: None,
            swap: SwapFiles::open(host, mounts, kubepods),
            kubepods: MemoryReader::new(PodMemoryFiles::open(mounts, kubepods)?),
            kubepods_memory: CgroupMemory {
                limit_bytes: Some(kubepods_limit_bytes),
                ..CgroupMemory::default()
            },
            kubelets_limit: None,
            node_meters: NodeMeters::default(),
            meters: None,
            kubepods_first: true,
        })
    }

    /// Beside a kubelet, which limits its pods to what it has not reserved, and may do so anew at any time: its limit
    /// is read with each sample that is not urgent.
    ///
    /// # Errors
    /// When the file of the limit cannot be opened.
    pub fn heed_kubelets_limit(
        &mut self,
        mounts: &CgroupMounts,
        kubepods: &CgroupPath,
    ) -> Result<(), CgroupError> {
        let configured_bytes = self.kubepods_memory.limit_bytes.unwrap_or(u64::MAX);
        let file = MemoryLimitFile::open(mounts, kubepods)?;
        self.kubelets_limit = Some((file, configured_bytes));
        Ok(self.read_kubelets_limit()?)
    }

    fn read_kubelets_limit(&mut self) -> Result<(), FileError> {
        if let Some((file, configured_bytes)) = &self.kubelets_limit {
            let limit = file.read_bytes()?.unwrap_or(u64::MAX);
            self.kubepods_memory.limit_bytes = Some(limit.min(*configured_bytes));
        }
        Ok(())
    }

    /// Also reads what `node_meters` has open, into each sample that is not urgent.
    pub fn with_node_meters(mut self, node_meters: NodeMeters) -> Self {
        self.node_meters = node_meters;
        self
    }

    /// Also counts what pods have without being charged for it, as `uncharged` finds it. Not where the node is a
    /// container: its memory does not fall by that, and says nothing of when to look.
    pub fn with_uncharged(mut self, uncharged: Option<UnchargedReader>) -> Self {
        self.uncharged = uncharged.filter(|_| self.node_cgroup.is_none());
        self
    }

    /// For these thresholds.
    pub fn with_thresholds(mut self, thresholds: &[Threshold]) -> Self {
        let is_of_kubepods =
            |threshold: &Threshold| threshold.signal == Signal::AllocatableMemoryAvailable;
        self.kubepods_first = thresholds.iter().any(is_of_kubepods);
        self
    }

    /// Also reads what `meters` measures, into samples that are not urgent.
    pub fn with_meters(mut self, meters: PodMeters) -> Self {
        self.meters = Some(meters);
        self
    }

    /// Takes a sample: the node first, and pods only if `wanted` says, from what the node shows, that a decision may
    /// depend on them. The leaders are not read here but one by one, by [`Sampler::freshen`].
    ///
    /// Where all pods are read they are read before the node whose figures count, so that those are never older than a
    /// victim's. With `counted`, which a record of the crossing has brought along, nothing of the node is read where it
    /// has no swap, and of the kubepods cgroup what is asked for.
    ///
    /// # Errors
    /// When the node's own file cannot be read; then there is no sample. A pod or the kubepods cgroup that cannot be
    /// read is passed to `failed` and missing from the sample.
    #[expect(
        clippy::too_many_arguments,
        reason = "all of the sample, what is known of it, and two questions"
    )]
    pub fn take(
        &mut self,
        cause: Cause,
        at_ns: u64,
        charged_bytes: Option<u64>,
        counted: Option<NodeCounters>,
        pods: &mut Pods,
        sample: &mut Sample,
        hops: &mut Hops,
        wanted: impl FnOnce(&Sample) -> PodsRead,
        mut failed: impl FnMut(Option<&PodUid>, &FileError),
    ) -> Result<(), FileError> {
        let urgent = skips_slow_reads(cause);
        sample.cause = cause;
        sample.charged_bytes = charged_bytes;
        sample.processes = None;
        sample.pressure = None;
        sample.numa.clear();
        sample.numa_pods = None;
        sample.loads = None;
        let mut uncharged_is_news = false;
        if !urgent {
            if let Some(uncharged) = &mut self.uncharged {
                // By the sample before.
                uncharged_is_news = uncharged.follow(at_ns, &sample.node, pods);
            }
            self.node_meters
                .observe(at_ns, pods, sample, |uid, error| failed(uid, error));
            if let Some(meters) = &mut self.meters {
                meters.follow(pods, |uid, error| failed(Some(uid), error));
                sample.loads = meters.loads(at_ns, |uid, error| failed(Some(uid), error));
            }
        }
        sample.pods.clear();
        let is_counted = urgent && self.counts(counted).is_some();
        // Bounds of pods that are not read rest on what they are charged for.
        sample.pods_read = match is_counted || (pods.len() > FEW_PODS && !uncharged_is_news) {
            true => PodsRead::None,
            false => PodsRead::All,
        };
        if sample.pods_read == PodsRead::None {
            sample.kubepods = match is_counted && !self.kubepods_first {
                true => None,
                false => self.kubepods(urgent, pods, &mut failed),
            };
            self.read_node(counted, sample, &mut failed)?;
            hops.node_read_ns = Some(now_ns());
            sample.pods_read = wanted(sample);
            if !sample.pods_read.is_all() {
                return Ok(());
            }
        }
        pods.read(&mut sample.pods, at_ns, urgent, |uid, error| {
            failed(Some(uid), error)
        });
        hops.pods_read_ns = Some(now_ns());
        sample.kubepods = self.kubepods(urgent, pods, &mut failed);
        self.read_node(counted, sample, failed)?;
        hops.node_read_ns = Some(now_ns());
        Ok(())
    }

    fn kubepods(
        &mut self,
        urgent: bool,
        pods: &Pods,
        mut failed: impl FnMut(Option<&PodUid>, &FileError),
    ) -> Option<CgroupMemory> {
        let read = self.read_kubepods(urgent, pods.stat_thread());
        read.inspect_err(|error| failed(None, error)).ok()
    }

    /// Reads the node. The kubepods cgroup has been read where there is swap.
    fn read_node(
        &mut self,
        counted: Option<NodeCounters>,
        sample: &mut Sample,
        mut failed: impl FnMut(Option<&PodUid>, &FileError),
    ) -> Result<(), FileError> {
        let node = self.node(counted)?;
        sample.node = NodeMemory {
            capacity_bytes: node.total,
            anon_bytes: node.anon,
            file_bytes: node.cached + node.buffers + node.swap_cached,
            inactive_file_bytes: node.inactive_file,
            active_file_bytes: node.active_file,
            lazily_freed_bytes: node.lazily_freed(),
            free_bytes: node.free,
            kernel_available_bytes: node.available,
            swap_total_bytes: node.swap_total,
            swap_free_bytes: node.swap_free,
            compressed_swap: CompressedSwap::default(),
        };
        if let Some(cgroup) = &self.node_cgroup {
            cgroup.read(&mut sample.node)?;
        }
        self.reclaim.follow(now_ns(), sample);
        if node.swap_total > 0 {
            self.read_swap(sample, |error| failed(None, error));
        }
        Ok(())
    }

    /// When to look again at what reclaim does, if that is open.
    pub fn looks_again_ns(&self) -> Option<u64> {
        self.reclaim.looks_again_ns()
    }

    /// A pod has ended that had `cache_bytes` of page cache.
    pub fn released(&mut self, cache_bytes: u64) {
        self.reclaim.released(cache_bytes);
    }

    /// The node's memory. The text of `/proc/meminfo` takes more time than all else before a decision, so what a record
    /// has brought along does; how much memory there is comes from the last reading, and a node with swap is read.
    fn node(&mut self, counted: Option<NodeCounters>) -> Result<meminfo::NodeMemory, FileError> {
        if let Some((counted, known)) = self.counts(counted) {
            return Ok(meminfo::NodeMemory {
                total: known.total,
                free: counted.free_bytes,
                available: counted.available_bytes,
                anon: counted.anon_bytes,
                // With the other two.
                cached: counted.file_bytes,
                inactive_file: counted.inactive_file_bytes,
                active_file: counted.active_file_bytes,
                shmem: counted.shmem_bytes,
                ..meminfo::NodeMemory::default()
            });
        }
        let read = self.meminfo.read_or_reopen()?;
        self.known = Some(read);
        Ok(read)
    }

    /// What a record has brought along, and the last reading, if they do for the node: they are the machine's.
    fn counts(&self, counted: Option<NodeCounters>) -> Option<(NodeCounters, meminfo::NodeMemory)> {
        let known = self.known.filter(|known| known.swap_total == 0);
        counted.zip(known.filter(|_| self.node_cgroup.is_none()))
    }

    /// What there is to know of swap beside its size. What cannot be read counts as not there: as swap on a disk that
    /// pods do not use.
    fn read_swap(&mut self, sample: &mut Sample, mut failed: impl FnMut(&FileError)) {
        match self.swap.read() {
            Ok(compressed) => sample.node.compressed_swap = compressed,
            Err(error) => failed(&error),
        }
        if let Some(kubepods) = &mut sample.kubepods {
            match self.swap.pods_bytes() {
                Ok(bytes) => kubepods.swap_bytes = bytes,
                Err(error) => failed(&error),
            }
        }
    }

    /// Whether the node's memory could not be read so often that it will not be.
    pub fn has_lost_node(&self) -> bool {
        self.meminfo.is_lost()
    }

    /// Pods may swap so, by the limits in their cgroups.
    pub fn set_pod_swap(&mut self, pod_swap: PodSwap) {
        self.reclaim.set_pod_swap(pod_swap);
    }

    /// Whether the kernel limits what pods swap.
    pub fn limits_swap_of_pods(&self) -> bool {
        self.swap.counts_pods()
    }

    /// Brings one figure of a sample up to date.
    ///
    /// # Errors
    /// When it cannot be read; the sample keeps the older one. That of a pod then counts as recent, so that it is not
    /// asked for again.
    pub fn freshen(
        &mut self,
        stale: Stale,
        now_ns: u64,
        pods: &mut Pods,
        sample: &mut Sample,
    ) -> Result<(), FileError> {
        match stale {
            Stale::Unread(uid) => self.read_leader(&uid, now_ns, pods, sample)?,
            Stale::Kubepods => {
                sample.kubepods = Some(self.read_kubepods(false, pods.stat_thread())?);
            }
            Stale::NumaPods(node) => {
                let mut first = Ok(());
                sample.numa_pods = self.meters.as_ref().map(|meters| {
                    meters.on_node(node, now_ns, |_, error| {
                        if first.is_ok() {
                            first = Err(error.clone());
                        }
                    })
                });
                // Pods that could not be read are missing; the rest is there.
                first?;
            }
            Stale::Pod(index) => {
                if let Some(memory) = sample.pods.get_mut(index) {
                    let read = pods.freshen(memory, now_ns);
                    memory.usage_at_stat_bytes = memory.usage_bytes;
                    memory.stat_age_ms = 0;
                    read?;
                }
            }
        }
        Ok(())
    }

    /// Reads a pod into a sample of leaders: all pods instead where its cgroup is gone, which only a sample of all can
    /// show, or where many are asked for.
    fn read_leader(
        &mut self,
        uid: &PodUid,
        now_ns: u64,
        pods: &mut Pods,
        sample: &mut Sample,
    ) -> Result<(), FileError> {
        let mut first = Ok(());
        let mut failed = |error: &FileError| {
            if first.is_ok() {
                first = Err(error.clone());
            }
        };
        let is_leader = sample.pods.len() < LEADERS_MAX
            && pods.read_one(uid, &mut sample.pods, now_ns, &mut failed);
        if !is_leader {
            sample.pods_read = PodsRead::All;
            pods.read(&mut sample.pods, now_ns, true, |_, error| failed(error));
            sample.kubepods = self.kubepods(true, pods, |_, error| failed(error));
            self.read_node(None, sample, |_, error| failed(error))?;
        } else if sample.pods.len() > 1 {
            // After the pods: what is left of it is the most that the others have.
            let swap_bytes = sample.kubepods.map(|kubepods| kubepods.swap_bytes);
            sample.kubepods = self.kubepods(true, pods, |_, error| failed(error));
            if let (Some(kubepods), Some(swap_bytes)) = (&mut sample.kubepods, swap_bytes) {
                kubepods.swap_bytes = swap_bytes;
            }
        }
        first
    }

    /// Where its `memory.stat` is slow to read, all that its usage has grown by since the newest reading counts, and
    /// what it has fallen by does not: after an eviction that is the victim's memory.
    fn read_kubepods(
        &mut self,
        urgent: bool,
        thread: Option<&StatThread>,
    ) -> Result<CgroupMemory, FileError> {
        if !urgent {
            self.read_kubelets_limit()?;
        }
        let usage_bytes = self.kubepods.read_usage_bytes()?;
        self.kubepods_memory.usage_bytes = usage_bytes;
        if !urgent {
            self.kubepods.read(usage_bytes, now_ns(), thread)?;
            // Of any age: without it all page cache of the pods would count, and pods go for it.
            let newest = self.kubepods.newest();
            let cache = newest.map(|newest| newest.cache).unwrap_or_default();
            let known = &mut self.kubepods_memory;
            known.inactive_file_bytes = cache.inactive_file_bytes;
            known.active_file_bytes = cache.active_file_bytes;
            known.lazily_freed_bytes = cache.lazily_freed_bytes;
            known.usage_at_stat_bytes = usage_bytes;
        }
        Ok(self.kubepods_memory)
    }
}
