//! From the decision to memory back, for pods of several sizes and kinds of memory, beside a process that unmaps as
//! much by itself. `cargo xtask bench teardown` runs it with instruction-counted time, and
//! has the defaults.

#![forbid(unsafe_code)]

use clap::Parser;
use tests::guest::teardown::{Plan, run};

#[derive(Parser)]
struct Arguments {
    /// Sizes of the evicted pod, MiB.
    #[arg(long, value_delimiter = ',', required = true)]
    sizes: Vec<u64>,
    /// Runs of each.
    #[arg(long)]
    runs: u32,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    run(&Plan {
        sizes_mb: arguments.sizes,
        runs: arguments.runs,
    })
}
