//! `cargo xtask fuzz`: random histories against the decision engine, by a program of package `tests`.

use anyhow::{Context as _, Result};

use crate::{interrupt, program};

/// Builds the program, optimised and with all checks of arithmetic, and runs it; 1 when a rule was broken.
pub(crate) fn run(arguments: &[String]) -> Result<u8> {
    let options = ["--profile", "fuzz", "--no-default-features"];
    let mut program = program::of_tests("fuzz", &options)?;
    let status = interrupt::status(program.args(arguments))
        .context("the program that was just built cannot be started")?;
    Ok(u8::from(!status.success()))
}
