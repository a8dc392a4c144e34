//! What wakes the loop: [`Sources::next`] waits for all of it, and is the only place that waits.
//!
//! **Problem.** The loop waits for a dozen things, and most of them are optional: a kernel without BPF, a host without
//! PSI, a thread that was not started. Any of them can also fail later, which must cost what it was there for and
//! nothing else. **Approach.** A descriptor is a [`Source`], a thread is a channel, time is [`Deadlines`]; what arrives
//! is a [`Wake`]. A source that fails is closed and comes as [`Wake::Lost`], once: the agent warns in the words of the
//! [ladder](crate::probe::ladder) and goes on with what is left.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use plimsoll_core::model::event::Cause;
use plimsoll_core::placement::device::ListedDevices;
use plimsoll_core::protocol::runtime_link::FromNri;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::deadlines::Deadlines;
use crate::act::{cpu_time, placement, remedies};
use crate::daemon::limits::Limits;
use crate::host::HostRoot;
use crate::host::cgroup::{CgroupMounts, CgroupPath, Controller, Version};
use crate::host::clock::now_ns;
use crate::host::shown::Show as _;
use crate::host::stop::StopSignals;
use crate::host::syscall::watch;
use crate::input::manifests::admission::AdmissionContext;
use crate::input::manifests::{LeftPods, ManifestChange, ManifestWatch};
use crate::kernel::Bpf;
use crate::probe::ladder::{LADDER, LadderSignal};
use crate::probe::mechanism::Mechanism;
use crate::probe::report::HostReport;
use crate::record::lines::{Line, Reporter};
use crate::record::snapshot::Snapshot;
use crate::serve::control::SnapshotRequests;
use crate::source::cgroup_watch::CgroupWatch;
use crate::source::cluster::{ClusterEvent, ClusterEvents};
use crate::source::memcg_v1::{MemcgV1, MemcgV1Error, PressureLevel};
use crate::source::nri::NriEvents;
use crate::source::pressure::{PsiTrigger, Stall, Trigger};
use crate::source::stall_triggers::{ArmedTriggers, StallTrigger};
use crate::storage::StorageEvent;

/// Manifest changes that may wait for the loop; their thread waits beyond.
const MANIFEST_CHANGES: usize = 16;
/// Between two rescans where the kernel reports cgroups that come and go. One drains the pressure ring, finds what was
/// missed in a twelfth of the pods, and gives each feature its turn.
const RESCAN_REPORTED: Duration = Duration::from_secs(5);
/// Between two rescans where nothing reports the first and last process of a pod, or those put into it later.
const RESCAN_UNREPORTED: Duration = Duration::from_millis(500);
/// The PSI safety net: half of what a task can stall in a window of half a second before it is worth a look.
const PSI: (Stall, u32, u32) = (Stall::Some, 20, 500);
/// "Medium" is when the kernel has to scan more than twice the pages that it frees; "low" is ordinary page cache at
/// work.
const PRESSURE_LEVEL: PressureLevel = PressureLevel::Medium;
/// The kernel signals that for each 512 pages scanned.
const PRESSURE_LEVEL_PACE: Duration = Duration::from_millis(10);
/// The kernel signals a change of one `memory.events` every 10 ms, for as long as a pod is at its limit.
const POD_EVENTS_PACE: Duration = Duration::from_millis(100);
/// A pod that may make cgroups can change directories all the time, and have all of them walked for as long.
const CGROUPS_PACE: Duration = Duration::from_millis(100);

/// Why the loop has woken.
#[derive(Debug)]
pub(super) enum Wake {
    /// The kernel has sent records, of what is urgent or of cgroups; both rings are read in every turn.
    Records,
    /// A descriptor calls for a sample.
    Sample(Cause),
    /// Memory events of pods.
    PodEvents,
    /// A cgroup directory came or went.
    Cgroups,
    /// One of the [`Deadlines`] is over.
    Deadline,
    /// SIGINT or SIGTERM.
    Stop,
    /// Manifests came, changed or went.
    Manifests(ManifestChange),
    /// `plimsoll-cluster` has said something.
    Cluster(ClusterEvent),
    /// `plimsoll-runtime nri` has said something.
    Nri(FromNri),
    /// What the kubelet says of devices that it has given to containers; `None`: it does not say any more.
    Devices(Option<Arc<ListedDevices>>),
    /// The threads that look after disks.
    Storage(StorageEvent),
    /// The thread for remedies.
    Remedy(remedies::Report),
    /// The thread for placement.
    Placement(placement::Report),
    /// The thread for CPU time.
    Cpu(cpu_time::Report),
    /// A thread has done something that the loop takes in by itself.
    News,
    /// A client asks for a snapshot.
    Snapshot(oneshot::Sender<Snapshot>),
    /// A source has failed and is not waited for any more.
    Lost(Lost),
}

/// A source that has failed.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) name: SourceName,
    pub(super) error: String,
}

/// The optional sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceName {
    CriticalRing,
    LifecycleRing,
    PsiTrigger,
    StallTriggers,
    Usage,
    PressureLevel,
    PodEvents,
    CgroupWatch,
    Manifests,
    Cluster,
    Nri,
    Devices,
    Storage,
    Remedies,
    Placement,
    CpuTime,
    Snapshots,
}

impl SourceName {
    /// All of them.
    #[cfg(test)]
    pub(super) const ALL: [Self; 17] = [
        Self::CriticalRing,
        Self::LifecycleRing,
        Self::PsiTrigger,
        Self::StallTriggers,
        Self::Usage,
        Self::PressureLevel,
        Self::PodEvents,
        Self::CgroupWatch,
        Self::Manifests,
        Self::Cluster,
        Self::Nri,
        Self::Devices,
        Self::Storage,
        Self::Remedies,
        Self::Placement,
        Self::CpuTime,
        Self::Snapshots,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::CriticalRing => "the ring buffer of urgent records",
            Self::LifecycleRing => "the ring buffer of cgroup records",
            Self::PsiTrigger => "the PSI trigger",
            Self::StallTriggers => "the PSI triggers of thresholds",
            Self::Usage => "the cgroup v1 usage notification",
            Self::PressureLevel => "memory.pressure_level",
            Self::PodEvents => "the memory events of pods",
            Self::CgroupWatch => "the watch of the cgroup directories",
            Self::Manifests => "the watch of the manifests",
            Self::Cluster => "the thread for plimsoll-cluster",
            Self::Nri => "the thread for NRI",
            Self::Devices => "the thread for what the kubelet has given",
            Self::Storage => "the reading of disks",
            Self::Remedies => "the thread for remedies",
            Self::Placement => "the thread for placement",
            Self::CpuTime => "the thread for CPU time",
            Self::Snapshots => "the server of snapshots",
        }
    }

    /// What follows from its loss; where the ladder knows it, in the ladder's words.
    fn loss(self) -> &'static str {
        match self {
            Self::CriticalRing | Self::Usage => lowest_rung(LadderSignal::MemoryThreshold),
            Self::LifecycleRing | Self::CgroupWatch => lowest_rung(LadderSignal::CgroupLifecycle),
            Self::PressureLevel => lowest_rung(LadderSignal::NodeReclaim),
            Self::PsiTrigger => {
                "nothing wakes plimsoll when tasks stall on memory and all else is silent"
            }
            Self::StallTriggers => "averages of pressure are seen by the next sample, not at once",
            Self::PodEvents => "events at pods' limits are seen by the next rescan, not at once",
            Self::Manifests => "pods that come or go from now on are not known",
            Self::Cluster => "names of new pods are not known, and evictions are not reported",
            Self::Nri => "scores, holds and CPUs are applied when a container has started",
            Self::Devices => "containers are not placed near to their devices",
            Self::Storage => "disk thresholds get no new figures, so no pod is evicted for them",
            Self::Remedies => "results of remedies are seen only in samples",
            Self::Placement => {
                "containers that come from now on are not placed, nor is anything moved"
            }
            Self::CpuTime => "CPU quotas stay as last set",
            Self::Snapshots => {
                "commands that ask the agent (explain, top, health and others) get no answer"
            }
        }
    }
}

/// What is lost when a signal is left to sampling.
fn lowest_rung(signal: LadderSignal) -> &'static str {
    let row = LADDER.iter().find(|row| row.signal == signal);
    row.and_then(|row| row.rungs.last())
        .map_or("", |rung| rung.lost)
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, error } = self;
        write!(
            f,
            "{} failed and is no longer used: {error}; {}; restart plimsoll to use it again",
            name.name(),
            name.loss()
        )
    }
}

/// What wakes the loop.
#[derive(Debug)]
pub struct Sources {
    records: Source,
    psi: Source,
    /// PSI triggers that thresholds on pressure signals need.
    stalls: Source,
    usage: Source,
    /// The root cgroup, where the usage notification of cgroup v1 is armed anew after each sample.
    usage_root: Option<MemcgV1>,
    /// `memory.pressure_level` of cgroup v1.
    pressure_level: Source,
    /// `memory.events` and its like of all pods.
    pod_events: Source,
    lifecycle: Source,
    cgroups: Source,
    /// Of these, directories without a watch: [`CgroupWatch::unwatched`].
    unwatched: Arc<AtomicU64>,
    manifests: Option<mpsc::Receiver<ManifestChange>>,
    manifest_watch: Option<ManifestWatch>,
    cluster: Option<ClusterEvents>,
    nri: Option<NriEvents>,
    devices: Option<mpsc::Receiver<Option<Arc<ListedDevices>>>>,
    storage: Option<mpsc::Receiver<StorageEvent>>,
    remedies: Option<remedies::Reports>,
    placement: Option<placement::Reports>,
    cpu_time: Option<cpu_time::Reports>,
    snapshots: Option<SnapshotRequests>,
    /// Of threads that have no channel of messages.
    news: Arc<Notify>,
    /// Between two rescans.
    pub(super) rescan_period: Duration,
    /// Records report every cgroup and process that comes or goes.
    pub(super) reports_cgroups: bool,
}

/// A descriptor that wakes the loop, or the place of one that this machine does not have.
#[derive(Debug)]
struct Source {
    name: SourceName,
    watched: Option<Watched>,
    /// The kernel can signal much more often than there is a point in looking.
    pace: Duration,
    not_before: Option<Instant>,
}

struct Watched {
    // Dropped first: a descriptor must be deregistered before its source ends.
    fd: AsyncFd<OwnedFd>,
    interest: Interest,
    /// Takes what has arrived, so that the descriptor can become ready again.
    take: Box<dyn FnMut() -> Result<Taken> + Send>,
    /// It has left something to do, and the descriptor need not be ready for that.
    has_more: bool,
}

/// What came of taking what has arrived.
#[derive(Debug, Clone, Copy)]
struct Taken {
    /// The loop is to know of it.
    is_news: bool,
    /// Something is left to do.
    has_more: bool,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched")
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

impl Watched {
    fn new(
        fd: BorrowedFd<'_>,
        interest: Interest,
        mut take: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let all = Taken {
            is_news: true,
            has_more: false,
        };
        Self::in_parts(fd, interest, move || take().map(|()| all))
    }

    /// What has arrived is taken a part at a time.
    fn in_parts(
        fd: BorrowedFd<'_>,
        interest: Interest,
        take: impl FnMut() -> Result<Taken> + Send + 'static,
    ) -> Result<Self> {
        // A failure is waited for as well: else its descriptor would be silent for ever.
        let interest = interest.add(Interest::ERROR);
        Ok(Self {
            fd: watch(fd, interest)?,
            interest,
            take: Box::new(take),
            has_more: false,
        })
    }

    /// Waits until there is something, and takes it. Returns whether it is news.
    async fn ready(&mut self) -> Result<bool> {
        if !self.has_more {
            let mut guard = self.fd.ready(self.interest).await?;
            let ready = guard.ready();
            guard.clear_ready();
            // Of all that is waited for, nothing has another end that could be closed.
            anyhow::ensure!(!ready.is_read_closed(), "its descriptor was closed");
            anyhow::ensure!(!ready.is_error(), "its descriptor reports an error");
        }
        let taken = (self.take)()?;
        self.has_more = taken.has_more;
        Ok(taken.is_news)
    }
}

impl Source {
    fn absent(name: SourceName) -> Self {
        Self {
            name,
            watched: None,
            pace: Duration::ZERO,
            not_before: None,
        }
    }

    fn paced(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Not waited for before this.
    fn rest_until(&mut self, at_ns: u64) {
        let wait_ns = at_ns.saturating_sub(now_ns());
        self.not_before = (wait_ns > 0).then(|| Instant::now() + Duration::from_nanos(wait_ns));
    }

    /// Waits until there is something, for ever without a descriptor.
    async fn next(&mut self, wake: Wake) -> Wake {
        let Some(watched) = &mut self.watched else {
            return std::future::pending().await;
        };
        loop {
            if let Some(at) = self.not_before {
                tokio::time::sleep_until(at).await;
            }
            match watched.ready().await {
                Ok(is_news) => {
                    self.not_before = (!self.pace.is_zero()).then(|| Instant::now() + self.pace);
                    if is_news {
                        return wake;
                    }
                }
                Err(error) => return self.lose(&error),
            }
        }
    }

    fn lose(&mut self, error: &anyhow::Error) -> Wake {
        self.watched = None;
        Wake::Lost(Lost {
            name: self.name,
            error: format!("{error:#}"),
        })
    }
}

/// Receives the next message. Without a channel it waits for ever; a closed channel is reported as lost.
async fn message<T>(
    name: SourceName,
    messages: &mut Option<mpsc::Receiver<T>>,
    wake: fn(T) -> Wake,
) -> Wake {
    let Some(receiver) = messages else {
        return std::future::pending().await;
    };
    match receiver.recv().await {
        Some(message) => wake(message),
        None => {
            *messages = None;
            let error = "its thread has ended".to_owned();
            Wake::Lost(Lost { name, error })
        }
    }
}

/// Waits for a time. One that is over lets the runtime look at the descriptors once more.
async fn until(at_ns: u64) {
    match at_ns.saturating_sub(now_ns()) {
        0 => tokio::task::yield_now().await,
        wait_ns => tokio::time::sleep(Duration::from_nanos(wait_ns)).await,
    }
}

/// What [`Sources::open`] goes by, and where it says what is left out.
struct Opening<'a> {
    report: &'a HostReport,
    reporter: &'a mut Reporter,
}

impl Opening<'_> {
    /// Whether the ladder has chosen it, for this signal or for any.
    fn is_chosen(&self, mechanism: Mechanism, signal: Option<LadderSignal>) -> bool {
        self.report.choices.iter().any(|choice| {
            choice.mechanism == mechanism && signal.is_none_or(|signal| choice.signal == signal)
        })
    }

    /// The root of the memory hierarchy of cgroup v1, where its events are chosen for the signal.
    fn v1_root_for(
        &self,
        signal: LadderSignal,
        mounts: &CgroupMounts,
    ) -> Option<Result<MemcgV1, MemcgV1Error>> {
        let is_chosen = self.is_chosen(Mechanism::EventControl, Some(signal));
        is_chosen.then(|| v1_root(mounts)).flatten()
    }

    fn leave_out(&mut self, name: SourceName, error: &anyhow::Error) {
        self.reporter.say(&Line::Warning {
            text: format!("{} is left out: {error:#}; {}", name.name(), name.loss()),
        });
    }

    /// One that cannot be opened is left out with a warning.
    fn source(&mut self, name: SourceName, watched: Option<Result<Watched>>) -> Source {
        let mut source = Source::absent(name);
        match watched {
            Some(Ok(watched)) => source.watched = Some(watched),
            Some(Err(error)) => self.leave_out(name, &error),
            None => {}
        }
        source
    }

    /// Whether cgroups can be found by the ids that records have.
    fn can_name_cgroups(&mut self, mounts: &CgroupMounts) -> bool {
        match names_cgroups(mounts) {
            Ok(_) => true,
            Err(why) => {
                self.reporter.say(&Line::Warning {
                    text: format!(
                        "cgroups that come and go are looked for every {} ms: {why}",
                        RESCAN_UNREPORTED.as_millis()
                    ),
                });
                false
            }
        }
    }
}

impl Sources {
    /// Without any.
    pub(super) fn none() -> Self {
        Self {
            records: Source::absent(SourceName::CriticalRing),
            lifecycle: Source::absent(SourceName::LifecycleRing),
            psi: Source::absent(SourceName::PsiTrigger),
            stalls: Source::absent(SourceName::StallTriggers),
            usage: Source::absent(SourceName::Usage),
            usage_root: None,
            pressure_level: Source::absent(SourceName::PressureLevel),
            pod_events: Source::absent(SourceName::PodEvents),
            cgroups: Source::absent(SourceName::CgroupWatch),
            unwatched: Arc::default(),
            manifests: None,
            cluster: None,
            nri: None,
            devices: None,
            manifest_watch: None,
            storage: None,
            remedies: None,
            placement: None,
            cpu_time: None,
            snapshots: None,
            news: Arc::default(),
            reports_cgroups: false,
            rescan_period: RESCAN_UNREPORTED,
        }
    }

    /// Waits for whatever comes first; of several, for what is most urgent. `urgent` is called as soon as there are
    /// urgent records: to give up waiting for all the others takes longer than most of what is to be done.
    pub(super) async fn next(
        &mut self,
        deadlines: &Deadlines,
        stop: &mut StopSignals,
        urgent: impl FnOnce(),
    ) -> Wake {
        let records = async {
            let wake = self.records.next(Wake::Records).await;
            if matches!(wake, Wake::Records) {
                urgent();
            }
            wake
        };
        tokio::select! {
            biased;
            wake = records => wake,
            wake = self.psi.next(Wake::Sample(Cause::PressureStall)) => wake,
            wake = self.stalls.next(Wake::Sample(Cause::PressureStall)) => wake,
            wake = self.usage.next(Wake::Sample(Cause::MemoryEvent)) => wake,
            wake = self.pressure_level.next(Wake::Sample(Cause::PressureStall)) => wake,
            wake = self.pod_events.next(Wake::PodEvents) => wake,
            wake = message(SourceName::Remedies, &mut self.remedies, Wake::Remedy) => wake,
            wake = self.lifecycle.next(Wake::Records) => wake,
            () = until(deadlines.earliest_ns()) => Wake::Deadline,
            () = stop.received() => Wake::Stop,
            wake = message(SourceName::Manifests, &mut self.manifests, Wake::Manifests) => wake,
            wake = message(SourceName::Cluster, &mut self.cluster, Wake::Cluster) => wake,
            wake = message(SourceName::Nri, &mut self.nri, Wake::Nri) => wake,
            wake = message(SourceName::Devices, &mut self.devices, Wake::Devices) => wake,
            wake = message(SourceName::Placement, &mut self.placement, Wake::Placement) => wake,
            wake = message(SourceName::CpuTime, &mut self.cpu_time, Wake::Cpu) => wake,
            wake = message(SourceName::Storage, &mut self.storage, Wake::Storage) => wake,
            wake = self.cgroups.next(Wake::Cgroups) => wake,
            () = self.news.notified() => Wake::News,
            wake = message(SourceName::Snapshots, &mut self.snapshots, Wake::Snapshot) => wake,
        }
    }

    /// The lifecycle ring is not read before this.
    pub(super) fn pause_lifecycle_until(&mut self, at_ns: u64) {
        self.lifecycle.rest_until(at_ns);
    }

    /// A source is gone; what it reported has to be read more often.
    pub(super) fn without(&mut self, name: SourceName) {
        if name == SourceName::LifecycleRing {
            self.reports_cgroups = false;
            self.rescan_period = RESCAN_UNREPORTED;
        }
    }

    /// Arms the cgroup v1 notification at the usage that the newest headroom allows. Returns what went wrong.
    pub(super) fn arm_usage(&mut self, headroom_bytes: Option<u64>) -> Option<Wake> {
        let root = self.usage_root.as_ref()?;
        self.usage.watched = None;
        match watch_usage(root, headroom_bytes?) {
            Ok(watched) => {
                self.usage.watched = Some(watched);
                None
            }
            Err(error) => {
                self.usage_root = None;
                Some(self.usage.lose(&error))
            }
        }
    }

    /// Opens what the ladder has chosen.
    ///
    /// # Errors
    /// When the ring buffer of urgent records cannot be registered. Any other source that cannot be opened is left out
    /// with a warning.
    pub fn open(
        host: &HostRoot,
        mounts: &CgroupMounts,
        kubepods: &CgroupPath,
        bpf: Option<&Bpf>,
        report: &HostReport,
        reporter: &mut Reporter,
    ) -> Result<Self> {
        let mut opening = Opening { report, reporter };
        let ring = |fd| Watched::new(fd, Interest::READABLE, || Ok(()));
        // Without the first ring nothing is urgent any more: that is not optional where there are programs.
        let records = Source {
            watched: bpf
                .map(|bpf| ring(bpf.critical_fd()))
                .transpose()
                .context("cannot register the BPF ring buffer with epoll")?,
            ..Source::absent(SourceName::CriticalRing)
        };
        let lifecycle = opening.source(
            SourceName::LifecycleRing,
            bpf.map(|bpf| ring(bpf.lifecycle_fd())),
        );
        let is_psi = opening.is_chosen(Mechanism::Psi, None);
        let psi = opening.source(SourceName::PsiTrigger, is_psi.then(|| watch_psi(host)));
        let usage_root = opening.v1_root_for(LadderSignal::MemoryThreshold, mounts);
        let level_root = opening.v1_root_for(LadderSignal::NodeReclaim, mounts);
        let pressure_level = opening.source(
            SourceName::PressureLevel,
            level_root.map(|root| watch_pressure_level(&root?)),
        );
        let unwatched = Arc::new(AtomicU64::new(0));
        let is_inotify = opening.is_chosen(Mechanism::Inotify, None);
        let cgroups = opening.source(
            SourceName::CgroupWatch,
            is_inotify.then(|| watch_cgroups(mounts, kubepods, Arc::clone(&unwatched))),
        );
        let usage_root = usage_root.and_then(|root| {
            root.map_err(|error| opening.leave_out(SourceName::Usage, &error.into()))
                .ok()
        });
        let reports_cgroups = lifecycle.watched.is_some()
            && bpf.is_some_and(reports_cgroups)
            && opening.can_name_cgroups(mounts);
        Ok(Self {
            records,
            lifecycle,
            psi,
            usage_root,
            pressure_level: pressure_level.paced(PRESSURE_LEVEL_PACE),
            cgroups: cgroups.paced(CGROUPS_PACE),
            unwatched,
            reports_cgroups,
            rescan_period: if reports_cgroups {
                RESCAN_REPORTED
            } else {
                RESCAN_UNREPORTED
            },
            ..Self::none()
        })
    }

    /// Directories of cgroups that inotify does not watch, as of the last change; `None` if it watches none.
    pub(super) fn cgroups_unwatched(&self) -> Option<u64> {
        let watched = self.cgroups.watched.as_ref();
        watched.map(|_| self.unwatched.load(Ordering::Relaxed))
    }

    /// Waits for the stalls that thresholds on pressure signals need, too. A trigger that cannot be had is left out
    /// with a warning: averages are then seen by the next sample.
    ///
    /// # Errors
    /// When they cannot be registered with epoll.
    pub fn watch_stalls(
        &mut self,
        host: &HostRoot,
        wanted: &[StallTrigger],
        reporter: &mut Reporter,
    ) -> Result<()> {
        let armed = ArmedTriggers::arm(host, wanted, |error| {
            reporter.say(&Line::Warning {
                text: format!("a PSI trigger for a threshold is left out: {error}"),
            });
        })?;
        if let Some(armed) = armed {
            let fd = armed.as_fd().try_clone_to_owned()?;
            let watched = Watched::new(fd.as_fd(), Interest::READABLE, move || Ok(armed.take()?))?;
            self.stalls.watched = Some(watched);
        }
        Ok(())
    }

    /// Follows the manifests in a directory, by a thread.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn watch_manifests(&mut self, dir: &Path, ground: AdmissionContext) -> Result<()> {
        let (sender, manifests) = mpsc::channel(MANIFEST_CHANGES);
        self.manifests = Some(manifests);
        let watch = ManifestWatch::spawn(dir, Some(ground), move |change| {
            sender.blocking_send(change).is_ok()
        });
        self.manifest_watch = Some(watch?);
        Ok(())
    }

    /// Whether pods come from manifests.
    pub(super) fn has_manifests(&self) -> bool {
        self.manifests.is_some()
    }

    /// Where the thread that follows manifests is told which pods have left.
    pub(super) fn take_left_pods(&mut self) -> Option<LeftPods> {
        self.manifest_watch.as_mut()?.take_left_pods()
    }

    /// Listens to the thread for `plimsoll-cluster` too.
    pub fn watch_cluster(&mut self, events: ClusterEvents) {
        self.cluster = Some(events);
    }

    /// Listens to the thread for NRI too.
    pub fn watch_nri(&mut self, events: NriEvents) {
        self.nri = Some(events);
    }

    /// Listens to what the kubelet says of devices too.
    pub fn watch_devices(&mut self, given: mpsc::Receiver<Option<Arc<ListedDevices>>>) {
        self.devices = Some(given);
    }

    /// Wakes the loop for the news of threads too.
    pub fn watch_news(&mut self, news: Arc<Notify>) {
        self.news = news;
    }

    /// Answers these questions for snapshots too.
    pub fn give_snapshots_to(&mut self, requests: SnapshotRequests) {
        self.snapshots = Some(requests);
    }

    /// Listens to the threads that look after disks too.
    pub fn watch_disks(&mut self, events: mpsc::Receiver<StorageEvent>) {
        self.storage = Some(events);
    }

    /// Listens to the thread for remedies too.
    pub fn watch_remedies(&mut self, reports: remedies::Reports) {
        self.remedies = Some(reports);
    }

    /// Listens to the thread for placement too.
    pub fn watch_placement(&mut self, reports: placement::Reports) {
        self.placement = Some(reports);
    }

    /// Listens to the thread for CPU time too.
    pub fn watch_cpu_time(&mut self, reports: cpu_time::Reports) {
        self.cpu_time = Some(reports);
    }

    /// Waits for the memory events of pods too, if any are watched.
    ///
    /// # Errors
    /// When their descriptor cannot be registered with epoll.
    pub fn watch_pods(&mut self, limits: &Limits) -> Result<()> {
        let Some(events) = limits.events() else {
            return Ok(());
        };
        let fd = events.as_fd();
        let taken = events.try_clone().context("the pods' memory events")?;
        self.pod_events.watched = Some(Watched::new(fd, Interest::READABLE, move || {
            Ok(taken.take().map(|_| ())?)
        })?);
        self.pod_events.pace = POD_EVENTS_PACE;
        Ok(())
    }
}

/// The PSI trigger of the node.
fn watch_psi(host: &HostRoot) -> Result<Watched> {
    let (stall, stall_ms, window_ms) = PSI;
    let trigger = Trigger::new(stall, stall_ms, window_ms)?;
    let psi = PsiTrigger::arm_as_allowed(host.procfs("pressure/memory"), trigger)?;
    let fd = psi.as_fd().try_clone_to_owned()?;
    Watched::new(fd.as_fd(), Interest::PRIORITY, move || {
        // Armed for as long as it is held here.
        let _ = &psi;
        Ok(())
    })
}

/// The memory controller's root on cgroup v1; `None` on v2, or without it.
fn v1_root(mounts: &CgroupMounts) -> Option<Result<MemcgV1, MemcgV1Error>> {
    let memory = mounts.hierarchy_of(Controller::Memory).ok()?;
    (memory.version == Version::V1).then(|| MemcgV1::open(&memory.dir(&CgroupPath::default())))
}

/// Directories that come and go below the cgroup of all pods. `unwatched` is how many of them are not watched.
fn watch_cgroups(
    mounts: &CgroupMounts,
    kubepods: &CgroupPath,
    unwatched: Arc<AtomicU64>,
) -> Result<Watched> {
    let memory = mounts.hierarchy_of(Controller::Memory)?;
    let mut cgroups = CgroupWatch::open(&memory.dir(kubepods))?;
    let fd = cgroups.as_fd().try_clone_to_owned()?;
    let show = move |cgroups: &CgroupWatch| {
        let count = u64::try_from(cgroups.unwatched()).unwrap_or(u64::MAX);
        unwatched.store(count, Ordering::Relaxed);
    };
    show(&cgroups);
    let has_more = cgroups.has_more();
    // Which cgroup it was does not matter: every wanted pod is rescanned.
    let watched = Watched::in_parts(fd.as_fd(), Interest::READABLE, move || {
        let missed = |cgroups: &CgroupWatch| (cgroups.overflows(), cgroups.beyond());
        let missed_before = missed(&cgroups);
        let changes = cgroups.changes()?;
        show(&cgroups);
        Ok(Taken {
            is_news: !changes.is_empty() || missed(&cgroups) != missed_before,
            has_more: cgroups.has_more(),
        })
    })?;
    Ok(Watched {
        has_more,
        ..watched
    })
}

/// Whether reports of cgroups name them as they are named here; else why not.
fn names_cgroups(mounts: &CgroupMounts) -> Result<(), String> {
    let hierarchy = mounts.hierarchy_of(Controller::Memory);
    let hierarchy = hierarchy.map_err(|error| error.to_string())?;
    let mount = hierarchy.mount.shown();
    match hierarchy.is_whole() {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "{mount} is a part of a hierarchy, as where the node itself is a container, and the kernel reports paths from the root of the whole"
        )),
        Err(error) => Err(format!("{mount}: {error}")),
    }
}

/// Whether all that happens to cgroups is reported.
fn reports_cgroups(bpf: &Bpf) -> bool {
    [
        "cgroup_mkdir",
        "cgroup_rmdir",
        "cgroup_notify_populated",
        "cgroup_attach_task",
    ]
    .iter()
    .all(|program| bpf.is_attached(program))
}

fn watch_pressure_level(memcg: &MemcgV1) -> Result<Watched> {
    let source = memcg.notify_pressure(PRESSURE_LEVEL)?;
    let fd = source.as_fd().try_clone_to_owned()?;
    Watched::new(fd.as_fd(), Interest::READABLE, move || {
        Ok(source.take().map(|_| ())?)
    })
}

/// The notification on the node's usage, `headroom_bytes` above what it is now.
fn watch_usage(root: &MemcgV1, headroom_bytes: u64) -> Result<Watched> {
    let at_bytes = root.usage_bytes()?.saturating_add(headroom_bytes.max(1));
    let source = root.notify_at(at_bytes)?;
    let fd = source.as_fd().try_clone_to_owned()?;
    Watched::new(fd.as_fd(), Interest::READABLE, move || {
        Ok(source.take().map(|_| ())?)
    })
}

#[cfg(test)]
mod tests;
