//! `cargo xtask simulate`: the whole agent against a model of the machine, by a program of package `tests`.

use anyhow::{Context as _, Result};

use crate::process;

/// The program, with all checks of arithmetic. Its profile is the one of everyday builds: what it waits for is the model.
fn program() -> std::process::Command {
    let mut cargo = process::cargo();
    cargo
        .args(["run", "--locked", "--quiet", "--package", "tests"])
        .args(["--features", "simulation", "--bin", "simulate", "--"]);
    cargo
}

/// Builds the program and runs it; 1 when a rule was broken.
pub(crate) fn run(arguments: &[String]) -> Result<u8> {
    let status = program()
        .args(arguments)
        .status()
        .context("cannot start cargo: is it installed?")?;
    Ok(u8::from(!status.success()))
}
