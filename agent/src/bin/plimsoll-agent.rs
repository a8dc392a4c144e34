//! `plimsoll-agent`: what `plimsoll run` needs and nothing else, because all of it is locked in memory.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use plimsoll::daemon::load_programs::LoadProgramsArgs;
use plimsoll::daemon::start::RunArgs;
use plimsoll::daemon::{load_programs, start};
use plimsoll::host::program::{EXIT_FAILURE, answer, log_to_stderr};

#[derive(Debug, Parser)]
#[command(name = start::PROGRAM, version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    hidden: Option<Hidden>,
}

#[derive(Debug, Subcommand)]
enum Hidden {
    #[command(hide = true)]
    LoadPrograms(LoadProgramsArgs),
}

fn main() -> ExitCode {
    let Cli { run, hidden } = Cli::parse();
    log_to_stderr();
    let ended = match hidden {
        None => start::run(&run),
        Some(Hidden::LoadPrograms(args)) => load_programs::run(&args),
    };
    answer(ended, EXIT_FAILURE)
}
