//! Name, reason, pod and severity of every decision.
//!
//! A new decision needs its row here before anything compiles.

use serde::{Deserialize, Serialize};

use crate::kube::pod_uid::PodUid;
use crate::model::bandwidth::CpuWhy;
use crate::model::decision::{
    Decision, EvictionEnding, KillReason, Limited, NoVictimReason, Reason, RemedyEnd,
};

/// How much something matters to a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// A limit was met, a pod waits, or something is not as it should be.
    Warning,
    /// A pod or a process was ended.
    Critical,
}

/// What there is to say of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Telling<'a> {
    /// Its name, as in the journal.
    pub name: &'static str,
    /// The name of its reason; empty where there is only one.
    pub reason: &'static str,
    /// The pod that it concerns.
    pub pod: Option<&'a PodUid>,
    /// How much it matters. `None`: it only paces the agent and is not printed.
    pub severity: Option<Severity>,
}

impl Decision {
    /// What there is to say of it.
    pub fn telling(&self) -> Telling<'_> {
        use Severity::{Critical, Info, Warning};
        let (name, reason, pod, severity) = match self {
            Self::Arm { .. } => ("arm", "", None, None),
            Self::SampleBy { .. } => ("sample_by", "", None, None),
            Self::Evict { uid, reason, .. } => ("evict", reason.name(), Some(uid), Some(Critical)),
            Self::Withdraw { uid } => ("withdraw", "", Some(uid), Some(Info)),
            Self::End { uid, .. } => ("end", "", Some(uid), Some(Info)),
            Self::Kill { uid, why } => ("kill", why.name(), Some(uid), Some(Critical)),
            Self::ReleaseMemory { uid } => ("release_memory", "", Some(uid), None),
            Self::Finished { uid, ending, .. } => {
                ("finished", ending.name(), Some(uid), Some(Info))
            }
            Self::FreeDisk { signal, .. } => ("free_disk", signal.row().name, None, Some(Info)),
            Self::ReadStorageEvery { .. } => ("read_storage_every", "", None, None),
            Self::Reclaim { uid, .. } => ("reclaim", "", Some(uid), Some(Info)),
            Self::StopReclaim { uid } => ("stop_reclaim", "", Some(uid), None),
            Self::SetHigh { uid, .. } => ("set_high", "", Some(uid), Some(Info)),
            Self::ClearHigh { uid } => ("clear_high", "", Some(uid), Some(Info)),
            Self::Notify { uid, .. } => ("notify", "", Some(uid), Some(Info)),
            Self::RemedyEnded { uid, end, .. } => {
                ("remedy_ended", end.name(), Some(uid), Some(Info))
            }
            Self::Place { .. } => ("place", "", None, Some(Info)),
            Self::PlacementRefused { uid, .. } => {
                ("placement_refused", "", Some(uid), Some(Warning))
            }
            Self::PlacementLost { note } => ("placement_lost", "", Some(&note.pod), Some(Warning)),
            Self::PlacementFailed { .. } => ("placement_failed", "", None, Some(Warning)),
            Self::SetCpu { uid, why, .. } => ("set_cpu", why.name(), Some(uid), Some(Info)),
            Self::RestoreCpu { uid, why, .. } => ("restore_cpu", why.name(), Some(uid), Some(Info)),
            Self::NoVictim { why, .. } => ("no_victim", why.name(), None, Some(Warning)),
            Self::EvictionsHeld { uid, .. } => ("evictions_held", "", Some(uid), Some(Warning)),
            Self::Condition { condition, status } => {
                let severity = if *status { Warning } else { Info };
                ("condition", condition.as_str(), None, Some(severity))
            }
        };
        Telling {
            name,
            reason,
            pod,
            severity,
        }
    }
}

impl Reason {
    /// Its name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Threshold(reason) => reason.signal.row().name,
            Self::LocalStorage(reason) => match reason.limited {
                Limited::EmptyDir(_) => "emptydir_limit",
                Limited::Pod => "pod_storage_limit",
                Limited::Container(_) => "container_storage_limit",
            },
        }
    }
}

impl KillReason {
    /// Its name in metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::GraceOver => "grace_over",
            Self::HeadroomHalved { .. } => "headroom_halved",
            Self::NoGrace => "no_grace",
            Self::TerminateFailed => "terminate_failed",
            Self::FirstProcessesEnded => "first_processes_ended",
            Self::LastLine { .. } => "last_line",
        }
    }
}

impl EvictionEnding {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Freed => "freed",
            Self::Lingering => "lingering",
            Self::Stuck => "stuck",
        }
    }
}

impl RemedyEnd {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resolved => "resolved",
            Self::Exhausted => "exhausted",
            Self::NoProgress => "no_progress",
            Self::BudgetOver => "budget_over",
            Self::NoTime => "no_time",
            Self::PodLeaves => "pod_leaves",
            Self::Unsupported => "unsupported",
            Self::Failed => "failed",
        }
    }
}

impl NoVictimReason {
    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoPods => "no_pods",
            Self::AllExempt => "all_exempt",
        }
    }
}

impl CpuWhy {
    /// Its name in metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Throttled { .. } => "throttled",
            Self::FollowsContainers => "follows_containers",
            Self::Quiet { .. } => "quiet",
            Self::AllowanceSpent { .. } => "allowance_spent",
            Self::NodeBusy { .. } => "node_busy",
            Self::OthersWait { .. } => "others_wait",
            Self::Calm { .. } => "calm",
            Self::BudgetOver { .. } => "budget_over",
            Self::NoEffect { .. } => "no_effect",
            Self::Leaves => "leaves",
            Self::Untouchable => "untouchable",
            Self::NotWritten => "not_written",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::de::DeserializeOwned;

    use super::*;
    use crate::model::event::EventKind;
    use crate::model::signal::{NodeCondition, Signal};

    /// The names of all variants, as serde lists them for one that is unknown.
    fn names<T: DeserializeOwned>(tag: &str) -> BTreeSet<String> {
        let text = serde_json::json!({ tag: "?" });
        let Err(error) = serde_json::from_value::<T>(text) else {
            panic!("{tag}: `?` is a name");
        };
        let error = error.to_string();
        let (_, listed) = error.split_once("expected one of ").unwrap();
        listed
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn the_reference_has_every_event_and_every_decision() {
        let page = include_str!("../../../../docs/reference/journal.md");
        for (tag, expected) in [
            ("event", names::<EventKind>("event")),
            ("decision", names::<Decision>("decision")),
        ] {
            let (_, rows) = page
                .split_once(&format!("| {tag} | meaning |\n|---|---|\n"))
                .unwrap();
            let rows = rows.lines().take_while(|line| !line.is_empty());
            let cells = rows.map(|row| row.split('|').nth(1).unwrap());
            let written: BTreeSet<String> = cells
                .flat_map(|cell| cell.split('`').skip(1).step_by(2))
                .map(str::to_owned)
                .collect();
            assert!(expected.len() > 20, "{tag}: {expected:?}");
            assert_eq!(written, expected, "docs/reference/journal.md: {tag}");
        }
    }

    #[test]
    fn names_are_those_of_the_journal() {
        let uid = PodUid::from("a");
        let decisions = [
            Decision::Arm {
                at_charged_bytes: 1,
            },
            Decision::ReadStorageEvery { interval_ns: 1 },
            Decision::ReleaseMemory { uid: uid.clone() },
            Decision::Kill {
                uid: uid.clone(),
                why: KillReason::GraceOver,
            },
            Decision::NoVictim {
                signal: Signal::PidAvailable,
                observed: 1,
                threshold: 2,
                why: NoVictimReason::AllExempt,
            },
            Decision::PlacementFailed { why: String::new() },
        ];
        for decision in &decisions {
            let json = serde_json::to_value(decision).unwrap();
            let telling = decision.telling();
            assert_eq!(json["decision"], telling.name);
            assert!(telling.reason.is_empty() || json["why"] == telling.reason);
            assert_eq!(json["uid"].as_str(), telling.pod.map(PodUid::as_str));
        }
        let pressure = |status| Decision::Condition {
            condition: NodeCondition::MemoryPressure,
            status,
        };
        assert_eq!(pressure(true).telling().severity, Some(Severity::Warning));
        assert_eq!(pressure(false).telling().severity, Some(Severity::Info));
        assert_eq!(decisions[0].telling().severity, None);
    }
}
