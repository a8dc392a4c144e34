//! Pages that had been taken from a cgroup and are needed again: refaults of page cache and anonymous memory, and reads
//! from swap.
//!
//! The kernel's own counters for them are brought up to date by a function that runs a hundred thousand times a second.
//! Approach: hook where a page comes back instead. A refault passes `workingset_refault(folio, shadow)`, a read from
//! swap `swap_readpage` (6.1) or `swap_read_folio`; both run in the task that needs the page, to whose memory cgroup it
//! is charged (but for memory that was swapped out by another cgroup, which is rare enough).
//!
//! `memory.stat` leaves out refaults of pages whose cgroup is gone since, and with multi-generational LRU those that
//! another node's memory serves; they count here.

use aya_ebpf::{helpers::bpf_ktime_get_ns, macros::fentry, programs::FEntryContext};
use plimsoll_abi::{Kind, Refault, refault, refault_totals};

use crate::{
    atomic,
    counted::current_counted_id,
    layout::{config, load_u32, load_u64, offset},
    maps::REFAULTS,
    record::{count_folded, count_untracked, header, send_pressure},
};

/// On entry of `workingset_refault(struct folio *folio, void *shadow)`.
#[fentry(function = "workingset_refault")]
pub fn refault_page(ctx: FEntryContext) -> u32 {
    let folio: *const u8 = ctx.arg(0);
    // SAFETY: a typed member of a typed argument.
    let flags = unsafe { load_u64(folio, offset!(folio_flags)) };
    let what = if has(flags, offset!(page_swapbacked_bit)) {
        refault::ANON
    } else {
        refault::FILE
    };
    // SAFETY: a typed argument.
    note(what, unsafe { pages(folio, flags) });
    0
}

/// On entry of `swap_readpage(struct page *page, …)` (6.1).
#[fentry(function = "swap_readpage")]
pub fn swap_in_page(_ctx: FEntryContext) -> u32 {
    note(refault::SWAP_IN, 1);
    0
}

/// On entry of `swap_read_folio(struct folio *folio, …)`.
#[fentry(function = "swap_read_folio")]
pub fn swap_in_folio(ctx: FEntryContext) -> u32 {
    let folio: *const u8 = ctx.arg(0);
    // SAFETY: typed members of a typed argument.
    let pages = unsafe { pages(folio, load_u64(folio, offset!(folio_flags))) };
    note(refault::SWAP_IN, pages);
    0
}

#[inline(always)]
fn has(flags: u64, bit: usize) -> bool {
    flags >> (bit & 63) & 1 == 1
}

/// # Safety
/// `folio` is a typed `struct folio`.
#[inline(always)]
unsafe fn pages(folio: *const u8, flags: u64) -> u64 {
    if has(flags, offset!(page_head_bit)) {
        // SAFETY: the caller's promise.
        u64::from(unsafe { load_u32(folio, offset!(folio_pages)) })
    } else {
        1
    }
}

/// Adds to the totals of the current task's pod or cgroup, and sends them if the window allows.
#[inline(always)]
fn note(what: u32, pages: u64) {
    let Some(cgroup_id) = current_counted_id() else {
        return;
    };
    let key = [cgroup_id, u64::from(what)];
    let totals = match REFAULTS.get_ptr_mut(key) {
        Some(totals) => totals,
        None => {
            // Another CPU may be first: either way the entry is there afterwards, unless the map is full.
            let _ = REFAULTS.insert(key, [0; refault_totals::WORDS], 1);
            match REFAULTS.get_ptr_mut(key) {
                Some(totals) => totals,
                None => return count_untracked(),
            }
        }
    };
    // SAFETY: a map value of `refault_totals::WORDS` words, throughout; a helper without arguments.
    unsafe {
        atomic::add(&raw mut (*totals)[refault_totals::COUNT], 1);
        atomic::add(&raw mut (*totals)[refault_totals::PAGES], pages);
        let is_due = atomic::claim_window(
            &raw mut (*totals)[refault_totals::SENT_NS],
            bpf_ktime_get_ns(),
            config!(window_ns),
        );
        if !is_due {
            return count_folded(Kind::Refault);
        }
        send_pressure(Kind::Refault, |record: *mut Refault| {
            record.write(Refault {
                header: header(Kind::Refault, cgroup_id),
                count: (*totals)[refault_totals::COUNT],
                pages: (*totals)[refault_totals::PAGES],
                what,
                pad: 0,
            });
        });
    }
}
