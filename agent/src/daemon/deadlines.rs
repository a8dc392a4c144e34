//! The instants at which the loop does something without being woken.

/// Instants of CLOCK_MONOTONIC, nanoseconds; `None`: nothing to do at any time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Deadlines {
    /// A sample: asked for by the engine, or 0 when something has changed that the engine cannot know yet.
    pub(super) sample_ns: u64,
    /// The rescan of pods, see [`super::rescan`].
    pub(super) rescan_ns: u64,
    /// Rest of the lifecycle ring; its descriptor will not signal again.
    pub(super) lifecycle_rest_ns: Option<u64>,
    /// The report of the kernel's OOM kills, when no more victims arrive.
    pub(super) oom_kills_ns: Option<u64>,
    /// The kills of the last line, which wait until the manifests have been read.
    pub(super) last_line_kills_ns: Option<u64>,
    /// The renewal of the last line; comes with a sample.
    pub(super) last_line_ns: Option<u64>,
    /// The scores of processes that were put into cgroups.
    pub(super) oom_scores_ns: Option<u64>,
    /// The next order to the threads that look after disks.
    pub(super) storage_ns: Option<u64>,
    /// What an eviction beside a kubelet waits for.
    pub(super) kubelet_ns: Option<u64>,
}

impl Deadlines {
    /// When the loop has to wake at the latest.
    pub(super) fn earliest_ns(&self) -> u64 {
        let Self {
            sample_ns,
            rescan_ns,
            lifecycle_rest_ns,
            oom_kills_ns,
            last_line_kills_ns,
            last_line_ns,
            oom_scores_ns,
            storage_ns,
            kubelet_ns,
        } = *self;
        [
            lifecycle_rest_ns,
            oom_kills_ns,
            last_line_kills_ns,
            last_line_ns,
            oom_scores_ns,
            storage_ns,
            kubelet_ns,
        ]
        .into_iter()
        .flatten()
        .fold(sample_ns.min(rescan_ns), u64::min)
    }

    /// Whether a sample is to be taken now.
    pub(super) fn is_sample_due(&self, now_ns: u64) -> bool {
        self.last_line_ns
            .map_or(self.sample_ns, |at_ns| at_ns.min(self.sample_ns))
            <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instant_can_be_the_earliest() {
        let late = Deadlines {
            sample_ns: 50,
            rescan_ns: 60,
            ..Deadlines::default()
        };
        assert_eq!(late.earliest_ns(), 50);
        let set: [fn(&mut Deadlines); 9] = [
            |it| it.sample_ns = 7,
            |it| it.rescan_ns = 7,
            |it| it.lifecycle_rest_ns = Some(7),
            |it| it.oom_kills_ns = Some(7),
            |it| it.last_line_kills_ns = Some(7),
            |it| it.last_line_ns = Some(7),
            |it| it.oom_scores_ns = Some(7),
            |it| it.storage_ns = Some(7),
            |it| it.kubelet_ns = Some(7),
        ];
        for (index, set) in set.into_iter().enumerate() {
            let mut deadlines = late;
            set(&mut deadlines);
            assert_eq!(deadlines.earliest_ns(), 7);
            // The engine's time, and the renewal of the last line, which acknowledges a sample.
            assert_eq!(deadlines.is_sample_due(7), [0, 5].contains(&index));
            assert!(!deadlines.is_sample_due(6));
        }
    }
}
