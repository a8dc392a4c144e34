//! The command line: subcommands.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::commands::check::CheckArgs;
use crate::commands::config::ConfigArgs;
use crate::commands::events::EventsArgs;
use crate::commands::exec::ExecArgs;
use crate::commands::explain::ExplainArgs;
use crate::commands::manual::{CompletionsArgs, ManArgs};
use crate::commands::place::PlaceArgs;
use crate::commands::rank::RankArgs;
use crate::commands::replay::ReplayArgs;
use crate::commands::top::TopArgs;
use crate::commands::topology::TopologyArgs;
use crate::commands::trace::TraceArgs;
use crate::commands::uninstall::UninstallArgs;
use crate::daemon::start::RunArgs;
use crate::host::program::{EXIT_FAILURE, answer, log_to_stderr};

/// Keeps a Kubernetes node, or any Linux machine, on the safe side of its memory
#[derive(Debug, Parser)]
#[command(
    name = "plimsoll",
    version,
    after_help = "\
Examples:
  plimsoll check                                    what this machine allows
  plimsoll run --manifests ./pods                   watch the node, evict when it runs short
  plimsoll exec -f ./pods/web.yaml -- nginx         start a container of a pod
  plimsoll rank -f ./pods --usage usage.yaml        who would be evicted first, and why; needs no agent
  plimsoll place -f ./pods --machine machine.json   which CPUs and NUMA nodes pods would get
  plimsoll explain eviction                         the same of a running agent, and what would make a pod safe
  plimsoll top                                      the same and more on a screen, as it happens
  plimsoll config check -f kubelet.yaml             whether a configuration would be accepted, and what is done with it
  plimsoll topology                                 the machine: sockets, NUMA nodes, caches, cores, memory
  plimsoll replay run.journal                       take the same decisions again
  plimsoll events --seconds 10                      what the kernel tells
  plimsoll trace --pod default/web -o web.pftrace   where a pod's time goes, beside throttling and stalls
  plimsoll uninstall --dry-run                      what agents have left, and how it would be put back

PLIMSOLL_LOG=debug shows on standard error what is done and why (error, warn, info, debug, trace)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<RunArgs>),
    Exec(ExecArgs),
    Check(CheckArgs),
    Events(EventsArgs),
    Rank(RankArgs),
    Place(PlaceArgs),
    Config(ConfigArgs),
    Explain(ExplainArgs),
    Top(TopArgs),
    Topology(TopologyArgs),
    Trace(Box<TraceArgs>),
    Uninstall(UninstallArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Feed a journal to a fresh engine and compare its decisions byte for byte
    #[command(
        after_help = "Exit status: 0 the same decisions; 1 they differ; 2 the journal cannot be replayed."
    )]
    Replay(ReplayArgs),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr();
    match cli.command {
        Command::Run(_) => match crate::commands::run::run() {
            Ok(never) => match never {},
            Err(error) => answer(Err(error.into()), EXIT_FAILURE),
        },
        Command::Exec(args) => match crate::commands::exec::run(args) {
            Ok(never) => match never {},
            Err(error) => {
                let status = error.exit_code();
                answer(Err(error.into()), status)
            }
        },
        Command::Check(args) => answer(
            crate::commands::check::run(&args).map_err(Into::into),
            crate::probe::report::EXIT_UNUSABLE,
        ),
        Command::Events(args) => answer(
            crate::commands::events::run(&args).map_err(Into::into),
            EXIT_FAILURE,
        ),
        Command::Config(args) => answer(crate::commands::config::run(&args), EXIT_FAILURE),
        Command::Place(args) => answer(
            crate::commands::place::run(&args).map_err(Into::into),
            EXIT_FAILURE,
        ),
        Command::Rank(args) => answer(
            crate::commands::rank::run(&args).map_err(Into::into),
            EXIT_FAILURE,
        ),
        Command::Explain(args) => match crate::commands::explain::run(&args) {
            Ok(status) => status,
            Err(error) => {
                let status = error.exit_code();
                answer(Err(error.into()), status)
            }
        },
        Command::Top(args) => answer(
            crate::commands::top::run(&args).map_err(Into::into),
            EXIT_FAILURE,
        ),
        Command::Topology(args) => answer(
            crate::commands::topology::run(&args).map_err(Into::into),
            EXIT_FAILURE,
        ),
        Command::Trace(_) => match crate::commands::trace::run() {
            Ok(never) => match never {},
            Err(error) => answer(Err(error.into()), EXIT_FAILURE),
        },
        Command::Uninstall(args) => answer(crate::commands::uninstall::run(&args), EXIT_FAILURE),
        Command::Completions(args) => answer(
            crate::commands::manual::completions(&args, Cli::command()).map_err(Into::into),
            EXIT_FAILURE,
        ),
        Command::Man(args) => answer(
            crate::commands::manual::man(&args, Cli::command()).map_err(Into::into),
            EXIT_FAILURE,
        ),
        Command::Replay(args) => answer(crate::commands::replay::run(&args).map_err(Into::into), 2),
    }
}
