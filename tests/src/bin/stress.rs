//! Each memory stressor of `stress-ng` as a pod, one after the other, beside pods that mean no harm.
//! `cargo xtask stress` runs it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use tests::guest::stress::{Plan, run};

#[derive(Parser)]
struct Arguments {
    /// Seconds of each stressor.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only these.
    #[arg(value_name = "STRESSOR")]
    stressors: Vec<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let Arguments { seconds, stressors } = Arguments::parse();
    let is_well = run(&Plan { seconds, stressors })?;
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
