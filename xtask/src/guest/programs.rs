//! The project's own programs for a guest: the agent and the bins of package `tests`, linked statically, because a
//! guest has no libraries.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::Result;

use crate::architecture::Architecture;
use crate::progress::Step;
use crate::{ebpf, paths, process, setup};

const PROFILE: &str = "guest";
/// What decides is built as in a release.
const MEASURED: &str = "measured";
/// The packages whose programs run in guests. All of them in each build: features of what they share depend on what is
/// built together.
const PACKAGES: [&str; 6] = [
    "--package",
    "plimsoll",
    "--package",
    "plimsoll-trace",
    "--package",
    "tests",
];

/// What guest tests run: the agent, the load and the tests themselves. The rest is of benchmarks and of the demo.
pub(crate) const OF_TESTS: &[&str] = &[
    "plimsoll",
    "plimsoll-agent",
    "plimsoll-trace",
    "hog",
    "guest_tests",
];

/// What the benchmarks run that can do without a release.
pub(crate) const OF_BENCHMARKS: &[&str] = &[
    "plimsoll",
    "plimsoll-agent",
    "plimsoll-trace",
    "hog",
    "sampler",
    "reaction",
    "signals",
    "teardown",
    "cost",
    "burst",
    "service",
];

/// What the demo runs.
pub(crate) const OF_DEMO: &[&str] = &["plimsoll", "plimsoll-agent", "hog", "sampler", "story"];

/// What runs on a node beside a kubelet.
pub(crate) const OF_NODE: &[&str] = &["plimsoll", "plimsoll-agent", "hog"];

/// `plimsoll-cluster` and its tests on a node, which are a program.
pub(crate) fn cluster_tests() -> Result<Vec<PathBuf>> {
    let what = [
        "--package",
        "plimsoll-cluster",
        "--test",
        "node",
        "--no-run",
    ];
    let mut programs = cargo(
        "test",
        "plimsoll-cluster and its tests on a node",
        &what,
        Architecture::Amd64,
    )?;
    programs.retain(|program| program.is_file());
    Ok(programs)
}

/// Builds (when something changed) and returns the programs' paths, the agent with its BPF object inside: these, or all
/// of them. Once per xtask process, so that guests started later run the same build.
pub(crate) fn build(
    only: Option<&'static [&'static str]>,
    architecture: Architecture,
) -> Result<Vec<PathBuf>> {
    type Built = BTreeMap<(Option<&'static [&'static str]>, Architecture), Vec<PathBuf>>;
    static BUILT: Mutex<Built> = Mutex::new(BTreeMap::new());
    let mut built = match BUILT.lock() {
        Ok(built) => built,
        Err(poisoned) => poisoned.into_inner(),
    };
    if let Some(programs) = built.get(&(only, architecture)) {
        return Ok(programs.clone());
    }
    ebpf::build()?;
    let mut what = PACKAGES.to_vec();
    let profile = if only == Some(OF_BENCHMARKS) {
        MEASURED
    } else {
        PROFILE
    };
    what.extend(["--profile", profile]);
    match only {
        Some(names) => what.extend(names.iter().flat_map(|&name| ["--bin", name])),
        None => what.push("--bins"),
    }
    let programs = cargo_build("the agent and the guest programs", &what, architecture)?;
    built.insert((only, architecture), programs.clone());
    Ok(programs)
}

/// Builds the programs as they are released, and returns their paths. Takes minutes.
pub(crate) fn released() -> Result<Vec<PathBuf>> {
    ebpf::build()?;
    let packages = ["--package", "plimsoll", "--package", "plimsoll-trace"];
    let what = [&packages[..], &["--bins", "--release"]].concat();
    cargo_build(
        "the programs as they are released (minutes)",
        &what,
        Architecture::Amd64,
    )
}

fn cargo_build(name: &str, what: &[&str], architecture: Architecture) -> Result<Vec<PathBuf>> {
    cargo("build", name, what, architecture)
}

fn cargo(
    verb: &str,
    name: &str,
    what: &[&str],
    architecture: Architecture,
) -> Result<Vec<PathBuf>> {
    setup::cross(architecture)?;
    let step = Step::begin("guest", format_args!("building {name} for {architecture}"));
    let mut command = process::cargo();
    architecture.prepare(&mut command);
    command
        .args([verb, "--locked"])
        .args(what)
        .args(["--target", architecture.target()])
        .args(["--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(paths::target("guest"))
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        // A guest's files are in its memory.
        .env("CARGO_PROFILE_RELEASE_STRIP", "true");
    let built = process::run_cargo(&mut command, &step)?;
    process::success(
        &command,
        &built,
        "mend what the compiler names, then run the command again",
    )?;
    step.done();
    Ok(process::executables(&built.stdout()))
}
