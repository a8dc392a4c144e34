//! `plimsoll run`: puts everything in place, in an order in which each step can still be undone, and hands over to the loop.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use plimsoll_core::engine::Engine;
use plimsoll_core::kube::cgroup_config::SwapBehavior;
use plimsoll_core::model::options::OomOrder;
use plimsoll_core::policy::memory::swap::PodSwap;

use crate::act::cpu_time::{CPU_LEDGER, CpuTime, READ_EVERY};
use crate::act::kubepods::Kubepods;
use crate::act::oom_group::OomGroups;
use crate::act::oom_order::OomOrdering;
use crate::act::oom_scores::OomScores;
use crate::act::remedies::{REMEDIES_LEDGER, Remedies};
use crate::commands::check::{Report, load_bpf};
use crate::daemon::limits::{Limits, Origins};
use crate::daemon::load_programs::LoadedApart;
use crate::daemon::observer::{NodeObserver, Wanted};
use crate::daemon::pod_meters::PodMeters;
use crate::daemon::sampler::Sampler;
use crate::daemon::{
    Agent, Ending, LastLine, Placing, Sources, StopSignals, Storage as StorageWork, Surroundings,
};
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupPath, Controller, Version};
use crate::host::knobs::{AGENT_LEDGER, KnobError, Ledger, PODS_LEDGER};
use crate::host::lock::StateLock;
use crate::host::meminfo::MeminfoFile;
use crate::host::output::Output;
use crate::host::protect::{protect, raise_open_files};
use crate::input::config::{Config, ConfigFile, Effective, EvictionFlags};
use crate::kernel::{Bpf, PinOwner};
use crate::pods;
use crate::pods::registry::Pods;
use crate::probe::facts::{Facts, hooks_of};
use crate::probe::ladder::Without;
use crate::record::journal::Journal;
use crate::record::lines::{Line, Reporter};
use crate::serve::control::server::{AnswerSources, Bounds, Server};
use crate::serve::control::{self, Snapshots};
use crate::serve::http;
use crate::serve::summary::Statistics;
use crate::source::stall_triggers::stall_triggers;
use crate::storage::{KUBELET_DIR, Storage, StorageSettings};

/// In this time at most one record of a flood (throttling, reclaim) is sent per cgroup.
pub const WINDOW: Duration = Duration::from_millis(100);

/// Watch this node and evict pods before the kernel's OOM killer has to
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  plimsoll run --manifests ./pods
  plimsoll run --manifests ./pods --eviction-hard 'memory.available<1Gi' --journal /var/log/plimsoll.journal
  plimsoll run --manifests ./pods --config kubelet-eviction.yaml --output json

Stops on SIGINT and SIGTERM; pods go on running, and every kernel setting that was changed is put back.

Exit status: 0 stopped by a signal; 1 it could not start or go on (the message says why and what to do); 2 wrong usage.")]
pub struct RunArgs {
    /// Directory of Kubernetes Pod manifests (YAML or JSON); a pod whose manifest is removed is ended
    #[arg(long, value_name = "DIR", default_value = "/etc/plimsoll/pods")]
    pub manifests: PathBuf,
    /// Configuration file: a KubeletConfiguration, YAML or JSON; see `plimsoll config check`
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The cgroup below which kubepods is, relative to the cgroup mount [default: cgroupRoot of the file, or the mount itself]
    #[arg(long, value_name = "CGROUP")]
    pub cgroup_root: Option<String>,
    /// Where the lock and the record of changed kernel settings are kept
    #[arg(long, value_name = "DIR", default_value = "/run/plimsoll")]
    pub state_dir: PathBuf,
    /// The socket at which `plimsoll explain` and `plimsoll top` ask [default: control.sock in the state directory]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
    /// Group (name or number) that may ask too; else only root
    #[arg(long, value_name = "GROUP")]
    pub control_group: Option<String>,
    /// Serve metrics, health and statistics over HTTP there, as 127.0.0.1:9186; off unless given. Anything but loopback is told
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = http::address)]
    pub listen: Option<SocketAddr>,
    /// Give each pod metrics of its own, at most 1024 (with --listen)
    #[arg(long, requires = "listen")]
    pub metrics_per_pod: bool,
    /// Write every event and decision there, for `plimsoll replay`
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// text: for people; json: one object per line
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
    /// Leave a mechanism out, to see what plimsoll falls back to; may be repeated
    #[arg(long, value_enum, value_name = "MECHANISM", value_delimiter = ',')]
    pub without: Vec<Without>,
    /// The kubelet's directory, in which volumes are; the file system that it is on is nodefs
    #[arg(long, value_name = "DIR", default_value = KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// Directory of pods' logs [default: podLogsDir of the configuration, /var/log/pods]
    #[arg(long, value_name = "DIR")]
    pub logs_dir: Option<PathBuf>,
    /// A directory on the file system of images [default: the container runtime's, if there is one]
    #[arg(long, value_name = "DIR")]
    pub image_dir: Option<PathBuf>,
    /// A directory on the file system of writable layers [default: as for images]
    #[arg(long, value_name = "DIR")]
    pub container_dir: Option<PathBuf>,
    /// Devices that pods may ask for, with their NUMA nodes: a file as `plimsoll place --help` shows
    #[arg(long, value_name = "FILE")]
    pub devices: Option<PathBuf>,
    /// Leave the kernel the order of eviction, so that a program there kills when memory is short and plimsoll does not answer
    /// (plimsoll.lastLine of the configuration)
    #[arg(long)]
    pub last_line: bool,
    /// Keep interrupts off CPUs that are exclusively a container's (with cpuManagerPolicy static)
    #[arg(long)]
    pub move_interrupts: bool,
    /// Leave the BPF programs pinned when stopped, for the agent that comes next: an upgrade then leaves no gap
    #[arg(long)]
    pub keep_on_exit: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "its own type says what it is")]
    pub eviction: EvictionFlags,
}

/// Runs the agent until it is told to stop.
///
/// # Errors
/// Whatever keeps it from starting, or from reading the node's memory later, with what to do about it.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let file = args
        .config
        .as_deref()
        .map(ConfigFile::read)
        .transpose()?
        .unwrap_or_default();
    let effective = Effective::new(file, &args.eviction)?;
    let remarks = effective.remarks();
    let mut config = effective.config;
    if args.last_line {
        config
            .engine
            .options
            .last_line
            .get_or_insert_with(Default::default);
    }
    let host = HostRoot::live();
    let cgroup_root = match &args.cgroup_root {
        Some(path) => CgroupPath::new(path).context("--cgroup-root")?,
        None => CgroupPath::new(&config.cgroups.root).context("cgroupRoot")?,
    };
    if config.fail_cgroup_v1 {
        let memory = host
            .cgroup_mounts()?
            .hierarchy_of(Controller::Memory)?
            .version;
        anyhow::ensure!(
            memory == Version::V2,
            "failCgroupV1 is true, and memory is controlled by cgroup v1 here: boot with cgroup v2, or set failCgroupV1: false"
        );
    }
    let listener = args.listen.map(http::bind).transpose()?;
    let _lock = StateLock::acquire(&args.state_dir)?;
    let mut reporter =
        Reporter::start(args.output).context("the output thread cannot be started")?;
    for remark in remarks {
        let text = format!("{}: {}", remark.field, remark.text);
        reporter.say(&Line::Warning { text });
    }
    if let Some(text) = args.listen.and_then(http::exposed) {
        reporter.say(&Line::Warning { text });
    }
    if let Err(error) = raise_open_files(&host) {
        let text = format!(
            "the limit on open files stays as it is, about a dozen are needed for each pod: {error}"
        );
        reporter.say(&Line::Warning { text });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .context("the event loop cannot be made")?;
    // From here on a signal ends the agent in an orderly way: before the first kernel setting is changed.
    let stop = {
        let _in_runtime = runtime.enter();
        StopSignals::catch().context("SIGINT and SIGTERM cannot be caught")?
    };
    let mut ledger = Ledger::open(&host, args.state_dir.join(AGENT_LEDGER))?;
    let mut pods_ledger = Ledger::open(&host, args.state_dir.join(PODS_LEDGER))?;
    let mut stage_ledger = Ledger::open(&host, args.state_dir.join(REMEDIES_LEDGER))?;
    let mut cpu_ledger = Ledger::open(&host, args.state_dir.join(CPU_LEDGER))?;
    let put_back = restore(&mut stage_ledger)?
        + restore(&mut cpu_ledger)?
        + restore(&mut pods_ledger)?
        + restore(&mut ledger)?;
    if put_back > 0 {
        let text = format!(
            "{put_back} kernel settings left by an agent that was killed, or by pods that have ended, were put back"
        );
        reporter.say(&Line::Warning { text });
    }
    let started = Started {
        args,
        config,
        host: &host,
        cgroup_root,
        runtime,
        stop,
        listener,
    };
    let ended = started.run(&mut ledger, stage_ledger, cpu_ledger, reporter);
    // Undone whatever happened; an error of the run itself is what the caller wants to see. Pods first: their cgroups are
    // inside ours.
    for ledger in [&mut pods_ledger, &mut ledger] {
        if let Err(error) = restore(ledger) {
            tracing::error!(%error, "kernel settings could not be put back; the next start tries again");
        }
    }
    let result = ended.and_then(|(ending, result)| {
        ending.finish();
        result
    });
    if !args.keep_on_exit
        && let Err(error) = PinOwner::of(&args.state_dir).remove()
    {
        tracing::error!(%error, "pinned BPF programs stay; the next start, or `plimsoll uninstall`, removes them");
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// What is there before the first kernel setting is changed.
struct Started<'a> {
    args: &'a RunArgs,
    config: Config,
    host: &'a HostRoot,
    cgroup_root: CgroupPath,
    runtime: tokio::runtime::Runtime,
    stop: StopSignals,
    listener: Option<TcpListener>,
}

impl Started<'_> {
    /// Makes the rest and runs the loop. What is changed is in the ledger.
    fn run(
        self,
        ledger: &mut Ledger,
        stage_ledger: Ledger,
        cpu_ledger: Ledger,
        mut reporter: Reporter,
    ) -> Result<(Ending, Result<()>)> {
        let Self {
            args,
            mut config,
            host,
            cgroup_root,
            runtime,
            stop,
            listener,
        } = self;
        let mounts = host.cgroup_mounts()?;
        let kubepods = pods::cgroup::kubepods_path(&cgroup_root)?;
        let (kubepods_cgroups, absent) = Kubepods::make(
            host,
            &mounts,
            &cgroup_root,
            &config,
            Ledger::open(host, args.state_dir.join(AGENT_LEDGER))?,
        )?;
        let capacity = kubepods_cgroups.capacity();
        let thresholds = &config.engine.thresholds;
        let (observer, unobserved) = NodeObserver::open(host, Wanted::by(thresholds));
        let stalls = stall_triggers(thresholds);
        let (meters, unmeasured) = PodMeters::by(&mounts, thresholds);
        let sampler = Sampler::open(host, &mounts, &kubepods, capacity.allocatable_memory_bytes)?
            .with_observer(observer)
            .with_meters(meters);
        if sampler.limits_swap_of_pods() {
            config.engine.pod_swap = match config.cgroups.qos.swap_behavior {
                SwapBehavior::NoSwap => PodSwap::Forbidden,
                SwapBehavior::LimitedSwap => PodSwap::Limited,
            };
        }

        let options = config.engine.options;
        let mut facts = Facts::probe(host, &cgroup_root, &args.without, Ok(Vec::new()));
        let (mut bpf, mut pinning) = (None, None);
        facts.bpf = match facts.without_bpf() {
            Some(obstacle) => Err(obstacle.to_string()),
            None => {
                let owner = PinOwner::of(&args.state_dir);
                let last_line = options.last_line.is_some();
                let apart = LoadedApart::try_to(&owner, &args.state_dir, &args.without, last_line);
                for text in apart.said() {
                    reporter.say(&Line::Warning { text: text.clone() });
                }
                load_bpf(&args.without, WINDOW, last_line, &owner, |text| {
                    reporter.say(&Line::Warning { text });
                })
                .map(|(loaded, how)| {
                    let hooks = hooks_of(loaded.hooks());
                    bpf = Some(loaded);
                    pinning = Some(apart.judge(how));
                    hooks
                })
            }
        };
        let report = Report::new(facts);
        let mut lost = report.losses();
        lost.extend(unobserved.iter().map(ToString::to_string));
        if let Err(reason) = &report.facts.bpf {
            lost.insert(0, format!("BPF programs: {reason}"));
        }

        lost.extend(unmeasured.map(|error| format!("disk traffic of pods: {error}")));
        let cpu_options = config.engine.cpu;
        lost.extend(absent.iter().map(ToString::to_string));
        let disks = disks(args, host, &cgroup_root, &config);
        let engine = Engine::new(config.engine_on(disks.file_systems().layout())?);
        let journal = args
            .journal
            .as_deref()
            .map(|path| Journal::create(path, &engine))
            .transpose()?;
        let counts_low = bpf
            .as_ref()
            .is_some_and(|bpf| bpf.is_attached("memcg_memory_event"));
        let limits = Limits::new(&mounts, Origins::of(&report.choices, counts_low))
            .context("the pods' limits cannot be watched")?;
        let around = Surroundings {
            host,
            mounts: &mounts,
            cgroup_root: &cgroup_root,
            state_dir: &args.state_dir,
            kubelet_dir: &args.kubelet_dir,
            capacity,
            moves_interrupts: args.move_interrupts,
        };
        let devices = args
            .devices
            .as_deref()
            .map(crate::commands::place::devices)
            .transpose()?;
        let placing = Placing::prepare(&around, &config, devices, |text| {
            reporter.say(&Line::Warning { text });
        })?;
        let mut pods = Pods::new(host.clone(), mounts.clone(), cgroup_root.clone())
            .with_settings(config.cgroups.qos, capacity);
        if options.remedies.is_some() {
            pods = pods.with_stage_files();
        }
        let attach_told = bpf
            .as_ref()
            .is_some_and(|bpf| bpf.is_attached("cgroup_attach_task"));
        let capacity_bytes =
            NonZeroU64::new(MeminfoFile::open(host)?.read()?.total).unwrap_or(NonZeroU64::MIN);
        let oom_order = match options.oom_order {
            OomOrder::Kubelet => None,
            OomOrder::Dynamic => Some(OomOrdering::open(host, &mounts)?),
        };
        let single_process = config.cgroups.single_process_oom_kill.unwrap_or(false);
        let pods_ledger = options
            .pod_oom_group
            .then(|| Ledger::open(host, args.state_dir.join(AGENT_LEDGER)))
            .transpose()?;
        let oom_groups = OomGroups::new(&mounts, single_process, pods_ledger);
        if oom_groups.is_none() && options.pod_oom_group {
            let text = "podOOMGroup has no effect: memory is on cgroup v1 here, which has no memory.oom.group";
            reporter.say(&Line::Warning {
                text: text.to_owned(),
            });
        }
        let scores = OomScores::new(host.clone(), capacity_bytes, attach_told);
        let last_line = options.last_line.map(|own| LastLine::new(own, host));
        if last_line.is_some()
            && let Some(text) = report.last_line().loss()
        {
            // Asked for and not had: that must not be overlooked.
            reporter.say(&Line::Warning { text: text.clone() });
            lost.push(text);
        }
        runtime.block_on(async {
            let mut sources = Sources::open(
                host,
                &mounts,
                &cgroup_root,
                bpf.as_ref(),
                &report,
                &mut reporter,
            )?;
            sources.watch_pods(&limits)?;
            sources.watch_stalls(host, &stalls, &mut reporter);
            let (snapshot_source, snapshots) = control::snapshots();
            sources.give_snapshots_to(snapshots);
            // Last, so that what was opened and allocated above is locked in memory too.
            lost.extend(
                protect(host, &mounts, &cgroup_root, ledger)
                    .iter()
                    .map(ToString::to_string),
            );
            // Not before: nothing urgent runs on these threads, and only what they touch of their stacks is locked.
            sources.watch_manifests(&args.manifests)?;
            let socket = control::socket_path(&args.state_dir, args.control_socket.as_deref());
            let group = args.control_group.as_deref();
            let snapshots = Arc::new(Snapshots::new(snapshot_source));
            let statistics = || Statistics::new(host.clone(), mounts.clone(), cgroup_root.clone());
            let answers = AnswerSources {
                snapshots: Arc::clone(&snapshots),
                statistics: statistics(),
            };
            let _control = Server::start(&socket, group, answers, Bounds::default())?;
            let serve_http = |listener| {
                let answers = http::Answers::new(snapshots, statistics())
                    .with_programs(bpf.as_ref().map(Bpf::run_meters).unwrap_or_default())
                    .with_pods_in_metrics(args.metrics_per_pod);
                http::Server::start(listener, answers, http::Bounds::default())
            };
            let _http = listener.map(serve_http).transpose()?;
            let disk = match Storage::spawn(disks) {
                Ok((handle, events)) => {
                    sources.watch_disks(events);
                    Some(StorageWork::new(handle))
                }
                Err(error) => {
                    lost.push(format!("disks: {error}"));
                    None
                }
            };
            let mut agent = Agent::new(engine, pods, sampler, limits, bpf, journal, reporter)
                .with_placing(placing)
                .with_last_line(last_line)
                .with_oom_scores(scores, oom_order)
                .with_oom_groups(oom_groups)
                .with_kubepods(kubepods_cgroups)
                .keeping_programs(args.keep_on_exit);
            if let Some(disk) = disk {
                agent = agent.with_storage(disk);
            }
            if options.remedies.is_some() {
                let (remedies, reports) = Remedies::start(stage_ledger)
                    .context("the thread for remedies cannot be started")?;
                agent = agent.with_remedies(remedies, reports);
            }
            if cpu_options.burst.is_some() || cpu_options.suppress.is_some() {
                match CpuTime::start(host, &mounts, cpu_ledger, READ_EVERY) {
                    Ok((cpu_time, reports)) => agent = agent.with_cpu_time(cpu_time, reports),
                    Err(error) => lost.push(format!("cpuBurst and cpuSuppress: {error}")),
                }
            }
            let programs = pinning.as_ref().map(ToString::to_string);
            agent.started(&report.choices, &lost, programs.as_deref());
            Ok(agent.run(sources, stop).await)
        })
    }
}

/// Where the node's disks are, and how often they are looked at.
fn disks(
    args: &RunArgs,
    host: &HostRoot,
    cgroup_root: &CgroupPath,
    config: &Config,
) -> StorageSettings {
    let live = StorageSettings::live(cgroup_root.clone());
    let logs_dir = args
        .logs_dir
        .clone()
        .or_else(|| Some(config.storage.pod_logs_dir.clone()).filter(|dir| dir.is_absolute()));
    let cycle = Duration::from_nanos(config.storage.volume_stats_period_ns);
    StorageSettings {
        host: host.clone(),
        kubelet_dir: args.kubelet_dir.clone(),
        logs_dir: logs_dir.unwrap_or(live.logs_dir),
        image_dir: args.image_dir.clone(),
        container_dir: args.container_dir.clone(),
        // The kubelet's 0 switches its own survey off; limits of local storage need one.
        cycle: if cycle.is_zero() { live.cycle } else { cycle },
        ..live
    }
}

/// Undoes what a ledger says, as far as it can be now. Returns how many settings were put back.
fn restore(ledger: &mut Ledger) -> Result<usize, KnobError> {
    let restoration = ledger.restore()?;
    for remark in restoration.remarks() {
        tracing::info!("{remark}");
    }
    Ok(restoration.restored())
}
