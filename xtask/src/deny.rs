//! `cargo xtask deny`: whether licences, names and sources of all dependencies are what `deny.toml` allows.
//!
//! Not part of `cargo xtask test`: building cargo-deny takes minutes, and its answer changes only with the lock files.

use std::process::Command;

use anyhow::Result;

use crate::progress::{say, show};
use crate::{paths, process, setup};

/// Both workspaces: the programs, and what runs in the kernel.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "ebpf/Cargo.toml"];

/// Asks cargo-deny. Exit status 0: everything is allowed.
pub(crate) fn run() -> Result<u8> {
    let deny = setup::cargo_deny()?;
    let mut status = 0;
    for manifest in MANIFESTS {
        let mut command = Command::new(&deny);
        command
            .arg("--manifest-path")
            .arg(paths::root().join(manifest))
            .args(["--locked", "check", "--hide-inclusion-graph", "--config"])
            .arg(paths::root().join("deny.toml"))
            .args(["bans", "licenses", "sources"]);
        let ended = process::run(&mut command)?;
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
