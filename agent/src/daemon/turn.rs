//! One turn of the loop: react first, everything else afterwards.
//!
//! From a record of the kernel to the signal, in order:
//! 1. [`Sources::next`] sees that the ring buffer is readable, and calls [`Agent::attend_urgent`] before it gives up
//!    waiting for everything else; the rest of the turn ([`Agent::turn`]) follows.
//! 2. [`Agent::handle_urgent`] drains the ring: [`note_critical_record`] says what each record means and keeps the most
//!    telling cause.
//! 3. [`Agent::react_if_asked`] asks whether that calls for a sample. If so, [`Agent::react`] reads the node
//!    (`Sampler::take`) and what `Engine::wanted` says of the pods, or `Engine::needs_pods` where it is not urgent:
//!    none or all of them. Those that may be the first to go, and figures that are too old, are read one by one
//!    (`Engine::stale`). Then the engine decides (`Engine::step`).
//! 4. [`Agent::act`] carries out each decision at once: SIGTERM is `Pods::terminate`.
//!
//! On this path nothing is allocated or formatted, and no lock is taken that a thread of lower priority could hold: the
//! event, its pods, the decisions and the timelines live in buffers of the [`Agent`], and what failed is kept for
//! later. Then [`Agent::publish`] hands journal and output to their threads, and [`Agent::follow_up`] does what can
//! wait.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::{Action, Cause, Event, EventKind, PodsRead, Sample};
use plimsoll_core::model::reading::StorageReading;
use plimsoll_core::model::signal::Signal;
use plimsoll_core::model::state::PodState;
use plimsoll_core::policy::eviction::freshness::Stale;
use plimsoll_core::policy::eviction::leaving;

use super::deadlines::Deadlines;
use super::findings::{Crossing, Findings};
use super::last_line::LastLine;
use super::oom_kills::OomKills;
use super::sampler::skips_slow_reads;
use super::storage::StorageWork;
use super::wake::{Sources, Wake};
use super::watchdog::Part;
use super::{Agent, now_ns};
use crate::act::cpu_time::Setting;
use crate::host::file::FileError;
use crate::kernel::decode::{Body, OomLimit, ReclaimPhase, Record};
use crate::kernel::{Bpf, Generation};
use crate::record::timeline::Hops;

/// Records taken in one go; then the loop looks at its other sources.
const RECORDS_PER_TURN: usize = 512;
/// What a record of a crossing says of the node's memory is used so long after it; then the node is read.
const CROSSING_AGE_MAX_NS: u64 = 1_000_000;
/// After the node's memory could not be read.
const READ_AGAIN_NS: u64 = 10_000_000;
/// How long figures are read anew before one decision, nanoseconds. Each could change it, so the bound is time and no
/// number: it is for a node with hundreds of pods whose figures are all old.
const FRESHEN_FOR_NS: u64 = 20_000_000;
/// Outcomes of decisions are events themselves. Each is answered at most so often in one turn.
const OUTCOME_ROUNDS: usize = 4;

/// A question that the node could not be read for: the next sample answers it as well.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// Why it was to be read.
    cause: Option<Cause>,
    /// What was known of disks then.
    storage: Option<Arc<StorageReading>>,
}

impl Unanswered {
    /// The node could not be read: it is tried again.
    pub(super) fn is_pending(&self) -> bool {
        self.cause.is_some()
    }
}

/// What has been done and not been written down or said yet: [`Agent::publish`] does that. The buffers keep their room.
pub(super) struct Unsettled {
    steps: Vec<Step>,
    /// Of all these steps.
    decisions: Vec<Decision>,
    /// Those of them that could not be carried out.
    failures: Vec<Failure>,
    /// The first thing that the newest sample could not read.
    unread: Option<Unread>,
    /// The time for reading figures anew was over.
    freshen_was_cut: bool,
}

impl Unsettled {
    /// With room for so many decisions, steps and failures.
    pub(super) fn with_room_for(decisions: usize) -> Self {
        Self {
            steps: Vec::with_capacity(decisions),
            decisions: Vec::with_capacity(decisions),
            failures: Vec::with_capacity(decisions),
            unread: None,
            freshen_was_cut: false,
        }
    }

    /// What could not be read or done around a sample, unless it was not the first: one of several is enough to go and
    /// look. Allocates.
    pub(super) fn could_not_read(&mut self, pod: Option<&PodUid>, what: impl std::fmt::Display) {
        self.unread.get_or_insert_with(|| Unread {
            pod: pod.cloned(),
            text: what.to_string(),
        });
    }
}

/// An event that the engine has taken in and that has been acted upon.
struct Step {
    event: Event,
    /// Its part of [`Unsettled::decisions`].
    decisions: Range<usize>,
}

/// A decision that could not be carried out.
struct Failure {
    uid: PodUid,
    action: Action,
    error: FileError,
}

/// What could not be read or done around a sample. It is said after the decision, and the pod named then.
struct Unread {
    pod: Option<PodUid>,
    text: String,
}

impl Agent {
    /// Answers one wake.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    pub(super) fn turn(
        &mut self,
        wake: Wake,
        deadlines: &Deadlines,
        sources: &mut Sources,
    ) -> Result<()> {
        if self.attended.is_none() {
            self.heartbeat.begin(now_ns());
        }
        let result = self.answer_wake(wake, deadlines, sources);
        // While nobody waits for it.
        self.engine.prepare();
        self.tally.turns.add(self.heartbeat.end(now_ns()));
        result
    }

    /// What the ring of urgent records has woken the loop for, before anything else is looked at. The rest of the turn
    /// follows.
    pub(super) fn attend_urgent(&mut self) {
        self.heartbeat.begin(now_ns());
        let attended = self.handle_urgent(&mut Findings::default());
        self.attended = Some(attended);
    }

    fn answer_wake(
        &mut self,
        wake: Wake,
        deadlines: &Deadlines,
        sources: &mut Sources,
    ) -> Result<()> {
        let mut found = Findings::default();
        match &wake {
            Wake::Sample(cause) => found.add_cause(*cause),
            Wake::PodEvents => found.add_cause(Cause::MemoryEvent),
            Wake::Deadline if deadlines.is_sample_due(now_ns()) => found.add_cause(Cause::Timer),
            _ => {}
        }
        let mut has_sampled = self.attended.take().unwrap_or(Ok(false))?;
        has_sampled |= self.handle_urgent(&mut found)?;
        self.heartbeat.enter(Part::Message);
        self.take_message(wake, &mut found, sources)?;
        self.heartbeat.enter(Part::Lifecycle);
        self.drain_lifecycle(&mut found);
        if found.containers {
            self.containers_came();
        }
        has_sampled |= self.handle_urgent(&mut found)?;
        if has_sampled {
            self.rescans.come_early(now_ns());
            let node = self.engine.state().node.as_ref();
            let headroom_bytes = node.and_then(|node| node.headroom_bytes);
            if let Some(Wake::Lost(lost)) = sources.arm_usage(headroom_bytes) {
                self.source_lost(lost, sources);
            }
        }
        self.follow_up(sources)
    }

    /// Takes in what a source has to say. Not urgent.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    fn take_message(
        &mut self,
        wake: Wake,
        found: &mut Findings,
        sources: &mut Sources,
    ) -> Result<()> {
        match wake {
            // Answered by now, or drained in every turn.
            Wake::Records | Wake::Sample(_) | Wake::Deadline | Wake::Stop => {}
            Wake::PodEvents => self.rescans.ask(),
            Wake::News => self.rescans.news(),
            Wake::Cgroups => {
                self.rescans.note_all();
                self.rescans.ask();
                found.containers = true;
            }
            Wake::Manifests(change) => self.manifests(change)?,
            Wake::Cluster(event) => self.cluster_event(event)?,
            Wake::Nri(event) => self.nri_event(event),
            Wake::Devices(devices) => self.handle_event(EventKind::DevicesGiven { devices }),
            Wake::Storage(event) => self.storage_event(event, found),
            Wake::Remedy(report) => self.remedy_reported(report),
            Wake::Placement(report) => self.placement_reported(report),
            Wake::Cpu(report) => self.cpu_reported(report),
            Wake::Snapshot(asked) => self.give_snapshot(asked),
            Wake::Lost(lost) => self.source_lost(lost, sources),
        }
        Ok(())
    }

    /// Between two pieces of longer work: what is urgent by now, and the next portion of the lifecycle ring.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    pub(super) fn interrupt(&mut self) -> Result<()> {
        let mut found = Findings::default();
        self.handle_urgent(&mut found)?;
        self.drain_lifecycle(&mut found);
        if found.containers {
            self.containers_came();
        }
        self.handle_urgent(&mut found).map(|_| ())
    }

    /// What can wait, in the order of its urgency.
    fn follow_up(&mut self, sources: &mut Sources) -> Result<()> {
        self.heartbeat.enter(Part::FollowUp);
        self.make_up_for_lost_lifecycle();
        self.report_oom_kills(now_ns());
        self.follow_up_features();
        let is_rescan_due = self.rescans.at_ns() <= now_ns();
        self.heartbeat.enter(Part::OomScores);
        self.serve_newcomers();
        self.order_oom_scores()?;
        if is_rescan_due {
            self.heartbeat.enter(Part::Rescan);
            self.rescan(sources.reports_cgroups)?;
            self.tally.cgroups_unwatched = sources.cgroups_unwatched();
        }
        // What has changed since.
        self.send_answers();
        sources.pause_lifecycle_until(self.lifecycle.not_before_ns());
        self.hurry |= std::mem::take(&mut self.pods_changed);
        Ok(())
    }

    /// Drains the urgent ring, then samples and acts if anything calls for it. Returns whether a sample was taken.
    ///
    /// # Errors
    /// When the node's memory cannot be read.
    pub(super) fn handle_urgent(&mut self, found: &mut Findings) -> Result<bool> {
        let part = self.heartbeat.enter(Part::Attend);
        self.drain_critical(found);
        let is_asked = self.hurry || found.cause.is_some();
        let responded = self.react_if_asked(found);
        if matches!(responded, Ok(Some(_))) {
            self.after_sample();
        }
        if is_asked {
            self.publish();
        }
        if let Ok(Some(cause)) = responded {
            // Another sample, which waits for what is urgent: this one has answered one question only, or has left out
            // pods.
            let is_one_question = cause == Cause::DiskFreed;
            let left_out = skips_slow_reads(cause) && self.engine.has_old_pods(now_ns());
            self.hurry |= is_one_question || left_out;
        }
        self.heartbeat.enter(part);
        responded.map(|cause| cause.is_some())
    }

    /// Reacts to what was found, if that calls for a sample; returns what it was, if it has been answered. Allocates
    /// nothing: see [`Agent::react`].
    pub(super) fn react_if_asked(&mut self, found: &mut Findings) -> Result<Option<Cause>> {
        if std::mem::take(&mut self.hurry) {
            found.add_cause(Cause::Timer);
        }
        if found.cause.is_some()
            && let Some(cause) = self.unanswered.cause.take()
        {
            found.add_cause(cause);
        }
        let Some(cause) = found.cause.take() else {
            return Ok(None);
        };
        self.take_in_last_line_kills();
        let is_answered = self.react(cause, found.crossing.take())?;
        Ok(is_answered.then_some(cause))
    }

    /// Takes what the kernel has sent.
    fn drain_critical(&mut self, found: &mut Findings) {
        let Some(bpf) = &mut self.bpf else { return };
        let newest = bpf.newest_arming();
        let (last_line, oom_kills) = (&mut self.last_line, &mut self.oom_kills);
        let taken = bpf.drain_critical(RECORDS_PER_TURN, |record| {
            note_critical_record(&record, newest, found, last_line.as_mut(), oom_kills);
        });
        if taken == RECORDS_PER_TURN {
            // There may be more, and the descriptor has been marked as read: come back at once.
            self.hurry = true;
        }
    }

    /// Takes a sample, has the engine judge it, and does at once what it decides. Allocates nothing, unless something
    /// cannot be read or done. [`Agent::publish`] is to follow. Without a `crossing` the kernel is asked for what one
    /// says. Returns whether there was a sample: if the node could not be read, it is tried again soon.
    ///
    /// # Errors
    /// When the node's memory could not be read several times.
    pub fn react(&mut self, cause: Cause, crossing: Option<Crossing>) -> Result<bool> {
        let received_ns = now_ns();
        self.hops = Hops::default();
        let has_ended = self.find_empty_pods(received_ns);
        let counts_charges = self.bpf.as_ref().filter(|_| !self.has_lost_ring);
        let charged_bytes = crossing.map(|crossing| crossing.charged_bytes);
        let charged_bytes = charged_bytes.or_else(|| counts_charges.and_then(Bpf::charged_bytes));
        // What an ended pod has freed is not in it yet.
        let is_new = |crossing: &Crossing| {
            !has_ended && received_ns.saturating_sub(crossing.at_ns) <= CROSSING_AGE_MAX_NS
        };
        let counted = crossing.filter(is_new).and_then(|crossing| crossing.node);
        let mut sample = std::mem::take(&mut self.sample);
        let reading = self.storage.as_mut().and_then(StorageWork::take_reading);
        sample.storage = reading.or_else(|| self.unanswered.storage.take());
        let (unsettled, engine) = (&mut self.unsettled, &mut self.engine);
        let taken = self.sampler.take(
            cause,
            received_ns,
            charged_bytes,
            counted,
            &mut self.pods,
            &mut sample,
            &mut self.hops,
            |sample| match skips_slow_reads(cause) {
                true => engine.wanted(sample, received_ns),
                false if engine.needs_pods(sample, received_ns) => PodsRead::All,
                false => PodsRead::None,
            },
            |uid, error| unsettled.could_not_read(uid, error),
        );
        if let Err(error) = taken {
            self.unanswered.storage = sample.storage.take();
            self.sample = sample;
            if self.sampler.has_lost_node() {
                return Err(error).context(
                    "the node's memory can no longer be read, and nothing can be decided without it: check that this is there and readable, then start plimsoll again",
                );
            }
            // The kernel may have had no memory for the text.
            self.unsettled.could_not_read(None, error);
            self.unanswered.cause = Some(cause);
            self.sample_by_ns = received_ns + READ_AGAIN_NS;
            return Ok(false);
        }
        self.note_sample(received_ns, charged_bytes);
        if sample.pods_read != PodsRead::None {
            self.freshen(received_ns, &mut sample);
            self.hops.freshened_ns = Some(now_ns());
        }
        self.step(received_ns, EventKind::Sample(sample));
        self.outcomes();
        if let Some(at_ns) = self.sampler.looks_again_ns() {
            self.sample_by_ns = self.sample_by_ns.min(at_ns.max(received_ns + 1));
        }
        Ok(true)
    }

    /// Reads anew what is too old for the decision about a sample.
    fn freshen(&mut self, received_ns: u64, sample: &mut Sample) {
        let until_ns = now_ns().saturating_add(FRESHEN_FOR_NS);
        // Each pod twice, its usage and its page cache, the kubepods cgroup and a NUMA node.
        let figures = 2 * self.pods.len() + 2;
        for _ in 0..figures {
            let Some(stale) = self.engine.stale(sample, received_ns) else {
                return;
            };
            let is_of_all = matches!(stale, Stale::Kubepods | Stale::NumaPods(_));
            if now_ns() >= until_ns {
                self.unsettled.freshen_was_cut = true;
                return;
            }
            let freshened = self
                .sampler
                .freshen(stale, received_ns, &mut self.pods, sample);
            if let Err(error) = freshened {
                // The older figure has to do. Those of other pods can still be read.
                self.unsettled.could_not_read(None, error);
                if is_of_all {
                    return;
                }
            }
        }
    }

    /// What follows acting: placement, journal, output, and the cleaning up after pods that have left.
    pub fn publish(&mut self) {
        self.place_what_is_due();
        let mut steps = std::mem::take(&mut self.unsettled.steps);
        let decisions = std::mem::take(&mut self.unsettled.decisions);
        for step in &steps {
            let decisions = &decisions[step.decisions.clone()];
            if let Some(journal) = &mut self.journal {
                journal.record(&step.event, decisions);
            }
            self.report_remedy(&step.event);
            for decision in decisions {
                self.report_decision(&step.event, decision);
                self.conclude(&step.event, decision);
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
        self.unsettled.steps = steps;
        self.unsettled.decisions = decisions;
        self.unsettled.decisions.clear();
        let mut failures = std::mem::take(&mut self.unsettled.failures);
        for Failure { uid, error, .. } in failures.drain(..) {
            self.warn_of_pod(&uid, error);
        }
        // Keeps its room.
        self.unsettled.failures = failures;
        if std::mem::take(&mut self.unsettled.freshen_was_cut) {
            self.warn(format!(
                "not all memory.stat that a decision depends on could be read within {} ms: a victim may have been chosen by the page cache of \
                 up to a minute before; fewer pods with much page cache above their requests make this rarer",
                FRESHEN_FOR_NS / 1_000_000
            ));
        }
        match self.unsettled.unread.take() {
            Some(Unread {
                pod: Some(uid),
                text,
            }) => self.warn_of_pod(&uid, text),
            Some(Unread { pod: None, text }) => self.warn(text),
            None => {}
        }
    }

    /// Pods that are waited for are looked at before each sample: their last process may be gone. Returns whether one's
    /// is.
    fn find_empty_pods(&mut self, at_ns: u64) -> bool {
        let mut has_ended = false;
        self.leaving.clear();
        let is_awaited = |pod: &&PodState| {
            let leaving = pod.leaving.filter(|_| pod.running);
            leaving.is_some_and(|leaving| leaving::is_awaited(&leaving, at_ns))
        };
        let leaving = self.engine.state().leaving().filter(is_awaited);
        self.leaving.extend(leaving.map(|pod| pod.row.uid.clone()));
        for index in 0..self.leaving.len() {
            let uid = self.leaving[index].clone();
            match self.pods.note_emptied(&uid) {
                Ok(false) => self.find_ended_containers(uid, at_ns),
                Ok(true) => {
                    has_ended = true;
                    self.timelines.gone(&uid, at_ns);
                    self.step(at_ns, EventKind::PodEmpty { uid });
                }
                Err(error) => {
                    self.unsettled.could_not_read(Some(&uid), error);
                }
            }
        }
        has_ended
    }

    /// What is left of a pod in its grace period may have no first process any more.
    fn find_ended_containers(&mut self, uid: PodUid, at_ns: u64) {
        let pod = self.engine.state().pods.get(&uid);
        let leaving = pod.and_then(|pod| pod.leaving.as_ref());
        if leaving.is_some_and(leaving::has_grace) && self.pods.have_first_processes_ended(&uid) {
            self.step(at_ns, EventKind::FirstProcessesEnded { uid });
        }
    }

    /// One event that is not urgent: decide, act, then write down and say what was done.
    pub(super) fn handle_event(&mut self, kind: EventKind) {
        self.step(now_ns(), kind);
        self.outcomes();
        self.publish();
    }

    /// One event: decide and act.
    pub(super) fn step(&mut self, at_ns: u64, kind: EventKind) {
        let event = Event { at_ns, kind };
        if let EventKind::PodEmpty { uid } = &event.kind {
            let pod = self.engine.state().pods.get(uid);
            let memory = pod.and_then(|pod| pod.memory);
            self.sampler
                .released(memory.map_or(0, |memory| memory.listed_file_bytes));
        }
        let mut decisions = std::mem::take(&mut self.unsettled.decisions);
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
        self.unsettled.steps.push(Step {
            event,
            decisions: begin..decisions.len(),
        });
        self.unsettled.decisions = decisions;
    }

    /// Decisions that could not be carried out: the engine is told, and may decide otherwise.
    fn outcomes(&mut self) {
        let mut answered = 0;
        for _ in 0..OUTCOME_ROUNDS {
            self.remedy_outcomes();
            let end = self.unsettled.failures.len();
            if answered == end {
                return;
            }
            for index in answered..end {
                let Failure { uid, action, error } = &self.unsettled.failures[index];
                let kind = EventKind::Outcome {
                    uid: uid.clone(),
                    action: *action,
                    error: error.to_string(),
                };
                self.step(now_ns(), kind);
            }
            answered = end;
        }
    }

    /// Carries out one decision. Allocates only when that fails.
    fn act(&mut self, event: &Event, decision: &Decision, decided_ns: u64) {
        match decision {
            Decision::Evict { uid, reason, .. } => {
                self.evict(event, uid, reason.signal(), decided_ns);
            }
            Decision::Withdraw { uid } => self.timelines.withdrawn(uid),
            Decision::End { uid, .. } => self.terminate(uid),
            Decision::Kill { uid, .. } => self.kill(uid),
            Decision::ReleaseMemory { uid } => {
                // Help only: the processes free their memory in any case when they get to run.
                if let Some(release) = &self.memory_release
                    && let Some(directory) = self.pods.directory(uid)
                {
                    release.add(directory);
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
            Decision::Reclaim {
                uid,
                bytes,
                until_ns,
            } => self.reclaim(uid, *bytes, *until_ns),
            Decision::StopReclaim { .. } => self.stop_reclaim(),
            Decision::SetHigh {
                uid,
                bytes,
                until_ns,
            } => self.set_high(uid, *bytes, *until_ns),
            Decision::ClearHigh { uid } => self.clear_high(uid),
            Decision::Notify { uid, signal, .. } => self.notify(uid, *signal),
            Decision::Place { assignments } => self.note_placement(assignments),
            Decision::FreeDisk { sources, .. } => {
                if let Some(storage) = &mut self.storage {
                    storage.free(sources);
                }
            }
            Decision::ReadStorageEvery { interval_ns } => {
                if let Some(storage) = &self.storage {
                    storage.read_every(*interval_ns);
                }
            }
            Decision::SetCpu {
                uid,
                container,
                knob,
                us,
                ..
            } => self.change_cpu(Setting {
                uid: uid.clone(),
                container: container.clone(),
                knob: *knob,
                us: Some(*us),
            }),
            Decision::RestoreCpu {
                uid,
                container,
                knob,
                ..
            } => self.change_cpu(Setting {
                uid: uid.clone(),
                container: container.clone(),
                knob: *knob,
                us: None,
            }),
            // Said, and cleaned up after, when everything urgent is done.
            Decision::Finished { .. }
            | Decision::RemedyEnded { .. }
            | Decision::NoVictim { .. }
            | Decision::EvictionsHeld { .. }
            | Decision::Condition { .. }
            | Decision::PlacementRefused { .. }
            | Decision::PlacementLost { .. }
            | Decision::PlacementFailed { .. } => {}
        }
    }

    fn evict(&mut self, event: &Event, uid: &PodUid, signal: Option<Signal>, decided_ns: u64) {
        let cause = match &event.kind {
            EventKind::Sample(sample) => sample.cause,
            _ => Cause::Timer,
        };
        self.timelines
            .decided(uid, signal, cause, event.at_ns, self.hops, decided_ns);
        match self.kubelet {
            None => self.terminate(uid),
            // Its kubelet does, or a kill follows. The report says what each container uses.
            Some(_) => self.pods.note_usage(uid),
        }
    }

    fn kill(&mut self, uid: &PodUid) {
        // First what waits for no lock. The hold and the rest of the kill do, and the hold comes first: nothing is
        // started in its place.
        self.pods.kill_first_processes(uid);
        self.hold(uid);
        match self.pods.kill(uid) {
            Ok(()) => self.timelines.killed(uid, now_ns()),
            Err(error) => self.failed(uid, Action::Kill, error),
        }
    }

    pub(super) fn terminate(&mut self, uid: &PodUid) {
        match self.pods.terminate(uid) {
            Ok(_) => self.timelines.signalled(uid, now_ns()),
            Err(error) => self.failed(uid, Action::Terminate, error),
        }
    }

    fn failed(&mut self, uid: &PodUid, action: Action, error: FileError) {
        let uid = uid.clone();
        self.unsettled.failures.push(Failure { uid, action, error });
    }
}

/// What one record means for the loop. `newest`: the newest arming of the charge threshold.
pub(super) fn note_critical_record(
    record: &Record<'_>,
    newest: Generation,
    found: &mut Findings,
    last_line: Option<&mut LastLine>,
    oom_kills: &mut OomKills,
) {
    if let Some(last_line) = last_line {
        last_line.record(record);
    }
    let crossed_ns = record.ts_ns;
    match record.body {
        // One that was armed earlier says nothing that the newest sample did not.
        Body::ChargesReached {
            charged_bytes,
            generation,
            node,
        } => {
            if generation == newest {
                found.crossing = Some(Crossing {
                    at_ns: crossed_ns,
                    charged_bytes,
                    node,
                });
                found.add_cause(Cause::ChargeThreshold { crossed_ns });
            }
        }
        Body::NodeReclaim {
            phase: ReclaimPhase::KswapdWake,
            ..
        } => found.add_cause(Cause::KswapdWake { crossed_ns }),
        Body::NodeReclaim {
            phase: ReclaimPhase::DirectReclaim,
            ..
        } => found.add_cause(Cause::DirectReclaim { crossed_ns }),
        Body::OomKill {
            limit, tgid, comm, ..
        } => {
            found.add_cause(Cause::Lifecycle);
            oom_kills.add_record(now_ns(), record, limit != OomLimit::Unknown, tgid, comm);
        }
        // Whether its pod is empty now is looked at with the sample.
        Body::LastLineKill { .. } => found.add_cause(Cause::Lifecycle),
        // On the other ring.
        Body::CgroupMkdir { .. }
        | Body::CgroupRmdir { .. }
        | Body::CgroupAttach { .. }
        | Body::CgroupPopulated { .. }
        | Body::ProcessBirth { .. } => {}
        Body::MemoryEvent { .. }
        | Body::Throttle { .. }
        | Body::MemoryStall { .. }
        | Body::Refault { .. } => {}
    }
}
