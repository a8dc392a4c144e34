//! `plimsoll topology`: the machine drawn for people, as a tree in the terminal or as a picture, and as `machine.json` for programs.
//!
//! The machine is the one at hand, or one that a file describes ([`plimsoll_core::placement::machine`], docs/reference/machine.md). What is
//! drawn is a tree of parts that contain each other ([`layout`](crate::show::topology::layout)), whatever the order in which this machine nests them; who holds
//! which CPUs ([`Holders`]) is shown where it is known.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::commands::exec::STATE_DIR;
use crate::host::HostRoot;
use crate::host::output::Style;
use crate::host::topology::{TopologyReadError, read_machine};
use crate::input::machine::{self, MachineFileError};
use crate::serve::control::client::{AskError, ask};
use crate::serve::control::{Answer, Refusal, RefusalKind, Request, socket_path};
use crate::show::topology::holders::Holders;

/// Draw the machine: sockets, NUMA nodes, caches, cores, memory, distances
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll topology                                   this machine, as a tree; beside a running agent, with who holds which CPUs
  plimsoll topology --output svg > machine.svg        as a picture
  plimsoll topology --output json > machine.json      as a file, which --machine takes anywhere
  plimsoll topology --machine machine.json            a machine that somebody described

CORES \"8 × 2\" is eight cores of two threads; SIBLINGS \"0+8\" are the threads of one core.
machine.json: docs/reference/machine.md. A line of the kubelet's golden topologies.jsonl is taken too.

Exit status: 0 drawn; 1 the machine or the file cannot be read or is wrong (the message names file and field); 2 wrong usage.")]
pub struct TopologyArgs {
    /// Draw the machine that this file describes, not this one; - for standard input
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// text: for people; json: machine.json; svg: a picture
    #[arg(long, short, value_enum, default_value_t)]
    pub output: Format,
    /// The state directory of an agent that runs here: then also who holds which CPUs
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// One line for each cache and each node, however many there are
    #[arg(long)]
    pub all: bool,
}

/// For whom the answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs, and for `--machine`.
    Json,
    /// For people, in a browser or a document.
    Svg,
}

/// Why nothing is drawn.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// This machine.
    #[error("{0}\nA machine that is described in a file can be drawn with --machine FILE.")]
    Host(TopologyReadError),
    /// The file.
    #[error(transparent)]
    File(#[from] MachineFileError),
    /// Standard output.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// `plimsoll topology`.
///
/// # Errors
/// [`TopologyError`].
pub fn run(args: &TopologyArgs) -> Result<ExitCode, TopologyError> {
    let (machine, holders) = match &args.machine {
        None => {
            let machine = read_machine(&HostRoot::live()).map_err(TopologyError::Host)?;
            (machine, holders_here(&args.state_dir))
        }
        Some(path) => (machine::read(path, io::stdin().lock())?, None),
    };
    let holders = holders.as_ref();
    let mut stdout = io::stdout().lock();
    let text = match args.output {
        Format::Json => serde_json::to_string_pretty(&machine).map_err(io::Error::from)? + "\n",
        Format::Text => {
            crate::show::topology::draw(&machine, holders, args.all, Style::of(&stdout))
        }
        Format::Svg => crate::show::topology::svg::draw(&machine, holders),
    };
    stdout.write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Who holds which CPUs, if an agent runs here that places pods. One that runs and cannot be asked is said.
fn holders_here(state_dir: &Path) -> Option<Holders> {
    let socket = socket_path(state_dir, None);
    if !socket.exists() {
        return None;
    }
    match ask(&socket, &Request::ExplainPlacement { pod: None }) {
        Ok(Answer::Placement(explained)) => Some(Holders::of(&explained)),
        Ok(_) => None,
        Err(AskError::Refused(Refusal {
            kind: RefusalKind::NothingPlaced,
            ..
        })) => None,
        Err(error) => {
            eprintln!("plimsoll: who holds which CPUs is not shown: {error}");
            None
        }
    }
}
