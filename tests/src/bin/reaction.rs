//! The ramp scenario, many times in one guest: how soon after the crossing does each system act?
//!
//! A hog first touches memory up to 350 MiB above the threshold, waits, then grows at a fixed rate. Per peer, rate and
//! threshold it is run several times; in between everything is killed and the node comes to rest. One JSON row a run
//! goes to `/out/reaction.jsonl`, the table to standard output. `cargo xtask bench reaction` runs it, and has
//! the defaults.

#![forbid(unsafe_code)]

use clap::Parser;
use tests::guest::reaction::{Peer, Plan, run};

#[derive(Parser)]
struct Arguments {
    /// Runs of each combination.
    #[arg(long)]
    runs: u32,
    /// Growth of the hog, MB a second.
    #[arg(long, value_delimiter = ',', required = true)]
    rates: Vec<u64>,
    /// Thresholds, as quantities.
    #[arg(long, value_delimiter = ',', required = true)]
    thresholds: Vec<String>,
    /// Systems under test.
    #[arg(long, value_delimiter = ',', value_enum, required = true)]
    peers: Vec<Peer>,
    /// Pods on the node, the hog with them.
    #[arg(long)]
    pods: u32,
    /// Seconds at rest over which idle cost is measured; 0: not at all.
    #[arg(long)]
    idle: u64,
    /// Crossings that are no shortage; 0: none.
    #[arg(long)]
    false_alarms: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    run(&Plan {
        runs: arguments.runs,
        rates_mb_s: arguments.rates,
        thresholds: arguments.thresholds,
        peers: arguments.peers,
        pods: arguments.pods,
        idle_s: arguments.idle,
        false_alarms: arguments.false_alarms,
    })
}
