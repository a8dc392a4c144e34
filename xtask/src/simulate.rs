//! `cargo xtask simulate`: the whole agent against a model of the machine, by a program of package `tests`.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::progress::Step;
use crate::{interrupt, process, program};

/// Of the whole workspace, so that the libraries that `cargo test --workspace` has built are what it needs as well.
const BUILD: [&str; 3] = ["--workspace", "--features", "tests/simulation"];

/// The program, with all checks of arithmetic. Its profile is the one of everyday builds: what it waits for is the model.
fn program() -> Result<Command> {
    program::of_workspace("simulate", &BUILD)
}

/// Builds the program and runs it; 1 when a rule was broken.
pub(crate) fn run(arguments: &[String]) -> Result<u8> {
    let mut program = program()?;
    let status = interrupt::status(program.args(arguments))
        .context("the program that was just built cannot be started")?;
    Ok(u8::from(!status.success()))
}

/// Some minutes of it, bounded by what is simulated and not by the clock: every scenario, some seeds, and calls that fail, block or are the last.
pub(crate) fn little_of_everything(step: &Step) -> Result<()> {
    let mut clippy = process::cargo();
    clippy
        .args(["clippy", "--locked", "--bin", "simulate"])
        .args(BUILD)
        .args(["--", "-D", "warnings"]);
    let ended = process::run_cargo(&mut clippy, step)?;
    process::success(&clippy, &ended, "run it yourself: `cargo xtask simulate`")?;
    holds(&[])
}

/// Every call of a short run fails with each error that it can have, blocks, and is the last.
pub(crate) fn every_call() -> Result<()> {
    holds(&["--faults", "--blocked", "--kills"])
}

fn holds(arguments: &[&str]) -> Result<()> {
    let mut program = program()?;
    program.args(arguments);
    let ended = process::run(&mut program)?;
    process::success(
        &program,
        &ended,
        "the lines above have the command that shows it again",
    )
}
