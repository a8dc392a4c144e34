//! `cargo xtask stress`: every memory stressor of Debian's `stress-ng` as a pod, beside pods that mean no harm.
//!
//! The guest program `stress` does it (tests/src/guest/stress.rs).

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::guest::{Clock, Guest, GuestEnd, Programs, Topology};
use crate::kernel::Kernel;
use crate::progress;

/// Small, so that a stressor fills it in seconds.
const MEMORY_MB: u64 = 1024;
/// A guest that ends no stressor for so long hangs, on top of its seconds: an emulated CPU takes many for one.
const PATIENCE: Duration = Duration::from_secs(1200);
/// How many seconds of real time one of a busy guest may take.
const SLOWNESS: u32 = 60;
/// Of each stressor in `cargo xtask test --all`.
const WEEKLY_SECONDS: u32 = 3;
const PROGRAMS: &[&str] = &["plimsoll", "plimsoll-agent", "hog", "stress"];

/// What runs.
#[derive(Debug, Args)]
pub(crate) struct StressArgs {
    /// Kernel to boot: 6.1, 6.12, 7.2, or the path of an image
    #[arg(long, default_value = "7.2")]
    kernel: Kernel,
    /// Seconds of each stressor, of the guest's time; real time is several times as long
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Stressors to run [default: all]
    #[arg(value_name = "STRESSOR")]
    stressors: Vec<String>,
}

/// Runs them; 1 when the kernel killed, an innocent pod died, or records are missing.
pub(crate) fn run(args: &StressArgs) -> Result<u8> {
    let words = args.stressors.join(" ");
    let command = format!("stress --seconds {} {words}", args.seconds);
    let exit = Guest::new(args.kernel.clone())
        .topology(Topology::Flat(2))
        .memory_mb(MEMORY_MB)
        .debian_packages(&["stress-ng"])
        .programs(Programs::Only(PROGRAMS))
        .clock(Clock::Instructions)
        .timeout(None)
        .patience(
            PATIENCE + Duration::from_secs(1) * args.seconds * SLOWNESS,
            moves,
        )
        .command(command)
        .run(progress::print)?;
    if exit.end == GuestEnd::NoStatus {
        progress::print("the guest died: see the console above for a panic");
    }
    Ok(exit.code())
}

/// A few seconds of each.
pub(crate) fn a_little_of_each() -> Result<()> {
    let status = run(&StressArgs {
        kernel: Kernel::V7_2,
        seconds: WEEKLY_SECONDS,
        stressors: Vec::new(),
    })?;
    ensure!(status == 0, "see above what went wrong");
    Ok(())
}

/// Whether a line says that a stressor has ended.
fn moves(line: &str) -> bool {
    line.contains(" of ") && line.contains("): ")
}
