//! `plimsoll trace`: where the tasks of some pods spend their time, and what holds them up, on one time line.
//!
//! **Problem.** Counters say that a service is throttled and stalls; they do not say what it was doing, or what its
//! neighbour was doing at that moment. **Approach.** For a limited time, perf events are sampled with their stacks in
//! the kernel, for the selected cgroups only, beside the records that the agent itself lives on (throttling, waits for
//! memory, reclaim, OOM kills). Both go into one [`recording`], which is bounded, and from there into files that
//! existing viewers open ([`perfetto`], [`flame`]) and a [`summary`].
//!
//! Nothing is left behind: the programs are this process's own, and a running agent's are not touched. What is lost on
//! the way is counted, and every output says how much.
//!
//! **Terms.** A *sample* is one moment of one thread with its stack, and stands for a *weight* of time or occurrences.
//! A *span* lasts, a *mark* happens. A *group* is a cgroup with the name that people know it by.
#![forbid(unsafe_code)]

mod file;
mod flame;
mod groups;
pub mod names;
pub mod perfetto;
mod recording;
mod selection;
mod session;
mod spans;
mod stacks;
mod summary;
mod symbols;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use plimsoll::commands::trace::{TraceArgs, TraceFormat};
use plimsoll::host::HostRoot;
use plimsoll::host::cgroup::CgroupError;
use plimsoll::host::exit_status::{FAILED, REFUSED};
use plimsoll::host::output::{Output, StdoutError, Style, json, print};
use plimsoll::host::shown::{Show as _, line, page};
use plimsoll::kernel::BpfError;
use plimsoll::kernel::object::ObjectMissing;
use plimsoll::pods;

use self::file::Pending;
use self::groups::Groups;
use self::recording::Recording;
use self::summary::{Summary, Written, metadata};

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
    #[error("there is no cgroup {path} below {mount}{near}", mount = mount.shown())]
    UnknownCgroup {
        /// As it was asked for.
        path: String,
        /// The hierarchy that accounts memory.
        mount: PathBuf,
        /// Paths that are like it.
        near: String,
    },
    /// SIGINT and SIGTERM cannot be caught.
    #[error("cannot catch SIGINT and SIGTERM: {0}")]
    Signals(#[source] io::Error),
    /// A file cannot be written. There is nothing under its name that was not there before.
    #[error("{path}: {source}", path = path.shown())]
    File {
        /// Its name.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The summary cannot be written.
    #[error(transparent)]
    Output(#[from] StdoutError),
}

impl TraceError {
    /// The exit status.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::UnknownPod { .. }
            | Self::AmbiguousPod { .. }
            | Self::NoPodCgroup { .. }
            | Self::UnknownCgroup { .. } => REFUSED,
            _ => FAILED,
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
        .traces
        .iter()
        .map(Pending::create)
        .collect::<Result<Vec<_>, _>>()?;
    let root = args.cgroup_root.path()?;
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
        let words = line(&words);
        eprintln!("plimsoll: tracing {words}; Ctrl-C ends it early and writes what there is");
    })?;
    let mut written = Vec::new();
    let mut failed = None;
    for pending in pending {
        match write(&recording, pending, args.max_file_size) {
            Ok(file) => written.push(file),
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    eprintln!("plimsoll: {}", line(&before.to_string()));
                }
            }
        }
    }
    let summary = Summary::of(&recording, written);
    print(match args.output.format {
        Output::Text => page(&summary.text(Style::of(&io::stdout()))),
        Output::Json => json(&summary)?,
    })?;
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn write(recording: &Recording, pending: Pending, max: u64) -> Result<Written, TraceError> {
    let metadata = metadata(recording);
    let path = pending.target.path.clone();
    let format = pending.target.format;
    let (not_written, bytes) = pending.fill(max, |out| match format {
        TraceFormat::Pftrace => perfetto::write(recording, &metadata, out),
        TraceFormat::Svg => flame::write(recording, out),
    })?;
    Ok(Written {
        path,
        bytes,
        not_written,
    })
}
