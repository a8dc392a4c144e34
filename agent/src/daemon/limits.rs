//! What the limits of pods have cost them: `memory.high`, `memory.max`, OOM kills and CPU throttling, counted per pod.
//!
//! Problem: these events come in floods, from the kernel's records on one host and from files on another, for cgroups
//! that come and go. A person wants one line per pod that says what is new. Approach: each cgroup of a pod has running
//! totals, from whichever source the ladder has chosen; a turn brings them up to date ([`Limits::follow_pod`],
//! [`Limits::record`], [`Limits::read_some`]) and [`Limits::collect`] hands out, per pod, what has been added since the
//! last turn. All of it is housekeeping: nothing here is on the way from a record to a kill. A pod that may make
//! cgroups decides how many files that are to be opened and read, so both is done in portions, between which the loop
//! can be interrupted.
//!
//! Terms: *totals* only grow. Of a pod that is already there when the agent first sees it, what was counted before does
//! not count; of a cgroup that appears later everything does. *Limits of a pod* are those of its own cgroup and of its
//! containers; what a container sets in cgroups that it makes itself costs nobody else anything. OOM kills count in all
//! of them: v1 counts a kill in the cgroup of the process alone, whosever limit it was.

mod counted;
mod report;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::reading::StallReading;
use rustix::io::Errno;

use super::telling::Said;
use crate::host::cgroup::{CgroupMounts, Controller, Hierarchy, Version, cgroup_id};
use crate::host::file::{ControlFile, FileError};
use crate::host::pressure::read_open;
use crate::kernel::decode::{Body, MemoryLimitEvent, Record, RefaultKind, StallCause};
use crate::kernel::{MemoryTotals, RefaultTotals, StallTotals, ThrottleTotals};
use crate::pods::registry::Pods;
use crate::probe::ladder::{Choice, LadderSignal, Role};
use crate::probe::mechanism::Mechanism;
use crate::record::limit_counts::{LimitCounts, LimitTotals};
use crate::source::EpollError;
use crate::source::memcg_v1::{MemcgV1, Notification};
use crate::source::memory_events::MemoryEvents;
use crate::source::pod_events::PodEvents;

/// `cpu.stat` is read this often: on v2 the kernel brings the cgroup's statistics up to date for it, on every CPU.
const CPU_STAT_EVERY_NS: u64 = 5_000_000_000;

/// Files of memory limits that are read for `memory.low` alone are read this often: nothing but a person waits for it.
const LOW_EVERY_NS: u64 = 60_000_000_000;

/// The set of cgroups is brought up to date when a cgroup has come or gone, at every look while a file is missing, and
/// this often besides: a file that has vanished may be there again.
const FOLLOW_EVERY_NS: u64 = 60_000_000_000;

/// Cgroups whose files are read in one go.
const READ_AT_ONCE: usize = 16;

/// Of a pod at its limit no more is said than this, unless a process is killed; what is held back is added to the next
/// line.
const SAID_EVERY_NS: u64 = 1_000_000_000;

/// Where the counts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The BPF programs.
    Kernel,
    /// The cgroup's files.
    Files,
}

/// The origin of each kind, and whether files are also watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origins {
    /// `memory.high`, `memory.max` and out of memory.
    pub memory: Origin,
    /// OOM kills. Those that the kernel reports are told one by one elsewhere, and not counted here.
    pub oom_kills: Origin,
    /// CPU throttling.
    pub throttling: Origin,
    /// Waits for memory.
    pub stalls: Origin,
    /// Time spent on reclaim; from files it is not known.
    pub reclaim: Origin,
    /// Pages read back.
    pub refaults: Origin,
    /// Reclaim below `memory.low`.
    pub low: Origin,
    /// POLLPRI on `memory.events`.
    pub memory_events: bool,
    /// An eventfd on `memory.oom_control`.
    pub event_control: bool,
}

impl Origins {
    /// As the ladder has chosen.
    /// `counts_low`: whether the programs see that a cgroup is below its `memory.low`.
    pub fn of(choices: &[Choice], counts_low: bool) -> Self {
        let of = |signal| move |choice: &&Choice| choice.signal == signal;
        let origin = |signal| {
            let by_kernel = choices.iter().filter(of(signal)).any(|choice| {
                choice.role == Role::Primary
                    && matches!(choice.mechanism, Mechanism::Fentry | Mechanism::Tracepoint)
            });
            if by_kernel {
                Origin::Kernel
            } else {
                Origin::Files
            }
        };
        let uses = |signal, mechanism| {
            choices
                .iter()
                .filter(of(signal))
                .any(|choice| choice.mechanism == mechanism)
        };
        Self {
            memory: origin(LadderSignal::MemoryLimit),
            oom_kills: origin(LadderSignal::OomKill),
            throttling: origin(LadderSignal::CpuThrottling),
            stalls: origin(LadderSignal::MemoryStall),
            reclaim: origin(LadderSignal::ReclaimTime),
            refaults: origin(LadderSignal::Refault),
            low: if counts_low {
                Origin::Kernel
            } else {
                Origin::Files
            },
            memory_events: uses(LadderSignal::MemoryLimit, Mechanism::MemoryEvents)
                || uses(LadderSignal::OomKill, Mechanism::MemoryEvents),
            event_control: uses(LadderSignal::OomKill, Mechanism::EventControl),
        }
    }

    /// What the files are waited for with; `None` if none is to be.
    ///
    /// # Errors
    /// When the process has no descriptor left for it.
    pub fn events(self) -> Result<Option<PodEvents>, EpollError> {
        let watches = self.memory_events || self.event_control;
        watches.then(PodEvents::new).transpose()
    }

    /// Whether files tell of memory limits anything that should be known soon.
    fn reads_memory_often(self) -> bool {
        self.memory == Origin::Files || self.oom_kills == Origin::Files
    }

    fn reads_memory(self) -> bool {
        self.memory == Origin::Files
            || self.low == Origin::Files
            || self.oom_kills == Origin::Files
            || self.memory_events
            || self.event_control
    }
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

/// What is known of a pod.
#[derive(Debug, Default)]
struct PodLimits {
    /// By the cgroup's id in the memory hierarchy.
    // Boxed: a node of the map has room for eleven, and a pod has few.
    cgroups: BTreeMap<u64, Box<Watched>>,
    /// Counted and not reported yet.
    unreported: LimitCounts,
    /// When something was reported.
    reported_ns: Option<u64>,
    totals: LimitTotals,
}

/// Which files of a cgroup are to be read.
#[derive(Debug, Clone, Copy)]
struct Due {
    memory: bool,
    /// With what is waited for.
    cpu: bool,
}

impl Due {
    const ALL: Self = Self {
        memory: true,
        cpu: true,
    };
}

/// A look for cgroups: [`Limits::begin_to_follow`].
#[derive(Debug)]
pub struct Following {
    began_ns: u64,
    generation: u64,
    lacks_some: bool,
}

/// A reading of the files: [`Limits::begin_to_read`].
#[derive(Debug)]
pub struct Reading {
    due: Due,
    /// The cgroup up to which it has come.
    last: Option<(PodUid, u64)>,
}

/// One cgroup of a pod.
#[derive(Debug)]
struct Watched {
    /// It is the pod's, not a container's.
    is_pod_cgroup: bool,
    /// It is right below the pod's.
    is_container: bool,
    /// Its directory in the hierarchy that accounts memory.
    dir: PathBuf,
    /// Its directory and its id in the hierarchy of the cpu controller.
    cpu_dir: Option<PathBuf>,
    cpu_id: Option<u64>,
    memory: Slot<MemoryFiles>,
    cpu: Slot<ControlFile>,
    /// `memory.pressure` and `memory.stat`, for what the programs do not count.
    pressure: Slot<ControlFile>,
    stat: Slot<ControlFile>,
    /// Pages of anonymous memory and of files, which come one by one.
    refaulted: (u64, u64),
    now: LimitCounts,
    reported: LimitCounts,
    /// What has been counted so far is history.
    is_history: bool,
    /// Its files have been read: before, nobody knows what is history.
    is_read: bool,
    is_gone: bool,
}

/// The counts of all pods.
#[derive(Debug)]
pub struct Limits {
    memory: Option<Hierarchy>,
    cpu: Option<Hierarchy>,
    origins: Origins,
    events: Option<PodEvents>,
    pods: BTreeMap<PodUid, PodLimits>,
    /// As of the last [`Limits::end_following`].
    owners: CgroupOwners,
    /// When that was, and [`Pods::cgroups_generation`] then.
    followed: Option<(u64, u64)>,
    cpu_read_ns: Option<u64>,
    memory_read_ns: Option<u64>,
    not_watched: Said,
}

impl Limits {
    /// Counts nothing yet. Without `events` no file is watched, and all are only read at every housekeeping.
    pub fn new(mounts: &CgroupMounts, origins: Origins, events: Option<PodEvents>) -> Self {
        let hierarchy = |controller| mounts.hierarchy_of(controller).ok().cloned();
        Self {
            memory: hierarchy(Controller::Memory),
            cpu: hierarchy(Controller::Cpu),
            origins,
            events,
            pods: BTreeMap::new(),
            owners: CgroupOwners::default(),
            followed: None,
            cpu_read_ns: None,
            memory_read_ns: None,
            not_watched: Said::default(),
        }
    }

    /// What the kernel says of the watched files of all pods; `None` if none is watched.
    pub(super) fn events(&self) -> Option<&PodEvents> {
        self.events.as_ref()
    }

    /// Files that the kernel would not watch, so that they are only read at every housekeeping.
    pub fn not_watched(&self) -> u64 {
        self.events.as_ref().map_or(0, PodEvents::polled)
    }

    /// Those since the last call, if there are any.
    pub(super) fn more_not_watched(&mut self) -> Option<u64> {
        self.not_watched.more(self.not_watched())
    }

    /// Whether the BPF programs' totals are of any use here.
    pub fn takes_from_kernel(&self) -> bool {
        let Origins {
            memory,
            throttling,
            stalls,
            refaults,
            reclaim: times_reclaim,
            ..
        } = self.origins;
        [memory, throttling, stalls, refaults].contains(&Origin::Kernel)
            // Reclaim is timed by tracepoints, too.
            || times_reclaim == Origin::Kernel
    }

    /// Begins to bring the set of cgroups up to date, if it may have changed: [`Limits::follow_pod`] is to be called
    /// for each pod, then [`Limits::end_following`].
    pub fn begin_to_follow(&self, pods: &Pods, now_ns: u64) -> Option<Following> {
        self.memory.as_ref()?;
        let generation = pods.cgroups_generation();
        let is_as_known = self.followed.is_some_and(|(at_ns, known)| {
            known == generation && now_ns.saturating_sub(at_ns) < FOLLOW_EVERY_NS
        });
        (!is_as_known).then_some(Following {
            began_ns: now_ns,
            generation,
            lacks_some: false,
        })
    }

    /// Brings the cgroups of one pod up to date. Opens files. What cannot be used is passed to `failed`, once.
    pub fn follow_pod(
        &mut self,
        following: &mut Following,
        pods: &Pods,
        uid: &PodUid,
        mut failed: impl FnMut(String),
    ) {
        let Some(memory) = self.memory.as_ref().filter(|_| pods.contains(uid)) else {
            return;
        };
        let is_first_look = !self.pods.contains_key(uid);
        let known = self.pods.entry(uid.clone()).or_default();
        for watched in known.cgroups.values_mut() {
            watched.is_gone = true;
        }
        for cgroup in pods.cgroups_of(uid) {
            let (dir, id) = (cgroup.dir, cgroup.id);
            let watched = known.cgroups.entry(id).or_insert_with(|| {
                Box::new(Watched {
                    is_pod_cgroup: cgroup.is_pods_own(),
                    is_container: cgroup.is_container(),
                    dir: dir.to_owned(),
                    cpu_dir: cpu_dir(memory, self.cpu.as_ref(), dir),
                    cpu_id: None,
                    memory: Slot::Absent,
                    cpu: Slot::Absent,
                    pressure: Slot::Absent,
                    stat: Slot::Absent,
                    refaulted: (0, 0),
                    now: LimitCounts::default(),
                    reported: LimitCounts::default(),
                    is_history: is_first_look,
                    is_read: false,
                    is_gone: false,
                })
            });
            watched.is_gone = false;
            if self.origins.reads_memory() && watched.counts_memory(memory.version) {
                watched.open_memory(
                    memory.version,
                    self.origins,
                    self.events.as_mut(),
                    &mut failed,
                );
            }
            watched.open_cpu(self.origins.throttling, &mut failed);
            if watched.counts_waits(memory.version) {
                watched.open_waits(self.origins, &mut failed);
            }
            following.lacks_some |= watched.lacks_some(memory.version, self.origins);
        }
    }

    /// All pods have been looked at: only now is [`Limits::counted`] another one.
    pub fn end_following(&mut self, following: Following) {
        let Following {
            began_ns,
            generation,
            lacks_some,
        } = following;
        self.owners.of(&self.pods);
        self.followed = (!lacks_some).then_some((began_ns, generation));
    }

    /// The next look goes over all cgroups, because what the last one found could not be handed on.
    pub fn follow_again(&mut self) {
        self.followed = None;
    }

    /// Takes in a record of the kernel. Its totals are those of one cgroup, since the programs were attached.
    pub fn record(&mut self, record: &Record<'_>) {
        match record.body {
            Body::MemoryEvent { event, count, .. } => self.memory_totals(MemoryTotals {
                cgroup_id: record.cgroup_id,
                event,
                count,
            }),
            Body::Throttle {
                count,
                sum_ns,
                max_ns,
                ..
            } => self.throttle_totals(ThrottleTotals {
                cgroup_id: record.cgroup_id,
                count,
                sum_ns,
                max_ns,
            }),
            // A cgroup that is gone has no other totals any more.
            Body::MemoryStall {
                cause,
                count,
                sum_ns,
                max_ns,
                pages,
                ..
            } => self.stall_totals(StallTotals {
                cgroup_id: record.cgroup_id,
                cause,
                count,
                sum_ns,
                max_ns,
                pages: pages.unwrap_or(0),
            }),
            Body::Refault { what, count, pages } => self.refault_totals(RefaultTotals {
                cgroup_id: record.cgroup_id,
                what,
                count,
                pages,
            }),
            _ => {}
        }
    }

    /// Takes in what the kernel has counted of a cgroup's waits for memory.
    pub fn stall_totals(&mut self, totals: StallTotals) {
        if totals.cause == StallCause::Memory && self.origins.stalls != Origin::Kernel {
            return;
        }
        if let Some(watched) = self.by_memory_id(totals.cgroup_id) {
            let now = &mut watched.now;
            let total = match totals.cause {
                StallCause::Memory => &mut now.stalled_ns,
                StallCause::Limit => &mut now.limit_reclaim_ns,
                StallCause::High => &mut now.high_ns,
                StallCause::Node => &mut now.node_reclaim_ns,
            };
            raise(total, totals.sum_ns);
        }
    }

    /// Takes in what the kernel has counted of pages that a cgroup needed back.
    pub fn refault_totals(&mut self, totals: RefaultTotals) {
        if self.origins.refaults != Origin::Kernel {
            return;
        }
        if let Some(watched) = self.by_memory_id(totals.cgroup_id) {
            match totals.what {
                RefaultKind::Anon => raise(&mut watched.refaulted.0, totals.pages),
                RefaultKind::File => raise(&mut watched.refaulted.1, totals.pages),
                RefaultKind::SwapIn => raise(&mut watched.now.swapped_in_pages, totals.pages),
            }
            let (anon, file) = watched.refaulted;
            raise(&mut watched.now.refaulted_pages, anon + file);
        }
    }

    fn by_memory_id(&mut self, cgroup_id: u64) -> Option<&mut Watched> {
        let uid = self.owners.by_memory_id(cgroup_id)?;
        let watched = self.pods.get_mut(uid)?.cgroups.get_mut(&cgroup_id);
        watched.map(Box::as_mut)
    }

    /// Takes in what the kernel has counted of a cgroup's memory limits.
    pub fn memory_totals(&mut self, totals: MemoryTotals) {
        if self.origins.memory != Origin::Kernel {
            return;
        }
        if let Some(watched) = self.by_memory_id(totals.cgroup_id) {
            let total = match totals.event {
                MemoryLimitEvent::High => &mut watched.now.high,
                MemoryLimitEvent::Max => &mut watched.now.max,
                MemoryLimitEvent::Oom => &mut watched.now.oom,
                MemoryLimitEvent::Low => &mut watched.now.low,
                // Kills are told one by one, or come from files.
                MemoryLimitEvent::OomKill | MemoryLimitEvent::OomGroupKill => return,
            };
            raise(total, totals.count);
        }
    }

    /// Takes in what the kernel has counted of a cgroup's throttling.
    pub fn throttle_totals(&mut self, totals: ThrottleTotals) {
        if self.origins.throttling != Origin::Kernel {
            return;
        }
        let place = self.owners.by_cpu_id(totals.cgroup_id);
        let watched =
            place.and_then(|(uid, memory_id)| self.pods.get_mut(uid)?.cgroups.get_mut(&memory_id));
        if let Some(watched) = watched {
            raise(&mut watched.now.throttled, totals.count);
            raise(&mut watched.now.throttled_ns, totals.sum_ns);
        }
    }

    /// Begins to read the files of all pods, as far as counts come from files; `cpu.stat` only every few seconds.
    /// [`Limits::read_some`] is to follow until it is done.
    pub fn begin_to_read(&mut self, now_ns: u64) -> Reading {
        let is_due = |read_ns: &mut Option<u64>, every_ns| {
            let is_due = read_ns.is_none_or(|at_ns| now_ns.saturating_sub(at_ns) >= every_ns);
            if is_due {
                *read_ns = Some(now_ns);
            }
            is_due
        };
        let cpu = is_due(&mut self.cpu_read_ns, CPU_STAT_EVERY_NS);
        let memory =
            is_due(&mut self.memory_read_ns, LOW_EVERY_NS) || self.origins.reads_memory_often();
        Reading {
            due: Due { memory, cpu },
            last: None,
        }
    }

    /// Reads the files of the next few cgroups. Returns whether there may be more. What cannot be read is passed to
    /// `failed`, once; a cgroup that is gone is no failure.
    pub fn read_some(&mut self, reading: &mut Reading, mut failed: impl FnMut(String)) -> bool {
        let (pod, cgroup) = match reading.last.take() {
            Some((uid, id)) => (Bound::Included(uid.clone()), Some((uid, id))),
            None => (Bound::Unbounded, None),
        };
        let mut left = READ_AT_ONCE;
        for (uid, pod) in self.pods.range_mut((pod, Bound::Unbounded)) {
            let last = cgroup.as_ref().filter(|(of, _)| of == uid);
            let after = last.map_or(Bound::Unbounded, |(_, id)| Bound::Excluded(*id));
            for (id, watched) in pod.cgroups.range_mut((after, Bound::Unbounded)) {
                // What a pod has behind it is read at the first look, whenever that is.
                let is_first = watched.is_history;
                let due = Due {
                    memory: reading.due.memory || is_first,
                    cpu: reading.due.cpu || is_first,
                };
                watched.read(self.origins, due, &mut failed);
                left -= 1;
                if left == 0 {
                    reading.last = Some((uid.clone(), *id));
                    return true;
                }
            }
        }
        false
    }

    /// Reads the files of one pod once more, before it is forgotten, and holds nothing back any more. What cannot be
    /// read is gone.
    pub fn read_last(&mut self, uid: &PodUid) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.reported_ns = None;
            for watched in pod.cgroups.values_mut() {
                watched.read(self.origins, Due::ALL, &mut |_| {});
            }
        }
    }

    /// The next turn is the last: it reads everything and holds nothing back.
    pub fn finish(&mut self) {
        (self.cpu_read_ns, self.memory_read_ns) = (None, None);
        for pod in self.pods.values_mut() {
            pod.reported_ns = None;
        }
    }

    /// Hands out, per pod, what has been added since it was last told, if anything, and forgets cgroups that are gone
    /// and pods that `pods` does not have any more.
    pub fn collect(
        &mut self,
        now_ns: u64,
        pods: &Pods,
        mut report: impl FnMut(&PodUid, LimitCounts),
    ) {
        for (uid, pod) in &mut self.pods {
            pod.add_up(now_ns);
            let is_due = pod
                .reported_ns
                .is_none_or(|reported_ns| now_ns.saturating_sub(reported_ns) >= SAID_EVERY_NS);
            if pod.unreported.oom_kills > 0 || (is_due && pod.unreported.is_worth_a_line()) {
                report(uid, std::mem::take(&mut pod.unreported));
                pod.reported_ns = Some(now_ns);
            }
        }
        self.pods.retain(|uid, _| pods.contains(uid));
    }

    /// Processes of a pod that were killed and told one by one.
    pub fn oom_killed(&mut self, uid: &PodUid, now_ns: u64, kills: u64) {
        if let Some(pod) = self.pods.get_mut(uid) {
            let new = LimitCounts {
                oom_kills: kills,
                ..LimitCounts::default()
            };
            pod.totals.add(now_ns, new);
        }
    }

    /// What the limits of all pods have cost them.
    pub fn totals(&self) -> impl Iterator<Item = (&PodUid, LimitTotals)> {
        self.pods.iter().map(|(uid, pod)| (uid, pod.totals))
    }
}

impl PodLimits {
    /// Adds what is new in its cgroups, and forgets those that are gone.
    fn add_up(&mut self, now_ns: u64) {
        let (mut of_pod, mut below) = (LimitCounts::default(), LimitCounts::default());
        for watched in self.cgroups.values_mut().filter(|it| it.is_read) {
            if !std::mem::take(&mut watched.is_history) {
                let sum = if watched.is_pod_cgroup {
                    &mut of_pod
                } else {
                    &mut below
                };
                sum.add(watched.now.since(watched.reported));
            }
            watched.reported = watched.now;
        }
        self.cgroups.retain(|_, watched| !watched.is_gone);
        let throttled = of_pod.throttled.max(below.throttled);
        let throttled_ns = of_pod.throttled_ns.max(below.throttled_ns);
        of_pod.add(below);
        let new = LimitCounts {
            throttled,
            throttled_ns,
            ..of_pod
        };
        self.unreported.add(new);
        self.totals.add(now_ns, new);
    }
}

/// Where the cgroups of all pods are, by their ids: the kernel's totals come without their pods, thousands at a time.
#[derive(Debug, Default)]
struct CgroupOwners {
    /// By id in the hierarchy that accounts memory; ascending.
    memory: Vec<(u64, PodUid)>,
    /// By id in that of the cpu controller, with the other id; ascending.
    cpu: Vec<(u64, u64, PodUid)>,
}

impl CgroupOwners {
    /// Finds them anew.
    fn of(&mut self, pods: &BTreeMap<PodUid, PodLimits>) {
        self.memory.clear();
        self.cpu.clear();
        for (uid, pod) in pods {
            for (id, watched) in &pod.cgroups {
                self.memory.push((*id, uid.clone()));
                if let Some(cpu_id) = watched.cpu_id {
                    self.cpu.push((cpu_id, *id, uid.clone()));
                }
            }
        }
        self.memory.sort_unstable_by_key(|owner| owner.0);
        self.cpu.sort_unstable_by_key(|owner| owner.0);
    }

    fn by_memory_id(&self, id: u64) -> Option<&PodUid> {
        let found = self.memory.binary_search_by_key(&id, |owner| owner.0);
        Some(&self.memory[found.ok()?].1)
    }

    fn by_cpu_id(&self, id: u64) -> Option<(&PodUid, u64)> {
        let found = self.cpu.binary_search_by_key(&id, |owner| owner.0);
        let (_, memory_id, uid) = &self.cpu[found.ok()?];
        Some((uid, *memory_id))
    }
}

fn raise(total: &mut u64, to: u64) {
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

    /// Whether its limits are the pod's: [`self`], Terms.
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

    /// Whether something that counts come from is not there, and is to be looked for again.
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

    fn read(&mut self, origins: Origins, due: Due, failed: &mut impl FnMut(String)) {
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
}

impl Watched {
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

#[cfg(test)]
mod tests;
