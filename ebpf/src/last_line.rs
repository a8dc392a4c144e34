//! The last line: the task that allocates is killed if its pod is condemned, memory is short, and the agent does not
//! act.
//!
//! What that means exactly is in [`plimsoll_abi::last_line`]. Here is where it is looked at, from often and early to
//! rare and late:
//!
//! - [`last_line_charge`], when memory is charged to a cgroup. Until so much has been charged that memory can be short
//!   at all, that is two loads and a comparison.
//! - [`last_line_reclaim`], when a task has to reclaim by itself: free memory is below the min watermark. Also sees
//!   what is not charged, and works where fentry is refused.
//! - [`last_line_retry`], when the page allocator is about to give up, by its own figures. Works where the addresses of
//!   the kernel's counters are hidden, too.
//!
//! The process that is killed is `current`: in the few places where memory is charged from an interrupt that may be a
//! condemned pod's task which did not ask for it. Kernel threads and process 1 are refused by the kernel.

use aya_ebpf::{
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_task_btf, bpf_ktime_get_ns,
        bpf_send_signal,
    },
    macros::{btf_tracepoint, fentry},
    programs::{BtfTracePointContext, FEntryContext},
};
use plimsoll_abi::{
    Kind, UNKNOWN_U64, charges,
    last_line::{
        AGAIN_AFTER_NS, CONDEMNED_MAX, Counters, Crossings, LastLineKill, POD_LEVELS, Pages,
        RankedPod, SHORTAGE_GAP_NS, SLOT_WORDS, Seen, UID_WORDS, available_pages, condemned,
        goes_before, in_force, is_exhausted, is_turn, line, page_cache_pages, pods, reason, seen,
        shortage, slot_of, standing, unacknowledged, word_of,
    },
};

use crate::{
    atomic,
    layout::{ancestor, frozen, load_u32, offset, probe_id, probe_u64, task_memory_cgroup},
    maps::{CHARGES, LAST_LINE, LAST_LINE_NEWEST, LAST_LINE_PODS, LAST_LINE_SEEN, SIGNALLED},
    record::{header, send_critical_unasked},
};

/// Where the kernel counts pages. Written by the agent before loading.
#[unsafe(no_mangle)]
static COUNTERS: Counters = Counters {
    free: 0,
    active_file: 0,
    inactive_file: 0,
    file_pages: 0,
    shmem: 0,
    swap_cached: 0,
    slab_reclaimable: 0,
    misc_reclaimable: 0,
    reserve: 0,
    swap: 0,
};

/// `SIGKILL`.
const KILL: u32 = 9;

/// A value of `LAST_LINE`.
type Slot = *const [u64; SLOT_WORDS];
/// A value of `LAST_LINE_PODS`.
type Pod = *mut [u64; pods::WORDS];

/// The first words of what is in force.
type Line = [u64; line::WORDS];

/// On entry of `page_counter_try_charge(struct page_counter *counter, unsigned long nr_pages, …)`.
#[fentry(function = "page_counter_try_charge")]
pub fn last_line_charge(_ctx: FEntryContext) -> u32 {
    let (Some(newest), Some(charged)) =
        (LAST_LINE_NEWEST.get(0), CHARGES.get(charges::TOTAL_PAGES))
    else {
        return 0;
    };
    let Some(slot) = LAST_LINE.get_ptr(slot_of(*newest)) else {
        return 0;
    };
    // Seen while the agent writes it, it may be of either value: then the next charge looks.
    if *charged < word(slot, line::CHECK_AT_PAGES) || is_over(slot) {
        return 0;
    }
    if let Some(line) = line_in_force() {
        look(&line);
    }
    0
}

/// `mm_vmscan_direct_reclaim_begin(…)`: the task found no free page, and begins to reclaim.
#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_begin")]
pub fn last_line_reclaim(_ctx: BtfTracePointContext) -> i32 {
    let slot = LAST_LINE_NEWEST
        .get(0)
        .and_then(|newest| LAST_LINE.get_ptr(slot_of(*newest)));
    if slot.is_some_and(|slot| !is_over(slot))
        && let Some(line) = line_in_force()
    {
        note_reclaim(&line);
        look(&line);
    }
    0
}

/// `reclaim_retry_zone(struct zoneref *zoneref, int order, unsigned long reclaimable, unsigned long available, unsigned long min_wmark, int no_progress_loops, bool wmark_check)`.
#[btf_tracepoint(function = "reclaim_retry_zone")]
pub fn last_line_retry(ctx: BtfTracePointContext) -> i32 {
    let order: i32 = ctx.arg(1);
    let loops: i32 = ctx.arg(5);
    let would_do: u64 = ctx.arg(6);
    if is_exhausted(order, loops, would_do & 0xff != 0)
        && let Some(line) = line_in_force()
    {
        enforce(&line, reason::EXHAUSTED, UNKNOWN_U64, 0);
    }
    0
}

/// Nothing is in force any more, or nothing was yet: an agent that is gone leaves programs that cost next to nothing.
#[inline(always)]
fn is_over(slot: Slot) -> bool {
    // SAFETY: a helper without arguments.
    word(slot, line::UNTIL_NS) <= unsafe { bpf_ktime_get_ns() }
}

/// The first words of what is in force, all of one value.
#[inline(always)]
fn line_in_force() -> Option<Line> {
    in_force(newest, |slot, at| {
        LAST_LINE.get_ptr(slot).map_or(0, |slot| word(slot, at))
    })
}

/// The number of what is in force. All reads before it are done.
#[inline(always)]
fn newest() -> u64 {
    LAST_LINE_NEWEST
        .get_ptr_mut(0)
        // SAFETY: a map value. The addition of nothing is a full barrier.
        .map_or(0, |newest| unsafe { atomic::add_and_get(newest, 0) })
}

#[inline(always)]
fn word(slot: Slot, at: usize) -> u64 {
    // SAFETY: a map value of so many words; the verifier checks `at`.
    unsafe { slot.cast::<u64>().add(at).read_volatile() }
}

/// A task reclaims by itself: that is for the agent to answer, like a threshold. The first time counts.
#[inline(always)]
fn note_reclaim(line: &Line) {
    let Some(word) = LAST_LINE_SEEN.get_ptr_mut(seen::RECLAIM_NS) else {
        return;
    };
    // SAFETY: a map value; a helper without arguments.
    unsafe {
        let known_ns = word.read_volatile();
        if known_ns <= line[line::ACKED_NS] {
            atomic::replace(word, known_ns, bpf_ktime_get_ns());
        }
    }
}

/// Kills if memory is short by the kernel's own counters.
#[inline(always)]
fn look(line: &Line) {
    let counters = frozen(&COUNTERS);
    if counters.free == 0 {
        return;
    }
    let listed = probe_u64(counters.active_file).wrapping_add(probe_u64(counters.inactive_file));
    let cache = probe_u64(counters.file_pages)
        .wrapping_sub(probe_u64(counters.shmem))
        // No swap: address 0, which reads as 0.
        .wrapping_sub(probe_u64(counters.swap_cached));
    let available = available_pages(
        Pages {
            free: probe_u64(counters.free),
            file: page_cache_pages(listed, cache),
            reclaimable: probe_u64(counters.slab_reclaimable)
                .wrapping_add(probe_u64(counters.misc_reclaimable)),
            reserve: probe_u64(counters.reserve),
            // As above.
            swap: probe_u64(counters.swap),
        },
        line[line::CACHE_KEPT_PAGES],
    );
    store(seen::AVAILABLE_PAGES, available);
    let crossings = Crossings {
        crossed_ns: load(seen::CROSSED_NS),
        reclaim_ns: load(seen::RECLAIM_NS),
    };
    // SAFETY: a helper without arguments.
    let overdue_ns = unacknowledged(line, crossings, unsafe { bpf_ktime_get_ns() });
    let why = shortage(line, overdue_ns, available);
    if why != 0 {
        let crossed_ns = if why == reason::UNACKNOWLEDGED {
            overdue_ns
        } else {
            0
        };
        enforce(line, why, available, crossed_ns);
    }
}

/// Memory is short: kills the current process if its pod is condemned and it is the pod's turn.
#[inline(always)]
fn enforce(line: &Line, why: u32, available_pages: u64, crossed_ns: u64) {
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if now_ns >= line[line::UNTIL_NS] {
        return;
    }
    let short_since_ns = shortage_since(now_ns);
    let Some((cgroup_id, pod)) = pod_of_current(now_ns) else {
        return;
    };
    let Some(slot) = LAST_LINE.get_ptr(slot_of(line[line::GENERATION])) else {
        return;
    };
    let known = known(pod);
    let Some((this, uid)) = condemned(slot, line, cgroup_id, known) else {
        return;
    };
    let before = before(slot, line, cgroup_id, &this, short_since_ns);
    if !is_turn(
        before,
        known.is_struck(short_since_ns),
        short_since_ns,
        load(seen::LAST_KILL_NS),
        now_ns,
    ) {
        return;
    }
    // The agent may have renewed it meanwhile: then it is not frozen, and the pod may be exempt by now. And the entry
    // may be another's.
    if newest() != line[line::GENERATION] || pod_word(pod, pods::ID) != cgroup_id || !claim(now_ns)
    {
        return;
    }
    // SAFETY: the helper takes a number.
    if unsafe { bpf_send_signal(KILL) } != 0 {
        let _ = SIGNALLED.remove(tgid());
        if let Some(refused) = LAST_LINE_SEEN.get_ptr_mut(seen::REFUSED) {
            // SAFETY: a map value.
            unsafe { atomic::add(refused, 1) };
        }
        return;
    }
    store(seen::LAST_KILL_NS, now_ns);
    let count = remember(pod, why, now_ns);
    let wanted_pages = if why == reason::UNACKNOWLEDGED {
        line[line::LINE_PAGES]
    } else {
        line[line::CRITICAL_PAGES]
    };
    send_critical_unasked(Kind::LastLineKill, |record: *mut LastLineKill| {
        // SAFETY: reserved for this type.
        unsafe {
            record.write(LastLineKill {
                header: header(Kind::LastLineKill, cgroup_id),
                available_pages,
                wanted_pages,
                crossed_ns,
                acked_ns: line[line::ACKED_NS],
                kills: count,
                uid,
                tgid: tgid(),
                reason: why,
                place: before as u32,
                pad: 0,
                comm: bpf_get_current_comm().unwrap_or([0; 16]),
            });
        }
    });
}

/// When this shortage began: now, if none was seen lately.
#[inline(always)]
fn shortage_since(now_ns: u64) -> u64 {
    if now_ns.saturating_sub(load(seen::SHORT_SEEN_NS)) > SHORTAGE_GAP_NS {
        store(seen::SHORT_SINCE_NS, now_ns);
    }
    store(seen::SHORT_SEEN_NS, now_ns);
    load(seen::SHORT_SINCE_NS)
}

/// The pod that the current task is of, if it has an entry, with the id of its memory cgroup. Notes what it holds.
///
/// From the root downwards: a pod may nest cgroups as deep as it likes.
#[inline(always)]
fn pod_of_current(now_ns: u64) -> Option<(u64, Pod)> {
    // SAFETY: a helper without arguments; its result is typed.
    let task = unsafe { bpf_get_current_task_btf() } as *const u8;
    // SAFETY: typed.
    let cgroup = unsafe { task_memory_cgroup(task) };
    // SAFETY: typed by the load that it comes from.
    let lowest = unsafe { load_u32(cgroup, offset!(cgroup_level)) };
    for level in 1..=POD_LEVELS {
        if level > lowest {
            break;
        }
        let ancestor = ancestor(cgroup, level);
        let id = probe_id(ancestor);
        if let Some(pod) = LAST_LINE_PODS.get_ptr_mut(id) {
            note_usage(pod, ancestor, now_ns);
            return Some((id, pod));
        }
    }
    None
}

/// Notes what the page counter of a pod's memory cgroup says.
#[inline(always)]
fn note_usage(pod: Pod, cgroup: u64, now_ns: u64) {
    let (of_css, of_usage) = (offset!(cgroup_memory_css), offset!(memcg_usage));
    if of_css == u32::MAX as usize || of_usage == u32::MAX as usize {
        // This kernel does not say: what the agent knew counts.
        return;
    }
    let css = probe_u64(cgroup.wrapping_add(of_css as u64));
    if css == 0 {
        return;
    }
    let memcg = css.wrapping_sub(offset!(memcg_css) as u64);
    let usage_pages = probe_u64(memcg.wrapping_add(of_usage as u64));
    // SAFETY: a map value of `pods::WORDS` words.
    unsafe {
        (&raw mut (*pod)[pods::USAGE_PAGES]).write_volatile(usage_pages);
        (&raw mut (*pod)[pods::USAGE_NS]).write_volatile(now_ns);
    }
}

/// A pod as it is now, and its UID; `None`: it is not condemned.
#[inline(always)]
fn condemned(
    slot: Slot,
    line: &Line,
    cgroup_id: u64,
    known: Seen,
) -> Option<(RankedPod, [u64; UID_WORDS])> {
    let word = |at| word(slot, at);
    for place in 0..CONDEMNED_MAX as usize {
        if word(word_of(place, condemned::ID)) == cgroup_id {
            let mut uid = [0; UID_WORDS];
            for (index, into) in uid.iter_mut().enumerate() {
                *into = word(word_of(place, condemned::UID + index));
            }
            return Some((standing(place, line, known, word), uid));
        }
    }
    None
}

/// How many pods that have processes go before this one, and have not been struck.
#[inline(always)]
fn before(slot: Slot, line: &Line, cgroup_id: u64, this: &RankedPod, short_since_ns: u64) -> u64 {
    let word = |at| word(slot, at);
    // Not a constant, so that the verifier does not follow each count by itself.
    let mut before = word(line::ZERO);
    for place in 0..CONDEMNED_MAX as usize {
        let id = word(word_of(place, condemned::ID));
        if id == 0 {
            break;
        }
        if id == cgroup_id {
            continue;
        }
        let Some(pod) = LAST_LINE_PODS.get_ptr_mut(id) else {
            continue;
        };
        let known = known(pod);
        if !known.is_empty
            && !known.is_struck(short_since_ns)
            && goes_before(&standing(place, line, known, word), this)
            && pod_word(pod, pods::ID) == id
        {
            before += 1;
        }
    }
    before
}

/// What is known of a pod.
#[inline(always)]
fn known(pod: Pod) -> Seen {
    Seen {
        is_empty: pod_word(pod, pods::EMPTY) != 0,
        usage_pages: pod_word(pod, pods::USAGE_PAGES),
        usage_ns: pod_word(pod, pods::USAGE_NS),
        last_ns: pod_word(pod, pods::LAST_NS),
    }
}

#[inline(always)]
fn pod_word(pod: Pod, at: usize) -> u64 {
    // SAFETY: a map value of `pods::WORDS` words.
    unsafe { pod.cast::<u64>().add(at).read_volatile() }
}

/// Takes the right to kill the current process: once in a while.
#[inline(always)]
fn claim(now_ns: u64) -> bool {
    const NOEXIST: u64 = 1;
    let tgid = tgid();
    if SIGNALLED.insert(tgid, now_ns, NOEXIST).is_ok() {
        return true;
    }
    let Some(sent_ns) = SIGNALLED.get_ptr_mut(tgid) else {
        return false;
    };
    // SAFETY: a map value.
    unsafe { atomic::claim_window(sent_ns, now_ns, AGAIN_AFTER_NS) }
}

/// Adds to what was done to this pod, and returns how many of its processes were killed.
#[inline(always)]
fn remember(pod: Pod, why: u32, now_ns: u64) -> u64 {
    // SAFETY: a map value of `pods::WORDS` words.
    unsafe {
        (&raw mut (*pod)[pods::LAST_NS]).write_volatile(now_ns);
        (*pod)[pods::REASON] = u64::from(why);
        (*pod)[pods::TGID] = u64::from(tgid());
        atomic::add_and_get(&raw mut (*pod)[pods::COUNT], 1)
    }
}

#[inline(always)]
fn tgid() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

#[inline(always)]
fn load(index: u32) -> u64 {
    LAST_LINE_SEEN
        .get_ptr(index)
        // SAFETY: a map value.
        .map_or(0, |word| unsafe { word.read_volatile() })
}

#[inline(always)]
fn store(index: u32, value: u64) {
    if let Some(word) = LAST_LINE_SEEN.get_ptr_mut(index) {
        // SAFETY: a map value.
        unsafe { word.write_volatile(value) };
    }
}
