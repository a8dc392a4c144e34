//! `plimsoll replay JOURNAL`: feeds a journal's events to a fresh engine and compares the decisions byte for byte.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::commands::exit_status::{self, CommandError};
use crate::host::output::{Output, OutputArgs, StdoutError};
use crate::host::shown::{self, Show as _};
use crate::record::steps::{Difference, JournalReadError, Replayed, replay};

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

/// The exit status. To `out` go the decisions and, as JSON, what the replay found.
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
    if args.output.format == Output::Json {
        let result = serde_json::to_string(&result).map_err(StdoutError::from)?;
        writeln!(out, "{result}").map_err(StdoutError::from)?;
    }
    say(&args.journal, &result);
    Ok(match result.difference {
        Some(_) => exit_status::REFUSED,
        None => exit_status::DONE,
    })
}

/// For people, on standard error: standard output has the decisions.
fn say(journal: &Path, result: &Replayed) {
    let journal = journal.shown();
    if result.torn {
        eprintln!("{journal}: the last line is incomplete and was ignored");
    }
    match &result.difference {
        Some(Difference {
            line,
            journal: recorded,
            now,
        }) => eprintln!(
            "{journal}:{line}: the decisions differ\n  journal: {}\n  now:     {}",
            shown::line(recorded),
            shown::line(now)
        ),
        None => eprintln!(
            "{} events, {} decisions: identical, byte for byte",
            result.steps, result.decisions
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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

    #[test]
    fn the_last_object_says_what_was_found() {
        let dir = tempfile::tempdir().unwrap();
        let args = ReplayArgs {
            journal: dir.path().join("journal"),
            output: Output::Json.into(),
        };
        let objects = || {
            let mut out = Vec::new();
            replayed(&args, &mut out).unwrap();
            let lines = serde_json::Deserializer::from_slice(&out).into_iter();
            lines.collect::<Result<Vec<Value>, _>>().unwrap()
        };
        journal(&args.journal);
        let mut found = objects();
        let decisions = found.len() - 1;
        assert_eq!(
            found.pop().unwrap(),
            json!({"steps": 3, "decisions": decisions, "torn": false, "difference": null})
        );
        assert!(found.iter().all(|decision| decision["steps"].is_null()));
        let text = std::fs::read_to_string(&args.journal).unwrap();
        let changed = text.replace(r#""status":true"#, r#""status":false"#);
        std::fs::write(&args.journal, changed).unwrap();
        let difference = &objects().pop().unwrap()["difference"];
        assert_eq!(difference["line"], 3);
        let has = |of: &str, status| {
            let text = difference[of].as_str().unwrap();
            text.contains(&format!(r#""status":{status}"#))
        };
        assert!(has("journal", false) && has("now", true), "{difference}");
    }
}
