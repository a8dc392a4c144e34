//! `plimsoll replay JOURNAL`: feeds a journal's events to a fresh engine and compares the decisions byte for byte.

use std::io::{self, Write};
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

impl CommandError for JournalReadError {}

/// Runs `plimsoll replay`: exit status 0 when all decisions are the same, 3 when one differs.
///
/// # Errors
/// [`JournalReadError`] when the journal cannot be replayed (exit status 1).
pub fn run(args: &ReplayArgs) -> Result<ExitCode, JournalReadError> {
    replayed(args, &mut io::stdout().lock()).map(ExitCode::from)
}

/// The exit status; decisions go to `out`.
fn replayed(args: &ReplayArgs, out: &mut impl Write) -> Result<u8, JournalReadError> {
    let result = replay(&args.journal, |event, decisions| {
        for decision in decisions {
            match args.output.format {
                Output::Text => {
                    let (s, ms) = (event.at_ns / 1_000_000_000, event.at_ns / 1_000_000 % 1000);
                    let decision = decision.to_string();
                    writeln!(out, "{s:>8}.{ms:03}  {}", shown::line(&decision))?;
                }
                Output::Json => {
                    serde_json::to_writer(&mut *out, decision)?;
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
        return Ok(exit_status::REFUSED);
    }
    eprintln!(
        "{} events, {} decisions: identical, byte for byte",
        result.steps, result.decisions
    );
    Ok(exit_status::DONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::steps::tests::journal;

    #[test]
    fn a_difference_is_an_answer_and_a_damaged_journal_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let args = ReplayArgs {
            journal: dir.path().join("journal"),
            output: OutputArgs::default(),
        };
        let status = || replayed(&args, &mut Vec::new()).map_err(|error| error.exit_status());
        assert_eq!(status(), Err(exit_status::FAILED));
        journal(&args.journal);
        assert_eq!(status(), Ok(exit_status::DONE));
        let text = std::fs::read_to_string(&args.journal).unwrap();
        let changed = text.replace(r#""status":true"#, r#""status":false"#);
        std::fs::write(&args.journal, changed).unwrap();
        assert_eq!(status(), Ok(exit_status::REFUSED));
        std::fs::write(&args.journal, "x\n").unwrap();
        assert_eq!(status(), Err(exit_status::FAILED));
    }
}
