//! A bursty service under its CPU limit, without and with `cpuBurst`: throttled periods, latency, and what its
//! neighbours get. One JSON row a run goes to `/out/burst.jsonl`, the table to standard output.
//! `cargo xtask bench burst` runs it, and has the defaults.

#![forbid(unsafe_code)]

use clap::Parser;
use tests::guest::burst::{Plan, run};
use tests::guest::signals::Output;

#[derive(Parser)]
struct Arguments {
    /// Runs of each.
    #[arg(long)]
    runs: u32,
    /// Seconds of warm-up, and of measurement.
    #[arg(long)]
    seconds: u64,
    /// How results are printed.
    #[arg(long, value_enum)]
    output: Output,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    run(&Plan {
        runs: arguments.runs,
        seconds: arguments.seconds,
        json: arguments.output == Output::Json,
    })
}
