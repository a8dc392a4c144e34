//! `cargo xtask fuzz`: random histories against the decision engine, by a program of package `tests`.

use anyhow::{Context as _, Result};

use crate::process;

/// Builds the program, optimised and with all checks of arithmetic, and runs it; 1 when a rule was broken.
pub(crate) fn run(arguments: &[String]) -> Result<u8> {
    let mut cargo = process::cargo();
    cargo
        .args(["run", "--locked", "--quiet", "--profile", "fuzz"])
        .args(["--package", "tests", "--no-default-features"])
        .args(["--bin", "fuzz", "--"])
        .args(arguments);
    let status = cargo
        .status()
        .context("cannot start cargo: is it installed?")?;
    Ok(u8::from(!status.success()))
}
