//! One pod: where it stands, what sets it apart from its neighbours, and what would have to change for it to be safe.

use serde::{Deserialize, Serialize};

use crate::explain::limit_defaults::LimitDefaults;
use crate::explain::ranking::{
    Candidate, EvictionStatus, ExplainedRanking, NotRankedReason, RankedPod,
};
use crate::kube::pod::Exemption;
use crate::kube::pod_uid::PodUid;
use crate::kube::qos::QosClass;
use crate::model::rank_row::{Comparator, Nanos, RankRow};
use crate::model::signal::Resource;
use crate::model::state::{NodeState, PodState};
use crate::policy::eviction::rank::Ranking;
use crate::policy::eviction::view::View;

/// No pod, or more than one, has the name that was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoSuchPod {
    /// None.
    #[error("no pod is called {name:?}; {}", known(.pods))]
    Unknown {
        /// As asked for.
        name: String,
        /// The pods that there are.
        pods: Vec<String>,
    },
    /// Several.
    #[error("several pods are called {name:?}; ask for one of {}", .pods.join(", "))]
    Ambiguous {
        /// As asked for.
        name: String,
        /// Those.
        pods: Vec<String>,
    },
}

/// Pods named in a message, at most.
const NAMED_MAX: usize = 20;

fn known(pods: &[String]) -> String {
    let shown = pods.len().min(NAMED_MAX);
    match pods.len() {
        0 => "there are no pods".to_owned(),
        all if all > shown => format!(
            "there are {}, and {} more",
            pods[..shown].join(", "),
            all - shown
        ),
        _ => format!("there are {}", pods.join(", ")),
    }
}

/// The pod that is called `name`: a UID, `namespace/name`, or a name that only one has.
///
/// # Errors
/// [`NoSuchPod`].
pub fn find<'state>(state: &'state NodeState, name: &str) -> Result<&'state PodState, NoSuchPod> {
    if let Some(pod) = state.pods.get(&PodUid::from(name)) {
        return Ok(pod);
    }
    let full: Vec<&PodState> = state.pods.values().filter(|pod| pod.name == name).collect();
    let found = if full.is_empty() {
        let short = state.pods.values();
        short.filter(|pod| pod.pod.metadata.name == name).collect()
    } else {
        full
    };
    let names = |pods: &[&PodState]| pods.iter().map(|pod| pod.name.clone()).collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err(NoSuchPod::Unknown {
            name: name.to_owned(),
            pods: state.pods.values().map(|pod| pod.name.clone()).collect(),
        }),
        _ => Err(NoSuchPod::Ambiguous {
            name: name.to_owned(),
            pods: names(&found),
        }),
    }
}

/// One pod in a ranking.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedPod {
    /// `namespace/name`.
    pub pod: String,
    /// Its identity.
    pub uid: PodUid,
    /// Its class.
    pub qos_class: QosClass,
    /// Its priority.
    pub priority: i32,
    /// The class that its priority came from.
    pub priority_class_name: Option<String>,
    /// Why evictions skip it, if they do.
    pub exempt: Option<Exemption>,
    /// Whether it is on its way out.
    pub leaving: bool,
    /// Its seconds between SIGTERM and SIGKILL, for a soft threshold.
    pub termination_grace_period_s: u64,
    /// `memory.current`, bytes.
    pub memory_usage_bytes: Option<u64>,
    /// The working set, bytes.
    pub memory_working_set_bytes: Option<u64>,
    /// What of that its cgroup is not charged for, bytes ([`uncharged`](crate::model::uncharged)).
    #[serde(default, skip_serializing_if = "crate::zero::is_zero")]
    pub memory_uncharged_bytes: u64,
    /// Where it stands; `None`: it is not ranked.
    pub ranked: Option<RankedPod>,
    /// Why it is not ranked, if it is not.
    pub not_ranked: Option<NotRankedReason>,
    /// The pod before it, and what puts that ahead.
    pub before: Option<Neighbour>,
    /// The pod after it, and what puts this ahead.
    pub after: Option<Neighbour>,
    /// Pods that would be evicted before it, without exempt ones.
    pub shielded_by: usize,
    /// Changes that would put another pod in its place; each alone suffices. Empty unless it is the next victim.
    pub ways_out: Vec<WayOut>,
    /// The usage at which it would be the next victim; `None`: it is already, or usage alone never makes it so.
    pub next_at_usage: Option<u64>,
    /// What LimitRanges have set in it, if they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_defaults: Option<LimitDefaults>,
}

/// A pod beside another in a ranking.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Neighbour {
    /// `namespace/name`.
    pub pod: String,
    /// What sets both apart.
    pub by: Comparator,
}

/// A change that puts another pod in a pod's place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    tag = "change",
    rename_all_fields = "camelCase"
)]
pub enum WayOut {
    /// Statistics of it: without them it is evicted first.
    Statistics,
    /// It uses no more than this.
    UsageAtMost {
        /// In the unit of the ranking.
        usage: u64,
    },
    /// It requests at least this.
    RequestAtLeast {
        /// In the unit of the ranking.
        request: u64,
    },
    /// Its priority is at least this.
    PriorityAtLeast {
        /// As in `spec.priority`.
        priority: i32,
    },
}

impl ExplainedPod {
    pub(crate) fn new(
        view: &View<'_>,
        resource: Resource,
        pod: &PodState,
        candidate: Option<Candidate>,
        candidates: &[Candidate],
    ) -> Self {
        let capacity_bytes = view.state.node.map(|node| node.memory.capacity_bytes);
        let ranking = resource.ranking();
        let explained = ExplainedRanking::new(ranking, candidates.to_vec());
        let at = explained
            .pods
            .iter()
            .position(|entry| entry.uid == pod.row.uid);
        let ranked = at.map(|at| explained.pods[at].clone());
        let neighbour = |neighbour: Option<&RankedPod>, by: Option<Comparator>| {
            let (neighbour, by) = neighbour.zip(by)?;
            Some(Neighbour {
                pod: neighbour.pod.clone(),
                by,
            })
        };
        let previous = at
            .and_then(|at| at.checked_sub(1))
            .map(|at| &explained.pods[at]);
        let following = at.and_then(|at| explained.pods.get(at + 1));
        let before = neighbour(previous, previous.and_then(|entry| entry.ahead_of_next_by));
        let after = neighbour(
            following,
            ranked.as_ref().and_then(|entry| entry.ahead_of_next_by),
        );
        let shielded_by = explained.pods[..at.unwrap_or(0)]
            .iter()
            .filter(|entry| entry.exempt.is_none())
            .count();
        // The first other pod that can be chosen: a pod that ranks behind it is safe while it runs.
        let rival = candidates
            .iter()
            .filter(|other| other.exempt.is_none() && other.row.uid != pod.row.uid)
            .min_by(|a, b| ranking.compare(&a.row, &b.row));
        let standing = ranked.as_ref().map(|entry| entry.standing);
        let (mut ways, mut next_at_usage) = (Vec::new(), None);
        if let (Some(candidate), Some(rival)) = (&candidate, rival) {
            match standing {
                Some(EvictionStatus::Next) => {
                    ways = ways_out(resource, ranking, &candidate.row, &rival.row);
                }
                Some(EvictionStatus::Waits) => {
                    next_at_usage = usage_to_be_next(ranking, &candidate.row, &rival.row);
                }
                _ => {}
            }
        }
        Self {
            pod: pod.name.clone(),
            uid: pod.row.uid.clone(),
            qos_class: pod.pod.qos_class(),
            priority: pod.pod.priority(),
            priority_class_name: pod.pod.spec.priority_class_name.clone(),
            exempt: pod.exemption(),
            leaving: pod.leaving.is_some(),
            termination_grace_period_s: pod.termination_grace_period_s,
            memory_usage_bytes: pod.memory.map(|memory| memory.usage_bytes),
            memory_working_set_bytes: pod.memory.map(|memory| memory.working_set_bytes),
            memory_uncharged_bytes: pod.memory.map_or(0, |memory| memory.uncharged_bytes),
            not_ranked: match ranked {
                Some(_) => None,
                None => Some(NotRankedReason::of(view, resource, pod)),
            },
            ranked,
            before,
            after,
            shielded_by,
            ways_out: ways,
            next_at_usage,
            limit_defaults: LimitDefaults::of(&pod.pod, capacity_bytes),
        }
    }
}

/// The smallest of `0..=u64::MAX` for which `holds`, which stays true once it is: 64 steps.
fn smallest(holds: impl Fn(u64) -> bool) -> Option<u64> {
    if !holds(u64::MAX) {
        return None;
    }
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(low)
}

/// Changes after which `rival` is evicted before `row`, each checked with the ranking itself.
fn ways_out(resource: Resource, ranking: Ranking, row: &RankRow, rival: &RankRow) -> Vec<WayOut> {
    let is_behind = |changed: &RankRow| ranking.compare(changed, rival).is_gt();
    let mut ways = Vec::new();
    if !row.stats_known {
        ways.push(WayOut::Statistics);
        return ways;
    }
    // The less it uses, the later it is evicted: find the least usage that is not behind.
    let with_usage = |usage| RankRow {
        usage,
        ..row.clone()
    };
    let ahead_from = smallest(|usage| !is_behind(&with_usage(usage)));
    if let Some(usage) = ahead_from.and_then(|usage| usage.checked_sub(1)) {
        ways.push(WayOut::UsageAtMost { usage });
    }
    // Inodes, processes and disk traffic cannot be requested.
    if matches!(
        resource,
        Resource::Memory | Resource::DiskBytes(_) | Resource::Cpu
    ) {
        let with_request = |request| {
            let request = Nanos::from_units(request);
            RankRow {
                allowance: request,
                request,
                ..row.clone()
            }
        };
        if let Some(request) = smallest(|request| is_behind(&with_request(request))) {
            ways.push(WayOut::RequestAtLeast { request });
        }
    }
    let with_priority = |priority| RankRow {
        priority,
        ..row.clone()
    };
    let above = [rival.priority, rival.priority.saturating_add(1)];
    let above = above
        .into_iter()
        .filter(|priority| *priority > row.priority);
    if let Some(priority) = above
        .into_iter()
        .find(|priority| is_behind(&with_priority(*priority)))
    {
        ways.push(WayOut::PriorityAtLeast { priority });
    }
    ways
}

/// The least usage with which `row` is evicted before `rival`.
fn usage_to_be_next(ranking: Ranking, row: &RankRow, rival: &RankRow) -> Option<u64> {
    let ahead = |usage| {
        let changed = RankRow {
            usage,
            ..row.clone()
        };
        ranking.compare(&changed, rival).is_lt()
    };
    smallest(ahead).filter(|usage| row.stats_known && *usage > row.usage)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(uid: &str, priority: i32, usage: u64, request: u64) -> RankRow {
        let request = Nanos::from_units(request);
        RankRow {
            uid: PodUid::from(uid),
            exempt: false,
            unnamed: 0,
            stats_known: true,
            priority,
            overused: 0,
            over_share: 0,
            usage,
            allowance: request,
            request,
        }
    }

    #[test]
    fn each_way_out_is_the_least_that_suffices() {
        let ways = |candidate: &RankRow, rival: &RankRow| {
            ways_out(Resource::Memory, Ranking::Memory, candidate, rival)
        };
        // Both exceed: 90 over request against 40.
        assert_eq!(
            ways(&row("a", 0, 100, 10), &row("b", 0, 50, 10)),
            [
                WayOut::UsageAtMost { usage: 49 },
                WayOut::RequestAtLeast { request: 61 },
                WayOut::PriorityAtLeast { priority: 1 }
            ]
        );
        // The rival is within its request: only being so too helps, and then the amount decides.
        assert_eq!(
            ways(&row("a", 0, 100, 50), &row("b", 0, 5, 10)),
            [
                WayOut::UsageAtMost { usage: 44 },
                WayOut::RequestAtLeast { request: 106 },
            ]
        );
        let unknown = RankRow {
            stats_known: false,
            ..row("a", 0, 0, 10)
        };
        assert_eq!(ways(&unknown, &row("b", 0, 5, 10)), [WayOut::Statistics]);
        assert_eq!(
            ways_out(
                Resource::Processes,
                Ranking::Pids,
                &row("a", 0, 9, 0),
                &row("b", 0, 7, 0)
            ),
            [
                WayOut::UsageAtMost { usage: 6 },
                WayOut::PriorityAtLeast { priority: 1 }
            ]
        );
    }

    proptest! {
        #[test]
        fn ways_out_suffice_and_one_less_does_not(
            candidate in (0i32..3, 0u64..40, 0u64..40), other in (0i32..3, 0u64..40, 0u64..40),
        ) {
            let (candidate, rival) = (row("a", candidate.0, candidate.1, candidate.2), row("b", other.0, other.1, other.2));
            prop_assume!(Ranking::Memory.compare(&candidate, &rival).is_lt());
            for way in ways_out(Resource::Memory, Ranking::Memory, &candidate, &rival) {
                let behind = |changed: RankRow| Ranking::Memory.compare(&changed, &rival).is_gt();
                let (enough, less) = match way {
                    WayOut::Statistics => unreachable!(),
                    WayOut::UsageAtMost { usage } => {
                        let with = |usage| RankRow { usage, ..candidate.clone() };
                        (behind(with(usage)), behind(with(usage + 1)))
                    }
                    WayOut::RequestAtLeast { request } => {
                        let with = |request| row("a", candidate.priority, candidate.usage, request);
                        (behind(with(request)), request > 0 && behind(with(request - 1)))
                    }
                    WayOut::PriorityAtLeast { priority } => {
                        let with = |priority| RankRow { priority, ..candidate.clone() };
                        (behind(with(priority)), behind(with(priority - 1)))
                    }
                };
                prop_assert!(enough && !less, "{way:?}");
            }
        }

        #[test]
        fn the_usage_that_makes_it_next_is_the_least(
            candidate in (0i32..3, 0u64..40, 0u64..40), other in (0i32..3, 0u64..40, 0u64..40),
        ) {
            let (candidate, rival) = (row("b", candidate.0, candidate.1, candidate.2), row("a", other.0, other.1, other.2));
            prop_assume!(Ranking::Memory.compare(&candidate, &rival).is_gt());
            let ahead = |usage| Ranking::Memory.compare(&RankRow { usage, ..candidate.clone() }, &rival).is_lt();
            match usage_to_be_next(Ranking::Memory, &candidate, &rival) {
                Some(usage) => prop_assert!(ahead(usage) && !ahead(usage - 1)),
                None => prop_assert!(!ahead(u64::MAX)),
            }
        }
    }
}
