//! What limits have cost a pod: counts, and totals with what of them is recent.
//!
//! The daemon counts, the journal keeps, and `explain` and `top` show them. No decision depends on them.

use serde::{Deserialize, Serialize};

/// Shorter waits for memory are added up until they are worth a line.
const WAITED_NS: u64 = 10_000_000;

/// What is recent is counted over one to two of these.
const RECENT_NS: u64 = 5_000_000_000;

/// Fewer pages that are read back are, too: 1 MiB.
const READ_BACK_PAGES: u64 = 256;

/// What a pod's limits have cost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitCounts {
    /// `memory.high` was exceeded and tasks were sent to reclaim. Always 0 on cgroup v1, which has no such limit.
    pub high: u64,
    /// A charge met `memory.max` (v1: `memory.limit_in_bytes`) and had to reclaim first.
    pub max: u64,
    /// Reclaim made no room. 0 on cgroup v1 without BPF: its files do not count it.
    pub oom: u64,
    /// Reclaimed from although below `memory.low`. 0 on cgroup v1, and on kernels before 7.2 where BPF counts the
    /// others: nothing tells of it there but the file.
    pub low: u64,
    /// Processes killed by an OOM killer. In lines of output: only kills of which no record names the process. In
    /// [`LimitTotals`]: all.
    pub oom_kills: u64,
    /// For how long tasks were held up for lack of memory, nanoseconds: each task by itself where BPF counts, else the
    /// time in which any was. 0 on cgroup v1 without BPF. The next three are parts of it.
    pub stalled_ns: u64,
    /// For how long tasks reclaimed because of the pod's limits. 0 without BPF, as the next two.
    pub limit_reclaim_ns: u64,
    /// For how long tasks slept because `memory.high` is exceeded.
    pub high_ns: u64,
    /// For how long tasks reclaimed for the node.
    pub node_reclaim_ns: u64,
    /// Pages that had been taken away and were read back, from files and from swap.
    pub refaulted_pages: u64,
    /// Pages read from swap.
    pub swapped_in_pages: u64,
    /// Times that a CPU quota was used up: throttles of one CPU's run queue where BPF counts them, else periods. The
    /// pod's own quota, or those of its containers, whichever were more: with one container both are the same and are
    /// used up together.
    pub throttled: u64,
    /// For how long in all, nanoseconds, each CPU by itself.
    pub throttled_ns: u64,
}

impl LimitCounts {
    /// Each count by the name that it has in JSON.
    pub fn named(&self) -> [(&'static str, u64); 13] {
        [
            ("high", self.high),
            ("max", self.max),
            ("oom", self.oom),
            ("low", self.low),
            ("oomKills", self.oom_kills),
            ("stalledNs", self.stalled_ns),
            ("limitReclaimNs", self.limit_reclaim_ns),
            ("highNs", self.high_ns),
            ("nodeReclaimNs", self.node_reclaim_ns),
            ("refaultedPages", self.refaulted_pages),
            ("swappedInPages", self.swapped_in_pages),
            ("throttled", self.throttled),
            ("throttledNs", self.throttled_ns),
        ]
    }

    /// What of it was counted after `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            high: self.high.saturating_sub(earlier.high),
            max: self.max.saturating_sub(earlier.max),
            oom: self.oom.saturating_sub(earlier.oom),
            low: self.low.saturating_sub(earlier.low),
            stalled_ns: self.stalled_ns.saturating_sub(earlier.stalled_ns),
            limit_reclaim_ns: self
                .limit_reclaim_ns
                .saturating_sub(earlier.limit_reclaim_ns),
            high_ns: self.high_ns.saturating_sub(earlier.high_ns),
            node_reclaim_ns: self.node_reclaim_ns.saturating_sub(earlier.node_reclaim_ns),
            refaulted_pages: self.refaulted_pages.saturating_sub(earlier.refaulted_pages),
            swapped_in_pages: self
                .swapped_in_pages
                .saturating_sub(earlier.swapped_in_pages),
            oom_kills: self.oom_kills.saturating_sub(earlier.oom_kills),
            throttled: self.throttled.saturating_sub(earlier.throttled),
            throttled_ns: self.throttled_ns.saturating_sub(earlier.throttled_ns),
        }
    }

    /// Whether tasks have waited for memory long enough, or needed enough back, to be worth a line.
    pub fn has_waited(&self) -> bool {
        let parts = [
            self.stalled_ns,
            self.limit_reclaim_ns,
            self.high_ns,
            self.node_reclaim_ns,
        ];
        parts.into_iter().any(|ns| ns >= WAITED_NS)
            || self.refaulted_pages.max(self.swapped_in_pages) >= READ_BACK_PAGES
    }

    /// Whether there is anything to report.
    pub(crate) fn is_worth_a_line(&self) -> bool {
        self.has_waited()
            || LimitCounts {
                stalled_ns: 0,
                limit_reclaim_ns: 0,
                high_ns: 0,
                node_reclaim_ns: 0,
                refaulted_pages: 0,
                swapped_in_pages: 0,
                ..*self
            } != LimitCounts::default()
    }

    /// Adds other counts.
    pub(crate) fn add(&mut self, other: Self) {
        self.high += other.high;
        self.max += other.max;
        self.oom += other.oom;
        self.low += other.low;
        self.stalled_ns += other.stalled_ns;
        self.limit_reclaim_ns += other.limit_reclaim_ns;
        self.high_ns += other.high_ns;
        self.node_reclaim_ns += other.node_reclaim_ns;
        self.refaulted_pages += other.refaulted_pages;
        self.swapped_in_pages += other.swapped_in_pages;
        self.oom_kills += other.oom_kills;
        self.throttled += other.throttled;
        self.throttled_ns += other.throttled_ns;
    }
}

/// What a pod's limits have cost it since the agent first saw it, for those who ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitTotals {
    /// All of it.
    pub all: LimitCounts,
    /// What of it is of the last `recent_ns`.
    pub recent: LimitCounts,
    /// The time over which `recent` was counted, nanoseconds; 0: not yet.
    pub recent_ns: u64,
    /// The total at the two newest turns that are [`RECENT_NS`] apart, and when they were.
    #[serde(skip)]
    marks: [Option<(u64, LimitCounts)>; 2],
}

impl LimitTotals {
    /// Takes in the totals of this time. The first, and any that are less than those before (another pod of the same
    /// identity), are where counting begins.
    pub fn reach(&mut self, now_ns: u64, all: LimitCounts) {
        let is_less = self.all.since(all) != LimitCounts::default();
        if is_less || self.marks[1].is_none() {
            *self = Self {
                all,
                marks: [None, Some((now_ns, all))],
                ..Self::default()
            };
        } else {
            self.add(now_ns, all.since(self.all));
        }
    }

    /// Adds what is new, at this time.
    pub(crate) fn add(&mut self, now_ns: u64, new: LimitCounts) {
        let (newest_ns, _) = *self.marks[1].get_or_insert((now_ns, self.all));
        self.all.add(new);
        if now_ns.saturating_sub(newest_ns) >= RECENT_NS {
            self.marks = [self.marks[1], Some((now_ns, self.all))];
        }
        if let [Some((then_ns, then)), _] | [None, Some((then_ns, then))] = self.marks {
            self.recent = self.all.since(then);
            self.recent_ns = now_ns.saturating_sub(then_ns);
        }
    }
}
