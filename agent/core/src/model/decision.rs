//! What the engine wants done, as plain data, each with its reason.
//!
//! A decision carries every figure it was based on: the line on the screen and the journal print the same value. Carrying one
//! out is the agent's job; what failed returns as [`EventKind::Outcome`](crate::model::event::EventKind::Outcome).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::kube::pod::PressureSignal;
pub use crate::model::amount::In;
use crate::model::amount::{Human, Unit};
use crate::model::bandwidth::{CpuKnob, CpuWhy};
use crate::model::event::LastLineReason;
use crate::model::outlook::Foreseen;
use crate::model::rank_row::Comparator;
use crate::model::remedy::Remedy;
pub use crate::model::remedy::RemedyEnd;
use crate::model::signal::{NodeCondition, Operator, Signal};
use crate::model::units::PodUid;
use crate::placement::assignments::Assignments;
use crate::placement::node::Note;

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
        /// Grace period, in seconds. Not below 0 unless `evictionMaxPodGracePeriod` is: the kubelet passes that
        /// on, and here it means at once.
        grace_s: i64,
        /// Why, and why this one.
        reason: Reason,
    },
    /// Take back an eviction for a soft threshold that a disruption budget refused: another pod can go.
    Withdraw {
        /// Which pod stays.
        uid: PodUid,
    },
    /// End a pod whose manifest was removed: SIGTERM now.
    End {
        /// Which pod.
        uid: PodUid,
        /// Grace period, in milliseconds.
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
    /// A pod that was being ended has no processes left, and how it ended.
    Finished {
        /// Which pod.
        uid: PodUid,
        /// How it ended.
        ending: Ending,
        /// `memory.current` of the pod when its eviction began.
        usage_before_bytes: u64,
        /// How much of that came back.
        freed_bytes: u64,
    },
    /// Free disk space without ending a pod; [`EventKind::NodeReclaimed`](crate::model::event::EventKind::NodeReclaimed) follows.
    ReclaimNode {
        /// The threshold that is met.
        signal: Signal,
        /// What to look at, in this order.
        sources: Vec<ReclaimSource>,
    },
    /// Read file systems, and what pods have on them, at this interval. Replaces the earlier one.
    ReadStorageEvery {
        /// Nanoseconds.
        interval_ns: u64,
    },
    /// Have the kernel reclaim memory from a pod (`memory.reclaim`), until the amount is reached or the time is over;
    /// [`RemedyReport`](crate::model::event::RemedyReport) follows.
    Reclaim {
        /// Which pod.
        uid: PodUid,
        /// How much, inactive page cache included.
        bytes: u64,
        /// CLOCK_MONOTONIC, nanoseconds.
        until_ns: u64,
    },
    /// Have it stop that.
    StopReclaim {
        /// Which pod.
        uid: PodUid,
    },
    /// Hold a pod at a size (`memory.high`). [`Decision::ClearHigh`] follows by that time.
    SetHigh {
        /// Which pod.
        uid: PodUid,
        /// The size.
        bytes: u64,
        /// CLOCK_MONOTONIC, nanoseconds.
        until_ns: u64,
    },
    /// Put the pod's `memory.high` back to what it was.
    ClearHigh {
        /// Which pod.
        uid: PodUid,
    },
    /// Tell a pod that memory is short, in the way that it has asked for.
    Notify {
        /// Which pod.
        uid: PodUid,
        /// What its containers' first processes get.
        signal: PressureSignal,
        /// How much is missing.
        shortfall_bytes: u64,
        /// How long it may take, CLOCK_MONOTONIC, nanoseconds.
        until_ns: u64,
    },
    /// Something that was tried before an eviction is over, and how it went.
    StageEnded {
        /// Which pod.
        uid: PodUid,
        /// What was tried.
        stage: Remedy,
        /// How it ended.
        end: RemedyEnd,
        /// How long it took.
        took_ns: u64,
        /// How long ago the pod would have been evicted without any stage.
        episode_ns: u64,
    },
    /// Apply these assignments: the CPUs and memory nodes of each container.
    Place {
        /// What each container holds.
        assignments: Arc<Assignments>,
    },
    /// A pod is refused exclusive resources and must not be started; if it already runs, it stays in the shared pool or keeps what it has.
    PlacementRefused {
        /// Which pod.
        uid: PodUid,
        /// What it lacks.
        why: String,
        /// It runs already.
        runs_on: bool,
    },
    /// A container cannot keep what it had.
    PlacementLost {
        /// Which one, and why.
        note: Note,
    },
    /// No placement is possible with these settings on this machine. The current placement stays.
    PlacementFailed {
        /// Why.
        why: String,
    },
    /// Give a cgroup other CPU bandwidth than it was configured with. [`Decision::RestoreCpu`] follows.
    SetCpu {
        /// Which pod.
        uid: PodUid,
        /// Which of its containers; empty for the pod's own cgroup.
        #[serde(default, skip_serializing_if = "str::is_empty")]
        container: Arc<str>,
        /// What is changed.
        knob: CpuKnob,
        /// To this, microseconds of CPU time per period.
        us: u64,
        /// The configured value, which Plimsoll restores later; `None` for no limit.
        #[serde(rename = "own_us")]
        configured_us: Option<u64>,
        /// Why.
        why: CpuWhy,
    },
    /// Put it back to what it was.
    RestoreCpu {
        /// Which pod.
        uid: PodUid,
        /// Which of its containers; empty for the pod's own cgroup.
        #[serde(default, skip_serializing_if = "str::is_empty")]
        container: Arc<str>,
        /// What is put back.
        knob: CpuKnob,
        /// Why.
        why: CpuWhy,
    },
    /// Pods must leave, and none may be chosen.
    NoVictim {
        /// The threshold that asks for one.
        signal: Signal,
        /// What it shows, in its unit.
        observed: u64,
        /// What it should show.
        threshold: u64,
        /// Why there is none.
        why: NoVictimReason,
    },
    /// Pods must leave, and none is evicted for a while: the memory of one that was did not come back, and no other pod has it.
    EvictionsHeld {
        /// The pod whose memory stayed.
        uid: PodUid,
        /// The threshold that asks for a victim.
        signal: Signal,
        /// What it shows, in its unit.
        observed: u64,
        /// What it should show.
        threshold: u64,
        /// What stays charged to evicted pods that have ended, bytes.
        retained_bytes: u64,
        /// Until when, unless the node becomes critically short: CLOCK_MONOTONIC, nanoseconds.
        until_ns: u64,
    },
    /// A node condition changed.
    Condition {
        /// Which one.
        condition: NodeCondition,
        /// Its new status.
        status: bool,
    },
}

/// What can be freed on a file system without ending a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReclaimSource {
    /// Logs and local volumes of pods that have ended.
    EndedPods,
    /// Containers that have ended (`containerGC.DeleteAllUnusedContainers` of the kubelet).
    EndedContainers,
    /// Images that no container uses (`imageGC.DeleteUnusedImages`).
    UnusedImages,
}

/// Why a pod is evicted.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Reason {
    /// A threshold is met, and it is the pod's turn.
    Threshold(ThresholdReason),
    /// It has more on disk than it may.
    LocalStorage(LocalStorageReason),
}

impl Reason {
    /// The signal whose threshold is met; `None` if it is about the pod's own limit.
    pub const fn signal(&self) -> Option<Signal> {
        match self {
            Self::Threshold(reason) => Some(reason.signal),
            Self::LocalStorage(_) => None,
        }
    }
}

/// Which threshold is met, and why it is this pod's turn. Amounts are in the signal's unit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ThresholdReason {
    /// The signal whose threshold is met.
    pub signal: Signal,
    /// Whether the threshold is soft (met for its grace period).
    pub soft: bool,
    /// What the signal shows.
    pub observed: u64,
    /// The threshold.
    pub threshold: u64,
    /// What a percentage would be a percentage of.
    pub capacity: u64,
    /// What the victim uses.
    pub usage: u64,
    /// Its request.
    pub request: u64,
    /// Its priority.
    pub priority: i32,
    /// Its place in the ranking, from 1.
    pub rank: u32,
    /// How many pods were ranked.
    pub ranked: u32,
    /// How many before it may not be evicted (static, mirror or critical pods).
    pub exempt: u32,
    /// What decided between it and the next pod in the ranking; `None` if it is the last.
    pub ahead_by: Option<Comparator>,
    /// What disruption budgets had to do with it (option `respectDisruptionBudgets`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption: Option<Disruption>,
    /// The NUMA node that is short, if the signal is about one: usage is what the pod has there, its request the same share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// How often the pod was evicted before: each time something started it again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub evicted_before: u32,
    /// Set if no threshold is met but memory is predicted to run out (option `outOfMemoryForesight`): `threshold` is then what goes
    /// within the horizon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreseen: Option<Foreseen>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What disruption budgets had to do with the choice of a pod.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disruption {
    /// Others before it were passed over: their budgets allow no disruption, and this pod's do.
    PassedOver {
        /// How many.
        pods: u32,
    },
    /// One of its budgets allows no disruption, and the other candidates do not free enough.
    AgainstBudget {
        /// One of its budgets: `namespace/name`.
        budget: Arc<str>,
    },
}

/// Which limit on local storage is exceeded. All bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LocalStorageReason {
    /// What has the limit.
    pub limited: Limited,
    /// What it uses.
    pub usage: u64,
    /// The limit.
    pub limit: u64,
}

/// What has a limit on local storage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limited {
    /// An `emptyDir` with a `sizeLimit`, by name.
    EmptyDir(String),
    /// The pod: the sum of its limits on `ephemeral-storage`.
    Pod,
    /// A container's `ephemeral-storage` limit, by name.
    Container(String),
}

/// Why a pod is killed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// Its grace period is over.
    GraceOver,
    /// Its grace period still runs, but the node cannot wait: half of the hard threshold is used up too.
    HeadroomHalved {
        /// Which signal.
        signal: Signal,
        /// What it shows, in its unit.
        observed: u64,
        /// Half of its threshold.
        limit: u64,
    },
    /// A hard threshold is met, and beside a kubelet it gives no grace period: a container that exits with 0 on SIGTERM would cost the pod's status
    /// its reason.
    NoGrace,
    /// SIGTERM could not be sent.
    TerminateFailed,
    /// The last line in the kernel has killed one of its processes: the others are killed too.
    LastLine {
        /// Why it did.
        reason: LastLineReason,
    },
}

/// How a pod that was being ended finished.
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
    /// All that are left are exempt: static, mirror or critical, or the agent's.
    AllExempt,
}

/// A container of a pod, or the pod.
struct CgroupName<'a>(&'a PodUid, &'a str);

impl fmt::Display for CgroupName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            "" => write!(f, "{}", self.0),
            container => write!(f, "{}, container {container},", self.0),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Threshold(reason) => reason.fmt(f),
            Self::LocalStorage(reason) => reason.fmt(f),
        }
    }
}

impl fmt::Display for LocalStorageReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.limited {
            Limited::EmptyDir(name) => write!(f, "its emptyDir {name}")?,
            Limited::Pod => write!(f, "the pod")?,
            Limited::Container(name) => write!(f, "its container {name}")?,
        }
        write!(
            f,
            " uses {} of local storage, more than its limit of {}",
            Human(self.usage),
            Human(self.limit)
        )
    }
}

/// `memory.available 90Mi < 100Mi`, the sign by the signal's own side.
fn met(f: &mut fmt::Formatter<'_>, signal: Signal, observed: u64, threshold: u64) -> fmt::Result {
    let row = signal.row();
    let sign = match row.operator {
        Operator::GreaterThan => '>',
        Operator::LessThan | Operator::Never => '<',
    };
    write!(
        f,
        "{signal} {} {sign} {}",
        In(row.unit, observed),
        In(row.unit, threshold)
    )
}

impl fmt::Display for ThresholdReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        met(f, self.signal, self.observed, self.threshold)?;
        let unit = self.signal.row().usage_unit();
        if self.soft {
            write!(f, " for its grace period")?;
        }
        if let Some(foreseen) = &self.foreseen {
            let rate = foreseen.rate_bytes_per_s;
            let gone_ms = u128::from(self.observed) * 1000 / u128::from(rate.max(1));
            write!(
                f,
                " (out of memory foreseen: falling by {}/s, exhausted in {gone_ms} ms, horizon {} ms)",
                Human(rate),
                foreseen.horizon_ns / 1_000_000
            )?;
        }
        write!(f, "; it uses {}", In(unit, self.usage))?;
        if let Some(node) = self.numa_node {
            write!(f, " on NUMA node {node}")?;
        }
        write!(f, ", ")?;
        match self.usage.checked_sub(self.request) {
            _ if !matches!(unit, Unit::Bytes | Unit::MilliCpus) => {}
            Some(over) if over > 0 => write!(
                f,
                "{} over its request of {}, ",
                In(unit, over),
                In(unit, self.request)
            )?,
            _ => write!(f, "within its request of {}, ", In(unit, self.request))?,
        }
        write!(
            f,
            "priority {}, rank {} of {}",
            self.priority, self.rank, self.ranked
        )?;
        if self.exempt > 0 {
            write!(f, " ({} before it exempt)", self.exempt)?;
        }
        match &self.disruption {
            Some(Disruption::PassedOver { pods }) => write!(
                f,
                ", {pods} before it passed over because their disruption budgets are used up"
            )?,
            Some(Disruption::AgainstBudget { budget }) => write!(
                f,
                ", though disruption budget {budget} allows no disruption: no other pod frees enough"
            )?,
            None => {}
        }
        if let Some(comparator) = self.ahead_by {
            write!(f, ", ahead of the next by {comparator}")?;
        }
        match self.evicted_before {
            0 => {}
            1 => write!(f, "; evicted once before and started again")?,
            times => write!(f, "; evicted {times} times before and started again")?,
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
                observed,
                limit,
            } => write!(
                f,
                "{signal} fell to {}, below half of its threshold ({}): its grace period is cut short",
                In(signal.row().unit, *observed),
                In(signal.row().unit, *limit)
            ),
            Self::NoGrace => write!(
                f,
                "a hard threshold is met, which gives no grace period beside a kubelet"
            ),
            Self::TerminateFailed => write!(f, "SIGTERM could not be sent"),
            Self::LastLine { reason } => write!(
                f,
                "the last line killed one of its processes ({reason}), so the whole pod is ended"
            ),
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
                grace_s,
                reason,
            } => write!(f, "evict {uid} (grace {grace_s} s): {reason}"),
            Self::Withdraw { uid } => write!(
                f,
                "{uid} stays: a disruption budget refuses its eviction, and another pod can go"
            ),
            Self::End { uid, grace_ms } => {
                write!(f, "end {uid} (grace {grace_ms} ms): its manifest is gone")
            }
            Self::Kill { uid, why } => write!(f, "kill {uid}: {why}"),
            Self::ReleaseMemory { uid } => {
                write!(f, "free the memory of {uid}: killed, still exiting")
            }
            Self::Finished {
                uid,
                ending,
                usage_before_bytes,
                freed_bytes,
            } => {
                let how = match ending {
                    Ending::Freed => "gone",
                    Ending::Lingering => "gone, not all memory freed",
                    Ending::Stuck => "still there",
                };
                write!(
                    f,
                    "{uid} is {how}: {} of {} back",
                    Human(*freed_bytes),
                    Human(*usage_before_bytes)
                )
            }
            Self::ReclaimNode { signal, sources } => {
                write!(f, "free disk space for {signal}:")?;
                for (at, source) in sources.iter().enumerate() {
                    let what = match source {
                        ReclaimSource::EndedPods => "logs and volumes of ended pods",
                        ReclaimSource::EndedContainers => "ended containers",
                        ReclaimSource::UnusedImages => "unused images",
                    };
                    write!(f, "{} {what}", if at > 0 { "," } else { "" })?;
                }
                Ok(())
            }
            Self::ReadStorageEvery { interval_ns } => {
                write!(f, "read file systems every {} ms", interval_ns / 1_000_000)
            }
            Self::Reclaim { uid, bytes, .. } => {
                write!(f, "reclaim {} from {uid}", Human(*bytes))
            }
            Self::StopReclaim { uid } => write!(f, "reclaim no more from {uid}"),
            Self::SetHigh { uid, bytes, .. } => {
                write!(f, "hold {uid} at {} (memory.high)", Human(*bytes))
            }
            Self::ClearHigh { uid } => write!(f, "restore memory.high of {uid}"),
            Self::Notify {
                uid,
                signal,
                shortfall_bytes,
                ..
            } => write!(
                f,
                "signal {uid} with {signal}: {} short",
                Human(*shortfall_bytes)
            ),
            Self::StageEnded {
                uid,
                stage,
                end,
                took_ns,
                ..
            } => write!(
                f,
                "{} of {uid} ended after {} ms: {end}",
                stage.name(),
                took_ns / 1_000_000
            ),
            Self::SetCpu {
                uid,
                container,
                knob,
                us,
                configured_us,
                why,
            } => {
                write!(f, "{knob} of {} = ", CgroupName(uid, container))?;
                write!(f, "{}.{:03} ms, ", us / 1000, us % 1000)?;
                match configured_us {
                    Some(configured_us) => write!(
                        f,
                        "configured {}.{:03} ms",
                        configured_us / 1000,
                        configured_us % 1000
                    )?,
                    None => write!(f, "configured max")?,
                }
                write!(f, ": {why}")
            }
            Self::RestoreCpu {
                uid,
                container,
                knob,
                why,
            } => write!(
                f,
                "{knob} of {} as before: {why}",
                CgroupName(uid, container)
            ),
            Self::NoVictim {
                signal,
                observed,
                threshold,
                why,
            } => {
                let why = match why {
                    NoVictimReason::NoPods => "no pod is running",
                    NoVictimReason::AllExempt => {
                        "every pod left is static, mirror, critical or the agent's"
                    }
                };
                met(f, *signal, *observed, *threshold)?;
                write!(f, ", but {why}")
            }
            Self::EvictionsHeld {
                uid,
                signal,
                observed,
                threshold,
                retained_bytes,
                until_ns,
            } => {
                met(f, *signal, *observed, *threshold)?;
                write!(
                    f,
                    ", but evictions are held until {}.{:03} s: {} of {uid} stay although it has ended (a volume in memory, a memfd \
                     that another pod has open, or pinned pages), and no other pod has them; unmount or remove them",
                    until_ns / 1_000_000_000,
                    until_ns / 1_000_000 % 1000,
                    Human(*retained_bytes)
                )
            }
            Self::Condition { condition, status } => {
                write!(f, "{condition} is {status}")
            }
            Self::Place { assignments } => write!(f, "{assignments}"),
            Self::PlacementRefused { uid, why, runs_on } => {
                let then = match runs_on {
                    true => "it goes on with what it has",
                    false => "it must not be started",
                };
                write!(f, "{uid} does not get what it requests: {why}; {then}")
            }
            Self::PlacementLost { note } => write!(f, "{note}"),
            Self::PlacementFailed { why } => write!(f, "placement unchanged: {why}"),
        }
    }
}
