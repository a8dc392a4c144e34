//! `plimsoll trace`: where the tasks of some pods spend their time, and what holds them up, on one time line.
//!
//! **Problem.** Counters say that a service is throttled and stalls; they do not say what it was doing, or what its neighbour was doing at
//! that moment. **Approach.** For a limited time, perf events are sampled with their stacks in the kernel, for the selected cgroups only,
//! beside the records that the agent itself lives on (throttling, waits for memory, reclaim, OOM kills). Both go into one [`recording`],
//! which is bounded, and from there into files that existing viewers open ([`chrome`], [`perfetto`], [`flame`]) and a [`summary`].
//!
//! Nothing is left behind: the programs are this process's own, and a running agent's are not touched. What is lost on the way is counted,
//! and every output says how much.
//!
//! **Terms.** A *sample* is one moment of one thread with its stack, and stands for a *weight* of time or occurrences. A *span* lasts, a
//! *mark* happens. A *group* is a cgroup with the name that people know it by.
#![forbid(unsafe_code)]

mod chrome;
mod file;
mod flame;
mod groups;
mod perfetto;
mod recording;
mod selection;
mod session;
mod spans;
mod stacks;
mod summary;
mod symbols;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use plimsoll_abi::sampling::SampleEvent;
use plimsoll_core::kube::duration::parse_ns;
use plimsoll_core::kube::quantity::Quantity;

use self::file::Pending;
pub use self::file::{TraceFile, TraceFormat};
use self::groups::Groups;
use self::recording::Recording;
use self::summary::{Summary, Written, metadata};
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupError, CgroupPath};
use crate::host::output::{Output, Style};
use crate::kernel::object::ObjectMissing;
use crate::kernel::sampling::FREQUENCY_MAX;
use crate::kernel::{BpfError, Family};
use crate::pods;

/// It could not be started, or something could not be written.
pub const EXIT_FAILED: u8 = 1;
/// There is no such pod or cgroup.
pub const EXIT_UNKNOWN: u8 = 3;

/// Record where tasks spend their time, with stacks, beside throttling, memory stalls, reclaim and OOM kills
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll trace -o trace.pftrace                    the whole node for 10 s, for Perfetto
  plimsoll trace --pod default/web -o cpu.svg        one pod, as a flame graph
  plimsoll trace --cgroup /system.slice --for 1m --frequency 199 -o t.json -o t.svg
  plimsoll trace --events throttle,stall,oom -o quiet.json     no stacks, next to no cost
  plimsoll trace                                     only the summary

A pod is named by the agent that runs here or by manifests (-f); without either, give its UID or its cgroup.
Viewers: .pftrace and .json open in Perfetto; .json in chrome://tracing and speedscope, too; .svg in any browser.
SIGINT (Ctrl-C) or SIGTERM ends a session early, and what it has is written. Files are readable by their owner only.

Exit status: 0 recorded (what was lost is said); 1 nothing can be recorded here, or a file cannot be written; 2 wrong usage; \
3 there is no such pod or cgroup.")]
pub struct TraceArgs {
    /// A pod: namespace/name, a name that only one has, or a UID; may be repeated. Without pod and cgroup: the whole node
    #[arg(long, value_name = "POD")]
    pub pod: Vec<String>,
    /// A cgroup and those below it (path from the root of its hierarchy, such as /kubepods); may be repeated
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<PathBuf>,
    /// How long; 0 until interrupted
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    pub length: Duration,
    /// What to record
    #[arg(long, value_enum, value_name = "EVENT", value_delimiter = ',', default_values_t = TraceEvent::ALL)]
    pub events: Vec<TraceEvent>,
    /// Samples per second and CPU, of each event that is sampled
    #[arg(long, value_name = "HZ", default_value_t = 99, value_parser = clap::value_parser!(u32).range(1..=i64::from(FREQUENCY_MAX)))]
    pub frequency: u32,
    /// A file to write, its format by its ending: .json (Chrome trace), .pftrace (Perfetto), .svg (flame graph); may be repeated
    #[arg(short, value_name = "FILE", value_parser = TraceFile::parse)]
    pub o: Vec<TraceFile>,
    /// How to print the summary
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
    /// Keep so many samples, and as many spans, at most (about 150 bytes each with their stacks); what comes later is only counted
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub max_samples: usize,
    /// No file becomes larger: what viewers still open
    #[arg(long, value_name = "BYTES", default_value = "256Mi", value_parser = parse_bytes)]
    pub max_file_size: u64,
    /// Of throttling, stalls and other floods, tell at most one per cgroup in this time; 0 tells each
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_time)]
    pub window: Duration,
    /// Pod manifests to take names from instead of asking the agent: a file, a directory, or - for standard input
    #[arg(short = 'f', long = "file", value_name = "PATH")]
    pub files: Vec<PathBuf>,
    /// The agent's state directory
    #[arg(long, value_name = "DIR", default_value = "/run/plimsoll")]
    pub state_dir: PathBuf,
    /// The agent's socket [default: control.sock in the state directory]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
    /// The cgroup that kubepods is below, as given to `plimsoll run`
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub cgroup_root: String,
}

/// What a session records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum TraceEvent {
    /// Time on CPU, sampled with stacks
    CpuClock,
    /// Page faults, sampled with stacks
    PageFaults,
    /// Switches away from a task, sampled with stacks
    ContextSwitches,
    /// Run queues stopped by a CPU limit
    Throttle,
    /// Waits for memory
    Stall,
    /// The node's free memory below its watermarks
    Reclaim,
    /// memory.high and memory.max met
    Limits,
    /// Pages read back
    Refault,
    /// The kernel's OOM kills
    Oom,
}

impl TraceEvent {
    /// All of them.
    pub const ALL: [TraceEvent; 9] = [
        TraceEvent::CpuClock,
        TraceEvent::PageFaults,
        TraceEvent::ContextSwitches,
        TraceEvent::Throttle,
        TraceEvent::Stall,
        TraceEvent::Reclaim,
        TraceEvent::Limits,
        TraceEvent::Refault,
        TraceEvent::Oom,
    ];

    /// As in `--events`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TraceEvent::CpuClock => "cpu-clock",
            TraceEvent::PageFaults => "page-faults",
            TraceEvent::ContextSwitches => "context-switches",
            TraceEvent::Throttle => "throttle",
            TraceEvent::Stall => "stall",
            TraceEvent::Reclaim => "reclaim",
            TraceEvent::Limits => "limits",
            TraceEvent::Refault => "refault",
            TraceEvent::Oom => "oom",
        }
    }

    /// The perf event behind it, where it is one.
    const fn sample(self) -> Option<SampleEvent> {
        match self {
            TraceEvent::CpuClock => Some(SampleEvent::CpuClock),
            TraceEvent::PageFaults => Some(SampleEvent::PageFaults),
            TraceEvent::ContextSwitches => Some(SampleEvent::ContextSwitches),
            _ => None,
        }
    }

    /// The programs behind it, where records tell of it.
    const fn family(self) -> Option<Family> {
        match self {
            TraceEvent::Throttle => Some(Family::Throttle),
            TraceEvent::Stall => Some(Family::Stall),
            TraceEvent::Reclaim => Some(Family::Reclaim),
            TraceEvent::Limits => Some(Family::Memcg),
            TraceEvent::Refault => Some(Family::Refault),
            TraceEvent::Oom => Some(Family::Oom),
            _ => None,
        }
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let ns = parse_ns(text).map_err(|error| error.to_string())?;
    u64::try_from(ns)
        .map(Duration::from_nanos)
        .map_err(|_| "a time cannot be negative".to_owned())
}

/// Less is not enough for what a file says of itself.
const FILE_BYTES_MIN: u64 = 1 << 20;

fn parse_bytes(text: &str) -> Result<u64, String> {
    let bytes = Quantity::parse(text)
        .map_err(|error| error.to_string())?
        .value();
    u64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes >= FILE_BYTES_MIN)
        .ok_or_else(|| "give at least 1Mi".to_owned())
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Built without the objects.
    #[error(transparent)]
    Object(#[from] ObjectMissing),
    /// The kernel refuses a map that it gave before.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The cgroup file systems cannot be found, or a path is none.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Nothing that was asked for can be recorded on this host.
    #[error("nothing can be recorded here: {reasons}")]
    Nothing {
        /// Event by event.
        reasons: String,
    },
    /// Manifests that were given cannot be used.
    #[error("{0}")]
    Manifests(String),
    /// Nobody knows the names of pods.
    #[error(
        "pod {pod:?} cannot be found by its name: {why}. Or give its manifest (-f), its UID, or its cgroup (--cgroup)"
    )]
    NoNames {
        /// As it was asked for.
        pod: String,
        /// What the agent, or its socket, says.
        why: String,
    },
    /// No pod has that name.
    #[error("there is no pod {pod:?} on this node{near}")]
    UnknownPod {
        /// As it was asked for.
        pod: String,
        /// Names that are like it.
        near: String,
    },
    /// Several pods have that name.
    #[error("pod {pod:?} can be {one} or {other}: write namespace/name")]
    AmbiguousPod {
        /// As it was asked for.
        pod: String,
        /// One.
        one: String,
        /// Another.
        other: String,
    },
    /// The pod is known and does not run.
    #[error("pod {pod} has no cgroup below {below}: it does not run on this node")]
    NoPodCgroup {
        /// Its name.
        pod: String,
        /// Where it was looked for.
        below: String,
    },
    /// No cgroup has that path.
    #[error("there is no cgroup {path} below {mount}{near}", mount = mount.display())]
    UnknownCgroup {
        /// As it was asked for.
        path: String,
        /// The hierarchy that accounts memory.
        mount: PathBuf,
        /// Paths that are like it.
        near: String,
    },
    /// SIGINT and SIGTERM cannot be caught.
    #[error("catching signals: {0}")]
    Signals(#[source] io::Error),
    /// A file cannot be written. There is nothing under its name that was not there before.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Its name.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The summary cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl TraceError {
    /// The exit status.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::UnknownPod { .. }
            | Self::AmbiguousPod { .. }
            | Self::NoPodCgroup { .. }
            | Self::UnknownCgroup { .. } => EXIT_UNKNOWN,
            _ => EXIT_FAILED,
        }
    }
}

/// `plimsoll trace`.
///
/// # Errors
/// [`TraceError`]. When one file of several cannot be written, the others are.
pub fn run(args: &TraceArgs) -> Result<ExitCode, TraceError> {
    let host = HostRoot::live();
    let mounts = host.cgroup_mounts()?;
    let selection = selection::select(args, &mounts)?;
    let pending = args
        .o
        .iter()
        .map(Pending::create)
        .collect::<Result<Vec<_>, _>>()?;
    let root = CgroupPath::new(&args.cgroup_root)?;
    let groups = Groups::read(
        &host,
        &mounts,
        &pods::cgroup::kubepods_path(&root)?,
        selection.pods,
        &selection.paths,
    )?;
    let plan = session::Plan {
        events: args.events.clone(),
        frequency: args.frequency,
        window: args.window,
        length: (!args.length.is_zero()).then_some(args.length),
        samples_max: args.max_samples,
        cgroups: selection.ids,
        selection: selection.words,
    };
    let words = plan.selection.clone();
    let nameless = selection.nameless;
    let recording = session::run(plan, groups, &host, |refused| {
        for refused in refused {
            tracing::debug!(
                event = refused.event,
                in_part = refused.in_part,
                reason = refused.reason,
                "not available here"
            );
        }
        if let Some(why) = nameless {
            tracing::debug!(why, "pods are shown by their UID");
        }
        eprintln!("plimsoll: tracing {words}; Ctrl-C ends it early and writes what there is");
    })?;
    let mut written = Vec::new();
    let mut failed = None;
    for pending in pending {
        match write(&recording, pending, args.max_file_size) {
            Ok(file) => written.push(file),
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    eprintln!("plimsoll: {before}");
                }
            }
        }
    }
    let summary = Summary::of(&recording, written);
    print(&summary, args.output)?;
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn write(recording: &Recording, pending: Pending, max: u64) -> Result<Written, TraceError> {
    let metadata = metadata(recording);
    let path = pending.target.path.clone();
    let format = pending.target.format;
    let (not_written, bytes) = pending.fill(max, |out| match format {
        TraceFormat::Json => chrome::write(recording, max, &metadata, out),
        TraceFormat::Pftrace => perfetto::write(recording, &metadata, out),
        TraceFormat::Svg => flame::write(recording, out).map(|()| 0),
    })?;
    Ok(Written {
        path,
        bytes,
        not_written,
    })
}

fn print(summary: &Summary, output: Output) -> Result<(), TraceError> {
    let mut stdout = io::stdout().lock();
    let text = match output {
        Output::Text => summary.text(Style::of(&stdout)),
        Output::Json => serde_json::to_string_pretty(summary).map_err(io::Error::from)? + "\n",
    };
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        // Whoever reads has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_kubernetes_own() {
        assert_eq!(parse_time("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        for bad in ["10", "-1s", "x"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_bytes("64Mi"), Ok(64 << 20));
        for bad in ["1Ki", "-1Gi", "x"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_event_is_sampled_or_told_and_has_the_name_of_its_option() {
        for event in TraceEvent::ALL {
            assert_ne!(event.sample().is_some(), event.family().is_some());
            let option = event.to_possible_value().unwrap();
            assert_eq!(option.get_name(), event.name());
        }
    }
}
