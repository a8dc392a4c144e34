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
mod origins;
mod report;
mod watched;

use std::collections::BTreeMap;
use std::ops::Bound;

use plimsoll_core::kube::pod_uid::PodUid;

use super::telling::Said;
use crate::host::cgroup::{CgroupMounts, Controller, Hierarchy};
use crate::kernel::decode::{Body, MemoryLimitEvent, Record, RefaultKind, StallCause};
use crate::kernel::{MemoryTotals, RefaultTotals, StallTotals, ThrottleTotals};
use crate::pods::registry::Pods;
use crate::record::limit_counts::{LimitCounts, LimitTotals};
use crate::source::pod_events::PodEvents;
pub use origins::{Origin, Origins};
use watched::{Due, Watched, raise};

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
            let watched = known.cgroups.entry(cgroup.id).or_insert_with(|| {
                Box::new(Watched::new(
                    &cgroup,
                    memory,
                    self.cpu.as_ref(),
                    is_first_look,
                ))
            });
            let events = self.events.as_mut();
            following.lacks_some |= watched.look(memory.version, self.origins, events, &mut failed);
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

#[cfg(test)]
mod tests;
