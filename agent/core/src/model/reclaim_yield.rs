//! Whether the kernel, when it looks for page cache to drop, finds any.
//!
//! **Problem.** Page cache counts as memory that can be had, and a pod can see to it that it cannot: a page that a pipe
//! holds a reference to (`splice`), or that a device reads, stays on the lists of page cache and is never dropped. 38
//! pipes hold 300 MiB. Nothing lists such pages: the kernel finds out by trying, and kills when it has tried for long
//! enough, with `MemAvailable` at a gigabyte. **Approach.** kswapd counts what it looks at and what it takes. Once it
//! has looked at as many pages as there are, and has taken less than an eighth, what is page cache then cannot be had:
//! it counts as used, of the node and so of each pod ([`limited`](crate::model::event::PodMemory)). What a pod had of
//! it counts no longer when the pod has gone. The finding is of a moment: it holds for ten seconds, or until kswapd
//! takes some.
//!
//! kswapd works for the node alone: what a cgroup reclaims at its own limit is not its work, so a pod at its limit
//! changes nothing here. It gives up after it has taken nothing sixteen times (`MAX_RECLAIM_RETRIES`). So while tasks
//! look by themselves and kswapd does not, the finding holds on, for a minute: before Linux 7 a task that gets
//! something has kswapd work again, and later only one after which the node has enough.

/// Of what was looked at, less than one in so many was taken.
const TAKEN_ONE_IN: u64 = 8;
/// What was looked at says something once it is one in so many of what there is.
const PART_ONE_IN: u64 = 8;
/// Looks that are further apart than this, nanoseconds, are not of one shortage.
const SHORTAGE_NS: u64 = 10_000_000_000;
/// A look at everything that takes longer than this, nanoseconds, is none: kswapd needs little, and finds it somewhere.
const LOOK_NS: u64 = 60_000_000_000;

/// What reclaim for the node has done since the start of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReclaimCounts {
    /// Pages that kswapd has looked at: `pgscan_kswapd`.
    pub scanned: u64,
    /// Pages that it, or a task by itself, has passed over because they are of a zone that was not asked for:
    /// `pgskip_*`. They may be in `scanned`.
    pub skipped: u64,
    /// Pages that kswapd has taken: `pgsteal_kswapd`.
    pub taken: u64,
    /// How often a task had to look by itself: `allocstall_*`.
    pub stalls: u64,
}

/// Pages of the look at everything that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Look {
    since_ns: u64,
    scanned: u64,
    taken: u64,
}

impl Look {
    fn begun(at_ns: u64) -> Self {
        Self {
            since_ns: at_ns,
            ..Self::default()
        }
    }

    fn is_in_vain(&self) -> bool {
        self.taken.saturating_mul(TAKEN_ONE_IN) < self.scanned
    }
}

/// Page cache that cannot be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    bytes: u64,
    at_ns: u64,
    until_ns: u64,
    /// [`ReclaimCounts::scanned`] then.
    scanned: u64,
}

/// What is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReclaimYield {
    newest: Option<ReclaimCounts>,
    /// When kswapd was last seen to have looked, nanoseconds.
    scanned_at_ns: u64,
    look: Look,
    is_in_vain: bool,
    found: Option<Found>,
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
        let Some(before) = self.newest.replace(counts) else {
            return;
        };
        let scanned = counts.scanned.saturating_sub(before.scanned);
        self.found = self
            .found
            .filter(|found| at_ns < found.until_ns || counts.scanned == found.scanned);
        if scanned == 0 {
            self.is_in_vain = false;
            let has_stalled = counts.stalls > before.stalls;
            if let Some(found) = self.found.as_mut().filter(|_| has_stalled) {
                let last_ns = found.at_ns.saturating_add(LOOK_NS);
                found.until_ns = at_ns.saturating_add(SHORTAGE_NS).min(last_ns);
            }
            return;
        }
        let rested_ns = at_ns.saturating_sub(std::mem::replace(&mut self.scanned_at_ns, at_ns));
        if rested_ns >= SHORTAGE_NS || at_ns.saturating_sub(self.look.since_ns) >= LOOK_NS {
            self.look = Look::begun(at_ns);
        }
        let look = &mut self.look;
        let skipped = counts.skipped.saturating_sub(before.skipped);
        let taken = counts.taken.saturating_sub(before.taken);
        look.scanned = look.scanned.saturating_add(scanned.saturating_sub(skipped));
        look.taken = look.taken.saturating_add(taken);
        self.is_in_vain = look.is_in_vain();
        if !look.is_in_vain() && look.scanned >= listed_pages / PART_ONE_IN {
            self.found = None;
        }
        if look.scanned > 0 && look.scanned >= listed_pages {
            self.found = look.is_in_vain().then_some(Found {
                bytes: cache_bytes,
                at_ns,
                until_ns: at_ns.saturating_add(SHORTAGE_NS),
                scanned: counts.scanned,
            });
            *look = Look::begun(at_ns);
        }
    }

    /// Nothing is known of what has happened since the last counts.
    pub const fn interrupted(&mut self) {
        self.is_in_vain = false;
    }

    /// Whether kswapd is at work, and has taken next to nothing so far: a further look will tell.
    pub const fn is_in_vain(&self) -> bool {
        self.is_in_vain && self.found.is_none()
    }

    /// Page cache that cannot be had at `now_ns`, bytes.
    pub fn held_bytes(&self, now_ns: u64) -> u64 {
        let found = self.found.filter(|found| now_ns < found.until_ns);
        found.map_or(0, |found| found.bytes)
    }

    /// A pod has ended that had `cache_bytes` of page cache. Where that is a part that says something, what was looked
    /// at before says nothing of now.
    pub fn released(&mut self, cache_bytes: u64) {
        let Some(found) = &mut self.found else {
            return;
        };
        if cache_bytes >= found.bytes / PART_ONE_IN {
            (self.look, self.newest) = (Look::default(), None);
        }
        found.bytes = found.bytes.saturating_sub(cache_bytes);
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
                skipped: 0,
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
    fn a_look_goes_on_while_kswapd_works() {
        let every_9_s: Vec<_> = (0..6_u64).map(|i| (1 + 9 * i, 220 * i, 0, 0)).collect();
        assert_eq!(held(&every_9_s), CACHE);
        let every_10_s: Vec<_> = (0..9_u64).map(|i| (1 + 10 * i, 220 * i, 0, 0)).collect();
        assert_eq!(held(&every_10_s), 0, "it rested");
        let slowly: Vec<_> = (0..40_u64).map(|i| (1 + 9 * i, 50 * i, 0, 0)).collect();
        assert_eq!(held(&slowly), 0, "it needs little");
    }

    #[test]
    fn nobody_looks_again_where_kswapd_rests() {
        let rests = [(1, 500, 500, 0), (2, 600, 500, 0), (3, 600, 500, 0)];
        assert!(!after(&rests).is_in_vain());
        let mut reclaim = after(&rests[..2]);
        reclaim.interrupted();
        assert!(!reclaim.is_in_vain());
    }

    #[test]
    fn pages_of_other_zones_were_not_looked_at() {
        let mut reclaim = ReclaimYield::default();
        let mut held = |at_s: u64, scanned, skipped| {
            let counts = ReclaimCounts {
                scanned,
                skipped,
                ..ReclaimCounts::default()
            };
            reclaim.observe(at_s * S, counts, LISTED, CACHE);
            reclaim.held_bytes(at_s * S)
        };
        // More were passed over than looked at: by tasks.
        assert_eq!(held(1, 100, 1_000_000), 0);
        assert_eq!(held(2, 1100, 1_000_500), 0);
        assert_eq!(held(3, 1600, 1_000_500), CACHE);
    }

    #[test]
    fn it_holds_for_ten_seconds_or_until_kswapd_takes_some() {
        let found = [(1, 0, 0, 0), (2, 1000, 0, 0)];
        let and = |more: &[(u64, u64, u64, u64)]| held(&[&found[..], more].concat());
        assert_eq!(and(&[(3, 1100, 100, 0)]), CACHE, "too few to tell");
        assert_eq!(and(&[(3, 1500, 400, 0)]), 0);
        assert_eq!(and(&[(3, 1500, 0, 0), (11, 1600, 0, 0)]), CACHE);
        assert_eq!(and(&[(3, 1500, 0, 0), (12, 1600, 0, 0)]), 0);
        assert_eq!(and(&[(11, 2000, 10, 0), (20, 2100, 10, 0)]), CACHE);
        assert_eq!(and(&[(12, 1000, 0, 0)]), 0, "nobody needs memory any more");
        // An old finding does not come back.
        assert_eq!(and(&[(3600, 1010, 10, 0), (3601, 1020, 20, 9)]), 0);
    }

    #[test]
    fn it_holds_on_where_kswapd_has_given_up_and_tasks_look() {
        let given_up = [(1, 0, 0, 0), (2, 1000, 0, 0), (60, 1000, 0, 7)];
        assert_eq!(held(&given_up), CACHE);
        let and =
            |at_s, scanned, taken| held(&[&given_up[..], &[(at_s, scanned, taken, 9)]].concat());
        assert_eq!(and(61, 1000, 0), CACHE);
        assert_eq!(and(62, 1000, 0), 0, "for a minute");
        assert_eq!(and(70, 1010, 10), 0, "kswapd works again");
    }

    #[test]
    fn what_a_pod_had_of_it_goes_with_the_pod() {
        let mut reclaim = after(&[(1, 0, 0, 0), (2, 1000, 0, 0)]);
        reclaim.released(300);
        assert_eq!(reclaim.held_bytes(2 * S), 500);
        reclaim.released(900);
        assert_eq!(reclaim.held_bytes(2 * S), 0);
    }

    #[test]
    fn what_was_looked_at_before_its_end_finds_nothing_anew() {
        let then = |cache_bytes| {
            let mut reclaim = after(&[(1, 0, 0, 0), (2, 1000, 0, 0), (3, 1900, 0, 0)]);
            reclaim.released(cache_bytes);
            for (at_s, scanned, taken) in [(4, 1950, 50), (5, 2000, 100)] {
                let counts = ReclaimCounts {
                    scanned,
                    taken,
                    ..ReclaimCounts::default()
                };
                reclaim.observe(at_s * S, counts, LISTED, CACHE);
            }
            reclaim.held_bytes(5 * S)
        };
        assert_eq!(then(CACHE), 0);
        assert_eq!(then(10), CACHE, "another pod's end changes nothing");
    }

    #[test]
    fn a_node_without_page_cache_is_not_stuck_before_anybody_looks() {
        let mut reclaim = ReclaimYield::default();
        reclaim.observe(1, ReclaimCounts::default(), 0, CACHE);
        reclaim.observe(2, ReclaimCounts::default(), 0, CACHE);
        assert_eq!(reclaim.held_bytes(2), 0);
    }
}
