//! The command line.

mod arbitrate;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use plimsoll_core::shown::line;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::Source;
use crate::report::policy::{EvictBy, EvictedPods, Policy};
use crate::run::{self, Settings};
use crate::serve::Address;

const AFTER_HELP: &str = "\
Examples:
  plimsoll-cluster --node worker-3                            in a pod, with its service account
  plimsoll-cluster --node worker-3 --kubeconfig /etc/kubernetes/kubelet.conf
  plimsoll-cluster --node worker-3 --evicted-pods keepPerOwner=3,keepFor=1h
  plimsoll-cluster --node worker-3 --evict-by EvictionAPI --respect-disruption-budgets
  plimsoll-cluster --node worker-3 --clean-up                 takes conditions and taint off the node
  plimsoll-cluster arbitrate --help                           once a cluster: namespaces share it
  curl --unix-socket /run/plimsoll/cluster-metrics.sock http://localhost/metrics

Exit status: 0 ended by SIGTERM or SIGINT, or the node is clean; 1 the configuration cannot be used, or the node could not be cleaned; 2 wrong usage.
An API server or an agent that cannot be reached ends nothing: both are called again.

Rights: docs/reference/cluster.md has each call and the right that it needs.";

/// Tells the Kubernetes API what plimsoll-agent did on its node, and the agent which pods the API has there
#[derive(Debug, Parser)]
#[command(
    name = "plimsoll-cluster",
    version,
    after_help = AFTER_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    node: Option<Node>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Arbitrate(arbitrate::Arbitrate),
}

/// The program beside the agent.
#[derive(Debug, Args)]
struct Node {
    /// Name of this node in the API
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    node: String,
    /// The socket that the agent listens on
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/plimsoll/cluster.sock"
    )]
    socket: PathBuf,
    /// Address and credentials [default: the service account of the pod that this runs in]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// What becomes of the objects of evicted pods: Keep, Delete, or such as keepPerOwner=3,keepFor=1h (needs `delete`
    /// of pods but for Keep)
    #[arg(long, value_name = "WHAT", default_value = "Keep")]
    evicted_pods: EvictedPods,
    /// The call that ends a pod; EvictionAPI heeds disruption budgets at soft thresholds, if the agent's configuration
    /// has evictionMaxPodGracePeriod above 0, and needs `create` of pods/eviction
    #[arg(long, value_name = "CALL", value_enum, default_value = "Status")]
    evict_by: EvictBy,
    /// Keep new pods off the node while a memory threshold is met: the taint plimsoll.dev/memory-pressure:NoSchedule
    /// (needs `patch` of nodes)
    #[arg(long)]
    taint_on_pressure: bool,
    /// Watch disruption budgets for the agent's ranking (needs `list` and `watch` of poddisruptionbudgets)
    #[arg(long)]
    respect_disruption_budgets: bool,
    /// Write what this node's NUMA nodes have left as its NodeResourceTopology, with the agent's option of this name
    /// (needs `create` and `patch` of noderesourcetopologies.topology.node.k8s.io)
    #[arg(long)]
    node_resource_topology: bool,
    /// Send every write as a dry run: the API server checks it and stores nothing
    #[arg(long)]
    dry_run: bool,
    /// Serve /metrics, /healthz and /readyz: unix:PATH, or a port of loopback
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<Address>,
    /// Remove Plimsoll's conditions and taint from the node, delete the NodeResourceTopology that it wrote, then exit
    #[arg(long)]
    clean_up: bool,
    /// Do the same after SIGTERM or SIGINT, when nothing is written any more; without it a restart leaves all of it as
    /// it is
    #[arg(long, conflicts_with = "clean_up")]
    clean_up_on_exit: bool,
}

impl Node {
    fn settings(self) -> Settings {
        Settings {
            node: self.node,
            socket: self.socket,
            source: self
                .kubeconfig
                .map_or(Source::InCluster, Source::Kubeconfig),
            policy: Policy {
                evicted_pods: self.evicted_pods,
                evict_by: self.evict_by,
                dry_run: self.dry_run,
                taint_on_pressure: self.taint_on_pressure,
                node_resource_topology: self.node_resource_topology,
            },
            respect_budgets: self.respect_disruption_budgets,
            metrics: self.metrics,
            clean_up_on_exit: self.clean_up_on_exit,
        }
    }
}

/// Reads the arguments, runs, prints the error.
#[must_use]
pub fn main() -> ExitCode {
    let Cli { command, node } = Cli::parse();
    let ended = match (command, node) {
        (Some(Command::Arbitrate(arguments)), _) => arbitrate(arguments),
        (None, Some(arguments)) => beside_the_agent(arguments),
        // The parser has ended the program: --node is required without a command.
        (None, None) => Cli::command()
            .error(
                ErrorKind::MissingRequiredArgument,
                "give --node NAME, or the command arbitrate",
            )
            .exit(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plimsoll-cluster: {}", line(&error));
            ExitCode::FAILURE
        }
    }
}

/// One thread beside an agent: nothing there is worth a second stack.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    run_in(&mut tokio::runtime::Builder::new_current_thread(), work)
}

/// The work has a thread of its own: while it computes, what it spawned goes on, such as the Lease and the probes.
fn block_on_apart<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    run_in(threads.worker_threads(1), work)
}

fn run_in<T>(
    builder: &mut tokio::runtime::Builder,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let ended = runtime.block_on(work);
    // Calls that are on their way are told again by the next process.
    runtime.shutdown_background();
    ended
}

fn beside_the_agent(arguments: Node) -> Result<(), String> {
    let cleans_up = arguments.clean_up;
    let settings = arguments.settings();
    block_on(async {
        if cleans_up {
            let cleaned = run::clean_up(&settings).await;
            return cleaned.map_err(|error| error.to_string());
        }
        let ended = run::run(settings, stop()?).await;
        ended.map_err(|error| error.to_string())
    })
}

fn arbitrate(arguments: arbitrate::Arbitrate) -> Result<(), String> {
    let once = arguments.once();
    let settings = arguments.settings();
    block_on_apart(async {
        if let Some(output) = once {
            let found = run::arbitrate::once(settings).await;
            let found = found.map_err(|error| error.to_string())?;
            return print(&arbitrate::printed(&found, output));
        }
        let ended = run::arbitrate::run(settings, stop()?).await;
        ended.map_err(|error| error.to_string())
    })
}

/// Writes to standard output. A reader that has closed the pipe has read enough.
fn print(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| format!("cannot write to standard output: {error}")),
    }
}

/// Completes with SIGTERM or SIGINT.
fn stop() -> Result<impl Future<Output = ()>, String> {
    let wrong = |error| format!("cannot wait for signals: {error}");
    let mut terminate = signal(SignalKind::terminate()).map_err(wrong)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(wrong)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_goes_on_while_a_cycle_is_computed() {
        let ended = block_on_apart(async {
            let (renewed, renewals) = std::sync::mpsc::channel();
            tokio::spawn(async move { renewed.send(()) });
            // A cycle that takes long: it does not yield.
            let limit = std::time::Duration::from_secs(60);
            renewals.recv_timeout(limit).map_err(|it| it.to_string())
        });
        assert_eq!(ended, Ok(()));
    }

    #[test]
    fn the_arguments_are_well_formed_and_read() {
        Cli::command().debug_assert();
        let cli = Cli::parse_from([
            "x",
            "--node",
            "n",
            "--evicted-pods",
            "keepPerOwner=1,keepFor=1m",
            "--evict-by",
            "EvictionAPI",
        ]);
        let settings = cli.node.unwrap().settings();
        assert_eq!(settings.policy.evict_by, EvictBy::EvictionApi);
        assert_eq!(
            settings.policy.evicted_pods,
            EvictedPods::KeepSome {
                per_owner: 1,
                for_ms: 60_000
            }
        );
        assert!(Cli::try_parse_from(["x", "--node", "n", "--metrics", "0.0.0.0:1"]).is_err());
        assert!(Cli::try_parse_from(["x", "--node", ""]).is_err());
        assert!(Cli::try_parse_from(["x"]).is_err());
    }

    #[test]
    fn the_arguments_of_the_arbitrator() {
        let cli = Cli::parse_from(["x", "arbitrate", "--grace-period", "2m", "--dry-run"]);
        let Some(Command::Arbitrate(arguments)) = cli.command else {
            panic!("no command")
        };
        assert_eq!(arguments.once(), None);
        let settings = arguments.settings();
        assert_eq!(settings.rules.times.grace_period_ms, 120_000);
        assert_eq!(settings.rules.times.minimum_run_time_ms, 60_000);
        assert!(settings.rules.is_dry);
        for wrong in [
            &["--cycle", "0s"][..],
            &["--grace-period", "soon"],
            &["--output", "json"],
            &["--node", "n"],
            &["--max-evictions-per-second", "0"],
        ] {
            let arguments = ["x", "arbitrate"].iter().chain(wrong);
            assert!(Cli::try_parse_from(arguments).is_err(), "{wrong:?}");
        }
    }
}
