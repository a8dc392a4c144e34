//! The pods of this node: which are wanted, which have a cgroup, and the files that are open for each.
//!
//! Problem: between a record and a kill nothing may be opened or allocated. Approach: everything is opened when a pod's
//! cgroup appears ([`Pods::refresh`], off the hot path) and only read or written later ([`Pods::read`],
//! [`Pods::terminate`], [`Pods::kill`]). What pods use is in [`memory`].

mod memory;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_core::kube::cgroup_config::{
    NodeCapacity, QosSettings, container_config, huge_page_request_bytes, pod_config,
};
use plimsoll_core::kube::pod::{Pod, PressureSignal};
use plimsoll_core::kube::pod_uid::PodUid;

use crate::host::HostRoot;
use crate::host::cgroup::{
    CgroupError, CgroupMounts, CgroupPath, Controller, PodMemoryFiles, Version,
};
use crate::host::cgroup_paths::hierarchy_number;
use crate::host::clock::now_ns;
use crate::host::file::{FileError, read_text};
use crate::host::shown::Show as _;
use crate::host::worker::NotTaken;
use crate::pods;
use crate::pods::cgroup::ApplyError;
use crate::pods::cgroup_worker::CgroupWorker;
use crate::pods::directories::PodDirs;
use crate::pods::kill::{Ages, KeptCgroup, KillThread, PodKill, SweepState, WriteTimes};
use crate::pods::memory_reader::{MemoryReader, StatThread};
use crate::pods::names::{KubeletTree, PodCgroup, container_name};
use crate::pods::remedy_files::RemedyFiles;
use crate::pods::sandbox::sandbox;

/// A wanted pod.
#[derive(Debug)]
struct Entry {
    /// Its manifest.
    pod: Arc<Pod>,
    /// Where its cgroup is, or will be.
    path: CgroupPath,
    /// What it requests of huge pages, bytes: so much of its usage they are at most.
    huge_page_bytes_max: u64,
    /// Its manifest is gone; it stays until it has left.
    removed: bool,
    open: Option<Open>,
    /// Whether the cgroups beyond the bound are known to be empty, for the pod's cgroup with this id. Stays while
    /// nothing is open.
    sweep: Option<(u64, Arc<SweepState>)>,
}

/// What is open for a pod with a cgroup.
#[derive(Debug)]
struct Open {
    memory: MemoryReader,
    kill: PodKill,
    /// The cgroup's id in the hierarchy that accounts memory.
    cgroup_id: u64,
    populated: bool,
    /// That the pod has more cgroups than are kept has been said.
    said_more_cgroups: bool,
    /// The newest usage; `None`: it was never read.
    usage_bytes: Option<u64>,
    /// What the kernel holds for it beside that, as far as it is known.
    uncharged_bytes: AtomicU64,
    /// When it was killed last: what a look finds that began before goes with its processes.
    killed_ns: AtomicU64,
    remedy_files: Option<Arc<RemedyFiles>>,
}

/// A pod got its first process, or lost its last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Populated {
    /// Which pod.
    pub uid: PodUid,
    /// Whether it has processes now.
    pub running: bool,
}

/// All wanted pods.
#[derive(Debug)]
pub struct Pods {
    host: HostRoot,
    mounts: CgroupMounts,
    cgroup_root: CgroupPath,
    /// Where a kubelet has its pods. `None`: no kubelet runs them.
    kubelet: Option<KubeletTree>,
    settings: QosSettings,
    capacity: NodeCapacity,
    entries: BTreeMap<PodUid, Entry>,
    /// Whose directory each is: the entries' paths, with a slash before.
    by_path: BTreeMap<Box<[u8]>, PodUid>,
    /// Whose cgroup each is, in the hierarchy that accounts memory: of all that is open.
    by_cgroup_id: BTreeMap<u64, PodUid>,
    /// How records name that hierarchy.
    memory_hierarchy: u32,
    generation: u64,
    cgroups_generation: u64,
    /// Whether the files of the remedies before an eviction are opened too.
    with_remedy_files: bool,
    /// `None`: cgroups of pods that have left stay.
    worker: Option<CgroupWorker>,
    /// `None`: the caller of a kill waits for it.
    kill_thread: Option<KillThread>,
    /// `None`: who refreshes a pod reads how old its processes are.
    ages: Option<Arc<Ages>>,
    /// `None`: the caller reads every `memory.stat`.
    stat_thread: Option<StatThread>,
}

impl Pods {
    /// None yet.
    pub fn new(host: HostRoot, mounts: CgroupMounts, cgroup_root: CgroupPath) -> Self {
        let memory_hierarchy = read_text(host.procfs("self/cgroup"))
            .map_or(0, |text| hierarchy_number(&text, Controller::Memory));
        Self {
            host,
            mounts,
            cgroup_root,
            kubelet: None,
            settings: QosSettings::default(),
            capacity: NodeCapacity::default(),
            entries: BTreeMap::new(),
            by_path: BTreeMap::new(),
            by_cgroup_id: BTreeMap::new(),
            memory_hierarchy,
            generation: 0,
            cgroups_generation: 0,
            with_remedy_files: false,
            worker: None,
            kill_thread: None,
            ages: None,
            stat_thread: None,
        }
    }

    /// With a thread that removes the cgroups of pods that have left, and ends processes in those that are not kept.
    #[must_use]
    pub fn with_worker(self, worker: Option<CgroupWorker>) -> Self {
        Self { worker, ..self }
    }

    /// With a thread that writes `cgroup.kill`.
    #[must_use]
    pub fn with_kill_thread(self, kill_thread: Option<KillThread>) -> Self {
        Self {
            kill_thread,
            ..self
        }
    }

    /// With a thread that reads how old processes are.
    #[must_use]
    pub fn with_ages(self, ages: Option<Ages>) -> Self {
        let ages = ages.map(Arc::new);
        Self { ages, ..self }
    }

    /// With a thread that reads the `memory.stat` that are slow to read.
    #[must_use]
    pub fn with_stat_thread(self, stat_thread: Option<StatThread>) -> Self {
        Self {
            stat_thread,
            ..self
        }
    }

    /// That thread.
    pub fn stat_thread(&self) -> Option<&StatThread> {
        self.stat_thread.as_ref()
    }

    /// How long the writes of the thread for kills took so far.
    pub fn kill_writes(&self) -> WriteTimes {
        let thread = self.kill_thread.as_ref();
        thread.map_or_else(WriteTimes::default, KillThread::times)
    }

    /// The thread of [`Pods::with_worker`].
    pub fn worker(&mut self) -> Option<&mut CgroupWorker> {
        self.worker.as_mut()
    }

    /// Removals, kills and readings of memory that found no room in the queues of their threads, so far.
    pub fn work_refused(&self) -> u64 {
        let kills = self.kill_thread.as_ref().map_or(0, KillThread::refused);
        let reads = self.stat_thread.as_ref().map_or(0, StatThread::refused);
        self.worker.as_ref().map_or(0, CgroupWorker::dropped) + kills + reads
    }

    /// Of pods that a kubelet runs, if one does: none of their limits is written, and none of their cgroups removed.
    #[must_use]
    pub fn beside_kubelet(self, kubelet: Option<KubeletTree>) -> Self {
        Self { kubelet, ..self }
    }

    /// Where that kubelet has its pods.
    pub fn kubelet_tree(&self) -> Option<&KubeletTree> {
        self.kubelet.as_ref()
    }

    /// The pods of that kubelet which have a cgroup, known or not. Not for the hot path.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn in_kubelet_tree(&self) -> Result<Vec<PodCgroup>, CgroupError> {
        let tree = self.kubelet.iter();
        tree.map(|tree| tree.pods(&self.mounts))
            .next()
            .unwrap_or(Ok(Vec::new()))
    }

    /// With these settings for the limits of pods, instead of the kubelet's defaults on a machine of which nothing is
    /// known.
    #[must_use]
    pub fn with_settings(self, settings: QosSettings, capacity: NodeCapacity) -> Self {
        Self {
            settings,
            capacity,
            ..self
        }
    }

    /// All that are wanted or have not left yet, by ascending UID.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.entries.values().map(|entry| &entry.pod)
    }

    /// Another number whenever a pod came, went or changed.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Another number whenever [`Pods::cgroups`] gives others: a pod came or went, or a cgroup of one did.
    pub fn cgroups_generation(&self) -> u64 {
        self.generation + self.cgroups_generation
    }

    /// Directories of the pods' files on disk. A pod whose containers cannot name cgroups has nothing: it never ran.
    /// Unknown for a shortened pod.
    pub fn directories(&self) -> Vec<PodDirs> {
        self.unshortened()
            .filter_map(|(_, entry)| PodDirs::of(&entry.pod, &entry.path).ok())
            .collect()
    }

    /// The pods of which [`Self::directories`] are known.
    pub fn with_directories(&self) -> impl Iterator<Item = &PodUid> {
        self.unshortened().map(|(uid, _)| uid)
    }

    fn unshortened(&self) -> impl Iterator<Item = (&PodUid, &Entry)> {
        let entries = self.entries.iter();
        entries.filter(|(_, entry)| !entry.pod.is_shortened())
    }

    /// Whether the files of the remedies before an eviction are opened too.
    #[must_use]
    pub fn with_remedy_files(self, with_remedy_files: bool) -> Self {
        Self {
            with_remedy_files,
            ..self
        }
    }

    /// How many are wanted.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether a pod is only there because it has not left yet.
    pub fn is_removed(&self, uid: &PodUid) -> bool {
        self.entries.get(uid).is_some_and(|entry| entry.removed)
    }

    /// Whether none is wanted.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a pod is wanted, or has not left yet.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.entries.contains_key(uid)
    }

    /// `namespace/name` of a pod, its identity if it is not known any more.
    pub fn name(&self, uid: &PodUid) -> String {
        match self.entries.get(uid) {
            Some(Entry { pod, .. }) => pod.full_name(),
            None => uid.to_string(),
        }
    }

    /// `namespace/name (uid)` of a pod, for a sentence that people read; the identity alone if it is not known any
    /// more.
    pub fn name_and_uid(&self, uid: &PodUid) -> String {
        match self.entries.get(uid) {
            Some(Entry { pod, .. }) => name_and_uid(pod),
            None => uid.as_str().shown().to_string(),
        }
    }

    /// Adds a pod, or replaces its specification.
    ///
    /// # Errors
    /// When its identity cannot name a cgroup.
    pub fn apply(&mut self, pod: Arc<Pod>) -> Result<(), CgroupError> {
        let uid = pod.uid();
        let path = match &self.kubelet {
            Some(tree) => tree.pod(pod.qos_class(), &uid)?,
            None => pods::cgroup::pod_path(&self.cgroup_root, &pod)?,
        };
        self.generation += 1;
        let huge_page_bytes_max = huge_page_request_bytes(&pod);
        match self.entries.get_mut(&uid) {
            // A change of QoS class moves the cgroup; the kubelet does not allow that while the pod lives.
            Some(entry) if entry.open.is_some() => {
                entry.pod = pod;
                entry.huge_page_bytes_max = huge_page_bytes_max;
                entry.removed = false;
            }
            _ => {
                self.forget(&uid);
                self.by_path.insert(bytes_of(&path), uid.clone());
                self.entries.insert(
                    uid,
                    Entry {
                        pod,
                        path,
                        huge_page_bytes_max,
                        removed: false,
                        open: None,
                        sweep: None,
                    },
                );
            }
        }
        Ok(())
    }

    /// Writes the limits of a pod that is there already, after its specification changed. Not for the hot path.
    ///
    /// # Errors
    /// The first limit that cannot be written; those before it are in force. Cgroups that are not there yet are no
    /// error: `plimsoll exec` writes their limits when it makes them.
    pub fn apply_limits(&self, uid: &PodUid) -> Result<(), ApplyError> {
        if self.kubelet.is_some() {
            return Ok(()); // they are the kubelet's
        }
        let vanished = |error: &ApplyError| error.is_vanished();
        if let Some(entry) = self.entries.get(uid).filter(|entry| entry.open.is_some()) {
            let pod = &entry.pod;
            let config = pod_config(pod, &self.settings, &self.capacity);
            match pods::cgroup::apply(&self.mounts, &entry.path, &config) {
                Err(error) if !vanished(&error) => return Err(error),
                _ => {}
            }
            for container in pod.all_containers() {
                let path = pods::cgroup::container_path(&entry.path, &container.name)?;
                let config = container_config(pod, container, &self.settings, &self.capacity);
                match pods::cgroup::apply(&self.mounts, &path, &config) {
                    Err(error) if !vanished(&error) => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Marks a pod as no longer wanted. It is forgotten when it has no processes.
    pub fn remove(&mut self, uid: &PodUid) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.removed = true;
            if entry.open.is_none() {
                self.forget(uid);
                self.generation += 1;
            }
        }
    }

    /// To be called when a pod has left or was given up. The cgroups of an empty one are removed by
    /// [`Pods::with_worker`]'s thread, and it is forgotten if its manifest is gone. One that still has processes keeps
    /// what is open: it has not ceased to run, so that it does not seem to begin to. Not for the hot path.
    ///
    /// # Errors
    /// When the cgroups are to be removed and cannot be.
    pub fn left(&mut self, uid: &PodUid) -> Result<(), NotTaken> {
        let Some(entry) = self.entries.get_mut(uid) else {
            return Ok(());
        };
        if self.kubelet.is_some() {
            // Its kubelet removes its cgroup.
            if entry.removed && entry.open.is_none() {
                self.forget(uid);
                self.generation += 1;
            }
            return Ok(());
        }
        if entry.open.as_ref().is_some_and(|open| open.populated) {
            return Ok(());
        }
        let ids = entry.cgroup_ids();
        entry.open = None;
        let dirs = pods::cgroup::dirs(&self.mounts, &entry.path);
        let is_removed = entry.removed;
        self.set_owner(uid, &ids, &[]);
        if is_removed {
            self.forget(uid);
            self.generation += 1;
        }
        match &self.worker {
            Some(worker) => worker.remove(uid, dirs),
            None => Ok(()),
        }
    }

    /// Takes away a pod that has nothing open.
    fn forget(&mut self, uid: &PodUid) {
        if let Some(entry) = self.entries.remove(uid) {
            self.by_path.remove(&bytes_of(&entry.path));
        }
    }

    /// A pod has these cgroups in place of those before.
    fn set_owner(&mut self, uid: &PodUid, before: &[u64], now: &[u64]) {
        if before == now {
            return;
        }
        self.cgroups_generation += 1;
        for id in before {
            // It may be another pod's by now.
            if self.by_cgroup_id.get(id) == Some(uid) {
                self.by_cgroup_id.remove(id);
            }
        }
        let ids = now.iter().map(|id| (*id, uid.clone()));
        self.by_cgroup_id.extend(ids);
    }

    /// Looks at one pod's cgroup: opens what has appeared, closes what is gone. Not for the hot path.
    ///
    /// Returns whether the pod has begun or ceased to run. A pod whose cgroup has been replaced by another of the same
    /// name has ceased to run, and the new one is not looked at yet: after a change, ask again.
    ///
    /// # Errors
    /// When a control file that should be readable is not; the pod is then looked at again next time.
    pub fn refresh(&mut self, uid: &PodUid) -> Result<Option<Populated>, CgroupError> {
        let Some(entry) = self.entries.get_mut(uid) else {
            return Ok(None);
        };
        let was = entry.open.as_ref().is_some_and(|open| open.populated);
        let before = entry.cgroup_ids();
        let wants = Wants {
            remedy_files: self.with_remedy_files,
            containers: self.kubelet.is_some(),
        };
        let found = open_or_refresh(&self.host, &self.mounts, entry, wants, self.ages.as_ref());
        if let Some(open) = &mut entry.open {
            open.memory.set_large(open.kill.has_more_cgroups());
        }
        if found.as_ref().is_err_and(CgroupError::is_vanished) {
            entry.open = None;
        }
        let ids = entry.cgroup_ids();
        self.set_owner(uid, &before, &ids);
        let now = match found {
            Err(error) if error.is_vanished() => false,
            found => found?,
        };
        Ok((was != now).then(|| Populated {
            uid: uid.clone(),
            running: now,
        }))
    }

    /// Whether a pod has come to have more cgroups than are kept: once, for as long as it has its cgroup.
    pub fn note_more_cgroups(&mut self, uid: &PodUid) -> bool {
        let open = self
            .entries
            .get_mut(uid)
            .and_then(|entry| entry.open.as_mut());
        open.is_some_and(|open| {
            open.kill.has_more_cgroups() && !std::mem::replace(&mut open.said_more_cgroups, true)
        })
    }

    /// Whether another look at once finds more of a pod: the first process of a container among many.
    pub fn is_searched(&self, uid: &PodUid) -> bool {
        self.open(uid).is_some_and(|open| open.kill.is_searched())
    }

    /// Whether the thread looks for such a process of a pod, and tells when it has looked.
    pub fn is_searched_by_thread(&self, uid: &PodUid) -> bool {
        self.open(uid)
            .is_some_and(|open| open.kill.is_searched_by_thread())
    }

    /// Whether a pod's manifest is gone and it runs no more: it only waits to be forgotten.
    pub fn is_done(&self, uid: &PodUid) -> bool {
        self.entries.get(uid).is_some_and(|entry| {
            entry.removed && entry.open.as_ref().is_none_or(|open| !open.populated)
        })
    }

    /// Those that have a cgroup, as of the last refresh, by ascending UID.
    pub fn uids_with_cgroup(&self) -> impl Iterator<Item = &PodUid> {
        let open = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.open.is_some());
        open.map(|(uid, _)| uid)
    }

    /// Where a pod's cgroup is, and its id in the hierarchy that accounts memory; `None` if it has none.
    pub fn cgroup(&self, uid: &PodUid) -> Option<(&CgroupPath, u64)> {
        let entry = self.entries.get(uid)?;
        Some((&entry.path, entry.open.as_ref()?.cgroup_id))
    }

    /// Every wanted pod.
    pub fn uids(&self) -> Vec<PodUid> {
        self.entries.keys().cloned().collect()
    }

    /// At most `count` of them: those that come after `uid`, and then from the first again.
    pub fn uids_after(&self, uid: Option<&PodUid>, count: usize) -> Vec<PodUid> {
        let after = uid.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.entries.range((after, Bound::Unbounded));
        let round = rest.chain(&self.entries).map(|(uid, _)| uid.clone());
        round.take(count.min(self.entries.len())).collect()
    }

    /// The pod that a cgroup belongs to, by the cgroup's id in the hierarchy that accounts memory: its own or one below
    /// it, as of the last refresh.
    pub fn by_cgroup_id(&self, cgroup_id: u64) -> Option<&PodUid> {
        self.by_cgroup_id.get(&cgroup_id)
    }

    /// Whether that is the hierarchy with this number, as records have it: 0 is cgroup v2.
    pub fn accounts_memory_in(&self, hierarchy_id: u32) -> bool {
        hierarchy_id == self.memory_hierarchy
    }

    /// The wanted pod whose cgroup a path names, or one below it, in any hierarchy and whether or not it is there. From
    /// the hierarchy's root, with a slash before. Allocates nothing.
    pub fn by_path(&self, mut path: &[u8]) -> Option<&PodUid> {
        while !path.is_empty() {
            if let Some(uid) = self.by_path.get(path) {
                return Some(uid);
            }
            let cut = path.iter().rposition(|byte| *byte == b'/')?;
            path = &path[..cut];
        }
        None
    }

    /// Whether the path of a wanted pod's cgroup begins like this. Allocates nothing.
    pub fn has_path_from(&self, beginning: &[u8]) -> bool {
        let from = (Bound::Included(beginning), Bound::Unbounded);
        let first = self.by_path.range::<[u8], _>(from).next();
        first.is_some_and(|(path, _)| path.starts_with(beginning))
    }

    /// Every pod with its cgroups in the hierarchy that accounts memory, as of the last refresh: the pod's own first,
    /// then those below it. None for a pod that has no cgroup.
    pub fn cgroups(&self) -> impl Iterator<Item = (&PodUid, impl Iterator<Item = KeptCgroup<'_>>)> {
        self.entries.iter().map(|(uid, entry)| {
            let open = entry.open.iter();
            (uid, open.flat_map(|open| open.kill.cgroups()))
        })
    }

    /// A wanted pod's specification.
    pub fn pod(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        self.entries.get(uid).map(|entry| &entry.pod)
    }

    /// One pod's part of [`Pods::cgroups`].
    pub fn cgroups_of(&self, uid: &PodUid) -> impl Iterator<Item = KeptCgroup<'_>> {
        self.open(uid)
            .into_iter()
            .flat_map(|open| open.kill.cgroups())
    }

    /// Sends SIGTERM to a pod's containers. Allocates nothing.
    ///
    /// # Errors
    /// When `cgroup.procs` cannot be read. A pod that is gone already is no error.
    pub fn terminate(&self, uid: &PodUid) -> Result<u32, FileError> {
        match self.open(uid) {
            Some(open) => open.kill.sigterm(),
            None => Ok(0),
        }
    }

    /// Sends the signal that a pod has asked for to the first process of each of its containers. Allocates nothing.
    ///
    /// # Errors
    /// When `cgroup.procs` cannot be read. A pod that is gone already is no error.
    pub fn notify(&self, uid: &PodUid, signal: PressureSignal) -> Result<u32, FileError> {
        match self.open(uid) {
            Some(open) => open.kill.notify(signal),
            None => Ok(0),
        }
    }

    /// The files of the remedies before an eviction; `None` for a pod without a cgroup.
    pub fn remedy_files(&self, uid: &PodUid) -> Option<&Arc<RemedyFiles>> {
        self.open(uid)?.remedy_files.as_ref()
    }

    /// Kills everything in a pod's cgroup. Allocates nothing, and with [`Pods::with_kill_thread`] waits for no lock of
    /// the kernel that a pod can hold.
    ///
    /// # Errors
    /// When neither `cgroup.kill` nor `cgroup.procs` could be used. A pod that is gone already is no error.
    pub fn kill(&self, uid: &PodUid) -> Result<(), FileError> {
        let Some(open) = self.open(uid) else {
            return Ok(());
        };
        open.killed_ns.store(now_ns(), Ordering::Relaxed);
        open.uncharged_bytes.store(0, Ordering::Relaxed);
        let killed = match &self.kill_thread {
            Some(thread) => open.kill.kill_by(thread),
            None => open.kill.kill(),
        };
        // What goes wrong with signals here may go right there.
        let leaves_some = killed.as_ref().map_or(true, |killed| killed.leaves_some);
        if let Some(worker) = self.worker.as_ref().filter(|_| leaves_some) {
            worker.end_unreached(uid, open.kill.sweep());
        }
        killed.map(|_| ())
    }

    /// Whether the first process of some container of the pod, as of the last refresh, has this `oom_score_adj`. Not
    /// for the hot path.
    pub fn has_oom_score_adj(&self, uid: &PodUid, adj: i32) -> bool {
        let Some(open) = self.open(uid) else {
            return false;
        };
        open.kill.first_processes().any(|pid| {
            let file = self
                .host
                .procfs(format!("{}/oom_score_adj", pid.as_raw_nonzero()));
            // One that has ended has none.
            read_text(file).is_ok_and(|text| text.trim_end().parse() == Ok(adj))
        })
    }

    /// Sends SIGKILL to each container's first process, if it is known: what comes before [`Pods::hold`] and
    /// [`Pods::kill`], because it waits for no lock of the kernel. Allocates nothing.
    pub fn kill_first_processes(&self, uid: &PodUid) {
        if let Some(open) = self.open(uid) {
            // What goes wrong here goes wrong again in the kill, where it counts.
            open.kill.kill_first_processes().ok();
        }
    }

    /// Keeps what a pod's containers use now, for [`Pods::container_usages`]. Allocates nothing.
    pub fn note_usage(&self, uid: &PodUid) {
        if let Some(open) = self.open(uid) {
            open.kill.note_usage();
        }
    }

    /// Lets nothing new start in a pod's cgroup. Returns whether it is held; with [`Pods::with_kill_thread`] it is as
    /// soon as the kernel takes it, and nothing waits for that. Allocates nothing.
    ///
    /// # Errors
    /// As for [`PodKill::hold`]. A pod that is gone already is no error.
    pub fn hold(&self, uid: &PodUid) -> Result<bool, FileError> {
        let Some(open) = self.open(uid) else {
            return Ok(false);
        };
        match open.kill.hold(self.kill_thread.as_ref()) {
            Err(error) if error.is_vanished() => Ok(false),
            held => held,
        }
    }

    /// Whether no hold is on its way to the kernel: before that none can be lifted.
    pub fn are_holds_written(&self) -> bool {
        self.kill_thread.as_ref().is_none_or(KillThread::is_idle)
    }

    /// The file by which a pod can be held, and the id of its cgroup. `None`: it has no cgroup, or v1, or no kubelet
    /// runs it.
    pub fn hold_file(&self, uid: &PodUid) -> Option<(std::path::PathBuf, u64)> {
        let open = self.open(uid)?;
        Some((open.kill.hold_path()?, open.cgroup_id))
    }

    /// Whether a pod may be held from now on: see [`PodKill::arm_hold`].
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn arm_hold(&mut self, uid: &PodUid, is_armed: bool) -> Result<(), FileError> {
        let entry = self.entries.get_mut(uid);
        match entry.and_then(|entry| entry.open.as_mut()) {
            Some(open) if is_armed => open.kill.arm_hold(),
            Some(open) => {
                open.kill.disarm_hold();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Whether it is known which of a pod's cgroups is the sandbox's, so that only its containers are killed.
    pub fn knows_sandbox(&self, uid: &PodUid) -> bool {
        self.open(uid)
            .is_some_and(|open| open.kill.spared().is_some())
    }

    /// What each container of a pod used at [`Pods::note_usage`], by its name in the pod.
    pub fn container_usages(&self, uid: &PodUid) -> Vec<(&str, u64)> {
        let Some((entry, open)) = self
            .entries
            .get(uid)
            .and_then(|entry| Some((entry, entry.open.as_ref()?)))
        else {
            return Vec::new();
        };
        let named = open.kill.usages().filter_map(|(name, usage_bytes)| {
            let name = container_name(&entry.pod, name.to_str()?)?;
            Some((name, usage_bytes))
        });
        named.collect()
    }

    /// A pod's cgroup, in the hierarchy in which its processes are ended; `None` if it is not there.
    pub fn directory(&self, uid: &PodUid) -> Option<&Arc<Path>> {
        self.open(uid).map(|open| open.kill.directory())
    }

    /// Whether a pod that was running has lost its last process since. Allocates nothing.
    ///
    /// # Errors
    /// When `cgroup.procs` cannot be read.
    pub fn note_emptied(&mut self, uid: &PodUid) -> Result<bool, FileError> {
        let Some(open) = self
            .entries
            .get_mut(uid)
            .and_then(|entry| entry.open.as_mut())
        else {
            return Ok(false);
        };
        if !open.populated || open.kill.is_populated()? {
            return Ok(false);
        }
        open.populated = false;
        Ok(true)
    }

    /// [`PodKill::have_first_processes_ended`], of a pod that is open. Allocates nothing.
    pub fn have_first_processes_ended(&self, uid: &PodUid) -> bool {
        self.open(uid)
            .is_some_and(|open| open.kill.have_first_processes_ended())
    }

    fn open(&self, uid: &PodUid) -> Option<&Open> {
        self.entries.get(uid)?.open.as_ref()
    }
}

impl Entry {
    /// In the hierarchy that accounts memory: of what is open.
    fn cgroup_ids(&self) -> Vec<u64> {
        let open = self.open.iter();
        open.flat_map(|open| open.kill.cgroups().map(|cgroup| cgroup.id))
            .collect()
    }
}

/// A path as records have it.
fn bytes_of(path: &CgroupPath) -> Box<[u8]> {
    [b"/", path.as_path().as_os_str().as_bytes()]
        .concat()
        .into()
}

/// What is opened of a pod besides.
#[derive(Debug, Clone, Copy)]
struct Wants {
    remedy_files: bool,
    /// Each container, and which is the sandbox: a kubelet runs the pod.
    containers: bool,
}

/// The sandbox may be known now, or another one. Returns whether the pod has processes besides.
fn spare_sandbox(kill: &mut PodKill, pod: &Pod) -> Result<bool, FileError> {
    let cgroups: Vec<(&str, u64)> = kill
        .container_cgroups()
        .filter_map(|(name, id)| Some((name.to_str()?, id)))
        .collect();
    let known = kill.spared().and_then(|name| name.to_str());
    let found = sandbox(pod, &cgroups, known).map(str::to_owned);
    kill.spare(found.as_deref().map(std::ffi::OsStr::new));
    kill.is_populated()
}

fn open_or_refresh(
    host: &HostRoot,
    mounts: &CgroupMounts,
    entry: &mut Entry,
    wants: Wants,
    ages: Option<&Arc<Ages>>,
) -> Result<bool, CgroupError> {
    let cgroup_id = mounts
        .hierarchy_of(Controller::Memory)?
        .cgroup_id(&entry.path)?;
    match &mut entry.open {
        Some(open) if open.cgroup_id == cgroup_id => {
            open.populated = open.kill.refresh()?;
            if wants.containers {
                open.populated = spare_sandbox(&mut open.kill, &entry.pod)?;
            }
            Ok(open.populated)
        }
        // A new directory of the same name is a new cgroup: what is open belongs to the old one, which is gone with all
        // its processes.
        Some(open) if open.populated => {
            entry.open = None;
            Ok(false)
        }
        stale => {
            let known = entry.sweep.take().filter(|(id, _)| *id == cgroup_id);
            let (_, sweep) = entry
                .sweep
                .insert(known.unwrap_or((cgroup_id, Arc::default())));
            let mut kill = PodKill::open_with(host, mounts, &entry.path, ages.cloned())?
                .with_sweep_state(Arc::clone(sweep));
            if wants.containers {
                kill = kill.beside_kubelet(mounts, &entry.path)?;
                spare_sandbox(&mut kill, &entry.pod)?;
            }
            let open = stale.insert(Open {
                memory: MemoryReader::new(PodMemoryFiles::open(mounts, &entry.path)?),
                populated: kill.is_populated()?,
                kill,
                cgroup_id,
                said_more_cgroups: false,
                usage_bytes: None,
                uncharged_bytes: AtomicU64::new(0),
                killed_ns: AtomicU64::new(0),
                remedy_files: wants
                    .remedy_files
                    .then(|| remedy_files(mounts, &entry.path))
                    .transpose()?
                    .map(Arc::new),
            });
            Ok(open.populated)
        }
    }
}

/// None of them without cgroup v2: v1 has neither.
fn remedy_files(mounts: &CgroupMounts, path: &CgroupPath) -> Result<RemedyFiles, CgroupError> {
    let memory = mounts.hierarchy_of(Controller::Memory)?;
    Ok(match memory.version {
        Version::V1 => RemedyFiles::default(),
        Version::V2 => RemedyFiles::open(&memory.dir(path))?,
    })
}

/// As [`Pods::name_and_uid`], of a pod that is in no list.
pub fn name_and_uid(pod: &Pod) -> String {
    format!(
        "{}/{} ({})",
        pod.namespace().shown(),
        pod.metadata.name.shown(),
        pod.uid().as_str().shown()
    )
}

#[cfg(test)]
mod tests;
