//! `plimsoll run`: puts everything in place, phase by phase, and hands over to the loop.
//!
//! **Phases.** Check the host ([`Plan::check`]) → put back what an agent before has left ([`Ledgers::put_back`]) → the
//! cgroups above the pods → BPF programs → what is sampled → sources → protect this process → features → engine →
//! serve → run. From the first change of a kernel setting on, every step is in a ledger, and [`run`] undoes it whatever
//! happens after it.
//!
//! **What stops the start.** An argument or a setting that cannot be had: a wrong file, an address in use. What the
//! node lacks costs that part and a line among the losses: a feature without a thread, a source without a descriptor.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use plimsoll_core::engine::Engine;
use plimsoll_core::kube::cgroup_config::SwapBehavior;
use plimsoll_core::model::swap::PodSwap;
use tokio::sync::Notify;

use crate::act::kubepods::{self, Kubepods};
use crate::daemon::limits::{Limits, Origins};
use crate::daemon::node_meters::{NodeMeters, Wanted};
use crate::daemon::pod_meters::PodMeters;
use crate::daemon::sampler::Sampler;
use crate::daemon::state_dir_full::SpaceWatch;
use crate::daemon::telling::Announcement;
use crate::daemon::{Agent, Ending, PlacementWork, Sources, StorageWork};
use crate::host::cgroup::Controller;
use crate::host::ledger::{AGENT_LEDGER, Ledger};
use crate::host::protect::{protect, raise_open_files};
use crate::host::shown::line;
use crate::host::socket_queues::InetQueues;
use crate::host::stop::StopSignals;
use crate::host::syscall::fill_allocations;
use crate::kernel::programs::{Programs, load_pinned};
use crate::kernel::{Bpf, PinError, PinOwner};
use crate::pods::names::{POD_UID_VARIABLE, is_pod_hidden, pods_of_this_process};
use crate::pods::uncharged::UnchargedReader;
use crate::probe::facts::{Facts, hooks_of, kinds_without};
use crate::probe::report::HostReport;
use crate::record::journal::Journal;
use crate::record::lines::{Line, Reporter};
use crate::serve::http;
use crate::source::stall_triggers::stall_triggers;
use crate::storage::filesystem::KubeletRoot;
use crate::storage::freeing::LeftToKubelet;
use crate::storage::runtime::{self, RUNTIME_ASKED_WITHIN};
use crate::storage::{Storage, StorageSettings};

mod args;
mod features;
mod huge_pages;
pub mod kubelet;
mod ledgers;
mod plan;
mod pods_from;
mod serve;

pub use self::args::RunArgs;
pub use self::ledgers::LEDGERS;
use self::ledgers::Ledgers;
use self::plan::{Plan, disks};

/// The program that this is, beside `plimsoll`.
pub const PROGRAM: &str = "plimsoll-agent";
/// In this time at most one record of a flood (throttling, reclaim) is sent per cgroup.
pub const WINDOW: Duration = Duration::from_millis(100);

/// Runs the agent until it receives SIGINT or SIGTERM.
///
/// # Errors
/// What keeps it from starting, or later from reading the node's memory, with what to do about it.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let mut plan = Plan::check(args)?;
    let _lock = plan.lock()?;
    let stdout = io::stdout();
    let reporter = Reporter::start(args.output.format, stdout.is_terminal(), stdout).context(
        "the output thread cannot be started; raise the limit of threads of the agent's cgroup (pids.max)",
    )?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .context("the event loop cannot be made; raise the limit of open files (ulimit -n)")?;
    // From here on a signal ends the agent in an orderly way: before the first kernel setting is changed.
    let mut stop = {
        let _in_runtime = runtime.enter();
        StopSignals::catch().context(
            "SIGINT and SIGTERM cannot be caught; raise the limit of open files (ulimit -n)",
        )?
    };
    let space = if plan.no_space.is_some() {
        let space = SpaceWatch::start(&args.state_dir)?;
        stop = stop.or_when(space.notify());
        let _in_runtime = runtime.enter();
        Some((space, StopSignals::catch()?))
    } else {
        None
    };
    let mut start = Start {
        plan,
        reporter,
        lost: Vec::new(),
        news: Arc::default(),
    };
    start.warn_of_arguments();
    let (mut ledgers, restored) = Ledgers::put_back(&start.plan)?;
    if restored > 0 {
        start.warn(format!(
            "{restored} kernel settings left by an agent that was killed, or by pods that have ended, were put back"
        ));
    }
    let ended = runtime.block_on(start.run(stop, &mut ledgers.agent));
    ledgers.restore();
    // An error of the run itself is what the caller wants to see.
    let result = ended.and_then(|(ending, result)| {
        ending.finish();
        result
    });
    if !args.keep_on_exit
        && let Err(error) = PinOwner::of(&args.state_dir).remove()
        // Those of another agent, which are not this one's to remove.
        && !matches!(error, PinError::InUse { .. })
    {
        tracing::error!(%error, "pinned BPF programs stay; the next start, or `plimsoll uninstall`, removes them");
    }
    let result = match space {
        Some((space, signals)) => runtime.block_on(space.start_anew(result, signals)),
        None => result,
    };
    result.map(|()| ExitCode::SUCCESS)
}

/// The BPF programs, if there are any, and what follows from what could be attached.
struct Loaded {
    bpf: Option<Bpf>,
    report: HostReport,
    /// Where they are pinned.
    pinned: Option<String>,
}

impl Loaded {
    fn attaches(&self, program: &str) -> bool {
        self.bpf
            .as_ref()
            .is_some_and(|bpf| bpf.is_attached(program))
    }
}

/// The start under way. What is changed is in a ledger.
struct Start<'a> {
    plan: Plan<'a>,
    reporter: Reporter,
    /// What this node lacks, a line each.
    lost: Vec<String>,
    /// By which threads wake the loop.
    news: Arc<Notify>,
}

impl Start<'_> {
    async fn run(mut self, stop: StopSignals, ledger: &mut Ledger) -> Result<(Ending, Result<()>)> {
        let kubepods = self.kubepods()?;
        let capacity = match &kubepods {
            Some(kubepods) => kubepods.capacity(),
            None => kubepods::capacity(&self.plan.host, &self.plan.mounts, &self.plan.config)?,
        };
        let loaded = self.load();
        // What is allocated from here on is for good: it is written to, so that it is locked in memory as a whole.
        fill_allocations(true);
        let sampler = self.sampler(capacity.allocatable_memory_bytes)?;
        let origins = Origins::of(
            &loaded.report.choices,
            loaded.attaches("memcg_memory_event"),
        );
        let events = self.without("waiting for memory events of pods", origins.events());
        let limits = Limits::new(&self.plan.mounts, origins, events.flatten());
        let mut sources = self.sources(&loaded, &limits)?;
        sources.watch_news(Arc::clone(&self.news));
        // After everything that is opened and allocated for good, so that all of it is locked in memory. Before the
        // threads for what is not urgent: only what they touch of their stacks is locked.
        self.spare_agents_pod();
        self.protect(ledger);
        let features = self.features(&loaded, capacity, &mut sources)?;
        let disks = self.storage_settings();
        let engine_config = self.plan.config.engine_on(disks.file_systems().layout())?;
        if disks.kubelet_root != KubeletRoot::Unused {
            let nodefs = disks.file_systems().read().nodefs;
            self.lost
                .extend(nodefs.err().map(|error| error.to_string()));
            self.lost.extend(self.plan.unseen_logs());
        }
        let engine = Engine::new(engine_config);
        let journal = self.plan.args.journal.as_deref();
        let journal = journal
            .map(|path| Journal::create(path, &engine))
            .transpose()?;
        let is_aligned = features
            .placement
            .as_ref()
            .is_some_and(PlacementWork::is_aligned);
        let kubelet = self.pod_source(&mut sources, is_aligned)?;
        let nri = self.nri(&mut sources);
        let _servers = self.serve(&mut sources, loaded.bpf.as_ref())?;
        let disk = self.disk(disks, &mut sources);
        let pods = self.pods(capacity);
        let Self {
            plan,
            reporter,
            lost,
            ..
        } = self;
        let Loaded {
            bpf,
            report,
            pinned,
        } = loaded;
        let agent = Agent::new(engine, pods, sampler, limits, bpf, journal, reporter)
            .with_kubepods(kubepods)
            .with_kubelet(kubelet)
            .with_nri(nri)
            .keeping_programs(plan.args.keep_on_exit);
        let mut agent = features.add_to(agent);
        if let Some(disk) = disk {
            agent = agent.with_storage(disk);
        }
        fill_allocations(false);
        agent.announcing(Announcement {
            mechanisms: report.choices,
            lost,
            programs: pinned,
        });
        Ok(agent.run(sources, stop).await)
    }

    /// Where the disks are: of images the runtime knows it, if one is asked and answers.
    fn storage_settings(&self) -> StorageSettings {
        let mut disks = disks(&self.plan);
        if let Some(runtime) = disks.runtime.clone().filter(|_| disks.image_dir.is_none()) {
            match runtime::directories(runtime, RUNTIME_ASKED_WITHIN) {
                Ok(directories) => disks.follow_runtime(&directories),
                Err(why) => tracing::info!(
                    "the container runtime does not say where it keeps images: {}; they are looked for where runtimes have them by default",
                    line(&why)
                ),
            }
        }
        disks
    }

    fn warn(&mut self, text: String) {
        self.reporter.say(&Line::Warning { text });
    }

    /// A part that cannot be had here: `what` is missing, and all else goes on.
    fn without<T, E: std::fmt::Display>(&mut self, what: &str, part: Result<T, E>) -> Option<T> {
        part.map_err(|error| self.lost.push(format!("{what}: {error}")))
            .ok()
    }

    fn warn_of_arguments(&mut self) {
        for text in std::mem::take(&mut self.plan.remarks) {
            self.warn(text);
        }
        if let Some(text) = self.plan.args.listen.and_then(http::exposed) {
            self.warn(text);
        }
        if let Some(why) = self.plan.no_space.clone() {
            let text = format!(
                "no kernel setting is changed, because no change could be recorded: {why}. Evictions go on; plimsoll starts anew when there is space"
            );
            self.lost.push(text.clone());
            self.warn(text);
        }
        let skipped = self.plan.mounts.skipped();
        if skipped > 0 {
            self.warn(format!(
                "{skipped} mounts in /proc/self/mounts cannot be read and were skipped; `plimsoll check` shows the cgroup hierarchies that were found"
            ));
        }
        if let Err(error) = raise_open_files(&self.plan.host) {
            self.warn(format!(
                "the limit on open files stays as it is, about a dozen are needed for each pod: {error}"
            ));
        }
    }

    /// The cgroups above the pods; a kubelet's are its own.
    fn kubepods(&mut self) -> Result<Option<Kubepods>> {
        if self.plan.kubelet.is_some() {
            return Ok(None);
        }
        let Plan {
            config,
            host,
            mounts,
            cgroup_root,
            ..
        } = &self.plan;
        // The loop writes to it.
        let ledger = self.plan.ledger(AGENT_LEDGER)?.without_waiting();
        let (kubepods, absent) = Kubepods::make(host, mounts, cgroup_root, config, ledger)?;
        self.lost.extend(absent.iter().map(ToString::to_string));
        Ok(Some(kubepods))
    }

    /// What is read of the node and its pods.
    fn sampler(&mut self, allocatable_memory_bytes: u64) -> Result<Sampler> {
        let Plan {
            config,
            host,
            mounts,
            kubepods,
            kubelet,
            ..
        } = &mut self.plan;
        let thresholds = &config.engine.thresholds;
        let (node_meters, missing) = NodeMeters::open(host, Wanted::by(thresholds));
        let (meters, unmeasured) = PodMeters::by(mounts, thresholds);
        self.lost.extend(missing.iter().map(ToString::to_string));
        self.lost
            .extend(unmeasured.map(|error| format!("disk traffic of pods: {error}")));
        if let Ok(text) = huge_pages::remark(host, &config.engine) {
            self.lost.extend(text);
        }
        let mut sampler = Sampler::open(host, mounts, kubepods, allocatable_memory_bytes)?;
        if kubelet.is_some()
            && let Err(error) = sampler.heed_kubelets_limit(mounts, kubepods)
        {
            self.lost.push(format!(
                "allocatableMemory.available counts from the reservations of this agent's own configuration: {error}"
            ));
        }
        let inet = InetQueues::of(host, mounts.hierarchy_of(Controller::Memory)?.version);
        let uncharged = UnchargedReader::start(host.clone(), inet);
        let sampler = sampler
            .with_thresholds(&config.engine.thresholds)
            .with_node_meters(node_meters)
            .with_meters(meters);
        let uncharged = self.without("memory that pods are not charged for", uncharged);
        let mut sampler = sampler.with_uncharged(uncharged);
        if sampler.limits_swap_of_pods() {
            self.plan.config.engine.pod_swap = match self.plan.of_pods().cgroups.qos.swap_behavior {
                SwapBehavior::NoSwap => PodSwap::Forbidden,
                SwapBehavior::LimitedSwap => PodSwap::Limited,
            };
        }
        sampler.set_pod_swap(self.plan.config.engine.pod_swap);
        Ok(sampler)
    }

    /// BPF programs: taken over from the agent before, or loaded, or none.
    fn load(&mut self) -> Loaded {
        let Plan {
            args,
            config,
            host,
            cgroup_root,
            ..
        } = &self.plan;
        let has_last_line = config.engine.options.last_line.is_some();
        let mut facts = Facts::probe(host, cgroup_root, &args.without.mechanisms, Ok(Vec::new()));
        let (mut bpf, mut pinned) = (None, None);
        facts.bpf = match facts.without_bpf() {
            Some(obstacle) => Err(obstacle.to_string()),
            None => {
                let programs = Programs {
                    without: kinds_without(&args.without.mechanisms),
                    window: WINDOW,
                    last_line: has_last_line,
                };
                let owner = PinOwner::of(&args.state_dir);
                let reporter = &mut self.reporter;
                load_pinned(programs, &owner, |text| {
                    reporter.say(&Line::Warning { text });
                })
                .map(|(loaded, how)| {
                    let hooks = hooks_of(loaded.hooks());
                    bpf = Some(loaded);
                    pinned = Some(how.to_string());
                    hooks
                })
                .map_err(|error| error.to_string())
            }
        };
        let report = HostReport::new(facts);
        if let Err(reason) = &report.facts.bpf {
            self.lost.insert(0, format!("BPF programs: {reason}"));
        }
        self.lost.extend(report.losses());
        if has_last_line && let Some(text) = report.last_line().loss() {
            // Asked for and not had: that must not be overlooked.
            self.warn(text.clone());
            self.lost.push(text);
        }
        Loaded {
            bpf,
            report,
            pinned,
        }
    }

    /// What wakes the loop.
    fn sources(&mut self, loaded: &Loaded, limits: &Limits) -> Result<Sources> {
        let Plan {
            config,
            host,
            mounts,
            kubepods,
            ..
        } = &self.plan;
        let stalls = stall_triggers(&config.engine.thresholds);
        let reporter = &mut self.reporter;
        let bpf = loaded.bpf.as_ref();
        let mut sources = Sources::open(host, mounts, kubepods, bpf, &loaded.report, reporter)?;
        let watched = sources.watch_stalls(host, &stalls, reporter);
        self.without("thresholds on pressure", watched);
        let watched = sources.watch_pods(limits);
        self.without("memory events of pods", watched);
        Ok(sources)
    }

    /// The agent evicts no pod that it runs in. Before it has moved into a cgroup of its own.
    fn spare_agents_pod(&mut self) {
        let pods = pods_of_this_process(&self.plan.host);
        let pods = self.without("sparing the pod that the agent runs in", pods);
        let Plan {
            mounts,
            kubelet,
            config,
            ..
        } = &mut self.plan;
        let exempt = &mut config.engine.exempt_uids;
        exempt.extend(pods.into_iter().flatten());
        // A cgroup namespace hides the names above this process, and not the process from the tree.
        if let (true, Some(tree)) = (exempt.is_empty(), kubelet) {
            let pod = tree.pod_of_process(mounts, std::process::id());
            exempt.extend(pod.ok().flatten());
        }
        let exempt = &self.plan.config.engine.exempt_uids;
        if exempt.is_empty() && is_pod_hidden(&self.plan.host) {
            self.lost.push(format!(
                "sparing the pod that the agent runs in: its cgroup namespace hides which one that is; set {POD_UID_VARIABLE} from metadata.uid (downward API)"
            ));
        }
    }

    fn protect(&mut self, ledger: &mut Ledger) {
        let Plan {
            host,
            mounts,
            cgroup_root,
            kubelet,
            ..
        } = &self.plan;
        // In a pod it would leave that pod's limits.
        let root = kubelet.is_none().then_some(cgroup_root);
        let lost = protect(host, mounts, root, ledger);
        self.lost.extend(lost.iter().map(ToString::to_string));
    }

    fn disk(&mut self, settings: StorageSettings, sources: &mut Sources) -> Option<StorageWork> {
        let spawned = match &self.plan.kubelet {
            Some(_) => Storage::spawn_with(settings, vec![Box::new(LeftToKubelet)]),
            None => Storage::spawn(settings),
        };
        let (handle, events) = self.without("disks", spawned)?;
        sources.watch_disks(events);
        Some(StorageWork::new(handle))
    }
}
