//! What the armed threshold costs a workload that does nothing but fault in memory: the same loop with the agent off and
//! on, in turns. `cargo xtask bench cost` runs it with instruction-counted time.

#![forbid(unsafe_code)]

use clap::Parser;
use tests::guest::cost::{Plan, run};

#[derive(Parser)]
struct Arguments {
    /// Pairs of off and on.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Rounds of 64 MiB (16384 faults) in a measurement.
    #[arg(long, default_value_t = 4)]
    rounds: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    run(&Plan {
        pairs: arguments.pairs,
        rounds: arguments.rounds,
    })
}
