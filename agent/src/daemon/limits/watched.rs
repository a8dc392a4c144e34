//! One cgroup of a pod: the files that its counts come from, and what they say.

use std::path::{Path, PathBuf};

use plimsoll_core::model::reading::StallReading;
use rustix::io::Errno;

use super::origins::{Origin, Origins};
use crate::host::cgroup::{Hierarchy, Version, cgroup_id};
use crate::host::file::{ControlFile, FileError};
use crate::host::pressure::read_open;
use crate::pods::kill::KeptCgroup;
use crate::record::limit_counts::LimitCounts;
use crate::source::memcg_v1::{MemcgV1, Notification};
use crate::source::memory_events::MemoryEvents;
use crate::source::pod_events::PodEvents;

/// Which files of a cgroup are to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) memory: bool,
    /// With what is waited for.
    pub(super) cpu: bool,
}

impl Due {
    pub(super) const ALL: Self = Self {
        memory: true,
        cpu: true,
    };
}

/// A file that may not be there yet.
#[derive(Debug)]
enum Slot<T> {
    /// Not there when it was last looked for.
    Absent,
    Open(T),
    /// It was there and could not be used; said once.
    Unusable,
}

#[derive(Debug)]
enum MemoryFiles {
    /// Of the pod's own cgroup, whose counts include those of the cgroups below.
    V2(MemoryEvents),
    /// Of every cgroup of the pod: on v1 each counts for itself.
    V1 {
        oom_control: ControlFile,
        /// Not of one that a container has made.
        failcnt: Option<ControlFile>,
        /// Disarmed when dropped.
        _out_of_memory: Option<Notification>,
    },
}

/// One cgroup of a pod.
#[derive(Debug)]
pub(super) struct Watched {
    /// It is the pod's, not a container's.
    pub(super) is_pod_cgroup: bool,
    /// It is right below the pod's.
    pub(super) is_container: bool,
    /// Its directory in the hierarchy that accounts memory.
    dir: PathBuf,
    /// Its directory and its id in the hierarchy of the cpu controller.
    cpu_dir: Option<PathBuf>,
    pub(super) cpu_id: Option<u64>,
    memory: Slot<MemoryFiles>,
    cpu: Slot<ControlFile>,
    /// `memory.pressure` and `memory.stat`, for what the programs do not count.
    pressure: Slot<ControlFile>,
    stat: Slot<ControlFile>,
    /// Pages of anonymous memory and of files, which come one by one.
    pub(super) refaulted: (u64, u64),
    pub(super) now: LimitCounts,
    pub(super) reported: LimitCounts,
    /// What has been counted so far is history.
    pub(super) is_history: bool,
    /// Its files have been read: before, nobody knows what is history.
    pub(super) is_read: bool,
    pub(super) is_gone: bool,
}

pub(super) fn raise(total: &mut u64, to: u64) {
    *total = (*total).max(to);
}

/// The same cgroup in the hierarchy of the cpu controller.
fn cpu_dir(memory: &Hierarchy, cpu: Option<&Hierarchy>, dir: &Path) -> Option<PathBuf> {
    let path = dir.strip_prefix(&memory.mount).ok()?;
    Some(cpu?.mount.join(path))
}

/// What opening or reading came to: nothing there is as good as nothing to say.
fn slot<T>(opened: Result<T, FileError>, failed: &mut impl FnMut(String)) -> Slot<T> {
    match opened {
        Ok(file) => Slot::Open(file),
        Err(error) if error.is_vanished() => Slot::Absent,
        Err(error) => {
            failed(error.to_string());
            Slot::Unusable
        }
    }
}

impl Watched {
    /// As it appears. `is_history`: it was there before the agent.
    pub(super) fn new(
        cgroup: &KeptCgroup<'_>,
        memory: &Hierarchy,
        cpu: Option<&Hierarchy>,
        is_history: bool,
    ) -> Self {
        Self {
            is_pod_cgroup: cgroup.is_pods_own(),
            is_container: cgroup.is_container(),
            dir: cgroup.dir.to_owned(),
            cpu_dir: cpu_dir(memory, cpu, cgroup.dir),
            cpu_id: None,
            memory: Slot::Absent,
            cpu: Slot::Absent,
            pressure: Slot::Absent,
            stat: Slot::Absent,
            refaulted: (0, 0),
            now: LimitCounts::default(),
            reported: LimitCounts::default(),
            is_history,
            is_read: false,
            is_gone: false,
        }
    }

    /// It is there: opens what counts come from. Returns whether some of that is not there yet, and is to be looked for
    /// again.
    pub(super) fn look(
        &mut self,
        version: Version,
        origins: Origins,
        events: Option<&mut PodEvents>,
        failed: &mut impl FnMut(String),
    ) -> bool {
        self.is_gone = false;
        if origins.reads_memory() && self.counts_memory(version) {
            self.open_memory(version, origins, events, failed);
        }
        self.open_cpu(origins.throttling, failed);
        if self.counts_waits(version) {
            self.open_waits(origins, failed);
        }
        self.lacks_some(version, origins)
    }

    fn open_memory(
        &mut self,
        version: Version,
        origins: Origins,
        events: Option<&mut PodEvents>,
        failed: &mut impl FnMut(String),
    ) {
        if !matches!(self.memory, Slot::Absent) {
            return;
        }
        let opened = match version {
            // Opening takes the counts as a starting point; here the totals matter.
            Version::V2 => MemoryEvents::open(&self.dir).map(MemoryFiles::V2),
            Version::V1 => open_v1(&self.dir, self.has_limits()),
        };
        self.memory = slot(opened, failed);
        let (Slot::Open(files), Some(events)) = (&mut self.memory, events) else {
            return;
        };
        match files {
            MemoryFiles::V2(counters) if origins.memory_events => events.watch_counters(counters),
            MemoryFiles::V1 { _out_of_memory, .. } if origins.event_control => {
                match MemcgV1::open(&self.dir).and_then(|memcg| memcg.notify_oom()) {
                    Ok(notification) => {
                        events.watch_notification(&notification);
                        *_out_of_memory = Some(notification);
                    }
                    Err(error) if error.is_vanished() => {}
                    Err(error) => failed(error.to_string()),
                }
            }
            _ => {}
        }
    }

    /// Whether its limits are the pod's: [`super`], Terms.
    fn has_limits(&self) -> bool {
        self.is_pod_cgroup || self.is_container
    }

    fn open_cpu(&mut self, origin: Origin, failed: &mut impl FnMut(String)) {
        let Some(dir) = &self.cpu_dir else { return };
        match origin {
            Origin::Kernel if self.cpu_id.is_none() => self.cpu_id = cgroup_id(dir).ok(),
            Origin::Files if self.has_limits() && matches!(self.cpu, Slot::Absent) => {
                self.cpu = slot(ControlFile::open(dir.join("cpu.stat")), failed);
            }
            Origin::Kernel | Origin::Files => {}
        }
    }

    fn open_waits(&mut self, origins: Origins, failed: &mut impl FnMut(String)) {
        if origins.stalls == Origin::Files && matches!(self.pressure, Slot::Absent) {
            self.pressure = slot(ControlFile::open(self.dir.join("memory.pressure")), failed);
        }
        if origins.refaults == Origin::Files && matches!(self.stat, Slot::Absent) {
            self.stat = slot(ControlFile::open(self.dir.join("memory.stat")), failed);
        }
    }

    /// Whether its limits are counted: on v2 the pod's cgroup counts for those in it.
    fn counts_memory(&self, version: Version) -> bool {
        version == Version::V1 || self.is_pod_cgroup
    }

    /// Whether waits for memory are counted.
    fn counts_waits(&self, version: Version) -> bool {
        version == Version::V2 && self.is_pod_cgroup
    }

    fn lacks_some(&self, version: Version, origins: Origins) -> bool {
        let lacks_cpu = self.cpu_dir.is_some()
            && match origins.throttling {
                Origin::Kernel => self.cpu_id.is_none(),
                Origin::Files => self.has_limits() && matches!(self.cpu, Slot::Absent),
            };
        let lacks = |origin, slot: &Slot<ControlFile>| {
            origin == Origin::Files && matches!(slot, Slot::Absent)
        };
        let waits = self.counts_waits(version);
        lacks_cpu
            || origins.reads_memory()
                && self.counts_memory(version)
                && matches!(self.memory, Slot::Absent)
            || waits && lacks(origins.stalls, &self.pressure)
            || waits && lacks(origins.refaults, &self.stat)
    }

    pub(super) fn read(&mut self, origins: Origins, due: Due, failed: &mut impl FnMut(String)) {
        self.is_read = true;
        self.read_waits(due.cpu, failed);
        if let (Slot::Open(files), true) = (&mut self.memory, due.memory) {
            match files.read() {
                Ok(read) => {
                    if origins.memory == Origin::Files {
                        raise(&mut self.now.high, read.high);
                        raise(&mut self.now.max, read.max);
                        raise(&mut self.now.oom, read.oom);
                    }
                    if origins.low == Origin::Files {
                        raise(&mut self.now.low, read.low);
                    }
                    if origins.oom_kills == Origin::Files {
                        raise(&mut self.now.oom_kills, read.oom_kills);
                    }
                }
                Err(error) => self.memory = slot(Err(error), failed),
            }
        }
        if let (Slot::Open(stat), true) = (&self.cpu, due.cpu) {
            match read_cpu_stat(stat) {
                Ok((throttled, throttled_ns)) => {
                    raise(&mut self.now.throttled, throttled);
                    raise(&mut self.now.throttled_ns, throttled_ns);
                }
                Err(error) => self.cpu = slot(Err(error), failed),
            }
        }
    }

    fn read_waits(&mut self, is_due: bool, failed: &mut impl FnMut(String)) {
        if !is_due {
            return;
        }
        if let Slot::Open(pressure) = &self.pressure {
            match read_open(pressure) {
                // The time in which any task of the cgroup waited for memory.
                Ok(StallReading { some, .. }) => {
                    raise(&mut self.now.stalled_ns, some.total_us.saturating_mul(1000));
                }
                // A kernel without PSI has the file and refuses to read it: nothing is known there.
                Err(FileError::Unreadable { source, .. }) if source == Errno::OPNOTSUPP => {}
                Err(error) => self.pressure = slot(Err(error), failed),
            }
        }
        if let Slot::Open(stat) = &self.stat {
            let keys = [
                "workingset_refault_anon",
                "workingset_refault_file",
                "pswpin",
            ];
            match stat.read_keyed(&keys) {
                Ok([anon, file, swapped_in]) => {
                    let refaulted = anon.unwrap_or(0) + file.unwrap_or(0);
                    raise(&mut self.now.refaulted_pages, refaulted);
                    // No such line before 6.13.
                    raise(&mut self.now.swapped_in_pages, swapped_in.unwrap_or(0));
                }
                Err(error) => self.stat = slot(Err(error), failed),
            }
        }
    }
}

fn open_v1(dir: &Path, has_limits: bool) -> Result<MemoryFiles, FileError> {
    let failcnt = || ControlFile::open(dir.join("memory.failcnt"));
    Ok(MemoryFiles::V1 {
        oom_control: ControlFile::open(dir.join("memory.oom_control"))?,
        failcnt: has_limits.then(failcnt).transpose()?,
        _out_of_memory: None,
    })
}

impl MemoryFiles {
    fn read(&mut self) -> Result<LimitCounts, FileError> {
        match self {
            Self::V2(events) => {
                events.read_delta()?;
                let counts = events.counts();
                Ok(LimitCounts {
                    high: counts.high,
                    max: counts.max,
                    oom: counts.oom,
                    low: counts.low,
                    oom_kills: counts.oom_kill,
                    ..LimitCounts::default()
                })
            }
            Self::V1 {
                oom_control,
                failcnt,
                ..
            } => {
                // No such line before 4.13: those kernels do not count kills.
                let [oom_kill] = oom_control.read_keyed(&["oom_kill"])?;
                let failcnt = failcnt.as_ref().map(ControlFile::read_u64);
                Ok(LimitCounts {
                    max: failcnt.transpose()?.unwrap_or(0),
                    oom_kills: oom_kill.unwrap_or(0),
                    ..LimitCounts::default()
                })
            }
        }
    }
}

/// Periods in which the quota was used up, and for how long, in nanoseconds. v1 says nanoseconds, v2 microseconds
/// (kernel/sched/core.c `cpu_cfs_stat_show`, `cpu_extra_stat_show`).
fn read_cpu_stat(stat: &ControlFile) -> Result<(u64, u64), FileError> {
    let [throttled, throttled_usec, throttled_time] =
        stat.read_keyed(&["nr_throttled", "throttled_usec", "throttled_time"])?;
    let throttled_ns = throttled_usec
        .map(|usec| usec.saturating_mul(1000))
        .or(throttled_time);
    // No lines at all where the cpu controller is not enabled: nothing is throttled there.
    Ok((throttled.unwrap_or(0), throttled_ns.unwrap_or(0)))
}
