//! `plimsoll events`: every record of the BPF programs as it comes, and where each one went.
//!
//! The tool for seeing the kernel side work: it loads every hook, says which are in place, prints, and at the end accounts for
//! each record by kind (produced = consumed + dropped). It decides nothing and changes nothing on the host.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use plimsoll_abi::{KINDS, Kind, ROOT_CGROUP_ID};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use crate::agent::StopSignals;
use crate::bpf::last_line::uid_text;
use crate::bpf::object::{ObjectMissing, object};
use crate::bpf::{
    Account, AccountReport, AtEnd, Bpf, BpfError, BpfOptions, Family, HookReport, HookSet,
    KindCount, OneIn,
};
use crate::host::{CgroupError, CgroupMounts, Controller, FileError, HostRoot, Version};
use crate::output::Output;
use crate::source::decode::{
    Body, MemoryLimitEvent, OomLimit, ReclaimPhase, Record, RefaultKind, StallCause, ThrottlePhase,
};

/// Records read from a ring before looking at the clock again.
const BUDGET: usize = 256;

/// Times [`BUDGET`] records are more than a ring holds.
const ROUNDS: usize = 256;

/// The rings are looked at this often even if nothing wakes us: the aggregated one never does.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Cgroups whose directories are read for their paths at the start.
const CGROUPS_MAX: usize = 65_536;

/// Cgroups whose processes are followed.
const FOLLOWED_MAX: usize = 4096;

/// Print what the kernel tells: every record of the BPF programs as it comes, and at the end where each one went
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Exit status: 0 every record was read; 1 records were lost or unreadable, or BPF cannot be used here."
)]
pub struct EventsArgs {
    /// Show only this cgroup and those below it (path from the root of its hierarchy, such as /kubepods)
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Show only these kinds of records (all are loaded and counted)
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = parse_kind)]
    pub kind: Vec<Kind>,

    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,

    /// Stop after this time; without it, run until interrupted
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,

    /// Send at most one record per cgroup in this time for the kinds that come in floods
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub window_ms: u64,

    /// Arm a usage threshold: PATH=BYTES, where PATH "/" is the whole node. Each is armed once
    #[arg(long, value_name = "PATH=BYTES", value_parser = parse_arm)]
    pub arm: Vec<Arm>,

    /// Keep totals of how long the tasks of this cgroup wait for a CPU (path from the root of the cpu hierarchy), and print them
    /// at the end
    #[arg(long, value_name = "PATH")]
    pub run_queue: Vec<PathBuf>,

    /// With --run-queue: look at one in so many switches of a CPU, by chance (a power of two)
    #[arg(long, value_name = "N", default_value = "8", value_parser = parse_one_in, requires = "run_queue")]
    pub run_queue_one_in: OneIn,

    /// Do not read the rings before the end: shows that an overrun is counted exactly
    #[arg(long, hide = true)]
    pub stall: bool,

    /// The BPF object to load, instead of the one inside this program
    #[arg(long, value_name = "FILE", hide = true)]
    pub object: Option<PathBuf>,
}

/// A threshold to arm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    path: String,
    bytes: u64,
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

fn parse_arm(text: &str) -> Result<Arm, String> {
    let (path, bytes) = text
        .rsplit_once('=')
        .ok_or("write it as PATH=BYTES, such as /kubepods=67108864")?;
    Ok(Arm {
        path: path.to_owned(),
        bytes: bytes
            .parse()
            .map_err(|_| format!("{bytes:?} is not a number of bytes"))?,
    })
}

fn parse_one_in(text: &str) -> Result<OneIn, String> {
    text.parse()
        .ok()
        .and_then(OneIn::new)
        .ok_or_else(|| "use a power of two, such as 8; 1 looks at every switch".to_owned())
}

/// Why `plimsoll events` cannot run.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// Built without the object.
    #[error(transparent)]
    Object(#[from] ObjectMissing),
    /// The object file cannot be read.
    #[error("{path}: {source}")]
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
    /// A cgroup that was asked for is not there.
    #[error("{path}: {source}; give the path of a cgroup from the root of its hierarchy")]
    NoCgroup {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// SIGINT and SIGTERM cannot be caught.
    #[error("catching signals: {0}")]
    Signals(#[source] io::Error),
    /// Waiting for records failed.
    #[error("waiting for records: {0}")]
    Poll(rustix::io::Errno),
    /// The output cannot be written.
    #[error("writing the output: {0}")]
    Output(#[from] io::Error),
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
    let mounts = HostRoot::live().cgroup_mounts()?;
    let mut bpf = Bpf::load(
        bytes,
        &BpfOptions {
            agent_tgid: std::process::id(),
            // Nobody is condemned here.
            hooks: HookSet::ALL.without(Family::LastLine),
            without: &[],
            window: Duration::from_millis(args.window_ms),
            run_queue_one_in: args.run_queue_one_in,
        },
    )?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for hook in bpf.hooks() {
        print_hook(&mut out, args.output, hook)?;
    }
    let mut screen = Screen::new(args, Paths::walk(&mounts));
    // Their descriptors stay open as long as the thresholds are armed.
    let _armed = arm(&mut bpf, &mounts, &args.arm, &mut out, args.output)?;
    follow_run_queue(&mut bpf, &mounts, &args.run_queue)?;
    screen.follow_processes(&mut bpf, &mounts)?;
    out.flush()?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(EventsError::Signals)?;
    let mut stop = {
        let _in_runtime = runtime.enter();
        StopSignals::catch().map_err(EventsError::Signals)?
    };
    let end = args
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    while end.is_none_or(|end| Instant::now() < end) && !runtime.block_on(stop.have_come()) {
        let left = end.map_or(LOOK_EVERY, |end| {
            end.saturating_duration_since(Instant::now())
                .min(LOOK_EVERY)
        });
        if args.stall {
            std::thread::sleep(left);
            continue;
        }
        wait(&bpf, left)?;
        screen.drain(&mut bpf, &mut out)?;
        screen.follow_processes(&mut bpf, &mounts)?;
        out.flush()?;
    }
    let mut written = Ok(());
    let account = bpf.finish(AtEnd::Detach, |bpf| {
        if written.is_ok() {
            written = screen.drain(bpf, &mut out);
        }
    })?;
    written?;
    print_throttle(&mut out, args.output, &bpf, &screen.paths)?;
    print_totals(&mut out, args.output, &bpf, &screen.paths)?;
    print_run_queue(&mut out, args.output, &bpf, &screen.paths)?;
    print_account(&mut out, args.output, &account)?;
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

/// Registers and arms each threshold, and returns the files that were opened for it.
fn arm(
    bpf: &mut Bpf,
    mounts: &CgroupMounts,
    arms: &[Arm],
    out: &mut impl Write,
    output: Output,
) -> Result<Vec<std::fs::File>, EventsError> {
    let mut files = Vec::new();
    if arms.is_empty() {
        return Ok(files);
    }
    let hierarchy = mounts.hierarchy_of(Controller::Memory)?;
    let name = match hierarchy.version {
        Version::V1 => "memory.usage_in_bytes",
        Version::V2 => "memory.current",
    };
    // The root has no such file on v2; it is registered together with any other.
    let mut arms: Vec<_> = arms.iter().collect();
    arms.sort_by_key(|arm| arm.path == "/");
    for (generation, arm) in (1u64..).zip(arms) {
        let id = if arm.path == "/" {
            ROOT_CGROUP_ID
        } else {
            let directory = hierarchy.mount.join(arm.path.trim_start_matches('/'));
            let no_cgroup = |source| EventsError::NoCgroup {
                path: directory.clone(),
                source,
            };
            let id = std::fs::metadata(&directory).map_err(no_cgroup)?.ino();
            let file = std::fs::File::open(directory.join(name)).map_err(no_cgroup)?;
            let seen = bpf.register(file.as_fd(), id)?;
            files.push(file);
            match output {
                Output::Text => writeln!(
                    out,
                    "registered {}: usage {} bytes, node {} bytes",
                    arm.path, seen.usage_bytes, seen.root_usage_bytes
                )?,
                Output::Json => writeln!(
                    out,
                    "{}",
                    json!({"registered": arm.path, "usage_bytes": seen.usage_bytes, "root_usage_bytes": seen.root_usage_bytes})
                )?,
            }
            id
        };
        bpf.arm(id, arm.bytes, generation)?;
    }
    Ok(files)
}

/// Asks for the waits of these cgroups, if there are any.
fn follow_run_queue(
    bpf: &mut Bpf,
    mounts: &CgroupMounts,
    cgroups: &[PathBuf],
) -> Result<(), EventsError> {
    if cgroups.is_empty() {
        return Ok(());
    }
    let hierarchy = mounts.hierarchy_of(Controller::Cpu)?;
    for path in cgroups {
        let path = hierarchy.mount.join(path.strip_prefix("/").unwrap_or(path));
        let metadata =
            std::fs::metadata(&path).map_err(|source| EventsError::NoCgroup { path, source })?;
        bpf.follow_run_queue(metadata.ino())?;
    }
    Ok(bpf.watch_run_queue(true)?)
}

/// Paths of cgroups by (is on v1, id).
struct Paths(BTreeMap<(bool, u64), String>);

impl Paths {
    /// Reads the directories that are there now; later ones come with their records.
    fn walk(mounts: &CgroupMounts) -> Paths {
        let mut paths = BTreeMap::new();
        for hierarchy in mounts.hierarchies() {
            let is_v1 = hierarchy.version == Version::V1;
            let mut open = vec![(hierarchy.mount.clone(), String::new())];
            while let Some((directory, path)) = open.pop() {
                // A directory may vanish at any moment.
                if let Ok(metadata) = directory.metadata() {
                    let shown = if path.is_empty() { "/" } else { &path };
                    paths
                        .entry((is_v1, metadata.ino()))
                        .or_insert_with(|| shown.to_owned());
                }
                if paths.len() >= CGROUPS_MAX {
                    break;
                }
                let Ok(entries) = std::fs::read_dir(&directory) else {
                    continue;
                };
                for entry in entries
                    .flatten()
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                {
                    open.push((
                        entry.path(),
                        format!("{path}/{}", entry.file_name().to_string_lossy()),
                    ));
                }
            }
        }
        Paths(paths)
    }

    /// The path of a cgroup of an unknown hierarchy: v2 if it is there, else v1.
    fn of(&self, id: u64) -> Option<&str> {
        let path = |is_v1| self.0.get(&(is_v1, id)).map(String::as_str);
        path(false).or_else(|| path(true))
    }
}

struct Screen<'args> {
    args: &'args EventsArgs,
    paths: Paths,
    /// Whether there are cgroups whose processes are not followed yet.
    has_new: bool,
}

impl<'args> Screen<'args> {
    fn new(args: &'args EventsArgs, paths: Paths) -> Self {
        Screen {
            args,
            paths,
            has_new: true,
        }
    }

    fn drain(&mut self, bpf: &mut Bpf, out: &mut impl Write) -> io::Result<()> {
        let mut result = Ok(());
        let mut show = |record: Record<'_>| {
            if result.is_ok() {
                result = self.show(&record, out);
            }
        };
        // As many as the rings hold, not as many as a flood sends.
        for _ in 0..ROUNDS {
            let taken = [
                bpf.drain_critical(BUDGET, &mut show),
                bpf.drain_lifecycle(BUDGET, &mut show),
                bpf.drain_pressure(BUDGET, &mut show),
            ];
            if !taken.contains(&BUDGET) {
                break;
            }
        }
        result
    }

    fn show(&mut self, record: &Record<'_>, out: &mut impl Write) -> io::Result<()> {
        if let Body::CgroupMkdir {
            hierarchy_id, path, ..
        } = record.body
            && self.paths.0.len() < CGROUPS_MAX
        {
            let path = String::from_utf8_lossy(path).into_owned();
            self.paths
                .0
                .insert((hierarchy_id != 0, record.cgroup_id), path);
            self.has_new = true;
        }
        let path = self.paths.of(record.cgroup_id).map(str::to_owned);
        let is_shown = self.is_wanted(record, path.as_deref());
        let result = match (is_shown, self.args.output) {
            (false, _) => Ok(()),
            (true, Output::Text) => self.text(record, path.as_deref(), out),
            (true, Output::Json) => self.json(record, path.as_deref(), out),
        };
        if let Body::CgroupRmdir { hierarchy_id, .. } = record.body {
            self.paths.0.remove(&(hierarchy_id != 0, record.cgroup_id));
        }
        result
    }

    /// The births of `--cgroup` and what is below it; of all cgroups there would be too many.
    fn follow_processes(
        &mut self,
        bpf: &mut Bpf,
        mounts: &CgroupMounts,
    ) -> Result<(), EventsError> {
        let Some(wanted) = self.args.cgroup.as_ref().filter(|_| self.has_new) else {
            return Ok(());
        };
        self.has_new = false;
        let is_v1 = mounts.hierarchy_of(Controller::Memory)?.version == Version::V1;
        let wanted = Path::new("/").join(wanted);
        let ids = self.paths.0.iter().filter_map(|((on_v1, id), path)| {
            (*on_v1 == is_v1 && Path::new("/").join(path).starts_with(&wanted)).then_some(*id)
        });
        Ok(bpf.follow_processes(&ids.take(FOLLOWED_MAX).collect())?)
    }

    fn is_wanted(&self, record: &Record<'_>, path: Option<&str>) -> bool {
        let by_kind = self.args.kind.is_empty() || self.args.kind.contains(&record.body.kind());
        let by_path = match (&self.args.cgroup, path) {
            (None, _) => true,
            (Some(wanted), Some(path)) => {
                let root = Path::new("/");
                root.join(path).starts_with(root.join(wanted))
            }
            (Some(_), None) => false,
        };
        by_kind && by_path
    }

    fn text(
        &self,
        record: &Record<'_>,
        path: Option<&str>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let (seconds, micros) = (
            record.ts_ns / 1_000_000_000,
            record.ts_ns / 1_000 % 1_000_000,
        );
        write!(
            out,
            "{seconds:>6}.{micros:06} cpu{:<3} {:<17} ",
            record.cpu,
            record.body.kind().name()
        )?;
        match (record.cgroup_id, path) {
            (0, _) => write!(out, "node")?,
            (id, Some(path)) => write!(out, "{path} ({id})")?,
            (id, None) => write!(out, "({id})")?,
        }
        write!(out, ": ")?;
        match &record.body {
            Body::ThresholdCrossed {
                usage_pages,
                charge_pages,
                threshold_pages,
                generation,
            } => writeln!(
                out,
                "usage {usage_pages} + charge {charge_pages} reaches {threshold_pages} pages, generation {generation}"
            ),
            Body::ChargesReached {
                charged_pages,
                threshold_pages,
            } => writeln!(
                out,
                "{charged_pages} pages charged in all, {threshold_pages} armed"
            ),
            Body::LastLineKill {
                why,
                tgid,
                comm,
                place,
                kills,
                ..
            } => writeln!(
                out,
                "process {tgid} ({}), the pod's {kills}. at place {place}: {why}",
                String::from_utf8_lossy(comm)
            ),
            Body::CgroupMkdir {
                level,
                hierarchy_id,
                is_cut,
                ..
            } => {
                let cut = if *is_cut { ", path cut" } else { "" };
                writeln!(out, "level {level}{}{cut}", v1(*hierarchy_id))
            }
            Body::CgroupRmdir {
                level,
                hierarchy_id,
            } => writeln!(out, "level {level}{}", v1(*hierarchy_id)),
            Body::CgroupAttach { tgid, hierarchy_id } => {
                writeln!(out, "process {tgid}{}", v1(*hierarchy_id))
            }
            Body::CgroupPopulated {
                is_populated,
                hierarchy_id,
            } => {
                writeln!(
                    out,
                    "{}{}",
                    if *is_populated { "populated" } else { "empty" },
                    v1(*hierarchy_id)
                )
            }
            Body::OomKill {
                limit,
                tgid,
                oom_score_adj,
                points,
                total_pages,
                anon_pages,
                comm,
            } => {
                write!(
                    out,
                    "victim {} (process {tgid}, oom_score_adj {oom_score_adj}, ",
                    String::from_utf8_lossy(comm)
                )?;
                if let Some(points) = points {
                    write!(out, "points {points}, ")?;
                }
                write!(
                    out,
                    "{anon_pages} of {total_pages} pages anonymous), limit of "
                )?;
                match limit {
                    OomLimit::Node => writeln!(out, "the node"),
                    OomLimit::Unknown => writeln!(out, "(told with the choice, where that is)"),
                    OomLimit::Cgroup(id) => match self.paths.of(*id) {
                        Some(path) => writeln!(out, "{path} ({id})"),
                        None => writeln!(out, "cgroup {id}"),
                    },
                }
            }
            Body::MemoryEvent {
                event,
                count,
                pages,
            } => {
                write!(out, "{} met {count} times so far", event_name(*event))?;
                pages.map_or(Ok(()), |pages| write!(out, ", {pages} pages asked for"))?;
                writeln!(out)
            }
            Body::Throttle {
                phase: ThrottlePhase::Start,
                count,
                ..
            } => writeln!(out, "start, {count} ended so far"),
            Body::Throttle {
                phase: ThrottlePhase::Stop,
                count,
                sum_ns,
                max_ns,
            } => {
                writeln!(
                    out,
                    "stop, {count} so far for {} µs, longest {} µs",
                    sum_ns / 1000,
                    max_ns / 1000
                )
            }
            Body::NodeReclaim {
                phase,
                count,
                node,
                order,
            } => {
                write!(
                    out,
                    "{}, order {order}, {count} times so far",
                    phase_name(*phase)
                )?;
                node.map_or(Ok(()), |node| write!(out, ", NUMA node {node}"))?;
                writeln!(out)
            }
            Body::MemoryStall {
                cause,
                actor_cgroup_id,
                count,
                sum_ns,
                max_ns,
                pages,
            } => {
                write!(
                    out,
                    "{}, {count} so far for {} µs, longest {} µs",
                    cause_name(*cause),
                    sum_ns / 1000,
                    max_ns / 1000
                )?;
                pages.map_or(Ok(()), |pages| write!(out, ", {pages} pages freed"))?;
                if *actor_cgroup_id != record.cgroup_id {
                    match self.paths.of(*actor_cgroup_id) {
                        Some(path) => write!(out, ", last by {path} ({actor_cgroup_id})")?,
                        None => write!(out, ", last by cgroup {actor_cgroup_id}")?,
                    }
                }
                writeln!(out)
            }
            Body::Refault { what, count, pages } => writeln!(
                out,
                "{}, {count} so far, {pages} pages",
                refault_name(*what)
            ),
            Body::ProcessBirth {
                tgid,
                parent_tgid,
                parent_cgroup_id,
            } => writeln!(
                out,
                "process {tgid}, parent {parent_tgid} in {}",
                self.paths.of(*parent_cgroup_id).unwrap_or("?")
            ),
        }
    }

    fn json(
        &self,
        record: &Record<'_>,
        path: Option<&str>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let mut object = details(&record.body);
        object["ts_ns"] = json!(record.ts_ns);
        object["cpu"] = json!(record.cpu);
        object["kind"] = json!(record.body.kind().name());
        object["cgroup_id"] = json!(record.cgroup_id);
        object["cgroup"] = json!(path);
        writeln!(out, "{object}")
    }
}

/// " (v1 hierarchy N)", or nothing on v2.
fn v1(hierarchy_id: u32) -> String {
    if hierarchy_id == 0 {
        String::new()
    } else {
        format!(" (v1 hierarchy {hierarchy_id})")
    }
}

fn event_name(event: MemoryLimitEvent) -> &'static str {
    match event {
        MemoryLimitEvent::High => "memory.high",
        MemoryLimitEvent::Max => "memory.max",
        MemoryLimitEvent::Oom => "oom",
        MemoryLimitEvent::Low => "memory.low",
        MemoryLimitEvent::OomKill => "oom_kill",
        MemoryLimitEvent::OomGroupKill => "oom_group_kill",
    }
}

fn cause_name(cause: StallCause) -> &'static str {
    match cause {
        StallCause::Memory => "memory",
        StallCause::Limit => "limit-reclaim",
        StallCause::High => "memory.high",
        StallCause::Node => "node-reclaim",
    }
}

fn refault_name(what: RefaultKind) -> &'static str {
    match what {
        RefaultKind::Anon => "refault_anon",
        RefaultKind::File => "refault_file",
        RefaultKind::SwapIn => "swap_in",
    }
}

fn phase_name(phase: ReclaimPhase) -> &'static str {
    match phase {
        ReclaimPhase::KswapdWake => "kswapd_wake",
        ReclaimPhase::DirectReclaim => "direct_reclaim",
    }
}

/// The fields of a body; absent ones are null.
fn details(body: &Body<'_>) -> Value {
    match *body {
        Body::ThresholdCrossed {
            usage_pages,
            charge_pages,
            threshold_pages,
            generation,
        } => json!({
            "usage_pages": usage_pages, "charge_pages": charge_pages, "threshold_pages": threshold_pages,
            "generation": generation,
        }),
        Body::ChargesReached {
            charged_pages,
            threshold_pages,
        } => json!({"charged_pages": charged_pages, "threshold_pages": threshold_pages}),
        Body::LastLineKill {
            why,
            tgid,
            comm,
            uid,
            place,
            kills,
            available_pages,
            wanted_pages,
            crossed_ns,
            acked_ns,
        } => json!({
            "why": why, "tgid": tgid, "comm": String::from_utf8_lossy(comm), "uid": uid_text(uid), "place": place,
            "kills": kills, "available_pages": available_pages, "wanted_pages": wanted_pages,
            "crossed_ns": crossed_ns, "acked_ns": acked_ns,
        }),
        Body::CgroupMkdir {
            level,
            hierarchy_id,
            is_cut,
            ..
        } => {
            json!({"level": level, "hierarchy_id": hierarchy_id, "is_cut": is_cut})
        }
        Body::CgroupRmdir {
            level,
            hierarchy_id,
        } => json!({"level": level, "hierarchy_id": hierarchy_id}),
        Body::CgroupAttach { tgid, hierarchy_id } => {
            json!({"tgid": tgid, "hierarchy_id": hierarchy_id})
        }
        Body::CgroupPopulated {
            is_populated,
            hierarchy_id,
        } => {
            json!({"is_populated": is_populated, "hierarchy_id": hierarchy_id})
        }
        Body::OomKill {
            limit,
            tgid,
            oom_score_adj,
            points,
            total_pages,
            anon_pages,
            comm,
        } => {
            let (limit, limit_cgroup_id) = match limit {
                OomLimit::Node => ("node", None),
                OomLimit::Unknown => ("unknown", None),
                OomLimit::Cgroup(id) => ("cgroup", Some(id)),
            };
            json!({
                "limit": limit, "limit_cgroup_id": limit_cgroup_id, "tgid": tgid, "oom_score_adj": oom_score_adj,
                "points": points, "total_pages": total_pages, "anon_pages": anon_pages,
                "comm": String::from_utf8_lossy(comm),
            })
        }
        Body::MemoryEvent {
            event,
            count,
            pages,
        } => {
            json!({"event": event_name(event), "count": count, "pages": pages})
        }
        Body::Throttle {
            phase,
            count,
            sum_ns,
            max_ns,
        } => json!({
            "phase": match phase { ThrottlePhase::Start => "start", ThrottlePhase::Stop => "stop" },
            "count": count, "sum_ns": sum_ns, "max_ns": max_ns,
        }),
        Body::NodeReclaim {
            phase,
            count,
            node,
            order,
        } => {
            json!({"phase": phase_name(phase), "count": count, "node": node, "order": order})
        }
        Body::MemoryStall {
            cause,
            actor_cgroup_id,
            count,
            sum_ns,
            max_ns,
            pages,
        } => json!({
            "cause": cause_name(cause), "actor_cgroup_id": actor_cgroup_id, "count": count, "sum_ns": sum_ns,
            "max_ns": max_ns, "pages": pages,
        }),
        Body::Refault { what, count, pages } => {
            json!({"what": refault_name(what), "count": count, "pages": pages})
        }
        Body::ProcessBirth {
            tgid,
            parent_tgid,
            parent_cgroup_id,
        } => json!({
            "tgid": tgid, "parent_tgid": parent_tgid, "parent_cgroup_id": parent_cgroup_id,
        }),
    }
}

fn print_hook(out: &mut impl Write, output: Output, hook: &HookReport) -> io::Result<()> {
    match output {
        Output::Text => writeln!(out, "{hook}"),
        Output::Json => {
            let (verified, translated, reason) = match &hook.state {
                crate::bpf::HookState::Attached {
                    verified_insns,
                    translated_insns,
                }
                | crate::bpf::HookState::OnDemand {
                    verified_insns,
                    translated_insns,
                } => (*verified_insns, *translated_insns, None),
                crate::bpf::HookState::Unavailable(reason) => {
                    (None, None, Some(reason.to_string()))
                }
            };
            writeln!(
                out,
                "{}",
                json!({
                    "hook": hook.program, "family": hook.family.name(), "type": hook.kind.to_string(),
                    "target": hook.target, "attached": hook.is_attached(), "usable": hook.is_usable(), "verified_insns": verified,
                    "translated_insns": translated, "reason": reason,
                })
            )
        }
    }
}

fn print_throttle(
    out: &mut impl Write,
    output: Output,
    bpf: &Bpf,
    paths: &Paths,
) -> Result<(), EventsError> {
    if !bpf
        .hooks()
        .iter()
        .any(|hook| hook.family == Family::Throttle && hook.is_attached())
    {
        return Ok(());
    }
    let mut totals = Vec::new();
    bpf.drain_throttle(|total| totals.push(total))?;
    totals.sort_by_key(|total| total.cgroup_id);
    for total in totals {
        let path = paths.of(total.cgroup_id);
        match output {
            Output::Text => writeln!(
                out,
                "throttled in all: {} ({}): {} times for {} µs, longest {} µs",
                path.unwrap_or("?"),
                total.cgroup_id,
                total.count,
                total.sum_ns / 1000,
                total.max_ns / 1000
            )?,
            Output::Json => writeln!(
                out,
                "{}",
                json!({
                    "throttle_total": total.cgroup_id, "cgroup": path, "count": total.count, "sum_ns": total.sum_ns,
                    "max_ns": total.max_ns,
                })
            )?,
        }
    }
    Ok(())
}

/// Waits for memory, pages read back and processes, by cgroup.
fn print_totals(
    out: &mut impl Write,
    output: Output,
    bpf: &Bpf,
    paths: &Paths,
) -> Result<(), EventsError> {
    // Sorted, because a hash map's order says nothing.
    let mut lines: BTreeMap<(u64, u8, &'static str), (String, Value)> = BTreeMap::new();
    bpf.drain_stalls(|total| {
        let cause = cause_name(total.cause);
        let text = format!(
            "{} times for {} µs, longest {} µs, {} pages freed",
            total.count,
            total.sum_ns / 1000,
            total.max_ns / 1000,
            total.pages
        );
        let object = json!({
            "stall_total": total.cgroup_id, "cause": cause, "count": total.count, "sum_ns": total.sum_ns,
            "max_ns": total.max_ns, "pages": total.pages,
        });
        lines.insert((total.cgroup_id, 0, cause), (text, object));
    })?;
    bpf.drain_refaults(|total| {
        let what = refault_name(total.what);
        let text = format!("{} times, {} pages", total.count, total.pages);
        let object = json!({
            "refault_total": total.cgroup_id, "what": what, "count": total.count, "pages": total.pages,
        });
        lines.insert((total.cgroup_id, 1, what), (text, object));
    })?;
    bpf.drain_processes(|total| {
        if total.forks + total.execs > 0 {
            let text = format!("{} born, {} programs started", total.forks, total.execs);
            let object = json!({
                "process_total": total.cgroup_id, "forks": total.forks, "execs": total.execs,
            });
            lines.insert((total.cgroup_id, 2, "processes"), (text, object));
        }
    })?;
    for ((cgroup_id, kind, name), (text, mut object)) in lines {
        let path = paths.of(cgroup_id);
        match output {
            Output::Text => {
                let what = ["held up in all", "read back in all", "in all"][usize::from(kind)];
                writeln!(
                    out,
                    "{what}: {} ({cgroup_id}): {name}: {text}",
                    path.unwrap_or("?")
                )?;
            }
            Output::Json => {
                object["cgroup"] = json!(path);
                writeln!(out, "{object}")?;
            }
        }
    }
    Ok(())
}

fn print_run_queue(
    out: &mut impl Write,
    output: Output,
    bpf: &Bpf,
    paths: &Paths,
) -> Result<(), EventsError> {
    let mut totals = Vec::new();
    bpf.drain_run_queue(|total| totals.push(total))?;
    totals.sort_by_key(|total| total.cgroup_id);
    for total in totals {
        let path = paths.of(total.cgroup_id);
        match output {
            Output::Text => {
                write!(
                    out,
                    "waited for a CPU: {} ({}): {} waits seen (one in {}) of {} µs, longest {} µs",
                    path.unwrap_or("?"),
                    total.cgroup_id,
                    total.count,
                    total.one_in,
                    total.sum_ns / 1000,
                    total.max_ns / 1000
                )?;
                for (name, per_mille) in [("half", 500), ("99 %", 990)] {
                    if let Some(bound_ns) = total.quantile_ns(per_mille) {
                        write!(out, ", {name} below {} µs", bound_ns / 1000)?;
                    }
                }
                writeln!(out)?;
            }
            Output::Json => writeln!(
                out,
                "{}",
                json!({
                    "run_queue_total": total.cgroup_id, "cgroup": path, "one_in": total.one_in, "count": total.count,
                    "sum_ns": total.sum_ns, "max_ns": total.max_ns, "buckets": total.buckets,
                })
            )?,
        }
    }
    Ok(())
}

fn print_account(out: &mut impl Write, output: Output, account: &Account) -> io::Result<()> {
    let report = AccountReport::from(account);
    for kind in KINDS {
        let count = account.of(kind);
        let KindCount {
            produced,
            consumed,
            dropped,
            folded,
        } = count;
        match output {
            Output::Text => {
                write!(
                    out,
                    "{:<17} produced {produced} = consumed {consumed} + dropped {dropped}",
                    kind.name(),
                )?;
                if folded > 0 {
                    write!(out, "; {folded} more only counted, per cgroup")?;
                }
                writeln!(out)?;
            }
            Output::Json => {
                let mut object = json!(
                    report
                        .kinds
                        .iter()
                        .find(|report| report.kind == kind.name())
                );
                object["counts"] = json!(kind.name());
                writeln!(out, "{object}")?;
            }
        }
    }
    let (untracked, unreadable) = (account.untracked(), account.unreadable);
    match output {
        Output::Text => {
            for (cpu, kind, count) in account.open() {
                writeln!(out, "CPU {cpu}, {}: {count:?} does not add up", kind.name())?;
            }
            if account.open().next().is_none() {
                let cpus = account.cpus();
                writeln!(out, "this adds up for each kind on each of {cpus} CPUs")?;
            }
            writeln!(out, "untracked {untracked}, unreadable {unreadable}")
        }
        Output::Json => {
            let open = account.open().count();
            writeln!(
                out,
                "{}",
                json!({"untracked": untracked, "unreadable": unreadable, "open": open})
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_thresholds_are_parsed_or_explained() {
        assert_eq!(parse_kind("oom-kill"), Ok(Kind::OomKill));
        assert!(
            parse_kind("oom").is_err_and(|error| error.contains("threshold-crossed, cgroup-mkdir"))
        );
        assert_eq!(
            parse_arm("/a=b=12"),
            Ok(Arm {
                path: "/a=b".into(),
                bytes: 12
            })
        );
        assert!(parse_arm("/a").is_err_and(|error| error.contains("PATH=BYTES")));
        assert!(parse_arm("/a=1Mi").is_err_and(|error| error.contains("not a number")));
    }

    #[test]
    fn only_the_cgroup_and_those_below_it_are_shown() {
        let args = EventsArgs {
            cgroup: Some("/kubepods".into()),
            kind: vec![Kind::CgroupRmdir],
            output: Output::Text,
            seconds: None,
            window_ms: 100,
            arm: vec![],
            run_queue: vec![],
            run_queue_one_in: OneIn::USUAL,
            stall: false,
            object: None,
        };
        let screen = Screen::new(&args, Paths(BTreeMap::new()));
        let record = |body| Record {
            ts_ns: 0,
            cgroup_id: 9,
            cpu: 0,
            body,
        };
        let rmdir = record(Body::CgroupRmdir {
            level: 1,
            hierarchy_id: 0,
        });
        assert!(screen.is_wanted(&rmdir, Some("/kubepods")));
        assert!(screen.is_wanted(&rmdir, Some("/kubepods/pod1")));
        assert!(!screen.is_wanted(&rmdir, Some("/kubepods2")));
        assert!(!screen.is_wanted(&rmdir, None));
        assert!(!screen.is_wanted(
            &record(Body::CgroupAttach {
                tgid: 1,
                hierarchy_id: 0
            }),
            Some("/kubepods")
        ));
    }

    #[test]
    fn a_record_becomes_one_line_of_text_or_json() {
        let mut args = EventsArgs {
            cgroup: None,
            kind: vec![],
            output: Output::Text,
            seconds: None,
            window_ms: 100,
            arm: vec![],
            run_queue: vec![],
            run_queue_one_in: OneIn::USUAL,
            stall: false,
            object: None,
        };
        let record = Record {
            ts_ns: 12_000_345_678,
            cgroup_id: 9,
            cpu: 3,
            body: Body::OomKill {
                limit: OomLimit::Cgroup(8),
                tgid: 77,
                oom_score_adj: 1000,
                points: Some(500),
                total_pages: 20,
                anon_pages: 10,
                comm: b"hog",
            },
        };
        let paths = BTreeMap::from([
            ((false, 8), "/k".to_owned()),
            ((false, 9), "/k/p".to_owned()),
        ]);
        let mut text = Vec::new();
        Screen::new(&args, Paths(paths.clone()))
            .show(&record, &mut text)
            .expect("a vector takes everything");
        assert_eq!(
            String::from_utf8_lossy(&text),
            "    12.000345 cpu3   oom-kill          /k/p (9): victim hog (process 77, oom_score_adj 1000, points 500, \
             10 of 20 pages anonymous), limit of /k (8)\n"
        );
        args.output = Output::Json;
        let mut line = Vec::new();
        Screen::new(&args, Paths(paths))
            .show(&record, &mut line)
            .expect("a vector takes everything");
        let value: Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(value["cgroup"], "/k/p");
        assert_eq!(value["limit_cgroup_id"], 8);
        assert_eq!(value["comm"], "hog");
    }
}
