//! A bursty service under its CPU limit, without and with `cpuBurst`: throttled periods, latency, and what its
//! neighbours get. One JSON row a run goes to `/out/burst.jsonl`, the table to standard output.
//! `cargo xtask bench burst` runs it.

#![forbid(unsafe_code)]

use clap::{Parser, ValueEnum};
use tests::guest::burst::{Plan, run};

#[derive(Parser)]
struct Arguments {
    /// Runs of each.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Seconds of warm-up, and of measurement.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// How results are printed.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    run(&Plan {
        runs: arguments.runs,
        seconds: arguments.seconds,
        json: arguments.output == Output::Json,
    })
}
