//! `cargo xtask deny`: whether licences, names and sources of all dependencies are what `deny.toml` allows, and whether
//! anybody has warned of one.
//!
//! Not part of `cargo xtask test`: building cargo-deny takes minutes, and its answer changes only with the lock files.
//! That of the advisories changes from day to day.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::progress::{Step, say, show};
use crate::{paths, process, setup};

/// All workspaces: the programs, what runs in the kernel, and the fuzz targets.
const MANIFESTS: [&str; 3] = ["Cargo.toml", "ebpf/Cargo.toml", "tests/fuzz/Cargo.toml"];

/// Asks cargo-deny. Exit status 0: everything is allowed, and nothing is known against it.
pub(crate) fn run() -> Result<u8> {
    let deny = setup::cargo_deny()?;
    let mut checks = vec!["bans", "licenses", "sources"];
    if has_advisories(&deny)? {
        checks.push("advisories");
    }
    let mut status = 0;
    for manifest in MANIFESTS {
        let step = Step::begin("deny", format_args!("{manifest}: {}", checks.join(", ")));
        let mut command = of(&deny, manifest);
        command
            .args(["check", "--hide-inclusion-graph"])
            .args(&checks);
        let ended = process::run(&mut command)?;
        drop(step);
        show(&ended.text());
        if !ended.success() {
            status = 1;
            say(
                "deny",
                format_args!("{manifest} has what deny.toml does not allow"),
            );
        }
    }
    Ok(status)
}

/// As [`run`], for `cargo xtask test --all`.
pub(crate) fn passes() -> Result<()> {
    ensure!(
        run()? == 0,
        "a dependency is not allowed, or somebody warns of it: see above"
    );
    Ok(())
}

fn of(deny: &Path, manifest: &str) -> Command {
    let mut command = Command::new(deny);
    process::without_own_environment(&mut command);
    command
        .arg("--manifest-path")
        .arg(paths::root().join(manifest))
        .arg("--config")
        .arg(paths::root().join("deny.toml"))
        .arg("--locked");
    command
}

/// Fetches the database of advisories; without the network to it there is none, and that is said.
fn has_advisories(deny: &Path) -> Result<bool> {
    let step = Step::begin("deny", "fetching the database of advisories");
    let mut fetch = of(deny, MANIFESTS[0]);
    fetch.args(["fetch", "db"]);
    let ended = process::run(&mut fetch)?;
    if ended.success() {
        step.done();
        return Ok(true);
    }
    drop(step);
    say(
        "deny",
        "ADVISORIES ARE NOT CHECKED: their database (https://github.com/rustsec/advisory-db) cannot be fetched:",
    );
    show(&process::last_lines(&ended.text()));
    Ok(false)
}
