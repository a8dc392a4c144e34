//! `plimsoll rehearse`: what a policy does to a cluster over days of virtual time, beside static quotas and plain
//! priorities. From files: no cluster, no agent, no root.
//!
//! The word is that of the theatre: the same play with the same people, before it counts. `simulate` is the name of a
//! tool of this repository that runs the agent against a model of a machine.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use plimsoll_core::arbitration::amounts::TooManyResources;
use plimsoll_core::arbitration::named::{NamedPod, Objects, Resolved};
use plimsoll_core::arbitration::rehearsal::figures::Outcome;
use plimsoll_core::arbitration::rehearsal::load::{DAY_S, Stream, arrivals};
use plimsoll_core::arbitration::rehearsal::{Policy, Rehearsal, Terms, pod_turns};

use crate::commands::exit_status::{self, CommandError};
use crate::host::clock::{now_ns, wall};
use crate::host::output::{Drawing, OutputArgs, StdoutError, Style, json, print};
use crate::host::shown::page;
use crate::input::cluster;
use crate::input::error::InputError;
use crate::input::load::{self, Load};
use crate::input::manifests::{ManifestError, stdin_once};
use crate::show::rehearse::{Run, Shown, name, svg};

/// Pods that come, at most.
const PODS_MAX: usize = 100_000;

/// Pods that are there, summed over all turns, at most: each policy takes from a microsecond for one, so it is some ten
/// minutes, and more where many wait.
const POD_TURNS_MAX: u64 = 200_000_000;

/// How often a rehearsal that takes long says how far it is.
const SAY_EVERY_NS: u64 = 10_000_000_000;

/// Show what shares, quotas and priorities would do to a cluster over days of virtual time, from files
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll rehearse -f cluster.yaml --load load.yaml                     shares, quotas and priorities, side by side
  plimsoll rehearse -f cluster.yaml -f consumers.yaml --load load.yaml   with Consumers: before they are used
  plimsoll rehearse -f cluster.yaml --load load.yaml --seed 7            the same load with other times
  plimsoll rehearse -f cluster.yaml --load load.yaml --output svg > days.svg

A load has days (1), turn (30s), seed (1) and pods, a list. Of each entry every (mean time between arrivals), runs (mean run time), requests \
and namespace are needed; count (1), priority (0), from and to (hours of the day) and spread (Random, or Even) are not:

  days: 2
  pods:
  - {namespace: batch, every: 20m, count: 4, runs: 2h, requests: {cpu: 1, memory: 2Gi}}
  - {namespace: web, every: 5m, runs: 1h, requests: {cpu: 500m, memory: 1Gi}, priority: 100, from: 8h, to: 20h}

Pods of the files run until they are evicted. Who is evicted comes back as a pending pod and starts over. Nothing is changed anywhere.")]
pub struct RehearseArgs {
    /// Objects as kubectl prints them, YAML or JSON: a file, or - for standard input; may be repeated
    #[arg(short, long = "file", value_name = "PATH", required = true)]
    pub files: Vec<PathBuf>,
    /// Pods that arrive over time: a load file as below, or - for standard input
    #[arg(long, value_name = "PATH")]
    pub load: PathBuf,
    /// Random seed [default: the load file's]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs<Drawing>,
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
pub enum RehearseError {
    /// The files.
    #[error(transparent)]
    Input(#[from] InputError),
    /// More resources than can be computed with.
    #[error(transparent)]
    Resources(#[from] TooManyResources),
    /// More pods than can be rehearsed in a bearable time.
    #[error("the load makes more than {PODS_MAX} pods; lengthen every, or take fewer days")]
    TooManyPods,
    /// More to decide than can be rehearsed in a bearable time.
    #[error(
        "nothing is rehearsed: {pods} pods over {turns} turns, with those of the files, are {pod_turns} decisions or more for each policy, at most {POD_TURNS_MAX} are possible; \
         lengthen turn or every, shorten runs, take fewer days or a part of the files"
    )]
    TooMuchWork {
        /// That come.
        pods: usize,
        /// Of the whole length.
        turns: u64,
        /// Pods that are there, summed over all turns.
        pod_turns: u64,
    },
    /// Standard output.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl CommandError for RehearseError {
    fn exit_status(&self) -> u8 {
        match self {
            Self::Input(error) => error.exit_status(),
            Self::TooManyPods | Self::TooMuchWork { .. } => exit_status::REFUSED,
            Self::Resources(_) | Self::Output(_) => exit_status::FAILED,
        }
    }
}

/// `plimsoll rehearse`.
///
/// # Errors
/// [`RehearseError`].
pub fn run(args: &RehearseArgs) -> Result<ExitCode, RehearseError> {
    let style = Style::of(&io::stdout());
    let mut say = |text: &str| eprint!("{text}");
    let mut clock = now_ns;
    let mut progress = Progress::new(&mut clock, &mut say);
    let text = answer(
        args,
        io::stdin().lock(),
        wall().as_secs(),
        style,
        &mut progress,
    )?;
    print(text)?;
    Ok(ExitCode::SUCCESS)
}

fn invalid(errors: &[ManifestError]) -> InputError {
    InputError::invalid("nothing is rehearsed", errors)
}

/// The text to be printed.
fn answer(
    args: &RehearseArgs,
    mut stdin: impl Read,
    now_s: u64,
    style: Style,
    progress: &mut Progress<'_>,
) -> Result<String, RehearseError> {
    stdin_once(args.files.iter().chain([&args.load]))?;
    let load = load::read(&args.load, &mut stdin).map_err(|errors| invalid(&errors))?;
    let files = cluster::read(&args.files, stdin, now_s).map_err(|errors| invalid(&errors))?;
    let (resolved, streams) = resolve(files.objects, &load)?;
    let seed = args.seed.unwrap_or(load.seed);
    let terms = Terms {
        seconds: load.days * DAY_S,
        turn: load.turn_s,
    };
    let (arrivals, is_cut) = arrivals(&streams, seed, terms.seconds, PODS_MAX);
    if is_cut {
        return Err(RehearseError::TooManyPods);
    }
    let pod_turns = pod_turns(resolved.cluster.pods.len(), &arrivals, terms);
    if pod_turns > POD_TURNS_MAX {
        return Err(RehearseError::TooMuchWork {
            pods: arrivals.len(),
            turns: terms.seconds.div_ceil(terms.turn),
            pod_turns,
        });
    }
    let runs = POLICIES.map(|policy| {
        let rehearsal = Rehearsal::new(&resolved.cluster, &streams, &arrivals, policy, terms);
        let outcome = play(rehearsal, progress, |now| {
            format!(
                "plimsoll: rehearsing {}, {} of {}: day {} of {}; nothing is shown before the end, Ctrl-C gives it up\n",
                name(policy),
                POLICIES.iter().position(|other| *other == policy).map_or(0, |at| at + 1),
                POLICIES.len(),
                now / DAY_S + 1,
                load.days
            )
        });
        Run { policy, outcome }
    });
    let shown = Shown {
        cluster: &resolved.cluster,
        conditions: &resolved.conditions,
        runs: &runs,
        days: load.days,
        seed,
    };
    match args.output.format {
        Drawing::Text => Ok(page(&shown.text(style)).to_string()),
        Drawing::Json => Ok(json(&shown.json())?),
        Drawing::Svg => Ok(svg::draw(&shown)),
    }
}

const POLICIES: [Policy; 3] = [Policy::Shares, Policy::Quotas, Policy::Priorities];

/// Says how far a rehearsal is, every ten seconds.
struct Progress<'a> {
    /// Monotonic time.
    now_ns: &'a mut dyn FnMut() -> u64,
    say: &'a mut dyn FnMut(&str),
    said_ns: u64,
}

impl<'a> Progress<'a> {
    fn new(now_ns: &'a mut dyn FnMut() -> u64, say: &'a mut dyn FnMut(&str)) -> Self {
        let said_ns = now_ns();
        Self {
            now_ns,
            say,
            said_ns,
        }
    }
}

/// Goes through all turns.
fn play(
    mut rehearsal: Rehearsal<'_>,
    progress: &mut Progress<'_>,
    text: impl Fn(u64) -> String,
) -> Outcome {
    while rehearsal.turn() {
        let now_ns = (progress.now_ns)();
        if now_ns >= progress.said_ns + SAY_EVERY_NS {
            progress.said_ns = now_ns;
            (progress.say)(&text(rehearsal.now()));
        }
    }
    rehearsal.finish()
}

/// Looks up the names of a cluster and of a load together.
fn resolve(mut objects: Objects, load: &Load) -> Result<(Resolved, Vec<Stream>), TooManyResources> {
    let of_the_files = objects.pods.len();
    for (at, stream) in load.streams.iter().enumerate() {
        objects.namespaces.insert(stream.namespace.clone());
        // A colon is in no pod's name.
        objects.pods.push(NamedPod {
            uid: format!("load:{at}"),
            namespace: stream.namespace.clone(),
            name: format!("load:{at}"),
            node: None,
            requests: stream.requests.clone(),
            priority: stream.priority,
            age: 0,
            waiting: 0,
            leaving: false,
            daemon: false,
            nodes: None,
            budgets: BTreeSet::new(),
        });
    }
    objects.keep_from_nodes_without();
    let mut resolved = objects.resolve()?;
    let pods = resolved.cluster.pods.split_off(of_the_files);
    let streams = load.streams.iter().zip(pods).map(|(stream, pod)| Stream {
        pod,
        every: stream.every_s,
        at_once: stream.count,
        runs: stream.runs_s,
        spread: stream.spread,
        between: stream.between,
    });
    Ok((resolved, streams.collect()))
}

#[cfg(test)]
mod tests;
