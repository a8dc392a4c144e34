//! When each step of an eviction happened: crossing → record received → decision → signal → kill → gone → memory back.
//!
//! All times are CLOCK_MONOTONIC nanoseconds; the kernel stamps its records with the same clock, so they can be
//! subtracted.

use plimsoll_core::kube::pod_uid::PodUid;
use plimsoll_core::model::decision::{Decision, EvictionEnding};
use plimsoll_core::model::event::Cause;
use plimsoll_core::model::eviction_change::EvictionChange;
use plimsoll_core::model::signal::Signal;
use serde::Serialize;

/// Evictions followed at one time. One is under way at a time, so more are pods that are stuck; the oldest is given up.
const TIMELINES_MAX: usize = 16;

/// One eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The victim.
    pub uid: PodUid,
    /// Why.
    pub signal: Option<Signal>,
    /// The kernel's stamp of what set off the sample; `None` when a timer did.
    pub crossed_ns: Option<u64>,
    /// When the agent had it in hand.
    pub received_ns: u64,
    /// The steps from there to the decision.
    #[serde(flatten)]
    pub hops: Hops,
    /// When the engine had decided.
    pub decided_ns: u64,
    /// When SIGTERM had been sent.
    pub signalled_ns: Option<u64>,
    /// When the cgroup had been killed; `None` when it left by itself.
    pub killed_ns: Option<u64>,
    /// When its last process was gone.
    pub gone_ns: Option<u64>,
}

/// When the steps between a record and the decision about it were over: where the time of a reaction goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hops {
    /// The node's figures were read. Where pods are few, they were read before.
    pub node_read_ns: Option<u64>,
    /// The pods' figures were read.
    pub pods_read_ns: Option<u64>,
    /// Figures that were too old for the decision were read anew.
    pub freshened_ns: Option<u64>,
}

/// The evictions under way.
#[derive(Debug)]
pub struct Timelines {
    current: Vec<Timeline>,
}

impl Default for Timelines {
    fn default() -> Self {
        // All the room there will ever be: nothing is allocated between a record and a kill.
        Self {
            current: Vec::with_capacity(TIMELINES_MAX),
        }
    }
}

/// A finished eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finished {
    /// Its steps.
    #[serde(flatten)]
    pub timeline: Timeline,
    /// How it ended.
    pub outcome: EvictionEnding,
    /// When its memory was seen to be back (95 %), or the wait for it was over.
    pub freed_ns: u64,
    /// `memory.current` when it was told to leave.
    pub usage_before_bytes: u64,
    /// How much of that came back.
    pub freed_bytes: u64,
}

/// When the kernel noticed what set off a sample.
pub fn crossed_ns(cause: Cause) -> Option<u64> {
    match cause {
        Cause::ChargeThreshold { crossed_ns }
        | Cause::KswapdWake { crossed_ns }
        | Cause::DirectReclaim { crossed_ns } => Some(crossed_ns),
        Cause::Timer
        | Cause::PressureStall
        | Cause::MemoryEvent
        | Cause::Lifecycle
        | Cause::Storage
        | Cause::DiskFreed => None,
    }
}

impl Timelines {
    /// An eviction was decided.
    pub fn decided(
        &mut self,
        uid: &PodUid,
        signal: Option<Signal>,
        cause: Cause,
        received_ns: u64,
        hops: Hops,
        decided_ns: u64,
    ) {
        if self.current.len() == TIMELINES_MAX {
            self.current.remove(0);
        }
        self.current.push(Timeline {
            uid: uid.clone(),
            signal,
            crossed_ns: crossed_ns(cause),
            received_ns,
            hops,
            decided_ns,
            signalled_ns: None,
            killed_ns: None,
            gone_ns: None,
        });
    }

    /// The eviction was taken back.
    pub fn withdrawn(&mut self, uid: &PodUid) {
        self.current.retain(|timeline| timeline.uid != *uid);
    }

    /// SIGTERM was sent.
    pub fn signalled(&mut self, uid: &PodUid, at_ns: u64) {
        self.of(uid, |timeline| timeline.signalled_ns = Some(at_ns));
    }

    /// The cgroup was killed.
    pub fn killed(&mut self, uid: &PodUid, at_ns: u64) {
        self.of(uid, |timeline| timeline.killed_ns = Some(at_ns));
    }

    /// The last process is gone.
    pub fn gone(&mut self, uid: &PodUid, at_ns: u64) {
        self.of(uid, |timeline| {
            timeline.gone_ns = timeline.gone_ns.or(Some(at_ns))
        });
    }

    /// The engine says that a pod has left: returns the whole story if it was an eviction.
    pub fn finished(&mut self, decision: &Decision, at_ns: u64) -> Option<Finished> {
        let (uid, outcome, usage_before_bytes, freed_bytes) = match decision.eviction_change() {
            EvictionChange::Over {
                uid,
                ending,
                usage_before_bytes,
                freed_bytes,
            } => (uid, ending, usage_before_bytes, freed_bytes),
            EvictionChange::Evicted(_) | EvictionChange::None => return None,
        };
        let index = self
            .current
            .iter()
            .position(|timeline| timeline.uid == *uid)?;
        Some(Finished {
            timeline: self.current.remove(index),
            outcome,
            freed_ns: at_ns,
            usage_before_bytes,
            freed_bytes,
        })
    }

    fn of(&mut self, uid: &PodUid, change: impl FnOnce(&mut Timeline)) {
        if let Some(timeline) = self
            .current
            .iter_mut()
            .find(|timeline| timeline.uid == *uid)
        {
            change(timeline);
        }
    }
}
