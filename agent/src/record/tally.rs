//! What the loop counts of its own work, for those who ask on other threads, such as the metrics page.
//!
//! **Problem.** Counting must cost nothing that a kill would wait for, and readers must not hold up the loop.
//! **Approach.** Plain numbers in the loop's own memory, copied with a [`Snapshot`](crate::record::snapshot::Snapshot).
//! On the way to a kill only numbers in place are raised; what needs a map is counted when decisions are told, which is
//! after the act.
//!
//! **Terms.** *Crossing*: the kernel's stamp of what set off a sample, CLOCK_MONOTONIC. *Reaction*: from there until
//! the engine had decided.

use std::collections::BTreeMap;

use plimsoll_core::model::decision::Decision;
use plimsoll_core::model::event::Cause;
use plimsoll_core::protocol::runtime_link::Answer;

use crate::record::timeline::{Finished, crossed_ns};

/// Upper bounds of the buckets, nanoseconds: from a ring buffer's wake-up to a pod that takes its whole grace period.
pub const BOUNDS_NS: [u64; 20] = [
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
];

/// How often something took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// By bucket of [`BOUNDS_NS`], each without those before it; the last is for what took longer.
    pub counts: [u64; BOUNDS_NS.len() + 1],
    /// All of them together, nanoseconds.
    pub sum_ns: u64,
    /// The longest, nanoseconds.
    pub max_ns: u64,
}

impl Latencies {
    /// Counts one. Allocates nothing.
    pub fn add(&mut self, ns: u64) {
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.counts[bucket] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Processes that the kernel's OOM killer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomKillCounts {
    /// In pods.
    pub of_pods: u64,
    /// Elsewhere.
    pub elsewhere: u64,
    /// In a storm that was too quick to look at each.
    pub unknown: u64,
}

impl OomKillCounts {
    /// Counts so many victims, in a pod or not.
    pub fn add(&mut self, of_pod: bool, kills: u64) {
        *if of_pod {
            &mut self.of_pods
        } else {
            &mut self.elsewhere
        } += kills;
    }
}

/// How soon the agent answered, by what the kernel had reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reactions {
    /// The charge threshold was crossed.
    pub charge_threshold: Latencies,
    /// kswapd was woken.
    pub kswapd_wake: Latencies,
    /// A task had to reclaim by itself.
    pub direct_reclaim: Latencies,
}

/// How evictions went that a crossing had set off, each from the crossing on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Until the pod was chosen.
    pub decided: Latencies,
    /// Until its last process was gone.
    pub gone: Latencies,
    /// Until its memory was back, or the wait for it was over.
    pub freed: Latencies,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Decisions told, by name and reason ([`Decision::telling`]).
    pub decisions: BTreeMap<(&'static str, &'static str), u64>,
    /// Victims of the kernel's OOM killer.
    pub oom_kills: OomKillCounts,
    /// Processes that the last line in the kernel killed.
    pub last_line_kills: u64,
    /// How long the last line in the kernel holds after the agent's last sign of life, nanoseconds; `None` where there
    /// is none.
    pub last_line_holds_ns: Option<u64>,
    /// How soon samples led to a decision, whatever that was.
    pub reactions: Reactions,
    /// How evictions went.
    pub evictions: Evictions,
    /// How long the turns of the loop took.
    pub turns: Latencies,
    /// Whether the pods that are wanted have been read once.
    pub pods_listed: bool,
    /// Whether pods are watched: they have been listed, or had their time to be and were found by their cgroups.
    pub pods_watched: bool,
    /// Lines of output that did not fit into their queue.
    pub lines_lost: u64,
    /// Kills and removals in cgroups of pods that found no room in the queue of their thread.
    pub cgroup_work_refused: u64,
    /// Warnings about pods of which there were too many in a row.
    pub pod_warnings_left_out: u64,
    /// Killed pods whose memory the agent did not free, because it was at those of others.
    pub releases_refused: u64,
    /// Pods of manifests that were admitted, and those that were refused: each once, however often it asks again.
    pub admissions: [u64; 2],
    /// How often the kill thread wrote `cgroup.kill`, how long that took in all, and the longest of them, nanoseconds.
    pub kill_writes: (u64, u64, u64),
    /// Optional sources that failed while the agent ran.
    pub sources_lost: u64,
    /// Directories of cgroups that inotify does not watch; `None` where it watches none.
    pub cgroups_unwatched: Option<u64>,
    /// Of the reports to `plimsoll-cluster`; `None` where there is no kubelet.
    pub reports: Option<ReportCounts>,
    /// What came of placement; `None` where nothing is to be placed.
    pub placement: Option<PlacementTally>,
    /// What the container runtime was answered; `None` where it does not ask this agent.
    pub nri: Option<NriTally>,
    /// Steps that are missing from the journal; `None` if there is no journal.
    pub journal_steps_lost: Option<u64>,
}

/// What came of placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementTally {
    /// Nobody else keeps the agent from it.
    pub is_active: bool,
    /// Files of cgroups that were written.
    pub writes: u64,
    /// Writes that failed, or could not be made yet, at the last look.
    pub failed: u64,
    /// CPUs that are online and that no pod can use, at the last look.
    pub cpus_outside: u64,
    /// Reports of the thread that found no room in their queue.
    pub reports_lost: u64,
}

/// What was counted of the connection to `plimsoll-cluster`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReportCounts {
    /// Evictions whose report is not settled.
    pub unsettled: u64,
    /// Evictions that are never reported one by one.
    pub unreported: u64,
    /// Frames that were refused.
    pub refused_frames: u64,
    /// Clients that were refused.
    pub refused_clients: u64,
    /// `plimsoll-cluster` is connected.
    pub is_connected: bool,
}

/// What the container runtime was answered when it made containers (NRI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NriTally {
    /// It asks.
    pub is_connected: bool,
    /// Containers that it made, or changed, as their specification had them, because nothing was known of them.
    pub unchanged: u64,
    /// Containers that it made, or changed, with a score, CPUs or memory nodes of ours.
    pub changed: u64,
    /// Containers that it did not make.
    pub refused: u64,
    /// Of so many more containers the agent did not hear, because it was busy.
    pub dropped: u64,
}

impl NriTally {
    /// The runtime was answered so.
    pub fn count(&mut self, answer: &Answer) {
        *match answer {
            Answer::Unchanged => &mut self.unchanged,
            Answer::Adjusted(_) => &mut self.changed,
            Answer::Refused(_) => &mut self.refused,
        } += 1;
    }
}

impl Tally {
    /// The engine has answered a sample. Of crossings before `since_ns`, which an earlier agent left, nothing can be
    /// said. Allocates nothing.
    pub fn reacted(&mut self, cause: Cause, since_ns: u64, decided_ns: u64) {
        let latencies = match cause {
            Cause::ChargeThreshold { .. } => &mut self.reactions.charge_threshold,
            Cause::KswapdWake { .. } => &mut self.reactions.kswapd_wake,
            Cause::DirectReclaim { .. } => &mut self.reactions.direct_reclaim,
            _ => return,
        };
        if let Some(crossed_ns) = crossed_ns(cause).filter(|crossed_ns| *crossed_ns >= since_ns) {
            latencies.add(decided_ns.saturating_sub(crossed_ns));
        }
    }

    /// A decision was carried out and is told.
    pub fn decided(&mut self, decision: &Decision) {
        let telling = decision.telling();
        let count = self.decisions.entry((telling.name, telling.reason));
        *count.or_default() += 1;
    }

    /// An evicted pod has left. Of crossings before `since_ns` nothing is said here either.
    pub fn finished(&mut self, finished: &Finished, since_ns: u64) {
        let timeline = &finished.timeline;
        let Some(crossed_ns) = timeline.crossed_ns.filter(|it| *it >= since_ns) else {
            return;
        };
        let evictions = &mut self.evictions;
        evictions
            .decided
            .add(timeline.decided_ns.saturating_sub(crossed_ns));
        if let Some(gone_ns) = timeline.gone_ns {
            evictions.gone.add(gone_ns.saturating_sub(crossed_ns));
        }
        evictions
            .freed
            .add(finished.freed_ns.saturating_sub(crossed_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::kube::pod_uid::PodUid;
    use plimsoll_core::model::decision::KillReason;

    #[test]
    fn a_latency_is_in_the_first_bucket_that_holds_it() {
        let mut latencies = Latencies::default();
        for ns in [0, 25_000, 25_001, 60_000_000_000, u64::MAX] {
            latencies.add(ns);
        }
        assert_eq!(latencies.counts[..2], [2, 1]);
        assert_eq!(latencies.counts[BOUNDS_NS.len() - 1..], [1, 1]);
        assert_eq!((latencies.count(), latencies.sum_ns), (5, u64::MAX));
        assert!(BOUNDS_NS.is_sorted());
    }

    #[test]
    fn crossings_before_the_agent_came_are_not_its_reactions() {
        let mut tally = Tally::default();
        let cause = |crossed_ns| Cause::KswapdWake { crossed_ns };
        tally.reacted(cause(99), 100, 200);
        tally.reacted(cause(100), 100, 200);
        tally.reacted(Cause::Timer, 100, 200);
        assert_eq!(tally.reactions.kswapd_wake.count(), 1);
        assert_eq!(tally.reactions.kswapd_wake.sum_ns, 100);
        assert_eq!(tally.reactions.charge_threshold.count(), 0);
    }

    #[test]
    fn decisions_are_counted_by_name_and_reason() {
        let uid = PodUid::from("u");
        let kill = |why| Decision::Kill {
            uid: uid.clone(),
            why,
        };
        let mut tally = Tally::default();
        for decision in [
            kill(KillReason::GraceOver),
            kill(KillReason::TerminateFailed),
            kill(KillReason::GraceOver),
            Decision::SampleBy { at_ns: 1 },
        ] {
            tally.decided(&decision);
        }
        let counts = [
            (("kill", "grace_over"), 2),
            (("kill", "terminate_failed"), 1),
            (("sample_by", ""), 1),
        ];
        assert_eq!(tally.decisions, BTreeMap::from(counts));
    }
}
