//! `plimsoll-trace`: what `plimsoll trace` becomes. It reads its arguments and prints the error, nothing else; or it is
//! the child of one that looks up the names in a file.

use std::process::ExitCode;

use clap::Parser;
use plimsoll::commands::trace::{PROGRAM, TraceArgs};
use plimsoll::host::program::{failed, log_to_stderr};
use plimsoll_trace::names::child;

#[derive(Debug, Parser)]
#[command(name = PROGRAM, version)]
struct Cli {
    #[command(flatten)]
    trace: TraceArgs,
}

fn main() -> ExitCode {
    if child::asked_for() {
        return child::run();
    }
    let Cli { trace } = Cli::parse();
    log_to_stderr();
    plimsoll_trace::run(&trace).unwrap_or_else(|error| failed(&error, error.exit_status()))
}
