//! Clippy and `cargo test`, with how far they are.

use std::fs;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::report::{self, Counts};
use super::watch::Line;
use super::{Outcome, minutes};
use crate::process;
use crate::watched::{Watched, progress_in};

/// A compiler or a test that says nothing for so long, without counting time that this machine had for others, hangs.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// Where tests write what was left out and what is worth a line (agent/tests/notes/mod.rs).
const NOTES_VARIABLE: &str = "PLIMSOLL_TEST_NOTES";

/// Warnings are errors.
pub(super) fn clippy(line: &Line<'_>) -> Result<()> {
    let mut command = process::cargo();
    command.args(["clippy", "--locked", "--workspace", "--all-targets"]);
    command.args(["--", "-D", "warnings"]);
    let ended = watched(&mut command, line)?;
    ensure!(
        ended.success,
        "{}\nrun it yourself: `{}`",
        process::last_lines(&ended.text()),
        process::shown(&command)
    );
    Ok(())
}

fn watched(command: &mut std::process::Command, line: &Line<'_>) -> Result<Watched> {
    let ended = Watched::run(command, PATIENCE, |said| {
        if let Some(progress) = progress_in(said) {
            line.say(format!("crates {progress}"));
        }
    })?;
    if ended.hung {
        bail!(hung(&ended));
    }
    Ok(ended)
}

fn hung(ended: &Watched) -> String {
    format!(
        "it hung and was stopped: it said nothing in {} in which it could run; its last lines:\n{}",
        minutes(PATIENCE),
        process::last_lines(&ended.text())
    )
}

/// Builds the tests, and runs them.
pub(super) fn test(line: &Line<'_>) -> Outcome {
    match try_test(line) {
        Ok(outcome) => outcome,
        Err(error) => Err(error).into(),
    }
}

fn try_test(line: &Line<'_>) -> Result<Outcome> {
    let cargo = |more: &[&str]| {
        let mut command = process::cargo();
        command.args(["test", "--locked", "--workspace", "--no-fail-fast"]);
        command.args(more);
        command
    };
    let mut build = cargo(&["--no-run"]);
    let built = watched(&mut build, line)?;
    ensure!(
        built.success,
        "{}\nrun it yourself: `{}`",
        process::last_lines(&built.text()),
        process::shown(&build)
    );
    let programs = built
        .lines
        .iter()
        .filter(|line| line.trim_start().starts_with("Executable "))
        .count();
    let folder = tempfile::tempdir()?;
    let notes = folder.path().join("notes");
    let (mut program, mut passed, mut failed) = (0, 0, 0);
    let mut command = cargo(&[]);
    command.env(NOTES_VARIABLE, &notes);
    let ended = Watched::run(&mut command, PATIENCE, |said| {
        let said = said.trim_start();
        if said.starts_with("Running ") || said.starts_with("Doc-tests ") {
            program += 1;
        }
        if said.starts_with("test ") {
            passed += usize::from(said.ends_with(" ... ok"));
            failed += usize::from(said.ends_with(" ... FAILED"));
        }
        line.say(format!(
            "{passed} tests passed, {failed} failed, program {program} of {programs} and documentation"
        ));
    })?;
    let log = ended.text();
    let mut counts = report::of_cargo_test(&log, ended.success);
    if counts == Counts::default() {
        counts.failed = 1;
    }
    // No test wrote any.
    let notes = report::notes(&fs::read_to_string(&notes).unwrap_or_default());
    counts.passed = counts.passed.saturating_sub(notes.left_out);
    counts.skipped += notes.left_out;
    let mut log = failures(&log);
    if ended.hung {
        log.push_str(&format!("\n{}", hung(&ended)));
    }
    Ok(Outcome {
        counts,
        log,
        notes: notes.lines,
        failed_tests: failed_tests(&ended.lines),
    })
}

/// `cargo test`'s output without the tests that succeeded.
fn failures(log: &str) -> String {
    let told = |line: &&str| {
        let passed = line.starts_with("test ") && line.ends_with(" ... ok");
        !passed && !line.is_empty() && !line.starts_with("running ") && !process::is_progress(line)
    };
    log.lines().filter(told).collect::<Vec<_>>().join("\n")
}

fn failed_tests(lines: &[String]) -> Vec<String> {
    let failed = |line: &String| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    };
    lines.iter().filter_map(failed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_left() {
        let log = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\n   Compiling x v1\n---- b stdout ----\nwhy";
        assert_eq!(failures(log), "test b ... FAILED\n---- b stdout ----\nwhy");
        let lines: Vec<String> = log.lines().map(str::to_owned).collect();
        assert_eq!(failed_tests(&lines), ["b"]);
    }
}
