//! `cargo xtask conformance`: golden vector files, checked by a program of package `tests`.

use std::env;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::{interrupt, program};

/// Statuses of the program: all is well, a vector failed, it does not know a file.
const STATUSES: [i32; 3] = [0, 1, 3];

/// Builds the program and runs it on the files; 1 when a vector failed, 3 for a file that it does not know.
pub(crate) fn run(files: &[PathBuf]) -> Result<u8> {
    let here = env::current_dir().context("the current folder is gone: change to another")?;
    let mut program = program::of_tests("conformance", &["--no-default-features"])?;
    program.args(files.iter().map(|file| here.join(file)));
    let status = interrupt::status(&mut program)
        .context("the program that was just built cannot be started")?;
    let code = status.code().filter(|code| STATUSES.contains(code));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
