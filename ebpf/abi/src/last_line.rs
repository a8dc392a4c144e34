//! The last line: what the agent leaves in the kernel so that a program there can end a pod when the agent cannot.
//!
//! Problem: a frozen or dead agent evicts no pod, and then the kernel's OOM killer chooses. Approach: the agent keeps the order of
//! eviction ([`condemned`]) and two amounts of memory ([`line`](mod@line)) in maps; a program that runs where memory is allocated kills the
//! task that allocates, if memory is short ([`shortage`]) and it is the turn of its pod ([`is_turn`]). Both judgements are here,
//! as functions of plain numbers, so that they are tested where tests run.
//!
//! Terms: *available* is the kernel's own MemAvailable plus free swap, in pages. The *line* is what the agent would have evicted for by
//! now; the *critical* amount is less, and leaves no time to wait for anybody. A crossing is *acknowledged* by a sample that the agent
//! took after it. A *place* counts pods in the order of eviction from 0.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{COMM_BYTES, Header};

/// Pods in the order, at most.
pub const CONDEMNED_MAX: u32 = 32;

/// How long those before a pod, and memory that is coming back from a kill, are waited for: each place behind the first gets its
/// turn so much later.
pub const TURN_NS: u64 = 200_000_000;

/// A process that was killed is not killed again within this time: a killed task may allocate a good deal on its way out.
pub const AGAIN_AFTER_NS: u64 = 1_000_000_000;

/// A shortage that was not seen for so long is over; the next one is a new one.
pub const SHORTAGE_GAP_NS: u64 = TURN_NS;

/// Bytes of a pod's UID that are kept. Kubernetes' have 36.
pub const UID_BYTES: usize = 40;

/// Words that they take.
pub const UID_WORDS: usize = UID_BYTES / 8;

/// Value of the `LAST_LINE` map: written by the agent at each sample, as a whole.
pub mod line {
    /// No process is killed from then on.
    pub const UNTIL_NS: usize = 0;
    /// Below so many available pages, a condemned process is killed if a crossing was not acknowledged in time.
    pub const LINE_PAGES: usize = 1;
    /// Below so many, at once.
    pub const CRITICAL_PAGES: usize = 2;
    /// The time in which a crossing is to be acknowledged.
    pub const BUDGET_NS: usize = 3;
    /// The total of charges ([`charges`](crate::charges)) before which charges cannot have brought memory down to the line.
    pub const CHECK_AT_PAGES: usize = 4;
    /// The sum of the zones' low watermarks: so much page cache does not count as available.
    pub const CACHE_KEPT_PAGES: usize = 5;
    /// Crossings up to then are acknowledged.
    pub const ACKED_NS: usize = 6;
    /// Length.
    pub const WORDS: usize = 7;
}

/// Words of the `LAST_LINE_SEEN` map: written by the programs.
pub mod seen {
    /// When the armed total of charges was reached last.
    pub const CROSSED_NS: u32 = 0;
    /// When a task had to reclaim by itself for the first time since the last acknowledgement.
    pub const RECLAIM_NS: u32 = 1;
    /// When the shortage began.
    pub const SHORT_SINCE_NS: u32 = 2;
    /// When it was last seen.
    pub const SHORT_SEEN_NS: u32 = 3;
    /// Places before this one have been killed. The agent sets it to 0 with a new order.
    pub const DONE: u32 = 4;
    /// When a process was last killed. The agent sets it to 0 with a new order.
    pub const LAST_KILL_NS: u32 = 5;
    /// Signals that the kernel did not take (an exiting task, or another signal on its way from this CPU).
    pub const REFUSED: u32 = 6;
    /// Available pages when they were last looked at.
    pub const AVAILABLE_PAGES: u32 = 7;
    /// Length.
    pub const WORDS: u32 = 8;
}

/// Value of the `CONDEMNED` map (key: id of the pod's memory cgroup): written by the agent.
pub mod condemned {
    /// Its place in the order.
    pub const PLACE: usize = 0;
    /// It is no longer condemned from then on.
    pub const UNTIL_NS: usize = 1;
    /// The pod's UID, padded with NULs, from this word on.
    pub const UID: usize = 2;
    /// Length.
    pub const WORDS: usize = UID + super::UID_WORDS;
}

/// Value of the `LAST_LINE_KILLS` map (key: as of `CONDEMNED`): what was done, for an agent that comes later.
pub mod kills {
    /// Processes killed.
    pub const COUNT: usize = 0;
    /// When the last one was.
    pub const LAST_NS: usize = 1;
    /// Why: one of [`reason`](mod@super::reason).
    pub const REASON: usize = 2;
    /// Its process id.
    pub const TGID: usize = 3;
    /// The pod's UID, as in [`condemned`](mod@super::condemned).
    pub const UID: usize = 4;
    /// Length.
    pub const WORDS: usize = UID + super::UID_WORDS;
}

/// Why a process was killed.
pub mod reason {
    /// Available memory is below the critical amount.
    pub const CRITICAL: u32 = 1;
    /// It is below the line, and the agent has not acknowledged a crossing within its budget.
    pub const UNACKNOWLEDGED: u32 = 2;
    /// The page allocator finds that reclaiming all that can be reclaimed would not do: its next step is the OOM killer.
    pub const EXHAUSTED: u32 = 3;
}

/// [`Kind::LastLineKill`](crate::Kind::LastLineKill). `cgroup_id` is the condemned pod's memory cgroup; the process may be in one below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LastLineKill {
    /// Common part.
    pub header: Header,
    /// What was available; [`UNKNOWN_U64`](crate::UNKNOWN_U64) where the page allocator itself said that nothing is.
    pub available_pages: u64,
    /// What should have been (the critical amount, or the line).
    pub wanted_pages: u64,
    /// The crossing that was not acknowledged; 0 if it did not matter.
    pub crossed_ns: u64,
    /// The newest acknowledgement.
    pub acked_ns: u64,
    /// Processes of this pod killed so far, this one included.
    pub kills: u64,
    /// The pod's UID, padded with NULs.
    pub uid: [u64; UID_WORDS],
    /// The process.
    pub tgid: u32,
    /// One of [`reason`](mod@reason).
    pub reason: u32,
    /// The pod's place in the order, from 0.
    pub place: u32,
    /// Zero.
    pub pad: u32,
    /// The process's command name, padded with NULs.
    pub comm: [u8; COMM_BYTES],
}

const _: () = assert!(size_of::<LastLineKill>() == 24 + 5 * 8 + UID_BYTES + 16 + COMM_BYTES);

/// Where the running kernel keeps its counters of pages: addresses, 0 where there is none. Frozen before loading.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Counters {
    /// `vm_zone_stat[NR_FREE_PAGES]`.
    pub free: u64,
    /// `vm_node_stat[NR_ACTIVE_FILE]`.
    pub active_file: u64,
    /// `vm_node_stat[NR_INACTIVE_FILE]`.
    pub inactive_file: u64,
    /// `vm_node_stat[NR_SLAB_RECLAIMABLE_B]`; in pages, whatever its name says.
    pub slab_reclaimable: u64,
    /// `vm_node_stat[NR_KERNEL_MISC_RECLAIMABLE]`.
    pub misc_reclaimable: u64,
    /// `totalreserve_pages`.
    pub reserve: u64,
    /// `nr_swap_pages`; 0 on a kernel without swap.
    pub swap: u64,
}

/// The values behind [`Counters`], pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Free.
    pub free: u64,
    /// Page cache: active and inactive file pages.
    pub file: u64,
    /// Slab and other kernel memory that can be reclaimed.
    pub reclaimable: u64,
    /// Reserves of all zones.
    pub reserve: u64,
    /// Free swap.
    pub swap: u64,
}

/// MemAvailable (`si_mem_available` in mm/show_mem.c) plus free swap, pages. A counter may be below zero for a moment and counts as 0.
#[must_use]
#[inline(always)]
pub const fn available_pages(pages: Pages, cache_kept_pages: u64) -> u64 {
    let have = positive(pages.free)
        .wrapping_add(that_can_go(positive(pages.file), cache_kept_pages))
        .wrapping_add(that_can_go(positive(pages.reclaimable), cache_kept_pages));
    // The kernel, too, shows no less than 0.
    have.saturating_sub(pages.reserve)
        .wrapping_add(positive(pages.swap))
}

#[inline(always)]
const fn positive(counter: u64) -> u64 {
    if counter > u64::MAX / 2 { 0 } else { counter }
}

#[inline(always)]
const fn that_can_go(cache: u64, kept: u64) -> u64 {
    if cache / 2 < kept {
        cache - cache / 2
    } else {
        cache - kept
    }
}

/// What was crossed, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossings {
    /// [`seen::CROSSED_NS`].
    pub crossed_ns: u64,
    /// [`seen::RECLAIM_NS`].
    pub reclaim_ns: u64,
}

/// The crossing that is still waiting for an acknowledgement after the budget, 0 if there is none.
#[must_use]
#[inline(always)]
pub const fn unacknowledged(line: &[u64; line::WORDS], crossings: Crossings, now_ns: u64) -> u64 {
    if is_overdue(line, crossings.crossed_ns, now_ns) {
        crossings.crossed_ns
    } else if is_overdue(line, crossings.reclaim_ns, now_ns) {
        crossings.reclaim_ns
    } else {
        0
    }
}

#[inline(always)]
const fn is_overdue(line: &[u64; line::WORDS], crossed_ns: u64, now_ns: u64) -> bool {
    // `now` may be a little behind what another CPU wrote.
    crossed_ns > line[line::ACKED_NS]
        && now_ns > crossed_ns
        && now_ns - crossed_ns >= line[line::BUDGET_NS]
}

/// Whether memory is so short that somebody condemned may be killed: a [`reason`](mod@reason), or 0. `overdue_ns`: what [`unacknowledged`] said.
#[must_use]
#[inline(always)]
pub const fn shortage(line: &[u64; line::WORDS], overdue_ns: u64, available_pages: u64) -> u32 {
    if available_pages < line[line::CRITICAL_PAGES] {
        reason::CRITICAL
    } else if available_pages < line[line::LINE_PAGES] && overdue_ns != 0 {
        reason::UNACKNOWLEDGED
    } else {
        0
    }
}

/// Retries without any progress after which the page allocator has no hope left, whatever the zone at hand looks like: half of its own
/// `MAX_RECLAIM_RETRIES`.
const HOPELESS_RETRIES: i32 = 8;

/// Whether the page allocator is about to call the OOM killer, by what it says of a zone before it tries again
/// (`should_reclaim_retry` in mm/page_alloc.c). `would_do`: this zone would do, if all that it can reclaim were free.
///
/// A zone that would not do says nothing while reclaim makes progress: another one may. Nothing comes of an allocation of more than eight
/// pages (`PAGE_ALLOC_COSTLY_ORDER`): the OOM killer is not called for one.
#[must_use]
#[inline(always)]
pub const fn is_exhausted(order: i32, no_progress_loops: i32, would_do: bool) -> bool {
    order <= 3 && ((no_progress_loops > 0 && !would_do) || no_progress_loops >= HOPELESS_RETRIES)
}

/// Whether it is the turn of the pod at `place`, in a shortage that began at `short_since_ns`.
///
/// Whose place is before `done` was killed before; the other processes of that pod follow. The next one has its turn when memory has had
/// time to come back. Each further one waits for those before it, which may yet allocate and be killed.
#[must_use]
#[inline(always)]
pub const fn is_turn(
    place: u64,
    done: u64,
    short_since_ns: u64,
    last_kill_ns: u64,
    now_ns: u64,
) -> bool {
    if place < done {
        return true;
    }
    let back_ns = if last_kill_ns == 0 {
        0
    } else {
        last_kill_ns.saturating_add(TURN_NS)
    };
    if now_ns < back_ns {
        return false;
    }
    let since_ns = if back_ns > short_since_ns {
        back_ns
    } else {
        short_since_ns
    };
    // At most 32 places.
    now_ns.saturating_sub(since_ns) >= (place - done).wrapping_mul(TURN_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(acked_ns: u64) -> [u64; line::WORDS] {
        let mut line = [0; line::WORDS];
        line[line::LINE_PAGES] = 1000;
        line[line::CRITICAL_PAGES] = 100;
        line[line::BUDGET_NS] = 200;
        line[line::ACKED_NS] = acked_ns;
        line
    }

    #[test]
    fn nobody_is_killed_while_memory_is_available() {
        for acked_ns in [0, 5, 5000] {
            for crossed_ns in [0, 10, 9000] {
                let crossings = Crossings {
                    crossed_ns,
                    reclaim_ns: crossed_ns,
                };
                let overdue_ns = unacknowledged(&line(acked_ns), crossings, 1 << 60);
                assert_eq!(shortage(&line(acked_ns), overdue_ns, 1000), 0);
            }
        }
    }

    #[test]
    fn below_the_line_only_after_the_budget() {
        let crossed = |crossed_ns, reclaim_ns| Crossings {
            crossed_ns,
            reclaim_ns,
        };
        let at = |acked_ns, crossings, now_ns| {
            let line = line(acked_ns);
            shortage(&line, unacknowledged(&line, crossings, now_ns), 999)
        };
        assert_eq!(at(0, crossed(0, 0), 1 << 60), 0, "nothing was crossed");
        assert_eq!(at(0, crossed(1000, 0), 1199), 0, "there is still time");
        assert_eq!(at(0, crossed(1000, 0), 1200), reason::UNACKNOWLEDGED);
        assert_eq!(at(0, crossed(0, 1000), 1200), reason::UNACKNOWLEDGED);
        assert_eq!(at(1000, crossed(1000, 0), 9000), 0, "acknowledged");
        assert_eq!(at(1000, crossed(900, 1001), 1201), reason::UNACKNOWLEDGED);
        assert_eq!(at(0, crossed(1000, 0), 900), 0, "another CPU's clock");
    }

    #[test]
    fn below_the_critical_amount_at_once() {
        assert_eq!(shortage(&line(u64::MAX), 0, 99), reason::CRITICAL);
        assert_eq!(shortage(&line(u64::MAX), 0, 100), 0);
    }

    #[test]
    fn available_is_what_the_kernel_says() {
        let pages = Pages {
            free: 1000,
            file: 500,
            reclaimable: 40,
            reserve: 300,
            swap: 0,
        };
        // 1000 + (500 - 100) + (40 - 20) - 300, as `si_mem_available`.
        assert_eq!(available_pages(pages, 100), 1120);
        let none = Pages {
            free: 100,
            file: 0,
            reclaimable: u64::MAX - 3,
            swap: 7,
            ..pages
        };
        assert_eq!(available_pages(none, 100), 7);
    }

    #[test]
    fn the_first_goes_first_and_each_other_waits_its_turn() {
        let turn = TURN_NS;
        assert!(is_turn(0, 0, 10, 0, 10));
        assert!(!is_turn(1, 0, 10, 0, 10 + turn - 1));
        assert!(is_turn(1, 0, 10, 0, 10 + turn));
        assert!(!is_turn(2, 0, 10, 0, 10 + 2 * turn - 1));
        // After a kill: its other processes at once, the next pod when memory has had time to come back.
        assert!(is_turn(0, 1, 10, 50, 51));
        assert!(!is_turn(1, 1, 10, 50, 50 + turn - 1));
        assert!(is_turn(1, 1, 10, 50, 50 + turn));
        assert!(!is_turn(2, 1, 10, 50, 50 + turn));
        assert!(is_turn(2, 1, 10, 50, 50 + 2 * turn));
        // In a new shortage, long after.
        let later = 1000 * turn;
        assert!(is_turn(1, 1, later, 50, later));
        assert!(!is_turn(2, 1, later, 50, later + 1));
    }

    #[test]
    fn only_a_hopeless_allocation_is_exhaustion() {
        assert!(!is_exhausted(0, 0, false), "another zone may do");
        assert!(is_exhausted(0, 1, false));
        assert!(!is_exhausted(0, 1, true));
        assert!(is_exhausted(0, HOPELESS_RETRIES, true));
        assert!(!is_exhausted(4, 16, false), "nothing is killed for that");
    }
}
