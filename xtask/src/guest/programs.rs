//! The project's own programs for a guest: the agent and the bins of package `tests`, linked statically, because a guest
//! has no libraries.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Deserialize;

use crate::progress::{Progress, Step};
use crate::watched::{Watched, progress_in};
use crate::{ebpf, paths, process};

const TARGET: &str = "x86_64-unknown-linux-gnu";
const PROFILE: &str = "guest";
/// The packages whose programs run in guests. All of them in each build: features of what they share depend on what is built together.
const PACKAGES: [&str; 6] = [
    "--package",
    "plimsoll",
    "--package",
    "plimsoll-trace",
    "--package",
    "tests",
];

/// One line of `cargo build --message-format=json`; only what is needed of it.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// A compiler that says nothing for so long, without counting time that this machine had for others, hangs.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// What guest tests run: the agent, the load and the tests themselves. The rest is of benchmarks and of the demo.
pub(crate) const OF_TESTS: &[&str] = &[
    "plimsoll",
    "plimsoll-agent",
    "plimsoll-trace",
    "hog",
    "guest_tests",
];

/// What the demo runs.
pub(crate) const OF_DEMO: &[&str] = &["plimsoll", "plimsoll-agent", "hog", "sampler", "story"];

/// Builds (when something changed) and returns the programs' paths, the agent with its BPF object inside: these, or all of them. `progress`
/// hears how many crates are done. Once per xtask process, so that guests started later run the same build.
pub(crate) fn build(
    only: Option<&'static [&'static str]>,
    progress: &mut dyn FnMut(String),
) -> Result<Vec<PathBuf>> {
    type Built = BTreeMap<Option<&'static [&'static str]>, Vec<PathBuf>>;
    static BUILT: Mutex<Built> = Mutex::new(BTreeMap::new());
    let mut built = match BUILT.lock() {
        Ok(built) => built,
        Err(poisoned) => poisoned.into_inner(),
    };
    if let Some(programs) = built.get(&only) {
        return Ok(programs.clone());
    }
    ebpf::build()?;
    let mut what = PACKAGES.to_vec();
    what.extend(["--profile", PROFILE]);
    match only {
        Some(names) => what.extend(names.iter().flat_map(|&name| ["--bin", name])),
        None => what.push("--bins"),
    }
    let programs = cargo_build(&what, progress)?;
    built.insert(only, programs.clone());
    Ok(programs)
}

/// Builds the programs as they are released, and returns their paths. Takes minutes.
pub(crate) fn released() -> Result<Vec<PathBuf>> {
    ebpf::build()?;
    let step = Step::begin(
        "guest",
        "building the programs as they are released (minutes)",
    );
    let packages = ["--package", "plimsoll", "--package", "plimsoll-trace"];
    let programs = cargo_build(
        &[&packages[..], &["--bins", "--release"]].concat(),
        &mut |crates| {
            step.at(Progress {
                now: crates,
                ..Progress::default()
            });
        },
    )?;
    step.done();
    Ok(programs)
}

fn cargo_build(what: &[&str], progress: &mut dyn FnMut(String)) -> Result<Vec<PathBuf>> {
    let mut command = process::cargo();
    command
        .args(["build", "--locked"])
        .args(what)
        .args(["--target", TARGET])
        .args(["--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(paths::target("guest"))
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        // A guest's files are in its memory.
        .env("CARGO_PROFILE_RELEASE_STRIP", "true");
    let built = Watched::run(&mut command, PATIENCE, |line| {
        if let Some(crates) = progress_in(line) {
            progress(format!("crates {crates}"));
        }
    })?;
    if !built.success {
        let stderr: Vec<&str> = built
            .lines
            .iter()
            .map(String::as_str)
            .filter(|line| !line.starts_with('{'))
            .collect();
        bail!(
            "building the guest's programs {}\n{}",
            if built.hung { "hung" } else { "failed" },
            process::last_lines(&stderr.join("\n"))
        );
    }
    Ok(executables(&built.stdout.join("\n")))
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
