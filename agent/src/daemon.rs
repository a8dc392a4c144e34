//! The agent's loop: sources → sample → engine → act → say.
//!
//! Problem: from a record of the kernel to the signal that ends a pod there is no time, and perhaps no memory. Approach: one
//! thread, one loop. What wakes it is drained into a single cause; one sample is taken; the engine decides; decisions are
//! carried out at once, in order; only then are journal and output written (by other threads) and slower work done, such as
//! opening the files of new pods. Nothing on the way allocates: the event, its pods, the decisions and the timelines live in
//! buffers of this struct.
//!
//! Terms: *urgent* work is what leads to a kill; *housekeeping* is everything else, done when the loop has nothing urgent.

pub mod limits;
pub mod observer;
pub mod pod_meters;
pub mod sampler;
pub mod start;

mod cpu;
mod disk;
mod last_line;
mod lifecycle;
mod looks;
mod oom_kills;
mod placing;
mod sources;
mod stages;
mod telling;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use plimsoll_core::engine::Engine;
use plimsoll_core::kube::pod::Pod;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Action, Cause, Event, EventKind, Sample};
use plimsoll_core::model::units::PodUid;
use tokio::io::Interest;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::act::kubepods::Kubepods;
use crate::act::oom_group::OomGroups;
use crate::act::oom_order::OomOrdering;
use crate::act::oom_scores::OomScores;
use crate::daemon::limits::Limits;
use crate::daemon::sampler::Sampler;
use crate::host::clock::now_ns;
use crate::host::file::FileError;
use crate::host::stop::StopSignals;
use crate::input::manifests::{ManifestChange, ManifestPod};
use crate::kernel::decode::{Body, OomLimit, ReclaimPhase, Record};
use crate::kernel::{AccountReport, Bpf};
use crate::pods::registry::{Change, Pods};
use crate::record::journal::Journal;
use crate::record::lines::Reporter;
use crate::record::tally::Tally;
use crate::record::timeline::Timelines;
use crate::serve::control::Snapshot;

pub use disk::Disk;
pub use last_line::LastLine;
use lifecycle::LifecyclePace;
use looks::Looks;
use oom_kills::OomKills;
pub use placing::{Placing, Surroundings};
pub use sources::Sources;
use sources::{ready, ready_at, ready_paced, told, usage_reached};
pub use telling::Ending;

/// Records taken in one go; then the loop looks at its other sources.
const RECORDS_PER_TURN: usize = 512;
/// Decisions, and steps, that one sample can lead to before a buffer grows: two for each pod that is leaving, and a handful.
const DECISIONS: usize = 256;
/// Figures that are read anew before one decision. Each could have changed it; the bound is for a node where all pods grow at once.
const FRESHENED_MAX: usize = 16;
/// Outcomes of decisions are events themselves. Each is answered at most so often in one turn.
const OUTCOME_ROUNDS: usize = 4;

/// What a turn of the loop has found.
#[derive(Debug, Default)]
struct Woken {
    cause: Option<Cause>,
    /// A container may have come: a cgroup, or a process into one.
    containers: bool,
}

impl Woken {
    /// Of several causes the most telling is kept: an armed threshold before the watermarks, those before everything else.
    fn by(&mut self, cause: Cause) {
        let weight = |cause: &Cause| match cause {
            Cause::ChargeThreshold { .. } => 4,
            Cause::DirectReclaim { .. } => 3,
            Cause::KswapdWake { .. } => 2,
            Cause::PressureStall | Cause::MemoryEvent | Cause::Lifecycle | Cause::Storage => 1,
            // Rare, and what it answers waits for nothing else.
            Cause::NodeReclaimed => 5,
            Cause::Timer => 0,
        };
        if self
            .cause
            .as_ref()
            .is_none_or(|known| weight(known) < weight(&cause))
        {
            self.cause = Some(cause);
        }
    }
}

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
    /// What has been done and not been written down yet, and the decisions of all these steps.
    steps: Vec<Step>,
    decisions: Vec<Decision>,
    failures: Vec<Failure>,
    /// The first thing that the newest sample could not read.
    sample_failure: Option<String>,
    leaving: Vec<PodUid>,
    limits: Limits,
    oom_kills: OomKills,
    /// `None`: the scores of processes are left as they are.
    oom_scores: Option<OomScores>,
    /// `None`: scores are the kubelet's.
    oom_order: Option<OomOrdering>,
    /// `None`: memory is not on cgroup v2.
    oom_groups: Option<OomGroups>,
    /// `None`: the cgroups above the pods are left as they are.
    kubepods: Option<Kubepods>,
    /// `None`: disks are not watched.
    disk: Option<Disk>,
    /// `None`: nothing is tried before an eviction.
    stages: Option<stages::Stages>,
    /// `None`: CPU time is not looked after.
    cpu_work: Option<cpu::CpuWork>,
    /// `None`: nothing is placed.
    placing: Option<Placing>,
    /// `None`: there is no last line in the kernel.
    last_line: Option<LastLine>,
    not_watched_told: u64,
    tally: Tally,
    started_ns: u64,
    /// When the engine wants the next sample.
    sample_by_ns: u64,
    /// Something has changed that the engine cannot know yet: sample now.
    hurry: bool,
    lost_records_told: u64,
    lifecycle: LifecyclePace,
    looks: Looks,
    /// Pods have begun to run, or ceased, since the last sample: the order of what would go is another now.
    pods_changed: bool,
    keeps_programs: bool,
    /// Records in the rings may be of the time before this process: what was armed then is as good as what is armed now.
    is_first_turn: bool,
}

/// An event that the engine has taken in and that has been acted upon.
#[derive(Debug)]
struct Step {
    event: Event,
    /// Its part of [`Agent::decisions`].
    decisions: Range<usize>,
}

/// A decision that could not be carried out.
#[derive(Debug)]
struct Failure {
    uid: PodUid,
    action: Action,
    error: FileError,
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
        Self {
            engine,
            pods,
            sampler,
            bpf,
            journal,
            reporter,
            timelines: Timelines::default(),
            sample: Sample::default(),
            steps: Vec::with_capacity(DECISIONS),
            decisions: Vec::with_capacity(DECISIONS),
            failures: Vec::with_capacity(DECISIONS),
            sample_failure: None,
            leaving: Vec::with_capacity(DECISIONS),
            limits,
            oom_kills: OomKills::default(),
            oom_scores: None,
            oom_order: None,
            oom_groups: None,
            kubepods: None,
            disk: None,
            stages: None,
            cpu_work: None,
            placing: None,
            last_line: None,
            not_watched_told: 0,
            tally: Tally::default(),
            started_ns: now_ns(),
            sample_by_ns: 0,
            hurry: true,
            lost_records_told: 0,
            lifecycle: LifecyclePace::default(),
            // How often is known with the sources.
            looks: Looks::new(Duration::ZERO),
            pods_changed: false,
            keeps_programs: false,
            is_first_turn: true,
        }
    }

    /// Also keeps the `oom_score_adj` of the pods' processes, in the order of eviction if there is one.
    pub fn with_oom_scores(mut self, scores: OomScores, order: Option<OomOrdering>) -> Self {
        self.oom_scores = Some(scores);
        self.oom_order = order;
        self
    }

    /// Also sets whether the kernel's OOM killer takes processes, containers or pods.
    pub fn with_oom_groups(mut self, groups: Option<OomGroups>) -> Self {
        self.oom_groups = groups;
        self
    }

    /// Also keeps the cgroups above the pods.
    pub fn with_kubepods(mut self, kubepods: Kubepods) -> Self {
        self.kubepods = Some(kubepods);
        self
    }

    /// Also watches disks.
    pub fn with_disk(mut self, disk: Disk) -> Self {
        self.disk = Some(disk);
        self
    }

    /// Leaves the BPF programs where they are when it ends, if they are pinned.
    pub fn keeping_programs(mut self, keeps: bool) -> Self {
        self.keeps_programs = keeps;
        self
    }

    /// Runs until SIGINT or SIGTERM, or until the node's memory can no longer be read or the loop cannot wait: then the result says so. No pod
    /// is held back any more afterwards.
    pub async fn run(mut self, sources: Sources, stop: StopSignals) -> (Ending, Result<()>) {
        let result = self.serve(sources, stop).await;
        if let (Some(scores), Some(_)) = (&mut self.oom_scores, &self.oom_order) {
            scores
                .put_back(&mut |error| tracing::warn!(%error, "an oom_score_adj is not put back"));
        }
        self.tell_oom_kills(u64::MAX);
        self.end_last_line();
        // Each puts back what it holds.
        (self.stages, self.cpu_work, self.placing) = (None, None, None);
        (Ending(self), result)
    }

    async fn serve(&mut self, mut sources: Sources, mut stop: StopSignals) -> Result<()> {
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        let housekeeping = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(housekeeping);
        let mut stage_reports = self.take_stage_reports();
        let mut placement_reports = self.begin_placing();
        let mut cpu_reports = self.take_cpu_reports();
        self.looks = Looks::new(sources.housekeeping);
        loop {
            let mut woken = Woken::default();
            tokio::select! {
                biased;
                ready = ready(sources.critical.as_ref(), Interest::READABLE) => ready?,
                ready = ready(sources.psi.as_ref().map(|psi| &psi.fd), Interest::PRIORITY) => {
                    ready?;
                    woken.by(Cause::PressureStall);
                }
                ready = ready(sources.stalls.as_ref().map(|stalls| &stalls.fd), Interest::READABLE) => {
                    ready?;
                    if let Some(stalls) = &sources.stalls {
                        stalls.source.take()?;
                    }
                    woken.by(Cause::PressureStall);
                }
                fired = usage_reached(sources.usage.as_ref()) => {
                    fired?;
                    woken.by(Cause::MemoryEvent);
                }
                ready = ready_paced(sources.pressure_level.as_ref()) => {
                    ready?;
                    if let Some(level) = &mut sources.pressure_level {
                        level.watched.source.take()?;
                        level.looked_at();
                    }
                    woken.by(Cause::PressureStall);
                }
                ready = ready_paced(sources.pod_events.as_ref()) => {
                    ready?;
                    if let Some(events) = &mut sources.pod_events {
                        events.looked_at();
                    }
                    if self.limits.take_events()? > 0 {
                        woken.by(Cause::MemoryEvent);
                        self.looks.ask();
                    }
                }
                Some(told) = stages::reported(stage_reports.as_mut()) => self.stage_reported(told),
                ready = ready_at(sources.lifecycle.as_ref(), self.lifecycle.wait()) => ready?,
                () = &mut timer => woken.by(Cause::Timer),
                () = stop.received() => break,
                Some(change) = sources.manifests.recv() => self.manifests(change),
                Some(report) = placing::reported(placement_reports.as_mut()) => self.placement_reported(report),
                Some(report) = cpu::reported(cpu_reports.as_mut()) => self.cpu_reported(report),
                event = told(&mut sources.storage) => self.disk_event(event, &mut woken),
                changed = ready(sources.cgroups.as_ref().map(|cgroups| &cgroups.fd), Interest::READABLE) => {
                    changed?;
                    if let Some(cgroups) = &mut sources.cgroups {
                        // Which cgroup it was does not matter: every wanted pod is looked at.
                        if let Err(error) = cgroups.source.changes() {
                            self.warn(error.to_string());
                        }
                    }
                    self.looks.note_all();
                    self.looks.ask();
                    woken.containers = true;
                }
                () = &mut housekeeping => {}
                Some(asked) = sources.snapshots.recv() => self.give_snapshot(asked),
            }
            let sampled = self.attend(&mut woken)?;
            if let (true, Some(usage)) = (sampled, &mut sources.usage) {
                let node = self.engine.state().node.as_ref();
                usage.arm(node.and_then(|node| node.headroom_bytes));
            }
            self.make_up_for_lost_lifecycle();
            self.tell_oom_kills(now_ns());
            self.order_disk_work();
            let is_time = self.looks.at_ns() <= now_ns();
            // Those in cgroups that are not known wait for a look in this turn: a later one finds the cgroup, and all that is in it.
            self.serve_newcomers(!is_time);
            self.order_oom_scores()?;
            if is_time {
                self.housekeeping(sources.tells_of_cgroups)?;
                self.serve_newcomers(true);
            }
            let look_in_ns = self.looks.at_ns().saturating_sub(now_ns());
            let look_at = Instant::now() + Duration::from_nanos(look_in_ns);
            housekeeping.as_mut().reset(look_at);
            self.hurry |= std::mem::take(&mut self.pods_changed);
            let wait_ns = if self.hurry {
                0
            } else {
                let serve_at_ns = self.oom_scores.as_ref().and_then(OomScores::serve_at_ns);
                let renew_at_ns = self.last_line.as_ref().map(LastLine::renew_at_ns);
                let later = [
                    self.tell_oom_kills_at_ns(),
                    self.last_line_kills_at_ns(),
                    serve_at_ns,
                    renew_at_ns,
                ];
                let at_ns = later
                    .into_iter()
                    .flatten()
                    .fold(self.sample_by_ns, u64::min);
                at_ns.saturating_sub(now_ns())
            };
            let wait = Duration::from_nanos(wait_ns);
            timer.as_mut().reset(Instant::now() + wait);
        }
        Ok(())
    }

    /// A copy of what the engine knows, for whoever explains it on another thread.
    fn give_snapshot(&self, asked: oneshot::Sender<Snapshot>) {
        // Whoever asked may have lost patience: then nothing is copied.
        if !asked.is_closed() {
            let limits = self.limits.totals();
            let snapshot = Snapshot {
                config: self.engine.config().clone(),
                state: self.engine.state().clone(),
                limits: limits.map(|(uid, own)| (uid.clone(), own)).collect(),
                told: self.reporter.newest(),
                oom_plan: self.oom_order.as_ref().and_then(OomOrdering::plan).cloned(),
                records: self
                    .bpf
                    .as_ref()
                    .and_then(|bpf| bpf.account().ok())
                    .map(|account| AccountReport::from(&account)),
                tally: Tally {
                    lines_lost: self.reporter.lost(),
                    journal_steps_lost: self.journal.as_ref().map(Journal::lost),
                    ..self.tally.clone()
                },
            };
            asked.send(snapshot).ok();
        }
    }

    /// Does what is urgent: whatever woke us, the kernel's records say more about why. Returns whether a sample was taken.
    fn attend(&mut self, woken: &mut Woken) -> Result<bool> {
        self.drain_critical(woken);
        self.drain_lifecycle(woken);
        self.take_last_line_kills();
        if woken.containers {
            self.containers_came();
        }
        if std::mem::take(&mut self.hurry) {
            woken.by(Cause::Timer);
        }
        let Some(cause) = woken.cause else {
            return Ok(false);
        };
        let reacted = self.react(cause);
        self.renew_last_line();
        self.settle();
        // That sample has answered one question only.
        self.hurry |= cause == Cause::NodeReclaimed;
        reacted.map(|()| true)
    }

    /// Takes what the kernel has sent.
    fn drain_critical(&mut self, woken: &mut Woken) {
        let is_first_turn = std::mem::take(&mut self.is_first_turn);
        let Some(bpf) = &mut self.bpf else { return };
        let armed_bytes = if is_first_turn && bpf.is_taken_over() {
            None
        } else {
            Some(self.engine.state().arming.at_charged_bytes)
        };
        let oom_kills = &mut self.oom_kills;
        let last_line = &mut self.last_line;
        let taken = bpf.drain_critical(RECORDS_PER_TURN, |record| {
            if let Some(last_line) = last_line.as_mut() {
                last_line.record(&record);
            }
            judge(&record, armed_bytes, woken, oom_kills);
        });
        if taken == RECORDS_PER_TURN {
            // There may be more, and the descriptor has been marked as read: come back at once.
            self.hurry = true;
        }
    }

    /// Takes a sample, has the engine judge it, and does at once what it decides. Allocates nothing, unless something cannot
    /// be read or done. [`Agent::settle`] is to follow.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    pub fn react(&mut self, cause: Cause) -> Result<()> {
        let received_ns = now_ns();
        self.look_for_empty_pods(received_ns);
        let charged_bytes = self.bpf.as_ref().and_then(Bpf::charged_bytes);
        if let Some(last_line) = &mut self.last_line {
            last_line.sampling(received_ns, charged_bytes);
        }
        let mut sample = std::mem::take(&mut self.sample);
        sample.storage = self.disk.as_mut().and_then(Disk::take_reading);
        let failure = &mut self.sample_failure;
        self.sampler
            .take(
                cause,
                received_ns,
                charged_bytes,
                &mut self.pods,
                &mut sample,
                |uid, error| {
                    // Told after the decision; one of several is enough to go and look.
                    failure.get_or_insert_with(|| match uid {
                        Some(uid) => format!("pod {uid}: {error}"),
                        None => error.to_string(),
                    });
                },
            )
            .context("the node's memory cannot be read")?;
        for _ in 0..FRESHENED_MAX {
            let Some(stale) = self.engine.stale(&sample, received_ns) else {
                break;
            };
            let freshened = self
                .sampler
                .freshen(stale, received_ns, &mut self.pods, &mut sample);
            if let Err(error) = freshened {
                // The older figure has to do.
                self.sample_failure.get_or_insert_with(|| error.to_string());
                break;
            }
        }
        self.step(received_ns, EventKind::Sample(sample));
        self.outcomes();
        Ok(())
    }

    /// What follows acting: journal, output, and the cleaning up after pods that have left.
    pub fn settle(&mut self) {
        let mut steps = std::mem::take(&mut self.steps);
        let decisions = std::mem::take(&mut self.decisions);
        for step in &steps {
            let decisions = &decisions[step.decisions.clone()];
            if let Some(journal) = &mut self.journal {
                journal.record(&step.event, decisions);
            }
            self.tell_stage(&step.event);
            for decision in decisions {
                self.tell(&step.event, decision);
            }
        }
        if let Some(journal) = &mut self.journal {
            // Not before the last step is in: a new file begins with the state after it.
            journal.next_file_if_full(&self.engine);
        }
        for step in steps.drain(..) {
            if let EventKind::Sample(sample) = step.event.kind {
                self.sample = sample;
            }
        }
        self.steps = steps;
        self.decisions = decisions;
        self.decisions.clear();
        for Failure { uid, error, .. } in std::mem::take(&mut self.failures) {
            self.warn(format!("pod {uid}: {error}"));
        }
        if let Some(text) = self.sample_failure.take() {
            self.warn(text);
        }
    }

    /// Pods on their way out are looked at before each sample: their last process may be gone.
    fn look_for_empty_pods(&mut self, at_ns: u64) {
        self.leaving.clear();
        let leaving = self
            .engine
            .state()
            .pods
            .iter()
            .filter(|(_, pod)| pod.leaving.is_some() && pod.running);
        self.leaving.extend(leaving.map(|(uid, _)| uid.clone()));
        for index in 0..self.leaving.len() {
            let uid = self.leaving[index].clone();
            match self.pods.has_emptied(&uid) {
                Ok(false) => {}
                Ok(true) => {
                    self.timelines.gone(&uid, at_ns);
                    self.step(at_ns, EventKind::PodEmpty { uid });
                }
                Err(error) => self.warn(format!("pod {uid}: {error}")),
            }
        }
    }

    /// One event that is not urgent: decide, act, then write down and say what was done.
    fn take_in(&mut self, kind: EventKind) {
        self.step(now_ns(), kind);
        self.outcomes();
        self.settle();
    }

    /// One event: decide and act.
    fn step(&mut self, at_ns: u64, kind: EventKind) {
        let event = Event { at_ns, kind };
        let mut decisions = std::mem::take(&mut self.decisions);
        let begin = decisions.len();
        self.engine.step(&event, &mut decisions);
        let decided_ns = now_ns();
        if let EventKind::Sample(sample) = &event.kind {
            self.tally
                .reacted(sample.cause, self.started_ns, decided_ns);
        }
        for decision in &decisions[begin..] {
            self.act(&event, decision, decided_ns);
        }
        self.steps.push(Step {
            event,
            decisions: begin..decisions.len(),
        });
        self.decisions = decisions;
    }

    /// Decisions that could not be carried out: the engine is told, and may decide otherwise.
    fn outcomes(&mut self) {
        let mut told = 0;
        for _ in 0..OUTCOME_ROUNDS {
            self.stage_outcomes();
            let end = self.failures.len();
            if told == end {
                return;
            }
            for index in told..end {
                let Failure { uid, action, error } = &self.failures[index];
                let kind = EventKind::Outcome {
                    uid: uid.clone(),
                    action: *action,
                    error: Some(error.to_string()),
                };
                self.step(now_ns(), kind);
            }
            told = end;
        }
    }

    /// Carries out one decision. Allocates only when that fails.
    fn act(&mut self, event: &Event, decision: &Decision, decided_ns: u64) {
        match decision {
            Decision::Evict { uid, reason, .. } => {
                let cause = if let EventKind::Sample(sample) = &event.kind {
                    sample.cause
                } else {
                    Cause::Timer
                };
                self.timelines
                    .decided(uid, reason.signal(), cause, event.at_ns, decided_ns);
                self.terminate(uid);
            }
            Decision::End { uid, .. } => self.terminate(uid),
            Decision::Kill { uid, .. } => match self.pods.kill(uid) {
                Ok(()) => self.timelines.killed(uid, now_ns()),
                Err(error) => self.failed(uid, Action::Kill, error),
            },
            Decision::ReleaseMemory { uid } => {
                // Help only: the kernel frees the memory in any case when the process gets to run.
                if let Err(error) = self.pods.release_memory(uid) {
                    tracing::debug!(%uid, %error, "process_mrelease");
                }
            }
            Decision::Arm { at_charged_bytes } => {
                if let Some(bpf) = &mut self.bpf
                    && let Err(error) = bpf.arm_charges(*at_charged_bytes)
                {
                    tracing::warn!(%error, "the charge threshold cannot be armed; the timer remains");
                }
            }
            Decision::SampleBy { at_ns } => self.sample_by_ns = *at_ns,
            Decision::Reclaim { .. }
            | Decision::StopReclaim { .. }
            | Decision::SetHigh { .. }
            | Decision::ClearHigh { .. }
            | Decision::Notify { .. } => self.act_stage(decision),
            Decision::Place { assignments } => self.place(assignments),
            Decision::ReclaimNode { .. } | Decision::ReadStorageEvery { .. } => {
                if let Some(disk) = &mut self.disk {
                    disk.decided(decision);
                }
            }
            Decision::SetCpu { .. } | Decision::RestoreCpu { .. } => self.act_cpu(decision),
            // Said, and cleaned up after, when everything urgent is done.
            Decision::Finished { .. }
            | Decision::StageEnded { .. }
            | Decision::NoVictim { .. }
            | Decision::Condition { .. }
            | Decision::PlacementRefused { .. }
            | Decision::PlacementLost { .. }
            | Decision::PlacementFailed { .. } => {}
        }
    }

    fn terminate(&mut self, uid: &PodUid) {
        match self.pods.terminate(uid) {
            Ok(_) => self.timelines.signalled(uid, now_ns()),
            Err(error) => self.failed(uid, Action::Terminate, error),
        }
    }

    fn failed(&mut self, uid: &PodUid, action: Action, error: FileError) {
        let uid = uid.clone();
        self.failures.push(Failure { uid, action, error });
    }

    /// The manifests have changed. Opens the files of pods that are there already: not for the hot path.
    pub fn manifests(&mut self, change: ManifestChange) {
        let ManifestChange {
            added,
            changed,
            removed,
            budgets,
            budgets_removed,
            errors,
        } = change;
        for error in errors {
            self.warn(error.to_string());
        }
        for ManifestPod { pod, file, line } in added.into_iter().chain(changed) {
            // Whether it runs by now decides what may change.
            self.look_at(&pod.uid());
            if self.may_resize(&pod) {
                self.apply(pod, &format!("{}:{line}: ", file.display()));
            }
        }
        for uid in removed {
            self.forget_resize(&uid);
            if let Some(disk) = &mut self.disk {
                disk.has_ended(&uid);
            }
            self.pods.remove(&uid);
            self.take_in(EventKind::PodRemoved { uid });
        }
        self.keep_kubepods();
        self.tally.pods_listed = true;
        self.pods_are_listed();
        // Limits were written, and an exclusive container has none on CPU time.
        self.containers_came();
        self.look_after_placing();
        self.look_after_cpu();
        for budget in budgets {
            self.take_in(EventKind::BudgetApplied { budget });
        }
        for budget in budgets_removed {
            self.take_in(EventKind::BudgetRemoved { budget });
        }
        // What they have behind them is not news.
        self.tell_limits();
        // Room for all of them, so that no sample has to make any.
        let pods = self.pods.len();
        self.sample
            .pods
            .reserve(pods.saturating_sub(self.sample.pods.len()));
        self.hurry = true;
    }

    fn look_at(&mut self, uid: &PodUid) {
        match self.pods.refresh(uid) {
            Ok(Some(change)) => self.changed(change),
            Ok(None) => {}
            Err(error) => {
                self.looks.note(uid);
                self.warn(format!("pod {uid}: {error}"));
            }
        }
    }

    fn changed(&mut self, Change { uid, running }: Change) {
        self.pods_changed = true;
        if running {
            self.containers_came();
        } else {
            self.timelines.gone(&uid, now_ns());
        }
        let kind = if running {
            EventKind::PodRunning { uid: uid.clone() }
        } else {
            EventKind::PodEmpty { uid: uid.clone() }
        };
        self.take_in(kind);
        if !running && let Some(pod) = self.forget_resize(&uid) {
            self.apply(pod, "");
        }
    }

    /// Applies a pod, new or with another specification. Not for the hot path. What is wrong with it is said after `origin`.
    fn apply(&mut self, pod: Arc<Pod>, origin: &str) {
        let uid = pod.uid();
        if let Err(error) = self.pods.apply(pod.clone()) {
            return self.warn(format!("{origin}pod {uid}: {error}"));
        }
        if let Err(error) = pod.pressure_signal() {
            self.warn(format!("pod {uid}: {error}"));
        }
        if let Err(error) = pod.latency_critical() {
            self.warn(format!("pod {uid}: {error}"));
        }
        self.take_in(EventKind::PodApplied { pod });
        self.look_at(&uid);
        self.keep_oom_scores(&uid);
        if let Err(error) = self.pods.apply_limits(&uid) {
            self.warn(format!("pod {uid}: {error}"));
        }
    }

    /// Processes that were put into cgroups get their scores. With `is_last`, those in cgroups that are not known are no pod's.
    fn serve_newcomers(&mut self, is_last: bool) {
        let now_ns = now_ns();
        if let Some(scores) = &mut self.oom_scores
            && scores.serve_at_ns().is_some_and(|at_ns| at_ns <= now_ns)
        {
            let mut failures = Vec::new();
            scores.serve(now_ns, is_last, &mut |error| {
                failures.push(error.to_string())
            });
            failures.into_iter().for_each(|failure| self.warn(failure));
        }
    }

    /// Makes a new plan of the order of OOM kills if it is time, and writes the scores that differ, a pod at a time: urgent work comes
    /// first.
    fn order_oom_scores(&mut self) -> Result<()> {
        let (Some(order), Some(scores)) = (&mut self.oom_order, &mut self.oom_scores) else {
            return Ok(());
        };
        let changed = match order.plan_if_due(self.engine.state(), scores, now_ns()) {
            Ok(changed) => changed,
            Err(error) => {
                self.warn(format!("the order of OOM kills stays as it is: {error}"));
                return Ok(());
            }
        };
        for uid in changed {
            self.keep_oom_scores(&uid);
            self.attend(&mut Woken::default())?;
        }
        Ok(())
    }

    /// Brings the scores and groups of one pod up to date, or asks for another look if there is too much to do.
    fn keep_oom_scores(&mut self, uid: &PodUid) {
        if let Some(groups) = &mut self.oom_groups
            && let Err(error) = groups.follow(uid, &self.pods)
        {
            self.warn(format!("pod {uid}: {error}"));
        }
        let Some(scores) = &mut self.oom_scores else {
            return;
        };
        let mut failures = Vec::new();
        let is_left = scores.follow(uid, &self.pods, now_ns(), &mut |error| {
            failures.push(error.to_string())
        });
        if is_left {
            self.looks.note(uid);
            self.looks.ask();
        }
        failures.into_iter().for_each(|failure| self.warn(failure));
    }

    /// The cgroups above the pods follow which pods there are.
    fn keep_kubepods(&mut self) {
        if let Some(kubepods) = &mut self.kubepods
            && let Err(error) = kubepods.follow(&self.pods)
        {
            self.warn(error.to_string());
        }
    }

    /// What can wait: new and gone cgroups of the pods that are to be looked at, the pressure ring, counts of lost records. `told`: records
    /// tell of cgroups that come and go.
    ///
    /// Between any two pods urgent work comes first: looking at all of a hundred pods takes longer than an eviction may wait.
    fn housekeeping(&mut self, told: bool) -> Result<()> {
        let began_ns = now_ns();
        let is_told = told && self.follows_all_processes();
        for uid in self.looks.take(began_ns, &self.pods, is_told) {
            self.look_at(&uid);
            self.keep_oom_scores(&uid);
            self.attend(&mut Woken::default())?;
        }
        if let Some(scores) = &mut self.oom_scores {
            scores.retain(&self.pods);
        }
        if let Some(groups) = &mut self.oom_groups {
            groups.retain(&self.pods);
        }
        self.follow_processes();
        self.keep_kubepods();
        self.look_after_placing();
        self.look_after_cpu();
        self.tell_limits();
        self.tell_folded_oom_kills();
        self.tell_lost_records();
        self.tell_last_line();
        if let Some(error) = self.journal.as_mut().and_then(Journal::take_error) {
            self.warn(error.to_string());
        }
        self.looks.done(began_ns, now_ns());
        Ok(())
    }
}

/// What one record means for the loop.
///
/// `armed_bytes`: what is armed; `None` if an agent before this one has armed it.
fn judge(
    record: &Record<'_>,
    armed_bytes: Option<u64>,
    woken: &mut Woken,
    oom_kills: &mut OomKills,
) {
    let crossed_ns = record.ts_ns;
    match record.body {
        // One that was armed earlier says nothing that the newest sample did not.
        Body::ChargesReached {
            threshold_pages, ..
        } => {
            if armed_bytes.is_none_or(|armed| threshold_pages == crate::kernel::pages_up(armed)) {
                woken.by(Cause::ChargeThreshold { crossed_ns });
            }
        }
        Body::NodeReclaim {
            phase: ReclaimPhase::KswapdWake,
            ..
        } => woken.by(Cause::KswapdWake { crossed_ns }),
        Body::NodeReclaim {
            phase: ReclaimPhase::DirectReclaim,
            ..
        } => woken.by(Cause::DirectReclaim { crossed_ns }),
        Body::OomKill {
            limit, tgid, comm, ..
        } => {
            woken.by(Cause::Lifecycle);
            oom_kills.named(now_ns(), record, limit != OomLimit::Unknown, tgid, comm);
        }
        // Whether its pod is empty now is looked at with the sample.
        Body::LastLineKill { .. } => woken.by(Cause::Lifecycle),
        // On the other ring.
        Body::CgroupMkdir { .. }
        | Body::CgroupRmdir { .. }
        | Body::CgroupAttach { .. }
        | Body::CgroupPopulated { .. }
        | Body::ProcessBirth { .. } => {}
        Body::ThresholdCrossed { .. }
        | Body::MemoryEvent { .. }
        | Body::Throttle { .. }
        | Body::MemoryStall { .. }
        | Body::Refault { .. } => {}
    }
}
