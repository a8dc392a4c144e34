//! `plimsoll-agent`: what `plimsoll run` needs and nothing else, because all of it is locked in memory.

use std::process::ExitCode;

use clap::Parser;
use plimsoll::daemon::start::{self, RunArgs};
use plimsoll::host::exit_status::FAILED;
use plimsoll::host::panics;
use plimsoll::host::program::{failed, log_to_stderr};

#[derive(Debug, Parser)]
#[command(name = start::PROGRAM, version)]
struct Cli {
    #[command(flatten)]
    run: RunArgs,
}

fn main() -> ExitCode {
    let Cli { run } = Cli::parse();
    log_to_stderr();
    panics::install();
    start::run(&run).unwrap_or_else(|error| failed(&error, FAILED))
}
