//! What `plimsoll run` says on standard output: one line per thing that happened, for people or for programs.
//!
//! Lines are written after the agent has acted. A reader that is slow or gone must not hold it up: standard output is written
//! by a thread of its own behind a bounded queue, and lines that do not fit are counted. The newest are kept for those who ask
//! later ([`RecentLine`]).

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::Arc;

use plimsoll_core::model::decision::{Decision, In};
use plimsoll_core::model::event::LastLineKill;
use plimsoll_core::model::signal::Unit;
use plimsoll_core::model::telling::Severity;
use serde::{Deserialize, Serialize};

use crate::host::output::Output;
use crate::host::worker::{NotTaken, WorkerThread};
use crate::kernel::Account;
use crate::probe::ladder::Choice;
use crate::record::timeline::Finished;

/// Lines that may wait for a slow reader.
const QUEUE_LINES: usize = 4096;
/// Of the writer thread.
const STACK_BYTES: usize = 128 << 10;
/// The newest lines that are kept.
pub(crate) const KEPT_LINES: usize = 64;
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

/// The colour of a decision's line: red where a pod is killed, green where one has left.
fn color_of(severity: Severity, decision: &Decision) -> &'static str {
    match (severity, decision) {
        (Severity::Critical, _) => "31",
        (_, Decision::Finished { .. }) => "32",
        (Severity::Warning | Severity::Info, _) => "1",
    }
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
        let text = format!("{} {decision}", seconds(at_ns));
        Self::new(number, severity, &text)
    }
}

/// One line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line<'a> {
    /// The agent is ready: pods and thresholds are known.
    Started {
        /// Its process.
        pid: u32,
        /// What serves each signal.
        mechanisms: &'a [Choice],
        /// What this host does not allow, one line each.
        lost: &'a [String],
        /// How many pods are wanted.
        pods: usize,
        /// What holds the BPF programs; `None` where there are none.
        programs: Option<&'a str>,
    },
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
    NodeReclaimed {
        /// Bytes.
        bytes: u64,
        /// Inodes.
        inodes: u64,
        /// Directories that are gone.
        items: u64,
    },
    /// The kernel's OOM killer struck.
    KernelOomKill {
        /// When: CLOCK_MONOTONIC, nanoseconds.
        at_ns: u64,
        /// The pod, `namespace/name`, if it was one.
        #[serde(skip_serializing_if = "Option::is_none")]
        pod: Option<&'a str>,
        /// The victim's process, the first of several; absent where kills are only counted.
        #[serde(skip_serializing_if = "Option::is_none")]
        tgid: Option<u32>,
        /// Its command.
        #[serde(skip_serializing_if = "Option::is_none")]
        comm: Option<&'a str>,
        /// How many processes: more than 1 for a container or pod that was killed as a whole, and where kills are only counted.
        kills: u64,
    },
    /// The last line in the kernel killed a process.
    LastLineKill {
        /// When: CLOCK_MONOTONIC, nanoseconds.
        at_ns: u64,
        /// The pod, `namespace/name`; its identity if it is not known any more.
        pod: &'a str,
        /// The process's command; absent where the record was lost.
        #[serde(skip_serializing_if = "Option::is_none")]
        comm: Option<&'a str>,
        /// What was done, and why.
        kill: &'a LastLineKill,
        /// Why, in words.
        text: String,
    },
    /// A pod has run into its memory limits.
    MemoryLimit {
        /// When it was looked at: CLOCK_MONOTONIC, nanoseconds.
        at_ns: u64,
        /// `namespace/name`.
        pod: &'a str,
        /// How often since the last such line: over `memory.high`, sent to reclaim.
        high: u64,
        /// At `memory.max`, had to reclaim first.
        max: u64,
        /// Reclaim made no room.
        oom: u64,
        /// Reclaimed from although below `memory.low`.
        low: u64,
    },
    /// Tasks of a pod have waited for memory, or needed pages back that had been taken away.
    MemoryStall {
        /// When it was looked at: CLOCK_MONOTONIC, nanoseconds.
        at_ns: u64,
        /// `namespace/name`.
        pod: &'a str,
        /// For how long since the last such line, milliseconds, for whatever reason; each task by itself where BPF counts, else the
        /// time in which any did. The next three are parts of it, known with BPF alone.
        ms: u64,
        /// Reclaimed because of the pod's limits.
        limit_reclaim_ms: u64,
        /// Slept because `memory.high` is exceeded.
        high_ms: u64,
        /// Reclaimed for the node.
        node_reclaim_ms: u64,
        /// Pages read back that had been taken away, from files and from swap.
        refaulted_pages: u64,
        /// Pages read from swap.
        swapped_in_pages: u64,
    },
    /// A pod has used up its CPU quota.
    Throttled {
        /// When it was looked at: CLOCK_MONOTONIC, nanoseconds.
        at_ns: u64,
        /// `namespace/name`.
        pod: &'a str,
        /// How often since the last such line.
        count: u64,
        /// For how long, milliseconds, each CPU by itself.
        ms: u64,
    },
    /// Something is not as it should be; the agent goes on.
    Warning {
        /// What, and what to do.
        text: String,
    },
    /// The agent is about to end.
    Stopped {
        /// Records from the kernel.
        records: Records,
        /// Lines that did not fit into the queue of this output.
        lines_lost: u64,
        /// Steps that are missing from the journal.
        journal_lost: u64,
        /// CPU time of the agent, milliseconds.
        cpu_ms: u64,
        /// Its resident memory, bytes.
        rss_bytes: u64,
    },
}

impl Line<'_> {
    fn severity(&self) -> Severity {
        match self {
            Line::Decision { severity, .. } => *severity,
            Line::KernelOomKill { .. } | Line::LastLineKill { .. } => Severity::Critical,
            Line::MemoryLimit { .. }
            | Line::MemoryStall { .. }
            | Line::Throttled { .. }
            | Line::Warning { .. } => Severity::Warning,
            Line::Started { .. }
            | Line::EvictionFinished { .. }
            | Line::NodeReclaimed { .. }
            | Line::Stopped { .. } => Severity::Info,
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
    /// Starts the writer.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(output: Output) -> std::io::Result<Self> {
        let writer = WorkerThread::start("output", STACK_BYTES, QUEUE_LINES, |queue| {
            let mut out = std::io::stdout();
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
            color: std::io::stdout().is_terminal(),
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
        if self.newest.len() == KEPT_LINES {
            self.newest.pop_front();
        }
        let line = RecentLine::new(self.said, line.severity(), &text(line, false));
        self.newest.push_back(Arc::new(line));
    }

    /// The newest lines, the oldest of them first.
    pub fn newest(&self) -> Vec<Arc<RecentLine>> {
        self.newest.iter().cloned().collect()
    }
}

/// The line for people.
fn text(line: &Line<'_>, color: bool) -> String {
    match line {
        Line::Started {
            pid,
            mechanisms,
            lost,
            pods,
            programs,
        } => {
            let mut text = format!(
                "plimsoll {} runs (pid {pid}), {pods} pods",
                env!("CARGO_PKG_VERSION")
            );
            for choice in mechanisms
                .iter()
                .filter(|choice| choice.role == crate::probe::ladder::Role::Primary)
            {
                text.push_str(&format!(
                    "\n  {:<28}{}",
                    choice.signal.name(),
                    choice.mechanism
                ));
            }
            if let Some(programs) = programs {
                text.push_str(&format!("\n  BPF programs {programs}"));
            }
            for line in *lost {
                text.push_str(&format!("\n  {} {line}", paint(color, "33", "lost:")));
            }
            text
        }
        Line::Decision {
            at_ns,
            severity,
            text,
            decision,
            ..
        } => {
            let text = paint(color, color_of(*severity, decision), text);
            format!("{} {text}", seconds(*at_ns))
        }
        Line::EvictionFinished { pod, finished } => {
            let timeline = &finished.timeline;
            let since = timeline.crossed_ns.unwrap_or(timeline.received_ns);
            let after = |at_ns: Option<u64>| {
                at_ns.map_or("-".into(), |at_ns| micros(at_ns.saturating_sub(since)))
            };
            format!(
                "{}   {pod}: {} → received {} → decided {} → signalled {} → killed {} → gone {} → memory back {}",
                seconds(finished.freed_ns),
                if timeline.crossed_ns.is_some() {
                    "crossing"
                } else {
                    "sample"
                },
                after(Some(timeline.received_ns)),
                after(Some(timeline.decided_ns)),
                after(timeline.signalled_ns),
                after(timeline.killed_ns),
                after(timeline.gone_ns),
                after(Some(finished.freed_ns)),
            )
        }
        Line::NodeReclaimed {
            bytes,
            inodes,
            items,
        } => {
            let (bytes, inodes) = (In(Unit::Bytes, *bytes), In(Unit::Inodes, *inodes));
            format!("freed {bytes} and {inodes} of ended pods: {items} directories")
        }
        Line::KernelOomKill {
            at_ns,
            pod,
            tgid,
            comm,
            kills,
        } => {
            let pod = pod.map_or(String::new(), |pod| format!(" of pod {pod}"));
            let victim = match (tgid, comm) {
                (Some(tgid), Some(comm)) if *kills > 1 => {
                    let others = kills - 1;
                    format!("process {tgid} ({comm}) and {others} more of its group,")
                }
                (Some(tgid), Some(comm)) => format!("process {tgid} ({comm})"),
                _ if *kills == 1 => "a process".to_owned(),
                _ => format!("{kills} processes"),
            };
            format!(
                "{} {} {victim}{pod}",
                seconds(*at_ns),
                paint(color, "31", "kernel OOM killer:")
            )
        }
        Line::LastLineKill {
            at_ns,
            pod,
            comm,
            kill,
            text,
        } => {
            let bytes = |bytes: u64| In(Unit::Bytes, bytes);
            let figures = match (kill.available_bytes, kill.wanted_bytes) {
                (Some(available), Some(wanted)) => {
                    format!(": {} available, {} wanted", bytes(available), bytes(wanted))
                }
                _ => String::new(),
            };
            let crossed = kill.crossed_ns.map_or(String::new(), |crossed_ns| {
                format!(
                    ", {} after a crossing",
                    micros(kill.killed_ns.saturating_sub(crossed_ns))
                )
            });
            let comm = comm.map_or(String::new(), |comm| format!(" ({comm})"));
            format!(
                "{} {} process {}{comm} of pod {pod}; {text}{figures}{crossed}",
                seconds(*at_ns),
                paint(color, "31", "last line in the kernel:"),
                kill.tgid,
            )
        }
        Line::MemoryLimit {
            at_ns,
            pod,
            high,
            max,
            oom,
            low,
        } => {
            let counts = [
                ("memory.low", low),
                ("memory.high", high),
                ("memory.max", max),
                ("out of memory", oom),
            ];
            let counts: Vec<String> = counts
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(what, count)| format!("{what} {}", times(**count)))
                .collect();
            format!(
                "{} {} {pod}: {}",
                seconds(*at_ns),
                paint(color, "33", "memory limit:"),
                counts.join(", ")
            )
        }
        Line::MemoryStall {
            at_ns,
            pod,
            ms,
            limit_reclaim_ms,
            high_ms,
            node_reclaim_ms,
            refaulted_pages,
            swapped_in_pages,
        } => {
            let parts = [
                (limit_reclaim_ms, "ms of it reclaim for its limits"),
                (high_ms, "ms asleep for memory.high"),
                (node_reclaim_ms, "ms reclaim for the node"),
                (refaulted_pages, "pages needed back"),
                (swapped_in_pages, "pages from swap"),
            ];
            let parts: String = parts
                .iter()
                .filter(|(amount, _)| **amount > 0)
                .map(|(amount, what)| format!(", {amount} {what}"))
                .collect();
            format!(
                "{} {} {pod}: {ms} ms{parts}",
                seconds(*at_ns),
                paint(color, "33", "waited for memory:"),
            )
        }
        Line::Throttled {
            at_ns,
            pod,
            count,
            ms,
        } => format!(
            "{} {} {pod}: {}, {ms} ms",
            seconds(*at_ns),
            paint(color, "33", "CPU throttled:"),
            times(*count)
        ),
        Line::Warning { text } => format!("{} {text}", paint(color, "33", "warning:")),
        Line::Stopped {
            records,
            lines_lost,
            journal_lost,
            cpu_ms,
            rss_bytes,
        } => {
            let mut text = format!(
                "plimsoll stops: {} records, {} lost; {cpu_ms} ms of CPU, {} KiB resident",
                records.produced,
                records.dropped,
                rss_bytes >> 10
            );
            if lines_lost + journal_lost > 0 {
                text.push_str(&format!(
                    "; {lines_lost} lines and {journal_lost} journal steps lost"
                ));
            }
            text
        }
    }
}

fn paint(color: bool, code: &str, text: &str) -> String {
    if color {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

fn seconds(at_ns: u64) -> String {
    format!(
        "{:>6}.{:06}",
        at_ns / 1_000_000_000,
        at_ns / 1000 % 1_000_000
    )
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

fn micros(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} µs", ns / 1000),
        1_000_000..1_000_000_000 => format!("{}.{:02} ms", ns / 1_000_000, ns / 10_000 % 100),
        _ => format!("{}.{:02} s", ns / 1_000_000_000, ns / 10_000_000 % 100),
    }
}
