//! What a session keeps, within bounds.
//!
//! Samples and records come in here while the session runs; figures per cgroup are added up as they come, so that they
//! are whole even where samples find no room. Writers and the summary read a finished [`Recording`] and change nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};

use plimsoll_abi::sampling::SampleEvent;

use super::groups::{GroupIndex, Groups};
use super::spans::{Mark, MarkKind, Span, SpanKind, Spans};
use super::stacks::Stacks;
use super::symbols::Symbols;
use plimsoll::host::cgroup_paths::Ids;
use plimsoll::kernel::decode::{
    Body, MemoryLimitEvent, OomLimit, ReclaimPhase, Record, RefaultKind, StallCause, ThrottlePhase,
};
use plimsoll::kernel::perf_sample::Sample;

/// Threads that are told apart.
const THREADS_MAX: usize = 65_536;
/// Kills of which a second record is recognised.
const KILLS_REMEMBERED: usize = 64;

/// A thread that was sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    /// Process id in the initial namespace.
    pub(super) tgid: u32,
    /// Thread id in the initial namespace.
    pub(super) tid: u32,
    /// Its command name when it was last sampled.
    pub(super) comm: String,
    /// Its cgroup when it was last sampled.
    pub(super) group: GroupIndex,
}

/// A sample that was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// When, `CLOCK_MONOTONIC`.
    pub(super) ts_ns: u64,
    /// How much it stands for.
    pub(super) weight: u64,
    /// A node of the tree of stacks.
    pub(super) stack: u32,
    /// An index of [`Recording::threads`].
    pub(super) thread: u32,
    /// Its cgroup.
    pub(super) group: GroupIndex,
    /// On which CPU.
    pub(super) cpu: u32,
    /// What was sampled.
    pub(super) event: SampleEvent,
}

/// Samples of one event in one cgroup, whether they were kept or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    /// How many.
    pub(super) samples: u64,
    /// What they stand for.
    pub(super) weight: u64,
}

/// Waits of one kind in one cgroup, by the kernel side's own totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// How many.
    pub(super) count: u64,
    /// Their time, one after the other.
    pub(super) sum_ns: u64,
    /// The longest.
    pub(super) max_ns: u64,
}

/// What the session has lost, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// Samples that found their ring full, by event.
    pub(super) samples_dropped: BTreeMap<SampleEvent, u64>,
    /// Samples that could not be read.
    pub(super) samples_unreadable: u64,
    /// Samples beyond `--max-samples`.
    pub(super) samples_not_kept: u64,
    /// Samples whose stacks were cut because there are too many different ones.
    pub(super) stacks_cut: u64,
    /// Records dropped because their ring buffer was full.
    pub(super) records_dropped: u64,
    /// Records that could not be read.
    pub(super) records_unreadable: u64,
    /// Events of cgroups for which there was no room in a map.
    pub(super) records_untracked: u64,
    /// Spans and marks beyond `--max-samples`.
    pub(super) spans_not_kept: u64,
}

impl Losses {
    /// Every loss with its name; all of them, so that none is overlooked.
    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("samplesDropped", self.samples_dropped.values().sum()),
            ("samplesUnreadable", self.samples_unreadable),
            ("samplesNotKept", self.samples_not_kept),
            ("stacksCut", self.stacks_cut),
            ("recordsDropped", self.records_dropped),
            ("recordsUnreadable", self.records_unreadable),
            ("recordsUntracked", self.records_untracked),
            ("spansNotKept", self.spans_not_kept),
        ]
    }
}

/// An event or a kind of record that this host does not give, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// As in `--events`.
    pub(super) event: &'static str,
    /// Whether a part of it is there all the same.
    pub(super) in_part: bool,
    /// The kernel's reason, and what to do.
    pub(super) reason: String,
}

/// The three clocks at one moment, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Clocks {
    /// What every time in a recording is.
    pub(super) monotonic_ns: u64,
    /// What Perfetto's time line is.
    pub(super) boottime_ns: u64,
    /// The wall's.
    pub(super) realtime_ns: u64,
}

/// A finished session.
#[derive(Debug)]
pub(super) struct Recording {
    /// When it began.
    pub(super) clocks: Clocks,
    /// When it ended, `CLOCK_MONOTONIC`.
    pub(super) end_ns: u64,
    /// Samples per second and CPU that were asked for.
    pub(super) frequency: u32,
    /// Which events were sampled.
    pub(super) events: Vec<SampleEvent>,
    /// What was selected, in words.
    pub(super) selection: String,
    /// Cgroups.
    pub(super) groups: Groups,
    /// Threads that were sampled.
    pub(super) threads: Vec<Thread>,
    /// Samples, by time.
    pub(super) samples: Vec<Kept>,
    /// Their stacks.
    pub(super) stacks: Stacks,
    /// What the frames are called.
    pub(super) symbols: Symbols,
    /// What lasted.
    pub(super) spans: Vec<Span>,
    /// What happened.
    pub(super) marks: Vec<Mark>,
    /// Figures of samples.
    pub(super) sums: BTreeMap<(GroupIndex, SampleEvent), Sum>,
    /// Figures of waits.
    pub(super) waits: BTreeMap<(GroupIndex, SpanKind), Waits>,
    /// What was lost.
    pub(super) losses: Losses,
    /// What this host does not give.
    pub(super) refused: Vec<Refused>,
}

/// A session that runs.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) groups: Groups,
    pub(super) stacks: Stacks,
    pub(super) spans: Spans,
    start_ns: u64,
    threads: Vec<Thread>,
    thread_index: HashMap<(u32, u32), u32>,
    samples: Vec<Kept>,
    samples_max: usize,
    samples_not_kept: u64,
    sums: BTreeMap<(GroupIndex, SampleEvent), Sum>,
    kills: VecDeque<u32>,
}

impl Recorder {
    pub(super) fn new(groups: Groups, stacks: Stacks, start_ns: u64, samples_max: usize) -> Self {
        Self {
            groups,
            stacks,
            spans: Spans::new(start_ns, samples_max),
            start_ns,
            threads: Vec::new(),
            thread_index: HashMap::new(),
            samples: Vec::new(),
            samples_max,
            samples_not_kept: 0,
            sums: BTreeMap::new(),
            kills: VecDeque::new(),
        }
    }

    /// Keeps a sample, or counts it.
    pub(super) fn sample(&mut self, sample: &Sample<'_>) {
        // The events begin one after the other, and the session when all have.
        if sample.ts_ns < self.start_ns {
            return;
        }
        let group = self.groups.of(Ids::Memory, sample.cgroup_id);
        let sum = self.sums.entry((group, sample.event)).or_default();
        sum.samples += 1;
        sum.weight += sample.weight;
        let thread = self.thread(sample, group);
        let (true, Some(thread)) = (self.samples.len() < self.samples_max, thread) else {
            self.samples_not_kept += 1;
            return;
        };
        self.samples.push(Kept {
            ts_ns: sample.ts_ns,
            weight: sample.weight,
            stack: self.stacks.keep(sample),
            thread,
            group,
            cpu: sample.cpu,
            event: sample.event,
        });
    }

    fn thread(&mut self, sample: &Sample<'_>, group: GroupIndex) -> Option<u32> {
        let key = (sample.tgid, sample.tid);
        if let Some(index) = self.thread_index.get(&key) {
            let thread = &mut self.threads[*index as usize];
            thread.group = group;
            if thread.comm.as_bytes() != sample.comm {
                thread.comm = String::from_utf8_lossy(sample.comm).into_owned();
            }
            return Some(*index);
        }
        if self.threads.len() >= THREADS_MAX {
            return None;
        }
        let index = self.threads.len() as u32;
        self.thread_index.insert(key, index);
        self.threads.push(Thread {
            tgid: sample.tgid,
            tid: sample.tid,
            comm: String::from_utf8_lossy(sample.comm).into_owned(),
            group,
        });
        Some(index)
    }

    /// Makes a record a part of the time line, if it concerns a selected cgroup.
    pub(super) fn record(&mut self, record: &Record<'_>) {
        let (ts_ns, id) = (record.ts_ns, record.cgroup_id);
        match record.body {
            Body::CgroupMkdir {
                hierarchy_id, path, ..
            } => self.groups.made(hierarchy_id, id, path),
            Body::Throttle {
                phase: ThrottlePhase::Stop,
                count,
                sum_ns,
                ..
            } => {
                let group = self.groups.of(Ids::Cpu, id);
                if self.groups.is_selected(group) {
                    self.spans
                        .totals(group, SpanKind::Throttled, ts_ns, count, sum_ns);
                }
            }
            Body::MemoryStall {
                cause,
                count,
                sum_ns,
                ..
            } => {
                let group = self.groups.of(Ids::Memory, id);
                if self.groups.is_selected(group) {
                    self.spans
                        .totals(group, span_of(cause), ts_ns, count, sum_ns);
                }
            }
            Body::MemoryEvent { event, count, .. } => {
                let kind = match event {
                    MemoryLimitEvent::High => MarkKind::High,
                    MemoryLimitEvent::Max => MarkKind::Max,
                    MemoryLimitEvent::Oom => MarkKind::Oom,
                    // Kills have records of their own, with names; "low" is no event of a limit.
                    MemoryLimitEvent::Low
                    | MemoryLimitEvent::OomKill
                    | MemoryLimitEvent::OomGroupKill => return,
                };
                self.happened(id, kind, ts_ns, count);
            }
            Body::Refault { what, count, .. } => {
                let kind = match what {
                    RefaultKind::Anon => MarkKind::RefaultAnon,
                    RefaultKind::File => MarkKind::RefaultFile,
                    RefaultKind::SwapIn => MarkKind::SwapIn,
                };
                self.happened(id, kind, ts_ns, count);
            }
            Body::NodeReclaim { phase, .. } => {
                let kind = match phase {
                    ReclaimPhase::KswapdWake => MarkKind::KswapdWake,
                    ReclaimPhase::DirectReclaim => MarkKind::DirectReclaim,
                };
                // Each NUMA node counts for itself, so one record is one event here.
                let node = self.groups.node();
                if ts_ns >= self.start_ns {
                    self.spans.mark(node, kind, ts_ns, 1, None);
                }
            }
            Body::OomKill {
                limit, tgid, comm, ..
            } => self.oom_kill(id, ts_ns, limit, tgid, comm),
            _ => {}
        }
    }

    fn happened(&mut self, id: u64, kind: MarkKind, ts_ns: u64, count: u64) {
        let group = self.groups.of(Ids::Memory, id);
        if self.groups.is_selected(group) {
            self.spans.happened(group, kind, ts_ns, count);
        }
    }

    fn oom_kill(&mut self, id: u64, ts_ns: u64, limit: OomLimit, tgid: u32, comm: &[u8]) {
        // The choice of a victim and the victim are two records where both hooks work.
        if self.kills.contains(&tgid) || ts_ns < self.start_ns {
            return;
        }
        if self.kills.len() == KILLS_REMEMBERED {
            self.kills.pop_front();
        }
        self.kills.push_back(tgid);
        let group = self.groups.of(Ids::Memory, id);
        if !self.groups.is_selected(group) {
            return;
        }
        let limit = match limit {
            OomLimit::Node => " for the node".to_owned(),
            OomLimit::Cgroup(limit) => {
                let owner = self.groups.of(Ids::Memory, limit);
                format!(
                    " for the limit of {}",
                    self.groups.all()[owner as usize].path
                )
            }
            OomLimit::Unknown => String::new(),
        };
        let detail = format!("process {tgid} ({}){limit}", String::from_utf8_lossy(comm));
        self.spans
            .mark(group, MarkKind::OomKill, ts_ns, 1, Some(detail));
    }

    /// Everything that was kept, with what is known only at the end.
    pub(super) fn finish(mut self, end: Ending) -> Recording {
        // CPUs send in turn, but not in order.
        self.samples
            .sort_by_key(|sample| (sample.ts_ns, sample.cpu));
        let mut losses = end.losses;
        losses.samples_not_kept = self.samples_not_kept;
        losses.stacks_cut = self.stacks.cut;
        losses.spans_not_kept = self.spans.not_kept;
        let symbols = Symbols::resolve(&self.stacks);
        let (spans, marks) = self.spans.finish();
        Recording {
            clocks: end.clocks,
            end_ns: end.end_ns,
            frequency: end.frequency,
            events: end.events,
            selection: end.selection,
            groups: self.groups,
            threads: self.threads,
            samples: self.samples,
            stacks: self.stacks,
            symbols,
            spans,
            marks,
            sums: self.sums,
            waits: end.waits,
            losses,
            refused: end.refused,
        }
    }
}

/// What only the session knows, at its end.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) clocks: Clocks,
    pub(super) end_ns: u64,
    pub(super) frequency: u32,
    pub(super) events: Vec<SampleEvent>,
    pub(super) selection: String,
    pub(super) waits: BTreeMap<(GroupIndex, SpanKind), Waits>,
    pub(super) losses: Losses,
    pub(super) refused: Vec<Refused>,
}

/// Where a wait for memory is shown.
pub(super) fn span_of(cause: StallCause) -> SpanKind {
    match cause {
        StallCause::Memory => SpanKind::MemoryStall,
        StallCause::Limit => SpanKind::LimitReclaim,
        StallCause::High => SpanKind::HighSleep,
        StallCause::Node => SpanKind::NodeReclaim,
    }
}
