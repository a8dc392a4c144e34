//! What pods use: read from files that are open, without allocating.
//!
//! Usage is read for every pod in every sample that needs all pods, one system call each. `memory.stat`, much dearer,
//! is read again where usage has moved since; at an urgent sample only where the engine asks for it
//! ([`Pods::freshen`]). Where the kernel takes long to produce it, a thread reads it
//! ([`memory_reader`](crate::pods::memory_reader)).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::PodMemory;
use plimsoll_core::model::reading::PodProcesses;
use plimsoll_core::policy::eviction::usage_bounds::{STALE_BYTES, STAT_AGE_MAX_MS};

use super::{Entry, Open, Pods};
use crate::host::file::FileError;
use crate::pods::memory_reader::{Reading, StatThread};

/// Without urgency it is read again after this time, even if usage stood still. A decision that hangs on it has it read
/// anyway ([`plimsoll_core::policy::eviction::freshness`]), and to produce its fifty lines is most of what a pod at
/// rest costs.
const REST_AGE_MAX_MS: u32 = 60_000;

/// How long ago a reading of `memory.stat` was made, milliseconds.
fn age_ms(reading: Option<&Reading>, now_ns: u64) -> u32 {
    let age_ns = reading.map(|reading| now_ns.saturating_sub(reading.at_ns));
    age_ns.map_or(u32::MAX, |ns| {
        u32::try_from(ns / 1_000_000).unwrap_or(u32::MAX)
    })
}

impl Pods {
    /// Reads the memory of every pod with a cgroup into `into`. Allocates nothing if `into` has room for all pods.
    ///
    /// A cgroup that has vanished is left out; any other error is passed to `failed`, and the pod has the figures of
    /// its newest reading: one without any would be the first to go.
    pub fn read(
        &mut self,
        into: &mut Vec<PodMemory>,
        now_ns: u64,
        urgent: bool,
        mut failed: impl FnMut(&PodUid, &FileError),
    ) {
        into.clear();
        let thread = self.stat_thread.as_ref();
        for (uid, entry) in &mut self.entries {
            let failed = |error: &FileError| failed(uid, error);
            into.extend(entry.memory_of(uid, now_ns, urgent, thread, failed));
        }
    }

    /// Reads one pod's memory, and adds it to `into`. Returns whether it has any: a pod without a cgroup has none. As
    /// urgent as [`Pods::read`] can be.
    pub fn read_one(
        &mut self,
        uid: &PodUid,
        into: &mut Vec<PodMemory>,
        now_ns: u64,
        failed: impl FnMut(&FileError),
    ) -> bool {
        let thread = self.stat_thread.as_ref();
        let entry = self.entries.get_mut(uid);
        let memory = entry.and_then(|entry| entry.memory_of(uid, now_ns, true, thread, failed));
        let is_read = memory.is_some();
        into.extend(memory);
        is_read
    }

    /// Brings one pod's place in a sample up to date. Of a pod whose `memory.stat` is slow to read only the page cache
    /// that it has for certain does not count: the rest of its usage does, and nothing more can be had of it for this
    /// sample. Allocates nothing.
    ///
    /// # Errors
    /// When its files cannot be read; the sample keeps the older figures.
    pub fn freshen(&mut self, memory: &mut PodMemory, now_ns: u64) -> Result<(), FileError> {
        let thread = self.stat_thread.as_ref();
        let Some(entry) = self.entries.get_mut(&memory.uid) else {
            return Ok(());
        };
        let Some(open) = &mut entry.open else {
            return Ok(());
        };
        let reader = &mut open.memory;
        memory.usage_bytes = reader.read_usage_bytes()?;
        let read = reader.read(memory.usage_bytes, now_ns, thread);
        // What the thread could not read does not make an old figure do.
        if read.is_ok() || reader.is_slow(thread) {
            let cache = reader.sure_cache(memory.usage_bytes, now_ns, STAT_AGE_MAX_MS);
            memory.inactive_file_bytes = cache.inactive_file_bytes;
            memory.active_file_bytes = cache.active_file_bytes;
            memory.lazily_freed_bytes = cache.lazily_freed_bytes;
            memory.huge_page_bytes = cache.huge_page_bytes.min(entry.huge_page_bytes_max);
            memory.usage_at_stat_bytes = memory.usage_bytes;
            memory.stat_age_ms = 0;
        }
        read
    }

    /// The pods that have processes, and the cgroup of each.
    pub fn running(&self) -> Vec<(PodUid, Arc<Path>)> {
        let open = self
            .entries
            .iter()
            .filter_map(|(uid, entry)| Some((uid, entry.open.as_ref()?)));
        open.filter(|(_, open)| open.populated)
            .map(|(uid, open)| (uid.clone(), Arc::clone(open.kill.directory())))
            .collect()
    }

    /// What the kernel holds for these pods without charging them, by a look that began then; for others nothing.
    /// Whether that is news of some pod. One that was killed since has none: what its processes had goes with them.
    pub fn set_uncharged(&mut self, found: &[(PodUid, u64)], began_ns: u64) -> bool {
        let mut is_news = false;
        for (uid, entry) in &mut self.entries {
            let Some(open) = &mut entry.open else {
                continue;
            };
            let of_pod = found.iter().find(|(of, _)| of == uid);
            let bytes = of_pod
                .filter(|_| *open.killed_ns.get_mut() < began_ns)
                .map_or(0, |(_, bytes)| *bytes);
            is_news |= std::mem::replace(open.uncharged_bytes.get_mut(), bytes) != bytes;
        }
        is_news
    }

    /// Counts the PIDs that every pod with a cgroup takes into `into`, by ascending UID ([`PodKill::count_tasks`]).
    /// Allocates nothing if `into` has room.
    ///
    /// A pod that cannot be counted is passed to `failed` and missing.
    pub fn count_tasks(
        &self,
        into: &mut Vec<PodProcesses>,
        mut failed: impl FnMut(&PodUid, &FileError),
    ) {
        into.clear();
        for (uid, entry) in &self.entries {
            let Some(open) = &entry.open else { continue };
            match open.kill.count_tasks() {
                Ok(tasks) => into.push(PodProcesses {
                    uid: uid.clone(),
                    processes: tasks,
                }),
                Err(error) => failed(uid, &error),
            }
        }
    }
}

impl Entry {
    /// What a sample has of it; `None`: nothing was ever read, or it has no cgroup. Of its huge pages, as many as it
    /// requests: a kubelet lets it have no more.
    fn memory_of(
        &mut self,
        uid: &PodUid,
        now_ns: u64,
        urgent: bool,
        thread: Option<&StatThread>,
        mut failed: impl FnMut(&FileError),
    ) -> Option<PodMemory> {
        let open = self.open.as_mut()?;
        match open.read(now_ns, urgent, thread) {
            Ok(usage_bytes) => open.usage_bytes = Some(usage_bytes),
            Err(error) if error.is_vanished() => return None,
            Err(error) => failed(&error),
        }
        let newest = open.memory.newest();
        let cache = newest.map(|newest| newest.cache).unwrap_or_default();
        Some(PodMemory {
            uid: uid.clone(),
            usage_bytes: open.usage_bytes?,
            inactive_file_bytes: cache.inactive_file_bytes,
            usage_at_stat_bytes: newest.map_or(0, |newest| newest.usage_bytes),
            active_file_bytes: cache.active_file_bytes,
            lazily_freed_bytes: cache.lazily_freed_bytes,
            uncharged_bytes: open.uncharged_bytes.load(Ordering::Relaxed),
            huge_page_bytes: cache.huge_page_bytes.min(self.huge_page_bytes_max),
            stat_age_ms: age_ms(newest, now_ns),
        })
    }
}

impl Open {
    /// Returns the usage; brings the page cache up to date where that is worth a read.
    fn read(
        &mut self,
        now_ns: u64,
        urgent: bool,
        thread: Option<&StatThread>,
    ) -> Result<u64, FileError> {
        let usage_bytes = self.memory.read_usage_bytes()?;
        self.memory.take_answer()?;
        // So that a decision finds what the thread has read.
        let age_max_ms = match self.memory.is_slow(thread) {
            true => STAT_AGE_MAX_MS,
            false => REST_AGE_MAX_MS,
        };
        let is_wanted = match self.memory.newest() {
            None => true,
            Some(_) if urgent => false,
            Some(newest) => {
                usage_bytes.abs_diff(newest.usage_bytes) >= STALE_BYTES
                    || self.memory.is_older(now_ns, age_max_ms)
            }
        };
        if is_wanted {
            self.memory.read(usage_bytes, now_ns, thread)?;
        }
        Ok(usage_bytes)
    }
}
