//! `plimsoll events`: every record of the BPF programs as it comes, and where each one went.
//!
//! The tool for seeing the kernel side work: it loads every hook, says which are in place, prints, and at the end
//! accounts for each record by kind (produced = consumed + dropped). It decides nothing and changes nothing on the
//! host.

mod screen;
mod totals;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use plimsoll_abi::{KINDS, Kind};
use plimsoll_core::kube::duration;
use rustix::event::{PollFd, PollFlags, poll};

use self::screen::Screen;
use self::totals::{print_account, print_hook, print_throttle, print_totals};
use crate::commands::exit_status::CommandError;
use crate::host::cgroup_paths::CgroupPaths;
use crate::host::output::{OutputArgs, StdoutError};
use crate::host::stop::Session;
use crate::host::{CgroupError, FileError, HostRoot};
use crate::kernel::object::{ObjectMissing, object};
use crate::kernel::{AtEnd, Bpf, BpfError, BpfOptions, Counts, Family, HookSet};

/// Print every record that the BPF programs send, and at the end account for each
#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    /// Show only this cgroup and those below it (path from the root of its hierarchy, such as /kubepods)
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Show only these kinds of records (all are loaded and counted)
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = parse_kind)]
    pub kind: Vec<Kind>,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Stop after this time; without it, run until interrupted
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
    pub length: Option<Duration>,

    /// For frequent kinds, send at most one record per cgroup in this time; 0: send each
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration::parse)]
    pub window: Duration,

    /// Do not read the rings before the end: shows that an overrun is counted exactly
    #[arg(long, hide = true)]
    pub stall: bool,

    /// The BPF object to load, instead of the one inside this program
    #[arg(long, value_name = "FILE", hide = true)]
    pub object: Option<PathBuf>,
}

fn parse_kind(text: &str) -> Result<Kind, String> {
    KINDS
        .into_iter()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| {
            let names: Vec<_> = KINDS.iter().map(|kind| kind.name()).collect();
            format!("use one of {}", names.join(", "))
        })
}

/// Why `plimsoll events` cannot run.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// Built without the object.
    #[error(transparent)]
    Object(#[from] ObjectMissing),
    /// The object file cannot be read.
    #[error("{path}: cannot be read: {source}; check --object")]
    ObjectFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// BPF cannot be used here.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The cgroup file systems cannot be found.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A control file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// SIGINT and SIGTERM cannot be caught.
    #[error("cannot catch SIGINT and SIGTERM: {0}")]
    Signals(#[source] io::Error),
    /// Waiting for records failed.
    #[error("cannot wait for records: {0}")]
    Poll(rustix::io::Errno),
    /// The output cannot be written.
    #[error(transparent)]
    Output(StdoutError),
}

impl CommandError for EventsError {}

/// Of what is printed; all else has a variant that says what it was for.
impl From<io::Error> for EventsError {
    fn from(error: io::Error) -> Self {
        Self::Output(error.into())
    }
}

/// Loads, prints until the time is over, and accounts for every record.
///
/// Exit status 0 when records were neither lost nor unreadable, 1 otherwise.
///
/// # Errors
/// When BPF cannot be used at all, a cgroup does not exist, or the output cannot be written.
pub fn run(args: &EventsArgs) -> Result<ExitCode, EventsError> {
    let file = match &args.object {
        Some(path) => Some(
            std::fs::read(path).map_err(|source| EventsError::ObjectFile {
                path: path.clone(),
                source,
            })?,
        ),
        None => None,
    };
    let bytes = match &file {
        Some(bytes) => bytes.as_slice(),
        None => object()?,
    };
    let host = HostRoot::live();
    let mounts = host.cgroup_mounts()?;
    let mut bpf = Bpf::load(
        bytes,
        &BpfOptions {
            // No pod is condemned here.
            hooks: HookSet::ALL.without(Family::LastLine),
            without: &[],
            window: args.window,
            counts: Counts::EachCgroup,
        },
    )?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for hook in bpf.hooks() {
        print_hook(&mut out, args.output.format, hook)?;
    }
    let mut screen = Screen::new(args, CgroupPaths::read(&host, &mounts)?);
    screen.follow_processes(&mut bpf)?;
    out.flush()?;

    let mut session = Session::until_signal().map_err(EventsError::Signals)?;
    session.ends_after(args.length);
    while let Some(left) = session.next_sleep() {
        if args.stall {
            std::thread::sleep(left);
            continue;
        }
        wait(&bpf, left)?;
        screen.drain(&mut bpf, &mut out)?;
        bpf.flush_log();
        screen.follow_processes(&mut bpf)?;
        out.flush()?;
    }
    let mut written = Ok(());
    let account = bpf.finish(AtEnd::Detach, |bpf| {
        if written.is_ok() {
            written = screen.drain(bpf, &mut out);
        }
    })?;
    written?;
    bpf.flush_log();
    print_throttle(&mut out, args.output.format, &bpf, &screen.paths)?;
    print_totals(&mut out, args.output.format, &bpf, &screen.paths)?;
    print_account(&mut out, args.output.format, &account)?;
    if let Some(error) = bpf.last_decode_error() {
        writeln!(out, "unreadable record: {error}")?;
    }
    out.flush()?;
    let is_clean = account.lost() == 0 && account.unreadable == 0;
    Ok(if is_clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn wait(bpf: &Bpf, left: Duration) -> Result<(), EventsError> {
    let (critical, lifecycle) = (bpf.critical_fd(), bpf.lifecycle_fd());
    let mut fds = [&critical, &lifecycle].map(|fd| PollFd::new(fd, PollFlags::IN));
    let timeout = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(EventsError::Poll(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_parsed_or_explained() {
        assert_eq!(parse_kind("oom-kill"), Ok(Kind::OomKill));
        assert!(parse_kind("oom").is_err_and(|error| error.contains("cgroup-mkdir, cgroup-rmdir")));
    }
}
