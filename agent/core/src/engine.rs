//! The engine: events in, decisions out. The only way into the decision core.
//!
//! Problem: what a node does about memory must be explainable and repeatable, and must take microseconds.
//! Approach: [`Engine::step`] is a function of the state and one event. It reads no clock (time is in the event), no file and
//! no random number, and iterates in orders that are fixed by the data. The same events give the same decisions, byte for
//! byte; that is what `plimsoll replay` checks.
//!
//! `step` allocates nothing for an [`EventKind::Sample`] once every pod has been seen: scratch space grows when pods are
//! applied. The path from kernel record to kill must work when no memory is left.

use serde::{Deserialize, Serialize};

use crate::decision::Decision;
use crate::event::{Event, EventKind, Sample};
use crate::policy::eviction;
use crate::policy::freshness::{self, Stale};
use crate::policy::rank::RankRow;
use crate::policy::{leaving, sampling};
use crate::state::NodeState;
use crate::threshold::Threshold;

/// What the engine is told once. Part of every journal's header.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EngineConfig {
    /// The eviction thresholds, as [`crate::threshold::parse`] returns them, and any of Plimsoll's own signals.
    pub thresholds: Vec<Threshold>,
    /// `evictionPressureTransitionPeriod`: how long a condition is kept after its last threshold, in nanoseconds.
    pub pressure_transition_period_ns: u64,
    /// `evictionMaxPodGracePeriod`: upper bound of a soft eviction's grace period, in seconds.
    pub max_pod_grace_period_s: u64,
}

/// The decision core of one node.
#[derive(Clone, Debug)]
pub struct Engine {
    config: EngineConfig,
    state: NodeState,
    rows: Vec<RankRow>,
}

impl Engine {
    /// An engine that has seen nothing yet.
    pub fn new(config: EngineConfig) -> Self {
        let state = NodeState::new(config.thresholds.len());
        Self {
            config,
            state,
            rows: Vec::new(),
        }
    }

    /// An engine that goes on from a state, for instance the one at the head of a journal.
    pub fn resume(config: EngineConfig, state: NodeState) -> Self {
        let rows = Vec::with_capacity(state.pods.len());
        Self {
            config,
            state,
            rows,
        }
    }

    /// What it has been told.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What it knows.
    pub fn state(&self) -> &NodeState {
        &self.state
    }

    /// The first figure of a sample that is too old for the decision that would hang on it; `None` when the sample can be given to
    /// [`Engine::step`]. Changes nothing that matters; allocates nothing.
    pub fn stale(&mut self, sample: &Sample, at_ns: u64) -> Option<Stale> {
        let now_ns = at_ns.max(self.state.now_ns);
        freshness::decisive(&self.config, &self.state, sample, now_ns, &mut self.rows)
    }

    /// Takes one event and appends what is to be done about it, in the order in which it is to be done.
    pub fn step(&mut self, event: &Event, decisions: &mut Vec<Decision>) {
        let Self {
            config,
            state,
            rows,
        } = self;
        state.observe(event);
        rows.reserve(state.pods.len().saturating_sub(rows.len()));
        // Pods that are leaving come first: whether one of them is gone decides whether another may be chosen.
        leaving::decide(state, event, decisions);
        if let EventKind::Sample(sample) = &event.kind {
            eviction::decide(config, state, sample, rows, decisions);
            sampling::arm(config, state, sample, decisions);
        }
        sampling::schedule(config, state, decisions);
    }
}
