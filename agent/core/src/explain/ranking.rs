//! A ranking with its reasons: each pod's figures, whether it can be chosen, and what sets it apart from its neighbour.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::kube::pod::Exemption;
use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::model::rank_row::{Comparator, RankRow};
use crate::model::signal::Resource;
use crate::model::state::{Leaving, PodState};
use crate::policy::eviction::rank::Ranking;
use crate::policy::eviction::view::View;

/// A pod to be ranked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// `namespace/name`.
    pub pod: String,
    /// Its class. It takes no part in the ranking; people expect it to.
    pub qos_class: QosClass,
    /// Why evictions skip it, if they do.
    pub exempt: Option<Exemption>,
    /// What it is ranked by.
    pub row: RankRow,
}

impl Candidate {
    pub(super) fn new(pod: &PodState, row: RankRow) -> Self {
        Self {
            pod: pod.name.clone(),
            qos_class: pod.pod.qos_class(),
            exempt: pod.exemption(),
            row,
        }
    }
}

/// A pod that is not ranked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotRanked {
    /// `namespace/name`.
    pub pod: String,
    /// Its identity.
    pub uid: PodUid,
    /// Why.
    pub why: NotRankedReason,
}

/// Why a pod is not ranked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NotRankedReason {
    /// It has no processes. Nobody but the agent would end it, its kubelet ends it already, or has not admitted it; or
    /// what runs out is taken by processes alone.
    NotRunning,
    /// It has no processes, and is not known to have left much of what runs out.
    LittleLeft,
    /// It has no processes, and its kubelet has been asked to end it.
    Evicted,
    /// It is not known what it takes of the CPUs or disks.
    NotMeasured,
    /// It was evicted and killed, and is still there.
    Stuck,
}

impl NotRankedReason {
    /// Of a pod that is not among the candidates for `resource`.
    pub(super) fn of(view: &View<'_>, resource: Resource, pod: &PodState) -> Self {
        let was_killed = |leaving: Leaving| leaving.kill_tried_ns.is_some();
        if pod.running {
            return match pod.stuck || pod.leaving.is_some_and(was_killed) {
                true => Self::Stuck,
                false => Self::NotMeasured,
            };
        }
        let by_processes = matches!(resource, Resource::Processes | Resource::Io | Resource::Cpu);
        match pod.is_waiting(view.config) {
            true if by_processes => Self::NotRunning,
            true if view.waits(pod) => Self::LittleLeft,
            true => Self::Evicted,
            false => Self::NotRunning,
        }
    }
}

impl fmt::Display for NotRankedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NotRunning => "no processes, and its eviction would free nothing",
            Self::LittleLeft => "no processes, and not known to have left much",
            Self::Evicted => "no processes, and evicted already",
            Self::NotMeasured => "not known what it takes",
            Self::Stuck => "killed, and still there",
        })
    }
}

/// Where a pod stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EvictionStatus {
    /// The first that can be chosen.
    Next,
    /// Other pods are evicted before it.
    Waits,
    /// Evictions skip it; see [`RankedPod::exempt`].
    Skipped,
}

/// One pod of the ranking.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RankedPod {
    /// Its rank, from 1; exempt pods are counted too, as the kubelet does it.
    pub rank: usize,
    /// `namespace/name`.
    pub pod: String,
    /// Its identity.
    pub uid: PodUid,
    /// Whether it is the next victim.
    pub standing: EvictionStatus,
    /// Why evictions skip it, if they do.
    pub exempt: Option<Exemption>,
    /// Its priority.
    pub priority: i32,
    /// Its class.
    pub qos_class: QosClass,
    /// What it uses; `None` without statistics.
    pub usage: Option<u64>,
    /// What is subtracted from that before amounts are compared, rounded up.
    pub request: u64,
    /// Usage minus request, rounded down; `None` without statistics.
    pub usage_over_request: Option<i64>,
    /// Whether it uses more than it requested.
    pub exceeds_request: bool,
    /// What its namespace uses beyond what it deserves of the cluster, in thousandths of the cluster; 0 unless that
    /// comes before priority.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub overused: u16,
    /// What its namespace uses beyond its share, in thousandths of the share; 0 without one.
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub over_share: u16,
    /// What puts it ahead of the next pod; `None` for the last.
    pub ahead_of_next_by: Option<Comparator>,
}

/// A ranking with its reasons.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedRanking {
    /// What is compared, the most important first.
    pub comparators: Vec<Comparator>,
    /// The pods, the first to be evicted first.
    pub pods: Vec<RankedPod>,
}

impl ExplainedRanking {
    /// Ranks `candidates` exactly as an eviction would.
    pub fn new(ranking: Ranking, mut candidates: Vec<Candidate>) -> Self {
        candidates.sort_unstable_by(|a, b| ranking.compare(&a.row, &b.row));
        let next = candidates
            .iter()
            .position(|candidate| candidate.exempt.is_none());
        let ahead_by: Vec<Comparator> = candidates
            .windows(2)
            .map(|pair| ranking.deciding_comparator(&pair[0].row, &pair[1].row))
            .collect();
        let any = |excess: fn(&RankRow) -> u16| {
            let mut candidates = candidates.iter();
            candidates.any(|candidate| excess(&candidate.row) > 0)
        };
        let (is_over_share, is_overused) = (any(|row| row.over_share), any(|row| row.overused));
        let pods = candidates
            .into_iter()
            .enumerate()
            .map(|(index, candidate)| {
                let standing = match (candidate.exempt, next) {
                    (Some(_), _) => EvictionStatus::Skipped,
                    (None, Some(first)) if first == index => EvictionStatus::Next,
                    (None, _) => EvictionStatus::Waits,
                };
                RankedPod::new(index, candidate, standing, ahead_by.get(index).copied())
            })
            .collect();
        Self {
            comparators: ranking
                .order()
                .iter()
                .copied()
                .filter(|step| match step {
                    Comparator::OverShare => is_over_share,
                    Comparator::Overused => is_overused,
                    _ => true,
                })
                .collect(),
            pods,
        }
    }

    /// The pod that would be evicted.
    pub fn next(&self) -> Option<&RankedPod> {
        self.pods
            .iter()
            .find(|pod| pod.standing == EvictionStatus::Next)
    }
}

impl RankedPod {
    fn new(
        index: usize,
        candidate: Candidate,
        standing: EvictionStatus,
        ahead_of_next_by: Option<Comparator>,
    ) -> Self {
        let Candidate {
            pod,
            qos_class,
            exempt,
            row,
        } = candidate;
        Self {
            rank: index + 1,
            pod,
            standing,
            exempt,
            priority: row.priority,
            qos_class,
            usage: row.stats_known.then_some(row.usage),
            request: row.request.units_up(),
            usage_over_request: row.stats_known.then(|| row.excess().units_down()),
            exceeds_request: row.exceeds_request(),
            overused: row.overused,
            over_share: row.over_share,
            ahead_of_next_by,
            uid: row.uid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::pod::Pod;
    use crate::policy::eviction::rank::Nanos;

    fn candidate(name: &str, usage: Option<u64>, request: u64, exempt: bool) -> Candidate {
        let mut pod = Pod::default();
        pod.metadata.name = name.to_owned();
        let mut row = RankRow::memory(&pod, usage);
        row.request = Nanos::from_units(request);
        row.allowance = row.request;
        Candidate {
            pod: format!("default/{name}"),
            qos_class: pod.qos_class(),
            exempt: exempt.then_some(Exemption::Static),
            row,
        }
    }

    #[test]
    fn the_first_that_is_not_exempt_is_next() {
        let ranking = ExplainedRanking::new(
            Ranking::Memory,
            vec![
                candidate("small", Some(1), 10, false),
                candidate("large", Some(90), 10, false),
                candidate("system", Some(900), 10, true),
                candidate("unknown", None, 10, true),
            ],
        );
        let of = |pod: &RankedPod| (pod.pod.clone(), pod.standing, pod.ahead_of_next_by);
        assert_eq!(
            ranking.pods.iter().map(of).collect::<Vec<_>>(),
            [
                (
                    "default/unknown".into(),
                    EvictionStatus::Skipped,
                    Some(Comparator::MissingStats)
                ),
                (
                    "default/system".into(),
                    EvictionStatus::Skipped,
                    Some(Comparator::UsageOverRequest)
                ),
                (
                    "default/large".into(),
                    EvictionStatus::Next,
                    Some(Comparator::ExceedsRequest)
                ),
                ("default/small".into(), EvictionStatus::Waits, None),
            ]
        );
        assert_eq!(ranking.next().unwrap().rank, 3);
        let small = &ranking.pods[3];
        assert_eq!(
            (small.usage, small.request, small.usage_over_request),
            (Some(1), 10, Some(-9))
        );
        assert_eq!(ranking.pods[0].usage_over_request, None);
    }

    #[test]
    fn no_pod_is_next_where_all_are_exempt() {
        let all = vec![candidate("a", Some(1), 0, true)];
        assert_eq!(ExplainedRanking::new(Ranking::Memory, all).next(), None);
        assert!(
            ExplainedRanking::new(Ranking::Pids, Vec::new())
                .pods
                .is_empty()
        );
    }

    #[test]
    fn json_is_read_back() {
        let ranking = ExplainedRanking::new(Ranking::Disk, vec![candidate("a", Some(1), 0, true)]);
        let json = serde_json::to_value(&ranking).unwrap();
        assert_eq!(json["pods"][0]["exempt"], "static");
        assert_eq!(
            serde_json::from_value::<ExplainedRanking>(json).unwrap(),
            ranking
        );
    }
}
