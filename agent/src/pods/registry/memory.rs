//! What pods use: read from files that are open, without allocating.
//!
//! Usage is read for every pod in every sample that needs all pods, one system call each. `memory.stat`, much dearer,
//! is read again where usage has moved since; at an urgent sample only where the engine asks for it
//! ([`Pods::freshen`]).

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::PodMemory;
use plimsoll_core::model::reading::PodProcesses;
use plimsoll_core::policy::eviction::usage_bounds::STALE_BYTES;

use super::{Open, Pods};
use crate::host::cgroup::PageCache;
use crate::host::file::FileError;

/// Without urgency it is read again after this time, even if usage stood still. A decision that hangs on it has it read
/// anyway ([`plimsoll_core::policy::eviction::freshness`]), and to produce its fifty lines is most of what a pod at rest
/// costs.
const STAT_AGE_MAX_NS: u64 = 60_000_000_000;

/// The newest reading of `memory.stat`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stat {
    cache: PageCache,
    /// The usage then.
    usage_bytes: u64,
    /// When; `None`: never.
    read_ns: Option<u64>,
}

impl Stat {
    /// How long ago it was read, milliseconds.
    fn age_ms(&self, now_ns: u64) -> u32 {
        let age_ns = self.read_ns.map(|at_ns| now_ns.saturating_sub(at_ns));
        age_ns.map_or(u32::MAX, |ns| {
            u32::try_from(ns / 1_000_000).unwrap_or(u32::MAX)
        })
    }
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
        for (uid, entry) in &mut self.entries {
            let Some(open) = &mut entry.open else {
                continue;
            };
            into.extend(open.memory_of(uid, now_ns, urgent, |error| failed(uid, error)));
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
        let entry = self.entries.get_mut(uid);
        let open = entry.and_then(|entry| entry.open.as_mut());
        let memory = open.and_then(|open| open.memory_of(uid, now_ns, true, failed));
        let is_read = memory.is_some();
        into.extend(memory);
        is_read
    }

    /// Reads one pod's memory in full, into its place in a sample. Allocates nothing.
    ///
    /// # Errors
    /// When its files cannot be read; the sample keeps the older figures.
    pub fn freshen(&mut self, memory: &mut PodMemory, now_ns: u64) -> Result<(), FileError> {
        let Some(open) = self
            .entries
            .get_mut(&memory.uid)
            .and_then(|entry| entry.open.as_mut())
        else {
            return Ok(());
        };
        memory.usage_bytes = open.memory.read_usage_bytes()?;
        open.read_stat(memory.usage_bytes, now_ns)?;
        memory.inactive_file_bytes = open.stat.cache.inactive_file_bytes;
        memory.active_file_bytes = open.stat.cache.active_file_bytes;
        memory.lazily_freed_bytes = open.stat.cache.lazily_freed_bytes;
        memory.usage_at_stat_bytes = open.stat.usage_bytes;
        memory.stat_age_ms = 0;
        Ok(())
    }

    /// Counts the processes of every pod with a cgroup into `into`, by ascending UID. Allocates nothing if `into` has
    /// room.
    ///
    /// A pod that cannot be counted is passed to `failed` and missing.
    pub fn count_processes(
        &self,
        into: &mut Vec<PodProcesses>,
        mut failed: impl FnMut(&PodUid, &FileError),
    ) {
        into.clear();
        for (uid, entry) in &self.entries {
            let Some(open) = &entry.open else { continue };
            match open.kill.count_processes() {
                Ok(processes) => into.push(PodProcesses {
                    uid: uid.clone(),
                    processes,
                }),
                Err(error) => failed(uid, &error),
            }
        }
    }
}

impl Open {
    /// What a sample has of it; `None`: nothing was ever read, or its cgroup has vanished.
    fn memory_of(
        &mut self,
        uid: &PodUid,
        now_ns: u64,
        urgent: bool,
        mut failed: impl FnMut(&FileError),
    ) -> Option<PodMemory> {
        match self.read(now_ns, urgent) {
            Ok(usage_bytes) => self.usage_bytes = Some(usage_bytes),
            Err(error) if error.is_vanished() => return None,
            Err(error) => failed(&error),
        }
        Some(PodMemory {
            uid: uid.clone(),
            usage_bytes: self.usage_bytes?,
            inactive_file_bytes: self.stat.cache.inactive_file_bytes,
            usage_at_stat_bytes: self.stat.usage_bytes,
            active_file_bytes: self.stat.cache.active_file_bytes,
            lazily_freed_bytes: self.stat.cache.lazily_freed_bytes,
            stat_age_ms: self.stat.age_ms(now_ns),
        })
    }

    /// Returns the usage; brings the inactive file pages up to date where that is worth a read.
    fn read(&mut self, now_ns: u64, urgent: bool) -> Result<u64, FileError> {
        let usage_bytes = self.memory.read_usage_bytes()?;
        let stale = match self.stat.read_ns {
            None => true,
            Some(_) if urgent => false,
            Some(at_ns) => {
                usage_bytes.abs_diff(self.stat.usage_bytes) >= STALE_BYTES
                    || now_ns.saturating_sub(at_ns) >= STAT_AGE_MAX_NS
            }
        };
        if stale {
            self.read_stat(usage_bytes, now_ns)?;
        }
        Ok(usage_bytes)
    }

    fn read_stat(&mut self, usage_bytes: u64, now_ns: u64) -> Result<(), FileError> {
        self.stat = Stat {
            cache: self.memory.read_cache()?,
            usage_bytes,
            read_ns: Some(now_ns),
        };
        Ok(())
    }
}
