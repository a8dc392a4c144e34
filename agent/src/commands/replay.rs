//! `plimsoll replay JOURNAL`: feeds a journal's events to a fresh engine and compares the decisions byte for byte.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::host::output::Output;
use crate::record::steps::{JournalReadError, replay};

/// Arguments of `plimsoll replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The journal that `plimsoll run --journal` wrote
    pub journal: PathBuf,
    /// text: one readable line per decision; json: each decision as the journal has it
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Runs `plimsoll replay`: exit status 0 when all decisions are the same, 1 when one differs.
///
/// # Errors
/// [`JournalReadError`] when the journal cannot be replayed (exit status 2).
pub fn run(args: &ReplayArgs) -> Result<ExitCode, JournalReadError> {
    let mut out = std::io::stdout().lock();
    let result = replay(&args.journal, |event, decisions| {
        for decision in decisions {
            match args.output {
                Output::Text => {
                    let (s, ms) = (event.at_ns / 1_000_000_000, event.at_ns / 1_000_000 % 1000);
                    writeln!(out, "{s:>8}.{ms:03}  {decision}")?;
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
            "{}: the last line is cut off and was left out",
            args.journal.display()
        );
    }
    if let Some((line, recorded, now)) = &result.difference {
        eprintln!(
            "{}:{line}: the decisions differ\n  journal: {recorded}\n  now:     {now}",
            args.journal.display()
        );
        return Ok(ExitCode::from(1));
    }
    eprintln!(
        "{} events, {} decisions: all the same, byte for byte",
        result.steps, result.decisions
    );
    Ok(ExitCode::SUCCESS)
}
