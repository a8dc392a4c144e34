//! Whether the kernel, when it looks for page cache to drop, finds any.
//!
//! **Problem.** Page cache counts as memory that can be had, and a pod can see to it that it cannot: a page that a pipe
//! holds a reference to (`splice`), or that a device reads, stays on the lists of page cache and is never dropped. 38
//! pipes hold 300 MiB. Nothing lists such pages: the kernel finds out by trying, and kills when it has tried for long
//! enough, with `MemAvailable` at a gigabyte. **Approach.** kswapd counts what it looks at and what it takes. Once it
//! has looked at as many pages as there are, and has taken less than an eighth, what is page cache then cannot be had:
//! it counts as used, of the node and so of each pod ([`limited`](crate::model::event::PodMemory)). What a pod had of
//! it counts no longer when the pod has ended. The finding holds until kswapd takes more, and while somebody looks for
//! memory.
//!
//! kswapd works for the node alone: what a cgroup reclaims at its own limit is not its work, so a pod at its limit
//! changes nothing here. It gives up after it has taken nothing sixteen times (`MAX_RECLAIM_RETRIES`); from then on who
//! needs memory looks for it by himself.

/// Of what was looked at, less than one in so many was taken.
const TAKEN_ONE_IN: u64 = 8;
/// Looks that are further apart than this, nanoseconds, are not of one shortage.
const SHORTAGE_NS: u64 = 10_000_000_000;

/// What reclaim for the node has done since the start of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReclaimCounts {
    /// Pages that kswapd has looked at: `pgscan_kswapd`, without those that it passed over because they are of a zone
    /// that was not asked for (`pgskip_*`).
    pub scanned: u64,
    /// Pages that it has taken: `pgsteal_kswapd`.
    pub taken: u64,
    /// How often a task had to look by itself: `allocstall_*`.
    pub stalls: u64,
}

/// What is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReclaimYield {
    /// The newest counts, and when somebody last looked, nanoseconds.
    newest: ReclaimCounts,
    looked_at_ns: u64,
    /// Where the look that is under way began, and when, nanoseconds.
    since: Option<(u64, ReclaimCounts)>,
    is_in_vain: bool,
    /// What the last look found that cannot be had.
    held_bytes: u64,
}

impl ReclaimYield {
    /// Takes in what the kernel has counted until `at_ns`, while there are `listed_pages` that kswapd may look at, of
    /// which `cache_bytes` are page cache.
    pub fn observe(
        &mut self,
        at_ns: u64,
        counts: ReclaimCounts,
        listed_pages: u64,
        cache_bytes: u64,
    ) {
        let before = std::mem::replace(&mut self.newest, counts);
        let has_looked = counts.scanned > before.scanned || counts.stalls > before.stalls;
        let Some((since_ns, since)) = self.since else {
            self.since = Some((at_ns, counts));
            return;
        };
        if has_looked {
            self.looked_at_ns = at_ns;
        }
        let scanned = counts.scanned.saturating_sub(since.scanned);
        let taken = counts.taken.saturating_sub(since.taken);
        let takes_next_to_nothing = taken.saturating_mul(TAKEN_ONE_IN) < scanned;
        self.is_in_vain = has_looked && takes_next_to_nothing;
        if scanned > 0 && scanned >= listed_pages {
            self.held_bytes = if takes_next_to_nothing {
                cache_bytes
            } else {
                0
            };
        } else if at_ns.saturating_sub(since_ns) < SHORTAGE_NS {
            return;
        } else if scanned > 0 && !takes_next_to_nothing {
            self.held_bytes = 0;
        }
        self.since = Some((at_ns, counts));
    }

    /// Whether kswapd is at work, and has taken next to nothing so far: a further look will tell.
    pub const fn is_in_vain(&self) -> bool {
        self.is_in_vain && self.held_bytes == 0
    }

    /// Page cache that cannot be had at `now_ns`, bytes.
    pub const fn held_bytes(&self, now_ns: u64) -> u64 {
        if now_ns.saturating_sub(self.looked_at_ns) < SHORTAGE_NS {
            self.held_bytes
        } else {
            0
        }
    }

    /// A pod has ended that used `usage_bytes`: what it held of page cache was a part of them. The rest of them is free
    /// memory now.
    pub const fn released(&mut self, usage_bytes: u64) {
        self.held_bytes = self.held_bytes.saturating_sub(usage_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: u64 = 1000;
    const CACHE: u64 = 800;
    const S: u64 = 1_000_000_000;

    /// Each look: seconds, then scanned, taken, stalls.
    fn after(looks: &[(u64, u64, u64, u64)]) -> ReclaimYield {
        let mut reclaim = ReclaimYield::default();
        for &(at_s, scanned, taken, stalls) in looks {
            let counts = ReclaimCounts {
                scanned,
                taken,
                stalls,
            };
            reclaim.observe(at_s * S, counts, LISTED, CACHE);
        }
        reclaim
    }

    fn held(looks: &[(u64, u64, u64, u64)]) -> u64 {
        let now_ns = looks.last().map_or(0, |look| look.0 * S);
        after(looks).held_bytes(now_ns)
    }

    #[test]
    fn page_cache_that_nothing_is_taken_of_cannot_be_had() {
        // Only what happens between two looks counts.
        assert_eq!(held(&[(1, 90_000, 0, 0)]), 0);
        // Not all was looked at.
        let part = [(1, 500, 500, 0), (2, 600, 500, 0)];
        assert!(after(&part).is_in_vain());
        assert_eq!(held(&part), 0);
        assert_eq!(held(&[(1, 500, 500, 0), (2, 1499, 500, 0)]), 0);
        let all = [(1, 500, 500, 0), (2, 1499, 500, 0), (3, 1500, 500, 0)];
        assert_eq!(held(&all), CACHE);
        assert!(!after(&all).is_in_vain(), "it is known");
        assert_eq!(held(&[(1, 500, 500, 0), (2, 1500, 624, 0)]), CACHE);
        assert_eq!(held(&[(1, 500, 500, 0), (2, 1500, 625, 0)]), 0);
    }

    #[test]
    fn nobody_looks_again_where_kswapd_rests() {
        let rests = [(1, 500, 500, 0), (2, 600, 500, 0), (3, 600, 500, 0)];
        assert!(!after(&rests).is_in_vain());
    }

    #[test]
    fn it_holds_while_somebody_looks_for_memory_in_vain() {
        let stuck = [(1, 0, 0, 0), (2, 1000, 0, 0)];
        let and = |more: &[(u64, u64, u64, u64)]| held(&[&stuck[..], more].concat());
        assert_eq!(and(&[(3, 1500, 400, 0)]), CACHE, "that was not all of it");
        assert_eq!(and(&[(3, 2000, 10, 0)]), CACHE);
        assert_eq!(and(&[(3, 2000, 900, 0)]), 0);
        assert_eq!(and(&[(11, 1000, 0, 0)]), CACHE);
        assert_eq!(and(&[(12, 1000, 0, 0)]), 0, "nobody needs memory any more");
        // kswapd has given up.
        assert_eq!(and(&[(60, 1000, 0, 7)]), CACHE);
        // kswapd finds some again, little by little.
        let slowly: Vec<_> = (1..8_u64)
            .map(|i| (2 + 6 * i, 1000 + 100 * i, 100 * i, 0))
            .collect();
        assert_eq!(and(&slowly), 0);
    }

    #[test]
    fn what_a_pod_had_of_it_goes_with_the_pod() {
        let mut reclaim = after(&[(1, 0, 0, 0), (2, 1000, 0, 0)]);
        reclaim.released(0);
        assert_eq!(reclaim.held_bytes(2 * S), CACHE);
        reclaim.released(300);
        assert_eq!(reclaim.held_bytes(2 * S), 500);
        reclaim.released(900);
        assert_eq!(reclaim.held_bytes(2 * S), 0);
    }

    #[test]
    fn a_node_without_page_cache_is_not_stuck_before_anybody_looks() {
        let mut reclaim = ReclaimYield::default();
        reclaim.observe(1, ReclaimCounts::default(), 0, CACHE);
        reclaim.observe(2, ReclaimCounts::default(), 0, CACHE);
        assert_eq!(reclaim.held_bytes(2), 0);
    }
}
