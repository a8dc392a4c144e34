//! Clippy as the compiler of the workspace's own packages: what is built for the tests is linted on the way.
//!
//! Problem: `cargo clippy` reads every package once more beside a build, and that was a tenth of what the tests of the
//! whole workspace cost. Approach: `clippy-driver` is rustc with lints, and cargo calls it in rustc's place. By a
//! setting and not by the environment, which a test that calls cargo itself would inherit (its arguments, which are in
//! the environment, say nothing without it). Cargo keeps these builds apart from those of rustc.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::setup;

/// What `cargo clippy -- -D warnings` says to its driver, which reads it from here.
const ARGUMENTS: [(&str, &str); 1] = [(
    "CLIPPY_ARGS",
    "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
)];

/// A driver that takes warnings as errors.
#[derive(Debug)]
pub(crate) struct Clippy {
    /// Of cargo.
    setting: String,
}

impl Clippy {
    /// That of the toolchain that cargo uses here.
    ///
    /// # Errors
    /// It is not installed.
    pub(crate) fn get() -> Result<Self> {
        let driver = setup::sysroot(None)?.join("bin/clippy-driver");
        ensure!(
            driver.is_file(),
            "{} is missing: `rustup component add clippy`",
            driver.display()
        );
        let driver = driver
            .to_str()
            .context("the toolchain's path is no text: move it")?;
        let driver = serde_json::to_string(driver).context("the toolchain's path")?;
        Ok(Self {
            setting: format!("build.rustc-workspace-wrapper={driver}"),
        })
    }

    /// Lets this command of cargo compile with it.
    pub(crate) fn compiles(&self, cargo: &mut Command) {
        // Cargo takes this one first, and then nothing is linted.
        cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
        cargo.args(["--config", &self.setting]).envs(ARGUMENTS);
    }
}
