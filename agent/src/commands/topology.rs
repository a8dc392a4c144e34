//! `plimsoll topology`: the machine drawn for people, as a tree in the terminal or as a picture, and as `machine.json`
//! for programs.
//!
//! The machine is the one at hand, or one that a file describes ([`plimsoll_core::placement::machine`],
//! docs/reference/machine.md). What is drawn is a tree of parts that contain each other
//! ([`layout`](crate::show::topology::layout)), whatever the order in which this machine nests them; who holds which
//! CPUs ([`Holders`]) is shown where it is known.
//!
//! With `--zones` it is what containers leave of each NUMA node, whether the kubelet or the agent has placed them: the
//! zones of the NodeResourceTopology that the agent has written.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use plimsoll_core::placement::numa_zones::{AgentPlacement, Survey};

use crate::commands::exit_status::CommandError;
use crate::host::HostRoot;
use crate::host::output::{Drawing, OutputArgs, StdoutError, Style, json, print};
use crate::host::shown::{line, page};
use crate::host::topology::{TopologyReadError, read_machine};
use crate::input::machine::{self, MachineFileError};
use crate::serve::control::client::{AskError, ask};
use crate::serve::control::{AgentArgs, Answer, Refusal, RefusalKind, Request};
use crate::show::topology::holders::Holders;
use crate::source::pod_resources::{self, ResourceSettings, SOCKET};

/// Draw the machine: sockets, NUMA nodes, caches, cores, memory, distances
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll topology                                   this machine, as a tree; with CPU assignments if an agent runs
  plimsoll topology --output svg > machine.svg        as a picture
  plimsoll topology --output json > machine.json      as a file for --machine
  plimsoll topology --machine machine.json            a described machine
  plimsoll topology --zones                           what each NUMA node has left beside a kubelet; --output json as it is published

CORES \"8 × 2\" is eight cores of two threads; SIBLINGS \"0+8\" are the threads of one core.
machine.json: docs/reference/machine.md. Lines of tests/vectors/topologies.jsonl are accepted, too.")]
pub struct TopologyArgs {
    /// Draw the machine this file describes; - for standard input [default: this machine]
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: OutputArgs<Drawing>,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
    /// Do not fold: one line for each cache and node
    #[arg(long)]
    pub all: bool,
    /// Show what is free on each NUMA node, as --node-resource-topology publishes it
    #[arg(long, conflicts_with_all = ["machine", "all"])]
    pub zones: bool,
    /// Socket on which the kubelet lists what it has given to containers (with --zones)
    #[arg(long, value_name = "PATH", requires = "zones", default_value = SOCKET)]
    pub pod_resources: PathBuf,
}

/// Why nothing is drawn.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// This machine.
    #[error("{0}\nUse --machine FILE for a described machine.")]
    Host(TopologyReadError),
    /// The file.
    #[error(transparent)]
    File(#[from] MachineFileError),
    /// The kubelet, or what it says.
    #[error("{0}")]
    Zones(String),
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for TopologyError {}

/// `plimsoll topology`.
///
/// # Errors
/// [`TopologyError`].
pub fn run(args: &TopologyArgs) -> Result<ExitCode, TopologyError> {
    if args.zones {
        return zones(args);
    }
    let (machine, holders) = match &args.machine {
        None => {
            let machine = read_machine(&HostRoot::live()).map_err(TopologyError::Host)?;
            (machine, holders_here(&args.agent.socket()))
        }
        Some(path) => (machine::read(path, io::stdin().lock())?, None),
    };
    let holders = holders.as_ref();
    let text = match args.output.format {
        Drawing::Json => json(&machine)?,
        Drawing::Text => {
            let style = Style::of(&io::stdout());
            page(&crate::show::topology::draw(
                &machine, holders, args.all, style,
            ))
        }
        Drawing::Svg => crate::show::topology::svg::draw(&machine, holders),
    };
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Without the topology policy, which is in the kubelet's configuration, and without the fingerprint, which needs the
/// API's pods.
fn zones(args: &TopologyArgs) -> Result<ExitCode, TopologyError> {
    let program =
        std::env::current_exe().map_err(|error| TopologyError::Zones(error.to_string()))?;
    let settings = ResourceSettings {
        socket: args.pod_resources.clone(),
        program: program.with_file_name("plimsoll-runtime"),
    };
    let placed = placed_here(&args.agent.socket());
    let surveyed = pod_resources::once(&settings).and_then(|resources| {
        pod_resources::look(&HostRoot::live(), &resources, None, placed.as_ref())
    });
    let Survey { topology, doubts } = surveyed.map_err(TopologyError::Zones)?;
    for doubt in doubts {
        eprintln!("plimsoll: {}", line(&doubt.to_string()));
    }
    let zones = topology.named_zones();
    let text = match args.output.format {
        Drawing::Json => {
            let document = serde_json::json!({ "zones": zones });
            json(&document)?
        }
        Drawing::Text => crate::show::topology::zones(&topology, Style::of(&io::stdout())),
        Drawing::Svg => {
            let why = "there is no picture of the zones; use --output text or json";
            return Err(TopologyError::Zones(why.to_owned()));
        }
    };
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// What an agent has placed that runs here. One that runs and cannot be asked is said.
fn placed_here(socket: &Path) -> Option<AgentPlacement> {
    if !socket.exists() {
        return None;
    }
    match ask(socket, &Request::AgentPlacement) {
        Ok(Answer::AgentPlacement(placed)) => placed.map(|placed| *placed),
        Ok(_) => None,
        Err(error) => {
            eprintln!("plimsoll: what the agent has placed is not counted: {error}");
            None
        }
    }
}

/// Who holds which CPUs, if an agent runs here that places pods. One that runs and cannot be asked is said.
fn holders_here(socket: &Path) -> Option<Holders> {
    if !socket.exists() {
        return None;
    }
    match ask(socket, &Request::ExplainPlacement { pod: None }) {
        Ok(Answer::Placement(explained)) => Some(Holders::of(&explained)),
        Ok(_) => None,
        Err(AskError::Refused(Refusal {
            kind: RefusalKind::NothingPlaced,
            ..
        })) => None,
        Err(error) => {
            eprintln!("plimsoll: CPU assignments are not shown: {error}");
            None
        }
    }
}
