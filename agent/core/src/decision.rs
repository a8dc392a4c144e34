//! What the engine wants done, as plain data, each with its reason.
//!
//! A decision carries every figure it was based on: the line on the screen and the journal print the same value. Carrying one
//! out is the agent's job; what failed returns as [`EventKind::Outcome`](crate::event::EventKind::Outcome).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::policy::rank::Comparator;
use crate::signal::{NodeCondition, Signal};
use crate::units::PodUid;

/// One thing to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum Decision {
    /// Have the kernel report when the bytes charged to memory cgroups (gross, since load) reach a value: until then no
    /// threshold can have been crossed by charges.
    Arm {
        /// The value of `charged_bytes` at which to report.
        at_charged_bytes: u64,
    },
    /// Take a sample at this time at the latest. Replaces the earlier time.
    SampleBy {
        /// CLOCK_MONOTONIC, nanoseconds.
        at_ns: u64,
    },
    /// Evict a pod: SIGTERM now; [`Decision::Kill`] follows when the grace period is over.
    Evict {
        /// Which pod.
        uid: PodUid,
        /// How long it may take to leave, in milliseconds.
        grace_ms: u64,
        /// Why, and why this one.
        reason: Reason,
    },
    /// End a pod whose manifest is gone: SIGTERM now.
    End {
        /// Which pod.
        uid: PodUid,
        /// How long it may take to leave, in milliseconds.
        grace_ms: u64,
    },
    /// Kill everything in the pod's cgroup.
    Kill {
        /// Which pod.
        uid: PodUid,
        /// Why now.
        why: KillReason,
    },
    /// Free the memory of a pod's killed processes from the agent's own CPU time (`process_mrelease`): they have been killed and
    /// do not get to run.
    ReleaseMemory {
        /// Which pod.
        uid: PodUid,
    },
    /// A pod that was to leave is gone, and how it went.
    Finished {
        /// Which pod.
        uid: PodUid,
        /// How it ended.
        ending: Ending,
        /// `memory.current` of the pod when it was told to leave.
        usage_before_bytes: u64,
        /// How much of that came back.
        freed_bytes: u64,
    },
    /// Pods must leave, and none may be chosen.
    NoVictim {
        /// The threshold that asks for one.
        signal: Signal,
        /// What it shows.
        observed_bytes: u64,
        /// What it should show.
        threshold_bytes: u64,
        /// Why there is none.
        why: NoVictimReason,
    },
    /// A node condition changed.
    Condition {
        /// Which one.
        condition: NodeCondition,
        /// Its new status.
        status: bool,
    },
}

/// Why a pod is evicted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reason {
    /// The signal whose threshold is met.
    pub signal: Signal,
    /// Whether the threshold is soft (met for its grace period).
    pub soft: bool,
    /// What the signal shows.
    pub observed_bytes: u64,
    /// The threshold.
    pub threshold_bytes: u64,
    /// What a percentage would be a percentage of.
    pub capacity_bytes: u64,
    /// The victim's working set.
    pub usage_bytes: u64,
    /// Its memory request.
    pub request_bytes: u64,
    /// Its priority.
    pub priority: i32,
    /// Its place in the kubelet's ranking, from 1.
    pub rank: u32,
    /// How many pods were ranked.
    pub ranked: u32,
    /// How many before it may not be evicted (static, mirror or critical pods).
    pub exempt: u32,
    /// What decided between it and the next pod in the ranking; `None` if it is the last.
    pub ahead_by: Option<Comparator>,
}

/// Why a pod is killed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// Its grace period is over.
    GraceOver,
    /// It still has grace, and the node has not: half of the hard threshold is gone too.
    HeadroomHalved {
        /// Which signal.
        signal: Signal,
        /// What it shows.
        observed_bytes: u64,
        /// Half of its threshold.
        limit_bytes: u64,
    },
    /// SIGTERM could not be sent.
    TerminateFailed,
}

/// How a pod that was to leave ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Its cgroup is empty and 95 % of its memory is back.
    Freed,
    /// Its cgroup is empty, and memory is still charged to it after the wait: shared pages or a slow release.
    Lingering,
    /// It is still there after the wait. Another pod may be chosen now.
    Stuck,
}

/// Why no pod is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoVictimReason {
    /// No pod has processes.
    NoPods,
    /// All that are left are exempt: static, mirror or critical.
    AllExempt,
}

/// Bytes as people write them: `1.5Gi`.
struct Human(u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        for (suffix, shift) in UNITS {
            if self.0 >= 1 << shift {
                let tenths = (u128::from(self.0) * 10) >> shift;
                let (whole, tenth) = (tenths / 10, tenths % 10);
                return match tenth {
                    0 => write!(f, "{whole}{suffix}"),
                    _ => write!(f, "{whole}.{tenth}{suffix}"),
                };
            }
        }
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} < {}",
            self.signal,
            Human(self.observed_bytes),
            Human(self.threshold_bytes)
        )?;
        if self.soft {
            write!(f, " for its grace period")?;
        }
        write!(f, "; it uses {}, ", Human(self.usage_bytes))?;
        match self.usage_bytes.checked_sub(self.request_bytes) {
            Some(over) if over > 0 => write!(
                f,
                "{} over its request of {}",
                Human(over),
                Human(self.request_bytes)
            )?,
            _ => write!(f, "within its request of {}", Human(self.request_bytes))?,
        }
        write!(
            f,
            ", priority {}, rank {} of {}",
            self.priority, self.rank, self.ranked
        )?;
        if self.exempt > 0 {
            write!(f, " ({} before it exempt)", self.exempt)?;
        }
        if let Some(comparator) = self.ahead_by {
            write!(f, ", ahead of the next by {comparator}")?;
        }
        Ok(())
    }
}

impl fmt::Display for KillReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GraceOver => write!(f, "its grace period is over"),
            Self::HeadroomHalved {
                signal,
                observed_bytes,
                limit_bytes,
            } => write!(
                f,
                "{signal} fell to {}, below half of its threshold ({}): no time for grace",
                Human(*observed_bytes),
                Human(*limit_bytes)
            ),
            Self::TerminateFailed => write!(f, "SIGTERM could not be sent"),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arm { at_charged_bytes } => {
                write!(
                    f,
                    "report when {} are charged in all",
                    Human(*at_charged_bytes)
                )
            }
            Self::SampleBy { at_ns } => {
                write!(
                    f,
                    "sample at {}.{:03} s",
                    at_ns / 1_000_000_000,
                    at_ns / 1_000_000 % 1000
                )
            }
            Self::Evict {
                uid,
                grace_ms,
                reason,
            } => write!(f, "evict {uid} (grace {grace_ms} ms): {reason}"),
            Self::End { uid, grace_ms } => {
                write!(f, "end {uid} (grace {grace_ms} ms): its manifest is gone")
            }
            Self::Kill { uid, why } => write!(f, "kill {uid}: {why}"),
            Self::ReleaseMemory { uid } => {
                write!(f, "free the memory of {uid}: killed, and not gone yet")
            }
            Self::Finished {
                uid,
                ending,
                usage_before_bytes,
                freed_bytes,
            } => {
                let how = match ending {
                    Ending::Freed => "gone",
                    Ending::Lingering => "gone, its memory is not all back",
                    Ending::Stuck => "still there",
                };
                write!(
                    f,
                    "{uid} is {how}: {} of {} back",
                    Human(*freed_bytes),
                    Human(*usage_before_bytes)
                )
            }
            Self::NoVictim {
                signal,
                observed_bytes,
                threshold_bytes,
                why,
            } => {
                let why = match why {
                    NoVictimReason::NoPods => "no pod is running",
                    NoVictimReason::AllExempt => "every pod left is static, mirror or critical",
                };
                write!(
                    f,
                    "{signal} {} < {}, but {why}",
                    Human(*observed_bytes),
                    Human(*threshold_bytes)
                )
            }
            Self::Condition {
                condition: NodeCondition::MemoryPressure,
                status,
            } => {
                write!(
                    f,
                    "MemoryPressure is {}",
                    if *status { "true" } else { "false" }
                )
            }
        }
    }
}
