//! `plimsoll run --output json` as a child: its lines as typed events, its end, its cost.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use plimsoll_core::model::event::LastLineKill;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::clock::{now_ns, wait_until};
use super::harness::every_hook;
use super::process::Guard;

/// Seconds on a quiet machine; emulated, and on a busy one, much more.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for one more sample: an agent on a calm node takes its time.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(120);
/// How often it is looked whether there was one. The agent makes the same answer for a moment.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Lines that may wait for the test: more than any scene produces.
const LINES_MAX: usize = 65_536;

/// One line of the agent's standard output.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Sources are open and thresholds armed.
    Started(Started),
    /// The engine decided.
    Decision(Decision),
    /// A victim's memory is back, or the time for it is over.
    EvictionFinished(EvictionFinished),
    /// The kernel's OOM killer has struck.
    KernelOomKill {
        /// `namespace/name`, if it was a pod.
        pod: Option<String>,
        /// How many processes went together.
        kills: u64,
    },
    /// The last line in the kernel has killed a process.
    LastLineKill {
        /// `namespace/name`.
        pod: String,
        /// Its command, unless the record was lost.
        comm: Option<String>,
        /// What was done, and why.
        kill: LastLineKill,
    },
    /// Disk space was freed without ending a pod.
    DiskFreed {
        /// On disk.
        bytes: u64,
        /// Files and directories.
        inodes: u64,
    },
    /// Something is not as it should be; the agent goes on.
    Warning {
        /// What, and what to do.
        text: String,
    },
    /// The last line.
    Stopped(Stopped),
    /// A kind that no test asks about.
    #[serde(other)]
    Other,
}

/// How the agent listens.
#[derive(Clone, Debug, Deserialize)]
pub struct Started {
    /// The agent's own process id.
    pub pid: u32,
    /// Per signal, the rung of the fallback ladder.
    pub mechanisms: Vec<Mechanism>,
    /// What this host does not allow, a line each.
    pub lost: Vec<String>,
    /// How many pods are wanted.
    pub pods: usize,
    /// What holds the BPF programs.
    #[serde(default)]
    pub programs: Option<String>,
}

/// One signal's source.
#[derive(Clone, Debug, Deserialize)]
pub struct Mechanism {
    /// Such as `memory.available`.
    pub signal: String,
    /// Such as `fentry`.
    pub mechanism: String,
    /// `primary`, or `beside` when it runs along with that.
    pub role: String,
    /// Why this one.
    pub why: String,
}

/// A decision.
#[derive(Clone, Debug, Deserialize)]
pub struct Decision {
    /// As the journal has it.
    pub decision: serde_json::Value,
    /// The pod it concerns, `namespace/name`.
    pub pod: Option<String>,
    /// For a reader.
    pub text: String,
}

/// One eviction from the crossing to the bytes; times are `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct EvictionFinished {
    /// `namespace/name`.
    pub pod: String,
    /// `metadata.uid`.
    pub uid: String,
    /// The signal whose threshold was met; `None` for a limit of local storage.
    pub signal: Option<String>,
    /// `freed`, or what kept it from that.
    pub outcome: String,
    /// The kernel's time of the record.
    pub crossed_ns: Option<u64>,
    /// The agent had it.
    pub received_ns: Option<u64>,
    /// The node's figures had been read.
    pub node_read_ns: Option<u64>,
    /// Those of the pods.
    pub pods_read_ns: Option<u64>,
    /// Figures that were too old had been read anew.
    pub freshened_ns: Option<u64>,
    /// The engine had decided.
    pub decided_ns: Option<u64>,
    /// SIGTERM sent.
    pub signalled_ns: Option<u64>,
    /// `cgroup.kill` (or SIGKILL) sent; `None` when SIGTERM was enough.
    pub killed_ns: Option<u64>,
    /// The last process gone.
    pub gone_ns: Option<u64>,
    /// 95 % of the bytes back.
    pub freed_ns: Option<u64>,
    /// Usage at the decision.
    pub usage_before_bytes: u64,
    /// What came back.
    pub freed_bytes: u64,
}

/// The agent's last words.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Stopped {
    /// The account of records.
    pub records: Records,
    /// CPU time used, user and system.
    pub cpu_ms: u64,
    /// Resident memory.
    pub rss_bytes: u64,
}

/// produced = consumed + dropped.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct Records {
    /// By the programs in the kernel.
    pub produced: u64,
    /// By the agent.
    pub consumed: u64,
    /// Neither; counted.
    pub dropped: u64,
    /// Pairs of kind and CPU that do not add up.
    pub open: u64,
}

/// Flags of `plimsoll run` beyond the scene's own.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(super) flags: Vec<String>,
    pub(super) journal: Option<PathBuf>,
}

impl Options {
    /// With a hard threshold such as `memory.available<256Mi`.
    #[must_use]
    pub fn hard(threshold: &str) -> Self {
        Self::default()
            .flag("--eviction-hard", threshold)
            .flag("--eviction-pressure-transition-period", "1s")
    }

    /// Without hooks of functions (fentry), for a test of what is decided, and not of how it comes to be known. They
    /// are three fifths of what an agent's start costs in a guest, because the kernel goes through all 40,000 functions
    /// that it can trace for each hook. With `--all` they are there.
    #[must_use]
    pub fn on_tracepoints(self) -> Self {
        if every_hook() {
            return self;
        }
        self.flag("--without", "fentry")
    }

    /// With one more flag and its value, if it has one.
    #[must_use]
    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.flags.push(if value.is_empty() {
            name.to_owned()
        } else {
            format!("{name}={value}")
        });
        self
    }

    /// Writes a journal there.
    #[must_use]
    pub fn journal(mut self, path: impl Into<PathBuf>) -> Self {
        self.journal = Some(path.into());
        self
    }
}

/// A running agent; killed on drop when it was not stopped.
#[derive(Debug)]
pub struct Agent {
    process: Guard,
    lines: Receiver<(u64, String)>,
    errors: PathBuf,
    socket: PathBuf,
    /// What it said when it had started.
    pub started: Started,
    /// Every event so far, with the time its line arrived.
    pub events: Vec<(u64, Event)>,
}

impl Agent {
    pub(super) fn spawn(
        mut command: Command,
        errors: PathBuf,
        socket: PathBuf,
    ) -> anyhow::Result<Self> {
        let mut child = command.spawn().context("starting plimsoll run")?;
        let output = child
            .stdout
            .take()
            .context("its standard output is a pipe")?;
        let (sender, lines) = sync_channel(LINES_MAX);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send((now_ns(), line)).is_err() {
                    return;
                }
            }
        });
        let started = Started {
            pid: child.id(),
            mechanisms: Vec::new(),
            lost: Vec::new(),
            pods: 0,
            programs: None,
        };
        let mut agent = Self {
            process: Guard(child),
            lines,
            errors,
            socket,
            started,
            events: Vec::new(),
        };
        agent.started = agent
            .wait(START_TIMEOUT, |event| match event {
                Event::Started(started) => Some(started.clone()),
                _ => None,
            })
            .context("waiting for the agent to start")?;
        Ok(agent)
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The first event from now on (or not looked at yet) that `pick` accepts.
    ///
    /// # Errors
    /// The agent ended, `timeout` passed, or a line is not what was agreed; with the agent's standard error.
    pub fn wait<T>(
        &mut self,
        timeout: Duration,
        mut pick: impl FnMut(&Event) -> Option<T>,
    ) -> anyhow::Result<T> {
        let end = Instant::now() + timeout;
        loop {
            match self
                .lines
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok((at_ns, line)) => {
                    let event: Event = serde_json::from_str(&line)
                        .with_context(|| format!("the agent's line {line}"))?;
                    let picked = pick(&event);
                    self.events.push((at_ns, event));
                    if let Some(picked) = picked {
                        return Ok(picked);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "nothing within {timeout:?}; seen {:?}; standard error: {}",
                        self.events,
                        self.errors()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!(
                        "the agent has ended; seen {:?}; standard error: {}",
                        self.events,
                        self.errors()
                    )
                }
            }
        }
    }

    /// Waits for the end of an eviction.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn eviction(&mut self, timeout: Duration) -> anyhow::Result<EvictionFinished> {
        self.wait(timeout, |event| match event {
            Event::EvictionFinished(finished) => Some(finished.clone()),
            _ => None,
        })
        .context("waiting for an eviction")
    }

    /// Waits for a warning that has all of `words` in it.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn warning(&mut self, timeout: Duration, words: &[&str]) -> anyhow::Result<String> {
        self.wait(timeout, |event| match event {
            Event::Warning { text } if words.iter().all(|word| text.contains(word)) => {
                Some(text.clone())
            }
            _ => None,
        })
        .with_context(|| format!("waiting for a warning with {words:?}"))
    }

    /// Takes in what has arrived so far.
    ///
    /// # Errors
    /// A line is not what was agreed.
    pub fn drain(&mut self) -> anyhow::Result<()> {
        while let Ok((at_ns, line)) = self.lines.try_recv() {
            let event =
                serde_json::from_str(&line).with_context(|| format!("the agent's line {line}"))?;
            self.events.push((at_ns, event));
        }
        Ok(())
    }

    /// Waits until the agent has taken `count` more samples, and takes in what it has said: what has not happened by
    /// then does not happen.
    ///
    /// # Errors
    /// It takes none, or does not answer.
    pub fn after_samples(&mut self, count: u32) -> anyhow::Result<()> {
        let mut newest_ns = self.sampled_ns()?;
        for sample in 1..=count {
            let mut last = Ok(newest_ns);
            let taken = wait_until(SAMPLE_TIMEOUT, BETWEEN_LOOKS, || {
                last = self.sampled_ns();
                last.as_ref().map_or(true, |at_ns| *at_ns > newest_ns)
            });
            ensure!(
                taken,
                "no sample {sample} of {count} within {SAMPLE_TIMEOUT:?}: {}",
                self.errors()
            );
            newest_ns = last?;
        }
        self.drain()
    }

    /// When the newest sample of the node's memory was taken, by the agent itself.
    fn sampled_ns(&self) -> anyhow::Result<u64> {
        let line = self.ask("explainEviction")?;
        sampled_ns(&line).with_context(|| format!("the agent answers {line}"))
    }

    /// The longest turn of the loop so far, as `plimsoll_loop_longest_turn_seconds` has it.
    ///
    /// # Errors
    /// It does not answer.
    pub fn longest_turn(&self) -> anyhow::Result<Duration> {
        let line = self.ask("overview")?;
        longest_turn(&line).with_context(|| format!("the agent answers {line}"))
    }

    fn ask(&self, request: &str) -> anyhow::Result<String> {
        let mut stream = UnixStream::connect(&self.socket)
            .with_context(|| format!("asking {}: {}", self.socket.display(), self.errors()))?;
        stream.set_read_timeout(Some(STOP_TIMEOUT))?;
        writeln!(stream, "{{\"v\":1,\"request\":\"{request}\"}}")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    }

    /// How often it has decided this so far, by the journal's name.
    pub fn decisions(&self, name: &str) -> usize {
        let decided = self.events.iter().filter(|(_, event)| match event {
            Event::Decision(decision) => decision.decision["decision"] == name,
            _ => false,
        });
        decided.count()
    }

    /// All evictions that have finished so far.
    pub fn evictions(&self) -> impl Iterator<Item = &EvictionFinished> {
        self.events.iter().filter_map(|(_, event)| match event {
            Event::EvictionFinished(finished) => Some(finished),
            _ => None,
        })
    }

    /// What it wrote to standard error.
    #[must_use]
    pub fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// As `kill(2)`.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(self.process.signal(signal)?)
    }

    /// Whether it ends within a moment, told by somebody else.
    ///
    /// # Errors
    /// As `wait4(2)`.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.process.wait_gone(STOP_TIMEOUT))
    }

    /// SIGKILL, and reaped.
    ///
    /// # Errors
    /// As `kill(2)`.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        ensure!(
            self.process.wait_gone(STOP_TIMEOUT),
            "the agent survived SIGKILL"
        );
        Ok(())
    }

    /// SIGTERM; its last words.
    ///
    /// # Errors
    /// It did not end in time, said nothing, or its exit status is not 0.
    pub fn stop(mut self) -> anyhow::Result<Stopped> {
        // Every test that ends an agent says it; how fast the machine is decides what is much.
        match self.longest_turn() {
            Ok(turn) => println!("longest turn of the loop: {} us", turn.as_micros()),
            Err(error) => println!("longest turn of the loop: not known: {error:#}"),
        }
        self.signal(Signal::TERM)?;
        let stopped = self.wait(STOP_TIMEOUT, |event| match event {
            Event::Stopped(stopped) => Some(*stopped),
            _ => None,
        })?;
        ensure!(
            self.process.wait_gone(STOP_TIMEOUT),
            "the agent does not end on SIGTERM"
        );
        let status: ExitStatus = self.process.0.wait()?;
        ensure!(
            status.success(),
            "the agent ended with {status}: {}",
            self.errors()
        );
        Ok(stopped)
    }
}

/// When memory was read, in an answer of the control socket. Ages are relative to the answer.
fn sampled_ns(answer: &str) -> Option<u64> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    let answer = &answer["answer"]["eviction"];
    let signals = answer["signals"].as_array()?;
    let memory = signals
        .iter()
        .find(|signal| signal["signal"] == "memory.available")?;
    answer["nowNs"]
        .as_u64()?
        .checked_sub(memory["ageNs"].as_u64()?)
}

fn longest_turn(answer: &str) -> Option<Duration> {
    let answer: serde_json::Value = serde_json::from_str(answer).ok()?;
    let ns = answer["answer"]["overview"]["longestTurnNs"].as_u64()?;
    Some(Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_turn_is_in_the_overview() {
        let answer = r#"{"v":1,"answer":{"overview":{"longestTurnNs":4200}}}"#;
        assert_eq!(longest_turn(answer), Some(Duration::from_nanos(4200)));
        assert_eq!(longest_turn(r#"{"v":1,"answer":{"overview":{}}}"#), None);
    }

    #[test]
    fn the_time_of_a_sample_does_not_move_with_the_question() {
        let answer = |now: u64, age: u64| {
            format!(
                r#"{{"v":1,"answer":{{"eviction":{{"nowNs":{now},"signals":[{{"signal":"pid.available","ageNs":1}},{{"signal":"memory.available","ageNs":{age}}}]}}}}}}"#
            )
        };
        assert_eq!(sampled_ns(&answer(1000, 400)), Some(600));
        assert_eq!(sampled_ns(&answer(1100, 500)), Some(600));
        assert_eq!(sampled_ns(r#"{"v":1,"error":{}}"#), None);
    }
}
