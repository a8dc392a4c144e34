//! `cargo xtask conformance`: golden vector files, checked by a program of package `tests`.
//!
//! Not linked in: xtask must run, and say what is wrong, also when the decision core does not build.

use std::env;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::process;

/// Builds the program and runs it on the files; 1 when a vector failed, 2 for a file that it does not know.
pub(crate) fn run(files: &[PathBuf]) -> Result<u8> {
    let here = env::current_dir().context("the current folder is gone: change to another")?;
    let mut cargo = process::cargo();
    cargo
        .args([
            "run",
            "--locked",
            "--quiet",
            "--package",
            "tests",
            "--no-default-features",
        ])
        .args(["--bin", "conformance", "--"])
        .args(files.iter().map(|file| here.join(file)));
    let status = cargo
        .status()
        .context("cannot start cargo: is it installed?")?;
    // Cargo's own failures are above 100; none is a status of the program.
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code <= 2)
        .unwrap_or(1))
}
