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
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use plimsoll_core::engine::Engine;
use plimsoll_core::kube::cgroup_config::{NodeCapacity, SwapBehavior};
use plimsoll_core::model::options::OomOrder;
use plimsoll_core::model::swap::PodSwap;
use tokio::sync::{Notify, mpsc};

use crate::act::cpu_time::{CPU_LEDGER, CpuTime, READ_EVERY};
use crate::act::holds::{HOLDS_LEDGER, Holds, HoldsError};
use crate::act::kubepods::{self, Kubepods};
use crate::act::memory_release::MemoryRelease;
use crate::act::oom_group::OomGroups;
use crate::act::oom_order::OomOrdering;
use crate::act::oom_scores::OomScores;
use crate::act::placement::NodePaths;
use crate::act::remedies::{REMEDIES_LEDGER, Remedies};
use crate::daemon::admission::is_running;
use crate::daemon::limits::{Limits, Origins};
use crate::daemon::node_meters::{NodeMeters, Wanted};
use crate::daemon::pod_meters::PodMeters;
use crate::daemon::sampler::Sampler;
use crate::daemon::start::kubelet::{conflicts, soft_grace_s};
use crate::daemon::state_dir_full::SpaceWatch;
use crate::daemon::telling::Announcement;
use crate::daemon::{
    Agent, Ending, KubeletWork, LastLine, NriWork, OomWork, PlacementWork, Sources, StorageWork,
};
use crate::host::cgroup::Controller;
use crate::host::ledger::{AGENT_LEDGER, Ledger};
use crate::host::meminfo::MeminfoFile;
use crate::host::protect::{protect, raise_open_files};
use crate::host::shown::{Show as _, line};
use crate::host::socket_queues::InetQueues;
use crate::host::stop::StopSignals;
use crate::host::syscall::fill_allocations;
use crate::input::devices;
use crate::input::manifests::admission::AdmissionContext;
use crate::kernel::programs::{Programs, load_pinned};
use crate::kernel::{Bpf, PinError, PinOwner};
use crate::pods::cgroup_worker::CgroupWorker;
use crate::pods::kill::{Ages, KillThread};
use crate::pods::memory_reader::StatThread;
use crate::pods::names::{POD_UID_VARIABLE, is_pod_hidden, pods_of_this_process};
use crate::pods::registry::Pods;
use crate::pods::uncharged::UnchargedReader;
use crate::probe::facts::{Facts, hooks_of, kinds_without};
use crate::probe::report::HostReport;
use crate::record::journal::Journal;
use crate::record::lines::{Line, Reporter};
use crate::serve::control::server::{AnswerSources, Bounds, Server};
use crate::serve::control::{self, Snapshots};
use crate::serve::http;
use crate::serve::summary::Statistics;
use crate::source::cluster::{ClusterLink, ClusterSettings};
use crate::source::nri::NriLink;
use crate::source::stall_triggers::stall_triggers;
use crate::storage::filesystem::KubeletRoot;
use crate::storage::freeing::LeftToKubelet;
use crate::storage::runtime::{self, RUNTIME_ASKED_WITHIN};
use crate::storage::{Storage, StorageSettings};

mod args;
mod huge_pages;
pub mod kubelet;
mod ledgers;
mod plan;

pub use self::args::RunArgs;
pub use self::ledgers::LEDGERS;
use self::ledgers::Ledgers;
use self::plan::{Plan, disks, nri_settings, topology_source};

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

    /// Where pods come from: manifests, or a kubelet. `is_aligned`: containers are to be near to their devices.
    fn pod_source(
        &mut self,
        sources: &mut Sources,
        is_aligned: bool,
    ) -> Result<Option<KubeletWork>> {
        let Plan { args, kubelet, .. } = &self.plan;
        let Some(tree) = kubelet else {
            let (mounts, root) = (self.plan.mounts.clone(), self.plan.cgroup_root.clone());
            let ground = AdmissionContext {
                state_dir: args.state_dir.clone(),
                is_running: Box::new(move |pod| is_running(&mounts, &root, pod)),
            };
            sources.watch_manifests(&args.manifests, ground)?;
            return Ok(None);
        };
        let conflicts = match &self.plan.kubelets_config {
            Ok(Some(kubelet)) => {
                let memory_bytes = MeminfoFile::open(&self.plan.host)?.read()?.total;
                let theirs = &kubelet.config.engine;
                let mut lines = conflicts(&self.plan.config.engine, theirs, memory_bytes);
                lines.extend(kubelet.drop_ins.as_ref().map(|dir| {
                    format!(
                        "{}: the kubelet also takes settings from there, which were not compared: look for evictionHard and evictionSoft",
                        dir.shown()
                    )
                }));
                lines
            }
            Ok(None) => {
                tracing::info!("no kubelet's configuration was found to compare with");
                Vec::new()
            }
            Err(error) => vec![format!(
                "the kubelet's configuration was not compared: {error}; say with --kubelet-config where it is"
            )],
        };
        tracing::info!(kubepods = %tree.kubepods(), driver = tree.driver().name(), "beside a kubelet");
        let (link, events, left) = ClusterLink::start(&ClusterSettings {
            socket: args.kubelet.cluster_socket.clone(),
            user: args.kubelet.cluster_uid,
            state_dir: args.state_dir.clone(),
            soft_grace_s: soft_grace_s(&self.plan.config.engine),
        })?;
        sources.watch_cluster(events);
        let devices = is_aligned.then(|| {
            let (devices, given) = mpsc::channel(1);
            sources.watch_devices(given);
            devices
        });
        let topology = topology_source(&self.plan, &link, devices);
        let what = "knowing what the kubelet has given to containers";
        let topology = self.without(what, topology.transpose());
        conflicts.into_iter().for_each(|text| self.warn(text));
        // The loop writes to it.
        let ledger = self.plan.ledger(HOLDS_LEDGER).map(Ledger::without_waiting);
        let taken_up = ledger.map_err(HoldsError::from);
        let taken_up = taken_up.and_then(|ledger| Holds::take_up(ledger, &left.unsettled));
        let (holds, held) = self
            .without(
                "holding evicted pods, which their kubelet starts again",
                taken_up,
            )
            .map_or((None, Vec::new()), |(holds, held)| (Some(holds), held));
        let lost = self.lost.clone();
        let work = KubeletWork::new(Some(link), holds, held, left, lost);
        Ok(Some(work.with_topology(topology.flatten())))
    }

    /// What answers the container runtime, where one runs the pods.
    fn nri(&mut self, sources: &mut Sources) -> Option<NriWork> {
        let settings = nri_settings(&self.plan)?;
        let (link, events) = self.without("NRI", NriLink::start(settings))?;
        sources.watch_nri(events);
        Some(NriWork::new(link))
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
        let sampler = sampler.with_uncharged(uncharged);
        if sampler.limits_swap_of_pods() {
            self.plan.config.engine.pod_swap = match self.plan.of_pods().cgroups.qos.swap_behavior {
                SwapBehavior::NoSwap => PodSwap::Forbidden,
                SwapBehavior::LimitedSwap => PodSwap::Limited,
            };
        }
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

    /// The optional parts that the configuration asks for. One that cannot start is left out, with a line among the
    /// losses. Remedies then leave the engine's options as well: it must not wait for what no thread carries out.
    fn features(
        &mut self,
        loaded: &Loaded,
        capacity: NodeCapacity,
        sources: &mut Sources,
    ) -> Result<Features> {
        let options = self.plan.config.engine.options;
        let oom_order = match options.oom_order {
            OomOrder::Kubelet => None,
            OomOrder::Dynamic => {
                let order = OomOrdering::open(&self.plan.host, &self.plan.mounts);
                self.without("oomOrder Dynamic", order)
            }
        };
        // Beside a kubelet scores are its own, unless they are to follow the order of eviction.
        let has_scores = self.plan.kubelet.is_none() || oom_order.is_some();
        let oom_scores = match has_scores {
            true => {
                let started = self.oom_scores(loaded)?;
                self.without("oom_score_adj of processes", started)
            }
            false => None,
        };
        self.leave_to_kubelet();
        let mut features = Features {
            placement: self.placement(capacity, sources)?,
            last_line: options
                .last_line
                .map(|options| LastLine::new(options, &self.plan.host)),
            oom: OomWork {
                scores: oom_scores,
                order: oom_order,
                groups: self.oom_groups(),
            },
            remedies: None,
            memory_release: None,
            cpu_time: None,
        };
        let release = MemoryRelease::start(self.plan.host.clone());
        features.memory_release = self.without("release of killed pods' memory", release);
        if options.remedies.is_some() {
            let started = self
                .plan
                .ledger(REMEDIES_LEDGER)
                .map_err(anyhow::Error::from)
                .and_then(|ledger| Ok(Remedies::start(ledger)?));
            match self.without("memory remedies", started) {
                Some((remedies, reports)) => {
                    sources.watch_remedies(reports);
                    features.remedies = Some(remedies);
                }
                None => self.plan.config.engine.options.remedies = None,
            }
        }
        let cpu = &self.plan.config.engine.cpu;
        if cpu.burst.is_some() || cpu.suppress.is_some() {
            let Plan { host, mounts, .. } = &self.plan;
            let started = self
                .plan
                .ledger(CPU_LEDGER)
                .map_err(anyhow::Error::from)
                .and_then(|ledger| Ok(CpuTime::start(host, mounts, ledger, READ_EVERY)?));
            if let Some((cpu_time, reports)) = self.without("cpuBurst and cpuSuppress", started) {
                sources.watch_cpu_time(reports);
                features.cpu_time = Some(cpu_time);
            }
        }
        Ok(features)
    }

    /// What a kubelet owns is not changed, whatever the configuration asks for.
    fn leave_to_kubelet(&mut self) {
        if self.plan.kubelet.is_none() {
            return;
        }
        let config = &mut self.plan.config;
        let cpu = std::mem::take(&mut config.engine.cpu);
        if cpu.burst.is_some() || cpu.suppress.is_some() {
            let text = "cpuBurst and cpuSuppress: cpu.max is the kubelet's; they are off with --kubernetes";
            self.lost.push(text.to_owned());
        }
    }

    fn placement(
        &mut self,
        capacity: NodeCapacity,
        sources: &mut Sources,
    ) -> Result<Option<PlacementWork>> {
        let Plan {
            args,
            config,
            host,
            mounts,
            cgroup_root,
            kubelet,
            ..
        } = &self.plan;
        let paths = NodePaths {
            host: host.clone(),
            mounts: mounts.clone(),
            cgroup_root: cgroup_root.clone(),
            kubelet: kubelet.clone(),
            state_dir: args.state_dir.clone(),
            kubelet_dir: args.kubelet_dir.clone(),
        };
        let devices = args.devices.as_deref().map(devices::read).transpose()?;
        let reporter = &mut self.reporter;
        let prepared = PlacementWork::prepare(
            paths,
            capacity,
            args.move_interrupts,
            config,
            devices,
            |text| {
                reporter.say(&Line::Warning { text });
            },
        );
        let prepared = match self.plan.kubelet {
            None => prepared?,
            // Evictions go on without it.
            Some(_) => {
                let prepared = prepared.map_err(|error| {
                    format!(
                        "{error:#}; this is checked only at start: restart plimsoll when it is mended"
                    )
                });
                self.without("placement of CPUs and memory", prepared)
                    .flatten()
            }
        };
        Ok(prepared.map(|(work, reports)| {
            sources.watch_placement(reports);
            work
        }))
    }

    fn oom_groups(&mut self) -> Option<OomGroups> {
        let pod_oom_group = self.plan.config.engine.options.pod_oom_group;
        let ledger = pod_oom_group.then(|| self.plan.ledger(AGENT_LEDGER));
        let ledger = ledger.and_then(|ledger| self.without("podOOMGroup", ledger));
        // The loop writes to it.
        let ledger = ledger.map(Ledger::without_waiting);
        let single_process = self.plan.config.cgroups.single_process_oom_kill;
        let single_process = single_process.unwrap_or(false);
        let groups = OomGroups::new(&self.plan.mounts, single_process, ledger);
        if groups.is_none() && pod_oom_group {
            self.warn(
                "podOOMGroup has no effect: memory is on cgroup v1 here, which has no memory.oom.group"
                    .to_owned(),
            );
        }
        groups
    }

    fn oom_scores(&self, loaded: &Loaded) -> Result<io::Result<OomScores>> {
        let host = &self.plan.host;
        let capacity_bytes = NonZeroU64::new(MeminfoFile::open(host)?.read()?.total);
        let capacity_bytes = capacity_bytes.unwrap_or(NonZeroU64::MIN);
        let sees_attach = loaded.attaches("cgroup_attach_task");
        let news = Arc::clone(&self.news);
        let started = OomScores::start(host.clone(), capacity_bytes, sees_attach, news);
        Ok(started)
    }

    fn pods(&mut self, capacity: NodeCapacity) -> Pods {
        let worker = self.without("removal of the cgroups of pods", CgroupWorker::start());
        let kill_thread = self.without("kills that no tenant can hold up", KillThread::start());
        let ages = Ages::start(self.plan.host.clone(), Arc::clone(&self.news));
        let ages = self.without("a thread that reads how old processes are", ages);
        let stat_thread = self.without(
            "readings of memory.stat that no tenant can hold up",
            StatThread::start(),
        );
        let Plan {
            config,
            host,
            mounts,
            cgroup_root,
            kubelet,
            ..
        } = &self.plan;
        Pods::new(host.clone(), mounts.clone(), cgroup_root.clone())
            .with_settings(config.cgroups.qos, capacity)
            .with_worker(worker)
            .with_kill_thread(kill_thread)
            .with_ages(ages)
            .with_stat_thread(stat_thread)
            .beside_kubelet(kubelet.clone())
            .with_remedy_files(config.engine.options.remedies.is_some())
    }

    /// The control socket, and HTTP where it is asked for.
    fn serve(
        &mut self,
        sources: &mut Sources,
        bpf: Option<&Bpf>,
    ) -> Result<(Option<Server>, Option<http::Server>)> {
        let listener = self.plan.listener.take();
        let Plan {
            args,
            host,
            mounts,
            cgroup_root,
            kubelet,
            ..
        } = &self.plan;
        let (snapshot_source, requests) = control::snapshots();
        sources.give_snapshots_to(requests);
        let snapshots = Arc::new(Snapshots::new(snapshot_source));
        let statistics = || {
            Statistics::new(host.clone(), mounts.clone(), cgroup_root.clone())
                .beside_kubelet(kubelet.clone())
        };
        let group = args.control_group.as_deref();
        let option = args.control_socket.as_deref();
        let socket = control::prepare_place(&args.state_dir, option, group);
        let answers = AnswerSources {
            snapshots: Arc::clone(&snapshots),
            statistics: statistics(),
        };
        let control =
            socket.and_then(|path| Server::start(&path, group, answers, Bounds::default()));
        let control = match control {
            Err(error) if self.plan.no_space.is_some() => {
                self.lost.push(format!("control socket: {error}"));
                None
            }
            control => Some(control?),
        };
        let http = listener.map(|listener| {
            let answers = http::Answers::new(snapshots, statistics())
                .with_programs(bpf.map(Bpf::run_meters).unwrap_or_default())
                .with_pods_in_metrics(args.metrics_per_pod);
            http::Server::start(listener, answers, http::Bounds::default())
        });
        let http = http.and_then(|started| self.without("HTTP", started));
        Ok((control, http))
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

/// Optional parts of the agent.
struct Features {
    placement: Option<PlacementWork>,
    last_line: Option<LastLine>,
    oom: OomWork,
    remedies: Option<Remedies>,
    memory_release: Option<MemoryRelease>,
    cpu_time: Option<CpuTime>,
}

impl Features {
    fn add_to(self, agent: Agent) -> Agent {
        let mut agent = agent
            .with_placement(self.placement)
            .with_last_line(self.last_line)
            .with_oom(self.oom)
            .with_memory_release(self.memory_release);
        if let Some(remedies) = self.remedies {
            agent = agent.with_remedies(remedies);
        }
        if let Some(cpu_time) = self.cpu_time {
            agent = agent.with_cpu_time(cpu_time);
        }
        agent
    }
}
