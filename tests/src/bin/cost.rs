//! What the agent costs a workload that does nothing but what it listens to: the same loops with the agent off and on,
//! in turns. `cargo xtask bench cost` runs it with instruction-counted time, and has the defaults.

#![forbid(unsafe_code)]

use clap::Parser;
use tests::guest::cost::{Loop, Plan, run};

#[derive(Parser)]
struct Arguments {
    /// Pairs of off and on.
    #[arg(long)]
    pairs: u32,
    /// What is done over and over.
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "faults,forks,switches,compute"
    )]
    loops: Vec<Loop>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    run(&Plan {
        pairs: arguments.pairs,
        loops: arguments.loops,
    })
}
