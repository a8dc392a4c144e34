//! Keeps `oom_score_adj` right for every process of every pod: those that are there, and those that appear later.
//!
//! **Problem.** A container runtime sets the score of the process that it starts, once. What is put into the container
//! afterwards by anybody else keeps the score that it came with, and so does what it forks: a shell's 0 in a BestEffort
//! pod (1000) outlives the whole node. And a score that depends on the pod's place among the others
//! ([`OomOrder::Dynamic`]) must follow when that changes.
//!
//! **Approach.** For each cgroup of a wanted pod the score is known from the pod's specification
//! ([`OomScores::follow`]). A record of the kernel names each process that is put into a cgroup ([`OomScores::came`]);
//! it gets its score right after the reaction to that record ([`OomScores::serve`]). The process may have forked before
//! it was served, and a child copies its parent's score (kernel/fork.c, `copy_signal`): so `cgroup.procs` is read again
//! until a reading has no process that was not looked at, with a bound, and twice more a little later. Forks after that
//! inherit the right score, and `execve` changes none, so nothing else has to be watched. Without the record,
//! `cgroup.procs` is compared with what it had half a second before.
//!
//! **Which process is written to.** (docs/decisions/0012-oom-scores.md)
//! * A lower score than the container's: always. Protection is the node's to give. Lowering needs CAP_SYS_RESOURCE, so
//!   only a process that came from outside, its children, or one in a privileged container can have it (fs/proc/base.c,
//!   `__set_oom_adj`).
//! * A higher one: only where it cannot be the process's own choice. That is when the process has just been put there,
//!   when its cgroup is seen for the first time, or when the score is one that we gave or one that a newcomer came
//!   with. Any process may raise its own score, and some do on purpose; the kubelet, too, sets scores once. A child may
//!   be seen before the record of the newcomer that has forked it: who has a higher score for no known reason is in
//!   doubt for ten seconds, and judged again.
//! * -1000 is never given: the kernel would pass over the process for ever.
//!
//! **No stranger is written to.** A score is written through a descriptor of `/proc/PID/oom_score_adj` that was opened
//! before a reading of `cgroup.procs` which has that pid. The descriptor stays with its process (ESRCH after its end),
//! so the proof in [`crate::pods::kill`] holds here, too.
//!
//! **Terms.** *newcomer*: a process that a record names. *unknown*: one that was not in `cgroup.procs` when it was last
//! read. *review*: a look at all processes of a cgroup, not only the unknown ones.
//!
//! [`OomOrder::Dynamic`]: plimsoll_core::model::options::OomOrder::Dynamic
#![forbid(unsafe_code)]

mod budget;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::policy::oom::score::oom_score_adj;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::budget::Budget;
use crate::host::HostRoot;
use crate::host::clock::rest_until_ns;
use crate::host::file::{FileError, read_text};
use crate::host::shown::Show as _;
use crate::pods::names::{container_id, container_name};
use crate::pods::registry::Pods;

/// Newcomers that may wait to be served. Beyond, their cgroups are reviewed instead.
const NEWCOMERS_MAX: usize = 256;
/// Readings of one `cgroup.procs` in a row. Each finds only what was forked during the one before it.
const ROUNDS_MAX: u32 = 8;
/// Processes looked at, and scores written, for one pod in one turn of the loop, and how long. The rest follows in a
/// later turn.
const LOOKS_PER_TURN: u32 = 256;
const WRITES_PER_TURN: u32 = 128;
const TURN_NS: u64 = 2_000_000;
/// The same when newcomers are served. Those come first.
const LOOKS_PER_SERVING: u32 = 1024;
const SERVING_NS: u64 = 5_000_000;
/// Open `/proc/PID/oom_score_adj` at one time.
const BATCH: usize = 64;
/// How many earlier scores of a cgroup are recognised as not being a process's own choice.
const RECENT_MAX: usize = 4;
/// How often `cgroup.procs` is compared where records tell of newcomers: only forks that were in flight can be found.
const COMPARE_WITH_RECORDS_NS: u64 = 5_000_000_000;
/// The same where nothing tells of them. Housekeeping comes this often then.
const COMPARE_WITHOUT_RECORDS_NS: u64 = 450_000_000;
/// After newcomers were served `cgroup.procs` is compared again so much later, and twice more: a fork that was in
/// flight has copied the old score and is not listed yet (milliseconds on a slow machine, more where its CPU is taken
/// away).
const AGAIN_NS: [u64; 3] = [20_000_000, 200_000_000, 1_000_000_000];
/// Containers of one pod whose names the runtime gave. The API lists them soon after.
const GIVEN_NAMES_MAX: usize = 64;
/// After this time a higher score counts as the process's own choice and not as inherited: the record of the newcomer
/// that has forked it comes no later, also where the loop's time is scarce.
const DOUBT_NS: u64 = 10_000_000_000;
/// Processes of one cgroup in doubt at a time. Beyond, their scores are taken to be chosen.
const DOUBTFUL_MAX: usize = 256;
/// How often all processes of a cgroup are looked at.
const REVIEW_NS: u64 = 60_000_000_000;

/// A process that was put into a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newcomer {
    cgroup_id: u64,
    pid: u32,
}

/// The scores of all wanted pods.
#[derive(Debug)]
pub struct OomScores {
    host: HostRoot,
    capacity_bytes: NonZeroU64,
    compare_ns: u64,
    pods: BTreeMap<PodUid, PodScores>,
    /// Whose cgroup each is: of all that have a score.
    by_id: BTreeMap<u64, PodUid>,
    newcomers: Vec<Newcomer>,
    /// When each cgroup is to be compared again, and its id.
    again: BTreeSet<(u64, u64)>,
    /// Newcomers were served last: a cgroup that is to be compared again has its turn before the next ones.
    served_newcomers: bool,
    /// Nothing is served before this.
    rest_until_ns: u64,
    turn_ns: u64,
    serving_ns: u64,
    counts: Counts,
}

/// Why a score is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OomScoreError {
    /// `cgroup.procs` cannot be read.
    #[error(transparent)]
    Cgroup(#[from] FileError),
    /// The kernel refused the score. Said once; further ones are counted.
    #[error("{path}: cannot be set to {adj}: {source}; lowering oom_score_adj needs CAP_SYS_RESOURCE, and for another user's process CAP_DAC_OVERRIDE (reported once)", path = path.shown())]
    Refused {
        /// Which process's.
        path: PathBuf,
        /// What it should be.
        adj: i32,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// What was done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Scores written.
    pub written: u64,
    /// Scores that the kernel refused (no CAP_SYS_RESOURCE).
    pub refused: u64,
    /// Newcomers whose records were too many at once; their cgroups were reviewed instead.
    pub overflowed: u64,
    /// Readings of a `cgroup.procs`.
    pub readings: u64,
}

#[derive(Debug)]
struct PodScores {
    pod: Arc<Pod>,
    /// Scores that take the place of the specification's, by container.
    ordered: BTreeMap<String, i32>,
    /// Names of containers by the runtime's ids, as the runtime gave them before the API lists them.
    given_names: BTreeMap<String, String>,
    cgroups: Vec<CgroupScores>,
    /// The cgroup that has its turn first.
    next: usize,
}

/// A container with a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerScore<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its cgroup's directory.
    pub dir: &'a Path,
    /// The score that its processes have, or are about to get.
    pub adj: i32,
    /// The kubelet's.
    pub kubelet_adj: i32,
}

/// One cgroup with a known score.
#[derive(Debug)]
struct CgroupScores {
    id: u64,
    dir: PathBuf,
    /// `None`: the pod's own cgroup.
    container: Option<String>,
    /// The container's own, and none that it has made inside, whatever name that has.
    is_container: bool,
    wanted: i32,
    /// What was wanted before, newest last.
    held: Recent,
    /// What newcomers had.
    inherited: Recent,
    /// Looked at already; sorted. Before a first look at all, those of it so far.
    known: Vec<u32>,
    /// Those of them with a higher score that was perhaps inherited, and since when that is open, nanoseconds.
    doubtful: Vec<(u32, u64)>,
    /// Whether a first look at all has been taken.
    established: bool,
    /// Newcomers that were not looked at in time.
    unserved: Vec<u32>,
    /// Some were not looked at in time.
    is_unfinished: bool,
    compared_ns: u64,
    reviewed_ns: u64,
    /// A look at all that was begun and not finished, or that a new score makes necessary.
    review_due: bool,
    /// One that was begun has come to this process.
    reviewed_to: Option<u32>,
    /// When to compare again after newcomers were served, nanoseconds, and how often that was done.
    again: Option<(u64, usize)>,
    /// That its processes cannot be listed has been said.
    said_unreadable: bool,
}

/// The last few scores.
#[derive(Debug, Default)]
struct Recent(Vec<i32>);

impl Recent {
    fn push(&mut self, adj: i32) {
        self.0.retain(|known| *known != adj);
        if self.0.len() == RECENT_MAX {
            self.0.remove(0);
        }
        self.0.push(adj);
    }

    fn has(&self, adj: i32) -> bool {
        self.0.contains(&adj)
    }
}

/// A process, and how it is known.
type Looked = (u32, Seen);

/// How well a process is known when it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// A newcomer, or one in a cgroup that is seen for the first time.
    First,
    /// Not in the last reading: forked since.
    Unknown,
    /// Looked at before.
    Known,
}

impl OomScores {
    /// No pods yet. `has_move_records`: records name the processes that are put into cgroups.
    pub fn new(host: HostRoot, capacity_bytes: NonZeroU64, has_move_records: bool) -> Self {
        Self {
            host,
            capacity_bytes,
            compare_ns: if has_move_records {
                COMPARE_WITH_RECORDS_NS
            } else {
                COMPARE_WITHOUT_RECORDS_NS
            },
            pods: BTreeMap::new(),
            by_id: BTreeMap::new(),
            newcomers: Vec::with_capacity(NEWCOMERS_MAX),
            again: BTreeSet::new(),
            served_newcomers: false,
            rest_until_ns: 0,
            turn_ns: TURN_NS,
            serving_ns: SERVING_NS,
            counts: Counts::default(),
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A record: a process was put into a cgroup, or was born in one that is not its parent's. A cgroup that has no
    /// score is no pod's, and costs nothing; or its pod has not been rescanned since it was made, and then
    /// [`OomScores::follow`] finds the process there. Allocates nothing.
    pub fn came(&mut self, cgroup_id: u64, pid: u32) {
        if !self.by_id.contains_key(&cgroup_id) {
            return;
        }
        if self.newcomers.len() < NEWCOMERS_MAX {
            self.newcomers.push(Newcomer { cgroup_id, pid });
            return;
        }
        self.counts.overflowed += 1;
        if let Some(cgroup) = self.cgroup_mut(cgroup_id) {
            cgroup.missed_some();
        }
    }

    /// Records of newcomers were lost: every process is looked at as a newcomer.
    pub fn missed_some(&mut self) {
        let cgroups = self.pods.values_mut().flat_map(|pod| &mut pod.cgroups);
        cgroups.for_each(CgroupScores::missed_some);
    }

    /// When [`OomScores::serve`] has something to do; never when `None`.
    pub fn serve_at_ns(&self) -> Option<u64> {
        let wanted_ns = if self.newcomers.is_empty() {
            self.again.first()?.0
        } else {
            0
        };
        Some(wanted_ns.max(self.rest_until_ns))
    }

    /// Scores the new processes of the next cgroup in turn, and the children that they have forked meanwhile.
    /// [`OomScores::served`] is to follow. Newcomers and cgroups that are to be compared again take turns, so that
    /// newcomers of one pod keep no other pod from the second look. Returns whose cgroup it was.
    pub fn serve(&mut self, now_ns: u64, failed: &mut dyn FnMut(&OomScoreError)) -> Option<PodUid> {
        let first = self.newcomers.first().map(|newcomer| newcomer.cgroup_id);
        let due = self.again.first().filter(|(at_ns, _)| *at_ns <= now_ns);
        let due = due.map(|(_, id)| *id);
        let next = if self.served_newcomers {
            due.or(first)
        } else {
            first.or(due)
        };
        let cgroup_id = next?;
        let mut pids = Vec::new();
        self.newcomers.retain(|newcomer| {
            let is_here = newcomer.cgroup_id == cgroup_id;
            if is_here {
                pids.push(newcomer.pid);
            }
            !is_here
        });
        self.served_newcomers = !pids.is_empty();
        let Self {
            host,
            pods,
            by_id,
            counts,
            again,
            ..
        } = self;
        let uid = by_id.get(&cgroup_id).cloned();
        let pod = uid.as_ref().and_then(|uid| pods.get_mut(uid));
        let cgroup = pod.and_then(|pod| pod.cgroup_mut(cgroup_id));
        let Some(cgroup) = cgroup else {
            // It is gone.
            again.retain(|(_, id)| *id != cgroup_id);
            return None;
        };
        let mut budget = Budget::of(LOOKS_PER_SERVING, LOOKS_PER_SERVING, self.serving_ns);
        let mut turn = Turn {
            host,
            counts,
            budget: &mut budget,
            failed,
        };
        cgroup.look(&pids, now_ns, &mut turn);
        let done = match cgroup.again {
            Some((_, done)) if pids.is_empty() && !cgroup.is_unfinished => done + 1,
            _ => 0,
        };
        cgroup.compare_again(done, now_ns, again);
        uid
    }

    /// A serving took so long: the next one comes after a rest, so that newcomers, however many, cost a tenth of the
    /// loop's time.
    pub fn served(&mut self, began_ns: u64, ended_ns: u64) {
        self.rest_until_ns = rest_until_ns(began_ns, ended_ns);
    }

    fn cgroup_mut(&mut self, cgroup_id: u64) -> Option<&mut CgroupScores> {
        let uid = self.by_id.get(&cgroup_id)?;
        self.pods.get_mut(uid)?.cgroup_mut(cgroup_id)
    }

    /// A pod's cgroups are others than these.
    fn index(&mut self, uid: &PodUid, before: &[u64]) {
        for id in before {
            // It may be another pod's by now.
            if self.by_id.get(id) == Some(uid) {
                self.by_id.remove(id);
            }
        }
        let scores = self.pods.get(uid);
        let cgroups = scores.into_iter().flat_map(|scores| &scores.cgroups);
        self.by_id
            .extend(cgroups.map(|cgroup| (cgroup.id, uid.clone())));
    }

    /// Brings one pod up to date: its specification, its cgroups, and what is due of looking at their processes.
    ///
    /// Returns whether something is left for the next turn.
    pub fn follow(
        &mut self,
        uid: &PodUid,
        pods: &Pods,
        now_ns: u64,
        failed: &mut dyn FnMut(&OomScoreError),
    ) -> bool {
        let Some(pod) = pods.pod(uid) else {
            return false;
        };
        let scores = self.pods.entry(uid.clone()).or_insert_with(|| PodScores {
            pod: Arc::clone(pod),
            ordered: BTreeMap::new(),
            given_names: BTreeMap::new(),
            cgroups: Vec::new(),
            next: 0,
        });
        let is_changed = !Arc::ptr_eq(&scores.pod, pod);
        if is_changed {
            scores.pod = Arc::clone(pod);
        }
        let before: Vec<u64> = scores.cgroups.iter().map(|cgroup| cgroup.id).collect();
        scores.find_cgroups(pods.cgroups_of(uid), self.capacity_bytes);
        if is_changed {
            scores.score_anew(self.capacity_bytes);
        }
        self.index(uid, &before);
        let Some(scores) = self.pods.get_mut(uid) else {
            return false;
        };
        let mut budget = Budget::of(LOOKS_PER_TURN, WRITES_PER_TURN, self.turn_ns);
        let count = scores.cgroups.len();
        for offset in 0..count {
            let at = (scores.next + offset) % count;
            let cgroup = &mut scores.cgroups[at];
            if now_ns.saturating_sub(cgroup.reviewed_ns) >= REVIEW_NS {
                cgroup.review_due = true;
            }
            if !cgroup.is_due(now_ns, self.compare_ns) {
                continue;
            }
            if budget.is_over() {
                // No cgroup keeps those after it from their turn.
                scores.next = at;
                return true;
            }
            let mut turn = Turn {
                host: &self.host,
                counts: &mut self.counts,
                budget: &mut budget,
                failed,
            };
            let is_first = !cgroup.established;
            cgroup.look(&[], now_ns, &mut turn);
            if is_first && !cgroup.known.is_empty() {
                // They may have come just now, with forks in flight.
                cgroup.compare_again(0, now_ns, &mut self.again);
            }
        }
        let mut cgroups = scores.cgroups.iter();
        cgroups.any(|cgroup| cgroup.review_due || cgroup.is_unfinished)
    }

    /// Forgets pods that are not wanted any more.
    pub fn retain(&mut self, pods: &Pods) {
        self.pods.retain(|uid, _| pods.contains(uid));
        self.by_id.retain(|_, uid| pods.contains(uid));
    }

    /// Gives a container another score than its specification does, or with `None` that one again.
    /// [`OomScores::follow`] writes it.
    pub fn order(&mut self, uid: &PodUid, container: &str, adj: Option<i32>) {
        let Some(scores) = self.pods.get_mut(uid) else {
            return;
        };
        let before = match adj {
            Some(adj) => scores.ordered.insert(container.to_owned(), adj),
            None => scores.ordered.remove(container),
        };
        if before != adj {
            scores.score_anew(self.capacity_bytes);
        }
    }

    /// The scores of a pod's containers that take the place of the specification's, by name.
    pub fn ordered(&self, uid: &PodUid) -> Option<&BTreeMap<String, i32>> {
        self.pods.get(uid).map(|scores| &scores.ordered)
    }

    /// What the specification has for those.
    pub fn specified(&self, uid: &PodUid) -> BTreeMap<String, i32> {
        let Some(scores) = self.pods.get(uid) else {
            return BTreeMap::new();
        };
        let containers = scores
            .ordered
            .keys()
            .filter_map(|name| Some((name, scores.pod.container(name)?)));
        let adj = |container| oom_score_adj(&scores.pod, container, self.capacity_bytes);
        containers
            .map(|(name, container)| (name.clone(), adj(container)))
            .collect()
    }

    /// The runtime makes a container with this id: its cgroup has a name before the API lists it.
    pub fn note_made(&mut self, uid: &PodUid, id: String, container: String) {
        if let Some(scores) = self.pods.get_mut(uid) {
            if scores.given_names.len() >= GIVEN_NAMES_MAX {
                scores.given_names.clear();
            }
            scores.given_names.insert(id, container);
        }
    }

    /// A pod whose scores are kept.
    pub fn pod(&self, uid: &PodUid) -> Option<&Pod> {
        self.pods.get(uid).map(|scores| &*scores.pod)
    }

    /// A pod's containers that have a cgroup.
    pub fn containers(&self, uid: &PodUid) -> impl Iterator<Item = ContainerScore<'_>> {
        let scores = self.pods.get(uid);
        scores.into_iter().flat_map(|scores| {
            scores.cgroups.iter().filter_map(|cgroup| {
                let name = cgroup
                    .container
                    .as_deref()
                    .filter(|_| cgroup.is_container)?;
                let container = scores.pod.container(name)?;
                Some(ContainerScore {
                    name,
                    dir: &cgroup.dir,
                    adj: cgroup.wanted,
                    kubelet_adj: oom_score_adj(&scores.pod, container, self.capacity_bytes),
                })
            })
        })
    }

    /// All containers get the scores of their specifications again, at once.
    pub fn put_back(&mut self, failed: &mut dyn FnMut(&OomScoreError)) {
        for scores in self.pods.values_mut() {
            scores.ordered.clear();
            scores.score_anew(self.capacity_bytes);
            for cgroup in &mut scores.cgroups {
                let mut budget = Budget::unlimited();
                let mut turn = Turn {
                    host: &self.host,
                    counts: &mut self.counts,
                    budget: &mut budget,
                    failed,
                };
                if cgroup.review_due {
                    cgroup.look(&[], cgroup.compared_ns, &mut turn);
                }
            }
        }
    }

    /// The score that a container's processes have, or are about to get. `None` for a container without a cgroup.
    pub fn score(&self, uid: &PodUid, container: &str) -> Option<i32> {
        let cgroups = &self.pods.get(uid)?.cgroups;
        cgroups
            .iter()
            .find(|cgroup| cgroup.container.as_deref() == Some(container))
            .map(|cgroup| cgroup.wanted)
    }
}

impl PodScores {
    fn cgroup_mut(&mut self, id: u64) -> Option<&mut CgroupScores> {
        self.cgroups.iter_mut().find(|cgroup| cgroup.id == id)
    }

    /// The pod's cgroups as they are now: `found` has the pod's own first.
    fn find_cgroups<'a>(
        &mut self,
        found: impl Iterator<Item = (&'a Path, u64)>,
        capacity_bytes: NonZeroU64,
    ) {
        let mut pod_dir: Option<&Path> = None;
        let mut is_there = vec![false; self.cgroups.len()];
        let mut new = Vec::new();
        for (dir, id) in found {
            let pod_dir = *pod_dir.get_or_insert(dir);
            // A new directory of the same name is a new cgroup, and an id may come back under another name.
            let same = |cgroup: &CgroupScores| cgroup.id == id && cgroup.dir == dir;
            if let Some(at) = self.cgroups.iter().position(same) {
                is_there[at] = true;
                continue;
            }
            let container = match container_of(pod_dir, dir) {
                None => None,
                Some(name) => match name.to_str().and_then(|name| self.named(name)) {
                    Some(name) => Some(name.to_owned()),
                    // A container runtime's: a sandbox, or a container under its id. The runtime sets their scores.
                    None => continue,
                },
            };
            let Some(wanted) = self.wanted(container.as_deref(), capacity_bytes) else {
                continue;
            };
            new.push(CgroupScores {
                id,
                dir: dir.to_owned(),
                is_container: dir.parent() == Some(pod_dir),
                container,
                wanted,
                held: Recent::default(),
                inherited: Recent::default(),
                known: Vec::new(),
                doubtful: Vec::new(),
                established: false,
                unserved: Vec::new(),
                is_unfinished: false,
                compared_ns: 0,
                reviewed_ns: 0,
                review_due: true,
                reviewed_to: None,
                again: None,
                said_unreadable: false,
            });
        }
        let mut is_there = is_there.into_iter();
        self.cgroups.retain(|_| is_there.next().unwrap_or(false));
        self.cgroups.reserve_exact(new.len());
        self.cgroups.append(&mut new);
    }

    fn score_anew(&mut self, capacity_bytes: NonZeroU64) {
        let wanted: Vec<Option<i32>> = self
            .cgroups
            .iter()
            .map(|cgroup| self.wanted(cgroup.container.as_deref(), capacity_bytes))
            .collect();
        for (cgroup, wanted) in self.cgroups.iter_mut().zip(wanted) {
            let Some(wanted) = wanted.filter(|wanted| *wanted != cgroup.wanted) else {
                continue;
            };
            cgroup.held.push(cgroup.wanted);
            cgroup.wanted = wanted;
            cgroup.review_due = true;
            cgroup.reviewed_to = None;
            if !cgroup.established {
                // Some of them have the score of before.
                cgroup.known.clear();
            }
        }
    }

    /// The container whose cgroup has this name: its own, or one that a runtime gave it.
    fn named(&self, directory: &str) -> Option<&str> {
        if let Some(container) = self.pod.container(directory) {
            return Some(&container.name);
        }
        container_name(&self.pod, directory).or_else(|| {
            let given = self.given_names.get(container_id(directory)?)?;
            // A name that the pod does not have gets no score.
            self.pod.container(given).map(|it| it.name.as_str())
        })
    }

    /// A container's score. What is in no container gets the pod's highest: nobody has asked for its protection.
    fn wanted(&self, container: Option<&str>, capacity_bytes: NonZeroU64) -> Option<i32> {
        let pod = &*self.pod;
        let of = |name: &str| {
            let container = pod.container(name)?;
            let ordered = self.ordered.get(name).copied();
            Some(ordered.unwrap_or_else(|| oom_score_adj(pod, container, capacity_bytes)))
        };
        match container {
            Some(name) => of(name),
            None => pod
                .all_containers()
                .filter_map(|container| of(&container.name))
                .max(),
        }
    }
}

/// The name of the pod's child that `dir` is, or is below; `None` for the pod's own.
fn container_of<'a>(pod_dir: &Path, dir: &'a Path) -> Option<&'a OsStr> {
    let below = dir.strip_prefix(pod_dir).ok()?;
    Some(below.components().next()?.as_os_str())
}

/// What looking at a cgroup may use, and where it tells.
struct Turn<'a> {
    host: &'a HostRoot,
    counts: &'a mut Counts,
    budget: &'a mut Budget,
    failed: &'a mut dyn FnMut(&OomScoreError),
}

/// What a look at processes has come to.
#[derive(Debug, Clone, Copy)]
struct Given {
    /// So many of them were within the budget.
    reached: usize,
    /// Each of these lives and had its score already.
    were_right: bool,
}

impl Turn<'_> {
    fn refused(&mut self, path: PathBuf, adj: i32, source: Errno) {
        self.counts.refused += 1;
        if self.counts.refused == 1 {
            (self.failed)(&OomScoreError::Refused { path, adj, source });
        }
    }
}

impl CgroupScores {
    /// Newcomers are not known: as if it were seen for the first time, since a newcomer's score cannot be told from a
    /// chosen one.
    fn missed_some(&mut self) {
        self.established = false;
        self.known.clear();
        self.doubtful.clear();
        self.review_due = true;
        self.reviewed_to = None;
    }

    fn is_due(&self, now_ns: u64, compare_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(self.compared_ns);
        let is_begun = !self.established || self.is_unfinished;
        self.review_due || is_begun || age_ns >= compare_ns
    }

    /// When it is compared next, after so many comparisons since newcomers were served.
    fn compare_again(&mut self, done: usize, now_ns: u64, again: &mut BTreeSet<(u64, u64)>) {
        if let Some((at_ns, _)) = self.again {
            again.remove(&(at_ns, self.id));
        }
        let delay_ns = AGAIN_NS.get(done);
        self.again = delay_ns.map(|delay_ns| (now_ns + delay_ns, done));
        again.extend(self.again.map(|(at_ns, _)| (at_ns, self.id)));
    }

    /// Looks at the unknown processes and at `newcomers`; at all when a review is due. What the budget does not reach
    /// is gone on with at the next look.
    fn look(&mut self, newcomers: &[u32], now_ns: u64, turn: &mut Turn<'_>) {
        let mut newcomers: Vec<u32> = newcomers
            .iter()
            .copied()
            .chain(self.unserved.drain(..))
            .collect();
        newcomers.sort_unstable();
        if self.review_due {
            self.reviewed_ns = now_ns;
        }
        // At a first look at all, who is known has just been looked at.
        let mut reviewing = std::mem::take(&mut self.review_due) && self.established;
        self.is_unfinished = false;
        self.compared_ns = now_ns;
        self.doubtful
            .retain(|(_, since_ns)| now_ns.saturating_sub(*since_ns) < DOUBT_NS);
        // Whom to judge again: a newcomer may be who has brought their score.
        let mut in_doubt = Vec::new();
        if !newcomers.is_empty() {
            in_doubt.extend(self.doubtful.iter().map(|(pid, _)| *pid));
            in_doubt.sort_unstable();
        }
        for round in 1..=ROUNDS_MAX {
            let Some(listed) = self.listed(turn) else {
                return;
            };
            let mut due = Vec::new();
            for &pid in &listed {
                let is_known = self.known.binary_search(&pid).is_ok();
                let seen = match () {
                    () if newcomers.binary_search(&pid).is_ok() => Seen::First,
                    () if !is_known && !self.established => Seen::First,
                    () if !is_known => Seen::Unknown,
                    () if in_doubt.binary_search(&pid).is_ok() => Seen::Unknown,
                    () if reviewing && self.reviewed_to.is_none_or(|to| pid > to) => Seen::Known,
                    () => continue,
                };
                due.push((pid, seen));
            }
            // What a newcomer had is what its children have copied: known before these are judged.
            due.sort_by_key(|(_, seen)| *seen != Seen::First);
            let given = self.give_all(&due, turn);
            let (done, left) = due.split_at(given.reached);
            if !left.is_empty() {
                self.put_off((done, left), &listed, &newcomers);
                self.review_due = reviewing;
                return;
            }
            self.known = listed;
            self.established = true;
            self.reviewed_to = None;
            // Where all were known, alive and right, what was forked meanwhile is right, too.
            if given.were_right && due.iter().all(|(_, seen)| *seen == Seen::Known) {
                return;
            }
            newcomers.clear();
            in_doubt.clear();
            reviewing = false;
            if round == ROUNDS_MAX {
                // It forks faster than we can read.
                self.is_unfinished = true;
            }
        }
    }

    /// The budget did not reach those that are `left`.
    fn put_off(&mut self, (done, left): (&[Looked], &[Looked]), listed: &[u32], newcomers: &[u32]) {
        // Who is in doubt was known, and is to be judged at the next look.
        let unknown = left.iter().filter(|(_, seen)| *seen == Seen::Unknown);
        let unknown: BTreeSet<u32> = unknown.map(|(pid, _)| *pid).collect();
        self.known
            .retain(|pid| listed.binary_search(pid).is_ok() && !unknown.contains(pid));
        self.known.extend(done.iter().map(|(pid, _)| *pid));
        self.known.sort_unstable();
        self.known.dedup();
        let mut reviewed = done.iter().filter(|(_, seen)| *seen == Seen::Known);
        if let Some((pid, _)) = reviewed.next_back() {
            self.reviewed_to = Some(*pid);
        }
        let left = left.iter().map(|(pid, _)| *pid);
        self.unserved
            .extend(left.filter(|pid| newcomers.binary_search(pid).is_ok()));
        self.is_unfinished = true;
    }

    /// The pids in `cgroup.procs`, sorted. `None` when the cgroup is gone or cannot be read, which is told.
    fn listed(&mut self, turn: &mut Turn<'_>) -> Option<Vec<u32>> {
        turn.counts.readings += 1;
        match read_text(self.dir.join("cgroup.procs")) {
            Ok(text) => {
                // 0 is a process of a pid namespace that we do not see.
                let pids = text.lines().filter_map(|line| line.parse::<u32>().ok());
                let mut pids: Vec<u32> = pids.filter(|pid| *pid != 0).collect();
                pids.sort_unstable();
                Some(pids)
            }
            // Of a threaded cgroup the processes are listed in the cgroup that is the root of its domain.
            Err(FileError::Unreadable {
                source: Errno::OPNOTSUPP,
                ..
            }) => None,
            Err(error) => {
                // Once for each cgroup: it would be said at each look.
                if !error.is_vanished() && !std::mem::replace(&mut self.said_unreadable, true) {
                    (turn.failed)(&error.into());
                }
                None
            }
        }
    }

    /// Looks at processes and gives those their score that need it.
    fn give_all(&mut self, due: &[Looked], turn: &mut Turn<'_>) -> Given {
        let mut all = Given {
            reached: 0,
            were_right: true,
        };
        for batch in due.chunks(BATCH) {
            let given = self.give(batch, turn);
            all.reached += given.reached;
            all.were_right &= given.were_right;
            if given.reached < batch.len() || turn.budget.is_over() {
                break;
            }
        }
        all
    }

    fn give(&mut self, batch: &[Looked], turn: &mut Turn<'_>) -> Given {
        let agent_pid = std::process::id();
        let mut open: Vec<(usize, OwnedFd, PathBuf)> = Vec::new();
        let mut given = Given {
            reached: batch.len(),
            were_right: true,
        };
        for (at, &(pid, seen)) in batch.iter().enumerate() {
            // Neither ourselves nor the machine's init, whoever put them into a pod.
            if pid == agent_pid || pid == 1 {
                continue;
            }
            if turn.budget.is_over() {
                given.reached = at;
                break;
            }
            turn.budget.looked();
            let path = turn.host.procfs(format!("{pid}/oom_score_adj"));
            match open_score(&path) {
                Ok(Some((fd, adj))) if self.is_to_be_written(adj, seen) => {
                    given.were_right = false;
                    if seen == Seen::First {
                        self.inherited.push(adj);
                    }
                    open.push((at, fd, path));
                }
                Ok(Some((_, adj))) if adj > self.wanted && seen == Seen::Unknown => {
                    self.doubt(pid);
                }
                Ok(_) => {} // right already
                // What it has forked since the listing has a score that nobody has read.
                Err(Errno::NOENT | Errno::SRCH) => given.were_right = false,
                Err(source) => {
                    given.were_right = false;
                    turn.refused(path, self.wanted, source);
                }
            }
        }
        if open.is_empty() {
            return given;
        }
        // The descriptors are older than this reading: see the module's head.
        let Some(listed) = self.listed(turn) else {
            return given;
        };
        // One is written in any case: else a list that takes the whole time would be read again and again.
        let mut has_written = false;
        for (at, fd, path) in open {
            if listed.binary_search(&batch[at].0).is_err() {
                continue;
            }
            if has_written && turn.budget.is_over() {
                given.reached = at;
                return given;
            }
            has_written = true;
            turn.budget.written();
            match write_score(&fd, self.wanted) {
                Ok(()) => turn.counts.written += 1,
                Err(Errno::SRCH) => {} // it has ended
                Err(source) => turn.refused(path, self.wanted, source),
            }
        }
        given
    }

    /// It has a higher score for no reason that is known yet.
    fn doubt(&mut self, pid: u32) {
        let is_new = self.doubtful.iter().all(|(of, _)| *of != pid);
        if is_new && self.doubtful.len() < DOUBTFUL_MAX {
            self.doubtful.push((pid, self.compared_ns));
        }
    }

    fn is_to_be_written(&self, adj: i32, seen: Seen) -> bool {
        adj < self.wanted
            || adj > self.wanted
                && match seen {
                    Seen::First => true,
                    Seen::Unknown => self.held.has(adj) || self.inherited.has(adj),
                    Seen::Known => self.held.has(adj),
                }
    }
}

/// Opens a process's score and reads it. `None` for a text that is no score.
fn open_score(path: &Path) -> rustix::io::Result<Option<(OwnedFd, i32)>> {
    let fd = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0; 16];
    let length = rustix::io::pread(&fd, &mut buffer, 0)?;
    let adj = std::str::from_utf8(&buffer[..length])
        .ok()
        .and_then(|text| text.lines().next()?.parse().ok());
    Ok(adj.map(|adj| (fd, adj)))
}

fn write_score(fd: &OwnedFd, adj: i32) -> rustix::io::Result<()> {
    rustix::io::pwrite(fd, format!("{adj}\n").as_bytes(), 0).map(drop)
}

#[cfg(test)]
mod tests;
