//! What `plimsoll run` says on standard output: one line per thing that happened, for people or for programs.
//!
//! Lines are written after the agent has acted. A reader that is slow or gone must not hold it up: standard output is
//! written by a thread of its own behind a bounded queue, and lines that do not fit are counted. The newest are kept
//! for those who ask later ([`RecentLine`]).

mod text;

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event;
use plimsoll_core::model::telling::Severity;
use serde::{Deserialize, Serialize};

use crate::host::output::Output;
use crate::host::shown::line;
use crate::host::worker::{NotTaken, WorkerThread};
use crate::kernel::Account;
use crate::probe::ladder::Choice;
use crate::record::timeline::Finished;
use text::{seconds, text};

/// Lines that may wait for a slow reader.
const QUEUE_LINES: usize = 4096;
/// Of the writer thread.
const STACK_BYTES: usize = 128 << 10;
/// The newest lines that are kept.
pub(crate) const KEPT_LINES: usize = 64;
/// Warnings among them.
const KEPT_WARNINGS: usize = KEPT_LINES / 2;
/// Characters of a line that is kept.
const KEPT_CHARACTERS: usize = 400;

/// A line that has been said, for those who ask later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecentLine {
    /// Which it is of all that this agent has said, from 1.
    pub number: u64,
    /// How much it matters.
    pub severity: Severity,
    /// The line as people read it, with its time (CLOCK_MONOTONIC, seconds) if it has one; not more than its first.
    pub text: String,
}

impl RecentLine {
    /// A line that is kept.
    pub fn new(number: u64, severity: Severity, text: &str) -> Self {
        let first = text.trim_start().lines().next().unwrap_or_default();
        Self {
            number,
            severity,
            text: first.chars().take(KEPT_CHARACTERS).collect(),
        }
    }

    /// A decision, as `plimsoll run` says it.
    pub fn decision(number: u64, at_ns: u64, severity: Severity, decision: &Decision) -> Self {
        let text = format!("{} {}", seconds(at_ns), line(&decision.to_string()));
        Self::new(number, severity, &text)
    }
}

/// Keeps the newest lines. Of a flood of warnings, which pods can cause, as many are kept as leave room for what was
/// done.
fn keep(newest: &mut VecDeque<Arc<RecentLine>>, line: RecentLine) {
    let is_warning = |line: &RecentLine| line.severity == Severity::Warning;
    let mut warnings = newest.iter().filter(|kept| is_warning(kept));
    if is_warning(&line) && warnings.nth(KEPT_WARNINGS - 1).is_some() {
        if let Some(oldest) = newest.iter().position(|kept| is_warning(kept)) {
            newest.remove(oldest);
        }
    } else if newest.len() == KEPT_LINES {
        newest.pop_front();
    }
    newest.push_back(Arc::new(line));
}

/// One line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line<'a> {
    /// The agent is ready: pods and thresholds are known.
    Started(Started<'a>),
    /// A decision, other than arming and sampling.
    Decision {
        /// When: CLOCK_MONOTONIC, nanoseconds.
        at_ns: u64,
        /// The pod it concerns, `namespace/name`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pod: Option<&'a str>,
        /// How much it matters.
        #[serde(skip)]
        severity: Severity,
        /// The decision.
        decision: &'a Decision,
        /// The same in words.
        text: String,
    },
    /// An evicted pod has left.
    EvictionFinished {
        /// `namespace/name`.
        pod: &'a str,
        /// Its steps.
        #[serde(flatten)]
        finished: &'a Finished,
    },
    /// Disk space was freed without ending a pod.
    DiskFreed {
        /// Bytes.
        bytes: u64,
        /// Inodes.
        inodes: u64,
        /// Directories of ended pods that are gone.
        items: u64,
        /// Ended containers that are gone.
        containers: u64,
        /// Unused images that are gone.
        images: u64,
    },
    /// The kernel's OOM killer struck.
    KernelOomKill(KernelOomKill<'a>),
    /// The last line in the kernel killed a process.
    LastLineKill(LastLineKill<'a>),
    /// A pod has run into its memory limits.
    MemoryLimit(MemoryLimit<'a>),
    /// Tasks of a pod have waited for memory, or needed pages back that had been taken away.
    MemoryStall(MemoryStall<'a>),
    /// A pod has used up its CPU quota.
    Throttled(Throttled<'a>),
    /// Something is not as it should be; the agent goes on.
    Warning {
        /// What, and what to do.
        text: String,
    },
    /// The agent is about to end.
    Stopped(Stopped),
}

/// The agent is ready: thresholds are known, and the pods that manifests have.
#[derive(Debug, Serialize)]
pub struct Started<'a> {
    /// Its process.
    pub pid: u32,
    /// What serves each signal.
    pub mechanisms: &'a [Choice],
    /// What this host does not allow, one line each.
    pub lost: &'a [String],
    /// How many pods are wanted.
    pub pods: usize,
    /// What holds the BPF programs; `None` where there are none.
    pub programs: Option<&'a str>,
}

/// The kernel's OOM killer struck.
#[derive(Debug, Serialize)]
pub struct KernelOomKill<'a> {
    /// When: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// The pod, `namespace/name`, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<&'a str>,
    /// The victim's process, the first of several; absent where kills are only counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tgid: Option<u32>,
    /// Its command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<&'a str>,
    /// How many processes: more than 1 for a container or pod that was killed as a whole, and where kills are only
    /// counted.
    pub kills: u64,
}

/// The last line in the kernel killed a process.
#[derive(Debug, Serialize)]
pub struct LastLineKill<'a> {
    /// When: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// The pod, `namespace/name`; its identity if it is not known any more.
    pub pod: &'a str,
    /// The process's command; absent where the record was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<&'a str>,
    /// What was done, and why.
    pub kill: &'a event::LastLineKill,
    /// Why, in words.
    pub text: String,
}

/// A pod has run into its memory limits.
#[derive(Debug, Serialize)]
pub struct MemoryLimit<'a> {
    /// When it was looked at: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// `namespace/name`.
    pub pod: &'a str,
    /// How often since the last such line: over `memory.high`, sent to reclaim.
    pub high: u64,
    /// At `memory.max`, had to reclaim first.
    pub max: u64,
    /// Reclaim made no room.
    pub oom: u64,
    /// Reclaimed from although below `memory.low`.
    pub low: u64,
}

/// Tasks of a pod have waited for memory, or needed pages back that had been taken away.
#[derive(Debug, Serialize)]
pub struct MemoryStall<'a> {
    /// When it was looked at: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// `namespace/name`.
    pub pod: &'a str,
    /// For how long since the last such line, milliseconds, for whatever reason; each task by itself where BPF counts,
    /// else the time in which any did. The next three are parts of it, known with BPF alone.
    pub ms: u64,
    /// Reclaimed because of the pod's limits.
    pub limit_reclaim_ms: u64,
    /// Slept because `memory.high` is exceeded.
    pub high_ms: u64,
    /// Reclaimed for the node.
    pub node_reclaim_ms: u64,
    /// Pages read back that had been taken away, from files and from swap.
    pub refaulted_pages: u64,
    /// Pages read from swap.
    pub swapped_in_pages: u64,
}

/// A pod has used up its CPU quota.
#[derive(Debug, Serialize)]
pub struct Throttled<'a> {
    /// When it was looked at: CLOCK_MONOTONIC, nanoseconds.
    pub at_ns: u64,
    /// `namespace/name`.
    pub pod: &'a str,
    /// How often since the last such line.
    pub count: u64,
    /// For how long, milliseconds, each CPU by itself.
    pub ms: u64,
}

/// The agent is about to end.
#[derive(Debug, Serialize)]
pub struct Stopped {
    /// Records from the kernel.
    pub records: Records,
    /// Lines that did not fit into the queue of this output.
    pub lines_lost: u64,
    /// Steps that are missing from the journal.
    pub journal_lost: u64,
    /// CPU time of the agent, milliseconds.
    pub cpu_ms: u64,
    /// Its resident memory, bytes.
    pub rss_bytes: u64,
}

impl Line<'_> {
    fn severity(&self) -> Severity {
        match self {
            Line::Decision { severity, .. } => *severity,
            Line::KernelOomKill(_) | Line::LastLineKill(_) => Severity::Critical,
            Line::MemoryLimit(_)
            | Line::MemoryStall(_)
            | Line::Throttled(_)
            | Line::Warning { .. } => Severity::Warning,
            Line::Started(_)
            | Line::EvictionFinished { .. }
            | Line::DiskFreed { .. }
            | Line::Stopped(_) => Severity::Info,
        }
    }
}

/// Records from the kernel. `produced = consumed + dropped`, once the rings are drained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Records {
    /// Sent by the programs.
    pub produced: u64,
    /// Read by the agent.
    pub consumed: u64,
    /// Lost to a full ring.
    pub dropped: u64,
    /// Events that got no record of their own and are in their cgroup's totals.
    pub folded: u64,
    /// Pairs of kind and CPU for which the account does not add up.
    pub open: u64,
}

impl Records {
    /// The sums of an account.
    #[must_use]
    pub fn of(account: &Account) -> Self {
        let all = account.all();
        Self {
            produced: all.produced,
            consumed: all.consumed,
            dropped: all.dropped,
            folded: all.folded,
            open: account.open().count() as u64,
        }
    }
}

/// Standard output of `plimsoll run`.
#[derive(Debug)]
pub struct Reporter {
    output: Output,
    color: bool,
    writer: WorkerThread<Vec<u8>>,
    lost: u64,
    said: u64,
    newest: VecDeque<Arc<RecentLine>>,
}

impl Reporter {
    /// Starts the writer, which has `out` to itself; `color` is for [`Output::Text`].
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(
        output: Output,
        color: bool,
        mut out: impl Write + Send + 'static,
    ) -> std::io::Result<Self> {
        let writer = WorkerThread::start("output", STACK_BYTES, QUEUE_LINES, move |queue, _| {
            // A reader that has gone away ends the output, not the agent.
            for line in queue {
                let line: Vec<u8> = line;
                if out.write_all(&line).and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            output,
            color,
            writer,
            lost: 0,
            said: 0,
            newest: VecDeque::with_capacity(KEPT_LINES),
        })
    }

    /// Queues one line. Never waits.
    pub fn say(&mut self, line: &Line<'_>) {
        self.keep(line);
        let mut text = match self.output {
            Output::Text => text(line, self.color).into_bytes(),
            Output::Json => match serde_json::to_vec(line) {
                Ok(text) => text,
                Err(error) => {
                    tracing::error!(%error, "a line cannot be written as JSON");
                    self.lost += 1;
                    return;
                }
            },
        };
        text.push(b'\n');
        if self.writer.send(text) == Err(NotTaken::Full) {
            self.lost += 1;
        }
    }

    /// Lines that did not fit into the queue.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes what is queued.
    pub fn finish(mut self) {
        self.writer.end();
    }

    fn keep(&mut self, line: &Line<'_>) {
        self.said += 1;
        let line = RecentLine::new(self.said, line.severity(), &text(line, false));
        keep(&mut self.newest, line);
    }

    /// The newest lines, the oldest of them first.
    pub fn newest(&self) -> Vec<Arc<RecentLine>> {
        self.newest.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Each write, until it fails.
    struct Writes(Sender<Vec<u8>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.send(bytes.to_vec()) {
                Ok(()) => Ok(bytes.len()),
                Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_said_is_written_by_its_end_and_a_reader_that_left_holds_up_nobody() {
        let line = Line::Warning {
            text: "x".to_owned(),
        };
        for (output, written) in [
            (Output::Json, r#"{"event":"warning","text":"x"}"#),
            (Output::Text, &text(&line, false)),
        ] {
            let (writes, wrote) = channel();
            let mut reporter = Reporter::start(output, false, Writes(writes)).unwrap();
            reporter.say(&line);
            reporter.say(&line);
            reporter.finish();
            let all: Vec<u8> = wrote.iter().flatten().collect();
            let all = String::from_utf8(all).unwrap();
            assert_eq!(all, format!("{written}\n{written}\n"));
        }
        let (writes, wrote) = channel();
        drop(wrote);
        let mut reporter = Reporter::start(Output::Json, false, Writes(writes)).unwrap();
        for _ in 0..2 * QUEUE_LINES {
            reporter.say(&line);
        }
        assert_eq!(reporter.newest().len(), KEPT_WARNINGS);
        reporter.finish();
    }

    #[test]
    fn a_flood_of_warnings_leaves_what_was_done() {
        let mut newest = VecDeque::new();
        let mut said = |severity, times: u64| {
            for _ in 0..times {
                keep(&mut newest, RecentLine::new(0, severity, "x"));
            }
            let count = |of| newest.iter().filter(|line| line.severity == of).count();
            (count(Severity::Critical), count(Severity::Warning))
        };
        assert_eq!(said(Severity::Critical, 3), (3, 0));
        assert_eq!(said(Severity::Warning, 1000), (3, 32));
        assert_eq!(said(Severity::Critical, 1000), (64, 0));
        assert_eq!(said(Severity::Warning, 1000), (32, 32));
    }
}
