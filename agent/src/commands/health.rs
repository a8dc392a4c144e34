//! `plimsoll health`: whether a running agent's loop answers, for supervisors and probes.
//!
//! It asks over the control socket, which only root and the control group can open, and where probes have places of
//! their own: no stranger can make it fail, as one could with the HTTP listener's port.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::commands::exit_status::{self, CommandError};
use crate::host::output::{Output, OutputArgs, StdoutError, print};
use crate::host::shown::line;
use crate::serve::control::client::{AskError, ask};
use crate::serve::control::{AgentArgs, Answer, Health, Request};

/// Ask a running agent whether its loop answers
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll health                  for a liveness probe: exit status 0 if the loop answers within 5 s
  plimsoll health --ready          for a readiness probe: also whether the pods are listed
  plimsoll health --output json    healthy, ready, pods, and the reason if it is not

Only root may ask, unless the agent runs with --control-group.")]
pub struct HealthArgs {
    /// Also ask whether it is ready: its pods are listed
    #[arg(long)]
    pub ready: bool,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HealthError(#[from] StdoutError);

impl CommandError for HealthError {}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct HealthReport {
    healthy: bool,
    ready: bool,
    /// Pods that are wanted; absent where no loop answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<usize>,
    /// Why it is not healthy, or not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl HealthReport {
    fn of(asked: Result<Answer, AskError>) -> Self {
        let unhealthy = |reason: String| Self {
            healthy: false,
            ready: false,
            pods: None,
            reason: Some(reason),
        };
        match asked {
            Ok(Answer::Health(Health { ready, pods })) => Self {
                healthy: true,
                ready,
                pods: Some(pods),
                reason: (!ready).then(|| "the pods are not listed yet".to_owned()),
            },
            Ok(_) => unhealthy("the agent answered another question".to_owned()),
            Err(error) => unhealthy(error.to_string()),
        }
    }

    fn exit_status(&self, ready: bool) -> u8 {
        match self.healthy && (self.ready || !ready) {
            true => exit_status::DONE,
            false => exit_status::FAILED,
        }
    }

    fn text(&self) -> String {
        let head = match (self.healthy, self.ready) {
            (true, true) => "healthy and ready",
            (true, false) => "healthy, not ready",
            (false, _) => "not healthy",
        };
        match (&self.reason, self.pods) {
            (Some(reason), _) => format!("{head}: {}", line(reason)),
            (None, pods) => format!("{head}: the loop answers, {} pods", pods.unwrap_or(0)),
        }
    }
}

/// `plimsoll health`.
///
/// # Errors
/// [`HealthError`]. An agent that is not healthy is no error but exit status 1.
pub fn run(args: &HealthArgs) -> Result<ExitCode, HealthError> {
    let report = HealthReport::of(ask(&args.agent.socket(), &Request::Health));
    let line = match args.output.format {
        Output::Text => report.text(),
        Output::Json => serde_json::to_string(&report).map_err(StdoutError::from)?,
    };
    print(line + "\n")?;
    Ok(ExitCode::from(report.exit_status(args.ready)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::control::{Refusal, RefusalKind};

    #[test]
    fn healthy_is_a_loop_that_answers_and_ready_one_that_knows_its_pods() {
        let health = |ready| Ok(Answer::Health(Health { ready, pods: 3 }));
        let busy = Refusal::new(RefusalKind::Busy, "no\ntime");
        for (asked, alive, ready, text) in [
            (
                health(true),
                0,
                0,
                "healthy and ready: the loop answers, 3 pods",
            ),
            (
                health(false),
                0,
                1,
                "healthy, not ready: the pods are not listed yet",
            ),
            (Err(busy.into()), 1, 1, "not healthy: no\\ntime"),
            (
                Ok(Answer::Records(None)),
                1,
                1,
                "not healthy: the agent answered another question",
            ),
        ] {
            let report = HealthReport::of(asked);
            assert_eq!(
                (report.exit_status(false), report.exit_status(true)),
                (alive, ready)
            );
            assert_eq!(report.text(), text);
        }
    }
}
