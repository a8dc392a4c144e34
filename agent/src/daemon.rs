//! The agent's loop: next wake → turn.
//!
//! Problem: from a record of the kernel to the signal that ends a pod there is no time, and perhaps no memory.
//! Approach: one thread, one loop. [`wake`] is what it waits for, [`deadlines`] is when it acts by itself, [`turn`] is
//! what it does then: react first, everything else afterwards. Journal and output are written by other threads, and so
//! is everything that blocks.
//!
//! Terms: *urgent* work is what leads to a kill; a *rescan* brings what is known of pods up to date, when the loop has
//! nothing urgent.

pub mod limits;
pub mod node_meters;
pub mod pod_meters;
pub mod sampler;
pub mod start;

mod admission;
mod cpu;
mod deadlines;
mod features;
mod findings;
mod kubelet;
mod last_line;
mod lifecycle;
mod manifests;
mod node_cgroup;
mod nri;
mod oom_kills;
mod oom_scores;
mod placement;
mod pod_warnings;
mod reclaim_reader;
mod remedies;
mod rescan;
mod state_dir_full;
mod storage;
mod telling;
mod turn;
mod wake;
pub mod watchdog;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use plimsoll_core::engine::Engine;
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::event::Sample;
use tokio::sync::oneshot;

use crate::act::kubepods::Kubepods;
use crate::act::memory_release::MemoryRelease;
use crate::daemon::limits::Limits;
use crate::daemon::sampler::Sampler;
use crate::host::HostRoot;
use crate::host::clock::now_ns;
use crate::host::stop::StopSignals;
use crate::kernel::{AccountReport, Bpf};
use crate::pods::kill::WriteTimes;
use crate::pods::registry::Pods;
use crate::record::journal::Journal;
use crate::record::lines::Reporter;
use crate::record::snapshot::Snapshot;
use crate::record::tally::Tally;
use crate::record::timeline::{Hops, Timelines};

use admission::AdmissionWork;
use deadlines::Deadlines;
pub use kubelet::KubeletWork;
pub use last_line::LastLine;
use lifecycle::LifecyclePace;
pub use nri::NriWork;
use oom_kills::OomKills;
pub use oom_scores::OomWork;
pub use placement::PlacementWork;
use rescan::Rescans;
pub use storage::StorageWork;
pub use telling::Ending;
use telling::{Announcement, Said};
use turn::{Unanswered, Unsettled};
pub use wake::Sources;
use wake::{Lost, Wake};
use watchdog::{Heartbeat, Watchdog};

/// Decisions, and steps, that one sample can lead to before a buffer grows: two for each pod that is leaving, and a
/// handful.
const DECISIONS: usize = 256;

/// The agent, ready to run.
pub struct Agent {
    engine: Engine,
    pods: Pods,
    sampler: Sampler,
    bpf: Option<Bpf>,
    journal: Option<Journal>,
    reporter: Reporter,
    timelines: Timelines,
    /// Reused for every sample.
    sample: Sample,
    /// How the newest reaction went.
    hops: Hops,
    unsettled: Unsettled,
    leaving: Vec<PodUid>,
    unanswered: Unanswered,
    limits: Limits,
    admission: AdmissionWork,
    oom_kills: OomKills,
    oom: OomWork,
    /// `None`: the cgroups above the pods are left as they are.
    kubepods: Option<Kubepods>,
    /// `None`: no kubelet runs the pods.
    kubelet: Option<KubeletWork>,
    /// `None`: no runtime asks.
    nri: Option<NriWork>,
    /// `None`: disks are not watched.
    storage: Option<StorageWork>,
    /// `None`: nothing is tried before an eviction.
    remedies: Option<remedies::RemedyWork>,
    /// `None`: killed pods free their memory by themselves alone.
    memory_release: Option<MemoryRelease>,
    /// `None`: CPU time is not looked after.
    cpu_work: Option<cpu::CpuWork>,
    /// `None`: nothing is placed.
    placement: Option<PlacementWork>,
    /// `None`: there is no last line in the kernel.
    last_line: Option<LastLine>,
    pod_warnings: pod_warnings::PodWarnings,
    tally: Tally,
    started_ns: u64,
    /// When the engine wants the next sample.
    sample_by_ns: u64,
    /// Something has changed that the engine cannot know yet: sample now.
    hurry: bool,
    lost_records: Said,
    lifecycle: LifecyclePace,
    rescans: Rescans,
    /// Pods have begun to run, or ceased, since the last sample: the order of what would go is another now.
    pods_changed: bool,
    keeps_programs: bool,
    /// The ring of urgent records is not waited for any more: charges are as good as not counted.
    has_lost_ring: bool,
    heartbeat: Arc<Heartbeat>,
    /// What came of attending to urgent records before the turn: whether a sample was taken.
    attended: Option<Result<bool>>,
    /// Not said yet: the manifests have not been read.
    announcement: Option<Announcement>,
}

impl Agent {
    /// Takes everything that it needs.
    pub fn new(
        engine: Engine,
        pods: Pods,
        sampler: Sampler,
        limits: Limits,
        bpf: Option<Bpf>,
        journal: Option<Journal>,
        reporter: Reporter,
    ) -> Self {
        let mut oom_kills = OomKills::default();
        if let Some(bpf) = &bpf
            && let Err(error) = oom_kills.folded.begin_after(bpf)
        {
            tracing::warn!(%error, "kills of the kernel's OOM killer before this start are counted again");
        }
        Self {
            engine,
            pods,
            sampler,
            bpf,
            journal,
            reporter,
            timelines: Timelines::default(),
            sample: Sample::default(),
            hops: Hops::default(),
            unsettled: Unsettled::with_room_for(DECISIONS),
            leaving: Vec::with_capacity(DECISIONS),
            unanswered: Unanswered::default(),
            limits,
            admission: AdmissionWork::default(),
            oom_kills,
            oom: OomWork::default(),
            kubepods: None,
            kubelet: None,
            nri: None,
            storage: None,
            remedies: None,
            memory_release: None,
            cpu_work: None,
            placement: None,
            last_line: None,
            pod_warnings: pod_warnings::PodWarnings::default(),
            tally: Tally::default(),
            started_ns: now_ns(),
            sample_by_ns: 0,
            hurry: true,
            lost_records: Said::default(),
            lifecycle: LifecyclePace::default(),
            // How often is known with the sources.
            rescans: Rescans::new(Duration::ZERO),
            pods_changed: false,
            keeps_programs: false,
            has_lost_ring: false,
            heartbeat: Arc::default(),
            attended: None,
            announcement: None,
        }
    }

    /// Also keeps the order in which the kernel's OOM killer chooses.
    pub fn with_oom(mut self, oom: OomWork) -> Self {
        self.oom = oom;
        self
    }

    /// Also frees the memory of killed pods.
    #[must_use]
    pub fn with_memory_release(mut self, release: Option<MemoryRelease>) -> Self {
        self.memory_release = release;
        self
    }

    /// Also keeps the cgroups above the pods.
    pub fn with_kubepods(mut self, kubepods: Option<Kubepods>) -> Self {
        self.kubepods = kubepods;
        self
    }

    /// Also watches disks.
    pub fn with_storage(mut self, storage: StorageWork) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Leaves the BPF programs where they are when it ends, if they are pinned.
    pub fn keeping_programs(mut self, keeps: bool) -> Self {
        self.keeps_programs = keeps;
        self
    }

    /// Runs until SIGINT or SIGTERM, or until the node's memory can no longer be read or the loop cannot wait: then the
    /// result says so. No pod is held back any more afterwards.
    pub async fn run(mut self, sources: Sources, stop: StopSignals) -> (Ending, Result<()>) {
        let result = self.serve(sources, stop).await;
        if result.is_err() {
            self.leave_last_line();
        }
        self.end_features();
        self.report_oom_kills(u64::MAX);
        (Ending(self), result)
    }

    async fn serve(&mut self, mut sources: Sources, mut stop: StopSignals) -> Result<()> {
        let watchdog = Watchdog::start(&HostRoot::live(), Arc::clone(&self.heartbeat));
        let _watchdog = match watchdog {
            Ok(watchdog) => Some(watchdog),
            Err(error) => {
                self.warn(format!(
                    "the watchdog thread cannot be started, so a hung loop is not noticed: {error}"
                ));
                None
            }
        };
        self.begin_features(&mut sources);
        if !sources.has_manifests() {
            // A kubelet's pods come from the network, for which nobody should have to wait.
            self.ready();
        }
        self.rescans = Rescans::new(sources.rescan_period);
        loop {
            let deadlines = self.deadlines();
            let urgent = || self.attend_urgent();
            let wake = sources.next(&deadlines, &mut stop, urgent).await;
            match wake {
                Wake::Stop => return Ok(()),
                wake => self.turn(wake, &deadlines, &mut sources)?,
            }
        }
    }

    /// When the loop has to act by itself.
    fn deadlines(&self) -> Deadlines {
        Deadlines {
            sample_ns: if self.hurry { 0 } else { self.sample_by_ns },
            rescan_ns: self.rescans.at_ns(),
            lifecycle_rest_ns: self.lifecycle.rest_at_ns(),
            oom_kills_ns: self.report_oom_kills_at_ns(),
            last_line_kills_ns: self.last_line_kills_at_ns(),
            last_line_ns: self.last_line.as_ref().map(|line| {
                // A renewal needs a sample, and the node could not be read.
                let at_ns = line.renew_at_ns();
                if self.unanswered.is_pending() {
                    at_ns.max(self.sample_by_ns)
                } else {
                    at_ns
                }
            }),
            oom_scores_ns: self.oom.serve_at_ns(),
            storage_ns: self.storage.as_ref().and_then(StorageWork::order_at_ns),
            kubelet_ns: self.kubelet.as_ref().and_then(KubeletWork::at_ns),
        }
    }

    /// A source has failed: that costs what it was there for, and a warning.
    fn source_lost(&mut self, lost: Lost, sources: &mut Sources) {
        self.tally.sources_lost += 1;
        self.has_lost_ring |= lost.name == wake::SourceName::CriticalRing;
        sources.without(lost.name);
        self.rescans.set_period(sources.rescan_period);
        self.rescans.note_all();
        self.warn(lost.to_string());
        if lost.name == wake::SourceName::Manifests {
            self.ready();
        }
    }

    /// A copy of what the engine knows, for a client on another thread.
    fn give_snapshot(&self, asked: oneshot::Sender<Snapshot>) {
        // The client may have lost patience: then nothing is copied.
        if !asked.is_closed() {
            let limits = self.limits.totals();
            let snapshot = Snapshot {
                config: self.engine.config().clone(),
                state: self.engine.state().clone(),
                limits: limits.map(|(uid, totals)| (uid.clone(), totals)).collect(),
                refused: Arc::clone(&self.admission.refused),
                quotas: Arc::clone(&self.admission.quotas),
                recent_lines: self.reporter.newest(),
                oom_plan: self.oom.plan().cloned(),
                records: self
                    .bpf
                    .as_ref()
                    .and_then(|bpf| bpf.account().ok())
                    .map(|account| AccountReport::from(&account)),
                tally: Tally {
                    cgroup_work_refused: self.pods.work_refused(),
                    kill_writes: {
                        let WriteTimes {
                            count,
                            sum_ns,
                            max_ns,
                        } = self.pods.kill_writes();
                        (count, sum_ns, max_ns)
                    },
                    pod_warnings_left_out: self.pod_warnings.left_out(),
                    releases_refused: self
                        .memory_release
                        .as_ref()
                        .map_or(0, MemoryRelease::refused),
                    lines_lost: self.reporter.lost(),
                    reports: self.kubelet.as_ref().and_then(KubeletWork::counts),
                    placement: self.placement.as_ref().map(PlacementWork::tally),
                    nri: self.nri.as_ref().map(NriWork::tally),
                    journal_steps_lost: self.journal.as_ref().map(Journal::lost),
                    ..self.tally.clone()
                },
            };
            asked.send(snapshot).ok();
        }
    }
}
