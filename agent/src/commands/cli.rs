//! The command line: subcommands.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::commands::admit::AdmitArgs;
use crate::commands::arbitrate::ArbitrateArgs;
use crate::commands::check::CheckArgs;
use crate::commands::config::ConfigArgs;
use crate::commands::events::EventsArgs;
use crate::commands::exec::ExecArgs;
use crate::commands::exit_status::{self, CommandError};
use crate::commands::explain::ExplainArgs;
use crate::commands::health::HealthArgs;
use crate::commands::manual::{CompletionsArgs, ManArgs};
use crate::commands::place::PlaceArgs;
use crate::commands::quota::QuotaArgs;
use crate::commands::rank::RankArgs;
use crate::commands::rehearse::RehearseArgs;
use crate::commands::replay::ReplayArgs;
use crate::commands::top::TopArgs;
use crate::commands::topology::TopologyArgs;
use crate::commands::trace::TraceArgs;
use crate::commands::uninstall::UninstallArgs;
use crate::commands::web::WebArgs;
use crate::daemon::start::RunArgs;
use crate::host::panics;
use crate::host::program::{failed, log_to_stderr};

/// Keep a Kubernetes node, or any Linux machine, from running out of memory
#[derive(Debug, Parser)]
#[command(
    name = "plimsoll",
    version,
    after_help = "\
Examples:
  plimsoll check                                    what this machine supports
  plimsoll run --manifests ./pods                   watch the node; evict pods when it runs short
  plimsoll exec -f ./pods/web.yaml -- nginx         run a command as a container of a pod
  plimsoll rank -f ./pods --usage usage.yaml        which pod would be evicted first, and why; needs no agent
  plimsoll explain eviction                         which pod a running agent would evict next, and what would make a pod safe
  plimsoll top                                      pressure, memory and the next pod to be evicted, live on a screen
  plimsoll web                                      the same in a browser
  plimsoll place -f ./pods --machine machine.json   which CPUs and NUMA nodes pods would get
  plimsoll arbitrate -f cluster.yaml                who may have how much of a cluster, and who gives it back
  plimsoll rehearse -f cluster.yaml --load l.yaml   what shares, quotas and priorities do over days
  plimsoll admit -f ./team-a --why                  whether a namespace would take these pods, and with which requests
  plimsoll health                                   whether the agent's loop answers: for probes and supervisors
  plimsoll config check -f kubelet.yaml             whether a configuration is valid, and what plimsoll does with it
  plimsoll topology                                 the machine: sockets, NUMA nodes, caches, cores, memory
  plimsoll replay run.journal                       repeat the decisions and compare them
  plimsoll events --for 10s                         print records from the kernel
  plimsoll trace --pod default/web web.pftrace      where a pod spends its time, with throttling and stalls
  plimsoll uninstall --dry-run                      what agents have left behind, and what would be restored

Set PLIMSOLL_LOG to error, warn, info, debug or trace to log to standard error [default: warn]."
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
    Arbitrate(ArbitrateArgs),
    Rehearse(RehearseArgs),
    Admit(AdmitArgs),
    Quota(QuotaArgs),
    Config(ConfigArgs),
    Explain(ExplainArgs),
    Top(TopArgs),
    Web(WebArgs),
    Health(HealthArgs),
    Topology(TopologyArgs),
    Trace(Box<TraceArgs>),
    Uninstall(UninstallArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Replay a journal and compare the decisions byte for byte
    Replay(ReplayArgs),
}

/// The command line's definition.
pub(crate) fn command() -> clap::Command {
    exit_status::explained(Cli::command())
}

/// Runs the program.
pub fn main() -> ExitCode {
    let matches = command().get_matches();
    let cli =
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command()).exit());
    log_to_stderr();
    panics::install();
    match cli.command {
        Command::Run(_) => ended(crate::commands::run::run().map(|never| match never {})),
        Command::Exec(args) => ended(crate::commands::exec::run(args).map(|never| match never {})),
        Command::Check(args) => ended(crate::commands::check::run(&args)),
        Command::Events(args) => ended(crate::commands::events::run(&args)),
        Command::Config(args) => ended(crate::commands::config::run(&args)),
        Command::Place(args) => ended(crate::commands::place::run(&args)),
        Command::Arbitrate(args) => ended(crate::commands::arbitrate::run(&args)),
        Command::Rehearse(args) => ended(crate::commands::rehearse::run(&args)),
        Command::Admit(args) => ended(crate::commands::admit::run(&args)),
        Command::Quota(args) => ended(crate::commands::quota::run(&args)),
        Command::Rank(args) => ended(crate::commands::rank::run(&args)),
        Command::Explain(args) => ended(crate::commands::explain::run(&args)),
        Command::Health(args) => ended(crate::commands::health::run(&args)),
        Command::Top(args) => ended(crate::commands::top::run(&args)),
        Command::Web(args) => ended(crate::commands::web::run(&args)),
        Command::Topology(args) => ended(crate::commands::topology::run(&args)),
        Command::Trace(_) => ended(crate::commands::trace::run().map(|never| match never {})),
        Command::Uninstall(args) => ended(crate::commands::uninstall::run(&args)),
        Command::Completions(args) => ended(crate::commands::manual::completions(&args, command())),
        Command::Man(args) => ended(crate::commands::manual::man(&args, command())),
        Command::Replay(args) => ended(crate::commands::replay::run(&args)),
    }
}

fn ended<E: CommandError + std::fmt::Display>(result: Result<ExitCode, E>) -> ExitCode {
    result.unwrap_or_else(|error| failed(&error, error.exit_status()))
}
