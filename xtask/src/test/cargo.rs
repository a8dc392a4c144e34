//! `cargo test`, built by clippy, with how far it is.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::fs::StatVfsMountFlags;

use super::Outcome;
use super::report::{self, Counts};
use crate::clippy::Clippy;
use crate::interrupt::Folder;
use crate::progress::{Progress, Step};
use crate::watched::Watched;
use crate::{kubernetes, paths, process, simulate};

/// Where tests write what was left out and what is worth a line (agent/tests/notes/mod.rs).
const NOTES_VARIABLE: &str = "PLIMSOLL_TEST_NOTES";

/// What to do about a warning: clippy says the same as a command of its own.
const LINTS_BY_HAND: &str = "mend what is named; without the tests it is shown by \
    `cargo clippy --locked --workspace --all-targets --features tests/simulation -- -D warnings`";
/// The same about a test.
const TESTS_BY_HAND: &str = "run them yourself: `cargo test --locked --workspace`";

/// Files here are in memory, on every Linux.
const IN_MEMORY: &str = "/dev/shm";
/// More than all tests together have there at a time, in bytes.
const ROOM_IN_MEMORY: u64 = 2 << 30;

/// Builds everything that is for this machine, with lints, and runs its tests; those that need an API server are a stage of their own.
pub(super) fn test(step: &Step) -> Outcome {
    let tests = Tests {
        which: &[],
        api_server: Path::new(kubernetes::ELSEWHERE),
    };
    let tested = Clippy::get().and_then(|clippy| {
        build(&clippy, step)?;
        tests.run(&clippy, step)
    });
    tested.unwrap_or_else(|error| Err(error).into())
}

/// The tests that need an API server, which is built first where there is none; with `--all`, a scheduler and controllers are, too.
pub(super) fn with_api_server(step: &Step, all: bool) -> Outcome {
    let found = if all {
        kubernetes::found(None)
    } else {
        kubernetes::api_server()
    };
    let tested = found.and_then(|binaries| {
        let tests = Tests {
            which: &["--test", kubernetes::TESTS],
            api_server: &binaries,
        };
        tests.run(&Clippy::get()?, step)
    });
    match tested {
        Ok(outcome) => outcome,
        Err(error) if error.is::<kubernetes::SourceDropped>() => {
            Outcome::left_out(&format!("{error:#}"))
        }
        Err(error) => Err(error).into(),
    }
}

fn cargo(verb: &str, clippy: &Clippy) -> Command {
    let mut command = process::cargo();
    command.args([verb, "--locked"]).args(simulate::WORKSPACE);
    clippy.compiles(&mut command);
    command
}

/// A warning is an error, and ends the stage before its tests, but not before all other packages are read. Programs are built because tests run
/// them, benchmarks to be linted.
fn build(clippy: &Clippy, step: &Step) -> Result<()> {
    let mut command = cargo("build", clippy);
    command.args(["--keep-going", "--tests", "--benches"]);
    let built = process::run_cargo(&mut command, step)?;
    process::success(
        &command,
        &built,
        &format!("no test was run; {LINTS_BY_HAND}"),
    )
}

/// Tests of the workspace.
struct Tests<'a> {
    /// By cargo's options; none are all.
    which: &'a [&'a str],
    /// Where the API server's programs are.
    api_server: &'a Path,
}

impl Tests<'_> {
    fn cargo(&self, clippy: &Clippy) -> Command {
        let mut command = cargo("test", clippy);
        command
            .arg("--no-fail-fast")
            .args(self.which)
            .env(kubernetes::BINARIES_VARIABLE, self.api_server);
        command
    }

    fn run(&self, clippy: &Clippy, step: &Step) -> Result<Outcome> {
        let mut build = self.cargo(clippy);
        let built = process::run_cargo(build.arg("--no-run"), step)?;
        process::success(&build, &built, LINTS_BY_HAND)?;
        let programs = built
            .text()
            .lines()
            .filter(|line| line.trim_start().starts_with("Executable "))
            .count();
        let folder = Folder::new()?;
        let notes = folder.path().join("notes");
        let (mut program, mut done, mut failed) = (0, 0, 0);
        let mut command = self.cargo(clippy);
        command.env(NOTES_VARIABLE, &notes);
        // A test that is ended half-way removes nothing and unmounts nothing: this folder goes with all of that. As a machine's own one it is for
        // every user: tests start programs of others.
        let temporary = temporary()?;
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o1777))
            .with_context(|| format!("cannot open {} to all", temporary.path().display()))?;
        command.env("TMPDIR", temporary.path());
        let ended = Watched::run(&mut command, |said| {
            let said = said.trim_start();
            program += usize::from(said.starts_with("Running "));
            if said.starts_with("test ") {
                done += 1;
                failed += usize::from(said.ends_with(" ... FAILED"));
            }
            step.at(Progress {
                done,
                total: None,
                unit: "tests",
                now: format!("{failed} failed, program {program} of {programs}"),
            });
        })?;
        let log = ended.text();
        let mut counts = report::of_cargo_test(&log, ended.success());
        if counts == Counts::default() {
            counts.failed = 1;
        }
        // No test wrote any.
        let notes = report::notes(&fs::read_to_string(&notes).unwrap_or_default());
        counts.passed = counts.passed.saturating_sub(notes.left_out);
        counts.skipped += notes.left_out;
        let failed_tests = failed_tests(&log);
        let mut log = failures(&log);
        if ended.hung {
            let hung = process::success(&command, &ended, TESTS_BY_HAND);
            log.extend(hung.err().map(|error| format!("\n{error}")));
        }
        Ok(Outcome {
            counts,
            log,
            notes: notes.lines,
            failed_tests,
        })
    }
}

/// Where tests have their files: in memory, where this machine has room for them there. Tests that make thousands of directories spend most
/// of their time in the journal of a disk: those of the agent's library took four times as long.
fn temporary() -> Result<Folder> {
    let in_memory = Path::new(IN_MEMORY);
    let runs_programs = rustix::fs::statvfs(in_memory)
        .is_ok_and(|mount| !mount.f_flag.contains(StatVfsMountFlags::NOEXEC));
    let has_room = paths::free_bytes(in_memory).is_some_and(|free| free >= ROOM_IN_MEMORY);
    if runs_programs && has_room {
        Folder::inside(in_memory)
    } else {
        Folder::new()
    }
}

/// `cargo test`'s output without the tests that succeeded.
fn failures(log: &str) -> String {
    let is_shown = |line: &&str| {
        let passed = line.starts_with("test ") && line.ends_with(" ... ok");
        !passed && !line.is_empty() && !line.starts_with("running ") && !process::is_progress(line)
    };
    log.lines().filter(is_shown).collect::<Vec<_>>().join("\n")
}

fn failed_tests(log: &str) -> Vec<String> {
    let failed = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    };
    log.lines().filter_map(failed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_left() {
        let log = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\n   Compiling x v1\n---- b stdout ----\nwhy";
        assert_eq!(failures(log), "test b ... FAILED\n---- b stdout ----\nwhy");
        assert_eq!(failed_tests(log), ["b"]);
    }
}
