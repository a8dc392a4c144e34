//! A look at the processes of one cgroup, on a thread of its own.
//!
//! **Problem.** A write of `oom_score_adj` takes a lock of the whole machine (fs/proc/base.c, `oom_adj_mutex`), which
//! any process takes for as long as it likes: it writes its own score from a thousand threads, and shares its memory,
//! so that each write goes over all processes. 4.7 to 5.9 s for one write of a SCHED_FIFO thread were measured.
//! **Approach.** The loop does not look: what is known of a cgroup's processes ([`Processes`]) goes to the thread in a
//! [`Job`] and comes back in a [`Report`]. While it is away nobody else looks at that cgroup, so descriptor, listing
//! and write are in one hand.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_core::kube::pod_uid::PodUid;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::budget::{Allowance, Budget};
use super::{Counts, OomScoreError};
use crate::host::HostRoot;
use crate::host::clock::now_ns;
use crate::host::file::{FileError, read_text};

/// Readings of one `cgroup.procs` in a row. Each finds only what was forked during the one before it.
const ROUNDS_MAX: u32 = 8;
/// Open `/proc/PID/oom_score_adj` at one time.
const BATCH: usize = 64;
/// How many earlier scores of a cgroup are recognised as not being a process's own choice.
const RECENT_MAX: usize = 4;
/// After this time a higher score counts as the process's own choice and not as inherited: the record of the newcomer
/// that has forked it is served no later, also where each of the looks before it is held up for seconds.
pub(super) const DOUBT_NS: u64 = 120_000_000_000;
/// Processes of one cgroup in doubt at a time. Beyond, their scores are taken to be chosen.
const DOUBTFUL_MAX: usize = 256;
/// A write that takes longer is held up by others, which is said once.
const SLOW_WRITE_NS: u64 = 1_000_000_000;

/// A look at one cgroup.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) uid: PodUid,
    pub(super) cgroup_id: u64,
    pub(super) why: Why,
    /// Those that records have named.
    pub(super) newcomers: Vec<u32>,
    pub(super) allowance: Allowance,
    pub(super) processes: Box<Processes>,
}

/// What a look is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Records have named newcomers.
    Newcomers,
    /// Those were served a little before.
    Again,
    /// A look before has left something.
    Left,
    /// The pod was followed, and it was time.
    Followed,
}

impl Why {
    /// Whether a rest follows, and another of these is handed out only then.
    pub(super) fn is_served(self) -> bool {
        self != Self::Followed
    }

    /// What is served, this last.
    pub(super) fn others_first(self) -> [Self; 3] {
        match self {
            Self::Newcomers => [Self::Again, Self::Left, Self::Newcomers],
            Self::Again => [Self::Left, Self::Newcomers, Self::Again],
            Self::Left | Self::Followed => [Self::Newcomers, Self::Again, Self::Left],
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) uid: PodUid,
    pub(super) cgroup_id: u64,
    pub(super) why: Why,
    /// Until then no look at all had been finished.
    pub(super) was_first: bool,
    /// How long it took, nanoseconds.
    pub(super) took_ns: u64,
    pub(super) processes: Box<Processes>,
    pub(super) failures: Vec<OomScoreError>,
    /// All that the thread has done so far.
    pub(super) counts: Counts,
}

/// Who does the jobs.
#[derive(Debug)]
pub(super) struct Looker {
    host: HostRoot,
    pub(super) counts: Counts,
}

impl Looker {
    pub(super) fn new(host: HostRoot) -> Self {
        Self {
            host,
            counts: Counts::default(),
        }
    }

    pub(super) fn turn<'a>(
        &'a mut self,
        budget: &'a mut Budget,
        failed: &'a mut dyn FnMut(OomScoreError),
    ) -> Turn<'a> {
        Turn {
            host: &self.host,
            counts: &mut self.counts,
            budget,
            failed,
        }
    }

    /// Does a job, which begins now.
    pub(super) fn done(&mut self, job: Job, began_ns: u64) -> Report {
        let Job {
            uid,
            cgroup_id,
            why,
            newcomers,
            allowance,
            mut processes,
        } = job;
        let was_first = !processes.established;
        let mut failures = Vec::new();
        let mut budget = Budget::from_now(allowance);
        let mut failed = |error| failures.push(error);
        let mut turn = self.turn(&mut budget, &mut failed);
        processes.look(&newcomers, began_ns, &mut turn);
        Report {
            uid,
            cgroup_id,
            why,
            was_first,
            took_ns: now_ns().saturating_sub(began_ns),
            processes,
            failures,
            counts: self.counts,
        }
    }
}

/// What is known of the processes of one cgroup.
#[derive(Debug)]
pub(super) struct Processes {
    pub(super) dir: Arc<Path>,
    pub(super) wanted: i32,
    /// What was wanted before, newest last.
    held: Recent,
    /// What newcomers had.
    pub(super) inherited: Recent,
    /// Looked at already; sorted. Before a first look at all, those of it so far.
    pub(super) known: Vec<u32>,
    /// Those of them with a higher score that was perhaps inherited, and since when that is open, nanoseconds.
    doubtful: Vec<(u32, u64)>,
    /// Whether a first look at all has been taken.
    established: bool,
    /// Newcomers that were not looked at in time.
    unserved: Vec<u32>,
    /// Some were not looked at in time.
    pub(super) is_unfinished: bool,
    compared_ns: u64,
    pub(super) reviewed_ns: u64,
    /// A look at all that was begun and not finished, or that a new score makes necessary.
    pub(super) review_due: bool,
    /// One that was begun has come to this process.
    reviewed_to: Option<u32>,
    /// That its processes cannot be listed has been said.
    said_unreadable: bool,
}

/// The last few scores.
#[derive(Debug, Default)]
pub(super) struct Recent(Vec<i32>);

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

/// What looking at a cgroup may use, and where it tells.
pub(super) struct Turn<'a> {
    host: &'a HostRoot,
    counts: &'a mut Counts,
    budget: &'a mut Budget,
    failed: &'a mut dyn FnMut(OomScoreError),
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
            (self.failed)(OomScoreError::Refused { path, adj, source });
        }
    }

    /// A write took so long.
    fn took(&mut self, path: &Path, ns: u64) {
        if ns >= SLOW_WRITE_NS {
            self.counts.held_up += 1;
            if self.counts.held_up == 1 {
                let (path, ms) = (path.to_owned(), ns / 1_000_000);
                (self.failed)(OomScoreError::HeldUp { path, ms });
            }
        }
    }
}

impl Processes {
    /// Nobody has been looked at.
    pub(super) fn new(dir: Arc<Path>, wanted: i32) -> Self {
        Self {
            dir,
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
            said_unreadable: false,
        }
    }

    /// They are to have another score.
    pub(super) fn want(&mut self, wanted: i32) {
        self.held.push(self.wanted);
        self.wanted = wanted;
        self.review_due = true;
        self.reviewed_to = None;
        if !self.established {
            // Some of them have the score of before.
            self.known.clear();
        }
    }

    /// Newcomers are not known: as if it were seen for the first time, since a newcomer's score cannot be told from a
    /// chosen one.
    pub(super) fn missed_some(&mut self) {
        self.established = false;
        self.known.clear();
        self.doubtful.clear();
        self.review_due = true;
        self.reviewed_to = None;
    }

    /// Whether it is time to look again.
    pub(super) fn is_due(&self, now_ns: u64, compare_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(self.compared_ns);
        let is_begun = !self.established || self.is_unfinished;
        self.review_due || is_begun || age_ns >= compare_ns
    }

    /// Whether a new score may not have come to all.
    pub(super) fn has_begun_change(&self) -> bool {
        self.review_due || !self.established && self.is_unfinished
    }

    /// Looks at the unknown processes and at `newcomers`; at all when a review is due. What the budget does not reach
    /// is gone on with at the next look.
    pub(super) fn look(&mut self, newcomers: &[u32], now_ns: u64, turn: &mut Turn<'_>) {
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
                    (turn.failed)(error.into());
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
            let began_ns = now_ns();
            let written = write_score(&fd, self.wanted);
            turn.took(&path, now_ns().saturating_sub(began_ns));
            match written {
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
