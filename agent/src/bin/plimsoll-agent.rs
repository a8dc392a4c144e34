//! `plimsoll-agent`: what `plimsoll run` needs and nothing else, because all of it is locked in memory.

use std::process::ExitCode;

use clap::Parser;
use plimsoll::daemon::start::{self, RunArgs};
use plimsoll::host::program::{EXIT_FAILURE, answer, log_to_stderr};

#[derive(Debug, Parser)]
#[command(name = start::PROGRAM, version)]
struct Cli {
    #[command(flatten)]
    run: RunArgs,
}

fn main() -> ExitCode {
    let Cli { run } = Cli::parse();
    log_to_stderr();
    answer(start::run(&run), EXIT_FAILURE)
}
