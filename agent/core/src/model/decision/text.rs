//! Decisions and their reasons in words.

use std::fmt;

use super::*;
use crate::model::amount::{Human, Unit};

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
        if self.is_usage_unknown {
            write!(f, "; how much it uses is unknown")?;
        } else {
            write!(f, "; it uses {}", In(unit, self.usage))?;
        }
        if let Some(node) = self.numa_node {
            write!(f, " on NUMA node {node}")?;
        }
        write!(f, ", ")?;
        match self.usage.checked_sub(self.request) {
            _ if self.is_usage_unknown => {}
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
            Self::FirstProcessesEnded => write!(
                f,
                "the first process of each of its containers has ended, so what is left is ended too"
            ),
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
                    EvictionEnding::Freed => "gone",
                    EvictionEnding::Lingering => "gone, not all memory freed",
                    EvictionEnding::Stuck => "still there",
                };
                write!(
                    f,
                    "{uid} is {how}: {} of {} freed",
                    Human(*freed_bytes),
                    Human(*usage_before_bytes)
                )
            }
            Self::FreeDisk { signal, sources } => {
                write!(f, "free disk space for {signal}:")?;
                for (at, source) in sources.iter().enumerate() {
                    let what = match source {
                        FreeSource::EndedPods => "logs and volumes of ended pods",
                        FreeSource::EndedContainers => "ended containers",
                        FreeSource::UnusedImages => "unused images",
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
            Self::StopReclaim { uid } => write!(f, "stop reclaiming from {uid}"),
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
            Self::RemedyEnded {
                uid,
                remedy,
                end,
                took_ns,
                ..
            } => write!(
                f,
                "{} of {uid} ended after {} ms: {end}",
                remedy.name(),
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
