//! What the programs have added up per cgroup: limits met, OOM kills, throttling, waits for memory, pages read back,
//! processes.
//!
//! A record reports these at most once per window; the totals here have everything, reported or not. All of them count
//! since the programs were attached and go when the cgroup is removed; but OOM kills are then added to those in no pod.

use std::collections::BTreeSet;

use aya::maps::{HashMap, MapData, MapError};
use plimsoll_abi::{
    memory_totals, oom_totals, process_totals, refault_totals, stall_totals, throttle_totals,
};

use super::decode::{
    MemoryLimitEvent, RefaultKind, StallCause, memory_limit_event, refault_kind, stall_cause_of,
};
use super::error::map_error;
use super::followed::Followed;
use super::loader::Hierarchies;
use super::{Bpf, BpfError};

/// How long tasks were held up for lack of memory, for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallTotals {
    /// The cgroup: the owner of the limit for [`StallCause::Limit`] where fentry works, else the task's.
    pub cgroup_id: u64,
    /// Why.
    pub cause: StallCause,
    /// Finished stalls, of each thread by itself.
    pub count: u64,
    /// Their time.
    pub sum_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Pages reclaimed meanwhile; 0 for causes that reclaim none.
    pub pages: u64,
}

/// Pages that were read back into a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefaultTotals {
    /// The memory cgroup of the tasks that needed them; for the agent the pod or container that it is in.
    pub cgroup_id: u64,
    /// What they are.
    pub what: RefaultKind,
    /// How often.
    pub count: u64,
    /// How many pages.
    pub pages: u64,
}

/// Processes of a followed cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessTotals {
    /// The memory cgroup.
    pub cgroup_id: u64,
    /// Born there.
    pub forks: u64,
    /// Programs started there.
    pub execs: u64,
}

/// How often a cgroup met one of its memory limits since the programs were attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTotals {
    /// The cgroup that owns the limit; for the agent the pod or container that it is in.
    pub cgroup_id: u64,
    /// Which limit.
    pub event: MemoryLimitEvent,
    /// How often.
    pub count: u64,
}

/// Kills of the kernel's OOM killer in a cgroup that got no record, since the programs were attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomTotals {
    /// The victims' cgroup; [`NO_POD`](plimsoll_abi::NO_POD): in no pod, or in cgroups that are gone.
    pub cgroup_id: u64,
    /// Choices of the killer.
    pub choices: u64,
    /// Victims that were named, each thread that was marked.
    pub victims: u64,
}

/// Running totals of a cgroup's CPU throttling since the programs were attached, each CPU's run queue by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleTotals {
    /// The cgroup with the quota; for the agent the pod or container that it is in.
    pub cgroup_id: u64,
    /// Finished throttles.
    pub count: u64,
    /// Their time.
    pub sum_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// The maps behind them.
pub(super) struct Totals {
    pub(super) throttle: HashMap<MapData, u64, [u64; throttle_totals::WORDS]>,
    pub(super) memory: HashMap<MapData, [u64; 2], [u64; memory_totals::WORDS]>,
    pub(super) oom_kills: HashMap<MapData, u64, [u64; oom_totals::WORDS]>,
    pub(super) stalls: HashMap<MapData, [u64; 2], [u64; stall_totals::WORDS]>,
    pub(super) refaults: HashMap<MapData, [u64; 2], [u64; refault_totals::WORDS]>,
    pub(super) processes: HashMap<MapData, u64, [u64; process_totals::WORDS]>,
    /// The keys of `processes`.
    pub(super) followed: Followed,
    /// (Hierarchy, cgroup id): what has counts of its own.
    pub(super) counted: HashMap<MapData, [u64; 2], u64>,
    /// The keys of `counted`, but for those that were removed with their cgroup.
    pub(super) counted_now: BTreeSet<[u64; 2]>,
    pub(super) hierarchies: Hierarchies,
}

/// Cgroups that have counts of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Their ids in the hierarchy that accounts memory.
    pub memory: BTreeSet<u64>,
    /// Their ids in the hierarchy of the cpu controller.
    pub cpu: BTreeSet<u64>,
}

impl Totals {
    /// As of now: an agent before may have named some.
    pub(super) fn with_counted(mut self) -> Result<Self, BpfError> {
        for key in self.counted.keys() {
            self.counted_now.insert(key.map_err(map_error("COUNTED"))?);
        }
        Ok(self)
    }
}

impl Bpf {
    /// Kills of the kernel's OOM killer that got no record, by cgroup. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_oom_kills(&self, mut f: impl FnMut(OomTotals)) -> Result<(), BpfError> {
        for entry in self.totals.oom_kills.iter() {
            let (cgroup_id, value) = entry.map_err(map_error("OOM_KILLS"))?;
            f(OomTotals {
                cgroup_id,
                choices: value[oom_totals::CHOICES],
                victims: value[oom_totals::VICTIMS],
            });
        }
        Ok(())
    }

    /// Every cgroup's throttling so far, including what no record has reported yet. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_throttle(&self, mut f: impl FnMut(ThrottleTotals)) -> Result<(), BpfError> {
        for entry in self.totals.throttle.iter() {
            let (cgroup_id, value) = entry.map_err(map_error("THROTTLE"))?;
            f(ThrottleTotals {
                cgroup_id,
                count: value[throttle_totals::COUNT],
                sum_ns: value[throttle_totals::SUM_NS],
                max_ns: value[throttle_totals::MAX_NS],
            });
        }
        Ok(())
    }

    /// How often each cgroup met its memory limits so far, including what no record has reported yet. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_memory(&self, mut f: impl FnMut(MemoryTotals)) -> Result<(), BpfError> {
        for entry in self.totals.memory.iter() {
            let ([cgroup_id, event], value) = entry.map_err(map_error("MEMORY"))?;
            // The programs write no other.
            let event = u32::try_from(event).ok().and_then(memory_limit_event);
            if let Some(event) = event {
                f(MemoryTotals {
                    cgroup_id,
                    event,
                    count: value[memory_totals::COUNT],
                });
            }
        }
        Ok(())
    }

    /// How long tasks were held up for lack of memory, by cgroup and cause. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_stalls(&self, mut f: impl FnMut(StallTotals)) -> Result<(), BpfError> {
        for entry in self.totals.stalls.iter() {
            let ([cgroup_id, cause], value) = entry.map_err(map_error("STALLS"))?;
            // The programs write no other.
            if let Some(cause) = u32::try_from(cause).ok().and_then(stall_cause_of) {
                f(StallTotals {
                    cgroup_id,
                    cause,
                    count: value[stall_totals::COUNT],
                    sum_ns: value[stall_totals::SUM_NS],
                    max_ns: value[stall_totals::MAX_NS],
                    pages: value[stall_totals::PAGES],
                });
            }
        }
        Ok(())
    }

    /// Pages that were read back, by cgroup. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_refaults(&self, mut f: impl FnMut(RefaultTotals)) -> Result<(), BpfError> {
        for entry in self.totals.refaults.iter() {
            let ([cgroup_id, what], value) = entry.map_err(map_error("REFAULTS"))?;
            // The programs write no other.
            if let Some(what) = u32::try_from(what).ok().and_then(refault_kind) {
                f(RefaultTotals {
                    cgroup_id,
                    what,
                    count: value[refault_totals::COUNT],
                    pages: value[refault_totals::PAGES],
                });
            }
        }
        Ok(())
    }

    /// Processes of the followed cgroups. Reads only.
    ///
    /// # Errors
    /// When the kernel refuses to show the map.
    pub fn drain_processes(&self, mut f: impl FnMut(ProcessTotals)) -> Result<(), BpfError> {
        for entry in self.totals.processes.iter() {
            let (cgroup_id, value) = entry.map_err(map_error("PROCESSES"))?;
            f(ProcessTotals {
                cgroup_id,
                forks: value[process_totals::FORKS],
                execs: value[process_totals::EXECS],
            });
        }
        Ok(())
    }

    /// Follows the processes of exactly these memory cgroups: a birth from outside sends a record, all are counted. One
    /// map update for each that comes or goes, and for a share of the others ([`Followed`]); what was counted of one
    /// that makes room for another pod's share begins anew when it is followed again.
    ///
    /// # Errors
    /// When the kernel refuses an update (4,096 cgroups can be followed).
    pub fn follow_processes(&mut self, wanted: &BTreeSet<u64>) -> Result<(), BpfError> {
        let due = self.totals.followed.due(wanted);
        // One that is refused keeps no other from its entry.
        let mut refused = None;
        for id in due.gone {
            match self.totals.processes.remove(&id) {
                // The program takes it away when the cgroup is removed.
                Ok(()) | Err(MapError::KeyNotFound) => self.totals.followed.removed(id),
                Err(error) if is_absent(&error) => self.totals.followed.removed(id),
                Err(error) => refused = Some(error),
            }
        }
        for id in due.add {
            match self
                .totals
                .processes
                .insert(id, [0; process_totals::WORDS], NO_EXIST)
            {
                Ok(()) => self.totals.followed.added(id),
                Err(error) if is_present(&error) => self.totals.followed.added(id),
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(()), |error| Err(map_error("PROCESSES")(error)))
    }
}

impl Bpf {
    /// With [`Counts::PodsOnly`]: exactly these cgroups have counts of their own from now on. What happens in a cgroup
    /// below one of them is counted for that, for the lower of two. What was counted stays. One map update for each
    /// that comes or goes.
    ///
    /// [`Counts::PodsOnly`]: super::Counts::PodsOnly
    ///
    /// # Errors
    /// When the kernel refuses an update ([`plimsoll_abi::COUNTED_MAX`] cgroups of each hierarchy have room).
    pub fn count_only(&mut self, cgroups: &Counted) -> Result<(), BpfError> {
        let failed = map_error("COUNTED");
        let Totals {
            counted,
            counted_now,
            hierarchies,
            ..
        } = &mut self.totals;
        let keys = |hierarchy: u32, ids: &BTreeSet<u64>| {
            let key = |id: &u64| [u64::from(hierarchy), *id];
            ids.iter().map(key).collect::<Vec<_>>()
        };
        let memory = keys(hierarchies.memory, &cgroups.memory);
        let cpu = keys(hierarchies.cpu, &cgroups.cpu);
        let wanted: BTreeSet<[u64; 2]> = memory.into_iter().chain(cpu).collect();
        for key in counted_now.difference(&wanted) {
            match counted.remove(key) {
                // The program takes it away when the cgroup is removed.
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) if is_absent(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        counted_now.retain(|key| wanted.contains(key));
        let new: Vec<[u64; 2]> = wanted.difference(counted_now).copied().collect();
        for key in new {
            match counted.insert(key, 1, NO_EXIST) {
                Ok(()) => {}
                Err(error) if is_present(&error) => {}
                Err(error) => return Err(failed(error)),
            }
            counted_now.insert(key);
        }
        Ok(())
    }
}

/// `BPF_NOEXIST`.
const NO_EXIST: u64 = 1;

/// Whether the kernel says that there is such a key.
fn is_present(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(error) if error.io_error.raw_os_error() == Some(libc::EEXIST))
}

/// Whether the kernel says that there is no such key.
pub(super) fn is_absent(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(error) if error.io_error.raw_os_error() == Some(libc::ENOENT))
}
