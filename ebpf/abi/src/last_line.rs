//! The last line: what the agent leaves in the kernel so that a program there can end a pod when the agent cannot.
//!
//! Problem: a frozen or dead agent evicts no pod, and then the kernel's OOM killer chooses. Approach: the agent leaves
//! the pods that it would evict ([`condemned`]) and two amounts of memory ([`line`](mod@line)) in a map; a program that
//! runs where memory is allocated kills the task that allocates, if memory is short ([`shortage`]) and it is the turn
//! of its pod ([`is_turn`]). These judgements are here, as functions of plain numbers, so that they are tested where
//! tests run.
//!
//! The agent may have been gone for minutes, so the order is not taken from it: the program ranks the pods anew
//! ([`goes_before`]), by what cannot change (tier, priority, request), and by what each holds as far as a program has
//! seen it ([`pods`]). Pods without a process are passed over.
//!
//! What the agent leaves is one value in two slots. It writes the slot that is not in force, then the number of the
//! newest ([`Generation`](in_force)). So there is no moment at which half an order is in force, whenever the agent is
//! stopped.
//!
//! Terms: *available* is the kernel's own MemAvailable plus free swap, in pages. The *line* is what the agent would
//! have evicted for by now; the *critical* amount is less, and leaves no time to wait for any pod. A crossing is
//! *acknowledged* by a sample that the agent took after it. A *shortage* lasts as long as memory is seen to be short.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{COMM_BYTES, Header, positive};

/// Pods in the order, at most.
pub const CONDEMNED_MAX: u32 = 32;

/// How long those before a pod, and memory that is coming back from a kill, are waited for: each place behind the first
/// gets its turn so much later.
pub const TURN_NS: u64 = 200_000_000;

/// A process that was killed is not killed again within this time: a killed task may allocate a good deal on its way
/// out.
pub const AGAIN_AFTER_NS: u64 = 1_000_000_000;

/// A shortage that was not seen for so long is over; the next one is a new one.
pub const SHORTAGE_GAP_NS: u64 = TURN_NS;

/// Bytes of a pod's UID that are kept. Kubernetes' have 36.
pub const UID_BYTES: usize = 40;

/// Words that they take.
pub const UID_WORDS: usize = UID_BYTES / 8;

/// Slots of the `LAST_LINE` map. The slot of a generation is its number modulo this.
pub const SLOTS: u32 = 2;

/// Levels of the hierarchy, from the root downwards, in which a pod's cgroup is looked for. A kubelet's are at the
/// third at most, and four deeper where the node is a container itself. How deep a pod nests cgroups of its own does
/// not matter.
pub const POD_LEVELS: u32 = 16;

/// The first words of a slot of the `LAST_LINE` map. The condemned pods follow ([`condemned`]).
pub mod line {
    /// The number of this value. The `LAST_LINE_NEWEST` map has the number of the one that is in force; 0: none was.
    pub const GENERATION: usize = 0;
    /// No process is killed from then on.
    pub const UNTIL_NS: usize = 1;
    /// Below so many available pages, a condemned process is killed if a crossing was not acknowledged in time.
    pub const LINE_PAGES: usize = 2;
    /// Below so many, at once.
    pub const CRITICAL_PAGES: usize = 3;
    /// The time in which a crossing is to be acknowledged.
    pub const BUDGET_NS: usize = 4;
    /// The total of charges ([`charges`](crate::charges)) before which charges cannot have brought memory down to the
    /// line.
    pub const CHECK_AT_PAGES: usize = 5;
    /// The sum of the zones' low watermarks: so much page cache does not count as available.
    pub const CACHE_KEPT_PAGES: usize = 6;
    /// Crossings up to then are acknowledged: the begin of the agent's newest sample.
    pub const ACKED_NS: usize = 7;
    /// The size of a page.
    pub const PAGE_BYTES: usize = 8;
    /// 0, in memory: a number that the verifier does not know.
    pub const ZERO: usize = 9;
    /// Length.
    pub const WORDS: usize = 10;
}

/// A condemned pod in a slot of the `LAST_LINE` map. [`word_of`] says where.
pub mod condemned {
    /// Id of the pod's memory cgroup; 0 after the last pod.
    pub const ID: usize = 0;
    /// Pods of a lower tier go first, whatever they hold.
    pub const TIER: usize = 1;
    /// The pod's priority, an `i64`.
    pub const PRIORITY: usize = 2;
    /// What it requests.
    pub const REQUEST_BYTES: usize = 3;
    /// What it held by the agent's count (the working set).
    pub const HELD_BYTES: usize = 4;
    /// What it held by its cgroup's page counter at that time.
    pub const USAGE_BYTES: usize = 5;
    /// Its place in the agent's order, from 0: that of the entry in the slot. (In memory, so that the verifier does not
    /// follow each by itself.)
    pub const PLACE: usize = 6;
    /// The pod's UID, padded with NULs, from this word on.
    pub const UID: usize = 7;
    /// Length.
    pub const WORDS: usize = UID + super::UID_WORDS;
}

/// Words of a slot.
pub const SLOT_WORDS: usize = line::WORDS + CONDEMNED_MAX as usize * condemned::WORDS;

/// Where in a slot a [`condemned`] word of the pod at `place` is.
#[must_use]
#[inline(always)]
pub const fn word_of(place: usize, word: usize) -> usize {
    line::WORDS + place * condemned::WORDS + word
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
    /// When a process was last killed.
    pub const LAST_KILL_NS: u32 = 4;
    /// Signals that the kernel did not take (an exiting task, or another signal on its way from this CPU).
    pub const REFUSED: u32 = 5;
    /// Available pages when they were last looked at.
    pub const AVAILABLE_PAGES: u32 = 6;
    /// Length.
    pub const WORDS: u32 = 7;
}

/// Value of the `LAST_LINE_PODS` map (key: id of the pod's memory cgroup): what programs know of a pod, and what was
/// done to it, also for an agent that comes later. The agent adds and removes entries, the programs write them.
pub mod pods {
    /// The key. A program reads it after the rest: an entry may have been taken by another pod since it was found.
    pub const ID: usize = 0;
    /// 1 while the pod has no process.
    pub const EMPTY: usize = 1;
    /// What its cgroup's page counter said last.
    pub const USAGE_PAGES: usize = 2;
    /// When; 0 for never.
    pub const USAGE_NS: usize = 3;
    /// Processes killed.
    pub const COUNT: usize = 4;
    /// When the last one was.
    pub const LAST_NS: usize = 5;
    /// Why: one of [`reason`](mod@super::reason).
    pub const REASON: usize = 6;
    /// Its process id.
    pub const TGID: usize = 7;
    /// The pod's UID, as in [`condemned`](mod@super::condemned).
    pub const UID: usize = 8;
    /// Length.
    pub const WORDS: usize = UID + super::UID_WORDS;
}

/// Why a process was killed.
pub mod reason {
    /// Available memory is below the critical amount.
    pub const CRITICAL: u32 = 1;
    /// It is below the line, and the agent has not acknowledged a crossing within its budget.
    pub const UNACKNOWLEDGED: u32 = 2;
    /// The page allocator finds that reclaiming all that can be reclaimed would not do: its next step is the OOM
    /// killer.
    pub const EXHAUSTED: u32 = 3;
}

/// [`Kind::LastLineKill`](crate::Kind::LastLineKill). `cgroup_id` is the condemned pod's memory cgroup; the process may
/// be in one below it.
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
    /// Condemned pods that went before it, and did not allocate.
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
    /// `vm_node_stat[NR_FILE_PAGES]`.
    pub file_pages: u64,
    /// `vm_node_stat[NR_SHMEM]`.
    pub shmem: u64,
    /// `vm_node_stat[NR_SWAPCACHE]`; 0 on a kernel without swap.
    pub swap_cached: u64,
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
    /// Page cache: active and inactive file pages, as [`page_cache_pages`] bounds them.
    pub file: u64,
    /// Slab and other kernel memory that can be reclaimed.
    pub reclaimable: u64,
    /// Reserves of all zones.
    pub reserve: u64,
    /// Free swap.
    pub swap: u64,
}

/// The global counters may be behind each other by so much: each CPU counts up to 125 pages (`MAX_THRESHOLD` of
/// mm/vmstat.c) for itself.
const CACHE_NOISE_PAGES: u64 = 1024;

/// Page cache that can go: what the lists of file pages have, but no more than there is of it. `cache`: pages of files
/// without shmem and swap cache. Anonymous pages after `madvise(MADV_FREE)` are on these lists too, though they may be
/// in use.
#[must_use]
#[inline(always)]
pub const fn page_cache_pages(listed: u64, cache: u64) -> u64 {
    let (listed, most) = (
        positive(listed),
        positive(cache).wrapping_add(CACHE_NOISE_PAGES),
    );
    if listed < most { listed } else { most }
}

/// MemAvailable (`si_mem_available` in mm/show_mem.c) plus free swap, pages. A counter may be below zero for a moment
/// and counts as 0.
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

/// Whether memory is so short that somebody condemned may be killed: a [`reason`](mod@reason), or 0. `overdue_ns`: what
/// [`unacknowledged`] said.
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

/// Retries without any progress after which the page allocator has no hope left, whatever the zone at hand looks like:
/// half of its own `MAX_RECLAIM_RETRIES`.
const HOPELESS_RETRIES: i32 = 8;

/// Whether the page allocator is about to call the OOM killer, by what it says of a zone before it tries again
/// (`should_reclaim_retry` in mm/page_alloc.c). `would_do`: this zone would do, if all that it can reclaim were free.
///
/// A zone that would not do says nothing while reclaim makes progress: another one may. Nothing comes of an allocation
/// of more than eight pages (`PAGE_ALLOC_COSTLY_ORDER`): the OOM killer is not called for one.
#[must_use]
#[inline(always)]
pub const fn is_exhausted(order: i32, no_progress_loops: i32, would_do: bool) -> bool {
    order <= 3 && ((no_progress_loops > 0 && !would_do) || no_progress_loops >= HOPELESS_RETRIES)
}

/// The first `N` words of what is in force, and its generation. `None`: nothing is, or the agent has renewed it
/// meanwhile.
///
/// `newest` reads the `LAST_LINE_NEWEST` map, and no read of a program is done before an earlier call of it is over;
/// `word` reads a word of a slot. A slot is written only while another one is in force. So what was read is of one
/// piece if `newest` says the same before and after.
#[inline(always)]
pub fn in_force<const N: usize>(
    mut newest: impl FnMut() -> u64,
    mut word: impl FnMut(u32, usize) -> u64,
) -> Option<[u64; N]> {
    let generation = newest();
    let slot = slot_of(generation);
    let mut words = [0; N];
    for (at, into) in words.iter_mut().enumerate() {
        *into = word(slot, at);
    }
    // A number that was seen half-written has no slot.
    (generation != 0 && words[line::GENERATION] == generation && newest() == generation)
        .then_some(words)
}

/// The slot of a generation.
#[must_use]
#[inline(always)]
pub const fn slot_of(generation: u64) -> u32 {
    (generation % SLOTS as u64) as u32
}

/// A condemned pod, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankedPod {
    /// [`condemned::TIER`].
    pub tier: u64,
    /// [`condemned::PRIORITY`].
    pub priority: i64,
    /// [`condemned::REQUEST_BYTES`].
    pub request_bytes: u64,
    /// What it holds.
    pub held_bytes: u64,
    /// [`condemned::PLACE`].
    pub place: u64,
}

/// The pod at `place`. `word` reads a word of the slot. `seen`: what a program has seen of it; used if it is newer than
/// the agent's newest sample.
#[inline(always)]
pub fn standing(
    place: usize,
    line: &[u64; line::WORDS],
    seen: Seen,
    mut word: impl FnMut(usize) -> u64,
) -> RankedPod {
    let mut held_bytes = word(word_of(place, condemned::HELD_BYTES));
    if seen.usage_ns > line[line::ACKED_NS] {
        let usage_bytes = seen.usage_pages.wrapping_mul(line[line::PAGE_BYTES]);
        let was_bytes = word(word_of(place, condemned::USAGE_BYTES));
        held_bytes = held_bytes
            .saturating_add(usage_bytes)
            .saturating_sub(was_bytes);
    }
    RankedPod {
        tier: word(word_of(place, condemned::TIER)),
        priority: word(word_of(place, condemned::PRIORITY)) as i64,
        request_bytes: word(word_of(place, condemned::REQUEST_BYTES)),
        held_bytes,
        place: word(word_of(place, condemned::PLACE)),
    }
}

/// What a program has seen of a pod ([`pods`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// [`pods::EMPTY`].
    pub is_empty: bool,
    /// [`pods::USAGE_PAGES`].
    pub usage_pages: u64,
    /// [`pods::USAGE_NS`].
    pub usage_ns: u64,
    /// [`pods::LAST_NS`].
    pub last_ns: u64,
}

impl Seen {
    /// Whether a process of the pod was killed in this shortage.
    #[must_use]
    #[inline(always)]
    pub const fn is_struck(self, short_since_ns: u64) -> bool {
        self.last_ns != 0 && self.last_ns >= short_since_ns
    }
}

/// Whether `a` goes before `b`: the order of eviction for memory (`Ranking::Memory` of the agent's core) without the
/// comparators of namespaces, by what both hold now. Equals go in the agent's order.
#[must_use]
#[inline(always)]
pub const fn goes_before(a: &RankedPod, b: &RankedPod) -> bool {
    if a.tier != b.tier {
        return a.tier < b.tier;
    }
    let exceeds = (
        a.held_bytes > a.request_bytes,
        b.held_bytes > b.request_bytes,
    );
    if exceeds.0 != exceeds.1 {
        return exceeds.0;
    }
    if a.priority != b.priority {
        return a.priority < b.priority;
    }
    let excess = (
        a.held_bytes.wrapping_sub(a.request_bytes) as i64,
        b.held_bytes.wrapping_sub(b.request_bytes) as i64,
    );
    if excess.0 != excess.1 {
        return excess.0 > excess.1;
    }
    a.place < b.place
}

/// Whether it is the turn of a pod, in a shortage that began at `short_since_ns`.
///
/// A pod that was struck in this shortage goes on: its other processes follow the first. The first of the others has
/// its turn when memory has had time to come back from the last kill. Each further one waits for the `before` that go
/// before it and were not struck: they may yet allocate.
#[must_use]
#[inline(always)]
pub const fn is_turn(
    before: u64,
    is_struck: bool,
    short_since_ns: u64,
    last_kill_ns: u64,
    now_ns: u64,
) -> bool {
    if is_struck {
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
    // Fewer than 32 pods.
    now_ns.saturating_sub(since_ns) >= before.wrapping_mul(TURN_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;

    use std::cell::RefCell;
    use std::vec::Vec;

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
    fn file_pages_beyond_page_cache_are_not_available() {
        assert_eq!(page_cache_pages(5000, 5000), 5000);
        assert_eq!(page_cache_pages(5000, 9000), 5000);
        assert_eq!(page_cache_pages(400_000, 5000), 5000 + CACHE_NOISE_PAGES);
        // Counters below zero.
        assert_eq!(page_cache_pages(u64::MAX - 3, 5000), 0);
        assert_eq!(page_cache_pages(5000, u64::MAX - 3), CACHE_NOISE_PAGES);
    }

    #[test]
    fn the_first_goes_first_and_each_other_waits_its_turn() {
        let turn = TURN_NS;
        assert!(is_turn(0, false, 10, 0, 10));
        assert!(!is_turn(1, false, 10, 0, 10 + turn - 1));
        assert!(is_turn(1, false, 10, 0, 10 + turn));
        assert!(!is_turn(2, false, 10, 0, 10 + 2 * turn - 1));
        // After a kill: its other processes at once, the next pod when memory has had time to come back.
        assert!(is_turn(0, true, 10, 50, 51));
        assert!(!is_turn(0, false, 10, 50, 50 + turn - 1));
        assert!(is_turn(0, false, 10, 50, 50 + turn));
        assert!(!is_turn(1, false, 10, 50, 50 + turn));
        assert!(is_turn(1, false, 10, 50, 50 + 2 * turn));
        // In a new shortage, long after.
        let later = 1000 * turn;
        assert!(is_turn(0, false, later, 50, later));
        assert!(!is_turn(1, false, later, 50, later + 1));
        // A kill of an earlier shortage does not count in this one.
        let seen = Seen {
            last_ns: 50,
            ..Seen::default()
        };
        assert!(seen.is_struck(10) && !seen.is_struck(later));
        assert!(!Seen::default().is_struck(0));
    }

    #[test]
    fn only_a_hopeless_allocation_is_exhaustion() {
        assert!(!is_exhausted(0, 0, false), "another zone may do");
        assert!(is_exhausted(0, 1, false));
        assert!(!is_exhausted(0, 1, true));
        assert!(is_exhausted(0, HOPELESS_RETRIES, true));
        assert!(!is_exhausted(4, 16, false), "nothing is killed for that");
    }

    fn pod(tier: u64, priority: i64, request_bytes: u64, held_bytes: u64) -> RankedPod {
        RankedPod {
            tier,
            priority,
            request_bytes,
            held_bytes,
            place: 0,
        }
    }

    #[test]
    fn who_holds_most_beyond_its_request_goes_first_within_its_class() {
        let goes = |a: RankedPod, b: RankedPod| goes_before(&a, &b) && !goes_before(&b, &a);
        assert!(goes(pod(2, 9, 0, 1), pod(3, 0, 0, 99)), "the tier");
        assert!(
            goes(pod(2, 9, 10, 11), pod(2, 0, 99, 99)),
            "above its request"
        );
        assert!(goes(pod(2, -1, 0, 1), pod(2, 0, 0, 99)), "the priority");
        assert!(goes(pod(2, 0, 10, 40), pod(2, 0, 90, 110)), "the amount");
        assert!(
            goes(pod(2, 0, 90, 80), pod(2, 0, 90, 70)),
            "below its request"
        );
        let later = RankedPod {
            place: 1,
            ..pod(2, 0, 0, 1)
        };
        assert!(goes(pod(2, 0, 0, 1), later), "the place");
    }

    #[test]
    fn what_a_program_saw_counts_if_it_is_newer() {
        let mut words = [0; SLOT_WORDS];
        words[line::ACKED_NS] = 100;
        words[line::PAGE_BYTES] = 4096;
        words[word_of(3, condemned::HELD_BYTES)] = 5000;
        words[word_of(3, condemned::USAGE_BYTES)] = 8192;
        let mut line = [0; line::WORDS];
        line.copy_from_slice(&words[..line::WORDS]);
        let held = |usage_ns, usage_pages| {
            let seen = Seen {
                usage_ns,
                usage_pages,
                ..Seen::default()
            };
            standing(3, &line, seen, |at| words[at]).held_bytes
        };
        assert_eq!(held(100, 50), 5000, "as old as the sample");
        assert_eq!(held(101, 3), 5000 + 4096);
        assert_eq!(held(101, 1), 5000 - 4096);
        assert_eq!(held(101, 0), 0);
    }

    /// The agent's stores, one word each, as a program on another CPU or one that was preempted may see them; and the
    /// program between them.
    struct Interleaved {
        slots: [[u64; MODEL_WORDS]; SLOTS as usize],
        newest: u64,
        stores: Vec<Store>,
        /// Stores that are done before the program's next read, for each read.
        schedule: Vec<usize>,
        reads: usize,
    }

    #[derive(Clone, Copy)]
    enum Store {
        Word(u64, usize, u64),
        Newest(u64),
    }

    /// The generation, one word of the head, and a condemned pod of two words.
    const MODEL_WORDS: usize = 4;

    impl Interleaved {
        fn read(&mut self) {
            let before = self.schedule.get(self.reads).copied().unwrap_or(0);
            self.reads += 1;
            for store in self.stores.drain(..before.min(self.stores.len())) {
                match store {
                    Store::Word(generation, at, value) => {
                        self.slots[slot_of(generation) as usize][at] = value;
                    }
                    Store::Newest(generation) => self.newest = generation,
                }
            }
        }
    }

    /// The words that the agent leaves as its `generation`: all that follows the number says whose it is.
    fn left(generation: u64) -> [u64; MODEL_WORDS] {
        core::array::from_fn(|at| {
            if at == line::GENERATION {
                generation
            } else {
                generation * 10 + at as u64
            }
        })
    }

    /// Every way to do at most `stores` stores before each of `reads` reads.
    fn schedules(reads: usize, stores: usize, each: &mut dyn FnMut(&[usize])) {
        fn go(at: usize, left: usize, now: &mut Vec<usize>, each: &mut dyn FnMut(&[usize])) {
            if at == 0 {
                return each(now);
            }
            for count in 0..=left {
                now.push(count);
                go(at - 1, left - count, now, each);
                now.pop();
            }
        }
        go(reads, stores, &mut Vec::new(), each);
    }

    #[test]
    fn no_interleaving_shows_a_program_half_an_order() {
        // Three more generations: the slot that the program reads is written again.
        for is_backwards in [false, true] {
            let mut stores = Vec::new();
            for generation in 2..=4 {
                let mut words: Vec<usize> = (0..MODEL_WORDS).collect();
                if is_backwards {
                    words.reverse();
                }
                let value = left(generation);
                stores.extend(
                    words
                        .iter()
                        .map(|&at| Store::Word(generation, at, value[at])),
                );
                stores.push(Store::Newest(generation));
            }
            let (mut runs, mut seen) = (0_u32, 0_u32);
            schedules(MODEL_WORDS + 2, stores.len(), &mut |schedule| {
                let model = RefCell::new(Interleaved {
                    slots: [[0; MODEL_WORDS], left(1)],
                    newest: 1,
                    stores: stores.clone(),
                    schedule: schedule.to_vec(),
                    reads: 0,
                });
                let words = in_force::<MODEL_WORDS>(
                    || {
                        model.borrow_mut().read();
                        model.borrow().newest
                    },
                    |slot, at| {
                        model.borrow_mut().read();
                        model.borrow().slots[slot as usize][at]
                    },
                );
                runs += 1;
                if let Some(words) = words {
                    seen += 1;
                    assert_eq!(words, left(words[line::GENERATION]), "{schedule:?}");
                    assert_eq!(
                        words[line::GENERATION],
                        model.borrow().newest,
                        "{schedule:?}"
                    );
                }
            });
            assert!(
                runs > 10_000 && seen > 100,
                "{runs} interleavings, {seen} of them seen"
            );
        }
    }
}
