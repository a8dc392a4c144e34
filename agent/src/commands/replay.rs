//! `plimsoll replay JOURNAL`: feeds a journal's events to a fresh engine and compares the decisions byte for byte.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::commands::exit_status::{self, CommandError};
use crate::host::output::{Output, OutputArgs};
use crate::host::shown::{self, Show as _};
use crate::record::steps::{JournalReadError, replay};

/// Arguments of `plimsoll replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Journal written by `plimsoll run --journal`
    pub journal: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl CommandError for JournalReadError {
    fn exit_status(&self) -> u8 {
        exit_status::REFUSED
    }
}

/// Runs `plimsoll replay`: exit status 0 when all decisions are the same, 1 when one differs.
///
/// # Errors
/// [`JournalReadError`] when the journal cannot be replayed (exit status 3).
pub fn run(args: &ReplayArgs) -> Result<ExitCode, JournalReadError> {
    let mut out = std::io::stdout().lock();
    let result = replay(&args.journal, |event, decisions| {
        for decision in decisions {
            match args.output.format {
                Output::Text => {
                    let (s, ms) = (event.at_ns / 1_000_000_000, event.at_ns / 1_000_000 % 1000);
                    let decision = decision.to_string();
                    writeln!(out, "{s:>8}.{ms:03}  {}", shown::line(&decision))?;
                }
                Output::Json => {
                    serde_json::to_writer(&mut out, decision)?;
                    writeln!(out)?;
                }
            }
        }
        Ok(())
    })?;
    if result.torn {
        eprintln!(
            "{}: the last line is incomplete and was ignored",
            args.journal.shown()
        );
    }
    if let Some((line, recorded, now)) = &result.difference {
        eprintln!(
            "{}:{line}: the decisions differ\n  journal: {}\n  now:     {}",
            args.journal.shown(),
            shown::line(recorded),
            shown::line(now)
        );
        return Ok(ExitCode::from(exit_status::FAILED));
    }
    eprintln!(
        "{} events, {} decisions: identical, byte for byte",
        result.steps, result.decisions
    );
    Ok(ExitCode::SUCCESS)
}
