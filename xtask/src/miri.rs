//! `cargo xtask miri`: what reads memory that the kernel writes too, run by an interpreter that knows what Rust
//! promises of memory.
//!
//! Miri has neither BPF maps nor `mmap` of a descriptor. So it runs what is ours beside those calls, over plain
//! buffers: the words of what was consumed, written by another thread at the same time, and the decoding of records in
//! place. What aya does with the pages of a ring, and that the kernel writes whole words, it cannot see; guest tests
//! account for every record instead.

use std::process::Command;

use anyhow::Result;

use crate::process;
use crate::process::output::ProcessOutput;
use crate::progress::{Progress, Step};
use crate::{paths, setup};

/// Packages, and what libtest is asked to run of them.
const RUNS: [(&str, &[&str]); 2] = [
    // The model of all interleavings has no memory of others', and would take an hour.
    ("plimsoll-abi", &["--skip", "no_interleaving"]),
    (
        "plimsoll",
        &["kernel::consumed::", "kernel::decode::", "kernel::sample::"],
    ),
];
/// Each test runs so often, with other interleavings of threads and other addresses.
const SEEDS: &str = "-Zmiri-many-seeds=0..3";

/// Runs the tests; the nightly's Miri is added when it is missing.
pub(crate) fn run() -> Result<()> {
    let nightly = setup::nightly()?;
    setup::nightly_component(&nightly, "miri", "cargo-miri")?;
    for (package, tests) in RUNS {
        let step = Step::begin("miri", format_args!("{package}, interpreted (minutes)"));
        let mut miri = Command::new("rustup");
        process::without_own_environment(&mut miri);
        miri.args([
            "run", &nightly, "cargo", "miri", "test", "--locked", "--lib",
        ])
        .args(["--package", package, "--target-dir"])
        .arg(paths::target("miri"))
        .arg("--")
        .args(tests)
        // proptest looks for its folder and its environment.
        .env("MIRIFLAGS", format!("-Zmiri-disable-isolation {SEEDS}"))
        .env("PROPTEST_CASES", "8")
        .env_remove("RUSTUP_TOOLCHAIN")
        .current_dir(paths::root());
        let ended = ProcessOutput::run(&mut miri, |line| {
            step.at(Progress::doing(line.trim()));
        })?;
        process::success(
            &miri,
            &ended,
            "Miri names the access that Rust does not allow: mend it, not the test",
        )?;
        step.done();
    }
    Ok(())
}
