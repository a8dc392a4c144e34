//! Programs of package `tests` that run on this machine: built with progress, then run.
//!
//! Not linked in: xtask must run, and say what is wrong, also when the decision core does not build.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::clippy::Clippy;
use crate::progress::Step;
use crate::{paths, process};

/// Builds program `name` when something changed, with these options of cargo, and returns the command that runs it.
pub(crate) fn of_tests(name: &str, options: &[&str]) -> Result<Command> {
    of_packages(name, &[&["--package", "tests"], options].concat(), None)
}

/// The same, of packages that the options name, with rustc or with clippy.
pub(crate) fn of_packages(
    name: &str,
    options: &[&str],
    clippy: Option<&Clippy>,
) -> Result<Command> {
    let step = Step::begin(name, format_args!("building {name}, a program of `tests`"));
    let mut build = process::cargo();
    build
        .args(["build", "--locked", "--bin", name])
        .args(options)
        .args(["--message-format", "json-render-diagnostics"]);
    if let Some(clippy) = clippy {
        clippy.compiles(&mut build);
    }
    let built = process::run_cargo(&mut build, &step)?;
    process::success(
        &build,
        &built,
        "mend what the compiler names, then run the command again",
    )?;
    step.done();
    let program = process::executables(&built.stdout())
        .into_iter()
        .find(|program| program.file_name() == Some(name.as_ref()))
        .with_context(|| format!("cargo names no program {name}: run `cargo build` and look"))?;
    Ok(command(program))
}

/// Where cargo would run it.
fn command(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    process::without_own_environment(&mut command);
    command.current_dir(paths::root());
    command
}
