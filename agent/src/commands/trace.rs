//! `plimsoll trace`: its arguments. It becomes `plimsoll-trace`, a package of its own with what reads debug information
//! and writes traces.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use plimsoll_abi::sampling::SampleEvent;
use plimsoll_core::kube::duration;
use plimsoll_core::kube::quantity::Quantity;

use crate::host::cgroup::CgroupRootArgs;
use crate::host::output::OutputArgs;
use crate::host::program::{NotStarted, become_program};
use crate::kernel::Family;
use crate::kernel::perf_events::FREQUENCY_MAX;
use crate::serve::control::AgentArgs;

/// The program that records and writes, beside `plimsoll`.
pub const PROGRAM: &str = "plimsoll-trace";

/// Record where tasks spend their time, with stacks, beside throttling, memory stalls, reclaim and OOM kills
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll trace trace.pftrace                       the whole node for 10 s, for Perfetto
  plimsoll trace --pod default/web cpu.svg           one pod, as a flame graph
  plimsoll trace --cgroup /system.slice --for 1m --frequency 199 t.pftrace t.svg
  plimsoll trace --events throttle,stall,oom quiet.pftrace     no stacks, next to no cost
  plimsoll trace                                     only the summary

A pod is named by the agent that runs here or by manifests (-f); without either, give its UID or its cgroup.
Viewers: .pftrace opens in Perfetto's (https://ui.perfetto.dev), .svg in any browser.
SIGINT (Ctrl-C) or SIGTERM ends a session early, and what it has is written. Files are readable by their owner only.

Exit status: 0 recorded (losses are listed); 1 nothing can be recorded here, or a file cannot be written; 2 wrong usage; \
3 there is no such pod or cgroup.")]
pub struct TraceArgs {
    /// Pod: namespace/name, an unambiguous name, or a UID; may be repeated. Without pod and cgroup: the whole node
    #[arg(long, value_name = "POD")]
    pub pod: Vec<String>,
    /// Cgroup with those below it (path from the root of its hierarchy, such as /kubepods); may be repeated
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<PathBuf>,
    /// Length of the recording; 0: until interrupted
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    pub length: Duration,
    /// What to record
    #[arg(long, value_enum, value_name = "EVENT", value_delimiter = ',', default_values_t = TraceEvent::ALL)]
    pub events: Vec<TraceEvent>,
    /// Samples per second and CPU, for each sampled event
    #[arg(long, value_name = "HZ", default_value_t = 99, value_parser = clap::value_parser!(u32).range(1..=i64::from(FREQUENCY_MAX)))]
    pub frequency: u32,
    /// Files to write: .pftrace (Perfetto) or .svg (flame graph)
    #[arg(value_name = "TRACE", value_parser = TraceFile::parse)]
    pub traces: Vec<TraceFile>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its type says what it is")]
    pub output: OutputArgs,
    /// Maximum number of samples, and of spans (about 150 bytes each with their stacks); later ones are only counted
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub max_samples: usize,
    /// Maximum size of a file: viewers fail to open larger ones
    #[arg(long, value_name = "BYTES", default_value = "256Mi", value_parser = parse_bytes)]
    pub max_file_size: u64,
    /// Record throttling, stalls and other frequent events at most once per cgroup in this time; 0: record each
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration::parse)]
    pub window: Duration,
    /// Pod manifests to take names from instead of asking the agent: a file, a directory, or - for standard input
    #[arg(short = 'f', long = "file", value_name = "PATH")]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its type says what it is")]
    pub agent: AgentArgs,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its type says what it is")]
    pub cgroup_root: CgroupRootArgs,
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
    #[must_use]
    pub const fn sample(self) -> Option<SampleEvent> {
        match self {
            TraceEvent::CpuClock => Some(SampleEvent::CpuClock),
            TraceEvent::PageFaults => Some(SampleEvent::PageFaults),
            TraceEvent::ContextSwitches => Some(SampleEvent::ContextSwitches),
            _ => None,
        }
    }

    /// The programs behind it, where records tell of it.
    #[must_use]
    pub const fn family(self) -> Option<Family> {
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

/// The formats, by the ending of the file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceFormat {
    /// Perfetto's protobuf.
    Pftrace,
    /// A flame graph.
    Svg,
}

impl TraceFormat {
    const ALL: [(&'static str, TraceFormat); 2] =
        [("pftrace", TraceFormat::Pftrace), ("svg", TraceFormat::Svg)];
}

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFile {
    /// Its name.
    pub path: PathBuf,
    /// What goes into it.
    pub format: TraceFormat,
}

impl TraceFile {
    /// Reads a file name whose ending says the format.
    ///
    /// # Errors
    /// Names the endings that there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let ending = path.extension().and_then(|ending| ending.to_str());
        TraceFormat::ALL
            .into_iter()
            .find(|(known, _)| Some(*known) == ending)
            .map(|(_, format)| Self {
                path: path.clone(),
                format,
            })
            .ok_or_else(|| {
                "the file name must end in .pftrace (Perfetto) or .svg (flame graph)".to_owned()
            })
    }
}

/// Becomes `plimsoll-trace`. Its arguments have been parsed, so wrong usage is reported as that of `plimsoll trace`.
///
/// # Errors
/// When it is not beside this program.
pub fn run() -> Result<std::convert::Infallible, NotStarted> {
    become_program(PROGRAM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_kubernetes() {
        assert_eq!(parse_bytes("64Mi"), Ok(64 << 20));
        for bad in ["1Ki", "-1Gi", "x"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_event_is_sampled_or_recorded_and_has_the_name_of_its_option() {
        for event in TraceEvent::ALL {
            assert_ne!(event.sample().is_some(), event.family().is_some());
            let option = event.to_possible_value().unwrap();
            assert_eq!(option.get_name(), event.name());
        }
    }

    #[test]
    fn the_ending_is_the_format() {
        for (name, format) in TraceFormat::ALL {
            let file = TraceFile::parse(&format!("/tmp/x.y.{name}")).unwrap();
            assert_eq!(file.format, format);
        }
        for bad in ["out", "out.txt", "out.SVG", "out.json", ".svg"] {
            let error = TraceFile::parse(bad).unwrap_err();
            assert!(error.contains(".pftrace"), "{error}");
        }
    }
}
