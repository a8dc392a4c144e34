//! `plimsoll explain`: what a running agent sees, whom it would evict, and why; or what it saw, from a journal.
//!
//! The agent computes the explanation ([`plimsoll_core::explain`]) and sends it over its control socket; this module asks and shows.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::commands::rank::Format;
use crate::host::output::Style;
use crate::record::steps::{JournalReadError, replay_until};
use crate::serve::control::client::{AskError, ask};
use crate::serve::control::server::answer;
use crate::serve::control::{Answer, Refusal, RefusalKind, Request, socket_path};

/// The agent cannot be asked, or does not answer.
pub const EXIT_NO_ANSWER: u8 = 1;
/// There is no such pod or signal.
pub const EXIT_UNKNOWN: u8 = 3;

/// Show whom a running agent would evict, or the kernel's OOM killer take, what limits cost pods, or where they run, and why
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll explain eviction                          thresholds, the ranking, who would be next
  plimsoll explain eviction default/web              one pod: its place, and what would make it safe
  plimsoll explain eviction --signal nodefs.available
  plimsoll explain oom                               oom_score_adj, and whom the kernel would take
  plimsoll explain cpu                               who has which CPUs, and the shared pool
  plimsoll explain memory                            limits met, waits, pages read back, OOM kills, and what that means
  plimsoll explain throttling default/web            its CPU limit: what it costs, what is given, why no more
  plimsoll explain topology default/web              what each provider offered, the merged hint, why not elsewhere
  plimsoll explain eviction --journal run.journal --at 1234.567   as it was then

Only root may ask, unless the agent was started with --control-group. Nothing is changed.

Exit status: 0 explained; 1 no agent answers, or this user may not ask (the message says what to do); 2 wrong usage; \
3 there is no such pod or signal, or several pods have that name.")]
pub struct ExplainArgs {
    /// What to explain
    #[arg(value_enum)]
    pub what: What,
    /// A pod: namespace/name, a name that only one has, or a UID
    pub pod: Option<String>,
    /// Rank for this signal; else for the one that is met or nearest to its threshold
    #[arg(long, value_name = "SIGNAL")]
    pub signal: Option<String>,
    /// The agent's state directory
    #[arg(long, value_name = "DIR", default_value = "/run/plimsoll")]
    pub state_dir: PathBuf,
    /// The agent's socket [default: control.sock in the state directory]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
    /// Explain what an agent saw that wrote this journal, instead of asking one that runs
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// In the journal: after the last event up to this time, in seconds as `plimsoll replay` prints it; else the last
    #[arg(long, value_name = "SECONDS", requires = "journal", value_parser = seconds)]
    pub at: Option<u64>,
    /// table: for people; json: one document
    #[arg(long, value_enum, default_value_t)]
    pub output: Format,
}

/// What to explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Thresholds, the ranking, and who would be evicted next
    Eviction,
    /// `oom_score_adj`, and whom the kernel's OOM killer would take
    Oom,
    /// Whom a CPU limit throttles or who is held back for others, what that has cost, what is given, and why no more
    Throttling,
    /// What pods have of memory against request and limit, where, and what their limits have cost them
    Memory,
    /// Which containers have CPUs and memory of their own
    Cpu,
    /// The same, and how each came there: what CPUs, memory and devices offered, and why other NUMA nodes were not taken
    Topology,
}

/// The last nanosecond of the millisecond that `text` names.
pub(crate) fn seconds(text: &str) -> Result<u64, String> {
    let bad = || "write seconds, with up to three decimals, as 1234.567".to_owned();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3 || !part.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(bad());
    }
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let milliseconds: u64 = format!("{part:0<3}").parse().map_err(|_| bad())?;
    whole
        .checked_mul(1000)
        .and_then(|own| own.checked_add(milliseconds + 1)?.checked_mul(1_000_000))
        .map(|end| end - 1)
        .ok_or_else(bad)
}

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// No agent, or it refuses.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalReadError),
    /// `--signal` with `oom`.
    #[error("--signal is for `explain eviction`: the kernel's OOM killer knows no signals")]
    SignalOfOom,
    /// `--signal` with `throttling`.
    #[error("--signal is for `explain eviction`: throttling does not hang on a signal")]
    SignalOfThrottling,
    /// `--signal` with `memory`.
    #[error(
        "--signal is for `explain eviction`: what pods have of memory does not hang on a signal"
    )]
    SignalOfMemory,
    /// `--signal` with `cpu` or `topology`.
    #[error("--signal is for `explain eviction`: where pods run does not hang on a signal")]
    SignalOfPlacement,
    /// Standard output.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl ExplainError {
    /// The exit status.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Ask(AskError::Refused(Refusal {
                kind:
                    RefusalKind::UnknownPod | RefusalKind::AmbiguousPod | RefusalKind::UnknownSignal,
                ..
            })) => EXIT_UNKNOWN,
            Self::SignalOfOom
            | Self::SignalOfThrottling
            | Self::SignalOfMemory
            | Self::SignalOfPlacement => 2,
            _ => EXIT_NO_ANSWER,
        }
    }
}

/// `plimsoll explain`.
///
/// # Errors
/// [`ExplainError`].
pub fn run(args: &ExplainArgs) -> Result<ExitCode, ExplainError> {
    let mut stdout = io::stdout().lock();
    let answer = answer_to(args)?;
    let text = match args.output {
        Format::Table => {
            crate::show::explain::render(&answer, args.what == What::Topology, Style::of(&stdout))
        }
        Format::Json => json(&answer)?,
    };
    match stdout.write_all(text.as_bytes()) {
        // Whoever reads has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    Ok(ExitCode::SUCCESS)
}

fn json(answer: &Answer) -> io::Result<String> {
    let text = match answer {
        Answer::Eviction(own) => serde_json::to_string_pretty(own),
        Answer::Oom(own) => serde_json::to_string_pretty(own),
        Answer::Throttling(own) => serde_json::to_string_pretty(own),
        Answer::Memory(own) => serde_json::to_string_pretty(own),
        Answer::Placement(own) => serde_json::to_string_pretty(own),
        Answer::Records(own) => serde_json::to_string_pretty(own),
        Answer::Overview(own) => serde_json::to_string_pretty(own),
    };
    Ok(text? + "\n")
}

fn answer_to(args: &ExplainArgs) -> Result<Answer, ExplainError> {
    let pod = args.pod.clone();
    let request = match args.what {
        What::Eviction => Request::ExplainEviction {
            signal: args.signal.clone(),
            pod,
        },
        What::Oom if args.signal.is_some() => return Err(ExplainError::SignalOfOom),
        What::Oom => Request::ExplainOom { pod },
        What::Throttling if args.signal.is_some() => return Err(ExplainError::SignalOfThrottling),
        What::Throttling => Request::ExplainThrottling { pod },
        What::Memory if args.signal.is_some() => return Err(ExplainError::SignalOfMemory),
        What::Memory => Request::ExplainMemory { pod },
        What::Cpu | What::Topology if args.signal.is_some() => {
            return Err(ExplainError::SignalOfPlacement);
        }
        What::Cpu | What::Topology => Request::ExplainPlacement { pod },
    };
    let Some(journal) = &args.journal else {
        let path = socket_path(&args.state_dir, args.control_socket.as_deref());
        return Ok(ask(&path, &request)?);
    };
    let (replayed, snapshot) = replay_until(journal, args.at.unwrap_or(u64::MAX), |_, _| Ok(()))?;
    if let Some((line, ..)) = replayed.difference {
        eprintln!(
            "plimsoll: {}:{line}: from here on this plimsoll decides otherwise than the one that wrote the journal; this is the state there",
            journal.display()
        );
    }
    answer(&request, &snapshot).map_err(|refusal| AskError::from(refusal).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_that_replay_prints() {
        assert_eq!(seconds("12.345"), Ok(12_345_999_999));
        assert_eq!(seconds("12.3"), Ok(12_300_999_999));
        assert_eq!(seconds("0"), Ok(999_999));
        for bad in [
            "",
            "1.2345",
            "1,5",
            "-1",
            "x",
            "1.x",
            "99999999999999999999",
        ] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn exit_statuses() {
        let refused = |kind| ExplainError::from(AskError::from(Refusal::new(kind, "")));
        assert_eq!(refused(RefusalKind::UnknownPod).exit_code(), EXIT_UNKNOWN);
        assert_eq!(refused(RefusalKind::Busy).exit_code(), EXIT_NO_ANSWER);
        assert_eq!(ExplainError::SignalOfOom.exit_code(), 2);
    }
}
