//! The last line: the task that allocates is killed if its pod is condemned, memory is short, and the agent does not act.
//!
//! What that means exactly is in [`plimsoll_abi::last_line`]. Here is where it is looked at, from often and early to rare and late:
//!
//! - [`last_line_charge`], when memory is charged to a cgroup. Until so much has been charged that memory can be short at all, that is
//!   two loads and a comparison.
//! - [`last_line_reclaim`], when a task has to reclaim by itself: free memory is below the min watermark. Also sees what is not charged,
//!   and works where fentry is refused.
//! - [`last_line_retry`], when the page allocator is about to give up, by its own figures. Works where the addresses of the kernel's counters
//!   are hidden, too.
//!
//! The process that is killed is `current`: in the few places where memory is charged from an interrupt that may be a condemned pod's task which
//! did not ask for it. Kernel threads and process 1 are refused by the kernel.

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
        AGAIN_AFTER_NS, Counters, Crossings, LastLineKill, Pages, SHORTAGE_GAP_NS, UID_WORDS,
        available_pages, condemned, is_exhausted, is_turn, kills, line, reason, seen, shortage,
        unacknowledged,
    },
};

use crate::{
    atomic,
    layout::{cgroup_id, frozen, load_ptr, offset, probe_u64, task_memory_cgroup},
    maps::{CHARGES, CONDEMNED, LAST_LINE, LAST_LINE_KILLS, LAST_LINE_SEEN, SIGNALLED},
    record::{count_untracked, header, send_critical_unasked},
};

/// Where the kernel counts pages. Written by the agent before loading.
#[unsafe(no_mangle)]
static COUNTERS: Counters = Counters {
    free: 0,
    active_file: 0,
    inactive_file: 0,
    slab_reclaimable: 0,
    misc_reclaimable: 0,
    reserve: 0,
    swap: 0,
};

/// Levels from a task's cgroup upwards in which a condemned pod is looked for: a container may have cgroups of its own.
const LEVELS: usize = 8;

/// `SIGKILL`.
const KILL: u32 = 9;

/// On entry of `page_counter_try_charge(struct page_counter *counter, unsigned long nr_pages, …)`.
#[fentry(function = "page_counter_try_charge")]
pub fn last_line_charge(_ctx: FEntryContext) -> u32 {
    let (Some(line), Some(charged)) = (LAST_LINE.get(0), CHARGES.get(charges::TOTAL_PAGES)) else {
        return 0;
    };
    if *charged < line[line::CHECK_AT_PAGES] {
        return 0;
    }
    look(line);
    0
}

/// `mm_vmscan_direct_reclaim_begin(…)`: the task found no free page, and begins to reclaim.
#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_begin")]
pub fn last_line_reclaim(_ctx: BtfTracePointContext) -> i32 {
    let Some(line) = LAST_LINE.get(0) else {
        return 0;
    };
    note_reclaim(line);
    look(line);
    0
}

/// `reclaim_retry_zone(struct zoneref *zoneref, int order, unsigned long reclaimable, unsigned long available, unsigned long min_wmark,
/// int no_progress_loops, bool wmark_check)`.
#[btf_tracepoint(function = "reclaim_retry_zone")]
pub fn last_line_retry(ctx: BtfTracePointContext) -> i32 {
    let order: i32 = ctx.arg(1);
    let loops: i32 = ctx.arg(5);
    let would_do: u64 = ctx.arg(6);
    let Some(line) = LAST_LINE.get(0) else {
        return 0;
    };
    if is_exhausted(order, loops, would_do & 0xff != 0) {
        enforce(line, reason::EXHAUSTED, UNKNOWN_U64, 0);
    }
    0
}

/// A task reclaims by itself: that is for the agent to answer, like a threshold. The first time counts.
#[inline(always)]
fn note_reclaim(line: &[u64; line::WORDS]) {
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
fn look(line: &[u64; line::WORDS]) {
    let counters = frozen(&COUNTERS);
    if counters.free == 0 {
        return;
    }
    let available = available_pages(
        Pages {
            free: probe_u64(counters.free),
            file: probe_u64(counters.active_file).wrapping_add(probe_u64(counters.inactive_file)),
            reclaimable: probe_u64(counters.slab_reclaimable)
                .wrapping_add(probe_u64(counters.misc_reclaimable)),
            reserve: probe_u64(counters.reserve),
            // No swap: address 0, which reads as 0.
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
fn enforce(line: &[u64; line::WORDS], why: u32, available_pages: u64, crossed_ns: u64) {
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if now_ns >= line[line::UNTIL_NS] {
        return;
    }
    let short_since_ns = shortage_since(now_ns);
    let Some((cgroup_id, pod)) = condemned_pod() else {
        return;
    };
    // SAFETY: a map value of `condemned::WORDS` words.
    let (place, until_ns) = unsafe { ((*pod)[condemned::PLACE], (*pod)[condemned::UNTIL_NS]) };
    if now_ns >= until_ns
        || !is_turn(
            place,
            load(seen::DONE),
            short_since_ns,
            load(seen::LAST_KILL_NS),
            now_ns,
        )
        || !claim(now_ns)
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
    if let Some(done) = LAST_LINE_SEEN.get_ptr_mut(seen::DONE) {
        // SAFETY: a map value.
        unsafe { atomic::raise(done, place.wrapping_add(1)) };
    }
    // SAFETY: a map value of `condemned::WORDS` words.
    let uid = unsafe { uid_of(pod) };
    let count = remember(cgroup_id, why, now_ns, uid);
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
                place: place as u32,
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

/// The condemned pod that the current task is of, with the id of its memory cgroup.
#[inline(always)]
fn condemned_pod() -> Option<(u64, *const [u64; condemned::WORDS])> {
    // SAFETY: a helper without arguments; its result is typed.
    let task = unsafe { bpf_get_current_task_btf() } as *const u8;
    // SAFETY: typed.
    let mut cgroup = unsafe { task_memory_cgroup(task) };
    for _ in 0..LEVELS {
        if cgroup.is_null() {
            break;
        }
        // SAFETY: typed by the load that it comes from.
        let id = unsafe { cgroup_id(cgroup) };
        if let Some(pod) = CONDEMNED.get_ptr(id) {
            return Some((id, pod));
        }
        // SAFETY: typed members of typed pointers; NULL above the root reads as NULL.
        cgroup = unsafe {
            let css = load_ptr(cgroup, offset!(cgroup_self) + offset!(css_parent));
            load_ptr(css, offset!(css_cgroup))
        };
    }
    None
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
fn remember(cgroup_id: u64, why: u32, now_ns: u64, uid: [u64; UID_WORDS]) -> u64 {
    if LAST_LINE_KILLS.get_ptr(cgroup_id).is_none() {
        let mut fresh = [0; kills::WORDS];
        for (index, word) in uid.into_iter().enumerate() {
            fresh[kills::UID + index] = word;
        }
        // Another CPU may be first.
        let _ = LAST_LINE_KILLS.insert(cgroup_id, fresh, 1);
    }
    let Some(known) = LAST_LINE_KILLS.get_ptr_mut(cgroup_id) else {
        count_untracked();
        return 1;
    };
    // SAFETY: a map value of `kills::WORDS` words.
    unsafe {
        (*known)[kills::LAST_NS] = now_ns;
        (*known)[kills::REASON] = u64::from(why);
        (*known)[kills::TGID] = u64::from(tgid());
        atomic::add_and_get(&raw mut (*known)[kills::COUNT], 1)
    }
}

/// # Safety
/// `pod` is a value of `CONDEMNED`.
#[inline(always)]
unsafe fn uid_of(pod: *const [u64; condemned::WORDS]) -> [u64; UID_WORDS] {
    let mut uid = [0; UID_WORDS];
    for (index, word) in uid.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *word = unsafe { (*pod)[condemned::UID + index] };
    }
    uid
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
