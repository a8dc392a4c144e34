//! `plimsoll top`: the node at a glance, from a running agent or a journal.
//!
//! **Problem.** What presses on the node, who causes it, and what the agent would do next must be seen while it
//! happens, by people without root, on whatever terminal there is. **Approach.** An [`Overview`] comes from the control
//! socket, or from a journal's state; a [`Model`] holds what is on the screen and is changed only by messages;
//! [`draw`](crate::show::top::draw) makes cells of it. Both are pure. This module does the rest: a thread asks the
//! agent, the main one reads keys and draws. An agent that ends is waited for.

mod screen;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use plimsoll_core::explain::ExplainError;

use crate::commands::exit_status::CommandError;
use crate::host::output::{self, Output, OutputArgs, StdoutError, Style};
use crate::host::shown::{Show as _, page};
use crate::record::journal_player::{JournalPlayer, Seek};
use crate::record::steps::{JournalReadError, at_seconds};
use crate::serve::control::client::{AskError, ask_overview};
use crate::serve::control::{AgentArgs, Refusal, RefusalKind};
use crate::serve::overview::{Figures, Overview};
use crate::show::top::model::{Feed, Message, Model};
use crate::show::top::text::{node_line, table};

/// An agent's CPU figures are means since an earlier question: for a single answer it is asked twice, so far apart.
const FIRST_MEAN: Duration = Duration::from_millis(700);

/// Show live pressure, throttling, stalls and memory of pods, and the next to be evicted
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll top                                       the local agent; ? shows the keys
  plimsoll top --journal run.journal                  step through a journal
  plimsoll top --once                                one table, e.g. for a pipe
  plimsoll top --line                                one line, for a table over many nodes
  plimsoll top --output json | jq '.pods[].pod'      all figures, for scripts
  plimsoll top --journal run.journal --at 1234.5      start at that second

Only root may ask, unless the agent runs with --control-group. Read-only. Set NO_COLOR to disable colours; no \
information is lost without them.")]
pub struct TopArgs {
    /// Print one table and exit
    #[arg(long)]
    pub once: bool,
    /// Print one line, its fields separated by tabs: running pods, memory available, of how much, conditions, who goes
    /// next and why
    #[arg(long, conflicts_with_all = ["once", "format"])]
    pub line: bool,
    #[command(flatten)]
    pub(crate) output: Option<OutputArgs>,
    /// Refresh interval in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// Show this journal instead of asking a running agent
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Start at this time in the journal, in seconds as `plimsoll replay` prints it [default: the end]
    #[arg(long, value_name = "SECONDS", requires = "journal", value_parser = at_seconds)]
    pub at: Option<u64>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// Why there is nothing to be seen.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// No agent, or it refuses.
    #[error(transparent)]
    Ask(AskError),
    /// The agent does not know the question.
    #[error(
        "the agent is older than this plimsoll ({version}) and does not support `plimsoll top`: restart the agent, or use the plimsoll it was started from",
        version = env!("CARGO_PKG_VERSION")
    )]
    Older,
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalReadError),
    /// The overview.
    #[error(transparent)]
    Overview(#[from] ExplainError),
    /// Not a terminal.
    #[error("{what} is not a terminal: use --once for a table, or --output json")]
    NoTerminal {
        /// Which stream.
        what: &'static str,
    },
    /// The terminal fails.
    #[error("the terminal: {0}; --once needs none")]
    Terminal(#[source] io::Error),
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl From<AskError> for TopError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Refused(Refusal {
                kind: RefusalKind::BadRequest,
                ..
            }) => Self::Older,
            other => Self::Ask(other),
        }
    }
}

impl CommandError for TopError {}

/// `plimsoll top`.
///
/// # Errors
/// [`TopError`].
pub fn run(args: &TopArgs) -> Result<ExitCode, TopError> {
    let format = args.output.map(|it| it.format);
    let output = match (args.line, format.or(args.once.then_some(Output::Text))) {
        (true, _) => Some(Printed::Line),
        (false, Some(Output::Text)) => Some(Printed::Table),
        (false, Some(Output::Json)) => Some(Printed::Json),
        (false, None) => None,
    };
    if output.is_none() {
        // Before anything else: an answer that cannot be shown is not worth waiting for.
        for (what, is_terminal) in [
            ("standard input", io::stdin().is_terminal()),
            ("standard output", io::stdout().is_terminal()),
        ] {
            if !is_terminal {
                return Err(TopError::NoTerminal { what });
            }
        }
    }
    match &args.journal {
        Some(path) => of_journal(path, args.at, output),
        None => of_agent(args, output),
    }
}

/// `output`: how it is printed; `None`: on the screen.
fn of_journal(
    path: &Path,
    at_ns: Option<u64>,
    output: Option<Printed>,
) -> Result<ExitCode, TopError> {
    let mut player = JournalPlayer::open(path)?;
    if let Some(at_ns) = at_ns {
        player.seek(Seek::At(at_ns))?;
    }
    let overview = recorded(&player)?;
    if let Some(output) = output {
        if let Some(remark) = player.remark() {
            eprintln!("plimsoll: {}: {remark}", path.shown());
        }
        return print(output, &overview);
    }
    let feed = Feed::Recorded {
        position: player.position(),
        plays_ns: None,
        remark: player.remark().map(str::to_owned),
    };
    let mut model = Model::new(feed, Style::of(&io::stdout()).color);
    model.update(Message::At(player.position(), Box::new(overview)));
    screen::replayed(&mut model, &mut player)
}

/// As [`of_journal`].
fn of_agent(args: &TopArgs, output: Option<Printed>) -> Result<ExitCode, TopError> {
    let socket = args.agent.socket();
    let mut overview = overview(&socket)?;
    if let Some(output) = output {
        let has_means = overview.pods.iter().any(|it| it.cpu.used_milli.is_some());
        if output != Printed::Line && !has_means {
            std::thread::sleep(FIRST_MEAN);
            overview = self::overview(&socket)?;
        }
        return print(output, &overview);
    }
    let every = Duration::from_secs(args.interval);
    let feed = Feed::Live {
        every,
        silent: None,
        restarted: None,
    };
    let mut model = Model::new(feed, Style::of(&io::stdout()).color);
    model.update(Message::Answer(Box::new(overview)));
    screen::live(&mut model, socket, every)
}

/// Asks the agent.
fn overview(socket: &Path) -> Result<Overview, TopError> {
    Ok(std::sync::Arc::unwrap_or_clone(ask_overview(socket)?))
}

/// The node as it was then.
fn recorded(recording: &JournalPlayer) -> Result<Overview, ExplainError> {
    Overview::new(&recording.snapshot(), &Figures::default())
}

/// What is printed, where no screen is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Printed {
    Table,
    Json,
    Line,
}

fn print(printed: Printed, overview: &Overview) -> Result<ExitCode, TopError> {
    let text = match printed {
        Printed::Table => page(&table(overview, Style::of(&io::stdout()))),
        Printed::Json => output::json(overview)?,
        Printed::Line => node_line(overview),
    };
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
