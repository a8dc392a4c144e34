//! What each signal costs and how soon it is seen. `cargo xtask bench signals` runs it with instruction-counted time;
//! one JSON row a measurement goes to `/out/signals.jsonl`.

#![forbid(unsafe_code)]

use clap::Parser;
use tests::guest::signals::{Output, Part, Plan, run};

#[derive(Parser)]
struct Arguments {
    /// What to measure.
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "hooks,loops,footprint,scrape,resident"
    )]
    parts: Vec<Part>,
    /// Pairs of attached and detached.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Cgroups that the agent has to follow.
    #[arg(long, value_delimiter = ',', default_value = "0,50,250,1000")]
    cgroups: Vec<u32>,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
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
