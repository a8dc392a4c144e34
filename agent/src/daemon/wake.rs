//! What wakes the loop: [`Sources::next`] waits for all of it, and is the only place that waits.
//!
//! **Problem.** The loop waits for a dozen things, and most of them are optional: a kernel without BPF, a host without
//! PSI, a thread that was not started. Any of them can also fail later, which must cost what it was there for and
//! nothing else. **Approach.** A descriptor is a [`Source`], a thread is a channel, time is [`Deadlines`]; what arrives
//! is a [`Wake`]. A source that fails is closed and comes as [`Wake::Lost`], once: the agent warns in the words of the
//! [ladder](crate::probe::ladder) and goes on with what is left.

mod open;
mod source;
mod source_name;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use plimsoll_core::model::event::Cause;
use plimsoll_core::placement::device::ListedDevices;
use plimsoll_core::protocol::runtime_link::FromNri;
use tokio::sync::{Notify, mpsc, oneshot};

use self::open::{RESCAN_UNREPORTED, watch_usage};
use self::source::Source;
pub(super) use self::source_name::{Lost, SourceName};
use super::deadlines::Deadlines;
use crate::act::{cpu_time, placement, remedies};
use crate::host::clock::now_ns;
use crate::host::stop::StopSignals;
use crate::input::manifests::admission::AdmissionContext;
use crate::input::manifests::{LeftPods, ManifestChange, ManifestWatch};
use crate::record::snapshot::Snapshot;
use crate::serve::control::SnapshotRequests;
use crate::source::cluster::{ClusterEvent, ClusterEvents};
use crate::source::memcg_v1::MemcgV1;
use crate::source::nri::NriEvents;
use crate::storage::StorageEvent;

/// Manifest changes that may wait for the loop; their thread waits beyond.
const MANIFEST_CHANGES: usize = 16;

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
    /// Of these, directories without a watch:
    /// [`CgroupWatch::unwatched`](crate::source::cgroup_watch::CgroupWatch::unwatched).
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

    /// Directories of cgroups that inotify does not watch, as of the last change; `None` if it watches none.
    pub(super) fn cgroups_unwatched(&self) -> Option<u64> {
        let watched = self.cgroups.watched.as_ref();
        watched.map(|_| self.unwatched.load(Ordering::Relaxed))
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
}

#[cfg(test)]
mod tests;
