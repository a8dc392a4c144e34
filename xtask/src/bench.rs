//! `cargo xtask bench`: the project's claims as measurements anyone can repeat.
//!
//! Options and their defaults are here: the programs in the guest (`tests/src/bin`) are given all of them.
//!
//! All run in a guest of one CPU whose time is its executed instructions, so that the figures hardly depend on this
//! machine or on what else it does. Raw rows go to `target/bench/` as JSON lines, one file a command, replaced each
//! time.

mod all;
mod figures;
mod measurements;
mod page;

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};

pub(crate) use all::{AllArgs, none_is_worse};

use crate::ebpf;
use crate::guest::{Clock, Guest, OF_BENCHMARKS, Programs, released};
use crate::interrupt::Folder;
use crate::kernel::Kernel;
use crate::paths;
use crate::progress::say;

/// As in the scenario that the peers were measured with.
const MEMORY_MB: u64 = 4096;
/// For one ramp, time in which the guest could run: emulated, some are a minute of guest time.
const RAMP_TIME_MAX: Duration = Duration::from_secs(120);
const BOOT_TIME_MAX: Duration = Duration::from_secs(300);
/// What a guest's program leaves beside its rows: `tests/src/guest/figure.rs`.
const FIGURES: &str = "figures.jsonl";

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Every measurement of the report docs/reference/figures.md, compared with it
    All(AllArgs),
    /// From a threshold crossed to memory back, beside other systems
    Reaction(ReactionArgs),
    /// Cost of the agent to loops of page faults, forks and context switches, attached against detached
    Cost(CostArgs),
    /// Each signal: instructions and time of its programs, latency, rate; the agent with many cgroups
    Signals(SignalsArgs),
    /// From the decision to memory back, beside a process that unmaps as much by itself
    Teardown(TeardownArgs),
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
    /// Number of false alarms to measure; 0 measures none
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
    /// text: tables for people; json: one object per row
    #[arg(short, long, value_enum, default_value_t)]
    output: BenchOutput,
    #[command(flatten)]
    built: Built,
}

/// What is measured.
#[derive(Debug, Clone, Copy, Default, Args)]
struct Built {
    /// Measure programs without link-time optimisation: what decides is built as in a release, all else as guest tests
    /// run it
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

/// A service that uses four fifths of its limit and is throttled in a third of its periods
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
    /// text: a table for people; json: one object per run
    #[arg(short, long, value_enum, default_value_t)]
    output: BenchOutput,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum BenchOutput {
    #[default]
    Text,
    Json,
}

/// Sizes and kinds of memory.
#[derive(Debug, Args)]
pub(crate) struct TeardownArgs {
    /// Kernel to boot: 6.1, 6.12, 7.2, or the path of an image
    #[arg(long, default_value = "6.1")]
    kernel: Kernel,
    /// Runs of each size and kind
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Sizes of the evicted pod, MiB; the guest has the largest and 2 GiB more
    #[arg(long, value_delimiter = ',', default_value = "512,2048", value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    sizes: Vec<u64>,
    #[command(flatten)]
    built: Built,
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
        BenchCommand::All(args) => all::run(args),
        BenchCommand::Reaction(args) => args.job().measure("reaction"),
        BenchCommand::Cost(args) => args.job().measure("cost"),
        BenchCommand::Signals(args) => args.job().measure("signals"),
        BenchCommand::Teardown(args) => args.job().measure("teardown"),
        BenchCommand::Idle(args) => args.job().measure("idle"),
        BenchCommand::Burst(args) => args.job().measure("burst"),
    }
}

/// What one guest does.
struct Job {
    kernel: Kernel,
    peers: Vec<Peer>,
    memory_mb: u64,
    /// The guest's command line.
    program: String,
    /// Beyond the time to boot.
    time: Duration,
    built: Built,
}

impl ReactionArgs {
    fn job(&self) -> Job {
        let combinations = self.peers.len() * self.rates.len() * self.thresholds.len();
        let ramps = u32::try_from(combinations)
            .unwrap_or(u32::MAX)
            .saturating_mul(self.runs);
        let rates: Vec<String> = self.rates.iter().map(u64::to_string).collect();
        Job {
            kernel: self.kernel.clone(),
            peers: self.peers.clone(),
            memory_mb: MEMORY_MB,
            program: format!(
                "reaction --runs {} --rates {} --thresholds {} --peers {} --pods {} --idle {} --false-alarms {}",
                self.runs,
                rates.join(","),
                self.thresholds.join(","),
                names(&self.peers),
                self.pods,
                self.idle,
                self.false_alarms
            ),
            time: RAMP_TIME_MAX.saturating_mul(ramps.saturating_add(10)),
            built: self.built,
        }
    }
}

impl CostArgs {
    fn job(&self) -> Job {
        Job {
            kernel: self.kernel.clone(),
            peers: Vec::new(),
            memory_mb: MEMORY_MB,
            program: format!("cost --pairs {}", self.pairs),
            time: RAMP_TIME_MAX.saturating_mul(self.pairs),
            built: Built::default(),
        }
    }
}

impl SignalsArgs {
    fn job(&self) -> Job {
        let cgroups: Vec<String> = self.cgroups.iter().map(u32::to_string).collect();
        let parts: Vec<&str> = self.parts.iter().map(|part| part.name()).collect();
        Job {
            kernel: self.kernel.clone(),
            peers: Vec::new(),
            memory_mb: MEMORY_MB,
            program: format!(
                "signals --parts {} --pairs {} --cgroups {} --output {}",
                parts.join(","),
                self.pairs,
                cgroups.join(","),
                self.output.name(),
            ),
            time: RAMP_TIME_MAX.saturating_mul(self.pairs + 20),
            built: self.built,
        }
    }
}

impl BurstArgs {
    fn job(&self) -> Job {
        // Each run is measured for as long as it warms up, with and without; emulated, a second is at most some twenty.
        let seconds = self.seconds * 2 * 2 * u64::from(self.runs) * 20;
        Job {
            kernel: self.kernel.clone(),
            peers: Vec::new(),
            memory_mb: MEMORY_MB,
            program: format!(
                "burst --runs {} --seconds {} --output {}",
                self.runs,
                self.seconds,
                self.output.name()
            ),
            time: RAMP_TIME_MAX.saturating_add(Duration::from_secs(seconds)),
            built: Built::default(),
        }
    }
}

impl TeardownArgs {
    fn job(&self) -> Job {
        let sizes: Vec<String> = self.sizes.iter().map(u64::to_string).collect();
        let largest_mb = self.sizes.iter().copied().max().unwrap_or(0);
        // Four kinds of memory; a GiB is touched twice and freed twice in some seconds.
        let scenes = u32::try_from(self.sizes.len()).unwrap_or(u32::MAX) * 4;
        let sizes_gib = u32::try_from(largest_mb >> 10).unwrap_or(u32::MAX);
        Job {
            kernel: self.kernel.clone(),
            peers: Vec::new(),
            memory_mb: largest_mb + 2048,
            program: format!("teardown --runs {} --sizes {}", self.runs, sizes.join(",")),
            time: RAMP_TIME_MAX
                .saturating_mul(scenes.saturating_mul(self.runs))
                .saturating_mul(sizes_gib.saturating_add(1)),
            built: self.built,
        }
    }
}

impl IdleArgs {
    fn job(&self) -> Job {
        Job {
            kernel: self.kernel.clone(),
            peers: self.peers.clone(),
            memory_mb: MEMORY_MB,
            program: format!(
                "reaction --runs 0 --rates 64 --thresholds 100Mi --false-alarms 0 --peers {} --pods {} --idle {}",
                names(&self.peers),
                self.pods,
                self.seconds
            ),
            time: RAMP_TIME_MAX.saturating_mul(10),
            built: Built::default(),
        }
    }
}

impl BenchOutput {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
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

impl Job {
    /// Boots the guest, shows what its program prints, and leaves its rows in `target/bench/NAME-KERNEL.jsonl`, its
    /// figures beside them.
    fn measure(&self, name: &str) -> Result<u8> {
        let packages: Vec<&str> = self
            .peers
            .iter()
            .filter_map(|peer| peer.debian_package())
            .collect();
        let came = Folder::new()?;
        let (kernel, program, memory_mb) = (&self.kernel, &self.program, self.memory_mb);
        say(
            "bench",
            format_args!("kernel {kernel}, 1 CPU, {memory_mb} MB: {program}"),
        );
        let guest = Guest::new(kernel.clone());
        // In place of the guests' own build: what is measured is what people run.
        let guest = match self.built.as_tested {
            true => guest.programs(Programs::Only(OF_BENCHMARKS)),
            false => released()?.into_iter().fold(guest, Guest::payload),
        };
        let exit = guest
            .memory_mb(memory_mb)
            .clock(Clock::OneCpuInstructions)
            .debian_packages(&packages)
            .payload(ping_object()?)
            .timeout(None)
            // Beside builds it takes several times as long, and gives the same figures.
            .patience(BOOT_TIME_MAX.saturating_add(self.time), |_| false)
            .out(came.path())
            .command(program)
            .run(|line| {
                // A closed stdout (a pager that ended) must not stop the guest.
                let _closed = writeln!(io::stdout(), "{line}");
            })?;
        ensure!(exit.code() == 0, "the guest ended as {:?}", exit.end);
        let folder = paths::target("bench");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        for file in fs::read_dir(came.path())? {
            let file = file?;
            let to = if file.file_name() == FIGURES {
                figures_of(name, kernel)
            } else {
                folder.join(format!("{name}-{}.jsonl", file_name(kernel)))
            };
            fs::copy(file.path(), &to).with_context(|| format!("cannot write {}", to.display()))?;
            say("bench", format_args!("raw rows in {}", to.display()));
        }
        Ok(exit.code())
    }
}

/// Where the figures of a measurement are.
fn figures_of(name: &str, kernel: &Kernel) -> PathBuf {
    paths::target("bench").join(format!("{name}-{}-{FIGURES}", file_name(kernel)))
}

/// A kernel may be a path.
fn file_name(kernel: &Kernel) -> String {
    kernel.to_string().replace('/', "_")
}
