//! `cargo xtask bench`: the project's claims as measurements anyone can repeat.
//!
//! All run in a guest of one CPU whose time is its executed instructions, so that the figures hardly depend on this machine
//! or on what else it does. Raw rows go to `target/bench/` as JSON lines, one file a command, replaced each time.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};

use crate::ebpf;
use crate::guest::{Guest, OF_BENCHMARKS, released};
use crate::interrupt::Folder;
use crate::kernel::Kernel;
use crate::paths;
use crate::progress::say;

/// As in the scenario that the peers were measured with.
const MEMORY_MB: u64 = 4096;
/// Wall-clock time for one ramp: emulated, some are a minute of guest time.
const RAMP_TIME_MAX: Duration = Duration::from_secs(120);
const BOOT_TIME_MAX: Duration = Duration::from_secs(300);

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// From a threshold crossed to memory back, beside other systems
    Reaction(ReactionArgs),
    /// Cost of the agent to loops of page faults, forks and context switches, attached against detached
    Cost(CostArgs),
    /// Each signal: instructions and time of its programs, latency, rate; the agent with many cgroups
    Signals(SignalsArgs),
    /// CPU time and memory of each system at rest
    Idle(IdleArgs),
    /// A bursty service under its CPU limit, with and without cpuBurst, and its neighbours
    Burst(BurstArgs),
}

/// A system under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    None,
    Earlyoom,
    Oomd,
    Plimsoll,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Earlyoom => "earlyoom",
            Self::Oomd => "oomd",
            Self::Plimsoll => "plimsoll",
        }
    }

    fn debian_package(self) -> Option<&'static str> {
        match self {
            Self::Earlyoom | Self::Oomd => Some(self.name()),
            Self::None | Self::Plimsoll => None,
        }
    }
}

/// The ramp scenario.
#[derive(Debug, Args)]
pub(crate) struct ReactionArgs {
    /// Kernel to boot: 6.1, 6.12, 7.2, or the path of an image
    #[arg(long, default_value = "6.1")]
    kernel: Kernel,
    /// Runs of each combination
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Growth of the hog, MB a second
    #[arg(long, value_delimiter = ',', default_value = "64,512")]
    rates: Vec<u64>,
    /// Thresholds of memory.available
    #[arg(long, value_delimiter = ',', default_value = "1Gi,100Mi")]
    thresholds: Vec<String>,
    /// Systems, one after the other
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "none,earlyoom,oomd,plimsoll"
    )]
    peers: Vec<Peer>,
    /// Pods on the node, the hog with them
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pods: u32,
    /// Seconds at rest over which idle cost is measured; 0 leaves it out
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    idle: u64,
    /// Crossings that are no shortage, until each of which is judged; 0 leaves them out
    #[arg(long, default_value_t = 1000, value_name = "CROSSINGS")]
    false_alarms: u64,
    #[command(flatten)]
    built: Built,
}

/// The page-fault loop.
#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    /// Kernel to boot: 6.1, 6.12, 7.2, or the path of an image
    #[arg(long, default_value = "6.1")]
    kernel: Kernel,
    /// Measurements of each, in turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
}

/// Each signal, and the agent with many cgroups.
#[derive(Debug, Args)]
pub(crate) struct SignalsArgs {
    /// Kernel to boot: 6.1, 6.12, 7.2, or the path of an image
    #[arg(long, default_value = "6.1")]
    kernel: Kernel,
    /// What to measure
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "hooks,loops,footprint,scrape,resident"
    )]
    parts: Vec<SignalsPart>,
    /// Measurements of each loop, in turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Cgroups that the agent has to follow
    #[arg(long, value_delimiter = ',', default_value = "0,50,250,1000")]
    cgroups: Vec<u32>,
    /// table: for people; json: one object per row
    #[arg(long, value_enum, default_value_t)]
    output: BenchOutput,
    #[command(flatten)]
    built: Built,
}

/// What is measured.
#[derive(Debug, Clone, Copy, Default, Args)]
struct Built {
    /// Measure the programs as guest tests run them: without link-time optimisation, built in seconds instead of minutes
    #[arg(long)]
    as_tested: bool,
}

/// A part of `bench signals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SignalsPart {
    /// Every program: instructions, run time, and how soon its records arrive
    Hooks,
    /// Loops of page faults, forks and context switches, attached against detached
    Loops,
    /// The agent's CPU time and memory with many cgroups
    Footprint,
    /// Time and size of the pages of its HTTP listener with many cgroups
    Scrape,
    /// What of the agent is resident with many cgroups: code, rings, heap, stacks
    Resident,
}

/// A service that uses two thirds of its limit and is throttled in a third of its periods.
#[derive(Debug, Args)]
pub(crate) struct BurstArgs {
    /// Kernel to boot: 6.1, 6.12, 7.2, or the path of an image
    #[arg(long, default_value = "6.1")]
    kernel: Kernel,
    /// Runs of each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Seconds that each is measured, after as many for the agent to find out
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=600))]
    seconds: u64,
    /// table: for people; json: one object per run
    #[arg(long, value_enum, default_value_t)]
    output: BenchOutput,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum BenchOutput {
    #[default]
    Table,
    Json,
}

/// At rest.
#[derive(Debug, Args)]
pub(crate) struct IdleArgs {
    /// Kernel to boot: 6.1, 6.12, 7.2, or the path of an image
    #[arg(long, default_value = "6.1")]
    kernel: Kernel,
    /// Systems, one after the other
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "earlyoom,oomd,plimsoll"
    )]
    peers: Vec<Peer>,
    /// Pods on the node
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=500))]
    pods: u32,
    /// How long
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Runs the measurement; the status is the guest program's.
pub(crate) fn run(command: &BenchCommand) -> Result<u8> {
    match command {
        BenchCommand::Reaction(args) => {
            let combinations = args.peers.len() * args.rates.len() * args.thresholds.len();
            let ramps = u32::try_from(combinations)
                .unwrap_or(u32::MAX)
                .saturating_mul(args.runs);
            let rates: Vec<String> = args.rates.iter().map(u64::to_string).collect();
            let program = format!(
                "reaction --runs {} --rates {} --thresholds {} --peers {} --pods {} --idle-s {} --false-alarms {}",
                args.runs,
                rates.join(","),
                args.thresholds.join(","),
                names(&args.peers),
                args.pods,
                args.idle,
                args.false_alarms
            );
            measure(
                &args.kernel,
                &args.peers,
                &program,
                RAMP_TIME_MAX.saturating_mul(ramps.saturating_add(10)),
                "reaction",
                args.built,
            )
        }
        BenchCommand::Cost(args) => {
            let program = format!("cost --pairs {}", args.pairs);
            measure(
                &args.kernel,
                &[],
                &program,
                RAMP_TIME_MAX.saturating_mul(args.pairs),
                "cost",
                Built::default(),
            )
        }
        BenchCommand::Signals(args) => {
            let cgroups: Vec<String> = args.cgroups.iter().map(u32::to_string).collect();
            let parts: Vec<&str> = args.parts.iter().map(|part| part.name()).collect();
            let program = format!(
                "signals --parts {} --pairs {} --cgroups {} --output {}",
                parts.join(","),
                args.pairs,
                cgroups.join(","),
                args.output.name(),
            );
            measure(
                &args.kernel,
                &[],
                &program,
                RAMP_TIME_MAX.saturating_mul(args.pairs + 20),
                "signals",
                args.built,
            )
        }
        BenchCommand::Burst(args) => {
            let program = format!(
                "burst --runs {} --seconds {} --output {}",
                args.runs,
                args.seconds,
                args.output.name()
            );
            // Each run is measured for as long as it warms up, with and without; emulated, a second is at most some twenty.
            let seconds = args.seconds * 2 * 2 * u64::from(args.runs) * 20;
            let time = RAMP_TIME_MAX.saturating_add(Duration::from_secs(seconds));
            measure(&args.kernel, &[], &program, time, "burst", Built::default())
        }
        BenchCommand::Idle(args) => {
            let program = format!(
                "reaction --runs 0 --thresholds 100Mi --peers {} --pods {} --idle-s {}",
                names(&args.peers),
                args.pods,
                args.seconds
            );
            measure(
                &args.kernel,
                &args.peers,
                &program,
                RAMP_TIME_MAX.saturating_mul(10),
                "idle",
                Built::default(),
            )
        }
    }
}

impl BenchOutput {
    fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Json => "json",
        }
    }
}

impl SignalsPart {
    fn name(self) -> &'static str {
        match self {
            Self::Hooks => "hooks",
            Self::Loops => "loops",
            Self::Footprint => "footprint",
            Self::Scrape => "scrape",
            Self::Resident => "resident",
        }
    }
}

fn names(peers: &[Peer]) -> String {
    let names: Vec<&str> = peers.iter().map(|peer| peer.name()).collect();
    names.join(",")
}

/// The bare ring buffer to compare with, built when it is not there.
fn ping_object() -> Result<PathBuf> {
    ebpf::build()?;
    Ok(paths::ping_object())
}

fn measure(
    kernel: &Kernel,
    peers: &[Peer],
    program: &str,
    time: Duration,
    name: &str,
    built: Built,
) -> Result<u8> {
    let packages: Vec<&str> = peers
        .iter()
        .filter_map(|peer| peer.debian_package())
        .collect();
    let came = Folder::new()?;
    say(
        "bench",
        format_args!("kernel {kernel}, 1 CPU, {MEMORY_MB} MB: {program}"),
    );
    let guest = Guest::new(kernel.clone());
    // In place of the guests' own build: what is measured is what people run.
    let guest = match built.as_tested {
        true => guest.programs(OF_BENCHMARKS),
        false => released()?.into_iter().fold(guest, Guest::payload),
    };
    let exit = guest
        .memory_mb(MEMORY_MB)
        .icount(true)
        .debian_packages(&packages)
        .payload(ping_object()?)
        .timeout(Some(BOOT_TIME_MAX.saturating_add(time)))
        .out(came.path())
        .command(program)
        .run(|line| {
            // A closed stdout (a pager that ended) must not stop the guest.
            let _closed = writeln!(io::stdout(), "{line}");
        })?;
    ensure!(exit.code() == 0, "the guest ended as {:?}", exit.end);
    let folder = paths::target("bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for file in fs::read_dir(came.path())? {
        let file = file?;
        let kernel = kernel.to_string().replace('/', "_");
        let to = folder.join(format!("{name}-{kernel}.jsonl"));
        fs::copy(file.path(), &to).with_context(|| format!("cannot write {}", to.display()))?;
        say("bench", format_args!("raw rows in {}", to.display()));
    }
    Ok(exit.code())
}
