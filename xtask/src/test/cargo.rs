//! What `cargo test` is, built by clippy, with how far it is. Its programs are run by [`programs`].

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::fs::StatVfsMountFlags;

use super::{Outcome, programs, report};
use crate::clippy::Clippy;
use crate::interrupt::Folder;
use crate::progress::Step;
use crate::{kubernetes, paths, process, simulate};

/// Where tests write what was left out and what is worth a line (agent/tests/notes/mod.rs).
const NOTES_VARIABLE: &str = "PLIMSOLL_TEST_NOTES";

/// What to do about a warning: clippy says the same as a command of its own.
const LINTS_BY_HAND: &str = "mend what is named; without the tests it is shown by \
    `cargo clippy --locked --workspace --all-targets --features tests/simulation -- -D warnings`";

/// Files here are in memory, on every Linux.
const IN_MEMORY: &str = "/dev/shm";
/// More than all tests together have there at a time, in bytes.
const ROOM_IN_MEMORY: u64 = 2 << 30;

/// Builds everything that is for this machine, with lints, and runs its tests; those that need an API server are a
/// stage of their own.
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

/// The tests that need an API server, which is built first where there is none; with `--all`, a scheduler and
/// controllers are, too.
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

/// A warning is an error, and ends the stage before its tests, but not before all other packages are read. Programs are
/// built because tests run them.
fn build(clippy: &Clippy, step: &Step) -> Result<()> {
    let mut command = cargo("build", clippy);
    command.args(["--keep-going", "--tests"]);
    let built = process::run_cargo(&mut command, step)?;
    process::success(
        &command,
        &built,
        &format!("no test was run; {LINTS_BY_HAND}"),
    )
}

/// Builds the benchmarks, with lints.
pub(super) fn benchmarks(step: &Step) -> Result<()> {
    let mut command = process::cargo();
    command.args([
        "build",
        "--locked",
        "--package",
        "benches",
        "--lib",
        "--benches",
    ]);
    Clippy::get()?.compiles(&mut command);
    let built = process::run_cargo(&mut command, step)?;
    process::success(
        &command,
        &built,
        "mend what is named; it is shown by `cargo clippy --locked --package benches --all-targets`",
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
    fn run(&self, clippy: &Clippy, step: &Step) -> Result<Outcome> {
        let mut build = cargo("test", clippy);
        build
            .arg("--no-run")
            .args(["--message-format", "json-render-diagnostics"])
            .args(self.which);
        let built = process::run_cargo(&mut build, step)?;
        process::success(&build, &built, LINTS_BY_HAND)?;
        let programs = programs::built(&built.stdout())?;
        let folder = Folder::new()?;
        let notes = folder.path().join("notes");
        // A test that is ended half-way removes nothing and unmounts nothing: this folder goes with all of that. As a
        // machine's own one it is for every user: tests start programs of others.
        let temporary = temporary()?;
        fs::set_permissions(temporary.path(), fs::Permissions::from_mode(0o1777))
            .with_context(|| format!("cannot open {} to all", temporary.path().display()))?;
        let prepare = |command: &mut Command| {
            command
                .env(kubernetes::BINARIES_VARIABLE, self.api_server)
                .env(NOTES_VARIABLE, &notes)
                .env("TMPDIR", temporary.path());
        };
        let results = programs::run(programs, &prepare, step);
        // No test wrote any.
        let notes = report::notes(&fs::read_to_string(&notes).unwrap_or_default());
        let mut counts = results.counts;
        counts.passed = counts.passed.saturating_sub(notes.left_out);
        counts.skipped += notes.left_out;
        Ok(Outcome {
            counts,
            log: results.log,
            notes: notes.lines,
            failed_tests: results.failed_tests,
        })
    }
}

/// Where tests have their files: in memory, where this machine has room for them there. Tests that make thousands of
/// directories spend most of their time in the journal of a disk: those of the agent's library took four times as long.
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
