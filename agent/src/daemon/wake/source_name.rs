//! The optional sources by their names, and what follows from the loss of each.

use crate::probe::ladder::{LADDER, LadderSignal};

/// A source that has failed.
#[derive(Debug)]
pub(in crate::daemon) struct Lost {
    pub(in crate::daemon) name: SourceName,
    pub(in crate::daemon) error: String,
}

/// The optional sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) enum SourceName {
    CriticalRing,
    LifecycleRing,
    PsiTrigger,
    StallTriggers,
    Usage,
    PressureLevel,
    PodEvents,
    CgroupWatch,
    Manifests,
    Cluster,
    Nri,
    Devices,
    Storage,
    Remedies,
    Placement,
    CpuTime,
    Snapshots,
}

impl SourceName {
    /// All of them.
    #[cfg(test)]
    pub(in crate::daemon) const ALL: [Self; 17] = [
        Self::CriticalRing,
        Self::LifecycleRing,
        Self::PsiTrigger,
        Self::StallTriggers,
        Self::Usage,
        Self::PressureLevel,
        Self::PodEvents,
        Self::CgroupWatch,
        Self::Manifests,
        Self::Cluster,
        Self::Nri,
        Self::Devices,
        Self::Storage,
        Self::Remedies,
        Self::Placement,
        Self::CpuTime,
        Self::Snapshots,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CriticalRing => "the ring buffer of urgent records",
            Self::LifecycleRing => "the ring buffer of cgroup records",
            Self::PsiTrigger => "the PSI trigger",
            Self::StallTriggers => "the PSI triggers of thresholds",
            Self::Usage => "the cgroup v1 usage notification",
            Self::PressureLevel => "memory.pressure_level",
            Self::PodEvents => "the memory events of pods",
            Self::CgroupWatch => "the watch of the cgroup directories",
            Self::Manifests => "the watch of the manifests",
            Self::Cluster => "the thread for plimsoll-cluster",
            Self::Nri => "the thread for NRI",
            Self::Devices => "the thread for what the kubelet has given",
            Self::Storage => "the reading of disks",
            Self::Remedies => "the thread for remedies",
            Self::Placement => "the thread for placement",
            Self::CpuTime => "the thread for CPU time",
            Self::Snapshots => "the server of snapshots",
        }
    }

    /// What follows from its loss; where the ladder knows it, in the ladder's words.
    pub(super) fn loss(self) -> &'static str {
        match self {
            Self::CriticalRing | Self::Usage => lowest_rung(LadderSignal::MemoryThreshold),
            Self::LifecycleRing | Self::CgroupWatch => lowest_rung(LadderSignal::CgroupLifecycle),
            Self::PressureLevel => lowest_rung(LadderSignal::NodeReclaim),
            Self::PsiTrigger => {
                "nothing wakes plimsoll when tasks stall on memory and all else is silent"
            }
            Self::StallTriggers => "averages of pressure are seen by the next sample, not at once",
            Self::PodEvents => "events at pods' limits are seen by the next rescan, not at once",
            Self::Manifests => "pods that come or go from now on are not known",
            Self::Cluster => "names of new pods are not known, and evictions are not reported",
            Self::Nri => "scores, holds and CPUs are applied when a container has started",
            Self::Devices => "containers are not placed near to their devices",
            Self::Storage => "disk thresholds get no new figures, so no pod is evicted for them",
            Self::Remedies => "results of remedies are seen only in samples",
            Self::Placement => {
                "containers that come from now on are not placed, nor is anything moved"
            }
            Self::CpuTime => "CPU quotas stay as last set",
            Self::Snapshots => {
                "commands that ask the agent (explain, top, health and others) get no answer"
            }
        }
    }
}

/// What is lost when a signal is left to sampling.
fn lowest_rung(signal: LadderSignal) -> &'static str {
    let row = LADDER.iter().find(|row| row.signal == signal);
    row.and_then(|row| row.rungs.last())
        .map_or("", |rung| rung.lost)
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, error } = self;
        write!(
            f,
            "{} failed and is no longer used: {error}; {}; restart plimsoll to use it again",
            name.name(),
            name.loss()
        )
    }
}
