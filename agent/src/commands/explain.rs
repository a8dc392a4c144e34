//! `plimsoll explain`: what a running agent sees, whom it would evict, and why; or what it saw, from a journal.
//!
//! The agent computes the explanation ([`plimsoll_core::explain`]) and sends it over its control socket; this module asks and shows.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::commands::exit_status::{self, CommandError};
use crate::host::output::{Output, OutputArgs, Style};
use crate::record::steps::{JournalReadError, at_seconds, replay_until};
use crate::serve::control::client::{AskError, ask};
use crate::serve::control::server::answer;
use crate::serve::control::{AgentArgs, Answer, Refusal, RefusalKind, Request};

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

Only root may ask, unless the agent was started with --control-group. Nothing is changed.")]
pub struct ExplainArgs {
    /// What to explain
    #[arg(value_enum)]
    pub what: What,
    /// A pod: namespace/name, a name that only one has, or a UID
    pub pod: Option<String>,
    /// Rank for this signal; else for the one that is met or nearest to its threshold
    #[arg(long, value_name = "SIGNAL")]
    pub signal: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    /// Explain what an agent saw that wrote this journal, instead of asking one that runs
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// In the journal: after the last event up to this time, in seconds as `plimsoll replay` prints it; else the last
    #[arg(long, value_name = "SECONDS", requires = "journal", value_parser = at_seconds)]
    pub at: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
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

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// No agent, or it refuses.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalReadError),
    /// `--signal` with something else than `eviction`.
    #[error("--signal applies only to `explain eviction`")]
    Signal,
    /// Standard output.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl CommandError for ExplainError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Ask(AskError::Refused(Refusal {
                kind:
                    RefusalKind::UnknownPod | RefusalKind::AmbiguousPod | RefusalKind::UnknownSignal,
                ..
            })) => exit_status::REFUSED,
            Self::Signal => exit_status::WRONG_USAGE,
            _ => exit_status::FAILED,
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
    let text = match args.output.format {
        Output::Text => {
            crate::show::explain::render(&answer, args.what == What::Topology, Style::of(&stdout))
        }
        Output::Json => json(&answer)?,
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
        _ if args.signal.is_some() => return Err(ExplainError::Signal),
        What::Oom => Request::ExplainOom { pod },
        What::Throttling => Request::ExplainThrottling { pod },
        What::Memory => Request::ExplainMemory { pod },
        What::Cpu | What::Topology => Request::ExplainPlacement { pod },
    };
    let Some(journal) = &args.journal else {
        return Ok(ask(&args.agent.socket(), &request)?);
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
    fn exit_statuses() {
        let refused = |kind| ExplainError::from(AskError::from(Refusal::new(kind, "")));
        assert_eq!(
            refused(RefusalKind::UnknownPod).exit_status(),
            exit_status::REFUSED
        );
        assert_eq!(
            refused(RefusalKind::Busy).exit_status(),
            exit_status::FAILED
        );
        assert_eq!(ExplainError::Signal.exit_status(), exit_status::WRONG_USAGE);
    }
}
