//! Keeps `oom_score_adj` right for every process of every pod: those that are there, and those that appear later.
//!
//! **Problem.** A container runtime sets the score of the process that it starts, once. What is put into the container
//! afterwards by anybody else keeps the score that it came with, and so does what it forks: a shell's 0 in a BestEffort
//! pod (1000) outlives the whole node. And a score that depends on the pod's place among the others
//! ([`OomOrder::Dynamic`]) must follow when that changes.
//!
//! **Approach.** For each cgroup of a wanted pod the score is known from the pod's specification
//! ([`OomScores::follow`]). A record of the kernel names each process that is put into a cgroup ([`OomScores::came`]);
//! it gets its score right after the reaction to that record ([`OomScores::keep_on`]). The process may have forked
//! before it was served, and a child copies its parent's score (kernel/fork.c, `copy_signal`): so `cgroup.procs` is
//! read again until a reading has no process that was not looked at, with a bound, and twice more a little later. Forks
//! after that inherit the right score, and `execve` changes none, so nothing else has to be watched. Without the
//! record, `cgroup.procs` is compared with what it had half a second before.
//!
//! **Nobody waits for a write.** Any process can hold up all writers of scores for seconds ([`look`]). So a thread
//! looks at processes and writes; the loop only says at which cgroups, [`JOBS_MAX`] at a time, and each of them once.
//! What waits for a place, waits in the list of its pod, and nothing is dropped.
//!
//! **Which process is written to.** (docs/decisions/0012-oom-scores.md)
//! * A lower score than the container's: always. Protection is the node's to give. Lowering needs CAP_SYS_RESOURCE, so
//!   only a process that came from outside, its children, or one in a privileged container can have it (fs/proc/base.c,
//!   `__set_oom_adj`).
//! * A higher one: only where it cannot be the process's own choice. That is when the process has just been put there,
//!   when its cgroup is seen for the first time, or when the score is one that we gave or one that a newcomer came
//!   with. Any process may raise its own score, and some do on purpose; the kubelet, too, sets scores once. A child may
//!   be seen before the record of the newcomer that has forked it: who has a higher score for no known reason is in
//!   doubt for two minutes, and judged again.
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
mod look;
mod queue;
mod thread;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_core::kube::pod::Pod;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::policy::oom::score::oom_score_adj;
use rustix::io::Errno;
use tokio::sync::Notify;

use self::budget::Allowance;
use self::look::{Job, Looker, Processes, Report, Why};
use self::queue::Queue;
use self::thread::ScoreThread;
use crate::host::HostRoot;
use crate::host::clock::{now_ns, rest_until_ns};
use crate::host::file::FileError;
use crate::host::shown::Show as _;
use crate::pods::kill::KeptCgroup;
use crate::pods::names::{container_id, container_name};
use crate::pods::registry::Pods;

/// Newcomers that may wait to be served. Beyond, their cgroups are reviewed instead.
const NEWCOMERS_MAX: usize = 256;
/// Cgroups that are at the thread or on their way.
const JOBS_MAX: usize = 16;
/// At so many nothing else is handed out that is due because its pod was followed.
const FOLLOWED_MAX: usize = 2;
/// Processes looked at, and scores written, for one cgroup in one go, and how long. The rest follows later.
const FOLLOWING: Allowance = Allowance {
    processes: 256,
    writes: 128,
    for_ns: 2_000_000,
};
/// The same when newcomers are served. Those come first.
const SERVING: Allowance = Allowance {
    processes: 1024,
    writes: 1024,
    for_ns: 5_000_000,
};
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
/// How often all processes of a cgroup are looked at.
const REVIEW_NS: u64 = 60_000_000_000;
/// At the end of the agent, scores are put back for as long as one look ends within this after the one before it, and
/// no longer than that in all.
const PUT_BACK_PATIENCE: Duration = Duration::from_secs(1);
const PUT_BACK_WITHIN: Duration = Duration::from_secs(10);

/// A process that was put into a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newcomer {
    cgroup_id: u64,
    pid: u32,
}

/// The scores of all wanted pods.
#[derive(Debug)]
pub struct OomScores {
    capacity_bytes: NonZeroU64,
    compare_ns: u64,
    pods: BTreeMap<PodUid, PodScores>,
    /// Whose cgroup each is: of all that have a score.
    by_id: BTreeMap<u64, PodUid>,
    newcomers: Vec<Newcomer>,
    /// When each cgroup is to be compared again, and its id.
    again: BTreeSet<(u64, u64)>,
    /// What looks before have not come to.
    left: Queue,
    /// What was found due when its pod was followed.
    due: Queue,
    /// What was served last: the others have their turn before the next of its kind.
    served: Why,
    /// Nothing is served before this.
    rest_until_ns: u64,
    /// Cgroups at the thread.
    away: Vec<u64>,
    /// One of them is served.
    is_serving: bool,
    /// `None` in tests that look by themselves.
    thread: Option<ScoreThread>,
    overflowed: u64,
    /// What the thread has done.
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
    /// A write took long.
    #[error("{path}: the write took {ms} ms: other processes hold up the kernel's lock of all OOM scores, so scores of new processes come late; look for a process that writes its own oom_score_adj again and again (reported once)", path = path.shown())]
    HeldUp {
        /// Which process's.
        path: PathBuf,
        /// How long.
        ms: u64,
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
    /// Writes that others have held up.
    pub held_up: u64,
}

#[derive(Debug)]
struct PodScores {
    pod: Arc<Pod>,
    /// Scores that take the place of the specification's, by container.
    ordered: BTreeMap<String, i32>,
    /// Names of containers by the runtime's ids, as the runtime gave them before the API lists them.
    given_names: BTreeMap<String, String>,
    cgroups: Vec<CgroupScores>,
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
    dir: Arc<Path>,
    /// `None`: the pod's own cgroup.
    container: Option<String>,
    /// The container's own, and none that it has made inside, whatever name that has.
    is_container: bool,
    wanted: i32,
    /// `None`: they are at the thread.
    processes: Option<Box<Processes>>,
    /// Newcomers of it are not known.
    missed_some: bool,
    /// It waits in one of the queues.
    is_queued: bool,
    /// When to compare again after newcomers were served, nanoseconds, and how often that was done.
    again: Option<(u64, usize)>,
}

impl CgroupScores {
    /// Hands out what is known of its processes, with what has changed since. `None`: that is away.
    fn take(&mut self) -> Option<Box<Processes>> {
        let mut processes = self.processes.take()?;
        if processes.wanted != self.wanted {
            processes.want(self.wanted);
        }
        if std::mem::take(&mut self.missed_some) {
            processes.missed_some();
        }
        Some(processes)
    }

    fn is_changed(&self, processes: &Processes) -> bool {
        self.missed_some || processes.wanted != self.wanted
    }

    /// Whether it is time to look. Not while it is looked at.
    fn is_due(&self, now_ns: u64, compare_ns: u64) -> bool {
        self.processes
            .as_ref()
            .is_some_and(|it| self.is_changed(it) || it.is_due(now_ns, compare_ns))
    }

    /// Whether the last look has left something.
    fn is_left(&self) -> bool {
        self.processes
            .as_ref()
            .is_some_and(|it| self.is_changed(it) || it.review_due || it.is_unfinished)
    }

    /// Whether its processes may have another score than the wanted one. True while they are away.
    fn is_to_be_put_back(&self) -> bool {
        self.processes
            .as_ref()
            .is_none_or(|it| self.is_changed(it) || it.has_begun_change())
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
}

impl OomScores {
    /// Starts the thread, with no pods yet. `has_move_records`: records name the processes that are put into cgroups.
    /// `news` is notified when [`OomScores::keep_on`] has something to take in.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn start(
        host: HostRoot,
        capacity_bytes: NonZeroU64,
        has_move_records: bool,
        news: Arc<Notify>,
    ) -> std::io::Result<Self> {
        let thread = ScoreThread::start(Looker::new(host), news)?;
        Ok(Self {
            thread: Some(thread),
            ..Self::without_thread(capacity_bytes, has_move_records)
        })
    }

    fn without_thread(capacity_bytes: NonZeroU64, has_move_records: bool) -> Self {
        Self {
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
            left: Queue::default(),
            due: Queue::default(),
            served: Why::Left,
            rest_until_ns: 0,
            away: Vec::with_capacity(JOBS_MAX),
            is_serving: false,
            thread: None,
            overflowed: 0,
            counts: Counts::default(),
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        Counts {
            overflowed: self.overflowed,
            ..self.counts
        }
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
        self.overflowed += 1;
        if let Some(cgroup) = self.cgroup_mut(cgroup_id) {
            cgroup.missed_some = true;
        }
    }

    /// Records of newcomers were lost: every process is looked at as a newcomer.
    pub fn missed_some(&mut self) {
        let cgroups = self.pods.values_mut().flat_map(|pod| &mut pod.cgroups);
        cgroups.for_each(|cgroup| cgroup.missed_some = true);
    }

    /// When [`OomScores::keep_on`] has something to do, unless the thread has told something; never when `None`.
    pub fn serve_at_ns(&self) -> Option<u64> {
        if self.away.len() >= JOBS_MAX {
            return None;
        }
        if !self.due.is_empty() && self.away.len() < FOLLOWED_MAX {
            return Some(0);
        }
        if self.is_serving {
            return None;
        }
        let wanted_ns = if self.newcomer().is_some() || !self.left.is_empty() {
            0
        } else {
            self.to_be_compared()?.0
        };
        Some(wanted_ns.max(self.rest_until_ns))
    }

    /// Takes in what the thread has done, and hands out what is due: the new processes of the next cgroup in turn, with
    /// the children that they have forked meanwhile; a second look after such; what a look has left. These rest after
    /// each. Besides, what was found due by [`OomScores::follow`]. Does not wait for the thread.
    pub fn keep_on(&mut self, now_ns: u64, failed: &mut dyn FnMut(&PodUid, &OomScoreError)) {
        while let Some(report) = self.thread.as_ref().and_then(ScoreThread::report) {
            self.take_in(report, now_ns, failed);
        }
        while let Some(job) = self.next_job(now_ns) {
            self.send(job);
        }
    }

    fn send(&mut self, job: Job) {
        // A thread that panics ends the agent: it takes the job.
        if let Some(Err(error)) = self.thread.as_ref().map(|thread| thread.send(job)) {
            tracing::error!(%error, "a look at the OOM scores of a cgroup is lost");
        }
    }

    /// What the thread is to do next, if anything.
    fn next_job(&mut self, now_ns: u64) -> Option<Job> {
        if self.away.len() >= JOBS_MAX {
            return None;
        }
        if !self.is_serving && self.rest_until_ns <= now_ns {
            for why in self.served.others_first() {
                if let Some(job) = self.next_of(why, now_ns) {
                    self.served = why;
                    self.is_serving = true;
                    return Some(job);
                }
            }
        }
        // They are done one after the other: newcomers are not to wait behind more of them.
        while self.away.len() < FOLLOWED_MAX
            && let Some((uid, id)) = self.due.pop()
        {
            if let Some(job) = self.dequeued(uid, id, Why::Followed) {
                return Some(job);
            }
        }
        None
    }

    fn next_of(&mut self, why: Why, now_ns: u64) -> Option<Job> {
        match why {
            Why::Newcomers => {
                while let Some(id) = self.newcomer() {
                    if let Some(job) = self.serving(id, why) {
                        return Some(job);
                    }
                }
            }
            Why::Again => {
                while let Some((at_ns, id)) = self.to_be_compared().filter(|(at, _)| *at <= now_ns)
                {
                    let due = self.cgroup_mut(id).and_then(|cgroup| cgroup.again);
                    let is_due = due.is_some_and(|(due_ns, _)| due_ns == at_ns);
                    if is_due && let Some(job) = self.serving(id, why) {
                        return Some(job);
                    }
                    // It has gone, and may have come back as another one with the same id.
                    self.again.remove(&(at_ns, id));
                }
            }
            Why::Left | Why::Followed => {
                while let Some((uid, id)) = self.left.pop() {
                    if let Some(job) = self.dequeued(uid, id, why) {
                        return Some(job);
                    }
                }
            }
        }
        None
    }

    /// Those of one cgroup do not wait any more.
    fn newcomers_of(&mut self, cgroup_id: u64) -> Vec<u32> {
        let mut pids = Vec::new();
        self.newcomers.retain(|newcomer| {
            let is_here = newcomer.cgroup_id == cgroup_id;
            if is_here {
                pids.push(newcomer.pid);
            }
            !is_here
        });
        pids
    }

    /// The cgroup of the first newcomer that can be served now.
    fn newcomer(&self) -> Option<u64> {
        let ids = self.newcomers.iter().map(|newcomer| newcomer.cgroup_id);
        ids.into_iter().find(|id| !self.away.contains(id))
    }

    /// The first cgroup that is to be compared again and can be, and when.
    fn to_be_compared(&self) -> Option<(u64, u64)> {
        let mut again = self.again.iter();
        again.find(|(_, id)| !self.away.contains(id)).copied()
    }

    fn dequeued(&mut self, uid: PodUid, id: u64, why: Why) -> Option<Job> {
        self.pods.get_mut(&uid)?.cgroup_mut(id)?.is_queued = false;
        self.job(uid, id, why, Vec::new(), FOLLOWING)
    }

    fn serving(&mut self, id: u64, why: Why) -> Option<Job> {
        let newcomers = self.newcomers_of(id);
        let why = if newcomers.is_empty() {
            why
        } else {
            Why::Newcomers
        };
        let uid = self.by_id.get(&id)?.clone();
        self.job(uid, id, why, newcomers, SERVING)
    }

    /// `None`: the cgroup is gone, or away. Then it is looked at again when it comes back, if something is left.
    fn job(
        &mut self,
        uid: PodUid,
        cgroup_id: u64,
        why: Why,
        newcomers: Vec<u32>,
        allowance: Allowance,
    ) -> Option<Job> {
        let processes = self.pods.get_mut(&uid)?.cgroup_mut(cgroup_id)?.take()?;
        self.away.push(cgroup_id);
        Some(Job {
            uid,
            cgroup_id,
            why,
            newcomers,
            allowance,
            processes,
        })
    }

    /// The thread has looked at a cgroup.
    fn take_in(
        &mut self,
        report: Report,
        now_ns: u64,
        failed: &mut dyn FnMut(&PodUid, &OomScoreError),
    ) {
        let Report {
            uid,
            cgroup_id,
            why,
            was_first,
            took_ns,
            processes,
            failures,
            counts,
        } = report;
        self.counts = counts;
        if let Some(at) = self.away.iter().position(|id| *id == cgroup_id) {
            self.away.swap_remove(at);
        }
        if why.is_served() {
            self.is_serving = false;
            // Newcomers, however many, cost a tenth of the thread's time.
            self.rest_until_ns = rest_until_ns(now_ns.saturating_sub(took_ns), now_ns);
        }
        for failure in &failures {
            failed(&uid, failure);
        }
        let pod = self.pods.get_mut(&uid);
        let cgroup = pod.and_then(|pod| pod.cgroup_mut(cgroup_id));
        // It may be gone, or another one may have its id.
        let is_its =
            |cgroup: &&mut CgroupScores| cgroup.processes.is_none() && cgroup.dir == processes.dir;
        let Some(cgroup) = cgroup.filter(is_its) else {
            return;
        };
        let has_processes = !processes.known.is_empty();
        let is_unfinished = processes.is_unfinished;
        cgroup.processes = Some(processes);
        let done = match why {
            Why::Newcomers => Some(0),
            Why::Again if is_unfinished => Some(0),
            Why::Again => cgroup.again.map(|(_, done)| done + 1),
            // They may have come just now, with forks in flight.
            Why::Left | Why::Followed => (was_first && has_processes).then_some(0),
        };
        if let Some(done) = done {
            cgroup.compare_again(done, now_ns, &mut self.again);
        }
        if cgroup.is_left() && !std::mem::replace(&mut cgroup.is_queued, true) {
            self.left.push(&uid, cgroup_id);
        }
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

    /// Brings one pod up to date: its specification, its cgroups, and what is due of looking at their processes, which
    /// [`OomScores::keep_on`] hands out.
    pub fn follow(&mut self, uid: &PodUid, pods: &Pods, now_ns: u64) {
        let Some(pod) = pods.pod(uid) else {
            return;
        };
        let scores = self.pods.entry(uid.clone()).or_insert_with(|| PodScores {
            pod: Arc::clone(pod),
            ordered: BTreeMap::new(),
            given_names: BTreeMap::new(),
            cgroups: Vec::new(),
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
        self.forget_gone(uid);
        self.queue_due(uid, now_ns);
    }

    /// Cgroups that the pod has no more do not wait, and one that has come back under the same id waits once.
    fn forget_gone(&mut self, uid: &PodUid) {
        let Some(scores) = self.pods.get_mut(uid) else {
            return;
        };
        let waits = |cgroup: &CgroupScores, id: u64| cgroup.id == id && cgroup.is_queued;
        for queue in [&mut self.left, &mut self.due] {
            queue.retain_of(uid, |id| {
                scores.cgroups.iter().any(|cgroup| waits(cgroup, id))
            });
        }
    }

    /// What is due of a pod's cgroups waits for its turn.
    fn queue_due(&mut self, uid: &PodUid, now_ns: u64) {
        let Some(scores) = self.pods.get_mut(uid) else {
            return;
        };
        for cgroup in &mut scores.cgroups {
            if let Some(processes) = &mut cgroup.processes
                && now_ns.saturating_sub(processes.reviewed_ns) >= REVIEW_NS
            {
                processes.review_due = true;
            }
            if !cgroup.is_queued && cgroup.is_due(now_ns, self.compare_ns) {
                cgroup.is_queued = true;
                self.due.push(uid, cgroup.id);
            }
        }
    }

    /// Forgets pods that are not wanted any more.
    pub fn retain(&mut self, pods: &Pods) {
        self.pods.retain(|uid, _| pods.contains(uid));
        self.by_id.retain(|_, uid| pods.contains(uid));
        for queue in [&mut self.left, &mut self.due] {
            queue.retain(|uid| pods.contains(uid));
        }
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

    /// All containers get the scores of their specifications again, as far as the thread goes on with it. Returns in
    /// how many cgroups they may not have them.
    pub fn put_back(&mut self, failed: &mut dyn FnMut(&PodUid, &OomScoreError)) -> usize {
        let until = Instant::now() + PUT_BACK_WITHIN;
        self.newcomers.clear();
        self.again.clear();
        (self.left, self.due) = (Queue::default(), Queue::default());
        for (uid, scores) in &mut self.pods {
            scores.ordered.clear();
            scores.score_anew(self.capacity_bytes);
            for cgroup in &mut scores.cgroups {
                // One that is away comes back first.
                let is_due = cgroup.processes.is_some() && cgroup.is_to_be_put_back();
                cgroup.is_queued = is_due;
                if is_due {
                    self.due.push(uid, cgroup.id);
                }
            }
        }
        loop {
            while let Some(job) = self.next_to_put_back() {
                self.send(job);
            }
            let left = until.saturating_duration_since(Instant::now());
            let wait = PUT_BACK_PATIENCE.min(left);
            let thread = self.thread.as_ref().filter(|_| !self.away.is_empty());
            let Some(report) = thread.and_then(|thread| thread.report_within(wait)) else {
                break;
            };
            let (uid, id) = (report.uid.clone(), report.cgroup_id);
            self.take_in(report, now_ns(), failed);
            let pod = self.pods.get_mut(&uid);
            if let Some(cgroup) = pod.and_then(|pod| pod.cgroup_mut(id)) {
                cgroup.is_queued = cgroup.is_to_be_put_back();
                if cgroup.is_queued {
                    self.due.push(&uid, id);
                }
            }
        }
        let cgroups = self.pods.values().flat_map(|pod| &pod.cgroups);
        cgroups.filter(|cgroup| cgroup.is_to_be_put_back()).count()
    }

    fn next_to_put_back(&mut self) -> Option<Job> {
        while self.away.len() < JOBS_MAX {
            let (uid, id) = self.due.pop()?;
            let job = self.dequeued(uid, id, Why::Followed);
            if job.is_some() {
                return job;
            }
        }
        None
    }
}

impl PodScores {
    fn cgroup_mut(&mut self, id: u64) -> Option<&mut CgroupScores> {
        self.cgroups.iter_mut().find(|cgroup| cgroup.id == id)
    }

    /// The pod's cgroups as they are now.
    fn find_cgroups<'a>(
        &mut self,
        found: impl Iterator<Item = KeptCgroup<'a>>,
        capacity_bytes: NonZeroU64,
    ) {
        let mut is_there = vec![false; self.cgroups.len()];
        let mut new = Vec::new();
        for found in found {
            let (dir, id) = (found.dir, found.id);
            // A new directory of the same name is a new cgroup, and an id may come back under another name.
            let same = |cgroup: &CgroupScores| cgroup.id == id && *cgroup.dir == *dir;
            if let Some(at) = self.cgroups.iter().position(same) {
                is_there[at] = true;
                continue;
            }
            let container = match found.container_name() {
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
            let shared: Arc<Path> = Arc::from(dir);
            new.push(CgroupScores {
                id,
                is_container: found.is_container(),
                container,
                wanted,
                processes: Some(Box::new(Processes::new(Arc::clone(&shared), wanted))),
                dir: shared,
                missed_some: false,
                is_queued: false,
                again: None,
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
            cgroup.wanted = wanted.unwrap_or(cgroup.wanted);
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

#[cfg(test)]
mod tests;
