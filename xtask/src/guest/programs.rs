//! The project's own programs for a guest: the agent and the bins of package `tests`, linked statically, because a guest
//! has no libraries.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::progress::Step;
use crate::{ebpf, paths, process};

const TARGET: &str = "x86_64-unknown-linux-gnu";
const PROFILE: &str = "guest";

/// One line of `cargo build --message-format=json`; only what is needed of it.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// Builds (when something changed) only what the demo runs, and returns the paths.
pub(crate) fn build_for_demo() -> Result<Vec<PathBuf>> {
    ebpf::build()?;
    let step = Step::begin("guest", "building the agent and the demo's programs");
    let mut what = vec!["--package", "plimsoll", "--package", "tests"];
    what.extend(["--profile", PROFILE]);
    for program in ["plimsoll", "story", "hog", "sampler"] {
        what.extend(["--bin", program]);
    }
    let programs = cargo_build(&what, &step)?;
    step.done();
    Ok(programs)
}

/// Builds (when something changed) and returns the programs' paths, the agent with its BPF object inside.
/// Once per xtask process, so that guests started later run the same build.
pub(crate) fn build() -> Result<Vec<PathBuf>> {
    static BUILT: Mutex<Option<Vec<PathBuf>>> = Mutex::new(None);
    let mut built = match BUILT.lock() {
        Ok(built) => built,
        Err(poisoned) => poisoned.into_inner(),
    };
    if let Some(programs) = built.as_ref() {
        return Ok(programs.clone());
    }
    ebpf::build()?;
    let step = Step::begin("guest", "building the agent and the guest programs");
    let programs = cargo_build(
        &[
            "--package",
            "plimsoll",
            "--package",
            "tests",
            "--bins",
            "--profile",
            PROFILE,
        ],
        &step,
    )?;
    step.done();
    Ok(built.insert(programs).clone())
}

/// Builds the agent as it is released, and returns its path. Takes minutes.
pub(crate) fn released_agent() -> Result<PathBuf> {
    ebpf::build()?;
    let step = Step::begin("guest", "building the agent as it is released (minutes)");
    let programs = cargo_build(&["--package", "plimsoll", "--bins", "--release"], &step)?;
    step.done();
    programs
        .into_iter()
        .next()
        .context("cargo named no program")
}

fn cargo_build(what: &[&str], step: &Step) -> Result<Vec<PathBuf>> {
    let mut cargo = process::cargo();
    cargo
        .args(["build", "--locked"])
        .args(what)
        .args(["--target", TARGET])
        .args(["--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(paths::target("guest"))
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        // A guest's files are in its memory.
        .env("CARGO_PROFILE_RELEASE_STRIP", "true");
    let output = process::run_cargo(&mut cargo, step)?;
    process::success(
        &cargo,
        &output,
        "the guest's programs cannot be built without that",
    )?;
    Ok(executables(&String::from_utf8_lossy(&output.stdout)))
}

fn executables(messages: &str) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok()?.executable)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_of_cargo_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/guest/plimsoll\"}\n\
                        not json\n{\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executables(messages), [PathBuf::from("/t/guest/plimsoll")]);
    }
}
