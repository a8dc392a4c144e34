//! The demo: pods of real processes, one that leaks, and what becomes of them with and without the agent.
//!
//! `cargo xtask demo` runs it in a guest. Exit status 1 when a wrong pod died, the kernel's OOM killer fired first, a
//! record was lost or nothing was evicted; with `--without` only when the story could not be told.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use tests::guest::story::{Plan, tell};

#[derive(Parser)]
struct Arguments {
    /// The same story with the agent off: what happens today.
    #[arg(long)]
    without: bool,
    /// Runs; with more than one a line each, then medians.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Growth of the leaking pod, MB a second.
    #[arg(long, default_value_t = 64)]
    rate_mb_s: u64,
    /// Ends with the result as JSON on standard output, too.
    #[arg(long)]
    json: bool,
    /// Prints a line for each step that begins, for `cargo xtask demo`.
    #[arg(long)]
    steps: bool,
    /// The guest's time counts instructions: says so beside the figures.
    #[arg(long)]
    instruction_time: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    tell(&Plan {
        without: arguments.without,
        runs: arguments.runs,
        rate_mb_s: arguments.rate_mb_s,
        json: arguments.json,
        steps: arguments.steps,
        instruction_time: arguments.instruction_time,
    })
}
