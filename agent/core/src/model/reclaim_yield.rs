//! Whether the kernel, when it looks for page cache to drop, finds any.
//!
//! **Problem.** Page cache counts as memory that can be had, and a pod can see to it that it cannot: a page that a pipe
//! holds a reference to (`splice`), or that a device reads, stays on the lists of page cache and is never dropped. 38
//! pipes hold 300 MiB. Nothing lists such pages: the kernel finds out by trying, and kills when it has tried for long
//! enough, with `MemAvailable` at a gigabyte.
//! **Approach.** It counts what it looks at and what it takes. Once it has looked at as many pages as all lists of page
//! cache have, and has taken less than an eighth, page cache cannot be had: it counts as used, of the node and so of
//! each pod ([`limited`](crate::model::event::PodMemory)). That holds until it takes more, has not looked for a while,
//! or a pod has ended, with which its pages can go.
//!
//! The counts are those of reclaim for the node. What a cgroup reclaims at its own limit is not in them, so a pod at
//! its limit changes nothing here.

/// Of what was looked at, less than one in so many was taken.
const TAKEN_ONE_IN: u64 = 8;
/// Looks that are further apart than this, nanoseconds, are not of one shortage.
const SHORTAGE_NS: u64 = 10_000_000_000;

/// What reclaim for the node has done since the start of the machine, pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReclaimCounts {
    /// Looked at: `pgscan_kswapd` and `pgscan_direct`.
    pub scanned: u64,
    /// Taken: `pgsteal_kswapd` and `pgsteal_direct`.
    pub taken: u64,
}

/// What is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReclaimYield {
    /// Where the look began that is under way, and when, nanoseconds.
    since: Option<(u64, ReclaimCounts)>,
    is_in_vain: bool,
    is_stuck: bool,
}

impl ReclaimYield {
    /// Takes in what the kernel has counted until `at_ns`, while its lists of page cache have `listed_pages`.
    pub fn observe(&mut self, at_ns: u64, counts: ReclaimCounts, listed_pages: u64) {
        let Some((since_ns, since)) = self.since else {
            self.since = Some((at_ns, counts));
            return;
        };
        let scanned = counts.scanned.saturating_sub(since.scanned);
        let taken = counts.taken.saturating_sub(since.taken);
        self.is_in_vain = taken.saturating_mul(TAKEN_ONE_IN) < scanned;
        if scanned > 0 && scanned >= listed_pages {
            self.is_stuck = self.is_in_vain;
        } else if at_ns.saturating_sub(since_ns) >= SHORTAGE_NS {
            self.is_stuck = false;
        } else {
            return;
        }
        self.since = Some((at_ns, counts));
    }

    /// Whether the look that is under way has taken next to nothing so far: a further look will tell.
    pub const fn is_in_vain(&self) -> bool {
        self.is_in_vain
    }

    /// Whether page cache cannot be had.
    pub const fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// What was found holds no longer: a pod has ended.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: u64 = 1000;

    fn counts(scanned: u64, taken: u64) -> ReclaimCounts {
        ReclaimCounts { scanned, taken }
    }

    fn after(looks: &[(u64, u64, u64)]) -> ReclaimYield {
        let mut reclaim = ReclaimYield::default();
        for &(at_s, scanned, taken) in looks {
            reclaim.observe(at_s * 1_000_000_000, counts(scanned, taken), LISTED);
        }
        reclaim
    }

    #[test]
    fn page_cache_that_nothing_is_taken_of_cannot_be_had() {
        // Only what happens between two looks counts.
        assert!(!after(&[(1, 90_000, 0)]).is_stuck());
        // Not all was looked at.
        let part = after(&[(1, 500, 500), (2, 600, 500)]);
        assert_eq!((part.is_in_vain(), part.is_stuck()), (true, false));
        assert!(!after(&[(1, 500, 500), (2, 1499, 500)]).is_stuck());
        assert!(after(&[(1, 500, 500), (2, 1499, 500), (3, 1500, 500)]).is_stuck());
        assert!(after(&[(1, 500, 500), (2, 1500, 624)]).is_stuck());
        assert!(!after(&[(1, 500, 500), (2, 1500, 625)]).is_stuck());
    }

    #[test]
    fn it_holds_while_the_kernel_goes_on_in_vain() {
        let stuck = [(1, 0, 0), (2, 1000, 0)];
        let and = |more: &[(u64, u64, u64)]| after(&[&stuck[..], more].concat()).is_stuck();
        assert!(and(&[(3, 1500, 400)]), "not all of it was looked at again");
        assert!(and(&[(3, 2000, 10)]));
        assert!(!and(&[(3, 2000, 900)]));
        assert!(and(&[(11, 1500, 0)]));
        assert!(!and(&[(12, 1500, 0)]), "nobody needs memory any more");
    }

    #[test]
    fn a_pod_that_ended_may_have_held_it() {
        let mut reclaim = after(&[(1, 0, 0), (2, 1000, 0)]);
        reclaim.forget();
        assert!(!reclaim.is_stuck());
        reclaim.observe(3_000_000_000, counts(9000, 0), LISTED);
        assert!(!reclaim.is_stuck());
    }

    #[test]
    fn a_node_without_page_cache_is_not_stuck_before_anybody_looks() {
        let mut reclaim = ReclaimYield::default();
        reclaim.observe(1, counts(0, 0), 0);
        reclaim.observe(2, counts(0, 0), 0);
        assert!(!reclaim.is_stuck());
    }
}
