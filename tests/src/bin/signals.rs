//! What each signal costs and how soon it is seen. `cargo xtask bench signals` runs it with instruction-counted time,
//! and has the defaults; one JSON row a measurement goes to `/out/signals.jsonl`.

#![forbid(unsafe_code)]

use clap::Parser;
use tests::guest::signals::{Output, Part, Plan, run};

#[derive(Parser)]
struct Arguments {
    /// What to measure.
    #[arg(long, value_delimiter = ',', value_enum, required = true)]
    parts: Vec<Part>,
    /// Pairs of attached and detached.
    #[arg(long)]
    pairs: u32,
    /// Cgroups that the agent has to follow.
    #[arg(long, value_delimiter = ',', required = true)]
    cgroups: Vec<u32>,
    /// How to print.
    #[arg(long, value_enum)]
    output: Output,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    run(&Plan {
        parts: arguments.parts,
        pairs: arguments.pairs,
        cgroups: arguments.cgroups,
        output: arguments.output,
    })
}
