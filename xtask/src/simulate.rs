//! `cargo xtask simulate`: the whole agent against a model of the machine, by a program of package `tests`.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::clippy::Clippy;
use crate::{interrupt, process, program};

/// The whole workspace with what the program needs: rustix reaches the kernel through the C library there. So are all
/// tests built that run beside it (`crate::test`), or else the agent would be built once more for it. The benchmarks
/// have no test.
pub(crate) const WORKSPACE: [&str; 5] = [
    "--workspace",
    "--exclude",
    "benches",
    "--features",
    "tests/simulation",
];

/// The program, with all checks of arithmetic. Its profile is the one of everyday builds: what it waits for is the
/// model.
///
/// With clippy beside all tests: what they alone depend on has features that the agent is otherwise built without, and
/// then it would be built once more.
fn program(clippy: Option<&Clippy>) -> Result<Command> {
    let mut options = WORKSPACE.to_vec();
    options.extend(clippy.map(|_| "--tests"));
    program::of_packages("simulate", &options, clippy)
}

/// Builds the program and runs it; 1 when a rule was broken.
pub(crate) fn run(arguments: &[String]) -> Result<u8> {
    let mut program = program(None)?;
    let status = interrupt::status(program.args(arguments))
        .context("the program that was just built cannot be started")?;
    Ok(u8::from(!status.success()))
}

/// Some minutes of it, as the tests are built, bounded by what is simulated and not by the clock: every scenario, some
/// seeds, and calls that fail, block or are the last.
pub(crate) fn little_of_everything() -> Result<()> {
    holds(&[])
}

/// Every call of a short run fails with each error that it can have, blocks, and is the last.
pub(crate) fn every_call() -> Result<()> {
    holds(&["--faults", "--blocked", "--kills"])
}

fn holds(arguments: &[&str]) -> Result<()> {
    let mut program = program(Some(&Clippy::get()?))?;
    program.args(arguments);
    let ended = process::run(&mut program)?;
    process::success(
        &program,
        &ended,
        "the lines above have the command that shows it again",
    )
}
