//! The engine: events in, decisions out. Nothing else changes what the core knows.
//!
//! Questions that change nothing are functions of the policies: whether a pod may be resized
//! ([`may_resize`](placement::may_resize)), what is withheld from the scheduler, how the kernel's OOM killer is to
//! choose and what the last line is to do.
//!
//! Problem: what a node does about a shortage must be explainable and repeatable, and must take microseconds. Approach:
//! [`Engine::step`] is a function of the state and one event. It reads no clock (time is in the event), no file and no
//! random number, and iterates in orders that are fixed by the data. The same events give the same decisions, byte for
//! byte; that is what `plimsoll replay` checks.
//!
//! `step` allocates nothing for what is urgent (`EventKind::is_on_kill_path`: a sample, a pod that has ended, what came
//! of a decision) once every pod has been seen: scratch space grows when pods are applied. The path from kernel record
//! to kill must work when no memory is left.

pub use crate::model::config::EngineConfig;
use crate::model::decision::Decision;
use crate::model::event::{Cause, Event, EventKind, PodsRead, Sample};
use crate::model::signal::{Observations, Readings};
use crate::model::state::NodeState;
use crate::policy::eviction;
use crate::policy::eviction::freshness::{self, Stale};
use crate::policy::eviction::swap;
use crate::policy::eviction::verdict::Scratch;
use crate::policy::eviction::view::View;
use crate::policy::eviction::{foresight, leaving, remedies, sampling, stall};
use crate::policy::{cpu, placement};

/// The decision core of one node.
#[derive(Clone, Debug)]
pub struct Engine {
    config: EngineConfig,
    state: NodeState,
    scratch: Scratch,
}

impl Engine {
    /// An engine that has seen nothing yet.
    pub fn new(config: EngineConfig) -> Self {
        let state = NodeState::new(config.thresholds.len());
        Self::resume(config, state)
    }

    /// An engine that continues from a state, for instance the one at the head of a journal.
    pub fn resume(config: EngineConfig, mut state: NodeState) -> Self {
        let mut scratch = Scratch::default();
        scratch.reserve(state.pods.len(), state.budgets.len());
        placement::reserve(&mut state);
        Self {
            config,
            state,
            scratch,
        }
    }

    /// Its configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What it knows.
    pub fn state(&self) -> &NodeState {
        &self.state
    }

    /// Whether a sample of which only the node has been read ([`Sample::node`], [`Sample::kubepods`] and what comes
    /// with it, without [`Sample::pods`]) needs the pods too. `false`: set [`Sample::pods_read`] to [`PodsRead::None`]
    /// and give it to [`Engine::step`], which decides the same as with them. Changes nothing; allocates nothing.
    pub fn needs_pods(&self, sample: &Sample, at_ns: u64) -> bool {
        let view = View::ahead(&self.config, &self.state, sample, at_ns);
        freshness::pods_needed(&view, sample)
    }

    /// Which pods a decision about an urgent sample may depend on, of which only the node has been read. Unlike
    /// [`Engine::needs_pods`] it does not ask for pods because what is known of them is old: see
    /// [`Engine::has_old_pods`]. Changes scratch space only; allocates nothing.
    pub fn wanted(&mut self, sample: &Sample, at_ns: u64) -> PodsRead {
        let view = View::ahead(&self.config, &self.state, sample, at_ns);
        freshness::wanted(&view, sample, &mut self.scratch)
    }

    /// Whether a pod that runs was not read for [`PODS_AGE_MAX_NS`](freshness::PODS_AGE_MAX_NS).
    pub fn has_old_pods(&self, at_ns: u64) -> bool {
        freshness::has_old_pods(&self.state, at_ns)
    }

    /// The first figure of a sample that is too old for the decision that would hang on it; `None` when the sample can
    /// be given to [`Engine::step`]. Changes scratch space only; allocates nothing.
    pub fn stale(&mut self, sample: &Sample, at_ns: u64) -> Option<Stale> {
        let view = View::ahead(&self.config, &self.state, sample, at_ns);
        freshness::decisive(&view, sample, &mut self.scratch)
    }

    /// Takes one event and appends what is to be done about it, in the order in which it is to be done.
    pub fn step(&mut self, event: &Event, decisions: &mut Vec<Decision>) {
        let first = decisions.len();
        let by_node = self.scratch.by_node.take();
        placement::give_up_changed(&self.config, &mut self.state, event);
        self.state.observe(event, &self.config);
        self.scratch
            .reserve(self.state.pods.len(), self.state.budgets.len());
        placement::reserve(&mut self.state);
        if let EventKind::Sample(sample) = &event.kind {
            let lineup = &mut self.scratch.lineup;
            lineup.take_in(&self.config, &mut self.state, sample);
        }
        stall::observe(&mut self.state);
        // Before evictions: a pod held at memory.high could not exit.
        remedies::follow(&self.config, &mut self.state, event, decisions);
        // Leaving pods come first: another pod may be chosen only once the last victim has ended.
        leaving::steps::decide(&self.config, &mut self.state, event, decisions);
        if let EventKind::Sample(sample) = &event.kind {
            let swap_bytes = swap::left_bytes(&self.config, &self.state, sample);
            let now_ns = self.state.now_ns;
            let asked = by_node.filter(|kept| kept.is_of(&self.config, sample, now_ns));
            let observations = asked.map(|kept| kept.observations).unwrap_or_else(|| {
                self.state.observations.updated(&Readings {
                    sample,
                    at_ns: now_ns,
                    availability: self.config.options.availability,
                    swap_bytes,
                })
            });
            foresight::observe(&self.config, &mut self.state, sample, swap_bytes);
            self.judge_observed(sample.cause, &observations, decisions);
            sampling::arm(&self.config, &mut self.state, sample, decisions);
        }
        placement::decide(&self.config, &mut self.state, event, first, decisions);
        cpu::decide(&self.config, &mut self.state, event, first, decisions);
        sampling::schedule(&self.config, &mut self.state, decisions);
        self.line_up(event);
        self.state.look_for_leaving();
    }

    /// What an event has made of pods, in the lineup.
    fn line_up(&mut self, event: &Event) {
        let (config, state) = (&self.config, &self.state);
        let lineup = &mut self.scratch.lineup;
        match &event.kind {
            EventKind::Sample(_) | EventKind::PlacementDue => {}
            EventKind::PodRunning { uid }
            | EventKind::PodEmpty { uid }
            | EventKind::FirstProcessesEnded { uid }
            | EventKind::Outcome { uid, .. } => lineup.refresh(config, state, uid),
            _ => lineup.outdate(),
        }
        if !state.leaving_uids.is_known {
            lineup.outdate();
        }
        // Those that have left are still among them.
        for uid in state.leaving_uids.iter() {
            lineup.refresh(config, state, uid);
        }
    }

    /// Does in advance what an answer to an urgent sample would begin with, if that has to be done again. Changes
    /// nothing else; allocates nothing.
    pub fn prepare(&mut self) {
        let now_ns = self.state.now_ns;
        let lineup = &mut self.scratch.lineup;
        lineup.bring_up_to_date(&self.config, &self.state, now_ns);
    }

    /// What [`Engine::step`] does with a sample once its signals have been observed. For vectors and simulations, which
    /// give observations and not readings.
    pub fn judge(
        &mut self,
        at_ns: u64,
        cause: Cause,
        observations: &Observations,
        decisions: &mut Vec<Decision>,
    ) {
        self.state.now_ns = self.state.now_ns.max(at_ns);
        self.scratch.by_node = None;
        self.judge_observed(cause, observations, decisions);
        self.scratch.lineup.outdate();
    }

    fn judge_observed(
        &mut self,
        cause: Cause,
        observations: &Observations,
        decisions: &mut Vec<Decision>,
    ) {
        let Self {
            config,
            state,
            scratch,
        } = self;
        eviction::decide(config, state, cause, observations, scratch, decisions);
        state.observations = match cause {
            Cause::DiskFreed => state.observations.after_freeing(observations),
            _ => *observations,
        };
    }
}
