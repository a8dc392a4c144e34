//! Starts a hog with SIGUSR1 and prints when memory crossed a threshold, who died and when it was back: one JSON line.

#![forbid(unsafe_code)]

use clap::Parser;
use tests::guest::sampler::{Watch, protect, watch};

#[derive(Parser)]
struct Arguments {
    /// Process id of the hog.
    #[arg(long)]
    pid: u32,
    /// Available bytes below which the threshold counts as crossed.
    #[arg(long)]
    threshold_bytes: u64,
    /// Milliseconds between two samples.
    #[arg(long, default_value_t = 2)]
    interval_ms: u64,
    /// Gives up after this time.
    #[arg(long, default_value_t = 60_000)]
    max_ms: u64,
    /// Goes on for this long after memory is back.
    #[arg(long, default_value_t = 500)]
    settle_ms: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    protect()?;
    let seen = watch(Watch {
        pid: arguments.pid,
        threshold_bytes: arguments.threshold_bytes,
        interval_ms: arguments.interval_ms,
        max_ms: arguments.max_ms,
        settle_ms: arguments.settle_ms,
    })?;
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}
